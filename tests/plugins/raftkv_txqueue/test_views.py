"""What can be read, and that it is atomic while rows are being moved."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv_txqueue.commands import (
    AcceptOf,
    CommitBranch,
    DecidedNow,
    End,
    Heuristic,
    PrepareBranch,
    PublishTo,
    Purge,
    Rollback,
    Start,
)
from raftkv_txqueue.refusals import UnknownQueue
from raftkv_txqueue.views import (
    Fate,
    branches,
    decision_of,
    message_of,
    operations_of,
    outcome_of,
    queue_of,
    recover,
    transaction_of,
    txid_of,
    where,
)
from raftkv_txqueue.xa import Xid
from tests.plugins.raftkv_txqueue.pure import TxLog, accept_of, message, must, publish_to

#: More than one entry may touch, so a commit of it goes through a span.
MANY = 1_500


def bodies(first: int, count: int) -> list[str]:
    return [f"{n:05}" for n in range(first, first + count)]


def spanned(log: TxLog, queue: str = "q", count: int = MANY) -> int:
    """A large committed transaction of a session of n1, not swept yet."""
    session = log.open("n1", "tx")
    for first in range(1, count + 1, 500):
        log.stage(session, publish_to(queue, *bodies(first, min(500, count - first + 1))))
    assert must(DecidedNow, log.commit(session)).verdict == "committed"
    return session


# --- browsing -------------------------------------------------------------------------------------


def test_browse_shows_what_is_available_in_order_and_in_pages() -> None:
    log = TxLog()
    log.publish("q", *"abcdef")
    session = log.open()
    log.get(session, count=4)
    log.release(session, "q", 3, 1)
    assert log.bodies() == ["a", "c", "e", "f"]
    assert log.bodies(limit=3) == ["a", "c", "e"]
    assert log.bodies(first=2, limit=2) == ["c", "e"]
    assert log.bodies(first=6) == ["f"]
    assert log.bodies(first=7) == []
    assert log.bodies(limit=1) == ["a"]
    first, *_ = log.browse()
    assert (first.seq, first.deliveries, first.state, first.at_ms) == (1, 1, "available", 1_000)


def test_browse_everything_shows_where_each_message_is() -> None:
    log = TxLog()
    log.publish("q", *"abcde")
    one, two = log.open("n1", "tx"), log.open("n2")
    log.get(two)
    log.get(one, count=3)
    log.stage(one, accept_of("q", 3))
    log.release(one, "q", 2)
    assert log.places() == {
        "a": "acquired",
        "b": "available",
        "c": "accepted",
        "d": "acquired",
        "e": "available",
    }
    assert log.bodies(everything=True, first=2, limit=3) == ["b", "c", "d"]
    assert [row.deliveries for row in log.browse(everything=True)] == [1, 1, 1, 1, 0]


def test_places_are_found_among_the_rows_of_other_queues_and_sessions() -> None:
    log = TxLog(queues=("p", "q", "r"))
    for queue in ("p", "q", "r"):
        log.publish(queue, *"abc")
    sessions = [log.open("n1"), log.open("n2"), log.open("n3")]
    for session, queues in zip(sessions, ("pr", "pq", "qr"), strict=True):
        for queue in queues:
            log.get(session, queue)
    view = log.view()
    assert where(view, queue_of(view, "q").id) == {1: ("acquired", 1), 2: ("acquired", 1)}
    assert where(view, queue_of(view, "r").id, 2) == {2: ("acquired", 1)}
    assert where(view, queue_of(view, "p").id, 1, 1) == {1: ("acquired", 1)}
    assert where(view, 99) == {}


def test_an_unknown_queue() -> None:
    log = TxLog()
    with pytest.raises(UnknownQueue, match="declare it first"):
        log.browse("nowhere")


# --- through spans --------------------------------------------------------------------------------


def test_a_large_commit_is_seen_whole_before_during_and_after_its_rows_are_moved() -> None:
    log = TxLog(checks=False)
    log.publish("q", "first")
    spanned(log)
    log.publish("q", "last")
    expected = ["first", *bodies(1, MANY), "last"]
    assert log.table("spans")
    rounds = 0
    while log.table("spans"):
        assert log.bodies(limit=MANY + 9) == expected
        log.check()
        log.sweep(rows_max=400)
        rounds += 1
    assert rounds > 3
    assert log.bodies(limit=MANY + 9) == expected
    assert log.table("staged") == {}


def test_messages_under_a_span_are_acquired_settled_purged_and_dead_lettered() -> None:
    log = TxLog(checks=False)
    log.declare("dead")
    log.declare("q", dead_letter="dead")
    spanned(log)
    session = log.open("n2")
    assert log.get(session, count=4, bytes_max=200).seqs == (1, 2)
    assert log.get(session, count=2).seqs == (3, 4)
    log.accept(session, "q", 1)
    log.release(session, "q", 2)
    log.reject(session, "q", 3)
    log.check()
    assert log.bodies("dead") == ["00003"]
    assert log.places_of(1, 5) == {"00002": "available", "00004": "acquired", "00005": "available"}
    assert log.anywhere(Purge("q", 6)).messages == 3
    log.check()
    log.sweep_all(rows_max=400)
    log.check()
    assert log.bodies(limit=2) == ["00007", "00008"]
    assert log.queue().depth == MANY - 5
    assert log.table("staged") == log.table("spans") == log.table("transactions") == {}


def test_what_a_large_commit_accepted_is_gone_in_that_entry() -> None:
    log = TxLog(checks=False)
    session = log.open(kind="tx")
    for _ in range(2):
        log.publish("q", *(["x"] * 700))
        log.stage(session, accept_of("q", *log.get(session, count=700).seqs))
    log.publish("q", "left")
    assert log.places_of(1, 1) == {"x": "accepted"}
    log.commit(session)
    assert log.table("accepts")
    assert log.places() == {"left": "available"}
    assert log.queue().depth == 1
    log.sweep_all(rows_max=500)
    log.check()
    assert (log.table("accepts"), log.places()) == ({}, {"left": "available"})


def test_a_drop_oldest_queue_lets_a_span_shrink() -> None:
    log = TxLog(checks=False)
    log.declare("q", depth_max=10, overflow="drop_oldest")
    spanned(log)
    log.sweep_all(rows_max=400)
    log.check()
    assert log.bodies() == bodies(MANY - 9, 10)
    assert log.table("staged") == log.table("spans") == log.table("overfull") == {}


def test_one_message_through_a_span() -> None:
    log = TxLog(checks=False)
    log.publish("q", "first")
    log.now = 7_000
    spanned(log)
    view, id = log.view(), log.queue().id
    for seq, body in ((1, "first"), (2, "00001"), (MANY + 1, f"{MANY:05}")):
        stored = message_of(view, id, seq)
        assert stored is not None
        assert stored.message.body.decode() == body
        assert stored.at_ms == (1_000 if seq == 1 else 7_000)
    assert message_of(view, id, MANY + 2) is None
    assert message_of(view, id + 1, 1) is None


# --- transactions ---------------------------------------------------------------------------------


def test_operations_are_seen_in_their_order() -> None:
    log = TxLog(queues=("p", "q"))
    log.publish("p", *"abc")
    session = log.open(kind="tx")
    log.get(session, "p", count=3)
    log.stage(session, publish_to("q", "1", "2"), accept_of("p", 3, 1))
    number = log.session(session).number
    row = transaction_of(log.view(), number)
    assert row is not None
    first = (PublishTo("q", (message("1"), message("2"))), AcceptOf("p", (3, 1)))
    assert operations_of(log.view(), number) == first
    seen = row.rows
    log.stage(session, publish_to("p", "3"), publish_to("q", "4"), publish_to("q", "5"))
    rest = (publish_to("p", "3"), publish_to("q", "4", "5"))
    assert operations_of(log.view(), number, seen) == rest
    assert operations_of(log.view(), number) == (*first, *rest)
    assert operations_of(log.view(), number + 1) == ()


def fate(log: TxLog, session: int, counter: int) -> Any:
    found = outcome_of(log.view(), session, counter)
    return found.state, found.cause


def test_the_fates_of_transactions() -> None:
    log = TxLog()
    session = log.open(kind="tx")
    assert txid_of(session, 1) == f"{session}.1"
    assert fate(log, session, 1) == ("unknown", "")
    log.stage(session, publish_to("q", "a"))
    assert fate(log, session, 1) == ("active", "")
    assert fate(log, session, 2) == ("unknown", "")
    log.commit(session)
    assert outcome_of(log.view(), session, 1) == Fate("committed")
    log.of(session, Rollback(session, 2, "no longer wanted"))
    found = outcome_of(log.view(), session, 2)
    assert (found.state, found.reason) == ("rolled back", "no longer wanted")
    assert found.index == log.machine.index
    assert fate(log, session + 1, 1) == ("unknown", "")


def test_what_an_ended_session_did_not_have_decided_is_rolled_back_at_once() -> None:
    """Before any Sweep: nobody can ever commit it."""
    log = TxLog()
    session = log.open("n2", "tx")
    log.stage(session, publish_to("q", "a"))
    log.node_down("n2")
    assert fate(log, session, 1) == ("rolled back", "session")
    assert fate(log, session, 2) == ("rolled back", "session")
    log.sweep_all()
    assert fate(log, session, 1) == ("rolled back", "session")
    assert fate(log, session, 2) == ("rolled back", "session")


def test_old_rollbacks_of_a_session_are_forgotten_not_taken_for_commits() -> None:
    log = TxLog()
    log.set("rollbacks_kept", 2)
    session = log.open(kind="tx")
    for counter in range(1, 5):
        log.of(session, Rollback(session, counter))
    assert [fate(log, session, counter)[0] for counter in range(1, 5)] == [
        "forgotten",
        "forgotten",
        "rolled back",
        "rolled back",
    ]


# --- branches -------------------------------------------------------------------------------------


def branch(log: TxLog, name: bytes, *operations: Any) -> Xid:
    """An idle branch with these operations."""
    session = log.open(kind="dtx")
    xid = Xid(1, name, b"b")
    log.of(session, Start(session, xid))
    log.of(session, End(session, xid, operations=operations))
    return xid


def test_recover_shows_just_those_that_somebody_has_to_decide_or_to_forget() -> None:
    log = TxLog()
    log.publish("q", "a")
    active = branch(log, b"1", publish_to("q", "b"))
    prepared = branch(log, b"3", publish_to("q", "c"))
    heuristic = branch(log, b"2", publish_to("q", "d"))
    done = branch(log, b"4", publish_to("q", "e"))
    for xid in (prepared, heuristic):
        log.anywhere(PrepareBranch(xid))
    log.anywhere(Heuristic(heuristic, commit=False, reason="too old"))
    log.anywhere(CommitBranch(done, one_phase=True))
    view = log.view()
    assert [xid for xid, _ in branches(view)] == [active, heuristic, prepared]
    assert [(xid, row.state) for xid, row in recover(view)] == [
        (heuristic, "heuristically rolled back"),
        (prepared, "prepared"),
    ]
    decided = decision_of(view, heuristic)
    assert decided is not None
    assert (decided.verdict, decided.by, decided.reason) == ("rolled back", "operator", "too old")
    assert decision_of(view, prepared) is None
    decided = decision_of(view, done)
    assert decided is not None
    assert decided.verdict == "committed"


def test_a_decision_that_is_no_longer_kept() -> None:
    log = TxLog()
    log.set("decisions_kept", 1)
    first, second = (branch(log, name, publish_to("q", "a")) for name in (b"1", b"2"))
    for xid in (first, second):
        log.anywhere(CommitBranch(xid, one_phase=True))
    assert decision_of(log.view(), first) is None
    assert decision_of(log.view(), second) is not None


def test_a_decision_about_a_name_that_was_used_again_is_not_the_first_ones() -> None:
    log = TxLog()
    numbers = []
    for _ in range(2):
        xid = branch(log, b"1", publish_to("q", "a"))
        numbers.append(log.view().table("branches")[xid.key])
        log.anywhere(CommitBranch(xid, one_phase=True))
    first, second = numbers
    decided = decision_of(log.view(), xid, second)
    assert decided is not None
    assert decided == decision_of(log.view(), xid)
    assert decision_of(log.view(), xid, first) is None

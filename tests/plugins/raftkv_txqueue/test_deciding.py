"""Deciding: TX with few rows and with many, their fates, and what is moved later."""

from __future__ import annotations

import pytest

from raftkv_txqueue import deciding
from raftkv_txqueue.commands import (
    ROWS_MAX,
    Commit,
    Message,
    Observe,
    Publish,
    PublishTo,
    Purge,
    Rollback,
    Vote,
)
from raftkv_txqueue.refusals import (
    NotYourSession,
    OutcomeForgotten,
    SessionEnded,
    UnknownTransaction,
    WrongKind,
)
from raftkv_txqueue.views import outcome_of
from tests.plugins.raftkv_txqueue.pure import TxLog, accept_of, message, publish_to


@pytest.fixture
def log() -> TxLog:
    return TxLog(queues=("q", "r"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions with more than two rows are large."""
    monkeypatch.setattr(deciding, "ENTRY_ROWS", 2)


def test_a_small_commit_touches_nothing_but_the_queues_and_its_session(log: TxLog) -> None:
    log.publish("q", "a", "b")
    session = log.open(kind="tx")
    log.get(session, count=2)
    before = log.digest_of_plugin()
    done = log.commit(session, accept_of("q", 2), publish_to("r", "1", "2"), publish_to("q", "3"))
    assert (done.verdict, done.spans) == ("committed", (("q", 3, 3), ("r", 1, 2)))
    assert done.index == log.machine.index
    after = log.digest_of_plugin()
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"queues", "messages", "locks", "sessions"}
    assert log.places("q") == {"a": "acquired", "3": "available"}


def test_the_same_commit_again_answers_the_same_and_does_nothing(log: TxLog) -> None:
    session = log.open(kind="tx")
    log.commit(session, publish_to("q", "1"))
    log.commit(session, publish_to("nowhere", "2"))
    before = log.digest_of_plugin()
    assert log.commit(session, publish_to("q", "1"), counter=1).verdict == "committed"
    again = log.commit(session, publish_to("q", "2"), counter=2)
    assert (again.verdict, again.cause) == ("rolled back", "txqueue_unknown_queue")
    assert again.index == log.table("rollbacks")[session, 2].index
    assert log.of(session, Rollback(session, 1)).verdict == "committed"
    assert log.digest_of_plugin() == before


def test_the_fate_is_known_to_other_nodes_and_after_the_session(log: TxLog) -> None:
    session = log.open("n1", "tx")
    log.commit(session, publish_to("q", "1"))
    other = log.sessions["n2"]
    assert log.run(other, "txqueue", Commit(session, 1)).verdict == "committed"
    with pytest.raises(NotYourSession):
        log.run(other, "txqueue", Commit(session, 2))
    log.close(session)
    assert log.commit(session, counter=1).verdict == "committed"
    with pytest.raises(SessionEnded):
        log.commit(session, counter=2)
    assert outcome_of(log.view(), session, 2).state == "rolled back"


def test_counters_are_decided_in_order(log: TxLog) -> None:
    session = log.open(kind="tx")
    with pytest.raises(UnknownTransaction):
        log.commit(session, publish_to("q", "1"), counter=2)
    log.of(session, Rollback(session, 1, "changed my mind"))
    row = log.table("rollbacks")[session, 1]
    assert (row.cause, row.reason) == ("rollback", "changed my mind")
    with pytest.raises(UnknownTransaction):
        log.of(session, Rollback(session, 3))
    plain = log.open()
    with pytest.raises(WrongKind):
        log.commit(plain, publish_to("q", "1"))


def test_the_oldest_rollbacks_are_forgotten(log: TxLog) -> None:
    log.set("rollbacks_kept", 2)
    session = log.open(kind="tx")
    for counter in range(1, 6):
        if counter == 3:
            log.commit(session, counter=3)
        else:
            log.of(session, Rollback(session, counter))
    assert sorted(key[1] for key in log.table("rollbacks")) == [4, 5]
    assert log.session(session).forgotten == 2
    with pytest.raises(OutcomeForgotten):
        log.commit(session, counter=2)
    assert log.commit(session, counter=3).verdict == "committed"


def test_a_rollback_gives_the_session_back_what_it_accepted(log: TxLog) -> None:
    log.publish("q", "a", "b")
    session = log.open(kind="tx")
    log.get(session, count=2)
    log.stage(session, accept_of("q", 2, 1), publish_to("r", "1"))
    log.of(session, Rollback(session, 1))
    assert log.places() == {"a": "acquired", "b": "acquired"}
    assert log.session(session).held == 2
    log.stage(session, accept_of("q", 1))
    log.close(session)
    assert log.bodies() == ["a", "b"]
    assert log.bodies("r") == []
    assert log.table("rollbacks")[session, 2].cause == "session"


@pytest.mark.usefixtures("small")
def test_a_large_commit_is_visible_at_once_and_moved_later(log: TxLog) -> None:
    log.publish("q", "a", "b", "c")
    session = log.open(kind="tx")
    log.get(session, count=3)
    log.stage(session, publish_to("q", "1", "2"), accept_of("q", 1, 2), publish_to("r", "3"))
    done = log.commit(session, publish_to("q", "4"))
    assert done.spans == (("q", 4, 6), ("r", 1, 1))
    # Nothing was moved: O(queues).
    assert len(log.table("staged")) == 4
    assert len(log.table("messages")) == 3
    log.publish("q", "5")
    expected = {"c": "acquired", "1": "available", "2": "available", "4": "available"}
    while True:
        assert log.bodies("q") == ["1", "2", "4", "5"]
        assert log.places("q") == {**expected, "5": "available"}
        assert log.bodies("r") == ["3"]
        if not log.sweep(1).more:
            break
    for table in ("staged", "accepts", "spans", "transactions", "unfolding"):
        assert log.table(table) == {}, table


@pytest.mark.usefixtures("small")
def test_messages_under_a_span_are_acquired_accepted_and_purged(log: TxLog) -> None:
    session = log.open(kind="tx")
    log.stage(session, publish_to("q", "1", "2", "3"))
    log.commit(session, publish_to("q", "4", "5"))
    assert log.get(session, count=2).seqs == (1, 2)
    log.release(session, "q", 1)
    assert log.commit(session, accept_of("q", 2)).verdict == "committed"
    assert log.anywhere(Purge("q", 3)).messages == 2
    assert log.bodies() == ["4", "5"]
    log.sweep_all(1)
    assert log.bodies() == ["4", "5"]
    assert [row.at_ms for row in log.browse()] == [1_000, 1_000]


@pytest.mark.usefixtures("small")
def test_a_queue_is_deleted_while_its_rows_are_being_moved(log: TxLog) -> None:
    log.publish("q", "a", "b")
    session = log.open(kind="tx")
    log.get(session, count=2)
    log.stage(session, accept_of("q", 1), publish_to("q", "1", "2"))
    log.commit(session, publish_to("r", "3"))
    log.delete("q")
    log.declare("q")
    log.publish("q", "new")
    log.sweep_all(1)
    assert (log.bodies("q"), log.bodies("r")) == (["new"], ["3"])
    assert log.table("messages").keys() == {(3, 1), (2, 1)}


@pytest.mark.usefixtures("small")
def test_a_large_rollback_gives_back_later_or_on_the_spot(log: TxLog) -> None:
    log.publish("q", "a", "b", "c", "d")
    session = log.open(kind="tx")
    log.get(session, count=4)
    log.stage(session, accept_of("q", 1, 2, 3), publish_to("r", "1"))
    log.of(session, Rollback(session, 1))
    assert len(log.table("accepts")) == 3
    # The session goes on as if nothing were left to be done.
    assert log.commit(session, accept_of("q", 2)).verdict == "committed"
    assert log.accept(session, "q", 3).done == 1
    log.sweep_all(1)
    assert log.places() == {"a": "acquired", "d": "acquired"}
    assert log.session(session).held == 2


@pytest.mark.usefixtures("small")
def test_a_large_rollback_of_an_ended_session_returns_to_the_queue(log: TxLog) -> None:
    log.declare("q", deliveries_max=1, dead_letter="r")
    log.publish("q", "a", "b", "c")
    session = log.open(kind="tx")
    log.get(session, count=3)
    log.stage(session, accept_of("q", 1, 2, 3))
    log.close(session)
    assert log.bodies("r") == []
    log.sweep_all(1)
    assert log.bodies("r") == ["a", "b", "c"]
    assert (log.queue("q").depth, log.queue("q").dead) == (0, 3)


@pytest.mark.usefixtures("small")
def test_a_large_commit_above_the_limit_drops_the_oldest_later(log: TxLog) -> None:
    log.declare("q", depth_max=2, overflow="drop_oldest")
    log.publish("q", "a", "b")
    session = log.open(kind="tx")
    log.stage(session, publish_to("q", "1", "2", "3"))
    log.commit(session)
    assert log.queue().depth == 5
    assert log.table("overfull") == {"q": None}
    log.sweep_all(1)
    assert log.bodies() == ["2", "3"]
    assert log.queue().dropped == 3


def test_ten_thousand_messages_appear_in_one_entry() -> None:
    log = TxLog(checks=False)
    session = log.open(kind="tx")
    batch = PublishTo("q", tuple(Message(b"%d" % at) for at in range(ROWS_MAX)))
    for _ in range(10):
        log.stage(session, batch)
    log.commit(session, publish_to("q", "last"))
    assert (log.queue().depth, len(log.table("messages"))) == (10_001, 0)
    assert log.sweep(100).rows == 100
    log.anywhere(Publish("q", (message("after"),)))
    log.check()
    log.sweep_all()
    log.check()
    assert len(log.table("messages")) == 10_002


# --- votes ----------------------------------------------------------------------------------------


def test_the_commit_survives_the_end_of_its_session(log: TxLog) -> None:
    log.send("n1", Observe(True))
    session = log.open("n2", "tx")
    voting = log.commit(session, publish_to("q", "1"))
    log.node_down("n2")
    log.sweep_all()
    assert outcome_of(log.view(), session, 1).state == "preparing"
    log.send("n1", Vote(voting.number, True))
    assert log.bodies() == ["1"]
    assert outcome_of(log.view(), session, 1).state == "committed"


def test_one_no_rolls_back(log: TxLog) -> None:
    for node in ("n1", "n2"):
        log.send(node, Observe(True))
    log.publish("q", "a")
    session = log.open("n1", "tx")
    log.get(session)
    voting = log.commit(session, accept_of("q", 1), publish_to("r", "1"))
    log.send("n2", Vote(voting.number, False, "disk full"))
    log.send("n1", Vote(voting.number, True))
    fate = outcome_of(log.view(), session, 1)
    assert (fate.state, fate.cause, fate.reason) == ("rolled back", "vote", "n2: disk full")
    assert (log.places("q"), log.bodies("r")) == ({"a": "acquired"}, [])


def test_a_vote_of_another_life_says_nothing(log: TxLog) -> None:
    log.send("n2", Observe(True))
    session = log.open("n1", "tx")
    voting = log.commit(session, publish_to("q", "1"))
    log.node_up("n2")
    log.send("n2", Observe(True))
    log.send("n2", Vote(voting.number, True))
    assert log.bodies() == []
    log.sweep()
    fate = outcome_of(log.view(), session, 1)
    assert (fate.state, fate.cause) == ("rolled back", "participant")
    assert "n2" in fate.reason


def test_who_voted_and_then_died_has_voted(log: TxLog) -> None:
    for node in ("n2", "n3"):
        log.send(node, Observe(True))
    session = log.open("n1", "tx")
    voting = log.commit(session, publish_to("q", "1"))
    log.send("n2", Vote(voting.number, True))
    log.node_down("n2")
    log.sweep_all()
    log.send("n3", Vote(voting.number, True))
    assert log.bodies() == ["1"]


def test_late_votes_roll_back_but_only_by_a_sweep(log: TxLog) -> None:
    log.set("prepare_timeout_ms", 500)
    log.send("n2", Observe(True))
    session = log.open("n1", "tx")
    log.commit(session, publish_to("q", "1"))
    log.now += 499
    log.sweep()
    assert outcome_of(log.view(), session, 1).state == "preparing"
    log.now += 1
    assert outcome_of(log.view(), session, 1).state == "preparing"
    log.sweep()
    fate = outcome_of(log.view(), session, 1)
    assert (fate.state, fate.cause) == ("rolled back", "late")
    assert "n2" in fate.reason


@pytest.mark.parametrize("staged", [False, True])
def test_a_commit_to_many_overfull_queues_drops_a_thousand_rows_at_most(staged: bool) -> None:
    names = tuple(f"q{at}" for at in range(4))
    log = TxLog(queues=names, checks=False)
    for name in names:
        log.publish(name, *(["x"] * 900))
        log.declare(name, depth_max=1, overflow="drop_oldest")
    session = log.open(kind="tx")
    operations = [publish_to(name, "y") for name in names]
    if staged:
        log.stage(session, *operations)
    assert log.commit(session, *([] if staged else operations)).verdict == "committed"
    assert sum(log.queue(name).dropped for name in names) == ROWS_MAX
    log.sweep_all()
    log.check()
    assert [log.bodies(name) for name in names] == [["y"]] * 4


def test_many_large_commits_to_one_queue_are_moved_each_to_its_place(small: None) -> None:
    log = TxLog()
    sessions = [log.open(kind="tx") for _ in range(5)]
    for at, session in enumerate(sessions):
        log.stage(session, publish_to("q", *(f"{at}.{place}" for place in range(3))))
    order = (3, 0, 4, 2, 1)  # not that of their numbers
    for at in order:
        log.commit(sessions[at])
    expected = [f"{at}.{place}" for at in order for place in range(3)]
    while log.table("unfolding"):
        assert log.bodies() == expected
        log.sweep(2)
    assert log.bodies() == expected
    assert log.table("spans") == {}


def test_a_large_commit_that_only_accepts_leaves_the_span_of_the_next_one(small: None) -> None:
    log = TxLog()
    log.publish("q", "a", "b", "c")
    takes, gives = log.open(kind="tx"), log.open(kind="tx")
    log.get(takes, count=3)
    log.stage(takes, accept_of("q", 1, 2, 3))
    log.stage(gives, publish_to("q", "1", "2", "3"))
    log.commit(takes)
    log.commit(gives)  # its span begins where the other one found the end of the queue
    log.sweep(4)
    assert log.bodies() == ["1", "2", "3"]
    log.sweep_all()
    assert log.bodies() == ["1", "2", "3"]

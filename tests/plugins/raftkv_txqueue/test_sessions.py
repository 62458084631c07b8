"""Sessions: whose they are, how they end, what comes back, when they are forgotten."""

from __future__ import annotations

import pytest

from raftkv_txqueue.commands import (
    ROWS_MAX,
    Acquire,
    CloseSession,
    Observe,
    OpenSession,
    Rollback,
    Select,
    SessionClosed,
    SessionRow,
    Vote,
    Voting,
)
from raftkv_txqueue.refusals import (
    InTransaction,
    NotAMember,
    NotYourSession,
    SessionEnded,
    TooManySessions,
)
from raftkv_txqueue.views import meta_of, outcome_of, session_live, to_forget
from tests.plugins.raftkv_txqueue.pure import TxLog, accept_of, publish_to

HOUR_MS = 3_600_000


def filled(count: int = 3) -> TxLog:
    log = TxLog()
    log.publish("q", *(f"{n:04}" for n in range(1, count + 1)))
    return log


def test_a_session_belongs_to_the_present_life_of_the_node_that_opens_it() -> None:
    log = TxLog()
    log.node_up("n2")
    session = log.open("n2", "tx")
    assert log.session(session) == SessionRow("n2", 2, "tx")
    assert set(log.table("owners")) == {("n2", 2, session)}
    assert meta_of(log.view()).sessions == 1
    assert log.open("n1") == session + 1


def test_only_a_node_opens_a_session() -> None:
    log = TxLog()
    with pytest.raises(NotAMember):
        log.run(log.client(), "txqueue", OpenSession())


def test_there_are_no_more_sessions_than_allowed() -> None:
    log = TxLog()
    log.set("sessions_max", 2)
    one = log.open()
    log.open("n2")
    with pytest.raises(TooManySessions, match="2 sessions"):
        log.open("n3")
    log.close(one)
    log.open("n3")


def test_select_changes_the_kind_of_a_session_that_is_in_no_transaction() -> None:
    log = filled()
    session = log.open()
    log.of(session, Select(session, "tx"))
    assert log.session(session).kind == "tx"
    log.stage(session, publish_to("q", "x"))
    with pytest.raises(InTransaction):
        log.of(session, Select(session, "plain"))
    log.of(session, Rollback(session, 1))
    log.of(session, Select(session, "plain"))
    with pytest.raises(NotYourSession):
        log.send("n2", Select(session, "tx"))


# --- closing --------------------------------------------------------------------------------------


def test_a_closed_session_gives_back_what_it_held_in_the_old_order() -> None:
    log = filled(5)
    one, two = log.open("n1"), log.open("n2")
    log.get(one, count=2)
    log.get(two, count=2)
    log.get(one)
    assert log.close(one) == SessionClosed(held=3, rolled_back=False)
    assert log.bodies() == ["0001", "0002", "0005"]
    assert log.close(two).held == 2
    assert log.bodies() == ["0001", "0002", "0003", "0004", "0005"]
    assert (log.table("locks"), log.table("owners"), log.table("ended_sessions")) == ({}, {}, {})
    three = log.open("n3")
    assert log.get(three, count=5).deliveries == (2,) * 5


def test_a_closed_session_does_nothing_any_more() -> None:
    log = filled()
    session = log.open()
    log.close(session)
    with pytest.raises(SessionEnded):
        log.get(session)
    with pytest.raises(SessionEnded):
        log.close(session)
    with pytest.raises(SessionEnded):
        log.commit(session)
    assert meta_of(log.view()).sessions == 0


def test_its_open_transaction_is_rolled_back() -> None:
    log = filled()
    session = log.open(kind="tx")
    log.get(session, count=2)
    log.stage(session, publish_to("q", "new"), accept_of("q", 1))
    assert log.places() == {"0001": "accepted", "0002": "acquired", "0003": "available"}
    assert log.close(session) == SessionClosed(held=1, rolled_back=True)
    assert log.bodies() == ["0001", "0002", "0003"]
    fate = outcome_of(log.view(), session, 1)
    assert (fate.state, fate.cause) == ("rolled back", "session")
    assert (log.table("transactions"), log.table("accepts"), log.table("staged")) == ({}, {}, {})
    assert log.session(session).number == 0


def test_more_than_one_entry_may_give_back_comes_back_by_sweeping() -> None:
    log = TxLog(checks=False)
    for _ in range(2):
        log.publish("q", *(["x"] * ROWS_MAX))
    log.publish("q", "y")
    session = log.open()
    for _ in range(3):
        log.get(session, count=ROWS_MAX)
    assert log.close(session).held == 2 * ROWS_MAX + 1
    assert log.table("ended_sessions") == {session: None}
    assert 0 < log.queue().ready <= ROWS_MAX
    log.check()
    log.sweep_all(rows_max=300)
    log.check()
    assert log.queue().ready == log.queue().depth == 2 * ROWS_MAX + 1
    assert (log.table("ended_sessions"), log.table("locks")) == ({}, {})
    assert log.session(session).held == 0


def test_what_it_held_of_several_queues_goes_back_to_each() -> None:
    log = filled()
    log.declare("p", deliveries_max=1, dead_letter="q")
    log.declare("gone")
    log.publish("p", "dies")
    log.publish("gone", "x")
    session = log.open()
    for queue in ("q", "p", "gone"):
        log.get(session, queue, count=2)
    log.delete("gone")
    log.close(session)
    assert (log.bodies(), log.bodies("p")) == (["0001", "0002", "0003", "dies"], [])
    assert log.table("locks") == {}


# --- the end of a node's life ---------------------------------------------------------------------


def test_the_end_of_a_life_ends_its_sessions_in_that_entry() -> None:
    log = filled()
    session, other = log.open("n2"), log.open("n3")
    log.get(session, count=2)
    log.node_down("n2")
    assert not session_live(log.view(), log.session(session))
    assert session_live(log.view(), log.session(other))
    assert log.table("ended_nodes") == {("n2", 1): None}
    log.node_up("n2")
    with pytest.raises(SessionEnded):
        log.send("n2", Acquire(session, "q", 1))
    with pytest.raises(SessionEnded):
        log.send("n2", CloseSession(session))
    assert log.bodies() == ["0003"]
    log.sweep_all()
    assert log.bodies() == ["0001", "0002", "0003"]
    assert log.session(session).ended_ms == log.now
    assert (log.table("ended_nodes"), set(log.table("owners"))) == ({}, {("n3", 1, other)})


def test_a_restart_ends_the_sessions_of_the_life_before_and_no_others() -> None:
    log = filled()
    old = log.open("n2")
    log.node_up("n2")
    new = log.open("n2")
    assert not session_live(log.view(), log.session(old))
    assert session_live(log.view(), log.session(new))
    log.sweep_all()
    assert (log.session(old).ended_ms > 0, log.session(new).ended_ms) == (True, 0)
    assert meta_of(log.view()).sessions == 1


def test_a_new_role_is_the_same_life() -> None:
    log = TxLog()
    log.node_up("r1", "replicant")
    session = log.open("r1")
    log.node_role("r1", "core")
    assert session_live(log.view(), log.session(session))
    assert log.table("ended_nodes") == {}


def test_a_life_without_sessions_leaves_nothing_to_do() -> None:
    log = TxLog()
    log.node_down("n2")
    assert log.table("ended_nodes") == {}


def test_many_sessions_of_a_life_end_in_batches() -> None:
    log = filled(30)
    sessions = [log.open("n2") for _ in range(10)]
    for session in sessions:
        log.get(session, count=3)
    log.node_down("n2")
    swept = log.sweep(rows_max=5)
    assert swept.more
    assert 0 < log.queue().ready < 30
    log.sweep_all(rows_max=5)
    assert log.queue().ready == 30
    assert all(log.session(session).ended_ms for session in sessions)
    assert log.table("ended_nodes") == {}


# --- forgetting -----------------------------------------------------------------------------------


def ended_with_a_rollback(log: TxLog, node: str = "n1") -> int:
    session = log.open(node, "tx")
    log.commit(session, publish_to("q", "x"))
    log.of(session, Rollback(session, 2))
    log.close(session)
    return session


def test_the_outcomes_of_an_ended_session_are_kept_for_the_retention_time() -> None:
    log = TxLog()
    session = ended_with_a_rollback(log)
    log.now += HOUR_MS - 1
    assert not to_forget(log.view())
    log.sweep_all()
    assert outcome_of(log.view(), session, 1).state == "committed"
    assert outcome_of(log.view(), session, 2).state == "rolled back"
    log.now += 1
    log.sweep_all()
    assert log.table("sessions") == {}
    assert (log.table("rollbacks"), log.table("old_sessions")) == ({}, {})
    assert outcome_of(log.view(), session, 1).state == "forgotten"
    assert outcome_of(log.view(), session + 1, 1).state == "unknown"


def voting_when_it_ended(log: TxLog) -> int:
    """A session that was closed while the participant n2 is asked about its commit."""
    log.send("n2", Observe(on=True))
    session = log.open("n1", "tx")
    assert isinstance(log.commit(session, publish_to("q", "x")), Voting)
    assert not log.close(session).rolled_back
    return session


def test_a_commit_that_was_asked_for_goes_on_without_its_session() -> None:
    log = TxLog()
    session = voting_when_it_ended(log)
    assert outcome_of(log.view(), session, 1).state == "preparing"
    log.send("n2", Vote(log.session(session).number, True))
    assert outcome_of(log.view(), session, 1).state == "committed"
    assert log.bodies() == ["x"]


def test_a_session_whose_votes_were_awaited_is_kept_from_the_decision_on() -> None:
    """The votes may take longer than outcomes are kept: who asks afterwards has all that time."""
    log = TxLog()
    log.set("prepare_timeout_ms", 600_000)
    log.set("outcome_retention_ms", 1_000)
    session = voting_when_it_ended(log)
    number = log.session(session).number
    for _ in range(3):
        log.now += 1_000
        log.declare("q")  # any entry, for the log's clock to go on
        assert not to_forget(log.view())
        log.sweep_all()
    log.send("n2", Vote(number, True))
    log.now += 999
    log.sweep_all()
    assert outcome_of(log.view(), session, 1).state == "committed"
    log.now += 1
    log.sweep_all()
    assert (log.table("sessions"), log.table("old_sessions")) == ({}, {})


def test_one_that_waits_for_votes_does_not_keep_others_from_being_forgotten() -> None:
    log = TxLog()
    log.set("sessions_kept", 0)
    waits = voting_when_it_ended(log)
    log.send("n2", Observe(on=False))
    log.now += 1
    ended_with_a_rollback(log)
    assert to_forget(log.view())
    log.sweep_all()
    assert set(log.table("sessions")) == {waits}
    assert not to_forget(log.view())


def test_what_an_ended_session_held_is_back_before_its_retention_begins() -> None:
    log = TxLog()
    log.publish("q", *(["x"] * 900))
    log.publish("q", *(["x"] * 900))
    session = log.open()
    log.get(session, count=900)
    log.get(session, count=900)
    log.set("outcome_retention_ms", 1_000)
    log.close(session)
    log.now += 1_000
    assert log.table("old_sessions") == {}
    assert 900 < log.queue().ready < 1_000
    log.sweep_all()
    assert set(log.table("old_sessions")) == {(log.now, session)}
    assert log.queue().ready == 1_800


def test_the_end_of_a_life_ends_its_taking_part() -> None:
    log = TxLog()
    log.send("n2", Observe(on=True))
    log.send("n3", Observe(on=True))
    log.node_down("n2")
    assert log.table("observers") == {"n3": 1}
    log.node_up("n3")
    assert log.table("observers") == {}
    log.send("n3", Observe(on=True))
    assert log.table("observers") == {"n3": 2}


def test_too_many_ended_sessions_are_forgotten_oldest_first() -> None:
    log = TxLog()
    log.set("sessions_kept", 1)
    first = ended_with_a_rollback(log)
    log.now += 1
    assert not to_forget(log.view())
    second = ended_with_a_rollback(log, "n2")
    assert to_forget(log.view())
    log.sweep_all()
    assert set(log.table("sessions")) == {second}
    assert outcome_of(log.view(), first, 1).state == "forgotten"
    assert outcome_of(log.view(), second, 2).state == "rolled back"


def test_a_rolled_back_one_never_looks_committed_while_its_session_is_being_forgotten() -> None:
    log = TxLog()
    session = log.open(kind="tx")
    for counter in range(1, 6):
        log.of(session, Rollback(session, counter))
    log.close(session)
    log.now += HOUR_MS
    while session in log.table("sessions"):
        states = [outcome_of(log.view(), session, counter).state for counter in range(1, 6)]
        assert "committed" not in states, states
        log.sweep(rows_max=2)
    assert log.table("rollbacks") == {}

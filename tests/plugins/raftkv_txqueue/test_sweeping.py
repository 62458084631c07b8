"""One bounded command does all that is due, and says whether there is more."""

from __future__ import annotations

import pytest

from raftkv_txqueue import deciding
from raftkv_txqueue.commands import End, Observe, Rollback, RollbackBranch, Start, Vote
from raftkv_txqueue.views import outcome_of
from raftkv_txqueue.xa import Xid
from tests.plugins.raftkv_txqueue.pure import TxLog, accept_of, publish_to

MARKS = ("ended_nodes", "left", "ended_sessions", "unfolding", "dropped", "overfull")


@pytest.fixture
def log() -> TxLog:
    return TxLog(queues=("q", "r"))


def test_with_nothing_to_do_it_does_nothing(log: TxLog) -> None:
    log.publish("q", "a")
    session = log.open(kind="tx")
    log.get(session)
    log.stage(session, publish_to("r", "1"))
    before = log.digest_of_plugin()
    swept = log.sweep()
    assert (swept.rows, swept.more) == (0, False)
    assert log.digest_of_plugin() == before


def test_sessions_of_a_dead_node_give_back_in_batches(log: TxLog) -> None:
    log.publish("q", *(str(at) for at in range(20)))
    sessions = [log.open("n2", "tx") for _ in range(2)]
    for session in sessions:
        log.get(session, count=10)
    log.stage(sessions[0], accept_of("q", 1), publish_to("r", "1"))
    log.node_down("n2")
    assert log.bodies("q") == []
    sweeps = 0
    while True:
        before = log.queue().ready
        swept = log.sweep(3)
        sweeps += 1
        assert log.queue().ready - before <= 4  # the last transaction may go beyond it
        if not swept.more:
            break
    assert sweeps > 5
    assert log.bodies("q") == [str(at) for at in range(20)]
    assert [log.table(name) for name in MARKS] == [{}] * len(MARKS)
    fate = outcome_of(log.view(), sessions[0], 1)
    assert (fate.state, fate.cause) == ("rolled back", "session")


def test_transactions_past_their_time(log: TxLog) -> None:
    log.set("transaction_timeout_ms", 1_000)
    log.publish("q", "a")
    early, late = log.open(kind="tx"), log.open(kind="tx")
    log.get(early)
    log.stage(early, accept_of("q", 1))
    log.now += 500
    log.stage(late, publish_to("q", "1"))
    log.now += 500
    assert log.sweep().rows == 4 + 1 + 1  # of the transaction itself, its queue, its message
    fate = outcome_of(log.view(), early, 1)
    assert (fate.state, fate.cause) == ("rolled back", "timeout")
    assert outcome_of(log.view(), late, 1).state == "active"
    assert log.places() == {"a": "acquired"}
    assert log.commit(late).verdict == "committed"


def test_many_that_are_due_are_done_one_after_the_other(log: TxLog) -> None:
    log.set("transaction_timeout_ms", 1_000)
    sessions = [log.open(kind="tx") for _ in range(5)]
    for session in sessions:
        log.stage(session, publish_to("q", "1"))
    log.now += 1_000
    assert log.sweep(1).more
    assert len(log.table("transactions")) == 4
    log.sweep_all(1)
    assert log.table("transactions") == {}


def test_rows_of_deleted_queues(log: TxLog) -> None:
    log.publish("q", *(str(at) for at in range(10)))
    session = log.open()
    log.get(session, count=4)
    log.release(session, "q", 2, 3)
    log.delete("q")
    log.declare("q")
    log.publish("q", "new")
    rows = 0
    while True:
        swept = log.sweep(3)
        assert swept.rows <= 3
        rows += swept.rows
        if not swept.more:
            break
    # Messages, returned ones, locks and the search for them, the mark.
    assert rows == 10 + 2 + (2 + 1) + 1
    assert list(log.table("messages")) == [(3, 1)]
    assert (log.table("locks"), log.session(session).held) == ({}, 0)


def test_a_participant_that_left_is_found_before_the_deadline(log: TxLog) -> None:
    log.send("n2", Observe(True))
    session = log.open("n1", "tx")
    log.commit(session, publish_to("q", "1"))
    log.sweep()
    assert outcome_of(log.view(), session, 1).state == "preparing"
    log.node_down("n2")
    log.sweep()
    assert outcome_of(log.view(), session, 1).cause == "participant"


def test_old_sessions_and_their_rollbacks_are_forgotten(log: TxLog) -> None:
    log.set("outcome_retention_ms", 1_000)
    session = log.open(kind="tx")
    for counter in range(1, 6):
        log.of(session, Rollback(session, counter))
    log.close(session)
    log.now += 999
    log.sweep_all(2)
    assert outcome_of(log.view(), session, 5).state == "rolled back"
    log.now += 1
    log.sweep_all(2)
    assert (log.table("sessions"), log.table("rollbacks")) == ({}, {})
    assert outcome_of(log.view(), session, 5).state == "forgotten"


def test_a_session_is_remembered_while_its_votes_are_missing(log: TxLog) -> None:
    log.set("outcome_retention_ms", 1_000)
    log.set("prepare_timeout_ms", 10_000)
    log.send("n2", Observe(True))
    session = log.open("n1", "tx")
    voting = log.commit(session, publish_to("q", "1"))
    log.close(session)
    log.now += 5_000
    log.sweep_all()
    assert outcome_of(log.view(), session, 1).state == "preparing"
    log.send("n2", Vote(voting.number, True))
    assert outcome_of(log.view(), session, 1).state == "committed"
    assert log.bodies() == ["1"]
    log.now += 1_000
    log.sweep_all()
    assert outcome_of(log.view(), session, 1).state == "forgotten"


def test_a_dead_session_in_a_branch_is_ended_once(log: TxLog) -> None:
    """The branch saw the dead session first and was completed: the session is in none then."""
    xid = Xid(1, b"x")
    session = log.open("n2", "dtx")
    log.of(session, Start(session, xid))
    log.stage(session, publish_to("q", "1"), counter=0)
    log.node_down("n2")
    log.anywhere(RollbackBranch(xid))
    assert log.session(session).number == 0
    log.sweep_all()
    assert log.session(session).ended_ms > 0


def test_everything_at_once_in_batches_of_one(log: TxLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "ENTRY_ROWS", 1)
    log.declare("s", depth_max=1, overflow="drop_oldest")
    log.publish("q", "a", "b", "c", "d")
    session, dying = log.open("n1", "tx"), log.open("n2", "tx")
    log.get(session, count=2)
    log.get(dying, count=2)
    log.stage(session, accept_of("q", 1), publish_to("r", "1", "2"), publish_to("s", "3", "4"))
    log.commit(session)
    log.stage(dying, accept_of("q", 3, 4), publish_to("q", "-"))
    log.delete("r")
    log.declare("r")
    log.node_down("n2")
    log.sweep_all(1)
    assert [log.table(name) for name in MARKS] == [{}] * len(MARKS)
    assert log.places("q") == {"b": "acquired", "c": "available", "d": "available"}
    assert (log.bodies("r"), log.bodies("s")) == ([], ["4"])
    for name in ("staged", "accepts", "spans", "transactions"):
        assert log.table(name) == {}, name


def test_a_life_that_ended_is_looked_for_in_steps(log: TxLog) -> None:
    """And once: what nobody is asked for any more is not read again."""
    log.set("prepare_timeout_ms", 600_000)
    others = [log.open("n1", "tx") for _ in range(6)]
    for other in others:
        log.stage(other, publish_to("q", "x"))
    log.send("n2", Observe(True))
    sessions = [log.open("n1", "tx") for _ in range(3)]
    for session in sessions:
        log.commit(session, publish_to("q", "1"))
    log.node_down("n2")
    assert log.sweep(2).more
    assert len(log.table("transactions")) == 9
    log.sweep_all(2)
    for session in sessions:
        assert outcome_of(log.view(), session, 1).cause == "participant"
    assert len(log.table("transactions")) == 6
    assert log.table("left") == {}
    assert log.sweep().rows == 0


def test_a_failed_branch_goes_with_its_decision(log: TxLog) -> None:
    """So those whose coordinator never comes are no more than decisions_kept."""
    log.set("decisions_kept", 2)
    xids = [Xid(1, b"g", bytes([at])) for at in range(4)]
    session = log.open(kind="dtx")
    for xid in xids:
        log.of(session, Start(session, xid))
        log.stage(session, publish_to("q", "x"), counter=0)
        log.of(session, End(session, xid, suspend=True))
    log.now += 60_000
    log.sweep_all(1)
    assert set(log.table("branches")) == {xid.key for xid in xids[2:]}
    assert set(log.table("decided")) == {xid.key for xid in xids[2:]}
    assert len(log.table("transactions")) == len(log.table("due")) == 2
    log.now += 3_600_000
    log.sweep_all()
    assert log.table("branches") == log.table("transactions") == log.table("due") == {}


def test_many_that_time_out_in_one_sweep_may_forget_each_other(log: TxLog) -> None:
    log.set("decisions_kept", 1)
    log.set("outcome_retention_ms", 1_000)
    session = log.open(kind="dtx")
    for at in range(3):
        xid = Xid(1, b"g", bytes([at]))
        log.of(session, Start(session, xid))
        log.of(session, End(session, xid))
    log.now += 60_000
    log.sweep_all()
    assert len(log.table("branches")) == 1
    late = Xid(1, b"g", b"late")
    log.of(session, Start(session, late, timeout_ms=1_000))
    log.now += 1_000
    log.sweep_all()
    assert set(log.table("branches")) == {late.key}


def test_locks_on_a_deleted_queue_are_found_behind_sessions_that_have_others(log: TxLog) -> None:
    log.publish("q", "a", "b", "c")
    log.publish("r", "a", "b")
    others = [log.open(), log.open()]
    for other in others:
        log.get(other, "r")
    session = log.open()
    log.get(session, "q", count=3)
    log.delete("q")
    log.sweep_all(1)
    assert log.table("dropped") == {}
    assert {key[0] for key in log.table("locks")} == set(others)
    assert log.session(session).held == 0

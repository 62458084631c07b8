"""DTX in the pure half: every state, status and error of XA. The 29 cases on clusters are W's."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv.state import StateMachine
from raftkv_txqueue import deciding
from raftkv_txqueue.branches import ASSOCIATIONS_MAX
from raftkv_txqueue.commands import (
    CommitBranch,
    End,
    ForgetBranch,
    Heuristic,
    Observe,
    PrepareBranch,
    RollbackBranch,
    SetTimeout,
    Start,
    TransactionRow,
    Vote,
    Voting,
)
from raftkv_txqueue.plugin import TxQueue
from raftkv_txqueue.refusals import (
    BranchRefused,
    NotHeld,
    RollbackOnly,
    TransactionTooLarge,
    UnknownXid,
)
from raftkv_txqueue.views import decision_of, recover
from raftkv_txqueue.xa import Xid
from tests.plugins.raftkv_txqueue.pure import TxLog, accept_of, publish_to

OK, RBROLLBACK, RBTIMEOUT, HEURCOM, HEURRB, RDONLY = 0, 1, 2, 4, 5, 7
X, Y = Xid(1, b"global", b"x"), Xid(1, b"global", b"y")


class Dtx(TxLog):
    """With the verbs: each answers a status, "voting", or XA's code of the error."""

    def say(self, command: Any, session: int = 0) -> Any:
        try:
            answer = self.of(session, command) if session else self.anywhere(command)
        except BranchRefused as refusal:
            return int(refusal.xa)
        return "voting" if isinstance(answer, Voting) else answer.status

    def start(self, session: int, xid: Xid = X, **more: Any) -> Any:
        return self.say(Start(session, xid, **more), session)

    def end(self, session: int, xid: Xid = X, **more: Any) -> Any:
        return self.say(End(session, xid, **more), session)

    def prepare(self, xid: Xid = X) -> Any:
        return self.say(PrepareBranch(xid))

    def commit_branch(self, xid: Xid = X, one_phase: bool = False) -> Any:
        return self.say(CommitBranch(xid, one_phase))

    def roll_back(self, xid: Xid = X) -> Any:
        return self.say(RollbackBranch(xid))

    def forget(self, xid: Xid = X) -> Any:
        return self.say(ForgetBranch(xid))

    def branch(self, xid: Xid = X) -> TransactionRow | None:
        number = self.table("branches").get(xid.key)
        return None if number is None else self.transaction(number)

    def state(self, xid: Xid = X) -> str:
        row = self.branch(xid)
        return "" if row is None else row.state

    def decision(self, xid: Xid = X) -> tuple[str, str]:
        row = decision_of(self.view(), xid)
        return ("", "") if row is None else (row.verdict, row.by)

    def swap(self, xid: Xid = X, *, node: str = "n1") -> int:
        """The branch takes "a" from q and puts "b" to r; its session is still attached."""
        self.publish("q", "a")
        session = self.open(node, "dtx")
        assert self.start(session, xid) == OK
        [seq] = self.get(session, "q").seqs
        self.stage(session, accept_of("q", seq), publish_to("r", "b"), counter=0)
        return session

    def swapped(self, xid: Xid = X) -> int:
        session = self.swap(xid)
        assert self.end(session, xid) == OK
        return session


@pytest.fixture
def log() -> Dtx:
    return Dtx(queues=("q", "r"))


# --- working in a branch --------------------------------------------------------------------------


def test_start_is_refused_in_the_wrong_form(log: Dtx) -> None:
    plain, session = log.open(), log.open(kind="dtx")
    assert log.start(plain) == 503
    assert log.start(session, join=True, resume=True) == 503
    assert log.start(session, join=True) == 404
    assert log.start(session, resume=True) == 404
    assert log.start(session, timeout_ms=3_600_001) == 542
    assert log.start(session) == OK
    assert log.start(session, Y) == 503
    assert log.start(log.open(kind="dtx")) == 530


def test_two_sessions_work_in_one_branch(log: Dtx) -> None:
    first, second = log.open("n1", "dtx"), log.open("n2", "dtx")
    log.start(first)
    assert log.start(second, resume=True) == 503
    assert log.start(second, join=True) == OK
    log.stage(first, publish_to("q", "1"), counter=0)
    assert log.end(second, operations=(publish_to("q", "2"),)) == OK
    assert log.commit_branch(one_phase=True) == 409
    assert log.end(first) == OK
    assert log.commit_branch(one_phase=True) == OK
    assert log.bodies() == ["1", "2"]
    assert log.decision() == ("committed", "coordinator")


def test_suspend_another_branch_resume(log: Dtx) -> None:
    session = log.open(kind="dtx")
    log.start(session)
    log.stage(session, publish_to("q", "1"), counter=0)
    assert log.end(session, suspend=True) == OK
    assert log.end(session, suspend=True) == 409
    assert log.prepare() == log.commit_branch(one_phase=True) == log.roll_back() == 409
    assert log.end(session, operations=(publish_to("q", "-"),)) == 503
    assert log.start(session, join=True) == 503
    assert log.start(session, Y) == OK
    log.stage(session, publish_to("q", "2"), counter=0)
    assert (log.end(session, Y), log.commit_branch(Y, one_phase=True)) == (OK, OK)
    assert log.bodies() == ["2"]
    assert log.start(session, resume=True) == OK
    log.stage(session, publish_to("q", "3"), counter=0)
    assert (log.end(session), log.commit_branch(one_phase=True)) == (OK, OK)
    assert log.bodies() == ["2", "1", "3"]


def test_end_is_refused_in_the_wrong_form(log: Dtx) -> None:
    session, other = log.swap(), log.open(kind="dtx")
    assert log.end(session, suspend=True, fail=True) == 503
    assert log.end(session, Y) == 409
    assert log.end(other) == 409
    before = log.digest_of_plugin()
    with pytest.raises(NotHeld):
        log.of(session, End(session, X, operations=(publish_to("q", "1"), accept_of("q", 9))))
    assert log.digest_of_plugin() == before
    assert log.end(session) == OK
    assert log.end(session) == 409


def test_a_branch_takes_so_many_sessions(log: Dtx) -> None:
    log.checks = False
    log.start(log.open(kind="dtx"))
    for _ in range(ASSOCIATIONS_MAX - 1):
        assert log.start(log.open(kind="dtx"), join=True) == OK
    with pytest.raises(TransactionTooLarge):
        log.start(log.open(kind="dtx"), join=True)


def test_fail_marks_the_branch(log: Dtx) -> None:
    session = log.swap()
    assert log.end(session, fail=True) == RBROLLBACK
    assert log.start(session, join=True) == RBROLLBACK
    assert log.prepare() == RBROLLBACK
    assert log.prepare() == RBROLLBACK
    assert (log.bodies("q"), log.bodies("r")) == (["a"], [])
    assert log.commit_branch() == 409
    assert log.roll_back() == OK
    assert log.roll_back() == 404
    assert log.decision() == ("rolled back", "session")


def test_one_phase_commit_of_a_failed_branch_tells_and_forgets(log: Dtx) -> None:
    session = log.swap()
    log.end(session, fail=True)
    assert log.commit_branch(one_phase=True) == RBROLLBACK
    assert log.commit_branch(one_phase=True) == 404
    assert log.bodies("q") == ["a"]


# --- the coordinator ------------------------------------------------------------------------------


def test_two_phases(log: Dtx) -> None:
    log.swapped()
    assert log.commit_branch() == 409
    assert log.prepare() == OK
    assert (log.bodies("q"), log.bodies("r")) == ([], [])
    assert log.prepare() == OK
    assert log.commit_branch(one_phase=True) == 409
    assert [xid for xid, _ in recover(log.view())] == [X]
    assert log.start(log.open(kind="dtx"), join=True) == 409
    assert log.commit_branch() == OK
    assert (log.places("q"), log.bodies("r")) == ({}, ["b"])
    for answer in (log.prepare(), log.commit_branch(), log.roll_back(), log.forget()):
        assert answer == 404
    assert log.say(SetTimeout(X, 1_000)) == 404
    assert log.say(Heuristic(X, True)) == 404
    assert log.table("transactions") == {}
    assert log.swapped() > 0  # the xid is free again


def test_prepared_and_rolled_back(log: Dtx) -> None:
    log.swapped()
    log.prepare()
    assert log.roll_back() == OK
    assert (log.bodies("q"), log.bodies("r")) == (["a"], [])
    assert log.browse("q")[0].deliveries == 1
    assert log.decision() == ("rolled back", "coordinator")
    assert log.queue("r").reserved == 0


def test_read_only(log: Dtx) -> None:
    session = log.open(kind="dtx")
    log.start(session)
    log.end(session)
    assert log.prepare() == RDONLY
    assert log.prepare() == 404
    assert log.decision() == ("committed", "read only")
    log.start(session)
    log.end(session)
    assert log.commit_branch(one_phase=True) == OK


def test_prepared_is_a_promise(log: Dtx) -> None:
    log.declare("r", depth_max=1)
    session = log.swapped()
    assert log.prepare() == OK
    log.close(session)
    log.node_down("n1")
    log.set("outcome_retention_ms", 1_000)
    log.now += 100_000_000
    log.sweep_all()
    assert log.say(SetTimeout(X, 1_000)) == 409
    machine = StateMachine([TxQueue()])
    machine.restore(list(log.machine.freeze().slices(3)), log.machine.index)
    log.machine = machine
    assert log.state() == "prepared"
    # Nothing takes the room that it was promised.
    assert log.commit(log.open("n2", "tx"), publish_to("r", "x")).cause == "txqueue_queue_full"
    assert log.commit_branch() == OK
    assert log.bodies("r") == ["b"]


def test_prepare_without_room(log: Dtx) -> None:
    log.declare("r", depth_max=1)
    log.publish("r", "full")
    log.swapped()
    assert log.prepare() == RBROLLBACK
    row = log.branch()
    assert row is not None
    assert (row.state, row.cause) == ("failed", "txqueue_queue_full")
    assert log.bodies("q") == ["a"]
    assert log.roll_back() == OK


# --- time-outs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("swept", [True, False])
def test_expiry_frees_the_content_and_keeps_the_xid(log: Dtx, swept: bool) -> None:
    session = log.swap()
    assert log.say(SetTimeout(X, 2_000)) == OK
    log.now += 2_000
    if swept:
        log.sweep()
        row = log.branch()
        assert row is not None
        assert (row.state, row.cause) == ("failed", "timeout")
        assert row.reason == "its time-out of 2000 ms is over"
        assert log.bodies("q") == ["a"]
        assert log.session(session).held == 0
    with pytest.raises(RollbackOnly):
        log.stage(session, publish_to("q", "late"), counter=0)
    assert log.roll_back() == 409
    assert log.end(session, operations=(publish_to("r", "dropped"),)) == RBTIMEOUT
    assert log.start(session, join=True) == RBTIMEOUT
    assert log.say(SetTimeout(X, 2_000)) == 409
    assert log.roll_back() == RBTIMEOUT
    assert log.roll_back() == 404
    assert (log.bodies("q"), log.bodies("r")) == (["a"], [])
    assert log.decision() == ("rolled back", "timeout")


@pytest.mark.parametrize("verb", ["prepare", "commit_branch", "roll_back"])
def test_an_idle_branch_expires_where_it_is_read(log: Dtx, verb: str) -> None:
    log.swapped()
    log.now += 60_000
    assert getattr(log, verb)() == RBTIMEOUT
    assert log.state() == ""
    assert log.bodies("q") == ["a"]


def test_failed_branches_are_forgotten_after_a_while(log: Dtx) -> None:
    log.set("outcome_retention_ms", 5_000)
    session = log.swap()
    log.now += 60_000
    log.sweep()
    log.now += 5_000
    log.sweep()
    assert log.state() == ""
    assert log.session(session).number == 0
    assert log.end(session) == 409
    assert log.decision() == ("rolled back", "timeout")


def test_time_outs_of_a_start(log: Dtx) -> None:
    log.set("dtx_timeout_ms", 0)
    first, second = log.open(kind="dtx"), log.open(kind="dtx")
    log.start(first)
    log.start(second, Y, timeout_ms=100)
    rows = log.branch(), log.branch(Y)
    assert [(row.timeout_ms, row.deadline_ms) for row in rows if row] == [(0, 0), (100, 1_100)]
    assert log.say(SetTimeout(Y, 0)) == OK
    assert log.table("due") == {}
    assert log.say(SetTimeout(Y, 3_600_001)) == 542


# --- sessions that end ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "dead", "dead and swept", "suspended and dead"])
def test_a_session_that_ends_in_a_branch_fails_it(log: Dtx, how: str) -> None:
    session = log.swap(node="n2")
    if how == "close":
        log.close(session)
    else:
        if how.startswith("suspended"):
            log.end(session, suspend=True)
        log.node_down("n2")
        if how.endswith("swept"):
            log.sweep_all()
    assert log.start(log.open("n1", "dtx"), join=True) == RBROLLBACK
    assert log.prepare() == RBROLLBACK
    row = log.branch()
    assert row is not None
    assert (row.state, row.cause) == ("failed", "session")
    log.sweep_all()
    assert log.bodies("q") == ["a"]
    assert log.roll_back() == OK
    assert log.roll_back() == 404
    log.sweep_all()


# --- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("entry_rows", [1, 1_000])
def test_heuristics(
    log: Dtx, commit: bool, entry_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deciding, "ENTRY_ROWS", entry_rows)
    log.swapped()
    assert log.say(Heuristic(X, commit)) == 409
    assert log.forget() == 409
    log.prepare()
    assert log.forget() == 409
    assert log.say(Heuristic(X, commit, "the coordinator burned")) == OK
    assert log.bodies("r") == (["b"] if commit else [])
    status = HEURCOM if commit else HEURRB
    assert log.commit_branch() == log.roll_back() == log.commit_branch(one_phase=True) == status
    assert log.prepare() == 409
    assert [row.reason for _, row in recover(log.view())] == ["the coordinator burned"]
    assert log.say(Heuristic(X, not commit)) == 409
    assert log.forget() == OK
    assert log.forget() == 404
    log.sweep_all()
    assert (log.bodies("q"), log.bodies("r")) == (([], ["b"]) if commit else (["a"], []))
    assert log.decision() == ("committed" if commit else "rolled back", "operator")
    assert log.table("transactions") == {}


def test_the_oldest_decisions_are_forgotten(log: Dtx) -> None:
    log.set("decisions_kept", 2)
    session = log.open(kind="dtx")
    xids = [Xid(1, b"%d" % at) for at in range(4)]
    for xid in (*xids, xids[3]):
        log.start(session, xid)
        log.end(session, xid)
        log.prepare(xid)
    assert [row.xid for row in log.table("decisions").values()] == [xids[3], xids[3]]
    assert log.decision(xids[2]) == ("", "")


# --- participants ---------------------------------------------------------------------------------


def test_prepare_asks_the_participants(log: Dtx) -> None:
    log.send("n2", Observe(True))
    log.swapped()
    assert log.prepare() == log.prepare() == "voting"
    assert log.commit_branch() == log.commit_branch(one_phase=True) == 409
    [number] = log.table("transactions")
    log.send("n2", Vote(number, True))
    assert log.prepare() == OK
    assert log.table("due") == {}
    assert log.table("meta")["state"].prepared == 1
    assert log.commit_branch() == OK
    assert log.table("meta")["state"].prepared == 0


def test_one_phase_asks_the_participants(log: Dtx) -> None:
    log.send("n2", Observe(True))
    log.swapped()
    assert log.commit_branch(one_phase=True) == log.commit_branch(one_phase=True) == "voting"
    assert log.prepare() == 409
    [number] = log.table("transactions")
    log.send("n2", Vote(number, True))
    assert (log.state(), log.bodies("r")) == ("", ["b"])
    assert log.decision() == ("committed", "coordinator")


@pytest.mark.parametrize("how", ["vote", "participant", "late"])
def test_participants_that_cannot(log: Dtx, how: str) -> None:
    log.send("n2", Observe(True))
    log.swapped()
    log.prepare()
    [number] = log.table("transactions")
    if how == "vote":
        log.send("n2", Vote(number, False, "disk full"))
    elif how == "participant":
        log.node_down("n2")
    else:
        log.now += 10_000
    log.sweep()
    row = log.branch()
    assert row is not None
    assert (row.state, row.cause) == ("failed", how)
    assert log.prepare() == RBROLLBACK
    assert log.roll_back() == OK
    assert log.bodies("q") == ["a"]
    assert log.decision() == ("rolled back", "vote")


def test_a_branch_that_is_being_prepared_can_be_rolled_back(log: Dtx) -> None:
    log.send("n2", Observe(True))
    log.swapped()
    log.prepare()
    assert log.roll_back() == OK
    assert (log.bodies("q"), log.table("due")) == (["a"], {})


def test_unknown_branches_are_really_refused(log: Dtx) -> None:
    for command in (PrepareBranch(X), CommitBranch(X), RollbackBranch(X), SetTimeout(X, 1)):
        with pytest.raises(UnknownXid):
            log.anywhere(command)


def test_the_default_time_out_is_never_above_the_highest(log: Dtx) -> None:
    log.set("dtx_timeout_max_ms", 5_000)
    assert log.start(log.open(kind="dtx")) == OK
    row = log.branch()
    assert row is not None
    assert (row.timeout_ms, row.deadline_ms) == (5_000, log.now + 5_000)

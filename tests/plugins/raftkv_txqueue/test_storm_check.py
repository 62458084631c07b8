"""The checks of storms of queues, checked: what is right passes, and each wrong is found.

`Bench` plays a log with the real plugin, judged as in a storm. A test can spoil what the plugin has
done, its rows or its answer, in the entry in which it does it, and sees which check finds that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace as with_
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from raftkv.errors import Refused
from raftkv.plugin import Context, MemberChange
from raftkv.testing.patching import replaced
from raftkv_txqueue import deciding, sweeping
from raftkv_txqueue.commands import (
    Acquire,
    Answered,
    Commit,
    CommitBranch,
    DeclareQueue,
    End,
    ForgetBranch,
    Heuristic,
    Message,
    Observe,
    PrepareBranch,
    Publish,
    Published,
    PublishTo,
    Rollback,
    RollbackBranch,
    SetTimeout,
    Settle,
    Start,
    Stored,
    Vote,
    Voting,
)
from raftkv_txqueue.plugin import TxQueue
from raftkv_txqueue.refusals import IllegalState, QueueFull, SessionEnded, UnknownXid
from raftkv_txqueue.rows import Lock
from raftkv_txqueue.testing.planted import planted
from raftkv_txqueue.testing.storm_answers import (
    Story,
    check_delivery,
    check_fate,
    check_order,
    check_recovered,
    check_settled,
    check_story,
)
from raftkv_txqueue.testing.storm_ledger import Ledger, Work
from raftkv_txqueue.testing.storm_log import Log
from raftkv_txqueue.views import Fate
from raftkv_txqueue.xa import XaStatus, Xid

from .pure import TxLog, accept_of, publish_to

Spoil = Callable[[Context, Any], Any]

DECIDES = "the log decides rightly"
ATOMIC = "all of a transaction or nothing"
LOST = "no message is lost or doubled"
ORDER = "order is kept"
COUNTERS = "counters are right"
HOLDERS = "sessions own what they hold"
PROMISE = "prepared is a promise"
DECIDED_BY = "transactions are decided by those who may"
TRUE = "answers are true"
ENDS = "sessions end when they must"
SAME = "the same everywhere"
XID = Xid(1, b"g", b"b")


class Bench:
    """A log in which all is well, until something is spoiled. The queues "q" and "p" are there."""

    def __init__(self, sweep_rows: int = 0) -> None:
        self.found: list[tuple[str, str]] = []
        self.log = Log(self._violated, lambda step: None, sweep_rows)
        self.spoil: Spoil | None = None
        self.txs = TxLog(plugin=self._judged(), checks=False, queues=("q", "p"))
        self.bodies = 0

    @property
    def ledger(self) -> Ledger:
        return self.log.ledger

    def _violated(self, check: str, found: Sequence[str]) -> None:
        self.found += [(check, each) for each in found]

    def _judged(self) -> type[TxQueue]:
        bench = self

        class Judged(TxQueue):
            def apply(self, command: Any, ctx: Context) -> Any:
                return bench.log.apply(self._spoiled, command, ctx)

            def _spoiled(self, command: Any, ctx: Context) -> Any:
                result = super().apply(command, ctx)
                spoil, bench.spoil = bench.spoil, None
                return result if spoil is None else spoil(ctx, result)

            def on_members(self, change: MemberChange, ctx: Context) -> None:
                bench.log.change(super().on_members, change, ctx)

        return Judged

    def checks(self) -> list[str]:
        """Those that found something since the last call."""
        found, self.found = self.found, []
        return sorted({check for check, _ in found})

    @contextmanager
    def spoiling(self, spoil: Spoil) -> Iterator[None]:
        """The next command's work is spoiled."""
        assert self.checks() == []
        self.spoil = spoil
        yield
        assert self.spoil is None, "nothing was applied"

    def some(self, count: int = 1) -> list[Message]:
        """Messages, each with a tag of its own."""
        made = [Message(b"%d/x" % (self.bodies + place + 1)) for place in range(count)]
        self.bodies += count
        return made

    def publish(self, queue: str = "q", count: int = 1) -> Any:
        return self.txs.publish(queue, *self.some(count))

    def put(self, queue: str = "q", count: int = 1) -> PublishTo:
        """An operation."""
        return PublishTo(queue, tuple(self.some(count)))

    def branch(self, *operations: Any, xid: Xid = XID, ends: bool = True) -> int:
        """A branch with this content; the session that worked in it."""
        session = self.txs.open(kind="dtx")
        self.txs.of(session, Start(session, xid))
        if operations:
            self.txs.stage(session, *operations, counter=0)
        if ends:
            self.txs.of(session, End(session, xid))
        return session


def edit(queue: str, **changes: Any) -> Spoil:
    """The queue's row says something else."""

    def spoil(ctx: Context, result: Any) -> Any:
        row = ctx.table("queues")[queue]
        ctx.table("queues").put(queue, replace(row, **changes))
        return result

    return spoil


def answer(**changes: Any) -> Spoil:
    """The answer says something else."""
    return lambda ctx, result: replace(result, **changes)


def lose(seq: int) -> Spoil:
    """A message of "q" is gone."""

    def spoil(ctx: Context, result: Any) -> Any:
        ctx.table("messages").delete((1, seq))
        return result

    return spoil


# --- what is right passes -------------------------------------------------------------------------


@pytest.mark.parametrize("entry_rows", [1, 3, 1_000])
@pytest.mark.parametrize("sweep_rows", [0, 1])
def test_nothing_is_found_where_nothing_is_wrong(entry_rows: int, sweep_rows: int) -> None:
    with replaced(deciding, "ENTRY_ROWS", entry_rows):
        bench = Bench(sweep_rows)
        txs = bench.txs
        txs.declare("retry", deliveries_max=1, dead_letter="p")
        txs.declare("small", depth_max=3, overflow="drop_oldest")
        bench.publish(count=5)
        bench.publish("retry", 3)
        bench.publish("small", 5)
        session = txs.open(kind="tx")
        txs.get(session, "q", 4)
        txs.stage(session, bench.put("p", 2), accept_of("q", 1, 2))
        txs.commit(session, bench.put("q", 2), bench.put("small", 2))
        txs.stage(session, accept_of("q", 3), bench.put("p"))
        txs.of(session, Rollback(session, 2))
        txs.release(session, "q", 4)
        txs.get(session, "retry", 3)
        txs.release(session, "retry", 2)
        txs.reject(session, "retry", 1)
        txs.close(session)
        txs.sweep_all(50)
        holder = bench.branch(bench.put("q", 3), bench.put("p", 2))
        txs.close(holder)
        txs.anywhere(PrepareBranch(XID))
        txs.node_down("n1")
        txs.sweep_all(50)
        txs.anywhere(CommitBranch(XID))
        txs.sweep_all(50)
        assert bench.found == []


def test_nothing_is_found_with_participants_and_heuristics() -> None:
    bench = Bench()
    txs = bench.txs
    for node in ("n2", "n3"):
        txs.send(node, Observe(True))
    session = txs.open(kind="tx")
    voting = txs.commit(session, bench.put(count=2))
    assert isinstance(voting, Voting)
    txs.send("n2", Vote(voting.number, True))
    txs.send("n3", Vote(voting.number, True))
    voting = txs.commit(session, bench.put(count=2))
    txs.send("n2", Vote(voting.number, False, "full"))
    voting = txs.commit(session, bench.put(count=2))
    txs.node_down("n3")
    txs.sweep_all()
    bench.branch(bench.put())
    voting = txs.anywhere(PrepareBranch(XID))
    txs.send("n2", Vote(voting.number, True))
    txs.anywhere(Heuristic(XID, True, "by hand"))
    txs.anywhere(RollbackBranch(XID))
    txs.anywhere(ForgetBranch(XID))
    for wrong in (ForgetBranch(XID), PrepareBranch(XID), SetTimeout(XID, 5)):
        with pytest.raises(Refused):
            txs.anywhere(wrong)
    assert bench.found == []


def test_nothing_is_found_in_a_random_log() -> None:
    rng = random.Random(8)
    bench = Bench()
    txs = bench.txs
    sessions = [txs.open(node, "tx") for node in ("n1", "n2")]
    for _ in range(300):
        session, queue = rng.choice(sessions), rng.choice(("q", "p"))
        held = bench.ledger.queues[queue].held_by(session)
        try:
            match rng.randrange(6):
                case 0:
                    bench.publish(queue, rng.randint(1, 3))
                case 1:
                    txs.get(session, queue, rng.randint(1, 4))
                case 2 if held:
                    txs.settle(session, rng.choice(("accept", "release")), queue, *held)
                case 3:
                    more = [accept_of(queue, *held[:2])] if held else []
                    txs.stage(session, bench.put(queue), *more)
                case 4:
                    txs.commit(session, bench.put(queue))
                case 5:
                    counter = bench.ledger.sessions[session].decided + 1
                    txs.of(session, Rollback(session, counter))
        except Refused:
            continue
    assert bench.found == [], "seed 8"


# --- each wrong is found --------------------------------------------------------------------------


def test_a_message_that_is_lost_or_comes_from_nowhere_is_found() -> None:
    bench = Bench()
    bench.publish(count=3)
    with bench.spoiling(lose(2)):
        bench.publish()
    assert bench.checks() == [LOST]
    bench = Bench()
    with bench.spoiling(edit("q", next=3, depth=2, ready=2)):
        bench.publish()
    assert COUNTERS in bench.checks()


def test_a_transaction_that_is_applied_in_part_is_found() -> None:
    bench = Bench()
    session = bench.txs.open(kind="tx")
    bench.txs.stage(session, bench.put(count=2))
    with bench.spoiling(lose(1)):
        bench.txs.commit(session)
    assert bench.checks() == [ATOMIC]


def test_content_that_is_seen_before_its_commit_is_found() -> None:
    bench = Bench()
    session = bench.txs.open(kind="tx")

    def show(ctx: Context, result: Any) -> Any:
        staged = ctx.table("staged")[result.number, 1, 0]
        ctx.table("messages").put((1, 1), Stored(staged.message, 1))
        return edit("q", next=2, depth=1, ready=1)(ctx, result)

    with bench.spoiling(show):
        bench.txs.stage(session, bench.put())
    assert ATOMIC in bench.checks()


def test_a_wrong_order_is_found() -> None:
    bench = Bench()
    bench.publish(count=3)
    session = bench.txs.open()
    with bench.spoiling(answer(seqs=(2,))):
        bench.txs.get(session)
    assert ORDER in bench.checks()
    bench = Bench()
    with bench.spoiling(answer(first=7, last=7)):
        bench.publish()
    assert bench.checks() == [ORDER]
    bench = Bench()
    session = bench.txs.open(kind="tx")
    with bench.spoiling(answer(spans=(("q", 2, 2),))):
        bench.txs.commit(session, bench.put())
    assert bench.checks() == [ORDER]


def test_counters_that_are_wrong_are_found() -> None:
    for changes in ({"ready": 5}, {"depth": 0}, {"bytes": 1}, {"uses": 1}, {"reserved": 1}):
        bench = Bench()
        with bench.spoiling(edit("q", **changes)):
            bench.publish()
        assert bench.checks() == [COUNTERS], changes


def test_a_message_that_leaves_its_holder_is_found() -> None:
    bench = Bench()
    bench.publish(count=2)
    session = bench.txs.open()

    def give_away(ctx: Context, result: Any) -> Any:
        ctx.table("locks").delete((session, 1, 1))
        ctx.table("returned").put((1, 1), 1)
        return edit("q", ready=2)(ctx, result)

    with bench.spoiling(give_away):
        bench.txs.get(session)
    assert HOLDERS in bench.checks()


def test_a_message_that_comes_back_without_its_time_is_found() -> None:
    bench = Bench()
    bench.publish(count=2)
    session = bench.txs.open(kind="tx")
    bench.txs.get(session, count=2)
    bench.txs.stage(session, accept_of("q", 1, 2))

    def forget_the_time(ctx: Context, result: Any) -> Any:
        locks = ctx.table("locks")
        for seq in (1, 2):
            lock = locks.get((session, 1, seq))
            if isinstance(lock, Lock):
                locks.put((session, 1, seq), lock.deliveries)
        return result

    with bench.spoiling(forget_the_time):
        bench.txs.of(session, Rollback(session, 1))
    assert bench.checks() == [HOLDERS]


def test_what_is_not_settled_as_it_is_told_is_found() -> None:
    bench = Bench()
    bench.publish(count=2)
    session = bench.txs.open()
    bench.txs.get(session, count=2)
    with bench.spoiling(answer(missing=(1,), done=1)):
        bench.txs.accept(session, "q", 1, 2)
    assert bench.checks() == [DECIDES]


def test_a_commit_that_nobody_asked_for_and_a_wrong_verdict_are_found() -> None:
    bench = Bench()
    session = bench.txs.open(kind="tx")
    bench.txs.stage(session, bench.put())

    def decide(ctx: Context, result: Any) -> Any:
        row = ctx.table("sessions")[session]
        ctx.table("sessions").put(session, replace(row, decided=1))
        ctx.table("transactions").delete(1)
        return result

    with bench.spoiling(decide):
        bench.publish()
    assert DECIDED_BY in bench.checks()
    bench = Bench()
    session = bench.txs.open(kind="tx")
    bench.txs.commit(session, bench.put())
    with bench.spoiling(answer(verdict="rolled back")):
        bench.txs.commit(session, counter=1)
    assert bench.checks() == [TRUE]


def test_a_commit_that_is_done_again_is_found() -> None:
    bench = Bench()
    session = bench.txs.open(kind="tx")
    put = bench.put()
    first = bench.txs.commit(session, put)
    bench.txs.commit(session, put, counter=1)
    for again in (answer(index=first.index + 1), answer(spans=(("q", 2, 2),))):
        with bench.spoiling(again):
            bench.txs.commit(session, put, counter=1)
        assert bench.checks() == [TRUE]
    with planted("repeated-commit-executes"):
        bench.txs.commit(session, put, counter=1)
    assert {TRUE, ATOMIC} <= set(bench.checks())


def voting_bench() -> Bench:
    """A TX waits for the votes of n2 and n3, for ten seconds at most."""
    bench = Bench()
    for node in ("n2", "n3"):
        bench.txs.send(node, Observe(True))
    session = bench.txs.open(kind="tx")
    assert isinstance(bench.txs.commit(session, bench.put()), Voting)
    return bench


def test_a_wrong_cause_of_a_transaction_without_its_votes_is_found() -> None:
    for gone, passes_s in (("n3", 0), ("n3", 20), ("", 20)):
        bench = voting_bench()
        if gone:
            bench.txs.node_down(gone)
        bench.txs.now += passes_s * 1_000
        bench.txs.sweep_all()
        [rollback] = bench.txs.table("rollbacks").values()
        assert rollback.cause == ("participant" if gone else "late")
        assert bench.found == []
    # One has left, and it is said that its vote was late.
    bench = voting_bench()
    bench.txs.node_down("n3")
    bench.txs.now += 20_000
    with planted("participant-may-go"):
        bench.txs.sweep_all()
    assert DECIDED_BY in bench.checks()
    # Nobody has left who takes part, and it is said that somebody has.
    for passes_s in (0, 20):
        bench = voting_bench()
        bench.txs.node_up("n4")
        bench.txs.node_down("n4")
        bench.txs.now += passes_s * 1_000
        with replaced(sweeping, "is_gone", lambda ctx, row: "n2"):
            bench.txs.sweep_all()
        assert DECIDED_BY in bench.checks()


def test_a_branch_that_is_decided_while_a_session_works_in_it_is_found() -> None:
    for command in (PrepareBranch(XID), CommitBranch(XID, True), RollbackBranch(XID)):
        bench = Bench()
        bench.branch(bench.put(), ends=False)
        with pytest.raises(IllegalState):
            bench.txs.anywhere(command)
        assert bench.found == []
        with planted("busy-is-prepared"):
            bench.txs.anywhere(command)
        assert DECIDES in bench.checks()


def test_a_prepared_branch_that_goes_by_itself_is_found() -> None:
    bench = Bench()
    bench.branch(bench.put())
    bench.txs.anywhere(PrepareBranch(XID))

    def drop(ctx: Context, result: Any) -> Any:
        number = ctx.table("branches")[XID.key]
        row = ctx.table("transactions")[number]
        ctx.table("transactions").put(number, replace(row, state="failed", cause="timeout"))
        return result

    with bench.spoiling(drop):
        bench.publish("p")
    assert PROMISE in bench.checks()
    bench = Bench()
    bench.branch(bench.put())
    bench.txs.anywhere(PrepareBranch(XID))
    with bench.spoiling(answer(status=int(XaStatus.RBROLLBACK))):
        bench.txs.anywhere(CommitBranch(XID))
    assert bench.checks() == [TRUE]


def test_a_branch_that_is_prepared_without_votes_or_with_somebody_in_it_is_found() -> None:
    bench = Bench()
    bench.txs.send("n2", Observe(True))
    bench.branch(bench.put())

    def promise(ctx: Context, result: Any) -> Any:
        number = ctx.table("branches")[XID.key]
        row = ctx.table("transactions")[number]
        ctx.table("transactions").put(number, replace(row, state="prepared"))
        return Answered(0)

    with bench.spoiling(promise):
        bench.txs.anywhere(PrepareBranch(XID))
    assert DECIDED_BY in bench.checks()


@pytest.mark.parametrize(
    "command",
    [
        Start(1, XID, True, True),
        PrepareBranch(Xid(2, b"nobody's")),
        ForgetBranch(XID),
        CommitBranch(XID),
        CommitBranch(XID, True),
        Settle(99, "q", "accept", (1,)),
        Acquire(99, "q", 1),
        Commit(99, 1),
        DeclareQueue("q", dead_letter="q"),
        SetTimeout(XID, 10**12),
    ],
    ids=lambda command: type(command).__name__,
)
def test_what_must_be_refused_and_is_not_is_found(command: Any) -> None:
    bench = Bench()
    bench.branch(bench.put(), ends=False)
    results = {Settle: (1, ()), Acquire: ((), (), 0), DeclareQueue: (1, False, True)}

    def accepts(given: Any, ctx: Context) -> Any:
        given_up = results.get(type(given))
        if given_up is None:
            return Answered(0)
        return type(given).Result(*given_up)

    judged = type(bench.txs.plugin)
    with replaced(judged, "_spoiled", lambda self, given, ctx: accepts(given, ctx)):
        # What comes of it is a defect of its own, such as a result of a wrong kind.
        with suppress(Exception):
            bench.txs.send("n1", command)
    assert DECIDES in bench.checks()


def test_a_refusal_without_a_reason_is_found() -> None:
    for refusal, command in (
        (QueueFull("q", "messages", 1), Publish("q", (Message(b"1"),))),
        (SessionEnded(1), Acquire(1, "q", 1)),
        (UnknownXid(str(XID)), PrepareBranch(XID)),
    ):
        bench = Bench()
        bench.branch(bench.put())

        def refuse(ctx: Context, result: Any, refusal: Refused = refusal) -> Any:
            raise refusal

        with bench.spoiling(refuse), pytest.raises(Refused):
            bench.txs.send("n1", command)
        assert bench.checks() == [DECIDES]


def test_a_session_that_ends_without_a_reason_is_found() -> None:
    bench = Bench()
    session = bench.txs.open()

    def end(ctx: Context, result: Any) -> Any:
        row = ctx.table("sessions")[session]
        ctx.table("sessions").put(session, replace(row, ended_ms=5))
        return result

    with bench.spoiling(end):
        bench.txs.sweep()
    assert bench.checks() == [ENDS]


def test_a_limit_that_is_passed_over_is_found() -> None:
    bench = Bench()
    bench.txs.declare("small", depth_max=1)
    session = bench.txs.open(kind="tx")
    judged = type(bench.txs.plugin)

    def write(self: Any, command: Any, ctx: Context) -> Any:
        row = ctx.table("queues")["small"]
        ctx.table("queues").put("small", replace(row, depth_max=0))
        done = TxQueue.apply(self, command, ctx)
        row = ctx.table("queues")["small"]
        ctx.table("queues").put("small", replace(row, depth_max=1))
        return done

    with replaced(judged, "_spoiled", write):
        bench.txs.commit(session, bench.put("small", 2))
    assert "limits are kept" in bench.checks()


def test_another_answer_and_other_messages_on_another_node_are_found() -> None:
    bench = Bench()
    bench.publish(count=2)
    bench.txs.replay()
    assert bench.checks() == []
    bench.spoil = answer(created=False)
    bench.txs.replay()
    assert SAME in bench.checks()

    def later(ctx: Context, result: Any) -> Any:
        if isinstance(result, Published):
            return lose(1)(ctx, result)
        bench.spoil = later
        return result

    bench.spoil = later
    bench.txs.replay()
    assert bench.checks() == [SAME]


# --- what programs are told -----------------------------------------------------------------------


def story(bench: Bench, **more: Any) -> Story:
    given: dict[str, Any] = {"number": 1, "kind": "publish", "node": "n1", **more}
    return Story(**given)


def test_answers_are_held_against_the_log() -> None:
    bench = Bench()
    bench.publish(count=2)
    told = story(bench, tags=[b"1", b"2"], outcome="published")
    assert not check_story(told, bench.ledger)
    assert check_story(with_(told, outcome="refused"), bench.ledger)
    assert check_story(with_(told, tags=[b"1", b"9"]), bench.ledger)
    assert check_story(with_(told, tags=[b"1", b"9"], outcome="unknown"), bench.ledger)
    bench.ledger.entered[b"1"] *= 2
    assert check_story(told, bench.ledger)


def test_what_a_commit_was_told_is_held_against_the_log() -> None:
    bench = Bench()
    session = bench.txs.open(kind="tx")
    bench.txs.commit(session, bench.put())
    bench.txs.of(session, Rollback(session, 2))
    done, undone = f"{session}.1", f"{session}.2"
    told = story(bench, kind="tx", txid=done, tags=[b"1"], outcome="committed")
    assert not check_story(told, bench.ledger)
    assert not check_story(with_(told, spans=(("q", 1, 1),)), bench.ledger)
    assert check_story(with_(told, spans=(("q", 2, 2),)), bench.ledger)
    assert check_story(with_(told, index=10**6), bench.ledger)
    assert check_story(with_(told, outcome="aborted"), bench.ledger)
    assert check_story(with_(told, txid=undone, tags=[]), bench.ledger)
    ledger = bench.ledger
    rolled_back = ledger.tx(session, 2)
    assert rolled_back is not None
    right = Fate("rolled back", rolled_back.cause, rolled_back.reason)
    assert not check_fate(undone, right, True, ledger)
    assert check_fate(undone, Fate("rolled back", "vote"), True, ledger)
    assert check_fate(done, right, True, ledger)
    assert check_fate(undone, Fate("committed"), True, ledger)
    assert check_fate(done, Fate("unknown"), True, ledger)
    assert not check_fate(done, Fate("unknown"), False, ledger)


def test_deliveries_and_settlements_are_held_against_the_log() -> None:
    bench = Bench()
    bench.publish(count=2)
    session = bench.txs.open()
    bench.txs.get(session)
    bench.txs.accept(session, "q", 1)

    def got(seq: int = 1, body: bytes = b"1/x", deliveries: int = 1, again: bool = False) -> Any:
        return SimpleNamespace(
            queue="q", seq=seq, body=body, deliveries=deliveries, redelivered=again
        )

    assert not check_delivery(session, got(), bench.ledger)
    for wrong in (got(2), got(body=b"2/x"), got(deliveries=2), got(again=True)):
        assert check_delivery(session, wrong, bench.ledger)
    assert check_delivery(session + 1, got(), bench.ledger)
    settled = SimpleNamespace(missing=())
    assert not check_settled(session, "q", settled, [1], bench.ledger)
    assert check_settled(session, "q", settled, [2], bench.ledger)
    assert check_settled(session + 1, "q", settled, [1], bench.ledger)


def test_recovered_branches_are_held_against_the_log() -> None:
    bench = Bench()
    bench.branch(bench.put())
    bench.txs.anywhere(PrepareBranch(XID))
    ledger = bench.ledger
    [work] = ledger.open
    shown = SimpleNamespace(xid=XID, state="prepared")
    assert not check_recovered([shown], [work], bench.log.index, ledger)
    assert check_recovered([], [work], bench.log.index, ledger)
    other = SimpleNamespace(xid=Xid(5, b"other"), state="prepared")
    assert check_recovered([shown, other], [work], bench.log.index, ledger)
    bench.txs.anywhere(CommitBranch(XID))
    assert not check_recovered([], [work], bench.log.index, ledger)
    assert check_recovered([shown], [], bench.log.index + 1, ledger)


def test_the_order_of_one_producer_is_held_against_the_log() -> None:
    bench = Bench()
    bench.publish()
    bench.publish()
    first = story(bench, tags=[b"1"], outcome="published", queue="q", producer=1)
    second = story(bench, number=2, tags=[b"2"], outcome="published", queue="q", producer=1)
    assert not check_order([first, second], bench.ledger)
    assert check_order([second, first], bench.ledger)
    assert not check_order([with_(second, producer=2), first], bench.ledger)


def test_a_transaction_says_what_it_is() -> None:
    assert Work(12, 7, None).name == "12.7"
    assert Work(0, 0, XID).name == str(XID)
    assert publish_to("q", "x").queue == "q"

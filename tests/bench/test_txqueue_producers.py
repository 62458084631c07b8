"""Producers of the queues, what is written down of them, and loads on a cluster that only notes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bench import limbo_play
from bench import txqueue_play as play
from bench.control import (
    AskCommitted,
    AwaitCallers,
    CheckQueues,
    Committed,
    Done,
    DropQueues,
    Flush,
    MakeQueues,
    Ran,
    State,
)
from bench.facts import TxqueueFacts
from bench.layouts import Layout, WorkerFailed
from bench.limbo import BACK_OFF_S, LimboSeat
from bench.plan import Plan
from bench.run_options import parser, plan_of
from bench.schema import Row
from bench.txqueue import (
    Commitment,
    TxqueueLoad,
    TxqueueProducers,
    batch_of,
    body_of,
    judge,
    queues_of,
)
from bench.txqueue_play import TxqueueRun, TxqueueTest, play_txqueue
from raftkv.errors import NotApplied, OutcomeUnknown, RaftkvError
from raftkv_txqueue import XaStatus


class Clock:
    """Stands still but for sleeps and what a fake lets pass."""

    def __init__(self) -> None:
        self.at = 100.0  # what is added are powers of two: sums are exact

    def now(self) -> float:
        return self.at

    def wall_us(self) -> int:
        return round(self.at * 1e6) + 1_000_000_000

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        await asyncio.sleep(0)


class Aborted(NotApplied):
    code = "txqueue_transaction_aborted"


class Unknown(OutcomeUnknown):
    code = "txqueue_transaction_unknown"


class FakeSession:
    def __init__(self, txq: FakeTxq, kind: str) -> None:
        self.txq, self.kind = txq, kind

    async def publish(self, queue: str, messages: list[bytes]) -> None:
        self.txq.calls.append(("publish", queue, tuple(messages)))

    async def commit(self, *, timeout_s: float) -> Any:
        self.txq.calls.append(("commit", timeout_s))
        await self.txq.decide()
        return SimpleNamespace(index=self.txq.index)

    async def start(self, xid: Any) -> XaStatus:
        self.txq.calls.append(("start", xid))
        return XaStatus.OK

    async def end(self, xid: Any) -> XaStatus:
        self.txq.calls.append(("end", xid))
        return XaStatus.OK

    async def close(self, *, timeout_s: float = 0.0) -> None:
        self.txq.closed += 1


class FakeTxq:
    """Commits take so long, and come out as told, in this order; then well."""

    def __init__(self, clock: Clock, *answers: RaftkvError | XaStatus | None) -> None:
        self.clock, self.answers = clock, list(answers)
        self.calls: list[tuple[Any, ...]] = []
        self.index, self.opened, self.closed = 10, 0, 0
        self.dtx = self

    async def session(self, kind: str = "plain", *, timeout_s: float = 0.0) -> FakeSession:
        self.opened += 1
        return FakeSession(self, kind)

    async def decide(self) -> XaStatus:
        await self.clock.sleep(0.125)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, RaftkvError):
            raise answer
        self.index += 1
        return XaStatus.OK if answer is None else answer

    async def prepare(self, xid: Any, *, timeout_s: float) -> XaStatus:
        self.calls.append(("prepare", xid))
        return XaStatus.OK

    async def commit(self, xid: Any, *, one_phase: bool, timeout_s: float) -> XaStatus:
        self.calls.append(("commit", xid, one_phase))
        return await self.decide()


def load(**changes: Any) -> TxqueueLoad:
    values: dict[str, Any] = {
        "load": "txqueue-7", "number": 7, "scenario": "txqueue", "way": "tx", "batch": 1,
        "producers": 1, "seconds": 0.375, "warmup_s": 0.125, "value_bytes": 8, "timeout_s": 20.0,
    }  # fmt: skip
    return TxqueueLoad(**{**values, **changes})


def produced(txq: FakeTxq, of: TxqueueLoad) -> tuple[list[Row], TxqueueProducers]:
    rows: list[Row] = []
    seat = LimboSeat("run", "3", "c2", lambda: "leader")
    producers = TxqueueProducers(txq, lambda body: body, seat, txq.clock, rows.append)

    async def whole() -> None:
        await producers.start(of)
        await producers.over()

    asyncio.run(whole())
    return rows, producers


def test_a_producer_commits_new_messages_each_time_and_each_transaction_is_a_row() -> None:
    txq = FakeTxq(Clock())
    rows, producers = produced(txq, load())
    published = [call for call in txq.calls if call[0] == "publish"]
    assert published == [
        ("publish", f"load-7-{'ab'[turn % 2]}", (b"0.%d.0..." % turn,)) for turn in range(4)
    ]
    assert txq.calls[1] == ("commit", 20.0)
    assert [row.phase for row in rows] == ["warmup", "load", "load", "load"]
    row = rows[1]
    assert (row.op, row.node, row.role, row.client) == ("commit", "c2", "leader", "p0")
    assert (row.load, row.index, row.outcome) == ("txqueue-7", 12, "ok")
    assert row.duration_us == 125_000
    assert row.start_us == round(100.125e6) + 1_000_000_000
    assert producers.committed == [Commitment(0, turn) for turn in range(4)]
    assert producers.tally.ok == 3, "the warm-up is not for the terminal"
    assert (txq.opened, txq.closed) == (1, 1)


@pytest.mark.parametrize(("way", "one_phase"), [("dtx1", True), ("dtx2", False)])
def test_a_branch_is_started_ended_and_committed_in_one_phase_or_two(
    way: str, one_phase: bool
) -> None:
    txq = FakeTxq(Clock(), None, XaStatus.RBROLLBACK)
    rows, producers = produced(txq, load(way=way, batch=3, seconds=0.125))
    names = [call[0] for call in txq.calls]
    each = ["start", "publish", "publish", "end", *([] if one_phase else ["prepare"]), "commit"]
    assert names == each * 2
    xids = [call[1] for call in txq.calls if call[0] == "start"]
    assert len(set(xids)) == 2
    assert {call[2] for call in txq.calls if call[0] == "commit"} == {one_phase}
    assert [row.outcome for row in rows] == ["ok", "rolled_back"]
    assert producers.committed == [Commitment(0, 0)]


def test_what_is_not_committed_has_the_words_of_the_log_and_begins_anew() -> None:
    clock = Clock()
    txq = FakeTxq(clock, Aborted("no"), Unknown("late"))
    rows, producers = produced(txq, load(seconds=0.5))
    assert [row.outcome for row in rows][:2] == ["transaction_aborted", "transaction_unknown"]
    assert {row.outcome for row in rows[2:]} == {"ok"}
    assert [each.turn for each in producers.committed] == list(range(2, len(rows)))
    assert clock.at == pytest.approx(100 + 0.125 * len(rows) + 2 * BACK_OFF_S)
    assert (txq.opened, txq.closed) == (3, 3), "a session that went wrong is not used again"


def test_a_producer_that_fails_in_another_way_fails_the_load() -> None:
    class Broken(FakeTxq):
        async def decide(self) -> XaStatus:
            raise KeyError("a fault of ours")

    with pytest.raises(KeyError, match="a fault of ours"):
        produced(Broken(Clock()), load())


# What every node is looked at for -----------------------------------------------------------------


def contents(of: TxqueueLoad, *transactions: tuple[int, int]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {queue: [] for queue in queues_of(of.number)}
    for producer, turn in transactions:
        for queue, bodies in batch_of(of, producer, turn, lambda body: body):
            found[queue] += bodies
    return found


def judged(
    of: TxqueueLoad, found: dict[str, list[bytes]], *told: tuple[int, int]
) -> tuple[int, int, int, int]:
    return msgspec.structs.astuple(judge(of, [Commitment(*one) for one in told], found))


FIVE = load(batch=5)


def test_the_messages_of_a_transaction_go_to_both_queues() -> None:
    found = contents(FIVE, (0, 0), (1, 3))
    assert found == {
        "load-7-a": [
            *(body_of(0, 0, place, 8) for place in (0, 2, 4)),
            *(body_of(1, 3, place, 8) for place in (1, 3)),
        ],
        "load-7-b": [
            *(body_of(0, 0, place, 8) for place in (1, 3)),
            *(body_of(1, 3, place, 8) for place in (0, 2, 4)),
        ],
    }


def test_nothing_is_wrong_with_what_was_committed() -> None:
    found = contents(FIVE, (0, 0), (1, 0), (0, 1), (1, 2))
    assert judged(FIVE, found, (0, 0), (0, 1), (1, 0), (1, 2)) == (20, 0, 0, 0)
    # Nobody was told of one of them: it is there as a whole.
    assert judged(FIVE, found, (0, 0), (0, 1), (1, 0)) == (15, 5, 0, 0)


def test_a_message_that_is_missing_or_doubled_or_moved_is_found() -> None:
    told = ((0, 0), (0, 1))
    missing = contents(FIVE, *told)
    del missing["load-7-a"][1]
    # It is no longer there, its transaction is torn, and the next one is not beside the one before.
    assert judged(FIVE, missing, *told) == (9, 0, 1, 1)
    doubled = contents(FIVE, *told)
    doubled["load-7-a"].append(doubled["load-7-a"][-1])
    assert judged(FIVE, doubled, *told) == (9, 2, 0, 1)
    moved = contents(FIVE, (0, 1), (0, 0))
    assert judged(FIVE, moved, *told) == (10, 0, 0, 2)
    parted = contents(FIVE, *told)
    parted["load-7-b"].insert(1, parted["load-7-b"].pop())
    assert judged(FIVE, parted, *told)[3] > 0
    nothing = contents(FIVE)
    assert judged(FIVE, nothing, *told) == (0, 0, 2, 0)


def test_a_part_of_what_was_rolled_back_is_torn() -> None:
    found = contents(FIVE, (0, 0))
    found["load-7-b"] = []
    assert judged(FIVE, found) == (0, 3, 1, 0)


# Loads on a cluster -------------------------------------------------------------------------------

LAYOUT = Layout.parse("3+3")


class FakeCluster:
    """Every look finds ten entries and six messages more in each node, until producers are done."""

    def __init__(self) -> None:
        self.layout, self.run, self.leader = LAYOUT, "run", "c2"
        self.events: list[tuple[str, Any]] = []
        self.producing = False
        self.steps = 0
        self.pending = 0
        self.dropped = 0

    async def ask(self, name: str, request: Any, kind: Any, timeout_s: float = 0.0) -> Any:
        self.events.append((name, request))
        match request:
            case TxqueueLoad():
                self.producing = True
            case AwaitCallers():
                self.producing = False
                return Ran(outcomes={"ok": 5}, elapsed_s=0.0, buckets={})
            case AskCommitted():
                return Committed((Commitment(0, 1),))
            case DropQueues():
                self.dropped = 2
        return Done()

    async def ask_all(
        self, names: Sequence[str], request: Any, kind: Any, timeout_s: float = 0.0
    ) -> Any:
        return {name: await self.ask(name, request, kind) for name in names}

    async def states(self, timeout_s: float = 0.0) -> dict[str, State]:
        self.steps += self.producing
        pending, self.pending = self.pending, max(0, self.pending - 1)
        dropped, self.dropped = self.dropped, max(0, self.dropped - 1)
        return {
            name: State(
                role="leader" if name == self.leader else "follower", leader=self.leader,
                commit_index=10 * self.steps, applied_index=10 * self.steps, endpoint=None,
                outcomes={"ok": 3}, buckets={}, commands_applied=20 * self.steps,
                messages={"raft": 4 * self.steps, "rpc": 2 * self.steps},
                pending=pending, rows_dropped=dropped,
            )
            for name in LAYOUT.names
        }  # fmt: skip

    def asked(self, kind: type) -> list[tuple[str, Any]]:
        return [(name, one) for name, one in self.events if isinstance(one, kind)]


@pytest.fixture(autouse=True)
def without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limbo_play, "IDLE_S", 0.0)
    for module in (limbo_play, play):
        monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)


def played(tmp_path: Path, cluster: Any) -> TxqueueFacts:
    test = TxqueueTest(tmp_path, lambda text: None)
    result = asyncio.run(play_txqueue(cluster, TxqueueRun("dtx2", 10, 4, 0.06, 64), test))
    assert (result.clients, result.tally.ok, result.scenario) == (4, 5, "txqueue")
    (path,) = (tmp_path / "txqueue-loads").iterdir()
    return msgspec.json.decode(path.read_bytes(), type=TxqueueFacts)


def test_a_load_is_produced_settled_looked_for_everywhere_and_dropped(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.pending = 2
    facts = played(tmp_path, cluster)
    assert cluster.asked(MakeQueues) == [("c2", MakeQueues(1))]
    ((name, sent),) = cluster.asked(TxqueueLoad)
    assert (name, sent.producers, sent.load, sent.batch) == ("c2", 4, "txqueue-1", 10)
    checks = cluster.asked(CheckQueues)
    assert [each for each, _ in checks] == LAYOUT.names
    assert {check.committed for _, check in checks} == {(Commitment(0, 1),)}
    assert len(cluster.asked(Flush)) == 6
    assert cluster.asked(DropQueues) == [("c2", DropQueues(1))]
    assert (cluster.pending, cluster.dropped) == (0, 0)
    steps = cluster.steps
    assert steps > 1
    assert (facts.way, facts.batch, facts.producers, facts.node) == ("dtx2", 10, 4, "c2")
    assert (facts.entries, facts.commands) == (10 * steps, 20 * steps)
    assert (facts.raft_messages, facts.call_messages) == (24 * steps, 12 * steps)
    assert facts.feed_messages == 0
    assert facts.nodes == "c1 c2 c3 r1 r2 r3"


def test_a_load_that_does_not_settle_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limbo_play, "REST_TIMEOUT_S", 0.0)
    cluster = FakeCluster()
    cluster.pending = 10**9
    with pytest.raises(WorkerFailed, match=r"\d+ transactions are pending"):
        played(tmp_path, cluster)


# What is measured ---------------------------------------------------------------------------------


def plan(*options: str) -> Plan:
    return plan_of(parser().parse_args(["--out", "x", *options]))


def loads(*options: str) -> list[tuple[str, int, int]]:
    found = plan("--scenario", "txqueue", *options).txqueue_loads()
    return [(run.way, run.batch, run.producers) for run in found]


def test_tx_of_every_size_and_branches_with_every_number_of_producers() -> None:
    kinds = [("tx", 1), ("tx", 10), ("tx", 100), ("dtx1", 10), ("dtx2", 10)]
    assert loads() == [(*kind, n) for kind in kinds for n in (1, 16, 64)]
    assert {n for _, _, n in loads("--quick")} == {1, 64}
    assert loads("--in-flight", "2", "--batch", "5") == [
        ("tx", 5, 2), ("dtx1", 10, 2), ("dtx2", 10, 2)
    ]  # fmt: skip


def test_the_queues_are_measured_when_they_are_asked_for() -> None:
    for options in ((), ("--scenario", "limbo"), ("--scenario", "puts")):
        assert plan(*options).txqueue_loads() == []
    asked = plan("--scenario", "txqueue")
    assert (asked.scenarios, asked.session_scenarios, asked.cluster_call_scenarios) == ((), (), ())
    assert asked.limbo_loads(LAYOUT) == []
    (first, *_) = asked.txqueue_loads()
    assert (first.seconds, first.value_bytes) == (3.0, 64)

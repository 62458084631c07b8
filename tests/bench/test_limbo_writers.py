"""Writers of the limbo, what is written down of them, and loads on a cluster that only notes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bench import limbo_play as play
from bench.control import (
    AskConfirmed,
    AwaitCallers,
    CheckRows,
    Confirmed,
    Done,
    DropRows,
    Flush,
    OwnLimbo,
    Ran,
    State,
)
from bench.facts import LimboFacts
from bench.layouts import Layout, WorkerFailed
from bench.limbo import (
    BACK_OFF_S,
    Confirmation,
    LimboLoad,
    LimboSeat,
    LimboWriters,
    key_of,
    value_of,
)
from bench.limbo_play import LimboRun, LimboTest, play_limbo
from bench.limbo_worker import count_rows
from bench.plan import Plan
from bench.run_options import parser, plan_of
from bench.schema import Row
from raftkv.errors import NoLeader, OutcomeUnknown, RaftkvError, Refused


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


class RolledBack(Refused):
    code = "limbo_rolled_back"
    position = 77


class StillPending(OutcomeUnknown):
    code = "limbo_still_pending"
    position = 78


class QueueFull(Refused):
    code = "limbo_queue_full"


class FakeLimbo:
    """Answers what it is told to, each after so many seconds, and then confirms."""

    def __init__(self, clock: Clock, *answers: RaftkvError | None, takes_s: float = 0.125) -> None:
        self.clock, self.answers, self.takes_s = clock, list(answers), takes_s
        self.asked: list[tuple[Any, ...]] = []
        self.last = 10

    async def submit(self, writes: Any, *, wait: Any = "", timeout_s: float = 0.0) -> Any:
        self.asked.append((tuple(writes), wait, timeout_s))
        await self.clock.sleep(self.takes_s)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.last += 1
        return SimpleNamespace(position=self.last, state="confirmed")


def load(**changes: Any) -> LimboLoad:
    values: dict[str, Any] = {
        "load": "limbo-7", "number": 7, "scenario": "limbo", "writers": 1, "seconds": 0.375,
        "warmup_s": 0.125, "value_bytes": 8, "timeout_s": 20.0,
    }  # fmt: skip
    return LimboLoad(**{**values, **changes})


def written(limbo: FakeLimbo, of: LimboLoad) -> tuple[list[Row], LimboWriters]:
    rows: list[Row] = []
    seat = LimboSeat("run", "3", "c2", lambda: "leader")
    writers = LimboWriters(limbo, lambda *write: write, seat, limbo.clock, rows.append)

    async def whole() -> None:
        writers.start(of)
        await writers.over()

    asyncio.run(whole())
    return rows, writers


def test_a_writer_writes_a_new_key_each_time_and_each_transaction_is_a_row() -> None:
    limbo = FakeLimbo(Clock())
    rows, writers = written(limbo, load())
    assert limbo.asked == [
        ((("load-7", b"0.%d" % turn, b"0.%d....." % turn),), "complete", 20.0) for turn in range(4)
    ]
    assert [row.phase for row in rows] == ["warmup", "load", "load", "load"]
    row = rows[1]
    assert (row.op, row.node, row.role, row.client) == ("submit", "c2", "leader", "w0")
    assert (row.load, row.index, row.outcome) == ("limbo-7", 12, "ok")
    assert row.duration_us == 125_000
    assert row.start_us == round(100.125e6) + 1_000_000_000
    assert writers.confirmed == [Confirmation(0, turn, 11 + turn) for turn in range(4)]
    assert writers.tally.ok == 3, "the warm-up is not for the terminal"


def test_what_is_not_confirmed_has_the_words_of_the_log_and_is_not_looked_for() -> None:
    clock = Clock()
    limbo = FakeLimbo(
        clock, None, RolledBack("no"), StillPending("late"), QueueFull("full"), NoLeader("none")
    )
    rows, writers = written(limbo, load(seconds=0.6))
    assert [row.outcome for row in rows][:5] == [
        "ok", "rolled_back", "still_pending", "error:limbo_queue_full", "no_leader",
    ]  # fmt: skip
    assert [row.index for row in rows][:5] == [11, 77, 78, None, None]
    assert [each.position for each in writers.confirmed] == [
        row.index for row in rows if row.outcome == "ok"
    ]
    assert clock.at == pytest.approx(100 + 0.125 * len(rows) + 4 * BACK_OFF_S)


def test_a_writer_that_fails_in_another_way_fails_the_load() -> None:
    class Broken(FakeLimbo):
        async def submit(self, writes: Any, *, wait: Any = "", timeout_s: float = 0.0) -> Any:
            await self.clock.sleep(self.takes_s)
            return SimpleNamespace(position=1, state="pending")

    with pytest.raises(AssertionError, match="pending"):
        written(Broken(Clock()), load())


def test_writers_have_one_transaction_each_outstanding_and_keys_of_their_own() -> None:
    limbo = FakeLimbo(Clock())
    rows, _ = written(limbo, load(writers=3))
    assert {row.client for row in rows} == {"w0", "w1", "w2"}
    keys = [asked[0][0][1] for asked in limbo.asked]
    assert len(set(keys)) == len(keys)
    assert value_of(1, 12, 64) != value_of(11, 2, 64)


# What every node is asked for ---------------------------------------------------------------------


def test_only_the_same_value_at_the_same_position_counts_as_there() -> None:
    confirmed = tuple(Confirmation(0, turn, 5 + turn) for turn in range(4))
    rows = {
        key_of(0, turn): SimpleNamespace(value=value_of(0, turn, 8), position=5 + turn)
        for turn in range(3)
    }
    rows[key_of(0, 0)].position = 9
    rows[key_of(0, 1)].value = b"other"
    rows[key_of(1, 0)] = SimpleNamespace(value=value_of(1, 0, 8), position=9)
    # Turn 0 has another position, 1 another value, 3 is not there; one row is of nobody.
    assert count_rows(CheckRows(load(), confirmed), rows) == (1, 1)


# Loads on a cluster -------------------------------------------------------------------------------

LAYOUT = Layout.parse("3+3")


class FakeCluster:
    """Every look finds ten entries and six messages more in each node, until writers are done."""

    def __init__(self) -> None:
        self.layout, self.run, self.leader = LAYOUT, "run", "c2"
        self.events: list[tuple[str, Any]] = []
        self.writing = False
        self.steps = 0
        self.pending = 0
        self.dropped = 0

    async def ask(self, name: str, request: Any, kind: Any, timeout_s: float = 0.0) -> Any:
        self.events.append((name, request))
        match request:
            case LimboLoad():
                self.writing = True
            case AwaitCallers():
                self.writing = False
                return Ran(outcomes={"ok": 5}, elapsed_s=0.0, buckets={})
            case AskConfirmed():
                return Confirmed((Confirmation(0, 1, 9),))
            case DropRows():
                self.dropped = 2
        return Done()

    async def ask_all(
        self, names: Sequence[str], request: Any, kind: Any, timeout_s: float = 0.0
    ) -> Any:
        return {name: await self.ask(name, request, kind) for name in names}

    async def states(self, timeout_s: float = 0.0) -> dict[str, State]:
        self.steps += self.writing
        pending, self.pending = self.pending, max(0, self.pending - 1)
        dropped, self.dropped = self.dropped, max(0, self.dropped - 1)
        return {
            name: State(
                role="leader" if name == self.leader else "follower", leader=self.leader,
                commit_index=10 * self.steps, applied_index=10 * self.steps, endpoint=None,
                outcomes={"ok": 3}, buckets={}, commands_applied=20 * self.steps,
                messages={"raft": 4 * self.steps, "rpc": 2 * self.steps}, acks=self.steps,
                pending=pending, rows_dropped=dropped,
            )
            for name in LAYOUT.names
        }  # fmt: skip

    def asked(self, kind: type) -> list[tuple[str, Any]]:
        return [(name, one) for name, one in self.events if isinstance(one, kind)]


@pytest.fixture(autouse=True)
def without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "IDLE_S", 0.0)
    monkeypatch.setattr(play, "LOOK_EVERY_S", 0.01)


def played(tmp_path: Path, cluster: Any) -> LimboFacts:
    test = LimboTest(tmp_path, lambda text: None)
    result = asyncio.run(play_limbo(cluster, LimboRun("cores", 4, 0.06, 64), test))
    assert (result.clients, result.tally.ok, result.scenario) == (4, 5, "limbo")
    (path,) = (tmp_path / "limbo-loads").iterdir()
    return msgspec.json.decode(path.read_bytes(), type=LimboFacts)


def test_a_load_is_written_settled_looked_for_everywhere_and_dropped(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.pending = 2
    facts = played(tmp_path, cluster)
    assert cluster.asked(OwnLimbo) == [("c2", OwnLimbo("cores", 1))]
    ((name, sent),) = cluster.asked(LimboLoad)
    assert (name, sent.writers, sent.load, sent.value_bytes) == ("c2", 4, "limbo-1", 64)
    checks = cluster.asked(CheckRows)
    assert [each for each, _ in checks] == LAYOUT.names
    assert {check.confirmed for _, check in checks} == {(Confirmation(0, 1, 9),)}
    assert len(cluster.asked(Flush)) == 6
    assert cluster.asked(DropRows) == [("c2", DropRows(1))]
    assert (cluster.pending, cluster.dropped) == (0, 0)
    steps = cluster.steps
    assert steps > 1
    assert (facts.quorum, facts.writers, facts.owner) == ("cores", 4, "c2")
    assert (facts.entries, facts.commands, facts.acks) == (10 * steps, 20 * steps, 6 * steps)
    assert (facts.raft_messages, facts.call_messages) == (24 * steps, 12 * steps)
    assert facts.feed_messages == 0
    assert facts.nodes == "c1 c2 c3 r1 r2 r3"


def test_a_load_that_does_not_settle_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "REST_TIMEOUT_S", 0.0)
    cluster = FakeCluster()
    cluster.pending = 10**9
    with pytest.raises(WorkerFailed, match=r"\d+ transactions are pending"):
        played(tmp_path, cluster)


# What is measured ---------------------------------------------------------------------------------


def plan(*options: str) -> Plan:
    return plan_of(parser().parse_args(["--out", "x", *options]))


def loads(name: str, *options: str) -> list[tuple[str, int]]:
    found = plan("--scenario", "limbo", *options).limbo_loads(Layout.parse(name))
    return [(run.quorum, run.writers) for run in found]


def test_every_quorum_that_the_layout_has_with_every_number_of_writers() -> None:
    assert loads("3") == [(q, n) for q in ("majority", "cores") for n in (1, 16, 64, 256)]
    assert len(loads("3+3")) == 3 * 4
    assert ("members", 64) in loads("3+3", "--quick")
    assert loads("1", "--in-flight", "2") == [("majority", 2)]


def test_the_limbo_is_measured_when_it_is_asked_for() -> None:
    for options in ((), ("--scenario", "calls"), ("--scenario", "puts")):
        assert plan(*options).limbo_loads(LAYOUT) == []
    asked = plan("--scenario", "limbo")
    assert (asked.scenarios, asked.session_scenarios, asked.cluster_call_scenarios) == ((), (), ())
    (first, *_) = asked.limbo_loads(LAYOUT)
    assert (first.seconds, first.value_bytes) == (3.0, 64)
    assert plan("--scenario", "limbo", "--quick").limbo_seconds == 1.0

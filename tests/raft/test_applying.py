"""A long entry is applied over several turns; heartbeats, votes and stops come in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from raftkv.config import NodeConfig
from raftkv.errors import DamagedSnapshot
from raftkv.raft import wire
from raftkv.raft.engine import APPLY_S_PER_TICK
from raftkv.replicant.follower import Follower
from tests.raft.harness import A, B, Bench, C, RecordingApplication, append, batch
from tests.raft.test_turns import SlowClock

SLICES = 6
LONG = b"long"


class Slow(RecordingApplication):
    """Applies what begins with LONG in SLICES steps, each of which takes a turn's time."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime: Any = None
        self.slices = 0

    def apply(self, index: int, body: bytes, term: int) -> Iterator[None] | None:
        if not body.startswith(LONG):
            super().apply(index, body, term)
            return None
        return self._in_slices(index, body, term)

    def _in_slices(self, index: int, body: bytes, term: int) -> Iterator[None]:
        for _ in range(SLICES):
            self.slices += 1
            self.runtime.now += APPLY_S_PER_TICK
            yield
        super().apply(index, body, term)

    def freeze(self) -> Any:
        assert self.slices % SLICES == 0, "frozen in the middle of an entry"
        return super().freeze()


def slow_bench(*texts: str) -> tuple[Bench, Slow]:
    """A follower whose leader has committed entries 3 and behind with these texts."""
    bench = Bench(B, log=[(1, batch(text)) for text in texts])
    slow = bench.application = Slow()
    slow.skip(2)
    bench.engine.application = slow
    bench.engine._SyncObj__raftLastApplied = 2
    slow.runtime = bench.runtime
    last = 2 + len(texts)
    bench.engine.receive(bench.links[A], append(1, last, 1, commit=last))  # type: ignore[arg-type]
    return bench, slow


def test_a_long_entry_takes_many_turns_and_moves_the_applied_index_once() -> None:
    bench, slow = slow_bench("a", "long", "b")
    applied = []
    for _ in range(3 * SLICES):
        bench.engine._run_tick()
        applied.append((bench.engine.applied, slow.index))
    assert applied.count((3, 3)) >= SLICES - 1
    assert (5, 5) in applied
    assert slow.applied == [2, 3, 4, 5]
    assert slow.slices == SLICES


def test_a_heartbeat_is_answered_in_the_middle_of_an_entry() -> None:
    bench, _ = slow_bench("long")
    bench.engine._run_tick()
    bench.take(A)
    heartbeat = append(1, 3, 1, commit=3, round_number=7)
    bench.engine.receive(bench.links[A], heartbeat)  # type: ignore[arg-type]
    bench.engine._run_tick()
    assert bench.engine.applying.busy
    assert [answer.round for answer in bench.take(A, wire.AppendReply)] == [7]


def test_a_snapshot_begins_between_two_entries_though_long_ones_follow_each_other() -> None:
    bench, slow = slow_bench("long", "long", "long")
    bench.engine._run_tick()
    assert bench.engine.applying.busy
    bench.engine.snapshotting.begin()
    assert not bench.engine.snapshotting.writing
    while bench.engine.applied < 3:
        bench.engine._run_tick()
    assert bench.engine.snapshotting.writing
    bench.runtime.settle()
    bench.runtime.advance(1.0)
    assert bench.engine.snapshotting.last_index == 3
    assert slow.applied[-1] == 5


def test_a_task_that_waits_for_the_end_of_an_entry_runs_before_the_next_begins() -> None:
    bench, _ = slow_bench("long", "long")
    bench.engine._run_tick()
    found: list[tuple[int, bool]] = []

    async def wait() -> None:
        await bench.engine.applying.idle()
        found.append((bench.engine.applied, bench.engine.applying.busy))

    bench.runtime.spawn(wait(), "wait")
    bench.runtime.settle()
    assert found == [(3, False)]


def test_a_stop_in_the_middle_of_an_entry_applies_no_more_and_holds_nobody_up() -> None:
    bench, slow = slow_bench("long", "b")
    bench.engine._run_tick()
    waiting = bench.engine.applying.idle()
    waiting.send(None)
    bench.engine.snapshotting.begin()
    slices = slow.slices
    bench.engine.stop()
    bench.runtime.settle()
    assert slow.slices == slices
    assert slow.index == 2
    assert not bench.engine.snapshotting.writing
    with pytest.raises(StopIteration):
        waiting.send(None)


def test_a_step_down_in_the_middle_of_an_entry_changes_nothing_about_it() -> None:
    bench = Bench(A)
    bench.lead()
    slow = Slow()
    slow.skip(2)
    slow.skip(3)
    slow.runtime = bench.runtime
    bench.application = bench.engine.application = slow
    bench.engine.propose([b"long"])
    bench.runtime.settle()
    bench.receive(B, wire.AppendReply(bench.engine.term, True, 4, 0, 0, 0, 0))
    assert bench.engine.applying.busy or slow.index == 4
    bench.receive(C, wire.Append(9, 4, bench.engine.term, 4, 1, [], 0))
    bench.runtime.settle()
    assert bench.engine.leading is None
    assert slow.applied[-1] == 4


class _Link:
    """The replicant's end of a stream."""

    dialled = "somewhere"
    peer_name = "core1"

    def send(self, message: wire.Message) -> None:
        """What a replicant reports."""

    def close(self) -> None:
        """Nothing to close."""

    abort = close


def replicant() -> tuple[Follower, Slow, Any]:
    bench = Bench(B)
    slow = Slow()
    slow.runtime = bench.runtime
    config = NodeConfig(
        name="r",
        role="replicant",
        dir="/r",
        peer_address="r:1",
        cores={"core1": "c:1"},
        insecure=True,
    )
    follower = Follower(config, None, bench.runtime, slow, list)  # type: ignore[arg-type]
    follower.link = _Link()  # type: ignore[assignment]
    return follower, slow, bench.runtime


def feed(follower: Follower, first: int, *texts: str) -> None:
    entries = [(1, batch(text)) for text in texts]
    message = wire.Feed(first - 1, 1 if first > 2 else 0, first - 1 + len(texts), entries)
    follower.on_feed(follower.link, message)  # type: ignore[arg-type]


def test_a_replicant_applies_a_long_entry_over_many_turns() -> None:
    follower, slow, runtime = replicant()
    feed(follower, 2, "long", "b")
    follower._apply()
    assert follower.applying.busy
    assert follower.applied == 1
    assert follower.lag[0] == 2
    runtime.settle()
    assert follower.applied == slow.index == 3


def test_a_snapshot_replaces_the_entry_that_a_replicant_is_applying() -> None:
    follower, slow, runtime = replicant()
    feed(follower, 2, "long", "b")
    follower._apply()
    for number, data in enumerate((b"state", b"x", b"")):
        chunk = wire.FeedSnapshot(9, 1, number, number == 2, data)
        follower.on_snapshot(follower.link, chunk)  # type: ignore[arg-type]
    assert not follower.applying.busy
    feed(follower, 10, "c")
    runtime.settle()
    assert follower.applied == slow.index == 10
    assert slow.state == [b"x", batch("c")[1:]]


def test_a_damaged_snapshot_leaves_the_entry_that_is_being_applied() -> None:
    follower, slow, runtime = replicant()
    feed(follower, 2, "long", "b")
    follower._apply()
    follower._forget_queue()
    assert (follower._queued, follower._queued_term) == (2, 1)
    feed(follower, 3, "b")
    runtime.settle()
    assert slow.applied[-2:] == [2, 3]


def test_a_snapshot_that_ends_too_early_leaves_the_entry_that_is_being_applied() -> None:
    follower, slow, runtime = replicant()
    feed(follower, 2, "long", "b")
    follower._apply()
    loading = slow.loading()

    def adopt(index: int) -> None:
        raise DamagedSnapshot("the snapshot's state", 0, "it ends before its end marker")

    loading.adopt = adopt  # type: ignore[method-assign]
    follower._loading, follower._snapshot_chunks = loading, 1
    chunk = wire.FeedSnapshot(9, 1, 1, True, b"")
    follower.on_snapshot(follower.link, chunk)  # type: ignore[arg-type]
    assert follower.applying.busy
    feed(follower, 3, "b")
    runtime.settle()
    assert slow.applied == [2, 3]
    assert not follower.stopped


def test_the_clock_ends_a_turn_between_the_slices_of_short_work() -> None:
    """Many short slices share a turn."""
    bench, slow = slow_bench("long")
    slow.runtime = type("Still", (), {"now": 0.0})()
    SlowClock(bench, APPLY_S_PER_TICK / 4)
    bench.engine._run_tick()
    assert 2 <= slow.slices < SLICES

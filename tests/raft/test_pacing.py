"""A snapshot takes its share of a busy node's loop, and all of an idle one's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftkv.config import Limits
from raftkv.raft.pacing import (
    AT_ONCE,
    BURST_S,
    GAP_SHARE,
    HASTE_SHARE,
    HURRY,
    NEXT_TURN,
    REST_S,
    Pace,
)
from raftkv.raft.snapshotting import TURN_BYTES
from tests.raft.harness import A, B, Bench, C, FakeFrozen, accepted, append, batch

SLICE_S = 0.001
SLICES = 400
NOW = 100.0


def test_a_slice_leaves_a_multiple_of_its_time_to_others() -> None:
    earliest, latest = Pace(0.05).after(SLICE_S, NOW, 7, 0.0)
    assert earliest - NOW == pytest.approx(SLICE_S * (1 / GAP_SHARE - 1))
    assert latest - NOW == pytest.approx(SLICE_S * (1 / 0.05 - 1))


def test_a_large_least_share_needs_no_gap() -> None:
    earliest, latest = Pace(0.5).after(SLICE_S, NOW, 7, 0.0)
    assert earliest == latest == pytest.approx(NOW + SLICE_S)
    assert Pace(1.0).after(SLICE_S, NOW, 7, 0.0) is NEXT_TURN


def test_the_walk_hurries_when_the_log_grows() -> None:
    filled = [0.0, HURRY, HURRY + 0.3 * (1 - HURRY), HURRY + 0.9 * (1 - HURRY), 1.0]
    times = [Pace(0.05).after(SLICE_S, NOW, 7, each) for each in filled]
    assert times[0] == times[1]
    assert [latest for _, latest in times[1:]] == sorted(
        (latest for _, latest in times[1:]), reverse=True
    )
    assert all(earliest <= latest for earliest, latest in times)
    assert times[-1].latest == pytest.approx(NOW + SLICE_S * (1 / HASTE_SHARE - 1))
    assert Pace(0.05).after(SLICE_S, NOW, 7, 7.5) == times[-1], "callers keep their half"


@pytest.mark.parametrize(("filled", "share"), [(0.0, 0.05), (1.0, HASTE_SHARE), (3.0, HASTE_SHARE)])
def test_a_node_with_few_long_turns_gives_the_walk_its_share_too(
    filled: float, share: float
) -> None:
    """A slice a turn would be much less: the log would grow for as long as the load lasts."""
    pace, now, walked, turn_s = Pace(0.05), NOW, 0.0, 3 * SLICE_S
    worst = in_this_turn = 0.0
    for applied in range(4_000):
        now += SLICE_S
        walked += SLICE_S
        in_this_turn += SLICE_S
        wait = pace.after(SLICE_S, now, applied, filled)
        worst = max(worst, in_this_turn)
        while wait is not AT_ONCE and now < wait.latest:
            now += turn_s
            in_this_turn = 0.0
    assert walked / (now - NOW) == pytest.approx(share, rel=0.1)
    assert worst <= BURST_S + SLICE_S


def test_what_the_walk_did_not_get_is_not_made_up_for_in_one_go() -> None:
    pace = Pace(0.5)
    pace.after(SLICE_S, NOW, 1, 0.0)
    now, slices, wait = NOW + 10.0, 0, AT_ONCE
    while wait is AT_ONCE:
        now += SLICE_S
        wait = pace.after(SLICE_S, now, 2 + slices, 0.0)
        slices += 1
    assert slices == round(BURST_S / SLICE_S)


def test_a_node_at_rest_waits_for_nothing() -> None:
    pace = Pace(0.05)
    assert pace.after(SLICE_S, NOW, 7, 0.0) is not NEXT_TURN
    assert pace.after(SLICE_S, NOW + REST_S, 7, 0.0) is not NEXT_TURN, "it worked a moment ago"
    assert pace.after(SLICE_S, NOW + REST_S + 0.001, 7, 0.0) is NEXT_TURN
    assert pace.after(SLICE_S, NOW + REST_S + 0.001, 8, 0.0) is not NEXT_TURN, "it works again"


class SlowFrozen(FakeFrozen):
    """Each slice takes a while, and is long enough for a turn of its own."""

    def __init__(self, bench: Bench) -> None:
        super().__init__([b"x" * TURN_BYTES] * SLICES)
        self._bench = bench
        self.given = 0

    def slices(self, rows_max: int, bytes_max: int = 0) -> Iterator[bytes]:
        for chunk in super().slices(rows_max, bytes_max):
            self._bench.runtime.now += SLICE_S
            self.given += 1
            yield chunk


def walk(limits: Limits) -> tuple[Bench, SlowFrozen]:
    """A follower that has begun to write a snapshot of many slices."""
    log = [(1, batch(str(number))) for number in range(3, 10)]
    bench = Bench(B, log=log, limits=limits)
    bench.deliver(A, append(1, 9, 1, commit=9))
    frozen = SlowFrozen(bench)
    bench.application.freeze = lambda: frozen  # type: ignore[method-assign]
    bench.engine.snapshotting.begin()
    bench.runtime.settle()
    return bench, frozen


def work(bench: Bench, entries: int) -> float:
    """So many entries are applied, ten turns after one another. How long it took."""
    began = bench.runtime.now
    for _ in range(entries):
        last = bench.wal.last_index
        bench.deliver(A, append(1, last, 1, [(1, batch("more"))], commit=last + 1))
        for _ in range(10):
            bench.runtime.advance(0.0005)
            bench.runtime.settle()
    return bench.runtime.now - began


def rest(bench: Bench) -> None:
    """Until the snapshot is there."""
    for _ in range(2 * SLICES):
        bench.runtime.advance(0.001)
        bench.runtime.settle()
    assert not bench.engine.snapshotting.writing


def test_a_node_at_work_takes_gaps() -> None:
    """A write is on the disk, its answer has left: one slice, not one in each turn."""
    bench, frozen = walk(Limits(snapshot_loop_percent=1))
    before, entries = frozen.given, 50
    work(bench, entries)
    assert entries * 0.9 <= frozen.given - before <= entries * 1.1
    bench.runtime.advance(1.0)
    rest(bench)


def test_gaps_are_not_all_taken() -> None:
    """Where every moment is a gap, the walk still leaves the most of the loop to others."""
    bench, frozen = walk(Limits(snapshot_loop_percent=1))
    before, began = frozen.given, bench.runtime.now
    for _ in range(300):
        last = bench.wal.last_index
        bench.deliver(A, append(1, last, 1, [(1, batch("more"))], commit=last + 1))
        bench.runtime.advance(0.0001)
    share = (frozen.given - before) * SLICE_S / (bench.runtime.now - began)
    assert 0.8 * GAP_SHARE <= share <= 1.1 * GAP_SHARE
    rest(bench)


def test_without_gaps_the_walk_has_its_share() -> None:
    """What waits for the loop goes first, but not for ever."""
    bench, frozen = walk(Limits(snapshot_loop_percent=10))
    before, began = frozen.given, bench.runtime.now
    applied = bench.engine.applied
    for number in range(2000):
        bench.application.index = applied + number
        bench.engine._SyncObj__raftLastApplied = applied + number  # it applies, and writes nothing
        bench.runtime.advance(0.001)
        bench.runtime.settle()
    share = (frozen.given - before) * SLICE_S / (bench.runtime.now - began)
    assert share == pytest.approx(0.1, rel=0.15)
    rest(bench)


def test_a_leader_with_commands_waiting_has_no_gap() -> None:
    bench = Bench(A, log=[(1, batch("first"))])
    term = bench.elect()
    bench.runtime.settle()
    for peer in (B, C):
        bench.receive(peer, accepted(term, bench.wal.last_index))
    bench.runtime.settle()
    gaps: list[float] = []
    bench.engine.snapshotting.gap = gaps.append  # type: ignore[method-assign]
    bench.engine.propose([b"one"])
    bench.runtime.run()
    bench.engine.propose([b"two"])  # while the disk writes
    bench.runtime.finish_disk()
    assert gaps == []
    bench.runtime.settle()
    assert len(gaps) == 1


def test_with_the_log_behind_it_the_walk_gets_faster_and_ends() -> None:
    bench, frozen = walk(Limits(snapshot_loop_percent=1, snapshot_log_entries=100))
    work(bench, 70)
    slow = frozen.given
    work(bench, 40)
    assert (frozen.given - slow) / 40 > 1.5 * slow / 70
    work(bench, SLICES)
    assert bench.engine.counts.snapshots_written >= 1
    rest(bench)


def test_a_snapshot_of_a_node_at_rest_takes_no_longer_than_its_slices() -> None:
    bench, frozen = walk(Limits(snapshot_loop_percent=1))
    began = bench.runtime.now
    while bench.engine.snapshotting.writing:
        bench.runtime.advance(0.001)
        bench.runtime.settle()
        assert bench.runtime.now < began + 3 * SLICES * SLICE_S, "it waits for nobody"
    assert frozen.given == SLICES

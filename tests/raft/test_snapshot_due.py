"""When the next snapshot is due: by what lies behind the last one in the log."""

from __future__ import annotations

import msgspec

from raftkv.config import Limits
from raftkv.raft.snapshot import SnapshotMeta
from tests.raft.harness import A, B, Bench, FakeFrozen, append, batch
from tests.raft.test_pacing import SLICE_S, SlowFrozen, rest

LOG_BYTES = 8_192
COMMAND = b"x" * 100
LIMITS = Limits(
    snapshot_log_bytes=LOG_BYTES,
    snapshot_log_percent=0,
    segment_bytes_max=LOG_BYTES,
    log_tail_entries=1,
    snapshot_loop_percent=100,
)


def core(limits: Limits = LIMITS) -> Bench:
    bench = Bench(A, voters=[A], limits=limits)
    bench.lead()
    return bench


def put(bench: Bench, count: int = 1) -> int:
    """Propose entries one by one; the largest log behind the newest snapshot meanwhile."""
    worst = 0
    for _ in range(count):
        assert bench.engine.propose([COMMAND])
        bench.runtime.settle()
        bench.runtime.advance(SLICE_S)
        bench.runtime.settle()
        worst = max(worst, behind(bench))
    return worst


def behind(bench: Bench) -> int:
    """Bytes of the entries that a restart would apply again."""
    newest = bench.recovered.store.latest()
    index = 1 if newest is None else newest.meta.index
    return sum(len(entry.payload) for entry in bench.wal.newest_first(index + 1))


def test_the_log_behind_a_snapshot_is_bounded_also_when_files_are_deleted() -> None:
    """Their deletion makes the log on disk smaller, but not what lies behind the snapshot."""
    bench = core()
    assert put(bench, 1_000) <= 1.1 * LOG_BYTES
    assert bench.engine.counts.snapshots_written >= 10
    assert bench.wal.base_index > 500, "nothing was deleted: the test shows nothing"


def until_written(bench: Bench) -> None:
    """Put until the next snapshot is written."""
    written = bench.engine.counts.snapshots_written
    while bench.engine.counts.snapshots_written == written:
        put(bench)


def test_what_came_while_a_snapshot_was_written_counts_for_the_next() -> None:
    bench = core()
    fast, slow = bench.application.freeze, SlowFrozen(bench)
    bench.application.freeze = lambda: slow  # type: ignore[method-assign]
    bench.engine.snapshotting.begin()
    bench.application.freeze = fast  # type: ignore[method-assign]
    while bench.wal.last_index < 50:
        bench.engine.propose([COMMAND])
        bench.runtime.run()
        bench.runtime.finish_disk()
    assert bench.engine.snapshotting.writing
    rest(bench)
    assert bench.engine.counts.snapshots_written == 1
    came = behind(bench)
    assert came > LOG_BYTES / 2
    before = bench.wal.written_bytes
    until_written(bench)
    assert bench.wal.written_bytes - before <= 1.1 * (LOG_BYTES - came)


def test_what_a_restart_finds_counts() -> None:
    """Or a node that is restarted again and again would never write one."""
    bench = core()
    for _ in range(4):
        worst = put(bench, LOG_BYTES // len(COMMAND) // 2)
        assert worst <= 1.1 * LOG_BYTES
        bench = Bench(A, voters=[A], limits=LIMITS, disk=bench.disk)
        bench.lead()
    assert bench.recovered.store.latest() is not None


def test_a_start_applies_what_it_has_found_before_it_writes_one() -> None:
    """A snapshot in the middle of it would take as long again from those who wait."""
    log = [(1, batch("x" * 100)) for _ in range(2 * LOG_BYTES // 100)]
    bench = Bench(B, log=log, limits=LIMITS)
    last, begun, freeze = bench.wal.last_index, [], bench.application.freeze

    def frozen() -> FakeFrozen:
        begun.append(bench.engine.applied)
        return freeze()

    bench.application.freeze = frozen  # type: ignore[method-assign]
    bench.deliver(A, append(1, last, 1, commit=last - 1))
    assert begun == [], "behind a small part of it the log is long enough"
    bench.deliver(A, append(1, last, 1, commit=last))
    assert begun == [last]
    rest(bench)


def test_a_large_state_is_not_written_again_for_a_little_log() -> None:
    limits = msgspec.structs.replace(LIMITS, snapshot_log_percent=1)
    bench = core(limits)
    slow = SlowFrozen(bench)
    bench.application.freeze = lambda: slow  # type: ignore[method-assign]
    bench.engine.snapshotting.begin()
    rest(bench)
    newest = bench.recovered.store.latest()
    assert newest is not None
    at = newest.size_bytes // 100
    assert at > 5 * LOG_BYTES
    assert bench.engine.snapshotting.log_bytes_max == at
    while bench.engine.counts.snapshots_written == 1:
        put(bench)
        if bench.engine.snapshotting.writing:
            rest(bench)
    assert newest.meta.index + 0.5 * at / len(COMMAND) < bench.engine.snapshotting.last_index
    assert behind(bench) <= 1.1 * at


def test_one_that_is_installed_has_its_own_log_behind_it() -> None:
    bench = core()
    put(bench, LOG_BYTES // len(COMMAND) // 2)
    store, at = bench.recovered.store, bench.engine.applied - 10
    writer = store.writer(
        SnapshotMeta(index=at, term=bench.wal.term_at(at) or 0, configuration=b"", cluster_id="")
    )
    writer.write(b"all")
    bench.engine.snapshotting.installed(writer.commit())
    left = behind(bench)
    assert left > 10 * len(COMMAND)
    before = bench.wal.written_bytes
    until_written(bench)
    assert LOG_BYTES < bench.wal.written_bytes - before + left <= 1.1 * LOG_BYTES

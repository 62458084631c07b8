"""When snapshots are written, and what the log forgets afterwards.

A snapshot is a copy-on-write view of the state, walked in short slices on the loop and written by
a thread of its own, so that neither the loop nor the log's disk thread waits for it. The walk takes
a share of the loop while the node works (pacing.py). It is written at a bounded rate and synced
often (the writer does that): a burst of hundreds of megabytes would make the next fsync of the log
wait for all of them.

The next snapshot is due when the log behind the *index* of the last one has grown over a limit. So
what came while that one was written counts, and so does what a start has found: all of it has to be
applied by the next start, and is in memory until then.

The log keeps a tail behind the snapshot: a follower that is only a little late needs no snapshot.
The base of the log therefore lies at or below the newest snapshot, never above (recovery checks
it).

A snapshot that finds no room on the disk is no reason to stop: the one before it and the log hold
everything. It is tried again when there is room; free_space.py has what a node does until then.
Any other error of the disk stops the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from raftkv.descriptors import lacks_descriptors
from raftkv.disk_errors import disk_failed
from raftkv.errors import NodeFault

from .free_space import FreeSpace, is_no_room
from .membership import encode
from .pacing import AT_ONCE, NEXT_TURN, Pace
from .snapshot import Snapshot, SnapshotMeta, SnapshotStore, SnapshotWriter
from .snapshot_file import FORMAT_1, FORMAT_VERSION, SINCE_CORE_FORMAT

if TYPE_CHECKING:
    import asyncio

    from .engine import Engine, Frozen

__all__ = ["Snapshotting"]

log = logging.getLogger("raftkv.raft")

# After a failure that is not the disk's. Each attempt walks over the state.
RETRY_S = 30.0
# After one for lack of room, doubled each time. It writes no more than there is room for, and an
# operator who has made room wants to see that it suffices.
ROOM_RETRY_MIN_S = 1.0
ROOM_RETRY_MAX_S = 15.0

# Rows per slice: a slice of this many small rows is encoded in less than half a millisecond.
SLICE_ROWS = 300
# Chunks go to the disk thread together up to this size: handing them over costs as much as encoding
# some hundred rows.
WRITE_BYTES = 256 * 1024
# Behind so many bytes others get their turn: sessions make many small chunks.
TURN_BYTES = 16 * 1024
# How far writing may run ahead of its rate before it waits: shorter waits are not worth a timer.
AHEAD_S_MAX = 0.02


class _GivenUp(Exception):
    """The node stops: the snapshot that is being written is not needed any more."""


class _Begun(NamedTuple):
    """Where a snapshot was begun: its index, and the log's `written_bytes` there."""

    at: int
    written_bytes: int


class Snapshotting:
    """Writes snapshots of one node and compacts its log."""

    def __init__(self, store: SnapshotStore, cluster_id: str = "") -> None:
        self.store = store
        self.cluster_id = cluster_id
        self._last = _Begun(0, 0)
        # The end of the log that the start has found: nobody is served before it is applied.
        self._found = 0
        self._running = False
        self._task: asyncio.Task[None] | None = None
        self._damaged_in_a_row = 0
        # A walk that waits for a gap, and from when on it takes one.
        self._waiting: asyncio.Future[None] | None = None
        self._gap_from = 0.0
        self._not_before = 0.0
        self._room_retry_s = ROOM_RETRY_MIN_S
        # The last attempt has failed, so the log grows.
        self._failing = False
        #: None is sent to a follower any more: the state in them is not the cluster's.
        self.withheld = False
        # The indexes of snapshots on their way to replicants.
        self.fed: Callable[[], Sequence[int]] = tuple
        self.space: FreeSpace
        self._engine: Engine

    def attach(self, engine: Engine) -> None:
        self._engine = engine
        self.space = FreeSpace(engine, self)
        latest = self.store.latest()
        self._last = self._begun(latest.meta.index if latest is not None else 1)
        self._found = engine.wal.last_index

    def _begun(self, index: int) -> _Begun:
        """What a snapshot at `index` leaves in the log that there is now counts for the next."""
        wal = self._engine.wal
        behind = sum(len(entry.payload) for entry in wal.newest_first(index + 1))
        return _Begun(index, wal.written_bytes - behind)

    @property
    def last_index(self) -> int:
        """What the newest snapshot covers; 1 without one."""
        return self._last.at

    @property
    def writing(self) -> bool:
        """Whether a snapshot is being written."""
        return self._running

    def tick(self) -> None:
        """Start a snapshot if the log behind the last one has grown over a limit."""
        if self._running or not self._is_due:
            return
        engine = self._engine
        if engine.applied < min(self._found, engine.wal.last_index):
            return
        if not self.waits:
            self.begin()

    @property
    def _is_due(self) -> bool:
        return self._log_filled(self._last) > 1

    @property
    def waits(self) -> bool:
        """Whether nothing is to be written now, because the last attempt has just failed."""
        return self._engine.runtime.monotonic() < self._not_before

    @property
    def wants_room(self) -> bool:
        """Whether a failed attempt is still to be repeated."""
        return self._failing and (self._is_due or self.waits)

    @property
    def held_up(self) -> bool:
        """Whether the log grows although the next snapshot is due, because none can be written."""
        return (self._failing or self.space.low) and self._is_due

    @property
    def expected_bytes(self) -> int:
        """About what the next snapshot takes: what the last one took, and what came since."""
        known = self.store.known
        return self.log_bytes + (0 if known is None else known.size_bytes)

    def _log_filled(self, begun: _Begun) -> float:
        """The log behind a snapshot, which may be still on its way; 1: the next one is due."""
        engine, limits = self._engine, self._engine.limits
        entries = engine.applied - begun.at
        if entries <= 0:
            return 0.0
        return max(entries / limits.snapshot_log_entries, self._grown(begun) / self.log_bytes_max)

    def _grown(self, begun: _Begun) -> int:
        # Not by the size of the files: that falls when one of them is deleted, at any time.
        return self._engine.wal.written_bytes - begun.written_bytes

    @property
    def log_bytes(self) -> int:
        """The log behind the newest snapshot."""
        return self._grown(self._last)

    @property
    def log_bytes_max(self) -> int:
        """How much of it begins the next one."""
        limits, known = self._engine.limits, self.store.known
        part = 0 if known is None else known.size_bytes * limits.snapshot_log_percent // 100
        return max(limits.snapshot_log_bytes, part)

    @property
    def log_kept_bytes_max(self) -> int:
        """How much of it is kept while no snapshot can be written; see free_space.py.

        At least twice of what begins one: a large state has a long log in any case.
        """
        return max(self._engine.limits.log_kept_bytes_max, 2 * self.log_bytes_max)

    def begin(self) -> None:
        """Write a snapshot of the applied state, if there is room and none is being written.

        It begins now, or at the end of the entry that is being applied.
        """
        self._engine.applying.between(self._begin)

    def _begin(self) -> None:
        if self._running or self.space.none_left or self._engine.stopped:
            return
        engine = self._engine
        self._running = True
        index = engine.applied
        term = engine.wal.term_at(index)
        assert term is not None, (index, engine.wal.base_index)
        raised = engine.application.core_format >= SINCE_CORE_FORMAT
        meta = SnapshotMeta(
            index=index,
            term=term,
            configuration=encode(engine.configurations.at(index)),
            cluster_id=self.cluster_id,
            format_version=FORMAT_VERSION if raised else FORMAT_1,
            configuration_index=engine.configurations.since(index) if raised else 0,
        )
        work = self._write(meta, self._begun(index), engine.application.freeze())
        self._task = engine.runtime.spawn(work, "snapshot")

    def stop(self) -> None:
        """The engine has stopped: give up what is being written, and leave nothing of it.

        It is not cancelled, because work in a thread would go on behind that; it looks itself.
        """
        self._resume()

    async def ended(self, timeout_s: float) -> None:
        """Return when nothing is being written any more, or after so long."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)

    async def _write(self, meta: SnapshotMeta, begun: _Begun, frozen: Frozen) -> None:
        engine, runtime = self._engine, self._engine.runtime
        began = runtime.monotonic()
        try:
            writer = await runtime.offload_bulk(self.store.writer, meta)
            try:
                await self._write_slices(writer, frozen, begun)
            except BaseException:
                await runtime.offload_bulk(writer.abort)
                raise
            snapshot = await runtime.offload_bulk(writer.commit)
        except OSError as error:
            if is_no_room(error):
                self.no_room(error)
                return
            if lacks_descriptors(error):
                self.put_off(error)
                return
            engine.stop_with(disk_failed("writing a snapshot failed", error))
            return
        except NodeFault as fault:
            engine.stop_with(fault)
            return
        except _GivenUp:
            return
        except Exception as error:
            # The disk is well, and the log holds all that the snapshot would: this node goes on,
            # and tries again. Nothing else tells its operator that the log only grows.
            engine.counts.snapshots_failed += 1
            self._failing = True
            self._not_before = runtime.monotonic() + RETRY_S
            log.error("writing a snapshot failed, again in %.0f s", RETRY_S, exc_info=error)
            return
        finally:
            frozen.close()
            self._running = False
        engine.counts.snapshots_written += 1
        engine.counts.snapshot_written_bytes += snapshot.size_bytes
        engine.counts.snapshot_write_s.observe(runtime.monotonic() - began)
        if not engine.stopped and snapshot.meta.index > self.last_index:
            self._installed(begun)

    def no_room(self, error: OSError) -> None:
        """A snapshot, written or received, found no room: nothing of it is left; try later."""
        engine = self._engine
        engine.counts.snapshots_failed += 1
        self._failing = True
        self._not_before = engine.runtime.monotonic() + self._room_retry_s
        log.error("no room for a snapshot, again in %.0f s: %s", self._room_retry_s, error)
        self._room_retry_s = min(ROOM_RETRY_MAX_S, 2 * self._room_retry_s)
        self.space.no_room(error)

    def put_off(self, error: OSError) -> None:
        """A snapshot, written or received, found no file descriptor: try later."""
        engine = self._engine
        engine.counts.snapshots_failed += 1
        self._failing = True
        self._not_before = engine.runtime.monotonic() + ROOM_RETRY_MIN_S
        engine.lacks_descriptors("a snapshot", error)

    async def _write_slices(self, writer: SnapshotWriter, frozen: Frozen, begun: _Begun) -> None:
        """Slice by slice, as the pace says; not faster than the limits on average."""
        engine, runtime = self._engine, self._engine.runtime
        bytes_per_s = engine.limits.snapshot_write_bytes_per_s
        pace = Pace(engine.limits.snapshot_loop_percent / 100)
        began, total, some, size, turn = runtime.monotonic(), 0, [], 0, 0
        resumed = began
        for chunk in frozen.slices(SLICE_ROWS):
            ended = runtime.monotonic()
            slice_s = ended - resumed
            some.append(chunk)
            size += len(chunk)
            turn += len(chunk)
            if size >= WRITE_BYTES:
                await runtime.offload_bulk(writer.write, *some)
                total += size
                some, size, turn = [], 0, 0
                self.space.check(total)
                ahead_s = total / bytes_per_s - (runtime.monotonic() - began)
                if ahead_s > AHEAD_S_MAX:
                    until = runtime.monotonic() + ahead_s
                    await self._gap(until, until)
            wait = pace.after(slice_s, ended, engine.applied, self._log_filled(begun))
            if wait is NEXT_TURN:
                if turn >= TURN_BYTES:
                    turn = 0
                    await runtime.sleep(0)
            elif wait is not AT_ONCE:
                turn = 0
                await self._gap(*wait)
            if engine.stopped:
                raise _GivenUp
            resumed = runtime.monotonic()
        self.space.check(total + size)
        if some:
            await runtime.offload_bulk(writer.write, *some)

    async def _gap(self, earliest: float, latest: float) -> None:
        """Return at the first gap from `earliest` on, or at `latest`; at once when it stops."""
        runtime = self._engine.runtime
        if self._engine.stopped:
            return
        self._gap_from, self._waiting = earliest, runtime.future()
        alarm = runtime.call_later(latest - runtime.monotonic(), self._resume)
        try:
            await self._waiting
        finally:
            alarm.cancel()

    def _resume(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def gap(self, now: float) -> None:
        """The engine has nothing to do until somebody else has done something."""
        if now >= self._gap_from:
            self._resume()

    def withhold(self) -> None:
        """Send no snapshot to a follower any more, under this leadership or a later one.

        A transfer under way ends. The follower lacks entries until another core leads.
        """
        self.withheld = True
        if self._engine.leading is not None:
            self._engine.leading.abort_snapshots()

    # -- the newest snapshot turns out to be damaged when it is to be sent

    def verified(self) -> None:
        self._damaged_in_a_row = 0

    def damaged(self) -> int:
        """Note a damaged file; how many there were since the last one that was whole.

        One that could not be replaced for lack of room does not count again.
        """
        if not self.space.alarm:
            self._damaged_in_a_row += 1
        self._engine.counts.snapshots_damaged += 1
        return self._damaged_in_a_row

    def _tail_begins(self, index: int) -> int:
        """Behind which entry the log's tail begins that is kept for slow followers."""
        wal, limits = self._engine.wal, self._engine.limits
        base = index - limits.log_tail_entries
        total = 0
        for entry in reversed(wal.entries(max(base + 1, wal.first_index), index)):
            total += len(entry.payload)
            if total > limits.log_tail_bytes:
                return max(base, entry.index)
        return base

    def installed(self, snapshot: Snapshot) -> None:
        """A received snapshot is in place."""
        self._installed(self._begun(snapshot.meta.index))

    def _installed(self, begun: _Begun) -> None:
        """A snapshot is in place: the log may forget what it covers."""
        engine, index = self._engine, begun.at
        self._last = begun
        self._failing, self._not_before, self._room_retry_s = False, 0.0, ROOM_RETRY_MIN_S
        self.space.found()
        # Rule 25: who is installing a snapshot now needs what lies behind it.
        needed = [self._tail_begins(index), *self.fed()]
        if engine.leading is not None:
            needed += engine.leading.in_transit()
        base = min(needed)
        if base > engine.wal.base_index:
            term = engine.wal.term_at(base)
            assert term is not None
            engine.wal.compact(base, term)
        log.info("snapshot at index %d, log from %d", index, engine.wal.first_index)
        engine.kick()

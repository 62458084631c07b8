"""When snapshots are written, and what the log forgets afterwards.

A snapshot is a copy-on-write view of the state, walked in short slices on the loop and written by
a thread of its own, so that neither the loop nor the log's disk thread waits for it. The log keeps
a tail behind the snapshot: a follower that is only a little late needs no snapshot. The base of
the log therefore lies at or below the newest snapshot, never above (recovery checks it).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from raftkv.errors import DiskFailed, NodeFault

from .membership import encode
from .snapshot import Snapshot, SnapshotMeta, SnapshotStore

if TYPE_CHECKING:
    from .engine import Engine, Frozen

__all__ = ["Snapshotting"]

log = logging.getLogger("raftkv.raft")

# Rows per slice: a slice of this many small rows is encoded in about a millisecond.
SLICE_ROWS = 500


class Snapshotting:
    """Writes snapshots of one node and compacts its log."""

    def __init__(self, store: SnapshotStore, cluster_id: str = "") -> None:
        self.store = store
        self.cluster_id = cluster_id
        self.last_index = 0
        self._bytes_at_last = 0
        self._running = False
        self._engine: Engine

    def attach(self, engine: Engine) -> None:
        self._engine = engine
        latest = self.store.latest()
        self.last_index = latest.meta.index if latest is not None else 1
        self._bytes_at_last = engine.wal.bytes_total

    def tick(self) -> None:
        """Start a snapshot if the log behind the last one has grown over a limit."""
        engine = self._engine
        limits = engine.limits
        entries = engine.applied - self.last_index
        if self._running or entries <= 0:
            return
        grown = engine.wal.bytes_total - self._bytes_at_last
        if entries > limits.snapshot_log_entries or grown > limits.snapshot_log_bytes:
            self.begin()

    def begin(self) -> None:
        """Write a snapshot of the applied state now, unless one is being written."""
        if self._running:
            return
        engine = self._engine
        self._running = True
        index = engine.applied
        term = engine.wal.term_at(index)
        assert term is not None, (index, engine.wal.base_index)
        meta = SnapshotMeta(
            index=index,
            term=term,
            configuration=encode(engine.configurations.at(index)),
            cluster_id=self.cluster_id,
        )
        self._bytes_at_last = engine.wal.bytes_total
        engine.runtime.spawn(self._write(meta, engine.application.freeze()), "snapshot")

    async def _write(self, meta: SnapshotMeta, frozen: Frozen) -> None:
        engine, runtime = self._engine, self._engine.runtime
        try:
            writer = await runtime.offload_bulk(self.store.writer, meta)
            try:
                for chunk in frozen.slices(SLICE_ROWS):
                    await runtime.offload_bulk(writer.write, chunk)
            except BaseException:
                await runtime.offload_bulk(writer.abort)
                raise
            snapshot = await runtime.offload_bulk(writer.commit)
        except OSError as error:
            engine.stop_with(
                DiskFailed(
                    f"writing a snapshot failed: {error}. Free or replace the disk, then start "
                    f"the node again"
                )
            )
            return
        except NodeFault as fault:
            engine.stop_with(fault)
            return
        finally:
            frozen.close()
            self._running = False
        if not engine.stopped and snapshot.meta.index > self.last_index:
            self.installed(snapshot)

    def installed(self, snapshot: Snapshot) -> None:
        """A snapshot is in place, written here or received: the log may forget what it covers."""
        engine = self._engine
        index = snapshot.meta.index
        self.last_index = index
        self._bytes_at_last = engine.wal.bytes_total
        base = index - engine.limits.log_tail_entries
        if engine.leading is not None:
            # Rule 25: who is installing a snapshot now needs what lies behind it.
            base = min([base, *engine.leading.in_transit()])
        if base > engine.wal.base_index:
            term = engine.wal.term_at(base)
            assert term is not None
            engine.wal.compact(base, term)
        log.info("snapshot at index %d, log from %d", index, engine.wal.first_index)
        engine.kick()

"""A leader's snapshots on their way to followers that are too far behind (rules 7 and 25).

Rules of this file:
1. The loop reads no file: chunks are read in the bulk thread, one at a time for each follower.
2. At most `snapshot_inflight_bytes_max` are on their way to one follower, at most
   `snapshot_send_bytes_per_s` leave for it: heartbeats share the stream and must not wait behind
   more than that.
3. A file is verified as a whole before its first byte is sent. A damaged one is never sent: a new
   snapshot takes its place; if that is damaged as well, time after time, the node stops itself.
4. The receiver says which offset it wants next. The first chunk goes alone: the answer tells how
   much the receiver has kept from before a reconnect, and the transfer resumes there.

Streams lose nothing without breaking. Where single messages can be lost all the same, an answer
that stays out for an election time-out makes the sender go back to what was acknowledged last.
The pauses grow up to SILENT_MAX_S while none comes: the receiver may have no room for it.

A receiver that refuses a complete file (offset 0 after all of it) gets it again, but later each
time: either this node's file has been damaged since (it is verified again), or the other one's disk
is bad.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from typing import TYPE_CHECKING, Any, Final

from raftkv.descriptors import lacks_descriptors
from raftkv.errors import DamagedSnapshot

from . import wire

if TYPE_CHECKING:
    from .engine import Engine
    from .progress import Progress
    from .snapshot import Snapshot

__all__ = ["Sending"]

log = logging.getLogger("raftkv.raft")

# After a refused file or a damaged one: the pause before the next attempt, doubled each time. The
# shortest is about what a small snapshot takes, the longest what an operator would wait for.
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
# A receiver without room for the snapshot does not answer (installing.py). So what is repeated is
# repeated later each time, after so many attempts that a lost message needs no longer wait.
PATIENT_REPEATS: Final = 2
SILENT_MAX_S: Final = 15.0
# How far sending may run ahead of its rate before it waits: a chunk takes 4 ms at the default rate.
AHEAD_S_MAX: Final = 0.02
# So many damaged files of its own in a row, each written anew, and the node stops itself.
DAMAGED_MAX: Final = 3


class Transfer:
    """A snapshot on its way to one follower."""

    def __init__(self, index: int) -> None:
        self.index = index  # of the snapshot; of the newest one, until the file is open
        self.snapshot: Snapshot | None = None
        self.identity = ""
        self.acked = 0
        self.next = 0
        self.answered = False  # since it began: whether the window is open
        self.reading = False
        self.moved_at = 0.0
        # Times in a row that it was repeated without an answer.
        self.unanswered = 0
        self.send_at = 0.0
        self.retries = 0

    def back_to(self, offset: int) -> None:
        self.acked = self.next = offset


class Sending:
    """The transfers of one leadership."""

    def __init__(self, engine: Engine, patience_s: float) -> None:
        self._engine = engine
        self._patience_s = patience_s
        self._transfers: dict[str, Transfer] = {}
        self._stopped = False

    def indexes(self) -> dict[str, int]:
        """Which snapshot is on its way to whom."""
        return {peer: transfer.index for peer, transfer in self._transfers.items()}

    def drop(self, peer: str) -> None:
        self._transfers.pop(peer, None)

    def stop(self) -> None:
        self._stopped = True
        self._transfers.clear()

    def start(self, peer: str, progress: Progress) -> bool:
        """The entries that `peer` needs are gone: send it the newest snapshot.

        False if this node withholds its snapshots, because its state is corrupt.
        """
        if self._engine.snapshotting.withheld:
            return False
        newest = self._engine.snapshotting.store.latest()
        assert newest is not None, "the log was compacted without a snapshot"
        transfer = self._transfers[peer] = Transfer(newest.meta.index)
        progress.needs_snapshot(newest.meta.index)
        self._open(peer, transfer, progress)
        return True

    # -- the file

    def _open(self, peer: str, transfer: Transfer, progress: Progress) -> None:
        store = self._engine.snapshotting.store
        self._read(peer, transfer, _opened, store, then=lambda s: self._ready(peer, s, progress))

    def _ready(self, peer: str, snapshot: Snapshot, progress: Progress) -> None:
        """The file is open and whole: it is sent, even if a newer one replaces it."""
        transfer = self._transfers[peer]
        self._engine.snapshotting.verified()
        transfer.snapshot, transfer.identity = snapshot, snapshot.id
        transfer.index = snapshot.meta.index
        progress.needs_snapshot(transfer.index)
        transfer.back_to(0)
        transfer.answered = False
        self._pump(peer, transfer)

    def _read(
        self, peer: str, transfer: Transfer, function: Any, *arguments: Any, then: Any
    ) -> None:
        """Run something in the bulk thread for this transfer; `then`, if it still goes on."""
        engine = self._engine
        transfer.reading = True
        transfer.moved_at = engine.runtime.monotonic()

        def done(future: asyncio.Future[Any]) -> None:
            transfer.reading = False
            error = None if future.cancelled() else future.exception()
            if self._stopped or engine.stopped or self._transfers.get(peer) is not transfer:
                return
            if error is None:
                then(future.result())
            elif isinstance(error, DamagedSnapshot):
                self._damaged(peer, transfer, error)
            elif lacks_descriptors(error):
                engine.lacks_descriptors("sending a snapshot", error)
                self._retry_later(peer, transfer)
            else:
                engine.failed(error)

        engine.runtime.offload_bulk(function, *arguments).add_done_callback(done)

    def _damaged(self, peer: str, transfer: Transfer, error: DamagedSnapshot) -> None:
        log.error("the snapshot at index %d cannot be sent: %s", transfer.index, error)
        engine = self._engine
        if engine.snapshotting.damaged() >= DAMAGED_MAX:
            engine.failed(error)
            return
        engine.snapshotting.begin()
        self._retry_later(peer, transfer)

    def _retry_later(self, peer: str, transfer: Transfer) -> None:
        transfer.snapshot = None
        delay_s = min(RETRY_MAX_S, RETRY_MIN_S * 2**transfer.retries)
        transfer.retries += 1
        self._engine.runtime.call_later(delay_s, self._retry, peer, transfer)

    def _retry(self, peer: str, transfer: Transfer) -> None:
        leading = self._engine.leading
        if self._transfers.get(peer) is transfer and leading is not None and not self._stopped:
            self._open(peer, transfer, leading.progress_of(peer))

    # -- chunks

    def _pump(self, peer: str, transfer: Transfer) -> None:
        """Send what the window and the rate allow, a chunk at a time."""
        engine, snapshot = self._engine, transfer.snapshot
        if snapshot is None or transfer.reading or transfer.next >= snapshot.size_bytes:
            return
        limits = engine.limits
        unacked = transfer.next - transfer.acked
        room = limits.snapshot_inflight_bytes_max - unacked
        if unacked and (not transfer.answered or room < limits.snapshot_chunk_bytes):
            return
        wait_s = transfer.send_at - engine.runtime.monotonic()
        if wait_s > AHEAD_S_MAX:
            transfer.reading = True
            engine.runtime.call_later(wait_s, self._waited, peer, transfer)
            return
        offset = transfer.next
        self._read(
            peer,
            transfer,
            snapshot.read,
            offset,
            limits.snapshot_chunk_bytes,
            then=lambda data: self._send(peer, transfer, offset, data),
        )

    def _waited(self, peer: str, transfer: Transfer) -> None:
        transfer.reading = False
        if self._transfers.get(peer) is transfer and not self._stopped:
            self._pump(peer, transfer)

    def _send(self, peer: str, transfer: Transfer, offset: int, data: bytes) -> None:
        engine, snapshot = self._engine, transfer.snapshot
        if snapshot is None:
            return
        chunk = wire.SnapshotChunk(
            engine.term,
            transfer.identity,
            snapshot.meta.index,
            snapshot.meta.term,
            snapshot.size_bytes,
            offset,
            zlib.crc32(data),
            data,
        )
        engine.send_now(peer, wire.encode(chunk))
        engine.counts.snapshot_sent_bytes += len(data)
        now = engine.runtime.monotonic()
        transfer.send_at = (
            max(now, transfer.send_at) + len(data) / engine.limits.snapshot_send_bytes_per_s
        )
        if transfer.next == offset:
            transfer.next = offset + len(data)
        self._pump(peer, transfer)

    # -- answers

    def on_reply(self, peer: str, message: wire.SnapshotReply, now: float) -> bool:
        """Whether the follower has taken the snapshot over."""
        transfer = self._transfers.get(peer)
        if transfer is None or transfer.identity != message.snapshot_id:
            return False
        if message.done:
            del self._transfers[peer]
            self._engine.counts.snapshots_sent += 1
            return True
        snapshot = transfer.snapshot
        if snapshot is None or message.offset > snapshot.size_bytes:
            return False
        transfer.answered = True
        transfer.unanswered = 0
        if message.offset == 0 and transfer.next >= snapshot.size_bytes:
            log.warning("%s refuses the snapshot at index %d as damaged", peer, transfer.index)
            self._retry_later(peer, transfer)
            return False
        if message.offset != transfer.acked:
            transfer.moved_at = now
            ahead = message.offset > transfer.acked
            transfer.acked = message.offset
            if not ahead or transfer.next < message.offset:
                transfer.next = message.offset
        self._pump(peer, transfer)
        return False

    def _awaits_s(self, transfer: Transfer) -> float:
        """How long an answer is awaited: after some repeats twice as long each time."""
        doubled = self._patience_s * 2.0 ** max(0, transfer.unanswered - PATIENT_REPEATS)
        return max(self._patience_s, min(SILENT_MAX_S, doubled))

    def tick(self, now: float) -> None:
        """Repeat what has stayed without an answer for too long."""
        for peer, transfer in list(self._transfers.items()):
            snapshot = transfer.snapshot
            patience_s = self._awaits_s(transfer)
            if snapshot is None or transfer.reading or now - transfer.moved_at < patience_s:
                continue
            transfer.moved_at = now
            transfer.unanswered += 1
            if transfer.acked < snapshot.size_bytes:
                transfer.next = transfer.acked
                self._pump(peer, transfer)
            else:
                # All of it is there and being taken over; was the answer lost? An empty chunk asks.
                self._send(peer, transfer, snapshot.size_bytes, b"")


def _opened(store: Any) -> Snapshot:
    """In the bulk thread: the newest snapshot, its file open and verified."""
    snapshot: Snapshot | None = store.opened()
    assert snapshot is not None, "the log was compacted without a snapshot"
    snapshot.verify()
    return snapshot

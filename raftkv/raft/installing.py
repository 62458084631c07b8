"""Receiving a snapshot and taking it over, while the node goes on answering (rule 7).

    chunks -> file -> validated, renamed -> read back chunk by chunk, beside the state -> swapped

Rules of this file:
1. Nothing here stops the loop for longer than one chunk takes: files are written, synced, validated
   and read in the bulk thread, and a chunk of the state is decoded on the loop, one at a time. The
   engine's ticks, its heartbeat answers and votes go on meanwhile; local reads see the old state.
2. The swap happens inside a tick, at once: state, log, configuration, commit and applied index.
   Only then, and once the log's new base is durable, S is acknowledged, to whoever asked for it
   last.
3. State never goes back. Before each step the commit index is looked at: entries may have come by
   another way (a new leader whose log reaches further back). Then the file stays, what was read is
   discarded, and S is acknowledged as what it is: committed.
4. A file whose configuration contradicts what this node's log holds committed (agreement.py) is
   not taken over: the node stops. One of another cluster is dropped, and its link is closed.
5. A file that does not fit beside the reserve of the disk (free_space.py) is given up before it
   fills the disk. Its chunks are passed over for a while; then it begins again.
6. What is being taken over is taken over to its end. If the file of a newer snapshot arrives
   meanwhile (another leader's), it waits; so there is always progress, however often leaders
   change.

A crash between any two steps is harmless: a file without its final name is removed at the start;
one with it is what recovery begins with.

Chunks are handled one after the other, in the order of their arrival. What arrives beyond
CHUNKS_WAITING_MAX is dropped: a leader never has so much in flight, and what is lost is sent again.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from raftkv import collector
from raftkv.descriptors import RETRY_S, lacks_descriptors
from raftkv.errors import DamagedSnapshot, WrongCluster

from . import wire
from .agreement import Held, require_agreement
from .free_space import is_no_room
from .membership import decode

if TYPE_CHECKING:
    import asyncio

    from raftkv.runtime import Runtime

    from .engine import Engine, Loading
    from .snapshot import Snapshot, SnapshotMeta

__all__ = ["Installing", "load"]

log = logging.getLogger("raftkv.raft")

CHUNKS_WAITING_MAX: Final = 64
# Small chunks are read together up to this size: a step takes a millisecond or two all the same.
READ_BYTES: Final = 64 * 1024
# The collector forgets what has been built so often: what it has not forgotten it looks through.
SETTLE_TURNS: Final = 32


class _Asked(NamedTuple):
    """Who is to be told when a snapshot has been taken over."""

    sender: str
    message: wire.SnapshotChunk


class Installing:
    """One node's part as the receiver of snapshots."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._chunks: deque[_Asked] = deque()
        self._writing = False
        self._asked: dict[str, _Asked] = {}
        # Validated files: the one that is being read, the newest that waits for its turn.
        self._current: Snapshot | None = None
        self._next: Snapshot | None = None
        self._loaded: Loading | None = None

    # -- receiving

    def take(self, sender: str, message: wire.SnapshotChunk) -> None:
        """A chunk from the leader of this term."""
        if message.index <= self._engine.commit:
            # An older snapshot must not rewind anything: only say what is known anyway.
            self._answer(sender, message, message.size_bytes, done=True)
        elif self._engine.snapshotting.waits:
            return  # no room for it (free_space.py); the leader sends it again after a while
        elif len(self._chunks) < CHUNKS_WAITING_MAX:
            self._chunks.append(_Asked(sender, message))
            self._write_next()

    def _write_next(self) -> None:
        while self._chunks and not self._writing and not self._engine.stopped:
            asked = self._chunks.popleft()
            sender, message = asked
            if message.snapshot_id in self._asked:
                # All of it is here already. Its last sender is answered in the end.
                self._asked[message.snapshot_id] = asked
                self._answer(sender, message, message.size_bytes, done=False)
                continue
            self._writing = True
            accept = partial(_accept, self._engine.snapshotting.cluster_id, self._held())
            future = self._engine.runtime.offload_bulk(self._write, message, accept)
            future.add_done_callback(partial(self._written, asked))

    def _held(self) -> Held:
        """What this node's log states about the members where it is committed."""
        engine, known = self._engine, self._engine.configurations
        commit = engine.commit
        return Held(commit, known.at(commit), known.since(commit), known.base_index)

    def _write(
        self, message: wire.SnapshotChunk, accept: Callable[[SnapshotMeta], None]
    ) -> int | Snapshot:
        """In the bulk thread: the offset that is wanted next, or the validated snapshot.

        Raises Diverged for one that contradicts what this node holds committed. Nothing of it is
        left then, so that a restart does not take it over either.
        """
        store = self._engine.snapshotting.store
        receiver = store.receiver(message.snapshot_id, message.size_bytes)
        try:
            space = self._engine.snapshotting.space
            space.require_room(message.size_bytes - receiver.offset)
            receiver.add(message.offset, message.data, message.crc)
        except OSError:
            with contextlib.suppress(OSError):
                store.give_up_received()
            raise
        if receiver.offset < receiver.size_bytes:
            return receiver.offset
        try:
            return receiver.finish(accept)
        except DamagedSnapshot as error:
            # That says nothing against this node's disk: the sender begins anew.
            log.warning("a received snapshot is dropped: %s", error.reason)
            self._engine.counts.snapshots_damaged += 1
            return 0

    def _written(self, asked: _Asked, future: asyncio.Future[Any]) -> None:
        self._writing = False
        engine = self._engine
        engine.counts.snapshot_received_bytes += len(asked.message.data)
        if engine.stopped or future.cancelled():
            return
        error = future.exception()
        if isinstance(error, OSError) and is_no_room(error):
            # What is here of it is gone, so what waits to be added is of no use.
            self._chunks.clear()
            engine.snapshotting.space.refused(asked.message.index, asked.message.size_bytes)
            engine.snapshotting.no_room(error)
            return
        if isinstance(error, OSError) and lacks_descriptors(error):
            self._chunks.clear()
            engine.snapshotting.put_off(error)
            return
        if isinstance(error, WrongCluster):
            log.warning("a snapshot of %s is dropped: %s", asked.sender, error)
            link = engine.links.get(asked.sender)
            if link is not None:
                link.close()
            self._write_next()
            return
        if error is not None:
            engine.failed(error)
            return
        result = future.result()
        if isinstance(result, int):
            self._answer(*asked, result, done=False)
        else:
            self._received(*asked, result)
        self._write_next()
        engine.kick()

    def _received(self, sender: str, message: wire.SnapshotChunk, snapshot: Snapshot) -> None:
        """A file is whole and in place."""
        if snapshot.meta.index <= self._engine.commit:
            self._answer(sender, message, message.size_bytes, done=True)
            return
        self._asked[message.snapshot_id] = _Asked(sender, message)
        if self._current is None:
            self._begin(snapshot)
        elif self._next is None or self._next.meta.index < snapshot.meta.index:
            self._next = snapshot

    # -- taking over

    def _begin(self, snapshot: Snapshot) -> None:
        self._current = snapshot
        self._engine.runtime.spawn(self._load(snapshot), "read a received snapshot")

    async def _load(self, snapshot: Snapshot) -> None:
        engine = self._engine
        loading = engine.application.loading()

        try:
            if await load(engine.runtime, snapshot, loading, lambda: self._is_news(snapshot)):
                self._loaded = loading
                engine.kick()
                return
            loading.discard()
        except FileNotFoundError:
            # The file of a newer snapshot has taken its place; that one is taken over instead.
            loading.discard()
            self._asked.pop(snapshot.id, None)
        except Exception as error:
            # Also what is no fault of the file: without it this node would never get on.
            loading.discard()
            if lacks_descriptors(error):
                engine.lacks_descriptors("a received snapshot", error)
                await engine.runtime.sleep(RETRY_S)
                self._begin(snapshot)
                return
            engine.failed(error)
        self._current = None
        self._begin_next()
        engine.kick()

    def _is_news(self, snapshot: Snapshot) -> bool:
        """Whether there is still a reason to take it over."""
        return not self._engine.stopped and snapshot.meta.index > self._engine.commit

    def _begin_next(self) -> None:
        snapshot, self._next = self._next, None
        if snapshot is not None and not self._engine.stopped:
            self._begin(snapshot)

    def tick(self) -> None:
        """Swap, if a snapshot has been read and is still news; answer whoever waits for it."""
        engine, snapshot, loading = self._engine, self._current, self._loaded
        # In the middle of an entry the state is replaced after its end, a few ticks later.
        if snapshot is not None and loading is not None and not engine.applying.busy:
            news = self._is_news(snapshot)
            if news and engine.leading is not None:
                # Elected meanwhile: its log holds all that is committed, and will say so soon.
                return
            self._current = self._loaded = None
            if news:
                self._install(snapshot, loading)
            else:
                loading.discard()
            self._begin_next()
        for identity, (sender, message) in list(self._asked.items()):
            if message.index <= engine.commit:
                del self._asked[identity]
                self._answer(sender, message, message.size_bytes, done=True)

    def _install(self, snapshot: Snapshot, loading: Loading) -> None:
        """State, configuration and log follow the file."""
        engine, wal, meta = self._engine, self._engine.wal, snapshot.meta
        require_agreement(self._held(), meta)  # more may be committed than when it arrived
        loading.adopt(meta.index)
        keeps = wal.term_at(meta.index) == meta.term
        if not keeps:
            wal.rebase(meta.index, meta.term)
        configuration, since = decode(meta.configuration), meta.configuration_index
        engine.configurations.rebase(meta.index, configuration, since, keep_behind=keeps)
        engine.installed(meta.index)
        engine.counts.snapshots_installed += 1
        engine.configuration_changed()
        engine.snapshotting.installed(snapshot)
        engine.application.progressed()

    def _answer(self, sender: str, message: wire.SnapshotChunk, offset: int, *, done: bool) -> None:
        engine = self._engine
        engine.send_held(
            sender,
            wire.SnapshotReply(engine.term, message.snapshot_id, message.index, offset, done),
        )


def _accept(cluster_id: str, held: Held, meta: SnapshotMeta) -> None:
    """Whether to take a whole file over. Raises WrongCluster or Diverged."""
    if cluster_id and meta.cluster_id and meta.cluster_id != cluster_id:
        raise WrongCluster(f"it is of the cluster {meta.cluster_id}, this node of {cluster_id}")
    require_agreement(held, meta)


class _TakesChunks(Protocol):
    def add(self, chunk: bytes) -> None: ...


async def load(
    runtime: Runtime, snapshot: Snapshot, state: _TakesChunks, wanted: Callable[[], bool]
) -> bool:
    """Read a snapshot beside the state, a chunk at a time. False if it was not wanted any more.

    Raises DamagedSnapshot, MissingPlugin, OSError.
    """
    chunks = snapshot.chunks()
    turns = 0
    while wanted():
        # At the first turn: the log that a starting node has just read.
        if turns % SETTLE_TURNS == 0:
            collector.settle()
        turns += 1
        some = await runtime.offload_bulk(_read_some, chunks)
        if not some:
            collector.settle()
            return wanted()
        for chunk in some:
            state.add(chunk)
    return False


def _read_some(chunks: Iterator[bytes]) -> list[bytes]:
    """In the bulk thread: the next chunks, together about READ_BYTES; none after the last."""
    found, size = [], 0
    for chunk in chunks:
        found.append(chunk)
        size += len(chunk)
        if size >= READ_BYTES:
            break
    return found

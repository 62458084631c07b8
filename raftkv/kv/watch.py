"""A watch, as whoever watches holds it.

    async with node.kv.watch(prefix=b"jobs/", start_revision=found.revision + 1) as watch:
        async for batch in watch:
            for event in batch.events: ...

It is a buffer with two ends: the hub of its node (watch_hub.py) puts whole revisions in, its user
takes batches out. There are very many watches and most of them are idle, so an idle one is small:
slots, no queue until something is in it, no timer and no task of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import msgspec

from raftkv.errors import WatchCancelled

from .commands import Event

if TYPE_CHECKING:
    from .watch_hub import WatchHub

__all__ = ["BATCH_BYTES_MAX", "BATCH_EVENTS_MAX", "Entry", "Watch", "WatchBatch", "entry_of"]

#: Keys and values in one batch, and events; a single revision may exceed it, for it is never cut.
#: A batch is handled in one go by whoever gets it, and becomes one message at the network door.
BATCH_BYTES_MAX: Final = 1 << 20
BATCH_EVENTS_MAX: Final = 1000

#: What a watch wants to see; the bits of `Watch._wants`.
PREV, NO_PUT, NO_DELETE = 1, 2, 4

#: Where a watch stands; see watch_hub.py.
UNBORN, BEHIND, STALLED, LIVE, ENDED = range(5)

EndReason = Literal["compacted", "slow", "given_up", "stopped"]

#: One revision as a watch gets it: the revision, the events, their bytes. Watches share them.
Entry = tuple[int, tuple[Event, ...], int]


class WatchBatch(msgspec.Struct, frozen=True):
    """All events of one or more whole revisions, in order; never a part of a revision.

    Everything up to `revision` was given: whoever comes back may ask for `revision + 1`. Without
    events it is a progress mark, which says just that.
    """

    revision: int
    events: tuple[Event, ...]


class Progress:
    """The marks that a watch gets by itself while it is idle."""

    __slots__ = ("busy", "period_s", "timer")

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self.busy = False
        self.timer: Any = None


class Watch:
    """What happens to a key or a range of keys, from one revision on. Made by `kv.watch`.

    An async iterator of `WatchBatch`, for one consumer, and an async context manager that closes
    it. It raises `WatchCancelled` when it has ended for another reason than `close`; what was in
    the buffer then is not given, and `resume_revision` counts it as not given.

    `key` and `range_end` are what is watched, in etcd's notation. `on_ready`, if it is set, is
    called when `take` has something to say and nobody waits in the iterator: for users that serve
    many watches from one task. It must be short and raise nothing.
    """

    __slots__ = (
        "_buffered_bytes",
        "_buffered_events",
        "_created",
        "_end",
        "_given",
        "_hub",
        "_mark_at",
        "_next",
        "_progress",
        "_queue",
        "_state",
        "_waiter",
        "_wants",
        "key",
        "on_ready",
        "range_end",
    )

    def __init__(self, hub: WatchHub, key: bytes, range_end: bytes, wants: int) -> None:
        self.key = key
        self.range_end = range_end
        self.on_ready: Callable[[], None] | None = None
        self._hub = hub
        self._wants = wants
        self._state = UNBORN
        # The first revision that the hub may still put in.
        self._next = 0
        # The last revision that the user has been given; all before it were, too.
        self._given = 0
        self._queue: list[Entry] | None = None
        self._buffered_events = self._buffered_bytes = 0
        # A mark is due once everything up to this revision was given; -1: none is.
        self._mark_at = -1
        self._progress: Progress | None = None
        self._waiter: asyncio.Future[None] | None = None
        # The revision of the keyspace when the watch came to be, or who waits for that.
        self._created: int | asyncio.Future[int] | None = None
        self._end: tuple[EndReason, int] | None = None

    # The user's end

    async def created(self) -> int:
        """The keyspace's revision on this node when the watch began, etcd's header revision.

        With `start_revision` 0 the watch gives every change of a later revision. Comes at once,
        unless the node is only starting. Raises WatchCancelled if the watch ended before that.
        """
        if isinstance(self._created, int):
            return self._created
        if self._end is not None:
            raise self._cancelled(self._end)
        if self._created is None:
            self._created = self._hub.future()
        # Shielded: several may wait, and one that is cancelled must not take it from the others.
        revision: int = await asyncio.shield(self._created)
        return revision

    @property
    def revision(self) -> int:
        """Everything up to here was given; watch again from the next to go on."""
        if self._state == LIVE and self._queue is None:
            return max(self._given, self._hub.revision)
        return self._given

    @property
    def cancelled(self) -> WatchCancelled | None:
        """How the watch has ended; None while it has not, or if its user has closed it."""
        return None if self._end is None else self._cancelled(self._end)

    @property
    def buffered(self) -> int:
        """Events that wait to be taken."""
        return self._buffered_events

    def request_progress(self) -> None:
        """Ask for a mark once everything that this node has applied by now was given."""
        self._hub.request_mark(self)

    def take(self) -> WatchBatch | None:
        """The next batch if there is one now, else None. Raises WatchCancelled."""
        if self._end is not None:
            raise self._cancelled(self._end)
        queue = self._queue
        if queue is None:
            return self._take_mark()
        if len(queue) == 1:
            self._queue = None
            self._buffered_events = self._buffered_bytes = 0
            batch = WatchBatch(queue[0][0], queue[0][1])
        else:
            batch = self._take_several(queue)
        self._given = batch.revision
        if self._progress is not None:
            self._progress.busy = True
        if self._state == STALLED:
            self._hub.drained(self)
        return batch

    def _take_several(self, queue: list[Entry]) -> WatchBatch:
        count = events_count = total_bytes = 0
        for _, events, size in queue:
            events_count += len(events)
            total_bytes += size
            if count and (total_bytes > BATCH_BYTES_MAX or events_count > BATCH_EVENTS_MAX):
                events_count -= len(events)
                total_bytes -= size
                break
            count += 1
        revision = queue[count - 1][0]
        events = tuple(event for entry in queue[:count] for event in entry[1])
        if count == len(queue):
            self._queue = None
        else:
            del queue[:count]
        self._buffered_events -= events_count
        self._buffered_bytes -= total_bytes
        return WatchBatch(revision, events)

    def _take_mark(self) -> WatchBatch | None:
        revision = self._hub.revision
        if self._mark_at < 0 or self._state != LIVE or revision < max(self._mark_at, self._given):
            return None
        self._mark_at = -1
        self._given = revision
        return WatchBatch(revision, ())

    def close(self) -> None:
        """End the watch; whoever iterates over it comes to its end. Idempotent."""
        self._hub.close(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchBatch:
        if self._waiter is not None:
            raise RuntimeError("a watch has one consumer: somebody waits for its next batch")
        while True:
            batch = self.take()
            if batch is not None:
                return batch
            if self._state == ENDED:
                raise StopAsyncIteration
            self._waiter = self._hub.future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def __aenter__(self) -> Self:
        """Wait until the watch has begun: what is changed inside the block is not missed.

        A watch that has ended raises when it is iterated.
        """
        try:
            with contextlib.suppress(WatchCancelled):
                await self.created()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # The hub's end

    def _put(self, entry: Entry, events_max: int, bytes_max: int) -> bool:
        """Take up a revision; False if the buffer has no room. An empty one takes anything."""
        queue = self._queue
        if queue is None:
            self._queue = [entry]
            self._buffered_events = len(entry[1])
            self._buffered_bytes = entry[2]
            self._next = entry[0] + 1
            # An idle watch has been given all before it: `revision` may have told so already.
            self._given = max(self._given, entry[0] - 1)
            self._wake()
            return True
        events = self._buffered_events + len(entry[1])
        size = self._buffered_bytes + entry[2]
        if events > events_max or size > bytes_max:
            return False
        queue.append(entry)
        self._buffered_events = events
        self._buffered_bytes = size
        self._next = entry[0] + 1
        return True

    def _begin(self, revision: int, start: int) -> None:
        """The watch comes to be at this revision of the keyspace."""
        self._next = start
        self._given = start - 1
        waiting, self._created = self._created, revision
        if isinstance(waiting, asyncio.Future) and not waiting.done():
            waiting.set_result(revision)

    def _finish(self, reason: EndReason | None, compact_revision: int = 0) -> None:
        """The hub has let go of it. None: its user wished it."""
        self._given = self.revision  # an idle one goes on from here, not from its last event
        self._state = ENDED
        if reason is not None:
            self._end = (reason, compact_revision)
        self._queue = None
        self._buffered_events = self._buffered_bytes = 0
        progress, self._progress = self._progress, None
        if progress is not None and progress.timer is not None:
            progress.timer.cancel()
        waiting = self._created
        if isinstance(waiting, asyncio.Future) and not waiting.done():
            ended = WatchCancelled("stopped") if self._end is None else self._cancelled(self._end)
            waiting.set_exception(ended)
            waiting.exception()  # whoever asked may have gone
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            if not waiter.done():
                waiter.set_result(None)
        elif self.on_ready is not None:
            self.on_ready()

    def _cancelled(self, end: tuple[EndReason, int]) -> WatchCancelled:
        reason, compact_revision = end
        resumable = reason in ("slow", "stopped") and self._given > 0
        return WatchCancelled(
            reason,
            resume_revision=self._given + 1 if resumable else 0,
            compact_revision=compact_revision,
        )


def entry_of(revision: int, events: tuple[Event, ...], wants: int) -> Entry | None:
    """What a watch with these wishes gets of a revision's events on its keys; None if nothing."""
    if wants & (NO_PUT | NO_DELETE):
        unwanted = (NO_PUT if wants & NO_PUT else 0, NO_DELETE if wants & NO_DELETE else 0)
        events = tuple(event for event in events if not unwanted[event.kv.version == 0])
    if not events:
        return None
    size = 0
    if wants & PREV:
        for event in events:
            size += len(event.kv.key) + len(event.kv.value)
            if event.prev is not None:
                size += len(event.prev.key) + len(event.prev.value)
    else:
        events = tuple(Event(event.kv) for event in events)
        for event in events:
            size += len(event.kv.key) + len(event.kv.value)
    return revision, events, size

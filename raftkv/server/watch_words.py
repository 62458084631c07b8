"""etcd's watch stream: many watches on one connection, requests in, answers out.

A client may create watches, cancel them and ask for progress while answers come. One reader takes
the requests, one writer sends the answers; what they share is a set of watches, those of them that
have something to say, and a short queue of finished lines.

Rules of this file
1. The line that says `created` comes before anything else of its watch, the one that says
   `canceled` is the last.
2. A line holds whole revisions: a transaction is never cut, whatever its size.
3. The header's revision of a line with events, or of a progress mark, says that everything up to it
   was given. Whoever comes back, to any node, asks for the next one.
4. Nothing here waits for a client with data in hand. A line is taken from a watch when the one
   before has been handed to the connection, and a client that does not read leaves the rest where
   it is: in the watch's buffer, which is bounded, and whose overrun ends the watch ("slow") with
   the revision to go on from in `cancel_reason`.
5. A client that sends requests and reads no answers is not read any further.
6. A line with events is taken only when there is room for it beside the answers of all connections
   (outgoing.py), and in a turn of the loop that has room for the work (work_budget.py): thousands
   may watch one key. One with the beginning or end of a watch is small, and does not wait.
7. Watches live as long as their streams, and their keys with them: all of them together are bounded
   by `http.watch_bytes_max`. A watch that does not fit is refused as one too many on a stream is.

A progress request is answered with `watch_id` -1 once every watch of the stream was given what this
node had applied when it was asked. (etcd 3.4 answers at once, and may say so too early.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

from raftkv.config import HttpLimits
from raftkv.errors import Stopped, WatchCancelled
from raftkv.kv import FROM_KEY, Watch, WatchBatch
from raftkv.kv.watch import BATCH_EVENTS_MAX

from . import messages
from .answers import BadRequest
from .encoding import Headers, events_json
from .ports import DoorNode
from .work_units import REQUEST_UNITS

__all__ = ["PROGRESS_S", "WATCHES_MAX", "WATCH_BYTES", "WatchBytes", "WatchStream"]

# Marks for watches that asked for progress: often enough to tell an idle stream from a dead one.
PROGRESS_S: Final = 10.0
# Watches on one stream.
WATCHES_MAX: Final = 1000
#: What a watch takes beside its keys: 820 bytes in the hub with a range of its own, and its place
#: in the stream. What waits in its buffer is bounded there.
WATCH_BYTES: Final = 1024
# Finished lines that wait for the connection before requests are read no further.
LINES_MAX: Final = 100

_NO_ID: Final = -1


class WatchBytes:
    """What the watches of all streams of one HTTP API hold."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        #: Bytes that are held now.
        self.bytes = 0
        #: Watches that were refused.
        self.refused = 0

    def add(self, size: int) -> bool:
        """Count a watch; False if it does not fit, and nothing is counted."""
        if self.bytes + size > self.bytes_max:
            self.refused += 1
            return False
        self.bytes += size
        return True

    def remove(self, size: int) -> None:
        """A watch has ended."""
        self.bytes -= size


def _size(key: bytes, end: bytes) -> int:
    return WATCH_BYTES + len(key) + len(end)


async def _always() -> None:
    """There is room for any line."""


class WatchStream:
    """One stream; `answers` gives its lines, and closes the watches when it is closed.

    `room` is awaited before a line with events is taken. `watch_bytes` counts the watches.
    """

    def __init__(
        self,
        node: DoorNode,
        headers: Headers,
        watches_max: int = WATCHES_MAX,
        *,
        room: Callable[[], Awaitable[None]] = _always,
        watch_bytes: WatchBytes | None = None,
    ) -> None:
        self._node = node
        self._header = headers.json
        self._budget = node.kv.budget
        self._watches_max = watches_max
        self._room_for_events = room
        self._held = (
            WatchBytes(HttpLimits().watch_bytes_max) if watch_bytes is None else watch_bytes
        )
        self._requests = messages.decoder_of(messages.WatchRequest)
        self._watches: dict[int, Watch] = {}
        self._next_id = 0
        self._lines: deque[bytes] = deque()
        # Watches that have something to say, in the order in which they began to.
        self._ready: dict[int, None] = {}
        # A progress request that waits for the marks of these watches, and the lowest so far.
        self._unmarked: set[int] = set()
        self._mark = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._failure: Exception | None = None
        # Whether there was a request to create a watch, granted or not.
        self._began = False
        self._stopping = False

    @property
    def count(self) -> int:
        """The watches that are open."""
        return len(self._watches)

    async def answers(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The lines of the stream. The body of the request may end before the stream does.

        Raises BadRequest for a request that cannot be understood, after what came before it.
        """
        reader = asyncio.get_running_loop().create_task(self._read(requests), name="watch requests")
        try:
            while True:
                self._wake.clear()
                while self._lines or self._ready:
                    if not self._lines:
                        await self._budget.room(self._units())
                        await self._room_for_events()
                    if (line := self._take()) is not None:
                        yield line
                    del line  # an idle stream must not keep its last one
                if self._failure is not None:
                    raise self._failure
                if self._stopping:
                    return
                await self._wake.wait()
        finally:
            reader.cancel()
            for watch in self._watches.values():
                watch.on_ready = None
                watch.close()
                self._held.remove(_size(watch.key, watch.range_end))
            self._watches.clear()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    def stop(self) -> None:
        """The door closes: each watch is ended with the revision to go on from, then the stream."""
        self._stopping = True
        for number, watch in list(self._watches.items()):
            end = WatchCancelled("stopped", resume_revision=watch.revision + 1)
            watch.close()
            self._lines.append(self._ended(number, end))
        self._wake.set()

    # -- requests

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        try:
            async for body in requests:
                await self.obey(body)
                del body  # it counts no more when the next one is waited for
                while len(self._lines) > LINES_MAX:
                    self._room.clear()
                    await self._room.wait()
            if not self._began:
                raise BadRequest("the body must begin with a create_request")
        except Exception as error:
            self._failure = error
            self._wake.set()

    async def obey(self, body: bytes) -> None:
        """Do what one request says; what there is to answer is said by `answers`."""
        request = messages.decode(self._requests, body)
        if request.create_request is not None:
            await self._create(request.create_request)
        elif request.cancel_request is not None:
            self._cancel(request.cancel_request.watch_id)
        elif request.progress_request is not None:
            self._request_progress()

    async def _create(self, request: messages.WatchCreateRequest) -> None:
        self._began = True
        hub = self._node.kv.hub
        if hub is None:
            raise Stopped("the node was not started")
        unwanted = {
            messages.enum_value(each, messages.WATCH_FILTERS, "filters") for each in request.filters
        }
        key = request.key or b"\0"
        end = request.range_end
        if end and end != FROM_KEY and end <= key:
            self._refuse("mvcc: watcher range is empty")
            return
        if request.watch_id in self._watches and request.watch_id:
            self._refuse("mvcc: duplicate watch ID provided on the WatchStream")
            return
        if len(self._watches) >= self._watches_max:
            self._refuse(f"raftkv: a stream has at most {self._watches_max} watches: open another")
            return
        if not self._held.add(_size(key, end)):
            held = self._held
            self._refuse(
                f"raftkv: the watches of all streams hold {held.bytes} bytes (http.watch_bytes_max "
                f"= {held.bytes_max}): try another node"
            )
            return
        watch = hub.open(
            key,
            end,
            start_revision=request.start_revision,
            prev_kv=request.prev_kv,
            put=0 not in unwanted,
            delete=1 not in unwanted,
            progress_s=PROGRESS_S if request.progress_notify else 0.0,
        )
        try:
            revision = await watch.created()
        except WatchCancelled as end_of_it:
            self._held.remove(_size(key, end))
            self._refuse(_reason(end_of_it))
            return
        except BaseException:
            self._held.remove(_size(key, end))
            watch.close()
            raise
        number = request.watch_id or self._number()
        self._watches[number] = watch
        if self._unmarked:
            # The mark that is on its way must not speak for events that this one has yet to give.
            self._unmarked.add(number)
            watch.request_progress()
        self._say(revision, number, b',"created":true')
        watch.on_ready = partial(self._is_ready, number)
        self._is_ready(number)

    def _number(self) -> int:
        while self._next_id in self._watches:
            self._next_id += 1
        self._next_id += 1
        return self._next_id - 1

    def _refuse(self, reason: str) -> None:
        text = b',"created":true,"canceled":true,"cancel_reason":"%b"' % reason.encode()
        self._say(self._node.kv.revision, _NO_ID, text)

    def _cancel(self, number: int) -> None:
        watch = self._watches.get(number)
        if watch is not None:
            self._let_go(number)
            watch.close()
            self._say(self._node.kv.revision, number, b',"canceled":true')

    def _request_progress(self) -> None:
        self._unmarked = set(self._watches)
        self._mark = 0
        for watch in self._watches.values():
            watch.request_progress()
        if not self._unmarked:
            self._say(self._node.kv.revision, _NO_ID, b"")

    # -- answers

    def _is_ready(self, number: int) -> None:
        self._ready[number] = None
        self._wake.set()

    def _say(self, revision: int, number: int, fields: bytes) -> None:
        self._lines.append(self._line(revision, number, fields))
        self._wake.set()

    def _line(self, revision: int, number: int, fields: bytes) -> bytes:
        watch_id = b',"watch_id":"%d"' % number if number else b""
        return b'{"header":%b%b%b}' % (self._header(revision), watch_id, fields)

    def _units(self) -> int:
        """What the next line with events takes, about. It waits behind no large reads."""
        watch = self._watches.get(next(iter(self._ready)))
        events = 0 if watch is None else min(watch.buffered, BATCH_EVENTS_MAX)
        return REQUEST_UNITS + events

    def _take(self) -> bytes | None:
        """The next line, if there is one now."""
        while True:
            if self._lines:
                self._room.set()
                return self._lines.popleft()
            if not self._ready:
                return None
            number = next(iter(self._ready))
            del self._ready[number]
            watch = self._watches.get(number)
            line = None if watch is None else self._told(number, watch)
            if line is not None:
                return line

    def _told(self, number: int, watch: Watch) -> bytes | None:
        try:
            batch = watch.take()
        except WatchCancelled as end:
            return self._ended(number, end)
        if batch is None:
            return None
        # The others have their turn before it is asked again.
        self._ready[number] = None
        self._budget.spend(REQUEST_UNITS + len(batch.events))
        if batch.events:
            return self._line(batch.revision, number, b',"events":%b' % events_json(batch.events))
        return self._marked(number, batch)

    def _marked(self, number: int, batch: WatchBatch) -> bytes | None:
        if number not in self._unmarked:
            return self._line(batch.revision, number, b"")
        self._unmarked.discard(number)
        self._mark = min(self._mark, batch.revision) if self._mark else batch.revision
        if self._unmarked:
            return None
        return self._line(self._mark, _NO_ID, b"")

    def _ended(self, number: int, end: WatchCancelled) -> bytes:
        self._let_go(number)
        if end.compact_revision:
            # As etcd says it: without a revision, and without a reason.
            fields = b',"canceled":true,"compact_revision":"%d"' % end.compact_revision
            return self._line(0, number, fields)
        fields = b',"canceled":true,"cancel_reason":"%b"' % _reason(end).encode()
        return self._line(max(0, end.resume_revision - 1), number, fields)

    def _let_go(self, number: int) -> None:
        watch = self._watches.pop(number)
        watch.on_ready = None
        self._held.remove(_size(watch.key, watch.range_end))
        self._ready.pop(number, None)
        if number in self._unmarked:
            self._unmarked.discard(number)
            if not self._unmarked:
                self._say(self._mark or self._node.kv.revision, _NO_ID, b"")


def _reason(end: WatchCancelled) -> str:
    """`cancel_reason`: plain words without a quotation mark."""
    if end.resume_revision:
        return f"raftkv: {end.reason}: watch again from revision {end.resume_revision}"
    return f"raftkv: {end.reason}"

"""A reader of a topic: the messages of this node's copy in the order of positions, and no state.

    reader = await subs.reader("orders", start="earliest")
    while await reader.has_more():
        message = await reader.next()
    async for message in reader: ...                       # waits for what comes

Nobody waits for a reader: retention may remove what it has not read (`PositionTrimmed`). It takes
no entry of the log. It survives the lives of its node, and ends with its topic (`UnknownTopic`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from raftkv.errors import Stopped
from raftkv.plugin import Consistency, Host, View
from raftkv.validation import checked

from .counting import Counters
from .errors import PositionTrimmed
from .line import TIMEOUT_S
from .reading import Read, read_of
from .refusals import UnknownTopic
from .rows import INT_MAX, ROWS_MAX, Topic
from .views import Placed, read, read_compacted, topic_of
from .waiting import Waiting

__all__ = ["Reader", "read_some"]


def read_some(
    view: View, topic: str, first: int, limit: int, bytes_max: int, compacted: bool
) -> tuple[tuple[Read, ...], int, bool]:
    """Messages from a position on, where to go on, and whether there may be more there now."""
    row = topic_of(view, topic)
    if compacted and row.compacted:
        some = read_compacted(view, topic, first, limit, bytes_max)
        return _reads(topic, some.messages), some.next, some.more
    placed = read(view, topic, first, limit, bytes_max)
    at = placed[-1].position + 1 if placed else max(first, row.next)
    return _reads(topic, placed), at, at < row.next


def _reads(topic: str, placed: Iterable[Placed]) -> tuple[Read, ...]:
    return tuple(read_of(topic, one.position, one.stored) for one in placed)


@checked
class Reader:
    """Get one from `subs.reader(...)`. It belongs to the node's event loop, and to one task.

    `compacted`: of a compacted topic, only the last message of each key, as of when it is read.
    """

    def __init__(
        self, host: Host, waiting: Waiting, counters: Counters, topic: str, compacted: bool
    ) -> None:
        self._host = host
        self._waiting = waiting
        self._counters = counters
        self._topic = topic
        self._id = topic_of(host.view(), topic).id
        self._compacted = compacted
        self._next = 1
        self._closed = False

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def position(self) -> int:
        """Of the next message, or before it."""
        return self._next

    def seek(self, where: int | str) -> None:
        """The next message is the one at this position, or the first one after it; also "earliest"
        or "latest"."""
        row = self._row(self._host.view())
        if where == "earliest":
            self._next = 1 if self._drops_old(row) else row.first
        elif where == "latest":
            self._next = row.next
        elif isinstance(where, str) or not 1 <= where <= INT_MAX:
            raise ValueError(f'a position from 1 on, "earliest" or "latest": {where!r}')
        else:
            self._next = where

    async def has_more(
        self, *, consistency: Consistency = "linearizable", timeout_s: float = TIMEOUT_S
    ) -> bool:
        """Whether there is a next message. "linearizable": every message is counted whose
        publication was answered before this call, on whatever node. Raises ReadTimeout."""
        await self._host.barrier(consistency, timeout_s=timeout_s)
        while True:
            view = self._host.view()
            row = self._row(view)
            self._require_kept(row)
            got, at, more = read_some(view, self._topic, self._next, 1, 0, self._drops_old(row))
            if got or not more:
                return bool(got)
            self._next = at
            await self._host.runtime.sleep(0)

    async def next(self, timeout_s: float | None = None) -> Read | None:
        """The next message; None if there was none in time (None: wait for ever).

        Raises `PositionTrimmed`, `UnknownTopic`.
        """
        got = await self.read(1, wait_s=timeout_s)
        return got[0] if got else None

    async def read(
        self, count: int = 100, *, wait_s: float | None = 0.0, bytes_max: int = 0
    ) -> tuple[Read, ...]:
        """The next messages, `count` at most; waits up to `wait_s` for the first one (None: for
        ever). `bytes_max` bounds what comes beyond the first, 0: it does not."""
        if not 1 <= count <= ROWS_MAX:
            raise ValueError(f"count is 1 to {ROWS_MAX} messages")
        if not 0 <= bytes_max <= INT_MAX:
            raise ValueError("bytes_max is a number of bytes, or 0 for no limit")
        runtime = self._host.runtime
        deadline = None if wait_s is None else runtime.monotonic() + max(0.0, wait_s)
        while True:
            view = self._host.view()
            row = self._row(view)
            self._require_kept(row)
            compacted = self._drops_old(row)
            got, at, more = read_some(view, self._topic, self._next, count, bytes_max, compacted)
            self._next = at
            if got:
                self._counters.add("read", len(got))
                return got
            if more:
                await runtime.sleep(0)
            elif not await self._waiting.until((("topics", self._topic),), self._ready, deadline):
                return ()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Read:
        """Ends when the reader is closed."""
        try:
            message = await self.next()
        except Stopped:
            if self._closed:
                raise StopAsyncIteration from None
            raise
        assert message is not None
        return message

    def close(self) -> None:
        """End it, and a loop that waits. May be called again."""
        self._closed = True
        self._waiting.poke((("topics", self._topic),))

    # --- details ---

    def _ready(self, view: View) -> bool:
        row: Topic | None = view.table("topics").get(self._topic)
        return self._closed or row is None or row.id != self._id or self._next < row.next

    def _drops_old(self, row: Topic) -> bool:
        return self._compacted and row.compacted

    def _row(self, view: View) -> Topic:
        """The topic, as long as it is the one that was opened."""
        if self._closed:
            raise Stopped("this reader was closed")
        if self._waiting.stopped:
            raise Stopped("this node stops")
        row = topic_of(view, self._topic)
        if row.id != self._id:
            raise UnknownTopic(self._topic)
        return row

    def _require_kept(self, row: Topic) -> None:
        if self._next < row.first and not self._drops_old(row):
            raise PositionTrimmed(self._topic, self._next, row.first)

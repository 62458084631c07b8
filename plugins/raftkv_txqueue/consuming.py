"""Messages on their way to a consumer: what was acquired, and subscriptions.

The log says which messages a session has acquired; their bodies are read from the tables of this
node, which has applied the same entry. Between that entry and the look at the tables others may
have been applied: a message that the session does not hold any more is left out, and it is the
session's lock that tells, for a queue that was deleted and made anew has other messages under the
same numbers.

A subscription is a consumer's loop: it acquires when it has nothing left to hand out, as many as
its *prefetch* allows. What it has acquired and its user has not settled yet counts against that, so
a slow consumer leaves the rest to others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from raftkv.errors import NotApplied, OutcomeUnknown, Stopped
from raftkv.plugin import RETRY_FIRST_S, RETRY_MAX_S, View

from .commands import ROWS_MAX, Acquired, Queue
from .locks import deliveries_of as deliveries_in
from .refusals import SessionEnded
from .views import message_of

if TYPE_CHECKING:
    from .session import Session

__all__ = ["PREFETCH", "Delivery", "Subscription", "deliveries_of"]

#: Messages that a subscription takes ahead: enough to hide a round through the log.
PREFETCH = 100


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message that a session has acquired: nobody else gets it until it is settled.

    `seq`: its number in the queue; `deliveries`: how often it was handed out, this time included.
    """

    queue: str
    seq: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    deliveries: int = 1
    redelivered: bool = False


def deliveries_of(view: View, session: int, queue: str, acquired: Acquired) -> tuple[Delivery, ...]:
    """The messages of an answer, as far as the session holds them still."""
    row: Queue | None = view.table("queues").get(queue)
    if row is None:
        return ()
    locks = view.table("locks")
    found = []
    for seq, deliveries in zip(acquired.seqs, acquired.deliveries, strict=True):
        lock = locks.get((session, row.id, seq))
        if lock is None or deliveries_in(lock) != deliveries:
            continue
        stored = message_of(view, row.id, seq)
        if stored is not None:
            message = stored.message
            found.append(
                Delivery(queue, seq, message.body, message.headers, deliveries, deliveries > 1)
            )
    return tuple(found)


class Subscription:
    """An endless supply of one queue's messages, for one task.

        async with session.subscribe("orders") as orders:
            async for delivery in orders:
                ...
                await session.accept(delivery)

    Waits for messages; ends with the session (SessionEnded), with the queue (UnknownQueue), or when
    it is closed, which puts back what was acquired and not handed out: that counts as no delivery.
    A loop that is left without closing it leaves these with the session, whose `close` puts them
    back. If the node dies they count as delivered: the log cannot know what was handed out. That
    the cluster has no leader for a while ends nothing.
    """

    def __init__(self, session: Session, queue: str, prefetch: int) -> None:
        if prefetch < 1:
            raise ValueError("prefetch is 1 message or more")
        self._session = session
        self._queue = queue
        self._prefetch = prefetch
        self._ready: deque[Delivery] = deque()
        #: The seqs of those that were handed out, and perhaps not settled yet.
        self._out: list[int] = []
        self._closed = False
        #: What the loop waits for, if it does.
        self._waits: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """The next message. Raises StopAsyncIteration once it is closed."""
        while not self._ready or self._closed:
            if self._closed:
                await self.close()  # what came at the moment at which it was closed
                raise StopAsyncIteration
            room = self._room()
            await self._open(self._fill(min(room, ROWS_MAX)) if room else self._settled())
        delivery = self._ready.popleft()
        self._session.hand_out(delivery)
        self._out.append(delivery.seq)
        return delivery

    async def _open(self, work: Coroutine[None, None, None]) -> None:
        """Wait for it, unless the subscription is closed meanwhile."""
        task = self._waits = asyncio.ensure_future(work)
        try:
            await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not self._closed or (caller is not None and caller.cancelling()):
                raise
        finally:
            self._waits = None

    async def _settled(self) -> None:
        await self._session.settled_some()

    async def _fill(self, count: int) -> None:
        found = await self._some(count)
        self._session.take_ahead(found)
        self._ready.extend(found)

    async def _some(self, count: int) -> tuple[Delivery, ...]:
        """Wait for messages, also through a time without a leader."""
        delay_s = RETRY_FIRST_S
        while True:
            try:
                return await self._session.get(self._queue, count, wait_s=None, timeout_s=None)
            except Stopped:
                raise
            except NotApplied:
                await self._session.pause(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What cannot be given back now goes back with the session.
        with suppress(NotApplied, OutcomeUnknown, SessionEnded):
            await self.close()

    async def close(self) -> None:
        """Put back what was not handed out, and end a loop that waits. May be called again."""
        self._closed = True
        if self._waits is not None:
            self._waits.cancel()
        if self._ready:
            left = tuple(self._ready)
            self._ready.clear()
            if not self._session.ended:
                await self._session.put_back(*left)

    def _room(self) -> int:
        self._out = [seq for seq in self._out if self._session.holds(self._queue, seq)]
        return max(0, self._prefetch - len(self._out))

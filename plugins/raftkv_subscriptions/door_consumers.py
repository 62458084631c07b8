"""Consumers of clients that speak HTTP: kept by the node of the door until nobody uses them.

A consumer lives in one node's life, so one that was opened at a door can be used at that door only
(`ConsumerElsewhere` names the node). A client that goes away cannot say so: a consumer that nobody
has used for `door_idle_s` is closed, and what it had not acknowledged is delivered again. While a
request of it is under way it is in use, however long it waits. The watcher runs only while there
are any.

A consumer is named by its number and a secret, which only the client knows that opened it: numbers
are small, and shown to all. For a wrong secret there is no such consumer.

Requests to one consumer run side by side: a `receive` that waits must not hold up an `ack`. They
may be repeated when their answer is lost, but for two. A repeated `receive` gives what comes next:
what the first one had stays in the consumer's hands until it is given back or closed. And a
repeated `open` makes another consumer: the first one is closed when nobody has used it for
`door_idle_s`, until then an exclusive subscription is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

from raftkv.errors import RaftkvError, Refused
from raftkv.plugin import Host, Metric, handle_of, read_handle

from .errors import ConsumerEnded
from .options import options_of

if TYPE_CHECKING:
    from .api import SubscriptionsApi
    from .bodies import WantedConsumer
    from .consumer import Consumer

__all__ = ["ConsumerElsewhere", "DoorConsumers", "TooManyDoorConsumers"]

# A consumer is closed at most that much of its idle time too late.
LOOKS_PER_IDLE_TIME: Final = 4


class ConsumerElsewhere(Refused):
    """It belongs to another node, or to the program in which this one runs."""

    code = "subscriptions_consumer_elsewhere"

    def __init__(self, consumer: int, node: str) -> None:
        super().__init__(consumer, node)
        self.consumer = consumer
        self.node = node

    def __str__(self) -> str:
        return (
            f"the consumer {self.consumer} was not opened at this door: it is of the node "
            f"{self.node!r}, ask there"
        )


class TooManyDoorConsumers(Refused):
    """The option door_consumers_max of the node."""

    code = "subscriptions_too_many_door_consumers"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.limit} consumers are open at this door: close one, ask another node, or raise "
            "the option door_consumers_max"
        )


class _Open:
    """A consumer, when it was used last, and how many requests use it now."""

    def __init__(self, consumer: Consumer, nonce: int, now: float) -> None:
        self.consumer = consumer
        self.nonce = nonce
        self.used_at = now
        self.busy = 0


class DoorConsumers:
    """Those of one node's door, by id."""

    def __init__(self, host: Host, api: SubscriptionsApi) -> None:
        self._host = host
        self._api = api
        self._open: dict[int, _Open] = {}
        self._opening = 0
        self._watcher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def idle_s(self) -> float:
        """The option door_idle_s."""
        return options_of(self._host).door_idle_s

    async def open(self, asked: WantedConsumer) -> tuple[Consumer, str]:
        """Open a consumer of this node for a client; the consumer and its handle.

        Raises TooManyDoorConsumers, and what the API's `consumer` raises.
        """
        limit = options_of(self._host).door_consumers_max
        if len(self._open) + self._opening >= limit:
            raise TooManyDoorConsumers(limit)
        self._opening += 1
        try:
            consumer = await self._api.consumer(
                asked.topic,
                asked.sub,
                kind=asked.kind,
                initial=asked.initial,
                replicate=asked.replicate,
                priority=asked.priority,
                consumer_name=asked.name,
                subscribe=asked.subscribe,
                timeout_s=asked.timeout_s,
            )
        finally:
            self._opening -= 1
        nonce = int.from_bytes(self._host.runtime.token(8), "big")
        self._open[consumer.id] = _Open(consumer, nonce, self._host.runtime.monotonic())
        if self._watcher is None or self._watcher.done():
            self._watcher = self._host.spawn(self._watch(), "door consumers")
        return consumer, handle_of(consumer.id, nonce)

    @contextlib.asynccontextmanager
    async def using(self, handle: str) -> AsyncIterator[Consumer]:
        """The consumer, for the time of one request.

        Raises ConsumerElsewhere, which names the node to ask, ConsumerEnded, or BadRequest.
        """
        found = self._find(handle)
        found.busy += 1
        try:
            yield found.consumer
        finally:
            found.busy -= 1
            found.used_at = self._host.runtime.monotonic()

    async def close(self, handle: str) -> None:
        """End it. Raises what `using` does."""
        found = self._find(handle)
        await found.consumer.close()
        self._open.pop(found.consumer.id, None)

    def metrics(self) -> Sequence[Metric]:
        limit = options_of(self._host).door_consumers_max
        return (
            Metric("door_consumers", "gauge", len(self._open), "Consumers open at this door."),
            Metric("door_consumers_limit", "gauge", limit, "The option door_consumers_max."),
        )

    def _find(self, handle: str) -> _Open:
        number, nonce = read_handle("the consumer", handle)
        found = self._open.get(number)
        if found is not None and found.nonce != nonce:
            raise ConsumerEnded(number)
        if found is not None and not found.consumer.ended:
            return found
        self._open.pop(number, None)
        row = self._host.view().table("consumers").get(number)
        if row is None or row.ended_ms or found is not None:
            raise ConsumerEnded(number)
        if row.node == self._host.name and row.incarnation != self._host.incarnation:
            raise ConsumerEnded(number)
        # Of another node; or of the program in this one, from which the door must not take it.
        raise ConsumerElsewhere(number, row.node)

    async def _watch(self) -> None:
        """Close what nobody uses, and drop what has ended, while there is anything."""
        runtime = self._host.runtime
        while self._open:
            await runtime.sleep(self.idle_s / LOOKS_PER_IDLE_TIME)
            late = runtime.monotonic() - self.idle_s
            for number, each in list(self._open.items()):
                if each.consumer.ended:
                    self._open.pop(number, None)
                elif not each.busy and each.used_at <= late:
                    await self._close_idle(number, each)

    async def _close_idle(self, number: int, idle: _Open) -> None:
        self._open.pop(number, None)
        self._api.counters.add("door_consumers_closed")
        try:
            await idle.consumer.close()
        except RaftkvError as error:
            # No leader, say. Closing it goes on, and ends with this node at the latest.
            self._host.log.debug(
                "subscriptions: closing an idle consumer: %s", type(error).__name__
            )

"""The consumers of one node: how they are opened, and how they are told of their end."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import msgspec

from raftkv.errors import NotApplied, Stopped, TooLarge
from raftkv.plugin import RETRY_FIRST_S, RETRY_MAX_S, Host, Lost, Proposer

from .commands import Attach, Attached, Subscribe
from .consumer import Consumer
from .consumer_life import ConsumerLife
from .counting import Counters
from .line import Job, Line
from .options import options_of
from .waiting import Waiting

__all__ = ["Consumers", "Opening"]


class Opening:
    """A consumer that is to be opened: `await` it, or `async with` it, which closes it then."""

    def __init__(
        self,
        consumers: Consumers,
        subscribe: Subscribe | None,
        attach: Attach,
        prefetch: int,
        timeout_s: float | None,
    ) -> None:
        self._consumers = consumers
        self._subscribe = subscribe
        self._attach = attach
        self._prefetch = prefetch
        self._timeout_s = timeout_s
        self._consumer: Consumer | None = None

    def __await__(self) -> Generator[Any, None, Consumer]:
        return self._consumers.open(
            self._subscribe, self._attach, self._prefetch, self._timeout_s
        ).__await__()

    async def __aenter__(self) -> Consumer:
        self._consumer = await self
        return self._consumer

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._consumer is not None
        await self._consumer.__aexit__(kind, error, trace)


class Consumers:
    """The live consumers of this node, by their ids."""

    def __init__(
        self, host: Host, proposer: Proposer, waiting: Waiting, counters: Counters
    ) -> None:
        self._host = host
        self._proposer = proposer
        self._waiting = waiting
        self._counters = counters
        self._live: dict[int, Consumer] = {}
        #: Being opened. In the order in which they were begun.
        self._opening: dict[Line, None] = {}
        self._stopped = False

    def __len__(self) -> int:
        return len(self._live)

    def all(self) -> tuple[Consumer, ...]:
        """Those that were opened on this node and have not ended, the oldest first."""
        return tuple(self._live.values())

    def get(self, consumer: int) -> Consumer | None:
        """One of them."""
        return self._live.get(consumer)

    async def open(
        self,
        subscribe: Subscribe | None,
        attach: Attach,
        prefetch: int,
        timeout_s: float | None,
    ) -> Consumer:
        """Open one. Who leaves before it is open leaves none behind.

        Raises what `Subscribe` and `Attach` are refused with, `NotApplied` kinds (nothing of it is
        left but a new subscription), OutcomeUnknown (if it comes to be it is closed again).
        """
        if self._stopped:
            raise Stopped("this node stops")
        line = Line(self._host, self._counters, "open a consumer", {"open": self._open})
        self._opening[line] = None
        try:
            consumer: Consumer = await line.do(
                "open", (subscribe, attach, prefetch), timeout_s, unheard=self._close
            )
        finally:
            self._opening.pop(line, None)
        return consumer

    def look(self) -> None:
        """The node has a new life, or other tables: end those that have ended."""
        for consumer in self.all():
            consumer.look()

    def stop(self) -> None:
        """The node stops: nothing is decided here any more, and this decides nothing."""
        self._stopped = True
        for line in tuple(self._opening):
            line.stop()
        for consumer in self.all():
            consumer.stop()

    # --- the work ---

    async def _open(self, jobs: Sequence[Job]) -> None:
        [job] = jobs
        subscribe, attach, prefetch = job.part
        if subscribe is not None:
            await self._ask(job, subscribe)
            if not job.waits:
                return
        attached: Attached = await self._ask(job, attach)
        life = ConsumerLife(self._host, self._proposer, attach.topic, attach.sub, attached.consumer)
        bytes_max = options_of(self._host).prefetch_bytes_max
        consumer = Consumer(life, self._waiting, self._counters, prefetch, bytes_max)
        consumer.on_end = partial(self._live.pop, life.id, None)
        self._live[life.id] = consumer
        self._counters.add("consumers_opened")
        if self._stopped:
            consumer.stop()
        consumer.look()
        job.succeed(consumer)

    async def _ask(self, job: Job, command: msgspec.Struct) -> Any:
        """Its result; proposed again while nothing has happened and its caller waits.

        What an ended life of this node has attached ended with it, so one that is lost is none.
        """
        delay_s = RETRY_FIRST_S
        while True:
            try:
                return await self._proposer.once(command)
            except (TooLarge, Stopped):
                raise
            except (NotApplied, Lost):
                if not job.waits:
                    raise
            await self._host.runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    async def _close(self, consumer: Consumer) -> None:
        await consumer.close(timeout_s=None)

"""A topic in two regions (plugin `subscriptions`) under load: what happens inside their nodes.

In the first region a publisher publishes so many messages a second, in batches where one at a time
would be more than a hundred calls a second, and one consumer acknowledges whatever it gets, up to
the last of it, with one acknowledgement outstanding. In the other region the subscription's cursor
is watched: `Trace` notes when it moved, and how far. Both read the machine's monotonic clock, which
is the same for all of its processes, so that a time there minus a time here is a duration.

A message is known by its seq, which is the same in both regions. The consumer acknowledges in
order, so what it was told is acknowledged is all up to one seq.

Then the consumer moves: `Takeover` is a consumer of the same subscription in the other region,
which begins when the first one has stopped while messages still come, and takes note of all that it
gets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from bench.clock import Clock
from raftkv.errors import RaftkvError

__all__ = [
    "SUBSCRIPTION",
    "Followed",
    "Following",
    "Moves",
    "Sample",
    "SubscriptionsLike",
    "SubscriptionsLoad",
    "Takeover",
    "Took",
    "Trace",
    "moves_of",
    "topic_of",
]

SUBSCRIPTION = "bench"
TICK_S = 0.01
"""Messages that are due within one tick are published together."""

BATCH_MAX = 500
"""Messages of one publication, and of one acknowledgement."""

WAIT_S = 0.2
"""A consumer that gets nothing looks again whether it has to stop."""

BACK_OFF_S = 0.05


class SubscriptionsLike(Protocol):
    """What is used of a `raftkv_subscriptions` SubscriptionsApi."""

    async def publish(self, topic: str, messages: Any, *, timeout_s: float = ...) -> Any: ...

    async def consumer(self, topic: str, name: str, **more: Any) -> Any: ...


class SubscriptionsLoad(msgspec.Struct, frozen=True, kw_only=True, tag="subscriptions"):
    """So many messages a second, for so long. `number` names the load's topic."""

    load: str
    number: int
    rate_per_s: float
    value_bytes: int
    timeout_s: float


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """An acknowledgement of everything up to `seq`: when it was called, and when it was told."""

    seq: int
    began: float
    ended: float


class Followed(msgspec.Struct, frozen=True, tag="followed"):
    """What the first region's publisher and consumer did. `errors`: of either, by their codes.

    `published`: the highest seq that it was told. `acked`: the highest one that was told to be
    acknowledged; `asked`: that was asked for, which may be acknowledged though nobody said so.
    """

    published: int
    acked: int
    samples: tuple[Sample, ...]
    errors: dict[str, int]
    asked: int


class Took(msgspec.Struct, frozen=True, tag="took"):
    """The seqs that a consumer got after it had taken over, in its order."""

    seqs: tuple[int, ...]


class Moves(msgspec.Struct, frozen=True, tag="moves"):
    """When the cursor in the other region was seen at which seq, ascending in both."""

    moves: tuple[tuple[float, int], ...]


def topic_of(number: int) -> str:
    """The topic of the load of this number."""
    return f"load-{number}"


class Following:
    """The publisher and the consumer in the first region."""

    def __init__(self, api: SubscriptionsLike, load: SubscriptionsLoad, clock: Clock) -> None:
        self._api = api
        self._load = load
        self._clock = clock
        self._published = 0
        self._acked = 0
        self._asked = 0
        self._sent = 0
        self._samples: list[Sample] = []
        self._errors: dict[str, int] = {}
        self._publishing: asyncio.Task[None] | None = None
        self._consuming: asyncio.Task[None] | None = None
        self._stops = False

    async def start(self) -> None:
        consumer = await self._api.consumer(
            topic_of(self._load.number), SUBSCRIPTION, kind="exclusive"
        )
        loop = asyncio.get_running_loop()
        self._consuming = loop.create_task(self._consume(consumer))
        self._publishing = loop.create_task(self._publish())

    async def stop_consumer(self) -> None:
        """Returns when its last acknowledgement was answered and it is gone."""
        self._stops = True
        assert self._consuming is not None, "the load was not started"
        await self._consuming

    async def stop_publisher(self) -> Followed:
        assert self._publishing is not None, "the load was not started"
        self._publishing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._publishing
        return self.followed

    @property
    def followed(self) -> Followed:
        """As far as it is."""
        return Followed(
            self._published, self._acked, tuple(self._samples), dict(self._errors), self._asked
        )

    async def _publish(self) -> None:
        load, clock = self._load, self._clock
        topic, body = topic_of(load.number), bytes(load.value_bytes)
        began, due = clock.now(), 0
        tick_s = max(TICK_S, 1 / load.rate_per_s)
        while True:
            due = int((clock.now() - began) * load.rate_per_s) + 1
            count = min(due - self._sent, BATCH_MAX)
            if count <= 0:
                await clock.sleep(tick_s - (clock.now() - began) % tick_s)
                continue
            # Shielded: whoever stops the publisher must know what became of its last batch.
            call = asyncio.ensure_future(
                self._api.publish(topic, [body] * count, timeout_s=load.timeout_s)
            )
            try:
                await asyncio.shield(call)
            except asyncio.CancelledError:
                with contextlib.suppress(RaftkvError):
                    self._told(await call, count)
                raise
            except RaftkvError as error:
                self._note(error)
                await clock.sleep(BACK_OFF_S)
            else:
                self._told(call.result(), count)

    def _told(self, done: Any, count: int) -> None:
        """Of a batch whose answer was lost the messages may be there: seqs tell, counting not."""
        self._sent += count
        self._published = done.seq + count - 1

    async def _consume(self, consumer: Any) -> None:
        now = self._clock.now
        async with consumer:
            while not self._stops:
                got = await consumer.receive(count=BATCH_MAX, wait_s=WAIT_S)
                if not got:
                    continue
                began = now()
                self._asked = got[-1].seq
                try:
                    await consumer.ack_to(got[-1])
                except RaftkvError as error:
                    self._note(error)
                    continue
                self._acked = got[-1].seq
                self._samples.append(Sample(got[-1].seq, began, now()))

    def _note(self, error: RaftkvError) -> None:
        self._errors[error.code] = self._errors.get(error.code, 0) + 1


class Trace:
    """Watches how far a subscription's cursor is, on one node of the other region."""

    def __init__(self, listen: Listen, floor: Callable[[], int], clock: Clock) -> None:
        """`floor`: the seq up to which everything of the first region is acknowledged, now."""
        self._floor = floor
        self._clock = clock
        self._moves: list[tuple[float, int]] = []
        self._stop = listen(self._changed)

    def _changed(self, _index: int, _changes: Sequence[Any]) -> None:
        floor = self._floor()
        if floor > (self._moves[-1][1] if self._moves else 0):
            self._moves.append((self._clock.now(), floor))

    @property
    def floor(self) -> int:
        return self._floor()

    def close(self) -> Moves:
        self._stop()
        return Moves(tuple(self._moves))


Listen = Callable[[Callable[[int, Sequence[Any]], None]], Callable[[], None]]
"""`Host.listen`."""


class Takeover:
    """A consumer that goes on in another region. It acknowledges all that it gets."""

    def __init__(self, api: SubscriptionsLike, number: int) -> None:
        self._api = api
        self._number = number
        self._seqs: list[int] = []
        self._acked = 0
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def start(self) -> None:
        consumer = await self._api.consumer(topic_of(self._number), SUBSCRIPTION, kind="exclusive")
        self._task = asyncio.get_running_loop().create_task(self._consume(consumer))

    async def finish(self, upto: int, idle_s: float, timeout_s: float) -> Took:
        """Ends it when it has acknowledged `upto`, or `idle_s` after the last one, or in time."""
        assert self._task is not None, "it was not started"
        try:
            async with asyncio.timeout(timeout_s):
                while not 0 < upto <= self._acked:
                    if self._task.done():
                        break
                    self._news.clear()
                    async with asyncio.timeout(idle_s):
                        await self._news.wait()
        except TimeoutError:
            pass  # what is missing by now is counted as such
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        return Took(tuple(self._seqs))

    async def _consume(self, consumer: Any) -> None:
        async with consumer:
            while True:
                got = await consumer.receive(count=BATCH_MAX, wait_s=WAIT_S)
                if got:
                    # Before it is acknowledged: it was delivered, whatever becomes of that.
                    self._seqs += [message.seq for message in got]
                    await consumer.ack_to(got[-1])
                    self._acked = got[-1].seq
                    self._news.set()


def moves_of(
    samples: Sequence[Sample], moves: Sequence[tuple[float, int]]
) -> list[tuple[Sample, float | None]]:
    """Of each acknowledgement: the seconds until the cursor had covered it, None: it never did.

    The clocks of two processes may differ by less than what a move takes; never below 0.
    """
    found: list[tuple[Sample, float | None]] = []
    place = 0
    for sample in samples:
        while place < len(moves) and moves[place][1] < sample.seq:
            place += 1
        took = max(0.0, moves[place][0] - sample.began) if place < len(moves) else None
        found.append((sample, took))
    return found

"""What a node with the queues is asked to do for `bench peers rabbitmq`, and how it does it.

The same as RabbitMQ's clients do (`bench/peers/amqp_client.py`), by tasks inside the node: a load
of producers in a closed loop, each transaction a TX of one batch into a single queue, and consumers
that take and accept until a number of messages is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from bench.clock import OsClock
from bench.txqueue import Batch, Producing, produce_until

if TYPE_CHECKING:
    from raftkv_txqueue import TxQueueApi

__all__ = [
    "ConsumeBatches",
    "MakeQueue",
    "ProduceBatches",
    "PurgeQueue",
    "QueueDepth",
    "TxqueueAsk",
    "TxqueueTold",
    "txqueue_answer",
]

_TIMEOUT_S = 30.0


class MakeQueue(msgspec.Struct, frozen=True, tag="txqueue-make"):
    """Declare this queue."""

    queue: str


class PurgeQueue(msgspec.Struct, frozen=True, tag="txqueue-purge"):
    """Empty it."""

    queue: str


class QueueDepth(msgspec.Struct, frozen=True, tag="txqueue-depth"):
    """How many messages are available in it."""

    queue: str


class ProduceBatches(msgspec.Struct, frozen=True, tag="txqueue-produce"):
    """A closed loop of so many producers, for so long, each TX of so many messages.

    `most` (0: no bound) ends it earlier: no batch begins once so many messages were published.
    """

    queue: str
    batch: int
    producers: int
    seconds: float
    value_bytes: int
    most: int = 0


class ConsumeBatches(msgspec.Struct, frozen=True, tag="txqueue-consume"):
    """Take so many messages by so many consumers; accept in batches.

    A consumer has up to `prefetch` messages: it accepts one half, without waiting for one
    acceptance before the next, while the other half is on its way.
    """

    queue: str
    batch: int
    consumers: int
    messages: int
    prefetch: int


TxqueueAsk = MakeQueue | PurgeQueue | QueueDepth | ProduceBatches | ConsumeBatches


class TxqueueTold(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; each request fills what it asks for.

    `took_us`: of committed transactions, `late` of them after the time was up. `answers` counts
    what producers were told otherwise. `messages` were committed, taken, or are available;
    `seconds`: from the first request to the last answer.
    """

    took_us: list[int] = []
    late: int = 0
    answers: dict[str, int] = {}
    messages: int = 0
    seconds: float = 0.0


async def txqueue_answer(txq: TxQueueApi, asked: TxqueueAsk) -> TxqueueTold:
    """Do what is asked."""
    match asked:
        case MakeQueue(queue):
            await txq.declare(queue, timeout_s=_TIMEOUT_S)
            return TxqueueTold()
        case PurgeQueue(queue):
            return TxqueueTold(messages=await txq.purge(queue, timeout_s=_TIMEOUT_S))
        case QueueDepth(queue):
            return TxqueueTold(messages=(await txq.depth(queue)).ready)
        case ProduceBatches():
            return await _produce(txq, asked)
        case ConsumeBatches():
            return await _consume(txq, asked)


async def _produce(txq: TxQueueApi, asked: ProduceBatches) -> TxqueueTold:
    from raftkv_txqueue import Message

    took_us: list[int] = []
    answers: Counter[str] = Counter()
    late = published = 0
    messages = [Message(b"v" * asked.value_bytes)] * asked.batch
    sessions = [await txq.session("tx", timeout_s=_TIMEOUT_S) for _ in range(asked.producers)]
    began_s = time.perf_counter()
    until_s = began_s + asked.seconds

    def batch(_producer: int, _turn: int) -> Batch:
        return [(asked.queue, messages)]

    def note(
        _producer: int, _turn: int, began: float, ended: float, outcome: str, _index: int | None
    ) -> None:
        nonlocal late, published
        if outcome == "ok":
            took_us.append(round((ended - began) * 1e6))
            late += ended > until_s
            published += asked.batch
        else:
            answers[outcome] += 1

    producing = Producing(
        name="peers", way="tx", until_s=until_s, timeout_s=_TIMEOUT_S, batch=batch, note=note,
        enough=lambda: 0 < asked.most <= published,
    )  # fmt: skip
    await produce_until(txq, range(asked.producers), producing, OsClock(), sessions)
    seconds = time.perf_counter() - began_s
    await asyncio.gather(*(session.close() for session in sessions))
    return TxqueueTold(
        took_us=took_us, late=late, answers=dict(answers), messages=published, seconds=seconds
    )


async def _consume(txq: TxQueueApi, asked: ConsumeBatches) -> TxqueueTold:
    sessions = [await txq.session("plain", timeout_s=_TIMEOUT_S) for _ in range(asked.consumers)]
    taken = 0

    async def consumer(session: Any) -> None:
        nonlocal taken
        half = max(1, asked.prefetch // 2)
        got = await session.get(asked.queue, half)
        while got:
            taken += len(got)
            coming = asyncio.ensure_future(session.get(asked.queue, half))
            parts = (got[first : first + asked.batch] for first in range(0, len(got), asked.batch))
            await asyncio.gather(*(session.accept(*part) for part in parts))
            got = await coming

    began_s = time.perf_counter()
    await asyncio.gather(*(consumer(session) for session in sessions))
    seconds = time.perf_counter() - began_s
    await asyncio.gather(*(session.close() for session in sessions))
    return TxqueueTold(messages=taken, seconds=seconds)

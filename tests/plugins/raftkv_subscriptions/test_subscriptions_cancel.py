"""Calls that are cancelled at any moment: nothing is left behind, and what has begun goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from raftkv.testing.clock import run
from raftkv_subscriptions import Consumer, Subscriptions

from .fakes import NETWORK_S, REST_S, Cluster, bodies

#: When it is cancelled: network delays, and then turns of the loop.
MOMENTS = [(delay, turns) for delay in (0.0, 1.0, 2.0, 3.0) for turns in range(1, 6)]


@asynccontextmanager
async def world() -> AsyncIterator[Cluster]:
    cluster = Cluster(Subscriptions, 2)
    await cluster.start()
    await cluster.subs("core1").declare("t")
    await cluster.fill("t", "1", "2", "3")
    yield cluster
    await asyncio.sleep(REST_S)
    subs = cluster.subs("core2")
    for consumer in subs.consumers.all():
        assert consumer._settling._line.idle
    assert not subs.publishing._lines
    assert subs.publishing.waiting_bytes == 0
    assert len(subs.waiting) == 0
    assert not subs.waiting._watchers
    assert not subs.waiting._crowds
    cluster.check()


async def cancelled(call: Callable[[], Awaitable[Any]], delay: float, turns: int) -> Any:
    """Its result, if it was done before it was cancelled; else None."""

    async def work() -> Any:
        return await call()

    task = asyncio.ensure_future(work())
    if delay:
        await asyncio.sleep(delay * NETWORK_S)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    [done] = await asyncio.gather(task, return_exceptions=True)
    if isinstance(done, asyncio.CancelledError):
        return None
    assert not isinstance(done, BaseException), done
    return done


Case = Callable[[Cluster, float, int], Awaitable[None]]


async def opening(cluster: Cluster, delay: float, turns: int) -> None:
    subs = cluster.subs("core2")
    for kind in ("exclusive", "shared"):
        done = await cancelled(partial(_open, subs, kind), delay, turns)
        await asyncio.sleep(REST_S)
        assert len(subs.consumers) == len(cluster.table("consumers")) == (done is not None)
        if done is not None:
            await done.close()


async def _open(subs: Any, kind: str) -> Consumer:
    consumer: Consumer = await subs.consumer("t", kind, kind=kind, initial="earliest")
    return consumer


async def receiving(cluster: Cluster, delay: float, turns: int) -> None:
    for kind in ("exclusive", "shared"):
        consumer = await _open(cluster.subs("core2"), kind)
        for call in (lambda: consumer.receive(2), lambda: anext(consumer)):  # noqa: B023
            await cancelled(call, delay, turns)
            await asyncio.sleep(REST_S)
        await consumer.close()
        assert cluster.table("locks") == {}
        # Whatever it was told, all of it comes again.
        again = await _open(cluster.subs("core2"), kind)
        assert sorted(bodies(await again.receive(10))) == ["1", "2", "3"]
        await again.close()


async def waiting(cluster: Cluster, delay: float, turns: int) -> None:
    """The message comes when the caller leaves."""
    for kind in ("exclusive", "shared"):
        consumer = await _open(cluster.subs("core2"), kind)
        await consumer.ack(*await consumer.receive(100))
        filling = asyncio.ensure_future(cluster.fill("t", kind))
        got = await cancelled(lambda: consumer.receive(2), delay, turns)  # noqa: B023
        await filling
        if got is None:
            got = await asyncio.wait_for(consumer.receive(2), 1)
        assert bodies(got) == [kind]
        await consumer.close()


async def settling(cluster: Cluster, delay: float, turns: int) -> None:
    for kind in ("exclusive", "shared"):
        consumer = await _open(cluster.subs("core2"), kind)
        got = await consumer.receive(3)
        await cancelled(lambda: consumer.ack(got[0]), delay, turns)  # noqa: B023
        await cancelled(lambda: consumer.nack(got[1]), delay, turns)  # noqa: B023
        assert await consumer.ack(*got) == 3
        await cancelled(consumer.close, delay, turns)
        await asyncio.sleep(REST_S)
        assert consumer.ended
        assert cluster.table("consumers") == {}


async def publishing(cluster: Cluster, delay: float, turns: int) -> None:
    subs = cluster.subs("core2")
    done = await cancelled(lambda: subs.publish("t", b"4"), delay, turns)
    await asyncio.sleep(REST_S)
    assert len(cluster.everywhere()) in ((4,) if done is not None else (3, 4))


async def reading(cluster: Cluster, delay: float, turns: int) -> None:
    reader = await cluster.subs("core2").reader("t")
    filling = asyncio.ensure_future(cluster.fill("t", "4"))
    got = await cancelled(reader.next, delay, turns)
    await filling
    assert (got or await reader.next()).body == b"4"


@pytest.mark.parametrize(
    "case", [opening, receiving, waiting, settling, publishing, reading], ids=lambda c: c.__name__
)
def test_cancelled_at_any_moment(case: Case) -> None:
    async def whole() -> None:
        for delay, turns in MOMENTS:
            async with world() as cluster:
                await case(cluster, delay, turns)

    run(whole())

"""Who waits for messages on a node: woken when there is something, and only then."""

from __future__ import annotations

import asyncio

import pytest

from raftkv.errors import Stopped
from raftkv.plugin import View
from raftkv_subscriptions.waiting import Crowd

from .fakes import NETWORK_S, Cluster, bodies, story

ROWS = (("topics", "t"),)


def has(position: int):  # type: ignore[no-untyped-def]
    """Whether the topic has it."""
    return lambda view: view.table("topics").get("t").next > position


@story()
async def test_who_waits_is_asked_when_its_rows_change_and_not_otherwise(cluster: Cluster) -> None:
    subs = cluster.subs("core2")
    asked: list[int] = []

    def ready(view: View) -> bool:
        asked.append(view.table("topics").get("t").next)
        return asked[-1] > 2

    waiting = asyncio.ensure_future(subs.waiting.until(ROWS, ready, None))
    await asyncio.sleep(NETWORK_S)
    await subs.declare("other")
    await subs.publish("other", b"1")
    await subs.subscribe("t", "s")
    assert asked == [1]
    await subs.publish("t", b"1")
    assert asked == [1, 2]
    await subs.publish("t", b"2")
    assert await waiting is True
    assert asked == [1, 2, 3]
    await subs.publish("t", b"3")
    assert asked == [1, 2, 3]


@story()
async def test_deadlines(cluster: Cluster) -> None:
    subs = cluster.subs("core2")
    loop = asyncio.get_running_loop()
    assert await subs.waiting.until(ROWS, has(0), loop.time() - 1) is True  # it looks first
    assert await subs.waiting.until(ROWS, has(1), loop.time()) is False
    began = loop.time()
    assert await subs.waiting.until(ROWS, has(1), began + 3) is False
    assert loop.time() == pytest.approx(began + 3)
    assert len(subs.waiting) == 0


@story()
async def test_a_crowd_of_whom_some_leave(cluster: Cluster) -> None:
    """Whoever is woken and leaves passes its turn on; deadlines and cancellations lose nothing."""
    subs = cluster.subs("core2")
    consumers = [await subs.consumer("t", "s", kind="shared") for _ in range(4)]
    first = asyncio.ensure_future(consumers[0].receive(wait_s=1))
    second = asyncio.ensure_future(consumers[1].receive())
    third = asyncio.ensure_future(consumers[2].receive(2))
    last = asyncio.ensure_future(consumers[3].receive())
    await asyncio.sleep(NETWORK_S)
    assert len(subs.waiting) == 4
    await asyncio.sleep(2)
    assert await first == ()
    assert len(subs.waiting) == 3
    release = cluster.hold("core2", "take")
    await cluster.fill("t", "1")
    await asyncio.sleep(NETWORK_S)
    second.cancel()  # it was woken, and its take is on its way
    await asyncio.sleep(NETWORK_S)
    release()
    assert bodies(await asyncio.wait_for(third, 1)) == ["1"]
    await cluster.fill("t", "2")
    assert bodies(await asyncio.wait_for(last, 1)) == ["2"]
    for consumer in consumers:
        await consumer.close()


@story()
async def test_stopping(cluster: Cluster) -> None:
    subs = cluster.subs("core2")
    shared = await subs.consumer("t", "s", kind="shared")
    taking = asyncio.ensure_future(shared.receive())
    alone = asyncio.ensure_future(subs.waiting.until(ROWS, has(1), None))
    await asyncio.sleep(NETWORK_S)
    await cluster.stop("core2")
    for task in (taking, alone):
        with pytest.raises(Stopped):
            await task
    with pytest.raises(Stopped):
        await subs.waiting.until(ROWS, has(1), None)
    with pytest.raises(Stopped):
        await shared.receive()
    assert len(subs.waiting) == 0


@story()
async def test_a_subscription_that_is_deleted_wakes_its_crowd(cluster: Cluster) -> None:
    subs = cluster.subs("core2")
    consumers = [await subs.consumer("t", "s", kind="shared") for _ in range(3)]
    tasks = [asyncio.ensure_future(consumer.receive(wait_s=60)) for consumer in consumers]
    await asyncio.sleep(NETWORK_S)
    await cluster.subs("core1").unsubscribe("t", "s", force=True)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one).__name__ for one in done] == ["ConsumerEnded"] * 3
    assert len(subs.consumers) == 0


@story()
async def test_who_waits_while_rows_are_listened_to_misses_nothing(cluster: Cluster) -> None:
    """The number of watched rows goes over the limit and below it again, with messages between."""
    subs = cluster.subs("core2")
    for n in range(80):
        await subs.declare(f"n{n}")
    steady = await subs.reader("t")
    got: list[str] = []

    async def work() -> None:
        async for message in steady:
            got.append(message.body.decode())

    loop = asyncio.ensure_future(work())
    others: list[asyncio.Task[object]] = []
    for step in range(6):
        if step % 2 == 0:
            for n in range(80):
                reader = await subs.reader(f"n{n}")
                others.append(asyncio.ensure_future(reader.next()))
        else:
            for task in others:
                task.cancel()
            others.clear()
        await cluster.fill("t", f"{step}a")
        await asyncio.sleep(NETWORK_S)
        await cluster.fill("t", f"{step}b")
        assert got[-2:] == [f"{step}a", f"{step}b"]
    assert len(got) == 12
    steady.close()
    await loop


async def _crowd(cluster: Cluster) -> tuple[Crowd, int]:
    """Of a shared subscription with nobody in it, on core2."""
    subs = cluster.subs("core2")
    made = await subs.subscribe("t", "s", kind="shared", initial="earliest")
    topic = (await subs.topic("t")).id
    return Crowd("t", topic, "s", made.id), made.id


@story()
async def test_as_many_are_woken_as_there_is_something_for(cluster: Cluster) -> None:
    waiting = cluster.subs("core2").waiting
    crowd, sub = await _crowd(cluster)
    places = [waiting.enter(crowd, sub, want)[1] for want in (2, 1, 1, 1)]

    def awake() -> list[bool]:
        return [place.awake for place in places]

    assert awake() == [False] * 4
    await cluster.fill("t", "1")
    assert awake() == [True, False, False, False]
    await cluster.fill("t", "2", "3")
    assert awake() == [True, True, False, False]
    # Who leaves without having taken anything passes its turn on.
    waiting.leave(crowd, sub, places[0])
    assert awake() == [True, True, True, True]
    waiting.leave(crowd, sub, places[0])
    for place in places[1:]:
        waiting.leave(crowd, sub, place)
    assert len(waiting) == 0
    assert not waiting._watchers


@story()
async def test_a_crowd_rests_after_it_was_told_that_there_is_nothing(cluster: Cluster) -> None:
    """However much it looks as if there were something: until a row changes."""
    waiting = cluster.subs("core2").waiting
    crowd, sub = await _crowd(cluster)
    _, place = waiting.enter(crowd, sub, 1)
    before = crowd.state(cluster.nodes["core2"].view())
    await cluster.fill("t", "1")
    assert place.awake
    # It was asked for before the message came: that it had nothing says nothing of now.
    crowd.in_vain(before, cluster.nodes["core2"].view())
    waiting.again(crowd, place)
    assert place.awake
    now = cluster.nodes["core2"].view()
    crowd.in_vain(crowd.state(now), now)
    waiting.again(crowd, place)
    assert not place.awake
    await cluster.subs("core2").declare("other")
    waiting.look_at_all()
    assert not place.awake
    await cluster.fill("t", "2")
    assert place.awake
    waiting.leave(crowd, sub, place)

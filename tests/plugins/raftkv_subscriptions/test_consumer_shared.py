"""Consumers of shared subscriptions: the log says who gets which message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftkv.errors import OutcomeUnknown
from raftkv_subscriptions import ConsumerEnded, NotCumulative, StillUnderWay
from raftkv_subscriptions.commands import Merge

from .fakes import NETWORK_S, REST_S, Cluster, bodies, story, tag_of, take, until

SHARED: dict[str, Any] = {"kind": "shared", "initial": "earliest"}


@story()
async def test_each_message_goes_to_one(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3", "4", "5")
    one = await cluster.subs("core1").consumer("t", "s", **SHARED)
    two = await cluster.subs("core2").consumer("t", "s", **SHARED)
    assert one.active
    assert two.active
    first = await one.receive(2)
    second = await two.receive(10)
    assert (bodies(first), bodies(second)) == (["1", "2"], ["3", "4", "5"])
    assert await two.ack(*second) == 0
    assert await one.ack(first[0]) == 1
    assert await one.nack(first[1]) == 1
    [again] = await two.receive(10)
    assert (again.body, again.deliveries) == (b"2", 2)
    assert await one.nack(first[1]) == 0  # it is another's
    assert await two.ack(again) == 5
    with pytest.raises(NotCumulative):
        await one.ack_to(5)
    assert cluster.table("locks") == {}
    await one.close()
    await two.close()


@story()
async def test_b12_a_release_under_way_takes_nothing_of_a_seek_back(cluster: Cluster) -> None:
    """Both are under way at once; whichever is first, each message is in one consumer's hands."""
    await cluster.fill("t", *map(str, range(10)))
    one = await cluster.subs("core1").consumer("t", "s", **SHARED)
    for _ in range(3):
        got = await one.receive(10)
        await asyncio.gather(cluster.subs("core2").seek("t", "s", 0), one.nack(*got))
        again = await one.receive(10)
        assert [each.position for each in again] == list(range(1, 11))
        assert {each.deliveries for each in again} == {1}
        assert await one.nack(*got) == 0  # of before the seek
        assert len(cluster.table("locks")) == 10
        await cluster.subs("core2").seek("t", "s", 0)
    assert cluster.proposals("release") == 0
    assert cluster.proposals("release_delivered") > 0
    await one.close()


@story()
async def test_what_a_closed_consumer_held_goes_to_others(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3")
    one = await cluster.subs("core1").consumer("t", "s", **SHARED)
    two = await cluster.subs("core2").consumer("t", "s", **SHARED)
    assert await take(one, 1) == ["1"]  # 2 and 3 are ahead
    waiting = asyncio.ensure_future(two.receive(10))
    await asyncio.sleep(1)
    assert not waiting.done()
    await one.close()
    got = await asyncio.wait_for(waiting, 2)
    assert bodies(got) == ["1", "2", "3"]
    assert [m.deliveries for m in got] == [2, 2, 2]
    await two.close()


@story()
async def test_and_what_one_of_a_dead_node_held(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3")
    one = await cluster.subs("core2").consumer("t", "s", **SHARED)
    two = await cluster.subs("core3").consumer("t", "s", **SHARED)
    held = await one.receive(2)
    assert bodies(await two.receive(2)) == ["3"]
    stuck = asyncio.ensure_future(one.receive())
    waiting = asyncio.ensure_future(two.receive(10))
    await asyncio.sleep(NETWORK_S)
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    assert bodies(await asyncio.wait_for(waiting, 2)) == ["1", "2"]
    acking = asyncio.ensure_future(one.ack(*held, timeout_s=60))
    await asyncio.sleep(1)
    cluster.rejoin("core2")
    with pytest.raises(ConsumerEnded):
        await stuck
    with pytest.raises((ConsumerEnded, OutcomeUnknown)):
        await acking
    await two.close()


@story()
async def test_a_message_does_not_make_everybody_ask(cluster: Cluster) -> None:
    subs = cluster.subs("core2")
    consumers = [await subs.consumer("t", "s", **SHARED) for _ in range(20)]
    tasks = [asyncio.ensure_future(consumer.receive()) for consumer in consumers]
    await asyncio.sleep(NETWORK_S)
    assert cluster.proposals("take") == 0
    before = len(cluster.log)
    await asyncio.sleep(1_000)
    assert len(cluster.log) == before
    for n in range(20):
        await cluster.fill("t", str(n))
        await asyncio.sleep(5 * NETWORK_S)
        # The one that has waited longest has it.
        assert [task.done() for task in tasks] == [m <= n for m in range(20)]
        assert cluster.proposals("take") == n + 1
    for n, task in enumerate(tasks):
        assert bodies(await task) == [str(n)]
    for consumer in consumers:
        await consumer.close()


@story()
async def test_who_comes_too_late_keeps_waiting(cluster: Cluster) -> None:
    """On every node one asks for the only message."""
    names = ("core1", "core2", "core3")
    consumers = [await cluster.subs(name).consumer("t", "s", **SHARED) for name in names]
    tasks = [asyncio.ensure_future(consumer.receive()) for consumer in consumers]
    await asyncio.sleep(NETWORK_S)
    await cluster.fill("t", "1")
    await asyncio.sleep(1)
    assert sum(task.done() for task in tasks) == 1
    asked = cluster.proposals("take")
    assert asked <= 3 * 2
    await asyncio.sleep(100)
    assert cluster.proposals("take") == asked
    await cluster.fill("t", "2", "3")
    got = await asyncio.wait_for(asyncio.gather(*tasks), 2)
    assert sorted(one.body for [one] in got) == [b"1", b"2", b"3"]
    for consumer in consumers:
        await consumer.close()


@story()
async def test_what_looks_like_a_message_and_is_none_does_not_keep_anybody_busy(
    cluster: Cluster,
) -> None:
    """Everything behind the cursor was acknowledged by an operator already."""
    subs = cluster.subs("core2")
    consumer = await subs.consumer("t", "s", **SHARED)
    cluster.pause("core2")
    await cluster.fill("t", "1", "2", "3", "4")
    await cluster.subs("core1").ack("t", "s", [2, 3, 4])
    cluster.resume("core2")
    [one] = await consumer.receive(10)
    waiting = asyncio.ensure_future(consumer.receive(10))
    await asyncio.sleep(100)
    assert cluster.proposals("take") <= 3
    assert not waiting.done()
    assert await consumer.nack(one) == 1
    assert bodies(await waiting) == ["1"]
    await consumer.close()


@story(unacked_max=2)
async def test_too_many_in_hands_wait_for_an_acknowledgement(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3")
    consumer = await cluster.subs("core2").consumer("t", "s", **SHARED)
    other = await cluster.subs("core3").consumer("t", "s", **SHARED)
    got = await consumer.receive(10)
    assert bodies(got) == ["1", "2"]
    waiting = asyncio.ensure_future(other.receive(10))
    await asyncio.sleep(100)
    assert not waiting.done()
    assert cluster.proposals("take") == 1  # the row says that there is no room
    await consumer.ack(got[1])
    assert bodies(await asyncio.wait_for(waiting, 1)) == ["3"]
    await consumer.close()
    await other.close()


@story()
async def test_what_was_taken_for_one_who_has_left_goes_back(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2")
    one = await cluster.subs("core2").consumer("t", "s", **SHARED)
    two = await cluster.subs("core3").consumer("t", "s", **SHARED)
    await cluster.subs("core1").seek("t", "s", "earliest")  # its epoch is not 0
    release = cluster.hold("core2", "take")
    left = asyncio.ensure_future(one.receive(10))
    await asyncio.sleep(NETWORK_S)
    left.cancel()
    await asyncio.sleep(NETWORK_S)
    release()
    assert bodies(await asyncio.wait_for(two.receive(10), 2)) == ["1", "2"]
    assert cluster.subs("core2").counters["released_unheard"] == 2
    await cluster.fill("t", "3")
    release = cluster.hold("core2", "take")
    with pytest.raises(StillUnderWay):
        await one.receive(10, timeout_s=0.5)
    release()
    assert bodies(await asyncio.wait_for(two.receive(10), 2)) == ["3"]
    # At the very moment at which the answer comes.
    for steps in range(12):
        await cluster.fill("t", f"x{steps}")
        task = asyncio.ensure_future(one.receive(10))
        await asyncio.sleep(NETWORK_S)
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        [done] = await asyncio.gather(task, return_exceptions=True)
        if isinstance(done, tuple):
            await one.nack(*done)
        assert bodies(await asyncio.wait_for(two.receive(10), 2)) == [f"x{steps}"]
    await one.close()
    await two.close()


@story()
async def test_lost_answers_of_takes_and_releases(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2")
    consumer = await cluster.subs("core2").consumer("t", "s", **SHARED)
    cluster.lose_answers("core2", "take")
    got = await consumer.receive(10, timeout_s=60)
    assert bodies(got) == ["1", "2"]
    assert [one.deliveries for one in got] == [1, 1]
    cluster.lose_answers("core2", "release")
    assert await consumer.nack(*got, timeout_s=60) == 2
    lost: list[Any] = []

    def lose(node: Any, envelope: Any) -> bool:
        if tag_of(envelope) == "take" and not lost:
            lost.append(envelope)
            return False
        return True

    cluster.filter = lose
    again = await consumer.receive(10, timeout_s=60)
    assert [one.deliveries for one in again] == [2, 2]
    assert len(lost) == 1
    await consumer.close()


@story()
async def test_a_take_that_nobody_can_tell_of_ends_with_its_life(cluster: Cluster) -> None:
    await cluster.fill("t", "1")
    consumer = await cluster.subs("core2").consumer("t", "s", **SHARED)
    other = await cluster.subs("core3").consumer("t", "s", **SHARED)
    cluster.lose_answers("core2", "take")
    task = asyncio.ensure_future(consumer.receive(timeout_s=600))
    await until(lambda: bool(cluster.table("locks")))
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    assert bodies(await asyncio.wait_for(other.receive(), 2)) == ["1"]
    await asyncio.sleep(10)
    cluster.rejoin("core2")
    with pytest.raises((ConsumerEnded, OutcomeUnknown)):
        await task
    assert consumer.ended
    await other.close()


@story()
async def test_a_seek_takes_what_is_in_hands_away(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3")
    consumer = await cluster.subs("core2").consumer("t", "s", **SHARED)
    assert await take(consumer, 1) == ["1"]  # 2 and 3 are ahead
    await cluster.subs("core1").seek("t", "s", 1)
    assert await take(consumer, 2) == ["2", "3"]
    await cluster.subs("core1").seek("t", "s", "earliest")
    got = await consumer.receive(10)
    assert bodies(got) == ["1", "2", "3"]
    assert await consumer.ack(*got) == 3
    await consumer.close()


@story()
async def test_what_was_given_back_is_not_handed_out_from_ahead(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3")
    consumer = await cluster.subs("core2").consumer("t", "s", **SHARED)
    other = await cluster.subs("core3").consumer("t", "s", **SHARED)
    assert await take(consumer, 1) == ["1"]  # 2 and 3 are ahead
    assert await consumer.nack(2) == 1
    assert bodies(await other.receive(10)) == ["2"]
    assert await take(consumer, 1) == ["3"]
    await consumer.close()
    await other.close()


@story()
async def test_a_loop_waits_through_a_time_without_the_log(cluster: Cluster) -> None:
    consumer = await cluster.subs("core2").consumer("t", "s", **SHARED)
    task = asyncio.ensure_future(take(consumer, 2))
    await asyncio.sleep(NETWORK_S)
    lost: list[Any] = []

    def lose(node: Any, envelope: Any) -> bool:
        if tag_of(envelope) == "take" and len(lost) < 3:
            lost.append(envelope)
            return False
        return True

    cluster.filter = lose
    await cluster.fill("t", "1")
    await asyncio.sleep(60)
    await cluster.fill("t", "2")
    assert await task == ["1", "2"]
    assert len(lost) == 3
    await consumer.close()


@story()
async def test_closing_ends_who_waits(cluster: Cluster) -> None:
    consumer = await cluster.subs("core2").consumer("t", "s", **SHARED)
    waiting = asyncio.ensure_future(consumer.receive())
    loop = asyncio.ensure_future(take(consumer, 1))
    await asyncio.sleep(NETWORK_S)
    await consumer.close()
    with pytest.raises(ConsumerEnded):
        await waiting
    assert await loop == []
    assert len(cluster.subs("core2").waiting) == 0
    # A take that is under way, too: what it brings goes to others.
    await cluster.fill("t", "1")
    consumer = await cluster.subs("core2").consumer("t", "s", **SHARED)
    other = await cluster.subs("core3").consumer("t", "s", **SHARED)
    release = cluster.hold("core2", "take")
    waiting = asyncio.ensure_future(consumer.receive(timeout_s=60))
    await asyncio.sleep(NETWORK_S)
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(NETWORK_S)
    release()
    await closing
    with pytest.raises(ConsumerEnded):
        await waiting
    assert bodies(await asyncio.wait_for(other.receive(), 2)) == ["1"]
    await other.close()


@story()
async def test_many_consumers_get_everything_once(cluster: Cluster) -> None:
    """Some close in the midst of it; what was acknowledged was had by one alone."""
    done: list[str] = []

    async def work(name: str, count: int) -> None:
        async with cluster.subs(name).consumer("t", "s", prefetch=7, **SHARED) as consumer:
            for _ in range(count):
                [message] = await consumer.receive()
                await consumer.ack(message)
                done.append(message.body.decode())

    tasks = [asyncio.ensure_future(work(f"core{n % 3 + 1}", 5 + 5 * (n % 3))) for n in range(9)]
    for n in range(90):
        await cluster.fill("t", str(n), node=f"core{n % 3 + 1}")
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    await asyncio.sleep(REST_S)
    assert sorted(done, key=int) == [str(n) for n in range(90)]
    status = await cluster.subs("core1").sub("t", "s")
    assert (status.mark, status.backlog, status.locked) == (90, 0, 0)


@story()
async def test_what_another_region_acknowledged_is_not_handed_out(cluster: Cluster) -> None:
    """Neither what a loop has ahead, nor what a take that is under way brings."""
    subs = cluster.subs("core1")
    await subs.add_region("b")
    await subs.subscribe("t", "s", kind="shared", initial="earliest", replicate=True)
    await subs.seek("t", "s", "earliest")  # its epoch is not 0
    await cluster.fill("t", "1", "2", "3", "4", "5", "6", "7", "8")
    consumer = await cluster.subs("core2").consumer("t", "s", kind="shared", prefetch=4)
    assert await take(consumer, 1) == ["1"]  # 2 to 4 are ahead
    await merge(cluster, (2, 3))
    assert await take(consumer, 1) == ["4"]
    cluster.pause("core2")
    taking = asyncio.ensure_future(consumer.receive(2))
    await asyncio.sleep(NETWORK_S * 2)
    await merge(cluster, (5, 5))
    cluster.resume("core2")
    assert bodies(await taking) == ["6"]
    await asyncio.sleep(1)
    assert (await subs.sub("t", "s")).locked == 3
    assert await consumer.ack(1, 4, 6) == 6
    assert (await subs.sub("t", "s")).locked == 0
    await consumer.close()


async def merge(cluster: Cluster, span: tuple[int, int]) -> None:
    """Region b says that these are acknowledged there."""
    command = Merge("t", "b", "s", "shared", (), (("local", *span),))
    await cluster.nodes["core1"].propose(command)

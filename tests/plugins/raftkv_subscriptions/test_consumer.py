"""Consumers of exclusive and failover subscriptions: what they are handed, and when not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftkv.errors import NotApplied, OutcomeUnknown, Stopped, UnknownCommand
from raftkv_subscriptions import (
    BadName,
    Consumer,
    ConsumerEnded,
    KindDiffers,
    Message,
    NotSent,
    StillUnderWay,
    SubscriptionBusy,
    TooManyNacked,
    UnknownPosition,
    UnknownSubscription,
    UnknownTopic,
)
from raftkv_subscriptions.rows import ROWS_MAX

from .fakes import (
    NETWORK_S,
    REST_S,
    Cluster,
    FormerSubscriptions,
    bodies,
    messages,
    story,
    tag_of,
    take,
    until,
)


async def mark(cluster: Cluster, sub: str = "s") -> int:
    return (await cluster.subs("core1").sub("t", sub)).mark


@story()
async def test_receiving_and_acknowledging(cluster: Cluster) -> None:
    await cluster.fill("t", "before")
    async with cluster.subs("core2").consumer("t", "s", consumer_name="me") as consumer:
        assert consumer.active
        assert (consumer.topic, consumer.sub, consumer.kind, consumer.name) == (
            "t",
            "s",
            "exclusive",
            "me",
        )
        assert await consumer.receive(wait_s=0) == ()
        await cluster.subs("core1").publish("t", Message(b"1", "k", (("h", "v"),)))
        [one] = await consumer.receive(10)
        assert (one.topic, one.position, one.origin, one.seq) == ("t", 2, "local", 2)
        assert (one.body, one.key, one.headers, one.deliveries) == (b"1", "k", (("h", "v"),), 1)
        assert await consumer.ack(one) == 2
        await cluster.fill("t", "2", "3", "4")
        got = await consumer.receive(2)
        assert bodies(got) == ["2", "3"]
        assert await consumer.ack(got[1]) == 2
        assert await consumer.ack(got[0].position) == 4
        assert await consumer.ack_to(5) == 5
        assert await consumer.receive(wait_s=0) == ()
        assert await consumer.ack() == 5
        with pytest.raises(UnknownPosition):
            await consumer.ack(99)
        for wrong in (0, -1):
            with pytest.raises(ValueError, match="positions"):
                await consumer.ack(wrong)
    assert consumer.ended
    assert not consumer.active
    for call in (consumer.receive(), consumer.ack(1), consumer.ack_to(1), consumer.nack(1)):
        with pytest.raises(ConsumerEnded):
            await call
    assert cluster.table("consumers") == {}
    counted = cluster.subs("core2").counters
    assert (counted["received"], counted["acked"], counted["ack_commands"]) == (3, 3, 4)


@story()
async def test_what_is_no_consumer(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    with pytest.raises(UnknownTopic):
        await subs.consumer("nowhere", "s")
    with pytest.raises(UnknownTopic):
        await subs.consumer("no\ud800where", "s")
    with pytest.raises(BadName):
        await subs.consumer("t", "no good")
    with pytest.raises(BadName):
        await subs.consumer("t", "s", consumer_name="no good")
    with pytest.raises(UnknownSubscription):
        await subs.consumer("t", "s", subscribe=False)
    for wrong in ({"prefetch": 0}, {"kind": "own"}, {"initial": 3}, {"priority": -1}):
        with pytest.raises((TypeError, ValueError)):
            await subs.consumer("t", "s", **wrong)  # type: ignore[arg-type]
    consumer = await subs.consumer("t", "s")
    with pytest.raises(SubscriptionBusy):
        await cluster.subs("core2").consumer("t", "s")
    with pytest.raises(KindDiffers):
        await cluster.subs("core2").consumer("t", "s", kind="shared")
    other = await subs.consumer("t", "s2")
    [one] = await _published(cluster, other, "1")
    with pytest.raises(ValueError, match="of 't'"):
        await consumer.ack(_of_topic(one, "u"))
    for count in (0, ROWS_MAX + 1):
        with pytest.raises(ValueError, match="count"):
            await consumer.receive(count)
    await consumer.close()
    await other.close()


async def _published(cluster: Cluster, consumer: Consumer, *texts: str) -> tuple[Any, ...]:
    await cluster.fill("t", *texts)
    return await consumer.receive(len(texts), wait_s=1)


def _of_topic(message: Any, topic: str) -> Any:
    return type(message)(topic, message.position, message.origin, message.seq, message.body)


@story()
async def test_a_new_consumer_goes_on_at_the_mark_and_skips_what_was_acknowledged(
    cluster: Cluster,
) -> None:
    await cluster.fill("t", "1", "2", "3", "4", "5")
    async with cluster.subs("core2").consumer("t", "s", initial="earliest") as consumer:
        got = await consumer.receive(5)
        await consumer.ack(got[0], got[2])
    async with cluster.subs("core3").consumer("t", "s") as consumer:
        again = await consumer.receive(10)
        assert bodies(again) == ["2", "4", "5"]
        assert [one.deliveries for one in again] == [1, 1, 1]


@story()
async def test_messages_come_without_any_entry(cluster: Cluster) -> None:
    await cluster.fill("t", *(str(n) for n in range(1_000)))
    async with cluster.subs("core2").consumer("t", "s", initial="earliest") as consumer:
        before = len(cluster.log)
        assert await take(consumer, 1_000) == [str(n) for n in range(1_000)]
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(1_000)
        assert len(cluster.log) == before
        assert not waiting.done()
        await cluster.fill("t", "more")
        assert bodies(await asyncio.wait_for(waiting, NETWORK_S)) == ["more"]


@story()
async def test_acknowledgements_that_wait_go_together(cluster: Cluster) -> None:
    await cluster.fill("t", *(str(n) for n in range(200)))
    async with cluster.subs("core2").consumer("t", "s", initial="earliest") as consumer:
        got = await consumer.receive(200)
        await asyncio.gather(*(consumer.ack(one) for one in got[:100]))
        assert cluster.proposals("ack_delivered") == 1
        assert await mark(cluster) == 100
        # One that is refused does not hit the others.
        calls = [consumer.ack(one) for one in got[100:110]]
        done = await asyncio.gather(consumer.ack(9_999), *calls, return_exceptions=True)
        assert isinstance(done[0], UnknownPosition)
        assert done[-1] == 110
        calls = [consumer.ack_to(one) for one in got[110:120]]
        done = await asyncio.gather(consumer.ack_to(9_999), *calls, return_exceptions=True)
        assert isinstance(done[0], UnknownPosition)
        assert done[-1] == 120
        assert await mark(cluster) == 120


@story()
async def test_more_than_a_command_takes_is_acknowledged_in_parts(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    count = ROWS_MAX + 10
    await asyncio.gather(*(subs.publish("t", b"x") for _ in range(count)))
    async with subs.consumer("t", "s", initial="earliest") as consumer:
        got = [*await consumer.receive(ROWS_MAX), *await consumer.receive(ROWS_MAX)]
        assert await consumer.ack(*got) == count
        assert cluster.proposals("ack_delivered") == 2


@story()
async def test_what_was_acknowledged_meanwhile_is_not_handed_out(cluster: Cluster) -> None:
    """By an operator, or in another region: also of what a loop has ahead."""
    subs = cluster.subs("core1")
    await cluster.fill("t", "1", "2", "3", "4", "5", "6")
    async with cluster.subs("core2").consumer("t", "s", initial="earliest") as consumer:
        assert await take(consumer, 1) == ["1"]  # the others are ahead
        await subs.ack("t", "s", [3, 5])
        assert await take(consumer, 2) == ["2", "4"]
        await subs.ack_to("t", "s", 6)
        assert await consumer.receive(wait_s=0) == ()
        await cluster.fill("t", "7")
        assert await take(consumer, 1) == ["7"]


@story()
async def test_a_seek_begins_anew_and_old_acknowledgements_mean_nothing(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3", "4")
    async with cluster.subs("core2").consumer("t", "s", initial="earliest") as consumer:
        first = await consumer.receive()
        assert await take(consumer, 1) == ["2"]  # 3 and 4 are ahead
        await cluster.subs("core1").seek("t", "s", "earliest")
        # They were handed out before the seek, which wants them again.
        assert await consumer.ack(*first) == 0
        assert await consumer.ack_to(first[0]) == 0
        assert await consumer.nack(*first) == 0
        assert cluster.proposals("ack_delivered") == cluster.proposals("ack_to_delivered") == 0
        assert cluster.subs("core2").counters["stale_acks"] == 3
        assert await take(consumer, 4) == ["1", "2", "3", "4"]
        sought = await consumer.seek(2)
        assert sought.mark == 2
        assert bodies(await consumer.receive(10)) == ["3", "4"]
        await consumer.seek("latest")
        assert await consumer.receive(wait_s=0) == ()
        waiting = asyncio.ensure_future(consumer.receive(10))
        await asyncio.sleep(NETWORK_S)
        await consumer.seek(0)
        assert bodies(await waiting) == ["1", "2", "3", "4"]
        for wrong in ({}, {"where": 1, "at_ms": 1}, {"where": -1}, {"where": "x"}):
            with pytest.raises(ValueError):  # noqa: PT011
                await consumer.seek(**wrong)  # type: ignore[arg-type]


@story()
async def test_a_seek_is_not_undone_by_an_acknowledgement_under_way(cluster: Cluster) -> None:
    """Pulsar 26304: both are under way at once, and the seek comes first in the log."""
    subs = cluster.subs("core1")
    for round, cumulative in enumerate((True, False, True)):
        await cluster.fill("t", *map(str, range(10)))
        async with cluster.subs("core2").consumer("t", f"s{round}", initial="earliest") as consumer:
            got = await consumer.receive(10)
            said = consumer.ack_to(got[-1]) if cumulative else consumer.ack(*got)
            sought, marked = await asyncio.gather(subs.seek("t", f"s{round}", 2), said)
            assert sought.mark == 2
            assert marked in (2, 10)  # whichever was first
            assert [each.position for each in await consumer.receive(3)] == [3, 4, 5]


@story()
async def test_positions_are_of_what_the_consumer_received_last(cluster: Cluster) -> None:
    """As a client that speaks HTTP gives them, with the epoch or without."""
    await cluster.fill("t", "1", "2", "3")
    async with cluster.subs("core2").consumer("t", "s", initial="earliest") as consumer:
        old = (await consumer.receive(3))[0].epoch
        await cluster.subs("core1").seek("t", "s", "earliest")
        assert await consumer.ack(1, 2) == 0
        assert await consumer.ack_to(3) == 0
        assert await consumer.nack(1) == 0
        new = (await consumer.receive(3))[0].epoch
        assert await consumer.ack_to(3, epoch=old) == 0
        assert await consumer.ack(1, epoch=old) == 0
        assert await consumer.ack(1, 2) == 2
        assert await consumer.ack_to(3, epoch=new) == 3
        assert (await cluster.subs("core1").ack("t", "s", [1], epoch=old)).done == 0
        assert (await cluster.subs("core1").ack_to("t", "s", 3, epoch=new)).mark == 3


@story(plugin=FormerSubscriptions)
async def test_at_format_1_acknowledgements_have_no_epoch(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3")
    async with cluster.subs("core2").consumer("t", "s", initial="earliest") as consumer:
        got = await consumer.receive(3)
        assert (await consumer.ack(got[0]), await consumer.ack_to(got[2])) == (1, 3)
        assert (cluster.proposals("ack"), cluster.proposals("ack_to")) == (1, 1)
        with pytest.raises(UnknownCommand):
            await cluster.subs("core1").ack("t", "s", [1], epoch=got[0].epoch)
    more = {"kind": "shared", "initial": "earliest"}
    async with cluster.subs("core2").consumer("t", "sh", **more) as consumer:
        assert await consumer.nack(*await consumer.receive(1)) == 1
        assert (cluster.proposals("release"), cluster.proposals("release_delivered")) == (1, 0)


@story()
async def test_seeking_to_a_time(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    times = []
    for n in range(5):
        await cluster.fill("t", f"{n}a", f"{n}b")
        times.append(cluster.stamp_ms)
        await asyncio.sleep(1)
    await subs.subscribe("t", "s")
    async with subs.consumer("t", "s") as consumer:
        for n, at_ms in enumerate(times):
            await subs.seek("t", "s", at_ms=at_ms)
            assert bodies(await consumer.receive(1)) == [f"{n}a"]
            await subs.seek("t", "s", at_ms=at_ms + 1)
            rest = await consumer.receive(1, wait_s=0)
            assert bodies(rest) == ([f"{n + 1}a"] if n < 4 else [])
        await subs.seek("t", "s", at_ms=0)
        assert bodies(await consumer.receive(1)) == ["0a"]


@story(unacked_max=3)
async def test_negative_acknowledgements_come_after_the_others(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3", "4")
    async with cluster.subs("core2").consumer("t", "s", initial="earliest") as consumer:
        got = await consumer.receive(3)
        assert await consumer.nack(got[0], got[1], got[0]) == 2
        await cluster.fill("t", "later")
        rest = await consumer.receive(10)
        assert bodies(rest) == ["4", "1", "2", "later"]
        assert [one.deliveries for one in rest] == [1, 2, 2, 1]
        assert await consumer.nack(rest[1]) == 1
        [again] = await consumer.receive(10)
        assert (again.body, again.deliveries) == (b"1", 3)
        await consumer.ack(again)
        assert await consumer.nack(again) == 0  # it is done with
        # One that was not handed out, or that is waited for, is none.
        assert await consumer.nack(99) == 0
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(NETWORK_S)
        assert await consumer.nack(got[2]) == 1
        assert bodies(await asyncio.wait_for(waiting, NETWORK_S)) == ["3"]
        with pytest.raises(TooManyNacked):
            await consumer.nack(rest[0], rest[3])
        assert before_acks(cluster)


def before_acks(cluster: Cluster) -> bool:
    """Nothing of it was an entry."""
    return cluster.proposals("release") == 0


@story()
async def test_failover(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3")
    options: dict[str, Any] = {"kind": "failover", "initial": "earliest"}
    first = await cluster.subs("core1").consumer("t", "s", priority=1, **options)
    second = await cluster.subs("core2").consumer("t", "s", priority=2, **options)
    assert (first.active, second.active) == (True, False)
    got = await first.receive(2)
    await first.ack(got[0])
    waiting = asyncio.ensure_future(second.receive(10))
    await asyncio.sleep(1)
    assert not waiting.done()
    # One that is wanted more takes over: the former one hands out nothing more.
    assert await take(first, 1) == ["3"]
    await cluster.fill("t", "4", "5")
    assert await take(first, 1) == ["4"]  # 5 is ahead
    third = await cluster.subs("core3").consumer("t", "s", priority=0, **options)
    await asyncio.sleep(NETWORK_S)
    assert (first.active, second.active, third.active) == (False, False, True)
    assert await first.receive(wait_s=0) == ()
    assert bodies(await third.receive(10)) == ["2", "3", "4", "5"]
    await third.close()
    assert first.active
    again = asyncio.ensure_future(first.receive(10))
    assert bodies(await again) == ["2", "3", "4", "5"]
    await first.close()
    assert bodies(await waiting) == ["2", "3", "4", "5"]
    await second.close()


@story()
async def test_a_consumer_of_a_dead_node_is_taken_over(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2")
    options: dict[str, Any] = {"kind": "failover", "initial": "earliest"}
    first = await cluster.subs("core2").consumer("t", "s", **options)
    second = await cluster.subs("core3").consumer("t", "s", **options)
    await first.ack(*await first.receive())
    waiting = asyncio.ensure_future(second.receive(10))
    exclusive = await cluster.subs("core2").consumer("t", "e", initial="earliest")
    assert bodies(await exclusive.receive(10)) == ["1", "2"]
    stale = asyncio.ensure_future(first.receive(10))
    await stale
    stale = asyncio.ensure_future(first.receive(10))
    await asyncio.sleep(NETWORK_S)
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    assert bodies(await asyncio.wait_for(waiting, 2)) == ["2"]
    other = await cluster.subs("core1").consumer("t", "e")
    assert bodies(await other.receive(10)) == ["1", "2"]
    # The old ones do not know; what they are told is nothing, and then that it is over.
    assert first.active
    acking = asyncio.ensure_future(exclusive.ack(1, timeout_s=60))
    await asyncio.sleep(1)
    cluster.rejoin("core2")
    with pytest.raises(ConsumerEnded):
        await stale
    with pytest.raises((ConsumerEnded, OutcomeUnknown)):
        await acking
    assert first.ended
    assert exclusive.ended
    assert len(cluster.subs("core2").consumers) == 0
    assert cluster.subs("core2").counters["consumers_ended"] == 2
    await other.close()
    await second.close()


@story()
async def test_a_new_life_has_no_old_consumers(cluster: Cluster) -> None:
    """Also before anybody has swept them."""
    await cluster.fill("t", "1")
    consumer = await cluster.subs("core2").consumer("t", "s", initial="earliest")
    shared = await cluster.subs("core2").consumer("t", "sh", kind="shared", initial="earliest")
    release = cluster.hold("core1", "sweep")
    cluster.declare_dead("core2")
    cluster.node_up(cluster.nodes["core2"])
    assert set(cluster.table("consumers")) == {consumer.id, shared.id}
    for call in (consumer.receive(), consumer.ack(1), shared.receive(), shared.nack(1)):
        with pytest.raises(ConsumerEnded):
            await call
    assert consumer.ended
    assert len(cluster.subs("core2").consumers) == 0
    release()
    await asyncio.sleep(REST_S)
    assert cluster.table("consumers") == {}


@story()
async def test_a_deleted_subscription_ends_its_consumers(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    await subs.declare("u", replicated=False)
    consumer = await cluster.subs("core2").consumer("u", "s")
    other = await cluster.subs("core3").consumer("u", "s2")
    waiting = asyncio.ensure_future(consumer.receive())
    loop = asyncio.ensure_future(take(other, 1))
    await asyncio.sleep(NETWORK_S)
    await subs.unsubscribe("u", "s", force=True)
    with pytest.raises(ConsumerEnded):
        await waiting
    with pytest.raises(ConsumerEnded):
        await consumer.ack(1)
    assert not loop.done()
    await subs.delete("u")
    with pytest.raises(ConsumerEnded):
        await loop


@story()
async def test_acknowledgements_do_not_hit_a_topic_of_the_same_name(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    await subs.declare("u", replicated=False)
    await cluster.fill("u", "1")
    consumer = await cluster.subs("core2").consumer("u", "s", initial="earliest")
    [one] = await consumer.receive()
    cluster.pause("core2")  # it does not know
    await subs.delete("u")
    await subs.declare("u", replicated=False)
    await subs.subscribe("u", "s", initial="earliest")
    await cluster.fill("u", "another")
    position = (await subs.topic("u")).next - 1
    calls = [
        asyncio.ensure_future(consumer.ack(one, timeout_s=60)),
        asyncio.ensure_future(consumer.ack(position, timeout_s=60)),
        asyncio.ensure_future(consumer.ack_to(position, timeout_s=60)),
    ]
    await asyncio.sleep(1)
    cluster.resume("core2")
    for call in calls:
        with pytest.raises(ConsumerEnded):
            await call
    async with subs.consumer("u", "s") as new:
        assert bodies(await new.receive()) == ["another"]


@story()
async def test_a_lost_answer_of_an_acknowledgement_is_fetched(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3")
    async with cluster.subs("core2").consumer("t", "s", initial="earliest") as consumer:
        got = await consumer.receive(3)
        cluster.lose_answers("core2", "ack_delivered")
        assert await consumer.ack(got[0], timeout_s=60) == 1
        cluster.lose_answers("core2", "ack_to_delivered")
        assert await consumer.ack_to(got[1], timeout_s=60) == 2
        lost: list[Any] = []

        def lose(node: Any, envelope: Any) -> bool:
            if tag_of(envelope) == "ack_delivered" and not lost:
                lost.append(envelope)
                return False
            return True

        cluster.filter = lose
        assert await consumer.ack(got[2], timeout_s=60) == 3
        assert len(lost) == 1


@story()
async def test_who_leaves_an_acknowledgement_decides_nothing(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3", "4")
    async with cluster.subs("core2").consumer("t", "s", initial="earliest") as consumer:
        got = await consumer.receive(4)
        release = cluster.hold("core2", "ack_delivered")
        begun = asyncio.ensure_future(consumer.ack(got[0], timeout_s=0.1))
        await asyncio.sleep(NETWORK_S)
        late = asyncio.ensure_future(consumer.ack(got[1], timeout_s=0.1))
        left = asyncio.ensure_future(consumer.ack(got[2]))
        await asyncio.sleep(NETWORK_S)
        left.cancel()
        with pytest.raises(StillUnderWay):
            await begun
        with pytest.raises(NotSent):
            await late
        last = asyncio.ensure_future(consumer.ack(got[3], timeout_s=60))
        release()
        assert await last == 1
        assert await mark(cluster) == 1


@story()
async def test_opening_is_cancelled_or_lost(cluster: Cluster) -> None:
    subs = cluster.subs("core2")
    await subs.subscribe("t", "s")
    # The answer is lost: it is fetched.
    cluster.lose_answers("core2", "attach")
    consumer = await subs.consumer("t", "s", timeout_s=60)
    await consumer.close()
    # The caller leaves: nothing is left behind.
    for tag in ("subscribe", "attach"):
        release = cluster.hold("core2", tag)
        task = asyncio.ensure_future(_open(cluster, "s"))
        await asyncio.sleep(5 * NETWORK_S)
        task.cancel()
        await asyncio.sleep(NETWORK_S)
        release()
        await asyncio.sleep(REST_S)
        assert cluster.table("consumers") == {}
        assert len(subs.consumers) == 0
    # At the very moment at which the answer comes.
    for steps in range(12):
        task = asyncio.ensure_future(_open(cluster, "s"))
        await asyncio.sleep(2 * NETWORK_S)
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        [done] = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(done, asyncio.CancelledError):
            await done.close()
        await asyncio.sleep(REST_S)
        assert cluster.table("consumers") == {}, steps
    # Time is up.
    release = cluster.hold("core2", "attach")
    with pytest.raises(StillUnderWay):
        await subs.consumer("t", "s", timeout_s=0.1)
    release()
    await asyncio.sleep(REST_S)
    assert cluster.table("consumers") == {}


async def _open(cluster: Cluster, sub: str) -> Consumer:
    return await cluster.subs("core2").consumer("t", sub)


@story()
async def test_a_life_that_ends_while_it_is_opened(cluster: Cluster) -> None:
    subs = cluster.subs("core2")
    await subs.subscribe("t", "s", initial="earliest")
    cluster.lose_answers("core2", "attach")
    task = asyncio.ensure_future(_open_patiently(cluster, "s"))
    await until(lambda: bool(cluster.table("consumers")))
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    await asyncio.sleep(10)
    cluster.rejoin("core2")
    consumer = await task
    await cluster.fill("t", "1")
    assert bodies(await consumer.receive()) == ["1"]
    await consumer.close()


async def _open_patiently(cluster: Cluster, sub: str) -> Consumer:
    return await cluster.subs("core2").consumer("t", sub, timeout_s=600)


@story()
async def test_closing(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2")
    consumer = await cluster.subs("core2").consumer("t", "s", initial="earliest")
    got = await consumer.receive(2)
    waiting = asyncio.ensure_future(consumer.receive())
    loop = asyncio.ensure_future(take(consumer, 1))
    acking = asyncio.ensure_future(consumer.ack(got[0]))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(consumer.close())
    with pytest.raises(ConsumerEnded):
        await waiting
    assert await loop == []  # a loop ends
    assert await acking == 1  # what was said before is done first
    await closing
    await consumer.close()
    assert cluster.table("consumers") == {}
    # Without the log it goes on behind.
    consumer = await cluster.subs("core2").consumer("t", "s")
    release = cluster.hold("core2", "detach")
    with pytest.raises(StillUnderWay):
        await consumer.close(timeout_s=0.1)
    assert consumer.ended
    with pytest.raises(ConsumerEnded):
        await consumer.receive(wait_s=0)
    release()
    await asyncio.sleep(REST_S)
    assert cluster.table("consumers") == {}


@story()
async def test_a_close_that_nobody_waits_for_is_done(cluster: Cluster) -> None:
    """Also when its turn comes after its caller has left."""
    await cluster.fill("t", "1")
    consumer = await cluster.subs("core2").consumer("t", "s", initial="earliest")
    got = await consumer.receive()
    release = cluster.hold("core2", "ack_delivered")
    acking = asyncio.ensure_future(consumer.ack(*got, timeout_s=60))
    await asyncio.sleep(NETWORK_S)
    with pytest.raises(StillUnderWay):
        await consumer.close(timeout_s=0.05)
    release()
    assert await acking == 1
    await asyncio.sleep(REST_S)
    assert cluster.table("consumers") == {}


@story()
async def test_waiting_has_an_end(cluster: Cluster) -> None:
    async with cluster.subs("core2").consumer("t", "s") as consumer:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await consumer.receive(wait_s=2.5) == ()
        assert loop.time() - began == pytest.approx(2.5)
        task = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(NETWORK_S)
        task.cancel()
        await asyncio.sleep(NETWORK_S)
        assert len(cluster.subs("core2").waiting) == 0
        await cluster.fill("t", "1")
        assert bodies(await consumer.receive(wait_s=0)) == ["1"]


@story()
async def test_two_tasks_share_a_consumer(cluster: Cluster) -> None:
    async with cluster.subs("core2").consumer("t", "s") as consumer:
        tasks = [asyncio.ensure_future(take(consumer, 5)) for _ in range(2)]
        for n in range(10):
            await cluster.fill("t", str(n))
        got = await asyncio.gather(*tasks)
        assert sorted(got[0] + got[1]) == [str(n) for n in range(10)]


@story()
async def test_a_snapshot_jumps_over_everything(cluster: Cluster) -> None:
    consumer = await cluster.subs("core3").consumer("t", "s")
    gone = await cluster.subs("core3").consumer("t", "gone")
    waiting = asyncio.ensure_future(consumer.receive(10))
    lost = asyncio.ensure_future(gone.receive(10))
    await asyncio.sleep(NETWORK_S)
    cluster.pause("core3")
    await cluster.fill("t", "1", "2")
    await cluster.subs("core1").ack("t", "s", [1])
    await cluster.subs("core1").unsubscribe("t", "gone", force=True)
    cluster.jump("core3")
    assert bodies(await waiting) == ["2"]
    with pytest.raises(ConsumerEnded):
        await lost
    await consumer.close()


@story()
async def test_a_node_that_stops_ends_what_waits(cluster: Cluster) -> None:
    consumer = await cluster.subs("core2").consumer("t", "s")
    waiting = asyncio.ensure_future(consumer.receive())
    other = await cluster.subs("core2").consumer("t", "other", initial="earliest")
    await cluster.fill("t", "1", "2", "3")
    await waiting
    waiting = asyncio.ensure_future(consumer.receive(10))
    await waiting
    waiting = asyncio.ensure_future(consumer.receive())
    assert await take(other, 1) == ["1"]  # two are ahead
    await asyncio.sleep(NETWORK_S)
    await cluster.stop("core2")
    with pytest.raises(Stopped):
        await waiting
    # What a stopped node has is out of date.
    for call in (other.receive(), anext(other)):
        with pytest.raises(Stopped):
            await call
    for call in (consumer.receive(), consumer.ack(1)):
        with pytest.raises(NotApplied):
            await call
    with pytest.raises(Stopped):
        await cluster.subs("core2").consumer("t", "s")


@story(message_bytes_max=65_536)
async def test_a_batch_has_a_bound_in_bytes(cluster: Cluster) -> None:
    await cluster.subs("core1").publish("t", [Message(b"x" * 1_000)] * 10)
    async with cluster.subs("core2").consumer("t", "s", initial="earliest") as consumer:
        assert len(await consumer.receive(10, bytes_max=3_500)) == 3
        assert len(await consumer.receive(10, bytes_max=1)) == 1
        with pytest.raises(ValueError, match="bytes_max"):
            await consumer.receive(1, bytes_max=-1)
        assert await take(consumer, 1) == ["x" * 1_000]  # five are ahead
        assert len(await consumer.receive(10, bytes_max=3_500)) == 3
        assert len(await consumer.receive(10, bytes_max=1)) == 1
        assert len(await consumer.receive(10)) == 1


def test_a_hundred_consumers_each_get_everything() -> None:
    """Of a hundred subscriptions: the rows of all of them are listened to."""

    @story()
    async def body(cluster: Cluster) -> None:
        subs = cluster.subs("core2")
        consumers = [await subs.consumer("t", f"s{n}") for n in range(100)]
        tasks = [asyncio.ensure_future(take(consumer, 3)) for consumer in consumers]
        await asyncio.sleep(NETWORK_S)
        for text in ("1", "2", "3"):
            await subs.publish("t", messages(text))
        for task in tasks:
            assert await task == ["1", "2", "3"]
        for consumer in consumers:
            await consumer.close()

    body()

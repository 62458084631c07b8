"""What a session acquires, and subscriptions."""

from __future__ import annotations

import asyncio

import pytest

from raftkv.errors import FormatRefused
from raftkv_txqueue import (
    Delivery,
    Message,
    SessionEnded,
    Subscription,
    TooManyAcquired,
    UnknownQueue,
)
from raftkv_txqueue.commands import ROWS_MAX, Acquired
from raftkv_txqueue.consuming import deliveries_of

from .fakes import (
    NETWORK_S,
    REST_S,
    Cluster,
    FormerTxQueue,
    bodies,
    messages,
    story,
)


async def soon() -> None:
    await asyncio.sleep(20 * NETWORK_S)


async def take(subscription: Subscription, count: int) -> list[Delivery]:
    """That many of its messages."""
    return [await anext(subscription) for _ in range(count)]


# --- get ------------------------------------------------------------------------------------------


@story()
async def test_what_is_delivered(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session()
    await txq.publish("a", Message(b"x", (("kind", "book"),)))
    assert await session.get("a", 10) == (Delivery("a", 1, b"x", (("kind", "book"),), 1, False),)
    assert await session.get("a", 10) == ()
    assert session.holds("a", 1)
    assert not session.holds("b", 1)
    await session.release(*session.held)
    assert await session.get("a", 10) == (Delivery("a", 1, b"x", (("kind", "book"),), 2, True),)
    assert txq.counters["acquired"] == 2
    assert txq.counters["redelivered"] == 1
    assert txq.counters["empty_acquires"] == 1


@story(acquired_max=3)
async def test_bounds(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    await cluster.fill("a", "x" * 100, "y" * 100, "z" * 100, "1", "2")
    assert len(await session.get("a", 5, bytes_max=350)) == 2
    assert len(await session.get("a", 1, bytes_max=1)) == 1
    with pytest.raises(TooManyAcquired):
        await session.get("a", 1)
    with pytest.raises(UnknownQueue):
        await session.get("nowhere")
    for count in (0, ROWS_MAX + 1):
        with pytest.raises(ValueError, match="messages"):
            await session.get("a", count)
    with pytest.raises(ValueError, match="prefetch"):
        session.subscribe("a", prefetch=0)


@story()
async def test_what_is_not_held_any_more_is_not_delivered(cluster: Cluster) -> None:
    """Between the entry that acquires and the look at the tables there may be others."""
    txq = cluster.txq("core1")
    session = await txq.session()
    await cluster.fill("a", "1", "2")
    await session.get("a", 2)
    view = cluster.nodes["core1"].view()
    answer = Acquired((1, 2, 3), (1, 1, 1), 0)
    assert bodies(deliveries_of(view, session.id, "a", answer)) == ["1", "2"]
    assert deliveries_of(view, session.id, "a", Acquired((1,), (2,), 0)) == ()  # of another time
    assert deliveries_of(view, session.id + 1, "a", answer) == ()
    await txq.delete("a")
    view = cluster.nodes["core1"].view()
    assert deliveries_of(view, session.id, "a", answer) == ()
    await txq.declare("a")
    await cluster.fill("a", "others", "messages")
    view = cluster.nodes["core1"].view()
    assert deliveries_of(view, session.id, "a", answer) == ()


@story()
async def test_the_next_ones_come_while_the_last_are_settled(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    await cluster.fill("a", "1", "2")
    got = await session.get("a")
    release = cluster.hold("core1", "settle")
    settling = asyncio.ensure_future(session.accept(*got))
    await asyncio.sleep(0)
    assert bodies(await session.get("a")) == ["2"]
    release()
    await settling


# --- subscriptions --------------------------------------------------------------------------------


@story()
async def test_a_subscription_hands_out_all_in_order(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    texts = [str(number) for number in range(50)]

    async def produce() -> None:
        for text in texts:
            await cluster.fill("a", text, node="core2")
            await asyncio.sleep(int(text) % 3 * NETWORK_S)

    producing = asyncio.ensure_future(produce())
    seen = []
    async with txq.session() as session, session.subscribe("a", prefetch=7) as subscription:
        async for delivery in subscription:
            seen.append(delivery.body.decode())
            await session.accept(delivery)
            if len(seen) == len(texts):
                break
    await producing
    assert seen == texts
    assert cluster.everywhere("a", everything=True) == []


@story()
async def test_prefetch_bounds_what_is_not_settled(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session, other = await txq.session(), await txq.session()
    await cluster.fill("a", *"123456789")
    subscription = session.subscribe("a", prefetch=3)
    taken = await take(subscription, 3)
    more = asyncio.ensure_future(anext(subscription))
    await soon()
    assert not more.done()
    assert bodies(await other.get("a", 2)) == ["4", "5"]
    await session.accept(taken[1])
    assert (await more).body == b"6"
    more = asyncio.ensure_future(anext(subscription))
    await soon()
    assert not more.done()
    await session.release(taken[0])
    assert (await more).body == b"1"


@story()
async def test_a_closed_subscription_gives_back_what_was_not_handed_out(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    await cluster.fill("a", *"12345")
    async with session.subscribe("a", prefetch=4) as subscription:
        [first] = await take(subscription, 1)
        assert len(session.held) == 4
    assert session.held == (first,)
    assert cluster.everywhere("a") == ["2", "3", "4", "5"]
    with pytest.raises(StopAsyncIteration):
        await anext(subscription)
    await subscription.close()


@story()
async def test_a_cancelled_subscription_loses_nothing(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    subscription = session.subscribe("a", prefetch=2)
    seen = []
    for turn in range(40):
        await cluster.fill("a", str(turn))
        waiting = asyncio.ensure_future(anext(subscription))
        if turn % 2:
            await asyncio.sleep(NETWORK_S)
        for _ in range(turn // 2 % 8):
            await asyncio.sleep(0)
        waiting.cancel()
        try:
            delivery = await waiting
        except asyncio.CancelledError:
            delivery = await anext(subscription)
        seen.append(delivery.body.decode())
        await session.accept(delivery)
    assert seen == [str(turn) for turn in range(40)]


@story()
async def test_a_subscription_ends_with_its_session_and_its_queue(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session()
    waiting = asyncio.ensure_future(anext(session.subscribe("a")))
    await soon()
    await txq.delete("a")
    with pytest.raises(UnknownQueue):
        await waiting
    await cluster.fill("b", "1")
    subscription = session.subscribe("b", prefetch=1)
    [one] = await take(subscription, 1)
    full = asyncio.ensure_future(anext(subscription))
    waiting = asyncio.ensure_future(anext(session.subscribe("b")))
    await soon()
    await session.close()
    for task in (full, waiting):
        with pytest.raises(SessionEnded):
            await task
    await subscription.close()
    assert one.body == b"1"
    with pytest.raises(SessionEnded):
        session.subscribe("b")


@story()
async def test_a_subscription_outlasts_a_cluster_without_a_leader(cluster: Cluster) -> None:
    session = await cluster.txq("core2").session()
    subscription = session.subscribe("a")
    await cluster.fill("a", "1")
    cluster.isolate("core2")
    waiting = asyncio.ensure_future(anext(subscription))
    await asyncio.sleep(4 * REST_S)
    assert not waiting.done()
    cluster.heal("core2")
    assert (await waiting).body == b"1"


@story()
async def test_consuming_in_transactions(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await cluster.fill("a", *"123456")
    async with session.subscribe("a", prefetch=2) as subscription:
        for number in range(1, 7):
            delivery = await anext(subscription)
            async with session.transaction() as tx:
                await tx.accept(delivery)
                await tx.publish("b", messages(f"{number}!"))
    assert cluster.everywhere("a", everything=True) == []
    assert cluster.everywhere("b") == [f"{number}!" for number in range(1, 7)]


# --- what no program has had --------------------------------------------------------------------


@story()
async def test_innocent_messages_do_not_die_with_a_poison_one(cluster: Cluster) -> None:
    """RabbitMQ 2207: a consumer that dies of one message has a hundred more, taken ahead."""
    txq = cluster.txq("core1")
    await txq.declare("dead")
    await txq.declare("jobs", deliveries_max=2, dead_letter="dead")
    await cluster.fill("jobs", "poison", *(f"job{number}" for number in range(1, 50)))

    async def consume() -> None:
        async with txq.session() as session, session.subscribe("jobs") as jobs:
            async for _delivery in jobs:
                raise RuntimeError

    for _ in range(2):
        with pytest.raises(RuntimeError):
            await consume()
    await soon()
    assert cluster.bodies("core1", "dead") == ["poison"]
    async with txq.session() as session:
        got = await session.get("jobs", 100)
        assert [one.body.decode() for one in got] == [f"job{number}" for number in range(1, 50)]
        assert {(one.deliveries, one.redelivered) for one in got} == {(1, False)}
    assert txq.counters["put_back"] == 98


@story()
async def test_a_session_that_closes_puts_back_what_a_loop_has_ahead(cluster: Cluster) -> None:
    """The loop is left without closing its subscription, and its object is gone."""
    txq = cluster.txq("core1")
    await txq.declare("once", deliveries_max=1)
    await cluster.fill("once", "1", "2", "3")
    session = await txq.session()
    async for delivery in session.subscribe("once"):
        assert delivery.body == b"1"
        break
    assert len(session.held) == 3
    await session.close()
    assert cluster.bodies("core1", "once") == ["2", "3"]
    assert (await txq.depth("once")).dead == 1


@story()
async def test_a_cancelled_get_is_no_delivery(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await txq.declare("once", deliveries_max=1)
    await cluster.fill("once", "1")
    for turns in range(6):
        async with txq.session() as session:
            getting = asyncio.ensure_future(session.get("once"))
            for _ in range(turns):
                await asyncio.sleep(0)
            getting.cancel()
            await asyncio.wait([getting])
            await soon()
            assert session.held == ()
    assert cluster.bodies("core1", "once") == ["1"]


@story()
async def test_a_program_puts_back_what_it_has_not_looked_at(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await txq.declare("once", deliveries_max=1)
    await cluster.fill("once", "1", "2")
    async with txq.session() as session:
        first, second = await session.get("once", 2)
        done = await session.put_back(second)
        assert (done["once"].done, done["once"].missing) == (1, ())
        assert (await session.put_back(second))["once"].missing == (2,)
        await session.release(first)
    assert cluster.bodies("core1", "once") == ["2"]


@story(plugin=FormerTxQueue)
async def test_at_format_1_what_is_put_back_counts(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await cluster.fill("a", "1", "2")
    async with txq.session() as session, session.subscribe("a") as deliveries:
        assert (await anext(deliveries)).body == b"1"
    assert cluster.proposals("put_back") == 0
    async with txq.session() as session:
        assert [one.deliveries for one in await session.get("a", 2)] == [2, 2]


# --- times, and the return to the back ------------------------------------------------------------


@story()
async def test_a_waiting_consumer_gets_a_delayed_message_when_it_is_due(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session()
    published = await txq.publish("a", b"late", delay_s=3.0)
    assert published.first == 1
    assert (await txq.depth("a")).delayed == 1
    assert await session.get("a", wait_s=1.0) == ()
    (got,) = await session.get("a", wait_s=30.0)
    assert (got.body, got.deliveries) == (b"late", 1)
    assert dict(got.headers) == {"x-raftkv-delay-ms": "3000"}


@story()
async def test_an_expired_message_reaches_nobody_but_the_dead_letters(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await txq.declare("dead")
    await txq.declare("jobs", dead_letter="dead")
    await txq.publish("jobs", b"old", ttl_s=1.0)
    async with txq.session("tx") as session:
        async with session.transaction() as tx:
            await tx.publish("jobs", b"old, too", ttl_s=1.0)
            await tx.publish("jobs", b"new")
    async with txq.session() as dead:
        letters = [*await dead.get("dead", 9, wait_s=30.0)]
        while len(letters) < 2:
            letters += await dead.get("dead", 9, wait_s=30.0)
        assert {dict(each.headers)["x-raftkv-died-of"] for each in letters} == {"expired"}
        assert [each.body for each in await dead.get("jobs", 9)] == [b"new"]


@story()
async def test_a_program_returns_a_message_to_the_back(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await cluster.fill("a", "1", "2", "3")
    async with txq.session() as session:
        first, second = await session.get("a", 2)
        done = await session.to_back(first)
        assert (done["a"].done, done["a"].missing) == (1, ())
        assert (await session.to_back(first))["a"].missing == (1,)
        await session.release(second)
        got = await session.get("a", 3)
        assert [(each.body, each.seq) for each in got] == [(b"2", 2), (b"3", 3), (b"1", 4)]
        assert [each.deliveries for each in got] == [2, 1, 2]
    assert txq.counters["to_back"] == 1


@story(plugin=FormerTxQueue)
async def test_below_format_2_times_and_the_back_are_refused(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    with pytest.raises(FormatRefused, match="raftkv format raise"):
        await txq.publish("a", b"x", ttl_s=1.0)
    async with txq.session() as session:
        with pytest.raises(FormatRefused):
            await session.publish("a", Message(b"x", (("x-raftkv-delay-ms", "5"),)))
        await txq.publish("a", b"1")
        with pytest.raises(FormatRefused):
            await session.to_back(*await session.get("a"))

"""Who waits on a node: consumers in line, and questions to the tables."""

from __future__ import annotations

import asyncio

import pytest

from raftkv.errors import Stopped
from raftkv_txqueue import UnknownQueue
from raftkv_txqueue.waiting import LISTEN_FROM

from .fakes import Cluster, bodies, story

SOON_S = 0.1


async def soon() -> None:
    """Long enough for everything that can happen at once."""
    await asyncio.sleep(SOON_S)


@story()
async def test_consumers_are_served_in_the_order_in_which_they_came(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    sessions = [await txq.session() for _ in range(4)]
    gets = []
    for session in sessions:
        gets.append(asyncio.ensure_future(session.get("a", wait_s=60)))
        await asyncio.sleep(0)
    assert len(txq.waiting) == 4
    await cluster.fill("a", "1", "2")
    await soon()
    assert [get.done() for get in gets] == [True, True, False, False]
    await cluster.fill("a", "3", "4")
    assert [bodies(await get) for get in gets] == [["1"], ["2"], ["3"], ["4"]]
    assert len(txq.waiting) == 0


@story()
async def test_no_more_are_woken_than_there_are_messages(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    gets = []
    for _ in range(20):
        session = await txq.session()
        gets.append(asyncio.ensure_future(session.get("a", wait_s=5)))
    await soon()
    assert cluster.proposals("acquire") == 0  # waiting asks nobody
    await cluster.fill("a", "1", "2", "3")
    await asyncio.gather(*gets)
    assert cluster.proposals("acquire") == 3


@story()
async def test_who_wants_many_is_enough_for_few(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    first, second = await txq.session(), await txq.session()
    greedy = asyncio.ensure_future(first.get("a", 10, wait_s=60))
    await asyncio.sleep(0)
    other = asyncio.ensure_future(second.get("a", wait_s=5))
    await soon()
    await cluster.fill("a", "1", "2", "3")
    assert bodies(await greedy) == ["1", "2", "3"]
    assert await other == ()
    assert cluster.proposals("acquire") == 1


@story()
async def test_who_came_too_late_keeps_the_place(cluster: Cluster) -> None:
    """Consumers on three nodes: each message goes to one, and nobody misses the next."""
    gets = []
    for name in cluster.nodes:
        session = await cluster.txq(name).session()
        gets.append(asyncio.ensure_future(session.get("a", wait_s=60)))
    await soon()
    for number in range(3):
        await cluster.fill("a", str(number))
        await soon()
        assert sum(get.done() for get in gets) == number + 1
    got = [body for get in gets for body in bodies(await get)]
    assert sorted(got) == ["0", "1", "2"]
    assert cluster.proposals("acquire") == 3 + 2 + 1  # once for each message that came


@story()
async def test_a_deadline_asks_nobody_and_takes_nothing(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    assert await session.get("a", wait_s=1) == ()
    assert cluster.proposals("acquire") == 0
    await cluster.fill("a", "1")
    assert bodies(await session.get("a", wait_s=1)) == ["1"]


@story()
async def test_what_is_there_already_is_not_waited_for(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    await cluster.fill("a", "1")
    began = asyncio.get_running_loop().time()
    assert bodies(await session.get("a", wait_s=60)) == ["1"]
    assert asyncio.get_running_loop().time() - began < 1


@story()
async def test_a_cancelled_consumer_passes_its_turn_on(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    first, second = await txq.session(), await txq.session()
    one = asyncio.ensure_future(first.get("a", wait_s=60))
    await asyncio.sleep(0)
    two = asyncio.ensure_future(second.get("a", wait_s=60))
    await soon()
    # Woken, and cancelled in the same turn of the loop, before it could ask for anything.
    cluster.append = _then(cluster.append, one.cancel)  # type: ignore[method-assign]
    await cluster.fill("a", "1")
    assert bodies(await two) == ["1"]
    assert one.cancelled()


def _then(function, after):  # type: ignore[no-untyped-def]
    def both(*args):  # type: ignore[no-untyped-def]
        result = function(*args)
        after()
        return result

    return both


@story()
async def test_a_deleted_queue_ends_the_waiting(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session()
    waiting = asyncio.ensure_future(session.get("a", wait_s=60))
    await soon()
    await cluster.txq("core2").delete("a")
    with pytest.raises(UnknownQueue):
        await waiting
    assert cluster.proposals("acquire") == 0
    with pytest.raises(UnknownQueue):  # and of one that this node does not know, the log says so
        await session.get("a", wait_s=60)
    assert cluster.proposals("acquire") == 1


@story()
async def test_a_session_that_is_busy_keeps_nothing_from_the_others(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    slow, quick = await txq.session(), await txq.session()
    cluster.lose_answers("core1", "acquire")
    stuck = asyncio.ensure_future(slow.get("a", timeout_s=60))
    await soon()
    first = asyncio.ensure_future(slow.get("b", wait_s=60, timeout_s=60))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(quick.get("b", wait_s=60))
    await soon()
    await cluster.fill("b", "1")
    await soon()
    assert bodies(second.result()) == ["1"]
    await cluster.fill("b", "2")
    await stuck
    assert bodies(await first) == ["2"]  # nobody has to publish again for it


@story()
async def test_a_snapshot_wakes_whom_it_has_something_for(cluster: Cluster) -> None:
    session = await cluster.txq("core2").session()
    got = asyncio.ensure_future(session.get("a", wait_s=60))
    await soon()
    cluster.pause("core2")
    await cluster.fill("a", "1")
    await soon()
    assert not got.done()
    cluster.jump("core2")
    assert bodies(await got) == ["1"]


@story()
async def test_many_queues_are_listened_to(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session()
    names = [f"q{number}" for number in range(LISTEN_FROM + 3)]
    for name in names:
        await txq.declare(name)
    gets = [asyncio.ensure_future(session.get(name, wait_s=600)) for name in names]
    await soon()
    for name in reversed(names):
        await cluster.fill(name, name, node="core2")
    assert [bodies(await get) for get in gets] == [[name] for name in names]
    # And again with few of them.
    last = asyncio.ensure_future(session.get("a", wait_s=60))
    await soon()
    await cluster.fill("a", "1")
    assert bodies(await last) == ["1"]


@story()
async def test_a_stopping_node_ends_all_waiting(cluster: Cluster) -> None:
    txq = cluster.txq("core2")
    session = await txq.session()
    waits = asyncio.ensure_future(session.get("a", wait_s=None))
    await soon()
    assert await txq.waiting.decided(99, None)
    txq.stop()
    with pytest.raises(Stopped):
        await waits
    with pytest.raises(Stopped):
        await txq.waiting.decided(99, None)
    with pytest.raises(Stopped):
        await session.get("a", wait_s=1)

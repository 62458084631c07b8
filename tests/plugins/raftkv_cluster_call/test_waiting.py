"""Who waits on a node: initiations that are taken, closed or dropped, and watches of cursors."""

from __future__ import annotations

import asyncio

import pytest

from raftkv_cluster_call.commands import Reserve
from raftkv_cluster_call.waiting import Dropped, Initiation, Reached, _Watch
from tests.plugins.raftkv_cluster_call.fakes import Cluster, FakeNode, Note, story, until


def reserve(node: FakeNode, expected_last: int = 0) -> Reserve:
    return Reserve("note", 1, b"\x81\xa4text\xa1x", expected_last, 60_000, 0)


def initiation(node: FakeNode, ticket: int) -> Initiation:
    function = node.calls.registry.get("note")
    return Initiation(ticket, function, Note("x"), 1e9, node.runtime.future())


@story()
async def test_the_worker_takes_only_what_somebody_waits_for(cluster: Cluster) -> None:
    """After `close` nothing can run, whatever the log still says."""
    node = cluster.nodes["core1"]
    granted = await node.propose(reserve(node))
    one = initiation(node, granted.ticket)
    node.calls.initiations.add(one)
    assert node.calls.initiations.close(one)
    assert not node.calls.initiations.close(one)
    assert one.done.result() == Dropped("withdrawn")
    assert node.calls.initiations.take(granted.id, granted.ticket) is None
    assert len(node.calls.initiations) == 0


@story()
async def test_what_runs_cannot_be_closed(cluster: Cluster) -> None:
    node = cluster.nodes["core1"]
    node.calls.worker.paused = True
    granted = await node.propose(reserve(node))
    one = initiation(node, granted.ticket)
    node.calls.initiations.add(one)
    assert node.calls.initiations.take(granted.id, granted.ticket) is one
    assert node.calls.initiations.take(granted.id, granted.ticket) is None
    assert not node.calls.initiations.close(one)
    assert not node.calls.initiations.ran_not(granted.id)
    node.calls.initiations.end(one, Dropped("withdrawn"))


@story()
async def test_what_is_over_is_not_taken(cluster: Cluster) -> None:
    """Its caller is about to be told that nothing ran."""
    node = cluster.nodes["core1"]
    node.calls.worker.paused = True
    granted = await node.propose(reserve(node))
    one = initiation(node, granted.ticket)
    one.deadline = asyncio.get_running_loop().time()
    node.calls.initiations.add(one)
    assert node.calls.initiations.take(granted.id, granted.ticket) is None
    assert node.calls.initiations.close(one)


@story()
async def test_a_reservation_that_nobody_knows_of_is_given_back(cluster: Cluster) -> None:
    """Its answer was lost, and is no longer kept: the queue must not stand for its whole time."""
    node = cluster.nodes["core1"]
    granted = await node.propose(reserve(node))
    loop = asyncio.get_running_loop()
    began = loop.time()
    done = await cluster.calls("core2").call("note", Note("y"))
    assert (done.outcome, done.id) == ("ok", granted.id + 1)
    assert 15 < loop.time() - began < 30
    assert cluster.record(granted.id).cause == "withdrawn"
    assert cluster.tried("core1") == [granted.id + 1]


@story()
async def test_a_queued_one_is_dropped_with_the_reason(cluster: Cluster) -> None:
    node, other = cluster.nodes["core1"], cluster.nodes["core2"]
    other.calls.worker.paused = True
    await other.propose(reserve(other))
    queued = await node.propose(reserve(node))
    one = initiation(node, queued.ticket)
    node.calls.initiations.add(one)
    assert not one.done.done()
    await asyncio.sleep(61)
    assert one.done.result() == Dropped("expired")


@story()
async def test_one_that_is_gone_when_it_is_added_is_dropped_at_once(cluster: Cluster) -> None:
    """A snapshot, or the entry itself, may have decided it before anybody listened."""
    node = cluster.nodes["core1"]
    node.calls.worker.paused = True
    granted = await node.propose(reserve(node))
    await asyncio.sleep(61)
    assert cluster.record(granted.id).state == "aborted"
    one = initiation(node, granted.ticket)
    node.calls.initiations.add(one)
    assert one.done.result() == Dropped("expired")


@story()
async def test_a_restored_snapshot_ends_what_it_decided(cluster: Cluster) -> None:
    """The hooks of the entries that a snapshot jumped over never come."""
    node, other = cluster.nodes["core1"], cluster.nodes["core2"]
    other.calls.worker.paused = True
    await other.propose(reserve(other))
    queued = await node.propose(reserve(node))
    one = initiation(node, queued.ticket)
    node.calls.initiations.add(one)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.service, "on_applied", lambda index, changes: None)
        await asyncio.sleep(61)
        assert not one.done.done()
    node.service.on_restored(node.machine.index)
    assert one.done.result() == Dropped("expired")


# --- watches --------------------------------------------------------------------------------------


@story()
async def test_a_watch_ends_when_enough_have_come(cluster: Cluster) -> None:
    waiting = cluster.calls("core1").waiting
    loop = asyncio.get_running_loop()
    names = ("core1", "core2", "core3")
    cluster.seats["core3"].broken = {"*"}
    await cluster.calls("core1").call("note", Note("x"), required=2)
    assert await waiting.reached(1, names, 2, loop.time() + 9) == Reached("ok")
    assert await waiting.reached(1, names, 3, loop.time() + 1) == Reached(
        "peers_lagging", ("core3",)
    )
    assert await waiting.reached(1, names, 3, loop.time() - 1) == Reached(
        "peers_lagging", ("core3",)
    )
    cluster.kill("core3")
    cluster.declare_dead("core3")
    assert await waiting.reached(1, names, 3, loop.time() + 9) == Reached(
        "stopped_nodes", ("core3",)
    )
    assert len(waiting) == 0


@story()
async def test_a_watch_that_is_cancelled_is_forgotten(cluster: Cluster) -> None:
    waiting = cluster.calls("core1").waiting
    loop = asyncio.get_running_loop()
    watch = asyncio.ensure_future(waiting.reached(1, ("core2",), 1, loop.time() + 60))
    await until(lambda: len(waiting) == 1)
    watch.cancel()
    await until(lambda: len(waiting) == 0)


@story()
async def test_watches_end_when_the_node_stops(cluster: Cluster) -> None:
    calls, loop = cluster.calls("core1"), asyncio.get_running_loop()
    watch = asyncio.ensure_future(calls.waiting.reached(1, ("core2",), 1, loop.time() + 60))
    await until(lambda: len(calls.waiting) == 1)
    cluster.nodes["core1"].service.on_fault()
    assert await watch == Reached("peers_lagging", ("core2",))
    assert not await calls.waiting.moved(60)


@story()
async def test_a_move_of_any_cursor_wakes_who_waits_for_progress(cluster: Cluster) -> None:
    calls = cluster.calls("core1")
    moved = asyncio.ensure_future(calls.waiting.moved(60))
    await asyncio.sleep(0)
    await cluster.calls("core2").call("note", Note("x"))
    assert await moved
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert not await calls.waiting.moved(2)
    assert loop.time() - began == pytest.approx(2)


def test_watches_are_small() -> None:
    """There is one per caller, so they hold no more than they need."""
    assert not hasattr(_Watch(1, (), 0, None), "__dict__")  # type: ignore[arg-type]

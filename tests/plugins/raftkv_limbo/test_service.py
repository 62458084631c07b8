"""What the limbo does unasked: late rollbacks, the leader's promotion, sweeping; and seeing it."""

from __future__ import annotations

import asyncio

import pytest

from raftkv_limbo.commands import Write
from raftkv_limbo.errors import RolledBack, StillPending
from raftkv_limbo.refusals import (
    BadSpaceName,
    DropPending,
    ForeignOwner,
    SpaceBusy,
    SpaceExists,
    UnknownSpace,
)
from tests.plugins.raftkv_limbo.fakes import Cluster, story, sync, until

# --- rollback by time-out -------------------------------------------------------------------------


@story(quorum="N", rollback_after_ms=2000)
async def test_what_waits_too_long_is_rolled_back(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    loop = asyncio.get_running_loop()
    began = loop.time()
    first = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=60))
    await asyncio.sleep(1)
    second = asyncio.ensure_future(limbo.submit(sync("b"), timeout_s=60))
    with pytest.raises(RolledBack) as caught:
        await first
    assert caught.value.reason == "pending for 2000 ms"
    assert caught.value.by == "core1"
    assert loop.time() - began == pytest.approx(2, abs=0.1)
    with pytest.raises(RolledBack):
        await second
    assert [node.proposals.count("rollback") for node in cluster.nodes.values()] == [1, 0, 0]
    cluster.heal("core3")
    assert (await limbo.submit(sync("c"))).state == "confirmed"


@story(quorum="N", rollback_after_ms=500)
async def test_a_late_rollback_loses_against_the_quorum(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    release = cluster.hold("core1", "rollback")
    waits = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=60))
    await asyncio.sleep(1)
    assert limbo.busy
    cluster.heal("core3")
    assert (await waits).state == "confirmed"
    release()
    await until(lambda: not limbo.busy)
    assert cluster.state.rollbacks == 0


@story(quorum="N")
async def test_the_time_out_can_be_set_while_entries_wait(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    waits = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=60))
    await asyncio.sleep(20)
    assert not waits.done()
    cluster.configure(rollback_after_ms=1000)
    with pytest.raises(RolledBack):
        await waits
    cluster.heal("core3")


# --- the leader -----------------------------------------------------------------------------------


@story(leader_promotes=True)
async def test_the_leader_makes_itself_the_owner(cluster: Cluster) -> None:
    await until(lambda: cluster.state.owner == "core1")
    cluster.lead("core2")
    await until(lambda: cluster.state.owner == "core2")
    assert (await cluster.limbo("core2").submit(sync("a"))).term == 2
    # A new life of the leader claims anew.
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    cluster.rejoin("core2")
    await until(lambda: cluster.limbo("core2").status().mine)
    assert cluster.state.term == 3
    # An owner by hand is overridden while the setting is on.
    await cluster.limbo("core3").promote()
    await until(lambda: cluster.state.owner == "core2")


@story(quorum="N", leader_promotes=True)
async def test_the_leader_waits_for_the_old_queue(cluster: Cluster) -> None:
    await until(lambda: cluster.state.owner == "core1")
    limbo = cluster.limbo("core1")
    cluster.isolate("core3")
    waits = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=99))
    await until(lambda: cluster.state.pending == 1)
    cluster.lead("core2")
    await asyncio.sleep(12)
    assert cluster.state.owner == "core1"
    cluster.heal("core3")
    assert (await waits).state == "confirmed"
    await until(lambda: cluster.state.owner == "core2")


@story()
async def test_rows_of_dropped_spaces_are_swept(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    for n in range(13):
        writes = [Write("s", b"%d/%d" % (n, m), b"") for m in range(100)]
        await limbo.submit(writes)
    assert limbo.spaces()[1].keys == 1300
    await limbo.drop_space("s")
    with pytest.raises(UnknownSpace):
        await limbo.get("s", b"0/0")
    await until(lambda: not cluster.table("rows") and not cluster.table("dropped"))
    await until(lambda: limbo.counters["swept"] == 1300)
    assert cluster.nodes["core2"].proposals.count("sweep") == 0


@story()
async def test_a_space_of_the_same_name_is_another_one(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    await limbo.submit(sync("k"))
    cluster.hold("core1", "sweep")
    await limbo.drop_space("s")
    await limbo.create_space("s", sync=True)
    assert await limbo.get("s", b"k") is None
    assert len(cluster.table("rows")) == 1
    cluster.filter = lambda node, envelope: True


@story()
async def test_a_new_leader_goes_on_sweeping(cluster: Cluster) -> None:
    limbo = await cluster.own("core2")
    cluster.filter = lambda node, envelope: node.name != "core1"
    await limbo.submit(sync("k"))
    await limbo.drop_space("s")
    await asyncio.sleep(3)
    assert cluster.table("dropped")
    cluster.lead("core3")
    await until(lambda: not cluster.table("dropped"))
    assert cluster.nodes["core3"].proposals.count("sweep") == 1


@story(quorum="N")
async def test_spaces(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    assert [(one.name, one.sync) for one in limbo.spaces()] == [("a", False), ("s", True)]
    with pytest.raises(SpaceExists):
        await limbo.create_space("a")
    for name in ("", "-x", "é", "\ud800", "x" * 65):
        with pytest.raises(BadSpaceName):
            await limbo.create_space(name)
    for name in ("none", "\ud800"):
        with pytest.raises(UnknownSpace):
            await limbo.alter_space(name, sync=True)
        with pytest.raises(UnknownSpace):
            await limbo.drop_space(name)
    assert (await limbo.alter_space("a", sync=True)).changed
    cluster.isolate("core3")
    await limbo.submit([Write("a", b"k", b"")], wait="submit")
    with pytest.raises(SpaceBusy):
        await limbo.drop_space("a")
    assert limbo.spaces()[0].pending == 1
    cluster.heal("core3")


# --- seeing ---------------------------------------------------------------------------------------


@story(quorum="N")
async def test_the_status_tells_of_the_oldest(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    await limbo.submit(sync("a"))
    queue = limbo.status().queue
    assert (queue.len, queue.bytes, queue.age_ms, queue.confirm_lag_ms) == (0, 0, 0, 0)
    cluster.isolate("core3")
    await limbo.submit(sync("b", "123"), wait="submit")
    await asyncio.sleep(1)
    await limbo.submit(sync("c", "123"), wait="submit")
    await asyncio.sleep(1)
    status = limbo.status()
    assert (status.queue.len, status.queue.bytes, status.queue.writes) == (2, 8, 2)
    assert status.queue.age_ms == pytest.approx(2000, abs=50)
    assert (status.head, status.last, status.confirmed) == (2, 3, 1)
    assert [(node.name, node.acked, node.lag) for node in status.nodes] == [
        ("core1", 3, 0),
        ("core2", 3, 0),
        ("core3", 1, 2),
    ]
    cluster.kill("core1")
    cluster.declare_dead("core1")
    assert cluster.limbo("core2").status().live is False
    await cluster.restart("core1")
    assert cluster.limbo("core1").status().mine is False
    assert cluster.limbo("core1").status().queue.len == 2
    cluster.heal("core3")


@story(quorum="N", queue_entries_max=1)
async def test_the_metrics_show_what_the_status_shows(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    waits = [asyncio.ensure_future(limbo.submit(sync(f"k{n}"), timeout_s=60)) for n in range(3)]
    await asyncio.sleep(1)
    figures = {one.name: one.value for one in cluster.nodes["core1"].service.metrics()}
    assert figures["queue_entries"] == 1
    assert figures["queue_entries_limit"] == 1
    assert figures["queue_bytes"] == 3
    assert figures["queue_age_ms"] == pytest.approx(1000, abs=50)
    assert figures["waiting_for_room"] == 2
    assert figures["owner"] == 1
    assert figures["acks_total"] == 1
    assert figures["waited_for_room_total"] == 2
    others = {one.name: one.value for one in cluster.nodes["core2"].service.metrics()}
    assert (others["owner"], others["claimed"]) == (0, 1)
    assert figures.keys() == others.keys()
    service = cluster.nodes["core1"].service.status()
    assert (service["owner"], service["pending"]) == ("core1", 1)
    cluster.heal("core3")
    await asyncio.gather(*waits)


@story(quorum="N")
async def test_item_9_every_node_tells_what_completed_a_quorum(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    waits = await limbo.submit(sync("k"), wait="submit")
    await asyncio.sleep(1)
    cluster.heal("core3")
    await until(lambda: cluster.state.confirmed == waits.position)
    await asyncio.sleep(0.1)
    told = [cluster.limbo(name).verdict(waits.position) for name in ("core1", "core2", "core3")]
    assert told[0] == told[1] == told[2]
    assert (told[0].cause, told[0].by, told[0].upto) == ("ack", "core3", waits.position)
    assert told[0].index > told[0].submitted_index == waits.index


@story(quorum="N")
async def test_item_9_drop_returns_when_the_quorum_has_it(cluster: Cluster) -> None:
    limbo, other = await cluster.own("core1"), cluster.limbo("core2")
    await limbo.submit(sync("k"))
    with pytest.raises(ForeignOwner):
        await other.drop_space("s")
    cluster.isolate("core3")
    with pytest.raises(StillPending) as caught:
        await limbo.drop_space("s", timeout_s=0.5)
    with pytest.raises(DropPending):
        await limbo.submit(sync("more"))
    row = await limbo.get("s", b"k")
    assert row is not None
    cluster.heal("core3")
    assert (await limbo.wait_verdict(caught.value.position)).fate == "confirmed"
    assert [one.name for one in limbo.spaces()] == ["a"]
    await limbo.create_space("s", sync=True)
    cluster.isolate("core3")
    drop = asyncio.ensure_future(limbo.drop_space("s", timeout_s=60))
    await until(lambda: cluster.state.pending == 1)
    await other.rollback(cluster.state.head, "kept")
    with pytest.raises(RolledBack, match="kept"):
        await drop
    assert len(limbo.spaces()) == 2
    cluster.heal("core3")

"""The old registry: right while nothing lags, and wrong in just the ways that its design allows."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from raftkv.errors import NoLeader, Overloaded
from raftkv.state.core import NodeRole
from raftkv_lcr import Channel
from raftkv_lcr.legacy_copies import COPY_CLIENTS_MAX, FOLLOW_S, Bag
from raftkv_lcr.legacy_locks import LEASE_MS, WAIT_S, LockServer
from raftkv_lcr.legacy_wire import (
    SPREAD,
    LockRequest,
    Operation,
    Spread,
    UnlockRequest,
    pack,
)
from tests.plugins.raftkv_lcr.fakes import Cluster, FakeNode
from tests.plugins.raftkv_lcr.test_api import scenario

SETTLE_S = 0.5


def copies(cluster: Cluster, client_id: str) -> dict[str, list[str]]:
    return {
        name: [row.channel for row in node.lcr.legacy.channels_local(client_id)]
        for name, node in cluster.nodes.items()
        if node.alive
    }


async def warm_up(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        await node.lcr.legacy.ready()


@scenario(replicants=3)
async def test_connect_take_over_and_leave_while_nothing_lags(cluster: Cluster) -> None:
    await warm_up(cluster)
    first = await cluster.nodes["rep1"].lcr.legacy.connect("c", "a")
    assert first.outcome == "ok"
    assert not first.session_present
    await asyncio.sleep(SETTLE_S)
    assert set(map(tuple, copies(cluster, "c").values())) == {("a",)}
    second = await cluster.nodes["rep2"].lcr.legacy.connect("c", "b")
    assert second.session_present
    assert second.predecessor == first.owner
    await asyncio.sleep(SETTLE_S)
    assert set(map(tuple, copies(cluster, "c").values())) == {("b",)}
    assert cluster.nodes["rep1"].lcr.legacy.held == {}
    assert second.owner is not None
    assert await cluster.nodes["rep2"].lcr.legacy.unregister(second.owner)
    await asyncio.sleep(SETTLE_S)
    assert set(map(tuple, copies(cluster, "c").values())) == {()}


@scenario(replicants=1)
async def test_lag_gives_a_second_session_and_a_wrong_session_present(cluster: Cluster) -> None:
    """The seed's first complaint. Nothing is broken here but the time that copies take."""
    await warm_up(cluster)
    lagging = cluster.nodes["rep1"]
    lagging.lcr.legacy.lag_s = 0.5
    assert lagging.lcr.legacy.lag_s == 0.5
    await cluster.nodes["core1"].lcr.legacy.connect("c", "a")
    await asyncio.sleep(0.1)
    second = await lagging.lcr.legacy.connect("c", "b")
    assert second.outcome == "ok"
    assert not second.session_present
    await asyncio.sleep(2)
    assert {tuple(sorted(rows)) for rows in copies(cluster, "c").values()} == {("a", "b")}


@scenario()
async def test_lock_keeps_connects_of_one_client_apart(cluster: Cluster) -> None:
    """As many contenders as the lock can serve within its time: all get in, one after another."""
    await warm_up(cluster)
    answers = await asyncio.gather(
        *(node.lcr.legacy.connect("c", name) for name, node in cluster.nodes.items())
    )
    assert {answer.outcome for answer in answers} == {"ok"}
    assert all(len(node.lcr.legacy.lock_server) == 0 for node in cluster.nodes.values())
    await asyncio.sleep(SETTLE_S)
    one_copy = copies(cluster, "c")["core1"]
    assert all(sorted(rows) == sorted(one_copy) for rows in copies(cluster, "c").values())


@scenario()
async def test_lock_of_a_dead_holder_blocks_the_client_until_its_lease_ends(
    cluster: Cluster,
) -> None:
    """The seed's complaint about ekka_locker: 30 seconds without this client."""
    await warm_up(cluster)
    holder = cluster.nodes["core2"].lcr.legacy
    assert (await holder.locks.acquire("c")).granted
    cluster.kill("core2")
    cluster.declare_dead("core2")
    loop = asyncio.get_running_loop()
    begin = loop.time()
    other = cluster.nodes["core1"].lcr.legacy
    refused = await other.connect("c", "b")
    assert (refused.outcome, refused.owner) == ("timeout", None)
    assert refused.attempts > 1
    assert loop.time() - begin <= WAIT_S + 1
    while (await other.connect("c", "b")).outcome != "ok":
        assert loop.time() - begin < LEASE_MS / 1000 + 2 * WAIT_S
    assert loop.time() - begin > LEASE_MS / 1000 - 1


@scenario()
async def test_unreachable_core_refuses_the_lock_until_it_is_declared_dead(
    cluster: Cluster,
) -> None:
    await warm_up(cluster)
    registry = cluster.nodes["core1"].lcr.legacy
    registry.locks.strategy = "all"
    cluster.kill("core3")
    assert (await registry.connect("c", "a")).outcome == "timeout"
    cluster.declare_dead("core3")
    assert (await registry.connect("c", "a")).outcome == "ok"


@scenario(replicants=2)
async def test_dead_node_is_purged_from_every_copy(cluster: Cluster) -> None:
    await warm_up(cluster)
    for number in range(10):
        await cluster.nodes["rep1"].lcr.legacy.connect(f"c{number}", "x")
    await cluster.nodes["rep2"].lcr.legacy.connect("kept", "x")
    await asyncio.sleep(SETTLE_S)
    cluster.kill("rep1")
    cluster.declare_dead("rep1")
    await asyncio.sleep(SETTLE_S)
    for node in cluster.nodes.values():
        if node.alive:
            assert len(node.lcr.legacy.copies.bag) == 1


@scenario(replicants=1)
async def test_restarted_nodes_take_a_full_copy(cluster: Cluster) -> None:
    await warm_up(cluster)
    clients = COPY_CLIENTS_MAX + 100
    source = cluster.nodes["core1"].lcr.legacy
    for number in range(clients):
        row = Channel(f"c{number:05}", "x", "core1", 1, number, 0, True)
        await source.copies.write(Operation(True, row))
    for name in ("core2", "rep1"):
        fresh = await cluster.restart(name)
        await fresh.lcr.legacy.ready()
        assert len(fresh.lcr.legacy.copies.bag) == clients


@scenario(replicants=1)
async def test_replicant_moves_to_another_core(cluster: Cluster) -> None:
    await warm_up(cluster)
    replicant = cluster.nodes["rep1"].lcr.legacy
    followed = replicant.copies._core
    assert followed is not None
    cluster.kill(followed)
    if followed == "core1":
        cluster.leader = None
    await asyncio.sleep(5)
    survivor = next(n for n in cluster.nodes.values() if n.alive and n.role == "core")
    await survivor.lcr.legacy.copies.write(
        Operation(True, Channel("c", "x", survivor.name, 1, 1, 0, True))
    )
    await asyncio.sleep(SETTLE_S)
    assert replicant.lookup_local("c") is not None
    cluster.declare_dead(followed)


@scenario()
async def test_taking_over_a_channel_that_is_gone_is_no_session(cluster: Cluster) -> None:
    await warm_up(cluster)
    stale = Channel("c", "gone", "core2", 1, 1, 0, True)
    await cluster.nodes["core1"].lcr.legacy.copies.write(Operation(True, stale))
    await asyncio.sleep(SETTLE_S)
    answer = await cluster.nodes["core3"].lcr.legacy.connect("c", "b")
    assert answer.outcome == "ok"
    assert not answer.session_present
    assert answer.predecessor is None


@scenario()
async def test_spread_that_arrives_twice_is_applied_once(cluster: Cluster) -> None:
    await warm_up(cluster)
    target = cluster.nodes["core1"].lcr.legacy
    row = Channel("c", "x", "core2", 1, 1, 0, True)
    message = pack(Spread(7, 1, (Operation(True, row), Operation(False, row))))
    await target.copies.on_spread("core2", message)
    await target.copies.on_spread("core2", pack(Spread(7, 1, (Operation(True, row),))))
    assert target.channels_local("c") == []
    await target.copies.on_spread("core2", pack(Spread(7, 3, (Operation(True, row),))))
    assert target.channels_local("c") == [row]


@scenario()
async def test_register_alone_writes_under_the_lock(cluster: Cluster) -> None:
    registry = cluster.nodes["core1"].lcr.legacy
    answer = await registry.register("c", "a", predecessor=None)
    assert answer.owner == registry.lookup_local("c")
    assert await registry.lookup("c") == answer.owner


@scenario()
async def test_lock_server_grants_once_and_again_after_the_lease(cluster: Cluster) -> None:
    server = LockServer(cluster.nodes["core1"])
    assert server.lock(LockRequest("r", "one", 1_000))
    assert server.lock(LockRequest("r", "one", 1_000))
    assert not server.lock(LockRequest("r", "two", 1_000))
    server.unlock(UnlockRequest("r", "two"))
    assert len(server) == 1
    await asyncio.sleep(1.1)
    assert server.lock(LockRequest("r", "two", 1_000))
    server.unlock(UnlockRequest("r", "two"))
    assert len(server) == 0


def test_bag_keeps_rows_in_the_order_of_their_arrival_and_pages_by_client() -> None:
    bag = Bag()
    rows = [Channel("c", name, "n", 1, 1, 0, True) for name in "ba"]
    for row in rows:
        bag.apply(Operation(True, row))
    bag.apply(Operation(True, Channel("d", "x", "n", 1, 1, 0, True)))
    assert bag.of("c") == rows
    page = bag.page("", 1)
    assert page.channels == tuple(rows)
    assert page.last == "c"
    assert bag.page("c", 5).last is None
    for row in rows:
        bag.apply(Operation(False, row))
        bag.apply(Operation(False, row))
    assert bag.of("c") == []
    assert len(bag) == 1


def locks_of(node: FakeNode) -> int:
    return len(node.lcr.legacy.lock_server)


@scenario()
async def test_contenders_that_lose_give_back_what_they_got(cluster: Cluster) -> None:
    await warm_up(cluster)
    first = await cluster.nodes["core1"].lcr.legacy.locks.acquire("c")
    assert first.granted
    assert len(first.cores) == 2
    cluster.nodes["core2"].lcr.legacy.locks.wait_s = 0.2
    assert not (await cluster.nodes["core2"].lcr.legacy.locks.acquire("c")).granted
    await cluster.nodes["core1"].lcr.legacy.locks.release(first)
    assert sum(map(locks_of, cluster.nodes.values())) == 0


@scenario()
async def test_caller_s_own_patience_bounds_the_wait_for_the_lock(cluster: Cluster) -> None:
    await warm_up(cluster)
    assert (await cluster.nodes["core1"].lcr.legacy.locks.acquire("c")).granted
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert not (await cluster.nodes["core2"].lcr.legacy.locks.acquire("c", 0.5)).granted
    assert loop.time() - started < 0.6
    started = loop.time()
    assert not (await cluster.nodes["core2"].lcr.legacy.locks.acquire("c", 60.0)).granted
    assert loop.time() - started <= WAIT_S


@scenario(replicants=1)
async def test_every_row_that_arrives_is_told_of(cluster: Cluster) -> None:
    await warm_up(cluster)
    told: dict[str, list[str]] = {name: [] for name in cluster.nodes}
    for name, node in cluster.nodes.items():

        def tell(row: Channel, names: list[str] = told[name]) -> None:
            names.append(row.channel)

        node.lcr.legacy.copies.on_add = tell
    registry = cluster.nodes["rep1"].lcr.legacy
    row = registry.row("c", "x", None)
    await registry.add(row)
    await asyncio.sleep(SETTLE_S)
    registry.remove_soon(row)
    await asyncio.sleep(SETTLE_S)
    assert told == {name: ["x"] for name in cluster.nodes}
    assert not any(node.lcr.legacy.copies.bag.holds(row) for node in cluster.nodes.values())


@scenario(replicants=1)
async def test_core_that_refuses_a_write_says_so_and_leaves_no_row(cluster: Cluster) -> None:
    await warm_up(cluster)
    registry = cluster.nodes["rep1"].lcr.legacy
    core = cluster.nodes[registry.copies._cores_by_preference()[0]].lcr.legacy

    async def refuse(sender: str, payload: bytes) -> bytes:
        raise Overloaded("far behind")

    accepts, core.copies.on_write = core.copies.on_write, refuse  # type: ignore[method-assign]
    row = registry.row("c", "x", 7)
    with pytest.raises(Overloaded, match="far behind"):
        await registry.add(row)
    core.copies.on_write = accepts  # type: ignore[method-assign]
    await asyncio.sleep(SETTLE_S)
    assert set(map(tuple, copies(cluster, "c").values())) == {()}


def promote(cluster: Cluster, node: FakeNode) -> None:
    """The replicant becomes a core, in the same life."""
    node.role = "core"
    cluster.append_core(NodeRole(node.name, node.incarnation, "core"))


@scenario(replicants=1)
async def test_no_row_reaches_a_promoted_replicant_twice(cluster: Cluster) -> None:
    """All cores spread to it now; the one that it followed must not go on to hand on besides."""
    await warm_up(cluster)
    node = cluster.nodes["rep1"]
    promote(cluster, node)
    told: list[str] = []
    node.lcr.legacy.copies.on_add = lambda row: told.append(row.channel)
    for name in ("core1", "core2", "core3"):
        registry = cluster.nodes[name].lcr.legacy
        await registry.add(registry.row("c", name, 7))
    await asyncio.sleep(SETTLE_S)
    assert sorted(told) == ["core1", "core2", "core3"]


@scenario(replicants=1)
async def test_promoted_replicant_copies_no_more(cluster: Cluster) -> None:
    """It takes writes itself by now, and a copy of somebody else's bag would not have them."""
    await warm_up(cluster)
    node = cluster.nodes["rep1"]
    cluster.mishap = lambda sender, receiver, method: (
        "request lost" if sender == "rep1" and method == SPREAD else "none"
    )
    promote(cluster, node)
    row = node.lcr.legacy.row("c", "x", 7)
    await node.lcr.legacy.add(row)
    await asyncio.sleep(3 * FOLLOW_S)
    assert node.lcr.legacy.channels_local("c") == [row]


@scenario(replicants=1)
async def test_promotion_in_the_middle_of_a_copy_spoils_it(cluster: Cluster) -> None:
    await warm_up(cluster)
    node = cluster.nodes["rep1"]
    copies = node.lcr.legacy.copies
    copying = asyncio.ensure_future(copies._copy_from("core1"))
    await asyncio.sleep(0)
    promote(cluster, node)
    row = node.lcr.legacy.row("c", "x", 7)
    await node.lcr.legacy.add(row)
    assert not await copying
    assert node.lcr.legacy.channels_local("c") == [row]


@scenario()
async def test_cancelled_wait_for_a_lock_gives_back_what_it_got(cluster: Cluster) -> None:
    """Before the requests are sent, while they are on their way, while the answers are."""
    await warm_up(cluster)
    for delay_s in (0.0, 0.0005, 0.0015):
        acquiring = asyncio.ensure_future(cluster.nodes["core1"].lcr.legacy.locks.acquire("c"))
        await asyncio.sleep(delay_s)
        assert acquiring.cancel()
        await asyncio.wait([acquiring])
        await asyncio.sleep(SETTLE_S)
        assert sum(map(locks_of, cluster.nodes.values())) == 0


@scenario(replicants=1)
async def test_row_that_is_added_again_is_deleted_no_more(cluster: Cluster) -> None:
    """The first write failed, and is taken back until that succeeds; the second one stays."""
    await warm_up(cluster)
    registry = cluster.nodes["rep1"].lcr.legacy
    row = registry.row("c", "x", 7)
    cluster.cut.add("rep1")
    with pytest.raises(NoLeader):
        await registry.add(row)
    cluster.cut.clear()
    # A bag has one row of a channel, whatever its version: after a switch it has a ticket.
    row = replace(row, ticket=5)
    await registry.add(row)
    await asyncio.sleep(SETTLE_S)
    assert set(map(tuple, copies(cluster, "c").values())) == {("x",)}
    registry.remove_soon(row)
    await asyncio.sleep(SETTLE_S)
    assert set(map(tuple, copies(cluster, "c").values())) == {()}
    assert registry._deleting == {}

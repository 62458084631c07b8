"""Nodes move: one, with others watching; all at once; and into each other's old places."""

from __future__ import annotations

import asyncio

import msgspec

from raftkv.addresses import GREETED_MAX, HEARSAY_MAX, AddressBook
from raftkv.state import Member
from raftkv.testing.local_cluster import LocalCluster, free_ports
from tests.test_membership import in_loop, until


def member(name: str, address: str, *, role: str = "core", up: bool = True) -> Member:
    return Member(name, role, f"{name}-1", address, None, 1, up, 0)


def test_the_likeliest_address_comes_first_and_none_twice() -> None:
    book = AddressBook({"a": "h:1", "b": "h:2"})
    assert (book.of("a"), book.of("x")) == (["h:1"], [])
    book.members = lambda: {"a": member("a", "h:3"), "b": member("b", "h:2")}
    book.greeted("a", "h:4")
    assert book.of("a") == ["h:4", "h:3", "h:1"]
    assert book.of("b") == ["h:2"]
    book.greeted("b", "nonsense")
    assert book.of("b") == ["h:2"], "another node's word may be anything"
    assert book.heard("c", "h:5")
    assert not book.heard("d", "nonsense")
    assert (book.of("c"), book.of("d")) == (["h:5"], [])
    assert not all(book.heard(f"x{number}", "h:6") for number in range(HEARSAY_MAX))
    assert book.heard("c", "h:7"), "what is known may change"


def test_what_strangers_say_of_themselves_is_bounded() -> None:
    book = AddressBook({"a": "h:1"})
    for number in range(GREETED_MAX + 1):
        book.greeted(f"x{number}", "h:2")
        book.greeted("a", "h:3")
    assert (book.of("a"), book.of("x0"), book.of("x1"), book.of("x2")) == (
        ["h:3", "h:1"],
        [],
        [],
        ["h:2"],
    )


def test_replicants_try_live_cores_first_and_dead_ones_last() -> None:
    book = AddressBook({"a": "h:1", "b": "h:2"})
    assert {core for core, _ in book.cores("r")} == {"a", "b"}
    book.members = lambda: {
        "a": member("a", "h:1", up=False),
        "c": member("c", "h:3"),
        "r": member("r", "h:9", role="replicant"),
    }
    assert [core for core, _ in book.cores("r")][-1] == "a"
    assert {core for core, _ in book.cores("r")} == {"a", "b", "c"}
    starts = {book.cores(f"r{number}")[0][0] for number in range(20)}
    assert starts == {"b", "c"}, "they spread over the live ones"


def moved(cluster: LocalCluster, names: list[str], *, everywhere: bool) -> None:
    """Give nodes new addresses; `everywhere` edits all files by hand, as an operator would."""
    for name, port in zip(names, free_ports(len(names)), strict=True):
        config = cluster.configs[name]
        address = f"127.0.0.1:{port}"
        cores = {**config.cores, name: address} if name in config.cores else config.cores
        cluster.configs[name] = msgspec.structs.replace(config, peer_address=address, cores=cores)
    if everywhere:
        for name, config in cluster.configs.items():
            cores = {core: cluster.configs[core].peer_address for core in config.cores}
            cluster.configs[name] = msgspec.structs.replace(config, cores=cores)


@in_loop
async def test_a_node_that_moves_is_found_by_those_that_stay() -> None:
    async with LocalCluster(cores=3, replicants=1) as cluster:
        for name in ("core1", "core3", "replicant1"):
            await cluster.kill(name)
            moved(cluster, [name], everywhere=False)
            node = await cluster.start(name)
            await node.wait_ready()
            await node.kv.put(b"k", name.encode(), timeout_s=20)
        await cluster.converge()
        stays = cluster.running["core2"]
        for name in ("core1", "core3", "replicant1"):
            address = cluster.configs[name].peer_address
            assert stays.machine.members[name].peer_address == address
            assert stays._peering.addresses.of(name)[0] == address
        # What they have learnt is used: by calls between nodes, and after a stream has ended.
        for link in list(stays._part.engine.links.values()):
            link.abort()
        await until(lambda: len(stays._part.engine.links) == 2)
        listing = await cluster.running["replicant1"].membership.survey()
        assert listing.told_by == listing.leader


@in_loop
async def test_all_nodes_move_at_once() -> None:
    async with LocalCluster(cores=3, replicants=1) as cluster:
        await cluster.nodes[0].kv.put(b"k", b"v")
        await cluster.converge()
        names = list(cluster.configs)
        for name in names:
            await cluster.kill(name)
        moved(cluster, names, everywhere=True)
        await asyncio.gather(*(cluster.start(name) for name in names))
        await cluster.wait_ready()
        for node in cluster.nodes:
            found = await node.kv.get(b"k", timeout_s=20)
            assert found is not None
            assert found.value == b"v"


@in_loop
async def test_two_cores_that_change_places_are_not_taken_for_each_other() -> None:
    """Every file but their own still names the old places, where the other one is now."""
    async with LocalCluster(cores=3) as cluster:
        await cluster.nodes[0].kv.put(b"k", b"v")
        first, second = cluster.configs["core1"], cluster.configs["core3"]
        for name in ("core1", "core3"):
            await cluster.kill(name)
        swapped = {
            "core1": second.peer_address,
            "core2": first.cores["core2"],
            "core3": first.peer_address,
        }
        for name in ("core1", "core3"):
            cluster.configs[name] = msgspec.structs.replace(
                cluster.configs[name], peer_address=swapped[name], cores=swapped
            )
        await asyncio.gather(cluster.start("core1"), cluster.start("core3"))
        await cluster.wait_ready()
        for node in cluster.nodes:
            await node.kv.put(b"k", node.name.encode(), timeout_s=20)
            links = node._part.engine.links
            await until(lambda links=links: len(links) == 2)
            assert all(link.peer_id == raft_id for raft_id, link in links.items())

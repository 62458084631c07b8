"""Growing, shrinking and mending a running cluster."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import pytest

from raftkv.config import Limits
from raftkv.errors import MembershipRefused, NotApplied, OutcomeUnknown, RemovedNode
from raftkv.node import Node
from raftkv.testing.local_cluster import LocalCluster


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 50))

    return run


async def until(condition: Callable[[], object], timeout_s: float = 15.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def refused(awaitable: Awaitable[Any], words: str) -> None:
    with pytest.raises(MembershipRefused, match=words):
        await awaitable


def voters(node: Node) -> list[str]:
    return [core.name for core in node.membership.list() if core.votes]


class Writers:
    """A load that counts on: every acknowledged number must be found later."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.acknowledged: list[bytes] = []
        self._task = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        number = 0
        while True:
            number += 1
            key = b"%06d" % number
            nodes = self._cluster.nodes
            try:
                await nodes[number % len(nodes)].kv.put(key, key, timeout_s=20)
            except (NotApplied, OutcomeUnknown):
                continue  # its node was stopped: nothing was promised
            self.acknowledged.append(key)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def check(self, node: Node) -> None:
        rows = dict(node.machine.view("kv").table("keys").scan())
        assert set(self.acknowledged) <= set(rows)
        assert all(row.version == 1 for row in rows.values())


@in_loop
async def test_a_cluster_grows_from_one_to_five_and_shrinks_back_under_load() -> None:
    async with LocalCluster(cores=1) as cluster:
        first = cluster.nodes[0]
        writers = Writers(cluster)
        for number in (2, 3, 4, 5):
            name = f"core{number}"
            node = await cluster.start_new_core(name)
            await until(lambda name=name: any(p.startswith(name) for p in first._part.engine.links))
            await cluster.nodes[number - 2].membership.add(name)
            await node.wait_ready()
            await until(lambda n=number, node=node: len(voters(node)) == n)
        assert voters(first) == ["core1", "core2", "core3", "core4", "core5"]
        seen = len(writers.acknowledged)
        await until(lambda: len(writers.acknowledged) > seen + 20)
        for number in (5, 4, 3, 2):
            name = f"core{number}"
            await first.membership.remove(name)
            await cluster.kill(name)
        assert voters(first) == ["core1"]
        seen = len(writers.acknowledged)
        await until(lambda: len(writers.acknowledged) > seen + 20)
        await writers.stop()
        writers.check(first)


@in_loop
async def test_a_leader_is_removed_by_its_successor() -> None:
    async with LocalCluster(cores=3) as cluster:
        leader = cluster.leader()
        assert leader is not None
        others = [node for node in cluster.nodes if node is not leader]
        await others[0].kv.put(b"k", b"v")
        await leader.membership.remove(leader.name)
        await until(lambda: all(leader.name not in voters(node) for node in others))
        assert (await others[1].kv.get(b"k")).value == b"v"
        await others[1].kv.put(b"k", b"w")


@in_loop
async def test_a_dead_core_is_replaced_and_its_old_self_is_told() -> None:
    limits = Limits(snapshot_log_entries=50, log_tail_entries=5)
    async with LocalCluster(cores=3, replicants=1, limits=limits) as cluster:
        leader = cluster.leader()
        assert leader is not None
        for number in range(200):
            await leader.kv.put(b"%d" % number, b"x")
        dead = next(node.name for node in cluster.cores if node is not leader)
        await cluster.kill(dead)
        await leader.membership.remove(dead)
        fresh = await cluster.start_new_core("core4")
        await until(lambda: any(peer.startswith("core4") for peer in leader._part.engine.links))
        await cluster.replicants[0].membership.add("core4")
        await fresh.wait_ready()
        assert sorted(voters(fresh)) == sorted({"core1", "core2", "core3", "core4"} - {dead})
        assert (await fresh.kv.range()).count == 200
        old = await cluster.start(dead)
        fault = await asyncio.wait_for(asyncio.shield(old.fault), 20)
        assert isinstance(fault, RemovedNode)
        await leader.kv.put(b"more", b"x")


@in_loop
async def test_a_wiped_core_comes_back_as_a_new_member() -> None:
    async with LocalCluster(cores=3) as cluster:
        leader = cluster.leader()
        assert leader is not None
        name = next(node.name for node in cluster.cores if node is not leader)
        await leader.kv.put(b"k", b"v")
        await cluster.kill(name)
        await leader.membership.remove(name)
        cluster.configs[name] = msgspec.structs.replace(
            cluster.configs[name], dir=f"{cluster.directory}/{name}-new"
        )
        node = await cluster.start(name)
        await until(lambda: any(peer.startswith(name) for peer in leader._part.engine.links))
        await leader.membership.add(name)
        await node.wait_ready()
        assert sorted(voters(node)) == ["core1", "core2", "core3"]


@in_loop
async def test_what_cannot_be_done_says_so() -> None:
    async with LocalCluster(cores=3) as cluster:
        leader = cluster.leader()
        assert leader is not None
        other = next(node for node in cluster.cores if node is not leader)
        await refused(other.membership.add("nobody"), "no core called 'nobody' is connected")
        await refused(other.membership.promote("nobody"), "no core of this cluster")
        await leader.membership.remove("nobody")
        await leader.membership.add(other.name)
        third = next(n for n in cluster.cores if n not in (leader, other))
        await cluster.kill(third.name)
        await until(lambda: len(leader._part.engine.links) == 1)
        await refused(leader.membership.remove(other.name), "too few can be heard")
        await leader.membership.remove(third.name)
        assert len(voters(leader)) == 2

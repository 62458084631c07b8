"""After a forced recovery: the survivor goes on alone, nobody of before comes back as he was."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import msgspec

from raftkv.config import Limits, RaftTimes
from raftkv.errors import OutdatedData
from raftkv.node import Node
from raftkv.raft.forced_recovery import force_new_cluster
from raftkv.raft.identity import DataDirectory
from raftkv.runtime import OsFiles
from raftkv.testing.local_cluster import LocalCluster
from tests.test_membership import in_loop, until, voters
from tests.upstreams import upstream_of


def force(directory: str) -> None:
    files = OsFiles()
    held = DataDirectory.existing(files, directory)
    try:
        force_new_cluster(files, held, secrets.token_bytes)
    finally:
        held.close()


async def fault_of(node: Node) -> Exception:
    return await asyncio.wait_for(node.fault, 20)


def keys(node: Node) -> set[bytes]:
    return {key for key, _ in node.machine.view("kv").table("keys").scan()}


async def lose_the_majority(cluster: LocalCluster, survivor: str) -> None:
    """All cores stop; a write that the survivor never gets is acknowledged before."""
    for number in range(30):
        await cluster.nodes[0].kv.put(b"before%d" % number, b"x")
    await cluster.converge()
    await cluster.kill(survivor)
    others = cluster.cores
    await others[0].kv.put(b"lost", b"x", timeout_s=20)
    await until(lambda: all(b"lost" in keys(node) for node in cluster.replicants))
    for node in others:
        await cluster.kill(node.name)


@in_loop
async def test_the_survivor_goes_on_and_the_others_are_added_anew() -> None:
    times = RaftTimes(node_down_ms=1000)
    async with LocalCluster(cores=3, replicants=1, raft=times) as cluster:
        (replicant,) = cluster.replicants
        await lose_the_majority(cluster, "core2")
        life = replicant.incarnation
        force(cluster.configs["core2"].dir)
        node = await cluster.restart("core2")
        assert voters(node) == ["core2"]
        await node.kv.put(b"after", b"x")
        # The replicant has followed another history: it discards it and begins anew.
        await until(lambda: b"after" in keys(replicant) and b"lost" not in keys(replicant))
        await until(lambda: replicant.session != 0)
        await replicant.kv.put(b"replicant", b"x", timeout_s=20)
        assert replicant.incarnation != life
        assert replicant.machine.digest() == node.machine.digest()
        # Whoever the recovery left behind is declared down.
        await until(lambda: not node.machine.members["core1"].up)
        await until(lambda: not node.machine.members["core3"].up)
        # Those of before are told, and stop, whoever dials whom.
        for name in ("core1", "core3"):
            old = await cluster.start(name)
            fault = await fault_of(old)
            assert isinstance(fault, OutdatedData)
            assert "from before the cluster was recovered by force" in str(fault)
            await cluster.kill(name)
            cluster.configs[name] = msgspec.structs.replace(
                cluster.configs[name], dir=f"{cluster.directory}/{name}-new"
            )
            fresh = await cluster.start(name)
            await node.membership.add(name)
            await fresh.wait_ready()
        assert voters(node) == ["core1", "core2", "core3"]
        await cluster.converge()
        assert len({each.machine.digest() for each in cluster.nodes}) == 1


@in_loop
async def test_the_old_majority_and_the_survivor_never_meet() -> None:
    """They run beside each other, and the survivor is told by whoever is reached first."""
    async with LocalCluster(cores=3) as cluster:
        await lose_the_majority(cluster, "core3")
        force(cluster.configs["core3"].dir)
        old = await asyncio.gather(cluster.start("core1"), cluster.start("core2"))
        await asyncio.gather(*(node.wait_ready() for node in old))
        await old[0].kv.put(b"still", b"x")
        node = await cluster.start("core3")
        for fault in await asyncio.gather(*(fault_of(each) for each in old)):
            assert isinstance(fault, OutdatedData)
        await node.wait_ready()
        assert b"still" not in keys(node)
        assert voters(node) == ["core3"]


@in_loop
async def test_a_replicant_that_was_away_begins_anew_over_a_snapshot() -> None:
    limits = Limits(snapshot_log_entries=20, log_tail_entries=2)
    async with LocalCluster(cores=1, replicants=1, limits=limits) as cluster:
        core, replicant = cluster.nodes
        for number in range(60):
            await core.kv.put(b"%d" % number, b"x")
        await until(lambda: replicant.machine.index == core.machine.index)
        queue: Any = replicant.outbox
        opened, open_session = [], queue.open
        queue.open = lambda session: (opened.append(session), open_session(session))
        await cluster.kill("core1")
        force(core.config.dir)
        core = await cluster.restart("core1")
        # What it sends into the old history has an unknown outcome.
        await until(lambda: replicant._directory.identity.epoch == core._directory.identity.epoch)
        await until(lambda: replicant.session != 0)
        # Nothing in the new history is taken for an answer to what went into the old one.
        assert opened == [0, replicant.session]
        await replicant.kv.put(b"k", b"v", timeout_s=20)
        await until(lambda: replicant.machine.index == core.machine.index)
        assert replicant.machine.digest() == core.machine.digest()
        await cluster.restart("replicant1")
        assert await upstream_of(cluster.running["replicant1"]) == "core1"


@in_loop
async def test_two_recoveries_of_one_cluster_are_rivals() -> None:
    async with LocalCluster(cores=3) as cluster:
        await lose_the_majority(cluster, "core1")
        for name in ("core1", "core2"):
            force(cluster.configs[name].dir)
        first = await cluster.restart("core1")
        second = await cluster.start("core2")
        # It either met the first before it was ready, and stopped, or goes on for itself.
        await until(lambda: second.session != 0 or second._fault.done())
        await first.kv.put(b"k", b"v")
        assert (voters(first), voters(second)) == (["core1"], ["core2"])
        assert b"k" not in keys(second)
        assert not first._part.engine.links

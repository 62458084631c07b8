"""A cluster with certificates does what one without does: snapshots, elections, new members."""

from __future__ import annotations

import asyncio

from raftkv.config import Limits
from raftkv.testing.local_cluster import LocalCluster

SMALL_LOG = Limits(snapshot_log_entries=40, log_tail_entries=10, snapshot_chunk_bytes=50_000)
VALUE = bytes(range(256)) * 400


async def put_many(cluster: LocalCluster, prefix: str, count: int) -> None:
    leader = cluster.leader()
    assert leader is not None
    for number in range(count):
        await leader.kv.put(f"{prefix}{number}".encode(), VALUE)


def test_snapshots_of_many_records_and_a_new_leader() -> None:
    async def whole() -> None:
        async with LocalCluster(cores=3, replicants=0, limits=SMALL_LOG, tls=True) as cluster:
            leader = cluster.leader()
            assert leader is not None
            late = next(node.name for node in cluster.cores if node is not leader)
            await cluster.kill(late)
            await put_many(cluster, "a", 80)
            assert cluster.nodes[0].status().snapshot_index is not None
            # Its log was compacted away meanwhile: a snapshot of some megabytes, in chunks.
            await cluster.restart(late)
            await cluster.converge()
            await cluster.kill(leader.name)
            survivor = cluster.running[late]
            await survivor.kv.put(b"after", b"1")
            found = await survivor.kv.get(b"a79")
            assert found is not None
            assert found.value == VALUE
            await cluster.restart(leader.name)
            await cluster.converge()

    asyncio.run(asyncio.wait_for(whole(), 40))


def test_a_replicant_and_a_new_core_join() -> None:
    async def whole() -> None:
        async with LocalCluster(cores=1, replicants=1, limits=SMALL_LOG, tls=True) as cluster:
            await put_many(cluster, "a", 60)
            # It keeps its state in memory, so it asks for a snapshot.
            replicant = await cluster.restart("replicant1")
            assert (await replicant.kv.get(b"a59")) is not None
            added = await cluster.start_new_core("core2")
            await cluster.nodes[0].membership.add("core2")
            await added.wait_ready()
            assert (await added.kv.get(b"a59")) is not None
            assert added.status().tls is not None

    asyncio.run(asyncio.wait_for(whole(), 40))

"""A core that knows itself to be corrupt and still runs: what it answers until it stops."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from raftkv import Node
from raftkv.errors import CorruptState, RemoteFailed, WatchCancelled
from raftkv.kv.commands import RangeOp
from raftkv.membership import METHOD_LIST_2
from raftkv.parts import CorePart
from raftkv.raft.corrupt_marker import FILE
from raftkv.testing.local_cluster import LocalCluster
from raftkv.withdrawal import withdraw
from tests.test_corruption import break_a_row, cluster_of, until
from tests.upstreams import upstream_of


def hold_removal(node: Node) -> asyncio.Event:
    """The core's removal waits for the event, as it does while the others are slow to answer."""
    go_on, ask = asyncio.Event(), node.rebuild.ask_for_removal

    async def held() -> bool:
        await go_on.wait()
        return await ask()

    node.rebuild.ask_for_removal = held  # type: ignore[method-assign]
    return go_on


async def corrupt_one(cluster: LocalCluster, which: str) -> Node:
    for key in (b"a", b"b", b"c"):
        await cluster.nodes[0].kv.put(key, key)
    await cluster.converge()
    leader = cluster.leader()
    assert leader is not None
    if which == "leader":
        return leader
    return next(node for node in cluster.cores if node is not leader)


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_core_that_knows_itself_to_be_corrupt_answers_nothing_from_its_state(which: str) -> None:
    async def play() -> None:
        async with cluster_of(3, 0, on_corruption="rebuild") as cluster:
            corrupt = await corrupt_one(cluster, which)
            healthy = next(node for node in cluster.cores if node is not corrupt)
            go_on = hold_removal(corrupt)
            walk = corrupt.kv.walk(RangeOp(b"a", b"z"))
            await walk.page(1)
            watch = corrupt.kv.watch(b"a")
            break_a_row(corrupt)
            # By a first report that differs from its own it only raises an alarm.
            await until(lambda: corrupt.withdrawn)
            assert corrupt.status().corruption

            marker = str(Path(cluster.configs[corrupt.name].dir) / FILE)
            for call in (
                corrupt.kv.get(b"a"),
                corrupt.kv.get(b"a", consistency="local"),
                corrupt.kv.put(b"a", b"9"),
                corrupt.kv.txn([], [], []),
                corrupt.leases.grant(10),
                walk.page(1),
                corrupt.wait_ready(),
                corrupt.outcome(corrupt.session, 1),
            ):
                with pytest.raises(CorruptState, match="raftkv member remove") as caught:
                    await call
                assert marker in str(caught.value)
            with pytest.raises(WatchCancelled, match="ended with its node"):
                async for _ in watch:
                    pass
            with pytest.raises(RemoteFailed, match="CorruptState"):
                await healthy.rpc.call(corrupt.name, "kv.anything", b"", 5.0)

            status = corrupt.status()
            assert (status.ready, status.plugins, status.fault) == (False, {}, None)
            assert marker in (status.hindrance or "")
            assert not corrupt.metrics.stopped
            figures = corrupt.metrics.render()[1].decode()
            assert "raftkv_corruption_alarm 1" in figures
            assert not re.search(r"^raftkv_(kv_|table_rows\{|logical_bytes\{)", figures, re.M)
            assert await healthy.rpc.call(corrupt.name, METHOD_LIST_2, b"", 5.0)

            await until(lambda: healthy.leader not in (None, corrupt.name))
            await healthy.kv.put(b"d", b"1")
            assert not corrupt.fault.done()
            go_on.set()
            await until(lambda: corrupt.fault.done())
            assert corrupt.rebuild.removed
            assert "raftkv member remove" in str(await corrupt.fault)

    asyncio.run(asyncio.wait_for(play(), 60))


def test_its_replicants_copy_the_state_from_another_core_at_once() -> None:
    async def play() -> None:
        async with cluster_of(3, 1, on_corruption="rebuild") as cluster:
            await corrupt_one(cluster, "leader")
            replicant = cluster.replicants[0]
            corrupt = cluster.running[await upstream_of(replicant)]
            go_on = hold_removal(corrupt)
            break_a_row(corrupt)
            break_a_row(replicant)  # as if it had copied the row from there
            former = replicant.session
            await until(lambda: replicant.session not in (0, former))
            assert not corrupt.fault.done()
            await upstream_of(replicant, other_than=corrupt.name)
            assert isinstance(corrupt._part, CorePart)
            assert not corrupt._part.feeds.names
            go_on.set()
            await until(lambda: corrupt.fault.done())
            await cluster.kill(corrupt.name)
            await cluster.converge()
            assert replicant.machine.digest() == cluster.cores[0].machine.digest()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_reader_that_waits_gets_the_reason() -> None:
    async def play() -> None:
        async with cluster_of(3, 0, on_corruption="rebuild") as cluster:
            corrupt = await corrupt_one(cluster, "follower")
            go_on = hold_removal(corrupt)
            corrupt.reader._ask = lambda number: True  # the question gets lost
            reading = asyncio.ensure_future(corrupt.kv.get(b"a", timeout_s=30))
            break_a_row(corrupt)
            with pytest.raises(CorruptState, match=FILE):
                await reading
            go_on.set()
            await until(lambda: corrupt.fault.done())

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_leader_that_is_corrupt_sends_no_snapshot_to_a_core_that_needs_one() -> None:
    async def play() -> None:
        async with cluster_of(3, 0, on_corruption="rebuild") as cluster:
            corrupt = await corrupt_one(cluster, "leader")
            assert isinstance(corrupt._part, CorePart)
            engine = corrupt._part.engine
            behind = next(node.name for node in cluster.cores if node is not corrupt)
            await cluster.kill(behind)
            await corrupt.kv.put(b"d", b"1")
            engine.snapshotting.begin()
            await until(lambda: not engine.snapshotting.writing)
            engine.wal.compact(engine.applied, engine.wal.term_at(engine.applied) or 0)
            withdraw(corrupt, CorruptState("its state is another than that of the others"))
            await cluster.start(behind)
            leading = engine.leading
            assert leading is not None
            peer = next(peer for peer in engine.configuration.members if peer.startswith(behind))
            since = corrupt.runtime.monotonic()
            await until(lambda: leading.progress_of(peer).heard_at > since)
            assert leading.progress_of(peer).next <= engine.wal.base_index
            assert engine.leading is leading
            assert not leading.snapshots_on_their_way()
            assert not engine.counts.snapshot_sent_bytes

    asyncio.run(asyncio.wait_for(play(), 60))

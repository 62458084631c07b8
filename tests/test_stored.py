"""`Host.stored`: an entry that is applied may not be on this node's own disk yet."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from raftkv.node import Node
from raftkv.parts import CorePart
from raftkv.testing.local_cluster import LocalCluster


def run(body: Any) -> None:
    asyncio.run(asyncio.wait_for(body(), 50))


def engine_of(node: Node) -> Any:
    assert isinstance(node._part, CorePart)
    return node._part.engine


def test_it_returns_when_the_disk_has_it_and_not_before() -> None:
    async def body() -> None:
        async with LocalCluster(cores=1) as cluster:
            [node] = cluster.nodes
            await node.kv.put(b"k", b"v")
            engine, host = engine_of(node), node.hosting.hosts["kv"]
            await host.stored(engine.wal.durable_index)
            go, writing, write = threading.Event(), threading.Event(), engine._write

            def slow(pending: Any) -> None:
                writing.set()
                go.wait(20)
                write(pending)

            engine._write = slow
            put = asyncio.ensure_future(node.kv.put(b"k", b"w"))
            await asyncio.to_thread(writing.wait, 20)
            index = engine.wal.last_index
            waiters = [asyncio.ensure_future(host.stored(i)) for i in (index, index - 1, index)]
            gone = asyncio.ensure_future(host.stored(index))
            await asyncio.wait([waiters[1]], timeout=20)
            assert [waiter.done() for waiter in waiters] == [False, True, False]
            gone.cancel()
            go.set()
            await asyncio.gather(put, *waiters)
            assert engine.wal.durable_index >= index
            assert engine._storing == []

    run(body)


def test_a_replicant_has_nothing_to_wait_for() -> None:
    async def body() -> None:
        async with LocalCluster(cores=1, replicants=1) as cluster:
            replicant = cluster.nodes[-1]
            await replicant.kv.put(b"k", b"v")
            await replicant.hosting.hosts["kv"].stored(replicant.machine.index + 1000)

    run(body)

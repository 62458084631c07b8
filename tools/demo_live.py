"""A live cluster, shown: six node processes, and two nodes more that this program embeds.

The embedded ones are replicants, as a broker or a web server would embed them. Through them the
show writes and reads, lets two clients race for one session, and measures what a caller notices
when the leader is killed. Every claim it prints is checked; a broken one raises `ShowFailed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

import raftkv
from raftkv.cli.devcluster import DevCluster
from raftkv.cli.door_client import DoorClient
from raftkv.cli.ports import free_ports
from raftkv_lcr import LCR

__all__ = ["ShowFailed", "show"]

RACES: Final = 20
# How long the writer goes on before and after the leader is killed.
WRITE_BEFORE_S: Final = 1.0
WRITE_AFTER_S: Final = 2.0
# A leader that dies costs an election time-out and a round of votes; this is far beyond.
RECOVERY_S_MAX: Final = 30.0


class ShowFailed(Exception):
    """Something that was claimed did not hold."""


async def show(directory: Path, console: Console) -> None:
    """Start a cluster of 3 cores and 3 replicants in `directory`, show it, and stop it again."""
    cluster = DevCluster(directory)
    began = time.perf_counter()
    console.rule("a live cluster")
    try:
        await asyncio.to_thread(cluster.up, cores=3, replicants=3)
        took = time.perf_counter() - began
        console.print(f"3 cores and 3 replicants take writes after {took:.1f} s")
        console.print(_status_table(cluster))
        async with _embedded(cluster, "shop1") as first, _embedded(cluster, "shop2") as second:
            console.print("shop1 and shop2 are two replicants more, embedded in this program")
            await _put_and_get(cluster, first, console)
            await _race(first, second, console)
            await _kill_the_leader(cluster, first, console)
    finally:
        await asyncio.to_thread(cluster.down)


@contextlib.asynccontextmanager
async def _embedded(cluster: DevCluster, name: str) -> AsyncIterator[raftkv.Node]:
    pattern = cluster.config(cluster.names[0])
    config = raftkv.NodeConfig(
        name=name,
        role="replicant",
        cluster=pattern.cluster,
        dir=str(Path(cluster.directory) / name),
        peer_address=f"127.0.0.1:{free_ports(1)[0]}",
        cores=pattern.cores,
    )
    async with raftkv.Node(config) as node:
        await node.wait_ready(20.0)
        yield node


def _status_table(cluster: DevCluster) -> Table:
    """Narrower than `raftkv cluster status`, so that it fits into 80 columns."""
    table = Table("node", "role", "term", "applied", "endpoint", box=None)
    for node in cluster.status().nodes:
        role = f"[bold]{node.role}[/bold]" if node.role == "leader" else str(node.role)
        table.add_row(node.name, role, str(node.term), str(node.applied_index), node.endpoint)
    return table


async def _put_and_get(cluster: DevCluster, node: raftkv.Node, console: Console) -> None:
    console.rule("put and get")
    began = time.perf_counter()
    put = await node.kv.put(b"greeting", b"hello")
    took_ms = 1000 * (time.perf_counter() - began)
    console.print(f"put greeting=hello through shop1: revision {put.revision}, {took_ms:.1f} ms")
    for name in cluster.names:
        client = DoorClient([cluster.endpoint(name)])
        found = await asyncio.to_thread(client.get, b"greeting")
        if found is None or found.value != b"hello" or found.mod_revision != put.revision:
            raise ShowFailed(f"{name} answered {found}")
    console.print(f"linearizable get over HTTP: all {len(cluster.names)} nodes answer hello")


async def _race(first: raftkv.Node, second: raftkv.Node, console: Console) -> None:
    console.rule("two clients race for one session")
    registries = (first.plugin(LCR), second.plugin(LCR))
    won: Counter[str] = Counter()
    took_over = 0
    for number in range(RACES):
        client = f"client-{number}"
        attempts = [api.connect(client, f"channel-{n}") for n, api in enumerate(registries, 1)]
        # Whoever is asked first has a head start: take turns.
        results = await asyncio.gather(*(attempts if number % 2 else attempts[::-1]))
        owners = [await api.lookup(client) for api in registries]
        if owners[0] is None or owners[0] != owners[1]:
            raise ShowFailed(f"{client} has two owners: {owners}")
        began = [each for each in results if each.outcome == "ok" and not each.session_present]
        if len(began) != 1:
            raise ShowFailed(f"{client}: {len(began)} of 2 connections began a session: {results}")
        won[owners[0].node] += 1
        took_over += any(each.session_present for each in results)
    console.print(
        f"{RACES} races: the same client connects to shop1 and shop2 at the same moment. Each time "
        f"one began the session ({took_over} times the other took it over at once), and both nodes "
        f"agree on one owner: shop1 {won['shop1']}, shop2 {won['shop2']}"
    )


async def _kill_the_leader(cluster: DevCluster, node: raftkv.Node, console: Console) -> None:
    console.rule("the leader is killed")
    writer = _Writer(node)
    task = asyncio.create_task(writer.run())
    try:
        await asyncio.sleep(WRITE_BEFORE_S)
        leader = await asyncio.to_thread(cluster.leader)
        killed_s = time.perf_counter()
        await asyncio.to_thread(cluster.kill_node, leader)
        async with asyncio.timeout(RECOVERY_S_MAX):
            heir = await asyncio.to_thread(cluster.leader)
            while writer.acknowledged_s[-1] < killed_s + WRITE_AFTER_S:
                await asyncio.sleep(0.05)
    finally:
        writer.stop()
        await task
    gap_ms = 1000 * writer.longest_gap_s(killed_s)
    console.print(f"kill -9 {leader}; {heir} leads now")
    console.print(
        f"one caller that writes all the time waited {gap_ms:.0f} ms; "
        f"{len(writer.acknowledged_s)} writes were acknowledged, none failed"
    )
    found = await node.kv.range(prefix=b"count/")
    if len(found.kvs) != len(writer.acknowledged_s):
        raise ShowFailed(f"{len(writer.acknowledged_s)} acknowledged, {len(found.kvs)} found")
    console.print("every acknowledged write is there, exactly once")
    began = time.perf_counter()
    await asyncio.to_thread(cluster.start_node, leader)
    await asyncio.to_thread(cluster.wait_writable, [leader])
    console.print(f"{leader} is back after {time.perf_counter() - began:.1f} s")
    console.print(_status_table(cluster))


class _Writer:
    """One caller in a loop, and the moments at which its writes were acknowledged."""

    def __init__(self, node: raftkv.Node) -> None:
        self._node = node
        self._stopping = False
        self.acknowledged_s: list[float] = [time.perf_counter()]

    async def run(self) -> None:
        self.acknowledged_s.clear()
        while not self._stopping:
            key = b"count/%08d" % len(self.acknowledged_s)
            await self._node.kv.put(key, b"1")
            self.acknowledged_s.append(time.perf_counter())

    def stop(self) -> None:
        self._stopping = True

    def longest_gap_s(self, after_s: float) -> float:
        """The longest time between two acknowledgements of which the later is after `after_s`."""
        pairs = zip(self.acknowledged_s, self.acknowledged_s[1:], strict=False)
        return max(later - earlier for earlier, later in pairs if later > after_s)

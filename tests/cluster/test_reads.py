"""Linearizable reads on every node, while leaders and upstream cores are killed.

What must hold is written down once, in `Register`: a read that starts after a write was
acknowledged, or after another read has seen it, sees it too, through whichever nodes.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from typing import Any

import pytest

from raftkv.cli.devcluster import DevCluster
from tests.cluster.clients import DEADLINE_S, RETRY_S, Denied, HttpClient, Unknown, clients

pytestmark = pytest.mark.cluster

# Rounds of writing and reading through every pair of nodes, before a kill and after it.
ROUNDS = 25


class Register:
    """One key with one writer, who writes 1, 2, 3, ...; anybody may read it at any time."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.floor = 0  # known to somebody: acknowledged, or seen by a read that has ended
        self.submitted = 0

    async def write(self, client: HttpClient) -> bool:
        """Write the next number; whether it was acknowledged."""
        self.submitted += 1
        number = self.submitted
        try:
            await client.put(self.key, b"%d" % number)
        except (Denied, Unknown):
            await asyncio.sleep(RETRY_S)
            return False
        self.floor = max(self.floor, number)
        return True

    async def read(self, client: HttpClient) -> bool:
        """Read and check; whether there was an answer."""
        floor = self.floor
        try:
            found = await client.get(self.key)
        except (Denied, Unknown):
            return False
        number = 0 if found is None else int(found)
        assert floor <= number <= self.submitted, f"read {number}, {floor} was known before"
        self.floor = max(self.floor, number)
        return True


class Pairs:
    """Every node writes a register of its own, and reads it through every node after each write."""

    def __init__(self, dev: DevCluster) -> None:
        self._endpoints = {name: dev.endpoint(name) for name in dev.names}
        # How often a write through the first node was read through the second.
        self.answered: collections.Counter[tuple[str, str]] = collections.Counter()

    async def write_and_read(self, writer: str, stop: asyncio.Event) -> None:
        register = Register(b"pairs/" + writer.encode())
        made = {name: HttpClient(endpoint) for name, endpoint in self._endpoints.items()}
        try:
            while not stop.is_set():
                if not await register.write(made[writer]):
                    continue
                reads = [register.read(client) for client in made.values()]
                for reader, answered in zip(made, await asyncio.gather(*reads), strict=True):
                    self.answered[writer, reader] += answered
        finally:
            for client in made.values():
                client.close()

    async def further_rounds(self, names: list[str]) -> None:
        """Return once each of the nodes has read the writes of each, ROUNDS times more."""
        pairs = [(writer, reader) for writer in names for reader in names]
        wanted = {pair: self.answered[pair] + ROUNDS for pair in pairs}
        async with asyncio.timeout(DEADLINE_S):
            while any(self.answered[pair] < count for pair, count in wanted.items()):
                await asyncio.sleep(RETRY_S)


def test_a_read_after_a_write_sees_it_through_every_pair_of_nodes(six: DevCluster) -> None:
    async def drive(pairs: Pairs, stop: asyncio.Event) -> None:
        try:
            await pairs.further_rounds(six.names)
            leader = await asyncio.to_thread(six.leader)
            await asyncio.to_thread(six.kill_node, leader)
            await pairs.further_rounds([name for name in six.names if name != leader])
            await asyncio.to_thread(six.start_node, leader)
            await pairs.further_rounds(six.names)
        finally:
            stop.set()

    async def whole() -> None:
        pairs, stop = Pairs(six), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for name in six.names:
                group.create_task(pairs.write_and_read(name, stop))
            group.create_task(drive(pairs, stop))

    asyncio.run(whole())


async def status_when(client: HttpClient, wanted: Any) -> dict[str, Any]:
    """The node's status, once `wanted(status)` is true."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(Denied, Unknown):
                status = await client.status()
                if wanted(status):
                    return status
            await asyncio.sleep(RETRY_S)


async def answers(client: HttpClient, key: bytes) -> bytes | None:
    """A linearizable read, repeated until there is an answer."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(Denied, Unknown):
                return await client.get(key)
            await asyncio.sleep(RETRY_S)


def test_a_replicant_whose_upstream_dies_goes_on_with_another_core(six: DevCluster) -> None:
    async def whole() -> None:
        async with clients(six) as made:
            replicant = made["replicant1"]
            for n in range(2):
                status = await status_when(replicant, lambda status: status["upstream"])
                left = status["upstream"]
                other = next(made[name] for name in ("core1", "core2", "core3") if name != left)
                await asyncio.to_thread(six.kill_node, left)
                # What it misses, or hears from the other core, and what it then writes itself.
                await acknowledged(other, b"moved/%d/missed" % n, b"1")
                status = await status_when(
                    replicant, lambda status, left=left: status["upstream"] not in (None, left)
                )
                assert await answers(replicant, b"moved/%d/missed" % n) == b"1"
                await acknowledged(replicant, b"moved/%d/own" % n, b"2")
                assert await answers(other, b"moved/%d/own" % n) == b"2"
                await asyncio.to_thread(six.start_node, left)
                await asyncio.to_thread(six.wait_writable, [left], timeout_s=DEADLINE_S)

    asyncio.run(whole())


async def acknowledged(client: HttpClient, key: bytes, value: bytes) -> None:
    """Put, repeated until it is acknowledged; so every key gets one value only."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(Denied, Unknown):
                await client.put(key, value)
                return
            await asyncio.sleep(RETRY_S)

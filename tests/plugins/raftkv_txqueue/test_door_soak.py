"""Producers and movers over doors, while the nodes under them die: everything once, in whole parts.

Real nodes with doors in one process. A producer puts batches into "in", a mover takes from "in" and
puts into "out", each in transactions of `DoorSession`. The node that leads is killed now and then
and started again. Whoever does not know what became of a commit asks, as docs/txqueue.md says.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from raftkv import Client
from raftkv.config import RaftTimes
from raftkv.errors import NotApplied, RaftkvError
from raftkv.server import Door, door_of
from raftkv.testing.local_cluster import LocalCluster, free_ports
from raftkv_txqueue import (
    DoorSession,
    Message,
    TransactionAborted,
    TransactionUnknown,
    TxQueue,
)

pytestmark = pytest.mark.slow

BATCHES = 40
BATCH = 5
PRODUCERS = 3
MOVERS = 2
KILLS = 3
TRY_S = 5.0
TIMEOUT_S = 120.0


class Doors:
    """Three nodes with doors at fixed addresses."""

    def __init__(self) -> None:
        raft = RaftTimes(node_down_ms=1_500)
        self.cluster = LocalCluster(3, plugins=[TxQueue()], raft=raft)
        configs = self.cluster.configs
        for (name, config), port in zip(list(configs.items()), free_ports(3), strict=True):
            configs[name] = msgspec.structs.replace(config, http_address=f"127.0.0.1:{port}")
        self._doors: dict[str, Door] = {}
        self.endpoints: list[str] = []

    async def start(self, name: str) -> None:
        node = await self.cluster.start(name)
        self._doors[name] = door_of(node)
        await self._doors[name].start()

    async def start_all(self) -> None:
        await asyncio.gather(*(self.start(name) for name in self.cluster.configs))
        await self.cluster.wait_ready()
        self.endpoints = [door.endpoint for door in self._doors.values()]

    async def kill(self, name: str) -> None:
        await self._doors.pop(name).stop()
        await self.cluster.kill(name)

    async def close(self) -> None:
        for door in self._doors.values():
            await door.stop()
        await self.cluster.close()


class Work:
    """What was done, as far as those who did it know."""

    def __init__(self, doors: Doors) -> None:
        self.doors = doors
        self.committed: list[str] = []
        self.unknown = 0
        self.kills = 0
        self.moved = asyncio.Event()

    def client(self, number: int) -> Client:
        ends = self.doors.endpoints
        return Client([*ends[number % 3 :], *ends[: number % 3]], timeout_s=TRY_S)

    async def fate(self, client: Client, txid: str) -> str:
        """Ask until it is definite."""
        while True:
            try:
                path = f"/v1/txqueue/tx/{txid}"
                answer = await client.call("GET", path, repeat=True, timeout_s=TRY_S)
            except RaftkvError:
                await asyncio.sleep(0.1)  # nobody leads: it is asked again until somebody does
                continue
            state: str = answer.body["state"] if answer.good else ""
            if state in ("committed", "rolled back"):
                return state
            await asyncio.sleep(0.1)

    async def produce(self, number: int) -> None:
        """Every batch is sent until it is known to be committed, and then never again."""
        async with self.client(number) as client:
            session: DoorSession | None = None
            for batch in range(BATCHES):
                names = [f"{number}.{batch}.{item}" for item in range(BATCH)]
                done = False
                while not done:
                    session, done = await self._try(client, session, names)
                self.committed += names

    async def _try(
        self, client: Client, session: DoorSession | None, names: list[str]
    ) -> tuple[DoorSession | None, bool]:
        try:
            session = session or await DoorSession.open(client, "tx", timeout_s=TRY_S)
            await session.publish("in", [Message(name.encode()) for name in names])
            await session.commit()
        except TransactionUnknown as error:
            self.unknown += 1
            return None, await self.fate(client, error.txid) == "committed"
        except TransactionAborted:
            return None, False
        except NotApplied:
            # Not sent, or no leader: its operations would be sent again with the next commit.
            await asyncio.sleep(0.1)
            return None, False
        return session, True

    async def move(self, number: int) -> None:
        async with self.client(number) as client:
            session: DoorSession | None = None
            while not self.moved.is_set():
                try:
                    session = session or await DoorSession.open(client, "tx", timeout_s=TRY_S)
                    got = await session.get("in", 7, wait_s=0.2)
                    if not got:
                        continue
                    await session.publish("out", [Message(each.body) for each in got])
                    await session.accept(*got)
                    await session.commit()
                except RaftkvError:
                    # Whatever became of it, it became of all of it; what it held comes back.
                    session = None
                    await asyncio.sleep(0.1)

    async def kill(self) -> None:
        """Kill the leader whenever so much more is committed."""
        for kill in range(KILLS):
            while len(self.committed) < (kill + 1) * PRODUCERS * BATCHES * BATCH // (KILLS + 1):
                await asyncio.sleep(0.02)
            while (leader := self.doors.cluster.leader()) is None:
                await asyncio.sleep(0.02)
            await self.doors.kill(leader.name)
            self.kills += 1
            await asyncio.sleep(0.5)
            await self.doors.start(leader.name)


async def soak() -> None:
    doors = Doors()
    await doors.start_all()
    try:
        txq = doors.cluster.nodes[0].plugin(TxQueue)
        for queue in ("in", "out"):
            await txq.declare(queue)
        work = Work(doors)
        movers = [asyncio.create_task(work.move(PRODUCERS + each)) for each in range(MOVERS)]
        killer = asyncio.create_task(work.kill())
        await asyncio.gather(*(work.produce(each) for each in range(PRODUCERS)))
        await killer
        txq = doors.cluster.nodes[0].plugin(TxQueue)
        total = PRODUCERS * BATCHES * BATCH
        while (await txq.depth("out")).depth < total:
            await asyncio.sleep(0.1)
        work.moved.set()
        await asyncio.gather(*movers)
        assert (await txq.depth("in")).depth == 0
        found = [each.message.body.decode() for each in await txq.browse("out", limit=1_000)]
        assert Counter(found) == Counter(work.committed)
        assert (len(found), work.kills) == (total, KILLS)
    finally:
        await doors.close()


def test_everything_arrives_once_while_leaders_are_killed() -> None:
    asyncio.run(asyncio.wait_for(soak(), TIMEOUT_S))

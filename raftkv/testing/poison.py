"""Clients of the simulated cluster whose commands are much work: for runs in which work takes time.

Bursts of transactions that each compare a large range before they write, deletions of thousands of
keys in one revision, and now and then a node whose clients do as much under many sessions. What
must hold beside the checks of all runs: share_check.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Final

from raftkv.errors import NodeFault, NotApplied, OutcomeUnknown, Refused
from raftkv.foreign import Ticket
from raftkv.kv.commands import Compare, PutOp, Txn
from raftkv.testing.host import HostCrashed
from raftkv.testing.share_check import Whole
from raftkv.testing.workload import BULK

if TYPE_CHECKING:
    from raftkv.node import Node
    from raftkv.testing.simulated import SimulatedCluster
    from raftkv.testing.workload import Heavy

__all__ = ["MASS_KEYS", "Poison"]

# Between two bursts, and between two rounds of putting and deleting, on average.
BURST_PAUSE_S: Final = 1.0
DELETE_PAUSE_S: Final = 2.0
BURST_MAX: Final = 6
#: Keys that one deletion ends: several turns of the loop, by the constants of charges.py.
MASS_KEYS: Final = 6_000
MASS, MASS_END = b"mass/", b"mass0"
# How often, and how long, readers look at a deletion.
LOOK_S: Final = 0.001
LOOKS: Final = 400
TIMEOUT_S: Final = 3.0
# Between two such nodes, on average; sessions of one, and commands that each has under way.
BUSY_PAUSE_S: Final = 4.0
BUSY_SESSIONS: Final = 8
BUSY_COMMANDS: Final = 3


class Poison:
    """`storm` runs until it is cancelled."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random, heavy: Heavy) -> None:
        self._cluster = cluster
        self._rng = rng
        self._heavy = heavy
        self._sent = self._rounds = 0
        self._whole = Whole(cluster.violated)
        # Drawn apart, so that the rest stays as it is.
        self._busy_rng = random.Random()
        self._busy_rng.setstate(rng.getstate())

    async def storm(self) -> None:
        await asyncio.gather(self._bursts(), self._deletions(), self._busy_nodes())

    async def _busy_nodes(self) -> None:
        """Clients of one node, each under a session of its own; another node has one session."""
        rng = self._busy_rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / BUSY_PAUSE_S))
            names = [name for name in self._cluster.names if self._cluster.is_up(name)]
            if len(names) < 2:
                continue
            for name, sessions in zip(rng.sample(names, 2), (BUSY_SESSIONS, 1), strict=True):
                node = self._cluster.nodes.get(name)
                for _ in range(0 if node is None else sessions):
                    assert node is not None
                    self._cluster.world.spawn(self._client(name, node), "a client of many")

    async def _client(self, name: str, node: Node) -> None:
        """Compare many keys, several times at once, and write nothing."""
        world, heavy = self._cluster.world, self._heavy
        low, high = BULK + b"%08d" % 0, BULK + b"%08d" % heavy.compared_keys
        command = Txn((Compare(low, "version", "=", 1, high),))
        with contextlib.suppress(NotApplied, Refused, OutcomeUnknown, HostCrashed, NodeFault):
            handle = await world.call(name, node.foreign.open_session(TIMEOUT_S))
            session = int(handle.partition("-")[0])
            asked = [
                world.call(
                    name, node.foreign.propose(Ticket(session, seq, 1), "kv", command, TIMEOUT_S)
                )
                for seq in range(1, BUSY_COMMANDS + 1)
            ]
            await asyncio.gather(*asked, return_exceptions=True)

    async def _bursts(self) -> None:
        cluster, rng = self._cluster, self._rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / BURST_PAUSE_S))
            for _ in range(rng.randint(2, BURST_MAX)):
                found = self._cluster.some_node(self._rng)
                if found is not None:
                    self._sent += 1
                    cluster.load.compare_range(*found, b"poison/%d" % self._sent)

    async def _deletions(self) -> None:
        cluster, world = self._cluster, self._cluster.world
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / DELETE_PAUSE_S))
            found = self._cluster.some_node(self._rng)
            if found is None or not await self._fill(*found):
                continue
            name, node = found
            looking = world.spawn(self._look(), "readers of a deletion")
            try:
                deletion = node.kv.delete(MASS, MASS_END, timeout_s=TIMEOUT_S)
                if (await world.call(name, deletion)).deleted >= MASS_KEYS:
                    cluster.marks.hit("thousands of keys deleted at once")
            except (NotApplied, Refused, OutcomeUnknown, HostCrashed, NodeFault):
                pass  # the keys go with the next one
            await looking

    async def _fill(self, name: str, node: Node) -> bool:
        """Put keys that never were there: each is put once, as the world's last check wants it."""
        step = self._heavy.fill_keys
        self._rounds += 1
        prefix = MASS + b"%04d/" % self._rounds
        for first in range(0, MASS_KEYS, step):
            puts = [PutOp(prefix + b"%04d" % each, b"") for each in range(first, first + step)]
            try:
                txn = node.kv.txn([], puts, [], timeout_s=TIMEOUT_S)
                await self._cluster.world.call(name, txn)
            except (NotApplied, Refused, OutcomeUnknown, HostCrashed, NodeFault):
                return False
        return True

    async def _look(self) -> None:
        cluster = self._cluster
        for _ in range(LOOKS):
            await asyncio.sleep(LOOK_S)
            for name in list(cluster.names):
                node = cluster.nodes.get(name) if cluster.is_up(name) else None
                if node is not None:
                    self._whole.look(name, node.machine.view("kv"), MASS, MASS_END)

"""A client of the simulated cluster that uses up the quota of the keyspace, and makes room again.

Each round lowers the quota to a little more than is counted, and writes until it is refused. What
must hold: what is acknowledged fits into the quota; once a write was refused, so is every later one
at any node, until the alarm is disarmed, while deletions work; after the quota is raised and the
alarm disarmed, writes are taken. That all nodes decide alike, the comparison of their states sees.

What the client counts itself is no more than what its own writes add at least: with their values
in the keys and in the history. While nothing is compacted the count never falls.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

from raftkv.errors import NodeFault, NoSpace, NotApplied, OutcomeUnknown, Refused
from raftkv.state.quota import QUOTA_FORMAT
from raftkv.testing.host import HostCrashed

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from raftkv.node import Node
    from raftkv.state import StateMachine
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["SPARE_BYTES", "Spender", "miscounted"]

#: What a round leaves beside what is counted when it begins: other clients use it, too.
SPARE_BYTES: Final = 48 * 1024
#: Of each value. Larger ones do not fit into the tiny limits of some runs.
VALUE_BYTES: Final = 700
TIMEOUT_S: Final = 3.0
# Between two rounds, and two writes.
ROUND_S: Final = 2.0
PAUSE_S: Final = 0.02
# A round ends after so many writes, whatever became of them.
WRITES_MAX: Final = 100
# After it nothing comes any more of what timed out.
LATE_S: Final = 2 * TIMEOUT_S
# Writes that must be refused once one was.
AGAIN: Final = 3

_UNANSWERED: Final = (NotApplied, OutcomeUnknown, HostCrashed, NodeFault)


def miscounted(name: str, machine: StateMachine) -> str:
    """What a node counts otherwise than its rows have it; empty if nothing."""
    for plugin, usage in machine.usages.items():
        if usage.bytes != usage.recount():
            return f"{name} counts {usage.bytes} bytes of {plugin}, its rows have {usage.recount()}"
    return ""


class Spender:
    """`storm` runs until it is cancelled, `finish` leaves the quota as it was."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._sent = 0
        # Whether the quota may be low: something that lowers it was sent.
        self._lowered = False
        # Whether one of these may come late: its caller does not know what became of it.
        self._unsure = False
        # The lowest revision that the node had which acknowledged the last write. It had applied
        # every compaction before that write; another node may be behind.
        self._lowest_at_write = 0

    async def storm(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / ROUND_S))
            found = self._cluster.some_node(self._rng)
            if found is not None and found[1].machine.core_format >= QUOTA_FORMAT:
                await self._round(*found)

    async def finish(self) -> None:
        """Raise the quota and disarm the alarm, as often as it takes."""
        if self._unsure:
            await asyncio.sleep(LATE_S)  # by then it is settled
        while self._lowered:
            await self._restore()

    async def _round(self, name: str, node: Node) -> None:
        if self._lowered or self._unsure:
            await self._restore()
            return
        victim = b"spent/%d" % self._sent
        self._sent += 1
        if await self._call(name, node.kv.put(victim, b"", timeout_s=TIMEOUT_S)) is None:
            return
        quota = node.machine.usages["kv"].bytes + SPARE_BYTES
        lowest = node.kv.lowest_revision
        self._lowered = True
        lowering = node.quotas.set_quota("kv", quota, timeout_s=TIMEOUT_S)
        if await self._try(name, lowering):
            await self._spend(victim, lowest)
        else:
            self._unsure = True
            await asyncio.sleep(LATE_S)
        await self._restore()

    async def _spend(self, victim: bytes, lowest: int) -> None:
        """Write until it is refused; then see what still works."""
        spent = 0
        for _ in range(WRITES_MAX):
            taken = await self._write()
            if taken is False:
                break
            if taken:
                spent += 2 * VALUE_BYTES
            if spent > SPARE_BYTES and self._lowest_at_write == lowest:
                self._violated(f"{spent} bytes were taken of {SPARE_BYTES}")
            await asyncio.sleep(PAUSE_S)
        else:
            return
        self._cluster.marks.hit("quota used up")
        for _ in range(AGAIN):
            if await self._write(0):  # so small that it would fit
                self._violated("a write was taken before the alarm was disarmed")
        found = self._cluster.some_node(self._rng)
        if found is not None:
            name, node = found
            deleted = await self._call(name, node.kv.delete(victim, timeout_s=TIMEOUT_S))
            if deleted is not None:
                self._cluster.marks.hit("deletion beyond the quota")

    async def _restore(self) -> None:
        found = self._cluster.some_node(self._rng)
        if found is None:
            await asyncio.sleep(PAUSE_S)
            return
        name, node = found
        raised = await self._try(name, node.quotas.set_quota("kv", None, timeout_s=TIMEOUT_S))
        if not raised or not await self._try(name, node.quotas.disarm(timeout_s=TIMEOUT_S)):
            await asyncio.sleep(PAUSE_S)  # a node that has stopped refuses at once
            return
        taken = await self._write()
        if taken is False and not self._unsure:
            self._violated("a write was refused although there is room again")
        if taken:
            self._lowered = self._unsure = False

    async def _write(self, size: int = VALUE_BYTES) -> bool | None:
        """Whether a write was taken, False if the quota refused it; None: another error."""
        found = self._cluster.some_node(self._rng)
        if found is None:
            return None
        name, node = found
        load, key = self._cluster.load, b"quota/%d" % self._sent
        self._sent += 1
        put = node.kv.put(key, bytes(size), timeout_s=TIMEOUT_S)
        try:
            await self._cluster.world.call(name, put)
        except NoSpace:
            load.refused.add(key)
            return False
        except NotApplied:
            load.refused.add(key)
            return None
        except _UNANSWERED:
            return None  # it may take effect once, now or later
        load.acknowledged.add(key)
        self._lowest_at_write = node.kv.lowest_revision
        return True

    async def _call(self, name: str, call: Coroutine[Any, Any, Any]) -> Any:
        """The result; None if it is not known. A refusal by the quota is a violation."""
        try:
            return await self._cluster.world.call(name, call)
        except NoSpace:
            self._violated("a deletion was refused, or a write while there was room")
        except _UNANSWERED:
            return None

    async def _try(self, name: str, call: Coroutine[Any, Any, Any]) -> bool:
        """Whether it was done for sure."""
        try:
            await self._cluster.world.call(name, call)
        except (*_UNANSWERED, Refused):
            return False
        return True

    def _violated(self, what: str) -> None:
        self._cluster.violated("the quota holds", what)

"""One core's identity in two processes: its data directory is copied and started beside it.

The world is calm meanwhile, because a second process is let in once the first one does not answer,
and two that take turns may vote twice: no rule can help there. While the first one answers, the
other cores must refuse the second one and raise the alarm; it must get no session, and the first
one must go on. What was acknowledged stays, as in every run.

An old copy that is started in place of the core is another fault (rollback.py).
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

import msgspec

from raftkv.testing.identities import run_beside
from raftkv.testing.members import with_cores
from raftkv.testing.world import NotReached
from raftkv.twins import IDENTITY

if TYPE_CHECKING:
    from raftkv.node import Node
    from raftkv.runtime import Runtime
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["SECOND_PROCESS", "CopiedDirectory"]

#: The machine of the second process.
SECOND_PROCESS: Final = "copied"
PORT: Final = 7000
CHECK: Final = "one process under a raft id"
# Until the directory is copied, uniform.
BEFORE_S: Final = (1.0, 6.0)
# All nodes must be ready within it once the world is calm; else there is nothing to be seen.
CALM_S: Final = 15.0
# The second process dials every half second, and a look at the first one takes 1 s at most.
NOTICED_S: Final = 8.0
# And stays for so long.
STAY_S: Final = 2.0


class CopiedDirectory:
    """Runs a second process out of a copy of one core's directory, once, beside the nemesis."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._name = rng.choice(cluster.cores)
        self._second: Node | None = None

    async def program(self, runtime: Runtime) -> None:
        address = f"{SECOND_PROCESS}:{PORT}"
        given = msgspec.structs.replace(self._cluster.configs[self._name], peer_address=address)
        cores = with_cores(given, self._cluster.cores, PORT).cores
        config = msgspec.structs.replace(given, cores={**cores, self._name: address})
        await run_beside(config, runtime, self._started)

    def _started(self, node: Node) -> None:
        self._second = node

    async def run(self) -> None:
        """Until it is done or cancelled."""
        await asyncio.sleep(self._rng.uniform(*BEFORE_S))
        nemesis = self._cluster.nemesis
        if nemesis is None or not set(self._cluster.cores) <= set(self._cluster.names):
            return  # a majority was lost (disaster.py)
        nemesis.calm = True
        nemesis.heal()
        try:
            await self._cluster.world.until(self._cluster.all_ready, CALM_S, "a calm cluster")
        except NotReached:
            nemesis.calm = False
            return  # a core is copying a snapshot, or was hurt: there is nothing to be seen
        await self._copy()
        nemesis.calm = False

    async def _copy(self) -> None:
        cluster, world, name = self._cluster, self._cluster.world, self._name
        first, boots = cluster.nodes[name], world.host(name).boots
        incarnation = first.incarnation
        world.note(name, "its directory is copied and started elsewhere")
        # The first one goes on meanwhile, and acknowledges what the copy cannot hold.
        world.host(SECOND_PROCESS).disk.roll_back(world.host(name).disk.platters())
        cluster.observer.promises.copied(first.raft_id, SECOND_PROCESS)
        world.start(SECOND_PROCESS, self.program)
        try:
            await world.until(self._noticed, NOTICED_S, "the alarm about a second process")
        except NotReached:
            if world.host(name).boots == boots:
                cluster.violated(CHECK, f"no alarm about a second process as {name}")
        cluster.marks.hit("second process refused")
        await asyncio.sleep(STAY_S)
        if world.host(name).boots == boots and cluster.is_up(name):  # else it did not answer
            if self._second is not None and self._second.session:
                cluster.violated(CHECK, f"a second process has got a session as {name}")
            if first.incarnation != incarnation:
                cluster.violated(CHECK, f"a second process has ended the incarnation of {name}")
        self.end()

    def end(self) -> None:
        """The second process ends, if it runs."""
        if self._cluster.world.host(SECOND_PROCESS).is_up:
            self._cluster.world.crash(SECOND_PROCESS, power_cut=False)

    def _noticed(self) -> bool:
        """Another core has raised the alarm, and the second process has learnt of it."""
        cluster, second = self._cluster, self._second
        others = [each for each in cluster.cores if each != self._name and cluster.is_up(each)]
        alarms = [IDENTITY in cluster.nodes[each].status().alarms for each in others]
        return any(alarms) and second is not None and IDENTITY in second.status().alarms

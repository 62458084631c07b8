"""A rolling upgrade in the simulated world: from nodes that know core format 1 only to the newest.

A node that knows format 1 only decides, writes and sends as release 0.1.0 does; the software is the
same in all else. During a storm the operator takes nodes up one by one, now and then one of them
back, and once all know the newest format it raises it, which may fail for any reason and is
repeated. It also asks too early, which must be refused. No node is taken back after a request
that may still be carried out: it could not read the log any more.

After the storm `finish` ends the upgrade; all nodes must then work at the newest format.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from raftkv.errors import FormatRefused, NodeFault, NotApplied, OutcomeUnknown, Refused
from raftkv.state.core import Core
from raftkv.testing.host import HostCrashed

if TYPE_CHECKING:
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["OLD", "Upgrade"]

OLD = 1
NEWEST = Core.version
# Between two steps of the operator, uniform, and how long a node is down for one.
PAUSE_S = (0.1, 2.0)
DOWN_S = (0.05, 0.5)
# Of the steps, those that take a node back to the former software.
BACK_SHARE = 0.25
# And those that ask for the newest format too early.
EARLY_SHARE = 0.2
CALL_S = 3.0
LOOK_S = 0.1


class Upgrade:
    """Upgrades the nodes of one cluster; see the module's text."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = rng
        # The newest core format that each node knows when it is started.
        self.known = dict.fromkeys(cluster.names, OLD)
        self._asked = False

    def knows(self, name: str) -> int:
        """What a node of this name knows; a new machine gets the newest software."""
        return self.known.get(name, NEWEST)

    async def storm(self) -> None:
        """Steps until cancelled."""
        while not self.done:
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))
            old = self._nodes(OLD)
            back = self._nodes(NEWEST)
            if back and not self._asked and self._rng.random() < BACK_SHARE:
                if self._exchange(self._rng.choice(back), OLD):
                    self._cluster.marks.hit("node taken back to the former software")
            elif old and self._rng.random() < EARLY_SHARE:
                await self._raise()
            elif old:
                self._exchange(self._rng.choice(old), NEWEST)
            else:
                await self._raise()

    async def finish(self) -> None:
        """All nodes to the newest software, then the format is raised."""
        for name in self._nodes(OLD):
            self.known[name] = NEWEST
            if self._world.host(name).is_up:
                self._world.crash(name, power_cut=False)
                self._world.restart(name)
        # Those that were started again are not up before their programs have run.
        await asyncio.sleep(LOOK_S)
        while not self.done:
            await self._raise()
        self._cluster.marks.hit("core format raised")

    @property
    def done(self) -> bool:
        """Whether every node works at the newest format."""
        cluster = self._cluster
        return all(
            cluster.is_up(name) and cluster.nodes[name].machine.core_format == NEWEST
            for name in cluster.names
        )

    def _nodes(self, known: int) -> list[str]:
        return [name for name in self._cluster.names if self.knows(name) == known]

    def _exchange(self, name: str, known: int) -> bool:
        """Stop the node and start it with other software, unless too many are away already."""
        nemesis = self._cluster.nemesis
        down_s = self._rng.uniform(*DOWN_S)
        if nemesis is None or not nemesis.take_down(name, down_s):
            return False
        self.known[name] = known
        self._world.note(name, f"software that knows core format {known}")
        return True

    async def _raise(self) -> None:
        cluster = self._cluster
        up = [name for name in cluster.names if cluster.is_up(name)]
        if not up:
            await asyncio.sleep(LOOK_S)
            return
        name = self._rng.choice(up)
        self._world.note(name, "operator: raise the core format")
        try:
            call = cluster.nodes[name].format.raise_to_newest(timeout_s=CALL_S)
            await self._world.call(name, call)
        except FormatRefused:
            cluster.marks.hit("raise of the core format failed")
        except (NotApplied, OutcomeUnknown, Refused, NodeFault, HostCrashed):
            cluster.marks.hit("raise of the core format failed")
            self._asked = True
        else:
            self._asked = True
        await asyncio.sleep(LOOK_S)

"""Who is who in the simulated world: files that disagree before the bootstrap, and a second node.

`Disagreement`: the configuration file of one core does not name the first one, so two cores take
themselves for the one that bootstraps the cluster. After a while the file is corrected. Whatever
happens, the nodes never belong to two clusters.

`Namesake`: a second replicant runs under the name of the first, from a copy of its configuration
file, on a machine and with a directory of its own. Only one of the two may take part at a time, and
the incarnation of the name must not change hands faster than faults explain.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from raftkv.node import Node
from raftkv.raft.identity import DataDirectory
from raftkv.testing.members import with_cores
from raftkv.testing.patching import around

if TYPE_CHECKING:
    from raftkv.config import NodeConfig
    from raftkv.runtime import Runtime
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["SECOND", "Disagreement", "Namesake", "one_cluster", "run_beside"]

PORT: Final = 7000
# How long the file stays wrong, uniform.
WRONG_S: Final = (0.5, 4.0)
#: The machine of the second node.
SECOND: Final = "second"
# How often the incarnation of the name is looked at, and how far it may have come within so many
# looks: a session that ends, a restart and a change of hands are one each, and each takes its time.
# Two nodes of which none is refused come 10 further. It is a violation if it lasts for a second
# look, for faults may come close behind each other once.
LOOK_S: Final = 1.0
LOOKS: Final = 5
INCARNATIONS_MAX: Final = 7


async def run_beside(
    config: NodeConfig, runtime: Runtime, started: Callable[[Node], None] = lambda node: None
) -> NoReturn:
    """Run a node that is none of the cluster's own. Raises the fault with which it stops."""
    node = Node(config, runtime=runtime)
    async with node:
        started(node)
        # Shielded: being asked to end must not look like a fault of the node.
        raise await asyncio.shield(node.fault)


class Disagreement:
    """Makes the file of one core wrong before it starts; `storm` corrects it."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        # The one that is then the first by its own file.
        self._name = cluster.cores[1]
        self._is_there = True
        self._give(cluster.cores[1:])

    def _give(self, cores: list[str]) -> None:
        configs = self._cluster.configs
        configs[self._name] = with_cores(configs[self._name], cores, PORT)

    async def storm(self) -> None:
        await asyncio.sleep(self._rng.uniform(*WRONG_S))
        self.finish()

    def finish(self) -> None:
        """Correct the file, unless that is done, and start the core with it."""
        if not self._is_there:
            return
        self._is_there = False
        self._give(self._cluster.cores)
        if self._cluster.world.host(self._name).is_up:
            self._cluster.world.crash(self._name, power_cut=False)
            self._cluster.start(self._name)


@contextlib.contextmanager
def one_cluster(cluster: SimulatedCluster) -> Iterator[None]:
    """While this is entered, all directories that belong to a cluster must belong to the same one.

    A join that the disk has lost is none: the node dies in it, so no other node has learnt the id.
    If the disk kept it nevertheless, the directory belongs to the cluster when it is opened again.
    """
    known: list[str] = []

    def check(name: str, cluster_id: str) -> None:
        if known and known[0] != cluster_id:
            cluster.violated(
                "one cluster",
                f"{name} joins the cluster {cluster_id}; the first one was {known[0]}",
            )

    def wrap_join(join: Callable[..., None]) -> Callable[..., None]:
        def checked(directory: DataDirectory, cluster_id: str, *rest: Any) -> None:
            check(directory.identity.name, cluster_id)
            join(directory, cluster_id, *rest)
            known.append(cluster_id)

        return checked

    def wrap_open(opened: Callable[..., None]) -> Callable[..., None]:
        def checked(directory: DataDirectory, *arguments: Any) -> None:
            opened(directory, *arguments)
            found = directory.identity
            if found.cluster_id:
                check(found.name, found.cluster_id)
                known.append(found.cluster_id)

        return checked

    with around(DataDirectory, "join", wrap_join), around(DataDirectory, "__init__", wrap_open):
        yield


class Namesake:
    """The second node; `storm` starts it and looks at the incarnations of the name."""

    def __init__(self, cluster: SimulatedCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    async def program(self, runtime: Runtime) -> None:
        given = self._cluster.configs[self._name]
        config = msgspec.structs.replace(given, dir=f"/{SECOND}", peer_address=f"{SECOND}:{PORT}")
        await run_beside(config, runtime)

    async def storm(self) -> None:
        """Until cancelled."""
        self._cluster.world.start(SECOND, self.program)
        seen: deque[int] = deque(maxlen=LOOKS + 1)
        often = 0
        while True:
            await asyncio.sleep(LOOK_S)
            seen.append(self.incarnation())
            # 0 is no incarnation: nothing was known then.
            many = seen[0] > 0 and seen[-1] > seen[0] + INCARNATIONS_MAX
            often = often + 1 if many else 0
            if often > 1:
                self._cluster.violated(
                    "one node under a name",
                    f"{self._name} came to incarnation {seen[-1]} from {seen[0]} within "
                    f"{(len(seen) - 1) * LOOK_S:g} s",
                )

    def incarnation(self) -> int:
        """That of the name, by the node that knows most; 0 if none knows any."""
        nodes = [node for name, node in self._cluster.nodes.items() if self._cluster.is_up(name)]
        members = [node.machine.members.get(self._name) for node in nodes]
        return max((each.incarnation for each in members if each is not None), default=0)

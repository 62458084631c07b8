"""Several clusters in one simulated world: one clock, one seed, a network of its own for each.

    world = World(7)
    clusters = SeveralClusters(world, {"a": Shape(cores=3), "b": Shape(cores=1)}, violated)
    with clusters:
        clusters.weather(5.0, outages=True)
        clusters.wait(lambda: ..., 30, "an end")

For what goes on *between* clusters. One world can hold them all, because hosts are told apart by
their names (`a-core1`), and clusters never dial one another; what does go between them is the
test's own business (a simulated link, say). What is checked of each cluster is what concerns its
state: all nodes apply the same bytes at the same index and come to the same digests, no node stops
itself without a reason. The properties of Raft are checked by `SimulatedCluster`, whose observer
knows one cluster only, in storms of their own.

The nemesis of each cluster draws its own faults. Besides, whole clusters may go dark: all nodes of
one are cut off the power at once, and start again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pysyncobj.syncobj  # type: ignore[import-untyped, unused-ignore]

from raftkv.config import Limits, NodeConfig, RaftTimes
from raftkv.errors import DamagedLog, DamagedSnapshot, DiskFailed, NodeFault, RaftkvError
from raftkv.node import Node
from raftkv.plugin import Plugin
from raftkv.replica import Replica
from raftkv.runtime import Runtime
from raftkv.testing import current
from raftkv.testing.host import HostCrashed
from raftkv.testing.nemesis import Nemesis
from raftkv.testing.patching import around
from raftkv.testing.world import NotReached, World

__all__ = ["Limits", "RaftTimes", "SeveralClusters", "Shape"]

PORT = 7000
READY_S = 30.0
# A node that stops itself again and again is started this often.
AGAIN_S = 1.0
# A digest walks the whole state.
DIGEST_EVERY = 250
# A member is removed and added, with repetitions.
CHANGE_S = 3.0
CHANGES_MAX = 20

Violated = Callable[[str, Sequence[str]], None]


@dataclass(frozen=True)
class Shape:
    """One cluster. `plugins` and `options` are those of each of its nodes."""

    cores: int = 3
    replicants: int = 0
    plugins: Sequence[Plugin[Any]] = ()
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    raft: RaftTimes = field(default_factory=RaftTimes)
    limits: Limits = field(default_factory=Limits)


class SeveralClusters:
    """See the module's text. `violated` ends the run if it is told of anything."""

    def __init__(self, world: World, shapes: Mapping[str, Shape], violated: Violated) -> None:
        self.world = world
        self.shapes = dict(shapes)
        self.nodes: dict[str, Node] = {}
        self.counts: Counter[str] = Counter()
        #: cluster -> names of its nodes, cores first.
        self.members: dict[str, list[str]] = {}
        self._cluster_of: dict[str, str] = {}
        for cluster, shape in self.shapes.items():
            names = [f"{cluster}-core{n}" for n in range(1, shape.cores + 1)]
            names += [f"{cluster}-rep{n}" for n in range(1, shape.replicants + 1)]
            self.members[cluster] = names
            self._cluster_of.update(dict.fromkeys(names, cluster))
        self.nemeses: dict[str, Nemesis] = {}
        #: Clusters all of whose nodes are off now.
        self.dark: dict[str, None] = {}
        self._violated = violated
        self._rng = random.Random(f"{world.seed}/several")
        self._applied: dict[str, dict[int, int]] = {each: {} for each in self.shapes}
        self._digests: dict[str, dict[int, str]] = {each: {} for each in self.shapes}
        self._failures_at_start: dict[str, int] = {}
        self._again_at: dict[str, float] = {}
        self._wiped: dict[str, None] = {}
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> Self:
        enter = self._patches.enter_context
        enter(current.installed(pysyncobj.syncobj))
        enter(around(Replica, "apply", self._wrap_apply))
        enter(around(Replica, "_apply_slice", self._wrap_slice))
        enter(self.world)
        try:
            for name in self._cluster_of:
                self.world.start(name, self._program)
            self.world.wait(self._all_ready, READY_S, "clusters in which every node is ready")
        except BaseException:
            self._patches.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._patches.close()

    # --- nodes ---

    @property
    def names(self) -> list[str]:
        """All nodes of all clusters."""
        return list(self._cluster_of)

    def cluster_of(self, name: str) -> str:
        """The cluster of a node."""
        return self._cluster_of[name]

    def is_up(self, name: str) -> bool:
        """Whether the node runs now."""
        host, node = self.world.host(name), self.nodes.get(name)
        # Until a program that was just started takes its first step, its forerunner's node is here.
        return host.is_up and node is not None and node.runtime is host.runtime

    def _config(self, name: str) -> NodeConfig:
        cluster = self._cluster_of[name]
        shape = self.shapes[cluster]
        cores = [each for each in self.members[cluster] if "-core" in each]
        return NodeConfig(
            name=name,
            dir=f"/{name}",
            cluster=cluster,
            peer_address=f"{name}:{PORT}",
            role="core" if name in cores else "replicant",
            cores={each: f"{each}:{PORT}" for each in cores},
            insecure=True,
            plugins=(),
            options=shape.options,
            raft=shape.raft,
            limits=shape.limits,
        )

    async def _program(self, runtime: Runtime) -> None:
        name = current.running_host()
        self.nodes.pop(name, None)
        self._failures_at_start[name] = self.world.host(name).disk.failures_total
        shape = self.shapes[self._cluster_of[name]]
        node = Node(self._config(name), plugins=list(shape.plugins), runtime=runtime)
        try:
            async with node:
                self.nodes[name] = node
                # Shielded: being asked to end must not look like a fault of the node.
                raise await asyncio.shield(node.fault)
        except NodeFault as fault:
            if self.world.host(name).runtime is runtime:
                self._judge_fault(name, fault)
            raise

    def _judge_fault(self, name: str, fault: NodeFault) -> None:
        nemesis = self.nemeses.get(self._cluster_of[name])
        flipped = nemesis is not None and name in nemesis.flipped
        if isinstance(fault, DamagedLog | DamagedSnapshot) and flipped:
            self.counts["damage noticed"] += 1
            return
        failures = self.world.host(name).disk.failures_total
        if isinstance(fault, DiskFailed) and failures > self._failures_at_start[name]:
            return
        if name in self._wiped:
            return
        text = f"{name}: {type(fault).__name__}: {fault}"
        self._violated("nodes stop for a reason", [text])

    def _wrap_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(replica: Replica, index: int, body: bytes, term: int) -> Any:
            name = current.running_host()
            cluster = self._cluster_of[name]
            checksum = zlib.crc32(body, term)
            if self._applied[cluster].setdefault(index, checksum) != checksum:
                text = f"{name} applies something else at index {index}"
                self._violated("state-machine safety", [text])
            return original(replica, index, body, term)

        return apply

    def _wrap_slice(self, original: Callable[..., bool]) -> Callable[..., bool]:
        def apply_slice(replica: Replica, index: int, slices: Any) -> bool:
            ended = original(replica, index, slices)
            if ended and index % DIGEST_EVERY == 0:
                name = current.running_host()
                cluster, digest = self._cluster_of[name], replica.machine.digest()
                if self._digests[cluster].setdefault(index, digest) != digest:
                    text = f"{name} has another state at index {index}"
                    self._violated("equal digests", [text])
            return ended

        return apply_slice

    def _all_ready(self) -> bool:
        return all(self.is_up(name) and self.nodes[name].session for name in self._cluster_of)

    def leader_of(self, cluster: str) -> str | None:
        """The name of the node that leads the cluster, as far as it knows itself."""
        for name in self.members[cluster]:
            part = self.nodes[name]._part if self.is_up(name) else None
            if part is not None and part.role_name == "leader":
                return name
        return None

    # --- time ---

    def wait(self, condition: Callable[[], object], timeout_s: float, what: str) -> None:
        """Run the healed world until the condition holds. Raises NotReached."""

        def reached() -> object:
            self._start_again()
            return condition()

        self.world.wait(reached, timeout_s, what)

    def revived(self) -> bool:
        """All nodes are up and have their sessions."""
        self._start_again()
        return self._all_ready()

    def _start_again(self) -> None:
        """A node may stop itself after the healing, when a write tells late that it has failed."""
        now = self.world.loop.now
        for name in self._cluster_of:
            due = self._again_at.get(name, -AGAIN_S) + AGAIN_S
            if not self.world.host(name).is_up and now >= due:
                self._again_at[name] = now
                self.world.restart(name, self._program)

    # --- the weather ---

    def weather(
        self,
        seconds: float,
        faults: Mapping[str, float],
        *,
        interval_s: tuple[float, float],
        duration_s: tuple[float, float],
        outage_every_s: float = 0.0,
    ) -> None:
        """Faults in all clusters, each with its own, and outages of whole ones; then all is well.

        `outage_every_s`: the mean time between two outages; 0: there are none.
        """
        tasks = []
        for cluster, names in self.members.items():
            shape = self.shapes[cluster]
            kinds = dict(faults)
            if len(names) < 2:
                kinds = {name: kinds[name] for name in kinds if name in ALONE} or {"kill": 1.0}
            nemesis = self.nemeses[cluster] = Nemesis(
                self.world,
                names,
                faults=kinds,
                interval_s=interval_s,
                duration_s=duration_s,
                down_max=max(1, (shape.cores - 1) // 2),
                salt=f"/{cluster}",
            )
            tasks.append(self.world.spawn(nemesis.storm(), f"nemesis of {cluster}"))
        if outage_every_s:
            tasks.append(self.world.spawn(self._outages(outage_every_s, duration_s), "outages"))
        try:
            self.world.run(seconds)
        finally:
            for task in tasks:
                task.cancel()
        self.heal()

    def heal(self) -> None:
        """All nodes run and hear one another."""
        self.dark.clear()
        for nemesis in self.nemeses.values():
            nemesis.heal()
            self.counts += Counter(nemesis.counts)
            nemesis.counts = dict.fromkeys(nemesis.counts, 0)

    async def _outages(self, every_s: float, duration_s: tuple[float, float]) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / every_s))
            cluster = self._rng.choice(list(self.members))
            await self.outage(cluster, self._rng.uniform(*duration_s) + 0.5)

    async def outage(self, cluster: str, seconds: float) -> None:
        """All nodes of it lose power, and start again after so long."""
        self.counts["outage"] += 1
        self.dark[cluster] = None
        self.world.note("*", f"{cluster} goes dark for {seconds:.2f} s")
        end = self.world.loop.now + seconds
        while self.world.loop.now < end:
            # Others may start what they have stopped: not now.
            for name in self.members[cluster]:
                if self.world.host(name).is_up:
                    self.world.crash(name, power_cut=True)
            await asyncio.sleep(0.1)
        self.dark.pop(cluster, None)
        for name in self.members[cluster]:
            if not self.world.host(name).is_up:
                self.world.restart(name, self._program)

    # --- a disk is lost ---

    def replace_disk(self, name: str) -> None:
        """The machine gets an empty disk, and comes back: a core as a new member.

        Only in a world that is well; other nodes must be able to lose it.
        """
        world, cluster = self.world, self._cluster_of[name]
        world.note(name, "empty disk")
        self.counts["disk wiped"] += 1
        self._wiped[name] = None
        world.crash(name, power_cut=True)
        world.host(name).disk.wipe()
        self.nodes.pop(name, None)
        if "-core" in name:
            others = [each for each in self.members[cluster] if each != name and "-core" in each]
            changing = world.spawn(self._change(others, "remove", name), "removing")
            world.wait(changing.done, READY_S, f"{name} is removed")
            world.restart(name, self._program)
            world.run(0.2)
            changing = world.spawn(self._change(others, "add", name), "adding")
            self.wait(changing.done, READY_S, f"{name} is added")
        else:
            world.restart(name, self._program)
        with contextlib.suppress(NotReached):
            self.wait(self._all_ready, READY_S, "every node ready with a new disk")
        self._wiped.pop(name, None)

    async def _change(self, others: Sequence[str], verb: str, name: str) -> None:
        for _ in range(CHANGES_MAX):
            via = self._rng.choice([each for each in others if self.is_up(each)] or list(others))
            if self.is_up(via):
                membership = self.nodes[via].membership
                call = membership.remove if verb == "remove" else membership.add
                with contextlib.suppress(RaftkvError, NodeFault, HostCrashed):
                    await self.world.call(via, call(name, timeout_s=CHANGE_S))
                    return
            await asyncio.sleep(0.2)

    # --- the end ---

    def converged(self) -> bool:
        """In each cluster all nodes have applied as much."""
        if not self.revived():
            return False
        return all(
            len({self.nodes[name].machine.index for name in names}) == 1
            for names in self.members.values()
        )

    def check(self) -> None:
        """The nodes of each cluster have equal states, and sound ones; after `converged`."""
        for cluster, names in self.members.items():
            digests = {name: self.nodes[name].machine.digest() for name in names}
            if len(set(digests.values())) != 1:
                self._violated("equal digests", [f"{cluster}: the digests differ: {digests}"])
            for name in names:
                found = self.nodes[name].machine.invariants()
                self._violated("invariants", [f"{name}: {each}" for each in found])

    def fingerprint(self) -> str:
        """Equal for equal runs."""
        loop = self.world.loop
        indexes = [self.nodes[name].machine.index for name in self.names]
        parts = (loop.callback_count, loop.task_count, loop.now, indexes)
        return f"{zlib.crc32(repr(parts).encode()):08x}"


# Faults that a cluster of one node can have.
ALONE = (
    "power_cut",
    "kill",
    "pause",
    "stall_disk",
    "jump_wall",
    "die_at_step",
    "die_at_write",
    "fail_syncs",
    "fail_writes",
    "stop",
)

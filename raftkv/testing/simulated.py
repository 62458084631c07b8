"""Whole raftkv nodes in the simulated world, with a load and the checks that every run must pass.

    with SimulatedCluster(seed=7, cores=3, replicants=2) as cluster:
        cluster.storm(30)
        cluster.settle()
    print(cluster.world.trace.digest())

Checked while it runs: at most one leader in a term; term, commit and applied index of a running
node never go back; all nodes apply the same bytes at the same index. Checked at the end, after the
world has healed and everybody has caught up within a bound: every acknowledged write is there, no
write took effect twice, none that was answered "not applied" took effect, nothing foreign is
there, and the digests of all nodes are equal.

Each write goes to a key of its own, so a write that took effect twice has version 2.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

import pysyncobj.syncobj  # type: ignore[import-untyped, unused-ignore]

from raftkv.config import Limits, NodeConfig, RaftTimes
from raftkv.errors import InternalFault, NodeFault, NotApplied, OutcomeUnknown
from raftkv.node import Node
from raftkv.parts import CorePart
from raftkv.plugin import Plugin
from raftkv.runtime import Runtime
from raftkv.testing import current
from raftkv.testing.host import HostCrashed
from raftkv.testing.nemesis import FAULTS, Nemesis
from raftkv.testing.world import World, WorldOptions

__all__ = ["SafetyViolation", "SimulatedCluster"]

PORT = 7000
HEAL_S = 30.0


class SafetyViolation(AssertionError):
    """The cluster broke a promise. The message names the seed that replays it."""


class SimulatedCluster:
    """`cores` + `replicants` nodes, one host each, and a client per node that counts.

    Every client owns a few keys and writes an increasing number to each, so that whatever is read
    later tells which write is the last one that took effect.
    """

    def __init__(
        self,
        seed: int,
        cores: int = 3,
        replicants: int = 0,
        *,
        plugins: Sequence[Plugin[Any]] = (),
        rate_per_s: float = 200.0,
        fsync: Literal["on", "off"] = "on",
        raft: RaftTimes | None = None,
        limits: Limits | None = None,
        options: WorldOptions | None = None,
        world: World | None = None,
    ) -> None:
        self.seed = seed
        self.world = world or World(seed, options)
        self._plugins = list(plugins)
        self._rate_per_s = rate_per_s
        self._rng = random.Random(f"{seed}/clients")
        core_names = [f"core{number}" for number in range(1, cores + 1)]
        self.names = core_names + [f"replicant{number}" for number in range(1, replicants + 1)]
        self.configs = {
            name: NodeConfig(
                name=name,
                role="core" if name in core_names else "replicant",
                dir=f"/{name}",
                peer_address=f"{name}:{PORT}",
                cores={core: f"{core}:{PORT}" for core in core_names},
                insecure=True,
                fsync=fsync,
                plugins=(),
                raft=raft or RaftTimes(),
                limits=limits or Limits(),
            )
            for name in self.names
        }
        self.nodes: dict[str, Node] = {}
        self.acknowledged: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.attempts = 0
        self.nemesis: Nemesis | None = None
        self._leaders: dict[int, str] = {}
        self._applied: dict[int, int] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._loading = False
        self._installed = current.installed(pysyncobj.syncobj)

    def __enter__(self) -> Self:
        self._installed.__enter__()
        self.world.__enter__()
        for name in self.names:
            self.world.start(name, self._program)
        self.world.wait(self._all_ready, 20, "a cluster in which every node is ready")
        self.start_load()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loading = False
        self.world.__exit__(kind, error, trace)
        self._installed.__exit__(kind, error, trace)

    # -- nodes

    async def _program(self, runtime: Runtime) -> None:
        name: str = runtime.host  # type: ignore[attr-defined]  # only the simulated one has it
        node = Node(self.configs[name], plugins=self._plugins, runtime=runtime)
        async with node:
            self._watch_applies(name, node)
            self._seen.pop(name, None)
            self.nodes[name] = node
            fault = await node.fault
            if isinstance(fault, InternalFault):
                raise AssertionError(f"{name} is broken: {fault}")  # no fault of its machine
            raise fault

    def _watch_applies(self, name: str, node: Node) -> None:
        replica = node._replica
        apply = replica.apply

        def watched(index: int, body: bytes) -> None:
            crc = zlib.crc32(body)
            if self._applied.setdefault(index, crc) != crc:
                self._violated(f"{name} applies something else at index {index}")
            apply(index, body)

        replica.apply = watched  # type: ignore[method-assign]

    def is_up(self, name: str) -> bool:
        """Whether the node runs now."""
        return self.world.host(name).is_up and name in self.nodes

    def _all_ready(self) -> bool:
        return all(self.is_up(name) and self.nodes[name].session for name in self.names)

    def _violated(self, what: str) -> NoReturn:
        raise SafetyViolation(f"seed {self.seed} at {self.world.loop.now:.3f} s: {what}")

    # -- load

    def start_load(self) -> None:
        """A client on every node, all together at the given rate; and the watchman."""
        self._loading = True
        for number, name in enumerate(self.names):
            self.world.spawn(self._client(name, number), f"client of {name}")
        self.world.spawn(self._watch(), "watch")

    async def _client(self, name: str, number: int) -> None:
        interval_s = len(self.names) / self._rate_per_s
        while self._loading:
            await asyncio.sleep(self._rng.expovariate(1 / interval_s))
            if self.is_up(name):
                self.attempts += 1
                key = b"%d/%d" % (number, self.attempts)
                self.world.spawn(self._write(name, key), f"write {key.decode()}")

    async def _write(self, name: str, key: bytes) -> None:
        put = self.nodes[name].kv.put(key, key, timeout_s=3.0)
        try:
            await self.world.call(name, put)
        except NotApplied:
            self.refused.add(key)
        except (OutcomeUnknown, HostCrashed, NodeFault):
            pass  # it may take effect once, now or later
        else:
            self.acknowledged.add(key)

    async def _watch(self) -> None:
        while self._loading:
            await asyncio.sleep(0.02)
            for name in self.names:
                if self.is_up(name):
                    self._check_node(name, self.nodes[name])

    def _check_node(self, name: str, node: Node) -> None:
        part = node._part
        if part is None:
            return
        now = (part.term, part.commit, node.machine.index)
        before = self._seen.get(name, (0, 0, 0))
        if any(new < old for new, old in zip(now, before, strict=True)):
            self._violated(f"{name} went back from {before} to {now} (term, commit, applied)")
        self._seen[name] = now
        if isinstance(part, CorePart) and part.engine.leading is not None:
            leader = self._leaders.setdefault(part.term, name)
            if leader != name:
                self._violated(f"{leader} and {name} both lead term {part.term}")

    # -- a whole run

    def storm(self, seconds: float, faults: Mapping[str, float] = FAULTS) -> None:
        """Faults for so many virtual seconds, then everything is healed."""
        cores = [name for name in self.names if self.configs[name].role == "core"]
        self.nemesis = Nemesis(
            self.world, self.names, faults=faults, down_max=(len(cores) - 1) // 2
        )
        self.nemesis.run(seconds)

    def power_cut(self) -> None:
        """The lights go out everywhere at once, then all nodes start again."""
        for name in self.names:
            self.world.crash(name, power_cut=True)
        self.world.run(0.5)
        for name in self.names:
            self.world.restart(name, self._program)

    def settle(self, timeout_s: float = HEAL_S) -> None:
        """The healed cluster must make progress and agree; then everything is checked."""
        for name in self.names:
            if not self.world.host(name).is_up:
                self.world.restart(name, self._program)
        self.world.wait(self._all_ready, timeout_s, "every node ready after healing")
        self.world.run(1.0)
        self._loading = False
        self.world.run(5.0)
        self.world.wait(self._converged, timeout_s, "the same applied index on every node")
        self.check()

    def _converged(self) -> bool:
        return self._all_ready() and len({self.nodes[n].machine.index for n in self.names}) == 1

    def check(self) -> None:
        """See the module's text. Raises SafetyViolation."""
        digests = {name: self.nodes[name].machine.digest() for name in self.names}
        if len(set(digests.values())) != 1:
            self._violated(f"the digests differ: {digests}")
        node = self.nodes[self.names[0]]
        rows = dict(node.machine.view("kv").table("keys").scan())
        lost = self.acknowledged - rows.keys()
        if lost:
            self._violated(f"{len(lost)} acknowledged writes are lost, such as {min(lost)!r}")
        undead = self.refused & rows.keys()
        if undead:
            self._violated(f"{min(undead)!r} was answered 'not applied' and is there")
        twice = [key for key, row in rows.items() if row.version != 1]
        if twice:
            self._violated(f"{twice[0]!r} took effect {rows[twice[0]].version} times")
        found = node.machine.invariants()
        if found:
            self._violated("; ".join(found))

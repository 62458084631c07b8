"""Whole raftkv nodes in the simulated world, with clients and the checks that every run must pass.

    with SimulatedCluster(seed=7, cores=3, replicants=2) as cluster:
        cluster.storm(30)
        cluster.settle()
    print(cluster.world.trace.digest())

Checked while it runs: the five Raft properties (observer.py); what nodes promise is on their disks
(promises.py); reads and writes are linearizable (workload.py); watches give everything, once, in
order and in whole revisions, over all nodes that they move to (watchers.py); leases live as long as
keep-alives promise (lease_holders.py); all nodes apply the same bytes at the same index, with the
same digest at every `DIGEST_EVERY`-th (with `MANY_KEYS` at fewer); no node stops itself without a
reason; a flipped bit is noticed. With `members`, an operator adds, removes and replaces
cores during a storm (members.py). Checked at the end, after the world has healed and everybody has
caught up within a bound: every acknowledged write is there, no write took effect twice, none that
was answered "not applied" took effect, every watcher has seen the last revision, and the digests
of all nodes are equal.

A broken promise is a `SafetyViolation` with the name of the check. It ends the run at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import zlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

import msgspec
import pysyncobj.syncobj  # type: ignore[import-untyped, unused-ignore]

from raftkv.config import Limits, NodeConfig, RaftTimes
from raftkv.errors import (
    CorruptState,
    DamagedLog,
    DamagedSnapshot,
    DiskFailed,
    InternalFault,
    NodeFault,
    OutdatedData,
)
from raftkv.node import Node
from raftkv.parts import CorePart
from raftkv.plugin import Plugin
from raftkv.replica import Replica
from raftkv.runtime import Runtime
from raftkv.state.core import Core
from raftkv.state.machine import StateMachine
from raftkv.testing import current
from raftkv.testing.applied import AppliedFacts
from raftkv.testing.bursts import Bursts
from raftkv.testing.charges import Charges
from raftkv.testing.copied import CopiedDirectory
from raftkv.testing.corrupting import check_settings, watch_alarms
from raftkv.testing.costly import Costly
from raftkv.testing.coverage import Coverage
from raftkv.testing.filling import fill
from raftkv.testing.formats_check import held_up
from raftkv.testing.frozen_check import LetGo
from raftkv.testing.harsh import Harsh
from raftkv.testing.hostile import HOST, Hostile
from raftkv.testing.identities import SECOND, Disagreement, Namesake, one_cluster
from raftkv.testing.lease_holders import LeaseHolders
from raftkv.testing.linearizability import Budget, check_per_key
from raftkv.testing.link_check import checked_links
from raftkv.testing.marks import Marks
from raftkv.testing.members import CORES_MAX, Operator, checked_changes, with_cores
from raftkv.testing.models import KeyValueStore
from raftkv.testing.nemesis import FAULTS, Nemesis
from raftkv.testing.observer import Observer
from raftkv.testing.outcome_check import too_many_outcomes
from raftkv.testing.past_readers import PastReaders
from raftkv.testing.patching import around
from raftkv.testing.poison import Poison
from raftkv.testing.process import PROCESS
from raftkv.testing.removal_check import kept_though_removed
from raftkv.testing.restricted import certified
from raftkv.testing.rollback import Rollback
from raftkv.testing.share_check import checked_shares
from raftkv.testing.spender import Spender, miscounted
from raftkv.testing.unconfirmed import Unconfirmed
from raftkv.testing.upgrade import Upgrade
from raftkv.testing.variations import Variations
from raftkv.testing.varied import differ, varied
from raftkv.testing.watchers import Watchers
from raftkv.testing.workload import QUIET_S, Heavy, Workload
from raftkv.testing.world import NotReached, World, WorldOptions

__all__ = ["SafetyViolation", "SimulatedCluster"]

PORT = 7000
# Within this time after healing every node has a session, a write succeeds, all have caught up.
HEAL_S = 30.0
# A node that stops itself again and again is started this often.
REVIVE_S = 1.0
# A digest walks the whole state: half a processor second where it has many keys.
DIGEST_EVERY = 1000
DIGEST_EVERY_MANY_KEYS = 5000
MANY_KEYS = 50_000
# Entries between two looks at the kept outcomes, of which there are few.
OUTCOMES_EVERY = 50
# The search for an order of a history ends without a verdict after so many steps: some seconds.
# The check by revision (workload.py) has no such bound.
HISTORY_STEPS_MAX = 2_000_000


class SafetyViolation(AssertionError):
    """The cluster broke a promise. The message names the check and the seed that replays it."""

    def __init__(self, message: str, check: str) -> None:
        super().__init__(message)
        self.check = check


class SimulatedCluster:
    """`cores` + `replicants` nodes, one host each, with a client per node.

    `deliveries` False leaves the arrival of bytes out of the trace, which makes it smaller and the
    run faster; the run itself is the same. With `messages`, a storm also loses, doubles and
    reorders single messages between cores (harsh.py). With `members`, cores come and go in it.
    With `early`, entering does not wait for a cluster: a storm then meets its founding. With
    `hostile`, a program that is no member troubles the nodes during a storm (hostile.py). With
    `heavy`, there is more to do; `more` is what else there is (variations.py).

    `names` are the nodes in service now; operators and faults look at it anew each time. With
    `costly` set, a client's transactions look at as much as they may during a storm, and more; with
    `spender`, a client uses up the quota of the keyspace; with `unconfirmed`, a client confirms no
    answer; with `past_readers`, clients read what was; with `poison`, single commands are much
    work; with `bursts`, clients are faster for moments of it.
    """

    costly: Costly | None = None
    spender: Spender | None = None
    unconfirmed: Unconfirmed | None = None
    past_readers: PastReaders | None = None
    poison: Poison | None = None
    bursts: Bursts | None = None

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
        deliveries: bool = True,
        messages: bool = False,
        members: bool = False,
        early: bool = False,
        hostile: bool = False,
        heavy: Heavy | None = None,
        more: Variations | None = None,
    ) -> None:
        self.seed = seed
        self.world = world or World(seed, options)
        self.world.network.records_deliveries = deliveries
        self._plugins = list(plugins)
        self.cores = [f"core{number}" for number in range(1, cores + 1)]
        self.names = self.cores + [f"replicant{number}" for number in range(1, replicants + 1)]
        self._base = _base(seed, fsync, raft, limits)
        self.configs = {name: self._config(name, self.cores) for name in self.names}
        # The cores that a node knew from its configuration when it was last started.
        self.started_with: dict[str, tuple[str, ...]] = {}
        self.nodes: dict[str, Node] = {}
        self.marks = Marks()
        self.nemesis: Nemesis | None = None
        self.violation: SafetyViolation | None = None
        # How long after healing the first write was acknowledged and every node was ready.
        self.recovery_s = 0.0
        self.harsh = Harsh(random.Random(f"{seed}/harsh")) if messages else None
        self.load = Workload(
            self.world, self.names, self._up, self.violated, self.marks, rate_per_s, heavy
        )
        seen_by = (self.world, self.names, self._up, self.violated, self.marks)
        self.watchers, self.holders = Watchers(*seen_by), LeaseHolders(*seen_by)
        self.hostile = Hostile(self, random.Random(f"{seed}/hostile"), early=early)
        self._is_hostile, self._heavy = hostile, heavy
        many_keys = heavy is not None and heavy.keys >= MANY_KEYS
        self._digest_every = DIGEST_EVERY_MANY_KEYS if many_keys else DIGEST_EVERY
        self._more = more or Variations()
        self._changes_members = members
        self.operator: Operator | None = None
        self.upgrade: Upgrade | None = None
        self._rollback: Rollback | None = None
        self._disagreement: Disagreement | None = None
        self._namesake: Namesake | None = None
        self._copied: CopiedDirectory | None = None
        self._employ_operators()
        # Every name that a core may ever have here.
        self.core_names = list(self.cores)
        if members:
            self.core_names = [f"core{n}" for n in range(1, max(cores, CORES_MAX) + 1)]
        self._early = early
        self._synced = fsync == "on"
        self.observer = Observer(self.world, self.violated, self.marks, synced=self._synced)
        self._facts = AppliedFacts(self.violated)
        self._revived_at: dict[str, float] = {}
        self._failures_at_start: dict[str, int] = {}
        self._patches = contextlib.ExitStack()

    @property
    def damaged(self) -> set[str]:
        """Nodes whose state was damaged on purpose (corrupting.py), some time in this run."""
        return self.watchers.damaged

    @property
    def acknowledged(self) -> set[bytes]:
        """Keys of the single writes that succeeded."""
        return self.load.acknowledged

    def __enter__(self) -> Self:
        enter = self._patches.enter_context
        enter(current.installed(pysyncobj.syncobj))
        enter(self.observer)
        enter(checked_changes(self.observer, self.violated))
        enter(one_cluster(self))
        if self._is_hostile:
            enter(certified(HOST))
        enter(checked_links(self.violated, self.configs.__contains__))
        enter(Coverage(self.marks))
        if self.harsh is not None:
            enter(self.harsh)
        enter(around(Replica, "apply", self._wrap_apply))
        enter(around(Replica, "_apply_slice", self._wrap_slice))
        if self._more.charged:
            enter(Charges(self.marks))
            enter(checked_shares(self.violated))
        enter(watch_alarms(self))
        enter(self.world)
        try:
            with self.judging():
                for name in self.names:
                    self.world.start(name, self._program)
                if not self._early:
                    self.world.wait(self.all_ready, 20, "a cluster in which every node is ready")
                if self._heavy is not None and self._heavy.keys:
                    fill(self, self._heavy)
            self.load.start()
            self.watchers.start()
            self.holders.start()
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
        self.load.running = self.watchers.running = self.holders.running = False
        self._patches.close()

    # -- nodes

    def _config(self, name: str, cores: Sequence[str]) -> NodeConfig:
        is_core, address = name.startswith("core"), f"{name}:{PORT}"
        config = msgspec.structs.replace(
            self._base,
            name=name,
            role="core" if is_core else "replicant",
            dir=f"/{name}",
            peer_address=address,
            cores={name: address} if is_core else self._base.cores,
        )
        return with_cores(config, cores, PORT)

    def _drawn_config(self, name: str) -> NodeConfig:
        """What the node goes by from this start on."""
        config = self.configs[name]
        if self._more.differing:
            boots = self.world.host(name).boots
            config = varied(config, random.Random(f"{self.seed}/{name}/{boots}/varied"))
            if any(differ(config, other.config) for other in self.nodes.values()):
                self.marks.hit("limits differ between nodes")
        return config

    def _employ_operators(self) -> None:
        """Those whose work this cluster has."""
        seed, more = self.seed, self._more
        if self._changes_members or more.rolled_back:
            self.operator = Operator(self, random.Random(f"{seed}/operator"))
        if more.upgraded:
            self.upgrade = Upgrade(self, random.Random(f"{seed}/upgrade"))
        if more.rolled_back:
            self._rollback = Rollback(self, random.Random(f"{seed}/rollback"))
        if more.disagreeing:
            self._disagreement = Disagreement(self, random.Random(f"{seed}/disagreement"))
        if more.copied:
            self._copied = CopiedDirectory(self, random.Random(f"{seed}/copied"))
        if more.namesake:
            self._namesake = Namesake(self, self.names[len(self.cores)])

    def employ(self, name: str, cores: Sequence[str]) -> None:
        """Start a machine of this name; its configuration names these cores and itself."""
        self.configs[name] = self._config(name, cores)
        self.names.append(name)
        self.load.join(name)
        self.world.start(name, self._program)

    def readdress(self, cores: Sequence[str]) -> None:
        """Write these cores into all configuration files; nodes read them when they start."""
        for name, config in self.configs.items():
            self.configs[name] = with_cores(config, cores, PORT)

    async def _program(self, runtime: Runtime) -> None:
        name = current.running_host()
        self.nodes.pop(name, None)
        self.started_with[name] = tuple(self.configs[name].cores)
        self._failures_at_start[name] = self.world.host(name).disk.failures_total
        known = Core.version if self.upgrade is None else self.upgrade.knows(name)
        node = Node(
            self._drawn_config(name), plugins=self._plugins, runtime=runtime, core_format_max=known
        )
        try:
            async with node:
                if self.nemesis is not None and name in self.nemesis.flipped:
                    self.violated("damage noticed", f"{name} starts on a file that was hurt")
                self.nodes[name] = node
                # Shielded: being asked to end must not look like a fault of the node.
                raise await asyncio.shield(node.fault)
        except NodeFault as fault:
            if self.world.host(name).runtime is runtime:  # else it died at this very step
                self._judge_fault(name, fault)
            raise

    def _judge_fault(self, name: str, fault: NodeFault) -> None:
        """A node may stop itself over its disk, and only if that was hurt."""
        flipped = self.nemesis is not None and name in self.nemesis.flipped
        if isinstance(fault, DamagedLog | DamagedSnapshot) and (flipped or not self._synced):
            self.marks.hit("damage noticed")
            return
        failures = self.world.host(name).disk.failures_total
        if isinstance(fault, DiskFailed) and failures > self._failures_at_start[name]:
            self.marks.hit("disk failed")
            return
        if self.operator is not None and self.operator.excuses(name, fault):
            return
        if isinstance(fault, CorruptState) and name in self.damaged:
            return
        if isinstance(fault, OutdatedData) and name not in self.names:
            return  # disaster.py looks for it
        if isinstance(fault, InternalFault) and self.violation is not None:
            return  # the engine has met our own exception
        self.violated("nodes stop for a reason", f"{name}: {type(fault).__name__}: {fault}")

    def _wrap_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(replica: Replica, index: int, body: bytes, term: int) -> Any:
            name = current.running_host()
            self._facts.applied(name, self._epoch_of(name), index, zlib.crc32(body, term))
            self.observer.applying(name, index, replica.machine.voters[1])
            rest = original(replica, index, body, term)
            self.observer.applied(name, replica.machine.voters[1])
            return rest

        return apply

    def _wrap_slice(self, original: Callable[..., bool]) -> Callable[..., bool]:
        def apply_slice(replica: Replica, index: int, slices: Any) -> bool:
            ended = original(replica, index, slices)
            process = PROCESS.get()
            owed_s = 0.0 if process is None else process.owed_s
            self.watchers.applied(replica.machine)
            self.holders.applied(replica.machine)
            name = current.running_host()
            if ended and name not in self.damaged and index % self._digest_every == 0:
                digest = replica.machine.digest()
                self._facts.reached(name, self._epoch_of(name), index, digest)
            if ended and index % OUTCOMES_EVERY == 0:
                self._check_outcomes(name, replica.machine)
            if process is not None:
                process.owed_s = owed_s  # what the checks have read costs the node nothing
            return ended

        return apply_slice

    def _check_outcomes(self, name: str, machine: StateMachine) -> None:
        if wrong := too_many_outcomes(name, machine):
            self.violated("outcomes are bounded", wrong)

    def is_up(self, name: str) -> bool:
        """Whether the node runs now."""
        host, node = self.world.host(name), self.nodes.get(name)
        # Until a program that was just started takes its first step, its forerunner's node is here.
        return host.is_up and node is not None and node.runtime is host.runtime

    def some_node(self, rng: random.Random) -> tuple[str, Node] | None:
        """(name, node) of one in service; None if the one that was drawn does not run."""
        name = rng.choice(list(self.names))
        node = self.nodes.get(name) if self.is_up(name) else None
        return None if node is None else (name, node)

    def running_id(self, name: str) -> str | None:
        """The raft id of the machine's newest life, a replicant's too."""
        engine = self.observer.running(name)
        if engine is not None:
            return engine.me
        node = self.nodes.get(name)
        return None if node is None else node.raft_id

    def start(self, name: str) -> None:
        """Start the node on the machine of this name, on what its disk has kept."""
        self.world.start(name, self._program)

    def agrees_with(self, name: str) -> bool:
        """Whether every node is ready, in the epoch of this one, and has applied as much."""
        if not self._revived() or len({self.nodes[n].machine.index for n in self.names}) != 1:
            return False
        directories = [self.nodes[each]._directory for each in (name, *self.names)]
        return len({str(each.identity.epoch) for each in directories if each is not None}) == 1

    def fork(self, index: int) -> None:
        """The log goes on from one core's by force; what was applied behind it is given up."""
        self._facts.fork(index)

    def _epoch_of(self, name: str) -> int:
        """The number of the epoch that the node belongs to; the first until it is known."""
        node = self.nodes.get(name)
        directory = None if node is None else node._directory
        return 0 if directory is None else directory.identity.epoch.number

    def _up(self, name: str) -> Node | None:
        return self.nodes[name] if self.is_up(name) else None

    def all_ready(self) -> bool:
        """Whether every node runs and has a session."""
        return all(self.is_up(name) and self.nodes[name].session for name in self.names)

    # -- verdicts

    def violated(self, check: str, what: str) -> NoReturn:
        """End the run: a promise is broken. The first one counts.

        It is kept as well as raised, because the code under test may catch what is raised here.
        """
        text = f"seed {self.seed} at {self.world.loop.now:.6f} s: {check}: {what}"
        violation = SafetyViolation(text, check)
        if self.violation is None:
            self.violation = violation
            self.world.note("*", f"VIOLATION of {check}: {what}")
            self.world.report("*", violation)
            self.world.loop.stop()
        raise violation

    @contextlib.contextmanager
    def judging(self) -> Iterator[None]:
        """What ends the world in here becomes the SafetyViolation that it is."""
        try:
            yield
        except NotReached as late:
            if self.violation is None:
                raise SafetyViolation(str(late), "progress") from late
        except AssertionError:
            if self.violation is None:
                raise
        if self.violation is not None:
            raise self.violation

    # -- a whole run

    def run(self, seconds: float) -> None:
        """Let everything go on for so many virtual seconds."""
        with self.judging():
            self.world.run(seconds)

    def storm(self, seconds: float, faults: Mapping[str, float] = FAULTS, **nemesis: Any) -> None:
        """Faults for so many virtual seconds, then everything is healed.

        Further arguments are those of `Nemesis`.
        """
        minority = (len(self.cores) - 1) // 2
        down_max = nemesis.setdefault("down_max", minority)
        if self.operator is not None and down_max == minority:
            nemesis["can_spare"] = self.operator.can_spare
        self.nemesis = Nemesis(self.world, self.names, faults=faults, **nemesis)
        with self.judging(), contextlib.ExitStack() as during:
            if self.harsh is not None:
                during.enter_context(self.harsh.during(self.world))
            if self._changes_members and self.operator is not None:
                operator = self.world.spawn(self.operator.storm(), "operator")
                during.callback(operator.cancel)
            if self.costly is not None:
                costly = self.world.spawn(self.costly.storm(), "costly client")
                during.callback(costly.cancel)
            besides = (self.upgrade, self._rollback, self.spender, self.poison, self._namesake)
            for beside in (*besides, self._disagreement, self.unconfirmed, self.past_readers):
                if beside is not None:
                    during.callback(self.world.spawn(beside.storm(), "beside").cancel)
            if self.bursts is not None:
                bursts = self.bursts.storm(seconds, self.nemesis)
                during.callback(self.world.spawn(bursts, "bursts").cancel)
                during.callback(self.bursts.finish)
            if self._copied is not None:
                during.callback(self.world.spawn(self._copied.run(), "copied").cancel)
                during.callback(self._copied.end)
            if self._disagreement is not None:
                during.callback(self._disagreement.finish)
            if self._namesake is not None:
                during.callback(self.world.crash, SECOND, power_cut=False)
            if self._is_hostile:
                self.world.start(HOST, self.hostile.program)
                during.callback(self.world.crash, HOST, power_cut=False)
            self.nemesis.run(seconds)

    def power_cut(self) -> None:
        """The lights go out everywhere at once, then all nodes start again."""
        for name in self.names:
            self.world.crash(name, power_cut=True)
        self.run(0.5)
        for name in self.names:
            self.world.restart(name, self._program)

    def settle_members(self, timeout_s: float = HEAL_S) -> None:
        """After healing the operator ends what was begun (members.py)."""
        for beside in (self._rollback, self.operator):
            if beside is not None:
                what = "the members as the operator wants them after healing"
                self._complete(beside.finish(), timeout_s, what)
        if self.operator is None:
            with self.judging():
                self.world.wait(self._revived, timeout_s, "every node ready after healing")

    def _complete(self, finishing: Coroutine[Any, Any, None], timeout_s: float, what: str) -> None:
        """Let something end that was begun; meanwhile nodes that stop themselves are started."""
        task = self.world.spawn(finishing, "finish")
        with self.judging():
            self.world.wait(lambda: [self._revived(), task.done()][-1], timeout_s, what)

    def _settle_upgrade(self, timeout_s: float) -> None:
        if self.upgrade is not None:
            what = "every node at the newest core format after healing"
            self._complete(self.upgrade.finish(), timeout_s, what)

    def settle(self, timeout_s: float = HEAL_S) -> None:
        """The healed cluster must make progress and agree; then everything is checked."""
        world = self.world
        healed_at = world.loop.now
        if self.operator is not None:
            self.settle_members(timeout_s)
        self._settle_upgrade(timeout_s)
        if self.spender is not None:
            self._complete(self.spender.finish(), timeout_s, "room for writes after healing")
        with self.judging():
            world.wait(
                lambda: self._revived() and self.load.acknowledged_at > healed_at,
                timeout_s,
                "every node ready and a write acknowledged after healing",
            )
            self.recovery_s = world.loop.now - healed_at
            world.run(1.0)
            self.load.running = False
            self.watchers.finishing = True
            self.holders.running = False
            world.run(QUIET_S)
            world.wait(self._all_leases_ended, timeout_s, "the end of every lease")
            world.wait(self._converged, timeout_s, "the same applied index on every node")
            world.wait(self._no_disk_alarm, timeout_s, "the end of every disk alarm")
            world.wait(self._newest_formats, timeout_s, "the newest formats of all plugins")
            world.wait(self._removed_gone, timeout_s, "the end of what removed cores had")
            world.wait(self._nothing_frozen(), timeout_s, "the end of every frozen view")
            world.wait(self._all_seen, timeout_s, "every watcher at the last revision")
            self.check()

    def _revived(self) -> bool:
        now = self.world.loop.now
        for name in list(self.names):
            tried_at = self._revived_at.get(name, -REVIVE_S)
            if not self.world.host(name).is_up and now >= tried_at + REVIVE_S:
                self._revived_at[name] = now
                self.world.restart(name, self._program)
        return self.all_ready()

    def _converged(self) -> bool:
        return self._revived() and len({self.nodes[n].machine.index for n in self.names}) == 1

    def _all_leases_ended(self) -> bool:
        return self._revived() and all(
            self.holders.all_ended(self.nodes[name].machine) for name in self.names
        )

    def _no_disk_alarm(self) -> bool:
        """A snapshot that found no room must be written once there is."""
        parts = [self.part(name) for name in self.names]
        spaces = [part.engine.snapshotting.space for part in parts if part is not None]
        return self._revived() and not any(space.alarm for space in spaces)

    def _newest_formats(self) -> bool:
        """All members know them, and those that are gone do not count."""
        return self._revived() and not any(held_up(self.nodes[name].machine) for name in self.names)

    def _removed_gone(self) -> bool:
        """The state of every core has let go of those that the configuration names as removed."""
        parts = [(self.part(name), self.nodes[name].machine) for name in self.names]
        return self._revived() and not any(
            part is not None and kept_though_removed(machine, part.engine.configuration)
            for part, machine in parts
        )

    def _nothing_frozen(self) -> Callable[[], bool]:
        """What has ended, snapshots and walks for digests, let go of the state that it has read."""
        let_go = LetGo()
        return lambda: self._revived() and let_go.all([self.nodes[name] for name in self.names])

    def _all_seen(self) -> bool:
        return self.watchers.reached(self.nodes[self.names[0]].kv.revision)

    def check(self) -> None:
        """See the module's text. Raises SafetyViolation."""
        digests = {name: self.nodes[name].machine.digest() for name in self.names}
        if len(set(digests.values())) != 1:
            self.violated("equal digests", f"the digests differ: {digests}")
        for name in self.names:
            if wrong := miscounted(name, self.nodes[name].machine):
                self.violated("the quota holds", wrong)
            self._check_outcomes(name, self.nodes[name].machine)
            self._check_queue(name)
        node = self.nodes[self.names[0]]
        rows = dict(node.machine.view("kv").table("keys").scan())
        load = self.load
        lost = load.acknowledged - rows.keys()
        if lost:
            self.violated(
                "acknowledged writes stay", f"{len(lost)} are lost, such as {min(lost)!r}"
            )
        undead = load.refused & rows.keys()
        if undead:
            self.violated(
                "refused writes stay away",
                f"{min(undead)!r} was answered 'not applied' and is there",
            )
        single = [key for key in rows if not key.startswith(b"shared/")]
        twice = [key for key in single if rows[key].version != 1]
        if twice:
            self.violated(
                "exactly once", f"{twice[0]!r} took effect {rows[twice[0]].version} times"
            )
        budget = Budget(steps_max=HISTORY_STEPS_MAX)
        for key, verdict in check_per_key(load.history, KeyValueStore(), budget).items():
            if verdict.violation is not None:
                self.violated("linearizable", f"{key!r}: {verdict.violation.text()}")
        found = node.machine.invariants()
        if found:
            self.violated("invariants", "; ".join(found))

    def _check_queue(self, name: str) -> None:
        """No client has called for a while: what fills the queue now was given up."""
        node = self.nodes[name]
        most, held = node.config.limits.outbox_commands_max, len(node.outbox)
        if 2 * held > most:
            self.violated(
                "what is given up leaves its place",
                f"{held} of the {most} commands that may wait in {name}",
            )

    def fingerprint(self) -> str:
        """Equal for equal runs: what a replay can be compared by."""
        loop = self.world.loop
        parts = (loop.callback_count, loop.task_count, loop.now, sorted(self.acknowledged))
        return f"{zlib.crc32(repr(parts).encode()):08x}"

    def part(self, name: str) -> CorePart | None:
        """The core's part of a running core."""
        part = self.nodes[name]._part if self.is_up(name) else None
        return part if isinstance(part, CorePart) else None


def _base(
    seed: int, fsync: Literal["on", "off"], raft: RaftTimes | None, limits: Limits | None
) -> NodeConfig:
    """What the configurations of all nodes have in common."""
    return NodeConfig(
        name="core1",
        dir="/core1",
        peer_address=f"core1:{PORT}",
        cores={"core1": f"core1:{PORT}"},
        insecure=True,
        fsync=fsync,
        plugins=(),
        **check_settings(seed),
        raft=raft or RaftTimes(),
        limits=limits or Limits(),
    )

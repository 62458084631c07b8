"""The operator of a simulated cluster: adds, removes and replaces cores while faults go on.

Works through `node.membership` of any node, one change after the other and now and then two at
once, as people do who do not know of each other. What is answered "refused" or not at all is
repeated or left as it is. Machines that were taken out of the cluster are switched off, at once or
after a while in which they may do harm.

Rules of this file. What an operator must not do, this one does not do knowingly:
- A disk is wiped only if every configuration that may be in force keeps a majority of cores that
  still have theirs. Nobody else can lose data that way, whatever happens besides.
- A core with an empty disk is told of running cores (its configuration file), never of itself only:
  it would found a cluster of its own.
- A name is used again only after its old machine was switched off.

Everything else must be refused by the cluster, and is tried: removing the leader, a core that was
removed already, the last voter; adding one that is down, or that was wiped and whose old self is
still a member; promoting one that copies nothing.

After the storm `finish` ends what was begun: members without a disk are removed, machines that do
not belong to the cluster are switched off. It must be done within the bound for healing, so a
change of members that never ends is found too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from raftkv.errors import (
    MembershipRefused,
    NodeFault,
    NotApplied,
    OutcomeUnknown,
    Refused,
    RemovedNode,
    WipedNode,
)
from raftkv.member_changes import MemberChange
from raftkv.raft.membership import Configuration, name_of
from raftkv.testing.current import running_host
from raftkv.testing.host import HostCrashed
from raftkv.testing.patching import around
from raftkv.testing.world import NotReached

if TYPE_CHECKING:
    from raftkv.config import NodeConfig
    from raftkv.node import Node
    from raftkv.raft.engine import Engine
    from raftkv.testing.observer import Observer, Violated
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["CORES_MAX", "Operator", "checked_changes", "with_cores"]

# No cluster grows beyond this.
CORES_MAX = 5
# Between two changes, uniform.
PAUSE_S = (0.2, 4.0)
# How long one call may take, uniform; the short ones are cut off on the way.
CALL_S = (0.3, 6.0)
# A call that failed is repeated so often at most, each time with this probability.
CALLS_MAX = 6
REPEAT = 0.75
# So many operators force a change now and then. It is not checked any more then whom the state
# takes for voters (observer.py).
FORCES_SHARE = 0.4
# A removed machine is switched off after this time, uniform.
LINGER_S = (0.0, 4.0)
# Looking again at what is waited for.
LOOK_S = 0.1
# How long a wiped core is watched being refused, before its old self is removed.
WATCH_S = 3.0
FOREVER_S = float("inf")
# A promotion and a removal at once: how long the leader's words to the replicant are held up, and
# how much later the second operator asks.
STALL_S = (0.5, 4.0)
BETWEEN_S = (0.0, 1.5)
# Operators at once: how often they add two cores while nothing is committed; how often several ask
# for the same removal, how many more, and how far apart.
TWO_ADDED_SHARE = 0.5
SAME_SHARE = 0.5
SAME_ASKED = 6
APART_S = (0.0, 0.01)
# How long a voter is away that is to be behind.
AWAY_S = (2.0, 6.0)
# What healing lets through now may have been asked long ago.
GRACE_S = 2.0

Verb = Callable[[], Coroutine[Any, Any, None]]


class Operator:
    """Changes the members of one cluster; see the module's text."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = rng
        self.counts: dict[str, int] = {}
        self._verbs: dict[str, tuple[float, Verb]] = {
            "add": (3, self._add),
            "remove": (3, self._remove),
            "replace": (2, self._replace),
            "finish": (1, self._finish_one),
            "two at once": (2, self._two_at_once),
            "nonsense": (1, self._nonsense),
            "promote a replicant": (3, self._promote_replicant),
            "promote and remove": (1, self._promote_and_remove),
            "remove while one is behind": (1, self._remove_while_one_is_behind),
        }
        if rng.random() < FORCES_SHARE:
            self._verbs["remove by force"] = (2, self._remove_by_force)
        # Raft ids whose machine was switched off or whose disk was wiped.
        self._gone: set[str] = set()
        # Calls of members may still be under way on some leader until then.
        self._calls_until = 0.0

    # -- what it knows

    @property
    def _newest(self) -> Configuration:
        """The last committed configuration: what an operator reads from a healthy node."""
        return self._cluster.observer.possible_configurations()[-1]

    def _named(self) -> set[str]:
        """Names that any configuration which may be in force knows."""
        possible = self._cluster.observer.possible_configurations()
        return {name_of(member) for each in possible for member in each.members}

    def _is_core(self, name: str) -> bool:
        """By its role in fact: a replicant may have become one."""
        return self._cluster.observer.running(name) is not None

    def can_spare(self, away: Sequence[str]) -> bool:
        """Whether every configuration that may be in force has a majority without these."""
        possible = self._cluster.observer.possible_configurations()
        for configuration in possible:
            left = [
                voter
                for voter in configuration.voters
                if voter not in self._gone
                and name_of(voter) not in away
                and self._cluster.running_id(name_of(voter)) == voter
            ]
            if 2 * len(left) <= len(configuration.voters):
                return False
        return True

    def excuses(self, name: str, fault: NodeFault) -> bool:
        """Whether a core may stop itself like this: it was removed, or its disk wiped."""
        raft_id = self._cluster.running_id(name)
        configurations = [each for _, _, each in self._cluster.observer.configurations]
        if isinstance(fault, RemovedNode):
            excused = any(raft_id in each.removed for each in configurations)
            mark = "removed node told"
        elif isinstance(fault, WipedNode):
            named = [each.raft_id_of(name) for each in configurations]
            excused = any(each is not None and each != raft_id for each in named)
            mark = "wiped node refused"
        else:
            return False
        if excused:
            self._cluster.marks.hit(mark)
        return excused

    # -- machines

    def _switch_off(self, name: str) -> None:
        """For good. Its disk is wiped when the name is used again."""
        cluster = self._cluster
        raft_id = self._cluster.running_id(name)
        if raft_id is not None:
            self._gone.add(raft_id)
        if name in cluster.names:
            cluster.names.remove(name)
        if cluster.nemesis is not None:
            cluster.nemesis.forget(name)
        if self._world.host(name).is_up:
            self._world.crash(name, power_cut=True)
        cluster.nodes.pop(name, None)

    def _start_empty(self, name: str) -> None:
        """A machine of this name with an empty disk, which knows the running cores."""
        cluster = self._cluster
        self._switch_off(name)
        self._world.note(name, "empty disk")
        self._world.host(name).disk.wipe()
        raft_id = self._cluster.running_id(name)
        if raft_id is not None:
            cluster.observer.promises.wiped.add(raft_id)
        cluster.employ(name, sorted({name_of(member) for member in self._newest.members}))

    def _tell_addresses(self) -> None:
        """The configuration files follow the members; nodes read them when they start."""
        self._cluster.readdress(sorted({name_of(member) for member in self._newest.members}))

    # -- calls

    async def _ask(self, verb: str, name: str, *, patient: bool = False) -> bool:
        """One change through any node, repeated or given up. True when it was confirmed."""
        rng, marks = self._rng, self._cluster.marks
        for _ in range(CALLS_MAX):
            timeout_s = max(CALL_S) if patient else rng.uniform(*CALL_S)
            up = [each for each in self._cluster.names if self._cluster.is_up(each)]
            if up:
                via = rng.choice(up)
                try:
                    call = self._call(self._cluster.nodes[via], verb, name, timeout_s)
                    self._calls_until = max(self._calls_until, self._world.loop.now + timeout_s)
                    self._world.note(via, f"operator: {verb} {name}")
                    await self._world.call(via, call)
                except MembershipRefused:
                    marks.hit("change refused")
                except (NotApplied, OutcomeUnknown, Refused, NodeFault, HostCrashed):
                    marks.hit("change unknown")
                else:
                    self._world.note(via, f"operator: {verb} {name} done")
                    marks.hit(f"core {verb}")
                    self._tell_addresses()
                    return True
            if not patient and rng.random() > REPEAT:
                break
            await asyncio.sleep(LOOK_S * (1 + rng.random()))
        return False

    @staticmethod
    def _call(node: Node, verb: str, name: str, timeout_s: float) -> Coroutine[Any, Any, None]:
        membership = node.membership
        verbs: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
            "add": membership.add,
            "promote": membership.promote,
            "remove": membership.remove,
            "remove by force": partial(membership.remove, force=True),
        }
        return verbs[verb](name, timeout_s=timeout_s)

    async def _once(self, verb: str, name: str) -> None:
        await self._ask(verb, name)

    # -- the storm

    async def storm(self) -> None:
        """Changes until cancelled."""
        observer = self._cluster.observer
        await self._world.until(lambda: observer.configurations, FOREVER_S, "a configuration")
        while True:
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))
            names = list(self._verbs)
            name = self._rng.choices(names, [self._verbs[each][0] for each in names])[0]
            await self._verbs[name][1]()

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _choose_member(self) -> str | None:
        """A member's name, the leader's more often than others'."""
        members = [name_of(member) for member in self._newest.members]
        leaders = [each for each in members if self._leads(each)]
        if leaders and self._rng.random() < 0.4:
            return leaders[0]
        return self._rng.choice(members) if members else None

    def _leads(self, name: str) -> bool:
        engine = self._cluster.observer.running(name)
        return self._cluster.is_up(name) and engine is not None and engine.leading is not None

    async def _add(self) -> None:
        named = self._named()
        free = [name for name in self._cluster.core_names if name not in named]
        if free and len(named) < CORES_MAX:
            name = self._rng.choice(free)
            self._start_empty(name)
            self._count("core started empty")
            await asyncio.sleep(self._rng.uniform(0, 1))
            await self._ask("add", name)

    async def _remove(self) -> None:
        name = self._choose_member()
        if name is not None and len(self._newest.voters) > 1:
            await self._ask("remove", name)
            await asyncio.sleep(self._rng.uniform(*LINGER_S))
            self._retire_removed(name)

    async def _remove_by_force(self) -> None:
        """Also when too few of the rest can be reached: they come back, as their disks are whole.

        Only such a set is left by which the cluster can go on then.
        """
        name = self._choose_member()
        possible = self._cluster.observer.possible_configurations()
        if name is None or not all(self._goes_on_without(name, each) for each in possible):
            return
        if await self._ask("remove by force", name):
            self._count("removed by force")
            await asyncio.sleep(self._rng.uniform(*LINGER_S))
            self._retire_removed(name)

    def _goes_on_without(self, name: str, configuration: Configuration) -> bool:
        rest = [voter for voter in configuration.voters if name_of(voter) != name]
        whole = [
            voter
            for voter in rest
            if voter not in self._gone and self._cluster.running_id(name_of(voter)) == voter
        ]
        return bool(rest) and 2 * len(whole) > len(rest)

    def _retire_removed(self, name: str) -> None:
        """Switch it off if no configuration that may be in force needs it."""
        if name in self._cluster.names and name not in self._named():
            self._switch_off(name)

    async def _replace(self) -> None:
        """A core loses its disk: its old self is removed, the machine joins as a new one."""
        voters = [name_of(voter) for voter in self._newest.voters]
        name = self._rng.choice(voters) if voters else ""
        if not name or self._cluster.running_id(name) not in self._newest.voters:
            return
        if not self.can_spare([name]):
            return
        self._start_empty(name)
        self._count("disk wiped")
        with contextlib.suppress(NotReached):
            host, watched_s = self._world.host(name), self._rng.uniform(0, WATCH_S)
            await self._world.until(lambda: not host.is_up, watched_s)
        await self._rejoin(name)

    async def _rejoin(self, name: str) -> None:
        """Remove the old self of a wiped core, then add the new one."""
        if await self._ask("remove", name):
            if not self._world.host(name).is_up and name in self._cluster.names:
                self._world.restart(name)
            await asyncio.sleep(self._rng.uniform(0, 1))
            await self._ask("add", name)

    async def replace(self, name: str) -> None:
        """Until it is done: a core whose disk cannot be relied on becomes a new one."""
        old = self._newest.raft_id_of(name)
        while self._newest.raft_id_of(name) == old:
            await self._ask("remove", name, patient=True)
        self._start_empty(name)
        while self._newest.raft_id_of(name) not in self._newest.voters:
            await self._ask("add", name, patient=True)

    async def _finish_one(self) -> None:
        """Something that was left half done."""
        newest = self._newest
        lost = [name_of(member) for member in newest.members if member in self._gone]
        copies = [name_of(learner) for learner in newest.learners if learner not in self._gone]
        idle = [
            name
            for name in self._cluster.names
            if self._is_core(name) and name not in self._named()
        ]
        if lost:
            await self._rejoin(self._rng.choice(lost))
        elif copies:
            await self._ask("promote", self._rng.choice(copies))
        elif idle:
            name = self._rng.choice(idle)
            if self._rng.random() < 0.5:
                self._switch_off(name)
            else:
                await self._ask("add", name)

    async def _two_at_once(self) -> None:
        """Two operators who do not know of each other, in the same moment."""
        named = self._named()
        free = [name for name in self._cluster.core_names if name not in named]
        asked: list[tuple[str, str]] = []
        if len(free) > 1 and len(named) + 2 <= CORES_MAX and self._rng.random() < TWO_ADDED_SHARE:
            for name in free[:2]:
                self._start_empty(name)
                asked.append(("add", name))
            await asyncio.sleep(self._rng.uniform(0.5, 2))
            self._stall_disks_of_followers()
        elif free and len(named) < CORES_MAX:
            self._start_empty(free[0])
            await asyncio.sleep(self._rng.uniform(0.5, 2))
            asked.append(("add", free[0]))
        while len(asked) < 2 and self._newest.members:
            asked.append(("remove", name_of(self._rng.choice(self._newest.members))))
            if self._rng.random() < SAME_SHARE:
                asked += [asked[-1]] * SAME_ASKED
        tasks = []
        try:
            for each in asked:
                tasks.append(self._world.spawn(self._once(*each), "operator"))
                await asyncio.sleep(self._rng.uniform(*APART_S))
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()

    def _stall_disks_of_followers(self) -> None:
        """What the leader appends next is not committed before the next one comes."""
        for voter in self._newest.voters:
            name = name_of(voter)
            if not self._leads(name) and self._world.host(name).is_up:
                self._world.stall_disk(name, self._rng.uniform(*STALL_S))

    async def _promote_replicant(self) -> None:
        """A replicant becomes a core, in the same process."""
        named = self._named()
        replicants = [name for name in self._cluster.names if not self._is_core(name)]
        if replicants and len(named) < CORES_MAX:
            name = self._rng.choice(replicants)
            if await self._ask("promote", name) and self._is_core(name):
                self._cluster.marks.hit("replicant became a core")

    async def _promote_and_remove(self) -> None:
        """A replicant becomes a core while another operator removes one.

        Now and then the leader's words reach the replicant late, so that it is asked again.
        """
        replicants = [name for name in self._cluster.names if not self._is_core(name)]
        members = [name_of(member) for member in self._newest.members if not self._leads_id(member)]
        if not replicants or not members or len(self._named()) >= CORES_MAX:
            return
        replicant = self._rng.choice(replicants)
        leader = next((name for name in self._cluster.names if self._leads(name)), None)
        if leader is not None and self._rng.random() < 0.5:
            self._world.network.stall(leader, replicant, self._rng.uniform(*STALL_S))
        asked = [("promote", replicant), ("remove", self._rng.choice(members))]
        tasks = [self._world.spawn(self._once(*asked[0]), "operator")]
        try:
            await asyncio.sleep(self._rng.uniform(*BETWEEN_S))
            tasks.append(self._world.spawn(self._once(*asked[1]), "operator"))
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()
        self._count("promoted and removed at once")
        self._cluster.marks.hit("promoted and removed at once")
        if self._is_core(replicant):
            self._cluster.marks.hit("replicant became a core")
        self._retire_removed(asked[1][1])

    async def _remove_while_one_is_behind(self) -> None:
        """A voter was away for a while and comes back as another one is to be removed."""
        voters = [name_of(voter) for voter in self._newest.voters if not self._leads_id(voter)]
        if len(voters) < 2 or self._rng.random() < 0.5:
            return
        away, other = self._rng.sample(voters, 2)
        host = self._world.host(away)
        if not host.is_up or not self.can_spare([away]):
            return
        self._world.crash(away, power_cut=False)
        boots = host.boots
        await asyncio.sleep(self._rng.uniform(*AWAY_S))
        task = self._world.spawn(self._once("remove", other), "operator")
        try:
            await asyncio.sleep(self._rng.uniform(*BETWEEN_S))
            self._back(away, boots)
            await task
        finally:
            task.cancel()
        self._count("removed while one was behind")
        self._retire_removed(other)

    def _back(self, name: str, boots: int) -> None:
        host = self._world.host(name)
        if name in self._cluster.names and not host.is_up and host.boots == boots:
            self._world.restart(name)

    def _leads_id(self, raft_id: str) -> bool:
        return self._leads(name_of(raft_id))

    async def _nonsense(self) -> None:
        verb = self._rng.choice(("add", "promote", "remove"))
        name = self._rng.choice([*self._cluster.core_names, "nobody"])
        # What it would do in earnest, `_remove` and `_add` do with what belongs to it.
        if verb == "remove" and name in self._named():
            return
        await self._ask(verb, name)

    # -- afterwards

    async def finish(self) -> None:
        """End what was begun, until members and machines agree."""
        await asyncio.sleep(max(GRACE_S, self._calls_until - self._world.loop.now))
        while True:
            leader = self._settled_leader()
            if leader is None:
                await asyncio.sleep(LOOK_S)
                continue
            configuration = leader.configuration
            lost = [
                member
                for member in configuration.members
                if member in self._gone or self._cluster.running_id(name_of(member)) != member
            ]
            if not lost:
                break
            await self._ask("remove", name_of(lost[0]), patient=True)
        for name in list(self._cluster.names):
            raft_id, host = self._cluster.running_id(name), self._world.host(name)
            # A replicant that was a copy, and removed before it became a core.
            told = not host.is_up and isinstance(host.failure, RemovedNode)
            if told or (self._is_core(name) and raft_id not in configuration.members):
                self._switch_off(name)
        await self._restart_strangers(configuration)

    async def _restart_strangers(self, configuration: Configuration) -> None:
        """Replicants that know none of today's cores by their file are started with a new one."""
        members = {name_of(member) for member in configuration.members}
        self._tell_addresses()
        for name in self._cluster.names:
            known = self._cluster.started_with.get(name, ())
            if name not in members and members.isdisjoint(known):
                if self._world.host(name).is_up:
                    self._world.crash(name, power_cut=False)
                self._world.restart(name)

    def _settled_leader(self) -> Engine | None:
        """A leader in whose log everything about members is committed."""
        for name in self._cluster.names:
            engine = self._cluster.observer.running(name)
            if engine is None or engine.leading is None or not self._cluster.is_up(name):
                continue
            settled = engine.commit >= engine.leading.first_index > 0
            if settled and engine.configurations.latest_index <= engine.commit:
                return engine
        return None


def with_cores(config: NodeConfig, cores: Sequence[str], port: int) -> NodeConfig:
    """The node's configuration with these cores, and itself if the file makes it one.

    The file of a replicant that has become a core still says replicant: its directory knows better.
    """
    others = {*cores} - {config.name}
    if config.role == "replicant" and not others:
        return config
    names = sorted({*others, config.name} if config.role == "core" else others)
    return msgspec.structs.replace(config, cores={name: f"{name}:{port}" for name in names})


def checked_changes(observer: Observer, violated: Violated) -> AbstractContextManager[None]:
    """While this is entered, a change that a leader reports as done must be committed.

    That is, a configuration in which it is done, and no older one than when it was asked for.
    """

    def last_committed() -> int:
        for index, term, _ in reversed(observer.configurations):
            if observer.committed.get(index) == term:
                return index
        return 0

    def wrap(carry_out: Callable[..., Any]) -> Callable[..., Any]:
        async def checked(change: Any) -> bool:
            since = last_committed()
            done: bool = await carry_out(change)
            if done and not any(
                index >= since
                and observer.committed.get(index) == term
                and _is_done(change._verb, change._name, configuration)
                for index, term, configuration in observer.configurations
            ):
                violated(
                    "a change that is done is committed",
                    f"{change._verb} {change._name} is reported as done by {running_host()}, and "
                    f"no committed configuration has it",
                )
            return done

        return checked

    return around(MemberChange, "carry_out", wrap)


def _is_done(verb: str, name: str, configuration: Configuration) -> bool:
    raft_id = configuration.raft_id_of(name)
    return raft_id is None if verb == "remove" else raft_id in configuration.voters

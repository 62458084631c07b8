"""Deaths, and what only looks like one, in a simulated cluster in which nothing else is wrong.

    drill(cluster, check, random.Random(7))       # after a storm has healed

Each drill is one of these, drawn at random:

- `gone`: one node ends, by a kill, a power cut, or a power cut that resets no stream. It must be
  declared dead within `bound_s`.
- `paused`: the leader's process stands still for about `node_down_ms`.
- `apart`: the leader and one core do not reach each other; others reach both.
- `overtaken`: a leader is cut off as it declares a node dead, and comes back under the next one.
- `disk hangs`: the disk of a core that follows hangs over a change of the leader, so that its term
  stays behind; a replicant ends. It must be declared dead in time all the same.

In all of them no other node may be declared dead. What the nodes may do about it is judged by
death_check.py, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from raftkv.detector import FORMAT_PRESENCE, NODE_DOWN_MIN_S
from raftkv.failure_detector import Verdict
from raftkv.raft.membership import name_of
from raftkv.state import Member
from raftkv.testing.death_check import CHECK, DeathCheck

if TYPE_CHECKING:
    from raftkv.node import Node
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["LATE", "bound_s", "drill"]

#: The name of the check of the time that a verdict takes.
LATE: Final = "the dead are declared dead in time"

# What a verdict may take beyond `node_down_ms`, and beyond the election of a leader if that takes
# more than ELECTION_S: see docs/internals/failure-detector.md.
ENDED_S: Final = 3.0
SILENT_S: Final = 3.5
ELECTION_S: Final = 2.0
# A cluster without faults has a leader within it.
LEADER_S: Final = 20.0
STEP_S: Final = 0.05
# A disk hangs so long each time that it is held up.
HANG_S: Final = 1.0


def bound_s(node_down_ms: int, *, silent: bool) -> float:
    """Within how many seconds of its end a node is declared dead, if a leader is there."""
    return max(node_down_ms / 1000, NODE_DOWN_MIN_S) + (SILENT_S if silent else ENDED_S)


def drill(cluster: SimulatedCluster, check: DeathCheck, rng: random.Random) -> None:
    """One drill on a healed cluster; every node is ready before it."""
    if len(cluster.names) < 2:
        return
    with cluster.judging():
        cluster.world.wait(lambda: _leader(cluster), LEADER_S, "a leader before a drill")
        # Of one more look: the state of a core that follows may be a moment behind.
        cluster.world.run(1.0)
        cluster.world.wait(lambda: _leader(cluster), LEADER_S, "a leader before a drill")
        one = _Drill(cluster, check, rng)
        kinds = one.kinds()
        if kinds:
            one.run(rng.choice(kinds))


def _leader(cluster: SimulatedCluster) -> str | None:
    """The core that leads, once all nodes are ready and it knows their incarnations."""
    if not all(cluster.is_up(name) and cluster.nodes[name].session for name in cluster.names):
        return None
    for name in cluster.names:
        part = cluster.part(name)
        if part is not None and part.engine.leading is not None:
            known = cluster.nodes[name].machine.members
            # A replicant that waits behind a namesake does not know that its session has ended.
            if all(_holds_its_name(cluster.nodes[each], known) for each in cluster.names):
                return name
    return None


def _holds_its_name(node: Node, known: Mapping[str, Member]) -> bool:
    member = known.get(node.name)
    return member is not None and member.up and member.incarnation == node.incarnation


class _Drill:
    def __init__(self, cluster: SimulatedCluster, check: DeathCheck, rng: random.Random) -> None:
        self._cluster, self._check, self._rng = cluster, check, rng
        self._world = cluster.world
        leader = _leader(cluster)
        assert leader is not None
        self._leader = leader
        self._before = self._members()
        part = cluster.part(leader)
        assert part is not None
        # Members may have come and gone in the storm.
        self._voters = [name_of(voter) for voter in part.engine.configuration.voters]
        # It may differ between cores, and any of them may lead.
        engines = [part.engine for name in cluster.names if (part := cluster.part(name))]
        self._node_down_ms = max(engine.times.node_down_ms for engine in engines)
        self._node_down_s = max(self._node_down_ms / 1000, NODE_DOWN_MIN_S)

    def kinds(self) -> list[str]:
        """The drills that are possible with these nodes; none before core format 2."""
        nodes = self._cluster.nodes
        if min(nodes[name].machine.core_format for name in self._cluster.names) < FORMAT_PRESENCE:
            return []
        kinds = ["paused"]
        if self._spared([]):
            kinds += ["gone", "gone"]
        if len(self._voters) >= 3:
            kinds += ["apart"]
        if self._spared([self._leader]):
            kinds += ["overtaken"]
        if len(self._voters) >= 3 and self._replicants():
            kinds += ["disk hangs"]
        return kinds

    def _replicants(self) -> list[str]:
        """Those that were not promoted."""
        names = self._cluster.names
        return [name for name in names if not name.startswith("core") and name not in self._voters]

    def _spared(self, away: list[str]) -> list[str]:
        """The nodes without which, and without those that are away, a majority is left."""
        voters = self._voters

        def can_spare(name: str) -> bool:
            left = [voter for voter in voters if voter not in (name, *away)]
            return name not in away and len(left) > len(voters) // 2

        return [name for name in self._cluster.names if can_spare(name)]

    def run(self, kind: str) -> None:
        self._world.note("*", f"drill: {kind}")
        self._cluster.marks.hit(f"drill: {kind}")
        {
            "gone": self._gone,
            "paused": self._paused,
            "apart": self._apart,
            "overtaken": self._overtaken,
            "disk hangs": self._disk_hangs,
        }[kind]()

    def _members(self) -> Mapping[str, Member]:
        """As the most advanced of the running nodes knows them."""
        nodes = [self._cluster.nodes[n] for n in self._cluster.names if self._cluster.is_up(n)]
        return dict(max(nodes, key=lambda node: node.machine.index).machine.members)

    def _ended(self, name: str) -> bool:
        """Whether the incarnation from before the drill has ended."""
        now = self._members()[name]
        return not now.up or now.incarnation != self._before[name].incarnation

    def _all_alive_but(self, *names: str) -> None:
        for name in self._cluster.names:
            if name not in names and name in self._before and self._ended(name):
                self._cluster.violated(CHECK, f"{name} was declared dead in a drill")

    # -- the drills

    def _gone(self) -> None:
        world, name = self._world, self._rng.choice(self._spared([]))
        world.crash(name, power_cut=self._rng.random() < 0.7)
        leader = None if name == self._leader else self._leader
        self._await_verdict(name, leader, world.network.is_silent(name), lambda: None)
        self._all_alive_but(name)
        world.restart(name)

    def _await_verdict(
        self, name: str, leader: str | None, silent: bool, each_step: Callable[[], None]
    ) -> None:
        """`name` has ended now, under this leader: it must be declared dead within the bound."""
        world, ended_at = self._world, self._world.loop.now
        bound, led_at = bound_s(self._node_down_ms, silent=silent), ended_at
        while not self._ended(name):
            each_step()
            world.run(STEP_S)
            now = self._running_leader()
            if now != leader:
                led_at, leader = world.loop.now, now
            late_s = max(0.0, led_at - ended_at - ELECTION_S)
            if world.loop.now > ended_at + bound + late_s:
                self._cluster.violated(
                    LATE, f"{name} ended {world.loop.now - ended_at:.2f} s ago and is still up"
                )

    def _running_leader(self) -> str | None:
        for name in self._cluster.names:
            part = self._cluster.part(name)
            if part is not None and part.engine.leading is not None:
                return name
        return None

    def _paused(self) -> None:
        seconds = self._node_down_s + self._rng.uniform(-1.0, 3.0)
        self._world.pause(self._leader, seconds)
        self._world.run(seconds + 3.0)
        self._all_alive_but(self._leader)

    def _apart(self) -> None:
        """Whichever of the two leads; the other one is heard by the rest."""
        other = self._rng.choice([name for name in self._voters if name != self._leader])
        self._world.network.cut(self._leader, other)
        self._world.run(self._node_down_s + SILENT_S)
        self._all_alive_but()
        self._world.network.heal()

    def _overtaken(self) -> None:
        """The victim stays away, so that the former leader's verdict would still hit it."""
        name = self._rng.choice(self._spared([self._leader]))
        declared: list[str] = []
        world = self._world

        def cut_off(leader: str, verdict: Verdict) -> None:
            if not declared and verdict.name == name:
                declared.append(leader)
                world.network.isolate(leader)

        self._check.on_verdict = cut_off
        world.crash(name, power_cut=False)
        limit = bound_s(self._node_down_ms, silent=False)
        world.wait(lambda: declared, limit + LEADER_S, f"a verdict on {name}")
        world.run(min(3.0, self._node_down_s / 2 + 1.0))
        world.network.heal()
        world.run(1.0)
        self._all_alive_but(name)
        world.restart(name)

    def _disk_hangs(self) -> None:
        """Where no other core can take over meanwhile, nothing is shown."""
        world, former = self._world, self._leader
        slow = self._rng.choice([name for name in self._voters if name != former])

        def hang() -> None:
            runtime = world.host(slow).runtime
            assert runtime is not None
            runtime.stall_disk(HANG_S)

        world.note(slow, "disk hangs until the end of the drill")
        until = world.loop.now + LEADER_S
        while self._running_leader() in (None, former, slow) and world.loop.now < until:
            hang()
            part = self._cluster.part(former)
            if part is not None:
                world.host(former).inside(part.engine.hand_over)
            world.run(HANG_S / 2)
        leader = self._running_leader()
        if leader in (None, former, slow):
            return
        name = self._rng.choice(self._replicants())
        world.crash(name, power_cut=False)
        self._cluster.marks.hit("replicant dead while a disk hangs")
        self._await_verdict(name, leader, world.network.is_silent(name), hang)
        self._all_alive_but(name)
        world.restart(name)

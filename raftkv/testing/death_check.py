"""What must be true of every death verdict in the simulated world.

    with checked_deaths(cluster):
        ...                               # all of it, storms and what follows

Judged when a leader proposes a verdict, from what arrived and who ran, not from the detector's own
bookkeeping:

- the leader has led for the whole `node_down_ms` and has heard nothing of that incarnation for as
  long, the time in which its own process stood still not counted;
- no majority of the voters has heard the node all the time lately, the accused included if it
  votes; and for a replicant, no core has that the leader has heard all the time, too.

And when an entry ends an incarnation: the leader of that entry's very term has proposed it.

That a node which is down is declared dead, and when, is checked where nothing else is wrong
(death_drill.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from raftkv.detector import NODE_DOWN_MIN_S
from raftkv.failure_detector import STEP_MAX_S, Verdict
from raftkv.presence import HEARD_S, Presences
from raftkv.raft import wire
from raftkv.raft.engine import Engine
from raftkv.raft.membership import name_of
from raftkv.state.core import Core
from raftkv.testing.current import running_host
from raftkv.testing.patching import around
from raftkv.verdicts import Verdicts

if TYPE_CHECKING:
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["CHECK", "DeathCheck", "checked_deaths"]

#: The name of the check.
CHECK: Final = "only the dead are declared dead"

# How often it is looked which processes stand still.
TICK_S: Final = 0.1
# "All the time lately". A report that counts was made after the deadline was noticed, and is
# forgotten once its sender has been silent for an election time-out: it is younger than this.
LATELY_S: Final = 4.0
# The same where single messages are lost: several reports in a row may be.
LATELY_HARSH_S: Final = 8.0
# Clocks differ in speed, ticks are coarse, and messages take their time.
TOLERANCE_S: Final = 0.4


@dataclass
class _Hearing:
    """What one core has heard of one node. `since`: without a gap of more than HEARD_S."""

    boots: int
    incarnation: int
    since: float
    last: float
    # The attention of the core when it heard the node last.
    attention: float


class DeathCheck:
    """See the module's text."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        # (core, node) -> what the core has heard of the node.
        self._heard: dict[tuple[str, str], _Hearing] = {}
        # Seconds in which each host's process did not stand still, up to `_ticked_at`. As in the
        # detector, standing still counts for as much as one late timer.
        self._attention: dict[str, float] = {}
        self._paused: dict[str, bool] = {}
        self._ticked_at = 0.0
        # (core, term) -> its attention when it began to lead.
        self._led: dict[tuple[str, int], float] = {}
        # (name, incarnation, term) of every verdict proposed.
        self._proposed: set[tuple[str, int, int]] = set()
        #: Called with the leader's name at each verdict.
        self.on_verdict: Callable[[str, Verdict], None] = lambda leader, verdict: None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with contextlib.ExitStack() as patches:
            enter = patches.enter_context
            enter(around(Presences, "arrived", self._wrap_arrived))
            enter(around(Engine, "become_leader", self._wrap_become_leader))
            enter(around(Verdicts, "propose", self._wrap_propose))
            enter(around(Core, "_ended", self._wrap_ended))
            self._tick()
            yield

    # -- who runs, who was heard

    def _tick(self) -> None:
        world = self._world
        for name in self._cluster.names:
            paused = world.host(name).is_paused
            if paused and not self._paused.get(name, False):
                self._attention[name] = self._attention.get(name, 0.0) + STEP_MAX_S
            if not paused or not self._paused.get(name, False):
                passed_s = world.loop.now - self._ticked_at
                self._attention[name] = self._attention.get(name, 0.0) + passed_s
            self._paused[name] = paused
        self._ticked_at = world.loop.now
        world.loop.call_later(TICK_S, self._tick, context=world.context.copy())

    def _attention_of(self, name: str) -> float:
        return self._attention.get(name, 0.0) + self._world.loop.now - self._ticked_at

    def _wrap_arrived(self, original: Callable[..., None]) -> Callable[..., None]:
        def arrived(presences: Presences, link: Any, message: wire.Presence, now: float) -> None:
            original(presences, link, message, now)
            core = running_host()
            boots, at = self._world.host(core).boots, self._world.loop.now
            key = (core, link.peer_name)
            seen = self._heard.get(key)
            same = seen is not None and (seen.boots, seen.incarnation) == (
                boots,
                message.incarnation,
            )
            since = seen.since if seen is not None and same and at - seen.last <= HEARD_S else at
            attention = self._attention_of(core)
            self._heard[key] = _Hearing(boots, message.incarnation, since, at, attention)

        return arrived

    def _wrap_become_leader(self, original: Callable[..., None]) -> Callable[..., None]:
        def become_leader(engine: Engine) -> None:
            original(engine)
            core = running_host()
            self._led[core, engine.term] = self._attention_of(core)

        return become_leader

    def _receives(self, core: str, name: str, incarnation: int | None) -> bool:
        """Whether the core has heard the node all the time lately; None: any incarnation."""
        seen = self._heard.get((core, name))
        now = self._world.loop.now
        host = self._world.host(core)
        if seen is None or seen.boots != host.boots or not host.is_up or host.is_paused:
            return False
        lately_s = LATELY_S if self._cluster.harsh is None else LATELY_HARSH_S
        known = incarnation in (None, seen.incarnation)
        return known and now - seen.last <= HEARD_S and now - seen.since >= lately_s

    # -- verdicts

    def _wrap_propose(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def propose(verdicts: Verdicts, how: Any, verdict: Verdict, valid: Any) -> Any:
            leader = running_host()
            self._judge(leader, verdict)
            self._proposed.add((verdict.name, verdict.incarnation, verdict.term))
            self._cluster.marks.hit("node declared dead")
            self.on_verdict(leader, verdict)
            return original(verdicts, how, verdict, valid)

        return propose

    def _judge(self, leader: str, verdict: Verdict) -> None:
        part = self._cluster.part(leader)
        if part is None:
            return
        what = f"{leader} declares {verdict.name} dead in term {verdict.term}, "
        node_down_s = max(part.engine.times.node_down_ms / 1000, NODE_DOWN_MIN_S) - TOLERANCE_S
        attention = self._attention_of(leader)
        led_s = attention - self._led.get((leader, verdict.term), attention)
        if led_s < node_down_s:
            self._cluster.violated(CHECK, f"{what}which it has led for {led_s:.2f} s")
        own = self._heard.get((leader, verdict.name))
        if own is not None and own.incarnation == verdict.incarnation:
            silent_s = attention - own.attention
            if silent_s < node_down_s:
                self._cluster.violated(CHECK, f"{what}heard {silent_s:.2f} s before")
        voters = [name_of(voter) for voter in part.engine.configuration.voters]
        hearing = [
            core
            for core in voters
            if core != verdict.name and self._receives(core, verdict.name, verdict.incarnation)
        ]
        # A replicant that was promoted is judged as a core.
        if self._cluster.nodes[leader].machine.members[verdict.name].role != "core":
            hearing = [c for c in hearing if c == leader or self._receives(leader, c, None)]
            wrong = bool(hearing)
        else:
            itself = verdict.name in voters and self._runs(verdict.name)
            if verdict.name == leader:
                # A restarted leader that still applies has no session: the log knows its former
                # incarnation, which is as dead as that process.
                itself &= self._cluster.nodes[leader].incarnation == verdict.incarnation
            wrong = len(hearing) + itself > len(voters) // 2
        if wrong:
            self._cluster.violated(CHECK, f"{what}which {' and '.join(hearing)} hear")

    def _runs(self, name: str) -> bool:
        host = self._world.host(name)
        return host.is_up and not host.is_paused

    def _wrap_ended(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def ended(core: Core, name: str, incarnation: int, ctx: Any) -> Any:
            result = original(core, name, incarnation, ctx)
            if (name, incarnation, core.term) not in self._proposed:
                self._cluster.violated(
                    CHECK,
                    f"an entry of term {core.term} ends incarnation {incarnation} of {name}, "
                    f"which no leader of that term has declared dead",
                )
            return result

        return ended


@contextlib.contextmanager
def checked_deaths(cluster: SimulatedCluster) -> Iterator[DeathCheck]:
    """While this is entered, every verdict in this cluster is judged."""
    check = DeathCheck(cluster)
    with check.installed():
        yield check

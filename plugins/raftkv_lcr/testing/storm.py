"""Connect storms: whole nodes with brokers in the simulated world, and clients that fight over ids.

    result = run_storm(7)                 # a raftkv.testing.scenario.Result
    result.check, result.message          # empty when nothing was violated

Every node of a `SimulatedCluster` runs the plugin and a `MemoryBroker`, attached as an embedding
program does it: once the node has started, and gone with its process. Meanwhile the nemesis does
what it does in every simulation (`raftkv/testing/nemesis.py`), and in some seeds the mode is
switched. What a seed means is in `storm_plan.py`, what clients do in `storm_clients.py`, how the
log is observed in `storm_log.py`, and all judging in `storm_check.py`.

The end. When the world has healed, nothing that is under way may stay so: within bounds all answers
come, brokers and registry agree, doubts are settled and dead rows cleaned. Then every client
connects once more through another node. In a healed world nothing excuses a loss: each must get its
session, whole. At last nothing may be left that grows: no mark, no doubt, no remembered handover.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import msgspec

from raftkv.errors import PeerUnreachable
from raftkv.plugin import Host
from raftkv.testing.scenario import Result
from raftkv.testing.simulated import SimulatedCluster
from raftkv.testing.world import NotReached
from raftkv_lcr.api import LcrApi
from raftkv_lcr.commands import Announce, Channel, Mode, Registered, SwitchMode
from raftkv_lcr.linear_flow import RETRIES_MAX
from raftkv_lcr.modes import mode_of, not_adopted, old_nodes
from raftkv_lcr.owner import Message
from raftkv_lcr.plugin import LCR
from raftkv_lcr.wire import BEGIN, BeginRequest, pack, unpack

from .broker import MemoryBroker
from .planted import planted
from .storm_check import (
    Decision,
    Ending,
    Story,
    anomalies,
    check_announcement,
    check_deletion,
    check_ending,
    check_handovers,
)
from .storm_clients import CALL_S, EXCUSED, PUBLISH, REACH, Clients
from .storm_log import Log, StormLCR
from .storm_plan import Plan, draw

__all__ = ["Seat", "Storm", "run_storm"]

# Bounds after healing: answers to all that is under way; brokers, registry and nodes agree (a sweep
# looks twice, half a minute apart); the last connects; nothing is remembered any more.
ANSWERS_S = 60.0
AGREE_S = 90.0
CALM_S = 30.0
FORGET_S = 120.0
FOREVER_S = float("inf")
# Refused begins of one predecessor in one connect: one for each of its registrations.
REFUSALS_MAX = RETRIES_MAX + 1
# Between two starts of a node that stops itself.
AGAIN_S = 1.0
# The plugin's invariants walk the whole table.
INVARIANTS_S = 0.5

_LOG_MARKS = {
    "restart": "restart",
    "ahead": "ahead",
    "in_progress": "in progress",
    "outdated_late": "outdated late",
    "mode_changed": "mode changed under a connect",
}
# Of every message: some of them already fill a page where pages are small.
FILLING = bytes(200)

# Of the plugin's own gauges, those that must come down to nothing.
_REMEMBERED = (
    "channels_opening",
    "channels_parked",
    "frozen",
    "lost_channels",
    "handovers_kept",
    "handover_bytes",
)
# Of the plugin's own counters, those that show what is not seen from outside.
_COUNTED = {
    "takeover_resumed": "a frozen channel went on",
    "sweep_deleted_local_dead": "deleted by a sweep",
    "cleanup_rows": "dead life cleaned",
    "sweep_deleted_history": "history expired",
}


class Seat:
    """One life of a node with its broker. It ends with its process."""

    def __init__(self, storm: Storm, host: Host, api: LcrApi) -> None:
        self._storm = storm
        self.host = host
        self.api = api
        self.broker = MemoryBroker(host.name)
        self.boots = storm.world.host(host.name).boots
        self.attached = False
        host.rpc.register(PUBLISH, self._on_publish)
        host.rpc.register(REACH, self._on_reach)
        self._call, self._refused = host.rpc.call, Counter[tuple[str, bytes]]()
        host.rpc.call = self._calling  # type: ignore[method-assign]
        host.spawn(self._attach(), "storm broker")

    async def _calling(self, node: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        """A call of the plugin. A begin whose connection is refused is not repeated."""
        try:
            return await self._call(node, method, payload, timeout_s)
        except PeerUnreachable as error:
            if method == BEGIN and error.refused:
                request = unpack(payload, BeginRequest)
                asked = (request.contender.channel, pack(request.channel))
                self._refused[asked] += 1
                self._storm.marks["begin refused"] += 1
                if self._refused[asked] > REFUSALS_MAX:
                    text = f"{node} was asked for {request.channel.channel} once more"
                    self._storm.violated("a refused connection ends a begin", [text])
            raise

    async def _attach(self) -> None:
        """As an embedding program does: once its node has started."""
        started = False
        while not started:
            await self.host.runtime.sleep(0.001)
            node = self._storm.cluster.nodes.get(self.host.name)
            started = node is not None and node.plugin(LCR) is self.api
        self.broker.attach(self.api)
        self.attached = True

    @property
    def remembered(self) -> int:
        """How much its node keeps for takeovers that are under way, or that were."""
        manager: Any = self.broker.manager
        gauges = {each.name: each.value for each in manager.metrics()}
        return int(sum(gauges[name] for name in _REMEMBERED))

    async def _on_reach(self, sender: str, payload: bytes) -> bytes:
        return b""

    async def _on_publish(self, sender: str, payload: bytes) -> bytes:
        client, message = msgspec.msgpack.decode(payload, type=tuple[str, str])
        return b"yes" if self._storm.accept(self, client, message) else b"no"


class Storm:
    """One run: the cluster, what is known of its channels, and the verdicts."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stories: dict[str, Story] = {}
        self.marks: Counter[str] = Counter()
        self.anomalies: Counter[str] = Counter()
        self.log = Log(self.violated, self._decided)
        self._seats: dict[str, Seat] = {}
        self._rng = random.Random(f"{plan.seed}/lcr storm")
        self._last_mode_asked = not plan.modes
        self._started_again_at: dict[str, float] = {}
        scenario = plan.scenario
        plugin = StormLCR(self.log, self._node_opened, plan.plugin_settings(), plan.options)
        self.cluster = SimulatedCluster(
            plan.seed,
            scenario.cores,
            scenario.replicants,
            plugins=[plugin],
            rate_per_s=scenario.rate_per_s,
            limits=scenario.limits,
            raft=scenario.raft,
            options=scenario.options,
            deliveries=False,
            members=scenario.members,
            early=scenario.early,
        )
        self.world = self.cluster.world
        self.clients = Clients(self)

    # --- nodes and their brokers ---

    def _node_opened(self, host: Host, api: LcrApi) -> None:
        """A node starts, with a broker of its own. What lived in its former process has died."""
        former = self._seats.get(host.name)
        if former is not None:
            self._count(former)
        for story in self.stories.values():
            if story.node == host.name and not story.ended:
                story.ended = "died"
        self._seats[host.name] = Seat(self, host, api)

    def seat(self, name: str) -> Seat | None:
        """The node's present life, if it runs and has its broker."""
        seat = self._seats.get(name)
        if seat is None or not seat.attached or not self.cluster.is_up(name):
            return None
        # A process that has just been started has no node yet, and hence no seat.
        return seat if self.world.host(name).boots == seat.boots else None

    def all_seats(self) -> list[Seat]:
        """Those of all nodes in service."""
        return [seat for name in self.cluster.names if (seat := self.seat(name)) is not None]

    def any_seat(self, rng: random.Random, besides: str = "") -> Seat | None:
        """One of them."""
        seats = [seat for seat in self.all_seats() if seat.host.name != besides]
        return rng.choice(seats) if seats else None

    def accept(self, seat: Seat, client: str, message: str) -> bool:
        """A message for the client's channel on this node. Written down when it is accepted."""
        session = seat.broker.live(client)
        if not seat.broker.publish(client, Message(message, FILLING)):
            self.marks["message refused"] += 1
            return False
        assert session is not None, "accepted for a channel that does not live"
        self.stories[session.channel].accepted.append(message)
        self.marks["message accepted"] += 1
        self.marks["message accepted while frozen"] += session.frozen
        return True

    # --- verdicts ---

    def violated(self, check: str, found: Sequence[str]) -> None:
        """End the run if anything was found."""
        if found:
            self.cluster.violated(f"lcr: {check}", "; ".join(found[:5]))

    def _decided(self, decision: Decision, deleted: Channel | None) -> None:
        """The log said something new."""
        if deleted is not None:
            seat, story = self.seat(deleted.node), self.stories.get(deleted.channel)
            lives = seat is not None and seat.broker.is_alive(deleted)
            if decision.mode == "disabled":
                # Nobody reads the registry then, and nodes take out what they have in it.
                self.marks["row taken out under disabled"] += lives
            else:
                self.violated("rows of live channels stay", check_deletion(deleted, story, lives))
        if isinstance(decision.command, Announce) and decision.origin is not None:
            seat = self.seat(decision.origin[0])
            found = check_announcement(decision, self._living(seat), self.log.registry)
            self.violated("returned nodes enter their channels", found)
        marks, result = self.marks, decision.result
        mark = _LOG_MARKS.get(getattr(result, "outcome", ""))
        if mark is not None:
            marks[mark] += 1
        if isinstance(decision.command, SwitchMode):
            marks["switch refused" if decision.refusal else "mode switched"] += 1
        if isinstance(result, Registered) and not result.repeated:
            former, row = result.took_over, result.channel
            marks["registered"] += 1
            marks["taken over on another node"] += former is not None and former.node != row.node
            marks["version decided against the ticket"] += (
                former is not None and former.ticket > row.ticket
            )
            given = getattr(decision.command, "version", None)
            if given is not None and decision.first is not None:
                marks["time after the stamp"] += given > row.version
                marks["time before the oldest"] += given < row.version
            self._entered_again(row)

    def _living(self, seat: Seat | None) -> list[Story]:
        """The channels that live on the node."""
        rows = [] if seat is None else seat.broker.channels()
        return [self.stories[row.channel] for row in rows]

    def _entered_again(self, row: Channel) -> None:
        """A channel that was open already has a row again, or for the first time."""
        story = self.stories.get(row.channel)
        if story is None or story.row is None or story.outcome != "ok":
            return
        if story.row.incarnation != row.incarnation:
            self.marks["entered again after the return"] += 1
        elif story.mode == "disabled":
            self.marks["adopted after a switch"] += 1
        story.row = row

    # --- a whole run ---

    def run(self, seconds: float) -> None:
        """The storm, the healing, and the last checks. Raises SafetyViolation."""
        cluster, scenario = self.cluster, self.plan.scenario
        with cluster:
            self.world.spawn(self._keep_modes(), "modes")
            self.world.spawn(self._send_away(), "away")
            self.world.spawn(self._look_around(), "invariants")
            self.clients.start()
            cluster.storm(
                seconds,
                scenario.faults,
                interval_s=scenario.interval_s,
                duration_s=scenario.duration_s,
                down_max=scenario.down_max,
            )
            self.clients.stop()
            cluster.settle_members()
            with cluster.judging():
                self._finish()
            cluster.settle()
            with cluster.judging():
                self._conclude()

    async def _keep_modes(self) -> None:
        """Ask for each mode at its time, through whichever node, until it is the one."""
        for at, mode in self.plan.modes:
            await asyncio.sleep(max(0.0, at - self.world.loop.now))
            switched = False
            while not switched:
                switched = await self._switch(mode)
                await asyncio.sleep(self._rng.uniform(0.1, 0.5))
        self._last_mode_asked = True

    async def _send_away(self) -> None:
        """At its time a node is cut off until it is declared dead, with a client that stays."""
        rng = random.Random(f"{self.plan.seed}/lcr away")
        await self.first_mode()
        for number, (at, for_s) in enumerate(self.plan.away):
            await asyncio.sleep(max(0.0, at - self.world.loop.now))
            away = False
            while self.clients.running and not away:
                away = await self._cut_off(f"stays{number}", for_s, rng)
                await asyncio.sleep(rng.uniform(0.1, 0.5))

    async def _cut_off(self, client: str, for_s: float, rng: random.Random) -> bool:
        seat, nemesis = self.any_seat(rng), self.cluster.nemesis
        if seat is None or nemesis is None or not await self.clients.stay(client, seat):
            return False
        return self.clients.running and nemesis.keep_away(seat.host.name, for_s)

    async def _switch(self, mode: Mode) -> bool:
        seat = self.any_seat(self._rng)
        if seat is None:
            return False
        try:
            # Asked even if the node shows that mode: its copy may be an old one.
            await self.world.call(seat.host.name, seat.api.switch_mode(mode, CALL_S))
        except EXCUSED:
            return False
        return True

    async def first_mode(self) -> None:
        """Clients of a run that is to begin under a mode do not begin before it."""
        if self.plan.modes and self.plan.modes[0][0] == 0.0:
            first = self.plan.modes[0][1]
            await self.world.until(lambda: self._mode_seen() == first, FOREVER_S, "the first mode")

    def _mode_seen(self) -> Mode | None:
        seats = self.all_seats()
        return mode_of(seats[0].host.view()).mode if seats else None

    async def _look_around(self) -> None:
        """The plugin's invariants on every node, now and then."""
        plugin = LCR()
        while True:
            await asyncio.sleep(INVARIANTS_S)
            for seat in self.all_seats():
                self.marks["history kept"] += len(seat.host.view().table("past")) > 0
                found = plugin.invariants(seat.host.view())
                self.violated("invariants", [f"{seat.host.name}: {each}" for each in found])

    # --- the end ---

    def _finish(self) -> None:
        """What is under way comes to an end; then everybody connects once more, in peace."""
        self._wait(lambda: self.clients.under_way == 0, ANSWERS_S, "answers to what was under way")
        self._wait(self._all_switched, AGREE_S, "every node in the last mode")
        if self.plan.final == "disabled":
            return
        self._wait(self._agreed, AGREE_S, "the same owners in the registry and in the brokers")
        self.violated("sessions go on whole", check_handovers(self.stories))
        reaching = self.world.spawn(self.clients.reach_each_other(), "reach")
        self._wait(reaching.done, CALM_S, "an answer of every node to every other one")
        calm = self.world.spawn(self.clients.connect_all_once_more(), "calm")
        self._wait(calm.done, CALM_S, "the last connect of every client")
        self._wait(self._forgotten, FORGET_S, "an end of all that nodes remember")

    def _wait(self, condition: Callable[[], object], timeout_s: float, what: str) -> None:
        def reached() -> object:
            self._start_again()
            return condition()

        try:
            self.world.wait(reached, timeout_s, what)
        except NotReached as late:
            left = check_ending(self._ending(), self.stories)
            self.violated("an end of all that is under way", [str(late), *left])

    def _start_again(self) -> None:
        """A node may stop itself after the healing, when a write tells late that it has failed."""
        now = self.world.loop.now
        for name in list(self.cluster.names):
            due = self._started_again_at.get(name, -AGAIN_S) + AGAIN_S
            if not self.world.host(name).is_up and now >= due:
                self._started_again_at[name] = now
                self.cluster.start(name)

    def _all_switched(self) -> bool:
        seats = self.all_seats()
        if not self._last_mode_asked or len(seats) < len(self.cluster.names):
            return False
        for seat in seats:
            view = seat.host.view()
            late = old_nodes(view, view.members) or not_adopted(view, view.members)
            if late or mode_of(view).mode != self.plan.final:
                return False
        return True

    def _agreed(self) -> bool:
        ending = self._ending()
        ending.handovers.clear()
        return not check_ending(ending, self.stories)

    def _forgotten(self) -> bool:
        return not check_ending(self._ending(), self.stories)

    def _conclude(self) -> None:
        """Everything has converged: judge what is left."""
        for seat in self._seats.values():
            self._count(seat)
        self.anomalies = anomalies(self.stories)
        if self.plan.final == "disabled":
            twice = [name for name in self.clients.names if len(self.clients.living(name)) > 1]
            self.anomalies["more than one session in the end"] += len(twice)
        self.marks["anomaly under disabled"] += self.anomalies.total() - self.anomalies["opened"]
        self.violated("sessions go on whole", check_handovers(self.stories))
        if self.plan.final != "disabled":
            self.violated("the end", check_ending(self._ending(), self.stories))

    def _ending(self) -> Ending:
        ending = Ending()
        for seat in self.all_seats():
            name, view, broker = seat.host.name, seat.host.view(), seat.broker
            entries = view.table("clients").scan()
            ending.rows[name] = {client: entry.owner for client, entry in entries}
            ending.marks[name] = len(view.table("ended"))
            ending.lives = {m.name: m.incarnation for m in view.members.values() if m.up}
            ending.held[name] = list(broker.manager.held.values())
            ending.in_doubt[name] = len(seat.api.reaper)
            ending.handovers[name] = seat.remembered
            for (client, channel), session in broker.sessions.items():
                if session.live:
                    key = (name, client, channel)
                    ending.sessions[key] = tuple(message.id for message in session.content)
                    if session.frozen:
                        ending.frozen.append(key)
        return ending

    def _count(self, seat: Seat) -> None:
        """The plugin's counters of one life of a node."""
        for name, mark in _COUNTED.items():
            self.marks[mark] += seat.api.counters[name]


def run_storm(
    seed: int,
    *,
    seconds: float = 20.0,
    bug: str | None = None,
    prepare: Callable[[SimulatedCluster], Any] = lambda cluster: None,
) -> Result:
    """Run a seed's storm of so many seconds, healing and all checks.

    Never raises for what the code under test does wrong: that is in the result. `bug` plants one of
    planted.py's; BugFailed if its own code fails. `prepare` is given the cluster before it starts.
    """
    result, begun = Result(seed), perf_counter()
    storm = Storm(draw(seed, seconds))
    prepare(storm.cluster)
    with ExitStack() as stack:
        if bug is not None:
            stack.enter_context(planted(bug))
        try:
            storm.run(seconds)
            result.fingerprint = storm.cluster.fingerprint()
        except Exception as error:
            result.ended_by(error)
    result.simulated_s = storm.world.loop.now
    result.operations = storm.clients.connects
    result.marks = +storm.marks
    if storm.cluster.nemesis is not None:
        result.faults = Counter(storm.cluster.nemesis.counts)
    result.real_s = perf_counter() - begun
    return result

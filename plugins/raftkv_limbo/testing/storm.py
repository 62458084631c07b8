"""Storms of the limbo: whole nodes that write, promote, veto and read, in the simulated world.

    result = run_storm(7)                 # a raftkv.testing.scenario.Result
    result.check, result.message          # empty when nothing was violated

Every node of a `SimulatedCluster` runs the plugin, with hooks and validators registered as an
embedding program does it. Meanwhile the nemesis does what it does in every simulation
(`raftkv/testing/nemesis.py`), writers submit (`storm_writers.py`), readers read
(`storm_readers.py`), owners come and go and operators interfere (`storm_operators.py`). What a seed
means is in `storm_plan.py`, how the log is observed in `storm_log.py`, and all judging in
`storm_check.py` and `storm_answers.py`.

The end. When the world has healed, a quorum is set that can be had, and one node is promoted. Then
nothing that is under way may stay so: all callers are answered and the queue empties itself. The
owner writes once more to each space, the others are refused. At last all nodes must know the same
verdicts with the same reasons, and all hooks have been told all of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from raftkv.plugin import Host, MemberChange, SettingChange
from raftkv.testing.scenario import Result
from raftkv.testing.simulated import SimulatedCluster
from raftkv.testing.storm_worlds import StormSeat, StormWorld, run_world
from raftkv_limbo.api import LimboApi
from raftkv_limbo.commands import (
    Ack,
    CreateSpace,
    Demote,
    DropFenced,
    DropSpace,
    Promote,
    RollBack,
    Submit,
    Sweep,
    Veto,
)
from raftkv_limbo.hooks import Confirmed, Undone
from raftkv_limbo.invariants import violations
from raftkv_limbo.refusals import refusal_of

from .planted import planted
from .storm_answers import Hearing, check_fates, check_story, check_turns
from .storm_ledger import Effect, Key, NewVoters, Step, seen_of
from .storm_log import Log, StormLimbo
from .storm_operators import Operators
from .storm_plan import Plan, draw
from .storm_quorum import Basis, is_fast, nodes_needed
from .storm_readers import Readers
from .storm_validators import Judges
from .storm_writers import Writers

__all__ = ["Seat", "Storm", "run_storm"]

# Bounds after healing: a quorum and an owner; answers to all that is under way, and an empty queue;
# the last writes; equal states.
SETTLE_S = 60.0
ANSWERS_S = 40.0
CALM_S = 30.0
CONVERGE_S = 20.0
# How often it is looked for callers without an answer; the plugin's invariants walk all tables.
LOOK_S = 0.75


class Seat(StormSeat):
    """One life of a node, with its hooks and validators."""

    def __init__(self, storm: Storm, host: Host, api: LimboApi) -> None:
        super().__init__(storm, host)
        self.api = api
        self.hearing = Hearing(host.name, storm.log.ledger)
        # Confirmed reads of this process do not go back behind these versions.
        self.floors: dict[Key, int] = {}
        self._storm = storm
        api.on_confirm(self._confirmed)
        api.on_rollback(self._undone)
        api.on_restored(self._restored)

    def _confirmed(self, event: Confirmed) -> None:
        found = self.hearing.hear("confirmed", event.position, event.writes)
        if event.confirmed != event.position:
            found.append(f"{self.name}: {event} sees another confirmed position")
        self._storm.heard(self, "confirmed", found)

    def _undone(self, event: Undone) -> None:
        found = self.hearing.hear(
            "rolled back", event.position, event.writes, event.reason, event.by
        )
        if not self.api.hooks.is_in_rollback:
            found.append(f"{self.name}: {event} is told, and is_in_rollback says no")
        self._storm.heard(self, "rolled back", found)

    def _restored(self, event: Any) -> None:
        self._storm.marks["hooks jumped over a snapshot"] += 1
        self.hearing.restored()


class Storm(StormWorld[Seat]):
    """One run: the cluster, what is known of its transactions, and the verdicts."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.log = Log(self.violated, self._judged)
        plugin = StormLimbo(self.log, self._opened, plan.plugin_settings(), plan.zone_of)
        super().__init__("limbo", plan.seed, plan.scenario, plugin)
        self.judges = Judges(self)
        self.writers = Writers(self)
        self.readers = Readers(self)
        self.operators = Operators(self)
        self._rng = random.Random(f"{plan.seed}/limbo storm")

    @property
    def operations(self) -> int:
        """Submissions."""
        return len(self.writers.stories)

    def _opened(self, host: Host, api: LimboApi) -> None:
        """A node starts. What waited in its former process has died."""
        self.judges.register(self.sit(Seat(self, host, api)))

    def owner_seat(self) -> Seat | None:
        """The node that owns the queue, if it runs in the life that does."""
        ledger = self.log.ledger
        seat = self.seat(ledger.owner) if ledger.owner else None
        return seat if seat is not None and seat.host.incarnation == ledger.incarnation else None

    # --- verdicts ---

    def heard(self, seat: Seat, kind: str, found: list[str]) -> None:
        """A hook was called."""
        self.marks[f"hook heard {kind}"] += 1
        self.violated("hooks are told each verdict once, in order", found)

    def _judged(self, step: Step, effect: Effect) -> None:
        """The log did something new."""
        self.violated("validators were asked", self.judges.check(step, effect))
        for mark in _marks_of(step, effect):
            self.marks[mark] += 1
        self.violated("fast is sound", self._exceeds_raft(step, effect))

    def _exceeds_raft(self, step: Step, effect: Effect) -> list[str]:
        """Where nobody was waited for, Raft's commit must vouch for as many nodes.

        Asked is the simulation's own observer of Raft, which knows who really votes.
        """
        if not effect.confirmed or not is_fast(_basis(step)):
            return []
        if not self.cluster.observer.voters_known:
            return []  # a core was removed by force while the state could not be told
        if not any(self.log.ledger.positions[number].sync for number in effect.confirmed):
            return []
        possible = self.cluster.observer.possible_configurations()
        majority = min((len(each.voters) // 2 + 1 for each in possible), default=0)
        needed = nodes_needed(_basis(step))
        if needed <= majority:
            return []
        voters = [each.voters for each in possible]
        return [f"{effect.confirmed} needs {needed} nodes, and of {voters} {majority} have it"]

    # --- a whole run ---

    def run(self, seconds: float) -> None:
        """The storm, the healing, and the last checks. Raises SafetyViolation."""
        cluster = self.cluster
        with cluster:
            self.world.spawn(self._look_around(), "looking around")
            for part in (self.operators, self.writers, self.readers):
                part.start()
            self.weather(seconds)
            for part in (self.operators, self.writers, self.readers):
                part.stop()
            self.judges.stop()
            cluster.settle_members()
            with cluster.judging():
                self._finish()
                self.converge(CONVERGE_S)
                self._conclude()

    async def _look_around(self) -> None:
        """Nobody waits too long, and every node's tables are sound and true."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.violated("nobody starves", self.writers.overdue())
            for seat in self.all_seats():
                view = seat.host.view()
                found = [f"{seat.name}: {each}" for each in violations(view)]
                self.violated("invariants", found)
            self._look_at_fates(whole=False)

    def _look_at_fates(self, *, whole: bool) -> None:
        for seat in self.all_seats():
            found = check_fates(seat.name, seen_of(seat.host.view()), self.log.ledger, whole=whole)
            self.violated("the same verdicts everywhere", found)

    # --- the end ---

    def _finish(self) -> None:
        """What is under way comes to an end; then everybody writes once more, in peace."""
        settling = self.world.spawn(self.operators.settle(), "operators")
        self.wait(settling.done, SETTLE_S, "a quorum and an owner", self._left)
        self.wait(lambda: not self._left(), ANSWERS_S, "answers and an empty queue", self._left)
        calm = self.world.spawn(self._calm(), "calm")
        self.wait(calm.done, CALM_S, "the last writes", self._left)
        self.wait(lambda: not self._left(), ANSWERS_S, "answers and an empty queue", self._left)

    async def _calm(self) -> None:
        """The owner writes, the others are refused, and all read the same."""
        owner = self.owner_seat()
        while owner is None:
            # It has lost its life over a fault of its disk that was told late.
            seat = self.any_seat(self._rng)
            if seat is not None:
                await self.operators.promote(seat)
            owner = self.owner_seat()
            await asyncio.sleep(LOOK_S)
        await self.writers.write_once_more(owner)
        for seat in self.all_seats():
            if seat is not owner:
                await self.writers.be_refused(seat)
            for space in list(self.log.ledger.spaces):
                reading = self.readers.read(seat, space, None, "linearizable")
                await self.world.call(seat.name, reading)

    def _left(self) -> list[str]:
        """What is under way."""
        found = [str(each) for each in self.writers.under_way]
        missing = [name for name in self.names if self.seat(name) is None]
        found += [f"{name} is not up" for name in missing]
        for seat in self.all_seats():
            status = seat.api.status()
            queue = status.queue
            if queue.len or queue.busy or queue.waiting_for_room or status.last != self.last:
                found.append(f"{seat.name} has {queue}, last {status.last} of {self.last}")
        return found

    @property
    def last(self) -> int:
        """The last position."""
        return self.log.ledger.last

    def _conclude(self) -> None:
        """Everything has converged: judge what is left, and all that ever happened together."""
        ledger = self.log.ledger
        found: list[str] = []
        for story in self.writers.stories:
            found += check_story(story, ledger)
        self.violated("answers stay true", found)
        self.violated("calls keep their order", check_turns(self.writers.stories, ledger))
        self._look_at_fates(whole=True)
        for seat in self.all_seats():
            if not seat.hearing.is_complete:
                text = f"the hooks of {seat.name} miss the last verdicts"
                self.violated("hooks are told each verdict once, in order", [text])
            seen = seen_of(seat.host.view())
            if seen.confirmed_rows() != ledger.rows:
                text = f"{seat.name} has {seen.confirmed_rows()}, not {ledger.rows}"
                self.violated("rows are what was confirmed", [text])
            self.violated(
                "invariants", [f"{seat.name}: {each}" for each in violations(seat.host.view())]
            )


def _basis(step: Step) -> Basis:
    return Basis(step.members, step.voters, step.settings)


def _marks_of(step: Step, effect: Effect) -> list[str]:
    """What of all that is to be hit this step hit."""
    command, refusal = step.command, type(step.refusal).__name__ if step.refusal else ""
    marks = []
    for each in effect.entered:
        kind = "sync" if each.sync else "independent" if each.independent else "async"
        marks.append(f"entered {kind}")
    entered = {each.number for each in effect.entered}
    sync_ones = any(each.sync for each in effect.entered)
    by_quorum = [number for number in effect.confirmed if number not in entered]
    match command:
        case Submit() if step.result is not None:
            for each in step.result.rejected:
                marks.append(f"rejected {type(refusal_of(each.code, each.args)).__name__}")
            if sync_ones and effect.confirmed and is_fast(_basis(step)):
                marks.append("confirmed fast")
        case Ack() if by_quorum:
            marks.append("confirmed by an ack")
        case MemberChange() if by_quorum:
            marks.append("confirmed by a member change")
        case NewVoters() if by_quorum:
            marks.append("confirmed by a change of voters")
        case SettingChange() if by_quorum:
            marks.append("confirmed by a setting")
        case Promote() | Demote() if refusal:
            marks.append(f"promotion refused {refusal}")
        case Promote():
            marks += ["promoted"] * (effect.owner is not None)
            marks += ["rolled back by a promotion"] * bool(effect.rolled_back)
        case Demote():
            marks.append("demoted")
        case RollBack():
            marks.append(f"rollback refused {refusal}" if refusal else "rolled back on request")
        case Veto() if effect.rolled_back:
            marks.append("rolled back by a veto")
        case DropSpace() | DropFenced():
            waits = not refusal and bool(effect.entered) and not effect.confirmed
            marks += ["drop waits for its quorum"] * waits
            marks.append(f"space refused {refusal}" if refusal else "space dropped")
        case CreateSpace() if refusal:
            marks.append(f"space refused {refusal}")
        case Sweep() if step.result is not None and step.result.rows:
            marks.append("space swept")
    marks += ["confirmed behind a sync one"] * (len(by_quorum) > 1)
    marks += ["rolled back in cascade"] * (len(effect.rolled_back) > 1)
    rolled = effect.rolled_back
    marks += ["independent between rolled back ones"] * (
        bool(rolled) and rolled[0] - rolled[-1] >= len(rolled)
    )
    marks += ["verdict forgotten"] * (step.after.state.forgotten > step.before.state.forgotten)
    return marks


def run_storm(
    seed: int,
    *,
    seconds: float = 5.0,
    bug: str | None = None,
    prepare: Callable[[SimulatedCluster], Any] = lambda cluster: None,
) -> Result:
    """Run a seed's storm of so many seconds, healing and all checks.

    Never raises for what the code under test does wrong: that is in the result. `bug` plants one of
    planted.py's; BugFailed if its own code fails. `prepare` is given the cluster before it starts.
    """
    patch = None if bug is None else planted(bug)
    return run_world(seed, Storm(draw(seed, seconds)), seconds, planted=patch, prepare=prepare)

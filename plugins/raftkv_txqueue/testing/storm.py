"""Storms of queues: whole nodes with producers, consumers and transactions, in the simulated world.

    result = run_storm(7)                 # a raftkv.testing.scenario.Result
    result.check, result.message          # empty when nothing was violated

Every node of a `SimulatedCluster` runs the plugin, some with observers that take part in all
transactions. Meanwhile the nemesis does what it does in every simulation
(`raftkv/testing/nemesis.py`), programs put, take and forward (`storm_clients.py`), coordinators run
distributed transactions (`storm_coordinators.py`), operators interfere (`storm_operators.py`). What
a seed means is in `storm_plan.py`, how the log is observed in `storm_log.py`, all judging in
`storm_check.py` with its neighbours, and `storm_answers.py`.

The end. When the world has healed, all programs come to an end; every branch is decided as its
coordinator's journal says. Then everything that is left in the queues is taken, in order, and
accepted, through every node; and nothing may be left: no message, no staged row, no work to do, no
counter above zero.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from raftkv.plugin import Host
from raftkv.testing.patching import replaced
from raftkv.testing.scenario import Result
from raftkv.testing.simulated import SimulatedCluster
from raftkv.testing.storm_worlds import EXCUSED, StormSeat, StormWorld, run_world
from raftkv_txqueue import deciding, views
from raftkv_txqueue.api import TxQueueApi
from raftkv_txqueue.invariants import violations
from raftkv_txqueue.views import meta_of
from raftkv_txqueue.xa import Xid

from .planted import planted
from .storm_answers import Story, check_order, check_story
from .storm_careless import Careless
from .storm_clients import Consumers, Forwarders, Producers
from .storm_coordinators import Coordinators, Recoverers
from .storm_ledger import Step
from .storm_log import Log, StormTxQueue
from .storm_marks import marks_of
from .storm_observers import Observers
from .storm_operators import Operators
from .storm_plan import QUEUES, Plan, draw
from .storm_programs import CALL_S, GRACE_S
from .storm_shown import shown_of

__all__ = ["SECONDS", "Seat", "Storm", "run_storm"]

#: Of faults, in a run.
SECONDS = 4.0
# Bounds after healing: programs come to an end; branches are decided; queues are drained; nothing
# is left to sweep; equal states.
PROGRAMS_S = 60.0
BRANCHES_S = 40.0
CALM_S = 60.0
QUIET_S = 40.0
CONVERGE_S = 20.0
# How long a consumer waits in peace for a message that comes soon.
WOKEN_S = 20.0
# How often it is looked for calls without an answer; the plugin's invariants walk all tables.
LOOK_S = 0.75
#: Tables that are empty once all is done.
EMPTY = (
    "messages",
    "spans",
    "returned",
    "locks",
    "ack_due",
    "accepts",
    "staged",
    "owners",
    "transactions",
    "branches",
    "due",
    "ended_nodes",
    "left",
    "ended_sessions",
    "unfolding",
    "dropped",
    "overfull",
    "delayed",
    "expiring",
    "timers",
    "staged_times",
)


class Seat(StormSeat):
    """One life of a node."""

    def __init__(self, storm: Storm, host: Host, api: TxQueueApi) -> None:
        super().__init__(storm, host)
        self.api = api


class Storm(StormWorld[Seat]):
    """One run: the cluster, what is known of its messages, and the verdicts."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.log = Log(self.violated, self._judged, plan.sweep_rows)
        plugin = StormTxQueue(self.log, self._opened, plan.plugin_settings(), plan.stage_operations)
        super().__init__("txqueue", plan.seed, plan.scenario, plugin)
        # What the programs share: stories, calls under way (what, since, time-out), open sessions.
        self.stories: list[Story] = []
        self.calls: dict[int, tuple[str, float, float]] = {}
        self.calls_made = 0
        self.acting = 0
        self.tags = 0
        self.sessions: list[tuple[Seat, Any]] = []
        # The coordinators' journal: xid -> (its story, whether it is to be committed).
        self.journal: dict[Xid, tuple[Story, bool]] = {}
        self.left_behind: list[Xid] = []
        self.free_xids: list[Xid] = []
        self.observers = Observers(self)
        self.consumers = Consumers(self)
        self.recoverers = Recoverers(self)
        self.producers = Producers(self)
        self.programs = (
            Operators(self),
            self.producers,
            self.consumers,
            Forwarders(self),
            Coordinators(self),
            Careless(self),
            self.recoverers,
        )
        self._rng = random.Random(f"{plan.seed}/txqueue storm")

    @property
    def operations(self) -> int:
        """Publications and transactions."""
        return len(self.stories)

    def _opened(self, host: Host, api: TxQueueApi) -> None:
        """A node starts. What was in its former process has died."""
        self.observers.opened(self.sit(Seat(self, host, api)))

    def _judged(self, step: Step) -> None:
        """The log did something new."""
        self.violated("participants are asked", self.observers.check(step))
        for mark in marks_of(step, self.log.ledger):
            self.marks[mark] += 1

    # --- a whole run ---

    def run(self, seconds: float) -> None:
        """The storm, the healing, and the last checks. Raises SafetyViolation."""
        cluster = self.cluster
        with _narrowed(self.plan), cluster:
            self.world.spawn(self._look_around(), "looking around")
            for each in self.programs:
                each.start()
            self.weather(seconds)
            for each in self.programs:
                each.stop()
            self.observers.stop()
            cluster.settle_members()
            with cluster.judging():
                self._finish()
                self.converge(CONVERGE_S)
                self._conclude()

    async def _look_around(self) -> None:
        """Nobody waits too long, and every node's tables are sound."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.violated("nobody starves", self._overdue())
            for seat in self.all_seats():
                found = [f"{seat.name}: {each}" for each in violations(seat.host.view())]
                self.violated("invariants", found)

    def _overdue(self) -> list[str]:
        longest_s = self.plan.scenario.duration_s[1]
        now = self.world.loop.now
        return [
            f"{what} has no answer after {now - began:.1f} s"
            for what, began, timeout_s in self.calls.values()
            if now > began + timeout_s + GRACE_S + longest_s
        ]

    # --- the end ---

    def _finish(self) -> None:
        """What is under way comes to an end; then everything is taken, and nothing is left."""
        self.wait(lambda: not self.acting, PROGRAMS_S, "the end of all programs", self._left)
        closing = self.world.spawn(self._close_sessions(), "closing sessions")
        self.wait(closing.done, PROGRAMS_S, "the end of all sessions", self._left)
        deciding_all = self.world.spawn(self.recoverers.decide_all(self._rng), "deciding")
        self.wait(deciding_all.done, BRANCHES_S, "the end of all branches", self._left)
        draining = self.world.spawn(self._drain(), "draining")
        self.wait(draining.done, CALM_S, "empty queues", self._left)
        waking = self.world.spawn(self._wake_up(), "waking up")
        self.wait(waking.done, CALM_S, "consumers that are woken", self._left)
        self.wait(lambda: not self._left(), QUIET_S, "nothing left to do", self._left)

    async def _close_sessions(self) -> None:
        while self.sessions:
            for seat, session in list(self.sessions):
                if not self.is_seated(seat) or session.ended:
                    self.sessions = [each for each in self.sessions if each[1] is not session]
                    continue
                await self.consumers.closed(seat, session)
            await asyncio.sleep(0.1)

    async def _drain(self) -> None:
        """Each node publishes once more, in peace; then each queue is emptied, in order."""
        names = list(self.log.ledger.queues)
        for place, seat in enumerate(self.all_seats()):
            rng = self._rng
            story = await self.producers.publish(seat, "q1", 1, rng, 1_000 + place, calm=True)
            if story.outcome not in ("published", "died", "unknown"):
                self.violated("all is well after healing", [str(story)])
        while any(book.items for book in self.log.ledger.queues.values()):
            for name in names:
                if (chosen := self.any_seat(self._rng)) is not None:
                    with contextlib.suppress(*EXCUSED):
                        await self._empty(chosen, name)
            await asyncio.sleep(0.05)

    async def _empty(self, seat: Seat, name: str) -> None:
        session = await self.consumers.opened(seat, "plain")
        while got := await self.consumers.got(seat, session, name, 500, 0.0):
            await self.consumers.at(
                seat,
                f"accept all of {name}",
                partial(session.accept, *got, timeout_s=CALL_S),
            )
        await self.consumers.closed(seat, session)

    async def _wake_up(self) -> None:
        """On each node a consumer waits, and has the next message as soon as there is one."""
        for seat in self.all_seats():
            with contextlib.suppress(*EXCUSED):
                session = await self.consumers.opened(seat, "plain")
                task = self.world.spawn(self._waiting_consumer(seat, session), "a consumer")
                await asyncio.sleep(0.1)
                other = self.any_seat(self._rng) or seat
                story = await self.producers.publish(other, "q2", 1, self._rng, 2_000, calm=True)
                got = await task
                if story.outcome == "published" and got == ():
                    text = f"{seat.name} waited for {story}, and got {got}"
                    self.violated("consumers are woken", [text])
                if got:
                    await self.consumers.at(seat, "accept", partial(session.accept, *got))
                await self.consumers.closed(seat, session)
        await self._drain()

    async def _waiting_consumer(self, seat: Seat, session: Any) -> tuple[Any, ...] | None:
        """What it has got; None: its node is not well."""
        try:
            got: tuple[Any, ...] = await self.consumers.at(
                seat, "get from q2", lambda: session.get("q2", wait_s=WOKEN_S), WOKEN_S + CALL_S
            )
        except EXCUSED:
            return None
        self.consumers.look(session, got)
        return got

    def _left(self) -> list[str]:
        """What is under way, or was left behind."""
        found = [f"{what} since {began:.1f}" for what, began, _ in self.calls.values()]
        found += [f"{self.acting} programs act"] * bool(self.acting)
        ledger = self.log.ledger
        found += [str(each) for each in ledger.open]
        found += [f"{each.xid}: {each}" for each in ledger.branches.values()]
        for book in ledger.queues.values():
            if book.items:
                found.append(f"{book.name} has {len(book.items)} messages")
        for seat in self.all_seats():
            view = seat.host.view()
            rows = {name: len(view.table(name)) for name in EMPTY if len(view.table(name))}
            if rows:
                found.append(f"{seat.name} has left {rows}")
            meta = meta_of(view)
            if meta.staged_bytes or meta.transactions or meta.prepared:
                found.append(f"{seat.name} counts {meta}")
        return found

    def _conclude(self) -> None:
        """Everything has converged: judge what is left, and all that ever happened together."""
        ledger = self.log.ledger
        found: list[str] = []
        for story in self.stories:
            found += check_story(story, ledger)
        self.violated("answers stay true", found)
        self.violated("order is kept", check_order(self.stories, ledger))
        for seat in self.all_seats():
            view = seat.host.view()
            for name in QUEUES:
                if name in ledger.queues and shown_of(view, name):
                    text = f"{seat.name} shows {shown_of(view, name)} in {name}"
                    self.violated("no message is lost or doubled", [text])
            found = [f"{seat.name}: {each}" for each in violations(view)]
            self.violated("invariants", found)


@contextlib.contextmanager
def _narrowed(plan: Plan) -> Iterator[None]:
    """Transactions of few rows are large already, and few delayed messages are many."""
    with contextlib.ExitStack() as stack:
        if plan.entry_rows:
            stack.enter_context(replaced(deciding, "ENTRY_ROWS", plan.entry_rows))
        if plan.gaps_max:
            stack.enter_context(replaced(views, "GAPS_MAX", plan.gaps_max))
        yield


def run_storm(
    seed: int,
    *,
    seconds: float = SECONDS,
    bug: str | None = None,
    prepare: Callable[[SimulatedCluster], Any] = lambda cluster: None,
) -> Result:
    """Run a seed's storm of so many seconds, healing and all checks.

    Never raises for what the code under test does wrong: that is in the result. `bug` plants one of
    planted.py's; BugFailed if its own code fails. `prepare` is given the cluster before it starts.
    """
    patch = None if bug is None else planted(bug)
    return run_world(seed, Storm(draw(seed, seconds)), seconds, planted=patch, prepare=prepare)

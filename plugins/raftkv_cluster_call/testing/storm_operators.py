"""What operators do in a storm of calls, and what troubles functions: both through any node.

Operators skip, fast-forward, fix and reset, take nodes out and back in, look and acknowledge, as
people do who see alarms: mostly what fits the moment, sometimes what does not. What they are
refused or not answered, they leave. In the end (`settle`) they mend what only people may mend: they
bring back who has left, acknowledge lost effects, and let nodes that have nobody to copy from go on
with what they have.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from raftkv_cluster_call.reports import FixReport

from .storm_callers import CALM_S, EXCUSED
from .storm_check import follows

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["Operators"]

# How long one verb may take.
VERB_S = 5.0
# Between two looks at what is to be settled.
LOOK_S = 0.5
# How often a fix is tried in peace: a node that executes a call meanwhile moves its cursor.
FIXES_MAX = 5
# A node that only copies from others, and has found nobody for so long, is let go on.
STRANDED_S = 8.0


class Operators:
    """All operators of one run, and the troubles."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self._world = storm.world
        self._plan = storm.plan
        self._marks = storm.marks
        self._rng = random.Random(f"{storm.plan.seed}/operators")
        self.running = False
        self.settled = False

    def start(self) -> None:
        self.running = True
        self._world.spawn(self._trouble(), "troubles")
        if self._plan.verbs:
            self._world.spawn(self._operate(), "operators")

    def stop(self) -> None:
        """Nothing more is done, and all functions do what they should."""
        self.running = False
        self._storm.works.end_troubles()

    # --- troubles ---

    async def _trouble(self) -> None:
        """Some function fails, or hangs, on some node for a while."""
        rng, plan, works = self._rng, self._plan, self._storm.works
        while True:
            await asyncio.sleep(rng.expovariate(1 / plan.trouble_every_s))
            if not self.running:
                return
            key = (rng.choice(self._storm.cluster.names), rng.choice(list(plan.functions)))
            if key in works.troubles:
                continue
            # A plain function cannot hang.
            hangs = key[1] != "note" and rng.random() < 0.4
            trouble = asyncio.Event() if hangs else "raise"
            works.troubles[key] = trouble
            self._world.loop.call_later(
                rng.uniform(0.1, plan.trouble_max_s),
                self._end,
                key,
                trouble,
                context=self._world.context.copy(),
            )

    def _end(self, key: tuple[str, str], trouble: str | asyncio.Event) -> None:
        if self._storm.works.troubles.get(key) is trouble:
            del self._storm.works.troubles[key]
        if isinstance(trouble, asyncio.Event):
            trouble.set()

    # --- operators ---

    async def _operate(self) -> None:
        rng, verbs = self._rng, self._plan.verbs
        while True:
            await asyncio.sleep(rng.expovariate(1 / self._plan.operate_every_s))
            if not self.running:
                return
            seat = self._storm.any_seat(rng)
            if seat is None:
                continue
            verb = rng.choices(list(verbs), list(verbs.values()))[0]
            await self._try(seat, verb, self._verb(seat, verb))

    async def _try(self, seat: Seat, verb: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do it on the node; None if that is refused, or not answered."""

        async def bounded() -> Any:
            async with asyncio.timeout(VERB_S):
                return await work()

        self._world.note(seat.host.name, f"operator: {verb}")
        try:
            done = await self._world.call(seat.host.name, bounded())
        except (*EXCUSED, TimeoutError) as error:
            self._world.note(seat.host.name, f"operator: {verb}: {type(error).__name__}")
            return None
        if verb == "fast-forward" and done.attempts:
            self._marks["fast-forwarded"] += 1
        if verb == "fix":
            self._marks[f"fix {done.verdict}"] += 1
        return done

    def _verb(self, seat: Seat, verb: str) -> Callable[[], Awaitable[Any]]:
        api, rng, names = seat.api, self._rng, self._storm.cluster.names
        node = rng.choice(names)
        match verb:
            case "skip":
                # Mostly whom an alarm names.
                failing = [each.node for each in api.alarms() if each.name == "call_failed"]
                node = rng.choice(failing) if failing and rng.random() < 0.8 else node
                return lambda: api.skip(node)
            case "fast-forward":
                target = self._storm.log.ledger.last + rng.randint(-3, 1)
                return lambda: api.fast_forward(node, max(0, target))
            case "fix":
                return lambda: api.fix(timeout_s=VERB_S)
            case "reset":
                return lambda: api.reset(timeout_s=VERB_S)
            case "leave":
                return lambda: api.leave(node)
            case "rejoin":
                return lambda: api.rejoin(node)
            case "force-leave":
                down = [name for name in names if not self._storm.cluster.is_up(name)]
                node = rng.choice(down) if down else node
                return lambda: api.force_leave(node)
            case "acknowledge":
                lost = sorted(self._storm.log.ledger.lost)
                node, id_ = rng.choice(lost) if lost else (node, 1)
                return lambda: api.acknowledge(id_, node)
        return lambda: _look(api, rng)

    # --- the end ---

    async def settle(self) -> None:
        """Mend what only people may mend, until there is nothing to mend."""
        stranded_since: dict[str, float] = {}
        while not self.settled:
            await asyncio.sleep(LOOK_S)
            seats = self._storm.all_seats()
            if len(seats) < len(self._storm.cluster.names):
                continue
            mended = [seat for seat in seats if await self._mend(seat, stranded_since)]
            self.settled = not mended and not await self._see_off(seats[0])

    async def _see_off(self, seat: Seat) -> bool:
        """Members whose machine is gone for good; whether there were any."""
        view = seat.host.view()
        here = self._storm.cluster.names
        gone = [name for name, _ in view.table("cursors").scan() if name not in here]
        for name in gone:
            await self._try(seat, "see off", partial(seat.api.force_leave, name))
        lost = [key for key, _ in view.table("lost").scan() if key[0] not in here]
        for name, id_ in lost:
            await self._try(seat, "acknowledge", partial(seat.api.acknowledge, id_, name))
        return bool(gone or lost)

    async def _mend(self, seat: Seat, stranded_since: dict[str, float]) -> bool:
        """Whether there was anything to mend on this node, as its own copy of the log shows it."""
        view, name, now = seat.host.view(), seat.host.name, self._world.loop.now
        if name in view.table("left"):
            await self._try(seat, "rejoin at last", lambda: seat.api.rejoin(name))
            return True
        lost = [id_ for (node, id_), _ in view.table("lost").scan(prefix=(name,))]
        if lost:
            if any(each.name == "effect_lost" and each.node == name for each in seat.api.alarms()):
                self._marks["alarm seen"] += 1
            await self._try(seat, "acknowledge", lambda: seat.api.acknowledge(lost[0], name))
            return True
        cursor = view.table("cursors").get(name)
        if cursor is None or follows(cursor):
            stranded_since.pop(name, None)
            return False
        sources = [
            node
            for node, each in view.table("cursors").scan()
            if follows(each) and view.members[node].role == "core" and view.members[node].up
        ]
        hopeless = not sources or self._plan.memory == "none"
        if hopeless and now - stranded_since.setdefault(name, now) > STRANDED_S:
            last = view.table("meta").get("last", 0)
            await self._try(
                seat, "let it go on", lambda: seat.api.fast_forward(name, max(last, cursor.as_of))
            )
        return True

    # --- a fix beside a node that fails ---

    async def fix_failing(self) -> None:
        """One node fails at all calls, or all cores beside a replicant; a fix names what they miss.

        It takes them past these calls, but for all cores: then no node is left to copy from.
        """
        rng, works = random.Random(f"{self._plan.seed}/failing"), self._storm.works
        seats = [seat for seat in self._storm.all_seats() if _takes_part(seat)]
        if len(seats) < 2:
            return
        other, *others = rng.sample(seats, len(seats))
        failing = others[:1]
        if other.host.role == "replicant":
            failing = [seat for seat in others if seat.host.role == "core"] or failing
        last = self._storm.log.ledger.last
        for seat in failing:
            works.fail_on(seat.host.name)
        await self._storm.callers.call_in_peace(other, 1)
        called = tuple(
            id_
            for id_, entry in self._storm.log.ledger.entries.items()
            if id_ > last and entry.kind == "call" and entry.state == "committed"
        )
        report = await self._fix(other)
        works.end_troubles()
        named = {each.node: each.ids for each in (*report.skipped, *report.copied)}
        missed = {seat.host.name: called for seat in failing}
        cores = {seat.host.name for seat in seats if seat.host.role == "core"}
        # Without a state nothing would be copied.
        no_source = self._plan.memory != "none" and cores <= missed.keys()
        right = ("unreachable",) if no_source else ("fixed", "differs")
        if report.verdict not in right or named != ({} if no_source else missed):
            text = f"{report}; what was not executed is {missed}"
            self._storm.violated("fix tells the truth", [text])

    async def _fix(self, seat: Seat) -> FixReport:
        """Through this node, again while cursors move."""
        attempts = 0
        while True:
            attempts += 1
            report = await self._world.call(seat.host.name, seat.api.fix(timeout_s=CALM_S))
            self._marks[f"fix {report.verdict}"] += 1
            if report.verdict != "moved" or attempts == FIXES_MAX:
                return report


def _takes_part(seat: Seat) -> bool:
    return follows(seat.host.view().table("cursors").get(seat.host.name))


async def _look(api: Any, rng: random.Random) -> None:
    """Status and one call: whatever they show, they must not fail but for an unknown id."""
    status = api.status(every=rng.random() < 0.5)
    if status.last:
        api.query(rng.randint(1, status.last))

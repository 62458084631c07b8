"""Storms of regions: several clusters in one simulated world, linked, with everything that goes on.

    result = run_storm(7)                 # a raftkv.testing.scenario.Result
    result.check, result.message          # empty when nothing was violated

Every region is a cluster of its own in the same virtual time (`raftkv/testing/several.py`), every
link is the product's code over simulated wires (`storm_links.py`). Programs publish, consume and
move (`storm_programs.py`), operators interfere (`storm_operators.py`), nodes and wires fail, whole
regions go dark. What a seed means is in `storm_plan.py`; how the logs are observed, in
`storm_log.py`; what is judged of them, in `storm_check.py`.

When all is healed every program comes to an end and every region is active; what must be true then
is in `storm_end.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

from raftkv.plugin import Host
from raftkv.testing.patching import replaced
from raftkv.testing.scenario import Result
from raftkv.testing.several import SeveralClusters, Shape
from raftkv.testing.simulated import SafetyViolation
from raftkv.testing.world import NotReached, World
from raftkv_subscriptions import (
    acking,
    backlog,
    invariants,
    mapping,
    marks,
    merging,
    retention,
    topics,
)
from raftkv_subscriptions.api import SubscriptionsApi
from raftkv_subscriptions.invariants import violations
from raftkv_subscriptions.service import SubscriptionsService

from .planted import planted
from .storm_end import Ending
from .storm_ledger import Ledger, Step
from .storm_links import Network
from .storm_log import Log, StormSubscriptions
from .storm_marks import marks_of
from .storm_operators import Operators
from .storm_plan import Plan, draw
from .storm_programs import GRACE_S, Consumers, Movers, Producers

__all__ = ["SECONDS", "Seat", "Storm", "run_storm"]

#: Of faults, in a run.
SECONDS = 4.0
# Bounds after healing, in virtual seconds.
BEGIN_S = 30.0
PROGRAMS_S = 60.0
# How often it is looked for calls without an answer, and at the tables of nodes.
LOOK_S = 0.75
FOUND_SHOWN = 5


class Seat:
    """One life of a node."""

    def __init__(
        self,
        region: str,
        host: Host,
        api: SubscriptionsApi,
        service: SubscriptionsService,
        boots: int,
    ) -> None:
        self.region = region
        self.host = host
        self.api = api
        self.service = service
        self.boots = boots

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def serving(self) -> Any:
        return self.service.serving


class Storm:
    """One run: the regions, what is known of their messages, and the verdicts."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan.seed)
        self.world.network.records_deliveries = False
        self.ledger = Ledger()
        self.marks: Counter[str] = Counter()
        self.violation: SafetyViolation | None = None
        # What the programs share: calls under way (what, since, time-out), and counters.
        self.calls: dict[int, tuple[str, float, float]] = {}
        self.calls_made = 0
        self.acting = 0
        self.tags = 0
        #: Consumers that are open, as far as is known.
        self.consuming: list[tuple[Seat, Any]] = []
        self._seats: dict[str, Seat] = {}
        self._rng = random.Random(f"{plan.seed}/storm")
        rng = random.Random(f"{plan.seed}/delays")
        self.clusters = SeveralClusters(
            self.world,
            {name: self._shape(name) for name in plan.regions},
            self.violated,
        )
        self.network = Network(
            self.world,
            self.clusters.members,
            self.seat,
            self.violated,
            # Far from the triangle inequality: what goes the long way may be there first.
            lambda target, source: rng.choice(plan.delays_s) * rng.uniform(0.5, 1.0),
            self.ledger.sent,
        )
        self.operators = Operators(self)
        self.producers = Producers(self)
        self.movers = Movers(self)
        self.consumers = Consumers(self)
        self.programs = (self.producers, self.consumers, self.movers, self.operators)

    def _shape(self, region: str) -> Shape:
        plan = self.plan
        cores, replicants = plan.regions[region]
        log = Log(region, self.ledger, self.violated, self._judged, plan.sweep_rows)

        def served(host: Host, api: SubscriptionsApi, service: SubscriptionsService) -> None:
            boots = self.world.host(host.name).boots
            self._seats[host.name] = Seat(region, host, api, service, boots)

        links = {
            source: {"endpoints": [f"http://{source}:1"], "want": want}
            for source, want in plan.wants(region).items()
        }
        options = {
            "region": region,
            "links": links,
            "state_ms": plan.state_ms,
            "report_s": plan.report_s,
        }
        plugin = StormSubscriptions(
            log,
            served,
            plan.plugin_settings(),
            lambda host, source, link: self.network.transport(host, source, link),
        )
        return Shape(
            cores, replicants, (plugin,), {"subscriptions": options}, plan.raft, plan.limits
        )

    @property
    def final_mode(self) -> str:
        """The mode of all regions after the storm."""
        if self.plan.mode == "snapshot" and not self.plan.ends_in_vector:
            return "snapshot"
        return "vector"

    # --- seats ---

    def seat(self, name: str) -> Seat | None:
        """The node's present life, if it runs."""
        seat = self._seats.get(name)
        if seat is None or not self.clusters.is_up(name):
            return None
        return seat if self.world.host(name).boots == seat.boots else None

    def is_seated(self, seat: Seat) -> bool:
        return self.seat(seat.name) is seat

    def any_seat(self, rng: random.Random, region: str = "") -> Seat | None:
        """One of a region, or of all."""
        names = self.clusters.members[region] if region else self.clusters.names
        seats = [seat for name in names if (seat := self.seat(name)) is not None]
        return rng.choice(seats) if seats else None

    # --- verdicts ---

    def violated(self, check: str, found: Sequence[str]) -> None:
        """End the run if anything was found. The first one counts.

        It is kept as well as raised, because the code under test may catch what is raised here.
        """
        if not found:
            return
        check = f"subscriptions: {check}"
        what = "; ".join(found[:FOUND_SHOWN])
        text = f"seed {self.plan.seed} at {self.world.loop.now:.6f} s: {check}: {what}"
        violation = SafetyViolation(text, check)
        if self.violation is None:
            self.violation = violation
            self.world.note("*", f"VIOLATION of {check}: {what}")
            self.world.report("*", violation)
            self.world.loop.stop()
        raise violation

    def _judged(self, step: Step) -> None:
        for mark in marks_of(step, self.ledger):
            self.marks[mark] += 1

    def wait(
        self,
        condition: Callable[[], object],
        timeout_s: float,
        what: str,
        left: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        """Run the healed world until the condition holds; else `left` tells what is missing."""
        try:
            self.clusters.wait(condition, timeout_s, what)
        except NotReached as late:
            self.violated(what, [*left(), str(late)])

    def finish(self, coroutine: Any, timeout_s: float, what: str) -> Any:
        """Run the healed world until the coroutine has ended."""
        task = self.world.spawn(coroutine, what)
        self.wait(task.done, timeout_s, what, self._under_way)
        return task.result()

    def _under_way(self) -> list[str]:
        now = self.world.loop.now
        return [f"{what}, since {now - began:.1f} s" for what, began, _ in self.calls.values()]

    # --- a whole run ---

    def run(self, seconds: float) -> None:
        """The storm, the healing, and the last checks. Raises SafetyViolation."""
        try:
            with self.clusters:
                self._run(seconds)
        except AssertionError:
            if self.violation is not None:
                raise self.violation from None
            raise

    def _run(self, seconds: float) -> None:
        plan, world = self.plan, self.world
        self.network.start()
        self.finish(self.operators.begin(), BEGIN_S, "regions and topics are there")
        world.spawn(self._look_around(), "looking around")
        for each in self.programs:
            each.start()
        parts = 2 if plan.wiped else 1
        for part in range(parts):
            wires = world.spawn(self.network.storm(plan.link_interval_s, plan.duration_s), "wires")
            self.clusters.weather(
                seconds / parts,
                plan.faults,
                interval_s=plan.interval_s,
                duration_s=plan.duration_s,
                outage_every_s=plan.outage_every_s,
            )
            wires.cancel()
            if plan.wiped and part == 0:
                self.wait(self.clusters.revived, BEGIN_S, "all nodes are back")
                self.clusters.replace_disk(plan.wiped)
        for each in self.programs:
            each.stop()
        self.network.heal_all()
        self.wait(self.clusters.revived, PROGRAMS_S, "all nodes are back")
        self.wait(lambda: not self.acting, PROGRAMS_S, "programs end", self._under_way)
        Ending(self).conclude()

    async def _look_around(self) -> None:
        """Nobody waits too long, and every node's tables are sound."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.violated("nobody waits for ever", self._overdue())
            for name in self.clusters.names:
                seat = self.seat(name)
                if seat is not None:
                    found = [f"{name}: {each}" for each in violations(seat.host.view())]
                    self.violated("invariants", found)

    def _overdue(self) -> list[str]:
        longest_s = self.plan.duration_s[1]
        now = self.world.loop.now
        return [
            f"{what} has no answer after {now - began:.1f} s"
            for what, began, timeout_s in self.calls.values()
            if now > began + timeout_s + GRACE_S + longest_s
        ]


@contextlib.contextmanager
def narrowed(plan: Plan) -> Iterator[None]:
    """Few messages are many already: small blocks of the index, marks that move step by step."""
    blocks = (acking, backlog, invariants, mapping, marks, retention, topics)
    with contextlib.ExitStack() as stack:
        for module in blocks if plan.block else ():
            stack.enter_context(replaced(module, "BLOCK", plan.block))
        for module in (acking, marks, merging) if plan.mark_rows else ():
            stack.enter_context(replaced(module, "ROWS_MAX", plan.mark_rows))
        yield


def run_storm(
    seed: int,
    *,
    seconds: float = SECONDS,
    bug: str | None = None,
    prepare: Callable[[Any], Any] = lambda world: None,
) -> Result:
    """Run a seed's storm of so many seconds, healing and all checks.

    Never raises for what the code under test does wrong: that is in the result. `bug` plants one of
    planted.py's; BugFailed if its own code fails. `prepare` is given the world before it starts.
    """
    result, begun = Result(seed), perf_counter()
    storm = Storm(draw(seed, seconds))
    prepare(storm.world)
    patch = contextlib.nullcontext() if bug is None else planted(bug)
    with patch, narrowed(storm.plan):
        try:
            storm.run(seconds)
            result.fingerprint = storm.clusters.fingerprint()
        except Exception as error:
            result.ended_by(error)
    result.simulated_s = storm.world.loop.now
    result.operations = storm.ledger.published
    result.marks = +storm.marks
    result.faults = Counter(storm.clusters.counts) + Counter(storm.network.counts)
    result.real_s = perf_counter() - begun
    return result

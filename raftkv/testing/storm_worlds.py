"""What the storm of any plugin consists of: a cluster under faults, seats on it, one log observed.

    class MyStorm(StormWorld[MySeat]):
        def run(self, seconds): ...           # begin, self.weather(seconds), heal, judge
    result = run_world(MyStorm(plan), seconds)

A `StormWorld` holds the `SimulatedCluster` of a scenario whose nodes run the plugin under test, and
a `StormSeat` for each node: one life of it, from the moment in which the plugin is opened to the
end of its process. `Answers` holds what was answered at each place of the log. What is done on the
seats and what is judged is the plugin's; nothing here knows of any.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Generic, TypeVar

from raftkv.errors import NodeFault, RaftkvError, RemovedNode
from raftkv.plugin import Context, Host, Plugin
from raftkv.testing.host import HostCrashed
from raftkv.testing.scenario import Result, Scenario
from raftkv.testing.simulated import SimulatedCluster
from raftkv.testing.world import NotReached

__all__ = [
    "EXCUSED",
    "Answers",
    "StormSeat",
    "StormWorld",
    "run_world",
    "tried",
]

# What a call to a node may end in while the world is at war. Anything else is a defect.
EXCUSED = (RaftkvError, HostCrashed, NodeFault)
# Of what was found, this much is told.
FOUND_SHOWN = 5
# Between two starts of a node that stops itself after the healing.
AGAIN_S = 1.0


class StormSeat:
    """One life of a node. `boots` tells it from the lives before and after."""

    def __init__(self, world: StormWorld[Any], host: Host) -> None:
        self.host = host
        self.boots = world.world.host(host.name).boots

    @property
    def name(self) -> str:
        """The node's."""
        return self.host.name


SeatT = TypeVar("SeatT", bound=StormSeat)


class StormWorld(Generic[SeatT]):
    """A cluster of `scenario`, whose nodes run `plugin`. `name` is the first word of all checks."""

    def __init__(self, name: str, seed: int, scenario: Scenario, plugin: Plugin[Any]) -> None:
        self.name = name
        self.scenario = scenario
        self.marks: Counter[str] = Counter()
        self._seats: dict[str, SeatT] = {}
        self._started_again_at: dict[str, float] = {}
        self.cluster = SimulatedCluster(
            seed,
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

    def run(self, seconds: float) -> None:
        """The storm, the healing, and the last checks. Raises SafetyViolation."""
        raise NotImplementedError(f"{type(self).__name__}.run")

    @property
    def operations(self) -> int:
        """How much was done in all: what the command sums up."""
        raise NotImplementedError(f"{type(self).__name__}.operations")

    # --- seats ---

    def sit(self, seat: SeatT) -> SeatT:
        """A node has opened the plugin: this is its life from now on."""
        self._seats[seat.name] = seat
        return seat

    def seat(self, name: str) -> SeatT | None:
        """The node's present life, if it runs."""
        seat = self._seats.get(name)
        if seat is None or not self.cluster.is_up(name):
            return None
        # A process that has just been started has no node yet, and hence no seat.
        return seat if self.world.host(name).boots == seat.boots else None

    @property
    def names(self) -> list[str]:
        """Nodes in service. One that was removed while it was down learns of it, and is none."""
        return [name for name in self.cluster.names if not self._was_removed(name)]

    def all_seats(self) -> list[SeatT]:
        """Those of all nodes in service."""
        return [seat for name in self.names if (seat := self.seat(name)) is not None]

    def any_seat(self, rng: random.Random) -> SeatT | None:
        """One of them."""
        seats = self.all_seats()
        return rng.choice(seats) if seats else None

    def is_seated(self, seat: SeatT) -> bool:
        """Whether this life of the node goes on."""
        return self.seat(seat.name) is seat

    # --- verdicts ---

    def violated(self, check: str, found: Sequence[str]) -> None:
        """End the run if anything was found."""
        if found:
            self.cluster.violated(f"{self.name}: {check}", "; ".join(found[:FOUND_SHOWN]))

    def wait(
        self,
        condition: Callable[[], object],
        timeout_s: float,
        what: str,
        left: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        """Run the healed world until the condition holds; else `left` tells what is under way."""

        def reached() -> object:
            self._start_again()
            return condition()

        try:
            self.world.wait(reached, timeout_s, what)
        except NotReached as late:
            self.violated("an end of all that is under way", [str(late), *left()])

    def converge(self, timeout_s: float) -> None:
        """All nodes of the healed world come to the same entry, and to the same state there.

        `SimulatedCluster.settle` asks for more, of the load and its watches and leases, and takes
        longer: what is under way with them must end first. That is the simulation's own business.
        """
        cluster, nodes = self.cluster, self.cluster.nodes
        cluster.load.running = cluster.holders.running = False

        def agreed() -> bool:
            if len(self.all_seats()) < len(self.names):
                return False
            return len({nodes[name].machine.index for name in self.names}) == 1

        self.wait(agreed, timeout_s, "the same applied index on every node")
        digests = {name: nodes[name].machine.digest() for name in self.names}
        if len(set(digests.values())) != 1:
            cluster.violated("equal digests", f"the digests differ: {digests}")
        for name in self.names:
            found = nodes[name].machine.invariants()
            self.violated("invariants", [f"{name}: {each}" for each in found])

    def _start_again(self) -> None:
        """A node may stop itself after the healing, when a write tells late that it has failed."""
        now = self.world.loop.now
        for name in self.names:
            due = self._started_again_at.get(name, -AGAIN_S) + AGAIN_S
            if not self.world.host(name).is_up and now >= due:
                self._started_again_at[name] = now
                self.cluster.start(name)

    def _was_removed(self, name: str) -> bool:
        host = self.world.host(name)
        return not host.is_up and isinstance(host.failure, RemovedNode)

    # --- the weather ---

    def weather(self, seconds: float) -> None:
        """The faults of the scenario for so long, then all is healed."""
        scenario = self.scenario
        self.cluster.storm(
            seconds,
            scenario.faults,
            interval_s=scenario.interval_s,
            duration_s=scenario.duration_s,
            down_max=scenario.down_max,
        )


def run_world(
    seed: int,
    storm: StormWorld[Any],
    seconds: float,
    *,
    planted: contextlib.AbstractContextManager[Any] | None = None,
    prepare: Callable[[SimulatedCluster], Any] = lambda cluster: None,
) -> Result:
    """Run a storm of so many seconds, healing and all checks.

    Never raises for what the code under test does wrong: that is in the result. `planted` is
    entered for the time of the run. `prepare` is given the cluster before it starts.
    """
    result, begun = Result(seed), perf_counter()
    prepare(storm.cluster)
    with planted or contextlib.nullcontext():
        try:
            storm.run(seconds)
            result.fingerprint = storm.cluster.fingerprint()
        except Exception as error:
            result.ended_by(error)
    result.simulated_s = storm.world.loop.now
    result.operations = storm.operations
    result.marks = +storm.marks
    if storm.cluster.nemesis is not None:
        result.faults = Counter(storm.cluster.nemesis.counts)
    if storm.cluster.operator is not None:
        result.faults += Counter(storm.cluster.operator.counts)
    result.real_s = perf_counter() - begun
    return result


class Answers:
    """What was answered at each place of the log, which must be the same on every node.

    A place is anything that tells one step of the log from all others.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[Any, ...], Any] = {}

    def first(self, place: tuple[Any, ...], answer: Any) -> None:
        """Remember the answer that was given first."""
        self._said[place] = answer

    def known(self, place: tuple[Any, ...]) -> bool:
        """Whether some node was there before."""
        return place in self._said

    def check(self, place: tuple[Any, ...], answer: Any, what: object) -> list[str]:
        """In words, how the answer differs from the first one."""
        before = self._said[place]
        return [] if answer == before else [f"{what} at {place}: {before}, and now {answer}"]


def tried(
    apply: Callable[[Any, Context], Any], command: Any, ctx: Context
) -> tuple[Any, RaftkvError | None]:
    """What the plugin gives for the command, or its refusal."""
    try:
        return apply(command, ctx), None
    except RaftkvError as refusal:
        return None, refusal

"""The scenarios of the registry benchmark, played by a driver inside a node's process.

    initial      every connect is the first one of a new client id; every eighth client says
                 goodbye at once, so that a deletion races its own registration
    reconnect    each client connects, again and again, each time through the next driver; every
                 eighth time it says goodbye first and must find no session
    same_client  all clients connect with one client id, at once, through all drivers
    lagging      reconnect, while one driver's node applies later what the others write
    leader_dies  reconnect, while the leader is killed

The load is a closed loop: `clients` clients for each driver, each with one operation outstanding,
optionally slowed down by a rate and by a pause before a client comes back. A client of `reconnect`
is a `History` that travels from driver to driver over the mesh, so that its next connect meets
another node as soon as a real client could be there, and its ground truth travels with it. A
channel that was taken over ends where it lives: the driver that learns of it tells the other one,
which removes the registration if its node still holds it. That removal comes late; no registry may
be confused by it.

Every operation becomes one row of the log. The driver judges nothing but audits (`bench.truth`).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from bench.clock import Clock
from bench.registries import Answer, Registry, Seat
from bench.schema import ERRORS, Row
from bench.truth import Expectation, History, Race, RaceFacts, audit_outcome
from raftkv.errors import NoLeader, Overloaded, RaftkvError, Timeout

__all__ = [
    "Baton",
    "Collected",
    "Driver",
    "Goodbye",
    "Load",
    "Mesh",
    "Place",
    "outcome_of",
    "says_goodbye",
]

GOODBYE_EVERY = 8
"""Each eighth connect of `initial` and `reconnect` is joined by a goodbye: the rarer case."""

BACK_OFF_S = 0.05
"""A client that got no answer waits before it tries again, or an outage would fill the log."""

AUDITS_PER_TURN = 500
"""Audits between two turns of the node's loop: about 2 ms, so that heartbeats go on."""


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """One scenario with one registry, over when the time is or after so many connects.

    `connects_max` and `rate_per_s` are for each driver; 0 means no limit. `lagging` names the
    driver whose node lags on purpose, if only one does.
    """

    scenario: str
    registry: str
    clients: int
    seconds: float
    warmup_s: float = 0.0
    think_ms: float = 0.0
    rate_per_s: float = 0.0
    connects_max: int = 0
    lagging: str | None = None


class Baton(msgspec.Struct, frozen=True, tag="baton"):
    """A client of `reconnect` on its way to its next driver."""

    history: History


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """To the driver where a channel lives: another channel took it over."""

    seat: Seat


class Collected(msgspec.Struct, frozen=True, tag="collected"):
    """What a driver knows after a load. The load is over when nobody is busy and sums agree."""

    busy: int
    sent: int
    received: int
    expectations: tuple[Expectation, ...] = ()
    race: RaceFacts | None = None
    discarded: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


class Place(msgspec.Struct, frozen=True):
    """Where a driver sits: the constant part of its rows, and its node's role at the moment."""

    run: str
    layout: str
    node: str
    role: Callable[[], str]


class Mesh(Protocol):
    """The drivers' own channel. It must not use the cluster that is being measured."""

    drivers: Sequence[str]

    def send(self, driver: str, message: Baton | Goodbye) -> None:
        """Delivers in order, also to oneself. Never blocks."""


def outcome_of(error: RaftkvError) -> str:
    """The benchmark log's word for an error."""
    match error:
        case Timeout():
            return "timeout"
        case NoLeader():
            return "no_leader"
        case Overloaded():
            return "overloaded"
        case _:
            return f"error:{error.code}"


def says_goodbye(client: str, number: int) -> bool:
    """Whether a client says goodbye after its connect `number`; each at another turn."""
    return (number + zlib.crc32(client.encode())) % GOODBYE_EVERY == 0


class Driver:
    """Plays clients on one node: `start` on all drivers, then `play`, then `collect` to the end."""

    def __init__(
        self,
        place: Place,
        registries: Mapping[str, Registry],
        mesh: Mesh,
        clock: Clock,
        sink: Callable[[Row], None],
    ) -> None:
        self._place = place
        self._registries = registries
        self._mesh = mesh
        self._clock = clock
        self._sink = sink
        self._tasks: set[asyncio.Task[None]] = set()
        self._faults: list[str] = []
        self._load: Load | None = None
        self._channels = 0
        self._loads = 0

    # ---- what the coordinator asks ----------------------------------------------------------

    def start(self, load: Load) -> None:
        """Forgets the last load and prepares this one; from now on other drivers may send."""
        assert not self._tasks, "the last load is still under way"
        self._load = load
        self._loads += 1
        self._connects = 0
        self._registry = self._registries[load.registry]
        self._began = self._clock.now()
        self._next_start = self._began
        self._under_way: dict[str, Seat | None] = {}
        # The channels that live here, as far as this driver was told.
        self._seats: dict[str, Seat] = {}
        self._done: list[History] = []
        self._race = Race(f"{load.registry}-same-{self._loads}")
        self._sent = self._received = 0

    def play(self) -> None:
        """Sends this driver's clients off; they come to rest when the load's time is over."""
        load = self._load
        assert load is not None, "start first"
        play = {
            "initial": self._newcomer,
            "reconnect": self._first_connect,
            "same_client": self._contender,
            # What happens to the cluster meanwhile is the coordinator's part.
            "lagging": self._first_connect,
            "leader_dies": self._first_connect,
        }[load.scenario]
        for slot in range(load.clients):
            self._spawn(play(slot))

    def collect(self, *, final: bool) -> Collected:
        """The state of the load; with `final` also what an audit must find."""
        load = self._load
        assert load is not None, "nothing was played"
        counts = (len(self._tasks), self._sent, self._received)
        if not final:
            return Collected(*counts, faults=tuple(self._faults))
        discarded = tuple(
            channel for channel, seat in self._seats.items() if self._registry.discarded(seat)
        )
        self._race.discarded(discarded)
        return Collected(
            *counts,
            expectations=tuple(history.expectation() for history in self._done),
            race=self._race.facts() if load.scenario == "same_client" else None,
            discarded=discarded,
            faults=tuple(self._faults),
        )

    def receive(self, message: Baton | Goodbye) -> None:
        """A message of another driver (or of this one)."""
        self._received += 1
        match message:
            case Baton(history):
                self._spawn(self._circulate(history))
            case Goodbye(seat):
                self._spawn(self._end(seat))

    async def audit(self, load: Load, expectations: Sequence[Expectation]) -> None:
        """Compares this node's registry with the truth; one row each."""
        registry = self._registries[load.registry]
        for number, expected in enumerate(expectations, 1):
            start_us, began = self._clock.wall_us(), self._clock.now()
            outcome: str = audit_outcome(expected, registry.registered(expected.client))
            duration_us = _us(self._clock.now() - began)
            self._row(load, "audit", "audit", expected.client, start_us, duration_us, outcome)
            if number % AUDITS_PER_TURN == 0:
                await asyncio.sleep(0)

    # ---- the clients ------------------------------------------------------------------------

    async def _newcomer(self, slot: int) -> None:
        """`initial`: one new client id after the other."""
        number = 0
        while await self._may_go_on():
            number += 1
            history = History(f"{self._name()}-{slot}-{number}")
            seat = await self._connect(history)
            if seat is not None and says_goodbye(history.client, number):
                await self._disconnect(history, seat)
            self._done.append(history)

    async def _first_connect(self, slot: int) -> None:
        """`reconnect`: brings a client into being, which then travels."""
        await self._circulate(History(f"{self._name()}-{slot}"))

    async def _circulate(self, history: History) -> None:
        """`reconnect`: one connect of a client, then it goes on to the next driver."""
        load = self._load
        assert load is not None
        if history.connects and load.think_ms:
            await self._clock.sleep(load.think_ms / 1000)
        if not await self._may_go_on():
            self._done.append(history)
            return
        seat = await self._connect(history)
        if seat is not None and says_goodbye(history.client, history.connects):
            await self._disconnect(history, seat)
        drivers = self._mesh.drivers
        following = drivers[(drivers.index(self._place.node) + 1) % len(drivers)]
        self._send(following, Baton(history))

    async def _contender(self, slot: int) -> None:
        """`same_client`: one connect after the other, all with the same client id."""
        while await self._may_go_on():
            channel = self._new_channel()
            answer = await self._ask(self._race.client, channel, expected=None)
            if answer.seat is not None:
                before = answer.predecessor.channel if answer.predecessor is not None else None
                self._race.connected(channel, answer.seat.version, before)
                self._took_over(answer)
            else:
                self._race.connect_failed(channel, answer.outcome)
                await self._rest_after(answer.outcome)

    # ---- operations -------------------------------------------------------------------------

    async def _connect(self, history: History) -> Seat | None:
        channel = self._new_channel()
        answer = await self._ask(history.client, channel, expected=history.present)
        if answer.seat is None:
            history.connect_failed(channel, answer.outcome)
            await self._rest_after(answer.outcome)
            return None
        before = answer.predecessor.channel if answer.predecessor is not None else None
        history.connected(channel, before)
        self._took_over(answer)
        return answer.seat

    async def _disconnect(self, history: History, seat: Seat) -> None:
        self._seats.pop(seat.channel, None)
        history.disconnected(seat.channel, await self._remove(seat))

    async def _end(self, seat: Seat) -> None:
        """Another channel took this one over. Ending twice is no news: the channel is gone."""
        if seat.channel in self._under_way:
            # Taken over before its own answer arrived: it ends as soon as it has one.
            self._under_way[seat.channel] = seat
            return
        self._seats.pop(seat.channel, None)
        if self._registry.holds(seat):
            await self._remove(seat)

    async def _ask(self, client: str, channel: str, expected: bool | None) -> Answer:
        load, phase = self._load, self._phase()
        assert load is not None
        self._under_way[channel] = None
        start_us, began = self._clock.wall_us(), self._clock.now()
        try:
            answer = await self._registry.connect(client, channel)
        except RaftkvError as error:
            answer = Answer(outcome_of(error))
        taken_over = self._under_way.pop(channel)
        duration_us = _us(self._clock.now() - began)
        self._row(
            load, phase, "connect", client, start_us, duration_us, answer.outcome,
            attempt=answer.attempts, session_present=answer.present, expected_present=expected,
            index=answer.index,
        )  # fmt: skip
        if answer.seat is not None:
            self._seats[channel] = answer.seat
        if taken_over is not None:
            self._spawn(self._end(taken_over))
        return answer

    async def _remove(self, seat: Seat) -> str:
        load, phase = self._load, self._phase()
        assert load is not None
        start_us, began = self._clock.wall_us(), self._clock.now()
        try:
            await self._registry.disconnect(seat)
            outcome = "ok"
        except RaftkvError as error:
            outcome = outcome_of(error)
        duration_us = _us(self._clock.now() - began)
        self._row(load, phase, "disconnect", seat.client, start_us, duration_us, outcome)
        return outcome

    def _took_over(self, answer: Answer) -> None:
        old = answer.predecessor
        if old is not None and old.node in self._mesh.drivers:
            self._send(old.node, Goodbye(old))

    # ---- small things -----------------------------------------------------------------------

    def _row(
        self, load: Load, phase: str, op: str, client: str, start_us: int, duration_us: int,
        outcome: str, *, attempt: int = 1, session_present: bool | None = None,
        expected_present: bool | None = None, index: int | None = None,
    ) -> None:  # fmt: skip
        place = self._place
        row = Row(
            place.run, place.layout, load.scenario, phase, load.registry, place.node,
            place.role(), op, client, attempt, start_us, duration_us, outcome,
            session_present, expected_present, index,
        )  # fmt: skip
        self._sink(row)

    def _name(self) -> str:
        assert self._load is not None
        load = self._load
        return f"{load.registry}-{load.scenario}-{self._loads}-{self._place.node}"

    def _new_channel(self) -> str:
        self._channels += 1
        return f"{self._place.node}.{self._channels}"

    def _phase(self) -> str:
        assert self._load is not None
        elapsed_s = self._clock.now() - self._began
        if elapsed_s < self._load.warmup_s:
            return "warmup"
        return "load" if elapsed_s < self._load.warmup_s + self._load.seconds else "quiesce"

    async def _may_go_on(self) -> bool:
        """Waits for the rate's next slot. False when the load is over."""
        load = self._load
        assert load is not None
        if load.rate_per_s > 0:
            wait_s = self._next_start - self._clock.now()
            self._next_start = max(self._next_start, self._clock.now()) + 1 / load.rate_per_s
            if wait_s > 0:
                await self._clock.sleep(wait_s)
        self._connects += 1
        if 0 < load.connects_max < self._connects:
            return False
        return self._phase() != "quiesce"

    async def _rest_after(self, outcome: str) -> None:
        if outcome in ERRORS or outcome.startswith("error:"):
            await self._clock.sleep(BACK_OFF_S)

    def _send(self, driver: str, message: Baton | Goodbye) -> None:
        self._sent += 1
        self._mesh.send(driver, message)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._faults.append(f"{self._place.node}: {type(error).__name__}: {error}")


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1_000_000))

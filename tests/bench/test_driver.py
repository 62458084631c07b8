"""The driver against registries in memory: an honest one gets no anomaly, each fault is caught.

Time is a counter that the fakes move on, so every load has the same operations each time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence

import pytest

from bench.coordinator import truth_of
from bench.registries import Answer, Seat
from bench.scenarios import Baton, Collected, Driver, Goodbye, Load, Place, outcome_of, says_goodbye
from bench.schema import Row
from raftkv.errors import NoLeader, Overloaded, RaftkvError, Timeout, TooLarge

DRIVERS = ("r1", "r2", "r3")


class CountingClock:
    """Each look takes 50 microseconds, so that time passes with work and with nothing else."""

    def __init__(self) -> None:
        self.us = 1_000_000

    def now(self) -> float:
        self.us += 50
        return self.us / 1e6

    def wall_us(self) -> int:
        return self.us

    async def sleep(self, seconds: float) -> None:
        until = self.now() + seconds
        while self.now() < until:
            await asyncio.sleep(0)


class Truthful:
    """What a linearizable registry is: one table, one owner, all nodes look at it."""

    def __init__(self) -> None:
        self.owner: dict[str, Seat] = {}
        self.version = 0

    async def connect(self, node: str, client: str, channel: str) -> Answer:
        await asyncio.sleep(0)
        self.version += 1
        before = self.before(node, client)
        seat = Seat(client, channel, node, self.version)
        self.owner[client] = seat
        await asyncio.sleep(0)
        return Answer("ok", 1, before is not None, seat, before, self.version)

    def before(self, node: str, client: str) -> Seat | None:
        return self.owner.get(client)

    async def disconnect(self, seat: Seat) -> None:
        await asyncio.sleep(0)
        if self.owner.get(seat.client) == seat:
            del self.owner[seat.client]

    def registered(self, node: str, client: str) -> Collection[str]:
        return [self.owner[client].channel] if client in self.owner else []

    def discarded(self, seat: Seat) -> bool:
        return False


class Blind(Truthful):
    """Every fifth look misses the session that is there: replication lags."""

    looks = 0

    def before(self, node: str, client: str) -> Seat | None:
        self.looks += 1
        return None if self.looks % 5 == 0 else super().before(node, client)


class Overrunning(Truthful):
    """A late deletion removes whatever is registered, not its own row."""

    async def disconnect(self, seat: Seat) -> None:
        await asyncio.sleep(0)
        self.owner.pop(seat.client, None)


class Leaking(Truthful):
    """Deletions are lost."""

    async def disconnect(self, seat: Seat) -> None:
        await asyncio.sleep(0)


class Backward(Truthful):
    """Shows the channel before the last one: an older write arrived later."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, Seat] = {}

    async def connect(self, node: str, client: str, channel: str) -> Answer:
        before = self.owner.get(client)
        answer = await super().connect(node, client, channel)
        if before is not None:
            self.last[client] = before
        return answer

    def registered(self, node: str, client: str) -> Collection[str]:
        if node == "r2" and client in self.last and client in self.owner:
            return [self.last[client].channel]
        return super().registered(node, client)


class Discarding(Blind):
    """Blind, but it ends surplus channels by itself, as the old registry does when it sees them."""

    def discarded(self, seat: Seat) -> bool:
        return self.owner.get(seat.client) != seat


class Failing(Truthful):
    """Some connects time out: half of them were applied, and nobody knows which."""

    async def connect(self, node: str, client: str, channel: str) -> Answer:
        answer = await super().connect(node, client, channel)
        if self.version % 7 == 0:
            if self.version % 2 == 0:
                self.owner.pop(client)
                if answer.predecessor is not None:
                    self.owner[client] = answer.predecessor
            raise Timeout("no answer", session=1, seq=self.version)
        if self.version % 11 == 0:
            self.owner.pop(client)
            if answer.predecessor is not None:
                self.owner[client] = answer.predecessor
            raise NoLeader("none")
        return answer


class OneNode:
    """A `Registry` as one driver sees it."""

    def __init__(self, shared: Truthful, node: str) -> None:
        self.shared = shared
        self.node = node

    async def connect(self, client: str, channel: str) -> Answer:
        return await self.shared.connect(self.node, client, channel)

    async def disconnect(self, seat: Seat) -> None:
        await self.shared.disconnect(seat)

    def registered(self, client: str) -> Collection[str]:
        return self.shared.registered(self.node, client)

    def holds(self, seat: Seat) -> bool:
        return True

    def discarded(self, seat: Seat) -> bool:
        return self.shared.discarded(seat)


class Post:
    """The drivers' mesh in memory."""

    def __init__(self, drivers: Sequence[str] = DRIVERS) -> None:
        self.drivers = drivers
        self.boxes: dict[str, Callable[[Baton | Goodbye], None]] = {}
        self.waiting: deque[tuple[str, Baton | Goodbye]] = deque()

    def send(self, driver: str, message: Baton | Goodbye) -> None:
        asyncio.get_running_loop().call_soon(self.boxes[driver], message)


class Played:
    """All rows of one load, and what the audits found."""

    def __init__(self, rows: list[Row], collected: list[Collected]) -> None:
        self.rows = rows
        self.collected = collected

    def of(self, op: str) -> list[Row]:
        return [row for row in self.rows if row.op == op]

    @property
    def wrong_present(self) -> int:
        return sum(
            row.session_present != row.expected_present
            for row in self.of("connect")
            if row.session_present is not None and row.expected_present is not None
        )

    @property
    def findings(self) -> set[str]:
        return {row.outcome for row in self.of("audit")}


def play(
    shared: Truthful, scenario: str, drivers: Sequence[str] = DRIVERS, **options: float
) -> Played:
    return asyncio.run(_play(shared, scenario, drivers, options))


async def _play(
    shared: Truthful, scenario: str, names: Sequence[str], options: dict[str, float]
) -> Played:
    rows: list[Row] = []
    clock, post = CountingClock(), Post(names)
    drivers = []
    for name in names:
        place = Place("run", "3+3", name, lambda: "replicant")
        driver = Driver(place, {"lcr": OneNode(shared, name)}, post, clock, rows.append)
        post.boxes[name] = driver.receive
        drivers.append(driver)
    load = Load(scenario=scenario, registry="lcr", clients=4, seconds=0.5, **options)
    for driver in drivers:
        driver.start(load)
    for driver in drivers:
        driver.play()
    while True:
        await asyncio.sleep(0)
        states = [driver.collect(final=False) for driver in drivers]
        at_rest = sum(state.busy for state in states) == 0
        if at_rest and sum(s.sent for s in states) == sum(s.received for s in states):
            break
    collected = [driver.collect(final=True) for driver in drivers]
    assert not any(state.faults for state in collected)
    for driver in drivers:
        await driver.audit(load, truth_of(collected))
    return Played(rows, collected)


@pytest.mark.parametrize("scenario", ["initial", "reconnect", "same_client"])
@pytest.mark.parametrize("registry", [Truthful, Failing])
def test_an_honest_registry_is_never_accused(registry: type[Truthful], scenario: str) -> None:
    played = play(registry(), scenario)
    assert len(played.of("connect")) > 100
    assert played.findings == {"ok"}
    assert played.wrong_present == 0


@pytest.mark.parametrize(
    ("registry", "scenario", "finding"),
    [
        (Blind, "reconnect", "duplicate_session"),
        (Blind, "same_client", "duplicate_session"),
        (Overrunning, "reconnect", "lost_registration"),
        (Leaking, "initial", "leaked_registration"),
        (Backward, "reconnect", "wrong_owner"),
    ],
)
def test_every_fault_is_caught(registry: type[Truthful], scenario: str, finding: str) -> None:
    assert finding in play(registry(), scenario).findings


def test_a_missed_session_is_a_wrong_answer_to_its_client() -> None:
    assert play(Blind(), "reconnect").wrong_present > 0


def test_channels_that_the_registry_ended_are_no_live_sessions() -> None:
    assert play(Discarding(), "reconnect").findings == {"ok"}


def test_every_client_of_reconnect_comes_back_through_the_next_driver() -> None:
    played = play(Truthful(), "reconnect")
    nodes: dict[str, list[str]] = {}
    for row in played.of("connect"):
        nodes.setdefault(row.client, []).append(row.node)
    assert len(nodes) == 4 * len(DRIVERS)
    for path in nodes.values():
        following = [DRIVERS[(DRIVERS.index(node) + 1) % 3] for node in path]
        assert path[1:] == following[:-1]
        assert len(path) > 8


def test_first_connects_expect_no_session_and_later_ones_do() -> None:
    played = play(Truthful(), "reconnect")
    seen: dict[str, int] = {}
    for row in played.of("connect"):
        before = seen.get(row.client, 0)
        # A goodbye ends the session.
        after_goodbye = before == 0 or says_goodbye(row.client, before)
        assert row.expected_present is not after_goodbye
        seen[row.client] = before + 1


def test_a_race_expects_nothing_of_a_single_answer() -> None:
    played = play(Truthful(), "same_client")
    assert {row.expected_present for row in played.of("connect")} == {None}
    assert {row.client for row in played.of("connect")} == {"lcr-same-1"}


def test_one_driver_hands_its_clients_to_itself() -> None:
    played = play(Truthful(), "reconnect", ("c1",))
    assert played.findings == {"ok"}
    assert {row.node for row in played.rows} == {"c1"}


@pytest.mark.parametrize("scenario", ["lagging", "leader_dies"])
def test_what_happens_to_the_cluster_is_not_the_driver_s_part(scenario: str) -> None:
    played = play(Truthful(), scenario)
    assert played.findings == {"ok"}
    clients = {row.client for row in played.of("connect")}
    assert len(clients) == 4 * len(DRIVERS)
    assert len({row.node for row in played.of("connect")}) == len(DRIVERS)


def test_phases_follow_the_clock() -> None:
    played = play(Truthful(), "initial", warmup_s=0.1)
    phases = [row.phase for row in played.of("connect")]
    assert phases == sorted(phases, key=("warmup", "load", "quiesce").index)
    assert {"warmup", "load"} <= set(phases)
    assert all(row.phase == "audit" for row in played.of("audit"))


def test_a_rate_limits_each_driver() -> None:
    played = play(Truthful(), "initial", rate_per_s=40)
    # Half a second at 40 per second and driver, and one start that need not wait.
    assert 3 * 18 <= len(played.of("connect")) <= 3 * 22


def test_a_load_can_be_limited_by_its_connects() -> None:
    for scenario in ("initial", "reconnect", "same_client"):
        played = play(Truthful(), scenario, connects_max=20)
        assert len(played.of("connect")) == 20 * len(DRIVERS), scenario
        assert played.findings == {"ok"}


def test_rows_hold_the_answer() -> None:
    row = play(Truthful(), "initial").of("connect")[0]
    assert (row.run, row.layout, row.scenario, row.registry) == ("run", "3+3", "initial", "lcr")
    assert (row.role, row.outcome, row.attempt) == ("replicant", "ok", 1)
    assert row.session_present is False
    assert row.expected_present is False
    assert row.index is not None
    assert row.duration_us > 0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Timeout("x"), "timeout"),
        (NoLeader("x"), "no_leader"),
        (Overloaded("x"), "overloaded"),
        (TooLarge("x"), "error:too_large"),
    ],
)
def test_errors_have_the_words_of_the_log(error: RaftkvError, outcome: str) -> None:
    assert outcome_of(error) == outcome

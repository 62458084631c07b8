"""Programs and the end of a storm of regions: what they judge, and what operators leave behind.

The ledger and the sets are the storm's own, made by hand; nodes and their consumers are fakes.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from raftkv_subscriptions.testing.storm_ledger import Ledger, Number, SubBook
from raftkv_subscriptions.testing.storm_operators import Operators
from raftkv_subscriptions.testing.storm_plan import draw
from raftkv_subscriptions.testing.storm_programs import Movers
from raftkv_subscriptions.testing.storm_sets import lacking

PLAN = draw(1, 1.0)


class FakeStorm:
    """What programs have of a storm: every node answers at once."""

    final_mode = "vector"

    def __init__(self) -> None:
        self.plan = PLAN
        self.marks: Counter[str] = Counter()
        self.ledger = Ledger()
        self.calls: dict[int, Any] = {}
        self.calls_made = 0
        self.consuming: list[Any] = []
        self.found: list[str] = []
        self.world = SimpleNamespace(loop=SimpleNamespace(now=0.0), call=self._call)
        self.seats: dict[str, Any] = {}

    async def _call(self, name: str, work: Coroutine[Any, Any, Any]) -> Any:
        return await work

    def is_seated(self, seat: Any) -> bool:
        return True

    def any_seat(self, rng: random.Random, region: str = "") -> Any:
        return self.seats[region]

    def violated(self, check: str, found: Sequence[str]) -> None:
        self.found += [check] if found else []


class FakeConsumer:
    """It hands out one message, once."""

    topic, sub, kind = "plain", "mv0", "failover"

    def __init__(self, message: Any) -> None:
        self._left = [message]

    async def receive(self, count: int, **more: Any) -> tuple[Any, ...]:
        return (self._left.pop(),) if self._left else ()

    async def ack(self, *messages: Any, timeout_s: float) -> int:
        return 0

    async def close(self, *, timeout_s: float) -> None:
        pass


def book(region: str, acked: set[Number], ranges: int = 0, **more: Any) -> SubBook:
    row = SimpleNamespace(epoch=1, ranges=ranges)
    made = SubBook(region, 1, "plain", "mv0", row, acked=acked, **more)
    made.since = dict.fromkeys(acked, 1)
    return made


# --- movers ---------------------------------------------------------------------------------------


def moved(monkeypatch: pytest.MonkeyPatch, applied: int, merged_at: int, *, early: bool) -> Any:
    """What a mover finds wrong that is handed ("a", 8) by a node that has applied so many entries.

    A merge brought it into the set, before the consumer was opened or (not `early`) since.
    """
    storm: Any = FakeStorm()
    sub = storm.ledger.living["b", "plain", "mv0"] = book("b", set())
    movers = Movers(storm)
    monkeypatch.setattr(movers, "look", lambda seat, consumer, got: None)

    def merged() -> None:
        sub.acked.add(("a", 8))
        sub.since["a", 8] = merged_at

    async def opening() -> FakeConsumer:
        if not early:
            merged()
        # Of an older epoch: whether the log has the acknowledgement is not asked.
        return FakeConsumer(SimpleNamespace(origin="a", seq=8, position=3, epoch=0))

    if early:
        merged()
    host = SimpleNamespace(view=lambda: SimpleNamespace(index=applied))
    api = SimpleNamespace(consumer=lambda *names, **more: opening())
    seat: Any = SimpleNamespace(region="b", name="b-core3", host=host, api=api)
    asyncio.run(movers.consume(seat, "mv0", "failover", random.Random(1)))
    return storm.found


def test_what_the_copy_of_a_node_has_not_heard_of_may_be_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert moved(monkeypatch, applied=209, merged_at=210, early=False) == []


def test_what_the_copy_of_a_node_has_as_acknowledged_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = "nothing comes twice after a move"
    assert moved(monkeypatch, applied=210, merged_at=210, early=False) == [check]
    # It was in the log before the consumer was, which its node has applied.
    assert moved(monkeypatch, applied=209, merged_at=210, early=True) == [check]


# --- what arrives ---------------------------------------------------------------------------------


def test_what_a_full_set_has_no_room_for_need_not_arrive() -> None:
    source = book("a", {("a", 1), ("a", 5), ("a", 7), ("a", 8)})
    target = book("b", {("a", 1), ("a", 5)}, ranges=1)
    assert lacking(source, target, 2) == {("a", 7), ("a", 8)}
    assert lacking(source, target, 1) == set()


@pytest.mark.parametrize("run", [{4}, {6}, {6, 7, 8}, {2, 3, 4}, {2}])
def test_what_touches_a_full_set_arrives(run: set[int]) -> None:
    numbers = {("a", seq) for seq in run}
    target = book("b", {("a", 1), ("a", 5)}, ranges=1)
    assert lacking(book("a", {("a", 5), *numbers}), target, 1) == numbers


def test_what_lies_behind_a_base_arrives_and_what_was_sought_over_does_not() -> None:
    source = book("a", {("a", 3), ("b", 2), ("b", 4)})
    target = book("b", set(), ranges=1, base={"a": 2}, mask={"b": 3})
    assert lacking(source, target, 1) == {("a", 3)}
    assert lacking(source, target, 2) == {("a", 3), ("b", 4)}


# --- operators ------------------------------------------------------------------------------------


def test_operators_leave_every_topic_with_the_limits_of_the_plan() -> None:
    storm: Any = FakeStorm()
    declared: dict[tuple[str, str], dict[str, Any]] = {}

    def seat_of(region: str) -> Any:
        async def declare(name: str, **limits: Any) -> None:
            declared[region, name] = limits

        async def anything(*given: Any, **named: Any) -> None:
            pass

        api = SimpleNamespace(declare=declare, add_region=anything, set_replicate=anything)
        host = SimpleNamespace(set_setting=anything)
        return SimpleNamespace(region=region, name=f"{region}-core1", api=api, host=host)

    storm.seats = {region: seat_of(region) for region in PLAN.regions}
    asyncio.run(Operators(storm).finish())
    assert set(declared) == {(r, topic.name) for r in PLAN.regions for topic in PLAN.topics}
    for (_, name), limits in declared.items():
        [plan] = [topic for topic in PLAN.topics if topic.name == name]
        assert limits["change"]
        assert limits["backlog_bytes_max"] == plan.backlog_bytes_max
        assert limits["retention_bytes"] == plan.retention_bytes

"""The parts of a load of subscriptions, against a fake of the plugin's API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from bench.clock import OsClock
from bench.plan import Plan
from bench.run_options import parser, plan_of
from bench.subscriptions import (
    Following,
    Sample,
    SubscriptionsLoad,
    Takeover,
    Trace,
    moves_of,
    topic_of,
)
from raftkv.errors import NoLeader, OutcomeUnknown


class FakeMessage:
    def __init__(self, seq: int) -> None:
        self.seq = seq


class FakeConsumer:
    """Gives what is published from the seq after the mark on, and keeps the mark."""

    def __init__(self, api: FakeApi) -> None:
        self._api = api
        self._next = api.mark + 1

    async def __aenter__(self) -> FakeConsumer:
        self._api.consumers += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._api.consumers -= 1

    async def receive(self, count: int, wait_s: float) -> tuple[FakeMessage, ...]:
        if self._next > self._api.published:
            await asyncio.sleep(0)
        last = min(self._api.published, self._next + count - 1)
        got = tuple(FakeMessage(seq) for seq in range(self._next, last + 1))
        self._next = last + 1
        return got

    async def ack_to(self, message: FakeMessage) -> None:
        # It takes its time: whoever ends the consumer meanwhile loses the acknowledgement.
        for _ in range(20):
            await asyncio.sleep(0)
        self._api.mark = message.seq
        if self._api.loses_acks:
            raise OutcomeUnknown("the answer was lost")


class FakeApi:
    def __init__(self) -> None:
        self.published = 0
        self.mark = 0
        self.consumers = 0
        self.batches: list[int] = []
        self.fails = 0
        self.loses = 0
        self.loses_acks = False

    async def publish(self, topic: str, messages: Any, *, timeout_s: float = 5.0) -> Any:
        assert topic == topic_of(3)
        await asyncio.sleep(0)
        if self.fails:
            self.fails -= 1
            raise NoLeader("nobody leads")
        first = self.published + 1
        self.published += len(messages)
        self.batches.append(len(messages))
        if self.loses:
            self.loses -= 1
            raise OutcomeUnknown("the answer was lost")
        return SimpleNamespace(first=first, last=self.published, origin="a", seq=first)

    async def consumer(self, topic: str, name: str, **_more: Any) -> Any:
        assert (topic, name) == (topic_of(3), "bench")
        return FakeConsumer(self)


def load(rate_per_s: float) -> SubscriptionsLoad:
    return SubscriptionsLoad(
        load="subscriptions-3", number=3, rate_per_s=rate_per_s, value_bytes=10, timeout_s=1.0
    )


def test_all_that_was_acknowledged_is_sampled_and_counted() -> None:
    async def main() -> None:
        api = FakeApi()
        following = Following(api, load(20_000.0), OsClock())
        await following.start()
        while api.mark < 500:
            await asyncio.sleep(0.001)
        await following.stop_consumer()
        stopped = following.followed
        assert api.consumers == 0
        while api.published <= stopped.acked:
            await asyncio.sleep(0.001)
        ended = await following.stop_publisher()
        assert ended.published == api.published == sum(api.batches)
        assert max(api.batches) <= 500
        assert stopped.acked == api.mark == stopped.samples[-1].seq
        seqs = [sample.seq for sample in stopped.samples]
        assert seqs == sorted(set(seqs))
        assert all(sample.began <= sample.ended for sample in stopped.samples)
        assert stopped.errors == {}

    asyncio.run(asyncio.wait_for(main(), 20))


def test_what_failed_is_published_later_and_its_error_is_told() -> None:
    async def main() -> None:
        api = FakeApi()
        api.fails = 2
        following = Following(api, load(1_000.0), OsClock())
        await following.start()
        while api.mark < 5:
            await asyncio.sleep(0.001)
        await following.stop_consumer()
        ended = await following.stop_publisher()
        assert ended.errors == {"no_leader": 2}
        assert ended.published == api.published

    asyncio.run(asyncio.wait_for(main(), 20))


def test_what_was_published_and_acknowledged_without_an_answer_is_known() -> None:
    """Messages of a lost answer are there, with seqs of their own; so may acknowledgements be."""

    async def main() -> None:
        api = FakeApi()
        api.loses, api.loses_acks = 1, True
        following = Following(api, load(1_000.0), OsClock())
        await following.start()
        while api.mark < 20:
            await asyncio.sleep(0.001)
        await following.stop_consumer()
        ended = await following.stop_publisher()
        assert ended.published == api.published
        assert (ended.acked, ended.asked) == (0, api.mark)
        assert ended.errors["outcome_unknown"] >= 2

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_takeover_ends_with_the_last_message_or_when_none_comes() -> None:
    async def main() -> None:
        api = FakeApi()
        api.published, api.mark = 700, 40
        takeover = Takeover(api, 3)
        await takeover.start()
        took = await takeover.finish(upto=700, idle_s=10.0, timeout_s=10.0)
        assert took.seqs == tuple(range(41, 701))
        assert api.mark == 700
        again = Takeover(api, 3)
        await again.start()
        assert (await again.finish(upto=0, idle_s=0.05, timeout_s=10.0)).seqs == ()
        assert api.consumers == 0

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_trace_notes_only_what_moved() -> None:
    listeners: list[Callable[[int, Sequence[Any]], None]] = []
    ended: list[bool] = []
    floors = iter([0, 3, 3, 8])

    def listen(callback: Callable[[int, Sequence[Any]], None]) -> Callable[[], None]:
        listeners.append(callback)
        return lambda: ended.append(True)

    trace = Trace(listen, lambda: next(floors), OsClock())
    for index in range(4):
        listeners[0](index, ())
    moves = trace.close().moves
    assert [seq for _, seq in moves] == [3, 8]
    assert moves[0][0] <= moves[1][0]
    assert ended == [True]


def test_an_acknowledgement_is_covered_by_the_first_move_that_reaches_it() -> None:
    samples = [Sample(1, 10.0, 10.1), Sample(5, 11.0, 11.1), Sample(6, 12.0, 12.1)]
    moves = [(10.5, 1), (11.25, 5)]
    assert [took for _, took in moves_of(samples, moves)] == [0.5, 0.25, None]
    # One move may cover several, and clocks may differ by a little.
    assert [took for _, took in moves_of(samples, [(9.9, 6)])] == [0.0, 0.0, 0.0]


def planned(*arguments: str) -> Plan:
    return plan_of(parser().parse_args(["--out", "x", *arguments]))


def test_the_plan_has_every_mode_rate_and_distance_but_no_distance_without_replication() -> None:
    plan = planned("--scenario", "subscriptions", "--seconds", "4")
    loads = plan.subscription_loads()
    assert len(loads) == 3 + 2 * 3 * 3
    assert {(each.mode, each.delay_ms) for each in loads if each.mode == "off"} == {("off", 0.0)}
    assert {each.seconds for each in loads if each.rate_per_s == 1.0} == {10.0}
    assert {each.seconds for each in loads if each.rate_per_s == 100.0} == {4.0}
    few = planned("--scenario", "subscriptions", "--message-rate", "7", "--delay-ms", "20")
    assert [(e.mode, e.rate_per_s, e.delay_ms) for e in few.subscription_loads()] == [
        ("off", 7.0, 0.0), ("vector", 7.0, 20.0), ("snapshot", 7.0, 20.0),
    ]  # fmt: skip


def test_they_are_not_part_of_everything() -> None:
    assert planned("--scenario", "all").subscription_loads() == []


@pytest.mark.parametrize("delay_ms", [0.0, 150.0])
def test_what_is_late_is_longer_than_two_periods_and_a_round(delay_ms: float) -> None:
    plan = planned("--scenario", "subscriptions", "--delay-ms", str(delay_ms))
    run = plan.subscription_loads()[-1]
    assert run.late_s >= 2.0 + 4 * delay_ms / 1000

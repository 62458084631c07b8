"""Loads of subscriptions in two regions, one after the other: the coordinator of
`bench.subscriptions`.

Each region is a cluster of its own, and between the two there is a distance: a proxy before every
node's door, which holds back each byte for so long, in each direction. Both clusters run on this
machine, so their clocks are one.

Each load goes the same way. The first region, `a`, gets a topic with a subscription; its publisher
and its consumer run, and in `b` the cursor is watched. The consumer stops while messages still come
and one in `b` takes over at once: what it gets again, though it had been acknowledged in `a`, are
the duplicates of a move. When it has got everything, and both regions have come to rest, a consumer
goes back to `a`: what that one gets again are the duplicates of a move at rest.

An acknowledgement counts for the time of moves if it was given early enough before the takeover for
its cursor to have moved in any mode; one that has not moved by then never did.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from bench.clock import OsClock
from bench.control import (
    AskCursor,
    AwaitTakeover,
    Cursor,
    Done,
    DropTopic,
    MakeTopic,
    State,
    StopConsumer,
    StopPublisher,
    TakeOver,
    WatchCursor,
)
from bench.coordinator import Result, wait_for_leader
from bench.facts import SubscriptionFacts, write_subscription_facts
from bench.layouts import Cluster, Layout
from bench.live import Tally
from bench.schema import SUBSCRIPTION_MODES, SUBSCRIPTION_SCENARIO, Row, RowWriter
from bench.subscriptions import (
    Followed,
    Moves,
    Sample,
    SubscriptionsLoad,
    Took,
    moves_of,
)

if TYPE_CHECKING:
    from raftkv.testing.distance import Distance

__all__ = ["Regions", "SubscriptionsRun", "SubscriptionsTest", "play_subscriptions", "warm_up"]

TIMEOUT_S = 10.0
"""Of one publication: thousands of times what it takes."""

PERIOD_MS = 1000
"""Between two snapshots: the plugin's default."""

OVERLAP_S = 0.5
"""Messages still come for so long after the consumer has left."""

IDLE_S = 1.0
"""A consumer that went back and gets nothing for so long will get nothing."""

REST_S = 30.0

WARM_UP_RATE_PER_S = 1_000.0
WARM_UP_S = 2.0
STEPS: tuple[Literal["withdraw", "delete"], ...] = ("withdraw", "delete")
LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class SubscriptionsRun:
    """One load; the words are those of `bench.schema`."""

    mode: str
    rate_per_s: float
    delay_ms: float
    seconds: float
    value_bytes: int

    @property
    def title(self) -> str:
        return (
            f"subscriptions, {SUBSCRIPTION_MODES[self.mode]}, {self.rate_per_s:,.0f}/s, "
            f"{self.delay_ms:.0f} ms away"
        )

    @property
    def late_s(self) -> float:
        """A cursor that has not moved that long after an acknowledgement will not move by it:
        two periods, and the two round trips of a snapshot."""
        return 2 * PERIOD_MS / 1000 + 5 * self.delay_ms / 1000 + 0.5


@dataclass
class SubscriptionsTest:
    """What the loads of one pair of regions have in common."""

    out: Path
    show: Callable[[str], None]
    loads: int = 0


@dataclass
class Regions:
    """Two clusters with a distance between them: an async context in which they run."""

    layout: Layout
    out: Path
    run: str
    fsync: Literal["on", "off"]
    a: Cluster = field(init=False)
    b: Cluster = field(init=False)

    def __post_init__(self) -> None:
        self.a, self.b = (
            Cluster(self.layout, self.out, self.run, region=name, fsync=self.fsync)
            for name in ("a", "b")
        )
        self._stack = AsyncExitStack()
        self._ways: list[Distance] = []

    async def __aenter__(self) -> Regions:
        try:
            for near, far in ((self.a, self.b), (self.b, self.a)):
                near.link_to(far.region, [await self._way_to(*door) for door in far.doors])
            await self._stack.enter_async_context(self.a)
            await self._stack.enter_async_context(self.b)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def _way_to(self, host: str, port: int) -> str:
        # Here, because `bench compare` runs the other loads on revisions without it.
        from raftkv.testing.distance import Distance

        way = Distance(host, port)
        await way.start()
        self._stack.push_async_callback(way.close)
        self._ways.append(way)
        return f"http://127.0.0.1:{way.port}"

    def move_apart(self, delay_ms: float) -> None:
        for way in self._ways:
            way.delay_s = delay_ms / 1000

    async def leaders(self) -> tuple[str, str]:
        (a, _), (b, _) = await asyncio.gather(wait_for_leader(self.a), wait_for_leader(self.b))
        return a, b

    async def counts(self) -> _Counts:
        a, b = await asyncio.gather(self.a.states(), self.b.states())
        return _Counts(time.monotonic(), a, b, sum(way.passed for way in self._ways))


@dataclass(frozen=True)
class _Counts:
    """What both regions had done at one moment."""

    at: float
    a: dict[str, State]
    b: dict[str, State]
    link_bytes: int


@dataclass(frozen=True)
class _Seen:
    """What a load showed."""

    stopped: Followed
    ended: Followed
    left_at: float
    counted: _Counts
    moves: Moves
    there: Took
    back: Took


async def play_subscriptions(
    regions: Regions, run: SubscriptionsRun, test: SubscriptionsTest, writer: RowWriter
) -> Result:
    """One load, its rows and its facts. Raises WorkerFailed."""
    load, leaders = await _made(regions, run, test)
    before, began_us = await regions.counts(), OsClock().wall_us()
    if run.mode == "off":
        seen = await _alone(regions, leaders, load, run, test)
    else:
        seen = await _moving(regions, leaders, load, run, test)
    write_subscription_facts(test.out, _facts(regions, run, load, began_us, seen, before))
    wall_us = began_us - round(before.at * 1e6)
    tally = _write_rows(writer, regions, run, load, seen, wall_us, leaders[1])
    writer.flush()
    await _dropped(regions, leaders, load)
    return Result(
        regions.layout.name, SUBSCRIPTION_SCENARIO, SUBSCRIPTION_MODES[run.mode],
        f"{run.delay_ms:.0f} ms away", round(run.rate_per_s), run.seconds, tally,
    )  # fmt: skip


async def warm_up(regions: Regions, value_bytes: int, test: SubscriptionsTest) -> None:
    """A load that nobody counts: else the first one, to which others are compared, would pay for
    links and caches that are new. Raises WorkerFailed."""
    run = SubscriptionsRun("vector", WARM_UP_RATE_PER_S, 0.0, WARM_UP_S, value_bytes)
    load, leaders = await _made(regions, run, test)
    await regions.a.ask(leaders[0], load, Done)
    await _wait(run, run.seconds, test)
    await regions.a.ask(leaders[0], StopConsumer(), Followed)
    await regions.a.ask(leaders[0], StopPublisher(), Followed)
    await _dropped(regions, leaders, load)


async def _made(
    regions: Regions, run: SubscriptionsRun, test: SubscriptionsTest
) -> tuple[SubscriptionsLoad, tuple[str, str]]:
    """The load with its topic, and the leaders."""
    test.loads += 1
    load = SubscriptionsLoad(
        load=f"subscriptions-{test.loads}", number=test.loads, rate_per_s=run.rate_per_s,
        value_bytes=run.value_bytes, timeout_s=TIMEOUT_S,
    )  # fmt: skip
    regions.move_apart(run.delay_ms)
    leaders = await regions.leaders()
    for cluster, leader, first in zip((regions.a, regions.b), leaders, (True, False), strict=True):
        await cluster.ask(leader, MakeTopic(load.number, run.mode, first), Done)
    return load, leaders


async def _dropped(regions: Regions, leaders: tuple[str, str], load: SubscriptionsLoad) -> None:
    """In two steps: as long as it is replicated, one region gives it back to the other."""
    for step in STEPS:
        for cluster, leader in zip((regions.a, regions.b), leaders, strict=True):
            await cluster.ask(leader, DropTopic(load.number, step), Done)


async def _alone(
    regions: Regions,
    leaders: tuple[str, str],
    load: SubscriptionsLoad,
    run: SubscriptionsRun,
    test: SubscriptionsTest,
) -> _Seen:
    """Not replicated: what the same load costs without it. The messages go to `b` all the same."""
    a, _ = leaders
    await regions.a.ask(a, load, Done)
    await _wait(run, run.seconds + run.late_s, test)
    stopped = await regions.a.ask(a, StopConsumer(), Followed)
    counted = await regions.counts()
    ended = await regions.a.ask(a, StopPublisher(), Followed)
    return _Seen(stopped, ended, counted.at, counted, Moves(()), Took(()), Took(()))


async def _moving(
    regions: Regions,
    leaders: tuple[str, str],
    load: SubscriptionsLoad,
    run: SubscriptionsRun,
    test: SubscriptionsTest,
) -> _Seen:
    """The consumer moves to `b` while messages come, and back when there are none."""
    a, b = leaders
    await regions.b.ask(b, WatchCursor(load.number, regions.a.region), Done)
    await regions.a.ask(a, load, Done)
    await _wait(run, run.seconds + run.late_s, test)
    stopped = await regions.a.ask(a, StopConsumer(), Followed)
    left_at = time.monotonic()
    moves, counted = await asyncio.gather(
        regions.b.ask(b, TakeOver(load.number), Moves), regions.counts()
    )
    await asyncio.sleep(OVERLAP_S)
    ended = await regions.a.ask(a, StopPublisher(), Followed)
    test.show(f"{run.title}: {ended.published:,} published, the other region consumes")
    end = AwaitTakeover(ended.published, REST_S, 2 * REST_S)
    there = await regions.b.ask(b, end, Took)
    await _rest(regions, a, load, run, ended.published)
    await regions.a.ask(a, TakeOver(load.number), Moves)
    back = await regions.a.ask(a, AwaitTakeover(0, IDLE_S, REST_S), Took)
    return _Seen(stopped, ended, left_at, counted, moves, there, back)


async def _wait(run: SubscriptionsRun, seconds: float, test: SubscriptionsTest) -> None:
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        test.show(f"{run.title}: {left_s:.0f} s")
        await asyncio.sleep(min(1.0, left_s))


async def _rest(
    regions: Regions, a: str, load: SubscriptionsLoad, run: SubscriptionsRun, upto: int
) -> None:
    """Until the first region knows that everything is acknowledged, or surely will not."""
    until = time.monotonic() + run.late_s
    while time.monotonic() < until:
        cursor = await regions.a.ask(a, AskCursor(load.number, regions.a.region), Cursor)
        if cursor.seq >= upto:
            return
        await asyncio.sleep(LOOK_EVERY_S)


def _write_rows(
    writer: RowWriter,
    regions: Regions,
    run: SubscriptionsRun,
    load: SubscriptionsLoad,
    seen: _Seen,
    wall_us: int,
    node: str,
) -> Tally:
    """A row for each acknowledgement that counts, and one for each kind of message of the move."""
    tally = Tally()

    def add(op: str, start: float, duration_us: int, outcome: str, index: int | None) -> None:
        writer.add(
            Row(
                regions.run, regions.layout.name, SUBSCRIPTION_SCENARIO,
                "load" if op == "moved" else "audit", "none", node, "leader", op,
                regions.b.region, 1, wall_us + round(start * 1e6), duration_us, outcome,
                index=index, load=load.load,
            )
        )  # fmt: skip

    if run.mode == "off":
        return tally
    for sample, took in moves_of(_that_count(seen, run), seen.moves.moves):
        outcome = "never_moved" if took is None else "ok"
        duration_us = round((took or 0.0) * 1e6)
        add("moved", sample.began, duration_us, outcome, sample.seq)
        tally.outcomes[outcome] = tally.outcomes.get(outcome, 0) + 1
        if took is not None:
            tally.add_duration(duration_us)
    acked = seen.stopped.acked
    # What was asked for may be acknowledged, though its answer was lost: it is neither.
    missing = set(range(seen.stopped.asked + 1, seen.ended.published + 1)).difference(
        seen.there.seqs
    )
    counts = {
        "received": len(seen.there.seqs),
        "again": sum(seq <= acked for seq in seen.there.seqs),
        "again_quiesced": len(seen.back.seqs),
        "skipped": len(missing),
    }
    for op, count in counts.items():
        add(op, seen.left_at, 0, "ok", count)
    return tally


def _that_count(seen: _Seen, run: SubscriptionsRun) -> list[Sample]:
    """Not those of the first second, when links and caches were new, nor those given so late."""
    samples = seen.stopped.samples
    if not samples:
        return []
    first = samples[0].began + min(1.0, run.seconds / 4)
    last = seen.left_at - run.late_s
    return [sample for sample in samples if first <= sample.began <= last]


def _facts(
    regions: Regions,
    run: SubscriptionsRun,
    load: SubscriptionsLoad,
    began_us: int,
    seen: _Seen,
    before: _Counts,
) -> SubscriptionFacts:
    after = seen.counted
    far_cpu_s = _cpu(before.b, after.b)
    return SubscriptionFacts(
        run=regions.run,
        layout=regions.layout.name,
        load=load.load,
        scenario=SUBSCRIPTION_SCENARIO,
        mode=run.mode,
        rate_per_s=run.rate_per_s,
        delay_ms=run.delay_ms,
        period_ms=PERIOD_MS,
        began_us=began_us,
        elapsed_s=after.at - before.at,
        published=seen.stopped.published,
        acked=seen.stopped.acked,
        entries=_grown(before.a, after.a, "commit_index"),
        far_entries=_grown(before.b, after.b, "commit_index"),
        commands=_grown(before.a, after.a, "commands_applied"),
        far_commands=_grown(before.b, after.b, "commands_applied"),
        link_bytes=after.link_bytes - before.link_bytes,
        cpu_s=_cpu(before.a, after.a) + far_cpu_s,
        far_cpu_s=far_cpu_s,
        errors=sum(seen.ended.errors.values()),
    )


def _grown(before: dict[str, State], after: dict[str, State], name: str) -> int:
    """Of one log: what its furthest node shows."""
    first, last = (max(int(getattr(each, name)) for each in at.values()) for at in (before, after))
    return last - first


def _cpu(before: dict[str, State], after: dict[str, State]) -> float:
    return sum(after[name].cpu_s - before[name].cpu_s for name in after)

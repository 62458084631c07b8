"""The acceptance scenarios of snapshot mode on real regions, by their numbers: 1 to 5, 9, 14, 15.

The protocol itself, with every order of its markers, is tested on the pure half. Here it runs over
links: answers that come late or again because a connection was made anew, regions that do not
answer, proposals that fail. `history` has every row that became of the snapshot that is being built
("pending") and of the markers.

What is another thing here: the last answer, the snapshot and its entry in the caches are one entry
of the log, so "the snapshot's marker could not be written" (15) is: the entry was not taken.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from raftkv.errors import NotApplied
from raftkv.plugin import ABSENT
from raftkv_subscriptions.commands import SnapshotAnswer, SnapshotAnswered, Update
from raftkv_subscriptions.rows import Pending
from tests.plugins.raftkv_subscriptions.regions import Regions, play, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def pendings(world: Regions, region: str) -> list[Pending]:
    """Everything that a snapshot under way in the region ever was, in order."""
    rows = [change.new for change in world.history[region, "pending"]]
    return [row for row in rows if row is not ABSENT]


def answers_of(row: Pending) -> tuple[object, ...]:
    """What answers change. A report may make another snapshot due (`next`) at any time."""
    return row.id, row.round, row.first, row.second


def markers(world: Regions, region: str, kind: str) -> list[Any]:
    """The markers of that kind that the region ever wrote, in order."""
    rows = [change.new for change in world.history[region, "markers"]]
    return [
        row.what for row in rows if row is not ABSENT and type(row.what).__name__.lower() == kind
    ]


def first_snapshot(world: Regions, region: str) -> tuple[int, Any]:
    """The first one that was ever completed there: its position, and the row."""
    change = world.history[region, "snapshots"][0]
    return change.key[1], change.new


# --- 1, 2: rounds ---------------------------------------------------------------------------------


def test_1_two_regions_take_one_round() -> None:
    """Scenario 1: one request, one answer, one snapshot with the position of each."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.publish("b", "t", 2)
        await world.same("t")
        await world.publish("a", "t", 3)
        await world.same("t")
        # Only now somebody has a use for snapshots.
        await world.subscribe("a", "t", "s")
        assert await world.snapped("a", "t") == 5
        await world.settled()
        [row] = world.snapshots("a", "t").values()
        assert row.positions == (("b", 5),)
        assert [(each.round, each.participants) for each in pendings(world, "a")] == [(1, ("b",))]
        [request] = markers(world, "a", "request")
        assert (request.source, request.round, request.id) == ("a", 1, row.id)
        [answer] = markers(world, "b", "answer")
        assert (answer.id, answer.source, answer.region, answer.position) == (row.id, "a", "b", 5)
        assert (world.meta("a").snapshots, world.meta("a").timed_out) == (1, 0)
        assert world.meta("b").snapshots == 0

    play(body, mode="snapshot")


def test_1_the_position_here_is_that_of_the_answer() -> None:
    """Scenario 1: b's position of then, this region's position of when it had all that b had."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.publish("b", "t", 2)
        await world.same("t")
        answered = asyncio.Event()

        async def late(command: SnapshotAnswered) -> None:
            await answered.wait()

        world["a"].before(SnapshotAnswered, late)
        await world.subscribe("a", "t", "s")
        await until(lambda: markers(world, "b", "answer") != [], "b answers")
        await world.publish("a", "t", 3)
        answered.set()
        await until(lambda: world.meta("a").snapshots >= 1, "the snapshot is complete")
        position, row = first_snapshot(world, "a")
        assert (position, row.positions) == (5, (("b", 2),))
        await world.snapped("a", "t")

    play(body, mode="snapshot")


def test_2_three_regions_take_two_rounds() -> None:
    """Scenario 2: positions of the others are those of round 1; here it is that of the last answer.

    c's second answer is held up while c gets more: its position of round 2 is another one.
    """

    async def body(world: Regions) -> None:
        await world.topic("t")
        for name in "abc":
            await world.publish(name, "t", 2)
            await world.same("t")
        released = asyncio.Event()
        held: list[SnapshotAnswer] = []

        async def late(command: SnapshotAnswer) -> None:
            if command.round == 2:
                held.append(command)
                await released.wait()

        world["c"].before(SnapshotAnswer, late)
        await world.subscribe("a", "t", "s")
        await until(lambda: bool(held), "the second request is in c")
        [first] = {each.first for each in pendings(world, "a") if each.round == 2}
        assert sorted(first) == [("b", 6), ("c", 6)]
        assert world.meta("a").snapshots == 0
        await world.publish("c", "t", 3)
        await world.same("t")
        released.set()
        await until(lambda: world.meta("a").snapshots >= 1, "the snapshot is complete")
        position, row = first_snapshot(world, "a")
        assert (position, row.positions) == (9, (("b", 6), ("c", 6)))
        answers = [each for each in markers(world, "c", "answer") if each.id == row.id]
        assert [(each.round, each.position) for each in answers] == [(1, 6), (2, 9)]
        rounds = [each.round for each in markers(world, "a", "request") if each.id == row.id]
        assert rounds == [1, 2]
        # What came meanwhile is in the next one.
        assert await world.snapped("a", "t") == 9

    play(body, "abc", mode="snapshot")


@pytest.mark.parametrize("round_", [1, 2])
def test_2_answers_that_come_again_do_not_count(round_: int) -> None:
    """Scenario 2: one answer of each region, of the round that is on, whatever else comes.

    c does not answer. b's link is made anew again and again, which brings its answers again; what
    it said, in both rounds, is said again, as by two leaders that both believe to be one.
    """

    async def body(world: Regions) -> None:
        await world.topic("t")
        for name in "abc":
            await world.publish(name, "t", 2)
            await world.same("t")
        released = asyncio.Event()
        seen: list[SnapshotAnswered] = []

        async def silent(command: SnapshotAnswer) -> None:
            if command.round == round_:
                await released.wait()

        async def note(command: SnapshotAnswered) -> None:
            seen.append(command)

        world["c"].before(SnapshotAnswer, silent)
        world["a"].before(SnapshotAnswered, note)
        await world.subscribe("a", "t", "s")

        def answered() -> bool:
            row = world.pending("a", "t")
            return row is not None and (row.first, row.second)[round_ - 1] == (("b", 6),)

        await until(answered, lambda: world.pending("a", "t"))
        row = world.pending("a", "t")
        for number in range(3):
            world.way("a", "b").cut()
            world.way("a", "b").heal()
            await world.publish("b", "t")
            await world.has("a", "t", 7 + number)
            for command in list(seen):
                told = await world["a"].nodes[0].propose("subscriptions", command)
                assert (told.counted, told.complete) == (False, False)
            assert answers_of(world.pending("a", "t")) == answers_of(row)
        assert world.meta("a").snapshots == 0
        released.set()
        await until(lambda: world.meta("a").snapshots >= 1, "the snapshot is complete")
        position, snapshot = first_snapshot(world, "a")
        assert (position, snapshot.id) == (9, row.id)
        assert dict(snapshot.positions) == {"b": 6, "c": 9 if round_ == 1 else 6}
        await world.snapped("a", "t")

    play(body, "abc", mode="snapshot")


def test_2_the_leader_dies_while_it_waits_for_answers() -> None:
    """Scenario 2: whoever leads next waits for the same answers; what is pending is in the log."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        for name in "abc":
            await world.publish(name, "t", 2)
            await world.same("t")
        released = asyncio.Event()
        held = 0

        async def late(command: SnapshotAnswered) -> None:
            nonlocal held
            if command.round == 2:
                held += 1
                await released.wait()

        world["a"].before(SnapshotAnswered, late)
        await world.subscribe("a", "t", "s")
        await until(lambda: held == 2, "both second answers are here")
        row = world.pending("a", "t")
        killed = await world["a"].new_leader()
        assert answers_of(world.pending("a", "t")) == answers_of(row)
        released.set()
        await until(lambda: world.meta("a").snapshots >= 1, "the snapshot is complete")
        _, snapshot = first_snapshot(world, "a")
        assert (snapshot.id, dict(snapshot.positions)) == (row.id, {"b": 6, "c": 6})
        await world["a"].start(killed)
        await world["a"].wait_ready()
        assert await world.drain("a", "t", "s") != []
        for name in "bc":
            await world.marked(name, "t", "s", 6)

    play(body, "abc", cores={"a": 3}, mode="snapshot")


# --- 3, 9: regions that do not answer -------------------------------------------------------------


def test_3_an_answer_that_is_too_late() -> None:
    """Scenario 3: abandoned after the time-out; the late answer changes nothing; it goes on."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.publish("b", "t", 2)
        await world.same("t")
        released = asyncio.Event()
        seen: list[SnapshotAnswered] = []

        async def late(command: SnapshotAnswered) -> None:
            seen.append(command)
            await released.wait()

        over = world["a"].before(SnapshotAnswered, late)
        await world.subscribe("a", "t", "s")
        await until(lambda: bool(seen), "b's answer is here")
        await until(lambda: world.meta("a").timed_out == 1, "it is abandoned")
        [first, *_] = pendings(world, "a")
        assert first.first == ()
        assert world.meta("a").snapshots == 0
        told = await world["a"].nodes[0].propose("subscriptions", seen[0])
        assert (told.counted, told.complete) == (False, False)
        over()
        released.set()
        assert await world.snapped("a", "t") == 2
        ids = {row.id for row in pendings(world, "a")}
        assert len(ids) == world.meta("a").snapshots + world.meta("a").timed_out
        assert world.meta("a").snapshots == 1
        [row] = world.snapshots("a", "t").values()
        assert row.id == max(ids) > first.id
        status = await world.api("a").status()
        assert status is not None

    # Far longer than b needs for its answer.
    play(body, mode="snapshot", settings={"timeout_ms": 3_000})


def test_9_one_at_a_time() -> None:
    """Scenario 9: the other region never hears of it: one request; the next after the time-out."""

    async def body(world: Regions) -> None:
        await world.api("b").add_region("a")
        for name in "ab":
            await world.api(name).declare("t")
        await world.publish("b", "t", 3)
        await world.same("t", "a")
        await world.subscribe("a", "t", "s")
        await until(lambda: world.pending("a", "t") is not None, "one is under way")
        [row] = pendings(world, "a")
        await until(lambda: len(markers(world, "a", "request")) > 1, "there is a second one")
        assert len(markers(world, "a", "request")) == 2
        first, *_, second = pendings(world, "a")
        assert first == row
        assert second.id > first.id
        assert second.started_ms - first.started_ms >= 1_000
        assert (world.meta("a").timed_out, world.meta("a").snapshots) == (1, 0)

    play(
        body,
        pulls={"a": "b", "b": ""},
        mode="snapshot",
        settings={"timeout_ms": 1_000},
    )


@pytest.mark.parametrize("how", ["cut", "down"])
def test_9_none_while_a_region_is_out_of_reach(how: str) -> None:
    """Scenario 9, 13: while one region cannot be reached, none is begun, and nothing times out."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        await world.publish("a", "t", 2)
        await world.same("t")
        assert await world.snapped("a", "t") == 2
        if how == "cut":
            world.way("a", "c").cut()
        else:
            await world["c"].down()
        await unreachable(world, "a", "c")
        begun = len(pendings(world, "a"))
        timed_out = world.meta("a").timed_out
        await world.publish("a", "t", 2)
        await world.same("t", "ab")
        await world.settled(1.0)
        assert len(pendings(world, "a")) == begun
        assert world.meta("a").timed_out == timed_out
        if how == "cut":
            world.way("a", "c").heal()
        else:
            await world["c"].up()
        await world.same("t")
        assert await world.snapped("a", "t") == 4

    async def unreachable(world: Regions, region: str, other: str) -> None:
        """Wait until the region says so of the other one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 20
        while True:
            rows = {row.name: row for row in await world.api(region).regions()}
            link = rows[other].link
            if link is not None and link.state != "connected" and link.last_error:
                return
            assert loop.time() < deadline, rows
            await asyncio.sleep(0.02)

    play(body, "abc", mode="snapshot")


def test_9_excluding_a_region_ends_what_waits_for_it() -> None:
    """Scenario 9, 13: c does not answer; excluded, it is not waited for from that entry on.

    What was pending is given up, not completed without c: the next one has b alone, in one round.
    """

    async def body(world: Regions) -> None:
        await world.topic("t")
        for name in "abc":
            await world.publish(name, "t", 2)
            await world.same("t")
        released = asyncio.Event()

        async def silent(command: SnapshotAnswer) -> None:
            await released.wait()

        world["c"].before(SnapshotAnswer, silent)
        await world.subscribe("a", "t", "s")

        def b_has_answered() -> bool:
            row = world.pending("a", "t")
            return row is not None and row.first == (("b", 6),)

        await until(b_has_answered, lambda: world.pending("a", "t"))
        row = world.pending("a", "t")
        await world.api("a").exclude_region("c")
        now = world.pending("a", "t")
        assert now is None or now.id > row.id
        assert await world.snapped("a", "t") == 6
        assert world.meta("a").timed_out == 0
        position, snapshot = first_snapshot(world, "a")
        assert (position, snapshot.positions) == (6, (("b", 6),))
        assert snapshot.id > row.id
        # It returns: asked again, though nothing was published, for it must be told something.
        released.set()
        await world.api("a").include_region("c")
        both = (("b", 6), ("c", 6))
        await until(lambda: world.snapshots("a", "t")[6].positions == both, "one with c")
        assert len(await world.drain("a", "t", "s")) == 6
        for name in "bc":
            await world.marked(name, "t", "s", 6)

    play(body, "abc", mode="snapshot")


# --- 4, 5: the cache ------------------------------------------------------------------------------


def evenly(cached: list[int], position: int, size: int) -> list[int]:
    """The cache after a snapshot at this position, by the rule alone (scenario 5)."""
    if cached and position < cached[-1]:
        cached = []
    cached = [*cached, position]
    if len(cached) <= size:
        return cached
    inner = range(1, len(cached) - 1)
    gone = min(inner, key=lambda at: cached[at + 1] - cached[at - 1])
    return [*cached[:gone], *cached[gone + 1 :]]


def test_5_the_rule_of_the_cache() -> None:
    """The naive rule does what scenario 5 says, so that regions may be compared with it."""
    cached: list[int] = []
    for position in (1, 2, 10, 15, 25):
        cached = evenly(cached, position, 5)
    for position, left in [
        (100, [1, 10, 15, 25, 100]),
        (110, [1, 15, 25, 100, 110]),
        (112, [1, 15, 25, 100, 112]),
        (113, [1, 15, 25, 100, 113]),
        (200, [1, 25, 100, 113, 200]),
        (50, [50]),
    ]:
        cached = evenly(cached, position, 5)
        assert cached == left


def test_4_5_the_cache_of_a_slow_subscription() -> None:
    """Scenarios 4 and 5: it keeps snapshots spread over the backlog; a mark uses the best of them.

    What was used, and what is older, leaves; the other region is exactly where the snapshot says.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        expected: list[int] = []
        kept: list[int] = []
        for _ in range(14):
            await world.publish("a", "t", rng.randint(1, 9))
            kept.append(await world.snapped("a", "t"))
            expected = evenly(expected, kept[-1], 5)
            assert cached(world) == expected
        assert world.meta("a").updates == 0
        sub = world.sub("b", "t", "s")
        assert sub is None
        # Consume to before the second one that is cached, to it, and beyond the third.
        updates = 0
        for mark in (expected[1] - 1, expected[1], expected[2] + 1):
            done = world.mark("a", "t", "s")
            if mark <= done:
                continue
            await world.consume("a", "t", "s", mark - done)
            # Those that left the cache are kept, too, and it is filled from them again.
            usable = [at for at in kept if at <= mark]
            kept = [at for at in kept if at > mark]
            updates += bool(usable)
            assert set(cached(world)) <= set(kept)
            assert bool(kept) <= len(cached(world)) <= 5
            assert world.meta("a").updates == updates
            if usable:
                await world.marked("b", "t", "s", usable[-1])
        assert kept
        await world.drain("a", "t", "s")
        assert cached(world) == []
        await world.marked("b", "t", "s", world.mark("a", "t", "s"))

    def cached(world: Regions) -> list[int]:
        return [position for _, position in world["a"].table("cached")]

    play(body, mode="snapshot", settings={"cached_max": 5})


# --- 14: slow acknowledgements --------------------------------------------------------------------


def test_14_one_slow_message() -> None:
    """Scenario 14: everything but the first message is acknowledged, for longer than the cache
    lasts; then the first one is: exactly one update goes out, for the best snapshot."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s", kind="shared")
        async with world.consumer("a", "t", "s") as consumer:
            await world.publish("a", "t")
            slow = await world.receive(consumer, 1)
            for _ in range(9):
                await world.publish("a", "t")
                await world.ack(consumer, "s", *(await world.receive(consumer, 1)))
                await world.snapped("a", "t")
            assert (world.meta("a").updates, world.mark("a", "t", "s")) == (0, 0)
            await world.settled()
            assert world.sub("b", "t", "s") is None
            await world.ack(consumer, "s", *slow)
        assert world.mark("a", "t", "s") == 10
        assert world.meta("a").updates == 1
        await world.marked("b", "t", "s", 10)
        await world.settled()
        assert (world.meta("a").updates, world.meta("a").cache_hits) == (1, 1)
        assert await world.drain("b", "t", "s") == []

    play(body, mode="snapshot", settings={"cached_max": 3})


def test_14_what_was_acknowledged_singly_does_not_come_again() -> None:
    """Scenario 14 in vector mode: the consumer moves with the gap, and receives the gap alone."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s", kind="shared")
        await world.publish("b", "t", 3)
        await world.same("t")
        await world.publish("a", "t", 6)
        await world.same("t")
        async with world.consumer("a", "t", "s") as consumer:
            got = await world.receive(consumer, 9)
            slow = [got[0], got[4], got[8]]
            await world.ack(consumer, "s", *(each for each in got if each not in slow))
            await world.agree("t", "s")
        assert world.mark("b", "t", "s") == 0
        assert await world.drain("b", "t", "s") == ["b1", "a2", "a6"]
        await world.marked("a", "t", "s", 9)
        assert await world.drain("a", "t", "s") == []

    play(body)


# --- 15: what cannot be written -------------------------------------------------------------------


def test_15_the_snapshot_cannot_be_written() -> None:
    """Scenario 15: while the last answer finds no majority, it is pending, and no last snapshot."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.publish("b", "t", 3)
        await world.same("t")
        tried = 0

        async def fails(command: SnapshotAnswered) -> None:
            nonlocal tried
            tried += 1
            raise NotApplied("no majority, says the test")

        over = world["a"].before(SnapshotAnswered, fails)
        await world.subscribe("a", "t", "s")
        await until(lambda: tried >= 2, "it is tried again")
        row = world.pending("a", "t")
        assert row is not None
        assert (row.first, world.meta("a").snapshots) == ((), 0)
        assert (world.snapshots("a", "t"), world["a"].table("cached")) == ({}, {})
        over()
        assert await world.snapped("a", "t") == 3
        [snapshot] = world.snapshots("a", "t").values()
        assert (snapshot.id, world.meta("a").timed_out) == (row.id, 0)

    play(body, mode="snapshot")


def test_15_the_update_cannot_be_written() -> None:
    """Scenario 15: it finds no majority in b for a while: it is tried again.

    Meanwhile what comes after it waits: a link keeps the order.
    """

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        tried = 0

        async def fails(command: Update) -> None:
            nonlocal tried
            tried += 1
            if tried <= 4:
                assert world.sub("b", "t", "s") is None
                raise NotApplied("no majority, says the test")

        world["b"].before(Update, fails)
        for _ in range(3):
            await world.publish("a", "t")
            await world.snapped("a", "t")
            await world.consume("a", "t", "s", 1)
        await world.marked("b", "t", "s", 3)
        assert tried > 4

    play(body, mode="snapshot")

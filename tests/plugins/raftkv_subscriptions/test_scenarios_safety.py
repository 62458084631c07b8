"""The acceptance scenarios that are about skipping, on real regions, by their numbers: 13 and 16.

13 is the seed's own example. M1-b, a message of b, has reached c and not a. A snapshot in a without
b's answer would say that whoever has everything in a has everything in c, M1-b too; its update
would make c skip a message that no consumer has seen. So in snapshot mode a must wait for b, and in
vector mode, where acknowledgements are of messages and not of positions, nothing has to wait.

That nothing was skipped is judged in every story of all files (audit.py): when a region's row says
that something is acknowledged, a consumer has done it before. Here the stories try to break it.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.plugins.raftkv_subscriptions.audit import texts_of
from tests.plugins.raftkv_subscriptions.regions import Regions, play, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

BOTH = pytest.mark.parametrize("mode", ["vector", "snapshot"])


# --- 13: M1-b -------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("how", ["cut", "silent"])
def test_13_m1_b(mode: str, how: str) -> None:
    """Scenario 13: whatever a acknowledges, neither b nor c skips M1-b. b returns: it goes on."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        before = await world.publish("a", "t", 2)
        await world.same("t")
        if mode == "snapshot":
            await world.snapped("a", "t")
        # From now on b does not reach a. c hears b, and b hears a.
        way = world.way("a", "b")
        if how == "cut":
            way.cut()
        else:
            way.mute()
        await world.publish("b", "t")
        await world.same("t", "bc")
        after = await world.publish("a", "t", 3)
        await world.same("t", "bc")
        order = ["a1", "a2", "b1", "a3", "a4", "a5"]
        assert world.log("b", "t") == world.log("c", "t") == order
        assert world.log("a", "t") == before + after
        assert await world.consume("a", "t", "s", 5) == before + after
        # What a knows comes everywhere: in vector mode all of it, else the snapshot before.
        for name in "bc":
            await world.marked(name, "t", "s", 2)
        if mode == "vector":
            await world.agree("t", "s")
        await asyncio.sleep(0.5)
        for name in "bc":
            await world.marked(name, "t", "s", 2)
        left = ["b1"] if mode == "vector" else ["b1", "a3", "a4", "a5"]
        for name in "bc":
            assert (await world.api(name).sub("t", "s")).backlog == len(left)
        # A consumer that moves to c, while b is away, receives M1-b.
        async with world.consumer("c", "t", "s") as consumer:
            assert texts_of(await world.receive(consumer, len(left))) == left
        way.heal()
        await world.same("t")
        assert await world.consume("a", "t", "s", 1) == ["b1"]
        if mode == "snapshot":
            await world.snapped("a", "t")
        for name in "abc":
            await world.marked(name, "t", "s", 6)
            assert await world.drain(name, "t", "s") == []
        if mode == "vector":
            await world.agree("t", "s")

    play(body, "abc", mode=mode, settings={"timeout_ms": 400})


def test_13_vector_mode_needs_no_answer() -> None:
    """Scenario 13: b is down altogether; a and c go on, each from where the other was."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        await world.publish("b", "t", 3)
        await world.same("t")
        await world["b"].down()
        sent = ["b1", "b2", "b3"]
        for number in range(6):
            here, there = "ac" if number % 2 == 0 else "ca"
            sent += await world.publish(there, "t", 2)
            await world.same("t", "ac")
            assert await world.drain(here, "t", "s") == sent
            await world.agree("t", "s", "ac")
            sent = []
        await world["b"].up()
        await world.same("t")
        await world.agree("t", "s")
        for name in "abc":
            await world.marked(name, "t", "s", 15)

    play(body, "abc")


def test_13_an_excluded_region_is_not_waited_for() -> None:
    """Scenario 13: b is excluded: a gets M1-b by c, and only then snapshots go on. b returns.

    c has b's message and a has not: c's answer says so, and a does not count it before it has it.
    """

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        await world.publish("a", "t", 1)
        await world.same("t")
        assert await world.snapped("a", "t") == 1
        world.way("a", "b").cut()
        await world.publish("b", "t", 2)
        await world.same("t", "bc")
        await world.publish("a", "t", 2)
        await world.same("t", "bc")
        assert world.log("a", "t") == ["a1", "a2", "a3"]
        assert await world.consume("a", "t", "s", 3) == ["a1", "a2", "a3"]
        await asyncio.sleep(0.3)
        assert max(world.snapshots("a", "t")) == 1
        await world["b"].down()
        for name in "ac":
            await world.api(name).exclude_region("b")
        # Now c hands over what b had published.
        await world.same("t", "ac")
        assert world.log("a", "t") == ["a1", "a2", "a3", "b1", "b2"]
        assert await world.snapped("a", "t") == 5
        await world.marked("c", "t", "s", 1)
        assert await world.drain("c", "t", "s") == ["b1", "b2", "a2", "a3"]
        # What c acknowledged a may have to receive again: no snapshot came after it.
        assert 3 <= world.mark("a", "t", "s") <= 5
        # It returns.
        await world["b"].up()
        world.way("a", "b").heal()
        for name in "ac":
            await world.api(name).include_region("b")
        await world.publish("b", "t")
        await world.publish("a", "t")
        await world.same("t")
        await world.snapped("a", "t")
        assert {"a4", "b3"} <= set(await world.drain("a", "t", "s")) <= {"b1", "b2", "a4", "b3"}
        for name in "abc":
            await world.marked(name, "t", "s", 7)

    play(body, "abc", mode="snapshot", settings={"timeout_ms": 400})


# Snapshots after the last way was healed. A message is everywhere long before the next one begins.
TRIES = 20


async def snapped_at_rest(world: Regions) -> None:
    """Publish until a snapshot of a knows b and c with all that there is.

    One that was begun while they still lacked something names older positions there, rightly,
    and an idle topic gets no other.
    """
    for _ in range(TRIES):
        position = await world.snapped("a", "t")
        there = dict(world.snapshots("a", "t")[position].positions)
        if there == dict.fromkeys("bc", position):
            return
        await world.publish("a", "t", 1)
        await world.same("t")
    raise AssertionError(f"no snapshot in {TRIES} knows everything: {there}")


@BOTH
def test_13_whatever_is_cut(mode: str) -> None:
    """Scenario 13 by chance: ways are cut, slow and healed while all publish and some consume.

    Nobody may know an acknowledgement that was not given (judged at every row); in the end, all
    ways healed, all has been received and all regions agree.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    received: list[str] = []

    async def consume(world: Regions, name: str) -> None:
        """Come, take some, acknowledge some of them, go; as long as there is something to take."""
        if world.sub(name, "t", "s") is None:
            return
        async with world.consumer(name, "t", "s") as consumer:
            got = await consumer.receive(count=rng.randint(1, 8), wait_s=0.05)
            chosen = [each for each in got if rng.random() < 0.8]
            if chosen:
                await world.ack(consumer, "s", *chosen)
            received.extend(texts_of(chosen))

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s", kind="shared")
        for _ in range(60):
            way = rng.choice(list(world.ways.values()))
            rng.choice([way.cut, way.heal, way.heal, way.heal, way.mute])()
            way.delay(rng.choice([0.0, 0.0, 0.02]))
            if rng.random() < 0.7:
                await world.publish(rng.choice("abc"), "t", rng.randint(1, 4))
            await asyncio.gather(*(consume(world, name) for name in "abc" if rng.random() < 0.5))
        for way in world.ways.values():
            way.heal()
            way.delay(0.0)
        await world.same("t")
        if mode == "snapshot":
            await snapped_at_rest(world)
        received.extend(await world.drain("a", "t", "s"))
        everything = world.sent("t")
        total = len(everything)
        if mode == "snapshot":
            # What the others acknowledged and a has not heard of, a has received again.
            await until(
                lambda: all(world.mark(name, "t", "s") == total for name in "abc"),
                lambda: [world.sub(name, "t", "s") for name in "abc"],
            )
        else:
            await world.agree("t", "s")
            for name in "abc":
                await world.marked(name, "t", "s", total)
                assert await world.drain(name, "t", "s") == []
        assert set(received) == everything
        print(f"{len(received)} acknowledged, {len(received) - total} of them again")

    play(body, "abc", mode=mode, settings={"timeout_ms": 400, "cached_max": 1000})


# --- 16: reset ------------------------------------------------------------------------------------


@BOTH
def test_16_a_reset_is_of_one_region(mode: str) -> None:
    """Scenario 16: sought back in a: a has it again, b is not moved, and a tells nothing stale."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        sent: list[str] = []
        for _ in range(5):
            sent += await world.publish("a", "t", 2)
            if mode == "snapshot":
                await world.snapped("a", "t")
        await world.same("t")
        assert await world.drain("a", "t", "s") == sent
        await world.marked("b", "t", "s", 10)
        await world.settled()
        told = world.meta("a").updates, world.meta("b").merged
        world.account.sought.add(("a", "t", "s"))
        assert (await world.api("a").seek("t", "s", 3)).mark == 3
        await world.settled()
        assert world.mark("a", "t", "s") == 3
        await world.marked("b", "t", "s", 10)
        assert (world.meta("a").updates, world.meta("b").merged) == told
        if mode == "snapshot":
            # They may be used again; the mark has not come to them yet.
            cached = [at for _, at in world["a"].table("cached")]
            assert [at for at in cached if at > 3] == [4, 6, 8, 10]
        # Acknowledged again, it is no news for b.
        assert await world.consume("a", "t", "s", 4) == sent[3:7]
        await world.settled()
        assert world.mark("a", "t", "s") == 7
        assert world.meta("a").updates == told[0]
        assert await world.drain("a", "t", "s") == sent[7:]
        await world.settled()
        await world.marked("b", "t", "s", 10)
        # News are told as ever.
        sent += await world.publish("a", "t", 3)
        if mode == "snapshot":
            await world.snapped("a", "t")
        assert await world.consume("a", "t", "s", 3) == sent[10:]
        await world.marked("b", "t", "s", 13)
        assert await world.drain("b", "t", "s") == []

    play(body, mode=mode)


@BOTH
def test_16_what_others_acknowledge_after_a_reset_counts(mode: str) -> None:
    """Scenario 16: sought back in a, what b had acknowledged before is not taken again; what it
    acknowledges of later messages is."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        sent = await world.publish("a", "t", 4)
        await world.same("t")
        if mode == "snapshot":
            await world.snapped("a", "t")
        assert await world.drain("a", "t", "s") == sent
        await world.marked("b", "t", "s", 4)
        await world.settled()
        world.account.sought.add(("a", "t", "s"))
        await world.api("a").seek("t", "s", "earliest")
        assert world.mark("a", "t", "s") == 0
        # The link to b is made anew: b says again all that it knows.
        for pair in ("ab", "ba"):
            world.way(*pair).cut()
            world.way(*pair).heal()
        sent += await world.publish("b", "t", 2)
        await world.same("t")
        if mode == "snapshot":
            await until(lambda: max(world.snapshots("b", "t"), default=0) == 6, "b's snapshot")
        assert await world.drain("b", "t", "s") == sent[4:]
        await world.settled()
        assert world.mark("a", "t", "s") == 0
        again = await world.drain("a", "t", "s")
        assert again == sent[:4] if mode == "vector" else set(again) >= set(sent[:4])
        await world.marked("a", "t", "s", 6)

    play(body, mode=mode)


@BOTH
def test_16_a_reset_forward_is_no_acknowledgement(mode: str) -> None:
    """Scenario 16: sought forward in a, over messages that nobody acknowledged: b keeps them."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        sent: list[str] = []
        for count in (2, 4):
            sent += await world.publish("a", "t", count)
            if mode == "snapshot":
                await world.snapped("a", "t")
        await world.same("t")
        assert await world.consume("a", "t", "s", 2) == sent[:2]
        await world.marked("b", "t", "s", 2)
        world.account.sought.add(("a", "t", "s"))
        await world.api("a").seek("t", "s", "latest")
        assert world.mark("a", "t", "s") == 6
        sent += await world.publish("a", "t", 2)
        if mode == "snapshot":
            await world.snapped("a", "t")
        await world.same("t")
        assert await world.drain("a", "t", "s") == sent[6:]
        await until(lambda: world.mark("a", "t", "s") == 8, lambda: world.mark("a", "t", "s"))
        # b receives what a skipped, and no more than that.
        await until(
            lambda: ("a", 8) in (world.account.known(world["b"], "t", "s") or ()), "b has heard"
        )
        await world.settled()
        assert await world.drain("b", "t", "s") == sent[2:6]

    play(body, mode=mode)

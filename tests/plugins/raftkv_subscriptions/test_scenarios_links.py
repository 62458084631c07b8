"""Links between regions: cut, silent, slow, to a region that is down, to one that takes nothing.

Every story ends with what every region has: each message once, those of one origin in order, which
is judged by audit.py for all of them. Here they are asked for more: what was in flight when a way
broke, what a target that takes nothing makes its source hold. Who fetches from whom, and who may,
is in test_scenarios_layouts.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import raftkv.testing.distance
from raftkv_subscriptions import BacklogFull, LinkStatus
from raftkv_subscriptions.arriving import LARGEST_BYTES
from raftkv_subscriptions.commands import Deliver
from raftkv_subscriptions.rows import COMMAND_BYTES
from tests.plugins.raftkv_subscriptions.regions import (
    DEADLINE_S,
    Regions,
    link,
    play,
    says,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

KIB = 1024
MIB = 1024 * KIB


async def the_link(world: Regions, region: str, other: str) -> LinkStatus:
    row = await link(world, region, other)
    assert row is not None
    return row


# --- broken ways ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "silent"])
def test_a_way_breaks_again_and_again(how: str) -> None:
    """Under traffic in both directions; nothing is lost or doubled, whatever was in flight."""

    async def produce(world: Regions, name: str, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await world.publish(name, "t", 5)
            await asyncio.sleep(0.002)

    async def body(world: Regions) -> None:
        await world.topic("t")
        stop = asyncio.Event()
        producing = [asyncio.ensure_future(produce(world, name, stop)) for name in "ab"]
        ways = [world.way("a", "b"), world.way("b", "a")]
        for number in range(8 if how == "cut" else 2):
            there = len(world.log("a", "t")), len(world.log("b", "t"))
            # Whichever is broken, the other direction goes on.
            way = ways[number % 2]
            target = number % 2
            await until(
                lambda there=there: all(  # type: ignore[misc]
                    len(world.log(name, "t")) > count + 20
                    for name, count in zip("ab", there, strict=True)
                ),
                "both go on",
            )
            if how == "cut":
                way.cut()
                await asyncio.sleep(0.02)
                way.heal()
            else:
                # Longer than a source may say nothing: the target gives the connection up.
                way.mute()
                await says(world, "ab"[target], "ba"[target], "silent")
                way.heal()
        stop.set()
        await asyncio.gather(*producing)
        await world.same("t")
        for name in "ab":
            mine = [text for text in world.log("a", "t") if text.startswith(name)]
            assert mine == [text for text in world.log("b", "t") if text.startswith(name)]
        print(len(world.sent("t")), "messages,", [way.connections for way in ways], "connections")

    play(body)


def test_what_a_cut_link_says() -> None:
    """Status: connected with its lag, then not, with the error. It goes on where it was."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.publish("a", "t", 200)
        await world.same("t")
        row = await the_link(world, "b", "a")
        assert (row.state, row.region) == ("connected", "a")
        assert row.endpoint in world.way("b", "a").endpoints
        world.way("b", "a").cut()
        row = await says(world, "b", "a", "")
        assert row.state == "connecting"
        await world.publish("a", "t", 3)
        assert len(world.log("b", "t")) == 200
        world.way("b", "a").heal()
        await world.same("t")

        async def of_b() -> Any:
            [mine] = [row for row in await world.api("a").regions() if row.name == "b"]
            return mine

        async def connected() -> Any:
            row = await the_link(world, "b", "a")
            return row.state == "connected" and row

        async with asyncio.timeout(DEADLINE_S):
            while not (row := await connected()):
                await asyncio.sleep(0.01)
        assert row.opened >= 2
        assert all(messages == 0 for _, _, messages in row.lag)
        # The other side knows what b has fetched.
        async with asyncio.timeout(DEADLINE_S):
            while any(messages for _, messages in (await of_b()).behind):
                await asyncio.sleep(0.01)
        # Nothing that was here already came a second time.
        assert (world.meta("b").delivered, world.meta("b").doubles) == (203, 0)

    play(body)


@pytest.mark.parametrize("delay_s", [0.1, 0.3])
def test_far_away(delay_s: float) -> None:
    """A message and an acknowledgement take one way each: not less, and not a round trip."""

    async def body(world: Regions) -> None:
        loop = asyncio.get_running_loop()
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        for way in world.ways.values():
            way.delay(delay_s)
        seen: list[tuple[float, float]] = []
        # Until both were once faster than a round trip: the machine may be busy with other things.
        while not seen or any(min(took) >= 2 * delay_s for took in zip(*seen, strict=True)):
            number = len(seen) + 1
            assert number <= 50, seen
            begun = loop.time()
            await world.publish("a", "t")
            await world.has("b", "t", number)
            message_s = loop.time() - begun
            begun = loop.time()
            await world.consume("a", "t", "s", 1)
            await world.marked("b", "t", "s", number)
            seen.append((message_s, loop.time() - begun))
            # The proxy's clock begins when it reads; waiting here is in steps of 5 ms.
            assert min(seen[-1]) >= delay_s
        print([(round(m * 1000), round(k * 1000)) for m, k in seen], "ms for message, mark")

    play(body)


# --- outages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["vector", "snapshot"])
def test_a_region_is_down_for_long_and_returns(mode: str) -> None:
    """It has missed messages, topics, acknowledgements and subscriptions: it gets all of them."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        await world.publish("c", "t", 10)
        await world.same("t")
        if mode == "snapshot":
            await world.snapped("a", "t")
        await world["c"].down()
        await world.api("a").declare("late")
        await world.subscribe("a", "late", "s")
        for number in range(20):
            await world.publish("ab"[number % 2], "t", 50)
        await world.publish("b", "t", 1)
        await until(lambda: "late" in world["b"].table("topics"), "b knows the other topic")
        await world.publish("b", "late", 20)
        await world.same("t", "ab")
        await world.same("late", "ab")
        assert len(await world.drain("a", "t", "s")) == 1011
        assert len(await world.drain("a", "late", "s")) == 20
        await world["c"].up()
        await until(lambda: "late" in world["c"].table("topics"), "c knows the other topic")
        for topic in ("t", "late"):
            await world.same(topic)
            if mode == "snapshot":
                await world.snapped("a", topic)
        for name in "abc":
            await world.marked(name, "t", "s", 1011)
            await world.marked(name, "late", "s", 20)
        assert await world.drain("c", "t", "s") == await world.drain("c", "late", "s") == []

    play(body, "abc", mode=mode)


@pytest.mark.parametrize("mode", ["vector", "snapshot"])
def test_leaders_die_on_both_sides(mode: str) -> None:
    """Regions of three cores: in each region nodes die, leaders first, under traffic."""

    async def produce(world: Regions, name: str, stop: asyncio.Event) -> None:
        while not stop.is_set():
            # At a node that stays: what it publishes is published once whoever leads.
            await world.publish(name, "t", 3, at=survivor[name])
            await asyncio.sleep(0.01)

    survivor: dict[str, str] = {}

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        stop = asyncio.Event()
        for name in "ab":
            leader = await world[name].has_leader()
            survivor[name] = next(node for node in world[name].running if node != leader)
        producing = [asyncio.ensure_future(produce(world, name, stop)) for name in "ab"]
        for name in "abab":
            there = len(world.log("a", "t")), len(world.log("b", "t"))
            leader = await world[name].has_leader()
            if leader == survivor[name]:
                # Once: the next leader is the survivor's turn; kill another one, a follower.
                leader = next(n for n in world[name].running if n != leader)
            await world[name].kill(leader)
            await world[name].has_leader()
            await until(
                lambda there=there: all(  # type: ignore[misc]
                    len(world.log(each, "t")) > count + 10
                    for each, count in zip("ab", there, strict=True)
                ),
                lambda name=name: f"both go on after a node of {name}",  # type: ignore[misc]
            )
            await world[name].start(leader)
            await world[name].wait_ready(DEADLINE_S)
        stop.set()
        await asyncio.gather(*producing)
        await world.same("t")
        for region in world.regions.values():
            await region.converge(DEADLINE_S)
        if mode == "snapshot":
            await world.snapped("a", "t")
        total = len(world.sent("t"))
        received = await world.drain("a", "t", "s")
        assert len(received) == len(set(received)) == total
        for name in "ab":
            await world.marked(name, "t", "s", total)

    play(body, "ab", cores=3, mode=mode)


# --- back-pressure --------------------------------------------------------------------------------


def unsent(world: Regions, region: str) -> int:
    """What the doors of the region hold for those who do not read, in bytes."""
    total = 0
    for door in world[region].doors.values():
        for connection in door._state.connections:
            transport: Any = getattr(connection, "transport", None)
            if transport is not None:
                total += transport.get_write_buffer_size()
    return total


@pytest.mark.parametrize("who", ["the target", "the way"])
def test_back_pressure(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 MiB for a target that takes nothing: neither end holds more than its bound; then all come.

    The target: its log takes no deliveries. The way: nothing passes, and nobody is told.
    """
    # What the proxy itself would hold.
    monkeypatch.setattr(raftkv.testing.distance, "BUFFER_BYTES", 256 * KIB)
    size, count = 128 * KIB, 192
    bound = 2 * MIB

    async def body(world: Regions) -> None:
        api = world.api("a")
        await world.topic("t")
        world.account.strange.add("t")
        released = asyncio.Event()

        async def full(command: Deliver) -> None:
            await released.wait()

        way = world.way("b", "a")
        if who == "the target":
            world["b"].before(Deliver, full)
        else:
            way.mute()
        in_flight, held, passed = 0, 0, way.passed
        for number in range(count):
            await api.publish("t", number.to_bytes(4, "big") + bytes(size), timeout_s=DEADLINE_S)
            row = await the_link(world, "b", "a")
            in_flight = max(in_flight, row.bytes_in_flight)
            held = max(held, unsent(world, "a"))
        passed = way.passed - passed
        print(
            f"{in_flight / MIB:.1f} MiB in flight, {held / MIB:.1f} held, {passed / MIB:.1f} passed"
        )
        # One line more than the bound may have been taken, and one may wait in the door.
        assert in_flight <= bound + MIB
        assert held <= 2 * MIB
        assert world["b"].table("messages") == {}
        if who == "the target":
            # The client's buffer and the sockets' are all that is on the way.
            assert passed <= 16 * MIB
            assert in_flight > 0
        released.set()
        way.heal()
        await until(lambda: len(world["b"].table("messages")) == count, "all of them are there")
        numbers = [
            int.from_bytes(row.message.body[:4], "big")
            for row in world["b"].table("messages").values()
        ]
        assert numbers == list(range(count))
        row = await the_link(world, "b", "a")
        assert row.bytes_in_flight == 0

    play(body, options={"link_bytes_max": bound})


def test_a_full_backlog_in_the_target() -> None:
    """b's topic may hold no more: the link waits and says so; it goes on when there is room.

    What others have published may go beyond b's own limit by as much again, and one batch, for each
    region: two regions that are both full must be able to hear of each other.
    """
    limit, size = MIB, 64 * KIB
    count = 2 * (limit + LARGEST_BYTES) // size + 8

    async def body(world: Regions) -> None:
        await world.topic("t", retention_s=0.05)
        world.account.strange.add("t")
        for name in "ab":
            await world.api(name).subscribe("t", "mine", initial="earliest")
        limited = world.api("b").declare
        await limited("t", retention_s=0.05, backlog_bytes_max=limit, change=True)
        for _ in range(count):
            await world.api("a").publish("t", bytes(size))
        row = await says(world, "b", "a", "")
        assert row.paused == ("t",)
        there = len(world.log("b", "t"))
        # Full is full: but one command that had begun before.
        assert count - 8 <= there < count
        assert world["b"].table("topics")["t"].bytes <= 2 * (limit + LARGEST_BYTES) + COMMAND_BYTES
        with pytest.raises(BacklogFull):
            await world.api("b").publish("t", b"one more")
        assert len(await world.consume("b", "t", "mine", there)) == there
        assert len(await world.consume("b", "t", "mine", count - there)) == count - there

    play(body)

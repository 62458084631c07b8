"""The acceptance scenarios of replicated subscriptions on real regions, by their numbers: 6 to 12.

They come from a broker whose positions are exchanged by markers, and whose tests allow duplicates
after a move. Here every story says what exactly is received where. What is another thing:

- In vector mode a subscription is the same set everywhere, so a consumer that moves when its last
  acknowledgements have arrived receives nothing twice.
- In snapshot mode it starts anew behind the last snapshot that its acknowledgements passed: the
  bound is exact, and whatever a story received twice is behind that snapshot.
- Markers are no messages: no position, no reader, no counter shows them (12).

1 to 5, 9, 14 and 15 are in test_scenarios_snapshots.py, 13 and 16 in test_scenarios_safety.py;
links that are cut, slow, in a ring or under TLS in test_scenarios_links.py, killed processes in
test_region_failures.py.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from raftkv_subscriptions import ReplicationDisabled
from tests.plugins.raftkv_subscriptions.audit import texts_of
from tests.plugins.raftkv_subscriptions.regions import DEADLINE_S, Regions, play, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

BOTH = pytest.mark.parametrize("mode", ["vector", "snapshot"])


async def publish_each(world: Regions, mode: str, region: str, topic: str, count: int) -> list[str]:
    """One after the other; in snapshot mode each is the last one of a snapshot."""
    texts: list[str] = []
    for _ in range(count):
        texts += await world.publish(region, topic)
        if mode == "snapshot":
            await world.snapped(region, topic)
    return texts


def expected_mark(world: Regions, source: str, target: str, topic: str, sub: str) -> int:
    """Snapshot mode: where the target is when it has heard of the source's mark, by that alone."""
    mark = world.mark(source, topic, sub)
    passed = [at for at in world.snapshots(source, topic) if at <= mark]
    if not passed:
        return -1
    positions = dict(world.snapshots(source, topic)[max(passed)].positions)
    return int(positions[target])


async def moved(world: Regions, mode: str, source: str, target: str, topic: str, sub: str) -> None:
    """Wait until a consumer of the source may go on in the target.

    Vector mode: the same is acknowledged there. Snapshot mode: as much as the last snapshot says.
    """
    if mode == "vector":
        await world.agree(topic, sub, [source, target])
        return
    await until(
        lambda: world.mark(target, topic, sub) >= expected_mark(world, source, target, topic, sub),
        lambda: (
            [world.sub(name, topic, sub) for name in (source, target)],
            expected_mark(world, source, target, topic, sub),
        ),
    )


# --- 6: switch region -----------------------------------------------------------------------------


@BOTH
def test_6_a_consumer_goes_on_in_the_other_region(mode: str) -> None:
    """Scenario 6: 6 messages, 3 of them here, the others there: all of them once, in both modes."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        sent = await publish_each(world, mode, "a", "t", 6)
        await world.same("t")
        assert await world.consume("a", "t", "s", 3) == sent[:3]
        await world.marked("b", "t", "s", 3)
        assert await world.drain("b", "t", "s") == sent[3:]
        await world.marked("a", "t", "s", 6)
        assert await world.drain("a", "t", "s") == []

    play(body, mode=mode)


def test_6_at_most_one_snapshot_behind() -> None:
    """Scenario 6: what is behind the last snapshot comes again, nothing before it, nothing less."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        sent: list[str] = []
        ends: list[int] = []
        for count in (4, 3, 5):
            sent += await world.publish("a", "t", count)
            ends.append(await world.snapped("a", "t"))
        assert ends == [4, 7, 12]
        # Before the first snapshot: b has never heard of the subscription.
        assert await world.consume("a", "t", "s", 3) == sent[:3]
        await world.settled()
        assert world.sub("b", "t", "s") is None
        assert await world.consume("a", "t", "s", 3) == sent[3:6]
        await world.marked("b", "t", "s", 4)
        await world.settled()
        await world.marked("b", "t", "s", 4)
        assert await world.drain("b", "t", "s") == sent[4:]

    play(body, mode="snapshot")


@BOTH
@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared"])
def test_6_a_consumer_that_moves_on_and_on(mode: str, kind: str) -> None:
    """Scenario 6 with three regions that all publish: a consumer goes round, and rests in between.

    Vector mode: each message once. Snapshot mode: each at least once, and what comes again is
    behind the last snapshot that had been passed.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def produce(world: Regions, name: str) -> None:
        for _ in range(25):
            await world.publish(name, "t", rng.randint(1, 3))
            await asyncio.sleep(rng.random() / 50)

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s", kind=kind)
        for way in world.ways.values():
            way.delay(rng.choice([0.0, 0.01, 0.03]))
        received: list[str] = []
        producing = [asyncio.ensure_future(produce(world, name)) for name in "abc"]
        here = "a"
        for _ in range(8):
            received += await visit(world, here, rng.randint(1, 12))
            there = rng.choice([name for name in "abc" if name != here])
            await moved(world, mode, here, there, "t", "s")
            if world.sub(there, "t", "s") is not None:
                here = there
        await asyncio.gather(*producing)
        await world.same("t")
        received += await world.drain(here, "t", "s")
        assert set(received) == world.sent("t")
        again = len(received) - len(set(received))
        print(f"{len(received)} received, {again} of them again")
        if mode == "vector":
            assert again == 0
            await world.agree("t", "s")
            for name in "abc":
                assert world.mark(name, "t", "s") == len(world.sent("t"))

    async def visit(world: Regions, name: str, count: int) -> list[str]:
        """Take so many if there are, and acknowledge them."""
        async with world.consumer(name, "t", "s") as consumer:
            got = await consumer.receive(count=count, wait_s=0.3)
            await world.ack(consumer, "s", *got)
        return texts_of(got)

    play(body, "abc", mode=mode, settings={"cached_max": 1000})


# --- 7: the subscription is unknown in the target -------------------------------------------------


@BOTH
@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_7_the_update_makes_the_subscription(mode: str, kind: str) -> None:
    """Scenario 7: 20 messages, 10 acknowledged in a; b never had a consumer: it has the rest."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s", kind=kind)
        sent: list[str] = []
        for _ in range(2):
            sent += await world.publish("a", "t", 10)
            if mode == "snapshot":
                await world.snapped("a", "t")
        await world.same("t")
        assert await world.consume("a", "t", "s", 10) == sent[:10]
        await world.marked("b", "t", "s", 10)
        row = world.sub("b", "t", "s")
        assert (row.kind, row.replicate, row.epoch) == (kind, True, 0)
        status = await world.api("b").sub("t", "s")
        assert (status.mark, status.backlog, status.replicate) == (10, 10, True)
        assert await world.drain("b", "t", "s") == sent[10:]

    play(body, mode=mode)


@BOTH
def test_7_a_latest_subscription_begins_where_it_began(mode: str) -> None:
    """Scenario 7: what it did not want in a when it was made, it does not want in b either."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.publish("a", "t", 5)
        await world.publish("b", "t", 4)
        await world.same("t")
        await world.subscribe("a", "t", "s", initial="latest")
        await publish_each(world, mode, "a", "t", 3)
        await world.same("t")
        assert await world.consume("a", "t", "s", 1) == ["a6"]
        await until(lambda: world.mark("b", "t", "s") == 10, lambda: world.mark("b", "t", "s"))
        assert await world.drain("b", "t", "s") == ["a7", "a8"]

    play(body, mode=mode)


# --- 8: idle --------------------------------------------------------------------------------------


@BOTH
def test_8_nothing_happens_where_nothing_is_published(mode: str) -> None:
    """Scenario 8: no snapshot without messages; after the traffic the logs stand still."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.topic("idle")
        await world.subscribe("a", "idle", "s")
        await world.subscribe("a", "t", "s")
        await world.settled()
        assert world.meta("a").snapshots == world.meta("b").snapshots == 0
        sent = await publish_each(world, mode, "a", "t", 5)
        await world.same("t")
        assert await world.consume("a", "t", "s", 4) == sent[:4]
        await world.marked("b", "t", "s", 4)
        await world.settled()
        before = [(world.meta(name), world[name].nodes[0].machine.index) for name in "ab"]
        # Twenty periods of snapshots, and more than a second.
        await world.settled(1.1)
        assert before == [(world.meta(name), world[name].nodes[0].machine.index) for name in "ab"]
        assert world.snapshots("a", "idle") == world.snapshots("b", "idle") == {}
        for name in "ab":
            # Neither does the backlog of one that nobody consumes grow, nor the topic.
            assert (await world.api(name).sub("t", "s")).backlog == 1
            assert (await world.api(name).topic("t")).next == 6
        assert (await world.api("a").sub("idle", "s")).backlog == 0
        # It goes on with the traffic.
        sent += await publish_each(world, mode, "a", "t", 2)
        await world.same("t")
        assert await world.drain("b", "t", "s") == sent[4:]
        if mode == "vector":
            await world.marked("a", "t", "s", 7)

    play(body, mode=mode)


# --- 10: off and on -------------------------------------------------------------------------------


@BOTH
def test_10_off_and_on(mode: str) -> None:
    """Scenario 10: off, both regions consume everything; on again, they share what comes then."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        sent = await publish_each(world, mode, "a", "t", 6)
        await world.same("t")
        assert await world.consume("a", "t", "s", 5) == sent[:5]
        await world.marked("b", "t", "s", 5)
        for name in "ab":
            await world.api(name).set_replicate("t", "s", False)
            assert not (await world.api(name).sub("t", "s")).replicate
        sent += await world.publish("a", "t", 4)
        await world.same("t")
        await world.settled()
        snapshots = world.meta("a").snapshots
        assert await world.drain("a", "t", "s") == sent[5:]
        await world.settled()
        await world.marked("b", "t", "s", 5)
        assert await world.drain("b", "t", "s") == sent[5:]
        assert world.meta("a").snapshots == snapshots
        for name in "ab":
            await world.api(name).set_replicate("t", "s", True)
        sent += await publish_each(world, mode, "a", "t", 4)
        await world.same("t")
        assert await world.consume("a", "t", "s", 3) == sent[10:13]
        await world.marked("b", "t", "s", 13)
        assert await world.drain("b", "t", "s") == sent[13:]

    play(body, mode=mode)


@BOTH
def test_10_one_region_alone_is_off(mode: str) -> None:
    """Scenario 10: the switch is of one region. Off there: what others say is not taken."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        for name in "ab":
            await world.subscribe(name, "t", "s", replicate=name == "a")
        sent = await publish_each(world, mode, "a", "t", 4)
        await world.same("t")
        assert await world.drain("a", "t", "s") == sent
        await world.settled()
        assert world.mark("b", "t", "s") == 0
        # What a says after it was switched on is everything that it knows.
        await world.api("b").set_replicate("t", "s", True)
        await publish_each(world, mode, "a", "t", 1)
        assert await world.drain("a", "t", "s") == ["a5"]
        await world.marked("b", "t", "s", 5)

    play(body, mode=mode)


def test_10_the_switch_of_the_region() -> None:
    """Scenario 9 (the API of a broker without the feature): a typed error, and nothing is done."""

    async def body(world: Regions) -> None:
        await world.configure("b", enabled=False)
        await world.topic("t")
        with pytest.raises(ReplicationDisabled):
            await world.api("b").subscribe("t", "s", replicate=True)
        assert world.sub("b", "t", "s") is None
        await world.api("b").subscribe("t", "s", initial="earliest")
        with pytest.raises(ReplicationDisabled):
            await world.api("b").set_replicate("t", "s", True)
        assert not world.sub("b", "t", "s").replicate
        await world.subscribe("a", "t", "s")
        await world.subscribe("a", "t", "other")
        sent = await world.publish("a", "t", 3)
        await world.same("t")
        for sub in ("s", "other"):
            assert await world.drain("a", "t", sub) == sent
        await world.settled()
        assert world.mark("b", "t", "s") == 0
        assert world.sub("b", "t", "other") is None

    play(body)


# --- 11: a closed link ----------------------------------------------------------------------------


@BOTH
def test_11_what_was_deleted_meanwhile_appears_again(mode: str) -> None:
    """Scenario 11: b's link is closed, b deletes the subscription; it comes back with the link."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        sent = await publish_each(world, mode, "a", "t", 3)
        await world.same("t")
        assert await world.consume("a", "t", "s", 2) == sent[:2]
        await world.marked("b", "t", "s", 2)
        world.way("b", "a").cut()
        await world.api("b").unsubscribe("t", "s")
        assert world.sub("b", "t", "s") is None
        sent += await world.publish("a", "t", 3)
        assert await world.consume("a", "t", "s", 2) == sent[2:4]
        connections = world.way("b", "a").connections
        world.way("b", "a").heal()
        await world.same("t")
        assert world.way("b", "a").connections > connections
        if mode == "snapshot":
            await world.snapped("a", "t")
            sent += await publish_each(world, mode, "a", "t", 2)
            assert await world.consume("a", "t", "s", 2) == sent[4:6]
            await world.marked("b", "t", "s", 6)
            assert await world.drain("b", "t", "s") == sent[6:]
        else:
            await world.marked("b", "t", "s", 4)
            assert await world.drain("b", "t", "s") == sent[4:]

    play(body, mode=mode)


# --- 12: readers and compaction -------------------------------------------------------------------


@BOTH
def test_12_a_reader_sees_messages_only(mode: str) -> None:
    """Scenario 12: 6 messages with snapshots all between them; a reader in b ends after 6."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        sent = await publish_each(world, mode, "a", "t", 6)
        await world.same("t")
        assert await world.drain("a", "t", "s") == sent
        await world.marked("b", "t", "s", 6)
        assert world.meta("a").snapshots == (6 if mode == "snapshot" else 0)
        for name in "ab":
            reader = await world.api(name).reader("t", start="earliest")
            seen: list[Any] = []
            while await reader.has_more():
                seen.append(await reader.next(timeout_s=DEADLINE_S))
            assert [(read.position, read.body.decode()) for read in seen] == list(
                enumerate(sent, start=1)
            )
            assert await reader.next(timeout_s=0.05) is None
            late = await world.api(name).reader("t", start="latest")
            assert not await late.has_more()
            reader.close()
            late.close()
            status = await world.api(name).topic("t")
            assert status.next == 7

    play(body, mode=mode)


@BOTH
def test_12_a_reader_waits_for_what_links_bring(mode: str) -> None:
    """Scenario 12: it is woken by a message of the other region, and by no marker."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        await world.publish("b", "t", 2)
        await world.same("t")
        if mode == "snapshot":
            await world.snapped("a", "t")
        reader = await world.api("a").reader("t", start="latest")
        waiting = asyncio.ensure_future(reader.next(timeout_s=DEADLINE_S))
        assert await world.drain("a", "t", "s") == ["b1", "b2"]
        await world.marked("b", "t", "s", 2)
        await world.settled()
        assert not waiting.done()
        await world.publish("b", "t")
        assert (await waiting).body == b"b3"
        reader.close()

    play(body, mode=mode)


@BOTH
def test_12_compaction_leaves_the_last_value(mode: str) -> None:
    """Scenario 12: only the last message of each key is read, in every region that has it all."""

    async def body(world: Regions) -> None:
        await world.topic("t", compacted=True)
        await world.subscribe("a", "t", "s")
        for number in range(1, 7):
            await world.publish("a", "t", key=f"k{number % 2}")
            if mode == "snapshot":
                await world.snapped("a", "t")
        await world.same("t")
        assert len(await world.drain("a", "t", "s")) == 6
        await world.marked("b", "t", "s", 6)
        for name in "ab":
            reader = await world.api(name).reader("t", start="earliest", compacted=True)
            seen = []
            while await reader.has_more():
                seen.append((await reader.next(timeout_s=DEADLINE_S)).body)
            assert seen == [b"a5", b"a6"]
            reader.close()

    play(body, mode=mode)


@pytest.mark.parametrize("names", ["a", "ab"])
def test_12_nothing_but_messages_is_written_for_nobody(names: str) -> None:
    """Scenario 12: without another region, or without a replicated subscription: no snapshots."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s", replicate=names == "a")
        await world.publish("a", "t", 5)
        await world.same("t")
        await world.settled()
        index = world["a"].nodes[0].machine.index
        await world.publish("a", "t", 5)
        await world.same("t")
        await world.settled()
        for name in names:
            for table in ("markers", "marked", "snapshots", "cached", "pending"):
                assert world[name].table(table) == {}
            assert world.meta(name).snapshots == world.meta(name).updates == 0
        # The publication is one entry; where others fetch it, they say once that they have it.
        assert world["a"].nodes[0].machine.index - index <= len(names)
        assert len(await world.drain("a", "t", "s")) == 10

    play(body, names, mode="snapshot")

"""The parts of links, each alone: ranges, frames, lanes, feeds, what is said of subscriptions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.errors import ConfigError
from raftkv.testing.clock import run
from raftkv_subscriptions.commands import (
    Ack,
    AckTo,
    Deliver,
    Publish,
    PutRegion,
    SetReplicate,
    SnapshotAnswer,
    SnapshotStart,
    Unsubscribe,
)
from raftkv_subscriptions.links import acknowledged, feed
from raftkv_subscriptions.links.acknowledged import States
from raftkv_subscriptions.links.errors import LinkBroken, LinkRefused
from raftkv_subscriptions.links.feed import TopicFeed, wanted_by
from raftkv_subscriptions.links.frames import (
    LINE_BYTES_MAX,
    STATE_RANGES,
    Alive,
    Bye,
    FrameError,
    Hello,
    LinkRequest,
    MarkerFrame,
    MessagesFrame,
    StateFrame,
    TopicFrame,
    decode,
    encode,
)
from raftkv_subscriptions.links.lanes import Lane, Lanes
from raftkv_subscriptions.links.spans import above, chunks, joined, minus
from raftkv_subscriptions.links.transport import DoorTransport, check_link
from raftkv_subscriptions.options import LinkOptions
from raftkv_subscriptions.rows import Advance, Answer, Copy, Hole, Message, Ranges, Request
from raftkv_subscriptions.views import state_of
from tests.plugins.raftkv_subscriptions.link_worlds import World, links

# --- spans ----------------------------------------------------------------------------------------

SETS = st.sets(st.tuples(st.sampled_from("ab"), st.integers(1, 30)))


def ranges_of(numbers: set[tuple[str, int]]) -> Ranges:
    return joined([(origin, seq, seq) for origin, seq in numbers], [])


def set_of(ranges: Ranges) -> set[tuple[str, int]]:
    return {(origin, seq) for origin, first, last in ranges for seq in range(first, last + 1)}


def is_normal(ranges: Ranges) -> bool:
    return all(
        first <= last and (at == 0 or ranges[at - 1][0] < origin or ranges[at - 1][2] + 1 < first)
        for at, (origin, first, last) in enumerate(ranges)
    )


@given(SETS, SETS, st.dictionaries(st.sampled_from("ab"), st.integers(0, 30)))
def test_ranges_are_sets(
    one: set[tuple[str, int]], other: set[tuple[str, int]], marks: dict[str, int]
) -> None:
    first, second = ranges_of(one), ranges_of(other)
    for found, expected in (
        (joined(first, second), one | other),
        (minus(first, second), one - other),
        (above(first, marks), {(o, s) for o, s in one if s > marks.get(o, 0)}),
    ):
        assert set_of(found) == expected
        assert is_normal(found)


def test_ranges_go_in_pieces_and_nothing_is_one_piece() -> None:
    ranges = tuple(("a", 2 * n + 1, 2 * n + 1) for n in range(5))
    assert list(chunks(ranges, 2)) == [ranges[:2], ranges[2:4], ranges[4:]]
    assert list(chunks((), 2)) == [()]


# --- frames ---------------------------------------------------------------------------------------

FRAMES = [
    Hello("a", "core1"),
    TopicFrame("t", (("a", 1),), True, 1, 2, 3),
    MessagesFrame(
        "t", (Hole("a", 1, 3), Copy("a", 4, Message(b"\x00\xff", "k", (("h", "\x01ü"),)), 7))
    ),
    MarkerFrame("t", Request(5, "a", 1)),
    MarkerFrame("t", Answer(5, "b", 2, "a", 9, (("a", 4),))),
    MarkerFrame("t", Advance(5, "s", "shared", (("b", 3),), (("a", 1),), (("a", 1, 2),))),
    StateFrame("t", "s", "failover", (("a", 1),), (("a", 2, 3),), True),
    Alive(5, "vector", {"t": (("a", 1),)}),
    Bye("stopping", "this node stops"),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_frames_survive_their_lines(frame: Any) -> None:
    line = encode(frame)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == frame


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"\xff",
        b"[" * 5_000,
        b'{"type":"secret-word"}',
        b'{"type":"messages","topic":"t","parts":[]}',
        b'{"type":"messages","topic":"","parts":[["hole","a",1,1]]}',
        b'{"type":"messages","topic":"t","parts":[["hole","a",0,1]]}',
        b'{"type":"messages","topic":"t","parts":[["hole","a",1,9223372036854775808]]}',
        b'{"type":"messages","topic":"t","parts":[["copy","a",1,["!!",""],1]]}',
        b'{"type":"state","topic":"t","sub":"s","kind":"other","base":[],"ranges":[]}',
        b'{"type":"alive","at_ms":-1}',
        b'{"type":"bye"}' + b" " * LINE_BYTES_MAX,
    ],
)
def test_what_is_no_frame_is_refused_and_not_quoted(line: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        decode(line)
    assert "!!" not in str(caught.value)
    assert len(str(caught.value)) < 200


# --- lanes ----------------------------------------------------------------------------------------


def test_lanes_keep_their_order_and_run_side_by_side() -> None:
    async def body() -> None:
        done: list[tuple[str, int]] = []
        batches: list[int] = []

        async def work(lane: Lane[tuple[str, int]]) -> None:
            taken = [lane.take()]
            while lane.peek() is not None and len(taken) < 4:
                taken.append(lane.take())
            await asyncio.sleep(1.0 if taken[0][0] == "slow" else 0.01)
            batches.append(len(taken))
            done.extend(taken)

        async with asyncio.TaskGroup() as group:
            lanes: Lanes[tuple[str, int]] = Lanes(group, work, 1_000)
            for number in range(10):
                await lanes.put("slow", ("slow", number), 10)
                await lanes.put("fast", ("fast", number), 10)
            assert lanes.size == 200
        for name in ("slow", "fast"):
            assert [n for kind, n in done if kind == name] == list(range(10))
        assert done[0][0] == done[9][0] == "fast"
        assert (lanes.size, len(lanes)) == (0, 0)
        assert max(batches) == 4

    run(body())


def test_who_puts_waits_for_room() -> None:
    async def body() -> None:
        held: list[int] = []

        async def work(lane: Lane[int]) -> None:
            lane.take()
            await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as group:
            lanes: Lanes[int] = Lanes(group, work, 100)
            # One that is larger than all the room is let in alone.
            for size in (250, 40, 40, 40, 300, 1):
                await lanes.put("x", size, size)
                held.append(lanes.size)
        assert held == [250, 40, 80, 80, 300, 1]

    run(body())


def test_a_lane_that_fails_ends_all() -> None:
    async def body() -> None:
        async def work(lane: Lane[int]) -> None:
            if lane.take() == 3:
                raise LinkBroken("three")
            await asyncio.sleep(100)

        async def fill() -> None:
            async with asyncio.TaskGroup() as group:
                lanes: Lanes[int] = Lanes(group, work, 100)
                for number in range(5):
                    await lanes.put(number, number, 60)

        with pytest.raises(ExceptionGroup) as caught:
            await fill()
        assert isinstance(caught.value.exceptions[0], LinkBroken)

    async def timed() -> None:
        # The fourth finds room when the first is done, and then all is over.
        await body()
        assert asyncio.get_running_loop().time() < 400

    run(timed())


# --- feeds ----------------------------------------------------------------------------------------


def feed_of(world: World, asked: dict[str, int], wanted: Callable[[str], bool]) -> TopicFeed:
    topic = world.topic("a", "t")
    assert topic is not None
    return TopicFeed(
        world.view("a"),
        "t",
        topic,
        tuple(sorted(asked.items())),
        wanted,
        own="a",
        target="b",
        markers=False,
        paused=False,
    )


def all_parts(world: World, source: TopicFeed) -> list[Copy | Hole]:
    parts: list[Copy | Hole] = []
    more = True
    while more:
        topic = world.topic("a", "t")
        assert topic is not None
        frame, more = source.messages(world.view("a"), topic)
        if frame is not None:
            assert len(frame.parts) <= 1_000
            parts.extend(frame.parts)
    return parts


def test_who_wants_what() -> None:
    mesh = wanted_by("b", "own", "a", frozenset("ac"))
    assert [mesh(origin) for origin in "abcd"] == [True, False, False, True]
    ring = wanted_by("b", "all", "a", frozenset("ac"))
    assert [ring(origin) for origin in "abcd"] == [True, False, True, True]


@pytest.mark.parametrize("seed", range(8))
def test_a_feed_has_no_gap_whatever_is_asked(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From any vector, to what is here: every number once, as a message or within a hole."""
    rng = random.Random(seed)
    monkeypatch.setattr(feed, "SCAN_ROWS", 7)
    monkeypatch.setattr(feed, "FRAME_BYTES", 500)

    @links(shape={"a": {"c": "all"}, "c": {"a": "all"}}, connected=False)
    async def story(world: World) -> None:
        for way in (world.way("a", "c"), world.way("c", "a")):
            way.cut()
        await world.until(lambda: "c" in world["a"].table("regions"))
        # c fetches nothing from here, so retention takes the oldest.
        await world.propose("a", PutRegion("c", fetches=False))
        await world.declare("a", "t", retention_ms=10_000, compacted=seed % 2 == 1)
        known = dict.fromkeys("cd", 0)
        for _ in range(120):
            origin = rng.choice("acd")
            message = Message(b"x" * rng.randrange(60), rng.choice(["", f"k{rng.randrange(40)}"]))
            if origin == "a":
                await world.propose("a", Publish("t", (message,)))
            else:
                part: Copy | Hole = Copy(origin, known[origin] + 1, message, 0)
                if rng.random() < 0.1:
                    part = Hole(origin, known[origin] + 1, known[origin] + 3)
                known[origin] += 3 if isinstance(part, Hole) else 1
                await world.propose("a", Deliver("t", "c", (part,)))
            await asyncio.sleep(0.2)
        topic = world.topic("a", "t")
        assert topic is not None
        assert 10 < topic.first < topic.next
        assert (topic.kept > 0) == topic.compacted
        here = world.vector("a", "t")
        for _ in range(30):
            asked = {origin: rng.randrange(seq + 1) for origin, seq in here.items()}
            wants = frozenset(rng.sample("acd", rng.randrange(1, 4)))
            parts = all_parts(world, feed_of(world, asked, wants.__contains__))
            for origin in "acd":
                at = asked.get(origin, 0)
                for part in parts:
                    if part.origin != origin:
                        continue
                    assert origin in wants
                    first, last = (
                        (part.first, part.last) if isinstance(part, Hole) else (part.seq, part.seq)
                    )
                    assert first == at + 1
                    at = last
                assert at == (here.get(origin, 0) if origin in wants else asked.get(origin, 0))
            stored = {(row.origin, row.seq) for row in world["a"].table("messages").values()}
            sent = {(part.origin, part.seq) for part in parts if isinstance(part, Copy)}
            assert sent == {
                (origin, seq)
                for origin, seq in stored
                if origin in wants and seq > asked.get(origin, 0)
            }

    story()


def test_markers_come_behind_the_messages_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "FRAME_BYTES", 500)

    @links(shape={"a": {}}, connected=False, mode="snapshot")
    async def story(world: World) -> None:
        for region in "bc":
            await world.propose("a", PutRegion(region))
        await world.declare("a", "t")
        await world.subscribe("a", "t", "s")
        await world.publish("a", "t", *(str(n) for n in range(50)))
        started = await world.propose("a", SnapshotStart("t"))
        await world.propose("a", SnapshotAnswer("t", "c", 7, 1))
        await world.propose("a", SnapshotAnswer("t", "b", 8, 1))
        await world.publish("a", "t", *(str(n) for n in range(50)))
        topic = world.topic("a", "t")
        assert topic is not None
        made: dict[str, Any] = {"own": "a", "target": "b", "paused": False}
        source = TopicFeed(world.view("a"), "t", topic, (), bool, markers=True, **made)
        seen: list[tuple[int, list[object]]] = []
        more = True
        while more:
            _, more = source.messages(world.view("a"), topic)
            seen.append((source.at, [each.what for each in source.markers(world.view("a"))]))
        assert len(seen) > 5
        told = [(at, what) for at, whats in seen for what in whats]
        assert all(at >= 50 for at, _ in told)
        first = next(at for at, _ in seen if at >= 50)
        # A request is for all; an answer is for who asked.
        assert told == [
            (first, Request(started.id, "a", 1)),
            (first, Answer(8, "b", 1, "a", 50, (("a", 50),))),
        ]
        silent = TopicFeed(world.view("a"), "t", topic, (), bool, markers=False, **made)
        while silent.messages(world.view("a"), topic)[1]:
            pass
        assert silent.markers(world.view("a")) == ()

    story()


# --- what is said of subscriptions ----------------------------------------------------------------


def said(states: States, world: World, now: float) -> list[StateFrame]:
    return [frame for _, frames in states.take(world.view("a"), now) for frame in frames]


@links(shape={"a": {}}, connected=False)
async def test_what_is_new_is_said_once_and_not_too_often(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", *(str(n) for n in range(1, 101)))
    for name in "rs":
        await world.subscribe("a", "t", name)
    await world.subscribe("a", "t", "own", replicate=False)
    topic = world.topic("a", "t")
    assert topic is not None
    key = (topic.id, "s")
    states = States(0.02)
    assert states.next_due() is None
    states.walk(topic.id)
    assert states.next_due() == 0.0
    whole = said(states, world, 10.0)
    assert [(frame.sub, frame.ranges, frame.whole) for frame in whole] == [
        ("r", (), True),
        ("s", (), True),
    ]
    # Within its rest it waits, and then says everything at once.
    await world.propose("a", AckTo("t", "s", 5))
    states.touch(key, 10.001)
    assert said(states, world, 10.001) == []
    due = states.next_due()
    assert due is not None
    assert 10.02 <= due < 10.021
    await world.propose("a", Ack("t", "s", (8, 9)))
    states.touch(key, 10.002)
    (frame,) = said(states, world, due)
    assert (frame.ranges, frame.whole) == ((("a", 1, 5), ("a", 8, 9)), False)
    # After a rest at once, and only what is new.
    await world.propose("a", Ack("t", "s", (6, 7, 20)))
    states.touch(key, 11.0)
    (frame,) = said(states, world, 11.0)
    assert frame.ranges == (("a", 6, 7), ("a", 20, 20))
    # Nothing new: nothing is said. Sought back: nothing is taken back.
    await world.seek("a", "t", "s", 3)
    states.touch(key, 12.0)
    assert said(states, world, 12.0) == []
    await world.propose("a", AckTo("t", "s", 21))
    states.touch(key, 13.0)
    (frame,) = said(states, world, 13.0)
    assert frame.ranges == (("a", 10, 19), ("a", 21, 21))
    # Switched off and on, or made anew: everything.
    await world.propose("a", SetReplicate("t", "s", False))
    states.touch(key, 14.0)
    assert said(states, world, 14.0) == []
    await world.propose("a", SetReplicate("t", "s", True))
    states.touch(key, 15.0)
    (frame,) = said(states, world, 15.0)
    assert frame.whole
    await world.propose("a", Unsubscribe("t", "s"))
    await world.subscribe("a", "t", "s")
    states.touch(key, 16.0)
    (frame,) = said(states, world, 16.0)
    assert (frame.ranges, frame.whole) == ((), True)


@links(shape={"a": {}}, connected=False)
async def test_what_is_remembered_is_bounded(world: World) -> None:
    await world.declare("a", "t")
    for _ in range(4):
        await world.publish("a", "t", *["x"] * 500)
    topic = world.topic("a", "t")
    assert topic is not None
    states = States(0.0, remembered_max=1_200)
    for name in "pqrs":
        await world.subscribe("a", "t", name, kind="shared")
        await world.propose("a", Ack("t", name, tuple(range(2, 1_002, 2))))
    states.walk(topic.id)
    frames = said(states, world, 1.0)
    assert all(len(frame.ranges) <= STATE_RANGES for frame in frames)
    assert [len(frame.ranges) for frame in frames] == [500] * 4
    assert states._remembered <= 1_200
    await world.propose("a", Ack("t", "s", (1_500,)))
    await world.propose("a", Ack("t", "p", (1_500,)))
    for name in "sp":
        states.touch((topic.id, name), 9.0)
    found = said(states, world, 9.0)
    # "s" was remembered; "p" is told as a whole again, which needs two frames.
    assert [(frame.sub, len(frame.ranges), frame.whole) for frame in found] == [
        ("s", 1, False),
        ("p", 500, True),
        ("p", 1, True),
    ]
    # A larger set rests longer.
    states.touch((topic.id, "p"), 9.001)
    due = states.next_due()
    assert due is not None
    assert due == pytest.approx(9.0 + 501 * acknowledged.RANGE_S)
    assert len(state_of(world.view("a"), "t", "p").ranges) == 501


# --- the way over doors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "word"),
    [
        (LinkOptions(endpoints=("ftp://x:1",)), "not an endpoint"),
        (LinkOptions(endpoints=("http://x:1",), cert="c.pem"), "needs ca"),
        (LinkOptions(endpoints=("http://x:1",), ca="ca.pem"), "https://"),
        (LinkOptions(endpoints=("https://x:1",), ca="nowhere.pem"), "nowhere.pem"),
    ],
)
def test_options_that_cannot_be_used_say_so(link: LinkOptions, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        check_link(link)


def test_a_request_that_is_too_large_is_not_sent() -> None:
    async def body() -> None:
        transport = DoorTransport(LinkOptions(endpoints=("http://127.0.0.1:1",)))
        topics = {f"{n}/{'x' * 240}": (("a", 1),) for n in range(5_000)}
        with pytest.raises(LinkRefused) as caught:
            await transport.open(LinkRequest(region="b", topics=topics))
        assert caught.value.reason == "request_too_large"
        with pytest.raises(LinkBroken, match=r"127\.0\.0\.1:1 cannot be reached"):
            await transport.open(LinkRequest(region="b"))
        await transport.close()
        await transport.close()

    asyncio.run(body())

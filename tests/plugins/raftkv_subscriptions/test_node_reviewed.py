"""What a review of the node half found: each was a failing test first."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from raftkv.errors import Overloaded
from raftkv.testing.clock import run
from raftkv_subscriptions import line as line_module
from raftkv_subscriptions import service as service_module
from raftkv_subscriptions.commands import (
    DeclareTopic,
    DeleteTopic,
    Deliver,
    Published,
    PutRegion,
    SnapshotAnswered,
)
from raftkv_subscriptions.counting import Counters
from raftkv_subscriptions.errors import NotSent
from raftkv_subscriptions.line import Line
from raftkv_subscriptions.links import serving as serving_module
from raftkv_subscriptions.links.feed import TopicFeed
from raftkv_subscriptions.links.frames import FRAME_PARTS, LinkRequest
from raftkv_subscriptions.links.lanes import Lane, Lanes
from raftkv_subscriptions.refusals import OutOfOrder, TooManyKeys
from raftkv_subscriptions.rows import Copy, Hole, Message, Sub
from raftkv_subscriptions.scope import meta_of
from tests.plugins.raftkv_subscriptions.fakes import Cluster, story
from tests.plugins.raftkv_subscriptions.link_worlds import World, links

S0 = Sub(0)


# --- links: paused topics -------------------------------------------------------------------------


@links("a", "b")
async def test_many_topics_that_find_no_room_stop_no_other(world: World) -> None:
    await world.declare("a", "free")
    await world.until(lambda: world.topic("b", "free") is not None)
    world["b"].configure(topics_max=1)
    for number in range(60):
        await world.declare("a", f"more-{number:02}")
        await world.publish("a", f"more-{number:02}", "x")
    await asyncio.sleep(10)
    worst = 0.0
    for number in range(60):
        await world.publish("a", "free", str(number))
        took = await world.until(lambda n=number: world.vector("b", "free") == {"a": n + 1})
        worst = max(worst, took)
        await asyncio.sleep(1.0)
    assert worst < 1.5
    pull = world["b"].pull("a")
    assert len(pull.paused) == 60
    # Few tries: what finds no room is asked ever more rarely, and together.
    opened = pull.opened
    await asyncio.sleep(120)
    assert pull.opened - opened <= 12
    world["b"].configure(topics_max=100)
    await world.until(lambda: world.vector("b", "more-59") == {"a": 1}, 120)
    await world.until(lambda: world["b"].pull("a").paused == (), 120)
    assert pull.last_error == ""


@links("a", "b")
async def test_a_paused_topic_that_has_nothing_more_to_say_is_paused_no_longer(
    world: World,
) -> None:
    await world.declare("a", "free")
    await world.until(lambda: world.topic("b", "free") is not None)
    world["b"].configure(topics_max=1)
    await world.declare("a", "empty")
    pull = world["b"].pull("a")
    await world.until(lambda: pull.paused == ("empty",))
    world["b"].configure(topics_max=10)
    await world.until(lambda: world.topic("b", "empty") is not None)
    await asyncio.sleep(3)
    assert (pull.paused, pull.last_error) == ((), "")


@links("a", "b")
async def test_a_topic_that_was_deleted_there_is_no_lag(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", "x")
    await world.until(lambda: world.vector("b", "t") == {"a": 1})
    for region in "ab":
        await world.propose(region, DeclareTopic("t", replicated=False))
    for region in "ba":
        await world.propose(region, DeleteTopic("t"))
    await asyncio.sleep(5)
    (status,) = world["b"].service.links.statuses()
    assert status.lag == ()
    assert status.last_error == ""


@links("a", "b")
async def test_a_report_that_failed_once_is_no_error_for_ever(world: World) -> None:
    await world.declare("a", "t")
    world.way("a", "b").refuses_reports = 1
    await world.publish("a", "t", "x")
    pull = world["b"].pull("a")
    await world.until(lambda: "not told" in pull.last_error)
    await world.until(lambda: world.way("a", "b").reports != [])
    await asyncio.sleep(3)
    assert pull.last_error == ""


# --- links: order and room ------------------------------------------------------------------------


def test_a_worker_may_put_again_though_all_room_is_taken_by_its_own_lane() -> None:
    async def body() -> None:
        done: list[str] = []
        lanes: Lanes[str]

        async def work(lane: Lane[str]) -> None:
            item = lane.take()
            if item == "early":
                await asyncio.sleep(1)
                lanes.put_now("again", "late", 10)
            done.append(item)

        async with asyncio.TaskGroup() as group:
            lanes = Lanes(group, work, 100)
            await lanes.put("x", "early", 10)
            await lanes.put("x", "big", 90)
            async with asyncio.timeout(60):
                await lanes.put("x", "next", 50)
        assert sorted(done) == ["big", "early", "late", "next"]
        assert lanes.size == 0

    run(body())


@links("a", "b", mode="snapshot", period_ms=200)
async def test_an_update_of_the_same_snapshot_that_says_more_is_taken(world: World) -> None:
    await world.declare("a", "t")
    await world.subscribe("a", "t", "s")
    await world.publish("a", "t", *"123456")
    await world.until(lambda: meta_of(world.view("a")).snapshots == 1)
    await world.until(lambda: world.bodies("b", "t") == list("123456"))
    await world.subscribe("b", "t", "s")
    # It passes over some, which is no acknowledgement, and passes the snapshot.
    await world.seek("a", "t", "s", 3)
    await world.ack_to("a", "t", "s", 6)
    await asyncio.sleep(2)
    assert meta_of(world.view("a")).snapshots == 1
    assert world.acked("b", "t", "s") == (("a", 4, 6),)
    # Back, and now all: the same snapshot, without nothing.
    await world.seek("a", "t", "s", 0)
    await world.ack_to("a", "t", "s", 6)
    assert meta_of(world.view("a")).snapshots == 1
    await world.until(lambda: world.acked("b", "t", "s") == (("a", 1, 6),))
    assert (world.sub("b", "t", "s") or S0).mark == 6


# --- serving --------------------------------------------------------------------------------------


def test_a_mode_that_changes_amid_acknowledgements_leaves_the_streams_at_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = 0
    rest = serving_module._Stream._rest

    async def counted(self: Any, began: float, full: bool) -> None:
        nonlocal rounds
        rounds += 1
        await rest(self, began, full)

    monkeypatch.setattr(serving_module._Stream, "_rest", counted)

    @links("a", "b")
    async def story(world: World) -> None:
        nonlocal rounds
        await world.declare("a", "t")
        await world.subscribe("a", "t", "s")
        await world.publish("a", "t", *"123456")
        await world.until(lambda: world.sub("b", "t", "s") is not None)
        await asyncio.sleep(1)
        for position in range(1, 4):
            await world.ack_to("a", "t", "s", position)
        for name in "ab":
            world[name].configure(mode="snapshot", period_ms=60_000)
        await asyncio.sleep(5)
        rounds = 0
        await asyncio.sleep(60)
        assert rounds < 400  # two streams, each a few times a second at most
        # Nothing of it is lost when the mode changes again.
        for name in "ab":
            world[name].configure(mode="vector")
        await world.until(lambda: world.acked("b", "t", "s") == (("a", 1, 3),))

    story()


@links(shape={"a": {}}, connected=False)
async def test_streams_that_nobody_reads_stand_in_nobodys_way(world: World) -> None:
    await world.propose("a", PutRegion("b"))
    serving = world["a"].serving("core1")
    streams = []
    for _ in range(100):
        # Half-open: what it says is not taken, nor does its connection end.
        lines = await serving.open(LinkRequest(region="b"))
        await anext(lines)
        streams.append(lines)
    assert len(serving) <= 2
    for lines in streams:
        await lines.aclose()
    assert len(serving) == 0


@links(shape={"a": {}}, connected=False)
async def test_holes_of_many_origins_fit_into_a_frame(world: World) -> None:
    await world.declare("a", "t")
    await world.propose("a", PutRegion("b"))
    for number in range(60):
        await world.propose("a", Deliver("t", "b", (Hole(f"gone-{number}", 1, 5),)))
    for start in (1, 501):
        parts = tuple(Copy("b", n, Message(b""), 0) for n in range(start, start + 500))
        await world.propose("a", Deliver("t", "b", parts[: 500 if start == 1 else 466]))
    topic = world.topic("a", "t")
    assert topic is not None
    source = TopicFeed(
        world.view("a"), "t", topic, (), bool, own="a", target="c", markers=False, paused=False
    )
    holes = 0
    more = True
    while more:
        frame, more = source.messages(world.view("a"), topic)
        assert frame is not None
        assert len(frame.parts) <= FRAME_PARTS
        holes += sum(isinstance(part, Hole) for part in frame.parts)
    assert holes == 60


# --- the API's half -------------------------------------------------------------------------------


class Body:
    """Something that can be watched being forgotten."""


@story(cores=1)
async def test_what_callers_left_behind_is_not_kept_while_the_log_stands_still(
    cluster: Cluster,
) -> None:
    release = asyncio.Event()
    done: list[object] = []

    async def work(jobs: Any) -> None:
        await release.wait()
        for job in jobs:
            done.append(job.part)
            job.succeed(None)

    line = Line(cluster.nodes["core1"], Counters(), "work", {"x": work}, frozenset({"x"}))
    first = asyncio.ensure_future(line.do("x", "first", None))
    await asyncio.sleep(0)
    left: list[weakref.ref[Body]] = []
    for _ in range(30):
        body = Body()
        left.append(weakref.ref(body))
        with pytest.raises(NotSent):
            await line.do("x", (body,), 0.01)
        del body
    gc.collect()
    # The last error is still in the hands of this test.
    assert [one() for one in left[:-1]] == [None] * 29
    # Nor do they take the place of those who wait.
    assert len(line._jobs) <= 16
    last = asyncio.ensure_future(line.do("x", "last", None))
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(first, last)
    assert done == ["first", "last"]


@story(unacked_max=2)
async def test_a_higher_limit_of_messages_in_hands_wakes_who_waits(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    async with subs.consumer("t", "s", kind="shared", initial="earliest") as consumer:
        await cluster.fill("t", "x", "y", "z")
        assert len(await consumer.receive(3, wait_s=1.0)) == 2
        waiting = asyncio.ensure_future(consumer.receive(1, wait_s=60.0))
        await asyncio.sleep(1)
        assert not waiting.done()
        cluster.configure(unacked_max=5)
        await asyncio.sleep(1)
        assert waiting.done()
        assert len(await waiting) == 1


@story()
async def test_a_time_that_is_no_time_is_a_value_error(cluster: Cluster) -> None:
    for wrong in (float("inf"), float("nan"), -1.0):
        with pytest.raises(ValueError, match="retention_s"):
            await cluster.subs("core1").declare("u", retention_s=wrong)


# --- the leader's looks ---------------------------------------------------------------------------


@links(shape={"a": {}}, connected=False)
async def test_what_gets_due_amid_a_look_is_swept_too(world: World) -> None:
    host = world["a"].nodes["core1"]
    real = host.now_ms
    calls = 0

    def moving() -> int:
        # A look takes a while: the second time it is asked the clock is another one.
        nonlocal calls
        calls += 1
        return real() + min(50, 50 * (calls - 1))

    await world.declare("a", "t", retention_ms=1_000, replicated=False)
    await world.publish("a", "t", "x")
    await asyncio.sleep(0.96)
    await world.declare("a", "other")
    host.now_ms = moving  # type: ignore[method-assign]
    # Nothing happens afterwards that would bring another look.
    await asyncio.sleep(10)
    assert world.bodies("a", "t") == []


def test_a_look_at_many_topics_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    #: How many topics were looked at before others had their turn.
    looked: list[int] = []
    turn = False
    due = service_module.is_due

    def counted(*args: Any) -> bool:
        nonlocal turn
        if not turn:
            turn = True
            looked.append(0)
            asyncio.get_running_loop().call_soon(end)
        looked[-1] += 1
        return due(*args)

    def end() -> None:
        nonlocal turn
        turn = False

    monkeypatch.setattr(service_module, "is_due", counted)

    @links(shape={"a": {}}, connected=False)
    async def story(world: World) -> None:
        for number in range(400):
            await world.declare("a", f"t{number:03}", retention_ms=1_000)
            await world.publish("a", f"t{number:03}", "x")
            await world.subscribe("a", f"t{number:03}", "s", replicate=False)
        await asyncio.sleep(5)
        looked.clear()
        await world.ack_to("a", "t399", "s", 1)
        await world.until(lambda: world.bodies("a", "t399") == [], 2)
        assert sum(looked) >= 400
        assert max(looked) <= 100

    story()


@story(keys_max=10)
async def test_one_that_is_refused_among_many_costs_few_commands(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    await subs.declare("c", compacted=True)
    await subs.publish("c", [Message(b"x", key=str(number)) for number in range(10)])
    release = cluster.hold("core1", "publish")
    first = asyncio.ensure_future(subs.publish("c", Message(b"first", key="0")))
    await asyncio.sleep(0.1)
    keys = [str(number % 10) for number in range(200)]
    keys[77] = "one too many"
    told = [asyncio.ensure_future(subs.publish("c", Message(b"y", key=key))) for key in keys]
    await asyncio.sleep(0.1)
    before = cluster.proposals("publish")
    release()
    await first
    done = await asyncio.gather(*told, return_exceptions=True)
    assert [type(one).__name__ for one in done].count("TooManyKeys") == 1
    assert isinstance(done[77], TooManyKeys)
    places = [one.first for one in done if isinstance(one, Published)]
    assert places == list(range(12, 211))
    assert cluster.proposals("publish") - before <= 20


def test_those_who_left_are_not_counted_among_those_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_module, "JOBS_MAX", 40)

    @story(cores=1)
    async def whole(cluster: Cluster) -> None:
        release = asyncio.Event()

        async def work(jobs: Any) -> None:
            await release.wait()
            for job in jobs:
                job.succeed(job.part)

        line = Line(cluster.nodes["core1"], Counters(), "work", {"x": work}, frozenset({"x"}))
        calls = [asyncio.ensure_future(line.do("x", number, None)) for number in range(30)]
        await asyncio.sleep(0)
        for _ in range(200):
            with pytest.raises(NotSent):
                await line.do("x", None, 0.01)
        calls += [asyncio.ensure_future(line.do("x", number, None)) for number in range(30, 41)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await line.do("x", None, 0.01)
        release.set()
        assert await asyncio.gather(*calls) == list(range(41))

    whole()


@links("a", "b", mode="snapshot", period_ms=200, options={"link_bytes_max": 1024 * 1024})
async def test_an_early_answer_before_a_full_window_stalls_no_link(world: World) -> None:
    """Its lane has taken all the room when the answer is to be put back."""
    await world.declare("a", "t")
    await world.subscribe("a", "t", "s")
    await world.until(lambda: world.topic("b", "t") is not None)
    pull = world["b"].pull("a")
    tries = 0
    propose = pull._propose

    async def early(command: Any) -> Any:
        nonlocal tries
        if isinstance(command, SnapshotAnswered):
            tries += 1
            # While it is asked, the window fills with what is behind it.
            await asyncio.sleep(5)
            assert pull._lanes is not None
            pull._lanes._bytes_max = pull._lanes.size  # to the last byte
            raise OutOfOrder("c", 1)
        return await propose(command)

    pull._propose = early  # type: ignore[method-assign]
    await world.subscribe("b", "t", "s")
    await world.publish("b", "t", "x")
    await world.until(lambda: tries > 0)
    for _ in range(20):
        await world.publish("a", "t", *["x" * 100_000] * 5)
    await world.until(lambda: world.vector("b", "t").get("a") == 100, 60)

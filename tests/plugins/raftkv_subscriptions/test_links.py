"""Links between regions, in virtual time: order, once, back-pressure, failures of both ends."""

from __future__ import annotations

import asyncio

from raftkv_subscriptions.commands import (
    Ack,
    DeleteTopic,
    Publish,
    PutRegion,
    SetReplicate,
    Unsubscribe,
)
from raftkv_subscriptions.links.errors import LinkBroken
from raftkv_subscriptions.links.frames import Alive, MessagesFrame, StateFrame
from raftkv_subscriptions.rows import Copy, Hole, Message, Sub
from raftkv_subscriptions.scope import meta_of
from raftkv_subscriptions.status import status_of
from tests.plugins.raftkv_subscriptions.link_worlds import World, links

S0 = Sub(0)


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


# --- messages -------------------------------------------------------------------------------------


@links("a", "b")
async def test_a_topic_and_its_messages_come_over(world: World) -> None:
    await world.declare("a", "t", retention_ms=5_000_000)
    await world.publish("a", "t", "x", "y")
    took = await world.until(lambda: world.bodies("b", "t") == ["x", "y"])
    assert took < 0.1
    topic = world.topic("b", "t")
    assert topic is not None
    assert (topic.replicated, topic.retention_ms, topic.seq) == (True, 5_000_000, 0)
    await world.publish("b", "t", "z")
    took = await world.until(lambda: world.bodies("a", "t") == ["x", "y", "z"])
    assert took < 0.02
    assert world.vector("a", "t") == world.vector("b", "t") == {"a": 2, "b": 1}


@links("a", "b", "c")
async def test_a_mesh_brings_each_message_once(world: World) -> None:
    await world.declare("a", "t")
    await world.until(lambda: all(world.topic(name, "t") is not None for name in "abc"))
    for round_ in range(20):
        for name in "abc":
            await world.publish(name, "t", *(f"{name}{round_}.{n}" for n in range(3)))
    full = {"a": 60, "b": 60, "c": 60}
    await world.until(lambda: all(world.vector(name, "t") == full for name in "abc"))
    for name in "abc":
        bodies = world.bodies(name, "t")
        for origin in "abc":
            sent = [f"{origin}{round_}.{n}" for round_ in range(20) for n in range(3)]
            assert [body for body in bodies if body[0] == origin] == sent
        assert meta_of(world.view(name)).doubles == 0


@links(shape={"a": {"c": "all"}, "b": {"a": "all"}, "c": {"b": "all"}}, connected=False)
async def test_a_ring_passes_on_and_never_doubles(world: World) -> None:
    for source, target in (("a", "b"), ("b", "c"), ("c", "a")):
        await world.propose(source, PutRegion(target))
    await world.connected()
    await world.declare("a", "t")
    await world.until(lambda: all(world.topic(name, "t") is not None for name in "abc"))
    for round_ in range(10):
        for name in "abc":
            await world.publish(name, "t", f"{name}{round_}")
            await asyncio.sleep(0.01)
    full = {"a": 10, "b": 10, "c": 10}
    await world.until(lambda: all(world.vector(name, "t") == full for name in "abc"))
    assert all(len(world.bodies(name, "t")) == 30 for name in "abc")
    # That a does not fetch from b is no mistake on a ring.
    assert (await status_of(world["a"].nodes["core1"])).warnings == ()


@links("a", "b")
async def test_what_was_there_before_the_link_comes_too(world: World) -> None:
    world.way("a", "b").cut()
    await world.declare("a", "t")
    for start in range(0, 3_000, 500):
        await world.publish("a", "t", *numbers(start, start + 499))
    await asyncio.sleep(30)
    assert world.topic("b", "t") is None
    world.way("a", "b").heal()
    await world.until(lambda: world.bodies("b", "t") == numbers(0, 2_999))
    frames = [f for f in world.way("a", "b").frames if isinstance(f, MessagesFrame)]
    # One command takes a thousand, so few were needed.
    assert len(frames) <= 10
    assert world["b"].proposals("deliver") <= 10


@links("a", "b", options={"link_bytes_max": 1024 * 1024})
async def test_a_far_region_is_fed_by_windows_not_by_round_trips(world: World) -> None:
    """5,000 messages/s with 150 ms each way flow, and arrive one delay after they were sent."""
    for way in (world.way("a", "b"), world.way("b", "a")):
        way.delay_s = 0.15
    await world.declare("a", "t")
    await world.until(lambda: world.topic("b", "t") is not None)
    loop = asyncio.get_running_loop()
    began = loop.time()
    body = "x" * 200
    for _ in range(400):
        await world.publish("a", "t", *[body] * 25)
        await asyncio.sleep(0.005)
    took = loop.time() - began
    assert 10_000 / took > 1_500  # what this test sends, on its fake log
    late = await world.until(lambda: world.vector("b", "t") == {"a": 10_000})
    assert late < 0.25
    await world.publish("a", "t", "last")
    late = await world.until(lambda: world.vector("b", "t") == {"a": 10_001})
    assert 0.15 <= late < 0.17


# --- back-pressure --------------------------------------------------------------------------------


@links("a", "b", options={"link_bytes_max": 1024 * 1024})
async def test_a_region_that_cannot_write_stops_its_source(world: World) -> None:
    await world.declare("a", "t")
    await world.until(lambda: world.topic("b", "t") is not None)
    release = world["b"].hold("core1", "deliver")
    body = "x" * 100_000
    for _ in range(100):
        await world.publish("a", "t", *[body] * 5)
    await asyncio.sleep(60)
    pull = world["b"].pull("a")
    assert pull.bytes_in_flight <= 1024 * 1024 + 200_000
    assert pull.max_bytes_held <= 1024 * 1024 + 200_000
    served = sum(world["a"].serving(name).bytes for name in world["a"].nodes)
    assert served < 8 * 1024 * 1024
    release()
    await world.until(lambda: world.vector("b", "t") == {"a": 500})
    await world.until(lambda: pull.bytes_in_flight == 0)


@links("a", "b")
async def test_a_full_topic_waits_and_stops_no_other(world: World) -> None:
    await world.declare("b", "full", backlog_bytes_max=1_000)
    await world.declare("a", "full")
    await world.declare("a", "free")
    await world.until(lambda: world.topic("b", "free") is not None)
    await world.subscribe("b", "full", "s", replicate=False)
    # Others' messages find more room than publications: a region must not be filled by its own.
    for _ in range(20):
        await world.publish("a", "full", "x" * 200_000)
        await asyncio.sleep(0.2)
    await asyncio.sleep(5)
    kept = world.vector("b", "full")["a"]
    assert 5 < kept < 20
    pull = world["b"].pull("a")
    assert pull.paused == ("full",)
    assert "full" in pull.last_error
    assert pull.state == "connected"
    for number in range(20):
        await world.publish("a", "free", str(number))
        took = await world.until(lambda n=number: world.vector("b", "free") == {"a": n + 1})
        assert took < 0.1
    # Room: by a higher limit.
    await world.declare("b", "full", backlog_bytes_max=0)
    await world.until(lambda: world.vector("b", "full") == {"a": 20}, 120)
    assert world["b"].pull("a").paused == ()


# --- acknowledgements -----------------------------------------------------------------------------


@links("a", "b")
async def test_an_acknowledgement_is_there_within_milliseconds(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", *numbers(1, 100))
    await world.subscribe("a", "t", "s")
    await world.until(lambda: world.sub("b", "t", "s") is not None)
    await world.until(lambda: world.vector("b", "t") == {"a": 100})
    for position in (10, 20, 50):
        await asyncio.sleep(1)
        await world.ack_to("a", "t", "s", position)
        took = await world.until(lambda p=position: world.acked("b", "t", "s") == (("a", 1, p),))
        assert took < 0.01
        sub = world.sub("b", "t", "s")
        assert sub is not None
        assert sub.mark == position
    await world.propose("b", Ack("t", "s", (60, 70, 71)))
    both = (("a", 1, 50), ("a", 60, 60), ("a", 70, 71))
    await world.until(lambda: world.acked("a", "t", "s") == both)
    assert world.acked("b", "t", "s") == both


@links("a", "b", "c")
async def test_what_is_known_is_not_proposed_again(world: World) -> None:
    """In a mesh, each region hears of an acknowledgement from two."""
    await world.declare("a", "t")
    await world.publish("a", "t", *numbers(1, 100))
    await world.subscribe("a", "t", "s")
    await world.until(lambda: all(world.sub(n, "t", "s") is not None for n in "bc"))
    await world.until(lambda: all(world.vector(n, "t") == {"a": 100} for n in "bc"))
    before = {name: world[name].proposals("merge") for name in "abc"}
    for position in range(1, 51):
        await world.ack_to("a", "t", "s", position)
        await asyncio.sleep(0.1)
    await world.until(lambda: all(world.acked(n, "t", "s") == (("a", 1, 50),) for n in "bc"))
    assert world["a"].proposals("merge") == before["a"]
    for name in "bc":
        # Now and then the roundabout way is as fast.
        assert world[name].proposals("merge") - before[name] <= 75


@links("a", "b")
async def test_many_acknowledgements_share_frames_and_say_only_what_is_new(world: World) -> None:
    await world.declare("a", "t")
    for start in range(0, 3_000, 500):
        await world.publish("a", "t", *numbers(start, start + 499))
    await world.subscribe("a", "t", "s", kind="shared")
    await world.until(lambda: world.sub("b", "t", "s") is not None)
    await world.until(lambda: world.vector("b", "t") == {"a": 3_000})
    way = world.way("a", "b")
    seen = len(way.frames)
    for start in range(1_000):
        await world.propose("a", Ack("t", "s", (2 * start + 1,)))
    await world.until(lambda: len(world.acked("b", "t", "s")) == 1_000)
    frames = [frame for frame in way.frames[seen:] if isinstance(frame, StateFrame)]
    assert sum(len(frame.ranges) for frame in frames) <= 1_010
    assert len(frames) <= 200


@links("a", "b")
async def test_a_link_that_comes_back_tells_everything_again(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", *numbers(1, 20))
    await world.subscribe("a", "t", "s")
    await world.until(lambda: world.sub("b", "t", "s") is not None)
    world.way("a", "b").cut()
    await world.ack_to("a", "t", "s", 15)
    await world.publish("a", "t", "21")
    await asyncio.sleep(20)
    assert world.acked("b", "t", "s") == ()
    pull = world["b"].pull("a")
    assert pull.state != "connected"
    assert "cannot be reached" in pull.last_error
    world.way("a", "b").heal()
    await world.until(lambda: world.acked("b", "t", "s") == (("a", 1, 15),))
    await world.until(lambda: world.vector("b", "t") == {"a": 21})


@links("a", "b")
async def test_a_subscription_that_is_replicated_again_gets_all(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", *numbers(1, 20))
    await world.subscribe("a", "t", "s")
    await world.until(lambda: world.sub("b", "t", "s") is not None)
    await world.propose("b", SetReplicate("t", "s", False))
    await world.ack_to("a", "t", "s", 10)
    await asyncio.sleep(5)
    assert world.acked("b", "t", "s") == ()
    await world.propose("b", SetReplicate("t", "s", True))
    await world.until(lambda: world.acked("b", "t", "s") == (("a", 1, 10),))
    # And where replication was off altogether.
    world["b"].configure(enabled=False)
    await world.ack_to("a", "t", "s", 12)
    await asyncio.sleep(5)
    assert world.acked("b", "t", "s") == (("a", 1, 10),)
    world["b"].configure(enabled=True)
    await world.until(lambda: world.acked("b", "t", "s") == (("a", 1, 12),))


@links("a", "b")
async def test_a_subscription_that_was_deleted_comes_back_whole(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", *numbers(1, 20))
    await world.subscribe("a", "t", "s")
    await world.ack_to("a", "t", "s", 10)
    await world.until(lambda: world.acked("b", "t", "s") == (("a", 1, 10),))
    await world.propose("b", Unsubscribe("t", "s"))
    await asyncio.sleep(5)
    assert world.sub("b", "t", "s") is None
    await world.propose("a", Ack("t", "s", (15,)))
    await world.until(lambda: world.acked("b", "t", "s") == (("a", 1, 10), ("a", 15, 15)))


@links("a", "b")
async def test_a_region_that_was_sought_back_is_not_moved_on(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", *numbers(1, 20))
    await world.subscribe("a", "t", "s")
    await world.ack_to("a", "t", "s", 10)
    await world.until(lambda: world.acked("b", "t", "s") == (("a", 1, 10),))
    await world.seek("b", "t", "s", 5)
    merges = world["b"].proposals("merge")
    world.way("a", "b").cut()
    await asyncio.sleep(1)
    world.way("a", "b").heal()
    await asyncio.sleep(20)
    sub = world.sub("b", "t", "s")
    assert sub is not None
    assert sub.mark == 5
    assert world["b"].proposals("merge") == merges
    await world.ack_to("a", "t", "s", 12)
    await world.until(lambda: ("a", 11, 12) in world.acked("b", "t", "s"))


@links("a", "b", ranges_max=10)
async def test_ranges_that_find_no_room_are_told_again_later(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", *numbers(1, 100))
    world["a"].configure(ranges_max=1_000)
    await world.subscribe("a", "t", "s", kind="shared")
    await world.until(lambda: world.sub("b", "t", "s") is not None)
    for position in range(2, 62, 2):
        await world.propose("a", Ack("t", "s", (position,)))
    pull = world["b"].pull("a")
    await asyncio.sleep(5)
    opened = pull.opened
    await asyncio.sleep(100)
    assert len(world.acked("b", "t", "s")) <= 11
    assert 1 <= pull.opened - opened <= 4
    world["b"].configure(ranges_max=1_000)
    await world.until(lambda: len(world.acked("b", "t", "s")) == 30)


# --- idle -----------------------------------------------------------------------------------------


@links("a", "b", "c", cores=3)
async def test_quiet_links_cost_no_entries_and_little_else(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", *numbers(1, 20))
    await world.subscribe("a", "t", "s")
    await world.ack_to("a", "t", "s", 10)
    await asyncio.sleep(20)
    before = world.lengths()
    frames = len(world.way("a", "b").frames)
    reports = len(world.way("a", "b").reports)
    await asyncio.sleep(600)
    assert world.lengths() == before
    new = world.way("a", "b").frames[frames:]
    assert 500 < len(new) <= 610
    assert all(isinstance(frame, Alive) and not frame.heads for frame in new)
    assert len(world.way("a", "b").reports) == reports


@links("a", "b")
async def test_without_streams_nobody_listens(world: World) -> None:
    cluster = world["a"]
    captured = cluster.nodes["core1"].machine
    assert len(cluster.service.serving) == 1
    world.way("a", "b").cut()
    await world.until(lambda: len(cluster.service.serving) == 0)
    assert cluster.service.serving._unlisten is None
    assert cluster.service.serving._beating is None
    assert captured is not None


# --- failures -------------------------------------------------------------------------------------


@links("a", "b", cores=3)
async def test_a_half_open_connection_is_given_up(world: World) -> None:
    await world.declare("a", "t")
    await world.until(lambda: world.topic("b", "t") is not None)
    world.way("a", "b").mute()
    await world.publish("a", "t", "x")
    pull = world["b"].pull("a")
    took = await world.until(lambda: pull.state != "connected")
    assert 1.9 < took < 3.5
    assert "silent for 3 s" in pull.last_error
    world.way("a", "b").heal()
    await world.until(lambda: world.bodies("b", "t") == ["x"])


@links("a", "b", cores=3)
async def test_the_next_node_serves_when_one_is_gone_or_cut_off(world: World) -> None:
    await world.declare("a", "t")
    await world.until(lambda: world.topic("b", "t") is not None)
    first = world["b"].pull("a").endpoint
    spare = next(name for name in world["a"].nodes if name != first)
    if first == world["a"].leader:
        world["a"].lead(spare)
    world["a"].isolate(first)
    await world.publish("a", "t", "x")
    took = await world.until(lambda: world.bodies("b", "t") == ["x"])
    assert took < 8
    second = world["b"].pull("a").endpoint
    assert second != first
    world["a"].heal(first)
    if second == world["a"].leader:
        world["a"].lead(first)
    world["a"].kill(second)
    await world.publish("a", "t", "y")
    await world.until(lambda: world.bodies("b", "t") == ["x", "y"])
    await world["a"].restart(second)


@links("a", "b", cores=3)
async def test_a_new_leader_fetches_on(world: World) -> None:
    await world.declare("a", "t")
    for number in range(60):
        await world.publish("a", "t", str(number))
        if number % 10 == 5:
            names = sorted(world["b"].nodes)
            leader = world["b"].leader
            world["b"].lead(names[(names.index(str(leader)) + 1) % 3])
        if number % 20 == 12:
            leader = str(world["b"].leader)
            world["b"].kill(leader)
            await world["b"].restart(leader)
            world["b"].lead(leader)
    await world.until(lambda: world.bodies("b", "t") == numbers(0, 59))
    pulls = [
        name
        for name, node in world["b"].nodes.items()
        if node.service.links.pulls  # type: ignore[attr-defined]
    ]
    assert pulls == [world["b"].leader]


@links("a", "b", cores=3)
async def test_two_leaders_at_once_double_nothing(world: World) -> None:
    await world.declare("a", "t")
    await world.until(lambda: world.topic("b", "t") is not None)
    # The old one does not hear that it leads no more.
    world["b"].nodes["core2"].service.on_leader()
    await world.until(lambda: len(world["a"].serving("core1")) > 0)
    for number in range(50):
        await world.publish("a", "t", str(number))
        await asyncio.sleep(0.01)
    await world.until(lambda: world.bodies("b", "t") == numbers(0, 49))
    await asyncio.sleep(5)
    assert world.bodies("b", "t") == numbers(0, 49)
    world["b"].nodes["core2"].service.on_follower()


@links("a", "b")
async def test_lost_answers_of_proposals_harm_nothing(world: World) -> None:
    await world.declare("a", "t")
    await world.until(lambda: world.topic("b", "t") is not None)
    await world.subscribe("a", "t", "s")
    lost = world["b"].lose_answers("core1", "deliver", "merge", times=6)
    for number in range(30):
        await world.publish("a", "t", str(number))
        await world.ack_to("a", "t", "s", number + 1)
        await asyncio.sleep(0.5)
    await world.until(lambda: world.bodies("b", "t") == numbers(0, 29))
    await world.until(lambda: world.acked("b", "t", "s") == (("a", 1, 30),))
    assert len(lost) == 6


@links("a", "b")
async def test_what_got_lost_on_the_way_is_fetched_again_at_once(world: World) -> None:
    await world.declare("a", "t")
    await world.until(lambda: world.topic("b", "t") is not None)
    way = world.way("a", "b")
    for number in range(5):
        way.loses = 1
        await world.publish("a", "t", f"lost {number}")
        await asyncio.sleep(0.1)
        await world.publish("a", "t", f"next {number}")
        took = await world.until(lambda n=number: len(world.bodies("b", "t")) == 2 * n + 2)
        assert took < 0.3
        assert world["b"].pull("a").paused == ()
    assert world.bodies("b", "t") == world.bodies("a", "t")


@links("a", "b", cores=3)
async def test_a_snapshot_at_the_source_begins_the_stream_anew(world: World) -> None:
    await world.declare("a", "t")
    await world.until(lambda: world.topic("b", "t") is not None)
    server = world["b"].pull("a").endpoint
    other = next(name for name in world["a"].nodes if name != server)
    world["a"].lead(other)
    # It hears nothing for less than a linearizable read may take.
    world["a"].pause(server)
    for number in range(10):
        await world.propose("a", Publish("t", (Message(b"%d" % number),)), other)
    await asyncio.sleep(0.5)
    assert world.bodies("b", "t") == []
    world["a"].jump(server)
    await world.until(lambda: world.bodies("b", "t") == numbers(0, 9))


# --- regions --------------------------------------------------------------------------------------


@links("a", "b", "c")
async def test_an_excluded_region_is_left_alone_and_its_messages_come_by_others(
    world: World,
) -> None:
    """c is excluded in a: a gets c's messages, published before, from b."""
    await world.declare("a", "t")
    await world.until(lambda: all(world.topic(n, "t") is not None for n in "bc"))
    world.way("c", "a").cut()
    await world.publish("c", "t", "x", "y")
    await world.until(lambda: world.vector("b", "t") == {"c": 2})
    await asyncio.sleep(5)
    assert world.vector("a", "t") == {}
    await world.propose("a", PutRegion("c", "excluded"))
    await world.until(lambda: world.vector("a", "t") == {"c": 2})
    assert sorted(world["a"].service.links.pulls) == ["b"]
    # c is told no, with the reason.
    pull = world["c"].pull("a")
    await world.until(lambda: "excluded" in pull.last_error)
    assert pull.state == "stopped"
    await world.propose("a", PutRegion("c", "active"))
    world.way("c", "a").heal()
    await world.connected()
    await world.publish("c", "t", "z")
    await world.until(lambda: world.bodies("a", "t") == ["x", "y", "z"])


@links("a", "b")
async def test_what_retention_took_is_said_as_a_hole(world: World) -> None:
    await world.declare("a", "t", retention_ms=1_000)
    await world.until(lambda: world.topic("b", "t") is not None)
    await world.propose("a", PutRegion("b", "excluded"))
    await world.publish("a", "t", *numbers(1, 10))
    await world.until(lambda: world.bodies("a", "t") == [])
    await world.publish("a", "t", "11")
    await world.propose("a", PutRegion("b", "active"))
    await world.until(lambda: world.bodies("b", "t") == ["11"])
    parts = [
        part
        for frame in world.way("a", "b").frames
        if isinstance(frame, MessagesFrame)
        for part in frame.parts
    ]
    assert parts[0] == Hole("a", 1, 10)
    assert isinstance(parts[1], Copy)
    assert world.vector("b", "t") == {"a": 11}


@links("a", "b")
async def test_a_hole_is_said_also_when_nothing_follows_it(world: World) -> None:
    await world.declare("a", "t", retention_ms=1_000)
    await world.until(lambda: world.topic("b", "t") is not None)
    await world.propose("a", PutRegion("b", "excluded"))
    await world.publish("a", "t", *numbers(1, 10))
    await world.until(lambda: world.bodies("a", "t") == [])
    await world.propose("a", PutRegion("b", "active"))
    await world.until(lambda: world.vector("b", "t") == {"a": 10})
    assert world["b"].table("holes")


@links("a", "b")
async def test_retention_waits_for_what_the_other_region_says_it_has(world: World) -> None:
    await world.declare("a", "t", retention_ms=1_000)
    await world.until(lambda: world.topic("b", "t") is not None)
    world.way("a", "b").cut()
    await world.publish("a", "t", *numbers(1, 10))
    await asyncio.sleep(60)
    assert len(world.bodies("a", "t")) == 10
    world.way("a", "b").refuses_reports = 3
    world.way("a", "b").heal()
    await world.until(lambda: world.bodies("a", "t") == [])
    assert world.vector("b", "t") == {"a": 10}
    assert world.way("a", "b").refuses_reports == 0


@links("a", "b")
async def test_a_deleted_topic_of_an_excluded_region_harms_nobody(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", "x")
    await world.until(lambda: world.bodies("b", "t") == ["x"])
    await world.propose("a", PutRegion("b", "excluded"))
    await world.propose("a", DeleteTopic("t"))
    await world.declare("a", "t")
    await world.propose("a", PutRegion("b", "active"))
    await world.connected()
    await world.publish("a", "t", "y")
    await world.until(lambda: world.bodies("b", "t") == ["x", "y"])


# --- snapshot mode --------------------------------------------------------------------------------


@links("a", "b", "c", mode="snapshot", period_ms=200)
async def test_snapshots_are_built_and_marks_follow(world: World) -> None:
    await world.declare("a", "t")
    await world.subscribe("a", "t", "s")
    await world.until(lambda: all(world.topic(n, "t") is not None for n in "bc"))
    for number in range(40):
        await world.publish("abc"[number % 3], "t", str(number))
        await asyncio.sleep(0.1)
    await world.until(lambda: all(len(world.bodies(n, "t")) == 40 for n in "abc"))
    await asyncio.sleep(2)
    await world.ack_to("a", "t", "s", 40)
    await world.until(lambda: all(world.sub(n, "t", "s") is not None for n in "bc"))
    await world.until(lambda: all((world.sub(n, "t", "s") or S0).mark > 30 for n in "bc"))
    assert meta_of(world.view("a")).snapshots > 5
    # No state in vector form goes over the links.
    assert "StateFrame" not in world.way("a", "b").kinds()
    # Idle: nothing new, no more snapshots, no more entries.
    await asyncio.sleep(5)
    before = world.lengths()
    await asyncio.sleep(100)
    assert world.lengths() == before


@links("a", "b", mode="snapshot", period_ms=200, ranges_max=10)
async def test_an_update_that_finds_no_room_is_told_again_later(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", *numbers(1, 30))
    await world.until(lambda: len(world.bodies("b", "t")) == 30)
    await world.subscribe("b", "t", "s", kind="shared")
    # They begin at different places, so what a acknowledges is a range of its own in b.
    await world.subscribe("a", "t", "s", kind="shared", initial="latest")
    await world.propose("b", Ack("t", "s", tuple(range(2, 22, 2))))
    await world.publish("a", "t", *numbers(31, 40))
    await asyncio.sleep(2)
    await world.ack_to("a", "t", "s", 40)
    await asyncio.sleep(5)
    assert ("a", 31, 40) not in world.acked("b", "t", "s")
    await world.propose("b", Ack("t", "s", (1,)))
    await world.until(lambda: ("a", 31, 40) in world.acked("b", "t", "s"))


@links("a", "b", period_ms=200)
async def test_the_mode_may_change_while_links_stand(world: World) -> None:
    await world.declare("a", "t")
    await world.subscribe("a", "t", "s")
    await world.until(lambda: world.sub("b", "t", "s") is not None)
    world["a"].configure(mode="snapshot")
    await world.until(lambda: "mode" in world["b"].pull("a").last_error)
    world["b"].configure(mode="snapshot")
    await world.until(lambda: world["b"].service.links.all_up())
    await world.until(lambda: world["a"].service.links.all_up())
    assert world["b"].pull("a").last_error == ""
    opened = world["b"].pull("a").opened
    for number in range(10):
        await world.publish("a", "t", str(number))
        await asyncio.sleep(0.3)
    await asyncio.sleep(1)
    await world.ack_to("a", "t", "s", 10)
    await world.until(lambda: (world.sub("b", "t", "s") or S0).mark >= 9)
    for name in "ab":
        world[name].configure(mode="vector")
    await world.publish("a", "t", "more", "and more")
    await world.ack_to("a", "t", "s", 12)
    await world.until(lambda: world.acked("b", "t", "s") == (("a", 1, 12),))
    assert world["b"].pull("a").opened == opened


@links("a", "b", mode="snapshot", period_ms=200, timeout_ms=2_000)
async def test_no_snapshot_is_begun_while_a_region_is_away(world: World) -> None:
    await world.declare("a", "t")
    await world.subscribe("a", "t", "s")
    await world.publish("a", "t", "x")
    await world.until(lambda: meta_of(world.view("a")).snapshots > 0)
    for way in (world.way("a", "b"), world.way("b", "a")):
        way.mute()
    await asyncio.sleep(10)
    begun = world["a"].proposals("snapshot_start")
    timed_out = meta_of(world.view("a")).timed_out
    for number in range(20):
        await world.publish("a", "t", str(number))
        await asyncio.sleep(1)
    assert world["a"].proposals("snapshot_start") == begun
    assert not world["a"].table("pending")
    assert meta_of(world.view("a")).timed_out == timed_out
    for way in (world.way("a", "b"), world.way("b", "a")):
        way.heal()
    built = meta_of(world.view("a")).snapshots
    await world.until(lambda: meta_of(world.view("a")).snapshots > built)


@links("a", "b", mode="snapshot", period_ms=200, timeout_ms=2_000)
async def test_a_pending_snapshot_is_given_up_in_time(world: World) -> None:
    await world.declare("a", "t")
    await world.subscribe("a", "t", "s")
    await world.until(lambda: world.topic("b", "t") is not None)
    # Requests reach b; its answers do not come back.
    world.way("b", "a").mute()
    await world.publish("a", "t", "x")
    await world.until(lambda: len(world["a"].table("pending")) == 1)
    took = await world.until(lambda: meta_of(world.view("a")).timed_out == 1)
    assert 1.5 < took < 3.5
    world.way("b", "a").heal()
    await world.until(lambda: meta_of(world.view("a")).snapshots == 1)


# --- regions that were rebuilt --------------------------------------------------------------------


@links("a", "b")
async def test_a_region_that_was_rebuilt_is_not_fetched_from(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", *numbers(1, 10))
    await world.until(lambda: world.vector("b", "t") == {"a": 10})
    await world.rebuild("a")
    await world.declare("a", "t")
    await world.publish("a", "t", "new")
    pull = world["b"].pull("a")
    await world.until(lambda: pull.state == "stopped")
    assert "rebuilt under its old name" in pull.last_error
    # It hears so itself: b has more of its messages than it has published.
    await world.until(lambda: "rebuilt under its old name" in world["a"].pull("b").last_error)
    await asyncio.sleep(10)
    assert world.bodies("b", "t") == numbers(1, 10)
    assert world.bodies("a", "t") == ["new"]


@links("a", "b", cores=3)
async def test_a_node_that_lags_is_not_taken_for_a_rebuilt_region(world: World) -> None:
    """b's copy of a's messages may be ahead of what a's leader has applied."""
    await world.declare("a", "t")
    await world.until(lambda: world.topic("b", "t") is not None)
    world["a"].lead("core3")
    await world.connected()
    world["a"].pause("core3")
    await world.propose("a", Publish("t", (Message(b"x"),)), "core1")
    await world.until(lambda: world.vector("b", "t") == {"a": 1})
    world.way("b", "a").cut()
    world.way("b", "a").heal()
    await asyncio.sleep(1)
    pull = world["a"].pull("b")
    assert (pull.state, pull.last_error) == ("connected", "")
    world["a"].resume("core3")
    await world.until(lambda: world["a"].pull("b").is_up())
    assert world["a"].pull("b").last_error == ""


@links("a", "b")
async def test_a_link_that_is_hung_up_stays_so_also_when_it_just_failed(world: World) -> None:
    """An error in the moment of the cancellation must not keep it alive."""
    await world.declare("a", "t")
    await world.until(lambda: world.topic("b", "t") is not None)
    service, loop = world["b"].service, asyncio.get_running_loop()
    pull, task = world["b"].pull("a"), service.links._tasks["a"]

    async def fail(lane: object) -> None:
        loop.call_soon(loop.call_soon, service.on_follower)
        raise LinkBroken("broken")

    pull._deliver = fail  # type: ignore[method-assign]
    await world.publish("a", "t", "x")
    await asyncio.sleep(10)
    assert task.done()
    assert pull.state == "stopped"
    service.on_leader()
    await world.connected()

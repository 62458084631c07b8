"""The source's side of links: who is served, who is not, and that nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from raftkv.errors import NotApplied, Stopped
from raftkv.plugin import Request
from raftkv_subscriptions.commands import Deliver, PutRegion
from raftkv_subscriptions.links import serving as serving_module
from raftkv_subscriptions.links.door import link_routes
from raftkv_subscriptions.links.errors import NOT_SENT, LinkRefused
from raftkv_subscriptions.links.frames import (
    PROTOCOL,
    Alive,
    Bye,
    Frame,
    Hello,
    LinkReport,
    LinkRequest,
    MessagesFrame,
    TopicFrame,
    decode,
)
from raftkv_subscriptions.links.serving import Serving
from raftkv_subscriptions.refusals import OriginBehind
from raftkv_subscriptions.rows import Copy, Message
from raftkv_subscriptions.testing.planted import planted
from tests.plugins.raftkv_subscriptions.link_worlds import World, links

ALONE: dict[str, dict[str, str]] = {"a": {}}


def serving_of(world: World, node: str = "core1") -> Serving:
    found: Serving = world["a"].nodes[node].service.serving  # type: ignore[attr-defined]
    return found


async def frames_of(lines: AsyncGenerator[bytes, None], count: int) -> list[Frame]:
    return [decode(await anext(lines)) for _ in range(count)]


def is_at_rest(serving: Serving) -> bool:
    return len(serving) == 0 and serving._unlisten is None and serving._beating is None


@links(shape=ALONE, connected=False)
async def test_who_is_not_served_hears_why(world: World) -> None:
    serving = serving_of(world)
    for region, reason in (("b", "unknown_region"), ("a", "own_region")):
        with pytest.raises(LinkRefused) as caught:
            await serving.open(LinkRequest(region=region))
        assert caught.value.reason == reason
        with pytest.raises(LinkRefused):
            await serving.report(LinkReport(region, {}, "link"))
    await world.propose("a", PutRegion("b", "excluded"))
    with pytest.raises(LinkRefused, match="is excluded in a") as caught:
        await serving.open(LinkRequest(region="b"))
    assert caught.value.reason == "region_excluded"
    await world.propose("a", PutRegion("b", "active"))
    with pytest.raises(LinkRefused) as caught:
        await serving.open(LinkRequest(region="b", protocol=PROTOCOL + 1))
    assert caught.value.reason == "protocol"
    assert is_at_rest(serving)


@links(shape=ALONE, connected=False)
async def test_a_stream_tells_what_is_there_and_then_what_comes(world: World) -> None:
    await world.propose("a", PutRegion("b"))
    await world.declare("a", "t")
    await world.declare("a", "private", replicated=False)
    await world.publish("a", "t", "x", "y", "z")
    serving = serving_of(world)
    lines = await serving.open(LinkRequest(region="b", topics={"t": (("a", 1),)}))
    hello, topic, messages, again, alive = await frames_of(lines, 5)
    assert isinstance(hello, Hello)
    assert (hello.region, hello.node) == ("a", "core1")
    assert isinstance(topic, TopicFrame)
    assert (topic.topic, topic.head) == ("t", (("a", 3),))
    assert isinstance(messages, MessagesFrame)
    assert [part.seq for part in messages.parts] == [2, 3]  # type: ignore[union-attr]
    # The first one was not reported: so it is sent, too.
    assert isinstance(again, MessagesFrame)
    assert [part.seq for part in again.parts] == [1]  # type: ignore[union-attr]
    assert isinstance(alive, Alive)
    assert (alive.mode, dict(alive.heads)) == ("vector", {"t": (("a", 3),)})
    loop = asyncio.get_running_loop()
    coming = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0.5)
    await world.publish("a", "t", "w")
    began = loop.time()
    assert isinstance(decode(await coming), MessagesFrame)
    assert loop.time() - began < 0.002
    # A topic that is replicated later, and one that is made.
    await world.declare("a", "private", replicated=True)
    (frame,) = await frames_of(lines, 1)
    assert isinstance(frame, TopicFrame)
    assert frame.topic == "private"
    await lines.aclose()
    assert is_at_rest(serving)


@links(shape=ALONE, connected=False)
async def test_a_paused_topic_is_announced_and_no_more(world: World) -> None:
    await world.propose("a", PutRegion("b"))
    await world.declare("a", "t")
    await world.publish("a", "t", "x")
    lines = await serving_of(world).open(LinkRequest(region="b", paused=("t",)))
    kinds = [type(frame) for frame in await frames_of(lines, 5)]
    assert kinds == [Hello, TopicFrame, Alive, Alive, Alive]
    await lines.aclose()


@links(shape=ALONE, connected=False)
async def test_nothing_is_left_of_streams_that_were_given_up(world: World) -> None:
    """Never read, cancelled while it waits, closed in the midst."""
    await world.propose("a", PutRegion("b"))
    serving = serving_of(world)
    unread = await serving.open(LinkRequest(region="b"))
    await unread.aclose()
    assert is_at_rest(serving)
    lines = await serving.open(LinkRequest(region="b"))
    await frames_of(lines, 2)
    waiting = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert is_at_rest(serving)
    with pytest.raises(StopAsyncIteration):
        await anext(lines)
    await asyncio.sleep(5)
    assert not any("alive" in task.get_name() for task in asyncio.all_tasks())


@links(shape=ALONE, connected=False)
async def test_the_third_stream_of_a_region_ends_the_first(world: World) -> None:
    for region in "bc":
        await world.propose("a", PutRegion(region))
    serving = serving_of(world)
    streams = []
    for region in "bcbb":
        lines = await serving.open(LinkRequest(region=region))
        await frames_of(lines, 2)
        streams.append(lines)
    (bye,) = await frames_of(streams[0], 1)
    assert isinstance(bye, Bye)
    assert bye.reason == "replaced"
    for lines in streams[1:]:
        (frame,) = await frames_of(lines, 1)
        assert isinstance(frame, Alive)
    assert len(serving) == 3
    with pytest.raises(StopAsyncIteration):
        await anext(streams[0])
    assert len(serving) == 3
    for lines in streams:
        await lines.aclose()


def test_there_are_so_many_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "STREAMS_MAX", 1)

    @links(shape=ALONE, connected=False)
    async def story(world: World) -> None:
        for region in "bc":
            await world.propose("a", PutRegion(region))
        lines = await serving_of(world).open(LinkRequest(region="b"))
        await frames_of(lines, 1)
        with pytest.raises(LinkRefused) as caught:
            await serving_of(world).open(LinkRequest(region="c"))
        assert caught.value.reason == "overloaded"
        await lines.aclose()
        await (await serving_of(world).open(LinkRequest(region="c"))).aclose()

    story()


@links(shape=ALONE, cores=3, connected=False)
async def test_a_node_that_is_cut_off_ends_its_streams_and_begins_none(world: World) -> None:
    await world.propose("a", PutRegion("b"))
    serving = serving_of(world, "core2")
    lines = await serving.open(LinkRequest(region="b"))
    await frames_of(lines, 2)
    world["a"].isolate("core2")
    loop = asyncio.get_running_loop()
    began = loop.time()
    (bye,) = await frames_of(lines, 1)
    assert isinstance(bye, Bye)
    assert bye.reason == "cut_off"
    assert loop.time() - began < 8
    with pytest.raises(NotApplied):
        await serving.open(LinkRequest(region="b"))
    world["a"].heal("core2")
    await lines.aclose()
    await (await serving.open(LinkRequest(region="b"))).aclose()


@links(shape=ALONE, connected=False)
async def test_an_excluded_region_is_hung_up_on_and_so_are_all_when_the_node_stops(
    world: World,
) -> None:
    for region in "bc":
        await world.propose("a", PutRegion(region))
    serving = serving_of(world)
    streams = [await serving.open(LinkRequest(region=region)) for region in "bc"]
    for lines in streams:
        await frames_of(lines, 2)
    await world.propose("a", PutRegion("b", "excluded"))
    (bye,) = await frames_of(streams[0], 1)
    assert isinstance(bye, Bye)
    assert bye.reason == "excluded"
    serving.stop()
    (bye,) = await frames_of(streams[1], 1)
    assert isinstance(bye, Bye)
    assert bye.reason == "stopping"
    for lines in streams:
        await lines.aclose()
    with pytest.raises(Stopped):
        await serving.open(LinkRequest(region="c"))


@links(shape=ALONE, connected=False)
async def test_a_report_costs_an_entry_only_if_it_says_something(world: World) -> None:
    await world.propose("a", PutRegion("b"))
    await world.declare("a", "t")
    await world.publish("a", "t", "x", "y")
    serving = serving_of(world)
    lines = await serving.open(LinkRequest(region="b"))
    hello, *_ = await frames_of(lines, 4)
    assert isinstance(hello, Hello)
    topics = {"t": (("a", 2),), "unknown": (("a", 9),)}
    await serving.report(LinkReport("b", topics, hello.link))
    entries = len(world["a"].log)
    await serving.report(LinkReport("b", topics, hello.link))
    await serving.report(LinkReport("b", {"t": (("a", 1),)}, hello.link))
    await lines.aclose()
    assert len(world["a"].log) == entries
    topic = world.topic("a", "t")
    assert topic is not None
    assert world["a"].table("fetched") == {("b", topic.id): (("a", 2),)}


async def refused(serving: Serving, report: LinkReport) -> str:
    with pytest.raises(LinkRefused) as caught:
        await serving.report(report)
    return caught.value.reason


async def opened(serving: Serving, **asked: Any) -> tuple[AsyncGenerator[bytes, None], str]:
    """A stream for b, and its secret."""
    lines = await serving.open(LinkRequest(region="b", **asked))
    (hello,) = await frames_of(lines, 1)
    assert isinstance(hello, Hello)
    return lines, hello.link


@links(shape=ALONE, cores=3, connected=False)
async def test_forged_report_what_a_link_begins_with_counts_when_it_was_sent(world: World) -> None:
    """A request may claim that all has come: it is sent all the same."""
    await world.propose("a", PutRegion("b"))
    await world.declare("a", "t")
    await world.publish("a", "t", "x", "y", "z")
    topic = world.topic("a", "t")
    assert topic is not None
    row = ("b", topic.id)
    serving = serving_of(world)
    has = {"t": (("a", 2),)}
    lines, link = await opened(serving, topics=has, paused=("t",))
    assert await refused(serving, LinkReport("b", has, link)) == NOT_SENT
    assert world["a"].table("fetched") == {}
    _, again, _ = await frames_of(lines, 3)
    assert isinstance(again, MessagesFrame)
    assert [part.seq for part in again.parts] == [1, 2]  # type: ignore[union-attr]
    await serving.report(LinkReport("b", has, link))
    assert world["a"].table("fetched")[row] == (("a", 2),)
    await lines.aclose()
    # Another node knows by the log what was reported, and sends the rest.
    other = serving_of(world, "core2")
    await world.until(lambda: row in dict(world["a"].nodes["core2"].view().table("fetched").scan()))
    lines, link = await opened(other, topics={"t": (("a", 3),)})
    assert await refused(other, LinkReport("b", {"t": (("a", 3),)}, link)) == NOT_SENT
    assert await refused(serving, LinkReport("b", {"t": (("a", 3),)}, link)) == "no_link"
    _, again, _ = await frames_of(lines, 3)
    assert isinstance(again, MessagesFrame)
    assert [part.seq for part in again.parts] == [3]  # type: ignore[union-attr]
    await other.report(LinkReport("b", {"t": (("a", 3),)}, link))
    assert world["a"].table("fetched")[row] == (("a", 3),)
    await lines.aclose()


@links(shape=ALONE, connected=False)
async def test_forged_report_more_than_is_here_counts_when_it_came_and_was_sent(
    world: World,
) -> None:
    """In a ring a region may have more of a third one than its source has."""
    for name in "bc":
        await world.propose("a", PutRegion(name))
    await world.declare("a", "t")
    parts = [Copy("c", seq, Message(b""), 0) for seq in (1, 2)]
    await world.propose("a", Deliver("t", "c", tuple(parts[:1])))
    serving = serving_of(world)
    lines, link = await opened(serving, want="all", topics={"t": (("c", 2),)})
    await frames_of(lines, 3)
    assert await refused(serving, LinkReport("b", {"t": (("c", 2),)}, link)) == NOT_SENT
    topic = world.topic("a", "t")
    assert topic is not None
    assert world["a"].table("fetched") == {("b", topic.id): (("c", 1),)}
    await world.propose("a", Deliver("t", "c", tuple(parts[1:])))
    (frame,) = await frames_of(lines, 1)
    assert isinstance(frame, MessagesFrame)
    await frames_of(lines, 1)
    await serving.report(LinkReport("b", {"t": (("c", 2),)}, link))
    assert world["a"].table("fetched") == {("b", topic.id): (("c", 2),)}
    await lines.aclose()


def test_forged_report_an_injected_bug_lets_it_count() -> None:
    @links(shape=ALONE, connected=False)
    async def story(world: World) -> None:
        await world.propose("a", PutRegion("b"))
        await world.declare("a", "t")
        await world.publish("a", "t", "x", "y")
        lines, link = await opened(serving_of(world), topics={"t": (("a", 1),)}, paused=("t",))
        await frames_of(lines, 1)
        await serving_of(world).report(LinkReport("b", {"t": (("a", 2),)}, link))
        assert list(world["a"].table("fetched").values()) == [(("a", 2),)]
        await lines.aclose()

    with planted("claims-are-believed"):
        story()
    with pytest.raises(LinkRefused, match="more of 't' than it was sent"):
        story()


@links(shape=ALONE, connected=False)
async def test_a_report_counts_only_over_a_link_and_up_to_what_it_sent(world: World) -> None:
    for name in ("b", "c"):
        await world.propose("a", PutRegion(name))
    await world.declare("a", "t")
    await world.publish("a", "t", "x", "y")
    serving = serving_of(world)
    told = {"t": (("a", 2),)}
    lines, others = [await serving.open(LinkRequest(region=name)) for name in ("b", "c")]
    (hello,) = await frames_of(lines, 1)
    (other,) = await frames_of(others, 1)
    assert isinstance(hello, Hello)
    assert isinstance(other, Hello)
    entries = len(world["a"].log)
    for stranger in ("", "0" * 16, other.link):
        with pytest.raises(LinkRefused) as caught:
            await serving.report(LinkReport("b", told, stranger))
        assert caught.value.reason == "no_link"
    # Its own link, which has sent nothing yet.
    assert await refused(serving, LinkReport("b", told, hello.link)) == NOT_SENT
    assert len(world["a"].log) == entries
    assert world["a"].table("fetched") == {}
    head, messages, _ = await frames_of(lines, 3)
    assert isinstance(head, TopicFrame)
    assert isinstance(messages, MessagesFrame)
    topic = world.topic("a", "t")
    assert topic is not None
    await world.publish("a", "t", "z")
    # Of what it was sent all counts, and nothing else.
    assert await refused(serving, LinkReport("b", {"t": (("a", 3),)}, hello.link)) == NOT_SENT
    assert world["a"].table("fetched") == {("b", topic.id): (("a", 2),)}
    # Of what is not there at all nothing does.
    with pytest.raises(OriginBehind):
        await serving.report(LinkReport("b", {"t": (("a", 4),)}, hello.link))
    # What this link does not carry is the region's to tell: all of its own, of others what is here.
    both = {"t": (("a", 2), ("b", 4), ("c", 9))}
    assert await refused(serving, LinkReport("b", both, hello.link)) == NOT_SENT
    assert world["a"].table("fetched") == {("b", topic.id): (("a", 2), ("b", 4))}
    await lines.aclose()
    with pytest.raises(LinkRefused):
        await serving.report(LinkReport("b", told, hello.link))
    await others.aclose()


@links(shape=ALONE, connected=False)
async def test_the_routes_say_what_serving_says(world: World) -> None:
    node = world["a"].nodes["core1"]
    routes = {route.path: route for route in link_routes(node, serving_of(world))}
    assert {(route.method, path) for path, route in routes.items()} == {
        ("POST", "link"),
        ("POST", "report"),
    }

    async def ask(path: str, body: Any) -> Any:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await routes[path].handler(Request({}, {}, raw, "127.0.0.1:1"))

    refused = await ask("link", LinkRequest(region="b"))
    assert (refused.status, refused.body["reason"]) == (409, "unknown_region")
    assert "add it there" in refused.body["error"]
    bad = await ask("link", b'{"region": 1}')
    assert (bad.status, bad.body["reason"]) == (400, "bad_request")
    assert (await ask("report", b"[]")).status == 400
    await world.propose("a", PutRegion("b"))
    answer = await ask("link", LinkRequest(region="b"))
    hello = decode(await anext(answer.stream))
    assert (answer.status, type(hello)) == (200, Hello)
    assert isinstance(hello, Hello)
    assert (await ask("report", LinkReport("b", {}, hello.link))).body == {}
    await answer.stream.aclose()
    assert (await ask("report", LinkReport("b", {}, hello.link))).status == 409

"""The leader's work: naming regions, sweeping, status and metrics; and nothing when idle."""

from __future__ import annotations

import asyncio
import string

import msgspec
import pytest

from raftkv.errors import ConfigError
from raftkv.plugin import Host
from raftkv.testing.clock import run
from raftkv_subscriptions.commands import (
    Attach,
    DeclareTopic,
    Publish,
    PutRegion,
    SetRegion,
    Take,
)
from raftkv_subscriptions.links.errors import LinkBroken
from raftkv_subscriptions.links.frames import REQUEST_BYTES_MAX, LinkReport, LinkRequest
from raftkv_subscriptions.links.transport import LinkStream
from raftkv_subscriptions.options import LinkOptions, SubscriptionsOptions
from raftkv_subscriptions.plugin import Subscriptions
from raftkv_subscriptions.rows import Message
from raftkv_subscriptions.scope import meta_of
from raftkv_subscriptions.service import next_due_ms, topics_due
from raftkv_subscriptions.status import (
    ask_links,
    region_rows,
    status_of,
    sub_status,
    topic_rows,
    topic_status,
)
from tests.plugins.raftkv_subscriptions.link_worlds import Region, World, links


class Away:
    """A region that nobody reaches."""

    def __init__(self, host: Host, region: str, link: LinkOptions) -> None:
        pass

    async def open(self, request: LinkRequest) -> LinkStream:
        raise LinkBroken("it is away")

    async def report(self, report: LinkReport) -> list[str]:
        raise LinkBroken("it is away")

    async def close(self) -> None:
        pass


HERE = LinkOptions(endpoints=("http://127.0.0.1:1",))


# --- regions --------------------------------------------------------------------------------------


@links("a", "b", cores=3)
async def test_the_leader_names_the_regions_once(world: World) -> None:
    assert meta_of(world.view("a")).region == "a"
    assert list(world["a"].table("regions")) == ["b"]
    entries = world.lengths()
    for name in ("core2", "core3", "core1"):
        world["a"].lead(name)
        await asyncio.sleep(2)
    assert world.lengths() == entries
    for node in world["a"].nodes.values():
        assert len(node.service.links.pulls) == (node.name == "core1")  # type: ignore[attr-defined]


def test_a_region_that_has_published_cannot_be_renamed_and_says_so() -> None:
    async def body() -> None:
        options = SubscriptionsOptions(region="new", links={"b": HERE})
        region = Region(lambda: Subscriptions(Away), 1, options=options)
        # Before there is a leader.
        await region.add("core1")
        await region.nodes["core1"].propose(SetRegion("old"))
        await region.nodes["core1"].propose(DeclareTopic("t"))
        await region.nodes["core1"].propose(Publish("t", (Message(b"x"),)))
        region.lead("core1")
        await asyncio.sleep(5)
        assert meta_of(region.witness.view("subscriptions")).region == "old"
        found = await status_of(region.nodes["core1"])
        assert any("'old'" in warning or "old" in warning for warning in found.warnings)
        entries = len(region.log)
        await asyncio.sleep(60)
        assert len(region.log) == entries
        await region.nodes["core1"].service.stop()

    run(body())


@links("a", "b")
async def test_an_excluded_region_stays_so_and_one_by_hand_has_no_link(world: World) -> None:
    await world.propose("a", PutRegion("b", "excluded"))
    await world.until(lambda: not world["a"].service.links.pulls)
    world["a"].kill("core1")
    await world["a"].restart("core1")
    world["a"].lead("core1")
    await world.propose("a", PutRegion("d"))
    await asyncio.sleep(5)
    assert world["a"].table("regions")["b"].state == "excluded"
    rows = {row.name: row for row in await region_rows(world["a"].nodes["core1"])}
    assert sorted(rows) == ["a", "b", "d"]
    assert rows["a"].own
    assert (rows["b"].state, rows["b"].link and rows["b"].link.state) == ("excluded", "stopped")
    assert rows["d"].link is not None
    assert rows["d"].link.state == "none"
    warnings = (await status_of(world["a"].nodes["core1"])).warnings
    assert any("name its endpoints in the options" in warning for warning in warnings)


def test_options_that_cannot_work_stop_the_node() -> None:
    async def body(options: SubscriptionsOptions) -> None:
        await Region(lambda: Subscriptions(None), 1, options=options).start()

    for options, word in (
        (SubscriptionsOptions(region="a", links={"a": HERE}), "which is this region"),
        (
            SubscriptionsOptions(links={"b": LinkOptions(endpoints=("x:1",))}),
            r"links\.b: 'x:1' is not an endpoint",
        ),
    ):
        with pytest.raises(ConfigError, match=word):
            run(body(options))


@links("a", "b")
async def test_a_service_that_has_stopped_begins_nothing_more(world: World) -> None:
    """A node may come to lead while it stops."""
    node = world["b"].nodes["core1"]
    await node.service.stop()
    before = set(asyncio.all_tasks())
    node.service.on_leader()
    await asyncio.sleep(1)
    assert not {task.get_name() for task in asyncio.all_tasks() - before} & {"links", "sweep"}
    assert not world["b"].service.links.pulls


# --- sweeping -------------------------------------------------------------------------------------


@links(shape={"a": {}}, connected=False)
async def test_retention_is_swept_in_time_and_then_there_is_rest(world: World) -> None:
    await world.declare("a", "t", retention_ms=60_000)
    await world.declare("a", "kept")
    await world.publish("a", "kept", "x")
    for number in range(3):
        await world.publish("a", "t", str(number))
        await asyncio.sleep(10)
    entries = len(world["a"].log)
    await asyncio.sleep(29)
    assert (len(world.bodies("a", "t")), len(world["a"].log)) == (3, entries)
    for left in (2, 1, 0):
        await world.until(lambda n=left: len(world.bodies("a", "t")) == n, 12)
    assert world["a"].proposals("sweep") <= 6
    swept = world["a"].proposals("sweep")
    await asyncio.sleep(10_000)
    assert world["a"].proposals("sweep") == swept


@links(shape={"a": {}}, connected=False)
async def test_what_a_subscription_still_wants_is_not_swept_for_in_vain(world: World) -> None:
    await world.declare("a", "t", retention_ms=1_000)
    await world.subscribe("a", "t", "s", replicate=False)
    await world.publish("a", "t", "x", "y")
    await asyncio.sleep(1_000)
    view = world.view("a")
    now_ms = world["a"].now_ms()
    assert topics_due(view, now_ms) == ()
    assert next_due_ms(view, now_ms) is None
    assert world["a"].proposals("sweep") == 0
    await world.ack_to("a", "t", "s", 1)
    await world.until(lambda: world.bodies("a", "t") == ["y"])


@links(shape={"a": {}}, cores=3, connected=False)
async def test_what_a_dead_node_held_comes_back(world: World) -> None:
    await world.declare("a", "t")
    await world.publish("a", "t", *(str(n) for n in range(100)))
    await world.subscribe("a", "t", "s", kind="shared", replicate=False)
    attached = await world.propose("a", Attach("t", "s"), "core2")
    await world.propose("a", Take(attached.consumer, 50), "core2")
    assert len(world["a"].table("locks")) == 50
    world["a"].kill("core2")
    world["a"].declare_dead("core2")
    await world.until(lambda: not world["a"].table("locks"))
    await world.until(lambda: not world["a"].table("consumers"))


# --- looking --------------------------------------------------------------------------------------


@links("a", "b", cores=3)
async def test_any_node_tells_how_the_links_are(world: World) -> None:
    await world.declare("a", "t", retention_ms=5)
    await world.subscribe("a", "t", "s", kind="shared")
    await world.publish("a", "t", "1", "2", "3")
    await world.ack_to("a", "t", "s", 1)
    await world.until(lambda: world.acked("b", "t", "s") == (("a", 1, 1),))
    follower = world["b"].nodes["core3"]
    rows = {row.name: row for row in await region_rows(follower)}
    link = rows["a"].link
    assert link is not None
    assert (link.state, link.last_error, link.delivered, link.lag) == ("connected", "", 3, ())
    assert link.last_contact_ms is not None
    assert link.last_contact_ms <= 1_100
    await world.until(lambda: len(world.way("a", "b").reports) == 1)
    world.way("a", "b").cut()
    await world.publish("a", "t", "4", "5")
    await asyncio.sleep(1)
    rows = {row.name: row for row in await region_rows(world["a"].nodes["core2"])}
    assert rows["b"].behind == (("t", 2),)
    rows = {row.name: row for row in await region_rows(follower)}
    assert rows["a"].link is not None
    assert rows["a"].link.state == "connecting"
    found = await status_of(follower)
    assert (found.region, found.mode, found.enabled, found.topics) == ("b", "vector", True, 1)
    assert (found.delivered, found.merged > 0, found.replicated) == (3, True, 1)
    assert any("cannot be reached" in warning for warning in found.warnings)
    # Without a leader that answers, the rest is still told.
    world["b"].cut.add("core1")
    assert await ask_links(follower) is None
    rows = {row.name: row for row in await region_rows(follower)}
    assert rows["a"].link is None
    world["b"].cut.clear()
    # A leader that has just stepped down says so.
    world["b"].nodes["core1"].service.on_follower()
    assert await ask_links(follower) is None
    world["b"].nodes["core1"].service.on_leader()


@links("a", "b")
async def test_topics_and_subscriptions_at_one_look(world: World) -> None:
    await world.declare("a", "t", retention_ms=5_000_000)
    await world.publish("a", "t", "1", "2", "3")
    await world.subscribe("a", "t", "s")
    await world.ack_to("a", "t", "s", 2)
    view, now_ms = world.view("a"), world["a"].now_ms()
    topic = topic_status(view, "t", now_ms)
    assert topic is not None
    assert topic_rows(view, now_ms) == (msgspec.structs.replace(topic, backlog_bytes=None),)
    assert topic.backlog_bytes == topic.bytes
    assert (topic.messages, topic.first, topic.next, topic.seq) == (3, 1, 4, 3)
    assert (topic.vector, topic.subscriptions, topic.pending) == ((("a", 3),), 1, None)
    assert topic.snapshot_age_ms is None
    sub = sub_status(view, "t", "s")
    assert sub is not None
    assert (sub.mark, sub.backlog, sub.ranges, sub.base) == (2, 1, (("a", 1, 2),), ())
    assert (sub.kind, sub.replicate, sub.consumers) == ("exclusive", True, ())
    assert topic_status(view, "no", now_ms) is None
    assert sub_status(view, "t", "no") is None
    assert sub_status(view, "no", "s") is None


@links("a", "b")
async def test_metrics_are_named_bounded_and_say_what_happened(world: World) -> None:
    await world.declare("a", "secret-topic")
    await world.publish("a", "secret-topic", "secret-body")
    await world.subscribe("a", "secret-topic", "secret-sub")
    await world.until(lambda: world["b"].pull("a").delivered == 1)
    metrics = world["b"].nodes["core1"].service.metrics()
    found = {
        (metric.name, tuple(sorted(metric.labels.items()))): metric.value for metric in metrics
    }
    assert len(found) == len(metrics) <= 200
    allowed = set(string.ascii_lowercase + string.digits + "_")
    assert all(set(metric.name) <= allowed and metric.doc for metric in metrics)
    assert "secret" not in repr([(m.name, m.labels, m.doc) for m in metrics])
    label = (("region", "a"),)
    assert found["link_up", label] == 1
    assert found["link_delivered_total", label] == 1
    assert found["log_delivered_total", ()] == 1
    assert found["serving", ()] == 1
    served = world["a"].nodes["core1"].service
    assert "secret" not in repr(served.status())
    assert served.status()["links"] == {"b": "connected"}
    kinds = {metric.name: metric.kind for metric in metrics}
    assert all((kind == "counter") == name.endswith("_total") for name, kind in kinds.items())


def test_a_request_of_many_topics_fits() -> None:
    """A thousand topics of sixteen regions, with names of ordinary length."""
    assert REQUEST_BYTES_MAX > 1_000 * (60 + 16 * 30)

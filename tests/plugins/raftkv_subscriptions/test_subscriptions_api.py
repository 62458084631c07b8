"""The API on a node: topics, subscriptions, regions, reading without a reader."""

from __future__ import annotations

import asyncio

import pytest

import raftkv_subscriptions
from raftkv.errors import OutcomeUnknown, ReadTimeout, Refused
from raftkv_subscriptions import (
    BadName,
    CompactedFixed,
    Deleted,
    Message,
    OwnRegion,
    RegionActive,
    RegionFixed,
    ReplicationDisabled,
    SubscriptionInUse,
    TopicDiffers,
    TopicReplicated,
    UnknownPosition,
    UnknownRegion,
    UnknownSubscription,
    UnknownTopic,
)
from raftkv_subscriptions import errors as errors_module
from raftkv_subscriptions.errors import ConsumerEnded, PositionTrimmed, TooManyNacked
from raftkv_subscriptions.refusals import REFUSALS
from raftkv_subscriptions.rows import INT_MAX

from .fakes import NETWORK_S, Cluster, bodies, messages, story


@story()
async def test_topics(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    made = await subs.declare("u", retention_s=1.5, retention_bytes=7, backlog_bytes_max=9)
    assert (made.created, made.changed) == (True, False)
    status = await cluster.subs("core2").topic("u")
    assert (status.retention_ms, status.retention_bytes, status.backlog_bytes_max) == (1_500, 7, 9)
    assert not (await subs.declare("u", if_missing=True)).changed
    assert not (await subs.declare("u")).changed
    with pytest.raises(TopicDiffers):
        await subs.declare("u", retention_bytes=0)
    assert (await subs.declare("u", retention_bytes=0, change=True)).changed
    status = await cluster.subs("core2").topic("u")
    assert (status.retention_ms, status.retention_bytes, status.backlog_bytes_max) == (1_500, 0, 9)
    await subs.declare("u", retention_s=0, backlog_bytes_max=0, change=True)
    assert [one.name for one in subs.topics()] == ["t", "u"]
    with pytest.raises(CompactedFixed):
        await subs.declare("u", compacted=True)
    for name in ("", "no/path", "\ud800", "x" * 256):
        with pytest.raises(BadName):
            await subs.declare(name)
    for limits in (
        {"retention_s": -1},
        {"retention_bytes": -1},
        {"backlog_bytes_max": INT_MAX + 1},
    ):
        with pytest.raises(ValueError, match="cannot be|must be"):
            await subs.declare("u", **limits)  # type: ignore[arg-type]
    await subs.publish("u", messages("1", "2"))
    await subs.add_region("b")
    with pytest.raises(TopicReplicated):
        await subs.delete("u")
    await subs.exclude_region("b")
    assert await subs.delete("u") == Deleted(2)
    for name in ("u", "\ud800"):
        with pytest.raises(UnknownTopic):
            await subs.delete(name)
    with pytest.raises(UnknownTopic):
        await subs.topic("u")


@story()
async def test_reading_without_a_reader(cluster: Cluster) -> None:
    subs = cluster.subs("core3")
    await cluster.fill("t", "1", "2", "3")
    assert bodies(await subs.read("t")) == ["1", "2", "3"]
    assert bodies(await subs.read("t", first=2, limit=1)) == ["2"]
    assert bodies(await subs.read("t", first=2, bytes_max=1)) == ["2"]
    assert await subs.read("t", first=4) == ()
    for wrong in ({"first": 0}, {"limit": 0}, {"limit": 1_001}, {"bytes_max": -1}):
        with pytest.raises(ValueError, match="limit"):
            await subs.read("t", **wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownTopic):
        await subs.read("nowhere")
    cluster.pause("core3")
    await cluster.fill("t", "4")
    assert len(await subs.read("t", consistency="local")) == 3
    for reading in (
        subs.read("t", timeout_s=0.1),
        subs.topic("t", timeout_s=0.1),
        subs.sub("t", "s", timeout_s=0.1),
        subs.subscriptions("t", timeout_s=0.1),
        subs.reader("t", timeout_s=0.1),
        subs.seek("t", "s", "latest", timeout_s=0.1),
    ):
        with pytest.raises(ReadTimeout):
            await reading
    cluster.resume("core3")


@story()
async def test_subscriptions(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    await cluster.fill("t", "1", "2", "3")
    made = await subs.subscribe("t", "s", kind="shared", initial="earliest")
    assert (made.created, made.mark) == (True, 0)
    assert not (await subs.subscribe("t", "s")).created
    await subs.subscribe("t", "late", replicate=True)
    other = cluster.subs("core2")
    assert [one.name for one in await other.subscriptions("t")] == ["late", "s"]
    status = await other.sub("t", "s")
    assert (status.kind, status.replicate, status.mark, status.backlog) == (
        "exclusive",
        False,
        0,
        3,
    )
    assert (await other.sub("t", "late")).replicate
    await subs.set_replicate("t", "late", False)
    assert not (await other.sub("t", "late")).replicate

    assert (await subs.ack("t", "s", [2])).mark == 0
    assert (await subs.ack_to("t", "s", 1)).mark == 2
    assert (await subs.seek("t", "s", "latest")).mark == 3
    assert (await subs.seek("t", "s", "earliest")).mark == 0
    assert (await subs.seek("t", "s", 2)).mark == 2
    with pytest.raises(UnknownPosition):
        await subs.ack("t", "s", [4])
    with pytest.raises(UnknownPosition):
        await subs.ack_to("t", "s", 4)
    for positions in ([0], [-1], range(1, 1_002), [INT_MAX + 1]):
        with pytest.raises(ValueError, match="cannot be"):
            await subs.ack("t", "s", positions)
    with pytest.raises(ValueError, match="cannot be"):
        await subs.ack_to("t", "s", -1)

    for name in ("none", "\ud800"):
        for call in (
            subs.sub("t", name),
            subs.seek("t", name, "latest"),
            subs.seek("t", name, 1),
            subs.ack("t", name, [1]),
            subs.ack_to("t", name, 1),
            subs.set_replicate("t", name, True),
            subs.unsubscribe("t", name),
        ):
            with pytest.raises(UnknownSubscription):
                await call
    for topic in ("none", "\ud800"):
        for call in (
            subs.sub(topic, "s"),
            subs.subscribe(topic, "s"),
            subs.seek(topic, "s", "latest"),
            subs.unsubscribe(topic, "s"),
            subs.subscriptions(topic),
        ):
            with pytest.raises(UnknownTopic):
                await call
    async with subs.consumer("t", "s"):
        [consumer] = (await subs.sub("t", "s")).consumers
        assert (consumer.node, consumer.active) == ("core1", True)
        with pytest.raises(SubscriptionInUse):
            await subs.unsubscribe("t", "s")
    await subs.unsubscribe("t", "s")
    assert [one.name for one in await subs.subscriptions("t")] == ["late"]


@story(enabled=False)
async def test_replication_that_is_switched_off(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    with pytest.raises(ReplicationDisabled):
        await subs.subscribe("t", "s", replicate=True)
    with pytest.raises(ReplicationDisabled):
        await subs.consumer("t", "s", replicate=True)
    await subs.subscribe("t", "s")
    with pytest.raises(ReplicationDisabled):
        await subs.set_replicate("t", "s", True)


@story()
async def test_regions(cluster: Cluster) -> None:
    subs = cluster.subs("core2")
    await subs.set_region("a")
    assert (await subs.add_region("b")).created
    assert (await subs.add_region("c", fetches=False)).created
    for call in (subs.exclude_region("z"), subs.include_region("z"), subs.remove_region("z")):
        with pytest.raises(UnknownRegion):
            await call
    with pytest.raises(UnknownRegion):
        await subs.remove_region("\ud800")
    for call in (subs.add_region("a"), subs.exclude_region("a"), subs.include_region("a")):
        with pytest.raises(OwnRegion):
            await call
    for call in (subs.add_region("no good"), subs.set_region("no good")):
        with pytest.raises(BadName):
            await call
    assert (await subs.exclude_region("b")).changed
    states = {row.name: row.state for row in await subs.regions()}
    assert states == {"a": "active", "b": "excluded", "c": "active"}
    assert (await subs.include_region("b")).changed
    with pytest.raises(RegionActive):
        await subs.remove_region("b")
    await subs.exclude_region("b")
    await subs.remove_region("b")
    assert [row.name for row in await subs.regions()] == ["a", "c"]
    await cluster.fill("t", "1")
    with pytest.raises(RegionFixed):
        await subs.set_region("other")
    await subs.set_mode("snapshot")
    assert cluster.nodes["core1"].settings["mode"] == "snapshot"
    with pytest.raises(ValueError, match="mode"):
        await subs.set_mode("own")  # type: ignore[arg-type]
    status = await cluster.subs("core1").status()
    assert (status.region, status.mode, status.topics, status.messages) == ("a", "snapshot", 1, 1)


@story(replicants=1)
async def test_a_replicant_does_all_of_it(cluster: Cluster) -> None:
    subs = cluster.subs("rep1")
    await subs.declare("u")
    await subs.publish("u", [b"1", Message(b"2")])
    async with subs.consumer("u", "s", initial="earliest") as consumer:
        assert await consumer.ack(*await consumer.receive(2)) == 2
    async with subs.consumer("u", "sh", kind="shared", initial="earliest") as consumer:
        assert await consumer.ack(*await consumer.receive(2)) == 2
    reader = await subs.reader("u", start="earliest")
    assert bodies(await reader.read()) == ["1", "2"]
    assert cluster.everywhere("u") == ["1", "2"]


@story()
async def test_without_an_answer_nothing_is_known(cluster: Cluster) -> None:
    subs = cluster.subs("core2")
    calls = {
        "ensure": lambda: subs.declare("u", timeout_s=2),
        "subscribe": lambda: subs.subscribe("t", "s", timeout_s=2),
    }
    for tag, call in calls.items():
        cluster.lose_answers("core2", tag)
        calling = asyncio.ensure_future(call())  # type: ignore[no-untyped-call]
        await asyncio.sleep(2 * NETWORK_S)
        cluster.isolate("core2")
        with pytest.raises(OutcomeUnknown):
            await calling
        cluster.heal("core2")
    assert [one.name for one in subs.topics()] == ["t", "u"]
    # It may be done again: what is there stays.
    assert not (await subs.subscribe("t", "s")).created


def test_public_names() -> None:
    """Everything that may be raised, and everything that is answered, has a public name."""
    public = {getattr(raftkv_subscriptions, name) for name in raftkv_subscriptions.__all__}
    assert set(REFUSALS) <= public
    assert {getattr(errors_module, name) for name in errors_module.__all__} <= public
    assert list(raftkv_subscriptions.__all__) == sorted(raftkv_subscriptions.__all__)


def test_every_refusal_says_what_to_do() -> None:
    shown: list[Refused] = [ConsumerEnded(7), PositionTrimmed("t", 2, 5), TooManyNacked("s", 3)]
    for error, words in zip(shown, ("open a new one", "seek to 5", "acknowledge"), strict=True):
        assert words in str(error)
        assert str(type(error)(*error.args)) == str(error)


@story()
async def test_the_shortest_retention_is_still_one(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    await subs.declare("brief", retention_s=0.0001)
    await subs.declare("kept", retention_s=0)
    assert (await subs.topic("brief")).retention_ms == 1
    assert (await subs.topic("kept")).retention_ms == 0

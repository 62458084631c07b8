"""Publications of one node: together in one command, each with its own verdict."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftkv.errors import NotApplied, OutcomeUnknown, Overloaded, Stopped
from raftkv_subscriptions import (
    BacklogFull,
    BadMessage,
    BatchTooLarge,
    EmptyBatch,
    Message,
    MessageTooLarge,
    NotSent,
    Published,
    StillUnderWay,
    TooManyKeys,
    UnknownTopic,
)
from raftkv_subscriptions import publishing as publishing_module
from raftkv_subscriptions.publishing import messages_of
from raftkv_subscriptions.rows import COMMAND_BYTES, ROWS_MAX, size_of

from .fakes import NETWORK_S, Cluster, messages, story, tag_of, until


def test_what_may_be_published() -> None:
    one = Message(b"x", "k", (("h", "v"),))
    assert messages_of(b"x") == (Message(b"x"),)
    assert messages_of(one) == (one,)
    assert messages_of([b"x", one]) == (Message(b"x"), one)
    assert messages_of(iter([b"x"])) == (Message(b"x"),)
    assert messages_of([]) == ()
    for wrong in ("text", ["text"], [1], bytearray(b"x")):
        with pytest.raises(TypeError, match="encode"):
            messages_of(wrong)  # type: ignore[arg-type]


@story()
async def test_publishing(cluster: Cluster) -> None:
    subs = cluster.subs("core2")
    assert await subs.publish("t", b"1") == Published(1, 1, "local", 1)
    assert await subs.publish("t", [b"2", Message(b"3")]) == Published(2, 3, "local", 2)
    before = len(cluster.log)
    limit = cluster.nodes["core2"].settings["message_bytes_max"]
    for what, error in (
        ([], EmptyBatch),
        (b"x" * limit, MessageTooLarge),
        ([b"x"] * (ROWS_MAX + 1), BatchTooLarge),
        ([b"x" * (COMMAND_BYTES // 4)] * 4, BatchTooLarge),
        (Message(b"", "\ud800"), BadMessage),
    ):
        with pytest.raises(error):
            await subs.publish("t", what)  # type: ignore[arg-type]
    assert len(cluster.log) == before  # what is wrong by itself is not sent
    for topic in ("nowhere", "no\ud800where"):
        with pytest.raises(UnknownTopic):
            await subs.publish(topic, b"1")
    assert cluster.everywhere() == ["1", "2", "3"]
    assert subs.counters["published"] == 3


@story()
async def test_those_that_wait_go_together_and_in_order(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    calls = [
        subs.publish("t", messages(*(f"{n}.{m}" for m in range(n % 3 + 1)))) for n in range(99)
    ]
    done = await asyncio.gather(*calls)
    position = 1
    for n, one in enumerate(done):
        assert one == Published(position, position + n % 3, "local", position)
        position = one.last + 1
    assert cluster.everywhere() == [f"{n}.{m}" for n in range(99) for m in range(n % 3 + 1)]
    # All calls were made before the first of them could be sent.
    assert cluster.proposals("publish") == 1
    # Behind one that is under way the rest gathers.
    first = asyncio.ensure_future(subs.publish("t", b"first"))
    await asyncio.sleep(NETWORK_S / 2)
    rest = [asyncio.ensure_future(subs.publish("t", b"rest")) for _ in range(10)]
    await asyncio.gather(first, *rest)
    assert cluster.proposals("publish") == 3
    assert subs.counters["publish_commands"] == 3


@story()
async def test_a_command_has_its_bounds(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    many = [subs.publish("t", b"x") for _ in range(ROWS_MAX + 1)]
    await asyncio.gather(*many)
    assert cluster.proposals("publish") == 2
    body = b"x" * (COMMAND_BYTES // 4)
    large = [subs.publish("t", body[: 200 * 1024 // 2]) for _ in range(6)]
    await asyncio.gather(*large)
    assert cluster.proposals("publish") == 4  # five of these fit into one command


@story()
async def test_a_refused_one_does_not_hit_the_others(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    small, large = Message(b"s"), Message(b"L" * 10_000)
    await subs.declare("small", backlog_bytes_max=3 * size_of(small))
    await subs.subscribe("small", "s")
    calls = [subs.publish("small", one) for one in (small, large, small, large, small, small)]
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in done] == [
        Published,
        BacklogFull,
        Published,
        BacklogFull,
        Published,
        BacklogFull,
    ]
    assert cluster.everywhere("small") == ["s", "s", "s"]


@story(keys_max=2)
async def test_nor_does_one_that_is_refused_for_what_it_says(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    await subs.declare("k", compacted=True)
    keyed = [Message(b"x", key) for key in ("a", "b", "c", "a")]
    done = await asyncio.gather(*(subs.publish("k", m) for m in keyed), return_exceptions=True)
    assert [type(one) for one in done] == [Published, Published, TooManyKeys, Published]


@story()
async def test_what_does_not_fit_is_not_tried_a_hundred_times(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    one = Message(b"x")
    await subs.declare("full", backlog_bytes_max=size_of(one))
    await subs.subscribe("full", "s")
    await subs.publish("full", one)
    calls = [subs.publish("full", one) for _ in range(100)]
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, BacklogFull) for error in done)
    assert cluster.proposals("publish") == 3  # together, the first by itself: so much for the rest
    calls = [subs.publish("nowhere", one) for _ in range(100)]
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, UnknownTopic) for error in done)
    assert cluster.proposals("publish") == 4


@story()
async def test_topics_do_not_wait_for_each_other(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    await subs.declare("u")
    cluster.hold("core1", "publish")
    slow = asyncio.ensure_future(subs.publish("t", b"1", timeout_s=1))
    await asyncio.sleep(NETWORK_S / 2)
    cluster.filter = lambda node, envelope: True  # the first one is held for ever
    assert (await subs.publish("u", b"1", timeout_s=1)).first == 1
    with pytest.raises(StillUnderWay):
        await slow


@story()
async def test_a_lost_answer_is_fetched_and_a_lost_proposal_is_sent_again(cluster: Cluster) -> None:
    subs = cluster.subs("core2")
    cluster.lose_answers("core2", "publish")
    done = await asyncio.gather(*(subs.publish("t", f"{n}".encode(), timeout_s=60) for n in (1, 2)))
    assert [one.first for one in done] == [1, 2]
    assert subs.counters["unknown_outcomes"] == 1
    lost: list[Any] = []

    def lose(node: Any, envelope: Any) -> bool:
        if tag_of(envelope) == "publish" and not lost:
            lost.append(envelope)
            return False
        return True

    cluster.filter = lose
    assert (await subs.publish("t", b"3", timeout_s=60)).first == 3
    cluster.append(lost)  # it arrives after all, and its number was given up
    assert cluster.everywhere() == ["1", "2", "3"]


@story()
async def test_a_caller_that_waits_no_more_is_told_what_is_known(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    release = cluster.hold("core1", "publish")
    begun = asyncio.ensure_future(subs.publish("t", b"begun", timeout_s=0.5))
    await asyncio.sleep(NETWORK_S)
    waits = asyncio.ensure_future(subs.publish("t", b"waits", timeout_s=0.5))
    left = asyncio.ensure_future(subs.publish("t", b"left"))
    await asyncio.sleep(NETWORK_S)
    left.cancel()
    with pytest.raises(StillUnderWay):
        await begun
    with pytest.raises(NotSent):
        await waits
    patient = asyncio.ensure_future(subs.publish("t", b"patient", timeout_s=60))
    await asyncio.sleep(1)
    release()
    await patient
    assert cluster.everywhere() == ["begun", "patient"]
    assert not subs.publishing._lines
    assert subs.publishing.waiting_bytes == 0


@story()
async def test_who_was_cancelled_after_it_began_is_published_once(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    task = asyncio.ensure_future(subs.publish("t", b"1"))
    await asyncio.sleep(NETWORK_S / 2)
    task.cancel()
    await asyncio.sleep(1)
    assert cluster.everywhere() == ["1"]
    assert not subs.publishing._lines


@story()
async def test_what_never_happened_is_not_sent_again_for_those_who_have_left(
    cluster: Cluster,
) -> None:
    subs = cluster.subs("core2")
    cluster.isolate("core2")
    gone = asyncio.ensure_future(subs.publish("t", b"gone", timeout_s=1))
    stays = asyncio.ensure_future(subs.publish("t", b"stays", timeout_s=200))
    with pytest.raises(OutcomeUnknown):
        await gone
    await asyncio.sleep(30)
    cluster.heal("core2")
    await stays
    assert cluster.everywhere() == ["stays"]


@story()
async def test_a_new_life_goes_on_publishing(cluster: Cluster) -> None:
    """What was applied in a life that is over, unheard, stays unknown; the rest goes on."""
    subs = cluster.subs("core2")
    cluster.lose_answers("core2", "publish")
    unknown = asyncio.ensure_future(subs.publish("t", b"1", timeout_s=500))
    await until(lambda: cluster.bodies("core1") == ["1"])
    later = asyncio.ensure_future(subs.publish("t", b"2", timeout_s=500))
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    await asyncio.sleep(10)
    cluster.rejoin("core2")
    with pytest.raises(OutcomeUnknown):
        await unknown
    assert (await later).first == 2
    assert cluster.everywhere() == ["1", "2"]


@story()
async def test_the_memory_of_those_who_wait_is_bounded(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    release = cluster.hold("core1", "publish")
    limit = publishing_module.BYTES_MAX
    publishing_module.BYTES_MAX = 3_000  # type: ignore[misc]
    try:
        calls = [asyncio.ensure_future(subs.publish("t", b"x" * 1_000)) for _ in range(4)]
        await asyncio.sleep(NETWORK_S)
        release()
        done = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        publishing_module.BYTES_MAX = limit  # type: ignore[misc]
    assert [isinstance(one, Overloaded) for one in done] == [False, False, True, True]
    assert subs.publishing.waiting_bytes == 0


@story()
async def test_a_node_that_stops_tells_its_callers(cluster: Cluster) -> None:
    subs = cluster.subs("core2")
    cluster.hold("core2", "publish")
    begun = asyncio.ensure_future(subs.publish("t", b"1"))
    await asyncio.sleep(NETWORK_S)
    waits = asyncio.ensure_future(subs.publish("t", b"2"))
    await asyncio.sleep(NETWORK_S)
    await cluster.stop("core2")
    with pytest.raises(StillUnderWay):
        await begun
    with pytest.raises(Stopped):
        await waits
    with pytest.raises(NotApplied):
        await subs.publish("t", b"3")

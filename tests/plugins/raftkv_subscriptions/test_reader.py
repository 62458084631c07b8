"""Readers: this node's copy of a topic, in order, waiting without polling."""

from __future__ import annotations

import asyncio

import pytest

from raftkv.errors import ReadTimeout, Stopped
from raftkv_subscriptions import Message, PositionTrimmed, Reader, UnknownTopic

from .fakes import NETWORK_S, Cluster, bodies, story


async def rest_of(reader: Reader) -> list[str]:
    """What there is, by asking whether there is more."""
    got: list[str] = []
    while await reader.has_more():
        message = await reader.next()
        assert message is not None
        got.append(message.body.decode())
    return got


@story()
async def test_reading(cluster: Cluster) -> None:
    await cluster.fill("t", "1", "2", "3")
    reader = await cluster.subs("core2").reader("t", start="earliest")
    assert await rest_of(reader) == ["1", "2", "3"]
    assert reader.position == 4
    latest = await cluster.subs("core2").reader("t")
    assert not await latest.has_more()
    assert await latest.read(wait_s=0.0) == ()
    middle = await cluster.subs("core3").reader("t", start=2)
    got = await middle.read(10)
    assert bodies(got) == ["2", "3"]
    assert (got[0].topic, got[0].position, got[0].origin, got[0].seq) == ("t", 2, "local", 2)
    middle.seek(1)
    assert bodies(await middle.read(2)) == ["1", "2"]
    assert bodies(await middle.read(2, bytes_max=1)) == ["3"]
    middle.seek("latest")
    assert await middle.read() == ()
    for wrong in (0, -1, "first"):
        with pytest.raises(ValueError, match="position"):
            middle.seek(wrong)  # type: ignore[arg-type]
    for count in (0, 1_001):
        with pytest.raises(ValueError, match="count"):
            await middle.read(count)
    with pytest.raises(UnknownTopic):
        await cluster.subs("core1").reader("nowhere")
    assert cluster.subs("core2").counters["read"] == 3


@story()
async def test_a_reader_waits_without_a_single_entry(cluster: Cluster) -> None:
    reader = await cluster.subs("core3").reader("t")
    waiting = asyncio.ensure_future(reader.next())
    await asyncio.sleep(NETWORK_S)
    assert len(cluster.subs("core3").waiting) == 1
    before = len(cluster.log)
    await asyncio.sleep(3_600)
    assert len(cluster.log) == before
    assert not waiting.done()
    await cluster.fill("t", "1")
    message = await asyncio.wait_for(waiting, NETWORK_S)
    assert message is not None
    assert message.body == b"1"
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await reader.next(2.5) is None
    assert loop.time() - began == pytest.approx(2.5)


@story()
async def test_a_loop_reads_what_comes_until_it_is_closed(cluster: Cluster) -> None:
    reader = await cluster.subs("core2").reader("t")
    got: list[str] = []

    async def work() -> None:
        async for message in reader:
            got.append(message.body.decode())

    task = asyncio.ensure_future(work())
    for text in ("1", "2", "3"):
        await cluster.fill("t", text)
        await asyncio.sleep(NETWORK_S)
    assert got == ["1", "2", "3"]
    reader.close()
    await asyncio.wait_for(task, 1)
    with pytest.raises(Stopped):
        await reader.next()


@story()
async def test_has_more_counts_what_was_published_elsewhere(cluster: Cluster) -> None:
    reader = await cluster.subs("core3").reader("t")
    cluster.pause("core3")
    await cluster.fill("t", "1")
    assert not await reader.has_more(consistency="local")
    with pytest.raises(ReadTimeout):
        await reader.has_more(timeout_s=0.5)
    asking = asyncio.ensure_future(reader.has_more())
    await asyncio.sleep(NETWORK_S)
    cluster.resume("core3")
    assert await asking


@story()
async def test_what_retention_removed_is_said(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    reader = await subs.reader("t", start="earliest")
    await cluster.fill("t", "1", "2", "3")
    assert bodies(await reader.read(1)) == ["1"]
    await subs.declare("t", retention_bytes=1, change=True)
    await asyncio.sleep(5)
    first = (await subs.topic("t")).first
    assert first > 2
    with pytest.raises(PositionTrimmed) as caught:
        await reader.next()
    assert (caught.value.position, caught.value.first) == (2, first)
    with pytest.raises(PositionTrimmed):
        await reader.has_more()
    reader.seek(caught.value.first)
    await cluster.fill("t", "4")
    reader.seek("earliest")
    # Looking at a topic without a reader begins with what is there.
    assert all(one.position >= first for one in await subs.read("t"))


@story()
async def test_compacted(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    await subs.declare("k", compacted=True)
    said = [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", b""), ("a", b"3")]
    for key, body in said:
        await subs.publish("k", Message(body, key))
    reader = await subs.reader("k", start="earliest", compacted=True)
    assert [(one.key, one.body) for one in await reader.read()] == [("c", b"1"), ("a", b"3")]
    assert not await reader.has_more()
    whole = await subs.reader("k", start="earliest")
    assert [(one.key, one.body) for one in await whole.read()] == said
    waiting = asyncio.ensure_future(reader.next())
    await asyncio.sleep(NETWORK_S)
    await subs.publish("k", Message(b"2", "c"))
    message = await waiting
    assert message is not None
    assert (message.key, message.body) == ("c", b"2")
    found = await subs.read("k", compacted=True)
    assert [(one.key, one.body) for one in found] == [("a", b"3"), ("c", b"2")]


@story()
async def test_a_long_run_of_superseded_messages_is_passed_over(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    await subs.declare("k", compacted=True)
    for start in range(0, 2_500, 500):
        await subs.publish("k", [Message(b"%d" % n, "a") for n in range(start, start + 500)])
    reader = await subs.reader("k", start="earliest", compacted=True)
    assert await reader.has_more()
    assert bodies(await reader.read(5)) == ["2499"]
    assert not await reader.has_more()
    assert await reader.read() == ()
    assert bodies(await subs.read("k", compacted=True)) == ["2499"]


@story()
async def test_a_reader_ends_with_its_topic(cluster: Cluster) -> None:
    subs = cluster.subs("core1")
    await subs.declare("u")
    reader = await cluster.subs("core2").reader("u")
    waiting = asyncio.ensure_future(reader.next())
    await asyncio.sleep(NETWORK_S)
    await subs.delete("u")
    with pytest.raises(UnknownTopic):
        await waiting
    await subs.declare("u")  # another one of its name
    with pytest.raises(UnknownTopic):
        await reader.next()


@story()
async def test_a_snapshot_jumps_over_what_a_reader_waits_for(cluster: Cluster) -> None:
    reader = await cluster.subs("core3").reader("t")
    waiting = asyncio.ensure_future(reader.next())
    await asyncio.sleep(NETWORK_S)
    cluster.pause("core3")
    await cluster.fill("t", "1", "2")
    cluster.jump("core3")
    message = await asyncio.wait_for(waiting, 1)
    assert message is not None
    assert message.body == b"1"
    assert bodies(await reader.read()) == ["2"]


@story()
async def test_a_node_that_stops_ends_its_readers(cluster: Cluster) -> None:
    reader = await cluster.subs("core2").reader("t")
    waiting = asyncio.ensure_future(reader.next())
    await asyncio.sleep(NETWORK_S)
    await cluster.stop("core2")
    with pytest.raises(Stopped):
        await waiting
    with pytest.raises(Stopped):
        await reader.read()


@story()
async def test_many_readers_are_woken_by_what_is_for_them(cluster: Cluster) -> None:
    """With many topics watched, changed rows are listened to; with few again, looked at."""
    subs = cluster.subs("core1")
    names = [f"n{n}" for n in range(100)]
    for name in names:
        await subs.declare(name)
    readers = [await subs.reader(name) for name in names]
    tasks = [asyncio.ensure_future(reader.next()) for reader in readers]
    await asyncio.sleep(NETWORK_S)
    woken = subs.counters["wakeups"]
    await subs.publish("n42", b"1")
    await asyncio.sleep(NETWORK_S)
    assert [n for n, task in enumerate(tasks) if task.done()] == [42]
    assert subs.counters["wakeups"] == woken + 1
    for name in names[:40]:
        await subs.publish(name, b"2")
    for task in tasks[50:]:
        task.cancel()
    await asyncio.sleep(NETWORK_S)
    await subs.publish("n45", b"3")
    await asyncio.sleep(NETWORK_S)
    assert [n for n, task in enumerate(tasks[:50]) if not task.done()] == [
        n for n in range(40, 50) if n not in (42, 45)
    ]
    for task in tasks:
        task.cancel()

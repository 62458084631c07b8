"""The API on a node: queues, publishing, reading."""

from __future__ import annotations

import asyncio

import pytest

from raftkv.errors import OutcomeUnknown, ReadTimeout
from raftkv_txqueue import (
    BadHeaders,
    BadQueueName,
    BatchTooLarge,
    Declared,
    Deleted,
    EmptyBatch,
    Fate,
    Message,
    MessageTooLarge,
    Published,
    QueueAcquired,
    QueueDiffers,
    QueueFull,
    QueueInUse,
    QueueNotEmpty,
    UnknownDeadLetter,
    UnknownQueue,
    UnknownTransaction,
)
from raftkv_txqueue.commands import COMMAND_BYTES, ROWS_MAX, Purge
from raftkv_txqueue.transaction import messages_of

from .fakes import NETWORK_S, Cluster, FormerTxQueue, messages, story


def test_what_may_be_published() -> None:
    one = Message(b"x", (("k", "v"),))
    assert messages_of(b"x") == (Message(b"x"),)
    assert messages_of(one) == (one,)
    assert messages_of([b"x", one]) == (Message(b"x"), one)
    assert messages_of(iter([b"x"])) == (Message(b"x"),)
    assert messages_of([]) == ()
    for wrong in ("text", ["text"], [1], bytearray(b"x")):
        with pytest.raises(TypeError, match="encode"):
            messages_of(wrong)  # type: ignore[arg-type]


@story()
async def test_queues(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    made = await txq.declare("c", depth_max=3, overflow="drop_oldest", dead_letter="a")
    assert made == Declared(made.id, created=True, changed=False)
    assert await txq.declare("c", depth_max=3, overflow="drop_oldest", dead_letter="a") == Declared(
        made.id, created=False, changed=False
    )
    assert await txq.declare("c") == Declared(made.id, created=False, changed=False)
    with pytest.raises(QueueDiffers):
        await txq.declare("c", depth_max=2)
    with pytest.raises(UnknownDeadLetter):
        await txq.declare("d", dead_letter="nowhere")
    assert (await txq.declare("c", depth_max=2, change=True)).changed
    assert (await txq.depth("c")).overflow == "drop_oldest"
    await txq.declare("c", overflow="refuse", change=True)
    assert [status.name for status in txq.queues()] == ["a", "b", "c"]
    with pytest.raises(BadQueueName):
        await txq.declare("no/path")
    with pytest.raises(BadQueueName):
        await txq.declare("\ud800")
    with pytest.raises(UnknownQueue):
        await txq.delete("\ud800")
    with pytest.raises(UnknownQueue):
        await txq.publish("\ud800", b"1")
    await txq.publish("c", [b"1", b"2"])
    with pytest.raises(QueueFull):
        await txq.publish("c", b"3")
    with pytest.raises(QueueNotEmpty):
        await txq.delete("c", if_empty=True)
    session = await txq.session()
    await session.get("c")
    with pytest.raises(QueueAcquired):
        await txq.delete("c", if_unused=True)
    assert await txq.delete("c") == Deleted(2)
    with pytest.raises(UnknownQueue):
        await txq.delete("c")
    writer = await txq.session("tx")
    await writer.publish("b", b"1")
    await writer.flush()
    with pytest.raises(QueueInUse):
        await txq.delete("b")
    await writer.rollback()


@story()
async def test_publishing(cluster: Cluster) -> None:
    txq = cluster.txq("core2")
    assert await txq.publish("a", b"1") == Published(1, 1)
    assert await txq.publish("a", [b"2", Message(b"3")]) == Published(2, 3)
    before = len(cluster.log)
    limit = cluster.nodes["core2"].settings["message_bytes_max"]
    for what, error in (
        ([], EmptyBatch),
        (b"x" * limit, MessageTooLarge),
        ([b"x"] * (ROWS_MAX + 1), BatchTooLarge),
        ([b"x" * (COMMAND_BYTES // 2)] * 2, MessageTooLarge),
        ([b"x" * (COMMAND_BYTES // 4)] * 4, BatchTooLarge),
        (Message(b"", (("", "v"),)), BadHeaders),
    ):
        with pytest.raises(error):
            await txq.publish("a", what)  # type: ignore[arg-type]
    assert len(cluster.log) == before  # what is wrong by itself is not sent
    with pytest.raises(UnknownQueue):
        await txq.publish("nowhere", b"1")
    assert cluster.everywhere("a") == ["1", "2", "3"]
    assert txq.counters["published"] == 3


@story()
async def test_a_publication_whose_answer_is_late(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    release = cluster.hold("core1")
    with pytest.raises(OutcomeUnknown):
        await txq.publish("a", b"1", timeout_s=0.5)
    release()
    assert cluster.everywhere("a") == ["1"]


@story()
async def test_purging(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    assert await txq.purge("a") == 0
    count = 2 * ROWS_MAX + 3
    session = await txq.session("tx")
    await session.publish("a", messages(*("x" for _ in range(count))))
    await session.commit()
    held = await session.get("a", 2)

    purging = asyncio.ensure_future(txq.purge("a", timeout_s=60))
    await asyncio.sleep(1.2 * NETWORK_S)  # it arrives before the last of them
    await cluster.fill("a", "later", node="core2")
    assert not purging.done()
    assert await purging == count - len(held)
    assert cluster.everywhere("a") == ["later"]
    assert (await txq.depth("a")).acquired == len(held)
    assert cluster.proposals(str(Purge.__struct_config__.tag)) >= 3
    with pytest.raises(UnknownQueue):
        await txq.purge("nowhere")


@story()
async def test_reading_is_linearizable_unless_it_is_local(cluster: Cluster) -> None:
    txq = cluster.txq("core3")
    cluster.pause("core3")
    await cluster.fill("a", "1", "2")
    local = await txq.depth("a", consistency="local")
    assert (local.depth, local.ready) == (0, 0)
    assert await txq.browse("a", consistency="local") == ()
    with pytest.raises(ReadTimeout):
        await txq.depth("a", timeout_s=0.5)
    with pytest.raises(ReadTimeout):
        await txq.browse("a", timeout_s=0.5)
    with pytest.raises(ReadTimeout):
        await txq.outcome("1.1", timeout_s=0.5)
    reading = asyncio.ensure_future(txq.depth("a"))
    await asyncio.sleep(0.01)
    cluster.resume("core3")
    assert (await reading).ready == 2
    assert [one.message.body for one in await txq.browse("a", first=2)] == [b"2"]
    assert [one.seq for one in await txq.browse("a", limit=1)] == [1]
    with pytest.raises(UnknownQueue):
        await txq.depth("nowhere")
    with pytest.raises(UnknownQueue):
        await txq.browse("nowhere")
    for limit in (0, ROWS_MAX + 1):
        with pytest.raises(ValueError, match="limit"):
            await txq.browse("a", limit=limit)


@story()
async def test_browsing_everything(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await cluster.fill("a", "1", "2", "3")
    session = await txq.session("tx")
    got = await session.get("a", 2)
    await session.accept(got[0])
    await session.flush()
    assert [one.seq for one in await txq.browse("a")] == [3]
    shown = await txq.browse("a", everything=True)
    assert [(one.seq, one.state) for one in shown] == [
        (1, "accepted"),
        (2, "acquired"),
        (3, "available"),
    ]


@story()
async def test_outcomes(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"1")
    txid = session.txid
    other = cluster.txq("core2")
    assert await other.outcome(txid) == Fate("unknown")
    await session.flush()
    assert await other.outcome(txid) == Fate("active")
    await session.commit()
    assert await other.outcome(txid) == Fate("committed")
    assert (await other.outcome("999.1")).state == "unknown"
    for wrong in ("", "1", "1.", "x.1", "1.1.1", "1.-1", "\u0661.1", "1" * 30 + ".1"):
        with pytest.raises(UnknownTransaction):
            await other.outcome(wrong)


@story(replicants=1)
async def test_a_replicant_does_all_of_it(cluster: Cluster) -> None:
    txq = cluster.txq("rep1")
    await txq.declare("c")
    await txq.publish("c", [b"1", b"2"])
    async with txq.session("tx") as session:
        got = await session.get("c", 2, wait_s=1)
        async with session.transaction() as tx:
            await tx.accept(*got)
            await tx.publish("a", [one.body for one in got])
    assert (await cluster.txq("core1").outcome(tx.txid)).state == "committed"
    assert cluster.everywhere("a") == ["1", "2"]
    assert cluster.everywhere("c", everything=True) == []


@story()
async def test_the_status_tells_of_all_of_it(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await cluster.fill("a", "1", "2")
    session = await txq.session()
    await session.get("a")
    waiting = asyncio.ensure_future(session.get("b", wait_s=60))
    await asyncio.sleep(0.01)
    status = txq.status()
    assert (status.node, status.sessions, status.acquired, status.waiting) == ("core1", 1, 1, 1)
    assert (status.totals.messages, status.totals.ready) == (2, 1)
    assert status.mine["published"] == 2
    waiting.cancel()


@story(plugin=FormerTxQueue)
async def test_at_format_1_the_node_compares_what_is_declared(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await txq.declare("c", depth_max=3, dead_letter="a")
    assert not (await txq.declare("c")).changed
    with pytest.raises(QueueDiffers):
        await cluster.txq("core2").declare("c", depth_max=2)
    with pytest.raises(UnknownDeadLetter):
        await txq.declare("c", dead_letter="nowhere", change=True)
    assert (await txq.declare("c", depth_max=2, change=True)).changed
    assert [(one.depth_max, one.dead_letter) for one in txq.queues() if one.name == "c"] == [
        (2, "a")
    ]
    assert cluster.proposals("ensure") == 0

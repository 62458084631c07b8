"""Local transactions on a node: how they are sent, how they end, and how that is found out."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from raftkv.errors import OutcomeUnknown
from raftkv.plugin import Outcome
from raftkv_txqueue import (
    Committed,
    InTransaction,
    MessageTooLarge,
    NotSent,
    OutcomeForgotten,
    Session,
    SessionEnded,
    StillUnderWay,
    TransactionAborted,
    TransactionObserver,
    TransactionOver,
    TransactionUnknown,
    TxQueueOptions,
    UnknownTransaction,
)
from raftkv_txqueue.commands import (
    COMMAND_BYTES,
    MESSAGE_OVERHEAD,
    ROWS_MAX,
    AcceptOf,
    CloseSession,
    Message,
    PublishTo,
    size_of,
)
from raftkv_txqueue.transaction import Content

from .fakes import NETWORK_S, REST_S, Cluster, bodies, messages, story

T = TypeVar("T")

SMALL = TxQueueOptions(stage_operations=3)


async def soon() -> None:
    await asyncio.sleep(20 * NETWORK_S)


def publish(content: Content, queue: str, what: list[Message]) -> None:
    content.publish(queue, what, sum(size_of(one) for one in what))


# --- how it is sent -------------------------------------------------------------------------------


def test_packs_hold_what_one_command_may() -> None:
    content = Content()
    assert content.take() == []
    publish(content, "a", messages(*("x" * 10 for _ in range(ROWS_MAX - 1))))
    content.accept("a", range(1, 4))
    content.accept("a", [9])
    publish(content, "b", messages("y" * COMMAND_BYTES, "z"))
    assert content.rows == ROWS_MAX + 5
    first, second, third, fourth = content.take()
    assert [len(first[0].messages), first[1]] == [ROWS_MAX - 1, AcceptOf("a", (1,))]
    assert second == (AcceptOf("a", (2, 3, 9)),)
    assert third[0].messages == tuple(messages("y" * COMMAND_BYTES))  # alone, though too large
    assert fourth == (PublishTo("b", tuple(messages("z"))),)
    assert (content.rows, content.bytes, len(content)) == (0, 0, 0)


def test_packs_are_bounded_in_bytes() -> None:
    content = Content()
    size = COMMAND_BYTES // 4 - MESSAGE_OVERHEAD
    publish(content, "a", messages(*("x" * size for _ in range(9))))
    packs = content.take()
    assert [len(pack[0].messages) for pack in packs] == [4, 4, 1]


def test_operations_keep_their_order() -> None:
    content = Content()
    publish(content, "a", messages("1"))
    publish(content, "b", messages("2"))
    publish(content, "b", messages("3"))
    content.accept("b", [4])
    publish(content, "a", messages("5"))
    assert content.take() == [
        (
            PublishTo("a", tuple(messages("1"))),
            PublishTo("b", tuple(messages("2", "3"))),
            AcceptOf("b", (4,)),
            PublishTo("a", tuple(messages("5"))),
        )
    ]


@story()
async def test_a_small_one_is_one_entry(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await cluster.fill("a", "x")
    got = await session.get("a")
    for number in range(10):
        await session.publish("b", str(number).encode())
    await session.accept(*got)
    assert cluster.everywhere("b", everything=True) == []
    assert session.txid == f"{session.id}.1"
    before = len(cluster.log)
    done = await session.commit()
    assert len(cluster.log) == before + 1
    assert done == Committed(session.txid, len(cluster.log), (("b", 1, 10),))
    assert cluster.everywhere("b") == [str(number) for number in range(10)]
    assert cluster.everywhere("a", everything=True) == []
    assert session.next_txid == f"{session.id}.2"


@story(options=SMALL)
async def test_a_large_one_is_staged_and_seen_at_once(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    for number in range(10):
        await session.publish("a" if number % 2 else "b", str(number).encode())
    assert cluster.proposals("stage") == 3
    await session.flush()
    assert cluster.proposals("stage") == 4
    await session.flush()  # nothing to do
    assert cluster.proposals("stage") == 4
    assert cluster.everywhere("a", everything=True) == []
    await session.commit()
    assert cluster.everywhere("a") == ["1", "3", "5", "7", "9"]
    assert cluster.everywhere("b") == ["0", "2", "4", "6", "8"]
    assert cluster.table("staged") == {}


@story()
async def test_more_than_one_entry_may_touch(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    texts = [str(number) for number in range(3 * ROWS_MAX + 5)]
    await session.publish("a", messages(*texts))
    done = await session.commit()
    assert done.spans == (("a", 1, len(texts)),)
    assert (await cluster.txq("core2").depth("a")).ready == len(texts)
    seen = []
    for first in range(1, len(texts), ROWS_MAX):
        browsed = await cluster.txq("core3").browse("a", first=first, limit=ROWS_MAX)
        seen += [one.message.body.decode() for one in browsed]
    assert seen == texts


@story()
async def test_nothing_is_no_transaction(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    before = len(cluster.log)
    assert await session.commit() == Committed("")
    await session.rollback()
    async with session.transaction() as tx:
        pass
    assert tx.receipt == Committed("")
    assert len(cluster.log) == before
    # But one that has a name is decided.
    txid = session.begin()
    assert session.begin() == txid == session.txid == session.next_txid
    assert (await cluster.txq("core2").outcome(txid)).state == "unknown"
    assert (await session.commit()).txid == txid
    assert (await cluster.txq("core2").outcome(txid)).state == "committed"


# --- how it ends ----------------------------------------------------------------------------------


@story()
async def test_a_rollback_gives_back_what_was_accepted(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await cluster.fill("a", "x", "y")
    got = await session.get("a", 2)
    await session.accept(*got)
    await session.publish("b", b"1")
    assert session.held == ()
    await session.rollback("I changed my mind")
    assert session.held == got
    fate = await cluster.txq("core2").outcome(session.txid)
    assert (fate.state, fate.reason) == ("rolled back", "I changed my mind")
    await session.release(*got)
    assert cluster.everywhere("a") == ["x", "y"]
    await session.publish("b", b"2")
    assert (await session.commit()).txid == f"{session.id}.2"
    assert cluster.everywhere("b") == ["2"]


@story(options=SMALL)
async def test_a_rollback_of_what_was_staged(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await cluster.fill("a", "x", "y")
    got = await session.get("a", 2)
    await session.accept(*got)
    await session.publish("b", messages("1", "2"))
    assert cluster.proposals("stage") == 1
    await session.rollback()
    assert session.held == got
    assert cluster.table("accepts") == {}
    assert cluster.everywhere("b", everything=True) == []


@story()
async def test_a_commit_that_cannot_be_is_a_rollback(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await txq.declare("b", depth_max=1, change=True)
    await cluster.fill("a", "x")
    session = await txq.session("tx")
    got = await session.get("a")
    await session.accept(*got)
    await session.publish("b", messages("1", "2"))
    with pytest.raises(TransactionAborted) as caught:
        await session.commit()
    assert caught.value.cause == "txqueue_queue_full"
    assert session.aborted is caught.value
    assert session.held == got
    assert cluster.everywhere("b", everything=True) == []
    with pytest.raises(TransactionAborted) as again:  # however often it is asked
        await session.commit(caught.value.txid)
    assert (again.value.cause, again.value.reason) == (caught.value.cause, caught.value.reason)
    await session.publish("b", b"1")
    await session.commit()
    assert cluster.everywhere("b") == ["1"]


@story(options=SMALL)
async def test_what_cannot_be_staged_ends_it(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await cluster.fill("a", "x")
    got = await session.get("a")
    await session.accept(*got)
    await session.publish("b", b"1")
    with pytest.raises(TransactionAborted) as caught:
        await session.publish("nowhere", b"2")
    first = caught.value
    assert first.cause == "txqueue_unknown_queue"
    await soon()
    assert (await cluster.txq("core3").outcome(first.txid)).state == "rolled back"
    for call in (session.publish("b", b"3"), session.flush(), session.accept(*got)):
        with pytest.raises(TransactionAborted) as caught:
            await call
        assert (caught.value.txid, caught.value.cause) == (first.txid, first.cause)
    with pytest.raises(TransactionAborted):
        await session.commit()
    assert session.held == got
    await session.accept(*got)
    await session.publish("b", b"4")
    await session.commit()
    assert cluster.everywhere("b") == ["4"]
    assert cluster.everywhere("a", everything=True) == []


@story()
async def test_a_message_that_cannot_be_kept_is_no_part_of_it(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    limit = cluster.nodes["core1"].settings["message_bytes_max"]
    with pytest.raises(MessageTooLarge):
        await session.publish("a", b"x" * limit)
    await session.publish("a", b"x" * (limit - MESSAGE_OVERHEAD))
    await session.commit()
    assert len(cluster.everywhere("a")) == 1


@story(transaction_timeout_ms=1_000)
async def test_a_transaction_that_took_too_long(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    for _ in range(2):
        await session.publish("a", b"1")
        await session.flush()
        await asyncio.sleep(REST_S)
        with pytest.raises(TransactionAborted) as caught:
            await session.commit()
        assert caught.value.cause == "timeout"
    await session.publish("a", b"2")
    await session.flush()
    await asyncio.sleep(REST_S)
    await session.publish("a", b"3")
    with pytest.raises(TransactionAborted) as caught:
        await session.flush()
    assert caught.value.cause == "timeout"
    await session.rollback()
    await session.publish("a", b"4")
    await session.commit()
    assert cluster.everywhere("a") == ["4"]


async def publish_and_commit(session: Session, what: list[Message]) -> None:
    await session.publish("a", what)
    await session.commit()


@story(options=SMALL)
async def test_what_cannot_even_be_sent_ends_it(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    wrong = Message(b"1", (("name", "\ud800"),))
    for count in (1, 3):  # at the commit, and when it is staged
        with pytest.raises(TransactionAborted) as caught:
            await publish_and_commit(session, [wrong] * count)
        assert caught.value.cause == "not_encodable"
        await session.rollback()
        await soon()
        fate = await cluster.txq("core1").outcome(caught.value.txid)
        assert fate.state == "rolled back"
    await session.publish("a", b"2")
    await session.commit()
    assert cluster.everywhere("a") == ["2"]


# --- a block --------------------------------------------------------------------------------------


@story()
async def test_a_block_commits_or_rolls_back(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await cluster.fill("a", "x")
    got = await session.get("a")

    async def fail() -> None:
        async with session.transaction() as tx:
            await tx.publish("b", b"1")
            await tx.accept(*got)
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert (await cluster.txq("core1").outcome(session.txid)).reason == "KeyError"
    assert session.held == got
    async with session.transaction() as tx:
        assert tx.txid == ""
        await tx.publish("b", b"2")
        with pytest.raises(InTransaction):
            async with session.transaction():
                pass
        await tx.accept(*got)
    assert tx.receipt is not None
    assert (tx.receipt.txid, tx.receipt.spans) == (tx.txid, (("b", 1, 1),))
    assert cluster.everywhere("b") == ["2"]
    with pytest.raises(TransactionOver):
        await tx.publish("b", b"3")
    async with session.transaction() as tx:
        await tx.publish("b", b"4")
        await session.commit()
        with pytest.raises(TransactionOver):
            await tx.publish("b", b"5")
    assert cluster.everywhere("b") == ["2", "4"]


@story()
async def test_a_cancelled_block_is_rolled_back(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")

    async def work() -> None:
        async with session.transaction() as tx:
            await tx.publish("b", b"1")
            await asyncio.sleep(60)

    task = asyncio.ensure_future(work())
    await soon()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await session.publish("b", b"2")
    await session.commit()
    assert cluster.everywhere("b") == ["2"]
    assert (await cluster.txq("core1").outcome(f"{session.id}.1")).state == "rolled back"


# --- how its end is found out ---------------------------------------------------------------------


@story()
async def test_a_lost_answer_is_found_out(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"1")
    cluster.lose_answers("core1", "commit")
    done = await session.commit(timeout_s=60)
    assert done.spans == (("a", 1, 1),)
    assert cluster.everywhere("a") == ["1"]


@story()
async def test_a_lost_commit_is_sent_again(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"1")
    lost = cluster.hold("core1", "commit")
    committing = asyncio.ensure_future(session.commit(timeout_s=60))
    await asyncio.sleep(REST_S + 1)  # settled: that number can never be applied
    lost()
    assert (await committing).txid == session.txid
    assert cluster.everywhere("a") == ["1"]


@story()
async def test_who_is_late_gets_no_verdict_and_changes_none(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session("tx")
    await session.publish("a", b"1")
    release = cluster.hold("core1", "commit")
    with pytest.raises(TransactionUnknown) as caught:
        await session.commit(timeout_s=1)
    txid = caught.value.txid
    assert (await cluster.txq("core2").outcome(txid)).state == "unknown"
    await session.publish("a", b"2")  # of the next one
    later = asyncio.ensure_future(session.commit(timeout_s=60))
    again = asyncio.ensure_future(session.commit(txid, timeout_s=60))
    await soon()
    release()
    assert (await again).txid == txid
    assert (await later).txid == f"{session.id}.2"
    assert (await cluster.txq("core2").outcome(txid)).state == "committed"
    assert cluster.everywhere("a") == ["1", "2"]
    assert txq.counters["unknown"] == 1


@story()
async def test_a_cancelled_commit_goes_on(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"1")
    committing = asyncio.ensure_future(session.commit())
    await asyncio.sleep(0)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    assert (await session.commit(session.txid)).txid == session.txid
    assert cluster.everywhere("a") == ["1"]


@story()
async def test_a_repeated_commit_does_nothing(cluster: Cluster) -> None:
    cluster.configure(rollbacks_kept=1)
    session = await cluster.txq("core1").session("tx")
    txids = []
    for number in range(3):
        await session.publish("a", str(number).encode())
        txids.append((await session.commit()).txid)
    before = len(cluster.log)
    for txid in txids:
        assert await session.commit(txid) == Committed(txid)
    assert len(cluster.log) == before
    assert cluster.everywhere("a") == ["0", "1", "2"]
    for unknown in (f"{session.id}.9", "x", "1", "1.", ".1", "1.x", f"{session.id}.-1"):
        with pytest.raises(UnknownTransaction):
            await session.commit(unknown)
    with pytest.raises(SessionEnded):
        await session.commit(f"{session.id + 1}.1")
    for _ in range(3):
        await session.publish("a", b"x")
        await session.rollback()
    with pytest.raises(OutcomeForgotten):
        await session.commit(f"{session.id}.4")
    with pytest.raises(TransactionAborted):
        await session.commit(f"{session.id}.6")


def forgetful(cluster: Cluster, name: str) -> None:
    """The next answer that this node settles is not kept any more."""
    node = cluster.nodes[name]
    settle = node.outcome

    async def expired(*args: Any, **more: Any) -> Outcome:
        node.outcome = settle  # type: ignore[method-assign]
        return Outcome("expired")

    node.outcome = expired  # type: ignore[method-assign]


@story()
async def test_a_forgotten_answer_is_found_in_the_tables(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"1")
    cluster.lose_answers("core1", "commit")
    forgetful(cluster, "core1")
    assert await session.commit(timeout_s=60) == Committed(session.txid)
    assert cluster.everywhere("a") == ["1"]
    # And one that was not applied is sent again.
    await session.publish("a", b"2")
    cluster.hold("core1", "commit")
    forgetful(cluster, "core1")
    committing = asyncio.ensure_future(session.commit(timeout_s=60))
    await asyncio.sleep(REST_S - 1)
    cluster.filter = lambda node, envelope: True
    assert (await committing).spans == (("a", 2, 2),)
    assert cluster.everywhere("a") == ["1", "2"]


@story()
async def test_the_life_ends_before_the_commit_arrives(cluster: Cluster) -> None:
    session = await cluster.txq("core2").session("tx")
    await session.publish("a", b"1")
    cluster.isolate("core2")
    committing = asyncio.ensure_future(session.commit(timeout_s=60))
    await soon()
    cluster.declare_dead("core2")
    cluster.rejoin("core2")
    with pytest.raises(TransactionAborted) as caught:
        await committing
    assert caught.value.cause == "session"
    assert (await cluster.txq("core1").outcome(session.txid)).state == "rolled back"
    assert cluster.everywhere("a", everything=True) == []


@story()
async def test_the_life_ends_after_the_commit_was_applied(cluster: Cluster) -> None:
    session = await cluster.txq("core2").session("tx")
    await session.publish("a", b"1")
    cluster.lose_answers("core2", "commit")
    committing = asyncio.ensure_future(session.commit(timeout_s=60))
    await soon()
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    cluster.rejoin("core2")
    assert (await committing).txid == session.txid
    assert cluster.everywhere("a") == ["1"]
    with pytest.raises(SessionEnded):
        await session.publish("a", b"2")


@story()
async def test_an_open_one_ends_with_its_session(cluster: Cluster) -> None:
    session = await cluster.txq("core2").session("tx")
    await session.publish("a", b"1")
    await session.flush()
    cluster.declare_dead("core2")
    cluster.node_up(cluster.nodes["core2"])
    with pytest.raises(TransactionAborted) as caught:
        await session.publish("a", b"2")
    assert (caught.value.cause, caught.value.txid) == ("session", session.txid)
    with pytest.raises(TransactionAborted):
        await session.commit()
    with pytest.raises(SessionEnded):
        await session.publish("a", b"3")
    await asyncio.sleep(REST_S)
    assert cluster.table("staged") == {}


@story()
async def test_the_log_knows_earlier_that_the_session_has_ended(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"1")
    await cluster.nodes["core1"].propose(CloseSession(session.id))
    with pytest.raises(TransactionAborted) as caught:
        await session.commit()
    assert caught.value.cause == "session"
    assert session.ended
    assert cluster.everywhere("a", everything=True) == []


@story()
async def test_accepted_messages_that_are_gone_are_not_given_back(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session("tx")
    await cluster.fill("a", "1")
    await session.accept(*await session.get("a"))
    await txq.delete("a")
    await txq.declare("a")
    await cluster.fill("a", "another")
    with pytest.raises(TransactionAborted) as caught:
        await session.commit()
    assert caught.value.cause == "txqueue_not_held"
    assert session.held == ()


@story()
async def test_a_stopping_node_leaves_a_commit_unknown(cluster: Cluster) -> None:
    txq = cluster.txq("core2")
    session = await txq.session("tx")
    await session.publish("a", b"1")
    cluster.hold("core2", "commit")
    committing = asyncio.ensure_future(session.commit(timeout_s=60))
    await soon()
    txq.stop()
    with pytest.raises(TransactionUnknown):
        await committing


# --- callers that leave at any moment -------------------------------------------------------------

TEXTS = [str(number) for number in range(12)]


async def move(cluster: Cluster, name: str, rng: random.Random) -> None:
    """Move messages from "a" to "b" and back, leaving calls at random moments."""
    session = await cluster.txq(name).session("tx")
    for _ in range(25):
        try:
            if session.ended:
                session = await cluster.txq(name).session("tx")
            source, target = rng.sample(("a", "b"), 2)
            got = await leaving(session.get(source, rng.randint(1, 3), wait_s=0.01), rng)
            await leaving(session.accept(*got), rng)
            await leaving(session.publish(target, [one.body for one in got] or [b""]), rng)
            if not got or rng.random() < 0.2:
                await leaving(session.rollback(), rng)
            else:
                await leaving(session.commit(timeout_s=rng.choice((0.01, 60.0))), rng)
        except (TransactionAborted, TransactionUnknown, SessionEnded):
            await until_rolled_back(session)
        except (TimeoutError, StillUnderWay, NotSent):
            await until_rolled_back(session)  # what was done of it is not what was meant
        if rng.random() < 0.2 and not session.ended:
            with contextlib.suppress(SessionEnded, OutcomeUnknown, NotSent):
                await session.release(*session.held)
    with contextlib.suppress(OutcomeUnknown):
        await session.close(timeout_s=60)


async def until_rolled_back(session: Session) -> None:
    with contextlib.suppress(SessionEnded):
        await session.rollback(timeout_s=None)


async def leaving(call: Coroutine[Any, Any, T], rng: random.Random) -> T:
    """Sometimes waits no longer than a moment: then TimeoutError."""
    if rng.random() < 0.85:
        return await call
    async with asyncio.timeout(rng.choice((0, 0.5, 1, 1.5, 2, 3)) * NETWORK_S):
        return await call


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_or_doubled_whoever_leaves(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(f"leaving/{seed}")

    @story(options=TxQueueOptions(stage_operations=rng.choice((1, 2, 128))))
    async def whole(cluster: Cluster) -> None:
        await cluster.fill("a", *TEXTS)
        names = ["core1", "core2", "core2", "core3"]
        moving = [asyncio.ensure_future(move(cluster, name, rng)) for name in names]
        while not all(task.done() for task in moving):
            await asyncio.sleep(rng.random() * 20 * NETWORK_S)
            kind = rng.choice(("commit", "stage", "acquire", "settle", "rollback", "life"))
            if kind == "life" and rng.random() < 0.1:
                cluster.declare_dead("core3")
                cluster.node_up(cluster.nodes["core3"])
            elif kind != "life":
                cluster.lose_answers(rng.choice(names), kind)
        await asyncio.gather(*moving)
        cluster.filter = lambda node, envelope: True
        await asyncio.sleep(3 * REST_S)
        left = cluster.everywhere("a") + cluster.everywhere("b")
        assert sorted(left, key=int) == TEXTS
        counters = [node.opened.counters for node in cluster.nodes.values()]
        for name in ("committed", "rolled_back", "unknown_outcomes", "detached"):
            assert sum(counter[name] for counter in counters) > 0, name
        assert not cluster.table("locks")
        assert not cluster.table("owners")

    whole()


# --- participants ---------------------------------------------------------------------------------


class Store(TransactionObserver):
    """Prepares in its own time."""

    def __init__(self, delay_s: float, fails: bool) -> None:
        self.delay_s = delay_s
        self.fails = fails

    async def prepare(self) -> None:
        await asyncio.sleep(self.delay_s)
        if self.fails:
            raise ValueError("the disk is full")


async def observed(cluster: Cluster, name: str, delay_s: float, *, fails: bool = False) -> None:
    txq = cluster.txq(name)
    txq.observe(lambda opened: Store(delay_s, fails))
    await txq.observing.taking_part(60)


@story()
async def test_the_participants_vote_decides(cluster: Cluster) -> None:
    await observed(cluster, "core2", 0.5)
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"1")
    done = await session.commit()
    assert done.txid == session.txid
    assert cluster.everywhere("a") == ["1"]
    await observed(cluster, "core3", 0.1, fails=True)
    await session.publish("a", b"2")
    with pytest.raises(TransactionAborted) as caught:
        await session.commit()
    assert caught.value.cause == "vote"
    assert cluster.everywhere("a", everything=True) == ["1"]


@story()
async def test_who_waits_for_votes_may_leave(cluster: Cluster) -> None:
    await observed(cluster, "core2", 2.0)
    await cluster.fill("b", "x")
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"1")
    with pytest.raises(TransactionUnknown) as caught:
        await session.commit(timeout_s=1)
    assert bodies(await session.get("b")) == ["x"]  # that does not wait for anybody's vote
    assert (await cluster.txq("core3").outcome(caught.value.txid)).state == "preparing"
    assert (await session.commit(caught.value.txid)).txid == caught.value.txid
    assert cluster.everywhere("a") == ["1"]


@story()
async def test_a_commit_that_waits_for_votes_outlives_its_session(cluster: Cluster) -> None:
    await observed(cluster, "core3", 3.0)
    session = await cluster.txq("core2").session("tx")
    await session.publish("a", b"1")
    committing = asyncio.ensure_future(session.commit(timeout_s=60))
    await soon()
    cluster.declare_dead("core2")
    cluster.node_up(cluster.nodes["core2"])
    assert session.ended
    assert (await committing).txid == session.txid
    assert cluster.everywhere("a") == ["1"]


@story()
async def test_votes_are_waited_for_whatever_was_forgotten(cluster: Cluster) -> None:
    """The answer is lost, the life over, the participants are still at it: nothing is decided."""
    await observed(cluster, "core3", 8.0)
    session = await cluster.txq("core2").session("tx")
    await session.publish("a", b"1")
    cluster.lose_answers("core2", "commit")
    forgetful(cluster, "core2")
    committing = asyncio.ensure_future(session.commit(timeout_s=60))
    await asyncio.sleep(1)
    cluster.declare_dead("core2")
    cluster.node_up(cluster.nodes["core2"])
    await asyncio.sleep(REST_S)
    assert not committing.done()
    assert await committing == Committed(session.txid)
    assert cluster.everywhere("a") == ["1"]

"""Sessions on a node: their order, callers that leave, and their end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftkv.errors import OutcomeUnknown, Overloaded, Stopped
from raftkv.plugin import Outcome
from raftkv_txqueue import (
    BadHeaders,
    EmptyBatch,
    InTransaction,
    Message,
    NotAllowed,
    NotSent,
    SessionEnded,
    Settled,
    StillUnderWay,
    TransactionAborted,
    TransactionUnknown,
    UnknownQueue,
    WrongKind,
    XaStatus,
    Xid,
)
from raftkv_txqueue.line import JOBS_MAX, Line

from .fakes import NETWORK_S, REST_S, Cluster, bodies, messages, story

XID = Xid(1, b"order", b"1")


async def soon() -> None:
    await asyncio.sleep(20 * NETWORK_S)


def ended(cluster: Cluster) -> bool:
    """Whether the log knows of no live session."""
    return not cluster.table("owners")


# --- order ----------------------------------------------------------------------------------------


@story()
async def test_the_order_of_calls_is_the_order_in_the_log(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    texts = [str(number) for number in range(20)]
    cluster.lose_answers("core1", "publish", times=2)
    await asyncio.gather(*(session.publish("a", messages(text), timeout_s=60) for text in texts))
    assert cluster.everywhere("a") == texts


@story()
async def test_who_is_late_before_the_turn_has_sent_nothing(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    release = cluster.hold("core1", "publish")
    first = asyncio.ensure_future(session.publish("a", b"1", timeout_s=60))
    await asyncio.sleep(0)
    with pytest.raises(NotSent):
        await session.publish("a", b"2", timeout_s=1)
    release()
    await first
    await session.publish("a", b"3")
    assert cluster.everywhere("a") == ["1", "3"]


@story()
async def test_who_is_late_after_it_has_decided_nothing(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    release = cluster.hold("core1", "publish")
    with pytest.raises(StillUnderWay):
        await session.publish("a", b"1", timeout_s=1)
    later = asyncio.ensure_future(session.publish("a", b"2"))
    await soon()
    release()
    await later
    assert cluster.everywhere("a") == ["1", "2"]
    assert cluster.txq("core1").counters["detached"] == 1


@story()
async def test_a_cancelled_caller_decides_nothing(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    release = cluster.hold("core1", "publish")
    sent = asyncio.ensure_future(session.publish("a", b"1"))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(session.publish("a", b"2"))
    await soon()
    sent.cancel()
    waiting.cancel()
    await soon()
    release()
    await session.publish("a", b"3")
    assert cluster.everywhere("a") == ["1", "3"]  # what had not begun was dropped


@story()
async def test_a_lost_proposal_is_settled_before_the_next(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    cluster.lose_answers("core1", "publish")
    await session.publish("a", b"1", timeout_s=60)
    await session.publish("a", b"2")
    assert cluster.everywhere("a") == ["1", "2"]
    assert cluster.txq("core1").counters["unknown_outcomes"] == 1


@story()
async def test_a_line_is_bounded_but_not_for_the_end_of_a_transaction(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await cluster.fill("a", "1")
    await session.publish("b", b"1")
    release = cluster.hold("core1", "settle")
    calls = [asyncio.ensure_future(session.settle("release", {"a": [1]}, timeout_s=None))]
    await soon()
    for _ in range(JOBS_MAX):
        calls.append(asyncio.ensure_future(session.settle("release", {"a": [1]}, timeout_s=None)))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await session.release(timeout_s=None)
    committing = asyncio.ensure_future(session.commit())
    await asyncio.sleep(0)
    release()
    assert (await committing).txid == session.txid
    assert await asyncio.gather(*calls) == [{"a": Settled(0, (1,))}] * (JOBS_MAX + 1)


# --- callers that leave with messages on their way ------------------------------------------------


@story()
async def test_messages_of_a_cancelled_get_go_back(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session()
    await cluster.fill("a", "1", "2")
    cluster.lose_answers("core1", "acquire")
    get = asyncio.ensure_future(session.get("a", 2, timeout_s=60))
    await soon()
    get.cancel()
    other = await txq.session()
    got = await other.get("a", 2, wait_s=60)
    assert bodies(got) == ["1", "2"]
    assert [one.deliveries for one in got] == [1, 1]
    assert session.held == ()
    assert txq.counters["released_unheard"] == 2


@story()
async def test_messages_of_a_late_get_go_back(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session()
    await cluster.fill("a", "1")
    cluster.lose_answers("core1", "acquire")
    with pytest.raises(StillUnderWay):
        await session.get("a", timeout_s=1)
    assert bodies(await session.get("a", wait_s=60, timeout_s=60)) == ["1"]


@story()
async def test_a_get_may_be_cancelled_at_every_moment(cluster: Cluster) -> None:
    """Whatever the moment: the message is the caller's, or it is there for the next."""
    txq = cluster.txq("core1")
    session = await txq.session()
    delivered = 0
    for turn in range(60):
        await cluster.fill("a", str(turn))
        get = asyncio.ensure_future(session.get("a", wait_s=10))
        if turn % 2:
            await asyncio.sleep(NETWORK_S)
        for _ in range(turn // 2 % 10):
            await asyncio.sleep(0)
        get.cancel()
        try:
            got = await get
        except asyncio.CancelledError:
            got = await session.get("a", wait_s=10)
        else:
            delivered += 1
        assert bodies(got) == [str(turn)]
        await session.accept(*got)
    assert 0 < delivered < 60
    assert cluster.everywhere("a", everything=True) == []


@story()
async def test_a_cancelled_opening_leaves_no_session(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    cluster.lose_answers("core1", "open")

    async def open_it() -> Any:
        return await txq.session("tx")

    opening = asyncio.ensure_future(open_it())
    await soon()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not ended(cluster)  # it was made
    await asyncio.sleep(3 * REST_S)
    assert ended(cluster)
    assert len(txq.sessions) == 0


# --- settling -------------------------------------------------------------------------------------


@story()
async def test_settling_tells_what_is_missing(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    await cluster.fill("a", "1", "2", "3")
    await cluster.fill("b", "4")
    got = (*await session.get("a", 3), *await session.get("b"))
    assert session.held == got
    assert await session.accept(got[0], got[3]) == {"a": Settled(1), "b": Settled(1)}
    assert await session.accept(got[0], got[1]) == {"a": Settled(1, (1,))}
    assert await session.release(got[2]) == {"a": Settled(1)}
    assert session.held == ()
    again = await session.get("a")
    assert (again[0].seq, again[0].deliveries, again[0].redelivered) == (3, 2, True)
    assert await session.reject(*again) == {"a": Settled(1)}
    assert await session.settle("accept", {"a": [3], "b": []}) == {
        "a": Settled(0, (3,)),
        "b": Settled(0),
    }
    assert cluster.everywhere("a", everything=True) == []


@story()
async def test_settlements_that_wait_go_together(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    count = 60
    await cluster.fill("a", *(str(number) for number in range(count)))
    await cluster.fill("b", "x", "y")
    got, others = await session.get("a", count), await session.get("b", 2)
    waiting = [asyncio.ensure_future(session.accept(one)) for one in got[:50]]
    waiting.append(asyncio.ensure_future(session.accept(got[7], got[50], others[0])))
    waiting.append(asyncio.ensure_future(session.release(got[51])))
    waiting.append(asyncio.ensure_future(session.accept(got[51], got[52])))
    left = asyncio.ensure_future(session.accept(got[53]))
    await asyncio.sleep(0)
    left.cancel()
    done = await asyncio.gather(*waiting)
    assert done[:50] == [{"a": Settled(1)}] * 50
    assert done[50] == {"a": Settled(1, (8,)), "b": Settled(1)}
    assert done[51:] == [{"a": Settled(1)}, {"a": Settled(1, (52,))}]
    assert cluster.proposals("settle") == 4  # of a, of b, and then two in their order
    assert session.held == (*got[53:], others[1])
    assert cluster.everywhere("a") == ["51"]


@story()
async def test_nobody_suffers_from_anothers_mistake(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    await cluster.fill("a", "1", "2", "3")
    got = await session.get("a", 3)
    calls = (
        session.accept(got[0]),
        session.settle("accept", {"\ud800": [1]}),
        session.settle("accept", {"a": [0]}),
        session.settle("accept", {"nowhere": [1]}),
        session.accept(got[1]),
    )
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert (done[0], done[4]) == ({"a": Settled(1)}, {"a": Settled(1)})
    assert isinstance(done[1], UnknownQueue)
    assert isinstance(done[2], ValueError)
    assert done[3] == {"nowhere": Settled(0, (1,))}
    assert session.held == (got[2],)
    for call in (session.publish("\ud800", b"1"), session.get("\ud800")):
        with pytest.raises(UnknownQueue):
            await call


@story()
async def test_settlements_in_common_fail_with_the_session(cluster: Cluster) -> None:
    session = await cluster.txq("core2").session()
    await cluster.fill("a", "1", "2", "3")
    got = await session.get("a", 3)
    cluster.isolate("core2")
    waiting = [asyncio.ensure_future(session.accept(one, timeout_s=60)) for one in got]
    await soon()
    cluster.declare_dead("core2")
    cluster.rejoin("core2")
    for one in waiting:
        with pytest.raises((SessionEnded, OutcomeUnknown)):
            await one
    assert cluster.everywhere("a", everything=True) == ["1", "2", "3"]


# --- the end --------------------------------------------------------------------------------------


@story()
async def test_closing_gives_back_what_is_held(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await cluster.fill("a", "1", "2")
    async with txq.session("tx") as session:
        got = await session.get("a", 2)
        await session.accept(got[0])
        await session.publish("b", b"never")
        assert txq.sessions.get(session.id) is session
    assert session.ended
    assert session.aborted is not None
    assert session.aborted.cause == "session"
    assert session.held == ()
    assert cluster.everywhere("a") == ["1", "2"]
    assert cluster.everywhere("b", everything=True) == []
    assert txq.sessions.all() == ()
    for call in (session.get("a"), session.publish("a", b"x"), session.flush()):
        with pytest.raises(SessionEnded):
            await call
    await session.close()


@story()
async def test_closing_finishes_what_was_called_before(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    publishing = asyncio.ensure_future(session.publish("a", b"1"))
    await asyncio.sleep(0)
    await session.close()
    await publishing
    assert cluster.everywhere("a") == ["1"]


@story()
async def test_a_waiting_consumer_ends_with_its_session(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    waiting = asyncio.ensure_future(session.get("a", wait_s=None))
    await soon()
    await session.close()
    with pytest.raises(SessionEnded):
        await waiting


@story()
async def test_the_end_of_the_nodes_life_ends_its_sessions(cluster: Cluster) -> None:
    txq = cluster.txq("core2")
    session, other = await txq.session("tx"), await cluster.txq("core1").session()
    await cluster.fill("a", "1", "2")
    got = await session.get("a", 2)
    await session.accept(got[0])
    waiting = asyncio.ensure_future(session.get("b", wait_s=None))
    await soon()
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    assert not session.ended  # it does not know
    cluster.rejoin("core2")
    assert session.ended
    assert len(txq.sessions) == 0
    with pytest.raises(SessionEnded):
        await waiting
    with pytest.raises(SessionEnded):
        await session.get("a")
    with pytest.raises(TransactionAborted, match="the session has ended"):
        await session.publish("b", b"x")
    with pytest.raises(TransactionAborted):
        await session.commit()
    with pytest.raises(SessionEnded):
        await session.commit()
    assert bodies(await other.get("a", 2, wait_s=REST_S)) == ["1", "2"]
    assert txq.counters["sessions_ended"] == 1


@story()
async def test_a_snapshot_may_tell_of_the_end(cluster: Cluster) -> None:
    session = await cluster.txq("core2").session()
    cluster.pause("core2")
    cluster.declare_dead("core2")
    cluster.node_up(cluster.nodes["core2"])
    await asyncio.sleep(REST_S)
    cluster.jump("core2")
    assert session.ended


@story()
async def test_a_command_under_way_at_the_end_of_the_life(cluster: Cluster) -> None:
    session = await cluster.txq("core2").session()
    cluster.isolate("core2")
    publishing = asyncio.ensure_future(session.publish("a", b"1", timeout_s=60))
    await soon()
    cluster.declare_dead("core2")
    cluster.rejoin("core2")
    with pytest.raises((SessionEnded, OutcomeUnknown)):
        await publishing
    assert cluster.everywhere("a") == []


@story()
async def test_a_session_is_closed_rather_than_in_doubt(cluster: Cluster) -> None:
    """Nobody remembers whether the messages were acquired: they go back with the session."""
    txq = cluster.txq("core1")
    session = await txq.session()
    await cluster.fill("a", "1")
    cluster.lose_answers("core1", "acquire")
    node = cluster.nodes["core1"]
    settle = node.outcome

    async def expired(*args: Any, **more: Any) -> Outcome:
        node.outcome = settle  # type: ignore[method-assign]
        return Outcome("expired")

    node.outcome = expired  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await session.get("a", timeout_s=60)
    assert session.ended
    with pytest.raises(SessionEnded):
        await session.get("a")
    other = await txq.session()
    assert bodies(await other.get("a", wait_s=REST_S)) == ["1"]


@story()
async def test_a_node_that_is_cut_off_can_close_a_session_later(cluster: Cluster) -> None:
    async with cluster.txq("core2").session() as session:
        cluster.isolate("core2")
    assert session.ended
    assert not ended(cluster)
    cluster.heal("core2")
    await asyncio.sleep(3 * REST_S)
    assert ended(cluster)


@story()
async def test_a_stopping_node_says_what_it_knows(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session()
    cluster.hold("core1", "publish")
    sent = asyncio.ensure_future(session.publish("a", b"1", timeout_s=None))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(session.publish("a", b"2", timeout_s=None))
    await soon()
    txq.stop()
    with pytest.raises(StillUnderWay):
        await sent
    with pytest.raises(Exception, match="stops"):
        await waiting
    with pytest.raises(Exception, match="stops"):
        await session.publish("a", b"3")
    with pytest.raises(Exception, match="stops"):
        await txq.session()
    await cluster.stop("core1")
    cluster.lead("core2")


@story()
async def test_a_killed_node_keeps_nobody_waiting(cluster: Cluster) -> None:
    txq = cluster.txq("core2")
    session = await txq.session("tx")
    await session.publish("a", b"1")
    cluster.hold("core2")

    async def open_it() -> Any:
        return await txq.session(timeout_s=None)

    calls = [
        asyncio.ensure_future(call)
        for call in (open_it(), session.commit(timeout_s=None), session.get("a", timeout_s=None))
    ]
    await soon()
    cluster.kill("core2")
    await soon()
    errors = [call.exception() for call in calls]
    assert [type(error) for error in errors] == [StillUnderWay, TransactionUnknown, StillUnderWay]
    assert not cluster.failures


@story()
async def test_a_node_killed_in_the_turn_of_the_call_keeps_nobody_waiting(cluster: Cluster) -> None:
    txq = cluster.txq("core2")

    async def open_it() -> Any:
        return await txq.session(timeout_s=None)

    opening = asyncio.ensure_future(open_it())
    await asyncio.sleep(0)  # it stands in line, and the line's task has not begun
    cluster.kill("core2")
    await soon()
    assert isinstance(opening.exception(), Stopped)
    assert cluster.proposals("open") == 0


# --- kinds and branches ---------------------------------------------------------------------------


@story()
async def test_only_a_session_of_that_kind_has_transactions(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    for call in (session.commit, session.rollback):
        with pytest.raises(WrongKind):
            await call()
    with pytest.raises(WrongKind):
        session.begin()
    with pytest.raises(WrongKind):
        session.transaction()
    await session.select("tx")
    await session.publish("a", b"1")
    with pytest.raises(InTransaction):
        await session.select("plain")
    await session.commit()
    await session.select("plain")
    await session.publish("a", b"2")
    assert cluster.everywhere("a") == ["1", "2"]


@story()
async def test_work_in_a_branch(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await cluster.fill("a", "x")
    async with txq.session("dtx") as session:
        await session.publish("b", b"outside")
        assert await session.start(XID) is XaStatus.OK
        assert session.branch == XID
        got = await session.get("a")
        await session.publish("b", b"inside")
        await session.accept(*got)
        with pytest.raises(InTransaction):
            await session.select("tx")
        assert await session.end(XID) is XaStatus.OK
        assert session.branch is None
        await session.publish("b", b"after")
        assert cluster.everywhere("b") == ["outside", "after"]
        assert cluster.everywhere("a") == []
        assert await txq.dtx.commit(XID, one_phase=True) is XaStatus.OK
    assert cluster.everywhere("b") == ["outside", "after", "inside"]
    assert cluster.everywhere("a", everything=True) == []


@story()
async def test_a_suspended_branch_has_all_that_was_done(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    other = Xid(1, b"other")
    session = await txq.session("dtx")
    await session.start(XID)
    await session.publish("a", b"1")
    await session.end(XID, suspend=True)
    await session.start(other)
    await session.publish("b", b"2")
    await session.end(other)
    assert await txq.dtx.commit(other, one_phase=True) is XaStatus.OK
    await session.start(XID, resume=True)
    await session.publish("a", b"3")
    await session.end(XID)
    assert cluster.everywhere("a") == []
    await txq.dtx.commit(XID, one_phase=True)
    assert (cluster.everywhere("a"), cluster.everywhere("b")) == (["1", "3"], ["2"])


@story()
async def test_a_branch_whose_work_could_not_be_staged_fails(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session("dtx")
    await session.start(XID)
    await session.publish("a", b"1")
    await session.publish("nowhere", b"2")
    with pytest.raises(TransactionAborted) as caught:
        await session.flush()
    assert caught.value.cause == "txqueue_unknown_queue"
    assert caught.value.txid == str(XID)
    with pytest.raises(TransactionAborted):
        await session.publish("a", b"3")
    assert await session.end(XID, suspend=True) is XaStatus.RBROLLBACK
    assert await txq.dtx.prepare(XID) is XaStatus.RBROLLBACK
    await txq.dtx.rollback(XID)
    assert cluster.everywhere("a", everything=True) == []
    await session.publish("a", b"4")
    assert cluster.everywhere("a") == ["4"]


@story()
async def test_a_branch_whose_last_work_could_not_be_staged_fails(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session("dtx")
    for queue, header, cause in (
        ("nowhere", "fine", "txqueue_unknown_queue"),
        ("a", "\ud800", "not_encodable"),
    ):
        await session.start(XID)
        await session.publish(queue, Message(b"1", (("name", header),)))
        assert await session.end(XID) is XaStatus.RBROLLBACK
        assert session.aborted is not None
        assert session.aborted.cause == cause
        assert await txq.dtx.prepare(XID) is XaStatus.RBROLLBACK
        await txq.dtx.rollback(XID)


@story()
async def test_a_wrong_call_detaches_nothing(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("dtx")
    await session.start(XID)
    await session.publish("a", b"1")
    with pytest.raises(Exception, match="suspend"):
        await session.end(XID, suspend=True, fail=True)
    assert session.branch == XID
    other = await cluster.txq("core2").session("dtx")
    with pytest.raises(NotAllowed):
        await other.start(XID)
    assert other.branch is None
    await session.end(XID)
    await cluster.txq("core3").dtx.commit(XID, one_phase=True)
    assert cluster.everywhere("a") == ["1"]


# --- what a review found --------------------------------------------------------------------------


@story()
async def test_a_line_that_retires_has_one_task_at_most(cluster: Cluster) -> None:
    """Two would do jobs side by side, and a stop would tell the waiters of one of them only."""
    node = cluster.nodes["core1"]
    line = Line(node, cluster.txq("core1").counters)
    under_way = most = 0

    async def work() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(NETWORK_S)
        under_way -= 1

    await line.do(work, None)
    line.retire()
    line.later(work)
    calls = []
    for _ in range(3):
        await asyncio.sleep(0)
        calls.append(asyncio.ensure_future(line.do(work, None)))
    await asyncio.gather(*calls)
    assert most == 1
    await line.do(work, None)


@story()
async def test_a_subscription_with_a_full_prefetch_ends_when_its_node_stops(
    cluster: Cluster,
) -> None:
    session = await cluster.txq("core1").session()
    await cluster.fill("a", "1", "2")
    orders = session.subscribe("a", prefetch=1)
    await anext(orders)
    second = asyncio.ensure_future(anext(orders))
    await soon()
    await cluster.stop("core1")
    with pytest.raises(Stopped):
        await asyncio.wait_for(second, 5)
    with pytest.raises(Stopped):
        await asyncio.wait_for(session.settled_some(), 5)


@story()
async def test_what_does_nothing_begins_no_transaction(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session("tx")
    await session.flush()
    await session.accept()
    for bad in ([], [Message(b"x", (("\n" * 300, ""),) * 200)]):
        with pytest.raises((EmptyBatch, BadHeaders)):
            await session.publish("a", bad)
    async with session.transaction() as tx:
        await tx.publish("a", b"1")
        with pytest.raises(InTransaction):
            session.transaction()
    assert cluster.everywhere("a") == ["1"]


@story()
async def test_who_leaves_a_branch_before_its_start_is_answered_has_left_it(
    cluster: Cluster,
) -> None:
    session = await cluster.txq("core1").session("dtx")
    cluster.lose_answers("core1", "start")
    with pytest.raises(StillUnderWay):
        await session.start(XID, deadline_s=1)
    assert await session.end(XID, deadline_s=60) is XaStatus.OK
    assert session.branch is None
    await session.publish("a", b"1")
    assert cluster.everywhere("a") == ["1"]


@story()
async def test_the_shortest_time_out_of_a_branch_is_not_none(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session("dtx")
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="time-out|timeout_s"):
            await session.start(XID, timeout_s=wrong)
    await session.start(XID, timeout_s=0.0001)
    assert await txq.dtx.get_timeout(XID) == 0.001


@story()
async def test_a_repeated_commit_never_says_that_nothing_happened(cluster: Cluster) -> None:
    """Whoever asks again does not know; NotApplied would have the transaction done twice."""
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"1")
    release = cluster.hold("core1", "commit")
    with pytest.raises(TransactionUnknown):
        await session.commit(timeout_s=1)
    txid = session.txid
    with pytest.raises(TransactionUnknown):
        await session.commit(txid, timeout_s=1)
    release()
    await session.commit(txid)
    await cluster.stop("core1")
    with pytest.raises(TransactionUnknown):
        await session.commit(txid)


@story()
async def test_a_subscription_that_is_closed_wakes_who_waits_for_it(cluster: Cluster) -> None:
    session = await cluster.txq("core1").session()
    orders = session.subscribe("a")
    waits = asyncio.ensure_future(anext(orders))
    await soon()
    await orders.close()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waits, 5)
    await cluster.fill("a", "1")
    await soon()
    assert session.held == ()


@story()
async def test_a_rollback_whose_reason_is_no_text_rolls_back(cluster: Cluster) -> None:
    """One that is never sent would leave a gap, and no later transaction could be committed."""
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"1")
    await session.flush()
    await session.rollback("\ud800")
    await session.publish("a", b"2")
    await session.commit()
    assert cluster.everywhere("a") == ["2"]


@story()
async def test_what_no_command_can_say_is_refused_here(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    wrong: Any = "sideways"
    session = await txq.session()
    for call in (
        lambda: txq.declare("c", depth_max=-1),
        lambda: txq.declare("c", deliveries_max=2**70),
        lambda: txq.declare("c", overflow=wrong),
        lambda: session.get("a", bytes_max=-1),
        lambda: session.get("a", bytes_max=2**70),
        lambda: session.settle(wrong, {"a": [1]}),
    ):
        with pytest.raises(ValueError, match="sideways|>= 0|<=|bytes_max|range|number"):
            await call()
    with pytest.raises(ValueError, match="sideways"):
        txq.session(wrong)
    assert cluster.proposals("ensure") == 2

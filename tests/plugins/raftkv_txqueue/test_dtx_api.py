"""Branches as a transaction manager asks for them on a node: statuses, votes, lost answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftkv.errors import ReadTimeout
from raftkv_txqueue import (
    Opened,
    PrepareFailed,
    TransactionObserver,
    TransactionUnknown,
    XaError,
    XaStatus,
    Xid,
)
from raftkv_txqueue.refusals import BranchRefused, IllegalState, InvalidArgument, UnknownXid
from tests.plugins.raftkv_txqueue.fakes import Cluster, messages, story, until

XID = Xid(1, b"global", b"1")
OK = XaStatus.OK


async def ended(
    cluster: Cluster,
    xid: Xid = XID,
    *texts: str,
    node: str = "core1",
    timeout_s: float | None = None,
) -> None:
    """A branch that publishes to a, and was ended."""
    session = await cluster.txq(node).session("dtx")
    assert await session.start(xid, timeout_s=timeout_s) is OK
    if texts:
        await session.publish("a", messages(*texts))
    assert await session.end(xid) is OK
    await session.close()


# --- verbs ----------------------------------------------------------------------------------------


@story()
async def test_two_phases_on_three_nodes(cluster: Cluster) -> None:
    await ended(cluster, XID, "x", "y")
    assert await cluster.txq("core2").dtx.prepare(XID) is OK
    assert await cluster.txq("core3").dtx.prepare(XID) is OK
    assert cluster.everywhere("a") == []
    assert await cluster.txq("core3").dtx.commit(XID) is OK
    assert cluster.everywhere("a") == ["x", "y"]
    with pytest.raises(UnknownXid) as caught:
        await cluster.txq("core1").dtx.commit(XID)
    assert caught.value.xa is XaError.NOT_FOUND
    outcome = await cluster.txq("core2").dtx.outcome(XID)
    assert (outcome.state, outcome.by) == ("committed", "coordinator")
    assert outcome.index > 0
    assert cluster.txq("core2").counters["prepared"] == 1
    assert cluster.txq("core3").counters["dtx_committed"] == 1


@story()
async def test_one_phase_and_rollback(cluster: Cluster) -> None:
    dtx = cluster.txq("core2").dtx
    await ended(cluster, XID, "x")
    assert await dtx.commit(XID, True) is OK
    await ended(cluster, XID, "y")
    assert await dtx.rollback(XID) is OK
    assert cluster.everywhere("a") == ["x"]
    assert (await dtx.outcome(XID)).state == "rolled back"
    await ended(cluster)
    assert await dtx.prepare(XID) is XaStatus.RDONLY
    assert (await dtx.outcome(XID)).by == "read only"
    assert (await dtx.outcome(Xid(9, b"never"))).state == "unknown"
    for call in (dtx.prepare(XID), dtx.rollback(XID), dtx.forget(XID), dtx.get_timeout(XID)):
        with pytest.raises(UnknownXid):
            await call


@story()
async def test_a_branch_that_failed_says_so_to_the_end(cluster: Cluster) -> None:
    dtx = cluster.txq("core1").dtx
    session = await cluster.txq("core2").session("dtx")
    await session.start(XID)
    await session.publish("a", b"x")
    await session.close()
    await until(lambda: not cluster.table("owners"))
    [branch] = dtx.branches()
    assert "session" in branch.why
    assert await dtx.prepare(XID) is XaStatus.RBROLLBACK
    assert (await dtx.outcome(XID)).state == "failed"
    assert await dtx.rollback(XID) is OK
    assert cluster.txq("core1").counters["dtx_rolled_back"] == 2
    await ended(cluster, XID, "x", timeout_s=1)
    await until(lambda: dtx.branches()[0].state == "failed")
    assert await dtx.prepare(XID) is XaStatus.RBTIMEOUT
    assert dtx.branches() == ()
    assert (await dtx.outcome(XID)).by == "timeout"


@story()
async def test_operators(cluster: Cluster) -> None:
    dtx = cluster.txq("core2").dtx
    other = Xid(1, b"global", b"2")
    await ended(cluster, XID, "x")
    await ended(cluster, other, "y")
    with pytest.raises(IllegalState):
        await dtx.heuristic_commit(XID)
    for xid in (XID, other):
        assert await dtx.prepare(xid) is OK
    assert await dtx.heuristic_commit(XID, "by hand") is OK
    assert await dtx.heuristic_rollback(other, "by hand, too") is OK
    assert cluster.everywhere("a") == ["x"]
    assert [(one.xid, one.state) for one in await dtx.recover()] == [
        (XID, "heuristically committed"),
        (other, "heuristically rolled back"),
    ]
    outcome = await dtx.outcome(XID)
    assert (outcome.state, outcome.by, outcome.reason) == (
        "heuristically committed",
        "operator",
        "by hand",
    )
    assert await dtx.rollback(XID) is XaStatus.HEURCOM
    assert await dtx.commit(other) is XaStatus.HEURRB
    assert await dtx.forget(XID) is OK
    assert await dtx.forget(other) is OK
    assert await dtx.recover() == ()
    assert cluster.txq("core2").counters["heuristics"] == 2


@story()
async def test_time_outs(cluster: Cluster) -> None:
    dtx = cluster.txq("core3").dtx
    await ended(cluster, XID, "x")
    assert await dtx.get_timeout(XID) == 60.0
    assert await dtx.set_timeout(XID, 200) is OK
    assert await dtx.get_timeout(XID) == 200.0
    assert await dtx.set_timeout(XID, 0) is OK
    assert await dtx.get_timeout(XID) == 0
    with pytest.raises(InvalidArgument) as caught:
        await dtx.set_timeout(XID, 3601)
    assert caught.value.xa is XaError.INVALID_ARGUMENT
    for bad in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds"):
            await dtx.set_timeout(XID, bad)
    assert await dtx.set_timeout(XID, 0.0001) is OK
    assert await dtx.get_timeout(XID) == 0.001
    await until(lambda: dtx.branches()[0].state == "failed")


@story()
async def test_what_is_seen_of_a_branch(cluster: Cluster) -> None:
    await cluster.fill("b", "1")
    session = await cluster.txq("core1").session("dtx")
    other = await cluster.txq("core2").session("dtx")
    [got] = await session.get("b")
    await session.start(XID, timeout_s=30)
    await session.publish("a", messages("x", "y"))
    await session.accept(got)
    await session.flush()
    await other.start(XID, join=True)
    await other.end(XID, suspend=True)
    [branch] = cluster.txq("core3").dtx.branches()
    assert (branch.xid, branch.state, branch.timeout_s) == (XID, "active", 30)
    assert (branch.sessions, branch.suspended) == ((session.id,), (other.id,))
    assert (branch.queues, branch.rows, branch.why) == (2, 3, "")
    assert branch.deadline_ms - branch.opened_ms == 30_000
    assert (await cluster.txq("core3").dtx.outcome(XID)).state == "active"
    await session.end(XID)
    await other.end(XID)


# --- votes ----------------------------------------------------------------------------------------


class Slow(TransactionObserver):
    gate: asyncio.Event
    fails: Exception | None

    async def prepare(self) -> None:
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails


async def slow_participant(cluster: Cluster, name: str) -> type[Slow]:
    class Mine(Slow):
        gate = asyncio.Event()
        fails = None

    def factory(opened: Opened) -> Slow:
        return Mine()

    cluster.txq(name).observe(factory)
    await cluster.txq(name).observing.taking_part(5)
    return Mine


@story()
async def test_prepare_answers_when_all_have_voted(cluster: Cluster) -> None:
    participant = await slow_participant(cluster, "core3")
    await ended(cluster, XID, "x")
    first = asyncio.ensure_future(cluster.txq("core1").dtx.prepare(XID))
    second = asyncio.ensure_future(cluster.txq("core2").dtx.prepare(XID))
    await asyncio.sleep(3)
    assert not first.done()
    [branch] = cluster.txq("core1").dtx.branches()
    assert (branch.state, branch.waits_for) == ("preparing", ("core3",))
    participant.gate.set()
    assert (await first, await second) == (OK, OK)
    assert cluster.txq("core1").dtx.branches()[0].waits_for == ()
    assert await cluster.txq("core2").dtx.commit(XID) is OK


@story()
async def test_a_no_is_an_answer(cluster: Cluster) -> None:
    dtx = cluster.txq("core1").dtx
    participant = await slow_participant(cluster, "core3")
    participant.fails = PrepareFailed("no")
    participant.gate.set()
    await ended(cluster, XID, "x")
    assert await dtx.prepare(XID) is XaStatus.RBROLLBACK
    assert (await dtx.outcome(XID)).reason == "core3: no"
    assert await dtx.rollback(XID) is OK
    await ended(cluster, XID, "x")
    assert await dtx.commit(XID, one_phase=True) is XaStatus.RBROLLBACK
    assert dtx.branches() == ()
    assert cluster.everywhere("a") == []
    participant.fails = None
    await ended(cluster, XID, "x")
    assert await dtx.commit(XID, one_phase=True) is OK
    assert cluster.everywhere("a") == ["x"]


@story(prepare_timeout_ms=1_000)
async def test_late_votes_roll_back(cluster: Cluster) -> None:
    dtx = cluster.txq("core1").dtx
    await slow_participant(cluster, "core3")
    await ended(cluster, XID, "x")
    assert await dtx.prepare(XID) is XaStatus.RBROLLBACK
    assert await dtx.rollback(XID) is OK
    await ended(cluster, XID, "x")
    assert await dtx.commit(XID, one_phase=True) is XaStatus.RBROLLBACK


@story(prepare_timeout_ms=60_000)
async def test_a_time_out_decides_nothing(cluster: Cluster) -> None:
    dtx = cluster.txq("core1").dtx
    participant = await slow_participant(cluster, "core3")
    await ended(cluster, XID, "x")
    with pytest.raises(TransactionUnknown):
        await dtx.prepare(XID, timeout_s=1)
    participant.gate.set()
    assert await dtx.prepare(XID) is OK
    participant.gate.clear()
    other = Xid(1, b"global", b"2")
    await ended(cluster, other, "y")
    with pytest.raises(TransactionUnknown):
        await dtx.commit(other, one_phase=True, timeout_s=1)
    participant.gate.set()
    await until(lambda: cluster.bodies("core1", "a") == ["y"])
    assert (await dtx.outcome(other)).state == "committed"
    assert await dtx.rollback(XID) is OK


@story(prepare_timeout_ms=60_000)
async def test_a_preparing_one_may_be_rolled_back(cluster: Cluster) -> None:
    await slow_participant(cluster, "core3")
    await ended(cluster, XID, "x")
    waits = asyncio.ensure_future(cluster.txq("core1").dtx.prepare(XID))
    commit = Xid(1, b"global", b"2")
    await ended(cluster, commit, "y")
    waits_too = asyncio.ensure_future(cluster.txq("core1").dtx.commit(commit, True))
    await asyncio.sleep(1)
    assert await cluster.txq("core2").dtx.rollback(XID) is OK
    assert await cluster.txq("core2").dtx.rollback(commit) is OK
    with pytest.raises(UnknownXid):
        await waits
    assert await waits_too is XaStatus.RBROLLBACK


@story(prepare_timeout_ms=60_000)
async def test_who_waits_for_votes_when_the_node_stops(cluster: Cluster) -> None:
    await slow_participant(cluster, "core3")
    await ended(cluster, XID, "x")
    waits = asyncio.ensure_future(cluster.txq("core2").dtx.prepare(XID))
    await asyncio.sleep(1)
    cluster.nodes["core2"].service.on_fault()
    with pytest.raises(TransactionUnknown):
        await waits
    await cluster.txq("core1").dtx.rollback(XID)


# --- lost answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["commit", "commit one phase", "rollback", "prepare"])
def test_a_lost_answer_is_settled_not_repeated(verb: str) -> None:
    @story()
    async def body(cluster: Cluster) -> None:
        dtx = cluster.txq("core1").dtx
        await ended(cluster, XID, "x")
        if verb == "commit":
            await dtx.prepare(XID)
        tag = f"dtx_{verb.split()[0]}"
        lost = cluster.lose_answers("core1", tag)
        calls: dict[str, Any] = {
            "commit": lambda: dtx.commit(XID, timeout_s=20),
            "commit one phase": lambda: dtx.commit(XID, True, timeout_s=20),
            "rollback": lambda: dtx.rollback(XID, timeout_s=20),
            "prepare": lambda: dtx.prepare(XID, timeout_s=20),
        }
        waits = asyncio.ensure_future(calls[verb]())
        await until(lambda: bool(lost))
        if verb == "prepare":
            assert await waits is OK
            assert await dtx.rollback(XID) is OK
        else:
            # Nobody heard; the time it takes is the proposal's, not the cluster's.
            assert await waits is OK
            assert cluster.txq("core1").counters["unknown_outcomes"] == 1
            assert cluster.nodes["core1"].proposals.count(tag) == 1

    body()


@story()
async def test_without_a_leader_nothing_is_known_or_nothing_happened(cluster: Cluster) -> None:
    await ended(cluster, XID, "x")
    cluster.isolate("core2")
    dtx = cluster.txq("core2").dtx
    with pytest.raises(TransactionUnknown) as caught:
        await dtx.prepare(XID, timeout_s=2)
    assert caught.value.txid == str(XID)
    for read in (dtx.recover(timeout_s=1), dtx.outcome(XID, timeout_s=1)):
        with pytest.raises(ReadTimeout):
            await read
    with pytest.raises(ReadTimeout):
        await dtx.get_timeout(XID, timeout_s=1)
    cluster.heal("core2")
    await dtx.rollback(XID)


@story()
async def test_recover_is_no_old_copy(cluster: Cluster) -> None:
    await ended(cluster, XID, "x")
    cluster.pause("core3")
    await cluster.txq("core1").dtx.prepare(XID)
    assert cluster.txq("core3").dtx.branches()[0].state == "active"
    waits = asyncio.ensure_future(cluster.txq("core3").dtx.recover())
    await asyncio.sleep(1)
    assert not waits.done()
    cluster.resume("core3")
    assert [one.xid for one in await waits] == [XID]
    await cluster.txq("core1").dtx.commit(XID)


def test_all_refusals_of_branches_bear_a_code() -> None:
    kinds = [BranchRefused, *BranchRefused.__subclasses__()]
    assert len(kinds) > 5
    assert all(isinstance(kind.xa, XaError) for kind in kinds)

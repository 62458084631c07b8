"""The acceptance scenarios of distributed transactions (DTX) on real nodes: 10 to 21.

29 of these are the cases of the AMQP 0-10 class dtx, by their names. They are stricter than the
tests that go by these names elsewhere: an error that does not come fails a test, a xid is used
twice where the case is about that, a second transaction that is to run does run, `recover` is
compared as a whole, and a prepared branch is held to what it promised: only a decision ends it.

Every case runs with its sessions on two of three nodes, and what it says about "both queues" and
"available" is looked at on all nodes at one index.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from raftkv.errors import Refused
from raftkv_txqueue.commands import SetTimeout
from raftkv_txqueue.session import Session
from raftkv_txqueue.xa import XaError, XaStatus, Xid
from tests.plugins.raftkv_txqueue.cluster import (
    DEADLINE_S,
    Shared,
    TxCluster,
    bodies,
    body_of,
    new_xid,
    play,
    take,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHARED = Shared()
XID = new_xid("case")
OK, RBROLLBACK, RBTIMEOUT = XaStatus.OK, XaStatus.RBROLLBACK, XaStatus.RBTIMEOUT
NOT_FOUND, ILLEGAL_STATE = XaError.NOT_FOUND, XaError.ILLEGAL_STATE
COMMAND_INVALID, NOT_ALLOWED = XaError.COMMAND_INVALID, XaError.NOT_ALLOWED

CALLS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "commit": lambda api: api.commit(XID, one_phase=True),
    "rollback": lambda api: api.rollback(XID),
    "prepare": lambda api: api.prepare(XID),
}


@pytest.fixture(scope="module", autouse=True)
def _the_cluster() -> Iterator[None]:
    """All cases run on one cluster, which is emptied in between."""
    yield
    SHARED.close()


async def refused(asked: Awaitable[Any], code: XaError) -> None:
    """It must be refused with just this code."""
    with pytest.raises(Refused) as told:
        await asked
    assert getattr(told.value, "xa", None) == code, told.value


async def dtx(cluster: TxCluster, at: str = "core1") -> Session:
    return await cluster.txq(at).session("dtx")


async def swap(session: Session) -> None:
    """One message of a goes to b, and one of b to a, in whatever the session works in."""
    [one] = await take(session, "a", 1)
    [two] = await take(session, "b", 1)
    await session.publish("b", one.body)
    await session.publish("a", two.body)
    await session.accept(one, two)


async def pair(cluster: TxCluster) -> None:
    await cluster.queue("a", "left")
    await cluster.queue("b", "right")


async def ended_swap(cluster: TxCluster, session: Session, xid: Xid = XID) -> None:
    """Start, swap, end; both queues show nothing then, on any node."""
    assert await session.start(xid) == OK
    await swap(session)
    assert await session.end(xid) == OK
    await shows_nothing(cluster)


async def shows_nothing(cluster: TxCluster) -> None:
    assert await cluster.everywhere("a") == []
    assert await cluster.everywhere("b") == []


async def is_swapped(cluster: TxCluster) -> None:
    assert await cluster.everywhere("a") == ["right"]
    assert await cluster.everywhere("b") == ["left"]


async def is_as_before(cluster: TxCluster) -> None:
    assert await cluster.everywhere("a") == ["left"]
    assert await cluster.everywhere("b") == ["right"]


async def publishes(session: Session, xid: Xid, queue: str, *texts: str) -> None:
    """A whole branch of one session: start, publish, end."""
    assert await session.start(xid) == OK
    for text in texts:
        await session.publish(queue, body_of(text))
    assert await session.end(xid) == OK


async def is_forgotten(cluster: TxCluster, xid: Xid = XID) -> None:
    await cluster.converge(DEADLINE_S)
    for node in cluster.nodes:
        assert xid.key not in cluster.table("branches", node.name)
    await refused(cluster.txq("core1").dtx.prepare(xid), NOT_FOUND)
    await refused(cluster.txq("core2").dtx.rollback(xid), NOT_FOUND)


async def recovered(cluster: TxCluster, at: str = "core2") -> list[Xid]:
    return sorted(branch.xid for branch in await cluster.txq(at).dtx.recover())


# --- 10: whole branches ---------------------------------------------------------------------------


def test_10_simple_commit() -> None:
    """test_simple_commit: swap, end, commit in one phase."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        session = await dtx(cluster)
        await ended_swap(cluster, session)
        assert await cluster.txq("core2").dtx.commit(XID, one_phase=True) == OK
        await is_swapped(cluster)
        await is_forgotten(cluster)
        outcome = await cluster.txq("core3").dtx.outcome(XID)
        assert outcome.state == "committed"

    SHARED.play(body)


def test_10_simple_prepare_commit() -> None:
    """test_simple_prepare_commit: swap, end, prepare, commit; nothing is seen until then."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        session = await dtx(cluster)
        await ended_swap(cluster, session)
        coordinator = cluster.txq("core2").dtx
        assert await coordinator.prepare(XID) == OK
        await shows_nothing(cluster)
        assert await coordinator.prepare(XID) == OK
        assert await coordinator.commit(XID) == OK
        await is_swapped(cluster)
        await is_forgotten(cluster)

    SHARED.play(body)


def test_10_simple_rollback() -> None:
    """test_simple_rollback: swap, end, rollback; all is where it was and available."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        session = await dtx(cluster)
        await ended_swap(cluster, session)
        assert await cluster.txq("core2").dtx.rollback(XID) == OK
        await is_as_before(cluster)
        await is_forgotten(cluster)
        outcome = await cluster.txq("core3").dtx.outcome(XID)
        assert outcome.state == "rolled back"

    SHARED.play(body)


def test_10_simple_prepare_rollback() -> None:
    """test_simple_prepare_rollback: swap, end, prepare, rollback."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        session = await dtx(cluster)
        await ended_swap(cluster, session)
        coordinator = cluster.txq("core2").dtx
        assert await coordinator.prepare(XID) == OK
        await shows_nothing(cluster)
        assert await coordinator.rollback(XID) == OK
        await is_as_before(cluster)
        await is_forgotten(cluster)
        assert await cluster.drained("a", "core3") == ["left"]

    SHARED.play(body)


# --- 11: wrong calls ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "tx"])
def test_11_select_required(kind: Any) -> None:
    """test_select_required: start before dtx.select is a 503; after it, it is none."""

    async def body(cluster: TxCluster) -> None:
        session = await cluster.txq("core1").session(kind)
        await refused(session.start(XID), COMMAND_INVALID)
        await is_forgotten(cluster)
        await session.select("dtx")
        assert await session.start(XID) == OK
        assert await session.end(XID) == OK
        assert await cluster.txq("core1").dtx.rollback(XID) == OK

    SHARED.play(body)


@pytest.mark.parametrize("kind", ["plain", "tx"])
def test_11_bad_resume(kind: Any) -> None:
    """test_bad_resume: resume in a session that has not selected dtx is a 503."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("a")
        owner = await dtx(cluster)
        assert await owner.start(XID) == OK
        await owner.publish("a", b"x")
        assert await owner.end(XID, suspend=True) == OK
        session = await cluster.txq("core2").session(kind)
        await refused(session.start(XID, resume=True), COMMAND_INVALID)
        # One that has, but has not suspended it, is refused too.
        await session.select("dtx")
        await refused(session.start(XID, resume=True), COMMAND_INVALID)
        assert await owner.start(XID, resume=True) == OK
        assert await owner.end(XID) == OK
        assert await cluster.txq("core1").dtx.rollback(XID) == OK

    SHARED.play(body)


def test_11_start_join_and_resume() -> None:
    """test_start_join_and_resume: both at once are a 503, and nothing is started."""

    async def body(cluster: TxCluster) -> None:
        session = await dtx(cluster)
        await refused(session.start(XID, join=True, resume=True), COMMAND_INVALID)
        await is_forgotten(cluster)
        assert await session.start(XID) == OK
        assert await session.end(XID) == OK
        assert await cluster.txq("core1").dtx.rollback(XID) == OK

    SHARED.play(body)


def test_11_end_suspend_and_fail() -> None:
    """test_end_suspend_and_fail: a 503; the branch stays known and attached.

    So it is not to be rolled back from elsewhere before its session has ended it.
    """

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("a")
        session = await dtx(cluster)
        assert await session.start(XID) == OK
        await session.publish("a", b"x")
        await refused(session.end(XID, suspend=True, fail=True), COMMAND_INVALID)
        await refused(cluster.txq("core2").dtx.rollback(XID), ILLEGAL_STATE)
        assert await session.end(XID) == OK
        assert await cluster.txq("core2").dtx.rollback(XID) == OK
        assert await cluster.everywhere("a", everything=True) == []
        await is_forgotten(cluster)

    SHARED.play(body)


# --- 12: start ------------------------------------------------------------------------------------


def test_12_start_already_known() -> None:
    """test_start_already_known: a second start without join is a 530, in any session."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("a")
        one = await dtx(cluster)
        two = await dtx(cluster, "core2")
        assert await one.start(XID) == OK
        await one.publish("a", b"x")
        await refused(two.start(XID), NOT_ALLOWED)
        assert await one.end(XID) == OK
        await refused(two.start(XID), NOT_ALLOWED)
        await refused(one.start(XID), NOT_ALLOWED)
        assert await cluster.txq("core3").dtx.prepare(XID) == OK
        await refused(two.start(XID), NOT_ALLOWED)
        assert await cluster.txq("core1").dtx.commit(XID) == OK
        assert await cluster.everywhere("a") == ["x"]

    SHARED.play(body)


def test_12_start_join() -> None:
    """test_start_join: two sessions, of two nodes, work in one branch; one commit applies both."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        one = await dtx(cluster)
        two = await dtx(cluster, "core2")
        assert await one.start(XID) == OK
        assert await two.start(XID, join=True) == OK
        [left] = await take(one, "a", 1)
        await one.publish("b", left.body)
        await one.accept(left)
        [right] = await take(two, "b", 1)
        await two.publish("a", right.body)
        await two.accept(right)
        assert await one.end(XID) == OK
        await refused(cluster.txq("core3").dtx.commit(XID, one_phase=True), ILLEGAL_STATE)
        assert await two.end(XID) == OK
        await shows_nothing(cluster)
        assert await cluster.txq("core3").dtx.commit(XID, one_phase=True) == OK
        await is_swapped(cluster)

    SHARED.play(body)


def test_12_join_of_what_is_not_there() -> None:
    """Join and resume of an unknown branch are a 404, join of a prepared one a 409."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("a")
        session = await dtx(cluster)
        await refused(session.start(XID, join=True), NOT_FOUND)
        await refused(session.start(XID, resume=True), NOT_FOUND)
        await publishes(session, XID, "a", "x")
        assert await cluster.txq("core2").dtx.prepare(XID) == OK
        await refused(session.start(XID, join=True), ILLEGAL_STATE)
        assert await cluster.txq("core2").dtx.rollback(XID) == OK

    SHARED.play(body)


# --- 13: suspend and resume -----------------------------------------------------------------------


def test_13_suspend_resume() -> None:
    """test_suspend_resume: end(suspend), start(resume), end, commit: all of it is in."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        session = await dtx(cluster)
        assert await session.start(XID) == OK
        [left] = await take(session, "a", 1)
        await session.publish("b", left.body)
        await session.accept(left)
        assert await session.end(XID, suspend=True) == OK
        # Suspended is not ended.
        await refused(cluster.txq("core2").dtx.prepare(XID), ILLEGAL_STATE)
        # Work in between is in no branch.
        await cluster.queue("free")
        await session.publish("free", b"at once")
        assert await cluster.everywhere("free") == ["at once"]
        assert await session.start(XID, resume=True) == OK
        [right] = await take(session, "b", 1)
        await session.publish("a", right.body)
        await session.accept(right)
        assert await session.end(XID) == OK
        await shows_nothing(cluster)
        assert await cluster.txq("core2").dtx.commit(XID, one_phase=True) == OK
        await is_swapped(cluster)

    SHARED.play(body)


@pytest.mark.parametrize("first", ["the resumed one", "the one in between"])
def test_13_suspend_start_end_resume(first: str) -> None:
    """test_suspend_start_end_resume, the real one: suspend T1, run T2 wholly, resume T1."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("a", "1", "2")
        await cluster.queue("b")
        other = new_xid("other")
        session = await dtx(cluster)
        assert await session.start(XID) == OK
        [one] = await take(session, "a", 1)
        await session.publish("b", b"T1, before")
        await session.accept(one)
        assert await session.end(XID, suspend=True) == OK
        assert await session.start(other) == OK
        [two] = await take(session, "a", 1)
        await session.publish("b", b"T2")
        await session.accept(two)
        assert await session.end(other) == OK
        coordinator = cluster.txq("core2").dtx
        if first == "the one in between":
            assert await coordinator.commit(other, one_phase=True) == OK
            assert await cluster.everywhere("b") == ["T2"]
        assert await session.start(XID, resume=True) == OK
        await session.publish("b", b"T1, after")
        assert await session.end(XID) == OK
        assert await coordinator.prepare(XID) == OK
        assert await coordinator.commit(XID) == OK
        mine = ["T1, before", "T1, after"]
        if first == "the one in between":
            assert await cluster.everywhere("b") == ["T2", *mine]
        else:
            # The decision of one says nothing about the other: it may go the other way.
            assert await cluster.everywhere("b") == mine
            assert await coordinator.rollback(other) == OK
            assert await cluster.everywhere("a") == ["2"]
        assert await cluster.everywhere("b") == (
            ["T2", *mine] if first == "the one in between" else mine
        )

    SHARED.play(body)


# --- 14: end --------------------------------------------------------------------------------------


def test_14_end_unknown_xid() -> None:
    """test_end_unknown_xid: a 409, as is the end of a branch that another session works in."""

    async def body(cluster: TxCluster) -> None:
        session = await dtx(cluster)
        await refused(session.end(XID), ILLEGAL_STATE)
        owner = await dtx(cluster, "core2")
        assert await owner.start(XID) == OK
        await refused(session.end(XID), ILLEGAL_STATE)
        assert await owner.end(XID) == OK
        await refused(owner.end(XID), ILLEGAL_STATE)
        assert await cluster.txq("core1").dtx.rollback(XID) == OK

    SHARED.play(body)


def test_14_end() -> None:
    """test_end: the session is non-transactional then: its publish is seen at once, the branch's
    only after the commit."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("a")
        session = await dtx(cluster)
        assert await session.start(XID) == OK
        await session.publish("a", b"one")
        assert await session.end(XID) == OK
        await session.publish("a", b"two")
        assert await cluster.everywhere("a", everything=True) == ["two"]
        [two] = await take(session, "a", 1)
        assert two.body == b"two"
        await session.accept(two)
        assert await cluster.everywhere("a", everything=True) == []
        assert await cluster.txq("core2").dtx.commit(XID, one_phase=True) == OK
        assert await cluster.everywhere("a") == ["one"]

    SHARED.play(body)


def test_14_end_with_fail() -> None:
    """[U]: a branch that was ended as failed can only be rolled back, and says so."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        session = await dtx(cluster)
        assert await session.start(XID) == OK
        await swap(session)
        assert await session.end(XID, fail=True) == RBROLLBACK
        coordinator = cluster.txq("core2").dtx
        assert await coordinator.prepare(XID) == RBROLLBACK
        await is_as_before(cluster)
        assert await coordinator.rollback(XID) == OK
        await is_forgotten(cluster)
        await is_as_before(cluster)

    SHARED.play(body)


# --- 15: commit, prepare and rollback at the wrong time -------------------------------------------


def test_15_invalid_commit_one_phase_true() -> None:
    """test_invalid_commit_one_phase_true: of a prepared branch it is a 409; it stays prepared."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        session = await dtx(cluster)
        await ended_swap(cluster, session)
        coordinator = cluster.txq("core2").dtx
        assert await coordinator.prepare(XID) == OK
        await refused(coordinator.commit(XID, one_phase=True), ILLEGAL_STATE)
        await shows_nothing(cluster)
        assert await recovered(cluster) == [XID]
        assert await coordinator.commit(XID) == OK
        await is_swapped(cluster)

    SHARED.play(body)


def test_15_invalid_commit_one_phase_false() -> None:
    """test_invalid_commit_one_phase_false: of one that is not prepared it is a 409."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        session = await dtx(cluster)
        await ended_swap(cluster, session)
        coordinator = cluster.txq("core2").dtx
        await refused(coordinator.commit(XID, one_phase=False), ILLEGAL_STATE)
        await shows_nothing(cluster)
        assert await coordinator.rollback(XID) == OK
        await is_as_before(cluster)

    SHARED.play(body)


def invalid_not_ended(call: str, suspended: bool) -> None:
    """While a session works in it, or has suspended it, others may not end it."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        session = await dtx(cluster)
        assert await session.start(XID) == OK
        await swap(session)
        if suspended:
            assert await session.end(XID, suspend=True) == OK
        for at in ("core1", "core2"):
            await refused(CALLS[call](cluster.txq(at).dtx), ILLEGAL_STATE)
        if suspended:
            assert await session.start(XID, resume=True) == OK
        # Nothing has happened to it: it goes on to its end.
        assert await session.end(XID) == OK
        await shows_nothing(cluster)
        assert await cluster.txq("core2").dtx.commit(XID, one_phase=True) == OK
        await is_swapped(cluster)

    SHARED.play(body)


@pytest.mark.parametrize("suspended", [False, True], ids=["attached", "suspended"])
def test_15_invalid_commit_not_ended(suspended: bool) -> None:
    """test_invalid_commit_not_ended: a 409, from another session."""
    invalid_not_ended("commit", suspended)


@pytest.mark.parametrize("suspended", [False, True], ids=["attached", "suspended"])
def test_15_invalid_rollback_not_ended(suspended: bool) -> None:
    """test_invalid_rollback_not_ended: a 409, from another session."""
    invalid_not_ended("rollback", suspended)


@pytest.mark.parametrize("suspended", [False, True], ids=["attached", "suspended"])
def test_15_invalid_prepare_not_ended(suspended: bool) -> None:
    """test_invalid_prepare_not_ended: a 409, from another session."""
    invalid_not_ended("prepare", suspended)


# --- 16: the session ends inside of a branch ------------------------------------------------------


@pytest.mark.parametrize("way", ["closed", "suspended and closed", "node restarted", "given up"])
def test_16_implicit_end(way: str) -> None:
    """test_implicit_end: prepare answers RBROLLBACK, the xid is kept, then rollback is OK."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        session = await dtx(cluster, "core3")
        assert await session.start(XID) == OK
        await swap(session)
        await session.flush()
        if way == "closed":
            await session.close()
        elif way == "suspended and closed":
            assert await session.end(XID, suspend=True) == OK
            await session.close()
        elif way == "node restarted":
            await cluster.restart("core3")
        else:
            await cluster.declare_dead("core3")
        coordinator = cluster.txq("core2").dtx
        assert await coordinator.prepare(XID) == RBROLLBACK
        await until(
            lambda: cluster.available("a") == ["left"] and cluster.available("b") == ["right"],
            "what it had is available",
        )
        await refused((await dtx(cluster)).start(XID), NOT_ALLOWED)
        assert await coordinator.rollback(XID) == OK
        await is_as_before(cluster)
        await is_forgotten(cluster)

    SHARED.play(body)


def test_16_a_branch_that_was_ended_outlives_its_session() -> None:
    """An idle branch belongs to nobody: its session's end does nothing to it."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        session = await dtx(cluster, "core3")
        await ended_swap(cluster, session)
        await session.close()
        await cluster.restart("core3")
        assert await cluster.txq("core2").dtx.prepare(XID) == OK
        assert await cluster.txq("core1").dtx.commit(XID) == OK
        await is_swapped(cluster)

    SHARED.play(body)


# --- 17: time-outs --------------------------------------------------------------------------------


def test_17_get_timeout() -> None:
    """test_get_timeout: 60 s by default; set to 200, it is 200, on every node."""

    async def body(cluster: TxCluster) -> None:
        session = await dtx(cluster)
        assert await session.start(XID) == OK
        for name in ("core1", "core2", "core3"):
            assert await cluster.txq(name).dtx.get_timeout(XID) == 60
        await cluster.txq("core2").dtx.set_timeout(XID, 200)
        for name in ("core1", "core2", "core3"):
            assert await cluster.txq(name).dtx.get_timeout(XID) == 200
        assert await session.end(XID) == OK
        assert await cluster.txq("core1").dtx.rollback(XID) == OK

    SHARED.play(body)


@pytest.mark.parametrize("then", ["rollback", "prepare", "commit"])
def test_17_set_timeout(then: str) -> None:
    """test_set_timeout: the time passes, the work is rolled back; end answers RBTIMEOUT, and so
    does the next call, and then the xid is forgotten."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        session = await dtx(cluster)
        assert await session.start(XID) == OK
        await swap(session)
        await session.flush()
        await cluster.txq("core2").dtx.set_timeout(XID, 0.5)
        await until(
            lambda: cluster.available("a") == ["left"] and cluster.available("b") == ["right"],
            "it is rolled back by nobody's command",
        )
        await is_as_before(cluster)
        await refused((await dtx(cluster, "core2")).start(XID), NOT_ALLOWED)
        assert await session.end(XID) == RBTIMEOUT
        coordinator = cluster.txq("core3").dtx
        assert await CALLS[then](coordinator) == RBTIMEOUT
        await is_forgotten(cluster)
        await is_as_before(cluster)
        assert (await coordinator.outcome(XID)).state == "rolled back"

    SHARED.play(body)


def test_17_set_timeout_too_high() -> None:
    """test_set_timeout_too_high: 3601 is a 542; the branch keeps the time-out that it has."""

    async def body(cluster: TxCluster) -> None:
        session = await dtx(cluster)
        assert await session.start(XID) == OK
        dtx_api = cluster.txq("core2").dtx
        await refused(dtx_api.set_timeout(XID, 3601), XaError.INVALID_ARGUMENT)
        assert await dtx_api.get_timeout(XID) == 60
        await dtx_api.set_timeout(XID, 3600)
        assert await dtx_api.get_timeout(XID) == 3600
        other = await dtx(cluster, "core2")
        await refused(other.start(new_xid("long"), timeout_s=3601), XaError.INVALID_ARGUMENT)
        assert await session.end(XID) == OK
        assert await dtx_api.rollback(XID) == OK

    SHARED.play(body)


# --- 18: recover ----------------------------------------------------------------------------------


def test_18_recover() -> None:
    """test_recover: of 9 branches 2, 5, 6, 8 are prepared; recover says just these, everywhere."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("a")
        xids = {number: new_xid("recover", str(number)) for number in range(1, 10)}
        sessions = [await dtx(cluster, name) for name in ("core1", "core2", "core3")]
        coordinator = cluster.txq("core1").dtx
        for number, xid in xids.items():
            await publishes(sessions[number % 3], xid, "a", str(number))
            if number in (2, 5, 6, 8):
                assert await coordinator.prepare(xid) == OK
        doubt = sorted(xids[number] for number in (2, 5, 6, 8))
        for name in ("core1", "core2", "core3"):
            found = await cluster.txq(name).dtx.recover()
            assert sorted(branch.xid for branch in found) == doubt
            assert {branch.state for branch in found} == {"prepared"}
        for xid in doubt:
            assert await cluster.txq("core3").dtx.rollback(xid) == OK
        assert await recovered(cluster) == []
        for number in (1, 3, 4, 7, 9):
            assert await coordinator.commit(xids[number], one_phase=True) == OK
        assert await cluster.everywhere("a", everything=True) == ["1", "3", "4", "7", "9"]

    SHARED.play(body)


# --- 19: unknown xids, and xids that are used again -----------------------------------------------


def test_19_prepare_unknown() -> None:
    """test_prepare_unknown: a 404, on every node."""

    async def body(cluster: TxCluster) -> None:
        for node in cluster.nodes:
            await refused(cluster.txq(node.name).dtx.prepare(XID), NOT_FOUND)

    SHARED.play(body)


@pytest.mark.parametrize("one_phase", [False, True])
def test_19_commit_unknown(one_phase: bool) -> None:
    """test_commit_unknown: a 404, in one phase and in two."""

    async def body(cluster: TxCluster) -> None:
        for node in cluster.nodes:
            api = cluster.txq(node.name).dtx
            await refused(api.commit(XID, one_phase=one_phase), NOT_FOUND)

    SHARED.play(body)


def test_19_rollback_unknown() -> None:
    """test_rollback_unknown: a 404, on every node."""

    async def body(cluster: TxCluster) -> None:
        for node in cluster.nodes:
            await refused(cluster.txq(node.name).dtx.rollback(XID), NOT_FOUND)

    SHARED.play(body)


def test_19_get_timeout_unknown() -> None:
    """test_get_timeout_unknown: a 404; so is the setting of it."""

    async def body(cluster: TxCluster) -> None:
        for node in cluster.nodes:
            api = cluster.txq(node.name).dtx
            await refused(api.get_timeout(XID), NOT_FOUND)
            await refused(api.set_timeout(XID, 30), NOT_FOUND)

    SHARED.play(body)


@pytest.mark.parametrize("end", ["commit", "one phase", "rollback", "prepared rollback", "empty"])
def test_19_forget_xid_on_completion(end: str) -> None:
    """test_forget_xid_on_completion: the very same xid names a new branch, again and again."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("a")
        session = await dtx(cluster)
        coordinator = cluster.txq("core2").dtx
        expected: list[str] = []
        for number in range(3):
            await publishes(session, XID, "a", *([] if end == "empty" else [str(number)]))
            if end == "commit":
                assert await coordinator.prepare(XID) == OK
                assert await coordinator.commit(XID) == OK
                expected.append(str(number))
            elif end == "one phase":
                assert await coordinator.commit(XID, one_phase=True) == OK
                expected.append(str(number))
            elif end == "rollback":
                assert await coordinator.rollback(XID) == OK
            elif end == "prepared rollback":
                assert await coordinator.prepare(XID) == OK
                assert await coordinator.rollback(XID) == OK
            else:
                assert await coordinator.prepare(XID) == XaStatus.RDONLY
            await is_forgotten(cluster)
            assert await cluster.everywhere("a", everything=True) == expected
        # The last one counts for who asks.
        state = (await coordinator.outcome(XID)).state
        assert state == ("rolled back" if "rollback" in end else "committed")

    SHARED.play(body)


# --- 20: prepared is a promise --------------------------------------------------------------------


async def prepared(cluster: TxCluster, at: str = "core3") -> Session:
    """A branch with a swap in it, prepared, by a session of that node."""
    await pair(cluster)
    session = await dtx(cluster, at)
    await ended_swap(cluster, session)
    assert await cluster.txq("core2").dtx.prepare(XID) == OK
    return session


async def keeps_its_promise(cluster: TxCluster, then: str) -> None:
    """It is prepared still, on all nodes, and can be decided either way."""
    await shows_nothing(cluster)
    for node in cluster.nodes:
        assert await recovered(cluster, node.name) == [XID]
    at = cluster.nodes[-1].name
    if then == "commit":
        assert await cluster.txq(at).dtx.commit(XID) == OK
        await is_swapped(cluster)
    else:
        assert await cluster.txq(at).dtx.rollback(XID) == OK
        await is_as_before(cluster)
    await is_forgotten(cluster)


@pytest.mark.parametrize("then", ["commit", "rollback"])
def test_20_prepared_survives_its_time_out(then: str) -> None:
    """Scenario 20: the time-out that it had as an active one passes; nothing happens to it."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        await cluster.queue("c")
        session = await dtx(cluster, "core3")
        await ended_swap(cluster, session)
        witness = await dtx(cluster)
        other = new_xid("not prepared")
        await cluster.txq("core2").dtx.set_timeout(XID, 1.0)
        assert await cluster.txq("core2").dtx.prepare(XID) == OK
        assert await witness.start(other, timeout_s=1.0) == OK
        await witness.publish("c", b"x")
        await witness.flush()
        # The one that was started after it, and was not prepared, has expired.
        await until(
            lambda: "active" not in {row.state for row in cluster.table("transactions").values()},
            "the other one expires",
        )
        await refused(
            cluster.raw("core1", SetTimeout(XID, 1_000)),
            ILLEGAL_STATE,
        )
        assert await witness.end(other) == RBTIMEOUT
        assert await cluster.txq("core1").dtx.rollback(other) == RBTIMEOUT
        await keeps_its_promise(cluster, then)

    SHARED.play(body)


@pytest.mark.parametrize("then", ["commit", "rollback"])
def test_20_prepared_survives_its_session(then: str) -> None:
    """Scenario 20: the session that worked in it is closed, and its node is given up as well."""

    async def body(cluster: TxCluster) -> None:
        session = await prepared(cluster)
        await session.close()
        await cluster.declare_dead("core3")
        await keeps_its_promise(cluster, then)

    SHARED.play(body)


@pytest.mark.parametrize("then", ["commit", "rollback"])
def test_20_prepared_survives_a_change_of_leaders(then: str) -> None:
    """Scenario 20: the leader dies, with the session; then the next one does."""

    async def body(cluster: TxCluster) -> None:
        leader = await cluster.has_leader()
        await prepared(cluster, leader)
        for _ in range(2):
            now = await cluster.has_leader()
            await cluster.new_leader(now)
            await cluster.restart(now)
        await keeps_its_promise(cluster, then)

    SHARED.play(body)


@pytest.mark.parametrize("then", ["commit", "rollback"])
def test_20_prepared_survives_a_restart_of_the_whole_cluster(then: str) -> None:
    """Scenario 20: all nodes die and come back; recover says it, on each of them."""

    async def body(cluster: TxCluster) -> None:
        session = await prepared(cluster)
        idle = new_xid("idle")
        await cluster.queue("c")
        await publishes(session, idle, "c", "x")
        active = new_xid("active")
        assert await session.start(active) == OK
        await session.publish("c", b"y")
        await session.flush()
        await cluster.all_restart()
        # Who worked in one is gone; the idle one waits for its coordinator as before.
        assert await cluster.txq("core1").dtx.prepare(active) == RBROLLBACK
        assert await cluster.txq("core1").dtx.rollback(active) == OK
        assert await cluster.txq("core1").dtx.commit(idle, one_phase=True) == OK
        assert await cluster.everywhere("c", everything=True) == ["x"]
        await keeps_its_promise(cluster, then)

    SHARED.play(body)


def test_20_prepared_has_its_room() -> None:
    """Scenario 20: a promise that could fail for want of room were none."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("a", depth_max=3)
        session = await dtx(cluster)
        await publishes(session, XID, "a", "1", "2")
        assert await cluster.txq("core2").dtx.prepare(XID) == OK
        await cluster.put("a", "first")
        with pytest.raises(Refused) as told:
            await cluster.put("a", "no room")
        assert told.value.code == "txqueue_queue_full"
        with pytest.raises(Refused):
            await cluster.txq("core1").delete("a")
        # One that comes too late to get room is not prepared.
        other = new_xid("other")
        await publishes(session, other, "a", "3")
        assert await cluster.txq("core2").dtx.prepare(other) == RBROLLBACK
        assert await cluster.txq("core2").dtx.rollback(other) == OK
        assert await cluster.txq("core2").dtx.commit(XID) == OK
        assert await cluster.everywhere("a") == ["first", "1", "2"]

    SHARED.play(body)


def test_20_prepared_with_participants_survives_them() -> None:
    """Scenario 20: who said yes and died has said yes; the restarted store hears the decision."""

    async def body(cluster: TxCluster) -> None:
        await cluster.store("core1", "core3")
        await prepared(cluster, "core2")
        await cluster.kill("core3")
        await cluster.is_down("core3")
        assert await recovered(cluster) == [XID]
        assert await cluster.txq("core2").dtx.commit(XID) == OK
        await cluster.restart("core3")
        await is_swapped(cluster)
        assert "commit" in cluster.stores["core1"].of(XID)

    play(body)


# --- 21: heuristics -------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["commit", "rollback"])
@pytest.mark.parametrize("coordinator", ["commit", "rollback"])
def test_21_heuristics(operator: str, coordinator: str) -> None:
    """Scenario 21: an operator decides; the coordinator is told HEURCOM or HEURRB, until forget."""

    async def body(cluster: TxCluster) -> None:
        await prepared(cluster)
        by_hand = cluster.txq("core1").dtx
        if operator == "commit":
            await by_hand.heuristic_commit(XID, "the coordinator is lost")
            await is_swapped(cluster)
        else:
            await by_hand.heuristic_rollback(XID, "the coordinator is lost")
            await is_as_before(cluster)
        told = XaStatus.HEURCOM if operator == "commit" else XaStatus.HEURRB
        api = cluster.txq("core2").dtx
        await cluster.restart("core3")
        for _ in range(2):
            [branch] = await api.recover()
            assert branch.xid == XID
            assert branch.state == (
                "heuristically committed" if operator == "commit" else "heuristically rolled back"
            )
            asked = api.commit(XID) if coordinator == "commit" else api.rollback(XID)
            assert await asked == told
        await refused((await dtx(cluster)).start(XID), NOT_ALLOWED)
        assert await api.forget(XID) == OK
        assert await recovered(cluster) == []
        await is_forgotten(cluster)
        outcome = await cluster.txq("core3").dtx.outcome(XID)
        assert outcome.state == ("committed" if operator == "commit" else "rolled back")
        assert outcome.by == "operator"

    SHARED.play(body)


def test_21_forget_without_a_heuristic_outcome() -> None:
    """Scenario 21: forget of a branch in any other state is an error, of an unknown one a 404."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        api = cluster.txq("core2").dtx
        await refused(api.forget(XID), NOT_FOUND)
        session = await dtx(cluster)
        assert await session.start(XID) == OK
        await refused(api.forget(XID), ILLEGAL_STATE)
        await swap(session)
        assert await session.end(XID) == OK
        await refused(api.forget(XID), ILLEGAL_STATE)
        assert await api.prepare(XID) == OK
        await refused(api.forget(XID), ILLEGAL_STATE)
        assert await api.commit(XID) == OK
        await refused(api.forget(XID), NOT_FOUND)
        await is_swapped(cluster)

    SHARED.play(body)


def test_21_heuristics_only_of_prepared_ones() -> None:
    """Scenario 21: an operator decides what is in doubt, nothing else."""

    async def body(cluster: TxCluster) -> None:
        await pair(cluster)
        api = cluster.txq("core2").dtx
        await refused(api.heuristic_commit(XID, "unknown"), NOT_FOUND)
        session = await dtx(cluster)
        await ended_swap(cluster, session)
        await refused(api.heuristic_commit(XID, "idle"), ILLEGAL_STATE)
        await refused(api.heuristic_rollback(XID, "idle"), ILLEGAL_STATE)
        assert await api.commit(XID, one_phase=True) == OK
        await is_swapped(cluster)

    SHARED.play(body)


def test_21_a_branch_without_changes_is_read_only() -> None:
    """Scenario 21: prepare answers RDONLY and the xid is forgotten; one phase answers OK."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("a", "1")
        session = await dtx(cluster)
        assert await session.start(XID) == OK
        # Looking at a message and giving it back changes nothing.
        got = await take(session, "a", 1)
        assert bodies(got) == ["1"]
        await session.release(*got)
        assert await session.end(XID) == OK
        assert await cluster.txq("core2").dtx.prepare(XID) == XaStatus.RDONLY
        await is_forgotten(cluster)
        await publishes(session, XID, "a")
        assert await cluster.txq("core2").dtx.commit(XID, one_phase=True) == OK
        await is_forgotten(cluster)
        assert await cluster.everywhere("a") == ["1"]
        await publishes(session, XID, "a", "2")
        assert await cluster.txq("core2").dtx.prepare(XID) == OK
        assert await cluster.txq("core2").dtx.commit(XID) == OK
        assert await cluster.everywhere("a") == ["1", "2"]

    SHARED.play(body)

"""What an operator sees and does: who holds a message, what a branch contains, ending sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from raftkv.errors import UnknownCommand
from raftkv.state.core import AnnounceFormats
from raftkv_txqueue import BranchContent, BranchPart, Holder, SessionEnded, XaStatus, Xid
from raftkv_txqueue.commands import (
    ACK_TIMEOUT_MS_MAX,
    ENDINGS_KEPT,
    AcceptOf,
    CommitBranch,
    End,
    EndSession,
    EnsureQueue,
    Lock,
    PrepareBranch,
    Rollback,
    Start,
    Sweep,
)
from raftkv_txqueue.refusals import BadAckTimeout, QueueDiffers, UnknownXid
from raftkv_txqueue.reports import LISTED_PARTS_MAX, branches_report
from raftkv_txqueue.sheets import branches_sheet, browsed_sheet, content_sheet
from tests.plugins.raftkv_txqueue.fakes import (
    Cluster,
    FormerTxQueue,
    bodies,
    messages,
    story,
    until,
)
from tests.plugins.raftkv_txqueue.pure import TxLog, accept_of, publish_to
from tests.plugins.raftkv_txqueue.test_txqueue_door import (
    XID,
    Stand,
    accepts,
    doors,
    publishes,
    reason,
)

X = Xid(1, b"global", b"1")
#: What a message of one letter counts: its body and 64 bytes.
LETTER = 65


# --- what a prepared branch contains --------------------------------------------------------------


async def prepared(cluster: Cluster, count: int) -> None:
    """A branch that accepts all of a but the first, and publishes two to b."""
    txq = cluster.txq("core1")
    await txq.publish("a", messages(*"x" * (count + 1)))
    session = await txq.session("dtx")
    await session.get("a")
    held = await session.get("a", count)
    assert await session.start(X) is XaStatus.OK
    await session.accept(*held)
    await session.publish("b", messages("p", "q"))
    assert await session.end(X) is XaStatus.OK
    await session.close()
    assert await txq.dtx.prepare(X) is XaStatus.OK


@story()
async def test_a_prepared_branch_shows_what_it_contains(cluster: Cluster) -> None:
    await prepared(cluster, 5)
    dtx = cluster.txq("core2").dtx
    parts = (BranchPart("a", 0, 0, 5, 5 * LETTER), BranchPart("b", 2, 2 * LETTER, 0, 0))
    [shown] = await dtx.recover()
    assert (shown.content, shown.rows) == (parts, 7)
    assert [each.content for each in dtx.branches()] == [parts]
    assert await dtx.content(X) == (
        BranchContent("a", 0, 0, 5, 5 * LETTER, (2, 3, 4, 5, 6)),
        BranchContent("b", 2, 2 * LETTER, 0, 0),
    )
    [part] = await dtx.content(X, queue="a", limit=2)
    assert (part.seqs, part.next) == ((2, 3), 4)
    [part] = await dtx.content(X, queue="a", first=part.next, limit=3)
    assert (part.seqs, part.next) == ((4, 5, 6), 0)
    assert await dtx.content(X, queue="c") == ()
    for limit in (0, 1_001):
        with pytest.raises(ValueError, match="limit is 1 to 1000"):
            await dtx.content(X, limit=limit)


@story()
async def test_what_an_operator_has_decided_keeps_its_figures(cluster: Cluster) -> None:
    await prepared(cluster, 2)
    dtx = cluster.txq("core3").dtx
    assert await dtx.heuristic_commit(X, "by hand") is XaStatus.OK
    first, second = await dtx.content(X)
    assert (first.accepts, first.seqs, second.publishes) == (2, (), 2)
    assert await dtx.forget(X) is XaStatus.OK
    with pytest.raises(UnknownXid):
        await dtx.content(X)


@doors()
async def test_the_http_api_shows_what_a_branch_contains(stand: Stand) -> None:
    opened = (await stand.open("dtx"))[1]["session"]
    await stand.get(f"sessions/{opened}", "a", 3)
    await stand.good("POST", f"dtx/{XID}/start", {"session": opened})
    asked = {"session": opened, "operations": [publishes("p"), accepts(1, 2, 3)]}
    await stand.good("POST", f"dtx/{XID}/stage", asked)
    await stand.good("POST", f"dtx/{XID}/end", {"session": opened})
    await stand.good("POST", f"dtx/{XID}/prepare")
    figures = {"publishes": 0, "publish_bytes": 0, "accepts": 3, "accept_bytes": 225}
    for path in ("dtx", "dtx/recover"):
        [found] = (await stand.good("GET", path, at="core2"))["branches"]
        assert found["content"][1] == {"queue": "a", **figures}
    one = await stand.good("GET", f"dtx/{XID}", limit="2")
    assert one["content"][1] == {"queue": "a", **figures, "seqs": [1, 2], "next": 3}
    rest = {"queue": "a", "from": "3"}
    [part] = (await stand.good("GET", f"dtx/{XID}", **rest))["content"]
    assert (part["seqs"], part["next"]) == ([3], 0)
    for query in ({"limit": "0"}, {"limit": "1001"}, {"from": "0"}, {"until": "3"}):
        assert (await stand.ask("GET", f"dtx/{XID}", **query))[0] == 400
    await stand.good("POST", f"dtx/{XID}/rollback")
    assert (await stand.good("GET", f"dtx/{XID}"))["content"] == []


@story()
async def test_a_list_of_branches_shows_a_bounded_content(cluster: Cluster) -> None:
    await prepared(cluster, 1)
    [branch] = await cluster.txq("core1").dtx.recover()
    count = LISTED_PARTS_MAX // 2
    found = branches_report([branch] * (count + 1))
    assert [each["content"] is None for each in found] == [False] * count + [True]
    assert found[-1]["queues"] == 2


def test_tables_of_what_a_branch_contains() -> None:
    part = {"queue": "a", "publishes": 2, "publish_bytes": 130, "accepts": 4, "accept_bytes": 260}
    [cells] = content_sheet([{**part, "seqs": [1, 2, 3, 7], "next": 9}]).rows
    assert cells == ("a", "2", "130", "4", "260", "1-3,7,and more from 9")
    shown: dict[str, Any] = {
        "xid": "1:61:", "state": "prepared", "queues": 2, "rows": 7, "bytes": 130, "opened_ms": 0,
        "sessions": [], "waits_for": [], "why": "",
        "content": [part, {**part, "queue": "b", "publishes": 0, "accepts": 1}],
    }  # fmt: skip
    [row] = branches_sheet([shown], 1_000).rows
    assert row[5] == "a +2 -4, b -1"
    [row] = branches_sheet([{**shown, "content": None}], 1_000).rows
    assert row[5] == "..."


# --- who holds a message --------------------------------------------------------------------------


def holders(log: TxLog, queue: str = "q") -> dict[int, Holder | None]:
    return {each.seq: each.holder for each in log.browse(queue, everything=True)}


def test_who_holds_a_message_and_since_when() -> None:
    log = TxLog()
    log.publish("q", *"abcde")
    one, two = log.open("n1"), log.open("n2", "tx")
    log.now = 2_000
    log.get(one, count=2)
    log.now = 3_000
    log.get(two, count=2)
    assert log.table("locks")[one, 1, 1] == Lock(1, 2_000)
    log.now = 4_000
    log.stage(two, accept_of("q", 3))
    assert holders(log) == {
        1: Holder(one, "plain", "n1", 2_000),
        2: Holder(one, "plain", "n1", 2_000),
        3: Holder(two, "tx", "n2", 4_000, f"{two}.1"),
        4: Holder(two, "tx", "n2", 3_000),
        5: None,
    }
    log.release(one, "q", 1)
    log.now = 5_000
    log.get(two)
    assert holders(log)[1] == Holder(two, "tx", "n2", 5_000)
    assert [each.holder for each in log.browse("q")] == [None]


def test_what_a_rollback_gives_back_is_held_anew() -> None:
    log = TxLog()
    log.publish("q", "a")
    session = log.open("n1", "tx")
    log.get(session)
    log.stage(session, accept_of("q", 1))
    log.now = 7_000
    log.node_down("n2")  # something that is no command of the plugin
    log.of(session, Rollback(session, 1))
    assert holders(log) == {1: Holder(session, "tx", "n1", 7_000)}


class Former(TxLog):
    """A cluster at format 1 of the plugin."""

    def __init__(self) -> None:
        super().__init__(plugin=FormerTxQueue)


def test_format_1_keeps_no_times_and_knows_no_operators() -> None:
    log = Former()
    log.publish("q", "a", "b")
    session = log.open()
    log.get(session, count=2)
    assert set(log.table("locks").values()) == {1}
    assert holders(log)[1] == Holder(session, "plain", "n1", 0)
    for command in (EndSession(session), EnsureQueue("new", ack_timeout_ms=1_000)):
        with pytest.raises(UnknownCommand):
            log.anywhere(command)
    assert log.accept(session, "q", 1).done == 1
    assert log.close(session).held == 1
    for table in ("ack_due", "ack_timeouts", "endings"):
        assert log.table(table) == {}


def test_locks_of_format_1_are_settled_at_format_2() -> None:
    log = TxLog(nodes=(), queues=())
    for node in ("n1", "n2", "n3"):
        log.plugin_format = 1
        log.node_up(node)
    log.declare("q")
    log.publish("q", *"abcdef")
    session = log.open("n1", "tx")
    log.get(session, count=5)
    log.machine.raise_format(log.machine.index + 1, msgspec.msgpack.encode(2))
    for node in ("n1", "n2", "n3"):
        incarnation = log.machine.members[node].incarnation
        formats = AnnounceFormats(node, incarnation, (("txqueue", 2),))
        log.run(log.sessions[node], "core", formats)
    assert log.view().version == 2
    assert holders(log)[5] == Holder(session, "tx", "n1", 0)
    log.now = 5_000
    log.get(session)
    assert holders(log)[6] == Holder(session, "tx", "n1", 5_000)
    log.accept(session, "q", 1)
    log.release(session, "q", 2)
    log.stage(session, accept_of("q", 3))
    log.commit(session, accept_of("q", 4, 6))
    log.anywhere(EndSession(session))
    log.sweep_all()
    assert log.bodies() == ["b", "e"]


@doors()
async def test_the_http_api_shows_who_holds_a_message(stand: Stand) -> None:
    path, opened = await stand.open("plain", "core2")
    await stand.good("POST", f"{path}/get", {"queue": "a"}, at="core2")
    number = int(opened["session"].partition("-")[0])
    found = await stand.good("GET", "queues/a/messages", all="true")
    held, *rest = found["messages"]
    assert held["state"] == "acquired"
    since_ms = held["holder"].pop("since_ms")
    assert 0 < since_ms <= found["now_ms"]
    expected = {"session": number, "kind": "plain", "node": "core2", "transaction": ""}
    assert held["holder"] == expected
    assert [each["holder"] for each in rest] == [None, None]
    assert opened["session"] not in str(found)
    of_client = await stand.good("GET", path, at="core2")
    assert of_client["held"] == [{"queue": "a", "seq": 1, "deliveries": 1, "since_ms": since_ms}]


def test_the_table_of_messages_says_who_holds_them() -> None:
    held = {"session": 7, "kind": "tx", "node": "core1", "since_ms": 400, "transaction": "7.1"}
    shown = {"seq": 1, "state": "accepted", "deliveries": 1, "at_ms": 500, "headers": [],
             "body": "eA==", "holder": held}  # fmt: skip
    free = {**shown, "state": "available", "holder": None}
    old = {**shown, "holder": {**held, "since_ms": 0, "transaction": ""}}
    one, two, three = browsed_sheet([shown, free, old], 1_500, True).rows
    assert one[4:9] == ("7", "tx", "core1", "1.1", "7.1")
    assert two[4:9] == ("",) * 5
    assert three[4:9] == ("7", "tx", "core1", "", "")


# --- ending a session that hangs ------------------------------------------------------------------


def test_an_operator_ends_a_session_from_any_node() -> None:
    log = TxLog()
    log.declare("dead")
    log.declare("r", deliveries_max=1, dead_letter="dead")
    log.publish("q", *"abc")
    log.publish("r", "poison")
    session = log.open("n2", "tx")
    log.get(session, count=2)
    log.get(session, "r")
    log.stage(session, accept_of("q", 1), publish_to("q", "never"))
    done = log.send("n1", EndSession(session, "it hangs"))
    assert (done.held, done.rolled_back) == (2, True)
    log.sweep_all()
    assert [(each.message.body, each.deliveries) for each in log.browse("q")] == [
        (b"a", 1), (b"b", 1), (b"c", 0),
    ]  # fmt: skip
    assert (log.bodies("r"), log.bodies("dead")) == ([], ["poison"])
    [ending] = log.table("endings").values()
    assert (ending.session, ending.by, ending.reason) == (session, "operator", "it hangs")
    for again in (session, 99):
        with pytest.raises(SessionEnded):
            log.send("n3", EndSession(again))


def test_a_prepared_branch_survives_its_session() -> None:
    log = TxLog()
    log.publish("q", "a")
    session = log.open("n1", "dtx")
    log.get(session)
    log.of(session, Start(session, X))
    log.of(session, End(session, X, operations=(AcceptOf("q", (1,)), publish_to("q", "b"))))
    log.anywhere(PrepareBranch(X))
    log.anywhere(EndSession(session))
    assert holders(log)[1] == Holder(session, "dtx", "n1", 1_000, str(X))
    log.anywhere(CommitBranch(X))
    assert log.bodies() == ["b"]


def test_notes_on_ended_sessions_are_bounded() -> None:
    log = TxLog(checks=False)
    for _ in range(ENDINGS_KEPT + 2):
        log.anywhere(EndSession(log.open()))
    assert list(log.table("endings")) == list(range(3, ENDINGS_KEPT + 3))
    log.check()


@story()
async def test_a_program_learns_that_its_session_was_ended(cluster: Cluster) -> None:
    """It waits for messages, for ever: nothing of it is sent that the log could refuse."""
    session = await cluster.txq("core2").session()
    waits = asyncio.ensure_future(session.get("a", wait_s=None))
    follows = asyncio.ensure_future(anext(aiter(session.subscribe("b"))))
    await asyncio.sleep(1)
    done = await cluster.txq("core1").end_session(session.id, "maintenance")
    assert (done.held, done.rolled_back) == (0, False)
    for task in (waits, follows):
        with pytest.raises(SessionEnded, match="ended by an operator: maintenance") as caught:
            await task
        assert (caught.value.cause, caught.value.reason) == ("operator", "maintenance")
    assert session.ended
    assert caught.value.code == "txqueue_session_ended"
    with pytest.raises(SessionEnded, match="by an operator"):
        await session.get("a")
    counters = cluster.txq("core2").counters
    assert counters["sessions_ended_by_operators"] == counters["sessions_ended"] == 1
    with pytest.raises(SessionEnded, match="by an operator"):
        await cluster.txq("core3").end_session(session.id)
    for bad in ("x" * 2**20, chr(0xD800)):
        with pytest.raises((ValueError, SessionEnded)):
            await cluster.txq("core3").end_session(session.id, bad)
    for bad in (0, 2**63):
        with pytest.raises(ValueError, match="no session can be ended so"):
            await cluster.txq("core3").end_session(bad)


@doors()
async def test_an_operator_ends_a_session_over_http(stand: Stand) -> None:
    path, opened = await stand.open("plain", "core2")
    await stand.good("POST", f"{path}/get", {"queue": "a", "count": 2}, at="core2")
    number = int(opened["session"].partition("-")[0])
    ended = await stand.good("POST", f"sessions/{number}/end", {"reason": "it hangs"})
    assert ended == {"session": number, "ended": True, "held": 2, "rolled_back": False}
    await until(lambda: len(stand.cluster.table("returned")) == 2)
    told = await stand.ask("POST", f"{path}/get", {"queue": "a"}, at="core2")
    assert reason(told) == (409, "txqueue_session_ended")
    assert (told[1]["cause"], "it hangs" in told[1]["error"]) == ("operator", True)
    assert reason(await stand.ask("POST", f"sessions/{number}/end", {})) == (
        409, "txqueue_session_ended",
    )  # fmt: skip
    for bad, body in (("x", {}), ("0", {}), (opened["session"], {}), (str(number), {"why": ""})):
        assert (await stand.ask("POST", f"sessions/{bad}/end", body))[0] == 400


# --- the acknowledgement time-out -----------------------------------------------------------------


def timed(timeout_ms: int = 1_000, **limits: Any) -> TxLog:
    """With a, b, c in q, which has this time-out."""
    log = TxLog()
    log.anywhere(EnsureQueue("q", ack_timeout_ms=timeout_ms, change=True, **limits))
    log.publish("q", *"abc")
    return log


def test_ack_timeout_is_off_by_default_and_declared_for_a_queue() -> None:
    log = TxLog()
    assert not log.table("ack_timeouts")
    log.publish("q", "a")
    session = log.open()
    log.get(session)
    log.now += 10**9
    assert log.sweep().rows == 0
    assert log.anywhere(EnsureQueue("new", ack_timeout_ms=0)).created
    done = log.anywhere(EnsureQueue("new", ack_timeout_ms=500, change=True))
    assert (done.created, done.changed) == (False, True)
    assert not log.anywhere(EnsureQueue("new")).changed
    with pytest.raises(QueueDiffers, match="has ack_timeout_ms '500', not '600'"):
        log.anywhere(EnsureQueue("new", ack_timeout_ms=600))
    for bad in (1, 99, ACK_TIMEOUT_MS_MAX + 1):
        with pytest.raises(BadAckTimeout, match="take 100 to 604800000 ms, or 0"):
            log.anywhere(EnsureQueue("new", ack_timeout_ms=bad, change=True))
    log.delete("new")
    assert not log.table("ack_timeouts")
    log.anywhere(EnsureQueue("new"))
    assert not log.table("ack_timeouts")


def test_who_holds_a_message_for_too_long_is_ended() -> None:
    log = timed(deliveries_max=3)
    slow, quick = log.open("n1"), log.open("n2")
    log.get(slow, count=2)
    log.now = 1_500
    log.get(quick)
    log.now = 1_999
    assert log.sweep().rows == 0
    assert not log.session(slow).ended_ms
    log.now = 2_000
    assert log.sweep().rows > 0
    assert log.session(slow).ended_ms == 2_000
    assert not log.session(quick).ended_ms
    assert [(each.message.body, each.deliveries) for each in log.browse("q")] == [
        (b"a", 1), (b"b", 1),
    ]  # fmt: skip
    with pytest.raises(SessionEnded):
        log.accept(slow, "q", 1)
    log.now = 2_400
    assert log.accept(quick, "q", 3).done == 1
    log.now = 9_000
    assert log.sweep().rows == 0
    assert log.table("ack_due") == {}


def test_a_message_that_nobody_settles_dies_at_last() -> None:
    log = timed(deliveries_max=2)
    log.declare("dead")
    log.anywhere(EnsureQueue("q", dead_letter="dead", change=True))
    for _ in range(2):
        log.get(log.open(), count=1)
        log.now += 1_000
        log.sweep_all()
    assert (log.bodies("q"), log.bodies("dead")) == (["b", "c"], ["a"])


@pytest.mark.parametrize("how", ["accept", "release", "reject"])
def test_what_is_settled_is_not_overdue(how: Any) -> None:
    log = timed()
    session = log.open()
    log.get(session, count=3)
    log.settle(session, how, "q", 1, 2)
    log.put_back(session, "q", 3)
    assert log.table("ack_due") == {}
    log.now += 5_000
    assert log.sweep().rows == 0
    assert not log.session(session).ended_ms


def test_a_transaction_has_its_own_time_out() -> None:
    log = timed()
    session = log.open("n1", "tx")
    log.get(session, count=2)
    log.stage(session, accept_of("q", 1), publish_to("q", "new"))
    log.commit(session, accept_of("q", 2))
    log.get(session)
    log.stage(session, accept_of("q", 3))
    assert log.table("ack_due") == {}
    log.now += 5_000
    assert log.sweep().rows == 0
    log.of(session, Rollback(session, 2))
    assert set(log.table("ack_due")) == {(7_000, session, 1, 3)}
    log.now += 1_000
    log.sweep_all()
    assert log.session(session).ended_ms == 7_000
    assert log.bodies() == ["c", "new"]


def test_a_longer_time_out_counts_at_once_and_a_shorter_one_from_then_on() -> None:
    log = timed()
    session = log.open()
    log.get(session)
    log.anywhere(EnsureQueue("q", ack_timeout_ms=3_000, change=True))
    log.now = 2_000
    log.sweep_all()
    assert not log.session(session).ended_ms
    assert set(log.table("ack_due")) == {(4_000, session, 1, 1)}
    log.anywhere(EnsureQueue("q", ack_timeout_ms=100, change=True))
    log.get(session)
    assert set(log.table("ack_due")) == {(2_100, session, 1, 2), (4_000, session, 1, 1)}
    log.anywhere(EnsureQueue("q", ack_timeout_ms=0, change=True))
    log.now = 9_000
    log.sweep_all()
    assert (log.session(session).ended_ms, log.table("ack_due")) == (0, {})


def test_a_deleted_queue_ends_nobody() -> None:
    log = timed()
    session = log.open()
    log.get(session)
    log.delete("q")
    log.now = 5_000
    log.sweep(1)
    log.sweep_all()
    assert not log.session(session).ended_ms
    assert (log.table("ack_due"), log.table("locks")) == ({}, {})


def test_many_overdue_messages_are_swept_in_bounded_entries() -> None:
    log = timed()
    log.publish("q", *["x"] * 400)
    sessions = [log.open() for _ in range(20)]
    for session in sessions:
        log.get(session, count=20)
    log.now = 3_000
    for _ in range(500):
        before = len(log.table("locks"))
        swept = log.anywhere(Sweep(10))
        assert before - len(log.table("locks")) <= 11
        if not swept.more:
            break
    assert all(log.session(session).ended_ms for session in sessions)
    assert len(log.browse("q", limit=1_000)) == 403
    assert log.table("ack_due") == {}
    assert log.replay().digest() == log.digest()


@story()
async def test_a_hanging_consumer_is_ended_without_any_timer_deciding(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await txq.declare("jobs", ack_timeout_ms=2_000)
    assert (await txq.depth("jobs")).ack_timeout_ms == 2_000
    await cluster.fill("jobs", "x", "y")
    session = await cluster.txq("core2").session()
    assert bodies(await session.get("jobs")) == ["x"]
    waits = asyncio.ensure_future(session.get("a", wait_s=None))
    other = await cluster.txq("core3").session()
    taken = asyncio.ensure_future(other.get("jobs", 2, wait_s=None))
    assert bodies(await taken) == ["y"]
    await other.accept(*(await taken))
    with pytest.raises(SessionEnded) as caught:
        await waits
    assert caught.value.cause == "ack_timeout"
    assert "message 1 of 'jobs'" in str(caught.value)
    assert "ack_timeout_ms of 2000" in str(caught.value)
    [again] = await other.get("jobs", wait_s=5.0)
    assert (again.body, again.deliveries) == (b"x", 2)
    await other.accept(again)
    assert cluster.txq("core2").counters["sessions_timed_out"] == 1
    await asyncio.sleep(10)
    assert not other.ended


@story(plugin=FormerTxQueue)
async def test_below_format_2_an_ack_timeout_is_refused(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    with pytest.raises(UnknownCommand):
        await txq.declare("jobs", ack_timeout_ms=2_000)
    await txq.declare("jobs", ack_timeout_ms=0)
    session = await txq.session()
    with pytest.raises(UnknownCommand):
        await txq.end_session(session.id)


@doors()
async def test_an_ack_timeout_over_http(stand: Stand) -> None:
    done = await stand.good("PUT", "queues/jobs", {"ack_timeout_ms": 60_000})
    assert done["created"]
    assert (await stand.good("GET", "queues/jobs"))["ack_timeout_ms"] == 60_000
    answer = await stand.ask("PUT", "queues/jobs", {"ack_timeout_ms": 5, "change": True})
    assert reason(answer) == (400, "txqueue_bad_ack_timeout")

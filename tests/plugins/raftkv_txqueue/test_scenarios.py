"""The acceptance scenarios of queue transactions (TX) on real nodes, by their numbers.

They come from a broker with one primary, whose backups follow by subscriptions, and whose clients
are connected to the primary. What is another thing here, on one linearizable log:

- A session belongs to the node on which it was opened, whichever node leads. So "the primary dies"
  is two stories: the leader dies and the session's node lives (nothing happens to the transaction),
  or the session's node dies (its transaction is rolled back).
- Nothing is replicated after the fact: a node that is at an index has all whole transactions up to
  there, so looking at "every node" is looking at equal indexes (`cluster.everywhere`).
- Messages that a transaction has accepted go back to the session that held them when it is rolled
  back, as AMQP has it; they are available again when that session releases them, or ends.

Scenario 9 is in test_soak.py, 10 to 21 in test_dtx_scenarios.py, killed processes in
test_killed_leader.py.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from raftkv.config import Limits
from raftkv_txqueue.commands import AcceptOf, Commit, Message, PublishTo, Stage, Vote
from raftkv_txqueue.errors import TransactionAborted, TransactionUnknown
from raftkv_txqueue.observers import PrepareFailed
from raftkv_txqueue.refusals import NotYourSession, SessionEnded
from raftkv_txqueue.session import Session
from raftkv_txqueue.xa import XaStatus
from tests.plugins.raftkv_txqueue.cluster import (
    DEADLINE_S,
    Shared,
    TxCluster,
    bodies,
    body_of,
    both,
    new_xid,
    play,
    take,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHARED = Shared()
XYZ = ["x", "y", "z"]
# Long enough that the node has tried, short enough to wait for.
SHORT_S = 1.0


@pytest.fixture(scope="module", autouse=True)
def _the_cluster() -> Iterator[None]:
    """Stories about three plain cores run on one cluster, which is emptied in between."""
    yield
    SHARED.close()


async def swap(cluster: TxCluster, session: Session, *, staged: bool = False) -> None:
    """All of a to b in the session's transaction, with 0, 1, 2 to b outside of it in between.

    `staged`: every operation goes into the log before the commit does.
    """
    taken = await take(session, "a", 3)
    assert bodies(taken) == XYZ
    for number, delivery in enumerate(taken):
        await session.accept(delivery)
        await session.publish("b", delivery.body)
        if staged:
            await session.flush()
        await cluster.put("b", str(number))


async def ab(cluster: TxCluster) -> None:
    await cluster.queue("a", *XYZ)
    await cluster.queue("b")


# --- 1: commit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("staged", [False, True], ids=["one entry", "staged"])
def test_1_commit(staged: bool) -> None:
    """Scenario 1: before the commit nobody sees anything of it, after it everybody everything."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        session = await cluster.txq("core1").session("tx")
        await swap(cluster, session, staged=staged)
        assert await cluster.everywhere("a") == []
        assert await cluster.everywhere("a", everything=True) == XYZ
        assert await cluster.everywhere("b") == ["0", "1", "2"]
        for name in ("core1", "core2"):
            async with cluster.txq(name).session("plain") as other:
                assert await other.get("a", count=10, wait_s=0.0) == ()
        done = await session.commit()
        assert done.txid == session.txid
        assert await cluster.everywhere("a", everything=True) == []
        assert await cluster.everywhere("b") == ["0", "1", "2", *XYZ]
        for name in ("core1", "core2"):
            fate = await cluster.txq(name).outcome(done.txid)
            assert fate.state == "committed"
        await session.close()

    play(body, cores=2)


def test_1_what_a_transaction_enqueued_is_dequeued_without_one() -> None:
    """Scenario 1 (enq_notx_deq): later consumption outside of transactions removes it on both."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        async with cluster.txq("core1").session("tx") as session:
            await swap(cluster, session)
            await session.commit()
        assert await cluster.drained("b", "core2") == ["0", "1", "2", *XYZ]
        assert await cluster.everywhere("a", everything=True) == []
        assert await cluster.everywhere("b", everything=True) == []
        row = cluster.row("b")
        assert (row.depth, row.bytes, row.ready) == (0, 0, 0)

    play(body, cores=2)


def test_1_sessions_of_replicants_are_sessions() -> None:
    """Scenario 1 with the client at a copy that has no vote, and a second one that looks."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        async with cluster.txq("replicant1").session("tx") as session:
            await swap(cluster, session, staged=True)
            assert await cluster.everywhere("b") == ["0", "1", "2"]
            await session.commit()
            assert await cluster.everywhere("b") == ["0", "1", "2", *XYZ]
            await session.accept(*await take(session, "b", 1))
            await session.flush()
            await cluster.restart("replicant1")
            await cluster.clean()
        assert await cluster.everywhere("b") == ["0", "1", "2", *XYZ]
        assert await cluster.drained("b", "replicant2") == ["0", "1", "2", *XYZ]

    play(body, cores=1, replicants=2)


def test_1_who_waits_for_messages_is_woken_by_the_commit() -> None:
    """Scenario 1: consumers of other nodes, who wait all through a change of leaders."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("b")
        leader = await cluster.has_leader()
        one, two = (node.name for node in cluster.cores if node.name != leader)
        consumers = [await cluster.txq(name).session("plain") for name in (one, two)]
        waiting = [asyncio.ensure_future(take(each, "b", 2)) for each in consumers]
        session = await cluster.txq(one).session("tx")
        await session.publish("b", [Message(b"1"), Message(b"2")])
        await session.flush()
        await cluster.new_leader(leader)
        assert not any(each.done() for each in waiting)
        await session.publish("b", [Message(b"3"), Message(b"4")])
        await session.commit(timeout_s=DEADLINE_S)
        got = await asyncio.gather(*waiting)
        assert sorted(text for each in got for text in bodies(each)) == ["1", "2", "3", "4"]
        for consumer, some in zip(consumers, got, strict=True):
            await consumer.accept(*some)
        await cluster.restart(leader)
        assert await cluster.everywhere("b", everything=True) == []

    SHARED.play(body)


def test_1_a_transaction_s_messages_are_contiguous() -> None:
    """Scenario 1: what others publish while it is open does not come between its messages."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("b")
        one = await cluster.txq("core1").session("tx")
        two = await cluster.txq("core2").session("tx")
        for text in "123":
            await one.publish("b", body_of("one" + text))
            await one.flush()
            await two.publish("b", body_of("two" + text))
            await two.flush()
            await cluster.put("b", text)
        await two.commit()
        await one.commit()
        expected = ["1", "2", "3", "two1", "two2", "two3", "one1", "one2", "one3"]
        assert await cluster.everywhere("b") == expected

    play(body, cores=2)


# --- 2: rollback ----------------------------------------------------------------------------------


@pytest.mark.parametrize("staged", [False, True], ids=["one entry", "staged"])
def test_2_rollback(staged: bool) -> None:
    """Scenario 2: a is as it was, in its order; b has what was published outside only."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        session = await cluster.txq("core1").session("tx")
        await swap(cluster, session, staged=staged)
        await session.rollback()
        assert await cluster.everywhere("a", everything=True) == XYZ
        assert await cluster.everywhere("b", everything=True) == ["0", "1", "2"]
        await session.close()
        assert await cluster.everywhere("a") == XYZ
        assert await cluster.everywhere("b") == ["0", "1", "2"]

    play(body, cores=2)


def test_2_messages_come_again_only_when_they_are_released() -> None:
    """Scenario 2: after the rollback the session holds them still; who asks gets nothing."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        session = await cluster.txq("core1").session("tx")
        other = await cluster.txq("core2").session("plain")
        taken = await take(session, "a", 3)
        await session.accept(*taken)
        await session.flush()
        await session.rollback()
        assert await session.get("a", count=10, wait_s=0.0) == ()
        assert await other.get("a", count=10, wait_s=0.0) == ()
        # In another order than they stand in the queue, which does not matter.
        await session.release(taken[2], taken[0])
        got = await other.get("a", count=10, wait_s=DEADLINE_S)
        assert bodies(got) == ["x", "z"]
        assert [each.deliveries for each in got] == [2, 2]
        assert all(each.redelivered for each in got)
        await other.release(*got)
        await session.close()
        assert await cluster.everywhere("a") == XYZ

    play(body, cores=2)


def test_2_what_was_rolled_back_is_never_delivered() -> None:
    """Scenario 2 (test_rollback): not now, not later, not to anybody; the next one counts."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("b")
        session = await cluster.txq("core1").session("tx")
        consumer = await cluster.txq("core2").session("plain")
        waiting = asyncio.ensure_future(take(consumer, "b", 1))
        await session.publish("b", b"never")
        await session.flush()
        await session.rollback()
        await session.publish("b", b"ever")
        await session.commit()
        got = await waiting
        assert bodies(got) == ["ever"]
        await consumer.accept(*got)
        assert await cluster.everywhere("b", everything=True) == []

    play(body, cores=2)


@pytest.mark.parametrize("staged", [False, True], ids=["buffered", "staged"])
def test_2_closing_the_session_rolls_back(staged: bool) -> None:
    """Scenario 2 (test_auto_rollback): what it held is available again, in its place."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        session = await cluster.txq("core1").session("tx")
        await swap(cluster, session, staged=staged)
        txid = session.txid
        await session.close()
        assert await cluster.everywhere("a") == XYZ
        assert await cluster.everywhere("b") == ["0", "1", "2"]
        fate = await cluster.txq("core2").outcome(txid)
        assert fate.state == "rolled back"
        with pytest.raises(TransactionAborted):
            await session.commit(txid)
        with pytest.raises(SessionEnded):
            await session.publish("b", b"late")
        assert await cluster.drained("a", "core2") == XYZ

    play(body, cores=2)


def test_2_committed_accepts_are_not_delivered_again() -> None:
    """Scenario 2 (test_commit): the session that accepted them ends, and they are gone."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        session = await cluster.txq("core1").session("tx")
        taken = await take(session, "a", 3)
        await session.accept(*taken[:2])
        await session.commit()
        await session.close()
        assert await cluster.everywhere("a", everything=True) == ["z"]
        assert await cluster.drained("a", "core2") == ["z"]

    play(body, cores=2)


# --- 3: the leader dies before the commit ---------------------------------------------------------


@pytest.mark.parametrize("staged", [False, True], ids=["buffered", "staged"])
def test_3_the_session_s_life_ends_before_the_commit(staged: bool) -> None:
    """Scenario 3: the leader, where the client is, is given up; its process lives to hear of it.

    All work is discarded everywhere, the client gets Aborted on sync and on commit, and again.
    """

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        leader = await cluster.has_leader()
        session = await cluster.txq(leader).session("tx")
        await swap(cluster, session, staged=staged)
        txid = session.txid
        await cluster.declare_dead(leader)
        with pytest.raises(TransactionAborted):
            await session.flush()
        for again in (None, txid, txid):
            with pytest.raises(TransactionAborted) as told:
                await session.commit(again)
            assert told.value.txid == txid
        with pytest.raises(SessionEnded):
            await session.publish("b", b"late")
        assert await cluster.everywhere("b") == ["0", "1", "2"]
        await cluster.clean()
        assert await cluster.everywhere("a") == XYZ
        fate = await cluster.txq(leader).outcome(txid)
        assert (fate.state, fate.cause) == ("rolled back", "session")
        # The node's next life has sessions of its own.
        async with cluster.txq(leader).session("tx") as again:
            await swap(cluster, again, staged=staged)
            await again.commit()
        assert await cluster.everywhere("b") == ["0", "1", "2", "0", "1", "2", *XYZ]

    SHARED.play(body)


@pytest.mark.parametrize("staged", [False, True], ids=["buffered", "staged"])
def test_3_the_leader_dies_with_the_session(staged: bool) -> None:
    """Scenario 3: the client's node is the leader and is gone; the others discard its work."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        leader = await cluster.has_leader()
        session = await cluster.txq(leader).session("tx")
        await swap_from(cluster, session, leader, staged)
        txid = session.txid
        await cluster.new_leader(leader)
        # Until the node is declared dead nothing is decided, and nothing is seen.
        assert cluster.available("b") == ["0", "1", "2"]
        await cluster.is_down(leader)
        await cluster.clean()
        assert await cluster.everywhere("a") == XYZ
        assert await cluster.everywhere("b") == ["0", "1", "2"]
        for node in cluster.nodes:
            fate = await cluster.txq(node.name).outcome(txid)
            assert (fate.state, fate.cause) == ("rolled back", "session")
        await cluster.start(leader)
        await cluster.wait_ready()
        assert await cluster.everywhere("a") == XYZ

    play(body)


async def swap_from(cluster: TxCluster, session: Session, at: str, staged: bool) -> None:
    """`swap`, with a check that the session is where the test wants it."""
    assert cluster.table("sessions", at)[session.id].node == at
    await swap(cluster, session, staged=staged)


@pytest.mark.parametrize("staged", [False, True], ids=["buffered", "staged"])
def test_3_the_leader_dies_and_the_session_lives(staged: bool) -> None:
    """Scenario 3, as the log has it: a transaction belongs to its session, not to the leader."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        leader = await cluster.has_leader()
        session = await cluster.txq(cluster.follower()).session("tx")
        await swap(cluster, session, staged=staged)
        await cluster.new_leader(leader)
        await session.flush()
        assert await cluster.everywhere("b") == ["0", "1", "2"]
        await session.commit(timeout_s=DEADLINE_S)
        assert await cluster.everywhere("b") == ["0", "1", "2", *XYZ]
        await cluster.restart(leader)
        assert await cluster.everywhere("b") == ["0", "1", "2", *XYZ]
        assert await cluster.everywhere("a", everything=True) == []

    SHARED.play(body)


# --- 4: the leader dies during the commit ---------------------------------------------------------


async def commit_or_unknown(session: Session) -> str:
    """What the caller is told."""
    try:
        await session.commit(timeout_s=DEADLINE_S)
    except TransactionAborted:
        return "aborted"
    except TransactionUnknown:
        return "unknown"
    return "committed"


async def about_to_commit(cluster: TxCluster, at: str, label: str, *, staged: bool) -> Session:
    """A session with a message of "in" accepted, and with messages to "one" and "two"."""
    session = await cluster.txq(at).session("tx")
    await cluster.put("in", label, at=at)
    [taken] = await take(session, "in", 1)
    assert bodies([taken]) == [label]
    await session.accept(taken)
    await session.publish("one", body_of(label))
    if staged:
        await session.flush()
    await session.publish("two", body_of(label))
    return session


def test_4_the_leader_dies_during_commit() -> None:
    """Scenario 4: at points of chance; what clients were told is what all nodes have.

    Sessions of every node commit in one moment, and in it the leader dies. A transaction has
    messages in two queues and an accepted one in a third: all of it is there, or none.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def body(cluster: TxCluster) -> None:
        for queue in ("in", "one", "two"):
            await cluster.queue(queue)
        verdicts: dict[str, str] = {}
        for round_ in range(4):
            leader = await cluster.has_leader()
            sessions = {
                label: await about_to_commit(cluster, name, label, staged=bool(number))
                for name in list(cluster.running)
                for number in range(3)
                for label in [f"{round_}/{name}/{number}"]
            }
            told = {
                label: asyncio.ensure_future(commit_or_unknown(session))
                for label, session in sessions.items()
                if leader not in label
            }
            lost = [
                asyncio.ensure_future(session.commit(timeout_s=DEADLINE_S))
                for label, session in sessions.items()
                if leader in label
            ]
            for _ in range(rng.randrange(8)):
                await asyncio.sleep(0)
            await cluster.kill(leader)
            for each in lost:
                each.cancel()
            await both(*lost)
            for label, telling in told.items():
                verdicts[label] = await telling
            await cluster.start(leader)
            await cluster.wait_ready(DEADLINE_S)
            await cluster.clean()
            here = cluster.txq(leader)
            for label, session in sessions.items():
                state = (await here.outcome(session.txid, timeout_s=DEADLINE_S)).state
                if label in told:
                    expected = {"aborted": "rolled back", "unknown": state}
                    assert state == expected.get(verdicts[label], "committed")
                # An unstaged one of which the log never heard is unknown to it: not committed.
                verdicts[label] = "committed" if state == "committed" else "rolled back"
                if label in told:
                    await session.close()
            left = await cluster.everywhere("in")
            assert left == [label for label in sessions if verdicts[label] != "committed"]
            await cluster.drained("in")
        one = await cluster.everywhere("one")
        assert one == await cluster.everywhere("two")
        committed = [label for label, verdict in verdicts.items() if verdict == "committed"]
        assert sorted(one) == sorted(committed)
        print(f"{len(committed)} of {len(verdicts)} committed")

    play(body, node_down_ms=1_500)


def test_4_unknown_is_told_while_nobody_can_know_and_the_outcome_afterwards() -> None:
    """Scenario 4 (test_tx_unknown_failover): without a majority; then it is definite, and stays.

    The same id again: the same answer, and nothing is executed twice.
    """

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        await cluster.queue("c")
        session = await cluster.txq("core1").session("tx")
        taken = await take(session, "a", 3)
        await session.accept(*taken)
        await session.publish("b", [Message(each.body) for each in taken])
        txid = session.txid
        await cluster.kill("core2")
        await cluster.kill("core3")
        with pytest.raises(TransactionUnknown) as told:
            await session.commit(timeout_s=SHORT_S)
        assert told.value.txid == txid
        for name in ("core2", "core3"):
            await cluster.start(name)
        await cluster.wait_ready(DEADLINE_S)
        number, counter = map(int, txid.split("."))
        operations = (
            AcceptOf("a", tuple(each.seq for each in taken)),
            PublishTo("b", tuple(Message(each.body) for each in taken)),
        )
        first = await cluster.raw("core1", Commit(number, counter, operations))
        again = await cluster.raw("core1", Commit(number, counter, operations))
        assert (first.verdict, first.index) == (again.verdict, again.index)
        assert first.verdict == "committed"
        for name in ("core1", "core2", "core3"):
            fate = await cluster.txq(name).outcome(txid, timeout_s=DEADLINE_S)
            assert fate.state == "committed"
        assert await cluster.everywhere("a", everything=True) == []
        assert await cluster.everywhere("b", everything=True) == XYZ
        # The session goes on: the next one is another transaction.
        await session.publish("c", b"next")
        done = await session.commit(timeout_s=DEADLINE_S)
        assert done.txid != txid
        assert await cluster.everywhere("c") == ["next"]
        assert (await cluster.txq("core2").outcome(txid)).state == "committed"

    play(body, node_down_ms=20_000)


def test_4_a_rollback_is_definite_too() -> None:
    """Scenario 4: a commit that comes after the verdict changes nothing."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("b")
        session = await cluster.txq("core1").session("tx")
        await session.publish("b", b"x")
        await session.flush()
        txid = session.txid
        await session.rollback()
        number, counter = map(int, txid.split("."))
        for _ in range(2):
            late = await cluster.raw(
                "core1", Commit(number, counter, (PublishTo("b", (Message(b"x"),)),))
            )
            assert late.verdict == "rolled back"
        assert (await cluster.txq("core2").outcome(txid)).state == "rolled back"
        assert await cluster.everywhere("b", everything=True) == []

    SHARED.play(body)


def test_4_outcomes_outlive_their_sessions_and_a_restart_of_the_cluster() -> None:
    """Scenario 4, [P]: asked on any node, within the retention time; after it: forgotten."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("b")
        session = await cluster.txq("core1").session("tx")
        await session.publish("b", b"x")
        committed = (await session.commit()).txid
        await session.publish("b", b"y")
        await session.flush()
        rolled_back = session.txid
        await session.rollback("changed my mind")
        await session.publish("b", b"z")
        await session.flush()
        lost = session.txid
        await cluster.all_restart()

        async def states() -> set[tuple[str, ...]]:
            found = set()
            for node in cluster.nodes:
                api = cluster.txq(node.name)
                asked = [await api.outcome(txid) for txid in (committed, rolled_back, lost)]
                found.add(tuple(fate.state for fate in asked))
            return found

        assert await states() == {("committed", "rolled back", "rolled back")}
        fate = await cluster.txq("core3").outcome(rolled_back)
        assert fate.reason == "changed my mind"
        assert await cluster.everywhere("b", everything=True) == ["x"]
        await cluster.configure(outcome_retention_ms=1_000)
        await until(lambda: session.id not in cluster.table("sessions"), "it is forgotten")
        await cluster.converge(DEADLINE_S)
        assert await states() == {("forgotten", "forgotten", "forgotten")}
        assert await cluster.everywhere("b", everything=True) == ["x"]

    play(body)


# --- 5: nodes leave and join ----------------------------------------------------------------------


@pytest.mark.parametrize("who", ["follower", "leader", "replicant"])
def test_5_a_node_leaves_between_two_sends(who: str) -> None:
    """Scenario 5: a quorum lives, so the commit succeeds, with a and b on the others."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("q")
        leader = await cluster.has_leader()
        followers = [node.name for node in cluster.cores if node.name != leader]
        leaves = {"follower": followers[1], "leader": leader, "replicant": "replicant1"}[who]
        session = await cluster.txq(followers[0]).session("tx")
        await session.publish("q", b"a")
        await session.flush()
        await cluster.kill(leaves)
        await session.publish("q", b"b")
        await session.commit(timeout_s=DEADLINE_S)
        assert await cluster.everywhere("q") == ["a", "b"]
        await cluster.restart(leaves)
        assert await cluster.everywhere("q") == ["a", "b"]

    play(body, replicants=1)


@pytest.mark.parametrize("who", ["follower", "replicant"])
def test_5_a_node_is_restarted_during_a_transaction(who: str) -> None:
    """Scenario 5 (test_tx_join_leave): it ends with a, b, foo like the others, without residue."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("q")
        leader = await cluster.has_leader()
        followers = [node.name for node in cluster.cores if node.name != leader]
        back = followers[1] if who == "follower" else "replicant1"
        session = await cluster.txq(followers[0]).session("tx")
        await session.publish("q", b"a")
        await session.flush()
        await cluster.kill(back)
        await session.publish("q", b"b")
        await session.flush()
        await cluster.start(back)
        await cluster.wait_ready(DEADLINE_S)
        assert cluster.stored("q", back) == []
        await session.commit(timeout_s=DEADLINE_S)
        await cluster.put("q", "foo", at=back)
        assert await cluster.everywhere("q") == ["a", "b", "foo"]
        await cluster.clean()
        assert all(cluster.residue(node.name) == {} for node in cluster.nodes)

    play(body, replicants=1)


def test_5_a_node_that_joins_never_has_a_part_of_a_transaction() -> None:
    """Scenario 5: it comes with an empty directory while transactions run (requirement 1)."""

    async def body(cluster: TxCluster) -> None:
        for queue in ("one", "two"):
            await cluster.queue(queue)
        stop = False
        done: list[str] = []

        async def write(at: str) -> None:
            async with cluster.txq(at).session("tx") as session:
                while not stop:
                    label = f"{at}/{len(done)}"
                    await session.publish("one", body_of(label))
                    await session.flush()
                    await session.publish("two", body_of(label))
                    await session.commit(timeout_s=DEADLINE_S)
                    done.append(label)

        writing = [asyncio.ensure_future(write(name)) for name in ("core1", "core2")]
        await until(lambda: len(done) > 40, "the load is on")
        node = await cluster.start_new_core("core4")
        looks = 0

        def look(index: int, changes: object) -> None:
            nonlocal looks
            looks += 1
            view = node.machine.view("txqueue")
            rows = view.table("queues")
            if "two" in rows:
                one, two = rows["one"], rows["two"]
                assert (one.depth, one.next) == (two.depth, two.next), index

        ended = node.machine.subscribe(look, {"txqueue"})
        await cluster.nodes[0].membership.add("core4")
        await until(lambda: "two" in cluster.table("queues", "core4"), "it has something")
        await node.wait_ready(DEADLINE_S)
        assert cluster.stored("one", "core4") == cluster.stored("two", "core4")
        before = len(done)
        await until(lambda: len(done) > before + 40, "the load goes on")
        stop = True
        await asyncio.gather(*writing)
        ended()
        assert looks > 0
        assert sorted(await cluster.everywhere("one")) == sorted(done)
        assert await cluster.everywhere("two") == await cluster.everywhere("one")

    play(body)


def test_5_a_node_that_joins_by_a_snapshot_has_it_all() -> None:
    """Scenario 5: what is prepared, held and committed comes in a snapshot, without the entries."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("a", *XYZ)
        await cluster.queue("b")
        xid = new_xid("prepared")
        branch = await cluster.txq("core2").session("dtx")
        await branch.start(xid)
        await branch.publish("b", b"promised")
        await branch.accept(*await take(branch, "a", 1))
        await branch.end(xid)
        assert await cluster.txq("core1").dtx.prepare(xid) == XaStatus.OK
        session = await cluster.txq("core1").session("tx")
        await session.accept(*await take(session, "a", 1))
        await session.publish("b", b"open")
        await session.flush()
        for number in range(40):
            async with cluster.txq("core3").session("tx") as other:
                await other.publish("b", body_of(str(number)))
                await other.commit()
        written = await cluster.converge(DEADLINE_S)
        while min(node.status().snapshot_index or 0 for node in cluster.nodes) < written:
            # Each node writes its own when twenty more entries are applied: all will get there.
            await cluster.nodes[0].kv.put(b"filler", b"")
        joined = await cluster.start_new_core("core4")
        indexes: list[int] = []
        joined.machine.subscribe(lambda index, changes: indexes.append(index), {"txqueue"})
        await cluster.nodes[0].membership.add("core4")
        await joined.wait_ready(DEADLINE_S)
        numbers = [str(number) for number in range(40)]
        assert await cluster.everywhere("b") == numbers
        assert cluster.available("a", "core4") == ["z"]
        assert await cluster.txq("core4").dtx.commit(xid) == XaStatus.OK
        await session.commit()
        assert await cluster.everywhere("b") == [*numbers, "promised", "open"]
        assert await cluster.everywhere("a", everything=True) == ["z"]
        # It has not been told of the early entries one by one.
        assert min(indexes) >= written

    play(body, limits=Limits(snapshot_log_entries=20, log_tail_entries=5))


# --- 6: no other nodes ----------------------------------------------------------------------------


@pytest.mark.parametrize("observed", [False, True], ids=["alone", "with a store"])
def test_6_no_other_nodes(observed: bool) -> None:
    """Scenario 6 (test_tx_no_backups): commit and rollback work in a cluster of one."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        if observed:
            await cluster.store("core1")
        async with cluster.txq("core1").session("tx") as session:
            await swap(cluster, session)
            await session.commit()
            assert await cluster.everywhere("b") == ["0", "1", "2", *XYZ]
            taken = await take(session, "b", 6)
            await session.accept(*taken)
            await session.publish("a", b"never")
            await session.flush()
            await session.rollback()
        assert await cluster.everywhere("a", everything=True) == []
        assert await cluster.everywhere("b") == ["0", "1", "2", *XYZ]
        await cluster.restart("core1")
        assert await cluster.everywhere("b") == ["0", "1", "2", *XYZ]

    play(body, cores=1)


# --- 7: participants ------------------------------------------------------------------------------


@pytest.mark.parametrize("staged", [False, True], ids=["one entry", "staged"])
def test_7_every_participant_follows_the_transaction(staged: bool) -> None:
    """The seed's phases, in their order, on each node that takes part."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        stores = await cluster.store("core1", "core2", "core3")
        session = await cluster.txq("core1").session("tx")
        await swap(cluster, session, staged=staged)
        done = await session.commit(timeout_s=DEADLINE_S)
        await session.publish("b", b"never")
        await session.flush()
        rolled_back = session.txid
        await session.rollback()
        await until(
            lambda: all(each.of(rolled_back)[-1:] == ["deleted"] for each in stores),
            lambda: [each.told for each in stores],
        )
        cause = (await cluster.txq("core3").outcome(rolled_back)).cause
        events = [
            event
            for number, text in enumerate(XYZ)
            for event in (f"accept a {number + 1}", f"publish b {text}")
        ]
        for store in stores:
            assert store.of(done.txid) == [*events, "closed", "prepared", "commit", "deleted"]
            assert sorted(store.participants[done.txid]) == ["core1", "core2", "core3"]
            assert store.of(rolled_back) == ["publish b never", f"rollback {cause}", "deleted"]
        assert await cluster.everywhere("b") == ["0", "1", "2", *XYZ]

    SHARED.play(body)


@pytest.mark.parametrize("staged", [False, True], ids=["one entry", "staged"])
@pytest.mark.parametrize(
    "error", [PrepareFailed("no space left"), RuntimeError("a defect")], ids=str
)
def test_7_a_participant_cannot_prepare(staged: bool, error: Exception) -> None:
    """Scenario 7 (test_tx_backup_fail): nothing is visible anywhere, the client gets Aborted."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        stores = await cluster.store("core1", "core2", "core3")

        async def fails(name: str) -> None:
            raise error

        cluster.stores["core2"].script = fails
        session = await cluster.txq("core1").session("tx")
        await swap(cluster, session, staged=staged)
        with pytest.raises(TransactionAborted) as told:
            await session.commit(timeout_s=DEADLINE_S)
        assert told.value.cause == "vote"
        assert told.value.reason.startswith("core2: ")
        if isinstance(error, PrepareFailed):
            assert "no space left" in told.value.reason
        txid = told.value.txid
        assert await cluster.everywhere("a", everything=True) == XYZ
        assert await cluster.everywhere("b", everything=True) == ["0", "1", "2"]
        fate = await cluster.txq("core3").outcome(txid)
        assert (fate.state, fate.cause) == ("rolled back", "vote")
        await until(
            lambda: all(each.of(txid)[-1:] == ["deleted"] for each in stores),
            lambda: [each.told for each in stores],
        )
        for store in stores:
            assert "rollback vote" in store.of(txid)
            assert "commit" not in store.of(txid)
        await session.close()
        assert await cluster.everywhere("a") == XYZ

    # That an observer is broken is told in the log of its node, without what it said.
    play(body, alarms=0 if isinstance(error, PrepareFailed) else 1)


def test_7_a_participant_that_is_late_means_rollback() -> None:
    """Scenario 7: it does not answer within prepare_timeout_ms; its yes comes after the verdict."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        await cluster.store("core1", "core2")
        release = cluster.hold(Vote, "core2")
        session = await cluster.txq("core1").session("tx")
        await swap(cluster, session)
        with pytest.raises(TransactionAborted) as told:
            await session.commit(timeout_s=DEADLINE_S)
        assert told.value.cause == "late"
        release()
        assert await cluster.everywhere("b") == ["0", "1", "2"]
        # The next one finds it in time.
        await session.publish("b", b"next")
        await session.commit(timeout_s=DEADLINE_S)
        assert await cluster.everywhere("b") == ["0", "1", "2", "next"]
        assert (await cluster.txq("core1").outcome(told.value.txid)).state == "rolled back"

    play(body, prepare_timeout_ms=1_000)


def test_7_a_participant_that_leaves_means_rollback() -> None:
    """Scenario 7: it disconnects while it prepares ([U]: that counts as a failure)."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        leader = await cluster.has_leader()
        leaves = cluster.follower()
        await cluster.store(leader, leaves)
        session = await cluster.txq(leader).session("tx")
        await swap(cluster, session)
        release = cluster.hold(Vote, leaves)
        committing = asyncio.ensure_future(session.commit(timeout_s=DEADLINE_S))
        await cluster.is_held(Vote, leaves)
        await cluster.kill(leaves)
        release()
        with pytest.raises(TransactionAborted) as told:
            await committing
        assert told.value.cause == "participant"
        assert await cluster.everywhere("b") == ["0", "1", "2"]
        # Who is not there is no participant of the next one.
        await session.publish("b", b"next")
        await session.commit(timeout_s=DEADLINE_S)
        await cluster.restart(leaves)
        assert await cluster.everywhere("b") == ["0", "1", "2", "next"]

    play(body, prepare_timeout_ms=60_000)


def test_7_a_participant_that_merely_lags_does_not() -> None:
    """Scenario 7: it answers late, but in time: the commit waits for it."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        await cluster.store("core1", "core2", "core3")
        release = cluster.hold(Vote, "core2", "core3")
        session = await cluster.txq("core1").session("tx")
        await swap(cluster, session)
        committing = asyncio.ensure_future(session.commit(timeout_s=DEADLINE_S))
        await cluster.is_held(Vote, "core2")
        await cluster.is_held(Vote, "core3")
        await cluster.put("b", "3")
        assert not committing.done()
        assert (await cluster.txq("core2").outcome(session.txid)).state == "preparing"
        assert await cluster.everywhere("b") == ["0", "1", "2", "3"]
        release()
        await committing
        assert await cluster.everywhere("b") == ["0", "1", "2", "3", *XYZ]

    play(body, prepare_timeout_ms=60_000)


def test_7_who_comes_after_the_close_is_not_in_the_transaction() -> None:
    """[S]: closing fixes the participants; a later one sees the result like everybody."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        await cluster.store("core1")
        release = cluster.hold(Vote, "core1")
        session = await cluster.txq("core1").session("tx")
        await swap(cluster, session)
        committing = asyncio.ensure_future(session.commit(timeout_s=DEADLINE_S))
        await cluster.is_held(Vote, "core1")
        [late] = await cluster.store("core2")
        release()
        done = await committing
        assert cluster.stores["core1"].participants[done.txid] == ("core1",)
        assert "prepared" not in late.of(done.txid)
        assert await cluster.everywhere("b") == ["0", "1", "2", *XYZ]

    play(body, prepare_timeout_ms=60_000)


def test_7_a_session_that_ends_does_not_stop_a_commit_that_was_asked_for() -> None:
    """The session's node dies while the votes are asked for: the outcome says what became of it."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        leader = await cluster.has_leader()
        others = [node.name for node in cluster.cores if node.name != leader]
        await cluster.store(others[1])
        release = cluster.hold(Vote, others[1])
        session = await cluster.txq(others[0]).session("tx")
        await swap(cluster, session)
        txid = session.txid
        committing = asyncio.ensure_future(session.commit(timeout_s=DEADLINE_S))
        await cluster.is_held(Vote, others[1])
        await cluster.kill(others[0])
        await both(committing)
        await cluster.is_down(others[0])
        assert (await cluster.txq(leader).outcome(txid)).state == "preparing"
        release()
        await cluster.clean()
        assert (await cluster.txq(leader).outcome(txid)).state == "committed"
        assert await cluster.everywhere("b") == ["0", "1", "2", *XYZ]

    play(body, prepare_timeout_ms=60_000)


# --- 8: many blocked commits ----------------------------------------------------------------------


def test_8_many_blocked_commits() -> None:
    """Scenario 8 (test_tx_block_threads): ten commits, a slow store with two threads.

    While all ten wait for it the node serves everybody else; then all ten finish.
    """

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("q")
        await cluster.queue("other")
        [store] = await cluster.store("core1")
        slow = threading.Event()
        busy = threading.Semaphore(0)
        threads = ThreadPoolExecutor(2)

        def write() -> None:
            busy.release()
            assert slow.wait(DEADLINE_S)

        async def prepare(name: str) -> None:
            await asyncio.get_running_loop().run_in_executor(threads, write)

        store.script = prepare
        sessions = [await cluster.txq("core1").session("tx") for _ in range(10)]
        for number, session in enumerate(sessions):
            await session.publish("q", body_of(str(number)))
        committing = [
            asyncio.ensure_future(session.commit(timeout_s=DEADLINE_S)) for session in sessions
        ]
        await until(lambda: store.preparing == 10, lambda: f"{store.preparing} prepare")
        # Both threads are taken; whoever has nothing to do with the store is served.
        assert busy.acquire(timeout=DEADLINE_S)
        assert busy.acquire(timeout=DEADLINE_S)
        await cluster.put("other", *(str(number) for number in range(20)))
        assert await cluster.drained("other", "core1") == [str(number) for number in range(20)]
        assert not any(each.done() for each in committing)
        assert await cluster.everywhere("q") == []
        slow.set()
        done = await asyncio.gather(*committing)
        assert len({each.txid for each in done}) == 10
        threads.shutdown()
        numbers = await cluster.everywhere("q")
        assert sorted(numbers) == [str(number) for number in range(10)]

    play(body, prepare_timeout_ms=60_000)


def test_8_one_slow_transaction_holds_no_other_up() -> None:
    """Scenario 8: its store is asked for many at once; one that hangs is alone with it."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("q")
        [store] = await cluster.store("core2")
        gate = asyncio.Event()
        slow = await cluster.txq("core1").session("tx")
        await slow.publish("q", b"slow")
        await slow.flush()
        hangs = slow.txid

        async def prepare(name: str) -> None:
            if name == hangs:
                await gate.wait()

        store.script = prepare
        hanging = asyncio.ensure_future(slow.commit(timeout_s=DEADLINE_S))
        await until(lambda: store.preparing == 1, "it hangs")
        for number in range(5):
            async with cluster.txq("core3").session("tx") as session:
                await session.publish("q", body_of(str(number)))
                await session.commit(timeout_s=DEADLINE_S)
        assert await cluster.everywhere("q") == ["0", "1", "2", "3", "4"]
        assert not hanging.done()
        gate.set()
        await hanging
        assert await cluster.everywhere("q") == ["0", "1", "2", "3", "4", "slow"]

    play(body, prepare_timeout_ms=60_000)


# --- limits and isolation, where they meet transactions -------------------------------------------


def test_a_commit_without_room_is_rolled_back_whole() -> None:
    """One of two queues is full: nothing is in the other one either; its accepts are held still."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        await cluster.queue("full", "f", depth_max=2)
        session = await cluster.txq("core1").session("tx")
        taken = await take(session, "a", 3)
        await session.accept(*taken)
        await session.publish("b", b"b1")
        await session.publish("full", [Message(b"f1"), Message(b"f2")])
        with pytest.raises(TransactionAborted) as told:
            await session.commit()
        assert told.value.cause == "txqueue_queue_full"
        assert await cluster.everywhere("b", everything=True) == []
        assert await cluster.everywhere("full") == ["f"]
        # They are the session's still, and the next transaction may accept them.
        await session.accept(*taken)
        await session.publish("full", b"f1")
        await session.commit()
        assert await cluster.everywhere("a", everything=True) == []
        assert await cluster.everywhere("full") == ["f", "f1"]

    SHARED.play(body)


def test_two_transactions_cannot_accept_one_message() -> None:
    """Requirement 3: acquired is acquired; a session cannot accept what another one holds."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        one = await cluster.txq("core1").session("tx")
        taken = await take(one, "a", 3)
        two = await cluster.txq("core2").session("tx")
        assert await two.get("a", count=3, wait_s=0.0) == ()
        thief = AcceptOf("a", (taken[0].seq,))
        refused = await cluster.raw("core2", Commit(two.id, 1, (thief,)))
        assert refused.verdict == "rolled back"
        await one.accept(*taken)
        await one.commit()
        assert await cluster.everywhere("a", everything=True) == []

    SHARED.play(body)


def test_an_open_transaction_is_rolled_back_at_its_time_out() -> None:
    """It holds its messages no longer than transaction_timeout_ms; the session lives on."""

    async def body(cluster: TxCluster) -> None:
        await ab(cluster)
        session = await cluster.txq("core1").session("tx")
        taken = await take(session, "a", 3)
        await session.accept(*taken)
        await session.flush()
        txid = session.txid
        await until(lambda: not cluster.table("transactions"), "it is rolled back")
        fate = await cluster.txq("core2").outcome(txid)
        assert (fate.state, fate.cause) == ("rolled back", "timeout")
        with pytest.raises(TransactionAborted) as told:
            await session.commit()
        assert (told.value.txid, told.value.cause) == (txid, "timeout")
        await session.rollback()
        await session.accept(*taken)
        await session.commit()
        assert await cluster.everywhere("a", everything=True) == []

    play(body, transaction_timeout_ms=1_000)


def test_stage_and_commit_of_a_foreign_session_are_refused() -> None:
    """A session is its node's: no other one can speak in it, whatever it knows of it."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("b")
        session = await cluster.txq("core1").session("tx")
        await session.publish("b", b"mine")
        await session.flush()
        theirs = (PublishTo("b", (Message(b"theirs"),)),)
        for command in (Stage(session.id, 1, theirs), Commit(session.id, 1, theirs)):
            with pytest.raises(NotYourSession):
                await cluster.raw("core2", command)
        await session.commit()
        assert await cluster.everywhere("b") == ["mine"]

    SHARED.play(body)

"""What the leader does unasked, and that it does nothing else: sweeping, deadlines, leadership."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftkv.errors import Stopped
from raftkv_txqueue import TransactionAborted, TransactionObserver, XaStatus, Xid
from raftkv_txqueue.service import first_due_ms, has_gone_participant, has_work
from tests.plugins.raftkv_txqueue.fakes import Cluster, bodies, messages, story, tag_of, until

XID = Xid(1, b"g", b"b")


async def branch(cluster: Cluster, node: str = "core1", *, timeout_s: float | None = None) -> None:
    """A branch with one message for queue a, ended."""
    session = await cluster.txq(node).session("dtx")
    await session.start(XID, timeout_s=timeout_s)
    await session.publish("a", b"x")
    await session.end(XID)
    await session.close()


# --- idle -----------------------------------------------------------------------------------------


@story()
async def test_an_idle_cluster_proposes_nothing(cluster: Cluster) -> None:
    """Also with a session, messages held, waiting consumers and a prepared branch."""
    txq = cluster.txq("core1")
    cluster.configure(outcome_retention_ms=1_000)
    await branch(cluster)
    await txq.dtx.prepare(XID)
    await cluster.fill("a", "y")
    session = await txq.session()
    assert bodies(await session.get("a")) == ["y"]
    waits = asyncio.ensure_future(session.get("b", wait_s=50_000))
    await asyncio.sleep(60)
    length = len(cluster.log)
    await asyncio.sleep(20_000)
    assert len(cluster.log) == length
    assert not waits.done()
    await cluster.fill("b", "z")
    assert bodies(await waits) == ["z"]
    assert len(await txq.dtx.recover()) == 1


@story()
async def test_followers_propose_no_sweep(cluster: Cluster) -> None:
    session = await cluster.txq("core2").session()
    await cluster.fill("a", "x", "y")
    await session.get("a", count=2)
    cluster.kill("core2")
    cluster.declare_dead("core2")
    await until(lambda: cluster.bodies("core1", "a") == ["x", "y"])
    assert cluster.nodes["core1"].proposals.count("sweep") >= 1
    assert cluster.nodes["core3"].proposals.count("sweep") == 0
    counters = cluster.txq("core1").counters
    await until(lambda: counters["swept"] >= 2)
    assert counters["sweeps"] == cluster.nodes["core1"].proposals.count("sweep")


# --- work in tables -------------------------------------------------------------------------------


@story()
async def test_what_a_dead_node_held_comes_back_in_order(cluster: Cluster) -> None:
    names = [str(n) for n in range(1_500)]
    for start in range(0, 1_500, 500):
        await cluster.fill("a", *names[start : start + 500])
    session = await cluster.txq("core2").session()
    held = await session.get("a", count=1_000)
    held += await session.get("a", count=400)
    assert len(held) == 1_400
    cluster.kill("core2")
    assert len(cluster.bodies("core1", "a")) == 100
    cluster.declare_dead("core2")
    await until(lambda: len(cluster.bodies("core1", "a")) == 1_000)
    await until(lambda: not any(len(cluster.table(name)) for name in ("locks", "ended_nodes")))
    again = await cluster.txq("core1").session()
    got = bodies(await again.get("a", count=1_000)) + bodies(await again.get("a", count=1_000))
    assert got == names


@story()
async def test_rows_of_large_transactions_are_moved(cluster: Cluster) -> None:
    session = await cluster.txq("core2").session("tx")
    for start in range(0, 3_000, 1_000):
        await session.publish("a", messages(*(str(n) for n in range(start, start + 1_000))))
    await session.commit(timeout_s=30)
    assert (await cluster.txq("core3").depth("a")).ready == 3_000
    await until(lambda: not cluster.table("unfolding"))
    assert not cluster.table("staged")
    assert not cluster.table("spans")
    assert len(cluster.table("messages")) == 3_000


@story()
async def test_a_new_leader_goes_on(cluster: Cluster) -> None:
    deaf = ["core1", "core3"]
    cluster.filter = lambda node, envelope: node.name not in deaf or tag_of(envelope) != "sweep"
    session = await cluster.txq("core2").session()
    await cluster.fill("a", *(str(n) for n in range(500)))
    await session.get("a", count=500)
    cluster.kill("core2")
    cluster.declare_dead("core2")
    await asyncio.sleep(3)
    assert cluster.nodes["core1"].proposals.count("sweep") >= 1
    assert has_work(cluster.witness.view("txqueue"))
    cluster.lead("core3")
    # The old one has noticed: it stops asking, although there is work.
    asked = cluster.nodes["core1"].proposals.count("sweep")
    await asyncio.sleep(60)
    assert cluster.nodes["core1"].proposals.count("sweep") <= asked + 1
    assert has_work(cluster.witness.view("txqueue"))
    deaf.clear()
    await until(lambda: not has_work(cluster.witness.view("txqueue")))


@story()
async def test_rows_of_a_deleted_queue_go(cluster: Cluster) -> None:
    await cluster.fill("a", *(str(n) for n in range(900)))
    txq = cluster.txq("core1")
    await txq.delete("a")
    await txq.declare("a")
    assert (await txq.depth("a")).depth == 0
    await until(lambda: not cluster.table("messages") and not cluster.table("dropped"))


# --- deadlines ------------------------------------------------------------------------------------


@story()
async def test_an_unprepared_branch_expires_in_time(cluster: Cluster) -> None:
    loop = asyncio.get_running_loop()
    await branch(cluster, timeout_s=2)
    began = loop.time()
    await until(lambda: not cluster.table("staged"))
    assert loop.time() - began == pytest.approx(2, abs=0.2)
    assert await cluster.txq("core2").dtx.rollback(XID) is XaStatus.RBTIMEOUT


@story(dtx_timeout_ms=3_000)
async def test_a_deadline_that_is_set_earlier_counts(cluster: Cluster) -> None:
    loop = asyncio.get_running_loop()
    await branch(cluster, timeout_s=1_000)
    await asyncio.sleep(5)
    assert cluster.proposals("sweep") == 0
    assert await cluster.txq("core2").dtx.set_timeout(XID, 7) is XaStatus.OK
    began = loop.time()
    await until(lambda: not cluster.table("staged"))
    assert 0.5 < loop.time() - began < 7.5


@story(dtx_timeout_ms=2_000)
async def test_a_prepared_branch_never_expires(cluster: Cluster) -> None:
    await branch(cluster)
    await cluster.txq("core3").dtx.prepare(XID)
    await asyncio.sleep(100)
    assert cluster.proposals("sweep") == 0
    assert await cluster.txq("core1").dtx.commit(XID) is XaStatus.OK
    assert cluster.everywhere("a") == ["x"]


@story(transaction_timeout_ms=2_000)
async def test_a_tx_expires_and_its_messages_come_back(cluster: Cluster) -> None:
    await cluster.fill("a", "x")
    session = await cluster.txq("core2").session("tx")
    got = await session.get("a")
    await session.accept(*got)
    await session.flush()
    await asyncio.sleep(5)
    with pytest.raises(TransactionAborted) as caught:
        await session.commit()
    assert caught.value.cause == "timeout"
    await session.close()
    await until(lambda: cluster.bodies("core1", "a") == ["x"])


@story(outcome_retention_ms=5_000)
async def test_ended_sessions_are_forgotten_in_time(cluster: Cluster) -> None:
    loop = asyncio.get_running_loop()
    session = await cluster.txq("core2").session("tx")
    await session.publish("a", b"x")
    txid = (await session.commit()).txid
    await session.close()
    began = loop.time()
    assert (await cluster.txq("core3").outcome(txid)).state == "committed"
    await until(lambda: not cluster.table("old_sessions"))
    assert loop.time() - began == pytest.approx(5, abs=0.2)
    assert (await cluster.txq("core3").outcome(txid)).state == "forgotten"


@story(outcome_retention_ms=1_000_000)
async def test_a_shorter_retention_counts_at_once(cluster: Cluster) -> None:
    session = await cluster.txq("core2").session("tx")
    await session.close()
    await asyncio.sleep(20)
    assert cluster.table("old_sessions")
    cluster.configure(outcome_retention_ms=10_000)
    await until(lambda: not cluster.table("old_sessions"), 1)


@story()
async def test_too_many_ended_sessions_are_forgotten(cluster: Cluster) -> None:
    for _ in range(5):
        await (await cluster.txq("core2").session()).close()
    cluster.configure(sessions_kept=2)
    await until(lambda: len(cluster.table("old_sessions")) == 2, 1)


@story(dtx_timeout_ms=1_000)
async def test_a_clock_that_is_behind_is_waited_for_without_a_storm(cluster: Cluster) -> None:
    """The leader's estimate may run ahead of the stamps in the log."""
    node = cluster.nodes["core1"]
    ahead = node.now_ms
    node.now_ms = lambda: ahead() + 10_000  # type: ignore[method-assign]
    await branch(cluster, timeout_s=5)
    await asyncio.sleep(4)
    early = cluster.proposals("sweep")
    assert 1 <= early <= 12
    await until(lambda: not cluster.table("staged"), 30)


@story()
async def test_a_cluster_that_refuses_is_asked_again(cluster: Cluster) -> None:
    cluster.nodes["core1"].session, session = 0, cluster.nodes["core1"].session
    await branch(cluster, "core2", timeout_s=1)
    await asyncio.sleep(10)
    assert cluster.table("staged")
    assert 10 < cluster.proposals("sweep") < 60
    cluster.nodes["core1"].session = session
    await until(lambda: not cluster.table("staged"), 1)


# --- participants ---------------------------------------------------------------------------------


class Never(TransactionObserver):
    async def prepare(self) -> None:
        await asyncio.Event().wait()


@story(prepare_timeout_ms=600_000)
async def test_a_gone_participant_is_noticed_by_whoever_leads(cluster: Cluster) -> None:
    cluster.txq("core3").observe(lambda opened: Never())
    await cluster.txq("core3").observing.taking_part(5)
    session = await cluster.txq("core2").session("tx")
    await session.publish("a", b"x")
    waits = asyncio.ensure_future(session.commit(timeout_s=60))
    await until(lambda: len(cluster.table("transactions")) == 1)
    view = cluster.witness.view("txqueue")
    assert not has_gone_participant(view)
    assert first_due_ms(view) is not None
    # The old leader does not get it through; the next one finds it when it comes.
    cluster.filter = lambda node, envelope: node.name != "core1"
    cluster.kill("core3")
    cluster.declare_dead("core3")
    await asyncio.sleep(5)
    assert not waits.done()
    assert has_gone_participant(cluster.witness.view("txqueue"))
    cluster.lead("core2")
    with pytest.raises(TransactionAborted) as caught:
        await waits
    assert caught.value.cause == "participant"
    assert not has_gone_participant(cluster.witness.view("txqueue"))


@story(prepare_timeout_ms=600_000)
async def test_so_is_one_that_a_snapshot_jumped_over(cluster: Cluster) -> None:
    cluster.txq("core3").observe(lambda opened: Never())
    await cluster.txq("core3").observing.taking_part(5)
    session = await cluster.txq("core2").session("tx")
    await session.publish("a", b"x")
    cluster.pause("core1")
    waits = asyncio.ensure_future(session.commit(timeout_s=60))
    await until(lambda: len(cluster.table("transactions")) == 1)
    cluster.kill("core3")
    cluster.declare_dead("core3")
    await asyncio.sleep(1)
    cluster.jump("core1")
    with pytest.raises(TransactionAborted):
        await waits


# --- the node stops -------------------------------------------------------------------------------


@story()
async def test_who_waits_is_told_when_the_node_stops(cluster: Cluster) -> None:
    session = await cluster.txq("core2").session()
    waits = asyncio.ensure_future(session.get("a", wait_s=1_000))
    await asyncio.sleep(1)
    node: Any = cluster.nodes["core2"]
    node.service.on_fault()
    with pytest.raises(Stopped):
        await waits
    await cluster.stop("core2")
    cluster.declare_dead("core2")

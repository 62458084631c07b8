"""Observers of transactions, and this node's part in them: order, votes, gaps."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from raftkv.errors import ReadTimeout, Stopped
from raftkv.plugin import ABSENT, Change
from raftkv.state import Envelope
from raftkv_txqueue import (
    Opened,
    PrepareFailed,
    TransactionAborted,
    TransactionObserver,
    TxQueueOptions,
    XaStatus,
    Xid,
)
from raftkv_txqueue.commands import (
    Commit,
    CommitBranch,
    End,
    Message,
    PublishTo,
    Rollback,
    RollbackBranch,
    Stage,
    StagedAccept,
    StagedMessage,
    Start,
)
from raftkv_txqueue.happened import Happened
from raftkv_txqueue.observers import Observation
from tests.plugins.raftkv_txqueue.fakes import Cluster, messages, story, until
from tests.plugins.raftkv_txqueue.pure import TxLog

XID = Xid(1, b"g", b"b")


class Ear(TransactionObserver):
    """Notes what it hears."""

    def __init__(self, opened: Opened, notes: list[Any], gate: asyncio.Event | None = None) -> None:
        self.txid = opened.txid
        self.notes = notes
        self.gate = gate
        self.fails: BaseException | None = None
        self.cancelled = False
        notes.append(("opened", opened.txid, opened.kind, opened.state))

    def publish(self, queue: str, messages: Any) -> None:
        self.notes.append(("publish", queue, *(one.body.decode() for one in messages)))

    def accept(self, queue: str, seqs: tuple[int, ...]) -> None:
        self.notes.append(("accept", queue, *seqs))

    def closed(self, participants: tuple[str, ...]) -> None:
        self.notes.append(("closed", *participants))

    async def prepare(self) -> None:
        self.notes.append(("prepare",))
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.notes.append(("cancelled",))
                raise
        if self.fails is not None:
            raise self.fails
        self.notes.append(("could",))

    def missed(self) -> None:
        self.notes.append(("missed",))

    def commit(self) -> None:
        self.notes.append(("commit",))

    def rollback(self, cause: str, reason: str) -> None:
        self.notes.append(("rollback", cause, reason))

    def deleted(self) -> None:
        self.notes.append(("deleted",))


class Ears:
    """A node's observers: what they heard, by transaction."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.heard: dict[str, list[Any]] = {}
        self.ears: dict[str, Ear] = {}
        self.gate: asyncio.Event | None = None
        self.fails: BaseException | None = None
        self.remove = cluster.txq(name).observe(self.make)

    def make(self, opened: Opened) -> Ear:
        ear = Ear(opened, self.heard.setdefault(opened.txid, []), self.gate)
        ear.fails = self.fails
        self.ears[opened.txid] = ear
        return ear

    def words(self, txid: str) -> list[str]:
        return [note[0] for note in self.heard[txid]]


async def listening(cluster: Cluster, *names: str) -> list[Ears]:
    """These nodes observe, and all know."""
    found = [Ears(cluster, name) for name in names]
    for name in names:
        await cluster.txq(name).observing.taking_part(5)
    return found


# --- what is heard --------------------------------------------------------------------------------


@story()
async def test_everything_in_order_on_every_node_that_observes(cluster: Cluster) -> None:
    first, second = await listening(cluster, "core1", "core2")
    await cluster.fill("a", "x", "y")
    session = await cluster.txq("core1").session("tx")
    got = await session.get("a", count=2)
    await session.publish("b", messages("1", "2"))
    await session.publish("b", messages("3"))
    await session.accept(*got)
    await session.flush()
    await session.publish("a", messages("4"))
    committed = await session.commit()
    txid = committed.txid
    expected = [
        ("opened", txid, "tx", "active"),
        ("publish", "b", "1", "2", "3"),
        ("accept", "a", 1, 2),
        ("publish", "a", "4"),
        ("closed", "core1", "core2"),
        ("prepare",),
        ("could",),
        ("commit",),
        ("deleted",),
    ]
    assert first.heard[txid] == expected
    await until(lambda: len(second.heard[txid]) == len(expected))
    assert second.heard[txid] == expected
    assert cluster.everywhere("b") == ["1", "2", "3"]


@story()
async def test_a_small_transaction_is_heard_whole(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core3")
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    txid = (await session.commit()).txid
    assert ears.heard[txid][:2] == [("opened", txid, "tx", "preparing"), ("publish", "a", "x")]
    assert ears.words(txid)[2:] == ["closed", "prepare", "could", "commit", "deleted"]


@story()
async def test_a_rollback_says_why(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core2")
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    await session.flush()
    txid = session.txid
    await session.rollback("changed my mind")
    assert ears.words(txid) == ["opened", "publish", "rollback", "deleted"]
    assert ears.heard[txid][2][2] == "changed my mind"
    await session.publish("a", b"x")
    await session.flush()
    txid = session.txid
    await session.close()
    await until(lambda: ears.words(txid) == ["opened", "publish", "rollback", "deleted"])
    assert ears.heard[txid][2][1] == "session"


@story()
async def test_branches_are_heard_alike(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core2")
    txq = cluster.txq("core1")
    session = await txq.session("dtx")
    await session.start(XID)
    await session.publish("a", b"x")
    await session.end(XID)
    assert await txq.dtx.prepare(XID) is XaStatus.OK
    name = str(XID)
    until_prepared = ["opened", "publish", "closed", "prepare", "could"]
    assert ears.words(name) == until_prepared
    assert ears.heard[name][0] == ("opened", name, "dtx", "active")
    assert await txq.dtx.commit(XID) is XaStatus.OK
    assert ears.words(name) == [*until_prepared, "commit", "deleted"]
    # An operator's verdict, and what the coordinator says later.
    ears.heard.clear()
    await session.start(XID)
    await session.publish("a", b"y")
    await session.end(XID)
    await txq.dtx.prepare(XID)
    await txq.dtx.heuristic_rollback(XID, "the coordinator burned down")
    assert ears.words(name) == [*until_prepared, "rollback"]
    assert await txq.dtx.commit(XID) is XaStatus.HEURRB
    await txq.dtx.forget(XID)
    assert ears.words(name) == [*until_prepared, "rollback", "deleted"]


@story(transaction_rows_max=100_000)
async def test_a_large_transaction_is_heard_whole(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core2")
    session = await cluster.txq("core1").session("tx")
    count = 2_500
    for start in range(0, count, 500):
        await session.publish("a", messages(*(str(n) for n in range(start, start + 500))))
    txid = (await session.commit(timeout_s=30)).txid
    await until(lambda: ears.words(txid)[-1] == "deleted")
    content = [body for note in ears.heard[txid] if note[0] == "publish" for body in note[2:]]
    assert content == [str(n) for n in range(count)]
    assert [word for word in ears.words(txid) if word != "publish"] == [
        "opened",
        "closed",
        "prepare",
        "could",
        "commit",
        "deleted",
    ]


@story()
async def test_several_observers_and_none(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core1")
    other = Ears(cluster, "core1")
    skipped: list[str] = []

    def skip(opened: Opened) -> None:
        skipped.append(opened.txid)

    cluster.txq("core1").observe(skip)
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    await session.flush()
    late = Ears(cluster, "core1")
    txid = (await session.commit()).txid
    assert ears.heard[txid] == other.heard[txid]
    assert skipped == [txid]
    assert late.words(txid) == [
        "opened",
        "publish",
        "closed",
        "prepare",
        "could",
        "commit",
        "deleted",
    ]


@story(cores=1, replicants=1)
async def test_a_cluster_of_one_and_a_replicant(cluster: Cluster) -> None:
    core, replicant = await listening(cluster, "core1", "rep1")
    session = await cluster.txq("rep1").session("tx")
    await session.publish("a", b"x")
    txid = (await session.commit()).txid
    await until(lambda: core.words(txid)[-1] == "deleted")
    assert core.heard[txid] == replicant.heard[txid]
    assert ("closed", "core1", "rep1") in core.heard[txid]
    cluster.kill("rep1")
    cluster.declare_dead("rep1")
    alone = await cluster.txq("core1").session("tx")
    await alone.publish("a", b"y")
    await alone.commit()
    assert cluster.everywhere("a") == ["x", "y"]


@story()
async def test_an_observer_may_leave_from_within(cluster: Cluster) -> None:
    """It hears nothing more; the others hear everything."""
    removals: list[Any] = []

    class Leaver(Ear):
        def publish(self, queue: str, messages: Any) -> None:
            super().publish(queue, messages)
            for remove in removals:
                remove()

    notes: list[Any] = []
    removals.append(cluster.txq("core1").observe(lambda opened: Leaver(opened, notes)))
    [ears] = await listening(cluster, "core1")
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    txid = (await session.commit()).txid
    assert [note[0] for note in notes] == ["opened", "publish"]
    assert ears.words(txid)[-4:] == ["prepare", "could", "commit", "deleted"]


# --- votes ----------------------------------------------------------------------------------------


@story()
async def test_one_that_cannot_prepare_rolls_back(cluster: Cluster) -> None:
    [good, bad] = await listening(cluster, "core1", "core2")
    bad.fails = PrepareFailed("the disk is full")
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    with pytest.raises(TransactionAborted) as caught:
        await session.commit()
    assert caught.value.cause == "vote"
    assert caught.value.reason == "core2: the disk is full"
    txid = caught.value.txid
    assert good.words(txid)[-2:] == ["rollback", "deleted"]
    assert bad.heard[txid][-2] == ("rollback", "vote", "core2: the disk is full")
    assert cluster.everywhere("a") == []
    # What else it raises says no, too, and what it says is not shown: it may be a user's data.
    bad.fails = KeyError("secret")
    await session.publish("a", b"x")
    with pytest.raises(TransactionAborted) as caught:
        await session.commit()
    assert "KeyError" in caught.value.reason
    assert "secret" not in caught.value.reason
    bad.fails = PrepareFailed("\ud800")  # cannot be written into the log as it is
    await session.publish("a", b"x")
    with pytest.raises(TransactionAborted):
        await session.commit()
    counters = cluster.txq("core2").counters
    assert counters["votes_no"] == 3
    assert counters["observer_failures"] == 1
    bad.fails = None
    await session.publish("a", b"x")
    await session.commit()
    assert counters["votes_yes"] == 1


@story()
async def test_one_that_did_not_get_the_content_cannot_prepare(cluster: Cluster) -> None:
    class Broken(Ear):
        def publish(self, queue: str, messages: Any) -> None:
            raise RuntimeError("no room")

    notes: list[Any] = []
    cluster.txq("core2").observe(lambda opened: Broken(opened, notes))
    await cluster.txq("core2").observing.taking_part(5)
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    with pytest.raises(TransactionAborted) as caught:
        await session.commit()
    assert caught.value.cause == "vote"
    assert ("prepare",) not in notes
    assert cluster.txq("core2").counters["observer_failures"] == 1


@story(prepare_timeout_ms=60_000)
async def test_a_slow_store_blocks_nobody_else(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core2")
    ears.gate = asyncio.Event()
    txq = cluster.txq("core1")
    sessions = [await txq.session("tx") for _ in range(10)]
    for session in sessions:
        await session.publish("a", b"slow")
    waits = [asyncio.ensure_future(session.commit(timeout_s=60)) for session in sessions]
    await until(lambda: [ear.notes[-1] for ear in ears.ears.values()] == [("prepare",)] * 10)
    slow, ears.gate = ears.gate, None
    quick = await txq.session("tx")
    await quick.publish("b", b"quick")
    await quick.commit()
    assert cluster.bodies("core1", "b") == ["quick"]
    assert not any(wait.done() for wait in waits)
    slow.set()
    await asyncio.gather(*waits)
    assert len(cluster.everywhere("a")) == 10


@story(options=TxQueueOptions(prepares_max=2), prepare_timeout_ms=60_000)
async def test_so_many_prepare_at_a_time(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core2")
    ears.gate = asyncio.Event()
    txq = cluster.txq("core1")
    sessions = [await txq.session("tx") for _ in range(5)]
    for session in sessions:
        await session.publish("a", b"x")
    waits = [asyncio.ensure_future(session.commit(timeout_s=60)) for session in sessions]
    await asyncio.sleep(1)
    assert sum(("prepare",) in notes for notes in ears.heard.values()) == 2
    # Those that wait for their turn are rolled back like others, and never prepare.
    last = sessions[-1].txid
    ears.gate.set()
    await asyncio.gather(*waits)
    assert ears.words(last)[-4:] == ["prepare", "could", "commit", "deleted"]


@story(prepare_timeout_ms=500)
async def test_a_late_one_is_rolled_back_and_its_prepare_cancelled_first(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core2")
    ears.gate = asyncio.Event()
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    with pytest.raises(TransactionAborted) as caught:
        await session.commit()
    assert caught.value.cause == "late"
    await until(lambda: ears.words(caught.value.txid)[-1] == "deleted")
    assert ears.words(caught.value.txid) == [
        "opened",
        "publish",
        "closed",
        "prepare",
        "cancelled",
        "rollback",
        "deleted",
    ]
    assert cluster.proposals("vote") == 0


@story(prepare_timeout_ms=500)
async def test_nothing_is_told_while_a_prepare_goes_on(cluster: Cluster) -> None:
    """One that cannot be stopped at once is waited for."""
    gate = asyncio.Event()

    class Stubborn(Ear):
        async def prepare(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await gate.wait()
                self.notes.append(("cleaned up",))

    notes: list[Any] = []
    cluster.txq("core2").observe(lambda opened: Stubborn(opened, notes))
    await cluster.txq("core2").observing.taking_part(5)
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    with pytest.raises(TransactionAborted):
        await session.commit()
    await asyncio.sleep(1)
    assert [note[0] for note in notes] == ["opened", "publish", "closed"]
    gate.set()
    await until(lambda: notes[-1] == ("deleted",))
    assert [note[0] for note in notes[3:]] == ["cleaned up", "rollback", "deleted"]


@story(prepare_timeout_ms=500)
async def test_a_yes_that_nobody_waits_for_is_no_vote(cluster: Cluster) -> None:
    class Deaf(Ear):
        async def prepare(self) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.notes.append(("yes, all the same",))

    notes: list[Any] = []
    cluster.txq("core2").observe(lambda opened: Deaf(opened, notes))
    await cluster.txq("core2").observing.taking_part(5)
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    with pytest.raises(TransactionAborted):
        await session.commit()
    await until(lambda: notes[-1] == ("deleted",))
    assert [note[0] for note in notes[3:]] == ["yes, all the same", "rollback", "deleted"]
    assert cluster.proposals("vote") == 0
    assert cluster.txq("core2").counters["votes_yes"] == 0


@story()
async def test_what_an_observer_waited_for_may_be_cancelled(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core2")
    ears.fails = asyncio.CancelledError()
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    with pytest.raises(TransactionAborted) as caught:
        await session.commit()
    assert caught.value.cause == "vote"
    assert ears.words(caught.value.txid)[-2:] == ["rollback", "deleted"]


@story()
async def test_a_lost_vote_is_said_again(cluster: Cluster) -> None:
    await listening(cluster, "core2", "core3")
    lost: list[str] = []

    def lose(node: Any, envelope: Any) -> bool:
        if node.name == "core2" and b"vote" in envelope.command and len(lost) < 2:
            lost.append(node.name)
            return False
        return True

    cluster.filter = lose
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    await session.commit(timeout_s=60)
    assert len(lost) == 2
    assert cluster.nodes["core2"].proposals.count("vote") == 3


@story(prepare_timeout_ms=60_000)
async def test_a_participant_that_dies_before_its_yes_rolls_back(cluster: Cluster) -> None:
    gone, _ = await listening(cluster, "core3", "core2")
    gone.gate = asyncio.Event()
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    wait = asyncio.ensure_future(session.commit(timeout_s=60))
    await until(lambda: len(cluster.table("transactions")) == 1)
    cluster.kill("core3")
    await asyncio.sleep(5)
    assert not wait.done()
    cluster.declare_dead("core3")
    with pytest.raises(TransactionAborted) as caught:
        await wait
    assert caught.value.cause == "participant"


@story(prepare_timeout_ms=60_000)
async def test_a_yes_stands_after_its_node_has_died(cluster: Cluster) -> None:
    slow, _ = await listening(cluster, "core2", "core3")
    slow.gate = asyncio.Event()
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    wait = asyncio.ensure_future(session.commit(timeout_s=60))
    await until(lambda: cluster.proposals("vote") == 1)
    await asyncio.sleep(5)
    assert cluster.proposals("vote") == 1
    cluster.kill("core3")
    cluster.declare_dead("core3")
    await asyncio.sleep(1)
    assert not wait.done()
    slow.gate.set()
    await wait


@story(prepare_timeout_ms=60_000)
async def test_one_that_merely_lags_is_waited_for(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core3")
    cluster.pause("core3")
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    wait = asyncio.ensure_future(session.commit(timeout_s=60))
    await asyncio.sleep(20)
    assert not wait.done()
    cluster.resume("core3")
    txid = (await wait).txid
    assert ears.words(txid)[-2:] == ["commit", "deleted"]


# --- taking part ----------------------------------------------------------------------------------


@story()
async def test_who_observes_no_longer_is_not_asked(cluster: Cluster) -> None:
    node = cluster.nodes["core2"]
    listen, listeners = node.listen, []

    def counted(callback: Any) -> Any:
        unlisten = listen(callback)
        listeners.append(callback)

        def remove() -> None:
            listeners.remove(callback)
            unlisten()

        return remove

    node.listen = counted  # type: ignore[method-assign]
    [ears] = await listening(cluster, "core2")
    assert len(listeners) == 1
    assert cluster.table("observers") == {"core2": cluster.nodes["core2"].incarnation}
    ears.remove()
    ears.remove()
    await cluster.txq("core2").observing.taking_part(5)
    assert cluster.table("observers") == {}
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    await session.commit()
    assert cluster.proposals("vote") == 0
    assert ears.heard == {}
    assert listeners == []


@story(prepare_timeout_ms=60_000)
async def test_who_leaves_in_the_midst_still_votes(cluster: Cluster) -> None:
    """Its observer is gone, and has no objection any more; nobody waits for the time-out."""
    [ears] = await listening(cluster, "core2")
    release = cluster.hold("core2", "observe")
    ears.remove()
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    await session.commit(timeout_s=5)
    release()
    await cluster.txq("core2").observing.taking_part(5)
    assert ears.heard == {}


@story(prepare_timeout_ms=1_000)
async def test_who_leaves_while_it_prepares_is_told_to_stop(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core2")
    ears.gate = asyncio.Event()
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    waits = asyncio.ensure_future(session.commit(timeout_s=60))
    await until(lambda: bool(ears.heard))
    ears.remove()
    await cluster.txq("core2").observing.taking_part(5)
    with pytest.raises(TransactionAborted):
        await waits
    [notes] = ears.heard.values()
    assert [note[0] for note in notes] == ["opened", "publish", "closed", "prepare", "cancelled"]


@story()
async def test_a_late_observer_of_a_prepared_one_hears_that_it_is_closed(cluster: Cluster) -> None:
    await listening(cluster, "core2")
    txq = cluster.txq("core1")
    session = await txq.session("dtx")
    await session.start(XID)
    await session.publish("a", b"x")
    await session.end(XID)
    await txq.dtx.prepare(XID)
    late = Ears(cluster, "core2")
    assert late.words(str(XID)) == ["opened", "publish", "closed"]
    await txq.dtx.rollback(XID)
    assert late.words(str(XID))[3:] == ["rollback", "deleted"]


@story()
async def test_taking_part_is_said_again_in_a_new_life(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core3")
    cluster.isolate("core3")
    cluster.declare_dead("core3")
    cluster.filter = lambda node, envelope: node.name != "core3"
    cluster.rejoin("core3")
    with pytest.raises(ReadTimeout):
        await cluster.txq("core3").observing.taking_part(1)
    cluster.filter = lambda node, envelope: True
    await cluster.txq("core3").observing.taking_part(60)
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    txid = (await session.commit()).txid
    assert ears.words(txid)[-4:] == ["prepare", "could", "commit", "deleted"]


@story()
async def test_a_new_process_hears_of_what_is_undecided(cluster: Cluster) -> None:
    await listening(cluster, "core2")
    txq = cluster.txq("core1")
    session = await txq.session("dtx")
    await session.start(XID)
    await session.publish("a", b"x")
    await session.end(XID)
    await txq.dtx.prepare(XID)
    tx = await txq.session("tx")
    await tx.publish("b", b"y")
    await tx.flush()
    await cluster.restart("core2")
    [ears] = await listening(cluster, "core2")
    name = str(XID)
    assert ears.heard[name] == [
        ("opened", name, "dtx", "prepared"),
        ("publish", "a", "x"),
        ("closed", "core2"),
    ]
    assert ears.words(tx.txid) == ["opened", "publish"]
    await txq.dtx.commit(XID)
    await tx.commit()
    assert ears.words(name)[-2:] == ["commit", "deleted"]
    assert ears.words(tx.txid)[-4:] == ["prepare", "could", "commit", "deleted"]


# --- gaps -----------------------------------------------------------------------------------------


@story(prepare_timeout_ms=60_000)
async def test_a_snapshot_over_content_is_caught_up_from_the_tables(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core3")
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", messages("1"))
    await session.flush()
    cluster.pause("core3")
    await session.publish("a", messages("2"))
    await session.publish("b", messages("3"))
    await session.flush()
    other = await cluster.txq("core1").session("tx")
    await other.publish("a", b"other")
    wait = asyncio.ensure_future(session.commit(timeout_s=60))
    wait_other = asyncio.ensure_future(other.commit(timeout_s=60))
    await until(lambda: len(cluster.table("transactions")) == 2)
    cluster.jump("core3")
    txid = (await wait).txid
    assert ears.heard[txid] == [
        ("opened", txid, "tx", "active"),
        ("publish", "a", "1"),
        ("publish", "a", "2"),
        ("publish", "b", "3"),
        ("closed", "core3"),
        ("prepare",),
        ("could",),
        ("commit",),
        ("deleted",),
    ]
    assert ears.words((await wait_other).txid)[-1] == "deleted"


@story(prepare_timeout_ms=500)
async def test_a_snapshot_over_a_verdict_tells_it(cluster: Cluster) -> None:
    gone, _ = await listening(cluster, "core3", "core2")
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", messages("1"))
    await session.flush()
    txid = session.txid
    cluster.pause("core3")
    with pytest.raises(TransactionAborted):
        await session.commit()
    cluster.jump("core3")
    assert gone.words(txid) == ["opened", "publish", "rollback", "deleted"]
    assert gone.heard[txid][2][1] == "late"


@story()
async def test_what_was_committed_without_this_life_is_marked_as_missed(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core3")
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", messages("1"))
    await session.flush()
    cluster.isolate("core3")
    cluster.declare_dead("core3")
    await session.publish("a", messages("2"))
    txid = (await session.commit()).txid
    unseen = await cluster.txq("core1").session("tx")
    await unseen.publish("b", messages("3"))
    await unseen.flush()
    await unseen.publish("b", messages("4"))
    await unseen.commit()
    cluster.rejoin("core3")
    await cluster.txq("core3").observing.taking_part(5)
    assert ears.words(txid)[0] == "opened"
    assert ears.words(txid)[-3:] == ["missed", "commit", "deleted"]
    assert list(ears.heard) == [txid]
    assert cluster.txq("core3").counters["observer_gaps"] == 1


@story()
async def test_a_snapshot_over_a_commit_of_a_branch(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core3")
    txq = cluster.txq("core1")
    session = await txq.session("dtx")
    await session.start(XID)
    await session.publish("a", b"x")
    await session.end(XID)
    await txq.dtx.prepare(XID)
    cluster.pause("core3")
    await txq.dtx.commit(XID)
    cluster.jump("core3")
    assert ears.words(str(XID))[-3:] == ["could", "commit", "deleted"]


@story()
async def test_a_snapshot_over_the_rest_of_a_branch_and_its_commit(cluster: Cluster) -> None:
    """Found by random mishaps: the last row that it knew had no more than it had heard."""
    [ears] = await listening(cluster, "core3")
    txq = cluster.txq("core1")
    session = await txq.session("dtx")
    await session.start(XID)
    await session.publish("a", b"x")
    await session.flush()
    cluster.isolate("core3")
    cluster.declare_dead("core3")
    await session.publish("a", b"y")
    await session.end(XID)
    assert await txq.dtx.commit(XID, True) is XaStatus.OK
    cluster.jump("core3")
    cluster.node_up(cluster.nodes["core3"])
    assert ears.words(str(XID)) == ["opened", "publish", "missed", "commit", "deleted"]


def entry(cluster: Cluster, *commands: Any) -> list[Envelope]:
    """Commands of core1, to be one entry."""
    node = cluster.nodes["core1"]
    found = []
    for command in commands:
        node.seq += 1
        body = msgspec.msgpack.encode(command)
        found.append(Envelope(node.session, node.seq, 1, "txqueue", body))
    return found


@story()
async def test_a_xid_that_is_used_again_within_an_entry(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core2")
    txq = cluster.txq("core1")
    session = await txq.session("dtx")
    await session.start(XID)
    await session.publish("a", b"x")
    await session.end(XID)
    cluster.append(
        entry(
            cluster,
            RollbackBranch(XID),
            Start(session.id, XID),
            End(session.id, XID),
            CommitBranch(XID, True),
        )
    )
    name = str(XID)
    assert ears.words(name) == [
        *("opened", "publish", "rollback", "deleted"),
        *("opened", "commit", "deleted"),
    ]


def test_content_is_told_in_its_own_order_and_once() -> None:
    """However the rows of an entry come, and whatever of them was heard before."""
    view = TxLog().view()
    changes = [
        Change("txqueue", "accepts", (1, 7, 3), ABSENT, StagedAccept(1, 5, 1, 65)),
        Change("txqueue", "staged", (1, 7, 1), ABSENT, StagedMessage(2, Message(b"c"))),
        Change("txqueue", "staged", (1, 7, 0), ABSENT, StagedMessage(0, Message(b"a"))),
        Change("txqueue", "staged", (2, 7, 0), ABSENT, StagedMessage(0, Message(b"other"))),
        Change("txqueue", "staged", (1, 7, 2), StagedMessage(3, Message(b"moved")), ABSENT),
    ]
    happened = Happened(view, changes)
    assert happened.numbers == (1, 2)
    rows = happened.content_of(1)
    assert happened.numbers == (2,)
    assert rows == [(0, 7, Message(b"a")), (1, 7, 3), (2, 7, Message(b"c"))]
    assert happened.content_of(1) == []
    notes: list[Any] = []
    failures: list[Exception] = []
    opened = Opened(1, "5.1", None, "tx", "active")
    observation = Observation(Ear(opened, notes), failures.append)
    observation.take(rows[:2], view)
    observation.take(rows, view)
    observation.take(rows, view)
    assert [note[0] for note in notes] == ["opened", "publish", "accept", "publish"]
    assert failures == []


def test_behind_a_snapshot_the_verdict_is_not_that_of_a_later_branch_of_the_xid() -> None:
    txs = TxLog()
    rows: list[Any] = []
    for last in (CommitBranch(XID, True), RollbackBranch(XID)):
        session = txs.open(kind="dtx")
        txs.of(session, Start(session, XID))
        txs.stage(session, PublishTo("q", (Message(b"a"),)), counter=0)
        txs.of(session, End(session, XID))
        rows.append(txs.transaction(len(rows) + 1))
        txs.anywhere(last)
    snapshot = Happened(txs.view(), ())
    assert not snapshot.verdict(1, rows[0]).known
    second = snapshot.verdict(2, rows[1])
    assert (second.known, second.committed, second.cause) == (True, False, "coordinator")


@story()
async def test_several_commands_in_one_entry(cluster: Cluster) -> None:
    """Staging and what comes after it reach the nodes as one entry."""
    [ears] = await listening(cluster, "core2")
    session = await cluster.txq("core1").session("tx")

    def staged(counter: int, body: bytes) -> Stage:
        return Stage(session.id, counter, (PublishTo("a", (Message(body),)),))

    cluster.append(
        entry(
            cluster,
            staged(1, b"x"),
            Rollback(session.id, 1, "no"),
            staged(2, b"y"),
            staged(2, b"z"),
            Commit(session.id, 2, (PublishTo("b", (Message(b"last"),)),)),
        )
    )
    second = f"{session.id}.2"
    assert ears.heard[f"{session.id}.1"] == [
        ("opened", f"{session.id}.1", "tx", "active"),
        ("publish", "a", "x"),
        ("rollback", "rollback", "no"),
        ("deleted",),
    ]
    await until(lambda: ears.words(second)[-1] == "deleted")
    assert ears.heard[second][1:3] == [("publish", "a", "y", "z"), ("publish", "b", "last")]
    assert ears.words(second)[3:] == ["closed", "prepare", "could", "commit", "deleted"]
    assert cluster.everywhere("a") == ["y", "z"]


# --- what a review found --------------------------------------------------------------------------


@story()
async def test_one_whose_observer_cannot_be_made_cannot_prepare(cluster: Cluster) -> None:
    """It was to check something, and nobody did."""
    fails = True

    def make(opened: Opened) -> TransactionObserver | None:
        if fails:
            raise RuntimeError("no store")
        return None

    [ears] = await listening(cluster, "core1")
    cluster.txq("core2").observe(make)
    await cluster.txq("core2").observing.taking_part(5)
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    with pytest.raises(TransactionAborted) as caught:
        await session.commit()
    assert (caught.value.cause, caught.value.reason[:6]) == ("vote", "core2:")
    assert ears.words(caught.value.txid)[-2:] == ["rollback", "deleted"]
    assert cluster.txq("core2").counters["observer_failures"] == 1
    fails = False
    await session.publish("a", b"x")
    await session.commit()
    assert cluster.everywhere("a") == ["x"]


@story()
async def test_a_reason_may_be_anything(cluster: Cluster) -> None:
    [ears] = await listening(cluster, "core2")
    error: Any = OSError(28, "no space")
    ears.fails = PrepareFailed(error)
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    with pytest.raises(TransactionAborted) as caught:
        await session.commit()
    assert (caught.value.cause, caught.value.reason) == ("vote", f"core2: {error}")


@story()
async def test_nobody_waits_for_a_node_that_has_stopped_to_take_part(cluster: Cluster) -> None:
    txq = cluster.txq("core2")
    await cluster.stop("core2")
    txq.observe(lambda opened: None)
    with pytest.raises(Stopped):
        await asyncio.wait_for(txq.observing.taking_part(), 5)

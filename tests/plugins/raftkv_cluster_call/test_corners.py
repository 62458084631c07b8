"""Corners of calling and executing: answers that die with a life, functions that misbehave.

What they have in common: the caller must get the truth, and the cluster must not wait for it longer
than for any other failure.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from raftkv.errors import OutcomeUnknown
from raftkv.kv import Put
from raftkv.state import Envelope
from raftkv_cluster_call.commands import Commit, Reserve, StaleView
from raftkv_cluster_call.errors import DeadlinePassed
from raftkv_cluster_call.functions import Call
from raftkv_cluster_call.options import CallsOptions
from raftkv_cluster_call.waiting import Reached
from tests.plugins.raftkv_cluster_call.fakes import (
    Cluster,
    FakeNode,
    Note,
    story,
    tag_of,
    tell,
    until,
)
from tests.plugins.raftkv_cluster_call.pure import CallLog

# --- answers that are lost with a life ------------------------------------------------------------


@story()
async def test_a_commit_whose_answer_died_with_the_life_is_no_failure(cluster: Cluster) -> None:
    """It was committed and the others run it: "aborted, undo it" would be a lie."""

    def cut(node: FakeNode, envelope: Any) -> bool:
        if node.name == "core1" and tag_of(envelope) == "commit":
            cluster.isolate("core1")  # it arrives, and nothing comes back
        return True

    cluster.filter = cut
    calling = asyncio.ensure_future(cluster.calls("core1").call("note", Note("x")))
    await until(lambda: bool(cluster.table("meta").get("last")))
    await until(lambda: cluster.record(1).state == "committed")
    cluster.declare_dead("core1")
    await asyncio.sleep(8)  # longer than its proposal waits
    cluster.filter = lambda node, envelope: True
    cluster.rejoin("core1")
    done = await calling
    assert (done.outcome, done.id, done.result, done.error) == ("ok", 1, "x@core1", None)
    assert cluster.tried("core1") == [1]
    assert cluster.ran("core2") == [1]


@story()
async def test_what_became_of_a_call_whose_record_is_gone_is_unknown(cluster: Cluster) -> None:
    """Its answer died with the life, and the record with a reset: neither yes nor no is true."""

    def cut(node: FakeNode, envelope: Any) -> bool:
        if node.name == "core1" and tag_of(envelope) == "commit":
            cluster.isolate("core1")
        return True

    cluster.filter = cut
    calling = asyncio.ensure_future(cluster.calls("core1").call("note", Note("x")))
    await until(lambda: bool(cluster.table("meta").get("last")))
    await cluster.at(1, ["core2", "core3"])
    cluster.declare_dead("core1")
    await cluster.calls("core2").reset()
    assert cluster.table("records") == {}
    await asyncio.sleep(8)
    cluster.filter = lambda node, envelope: True
    cluster.rejoin("core1")
    with pytest.raises(OutcomeUnknown, match="raftkv calls status"):
        await calling
    assert len(cluster.calls("core1").initiations) == 0
    assert (await cluster.calls("core1").call("note", Note("y"))).outcome == "ok"


# --- functions that misbehave ---------------------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def take(cluster: Cluster, name: str, function: Any, *, effect: bool = False) -> None:
    for node in cluster.nodes.values():
        node.calls.function(name, effect=effect, type=Note)(function)


@pytest.mark.parametrize("value", [object(), "text", 2**70], ids=["object", "text", "int"])
def test_an_effect_that_cannot_be_sent_is_a_failure(value: Any) -> None:
    """On the initiator it is answered at once; nobody waits until the id is given back."""
    tell(lambda cluster: sends(cluster, value))


async def sends(cluster: Cluster, value: Any) -> None:
    take(cluster, "odd", lambda args, call: Put(b"k", value), effect=True)
    began = asyncio.get_running_loop().time()
    done = await cluster.calls("core1").call("odd", Note("x"))
    assert done.outcome == "init_failure"
    assert done.error is not None
    assert done.error.kind == "NoEffect"
    assert asyncio.get_running_loop().time() - began < 1
    assert cluster.record(1).cause.startswith("failed: NoEffect")
    assert cluster.table("lost") == {}


@story()
async def test_an_effect_that_cannot_be_sent_from_a_replica_is_an_alarm(cluster: Cluster) -> None:
    bad = {"core2"}

    def effect(args: Note, call: Call) -> Put:
        value: Any = object() if call.node in bad else b"v"
        return Put(f"count/{call.node}".encode(), value)

    take(cluster, "odd", effect, effect=True)
    await cluster.calls("core1").call("odd", Note("x"), required=1)
    await until(lambda: cluster.row("core2").failing == 1)
    assert cluster.row("core2").cause.startswith("NoEffect")
    bad.clear()
    await cluster.at(1)


@story()
async def test_an_error_without_words_is_a_failure_like_any_other(cluster: Cluster) -> None:
    def mute(args: Note, call: Call) -> None:
        raise Mute

    take(cluster, "mute", mute)
    began = asyncio.get_running_loop().time()
    done = await cluster.calls("core1").call("mute", Note("x"))
    assert (done.outcome, done.id) == ("init_failure", 1)
    assert done.error is not None
    assert done.error.kind == "Mute"
    assert asyncio.get_running_loop().time() - began < 1


@story()
async def test_a_plain_function_that_is_cancelled_does_not_end_the_worker(cluster: Cluster) -> None:
    def cancelled(args: Note, call: Call) -> None:
        if call.kind == "initiate" or call.attempt > 2:
            return
        raise asyncio.CancelledError  # as `future.result()` of a cancelled future raises it

    take(cluster, "cancelled", cancelled)
    assert (await cluster.calls("core1").call("cancelled", Note("x"))).outcome == "ok"


@story(options=CallsOptions(cancel_grace_s=0.5))
async def test_what_waits_for_an_overrun_is_cut_at_its_own_time(cluster: Cluster) -> None:
    """A former run that does not end eats the time of the next call, which gets no new one."""
    seat = cluster.seats["core1"]
    seat.takes_s = lambda call: 100.0 if call.id == 1 else 4.0
    seat.stubborn_s = 8.0
    first = await cluster.calls("core1").call("note", Note("1"), timeout_s=1)
    assert first.outcome == "init_failure"
    # The former run ends 3 s before the deadline, and this one would take 4.
    began = asyncio.get_running_loop().time()
    second = await cluster.calls("core1").call("note", Note("2"), timeout_s=10)
    assert second.outcome == "init_failure"
    assert second.error is not None
    assert second.error.kind == "TimeIsUp"
    assert asyncio.get_running_loop().time() - began < 12


@story()
async def test_a_plain_function_that_holds_up_the_node_is_named(
    cluster: Cluster,
) -> None:
    """It cannot be cut short; so at least it is said, and counted, without its arguments."""
    node = cluster.nodes["core1"]
    ahead = [0.0]
    monotonic = node.runtime.monotonic
    node.runtime.monotonic = lambda: monotonic() + ahead[0]

    def slow(args: Note, call: Call) -> None:
        if call.node == "core1":
            ahead[0] += 0.5

    take(cluster, "slow", slow)
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(f"{record.levelname} {record.getMessage()}")

    ear = Ear()
    node.log.addHandler(ear)
    try:
        await cluster.calls("core1").call("slow", Note("secret"))
        await cluster.calls("core1").call("quick", Note("secret"))
    finally:
        node.log.removeHandler(ear)
    found = [line for line in said if "held up" in line]
    assert len(found) == 1
    assert found[0].startswith("WARNING")
    assert "slow" in found[0]
    assert "secret" not in found[0]
    assert node.calls.counters["held_up"] == 1
    assert cluster.calls("core2").counters["held_up"] == 0


# --- who is waited for ----------------------------------------------------------------------------


@story()
async def test_who_left_does_not_count_as_one_that_has_executed_it(cluster: Cluster) -> None:
    """Two of three are required, one of the others leaves: then it is the last one's turn."""
    for name in ("core2", "core3"):
        cluster.calls(name).worker.paused = True
    calling = asyncio.ensure_future(cluster.calls("core1").call("note", Note("x"), required=2))
    await until(lambda: len(cluster.calls("core1").waiting) == 1)
    await cluster.calls("core2").leave()
    await asyncio.sleep(1)
    assert not calling.done()
    cluster.calls("core3").worker.paused = False
    cluster.calls("core3").worker.wake()
    assert (await calling).outcome == "ok"
    assert cluster.ran("core3") == [1]


@story()
async def test_more_than_are_left_cannot_be_waited_for(cluster: Cluster) -> None:
    for name in ("core2", "core3"):
        cluster.calls(name).worker.paused = True
    calling = asyncio.ensure_future(cluster.calls("core1").call("note", Note("x"), required=3))
    await until(lambda: len(cluster.calls("core1").waiting) == 1)
    await cluster.calls("core2").leave()
    await cluster.calls("core3").leave()
    assert (await calling).outcome == "ok"
    loop = asyncio.get_running_loop()
    watch = cluster.calls("core1").waiting
    assert await watch.reached(1, ("core1", "core2"), 2, loop.time() + 1) == Reached("ok")


# --- time -----------------------------------------------------------------------------------------


@story()
async def test_a_node_whose_idea_of_the_log_s_clock_is_ahead_may_call(cluster: Cluster) -> None:
    """A new leader's clock may be behind the one that this node knows, and nothing corrects it."""
    node = cluster.nodes["core2"]
    now_ms = node.now_ms
    node.now_ms = lambda: now_ms() + 3_600_000  # type: ignore[method-assign]
    cluster.seats["core2"].takes_s = lambda call: 1.0
    assert (await node.calls.call("note", Note("x"))).outcome == "ok"


@story()
async def test_what_is_due_on_the_log_s_clock_is_not_begun(cluster: Cluster) -> None:
    """The log allows less time than the caller, and its turn comes when that is over."""
    cluster.set(deadline_max_ms=1_000)
    node = cluster.nodes["core1"]
    node.calls.worker.paused = True
    release = cluster.hold("core1", "expire", "withdraw")
    calling = asyncio.ensure_future(node.calls.call("note", Note("x"), timeout_s=60))
    await until(lambda: bool(cluster.table("meta").get("granted")))
    await asyncio.sleep(1.5)
    node.calls.worker.paused = False
    node.calls.worker.wake()
    await asyncio.sleep(1)
    assert cluster.tried("core1") == []
    release()
    with pytest.raises(DeadlinePassed):
        await calling
    await until(lambda: cluster.record(1).state == "aborted" and not cluster.table("lost"))
    assert cluster.tried("core1") == []


# --- the queue, the history -----------------------------------------------------------------------


def test_queued_call_of_a_node_that_gets_stuck_meanwhile_is_dropped() -> None:
    log = CallLog()
    log.call("n1")
    log.catch_up("n3")
    running = log.granted("n3")
    stuck = [log.queued("n2") for _ in range(2)]
    behind = log.queued("n3")
    log.stick("n2")
    # Nobody is disturbed by it: it is dropped where it would have had its turn.
    assert log.running == (2, "n3")
    log.commit("n3", running)
    assert [log.answer(queued.ticket) for queued in stuck] == ["stale_view", "stale_view"]
    assert log.running == (3, "n3")
    assert log.record(3).ticket == behind.ticket
    refused = log.send("n2", Reserve("f", 1, b"", 3, 1_000, log.now))
    assert isinstance(refused, StaleView)


def many_calls(cluster: Cluster, count: int) -> None:
    """Calls that core1 reserved and committed, in one entry."""
    node = cluster.nodes["core1"]
    last, serial = cluster.table("meta").get("last", 0), cluster.witness.serial
    commands: list[msgspec.Struct] = []
    for id in range(last + 1, last + count + 1):
        commands.append(Reserve("quick", 1, b"\x81\xa4text\xa1x", id - 1, 60_000, 0))
        commands.append(Commit(id, serial + len(commands)))
    envelopes = []
    for command in commands:
        node.seq += 1
        body = msgspec.msgpack.encode(command)
        envelopes.append(Envelope(node.session, node.seq, 1, "calls", body))
    cluster.append(envelopes)


@story()
async def test_a_history_beyond_its_hard_limit_is_trimmed_early(cluster: Cluster) -> None:
    """Long before the next cleaning, and not once a call: for a node that stays away."""
    cluster.set(history_hard_max=1_000, cleanup_ms=86_400_000)
    cluster.calls("core2").worker.paused = True
    cluster.kill("core3")
    cluster.declare_dead("core3")
    many_calls(cluster, 1_150)
    await asyncio.sleep(5)
    assert len(cluster.table("records")) == 1_150
    many_calls(cluster, 100)
    await asyncio.sleep(5)
    assert len(cluster.table("records")) == 1_100
    assert cluster.state("core3") == "gap"
    trims = cluster.nodes["core1"].proposed.count("trim")
    assert trims <= 2
    for _ in range(50):
        many_calls(cluster, 1)
        await asyncio.sleep(0.1)
    assert cluster.nodes["core1"].proposed.count("trim") == trims

"""The worker: order, repetition, failing and being mended, crashes, hanging functions, silence."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from raftkv.kv import PutWith
from raftkv_cluster_call.errors import DeadlinePassed
from raftkv_cluster_call.functions import Call
from raftkv_cluster_call.options import CallsOptions
from tests.plugins.raftkv_cluster_call.fakes import (
    Broken,
    Cluster,
    FakeNode,
    Note,
    story,
    tag_of,
    until,
)

# --- order, and at least once ---------------------------------------------------------------------


@story()
async def test_a_node_that_was_away_runs_all_in_order(cluster: Cluster) -> None:
    cluster.kill("core3")
    cluster.declare_dead("core3")
    for number in range(5):
        await cluster.calls("core1").call("note", Note(str(number)))
    await cluster.restart("core3")
    await cluster.at(5)
    assert cluster.ran("core3") == [1, 2, 3, 4, 5]
    assert {run.kind for run in cluster.seats["core3"].runs} == {"replicate"}


@story()
async def test_nothing_overtakes_what_fails(cluster: Cluster) -> None:
    """Scenario 5."""
    cluster.seats["core2"].broken = {"note"}
    await cluster.calls("core1").call("note", Note("1"), required=1)
    await cluster.calls("core1").call("quick", Note("2"), required=1)
    await asyncio.sleep(3)
    assert set(cluster.tried("core2")) == {1}
    cluster.seats["core2"].broken = set()
    await cluster.at(2)
    assert cluster.ran("core2") == [1, 2]


@story()
async def test_a_crash_between_run_and_cursor_runs_it_again(cluster: Cluster) -> None:
    """At least once: that is what the token is for."""
    cluster.hold("core2", "advance")
    await cluster.calls("core1").call("note", Note("x"), required=1)
    await until(lambda: cluster.ran("core2") == [1])
    cluster.kill("core2")
    cluster.filter = lambda node, envelope: True
    await cluster.restart("core2")
    await cluster.at(1)
    assert cluster.ran("core2") == [1, 1]
    assert {run.token for run in cluster.seats["core2"].runs} == {"1@core2"}


@story()
async def test_a_restart_after_the_cursor_runs_nothing_again(cluster: Cluster) -> None:
    await cluster.calls("core1").call("note", Note("x"))
    await cluster.restart("core2")
    await asyncio.sleep(5)
    assert cluster.ran("core2") == [1]


@story()
async def test_an_effect_is_there_once_whatever_crashes(cluster: Cluster) -> None:
    """Effect and cursor are one command: either both are there, or neither is."""
    release = cluster.hold("core2", "advance")
    await cluster.calls("core1").call("count", Note("x"), required=1)
    await until(lambda: cluster.tried("core2") == [1])
    cluster.kill("core2")
    await cluster.restart("core2")
    await until(lambda: cluster.tried("core2") == [1, 1])
    # What the dead one had sent arrives late, and belongs to an ended life.
    release()
    await cluster.at(1)
    await asyncio.sleep(5)
    assert [cluster.count(name) for name in cluster.nodes] == [1, 1, 1]


@story()
async def test_a_lost_answer_to_an_advance_runs_nothing_again(cluster: Cluster) -> None:
    lost = cluster.lose_answers("core2", "advance", times=2)
    assert (await cluster.calls("core1").call("note", Note("1"))).outcome == "ok"
    assert (await cluster.calls("core1").call("note", Note("2"))).outcome == "ok"
    assert len(lost) == 2
    assert cluster.tried("core2") == [1, 2]


@story()
async def test_a_new_life_goes_on_without_running_again(cluster: Cluster) -> None:
    """Declared dead while its Advance was on its way: the function has run, the cursor has not."""
    dropped: list[str] = []

    def drop(node: FakeNode, envelope: Any) -> bool:
        if node.name == "core2" and tag_of(envelope) == "advance" and not dropped:
            dropped.append("advance")
            return False
        return True

    cluster.filter = drop
    await cluster.calls("core1").call("note", Note("1"), required=1)
    await until(lambda: cluster.ran("core2") == [1])
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    await asyncio.sleep(1)
    cluster.rejoin("core2")
    await cluster.at(1)
    assert dropped
    assert cluster.tried("core2") == [1]


# --- failing, alarms ------------------------------------------------------------------------------


@story()
async def test_failing_is_retried_ever_more_rarely_and_told(cluster: Cluster) -> None:
    cluster.seats["core2"].broken = {"note"}
    await cluster.calls("core1").call("note", Note("secret"), required=1)
    await until(lambda: cluster.row("core2").failing == 1)
    row = cluster.row("core2")
    assert row.attempts == 1
    assert row.cause.startswith("Broken in ")
    assert "secret" not in row.cause
    for name in cluster.nodes:
        assert cluster.alarms(name) == {("call_failed", "core2", 1)}
    await until(lambda: cluster.row("core2").attempts == 10)
    proposed = cluster.nodes["core2"].proposed.count("failing")
    tries = len(cluster.tried("core2"))
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(10)
    # Once a second by now (the setting retry_ms), and the cluster is not told of each.
    assert 9 <= len(cluster.tried("core2")) - tries <= 11
    assert cluster.nodes["core2"].proposed.count("failing") == proposed == 2
    cluster.seats["core2"].broken = set()
    await cluster.at(1)
    assert asyncio.get_running_loop().time() - began < 12
    assert cluster.alarms("core1") == set()
    assert [run.attempt for run in cluster.seats["core2"].tries] == list(
        range(1, len(cluster.tried("core2")) + 1)
    )


@story()
async def test_the_longest_pause_is_a_setting(cluster: Cluster) -> None:
    cluster.set(retry_ms=60_000)
    cluster.seats["core2"].broken = {"note"}
    await cluster.calls("core1").call("note", Note("x"), required=1)
    await asyncio.sleep(30)
    # 20 ms, 40, 80, ...: 11 attempts in the first 20 s.
    assert 10 <= len(cluster.tried("core2")) <= 12


@story()
async def test_a_failure_that_could_not_be_told_is_told_later(cluster: Cluster) -> None:
    dropped: list[str] = []

    def drop(node: FakeNode, envelope: object) -> bool:
        if tag_of(envelope) == "failing" and len(dropped) < 2:  # type: ignore[arg-type]
            dropped.append("failing")
            return False
        return True

    cluster.filter = drop
    cluster.seats["core2"].broken = {"note"}
    await cluster.calls("core1").call("note", Note("x"), required=1)
    await until(lambda: cluster.row("core2").failing == 1)
    assert len(dropped) == 2
    cluster.seats["core2"].broken = set()


@story()
async def test_a_replica_that_lacks_the_function_fails(cluster: Cluster) -> None:
    seen: list[str] = []

    def only_here(args: Note, call: Call) -> None:
        seen.append(call.node)

    cluster.calls("core1").function("new", version=2, type=Note)(only_here)
    done = await cluster.calls("core1").call("new", Note("x"), timeout_s=3)
    assert (done.outcome, done.nodes) == ("peers_lagging", ("core2", "core3"))
    await until(lambda: cluster.row("core2").failing == 1)
    assert cluster.row("core2").cause.startswith("UnknownFunction")
    for name in ("core2", "core3"):
        cluster.calls(name).function("new", version=2, type=Note)(only_here)
    # At once, not with the next attempt.
    began = asyncio.get_running_loop().time()
    await cluster.at(1)
    assert asyncio.get_running_loop().time() - began < 0.1
    assert seen == ["core1", "core2", "core3"]


@story()
async def test_a_function_may_be_registered_right_after_the_start(cluster: Cluster) -> None:
    """Not known yet is no failure, in the first second."""
    for name in ("core1", "core2"):
        cluster.calls(name).function("late", type=Note)(lambda args, call: None)
    cluster.kill("core3")
    cluster.declare_dead("core3")
    await cluster.calls("core1").call("late", Note("x"))
    node = await cluster.restart("core3")
    await asyncio.sleep(0.5)
    assert "failing" not in node.proposed
    node.calls.function("late", type=Note)(lambda args, call: None)
    await cluster.at(1)
    assert "failing" not in node.proposed


@story()
async def test_an_effect_that_is_refused_on_a_replica_fails_there(cluster: Cluster) -> None:
    """The keyspace's verdict counts like the function's own failure, and nothing is written."""
    bad = {"core2"}

    def effect(args: Note, call: Call) -> PutWith:
        key = f"count/{call.node}".encode()
        return PutWith(key, b"v", lease=77 if call.node in bad else 0)

    for node in cluster.nodes.values():
        node.calls.function("effect", effect=True, type=Note)(effect)
    await cluster.calls("core1").call("effect", Note("x"), required=["core3"])
    await until(lambda: cluster.row("core2").failing == 1)
    assert cluster.row("core2").cause.startswith("LeaseNotFound")
    assert cluster.count("core2") == 0
    bad.clear()
    await cluster.at(1)
    assert cluster.count("core2") == 1


@story()
async def test_the_worker_outlives_what_nobody_has_foreseen(cluster: Cluster) -> None:
    worker = cluster.calls("core2").worker
    proposer = worker._proposer
    submit = proposer.submit
    raised: list[str] = []

    async def odd(command: object, wanted: object = None) -> object:
        if not raised:
            raised.append("once")
            raise RuntimeError("odd")
        return await submit(command, wanted)  # type: ignore[arg-type]

    proposer.submit = odd  # type: ignore[method-assign,assignment]
    assert (await cluster.calls("core1").call("note", Note("x"))).outcome == "ok"
    assert raised
    assert cluster.tried("core2") == [1, 1]


# --- functions that hang --------------------------------------------------------------------------


@story(options=CallsOptions(run_timeout_s=2))
async def test_a_function_that_hangs_is_cut_and_tried_again(cluster: Cluster) -> None:
    cluster.seats["core2"].takes_s = lambda call: 100.0 if call.attempt < 3 else 0.0
    done = await cluster.calls("core1").call("note", Note("x"))
    assert done.outcome == "ok"
    assert [run.attempt for run in cluster.seats["core2"].tries] == [1, 2, 3]
    assert cluster.ran("core2") == [1]
    assert cluster.calls("core2").counters["overruns"] == 2


@story(options=CallsOptions(run_timeout_s=2, cancel_grace_s=0.5))
async def test_a_function_that_does_not_end_never_runs_beside_itself(cluster: Cluster) -> None:
    seat = cluster.seats["core2"]
    seat.takes_s = lambda call: 100.0 if call.attempt == 1 else 0.0
    seat.stubborn_s = 10.0
    await cluster.calls("core1").call("note", Note("x"), required=1)
    await until(lambda: cluster.row("core2").failing == 1)
    assert cluster.row("core2").cause.startswith("TimeIsUp")
    await asyncio.sleep(5)
    assert len(seat.tries) == 1
    await cluster.at(1)
    # The first run ended, late; then it was run again, in peace.
    assert len(seat.tries) == 2
    assert seat.runs[0].attempt == 1


@story()
async def test_a_plain_function_that_gives_an_awaitable_is_awaited(cluster: Cluster) -> None:
    async def work(args: Note, call: Call) -> str:
        await asyncio.sleep(0.1)
        return args.text

    for node in cluster.nodes.values():
        node.calls.function("wrapped", type=Note)(lambda args, call: work(args, call))
    done = await cluster.calls("core1").call("wrapped", Note("x"))
    assert (done.outcome, done.result) == ("ok", "x")


# --- the initiator dies ---------------------------------------------------------------------------


@story()
async def test_an_initiator_killed_before_its_commit_is_told_on_return(cluster: Cluster) -> None:
    """Scenario 10: the effect is there, on this node alone; nobody waits for it, nobody runs it."""
    cluster.hold("core1", "commit", "abort")
    calling = asyncio.ensure_future(cluster.calls("core1").call("note", Note("x")))
    await until(lambda: cluster.ran("core1") == [1])
    waiting = asyncio.ensure_future(cluster.calls("core2").call("note", Note("y")))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    cluster.kill("core1")
    calling.cancel()
    cluster.filter = lambda node, envelope: True
    cluster.lead("core2")
    cluster.declare_dead("core1")
    done = await waiting
    assert (done.outcome, done.id, done.nodes) == ("stopped_nodes", 2, ("core1",))
    assert cluster.record(1).state == "aborted"
    assert cluster.record(1).cause == "initiator_ended"
    assert cluster.ran("core2") == cluster.ran("core3") == [2]
    await cluster.restart("core1")
    await cluster.at(2)
    assert cluster.ran("core1") == [1, 2]
    assert cluster.alarms("core1") == {("effect_lost", "core1", 1)}
    await cluster.calls("core1").acknowledge(1)
    assert cluster.alarms("core1") == cluster.alarms("core2") == set()


@story()
async def test_a_commit_after_the_expiry_is_refused(cluster: Cluster) -> None:
    """The initiator was cut off for too long: others went on, and it is told that it is alone."""
    release = cluster.hold("core2", "commit")
    calling = asyncio.ensure_future(cluster.calls("core2").call("note", Note("x"), timeout_s=5))
    await until(lambda: bool(cluster.table("records")) and cluster.record(1).state == "aborted")
    assert cluster.record(1).cause == "expired"
    release()
    done = await calling
    assert (done.outcome, done.id) == ("init_failure", 1)
    assert done.error is not None
    assert done.error.kind == "Expired"
    assert "acknowledge" in done.error.reason
    assert cluster.ran("core1") == []
    assert cluster.alarms("core3") == {("effect_lost", "core2", 1)}
    assert (await cluster.calls("core3").call("note", Note("y"))).id == 2


@story()
async def test_what_the_log_aborted_and_had_not_run_raises_no_alarm(cluster: Cluster) -> None:
    """The log cannot know that it had not; the node knows, and says so by itself."""
    node = cluster.nodes["core2"]
    raised: list[str] = []
    node.calls.on_alarm(lambda alarm, up: raised.append(alarm.name))
    # As if somebody dumped the states for long: it is this call's turn, and it does not begin.
    node.calls.worker.paused = True
    cluster.hold("core2", "withdraw")
    with pytest.raises(DeadlinePassed):
        await node.calls.call("note", Note("x"), timeout_s=3)
    await until(lambda: cluster.record(1).cause == "expired")
    await asyncio.sleep(1)
    assert node.proposed.count("acknowledge") == 1
    assert cluster.table("lost") == {}
    assert raised == []
    assert cluster.tried("core2") == []
    cluster.filter = lambda node, envelope: True
    node.calls.worker.paused = False


# --- skipping -------------------------------------------------------------------------------------


@story()
async def test_stepping_over_runs_it_once_more_and_passes(cluster: Cluster) -> None:
    """Scenario 7."""
    for name in ("core2", "core3"):
        cluster.seats[name].broken = {"note"}
    await cluster.calls("core1").call("note", Note("x"), required=1)
    await until(lambda: cluster.row("core2").failing == 1 == cluster.row("core3").failing)
    tries = len(cluster.tried("core2"))
    attempt = await cluster.calls("core2").worker.step_over(0, 1)
    assert attempt is not None
    assert (attempt.id, attempt.ok, attempt.error) == (1, False, "Broken")
    assert attempt.place
    assert ".py" not in attempt.place
    assert len(cluster.tried("core2")) == tries + 1
    assert cluster.cursors() == {"core1": 1, "core2": 1, "core3": 0}
    assert cluster.row("core2").skipped == (1,)
    assert cluster.alarms("core1") == {("call_failed", "core3", 1)}
    # The cursor is not where it was: nothing is done twice.
    assert await cluster.calls("core2").worker.step_over(0, 1) is None
    assert cluster.calls("core2").worker.attempts_now == 0
    assert cluster.calls("core3").worker.attempts_now > 0
    cluster.seats["core3"].broken = set()
    await cluster.at(1)
    assert cluster.row("core3").skipped == ()


@story()
async def test_stepping_over_what_succeeds_executes_it(cluster: Cluster) -> None:
    cluster.seats["core2"].broken = {"count"}
    await cluster.calls("core1").call("count", Note("x"), required=1)
    await until(lambda: cluster.row("core2").attempts == 10)
    cluster.seats["core2"].broken = set()
    attempt = await cluster.calls("core2").worker.step_over(0, 1)
    assert attempt is not None
    assert attempt.ok
    assert cluster.count("core2") == 1
    assert cluster.row("core2").skipped == ()


@story()
async def test_a_paused_worker_begins_nothing(cluster: Cluster) -> None:
    worker = cluster.calls("core2").worker
    worker.paused = True
    await cluster.calls("core1").call("note", Note("x"), required=1)
    await asyncio.sleep(5)
    assert cluster.tried("core2") == []
    worker.paused = False
    worker.wake()
    await cluster.at(1)


@story()
async def test_the_lock_keeps_calls_from_running(cluster: Cluster) -> None:
    """A dump is taken between two calls, so it is as of the cursor."""
    async with cluster.calls("core2").worker.lock:
        await cluster.calls("core1").call("note", Note("x"), required=1)
        await asyncio.sleep(5)
        assert cluster.tried("core2") == []
    await cluster.at(1)


# --- silence --------------------------------------------------------------------------------------


class TestSilence:
    def test_arguments_and_results_are_nowhere_in_the_log(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nor the text of errors, which may hold them; only the class and the place."""
        secret = "tremendously-secret"

        @story(replicants=1)
        async def body(cluster: Cluster) -> None:
            async def give(args: Note, call: Call) -> str:
                if call.node in failing:
                    raise Broken(f"cannot take {args.text}")
                if args.text.endswith("slow"):
                    await asyncio.sleep(100)
                return args.text

            failing = {"core2"}
            for node in cluster.nodes.values():
                node.calls.function("give", type=Note)(give)
            calls = cluster.calls("core1")
            assert (await calls.call("give", Note(secret), required=1)).result == secret
            await cluster.calls("rep1").call("give", Note(secret), required=1)
            await until(lambda: cluster.row("core2").attempts == 10)
            await cluster.calls("core1").skip("core2")
            failing.clear()
            await cluster.at(2)
            failing.add("core1")
            assert (await calls.call("give", Note(secret))).outcome == "init_failure"
            failing.clear()
            slow = await calls.call("give", Note(secret + "slow"), timeout_s=2)
            assert slow.outcome == "init_failure"
            assert (await calls.call("give", {"text": [secret]})).outcome == "init_failure"
            for row in cluster.table("cursors").values():
                assert secret not in row.cause
            for node in cluster.nodes.values():
                assert secret not in str(node.service.status())
                assert secret not in str(list(node.service.metrics()))
                assert secret not in str(node.calls.status(every=True))
                assert secret not in str(node.calls.alarms())

        with caplog.at_level(logging.DEBUG):
            body()
        texts = [record.getMessage() + str(record.exc_info or "") for record in caplog.records]
        assert any("call 1" in text for text in texts)
        assert not [text for text in texts if secret in text]


# --- the leader's work ----------------------------------------------------------------------------


@story()
async def test_the_history_is_trimmed_at_the_pace_of_the_setting(cluster: Cluster) -> None:
    """Also at a pace that is set while the leader waits for the former one."""
    cluster.set(history_max=2)
    for number in range(6):
        await cluster.calls("core1").call("quick", Note(str(number)))
    await asyncio.sleep(100)
    assert len(cluster.table("records")) == 6
    cluster.set(cleanup_ms=2_000)
    await asyncio.sleep(4)
    assert list(cluster.table("records")) == [5, 6]
    proposed = sum(node.proposed.count("trim") for node in cluster.nodes.values())
    await asyncio.sleep(60)
    # An idle cluster proposes nothing.
    assert proposed == sum(node.proposed.count("trim") for node in cluster.nodes.values())


@story()
async def test_the_next_leader_goes_on_with_the_work(cluster: Cluster) -> None:
    cluster.set(history_max=2, cleanup_ms=1_000)
    other = cluster.nodes["core2"]
    other.calls.worker.paused = True
    cluster.seats["core1"].takes_s = lambda call: 0.0
    calling = asyncio.ensure_future(other.calls.call("note", Note("x"), timeout_s=4))
    await until(lambda: bool(cluster.table("due")))
    cluster.kill("core1")
    cluster.lead("core3")
    with pytest.raises(DeadlinePassed):
        await calling
    other.calls.worker.paused = False
    other.calls.worker.wake()
    await until(lambda: not cluster.table("due"))
    cluster.declare_dead("core1")
    for number in range(4):
        await cluster.calls("core2").call("quick", Note(str(number)), required=1)
    await cluster.restart("core1")
    await until(lambda: len(cluster.table("records")) == 2)


@story()
async def test_a_node_that_rejoins_follows_soon(cluster: Cluster) -> None:
    """Only its row of those that have left goes; that is enough to wake the joiner."""
    await cluster.calls("core2").leave()
    await cluster.calls("core1").call("note", Note("x"))
    assert cluster.state("core2") == ""
    began = asyncio.get_running_loop().time()
    await cluster.calls("core2").rejoin()
    await until(lambda: cluster.state("core2") == "following")
    assert asyncio.get_running_loop().time() - began < 0.5

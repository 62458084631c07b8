"""Calls on their initiator: reserving, queueing, running, waiting for the others, and every no."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from raftkv.errors import OutcomeUnknown, Stopped
from raftkv.kv import PutWith
from raftkv_cluster_call.calling import CallResult
from raftkv_cluster_call.commands import ArgsTooLarge, NotTakingPart, QueueFull
from raftkv_cluster_call.errors import DeadlinePassed, StaleView, TooManyRequired
from raftkv_cluster_call.functions import Call
from raftkv_cluster_call.reports import UnknownNode
from tests.plugins.raftkv_cluster_call.fakes import Cluster, Note, story, tag_of, until

# --- the plain way --------------------------------------------------------------------------------


@story()
async def test_every_node_runs_it_once_and_in_order(cluster: Cluster) -> None:
    """Scenario 1."""
    first = await cluster.calls("core1").call("note", Note("a"))
    second = await cluster.calls("core2").call("note", Note("b"))
    assert first == CallResult("ok", 1, "a@core1")
    assert second == CallResult("ok", 2, "b@core2")
    for name, seat in cluster.seats.items():
        assert cluster.ran(name) == [1, 2]
        assert [run.token for run in seat.runs] == [f"1@{name}", f"2@{name}"]
        assert [run.initiator for run in seat.runs] == ["core1", "core2"]
        kinds = ["initiate" if name == who else "replicate" for who in ("core1", "core2")]
        assert [run.kind for run in seat.runs] == kinds


@story(cores=1)
async def test_a_single_node_calls_itself(cluster: Cluster) -> None:
    done = await cluster.calls("core1").call("quick", Note("x"))
    assert (done.outcome, done.id, done.result) == ("ok", 1, "x")


@story()
async def test_calls_at_once_are_granted_in_the_order_of_coming(cluster: Cluster) -> None:
    """Queueing is first in, first out, across nodes; no caller is starved or refused."""
    rng = random.Random("queue")
    for seat in cluster.seats.values():
        seat.takes_s = lambda call: rng.random() * 0.01
    order: list[str] = []

    async def call(name: str, number: int) -> CallResult:
        said = f"{name}/{number}"
        order.append(said)
        return await cluster.calls(name).call("note", Note(said))

    names = [f"core{1 + number % 3}" for number in range(60)]
    done = await asyncio.gather(*(call(name, number) for number, name in enumerate(names)))
    assert {result.outcome for result in done} == {"ok"}
    assert sorted(result.id for result in done) == list(range(1, 61))
    # Reservations of one instant arrive in the order in which they were sent.
    assert [run.said for run in cluster.seats["core2"].runs] == order
    for name in cluster.seats:
        assert cluster.ran(name) == list(range(1, 61))


# --- failing on the initiator ---------------------------------------------------------------------


@story()
async def test_an_initiator_that_fails_aborts(cluster: Cluster) -> None:
    """Scenario 2."""
    cluster.seats["core1"].broken = {"note"}
    done = await cluster.calls("core1").call("note", Note("secret"))
    assert (done.outcome, done.id) == ("init_failure", 1)
    assert done.error is not None
    assert done.error.kind == "Broken"
    assert "secret" in done.error.reason
    assert "fakes.py" in done.error.stack
    record = cluster.record(1)
    assert record.state == "aborted"
    assert record.cause.startswith("failed: Broken in ")
    assert "secret" not in record.cause
    assert record.args == b""
    assert cluster.tried("core2") == cluster.tried("core3") == []
    assert cluster.alarms("core1") == set()
    # The id is used up, and nobody stands before it.
    assert cluster.cursors() == {"core1": 1, "core2": 1, "core3": 1}
    cluster.seats["core1"].broken = set()
    assert (await cluster.calls("core2").call("note", Note("b"))).id == 2


@story()
async def test_an_unknown_function_reserves_nothing(cluster: Cluster) -> None:
    """Scenario 3."""
    proposed = list(cluster.nodes["core1"].proposed)
    for done in (
        await cluster.calls("core1").call("no.such", Note("x")),
        await cluster.calls("core1").call("note", Note("x"), version=7),
    ):
        assert (done.outcome, done.id) == ("init_failure", 0)
        assert done.error is not None
        assert done.error.kind == "UnknownFunction"
        assert "no.such" in done.error.reason or "7" in done.error.reason
    assert cluster.nodes["core1"].proposed == proposed


@story()
async def test_arguments_that_do_not_fit_reserve_nothing(cluster: Cluster) -> None:
    proposed = list(cluster.nodes["core1"].proposed)
    done = await cluster.calls("core1").call("note", {"text": 5})
    assert (done.outcome, done.id) == ("init_failure", 0)
    assert done.error is not None
    assert done.error.kind == "ValidationError"
    with pytest.raises(TypeError, match="cannot be encoded"):
        await cluster.calls("core1").call("note", object())
    cluster.set(args_bytes_max=100)
    with pytest.raises(ArgsTooLarge, match="args_bytes_max"):
        await cluster.calls("core1").call("note", Note("x" * 100))
    assert cluster.nodes["core1"].proposed == proposed


@story()
async def test_plain_data_fits_as_well_as_the_type_itself(cluster: Cluster) -> None:
    done = await cluster.calls("core1").call("quick", {"text": "x"})
    assert (done.outcome, done.result) == ("ok", "x")


@story()
async def test_an_effect_that_the_keyspace_refuses_aborts(cluster: Cluster) -> None:
    def bad(args: Note, call: Call) -> PutWith:
        return PutWith(b"k", b"v", lease=77)

    for node in cluster.nodes.values():
        node.calls.function("bad", effect=True, type=Note)(bad)
    done = await cluster.calls("core1").call("bad", Note("x"))
    assert done.outcome == "init_failure"
    assert done.error is not None
    assert done.error.kind == "LeaseNotFound"
    assert cluster.record(1).state == "aborted"


@story()
async def test_an_effect_must_be_a_command(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.calls.function("bad", effect=True, type=Note)(lambda args, call: "text")
    done = await cluster.calls("core1").call("bad", Note("x"))
    assert done.outcome == "init_failure"
    assert done.error is not None
    assert done.error.kind == "NoEffect"


# --- required -------------------------------------------------------------------------------------


@story()
async def test_one_is_enough_where_one_is_required(cluster: Cluster) -> None:
    for name in ("core2", "core3"):
        cluster.seats[name].broken = {"*"}
    done = await cluster.calls("core1").call("note", Note("x"), required=1)
    assert done == CallResult("ok", 1, "x@core1")
    assert cluster.cursors() == {"core1": 1, "core2": 0, "core3": 0}


@story()
async def test_those_that_fail_are_named_at_the_deadline(cluster: Cluster) -> None:
    """Scenario 8, second half."""
    for name in ("core2", "core3"):
        cluster.seats[name].broken = {"*"}
    loop = asyncio.get_running_loop()
    began = loop.time()
    done = await cluster.calls("core1").call("note", Note("x"), required=2, timeout_s=3)
    assert done == CallResult("peers_lagging", 1, "x@core1", ("core2", "core3"))
    assert loop.time() - began == pytest.approx(3, abs=0.01)
    cluster.seats["core2"].broken = set()
    await cluster.at(1, ["core2"])


@story()
async def test_named_nodes_are_waited_for_and_no_others(cluster: Cluster) -> None:
    cluster.seats["core3"].broken = {"*"}
    done = await cluster.calls("core1").call("note", Note("x"), required=["core2"])
    assert done == CallResult("ok", 1, "x@core1")
    assert cluster.cursors()["core2"] == 1
    lagging = await cluster.calls("core1").call(
        "note", Note("y"), required=["core2", "core3"], timeout_s=1
    )
    assert (lagging.outcome, lagging.nodes) == ("peers_lagging", ("core3",))


@story()
async def test_a_node_that_is_down_is_told_at_once(cluster: Cluster) -> None:
    """Scenario 13: not after the two minutes; and it catches up when it is back."""
    cluster.kill("core3")
    cluster.declare_dead("core3")
    loop = asyncio.get_running_loop()
    began = loop.time()
    done = await cluster.calls("core1").call("note", Note("x"))
    assert done == CallResult("stopped_nodes", 1, "x@core1", ("core3",))
    assert loop.time() - began < 1
    await cluster.restart("core3")
    await cluster.at(1)
    assert cluster.ran("core3") == [1]


@story()
async def test_a_node_that_goes_down_meanwhile_is_told_then(cluster: Cluster) -> None:
    cluster.seats["core3"].takes_s = lambda call: 50.0
    calling = asyncio.ensure_future(cluster.calls("core1").call("note", Note("x")))
    await asyncio.sleep(1)
    assert not calling.done()
    cluster.kill("core3")
    cluster.declare_dead("core3")
    assert (await calling).outcome == "stopped_nodes"


@story()
async def test_a_node_that_leaves_is_waited_for_no_more(cluster: Cluster) -> None:
    cluster.seats["core3"].broken = {"*"}
    calling = asyncio.ensure_future(cluster.calls("core1").call("note", Note("x")))
    await asyncio.sleep(1)
    assert not calling.done()
    cluster.kill("core3")
    cluster.declare_dead("core3")
    await cluster.calls("core1").force_leave("core3")
    assert (await calling).outcome in ("ok", "stopped_nodes")
    later = await cluster.calls("core1").call("note", Note("y"))
    assert later == CallResult("ok", 2, "y@core1")


@story()
async def test_a_node_that_leaves_by_itself_is_waited_for_no_more(cluster: Cluster) -> None:
    cluster.seats["core3"].broken = {"*"}
    calling = asyncio.ensure_future(cluster.calls("core1").call("note", Note("x")))
    await asyncio.sleep(1)
    assert not calling.done()
    await cluster.calls("core3").leave()
    assert await calling == CallResult("ok", 1, "x@core1")


@story()
async def test_a_node_that_lags_is_waited_for(cluster: Cluster) -> None:
    cluster.pause("core3")
    calling = asyncio.ensure_future(cluster.calls("core1").call("note", Note("x")))
    await asyncio.sleep(1)
    assert not calling.done()
    cluster.resume("core3")
    assert (await calling).outcome == "ok"


@story(cores=2)
async def test_a_node_that_comes_later_is_not_waited_for(cluster: Cluster) -> None:
    cluster.seats["core2"].takes_s = lambda call: 1.0
    calling = asyncio.ensure_future(cluster.calls("core1").call("note", Note("x")))
    await until(lambda: 1 in cluster.table("records") and cluster.record(1).state == "committed")
    late = await cluster.add("core3")
    late.paused = True
    assert await calling == CallResult("ok", 1, "x@core1")
    late.paused = False
    late.catch_up()
    await until(lambda: cluster.state("core3") == "following")


@story()
async def test_what_cannot_be_required_reserves_nothing(cluster: Cluster) -> None:
    calls = cluster.calls("core1")
    proposed = list(cluster.nodes["core1"].proposed)
    with pytest.raises(TooManyRequired, match="3 take part"):
        await calls.call("note", Note("x"), required=4)
    with pytest.raises(UnknownNode, match="core9"):
        await calls.call("note", Note("x"), required=["core1", "core9"])
    for bad, kind in ((0, ValueError), (True, TypeError), ("some", ValueError)):
        with pytest.raises(kind, match="required"):
            await calls.call("note", Note("x"), required=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout_s"):
        await calls.call("note", Note("x"), timeout_s=0)
    assert cluster.nodes["core1"].proposed == proposed


# --- behind, and stale ----------------------------------------------------------------------------


@story()
async def test_a_node_that_is_stuck_may_not_initiate(cluster: Cluster) -> None:
    """Scenarios 4 and 5."""
    cluster.seats["core2"].broken = {"*"}
    for number in (1, 2):
        await cluster.calls("core1").call("note", Note(str(number)), required=1)
    with pytest.raises(StaleView) as caught:
        await cluster.calls("core2").call("note", Note("x"))
    stale = caught.value
    assert (stale.cluster_id, stale.own_id) == (2, 0)
    assert stale.attempts >= 10
    assert "raftkv calls status" in str(stale)
    assert "call 1" in str(stale)
    # It stays so, and is said at once.
    await until(lambda: cluster.row("core2").attempts >= 10)
    began = asyncio.get_running_loop().time()
    with pytest.raises(StaleView):
        await cluster.calls("core2").call("note", Note("x"))
    assert asyncio.get_running_loop().time() - began < 0.1
    cluster.seats["core2"].broken = set()
    await cluster.at(2)
    assert (await cluster.calls("core2").call("note", Note("y"))).outcome == "ok"


@story()
async def test_progress_keeps_a_slow_node_from_being_stale(cluster: Cluster) -> None:
    """Ten waits would be over long before it has caught up; but it moves."""
    cluster.seats["core2"].takes_s = lambda call: 2.0 if call.kind == "replicate" else 0.0
    for number in range(8):
        await cluster.calls("core1").call("note", Note(str(number)), required=1)
    done = await cluster.calls("core2").call("note", Note("x"), required=1)
    assert (done.outcome, done.id) == ("ok", 9)
    assert cluster.ran("core2") == list(range(1, 10))


@story()
async def test_a_stuck_node_loses_what_it_had_queued(cluster: Cluster) -> None:
    """Its turn would come in vain, and hold up all others."""
    cluster.seats["core2"].broken = {"*"}
    await cluster.calls("core1").call("note", Note("1"), required=1)
    cluster.seats["core1"].takes_s = lambda call: 1.0
    running = asyncio.ensure_future(cluster.calls("core1").call("note", Note("2"), required=1))
    await until(lambda: cluster.tried("core1")[-1:] == [2])
    with pytest.raises(StaleView):
        await cluster.calls("core2").call("note", Note("x"))
    assert (await running).outcome == "ok"


@story()
async def test_a_lagging_copy_is_told_behind_and_catches_up(cluster: Cluster) -> None:
    release = cluster.hold("core2", "advance")
    await cluster.calls("core1").call("note", Note("1"), required=1)
    calling = asyncio.ensure_future(cluster.calls("core2").call("note", Note("2")))
    await asyncio.sleep(0.5)
    assert not calling.done()
    release()
    assert (await calling).id == 2


@story()
async def test_a_node_that_cannot_move_its_cursor_is_stale_too(cluster: Cluster) -> None:
    """No function fails, but nothing that it proposes about it gets through."""
    cluster.hold("core2", "advance")
    await cluster.calls("core1").call("note", Note("1"), required=1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(StaleView) as caught:
        await cluster.calls("core2").call("note", Note("2"))
    assert (caught.value.cluster_id, caught.value.own_id, caught.value.attempts) == (1, 0, 10)
    # 20 ms, 40, ... 640, and then the setting: retry_ms.
    assert 3 < loop.time() - began < 6
    cluster.filter = lambda node, envelope: True


@story()
async def test_a_node_that_joins_initiates_when_it_follows(cluster: Cluster) -> None:
    await cluster.calls("core1").call("note", Note("1"))
    release = cluster.hold("core4", "sync")
    await cluster.add("core4")
    await until(lambda: cluster.state("core4") == "joining")
    calling = asyncio.ensure_future(cluster.calls("core4").call("note", Note("2")))
    await asyncio.sleep(0.5)
    assert not calling.done()
    release()
    assert (await calling).outcome == "ok"
    assert cluster.ran("core4") == [2]


@story()
async def test_a_node_that_has_left_may_not_initiate(cluster: Cluster) -> None:
    await cluster.calls("core2").leave()
    with pytest.raises(NotTakingPart):
        await cluster.calls("core2").call("note", Note("x"))


# --- deadlines, cancelling, the queue -------------------------------------------------------------


@story()
async def test_a_deadline_in_the_queue_withdraws(cluster: Cluster) -> None:
    cluster.seats["core1"].takes_s = lambda call: 5.0
    running = asyncio.ensure_future(cluster.calls("core1").call("note", Note("long")))
    await until(lambda: cluster.tried("core1") == [1])
    with pytest.raises(DeadlinePassed):
        await cluster.calls("core2").call("note", Note("x"), timeout_s=1)
    await until(lambda: not cluster.table("queue"))
    assert (await running).outcome == "ok"
    assert cluster.tried("core2") == [1]
    assert cluster.table("meta")["last"] == 1


@story()
async def test_a_deadline_without_a_leader_is_one_too(cluster: Cluster) -> None:
    """The reservation that comes late is taken back; nothing runs."""
    release = cluster.hold("core1")
    with pytest.raises(DeadlinePassed):
        await cluster.calls("core1").call("note", Note("x"), timeout_s=2)
    release()
    await asyncio.sleep(10)
    assert cluster.tried("core1") == []
    assert not cluster.table("queue")
    assert all(record.state == "aborted" for record in cluster.table("records").values())
    assert cluster.alarms("core1") == set()


@story()
async def test_a_full_queue_refuses(cluster: Cluster) -> None:
    cluster.set(queue_max=2)
    cluster.seats["core1"].takes_s = lambda call: 1.0
    calls = [
        asyncio.ensure_future(cluster.calls("core1").call("note", Note(str(number))))
        for number in range(4)
    ]
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [CallResult, CallResult, CallResult, QueueFull]


@story()
async def test_a_cancelled_caller_takes_back_what_waits(cluster: Cluster) -> None:
    cluster.seats["core1"].takes_s = lambda call: 1.0
    running = asyncio.ensure_future(cluster.calls("core1").call("note", Note("1")))
    waiting = asyncio.ensure_future(cluster.calls("core2").call("note", Note("2")))
    await until(lambda: cluster.tried("core1") == [1] and len(cluster.table("queue")) == 1)
    waiting.cancel()
    await until(lambda: not cluster.table("queue"))
    assert (await running).outcome == "ok"
    assert waiting.cancelled()
    assert cluster.table("meta")["last"] == 1


@story()
async def test_a_cancelled_caller_of_what_runs_changes_nothing(cluster: Cluster) -> None:
    cluster.seats["core1"].takes_s = lambda call: 1.0
    running = asyncio.ensure_future(cluster.calls("core1").call("note", Note("1")))
    await until(lambda: cluster.tried("core1") == [1])
    running.cancel()
    await cluster.at(1)
    assert cluster.record(1).state == "committed"
    assert [cluster.ran(name) for name in cluster.seats] == [[1], [1], [1]]


@story()
async def test_a_caller_cancelled_while_it_reserves_leaves_nothing(cluster: Cluster) -> None:
    release = cluster.hold("core1", "reserve")
    calling = asyncio.ensure_future(cluster.calls("core1").call("note", Note("1")))
    await asyncio.sleep(0.1)
    calling.cancel()
    await asyncio.sleep(0.1)
    release()
    await until(lambda: bool(cluster.table("records")))
    await until(lambda: cluster.record(1).state == "aborted")
    assert cluster.tried("core1") == []
    assert (await cluster.calls("core2").call("note", Note("2"))).outcome == "ok"


@story()
async def test_a_caller_cancelled_as_the_answer_comes_leaves_nothing(cluster: Cluster) -> None:
    """At whatever moment it goes: the reservation is taken back, or the call is made."""
    cluster.nodes["core1"].calls.worker.paused = True
    loop = asyncio.get_running_loop()
    for late_s in (0.0, 0.0005, 0.000999, 0.001, 0.001001, 0.0015, 0.002, 0.003):
        calling = asyncio.ensure_future(cluster.calls("core1").call("note", Note("1")))
        await asyncio.sleep(0)
        loop.call_later(late_s, calling.cancel)
        await asyncio.sleep(1)
        assert calling.cancelled()
        assert not cluster.table("queue")
        assert cluster.table("meta").get("granted", 0) == 0, late_s
        assert len(cluster.calls("core1").initiations) == 0
    assert cluster.tried("core1") == []
    cluster.nodes["core1"].calls.worker.paused = False


@story()
async def test_what_is_granted_at_the_deadline_does_not_begin(cluster: Cluster) -> None:
    """A function that begins when its time is over can only be cut: better not at all."""
    for name in ("core1", "core2", "core3"):
        cluster.seats[name].takes_s = lambda call: 1.0 if call.kind == "initiate" else 0.0
    loop = asyncio.get_running_loop()
    first = asyncio.ensure_future(cluster.calls("core1").call("note", Note("1")))
    await until(lambda: cluster.tried("core1") == [1])
    # The first one ends in 1 s, and is committed by NETWORK_S later: just about then.
    left_s = 1.0 - (loop.time() % 0.001)
    late = [
        asyncio.ensure_future(
            cluster.calls("core2").call("note", Note("2"), timeout_s=left_s + 0.0001 * number)
        )
        for number in range(20)
    ]
    ends = await asyncio.gather(*late, return_exceptions=True)
    await first
    begun = {run.id for run in cluster.seats["core2"].tries if run.kind == "initiate"}
    results = [end for end in ends if isinstance(end, CallResult)]
    assert all(isinstance(end, CallResult | DeadlinePassed) for end in ends)
    # Who was told that nothing ran was told the truth.
    assert {end.id for end in results} == begun


@story()
async def test_the_log_s_own_limit_cuts_a_run_too(cluster: Cluster) -> None:
    cluster.set(deadline_max_ms=2_000)
    cluster.seats["core1"].takes_s = lambda call: 60.0
    done = await cluster.calls("core1").call("note", Note("x"), timeout_s=100)
    assert done.outcome == "init_failure"
    assert done.error is not None
    assert done.error.kind == "TimeIsUp"
    assert asyncio.get_running_loop().time() < 5


@story()
async def test_a_run_is_cut_at_the_deadline_of_its_call(cluster: Cluster) -> None:
    cluster.seats["core1"].takes_s = lambda call: 60.0
    done = await cluster.calls("core1").call("note", Note("x"), timeout_s=2)
    assert (done.outcome, done.id) == ("init_failure", 1)
    assert done.error is not None
    # The leader's Expire and the node's own Abort race for it.
    assert done.error.kind == "TimeIsUp"
    assert cluster.record(1).state == "aborted"
    assert cluster.ran("core1") == []


# --- lost answers ---------------------------------------------------------------------------------


@story()
async def test_a_lost_answer_to_a_reservation_is_found_out(cluster: Cluster) -> None:
    lost = cluster.lose_answers("core1", "reserve")
    done = await cluster.calls("core1").call("note", Note("x"))
    assert len(lost) == 1
    assert (done.outcome, done.id) == ("ok", 1)
    assert cluster.table("meta")["last"] == 1


@story()
async def test_a_lost_answer_to_a_commit_runs_nothing_twice(cluster: Cluster) -> None:
    for times in (1, 3):
        lost = cluster.lose_answers("core1", "commit", times=times)
        done = await cluster.calls("core1").call("note", Note("x"))
        assert lost
        assert done.outcome == "ok"
    assert cluster.tried("core1") == [1, 2]


@story()
async def test_a_commit_that_never_arrived_is_sent_again_without_a_run(cluster: Cluster) -> None:
    dropped: list[str] = []

    def drop(node: object, envelope: object) -> bool:
        if tag_of(envelope) == "commit" and len(dropped) < 2:  # type: ignore[arg-type]
            dropped.append("commit")
            return False
        return True

    cluster.filter = drop
    done = await cluster.calls("core1").call("note", Note("x"))
    assert len(dropped) == 2
    assert (done.outcome, done.id) == ("ok", 1)
    assert cluster.tried("core1") == [1]


@story()
async def test_a_lost_answer_to_an_effect_counts_once(cluster: Cluster) -> None:
    cluster.lose_answers("core1", "commit")
    assert (await cluster.calls("core1").call("count", Note("x"))).outcome == "ok"
    cluster.lose_answers("core2", "advance")
    assert (await cluster.calls("core1").call("count", Note("x"))).outcome == "ok"
    assert [cluster.count(name) for name in cluster.nodes] == [2, 2, 2]
    assert cluster.tried("core2") == [1, 2]


@story()
async def test_an_outcome_that_cannot_be_had_is_unknown(cluster: Cluster) -> None:
    """The function has run, and the node is cut off before its commit."""
    cluster.seats["core1"].during = lambda call: cluster.isolate("core1")
    with pytest.raises(OutcomeUnknown, match="has run on this node"):
        await cluster.calls("core1").call("note", Note("x"), timeout_s=2)
    cluster.seats["core1"].during = lambda call: None
    cluster.heal("core1")
    await until(lambda: cluster.record(1).state == "aborted", 300)
    await asyncio.sleep(20)
    assert cluster.tried("core1") == [1]
    assert cluster.tried("core2") == []
    assert cluster.alarms("core1") == {("effect_lost", "core1", 1)}


@story()
async def test_a_call_on_a_node_that_stops_has_not_run(cluster: Cluster) -> None:
    cluster.seats["core1"].takes_s = lambda call: 5.0
    running = asyncio.ensure_future(cluster.calls("core1").call("note", Note("1")))
    waiting = asyncio.ensure_future(cluster.calls("core2").call("note", Note("2")))
    await until(lambda: cluster.tried("core1") == [1] and len(cluster.table("queue")) == 1)
    await cluster.stop("core2")
    with pytest.raises(Stopped):
        await waiting
    cluster.declare_dead("core2")
    assert (await running).outcome == "stopped_nodes"
    assert cluster.tried("core2") == []


@story()
async def test_a_node_that_begins_a_new_life_asks_again(cluster: Cluster) -> None:
    """Declared dead while its call waited: nothing had run, so the call is still good."""
    cluster.seats["core1"].takes_s = lambda call: 2.0
    running = asyncio.ensure_future(cluster.calls("core1").call("note", Note("1"), required=1))
    waiting = asyncio.ensure_future(cluster.calls("core2").call("note", Note("2"), required=1))
    await until(lambda: cluster.tried("core1") == [1] and len(cluster.table("queue")) == 1)
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    await running
    cluster.rejoin("core2")
    done = await waiting
    assert done.outcome == "ok"
    assert [run.id for run in cluster.seats["core2"].runs if run.said == "2"] == [done.id]


def test_results_travel_as_data() -> None:
    result = CallResult("peers_lagging", 4, {"a": 1}, ("n2",))
    assert msgspec.json.decode(msgspec.json.encode(result), type=CallResult) == result

"""Calls of replicants: made by a core in their stead, once, whatever is lost on the way."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from raftkv.errors import (
    NoLeader,
    NotApplied,
    OutcomeUnknown,
    RaftkvError,
    RemoteFailed,
    Stopped,
    Timeout,
    TooLarge,
)
from raftkv_cluster_call.calling import CallResult
from raftkv_cluster_call.commands import ArgsTooLarge, QueueFull
from raftkv_cluster_call.errors import CannotForward, DeadlinePassed, StaleView, TooManyRequired
from raftkv_cluster_call.options import CallsOptions
from raftkv_cluster_call.reports import UnknownNode
from raftkv_cluster_call.wire import (
    Answer,
    AskRequest,
    StartRequest,
    Token,
    pack,
    pack_error,
    pack_result,
    unpack,
    unpack_error,
)
from tests.plugins.raftkv_cluster_call.fakes import Cluster, Mishap, Note, story, until


def mishaps(cluster: Cluster, method: str, what: Mishap, times: int = 1) -> list[str]:
    """The first calls of this method between nodes are lost; the list grows with them."""
    lost: list[str] = []

    def mishap(sender: str, receiver: str, called: str) -> Mishap:
        if called == method and len(lost) < times:
            lost.append(receiver)
            return what
        return "none"

    cluster.mishap = mishap
    return lost


# --- the plain way --------------------------------------------------------------------------------


@story(replicants=1)
async def test_a_replicant_has_the_leader_make_its_call(cluster: Cluster) -> None:
    done = await cluster.calls("rep1").call("note", Note("x"))
    assert done == CallResult("ok", 1, "x@core1")
    assert cluster.record(1).initiator == "core1"
    assert cluster.tried("rep1") == []
    assert cluster.calls("core1").counters["served"] == 1
    assert cluster.calls("rep1").counters["forwarded"] == 1


@story(replicants=1)
async def test_any_core_will_do_without_a_leader(cluster: Cluster) -> None:
    cluster.leader = None
    assert (await cluster.calls("rep1").call("note", Note("x"))).outcome == "ok"


@story(replicants=1)
async def test_outcomes_and_errors_are_those_of_the_core(cluster: Cluster) -> None:
    calls = cluster.calls("rep1")
    cluster.seats["core1"].broken = {"note"}
    done = await calls.call("note", Note("why"))
    assert (done.outcome, done.id) == ("init_failure", 1)
    assert done.error is not None
    assert done.error.kind == "Broken"
    assert "why" in done.error.reason
    with pytest.raises(TooManyRequired, match="3 take part"):
        await calls.call("note", Note("x"), required=7)
    with pytest.raises(UnknownNode, match="core9"):
        await calls.call("note", Note("x"), required=["core9"])
    with pytest.raises(ValueError, match="required"):
        await calls.call("note", Note("x"), required=0)
    with pytest.raises(ValueError, match="timeout_s"):
        await calls.call("note", Note("x"), timeout_s=-1)
    unknown = await calls.call("no.such", Note("x"))
    assert unknown.error is not None
    assert unknown.error.kind == "UnknownFunction"
    cluster.set(args_bytes_max=10)
    with pytest.raises(ArgsTooLarge):
        await calls.call("note", Note("x" * 10))


@story(replicants=1)
async def test_required_nodes_are_the_caller_s_wish(cluster: Cluster) -> None:
    cluster.seats["core3"].broken = {"*"}
    done = await cluster.calls("rep1").call("note", Note("x"), required=["core2"])
    assert done.outcome == "ok"
    lagging = await cluster.calls("rep1").call("note", Note("y"), timeout_s=1)
    assert (lagging.outcome, lagging.nodes) == ("peers_lagging", ("core3",))


@story(replicants=1)
async def test_a_result_that_cannot_travel_is_named(cluster: Cluster) -> None:
    """It was executed everywhere all the same: the outcome stands."""
    for node in cluster.nodes.values():
        node.calls.function("thing", type=Note)(lambda args, call: object())
        node.calls.function("much", type=Note)(lambda args, call: b"x" * (2 << 20))
    for name, said in (("thing", "cannot be encoded"), ("much", "bytes")):
        done = await cluster.calls("rep1").call(name, Note("x"))
        assert (done.outcome, done.result) == ("ok", None)
        assert done.error is not None
        assert done.error.kind == "ResultLost"
        assert said in done.error.reason


@story(replicants=1, options=CallsOptions(forward_wait_s=1))
async def test_a_long_call_is_asked_for_in_steps(cluster: Cluster) -> None:
    cluster.seats["core1"].takes_s = lambda call: 10.0
    done = await cluster.calls("rep1").call("note", Note("x"))
    assert done.outcome == "ok"
    assert cluster.tried("core1") == [1]
    assert cluster.nodes["rep1"].rpc.made.count(("core1", "call.ask")) >= 9


@story(replicants=1)
async def test_a_replicant_that_takes_part_makes_its_own_calls(cluster: Cluster) -> None:
    cluster.set(replicants_take_part=True)
    await until(lambda: cluster.state("rep1") == "following")
    done = await cluster.calls("rep1").call("note", Note("x"))
    assert done == CallResult("ok", 1, "x@rep1")
    assert [cluster.ran(name) for name in ("core1", "rep1")] == [[1], [1]]


# --- what is lost on the way ----------------------------------------------------------------------


@story(replicants=1, options=CallsOptions(forward_wait_s=1))
async def test_a_lost_answer_runs_nothing_twice(cluster: Cluster) -> None:
    lost = mishaps(cluster, "call", "reply lost")
    loop = asyncio.get_running_loop()
    began = loop.time()
    done = await cluster.calls("rep1").call("note", Note("x"))
    assert lost
    assert done == CallResult("ok", 1, "x@core1")
    assert cluster.tried("core1") == [1]
    # One step, and not the whole time of the call.
    assert loop.time() - began < 5


@story(replicants=1, options=CallsOptions(forward_wait_s=1))
async def test_a_lost_request_is_found_out_and_made_anew(cluster: Cluster) -> None:
    lost = mishaps(cluster, "call", "request lost")
    done = await cluster.calls("rep1").call("note", Note("x"))
    assert lost == ["core1"]
    assert done.outcome == "ok"
    assert cluster.table("meta")["last"] == 1


@story(replicants=1, options=CallsOptions(forward_wait_s=1))
async def test_lost_answers_to_questions_are_asked_for_again(cluster: Cluster) -> None:
    cluster.seats["core1"].takes_s = lambda call: 3.0
    lost = mishaps(cluster, "call.ask", "reply lost", times=3)
    done = await cluster.calls("rep1").call("note", Note("x"))
    assert len(lost) == 3
    assert (done.outcome, cluster.tried("core1")) == ("ok", [1])


@story(replicants=1)
async def test_a_core_that_cannot_be_reached_is_passed(cluster: Cluster) -> None:
    cluster.kill("core1")
    done = await cluster.calls("rep1").call("note", Note("x"), required=["core2", "core3"])
    assert (done.outcome, done.result) == ("ok", "x@core2")


@story(replicants=1)
async def test_no_core_at_all_is_said_in_time(cluster: Cluster) -> None:
    cluster.isolate("rep1")
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(CannotForward, match="nothing ran"):
        await cluster.calls("rep1").call("note", Note("x"), timeout_s=3)
    assert loop.time() - began <= 3
    cluster.heal("rep1")


@story(replicants=1, options=CallsOptions(forward_wait_s=1))
async def test_a_core_that_dies_over_it_leaves_it_unknown(cluster: Cluster) -> None:
    cluster.seats["core1"].takes_s = lambda call: 10.0
    calling = asyncio.ensure_future(cluster.calls("rep1").call("note", Note("x")))
    await until(lambda: cluster.tried("core1") == [1])
    cluster.kill("core1")
    cluster.declare_dead("core1")
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(OutcomeUnknown, match="raftkv calls status"):
        await calling
    # Not at the deadline of the call: there is nobody left who could answer.
    assert loop.time() - began < 10
    assert cluster.calls("rep1").counters["forwarded_unknown"] == 1
    assert cluster.record(1).state == "aborted"


@story(replicants=1, options=CallsOptions(forward_wait_s=1))
async def test_a_core_that_came_back_does_not_know_and_says_so(cluster: Cluster) -> None:
    cluster.seats["core1"].takes_s = lambda call: 10.0
    calling = asyncio.ensure_future(cluster.calls("rep1").call("note", Note("x")))
    await until(lambda: cluster.tried("core1") == [1])
    await cluster.restart("core1")
    with pytest.raises(OutcomeUnknown):
        await calling
    await asyncio.sleep(5)
    assert cluster.tried("core1") == [1]


@story(replicants=1, options=CallsOptions(forward_wait_s=1))
async def test_a_core_in_a_new_life_still_knows_what_it_made(cluster: Cluster) -> None:
    """Declared dead and back, in the same process: what it had not begun is asked for anew."""
    cluster.seats["core2"].takes_s = lambda call: 3.0 if call.kind == "initiate" else 0.0
    first = asyncio.ensure_future(cluster.calls("core2").call("note", Note("0"), required=1))
    await until(lambda: cluster.tried("core2") == [1])
    calling = asyncio.ensure_future(cluster.calls("rep1").call("note", Note("x"), required=1))
    await until(lambda: len(cluster.table("queue")) == 1)
    former = cluster.nodes["core1"].incarnation
    cluster.declare_dead("core1")
    cluster.node_up(cluster.nodes["core1"])
    assert cluster.nodes["core1"].incarnation > former
    await first
    assert (await calling).outcome == "ok"
    assert [run.said for run in cluster.seats["core1"].runs] == ["0", "x"]


@story(replicants=1, options=CallsOptions(forward_wait_s=1))
async def test_a_replicant_that_stops_does_not_say_that_nothing_ran(cluster: Cluster) -> None:
    """The request was on its way; only the question after it finds the node stopped."""
    cluster.seats["core1"].takes_s = lambda call: 10.0
    rep = cluster.nodes["rep1"]
    calling = asyncio.ensure_future(rep.calls.call("note", Note("x"), required=1))
    await until(lambda: cluster.tried("core1") == [1])

    async def stopped(node: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        raise Stopped("this node has stopped")

    rep.rpc.call = stopped  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await calling
    # Before anything was sent it is true, though.
    with pytest.raises(Stopped):
        await rep.calls.call("note", Note("y"))


# --- going away -----------------------------------------------------------------------------------


@story(replicants=1)
async def test_a_caller_that_goes_away_takes_its_call_back(cluster: Cluster) -> None:
    cluster.seats["core2"].takes_s = lambda call: 5.0
    running = asyncio.ensure_future(cluster.calls("core2").call("note", Note("1"), required=1))
    await until(lambda: cluster.tried("core2") == [1])
    calling = asyncio.ensure_future(cluster.calls("rep1").call("note", Note("x")))
    await until(lambda: len(cluster.table("queue")) == 1)
    calling.cancel()
    await until(lambda: not cluster.table("queue"))
    assert (await running).outcome == "ok"
    assert cluster.table("meta")["last"] == 1


@story(replicants=1)
async def test_a_deadline_is_the_caller_s(cluster: Cluster) -> None:
    cluster.seats["core2"].takes_s = lambda call: 5.0
    running = asyncio.ensure_future(cluster.calls("core2").call("note", Note("1"), required=1))
    await until(lambda: cluster.tried("core2") == [1])
    with pytest.raises(DeadlinePassed):
        await cluster.calls("rep1").call("note", Note("x"), timeout_s=1)
    await running


@story(replicants=1, options=CallsOptions(forward_keep_s=5))
async def test_answers_are_kept_for_a_while_only(cluster: Cluster) -> None:
    for number in range(3):
        await cluster.calls("rep1").call("note", Note(str(number)))
    served = cluster.calls("core1").forwarding._served
    assert len(served) == 3
    await asyncio.sleep(6)
    await cluster.calls("rep1").call("note", Note("3"))
    assert len(served) == 1


@story(replicants=1, options=CallsOptions(forward_keep_s=5, forward_wait_s=1))
async def test_a_call_whose_answer_is_kept_no_more_is_not_made_again(cluster: Cluster) -> None:
    """The core knows that it has forgotten something: it must not say that it never began."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    replies: list[str] = []

    def mishap(sender: str, receiver: str, called: str) -> Mishap:
        if called == "call" and not replies:
            replies.append(receiver)
            return "reply lost"
        return "request lost" if called == "call.ask" and loop.time() < began + 20 else "none"

    cluster.mishap = mishap
    calls = cluster.calls("rep1")
    first = asyncio.ensure_future(calls.call("note", Note("x"), timeout_s=60))
    await asyncio.sleep(15)
    # Whatever comes lets the core clear up.
    assert (await calls.call("note", Note("y"))).outcome == "ok"
    with pytest.raises(OutcomeUnknown, match="calls status"):
        await first
    assert cluster.tried("core1") == [1, 2]
    # Later ones are not mistaken for forgotten ones.
    assert (await calls.call("note", Note("z"))).outcome == "ok"


# --- how errors travel ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        StaleView(9, 4, 10),
        DeadlinePassed("late"),
        QueueFull("1000 wait"),
        ArgsTooLarge("large"),
        TooManyRequired("9 of 3"),
        UnknownNode("who"),
        NoLeader("none"),
        TooLarge("much"),
        Timeout("lost"),
        ValueError("required is 0"),
    ],
)
def test_an_error_is_the_same_on_the_other_side(error: Exception) -> None:
    back = unpack_error(pack_error(error))
    assert type(back) is type(error)
    assert str(back) == str(error)


def test_an_error_that_is_not_listed_says_at_least_what_may_be_done() -> None:
    class Odd(NotApplied):
        code = "odd"

    back = unpack_error(pack_error(Odd("no")))
    assert type(back) is NotApplied
    assert "odd: no" in str(back)


def test_an_error_of_no_kind_keeps_its_text_to_itself() -> None:
    back = unpack_error(pack_error(KeyError("secret")))
    assert isinstance(back, RemoteFailed)
    assert "secret" not in str(back)
    assert "KeyError" in str(back)
    assert isinstance(back, RaftkvError)


def test_results_are_bounded() -> None:
    assert pack_result([1, "a"], 100) == (b"\x92\x01\xa1a", "")
    assert pack_result("x" * 200, 100)[0] == b"\xc0"
    assert pack_result(object(), 100)[0] == b"\xc0"


# --- what comes late ------------------------------------------------------------------------------


@story(replicants=1)
async def test_a_request_that_comes_after_the_question_is_refused(cluster: Cluster) -> None:
    """The core has said that it never began; so it must not begin any more."""
    core, rep = cluster.nodes["core1"], cluster.nodes["rep1"]
    token = Token("rep1", rep.incarnation, 99, core.incarnation)
    args = msgspec.msgpack.encode(Note("x"))
    start = StartRequest(token, "note", 1, args, "all", 5_000, 1_000)
    asked = await rep.rpc.call("core1", "call.ask", pack(AskRequest(token, 1_000)), 5)
    assert unpack(asked, Answer).status == "never"
    late = await rep.rpc.call("core1", "call", pack(start), 5)
    assert unpack(late, Answer).status == "never"
    # The same where the caller went away, and what it said of that came first.
    other = msgspec.structs.replace(token, number=100)
    await rep.rpc.call("core1", "call.cancel", pack(other), 5)
    begun = msgspec.structs.replace(start, token=other)
    assert unpack(await rep.rpc.call("core1", "call", pack(begun), 5), Answer).status == "never"
    # What was sent to a former life is not begun by this one, and not known to it.
    former = msgspec.structs.replace(token, core_incarnation=core.incarnation - 1)
    old = msgspec.structs.replace(start, token=former)
    assert unpack(await rep.rpc.call("core1", "call", pack(old), 5), Answer).status == "never"
    ask = AskRequest(former, 1_000)
    answer = unpack(await rep.rpc.call("core1", "call.ask", pack(ask), 5), Answer)
    assert answer.status == "other_life"
    assert cluster.tried("core1") == []


@story(replicants=1)
async def test_a_request_that_comes_twice_is_begun_once(cluster: Cluster) -> None:
    core, rep = cluster.nodes["core1"], cluster.nodes["rep1"]
    token = Token("rep1", rep.incarnation, 99, core.incarnation)
    args = msgspec.msgpack.encode(Note("x"))
    start = pack(StartRequest(token, "note", 1, args, "all", 5_000, 1_000))
    answers = [unpack(await rep.rpc.call("core1", "call", start, 5), Answer) for _ in range(2)]
    assert answers[0].status == "ended"
    assert answers[0] == answers[1]
    assert cluster.tried("core1") == [1]

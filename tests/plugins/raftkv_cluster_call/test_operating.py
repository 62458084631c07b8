"""Looking at the calls and mending them, from any node: status, skip, fast-forward, leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import pytest

from raftkv.errors import NotApplied, OutcomeUnknown, PeerUnreachable, RemoteFailed
from raftkv_cluster_call.commands import NodeIsUp, NotTakingPart
from raftkv_cluster_call.operating import STATUS_CALLS_MAX
from raftkv_cluster_call.reports import (
    Attempt,
    ClusterStatus,
    NodeStatus,
    NotFollowing,
    OperationFailed,
    StepAsked,
    Stepped,
    UnknownCall,
    UnknownNode,
)
from tests.plugins.raftkv_cluster_call.fakes import Cluster, FakeNode, Note, story, until


async def stuck(cluster: Cluster, name: str = "core2", calls: int = 1) -> None:
    """So many calls of core1 that this node fails to execute, and says so."""
    cluster.seats[name].broken.add("*")
    last = max(cluster.cursors().values())
    for _ in range(calls):
        done = await cluster.calls("core1").call("note", Note("x"), required=1)
        assert done.outcome == "ok"
    await cluster.at(last + calls, [each for each in cluster.nodes if each != name])
    await until(lambda: cluster.row(name).failing == last + 1)


def node_of(status: ClusterStatus, name: str) -> NodeStatus:
    [found] = [node for node in status.nodes if node.name == name]
    return found


# --- looking --------------------------------------------------------------------------------------


@story()
async def test_an_empty_cluster_shows_its_nodes_the_asked_one_first(cluster: Cluster) -> None:
    found = cluster.calls("core2").status()
    assert [node.name for node in found.nodes] == ["core2", "core1", "core3"]
    assert {(node.state, node.cursor, node.lag) for node in found.nodes} == {("following", 0, 0)}
    assert (found.last, found.granted, found.queue, found.calls, found.lost) == (0, 0, 0, (), ())


@story()
async def test_status_shows_who_is_stuck_where_and_why(cluster: Cluster) -> None:
    await stuck(cluster, calls=2)
    await until(lambda: cluster.row("core2").attempts == 10)
    found = cluster.calls("core3").status()
    node = node_of(found, "core2")
    assert (node.cursor, node.lag, node.failing, node.attempts) == (0, 2, 1, 10)
    # Class and place, and not what the error says, which may quote an argument.
    assert node.cause.startswith("Broken in ")
    assert "says" not in node.cause
    assert [(each.id, each.pending_nodes) for each in found.calls] == [
        (2, ("core2",)),
        (1, ("core2",)),
    ]
    assert (found.last, found.oldest) == (2, 1)
    cluster.seats["core2"].broken.clear()
    await cluster.at(2)
    healed = node_of(cluster.calls("core3").status(), "core2")
    assert (healed.failing, healed.attempts, healed.cause) == (0, 0, "")


@story()
async def test_status_never_shows_arguments_or_results(cluster: Cluster) -> None:
    await cluster.calls("core1").call("note", Note("s3cret"))
    status = cluster.calls("core1").status(every=True)
    assert b"s3cret" not in msgspec.json.encode(status)
    assert b"s3cret" not in msgspec.json.encode(cluster.calls("core1").query(1))


@story()
async def test_aborted_calls_are_shown_when_they_are_asked_for(cluster: Cluster) -> None:
    cluster.seats["core1"].broken.add("note")
    await cluster.calls("core1").call("note", Note("x"))
    await cluster.calls("core1").call("quick", Note("x"))
    calls = cluster.calls("core1")
    assert [each.id for each in calls.status().calls] == [2]
    both = calls.status(every=True).calls
    assert [(each.id, each.state) for each in both] == [(2, "committed"), (1, "aborted")]
    assert both[1].cause.startswith("failed: Broken in ")
    assert both[1].pending_nodes == ()
    assert [each.id for each in calls.status(every=True, limit=1).calls] == [2]
    assert [each.id for each in calls.status(every=True, below=2).calls] == [1]
    # A limit that makes no sense is brought to one that does.
    assert len(calls.status(every=True, limit=0).calls) == 1
    assert len(calls.status(every=True, limit=STATUS_CALLS_MAX + 1).calls) == 2


@story()
async def test_a_running_call_is_shown_as_such(cluster: Cluster) -> None:
    cluster.seats["core1"].takes_s = lambda call: 1.0
    running = asyncio.ensure_future(cluster.calls("core1").call("note", Note("x")))
    behind = asyncio.ensure_future(cluster.calls("core2").call("quick", Note("x")))
    await until(lambda: cluster.calls("core3").status().queue == 1)
    found = cluster.calls("core3").status()
    assert (found.granted, found.last, found.queue) == (1, 1, 1)
    assert [(each.state, each.pending_nodes) for each in found.calls] == [("reserved", ())]
    # What still runs at its initiator keeps nobody behind.
    assert {node.lag for node in found.nodes} == {0}
    assert (await running).outcome == (await behind).outcome == "ok"


@story()
async def test_query_tells_a_call_from_one_that_was_never_made_or_is_trimmed(
    cluster: Cluster,
) -> None:
    calls = cluster.calls("core1")
    with pytest.raises(UnknownCall, match="no call 1: none was ever made"):
        calls.query(1)
    cluster.set(history_max=1, cleanup_ms=1_000)
    for _ in range(3):
        await calls.call("quick", Note("x"))
    found = calls.query(3)
    assert (found.function, found.version, found.initiator) == ("quick", 1, "core1")
    assert (found.state, found.kind, found.pending_nodes) == ("committed", "call", ())
    assert found.created_ms > 0
    assert found.decided_ms > 0
    # The cleaning is due after the interval that it had when it was last looked at.
    await asyncio.sleep(301)
    assert sorted(cluster.table("records")) == [3]
    with pytest.raises(UnknownCall, match="no call 2: kept are 3 to 3"):
        calls.query(2)
    with pytest.raises(UnknownCall, match="no call 4: kept are 3 to 3"):
        calls.query(4)


@story(cores=2, replicants=1)
async def test_a_node_that_takes_no_part_has_no_cursor(cluster: Cluster) -> None:
    node = node_of(cluster.calls("core1").status(), "rep1")
    assert (node.role, node.state, node.cursor, node.lag) == ("replicant", "apart", None, None)


# --- passing what is stuck ------------------------------------------------------------------------


@story()
async def test_skip_runs_it_once_more_and_passes_it(cluster: Cluster) -> None:
    await stuck(cluster)
    await until(lambda: cluster.row("core2").attempts == 10)
    before = len(cluster.tried("core2"))
    report = await cluster.calls("core3").skip("core2")
    assert (report.node, report.cursor, report.last) == ("core2", 1, 1)
    [attempt] = report.attempts
    assert (attempt.id, attempt.function, attempt.ok, attempt.error) == (1, "note", False, "Broken")
    assert attempt.place == "in _end"
    assert len(cluster.tried("core2")) == before + 1
    assert cluster.ran("core2") == []
    assert cluster.row("core2").skipped == (1,)
    # Nobody else was touched, and calls go on there.
    assert cluster.row("core3").skipped == ()
    cluster.seats["core2"].broken.clear()
    assert (await cluster.calls("core2").call("note", Note("y"))).outcome == "ok"
    assert cluster.alarms("core1") == set()


@story()
async def test_a_skip_that_succeeds_is_an_execution(cluster: Cluster) -> None:
    await stuck(cluster)
    await until(lambda: cluster.row("core2").attempts == 10)
    cluster.seats["core2"].broken.clear()
    report = await cluster.calls("core2").skip()
    assert report.attempts == (Attempt(1, "note", True),)
    assert cluster.row("core2").skipped == ()
    assert cluster.ran("core2") == [1]


@story()
async def test_a_skip_of_an_effect_that_succeeds_writes_it_once(cluster: Cluster) -> None:
    cluster.seats["core2"].broken.add("*")
    await cluster.calls("core1").call("count", Note("x"), required=1)
    await until(lambda: cluster.row("core2").attempts == 10)
    cluster.seats["core2"].broken.clear()
    await cluster.calls("core1").skip("core2")
    assert cluster.row("core2").id == 1
    assert cluster.count("core2") == 1


@story()
async def test_where_nothing_is_pending_skip_does_nothing(cluster: Cluster) -> None:
    await cluster.calls("core1").call("note", Note("x"))
    report = await cluster.calls("core1").skip("core2")
    assert (report.cursor, report.last, report.attempts) == (1, 1, ())
    assert cluster.ran("core2") == [1]


@story()
async def test_skip_passes_no_call_that_still_runs_at_its_initiator(cluster: Cluster) -> None:
    cluster.seats["core1"].takes_s = lambda call: 1.0
    running = asyncio.ensure_future(cluster.calls("core1").call("note", Note("x")))
    await until(lambda: len(cluster.seats["core1"].tries) == 1)
    calls = cluster.calls("core3")
    assert (await calls.skip("core2")).attempts == ()
    forwarded = await calls.fast_forward("core2", 9)
    assert (forwarded.cursor, forwarded.last, forwarded.attempts) == (0, 1, ())
    # There it waits until the run is over.
    assert (await calls.skip("core1")).attempts == ()
    assert (await running).outcome == "ok"
    assert cluster.ran("core2") == cluster.ran("core1") == [1]


@story()
async def test_a_skip_whose_answer_was_lost_is_not_doubled(cluster: Cluster) -> None:
    await stuck(cluster, calls=2)
    lost = []

    def mishap(sender: str, receiver: str, method: str) -> str:
        if method == "operate.step" and not lost:
            lost.append(receiver)
            return "reply lost"
        return "none"

    cluster.mishap = mishap  # type: ignore[assignment]
    with pytest.raises(OutcomeUnknown):
        await cluster.calls("core1").skip("core2", timeout_s=1)
    await until(lambda: cluster.row("core2").id == 1)
    # Whoever looks first, and asks again for what is left, passes one more.
    assert (await cluster.calls("core1").skip("core2")).cursor == 2


@story()
async def test_a_step_that_comes_twice_is_taken_once(cluster: Cluster) -> None:
    await stuck(cluster, calls=2)
    payload = msgspec.msgpack.encode(StepAsked(after=0, upto=2, jump=False))
    for _ in range(2):
        reply = await cluster.nodes["core1"].rpc.call("core2", "operate.step", payload, 5)
        assert msgspec.msgpack.decode(reply, type=Stepped).cursor == 1
    assert cluster.row("core2").skipped == (1,)


@story()
async def test_an_answer_in_unknown_words_is_an_error(cluster: Cluster) -> None:
    async def odd(sender: str, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(["from the future"])

    cluster.nodes["core2"].rpc.register("operate.step", odd)
    with pytest.raises(RemoteFailed, match="in words that this node does not know"):
        await cluster.calls("core1").skip("core2")


@story()
async def test_an_asker_with_an_old_copy_skips_what_the_log_says(cluster: Cluster) -> None:
    await stuck(cluster, calls=2)
    cluster.pause("core3")
    assert (await cluster.calls("core1").skip("core2")).cursor == 1
    # Its barrier makes it wait until it has seen that.
    late = asyncio.ensure_future(cluster.calls("core3").skip("core2"))
    await asyncio.sleep(0.1)
    cluster.resume("core3")
    assert (await late).cursor == 2


@story()
async def test_fast_forward_stops_at_the_id_at_the_last_and_at_nothing(cluster: Cluster) -> None:
    await stuck(cluster, calls=5)
    one = await cluster.calls("core1").fast_forward("core2", 3)
    assert (one.cursor, [each.id for each in one.attempts]) == (3, [1, 2, 3])
    assert (await cluster.calls("core3").fast_forward("core2", 4)).cursor == 4
    capped = await cluster.calls("core2").fast_forward(None, 99)
    assert (capped.cursor, capped.last) == (5, 5)
    nothing = await cluster.calls("core1").fast_forward("core2", 1)
    assert (nothing.cursor, nothing.attempts) == (5, ())
    assert cluster.row("core2").skipped == (1, 2, 3, 4, 5)


@story()
async def test_fast_forward_goes_over_aborted_ids(cluster: Cluster) -> None:
    cluster.seats["core2"].broken.add("*")
    calls = cluster.calls("core1")
    await calls.call("note", Note("1"), required=1)
    cluster.seats["core1"].broken.add("note")
    await calls.call("note", Note("2"), required=1)
    cluster.seats["core1"].broken.clear()
    await calls.call("note", Note("3"), required=1)
    report = await calls.fast_forward("core2", 3)
    assert (report.cursor, [each.id for each in report.attempts]) == (3, [1, 3])
    # Up to an aborted one: nothing is attempted for it.
    assert cluster.row("core2").skipped == (1, 3)


@story()
async def test_a_node_that_is_down_or_unknown_cannot_be_skipped(cluster: Cluster) -> None:
    await cluster.calls("core1").call("note", Note("x"))
    with pytest.raises(UnknownNode, match="its members are core1, core2, core3"):
        await cluster.calls("core1").skip("core9")
    cluster.kill("core3")
    with pytest.raises(PeerUnreachable):
        await cluster.calls("core1").skip("core3")
    cluster.declare_dead("core3")
    with pytest.raises(PeerUnreachable, match="core3 is down: start it"):
        await cluster.calls("core1").fast_forward("core3", 1)


@story()
async def test_what_fails_on_the_other_node_comes_back_with_its_reason(cluster: Cluster) -> None:
    await cluster.calls("core2").leave()
    with pytest.raises(OperationFailed, match="core2 takes no part") as caught:
        await cluster.calls("core1").skip("core2")
    assert caught.value.remote_code == NotFollowing.code
    with pytest.raises(NotFollowing):
        await cluster.calls("core2").skip()
    cluster.pause("core2")
    await cluster.calls("core1").call("note", Note("x"))
    with pytest.raises(NotApplied, match="core2: this node is behind"):
        await cluster.calls("core1").skip("core2")
    cluster.resume("core2")


# --- a gap ----------------------------------------------------------------------------------------


class Lost:
    """A state that has forgotten everything when its node restarts, and cannot be had elsewhere."""

    name = "lost"

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.at = 0

    async def as_of(self) -> int | None:
        return self.at

    async def dump(self) -> Mapping[str, bytes]:
        raise OSError("cannot be read")

    async def load(self, items: Mapping[str, bytes], as_of: int) -> None:
        raise AssertionError("nobody could give it")

    async def passed(self, id: int) -> None:
        self.at = id


@story(register=lambda node: node.calls.state(Lost(node)))
async def test_a_node_in_a_gap_goes_on_where_an_operator_says(cluster: Cluster) -> None:
    for _ in range(3):
        await cluster.calls("core1").call("note", Note("x"))
    await cluster.restart("core3")
    await until(lambda: cluster.state("core3") == "gap")
    await cluster.calls("core1").call("note", Note("y"), required=2)
    shown = node_of(cluster.calls("core1").status(), "core3")
    assert (shown.state, shown.cursor) == ("gap", 3)
    assert shown.as_of == 3
    with pytest.raises(OperationFailed, match="fast-forward it to 3 or more"):
        await cluster.calls("core1").skip("core3")
    with pytest.raises(OperationFailed, match="fast-forward it to 3 or more"):
        await cluster.calls("core1").fast_forward("core3", 2)
    report = await cluster.calls("core1").fast_forward("core3", 3)
    assert report.attempts == ()
    # From there on it executes: 4 was made while it could not.
    await cluster.at(4)
    assert cluster.state("core3") == "following"
    assert [run.id for run in cluster.seats["core3"].runs if run.said == "y"] == [4]


@story(register=lambda node: node.calls.state(Lost(node)))
async def test_a_node_in_a_gap_is_forwarded_to_the_last_id_at_most(cluster: Cluster) -> None:
    await cluster.calls("core1").call("note", Note("x"))
    await cluster.restart("core3")
    await until(lambda: cluster.state("core3") == "gap")
    await cluster.calls("core1").call("note", Note("y"), required=2)
    report = await cluster.calls("core1").fast_forward("core3", 99)
    assert (report.cursor, report.last, report.attempts) == (2, 2, ())
    assert [run.id for run in cluster.seats["core3"].runs] == [1]


# --- coming and going, starting anew --------------------------------------------------------------


@story()
async def test_a_node_leaves_and_rejoins_also_by_another_ones_word(cluster: Cluster) -> None:
    calls = cluster.calls("core1")
    assert (await calls.leave("core3")).done is True
    assert (await calls.leave("core3")).done is False
    assert node_of(calls.status(), "core3").state == "left"
    done = await calls.call("note", Note("x"))
    assert (done.outcome, cluster.ran("core3")) == ("ok", [])
    with pytest.raises(NotTakingPart):
        await cluster.calls("core3").call("note", Note("x"), timeout_s=5)
    assert (await calls.rejoin("core3")).done is True
    await until(lambda: cluster.state("core3") == "following")
    assert (await calls.rejoin("core3")).done is False
    assert cluster.row("core3").id == 1
    assert (await calls.call("note", Note("y"))).outcome == "ok"
    assert cluster.ran("core3") == [2]


@story()
async def test_only_a_node_that_is_down_can_be_forced_to_leave(cluster: Cluster) -> None:
    calls = cluster.calls("core1")
    with pytest.raises(NodeIsUp):
        await calls.force_leave("core3")
    with pytest.raises(UnknownNode):
        await calls.force_leave("core9")
    cluster.kill("core3")
    cluster.declare_dead("core3")
    assert (await calls.force_leave("core3")).done is True
    assert (await calls.force_leave("core3")).done is False
    assert node_of(calls.status(), "core3").state == "left_forced"
    assert (await calls.call("note", Note("x"))).outcome == "ok"
    await cluster.restart("core3")
    await until(lambda: cluster.state("core3") == "following")
    assert cluster.row("core3").id == 1
    assert cluster.ran("core3") == []


@story()
async def test_reset_forgets_the_records_and_goes_on_with_the_ids(cluster: Cluster) -> None:
    await stuck(cluster, calls=2)
    calls = cluster.calls("core3")
    done = await calls.reset()
    assert (done.verb, done.done, done.last) == ("reset", True, 2)
    found = calls.status(every=True)
    assert (found.last, found.calls) == (2, ())
    assert set(cluster.cursors().values()) == {2}
    cluster.seats["core2"].broken.clear()
    assert (await calls.call("note", Note("y"))).id == 3
    assert cluster.ran("core2") == [3]


@story()
async def test_a_lost_effect_is_shown_until_it_is_acknowledged_on_any_node(
    cluster: Cluster,
) -> None:
    cluster.seats["core2"].takes_s = lambda call: 1.0
    running = asyncio.ensure_future(cluster.calls("core2").call("note", Note("x")))
    await until(lambda: len(cluster.seats["core2"].tries) == 1)
    cluster.kill("core2")
    running.cancel()
    cluster.declare_dead("core2")
    [row] = cluster.calls("core1").status().lost
    assert (row.node, row.id, row.function, row.cause) == ("core2", 1, "note", "initiator_ended")
    # It is down, and may never come back.
    assert (await cluster.calls("core1").acknowledge(1, "core2")).done is True
    await cluster.restart("core2")
    assert (await cluster.calls("core1").acknowledge(1, "core2")).done is False
    assert cluster.calls("core1").status().lost == ()
    assert cluster.alarms("core2") == set()

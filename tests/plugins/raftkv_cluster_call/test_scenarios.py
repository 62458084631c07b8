"""The acceptance scenarios of cluster calls on real nodes, by their numbers.

Scenario 6 is in test_concurrency.py, 10 in test_killed_initiator.py. Words: a node that is *broken*
fails every function; its *tries* are runs that began, its *runs* those that succeeded (cluster.py).
"""

from __future__ import annotations

import asyncio
import logging
import shutil

import pytest

from raftkv_cluster_call import Call, CallResult, NodeIsUp, StaleView, UnknownNode
from raftkv_cluster_call.commands import Trim
from tests.plugins.raftkv_cluster_call.cluster import (
    DEADLINE_S,
    CallsCluster,
    Item,
    Note,
    play,
    until,
)

pytestmark = pytest.mark.slow

THREE = ["core1", "core2", "core3"]
# A reservation is given up as stale after so many tries of its node.
STALE_TRIES = 10
SECRET = "correct-horse-battery-staple"


async def note(
    cluster: CallsCluster, at: str, text: str = "x", required: object = "all"
) -> CallResult:
    return await cluster.calls(at).call(
        "note",
        Note(text),
        required=required,  # type: ignore[arg-type]
        timeout_s=DEADLINE_S,
    )


async def store(
    cluster: CallsCluster, at: str, key: str, value: str, required: object = "all"
) -> CallResult:
    return await cluster.calls(at).call(
        "store",
        Item(key, value),
        required=required,  # type: ignore[arg-type]
        timeout_s=DEADLINE_S,
    )


def shelves(cluster: CallsCluster) -> dict[str, dict[str, bytes]]:
    return {name: seat.shelf.items for name, seat in cluster.seats.items()}


# --- 1 to 3: what a call is -----------------------------------------------------------------------


def test_1_happy_path() -> None:
    async def body(cluster: CallsCluster) -> None:
        assert cluster.calls("core1").status().calls == ()
        done = await note(cluster, "core1", "hello")
        assert (done.outcome, done.id, done.error) == ("ok", 1, None)
        assert done.result == "hello on core1"
        for name, seat in cluster.seats.items():
            [run] = seat.runs
            kind = "initiate" if name == "core1" else "replicate"
            assert (run.id, run.kind, run.initiator, run.said) == (1, kind, "core1", "hello")
            assert (run.attempt, run.token) == (1, f"1@{name}")
        await cluster.converge()
        now_ms = cluster.nodes[0].clock.now_ms()
        for name in THREE:
            found = cluster.calls(name).query(1)
            assert (found.function, found.version, found.initiator) == ("note", 1, "core1")
            assert (found.state, found.pending_nodes) == ("committed", ())
            assert abs(now_ms - found.created_ms) < DEADLINE_S * 1000
        assert (await note(cluster, "core2")).id == 2
        await cluster.converge()
        status = cluster.calls("core2").status()
        assert {row.name: row.cursor for row in status.nodes} == dict.fromkeys(THREE, 2)
        assert [call.id for call in status.calls] == [2, 1]

    play(body)


def test_2_initiator_returns_an_error() -> None:
    async def body(cluster: CallsCluster) -> None:
        cluster.seats["core1"].broken = True
        failed = await note(cluster, "core1", SECRET)
        assert failed.outcome == "init_failure"
        assert failed.error is not None
        assert (failed.error.kind, failed.error.reason) == ("Broken", "as the test says")
        assert "cluster.py" in failed.error.stack
        assert [run.kind for run in cluster.seats["core1"].tries] == ["initiate"]
        cluster.seats["core1"].broken = False
        # Its id is gone, and all go on behind it.
        done = await note(cluster, "core3")
        assert (done.outcome, done.id) == ("ok", failed.id + 1)
        for seat in cluster.seats.values():
            assert seat.ids == [done.id]
        assert [call.id for call in cluster.committed()] == [done.id]
        aborted = cluster.calls("core2").query(failed.id)
        assert (aborted.state, aborted.pending_nodes) == ("aborted", ())
        # The class and the place, and nothing of the message or of the arguments.
        assert aborted.cause.startswith("failed: Broken in ")
        assert "as the test says" not in aborted.cause
        record = cluster.table("records")[failed.id]
        assert record.args == b""
        assert cluster.alarms() == set()

    play(body)


def test_3_initiator_does_not_know_the_function() -> None:
    async def body(cluster: CallsCluster) -> None:
        calls = cluster.calls("core1")
        unknown = await calls.call("nte", Note("x"))
        assert unknown.outcome == "init_failure"
        assert unknown.error is not None
        assert "nte" in unknown.error.reason
        assert unknown.error.stack
        wrong = await calls.call("note", {"text": 7})
        assert wrong.outcome == "init_failure"
        newer = await calls.call("note", Note("x"), version=2)
        assert newer.outcome == "init_failure"
        await cluster.converge()
        # No id was taken for any of them.
        assert cluster.last() == 0
        assert cluster.table("records") == {}
        assert all(seat.tries == [] for seat in cluster.seats.values())
        assert (await note(cluster, "core1")).id == 1

    play(body)


def test_3_a_node_without_the_function_stands_before_the_call_until_it_knows_it() -> None:
    """Never taken for "nothing to do": on an update the function may come a little later."""

    async def body(cluster: CallsCluster) -> None:
        ran: list[str] = []

        def register(name: str) -> None:
            @cluster.calls(name).function("late", version=2)
            def late(args: str, call: Call) -> None:
                ran.append(name)

        register("core1")
        register("core2")
        done = await cluster.calls("core1").call("late", "x", required=["core1", "core2"])
        assert done.outcome == "ok"
        await note(cluster, "core2", required=["core1", "core2"])
        await until(
            lambda: cluster.alarms() == {("call_failed", "core3", 1)},
            lambda: f"an alarm tells who does not know it; there are {cluster.alarms()}",
        )
        assert cluster.status_of("core3").cause.startswith("UnknownFunction")
        assert cluster.seats["core3"].tries == []
        register("core3")
        await cluster.reached(2, THREE)
        assert ran == ["core1", "core2", "core3"]
        assert cluster.seats["core3"].ids == [2]
        await until(lambda: cluster.alarms() == set(), "the alarm is cleared")

    play(body)


# --- 4, 5: a replica fails ------------------------------------------------------------------------


async def peers_stuck(cluster: CallsCluster) -> None:
    """Call 1 ran everywhere; call 2 on core1 only, because the others are broken."""
    assert (await note(cluster, "core1")).id == 1
    for name in ("core2", "core3"):
        cluster.seats[name].broken = True
    only = await note(cluster, "core1", "second", required=1)
    assert (only.outcome, only.id, only.result) == ("ok", 2, "second on core1")
    peers = [("call_failed", "core2", 2), ("call_failed", "core3", 2)]
    await until(
        lambda: cluster.alarms() >= set(peers), lambda: f"both alarms; there are {cluster.alarms()}"
    )


def test_4_peers_fail_and_a_call_there_is_refused_as_stale(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="raftkv")

    async def body(cluster: CallsCluster) -> None:
        await peers_stuck(cluster)
        assert cluster.cursors() == {"core1": 2, "core2": 1, "core3": 1}
        with pytest.raises(StaleView) as refused:
            await note(cluster, "core2", SECRET)
        assert (refused.value.cluster_id, refused.value.own_id) == (2, 1)
        assert refused.value.attempts >= STALE_TRIES
        assert "raftkv calls status" in str(refused.value)
        await until(
            lambda: all(len(cluster.seats[n].tries) > STALE_TRIES for n in ("core2", "core3")),
            "both go on trying",
        )
        assert cluster.seats["core2"].ids == [1]
        # Nothing behind the failing call was run, and the refused one left no trace.
        assert {run.id for run in cluster.seats["core2"].tries} == {1, 2}
        assert [run.attempt for run in cluster.seats["core3"].tries[1:4]] == [1, 2, 3]
        assert cluster.last() == 2
        row = cluster.status_of("core2")
        assert (row.cursor, row.lag, row.failing) == (1, 1, 2)
        assert row.cause.startswith("Broken in ")
        assert cluster.calls("core1").query(2).pending_nodes == ("core2", "core3")
        warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert any("core2" in line and "call_failed" in line for line in warned), warned
        # Neither arguments nor the words of an error are in any log line.
        for hidden in (SECRET, "second", "as the test says"):
            assert not any(hidden in r.getMessage() for r in caplog.records)

    play(body)


def test_5_peers_recover() -> None:
    async def body(cluster: CallsCluster) -> None:
        await peers_stuck(cluster)
        for number in (3, 4):
            assert (await note(cluster, "core1", f"{number}", required=1)).id == number
        told: list[tuple[str, str, bool]] = []
        cluster.calls("core3").on_alarm(
            lambda alarm, raised: told.append((alarm.name, alarm.node, raised))
        )
        for seat in cluster.seats.values():
            seat.broken = False
        await cluster.reached(4, THREE)
        assert all(seat.ids == [1, 2, 3, 4] for seat in cluster.seats.values())
        await until(lambda: cluster.alarms() == set(), "the alarms are cleared")
        await until(lambda: ("call_failed", "core3", False) in told, "who listens has been told")
        assert (await note(cluster, "core2")).outcome == "ok"

    play(body)


# --- 7, 8: skip and fast-forward ------------------------------------------------------------------


def test_7_skip() -> None:
    async def body(cluster: CallsCluster) -> None:
        await peers_stuck(cluster)
        before = len(cluster.seats["core2"].tries)
        # Asked on another node.
        skipped = await cluster.calls("core1").skip("core2")
        assert (skipped.node, skipped.cursor, skipped.last) == ("core2", 2, 2)
        [attempt] = skipped.attempts
        assert (attempt.id, attempt.function, attempt.ok, attempt.error) == (
            2,
            "note",
            False,
            "Broken",
        )
        assert len(cluster.seats["core2"].tries) > before
        await cluster.converge()
        assert cluster.cursors() == {"core1": 2, "core2": 2, "core3": 1}
        assert cluster.alarms() == {("call_failed", "core3", 2)}
        assert cluster.status_of("core2").skipped == (2,)
        cluster.seats["core2"].broken = False
        assert (await note(cluster, "core2", required=["core1", "core2"])).id == 3
        assert cluster.seats["core2"].ids == [1, 3]
        # A skip runs the call once more: what succeeds by now was executed, not skipped.
        cluster.seats["core3"].broken = False
        await cluster.reached(3, ["core3"])
        assert cluster.seats["core3"].ids == [1, 2, 3]
        nothing = await cluster.calls("core3").skip()
        assert (nothing.cursor, nothing.attempts) == (3, ())

    play(body)


def test_8_fast_forward() -> None:
    async def body(cluster: CallsCluster) -> None:
        await peers_stuck(cluster)
        for number in range(3, 7):
            calls = cluster.calls("core1")
            lagging = await calls.call("note", Note(f"{number}"), required=2, timeout_s=2.0)
            assert (lagging.outcome, lagging.id) == ("peers_lagging", number)
            assert lagging.result == f"{number} on core1"
            assert lagging.nodes == ("core2", "core3")
        forward = cluster.calls("core1").fast_forward
        for wanted, reached in ((3, 3), (4, 4), (7, 6)):
            told = await forward("core2", wanted)
            assert (told.cursor, told.last) == (reached, 6)
            await cluster.converge()
            assert cluster.cursors()["core2"] == reached
        assert [a.id for a in told.attempts] == [5, 6]
        assert (await forward("core3", 2)).cursor == 2
        back = await forward("core3", 1)
        assert (back.cursor, back.attempts) == (2, ())
        await cluster.converge()
        assert cluster.cursors() == {"core1": 6, "core2": 6, "core3": 2}
        assert cluster.alarms() == {("call_failed", "core3", 3)}
        with pytest.raises(UnknownNode):
            await forward("core9", 6)

    play(body)


# --- 9: history -----------------------------------------------------------------------------------


def test_9_history_is_trimmed_behind_the_slowest() -> None:
    async def body(cluster: CallsCluster) -> None:
        await cluster.configure(history_max=100, cleanup_ms=1_000)
        for number in range(150):
            assert (await note(cluster, "core1", required=1)).id == number + 1
        await cluster.reached(150, THREE)
        await until(
            lambda: min(cluster.table("records")) == 51,
            lambda: f"1 to 50 are gone; the oldest is {min(cluster.table('records'))}",
        )
        records = cluster.table("records")
        assert list(records) == list(range(51, 151))
        assert all(r.function == "note" and r.initiator == "core1" for r in records.values())
        assert all(r.created_ms > 0 for r in records.values())

    play(body)


def test_9_nothing_above_a_stuck_node_is_deleted() -> None:
    async def body(cluster: CallsCluster) -> None:
        await cluster.configure(history_max=5, cleanup_ms=1_000)
        for _ in range(10):
            await note(cluster, "core1")
        cluster.seats["core3"].broken = True
        for _ in range(30):
            await note(cluster, "core1", required=["core1", "core2"])
        await until(
            lambda: min(cluster.table("records")) == 6,
            lambda: f"of what all have done, 5 are left: {min(cluster.table('records'))}",
        )
        # It is the log that keeps them: asking again changes nothing.
        trimmed = await cluster.nodes[0].propose("calls", Trim(rows_max=1_000))
        assert (trimmed.rows, trimmed.gaps, trimmed.more) == (0, (), False)
        assert list(cluster.table("records")) == list(range(6, 41))
        cluster.seats["core3"].broken = False
        await cluster.reached(40, ["core3"])
        await until(
            lambda: list(cluster.table("records")) == list(range(36, 41)), "the rest is gone, too"
        )

    play(body)


# --- 11: joining, and a gap -----------------------------------------------------------------------


async def a_long_history(cluster: CallsCluster) -> None:
    """150 calls that leave 10 keys; 1 to 50 are trimmed."""
    await cluster.configure(history_max=100, cleanup_ms=1_000)
    for number in range(150):
        await store(cluster, "core1", f"k{number % 10}", f"v{number}", required=1)
    await cluster.reached(150)
    await until(lambda: min(cluster.table("records")) == 51, "1 to 50 are trimmed")


def test_11_a_core_joins_late() -> None:
    async def body(cluster: CallsCluster) -> None:
        await a_long_history(cluster)
        await cluster.start_new_core("core4")
        await cluster.nodes[0].membership.add("core4")
        await cluster.running["core4"].wait_ready()
        await cluster.following([*THREE, "core4"])
        seat = cluster.seats["core4"]
        # The data as of one id, and nothing of what led to it was run.
        assert seat.shelf.loaded == [150]
        assert seat.tries == []
        assert seat.shelf.items == cluster.seats["core1"].shelf.items
        assert cluster.cursors()["core4"] == 150
        done = await store(cluster, "core4", "k0", "new")
        assert (done.outcome, done.id) == ("ok", 151)
        assert seat.ids == [151]
        assert len({tuple(sorted(s.items())) for s in shelves(cluster).values()}) == 1

    play(body, shelves=True)


def test_11_a_core_joins_while_calls_go_on() -> None:
    """Whatever id its copy is as of, it executes exactly what comes behind."""

    async def body(cluster: CallsCluster) -> None:
        await a_long_history(cluster)
        stopping = False

        async def go_on() -> None:
            number = 0
            while not stopping:
                number += 1
                await store(cluster, "core1", f"k{number % 10}", f"w{number}", required=1)

        going_on = asyncio.ensure_future(go_on())
        await cluster.start_new_core("core4")
        await cluster.nodes[0].membership.add("core4")
        await cluster.running["core4"].wait_ready()
        await cluster.following([*THREE, "core4"])
        joined_at = cluster.last()
        await until(lambda: cluster.last() > joined_at + 10, "calls go on behind the join")
        stopping = True
        await going_on
        await cluster.reached(cluster.last())
        seat = cluster.seats["core4"]
        as_of = seat.shelf.loaded[-1]
        assert seat.ids == list(range(as_of + 1, cluster.last() + 1))
        assert len({tuple(sorted(s.items())) for s in shelves(cluster).values()}) == 1

    play(body, shelves=True)


def test_11_replicants_take_part_when_the_setting_says_so() -> None:
    async def body(cluster: CallsCluster) -> None:
        await a_long_history(cluster)
        assert cluster.state_of("replicant1") == ""
        await cluster.configure(replicants_take_part=True)
        await cluster.following([*THREE, "replicant1"])
        seat = cluster.seats["replicant1"]
        assert (seat.shelf.loaded, seat.tries) == ([150], [])
        assert seat.shelf.items == cluster.seats["core1"].shelf.items
        done = await store(cluster, "core2", "k0", "new")
        assert done.id == 151
        assert seat.ids == [151]
        # It keeps its copy of the log in memory, and its data as this test does.
        await cluster.restart("replicant1")
        assert (await store(cluster, "core2", "k1", "newer")).outcome == "ok"
        assert seat.ids == [151, 152]
        assert seat.shelf.loaded == [150]

    play(body, replicants=1, shelves=True)


def test_11_a_replicant_forwards_and_takes_no_part() -> None:
    async def body(cluster: CallsCluster) -> None:
        done = await note(cluster, "replicant1", "from far")
        assert (done.outcome, done.id) == ("ok", 1)
        [initiator] = {run.initiator for s in cluster.seats.values() for run in s.runs}
        assert initiator in THREE
        assert done.result == f"from far on {initiator}"
        assert cluster.seats["replicant1"].tries == []
        for name in THREE:
            cluster.seats[name].broken = True
        # The failure comes back as it would on the core itself.
        failed = await note(cluster, "replicant1")
        assert failed.outcome == "init_failure"
        assert failed.error is not None
        assert (failed.error.kind, failed.error.reason) == ("Broken", "as the test says")

    play(body, replicants=1)


def test_11_who_was_away_beyond_the_history_is_in_a_gap_until_it_has_a_copy() -> None:
    async def body(cluster: CallsCluster) -> None:
        hard_max = 1_000
        await cluster.configure(history_max=10, cleanup_ms=1_000, history_hard_max=hard_max)
        await store(cluster, "core1", "k", "before")
        await cluster.kill("core3")
        # Through one caller after the other a call costs a round; side by side they share them.
        calls = [
            cluster.calls("core1").call(
                "store", Item(f"k{n % 10}", f"v{n}"), required=1, timeout_s=600
            )
            for n in range(hard_max + 100)
        ]
        for first in range(0, len(calls), 100):
            done = await asyncio.gather(*calls[first : first + 100])
            assert {answer.outcome for answer in done} == {"ok"}
        await cluster.reached(hard_max + 101, ["core1", "core2"])
        await until(lambda: cluster.state_of("core3") == "gap", "core3 is in a gap")
        assert ("gap", "core3") in {alarm[:2] for alarm in cluster.alarms()}
        await until(lambda: min(cluster.table("records")) > 2, "trimming goes on")
        seat = cluster.seats["core3"]
        assert seat.ids == [1]
        await cluster.restart("core3")
        await cluster.following()
        assert seat.shelf.loaded[-1] >= min(cluster.table("records")) - 1
        await until(lambda: cluster.alarms() == set(), "the alarm is cleared")
        assert seat.shelf.items == cluster.seats["core1"].shelf.items
        # Never a silent jump: what it has not run, it has got by the copy.
        assert [id for id in seat.ids if 1 < id <= seat.shelf.loaded[-1]] == []
        done_there = await store(cluster, "core3", "k", "after")
        assert done_there.outcome == "ok"

    play(body, shelves=True)


def test_11_a_gap_without_a_copy_stays_until_an_operator_forwards_it() -> None:
    """Without any state to copy nothing can be known of what was missed."""

    async def body(cluster: CallsCluster) -> None:
        hard_max = 1_000
        await cluster.configure(history_max=10, cleanup_ms=1_000, history_hard_max=hard_max)
        await note(cluster, "core1")
        await cluster.kill("core3")
        calls = [
            cluster.calls("core1").call("note", Note(f"{n}"), required=1, timeout_s=600)
            for n in range(hard_max + 100)
        ]
        for first in range(0, len(calls), 100):
            await asyncio.gather(*calls[first : first + 100])
        await until(lambda: cluster.state_of("core3") == "gap", "core3 is in a gap")
        await cluster.restart("core3")
        # The one that was asked is ahead of the other: nobody waited for that one.
        await cluster.reached(cluster.last(), ["core1", "core2"])
        lagging = await cluster.calls("core1").call("note", Note("x"), timeout_s=1.0)
        assert cluster.state_of("core3") == "gap"
        assert cluster.seats["core3"].ids == [1]
        assert lagging.outcome == "ok", (lagging, cluster.table("cursors"))
        told = await cluster.calls("core1").fast_forward("core3", cluster.last())
        assert told.cursor == cluster.last()
        await cluster.following()
        assert (await note(cluster, "core3")).outcome == "ok"
        assert cluster.seats["core3"].ids == [1, cluster.last()]

    play(body)


def test_11_a_disk_that_was_lost_is_noticed() -> None:
    """The node's state is older than its cursor: what it executed is gone with the data."""

    async def body(cluster: CallsCluster) -> None:
        for number in range(5):
            await store(cluster, "core1", f"k{number}", "v")
        await cluster.reached(5, THREE)
        await cluster.kill("core3")
        seat = cluster.seats["core3"]
        seat.shelf.items, seat.shelf.at = {}, 0
        await cluster.restart("core3")
        await until(lambda: seat.shelf.loaded != [], "core3 gets a copy")
        await cluster.following()
        assert seat.shelf.items == cluster.seats["core1"].shelf.items
        assert seat.ids == [1, 2, 3, 4, 5]
        assert (await store(cluster, "core3", "k", "after")).outcome == "ok"

    play(body, shelves=True)


# --- 12: leaving ----------------------------------------------------------------------------------


def test_12_leave_and_rejoin() -> None:
    async def body(cluster: CallsCluster) -> None:
        await cluster.configure(history_max=2, cleanup_ms=1_000)
        await store(cluster, "core1", "k", "1")
        left = await cluster.calls("core3").leave()
        assert left.done
        await cluster.converge()
        assert set(cluster.cursors()) == {"core1", "core2"}
        for number in range(10):
            done = await store(cluster, "core1", "k", f"{number}")
            assert done.outcome == "ok"
        await until(lambda: min(cluster.table("records")) == 10, "trimming goes on without it")
        seat = cluster.seats["core3"]
        assert seat.ids == [1]
        # A restart does not bring it back: it has left.
        await cluster.restart("core3")
        await store(cluster, "core2", "k", "last")
        await cluster.converge()
        assert set(cluster.cursors()) == {"core1", "core2"}
        assert cluster.status_of("core3").state == "left"
        await cluster.calls("core3").rejoin()
        await cluster.following()
        # A fresh cursor with a copy, not the old one at 1.
        assert seat.shelf.loaded == [12]
        assert cluster.cursors()["core3"] == 12
        assert seat.shelf.items == {"k": b"last"}
        assert (await store(cluster, "core3", "k", "back")).id == 13
        assert seat.ids == [1, 13]

    play(body, shelves=True)


def test_12_a_removed_node_is_made_to_leave() -> None:
    async def body(cluster: CallsCluster) -> None:
        await cluster.configure(history_max=2, cleanup_ms=1_000)
        await store(cluster, "core1", "k", "1")
        with pytest.raises(NodeIsUp):
            await cluster.calls("core1").force_leave("core3")
        await cluster.kill("core3")
        await cluster.nodes[0].membership.remove("core3", force=True)
        await cluster.is_down("core3")
        # Its cursor ends with its membership: it holds neither calls nor the history.
        await until(lambda: set(cluster.cursors()) == {"core1", "core2"}, "its cursor ends")
        for number in range(11):
            done = await store(cluster, "core1", "k", f"{number}")
            assert done.outcome == "ok"
        await cluster.converge()
        assert (await store(cluster, "core1", "k", "without it")).outcome == "ok"
        await until(lambda: min(cluster.table("records")) > 10, "trimming goes on")
        # It comes again with an empty directory, and needs no permission.
        shutil.rmtree(cluster.configs["core3"].dir)
        seat = cluster.seats["core3"]
        seat.shelf.items, seat.shelf.at = {}, 0
        await cluster.start("core3")
        await cluster.nodes[0].membership.add("core3")
        await cluster.running["core3"].wait_ready()
        await cluster.following()
        assert seat.shelf.loaded == [cluster.last()]
        assert seat.shelf.items == {"k": b"without it"}
        assert (await store(cluster, "core3", "k", "again")).outcome == "ok"
        assert seat.ids == [1, cluster.last()]

    play(body, shelves=True)


# --- 13: a stopped node ---------------------------------------------------------------------------


def test_13_stopped_node() -> None:
    async def body(cluster: CallsCluster) -> None:
        await note(cluster, "core1")
        await cluster.kill("core3")
        # It is made while core3 counts as alive still; the answer comes when that has changed.
        async with asyncio.timeout(DEADLINE_S / 2):
            stopped = await cluster.calls("core1").call("note", Note("x"), timeout_s=120)
        assert (stopped.outcome, stopped.id, stopped.nodes) == ("stopped_nodes", 2, ("core3",))
        assert stopped.result == "x on core1"
        assert not cluster.up("core3")
        # And at once when it is known.
        async with asyncio.timeout(DEADLINE_S / 4):
            again = await cluster.calls("core2").call("note", Note("y"), timeout_s=120)
        assert (again.outcome, again.nodes) == ("stopped_nodes", ("core3",))
        named = await note(cluster, "core2", required=["core1"])
        assert named.outcome == "ok"
        await cluster.restart("core3")
        await cluster.reached(4, THREE)
        assert cluster.seats["core3"].ids == [1, 2, 3, 4]
        assert (await note(cluster, "core3")).outcome == "ok"

    play(body)


# --- 14: the replica has it already ---------------------------------------------------------------


def test_14_replica_side_divergence() -> None:
    async def body(cluster: CallsCluster) -> None:
        cluster.seats["core2"].shelf.items["x"] = b"there before"
        done = await cluster.calls("core1").call("add", Item("x", "1"))
        assert (done.outcome, done.id) == ("ok", 1)
        assert cluster.alarms() == set()
        assert {s["x"] for s in shelves(cluster).values()} == {b"1"}
        again = await cluster.calls("core1").call("add", Item("x", "2"))
        assert again.outcome == "init_failure"
        assert again.error is not None
        assert again.error.kind == "AlreadyThere"
        assert [call.id for call in cluster.committed()] == [1]
        assert {s["x"] for s in shelves(cluster).values()} == {b"1"}

    play(body, shelves=True)


# --- 15: fix --------------------------------------------------------------------------------------


def test_15_fix_finds_nothing_to_do() -> None:
    """(i)"""

    async def body(cluster: CallsCluster) -> None:
        await store(cluster, "core1", "k", "v")
        report = await cluster.calls("core2").fix()
        assert (report.verdict, report.forwarded, report.synced) == ("consistent", (), ())
        assert cluster.last() == 1

    play(body, shelves=True)


def test_15_fix_reports_what_differs_under_the_same_id() -> None:
    """(ii)"""

    async def body(cluster: CallsCluster) -> None:
        await store(cluster, "core1", "k", "v")
        await cluster.reached(1, THREE)
        cluster.seats["core3"].shelf.items.update(k=SECRET.encode(), own=b"local")
        before = shelves(cluster)
        report = await cluster.calls("core2").fix()
        assert report.verdict == "differs"
        [differing] = report.differing
        assert differing.node == "core3"
        assert sorted(differing.keys) == ["shelf:k", "shelf:own"]
        assert SECRET not in repr(report)
        assert shelves(cluster) == before
        assert cluster.seats["core3"].shelf.items["k"] == SECRET.encode()
        assert cluster.last() == 1

    play(body, shelves=True)


def test_15_fix_copies_the_most_advanced_and_a_second_fix_does_nothing() -> None:
    """(iii) and (v): ids and values differ."""

    async def body(cluster: CallsCluster) -> None:
        await store(cluster, "core1", "k", "old")
        cluster.seats["core3"].broken = True
        await store(cluster, "core1", "k", "new", required=["core1", "core2"])
        assert cluster.cursors() == {"core1": 2, "core2": 2, "core3": 1}
        assert cluster.seats["core3"].shelf.items == {"k": b"old"}
        report = await cluster.calls("core3").fix()
        assert (report.verdict, report.synced, report.forwarded) == ("fixed", ("core3",), ())
        assert report.lead in ("core1", "core2")
        assert report.id == 3
        await cluster.following()
        assert cluster.cursors() == dict.fromkeys(THREE, 3)
        assert {s["k"] for s in shelves(cluster).values()} == {b"new"}
        await until(lambda: cluster.alarms() == set(), "the alarm is cleared")
        again = await cluster.calls("core3").fix()
        assert again.verdict == "consistent"
        assert cluster.last() == 3
        cluster.seats["core3"].broken = False
        assert (await store(cluster, "core3", "k", "go on")).id == 4

    play(body, shelves=True)


def test_15_fix_forwards_where_only_the_ids_differ() -> None:
    """(iv)"""

    async def body(cluster: CallsCluster) -> None:
        await store(cluster, "core1", "k", "v")
        cluster.seats["core3"].broken = True
        # This one leaves nothing on the shelf.
        await note(cluster, "core1", required=["core1", "core2"])
        report = await cluster.calls("core1").fix()
        assert (report.verdict, report.forwarded, report.synced) == ("fixed", ("core3",), ())
        assert report.id == 3
        await cluster.converge()
        assert cluster.cursors() == dict.fromkeys(THREE, 3)
        assert cluster.seats["core3"].ids == [1]
        assert cluster.seats["core3"].shelf.loaded == []
        assert (await cluster.calls("core1").fix()).verdict == "consistent"
        cluster.seats["core3"].broken = False
        assert (await store(cluster, "core3", "k", "go on")).id == 4

    play(body, shelves=True)


def test_15_fix_is_given_up_when_the_log_moves() -> None:
    async def body(cluster: CallsCluster) -> None:
        await store(cluster, "core1", "k", "old")
        cluster.seats["core3"].broken = True
        await store(cluster, "core1", "k", "new", required=["core1", "core2"])
        moving: list[asyncio.Future[CallResult]] = []

        async def move() -> None:
            """While core3 is asked for what it has, core1 makes a call."""
            if not moving:
                call = cluster.calls("core1").call("store", Item("k", "newest"), required=1)
                moving.append(asyncio.ensure_future(call))
            await until(lambda: cluster.last() == 3, "the call has its id")

        cluster.seats["core3"].shelf.before_dump = move
        report = await cluster.calls("core2").fix()
        assert report.verdict == "moved"
        assert (report.forwarded, report.synced) == ((), ())
        done = await moving[0]
        assert (done.outcome, done.id) == ("ok", 3)
        # Nothing was changed: core3 is where it was, and behind it all go on.
        assert cluster.state_of("core3") == "following"
        assert cluster.cursors()["core3"] == 1
        assert cluster.seats["core3"].shelf.items == {"k": b"old"}
        cluster.seats["core3"].shelf.before_dump = None
        await cluster.reached(3, ["core2"])
        again = await cluster.calls("core2").fix()
        assert (again.verdict, again.id) == ("fixed", 4)
        await cluster.following()
        assert {s["k"] for s in shelves(cluster).values()} == {b"newest"}

    play(body, shelves=True)


def test_reset_forgets_the_log_and_goes_on_behind_it() -> None:
    async def body(cluster: CallsCluster) -> None:
        await peers_stuck(cluster)
        done = await cluster.calls("core2").reset()
        assert done.done
        await cluster.converge()
        assert cluster.cursors() == dict.fromkeys(THREE, 2)
        assert cluster.calls("core1").status().calls == ()
        await until(lambda: cluster.alarms() == set(), "the alarms are cleared")
        for seat in cluster.seats.values():
            seat.broken = False
        # No id is used twice, so no token is.
        assert (await note(cluster, "core2")).id == 3

    play(body)

"""Scenario 6 on real nodes: many calls at once, one order, no hole, no run too many or too few.

A seed decides how long each run of a function takes, on each node. Durations are printed and noted
with the test's result, and judge nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import pytest

from raftkv.errors import RaftkvError, Stopped
from raftkv_cluster_call import CallResult, DeadlinePassed
from tests.plugins.raftkv_cluster_call.cluster import (
    CallsCluster,
    Item,
    Note,
    Shelf,
    play,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Noting = Callable[[str, object], None]

THREE = ["core1", "core2", "core3"]
CALLS_EACH = 256
# As long as a call may wait for its turn at most: nothing here is to be decided by time.
PATIENCE_S = 600.0
PAUSE_MAX_S = 0.004


def pauses(cluster: CallsCluster, seed: int) -> None:
    """Every run of a function takes a random time, another one on every node."""
    for seat in cluster.seats.values():
        name = seat.name
        seat.pause_s = lambda id, name=name: (  # type: ignore[misc]
            random.Random(f"{seed}/{name}/{id}").uniform(0.0, PAUSE_MAX_S)
        )


def test_6_256_calls_from_each_of_three_nodes_at_once(record_property: Noting) -> None:
    seed = 6
    print(f"seed {seed}")

    async def body(cluster: CallsCluster) -> None:
        pauses(cluster, seed)
        loop = asyncio.get_running_loop()
        began = loop.time()
        calls = [
            cluster.calls(name).call("note", Note(f"{name}/{number}"), timeout_s=PATIENCE_S)
            for number in range(CALLS_EACH)
            for name in THREE
        ]
        answers: list[CallResult] = await asyncio.gather(*calls)
        duration_s = loop.time() - began
        print(f"{len(calls)} calls, required=all: {duration_s:.1f} s")
        record_property("calls", len(calls))
        record_property("duration_s", round(duration_s, 1))

        total = CALLS_EACH * len(THREE)
        every = list(range(1, total + 1))
        assert {answer.outcome for answer in answers} == {"ok"}
        assert sorted(answer.id for answer in answers) == every
        await cluster.reached(total, THREE)
        # Each node ran each call exactly once, in the order of the ids.
        for seat in cluster.seats.values():
            assert seat.ids == every
            assert [run.id for run in seat.tries] == every
        # All nodes agree on what each id was, and who began it.
        stories = [
            [(run.id, run.said, run.initiator) for run in seat.runs]
            for seat in cluster.seats.values()
        ]
        assert stories[0] == stories[1] == stories[2]
        begun = Counter(initiator for _, _, initiator in stories[0])
        assert begun == dict.fromkeys(THREE, CALLS_EACH)
        said = {answer.id: answer.result for answer in answers}
        assert all(said[id] == f"{text} on {name}" for id, text, name in stories[0])
        states = Counter(record.state for record in cluster.table("records").values())
        assert states == {"committed": total}
        assert (cluster.last(), cluster.table("queue"), cluster.table("due")) == (total, {}, {})
        assert cluster.alarms() == set()

    play(body)


async def queued(cluster: CallsCluster, calls: int) -> None:
    """Wait until so many calls wait for their turn."""
    await until(lambda: len(cluster.table("queue")) == calls, f"{calls} calls wait")


def test_6_first_come_first_served_so_that_nobody_starves() -> None:
    """While one call runs others queue up, from all nodes; they get their ids in that order."""

    async def body(cluster: CallsCluster) -> None:
        seat = cluster.seats["core1"]
        seat.gate = asyncio.Event()
        calls = []
        for number in range(13):
            name = THREE[number % 3]
            call = cluster.calls(name).call("note", Note(f"{number}"), timeout_s=PATIENCE_S)
            calls.append(asyncio.ensure_future(call))
            if number == 0:
                await until(lambda: len(seat.tries) == 1, "the first runs")
            await queued(cluster, number)
        seat.gate.set()
        answers = await asyncio.gather(*calls)
        assert [answer.id for answer in answers] == list(range(1, 14))
        assert [run.said for run in seat.runs] == [f"{number}" for number in range(13)]

    play(body)


def test_6_one_caller_gets_its_turn_among_many() -> None:
    """A node that makes a call now and then is not kept off by others that never pause."""

    async def body(cluster: CallsCluster) -> None:
        stopping = False
        busy: list[CallResult] = []

        async def keep_busy(name: str) -> None:
            while not stopping:
                call = cluster.calls(name).call("note", Note("busy"), required=1)
                busy.append(await call)

        crowd = [
            asyncio.ensure_future(keep_busy(name)) for name in ("core1", "core2") for _ in range(16)
        ]
        await until(lambda: len(busy) > len(crowd), "the others keep calling")
        for _ in range(5):
            before = cluster.last()
            done = await cluster.calls("core3").call("note", Note("one"), required=1)
            # Behind those that waited when it came, and some that came while it was on its way.
            assert done.id - before < 4 * len(crowd)
        stopping = True
        await asyncio.gather(*crowd)
        assert {answer.outcome for answer in busy} == {"ok"}

    play(body)


def test_6_from_three_cores_and_three_replicants(record_property: Noting) -> None:
    """Replicants have their calls made by cores; nothing is doubled or lost on that way."""
    seed = 66
    print(f"seed {seed}")

    async def body(cluster: CallsCluster) -> None:
        pauses(cluster, seed)
        each = 32
        loop = asyncio.get_running_loop()
        began = loop.time()
        calls = [
            cluster.calls(name).call("note", Note(f"{name}/{number}"), timeout_s=PATIENCE_S)
            for number in range(each)
            for name in cluster.running
        ]
        answers = await asyncio.gather(*calls)
        duration_s = loop.time() - began
        print(f"{len(calls)} calls from 3+3 nodes, required=all: {duration_s:.1f} s")
        record_property("duration_s", round(duration_s, 1))
        every = list(range(1, len(calls) + 1))
        assert {answer.outcome for answer in answers} == {"ok"}
        assert sorted(answer.id for answer in answers) == every
        for name in THREE:
            assert cluster.seats[name].ids == every
        texts = Counter(run.said for run in cluster.seats["core1"].runs)
        assert texts == {f"{n}/{i}": 1 for n in cluster.running for i in range(each)}
        assert all(cluster.seats[n].tries == [] for n in cluster.running if n not in THREE)

    play(body, replicants=3)


def test_who_gives_up_in_the_queue_has_not_run_anywhere() -> None:
    """A deadline that passes, or a caller that is cancelled, while another call runs."""

    async def body(cluster: CallsCluster) -> None:
        seat = cluster.seats["core1"]
        seat.gate = asyncio.Event()
        running = asyncio.ensure_future(
            cluster.calls("core1").call("note", Note("running"), timeout_s=PATIENCE_S)
        )
        await until(lambda: len(seat.tries) == 1, "one call runs")
        with pytest.raises(DeadlinePassed):
            await cluster.calls("core2").call("note", Note("late"), timeout_s=0.3)
        cancelled = asyncio.ensure_future(
            cluster.calls("core3").call("note", Note("cancelled"), timeout_s=PATIENCE_S)
        )
        waiting = asyncio.ensure_future(
            cluster.calls("core2").call("note", Note("waiting"), timeout_s=PATIENCE_S)
        )
        await until(lambda: len(cluster.table("queue")) >= 2, "two calls wait")
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await until(lambda: len(cluster.table("queue")) == 1, "what was cancelled is taken back")
        seat.gate.set()
        assert (await running).outcome == "ok"
        assert (await waiting).outcome == "ok"
        for each in cluster.seats.values():
            assert [run.said for run in each.tries] == ["running", "waiting"]
        await cluster.converge()
        assert cluster.table("due") == {}
        assert cluster.alarms() == set()

    play(body)


def test_who_is_cancelled_while_it_runs_has_it_finished() -> None:
    """Its effect may be there already: it is decided as if somebody waited."""

    async def body(cluster: CallsCluster) -> None:
        seat = cluster.seats["core1"]
        seat.gate = asyncio.Event()
        running = asyncio.ensure_future(cluster.calls("core1").call("note", Note("running")))
        await until(lambda: len(seat.tries) == 1, "the call runs")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        seat.gate.set()
        await cluster.reached(1, THREE)
        assert [each.ids for each in cluster.seats.values()] == [[1], [1], [1]]
        assert cluster.table("records")[1].state == "committed"

    play(body)


def test_who_reserves_while_the_node_stops_is_told_so() -> None:
    """The answer to its reservation comes when nobody takes turns any more."""

    async def body(cluster: CallsCluster) -> None:
        calls = cluster.calls("core1")
        asking = asyncio.ensure_future(calls.call("note", Note("x"), timeout_s=PATIENCE_S))
        # On its way to the log, and further than this process it cannot have come.
        for _ in range(3):
            await asyncio.sleep(0)
        calls.calling.stop()
        calls.worker.paused = True
        async with asyncio.timeout(30.0):
            with pytest.raises(Stopped):
                await asking
        await cluster.restart("core1")
        await cluster.reached(1, THREE)
        assert all(seat.tries == [] for seat in cluster.seats.values())

    play(body)


class Load:
    """Callers on all nodes that run, which go on whatever they are told."""

    def __init__(self, cluster: CallsCluster, callers_each: int, *functions: str) -> None:
        self._cluster = cluster
        self._callers_each = callers_each
        self._functions = functions
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self.answers: list[CallResult] = []
        self.errors: list[BaseException] = []

    def begin(self, name: str) -> None:
        """Let this node make calls from now on, as many of each function."""
        for function in self._functions:
            for _ in range(self._callers_each):
                self._tasks.append(asyncio.ensure_future(self._call(name, function)))

    async def _call(self, name: str, function: str) -> None:
        """Until the node is stopped: its next life gets callers of its own."""
        calls = self._cluster.calls(name)
        while not self._stopping:
            number = len(self.answers)
            args = Item(f"k{number % 10}", f"{number}") if function == "store" else Note(name)
            try:
                self.answers.append(await calls.call(function, args, required=1, timeout_s=30.0))
            except Stopped as error:
                self.errors.append(error)
                return
            except RaftkvError as error:
                self.errors.append(error)
                await asyncio.sleep(0.01)

    async def goes_on(self, calls: int) -> None:
        """Wait until so many more calls have been made."""
        wanted = len(self.answers) + calls
        await until(
            lambda: len(self.answers) >= wanted,
            lambda: f"calls go on; cursors {self._cluster.table('cursors')}, {self.errors[-3:]}",
        )

    async def end(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)


@pytest.mark.parametrize("seed", range(2))
def test_calls_go_on_while_nodes_die_and_every_effect_is_made_as_often_as_it_must(
    seed: int,
) -> None:
    """The leader, then cores at random, each under calls from all nodes; they come back at once.

    A call's effect on the keyspace and the node's cursor are one entry of the log, whatever happens
    between: the key's version says that it was written on every node as often as ids were
    committed. Outside effects are made in the same order, once for every committed id, and again
    only for the one that was running when the node died.
    """
    print(f"seed {seed}")

    async def body(cluster: CallsCluster) -> None:
        await cluster.configure(history_max=500)
        rng = random.Random(seed)
        load = Load(cluster, 2, "count", "note")
        for name in cluster.running:
            load.begin(name)
        await load.goes_on(30)
        deaths: Counter[str] = Counter()
        for number in range(3):
            leader = cluster.leader()
            dies = leader.name if leader is not None and number == 0 else rng.choice(THREE)
            deaths[dies] += 1
            await cluster.kill(dies)
            await load.goes_on(30)
            await cluster.restart(dies)
            load.begin(dies)
            await load.goes_on(30)
        await load.end()
        await cluster.reached(cluster.last(), THREE)
        await cluster.converge()

        records = cluster.table("records")
        assert list(records) == list(range(1, cluster.last() + 1)), "the whole history is kept"
        done = {id: record for id, record in records.items() if record.state == "committed"}
        counts = [id for id, record in done.items() if record.function == "count"]
        notes = [id for id, record in done.items() if record.function == "note"]
        causes = Counter(record.cause for record in records.values() if record.state == "aborted")
        print(f"{len(done)} committed, aborted {dict(causes)}, {len(load.errors)} errors")
        assert set(causes) <= {"initiator_ended", "withdrawn"}
        assert {answer.outcome for answer in load.answers} == {"ok"}
        acknowledged = {answer.id for answer in load.answers}
        assert len(acknowledged) == len(load.answers)
        assert acknowledged <= set(done)
        # Committed without anybody who was told so: only what somebody got an error for.
        assert len(set(done) - acknowledged) <= len(load.errors)
        for name in THREE:
            key = await cluster.nodes[0].kv.get(f"count/{name}".encode())
            assert key is not None
            assert (key.version, key.value) == (len(counts), str(counts[-1]).encode()), name
        for name in THREE:
            seat = cluster.seats[name]
            assert seat.ids == sorted(seat.ids), name
            ran = Counter(seat.ids)
            replicated = {run.id for run in seat.runs if run.kind == "replicate"}
            assert replicated <= set(done), name
            assert set(notes) <= set(ran), name
            twice = [id for id, times in ran.items() if times > 1]
            assert sum(ran.values()) - len(ran) <= deaths[name], (name, twice)
            # Aborted ones ran on their initiator only, and it has been told.
            lost = {id for node, id in cluster.table("lost") if node == name}
            assert set(ran) - set(notes) <= lost, name
            seat.runs = [run for run in seat.runs if run.id in set(notes)]
            seat.runs = list({run.id: run for run in seat.runs}.values())

    play(body, replicants=1)


async def copied_again(shelf: Shelf, copies: int) -> None:
    """Wait for one copy more."""
    await until(lambda: len(shelf.loaded) > copies, "it has a copy")


@pytest.mark.parametrize("seed", range(2))
def test_all_nodes_hold_the_same_while_nodes_die_lose_their_data_and_join(seed: int) -> None:
    """What calls have made of the nodes is equal in the end, and `fix` finds nothing to do."""
    print(f"seed {seed}")

    async def body(cluster: CallsCluster) -> None:
        await cluster.configure(history_max=20, cleanup_ms=1_000)
        rng = random.Random(seed)
        load = Load(cluster, 3, "store")
        for name in THREE:
            load.begin(name)
        await load.goes_on(30)
        for loses in (False, True):
            dies = rng.choice(THREE)
            await cluster.kill(dies)
            await load.goes_on(30)
            shelf = cluster.seats[dies].shelf
            if loses:
                shelf.items, shelf.at = {}, 0
            copies = len(shelf.loaded)
            await cluster.restart(dies)
            load.begin(dies)
            await load.goes_on(30)
            if loses:
                await copied_again(shelf, copies)
        await cluster.start_new_core("core4")
        await cluster.nodes[0].membership.add("core4")
        await cluster.running["core4"].wait_ready()
        await cluster.following([*THREE, "core4"])
        load.begin("core4")
        await load.goes_on(30)
        await load.end()
        await cluster.reached(cluster.last())
        print(f"{cluster.last()} calls, {len(load.errors)} errors")
        shelves = [sorted(seat.shelf.items.items()) for seat in cluster.seats.values()]
        assert shelves[0]
        assert all(shelf == shelves[0] for shelf in shelves)
        assert cluster.seats["core4"].ids[0] == cluster.seats["core4"].shelf.loaded[-1] + 1
        report = await cluster.calls("core4").fix()
        assert (report.verdict, report.absent) == ("consistent", ()), report
        for seat in cluster.seats.values():
            assert seat.ids == sorted(seat.ids)
            seat.runs = list({run.id: run for run in seat.runs}.values())

    play(body, shelves=True)

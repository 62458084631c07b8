"""The coordinator: two phases, its journal, and what it finishes after each crash.

The resources are fakes that keep XA's rules and can be stopped at any verb. A crash of the
coordinator is its task cancelled where it stands, and the power failing on its disk.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from raftkv.errors import Timeout
from raftkv.testing.clock import run
from raftkv.testing.disk import SimDisk
from raftkv.testing.plugin_host import FakeRuntime
from raftkv_txqueue import TxQueue
from raftkv_txqueue.coordinated import Recovered
from raftkv_txqueue.coordinator import (
    FINISHED_MAX,
    FORMAT,
    Coordinator,
    FileJournal,
    GlobalHazard,
    GlobalInDoubt,
    GlobalRolledBack,
    JournalFailed,
    MemoryJournal,
    NodeResource,
)
from raftkv_txqueue.journal import Decision, Done, Record
from raftkv_txqueue.refusals import IllegalState, UnknownXid
from raftkv_txqueue.xa import XaStatus, Xid
from tests.plugins.raftkv_txqueue.fakes import Cluster, until


class Found(msgspec.Struct, frozen=True):
    xid: Xid
    state: str


class Resource:
    """A resource manager of the textbook, in memory."""

    def __init__(self) -> None:
        self.states: dict[Xid, str] = {}
        self.committed: list[Xid] = []
        self.told: list[tuple[str, Xid]] = []
        #: Verb -> what it answers instead, or raises before it does anything.
        self.answers: dict[str, XaStatus | Exception] = {}
        #: Verb -> raised once after it was done: the answer is lost.
        self.lost: dict[str, Exception] = {}
        #: Verbs that hang before ("prepare") or after ("prepared") they are done.
        self.hangs: set[str] = set()
        self.hanging: str = ""

    async def _point(self, name: str) -> None:
        if name in self.hangs:
            self.hanging = name
            await asyncio.Event().wait()

    async def _do(self, verb: str, xid: Xid, work: Callable[[], XaStatus]) -> XaStatus:
        await asyncio.sleep(0.001)
        self.told.append((verb, xid))
        await self._point(verb)
        answer = self.answers.get(verb)
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return answer
        status = work()
        await self._point(f"{verb} done")
        if verb in self.lost:
            raise self.lost.pop(verb)
        return status

    def _known(self, xid: Xid) -> str:
        if xid not in self.states:
            raise UnknownXid(str(xid))
        return self.states[xid]

    async def prepare(self, xid: Xid) -> XaStatus:
        def work() -> XaStatus:
            if self._known(xid) == "failed":
                return XaStatus.RBROLLBACK
            if self.states[xid] == "working":
                raise IllegalState(str(xid), "a session works in it")
            self.states[xid] = "prepared"
            return XaStatus.OK

        return await self._do("prepare", xid, work)

    async def commit(self, xid: Xid, one_phase: bool = False) -> XaStatus:
        def work() -> XaStatus:
            state = self._known(xid)
            if state.startswith("heuristically"):
                return XaStatus.HEURCOM if state.endswith("committed") else XaStatus.HEURRB
            if state != ("ended" if one_phase else "prepared"):
                raise IllegalState(str(xid), state)
            del self.states[xid]
            self.committed.append(xid)
            return XaStatus.OK

        return await self._do("commit", xid, work)

    async def rollback(self, xid: Xid) -> XaStatus:
        def work() -> XaStatus:
            state = self._known(xid)
            if state.startswith("heuristically"):
                return XaStatus.HEURCOM if state.endswith("committed") else XaStatus.HEURRB
            if state == "working":
                raise IllegalState(str(xid), "a session works in it")
            del self.states[xid]
            return XaStatus.OK

        return await self._do("rollback", xid, work)

    async def forget(self, xid: Xid) -> XaStatus:
        def work() -> XaStatus:
            if not self._known(xid).startswith("heuristically"):
                raise IllegalState(str(xid), "nobody has decided it")
            del self.states[xid]
            return XaStatus.OK

        return await self._do("forget", xid, work)

    async def recover(self) -> list[Found]:
        await asyncio.sleep(0.001)
        answer = self.answers.get("recover")
        if isinstance(answer, Exception):
            raise answer
        waiting = ("prepared", "heuristically committed", "heuristically rolled back")
        found = [Found(xid, state) for xid, state in self.states.items() if state in waiting]
        await self._point("recovered")
        return found


class Work:
    """A session."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self.calls: list[str] = []

    async def start(
        self, xid: Xid, *, join: bool = False, timeout_s: float | None = None
    ) -> XaStatus:
        assert (xid in self._resource.states) == join
        self._resource.states[xid] = "working"
        self.calls.append("join" if join else "start")
        return XaStatus.OK

    async def end(self, xid: Xid, *, fail: bool = False) -> XaStatus:
        self.calls.append("fail" if fail else "end")
        if xid not in self._resource.states:
            raise IllegalState(str(xid), "unknown")
        self._resource.states[xid] = "failed" if fail else "ended"
        return XaStatus.RBROLLBACK if fail else XaStatus.OK


class World:
    """Two resources, and a disk that outlives the coordinators."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = SimDisk(random.Random(seed))
        self.seed = seed
        self.a = Resource()
        self.b = Resource()
        self.boot()

    def boot(self, name: str = "tm") -> Coordinator:
        """A new process of the coordinator."""
        self.seed += 1
        self.runtime: Any = FakeRuntime(self.seed, self.disk)
        self.journal = FileJournal(self.runtime, "data/tm")
        resources = {"a": self.a, "b": self.b}
        self.coordinator = Coordinator(name, self.journal, resources, runtime=self.runtime)
        return self.coordinator

    async def transact(self) -> Any:
        """One transaction over both; what its end gives."""
        transaction = self.coordinator.new()
        await transaction.enlist("a", Work(self.a))
        await transaction.enlist("b", Work(self.b))
        return await transaction.commit()

    async def crash(self, work: Awaitable[Any], at: Callable[[], bool]) -> Coordinator:
        """Run it up to that point; there the process ends and the power fails."""
        task = asyncio.ensure_future(work)
        for _ in range(10_000):
            if at():
                break
            assert not task.done(), task
            await asyncio.sleep(0.0005)
        else:
            raise AssertionError("that point never came")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        self.runtime.die()
        self.disk.crash()
        for resource in (self.a, self.b):
            resource.hangs.clear()
        return self.boot()

    async def records(self) -> list[Record]:
        return await self.journal.read()


def story(body: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    async def whole() -> None:
        await body(World())

    def test() -> None:
        run(whole())

    test.__name__ = body.__name__
    return test


# --- the two phases -------------------------------------------------------------------------------


@story
async def test_all_prepare_then_all_commit(world: World) -> None:
    done = await world.transact()
    assert done.left == ()
    assert [verb for verb, _ in world.a.told] == ["prepare", "commit"]
    assert (len(world.a.committed), len(world.b.committed)) == (1, 1)
    xids = (world.a.committed[0], world.b.committed[0])
    assert [xid.bqual for xid in xids] == [b"a", b"b"]
    assert xids[0].gtrid == xids[1].gtrid == done.gtrid
    assert xids[0].format == FORMAT
    assert await world.records() == [Decision(done.gtrid, ("a", "b")), Done(done.gtrid)]
    assert await world.coordinator.recover() == Recovered()


@story
async def test_a_block_commits_at_its_end_and_rolls_back_on_an_exception(world: World) -> None:
    first, second = Work(world.a), Work(world.a)
    async with world.coordinator.begin() as gt:
        await gt.enlist("a", first)
        await gt.enlist("a", second)
        await gt.enlist("b", Work(world.b))
        assert gt.open
    assert gt.committed is not None
    assert first.calls == ["start", "end"]
    assert second.calls == ["join", "end"]

    async def failing() -> None:
        async with world.coordinator.begin() as gt:
            await gt.enlist("a", first)
            raise KeyError("the work failed")

    with pytest.raises(KeyError):
        await failing()
    assert not world.a.states
    assert first.calls[2:] == ["start", "fail"]
    assert len(world.a.committed) == 1
    assert len(await world.records()) == 2
    with pytest.raises(ValueError, match="over"):
        await gt.commit()
    with pytest.raises(LookupError, match="no resource"):
        async with world.coordinator.begin() as gt:
            await gt.enlist("c", first)


@story
async def test_one_branch_needs_no_journal(world: World) -> None:
    async with world.coordinator.begin() as gt:
        await gt.enlist("a", Work(world.a))
    assert [verb for verb, _ in world.a.told] == ["commit"]
    assert len(world.a.committed) == 1
    assert await world.records() == []
    async with world.coordinator.begin():
        pass
    # Its only resource cannot do it, refuses it, or does not say.
    world.a.answers["commit"] = XaStatus.RBROLLBACK
    with pytest.raises(GlobalRolledBack, match="RBROLLBACK"):
        async with world.coordinator.begin() as gt:
            await gt.enlist("a", Work(world.a))
    world.a.answers["commit"] = IllegalState("x", "why")
    with pytest.raises(GlobalRolledBack, match="IllegalState"):
        async with world.coordinator.begin() as gt:
            await gt.enlist("a", Work(world.a))
    for unknown in (Timeout("no answer"), UnknownXid("x")):
        world.a.answers["commit"] = unknown
        with pytest.raises(GlobalInDoubt):
            async with world.coordinator.begin() as gt:
                await gt.enlist("a", Work(world.a))
    assert len(world.a.committed) == 1


@story
async def test_one_no_rolls_back_all(world: World) -> None:
    world.b.answers["prepare"] = XaStatus.RBROLLBACK
    with pytest.raises(GlobalRolledBack, match="b: RBROLLBACK"):
        await world.transact()
    assert not world.a.states
    assert not world.b.states
    assert not world.a.committed
    assert await world.records() == []
    assert [verb for verb, _ in world.a.told] == ["prepare", "rollback"]


@story
async def test_an_uncertain_prepare_is_a_no_and_may_come_late(world: World) -> None:
    world.b.lost["prepare"] = Timeout("no answer")
    world.b.answers["rollback"] = Timeout("no answer")
    with pytest.raises(GlobalRolledBack, match="b: Timeout"):
        await world.transact()
    assert not world.a.states
    assert list(world.b.states.values()) == ["prepared"]
    # Now it answers again, and the promise is released.
    world.b.answers.clear()
    recovered = await world.coordinator.recover()
    assert (len(recovered.rolled_back), recovered.committed, recovered.left) == (1, (), ())
    assert not world.b.states
    assert not world.b.committed


@story
async def test_who_changed_nothing_hears_of_no_second_phase(world: World) -> None:
    world.a.answers["prepare"] = XaStatus.RDONLY
    done = await world.transact()
    assert [verb for verb, _ in world.a.told] == ["prepare"]
    assert await world.records() == [Decision(done.gtrid, ("b",)), Done(done.gtrid)]
    world.b.answers["prepare"] = XaStatus.RDONLY
    await world.transact()
    assert len(await world.records()) == 2


@story
async def test_work_that_cannot_be_ended_is_rolled_back(world: World) -> None:
    transaction = world.coordinator.new()
    await transaction.enlist("a", Work(world.a))
    xid = await transaction.enlist("b", Work(world.b))
    del world.b.states[xid]  # its session's node has died, and its time-out has passed
    with pytest.raises(GlobalRolledBack, match="b: IllegalState"):
        await transaction.commit()
    assert not world.a.states
    assert not world.a.committed


# --- crashes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("where", "commits"),
    [
        ("one prepared", False),
        ("all prepared", False),
        ("decided", True),
        ("one committed", True),
        ("all committed", True),
    ],
)
def test_a_crash_is_finished_by_the_next_process(where: str, commits: bool, seed: int) -> None:
    async def body() -> None:
        world = World(seed)
        a, b = world.a, world.b
        if where == "one prepared":
            b.hangs.add("prepare")
        elif where == "all prepared":
            a.hangs.add("prepare done")
            b.hangs.add("prepare done")
        elif where == "decided":
            a.hangs.add("commit")
            b.hangs.add("commit")
        elif where == "one committed":
            b.hangs.add("commit")
        else:
            a.hangs.add("commit done")
            b.hangs.add("commit done")

        def reached() -> bool:
            if where == "one prepared":
                return bool(b.hanging) and "prepared" in a.states.values()
            if where == "one committed":
                return bool(b.hanging) and bool(a.committed)
            return bool(a.hanging) and bool(b.hanging)

        again = await world.crash(world.transact(), reached)
        recovered = await again.recover()
        assert recovered.left == ()
        assert recovered.hazards == ()
        assert [len(a.committed), len(b.committed)] == ([1, 1] if commits else [0, 0])
        assert "prepared" not in (*a.states.values(), *b.states.values())
        assert (len(recovered.committed), len(recovered.rolled_back)) == (
            (1, 0) if commits else (0, 1)
        )
        # And once: another process finds nothing to do.
        world.runtime.die()
        world.disk.crash()
        for resource in (a, b):
            resource.told.clear()
        await world.boot().recover()
        assert not a.told
        assert not b.told

    run(body())


def test_a_crash_while_the_decision_is_written_is_all_or_nothing() -> None:
    """What the disk kept decides; both branches hear the same."""

    async def body(seed: int, *, synced: bool) -> int:
        world = World(seed)
        append, stuck = world.journal.append, []

        async def hang(record: Record, *, sync: bool = True) -> None:
            await append(record, sync=synced)
            stuck.append(record)
            await asyncio.Event().wait()

        world.journal.append = hang  # type: ignore[method-assign]
        again = await world.crash(world.transact(), lambda: bool(stuck))
        kept = len(await world.records())
        await again.recover()
        assert (len(world.a.committed), len(world.b.committed)) == (kept, kept)
        assert not world.a.states
        assert not world.b.states
        return kept

    assert {run(body(seed, synced=True)) for seed in range(5)} == {1}
    assert {run(body(seed, synced=False)) for seed in range(20)} == {0, 1}


@story
async def test_a_disk_that_fails_over_the_decision_leaves_it_in_doubt(world: World) -> None:
    await world.records()
    world.disk.fail_syncs = True
    with pytest.raises(GlobalInDoubt):
        await world.transact()
    # Whether it is on the disk nobody knows, so this process does not guess.
    assert [verb for verb, _ in world.a.told] == ["prepare"]
    with pytest.raises(JournalFailed):
        world.coordinator.new()
    with pytest.raises(JournalFailed):
        await world.coordinator.recover()
    world.runtime.die()
    world.disk.crash()
    world.disk.fail_syncs = False
    again = world.boot()
    kept = len(await world.records())
    await again.recover()
    assert (len(world.a.committed), len(world.b.committed)) == (kept, kept)
    assert not world.a.states


@story
async def test_a_cancelled_block_is_left_to_the_next_recovery(world: World) -> None:
    world.b.hangs.add("prepare")

    async def work() -> None:
        async with world.coordinator.begin() as gt:
            await gt.enlist("a", Work(world.a))
            await gt.enlist("b", Work(world.b))

    task = asyncio.ensure_future(work())
    while not world.b.hanging:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(world.a.states.values()) == ["prepared"]
    recovered = await world.coordinator.recover()
    assert len(recovered.rolled_back) == 1
    assert not world.a.states


# --- recovery -------------------------------------------------------------------------------------


@story
async def test_recovery_leaves_alone_what_runs(world: World) -> None:
    world.b.hangs.add("prepare done")
    task = asyncio.ensure_future(world.transact())
    while not world.b.hanging:
        await asyncio.sleep(0.01)
    assert await world.coordinator.recover() == Recovered()
    assert list(world.a.states.values()) == ["prepared"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len((await world.coordinator.recover()).rolled_back) == 1


@story
async def test_what_runs_while_a_recovery_looks_is_left_alone_too(world: World) -> None:
    """It decides after the journal was read, and before the resources are asked."""
    world.a.hangs.add("recovered")
    recovery = asyncio.ensure_future(world.coordinator.recover())
    while not world.a.hanging:
        await asyncio.sleep(0.01)
    world.b.answers["commit"] = Timeout("no answer")
    done = await world.transact()
    assert done.left == ("b",)
    world.b.answers.clear()
    assert list(world.b.states.values()) == ["prepared"]
    recovery.cancel()
    world.a.hangs.clear()
    # The same with nobody cancelled: b is asked after the transaction has ended.
    held = asyncio.Event()
    ask = world.a.recover

    async def slow() -> list[Found]:
        found = await ask()
        await held.wait()
        return found

    world.a.recover = slow  # type: ignore[method-assign]
    recovery = asyncio.ensure_future(world.coordinator.recover())
    await asyncio.sleep(0.1)
    world.b.answers["commit"] = Timeout("no answer")
    second = await world.transact()
    assert second.left == ("b",)
    world.b.answers.clear()
    held.set()
    recovered = await recovery
    assert recovered.committed == (done.gtrid,)
    assert recovered.rolled_back == ()
    assert [xid.gtrid for xid in world.b.states] == [second.gtrid]
    assert (await world.coordinator.recover()).committed == (second.gtrid,)
    assert not world.b.states
    assert len(world.b.committed) == 2


@story
async def test_a_resource_that_does_not_answer_hears_later(world: World) -> None:
    world.b.answers["commit"] = Timeout("no answer")
    done = await world.transact()
    assert done.left == ("b",)
    assert len(world.a.committed) == 1
    world.b.answers["recover"] = Timeout("no answer")
    again = await world.coordinator.recover()
    assert again == Recovered(left=("b",))
    # It is back, but not for this one; the decision is kept.
    del world.b.answers["recover"]
    assert (await world.coordinator.recover()).left == ("b",)
    world.runtime.die()
    world.disk.crash()
    world.b.answers.clear()
    assert (await world.boot().recover()).committed == (done.gtrid,)
    assert len(world.b.committed) == 1


@story
async def test_a_decision_for_an_unknown_resource_is_kept(world: World) -> None:
    world.b.answers["commit"] = Timeout("no answer")
    done = await world.transact()
    alone = Coordinator("tm", world.journal, {"a": world.a}, runtime=world.runtime)
    assert await alone.recover() == Recovered(left=("b",))
    world.b.answers.clear()
    assert (await world.coordinator.recover()).committed == (done.gtrid,)


@story
async def test_a_lost_answer_of_a_commit_is_asked_again(world: World) -> None:
    world.b.lost["commit"] = Timeout("no answer")
    done = await world.transact()
    assert done.left == ()
    assert len(world.b.committed) == 1
    assert [verb for verb, _ in world.b.told] == ["prepare", "commit", "commit"]


@story
async def test_branches_of_others_are_not_touched(world: World) -> None:
    others = [
        Xid(FORMAT, b"tm2/" + bytes(16), b"a"),
        Xid(FORMAT, b"t", b"a"),
        Xid(FORMAT + 1, b"tm/" + bytes(16), b"a"),
        Xid(FORMAT, b"tm/" + bytes(16), b"b"),
    ]
    for xid in others:
        world.a.states[xid] = "prepared"
    mine = world.coordinator.xid(b"tm/" + bytes(16), "a")
    world.a.states[mine] = "prepared"
    assert (await world.coordinator.recover()).rolled_back == (mine.gtrid,)
    assert list(world.a.states) == others


# --- operators ------------------------------------------------------------------------------------


async def operated(world: World, verdict: str) -> Any:
    """The coordinator dies after its decision; an operator decides b's branch; it comes back."""
    world.a.hangs.add("commit")
    world.b.hangs.add("commit")
    again = await world.crash(world.transact(), lambda: bool(world.a.hanging and world.b.hanging))
    [xid] = world.b.states
    world.b.states[xid] = verdict
    return await again.recover()


@story
async def test_an_operator_who_decided_otherwise_is_reported(world: World) -> None:
    recovered = await operated(world, "heuristically rolled back")
    assert recovered.hazards == (("b", "HEURRB"),)
    assert len(recovered.committed) == 1
    assert not world.b.states
    assert await world.coordinator.recover() == Recovered()


@story
async def test_an_operator_who_decided_alike_is_not(world: World) -> None:
    recovered = await operated(world, "heuristically committed")
    assert recovered.hazards == ()
    assert not world.b.states


@story
async def test_a_hazard_is_raised_where_the_transaction_ends(world: World) -> None:
    world.b.answers["commit"] = XaStatus.HEURRB
    world.b.answers["forget"] = XaStatus.OK
    with pytest.raises(GlobalHazard) as caught:
        await world.transact()
    assert caught.value.verdict == "committed"
    assert caught.value.hazards == (("b", "HEURRB"),)
    assert len(world.a.committed) == 1
    world.b.answers = {"rollback": XaStatus.HEURCOM, "forget": XaStatus.OK}
    world.a.answers["prepare"] = XaStatus.RBROLLBACK
    with pytest.raises(GlobalHazard) as caught:
        await world.transact()
    assert caught.value.verdict == "rolled back"


# --- the journal ----------------------------------------------------------------------------------


@story
async def test_a_torn_tail_is_cut_off(world: World) -> None:
    await world.journal.append(Decision(b"tm/1", ("a",)))
    await world.journal.append(Done(b"tm/1"))
    whole = await world.records()
    world.journal.close()
    path = "data/tm/coordinator"
    content = bytes(world.disk.open(path, "r").pread(0, 10_000))
    for cut in range(1, len(content)):
        disk = SimDisk(random.Random(cut))
        runtime: Any = FakeRuntime(cut, disk)
        disk.makedirs("data/tm")
        disk.open(path, "w").write(content[:cut])
        journal = FileJournal(runtime, "data/tm")
        kept = await journal.read()
        assert kept == whole[: len(kept)]
        await journal.append(Done(b"tm/2"))
        assert await journal.read() == [*kept, Done(b"tm/2")]
    flipped = bytearray(content)
    flipped[content.rindex(b"tm/1")] ^= 1  # it can still be read, as something else
    world.disk.open(path, "w").write(bytes(flipped))
    world.boot()
    assert await world.records() == whole[:1]


@story
async def test_finished_ones_are_dropped_and_open_ones_kept(world: World) -> None:
    world.b.answers["commit"] = Timeout("no answer")
    open_one = await world.transact()
    world.b.answers.clear()
    world.b.answers["prepare"] = XaStatus.RDONLY
    for _ in range(FINISHED_MAX):
        await world.transact()
    assert await world.records() == [Decision(open_one.gtrid, ("a", "b"))]
    await world.transact()
    assert len(await world.records()) == 3
    world.runtime.die()
    world.disk.crash()
    world.boot()
    assert (await world.records())[0] == Decision(open_one.gtrid, ("a", "b"))


def test_a_crash_after_a_compaction_loses_nothing() -> None:
    async def body(seed: int, *, adds: bool) -> None:
        world = World(seed)
        kept: list[Record] = [Decision(b"tm/open", ("a",))]
        for record in (Decision(b"tm/1", ("a",)), Done(b"tm/1"), *kept):
            await world.journal.append(record)
        await world.journal.compact()
        assert await world.records() == kept
        if adds:
            kept.append(Decision(b"tm/2", ("b",)))
            await world.journal.append(kept[-1])
        world.runtime.die()
        world.disk.crash()
        world.boot()
        assert (await world.records())[-len(kept) :] == kept

    for seed in range(20):
        run(body(seed, adds=False))
        run(body(seed, adds=True))


@story
async def test_a_journal_has_one_coordinator(world: World) -> None:
    with pytest.raises(BlockingIOError):
        FileJournal(world.runtime, "data/tm")
    world.journal.close()
    FileJournal(world.runtime, "data/tm").close()


@story
async def test_a_committed_one_stays_so_when_its_end_cannot_be_noted(world: World) -> None:
    world.a.hangs.add("commit done")
    task = asyncio.ensure_future(world.transact())
    while not world.a.hanging:
        await asyncio.sleep(0.01)
    task.cancel()
    world.a.hangs.clear()
    world.disk.fail_writes = True
    [gtrid] = [one.gtrid for one in await world.records()]
    assert (await world.coordinator.recover()).committed == (gtrid,)
    with pytest.raises(JournalFailed):
        world.coordinator.new()


@story
async def test_a_journal_in_memory_will_do_for_tests(world: World) -> None:
    journal = MemoryJournal()
    resources = {"a": world.a, "b": world.b}
    world.coordinator = Coordinator("mem", journal, resources, runtime=world.runtime)
    world.b.answers["commit"] = Timeout("no answer")
    open_one = await world.transact()
    assert await journal.read() == [Decision(open_one.gtrid, ("a", "b"))]
    world.b.answers.clear()
    await world.coordinator.recover()
    assert len(world.b.committed) == 1
    await journal.compact()
    assert await journal.read() == []


@pytest.mark.parametrize("name", ["", "x" * 41, "a/b"])
def test_names_must_fit_into_a_xid(name: str) -> None:
    async def body() -> None:
        world = World()
        with pytest.raises(ValueError, match="name"):
            Coordinator(name, MemoryJournal(), {}, runtime=world.runtime)
        with pytest.raises(ValueError, match="resource"):
            Coordinator("x", MemoryJournal(), {"y" * 65: world.a}, runtime=world.runtime)

    run(body())


# --- clusters -------------------------------------------------------------------------------------


class Hanging:
    """A node as a resource that can be stopped at a verb."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.inner = NodeResource(cluster.txq("core2"))
        self.hangs = ""
        self.hanging = False

    async def _through(self, verb: str, work: Callable[[], Awaitable[Any]]) -> Any:
        if self.hangs == f"before {verb}":
            self.hanging = True
            await asyncio.Event().wait()
        done = await work()
        if self.hangs == f"after {verb}":
            self.hanging = True
            await asyncio.Event().wait()
        return done

    async def prepare(self, xid: Xid) -> Any:
        return await self._through("prepare", lambda: self.inner.prepare(xid))

    async def commit(self, xid: Xid, one_phase: bool = False) -> Any:
        return await self._through("commit", lambda: self.inner.commit(xid, one_phase))

    async def rollback(self, xid: Xid) -> Any:
        return await self._through("rollback", lambda: self.inner.rollback(xid))

    async def forget(self, xid: Xid) -> Any:
        return await self.inner.forget(xid)

    async def recover(self) -> Any:
        return await self.inner.recover()


@pytest.mark.parametrize(
    ("east", "west", "commits"),
    [
        ("", "", True),
        ("after prepare", "before prepare", False),
        ("after prepare", "after prepare", False),
        ("before commit", "before commit", True),
        ("after commit", "before commit", True),
        ("after commit", "after commit", True),
    ],
)
def test_a_message_moves_between_two_clusters_or_stays(
    east: str, west: str, *, commits: bool
) -> None:
    async def body() -> None:
        clusters = [Cluster(TxQueue, 3), Cluster(TxQueue, 3)]
        for cluster in clusters:
            await cluster.start()
            await cluster.txq("core1").declare("a")
        one, two = clusters
        await one.fill("a", "money")
        disk = SimDisk(random.Random(1))
        runtime: Any = FakeRuntime(1, disk)
        resources = {"east": Hanging(one), "west": Hanging(two)}
        resources["east"].hangs, resources["west"].hangs = east, west

        async def transfer() -> None:
            coordinator = Coordinator("bank", FileJournal(runtime, "j"), resources, runtime=runtime)
            source = await one.txq("core1").session("dtx")
            target = await two.txq("core3").session("dtx")
            async with coordinator.begin() as gt:
                await gt.enlist("east", source)
                await gt.enlist("west", target)
                [got] = await source.get("a")
                await target.publish("a", got.body)
                await source.accept(got)

        task = asyncio.ensure_future(transfer())
        await until(lambda: all(one.hanging for one in resources.values()) or task.done())
        assert task.done() == (not east)
        if east:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        runtime.die()
        disk.crash()
        for resource in resources.values():
            resource.hangs = ""
        # The clusters change their leaders, and all programs are gone with their nodes.
        for cluster in clusters:
            for name in ("core1", "core3"):
                await cluster.restart(name)
            cluster.lead("core2")
        again: Any = FakeRuntime(2, disk)
        recovered = await Coordinator(
            "bank", FileJournal(again, "j"), resources, runtime=again
        ).recover()
        assert (recovered.left, recovered.hazards) == ((), ())
        for cluster in clusters:
            assert await cluster.txq("core2").dtx.recover() == ()
        await until(lambda: two.bodies("core2", "a") == (["money"] if commits else []))
        await until(lambda: one.bodies("core2", "a") == ([] if commits else ["money"]))
        for cluster in clusters:
            cluster.check()

    run(body())


# --- what a review found --------------------------------------------------------------------------


@story
async def test_damage_before_a_whole_record_is_no_torn_tail(world: World) -> None:
    """Decisions behind it would be taken for never made, and their branches rolled back."""
    await world.journal.append(Decision(b"tm/1", ("a",)))
    await world.journal.append(Decision(b"tm/2", ("a", "b")))
    world.journal.close()
    path = "data/tm/coordinator"
    content = bytearray(world.disk.open(path, "r").pread(0, 10_000))
    content[content.index(b"tm/1")] ^= 1
    world.disk.open(path, "w").write(bytes(content))
    again = world.boot()
    for _ in range(2):
        with pytest.raises(JournalFailed, match="damaged at byte 0"):
            await again.recover()
    with pytest.raises(JournalFailed, match="damaged"):
        await world.journal.append(Done(b"tm/2"))
    assert bytes(world.disk.open(path, "r").pread(0, 10_000)) == bytes(content)


@story
async def test_whatever_stops_the_decision_leaves_it_in_doubt(world: World) -> None:
    class Odd(MemoryJournal):
        async def append(self, record: Record, *, sync: bool = True) -> None:
            raise RuntimeError("the pool is closed")

    coordinator = Coordinator("tm", Odd(), {"a": world.a, "b": world.b}, runtime=world.runtime)
    transaction = coordinator.new()
    await transaction.enlist("a", Work(world.a))
    await transaction.enlist("b", Work(world.b))
    with pytest.raises(GlobalInDoubt):
        await transaction.commit()
    with pytest.raises(JournalFailed):
        coordinator.new()
    # Nor may this process read what it could not write: the disk may keep it or not.
    with pytest.raises(JournalFailed):
        await coordinator.recover()
    assert list(world.a.states.values()) == ["prepared"]


@pytest.mark.parametrize("status", [XaStatus.HEURRB, XaStatus.HEURMIX, XaStatus.HEURCOM])
def test_a_single_branch_that_an_operator_decided_is_what_he_decided(status: XaStatus) -> None:
    @story
    async def body(world: World) -> None:
        transaction = world.coordinator.new()
        await transaction.enlist("a", Work(world.a))
        world.a.answers["commit"] = status
        world.a.answers["forget"] = XaStatus.OK
        if status is XaStatus.HEURCOM:
            await transaction.commit()
        else:
            kind = GlobalRolledBack if status is XaStatus.HEURRB else GlobalHazard
            with pytest.raises(kind):
                await transaction.commit()
        assert [verb for verb, _ in world.a.told] == ["commit", "forget"]

    body()

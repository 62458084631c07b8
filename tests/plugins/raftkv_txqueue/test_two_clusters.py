"""Two-phase commit over two clusters: a message leaves a queue of one for a queue of the other.

Each cluster is three real nodes. What is between them is nobody's log: a coordinator with a journal
of its own, in a file, which asks both to prepare, writes its decision down, and tells both. It is
let die at each point where that makes a difference, and another one goes on from the journal; and
the clusters die meanwhile. A message is in exactly one of the two clusters in the end.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from raftkv.errors import RaftkvError
from raftkv.runtime import OsRuntime
from raftkv_txqueue.coordinator import Coordinator, GlobalRolledBack, NodeResource
from raftkv_txqueue.journal import Decision, FileJournal, Record
from raftkv_txqueue.xa import XaStatus, Xid
from tests.plugins.raftkv_txqueue.cluster import (
    DEADLINE_S,
    TxCluster,
    bodies,
    body_of,
    new_xid,
    take,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Crash(BaseException):
    """The coordinator's process dies here: no handler of ordinary errors may see it."""


class Tripwire:
    """Where the coordinator dies: before or after the n-th call of that kind."""

    def __init__(self, call: str = "", number: int = 1, *, after: bool = False) -> None:
        self.call = call
        self.number = number
        self.after = after
        self.seen = 0
        self._dead = False

    async def through(self, call: str, work: Callable[[], Awaitable[Any]]) -> Any:
        self.seen += call == self.call
        here = call == self.call and self.seen == self.number
        if self._dead or (here and not self.after):
            self._dead = True
            raise Crash(call)
        done = await work()
        if self._dead or here:
            self._dead = True
            raise Crash(call)
        return done


class Wired:
    """A resource with a tripwire before it."""

    def __init__(self, inner: NodeResource, wire: Tripwire) -> None:
        self._inner = inner
        self._wire = wire

    async def prepare(self, xid: Xid) -> XaStatus:
        done: XaStatus = await self._wire.through("prepare", lambda: self._inner.prepare(xid))
        return done

    async def commit(self, xid: Xid, one_phase: bool = False) -> XaStatus:
        done: XaStatus = await self._wire.through(
            "commit", lambda: self._inner.commit(xid, one_phase)
        )
        return done

    async def rollback(self, xid: Xid) -> XaStatus:
        done: XaStatus = await self._wire.through("rollback", lambda: self._inner.rollback(xid))
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class WiredJournal:
    """A journal with a tripwire before it."""

    def __init__(self, inner: FileJournal, wire: Tripwire) -> None:
        self._inner = inner
        self._wire = wire

    async def append(self, record: Record, *, sync: bool = True) -> None:
        kind = "decide" if isinstance(record, Decision) else "done"
        await self._wire.through(kind, lambda: self._inner.append(record, sync=sync))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Pair:
    """Two clusters, a in the one and b in the other, and the coordinator between them."""

    def __init__(self, one: TxCluster, two: TxCluster, directory: Path) -> None:
        self.one = one
        self.two = two
        self._directory = str(directory)
        self._journal: FileJournal | None = None
        # The coordinator's machine, which outlives every node.
        self._runtime = OsRuntime()

    def coordinator(self, wire: Tripwire | None = None, name: str = "bank") -> Coordinator:
        """A new process of it, with the journal that the former one left."""
        wire = wire or Tripwire()
        if self._journal is not None:
            self._journal.close()
        self._journal = FileJournal(self._runtime, self._directory, name)
        resources: dict[str, Any] = {
            "one": Wired(NodeResource(self.one.txq(self.one.nodes[-1].name)), wire),
            "two": Wired(NodeResource(self.two.txq(self.two.nodes[-1].name)), wire),
        }
        journal: Any = WiredJournal(self._journal, wire)
        return Coordinator(name, journal, resources, runtime=self._runtime)

    async def transfer(
        self, coordinator: Coordinator, text: str, timeout_s: float | None = None
    ) -> None:
        """The oldest message of a, which must be this one, to b, by one global transaction."""
        async with (
            self.one.txq("core1").session("dtx") as source,
            self.two.txq("core2").session("dtx") as target,
            coordinator.begin() as transaction,
        ):
            await transaction.enlist("one", source, timeout_s=timeout_s)
            await transaction.enlist("two", target, timeout_s=timeout_s)
            taken = await take(source, "a", 1)
            assert bodies(taken) == [text]
            await target.publish("b", taken[0].body)
            await source.accept(*taken)

    async def dies(self, wire: Tripwire, text: str, timeout_s: float | None = None) -> None:
        """A transfer during which the coordinator dies at that point."""
        with pytest.raises(Crash):
            await self.transfer(self.coordinator(wire), text, timeout_s)

    async def have(self, left: list[str], moved: list[str]) -> None:
        """So much is in a and in b, for all nodes; nothing is in doubt."""
        for cluster in (self.one, self.two):
            assert [branch.xid for branch in await cluster.txq("core1").dtx.recover()] == []
        await until(lambda: self.one.available("a") == left, lambda: self.one.stored("a"))
        assert await self.one.everywhere("a", everything=True) == left
        assert await self.two.everywhere("b", everything=True) == moved


def play(tmp_path: Path, body: Callable[[Pair], Awaitable[None]]) -> None:
    """Run the story, and judge both clusters in the end."""

    async def whole() -> None:
        async with AsyncExitStack() as stack:
            one, two = TxCluster(), TxCluster()
            await asyncio.gather(stack.enter_async_context(one), stack.enter_async_context(two))
            for cluster in (one, two):
                # Branches that nobody asks after are not to be there in the end.
                await cluster.configure(outcome_retention_ms=1_000)
            await one.queue("a", "1", "2", "3")
            await two.queue("b")
            for cluster in (one, two):
                await cluster.converge(DEADLINE_S)
            await body(Pair(one, two, tmp_path / "journal"))
            await one.check()
            await two.check()

    asyncio.run(whole())


def test_a_global_transaction_moves_a_message(tmp_path: Path) -> None:
    async def body(pair: Pair) -> None:
        coordinator = pair.coordinator()
        await coordinator.recover()
        for number in (1, 2):
            await pair.transfer(coordinator, str(number))
        await pair.have(["3"], ["1", "2"])

    play(tmp_path, body)


def test_an_exception_rolls_both_back(tmp_path: Path) -> None:
    async def body(pair: Pair) -> None:
        coordinator = pair.coordinator()
        await coordinator.recover()

        async def fails() -> None:
            async with (
                pair.one.txq("core1").session("dtx") as source,
                pair.two.txq("core2").session("dtx") as target,
                coordinator.begin() as transaction,
            ):
                await transaction.enlist("one", source)
                await transaction.enlist("two", target)
                await source.accept(*(await take(source, "a", 3)))
                await target.publish("b", b"never")
                raise ValueError("the program's own")

        with pytest.raises(ValueError, match="the program's own"):
            await fails()
        await pair.have(["1", "2", "3"], [])
        await pair.transfer(coordinator, "1")
        await pair.have(["2", "3"], ["1"])

    play(tmp_path, body)


def test_one_cluster_cannot_prepare(tmp_path: Path) -> None:
    """The queue of the other one is full: what the first has prepared is rolled back."""

    async def body(pair: Pair) -> None:
        await pair.two.txq("core1").declare("b", depth_max=1, change=True)
        await pair.two.put("b", "full")
        coordinator = pair.coordinator()
        await coordinator.recover()
        with pytest.raises(GlobalRolledBack):
            await pair.transfer(coordinator, "1")
        await pair.have(["1", "2", "3"], ["full"])

    play(tmp_path, body)


#: name -> where the coordinator dies, and whether the message has moved when it was recovered.
POINTS: dict[str, tuple[tuple[str, int, bool], bool]] = {
    "before the first prepare": (("prepare", 1, False), False),
    "after one prepare": (("prepare", 1, True), False),
    "after both prepares": (("prepare", 2, True), False),
    "before the decision": (("decide", 1, False), False),
    "after the decision": (("decide", 1, True), True),
    "before one commit": (("commit", 1, False), True),
    "after one commit": (("commit", 1, True), True),
    "after both commits": (("commit", 2, True), True),
    "before it is done": (("done", 1, False), True),
}


@pytest.mark.parametrize("restart", [False, True], ids=["", "and both clusters"])
def test_the_coordinator_dies_at_any_point(tmp_path: Path, restart: bool) -> None:
    """Its successor finishes from the journal: presumed abort, or the decision that stands there.

    All points after another, on the same clusters: whatever is left of one would show in the next.
    """

    async def body(pair: Pair) -> None:
        left, moved = ["1", "2", "3"], list[str]()
        points = ["after both prepares", "after the decision"] if restart else list(POINTS)
        for name in points:
            (call, number, after), moves = POINTS[name]
            text = left[0]
            print(name)
            # Who is not asked to prepare is not recovered either: its time-out ends it.
            timeout_s = 3.0 if call == "prepare" else None
            await pair.dies(Tripwire(call, number, after=after), text, timeout_s)
            if restart:
                await asyncio.gather(pair.one.all_restart(), pair.two.all_restart())
            successor = pair.coordinator()
            await successor.recover()
            if moves:
                moved.append(left.pop(0))
                left.append(f"more{len(moved)}")
                await pair.have(left[:-1], moved)
                await pair.one.put("a", left[-1])
            await pair.have(left, moved)
            await successor.recover()
            await pair.have(left, moved)

    play(tmp_path, body)


def test_the_leaders_die_while_it_decides(tmp_path: Path) -> None:
    """Both clusters lose their leaders between prepare and commit, and the decision stands."""

    async def body(pair: Pair) -> None:
        await pair.dies(Tripwire("decide", 1, after=True), "1")
        for cluster in (pair.one, pair.two):
            leader = await cluster.has_leader()
            await cluster.new_leader(leader)
        successor = pair.coordinator()
        await successor.recover()
        for cluster in (pair.one, pair.two):
            gone = next(name for name in cluster.configs if name not in cluster.running)
            await cluster.start(gone)
            await cluster.wait_ready(DEADLINE_S)
        await pair.have(["2", "3"], ["1"])

    play(tmp_path, body)


def test_recovery_touches_only_its_own(tmp_path: Path) -> None:
    """A prepared branch of somebody else waits for somebody else."""

    async def body(pair: Pair) -> None:
        foreign = new_xid("somebody else")
        await pair.two.queue("c")
        async with pair.two.txq("core3").session("dtx") as session:
            await session.start(foreign)
            await session.publish("c", body_of("foreign"))
            await session.end(foreign)
        assert await pair.two.txq("core1").dtx.prepare(foreign) == XaStatus.OK
        await pair.dies(Tripwire("prepare", 2, after=True), "1")
        assert len(await pair.two.txq("core1").dtx.recover()) == 2
        await pair.coordinator().recover()
        [branch] = await pair.two.txq("core1").dtx.recover()
        assert branch.xid == foreign
        assert await pair.two.txq("core1").dtx.commit(foreign) == XaStatus.OK
        await pair.have(["1", "2", "3"], [])
        assert await pair.two.everywhere("c") == ["foreign"]

    play(tmp_path, body)


def test_nothing_is_lost_or_doubled_whatever_dies(tmp_path: Path) -> None:
    """Transfers to and fro, with deaths of coordinators and of both clusters' leaders by chance."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    texts = [str(number) for number in range(12)]

    async def move(pair: Pair, coordinator: Coordinator, back: bool) -> None:
        sides = [("one", pair.one, "a"), ("two", pair.two, "b")]
        (source, here, out), (target, there, into) = reversed(sides) if back else sides
        async with (
            here.txq(await here.has_leader()).session("dtx") as taker,
            there.txq(await there.has_leader()).session("dtx") as giver,
            coordinator.begin() as transaction,
        ):
            await transaction.enlist(source, taker, timeout_s=2.0)
            await transaction.enlist(target, giver, timeout_s=2.0)
            for each in await taker.get(out, count=rng.randint(1, 3)):
                await giver.publish(into, each.body)
                await taker.accept(each)

    async def body(pair: Pair) -> None:
        await pair.one.txq("core1").purge("a")
        await pair.one.put("a", *texts)
        told: Counter[str] = Counter()
        for round_ in range(16):
            call = rng.choice(["", "", "prepare", "decide", "commit", "done"])
            wire = Tripwire(call, rng.randint(1, 2), after=rng.random() < 0.5)
            coordinator = pair.coordinator(wire)
            moving = asyncio.ensure_future(move(pair, coordinator, back=round_ % 3 == 2))
            killed: list[tuple[TxCluster, str]] = []
            if rng.random() < 0.3:
                for _ in range(rng.randrange(40)):
                    await asyncio.sleep(0)
                cluster = rng.choice([pair.one, pair.two])
                killed.append((cluster, await cluster.has_leader()))
                await cluster.kill(killed[0][1])
            try:
                await moving
                told["committed"] += 1
            except (Crash, RaftkvError) as error:
                told[type(error).__name__] += 1
            for cluster, name in killed:
                await cluster.start(name)
                await cluster.wait_ready(DEADLINE_S)
            recovered = await pair.coordinator().recover()
            assert recovered.hazards == ()
            assert recovered.left == ()
        await until(
            lambda: len(pair.one.available("a")) + len(pair.two.available("b")) == len(texts),
            lambda: (pair.one.stored("a"), pair.two.stored("b")),
        )
        left, moved = await pair.one.everywhere("a"), await pair.two.everywhere("b")
        assert sorted([*left, *moved], key=int) == texts
        print(dict(told), len(left), len(moved))

    play(tmp_path, body)

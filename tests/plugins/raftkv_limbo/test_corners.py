"""Everything at once: restarts with a full queue, and random stories that are checked at their end.

A random story lets three nodes submit, promote, roll back and change the quorum while nodes are
isolated, paused, declared dead, jumped by snapshots or deaf. Afterwards every caller must have been
told what the log says, and every node must have called back for each verdict once, in one order.
A failing seed is printed by its test's name.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from raftkv.errors import NotApplied, OutcomeUnknown, RaftkvError, Refused
from raftkv.testing.clock import run
from raftkv_limbo.commands import Condition, Write
from raftkv_limbo.errors import RolledBack, SubmitUnknown
from raftkv_limbo.hooks import Confirmed, Restored, Undone
from raftkv_limbo.promoting import Rest
from raftkv_limbo.refusals import StaleOwner
from raftkv_limbo.submission import Receipt, Submission
from raftkv_limbo.views import fate
from tests.plugins.raftkv_limbo.fakes import Cluster, story, sync, until

# --- restarts -------------------------------------------------------------------------------------


@story(quorum="N")
async def test_the_owner_restarts_with_a_full_queue(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    for n in range(100):
        writes = [Write("s", b"a", b"%d" % n), Write("a", b"b", b"%d" % n)]
        await limbo.submit(writes, wait="submit")
    cluster.configure(queue_entries_max=1)
    await cluster.restart("core1")
    limbo = cluster.limbo("core1")
    assert limbo.status().queue.len == 100
    # Whole transactions are pending, and no reader of what is confirmed sees any part of them.
    assert await limbo.get("s", b"a") is None
    assert await limbo.get("a", b"b") is None
    for key, space in ((b"a", "s"), (b"b", "a")):
        row = await limbo.get(space, key, view="pending")
        assert row is not None
        assert (row.value, row.position) == (b"99", 100)
    with pytest.raises(StaleOwner):
        await limbo.submit(sync("k"))
    cluster.heal("core3")
    await limbo.wait_confirmed(100)
    assert (await limbo.promote()).term == 2
    assert (await limbo.submit(sync("k"))).position == 101
    assert cluster.value("core3", "a", b"b") == b"99"


@story(5, quorum="N")
async def test_a_promotion_finds_both_one_or_none(cluster: Cluster) -> None:
    """What the old owner left is confirmed as far as the quorum goes; the rest is rolled back."""
    limbo = await cluster.own("core1")
    for held in (2, 1, 0):
        cluster.isolate("core5")
        positions = []
        for n in range(2):
            if n == held:
                release = cluster.hold("core2", "ack")
            receipt = await limbo.submit(sync(f"{held}/{n}"), wait="submit")
            positions.append(receipt.position)
            await asyncio.sleep(0.1)
        # More than Raft's majority, and as many as are there.
        cluster.configure(quorum="4")
        await asyncio.sleep(0.1)
        await cluster.limbo("core2").promote(rest="roll back")
        if held < 2:
            release()
        fates = [limbo.verdict(position).fate for position in positions]
        assert fates == ["confirmed"] * held + ["rolled back"] * (2 - held), held
        cluster.heal("core5")
        assert [cluster.limbo("core5").verdict(one).fate for one in positions] == fates
        cluster.configure(quorum="N")
        await limbo.promote()


# --- random stories -------------------------------------------------------------------------------


class Told:
    """What one caller was told of one transaction."""

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.number = number
        self.receipt: Receipt | None = None
        self.error: BaseException | None = None
        self.handle: Submission | None = None


class RandomStory:
    """One seed."""

    def __init__(self, seed: int, cluster: Cluster) -> None:
        self.rng = random.Random(seed)
        self.cluster = cluster
        self.told: list[Told] = []
        self.events: dict[str, list[Confirmed | Undone | Restored]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.number = 0
        self.refused: list[RaftkvError] = []

    def listen(self) -> None:
        for name, node in self.cluster.nodes.items():
            events = self.events.setdefault(name, [])
            node.opened.on_confirm(events.append)
            node.opened.on_rollback(events.append)
            node.opened.on_restored(events.append)

    async def submit(self, node: str) -> None:
        rng, limbo = self.rng, self.cluster.limbo(node)
        self.number += 1
        told = Told(node, self.number)
        self.told.append(told)
        space = rng.choice("ssa")
        value = b"%d" % self.number
        writes = [Write(space, b"own/%d" % self.number, value), Write(space, b"shared", value)]
        conditions = [Condition("s", b"shared", "exists", None, 1)] if rng.random() < 0.2 else []
        try:
            answer = await limbo.submit(
                writes,
                conditions,
                order="independent" if space == "a" and rng.random() < 0.3 else "ordered",
                wait=rng.choice(("complete", "submit", "none")),
                timeout_s=rng.choice((0.01, 0.5, 5.0, 60.0)),
            )
        except (RaftkvError, asyncio.CancelledError) as error:
            told.error = error
            if isinstance(error, OutcomeUnknown):
                told.handle = getattr(error, "submission", None)
        else:
            if isinstance(answer, Submission):
                told.handle = answer
            else:
                told.receipt = answer

    async def operate(self) -> None:
        rng, cluster = self.rng, self.cluster
        limbo = cluster.limbo(rng.choice(list(cluster.nodes)))
        try:
            match rng.randrange(5):
                case 0 | 1:
                    rest: Rest = rng.choice(("wait", "roll back"))
                    await limbo.promote(rng.choice((0.5, 5.0)), rest=rest)
                case 2:
                    await limbo.demote(1)
                case 3:
                    await limbo.rollback(cluster.state.last - rng.randrange(3))
                case 4:
                    await limbo.flush(1)
        except (NotApplied, Refused, OutcomeUnknown) as error:
            # Any of them may be right here; the end of the story is judged, not the way.
            self.refused.append(error)

    def mishap(self) -> None:
        rng, cluster = self.rng, self.cluster
        name = rng.choice(list(cluster.nodes))
        node = cluster.nodes[name]
        match rng.randrange(9):
            case 0:
                cluster.isolate(name)
            case 1:
                cluster.pause(name)
            case 2 | 3:
                cluster.heal(name)
                cluster.resume(name)
            case 4:
                if node.isolated:
                    cluster.declare_dead(name)
                    cluster.rejoin(name)
            case 5:
                if not node.applies:
                    cluster.jump(name)
            case 6:
                cluster.lose_answers(name, "submit", "promote", "ack", times=rng.randrange(1, 4))
            case 7:
                cluster.configure(quorum=rng.choice(("N", "N / 2 + 1", "2", "1")))
            case 8:
                cluster.configure(queue_entries_max=rng.choice((1, 3, 1000)))

    async def tell(self) -> None:
        rng, cluster = self.rng, self.cluster
        self.listen()
        cluster.configure(quorum="N", entries_kept=rng.choice((0, 100)))
        await cluster.own("core1")
        for _ in range(120):
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(rng.choice((0, 0, 0.001, 0.3)))
                owner = cluster.state.owner or "core1"
                node = owner if rng.random() < 0.8 else rng.choice(list(cluster.nodes))
                self.tasks.append(asyncio.ensure_future(self.submit(node)))
            if rng.random() < 0.15:
                self.tasks.append(asyncio.ensure_future(self.operate()))
            if rng.random() < 0.25 and sum(n.applies for n in cluster.nodes.values()) > 1:
                self.mishap()
            if self.tasks and rng.random() < 0.05:
                rng.choice(self.tasks).cancel()
        for name in cluster.nodes:
            cluster.heal(name)
            cluster.resume(name)
        cluster.filter = lambda node, envelope: True
        cluster.configure(quorum="2", queue_entries_max=1000)
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await until(lambda: cluster.state.pending == 0)
        await asyncio.sleep(30)

    # --- judging ---

    def judge(self) -> None:
        cluster = self.cluster
        view = cluster.witness.view("limbo")
        state = cluster.state
        fates = {position: fate(view, position) for position in range(1, state.last + 1)}
        assert set(fates.values()) <= {"confirmed", "rolled back"}
        seen: dict[int, Told] = {}
        for told in self.told:
            position = self._position(told, fates)
            if position:
                assert position not in seen, f"{told.number} and {seen[position].number}"
                seen[position] = told
        self._judge_order(seen)
        self._judge_events(fates)
        for node in cluster.nodes.values():
            assert len(node.opened.submitting) == 0
            assert len(node.opened.waiting) == 0

    def _position(self, told: Told, fates: dict[int, str]) -> int:
        """Where it ended, as its caller was told; what he was told is what the log says."""
        row = self.cluster.value("core1", "s", b"own/%d" % told.number) or self.cluster.value(
            "core1", "a", b"own/%d" % told.number
        )
        receipt, error = told.receipt, told.error
        if told.handle is not None:
            try:
                receipt, error = told.handle.now, None
            except RaftkvError as failed:
                receipt, error = None, failed
            else:
                assert receipt.state == "confirmed", told.number
        if isinstance(error, RolledBack):
            assert fates[error.position] == "rolled back", told.number
            assert row is None
            return error.position
        if isinstance(error, SubmitUnknown | asyncio.CancelledError):
            return 0
        if error is not None:
            assert row is None, f"{told.number} was told {error!r}"
            return 0
        assert receipt is not None
        if receipt.state == "confirmed":
            assert fates[receipt.position] == "confirmed", told.number
        if fates[receipt.position] == "confirmed":
            assert row == b"%d" % told.number, told.number
        else:
            assert row is None, told.number
        return receipt.position

    def _judge_order(self, seen: dict[int, Told]) -> None:
        """The last value of the shared key is that of the last confirmed one that wrote it."""
        view = self.cluster.witness.view("limbo")
        for space in ("s", "a"):
            row = view.table("rows").get((view.table("spaces")[space].id, b"shared"))
            if row is not None and row.position in seen:
                assert row.value == b"%d" % seen[row.position].number

    def _judge_events(self, fates: dict[int, str]) -> None:
        """Every node that missed nothing has heard of every verdict once, all in one order."""
        whole = [
            [(type(one).__name__, one.position) for one in events if not isinstance(one, Restored)]
            for events in self.events.values()
            if not any(isinstance(one, Restored) for one in events)
        ]
        for heard in whole:
            assert sorted(position for _, position in heard) == sorted(fates)
            for kind, position in heard:
                assert fates[position] == ("confirmed" if kind == "Confirmed" else "rolled back")
            assert heard == whole[0]


@pytest.mark.parametrize("seed", range(1, 13))
def test_random_stories(seed: int) -> None:
    async def whole() -> None:
        cluster = Cluster(3, 1, {"rep1": "eu"})
        await cluster.start()
        await cluster.limbo("core1").create_space("s", sync=True)
        await cluster.limbo("core1").create_space("a", sync=False)
        one = RandomStory(seed, cluster)
        await one.tell()
        cluster.check()
        one.judge()

    run(whole())

"""Observers under random mishaps: what they heard is held against what programs did.

A program on core1 runs transactions, local and distributed; core2, core3 and rep1 observe, and are
paused, jumped over by snapshots, declared dead while they go on, and restarted. Stores are slow and
fail. In the end every observer of every process has heard a sequence that the rules allow, and what
it heard of a committed transaction is the whole content, or it was told that it is not.
"""

from __future__ import annotations

import asyncio
import functools
import random
import re
from typing import Any

import pytest

from raftkv.errors import RaftkvError
from raftkv.testing.clock import run
from raftkv_txqueue import Opened, PrepareFailed, TransactionObserver, TxQueue, XaStatus, Xid
from tests.plugins.raftkv_txqueue.fakes import REST_S, Cluster, messages, until

OBSERVERS = ("core2", "core3", "rep1")
SEEDS = range(12)

#: One letter for each call; see `LETTERS`.
ALLOWED = re.compile(
    r"o(pub|acc)*(C(P(y|n|x)?)?)?(m?c|r|m)?d?".replace("pub", "p").replace("acc", "a")
)
LETTERS = {
    "publish": "p",
    "accept": "a",
    "closed": "C",
    "prepare": "P",
    "yes": "y",
    "no": "n",
    "cancelled": "x",
    "missed": "m",
    "commit": "c",
    "rollback": "r",
    "deleted": "d",
}


class Note(TransactionObserver):
    """One observer, and what it heard."""

    def __init__(self, opened: Opened, rng: random.Random, process: int) -> None:
        self.opened = opened
        self.process = process
        self.word = "o"
        self.content: list[str] = []
        self._rng = rng

    def _hears(self, name: str) -> None:
        self.word += LETTERS[name]

    def publish(self, queue: str, messages: Any) -> None:
        self._hears("publish")
        self.content += [f"{queue}+{one.body.decode()}" for one in messages]

    def accept(self, queue: str, seqs: tuple[int, ...]) -> None:
        self._hears("accept")
        self.content += [f"{queue}-{seq}" for seq in seqs]

    def closed(self, participants: tuple[str, ...]) -> None:
        self._hears("closed")

    async def prepare(self) -> None:
        self._hears("prepare")
        try:
            await asyncio.sleep(self._rng.choice((0, 0, 0.01, 0.3, 3)))
        except asyncio.CancelledError:
            self._hears("cancelled")
            raise
        if self._rng.random() < 0.1:
            self._hears("no")
            raise PrepareFailed("at random")
        self._hears("yes")

    def missed(self) -> None:
        self._hears("missed")

    def commit(self) -> None:
        self._hears("commit")

    def rollback(self, cause: str, reason: str) -> None:
        self._hears("rollback")

    def deleted(self) -> None:
        self._hears("deleted")


class Storm:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = Cluster(TxQueue, 3, 1)
        self.notes: list[Note] = []
        #: Identity -> its content, and whether it was committed.
        self.done: dict[str, tuple[list[str], bool]] = {}
        self.processes = 0
        #: Node -> its present process.
        self.alive: dict[str, int] = {}
        self.over = False

    def listen(self, name: str) -> None:
        self.processes += 1
        process = self.alive[name] = self.processes
        rng = random.Random(self.rng.random())

        def factory(opened: Opened) -> Note:
            note = Note(opened, rng, process)
            self.notes.append(note)
            return note

        self.cluster.txq(name).observe(factory)

    # --- the program ---

    async def work(self, session: Any, content: list[str]) -> None:
        """Some operations, staged here and there."""
        for n in range(self.rng.randint(1, 6)):
            queue = self.rng.choice("ab")
            texts = [f"{len(self.done)}.{n}.{k}" for k in range(self.rng.randint(1, 3))]
            await session.publish(queue, messages(*texts))
            content += [f"{queue}+{text}" for text in texts]
            if self.rng.random() < 0.2:
                got = await session.get(queue, count=2)
                if got:
                    await session.accept(*got)
                    content += [f"{one.queue}-{one.seq}" for one in got]
            if self.rng.random() < 0.4:
                await session.flush()
            await asyncio.sleep(self.rng.choice((0, 0.05, 0.3)))

    async def local(self, rounds: int) -> None:
        txq = self.cluster.txq("core1")
        session = await txq.session("tx")
        for _ in range(rounds):
            content: list[str] = []
            try:
                await self.work(session, content)
                txid = session.txid
                if self.rng.random() < 0.2:
                    await session.rollback()
                else:
                    await session.commit(timeout_s=60)
            except RaftkvError:
                txid = session.txid
                await session.rollback()
            fate = await txq.outcome(txid)
            self.done[txid] = (content, fate.state == "committed")
            assert fate.state in ("committed", "rolled back"), fate

    async def distributed(self, rounds: int) -> None:
        txq = self.cluster.txq("core1")
        session = await txq.session("dtx")
        for n in range(rounds):
            xid = Xid(1, b"storm", str(n).encode())
            content: list[str] = []
            await session.start(xid)
            await self.work(session, content)
            await session.end(xid)
            choice = self.rng.random()
            if choice < 0.3:
                status = await txq.dtx.commit(xid, True)
            elif choice < 0.5:
                await txq.dtx.rollback(xid)
                status = XaStatus.RBROLLBACK
            else:
                status = await txq.dtx.prepare(xid)
                if status is XaStatus.OK:
                    await asyncio.sleep(self.rng.choice((0, 0.5, 3)))
                    status = await txq.dtx.commit(xid)
                else:
                    await txq.dtx.rollback(xid)
            self.done[str(xid)] = (content, status is XaStatus.OK)

    # --- the mishaps ---

    async def mishaps(self) -> None:
        cluster, rng = self.cluster, self.rng
        while not self.over:
            await asyncio.sleep(rng.uniform(0.05, 1))
            name = rng.choice(OBSERVERS)
            kind = rng.choice(("pause", "jump", "dead", "dead, then behind", "restart", "leader"))
            if kind == "leader":
                cluster.lead(rng.choice(("core1", "core2", "core3")))
                continue
            cluster.lead("core1")
            if kind == "restart":
                await cluster.restart(name)
                self.listen(name)
            elif kind.startswith("dead"):
                # All of them at times: then transactions are committed without any participant.
                names = OBSERVERS if rng.random() < 0.3 else (name,)
                for each in names:
                    cluster.isolate(each)
                    cluster.declare_dead(each)
                await asyncio.sleep(rng.uniform(0, 3))
                for each in names:
                    if kind == "dead":
                        cluster.rejoin(each)
                    else:
                        cluster.jump(each)
                        cluster.node_up(cluster.nodes[each])
            else:
                cluster.pause(name)
                await asyncio.sleep(rng.uniform(0, 1))
                if kind == "jump":
                    cluster.jump(name)
                else:
                    cluster.resume(name)

    async def run(self) -> None:
        cluster = self.cluster
        await cluster.start()
        cluster.configure(prepare_timeout_ms=2_000)
        for queue in "ab":
            await cluster.txq("core1").declare(queue)
        for name in OBSERVERS:
            self.listen(name)
        mishaps = asyncio.ensure_future(self.mishaps())
        await asyncio.gather(self.local(12), self.local(12), self.distributed(12))
        self.over = True
        await mishaps
        await until(lambda: not cluster.table("transactions"))
        await asyncio.sleep(REST_S)
        cluster.check()

    # --- judging ---

    def judge(self) -> tuple[int, int]:
        """How many committed ones were heard whole, and how many were not."""
        whole = gaps = 0
        for note in self.notes:
            what = (note.opened.txid, note.process, note.word)
            assert ALLOWED.fullmatch(note.word), what
            content, committed = self.done[note.opened.txid]
            assert ("c" in note.word) <= committed, what
            assert ("r" in note.word) <= (not committed), what
            assert note.process not in self.alive.values() or note.word.endswith("d"), what
            if "c" not in note.word:
                continue
            if "m" in note.word:
                gaps += 1
                assert "y" not in note.word, what
                assert all(one in content for one in note.content), what
            else:
                whole += 1
                assert note.content == content, what
        return whole, gaps


@functools.cache
def storm(seed: int) -> tuple[int, int, str]:
    """Run and judge it once: heard whole, with gaps, and everything that was heard."""
    world = Storm(seed)
    run(world.run())
    whole, gaps = world.judge()
    return whole, gaps, "".join(note.word for note in world.notes)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_observers_hear_is_true(seed: int) -> None:
    print(f"seed {seed}")
    whole, _, _ = storm(seed)
    assert whole > 0


def test_the_storms_have_gaps_and_votes_of_all_kinds() -> None:
    """Otherwise they would show nothing about them."""
    assert sum(storm(seed)[1] for seed in SEEDS) > 0
    assert set(LETTERS.values()) <= set("".join(storm(seed)[2] for seed in SEEDS))

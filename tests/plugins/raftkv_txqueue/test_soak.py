"""Scenario 9: transactions of ten, while leaders are killed again and again.

A sender puts 1..1000 into a queue, a receiver takes 990 of them, both in transactions of ten, and
the leader, where one of them often is, is killed by signal 9 and started again. In the end exactly
991..1000 are there, in order, on all nodes, and the receiver has had 1..990 in order.

The programs do what any application does (agents.py): they attach to a node that leads, repeat what
was surely not applied, and ask for the outcome where they were not told it. The receiver wants all
in order, so a new session of it waits until what its former one held has been given back. The short
form kills whole nodes inside of one process instead.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from raftkv.cli.devcluster import DevCluster
from raftkv.errors import RaftkvError
from raftkv_txqueue.errors import TransactionAborted
from raftkv_txqueue.session import Session
from tests.plugins.raftkv_txqueue.agents import Agent, Program, agree, ask, started
from tests.plugins.raftkv_txqueue.cluster import (
    DEADLINE_S,
    TxCluster,
    bodies,
    body_of,
    play,
    take,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BATCH = 10
#: How many of those sent are left to lie there.
LEFT = 10


# --- inside of one process ------------------------------------------------------------------------

SHORT = 600
SHORT_KILLS = 10


class LocalProgram:
    """As `agents.Program`, in the process of all nodes."""

    def __init__(self, cluster: TxCluster) -> None:
        self._cluster = cluster
        self._session: Session | None = None
        self.fresh = True
        self.again = 0
        self.asked = 0

    async def transact(self, work: Callable[[Session], Awaitable[list[str]]]) -> list[str]:
        while True:
            txid = ""
            done: list[str] = []
            try:
                session = await self._attached()
                done = await work(session)
                txid = session.txid
                await session.commit(timeout_s=DEADLINE_S)
                self.fresh = False
                return done
            except RaftkvError as error:
                self._session = None
                self.fresh = True
                if txid and not isinstance(error, TransactionAborted):
                    self.asked += 1
                    if await self._committed(txid):
                        return done
                self.again += 1
                await asyncio.sleep(0.05)

    async def _attached(self) -> Session:
        if self._session is None or self._session.ended:
            leader = await self._cluster.has_leader()
            self._session = await self._cluster.txq(leader).session("tx", timeout_s=DEADLINE_S)
        return self._session

    async def _committed(self, txid: str) -> bool:
        while True:
            for node in self._cluster.nodes:
                try:
                    state = (await self._cluster.txq(node.name).outcome(txid)).state
                except RaftkvError:
                    continue
                if state in ("committed", "rolled back"):
                    return state == "committed"
            await asyncio.sleep(0.05)


def test_9_soak_in_one_process() -> None:
    """Scenario 9, short: both programs sit at the leader, which dies under them."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("q")
        received: list[str] = []
        sender, receiver = LocalProgram(cluster), LocalProgram(cluster)

        async def send() -> None:
            for first in range(1, SHORT + 1, BATCH):
                texts = [str(number) for number in range(first, first + BATCH)]

                async def publish(session: Session, texts: list[str] = texts) -> list[str]:
                    for text in texts:
                        await session.publish("q", body_of(text))
                    return texts

                await sender.transact(publish)

        async def receive() -> None:
            def nothing_is_out() -> bool:
                leader = cluster.leader()
                if leader is None:
                    return False
                row = leader.machine.view("txqueue").table("queues").get("q")
                return row is not None and row.depth == row.ready

            async def accept(session: Session) -> list[str]:
                if receiver.fresh:
                    await until(nothing_is_out, "what the former session held is back")
                got = await take(session, "q", BATCH)
                await session.accept(*got)
                return bodies(got)

            while len(received) < SHORT - LEFT:
                received.extend(await receiver.transact(accept))

        async def kill() -> None:
            for number in range(SHORT_KILLS):
                await until(
                    lambda number=number: (  # type: ignore[misc]
                        len(received) >= number * (SHORT - LEFT) // (SHORT_KILLS + 1)
                    ),
                    "the soak goes on",
                )
                leader = await cluster.has_leader()
                await cluster.restart(leader)

        await asyncio.gather(send(), receive(), kill())
        assert received == [str(number) for number in range(1, SHORT - LEFT + 1)]
        left = [str(number) for number in range(SHORT - LEFT + 1, SHORT + 1)]
        await until(lambda: cluster.available("q") == left, "the rest is available")
        await cluster.clean()
        assert await cluster.everywhere("q", everything=True) == left
        print(f"again: {sender.again} + {receiver.again}, asked {sender.asked} + {receiver.asked}")

    play(body)


# --- whole processes ------------------------------------------------------------------------------

SENT = 1_000
KILLS = 8


class Sender(threading.Thread):
    def __init__(self, dev: DevCluster, queue: str) -> None:
        super().__init__()
        self.program = Program(dev)
        self.sent = 0
        #: It goes so far and no further for now, so that each kill finds it at work.
        self.allowed = 0
        self._queue = queue

    def run(self) -> None:
        while self.sent < SENT:
            if self.sent >= self.allowed:
                time.sleep(0.002)
                continue
            self.program.transact(self._publish)
            self.sent += BATCH

    def _publish(self, agent: Agent, session: int) -> int:
        for number in range(self.sent + 1, self.sent + BATCH + 1):
            agent("publish", session=session, queue=self._queue, texts=[str(number)])
        return BATCH


class Receiver(threading.Thread):
    def __init__(self, dev: DevCluster, queue: str) -> None:
        super().__init__()
        self.program = Program(dev)
        self.received: list[str] = []
        self._queue = queue

    def run(self) -> None:
        while len(self.received) < SENT - LEFT:
            self.received.extend(self.program.transact(self._accept))

    def _accept(self, agent: Agent, session: int) -> list[str]:
        while self.program.fresh and not agent("returned", queue=self._queue):
            time.sleep(0.02)
        texts: list[str] = []
        while len(texts) < BATCH:
            got = agent(
                "get", session=session, queue=self._queue, count=BATCH - len(texts), wait_s=5.0
            )
            if got:
                seqs = [seq for seq, _, _ in got]
                agent("accept", session=session, queue=self._queue, seqs=seqs)
                texts.extend(text for _, text, _ in got)
        return texts


@pytest.mark.cluster
def test_9_soak_with_killed_leaders(tmp_path: Path) -> None:
    """Scenario 9 whole: 1000 messages, the leader's process killed again and again."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with started(tmp_path / "soak") as dev:
        ask(dev, "core1", "declare", queue="q")
        sender, receiver = Sender(dev, "q"), Receiver(dev, "q")
        began = time.monotonic()
        sender.start()
        receiver.start()
        for number in range(1, KILLS + 1):
            sender.allowed = SENT * number // KILLS
            # In the middle of this portion, wherever that is between two calls of the programs.
            until_sent = sender.allowed - rng.randrange(SENT // KILLS)
            while sender.sent < until_sent:
                assert sender.is_alive()
                # The last few stay in the queue: the receiver may be through before the sender.
                assert receiver.is_alive() or len(receiver.received) == SENT - LEFT
                assert time.monotonic() < began + 4 * DEADLINE_S, "the soak stands still"
                time.sleep(0.0005)
            leader = dev.leader()
            dev.kill_node(leader)
            dev.start_node(leader)
            dev.wait_writable(timeout_s=DEADLINE_S)
        sender.allowed = SENT
        for thread in (sender, receiver):
            thread.join(4 * DEADLINE_S)
            assert not thread.is_alive(), "a program has not come to its end"
        taken = time.monotonic() - began
        sender.program.close()
        receiver.program.close()
        agree(dev)
        assert receiver.received == [str(number) for number in range(1, SENT - LEFT + 1)]
        left = [str(number) for number in range(SENT - LEFT + 1, SENT + 1)]
        for name in dev.names:
            assert ask(dev, name, "browse", queue="q", everything=True) == left
            assert ask(dev, name, "browse", queue="q") == left
        again = sender.program.again, receiver.program.again
        asked = sender.program.asked, receiver.program.asked
        print(f"{taken:.1f} s, begun again {again}, had to ask {asked}")

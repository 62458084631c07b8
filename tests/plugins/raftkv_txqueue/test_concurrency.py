"""Many transactions at once, and very big ones: whole on every node, at every index.

`Witness` looks at every node after each entry of the log, not only at the ends: that is where a
partial transaction would be seen. Durations are printed and judge nothing; what is judged is how
many rows one entry touches, which is what keeps the nodes' loops going.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from raftkv.config import RaftTimes
from raftkv.errors import RaftkvError
from raftkv_txqueue.commands import COMMAND_BYTES, ROWS_MAX, Message, Sweep, size_of
from raftkv_txqueue.errors import TransactionAborted
from raftkv_txqueue.session import Session
from tests.plugins.raftkv_txqueue.cluster import (
    DEADLINE_S,
    TxCluster,
    bodies,
    body_of,
    new_xid,
    play,
    take,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Rows that a command may write: for each of ROWS_MAX messages its old place, its new one, and its
# body where that has still to be moved; and the queues, the transaction, its session, ...
WRITTEN_MAX = 3 * ROWS_MAX + 300


class Witness:
    """Calls `look(view, node's name)` after each entry, on every node that runs now."""

    def __init__(self, cluster: TxCluster, look: Callable[[Any, str], None] | None = None) -> None:
        self.entries = 0
        self.wrong: list[str] = []
        self._ends = [
            node.machine.subscribe(self._seer(node.name, node.machine, look), {"txqueue"})
            for node in cluster.nodes
        ]

    def _seer(
        self, name: str, machine: Any, look: Callable[[Any, str], None] | None
    ) -> Callable[[int, Any], None]:
        def seen(index: int, changes: Any) -> None:
            self.entries += 1
            if look is not None and not self.wrong:
                try:
                    look(machine.view("txqueue"), name)
                except AssertionError as error:
                    self.wrong.append(f"{name} at {index}: {error}")

        return seen

    def end(self) -> None:
        for end in self._ends:
            end()
        assert self.wrong == []
        assert self.entries > 0


class Beat:
    """Turns of the event loop while something goes on, and the longest one."""

    def __init__(self) -> None:
        self.turns = 0
        self.longest_s = 0.0
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(0)
            now = loop.time()
            self.turns += 1
            self.longest_s = max(self.longest_s, now - last)
            last = now

    def end(self) -> None:
        self._task.cancel()


# --- many -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("observed", [False, True], ids=["plain", "with stores"])
def test_transfers_conserve_messages(observed: bool) -> None:
    """Sessions of all nodes move messages between queues: at each index each is in one place.

    Some are rolled back by will, some by a session's end. A queue's messages are counted on every
    node after every entry; the bodies are compared in the end.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    queues = ("a", "b", "c", "d")
    total = 40
    rounds = 12 if observed else 25

    async def body(cluster: TxCluster) -> None:
        if observed:
            await cluster.store("core1", "core3")
        for queue in queues:
            await cluster.queue(queue)
        texts = [str(number) for number in range(total)]
        await cluster.put("a", *texts)
        await cluster.converge(DEADLINE_S)

        def whole(view: Any, name: str) -> None:
            rows = view.table("queues")
            assert sum(rows[queue].depth for queue in queues) == total

        witness = Witness(cluster, whole)
        done: Counter[str] = Counter()

        async def move(at: str, seed: int) -> None:
            rng = random.Random(seed)
            session = await cluster.txq(at).session("tx", timeout_s=DEADLINE_S)
            for _ in range(rounds):
                source, target = rng.sample(queues, 2)
                got = await session.get(source, count=rng.randint(1, 4), timeout_s=DEADLINE_S)
                for each in got:
                    await session.publish(target, each.body)
                    await session.accept(each)
                    if rng.random() < 0.2:
                        await session.flush()
                if rng.random() < 0.2:
                    await session.rollback()
                    await session.release(*got)
                    done["rolled back"] += 1
                elif rng.random() < 0.1:
                    await session.close()
                    session = await cluster.txq(at).session("tx", timeout_s=DEADLINE_S)
                    done["closed"] += 1
                else:
                    await session.commit(timeout_s=DEADLINE_S)
                    done["committed"] += 1
            await session.close()

        await asyncio.gather(
            *(move(node.name, rng.randrange(2**32)) for node in cluster.nodes for _ in range(4))
        )
        await cluster.clean()
        witness.end()
        left = [text for queue in queues for text in await cluster.everywhere(queue)]
        assert sorted(left, key=int) == texts
        assert min(done.values()) > 0
        print(f"{dict(done)}, {witness.entries} entries looked at")

    play(body)


async def keep_moving(
    cluster: TxCluster,
    queues: Sequence[str],
    seed: int,
    over: Callable[[], bool],
    done: Counter[str],
) -> None:
    """Move messages about in transactions of any node that runs, and begin again when it dies."""
    rng = random.Random(seed)
    while not over():
        at = rng.choice(list(cluster.running))
        try:
            async with cluster.txq(at).session("tx", timeout_s=DEADLINE_S) as session:
                for _ in range(10):
                    source, target = rng.sample(queues, 2)
                    got = await session.get(source, count=rng.randint(1, 4))
                    for each in got:
                        await session.publish(target, each.body)
                        await session.accept(each)
                    if rng.random() < 0.5:
                        await session.flush()
                    await session.commit(timeout_s=DEADLINE_S)
                    done["committed"] += 1
        except RaftkvError as error:
            done[type(error).__name__] += 1
            await asyncio.sleep(0.02)


async def fits(cluster: TxCluster) -> None:
    """What every store heard in its last life is what became of the transaction."""
    heard = Counter[str]()
    for store in cluster.stores.values():
        for txid, events in store.told.items():
            verdicts = [each for each in events if each.split()[0] in ("commit", "rollback")]
            fate = await cluster.txq(store.name).outcome(txid)
            said = {"commit": "committed", "rollback": "rolled back"}
            assert [said[each.split()[0]] for each in verdicts] == [fate.state], (txid, events)
            assert events[-1] == "deleted", (txid, events)
            if fate.state == "committed" and "prepared" in events:
                assert events.index("closed") < events.index("prepared") < events.index("commit")
            heard[fate.state] += 1
    print(dict(heard))


@pytest.mark.parametrize("observed", [False, True], ids=["plain", "with stores"])
def test_transfers_while_leaders_are_killed(observed: bool) -> None:
    """The same while one leader after the other dies, with the sessions of its node.

    Programs begin again wherever a leader lives; whether a message was moved is for the log to say,
    and the bodies are compared in the end: none is lost and none is doubled. Stores that take part
    hear what became of each transaction, and nothing else.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    queues = ("a", "b", "c")
    total = 30

    async def body(cluster: TxCluster) -> None:
        for queue in queues:
            await cluster.queue(queue)
        if observed:
            await cluster.store(*cluster.running)
        texts = [str(number) for number in range(total)]
        await cluster.put("a", *texts)
        await cluster.converge(DEADLINE_S)
        stop = False
        done: Counter[str] = Counter()

        def whole(view: Any, name: str) -> None:
            rows = view.table("queues")
            assert sum(rows[queue].depth for queue in queues) == total

        movers = [
            asyncio.ensure_future(keep_moving(cluster, queues, seed + number, lambda: stop, done))
            for number in range(8)
        ]
        for _ in range(4):
            witness = Witness(cluster, whole)
            committed = done["committed"]
            await until(lambda: done["committed"] > committed + 20, "transfers go on")  # noqa: B023
            for _ in range(rng.randrange(200)):
                await asyncio.sleep(0)
            leader = await cluster.has_leader()
            await cluster.kill(leader)
            await until(lambda: cluster.leader() is not None, "another one leads")
            witness.end()
            await cluster.start(leader)
            await cluster.wait_ready(DEADLINE_S)
        stop = True
        await asyncio.gather(*movers)
        await cluster.clean()
        await until(
            lambda: sum(cluster.row(queue).ready for queue in queues) == total, "all are back"
        )
        left = [text for queue in queues for text in await cluster.everywhere(queue)]
        assert sorted(left, key=int) == texts
        await fits(cluster)
        print(dict(done))

    play(body)


def test_consumers_of_one_queue_share_it() -> None:
    """Ten sessions on three nodes take from one queue while it is filled: each message once."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("q")
        total = 300
        got: list[str] = []

        async def consume(at: str) -> None:
            async with cluster.txq(at).session("tx") as session:
                while len(got) < total:
                    some = await session.get("q", count=7, wait_s=0.3)
                    if some:
                        await session.accept(*some)
                        await session.commit(timeout_s=DEADLINE_S)
                        got.extend(bodies(some))

        async def fill() -> None:
            async with cluster.txq("core2").session("tx") as session:
                for first in range(0, total, 5):
                    numbers = range(first, first + 5)
                    await session.publish("q", [Message(body_of(str(n))) for n in numbers])
                    await session.commit(timeout_s=DEADLINE_S)

        consumers = [consume(cluster.nodes[number % 3].name) for number in range(10)]
        await asyncio.gather(fill(), *consumers)
        assert sorted(got, key=int) == [str(number) for number in range(total)]
        assert await cluster.everywhere("q", everything=True) == []

    play(body)


# --- big ------------------------------------------------------------------------------------------

BIG = 100_000


async def fill(session: Session, queue: str, count: int, *, first: int = 0) -> None:
    """Publish so many numbers in the session's transaction, in commands of ROWS_MAX."""
    for start in range(first, first + count, ROWS_MAX):
        numbers = range(start, min(start + ROWS_MAX, first + count))
        await session.publish(
            queue, [Message(b"%d" % number) for number in numbers], timeout_s=DEADLINE_S
        )


def test_100_000_rows_become_visible_by_one_entry() -> None:
    """At each index of each node the queue has none of them, or all; and no entry is a big one."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("q")
        session = await cluster.txq("core1").session("tx")
        beat = Beat()
        witness = Witness(cluster, none_or_all)
        await fill(session, "q", BIG)
        await session.flush()
        term = cluster.nodes[0].status().term
        before = beat.turns
        done = await session.commit(timeout_s=DEADLINE_S)
        assert [(queue, last - first + 1) for queue, first, last in done.spans] == [("q", BIG)]
        # It can be read at once, in the middle too, though its rows are still being moved.
        middle = await cluster.txq("core3").browse("q", first=BIG // 2, limit=3)
        assert [each.message.body for each in middle] == [
            b"%d" % number for number in range(BIG // 2 - 1, BIG // 2 + 2)
        ]
        consumer = await cluster.txq("core2").session("plain")
        first = await take(consumer, "q", 5)
        assert bodies(first) == ["0", "1", "2", "3", "4"]
        await consumer.release(*first)
        await cluster.put("q", "behind")
        await cluster.clean()
        witness.end()
        beat.end()
        assert cluster.stored("q", "core3") == [*(str(number) for number in range(BIG)), "behind"]
        assert cluster.row("q").ready == BIG + 1
        # What keeps the loop going: nothing is done in steps larger than this.
        assert max(cluster.measured.rows_max.values()) <= WRITTEN_MAX
        assert beat.turns - before > BIG // ROWS_MAX
        # Nobody lost the leader or was declared dead meanwhile. (If this process got no processor
        # for as long as that takes, it says nothing of the queue.)
        if beat.longest_s < RaftTimes().election_timeout_min_ms / 2000:
            assert {node.status().term for node in cluster.nodes} == {term}
        print(f"longest turn {beat.longest_s * 1000:.0f} ms, {cluster.measured.rows_max}")

    def none_or_all(view: Any, name: str) -> None:
        row = view.table("queues")["q"]
        assert row.depth in (0, BIG, BIG + 1), row

    play(body, limits=None)


def test_a_big_transaction_is_accepted_and_rolled_back_whole() -> None:
    """5,000 messages accepted and moved, first rolled back, then committed; then by a branch."""
    count = 5 * ROWS_MAX

    async def body(cluster: TxCluster) -> None:
        for queue in ("a", "b"):
            await cluster.queue(queue)
        session = await cluster.txq("core1").session("tx", timeout_s=DEADLINE_S)
        await fill(session, "a", count)
        await session.commit(timeout_s=DEADLINE_S)
        texts = [str(number) for number in range(count)]

        def whole(view: Any, name: str) -> None:
            rows = view.table("queues")
            assert (rows["a"].depth, rows["b"].depth) in ((count, 0), (0, count))

        await cluster.clean()
        witness = Witness(cluster, whole)

        async def move(session: Session, source: str, target: str) -> None:
            taken = await take(session, source, count)
            assert bodies(taken) == texts
            for first in range(0, count, ROWS_MAX):
                await session.accept(*taken[first : first + ROWS_MAX], timeout_s=DEADLINE_S)
            await fill(session, target, count)

        await move(session, "a", "b")
        await session.rollback(timeout_s=DEADLINE_S)
        await cluster.clean()
        assert cluster.available("a") == []
        await session.close()
        await until(lambda: cluster.row("a").ready == count, "all are given back")
        assert await cluster.everywhere("a") == texts
        session = await cluster.txq("core2").session("tx", timeout_s=DEADLINE_S)
        await move(session, "a", "b")
        await session.commit(timeout_s=DEADLINE_S)
        assert await cluster.everywhere("a", everything=True) == []
        assert await cluster.everywhere("b") == texts
        branch = new_xid("big")
        await session.close()
        session = await cluster.txq("core3").session("dtx", timeout_s=DEADLINE_S)
        coordinator = cluster.txq("core1").dtx
        for end in ("rollback", "commit"):
            await session.start(branch)
            await move(session, "b", "a")
            await session.end(branch)
            await coordinator.prepare(branch)
            assert await cluster.everywhere("b") == await cluster.everywhere("a") == []
            await getattr(coordinator, end)(branch)
            await cluster.clean()
            here, there = ("b", "a") if end == "rollback" else ("a", "b")
            assert await cluster.everywhere(here) == texts
            assert await cluster.everywhere(there, everything=True) == []
        witness.end()
        assert max(cluster.measured.rows_max.values()) <= WRITTEN_MAX
        print(dict(cluster.measured.rows_max))

    play(body, acquired_max=count)


@pytest.mark.parametrize("who", ["the leader", "all"])
def test_who_moves_rows_dies_while_a_big_commit_is_unfolded(who: str) -> None:
    """The commit is one entry: whoever leads goes on moving rows, and nobody can tell."""
    count = 20 * ROWS_MAX

    async def body(cluster: TxCluster) -> None:
        for queue in ("a", "b"):
            await cluster.queue(queue)
        leader = await cluster.has_leader()
        session = await cluster.txq(cluster.follower()).session("tx", timeout_s=DEADLINE_S)
        await fill(session, "a", count // 2)
        await fill(session, "b", count // 2)
        await session.flush()
        witness = Witness(cluster, equal)
        # Some rows are moved; the rest is not before the node has died, however fast it is.
        release = cluster.hold(Sweep, *cluster.running, passing=2)
        await session.commit(timeout_s=DEADLINE_S)
        await cluster.is_held(Sweep, leader)
        assert cluster.table("unfolding", leader) != {}
        if who == "all":
            witness.end()
            await cluster.all_restart()
            assert cluster.table("unfolding") != {}
            witness = Witness(cluster, equal)
            release()
        else:
            await cluster.kill(leader)
            await cluster.has_leader()
            release()
            await cluster.start(leader)
            await cluster.wait_ready(DEADLINE_S)
        await cluster.clean()
        witness.end()
        texts = [str(number) for number in range(count // 2)]
        assert await cluster.everywhere("a") == texts
        assert await cluster.everywhere("b") == texts

    def equal(view: Any, name: str) -> None:
        rows = view.table("queues")
        assert rows["a"].depth == rows["b"].depth in (0, count // 2)

    play(body)


MIB = 1024 * 1024


def test_limits_of_bytes_and_rows() -> None:
    """Beyond 64 MiB (or so many rows) in one, beyond 256 in all, it is refused, and freed.

    The limits are set lower here by the settings of those names, and their defaults are looked up.
    """

    async def body(cluster: TxCluster) -> None:
        settings = cluster.nodes[0].machine.view("txqueue").settings
        assert settings["transaction_rows_max"] == 1_000
        await cluster.queue("q")
        large = Message(b"x" * (COMMAND_BYTES // 4))

        async def stage(session: Session, bytes_: int) -> None:
            for _ in range(bytes_ // len(large.body)):
                await session.publish("q", large)
            await session.flush()

        async def too_many(session: Session) -> None:
            await fill(session, "q", 2_000)
            await session.commit()

        # One transaction.
        session = await cluster.txq("core1").session("tx")
        with pytest.raises(TransactionAborted) as told:
            await stage(session, 4 * MIB + COMMAND_BYTES)
        assert told.value.cause == "txqueue_transaction_too_large"
        # All of them.
        others = [await cluster.txq(node.name).session("tx") for node in cluster.nodes]
        for other in others[:2]:
            await stage(other, 3 * MIB)
        with pytest.raises(TransactionAborted) as told:
            await stage(others[2], 3 * MIB)
        assert told.value.cause == "txqueue_staged_full"
        await others[2].rollback()
        # Freed by a rollback and by a session's end.
        await others[0].rollback()
        await others[1].close()
        await cluster.clean()
        assert next(iter(cluster.table("meta").values())).staged_bytes == 0
        await stage(others[2], 3 * MIB)
        await others[2].commit(timeout_s=DEADLINE_S)
        # Rows.
        await session.rollback()
        with pytest.raises(TransactionAborted) as told:
            await too_many(session)
        assert told.value.cause == "txqueue_transaction_too_large"
        assert len(await cluster.everywhere("q", everything=True)) == 3 * MIB // len(large.body)

    play(
        body,
        transaction_rows_max=1_000,
        transaction_bytes_max=4 * MIB,
        staged_bytes_max=8 * MIB,
    )


def test_64_mib_in_one_transaction() -> None:
    """The default limit, used: what fits is committed whole; a little more is refused whole."""

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("q")
        assert (
            cluster.nodes[0].machine.view("txqueue").settings["transaction_bytes_max"] == 64 * MIB
        )
        message = Message(b"x" * (200 * 1024))
        fits = 64 * MIB // size_of(message)

        async def commit(session: Session, count: int) -> None:
            for _ in range(count):
                await session.publish("q", message, timeout_s=DEADLINE_S)
            await session.commit(timeout_s=DEADLINE_S)

        witness = Witness(cluster)
        beat = Beat()
        session = await cluster.txq("core1").session("tx")
        await commit(session, fits)
        await cluster.clean()
        row = cluster.row("q")
        assert (row.depth, row.ready) == (fits, fits)
        with pytest.raises(TransactionAborted) as told:
            await commit(session, fits + 1)
        assert told.value.cause == "txqueue_transaction_too_large"
        await session.close()
        await cluster.clean()
        assert cluster.row("q") == row
        witness.end()
        beat.end()
        print(f"longest turn {beat.longest_s * 1000:.0f} ms")

    play(body, cores=1)

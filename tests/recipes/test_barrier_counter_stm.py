"""Barriers, counters, and transactions over any keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftkv.errors import LockLost, OutcomeUnknown
from raftkv.kv import LimitExceeded
from raftkv.recipes import (
    Barrier,
    Count,
    Counter,
    DoubleBarrier,
    NotANumber,
    Session,
    Transaction,
    atomically,
)
from tests.kv.memory_store import Fault
from tests.recipes.helpers import MemoryStore, crash, keys, run, settled, started

# Barriers -----------------------------------------------------------------------------------------


def test_a_barrier_holds_everybody_up_until_it_is_lifted() -> None:
    async def test(store: MemoryStore) -> None:
        barrier = Barrier(store, b"b")
        await barrier.wait()
        token = await barrier.hold()
        assert await barrier.hold() == token
        tasks = await started(Barrier(store, b"b").wait() for _ in range(10))
        assert not any(task.done() for task in tasks)
        assert await barrier.release()
        await asyncio.gather(*tasks)
        assert not await barrier.release()
        store.faults.append("answer_lost")
        assert await barrier.hold() > token
        store.faults.append("answer_lost")
        assert await barrier.release()

    run(test)


def test_a_barrier_under_a_lease_ends_with_it() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store, ttl_s=5) as session:
            await Barrier(store, b"b", lease=session.lease).hold()
            crash(session)
            async with asyncio.timeout(6):
                await Barrier(store, b"b").wait()

    run(test)


def test_a_double_barrier_lets_them_in_together_and_out_together() -> None:
    async def test(store: MemoryStore) -> None:
        inside = 0
        tokens: list[list[int]] = [[], []]

        async def work(session: Session, number: int) -> None:
            nonlocal inside
            await asyncio.sleep(number * 0.03)
            for step in range(2):
                barrier = DoubleBarrier(session, b"d", 4)
                tokens[step].append(await barrier.enter())
                inside += 1
                await asyncio.sleep(0.2 + number * 0.05)
                assert inside == 4, "somebody left before all were in, or was let in too early"
                await barrier.leave()
                await asyncio.sleep(0)
                inside = 0
                await asyncio.sleep(0.5)

        async with Session(store) as session:
            await asyncio.gather(*(work(session, number) for number in range(4)))
        assert len(set(tokens[0])) == 1
        assert len(set(tokens[1])) == 1
        assert tokens[1][0] > tokens[0][0]
        assert keys(store, b"d/tickets/") == []

    run(test)


def test_one_too_many_waits_for_the_next_round() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            barriers = [DoubleBarrier(session, b"d", 2) for _ in range(4)]
            tasks = await started(barrier.enter() for barrier in barriers[:3])
            await settled()
            assert [task.done() for task in tasks] == [True, True, False]
            leaving = asyncio.ensure_future(barriers[0].leave())
            await settled()
            assert not leaving.done()
            await barriers[1].leave()
            await leaving
            (last,) = await started([barriers[3].enter()])
            assert await last == await tasks[2]
            with pytest.raises(RuntimeError, match="entered already"):
                await barriers[3].enter()

    run(test)


def test_the_dead_and_the_cancelled_are_not_waited_for() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store, ttl_s=5) as dying, Session(store) as session:
            gone = asyncio.ensure_future(DoubleBarrier(session, b"d", 3).enter())
            await settled()
            gone.cancel()
            await settled()
            assert keys(store, b"d/") == []
            barriers = [DoubleBarrier(one, b"d", 3) for one in (dying, session, session)]
            await asyncio.gather(*(barrier.enter() for barrier in barriers))
            crash(dying)
            async with asyncio.timeout(6):
                await asyncio.gather(barriers[1].leave(), barriers[2].leave())
            with pytest.raises(LockLost):
                await barriers[0].leave()

            async def fail() -> None:
                async with DoubleBarrier(session, b"d", 1):
                    raise ValueError("body")

            with pytest.raises(ValueError, match="body"):
                await fail()
            assert keys(store, b"d/tickets/") == []

    run(test)


# Counter ------------------------------------------------------------------------------------------


def test_a_counter_counts_every_addition_once() -> None:
    async def test(store: MemoryStore) -> None:
        counted: list[Count] = []

        async def work() -> None:
            counter = Counter(store, b"c")
            for _ in range(10):
                counted.append(await counter.add(3))

        assert await Counter(store, b"c").get() == Count(0, 0)
        await asyncio.gather(*(work() for _ in range(12)))
        final = await Counter(store, b"c").get()
        assert final.value == 360
        assert sorted(count.value for count in counted) == list(range(3, 361, 3))
        by_token = sorted(counted, key=lambda count: count.token)
        assert [count.value for count in by_token] == list(range(3, 361, 3))
        assert (await Counter(store, b"c").add(-400)).value == -40

    run(test)


@pytest.mark.parametrize("fault", ["no_leader", "answer_lost", "late", "lost"])
def test_a_counter_settles_what_it_did_not_hear(fault: Fault) -> None:
    async def test(store: MemoryStore) -> None:
        counter = Counter(store, b"c")
        await counter.add(1)
        store.faults.append(fault)
        added = await counter.add(1)
        assert added.value == 2
        await asyncio.sleep(3)
        assert await counter.get() == added

    run(test)


class Unsettling:
    """A store that cannot tell what became of a write."""

    def __init__(self, store: MemoryStore) -> None:
        self.kv = store.kv
        self.leases = store.leases


def test_a_counter_says_when_nobody_can_tell() -> None:
    async def test(store: MemoryStore) -> None:
        store.faults.append("answer_lost")
        with pytest.raises(OutcomeUnknown):
            await Counter(Unsettling(store), b"c").add(1)
        assert (await Counter(store, b"c").get()).value == 1
        await store.kv.put(b"c", b"many")
        with pytest.raises(NotANumber, match="many"):
            await Counter(store, b"c").get()

    run(test)


# Transactions -------------------------------------------------------------------------------------


def test_transfers_keep_the_sum() -> None:
    async def test(store: MemoryStore) -> None:
        names = [b"a", b"b", b"c", b"d"]
        for name in names:
            await store.kv.put(b"acc/" + name, b"100")
        runs = 0

        async def transfer(number: int) -> None:
            source, target = names[number % 4], names[(number * 7 + 1) % 4]

            async def move(tx: Transaction) -> int:
                nonlocal runs
                runs += 1
                has = int(await tx.get(b"acc/" + source) or b"0")
                amount = min(has, number + 1)
                tx.put(b"acc/" + source, b"%d" % (has - amount))
                other = int(await tx.get(b"acc/" + target) or b"0")
                tx.put(b"acc/" + target, b"%d" % (other + amount))
                return amount

            done = await atomically(store, move)
            assert done.token > 4

        async def total(tx: Transaction) -> int:
            return sum(int(value) for value in (await tx.prefix(b"acc/")).values())

        async def audit() -> None:
            for _ in range(20):
                assert (await atomically(store, total)).value == 400
                await asyncio.sleep(0.002)

        await asyncio.gather(audit(), *(transfer(number) for number in range(40)))
        assert (await atomically(store, total)).value == 400
        assert runs > 40, "nobody got into anybody's way: the test shows little"

    run(test)


def test_a_prefix_that_was_read_may_not_change_either() -> None:
    """No phantoms: two who each look for an empty place do not both take one."""

    async def test(store: MemoryStore) -> None:
        async def join(tx: Transaction) -> bool:
            there = await tx.prefix(b"seats/")
            await asyncio.sleep(0.01)
            if len(there) >= 3:
                return False
            tx.put(b"seats/%d" % len(there), b"")
            return True

        done = await asyncio.gather(*(atomically(store, join) for _ in range(10)))
        assert sum(each.value for each in done) == 3

        async def leave(tx: Transaction) -> int:
            there = await tx.prefix(b"seats/")
            if first:
                first.pop()
                await store.kv.delete(b"seats/1")
            tx.put(b"count", b"%d" % len(there))
            return len(there)

        first = [True]
        assert (await atomically(store, leave)).value == 2

    run(test)


def test_a_transaction_reads_its_own_writes_and_one_revision() -> None:
    async def test(store: MemoryStore) -> None:
        await store.kv.put(b"k/a", b"1")
        await store.kv.put(b"k/b", b"1")

        async def work(tx: Transaction) -> tuple[object, ...]:
            first = await tx.get(b"k/a")
            if interfering:
                interfering.pop()
                await store.kv.put(b"k/b", b"2")
                assert await tx.get(b"k/b") == b"1", "not as of the first read"
            tx.put(b"k/c", b"3")
            tx.delete(b"k/a")
            shown = await tx.prefix(b"k/")
            assert await tx.get(b"k/a") is None
            assert await tx.get(b"k/c") == b"3"
            return first, shown

        interfering = [True]
        done = await atomically(store, work)
        assert done.value == (b"1", {b"k/b": b"2", b"k/c": b"3"})
        assert done.token == store.kv.revision
        assert await store.kv.get(b"k/a") is None

        async def nothing(tx: Transaction) -> None:
            return None

        assert (await atomically(store, nothing)).token == 0

        async def fails(tx: Transaction) -> None:
            tx.put(b"k/z", b"")
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await atomically(store, fails)
        assert await store.kv.get(b"k/z") is None

        async def leased(tx: Transaction) -> None:
            tx.put(b"k/l", b"", lease=lease)

        lease = (await store.leases.grant(5)).id
        await atomically(store, leased)
        assert (await store.leases.time_to_live(lease, keys=True)).keys == (b"k/l",)

    run(test)


@pytest.mark.parametrize("fault", ["no_leader", "answer_lost", "late", "lost"])
def test_a_commit_is_done_once_whatever_was_heard_of_it(fault: Fault) -> None:
    async def test(store: MemoryStore) -> None:
        async def add(tx: Transaction) -> int:
            value = int(await tx.get(b"n") or b"0") + 1
            tx.put(b"n", b"%d" % value)
            return value

        for expected in (1, 2, 3):
            store.faults.append(fault)
            assert (await atomically(store, add)).value == expected
        await asyncio.sleep(3)
        found = await store.kv.get(b"n")
        assert found is not None
        assert found.value == b"3"

    run(test)


def test_a_transaction_goes_on_after_a_compaction_and_says_when_it_is_too_large() -> None:
    async def test(store: MemoryStore) -> None:
        await store.kv.put(b"a", b"1")
        await store.kv.put(b"b", b"1")

        async def slow(tx: Transaction) -> bytes | None:
            await tx.get(b"a")
            if interfering:
                interfering.pop()
                await store.kv.put(b"b", b"2")
                await store.kv.compact(store.kv.revision)
            return await tx.get(b"b")

        interfering = [True]
        assert (await atomically(store, slow)).value == b"2"

        async def large(tx: Transaction) -> None:
            for number in range(200):
                tx.put(b"%d" % number, b"")

        with pytest.raises(Exception, match="txn_ops_max") as caught:
            await atomically(store, large)
        assert type(caught.value).__name__ in (LimitExceeded.__name__, "TooLarge")

    run(test)


def test_a_barrier_that_was_lifted_before_it_was_heard_of_is_not_put_up_again() -> None:
    async def test(store: MemoryStore) -> None:
        outcome = store.outcome

        async def later(*arguments: Any, **named: Any) -> Any:
            await asyncio.sleep(0.05)
            return await outcome(*arguments, **named)

        store.outcome = later  # type: ignore[method-assign]
        store.faults.append("answer_lost")
        holding = asyncio.ensure_future(Barrier(store, b"b").hold())
        await asyncio.sleep(0.02)
        assert await Barrier(store, b"b").release()
        await holding
        assert await store.kv.get(b"b") is None

    run(test)


async def entered(session: Session, count: int = 2) -> tuple[DoubleBarrier, int]:
    barrier = DoubleBarrier(session, b"db", count)
    return barrier, await barrier.enter()


def test_a_round_does_not_wait_for_those_of_another() -> None:
    async def test(store: MemoryStore) -> None:
        sessions = [Session(store, 10) for _ in range(6)]
        for session in sessions:
            await session.open()
        rounds = []
        for pair in (sessions[:2], sessions[2:4], sessions[4:]):
            (a, token), (b, same) = await asyncio.gather(*map(entered, pair))
            assert token == same
            rounds.append((token, a, b))
        assert [token for token, *_ in rounds] == sorted({token for token, *_ in rounds})
        for _, a, b in (rounds[1], rounds[2], rounds[0]):
            leaving = asyncio.ensure_future(a.leave())
            await asyncio.sleep(1)
            assert not leaving.done()
            await b.leave()
            await asyncio.wait_for(leaving, 1)
        # Nothing of rounds that are over is kept.
        (a, token), (b, _) = await asyncio.gather(*map(entered, sessions[:2]))
        kept = await store.kv.get(b"db/round")
        assert kept is not None
        assert kept.value == b"%d" % token
        await asyncio.gather(a.leave(), b.leave())

    run(test)


def test_who_looks_late_still_finds_its_own_round() -> None:
    async def test(store: MemoryStore) -> None:
        sessions = [Session(store, 10) for _ in range(6)]
        for session in sessions:
            await session.open()
        late = DoubleBarrier(sessions[0], b"db", 2)
        let_in = late._let_in

        async def looks_late(ticket: Any) -> tuple[int, int]:
            await asyncio.sleep(3)
            return await let_in(ticket)

        late._let_in = looks_late  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(late.enter())
        await asyncio.sleep(0.1)
        first, token = await entered(sessions[1])
        others = [await asyncio.gather(*map(entered, sessions[at : at + 2])) for at in (2, 4)]
        assert await waiting == token
        await asyncio.gather(first.leave(), late.leave())
        for pair in others:
            await asyncio.gather(*(barrier.leave() for barrier, _ in pair))

    run(test)

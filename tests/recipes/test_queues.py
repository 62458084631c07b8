"""Queues: order, one consumer per entry, and what becomes of entries whose consumer goes away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftkv.errors import LockLost
from raftkv.kv import PutOp
from raftkv.recipes import PRIORITY_MAX, Item, LockingQueue, PriorityQueue, Queue, Session
from tests.kv.memory_store import Fault
from tests.recipes.helpers import MemoryStore, crash, keys, now, run, settled, started, take_away


def test_first_in_first_out_over_several_producers() -> None:
    async def test(store: MemoryStore) -> None:
        producers = [Queue(store, b"q") for _ in range(3)]
        tokens = []
        for number in range(30):
            tokens.append(await producers[number % 3].put(b"%d" % number))
        queue = Queue(store, b"q")
        assert await queue.size() == 30
        items = [await queue.get() for _ in range(30)]
        assert [item.value for item in items] == [b"%d" % number for number in range(30)]
        assert [item.token for item in items] == tokens == sorted(tokens)
        assert await queue.get_nowait() is None

    run(test)


def test_every_entry_is_taken_once() -> None:
    async def test(store: MemoryStore) -> None:
        taken: list[bytes] = []

        async def consume() -> None:
            queue = Queue(store, b"q")
            while (item := await queue.get()).value != b"end":
                taken.append(item.value)

        consumers = [asyncio.ensure_future(consume()) for _ in range(12)]
        queue = Queue(store, b"q")
        await asyncio.gather(*(queue.put(b"%d" % number) for number in range(60)))
        for _ in consumers:
            await queue.put(b"end")
        await asyncio.gather(*consumers)
        assert sorted(taken, key=int) == [b"%d" % number for number in range(60)]
        assert keys(store, b"q/entries/") == []

    run(test)


@pytest.mark.parametrize("fault", ["no_leader", "answer_lost", "late", "lost"])
def test_what_was_not_heard_neither_doubles_nor_loses_an_entry(fault: Fault) -> None:
    async def test(store: MemoryStore) -> None:
        queue = Queue(store, b"q")
        await queue.put(b"first")
        store.faults.append(fault)
        await queue.put(b"second")
        store.faults.append(fault)
        assert (await queue.get()).value == b"first"
        await asyncio.sleep(3)
        assert (await queue.get()).value == b"second"
        assert await queue.get_nowait() is None

    run(test)


def test_a_cancelled_consumer_takes_nothing() -> None:
    async def test(store: MemoryStore) -> None:
        queue = Queue(store, b"q")
        waiting = asyncio.ensure_future(queue.get())
        await settled()
        waiting.cancel()
        token = await queue.put(b"a")
        await queue.put(b"b")
        for fault in ("none", "answer_lost", "late"):
            for delay_s in (0.0005, 0.0015):
                store.faults.append(fault)  # type: ignore[arg-type]
                task = asyncio.ensure_future(queue.get())
                await asyncio.sleep(delay_s)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.sleep(3)
                store.faults.clear()
                assert await queue.size() == 2, (fault, delay_s)
        item = await queue.get()
        assert item.value == b"a"
        assert item.token >= token

    run(test)


def test_the_most_urgent_first_and_of_these_the_oldest() -> None:
    async def test(store: MemoryStore) -> None:
        queue = PriorityQueue(store, b"p")
        for value, priority in ((b"c1", 300), (b"a1", 2), (b"b1", 17), (b"a2", 2), (b"c2", 300)):
            await queue.put(value, priority)
        found = [(await queue.get()).value for _ in range(5)]
        assert found == [b"a1", b"a2", b"b1", b"c1", b"c2"]
        waiting = asyncio.ensure_future(queue.get())
        await settled()
        await queue.put(b"last", PRIORITY_MAX)
        assert (await waiting).value == b"last"
        for wrong in (-1, PRIORITY_MAX + 1):
            with pytest.raises(ValueError, match="priority"):
                await queue.put(b"x", wrong)

    run(test)


# Entries that are held --------------------------------------------------------------------------


def test_an_entry_is_held_by_one_until_it_is_consumed() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            queue = LockingQueue(session, b"q")
            await queue.put_all([b"a", b"b"])
            await queue.put(b"urgent", 1)
            one = await queue.take()
            two = await queue.take()
            assert (one.value, two.value) == (b"urgent", b"a")
            await one.check()
            assert (await store.kv.txn([one.guard()], [PutOp(b"d", b"")])).succeeded
            await one.consume()
            assert not (await store.kv.txn([one.guard()], [PutOp(b"d", b"")])).succeeded
            with pytest.raises(LockLost):
                await one.consume()
            await two.release()
            again = await queue.take()
            assert again.value == b"a"
            assert again.token > two.token
            await queue.take()
            assert await queue.take_nowait() is None
            assert await queue.size() == 2
            waiting = asyncio.ensure_future(queue.take())
            await settled()
            await again.release()
            assert (await waiting).value == b"a"

    run(test)


def test_a_dead_workers_entry_is_given_to_another() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store, ttl_s=5) as dying, Session(store) as living:
            await LockingQueue(living, b"q").put(b"job")
            lost = await LockingQueue(dying, b"q").take()
            waiting = asyncio.ensure_future(LockingQueue(living, b"q").take())
            await settled()
            crash(dying)
            died_at = now()
            again = await waiting
            assert now() - died_at <= 5.6
            assert again.value == b"job"
            assert again.token > lost.token
            for end in (lost.consume, lost.release, lost.check):
                with pytest.raises(LockLost):
                    await end()
            assert not (await store.kv.txn([lost.guard()], [PutOp(b"d", b"")])).succeeded
            await again.consume()
            assert keys(store, b"q/entries/") == keys(store, b"q/taken/") == []

    run(test)


def test_many_workers_do_every_job_once() -> None:
    async def test(store: MemoryStore) -> None:
        done: list[bytes] = []

        async def work(session: Session) -> None:
            queue = LockingQueue(session, b"q")
            while True:
                entry = await queue.take()
                await asyncio.sleep(0.003)
                done.append(entry.value)
                await entry.consume()

        async with Session(store) as one, Session(store) as two:
            workers = [asyncio.ensure_future(work(one if i % 2 else two)) for i in range(12)]
            queue = LockingQueue(one, b"q")
            await asyncio.gather(*(queue.put(b"%d" % number) for number in range(40)))
            while await queue.size():
                await asyncio.sleep(0.05)
            for worker in workers:
                worker.cancel()
            await settled()
        assert sorted(done, key=int) == [b"%d" % number for number in range(40)]

    run(test)


def test_a_cancelled_or_lost_worker_holds_nothing() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            queue = LockingQueue(session, b"q")
            await queue.put(b"job")
            faults: tuple[Fault, ...] = ("none", "answer_lost", "late", "lost")
            for fault in faults:
                for delay_s in (0.0015, 0.0025):
                    store.faults.append(fault)
                    task = asyncio.ensure_future(queue.take())
                    await asyncio.sleep(delay_s)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    await asyncio.sleep(3)
                    store.faults.clear()
                    assert keys(store, b"q/taken/") == [], (fault, delay_s)
            store.faults.append("answer_lost")
            entry = await queue.take()
            await entry.release()
        async with Session(store) as holder, Session(store, ttl_s=6) as other:
            held = await LockingQueue(holder, b"q").take()
            waiting = asyncio.ensure_future(LockingQueue(other, b"q").take())
            await settled()
            take_away(store, other)
            with pytest.raises(LockLost):
                await waiting
            await held.consume()
        assert not await started([])

    run(test)


def slow_outcomes(store: MemoryStore) -> None:
    """Others act between a write and the moment in which its fate is known."""
    outcome = store.outcome

    async def later(*arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(0.05)
        return await outcome(*arguments, **named)

    store.outcome = later  # type: ignore[method-assign]


def test_an_entry_that_was_taken_before_its_put_was_heard_of_is_not_put_again() -> None:
    async def test(store: MemoryStore) -> None:
        slow_outcomes(store)
        queue = Queue(store, b"q")
        await queue.put(b"zero")
        assert (await queue.get()).value == b"zero"
        taken = [asyncio.ensure_future(Queue(store, b"q").get()) for _ in range(2)]
        await settled()
        store.faults.append("answer_lost")
        token = await queue.put(b"job")
        await settled()
        assert [task.done() for task in taken] == [True, False]
        assert await taken[0] == Item(b"job", token, taken[0].result().key)
        taken[1].cancel()

    run(test)


@pytest.mark.parametrize("word", ["check", "consume", "release"])
def test_an_entry_that_another_holds_is_lost_also_if_an_answer_was(word: str) -> None:
    async def test(store: MemoryStore) -> None:
        slow_outcomes(store)
        async with Session(store, 10) as session:
            queue = LockingQueue(session, b"q")
            await queue.put(b"job")
            entry = await queue.take()
            await entry.release()
            other = await LockingQueue(session, b"q").take()
            store.faults.append("answer_lost")
            with pytest.raises(LockLost, match="is held no more"):
                await getattr(entry, word)()
            store.faults.clear()
            assert await queue.size() == 1
            await other.check()
            store.faults.append("answer_lost")
            await other.consume()
            assert await queue.size() == 0

    run(test)

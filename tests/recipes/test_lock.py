"""Locks: exclusion, order, tokens, and what is left behind by the cancelled, the lost, the dead."""

from __future__ import annotations

import asyncio

import pytest

from raftkv.errors import LockLost
from raftkv.kv import PutOp
from raftkv.recipes import Lock, ReadLock, Session, WriteLock
from tests.kv.memory_store import Fault
from tests.recipes.helpers import MemoryStore, crash, keys, now, run, settled, started, take_away


def test_a_lock_excludes_and_its_tokens_grow() -> None:
    async def test(store: MemoryStore) -> None:
        holders = 0
        tokens: list[int] = []

        async def work(session: Session) -> None:
            nonlocal holders
            for _ in range(5):
                async with Lock(session, b"l") as token:
                    holders += 1
                    assert holders == 1
                    tokens.append(token)
                    await asyncio.sleep(0.01)
                    holders -= 1

        async with Session(store) as one, Session(store) as two:
            await asyncio.gather(*(work(one if i % 2 else two) for i in range(12)))
        assert len(tokens) == 60
        assert tokens == sorted(set(tokens))
        assert keys(store, b"l/") == []

    run(test)


def test_it_is_given_in_the_order_of_asking() -> None:
    async def test(store: MemoryStore) -> None:
        order: list[int] = []

        async def wait(number: int) -> None:
            async with Lock(session, b"l"):
                order.append(number)

        async with Session(store) as session:
            async with Lock(session, b"l"):
                tasks = await started(wait(number) for number in range(10))
                assert order == []
            await asyncio.gather(*tasks)
        assert order == list(range(10))

    run(test)


def test_a_release_wakes_one_waiter() -> None:
    async def test(store: MemoryStore) -> None:
        reads = 0
        original = store.kv.range

        async def counted(*args: object, **options: object) -> object:
            nonlocal reads
            reads += 1
            return await original(*args, **options)  # type: ignore[arg-type]

        async with Session(store) as session:
            first = Lock(session, b"l")
            await first.acquire()
            tasks = await started(Lock(session, b"l").acquire() for _ in range(10))
            store.kv.range = counted  # type: ignore[assignment,method-assign]
            await first.release()
            await settled()
            assert [task.done() for task in tasks] == [True] + [False] * 9
            assert reads == 1
            for task in tasks[1:]:
                task.cancel()

    run(test)


def test_a_cancelled_waiter_leaves_the_queue() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            first = Lock(session, b"l")
            await first.acquire()
            tasks = await started(Lock(session, b"l").acquire() for _ in range(3))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await Lock(session, b"l").acquire()
            tasks[1].cancel()
            await settled()
            assert tasks[1].cancelled()
            assert len(keys(store, b"l/")) == 3
            await first.release()
            await tasks[0]
            # The predecessor of the last one has gone, but the lock is held: it goes on waiting.
            await settled()
            assert not tasks[2].done()
            await store.kv.delete(keys(store, b"l/")[0])
            assert await tasks[2]

    run(test)


def test_cancelling_while_the_key_is_on_its_way_leaves_nothing() -> None:
    async def test(store: MemoryStore) -> None:
        faults: tuple[Fault, ...] = ("none", "answer_lost", "late", "lost")
        async with Session(store) as session:
            for fault in faults:
                for delay_s in (0.0, 0.0005, 0.0015, 0.0025):
                    store.faults.append(fault)
                    task = asyncio.ensure_future(Lock(session, b"l").acquire())
                    await asyncio.sleep(delay_s)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    await asyncio.sleep(3)
                    assert keys(store, b"l/") == [], (fault, delay_s)
                    store.faults.clear()

    run(test)


@pytest.mark.parametrize("fault", ["no_leader", "answer_lost", "late", "lost"])
def test_a_lost_answer_neither_doubles_nor_loses_the_lock(fault: Fault) -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            lock = Lock(session, b"l")
            store.faults.append(fault)
            token = await lock.acquire()
            (key,) = keys(store, b"l/")
            kv = await store.kv.get(key)
            assert kv is not None
            assert kv.create_revision == token
            store.faults.append(fault)
            await lock.release()
            await asyncio.sleep(3)
            assert keys(store, b"l/") == []

    run(test)


def test_the_next_one_gets_it_when_the_holder_dies() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store, ttl_s=5) as dying, Session(store) as living:
            stale = Lock(dying, b"l")
            old = await stale.acquire()
            waiting = asyncio.ensure_future(Lock(living, b"l").acquire())
            await settled()
            crash(dying)
            died_at = now()
            new = await waiting
            assert new > old
            assert now() - died_at <= 5.6
            assert not stale.is_held
            with pytest.raises(LockLost):
                await stale.check()
            with pytest.raises(LockLost):
                await stale.release()

    run(test)


def test_a_stale_holder_is_fenced_off() -> None:
    """It stood still while its lease ended, and does not know: its guarded write fails."""

    async def test(store: MemoryStore) -> None:
        async with Session(store, ttl_s=5) as old, Session(store) as new:
            stale = Lock(old, b"l")
            await stale.acquire()
            guarded = await store.kv.txn([stale.guard()], [PutOp(b"data", b"1")])
            assert guarded.succeeded
            take_away(store, old)
            fresh = Lock(new, b"l")
            await fresh.acquire()
            assert (await store.kv.txn([fresh.guard()], [PutOp(b"data", b"2")])).succeeded
            assert stale.is_held, "it has not noticed yet"
            late = await store.kv.txn([stale.guard()], [PutOp(b"data", b"3")])
            assert not late.succeeded
            found = await store.kv.get(b"data")
            assert found is not None
            assert found.value == b"2"
            with pytest.raises(LockLost):
                await stale.check()

    run(test)


def test_a_waiter_hears_that_its_session_is_lost() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as holder, Session(store, ttl_s=6) as session:
            async with Lock(holder, b"l"):
                waiting = asyncio.ensure_future(Lock(session, b"l").acquire())
                await settled()
                take_away(store, session)
                with pytest.raises(LockLost):
                    await waiting
                with pytest.raises(LockLost):
                    await Lock(session, b"l").acquire()
            assert keys(store, b"l/") == []

    run(test)


def test_the_body_is_told_when_the_lock_is_lost() -> None:
    async def test(store: MemoryStore) -> None:
        async def fail() -> None:
            async with Session(store, ttl_s=6) as session, Lock(session, b"l"):
                take_away(store, session)
                raise ValueError("of its own")

        async with Session(store, ttl_s=6) as session:
            with pytest.raises(LockLost):
                async with Lock(session, b"l"):
                    take_away(store, session)
        with pytest.raises(ValueError, match="of its own"):
            await fail()

    run(test)


def test_a_body_can_be_cancelled_when_the_session_is_lost() -> None:
    async def test(store: MemoryStore) -> None:
        async def work(session: Session) -> None:
            async with session.cancelling():
                take_away(store, session)
                await asyncio.sleep(100)

        async with Session(store, ttl_s=6) as session:
            begun = now()
            with pytest.raises(LockLost):
                await work(session)
            assert now() - begun <= 6
        async with Session(store) as session:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1), session.cancelling():
                    await asyncio.sleep(100)
            async with session.cancelling():
                await asyncio.sleep(1)

    run(test)


def test_the_key_deleted_by_somebody_is_noticed() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            lock = Lock(session, b"l")
            await lock.acquire()
            await lock.check()
            await store.kv.delete(prefix=b"l/")
            with pytest.raises(LockLost):
                await lock.set_value(b"me")
            with pytest.raises(LockLost):
                await lock.release()

    run(test)


def test_try_acquire_never_waits_and_leaves_nothing() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            one, two = Lock(session, b"l"), Lock(session, b"l")
            token = await one.try_acquire()
            assert token
            assert await two.try_acquire() is None
            assert len(keys(store, b"l/")) == 1
            await one.release()
            store.faults.append("answer_lost")
            again = await two.try_acquire()
            assert again is not None
            assert again > token
            assert two.is_held

    run(test)


def test_contenders_are_told_in_their_order() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            lock = Lock(session, b"l", b"first")
            await lock.acquire()
            tasks = await started(Lock(session, b"l", b"%d" % n).acquire() for n in range(3))
            assert await lock.contenders() == (b"first", b"0", b"1", b"2")
            await lock.set_value(b"busy")
            assert await lock.contenders() == (b"busy", b"0", b"1", b"2")
            for task in tasks:
                task.cancel()

    run(test)


def test_misuse_is_said_so() -> None:
    async def test(store: MemoryStore) -> None:
        with pytest.raises(RuntimeError, match="not open"):
            await Lock(Session(store), b"l").acquire()
        async with Session(store) as session:
            lock = Lock(session, b"l")
            for use in (lambda: lock.token, lock.guard):
                with pytest.raises(RuntimeError, match="not held"):
                    use()
            with pytest.raises(RuntimeError, match="not held"):
                await lock.release()
            await lock.acquire()
            with pytest.raises(RuntimeError, match="re-entrant"):
                await lock.acquire()
            assert lock.is_held

    run(test)


def test_the_session_survives_changes_of_leader() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store, ttl_s=5) as session:
            lock = Lock(session, b"l")
            await lock.acquire()
            waiting = asyncio.ensure_future(Lock(session, b"l").acquire())
            for _ in range(4):
                await asyncio.sleep(4)
                store.set_leader(False)
                await asyncio.sleep(1)
                store.set_leader(True)
            assert lock.is_held
            await lock.release()
            assert await waiting

    run(test)


def test_a_watch_that_is_cut_off_only_delays() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            lock = Lock(session, b"l")
            await lock.acquire()
            waiting = asyncio.ensure_future(Lock(session, b"l").acquire())
            await settled()
            store.service.hub.restored()
            await settled()
            await store.kv.compact(store.kv.revision)
            assert not waiting.done()
            await lock.release()
            assert await waiting

    run(test)


# Readers and writers ----------------------------------------------------------------------------


def test_readers_share_and_writers_exclude() -> None:
    async def test(store: MemoryStore) -> None:
        readers = writers = most = 0

        async def read(session: Session) -> None:
            nonlocal readers, most
            async with ReadLock(session, b"l"):
                readers += 1
                most = max(most, readers)
                assert writers == 0
                await asyncio.sleep(0.02)
                readers -= 1

        async def write(session: Session) -> None:
            nonlocal writers
            async with WriteLock(session, b"l"):
                writers += 1
                assert (readers, writers) == (0, 1)
                await asyncio.sleep(0.02)
                writers -= 1

        async with Session(store) as session:
            kinds = [read, read, read, write, write, read, read, write] * 3
            await asyncio.gather(*(kind(session) for kind in kinds))
        assert most >= 3
        assert keys(store, b"l/") == []

    run(test)


def test_a_writer_is_not_starved_by_readers() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            one = ReadLock(session, b"l")
            await one.acquire()
            assert await WriteLock(session, b"l").try_acquire() is None
            two = ReadLock(session, b"l")
            assert await two.try_acquire()
            (writer,) = await started([WriteLock(session, b"l").acquire()])
            late = ReadLock(session, b"l")
            assert await late.try_acquire() is None
            (reader,) = await started([late.acquire()])
            await two.release()
            await settled()
            assert not writer.done()
            await one.release()
            await settled()
            assert writer.done()
            assert not reader.done()
            await store.kv.delete(prefix=b"l/write/")
            assert await reader > writer.result()

    run(test)


def test_a_session_is_closed_also_if_who_closes_it_is_cancelled() -> None:
    async def test(store: MemoryStore) -> None:
        session = Session(store, 5)
        await session.open()
        await Lock(session, b"l").acquire()
        waiting = asyncio.ensure_future(Lock(session, b"other").acquire())
        await asyncio.sleep(0.0005)
        closing = asyncio.ensure_future(session.close())
        await asyncio.sleep(0)
        assert session._tasks, "a write is on its way"
        closing.cancel()
        await asyncio.wait((closing, waiting))
        assert closing.cancelled()
        await settled()
        assert session.is_lost
        assert await store.leases.list() == ()
        assert keys(store, b"") == []

    run(test)


def test_a_waiter_hears_that_another_has_closed_its_session() -> None:
    async def test(store: MemoryStore) -> None:
        for delay_s in (0.0005, 0.1):
            session = Session(store, 5)
            await session.open()
            async with Session(store, 5) as other, Lock(other, b"l"):
                waiting = asyncio.ensure_future(Lock(session, b"l").acquire())
                cancelled = asyncio.ensure_future(Lock(session, b"l").acquire())
                await asyncio.sleep(delay_s)
                cancelled.cancel()
                await session.close()
                with pytest.raises(LockLost):
                    await waiting
                with pytest.raises(asyncio.CancelledError):
                    await cancelled

    run(test)

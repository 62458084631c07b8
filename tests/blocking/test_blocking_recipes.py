"""`raftkv.blocking.recipes`: each word, from threads, with time-outs, losses and interrupts.

What the recipes promise is tested on the asynchronous ones (tests/recipes); here it is that the
same comes out of a thread, and that a call that ends early leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import raftkv.blocking.recipes
import raftkv.recipes
from raftkv import blocking
from raftkv.blocking.portal import Portal
from raftkv.blocking.recipes import (
    Barrier,
    Counter,
    DoubleBarrier,
    Election,
    Entry,
    Lock,
    LockingQueue,
    Member,
    Party,
    PriorityQueue,
    Queue,
    ReadLock,
    Semaphore,
    Session,
    Transaction,
    WriteLock,
    atomically,
    leader_of,
    members_of,
    observe,
    observe_members,
)
from raftkv.blocking.recipes.bridge import wait
from raftkv.errors import LockLost, Stopped
from raftkv.kv import PutOp

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="for systems with fork")

Store = blocking.Node | blocking.Client


def waiters(store: Store, prefix: bytes, count: int) -> None:
    """Return once so many keys stand under `prefix`."""
    until = time.monotonic() + 20
    while store.kv.range(prefix=prefix, count_only=True).count != count:
        assert time.monotonic() < until, f"{count} keys under {prefix!r} did not come about"
        time.sleep(0.002)


# Locks -------------------------------------------------------------------------------------------


def test_a_lock_is_held_by_one_thread_at_a_time(store: Store) -> None:
    inside, tokens = 0, []

    def work(session: Session) -> None:
        nonlocal inside
        for _ in range(3):
            with Lock(session, b"l") as token:
                inside += 1
                assert inside == 1
                tokens.append(token)
                time.sleep(0)
                inside -= 1

    with Session(store) as session, ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, session) for _ in range(8)]:
            done.result(30)
    assert len(tokens) == 24
    assert tokens == sorted(set(tokens))
    assert store.kv.range(prefix=b"l/").count == 0


def test_a_lock_that_is_not_got_in_time_leaves_the_queue(store: Store) -> None:
    with Session(store) as session:
        first, second = Lock(session, b"l", b"first"), Lock(session, b"l", b"second")
        token = first.acquire()
        assert second.try_acquire() is None
        with pytest.raises(TimeoutError):
            second.acquire(0.05)
        assert first.contenders() == (b"first",)
        assert first.is_held
        assert not second.is_held
        with pytest.raises(RuntimeError, match="not held"):
            second.token  # noqa: B018
        assert first.set_value(b"ready") > token == first.token
        assert store.kv.txn([first.guard()], [PutOp(b"x", b"")]).succeeded
        first.check()
        first.release()
        assert (second.try_acquire() or 0) > token
        second.release()


def test_readers_share_and_a_writer_does_not(store: Store) -> None:
    with Session(store) as session:
        writer = WriteLock(session, b"rw")
        with ReadLock(session, b"rw"), ReadLock(session, b"rw"):
            assert writer.try_acquire() is None
        with writer:
            assert ReadLock(session, b"rw").try_acquire() is None


def test_a_semaphore_has_so_many_places(store: Store) -> None:
    with Session(store) as session:
        with Semaphore(session, b"s", 2), Semaphore(session, b"s", 2):
            assert Semaphore(session, b"s", 2).try_acquire() is None
            with pytest.raises(ValueError, match="limit"):
                Semaphore(session, b"s", 3).acquire(5)
        with Semaphore(session, b"s", 2) as token:
            assert token > 0


def test_control_c_leaves_the_queue(store: Store) -> None:
    """The main thread waits for a lock; a signal ends the wait, and nobody waits behind it."""
    with Session(store) as session, Lock(session, b"l"):
        former = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:

            def interrupt() -> None:
                waiters(store, b"l/", 2)
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                Lock(session, b"l").acquire(20)
            thread.join()
        finally:
            signal.signal(signal.SIGINT, former)
        waiters(store, b"l/", 1)


def test_control_c_waits_until_what_was_taken_is_back() -> None:
    portal = Portal("test")
    begun = threading.Event()
    back: list[str] = []

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            back.append("back")

    def interrupt() -> None:
        begun.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            wait(portal, work)
        assert back == ["back"]
    finally:
        thread.join()
        signal.signal(signal.SIGINT, former)
        portal.close()


# Sessions ----------------------------------------------------------------------------------------


def test_a_session_that_is_lost_ends_what_waits_under_it(store: Store) -> None:
    session = Session(store, ttl_s=30)
    assert session.lease == 0
    with pytest.raises(RuntimeError, match="not open"):
        session.check()
    with session, Session(store) as other, ThreadPoolExecutor(2) as pool:
        assert session.wait_lost(0.01) is False
        session.check()
        lock = Lock(session, b"l")
        lock.acquire()
        with Lock(other, b"m"):
            waiting = pool.submit(Lock(session, b"m").acquire)
            lost = pool.submit(session.wait_lost, 20)
            waiters(store, b"m/", 2)
            store.leases.revoke(session.lease)
            # The lock's own key is asked for; the keep-alive may hear of it much later.
            with pytest.raises(LockLost):
                lock.check()
            with pytest.raises(LockLost):
                lock.release()
            session.close()
            assert lost.result(20) is True
            with pytest.raises(LockLost):
                waiting.result(20)
        assert session.is_lost
        with pytest.raises(LockLost):
            session.check()


def test_a_body_that_fails_is_what_is_told(store: Store) -> None:
    def work(session: Session) -> None:
        with Lock(session, b"l"):
            store.leases.revoke(session.lease)
            raise ZeroDivisionError

    with Session(store) as session, pytest.raises(ZeroDivisionError):
        work(session)


def test_the_end_of_the_client_ends_the_waiting(endpoint: str) -> None:
    with blocking.Client(endpoint) as holder, Session(holder) as holding, Lock(holding, b"end"):
        client = blocking.Client(endpoint)
        session = Session(client)
        session.open()
        watched = observe(client, b"end")
        assert watched.next(5) is not None
        with ThreadPoolExecutor(2) as pool:
            waiting: list[Future[Any]] = [
                pool.submit(Lock(session, b"end").acquire),
                pool.submit(watched.next),
            ]
            waiters(holder, b"end/", 2)
            client.close()
            for each in waiting:
                assert isinstance(each.exception(20), raftkv.errors.RaftkvError | LockLost)
        with pytest.raises(Stopped):
            Lock(session, b"end").acquire()
        with pytest.raises(Stopped):
            watched.next()
        watched.close()
        holder.leases.revoke(session.lease)


# Elections and parties ---------------------------------------------------------------------------


def test_an_election_and_who_looks_on(store: Store) -> None:
    with Session(store) as session, observe(store, b"e") as watched:
        assert watched.next(5) is None
        with pytest.raises(TimeoutError):
            watched.next(0.02)
        assert leader_of(store, b"e") is None
        one, two = Election(session, b"e"), Election(session, b"e")
        token = one.campaign(b"one")
        assert one.is_leader
        assert one.token == token
        with pytest.raises(TimeoutError):
            two.campaign(b"two", timeout_s=0.05)
        assert not two.is_leader
        leader = watched.next(5)
        assert leader is not None
        assert (leader.value, leader.token) == (b"one", token)
        assert one.leader() == leader == leader_of(store, b"e")
        one.proclaim(b"ready")
        again = watched.next(5)
        assert again is not None
        assert again.value == b"ready"
        assert store.kv.txn([one.guard()], [PutOp(b"x", b"")]).succeeded
        one.resign()
        assert two.campaign(b"two", 5) > token
        with two.observe() as seen:
            found = next(seen)
            assert found is not None
            assert found.value == b"two"
        two.resign()


def test_an_observation_is_closed_from_another_thread(store: Store) -> None:
    watched = observe(store, b"e")
    seen = []

    def look() -> None:
        for leader in watched:
            seen.append(leader)
            threading.Timer(0.05, watched.close).start()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(look).result(20)
    assert seen == [None]
    with pytest.raises(Stopped):
        watched.next()
    watched.close()


def test_a_party_and_who_looks_on(store: Store) -> None:
    with Session(store) as session, observe_members(store, b"p") as watched:
        assert watched.next(5) == ()
        party = Party(session, b"p", b"a")
        with pytest.raises(RuntimeError, match="not joined"):
            party.token  # noqa: B018
        with party as token:
            assert party.token == token
            assert watched.next(5) == (Member(b"a", token),) == party.members()
            with party.observe() as seen, Party(session, b"p", b"b"):
                assert {member.value for member in seen.next(5)} == {b"a", b"b"}
        assert members_of(store, b"p") == ()
        party.join()
        party.leave()


# Barriers, counters, queues, transactions --------------------------------------------------------


def test_a_barrier_holds_up_until_it_is_lifted(store: Store) -> None:
    barrier = Barrier(store, b"b")
    barrier.wait(5)
    token = barrier.hold()
    assert barrier.hold() == token
    with pytest.raises(TimeoutError):
        barrier.wait(0.05)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Barrier(store, b"b").wait)
        assert barrier.release()
        waiting.result(20)
    assert not barrier.release()


def test_a_double_barrier_gathers_a_round(store: Store) -> None:
    with Session(store) as session, ThreadPoolExecutor(3) as pool:
        alone = DoubleBarrier(session, b"d", 3)
        with pytest.raises(TimeoutError):
            alone.enter(0.05)
        with pytest.raises(RuntimeError, match="enter first"):
            alone.token  # noqa: B018

        def step() -> int:
            with DoubleBarrier(session, b"d", 3) as token:
                return token

        tokens = [each.result(20) for each in [pool.submit(step) for _ in range(3)]]
        assert len(set(tokens)) == 1
        single = DoubleBarrier(session, b"one", 1)
        assert single.enter(5) == single.token
        single.leave(5)


def test_a_counter_counts_each_addition_once(store: Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda _: Counter(store, b"c").add(), range(12)))
    assert sorted(count.value for count in counts) == list(range(1, 13))
    assert Counter(store, b"c").add(-12, timeout_s=5).value == 0
    assert Counter(store, b"c").get().value == 0
    store.kv.put(b"c", b"text")
    with pytest.raises(raftkv.blocking.recipes.NotANumber):
        Counter(store, b"c").get()


def test_queues(store: Store) -> None:
    queue = Queue(store, b"q")
    with pytest.raises(TimeoutError):
        queue.get(0.05)
    assert queue.get_nowait() is None
    token = queue.put(b"a")
    queue.put(b"b", timeout_s=5)
    assert queue.size() == 2
    first = queue.get(5)
    assert (first.value, first.token) == (b"a", token)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(Queue(store, b"q").get) for _ in range(2)]
        queue.put(b"c")
        assert sorted(each.result(20).value for each in waiting) == [b"b", b"c"]
    urgent = PriorityQueue(store, b"u")
    urgent.put(b"later", 9)
    urgent.put(b"now", 1)
    assert urgent.get().value == b"now"


def test_a_locking_queue_keeps_what_is_not_consumed(store: Store) -> None:
    with Session(store) as session:
        with Session(store) as worker:
            jobs = LockingQueue(worker, b"j")
            assert jobs.take_nowait() is None
            with pytest.raises(TimeoutError):
                jobs.take(0.05)
            jobs.put_all([b"a", b"b"])
            entry = jobs.take(5)
            assert isinstance(entry, Entry)
            assert entry.value == b"a"
            entry.check()
            assert store.kv.txn([entry.guard()], [PutOp(b"x", b"")]).succeeded
        # The worker has ended: its entry is free again, in its place.
        jobs = LockingQueue(session, b"j")
        with pytest.raises(LockLost):
            entry.consume()
        again = jobs.take(5)
        assert (again.value, again.token > entry.token) == (b"a", True)
        again.release()
        for value in (b"a", b"b"):
            entry = jobs.take(5)
            assert entry.value == value
            entry.consume()
        assert jobs.size() == 0


def test_transactions_of_many_threads(store: Store) -> None:
    def add(tx: Transaction) -> int:
        value = int(tx.get(b"sum") or b"0") + 1
        tx.put(b"sum", b"%d" % value)
        return value

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: atomically(store, add), range(12)))
    assert sorted(each.value for each in done) == list(range(1, 13))
    assert len({each.token for each in done}) == 12

    def look(tx: Transaction) -> dict[bytes, bytes]:
        tx.put(b"sum2", b"")
        tx.delete(b"sum2")
        return tx.prefix(b"sum")

    assert atomically(store, look, timeout_s=5).value == {b"sum": b"12"}
    assert atomically(store, lambda tx: None).token == 0

    def fail(tx: Transaction) -> None:
        tx.put(b"sum", b"0")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        atomically(store, fail)

    def contended(tx: Transaction) -> None:
        tx.get(b"sum")
        store.kv.put(b"sum", b"12")  # so that no attempt is committed
        tx.put(b"sum", b"0")

    with pytest.raises(TimeoutError):
        atomically(store, contended, timeout_s=1.0)
    found = store.kv.get(b"sum")
    assert found is not None
    assert found.value == b"12"


def test_a_transaction_runs_again_when_what_it_read_has_changed(store: Store) -> None:
    runs = []

    def slow(tx: Transaction) -> None:
        seen = tx.get(b"a")
        runs.append(seen)
        if len(runs) == 1:
            store.kv.put(b"a", b"other")
        tx.put(b"b", seen or b"none")

    atomically(store, slow)
    assert runs == [None, b"other"]
    found = store.kv.get(b"b")
    assert found is not None
    assert found.value == b"other"


# Signatures --------------------------------------------------------------------------------------

# Has no blocking form: a thread cannot be cancelled.
ONLY_ASYNC = {"cancelling"}
# Parts of which other recipes are made.
INNER = {"unless_lost", "whole", "clean_up", "next_key", "commit"}
# Futures become waits.
ONLY_BLOCKING = {"wait_lost"}


def words(kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in reversed(kind.__mro__[:-1]):
        found |= {name: value for name, value in vars(each).items() if not name.startswith("_")}
    return found


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    return [
        (each.name, each.default)
        for each in inspect.signature(function).parameters.values()
        if each.name != "timeout_s"
    ]


@pytest.mark.parametrize("name", sorted(raftkv.blocking.recipes.__all__))
def test_the_words_are_those_of_the_asynchronous_side(name: str) -> None:
    ours, theirs = getattr(raftkv.blocking.recipes, name), getattr(raftkv.recipes, name, None)
    if ours is theirs or name in ("Changes", "Store"):
        return
    assert parameters(ours) == parameters(theirs) or name in ("Entry", "Transaction")
    if not inspect.isclass(ours):
        return
    here, there = words(ours), words(theirs)
    assert set(here) - ONLY_BLOCKING == set(there) - ONLY_ASYNC - INNER - {"lost"}
    for word in set(here) & set(there):
        if inspect.isfunction(there[word]):
            assert parameters(here[word]) == parameters(there[word]), word
            # Whatever asks the cluster can be told for how long; in `put_all` that would not be
            # clear, and `close` has a bound of its own.
            waits = inspect.iscoroutinefunction(there[word]) and word not in ("put_all", "close")
            local = name == "Transaction"
            assert ("timeout_s" in inspect.signature(here[word]).parameters) == (
                waits and not local
            ), word


def test_nothing_is_left_out() -> None:
    ports = {"KvPort", "WatchPort", "Settling"}
    assert set(raftkv.blocking.recipes.__all__) == set(raftkv.recipes.__all__) - ports | {"Changes"}

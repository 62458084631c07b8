"""Scopes that cancel at every `await` until they are left, as anyio's do: nothing stays held."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from raftkv.recipes import Lock, LockingQueue, Semaphore, Session
from tests.recipes.helpers import MemoryStore, keys, run


@contextlib.asynccontextmanager
async def cancelled_by_level(after_s: float) -> AsyncIterator[None]:
    """Cancel the body after a time, and again at each turn of the loop until it is left."""
    loop, body = asyncio.get_running_loop(), asyncio.current_task()
    assert body is not None
    timer: asyncio.Handle

    def strike() -> None:
        nonlocal timer
        body.cancel()
        timer = loop.call_soon(strike)

    timer = loop.call_later(after_s, strike)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            yield
    finally:
        timer.cancel()
        while body.uncancel():
            pass


async def all_gone(store: MemoryStore) -> None:
    """Wait until no lease is left: far less than a time to live."""
    async with asyncio.timeout(10):
        while await store.leases.list():
            await asyncio.sleep(0.1)


async def hold_lock(store: MemoryStore) -> None:
    async with Session(store, ttl_s=60) as session, Lock(session, b"l"):
        await asyncio.sleep(100)


async def hold_semaphore(store: MemoryStore) -> None:
    async with Session(store, ttl_s=60) as session, Semaphore(session, b"s", 2):
        await asyncio.sleep(100)


async def hold_entry(store: MemoryStore) -> None:
    async with Session(store, ttl_s=60) as session:
        queue = LockingQueue(session, b"q")
        await queue.put(b"work")
        await queue.take()
        await asyncio.sleep(100)


async def keep_lease(store: MemoryStore) -> None:
    async with store.leases.keeping(60):
        await asyncio.sleep(100)


WORK = [hold_lock, hold_semaphore, hold_entry, keep_lease]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.01, 0.03, 0.1, 1.0, 5.0])
def test_d6_a_scope_that_cancels_by_level_leaves_nothing(
    work: Callable[[MemoryStore], Awaitable[None]], after_s: float
) -> None:
    async def test(store: MemoryStore) -> None:
        async with cancelled_by_level(after_s):
            await work(store)
        await all_gone(store)
        assert keys(store, b"l/") == keys(store, b"s/") == []

    run(test)


def test_d6_a_lock_is_given_back_while_its_session_lives() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store, ttl_s=60) as session:
            async with cancelled_by_level(1.0), Lock(session, b"l"):
                await asyncio.sleep(100)
            async with asyncio.timeout(10):
                while keys(store, b"l/"):
                    await asyncio.sleep(0.1)
                async with Lock(session, b"l"):
                    pass

    run(test)


@pytest.mark.parametrize("steps", range(12))
def test_d6_a_cancelled_entry_leaves_no_lease(steps: int) -> None:
    async def test(store: MemoryStore) -> None:
        entering = asyncio.create_task(Session(store, ttl_s=60).open())
        for _ in range(steps):
            await asyncio.sleep(0.01)
        entering.cancel()
        await asyncio.wait([entering])
        if not entering.cancelled():
            return  # it was open before
        await all_gone(store)

    run(test)

"""Taking the next item from the loop's thread loses nothing, whenever an interrupt comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import pytest

from raftkv.blocking.portal import Portal
from raftkv.blocking.taking import Taker
from raftkv.errors import Timeout

T = TypeVar("T")


class Numbers:
    """0, 1, 2, ..."""

    def __init__(self, end: int = 1000) -> None:
        self.next = 0
        self.end = end

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        if self.next == self.end:
            raise StopAsyncIteration
        self.next += 1
        return self.next - 1


class Interrupted(Portal):
    """A portal whose caller is interrupted when the call has just been carried out."""

    def __init__(self) -> None:
        super().__init__("interrupted")
        self.interrupts = 0

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        done = super().call(coroutine)
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return done


def test_what_was_taken_when_an_interrupt_came_is_given_at_the_next_call() -> None:
    portal = Interrupted()
    try:
        taker: Taker[int] = Taker(portal, Numbers(2), "a watch")
        assert taker.next(1.0) == 0
        for _ in range(2):
            portal.interrupts = 1
            with pytest.raises(KeyboardInterrupt):
                taker.next(1.0)
        assert taker.next(1.0) == 1
        assert taker.next(1.0) is None
        portal.interrupts = 1
        with pytest.raises(KeyboardInterrupt):
            taker.next(1.0)
        assert taker.next(1.0) is None
    finally:
        portal.close()


def test_two_threads_do_not_share_an_iteration() -> None:
    portal = Portal("two")
    entered, leave = threading.Event(), threading.Event()

    class Slow(Numbers):
        async def __anext__(self) -> int:
            entered.set()
            leave.wait(10)
            return await super().__anext__()

    taker: Taker[int] = Taker(portal, Slow(), "a watch")
    got: list[int | None] = []
    thread = threading.Thread(target=lambda: got.append(taker.next(10.0)))
    thread.start()
    try:
        assert entered.wait(10)
        with pytest.raises(RuntimeError, match="a watch has one consumer"):
            taker.next(1.0)
    finally:
        leave.set()
        thread.join(10)
        portal.close()
    assert got == [0]


def test_what_ends_the_loop_ends_every_wait() -> None:
    """SystemExit on the loop, of a callback there, leaves nothing waiting."""
    portal = Portal("ended")
    told: list[BaseException] = []
    waits = threading.Event()

    async def for_ever() -> None:
        waits.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            portal.call(for_ever())
        except Timeout as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(10)

    def leave() -> None:
        raise SystemExit(3)

    portal.run(lambda: asyncio.get_running_loop().call_soon(leave))
    thread.join(10)
    assert not thread.is_alive()
    assert len(told) == 1
    portal.close()

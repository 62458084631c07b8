"""Taking the next of something from the loop's thread, so that an interrupt loses nothing.

Between the loop, which has taken an item, and the thread that waits for it, an interrupt (Ctrl-C)
may come. What was taken is kept until the thread has it, and is given at the next call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from raftkv.validation import require_timeout

from .portal import Portal

__all__ = ["Taker"]

T = TypeVar("T")


class Taker(Generic[T]):
    """The items of an asynchronous iterator, for one thread. `what` names it in errors."""

    def __init__(self, portal: Portal, items: AsyncIterator[T], what: str) -> None:
        self._portal = portal
        self._items = items
        self._what = what
        self._consumer = threading.Lock()
        self._turn = asyncio.Lock()
        self._kept: list[T | None] = []

    def next(self, timeout_s: float | None) -> T | None:
        """The next item, None at the end. Raises TimeoutError after `timeout_s`."""
        require_timeout(timeout_s)
        if not self._consumer.acquire(blocking=False):
            raise RuntimeError(f"{self._what} has one consumer: another thread waits for the next")
        try:
            item = self._portal.call(self._take(timeout_s))
            self._kept.clear()
            return item
        finally:
            self._consumer.release()

    async def _take(self, timeout_s: float | None) -> T | None:
        async with asyncio.timeout(timeout_s):
            # A call that was interrupted may still be ending.
            async with self._turn:
                if not self._kept:
                    self._kept.append(await anext(self._items, None))
                return self._kept[0]

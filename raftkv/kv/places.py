"""Places for work of which a node does little at once, and the bounded wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from raftkv.errors import Overloaded, ReadTimeout


class Places:
    """The wait for places: how many may wait, and with which texts the others are refused."""

    def __init__(self, waiting_max: int, too_many: str, too_late: str) -> None:
        self._waiting_max = waiting_max
        self._too_many = too_many
        self._too_late = too_late
        #: How many wait for one.
        self.waiting = 0

    @asynccontextmanager
    async def place(self, places: asyncio.Semaphore, until: float) -> AsyncIterator[None]:
        """Hold one of `places`, waited for until the loop's time `until`; a free one always.

        Raises ReadTimeout if none becomes free by then, and Overloaded if too many wait.
        """
        if self.waiting >= self._waiting_max and places.locked():
            raise Overloaded(self._too_many)
        self.waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await places.acquire()
        except TimeoutError:
            raise ReadTimeout(self._too_late) from None
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            places.release()

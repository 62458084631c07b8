"""How much work that can be divided a node does for its callers in one turn of the event loop.

Reading, sorting, hashing or writing a page of a large range, receiving a large body or sending a
large answer takes some milliseconds. Hundreds of callers may need that at once; done in one turn of
the loop it would hold up the heartbeats until the leader is deposed. So a turn has room for
WORK_MAX units; work that finds none waits for a turn of its own, in the order of asking. Small
pieces, like a read of few rows, a request of a stream, a page of status or a part of a body or of
an answer, have a queue of their own, so that they wait behind no large ones: up to WORK_MAX // 2
units of them are done in a turn beside a large one. Reads that keep up with the changes of others
have every second of the turns for large work. Everything else goes on between the turns.

There is one budget for a node, `KVApi.budget`. The HTTP API shares it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

__all__ = ["FEW_ROWS", "WORK_MAX", "WorkBudget"]

#: Rows that are read or written in one turn of the loop: about four milliseconds.
WORK_MAX: Final = 2_000
#: To read so few rows is a small piece of work: two tenths of a millisecond.
FEW_ROWS: Final = 100


class WorkBudget:
    """The work of one node. A unit is one row of a range, read or written."""

    def __init__(self) -> None:
        self._left = WORK_MAX
        # Of these, what those take that were woken for this turn.
        self._promised = 0
        self._renews = False
        # With the units that each will take: those of less than a turn, and the others.
        self._small: deque[tuple[asyncio.Future[None], int]] = deque()
        self._large: deque[tuple[asyncio.Future[None], int]] = deque()
        # Those that go on, which share the turns for large work with those that begin.
        self._near: deque[tuple[asyncio.Future[None], int]] = deque()
        self._near_first = True

    async def room(self, units: int = WORK_MAX, *, goes_on: bool = False) -> None:
        """Return in a turn that has room for work. The caller reports what it did with `spend`.

        Work that waits and knows its `units` shares a turn with others, else it has one of its own.
        Large work that `goes_on` waits behind its like only, and has every second turn while other
        large work waits. It awaits futures only, so it can be awaited on the short way (hot.py).
        """
        waiting = self._small if units < WORK_MAX else self._near if goes_on else self._large
        if self._left <= self._promised or waiting:
            waiter = asyncio.get_running_loop().create_future()
            waiting.append((waiter, max(units, 0)))
            await waiter

    async def rows(self, count: int) -> None:
        """`room` to read so many rows. Who reads few of them waits behind no large ones."""
        await self.room(count if count <= FEW_ROWS else WORK_MAX)

    def spend(self, units: int) -> None:
        """Count work that was done in this turn."""
        self._left -= units
        self._renew()

    async def turn(self) -> None:
        """Return in a turn for one long piece of work, which leaves no room for others."""
        await self.room()
        self.spend(WORK_MAX)

    def _renew(self) -> None:
        if not self._renews:
            self._renews = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Called in the turn after one in which something was done."""
        self._renews = False
        self._left = WORK_MAX
        self._promised = 0
        self._wake(self._small, WORK_MAX // 2 if self._large or self._near else WORK_MAX)
        near, large = self._near, self._large
        first, second = (near, large) if self._near_first else (large, near)
        self._near_first = not self._near_first
        if not self._wake(first, 1):
            self._wake(second, 1)

    def _wake(self, waiting: deque[tuple[asyncio.Future[None], int]], units: int) -> bool:
        """Let those go on that begin within so many units; whether there is one."""
        woken = False
        while waiting and units > 0:
            waiter, takes = waiting.popleft()
            if not waiter.done():  # else its request was cancelled
                # It runs in the next turn, before `_next` is called again.
                waiter.set_result(None)
                woken = True
                self._promised += takes
                units -= max(takes, 1)
                self._renew()
        return woken

"""Work that comes in order and is done in lanes: one after the other within a lane, side by side
between them.

A link's frames go to lanes: the messages of a topic to one, the acknowledgements of a subscription
to another, so that these do not wait behind a backlog of messages, and one slow topic stops none of
the others. What waits is bounded in bytes for all lanes together: beyond it `put` waits, and who
puts reads no further. A worker must not wait like that, for room that its own lane may be taking:
it has `put_now`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Lane", "Lanes"]

ItemT = TypeVar("ItemT")


class Lane(Generic[ItemT]):
    """What waits in one lane: look with `peek`, take with `take`. What was taken counts as waiting
    until the worker is called again, or ends."""

    def __init__(self, lanes: Lanes[ItemT]) -> None:
        self._lanes = lanes
        self._items: deque[tuple[ItemT, int]] = deque()
        self._taken = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: ItemT, size: int) -> None:
        self._items.append((item, size))

    def peek(self) -> ItemT | None:
        """The next one; None: there is none."""
        return self._items[0][0] if self._items else None

    def take(self) -> ItemT:
        item, size = self._items.popleft()
        self._taken += size
        return item

    def settle(self) -> None:
        """What was taken is done with."""
        size, self._taken = self._taken, 0
        self._lanes.free(size)


class Lanes(Generic[ItemT]):
    """`work` is called with a lane while it has items, and takes some of them. What it raises ends
    the group of tasks, and with it all lanes."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        work: Callable[[Lane[ItemT]], Awaitable[None]],
        bytes_max: int,
    ) -> None:
        self._group = group
        self._work = work
        self._bytes_max = bytes_max
        self._lanes: dict[Hashable, Lane[ItemT]] = {}
        self._room = asyncio.Event()
        #: Waiting, in bytes.
        self.size = 0

    def __len__(self) -> int:
        """Lanes with work."""
        return len(self._lanes)

    async def put(self, key: Hashable, item: ItemT, size: int) -> None:
        """Put an item at the end of a lane; waits for room before. One always has room."""
        while self.size and self.size + size > self._bytes_max:
            self._room.clear()
            await self._room.wait()
        self.put_now(key, item, size)

    def put_now(self, key: Hashable, item: ItemT, size: int) -> None:
        """The same without waiting, for the few small things that workers put."""
        self.size += size
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(self)
            lane.add(item, size)
            self._group.create_task(self._run(key, lane))
        else:
            lane.add(item, size)

    def busy(self, key: Hashable) -> bool:
        """Whether a lane has work."""
        return key in self._lanes

    def free(self, size: int) -> None:
        self.size -= size
        if size:
            self._room.set()

    async def _run(self, key: Hashable, lane: Lane[ItemT]) -> None:
        while len(lane):
            await self._work(lane)
            lane.settle()
        del self._lanes[key]

"""Queues without asyncio."""

from __future__ import annotations

from collections.abc import Iterable

from raftkv.blocking.portal import Portal
from raftkv.kv import Compare
from raftkv.recipes import Entry as AsyncEntry
from raftkv.recipes import Item
from raftkv.recipes import LockingQueue as AsyncLockingQueue
from raftkv.recipes import PriorityQueue as AsyncPriorityQueue
from raftkv.recipes import Queue as AsyncQueue

from .bridge import Store, wait
from .session import Session

__all__ = ["Entry", "LockingQueue", "PriorityQueue", "Queue"]


class Entries:
    """What `Queue` and `PriorityQueue` have in common: entries are taken from the front.

    An entry that is taken is gone: a consumer that dies takes it along.
    """

    def __init__(self, portal: Portal, made: AsyncQueue | AsyncPriorityQueue) -> None:
        self._portal = portal
        self._entries = made

    def get(self, timeout_s: float | None = None) -> Item:
        """Take the first entry; wait for one if there is none.

        Raises OutcomeUnknown if it cannot be known whether an entry was taken, TimeoutError after
        `timeout_s`: what was taken just then is put back to its place.
        """
        return wait(self._portal, self._entries.get, timeout_s)

    def get_nowait(self, timeout_s: float | None = None) -> Item | None:
        """Take the first entry, or None if there is none. As `get` for the rest."""
        return wait(self._portal, self._entries.get_nowait, timeout_s)

    def size(self, timeout_s: float | None = None) -> int:
        """How many entries there are."""
        return wait(self._portal, self._entries.size, timeout_s)


class Queue(Entries):
    """First in, first out. `name` is the prefix of its keys, without a slash at the end."""

    def __init__(self, store: Store, name: bytes) -> None:
        portal, behind = store._behind()
        self._queue = AsyncQueue(behind, name)
        super().__init__(portal, self._queue)

    def put(self, value: bytes, timeout_s: float | None = None) -> int:
        """Put an entry at the end; its token, which the consumer gets too.

        After TimeoutError it may be there, or may still come.
        """
        return wait(self._portal, lambda: self._queue.put(value), timeout_s)


class PriorityQueue(Entries):
    """The entry with the lowest number of priority is taken first; of several, the oldest."""

    def __init__(self, store: Store, name: bytes) -> None:
        portal, behind = store._behind()
        self._queue = AsyncPriorityQueue(behind, name)
        super().__init__(portal, self._queue)

    def put(self, value: bytes, priority: int, timeout_s: float | None = None) -> int:
        """Put an entry; its token. `priority` is 0 (most urgent) to `PRIORITY_MAX`.

        After TimeoutError it may be there, or may still come.
        """
        return wait(self._portal, lambda: self._queue.put(value, priority), timeout_s)


class Entry:
    """An entry of a `LockingQueue` that is held. `token` is the fencing token of holding it."""

    def __init__(self, portal: Portal, made: AsyncEntry) -> None:
        self._portal = portal
        self._made = made
        self.value = made.value
        self.token = made.token

    def guard(self) -> Compare:
        """A comparison for `txn` that holds exactly as long as the entry is held."""
        return self._made.guard()

    def consume(self, timeout_s: float | None = None) -> None:
        """The work is done: remove the entry. Raises LockLost if it is held no more."""
        wait(self._portal, self._made.consume, timeout_s)

    def release(self, timeout_s: float | None = None) -> None:
        """Give the entry back, to its place. Raises LockLost if it is held no more."""
        wait(self._portal, self._made.release, timeout_s)

    def check(self, timeout_s: float | None = None) -> None:
        """Ask the cluster whether the entry is still held; raises LockLost."""
        wait(self._portal, self._made.check, timeout_s)


class LockingQueue:
    """Entries by priority, then by age, held by one worker at a time until they are consumed.

    `name` is the prefix of its keys, without a slash at the end.
    """

    def __init__(self, session: Session, name: bytes) -> None:
        self._portal = session._portal
        self._made = AsyncLockingQueue(session._made, name)

    def put(self, value: bytes, priority: int = 100, timeout_s: float | None = None) -> int:
        """Put an entry; the revision that put it. A lower number of priority is more urgent.

        After TimeoutError it may be there, or may still come.
        """
        return wait(self._portal, lambda: self._made.put(value, priority), timeout_s)

    def put_all(self, values: Iterable[bytes], priority: int = 100) -> None:
        """Put several entries, one after the other."""
        for value in values:
            self.put(value, priority)

    def take(self, timeout_s: float | None = None) -> Entry:
        """Hold the first entry that nobody holds; wait for one if there is none.

        Raises LockLost if the session ends, TimeoutError after `timeout_s`: it then holds none.
        """
        return Entry(self._portal, wait(self._portal, self._made.take, timeout_s))

    def take_nowait(self, timeout_s: float | None = None) -> Entry | None:
        """Hold the first entry that nobody holds; None if there is none."""
        entry = wait(self._portal, self._made.take_nowait, timeout_s)
        return None if entry is None else Entry(self._portal, entry)

    def size(self, timeout_s: float | None = None) -> int:
        """How many entries there are, those that are held included."""
        return wait(self._portal, self._made.size, timeout_s)

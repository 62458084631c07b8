"""Queues: `Queue` first in, first out; `PriorityQueue` the most urgent first.

Order without a counter. An entry's key begins with a revision that was read, linearizably, before
it was put. Whoever puts after another put has returned has read a later revision, so its key sorts
behind; of two that put at the same time either may be first. So producers do not contend. The rest
of the key makes it unique: a number of the producer, which is the revision of a write that it made
once, and a count.

An entry is taken by the transaction that deletes it, so by one consumer. It is gone then: a
consumer that dies takes it along. Where that must not be, use `LockingQueue`.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from raftkv.errors import RaftkvError
from raftkv.kv import Compare, DeleteRangeOp, KeyValue, PutOp, RangeOp, prefix_end
from raftkv.validation import checked

from .ports import Store
from .waiting import changed, insist, once

__all__ = ["PRIORITY_MAX", "Item", "PriorityQueue", "Producer", "Queue", "rank_of"]

# A consumer that is cancelled waits so long for its entry to be put back; that goes on without it.
PUT_BACK_S = 1.0

#: The least urgent priority; 0 is the most urgent.
PRIORITY_MAX = 65_535


class Item(msgspec.Struct, frozen=True):
    """What was taken. `token` is the revision that put it: no other entry has it."""

    value: bytes
    token: int
    key: bytes


class Producer:
    """Makes keys that are unique and in the order of their making."""

    def __init__(self, store: Store, entries: bytes, numbers: bytes) -> None:
        """`entries` is the prefix of the keys, `numbers` a key that numbers the producers."""
        self._store = store
        self._entries = entries
        self._numbers = numbers
        self._me = 0
        self._count = 0

    async def put(self, rank: bytes, value: bytes) -> int:
        """Put an entry behind all others of the same rank; its revision.

        Raises OutcomeUnknown if nobody can tell whether it was put.
        """
        if not self._me:
            numbered = await insist(lambda: self._store.kv.put(self._numbers, b""))
            self._me = numbered.revision
        self._count += 1
        number = self._count
        # Any read tells the revision of the keyspace; this one finds one key at most.
        seen = await insist(lambda: self._store.kv.range(self._numbers, self._numbers + b"\0"))
        key = self._entries + rank + b"%016x-%016x-%08x" % (seen.revision, self._me, number)
        # Not twice: a consumer may have taken it between two attempts.
        done = await once(self._store, (Compare(key, "create", "=", 0),), (PutOp(key, value),))
        return done.revision


@checked
class Entries:
    """What both queues have: entries in the order of their keys, taken from the front."""

    @checked
    def __init__(self, store: Store, name: bytes) -> None:
        self._store = store
        self._prefix = name + b"/entries/"
        self._producer = Producer(store, self._prefix, name + b"/producers")
        self._returning: set[asyncio.Task[None]] = set()

    async def get(self) -> Item:
        """Take the first entry; wait for one if there is none.

        Raises OutcomeUnknown if it cannot be known whether an entry was taken. A caller that is
        cancelled takes none: what was taken for it is put back to its place.
        """
        while True:
            item, revision = await self._first()
            if item is not None:
                return item
            await changed(self._store.kv, revision, prefix=self._prefix, delete=False)

    async def get_nowait(self) -> Item | None:
        """Take the first entry, or None if there is none. As `get` for the rest."""
        return (await self._first())[0]

    async def size(self) -> int:
        """How many entries there are."""
        kv = self._store.kv
        return (await insist(lambda: kv.range(prefix=self._prefix, count_only=True))).count

    async def _first(self) -> tuple[Item | None, int]:
        """The first entry, taken; or the revision at which there was none."""
        kv = self._store.kv
        while True:
            found = await insist(lambda: kv.range(prefix=self._prefix, limit=1))
            if not found.kvs:
                return None, found.revision
            first: KeyValue | None = found.kvs[0]
            while first is not None:
                item, first = await self._take(first)
                if item is not None:
                    return item, 0

    async def _take(self, entry: KeyValue) -> tuple[Item | None, KeyValue | None]:
        """The entry if this call took it; else the one that is the first now, if that is known."""
        task = asyncio.ensure_future(self._delete(entry))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            back = asyncio.ensure_future(self._put_back(task))
            self._returning.add(back)
            back.add_done_callback(self._returning.discard)
            await asyncio.wait((back,), timeout=PUT_BACK_S)
            raise

    async def _delete(self, entry: KeyValue) -> tuple[Item | None, KeyValue | None]:
        done = await once(
            self._store,
            (Compare(entry.key, "mod", "=", entry.mod_revision),),
            (DeleteRangeOp(entry.key),),
            (RangeOp(self._prefix, prefix_end(self._prefix), limit=1),),
        )
        if done.succeeded:
            return Item(entry.value, entry.create_revision, entry.key), None
        return None, next(iter(done.rows()), None)

    async def _put_back(self, taking: asyncio.Task[tuple[Item | None, KeyValue | None]]) -> None:
        with contextlib.suppress(RaftkvError):
            item, _ = await taking
            if item is not None:
                unused = Compare(item.key, "create", "=", 0)
                await once(self._store, (unused,), (PutOp(item.key, item.value),))


@checked
class Queue(Entries):
    """First in, first out. `name` is the prefix of its keys, without a slash at the end."""

    async def put(self, value: bytes) -> int:
        """Put an entry at the end; its token, which the consumer gets too."""
        return await self._producer.put(b"", value)


@checked
class PriorityQueue(Entries):
    """The entry with the lowest number of priority is taken first; of several, the oldest."""

    async def put(self, value: bytes, priority: int) -> int:
        """Put an entry; its token. `priority` is 0 (most urgent) to `PRIORITY_MAX`."""
        return await self._producer.put(rank_of(priority), value)


def rank_of(priority: int) -> bytes:
    """The part of a key that sorts by priority. Raises ValueError."""
    if not 0 <= priority <= PRIORITY_MAX:
        raise ValueError(f"priority = {priority}: it must be between 0 and {PRIORITY_MAX}")
    return b"%04x-" % priority

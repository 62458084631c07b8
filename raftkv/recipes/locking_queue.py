"""A queue whose entries are held while they are worked on, and given back if the worker dies.

    entry = await queue.take()
    ...                               # work
    await entry.consume()             # or: await entry.release()

An entry stays where it is. Who takes it puts a key of the same name beside it, attached to its
session's lease: as long as that stands, others pass the entry over. To consume is to delete both,
if the key beside is still the same. So an entry is worked on at least once, by one at a time as far
as the fencing token reaches, and its place in the queue is not lost by a worker that fails.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftkv.errors import LockLost
from raftkv.kv import Compare, DeleteRangeOp, KeyValue, PutOp, RangeOp
from raftkv.validation import checked

from .queue import Producer, rank_of
from .session import Session
from .waiting import Done, changed, insist, once, txn

__all__ = ["Entry", "LockingQueue"]


class Entry:
    """An entry that is held. `token` is the fencing token of holding it."""

    def __init__(self, session: Session, queued: KeyValue, held: bytes, token: int) -> None:
        self.value = queued.value
        self.token = token
        self._session = session
        self._queued = queued.key
        self._held = held

    def guard(self) -> Compare:
        """A comparison for `txn` that holds exactly as long as the entry is held."""
        return Compare(self._held, "create", "=", self.token)

    async def consume(self) -> None:
        """The work is done: remove the entry. Raises LockLost if it is held no more.

        Raises OutcomeUnknown if nobody can tell whether it was removed; so does `release`.
        """
        await self._end(DeleteRangeOp(self._held), DeleteRangeOp(self._queued))

    async def release(self) -> None:
        """Give the entry back, to its place. Raises LockLost if it is held no more."""
        await self._end(DeleteRangeOp(self._held))

    async def check(self) -> None:
        """Ask the cluster whether the entry is still held; raises LockLost."""
        kv = self._session.store.kv
        found = await self._session.unless_lost(insist(lambda: kv.get(self._held)))
        if found is None or found.create_revision != self.token:
            raise self._gone()

    async def _end(self, *operations: DeleteRangeOp) -> None:
        store = self._session.store
        done = await self._session.unless_lost(once(store, (self.guard(),), operations))
        if not done.succeeded:
            raise self._gone()

    def _gone(self) -> LockLost:
        return LockLost(
            f"the entry {self._queued!r} is held no more: the session's lease has ended, or it was "
            f"consumed or given back already"
        )


@checked
class LockingQueue:
    """Entries by priority, then by age, held by one worker at a time.

    `name` is the prefix of its keys, without a slash at the end.
    """

    @checked
    def __init__(self, session: Session, name: bytes) -> None:
        self._session = session
        self._prefix = name + b"/"
        self._entries = self._prefix + b"entries/"
        self._taken = self._prefix + b"taken/"
        self._producer = Producer(session.store, self._entries, name + b"/producers")

    async def put(self, value: bytes, priority: int = 100) -> int:
        """Put an entry; the revision that put it. A lower number of priority is more urgent."""
        return await self._producer.put(rank_of(priority), value)

    async def put_all(self, values: Iterable[bytes], priority: int = 100) -> None:
        """Put several entries, one after the other."""
        for value in values:
            await self.put(value, priority)

    async def take(self) -> Entry:
        """Hold the first entry that nobody holds; wait for one if there is none.

        Raises LockLost if the session ends. A caller that is cancelled holds none.
        """
        while True:
            entry, revision = await self._first()
            if entry is not None:
                return entry
            waiting = changed(self._session.store.kv, revision, prefix=self._prefix)
            await self._session.unless_lost(waiting)

    async def take_nowait(self) -> Entry | None:
        """Hold the first entry that nobody holds; None if there is none."""
        return (await self._first())[0]

    async def size(self) -> int:
        """How many entries there are, those that are held included."""
        kv = self._session.store.kv
        return (await insist(lambda: kv.range(prefix=self._entries, count_only=True))).count

    async def _first(self) -> tuple[Entry | None, int]:
        """The first entry, held now; or the revision at which there was none."""
        while True:
            free, revision = await self._session.unless_lost(self._free())
            if free is None:
                return None, revision
            token = await self._hold(free)
            if token:
                return Entry(self._session, free, self._beside(free), token), 0

    def _beside(self, queued: KeyValue) -> bytes:
        return self._taken + queued.key[len(self._entries) :]

    async def _free(self) -> tuple[KeyValue | None, int]:
        kv = self._session.store.kv
        taken = await insist(lambda: kv.range(prefix=self._taken, keys_only=True))
        held = {other.key for other in taken.kvs}
        # One more than are held, so that one of them is free, if there is one.
        queued = await insist(lambda: kv.range(prefix=self._entries, limit=len(held) + 1))
        for entry in queued.kvs:
            if self._beside(entry) not in held:
                return entry, taken.revision
        return None, taken.revision

    async def _hold(self, queued: KeyValue) -> int:
        """The fencing token if this call holds it now, else 0."""
        held = self._beside(queued)
        mine = self._session.next_key()

        async def put() -> int:
            done: Done = await txn(
                self._session.store,
                (
                    Compare(held, "create", "=", 0),
                    Compare(queued.key, "create", "=", queued.create_revision),
                ),
                (PutOp(held, mine, lease=self._session.lease),),
                (RangeOp(held),),
            )
            if done.succeeded:
                return done.revision
            # The value is this attempt's own: an earlier one was applied, its answer lost.
            return next((kv.create_revision for kv in done.rows() if kv.value == mine), 0)

        async def undo() -> None:
            await txn(
                self._session.store, (Compare(held, "value", "=", mine),), (DeleteRangeOp(held),)
            )

        return await self._session.whole(put(), undo)

"""A place in a queue: a key under a prefix, attached to the session's lease.

All queues here are etcd's: who waits puts a key of its own, and the keys stand in the order of
their create revisions. That order is the cluster's, total and never changes; the create revision of
a key is therefore also the fencing token of whoever holds it. A key that is deleted, because its
holder left, died or was cancelled, leaves the queue.

A key is used once: its name has the lease and a number. So two waiters of one session queue one
behind the other (and one task that acquires twice waits for itself), and "the key exists" always
means this very place.
"""

from __future__ import annotations

from raftkv.errors import LockLost
from raftkv.kv import Compare, DeleteRangeOp, PutOp, RangeOp

from .session import Session
from .waiting import insist, txn

__all__ = ["Ticket"]


class Ticket:
    """One place. `token` is its create revision, 0 while it does not exist."""

    def __init__(self, session: Session, prefix: bytes, value: bytes = b"") -> None:
        self.session = session
        self.key = prefix + session.next_key()
        self.value = value
        self.token = 0

    async def take(self, *conditions: Compare) -> bool:
        """Put the key, at the end of the queue; False if a condition does not hold.

        Raises LockLost. Cancelled or not, the key does not stay behind unless this returns True.
        """
        return await self.session.whole(self._put(conditions), self._delete)

    async def _put(self, conditions: tuple[Compare, ...]) -> bool:
        result = await txn(
            self.session.store,
            (Compare(self.key, "create", "=", 0), *conditions),
            (PutOp(self.key, self.value, lease=self.session.lease),),
            (RangeOp(self.key),),
        )
        if result.succeeded:
            self.token = result.revision
        for found in () if result.succeeded else result.rows():
            # An earlier attempt has put it, the answer to which was lost.
            self.token = found.create_revision
        return bool(self.token)

    def guard(self) -> Compare:
        """Holds in a transaction as long as the place is held: for writes that need it."""
        if not self.token:
            raise RuntimeError("nothing is held: acquire it first")
        return Compare(self.key, "create", "=", self.token)

    async def put(self, value: bytes) -> int:
        """Give the key another value; the revision of that. Raises LockLost."""
        result = await self.session.unless_lost(
            txn(
                self.session.store,
                (self.guard(),),
                (PutOp(self.key, value, lease=self.session.lease),),
            )
        )
        if not result.succeeded:
            raise self.gone()
        self.value = value
        return result.revision

    async def check(self) -> None:
        """Raise LockLost unless the key still exists, read linearizably."""
        kv = self.session.store.kv
        found = await self.session.unless_lost(insist(lambda: kv.get(self.key)))
        if found is None or found.create_revision != self.token:
            raise self.gone()

    async def leave(self) -> bool:
        """Delete the key; whether it was still there. Also when the caller is cancelled meanwhile.

        Raises LockLost if the session is lost: then it is gone, or will be soon.
        """
        try:
            return await self.session.unless_lost(self._delete_held())
        except BaseException:
            await self.session.clean_up(self._delete())
            raise

    async def _delete_held(self) -> bool:
        result = await txn(self.session.store, (self.guard(),), (DeleteRangeOp(self.key),))
        # After a repetition the first attempt may have deleted it.
        return result.succeeded or result.repeated

    async def abandon(self) -> None:
        """Delete the key for a caller that is going: raises nothing, does not wait for long."""
        await self.session.clean_up(self._delete())

    async def _delete(self) -> None:
        await txn(self.session.store, (), (DeleteRangeOp(self.key),))

    def gone(self) -> LockLost:
        """The exception that says so."""
        return LockLost(
            f"{self.key!r} is gone: the session's lease has ended, or somebody deleted the key"
        )

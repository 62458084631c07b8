"""Locks: `Lock` excludes everybody, `ReadLock` and `WriteLock` share between readers.

    async with Lock(session, b"locks/report") as token: ...

etcd's algorithm. Who wants the lock queues (ticket.py). The first in the queue holds it. Everybody
else watches the one before it that stands in its way, and looks again when that one has gone: a
release wakes one waiter. The queue is fair, in the order of the create revisions.

`token` is the fencing token, greater for each later holder. Hand it to whatever the lock protects,
and let that refuse a smaller one than it has seen. If the protected thing is in this very store,
put `lock.guard()` into the transaction instead: it holds exactly as long as the lock does.

Locks are not re-entrant: who acquires one twice, by two objects, waits for itself.
"""

from __future__ import annotations

from raftkv.kv import Compare, prefix_end
from raftkv.validation import checked

from .holding import Holder
from .session import Session
from .ticket import Ticket
from .waiting import insist, shrunk

__all__ = ["Lock", "ReadLock", "WriteLock"]


@checked
class Lock(Holder):
    """Held by one at a time. `name` is the prefix of its keys, without a slash at the end.

    `value` is put into the key, for others to see who holds it (`contenders`).
    """

    #: Where own keys go, and which keys stand in the way, below `name`/.
    _own: bytes = b""
    _others: bytes = b""

    @checked
    def __init__(self, session: Session, name: bytes, value: bytes = b"") -> None:
        super().__init__(session, name + b"/" + self._own, value)
        self._all = name + b"/"
        self._in_the_way = name + b"/" + self._others

    async def try_acquire(self) -> int | None:
        """The fencing token if nobody is in the way now, else None; never waits for a holder."""
        ticket = self._new_ticket()
        prefix = self._in_the_way
        try:
            self._held = await ticket.take(Compare(prefix, "create", "=", 0, prefix_end(prefix)))
        finally:
            if not self._held:
                self._ticket = None
        return ticket.token if self._held else None

    async def set_value(self, value: bytes) -> int:
        """Let others see another value of the holder; the revision of that. Raises LockLost."""
        return await self._holding().put(value)

    async def contenders(self) -> tuple[bytes, ...]:
        """The values of the holder and of those who wait, in their order."""
        found = await self._session.store.kv.range(prefix=self._all, sort_by="create")
        return tuple(kv.value for kv in found.kvs)

    async def _wait(self, ticket: Ticket) -> None:
        kv, prefix = self._session.store.kv, self._in_the_way
        while True:
            before = await insist(
                lambda: kv.range(
                    prefix=prefix,
                    limit=1,
                    keys_only=True,
                    sort_by="create",
                    descending=True,
                    max_create_revision=ticket.token - 1,
                )
            )
            if not before.kvs:
                # Nobody can come in front of it any more; so it is held if it still stands.
                await ticket.check()
                return
            await shrunk(kv, before.revision, prefix, [before.kvs[0].key], 1)


@checked
class ReadLock(Lock):
    """Held by any number of readers at a time, while no `WriteLock` of the same name is.

    A reader waits for the writers that came before it, so a writer is not starved by readers.
    """

    _own = b"read/"
    _others = b"write/"


@checked
class WriteLock(Lock):
    """Held by one writer at a time, while no `ReadLock` of the same name is."""

    _own = b"write/"
    _others = b""

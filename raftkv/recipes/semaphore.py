"""A semaphore: held by at most so many at a time.

The first `limit` places of the queue hold it. A waiter watches for keys that are deleted, counts
those that stood in front of it by itself, and reads again only when enough of them have gone.
"""

from __future__ import annotations

from raftkv.validation import checked

from .holding import Holder
from .session import Session
from .ticket import Ticket
from .waiting import insist, shrunk

__all__ = ["Semaphore"]


@checked
class Semaphore(Holder):
    """Held by `limit` at a time, in the order in which they asked.

    All who use one name must use one limit: whoever meets another one in front of it raises
    ValueError. Several hold it at a time, so the fencing token alone does not exclude anybody; a
    `guard()` in a transaction tells whether this very holder still holds.
    """

    @checked
    def __init__(self, session: Session, name: bytes, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit = {limit}: it must be 1 or more")
        super().__init__(session, name + b"/", b"%d" % limit)
        self._limit = limit

    async def try_acquire(self) -> int | None:
        """The fencing token if there is room now, else None."""
        ticket = self._new_ticket()
        try:
            await ticket.take()
            if await self._session.unless_lost(self._has_room(ticket)) is None:
                await ticket.check()
                self._held = True
        finally:
            if not self._held:
                await self._drop(ticket)
        return ticket.token if self._held else None

    async def _has_room(self, ticket: Ticket) -> tuple[int, list[bytes]] | None:
        """None if this place holds; else the revision of that verdict and who stands in front."""
        kv = self._session.store.kv
        before = await insist(
            lambda: kv.range(prefix=self._prefix, max_create_revision=ticket.token - 1)
        )
        for other in before.kvs:
            if other.value != self._value:
                raise ValueError(
                    f"this semaphore is used with limit {self._limit} here and with "
                    f"{other.value.decode(errors='replace')} by {other.key!r}"
                )
        if len(before.kvs) < self._limit:
            return None
        return before.revision, [other.key for other in before.kvs]

    async def _wait(self, ticket: Ticket) -> None:
        while (busy := await self._has_room(ticket)) is not None:
            await shrunk(self._session.store.kv, busy[0], self._prefix, busy[1], self._limit)
        await ticket.check()

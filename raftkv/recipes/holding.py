"""What everything that is waited for in a queue and then held has in common."""

from __future__ import annotations

from types import TracebackType

from raftkv.errors import LockLost
from raftkv.kv import Compare

from .session import Session
from .ticket import Ticket

__all__ = ["Holder"]


class Holder:
    """A place in a queue that becomes held. One holder at a time per object; not re-entrant."""

    def __init__(self, session: Session, prefix: bytes, value: bytes) -> None:
        self._session = session
        self._prefix = prefix
        self._value = value
        self._ticket: Ticket | None = None
        self._held = False

    @property
    def token(self) -> int:
        """The fencing token: greater for whoever came later. Raises RuntimeError unless held."""
        return self._holding().token

    @property
    def is_held(self) -> bool:
        """Whether it is held, as far as this process can know."""
        return self._held and not self._session.is_lost

    def guard(self) -> Compare:
        """A comparison for `txn` that holds exactly as long as this is held."""
        return self._holding().guard()

    async def check(self) -> None:
        """Ask the cluster whether it is still held; raises LockLost."""
        await self._holding().check()

    async def acquire(self) -> int:
        """Wait until it is held; the fencing token.

        Raises LockLost if the session ends. A caller that is cancelled leaves the queue: use
        `asyncio.timeout` to wait no longer than so long.
        """
        ticket = self._new_ticket()
        try:
            await ticket.take()
            await self._session.unless_lost(self._wait(ticket))
            self._held = True
        finally:
            if not self._held:
                await self._drop(ticket)
        return ticket.token

    async def release(self) -> None:
        """Give it up. Raises LockLost if it was lost while it was held."""
        ticket = self._holding()
        self._ticket, self._held = None, False
        if not await ticket.leave():
            raise ticket.gone()

    async def __aenter__(self) -> int:
        return await self.acquire()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.release()
        except LockLost:
            # What went wrong inside says more, and may be due to this.
            if error is None:
                raise

    async def _wait(self, ticket: Ticket) -> None:
        """Return once the ticket's place is one that holds. Raises LockLost if it is gone."""
        raise NotImplementedError(type(self).__name__)

    def _holding(self) -> Ticket:
        if self._ticket is None or not self._held:
            raise RuntimeError("it is not held: acquire it first")
        return self._ticket

    def _new_ticket(self) -> Ticket:
        if self._ticket is not None:
            raise RuntimeError("this object holds or waits already; nothing here is re-entrant")
        self._ticket = Ticket(self._session, self._prefix, self._value)
        return self._ticket

    async def _drop(self, ticket: Ticket) -> None:
        """The ticket will not be held."""
        self._ticket = None
        if ticket.token:
            await ticket.abandon()

"""A party: who is there. Each member is a key under its session's lease; the dead leave by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType

import msgspec

from raftkv.validation import checked

from .ports import Store
from .session import Session
from .ticket import Ticket
from .waiting import changed, insist

__all__ = ["Member", "Party", "members_of", "observe_members"]


class Member(msgspec.Struct, frozen=True):
    """One that is there: the value it joined with, and the fencing token of its membership."""

    value: bytes
    token: int


@checked
async def members_of(store: Store, name: bytes) -> tuple[Member, ...]:
    """Who is there, in the order of joining. Needs no session."""
    return (await _look(store, name))[0]


@checked
async def observe_members(store: Store, name: bytes) -> AsyncIterator[tuple[Member, ...]]:
    """Who is there now, then whenever that changes. Never ends.

    Changes that follow on each other quickly may be passed over; the last one never is.
    """
    shown: tuple[Member, ...] | None = None
    while True:
        members, revision = await _look(store, name)
        if members != shown:
            shown = members
            yield members
        await changed(store.kv, revision, prefix=name + b"/")


async def _look(store: Store, name: bytes) -> tuple[tuple[Member, ...], int]:
    found = await insist(lambda: store.kv.range(prefix=name + b"/", sort_by="create"))
    return tuple(Member(kv.value, kv.create_revision) for kv in found.kvs), found.revision


@checked
class Party:
    """One member of the party `name`. `async with party:` joins and leaves."""

    @checked
    def __init__(self, session: Session, name: bytes, value: bytes = b"") -> None:
        self._session = session
        self._name = name
        self._value = value
        self._ticket: Ticket | None = None

    async def join(self) -> int:
        """Be there until `leave`, or until the session ends; the fencing token."""
        if self._ticket is not None:
            raise RuntimeError("this member has joined already")
        ticket = Ticket(self._session, self._name + b"/", self._value)
        await ticket.take()
        self._ticket = ticket
        return ticket.token

    async def leave(self) -> None:
        """Be there no more. Raises LockLost if the session had ended before."""
        ticket = self._joined()
        self._ticket = None
        if not await ticket.leave():
            raise ticket.gone()

    @property
    def token(self) -> int:
        """The fencing token of this membership."""
        return self._joined().token

    async def members(self) -> tuple[Member, ...]:
        """Who is there now, in the order of joining."""
        return await members_of(self._session.store, self._name)

    def observe(self) -> AsyncIterator[tuple[Member, ...]]:
        """Who is there now, then whenever that changes; see `observe_members`."""
        return observe_members(self._session.store, self._name)

    def _joined(self) -> Ticket:
        if self._ticket is None:
            raise RuntimeError("this member has not joined")
        return self._ticket

    async def __aenter__(self) -> int:
        return await self.join()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.leave()
        elif self._ticket is not None:
            ticket, self._ticket = self._ticket, None
            await ticket.abandon()

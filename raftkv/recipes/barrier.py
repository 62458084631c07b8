"""Barriers: `Barrier` holds everybody up until it is lifted; a `DoubleBarrier` gathers a round.

A barrier is one key, and outlives whoever put it there.

The double barrier. A process enters by putting a ticket (ticket.py), and all of a round are let in
when there are `count` of them. That moment is written down: the key `round` holds the create
revision of the last ticket that belongs to it, and whose own is not greater is in. It never goes
back, so nothing needs to be cleaned up before the next round, and a process too many waits for the
next one. The key also keeps the earlier rounds that somebody is still in: so a slow process finds
its own, and nobody waits for those of another one. The round's revision is the fencing token that
all who are in it share.
"""

from __future__ import annotations

import bisect
from types import TracebackType

from raftkv.kv import Compare, DeleteRangeOp, PutOp, RangeOp
from raftkv.validation import checked

from .ports import Store
from .session import Session
from .ticket import Ticket
from .waiting import changed, insist, once, shrunk, txn

__all__ = ["Barrier", "DoubleBarrier"]


@checked
class Barrier:
    """Who waits at it goes on once it is lifted, or at once if there is none.

    With a `lease` (a session's) it is lifted by the end of that as well.
    """

    @checked
    def __init__(self, store: Store, name: bytes, *, lease: int = 0) -> None:
        self._store = store
        self._key = name
        self._lease = lease

    async def hold(self) -> int:
        """Put the barrier up, unless it is up already; its token, the revision that put it up.

        Raises OutcomeUnknown if nobody can tell whether it was put up.
        """
        done = await once(
            self._store,
            (Compare(self._key, "create", "=", 0),),
            (PutOp(self._key, b"", lease=self._lease),),
            (RangeOp(self._key),),
        )
        return done.revision if done.succeeded else done.rows()[0].create_revision

    async def release(self) -> bool:
        """Lift it; whether it was up."""
        # The comparison fails at nothing; it makes a repetition tell what the first attempt did.
        done = await txn(
            self._store,
            (Compare(self._key, "create", ">", 0),),
            (DeleteRangeOp(self._key),),
        )
        return done.succeeded or done.repeated

    async def wait(self) -> None:
        """Return once it is not up. A slow waiter may meet the next one, and wait for that."""
        kv = self._store.kv
        while True:
            found = await insist(lambda: kv.range(self._key, self._key + b"\0", keys_only=True))
            if not found.kvs:
                return
            await changed(kv, found.revision, key=self._key, put=False)


@checked
class DoubleBarrier:
    """`count` processes enter together and leave together.

        async with DoubleBarrier(session, b"barriers/step", 4) as token: ...

    A process that dies outside a round is not counted; one that dies inside counts as having left.
    """

    @checked
    def __init__(self, session: Session, name: bytes, count: int) -> None:
        if count < 1:
            raise ValueError(f"count = {count}: it must be 1 or more")
        self._session = session
        self._prefix = name + b"/"
        self._tickets = self._prefix + b"tickets/"
        self._round = self._prefix + b"round"
        self._count = count
        self._ticket: Ticket | None = None
        self._token = 0
        # The round before, as far as tickets of it may still be there.
        self._previous = 0

    @property
    def token(self) -> int:
        """The round's token, the same for all who are in it. Raises RuntimeError outside."""
        if not self._token:
            raise RuntimeError("nobody has been let in yet: enter first")
        return self._token

    async def enter(self) -> int:
        """Wait until `count` are there; the round's token. Raises LockLost if the session ends."""
        if self._ticket is not None:
            raise RuntimeError("this object has entered already; make another one")
        ticket = self._ticket = Ticket(self._session, self._tickets)
        try:
            await ticket.take()
            found = await self._session.unless_lost(self._let_in(ticket))
            self._token, self._previous = found
        finally:
            if not self._token:
                self._ticket = None
                if ticket.token:
                    await ticket.abandon()
        return self._token

    async def _let_in(self, ticket: Ticket) -> tuple[int, int]:
        """The ticket's round, and the last one before it that is known."""
        store = self._session.store
        while True:
            now = await insist(lambda: store.kv.range(prefix=self._prefix))
            rounds: list[int] = []
            seen = 0
            tickets = []
            for kv in now.kvs:
                if kv.key == self._round:
                    rounds, seen = [int(last) for last in kv.value.split()], kv.mod_revision
                else:
                    tickets.append(kv.create_revision)
            place = bisect.bisect_left(rounds, ticket.token)
            if place < len(rounds):
                return rounds[place], rounds[place - 1] if place else 0
            if ticket.token not in tickets:
                raise ticket.gone()
            tickets.sort()
            waiting = tickets[bisect.bisect_right(tickets, max(rounds, default=0)) :]
            if len(waiting) < self._count:
                await changed(store.kv, now.revision, prefix=self._prefix)
                continue
            begun = (*_inhabited(rounds, tickets), waiting[self._count - 1])
            full = PutOp(self._round, b" ".join(b"%d" % last for last in begun))
            await txn(store, (Compare(self._round, "mod", "=", seen),), (full,))

    async def leave(self) -> None:
        """Leave, and wait until all of the round have left or died. Raises LockLost."""
        last, previous = self.token, self._previous
        ticket, self._ticket, self._token = self._ticket, None, 0
        assert ticket is not None
        await ticket.leave()
        await self._session.unless_lost(self._left(previous, last))

    async def _left(self, previous: int, last: int) -> None:
        kv = self._session.store.kv
        while True:
            found = await insist(
                lambda: kv.range(
                    prefix=self._tickets,
                    keys_only=True,
                    min_create_revision=previous + 1,
                    max_create_revision=last,
                )
            )
            if not found.kvs:
                return
            keys = [other.key for other in found.kvs]
            await shrunk(kv, found.revision, self._tickets, keys, 1)

    async def __aenter__(self) -> int:
        return await self.enter()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.leave()
        elif self._ticket is not None:
            # The others need not wait for this one, nor it for them.
            ticket, self._ticket, self._token = self._ticket, None, 0
            await ticket.abandon()


def _inhabited(rounds: list[int], tickets: list[int]) -> list[int]:
    """Those of the rounds that somebody with one of the tickets is in; both in order."""
    found = []
    for place, last in enumerate(rounds):
        previous = rounds[place - 1] if place else 0
        if bisect.bisect_right(tickets, previous) < bisect.bisect_right(tickets, last):
            found.append(last)
    return found

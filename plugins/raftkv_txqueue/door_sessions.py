"""Sessions of clients that speak HTTP: kept by their node until nobody uses them.

A session lives in one node's life, so one that was opened at a door can be used at that door only.
A client that goes away cannot say so: a session that nobody has used for `door_idle_s` is closed,
and what it held goes back. The watcher runs only while there are any.

A session is named by its number and a secret, which only the client knows that opened it, and its
transactions by both and a counter: numbers are small, and shown to all. For a wrong secret there is
no such session.

HTTP repeats what it does not hear the answer to. A `get`, a settlement and a commit are safe to
repeat by themselves; operations of a transaction are counted here: a request that says how many
were sent before it (`at`) is done once, whether it comes once or twice.

One request at a time works in a session: the second one waits for the first, so that the count
and the order are those of the client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

from raftkv.errors import OutcomeUnknown, RaftkvError, Refused
from raftkv.plugin import Host, Metric, handle_of, read_handle

from .api import TxQueueApi
from .commands import Kind, Operation, PublishTo, SessionRow
from .refusals import NotYourSession, SessionEnded
from .session import Session
from .views import session_ended

__all__ = ["DoorSession", "DoorSessions", "StageGap", "TooManyDoorSessions"]

# A session is closed at most that much of its idle time too late.
LOOKS_PER_IDLE_TIME: Final = 4


class StageGap(Refused):
    """Operations before these are missing: a request of the client did not arrive."""

    code = "txqueue_stage_gap"

    def __init__(self, at: int, sent: int) -> None:
        super().__init__(at, sent)
        self.at = at
        self.sent = sent

    def __str__(self) -> str:
        return (
            f"these operations begin at {self.at}, and {self.sent} have arrived: send those "
            "between first"
        )


class TooManyDoorSessions(Refused):
    """The option door_sessions_max of the node."""

    code = "txqueue_too_many_door_sessions"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.limit} sessions are open at this door: close one, ask another node, or raise "
            "the option door_sessions_max"
        )


class DoorSession:
    """A session, when it was used last, and how far its transaction has arrived."""

    def __init__(self, session: Session, nonce: int, now: float) -> None:
        self.session = session
        self.nonce = nonce
        #: How its client names it.
        self.handle = handle_of(session.id, nonce)
        self.used_at = now
        self.lock = asyncio.Lock()
        #: Requests under way; one that is used is not closed for being idle.
        self.busy = 0
        self._transaction = ""
        self._sent = 0

    @property
    def next_txid(self) -> str:
        """The id of its running transaction, or of the next one, as its client names it."""
        return f"{self.handle}.{self.session.next_txid.partition('.')[2]}"

    def sent(self, transaction: str) -> int:
        """How many operations of that transaction have arrived."""
        return self._sent if self._transaction == transaction else 0

    async def take(self, transaction: str, operations: Sequence[Operation], at: int | None) -> int:
        """Do those that are new, in order; how many have arrived now. Raises StageGap.

        To be called with `lock` held, while `transaction` is the session's.
        """
        if self._transaction != transaction:
            self._transaction, self._sent = transaction, 0
        first = self._sent if at is None else at
        if first > self._sent:
            raise StageGap(first, self._sent)
        for operation in operations[self._sent - first :]:
            try:
                if isinstance(operation, PublishTo):
                    await self.session.publish(operation.queue, operation.messages)
                else:
                    await self.session.settle("accept", {operation.queue: operation.seqs})
            except (OutcomeUnknown, asyncio.CancelledError):
                # It is part of the transaction, and only its staging is under way.
                self._sent += 1
                raise
            self._sent += 1
        return self._sent


class DoorSessions:
    """Those of one node's door, by id."""

    def __init__(self, host: Host, api: TxQueueApi) -> None:
        self._host = host
        self._api = api
        self._open: dict[int, DoorSession] = {}
        self._opening = 0
        self._watcher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def idle_s(self) -> float:
        """The option door_idle_s."""
        return self._api.options.door_idle_s

    async def open(self, kind: Kind, timeout_s: float) -> DoorSession:
        """Open a session of this node for a client. Raises TooManyDoorSessions."""
        limit = self._api.options.door_sessions_max
        if len(self._open) + self._opening >= limit:
            raise TooManyDoorSessions(limit)
        self._opening += 1
        try:
            session = await self._api.session(kind, timeout_s=timeout_s)
        finally:
            self._opening -= 1
        nonce = int.from_bytes(self._host.runtime.token(8), "big")
        opened = DoorSession(session, nonce, self._host.runtime.monotonic())
        self._open[session.id] = opened
        if self._watcher is None or self._watcher.done():
            self._watcher = self._host.spawn(self._watch(), "door sessions")
        return opened

    @contextlib.asynccontextmanager
    async def using(self, handle: str, *, together: bool = False) -> AsyncIterator[DoorSession]:
        """The session, for the time of one request.

        Requests run one after the other, but for those that may run `together`: a `get` that waits
        must not hold up a settlement. Raises NotYourSession, which names the node to ask,
        SessionEnded, or BadRequest.
        """
        found = self._find(handle)
        found.busy += 1
        try:
            if together:
                yield found
            else:
                async with found.lock:
                    yield found
        finally:
            found.busy -= 1
            found.used_at = self._host.runtime.monotonic()

    def is_here(self, handle: str) -> bool:
        """Whether the session was opened at this node's HTTP API and lives."""
        found = self._open.get(read_handle("the session", handle)[0])
        return found is not None and not found.session.ended

    async def close(self, handle: str) -> None:
        """End it. Raises what `using` does."""
        found = self._find(handle)
        self._open.pop(found.session.id, None)
        await found.session.close()

    def metrics(self) -> Sequence[Metric]:
        limit = self._api.options.door_sessions_max
        return (
            Metric("door_sessions", "gauge", len(self._open), "Sessions open at this door."),
            Metric("door_sessions_limit", "gauge", limit, "The option door_sessions_max."),
        )

    def _find(self, handle: str) -> DoorSession:
        number, nonce = read_handle("the session", handle)
        found = self._open.get(number)
        if found is not None and found.nonce != nonce:
            raise SessionEnded(number)
        if found is not None and not found.session.ended:
            return found
        self._open.pop(number, None)
        row: SessionRow | None = self._host.view().table("sessions").get(number)
        if row is None or row.ended_ms or found is not None:
            raise session_ended(self._host.view(), number)
        if row.node == self._host.name:
            mine = self._api.sessions.get(number)
            if mine is None or mine.ended:
                raise SessionEnded(number)  # of a former life, or it is being closed
        # Of another node; or of the program in this one, from which the door must not take it.
        raise NotYourSession(number, row.node)

    async def _watch(self) -> None:
        """Close what nobody uses, and drop what has ended, while there is anything."""
        runtime = self._host.runtime
        while self._open:
            await runtime.sleep(self.idle_s / LOOKS_PER_IDLE_TIME)
            late = runtime.monotonic() - self.idle_s
            for number, each in list(self._open.items()):
                if each.session.ended:
                    self._open.pop(number, None)
                elif not each.busy and each.used_at <= late:
                    await self._close_idle(number, each)

    async def _close_idle(self, number: int, idle: DoorSession) -> None:
        self._open.pop(number, None)
        try:
            await idle.session.close()
        except RaftkvError as error:
            # No leader, say: it goes on the list again, unless it has ended meanwhile.
            if not idle.session.ended:
                self._open.setdefault(number, idle)
            self._host.log.debug("txqueue: an idle session waits: %s", type(error).__name__)
        else:
            self._api.counters.add("door_sessions_closed")

"""Costly commands of this node's callers, under a session of their own.

Commands of one session keep their order in the log, and a leader lets costly ones wait for their
share (raft/composition.py). So a cheap command that this node's callers submit behind a costly one
would wait as long, if both were numbered under the session of the node. What may look at more than
COSTLY_ROWS rows is therefore proposed under a client's session, which the node opens through the
log when it first needs one.

1. Costly commands keep their order among themselves; between them and the cheap ones of other
   callers there is none. A caller that awaits each command sees its own order as before.
2. Commands on the way have at most FLIGHT_ROWS rows together, or there is one. Others wait here,
   without a number, in the order of their submission.
3. A number whose outcome is unknown holds the floor for ABANDONED_KEPT_S, so that `node.outcome`
   can ask for it. Once the floor has passed it, no late copy is executed.
4. A session judges numbers within a window above its floor. Once that is used, a further session is
   opened; the former one stays open, so that its numbers can still be asked for.
5. If the session has ended (idle for too long, or the table was full), a command that was refused
   for that was not applied, and goes once more under a new one.

Whether a command is costly is an estimate from this node's state. It decides only which session the
command takes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import msgspec

from .errors import (
    OutcomeExpired,
    Overloaded,
    RaftkvError,
    SessionExpired,
    Stopped,
    Timeout,
    cut_off,
)
from .foreign import Foreign, Ticket
from .outbox import ABANDONED_KEPT_S
from .raft.composition import COSTLY_ROWS, FLIGHT_ROWS
from .runtime import Runtime
from .state import sessions
from .state.machine import StateMachine
from .waiter import late, no_leader

__all__ = ["WAITING_MAX", "CostlyCommands"]

# Sessions that may end under one command, before its caller is answered.
RENEWALS_MAX: Final = 3
#: Commands that may wait here: at the limit of `kv.rows_max` each, minutes of work.
WAITING_MAX: Final = 1_024


class _Session:
    """One session, its numbers, and until when those with an unknown outcome hold the floor."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.next_seq = 1
        #: Numbers on the way or held: the class of the command, for `node.outcome`.
        self.kinds: dict[int, type[msgspec.Struct]] = {}
        self._held: deque[tuple[float, int]] = deque()

    def take(self, kind: type[msgspec.Struct], now: float) -> Ticket:
        """The next number, which is the floor unless an earlier one is held."""
        self._release(now)
        seq = self.next_seq
        self.next_seq += 1
        self.kinds[seq] = kind
        return Ticket(self.number, seq, next(iter(self.kinds)))

    def is_full(self, now: float) -> bool:
        """Whether the next number would be refused as too far above the floor."""
        self._release(now)
        floor = next(iter(self.kinds), self.next_seq)
        return self.next_seq - floor >= sessions.SESSION_WINDOW

    def _release(self, now: float) -> None:
        while self._held and self._held[0][0] <= now:
            del self.kinds[self._held.popleft()[1]]

    def hold(self, seq: int, until: float) -> None:
        self._held.append((until, seq))

    def end(self, seq: int) -> None:
        del self.kinds[seq]


class CostlyCommands:
    """Proposes what may be costly through the queue of commands of clients' sessions."""

    def __init__(self, runtime: Runtime, machine: StateMachine, clients: Foreign) -> None:
        self._runtime = runtime
        self._machine = machine
        self._clients = clients
        self._session: _Session | None = None
        # The one before, whose window is used.
        self._former: _Session | None = None
        self._opening: asyncio.Future[str] | None = None
        # Rows of the commands on the way, and those that wait for room with theirs.
        self._rows = 0
        # Those only: one whose caller has left or timed out goes at once, wherever it stands.
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._stopped = False

    def __len__(self) -> int:
        """Commands that wait here for room."""
        return len(self._waiting)

    def rows_of(self, plugin: str, command: msgspec.Struct) -> int:
        """The rows that a command may look at if that makes it costly, else 0."""
        rows = self._machine.foresee(plugin, command)
        return rows if rows > COSTLY_ROWS else 0

    def kind_of(self, session: int, seq: int) -> type[msgspec.Struct] | None:
        """The class of a command that is unanswered, or was not long ago when it timed out."""
        for each in (self._session, self._former):
            if each is not None and each.number == session:
                return each.kinds.get(seq)
        return None

    async def propose(
        self, plugin: str, command: msgspec.Struct, rows: int, timeout_s: float
    ) -> Any:
        """As `Node.propose`, for a command that may look at so many rows."""
        deadline = self._runtime.monotonic() + timeout_s
        await self._room(rows, deadline)
        try:
            for _ in range(RENEWALS_MAX):
                session = await self._opened(deadline)
                try:
                    return await self._propose(session, plugin, command, deadline)
                except SessionExpired:
                    if self._session is session:
                        self._session = None
            raise no_leader()
        finally:
            self._rows -= rows
            self._admit()

    async def _propose(
        self, session: _Session, plugin: str, command: msgspec.Struct, deadline: float
    ) -> Any:
        now = self._runtime.monotonic()
        ticket = session.take(type(command), now)
        seq = ticket.seq
        unknown = True
        try:
            result = await self._clients.propose(ticket, plugin, command, max(0.0, deadline - now))
            unknown = False
            return result
        except (Timeout, OutcomeExpired):
            # Another copy may have been applied; the caller may ask.
            raise late(session.number, seq) from None
        except Exception:
            unknown = False
            raise
        finally:
            # Cancelled callers leave an unknown outcome, too.
            if unknown:
                session.hold(seq, self._runtime.monotonic() + ABANDONED_KEPT_S)
            else:
                session.end(seq)

    # -- the session

    async def _opened(self, deadline: float) -> _Session:
        """The session, opened by the first caller that needs it. Raises NoLeader."""
        session = self._session
        if session is not None:
            if not session.is_full(self._runtime.monotonic()):
                return session
            self._former, self._session = session, None
        if self._opening is None:
            opening = self._clients.open_session()
            self._opening = self._runtime.spawn(opening, "open a session for costly commands")
            self._opening.add_done_callback(self._was_opened)
        left_s = max(0.0, deadline - self._runtime.monotonic())
        await asyncio.wait([self._opening], timeout=left_s)
        return self._required()

    def _required(self) -> _Session:
        if self._session is None:
            raise no_leader()
        return self._session

    def _was_opened(self, opening: asyncio.Future[str]) -> None:
        failed = opening.cancelled() or opening.exception() is not None
        if opening is not self._opening:
            return  # the history that it belongs to was given up meanwhile
        self._opening = None
        if not failed:
            self._session = _Session(int(opening.result().partition("-")[0]))

    # -- room

    async def _room(self, rows: int, deadline: float) -> None:
        """Wait until the command may leave. Raises Overloaded, at the deadline too, or Stopped."""
        if self._stopped:
            raise Stopped("this node has stopped")
        if not self._waiting and self._has_room(rows):
            self._rows += rows
            return
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded(
                f"{WAITING_MAX} costly commands already wait in this node: wait for some to finish"
            )
        future: asyncio.Future[None] = self._runtime.future()
        self._waiting[future] = rows
        timer = self._runtime.call_later(
            max(0.0, deadline - self._runtime.monotonic()), self._give_up, future
        )
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                # Admitted in the turn in which its caller was cancelled.
                self._rows -= rows
            self._waiting.pop(future, None)
            self._admit()
            raise
        finally:
            timer.cancel()

    def _give_up(self, future: asyncio.Future[None]) -> None:
        """The deadline of one that waits."""
        if not future.done():
            self._waiting.pop(future, None)
            future.set_exception(
                Overloaded(
                    "costly commands of other callers were in the way until the deadline; the "
                    "command has not left this node. Allow more time, or look at fewer rows in "
                    "one command"
                )
            )

    def _has_room(self, rows: int) -> bool:
        return not self._rows or self._rows + rows <= FLIGHT_ROWS

    def _admit(self) -> None:
        while self._waiting:
            future, rows = next(iter(self._waiting.items()))
            if not future.done():
                if not self._has_room(rows):
                    return
                self._rows += rows
                future.set_result(None)
            del self._waiting[future]

    def history_ended(self) -> None:
        """The history that knew the session was given up."""
        self._session = self._former = self._opening = None

    def stop(self, fault: RaftkvError | None = None) -> None:
        """Nothing more is sent; what waits here was not applied. `fault`: why the node ended."""
        self._stopped = True
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_exception(cut_off(fault))

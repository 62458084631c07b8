"""Exactly-once sessions of a client: numbers for writes, and the floor below which all is answered.

Theory. A session is opened through the log. Each write gets the next number of its session, and the
cluster applies a number once, however often, and at whichever node, the write arrives; a repetition
gets the first answer (raftkv/state/sessions.py is the other half). The *floor* tells the cluster
which answers need not be kept any more: the lowest number without an answer.

Rules of this file
1. A number belongs to one write for good. One that was never sent is simply left out.
2. A write whose caller was told `Timeout` holds the floor for GIVEN_UP_KEPT_S, so that
   `Client.outcome` can still ask; then it is passed, and if it should arrive late it is refused.
3. A session that is nearly full (its window counts from the floor) is put aside for a new one
   rather than making callers wait.
4. The handle is a secret of the client: it is what stops two programs from sharing numbers by
   mistake. Only its first part, the number of the session, ever appears in errors and logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from raftkv.errors import NoLeader

__all__ = ["GivenUp", "Numbered", "Session", "Sessions"]

# As long as a node holds the floor for its own callers (raftkv/outbox.py).
GIVEN_UP_KEPT_S: Final = 30.0
# Writes whose outcome can be asked for; their bodies are kept for it.
GIVEN_UP_MAX: Final = 1024
# And so many bytes of them. Those of the oldest writes go first.
GIVEN_UP_BYTES_MAX: Final = 64 * 1024 * 1024
# The cluster keeps 65,536 numbers from the floor on; this leaves room for what is on its way.
NUMBERS_MAX: Final = 60_000
# Sessions put aside whose numbers may still be asked for.
FORMER_MAX: Final = 4


class Numbered(NamedTuple):
    """A request that has a number, as it is sent."""

    method: bytes
    path: bytes
    body: bytes


class GivenUp(NamedTuple):
    """A write with an unknown outcome, and until when it can be asked for."""

    request: Numbered
    until: float


class Session:
    """One session. `handle` is what the cluster gave: `<number>-<secret>`."""

    def __init__(self, handle: str, clock: Callable[[], float]) -> None:
        self.handle = handle
        self.id = int(handle.partition("-")[0])
        self.ended = False
        self._clock = clock
        self._next = 1
        # In their order: what holds the floor.
        self._unanswered: dict[int, None] = {}
        # Of these those whose caller was told Timeout, in the order of that.
        self._given_up: dict[int, GivenUp] = {}
        self._given_up_bytes = 0
        self._prefix = f"raftkv-session: {handle}\r\nraftkv-seq: ".encode("ascii")

    @property
    def floor(self) -> int:
        """The lowest number whose answer is still wanted."""
        self._forget()
        return next(iter(self._unanswered), self._next)

    @property
    def full(self) -> bool:
        return self._next - self.floor >= NUMBERS_MAX

    def take(self) -> int:
        """A number for a new write."""
        seq = self._next
        self._next += 1
        self._unanswered[seq] = None
        return seq

    def headers(self, seq: int) -> bytes:
        """The header lines that name a write."""
        return b"%b%d\r\nraftkv-floor: %d\r\n" % (self._prefix, seq, self.floor)

    def done(self, seq: int) -> None:
        """The number is answered, or was never sent, or nobody will ask for it any more."""
        self._unanswered.pop(seq, None)
        waited = self._given_up.pop(seq, None)
        if waited is not None:
            self._given_up_bytes -= len(waited.request.body)

    def give_up(self, seq: int, request: Numbered) -> None:
        """The caller was told that the outcome is unknown."""
        if seq in self._unanswered and seq not in self._given_up:
            self._given_up[seq] = GivenUp(request, self._clock() + GIVEN_UP_KEPT_S)
            self._given_up_bytes += len(request.body)
            self._forget()

    def _forget(self) -> None:
        """The oldest given-up writes whose time is over, or for which there is no room."""
        now = self._clock()
        while self._given_up:
            seq, oldest = next(iter(self._given_up.items()))
            if self._room() and oldest.until > now:
                return
            self.done(seq)

    def _room(self) -> bool:
        return len(self._given_up) <= GIVEN_UP_MAX and self._given_up_bytes <= GIVEN_UP_BYTES_MAX

    def given_up(self, seq: int) -> GivenUp | None:
        return self._given_up.get(seq)


class Sessions:
    """The sessions of one client; `opener(deadline)` asks the cluster for a handle."""

    def __init__(self, opener: Callable[[float], Awaitable[str]]) -> None:
        self._opener = opener
        self._current: Session | None = None
        self._former: list[Session] = []
        self._opening = asyncio.Lock()
        self.opened = 0

    async def current(self, deadline: float) -> Session:
        """The session for the next write; opened at the first one. Raises what opening raises."""
        session = self._current
        if session is not None and not session.ended and not session.full:
            return session
        try:
            async with asyncio.timeout_at(deadline):
                await self._opening.acquire()
        except TimeoutError:
            raise NoLeader("no session could be opened before the deadline") from None
        try:
            session = self._current
            if session is not None and not session.ended and not session.full:
                return session
            handle = await self._opener(deadline)
            if session is not None:
                self._former = [*self._former, session][-FORMER_MAX:]
            self.opened += 1
            self._current = Session(handle, asyncio.get_running_loop().time)
            return self._current
        finally:
            self._opening.release()

    def find(self, id: int) -> Session | None:
        """A session of this client by its number, while it is remembered."""
        sessions = [*self._former, *([self._current] if self._current else [])]
        return next((each for each in sessions if each.id == id), None)

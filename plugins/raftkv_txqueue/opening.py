"""The sessions of one node: how they are opened, and how they are told of their end."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final

from raftkv.errors import Stopped
from raftkv.plugin import Host, Proposer

from .commands import EndedBy, Ending, Kind, OpenSession, SessionOpened
from .life import Life
from .line import Line
from .metrics import Counters
from .options import TxQueueOptions
from .session import Session
from .views import last_ending
from .waiting import Waiting

__all__ = ["Opening", "Sessions"]


_COUNTED: Final[Mapping[EndedBy, str]] = {
    "operator": "sessions_ended_by_operators",
    "ack_timeout": "sessions_timed_out",
}


class Opening:
    """A session that is to be opened: `await` it, or `async with` it, which closes it then."""

    def __init__(self, sessions: Sessions, kind: Kind, timeout_s: float | None) -> None:
        self._sessions = sessions
        self._kind = kind
        self._timeout_s = timeout_s
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, Session]:
        return self._sessions.open(self._kind, self._timeout_s).__await__()

    async def __aenter__(self) -> Session:
        self._session = await self
        return self._session

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.__aexit__(kind, error, trace)


class Sessions:
    """The live sessions of this node, by their ids."""

    def __init__(
        self,
        host: Host,
        proposer: Proposer,
        waiting: Waiting,
        counters: Counters,
        options: TxQueueOptions,
    ) -> None:
        self._host = host
        self._proposer = proposer
        self._waiting = waiting
        self._counters = counters
        self._options = options
        self._live: dict[int, Session] = {}
        #: The last row of `endings` that was looked at.
        self._ending = 0
        self._stopped = False

    def __len__(self) -> int:
        return len(self._live)

    def all(self) -> tuple[Session, ...]:
        """Those that were opened on this node and have not ended, the oldest first."""
        return tuple(self._live.values())

    def get(self, session: int) -> Session | None:
        """One of them."""
        return self._live.get(session)

    async def open(self, kind: Kind, timeout_s: float | None) -> Session:
        """Open one. Who leaves before it is open leaves none behind.

        Raises `TooManySessions`, `NotApplied` kinds, OutcomeUnknown (it is closed if it was made).
        """
        if self._stopped:
            raise Stopped("this node stops")
        line = Line(self._host, self._counters)
        line.retire()
        return await line.do(partial(self._open, kind), timeout_s, unheard=self._close)

    async def _open(self, kind: Kind) -> Session:
        opened: SessionOpened = await self._proposer.once(OpenSession(kind))
        life = Life(self._host, self._proposer, opened.session, kind)
        session = Session(life, self._waiting, self._counters, self._options)
        session.on_end = partial(self._live.pop, session.id, None)
        self._live[session.id] = session
        self._counters.add("sessions_opened")
        if self._stopped:
            session.stop()
        session.look()
        return session

    async def _close(self, session: Session) -> None:
        await session.close(timeout_s=None)

    def look(self) -> None:
        """The node has a new life, or other tables: end those that have ended."""
        for session in self.all():
            session.look()

    def look_at_endings(self) -> None:
        """Entries were applied: end sessions that others have ended.

        One that waits for messages sends nothing that the log could refuse.
        """
        view = self._host.view()
        last, seen = last_ending(view), self._ending
        if last == seen:
            return
        self._ending = last
        row: Ending
        endings = dict(view.table("endings").scan(seen + 1))
        if seen + 1 not in endings:
            self.look()  # a snapshot, or so many at once that the first are dropped
        for row in endings.values():
            session = self._live.get(row.session)
            if session is not None:
                self._counters.add(_COUNTED[row.by])
                session.look()

    def stop(self) -> None:
        """The node stops: nothing is decided here any more, and this decides nothing."""
        self._stopped = True
        for session in self.all():
            session.stop()

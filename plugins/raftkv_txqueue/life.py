"""One session as its node has it: whether it goes on, and commands that are sent in its name.

A session ends when it is closed, when its node's life ends, or when nobody can say any more what
became of one of its commands: rather than be in doubt silently it is closed then, which gives back
what it held. To end is final. Nothing here decides that: the log says so, or has been told so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from raftkv.errors import NotApplied, OutcomeUnknown, Refused, Stopped, TooLarge
from raftkv.plugin import RETRY_FIRST_S, RETRY_MAX_S, Host, Lost, Proposer

from .commands import CloseSession, Kind, SessionRow
from .refusals import SessionEnded
from .views import session_ended

__all__ = ["Life"]


class Life:
    """`on_end` is called once, when the session has ended."""

    def __init__(self, host: Host, proposer: Proposer, session: int, kind: Kind) -> None:
        self.host = host
        self.proposer = proposer
        self.id = session
        self.kind = kind
        self.ended = False
        self.on_end: Callable[[], None] = lambda: None
        row: SessionRow | None = host.view().table("sessions").get(session)
        #: Of the node's life that it belongs to; 0: that was over before this node knew.
        self.incarnation = 0 if row is None or row.ended_ms else row.incarnation

    @property
    def is_over(self) -> bool:
        """Whether this node's tables, or its new life, say that it cannot go on."""
        row: SessionRow | None = self.host.view().table("sessions").get(self.id)
        return row is None or row.ended_ms != 0 or row.incarnation != self.host.incarnation

    async def ask(self, command: msgspec.Struct, *, must: bool = False) -> Any:
        """The command's result, once its outcome is known, however long that takes.

        `must`: proposed again while nothing has happened, as long as the session lives. Raises
        `Refused` kinds, `NotApplied` kinds (nothing happened), and OutcomeUnknown when nobody can
        say; then the session has ended.
        """
        delay_s = RETRY_FIRST_S
        while True:
            if self.ended:
                raise self.error()
            try:
                return await self.proposer.once(command)
            except SessionEnded:
                self.end()
                raise self.error() from None
            except Lost:
                self.abandon()
                raise
            except (TooLarge, Stopped):
                raise
            except NotApplied:
                if self.is_over:
                    self.end()
                    raise self.error() from None
                if not must:
                    raise
            await self.host.runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    def error(self) -> SessionEnded:
        """What its program gets: that it has ended, and why if others have ended it."""
        return session_ended(self.host.view(), self.id)

    def end(self) -> None:
        """It has ended."""
        if not self.ended:
            self.ended = True
            self.on_end()

    def abandon(self) -> None:
        """End it, because nobody knows what became of one of its commands."""
        if not self.ended:
            self.end()
            self.host.spawn(self.close(), "close a session")

    async def close(self) -> None:
        """Have the log end it, in this life of the node; it may have ended already."""
        delay_s = RETRY_FIRST_S
        while not self.is_over:
            try:
                await self.proposer.once(CloseSession(self.id))
            except (Stopped, Refused):
                return
            except (NotApplied, OutcomeUnknown) as error:
                name = type(error).__name__
                self.host.log.debug("txqueue: closing a session waits: %s", name)
            await self.host.runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

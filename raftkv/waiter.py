"""A command of this node on its way: what is held about it, and how it can end unanswered."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from .errors import NoLeader, NotApplied, Timeout
from .resending import NOT_SENT

__all__ = ["Waiter", "is_over", "is_wanted", "no_leader", "session_ended"]


class Waiter:
    """A command of this node without an answer, and what is known about it."""

    __slots__ = (
        "abandoned",
        "asked",
        "command",
        "deadline",
        "decided",
        "encoded",
        "future",
        "kind",
        "over",
        "plugin",
        "sends",
        "sent_at",
        "seq",
        "size",
        "tries",
        "why",
    )

    def __init__(
        self,
        plugin: str,
        kind: type[msgspec.Struct],
        command: bytes,
        future: asyncio.Future[Any],
        deadline: float,
    ) -> None:
        self.plugin = plugin
        self.kind = kind
        self.command = command
        self.size = len(command)
        self.future = future
        self.deadline = deadline
        self.encoded = b""
        self.abandoned = False
        # Of an abandoned one: its outcome is in the log; the log is being asked for it.
        self.decided = self.asked = False
        # Its number in the current session; 0 before it has one.
        self.seq = 0
        # Copies that may be applied, and attempts to send it (resending.py).
        self.sends = self.tries = 0
        self.sent_at = NOT_SENT
        # Why the leader has not taken it.
        self.why: NotApplied | None = None
        self.over = False

    def end(self) -> None:
        """Answered or given up. Its deadline goes on being held for a while, so drop the rest."""
        self.over = True
        self.command = self.encoded = b""
        del self.future


def is_over(waiter: Waiter) -> bool:
    """Whether its deadline means nothing any more."""
    return waiter.over


def is_wanted(waiter: Waiter) -> bool:
    """Whether its caller waits for the answer."""
    return not waiter.over and not waiter.future.done()


def session_ended(session: int, seq: int) -> Timeout:
    return Timeout(
        "the session ended while the command was on its way; it may have been applied before",
        session=session,
        seq=seq,
    )


def no_leader() -> NoLeader:
    return NoLeader(
        "no leader could be reached before the deadline; the command has not left this node. "
        "If this lasts, fewer than a majority of the cores are running"
    )

"""A command of this node on its way: what is held about it, and how it can end unanswered."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from .errors import NoLeader, Timeout

__all__ = ["Waiter", "is_over", "no_leader", "session_ended"]


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
        self.sends = 0
        self.sent_at = 0.0
        self.over = False

    def end(self) -> None:
        """Answered or given up. Its deadline goes on being held for a while, so drop the rest."""
        self.over = True
        self.command = self.encoded = b""
        del self.future


def is_over(waiter: Waiter) -> bool:
    """Whether its deadline means nothing any more."""
    return waiter.over


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

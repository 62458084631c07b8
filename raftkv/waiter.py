"""A command of this node on its way: what is held about it, and how it can end unanswered."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from .errors import ASK_NODE, NoLeader, NotApplied, Overloaded, Timeout, TooLarge
from .resending import NOT_SENT

__all__ = [
    "Waiter",
    "is_over",
    "is_wanted",
    "late",
    "no_leader",
    "queue_full",
    "session_ended",
    "too_large",
    "window_full",
]


class Waiter:
    """A command of this node without an answer, and what is known about it."""

    __slots__ = (
        "abandoned",
        "asked",
        "barred",
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
        # Why a leader has not taken it the last time; `barred`: and never will.
        self.why: NotApplied | None = None
        self.barred = False
        self.over = False

    def end(self) -> None:
        """Answered or given up. Its deadline goes on being held for a while, so drop the rest."""
        self.over = True
        self.sent_at = NOT_SENT  # of no flight
        self.command = self.encoded = b""
        del self.future


def is_over(waiter: Waiter) -> bool:
    """Whether its deadline means nothing any more."""
    return waiter.over


def is_wanted(waiter: Waiter) -> bool:
    """Whether it is to be sent: its caller waits for the answer."""
    return not (waiter.over or waiter.barred or waiter.future.done())


def session_ended(session: int, seq: int) -> Timeout:
    return Timeout(
        "the session ended while the command was on its way; it may have been applied before",
        session=session,
        seq=seq,
    )


def late(session: int, seq: int) -> Timeout:
    return Timeout(
        "the deadline passed while the command was on its way; it may still be applied. "
        f"{ASK_NODE}",
        session=session,
        seq=seq,
    )


def too_large(size_bytes: int, bytes_max: int) -> TooLarge:
    return TooLarge(f"the command has {size_bytes} bytes; limits.command_bytes_max is {bytes_max}")


def queue_full(count: int, size_bytes: int) -> Overloaded:
    return Overloaded(
        f"{count} commands of {size_bytes} bytes already wait in this node "
        f"(limits.outbox_commands_max, limits.outbox_bytes_max): wait for some to finish"
    )


def window_full(used: int, window: int, floor: int) -> Overloaded:
    return Overloaded(
        f"{used} numbers of this node's session are in use (at most {window}), because the outcome "
        f"of number {floor} is not known yet: wait for it"
    )


def no_leader() -> NoLeader:
    return NoLeader(
        "no leader could be reached before the deadline; the command has not left this node. "
        "If this lasts, fewer than a majority of the cores are running"
    )

"""What the queues count against the quota, and which commands add to it.

A staged message counts what it will count in its queue, so whatever was prepared can be committed:
a commit adds nothing. A queue that is there may be declared again. Accepting, releasing, purging
and deciding are never refused.
"""

from __future__ import annotations

from typing import Any, Final

from raftkv.plugin import Quota

from .commands import Commit, DeclareQueue, End, EnsureQueue, Publish, Stage
from .rows import Message, PublishTo, Queue, StagedMessage, Stored, size_of

__all__ = ["QUEUE_BYTES", "QUOTA", "reserved_bytes"]

#: What a queue counts besides its name.
QUEUE_BYTES: Final = 512


def _queue(key: str, row: Queue) -> int:
    return QUEUE_BYTES + len(key)


def _message(key: tuple[int, int], row: Stored) -> int:
    return size_of(row.message)


def reserved_bytes(message: Message) -> int:
    """What a staged message counts: what it will count in its queue."""
    return size_of(message)


def _staged(key: tuple[int, int, int], row: StagedMessage) -> int:
    return reserved_bytes(row.message)


def _adds(command: Any) -> bool:
    kind = type(command)
    if kind in (Stage, Commit, End):
        return any(type(operation) is PublishTo for operation in command.operations)
    return kind is Publish


def _declares(command: Any) -> bool:
    return type(command) in (DeclareQueue, EnsureQueue)


QUOTA: Final = Quota(
    sizes={"queues": _queue, "messages": _message, "staged": _staged},
    adds=_adds,
    declares=_declares,
)

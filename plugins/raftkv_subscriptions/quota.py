"""What topics count against the quota, and which commands add to it.

What arrives from another region adds, too: its link pauses while it is refused. Acknowledgements,
of other regions as well, are never refused, nor is whatever ends or trims something. A topic or a
subscription that is there may be declared again: with less retention, or to take its messages.
"""

from __future__ import annotations

from typing import Any, Final

from raftkv.plugin import Quota

from .commands import DeclareTopic, Deliver, EnsureTopic, Publish, Subscribe
from .rows import Stored, Sub, Topic, size_of

__all__ = ["QUOTA", "ROW_BYTES"]

#: What a topic or a subscription counts besides its name.
ROW_BYTES: Final = 512

_ADDING: Final = frozenset({Publish, Deliver})
_DECLARING: Final = frozenset({DeclareTopic, EnsureTopic, Subscribe})


def _topic(key: str, row: Topic) -> int:
    return ROW_BYTES + len(key)


def _sub(key: tuple[int, str], row: Sub) -> int:
    return ROW_BYTES + len(key[1])


def _message(key: tuple[int, int], row: Stored) -> int:
    return size_of(row.message)


def _adds(command: Any) -> bool:
    return type(command) in _ADDING


def _declares(command: Any) -> bool:
    return type(command) in _DECLARING


QUOTA: Final = Quota(
    sizes={"topics": _topic, "subs": _sub, "messages": _message},
    adds=_adds,
    declares=_declares,
)

"""Whether what a program says could be in the log at all, asked before it is sent there.

What is impossible by itself gets its answer at once, and never meets others in one command.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from .commands import Subscribe
from .refusals import UnknownSubscription, UnknownTopic
from .rows import Initial, Kind
from .scope import check_name

__all__ = ["possible", "require_possible", "subscribe_of"]

CommandT = TypeVar("CommandT", bound=msgspec.Struct)


def require_possible(topic: str, sub: str | None = None) -> None:
    """Names that could not even be sent are of nothing that exists.

    Raises `UnknownTopic`, `UnknownSubscription`.
    """
    if not topic.isascii():
        raise UnknownTopic(topic)
    if sub is not None and not sub.isascii():
        raise UnknownSubscription(topic, sub)


def possible(command: CommandT) -> CommandT:
    """The command, if its values are ones that it can have. Raises ValueError."""
    try:
        return msgspec.convert(msgspec.to_builtins(command), type(command))
    except (msgspec.ValidationError, OverflowError, UnicodeEncodeError) as error:
        raise ValueError(f"this cannot be: {error}") from None


def subscribe_of(
    topic: str, sub: str, kind: Kind, initial: Initial, replicate: bool | None
) -> Subscribe:
    """The command. Raises `UnknownTopic`, `BadName`, ValueError."""
    require_possible(topic)
    check_name("subscription", sub)
    return possible(Subscribe(topic, sub, kind, initial, replicate))

"""What an embedding broker implements so that its sessions can move between nodes.

A broker has one `ChannelOwner` per node. The registry's side calls it: to freeze a channel and copy
its session (`begin`), to take what came in since and end it (`end`), to let it go on (`resume`), or
to end it without a successor (`discard`, `kick`). The broker calls the other way round through
`manager.py`.

What the two sides rely on:

1. A channel is named by (client_id, channel); the rest of the row may change during its life, when
   its node gets a new incarnation or the cluster another mode.
2. `begin` and `end` are atomic for messages: each message that was accepted for the channel is in
   what `begin` gave, or in what `end` gives, or was delivered before `begin`, and in one of them
   only. Order is kept. After `end` has returned, and after `discard` and `kick`, the channel
   accepts nothing any more and the session exists here no longer.
3. `begin` of a frozen channel is never called: contenders share one freeze (`handover.py`).
4. A call that cannot be done raises `ChannelGone` with one of the five kinds of failure. Any other
   exception counts as "shutdown_reason" with its text. A call that takes longer than its time-out
   is given up by who waits for it but not cancelled, so that a slow broker is not left half done.
5. The broker installs what `open_session` returned before its next `await`, or its `begin` waits
   until that is done: a newer connection may ask for the session at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final, Literal, Protocol, runtime_checkable

import msgspec

from raftkv.errors import RaftkvError

from .commands import Channel

__all__ = [
    "NOTHING",
    "ChannelGone",
    "ChannelOwner",
    "ConnectionOwner",
    "Failure",
    "Message",
    "NothingToTakeOver",
    "SessionKeeper",
    "merge_pendings",
]

# How a call to a channel fails: it ended by itself, was shut down, was shut down for a reason, did
# not answer in time, or is not there.
Failure = Literal["normal", "shutdown", "shutdown_reason", "timeout", "noproc"]


class Message(msgspec.Struct, frozen=True, array_like=True):
    """A message for a session. `id` is unique among the messages of the client."""

    id: str
    data: bytes


class ChannelGone(RaftkvError):
    """Raised by a broker: the channel is ending, or is not there. `kind` says which."""

    code: ClassVar[str] = "lcr_channel_gone"

    def __init__(self, kind: Failure, reason: str = "") -> None:
        super().__init__(reason or kind)
        self.kind: Failure = kind
        self.reason = reason


#: The reason of `NothingToTakeOver`; nodes recognise it by this text.
NOTHING: Final = "nothing to take over: the session ends with its connection"


class NothingToTakeOver(ChannelGone):
    """Raised by `begin`: the channel's session ends with its connection and is never handed over.

    The newer connection begins without a session, in whatever order the log and the end of the
    older connection come, and the older channel is discarded.
    """

    def __init__(self) -> None:
        super().__init__("normal", NOTHING)


class ChannelOwner(Protocol):
    """The embedding broker on one node. The caller bounds every call by a time-out."""

    async def begin(self, channel: Channel) -> bytes:
        """Freeze the channel and return its session's content.

        Messages that arrive from now on are queued as pendings, not delivered. Raises
        `NothingToTakeOver` for a session that does not outlive its connection.
        """

    async def end(self, channel: Channel) -> Sequence[Message]:
        """The pendings of a frozen channel, in order. The channel terminates, with its session."""

    async def resume(self, channel: Channel) -> None:
        """Nobody ended the frozen channel: it goes on and delivers what was queued."""

    async def discard(self, channel: Channel) -> None:
        """The session and the channel end; nothing is handed over."""

    async def kick(self, channel: Channel, reason: str) -> None:
        """The channel and its session end; `reason` goes to the client."""

    def is_alive(self, channel: Channel) -> bool:
        """Whether the channel lives on this node, frozen or not."""

    def channels(self) -> Iterable[Channel]:
        """All that live on this node, by the rows with which they were opened."""


@runtime_checkable
class SessionKeeper(Protocol):
    """What a `ChannelOwner` may have besides, if it keeps sessions of absent clients."""

    def keep(self, channel: Channel, session: bytes, pendings: Sequence[Message]) -> None:
        """Take a session whose connection went away while it was being opened.

        The channel is registered, and from now on lives like one whose client is away: until it is
        taken over, or the broker closes it.
        """


@runtime_checkable
class ConnectionOwner(Protocol):
    """What a `ChannelOwner` may have besides, for the setting `older_connection`."""

    def is_connected(self, channel: Channel) -> bool:
        """Whether the channel lives on this node and its client is connected to it.

        A channel that has lost its client never gets one again: the client returns on another.
        Without this method every channel that lives counts as connected.
        """


def merge_pendings(pendings: Sequence[Message], received: Sequence[Message]) -> tuple[Message, ...]:
    """The messages of a taken over session: the pendings, then what only the new channel received.

    While a takeover is under way both channels may receive the same message. No id comes twice.
    """
    merged = {message.id: message for message in pendings}
    for message in received:
        merged.setdefault(message.id, message)
    return tuple(merged.values())

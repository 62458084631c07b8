"""The calls between nodes of the old registry: their names and payloads.

The calls to a channel ("old.begin" and so on) are session protocol 1, which nodes of the version
before the linear registry speak. They carry no version and no token: whoever calls is believed to
hold the lock. A call that ends a channel says who takes its place and when, by the caller's clock,
the old channel was left: `disconnected_at_ms` is all that a newer node has for a version.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from .commands import Channel
from .owner import Failure, Message

__all__ = [
    "COPY",
    "FOLLOW",
    "LOCK",
    "OLD_ALIVE",
    "OLD_BEGIN",
    "OLD_DISCARD",
    "OLD_END",
    "OLD_KICK",
    "SPREAD",
    "TAKEOVER",
    "UNLOCK",
    "WRITE",
    "Answer",
    "CopyPage",
    "CopyRequest",
    "FollowRequest",
    "LockRequest",
    "OldAlive",
    "OldBegin",
    "OldContent",
    "OldEnd",
    "OldGone",
    "OldKick",
    "OldLiving",
    "OldPendings",
    "Operation",
    "Spread",
    "UnlockRequest",
    "pack",
    "unpack",
]

LOCK = "legacy.lock"
UNLOCK = "legacy.unlock"
WRITE = "legacy.write"
SPREAD = "legacy.spread"
FOLLOW = "legacy.follow"
COPY = "legacy.copy"
TAKEOVER = "legacy.takeover"
OLD_BEGIN = "old.begin"
OLD_END = "old.end"
OLD_DISCARD = "old.discard"
OLD_KICK = "old.kick"
OLD_ALIVE = "old.alive"

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode


def pack(value: object) -> bytes:
    """Encode a payload."""
    return _encode(value)


def unpack(payload: bytes, of_type: type[T]) -> T:
    """Decode a payload of a declared type; raises msgspec.ValidationError or DecodeError."""
    return msgspec.msgpack.decode(payload, type=of_type)


class LockRequest(msgspec.Struct, frozen=True, array_like=True):
    """Lock `resource` for `holder` unless somebody else holds it; freed after `lease_ms`."""

    resource: str
    holder: str
    lease_ms: int


class UnlockRequest(msgspec.Struct, frozen=True, array_like=True):
    """Unlock `resource` if `holder` holds it."""

    resource: str
    holder: str


class Operation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One dirty write: add the row to the bag of its client, or remove exactly it."""

    add: bool
    channel: Channel


class Spread(msgspec.Struct, frozen=True, array_like=True):
    """Operations `first` .. of one stream, in the order in which the sender applied them."""

    stream: int
    first: int
    operations: tuple[Operation, ...]


class FollowRequest(msgspec.Struct, frozen=True, array_like=True):
    """A replicant wants what its core applies. `stream` is the one it follows, 0 for none."""

    stream: int


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """A yes or no; for `follow`, also the stream that the follower is on now."""

    yes: bool
    stream: int = 0


class CopyRequest(msgspec.Struct, frozen=True, array_like=True):
    """The rows of up to `clients_max` clients behind `after`, in the order of client ids."""

    after: str
    clients_max: int


class CopyPage(msgspec.Struct, frozen=True, array_like=True):
    """One page of a full copy; `last` is the client id to go on from, None at the end."""

    channels: tuple[Channel, ...]
    last: str | None


# --- session protocol 1 ---------------------------------------------------------------------------


class OldBegin(msgspec.Struct, frozen=True, array_like=True):
    """Freeze the channel and give its session's content."""

    channel: Channel


class OldEnd(msgspec.Struct, frozen=True, array_like=True):
    """End the channel: `taker`, the caller's channel, takes its place (None: nobody does).

    The same payload for "old.end", which answers with what arrived since the begin, and for
    "old.discard", which throws the session away.
    """

    channel: Channel
    taker: Channel | None
    disconnected_at_ms: int


class OldKick(msgspec.Struct, frozen=True, array_like=True):
    """End the channel and its session, and tell the client why."""

    channel: Channel
    reason: str


class OldAlive(msgspec.Struct, frozen=True, array_like=True):
    """Which of these channels live on the node that is asked? All of one node in one call."""

    channels: tuple[Channel, ...]


class OldGone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """The channel is ending or not there: one of the failure kinds, and words."""

    kind: Failure
    reason: str


class OldContent(msgspec.Struct, frozen=True, array_like=True, tag="content"):
    """What "old.begin" answers."""

    content: bytes


class OldPendings(msgspec.Struct, frozen=True, array_like=True, tag="pendings"):
    """What "old.end" and, always empty, "old.discard" and "old.kick" answer."""

    messages: tuple[Message, ...]


class OldLiving(msgspec.Struct, frozen=True, array_like=True):
    """What "old.alive" answers, in the order of the question."""

    living: tuple[bool, ...]

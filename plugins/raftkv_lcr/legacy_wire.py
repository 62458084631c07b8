"""The calls between nodes of the old registry: their names and payloads."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from .commands import Channel

__all__ = [
    "COPY",
    "FOLLOW",
    "LOCK",
    "SPREAD",
    "TAKEOVER",
    "UNLOCK",
    "WRITE",
    "Answer",
    "CopyPage",
    "CopyRequest",
    "FollowRequest",
    "LockRequest",
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

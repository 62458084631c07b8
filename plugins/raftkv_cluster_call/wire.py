"""What nodes say to each other about forwarded calls.

A replicant gives its call a token (its name, its life, a number), and asks one core, in one life of
that core. START may be lost, or its answer; ASK never starts anything, so it can be repeated. An
answer whose status is "busy" came early on purpose: the call is still at work, ask again.

An exception that a call may raise travels as its class's code with its arguments, and is the same
one on the other side (`pack_error`, `unpack_error`). Results travel as msgpack, as plain data.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

import msgspec

from raftkv.errors import (
    NoLeader,
    NotApplied,
    OutcomeUnknown,
    Overloaded,
    RaftkvError,
    Refused,
    RemoteFailed,
    Stopped,
    Timeout,
    TooLarge,
)

from .commands import REFUSALS
from .errors import CannotForward, DeadlinePassed, StaleView, TooManyRequired
from .functions import CallError
from .reports import UnknownNode

__all__ = [
    "ASK",
    "CANCEL",
    "START",
    "Answer",
    "AskRequest",
    "Ended",
    "Raised",
    "StartRequest",
    "Token",
    "pack",
    "pack_error",
    "pack_result",
    "unpack",
    "unpack_error",
]

START = "call"
ASK = "call.ask"
CANCEL = "call.cancel"

T = TypeVar("T")
Plain = int | str | None


class Token(msgspec.Struct, frozen=True, array_like=True):
    """A forwarded call: the caller's node and life, its number there, and the core's life."""

    node: str
    incarnation: int
    number: int
    core_incarnation: int


class StartRequest(msgspec.Struct, frozen=True, array_like=True):
    """Make this call. `version` 0: the newest. `timeout_ms` is what is left of its time."""

    token: Token
    function: str
    version: int
    args: bytes
    required: str | int | tuple[str, ...]
    timeout_ms: int
    wait_ms: int


class AskRequest(msgspec.Struct, frozen=True, array_like=True):
    """What became of it? Answer within `wait_ms`."""

    token: Token
    wait_ms: int


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """A `CallResult`. `result` is msgpack; `lost`: it could not travel, and why."""

    outcome: Literal["ok", "init_failure", "peers_lagging", "stopped_nodes"]
    id: int
    result: bytes
    lost: str
    nodes: tuple[str, ...]
    error: CallError | None


class Raised(msgspec.Struct, frozen=True, array_like=True):
    """An exception: its code, its arguments if they are plain, else its text."""

    code: str
    args: tuple[Plain, ...]


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """ "ended" and "raised": it is over. "busy": ask again. "never": it was not begun here, and
    never will be. "other_life": the core has another life than the token says, or has dropped the
    answer since: nobody knows."""

    status: Literal["ended", "raised", "busy", "never", "other_life"]
    ended: Ended | None = None
    raised: Raised | None = None


def pack(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def unpack(payload: bytes, kind: type[T]) -> T:
    return msgspec.msgpack.decode(payload, type=kind)


def pack_result(result: Any, bytes_max: int) -> tuple[bytes, str]:
    """(the result as it travels, why it does not travel)."""
    try:
        encoded = msgspec.msgpack.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return b"\xc0", f"the result cannot be encoded ({type(error).__name__})"
    if len(encoded) > bytes_max:
        return b"\xc0", f"the result has {len(encoded)} bytes, more than {bytes_max}"
    return encoded, ""


# --- exceptions -----------------------------------------------------------------------------------

_LISTED: Final[tuple[type[RaftkvError], ...]] = (
    *REFUSALS,
    CannotForward,
    DeadlinePassed,
    NoLeader,
    NotApplied,
    OutcomeUnknown,
    Overloaded,
    StaleView,
    Stopped,
    Timeout,
    TooLarge,
    TooManyRequired,
    UnknownNode,
)
_KINDS: Final = {kind.code: kind for kind in _LISTED}


def pack_error(error: Exception) -> Raised:
    """An exception of a call, so that the other side can raise the same."""
    if isinstance(error, RaftkvError):
        if error.code in _KINDS and all(_plain(arg) for arg in error.args):
            return Raised(error.code, error.args)
        # A kind that is not listed: at least what the caller may do next.
        for kind in (NotApplied, OutcomeUnknown, Refused):
            if isinstance(error, kind):
                return Raised(kind.code, (f"{error.code}: {error}",))
        return Raised("", (f"{type(error).__name__}: {error}",))
    if isinstance(error, ValueError):
        return Raised("value_error", (str(error),))
    # Nothing of its text: it may show arguments.
    return Raised("", (type(error).__name__,))


def unpack_error(raised: Raised) -> Exception:
    if raised.code == "value_error":
        return ValueError(*raised.args)
    kind = _KINDS.get(raised.code, Refused if raised.code == Refused.code else RemoteFailed)
    return kind(*raised.args)


def _plain(value: object) -> bool:
    return value is None or isinstance(value, int | str)

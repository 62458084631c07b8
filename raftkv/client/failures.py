"""From the door's error body back to the exception that the node raised.

The door writes `{"error", "code", "message", "reason", "detail", "args"}`: `reason` is the stable
code of raftkv's error, `args` the arguments of a refusal that has more than a text. With them a
client raises the very class that `node.kv` would have raised, so code written for one works with
the other. An answer without a reason that is known here (a proxy's, a newer node's) is placed by
its HTTP status, and in doubt as "the outcome is unknown".
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

import raftkv.errors
import raftkv.kv.commands
from raftkv.errors import (
    ConfigError,
    NodeFault,
    NotApplied,
    OutcomeUnknown,
    Overloaded,
    RaftkvError,
    Refused,
    Stopped,
    Timeout,
    TooLarge,
)

__all__ = ["error_of", "is_own_word", "refusal_of"]


def _known() -> dict[str, type[RaftkvError]]:
    """Every error class by its code, the general ones included."""
    found: dict[str, type[RaftkvError]] = {}
    for module in (raftkv.errors, raftkv.kv.commands):
        for each in vars(module).values():
            if isinstance(each, type) and issubclass(each, RaftkvError):
                found.setdefault(each.code, each)
    return found


_BY_REASON: Final = _known()
#: The node does not take requests for that host, or from that origin (raftkv/server/admission.py).
_TURNED_AWAY: Final = frozenset(("unknown_host", "unknown_origin"))


def error_of(endpoint: str, status: int, body: bytes) -> RaftkvError:
    """The error that an answer other than 200 stands for."""
    try:
        decoded: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError):
        decoded = {"error": body[:200].decode("utf-8", "replace")}
    fields = decoded if isinstance(decoded, dict) else {}
    reason = str(fields.get("reason", ""))
    text = str(fields.get("detail") or fields.get("error") or reason or f"status {status}")
    kind = _BY_REASON.get(reason)
    if reason in _TURNED_AWAY:
        return ConfigError(f"{endpoint}: {text}")
    if kind is None:
        return _by_status(endpoint, status, text)
    if issubclass(kind, Refused):
        return refusal_of(reason, fields.get("args"), text)
    if issubclass(kind, NodeFault):
        # What stopped that node does not stop this client.
        return Stopped(f"{endpoint}: the node has stopped itself: {text}")
    if issubclass(kind, OutcomeUnknown | NotApplied):
        return kind(f"{endpoint}: {text}")
    return RaftkvError(f"{endpoint}: {text}")


def is_own_word(body: bytes) -> bool:
    """Whether an error's reason is one that raftkv does not know: a plugin's own."""
    try:
        decoded: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError):
        return False
    reason = decoded.get("reason") if isinstance(decoded, dict) else None
    return isinstance(reason, str) and reason != "" and reason not in _BY_REASON


def refusal_of(reason: str, args: object, text: str) -> Refused:
    """A refusal by its code; the general one if the code is not known here."""
    kind = _BY_REASON.get(reason)
    if kind is None or not issubclass(kind, Refused):
        # A plugin's: its arguments mean something to its own class only.
        return Refused(f"{reason}: {text}")
    if isinstance(args, list):
        try:
            return kind(*args)
        except TypeError:
            pass  # another version's arguments: the text says the same
    return kind(text)


def _by_status(endpoint: str, status: int, text: str) -> RaftkvError:
    text = f"{endpoint}: {text}"
    if status == 413:
        return TooLarge(text)
    if status == 429:
        return Overloaded(text)
    if status == 408 or (status >= 500 and status != 501):
        # Not even 503 is a promise: proxies answer so when the connection behind them breaks.
        return Timeout(text)
    return Refused(text)

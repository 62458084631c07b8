"""What the door answers when it does not answer what was asked.

etcd's JSON gateway reports an error as `{"error": text, "message": text, "code": n}` where `code`
is a gRPC status code, and picks the HTTP status from that code. Clients of that gateway look at
either, so both are kept, and the texts are etcd's where it has one: some clients compare them.
Behind those stand our own fields: `reason`, the stable code of the raftkv error, which tells a
client of raftkv what it may do next (`raftkv.errors` draws the tree); `detail`, the sentence for a
person; `args`, the arguments of a refusal that has more than a text.

Deliberate differences from etcd, because an honest answer is safer than an equal one:
- `Timeout` is DeadlineExceeded (etcd says Unavailable, which many clients retry blindly);
- a body that is larger than the door reads at all is 413 with InvalidArgument, not 429;
- a word that is not served is 501 with Unimplemented and says so, not a bare 404.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from raftkv import errors

__all__ = [
    "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION",
    "INTERNAL",
    "INVALID_ARGUMENT",
    "JSON_TYPE",
    "NOT_FOUND",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "RETRY_AFTER",
    "TEXT_CHARS_MAX",
    "TOO_LARGE_TEXT",
    "TOO_MANY_TEXT",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "UNKNOWN",
    "BadRequest",
    "Busy",
    "Failure",
    "Unserved",
    "failure_body",
    "failure_of",
    "internal_failure",
]

JSON_TYPE: Final = (b"content-type", b"application/json")
#: With every 429 and 503: elections take one or two seconds, a full queue drains in less.
RETRY_AFTER: Final = (b"retry-after", b"1")

# gRPC status codes, as etcd uses them.
UNKNOWN: Final = 2
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
OUT_OF_RANGE: Final = 11
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

_HTTP_STATUS: Final = {
    UNKNOWN: 500,
    INVALID_ARGUMENT: 400,
    DEADLINE_EXCEEDED: 504,
    NOT_FOUND: 404,
    RESOURCE_EXHAUSTED: 429,
    FAILED_PRECONDITION: 412,
    OUT_OF_RANGE: 400,
    UNIMPLEMENTED: 501,
    INTERNAL: 500,
    UNAVAILABLE: 503,
}

#: Of one text of an error.
TEXT_CHARS_MAX: Final = 2_000

#: In place of the text of a fault, which names files of the server.
FAULT_TEXT: Final = "the node has stopped by itself, its log has the reason"

TOO_LARGE_TEXT: Final = "etcdserver: request is too large"
TOO_MANY_TEXT: Final = "etcdserver: too many requests"
_TOO_MANY_OPS_TEXT: Final = "etcdserver: too many operations in txn request"


class BadRequest(Exception):
    """The request cannot be understood, or asks for something that cannot be: code 3."""


class Unserved(Exception):
    """The request is valid in etcd's API, and this version does not serve it: code 12."""


class Busy(Exception):
    """A limit of the door is reached; the text names it. Try again in a while: code 8."""


class Failure(msgspec.Struct, frozen=True):
    """One refused request.

    `status` is the HTTP status, `code` the gRPC code, `text` for clients of etcd, `reason` the code
    of raftkv's error, `detail` its text, which says what to do, `args` its arguments.
    """

    status: int
    code: int
    text: str
    reason: str
    detail: str = ""
    args: tuple[Any, ...] = ()

    @property
    def body(self) -> bytes:
        return failure_body(self.code, self.text, self.reason, self.detail, self.args)


def failure_body(
    code: int, text: str, reason: str, detail: str = "", args: Sequence[Any] = ()
) -> bytes:
    """The JSON body that etcd's gateway gives for an error, with raftkv's own fields behind it.

    Texts are cut at TEXT_CHARS_MAX: they may quote a name of the request, which may be megabytes.
    """
    text, detail = text[:TEXT_CHARS_MAX], detail[:TEXT_CHARS_MAX]
    body: dict[str, Any] = {"error": text, "message": text, "code": code, "reason": reason}
    if detail and detail != text:
        body["detail"] = detail
    if args:
        body["args"] = args
    return msgspec.json.encode(body)


def _failure(code: int, text: str, reason: str, detail: str = "") -> Failure:
    return Failure(_HTTP_STATUS[code], code, text, reason, detail)


# etcd's own words where it has them.
_REFUSALS: Final = {
    "compacted": (OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"),
    "future_revision": (OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision"),
    "duplicate_key": (INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request"),
    "empty_key": (INVALID_ARGUMENT, "etcdserver: key is not provided"),
    "key_not_found": (INVALID_ARGUMENT, "etcdserver: key not found"),
    "value_provided": (INVALID_ARGUMENT, "etcdserver: value is provided"),
    "lease_provided": (INVALID_ARGUMENT, "etcdserver: lease is provided"),
    "lease_not_found": (NOT_FOUND, "etcdserver: requested lease not found"),
    "lease_exists": (FAILED_PRECONDITION, "etcdserver: lease already exists"),
    "no_space": (RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"),
    "lease_ttl_too_large": (OUT_OF_RANGE, "etcdserver: too large lease TTL"),
}


def failure_of(error: Exception) -> Failure | None:
    """Translate an error of the node or the gateway; None for an unexpected one (a bug)."""
    match error:
        case BadRequest():
            return _failure(INVALID_ARGUMENT, str(error), "bad_request")
        case Unserved():
            return _failure(UNIMPLEMENTED, str(error), "unimplemented")
        case Busy():
            return _failure(RESOURCE_EXHAUSTED, TOO_MANY_TEXT, "overloaded", str(error))
        case errors.TooLarge():
            return _failure(INVALID_ARGUMENT, _limit_text(str(error)), error.code, str(error))
        case errors.Overloaded():
            return _failure(RESOURCE_EXHAUSTED, TOO_MANY_TEXT, error.code, str(error))
        case errors.NoLeader():
            return _failure(UNAVAILABLE, "etcdserver: no leader", error.code, str(error))
        case errors.Stopped():
            return _failure(UNAVAILABLE, "etcdserver: server stopped", error.code, str(error))
        case errors.ReadTimeout():
            return _failure(DEADLINE_EXCEEDED, f"read timed out: {error}", error.code)
        case errors.NodeFault():
            return _failure(UNAVAILABLE, f"unavailable: {FAULT_TEXT}", error.code)
        case errors.NotApplied():
            return _failure(UNAVAILABLE, f"unavailable: {error}", error.code)
        case errors.OutcomeUnknown():
            cause = errors.without_python(str(error))
            text = f"the outcome is unknown, the write may still be applied: {cause}"
            return _failure(DEADLINE_EXCEEDED, text, error.code)
        case errors.Refused():
            return _refused(error)
        case _:
            return None


def internal_failure(error: Exception) -> Failure:
    """For an unexpected error: what it says is for the log, not for a stranger."""
    text = f"internal error ({type(error).__name__}), see the log of the node"
    return _failure(INTERNAL, text, "internal")


def _refused(error: errors.Refused) -> Failure:
    code, text = _REFUSALS.get(error.code, (FAILED_PRECONDITION, f"{error.code}: {error}"))
    if error.code == "limit_exceeded" and ("txn_ops_max" in text or "bytes_max" in text):
        code, text = INVALID_ARGUMENT, _limit_text(text)
    # Of what is no text, or has more than that, a client makes the same error by the arguments.
    known = len(error.args) > 1 or not error.keeps_text_apart()
    if not known or error.code == "limit_exceeded":
        return _failure(code, text, error.code, str(error))
    return Failure(_HTTP_STATUS[code], code, text, error.code, str(error), error.args)


def _limit_text(text: str) -> str:
    return _TOO_MANY_OPS_TEXT if "txn_ops_max" in text else TOO_LARGE_TEXT

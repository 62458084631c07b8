"""What the door answers when it does not answer what was asked.

etcd's JSON gateway reports an error as `{"error": text, "code": n, "message": text}` where `code`
is a gRPC status code, and picks the HTTP status from that code. Clients of that gateway look at
either, so both are kept. `reason` and `detail` are ours: the stable code of the raftkv
error, which tells a client of raftkv what it may do next (`raftkv.errors` draws the tree), and
the sentence for a person.

Deliberate differences from etcd, both because an honest answer is safer than an equal one:
`Timeout` is DeadlineExceeded (etcd says Unavailable, which many clients retry blindly), and a body
that is larger than the door reads at all is 413 instead of 400, with the same code and message.
"""

from __future__ import annotations

from typing import Final

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
    "TOO_LARGE_TEXT",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "BadRequest",
    "Failure",
    "Unserved",
    "failure_body",
    "failure_of",
]

JSON_TYPE: Final = (b"content-type", b"application/json")

# gRPC status codes, as etcd uses them.
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
FAILED_PRECONDITION: Final = 9
OUT_OF_RANGE: Final = 11
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

_HTTP_STATUS: Final = {
    INVALID_ARGUMENT: 400,
    DEADLINE_EXCEEDED: 504,
    NOT_FOUND: 404,
    FAILED_PRECONDITION: 400,
    OUT_OF_RANGE: 400,
    UNIMPLEMENTED: 501,
    INTERNAL: 500,
    UNAVAILABLE: 503,
}

TOO_LARGE_TEXT: Final = "etcdserver: request is too large"


class BadRequest(Exception):
    """The request cannot be understood, or asks for something that cannot be: code 3."""


class Unserved(Exception):
    """The request is valid in etcd's API, and this version does not serve it: code 12."""


class Failure(msgspec.Struct, frozen=True):
    """One refused request.

    `status` is the HTTP status, `code` the gRPC code, `text` for clients of etcd, `reason` the code
    of raftkv's error and `detail` its text, which says what to do.
    """

    status: int
    code: int
    text: str
    reason: str
    detail: str = ""


def failure_body(code: int, text: str, reason: str, detail: str = "") -> bytes:
    """The JSON body that etcd's gateway gives for an error, with raftkv's own fields behind it."""
    body = {"error": text, "code": code, "message": text, "reason": reason}
    if detail and detail != text:
        body["detail"] = detail
    return msgspec.json.encode(body)


def _failure(code: int, text: str, reason: str, detail: str = "") -> Failure:
    return Failure(_HTTP_STATUS[code], code, text, reason, detail)


# etcd's own words where it has them, because some clients compare texts.
_REFUSALS: Final = {
    "compacted": (OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"),
    "future_revision": (OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision"),
    "duplicate_key": (INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request"),
    "empty_key": (INVALID_ARGUMENT, "etcdserver: key is not provided"),
    "lease_not_found": (NOT_FOUND, "etcdserver: requested lease not found"),
    "limit_exceeded": (INVALID_ARGUMENT, TOO_LARGE_TEXT),
}


def failure_of(error: Exception) -> Failure | None:
    """Translate an error of the node or the gateway; None for an unexpected one (a bug)."""
    match error:
        case BadRequest():
            return _failure(INVALID_ARGUMENT, str(error), "bad_request")
        case Unserved():
            return _failure(UNIMPLEMENTED, str(error), "unimplemented")
        case errors.TooLarge():
            return _failure(INVALID_ARGUMENT, TOO_LARGE_TEXT, error.code, str(error))
        case errors.NoLeader():
            return _failure(UNAVAILABLE, "etcdserver: no leader", error.code, str(error))
        case errors.ReadTimeout():
            return _failure(DEADLINE_EXCEEDED, f"read timed out: {error}", error.code)
        case errors.NotApplied() | errors.NodeFault():
            return _failure(UNAVAILABLE, f"unavailable: {error}", error.code)
        case errors.OutcomeUnknown():
            text = f"the outcome is unknown, the write may still be applied: {error}"
            return _failure(DEADLINE_EXCEEDED, text, error.code)
        case errors.Refused():
            known = _REFUSALS.get(error.code)
            if known is not None:
                return _failure(*known, error.code, str(error))
            text = f"{error.code}: {error}"
            return _failure(FAILED_PRECONDITION, text, error.code)
        case _:
            return None

"""etcd's words in JSON: the requests that this client writes, the answers that it reads.

Answers are decoded into typed structs straight away: 64-bit integers come as strings, bytes as
base64, defaults are left out, and what is not known here is ignored, so that a newer node may say
more. What the rest of the client sees are the result types of `raftkv.kv`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec

from raftkv.kv.commands import (
    CompactResult,
    Compare,
    DeleteRangeOp,
    DeleteRangeResult,
    Event,
    GrantResult,
    KeyValue,
    Operation,
    OperationResult,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    RevokeResult,
    TxnOp,
    TxnResult,
)

__all__ = [
    "COMPACT",
    "DELETE",
    "GRANT",
    "KEEP_ALIVE",
    "LEASES",
    "PUT",
    "RANGE",
    "RESULTS",
    "REVOKE",
    "TIME_TO_LIVE",
    "TXN",
    "WATCH",
    "KeepAliveAnswer",
    "LeasesAnswer",
    "OutcomeAnswer",
    "TtlAnswer",
    "WatchLine",
    "compacted",
    "delete_json",
    "deleted",
    "events",
    "found",
    "granted",
    "put_done",
    "put_json",
    "range_json",
    "revoked",
    "txn_done",
    "txn_json",
]

RANGE: Final = b"/v3/kv/range"
PUT: Final = b"/v3/kv/put"
DELETE: Final = b"/v3/kv/deleterange"
TXN: Final = b"/v3/kv/txn"
COMPACT: Final = b"/v3/kv/compaction"
WATCH: Final = b"/v3/watch"
GRANT: Final = b"/v3/lease/grant"
REVOKE: Final = b"/v3/lease/revoke"
KEEP_ALIVE: Final = b"/v3/lease/keepalive"
TIME_TO_LIVE: Final = b"/v3/lease/timetolive"
LEASES: Final = b"/v3/lease/leases"

_OPERATORS: Final = {"=": "EQUAL", "!=": "NOT_EQUAL", ">": "GREATER", "<": "LESS"}
_TARGETS: Final = {
    "value": ("VALUE", "value"),
    "version": ("VERSION", "version"),
    "create": ("CREATE", "create_revision"),
    "mod": ("MOD", "mod_revision"),
    "lease": ("LEASE", "lease"),
}


class Header(msgspec.Struct, frozen=True, gc=False):
    """The header of an answer, as far as it is needed."""

    revision: int = 0


class Pair(msgspec.Struct, gc=False):
    """etcd's KeyValue."""

    key: bytes = b""
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    lease: int = 0

    def row(self) -> KeyValue:
        return KeyValue(
            self.key,
            self.value,
            self.create_revision,
            self.mod_revision,
            self.version,
            self.lease,
        )


_NO_HEADER: Final = Header()


class PutAnswer(msgspec.Struct, gc=False):
    header: Header = _NO_HEADER
    prev_kv: Pair | None = None


class RangeAnswer(msgspec.Struct):
    header: Header = _NO_HEADER
    kvs: list[Pair] = []
    more: bool = False
    count: int = 0


class DeleteAnswer(msgspec.Struct):
    header: Header = _NO_HEADER
    deleted: int = 0
    prev_kvs: list[Pair] = []


class PartAnswer(msgspec.Struct):
    """One of a transaction's answers: exactly one field is set."""

    response_put: PutAnswer | None = None
    response_range: RangeAnswer | None = None
    response_delete_range: DeleteAnswer | None = None
    response_txn: TxnAnswer | None = None


class TxnAnswer(msgspec.Struct):
    header: Header = _NO_HEADER
    succeeded: bool = False
    responses: list[PartAnswer] = []


class RevisionAnswer(msgspec.Struct, gc=False):
    """The answer of a word that gives nothing but its header."""

    header: Header = _NO_HEADER


class GrantAnswer(msgspec.Struct, gc=False):
    header: Header = _NO_HEADER
    ID: int = 0
    TTL: int = 0


class RevokeAnswer(msgspec.Struct, gc=False):
    """`deleted` is raftkv's addition."""

    header: Header = _NO_HEADER
    deleted: int = 0


class KeepAlive(msgspec.Struct, gc=False):
    ID: int = 0
    TTL: int = 0


class KeepAliveAnswer(msgspec.Struct):
    """A stream of one line."""

    result: KeepAlive


class TtlAnswer(msgspec.Struct):
    ID: int = 0
    TTL: int = 0
    granted: int = msgspec.field(name="grantedTTL", default=0)
    keys: list[bytes] = []


class LeaseId(msgspec.Struct, gc=False):
    ID: int = 0


class LeasesAnswer(msgspec.Struct):
    leases: list[LeaseId] = []


class Change(msgspec.Struct):
    """One event of a watch. `type` is PUT unless it says DELETE."""

    kv: Pair = msgspec.field(default_factory=Pair)
    prev_kv: Pair | None = None
    type: str | int = "PUT"


class WatchResult(msgspec.Struct):
    header: Header = _NO_HEADER
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    events: list[Change] = []


class StreamError(msgspec.Struct):
    """A stream's last line may be an error: gRPC's code and a text."""

    message: str = ""
    grpc_code: int = 0
    http_code: int = 0


class WatchLine(msgspec.Struct):
    """One line of a watch."""

    result: WatchResult | None = None
    error: StreamError | None = None


class OutcomeAnswer(msgspec.Struct):
    """The verdict of `GET /v1/outcome`; see `raftkv.plugin.Outcome`."""

    verdict: Literal["applied", "refused", "not_applied", "expired"]
    reason: str = ""
    detail: str = ""
    args: list[Any] | None = None


# Requests ----------------------------------------------------------------------------------------


def operation_json(operation: Operation) -> dict[str, Any]:
    """An operation of a transaction as a `RequestOp`."""
    match operation:
        case PutOp():
            return {"request_put": put_json(operation)}
        case RangeOp():
            return {"request_range": range_json(operation)}
        case DeleteRangeOp():
            return {"request_delete_range": delete_json(operation)}
        case TxnOp(compare, success, failure):
            return {"request_txn": txn_json(compare, success, failure)}


def put_json(operation: PutOp) -> dict[str, Any]:
    request: dict[str, Any] = {"key": operation.key, "value": operation.value}
    if operation.lease:
        request["lease"] = str(operation.lease)
    for name in ("prev_kv", "ignore_value", "ignore_lease"):
        if getattr(operation, name):
            request[name] = True
    return request


def range_json(operation: RangeOp) -> dict[str, Any]:
    request: dict[str, Any] = {"key": operation.key}
    if operation.range_end:
        request["range_end"] = operation.range_end
    for name in (
        "limit",
        "revision",
        "min_mod_revision",
        "max_mod_revision",
        "min_create_revision",
        "max_create_revision",
    ):
        value = getattr(operation, name)
        if value:
            request[name] = str(value)
    for name in ("keys_only", "count_only"):
        if getattr(operation, name):
            request[name] = True
    if operation.sort_by != "key" or operation.descending:
        request["sort_target"] = operation.sort_by.upper()
        request["sort_order"] = "DESCEND" if operation.descending else "ASCEND"
    return request


def delete_json(operation: DeleteRangeOp) -> dict[str, Any]:
    request: dict[str, Any] = {"key": operation.key}
    if operation.range_end:
        request["range_end"] = operation.range_end
    if operation.prev_kv:
        request["prev_kv"] = True
    return request


def compare_json(compare: Compare) -> dict[str, Any]:
    target, field = _TARGETS[compare.target]
    operand = compare.operand
    request: dict[str, Any] = {
        "key": compare.key,
        "target": target,
        "result": _OPERATORS[compare.op],
        field: operand if isinstance(operand, bytes) else str(operand),
    }
    if compare.range_end:
        request["range_end"] = compare.range_end
    return request


def txn_json(
    compare: Iterable[Compare], success: Iterable[Operation], failure: Iterable[Operation]
) -> dict[str, Any]:
    """A `TxnRequest`; empty parts are left out."""
    request = {
        "compare": [compare_json(each) for each in compare],
        "success": [operation_json(each) for each in success],
        "failure": [operation_json(each) for each in failure],
    }
    return {name: part for name, part in request.items() if part}


# Answers -----------------------------------------------------------------------------------------

_put = msgspec.json.Decoder(PutAnswer, strict=False).decode
_range = msgspec.json.Decoder(RangeAnswer, strict=False).decode
_delete = msgspec.json.Decoder(DeleteAnswer, strict=False).decode
_txn = msgspec.json.Decoder(TxnAnswer, strict=False).decode
_header = msgspec.json.Decoder(RevisionAnswer, strict=False).decode
_grant = msgspec.json.Decoder(GrantAnswer, strict=False).decode
_revoke = msgspec.json.Decoder(RevokeAnswer, strict=False).decode


def put_done(body: bytes) -> PutResult:
    return _put_result(_put(body))


def found(body: bytes) -> RangeResult:
    return _range_result(_range(body))


def deleted(body: bytes) -> DeleteRangeResult:
    return _delete_result(_delete(body))


def txn_done(body: bytes) -> TxnResult:
    return _txn_result(_txn(body), 0)


def compacted(body: bytes) -> CompactResult:
    return CompactResult(_header(body).header.revision)


def granted(body: bytes) -> GrantResult:
    answer = _grant(body)
    return GrantResult(answer.ID, answer.TTL, answer.header.revision)


def revoked(body: bytes) -> RevokeResult:
    answer = _revoke(body)
    return RevokeResult(answer.header.revision, answer.deleted)


def _put_result(answer: PutAnswer, revision: int = 0) -> PutResult:
    prev = answer.prev_kv
    return PutResult(answer.header.revision or revision, None if prev is None else prev.row())


def _range_result(answer: RangeAnswer, revision: int = 0) -> RangeResult:
    kvs = tuple([pair.row() for pair in answer.kvs])
    return RangeResult(answer.header.revision or revision, kvs, answer.count, answer.more)


def _delete_result(answer: DeleteAnswer, revision: int = 0) -> DeleteRangeResult:
    prevs = tuple([pair.row() for pair in answer.prev_kvs])
    return DeleteRangeResult(answer.header.revision or revision, answer.deleted, prevs)


def _txn_result(answer: TxnAnswer, revision: int) -> TxnResult:
    revision = answer.header.revision or revision
    results = tuple([_part_result(part, revision) for part in answer.responses])
    return TxnResult(revision, answer.succeeded, results)


def _part_result(part: PartAnswer, revision: int) -> OperationResult:
    if part.response_put is not None:
        return _put_result(part.response_put, revision)
    if part.response_range is not None:
        return _range_result(part.response_range, revision)
    if part.response_delete_range is not None:
        return _delete_result(part.response_delete_range, revision)
    return _txn_result(part.response_txn or TxnAnswer(), revision)


def events(changes: Iterable[Change]) -> tuple[Event, ...]:
    """The events of a watch; a deletion's key has version 0 and no value."""
    return tuple([_event(each) for each in changes])


def _event(change: Change) -> Event:
    prev = None if change.prev_kv is None else change.prev_kv.row()
    if change.type in ("DELETE", 1):
        return Event(KeyValue(change.kv.key, b"", 0, change.kv.mod_revision, 0), prev)
    return Event(change.kv.row(), prev)


#: How the answer of each word that writes becomes its result.
RESULTS: Final[dict[bytes, Callable[[bytes], Any]]] = {
    PUT: put_done,
    DELETE: deleted,
    TXN: txn_done,
    COMPACT: compacted,
    GRANT: granted,
    REVOKE: revoked,
}

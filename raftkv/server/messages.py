"""The requests of etcd's v3 JSON gateway as typed structs, and two ways to decode them.

The fast way is a typed decoder that takes the usual form as it is: snake-case names, base64,
integers as numbers. It refuses whatever it does not know. Only then does the slow way look at the
body as the gateway's own JSON reader would: integers may be strings, camel-case names are the same
as snake-case ones, null is the same as leaving out, a field that etcd does not have is ignored,
bytes may be an array of numbers, line ends inside base64 are skipped, and so is what stands behind
the first JSON value. So the forms that clients use in masses cost nothing for the rare ones.

Both ways are bounded before anything is built of a body: it has at most JSON_OBJECTS_MAX objects
and lists, and at most VALUES_MAX values where the slow way is needed, which is written in Python.
What is not JSON is refused at the first error; nothing here loops over bytes.

Both are strict about everything else ("true" is not true, "1e3" is not a number), because etcd is.

Every field of etcd 3.4's messages stands here. A number for an enum that has no such value is
refused, which etcd does only for names.
"""

from __future__ import annotations

import contextlib
import re
from typing import Annotated, Any, Final, TypeVar

import msgspec

from raftkv.plugin_door import JSON_OBJECTS_MAX

from .answers import BadRequest

__all__ = [
    "VALUES_MAX",
    "AlarmRequest",
    "CompactionRequest",
    "Compare",
    "DeleteRangeRequest",
    "GrantRequest",
    "HashRequest",
    "KeepAliveRequest",
    "LeasesRequest",
    "NoRequest",
    "PutRequest",
    "RangeRequest",
    "RequestOp",
    "RevokeRequest",
    "TimeToLiveRequest",
    "TxnRequest",
    "WatchCancelRequest",
    "WatchCreateRequest",
    "WatchProgressRequest",
    "WatchRequest",
    "decode",
    "decoder_of",
    "enum_value",
    "is_costly",
]

#: Names and values of a body that is not in the usual form: four transactions of the default
#: `txn_ops_max`, and about ten milliseconds.
VALUES_MAX: Final = 10_000
# A body with more values than this is read in its own turn of the loop (work_budget.py), and so is
# one of more bytes; less takes less than a millisecond, whatever it is.
_SHORT_VALUES: Final = 200
_SHORT_BYTES: Final = 1024
_LONG_BYTES: Final = 256 * 1024

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Uint64 = Annotated[int, msgspec.Meta(ge=0)]  # msgspec knows no upper bound beyond an int64's
# An enum's name or its number.
Enum = int | str

SORT_ORDERS: Final = ("NONE", "ASCEND", "DESCEND")
SORT_TARGETS: Final = ("KEY", "VERSION", "CREATE", "MOD", "VALUE")
COMPARE_RESULTS: Final = ("EQUAL", "GREATER", "LESS", "NOT_EQUAL")
COMPARE_TARGETS: Final = ("VERSION", "CREATE", "MOD", "VALUE", "LEASE")
ALARM_ACTIONS: Final = ("GET", "ACTIVATE", "DEACTIVATE")
# From DISK on they are raftkv's own.
ALARM_TYPES: Final = ("NONE", "NOSPACE", "CORRUPT", "DISK", "IDENTITY", "EPOCH")
WATCH_FILTERS: Final = ("NOPUT", "NODELETE")


class RangeRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: bytes = b""
    range_end: bytes = b""
    limit: Int64 = 0
    revision: Int64 = 0
    sort_order: Enum = 0
    sort_target: Enum = 0
    serializable: bool = False
    keys_only: bool = False
    count_only: bool = False
    min_mod_revision: Int64 = 0
    max_mod_revision: Int64 = 0
    min_create_revision: Int64 = 0
    max_create_revision: Int64 = 0


class PutRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: bytes = b""
    value: bytes = b""
    lease: Int64 = 0
    prev_kv: bool = False
    ignore_value: bool = False
    ignore_lease: bool = False


class DeleteRangeRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: bytes = b""
    range_end: bytes = b""
    prev_kv: bool = False


class Compare(msgspec.Struct, forbid_unknown_fields=True):
    """One condition. Which of the five values counts is said by `target`."""

    result: Enum = 0
    target: Enum = 0
    key: bytes = b""
    range_end: bytes = b""
    version: Int64 = 0
    create_revision: Int64 = 0
    mod_revision: Int64 = 0
    value: bytes = b""
    lease: Int64 = 0


class RequestOp(msgspec.Struct, forbid_unknown_fields=True):
    """One operation of a transaction: exactly one field is set."""

    request_range: RangeRequest | None = None
    request_put: PutRequest | None = None
    request_delete_range: DeleteRangeRequest | None = None
    request_txn: TxnRequest | None = None


class TxnRequest(msgspec.Struct, forbid_unknown_fields=True):
    compare: list[Compare] = []
    success: list[RequestOp] = []
    failure: list[RequestOp] = []


class CompactionRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """`physical` asks etcd to wait until its file was compacted; here there is no such file."""

    revision: Int64 = 0
    physical: bool = False


class HashRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """`revision` 0 or less is the newest."""

    revision: Int64 = 0


class AlarmRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    action: Enum = 0
    memberID: Uint64 = 0  # noqa: N815  # as etcd spells it in JSON
    alarm: Enum = 0


class GrantRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    TTL: Int64 = 0
    ID: Int64 = 0


class RevokeRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    ID: Int64 = 0


class KeepAliveRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    ID: Int64 = 0


class TimeToLiveRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    ID: Int64 = 0
    keys: bool = False


class NoRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message without fields."""


class LeasesRequest(NoRequest, gc=False):
    pass


class WatchCreateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`fragment` allows to cut large answers; whole revisions are given here in any case."""

    key: bytes = b""
    range_end: bytes = b""
    start_revision: Int64 = 0
    progress_notify: bool = False
    filters: list[Enum] = []
    prev_kv: bool = False
    watch_id: Int64 = 0
    fragment: bool = False


class WatchCancelRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    watch_id: Int64 = 0


class WatchProgressRequest(NoRequest, gc=False):
    pass


class WatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """One message of the stream: the first field that is set counts."""

    create_request: WatchCreateRequest | None = None
    cancel_request: WatchCancelRequest | None = None
    progress_request: WatchProgressRequest | None = None


RequestT = TypeVar("RequestT", bound=msgspec.Struct)

# What stands in the fields that hold further messages.
_PARTS: Final[dict[tuple[type, str], type]] = {
    (TxnRequest, "compare"): Compare,
    (TxnRequest, "success"): RequestOp,
    (TxnRequest, "failure"): RequestOp,
    (RequestOp, "request_range"): RangeRequest,
    (RequestOp, "request_put"): PutRequest,
    (RequestOp, "request_delete_range"): DeleteRangeRequest,
    (RequestOp, "request_txn"): TxnRequest,
    (WatchRequest, "create_request"): WatchCreateRequest,
    (WatchRequest, "cancel_request"): WatchCancelRequest,
    (WatchRequest, "progress_request"): WatchProgressRequest,
}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _names(kind: type[msgspec.Struct]) -> dict[str, str]:
    """JSON name -> field name, in both spellings."""
    fields = [field.name for field in msgspec.structs.fields(kind)]
    return {_camel(name): name for name in fields} | {name: name for name in fields}


_NAMES: Final = {
    kind: _names(kind)
    for kind in (
        RangeRequest,
        PutRequest,
        DeleteRangeRequest,
        Compare,
        RequestOp,
        TxnRequest,
        CompactionRequest,
        HashRequest,
        AlarmRequest,
        GrantRequest,
        RevokeRequest,
        KeepAliveRequest,
        TimeToLiveRequest,
        NoRequest,
        LeasesRequest,
        WatchRequest,
        WatchCreateRequest,
        WatchCancelRequest,
        WatchProgressRequest,
    )
}


def decoder_of(kind: type[RequestT]) -> msgspec.json.Decoder[RequestT]:
    """A decoder for `decode`."""
    return msgspec.json.Decoder(kind)


def is_costly(body: bytes) -> bool:
    """Whether reading it may take a millisecond or more."""
    size = len(body)
    return size > _LONG_BYTES or (size > _SHORT_BYTES and _values(body) > _SHORT_VALUES)


def decode(decoder: msgspec.json.Decoder[RequestT], body: bytes) -> RequestT:
    """Decode a request body; `BadRequest` says what is wrong with it. An empty body is `{}`."""
    if len(body) > JSON_OBJECTS_MAX and body.count(b"{") + body.count(b"[") > JSON_OBJECTS_MAX:
        raise BadRequest(f"the body has more than {JSON_OBJECTS_MAX} objects and lists")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        # Valid JSON in a form that only the slow way knows, or a bad request; it was not read to
        # its end, where something may stand that does not count.
        return _decode_slowly(decoder, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        first = _first_value(body, error)
    try:
        return decoder.decode(first)
    except msgspec.DecodeError:
        return _decode_slowly(decoder, first)


def _decode_slowly(decoder: msgspec.json.Decoder[RequestT], body: bytes) -> RequestT:
    if len(body) > VALUES_MAX and _values(body) > VALUES_MAX:
        raise BadRequest(
            f"the body is not in the usual form (names in snake case, numbers as numbers, no "
            f"unknown fields), and then it must not have more than {VALUES_MAX} values"
        )
    try:
        try:
            found = msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            found = msgspec.json.decode(_first_value(body, error))
        if not isinstance(found, dict) and found is not None:
            raise BadRequest("the request must be a JSON object")
        tidied = _tidied(found or {}, decoder.type)
        return decoder.decode(msgspec.json.encode(tidied))
    except (msgspec.DecodeError, OverflowError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the request cannot be understood: {error}") from None


# How msgspec reports that a value ends before the body does; it counts bytes from 1.
_TRAILING: Final = re.compile(r"trailing characters \(byte ([0-9]+)\)")


def _first_value(body: bytes, error: Exception) -> bytes:
    """What counts of a body that is no JSON value: its first value, nothing as `{}`.

    Raises BadRequest for `error`, which decoding it gave, if it has none.
    """
    trailing = _TRAILING.search(str(error))
    if trailing is not None:
        return body[: int(trailing[1]) - 1]
    if not body.strip(b" \t\r\n"):
        return b"{}"
    raise BadRequest(f"the body is not valid JSON: {error}") from None


def _values(body: bytes) -> int:
    """At least how many names and values JSON has, without what stands in a list or object alone.

    Signs inside of strings count as well.
    """
    return body.count(b"{") + body.count(b"[") + body.count(b":") + body.count(b",")


# The fields of bytes; etcd's base64 reader skips line ends.
_BYTES: Final = frozenset(("key", "range_end", "value"))
_LINE_ENDS: Final = {10: None, 13: None}
_INTEGERS: Final = {
    kind: frozenset(
        field.name for field in msgspec.structs.fields(kind) if field.type in (Int64, Uint64)
    )
    for kind in _NAMES
}
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")


def _tidied(found: Any, kind: Any) -> Any:
    """`found` with snake-case names, without nulls and without what `kind` does not have."""
    if isinstance(found, list):
        return [_tidied(item, kind) for item in found]
    if not isinstance(found, dict):
        return found
    tidied: dict[str, Any] = {}
    for given, value in found.items():
        name = _NAMES[kind].get(given)
        if name is None or value is None:
            continue
        part = _PARTS.get((kind, name))
        if part is not None:
            tidied[name] = _tidied(value, part)
        elif name in _BYTES:
            tidied[name] = _tidied_bytes(value)
        elif name in _INTEGERS[kind] and isinstance(value, str) and _INTEGER.fullmatch(value):
            tidied[name] = int(value)
        else:
            tidied[name] = value
    return tidied


def _tidied_bytes(value: Any) -> Any:
    """Bytes as the decoder wants them; what are none stay what they are, for it to refuse."""
    if isinstance(value, str):
        return value.translate(_LINE_ENDS)
    if isinstance(value, list) and set(map(type, value)) <= {int}:
        with contextlib.suppress(ValueError):  # a number that is no byte
            return bytes(value)  # encoded as base64 again
    return value


def enum_value(given: Enum, names: tuple[str, ...], label: str) -> int:
    """The number of an enum given by name or number; `BadRequest` if it has no such value."""
    if isinstance(given, str):
        if given in names:
            return names.index(given)
    elif 0 <= given < len(names):
        return given
    raise BadRequest(f"{label} = {given!r} is not one of {', '.join(names)}")

"""The requests of etcd's v3 JSON gateway as typed structs, and two ways to decode them.

The fast way is a typed decoder that takes the usual form as it is: snake-case names, base64,
integers as strings or numbers. It refuses whatever it does not know. Only then does the slow way
look at the body as the gateway's own JSON reader would: camel-case names are the same as
snake-case ones, null is the same as leaving out, and a field that etcd does not have is ignored.
So the forms that clients use in masses cost nothing for the rare ones.

Every field of etcd 3.4's messages stands here, also those that are not served yet: the gateway
must be able to see them in order to refuse them loudly.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec

from .answers import BadRequest

__all__ = [
    "Compare",
    "DeleteRangeRequest",
    "PutRequest",
    "RangeRequest",
    "RequestOp",
    "TxnRequest",
    "decode",
    "enum_value",
]

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# An enum's name or its number.
Enum = int | str

SORT_ORDERS: Final = ("NONE", "ASCEND", "DESCEND")
SORT_TARGETS: Final = ("KEY", "VERSION", "CREATE", "MOD", "VALUE")
COMPARE_RESULTS: Final = ("EQUAL", "GREATER", "LESS", "NOT_EQUAL")
COMPARE_TARGETS: Final = ("VERSION", "CREATE", "MOD", "VALUE", "LEASE")


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


RequestT = TypeVar("RequestT", RangeRequest, PutRequest, DeleteRangeRequest, TxnRequest)

# What stands in the fields that hold further messages.
_PARTS: Final[dict[tuple[type, str], type]] = {
    (TxnRequest, "compare"): Compare,
    (TxnRequest, "success"): RequestOp,
    (TxnRequest, "failure"): RequestOp,
    (RequestOp, "request_range"): RangeRequest,
    (RequestOp, "request_put"): PutRequest,
    (RequestOp, "request_delete_range"): DeleteRangeRequest,
    (RequestOp, "request_txn"): TxnRequest,
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
    for kind in (RangeRequest, PutRequest, DeleteRangeRequest, Compare, RequestOp, TxnRequest)
}


def decode(decoder: msgspec.json.Decoder[RequestT], body: bytes) -> RequestT:
    """Decode a request body; `BadRequest` says what is wrong with it. An empty body is `{}`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        pass  # valid JSON in a form that only the slow way knows, or a bad request: see below
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if body and not body.isspace():
            raise BadRequest(f"the body is not valid JSON: {error}") from None
        body = b"{}"
    try:
        tidied = _tidied(msgspec.json.decode(body), decoder.type)
        return decoder.decode(msgspec.json.encode(tidied))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the request cannot be understood: {error}") from None


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
        tidied[name] = value if part is None else _tidied(value, part)
    return tidied


def enum_value(given: Enum, names: tuple[str, ...], label: str) -> int:
    """The number of an enum given by name or number; `BadRequest` if it has no such value."""
    if isinstance(given, str):
        if given in names:
            return names.index(given)
        if given.isdecimal():
            given = int(given)
    if isinstance(given, int) and 0 <= given < len(names):
        return given
    raise BadRequest(f"{label} = {given!r} is not one of {', '.join(names)}")

"""Results of the keyspace as text: etcdctl's simple lines, its `fields`, a table, or JSON.

The functions are pure: a result goes in, bytes (keys need not be text) or a document come out. The
simple form is etcdctl's, so that what reads its output reads ours; docs/cli.md names what differs.

JSON documents have names of their own, the same for every command: `key` and `value` are text, or
null where the bytes are not UTF-8; `key_base64` and `value_base64` are always there; `lease` is the
hexadecimal id, or null.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from raftkv.kv.commands import (
    DeleteRangeResult,
    Event,
    KeyValue,
    OperationResult,
    PutResult,
    RangeResult,
    TxnResult,
)

from .quoting import hex_escaped, quote, shown
from .requests import lease_text

__all__ = [
    "PAIR_HEADINGS",
    "Style",
    "event_document",
    "event_text",
    "fields_text",
    "pair_cells",
    "pair_document",
    "pairs_of",
    "result_document",
    "result_text",
    "text_or_none",
]

PAIR_HEADINGS = ("KEY", "VALUE", "CREATE", "MOD", "VERSION", "LEASE")


class Style(NamedTuple):
    """How the simple form prints keys and values."""

    hexed: bool = False
    value_only: bool = False
    keys_only: bool = False
    count_only: bool = False
    #: No line ends either.
    raw: bool = False


def _bytes(data: bytes, style: Style) -> bytes:
    return hex_escaped(data).encode() if style.hexed else data


def _pair(kv: KeyValue, style: Style) -> bytes:
    lines = []
    if not style.value_only:
        lines.append(_bytes(kv.key, style))
    if not style.keys_only:
        lines.append(_bytes(kv.value, style))
    return b"".join(line if style.raw else line + b"\n" for line in lines)


def result_text(result: OperationResult, style: Style = Style()) -> bytes:
    """The simple form."""
    if isinstance(result, PutResult):
        return b"OK\n" + (b"" if result.prev is None else _pair(result.prev, style))
    if isinstance(result, DeleteRangeResult):
        return b"%d\n" % result.deleted + b"".join(_pair(kv, style) for kv in result.prev)
    if isinstance(result, RangeResult):
        if style.count_only or (not result.kvs and result.count):
            return b"%d\n" % result.count
        return b"".join(_pair(kv, style) for kv in result.kvs)
    heading = b"SUCCESS\n" if result.succeeded else b"FAILURE\n"
    return heading + b"".join(b"\n" + result_text(part, style) for part in result.results)


def event_text(event: Event, style: Style = Style()) -> bytes:
    """An event of a watch in the simple form: what, the pair before if it is known, the pair."""
    before = b"" if event.prev is None else _pair(event.prev, style)
    return _kind(event).encode() + b"\n" + before + _pair(event.kv, style)


def _kind(event: Event) -> str:
    return "PUT" if event.kv.version else "DELETE"


# ---- fields -------------------------------------------------------------------------------------


def fields_text(result: OperationResult | Event, revision: int | None = None) -> str:
    """etcdctl's `fields`: a line `"Name" : value` for each field."""
    return "".join(f'"{name}" : {value}\n' for name, value in _fields(result, revision))


def _fields(
    result: OperationResult | Event, revision: int | None
) -> Iterable[tuple[str, str | int]]:
    if isinstance(result, Event):
        yield "Revision", revision or result.kv.mod_revision
        yield "Type", quote(_kind(result).encode())
        if result.prev is not None:
            yield from _pair_fields(result.prev, "Prev")
        yield from _pair_fields(result.kv)
        return
    yield "Revision", result.revision
    if isinstance(result, PutResult):
        if result.prev is not None:
            yield from _pair_fields(result.prev, "Prev")
    elif isinstance(result, DeleteRangeResult):
        yield "Deleted", result.deleted
        for kv in result.prev:
            yield from _pair_fields(kv, "Prev")
    elif isinstance(result, RangeResult):
        for kv in result.kvs:
            yield from _pair_fields(kv)
        yield "More", "true" if result.more else "false"
        yield "Count", result.count
    else:
        yield "Succeeded", "true" if result.succeeded else "false"
        for part in result.results:
            yield from _fields(part, None)


def _pair_fields(kv: KeyValue, prefix: str = "") -> Iterable[tuple[str, str | int]]:
    yield f"{prefix}Key", quote(kv.key)
    yield f"{prefix}CreateRevision", kv.create_revision
    yield f"{prefix}ModRevision", kv.mod_revision
    yield f"{prefix}Version", kv.version
    yield f"{prefix}Value", quote(kv.value)
    yield f"{prefix}Lease", kv.lease


# ---- tables -------------------------------------------------------------------------------------


def pair_cells(kv: KeyValue, style: Style = Style()) -> tuple[str, ...]:
    """The cells of a pair below `PAIR_HEADINGS`."""
    form = hex_escaped if style.hexed else shown
    return (
        form(kv.key),
        form(kv.value),
        str(kv.create_revision),
        str(kv.mod_revision),
        str(kv.version),
        lease_text(kv.lease) if kv.lease else "-",
    )


def pairs_of(result: OperationResult) -> Sequence[KeyValue]:
    """The pairs that a result has, for a table; a transaction's in order."""
    if isinstance(result, RangeResult):
        return result.kvs
    if isinstance(result, DeleteRangeResult):
        return result.prev
    if isinstance(result, PutResult):
        return () if result.prev is None else (result.prev,)
    return [kv for part in result.results for kv in pairs_of(part)]


# ---- JSON ---------------------------------------------------------------------------------------


def text_or_none(data: bytes) -> str | None:
    """The bytes as text, if they are UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def pair_document(kv: KeyValue) -> dict[str, Any]:
    """A pair."""
    return {
        "key": text_or_none(kv.key),
        "value": text_or_none(kv.value),
        "key_base64": kv.key,
        "value_base64": kv.value,
        "create_revision": kv.create_revision,
        "mod_revision": kv.mod_revision,
        "version": kv.version,
        "lease": lease_text(kv.lease) if kv.lease else None,
    }


def result_document(result: OperationResult, *, prev_kv: bool = False) -> dict[str, Any]:
    """A result. `prev_kv` says whether what was before had been asked for."""
    if isinstance(result, PutResult):
        document: dict[str, Any] = {"revision": result.revision}
        if prev_kv:
            document["prev"] = None if result.prev is None else pair_document(result.prev)
        return document
    if isinstance(result, DeleteRangeResult):
        document = {"deleted": result.deleted, "revision": result.revision}
        if prev_kv:
            document["prev"] = [pair_document(kv) for kv in result.prev]
        return document
    if isinstance(result, RangeResult):
        return {
            "revision": result.revision,
            "count": result.count,
            "more": result.more,
            "kvs": [pair_document(kv) for kv in result.kvs],
        }
    return _txn_document(result)


def _txn_document(result: TxnResult) -> dict[str, Any]:
    responses = []
    for part in result.results:
        match part:
            case PutResult():
                verb, asked = "put", part.prev is not None
            case DeleteRangeResult():
                verb, asked = "del", bool(part.prev)
            case RangeResult():
                verb, asked = "get", False
            case TxnResult():
                verb, asked = "txn", False
        responses.append({verb: result_document(part, prev_kv=asked)})
    return {"revision": result.revision, "succeeded": result.succeeded, "responses": responses}


def event_document(event: Event) -> dict[str, Any]:
    """An event of a watch. A deletion has the key, and the revision that deleted it."""
    return {
        "type": _kind(event),
        "revision": event.kv.mod_revision,
        "kv": pair_document(event.kv),
        "prev": None if event.prev is None else pair_document(event.prev),
    }

"""Reading ranges of keys: the same for commands in the log and for reads beside it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from raftkv.plugin import TableView

from .commands import FROM_KEY, KeyValue, RangeOp, RangeResult

__all__ = ["read_range", "scan_range"]

Keys = TableView[bytes, KeyValue]


def scan_range(
    keys: Keys, key: bytes, range_end: bytes, limit: int = 0
) -> Iterator[tuple[bytes, KeyValue]]:
    """The rows of a range in etcd's notation, in key order; at most `limit`, 0 for all."""
    if not range_end:
        found = keys.get(key)
        return iter(() if found is None else ((key, found),))
    return keys.scan(key, None if range_end == FROM_KEY else range_end, limit=limit)


def read_range(keys: Keys, operation: RangeOp, revision: int) -> RangeResult:
    """Answer a range read from the rows as they are, at `revision`."""
    key, range_end, limit = operation.key, operation.range_end, operation.limit
    if not range_end:
        count = 1 if key in keys else 0
    else:
        count = keys.count(key, None if range_end == FROM_KEY else range_end)
    if operation.count_only:
        return RangeResult(revision, (), count, False)
    kvs = tuple(kv for _, kv in scan_range(keys, key, range_end, limit))
    if operation.keys_only:
        kvs = tuple(msgspec.structs.replace(kv, value=b"") for kv in kvs)
    return RangeResult(revision, kvs, count, count > len(kvs))

"""Ranges of keys in etcd's notation: which keys lie in one, and how a read of one is answered.

The same for commands in the log and for reads beside it, for rows as they are and for rows as they
were: `shaped` takes whatever gives the keys in order.

The order of the steps is etcd's. `count` is taken first, of all keys in the range. Then the filters
by revision leave keys out, then they are sorted, then the limit cuts, and `more` tells whether it
has cut anything. Without filters and in key order the limit is given to the scan instead, which
then reads no further. Keys that are equal in what is sorted by stand in key order, also when the
rest is descending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, itemgetter
from typing import Any, Final

from raftkv.plugin import TableView

from .commands import FROM_KEY, KeyValue, RangeOp, RangeResult

__all__ = [
    "KV_OF",
    "Keys",
    "bare",
    "count_range",
    "in_range",
    "passes",
    "read_range",
    "reads_all",
    "scan_range",
    "shaped",
    "sort_key",
]

Keys = TableView[bytes, KeyValue]

#: Of a row, its `KeyValue`. Comparing and sorting very many rows is done without a line of Python
#: for each: it is the longest work that one command has.
KV_OF: Final[Callable[[tuple[bytes, KeyValue]], KeyValue]] = itemgetter(1)

_SORT_KEYS: Final[dict[str, Callable[[KeyValue], Any]]] = {
    "key": attrgetter("key"),
    "version": attrgetter("version"),
    "create": attrgetter("create_revision"),
    "mod": attrgetter("mod_revision"),
    "value": attrgetter("value"),
}


def in_range(name: bytes, key: bytes, range_end: bytes) -> bool:
    """Whether the key `name` lies in the range (key, range_end)."""
    if not range_end:
        return name == key
    return name >= key and (range_end == FROM_KEY or name < range_end)


def scan_range(
    keys: Keys, key: bytes, range_end: bytes, limit: int = 0
) -> Iterator[tuple[bytes, KeyValue]]:
    """The rows of a range, in key order; at most `limit`, 0 for all."""
    if not range_end:
        found = keys.get(key)
        return iter(() if found is None else ((key, found),))
    return keys.scan(key, None if range_end == FROM_KEY else range_end, limit=limit)


def count_range(keys: Keys, key: bytes, range_end: bytes) -> int:
    """How many keys lie in a range, found without reading them."""
    if not range_end:
        return 1 if key in keys else 0
    return keys.count(key, None if range_end == FROM_KEY else range_end)


def reads_all(operation: RangeOp) -> bool:
    """Whether the whole range has to be read before the limit can be applied."""
    return (
        operation.sort_by != "key"
        or operation.descending
        or operation.min_mod_revision != 0
        or operation.max_mod_revision != 0
        or operation.min_create_revision != 0
        or operation.max_create_revision != 0
    )


def read_range(keys: Keys, operation: RangeOp, revision: int) -> RangeResult:
    """Answer a read from the rows as they are, at `revision`."""
    key, range_end = operation.key, operation.range_end

    def scan(limit: int) -> Iterable[KeyValue]:
        if not range_end:
            return map(KV_OF, scan_range(keys, key, range_end))
        return keys.values(key, None if range_end == FROM_KEY else range_end, limit=limit)

    return shaped(operation, revision, count_range(keys, key, range_end), scan)


def shaped(
    operation: RangeOp, revision: int, count: int, scan: Callable[[int], Iterable[KeyValue]]
) -> RangeResult:
    """The answer to a read: `scan(limit)` gives the keys of the range in order, 0 is no limit."""
    if operation.count_only:
        return RangeResult(revision, (), count, False)
    limit = max(operation.limit, 0)
    if reads_all(operation):
        chosen = _sorted(operation, _passing(operation, scan(0)))
        more = 0 < limit < len(chosen)
        kvs = tuple(chosen[:limit] if limit else chosen)
    else:
        kvs = tuple(scan(limit))
        more = count > len(kvs)
    if operation.keys_only:
        kvs = tuple(bare(kv) for kv in kvs)
    return RangeResult(revision, kvs, count, more)


def passes(operation: RangeOp, kv: KeyValue) -> bool:
    """Whether the filters by revision leave a key in."""
    bounds = (
        (operation.min_mod_revision, operation.max_mod_revision, kv.mod_revision),
        (operation.min_create_revision, operation.max_create_revision, kv.create_revision),
    )
    for lowest, highest, actual in bounds:
        if (lowest and actual < lowest) or (highest and actual > highest):
            return False
    return True


def _passing(operation: RangeOp, kvs: Iterable[KeyValue]) -> list[KeyValue]:
    if (
        operation.min_mod_revision
        or operation.max_mod_revision
        or operation.min_create_revision
        or operation.max_create_revision
    ):
        return [kv for kv in kvs if passes(operation, kv)]
    return list(kvs)


def sort_key(operation: RangeOp) -> Callable[[KeyValue], Any]:
    """What the answer is sorted by."""
    return _SORT_KEYS[operation.sort_by]


def bare(kv: KeyValue) -> KeyValue:
    """A key without its value."""
    return KeyValue(kv.key, b"", kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def _sorted(operation: RangeOp, kvs: list[KeyValue]) -> list[KeyValue]:
    if operation.sort_by != "key" or operation.descending:
        # Stable, also in reverse: `reverse` keeps the order of equal ones.
        kvs.sort(key=sort_key(operation), reverse=operation.descending)
    return kvs

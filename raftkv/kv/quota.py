"""What the keyspace counts against its quota, and which commands add to it.

    a key       its bytes, those of its value, and ROW_BYTES
    the history behind the compacted revision: as `history_bytes_max` counts it
    a lease     LEASE_BYTES, and for each key that is attached its bytes and LEASE_BYTES

A `Put` is modest: what it overwrites moves from the keys into the history, so it is counted once
more at most; what it sets is counted in both, each with ROW_BYTES and its own bytes, for an
encoding of about 20 bytes beside them. (A put with options is not: it can keep a value that is not
in its encoding, and the history gets that twice each time.)

Compacting lowers the count at once, although the rows are freed bit by bit (compaction.py). As in
etcd a deletion alone gives little room: what was deleted is in the history until that is compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from raftkv.plugin import Quota, TableView

from .commands import Attached, Grant, KeyValue, LeaseRow, Put, PutOp, PutWith, Txn
from .history import EVENT_BYTES, FIRST_REVISION, row_bytes

__all__ = ["LEASE_BYTES", "QUOTA", "ROW_BYTES"]

#: What a key counts besides its own bytes and its value: about what Python needs for it.
ROW_BYTES: Final = EVENT_BYTES
#: What a lease counts, and a key that is attached to it besides the key's own bytes.
LEASE_BYTES: Final = 128

_ADDING: Final = frozenset({Put, PutWith, Grant})


def _key(key: bytes, row: KeyValue) -> int:
    return ROW_BYTES + len(key) + len(row.value)


def _lease(key: int, row: LeaseRow) -> int:
    return LEASE_BYTES


def _attached(key: tuple[int, bytes], row: Attached) -> int:
    return LEASE_BYTES + len(key[1])


def _history(table: Callable[[str], TableView[Any, Any]]) -> int:
    meta, history = table("meta"), table("history")
    last = history.get(meta.get("revision", FIRST_REVISION))
    if last is None:
        return 0
    size: int = last.bytes_before + row_bytes(last)
    number: int | None = meta.get("compacted")
    compacted = None if number is None else history.get(number)
    if number is not None and compacted is not None:
        # Its own row stays until the next compaction. It does not count: after a deletion of all
        # keys in one revision, and a compaction up to that, there has to be room again.
        # Counted by the row behind it: of a revision that deleted all keys it would take as long.
        behind = history.get(number + 1)
        size -= (
            compacted.bytes_before + row_bytes(compacted) if behind is None else behind.bytes_before
        )
    return size


def _adds(command: Any) -> bool:
    kind = type(command)
    if kind is Txn:
        nested = (branch for inner in command.nested for branch in (inner.success, inner.failure))
        return any(_has_put(branch) for branch in (command.success, command.failure, *nested))
    return kind in _ADDING


def _has_put(operations: Iterable[Any]) -> bool:
    return any(type(operation) is PutOp for operation in operations)


#: As etcd's: 2 GiB.
QUOTA: Final = Quota(
    sizes={"keys": _key, "leases": _lease, "attached": _attached},
    adds=_adds,
    derived=_history,
    modest=frozenset({Put}),
)

"""What the commands of the keyspace cost, in rows (raftkv/state/costs.py): the estimate before.

A put is worth its size. What the others may look at is counted in the tables as they are now,
without reading a row: a few bisections for each range. A leader makes the estimate at once, so
there are as many ranges at most as a transaction may have: one that has more is refused unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from raftkv.errors import Refused
from raftkv.plugin import TableView, View

from .commands import (
    Compact,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    Expire,
    FlatTxn,
    LogOperation,
    NestedTxn,
    PutOp,
    RangeOp,
    Revoke,
    Txn,
)
from .compaction import COMPACT_ROWS_MAX
from .history import revision_of
from .ranges import Keys, count_range, reads_all
from .transactions import too_many

__all__ = ["COSTLY", "EXPIRE_LEASES_MAX", "estimated"]

#: The commands that may cost more than their size.
COSTLY: Final = (DeleteRange, Txn, Compact, Revoke, Expire)
#: Leases that one `Expire` ends at most: the rest is for the next one.
EXPIRE_LEASES_MAX: Final = 1000


def estimated(command: Any, tables: View) -> int:
    """The rows that a command of COSTLY may look at or change, beyond its size.

    Of a transaction each part, inner ones too, counts its comparisons and the dearer branch.
    """
    keys: Keys = tables.table("keys")
    if isinstance(command, DeleteRange):
        return count_range(keys, command.key, command.range_end)
    if isinstance(command, Txn):
        if _is_refused(command, tables.settings["txn_ops_max"]):
            return 0
        newest = revision_of(tables)
        parts: tuple[Txn | FlatTxn, ...] = (command, *command.nested)
        return sum(_of_part(part, keys, newest) for part in parts)
    if isinstance(command, Compact):
        return min(len(tables.table("history")), COMPACT_ROWS_MAX)
    leases = tables.table("leases")
    if isinstance(command, Revoke):
        return _attached(leases, (command.id,))
    assert isinstance(command, Expire)
    return _attached(leases, command.ids)


def _is_refused(txn: Txn, ops_max: int) -> bool:
    """Whether `apply` refuses the transaction before it looks at anything."""
    try:
        return too_many(txn, ops_max) is not None
    except Refused:
        return True


def _of_part(part: Txn | FlatTxn, keys: Keys, newest: int) -> int:
    compared = sum(_of_compare(compare, keys) for compare in part.compare)
    return compared + max(
        _of_branch(part.success, keys, newest), _of_branch(part.failure, keys, newest)
    )


def _of_compare(compare: Compare, keys: Keys) -> int:
    return count_range(keys, compare.key, compare.range_end) if compare.range_end else 1


def _of_branch(operations: Sequence[LogOperation], keys: Keys, newest: int) -> int:
    rows = 0
    for operation in operations:
        if isinstance(operation, PutOp):
            rows += 1
        elif isinstance(operation, DeleteRangeOp):
            rows += count_range(keys, operation.key, operation.range_end)
        elif isinstance(operation, RangeOp):
            rows += _of_range(operation, keys, newest)
        else:
            assert isinstance(operation, NestedTxn)  # counted by itself
    return rows


def _of_range(operation: RangeOp, keys: Keys, newest: int) -> int:
    past = newest - operation.revision if 0 < operation.revision < newest else 0
    if operation.count_only and not past:
        return 0
    rows = count_range(keys, operation.key, operation.range_end)
    if past or reads_all(operation) or operation.limit <= 0:
        return past + rows
    return min(operation.limit, rows)


def _attached(leases: TableView[int, Any], ids: Sequence[int]) -> int:
    rows = (leases.get(id) for id in islice(ids, EXPIRE_LEASES_MAX))
    return sum(1 + row.keys for row in rows if row is not None)

"""What a transaction that writes may look at: counted before the work, the same on every node.

A small request can ask for much: a comparison of a range looks at each of its keys, and a read as
of an old revision at all that has changed since. Every node applies it in one go, so its work needs
a bound. That is `rows_max` rows, a setting of the cluster, and ROW_BYTES for each of these rows.
A transaction that would look at more is refused (`TxnTooCostly`) and changes nothing.

What counts, from format FORMAT_COST of the commands on:

    a comparison             the keys of its range; of values also the bytes that are compared
    a range                  the keys it reads, all of the range if it is sorted or filtered
      sorted by value        also the bytes that sorting may compare
      as of a former revision  also each change since, with the bytes of its key

What only the size of a request or the keys that it deletes can make large does not count: puts, and
deletions, which are possible at any size. The formats before count these too, refuse in the words
of `LimitExceeded`, and know neither bytes nor that one revision can have many changes.

Rules of this file
1. First count, then look: comparisons count as they are made, before anything else is done, and
   all ranges of the chosen branches count before the first operation is. Only then does a refusal
   cost no more than the limit, for deletions that were done and undone would not count.
2. What a range will find after the operations before it is not known yet. It counts with the keys
   that are there before the transaction, and one for each put before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from raftkv.plugin import Context, TableView

from .commands import (
    DeleteRangeOp,
    KeyValue,
    LimitExceeded,
    LogOperation,
    PutOp,
    RangeOp,
    TxnTooCostly,
    events_of,
)
from .history import Tables, revision_of
from .ranges import Keys, count_range, reads_all, scan_range

__all__ = ["FORMAT_COST", "ROW_BYTES", "Budget", "compared_values", "reserve", "reserve_changes"]

#: The first format of the commands that counts like this.
FORMAT_COST: Final = 4
#: The bytes that may be compared for each row of the limit; as many take about as long as a row.
ROW_BYTES: Final = 4096


class Budget:
    """What is left. `charge` is notified of the rows that are going to be looked at."""

    def __init__(self, rows_max: int, charge: Callable[[int], None]) -> None:
        self.rows_max = rows_max
        self._rows_left = rows_max
        self._bytes = 0
        self._charge = charge

    def rows(self, count: int) -> None:
        """Take rows that are about to be looked at. Raises TxnTooCostly."""
        if count > self._rows_left:
            raise self._exceeded("rows")
        self._rows_left -= count
        self._charge(count)

    def bytes(self, size: int) -> None:
        """Take bytes that are about to be compared. Raises TxnTooCostly."""
        before, after = self._bytes, self._bytes + size
        if after > self.rows_max * ROW_BYTES:
            raise self._exceeded("bytes")
        self._bytes = after
        self._charge(after // ROW_BYTES - before // ROW_BYTES)

    def _exceeded(self, what: str) -> TxnTooCostly:
        limit = self.rows_max if what == "rows" else self.rows_max * ROW_BYTES
        return TxnTooCostly(
            f"the comparisons and ranges of the transaction look at more than {limit} {what} "
            f"(kv.rows_max = {self.rows_max}): read first, then compare mod revisions of single "
            f"keys; or use smaller ranges and a limit; or raise it (PUT /v1/kv/settings/rows_max)",
            self.rows_max,
        )


def compared_values(kvs: Iterable[KeyValue], operand: bytes, budget: Budget) -> Iterator[KeyValue]:
    """The keys, the bytes counted that comparing each one's value with `operand` may look at."""
    size = len(operand)
    for kv in kvs:
        budget.bytes(min(size, len(kv.value)))
        yield kv


def reserve(operations: Sequence[LogOperation], ctx: Context, budget: Budget) -> int:
    """Count all ranges of a transaction, and return how many keys it may delete.

    `operations` are those of the chosen branches, in order. Raises TxnTooCostly.
    """
    keys: Keys = ctx.table("keys")
    puts: list[PutOp] = []
    deleted = 0
    for operation in operations:
        if isinstance(operation, PutOp):
            puts.append(operation)
        elif isinstance(operation, DeleteRangeOp):
            deleted += count_range(keys, operation.key, operation.range_end)
        elif isinstance(operation, RangeOp):
            _reserve_range(operation, ctx, budget, puts, deleted)
    return deleted


def _reserve_range(
    operation: RangeOp, ctx: Context, budget: Budget, puts: Sequence[PutOp], deleted: int
) -> None:
    if operation.limit < 0:
        raise LimitExceeded.of("limit", operation.limit)
    keys: Keys = ctx.table("keys")
    count = count_range(keys, operation.key, operation.range_end) + len(puts)
    if not operation.range_end:
        count = min(count, 1)
    begin, changed = revision_of(ctx), len(puts) + deleted
    past = 0 < operation.revision < begin + (1 if changed else 0)
    values = 0
    if past:
        budget.rows(changed)
        values = reserve_changes(ctx, operation.revision, begin, budget)
        budget.rows(count)
    elif operation.count_only:
        return
    elif reads_all(operation) or not operation.limit:
        budget.rows(count)
    else:
        budget.rows(min(operation.limit, count))
    if operation.sort_by == "value" and not operation.count_only:
        values += sum(len(put.value) for put in puts)
        _reserve_sorting(operation, keys, count, values, budget)


def reserve_changes(tables: Tables, after: int, newest: int, budget: Budget) -> int:
    """Count what has changed since the revision `after`; the bytes of the values before."""
    history: TableView[int, Any] = tables.table("history")
    values = 0
    for number in range(after + 1, newest + 1):
        row = history[number]
        budget.rows(1 + len(row.more))
        for event in events_of(row):
            budget.bytes(len(event.kv.key))
            values += 0 if event.prev is None else len(event.prev.value)
    return values


def _reserve_sorting(
    operation: RangeOp, keys: Keys, count: int, values: int, budget: Budget
) -> None:
    """Count the bytes that sorting `count` keys by their values may compare, at worst."""
    for _, kv in scan_range(keys, operation.key, operation.range_end):
        values += len(kv.value)
    budget.bytes(values * count.bit_length())

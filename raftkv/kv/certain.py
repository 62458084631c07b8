"""Transactions with large deletions: nothing may refuse them once they have begun.

Deletions have no limit, so that any number of keys can go in one revision. Deleted keys were put
before, which pays for the work; but if a later operation refuses the transaction, for a result that
is too large say, all of it is undone, and the same small request may come again, for ever. So if
the deletions exceed `rows_max`, what could be refused in the middle is looked for beforehand, with
upper bounds: what an operation gives back counts as the keys are before the transaction, with all
values that it puts. A transaction that exceeds a limit by these bounds is refused (`TxnTooCostly`,
`LimitExceeded`), also if exactly counted it would not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raftkv.plugin import Context

from .changing import check_sizes
from .commands import (
    DeleteRangeOp,
    KeyValue,
    LimitExceeded,
    LogOperation,
    PutOp,
    RangeOp,
    TxnTooCostly,
)
from .history import revision_of, row_bytes
from .leasing import require_lease
from .ranges import Keys, reads_all, scan_range

__all__ = ["require_certain"]


def require_certain(operations: Sequence[LogOperation], ctx: Context) -> None:
    """Raise what an operation could raise after a deletion. They are of the chosen branches."""
    puts = [operation for operation in operations if isinstance(operation, PutOp)]
    _check_puts(puts, ctx)
    room: int = ctx.settings["result_bytes_max"]
    put_bytes = sum(len(put.key) + len(put.value) for put in puts)
    for operation in operations:
        for size in _answer_sizes(operation, ctx, put_bytes):
            room -= size
            if room < 0:
                raise TxnTooCostly(
                    f"the transaction deletes more than kv.rows_max = {ctx.settings['rows_max']} "
                    f"keys, and its other operations may give back more than "
                    f"kv.result_bytes_max = {ctx.settings['result_bytes_max']}: delete in a "
                    f"transaction that reads less, or read before it",
                    ctx.settings["rows_max"],
                )


def _answer_sizes(operation: LogOperation, ctx: Context, put_bytes: int) -> Iterator[int]:
    """Bytes that an operation may give back, row by row, at most."""
    keys: Keys = ctx.table("keys")
    if isinstance(operation, PutOp):
        old = keys.get(operation.key) if operation.prev_kv else None
        if old is not None:
            yield _size(old)
    elif isinstance(operation, DeleteRangeOp):
        if operation.prev_kv:
            yield put_bytes
            for _, kv in scan_range(keys, operation.key, operation.range_end):
                yield _size(kv)
    elif isinstance(operation, RangeOp) and not operation.count_only:
        yield from _range_sizes(operation, ctx, put_bytes)


def _range_sizes(operation: RangeOp, ctx: Context, put_bytes: int) -> Iterator[int]:
    yield put_bytes
    if 0 < operation.revision < revision_of(ctx):
        history = ctx.table("history")
        newest = history[revision_of(ctx)]
        before = history[operation.revision + 1].bytes_before
        yield newest.bytes_before + row_bytes(newest) - before
    limit = 0 if reads_all(operation) else operation.limit
    keys: Keys = ctx.table("keys")
    for _, kv in scan_range(keys, operation.key, operation.range_end, limit):
        yield len(kv.key) if operation.keys_only else _size(kv)


def _check_puts(puts: Sequence[PutOp], ctx: Context) -> None:
    """Sizes, and places among the keys of a lease, of which deletions may yet free some."""
    keys: Keys = ctx.table("keys")
    attached: dict[int, int] = {}
    for put in puts:
        old = keys.get(put.key)
        value = old.value if put.ignore_value and old is not None else put.value
        check_sizes(put.key, value, ctx)
        if put.lease and (old is None or old.lease != put.lease):
            attached[put.lease] = attached.get(put.lease, 0) + 1
    limit = ctx.settings["lease_keys_max"]
    for id, count in attached.items():
        if require_lease(ctx, id).keys + count > limit:
            raise LimitExceeded.of("lease_keys_max/txn", id, limit)


def _size(kv: KeyValue) -> int:
    return len(kv.key) + len(kv.value)

"""The two most frequent commands, written out: a put, and a put that compares its key first.

`Changing` does what any command may ask for, in small steps that can be read one by one; for the
plain cases most of these steps find nothing to do, and cost three times what the change itself
costs. So these cases are recognized here and done in one go.

Rules of this file
1. What is written and answered is the same, to the byte, as `Changing` and `apply_txn` would write
   and answer: a cluster may run nodes with and without this file. tests/kv/test_plain.py compares.
2. Whatever is not plain is left to them: options, leases to attach, ranges, sizes above the lowest
   limit that can be set, and everything that is to be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, eq, gt, lt, ne
from typing import Any, Final

from raftkv.plugin import Context

from .changing import FORMAT_LEASES, LIMIT_MIN
from .commands import Event, KeyValue, PutOp, PutResult, Revision, Txn, TxnOutcome
from .compaction import TRIM_BYTES, TRIM_REVISIONS, trim
from .history import EVENT_BYTES, FIRST_REVISION, event_bytes, record
from .leasing import detach

__all__ = ["OPERATORS", "TARGETS", "put", "swap"]

_TRIM_MASK: Final = TRIM_REVISIONS - 1
# The row that a put has written last, in any machine, and the bytes of its keys and values: the
# next one needs them. They follow from the row alone, so it does not matter whose it is. Machines
# of several threads share it, so both are read and written as one object.
_newest: Final[list[tuple[Any, int]]] = [(None, 0)]
# A comparison and a put each touch a key.
_ROWS: Final = 2

#: What a comparison looks at.
TARGETS: Final[dict[str, Callable[[KeyValue], Any]]] = {
    "value": attrgetter("value"),
    "version": attrgetter("version"),
    "create": attrgetter("create_revision"),
    "mod": attrgetter("mod_revision"),
    "lease": attrgetter("lease"),
}
OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {"=": eq, "!=": ne, ">": gt, "<": lt}


def put(key: bytes, value: bytes, ctx: Context) -> tuple[int, KeyValue | None]:
    """Set a key, whose size has been checked; its revision and what was there before."""
    table = ctx.table
    meta, keys = table("meta"), table("keys")
    known = meta.get("revision")
    before = FIRST_REVISION if known is None else known
    revision = before + 1
    old = keys.get(key)
    if old is None:
        new = KeyValue(key, value, revision, revision, 1)
        keys.put(key, new)
        size = len(key) + len(value)
    else:
        if old.lease:
            detach(ctx, old.lease, key)
        size = 2 * len(key) + len(value) + len(old.value)
        # The row's own key: its versions then share one.
        new = KeyValue(old.key, value, old.create_revision, revision, old.version + 1)
        keys.replace(key, old, new)
    if known is None:
        meta.put("revision", revision)
    else:
        meta.replace("revision", known, revision)
    if ctx.version >= FORMAT_LEASES:
        history = table("history")
        last = history.get(before)
        if last is None or last.more:
            record(history, meta, revision, (Event(new, old),))
        else:
            # As `record` does it, without the calls.
            newest, newest_size = _newest[0]
            if newest is last:
                bytes_before = last.bytes_before + EVENT_BYTES + newest_size
            else:
                bytes_before = last.bytes_before + event_bytes(last.kv, last.prev)
            row = Revision(new, old, bytes_before)
            history.put(revision, row)
            _newest[0] = row, size
        if not revision & _TRIM_MASK or size > TRIM_BYTES - EVENT_BYTES:
            trim(ctx, revision)
    return revision, old


def swap(txn: Txn, ctx: Context) -> TxnOutcome | None:
    """Compare one key and put it. None: the transaction is not that plain, nothing was done."""
    if len(txn.compare) != 1 or len(txn.success) != 1 or txn.failure or txn.nested:
        return None
    compare, operation = txn.compare[0], txn.success[0]
    key = compare.key
    if (
        type(operation) is not PutOp
        or operation.key != key
        or not key
        or len(key) + len(operation.value) > LIMIT_MIN
        or operation.lease
        or operation.ignore_value
        or operation.ignore_lease
        or compare.range_end
        or type(compare.operand) is not (bytes if compare.target == "value" else int)
        or ctx.settings["rows_max"] < _ROWS
    ):
        return None
    old = ctx.table("keys").get(key)
    holds = OPERATORS[compare.op]
    if old is None:
        succeeded = compare.target != "value" and holds(0, compare.operand)
    else:
        if operation.prev_kv and len(key) + len(old.value) > LIMIT_MIN:
            return None  # it may be too large to be given back
        succeeded = holds(TARGETS[compare.target](old), compare.operand)
    if not succeeded:
        return TxnOutcome(ctx.table("meta").get("revision", FIRST_REVISION), False, ())
    revision, old = put(key, operation.value, ctx)
    return TxnOutcome(revision, True, (PutResult(revision, old if operation.prev_kv else None),))

"""What one command does to the keyspace: several operations in one revision, within the limits.

Rules of this file
1. A command that changes something takes exactly one revision, whatever it changes; one that does
   not, takes none.
2. Each change leaves an event, and `finish` writes them as one row of the history. Under format 1
   of the commands there is no history.
3. What a transaction may look at (budget.py) and what a command may give back (bytes) is limited.
   Before FORMAT_COST puts and deletions count as well. Revoking a lease is exempt: it must always
   be possible, and is bounded by `lease_keys_max`.

`Put` without options goes its own, shorter way (keyspace.py), which must do the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from raftkv.plugin import Context, Steps, Table, at_once

from .budget import FORMAT_COST, Budget, compared_values
from .commands import (
    Compare,
    DeleteRange,
    DeleteRangeOp,
    DeleteRangeResult,
    EmptyKey,
    Event,
    FlatTxn,
    KeyNotFound,
    KeyValue,
    LeaseGiven,
    LimitExceeded,
    LogOperation,
    PutOp,
    PutResult,
    PutWith,
    RangeOp,
    RangeResult,
    Txn,
    ValueGiven,
)
from .compaction import TRIM_BYTES, TRIM_REVISIONS, trim
from .history import ALL_EVENTS, FIRST_REVISION, Past, event_bytes, record, require_readable
from .leasing import attach, detach, forget, keys_of, require_lease
from .ranges import KV_OF, count_range, read_range, reads_all, scan_range

__all__ = ["FORMAT_LEASES", "LIMIT_MIN", "Changing", "check_ignored", "check_sizes", "require_key"]

KIB: Final = 1024
#: A key and value of together this size pass without a look at the settings: no limit is lower.
LIMIT_MIN: Final = KIB
#: Keys that a deletion looks at, or deletes, before it may be left: about 2 ms.
SLICE_KEYS: Final = 1_000
#: Events that are summed up before it may be left: about 2 ms.
SLICE_EVENTS: Final = 8_000
#: The command format that has leases, a history, and everything else that 0.1.0 did not have.
FORMAT_LEASES: Final = 2


def require_key(key: bytes) -> None:
    """Raise EmptyKey for an empty one."""
    if not key:
        raise EmptyKey("the key is empty; use b'\\0' with range_end b'\\0' for all keys")


def check_sizes(key: bytes, value: bytes, ctx: Context) -> None:
    """Raise LimitExceeded for a key or a value that is too large."""
    for what, data in (("key", key), ("value", value)):
        limit = ctx.settings[f"{what}_bytes_max"]
        if len(data) > limit:
            raise LimitExceeded.of(f"{what}_bytes_max", len(data), limit)


def check_ignored(put: PutOp | PutWith) -> None:
    """Raise ValueGiven or LeaseGiven for a put that both gives something and ignores it."""
    if put.ignore_value and put.value:
        raise ValueGiven("ignore_value keeps the value of the key: give none")
    if put.ignore_lease and put.lease:
        raise LeaseGiven("ignore_lease keeps the lease of the key: give none")


class Changing:
    """One command's work. Call `finish` once, at the end."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._keys: Table[bytes, KeyValue] = ctx.table("keys")
        self._meta: Table[str, int] = ctx.table("meta")
        #: Of the keyspace before the command.
        self.begin = self._meta.get("revision", FIRST_REVISION)
        #: Of the keyspace, as the operations so far leave it.
        self.revision = self.begin
        self._events: list[Event] = []
        #: What comparisons and ranges may still look at, from FORMAT_COST on.
        self.budget = Budget(ctx.settings["rows_max"], ctx.charge)
        self._counts_first = ctx.version >= FORMAT_COST
        self._rows_left = self.budget.rows_max
        self._bytes_left: int = ctx.settings["result_bytes_max"]

    def put(self, operation: PutWith | PutOp) -> PutResult:
        """Set a key. `check_ignored` comes before."""
        key, value, lease = operation.key, operation.value, operation.lease
        require_key(key)
        self._change(1)
        old = self._keys.get(key)
        if operation.ignore_value or operation.ignore_lease:
            old = self.require_present(key)
            value = old.value if operation.ignore_value else value
            lease = old.lease if operation.ignore_lease else lease
        if len(key) + len(value) > LIMIT_MIN:
            check_sizes(key, value, self._ctx)
        had = 0 if old is None else old.lease
        if lease != had:
            if had:
                detach(self._ctx, had, key)
            if lease:
                attach(self._ctx, lease, key)
        at = self.begin + 1
        if old is None:
            new = KeyValue(key, value, at, at, 1, lease)
        else:
            # The row's own key: its versions then share one.
            new = KeyValue(old.key, value, old.create_revision, at, old.version + 1, lease)
        self._keys.put(key, new)
        self._changed(new, old)
        return PutResult(at, self._given([old])[0] if operation.prev_kv else None)

    def delete(self, operation: DeleteRange | DeleteRangeOp) -> Steps[DeleteRangeResult]:
        """Delete a key, or those of a range, in slices of SLICE_KEYS."""
        require_key(operation.key)
        key, range_end = operation.key, operation.range_end
        self._change(count_range(self._keys, key, range_end))
        kvs: list[KeyValue] = []
        for _, kv in scan_range(self._keys, key, range_end):
            if operation.prev_kv:
                self._given((kv,))  # refused before anything is deleted
            kvs.append(kv)
            if len(kvs) % SLICE_KEYS == 0:
                yield
        for number, kv in enumerate(kvs, 1):
            self._delete(kv)
            if number % SLICE_KEYS == 0:
                yield
        return DeleteRangeResult(self.revision, len(kvs), tuple(kvs) if operation.prev_kv else ())

    def deletes_many(self, operations: Iterable[DeleteRange | LogOperation]) -> bool:
        """Whether the deletions among these, as the keys are now, are to be left in the middle."""
        keys, rows = self._keys, 0
        for operation in operations:
            if type(operation) is DeleteRangeOp or type(operation) is DeleteRange:
                rows += count_range(keys, operation.key, operation.range_end)
        return rows > SLICE_KEYS

    def takes_long(self, operations: Iterable[LogOperation]) -> bool:
        """The same of deletions and of ranges that are read."""
        keys, rows = self._keys, 0
        for operation in operations:
            if type(operation) is DeleteRangeOp:
                rows += count_range(keys, operation.key, operation.range_end)
            elif type(operation) is RangeOp and operation.range_end and not operation.count_only:
                count = count_range(keys, operation.key, operation.range_end)
                bounded = operation.limit > 0 and not reads_all(operation)
                rows += min(operation.limit, count) if bounded else count
        return rows > SLICE_KEYS

    def compares_many(self, txn: Txn) -> bool:
        """Whether the comparisons, as the keys are now, are to be left in the middle."""
        rows = 0
        parts: tuple[Txn | FlatTxn, ...] = (txn, *txn.nested)
        for part in parts:
            for compare in part.compare:
                if compare.range_end:
                    rows += count_range(self._keys, compare.key, compare.range_end)
        return rows > SLICE_KEYS

    def revoke(self, id: int) -> int:
        """End a lease, which must exist; the number of keys that are gone with it."""
        require_lease(self._ctx, id)
        keys = keys_of(self._ctx, id)
        self._ctx.charge(len(keys))
        for key in keys:
            self._remove(self._keys[key])
        forget(self._ctx, id, keys)
        return len(keys)

    def _delete(self, kv: KeyValue) -> None:
        if kv.lease:
            detach(self._ctx, kv.lease, kv.key)
        self._remove(kv)

    def _remove(self, kv: KeyValue) -> None:
        self._keys.delete(kv.key)
        self._changed(KeyValue(kv.key, b"", 0, self.begin + 1, 0), kv)

    def read(self, operation: RangeOp) -> RangeResult:
        """Read a range, as of `operation.revision`, which `require_revision` has let pass.

        From FORMAT_COST on it was counted before (`budget.reserve`).
        """
        require_key(operation.key)
        if operation.limit < 0:
            raise LimitExceeded.of("limit", operation.limit)
        if 0 < operation.revision < self.revision:
            found = self._read_past(operation)
        else:
            if not operation.count_only and not self._counts_first:
                limit = 0 if reads_all(operation) else operation.limit
                self._require_room(operation.key, operation.range_end, limit)
            found = read_range(self._keys, operation, self.revision)
        self._given(found.kvs)
        return found

    def _read_past(self, operation: RangeOp) -> RangeResult:
        if not self._counts_first:
            self._spend(self.begin - operation.revision)
            self._require_room(operation.key, operation.range_end, 0)
        past = Past(operation.key, operation.range_end, operation.revision)
        # What the history has of later revisions, then what this very command has done.
        past.catch_up(self._ctx, ALL_EVENTS)
        past.undo(self._events)
        return past.read(self._keys, operation, self.revision)

    def require_revision(self, operation: RangeOp) -> None:
        """Raise Compacted or FutureRevision. The answer must not depend on the operations before.

        As in etcd a revision below zero means the newest, but is refused once there was a
        compaction.
        """
        if operation.revision != 0:
            require_readable(self._ctx, operation.revision)

    def require_present(self, key: bytes) -> KeyValue:
        """The key, or KeyNotFound."""
        found = self._keys.get(key)
        if found is None:
            raise KeyNotFound(f"{key!r} does not exist: ignore_value and ignore_lease keep nothing")
        return found

    def compared(self, compare: Compare) -> Iterator[KeyValue]:
        """The keys that a comparison looks at; all of them count, also those not taken.

        What has no room in `rows_max` is refused before it is read.
        """
        count = count_range(self._keys, compare.key, compare.range_end)
        if self._counts_first:
            self.budget.rows(count)
        else:
            self._spend(count)
        kvs = map(KV_OF, scan_range(self._keys, compare.key, compare.range_end))
        operand = compare.operand
        if self._counts_first and compare.range_end and type(operand) is bytes:
            return compared_values(kvs, operand, self.budget)
        return kvs

    def finish(self) -> None:
        """Write the revision and its row, if anything was changed."""
        at_once(self.finishing())

    def finishing(self) -> Steps[None]:
        """`finish`, in slices: nothing is written before the last one."""
        events = self._events
        if not events:
            return
        revision = self.revision
        size = 0
        if self._ctx.version >= FORMAT_LEASES:
            for first in range(0, len(events), SLICE_EVENTS):
                if first:
                    yield
                some = events[first : first + SLICE_EVENTS]
                size += sum([event_bytes(event.kv, event.prev) for event in some])
        self._meta.put("revision", revision)
        if self._ctx.version < FORMAT_LEASES:
            return
        record(self._ctx.table("history"), self._meta, revision, events)
        if revision % TRIM_REVISIONS == 0 or size > TRIM_BYTES:
            trim(self._ctx, revision, size)

    def _changed(self, kv: KeyValue, prev: KeyValue | None) -> None:
        self.revision = self.begin + 1
        self._events.append(Event(kv, prev))

    def _change(self, rows: int) -> None:
        """Count rows that are about to be put or deleted."""
        if self._counts_first:
            self._ctx.charge(rows)
        else:
            self._spend(rows)

    def _spend(self, rows: int) -> None:
        """Count against `rows_max` as formats before FORMAT_COST do."""
        self._ctx.charge(rows)
        self._rows_left -= rows
        if self._rows_left < 0:
            raise LimitExceeded.of("rows_max", self._ctx.settings["rows_max"])

    def _require_room(self, key: bytes, range_end: bytes, limit: int) -> None:
        """Count what a read will touch before it reads anything."""
        count = count_range(self._keys, key, range_end)
        self._spend(min(limit, count) if limit else count)

    def _given(self, kvs: Any) -> Any:
        """The keys, if they have room in the result."""
        self._bytes_left -= sum([len(kv.key) + len(kv.value) for kv in kvs if kv is not None])
        if self._bytes_left < 0:
            raise LimitExceeded.of("result_bytes_max", self._ctx.settings["result_bytes_max"])
        return kvs

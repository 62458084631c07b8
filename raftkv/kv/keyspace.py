"""The keyspace as a plugin: etcd's model on two tables.

Rules of this file
1. A command that changes something takes exactly one revision, whatever it changes; one that does
   not, takes none. An empty keyspace has revision 1, as in etcd, so the first put gets 2.
2. The revision is a row like any other: it is undone, captured and restored with the rest.
3. Whatever a command may be large in (keys, values, operations, rows, result) has a replicated
   limit, checked here; the API checks the same before it proposes.

History, leases and watch come to stand on the same two facts: each change of the table `keys` is a
captured change, and the row it leaves carries its revision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import Context, Host, Plugin, Setting, Table, TableSpec, View

from .api import KVApi
from .commands import (
    FROM_KEY,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    DeleteRangeResult,
    DuplicateKey,
    EmptyKey,
    KeyValue,
    LimitExceeded,
    Operation,
    OperationResult,
    Put,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    Txn,
    TxnResult,
)
from .ranges import read_range, scan_range

__all__ = ["KV"]

KIB: Final = 1024
MIB: Final = 1024 * KIB

# A key and value of together this size pass without a look at the settings: no limit may be lower.
LIMIT_MIN: Final = KIB

FIRST_REVISION: Final = 1


def _between(lowest: int, highest: int) -> Callable[[int], str | None]:
    def check(value: int) -> str | None:
        if lowest <= value <= highest:
            return None
        return f"it must be between {lowest} and {highest}"

    return check


class KV(Plugin[KVApi]):
    """The keyspace. `node.kv` is its API."""

    name: ClassVar[str] = "kv"
    version: ClassVar[int] = 1
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = (Put, DeleteRange, Txn)
    tables: ClassVar[tuple[TableSpec, ...]] = (
        TableSpec("keys", bytes, KeyValue),
        TableSpec("meta", str, int),
    )
    refusals: ClassVar[tuple[type[Refused], ...]] = (EmptyKey, LimitExceeded, DuplicateKey)
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("key_bytes_max", int, 64 * KIB, _between(LIMIT_MIN, MIB), "Bytes of one key."),
        Setting("value_bytes_max", int, MIB, _between(LIMIT_MIN, MIB), "Bytes of one value."),
        # etcd's --max-txn-ops has the same default.
        Setting(
            "txn_ops_max", int, 128, _between(1, 10_000), "Operations or comparisons of a txn."
        ),
        # 100,000 deletions take about a quarter of a second, in which the node answers nothing.
        Setting("rows_max", int, 100_000, _between(1, 10**6), "Keys that one command may touch."),
        # Results are kept until the caller has them; they share the limit of commands.
        Setting(
            "result_bytes_max",
            int,
            MIB + 512 * KIB,
            _between(64 * KIB, 4 * MIB),
            "Bytes of keys and values in the result of one command.",
        ),
    )

    def open(self, host: Host) -> KVApi:
        return KVApi(host)

    def apply(self, command: Any, ctx: Context) -> Any:
        # The most frequent command first, and without a further call.
        if type(command) is Put:
            meta = ctx.table("meta")
            revision = meta.get("revision", FIRST_REVISION) + 1
            old = _put(command, revision, ctx)
            meta.put("revision", revision)
            return PutResult(revision, old if command.prev_kv else None)
        if type(command) is DeleteRange:
            return _Change(ctx).one(command)
        assert type(command) is Txn
        return _txn(command, ctx)

    def invariants(self, view: View) -> Sequence[str]:
        found = []
        revision = view.table("meta").get("revision", FIRST_REVISION)
        for key, kv in view.table("keys").scan():
            if kv.key != key:
                found.append(f"the row of {key!r} holds the key {kv.key!r}")
            if not FIRST_REVISION < kv.create_revision <= kv.mod_revision <= revision:
                found.append(
                    f"{key!r}: create {kv.create_revision}, mod {kv.mod_revision}, "
                    f"revision of the keyspace {revision}"
                )
            if not 1 <= kv.version <= kv.mod_revision - kv.create_revision + 1:
                found.append(f"{key!r}: version {kv.version} does not fit its revisions")
        return found


def _put(command: Put | PutOp, revision: int, ctx: Context) -> KeyValue | None:
    """Set a key; returns what it was."""
    key = command.key
    value = command.value
    if not key:
        raise EmptyKey("the key is empty")
    if len(key) + len(value) > LIMIT_MIN:
        _check_sizes(key, value, ctx)
    keys: Table[bytes, KeyValue] = ctx.table("keys")
    old = keys.get(key)
    if old is None:
        keys.put(key, KeyValue(key, value, revision, revision, 1))
    else:
        keys.put(key, KeyValue(key, value, old.create_revision, revision, old.version + 1))
    return old


def _check_sizes(key: bytes, value: bytes, ctx: Context) -> None:
    for what, data in (("key", key), ("value", value)):
        limit = ctx.settings[f"{what}_bytes_max"]
        if len(data) > limit:
            raise LimitExceeded(f"a {what} of {len(data)} bytes exceeds {what}_bytes_max = {limit}")


class _Change:
    """What one command other than a single put does, in one revision and within the limits."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._keys: Table[bytes, KeyValue] = ctx.table("keys")
        self._meta: Table[str, int] = ctx.table("meta")
        self.revision = self._meta.get("revision", FIRST_REVISION)
        self._next = self.revision + 1
        self._rows_left: int = ctx.settings["rows_max"]
        self._bytes_left: int = ctx.settings["result_bytes_max"]

    def one(self, operation: DeleteRange | Operation) -> OperationResult:
        """Do one operation; several of one command share the revision."""
        if isinstance(operation, PutOp):
            old = _put(operation, self._next, self._ctx)
            self._changed()
            return PutResult(self.revision, self._given([old])[0] if operation.prev_kv else None)
        if isinstance(operation, RangeOp):
            found = self._read(operation)
            self._given(found.kvs)
            return found
        return self._delete(operation)

    def compare(self, compare: Compare) -> bool:
        """Whether a comparison holds now."""
        targets = [
            kv for _, kv in self._take(scan_range(self._keys, compare.key, compare.range_end))
        ]
        if not targets:
            return compare.target != "value" and _holds(compare, 0)
        return all(_holds(compare, _TARGETS[compare.target](kv)) for kv in targets)

    def _delete(self, operation: DeleteRange | DeleteRangeOp) -> DeleteRangeResult:
        _require_key(operation.key)
        rows = self._take(scan_range(self._keys, operation.key, operation.range_end))
        for key, _ in rows:
            self._keys.delete(key)
        if rows:
            self._changed()
        prev = self._given([kv for _, kv in rows]) if operation.prev_kv else ()
        return DeleteRangeResult(self.revision, len(rows), tuple(prev))

    def _read(self, operation: RangeOp) -> RangeResult:
        _require_key(operation.key)
        if operation.limit < 0:
            raise LimitExceeded(f"limit = {operation.limit} must be 0 (no limit) or more")
        if not operation.count_only:
            # One more than is left tells "just enough" from "too many".
            rows = scan_range(
                self._keys,
                operation.key,
                operation.range_end,
                min(operation.limit, self._rows_left + 1),
            )
            self._take(rows)
        return read_range(self._keys, operation, self.revision)

    def _take(self, rows: Any) -> list[tuple[bytes, KeyValue]]:
        """The rows, if the command may touch that many."""
        taken = []
        for row in rows:
            self._rows_left -= 1
            if self._rows_left < 0:
                raise LimitExceeded(
                    f"the command touches more than rows_max = {self._ctx.settings['rows_max']} "
                    f"keys: split the range"
                )
            taken.append(row)
        return taken

    def _given(self, kvs: Sequence[KeyValue | None]) -> Sequence[Any]:
        """The keys, if they have room in the result."""
        self._bytes_left -= sum(len(kv.key) + len(kv.value) for kv in kvs if kv is not None)
        if self._bytes_left < 0:
            limit = self._ctx.settings["result_bytes_max"]
            raise LimitExceeded(f"the result exceeds result_bytes_max = {limit}: ask for less")
        return kvs

    def _changed(self) -> None:
        if self.revision != self._next:
            self.revision = self._next
            self._meta.put("revision", self._next)


def _require_key(key: bytes) -> None:
    if not key:
        raise EmptyKey("the key is empty; use b'\\0' with range_end b'\\0' for all keys")


def _txn(txn: Txn, ctx: Context) -> TxnResult:
    limit = ctx.settings["txn_ops_max"]
    longest = max(len(txn.compare), len(txn.success), len(txn.failure))
    if longest > limit:
        raise LimitExceeded(
            f"a transaction with {longest} operations exceeds txn_ops_max = {limit}"
        )
    # Both branches, so that a transaction is not refused by the state it happens to meet.
    _check_distinct(txn.success)
    _check_distinct(txn.failure)
    change = _Change(ctx)
    for compare in txn.compare:
        _check_compare(compare)
    succeeded = all(change.compare(compare) for compare in txn.compare)
    operations = txn.success if succeeded else txn.failure
    results = tuple(change.one(operation) for operation in operations)
    return TxnResult(change.revision, succeeded, results)


def _check_distinct(operations: Sequence[Operation]) -> None:
    """Refuse a branch that would change a key twice: in one revision it has one value."""
    puts = [op.key for op in operations if isinstance(op, PutOp)]
    if len(set(puts)) < len(puts):
        raise DuplicateKey("a branch of the transaction puts one key twice")
    deletions = [op for op in operations if isinstance(op, DeleteRangeOp)]
    for key in puts:
        for op in deletions:
            if _contains(op, key):
                raise DuplicateKey(f"a branch of the transaction both puts and deletes {key!r}")


def _contains(op: DeleteRangeOp, key: bytes) -> bool:
    if not op.range_end:
        return key == op.key
    return key >= op.key and (op.range_end == FROM_KEY or key < op.range_end)


def _check_compare(compare: Compare) -> None:
    _require_key(compare.key)
    wanted = bytes if compare.target == "value" else int
    if type(compare.operand) is not wanted:
        raise Refused(
            f"a comparison of {compare.target} needs an operand of type {wanted.__name__}"
        )


_TARGETS: Final[dict[str, Callable[[KeyValue], Any]]] = {
    "value": lambda kv: kv.value,
    "version": lambda kv: kv.version,
    "create": lambda kv: kv.create_revision,
    "mod": lambda kv: kv.mod_revision,
}


def _holds(compare: Compare, actual: Any) -> bool:
    operand: Any = compare.operand
    if compare.op == "=":
        return bool(actual == operand)
    if compare.op == "!=":
        return bool(actual != operand)
    if compare.op == ">":
        return bool(actual > operand)
    return bool(actual < operand)

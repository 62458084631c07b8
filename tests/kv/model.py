"""etcd's keyspace in plain Python: slow, obvious, and written from etcd's documentation.

It keeps a copy of everything at every revision. A refusal is answered by its class.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import permutations
from typing import Any

from raftkv.kv import (
    FROM_KEY,
    ClaimLessor,
    ClaimLessorResult,
    Compact,
    Compacted,
    CompactResult,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    DeleteRangeResult,
    DuplicateKey,
    Event,
    Expire,
    ExpireResult,
    FutureRevision,
    Grant,
    GrantResult,
    KeyNotFound,
    KeyValue,
    LeaseExists,
    LeaseGiven,
    LeaseNotFound,
    NotLessor,
    Put,
    PutOp,
    PutResult,
    PutWith,
    RangeOp,
    RangeResult,
    Revoke,
    RevokeResult,
    TxnOp,
    TxnResult,
    ValueGiven,
)

__all__ = ["Model"]

TESTS = {"=": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt}
FIELDS = {"version": "version", "create": "create_revision", "mod": "mod_revision"}
FIELDS |= {"value": "value", "lease": "lease", "key": "key"}


class Refusal(Exception):
    """The command is refused with this class."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind


def within(names: Any, key: bytes, end: bytes) -> list[bytes]:
    if end == b"":
        return [key] if key in names else []
    return sorted(name for name in names if name >= key and (end == FROM_KEY or name < end))


class Model:
    def __init__(self) -> None:
        self.now = 0
        self.revision = 1
        self.compacted = -1
        self.keys: dict[bytes, KeyValue] = {}
        self.past: dict[int, dict[bytes, KeyValue]] = {1: {}}
        self.events: dict[int, tuple[Event, ...]] = {}
        self.leases: dict[int, tuple[int, int]] = {}  # id -> (ttl_s, due_ms)
        self.epoch = 0
        self._written: list[Event] = []

    def apply(self, command: Any, now: int) -> Any:
        """The result, or the class of the refusal, and then nothing has changed."""
        self.now = now
        saved = self.revision, self.compacted, dict(self.keys), dict(self.leases), self.epoch
        try:
            result = self._apply(command)
            self._end_revision()
            return result
        except Refusal as refusal:
            self.revision, self.compacted, self.keys, self.leases, self.epoch = saved
            self._written = []
            return refusal.kind

    def _end_revision(self) -> None:
        if self._written:
            self.revision += 1
            self.past[self.revision] = dict(self.keys)
            self.events[self.revision] = tuple(self._written)
            self._written = []

    @property
    def _at(self) -> int:
        """The revision as it stands in the middle of a command."""
        return self.revision + bool(self._written)

    def _apply(self, command: Any) -> Any:
        if isinstance(command, Put):
            command = PutWith(command.key, command.value, command.prev_kv)
        if isinstance(command, PutWith):
            if command.ignore_value and command.value:
                raise Refusal(ValueGiven)
            if command.ignore_lease and command.lease:
                raise Refusal(LeaseGiven)
            if command.lease and command.lease not in self.leases:
                raise Refusal(LeaseNotFound)
            return self._put(command)
        if isinstance(command, DeleteRange):
            return self._delete(command)
        if isinstance(command, TxnOp):
            return self._txn(command)
        if isinstance(command, Compact):
            if command.revision <= self.compacted:
                raise Refusal(Compacted)
            if command.revision > self.revision:
                raise Refusal(FutureRevision)
            self.compacted = command.revision
            return CompactResult(self.revision)
        return self._lease(command)

    # Keys

    def _put(self, op: Any) -> PutResult:
        old = self.keys.get(op.key)
        if (op.ignore_value or op.ignore_lease) and old is None:
            raise Refusal(KeyNotFound)
        value, lease = op.value, op.lease
        if op.ignore_value and old is not None:
            value = old.value
        if op.ignore_lease and old is not None:
            lease = old.lease
        at = self.revision + 1
        new = KeyValue(op.key, value, at, at, 1, lease)
        if old is not None:
            new = KeyValue(op.key, value, old.create_revision, at, old.version + 1, lease)
        self.keys[op.key] = new
        self._written.append(Event(new, old))
        return PutResult(at, old if op.prev_kv else None)

    def _delete(self, op: Any) -> DeleteRangeResult:
        gone = [self._drop(name) for name in within(self.keys, op.key, op.range_end)]
        return DeleteRangeResult(self._at, len(gone), tuple(gone) if op.prev_kv else ())

    def _drop(self, name: bytes) -> KeyValue:
        old = self.keys.pop(name)
        self._written.append(Event(KeyValue(name, b"", 0, self.revision + 1, 0), old))
        return old

    def read(self, op: RangeOp) -> RangeResult:
        keys = self.keys
        if op.revision > 0 and op.revision != self._at:
            keys = self.past[op.revision]
        found = [keys[name] for name in within(keys, op.key, op.range_end)]
        count = len(found)
        if op.count_only:
            return RangeResult(self._at, (), count, False)
        if op.max_mod_revision:
            found = [kv for kv in found if kv.mod_revision <= op.max_mod_revision]
        if op.min_mod_revision:
            found = [kv for kv in found if kv.mod_revision >= op.min_mod_revision]
        if op.max_create_revision:
            found = [kv for kv in found if kv.create_revision <= op.max_create_revision]
        if op.min_create_revision:
            found = [kv for kv in found if kv.create_revision >= op.min_create_revision]
        found.sort(key=lambda kv: getattr(kv, FIELDS[op.sort_by]), reverse=op.descending)
        more = 0 < op.limit < len(found)
        if op.limit:
            found = found[: op.limit]
        if op.keys_only:
            found = [
                KeyValue(k.key, b"", k.create_revision, k.mod_revision, k.version, k.lease)
                for k in found
            ]
        return RangeResult(self._at, tuple(found), count, more)

    # Transactions

    def _txn(self, txn: TxnOp) -> TxnResult:
        self._check_words(txn)
        self._intervals(txn.success)
        self._intervals(txn.failure)
        path: dict[int, bool] = {}
        self._choose(txn, path)
        for check in (self._check_put, self._check_range):
            self._walk(txn, path, check)
        result = self._do(txn, path)

        def at_end(inner: TxnResult) -> TxnResult:
            parts = (at_end(r) if isinstance(r, TxnResult) else r for r in inner.results)
            return TxnResult(self._at, inner.succeeded, tuple(parts))

        return at_end(result)

    def _check_words(self, txn: TxnOp) -> None:
        for op in (*txn.success, *txn.failure):
            if isinstance(op, TxnOp):
                self._check_words(op)
            elif isinstance(op, PutOp):
                if op.ignore_value and op.value:
                    raise Refusal(ValueGiven)
                if op.ignore_lease and op.lease:
                    raise Refusal(LeaseGiven)

    def _intervals(self, ops: Sequence[Any]) -> tuple[set[bytes], list[DeleteRangeOp]]:
        """What a branch may put and delete; each operation is compared with every other one."""
        parts = [self._part(op) for op in ops]
        for (puts, _), (others, deleted) in permutations(parts, 2):
            if puts & others or any(within(puts, op.key, op.range_end) for op in deleted):
                raise Refusal(DuplicateKey)
        return (
            {key for puts, _ in parts for key in puts},
            [op for _, deleted in parts for op in deleted],
        )

    def _part(self, op: Any) -> tuple[set[bytes], list[DeleteRangeOp]]:
        if isinstance(op, TxnOp):
            puts_then, deleted_then = self._intervals(op.success)
            puts_else, deleted_else = self._intervals(op.failure)
            return puts_then | puts_else, deleted_then + deleted_else
        return {op.key} if isinstance(op, PutOp) else set(), [
            each for each in (op,) if isinstance(each, DeleteRangeOp)
        ]

    def _choose(self, txn: TxnOp, path: dict[int, bool]) -> None:
        path[id(txn)] = all(self._holds(compare) for compare in txn.compare)
        for op in self._branch(txn, path):
            if isinstance(op, TxnOp):
                self._choose(op, path)

    def _branch(self, txn: TxnOp, path: dict[int, bool]) -> Sequence[Any]:
        return txn.success if path[id(txn)] else txn.failure

    def _holds(self, c: Compare) -> bool:
        found = [self.keys[name] for name in within(self.keys, c.key, c.range_end)]
        if not found:
            return c.target != "value" and TESTS[c.op](0, c.operand)
        return all(TESTS[c.op](getattr(kv, FIELDS[c.target]), c.operand) for kv in found)

    def _walk(self, txn: TxnOp, path: dict[int, bool], check: Any) -> None:
        for op in self._branch(txn, path):
            if isinstance(op, TxnOp):
                self._walk(op, path, check)
            else:
                check(op)

    def _check_put(self, op: Any) -> None:
        if isinstance(op, PutOp):
            if (op.ignore_value or op.ignore_lease) and op.key not in self.keys:
                raise Refusal(KeyNotFound)
            if op.lease and op.lease not in self.leases:
                raise Refusal(LeaseNotFound)

    def _check_range(self, op: Any) -> None:
        if isinstance(op, RangeOp) and op.revision != 0:
            if op.revision > self.revision:
                raise Refusal(FutureRevision)
            if op.revision < self.compacted:
                raise Refusal(Compacted)

    def _do(self, txn: TxnOp, path: dict[int, bool]) -> TxnResult:
        results: list[Any] = []
        for op in self._branch(txn, path):
            if isinstance(op, TxnOp):
                results.append(self._do(op, path))
            elif isinstance(op, PutOp):
                results.append(self._put(op))
            elif isinstance(op, RangeOp):
                results.append(self.read(op))
            else:
                results.append(self._delete(op))
        return TxnResult(0, path[id(txn)], tuple(results))

    # Leases

    def _lease(self, command: Any) -> Any:
        if isinstance(command, Grant):
            if command.id in self.leases:
                raise Refusal(LeaseExists)
            ttl = max(command.ttl_s, 2)
            self.leases[command.id] = (ttl, self.now + 1000 * ttl)
            return GrantResult(command.id, ttl, self.revision)
        if isinstance(command, Revoke):
            if command.id not in self.leases:
                raise Refusal(LeaseNotFound)
            deleted = self._end(command.id)
            return RevokeResult(self._at, deleted)
        if isinstance(command, ClaimLessor):
            self.epoch += 1
            self.leases = {id: (ttl, self.now + 1000 * ttl) for id, (ttl, _) in self.leases.items()}
            return ClaimLessorResult(self.epoch, self.now)
        assert isinstance(command, Expire)
        if command.epoch != self.epoch:
            raise Refusal(NotLessor)
        ended = []
        for id in command.ids:
            if id in self.leases and self.leases[id][1] <= self.now:
                self._end(id)
                self._end_revision()
                ended.append(id)
        return ExpireResult(tuple(ended))

    def attached(self, id: int) -> list[bytes]:
        return sorted(name for name, kv in self.keys.items() if kv.lease == id)

    def _end(self, id: int) -> int:
        names = self.attached(id)
        for name in names:
            self._drop(name)
        del self.leases[id]
        return len(names)

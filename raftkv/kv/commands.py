"""The words of the keyspace: commands, their results, rows, and refusals.

The model is etcd's. Keys and values are bytes. One revision counts the commands that changed
something; a key remembers the revision that created it and the last one that changed it, how often
it was put since it was created, and the lease that it is attached to.

A range of keys is (key, range_end), as etcd writes it:

    range_end empty        the one key
    range_end == b"\\0"     all keys from `key` on
    else                   key <= k < range_end; `prefix_end(prefix)` gives the end of a prefix

What the log holds has a bounded depth (raftkv.state.types says why), and a transaction may stand
inside a transaction. So in the log the inner ones lie in one flat row, `Txn.nested`, and their
place holds a `NestedTxn` with the number of one; results likewise. `TxnOp` and `TxnResult`, which
callers use, are trees; `transactions.py` turns one into the other.

Words that 0.1.0 did not have (format 2) have defaults behind the old fields, or tags of their own,
so that its logs and snapshots are read as they are.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

import msgspec

from raftkv.errors import Refused

from .wordings import worded

__all__ = [
    "FROM_KEY",
    "Attached",
    "ClaimLessor",
    "ClaimLessorResult",
    "Compact",
    "CompactResult",
    "Compacted",
    "Compare",
    "DeleteRange",
    "DeleteRangeOp",
    "DeleteRangeResult",
    "DuplicateKey",
    "EmptyKey",
    "Event",
    "Expire",
    "ExpireResult",
    "FlatTxn",
    "FlatTxnResult",
    "FutureRevision",
    "Grant",
    "GrantResult",
    "KeyNotFound",
    "KeyValue",
    "LeaseExists",
    "LeaseGiven",
    "LeaseNotFound",
    "LeaseRow",
    "LeaseTtlTooLarge",
    "LimitExceeded",
    "LogOperation",
    "LogResult",
    "NestedResult",
    "NestedTxn",
    "NotLessor",
    "Operation",
    "OperationResult",
    "Put",
    "PutOp",
    "PutResult",
    "PutWith",
    "RangeOp",
    "RangeResult",
    "Revision",
    "Revoke",
    "RevokeResult",
    "Txn",
    "TxnOp",
    "TxnOutcome",
    "TxnResult",
    "TxnTooCostly",
    "ValueGiven",
    "bounds_of",
    "events_of",
    "prefix_end",
]

#: As range_end: no upper bound. With the key b"\0": all keys.
FROM_KEY: Final = b"\0"

SortBy = Literal["key", "version", "create", "mod", "value"]


class EmptyKey(Refused):
    """A key was empty; the keyspace has no such key."""

    code = "empty_key"
    has_text = True


class LimitExceeded(Refused):
    """A replicated limit of the keyspace was exceeded; the message names it.

    Arguments: text, and, where the state machine refuses, which limit it was and the numbers of
    the text (wordings.py).
    """

    code = "limit_exceeded"
    has_text = True

    @classmethod
    def of(cls, limit: str, *numbers: int) -> LimitExceeded:
        """With the text that belongs to the limit."""
        return cls(worded(limit, *numbers), limit, *numbers)

    def state_args(self, *, texts: bool) -> tuple[Any, ...]:
        """Core format 1 keeps the text alone, as release 0.1.0 does."""
        args = super().state_args(texts=texts)
        return args[:1] if texts and type(self) is LimitExceeded else args

    def __str__(self) -> str:
        if len(self.args) < 2 or type(self) is not LimitExceeded:
            return super().__str__()
        return str(self.args[0] or worded(*self.args[1:]))


class TxnTooCostly(LimitExceeded):
    """The comparisons and ranges of a transaction look at more than `rows_max` allows.

    Nothing of it was done. Arguments: text, `rows_max`.
    """

    code = "txn_too_costly"
    has_text = True


class DuplicateKey(Refused):
    """A transaction could put a key twice, or both put and delete it, in one revision.

    Nothing of it was done. Only the two branches of one `TxnOp`, or of the transaction itself,
    exclude each other: what the comparisons say does not count. Put such operations into opposite
    branches, or into two transactions.
    """

    code = "duplicate_key"
    has_text = True


class KeyNotFound(Refused):
    """`ignore_value` or `ignore_lease` was asked for a key that does not exist."""

    code = "key_not_found"
    has_text = True


class ValueGiven(Refused):
    """`ignore_value` was asked for together with a value."""

    code = "value_provided"
    has_text = True


class LeaseGiven(Refused):
    """`ignore_lease` was asked for together with a lease."""

    code = "lease_provided"
    has_text = True


class Compacted(Refused):
    """The revision asked for lies before the compacted one: read or watch from a later one.

    Arguments: text, the compacted revision (the lowest that can be asked for).
    """

    code = "compacted"
    has_text = True


class FutureRevision(Refused):
    """The revision asked for has not been reached. Arguments: text, the current revision."""

    code = "future_revision"
    has_text = True


class LeaseNotFound(Refused):
    """There is no such lease: it was never granted, was revoked, or has expired."""

    code = "lease_not_found"
    has_text = True


class LeaseExists(Refused):
    """A lease was to be granted under an id that another one has."""

    code = "lease_exists"
    has_text = True


class LeaseTtlTooLarge(Refused):
    """A lease was to live longer than `lease_ttl_max_s`."""

    code = "lease_ttl_too_large"
    has_text = True


class NotLessor(Refused):
    """A command of a lessor came from one that another node has replaced since (fencing)."""

    code = "not_lessor"
    has_text = True


class _Struct(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    pass


class KeyValue(_Struct, frozen=True):
    """A key as it stands: etcd's mvccpb.KeyValue. `version` is 1 for a key just created.

    In an `Event` a version of 0 marks a deletion: of the key as of `mod_revision`, without a value.
    """

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


class PutResult(_Struct, frozen=True, tag="put"):
    """`revision` of the put; `prev` is the key as it was, if that was asked for."""

    revision: int
    prev: KeyValue | None = None


class DeleteRangeResult(_Struct, frozen=True, tag="delete"):
    """`revision` of the keyspace after the command, unchanged when `deleted` is 0."""

    revision: int
    deleted: int
    prev: tuple[KeyValue, ...] = ()


class RangeResult(_Struct, frozen=True, tag="range"):
    """`count` is the number of keys in the range, also of those beyond the limit."""

    revision: int
    kvs: tuple[KeyValue, ...]
    count: int
    more: bool


class NestedResult(_Struct, frozen=True, tag="nested"):
    """In the log, in place of the result of an inner transaction: its number in `nested`."""

    number: int


LogResult = PutResult | DeleteRangeResult | RangeResult | NestedResult


class FlatTxnResult(_Struct, frozen=True):
    """What an inner transaction gave; its revision is that of the outer one."""

    succeeded: bool
    results: tuple[LogResult, ...]


class TxnOutcome(_Struct, frozen=True):
    """The result of a transaction as the log keeps it; see `TxnResult`."""

    revision: int
    succeeded: bool
    results: tuple[LogResult, ...]
    nested: tuple[FlatTxnResult, ...] = ()


class TxnResult(msgspec.Struct, frozen=True):
    """`succeeded` tells the branch that was taken, `results` what its operations gave, in order."""

    revision: int
    succeeded: bool
    results: tuple[OperationResult, ...]


OperationResult = PutResult | DeleteRangeResult | RangeResult | TxnResult


class CompactResult(_Struct, frozen=True):
    """`revision` of the keyspace, which a compaction does not change."""

    revision: int


class GrantResult(_Struct, frozen=True):
    """`ttl_s` is what was granted: at least `lease_ttl_min_s`."""

    id: int
    ttl_s: int
    revision: int


class RevokeResult(_Struct, frozen=True):
    """`deleted` keys were attached and are gone, in one revision."""

    revision: int
    deleted: int


class ExpireResult(_Struct, frozen=True):
    """The leases that were revoked."""

    ids: tuple[int, ...]


class ClaimLessorResult(_Struct, frozen=True):
    """`epoch` is this lessor's fencing token; no lease is due before `extended_ms` + its own time.

    `extended_ms` is the time of the claim, by the log's clock.
    """

    epoch: int
    extended_ms: int


class Put(_Struct, frozen=True, tag="put"):
    """Set a key."""

    Result: ClassVar[Any] = PutResult
    key: bytes
    value: bytes
    prev_kv: bool = False


class PutWith(_Struct, frozen=True, tag="put_with"):
    """A put with any of etcd's options; `Put` is the short form that most callers use.

    `lease` 0 attaches to none, and detaches from a former one. `ignore_value` and `ignore_lease`
    keep what the key has; it must exist.
    """

    Result: ClassVar[Any] = PutResult
    key: bytes
    value: bytes
    prev_kv: bool = False
    lease: int = 0
    ignore_value: bool = False
    ignore_lease: bool = False


class DeleteRange(_Struct, frozen=True, tag="delete"):
    """Delete a key, or a range of keys."""

    Result: ClassVar[Any] = DeleteRangeResult
    key: bytes
    range_end: bytes = b""
    prev_kv: bool = False


class PutOp(_Struct, frozen=True, tag="put"):
    """A put inside a transaction."""

    key: bytes
    value: bytes
    prev_kv: bool = False
    lease: int = 0
    ignore_value: bool = False
    ignore_lease: bool = False


class DeleteRangeOp(_Struct, frozen=True, tag="delete"):
    """A deletion inside a transaction."""

    key: bytes
    range_end: bytes = b""
    prev_kv: bool = False


class RangeOp(_Struct, frozen=True, tag="range"):
    """A read; inside a transaction, of the state that the operations before it have left.

    `limit` 0 is none. `revision` 0 reads the newest state, another one the state as of then.
    `sort_by` "key" ascending is how keys lie anyway. The four filters leave keys out, 0 is no
    bound; as in etcd `count` counts them all the same.
    """

    key: bytes
    range_end: bytes = b""
    limit: int = 0
    keys_only: bool = False
    count_only: bool = False
    revision: int = 0
    sort_by: SortBy = "key"
    descending: bool = False
    min_mod_revision: int = 0
    max_mod_revision: int = 0
    min_create_revision: int = 0
    max_create_revision: int = 0


class NestedTxn(_Struct, frozen=True, tag="nested"):
    """In the log, in place of an inner transaction: its number in `Txn.nested`."""

    number: int


LogOperation = PutOp | DeleteRangeOp | RangeOp | NestedTxn


class Compare(_Struct, frozen=True):
    """One condition on a key, or on every key of a range.

    A key that does not exist, or a range without keys, has version, create and mod revision and
    lease 0, and no value: a comparison of the value fails, whatever the operator. (As etcd has it.)
    """

    key: bytes
    target: Literal["value", "version", "create", "mod", "lease"]
    op: Literal["=", "!=", ">", "<"]
    operand: bytes | int
    range_end: bytes = b""


class FlatTxn(_Struct, frozen=True):
    """An inner transaction in the log."""

    compare: tuple[Compare, ...] = ()
    success: tuple[LogOperation, ...] = ()
    failure: tuple[LogOperation, ...] = ()


class Txn(_Struct, frozen=True, tag="txn"):
    """If all comparisons hold, do `success`, else `failure`: atomically, in one revision."""

    Result: ClassVar[Any] = TxnOutcome
    compare: tuple[Compare, ...] = ()
    success: tuple[LogOperation, ...] = ()
    failure: tuple[LogOperation, ...] = ()
    nested: tuple[FlatTxn, ...] = ()


class TxnOp(msgspec.Struct, frozen=True):
    """A transaction inside a transaction."""

    compare: tuple[Compare, ...] = ()
    success: tuple[Operation, ...] = ()
    failure: tuple[Operation, ...] = ()


Operation = PutOp | DeleteRangeOp | RangeOp | TxnOp


class Compact(_Struct, frozen=True, tag="compact"):
    """Forget the history before `revision`, from which can be read and watched still.

    Refused as `Compacted` unless it is greater than the compacted revision, as `FutureRevision`
    if it is greater than the current one.
    """

    Result: ClassVar[Any] = CompactResult
    revision: int


class Grant(_Struct, frozen=True, tag="grant"):
    """Make a lease. `id` 0 lets the state machine choose."""

    Result: ClassVar[Any] = GrantResult
    ttl_s: int
    id: int = 0


class Revoke(_Struct, frozen=True, tag="revoke"):
    """End a lease and delete the keys attached to it."""

    Result: ClassVar[Any] = RevokeResult
    id: int


class ClaimLessor(_Struct, frozen=True, tag="claim_lessor"):
    """The leader takes over the leases: every live one is extended by its whole time to live.

    Keep-alives are counted by the lessor in its memory (leases.py), so nobody else knows how much
    time is left. The claim's epoch fences the lessor before it.
    """

    Result: ClassVar[Any] = ClaimLessorResult


class Expire(_Struct, frozen=True, tag="expire"):
    """The lessor `epoch` saw no keep-alive for these leases in time: revoke them.

    Refused as `NotLessor` under another epoch. A lease whose `due_ms` still lies ahead of the
    log's clock, or that is gone, is passed over.
    """

    Result: ClassVar[Any] = ExpireResult
    epoch: int
    ids: tuple[int, ...]


class Event(_Struct, frozen=True):
    """One change of one key: what it is now (version 0: deleted) and what it was before."""

    kv: KeyValue
    prev: KeyValue | None = None


class Revision(_Struct, frozen=True):
    """A row of the history, under its revision: one event, and `more` if there were several.

    The events of one revision stand in the order of the operations. `bytes_before` is what all
    earlier rows ever held, keys, values and history.EVENT_BYTES for each event: the difference of
    two rows is the size between them.
    """

    kv: KeyValue
    prev: KeyValue | None
    bytes_before: int
    more: tuple[Event, ...] = ()


def events_of(row: Revision) -> tuple[Event, ...]:
    """All events of one revision, in order."""
    return (Event(row.kv, row.prev), *row.more)


class LeaseRow(_Struct, frozen=True):
    """A lease: it does not expire before `due_ms` of the log's clock, whatever anybody says.

    `due_ms` counts from the grant; a lessor's claim may put it off (leasing.due_ms), keep-alives
    extend it in the lessor's memory only. `keys` are attached.
    """

    ttl_s: int
    due_ms: int
    keys: int = 0


class Attached(_Struct, frozen=True):
    """A row of (lease, key): the key is attached to the lease."""


def prefix_end(prefix: bytes) -> bytes:
    """The range_end of all keys that start with `prefix`; FROM_KEY if there is no end."""
    stem = prefix.rstrip(b"\xff")
    return FROM_KEY if not stem else stem[:-1] + bytes([stem[-1] + 1])


def bounds_of(first: bytes | None, last: bytes | None, prefix: bytes | None) -> tuple[bytes, bytes]:
    """(key, range_end) for `first <= k < last`, a missing bound being open, or for a prefix.

    Raises TypeError for both, ValueError for bounds without room between them.
    """
    if prefix is not None:
        if first is not None or last is not None:
            raise TypeError("give a prefix, or bounds, not both")
        return (prefix, prefix_end(prefix)) if prefix else (b"\0", FROM_KEY)
    low = first or b"\0"
    if last is None:
        return low, FROM_KEY
    if last <= low:
        # etcd's notation has no empty range: b"" would mean one key, and b"\0" all of them.
        raise ValueError(f"there is no key between {low!r} and {last!r}")
    return low, last

"""The words of the keyspace: commands, their results, and refusals.

The model is etcd's. Keys and values are bytes. One revision counts the commands that changed
something; a key remembers the revision that created it and the last one that changed it, and how
often it was put since it was created.

A range of keys is (key, range_end), as etcd writes it:

    range_end empty        the one key
    range_end == b"\\0"     all keys from `key` on
    else                   key <= k < range_end; `prefix_end(prefix)` gives the end of a prefix
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

import msgspec

from raftkv.errors import Refused

__all__ = [
    "FROM_KEY",
    "Compare",
    "DeleteRange",
    "DeleteRangeOp",
    "DeleteRangeResult",
    "DuplicateKey",
    "EmptyKey",
    "KeyValue",
    "LimitExceeded",
    "Operation",
    "OperationResult",
    "Put",
    "PutOp",
    "PutResult",
    "RangeOp",
    "RangeResult",
    "Txn",
    "TxnResult",
    "prefix_end",
]

#: As range_end: no upper bound. With the key b"\0": all keys.
FROM_KEY: Final = b"\0"


class EmptyKey(Refused):
    """A key was empty; the keyspace has no such key."""

    code = "empty_key"


class LimitExceeded(Refused):
    """A replicated limit of the keyspace was exceeded; the message names it."""

    code = "limit_exceeded"


class DuplicateKey(Refused):
    """One branch of a transaction would change the same key twice, in one revision."""

    code = "duplicate_key"


class _Struct(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    pass


class KeyValue(_Struct, frozen=True):
    """A key as it stands: etcd's mvccpb.KeyValue. `version` is 1 for a key just created."""

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


OperationResult = PutResult | DeleteRangeResult | RangeResult


class TxnResult(_Struct, frozen=True):
    """`succeeded` tells the branch that was taken, `results` what its operations gave, in order."""

    revision: int
    succeeded: bool
    results: tuple[OperationResult, ...]


class Put(_Struct, frozen=True, tag="put"):
    """Set a key."""

    Result: ClassVar[Any] = PutResult
    key: bytes
    value: bytes
    prev_kv: bool = False


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


class DeleteRangeOp(_Struct, frozen=True, tag="delete"):
    """A deletion inside a transaction."""

    key: bytes
    range_end: bytes = b""
    prev_kv: bool = False


class RangeOp(_Struct, frozen=True, tag="range"):
    """A read inside a transaction: of the state that the operations before it have left."""

    key: bytes
    range_end: bytes = b""
    limit: int = 0
    keys_only: bool = False
    count_only: bool = False


Operation = PutOp | DeleteRangeOp | RangeOp


class Compare(_Struct, frozen=True):
    """One condition on a key, or on every key of a range.

    A key that does not exist, or a range without keys, has version, create and mod revision 0, and
    no value: a comparison of the value fails, whatever the operator. (As etcd has it.)
    """

    key: bytes
    target: Literal["value", "version", "create", "mod"]
    op: Literal["=", "!=", ">", "<"]
    operand: bytes | int
    range_end: bytes = b""


class Txn(_Struct, frozen=True, tag="txn"):
    """If all comparisons hold, do `success`, else `failure`: atomically, in one revision."""

    Result: ClassVar[Any] = TxnResult
    compare: tuple[Compare, ...] = ()
    success: tuple[Operation, ...] = ()
    failure: tuple[Operation, ...] = ()


def prefix_end(prefix: bytes) -> bytes:
    """The range_end of all keys that start with `prefix`; FROM_KEY if there is no end."""
    stem = prefix.rstrip(b"\xff")
    return FROM_KEY if not stem else stem[:-1] + bytes([stem[-1] + 1])

"""What a caller may ask of the keyspace: the same for `node.kv` and `client.kv`.

Types are checked by `raftkv.validation`; here is what types do not say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raftkv.validation import require, require_int64

from .commands import (
    Compare,
    DeleteRangeOp,
    EmptyKey,
    Operation,
    PutOp,
    RangeOp,
    TxnOp,
    bounds_of,
)

__all__ = [
    "check_grant",
    "check_id",
    "check_key",
    "check_put",
    "check_range",
    "check_revisions",
    "check_txn",
    "deleted_range",
    "reads_only",
    "watched_range",
]


def check_key(key: object, value: object = b"") -> None:
    """Raise TypeError unless both are bytes, EmptyKey without a key."""
    for name, data in (("key", key), ("value", value)):
        if not isinstance(data, bytes):
            raise TypeError(f"{name} must be bytes, not {data!r:.60}")
    if not key:
        raise EmptyKey("the key is empty")


def check_put(lease: Any, **flags: Any) -> None:
    """The options of a put."""
    require_int64("lease", lease)
    for name, flag in flags.items():
        require(bool, name, flag)


def check_revisions(**revisions: int) -> None:
    """Raise TypeError or ValueError unless each is 0, which is none or the newest, or more.

    In etcd's terms, a `RangeOp` or a request of the HTTP API, one below 0 is allowed.
    """
    for name, revision in revisions.items():
        if type(revision) is not int or revision:
            require_int64(name, revision, 0)


def check_range(operation: RangeOp) -> None:
    """A read, by etcd's terms."""
    check_key(operation.key)
    if operation.limit < 0:
        raise ValueError(f"limit = {operation.limit}: it must be 0 (no limit) or more")
    for name in (
        "limit",
        "revision",
        "min_mod_revision",
        "max_mod_revision",
        "min_create_revision",
        "max_create_revision",
    ):
        require_int64(name, getattr(operation, name))


def check_txn(
    compare: Iterable[Compare], success: Iterable[Operation], failure: Iterable[Operation]
) -> TxnOp:
    """The transaction, with the inner ones checked as well."""
    whole = TxnOp(tuple(compare), tuple(success), tuple(failure))
    todo = [whole]
    for txn in todo:  # grows meanwhile
        for each in txn.compare:
            _check_compare(each)
        for operation in (*txn.success, *txn.failure):
            if isinstance(operation, TxnOp):
                todo.append(operation)
            else:
                _check_operation(operation)
    return whole


def reads_only(success: Iterable[Operation], failure: Iterable[Operation]) -> bool:
    """Whether no branch of a transaction can change anything, the inner ones' included."""
    todo = [*success, *failure]
    for operation in todo:  # grows meanwhile
        if isinstance(operation, TxnOp):
            todo += operation.success
            todo += operation.failure
        elif not isinstance(operation, RangeOp):
            return False
    return True


def _check_compare(compare: Compare) -> None:
    require(Compare, "compare", compare)
    check_key(compare.key)
    if compare.target != "value":
        require_int64("Compare.operand", compare.operand)  # type: ignore[arg-type]
    elif not isinstance(compare.operand, bytes):
        raise TypeError(f"a value is compared with bytes, not with {compare.operand!r:.60}")


def _check_operation(operation: Any) -> None:
    if isinstance(operation, PutOp):
        require(PutOp, "operation", operation)
        check_key(operation.key, operation.value)
        require_int64("PutOp.lease", operation.lease)
    elif isinstance(operation, RangeOp):
        require(RangeOp, "operation", operation)
        check_range(operation)
    elif isinstance(operation, DeleteRangeOp):
        require(DeleteRangeOp, "operation", operation)
        check_key(operation.key)
    else:
        raise TypeError(
            f"an operation is a PutOp, RangeOp, DeleteRangeOp or TxnOp, not {operation!r:.60}"
        )


def deleted_range(
    key: bytes | None, last: bytes | None, prefix: bytes | None
) -> tuple[bytes, bytes]:
    """(key, range_end) of a deletion."""
    if prefix is not None or last is not None:
        return bounds_of(key, last, prefix)
    if key is None:
        raise TypeError("delete needs a key or a prefix")
    check_key(key)
    return key, b""


def watched_range(
    key: bytes | None, first: bytes | None, last: bytes | None, prefix: bytes | None
) -> tuple[bytes, bytes]:
    """(key, range_end) of a watch."""
    if key is not None and first is not None:
        raise TypeError("give a key, or the first one of a range, not both")
    if key is not None and last is None and prefix is None:
        check_key(key)
        return key, b""
    low, range_end = bounds_of(key if first is None else first, last, prefix)
    check_key(low)
    return low, range_end


def check_grant(ttl_s: int, id: int) -> None:
    """Raise TypeError or ValueError for a lease that cannot be asked for."""
    require_int64("ttl_s", ttl_s)
    check_id(id)


def check_id(id: int) -> None:
    """Ids are etcd's 64-bit integers: what cannot be named over HTTP is no lease."""
    require_int64("id", id)

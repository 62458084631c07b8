"""The keyspace's typed API on one node: `node.kv`."""

from __future__ import annotations

from collections.abc import Iterable

from raftkv.errors import TooLarge
from raftkv.plugin import Consistency, Host

from .commands import (
    FROM_KEY,
    Compare,
    DeleteRange,
    DeleteRangeResult,
    EmptyKey,
    KeyValue,
    Operation,
    Put,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    Txn,
    TxnResult,
    prefix_end,
)
from .ranges import read_range

__all__ = ["KVApi"]


class KVApi:
    """Put, read and delete keys; compare and change several at once.

    Works on every node, replicants too. A change raises `TooLarge` or another `NotApplied` when
    nothing happened, a `Refused` when the keyspace refused it, `Timeout` when the outcome is
    unknown. A read raises `ReadTimeout`. `timeout_s` None takes the node's default. Keys and values
    are bytes; anything else is a TypeError.
    """

    def __init__(self, host: Host) -> None:
        self._host = host

    async def put(
        self, key: bytes, value: bytes, *, prev_kv: bool = False, timeout_s: float | None = None
    ) -> PutResult:
        """Set a key. With `prev_kv`, the result holds the key as it was before."""
        self._check(key, value)
        result: PutResult = await self._host.propose(Put(key, value, prev_kv), timeout_s=timeout_s)
        return result

    async def get(
        self,
        key: bytes,
        *,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> KeyValue | None:
        """The key, or None. "local" answers at once from this node's copy, which may be stale."""
        self._check(key)
        await self._host.barrier(consistency, timeout_s=timeout_s)
        found: KeyValue | None = self._host.view().table("keys").get(key)
        return found

    async def range(
        self,
        first: bytes | None = None,
        last: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int = 0,
        keys_only: bool = False,
        count_only: bool = False,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> RangeResult:
        """Keys with `first <= key < last`, or those that start with `prefix`, in key order.

        A missing bound is open; bounds that leave no room are a ValueError. `limit` 0 gives all
        keys in one answer; the result's `more` and `count` tell what a limit has left out.
        `keys_only` leaves the values empty.
        """
        key, range_end = _bounds(first, last, prefix)
        operation = RangeOp(key, range_end, limit, keys_only, count_only)
        return await self.read(operation, consistency=consistency, timeout_s=timeout_s)

    async def read(
        self,
        operation: RangeOp,
        *,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> RangeResult:
        """`range` in etcd's words."""
        self._check(operation.key)
        if operation.limit < 0:
            raise ValueError(f"limit = {operation.limit}: it must be 0 (no limit) or more")
        await self._host.barrier(consistency, timeout_s=timeout_s)
        return read_range(self._host.view().table("keys"), operation, self.revision)

    async def delete(
        self,
        key: bytes | None = None,
        last: bytes | None = None,
        *,
        prefix: bytes | None = None,
        prev_kv: bool = False,
        timeout_s: float | None = None,
    ) -> DeleteRangeResult:
        """Delete one key, or the keys with `key <= k < last`, or those that start with `prefix`.

        Deleting what does not exist is no error and takes no revision; `deleted` counts.
        """
        if prefix is None and last is None:
            if key is None:
                raise TypeError("delete needs a key or a prefix")
            range_end = b""
        else:
            key, range_end = _bounds(key, last, prefix)
        self._check(key)
        command = DeleteRange(key, range_end, prev_kv)
        result: DeleteRangeResult = await self._host.propose(command, timeout_s=timeout_s)
        return result

    async def txn(
        self,
        compare: Iterable[Compare] = (),
        success: Iterable[Operation] = (),
        failure: Iterable[Operation] = (),
        *,
        timeout_s: float | None = None,
    ) -> TxnResult:
        """If all comparisons hold, do `success`, else `failure`: atomically, in one revision.

        `Compare(b"k", "version", "=", 0)` holds if the key does not exist. Raises `DuplicateKey`
        when a branch would change one key twice.
        """
        command = Txn(tuple(compare), tuple(success), tuple(failure))
        for item in (*command.compare, *command.success, *command.failure):
            if isinstance(item, PutOp):
                self._check(item.key, item.value)
            else:
                self._check(item.key)
        limit = self._host.settings["txn_ops_max"]
        longest = max(len(command.compare), len(command.success), len(command.failure))
        if longest > limit:
            raise TooLarge(f"a transaction with {longest} operations exceeds txn_ops_max = {limit}")
        result: TxnResult = await self._host.propose(command, timeout_s=timeout_s)
        return result

    @property
    def revision(self) -> int:
        """The keyspace's revision in this node's copy."""
        revision: int = self._host.view().table("meta").get("revision", 1)
        return revision

    def _check(self, key: object, value: object = b"") -> None:
        if not isinstance(key, bytes) or not isinstance(value, bytes):
            raise TypeError("keys and values are bytes")
        if not key:
            raise EmptyKey("the key is empty")
        if len(key) + len(value) <= 1024:
            return  # no limit may be lower
        settings = self._host.settings
        for what, data in (("key", key), ("value", value)):
            limit = settings[f"{what}_bytes_max"]
            if len(data) > limit:
                raise TooLarge(f"a {what} of {len(data)} bytes exceeds {what}_bytes_max = {limit}")


def _bounds(first: bytes | None, last: bytes | None, prefix: bytes | None) -> tuple[bytes, bytes]:
    """A half-open range in etcd's notation."""
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

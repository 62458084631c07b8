"""The keyspace over the network: `client.kv`, with the names, results and errors of `node.kv`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec

from raftkv.kv.arguments import (
    check_key,
    check_put,
    check_range,
    check_revisions,
    check_txn,
    deleted_range,
    reads_only,
    watched_range,
)
from raftkv.kv.commands import (
    CompactResult,
    Compare,
    DeleteRangeOp,
    DeleteRangeResult,
    KeyValue,
    Operation,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    SortBy,
    TxnResult,
    bounds_of,
)
from raftkv.plugin import Consistency
from raftkv.validation import checked, require_int64

from . import words
from .calls import Caller
from .watch import ClientWatch

__all__ = ["ClientKV"]

_encode = msgspec.json.Encoder().encode


@checked
class ClientKV:
    """Put, read, delete, compare and watch keys on a cluster, through any of its doors.

    The same as `raftkv.KVApi`, method by method. A write is applied once, however often the client
    has to send it; it raises a `NotApplied` when nothing happened, a `Refused` when the keyspace
    refused it, `Timeout` when the deadline passed and the outcome is unknown (`Client.outcome`
    settles it). A read goes to another endpoint when one fails and raises a `NotApplied` when none
    answered in time. `timeout_s` None takes the client's. Keys and values are bytes.

    `consistency` "local" reads the copy of the node that is asked, which may be stale, and may be
    another node's from one call to the next; "lease" is served as "linearizable".
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def put(
        self,
        key: bytes,
        value: bytes,
        *,
        lease: int = 0,
        prev_kv: bool = False,
        ignore_value: bool = False,
        ignore_lease: bool = False,
        timeout_s: float | None = None,
    ) -> PutResult:
        """Set a key. With `prev_kv`, the result holds the key as it was before.

        `lease` attaches the key to a lease, 0 to none. `ignore_value` and `ignore_lease` keep what
        the key has; it must exist.
        """
        check_key(key, value)
        check_put(lease, prev_kv=prev_kv, ignore_value=ignore_value, ignore_lease=ignore_lease)
        operation = PutOp(key, value, prev_kv, lease, ignore_value, ignore_lease)
        body = _encode(words.put_json(operation))
        deadline = self._caller.deadline(timeout_s)
        return await self._caller.write(words.PUT, body, words.put_done, deadline=deadline)

    async def get(
        self,
        key: bytes,
        *,
        revision: int = 0,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> KeyValue | None:
        """The key, or None; as of `revision`, if that is not 0."""
        check_key(key)
        check_revisions(revision=revision)
        operation = RangeOp(key, revision=revision)
        found = await self.read(operation, consistency=consistency, timeout_s=timeout_s)
        return found.kvs[0] if found.kvs else None

    async def range(
        self,
        first: bytes | None = None,
        last: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int = 0,
        keys_only: bool = False,
        count_only: bool = False,
        revision: int = 0,
        sort_by: SortBy = "key",
        descending: bool = False,
        min_mod_revision: int = 0,
        max_mod_revision: int = 0,
        min_create_revision: int = 0,
        max_create_revision: int = 0,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> RangeResult:
        """Keys with `first <= key < last`, or those that start with `prefix`.

        A missing bound is open; bounds that leave no room are a ValueError. `limit` 0 gives all
        keys in one answer; the result's `more` and `count` tell what a limit has left out.
        """
        check_revisions(
            revision=revision,
            min_mod_revision=min_mod_revision,
            max_mod_revision=max_mod_revision,
            min_create_revision=min_create_revision,
            max_create_revision=max_create_revision,
        )
        key, range_end = bounds_of(first, last, prefix)
        operation = RangeOp(
            key,
            range_end,
            limit,
            keys_only,
            count_only,
            revision,
            sort_by,
            descending,
            min_mod_revision,
            max_mod_revision,
            min_create_revision,
            max_create_revision,
        )
        return await self.read(operation, consistency=consistency, timeout_s=timeout_s)

    async def read(
        self,
        operation: RangeOp,
        *,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> RangeResult:
        """`range` in etcd's words. A revision below 0 reads the newest state, as in etcd."""
        check_range(operation)
        request = words.range_json(operation)
        if consistency == "local":
            request["serializable"] = True
        deadline = self._caller.deadline(timeout_s)
        body = _encode(request)
        return await self._caller.read(words.RANGE, body, words.found, deadline=deadline)

    async def pages(
        self,
        first: bytes | None = None,
        last: bytes | None = None,
        *,
        prefix: bytes | None = None,
        page_keys: int = 1000,
        keys_only: bool = False,
        revision: int = 0,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> AsyncIterator[RangeResult]:
        """A large range in parts of `page_keys` keys, in key order, all as of one revision.

        That is `revision`, or the newest when the first page is read; `RangeResult.revision` tells
        it, `count` the keys of this page and those to come. There is always a first page, perhaps
        an empty one. Raises `Compacted` when the revision is compacted before the last page.
        `consistency` is for the first page, `timeout_s` for each.
        """
        if page_keys < 1:
            raise ValueError(f"page_keys = {page_keys}: it must be 1 or more")
        check_revisions(revision=revision)
        key, range_end = bounds_of(first, last, prefix)
        while True:
            operation = RangeOp(key, range_end, page_keys, keys_only, revision=revision)
            page = await self.read(operation, consistency=consistency, timeout_s=timeout_s)
            # The revision of an answer is that of the keyspace by now.
            revision = revision if revision > 0 else page.revision
            yield msgspec.structs.replace(page, revision=revision)
            if not page.more or not page.kvs:
                return
            key = page.kvs[-1].key + b"\0"
            # Another node may be asked, which has not come so far by itself.
            consistency = "linearizable"

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
        low, range_end = deleted_range(key, last, prefix)
        operation = DeleteRangeOp(low, range_end, prev_kv)
        return await self.delete_range(operation, timeout_s=timeout_s)

    async def delete_range(
        self, operation: DeleteRangeOp, *, timeout_s: float | None = None
    ) -> DeleteRangeResult:
        """`delete` in etcd's words."""
        check_key(operation.key)
        body = _encode(words.delete_json(operation))
        deadline = self._caller.deadline(timeout_s)
        return await self._caller.write(words.DELETE, body, words.deleted, deadline=deadline)

    async def txn(
        self,
        compare: Iterable[Compare] = (),
        success: Iterable[Operation] = (),
        failure: Iterable[Operation] = (),
        *,
        timeout_s: float | None = None,
    ) -> TxnResult:
        """If all comparisons hold, do `success`, else `failure`: atomically, in one revision.

        `Compare(b"k", "version", "=", 0)` holds if the key does not exist. An operation may be a
        `TxnOp`. Raises `DuplicateKey` when one execution could put a key twice, or both put and
        delete it. One that can change nothing is a read: it is sent again until it is answered, and
        raises `ReadTimeout`.
        """
        whole = check_txn(compare, success, failure)
        body = _encode(words.txn_json(whole.compare, whole.success, whole.failure))
        deadline = self._caller.deadline(timeout_s)
        if reads_only(whole.success, whole.failure):
            return await self._caller.read(words.TXN, body, words.txn_done, deadline=deadline)
        return await self._caller.write(words.TXN, body, words.txn_done, deadline=deadline)

    async def compact(self, revision: int, *, timeout_s: float | None = None) -> CompactResult:
        """Forget the history before `revision`. Raises `Compacted` or `FutureRevision`."""
        check_revisions(revision=revision)
        body = _encode({"revision": str(revision)})
        deadline = self._caller.deadline(timeout_s)
        return await self._caller.write(words.COMPACT, body, words.compacted, deadline=deadline)

    def watch(
        self,
        key: bytes | None = None,
        last: bytes | None = None,
        *,
        prefix: bytes | None = None,
        first: bytes | None = None,
        start_revision: int = 0,
        prev_kv: bool = False,
        put: bool = True,
        delete: bool = True,
        progress_s: float = 0.0,
    ) -> ClientWatch:
        """What happens to a key, a range of keys, or those that start with `prefix`.

        From `start_revision` on, 0: from now. It goes on by itself at another endpoint when one
        fails, without a gap or a double, and ends by `close`, or by raising `WatchCancelled` when
        the history that it needs was compacted or the client was closed. Entering its context waits
        until it has begun. `first` stands for `key` where that is the bound
        of a range: alone, all keys from it on. Without any bound: all keys.
        """
        require_int64("start_revision", start_revision, 0)
        self._caller.check_usable()
        low, range_end = watched_range(key, first, last, prefix)
        request: dict[str, Any] = {"key": low, "progress_notify": True}
        if range_end:
            request["range_end"] = range_end
        if prev_kv:
            request["prev_kv"] = True
        filters = [name for name, wanted in (("NOPUT", put), ("NODELETE", delete)) if not wanted]
        if filters:
            request["filters"] = filters
        return ClientWatch(self._caller, request, start_revision, progress_s)

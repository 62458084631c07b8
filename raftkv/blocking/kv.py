"""The keyspace without asyncio: `kv` of a blocking client or node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raftkv.client.kv import ClientKV
from raftkv.kv.api import KVApi
from raftkv.kv.commands import (
    CompactResult,
    Compare,
    DeleteRangeOp,
    DeleteRangeResult,
    KeyValue,
    Operation,
    PutResult,
    RangeOp,
    RangeResult,
    SortBy,
    TxnResult,
)
from raftkv.plugin import Consistency

from .portal import Portal
from .watch import Watch

__all__ = ["KV"]


class KV:
    """Put, read, delete, compare and watch keys. Methods, results and errors are those of
    `raftkv.KVApi`; every call waits for its answer, and any thread may call."""

    def __init__(self, portal: Portal, api: KVApi | ClientKV) -> None:
        self._portal = portal
        self._api = api

    def put(
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
        result: PutResult = self._portal.call(
            self._api.put(
                key,
                value,
                lease=lease,
                prev_kv=prev_kv,
                ignore_value=ignore_value,
                ignore_lease=ignore_lease,
                timeout_s=timeout_s,
            )
        )
        return result

    def get(
        self,
        key: bytes,
        *,
        revision: int = 0,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> KeyValue | None:
        """The key, or None; as of `revision`, if that is not 0."""
        found: KeyValue | None = self._portal.call(
            self._api.get(key, revision=revision, consistency=consistency, timeout_s=timeout_s)
        )
        return found

    def range(
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
        result: RangeResult = self._portal.call(
            self._api.range(
                first,
                last,
                prefix=prefix,
                limit=limit,
                keys_only=keys_only,
                count_only=count_only,
                revision=revision,
                sort_by=sort_by,
                descending=descending,
                min_mod_revision=min_mod_revision,
                max_mod_revision=max_mod_revision,
                min_create_revision=min_create_revision,
                max_create_revision=max_create_revision,
                consistency=consistency,
                timeout_s=timeout_s,
            )
        )
        return result

    def read(
        self,
        operation: RangeOp,
        *,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> RangeResult:
        """`range` in etcd's words."""
        result: RangeResult = self._portal.call(
            self._api.read(operation, consistency=consistency, timeout_s=timeout_s)
        )
        return result

    def pages(
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
    ) -> Iterator[RangeResult]:
        """A large range in parts of `page_keys` keys, in key order, all as of one revision.

        That is `revision`, or the newest when the first page is read. Raises `Compacted` when it
        is compacted before the last page was read. `timeout_s` is for each page.
        """
        pages = self._api.pages(
            first,
            last,
            prefix=prefix,
            page_keys=page_keys,
            keys_only=keys_only,
            revision=revision,
            consistency=consistency,
            timeout_s=timeout_s,
        )

        async def next_page() -> RangeResult | None:
            return await anext(pages, None)

        while (page := self._portal.call(next_page())) is not None:
            yield page

    def delete(
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
        result: DeleteRangeResult = self._portal.call(
            self._api.delete(key, last, prefix=prefix, prev_kv=prev_kv, timeout_s=timeout_s)
        )
        return result

    def delete_range(
        self, operation: DeleteRangeOp, *, timeout_s: float | None = None
    ) -> DeleteRangeResult:
        """`delete` in etcd's words."""
        result: DeleteRangeResult = self._portal.call(
            self._api.delete_range(operation, timeout_s=timeout_s)
        )
        return result

    def txn(
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
        delete it.
        """
        result: TxnResult = self._portal.call(
            self._api.txn(compare, success, failure, timeout_s=timeout_s)
        )
        return result

    def compact(self, revision: int, *, timeout_s: float | None = None) -> CompactResult:
        """Forget the history before `revision`. Raises `Compacted` or `FutureRevision`."""
        result: CompactResult = self._portal.call(self._api.compact(revision, timeout_s=timeout_s))
        return result

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
    ) -> Watch:
        """What happens to a key, a range of keys, or those that start with `prefix`.

        `first` stands for `key` where that is the bound of a range: alone, all keys from it on.
        From `start_revision` on, 0: from now. An iterator of `WatchBatch` and a context manager.
        """
        made = self._portal.run(
            lambda: self._api.watch(
                key,
                last,
                prefix=prefix,
                first=first,
                start_revision=start_revision,
                prev_kv=prev_kv,
                put=put,
                delete=delete,
                progress_s=progress_s,
            )
        )
        return Watch(self._portal, made)

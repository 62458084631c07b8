"""The keyspace's typed API on one node: `node.kv`.

Reads of the present look at this node's tables after a barrier. Reads of the past collect what has
changed since (history.py), which may be much: that is done in slices, and the loop runs in between
(walk.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from msgspec.structs import replace

from raftkv.errors import Stopped, TooLarge
from raftkv.plugin import Consistency, Host
from raftkv.validation import checked, require_int64, require_timeout

from .arguments import (
    check_key,
    check_put,
    check_range,
    check_revisions,
    check_txn,
    deleted_range,
    reads_only,
    watched_range,
)
from .changing import LIMIT_MIN, check_ignored
from .commands import (
    FROM_KEY,
    Compact,
    CompactResult,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    DeleteRangeResult,
    FlatTxn,
    KeyValue,
    NestedTxn,
    Operation,
    Put,
    PutOp,
    PutResult,
    PutWith,
    RangeOp,
    RangeResult,
    SortBy,
    Txn,
    TxnOutcome,
    TxnResult,
    TxnTooCostly,
    bounds_of,
)
from .hashing import KeyspaceHash, hash_in_slices
from .history import lowest_revision, revision_of
from .large import SLICE_KEYS, RangePlaces, is_large, read_in_slices, rows_max_of, rows_of
from .leases import LeaseApi
from .past_reads import PastPlaces, Pasts
from .ranges import read_range, reads_all
from .read_only import UNITS_MAX, WAIT_S, LargeReads, ReadOnlyTxn, has_history
from .transactions import flatten, too_many, unflatten
from .walk import Walk, require_kept_state
from .watch import Watch
from .watch_hub import WatchHub
from .work_budget import WORK_MAX, WorkBudget

__all__ = ["KVApi"]

# A transaction that looks at so few rows and changes waits for no turn of its own.
FEW_UNITS: Final = 100


class KVApi:
    """Put, read and delete keys; compare and change several at once; watch them.

    Works on every node, replicants too. A change raises `TooLarge` or another `NotApplied` when
    nothing happened, a `Refused` when the keyspace refused it, `Timeout` when the outcome is
    unknown. A read raises `ReadTimeout`. `timeout_s` None takes the node's default. Keys and values
    are bytes; anything else is a TypeError.

    A read with a `revision` other than 0 sees the keyspace as it was then. It raises `Compacted` if
    that is no longer kept, `FutureRevision` if this node does not know of it, `Overloaded` if too
    many such reads wait in this node.
    """

    def __init__(self, host: Host, whole: KVApi | None = None) -> None:
        """`whole`: another API of the same node, whose limits of work it shares."""
        self._host = host
        self._whole: KVApi = self if whole is None else whole
        #: What is read in a turn of the loop, for all callers of the node.
        self.budget: WorkBudget = WorkBudget() if whole is None else whole.budget
        # Set by the service, which runs it.
        self.hub: WatchHub | None = None
        self.leases = LeaseApi(host, self.budget)
        places = PastPlaces() if whole is None else whole.pasts.places
        self.pasts: Pasts = Pasts(host, self.budget, places)
        self._places: RangePlaces = RangePlaces() if whole is None else whole._places
        self._large_reads: LargeReads = LargeReads() if whole is None else whole._large_reads
        #: Transactions of this node's callers that were refused as TxnTooCostly.
        self.too_costly = 0

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

        `lease` attaches the key to a lease, with which it ends; 0 detaches it from a former one.
        `ignore_value` keeps the value that the key has (give b""), `ignore_lease` the lease (give
        none); the key must exist. Refused with `LeaseNotFound`, `KeyNotFound`, `ValueGiven`,
        `LeaseGiven`.
        """
        # Most puts pass at once: no limit may be lower than LIMIT_MIN.
        if not (
            type(key) is bytes and type(value) is bytes and 0 < len(key) <= LIMIT_MIN - len(value)
        ):
            self._check(key, value)
        # Checked by hand here and in `get`: these two are called most.
        if not (
            type(lease) is int
            and not lease
            and prev_kv is False
            and ignore_value is False
            and ignore_lease is False
        ):
            check_put(lease, prev_kv=prev_kv, ignore_value=ignore_value, ignore_lease=ignore_lease)
        if timeout_s is not None:
            require_timeout(timeout_s)
        command: Put | PutWith
        if lease or ignore_value or ignore_lease:
            command = PutWith(key, value, prev_kv, lease, ignore_value, ignore_lease)
            check_ignored(command)
        else:
            command = Put(key, value, prev_kv)
        result: PutResult = await self._host.propose(command, timeout_s=timeout_s)
        return result

    async def get(
        self,
        key: bytes,
        *,
        revision: int = 0,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> KeyValue | None:
        """The key, or None. "local" answers at once from this node's copy, which may be stale."""
        check_revisions(revision=revision)
        if timeout_s is not None:
            require_timeout(timeout_s)
        if revision > 0:
            operation = RangeOp(key, revision=revision)
            past = await self.read(operation, consistency=consistency, timeout_s=timeout_s)
            return past.kvs[0] if past.kvs else None
        self._check(key)
        await self._host.barrier(consistency, timeout_s=timeout_s)
        found: KeyValue | None = self._host.view().table("keys").get(key)
        return found

    @checked
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
        keys in one answer; the result's `more` tells whether a limit has left any out. `keys_only`
        leaves the values empty. The four bounds of revisions, 0 is none, leave keys out; `count` is
        the number of keys in the range all the same. For large ranges see `pages`.
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

    @checked
    async def read(
        self,
        operation: RangeOp,
        *,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> RangeResult:
        """`range` in etcd's words. A revision below 0 reads the newest state, as in etcd."""
        check_range(operation)
        self._check(operation.key)
        deadline = None
        if timeout_s is not None and operation.revision > 0:
            deadline = asyncio.get_running_loop().time() + timeout_s
        await self._host.barrier(consistency, timeout_s=timeout_s)
        if operation.range_end and not operation.count_only:
            rows, discards = self.rows(operation), self._host.view().discards
            if rows <= SLICE_KEYS:  # else it is read in pages, each of which waits
                await self.budget.rows(rows)
                self.budget.spend(rows)
                require_kept_state(self._host.view(), discards)
        view = self._host.view()
        if is_large(view, operation):
            return await self._read_large(operation)
        if operation.revision > 0:
            return await self.pasts.read(operation, deadline)
        return read_range(view.table("keys"), operation, self.revision)

    def rows(self, operation: RangeOp) -> int:
        """How many rows of this node's copy, as it is now, a read looks at."""
        return rows_of(self._host.view(), operation)

    def rows_max(self, operation: RangeOp) -> int:
        """How many rows a read may hold at most, by this node's copy as it is now."""
        return rows_max_of(self._host.view(), operation)

    @asynccontextmanager
    async def place(
        self,
        operation: RangeOp,
        consistency: Consistency = "local",
        timeout_s: float | None = None,
    ) -> AsyncIterator[None]:
        """A place to read a range in slices, in a state as new as `consistency` demands.

        Raises ReadTimeout if this node discarded its state while it waited for the place.
        """
        await self._host.barrier(consistency, timeout_s=timeout_s)
        discards = self._host.view().discards
        async with self._places.of(self.rows_max(operation)):
            require_kept_state(self._host.view(), discards)
            yield

    async def _read_large(self, operation: RangeOp) -> RangeResult:
        limit = 0 if reads_all(operation) else operation.limit
        walk = RangeOp(operation.key, operation.range_end, limit, revision=operation.revision)
        async with self.place(operation):
            found = await read_in_slices(self._walk(walk), operation, self.budget)
        # As in etcd the answer tells the newest revision, whichever one was read.
        return replace(found, revision=self.revision) if operation.revision > 0 else found

    @checked
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
        an empty one. Raises `Compacted` when what was changed after one page is compacted before
        the next. `consistency` and `timeout_s` are for the first page, the others need nobody.
        """
        if page_keys < 1:
            raise ValueError(f"page_keys = {page_keys}: it must be 1 or more")
        check_revisions(revision=revision)
        key, range_end = bounds_of(first, last, prefix)
        walk = self.walk(RangeOp(key, range_end, keys_only=keys_only, revision=revision))
        while not walk.done():
            yield await walk.page(page_keys, consistency=consistency, timeout_s=timeout_s)

    @checked
    def walk(self, operation: RangeOp) -> Walk:
        """`pages` in etcd's words, to be asked for each page."""
        check_range(operation)
        self._check(operation.key)
        return self._walk(operation)

    def _walk(self, operation: RangeOp) -> Walk:
        return Walk(self._host, operation, self.budget)

    @checked
    async def hash(
        self,
        revision: int = 0,
        *,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> KeyspaceHash:
        """A digest of all keys of this node as of a revision, 0 the newest: the same on all nodes.

        Raises `Compacted` and `FutureRevision` as a read does. "local" asks nobody: what this copy
        holds by now.
        """
        check_revisions(revision=revision)
        operation = RangeOp(b"\0", FROM_KEY, revision=revision)
        async with self.place(operation, consistency, timeout_s):
            walk = self._walk(operation)
            return await hash_in_slices(walk, self.budget)

    @checked
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

    @checked
    async def delete_range(
        self, operation: DeleteRangeOp, *, timeout_s: float | None = None
    ) -> DeleteRangeResult:
        """`delete` in etcd's words."""
        self._check(operation.key)
        command = DeleteRange(operation.key, operation.range_end, operation.prev_kv)
        result: DeleteRangeResult = await self._host.propose(command, timeout_s=timeout_s)
        return result

    @checked
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
        `TxnOp`, a transaction of its own; its comparisons, too, see the keyspace as it was before.
        Raises `DuplicateKey` when one execution could put a key twice, or both put and delete it,
        `TxnTooCostly` when its comparisons and ranges look at more than the setting `rows_max`.

        One that can change nothing is a read: it needs no entry in the log, sees one state, the
        newest, and raises `ReadTimeout` like other reads.
        """
        whole = check_txn(compare, success, failure)
        command = flatten(whole.compare, whole.success, whole.failure)
        self._check_txn(command)
        reads = reads_only(whole.success, whole.failure)
        try:
            return unflatten(await self._outcome(command, timeout_s, reads))
        except TxnTooCostly:
            self._whole.too_costly += 1
            raise

    async def _outcome(self, command: Txn, timeout_s: float | None, reads: bool) -> TxnOutcome:
        if reads:
            await self._host.barrier("linearizable", timeout_s=timeout_s)
            if has_history(self._host.view()):
                return await self._read_txn(command, timeout_s)
        outcome: TxnOutcome = await self._host.propose(command, timeout_s=timeout_s)
        return outcome

    async def _read_txn(self, command: Txn, timeout_s: float | None) -> TxnOutcome:
        read = ReadOnlyTxn(self._host, command, self.budget, UNITS_MAX)
        units, discards = read.units(), self._host.view().discards
        if units <= FEW_UNITS:
            return await read.outcome()
        if units <= UNITS_MAX:
            # One of the small pieces, also if it needs all of a turn.
            await self.budget.room(min(units, WORK_MAX - 1))
            require_kept_state(self._host.view(), discards)
            read = ReadOnlyTxn(self._host, command, self.budget, UNITS_MAX)
            if read.units() <= UNITS_MAX:
                return await read.outcome()
        wait_s = WAIT_S if timeout_s is None else timeout_s
        async with self._large_reads.of(asyncio.get_running_loop().time() + wait_s):
            await self.budget.room()
            require_kept_state(self._host.view(), discards)
            # As of now, not of when it came.
            return await ReadOnlyTxn(self._host, command, self.budget).outcome()

    @checked
    async def compact(self, revision: int, *, timeout_s: float | None = None) -> CompactResult:
        """Forget the history before `revision`; of each key its state as of then is kept.

        Refused as `Compacted` unless it is greater than the compacted revision, as `FutureRevision`
        if it is greater than the current one.
        """
        check_revisions(revision=revision)
        result: CompactResult = await self._host.propose(Compact(revision), timeout_s=timeout_s)
        return result

    @checked
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
        """What happens to one key, or to those with `key <= k < last`, or with a prefix, in order.

        `first` stands for `key` where that is the bound of a range: alone, all keys from it on.
        From `start_revision` on, which may lie ahead; 0 is from now: every change that is made
        after `created()` has returned, and perhaps a few that this node has yet to hear of. Comes
        from this node's own copy, so it needs no leader. Without any bound: all keys.

        `prev_kv` adds to each event what the key was before. `put` and `delete` False leave such
        events out. `progress_s` gives a mark whenever the watch was idle for so long.

        Entering its context waits until it has begun, which takes a moment on a node that is only
        starting. The iteration ends with `WatchCancelled`, also if `start_revision` was compacted.
        Close what you do not need any more (`async with`), for the node goes on filling its buffer.
        """
        require_int64("start_revision", start_revision, 0)
        low, range_end = watched_range(key, first, last, prefix)
        self._check(low)
        if self.hub is None:
            raise Stopped("the node was not started")
        return self.hub.open(
            low,
            range_end,
            start_revision=start_revision,
            prev_kv=prev_kv,
            put=put,
            delete=delete,
            progress_s=progress_s,
        )

    @property
    def revision(self) -> int:
        """The keyspace's revision in this node's copy."""
        return revision_of(self._host.view())

    @property
    def lowest_revision(self) -> int:
        """The lowest that can be read or watched from in this node's copy; -1: all there were."""
        return lowest_revision(self._host.view())

    def _check(self, key: object, value: object = b"") -> None:
        check_key(key, value)
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        if len(key) + len(value) <= LIMIT_MIN:
            return
        settings = self._host.settings
        for what, data in (("key", key), ("value", value)):
            limit = settings[f"{what}_bytes_max"]
            if len(data) > limit:
                raise TooLarge(f"a {what} of {len(data)} bytes exceeds {what}_bytes_max = {limit}")

    def _check_txn(self, command: Txn) -> None:
        refusal = too_many(command, self._host.settings["txn_ops_max"])
        if refusal is not None:
            raise TooLarge(str(refusal))
        parts: tuple[Txn | FlatTxn, ...] = (command, *command.nested)
        for part in parts:
            for item in (*part.compare, *part.success, *part.failure):
                if isinstance(item, PutOp):
                    self._check(item.key, item.value)
                    check_ignored(item)
                elif not isinstance(item, NestedTxn):
                    self._check(item.key)

"""Transactions that change nothing: read beside the log, all as of one revision.

Such a transaction needs no entry of the log: after a barrier the node that got it compares and
reads in its own copy. The answer and the refusals are those that `apply_txn` gives, the limits
`rows_max` and `result_bytes_max` included.

Rules of this file
1. One state: all comparisons and ranges see the keyspace at the revision at which the reading
   began. One `Past` over all keys notes what is changed while the loop runs in between. A range of
   the past has a `Past` of its own, for the changes up to that revision only: so its work does not
   grow while it waits for turns.
2. Bounded work in a turn of the loop: SLICE_KEYS rows are looked at, and as many changes, then the
   loop runs. What needs no more units than that altogether is answered in one turn.
3. Bounded work at a time: READS_AT_ONCE of the larger ones are under way in a node, further ones
   wait before they choose their revision, so that little has changed until their next slice.
   With READS_WAITING_MAX of these the next one is refused with `Overloaded`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import islice
from typing import Final

from raftkv.plugin import Host, View

from .budget import Budget, compared_values, reserve_changes
from .commands import (
    FROM_KEY,
    Compacted,
    Compare,
    FlatTxn,
    FlatTxnResult,
    KeyValue,
    LimitExceeded,
    LogResult,
    NestedResult,
    NestedTxn,
    RangeOp,
    RangeResult,
    Revision,
    Txn,
    TxnOutcome,
    events_of,
)
from .history import (
    FIRST_REVISION,
    Past,
    Tables,
    events_behind,
    lowest_revision,
    require_in,
    revision_of,
)
from .large import SLICE_KEYS, Chosen
from .places import Places
from .plain import OPERATORS, TARGETS
from .ranges import Keys, bare, count_range, reads_all
from .transactions import branch_of, check_words, part_of
from .walk import NEAR_REVISIONS, require_kept_state
from .work_budget import WorkBudget

__all__ = ["UNITS_MAX", "LargeReads", "ReadOnlyTxn", "has_history"]

#: A transaction that looks at so many rows and changes, or fewer, is read in one turn of the loop.
UNITS_MAX: Final = 2 * SLICE_KEYS
# Each takes a slice of one to three milliseconds in a turn of the loop: together a fifth of a
# heartbeat's period.
READS_AT_ONCE: Final = 4
# An eighth of the requests that the HTTP API takes at once. At 100 ms each they are read in 6 s.
READS_WAITING_MAX: Final = 256
# How long one waits at most whose caller has named no time-out.
WAIT_S: Final = 5.0


def has_history(tables: Tables) -> bool:
    """Whether the keyspace notes what is changed; under format 1 of its commands it does not."""
    return revision_of(tables) == FIRST_REVISION or len(tables.table("history")) > 0


class LargeReads(Places):
    """The places for transactions that are read in slices."""

    def __init__(self) -> None:
        super().__init__(
            READS_WAITING_MAX,
            f"{READS_WAITING_MAX} transactions that read many keys wait in this node: "
            f"try again later, or ask for fewer keys at a time",
            "too many transactions that read many keys were before this one",
        )
        self._places = asyncio.Semaphore(READS_AT_ONCE)

    def of(self, until: float) -> AbstractAsyncContextManager[None]:
        """A place for one; see `place`."""
        return self.place(self._places, until)


class ReadOnlyTxn:
    """One transaction, read as of the revision that the keyspace has now.

    In a turn of the loop it looks at `rows_max` rows, and at SLICE_KEYS changes besides; then it
    waits for room in `turns`.
    """

    def __init__(self, host: Host, txn: Txn, turns: WorkBudget, rows_max: int = SLICE_KEYS) -> None:
        view = host.view()
        self._host = host
        self._turns = turns
        self._rows_max = rows_max
        self._txn = txn
        self._keys: Keys = view.table("keys")
        self._revision = revision_of(view)
        self._discards = view.discards
        self._lowest = lowest_revision(view)
        self._budget = Budget(view.settings["rows_max"], lambda rows: None)
        self._bytes_max = self._bytes_left = view.settings["result_bytes_max"]
        self._past = Past(b"\0", FROM_KEY, self._revision)
        self._chosen: dict[int, bool] = {}
        self._nested: list[FlatTxnResult] = []
        # Rows and changes, in this turn of the loop.
        self._looked = 0

    def units(self) -> int:
        """How many rows and changes it looks at, at most; the counting ends behind UNITS_MAX."""
        units, view = 0, self._host.view()
        parts: tuple[Txn | FlatTxn, ...] = (self._txn, *self._txn.nested)
        for part in parts:
            for item in (*part.compare, *part.success, *part.failure):
                if isinstance(item, Compare):
                    units += 1 + count_range(self._keys, item.key, item.range_end)
                elif isinstance(item, RangeOp):
                    units += self._units_of(view, item)
                if units > UNITS_MAX:
                    return units
        return units

    def _units_of(self, view: View, operation: RangeOp) -> int:
        events = 0
        if operation.revision > 0:
            events = events_behind(view, operation.revision, UNITS_MAX)
        rows = count_range(self._keys, operation.key, operation.range_end)
        # The range is counted, and each row is read and then listed. A change is counted, looked at
        # and a row of the range by itself: of a key that is gone, or was created since.
        return 3 + 2 * rows + 4 * events

    async def outcome(self) -> TxnOutcome:
        """Read it. Raises what `apply_txn` refuses, and `Compacted` as a range in slices does."""
        txn = self._txn
        check_words(txn, txn)
        await self._choose(-1)
        self._check_ranges(-1)
        await self._reserve(-1)
        results = await self._perform(-1)
        return TxnOutcome(self._revision, self._chosen[-1], results, tuple(self._nested))

    # -- as apply_txn does it

    async def _choose(self, number: int) -> None:
        part, holds = part_of(self._txn, number), True
        for compare in part.compare:
            if not await self._holds(compare):
                holds = False
                break
        self._chosen[number] = holds
        for operation in branch_of(part, holds):
            if isinstance(operation, NestedTxn):
                await self._choose(operation.number)

    async def _holds(self, compare: Compare) -> bool:
        holds, target, operand = OPERATORS[compare.op], TARGETS[compare.target], compare.operand
        rows = await self._counted(None, compare.key, compare.range_end)
        self._budget.rows(rows)
        if not rows:
            return compare.target != "value" and holds(0, operand)
        key = compare.key
        while rows > 0:
            kvs = await self._page(None, key, compare.range_end, min(rows, SLICE_KEYS))
            compared: Iterable[KeyValue] = kvs
            if compare.range_end and isinstance(operand, bytes):
                compared = compared_values(kvs, operand, self._budget)
            if not all(holds(target(kv), operand) for kv in compared):
                return False
            rows -= len(kvs)
            key = kvs[-1].key + b"\0"
        return True

    def _check_ranges(self, number: int) -> None:
        for operation in branch_of(part_of(self._txn, number), self._chosen[number]):
            if isinstance(operation, NestedTxn):
                self._check_ranges(operation.number)
            elif isinstance(operation, RangeOp) and operation.revision != 0:
                require_in(operation.revision, self._lowest, self._revision)

    async def _perform(self, number: int) -> tuple[LogResult, ...]:
        results: list[LogResult] = []
        for operation in branch_of(part_of(self._txn, number), self._chosen[number]):
            if isinstance(operation, RangeOp):
                results.append(await self._read(operation))
            else:
                assert isinstance(operation, NestedTxn)
                place, succeeded = len(self._nested), self._chosen[operation.number]
                self._nested.append(FlatTxnResult(succeeded, ()))
                inner = await self._perform(operation.number)
                self._nested[place] = FlatTxnResult(succeeded, inner)
                results.append(NestedResult(place))
        return tuple(results)

    # -- ranges

    async def _reserve(self, number: int) -> None:
        """Count the ranges before they are read, as `budget.reserve` does."""
        for operation in branch_of(part_of(self._txn, number), self._chosen[number]):
            if isinstance(operation, NestedTxn):
                await self._reserve(operation.number)
            elif isinstance(operation, RangeOp):
                await self._reserve_range(operation)

    async def _reserve_range(self, operation: RangeOp) -> None:
        if operation.limit < 0:
            raise LimitExceeded(f"limit = {operation.limit} must be 0 (no limit) or more")
        count = await self._counted(None, operation.key, operation.range_end)
        if 0 < operation.revision < self._revision:
            await self._reserve_changes(operation.revision)
        elif operation.count_only:
            return
        elif operation.limit and not reads_all(operation):
            count = min(operation.limit, count)
        self._budget.rows(count)

    async def _reserve_changes(self, after: int) -> None:
        while after < self._revision:
            upto, events = self._upto(after)
            if events <= SLICE_KEYS:
                await self._look(events)
            view = self._host.view()
            require_kept_state(view, self._discards)
            if after + 1 not in view.table("history"):
                lowest = lowest_revision(view)
                raise Compacted(
                    f"what followed revision {after} has been compacted while a range was read, "
                    f"the lowest that is kept is {lowest}",
                    lowest,
                )
            row: Revision = view.table("history")[upto]
            if len(row.more) < SLICE_KEYS:
                reserve_changes(view, after, upto, self._budget)
            else:
                await self._reserve_large(row)
            after = upto

    async def _reserve_large(self, row: Revision) -> None:
        """`reserve_changes` of one row with more than SLICE_KEYS events."""
        self._budget.rows(1 + len(row.more))
        events = iter(events_of(row))
        while part := list(islice(events, SLICE_KEYS)):
            await self._look(len(part))
            require_kept_state(self._host.view(), self._discards)
            for event in part:
                self._budget.bytes(len(event.kv.key))

    def _upto(self, after: int) -> tuple[int, int]:
        """The next revisions with up to SLICE_KEYS events, or one with more; how many they are."""
        history = self._host.view().table("history")
        upto, events = after, 0
        while upto < self._revision and upto + 1 in history:
            more = 1 + len(history[upto + 1].more)
            if events and events + more > SLICE_KEYS:
                break
            upto, events = upto + 1, events + more
        return max(upto, after + 1), events

    async def _read(self, operation: RangeOp) -> RangeResult:
        key, range_end = operation.key, operation.range_end
        whole = reads_all(operation)
        past = None
        if 0 < operation.revision < self._revision:
            past = Past(key, range_end, operation.revision)
            await self._look_back(past)
        count = await self._counted(past, key, range_end)
        if operation.count_only:
            return RangeResult(self._revision, (), count, False)
        chosen = Chosen(operation)
        left = count if whole or not operation.limit else min(operation.limit, count)
        while left > 0:
            kvs = await self._page(past, key, range_end, min(left, SLICE_KEYS))
            chosen.add(kvs)
            left -= len(kvs)
            key = kvs[-1].key + b"\0"
        found = await self._listed(chosen.in_order(), operation.keys_only)
        more = 0 < operation.limit < chosen.passed if whole else count > len(found)
        return RangeResult(self._revision, found, count, more)

    async def _counted(self, older: Past | None, key: bytes, range_end: bytes) -> int:
        """How many keys a range has: as of `older`, a past of before the transaction, if given."""
        keys = await self._rows_for(1)
        if older is None:
            return self._past.count(keys, key, range_end)
        return older.count(keys, key, range_end, self._past)

    async def _page(
        self, older: Past | None, key: bytes, range_end: bytes, limit: int
    ) -> list[KeyValue]:
        """The first `limit` keys of a range, which has as many."""
        found: list[KeyValue] = []
        begin, rows_max = key, limit
        while True:
            keys, left = await self._rows_for(rows_max), limit - len(found)
            if older is None:
                kvs, looked, goes_on_at = self._past.slice(keys, begin, range_end, left, rows_max)
            else:
                kvs, looked, goes_on_at = older.slice(
                    keys, begin, range_end, left, rows_max, self._past
                )
            self._count(looked - rows_max)
            found += kvs
            if goes_on_at is None or len(found) == limit:
                break
            # There were keys that have been created since.
            begin = goes_on_at
            has_room = self._rows_max - self._looked
            rows_max = min(has_room, SLICE_KEYS) if has_room > 0 else SLICE_KEYS
        assert found, "counted as of the same revision"
        return found

    async def _listed(self, kvs: Iterator[KeyValue], keys_only: bool) -> tuple[KeyValue, ...]:
        """The keys as a result holds them, if they have room in it."""
        found: list[KeyValue] = []
        while part := list(islice(kvs, SLICE_KEYS)):
            await self._look(len(part))
            if keys_only:
                part = [bare(kv) for kv in part]
            self._bytes_left -= sum(len(kv.key) + len(kv.value) for kv in part)
            if self._bytes_left < 0:
                raise LimitExceeded(
                    f"the result exceeds result_bytes_max = {self._bytes_max}: ask for less"
                )
            found += part
        return tuple(found)

    # -- work

    async def _look_back(self, past: Past) -> None:
        """Let `past` look at the changes up to the revision of the transaction."""
        while True:
            view = self._host.view()
            require_kept_state(view, self._discards)
            past.require_kept(view)
            left = self._rows_max + SLICE_KEYS - self._looked
            self._count(past.catch_up(view, left, self._revision))
            if not past.is_behind(view, self._revision):
                return
            await self._turn()

    async def _rows_for(self, rows: int) -> Keys:
        """The keyspace's rows, for a look at `rows` of them, which count as looked at.

        What has changed since the transaction began is in `self._past`, until an `await`.
        """
        if self._looked + rows > self._rows_max:
            await self._turn()
        past = self._past
        while True:
            view = self._host.view()
            require_kept_state(view, self._discards)
            past.require_kept(view)
            left = self._rows_max + SLICE_KEYS - self._looked - rows
            self._count(past.catch_up(view, left))
            if not past.is_behind(view):
                self._count(rows)
                return view.table("keys")
            behind = past.revisions_behind(revision_of(view))
            await self._turn(goes_on=behind <= NEAR_REVISIONS)

    async def _look(self, rows: int) -> None:
        """Wait for another turn of the loop unless this one has room for a look at `rows` more."""
        if self._looked + rows > self._rows_max:
            await self._turn()
        self._count(rows)

    async def _turn(self, goes_on: bool = False) -> None:
        self._looked = 0
        await self._turns.room(goes_on=goes_on)

    def _count(self, units: int) -> None:
        self._looked += units
        self._turns.spend(units)

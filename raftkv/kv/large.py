"""Reads of many keys, in slices: the loop runs in between, and with it the heartbeats of a leader.

The answer is that of `ranges.read_range`, key for key. There everything is done in one go: the keys
are filtered, sorted, cut. Here they pass by in the pages of a walk (walk.py), all as of one
revision, and what is kept of them depends on what is asked for:

- in key order: all of them, as they come;
- a few of them by another order: the best so far, and a bag of others that is sorted in and cut
  whenever it is full;
- many by another order: sorted runs, merged in the end, a slice at a time. A stable merge of stable
  sorts is a stable sort, so keys that are equal stay in key order here, too.

In key order a caller can take page after page (`KVApi.pages`). By another order everything that may
be in the answer is held until the end, so its bytes are bounded: SORTED_BYTES_MAX.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import islice
from typing import Final

from raftkv.errors import TooLarge

from .commands import KeyValue, RangeOp, RangeResult
from .history import EVENT_BYTES, Tables, bytes_behind, events_behind
from .ranges import bare, count_range, passes, reads_all, sort_key
from .walk import Walk
from .work_budget import WorkBudget

__all__ = [
    "RUN_KEYS",
    "SLICE_KEYS",
    "SORTED_BYTES_MAX",
    "Chosen",
    "RangePlaces",
    "is_large",
    "read_in_slices",
    "rows_max_of",
    "rows_of",
]

# A slice takes one to three milliseconds: a twentieth of a heartbeat's period at most.
SLICE_KEYS: Final = 1000
# Of ranges of more keys a few are read at once, beside a few of those with fewer.
LONG_KEYS: Final = 20 * SLICE_KEYS
LONG_AT_ONCE: Final = 4
SHORT_AT_ONCE: Final = 8
# Sorted in about four milliseconds.
RUN_KEYS: Final = 8192
#: Bytes of keys and values that one read by another order than that of the keys holds: as much as
#: one answer of the HTTP API may have.
SORTED_BYTES_MAX: Final = 256 * 1024 * 1024


class RangePlaces:
    """The places for ranges that are read in slices; a read of so many rows takes one.

    One that has begun looks at all that is changed until its end. Without a bound, hundreds of them
    would look at more with each slice than can be changed in it, and never end. Those of up to
    LONG_KEYS rows have places of their own, so that they wait behind none that take seconds.
    """

    def __init__(self) -> None:
        self._short = asyncio.Semaphore(SHORT_AT_ONCE)
        self._long = asyncio.Semaphore(LONG_AT_ONCE)

    def of(self, rows: int) -> AbstractAsyncContextManager[None]:
        if rows <= SLICE_KEYS:
            return nullcontext()
        return self._short if rows <= LONG_KEYS else self._long


def is_large(tables: Tables, operation: RangeOp) -> bool:
    """Whether a read takes longer than a slice."""
    return bool(operation.range_end) and rows_of(tables, operation) > SLICE_KEYS


def rows_of(tables: Tables, operation: RangeOp) -> int:
    """How many rows a read looks at; the counting of those that are gone ends behind SLICE_KEYS."""
    if operation.count_only:
        return 0
    count = count_range(tables.table("keys"), operation.key, operation.range_end)
    limited = operation.limit > 0 and not reads_all(operation)
    enough = min(operation.limit, SLICE_KEYS + 1) if limited else SLICE_KEYS + 1
    if operation.revision > 0 and operation.range_end and count < enough:
        count += events_behind(tables, operation.revision, enough - count)
    return min(operation.limit, count) if limited else count


def rows_max_of(tables: Tables, operation: RangeOp) -> int:
    """How many rows a read may hold at most: each change since may be of a key that is gone."""
    rows = rows_of(tables, operation)
    if operation.revision > 0 and rows > SLICE_KEYS:
        rows += bytes_behind(tables, operation.revision) // EVENT_BYTES
    return rows


async def read_in_slices(walk: Walk, operation: RangeOp, budget: WorkBudget) -> RangeResult:
    """Answer a read by a walk over its range, which must not have begun. Needs no barrier.

    The result's revision is that of the walk.
    """
    page = await walk.page(SLICE_KEYS, consistency="local")
    revision, count = page.revision, page.count
    chosen = Chosen(operation, SORTED_BYTES_MAX)
    chosen.add(page.kvs)
    while not walk.done():
        page = await walk.page(SLICE_KEYS)
        chosen.add(page.kvs)
    kvs = await _listed(chosen.in_order(), operation.keys_only, budget)
    more = page.more if not reads_all(operation) else 0 < operation.limit < chosen.passed
    return RangeResult(revision, kvs, count, more)


class Chosen:
    """What is kept of the keys that pass by. `bytes_max` bounds what is sorted; 0: nothing does."""

    def __init__(self, operation: RangeOp, bytes_max: int = 0) -> None:
        self._operation = operation
        self._bytes_max = bytes_max
        self._sorts = operation.sort_by != "key" or operation.descending
        self._few = 0 < operation.limit <= RUN_KEYS
        self._runs: list[list[KeyValue]] = []
        self._bag: list[KeyValue] = []
        #: How many the filters have let pass.
        self.passed = 0
        # Bytes of what is held; of a few, of those that were not cut.
        self._bytes = 0

    def add(self, kvs: Sequence[KeyValue]) -> None:
        operation = self._operation
        if reads_all(operation):
            found = [kv for kv in kvs if passes(operation, kv)]
        else:
            found = list(kvs)
        if operation.keys_only and operation.sort_by != "value":
            # Only the keys are answered, so only they are held.
            found = [bare(kv) for kv in found]
        self.passed += len(found)
        self._bag += found
        if self._sorts and self._bytes_max:
            self._hold(found)
        if not self._sorts:
            if self._few:
                del self._bag[operation.limit :]
        elif self._few and len(self._bag) >= operation.limit + RUN_KEYS:
            self._sort()
            del self._bag[operation.limit :]
        elif not self._few and len(self._bag) >= RUN_KEYS:
            self._sort()
            self._runs.append(self._bag)
            self._bag = []

    def _hold(self, kvs: Sequence[KeyValue]) -> None:
        self._bytes += _size_of(kvs)
        if self._bytes <= self._bytes_max:
            return
        if self._few:
            self._sort()
            del self._bag[self._operation.limit :]
            self._bytes = _size_of(self._bag)
        if self._bytes > self._bytes_max:
            raise TooLarge(
                f"a read by {self._operation.sort_by}, or backwards, holds more than "
                f"{self._bytes_max} bytes of keys and values: give a limit of {RUN_KEYS} or less, "
                f"a smaller range, or read pages in key order and sort them"
            )

    def in_order(self) -> Iterator[KeyValue]:
        """The answer's keys."""
        operation = self._operation
        if self._sorts:
            self._sort()
        runs = [*self._runs, self._bag]
        merged: Iterator[KeyValue] = (
            heapq.merge(*runs, key=sort_key(operation), reverse=operation.descending)
            if len(runs) > 1
            else iter(self._bag)
        )
        return islice(merged, min(operation.limit, self.passed)) if operation.limit > 0 else merged

    def _sort(self) -> None:
        operation = self._operation
        self._bag.sort(key=sort_key(operation), reverse=operation.descending)


def _size_of(kvs: Sequence[KeyValue]) -> int:
    return sum([len(kv.key) + len(kv.value) for kv in kvs])


async def _listed(
    kvs: Iterator[KeyValue], keys_only: bool, budget: WorkBudget
) -> tuple[KeyValue, ...]:
    found: list[KeyValue] = []
    while part := list(islice(kvs, SLICE_KEYS)):
        budget.spend(len(part))
        await budget.room()
        found += [bare(kv) for kv in part] if keys_only else part
    return tuple(found)

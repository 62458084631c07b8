"""Reads of many keys, in slices: the loop runs in between, and with it the heartbeats of a leader.

The answer is that of `ranges.read_range`, key for key. There everything is done in one go: the keys
are filtered, sorted, cut. Here they pass by in the pages of a walk (walk.py), all as of one
revision, and what is kept of them depends on what is asked for:

- in key order: all of them, as they come;
- a few of them by another order: the best so far, and a bag of others that is sorted in and cut
  whenever it is full;
- many by another order: sorted runs, merged in the end, a slice at a time. A stable merge of stable
  sorts is a stable sort, so keys that are equal stay in key order here, too.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from .commands import KeyValue, RangeOp, RangeResult
from .ranges import Keys, bare, count_range, passes, reads_all, sort_key
from .walk import Walk

__all__ = ["RUN_KEYS", "SLICE_KEYS", "Chosen", "is_large", "read_in_slices"]

# A slice takes one to three milliseconds: a twentieth of a heartbeat's period at most.
SLICE_KEYS: Final = 1000
# Sorted in about four milliseconds.
RUN_KEYS: Final = 8192


def is_large(keys: Keys, operation: RangeOp) -> bool:
    """Whether a read takes longer than a slice."""
    if not operation.range_end or operation.count_only:
        return False
    if 0 < operation.limit <= SLICE_KEYS and not reads_all(operation):
        return False
    return count_range(keys, operation.key, operation.range_end) > SLICE_KEYS


async def read_in_slices(walk: Walk, operation: RangeOp) -> RangeResult:
    """Answer a read by a walk over its range, which must not have begun. Needs no barrier.

    The result's revision is that of the walk.
    """
    page = await walk.page(SLICE_KEYS, consistency="local")
    revision, count = page.revision, page.count
    chosen = Chosen(operation)
    chosen.add(page.kvs)
    while not walk.done():
        await asyncio.sleep(0)
        page = await walk.page(SLICE_KEYS)
        chosen.add(page.kvs)
    kvs = await _listed(chosen.in_order(), operation.keys_only)
    more = page.more if not reads_all(operation) else 0 < operation.limit < chosen.passed
    return RangeResult(revision, kvs, count, more)


class Chosen:
    """What is kept of the keys that pass by."""

    def __init__(self, operation: RangeOp) -> None:
        self._operation = operation
        self._sorts = operation.sort_by != "key" or operation.descending
        self._few = 0 < operation.limit <= RUN_KEYS
        self._runs: list[list[KeyValue]] = []
        self._bag: list[KeyValue] = []
        #: How many the filters have let pass.
        self.passed = 0

    def add(self, kvs: Sequence[KeyValue]) -> None:
        operation = self._operation
        if reads_all(operation):
            found = [kv for kv in kvs if passes(operation, kv)]
        else:
            found = list(kvs)
        self.passed += len(found)
        self._bag += found
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
        return islice(merged, operation.limit) if operation.limit > 0 else merged

    def _sort(self) -> None:
        operation = self._operation
        self._bag.sort(key=sort_key(operation), reverse=operation.descending)


async def _listed(kvs: Iterator[KeyValue], keys_only: bool) -> tuple[KeyValue, ...]:
    found: list[KeyValue] = []
    while part := list(islice(kvs, SLICE_KEYS)):
        if found:
            await asyncio.sleep(0)
        found += [bare(kv) for kv in part] if keys_only else part
    return tuple(found)

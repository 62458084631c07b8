"""Reads of the past, which cost what has happened since: requests for one revision, one by one.

Rules of this file
1. The work of a read is fixed when it comes. It takes what it needs of the present at once
   (`_Taken`): the key, the number of keys, or the first rows of its range. Then it looks at the
   changes up to that moment only, so its work does not grow with the changes of others, however
   long it waits. A limited read whose first rows do not suffice, because many keys were created
   since, is the exception: it reads on as a walk does (walk.py).
2. In a turn of the loop it looks at PAST_EVENTS changes or rows.
3. Those with more than a few changes need a place. Few are under way at once, PAST_WAITING_MAX
   wait, and the next one is refused with `Overloaded`. What waits has cost a thousand rows at most.

Clients page by themselves: request after request for the rest of a range at the revision of the
first answer. To them the revision must be readable, as with etcd; but what was collected for one
page is kept for the next one. `Pasts` are these: few, the least used one goes, and all go whose
revision was compacted, so that none outlives the history that it stands for.

Nothing here is state: it can be thrown away at any moment, and is never asked by `apply`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from itertools import islice
from typing import Final

from msgspec.structs import replace

from raftkv.errors import ReadTimeout
from raftkv.plugin import Host, View

from .commands import KeyValue, RangeOp, RangeResult
from .history import (
    EVENT_BYTES,
    Past,
    bytes_behind,
    events_behind,
    former,
    leads_back,
    lowest_revision,
    require_readable,
    revision_of,
)
from .places import Places
from .ranges import bare, count_range, reads_all, scan_range, shaped
from .walk import NEAR_REVISIONS, PAST_EVENTS, caught_up, read_rows, require_kept_state
from .work_budget import WorkBudget

__all__ = ["PASTS_MAX", "PastPlaces", "Pasts"]

# The changes of one turn for a read that has little to look at and so waits behind no large ones.
FEW_EVENTS: Final = 100

# So many clients at once page at no further cost. One past holds at most what the history holds:
# some 10 MB for 100,000 changed keys.
PASTS_MAX: Final = 4

#: Reads of the past that look at changes at once: so many of those with up to NEAR_REVISIONS of
#: them, and so many of those with more. More would only make each of them later.
PAST_AT_ONCE: Final = 2
#: Reads of the past that wait for a place. They are an eighth of the requests that the HTTP API
#: takes at once; those with 2,000 changes each are read in a second or two.
PAST_WAITING_MAX: Final = 256
# How long one waits for its place at most whose caller has named no time-out.
WAIT_S: Final = 5.0


TOO_LATE: Final = "too much has changed since the revision to read it in time"


class PastPlaces(Places):
    """The places for reads of the past that look at more than a few changes."""

    def __init__(self) -> None:
        super().__init__(
            PAST_WAITING_MAX,
            f"{PAST_WAITING_MAX} reads of past revisions wait in this node: try again later, or "
            f"read newer revisions",
            TOO_LATE,
        )
        self._short = asyncio.Semaphore(PAST_AT_ONCE)
        self._long = asyncio.Semaphore(PAST_AT_ONCE)

    def of(self, events: int, until: float) -> AbstractAsyncContextManager[None]:
        """A place for a read that looks at so many changes; see `place`."""
        return self.place(self._short if events <= NEAR_REVISIONS else self._long, until)


class _Taken:
    """What one read has taken of the present.

    `count` is of all keys of the range, `rows` are the first of them, `whole` if these are all.
    """

    def __init__(self, view: View, operation: RangeOp) -> None:
        keys, key, range_end = view.table("keys"), operation.key, operation.range_end
        self.revision = revision_of(view)
        self.discards = view.discards
        self.count = count_range(keys, key, range_end)
        rows_max = self.count
        if operation.count_only:
            rows_max = 1 if not range_end else 0
        elif _is_limited(operation):
            # Some may have been created since.
            rows_max = operation.limit + FEW_EVENTS
        self.rows = list(islice(scan_range(keys, key, range_end), rows_max))
        self.whole = len(self.rows) == self.count


def _is_limited(operation: RangeOp) -> bool:
    return operation.limit > 0 and not reads_all(operation)


class PastRead:
    """One read: its present, its time, and the changes that it may still look at in this turn."""

    def __init__(
        self, host: Host, operation: RangeOp, budget: WorkBudget, deadline: float | None
    ) -> None:
        self._host = host
        self._operation = operation
        self._budget = budget
        self._deadline = deadline
        self.taken = _Taken(host.view(), operation)
        self.left = FEW_EVENTS

    def require(self, view: View) -> None:
        """Raise Compacted, FutureRevision or ReadTimeout unless it can go on."""
        require_kept_state(view, self.taken.discards)
        require_readable(view, self._operation.revision)

    async def turn(self, events: int) -> View:
        """Wait for another turn of the loop, which has room for so many changes.

        With fewer than PAST_EVENTS of them it shares the turn with others.
        """
        await self._budget.room(events, goes_on=True)
        self._require_time()
        view = self._host.view()
        self.require(view)
        self.left = events
        return view

    def _require_time(self) -> None:
        if self._deadline is not None and asyncio.get_running_loop().time() > self._deadline:
            # Its caller has given up; read all the same, it would make the next ones late.
            raise ReadTimeout(TOO_LATE)

    def looked_at(self, units: int) -> None:
        """Count changes or rows that were looked at in this turn."""
        self.left -= units
        self._budget.spend(units)

    async def look_back(self, past: Past) -> None:
        """Let `past` look at the changes up to the moment of the read."""
        view, newest = self._host.view(), self.taken.revision
        while True:
            self.looked_at(past.catch_up(view, self.left, newest))
            if not past.is_behind(view, newest):
                return
            view = await self.turn(PAST_EVENTS)

    async def settle(self, past: Past) -> None:
        """Go back from event to event of the key alone, which exists and has existed since."""
        revision = self._operation.revision
        found: KeyValue = self.taken.rows[0][1]
        view = self._host.view()
        while found.mod_revision > revision:
            events = 1 + len(view.table("history")[found.mod_revision].more)
            if events > self.left:
                view = await self.turn(PAST_EVENTS)
            self.looked_at(events)
            found = former(view, found)
        past.settle(found, exists=True)

    async def answer(self, past: Past) -> RangeResult:
        """The answer from `past`, which has looked at all changes up to the moment of the read."""
        operation, taken = self._operation, self.taken
        key, range_end = operation.key, operation.range_end
        count = past.count_of(taken.count, key, range_end)
        if taken.whole or operation.count_only:

            def scan(limit: int) -> Iterator[KeyValue]:
                merged = past.merged(iter(taken.rows), key, range_end)
                kvs = (kv for _, kv in merged if kv is not None)
                return islice(kvs, limit) if limit > 0 else kvs

            if not _is_limited(operation) or operation.count_only:
                return shaped(operation, revision_of(self._host.view()), count, scan)
        kvs = await self._first(past)
        shown = map(bare, kvs) if operation.keys_only else kvs
        newest = revision_of(self._host.view())
        return RangeResult(newest, tuple(shown), count, count > len(kvs))

    async def _first(self, past: Past) -> list[KeyValue]:
        """The first `limit` keys: keys that were created since may lie before them."""
        operation, taken = self._operation, self.taken
        end = operation.range_end if taken.whole else taken.rows[-1][0] + b"\0"
        found: list[KeyValue] = []
        self.left = operation.limit + FEW_EVENTS
        # No other read uses the past meanwhile, so it stays what it is.
        for _, kv in past.merged(iter(taken.rows), operation.key, end):
            if self.left <= 0:
                await self.turn(PAST_EVENTS)
            self.looked_at(1)
            if kv is not None:
                found.append(kv)
                if len(found) == operation.limit:
                    return found
        if taken.whole:
            return found
        return [*found, *await self._further(past, end, operation.limit - len(found))]

    async def _further(self, past: Past, begin: bytes, limit: int) -> list[KeyValue]:
        """Further keys of the range: those behind the rows that were taken."""
        await self.turn(PAST_EVENTS)
        discards, budget = self.taken.discards, self._budget
        await caught_up(self._host, past, self.require, discards, budget, PAST_EVENTS)
        rest = replace(self._operation, key=begin, limit=limit)
        return await read_rows(self._host, past, rest, self.require, discards, budget, PAST_EVENTS)


class Pasts:
    """Reads of the past, each for itself, and what was collected for those that will go on."""

    def __init__(self, host: Host, budget: WorkBudget, places: PastPlaces) -> None:
        self._host = host
        self._budget = budget
        #: For all callers of the node.
        self.places = places
        self._kept: list[Past] = []  # the one used last stands last
        # Those under way, which no other read may use.
        self._used: list[Past] = []

    def __len__(self) -> int:
        return len(self._kept)

    async def read(self, operation: RangeOp, deadline: float | None = None) -> RangeResult:
        """Answer a read as of `operation.revision`, until the loop's time `deadline`.

        The caller has found room in the budget for its rows. Raises Compacted, FutureRevision,
        Overloaded and ReadTimeout.
        """
        host, budget, revision = self._host, self._budget, operation.revision
        require_readable(host.view(), revision)
        # In the turn in which the read comes.
        read = PastRead(host, operation, budget, deadline)
        taken, loop = read.taken, asyncio.get_running_loop()
        view, past = host.view(), self._found(operation, taken.revision)
        if events_behind(view, past.seen, FEW_EVENTS + 1, taken.revision) <= FEW_EVENTS:
            await budget.room(FEW_EVENTS)
            view, past = host.view(), self._found(operation, taken.revision)
            read.require(view)
            if events_behind(view, past.seen, FEW_EVENTS + 1, taken.revision) <= FEW_EVENTS:
                return await self._read(read, past, operation)
            # What it would have gone on with was let go meanwhile, or another read uses it.
        # Half of its time it may wait, or all would begin when it is too late to end.
        now = loop.time()
        wait_until = now + (WAIT_S if deadline is None else (deadline - now) / 2)
        async with self.places.of(bytes_behind(view, past.seen) // EVENT_BYTES, wait_until):
            read.require(host.view())
            past = self._found(operation, taken.revision)
            events = events_behind(host.view(), past.seen, PAST_EVENTS, taken.revision)
            return await self._read(read, past, operation, min(events, PAST_EVENTS))

    async def _read(
        self, read: PastRead, past: Past, operation: RangeOp, events: int = 0
    ) -> RangeResult:
        """Read it, in this turn of the loop or in one that has room for `events` changes."""
        taken = read.taken
        self._used.append(past)
        try:
            if events:
                await read.turn(events)
            of_one = None if operation.range_end or not taken.rows else taken.rows[0][1]
            if leads_back(of_one, operation.revision):
                await read.settle(past)
            else:
                await read.look_back(past)
            answer = await read.answer(past)
        finally:
            self._used.remove(past)
        self._keep(past, answer.more)
        return answer

    def compacted(self) -> None:
        """Let go what can no longer be read."""
        if self._kept:
            lowest = lowest_revision(self._host.view())
            self._kept = [past for past in self._kept if past.revision >= lowest]

    def clear(self) -> None:
        """The tables are others now."""
        self._kept = []

    def _found(self, operation: RangeOp, newest: int) -> Past:
        """One that has looked at no change after `newest`."""
        for past in self._kept:
            if (
                (past.revision, past.range_end) == (operation.revision, operation.range_end)
                and past.key <= operation.key
                and past.seen <= newest
                and past not in self._used
            ):
                return past
        return Past(operation.key, operation.range_end, operation.revision)

    def _keep(self, past: Past, more: bool) -> None:
        """As the one used last; not if its range was read to the end."""
        self._kept = [each for each in self._kept if each is not past]
        if more and past.range_end:
            self._kept = [*self._kept, past][-PASTS_MAX:]

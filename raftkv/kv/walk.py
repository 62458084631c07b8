"""Ranges that are too large for one turn of the loop.

A `Walk` reads one range in pages, all as of one revision. It holds what has changed behind its back
(history.Past) and looks at each further row of the history once, however many pages there are. So
it needs no revision to be kept for it: a compaction that it has overtaken does not concern it, as
one does not concern a range of etcd that has begun.

Nothing here is state: it can be thrown away at any moment, and is never asked by `apply`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftkv.errors import ReadTimeout
from raftkv.plugin import Consistency, Host, View

from .commands import KeyValue, RangeOp, RangeResult
from .history import (
    Past,
    events_behind,
    require_readable,
    revision_of,
)
from .ranges import bare, count_range
from .work_budget import FEW_ROWS, WorkBudget

__all__ = ["NEAR_REVISIONS", "PAST_EVENTS", "Walk", "caught_up", "read_rows", "require_kept_state"]

# Changes looked at in one turn of the loop, for a read of the past.
PAST_EVENTS: Final = 2000
# A read that is no further behind shares the turns with other large work by halves: behind all of
# that it might never catch up.
NEAR_REVISIONS: Final = 10 * PAST_EVENTS

Require = Callable[[View], None]


class Walk:
    """One range, page after page, as of one revision.

    That is `operation.revision`, or the newest when the first page is read. Only `key`,
    `range_end`, `limit`, `keys_only` and `revision` of the operation count. Pages come in key
    order; `count` of each is the number of keys in it and behind it. A page waits for a turn of the
    loop that has room for it in `budget`.
    """

    def __init__(self, host: Host, operation: RangeOp, budget: WorkBudget) -> None:
        self._host = host
        self._budget = budget
        self._operation = operation
        self._left = max(operation.limit, 0)
        self._past: Past | None = None
        self._discards = 0
        self._done = False

    def done(self) -> bool:
        """Whether all pages were given: no key is left, or the limit is reached."""
        return self._done

    async def page(
        self,
        keys_max: int,
        *,
        consistency: Consistency = "linearizable",
        timeout_s: float | None = None,
    ) -> RangeResult:
        """The next `keys_max` keys. There is always a first page, perhaps an empty one.

        `consistency` and `timeout_s` are for the first page, the others need nobody. Raises
        `Compacted` or `FutureRevision` if the revision cannot be read at the first page;
        `Compacted` later, if changes were made and compacted between two pages, and `ReadTimeout`
        if this node has discarded its state meanwhile, as a replicant does at a newer epoch.
        """
        if self._past is None:
            await self._host.barrier(consistency, timeout_s=timeout_s)
            self._discards = self._host.view().discards
        limit = min(keys_max, self._left) if self._left else keys_max
        changes = self._changes_left()
        # Each change may be of a key that is gone by now.
        rows = min(limit, self._rows_left() + changes) + changes
        await self._budget.rows(rows)
        # As of now, not of when it came: what is changed until then costs nothing.
        past = self._begin() if self._past is None else self._past
        events_max = max(rows, 1) if rows <= FEW_ROWS else PAST_EVENTS
        view = await caught_up(
            self._host, past, past.require_kept, self._discards, self._budget, events_max
        )
        count = past.count(view.table("keys"), past.key, past.range_end)
        kvs = await read_rows(
            self._host,
            past,
            RangeOp(past.key, past.range_end, limit),
            past.require_kept,
            self._discards,
            self._budget,
            events_max,
        )
        more = count > len(kvs)
        self._done = not more or len(kvs) == self._left
        if not self._done:
            self._left -= len(kvs) if self._left else 0
            past.forget_before(kvs[-1].key + b"\0")
        shown = map(bare, kvs) if self._operation.keys_only else kvs
        return RangeResult(past.revision, tuple(shown), count, more)

    def _begin(self) -> Past:
        operation, view = self._operation, self._host.view()
        require_kept_state(view, self._discards)
        revision = operation.revision if operation.revision > 0 else revision_of(view)
        require_readable(view, revision)
        self._past = Past(operation.key, operation.range_end, revision)
        return self._past

    def _rows_left(self) -> int:
        """About how many rows of the range are to come, but for those that are gone by now."""
        view, operation, past = self._host.view(), self._operation, self._past
        keys = view.table("keys")
        if past is not None:
            # Below 0 if more was deleted since than the range holds now.
            return max(0, past.count(keys, past.key, past.range_end))
        return count_range(keys, operation.key, operation.range_end)

    def _changes_left(self) -> int:
        """How many changes it has not looked at; the counting ends behind FEW_ROWS."""
        revision = self._operation.revision if self._past is None else self._past.seen
        if revision <= 0:
            return 0
        return events_behind(self._host.view(), revision, FEW_ROWS + 1)


def require_kept_state(view: View, discards: int) -> None:
    """Raise ReadTimeout if the state was discarded since a barrier, of when `discards` is.

    What is there now may be older than what the barrier has waited for.
    """
    if view.discards != discards:
        raise ReadTimeout("this node's state was discarded while it was read: ask again")


async def read_rows(
    host: Host,
    past: Past,
    operation: RangeOp,
    require: Require,
    discards: int,
    budget: WorkBudget,
    rows_max: int,
) -> list[KeyValue]:
    """The first `limit` keys of a range as of the revision of `past`, which has just caught up.

    In this turn it looks at `rows_max` rows, for which the caller has found room in `budget`. For
    the other arguments see `caught_up`.
    """
    limit, range_end = operation.limit, operation.range_end
    found: list[KeyValue] = []
    view, begin = host.view(), operation.key
    while True:
        kvs, looked, goes_on_at = past.slice(
            view.table("keys"), begin, range_end, limit - len(found), rows_max
        )
        budget.spend(looked)
        # Of former pages, of which one may have passed more than can be dropped in a turn.
        past.free(PAST_EVENTS)
        found += kvs
        if goes_on_at is None or len(found) == limit:
            return found
        begin = goes_on_at
        await budget.room(goes_on=True)
        view = await caught_up(host, past, require, discards, budget, PAST_EVENTS)
        rows_max = PAST_EVENTS


async def caught_up(
    host: Host, past: Past, require: Require, discards: int, budget: WorkBudget, events_max: int
) -> View:
    """A view that `past` fits, and does until the loop runs again.

    In this turn it looks at `events_max` changes, for which the caller has found room in `budget`.
    `discards` is that of the view for which `past` was made. Raises what `require` raises, and
    ReadTimeout if the state was discarded since: `past` fits no other history.
    """
    while True:
        view = host.view()
        require_kept_state(view, discards)
        require(view)
        if past.is_behind(view):
            budget.spend(past.catch_up(view, events_max))
        if not past.is_behind(view):
            return view
        # If it is near, at once, before others read on: behind all of them it would never catch up
        # with a keyspace in which more than PAST_EVENTS are changed until it has its next turn.
        await budget.room(goes_on=past.revisions_behind(revision_of(view)) <= NEAR_REVISIONS)
        events_max = PAST_EVENTS

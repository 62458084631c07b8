"""Sweep: what is due, and what was left for later, in one bounded command.

Rules of this file
1. One budget of rows goes through all steps, in a fixed order, so that one entry never touches more
   than it may. What decides something comes first: it is O(queues), or its rows are few.
2. The leader proposes a `Sweep` when it thinks that something is due. It may be wrong, or late, or
   not the leader any more: everything is compared again here, by the log's clock, and a `Sweep`
   with nothing to do does nothing.
3. The last row of each piece of work deletes the mark that it was to be done. So what is left is in
   the tables, and not in anybody's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from raftkv.plugin import Context

from . import completing, ending, timers, transactions
from .closing import is_gone
from .commands import Sweep, Swept, TransactionRow
from .deciding import rows_of, unfold
from .locks import unlock
from .queues import make_room
from .times import forget

__all__ = ["sweep"]


class _Budget:
    """Rows that this command may still touch."""

    __slots__ = ("left", "rows")

    def __init__(self, rows_max: int) -> None:
        self.left = rows_max
        self.rows = 0

    def spend(self, rows: int) -> None:
        self.left -= rows
        self.rows += rows


def sweep(command: Sweep, ctx: Context) -> Swept:
    """Do what is due, `rows_max` rows at most; the last transaction may go beyond it."""
    budget = _Budget(command.rows_max)
    # Each step answers whether it has left something that it could do now.
    more = False
    for step in _STEPS:
        if budget.left <= 0:
            # Whether the others have anything to do is not known: the next one finds out.
            return Swept(budget.rows, True)
        more = step(ctx, budget) or more
    return Swept(budget.rows, more)


# --- what ends ------------------------------------------------------------------------------------


def _end_lives(ctx: Context, budget: _Budget) -> bool:
    for node, incarnation in [key for key, _ in ctx.table("ended_nodes").scan()]:
        if budget.left <= 0:
            return True
        rows, done = ending.end_of_life(ctx, node, incarnation, budget.left)
        budget.spend(rows)
        if not done:
            return True
    return False


def _roll_back_left(ctx: Context, budget: _Budget) -> bool:
    """Transactions that wait for the vote of a node whose life has ended."""
    left = ctx.table("left")
    for life, first in list(left.scan()):
        # Who is closed from now on does not ask that life any more.
        for number, row in list(ctx.table("transactions").scan(first, limit=budget.left)):
            if budget.left <= 0:
                left.put(life, number)
                return True
            budget.spend(1)
            gone = is_gone(ctx, row) if row.state == "preparing" else ""
            if gone:
                budget.spend(rows_of(row))
                reason = f"the participant {gone} has left before it could vote"
                transactions.roll_back(ctx, number, row, "participant", reason)
            first = number + 1
        if budget.left <= 0:
            left.put(life, first)
            return True
        left.delete(life)
    return False


def _roll_back_late(ctx: Context, budget: _Budget) -> bool:
    """Transactions past their deadline."""
    last = (ctx.now + 1, 0)
    due = ctx.table("due")
    for key in [key for key, _ in due.scan(None, last, limit=budget.left)]:
        if budget.left <= 0:
            return True
        if key not in due:
            continue  # forgotten, with a decision that made place for another one
        number = key[1]
        row: TransactionRow = ctx.table("transactions")[number]
        budget.spend(rows_of(row))
        _end(ctx, number, row)
    return due.count(None, last) > 0


def _end_overdue(ctx: Context, budget: _Budget) -> bool:
    """Sessions that have held a message for longer than its queue allows."""
    last = (ctx.now + 1, 0, 0, 0)
    due = ctx.table("ack_due")
    for key in [key for key, _ in due.scan(None, last, limit=budget.left)]:
        if budget.left <= 0:
            return True
        if key in due:  # else it went back with its session
            budget.spend(ending.end_overdue(ctx, key, budget.left))
    return due.count(None, last) > 0


def _end(ctx: Context, number: int, row: TransactionRow) -> None:
    if row.state == "failed":
        completing.forget_failed(ctx, number, row)
    elif row.state == "preparing":
        late = ", ".join(one.node for one in row.participants if not one.voted)
        reason = f"the votes of {late} did not come in time"
        transactions.roll_back(ctx, number, row, "late", reason)
    else:
        reason = f"its time-out of {row.timeout_ms} ms is over"
        transactions.roll_back(ctx, number, row, "timeout", reason)


# --- what was left for later ----------------------------------------------------------------------


def _return_held(ctx: Context, budget: _Budget) -> bool:
    for session in [key for key, _ in ctx.table("ended_sessions").scan(limit=budget.left)]:
        if budget.left <= 0:
            return True
        rows, done = ending.return_held(ctx, session, budget.left)
        budget.spend(max(1, rows))
        if not done:
            return True
    return bool(len(ctx.table("ended_sessions")))


def _unfold(ctx: Context, budget: _Budget) -> bool:
    for number in [key for key, _ in ctx.table("unfolding").scan(limit=budget.left)]:
        if budget.left <= 0:
            return True
        rows, done = unfold(ctx, number, budget.left)
        budget.spend(max(1, rows))
        if not done:
            return True
    return bool(len(ctx.table("unfolding")))


def _fire_timers(ctx: Context, budget: _Budget) -> bool:
    rows, more = timers.fire(ctx, budget.left)
    budget.spend(rows)
    return more


def _drop_queues(ctx: Context, budget: _Budget) -> bool:
    """Rows of deleted queues. Staged rows go with their transaction."""
    for queue_id, session in list(ctx.table("dropped").scan(limit=budget.left)):
        for name in ("messages", "returned", "spans", "gaps", "delayed", "expiring"):
            if budget.left <= 0:
                return True
            table = ctx.table(name)
            keys = [key for key, _ in table.scan(prefix=(queue_id,), limit=budget.left)]
            for key in keys:
                if name in ("delayed", "expiring"):
                    forget(ctx, *key)
                else:
                    table.delete(key)
            budget.spend(len(keys))
        if budget.left <= 0 or (session and not _drop_locks(ctx, queue_id, session, budget)):
            return True
        ctx.table("dropped").delete(queue_id)
        budget.spend(1)
    return bool(len(ctx.table("dropped")))


def _drop_locks(ctx: Context, queue_id: int, session: int, budget: _Budget) -> bool:
    """Locks on a deleted queue, of sessions from this one on; whether these were all.

    They would count as held for as long as their session lives. Each session is a search.
    """
    locks, sessions = ctx.table("locks"), ctx.table("sessions")
    while budget.left > 0:
        found = next((key for key, _ in locks.scan((session,), limit=1)), None)
        if found is None:
            return True
        session, limit = found[0], budget.left
        keys = [key for key, _ in locks.scan(prefix=(session, queue_id), limit=limit)]
        for key in keys:
            unlock(ctx, key)
        if keys:
            row = sessions[session]
            sessions.put(session, replace(row, held=row.held - len(keys)))
        budget.spend(1 + len(keys))
        if len(keys) < limit:
            session += 1
    ctx.table("dropped").put(queue_id, session)
    return False


def _make_room(ctx: Context, budget: _Budget) -> bool:
    queues, overfull = ctx.table("queues"), ctx.table("overfull")
    for name in [key for key, _ in overfull.scan(limit=budget.left)]:
        if budget.left <= 0:
            return True
        old = queues[name]
        queue, dropped, more = make_room(ctx, name, old, budget.left)
        budget.spend(max(1, dropped))
        if queue != old:
            queues.put(name, queue)
        if more:
            return True
        overfull.delete(name)
    return bool(len(overfull))


def _forget_sessions(ctx: Context, budget: _Budget) -> bool:
    rows, more = ending.forget_old(ctx, budget.left)
    budget.spend(rows)
    return more


_STEPS: Final[tuple[Callable[[Context, _Budget], bool], ...]] = (
    _end_lives,
    _roll_back_left,
    _roll_back_late,
    _end_overdue,
    _fire_timers,
    _return_held,
    _unfold,
    _drop_queues,
    _make_room,
    _forget_sessions,
)

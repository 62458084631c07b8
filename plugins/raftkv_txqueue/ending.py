"""How a session ends, what becomes of what it held, and when it is forgotten.

An end is one entry: from there on nobody finds the session live, and its open transaction is rolled
back. What the session had acquired goes back to its queues in its old places: up to a thousand
messages in the entry itself, more of them by `Sweep`. Until then they are nobody's, and not
available either; the counters of the queues say so, row by row.

Its row stays for a while, because it knows the fate of its transactions: whoever lost the
connection at the commit asks a session that has ended. That while begins when nothing is left to be
done for the session (`sessions.keep`): a commit may wait for votes longer than outcomes are kept.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from raftkv.plugin import Context, MemberChange

from . import transactions
from .commands import (
    ENDINGS_KEPT,
    ROWS_MAX,
    CloseSession,
    Ending,
    EndSession,
    Lock,
    SessionClosed,
    SessionRow,
)
from .deciding import cut, rows_of
from .delivering import give_back
from .locks import unlock
from .refusals import SessionEnded
from .sessions import keep, owned
from .views import last_ending, meta_of

__all__ = [
    "close",
    "end",
    "end_by_operator",
    "end_of_life",
    "end_overdue",
    "forget_old",
    "life_changed",
    "return_held",
]

#: Rows that a session's end touches anyway: its own, and in `owners`, `old_sessions`, `meta`.
SESSION_ROWS: Final = 4


def close(command: CloseSession, ctx: Context) -> SessionClosed:
    """End a session that its program no longer needs."""
    session = command.session
    row = owned(ctx, session)
    end(ctx, session, row, ROWS_MAX)
    left: SessionRow = ctx.table("sessions")[session]
    return SessionClosed(row.held, row.number != 0 and left.number == 0)


def end(ctx: Context, session: int, row: SessionRow, rows_max: int) -> int:
    """End a session that has not ended; the rows that were touched, more or less.

    At least the session itself is ended; `rows_max` bounds what is given back in this entry.
    """
    if row.ended_ms:
        raise SessionEnded(session)
    now = max(1, ctx.now)
    sessions = ctx.table("sessions")
    ctx.table("owners").delete((row.node, row.incarnation, session))
    meta = meta_of(ctx)
    ctx.table("meta").put("state", replace(meta, sessions=meta.sessions - 1))
    row = replace(row, ended_ms=now)
    # Written before, so that whoever looks during the rollback finds the session ended.
    sessions.put(session, row)
    rows = SESSION_ROWS + _transaction_rows(ctx, row)
    row = transactions.session_ended(ctx, session, row)
    sessions.put(session, row)
    if not row.held:
        keep(ctx, session, row)
        return rows
    ctx.table("ended_sessions").put(session, None)
    if rows < rows_max:
        rows += return_held(ctx, session, rows_max - rows)[0]
    return rows


def end_by_operator(command: EndSession, ctx: Context) -> SessionClosed:
    """End a session of whatever node; what it held goes back as if it had closed itself."""
    session = command.session
    row: SessionRow | None = ctx.table("sessions").get(session)
    if row is None or row.ended_ms:
        raise SessionEnded(session)
    _note(ctx, Ending(session, "operator", ctx.now, cut(command.reason)))
    end(ctx, session, row, ROWS_MAX)
    left: SessionRow = ctx.table("sessions")[session]
    return SessionClosed(row.held, row.number != 0 and left.number == 0)


def end_overdue(ctx: Context, due: tuple[int, int, int, int], rows_max: int) -> int:
    """A deadline of a lock is over: end its session; the rows that were touched.

    Unless the queue is gone, or allows more time by now: then there is another deadline, or none.
    """
    key = due[1:]
    session, queue_id, seq = key
    locks, name = ctx.table("locks"), ctx.table("names").get(queue_id)
    timeout_ms = ctx.table("ack_timeouts").get(queue_id, 0)
    row: SessionRow | None = ctx.table("sessions").get(session)
    held: Lock = locks[key]
    again_ms = held.since_ms + timeout_ms
    if row is None or row.ended_ms or name is None or not timeout_ms or again_ms > ctx.now:
        later_ms = again_ms if timeout_ms and again_ms > ctx.now else 0
        ctx.table("ack_due").delete(due)
        locks.put(key, replace(held, due_ms=later_ms))
        if later_ms:
            ctx.table("ack_due").put((later_ms, *key), None)
        return 3
    _note(ctx, Ending(session, "ack_timeout", ctx.now, "", name, seq, timeout_ms))
    return end(ctx, session, row, rows_max)


def _note(ctx: Context, ending: Ending) -> None:
    """Keep why a session is ended by others than its program; the oldest notes are dropped."""
    endings = ctx.table("endings")
    endings.put(last_ending(ctx) + 1, ending)
    endings.delete_first(len(endings) - ENDINGS_KEPT)


def _transaction_rows(ctx: Context, row: SessionRow) -> int:
    """Rows of what the session is in the middle of; see `transactions.session_ended`."""
    transaction = ctx.table("transactions").get(row.number) if row.number else None
    if transaction is None:
        return 0
    return 1 if transaction.xid is not None else rows_of(transaction)


def return_held(ctx: Context, session: int, rows_max: int) -> tuple[int, bool]:
    """Give back what an ended session holds, in order; how many, and whether that was all."""
    locks, queues, names = ctx.table("locks"), ctx.table("queues"), ctx.table("names")
    held = list(locks.scan(prefix=(session,), limit=rows_max))
    at, name, queue = 0, "", None
    for key, _ in held:
        deliveries = unlock(ctx, key)
        if key[1] != at:
            if queue is not None:
                queues.put(name, queue)
            at = key[1]
            name = names.get(at, "")
            queue = queues.get(name)
        if queue is not None:
            queue = give_back(ctx, name, queue, key[2], deliveries)
    if queue is not None:
        queues.put(name, queue)
    sessions = ctx.table("sessions")
    row: SessionRow | None = sessions.get(session)
    if row is not None and held:
        row = replace(row, held=row.held - len(held))
        sessions.put(session, row)
    done = row is None or not row.held
    if done:
        ctx.table("ended_sessions").delete(session)
        if row is not None:
            keep(ctx, session, row)
    return len(held), done


def life_changed(change: MemberChange, ctx: Context) -> None:
    """A member's life may have ended: mark what is to be done about it; it observes no more."""
    old = change.old
    if change.ended is None or old is None:
        return
    life = (old.name, change.ended)
    if ctx.table("owners").count(prefix=life):
        ctx.table("ended_nodes").put(life, None)
    if meta_of(ctx).transactions:
        ctx.table("left").put(life, 1)
    observers = ctx.table("observers")
    if observers.get(old.name) == change.ended:
        observers.delete(old.name)


def end_of_life(ctx: Context, node: str, incarnation: int, rows_max: int) -> tuple[int, bool]:
    """End sessions of a life that has ended; the rows touched, and whether these were all."""
    sessions, owners, rows = ctx.table("sessions"), ctx.table("owners"), 0
    life = (node, incarnation)
    while rows < rows_max:
        key = next((key for key, _ in owners.scan(prefix=life, limit=1)), None)
        if key is None:
            break
        rows += end(ctx, key[2], sessions[key[2]], rows_max - rows)
    done = not owners.count(prefix=life)
    if done:
        ctx.table("ended_nodes").delete(life)
    return rows, done


def forget_old(ctx: Context, rows_max: int) -> tuple[int, bool]:
    """Forget ended sessions that are past their retention, or are too many; rows, and if more are.

    Those for which something is left to be done are not among them (`sessions.keep`).
    """
    old, sessions = ctx.table("old_sessions"), ctx.table("sessions")
    kept, rows = ctx.settings["sessions_kept"], 0
    last_due = ctx.now - ctx.settings["outcome_retention_ms"]
    while rows < rows_max:
        key = next((key for key, _ in old.scan(limit=1)), None)
        if key is None or (key[0] > last_due and len(old) <= kept):
            return rows, False
        row: SessionRow | None = sessions.get(key[1])
        rows += _forget_rollbacks(ctx, key[1], row, rows_max - rows)
        if rows < rows_max:
            sessions.delete(key[1])
            old.delete(key)
            rows += 1
    return rows, True


def _forget_rollbacks(ctx: Context, session: int, row: SessionRow | None, rows_max: int) -> int:
    """Delete the oldest rows of a session in `rollbacks`; how many.

    What was rolled back must not look committed when its row is gone and the session's is not.
    """
    rollbacks = ctx.table("rollbacks")
    keys = [key for key, _ in rollbacks.scan(prefix=(session,), limit=rows_max)]
    for key in keys:
        rollbacks.delete(key)
    if keys and row is not None:
        left = row.rolled_back - len(keys)
        ctx.table("sessions").put(session, replace(row, forgotten=keys[-1][1], rolled_back=left))
    return len(keys)

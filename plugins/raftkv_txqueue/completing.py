"""How a branch ends, and how that is told and remembered.

Rules of this file
1. The entry that decides a branch writes its decision (`note`). The coordinator may have to be told
   afterwards: then the branch stays, "failed" or heuristically decided, until it was (`drop`).
2. A failed branch whose coordinator never comes is forgotten when its time is over, or with its
   decision when that is dropped: so there are never more of them than `decisions_kept`.
3. Dropping frees the xid at once, also while rows of the branch are still being moved: a new branch
   of that name has another number.
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.plugin import Context

from .commands import Answered, DecisionRow, SessionRow, TransactionRow, Verdict
from .deciding import cut, put_meta, settle
from .views import meta_of
from .xa import XaStatus, Xid

__all__ = [
    "all_voted",
    "complete",
    "detach",
    "drop",
    "fail",
    "forget_failed",
    "note",
    "promised",
    "tell_once",
    "told",
]


def told(row: TransactionRow) -> Answered:
    """How a branch that failed, or is to fail, answers."""
    timed_out = row.cause == "timeout"
    return Answered(int(XaStatus.RBTIMEOUT if timed_out else XaStatus.RBROLLBACK))


def promised(ctx: Context) -> None:
    meta = meta_of(ctx)
    put_meta(ctx, replace(meta, prepared=meta.prepared + 1))


def detach(ctx: Context, number: int, session_id: int) -> None:
    """The session is in this branch no longer. Its row may be gone."""
    session: SessionRow | None = ctx.table("sessions").get(session_id)
    if session is not None and session.number == number:
        ctx.table("sessions").put(session_id, replace(session, number=0))


def all_voted(ctx: Context, number: int, row: TransactionRow) -> None:
    """The last participant said yes."""
    if row.then_commit:
        complete(ctx, number, row, "committed", "coordinator", "")
        return
    if row.deadline_ms:
        ctx.table("due").delete((row.deadline_ms, number))
    ctx.table("transactions").put(number, replace(row, state="prepared", deadline_ms=0))
    promised(ctx)


def fail(ctx: Context, number: int, row: TransactionRow, cause: str, reason: str) -> TransactionRow:
    """Roll back a branch whose coordinator has not asked for it: it has yet to be told."""
    settle(ctx, number, row, "failed", cause=cause, reason=reason)
    assert row.xid is not None
    by = {"timeout": "timeout", "session": "session"}.get(cause, "coordinator")
    if cause in ("vote", "participant", "late"):
        by = "vote"
    note(ctx, number, row.xid, "rolled back", by, reason)
    failed: TransactionRow = ctx.table("transactions")[number]
    return failed


def tell_once(ctx: Context, number: int, row: TransactionRow) -> Answered:
    """Tell that the branch failed, and forget it."""
    drop(ctx, number, row)
    return told(row)


def forget_failed(ctx: Context, number: int, row: TransactionRow) -> None:
    """Nobody has asked for so long: forget a failed branch; sessions in it are in none then."""
    for one in row.associations:
        detach(ctx, number, one.session)
    drop(ctx, number, replace(row, associations=()))


def complete(
    ctx: Context, number: int, row: TransactionRow, verdict: Verdict, by: str, reason: str
) -> None:
    """Decide an undecided branch and free its xid."""
    assert row.xid is not None
    settle(ctx, number, row, verdict, cause=by, reason=reason)
    ctx.table("branches").delete(row.xid.key)
    note(ctx, number, row.xid, verdict, by, reason)


def drop(ctx: Context, number: int, row: TransactionRow) -> None:
    """Free the xid of a decided branch. Rows that have not been moved yet still are."""
    assert row.xid is not None
    ctx.table("branches").delete(row.xid.key)
    if row.deadline_ms:
        ctx.table("due").delete((row.deadline_ms, number))
    if not row.unfolding:
        ctx.table("transactions").delete(number)
        return
    visible = row.state == "heuristically committed"
    state: Verdict = "committed" if visible else "rolled back"
    ctx.table("transactions").put(number, replace(row, state=state, deadline_ms=0))


def note(ctx: Context, number: int, xid: Xid, verdict: Verdict, by: str, reason: str) -> None:
    """Write a decision down; the oldest ones are forgotten."""
    meta = meta_of(ctx)
    at = meta.next_decision
    put_meta(ctx, replace(meta, next_decision=at + 1))
    decisions, decided = ctx.table("decisions"), ctx.table("decided")
    decisions.put(at, DecisionRow(xid, number, verdict, by, cut(reason), ctx.now, ctx.index))
    decided.put(xid.key, at)
    # Two of them: after the setting was lowered, each decision brings the number down by one.
    excess = min(2, len(decisions) - ctx.settings["decisions_kept"])
    if excess <= 0:
        return
    for old, row in list(decisions.scan(limit=excess)):
        if decided.get(row.xid.key) == old:
            decided.delete(row.xid.key)
            _forget_with(ctx, row.xid)
    decisions.delete_first(excess)


def _forget_with(ctx: Context, xid: Xid) -> None:
    """The last decision about this xid is dropped: so is a failed branch that waits to be told."""
    number: int | None = ctx.table("branches").get(xid.key)
    if number is None:
        return
    row: TransactionRow = ctx.table("transactions")[number]
    if row.state == "failed":
        forget_failed(ctx, number, row)

"""What a step of the log hit of all that is to be hit (`storm_plan.EXPECTED`)."""

from __future__ import annotations

from raftkv.plugin import MemberChange
from raftkv_txqueue.commands import (
    Acquire,
    CloseSession,
    Commit,
    CommitBranch,
    DeleteQueue,
    EndSession,
    PrepareBranch,
    Publish,
    Purge,
    PutBack,
    Settle,
    Sweep,
    ToBack,
    Vote,
)
from raftkv_txqueue.xa import XaStatus

from .storm_ledger import Ledger, Step, Work

__all__ = ["marks_of"]


def marks_of(step: Step, ledger: Ledger) -> list[str]:
    """The names of what this step did."""
    command, result = step.command, step.result
    if step.refusal is not None:
        return [f"refused {type(step.refusal).__name__}"]
    marks: list[str] = []
    match command:
        case Publish() if result.dropped:
            marks.append("dropped by overflow")
        case Acquire() if result.seqs:
            marks.append("acquired")
            marks += ["redelivered"] * any(each > 1 for each in result.deliveries)
        case Settle() if result.done:
            marks.append(
                {"accept": "accepted", "release": "released"}.get(command.settling, "rejected")
            )
        case PutBack() if result.done:
            marks.append("put back")
        case ToBack() if ledger.sent_back:
            marks.append("returned to the back")
        case Purge() if result.messages:
            marks.append("purged")
        case DeleteQueue():
            marks.append(
                "queue deleted with messages" if result.messages else "queue deleted empty"
            )
        case PrepareBranch() if getattr(result, "status", None) == XaStatus.RDONLY:
            marks.append("branch read only")
        case CloseSession() if result.rolled_back:
            marks.append("session closed in a transaction")
        case EndSession():
            marks.append("session ended by an operator")
        case Sweep() if ledger.returned:
            marks.append("returned by a session's end")
        case MemberChange() if command.ended is not None:
            if any(each.state == "prepared" for each in ledger.open):
                marks.append("prepared when its node's life ended")
    marks += ["session ended with its node"] * bool(ledger.lost_sessions - ledger.timed_out)
    marks += ["session timed out"] * bool(ledger.timed_out)
    marks += ["dead letter"] * bool(ledger.buried)
    marks += ["came when its delay was over"] * bool(ledger.came)
    marks += ["expired"] * bool(ledger.expired)
    marks += ["expired by its queue"] * bool(ledger.aged)
    for work in ledger.moved:
        marks += _of_work(work, step)
    return marks


def _of_work(work: Work, step: Step) -> list[str]:
    """A transaction has another state since this step."""
    marks = []
    large = work.number and work.number in step.tables.table("unfolding")
    voted = isinstance(step.command, Vote)
    if large:
        marks.append(
            "committed as a span" if work.state.endswith("committed") else "rolled back in batches"
        )
    if work.xid is None:
        if work.state == "committed":
            how = "by votes" if voted else "after staging" if work.number else "in one entry"
            marks.append(f"tx committed {how}")
        elif work.state == "rolled back":
            marks += ["tx rolled back", f"tx rolled back for {work.cause}"]
        return marks
    marks.append(f"branch {work.state}")
    if work.state == "prepared" and voted:
        marks.append("branch prepared by votes")
    if work.state == "committed" and not work.promised and work.operations:
        marks.append("branch committed in one phase")
    if work.state in ("failed", "rolled back") and work.cause == "timeout":
        marks.append("branch expired")
    if isinstance(step.command, Commit | CommitBranch) and voted:
        marks.append("decided by votes")
    return marks

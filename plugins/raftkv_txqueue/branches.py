"""DTX: branches of distributed transactions, with XA's states and answers.

A branch is known by its xid until it is completed. Sessions work in it while they are *associated*:
attached, or suspended. It goes

    active -> (preparing ->) prepared -> committed | rolled back, and forgotten
    active | preparing -> failed: rolled back; the xid stays until the coordinator has been told
    prepared -> heuristically committed | rolled back: by an operator; stays until `ForgetBranch`

Rules of this file
1. *Prepared* is a promise: it has no deadline, no session, no node. Only the coordinator or an
   operator ends it.
2. What a clock or a dead session has done to an active branch is looked for where the branch is
   read (`_known`), so nothing depends on when `Sweep` comes by.
3. A session whose node has died has ended its association, and failed it.
4. A status says what became of the branch: a result, for it may free content or forget the xid. An
   error (a refusal) says that the call was wrong, and changes nothing.
5. What is finished is written down in the entry that finishes it (`completing.py`).
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from raftkv.errors import Refused
from raftkv.plugin import Context

from .closing import close, participants, require_room_of
from .commands import (
    Answered,
    Association,
    CommitBranch,
    End,
    ForgetBranch,
    Heuristic,
    PrepareBranch,
    RollbackBranch,
    SessionRow,
    SetTimeout,
    Start,
    State,
    TransactionRow,
    Verdict,
    Voting,
)
from .completing import complete, detach, drop, fail, note, promised, tell_once, told
from .deciding import settle
from .refusals import (
    CommandInvalid,
    IllegalState,
    InvalidArgument,
    NotAllowed,
    TransactionTooLarge,
    UnknownXid,
)
from .sessions import live, owned
from .staging import opened, planned, require_staging, write_plan
from .xa import XaStatus, Xid

__all__ = [
    "commit",
    "end",
    "forget",
    "heuristic",
    "left",
    "prepare",
    "rollback",
    "set_timeout",
    "start",
]

#: Sessions that work in one branch, suspended ones too.
ASSOCIATIONS_MAX: Final = 64

_OK: Final = Answered(int(XaStatus.OK))
_ENDED: Final = "the session that worked in it has ended"


# --- what is known of a branch --------------------------------------------------------------------


def _known(ctx: Context, xid: Xid) -> tuple[int, TransactionRow]:
    """The branch as it is now: with its time-out and its dead sessions seen. Raises UnknownXid."""
    number: int | None = ctx.table("branches").get(xid.key)
    if number is None:
        raise UnknownXid(str(xid))
    row: TransactionRow = ctx.table("transactions")[number]
    alive = tuple(one for one in row.associations if _is_alive(ctx, one))
    if len(alive) < len(row.associations):
        for one in row.associations:
            if one not in alive:
                detach(ctx, number, one.session)
        why = row.rollback_only or _ENDED
        row = replace(row, associations=alive, rollback_only=why)
        ctx.table("transactions").put(number, row)
    if row.state == "active" and row.deadline_ms and row.deadline_ms <= ctx.now:
        row = fail(ctx, number, row, "timeout", f"its time-out of {row.timeout_ms} ms is over")
    return number, row


def _is_alive(ctx: Context, association: Association) -> bool:
    return live(ctx, ctx.table("sessions").get(association.session))


def _require_ended(xid: Xid, row: TransactionRow) -> None:
    if row.associations:
        session = row.associations[0].session
        raise IllegalState(str(xid), f"session {session} has not ended its work in it")


def _heuristically(row: TransactionRow) -> Answered | None:
    """How a branch answers that an operator has decided."""
    if row.state == "heuristically committed":
        return Answered(int(XaStatus.HEURCOM))
    if row.state == "heuristically rolled back":
        return Answered(int(XaStatus.HEURRB))
    return None


# --- working in a branch --------------------------------------------------------------------------


def start(command: Start, ctx: Context) -> Answered:
    """Attach the session to a new branch, or to one that is known."""
    session = owned(ctx, command.session)
    if session.kind != "dtx":
        raise CommandInvalid("the session is of another kind: select 'dtx' first")
    if command.join and command.resume:
        raise CommandInvalid("join and resume exclude each other")
    if session.number:
        raise CommandInvalid("the session is attached to a branch: end or suspend that first")
    if command.join or command.resume:
        return _start_again(ctx, command, session)
    xid = command.xid
    if xid.key in ctx.table("branches"):
        raise NotAllowed(str(xid))
    timeout_ms = command.timeout_ms
    if timeout_ms is None:
        timeout_ms = min(ctx.settings["dtx_timeout_ms"], ctx.settings["dtx_timeout_max_ms"])
    else:
        _require_timeout(ctx, timeout_ms)
    number, row = opened(
        ctx,
        ctx.now + timeout_ms if timeout_ms else 0,
        session=0,
        counter=0,
        xid=xid,
        timeout_ms=timeout_ms,
        associations=(Association(command.session),),
    )
    ctx.table("transactions").put(number, row)
    ctx.table("branches").put(xid.key, number)
    ctx.table("sessions").put(command.session, replace(session, number=number))
    return _OK


def _start_again(ctx: Context, command: Start, session: SessionRow) -> Answered:
    """Join, or resume."""
    xid = command.xid
    number, row = _known(ctx, xid)
    mine = next((one for one in row.associations if one.session == command.session), None)
    if command.resume and mine is None:
        raise CommandInvalid("the session has not suspended its work in this branch")
    if command.join and mine is not None:
        raise CommandInvalid("the session has suspended its work in this branch: resume it")
    if row.state == "failed" or (row.state == "active" and row.rollback_only):
        return told(row)
    if row.state != "active":
        raise IllegalState(str(xid), f"it is {row.state}")
    if mine is None and len(row.associations) >= ASSOCIATIONS_MAX:
        raise TransactionTooLarge("sessions", ASSOCIATIONS_MAX)
    others = tuple(one for one in row.associations if one is not mine)
    row = replace(row, associations=(*others, Association(command.session)))
    ctx.table("transactions").put(number, row)
    ctx.table("sessions").put(command.session, replace(session, number=number))
    return _OK


def _require_timeout(ctx: Context, timeout_ms: int) -> None:
    limit = ctx.settings["dtx_timeout_max_ms"]
    if timeout_ms > limit:
        raise InvalidArgument("timeout_ms", limit)


def end(command: End, ctx: Context) -> Answered:
    """Detach the session from the branch, or suspend its work, with these operations as its last.

    Operations of a branch that can only be rolled back are dropped.
    """
    if command.suspend and command.fail:
        raise CommandInvalid("suspend and fail exclude each other")
    session_id, xid = command.session, command.xid
    owned(ctx, session_id)
    if xid.key not in ctx.table("branches"):
        raise IllegalState(str(xid), "it is not known")
    number, row = _known(ctx, xid)
    mine = next((one for one in row.associations if one.session == session_id), None)
    if mine is None:
        raise IllegalState(str(xid), f"session {session_id} does not work in it")
    if command.suspend and mine.suspended:
        raise IllegalState(str(xid), f"session {session_id} has suspended its work already")
    if command.operations and mine.suspended:
        raise CommandInvalid("the session has suspended its work in this branch: resume it")
    doomed = row.state == "failed" or bool(row.rollback_only)
    if command.operations and not doomed:
        row = _stage_last(ctx, command, number, row)
    if command.fail and not doomed:
        row = replace(row, rollback_only="the session marked it as failed")
    left = tuple(one for one in row.associations if one is not mine)
    if command.suspend and not doomed:
        left = (*left, Association(session_id, True))
    row = replace(row, associations=left)
    ctx.table("transactions").put(number, row)
    if not mine.suspended:
        session = ctx.table("sessions")[session_id]
        ctx.table("sessions").put(session_id, replace(session, number=0))
    return told(row) if row.state == "failed" or row.rollback_only else _OK


def _stage_last(ctx: Context, command: End, number: int, row: TransactionRow) -> TransactionRow:
    session_id = command.session
    plan = planned(ctx, session_id, command.operations)
    require_staging(ctx, row, plan, number)
    row = write_plan(ctx, number, row, plan, session_id)
    if plan.accepts:
        session = ctx.table("sessions")[session_id]
        held = session.held - plan.accepts
        ctx.table("sessions").put(session_id, replace(session, held=held))
    return row


def left(ctx: Context, number: int, row: TransactionRow, session_id: int) -> None:
    """A session that was attached to the branch has ended: so has its work, as failed."""
    alive = tuple(one for one in row.associations if one.session != session_id)
    why = row.rollback_only or _ENDED
    ctx.table("transactions").put(number, replace(row, associations=alive, rollback_only=why))


# --- the coordinator ------------------------------------------------------------------------------


def prepare(command: PrepareBranch, ctx: Context) -> Answered | Voting:
    """Make the branch a promise, once its participants agree."""
    xid = command.xid
    number, row = _known(ctx, xid)
    if row.state == "prepared":
        return _OK
    if row.state == "preparing" and not row.then_commit:
        return Voting(number)
    if row.state not in ("active", "failed"):
        raise IllegalState(str(xid), f"it is {row.state}")
    _require_ended(xid, row)
    if row.state == "failed":
        return tell_once(ctx, number, row) if row.cause == "timeout" else told(row)
    if row.rollback_only:
        return told(fail(ctx, number, row, "session", row.rollback_only))
    if not row.rows:
        complete(ctx, number, row, "committed", "read only", "")
        return Answered(int(XaStatus.RDONLY))
    asked = participants(ctx)
    try:
        require_room_of(ctx, row)
    except Refused as problem:
        return told(fail(ctx, number, row, problem.code, str(problem)))
    row = close(ctx, number, row, asked, then_commit=False)
    if asked:
        return Voting(number)
    promised(ctx)
    return _OK


def commit(command: CommitBranch, ctx: Context) -> Answered | Voting:
    """Commit what is prepared; or prepare and commit at once (one phase)."""
    xid, one_phase = command.xid, command.one_phase
    number, row = _known(ctx, xid)
    heuristic = _heuristically(row)
    if heuristic is not None:
        return heuristic
    if row.state == "preparing" and row.then_commit and one_phase:
        return Voting(number)
    if row.state == "prepared" and not one_phase:
        complete(ctx, number, row, "committed", "coordinator", "")
        return _OK
    if row.state in ("preparing", "prepared"):
        raise IllegalState(str(xid), f"it is {row.state}")
    _require_ended(xid, row)
    if not one_phase and row.cause != "timeout":
        raise IllegalState(str(xid), f"it is {row.state}, not prepared")
    if row.state == "failed":
        return tell_once(ctx, number, row)
    return _commit_at_once(ctx, number, row)


def _commit_at_once(ctx: Context, number: int, row: TransactionRow) -> Answered | Voting:
    """One-phase commit of an active branch that everybody has left."""
    if row.rollback_only:
        complete(ctx, number, row, "rolled back", "session", row.rollback_only)
        return Answered(int(XaStatus.RBROLLBACK))
    try:
        require_room_of(ctx, row)
    except Refused as problem:
        complete(ctx, number, row, "rolled back", "coordinator", str(problem))
        return Answered(int(XaStatus.RBROLLBACK))
    asked = participants(ctx) if row.rows else ()
    if asked:
        close(ctx, number, row, asked, then_commit=True)
        return Voting(number)
    complete(ctx, number, row, "committed", "coordinator", "")
    return _OK


def rollback(command: RollbackBranch, ctx: Context) -> Answered:
    """Roll the branch back, or hear what became of it."""
    xid = command.xid
    number, row = _known(ctx, xid)
    heuristic = _heuristically(row)
    if heuristic is not None:
        return heuristic
    _require_ended(xid, row)
    if row.state == "failed":
        answer = tell_once(ctx, number, row)
        return answer if row.cause == "timeout" else _OK
    complete(ctx, number, row, "rolled back", "coordinator", row.rollback_only)
    return _OK


def forget(command: ForgetBranch, ctx: Context) -> Answered:
    """The coordinator has heard what an operator decided; the xid is free."""
    xid = command.xid
    number, row = _known(ctx, xid)
    if _heuristically(row) is None:
        raise IllegalState(str(xid), f"it is {row.state}, and no operator has decided it")
    drop(ctx, number, row)
    return _OK


def set_timeout(command: SetTimeout, ctx: Context) -> Answered:
    """Another time-out, from now on, of a branch that is not closed yet."""
    xid, timeout_ms = command.xid, command.timeout_ms
    number, row = _known(ctx, xid)
    if row.state != "active":
        raise IllegalState(str(xid), f"it is {row.state}")
    _require_timeout(ctx, timeout_ms)
    due = ctx.table("due")
    if row.deadline_ms:
        due.delete((row.deadline_ms, number))
    deadline_ms = ctx.now + timeout_ms if timeout_ms else 0
    if deadline_ms:
        due.put((deadline_ms, number), None)
    row = replace(row, timeout_ms=timeout_ms, deadline_ms=deadline_ms)
    ctx.table("transactions").put(number, row)
    return _OK


def heuristic(command: Heuristic, ctx: Context) -> Answered:
    """An operator decides a prepared branch, whose coordinator may be lost."""
    xid = command.xid
    number, row = _known(ctx, xid)
    if row.state != "prepared":
        raise IllegalState(str(xid), f"it is {row.state}, not prepared")
    verdict: Verdict = "committed" if command.commit else "rolled back"
    state: State = "heuristically committed" if command.commit else "heuristically rolled back"
    settle(ctx, number, row, state, cause="operator", reason=command.reason)
    note(ctx, number, xid, verdict, "operator", command.reason)
    return _OK

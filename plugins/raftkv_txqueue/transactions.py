"""TX: the transactions of one session, one after the other, each with its fate for ever.

A TX is named by its session and a counter. Counters are decided in order, so `SessionRow.decided`
and the exceptions in `rollbacks` know the fate of all of them; and a `Commit` that comes again
finds its answer there, whoever sends it, and does nothing.

Rules of this file
1. The fast path: a `Commit` with nothing staged before it, and nobody to ask, writes straight into
   the queues. It makes no transaction, stages nothing, and does not touch `meta`.
2. A commit that cannot be done rolls back, and that is a result: the refusal's code is its cause.
   Everything is checked before the first write, so nothing of it has to be undone.
3. Who may commit: the session, while it is live. Once its `Commit` is in the log and only the votes
   are missing, the session is needed no longer: its end does not touch that transaction.
4. A transaction that is rolled back gives its session back what it had accepted, if that is live.

A session that ended meanwhile is kept from that decision on (`sessions.keep`), so it can be asked.
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.errors import Refused
from raftkv.plugin import Context

from . import branches, completing
from .closing import (
    close,
    has_all_votes,
    participants,
    require_room_of,
    voted,
)
from .commands import (
    Commit,
    Decided,
    DecidedNow,
    Participant,
    Rollback,
    RollbackRow,
    SessionRow,
    TransactionRow,
    Verdict,
    Vote,
    Voting,
)
from .deciding import cut, drops_of_each, settle
from .locks import unlock
from .queues import append, room_for
from .refusals import NotAMember, OutcomeForgotten, UnknownTransaction, WrongKind
from .sessions import keep, live, owned
from .staging import (
    Plan,
    merged,
    opened,
    planned,
    require_size,
    require_staging,
    stage,
    write_plan,
)
from .times import forget
from .views import txid_of

__all__ = ["commit", "roll_back", "rollback", "session_ended", "stage", "vote"]


# --- commit ---------------------------------------------------------------------------------------


def commit(command: Commit, ctx: Context) -> DecidedNow | Voting:
    """Commit the session's TX with these operations as its last, or say what became of it."""
    session_id, counter = command.session, command.counter
    known: SessionRow | None = ctx.table("sessions").get(session_id)
    if known is not None:
        if counter <= known.decided:
            return _as_it_was(ctx, session_id, known, counter)
        number = _preparing(ctx, known, counter)
        if number:
            return Voting(number)
    session = _using(ctx, session_id, counter)
    row = _row_of(ctx, session)
    if row is not None and row.deadline_ms and row.deadline_ms <= ctx.now:
        return _roll_back(ctx, session_id, "timeout", _too_old(row))
    try:
        plan = planned(ctx, session_id, command.operations)
        if row is None:
            return _commit_new(ctx, command, plan)
        return _commit_staged(ctx, command, session.number, row, plan)
    except Refused as problem:
        return _roll_back(ctx, session_id, problem.code, str(problem))


def _preparing(ctx: Context, session: SessionRow, counter: int) -> int:
    """The number of this TX if its commit waits for votes; else 0."""
    row = _row_of(ctx, session)
    if row is None or row.counter != counter or row.state != "preparing":
        return 0
    return session.number


def _row_of(ctx: Context, session: SessionRow) -> TransactionRow | None:
    """The session's TX, if anything of it is staged."""
    if not session.number:
        return None
    row: TransactionRow = ctx.table("transactions")[session.number]
    return row if row.xid is None else None


def _using(ctx: Context, session_id: int, counter: int) -> SessionRow:
    """The live session of this node, whose next TX to be decided is `counter`."""
    session = owned(ctx, session_id)
    if session.kind != "tx":
        raise WrongKind(session_id, "tx")
    if counter > session.decided + 1:
        raise UnknownTransaction(txid_of(session_id, counter))
    return session


def _as_it_was(ctx: Context, session_id: int, session: SessionRow, counter: int) -> DecidedNow:
    if counter <= session.forgotten:
        raise OutcomeForgotten(txid_of(session_id, counter))
    row: RollbackRow | None = ctx.table("rollbacks").get((session_id, counter))
    if row is None:
        return DecidedNow("committed")
    return DecidedNow("rolled back", row.cause, row.reason, row.index)


def _commit_new(ctx: Context, command: Commit, plan: Plan) -> DecidedNow | Voting:
    """Nothing was staged before. Raises what is wrong, before anything is written."""
    require_size(ctx, plan.rows, plan.bytes, len(plan.contents))
    for content in plan.contents:
        messages = len(content.messages) - len(content.accepts)
        size = content.bytes - content.bytes_accepted
        room_for(content.queue, messages, size, content.name)
    asked = participants(ctx) if plan.rows else ()
    if not asked:
        spans = _write_through(ctx, command.session, plan)
        return _committed(ctx, command.session, spans, plan.accepts)
    empty = TransactionRow(command.session, command.counter, None, "active", ctx.now)
    require_staging(ctx, empty, plan)
    number, row = opened(ctx, 0, session=command.session, counter=command.counter, xid=None)
    row = write_plan(ctx, number, row, plan, command.session)
    return _ask(ctx, command.session, number, row, plan, asked)


def _write_through(ctx: Context, session_id: int, plan: Plan) -> tuple[tuple[str, int, int], ...]:
    """The fast path: accepted messages leave, published ones enter, and that is all."""
    queues, messages = ctx.table("queues"), ctx.table("messages")
    spans: list[tuple[str, int, int]] = []
    drop_max = drops_of_each(len(plan.contents))
    for content in plan.contents:
        queue = content.queue
        if content.accepts:
            for seq in content.accepts:
                unlock(ctx, (session_id, queue.id, seq))
                messages.delete((queue.id, seq))
                forget(ctx, queue.id, seq)
            queue = replace(
                queue,
                depth=queue.depth - len(content.accepts),
                bytes=queue.bytes - content.bytes_accepted,
            )
        if content.messages:
            queue, first, _ = append(
                ctx,
                content.name,
                queue,
                tuple(content.messages),
                ctx.now,
                content.bytes,
                drop_max,
            )
            spans.append((content.name, first, queue.next - 1))
        queues.replace(content.name, content.queue, queue)
    return tuple(spans)


def _commit_staged(
    ctx: Context, command: Commit, number: int, row: TransactionRow, plan: Plan
) -> DecidedNow | Voting:
    """Raises what is wrong, before anything is written."""
    asked = participants(ctx)
    require_staging(ctx, row, plan, number)
    require_room_of(ctx, merged(row, plan))
    row = write_plan(ctx, number, row, plan, command.session)
    if asked:
        return _ask(ctx, command.session, number, row, plan, asked)
    done = settle(ctx, number, row, "committed")
    return _committed(ctx, command.session, done.spans, plan.accepts)


def _ask(
    ctx: Context,
    session_id: int,
    number: int,
    row: TransactionRow,
    plan: Plan,
    asked: tuple[Participant, ...],
) -> Voting:
    close(ctx, number, row, asked, then_commit=True)
    session = ctx.table("sessions")[session_id]
    held = session.held - plan.accepts
    ctx.table("sessions").put(session_id, replace(session, number=number, held=held))
    return Voting(number)


def _committed(
    ctx: Context, session_id: int, spans: tuple[tuple[str, int, int], ...], accepted: int
) -> DecidedNow:
    sessions = ctx.table("sessions")
    old = sessions[session_id]
    new = replace(old, decided=old.decided + 1, number=0, held=old.held - accepted)
    sessions.replace(session_id, old, new)
    return DecidedNow("committed", index=ctx.index, spans=spans)


# --- rollback -------------------------------------------------------------------------------------


def rollback(command: Rollback, ctx: Context) -> Decided:
    """Roll the session's TX back, also one that waits for votes; or say what became of it."""
    session_id, counter = command.session, command.counter
    known: SessionRow | None = ctx.table("sessions").get(session_id)
    if known is not None and counter <= known.decided:
        was = _as_it_was(ctx, session_id, known, counter)
        return Decided(was.verdict, was.cause, was.reason, was.index)
    _using(ctx, session_id, counter)
    done = _roll_back(ctx, session_id, "rollback", command.reason)
    return Decided(done.verdict, done.cause, done.reason, done.index)


def _roll_back(ctx: Context, session_id: int, cause: str, reason: str) -> DecidedNow:
    """Roll back the next TX of a live session, whether anything of it is staged or not."""
    session: SessionRow = ctx.table("sessions")[session_id]
    row = _row_of(ctx, session)
    if row is not None:
        done = settle(ctx, session.number, row, "rolled back", holder=session_id)
        session = replace(session, held=session.held + done.held)
    ctx.table("sessions").put(session_id, _recorded(ctx, session_id, session, cause, reason))
    return DecidedNow("rolled back", cause, cut(reason), ctx.index)


def _recorded(
    ctx: Context, session_id: int, session: SessionRow, cause: str, reason: str
) -> SessionRow:
    """The session's row after its next TX was rolled back, which is noted."""
    rollbacks = ctx.table("rollbacks")
    counter = session.decided + 1
    rollbacks.put((session_id, counter), RollbackRow(cause, cut(reason), ctx.now, ctx.index))
    noted, forgotten = session.rolled_back + 1, session.forgotten
    # Two of them: after the setting was lowered, each rollback brings the number down by one.
    excess = min(2, noted - ctx.settings["rollbacks_kept"])
    if excess > 0:
        for key in [key for key, _ in rollbacks.scan(prefix=(session_id,), limit=excess)]:
            rollbacks.delete(key)
            noted, forgotten = noted - 1, key[1]
    return replace(session, decided=counter, number=0, rolled_back=noted, forgotten=forgotten)


# --- what else decides ----------------------------------------------------------------------------


def vote(command: Vote, ctx: Context) -> None:
    """A participant's answer. Votes that nobody waits for (any longer) change nothing."""
    origin = ctx.origin
    if origin is None:
        raise NotAMember
    number = command.number
    row: TransactionRow | None = ctx.table("transactions").get(number)
    if row is None or row.state != "preparing":
        return
    yes = voted(row, origin)
    if yes is None:
        return
    if not command.yes:
        roll_back(ctx, number, row, "vote", f"{origin.name}: {command.reason}")
    elif not has_all_votes(yes):
        ctx.table("transactions").put(number, yes)
    elif row.xid is not None:
        completing.all_voted(ctx, number, yes)
    else:
        decide(ctx, number, yes, committed=True)


def roll_back(ctx: Context, number: int, row: TransactionRow, cause: str, reason: str) -> None:
    """Roll back an undecided transaction that nobody asked to roll back: a TX or a branch.

    `cause`: "vote", "participant", "late" or "timeout".
    """
    if row.xid is not None:
        completing.fail(ctx, number, row, cause, reason)
    else:
        decide(ctx, number, row, committed=False, cause=cause, reason=reason)


def decide(
    ctx: Context,
    number: int,
    row: TransactionRow,
    *,
    committed: bool,
    cause: str = "",
    reason: str = "",
) -> None:
    """Decide a TX, and write the row of its session, which may have ended."""
    sessions = ctx.table("sessions")
    session: SessionRow = sessions[row.session]
    holder = row.session if live(ctx, session) else 0
    state: Verdict = "committed" if committed else "rolled back"
    done = settle(ctx, number, row, state, holder=holder, cause=cause, reason=reason)
    session = replace(session, held=session.held + done.held)
    if committed:
        session = replace(session, decided=row.counter, number=0)
    else:
        session = _recorded(ctx, row.session, session, cause, reason)
    sessions.put(row.session, session)
    keep(ctx, row.session, session)


def session_ended(ctx: Context, session_id: int, session: SessionRow) -> SessionRow:
    """End what a session is in the middle of; its row as it is then, which the caller writes.

    An undecided TX is rolled back, unless its commit only waits for votes. A branch that it works
    in loses it, and can only be rolled back from then on.
    """
    number = session.number
    if not number:
        return session
    row: TransactionRow = ctx.table("transactions")[number]
    if row.xid is not None:
        branches.left(ctx, number, row, session_id)
        return replace(session, number=0)
    if row.state == "preparing":
        return session
    reason = "its session has ended"
    settle(ctx, number, row, "rolled back", cause="session", reason=reason)
    return _recorded(ctx, session_id, session, "session", reason)


def _too_old(row: TransactionRow) -> str:
    return f"it is older than its time-out of {row.timeout_ms} ms"

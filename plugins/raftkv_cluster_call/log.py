"""The log of calls: who gets the next id, and what becomes of it.

Rules of this file: pure, as every `apply`. Nodes reserve an id, run it and say how it went; what is
written here is only the order, and the verdict.

**Reserve, run, decide.** User code never runs inside the log. An id is *reserved* for one call, its
initiator runs the function outside, and a second command says how it ended. Meanwhile nobody passes
the id: cursors wait in front of it. So the seed's race (A and B both want 5, B gets 6 and might run
it before it knows 5) cannot be: B's 6 does not exist before 5 is decided, and B runs its own only
from a cursor that stands at 5.

**Caught up, or in the queue.** When nothing runs and nobody waits, an id is given at once, but only
to a node that has run all others and says so (`expected_last`, compare and set). Upstream refuses
everybody else and lets him retry; under load the fast ones then win for ever. Here whoever comes
while another one runs is queued in the log, first come, first served. Deciding an id grants the
next one in the same entry, whether its node has caught up already or not: its worker runs what was
committed before, then its own.

**Nobody holds up the queue.** When an id is decided, heads that cannot run are dropped on the way:
their node's life has ended, their deadline has passed, their node follows no more or is stuck. That
is checked when a reservation reaches the head and not when the node dies, so a death is cheap
however much the node had queued. One command drops GRANT_DROPS_MAX at most; with more dead ones in
a row, `Expire` goes on. A dropped one leaves its reason in `answers`, for its caller.

**Aborted ids** are taken all the same: holes would make "the next id" a search, and a second use
would make the token of an effect ambiguous. All cursors that stand before one move along, and
`aborted` joins neighbours to stretches, so that a cursor passes any number of them in one step.

**Lost effects.** An abort by the deadline or by the initiator's end may come after the function has
run there. It can have run only if the cursor stood right before the id; then the node gets a row in
`lost`, and will learn of it. (Upstream's transaction aborts, and nobody notices.)
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.plugin import Context, Member, Table

from .commands import (
    ANSWERS_MAX,
    CAUSE_CHARS_MAX,
    GRANT_DROPS_MAX,
    LOST_MAX,
    Abort,
    Aborted,
    ArgsTooLarge,
    Behind,
    Commit,
    Committed,
    Cursor,
    Expire,
    Expired,
    Granted,
    LostEffect,
    NotAMember,
    NotCaughtUp,
    NotReserved,
    NotTakingPart,
    Queued,
    QueueFull,
    Record,
    Reservation,
    Reserve,
    StaleView,
    Withdraw,
    Withdrawn,
)
from .views import (
    decided_id,
    granted_ticket,
    grants_pending,
    is_stuck,
    last_id,
    participants,
    queue_place,
    reserved,
)

__all__ = [
    "abort",
    "abort_reserved",
    "commit",
    "drop_waiting",
    "expire",
    "following",
    "grant_next",
    "origin_of",
    "reserve",
    "withdraw",
]


# --- commands -------------------------------------------------------------------------------------


def reserve(command: Reserve, ctx: Context) -> Granted | Queued | StaleView | Behind:
    me = origin_of(ctx)
    limit = ctx.settings["args_bytes_max"]
    if len(command.args) > limit:
        raise ArgsTooLarge(
            f"the arguments of {command.function} have {len(command.args)} bytes, args_bytes_max "
            f"is {limit}: pass a reference to the data instead"
        )
    cursor = following(me.name, ctx)
    last = last_id(ctx)
    if is_stuck(cursor):
        return StaleView(last, cursor.id, cursor.attempts)
    queue: Table[int, Reservation] = ctx.table("queue")
    idle = not granted_ticket(ctx) and not len(queue)
    if idle and not (cursor.id == last == command.expected_last):
        return Behind(last, cursor.id)
    if len(queue) >= ctx.settings["queue_max"]:
        raise QueueFull(f"{len(queue)} calls wait already (queue_max): try again later")
    ticket = ctx.serial
    deadline_ms = ctx.now + min(command.ttl_ms, ctx.settings["deadline_max_ms"])
    waiting = Reservation(
        node=me.name,
        incarnation=me.incarnation,
        function=command.function,
        version=command.version,
        args=command.args,
        created_ms=command.created_ms,
        deadline_ms=deadline_ms,
    )
    queue.put(ticket, waiting)
    ctx.table("due").put((deadline_ms, ticket), None)
    grant_next(ctx)
    if granted_ticket(ctx) == ticket:
        return Granted(ticket, last_id(ctx))
    return Queued(ticket, queue_place(ctx, ticket))


def commit(command: Commit, ctx: Context) -> Committed:
    record = _own_reserved(command, ctx)
    id = command.id
    cursor = following(record.initiator, ctx)
    if cursor.id != id - 1:
        raise NotCaughtUp(
            f"{record.initiator} has executed up to {cursor.id} and cannot commit {id} before the "
            f"calls between them"
        )
    if command.effect is not None:
        ctx.call("kv", command.effect)
    ctx.table("cursors").put(record.initiator, _moved(cursor, id))
    _decide(id, replace(record, state="committed", decided_ms=ctx.now), ctx)
    nodes = participants(ctx)
    grant_next(ctx)
    return Committed(id, nodes, ctx.index)


def abort(command: Abort, ctx: Context) -> Aborted:
    _own_reserved(command, ctx)
    cause = command.cause
    if cause != "failed" and not cause.startswith("failed: "):
        cause = f"failed: {cause}"
    abort_reserved(cause, ctx)
    grant_next(ctx)
    return Aborted(command.id, ctx.index)


def withdraw(command: Withdraw, ctx: Context) -> Withdrawn:
    me = origin_of(ctx)
    waiting: Reservation | None = ctx.table("queue").get(command.ticket)
    if waiting is not None and waiting.node == me.name:
        _drop(command.ticket, waiting, command.cause, ctx)
        grant_next(ctx)
        return Withdrawn("queued", ctx.index)
    found = reserved(ctx)
    if found is not None and found[1].ticket == command.ticket and _is_of(found[1], me):
        abort_reserved(command.cause, ctx)
        grant_next(ctx)
        return Withdrawn("granted", ctx.index)
    return Withdrawn("gone", ctx.index)


def expire(command: Expire, ctx: Context) -> Expired:
    origin_of(ctx)
    due: Table[tuple[int, int], None] = ctx.table("due")
    queue: Table[int, Reservation] = ctx.table("queue")
    until = (ctx.now + 1, 0)
    ended = [ticket for (_, ticket), _ in due.scan(last=until, limit=command.tickets_max)]
    for ticket in ended:
        waiting = queue.get(ticket)
        if waiting is not None:
            _drop(ticket, waiting, "expired", ctx)
        else:
            abort_reserved("expired", ctx, may_have_run=True)
    grant_next(ctx)
    return Expired(len(ended), due.count(last=until) > 0 or grants_pending(ctx))


# --- what the other files need --------------------------------------------------------------------


def origin_of(ctx: Context) -> Member:
    """The node that sent the command."""
    if ctx.origin is None:
        raise NotAMember("calls are made by nodes; send this command through one")
    return ctx.origin


def following(node: str, ctx: Context) -> Cursor:
    """The cursor of a node that takes part. Raises NotTakingPart."""
    cursor: Cursor | None = ctx.table("cursors").get(node)
    if cursor is None:
        raise NotTakingPart(f"{node} does not take part in cluster calls: it has to join first")
    if cursor.state != "following":
        raise NotTakingPart(
            f"{node} is in the state {cursor.state!r}: it needs the data of another node as of "
            f"{cursor.as_of} or later"
        )
    return cursor


def abort_reserved(cause: str, ctx: Context, *, may_have_run: bool = False) -> None:
    """Abort the id that is reserved. The caller then grants the next one."""
    found = reserved(ctx)
    assert found is not None, "nothing is reserved"
    id, record = found
    cursors: Table[str, Cursor] = ctx.table("cursors")
    own = cursors.get(record.initiator)
    if may_have_run and own is not None and own.state == "following" and own.id == id - 1:
        _note_lost(id, record, cause, ctx)
    cause = cause[:CAUSE_CHARS_MAX]
    _decide(id, replace(record, state="aborted", cause=cause, args=b"", decided_ms=ctx.now), ctx)
    _note_aborted(id, ctx)
    for name, cursor in list(cursors.scan()):
        if cursor.state == "following" and cursor.id == id - 1:
            cursors.put(name, replace(cursor, id=id))


def grant_next(ctx: Context) -> None:
    """Give the next id to the first who can use it, unless one is given already."""
    if granted_ticket(ctx):
        return
    queue: Table[int, Reservation] = ctx.table("queue")
    for _ in range(GRANT_DROPS_MAX):
        head = next(queue.scan(limit=1), None)
        if head is None:
            return
        ticket, waiting = head
        reason = _cannot_run(waiting, ctx)
        if reason is None:
            _grant(ticket, waiting, ctx)
            return
        _drop(ticket, waiting, reason, ctx)


def drop_waiting(node: str, rows: int, ctx: Context) -> int:
    """Drop reservations of a node that leaves, `rows` at most; how many."""
    queue: Table[int, Reservation] = ctx.table("queue")
    found: list[tuple[int, Reservation]] = []
    for ticket, waiting in queue.scan():
        if len(found) >= rows:
            break
        if waiting.node == node:
            found.append((ticket, waiting))
    for ticket, waiting in found:
        _drop(ticket, waiting, "withdrawn", ctx)
    return len(found)


# --- inside ---------------------------------------------------------------------------------------


def _is_of(record: Record, member: Member) -> bool:
    return record.initiator == member.name and record.incarnation == member.incarnation


def _own_reserved(command: Commit | Abort, ctx: Context) -> Record:
    """The record of the id, if this very life of the sender still has it reserved."""
    me = origin_of(ctx)
    found = reserved(ctx)
    if (
        found is not None
        and found[0] == command.id
        and found[1].ticket == command.ticket
        and _is_of(found[1], me)
    ):
        return found[1]
    record: Record | None = ctx.table("records").get(command.id)
    if record is None or record.ticket != command.ticket:
        raise NotReserved(f"{command.id} is not reserved under the ticket {command.ticket}")
    why = f" ({record.cause})" if record.cause else ""
    raise NotReserved(f"{command.id} is {record.state}{why}, not reserved by {me.name}")


def _moved(cursor: Cursor, id: int) -> Cursor:
    return replace(cursor, id=id, failing=0, attempts=0, cause="")


def _decide(id: int, record: Record, ctx: Context) -> None:
    """Write the decided record; nothing is reserved any more."""
    ctx.table("records").put(id, record)
    ctx.table("due").delete((record.deadline_ms, record.ticket))
    ctx.table("meta").put("granted", 0)


def _note_aborted(id: int, ctx: Context) -> None:
    """Lengthen the last stretch, or begin one."""
    stretches: Table[int, int] = ctx.table("aborted")
    for first, end in stretches.scan(reverse=True, limit=1):
        if end == id - 1:
            stretches.put(first, id)
            return
    stretches.put(id, id)


def _note_lost(id: int, record: Record, cause: str, ctx: Context) -> None:
    lost: Table[tuple[str, int], LostEffect] = ctx.table("lost")
    node = record.initiator
    if lost.count(prefix=(node,)) >= LOST_MAX:
        [(oldest, _)] = lost.scan(prefix=(node,), limit=1)
        lost.delete(oldest)
    effect = LostEffect(record.function, record.version, cause, record.created_ms)
    lost.put((node, id), effect)


def _cannot_run(waiting: Reservation, ctx: Context) -> str | None:
    """Why this reservation would be granted in vain."""
    member = ctx.members.get(waiting.node)
    if member is None or not member.up or member.incarnation != waiting.incarnation:
        return "initiator_ended"
    if waiting.deadline_ms <= ctx.now:
        return "expired"
    cursor: Cursor | None = ctx.table("cursors").get(waiting.node)
    if cursor is None:
        return "withdrawn"
    return "stale_view" if cursor.state != "following" or is_stuck(cursor) else None


def _grant(ticket: int, waiting: Reservation, ctx: Context) -> None:
    id = decided_id(ctx) + 1
    record = Record(
        function=waiting.function,
        version=waiting.version,
        args=waiting.args,
        initiator=waiting.node,
        incarnation=waiting.incarnation,
        created_ms=waiting.created_ms,
        decided_ms=0,
        state="reserved",
        cause="",
        ticket=ticket,
        kind="call",
        deadline_ms=waiting.deadline_ms,
    )
    ctx.table("queue").delete(ticket)
    ctx.table("records").put(id, record)
    meta: Table[str, int] = ctx.table("meta")
    meta.put("last", id)
    meta.put("granted", ticket)


def _drop(ticket: int, waiting: Reservation, reason: str, ctx: Context) -> None:
    ctx.table("queue").delete(ticket)
    ctx.table("due").delete((waiting.deadline_ms, ticket))
    answers: Table[int, str] = ctx.table("answers")
    if len(answers) >= ANSWERS_MAX:
        answers.delete_first(1)
    answers.put(ticket, reason)

"""How long records are kept, and the two orders that move all cursors at once.

Rules of this file: pure, and bounded: a command deletes so many records and says whether there are
more. A record may be deleted once every node that takes part is past it. Of those the latest
`history_max` completed ones are kept, to be looked at, with the aborted ones between them
(`history_hard_max` records at most): a caller that fails all the time must not wipe the history.
At format 1 aborted ones count too.

**A stuck node** keeps every record since its cursor, so that it can go on where it stands. That
must end somewhere: beyond `history_hard_max` records the node gets the state `gap`, needs a full
copy from then on, and says so with an alarm. The most advanced node is never put there, or nobody
would be left to copy from. A joiner and a node in a gap keep the records since `as_of`, which is
raised in the same way.

**Force** is the last step of mending (`calls.fix`): having compared the data of all nodes, an
operator's node puts those that hold the leading data on one new id and sends the others for a copy.
It decides about data that was compared before, so it is refused as soon as anything moved
meanwhile: the last id, a cursor that it names, or a call that waits. A node that it does not name
executes its calls and passes the forced id like one that has nothing to do. Calls that are passed
over by this are noted with the node as skipped: it holds the same data, but it never executed them,
and what they did outside of any state is missing there (format 2).

**Reset** forgets the records and lets everybody follow from here on. Ids go on, for "id@node" must
never mean two effects.
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.plugin import Context, Table

from .commands import (
    FORCE,
    FORMAT_COMPLETED,
    ROWS_LIMIT,
    SKIPPED_MAX,
    Cursor,
    Force,
    Forced,
    Moved,
    NotTakingPart,
    Record,
    Reset,
    ResetDone,
    Trim,
    Trimmed,
)
from .cursors import place, position, to_gap
from .log import grant_next, origin_of
from .views import (
    calls_between,
    clean_below,
    granted_ticket,
    hard_bound,
    last_id,
    oldest_id,
    participants,
)

__all__ = ["force", "reset", "trim"]


def trim(command: Trim, ctx: Context) -> Trimmed:
    origin_of(ctx)
    gaps = _leave_behind(ctx)
    rows = _delete(command.rows_max, ctx)
    grant_next(ctx)
    return Trimmed(rows, gaps, clean_below(ctx) >= oldest_id(ctx))


def force(command: Force, ctx: Context) -> Forced:
    me = origin_of(ctx)
    _require_still(command.expected_last, ctx)
    cursors: Table[str, Cursor] = ctx.table("cursors")
    for node, seen in (*command.forward, *command.sync):
        cursor = cursors.get(node)
        if cursor is None or cursor.id != seen:
            now = "has none" if cursor is None else f"stands at {cursor.id}"
            raise Moved(f"the cursor of {node} was seen at {seen} and {now}: look again")
    copies = [node for node, _ in command.sync]
    forward = [node for node, _ in command.forward]
    for node in forward:
        if cursors[node].state != "following":
            raise Moved(f"{node} is in the state {cursors[node].state!r}: it must be synced")
    last = last_id(ctx)
    ahead = [name for name in participants(ctx) if cursors[name].id == last]
    follow = [name for name in dict.fromkeys((*ahead, *forward)) if name not in copies]
    if not follow:
        raise NotTakingPart("nobody would follow any more, so there would be nobody to copy from")
    id = last + 1
    record = Record(
        function=FORCE,
        version=0,
        args=b"",
        initiator=me.name,
        incarnation=me.incarnation,
        created_ms=ctx.now,
        decided_ms=ctx.now,
        state="committed",
        cause="",
        ticket=ctx.serial,
        kind="force",
    )
    ctx.table("records").put(id, record)
    ctx.table("meta").put("last", id)
    for node in follow:
        place(node, _skipping(cursors[node], last, ctx), id, ctx)
    for node in copies:
        to_gap(node, cursors[node], id, ctx)
    return Forced(id, tuple(sorted(follow)), ctx.index)


def _skipping(cursor: Cursor, last: int, ctx: Context) -> Cursor:
    """The cursor, with the calls up to `last` that it never executed noted as skipped."""
    if ctx.version < FORMAT_COMPLETED:
        return cursor
    missed = calls_between(ctx, max(cursor.id, last - ROWS_LIMIT), last)
    return replace(cursor, skipped=(*cursor.skipped, *missed)[-SKIPPED_MAX:])


def reset(command: Reset, ctx: Context) -> ResetDone:
    origin_of(ctx)
    _require_still(command.expected_last, ctx)
    last = last_id(ctx)
    cursors: Table[str, Cursor] = ctx.table("cursors")
    for node, _ in list(cursors.scan()):
        cursors.put(node, Cursor(last, "following"))
    ctx.table("meta").put("reset", last)
    rows = _delete(ROWS_LIMIT, ctx)
    return ResetDone(last, rows, clean_below(ctx) >= oldest_id(ctx))


def _require_still(expected_last: int, ctx: Context) -> None:
    last = last_id(ctx)
    if last != expected_last:
        raise Moved(f"the last id was seen as {expected_last} and is {last}: look again")
    if granted_ticket(ctx) or len(ctx.table("queue")):
        raise Moved("a call is under way: try again when none is")


def _leave_behind(ctx: Context) -> tuple[str, ...]:
    """Put those in a gap for whom too many records would have to be kept; their names."""
    bound = hard_bound(ctx)
    gaps = []
    cursors: Table[str, Cursor] = ctx.table("cursors")
    for node, cursor in list(cursors.scan()):
        if position(cursor) >= bound:
            continue
        if cursor.state == "following":
            to_gap(node, cursor, bound, ctx)
            gaps.append(node)
        else:
            cursors.put(node, replace(cursor, as_of=bound))
    return tuple(gaps)


def _delete(rows_max: int, ctx: Context) -> int:
    """Delete records that are to go, oldest first; how many."""
    oldest = oldest_id(ctx)
    rows = min(rows_max, clean_below(ctx) + 1 - oldest)
    if rows <= 0:
        return 0
    oldest += rows
    ctx.table("records").delete_first(rows)
    ctx.table("meta").put("oldest", oldest)
    stretches: Table[int, int] = ctx.table("aborted")
    while (head := next(stretches.scan(limit=1), None)) is not None and head[1] < oldest:
        stretches.delete(head[0])
    return rows

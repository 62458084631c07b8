"""How far each node has come, and how nodes begin and cease to take part.

Rules of this file: pure. A cursor never goes back; it moves by one committed id at a time, and
over the aborted ones that follow. Everything that lets it move by more (`Sync`, `Force`, `Reset`)
says where the data comes from, or was ordered by an operator.

**Advance** carries the effect of a function that changes nothing but the keyspace: effect and
cursor are one command, so the effect is there exactly once, whatever crashes. A refusal of the
keyspace refuses the whole command, and the cursor stays. For outside effects the cursor moves after
the function has run: at least once, with "id@node" as the token for whoever has to tell twice from
once.

**Joining.** The seed starts a new node at latest - 1 and lets it run the latest only; whatever the
earlier calls had made is missing there. Here a new node is `joining` until it holds another node's
data as of some id (`Sync`), and executes exactly what follows. Only where there is nothing to copy
does it follow at once: no call was ever made, or nobody takes part. (Nodes in a gap do: they hold
older data and wait for somebody's. A newcomer must not become their source with nothing in hand.)

**Gap.** A node whose data is gone or fell out of the history is not moved silently to where records
begin, as upstream does it. It stands in the state `gap` until it holds data as of `as_of` or later.

**Leaving** takes the cursor away, so that neither a call nor trimming waits for the node. Of its
own wish it stays away until `Rejoin`; one that was forced out while it was down joins again when it
comes back, and gets a fresh cursor. That never begins before the old one (`former`): a copy of a
slower node would let it execute again, under the same "id@node", what it has executed already.
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.plugin import Context, Member, MemberChange, SettingChange, Table

from .commands import (
    CAUSE_CHARS_MAX,
    LEAVE_ROWS_MAX,
    LOST_MAX,
    SKIPPED_MAX,
    Acknowledge,
    Acknowledged,
    Advance,
    Advanced,
    BadCursor,
    Cursor,
    Failing,
    HasLeft,
    Join,
    Joined,
    Leave,
    LeaveDone,
    Left,
    NodeIsUp,
    NotTakingPart,
    NotYourNode,
    Rejoin,
    Rejoined,
    Skip,
    Sync,
    TooOld,
)
from .log import abort_reserved, drop_waiting, following, grant_next, origin_of
from .views import (
    decided_id,
    is_stuck,
    last_id,
    may_take_part,
    next_for,
    oldest_id,
    pass_over,
    reserved,
)

__all__ = [
    "acknowledge",
    "advance",
    "failing",
    "join",
    "leave",
    "members_changed",
    "place",
    "position",
    "rejoin",
    "setting_changed",
    "skip",
    "sync",
    "to_gap",
]


# --- executing ------------------------------------------------------------------------------------


def advance(command: Advance, ctx: Context) -> Advanced:
    me = origin_of(ctx)
    cursor = _at_turn(me.name, command.id, ctx)
    if command.effect is not None:
        ctx.call("kv", command.effect)
    return Advanced(place(me.name, cursor, command.id, ctx))


def skip(command: Skip, ctx: Context) -> Advanced:
    me = origin_of(ctx)
    cursor = _at_turn(me.name, command.id, ctx)
    skipped = (*cursor.skipped, command.id)[-SKIPPED_MAX:]
    return Advanced(place(me.name, replace(cursor, skipped=skipped), command.id, ctx))


def failing(command: Failing, ctx: Context) -> None:
    """Attempts are never counted down: a node that starts anew is stuck until the id is behind."""
    me = origin_of(ctx)
    cursor = _at_turn(me.name, command.id, ctx)
    attempts = max(cursor.attempts, command.attempts)
    cause = command.cause[:CAUSE_CHARS_MAX]
    cursor = replace(cursor, failing=command.id, attempts=attempts, cause=cause)
    ctx.table("cursors").put(me.name, cursor)
    if is_stuck(cursor):
        _end_reserved_of(me.name, "stale_view", ctx)
        grant_next(ctx)


def acknowledge(command: Acknowledge, ctx: Context) -> Acknowledged:
    me = origin_of(ctx)
    # From any node: the one that it happened to may never come back.
    return Acknowledged(ctx.table("lost").delete((command.node or me.name, command.id)))


# --- taking part ----------------------------------------------------------------------------------


def join(command: Join, ctx: Context) -> Joined:
    me = origin_of(ctx)
    if not may_take_part(ctx, me.name):
        raise NotTakingPart(f"{me.name} is a replicant, and replicants_take_part is off")
    left: Table[str, Left] = ctx.table("left")
    cursors: Table[str, Cursor] = ctx.table("cursors")
    cursor = cursors.get(me.name)
    gone = left.get(me.name)
    if gone is not None and not gone.forced:
        raise HasLeft(f"{me.name} has left cluster calls: rejoin first")
    left.delete(me.name)
    if cursor is not None and cursor.state == "following":
        # At 0 there is nothing that could have been lost.
        if command.wiped and cursor.id:
            cursor = to_gap(me.name, cursor, cursor.id, ctx)
            grant_next(ctx)
    elif cursor is None or cursor.state == "joining":
        cursor = _joined(me.name, cursor, ctx)
        cursors.put(me.name, cursor)
    return Joined(cursor.state, cursor.id, cursor.as_of)


def sync(command: Sync, ctx: Context) -> Joined:
    me = origin_of(ctx)
    cursor: Cursor | None = ctx.table("cursors").get(me.name)
    if cursor is None:
        raise NotTakingPart(f"{me.name} has no cursor: it has to join first")
    decided = decided_id(ctx)
    if command.as_of > decided or (cursor.state == "following" and command.as_of > cursor.id):
        raise BadCursor(
            f"{me.name} cannot hold data as of {command.as_of}: it is {cursor.state} at "
            f"{cursor.id}, and {decided} is the last id that is decided",
            cursor.id,
        )
    if cursor.state != "following":
        kept = oldest_id(ctx) - 1
        lowest = max(cursor.as_of, cursor.id, kept)
        # Data as of the id before an aborted one is data as of that one.
        if command.as_of < kept or pass_over(ctx, command.as_of) < lowest:
            raise TooOld(
                f"{me.name} needs data as of {lowest} or later, not of {command.as_of}: copy anew",
                lowest,
            )
        cursor = replace(cursor, state="following", as_of=0)
        place(me.name, cursor, command.as_of, ctx)
        cursor = ctx.table("cursors")[me.name]
    return Joined(cursor.state, cursor.id, cursor.as_of)


def leave(command: Leave, ctx: Context) -> LeaveDone:
    me = origin_of(ctx)
    node = command.node
    member = ctx.members.get(node)
    if not command.forced and me.name != node:
        raise NotYourNode(
            f"{me.name} cannot leave for {node}: leave there, or by force if it is down"
        )
    if command.forced and member is not None and member.up:
        raise NodeIsUp(f"{node} is up: let it leave by itself")
    left: Table[str, Left] = ctx.table("left")
    found = node in ctx.table("cursors")
    dropped = _part_with(node, LEAVE_ROWS_MAX, ctx)
    # Who has left on its own wish stays away, whatever was done to it later.
    if member is not None and not (command.forced and node in left):
        left.put(node, Left(command.forced))
    grant_next(ctx)
    return LeaveDone(found, dropped)


def rejoin(command: Rejoin, ctx: Context) -> Rejoined:
    me = origin_of(ctx)
    return Rejoined(ctx.table("left").delete(me.name))


# --- hooks ----------------------------------------------------------------------------------------


def members_changed(change: MemberChange, ctx: Context) -> None:
    """A life that ended runs nothing any more; who is removed, or may not take part, has no row."""
    old, new = change.old, change.new
    if old is not None and change.ended is not None:
        found = reserved(ctx)
        if found is not None and (found[1].initiator, found[1].incarnation) == (
            old.name,
            change.ended,
        ):
            abort_reserved("initiator_ended", ctx, may_have_run=True)
    if new is None and old is not None:
        _part_with(old.name, 0, ctx)
        ctx.table("left").delete(old.name)
        ctx.table("former").delete(old.name)
        lost = ctx.table("lost")
        for key, _ in list(lost.scan(prefix=(old.name,), limit=LOST_MAX)):
            lost.delete(key)
    elif new is not None and not may_take_part(ctx, new.name):
        _part_with(new.name, 0, ctx)
    grant_next(ctx)


def setting_changed(change: SettingChange, ctx: Context) -> None:
    """Replicants that take part no more must not be waited for. (Those that now may, join.)"""
    if change.key == "replicants_take_part" and not change.new:
        for name, _ in list(ctx.table("cursors").scan()):
            member: Member | None = ctx.members.get(name)
            if member is not None and member.role != "core":
                _part_with(name, 0, ctx)
        grant_next(ctx)


# --- what the other files need --------------------------------------------------------------------


def position(cursor: Cursor) -> int:
    """Up to here the node needs no record any more."""
    return cursor.id if cursor.state == "following" else cursor.as_of


def place(node: str, cursor: Cursor, id: int, ctx: Context) -> int:
    """Put the cursor at `id`, or behind the aborted ones that follow; where it then stands."""
    id = pass_over(ctx, id)
    cursor = replace(cursor, id=id, failing=0, attempts=0, cause="")
    ctx.table("cursors").put(node, cursor)
    return id


def to_gap(node: str, cursor: Cursor, as_of: int, ctx: Context) -> Cursor:
    """The node needs a copy as of `as_of` or later. The caller then grants the next id."""
    _end_reserved_of(node, "stale_view", ctx)
    cursor = replace(
        ctx.table("cursors").get(node, cursor),
        state="gap",
        as_of=as_of,
        failing=0,
        attempts=0,
        cause="",
    )
    ctx.table("cursors").put(node, cursor)
    return cursor


# --- inside ---------------------------------------------------------------------------------------


def _at_turn(node: str, id: int, ctx: Context) -> Cursor:
    """The node's cursor, if `id` is the next committed one for it."""
    cursor = following(node, ctx)
    found = next_for(ctx, node)
    if found is None or found[0] != id:
        turn = "nothing" if found is None else str(found[0])
        raise BadCursor(
            f"{node} stands at {cursor.id}: the next for it is {turn}, not {id}", cursor.id
        )
    return cursor


def _joined(node: str, old: Cursor | None, ctx: Context) -> Cursor:
    """Follow at once where there is nothing to copy, else copy first."""
    others = [cursor for name, cursor in ctx.table("cursors").scan() if name != node]
    holders = [cursor for cursor in others if cursor.state != "joining"]
    if last_id(ctx) == 0 or not holders:
        return Cursor(decided_id(ctx), "following")
    # Any of them can be the source, and records are kept from here on until it has copied. But who
    # took part before has executed more, under the same tokens: it waits until a source has, too.
    as_of = min(position(cursor) for cursor in holders)
    as_of = max(as_of, ctx.table("former").get(node, 0))
    return Cursor(0, "joining", as_of if old is None else max(as_of, old.as_of))


def _end_reserved_of(node: str, cause: str, ctx: Context, *, may_have_run: bool = False) -> None:
    found = reserved(ctx)
    if found is not None and found[1].initiator == node:
        abort_reserved(cause, ctx, may_have_run=may_have_run)


def _part_with(node: str, rows: int, ctx: Context) -> int:
    """The node takes part no more. Drops `rows` of its reservations; the others as they come up."""
    _end_reserved_of(node, "withdrawn", ctx, may_have_run=True)
    cursor: Cursor | None = ctx.table("cursors").get(node)
    if cursor is not None:
        former: Table[str, int] = ctx.table("former")
        former.put(node, max(former.get(node, 0), position(cursor)))
        ctx.table("cursors").delete(node)
    return drop_waiting(node, rows, ctx) if rows else 0

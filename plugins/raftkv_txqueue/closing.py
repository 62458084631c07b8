"""Closing a transaction: its content is final, its room is reserved, its participants are fixed.

Rules of this file
1. The participants are those that were in before the close: the members that observe, in the life
   in which they said so. Who comes later sees the result, and has no vote.
2. Closing reserves what the transaction adds to each queue. So a prepared one always finds room,
   whatever is published in between. Room is asked of queues that refuse beyond their limits only,
   but kept for all, so that a queue may change its policy meanwhile.
3. A participant votes once, in the life in which it took part. A vote that comes otherwise says
   nothing: the log has many reasons to bring one late, or twice.
4. Time decides nothing by itself. When the votes are late, `Sweep` rolls back, by an entry.
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.plugin import Context, Member

from .commands import Observe, Participant, TransactionRow
from .deciding import reserved_of
from .queues import room_for
from .refusals import NotAMember

__all__ = [
    "close",
    "has_all_votes",
    "is_gone",
    "observe",
    "participants",
    "require_room_of",
    "voted",
]


def observe(command: Observe, ctx: Context) -> None:
    """The node that sends this takes part from now on, in this life of it; or no longer."""
    origin = ctx.origin
    if origin is None:
        raise NotAMember
    observers = ctx.table("observers")
    if not command.on:
        observers.delete(origin.name)
    elif observers.get(origin.name) != origin.incarnation:
        observers.put(origin.name, origin.incarnation)


def participants(ctx: Context) -> tuple[Participant, ...]:
    """Who would be asked if a transaction were closed now, by name."""
    observers = ctx.table("observers")
    if not len(observers):
        return ()
    return tuple(
        Participant(name, incarnation)
        for name, incarnation in observers.scan()
        if _is_up(ctx, name, incarnation)
    )


def _is_up(ctx: Context, name: str, incarnation: int) -> bool:
    member = ctx.members.get(name)
    return member is not None and member.up and member.incarnation == incarnation


def require_room_of(ctx: Context, row: TransactionRow) -> None:
    """Raise QueueFull if a queue has no room for what the transaction adds to it, net."""
    for part in row.parts:
        name: str = ctx.table("names")[part.queue]
        room_for(ctx.table("queues")[name], *reserved_of(part), name)


def close(
    ctx: Context,
    number: int,
    row: TransactionRow,
    asked: tuple[Participant, ...],
    then_commit: bool,
) -> TransactionRow:
    """Reserve and ask; the row, "preparing" or, with nobody to ask, "prepared". Room was checked.

    Written, with `due` and the queues.
    """
    for part in row.parts:
        messages, size = reserved_of(part)
        if not messages and not size:
            continue
        name: str = ctx.table("names")[part.queue]
        queue = ctx.table("queues")[name]
        more = replace(
            queue,
            reserved=queue.reserved + messages,
            reserved_bytes=queue.reserved_bytes + size,
        )
        ctx.table("queues").put(name, more)
    if row.deadline_ms:
        ctx.table("due").delete((row.deadline_ms, number))
    deadline_ms = ctx.now + ctx.settings["prepare_timeout_ms"] if asked else 0
    if deadline_ms:
        ctx.table("due").put((deadline_ms, number), None)
    row = replace(
        row,
        state="preparing" if asked else "prepared",
        participants=asked,
        then_commit=then_commit,
        deadline_ms=deadline_ms,
    )
    ctx.table("transactions").put(number, row)
    return row


def voted(row: TransactionRow, origin: Member) -> TransactionRow | None:
    """The row with this node's yes in it; None: it has no vote, or has given it."""
    for at, one in enumerate(row.participants):
        if (one.node, one.incarnation) == (origin.name, origin.incarnation) and not one.voted:
            yes = replace(one, voted=True)
            return replace(
                row, participants=(*row.participants[:at], yes, *row.participants[at + 1 :])
            )
    return None


def has_all_votes(row: TransactionRow) -> bool:
    return all(one.voted for one in row.participants)


def is_gone(ctx: Context, row: TransactionRow) -> str:
    """A participant whose life has ended before its yes; "" if there is none."""
    for one in row.participants:
        if not one.voted and not _is_up(ctx, one.node, one.incarnation):
            return one.node
    return ""

"""Settling, outside any transaction: accept, release, reject, put back, return to the back.

Accepted messages are gone. Released ones go back to their places. Rejected ones go to the dead
letter queue. Those that are put back go to their places uncounted: no program has had them, so a
message that kills its consumers must not take them with it (`deliveries_max`). What the session
does not hold is returned as missing, and left alone: it was settled before, or went back when the
session was thought dead, and may belong to another session by now.

Two corners. A lock may be on a queue that was deleted since: the message is missing then, and
`Sweep` takes the lock away. And a session whose large transaction was rolled back has what that
accepted again, in the entry that rolled back, while the rows are moved later: what it settles
meanwhile is moved here.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from raftkv.plugin import Context

from .commands import ROWS_MAX, PutBack, Queue, Settle, Settled, ToBack, size_of
from .deciding import reclaim, returning
from .delivering import bury, give_back, put_back, to_back
from .locks import unlock
from .refusals import BatchTooLarge, EmptyBatch
from .sessions import owned
from .times import forget

__all__ = ["settle"]


def settle(command: Settle | PutBack | ToBack, ctx: Context) -> Settled:
    """Settle what the session holds, and tell what it does not (any longer) hold."""
    session, name, seqs = command.session, command.queue, command.seqs
    if len(seqs) > ROWS_MAX:
        raise BatchTooLarge("rows", ROWS_MAX)
    if not seqs:
        raise EmptyBatch
    row = owned(ctx, session)
    queues = ctx.table("queues")
    old: Queue | None = queues.get(name)
    done, missing = 0, seqs
    if old is not None:
        if len(ctx.table("unfolding")) and _reclaim(ctx, session, old.id, seqs):
            row = owned(ctx, session)
        if isinstance(command, Settle) and command.settling == "accept":
            new, done, missing = _accept(ctx, session, old, seqs)
        else:
            settled, missing = _unlocked(ctx, session, old, seqs)
            done = len(settled)
            new, back = old, _way_back(command)
            for seq, deliveries in settled:
                new = back(ctx, name, new, seq, deliveries)
        if done:
            queues.replace(name, old, new)
    if done:
        ctx.table("sessions").replace(session, row, replace(row, held=row.held - done))
    return Settled(done, missing)


def _way_back(
    command: Settle | PutBack | ToBack,
) -> Callable[[Context, str, Queue, int, int], Queue]:
    if isinstance(command, PutBack):
        return put_back
    if isinstance(command, ToBack):
        return to_back
    return give_back if command.settling == "release" else bury


def _accept(
    ctx: Context, session: int, queue: Queue, seqs: tuple[int, ...]
) -> tuple[Queue, int, tuple[int, ...]]:
    """Delete them: the queue, how many, and those that were not held. What is locked is in
    `messages`, for whoever locked it has moved it there."""
    id, size, missing = queue.id, 0, []
    messages = ctx.table("messages")
    delete = messages.delete
    for seq in seqs:
        if unlock(ctx, (session, id, seq)):
            key = (id, seq)
            size += size_of(messages[key].message)
            delete(key)
            forget(ctx, id, seq)
        else:
            missing.append(seq)
    done = len(seqs) - len(missing)
    if not done:
        return queue, 0, seqs
    new = replace(queue, depth=queue.depth - done, bytes=queue.bytes - size)
    return new, done, tuple(missing)


def _unlocked(
    ctx: Context, session: int, queue: Queue, seqs: tuple[int, ...]
) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """Take these locks away: (seq, deliveries) of each, and the seqs that were not held."""
    found: list[tuple[int, int]] = []
    missing: list[int] = []
    for seq in seqs:
        deliveries = unlock(ctx, (session, queue.id, seq))
        if deliveries:
            found.append((seq, deliveries))
        else:
            missing.append(seq)
    return found, tuple(missing)


def _reclaim(ctx: Context, session: int, queue_id: int, seqs: tuple[int, ...]) -> bool:
    """Lock those again that the session has back from a rolled back transaction, whose rows are
    still being moved. Whether there were any: the session's row is another one then."""
    back = returning(ctx, session)
    if not back:
        return False
    locks = ctx.table("locks")
    found = 0
    for seq in seqs:
        if (session, queue_id, seq) not in locks and reclaim(ctx, back, session, queue_id, seq):
            found += 1
    return found > 0

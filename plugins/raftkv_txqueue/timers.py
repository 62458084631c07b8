"""What happens when a delay or a time to live is over, and acquiring beside such messages.

`Sweep` fires the timers that are due, in bounded slices, when the leader proposes it. An `Acquire`
fires them as well before it looks, so a consumer never gets a message that has expired by the stamp
of the entry that gives it, and never one whose delay is not over. If more timers are due than one
entry may fire, it looks at the time of each message that it would give.

An entry that has only passed over others may find nothing although messages are left: then its
result has `ready` above 0, and the node asks again. Each such entry leaves fewer.
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.plugin import Context

from . import delivering, views
from .commands import ROWS_MAX, Acquire, Acquired, Queue, size_of
from .delivering import bury
from .locks import lock
from .places import take
from .queues import named
from .refusals import TooManyAcquired
from .sessions import owned
from .times import has_expired, leave, leave_gap, skip_gaps
from .views import available

__all__ = ["FIRED_MAX", "acquire", "fire"]

#: Timers that one `Acquire` fires, and expired messages that it passes over, at most.
FIRED_MAX: int = ROWS_MAX


def fire(ctx: Context, rows_max: int) -> tuple[int, bool]:
    """Fire timers that are due, `rows_max` at most; how many, and whether more are due."""
    timers = ctx.table("timers")
    if not len(timers):
        return 0, False
    last = (ctx.now + 1, 0, 0)
    keys = [key for key, _ in timers.scan(None, last, limit=rows_max)]
    # Each leaves a gap of its own, and may move one message to `returned`; the gaps of delayed ones
    # between them may be a hundred times as many, and are left to the entries that come to them.
    gaps = len(keys) + views.GAPS_MAX
    for key in keys:
        timers.delete(key)
        gaps -= _fire(ctx, key[1], key[2], gaps)
    return len(keys), timers.count(None, last) > 0


def _fire(ctx: Context, queue_id: int, seq: int, gaps_max: int) -> int:
    """Fire one timer; how many seqs the cursor has passed, `gaps_max` at most."""
    name = ctx.table("names").get(queue_id)
    if name is None:
        return 0  # the queue was deleted; its rows are swept
    old: Queue = ctx.table("queues")[name]
    queue = old
    comes = ctx.table("delayed").delete((queue_id, seq))
    if comes:
        queue = _come(ctx, queue, seq)
    if not comes or has_expired(ctx, queue_id, seq):
        queue = _expire(ctx, name, queue, seq, gaps_max)
    ctx.table("queues").put(name, queue)
    return queue.cursor - old.cursor


def _come(ctx: Context, queue: Queue, seq: int) -> Queue:
    """A delay is over: the message is available in its place."""
    key = (queue.id, seq)
    if not ctx.table("gaps").delete(key):
        ctx.table("returned").put(key, 0)
    expires_ms = ctx.table("expiring").get(key)
    if expires_ms is not None:
        ctx.table("timers").put((expires_ms, queue.id, seq), None)
    return replace(queue, ready=queue.ready + 1)


def _expire(ctx: Context, name: str, queue: Queue, seq: int, gaps_max: int) -> Queue:
    """A time to live is over: the message dies, unless a session has it."""
    key = (queue.id, seq)
    deliveries = ctx.table("returned").get(key)
    if deliveries is not None:
        ctx.table("returned").delete(key)
    elif seq < queue.cursor or key in ctx.table("gaps"):
        return queue  # acquired or accepted: it is looked at when it comes back
    else:
        queue = leave_gap(ctx, queue, seq, gaps_max)
    queue = replace(queue, ready=queue.ready - 1)
    return bury(ctx, name, queue, seq, deliveries or 0, expired=True)


def acquire(command: Acquire, ctx: Context) -> Acquired:
    """The oldest available messages are the session's; expired ones are passed over."""
    if not any(len(ctx.table(name)) for name in ("timers", "gaps", "expiring")):
        return delivering.acquire(command, ctx)
    session, name = command.session, command.queue
    row = owned(ctx, session)
    named(ctx, name)
    limit = ctx.settings["acquired_max"]
    if row.held >= limit:
        raise TooManyAcquired(session, limit)
    late = fire(ctx, FIRED_MAX)[1]
    old = named(ctx, name)
    if not late and not ctx.table("gaps").count(prefix=(old.id,)):
        return delivering.acquire(command, ctx)
    wanted = min(command.count, limit - row.held, old.ready)
    queue = skip_gaps(ctx, old)
    queue, found = _chosen(ctx, name, queue, wanted, command.bytes_max, late)
    lock(ctx, session, queue.id, found)
    queue = skip_gaps(ctx, replace(queue, ready=queue.ready - len(found)))
    if queue != old:
        ctx.table("queues").put(name, queue)
    if found:
        ctx.table("sessions").put(session, replace(row, held=row.held + len(found)))
    seqs = tuple(seq for seq, _ in found)
    return Acquired(seqs, tuple(deliveries for _, deliveries in found), queue.ready)


def _chosen(
    ctx: Context, name: str, queue: Queue, wanted: int, bytes_max: int, late: bool
) -> tuple[Queue, list[tuple[int, int]]]:
    """Take so many out of their places; the queue, and (seq, deliveries, this one included).

    `late`: some may have expired, and nothing has told them yet.
    """
    id, size, cursor = queue.id, 0, queue.cursor
    found: list[tuple[int, int]] = []
    candidates = available(ctx, queue, limit=wanted + (FIRED_MAX if late else 0)) if wanted else []
    for seq, deliveries in candidates:
        if len(found) == wanted:
            break
        if late and has_expired(ctx, id, seq):
            cursor = leave(ctx, id, cursor, seq)
            queue = replace(queue, cursor=cursor, ready=queue.ready - 1)
            queue = bury(ctx, name, queue, seq, deliveries, expired=True)
            continue
        stored = take(ctx, id, seq)
        size += 0 if stored is None else size_of(stored.message)
        if bytes_max and found and size > bytes_max:
            break
        cursor = leave(ctx, id, cursor, seq)
        found.append((seq, deliveries + 1))
    return replace(queue, cursor=cursor), found

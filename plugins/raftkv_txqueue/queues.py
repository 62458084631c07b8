"""Queues: declared, deleted, purged, published to.

A queue is one row, which says at every index exactly how many messages and bytes are in it. The
functions here take that row and return what it has become; whoever works on a queue reads the row
once and writes it once.

Fresh messages are a stretch without holes, from the cursor to the last: a fresh message leaves only
from its front, by being acquired, purged or dropped. So the number of the others that are
available, the returned ones, is `ready` minus the length of that stretch. Delays, times to live and
messages that were returned to the back make holes in it, which are in `gaps` (`times.py`).

Dropping the oldest. A publication to a "drop_oldest" queue is never refused: it is appended, and
then the oldest available messages go until the limits hold: a thousand in one entry at most, more
of them by `Sweep`. Acquired ones stay, for somebody works on them, and so does the newest message
of all: otherwise a publication to a queue whose messages are all acquired would be answered "done"
and be gone. So such a queue may be above its limit.

The row of a deleted queue goes at once, its messages later, in batches; its id is never used again,
and a new queue of that name is empty from its first moment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from raftkv.plugin import Context

from . import times, views
from .commands import (
    ACK_TIMEOUT_MS_MAX,
    ACK_TIMEOUT_MS_MIN,
    COMMAND_BYTES,
    FORMAT_DEAD_LETTERS,
    HEADERS_MAX,
    NAME_CHARS_MAX,
    ROWS_MAX,
    Declared,
    DeclareQueue,
    Deleted,
    DeleteQueue,
    EnsureQueue,
    Message,
    Publish,
    Published,
    Purge,
    Purged,
    Queue,
    Stored,
    size_of,
)
from .places import remove
from .refusals import (
    BadAckTimeout,
    BadDeadLetter,
    BadHeaders,
    BadQueueName,
    BadQueueTtl,
    BatchTooLarge,
    DeadLetterCycle,
    DeadLetterInUse,
    EmptyBatch,
    MessageTooLarge,
    QueueAcquired,
    QueueDiffers,
    QueueFull,
    QueueInUse,
    QueueNotEmpty,
    TooManyQueues,
    UnknownDeadLetter,
    UnknownQueue,
)
from .views import Tables, ack_timeout_of, available, delayed_in, meta_of, queue_of, ttl_of

__all__ = [
    "append",
    "check_messages",
    "checked",
    "completed",
    "declare",
    "delete",
    "ensure",
    "make_room",
    "must_drop",
    "named",
    "publish",
    "purge",
    "room_for",
]

#: What is declared of a queue.
_LIMITS: Final = ("depth_max", "bytes_max", "overflow", "deliveries_max", "dead_letter")
_FRESH: Final = DeclareQueue("")
#: What else is: its table, of queue id -> milliseconds, and how it is read; 0: none.
_TIMES: Final[dict[str, tuple[str, Callable[[Tables, Queue], int]]]] = {
    "ack_timeout_ms": ("ack_timeouts", ack_timeout_of),
    "ttl_ms": ("queue_ttls", ttl_of),
}
# ASCII alone: what counts as a letter elsewhere depends on the Unicode tables of a node's Python.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]*")


# --- for all who publish --------------------------------------------------------------------------


#: `named(ctx, name)`: the queue of that name. Raises `UnknownQueue`.
named: Final = queue_of


def check_messages(ctx: Tables, messages: tuple[Message, ...]) -> int:
    """`checked`, of all the messages of a command. Raises `BatchTooLarge` as well."""
    if len(messages) > ROWS_MAX:
        raise BatchTooLarge("rows", ROWS_MAX)
    size = checked(ctx, messages)
    if size > COMMAND_BYTES and len(messages) > 1:
        raise BatchTooLarge("bytes", COMMAND_BYTES)
    return size


def checked(ctx: Tables, messages: tuple[Message, ...]) -> int:
    """The bytes of these messages together; one that cannot be kept is refused.

    A node asks as well, before it proposes; only the answer in `apply` counts.
    Raises `EmptyBatch`, `MessageTooLarge`, `BadHeaders`, `BadTime`.
    """
    if not messages:
        raise EmptyBatch
    limit = ctx.settings["message_bytes_max"]
    total = 0
    for message in messages:
        size = size_of(message)
        if size > limit:
            raise MessageTooLarge(size, limit)
        if message.headers:
            _check_headers(message)
            times.check(ctx, message)
        total += size
    return total


def _check_headers(message: Message) -> None:
    if len(message.headers) > HEADERS_MAX:
        raise BadHeaders(f"a message has {HEADERS_MAX} headers at most")
    for name, _ in message.headers:
        if not 0 < len(name) <= NAME_CHARS_MAX:
            raise BadHeaders(f"the name of a header has 1 to {NAME_CHARS_MAX} letters")


def room_for(queue: Queue, count: int, size: int, name: str) -> None:
    """Whether so many more messages and bytes, net, may be added or reserved. Raises `QueueFull`.

    What does not become more needs no room, even if the queue is above its limit.
    """
    if queue.overflow != "refuse":
        return
    depth, bytes_ = queue.depth + queue.reserved, queue.bytes + queue.reserved_bytes
    if count > 0 and queue.depth_max and depth + count > queue.depth_max:
        raise QueueFull(name, "messages", queue.depth_max)
    if size > 0 and queue.bytes_max and bytes_ + size > queue.bytes_max:
        raise QueueFull(name, "bytes", queue.bytes_max)


def append(
    ctx: Context,
    name: str,
    queue: Queue,
    messages: tuple[Message, ...],
    at_ms: int,
    size: int | None = None,
    drop_max: int = ROWS_MAX,
    ttls: Sequence[int | None] | None = None,
) -> tuple[Queue, int, int]:
    """Add messages at the end: the queue, to be written, the first seq, and how many were dropped.

    No limit is checked here. `size`: of all of them, if it is known. `drop_max`: what may be
    dropped for them at once; `Sweep` drops the rest. Who appends several times in one entry gives
    each time its part of it. `ttls`: what the queue allowed when each of them was staged, None
    of one without times; None: what it allows now.
    """
    put = ctx.table("messages").put
    id, first = queue.id, queue.next
    seq, delayed = first, 0
    ttl_ms: int | None = times.default_ttl(ctx, id)
    for message in messages:
        put((id, seq), Stored(message, at_ms))
        if ttls is not None:
            ttl_ms = ttls[seq - first]
        if ttl_ms or (message.headers and ttl_ms is not None):
            delayed += times.begin(ctx, id, seq, message, at_ms, ttl_ms)
        seq += 1
    if size is None:
        size = sum(map(size_of, messages))
    count = seq - first
    queue = replace(
        queue,
        next=seq,
        ready=queue.ready + count - delayed,
        depth=queue.depth + count,
        bytes=queue.bytes + size,
    )
    if delayed:
        queue = times.skip_gaps(ctx, queue, delayed)
    if not must_drop(queue):
        return queue, first, 0
    queue, dropped, more = make_room(ctx, name, queue, drop_max)
    if more:
        ctx.table("overfull").put(name, None)
    return queue, first, dropped


def make_room(ctx: Context, name: str, queue: Queue, rows: int) -> tuple[Queue, int, bool]:
    """Drop the oldest available ones until the limits hold, `rows` at most, never the newest.

    The queue, to be written; how many were dropped; whether there are more to be dropped. Nothing
    is dropped from a queue that refuses.
    """
    if not must_drop(queue):
        return queue, 0, False
    depth, size = queue.depth_max or queue.depth, queue.bytes_max or queue.bytes
    gaps_max = min(rows, views.GAPS_MAX)
    queue, dropped = _discard(ctx, queue, queue.next - 2, rows, depth, size, gaps_max)
    queue = replace(queue, dropped=queue.dropped + dropped)
    more = must_drop(queue) and _has(ctx, queue, queue.next - 2)
    return queue, dropped, more


def must_drop(queue: Queue) -> bool:
    """Whether it is a queue that drops, and has more than it may. Reserved room does not count."""
    if queue.overflow == "refuse":
        return False
    if queue.depth_max and queue.depth > queue.depth_max:
        return True
    return bool(queue.bytes_max) and queue.bytes > queue.bytes_max


def _discard(
    ctx: Context,
    queue: Queue,
    upto: int,
    rows: int,
    depth_goal: int = -1,
    bytes_goal: int = -1,
    gaps_max: int | None = None,
) -> tuple[Queue, int]:
    """Delete available messages up to a seq, the oldest first, until both goals are reached.

    `rows` at most, behind `gaps_max` gaps at most (None: `GAPS_MAX`) and as many between them. The
    queue, to be written, and how many.
    """
    if len(ctx.table("gaps")):
        return _discard_between(ctx, queue, upto, rows, depth_goal, bytes_goal, gaps_max)
    id, depth, size, cursor, gone = queue.id, queue.depth, queue.bytes, queue.cursor, 0
    returned = ctx.table("returned")
    if queue.ready > queue.next - cursor:
        for key, _ in list(returned.scan((id, 0), (id, upto + 1), limit=rows)):
            if depth <= depth_goal and size <= bytes_goal:
                break
            returned.delete(key)
            size -= remove(ctx, id, key[1])
            depth -= 1
            gone += 1
    while cursor <= upto and cursor < queue.next and gone < rows:
        if depth <= depth_goal and size <= bytes_goal:
            break
        size -= remove(ctx, id, cursor)
        depth -= 1
        gone += 1
        cursor += 1
    ready = queue.ready - gone
    return replace(queue, cursor=cursor, ready=ready, depth=depth, bytes=size), gone


def _discard_between(
    ctx: Context,
    queue: Queue,
    upto: int,
    rows: int,
    depth_goal: int,
    bytes_goal: int,
    gaps_max: int | None,
) -> tuple[Queue, int]:
    """`_discard`, where some seqs from the cursor on are not fresh."""
    queue = times.skip_gaps(ctx, queue, gaps_max)
    id, depth, size, cursor, gone = queue.id, queue.depth, queue.bytes, queue.cursor, 0
    for seq, _ in available(ctx, queue, upto=upto, limit=rows, gaps_max=gaps_max):
        if depth <= depth_goal and size <= bytes_goal:
            break
        cursor = times.leave(ctx, id, cursor, seq)
        size -= remove(ctx, id, seq)
        depth -= 1
        gone += 1
    ready = queue.ready - gone
    return replace(queue, cursor=cursor, ready=ready, depth=depth, bytes=size), gone


def _has(ctx: Context, queue: Queue, upto: int) -> bool:
    """Whether a message up to that seq is available."""
    first, last = queue.cursor, min(upto, queue.next - 1)
    gaps = ctx.table("gaps")
    if last - first + 1 > (gaps.count((queue.id, first), (queue.id, last + 1)) if gaps else 0):
        return True
    returned = ctx.table("returned").scan((queue.id, 0), (queue.id, upto + 1), limit=1)
    return next(returned, None) is not None


# --- commands -------------------------------------------------------------------------------------


def publish(command: Publish, ctx: Context) -> Published:
    """All messages, or none."""
    queues = ctx.table("queues")
    name, messages = command.queue, command.messages
    old = queues.get(name)
    if old is None:
        raise UnknownQueue(name)
    size = check_messages(ctx, messages)
    times.require_timers(ctx, old.id, messages)
    room_for(old, len(messages), size, name)
    queue, first, dropped = append(ctx, name, old, messages, ctx.now, size)
    queues.replace(name, old, queue)
    return Published(first, queue.next - 1, dropped)


def declare(command: DeclareQueue, ctx: Context) -> Declared:
    """Make a queue, or give one other limits: they count from the next publication on."""
    old: Queue | None = ctx.table("queues").get(command.queue)
    ttl_ms = 0 if old is None else ttl_of(ctx, old)
    _require_no_cycle(ctx, command.queue, command.dead_letter, ttl_ms)
    return _declared(command, ctx)


def _declared(command: DeclareQueue, ctx: Context) -> Declared:
    name, dead_letter = command.queue, command.dead_letter
    for text in (name, dead_letter) if dead_letter else (name,):
        if len(text) > NAME_CHARS_MAX or _NAME.fullmatch(text) is None:
            raise BadQueueName(text[:NAME_CHARS_MAX])
    if name == dead_letter:
        raise BadDeadLetter(name)
    queues = ctx.table("queues")
    old: Queue | None = queues.get(name)
    if old is None:
        limit = ctx.settings["queues_max"]
        if len(queues) >= limit:
            raise TooManyQueues(limit)
        meta = meta_of(ctx)
        ctx.table("meta").put("state", replace(meta, next_queue=meta.next_queue + 1))
        ctx.table("names").put(meta.next_queue, name)
    new = replace(
        Queue(meta.next_queue) if old is None else old,
        depth_max=command.depth_max,
        bytes_max=command.bytes_max,
        overflow=command.overflow,
        deliveries_max=command.deliveries_max,
        dead_letter=dead_letter,
    )
    if new != old:
        queues.put(name, new)
    return Declared(new.id, old is None, old is not None and new != old)


def _require_no_cycle(ctx: Context, name: str, dead_letter: str, ttl_ms: int) -> None:
    """Refuse that what expires in the queue comes back to it, for each on its way has a time to
    live of its own: it would go round for ever. A message's own is taken away when it dies.

    Raises DeadLetterCycle.
    """
    path: dict[str, None] = {}
    while ttl_ms and dead_letter not in path:
        if dead_letter == name and path:
            most = DeadLetterCycle.NAMED_MAX
            raise DeadLetterCycle(name, [*path][:most], max(0, len(path) - most))
        row: Queue | None = ctx.table("queues").get(dead_letter)
        if row is None:
            return
        path[dead_letter] = None
        ttl_ms, dead_letter = ttl_of(ctx, row), row.dead_letter


def ensure(command: EnsureQueue, ctx: Context) -> Declared:
    """Make a queue, or compare one with what is asked for, or change it."""
    whole, name = completed(ctx, command), command.queue
    old: Queue | None = ctx.table("queues").get(name)
    _check_times(ctx, command, 0 if old is None else ttl_of(ctx, old))
    changes: dict[str, int] = {}
    ttl_ms = 0
    for what, (table, present_of) in _TIMES.items():
        present = 0 if old is None else present_of(ctx, old)
        asked = getattr(command, what)
        if asked not in (None, present):
            if old is not None and not command.change:
                raise QueueDiffers(name, what, str(present), str(asked))
            changes[table] = asked
        if what == "ttl_ms":
            ttl_ms = present if asked is None else asked
    _require_no_cycle(ctx, name, whole.dead_letter, ttl_ms)
    done = _declared(whole, ctx)
    for table, value in changes.items():
        if value:
            ctx.table(table).put(done.id, value)
        else:
            ctx.table(table).delete(done.id)
    return done if done.created or not changes else Declared(done.id, False, True)


def _check_times(ctx: Context, command: EnsureQueue, present_ttl_ms: int) -> None:
    """Raises BadAckTimeout; BadQueueTtl, unless the queue has that time to live already: programs
    declare it again when they start, and the setting may have been lowered."""
    timeout_ms, ttl_ms = command.ack_timeout_ms, command.ttl_ms
    if timeout_ms and not ACK_TIMEOUT_MS_MIN <= timeout_ms <= ACK_TIMEOUT_MS_MAX:
        raise BadAckTimeout(command.queue, timeout_ms)
    if ttl_ms and ttl_ms != present_ttl_ms and ttl_ms > ctx.settings["ttl_max_ms"]:
        raise BadQueueTtl(command.queue, ttl_ms, ctx.settings["ttl_max_ms"])


def completed(view: Tables, command: EnsureQueue) -> DeclareQueue:
    """All limits that the queue has after the command: what it leaves out stays as it is.

    Raises `QueueDiffers`, `BadDeadLetter`, `UnknownDeadLetter`.
    """
    name, letters, queues = command.queue, command.dead_letter, view.table("queues")
    if name == letters:
        raise BadDeadLetter(name)
    old: Queue | None = queues.get(name)
    limits = {}
    for what in _LIMITS:
        asked, present = getattr(command, what), getattr(_FRESH if old is None else old, what)
        if old is not None and not command.change and asked not in (None, present):
            raise QueueDiffers(name, what, str(present), str(asked))
        limits[what] = present if asked is None else asked
    if letters and queues.get(letters) is None:
        raise UnknownDeadLetter(name, letters)
    return DeclareQueue(name, **limits)


def delete(command: DeleteQueue, ctx: Context) -> Deleted:
    """Take a queue away that no undecided transaction has content of, with what is in it."""
    name = command.queue
    queue = named(ctx, name)
    if queue.uses:
        raise QueueInUse(name, queue.uses)
    _require_no_letters(ctx, name)
    if command.if_empty and queue.depth:
        raise QueueNotEmpty(name, queue.depth)
    acquired = queue.depth - queue.ready - delayed_in(ctx, queue)
    if command.if_unused and acquired:
        raise QueueAcquired(name, acquired)
    ctx.table("queues").delete(name)
    ctx.table("names").delete(queue.id)
    for table, _ in _TIMES.values():
        ctx.table(table).delete(queue.id)
    ctx.table("overfull").delete(name)
    if queue.next > 1:
        ctx.table("dropped").put(queue.id, 1 if acquired else 0)
    return Deleted(queue.depth)


def _require_no_letters(ctx: Context, name: str) -> None:
    """Refuse to delete where the dead letters of other queues go. Raises DeadLetterInUse."""
    if ctx.version < FORMAT_DEAD_LETTERS:
        return
    senders = [each for each, row in ctx.table("queues").scan() if row.dead_letter == name]
    if senders:
        most = DeadLetterInUse.NAMED_MAX
        raise DeadLetterInUse(name, senders[:most], max(0, len(senders) - most))


def purge(command: Purge, ctx: Context) -> Purged:
    """Remove available messages. What is acquired or accepted stays."""
    name = command.queue
    old = named(ctx, name)
    queue, gone = _discard(ctx, old, command.upto, command.rows_max)
    if queue != old:  # it may have passed over gaps alone
        ctx.table("queues").replace(name, old, queue)
    return Purged(gone, _has(ctx, queue, command.upto))

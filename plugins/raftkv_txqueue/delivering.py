"""Messages go out to sessions, come back, or die.

A session acquires messages: they are locked, in the log, and nobody else gets them until they are
settled (`settling.py`) or the session ends. One that comes back is available again in the place
where it stood, before all younger ones, whoever gave them back in which order. One that comes back
after too many deliveries dies: a message that kills its consumers must not do so for ever.

A dead letter is a new message at the end of its queue, with headers that say where it died, after
how many deliveries, and if it had expired; its own times are taken away. It is taken there
whether there is room or not: the alternative would be to lose it, or to have the consumer answer
for somebody else's full queue. If there is no such queue it is dropped, and counted.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from raftkv.plugin import Context

from .commands import FORMAT_TIMES, Acquire, Acquired, Message, Queue, size_of
from .locks import lock
from .places import remove, take
from .queues import append, named
from .refusals import TooManyAcquired
from .sessions import owned
from .times import DELAY, TTL, has_expired, move, skip_gaps

__all__ = [
    "DELIVERIES",
    "DIED_IN",
    "DIED_OF",
    "EXPIRED",
    "LETTER_DROPS_MAX",
    "acquire",
    "bury",
    "give_back",
    "put_back",
    "remove",
    "take",
    "to_back",
]

#: Messages that may be dropped at once for one dead letter: two, so that a queue whose limit was
#: lowered gets smaller with each. An entry may have a thousand dead letters.
LETTER_DROPS_MAX: Final = 2
#: Headers of a dead letter: the queue that it comes from, and how often it was delivered there.
DIED_IN: Final = "x-raftkv-died-in"
DELIVERIES: Final = "x-raftkv-deliveries"
#: Header of a dead letter whose time to live was over, with this value.
DIED_OF: Final = "x-raftkv-died-of"
EXPIRED: Final = "expired"


# --- out ------------------------------------------------------------------------------------------


def acquire(command: Acquire, ctx: Context) -> Acquired:
    """The oldest available messages are the session's."""
    session = command.session
    row = owned(ctx, session)
    queue = named(ctx, command.queue)
    limit = ctx.settings["acquired_max"]
    if row.held >= limit:
        raise TooManyAcquired(session, limit)
    wanted = min(command.count, limit - row.held, queue.ready)
    if not wanted:
        return Acquired((), (), queue.ready)
    id = queue.id
    if command.bytes_max or len(ctx.table("spans")):
        back, upto = _fitting(ctx, queue, wanted, command.bytes_max)
    else:
        back = _returned(ctx, queue, wanted)
        upto = queue.cursor + wanted - len(back)
    returned = ctx.table("returned")
    for seq, _ in back:
        returned.delete((id, seq))
    fresh = range(queue.cursor, upto)
    lock(ctx, session, id, [(seq, deliveries + 1) for seq, deliveries in back])
    lock(ctx, session, id, [(seq, 1) for seq in fresh])
    taken = len(back) + len(fresh)
    new = replace(queue, cursor=upto, ready=queue.ready - taken)
    ctx.table("queues").replace(command.queue, queue, new)
    ctx.table("sessions").replace(session, row, replace(row, held=row.held + taken))
    if not back:
        return Acquired(tuple(fresh), (1,) * taken, new.ready)
    return Acquired(
        (*(seq for seq, _ in back), *fresh),
        (*(deliveries + 1 for _, deliveries in back), *(1 for _ in fresh)),
        new.ready,
    )


def _returned(ctx: Context, queue: Queue, wanted: int) -> list[tuple[int, int]]:
    """The oldest returned messages with their deliveries so far."""
    if queue.ready == queue.next - queue.cursor:
        return []
    rows = ctx.table("returned").scan((queue.id, 0), (queue.id + 1, 0), limit=wanted)
    return [(seq, deliveries) for (_, seq), deliveries in rows]


def _fitting(
    ctx: Context, queue: Queue, wanted: int, bytes_max: int
) -> tuple[list[tuple[int, int]], int]:
    """As many of them as `bytes_max` allows, one at least; see `acquire`.

    Each message is looked at, and is in `messages` from then on.
    """
    id, size, back = queue.id, 0, _returned(ctx, queue, wanted)
    seqs = [*(seq for seq, _ in back), *range(queue.cursor, queue.cursor + wanted - len(back))]
    fitting = 0
    for seq in seqs:
        stored = take(ctx, id, seq)
        size += 0 if stored is None else size_of(stored.message)
        if bytes_max and fitting and size > bytes_max:
            break
        fitting += 1
    fresh = max(0, fitting - len(back))
    return back[:fitting], queue.cursor + fresh


# --- and back -------------------------------------------------------------------------------------


def give_back(ctx: Context, name: str, queue: Queue, seq: int, deliveries: int) -> Queue:
    """A message that somebody had is available again, in its old place, or dies.

    The queue, to be written. A dead letter queue is written here: have no copy of its row.
    """
    if has_expired(ctx, queue.id, seq):
        return bury(ctx, name, queue, seq, deliveries, expired=True)
    if queue.deliveries_max and deliveries >= queue.deliveries_max:
        return bury(ctx, name, queue, seq, deliveries)
    ctx.table("returned").put((queue.id, seq), deliveries)
    return replace(queue, ready=queue.ready + 1)


def put_back(ctx: Context, name: str, queue: Queue, seq: int, deliveries: int) -> Queue:
    """As `give_back`, but the last delivery is not counted, so it never dies of it."""
    if has_expired(ctx, queue.id, seq):
        return bury(ctx, name, queue, seq, deliveries - 1, expired=True)
    ctx.table("returned").put((queue.id, seq), deliveries - 1)
    return replace(queue, ready=queue.ready + 1)


def to_back(ctx: Context, name: str, queue: Queue, seq: int, deliveries: int) -> Queue:
    """As `give_back`, but the message gets a new seq, behind all others."""
    too_often = queue.deliveries_max and deliveries >= queue.deliveries_max
    stored = take(ctx, queue.id, seq)
    if too_often or stored is None or has_expired(ctx, queue.id, seq):
        return give_back(ctx, name, queue, seq, deliveries)
    id, last = queue.id, queue.next
    move(ctx, id, seq, last)
    ctx.table("messages").delete((id, seq))
    ctx.table("messages").put((id, last), stored)
    ctx.table("returned").put((id, last), deliveries)
    ctx.table("gaps").put((id, last), None)
    return skip_gaps(ctx, replace(queue, next=last + 1, ready=queue.ready + 1), 1)


def bury(
    ctx: Context, name: str, queue: Queue, seq: int, deliveries: int, expired: bool = False
) -> Queue:
    """The message leaves this queue, for its dead letter queue if there is one."""
    stored = take(ctx, queue.id, seq)
    size = remove(ctx, queue.id, seq)
    queues = ctx.table("queues")
    grave: Queue | None = queues.get(queue.dead_letter) if queue.dead_letter else None
    if stored is not None and grave is not None:
        why = EXPIRED if expired else ""
        letter = _letter(_without_times(ctx, stored.message), name, deliveries, why)
        new, _, _ = append(
            ctx, queue.dead_letter, grave, (letter,), ctx.now, drop_max=LETTER_DROPS_MAX
        )
        queues.replace(queue.dead_letter, grave, new)
    return replace(queue, depth=queue.depth - 1, bytes=queue.bytes - size, dead=queue.dead + 1)


def _without_times(ctx: Context, message: Message) -> Message:
    if ctx.version < FORMAT_TIMES or not message.headers:
        return message
    headers = tuple(pair for pair in message.headers if pair[0] not in (TTL, DELAY, DIED_OF))
    return Message(message.body, headers)


def _letter(message: Message, name: str, deliveries: int, why: str) -> Message:
    """With what happened to it. One that dies again keeps the last of these stories only."""
    headers = tuple(pair for pair in message.headers if pair[0] not in (DIED_IN, DELIVERIES))
    told = ((DIED_OF, why),) if why else ()
    return Message(message.body, (*headers, (DIED_IN, name), (DELIVERIES, str(deliveries)), *told))

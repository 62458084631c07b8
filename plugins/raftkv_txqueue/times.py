"""Times to live and delays: how messages state them, and the rows that keep them.

A message states them in two headers, in milliseconds, so that they take the same way as its body:
through transactions, branches, staged rows and snapshots. They count from the entry in which the
message becomes visible. A delayed message has its seq and its place from that entry on, and is
available once an entry is applied whose stamp has reached its time; its time to live begins then.

Rules of this file
1. What is due or expired is compared with the stamp of the entry that is applied, never with a
   node's clock. `timers` is in the order of these times.
2. A message has a row in `delayed` or, with a time to live, in `expiring` as long as it exists; the
   timer of one that is held may be gone already: it is looked at when it comes back.
3. The stretch from the cursor on may have holes: a seq in `gaps` is not fresh. What moves the
   cursor past a gap deletes its row. Once most of the stretch is gaps, each further message that
   expires moves the cursor past a fresh one (`leave_gap`), so they do not grow with the traffic.
4. Below format 2 these headers are headers like any others, and so they stay in what was staged
   there: it has no row in `staged_times`.
5. A queue's own time to live bounds that of each message that is given to it: published, staged, or
   sent there as a dead letter. A later change of it touches none of these, so a staged message has
   the bound in `staged_times`. The header states what the producer asked for, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from raftkv.errors import FormatRefused
from raftkv.plugin import Context, View

from . import views
from .commands import FORMAT_TIMES, Message, Queue
from .refusals import BadTime, TooManyTimed
from .views import Tables

__all__ = [
    "DELAY",
    "TTL",
    "begin",
    "check",
    "default_ttl",
    "forget",
    "has_expired",
    "is_timed",
    "leave",
    "leave_gap",
    "move",
    "require_format",
    "require_format_of",
    "require_timers",
    "skip_gaps",
    "timed",
    "timed_rows",
    "times_of",
]

#: Headers: the time to live and the delay of a message, in whole milliseconds.
TTL: Final = "x-raftkv-ttl-ms"
DELAY: Final = "x-raftkv-delay-ms"
_DIGITS_MAX: Final = 15


# --- what messages state --------------------------------------------------------------------------


def is_timed(message: Message) -> bool:
    """Whether the message states a time to live or a delay."""
    return bool(message.headers) and times_of(message) != (0, 0)


def times_of(message: Message) -> tuple[int, int]:
    """(delay, time to live) in milliseconds; 0: none, or none that can be read."""
    delay_ms = ttl_ms = 0
    for name, value in message.headers:
        if name == DELAY:
            delay_ms = delay_ms or _number(value)
        elif name == TTL:
            ttl_ms = ttl_ms or _number(value)
    return delay_ms, ttl_ms


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        return 0
    return int(text)


def timed(message: Message, ttl_s: float | None, delay_s: float | None) -> Message:
    """The message with a time to live and a delay in seconds; None: as it is.

    Raises ValueError for what is no time.
    """
    pairs = []
    for name, seconds in ((TTL, ttl_s), (DELAY, delay_s)):
        if seconds is None:
            continue
        if not 0.001 <= seconds < 10**_DIGITS_MAX / 1000:
            raise ValueError(f"a time to live and a delay are 0.001 s or longer, not {seconds!r} s")
        pairs.append((name, str(round(seconds * 1000))))
    if not pairs:
        return message
    stated = {name for name, _ in pairs}
    others = (pair for pair in message.headers if pair[0] not in stated)
    return Message(message.body, (*others, *pairs))


def check(view: Tables, message: Message) -> None:
    """Refuse times that cannot be read or are too long. Raises BadTime."""
    if view.version < FORMAT_TIMES:
        return
    for name, value in message.headers:
        if name in (TTL, DELAY):
            what = "ttl_max_ms" if name == TTL else "delay_max_ms"
            if not 1 <= _number(value) <= view.settings[what]:
                raise BadTime(what, view.settings[what])


def require_format_of(view: View, messages: Sequence[Message]) -> None:
    """For a node: below format 2 times would be kept and not followed. Raises FormatRefused."""
    if any(is_timed(one) for one in messages):
        require_format(view)


def require_format(view: View) -> None:
    """For a node: refuse what the cluster cannot do yet. Raises FormatRefused."""
    if view.version < FORMAT_TIMES:
        raise FormatRefused(
            "a time to live, a delay and the return to the back need format 2 of the plugin "
            "txqueue: upgrade all nodes, then raise the core format (raftkv format raise)"
        )


def timed_rows(view: Tables) -> int:
    """What counts against timed_max: a message with both times twice, and so does each that is
    staged in an undecided transaction."""
    visible = len(view.table("delayed")) + len(view.table("expiring"))
    return visible + 2 * len(view.table("staged_times"))


def require_timers(
    ctx: Context, queue_id: int, messages: Sequence[Message], planned: int | None = None
) -> int:
    """How many of these are timed in that queue. `planned`: they are staged, and so many of the
    same command.

    Raises TooManyTimed if there is no place for their timers.
    """
    if ctx.version < FORMAT_TIMES:
        return 0
    every = default_ttl(ctx, queue_id) > 0
    stated = [times_of(message) for message in messages if every or message.headers]
    timed = [pair for pair in stated if every or pair != (0, 0)]
    if timed:
        limit = ctx.settings["timed_max"]
        rows = sum((delay_ms > 0) + (every or ttl_ms > 0) for delay_ms, ttl_ms in timed)
        if planned is not None:
            rows = 2 * (planned + len(timed))
        if timed_rows(ctx) + rows > limit:
            raise TooManyTimed(limit)
    return len(timed)


# --- the rows of one message ----------------------------------------------------------------------


def default_ttl(view: Tables, queue_id: int) -> int:
    """The longest time to live of what is given to the queue now, in ms; 0: it has none."""
    ttls = view.table("queue_ttls")
    return ttls.get(queue_id, 0) if len(ttls) else 0


def begin(
    ctx: Context, queue_id: int, seq: int, message: Message, at_ms: int, ttl_max_ms: int
) -> bool:
    """The message becomes visible under this seq, from the cursor on; whether it is delayed.

    `ttl_max_ms`: what its queue allowed when the message was given to it (`default_ttl`).
    """
    if ctx.version < FORMAT_TIMES:
        return False
    delay_ms, ttl_ms = times_of(message)
    if ttl_max_ms:
        ttl_ms = min(ttl_ms or ttl_max_ms, ttl_max_ms)
    due_ms = at_ms + delay_ms
    if ttl_ms:
        ctx.table("expiring").put((queue_id, seq), due_ms + ttl_ms)
    if delay_ms:
        ctx.table("delayed").put((queue_id, seq), due_ms)
        ctx.table("gaps").put((queue_id, seq), None)
    if delay_ms or ttl_ms:
        ctx.table("timers").put((due_ms if delay_ms else due_ms + ttl_ms, queue_id, seq), None)
    return delay_ms > 0


def forget(ctx: Context, queue_id: int, seq: int) -> None:
    """The message is gone."""
    for name in ("expiring", "delayed"):
        table = ctx.table(name)
        at_ms = table.get((queue_id, seq)) if len(table) else None
        if at_ms is not None:
            table.delete((queue_id, seq))
            ctx.table("timers").delete((at_ms, queue_id, seq))


def has_expired(ctx: Context, queue_id: int, seq: int) -> bool:
    """Whether the message's time to live is over."""
    expiring = ctx.table("expiring")
    if not len(expiring):
        return False
    at_ms = expiring.get((queue_id, seq))
    return at_ms is not None and at_ms <= ctx.now


def move(ctx: Context, queue_id: int, seq: int, new: int) -> None:
    """A message that is held, and has not expired, gets another seq."""
    expiring = ctx.table("expiring")
    at_ms = expiring.get((queue_id, seq)) if len(expiring) else None
    if at_ms is not None:
        forget(ctx, queue_id, seq)
        expiring.put((queue_id, new), at_ms)
        ctx.table("timers").put((at_ms, queue_id, new), None)


# --- the stretch with holes -----------------------------------------------------------------------


def skip_gaps(ctx: Context, queue: Queue, gaps_max: int | None = None) -> Queue:
    """Move the cursor past the gaps at it, `gaps_max` at most (None: `GAPS_MAX`); the queue, which
    must be written. An entry that calls this many times shares one bound among all of them."""
    gaps, cursor = ctx.table("gaps"), queue.cursor
    if not len(gaps):
        return queue
    end = cursor + (views.GAPS_MAX if gaps_max is None else gaps_max)
    while cursor < end and gaps.delete((queue.id, cursor)):
        cursor += 1
    return queue if cursor == queue.cursor else replace(queue, cursor=cursor)


def leave_gap(ctx: Context, queue: Queue, seq: int, gaps_max: int) -> Queue:
    """A fresh message is gone from its place; the queue, which must be written.

    The cursor passes `gaps_max` seqs at most. If more than half of the rest is gaps, it passes the
    fresh message at it as well, which is in `returned` from then on: one that no consumer takes
    would keep the gaps of all that expire behind it, however few messages there are.
    """
    gaps, returned = ctx.table("gaps"), ctx.table("returned")
    gaps.put((queue.id, seq), None)
    end = queue.cursor + gaps_max
    queue = skip_gaps(ctx, queue, gaps_max)
    id, cursor = queue.id, queue.cursor
    if cursor >= end or (id, cursor) in gaps:
        return queue
    if 2 * gaps.count((id, cursor), (id, queue.next)) <= queue.next - cursor:
        return queue
    returned.put((id, cursor), 0)
    return skip_gaps(ctx, replace(queue, cursor=cursor + 1), end - cursor - 1)


def leave(ctx: Context, queue_id: int, cursor: int, seq: int) -> int:
    """Take an available message out of its place, the oldest one first; the cursor then."""
    if ctx.table("returned").delete((queue_id, seq)):
        return cursor
    gaps = ctx.table("gaps")
    if len(gaps):
        for key in [key for key, _ in gaps.scan((queue_id, cursor), (queue_id, seq))]:
            gaps.delete(key)
    return seq + 1

"""Deciding: what a transaction has staged becomes visible, or it never was.

Rules of this file
1. One entry decides. With few rows (`ENTRY_ROWS`) they are all moved in it. With more, the entry is
   O(queues): it gives each queue's messages their seqs and puts a *span* there, through which
   readers see the staged ones from that index on, and it counts them into the queue. `unfold`
   moves the rows later, in batches; nobody can tell.
2. A queue's counters are right at every index. The accepted messages of a committed transaction
   have left `depth` in the entry that decided, though their rows are deleted later; those of one
   that was rolled back are still in it, and available when they have been moved back.
3. Order: a transaction's messages in one queue are contiguous, and those of a later commit follow.
4. One queue's row is in the hand at a time. Giving a message back may write the row of the dead
   letter queue, which may be the next one of the same transaction.
5. Who decides writes the rest: the session's row of a TX, the decision of a branch. `settle` writes
   the transaction's row, `due`, `meta` and the queues.

What is not pretty: a large transaction that was rolled back gives its messages back by and by. The
session holds them all the while, as far as it knows. So `reclaim` moves one back on the spot when
the session names it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from raftkv.plugin import Context

from .commands import (
    REASON_CHARS_MAX,
    ROWS_MAX,
    Meta,
    Part,
    Queue,
    Span,
    State,
    Stored,
    TransactionRow,
)
from .delivering import give_back
from .locks import lock
from .queues import append, must_drop
from .sessions import live
from .times import begin, forget, skip_gaps
from .views import meta_of

__all__ = [
    "ENTRY_ROWS",
    "KEPT",
    "UNDECIDED",
    "VISIBLE",
    "Done",
    "cut",
    "drops_of_each",
    "put_meta",
    "reclaim",
    "reserved_of",
    "returning",
    "rows_of",
    "settle",
    "span_of",
    "unfold",
]

#: Rows of a transaction that one entry moves by itself; those with more are unfolded. Tests make it
#: small, to meet spans.
ENTRY_ROWS: int = ROWS_MAX

UNDECIDED: Final[tuple[State, ...]] = ("active", "preparing", "prepared")
#: States in which the content is visible.
VISIBLE: Final[tuple[State, ...]] = ("committed", "heuristically committed")
#: Decided, and the row stays until the coordinator has been told.
KEPT: Final[tuple[State, ...]] = (
    "failed",
    "heuristically committed",
    "heuristically rolled back",
)


class Done(msgspec.Struct, frozen=True):
    """What deciding has done. `spans`: (queue, first, last) of what was published.

    `held`: messages that the session of the TX holds again; its row is the caller's.
    """

    spans: tuple[tuple[str, int, int], ...] = ()
    held: int = 0


def cut(reason: str) -> str:
    """A reason as it is kept."""
    return reason[:REASON_CHARS_MAX]


def put_meta(ctx: Context, meta: Meta) -> None:
    ctx.table("meta").put("state", meta)


def reserved_of(part: Part) -> tuple[int, int]:
    """The room that a closed transaction is promised in a queue: messages and bytes."""
    messages = part.publishes - part.accepts
    return max(0, messages), max(0, part.publish_bytes - part.accept_bytes)


def settle(
    ctx: Context,
    number: int,
    row: TransactionRow,
    state: State,
    *,
    holder: int = 0,
    cause: str = "",
    reason: str = "",
) -> Done:
    """Decide an undecided transaction: `state` says how it ends.

    `holder`: the live session to which accepted messages return; 0: they return to their queues.
    """
    large = row.rows > ENTRY_ROWS
    spans: list[tuple[str, int, int]] = []
    parts: list[Part] = []
    held = 0
    closed = row.state != "active"
    for part in row.parts:
        name: str = ctx.table("names")[part.queue]
        queue = _released(ctx.table("queues")[name], part, closed)
        if state in VISIBLE:
            first = queue.next
            if large:
                queue = _span(ctx, number, name, queue, part)
                if part.publishes:
                    part = replace(part, first=first)
            else:
                drop_max = drops_of_each(len(row.parts))
                queue = _publish(ctx, number, name, queue, part, drop_max)
            if part.publishes:
                spans.append((name, first, first + part.publishes - 1))
        elif not large:
            queue, back = _free(ctx, number, name, queue, part, holder)
            held += back
        parts.append(part)
        ctx.table("queues").put(name, queue)
    row = replace(row, parts=tuple(parts))
    staged_times = ctx.table("staged_times")
    for key in [key for key, _ in staged_times.scan(prefix=(number,))]:
        staged_times.delete(key)
    _write(ctx, number, row, state, large=large, cause=cause, reason=cut(reason))
    return Done(tuple(spans), held)


def rows_of(row: TransactionRow) -> int:
    """Rows that `settle` touches: the transaction's own, one for each queue, and few or none."""
    return 4 + len(row.parts) + (row.rows if row.rows <= ENTRY_ROWS else 0)


def _released(queue: Queue, part: Part, closed: bool) -> Queue:
    messages, size = reserved_of(part) if closed else (0, 0)
    return replace(
        queue,
        uses=queue.uses - 1,
        reserved=queue.reserved - messages,
        reserved_bytes=queue.reserved_bytes - size,
    )


def drops_of_each(queues: int) -> int:
    """What each of these queues may drop at once, in the entry that publishes to all of them."""
    return ROWS_MAX // max(1, queues)


def _publish(
    ctx: Context, number: int, name: str, queue: Queue, part: Part, drop_max: int
) -> Queue:
    """Move one queue's rows: accepted ones out, staged ones in at its end."""
    if part.accepts:
        accepts, messages = ctx.table("accepts"), ctx.table("messages")
        for key in [key for key, _ in accepts.scan(prefix=(number, queue.id))]:
            accepts.delete(key)
            messages.delete(key[1:])
            forget(ctx, *key[1:])
        queue = _accepted(queue, part)
    if part.publishes:
        staged, times = ctx.table("staged"), ctx.table("staged_times")
        rows = list(staged.scan(prefix=(number, queue.id)))
        for key, _ in rows:
            staged.delete(key)
        messages_in = tuple(one.message for _, one in rows)
        ttls = [times.get(key) for key, _ in rows]
        size = part.publish_bytes
        queue, _, _ = append(ctx, name, queue, messages_in, ctx.now, size, drop_max, ttls)
    return queue


def _accepted(queue: Queue, part: Part) -> Queue:
    return replace(queue, depth=queue.depth - part.accepts, bytes=queue.bytes - part.accept_bytes)


def _span(ctx: Context, number: int, name: str, queue: Queue, part: Part) -> Queue:
    """Show one queue's rows where they are."""
    queue = _accepted(queue, part)
    count = part.publishes
    if not count:
        return queue
    ctx.table("spans").put((queue.id, queue.next), Span(number, count, ctx.now))
    delayed = _begin_timers(ctx, number, queue)
    queue = replace(
        queue,
        next=queue.next + count,
        ready=queue.ready + count - delayed,
        depth=queue.depth + count,
        bytes=queue.bytes + part.publish_bytes,
    )
    if delayed:
        queue = skip_gaps(ctx, queue, delayed)
    if must_drop(queue):
        ctx.table("overfull").put(name, None)
    return queue


def _begin_timers(ctx: Context, number: int, queue: Queue) -> int:
    """Begin the times of what is seen through a span; how many of these are delayed."""
    staged, delayed = ctx.table("staged"), 0
    for key, ttl_ms in ctx.table("staged_times").scan(prefix=(number, queue.id)):
        message = staged[key].message
        delayed += begin(ctx, queue.id, queue.next + key[2], message, ctx.now, ttl_ms)
    return delayed


def _free(
    ctx: Context, number: int, name: str, queue: Queue, part: Part, holder: int
) -> tuple[Queue, int]:
    """Undo one queue's rows; its row, and how many messages the holder has again."""
    accepts, staged = ctx.table("accepts"), ctx.table("staged")
    held = 0
    for key, accept in list(accepts.scan(prefix=(number, queue.id))):
        accepts.delete(key)
        if holder:
            lock(ctx, holder, queue.id, ((key[2], accept.deliveries),))
            held += 1
        else:
            queue = give_back(ctx, name, queue, key[2], accept.deliveries)
    if part.publishes:
        for key in [key for key, _ in staged.scan(prefix=(number, queue.id))]:
            staged.delete(key)
    return queue, held


def _write(
    ctx: Context,
    number: int,
    row: TransactionRow,
    state: State,
    *,
    large: bool,
    cause: str,
    reason: str,
) -> None:
    """The rows of the transaction itself: it is no longer undecided."""
    due, transactions = ctx.table("due"), ctx.table("transactions")
    if row.deadline_ms:
        due.delete((row.deadline_ms, number))
    meta = meta_of(ctx)
    put_meta(
        ctx,
        replace(
            meta,
            staged_bytes=meta.staged_bytes - row.bytes,
            transactions=meta.transactions - 1,
            prepared=meta.prepared - (row.state == "prepared"),
        ),
    )
    if large:
        ctx.table("unfolding").put(number, None)
    elif state not in KEPT:
        transactions.delete(number)
        return
    deadline_ms = 0
    if state == "failed":
        deadline_ms = ctx.now + ctx.settings["outcome_retention_ms"]
        due.put((deadline_ms, number), None)
    decided = replace(
        row,
        state=state,
        deadline_ms=deadline_ms,
        participants=(),
        cause=cause,
        reason=reason,
        unfolding=row.rows if large else 0,
    )
    transactions.put(number, decided)


# --- later, in batches ----------------------------------------------------------------------------


def unfold(ctx: Context, number: int, rows_max: int) -> tuple[int, bool]:
    """Move rows of a decided transaction, `rows_max` at most; how many, and whether all is done."""
    row: TransactionRow = ctx.table("transactions")[number]
    if row.state in VISIBLE:
        rows = _unfold_staged(ctx, number, rows_max)
        if rows < rows_max:
            rows += _unfold_accepted(ctx, number, rows_max - rows)
    else:
        rows = _unfold_back(ctx, number, row, rows_max)
        if rows < rows_max:
            rows += _drop_staged(ctx, number, rows_max - rows)
    # A full batch may have been the last one: the next Sweep sees it.
    if rows >= rows_max:
        left = max(1, row.unfolding - rows)
        ctx.table("transactions").put(number, replace(row, unfolding=left))
        return rows, False
    for part in row.parts:
        if part.first:
            ctx.table("spans").delete((part.queue, part.first))
    ctx.table("unfolding").delete(number)
    if row.state in KEPT:
        ctx.table("transactions").put(number, replace(row, unfolding=0))
    else:
        ctx.table("transactions").delete(number)
    return rows, True


def span_of(ctx: Context, queue_id: int, number: int) -> tuple[int, Span] | None:
    """The span of a large transaction in a queue: (first seq, the span); None: there is none.

    That of a deleted queue is gone, or will be soon.
    """
    row: TransactionRow | None = ctx.table("transactions").get(number)
    for part in row.parts if row is not None else ():
        if part.queue == queue_id:
            span: Span | None = ctx.table("spans").get((queue_id, part.first))
            return None if span is None or span.number != number else (part.first, span)
    return None


def _unfold_staged(ctx: Context, number: int, rows_max: int) -> int:
    staged, messages = ctx.table("staged"), ctx.table("messages")
    rows = list(staged.scan(prefix=(number,), limit=rows_max))
    spans: dict[int, tuple[int, Span] | None] = {}
    for key, one in rows:
        _, queue_id, place = key
        if queue_id not in spans:
            # Without a name the queue was deleted, and its span too, or soon.
            known = queue_id in ctx.table("names")
            spans[queue_id] = span_of(ctx, queue_id, number) if known else None
        found = spans[queue_id]
        if found is not None:
            messages.put((queue_id, found[0] + place), Stored(one.message, found[1].at_ms))
        staged.delete(key)
    return len(rows)


def _unfold_accepted(ctx: Context, number: int, rows_max: int) -> int:
    accepts, messages = ctx.table("accepts"), ctx.table("messages")
    keys = [key for key, _ in accepts.scan(prefix=(number,), limit=rows_max)]
    for key in keys:
        accepts.delete(key)
        messages.delete(key[1:])
        forget(ctx, *key[1:])
    return len(keys)


def _unfold_back(ctx: Context, number: int, row: TransactionRow, rows_max: int) -> int:
    """Give accepted messages back, in the order of their seqs."""
    accepts, queues = ctx.table("accepts"), ctx.table("queues")
    rows = list(accepts.scan(prefix=(number,), limit=rows_max))
    session = ctx.table("sessions").get(row.session) if row.session else None
    holder = row.session if session is not None and live(ctx, session) else 0
    held = 0
    for queue_id in dict.fromkeys(key[1] for key, _ in rows):
        name = ctx.table("names").get(queue_id)
        queue = None if name is None else queues[name]
        for key, accept in rows:
            if key[1] != queue_id:
                continue
            accepts.delete(key)
            if name is None or queue is None:
                continue
            if holder:
                lock(ctx, holder, queue_id, ((key[2], accept.deliveries),))
                held += 1
            else:
                queue = give_back(ctx, name, queue, key[2], accept.deliveries)
        if name is not None and queue is not None:
            queues.put(name, queue)
    if held and session is not None:
        ctx.table("sessions").put(row.session, replace(session, held=session.held + held))
    return len(rows)


def _drop_staged(ctx: Context, number: int, rows_max: int) -> int:
    staged = ctx.table("staged")
    keys = [key for key, _ in staged.scan(prefix=(number,), limit=rows_max)]
    for key in keys:
        staged.delete(key)
    return len(keys)


def returning(ctx: Context, session: int) -> list[int]:
    """The rolled back TX of a live session that still have messages which it holds again.

    Looked up once for a command: thousands of transactions may wait to be unfolded.
    """
    transactions = ctx.table("transactions")
    found: list[int] = []
    for number, _ in ctx.table("unfolding").scan():
        row: TransactionRow = transactions[number]
        if row.session == session and row.state not in VISIBLE:
            found.append(number)
    return found


def reclaim(ctx: Context, numbers: list[int], session: int, queue_id: int, seq: int) -> int:
    """Move a message back that one of these TX (`returning`) of the session accepted; deliveries.

    0: there is no such message. It is in `locks` afterwards, and counted in the session's row.
    """
    accepts, sessions = ctx.table("accepts"), ctx.table("sessions")
    for number in numbers:
        accept = accepts.get((number, queue_id, seq))
        if accept is None:
            continue
        accepts.delete((number, queue_id, seq))
        lock(ctx, session, queue_id, ((seq, accept.deliveries),))
        holder = sessions[session]
        sessions.put(session, replace(holder, held=holder.held + 1))
        deliveries: int = accept.deliveries
        return deliveries
    return 0

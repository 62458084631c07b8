"""Locks: which session holds which message, since when, and when it must have settled it.

From format 2 on a lock has the log's clock of the entry that acquired the message. Where its queue
has an acknowledgement time-out it has a deadline, too, which stands in `ack_due` as long as the
lock stands in `locks`: so the first row of `ack_due` is the first deadline of all, and a queue
without a time-out costs nothing. What a rollback gives back to its session is held from then on.

Every lock is put and taken away by the functions of this file. At format 1 a lock is the bare
number of deliveries; locks of that time keep this form.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftkv.plugin import Context

from .commands import FORMAT_HELD_SINCE, Lock

__all__ = ["deliveries_of", "lock", "since_of", "unlock"]

#: Session, queue id, seq.
Key = tuple[int, int, int]


def deliveries_of(row: int | Lock) -> int:
    """How often the message was delivered, this time included."""
    return row.deliveries if isinstance(row, Lock) else row


def since_of(row: int | Lock) -> int:
    """The log's clock when the session acquired it; 0: at format 1, which did not note it."""
    return row.since_ms if isinstance(row, Lock) else 0


def lock(ctx: Context, session: int, queue_id: int, held: Iterable[tuple[int, int]]) -> None:
    """The session holds these from now on: (seq, deliveries)."""
    put = ctx.table("locks").put
    if ctx.version < FORMAT_HELD_SINCE:
        for seq, deliveries in held:
            put((session, queue_id, seq), deliveries)
        return
    now, due_ms = ctx.now, 0
    timeout_ms = ctx.table("ack_timeouts").get(queue_id)
    if timeout_ms is not None:
        due_ms = now + timeout_ms
    for seq, deliveries in held:
        put((session, queue_id, seq), Lock(deliveries, now, due_ms))
        if due_ms:
            ctx.table("ack_due").put((due_ms, session, queue_id, seq), None)


def unlock(ctx: Context, key: Key) -> int:
    """Take a lock away: the deliveries of the message, or 0 if the session does not hold it."""
    locks = ctx.table("locks")
    row: int | Lock | None = locks.get(key)
    if row is None:
        return 0
    locks.delete(key)
    if not isinstance(row, Lock):
        return row
    if row.due_ms:
        ctx.table("ack_due").delete((row.due_ms, *key))
    return row.deliveries

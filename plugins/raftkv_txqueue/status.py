"""The queues and transactions at one look, as one node's copy has them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from raftkv.plugin import Host, View

from .commands import Overflow, Queue, TransactionRow
from .views import ack_timeout_of, delayed_in, meta_of, ttl_of

__all__ = [
    "QueueStatus",
    "Totals",
    "TxQueueStatus",
    "queue_rows",
    "queue_status",
    "status_of",
    "totals",
]


class QueueStatus(msgspec.Struct, frozen=True):
    """A queue. All figures are exact as of this node's copy.

    `depth`: messages in it; `ready`: those that can be acquired; `delayed`: those whose delay is
    not over; `acquired`: the others, which sessions hold or have accepted in transactions that are
    not decided. `bytes`: of all.
    `reserved`, `reserved_bytes`: room promised to prepared transactions. `next_seq`: of the next
    message.
    `transactions`: undecided ones with content of it. `dropped`, `dead`: ever. The rest are its
    limits, 0: none; `ack_timeout_ms`: how long a session may hold a message, in ms; `ttl_ms`: how
    long what is published now lives, in ms.
    """

    name: str
    id: int
    depth: int
    ready: int
    acquired: int
    bytes: int
    reserved: int
    reserved_bytes: int
    next_seq: int
    transactions: int
    dropped: int
    dead: int
    depth_max: int
    bytes_max: int
    overflow: Overflow
    deliveries_max: int
    dead_letter: str
    ack_timeout_ms: int
    ttl_ms: int
    delayed: int = 0


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Over all queues, and over all transactions that have rows.

    `active` ... `failed`: transactions in that state; `unfolding`: decided ones with rows left.
    `prepared_age_ms`: since the oldest prepared branch was opened, by the log's clock.
    """

    queues: int
    messages: int
    ready: int
    bytes: int
    reserved: int
    dropped: int
    dead: int
    transactions: int
    active: int
    preparing: int
    prepared: int
    prepared_age_ms: int
    heuristic: int
    failed: int
    unfolding: int
    staged_bytes: int


class TxQueueStatus(msgspec.Struct, frozen=True):
    """`participants`: nodes that take part in transactions. `waiting`: consumers of this node that
    wait for a message. `observers`: factories registered here. `mine`: this node's counters."""

    node: str
    index: int
    totals: Totals
    sessions: int
    acquired: int
    participants: tuple[str, ...]
    waiting: int
    observers: int
    mine: Mapping[str, int]


def queue_status(view: View, name: str, row: Queue) -> QueueStatus:
    """One queue's row as people and programs read it."""
    delayed = delayed_in(view, row)
    return QueueStatus(
        name=name,
        id=row.id,
        depth=row.depth,
        ready=row.ready,
        acquired=row.depth - row.ready - delayed,
        bytes=row.bytes,
        reserved=row.reserved,
        reserved_bytes=row.reserved_bytes,
        next_seq=row.next,
        transactions=row.uses,
        dropped=row.dropped,
        dead=row.dead,
        depth_max=row.depth_max,
        bytes_max=row.bytes_max,
        overflow=row.overflow,
        deliveries_max=row.deliveries_max,
        dead_letter=row.dead_letter,
        ack_timeout_ms=ack_timeout_of(view, row),
        ttl_ms=ttl_of(view, row),
        delayed=delayed,
    )


def queue_rows(view: View) -> tuple[QueueStatus, ...]:
    """All queues, by name."""
    return tuple(queue_status(view, name, row) for name, row in view.table("queues").scan())


def totals(view: View, now_ms: int) -> Totals:
    """Counted anew: some milliseconds with ten thousand queues or transactions."""
    sums = dict.fromkeys(("messages", "ready", "bytes", "reserved", "dropped", "dead"), 0)
    queue: Queue
    for _, queue in view.table("queues").scan():
        sums["messages"] += queue.depth
        sums["ready"] += queue.ready
        sums["bytes"] += queue.bytes
        sums["reserved"] += queue.reserved
        sums["dropped"] += queue.dropped
        sums["dead"] += queue.dead
    states = dict.fromkeys(("active", "preparing", "prepared", "heuristic", "failed"), 0)
    oldest_ms = now_ms
    row: TransactionRow
    for _, row in view.table("transactions").scan():
        state = "heuristic" if row.state.startswith("heuristically") else row.state
        if state in states:
            states[state] += 1
        if state == "prepared":
            oldest_ms = min(oldest_ms, row.opened_ms)
    return Totals(
        queues=len(view.table("queues")),
        transactions=len(view.table("transactions")),
        prepared_age_ms=now_ms - oldest_ms,
        unfolding=len(view.table("unfolding")),
        staged_bytes=meta_of(view).staged_bytes,
        **sums,
        **states,
    )


def status_of(
    host: Host, *, waiting: int, observers: int, counters: Mapping[str, int]
) -> TxQueueStatus:
    """Read from this node's tables; what a node cannot see there is handed in."""
    view = host.view()
    return TxQueueStatus(
        node=host.name,
        index=view.index,
        totals=totals(view, host.now_ms()),
        sessions=len(view.table("owners")),
        acquired=len(view.table("locks")),
        participants=tuple(
            name
            for name, incarnation in view.table("observers").scan()
            if (member := view.members.get(name)) is not None
            and member.up
            and member.incarnation == incarnation
        ),
        waiting=waiting,
        observers=observers,
        mine=counters,
    )

"""Questions to the tables of transactional queues, answered alike in `apply` and on a node.

Pure functions on a `View` (of the plugin "txqueue") or a `Context`: both have tables and members.
What they give is as of the applied state that they are handed, and says nothing of later.

Every answer is atomic: at each index a transaction is seen whole or not at all, also while the rows
of a large one are still being moved. Two rules do it. A message that is not in `messages` yet is
looked for under the span that covers its seq. And what a decided transaction accepted is left out,
although its rows are still there.

The rows of `locks` and `accepts` are in order of sessions and transactions, so what belongs to one
queue is found by skipping: one search for each session that holds anything. Only looking at
everything in a queue needs that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, Protocol

import msgspec

from raftkv.plugin import Member

from .commands import (
    FRESH,
    INT_MAX,
    ROWS_MAX,
    AcceptOf,
    DecisionRow,
    Ending,
    Message,
    Meta,
    Operation,
    PublishTo,
    Queue,
    SessionRow,
    Span,
    StagedMessage,
    Stored,
    TransactionRow,
)
from .locks import deliveries_of, since_of
from .refusals import SessionEnded, UnknownQueue
from .xa import Xid

__all__ = [
    "GAPS_MAX",
    "Browsed",
    "Fate",
    "Holder",
    "Place",
    "Tables",
    "ack_timeout_of",
    "available",
    "branches",
    "browse",
    "decision_of",
    "delayed_in",
    "last_ending",
    "message_of",
    "meta_of",
    "operations_of",
    "outcome_of",
    "queue_of",
    "recover",
    "session_ended",
    "session_live",
    "span_over",
    "to_forget",
    "transaction_of",
    "ttl_of",
    "txid_of",
    "where",
]

Place = Literal["available", "acquired", "accepted", "delayed"]
FateState = Literal["committed", "rolled back", "active", "preparing", "forgotten", "unknown"]

#: What `recover` shows: a coordinator has to decide it, or to be told that somebody did.
IN_DOUBT: Final = ("prepared", "heuristically committed", "heuristically rolled back")
#: Seqs that are not fresh of which one entry looks for the messages behind them. Tests make it
#: small.
GAPS_MAX: int = ROWS_MAX
#: The accepted messages of such a transaction are gone.
TAKEN: Final = ("committed", "heuristically committed")


class Tables(Protocol):
    """What these functions need of a `View` or a `Context`."""

    @property
    def now(self) -> int: ...

    @property
    def members(self) -> Mapping[str, Member]: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    @property
    def version(self) -> int: ...

    def table(self, name: str) -> Any: ...


class Holder(msgspec.Struct, frozen=True):
    """Who has acquired a message, or accepted it in a transaction that is not decided.

    `session`: its number; `kind` and `node` are "" once the session is forgotten, as that of a
    prepared branch may be. `since_ms`: the log's clock when it acquired the message, 0 if that was
    at format 1 of the plugin. `transaction`: the txid or xid in which it is accepted, "" if it is
    not; `since_ms` is then when that was begun in the log.
    """

    session: int
    kind: str
    node: str
    since_ms: int
    transaction: str = ""


class Browsed(msgspec.Struct, frozen=True):
    """A message in a queue. `at_ms`: the log's clock when it became visible.

    `deliveries`: how often it was handed out, the present time included if it is acquired.
    `holder`: None if it is available.
    """

    seq: int
    message: Message
    at_ms: int
    deliveries: int
    state: Place
    holder: Holder | None = None


class Fate(msgspec.Struct, frozen=True):
    """What became of a TX, as far as the log knows; final if it is committed or rolled back.

    "forgotten": it was decided, but that is no longer kept. "unknown": not begun, or nothing of it
    is in the log yet. `index` of the entry that rolled it back, else 0.
    """

    state: FateState
    cause: str = ""
    reason: str = ""
    index: int = 0


# --- rows -----------------------------------------------------------------------------------------


def meta_of(view: Tables) -> Meta:
    """Numbers and counters."""
    meta: Meta = view.table("meta").get("state", FRESH)
    return meta


def queue_of(view: Tables, name: str) -> Queue:
    """The queue of that name. Raises `UnknownQueue`."""
    queue: Queue | None = view.table("queues").get(name)
    if queue is None:
        raise UnknownQueue(name)
    return queue


def ack_timeout_of(view: Tables, queue: Queue) -> int:
    """The queue's acknowledgement time-out in ms; 0: it has none."""
    timeout_ms: int = view.table("ack_timeouts").get(queue.id, 0)
    return timeout_ms


def ttl_of(view: Tables, queue: Queue) -> int:
    """The longest time to live of messages that enter the queue now, in ms; 0: it has none."""
    ttl_ms: int = view.table("queue_ttls").get(queue.id, 0)
    return ttl_ms


def last_ending(view: Tables) -> int:
    """The number of the last row of `endings`; 0: there is none."""
    return next((number for number, _ in view.table("endings").scan(reverse=True, limit=1)), 0)


def session_ended(view: Tables, session: int) -> SessionEnded:
    """The error for a session that has ended, with the reason if others ended it."""
    row: Ending
    for _, row in view.table("endings").scan(reverse=True):
        if row.session == session:
            reason = row.reason
            if row.by == "ack_timeout":
                reason = (
                    f"it held message {row.seq} of {row.queue!r} for longer than the queue's "
                    f"ack_timeout_ms of {row.timeout_ms}"
                )
            return SessionEnded(session, row.by, reason)
    return SessionEnded(session)


def session_live(view: Tables, row: SessionRow | None) -> bool:
    """Whether the session has not ended and its node is up in the session's life."""
    if row is None or row.ended_ms:
        return False
    member = view.members.get(row.node)
    return member is not None and member.up and member.incarnation == row.incarnation


def to_forget(view: Tables) -> bool:
    """Whether ended sessions are due to be forgotten now: by time, or there are too many."""
    old = view.table("old_sessions")
    if len(old) > view.settings["sessions_kept"]:
        return True
    for (at_ms, _), _ in old.scan(limit=1):
        return bool(at_ms + view.settings["outcome_retention_ms"] <= view.now)
    return False


# --- messages -------------------------------------------------------------------------------------


def delayed_in(view: Tables, queue: Queue) -> int:
    """How many messages of the queue wait for the end of their delay."""
    delayed = view.table("delayed")
    return delayed.count(prefix=(queue.id,)) if len(delayed) else 0


def span_over(view: Tables, queue_id: int, seq: int) -> tuple[int, Span] | None:
    """The span that this seq lies in, with the seq of its first message."""
    spans = view.table("spans")
    for (_, first), span in spans.scan((queue_id, 0), (queue_id, seq + 1), reverse=True, limit=1):
        if seq < first + span.count:
            return first, span
    return None


def message_of(view: Tables, queue_id: int, seq: int) -> Stored | None:
    """The message, wherever it stands; None if it is gone."""
    stored: Stored | None = view.table("messages").get((queue_id, seq))
    if stored is not None:
        return stored
    found = span_over(view, queue_id, seq)
    if found is None:
        return None
    first, span = found
    staged: StagedMessage | None = view.table("staged").get((span.number, queue_id, seq - first))
    return None if staged is None else Stored(staged.message, span.at_ms)


def available(
    view: Tables,
    queue: Queue,
    first: int = 1,
    upto: int = INT_MAX,
    *,
    limit: int,
    gaps_max: int | None = None,
) -> list[tuple[int, int]]:
    """The oldest available messages with seqs from `first` to `upto`: (seq, deliveries so far).

    `limit` at most; fewer than there are if `gaps_max` seqs between them are not fresh (None:
    `GAPS_MAX`; 0: no bound).
    """
    id, last = queue.id, min(upto, queue.next - 1)
    start = max(first, queue.cursor)
    bound = GAPS_MAX if gaps_max is None else gaps_max
    fresh, last = _fresh(view, id, start, last, limit, bound)
    back = view.table("returned").scan((id, first), (id, last + 1), limit=limit)
    found = [(key[1], deliveries) for key, deliveries in back]
    found += [(seq, 0) for seq in fresh]
    found.sort()
    return found[:limit]


def _fresh(
    view: Tables, queue_id: int, start: int, last: int, limit: int, gaps_max: int
) -> tuple[list[int], int]:
    """The first `limit` fresh seqs from `start` to `last`, and up to which seq all were found."""
    gaps, left = view.table("gaps"), gaps_max or INT_MAX
    found: list[int] = []
    while start <= last and len(found) < limit:
        head = gaps.scan((queue_id, start), (queue_id, last + 1), limit=1) if len(gaps) else ()
        gap = next((key[1] for key, _ in head), last + 1)
        found += range(start, min(gap, start + limit - len(found)))
        start = _behind(gaps, queue_id, gap, min(last, gap + left - 1))
        left -= start - gap
        if not left:
            return found, start - 1
    return found, last


def _behind(gaps: Any, queue_id: int, seq: int, last: int) -> int:
    """The first seq from `seq` to `last` that is no gap, else `last` + 1; log(n) searches."""
    width = 1
    while seq <= last:
        end = min(seq + width, last + 1)
        if gaps.count((queue_id, seq), (queue_id, end)) == end - seq:
            seq, width = end, 2 * width
        elif width == 1:
            return seq
        else:
            last, width = end - 1, max(1, width // 4)
    return seq


def where(
    view: Tables, queue_id: int, first: int = 1, limit: int = 0
) -> dict[int, tuple[Place, int]]:
    """Which messages that are not fresh are where: seq -> (place, deliveries).

    From `first` on, in order, `limit` at most (0: all).
    """
    found = _found(view, queue_id, first, limit)
    return {seq: (place, deliveries) for seq, (place, deliveries, _) in found.items()}


#: Where a message is, its deliveries, and who has it: a session, with the lock or the transaction.
_Found = tuple[Place, int, tuple[Any, ...] | None]


def _found(view: Tables, queue_id: int, first: int, limit: int) -> dict[int, _Found]:
    """See `where`."""
    found: dict[int, _Found] = {}
    for (_, seq), deliveries in view.table("returned").scan(
        (queue_id, first), (queue_id + 1, 0), limit=limit
    ):
        found[seq] = ("available", deliveries, None)
    for (_, seq), _ in view.table("delayed").scan(
        (queue_id, first), (queue_id + 1, 0), limit=limit
    ):
        found[seq] = ("delayed", 0, None)
    for key, lock in _skipping(view.table("locks"), queue_id, first, limit):
        found[key[2]] = ("acquired", deliveries_of(lock), (key[0], lock))
    transactions = view.table("transactions")
    for key, accept in _skipping(view.table("accepts"), queue_id, first, limit):
        row: TransactionRow | None = transactions.get(key[0])
        if row is not None and row.state not in TAKEN:
            found[key[2]] = ("accepted", accept.deliveries, (accept.session, row))
    seqs = sorted(found)
    return {seq: found[seq] for seq in (seqs[:limit] if limit else seqs)}


def _holder(view: Tables, has: tuple[Any, ...] | None) -> Holder | None:
    """Who has a message, of what `_found` gives."""
    if has is None:
        return None
    session, row = has
    known: SessionRow | None = view.table("sessions").get(session)
    kind, node = ("", "") if known is None else (known.kind, known.node)
    if not isinstance(row, TransactionRow):
        return Holder(session, kind, node, since_of(row))
    name = txid_of(row.session, row.counter) if row.xid is None else str(row.xid)
    return Holder(session, kind, node, row.opened_ms, name)


def _skipping(table: Any, queue_id: int, first: int, limit: int) -> Iterator[tuple[Any, Any]]:
    """Rows (x, queue_id, seq >= first), at most `limit` for each x, of a table in order of x."""
    at: tuple[int, ...] | None = None
    while True:
        head = next((key for key, _ in table.scan(at, limit=1)), None)
        if head is None:
            return
        x = head[0]
        yield from table.scan((x, queue_id, first), (x, queue_id + 1, 0), limit=limit)
        at = (x + 1,)


def browse(
    view: Tables, name: str, first: int = 1, limit: int = 100, everything: bool = False
) -> tuple[Browsed, ...]:
    """Messages of a queue from seq `first` on, in order, `limit` at most.

    Available ones; with `everything` acquired ones, and those that undecided transactions have
    accepted, as well. That is for people: it costs a search for each session that holds anything
    and each transaction that has accepted anything, so 0.1 s with 5,000 of them, while the node
    does nothing else. Raises `UnknownQueue`.
    """
    queue = queue_of(view, name)
    places: dict[int, _Found] = {}
    if everything:
        places = _found(view, queue.id, first, limit)
    for seq, deliveries in available(view, queue, first, limit=limit, gaps_max=0):
        places[seq] = ("available", deliveries, None)
    found = []
    for seq in sorted(places)[:limit]:
        place, deliveries, has = places[seq]
        stored = message_of(view, queue.id, seq)
        if stored is not None:
            holder = _holder(view, has)
            found.append(Browsed(seq, stored.message, stored.at_ms, deliveries, place, holder))
    return tuple(found)


# --- transactions ---------------------------------------------------------------------------------


def txid_of(session: int, counter: int) -> str:
    """The name of a TX."""
    return f"{session}.{counter}"


def outcome_of(view: Tables, session: int, counter: int) -> Fate:
    """What became of the TX `session`.`counter`.

    A session that has ended begins and commits nothing any more. So what it has not had decided, or
    is not having decided by its participants, is rolled back for good, before `Sweep` says so.
    """
    row: SessionRow | None = view.table("sessions").get(session)
    if row is None:
        return Fate("forgotten" if 0 < session < meta_of(view).next_session else "unknown")
    if counter <= row.decided:
        return _decided(view, session, counter, row)
    transaction = transaction_of(view, row.number) if row.number else None
    if transaction is not None and transaction.xid is None and transaction.counter == counter:
        if transaction.state == "preparing":
            return Fate("preparing")
        if session_live(view, row):
            return Fate("active")
    if session_live(view, row):
        return Fate("unknown")
    return Fate("rolled back", "session", "its session has ended")


def _decided(view: Tables, session: int, counter: int, row: SessionRow) -> Fate:
    if counter <= row.forgotten:
        return Fate("forgotten")
    rolled_back = view.table("rollbacks").get((session, counter))
    if rolled_back is None:
        return Fate("committed")
    return Fate("rolled back", rolled_back.cause, rolled_back.reason, rolled_back.index)


def transaction_of(view: Tables, number: int) -> TransactionRow | None:
    """The transaction with that number; None if it has no rows (any longer)."""
    row: TransactionRow | None = view.table("transactions").get(number)
    return row


def operations_of(view: Tables, number: int, first: int = 0) -> tuple[Operation, ...]:
    """What is staged in a transaction, in order, from the row `first` on.

    Rows that follow one another in the same queue, and are of one kind, are one operation here,
    however they were staged. The next ones begin at `TransactionRow.rows`. Of a decided transaction
    only what has not been moved yet is found: whoever has to see all of it looks before.
    """
    transaction = transaction_of(view, number)
    if transaction is None:
        return ()
    rows: list[tuple[int, int, Message | int]] = []
    for part in transaction.parts:
        staged = view.table("staged").scan(prefix=(number, part.queue), reverse=True)
        for _, message in staged:
            if message.order < first:
                break  # in one queue they are in order
            rows.append((message.order, part.queue, message.message))
        for key, accept in view.table("accepts").scan(prefix=(number, part.queue)):
            if accept.order >= first:
                rows.append((accept.order, part.queue, key[2]))
    rows.sort(key=lambda row: row[0])
    return tuple(_operations(view, rows))


def _operations(view: Tables, rows: list[tuple[int, int, Message | int]]) -> Iterator[Operation]:
    names = view.table("names")
    at = 0
    while at < len(rows):
        queue, accepts = rows[at][1], isinstance(rows[at][2], int)
        end = at
        while end < len(rows) and (rows[end][1], isinstance(rows[end][2], int)) == (queue, accepts):
            end += 1
        name, items = names.get(queue, ""), tuple(row[2] for row in rows[at:end])
        yield AcceptOf(name, items) if accepts else PublishTo(name, items)  # type: ignore[arg-type]
        at = end


# --- branches -------------------------------------------------------------------------------------


def branches(view: Tables) -> tuple[tuple[Xid, TransactionRow], ...]:
    """All branches that are known, in the order of their xids."""
    transactions = view.table("transactions")
    rows = []
    for key, number in view.table("branches").scan():
        row = transactions.get(number)
        if row is not None:
            rows.append((Xid(*key), row))
    return tuple(rows)


def recover(view: Tables) -> tuple[tuple[Xid, TransactionRow], ...]:
    """Those that a coordinator has to decide or to forget: prepared, and decided by an operator."""
    return tuple((xid, row) for xid, row in branches(view) if row.state in IN_DOUBT)


def decision_of(view: Tables, xid: Xid, number: int | None = None) -> DecisionRow | None:
    """The last decision about a branch of that name, if it is still kept.

    `number`: of which transaction, for a xid may have been used again since.
    """
    at = view.table("decided").get(xid.key)
    row: DecisionRow | None = None if at is None else view.table("decisions").get(at)
    if row is not None and number is not None and row.transaction != number:
        return None
    return row

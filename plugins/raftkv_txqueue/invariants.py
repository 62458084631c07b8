"""What must hold after every entry, checked from the rows alone.

The counters are counted anew, every message is looked for in all places where it may be, and every
row that belongs to a session, a queue or a transaction is asked whether that exists. It reads
everything, so it is for tests, storms and `raftkv check`, never for a command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from raftkv.plugin import View

from .commands import (
    ENDINGS_KEPT,
    Lock,
    Part,
    Queue,
    SessionRow,
    Span,
    TransactionRow,
    size_of,
)
from .deciding import KEPT, UNDECIDED, VISIBLE, reserved_of
from .quota import QUOTA
from .views import meta_of

__all__ = ["violations"]


def violations(view: View) -> list[str]:
    """Invariants that are violated, in words."""
    state = _State(view)
    return [
        *_of_places(state),
        *_of_queues(state),
        *_of_times(state),
        *_of_spans(state),
        *_of_sessions(state),
        *_of_locks(state),
        *_of_transactions(state),
        *_of_staged(state),
        *_of_reserves(state),
        *_of_due(state),
        *_of_branches(state),
        *_of_meta(state),
    ]


class _State:
    """All rows, read once."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.now = view.now
        self.queues: dict[str, Queue] = self.rows("queues")
        self.names: dict[int, str] = self.rows("names")
        self.by_id = {queue.id: queue for queue in self.queues.values()}
        self.messages: dict[tuple[int, int], Any] = self.rows("messages")
        self.spans: dict[tuple[int, int], Span] = self.rows("spans")
        self.returned: dict[tuple[int, int], int] = self.rows("returned")
        self.locks: dict[tuple[int, int, int], int | Lock] = self.rows("locks")
        self.accepts: dict[tuple[int, int, int], Any] = self.rows("accepts")
        self.delayed: dict[tuple[int, int], int] = self.rows("delayed")
        self.gaps: dict[tuple[int, int], None] = self.rows("gaps")
        self.staged: dict[tuple[int, int, int], Any] = self.rows("staged")
        self.sessions: dict[int, SessionRow] = self.rows("sessions")
        self.transactions: dict[int, TransactionRow] = self.rows("transactions")

    def fresh(self, queue: Queue) -> Iterator[int]:
        """Seqs that were never acquired, and are available."""
        for seq in range(queue.cursor, queue.next):
            if (queue.id, seq) not in self.gaps:
                yield seq

    def rows(self, name: str) -> dict[Any, Any]:
        return dict(self.view.table(name).scan())

    def undecided(self) -> Iterator[tuple[int, TransactionRow]]:
        for number, row in self.transactions.items():
            if row.state in UNDECIDED:
                yield number, row

    def is_taken(self, number: int) -> bool:
        """Whether what this transaction accepted is gone already."""
        row = self.transactions.get(number)
        return row is not None and row.state in VISIBLE

    def size(self, queue_id: int, seq: int) -> int | None:
        """Bytes of a message, through spans; None if there is none."""
        stored = self.messages.get((queue_id, seq))
        if stored is not None:
            return size_of(stored.message)
        for (id, first), span in self.spans.items():
            if id == queue_id and first <= seq < first + span.count:
                one = self.staged.get((span.number, queue_id, seq - first))
                if one is not None:
                    return size_of(one.message)
        return None


def _of_places(state: _State) -> list[str]:
    """Every message is in exactly one place, and each place has its message."""
    found = []
    places: dict[tuple[int, int], list[str]] = {}
    for id, queue in state.by_id.items():
        for seq in state.fresh(queue):
            places.setdefault((id, seq), []).append("fresh")
    for key in state.returned:
        places.setdefault(key, []).append("returned")
    for key in state.delayed:
        places.setdefault(key, []).append("delayed")
    for session, id, seq in state.locks:
        places.setdefault((id, seq), []).append(f"held by session {session}")
    for number, id, seq in state.accepts:
        places.setdefault((id, seq), []).append(f"accepted in {number}")
    for (id, seq), where in places.items():
        if id not in state.by_id:
            continue
        if len(where) != 1:
            found.append(f"message {seq} of queue {id} is {' and '.join(where)}")
        elif state.size(id, seq) is None:
            found.append(f"message {seq} of queue {id} is {where[0]} and does not exist")
    for id, seq in state.messages:
        if id in state.by_id and (id, seq) not in places:
            found.append(f"message {seq} of queue {id} is nowhere")
    return found


def _of_queues(state: _State) -> list[str]:
    """Counters, names, rows of deleted queues."""
    found = []
    counted: dict[int, Counter[str]] = {id: Counter() for id in state.by_id}
    for id, queue in state.by_id.items():
        counter = counted[id]
        for seq in state.fresh(queue):
            counter.update(ready=1, depth=1, bytes=state.size(id, seq) or 0)
    for id, seq in state.returned:
        if id in counted:
            counted[id].update(ready=1, depth=1, bytes=state.size(id, seq) or 0)
    for key in state.delayed:
        if key[0] in counted:
            counted[key[0]].update(depth=1, bytes=state.size(*key) or 0)
    for _, id, seq in state.locks:
        if id in counted:
            counted[id].update(depth=1, bytes=state.size(id, seq) or 0)
    for (number, id, seq), accept in state.accepts.items():
        if id in counted and not state.is_taken(number):
            counted[id].update(depth=1, bytes=accept.bytes)
            if state.size(id, seq) != accept.bytes:
                found.append(f"accepted message {seq} of queue {id} is not of {accept.bytes} bytes")
    for _, row in state.undecided():
        for part in row.parts:
            messages, size = reserved_of(part) if row.state != "active" else (0, 0)
            if part.queue in counted:
                counted[part.queue].update(uses=1, reserved=messages, reserved_bytes=size)
            else:
                found.append(f"an undecided transaction has content of queue {part.queue}")
    for name, queue in state.queues.items():
        if state.names.get(queue.id) != name:
            found.append(f"queue {queue.id} is {name}, and {state.names.get(queue.id)}")
        if not 1 <= queue.cursor <= queue.next:
            found.append(f"{name}: cursor {queue.cursor}, next {queue.next}")
        for what in ("ready", "depth", "bytes", "reserved", "reserved_bytes", "uses"):
            has, real = getattr(queue, what), counted[queue.id][what]
            if has != real:
                found.append(f"{name} says {what} {has}, counted {real}")
    if len(state.names) != len(state.queues):
        found.append(f"{len(state.names)} names of {len(state.queues)} queues")
    dropped = state.rows("dropped")
    for what, rows in (("messages", state.messages), ("returned", state.returned)):
        for id, _ in rows:
            if id not in state.by_id and id not in dropped:
                found.append(f"{what} of queue {id}, which is neither there nor being deleted")
    found += [f"queue {id} is there and being deleted" for id in dropped if id in state.by_id]
    found += [
        f"{n} is overfull and unknown" for n in state.rows("overfull") if n not in state.queues
    ]
    return found


def _of_times(state: _State) -> list[str]:
    """Timers are of messages that wait for them; nothing below the cursor is a gap."""
    found = []
    expiring = state.rows("expiring")
    timers = {(key[1], key[2]): key[0] for key in state.rows("timers")}
    if len(timers) != len(state.rows("timers")):
        found.append("a message has two timers")
    held = {key[1:] for key in (*state.locks, *state.accepts)}
    for key, at_ms in {**expiring, **state.delayed}.items():
        if key[0] in state.by_id and key not in held and timers.get(key) != at_ms:
            found.append(f"message {key} has the timer {timers.get(key)}, not {at_ms}")
    for key in timers:
        if key[0] in state.by_id and key not in expiring and key not in state.delayed:
            found.append(f"a timer of message {key}, which has no time")
    for key in expiring:
        if key[0] in state.by_id and state.size(*key) is None and not _is_taken(state, key):
            found.append(f"message {key} is to expire and does not exist")
    for id, seq in state.gaps:
        queue = state.by_id.get(id)
        if queue is not None and not queue.cursor <= seq < queue.next:
            found.append(f"a gap {seq} of queue {id}, outside of its fresh messages")
    for number, id, place in state.rows("staged_times"):
        row = state.transactions.get(number)
        if row is None or row.state not in UNDECIDED or (number, id, place) not in state.staged:
            found.append(f"the time of a message of {number} that is not staged")
    return found


def _is_taken(state: _State, key: tuple[int, int]) -> bool:
    return any(each[1:] == key for each in state.accepts)


def _of_spans(state: _State) -> list[str]:
    """Spans are disjoint, below `next`, and of transactions whose rows are being moved."""
    found = []
    before: dict[int, int] = {}
    for (id, first), span in state.spans.items():
        if first < before.get(id, 1):
            found.append(f"spans of queue {id} overlap at {first}")
        before[id] = first + span.count
        queue = state.by_id.get(id)
        if queue is None:
            continue
        if first + span.count > queue.next:
            found.append(f"a span of queue {id} ends behind the last message {queue.next - 1}")
        row = state.transactions.get(span.number)
        if row is None or row.state not in VISIBLE or not row.unfolding:
            found.append(f"a span of queue {id} is of transaction {span.number}")
        elif (_part(row, id).publishes, _part(row, id).first) != (span.count, first):
            found.append(f"a span of queue {id} has {span.count} messages of {span.number}")
    return found


def _part(row: TransactionRow, queue_id: int) -> Part:
    return next((part for part in row.parts if part.queue == queue_id), Part(queue_id))


def _of_sessions(state: _State) -> list[str]:
    found = []
    held = Counter(session for session, _, _ in state.locks)
    noted = Counter(session for session, _ in state.rows("rollbacks"))
    owners = state.rows("owners")
    old = Counter(session for _, session in state.rows("old_sessions"))
    ended = state.rows("ended_sessions")
    for session, row in state.sessions.items():
        if row.held != held[session]:
            found.append(f"session {session} says it holds {row.held}, counted {held[session]}")
        if row.rolled_back != noted[session]:
            found.append(f"session {session} noted {noted[session]}, says {row.rolled_back}")
        if (row.ended_ms == 0) != ((row.node, row.incarnation, session) in owners):
            found.append(f"session {session}, ended {row.ended_ms}, and its row in owners")
        done = row.ended_ms != 0 and not row.number and session not in ended
        if done != (session in old):
            found.append(f"session {session}, ended {row.ended_ms}, and its row in old_sessions")
        if row.ended_ms and row.held and session not in ended:
            found.append(f"session {session} has ended, holds {row.held}, and nobody is to sweep")
        if not row.forgotten <= row.decided:
            found.append(f"session {session}: forgotten {row.forgotten}, decided {row.decided}")
        if row.number:
            found += _of_number(state, session, row)
    found += [f"session {session} is kept twice" for session, times in old.items() if times > 1]
    for session in sorted({*held, *noted, *old} - state.sessions.keys()):
        found.append(f"rows of session {session}, which does not exist")
    for session, counter in state.rows("rollbacks"):
        known = state.sessions.get(session)
        if known is not None and not known.forgotten < counter <= known.decided:
            found.append(f"a rollback of {session}.{counter} that cannot be")
    return found


def _of_locks(state: _State) -> list[str]:
    """Deadlines of locks, time-outs of queues, and the notes on ended sessions."""
    found = []
    expected = set()
    for key, row in state.locks.items():
        if isinstance(row, Lock):
            if not 0 <= row.since_ms <= state.now:
                found.append(f"{key} is held since {row.since_ms}, and it is {state.now}")
            if row.due_ms:
                expected.add((row.due_ms, *key))
    if expected != set(state.rows("ack_due")):
        found.append("the deadlines of what is held are others")
    for id, timeout_ms in state.rows("ack_timeouts").items():
        if id not in state.by_id or timeout_ms <= 0:
            found.append(f"queue {id} has an acknowledgement time-out of {timeout_ms} ms")
    for id, ttl_ms in state.rows("queue_ttls").items():
        if id not in state.by_id or ttl_ms <= 0:
            found.append(f"queue {id} has a time to live of {ttl_ms} ms")
    endings = state.rows("endings")
    if len(endings) > ENDINGS_KEPT:
        found.append(f"{len(endings)} notes on ended sessions")
    for ending in endings.values():
        row_of = state.sessions.get(ending.session)
        if row_of is not None and not row_of.ended_ms:
            found.append(f"session {ending.session} was ended by {ending.by} and goes on")
    return found


def _of_number(state: _State, session: int, row: SessionRow) -> list[str]:
    """What a session is in the middle of exists, and knows of it."""
    transaction = state.transactions.get(row.number)
    if transaction is None:
        return [f"session {session} is in {row.number}, which does not exist"]
    if transaction.xid is not None:
        attached = [one.session for one in transaction.associations if not one.suspended]
        return [] if session in attached else [f"session {session} is not attached"]
    if transaction.state not in ("active", "preparing"):
        return [f"session {session} is in {row.number}, which is {transaction.state}"]
    if (transaction.session, transaction.counter) != (session, row.decided + 1):
        return [f"session {session} is in {row.number} of another one, or out of turn"]
    if row.ended_ms and transaction.state != "preparing":
        return [f"session {session} has ended and its transaction has not"]
    return []


def _of_reserves(state: _State) -> list[str]:
    """What an undecided transaction would publish counts against the quota already."""
    reserved: Counter[int] = Counter()
    size = QUOTA.sizes["staged"]
    for key, staged in state.staged.items():
        reserved[key[0]] += size(key, staged)
    return [
        f"transaction {number} is {row.state} and has reserved {reserved[number]} of {row.bytes}"
        for number, row in state.undecided()
        if reserved[number] < row.bytes
    ]


def _of_transactions(state: _State) -> list[str]:
    found = []
    unfolding = state.rows("unfolding")
    for number, row in state.transactions.items():
        rows = sum(part.publishes + part.accepts for part in row.parts)
        size = sum(part.publish_bytes for part in row.parts)
        if (row.rows, row.bytes) != (rows, size):
            found.append(f"transaction {number} says {row.rows} rows of {row.bytes} bytes")
        if (row.unfolding > 0) != (number in unfolding):
            found.append(f"transaction {number} has {row.unfolding} rows left, and its mark")
        if row.unfolding and row.state in UNDECIDED:
            found.append(f"transaction {number} is {row.state} and its rows are being moved")
        if row.state in ("committed", "rolled back") and not row.unfolding:
            found.append(f"transaction {number} is {row.state} and nothing is left of it")
        if row.state == "prepared" and (row.deadline_ms or row.xid is None):
            found.append(f"transaction {number} is prepared and has a deadline, or is a TX")
        if row.state == "preparing" and not (row.deadline_ms and row.participants):
            found.append(f"transaction {number} is preparing and nobody is asked, or for ever")
        if row.xid is None and row.state in ("active", "preparing"):
            session = state.sessions.get(row.session)
            if session is None or session.number != number:
                found.append(f"transaction {number} belongs to no session")
        if row.xid is None and (row.state in KEPT or row.associations):
            found.append(f"transaction {number} is a TX and {row.state}")
        if row.state in ("preparing", "prepared") and row.associations:
            found.append(f"transaction {number} is {row.state} and a session works in it")
    found += [
        f"{n} is to be unfolded and unknown" for n in unfolding if n not in state.transactions
    ]
    return found


def _of_staged(state: _State) -> list[str]:
    """Staged rows are of known transactions; undecided ones have all of theirs, in order."""
    found = []
    places: dict[tuple[int, int], list[int]] = {}
    for number, id, place in state.staged:
        places.setdefault((number, id), []).append(place)
    staged = {key: len(rows) for key, rows in places.items()}
    accepts = Counter((number, id) for number, id, _ in state.accepts)
    for number, _ in {**staged, **accepts}:
        row = state.transactions.get(number)
        if row is None or (row.state not in UNDECIDED and not row.unfolding):
            found.append(f"rows of transaction {number}, which is not known or has none left")
    orders: dict[int, list[int]] = {}
    for (number, _, _), one in [*state.staged.items(), *state.accepts.items()]:
        orders.setdefault(number, []).append(one.order)
    for number, row in state.undecided():
        if sorted(orders.get(number, ())) != list(range(row.rows)):
            found.append(f"the operations of {number} are not 0 to {row.rows - 1}")
        for part in row.parts:
            key = (number, part.queue)
            has = staged.get(key, 0), accepts[key]
            if has != (part.publishes, part.accepts):
                found.append(f"transaction {number} has {has} rows of queue {part.queue}")
            if places.get(key, []) != list(range(part.publishes)):
                found.append(f"the messages of {number} to queue {part.queue} have holes")
    return found


def _of_due(state: _State) -> list[str]:
    """`due` has the deadlines, and nothing else; what is prepared is never in it."""
    expected = {
        (row.deadline_ms, number) for number, row in state.transactions.items() if row.deadline_ms
    }
    due = set(state.rows("due"))
    found = [f"{key} is due and of no transaction" for key in sorted(due - expected)]
    found += [f"{key} is a deadline and not due" for key in sorted(expected - due)]
    for number, row in state.transactions.items():
        if row.state not in ("active", "preparing", "failed") and row.deadline_ms:
            found.append(f"transaction {number} is {row.state} and has a deadline")
    return found


def _of_branches(state: _State) -> list[str]:
    found = []
    branches = state.rows("branches")
    known = ("active", "preparing", "prepared", *KEPT)
    for key, number in branches.items():
        row = state.transactions.get(number)
        if row is None or row.xid is None or row.xid.key != key or row.state not in known:
            found.append(f"branch {number} is not known as it should be")
            continue
        for one in row.associations:
            session = state.sessions.get(one.session)
            if session is not None and (session.number == number) == one.suspended:
                found.append(f"session {one.session} and branch {number} do not agree")
    for number, row in state.transactions.items():
        if row.xid is None or row.state in ("committed", "rolled back"):
            continue
        if branches.get(row.xid.key) != number:
            found.append(f"transaction {number} is a branch that is {row.state} and unknown")
    decisions = state.rows("decisions")
    last = {row.xid.key: number for number, row in decisions.items()}
    if last != state.rows("decided"):
        found.append("the last decisions of the xids are others")
    return found


def _of_meta(state: _State) -> list[str]:
    found = []
    meta = meta_of(state.view)
    undecided = [row for _, row in state.undecided()]
    counted = {
        "staged_bytes": sum(row.bytes for row in undecided),
        "transactions": len(undecided),
        "prepared": sum(row.state == "prepared" for row in undecided),
        "sessions": sum(row.ended_ms == 0 for row in state.sessions.values()),
    }
    for what, real in counted.items():
        if getattr(meta, what) != real:
            found.append(f"meta says {what} {getattr(meta, what)}, counted {real}")
    for what, numbers in (
        ("next_queue", state.names),
        ("next_session", state.sessions),
        ("next_number", state.transactions),
        ("next_decision", state.rows("decisions")),
    ):
        if max(numbers, default=0) >= getattr(meta, what):
            found.append(f"{what} is {getattr(meta, what)}, and {max(numbers)} is given")
    return found

"""What the log of transactional queues may do, as functions of one step of it.

Rules of this file and its neighbours (`storm_transactions.py` for what transactions are asked to
do, `storm_deciding.py` for what becomes of them, `storm_branches.py` for what XA answers,
`storm_shown.py` for what the queues show afterwards). They do no work of their own in a run:
`storm_log.py` writes each step down, they judge it, so that each check can be shown to fail
(`tests/plugins/raftkv_txqueue/test_storm_check.py`). What must happen is found by the rules from
the `Ledger`; from the plugin comes only what it answered, what its queues show to a browser, and
*which* of the things that it is free to do it did (what a Sweep swept, how many old messages made
room), and that must be allowed.

`check_step`: first what the command itself does, then sessions that ended, then transactions that
changed their state, then every queue that was touched, message by message.

- A refusal has a true reason, and what has one is refused.
- Acquired are the oldest available ones, in order; settled is what the session holds. What has
  expired is none of them, and what is delayed is one as soon as its delay is over.
- A session ends when it is closed, when an operator ends it, when the life of its node is over, and
  when it has held a message for longer than its queue allows, and not otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from raftkv.plugin import MemberChange
from raftkv_txqueue import commands, views
from raftkv_txqueue.commands import (
    Acquire,
    CloseSession,
    DeclareQueue,
    DeleteQueue,
    EndSession,
    EnsureQueue,
    Observe,
    OpenSession,
    Publish,
    Purge,
    PutBack,
    Select,
    Settle,
    Stage,
    Sweep,
    ToBack,
    Vote,
    size_of,
)

from .storm_branches import BRANCH_COMMANDS, before_branch, check_forgotten, check_status
from .storm_deciding import check_transitions
from .storm_ledger import Book, Ledger, Life, Step, Work
from .storm_rules import Found, owner_errors, refused
from .storm_shown import check_contents, check_shown, shown_of, take_letters
from .storm_transactions import transactional

__all__ = ["check_step"]


def check_step(step: Step, ledger: Ledger) -> list[tuple[str, str]]:
    """Let the ledger do what the step must do; (check, what is wrong) of all it does otherwise."""
    ledger.begin_step(step.now)
    found: list[tuple[str, str]] = []
    command = step.command
    branch = before_branch(step, ledger) if isinstance(command, BRANCH_COMMANDS) else None
    found += _direct(step, ledger)
    if isinstance(command, CloseSession | EndSession | Sweep) and step.refusal is None:
        found += _sessions_ended(step, ledger)
    # What a refused one has written is undone, after this: only that it was refused is judged.
    if step.refusal is None:
        found += check_transitions(step, ledger)
    if branch is not None:
        found += check_status(step, ledger, branch)
    if step.refusal is None:
        found += check_forgotten(step, ledger)
        found += check_shown(step, ledger)
        found += check_contents(step, ledger)
    where = f"index {step.index}, {type(command).__name__}"
    return [(check, f"{where}: {each}") for check, each in found]


ENDS = "sessions end when they must"
#: What is declared of a queue, and what of it has tables of its own.
LIMITS = ("depth_max", "bytes_max", "overflow", "deliveries_max", "dead_letter")
TIMES = ("ack_timeout_ms", "ttl_ms")


def _direct(step: Step, ledger: Ledger) -> Iterator[Found]:
    match step.command:
        case DeclareQueue() | EnsureQueue():
            yield from _declare(step, ledger)
        case DeleteQueue():
            yield from _delete(step, ledger)
        case Purge():
            yield from _purge(step, ledger)
        case Publish():
            yield from _publish(step, ledger)
        case OpenSession():
            yield from _open(step, ledger)
        case CloseSession():
            yield from _close(step, ledger)
        case EndSession():
            yield from _end_by_operator(step, ledger)
        case Select():
            yield from _select(step, ledger)
        case Acquire():
            yield from _acquire(step, ledger)
        case Settle() | PutBack() | ToBack():
            yield from _settle(step, ledger)
        case Observe():
            yield from _observe(step, ledger)
        case Stage() | commands.Commit() | commands.Rollback() | Vote():
            yield from transactional(step, ledger)
        case Sweep() | MemberChange():
            yield from refused(step, ())
        case each if not isinstance(each, BRANCH_COMMANDS):
            yield "the log decides rightly", f"nobody knows the command {each}"


# --- queues ---------------------------------------------------------------------------------------


def _declare(step: Step, ledger: Ledger) -> Iterator[Found]:
    command, book = step.command, ledger.book(step.command.queue)
    must = []
    if isinstance(command, EnsureQueue):
        must = [*_ensure_errors(command, ledger, book), *_too_new(step)]
    if command.dead_letter == command.queue:
        must.append("BadDeadLetter")
    if book is None and len(ledger.queues) >= step.settings["queues_max"]:
        must.append("TooManyQueues")
    yield from refused(step, must)
    if step.refusal is not None:
        return
    if book is None:
        book = Book(step.result.id, command.queue)
        if step.result.id in ledger.by_id:
            yield "the log decides rightly", f"the id {step.result.id} is given again"
        if not step.result.created:
            yield "the log decides rightly", f"{command.queue} is new, and {step.result}"
        ledger.queues[command.queue] = ledger.by_id[book.id] = book
    elif step.result.created or step.result.id != book.id:
        yield "the log decides rightly", f"{command.queue} is there, and {step.result}"
    for what in LIMITS:
        if getattr(command, what) is not None:
            setattr(book, what, getattr(command, what))
    for what in TIMES if isinstance(command, EnsureQueue) else ():
        if getattr(command, what) is not None:
            setattr(book, what, getattr(command, what))
    ledger.touched[book.id] = None


def _too_new(step: Step) -> list[str]:
    """Commands of format 2 are not known before it is active."""
    return ["UnknownCommand"] if step.version < 2 else []


def _ensure_errors(command: EnsureQueue, ledger: Ledger, book: Book | None) -> Iterator[str]:
    if book is not None and not command.change:
        asked = [(what, getattr(command, what)) for what in (*LIMITS, *TIMES)]
        if any(value not in (None, getattr(book, what)) for what, value in asked):
            yield "QueueDiffers"
    letters = command.dead_letter
    if letters and letters != command.queue and letters not in ledger.queues:
        yield "UnknownDeadLetter"


def _delete(step: Step, ledger: Ledger) -> Iterator[Found]:
    command, book = step.command, ledger.book(step.command.queue)
    if book is None:
        yield from refused(step, ["UnknownQueue"])
        return
    must = []
    if _users(ledger, book):
        must.append("QueueInUse")
    if step.version > 1 and any(each.dead_letter == book.name for each in ledger.queues.values()):
        must.append("DeadLetterInUse")
    if command.if_empty and book.items:
        must.append("QueueNotEmpty")
    if command.if_unused and any(
        each.state not in ("available", "delayed") for each in book.items.values()
    ):
        must.append("QueueAcquired")
    yield from refused(step, must)
    if step.refusal is not None:
        return
    if step.result.messages != len(book.items):
        text = f"{len(book.items)} messages were in it, and {step.result}"
        yield "the log decides rightly", text
    for seq in list(book.items):
        ledger.remove(book, seq, "deleted")
    book.deleted = True
    del ledger.queues[book.name]


def _users(ledger: Ledger, book: Book) -> list[Work]:
    return [each for each in ledger.open if any(id_ == book.id for _, id_, _ in each.operations)]


def _purge(step: Step, ledger: Ledger) -> Iterator[Found]:
    command, book = step.command, ledger.book(step.command.queue)
    yield from refused(step, ["UnknownQueue"] if book is None else [])
    if book is None or step.refusal is not None:
        return
    most = min(command.rows_max, commands.ROWS_MAX)
    wanted = [seq for seq in book.available() if seq <= command.upto]
    count = step.result.messages
    for seq in wanted[:count]:
        ledger.remove(book, seq, "purged")
    if not _may_be_all(count, len(wanted[:most])) or step.result.more != (count < len(wanted)):
        yield "the log decides rightly", f"{len(wanted)} are available, and {step.result}"


def _may_be_all(count: int, wanted: int) -> bool:
    """Whether an entry that was to find so many may find this number: it passes over so many seqs
    that are not fresh, and goes no further."""
    return count == wanted or (count < wanted and views.GAPS_MAX < commands.ROWS_MAX)


def _publish(step: Step, ledger: Ledger) -> Iterator[Found]:
    command, book = step.command, ledger.book(step.command.queue)
    sizes = [size_of(each) for each in command.messages]
    must = ["UnknownQueue"] if book is None else []
    if not sizes:
        must.append("EmptyBatch")
    if len(sizes) > commands.ROWS_MAX:
        must.append("BatchTooLarge")
    if any(size > step.settings["message_bytes_max"] for size in sizes):
        must.append("MessageTooLarge")
    if book is not None and lacks_room(ledger, book, len(sizes), sum(sizes)):
        must.append("QueueFull")
    yield from refused(step, must)
    if step.refusal is not None or book is None:
        return
    seqs = [ledger.append(book, each, step.index) for each in command.messages]
    if seqs and (step.result.first, step.result.last) != (seqs[0], seqs[-1]):
        yield "order is kept", f"the next seq is {seqs[0]}, and {step.result}"


def lacks_room(ledger: Ledger, book: Book, count: int, size: int) -> bool:
    """Whether so much more must be refused."""
    if book.overflow != "refuse":
        return False
    reserved, reserved_bytes = ledger.reserved.get(book.id, (0, 0))
    if 0 < book.depth_max < len(book.items) + reserved + count:
        return True
    return 0 < book.bytes_max < book.bytes + reserved_bytes + size


# --- sessions -------------------------------------------------------------------------------------


def _open(step: Step, ledger: Ledger) -> Iterator[Found]:
    must = ["NotAMember"] if step.origin is None else []
    may = ["TooManySessions"]
    yield from refused(step, must, may)
    if step.refusal is not None or step.origin is None:
        return
    id_ = step.result.session
    if id_ in ledger.sessions:
        yield "the log decides rightly", f"session {id_} is given again"
    ledger.sessions[id_] = Life(id_, *step.origin, step.command.kind)


def _close(step: Step, ledger: Ledger) -> Iterator[Found]:
    yield from refused(step, owner_errors(step, ledger, step.command.session))
    if step.refusal is None:
        row = step.tables.table("sessions").get(step.command.session)
        if row is not None and not row.ended_ms:
            yield ENDS, f"{step.command.session} was closed, and {row}"


def _end_by_operator(step: Step, ledger: Ledger) -> Iterator[Found]:
    number = step.command.session
    life = ledger.sessions.get(number)
    ended = ["SessionEnded"] if life is None or life.ended else []
    yield from refused(step, [*ended, *_too_new(step)])
    if step.refusal is None and life is not None:
        life.ended_by = "operator"
        row = step.tables.table("sessions").get(number)
        if row is None or not row.ended_ms:
            yield ENDS, f"an operator has ended {number}, and {row}"


def _select(step: Step, ledger: Ledger) -> Iterator[Found]:
    command = step.command
    must = owner_errors(step, ledger, command.session)
    if ledger.in_flight(command.session) or ledger.attached(command.session):
        must = [*must, "InTransaction"]
    yield from refused(step, must)
    if step.refusal is None:
        ledger.sessions[command.session].kind = command.kind


def _acquire(step: Step, ledger: Ledger) -> Iterator[Found]:
    command, book = step.command, ledger.book(step.command.queue)
    must = owner_errors(step, ledger, command.session)
    if book is None:
        must = [*must, "UnknownQueue"]
    # What it holds includes locks on deleted queues, and not yet what a rollback gives back later.
    row = step.tables.table("sessions").get(command.session)
    taken = 0 if step.refusal is not None else len(step.result.seqs)
    most = step.settings["acquired_max"] - (0 if row is None else row.held - taken)
    yield from refused(step, must, ["TooManyAcquired"] if most < command.count else [])
    if step.refusal is not None or book is None:
        return
    ledger.fire()
    if ledger.letters.get(book.name):  # of messages of other queues, which have just expired
        take_letters(book, shown_of(step.tables, book.name), step, ledger)
    available = book.available()
    seqs = list(step.result.seqs)
    if seqs != available[: len(seqs)]:
        text = f"acquired {seqs}, and the oldest available are {available[: len(seqs) + 3]}"
        yield "order is kept", text
        return
    wanted = available[: min(command.count, most, commands.ROWS_MAX)]
    if not _may_be_all(len(seqs), _fitting(book, wanted, command.bytes_max)):
        yield "the log decides rightly", f"of {wanted} others were to be acquired: {step.result}"
    for seq, deliveries in zip(seqs, step.result.deliveries, strict=True):
        item = book.items[seq]
        book.hold(seq, command.session, step.now if step.version > 1 else 0)
        item.deliveries += 1
        ledger.acquired[(command.session, book.id, seq)] = item.deliveries
        ledger.touched[book.id] = None
        if item.deliveries != deliveries:
            yield "the log decides rightly", f"{seq} is delivered {item.deliveries} times: {step}"
    if step.result.ready != len(available) - len(seqs):
        yield "counters are right", f"{len(available)} were available, and {step.result}"


def _fitting(book: Book, seqs: list[int], bytes_max: int) -> int:
    """How many of them have no more bytes together; one always, 0: no bound."""
    size = 0
    for place, seq in enumerate(seqs):
        size += size_of(book.items[seq].message)
        if place and 0 < bytes_max < size:
            return place
    return len(seqs)


def _settle(step: Step, ledger: Ledger) -> Iterator[Found]:
    command, book = step.command, ledger.book(step.command.queue)
    must = owner_errors(step, ledger, command.session)
    # Of a queue that is gone all is missing, or the queue is said to be unknown.
    may = ["UnknownQueue"] if book is None else []
    if not command.seqs:
        must = [*must, "EmptyBatch"]
    if len(command.seqs) > commands.ROWS_MAX:
        must = [*must, "BatchTooLarge"]
    yield from refused(step, must, may)
    if step.refusal is not None:
        return
    held = set() if book is None else set(book.held_by(command.session))
    missing = []
    for seq in command.seqs:
        if book is None or seq not in held:
            missing.append(seq)
            continue
        held.discard(seq)
        if isinstance(command, PutBack):
            ledger.put_back(book, seq)
        elif isinstance(command, ToBack):
            ledger.to_back(book, seq)
        elif command.settling == "accept":
            ledger.accepted[(book.id, seq)] = command.session
            ledger.remove(book, seq, "accepted")
        elif command.settling == "reject":
            ledger.bury(book, seq)
        else:
            ledger.give_back(book, seq)
    if (step.result.done, sorted(step.result.missing)) != (
        len(command.seqs) - len(missing),
        sorted(missing),
    ):
        yield "the log decides rightly", f"{missing} are not held, and {step.result}"


def _observe(step: Step, ledger: Ledger) -> Iterator[Found]:
    yield from refused(step, ["NotAMember"] if step.origin is None else [])
    if step.origin is None or step.refusal is not None:
        return
    node, incarnation = step.origin
    if step.command.on:
        ledger.observers[node] = incarnation
    else:
        ledger.observers.pop(node, None)


def _sessions_ended(step: Step, ledger: Ledger) -> Iterable[Found]:
    rows = step.tables.table("sessions")
    closed = getattr(step.command, "session", 0)
    for life in ledger.sessions.values():
        row: Any = None
        if life.ended or ((row := rows.get(life.id)) is not None and not row.ended_ms):
            continue
        if life.id != closed and step.lives(life.node, life.incarnation):
            if _overdue(life.id, step, ledger):
                ledger.timed_out += 1
                life.ended_by = "ack_timeout"
            else:
                text = f"session {life.id} of {life.node} has ended, and its node lives on: {row}"
                yield ENDS, text
        ledger.lost_sessions += life.id != closed
        life.ended = True
        for book in ledger.queues.values():
            for seq in book.held_by(life.id):
                book.items[seq].loose = True
                ledger.touched[book.id] = None
        for work in ledger.branches.values():
            if work.associations.pop(life.id, None) is not None:
                work.doomed = True
    if isinstance(step.command, Sweep) and not step.result.more:
        for life in ledger.sessions.values():
            if not life.ended and (late := _overdue(life.id, step, ledger)):
                yield ENDS, f"session {life.id} goes on, and holds too long: {late}"


def _overdue(session: int, step: Step, ledger: Ledger) -> list[tuple[str, list[int]]]:
    """What it has held for too long, by queue."""
    found = [(book.name, book.overdue(session, step.now)) for book in ledger.queues.values()]
    return [each for each in found if each[1]]

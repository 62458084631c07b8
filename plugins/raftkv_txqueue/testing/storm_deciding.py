"""What may become of a transaction, step by step: one rule for each way in which it may go.

Of every undecided one the plugin's tables are asked after each step in which state it is
(`_now`), and every change must be allowed by the command of that step:

- active -> preparing: closed by its session or coordinator, while somebody takes part;
- active -> prepared, committed: the same while nobody takes part, and there is room;
- preparing -> prepared, committed: by the last yes of those who were in at the closing;
- prepared -> committed, rolled back: by the coordinator or an operator. By nothing else: a prepared
  transaction is a promise;
- anything else -> rolled back: for a cause that is true.

The ledger then commits it whole, or rolls it back whole; `storm_shown.py` compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raftkv_txqueue import commands
from raftkv_txqueue.commands import (
    CloseSession,
    CommitBranch,
    End,
    EndSession,
    Heuristic,
    PrepareBranch,
    PublishTo,
    RollbackBranch,
    Stage,
    Start,
    Sweep,
    Vote,
    size_of,
)
from raftkv_txqueue.refusals import REFUSALS

from .storm_ledger import UNDECIDED, Ledger, Step, Work
from .storm_rules import Found

__all__ = ["check_transitions", "is_doomed", "is_expired", "lacking", "too_large"]

PROMISE = "prepared is a promise"
ATOMIC = "all of a transaction or nothing"
DECIDED_BY = "transactions are decided by those who may"
TRUE = "answers are true"

#: Name of a refusal -> the cause that a rolled back transaction bears.
CODES = {each.__name__: each.code for each in REFUSALS}
#: Limits of one command or transaction: whether they are met is the plugin's own tests' business.
LIMITS = (
    "BatchTooLarge",
    "MessageTooLarge",
    "BadHeaders",
    "EmptyBatch",
    "TransactionTooLarge",
    "StagedFull",
    "TooManyTransactions",
)


def is_expired(work: Work, step: Step) -> bool:
    """Its time-out is over. One that is closed has none."""
    return work.state == "active" and 0 < work.deadline_ms <= step.now


def is_doomed(work: Work, step: Step, ledger: Ledger) -> bool:
    """A branch that can only be rolled back."""
    return work.doomed or any(
        not step.live(ledger.sessions[session]) for session in work.associations
    )


def lacking(work: Work, ledger: Ledger) -> list[str]:
    """Queues that have no room for it."""
    found = []
    for id_, (count, size) in ledger.net(work).items():
        book = ledger.by_id[id_]
        if book.overflow != "refuse":
            continue
        reserved, reserved_bytes = ledger.reserved.get(id_, (0, 0))
        if count > 0 and 0 < book.depth_max < len(book.items) + reserved + count:
            found.append(book.name)
        if size > 0 and 0 < book.bytes_max < book.bytes + reserved_bytes + size:
            found.append(book.name)
    return found


def too_large(work: Work | None, operations: Any, step: Step) -> list[str]:
    """Limits of one transaction and of one command that these operations exceed."""
    rows = sum(
        len(each.messages if isinstance(each, PublishTo) else each.seqs) for each in operations
    )
    before = 0 if work is None else len(work.operations)
    found = []
    if before + rows > step.settings["transaction_rows_max"]:
        found.append("TransactionTooLarge")
    if rows > commands.ROWS_MAX:
        found.append("BatchTooLarge")
    sizes = [
        size_of(message)
        for each in operations
        if isinstance(each, PublishTo)
        for message in each.messages
    ]
    if any(size > step.settings["message_bytes_max"] for size in sizes):
        found.append("MessageTooLarge")
    return found


# --- what became of them --------------------------------------------------------------------------


def check_transitions(step: Step, ledger: Ledger) -> Iterator[Found]:
    """Every undecided transaction is in the state of before, or went where it may."""
    for work in list(ledger.open):
        state, cause, reason = _now(work, step)
        if state == work.state:
            continue
        why = _forbidden(work, state, cause, step, ledger)
        if why is not None:
            check = PROMISE if work.state == "prepared" else DECIDED_BY
            yield check, f"{work} is {state} now ({cause}: {reason}): {why}"
            return
        ledger.moved.append(work)
        was = work.state
        work.cause, work.reason = cause, reason
        if was == "active" and state in ("preparing", "prepared", "committed"):
            yield from _close(work, step, ledger)
        if state == "preparing":
            work.votes = ledger.live_observers(step)
            work.deadline_ms = step.now + step.settings["prepare_timeout_ms"]
            work.state = state
        elif state == "prepared":
            work.promised, work.state, work.deadline_ms = step.index, state, 0
        elif state in ("committed", "heuristically committed"):
            ledger.commit(work, step, state)
        else:
            ledger.roll_back(work, step, state)
        yield from _answered(work, step)
    if isinstance(step.command, commands.Commit | commands.Rollback):
        life = ledger.sessions.get(step.command.session)
        row = step.tables.table("sessions").get(step.command.session)
        if life is not None and row is not None and row.decided != life.decided:
            yield TRUE, f"session {life.id} has decided {life.decided}, and its row says {row}"


def _now(work: Work, step: Step) -> tuple[str, str, str]:
    """(state, cause, reason), as the tables say."""
    tables = step.tables
    row = tables.table("transactions").get(work.number) if work.number else None
    if row is not None and row.state in (*UNDECIDED, "failed"):
        return row.state, row.cause, row.reason
    if row is not None and row.state.startswith("heuristically"):
        return row.state, "operator", row.reason
    if work.xid is None:
        return _fate(work, step)
    number = tables.table("decided").get(work.xid.key)
    decision = None if number is None else tables.table("decisions").get(number)
    if decision is None and len(tables.table("decisions")) >= step.settings["decisions_kept"]:
        # One entry has decided more than are kept.
        return "rolled back", "", "its decision is forgotten already"
    if decision is None or decision.index != step.index:
        return "vanished", "", f"its row is {row}, the last decision {decision}"
    return decision.verdict, decision.by, decision.reason


def _fate(work: Work, step: Step) -> tuple[str, str, str]:
    session = step.tables.table("sessions").get(work.session)
    if session is None:
        return "rolled back", "session", "its session is forgotten"
    if session.decided < work.counter:
        return "active", "", ""
    rollback = step.tables.table("rollbacks").get((work.session, work.counter))
    if rollback is None:
        return "committed", "", ""
    return "rolled back", rollback.cause, rollback.reason


def _is_its(work: Work, step: Step, *kinds: type) -> bool:
    """The command is one of these kinds, about this very transaction."""
    command = step.command
    if not isinstance(command, kinds):
        return False
    if work.xid is not None:
        return bool(getattr(command, "xid", None) == work.xid)
    return (getattr(command, "session", 0), getattr(command, "counter", 0)) == (
        work.session,
        work.counter,
    )


def _forbidden(work: Work, state: str, cause: str, step: Step, ledger: Ledger) -> str | None:
    """Why it may not go there; None: it may."""
    others = ledger.live_observers(step)
    voted = (
        work.state == "preparing" and isinstance(step.command, Vote) and all(work.votes.values())
    )
    closing = work.state == "active" and _closes(work, step)
    match state:
        case "preparing":
            if closing and others:
                return None
            return f"by {type(step.command).__name__}, {others} take part"
        case "prepared":
            if closing and not others and _is_its(work, step, PrepareBranch):
                return None
            if voted and not work.then_commit:
                return None
            return f"votes {work.votes}, {others} take part"
        case "committed" | "heuristically committed":
            return _not_committed(work, state, step, ledger, closing=closing, voted=voted)
        case "rolled back" | "failed" | "heuristically rolled back":
            return _not_rolled_back(work, state, cause, step, ledger)
    return "nobody knows that state"


def _closes(work: Work, step: Step) -> bool:
    if work.xid is None:
        return _is_its(work, step, commands.Commit)
    return _is_its(work, step, PrepareBranch) or (
        _is_its(work, step, CommitBranch) and step.command.one_phase
    )


def _not_committed(
    work: Work, state: str, step: Step, ledger: Ledger, *, closing: bool, voted: bool
) -> str | None:
    by_operator = _is_its(work, step, Heuristic) and step.command.commit
    if state == "heuristically committed":
        return None if work.state == "prepared" and by_operator else "no operator did"
    if work.state == "prepared":
        if _is_its(work, step, CommitBranch) and not step.command.one_phase:
            return None
        return f"by {type(step.command).__name__}"
    if voted:
        return None if work.then_commit else "it was only to be prepared"
    if not closing:
        return f"by {type(step.command).__name__}, votes {work.votes}"
    if isinstance(step.command, PrepareBranch) and work.operations:
        return "it is not empty, and was only to be prepared"
    if work.operations and ledger.live_observers(step):
        return f"{ledger.live_observers(step)} take part"
    return None


def _not_rolled_back(work: Work, state: str, cause: str, step: Step, ledger: Ledger) -> str | None:
    command = step.command
    if state == "heuristically rolled back":
        operator = _is_its(work, step, Heuristic) and not command.commit
        return None if work.state == "prepared" and operator else "no operator did"
    if _is_its(work, step, RollbackBranch, commands.Rollback):
        return None
    if work.state == "prepared":
        return f"by {type(command).__name__}"
    if work.state == "preparing":
        return _not_unprepared(work, cause, step)
    if is_expired(work, step) and isinstance(
        command, Sweep | Stage | Start | End | PrepareBranch | CommitBranch | commands.Commit
    ):
        return None
    if work.xid is not None:
        if not _closes(work, step):
            return f"by {type(command).__name__}"
        if is_doomed(work, step, ledger) or lacking(work, ledger):
            return None
        return "nothing was wrong with it"
    life = ledger.sessions[work.session]
    if isinstance(command, CloseSession | EndSession | Sweep) and not step.live(life):
        return None
    if _is_its(work, step, commands.Commit):
        return _no_problem(work, cause, step, ledger)
    return f"by {type(command).__name__}"


def _not_unprepared(work: Work, cause: str, step: Step) -> str | None:
    command = step.command
    if isinstance(command, Vote):
        return None if work.refused_by else "nobody has refused"
    if not isinstance(command, Sweep):
        return f"by {type(command).__name__}"
    gone = [life for life, voted in work.votes.items() if not voted and not step.lives(*life)]
    if not gone and step.now < work.deadline_ms:
        return f"{work.votes} all live, and have until {work.deadline_ms} ms, now {step.now}"
    # Whoever is gone is looked for before the deadlines are: nobody waits for votes of the dead.
    if cause == ("late" if gone else "participant"):
        return f"of {work.votes}, {gone or 'nobody'} left"
    return None


def _no_problem(work: Work, cause: str, step: Step, ledger: Ledger) -> str | None:
    """A commit that was not possible: whether the cause that it tells is true."""
    operations = step.command.operations
    wrong = [*ledger.problems(work.session, operations), *too_large(work, operations, step)]
    if cause in [CODES[each] for each in wrong]:
        return None
    if cause == CODES["QueueFull"]:
        return None if _lacks_with_tail(work, ledger, operations) else "there was room"
    if cause in [CODES[each] for each in LIMITS]:
        return None
    return f"only {wrong} was wrong"


def _lacks_with_tail(work: Work, ledger: Ledger, operations: Any) -> bool:
    """Whether a queue has no room for it and for what the commit brings besides."""
    grows = {id_: list(each) for id_, each in ledger.net(work).items()}
    for each in operations:
        book = ledger.queues.get(each.queue)
        if book is None:
            continue
        count, size = grows.setdefault(book.id, [0, 0])
        if isinstance(each, PublishTo):
            count += len(each.messages)
            size += sum(size_of(message) for message in each.messages)
        else:
            items = [book.items[seq] for seq in each.seqs if seq in book.items]
            count -= len(items)
            size -= sum(size_of(item.message) for item in items)
        grows[book.id] = [count, size]
    for id_, (count, size) in grows.items():
        book = ledger.by_id[id_]
        reserved, reserved_bytes = ledger.reserved.get(id_, (0, 0))
        if book.overflow != "refuse":
            continue
        if count > 0 and 0 < book.depth_max < len(book.items) + reserved + count:
            return True
        if size > 0 and 0 < book.bytes_max < book.bytes + reserved_bytes + size:
            return True
    return False


def _close(work: Work, step: Step, ledger: Ledger) -> Iterator[Found]:
    """Its content is fixed: there must be room, which is promised to it from now on."""
    if is_expired(work, step):
        yield DECIDED_BY, f"{work} is closed after its time: {work.deadline_ms} ms, now {step.now}"
    if is_doomed(work, step, ledger):
        yield DECIDED_BY, f"{work} is closed, and could only be rolled back"
    if full := lacking(work, ledger):
        yield "limits are kept", f"{work} is closed, and {full} are full"
    for id_, (count, size) in ledger.net(work).items():
        work.reserved[id_] = (max(0, count), max(0, size))


def _answered(work: Work, step: Step) -> Iterator[Found]:
    """A TX that this very command decided: the answer says so."""
    result = step.result
    if not _is_its(work, step, commands.Commit, commands.Rollback):
        return
    if work.xid is not None or not isinstance(result, commands.Decided):
        return
    told = (result.verdict, result.index)
    if told != (work.state, step.index):
        yield TRUE, f"{work}, and answered {result}"
    if work.state == "committed" and list(result.spans) != work.spans:
        yield "order is kept", f"{work} has published {work.spans}, and is answered {result.spans}"

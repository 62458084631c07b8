"""Stage, Commit, Rollback and Vote: what they do to a transaction's content, how they are answered.

What becomes of the transaction is not judged here but in `storm_deciding.py`, from its rows; here a
refusal has a true reason, a repeated command is answered as it was, and what is staged is the
ledger's from then on.
"""

from __future__ import annotations

from collections.abc import Iterator

from raftkv_txqueue import commands
from raftkv_txqueue.commands import Stage, Vote

from .storm_deciding import LIMITS, TRUE, is_doomed, is_expired, too_large
from .storm_ledger import Ledger, Step, Work
from .storm_rules import DECIDES, Found, owner_errors, refused

__all__ = ["transactional"]


def transactional(step: Step, ledger: Ledger) -> Iterator[Found]:
    """Stage, Commit, Rollback, Vote: what they do to the content, and whether they are answered."""
    command = step.command
    match command:
        case Stage(counter=0):
            yield from _stage_branch(step, ledger)
        case Stage():
            yield from _stage(step, ledger)
        case commands.Commit() | commands.Rollback():
            yield from _end(step, ledger)
        case Vote():
            yield from refused(step, [], ["NotAMember", "UnknownTransaction"])
            _hear(step, ledger)


def _hear(step: Step, ledger: Ledger) -> None:
    """A vote counts from who takes part, in the life in which it was asked."""
    command = step.command
    for work in ledger.open:
        if work.number != command.number or work.state != "preparing" or step.refusal is not None:
            continue
        if step.origin in work.votes:
            if command.yes:
                work.votes[step.origin] = True
            elif not work.votes[step.origin]:
                work.refused_by = step.origin[0]


def _stage_branch(step: Step, ledger: Ledger) -> Iterator[Found]:
    command = step.command
    must = owner_errors(step, ledger, command.session)
    work = ledger.attached(command.session)
    if work is None or work.state != "active":
        must.append("NotInBranch")
    may = ["WrongKind", *LIMITS]
    if work is not None and (is_doomed(work, step, ledger) or is_expired(work, step)):
        may += ["RollbackOnly", "NotInBranch", "IllegalState"]
    elif work is None or work.state != "active":
        may += ["RollbackOnly", "IllegalState"]
    must += ledger.problems(command.session, command.operations)
    yield from refused(step, [*must, *too_large(work, command.operations, step)], may)
    if step.refusal is None and work is not None:
        ledger.stage(work, command.operations)
        yield from _rows(step, work)


def _stage(step: Step, ledger: Ledger) -> Iterator[Found]:
    command = step.command
    must = owner_errors(step, ledger, command.session)
    life = ledger.sessions.get(command.session)
    work = ledger.tx(command.session, command.counter)
    may = [*LIMITS]
    if life is not None:
        if command.counter <= life.decided:
            must.append("TransactionOver")
            may.append("OutcomeForgotten")
        elif command.counter > life.decided + 1:
            must.append("UnknownTransaction")
        elif work is not None and work.state != "active":
            must.append("TransactionClosed")
        elif work is not None and is_expired(work, step):
            may += ["TransactionOver", "RollbackOnly"]
        if life.kind != "tx":
            must.append("WrongKind")
    must += ledger.problems(command.session, command.operations)
    yield from refused(step, [*must, *too_large(work, command.operations, step)], may)
    if step.refusal is not None:
        return
    if work is None:
        timeout_ms = step.settings["transaction_timeout_ms"]
        work = ledger.begin(
            Work(
                command.session,
                command.counter,
                None,
                number=step.result.number,
                deadline_ms=step.now + timeout_ms if timeout_ms else 0,
            )
        )
    ledger.stage(work, command.operations)
    yield from _rows(step, work)


def _rows(step: Step, work: Work) -> Iterator[Found]:
    if (step.result.number, step.result.rows) != (work.number, len(work.operations)):
        yield DECIDES, f"{work} is number {work.number}, and {step.result}"


def _end(step: Step, ledger: Ledger) -> Iterator[Found]:
    """Commit and Rollback of a TX; what becomes of it is judged as a transition."""
    command, result = step.command, step.result
    commits = isinstance(command, commands.Commit)
    operations = command.operations if commits else ()
    life = ledger.sessions.get(command.session)
    work = ledger.tx(command.session, command.counter)
    if life is None:
        yield from refused(step, ["SessionEnded", "UnknownTransaction"])
        return
    owner = owner_errors(step, ledger, command.session)
    if command.counter <= life.decided:
        yield from refused(step, [], [*owner, "OutcomeForgotten", "WrongKind"])
        if work is not None and step.refusal is None:
            yield from _again(step, work)
        return
    if work is not None and work.state == "preparing" and commits:
        yield from refused(step, [], owner)
        if step.refusal is None and getattr(result, "number", 0) != work.number:
            yield TRUE, f"{work} is being prepared, and {result}"
        return
    must = [*owner]
    if command.counter > life.decided + 1:
        must.append("UnknownTransaction")
    if life.kind != "tx" and work is None:
        must.append("WrongKind")
    yield from refused(step, must, [*LIMITS] if commits else [])
    if step.refusal is not None:
        return
    if work is None:
        work = ledger.begin(Work(command.session, command.counter, None))
    voting = isinstance(result, commands.Voting)
    if voting:
        work.number = result.number
        work.then_commit = True
    if not commits or (not voting and result.verdict != "committed"):
        return
    wrong = [
        *ledger.problems(command.session, operations),
        *too_large(work, operations, step),
    ]
    if wrong:
        yield DECIDES, f"{work} cannot be committed: {wrong}: {command}"
        return
    ledger.stage(work, operations)


def _again(step: Step, work: Work) -> Iterator[Found]:
    """One that is decided is answered as it was, as far as that is known."""
    result = step.result
    if result.verdict != work.state:
        yield TRUE, f"{work}, and asked again: {result}"
    elif result.index not in (0, work.decided) or list(result.spans) not in ([], work.spans):
        yield TRUE, f"{work} at {work.decided} with {work.spans}, and asked again: {result}"

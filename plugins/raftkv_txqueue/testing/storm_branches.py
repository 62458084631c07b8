"""What a branch answers, said anew: XA's statuses and errors for every state that it may be in.

A command about a branch is looked at twice. Before the ledger hears of it (`before_branch`), for
the state that it meets; afterwards (`check_status`), when what became of the branch is known. So no
status can be told that is not true, and no error that has no reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raftkv_txqueue.commands import (
    Answered,
    CommitBranch,
    End,
    ForgetBranch,
    Heuristic,
    PrepareBranch,
    RollbackBranch,
    SetTimeout,
    Start,
    Sweep,
    Voting,
)
from raftkv_txqueue.xa import XaStatus

from .storm_deciding import LIMITS, is_doomed, is_expired, lacking, too_large
from .storm_ledger import Ledger, Step, Work
from .storm_rules import DECIDES, Found, owner_errors, refused

__all__ = ["BRANCH_COMMANDS", "Branch", "before_branch", "check_forgotten", "check_status"]

BRANCH_COMMANDS = (
    Start,
    End,
    PrepareBranch,
    CommitBranch,
    RollbackBranch,
    ForgetBranch,
    SetTimeout,
    Heuristic,
)
OK, RBROLLBACK, RBTIMEOUT = XaStatus.OK, XaStatus.RBROLLBACK, XaStatus.RBTIMEOUT
HEURISTIC = {
    "heuristically committed": XaStatus.HEURCOM,
    "heuristically rolled back": XaStatus.HEURRB,
}
TRUE = "answers are true"


@dataclass(frozen=True, slots=True)
class Branch:
    """What a command met. `busy`: somebody live is still in it."""

    work: Work | None
    state: str = "unknown"
    busy: bool = False
    doomed: bool = False
    expired: bool = False
    full: bool = False
    empty: bool = False
    tx: bool = False


def before_branch(step: Step, ledger: Ledger) -> Branch:
    """Look before anything is done; and do what the command does to associations and content."""
    command = step.command
    work = ledger.branches.get(command.xid)
    if work is None:
        met = Branch(None)
    else:
        met = Branch(
            work,
            work.state,
            busy=any(step.live(ledger.sessions[each]) for each in work.associations),
            doomed=is_doomed(work, step, ledger),
            expired=is_expired(work, step) or (work.state == "failed" and work.cause == "timeout"),
            full=work.is_open and bool(lacking(work, ledger)),
            empty=not work.operations,
        )
    return met


def check_status(step: Step, ledger: Ledger, met: Branch) -> Iterator[Found]:
    """Whether it is refused rightly, and answered the truth."""
    match step.command:
        case Start():
            yield from _start(step, ledger, met)
        case End():
            yield from _end(step, ledger, met)
        case PrepareBranch():
            yield from _prepare(step, met)
        case CommitBranch():
            yield from _commit(step, met)
        case RollbackBranch():
            yield from _rollback(step, met)
        case ForgetBranch():
            must = ["UnknownXid"] if met.work is None else []
            if met.work is not None and met.state not in HEURISTIC:
                must.append("IllegalState")
            yield from refused(step, must)
            yield from _says(step, OK)
        case Heuristic():
            must = ["UnknownXid"] if met.work is None else []
            if met.work is not None and met.state != "prepared":
                must.append("IllegalState")
            yield from refused(step, must)
            yield from _says(step, OK)
        case SetTimeout():
            yield from _set_timeout(step, met)


def _says(step: Step, *statuses: int) -> Iterator[Found]:
    """The answer is one of these."""
    if step.refusal is None and not (
        isinstance(step.result, Answered) and step.result.status in statuses
    ):
        yield TRUE, f"{step.command} is answered {step.result}, not {[int(s) for s in statuses]}"


def _status(step: Step) -> int | None:
    return step.result.status if isinstance(step.result, Answered) else None


# --- sessions in branches -------------------------------------------------------------------------


def _start(step: Step, ledger: Ledger, met: Branch) -> Iterator[Found]:
    command, work = step.command, met.work
    must = owner_errors(step, ledger, command.session)
    life = ledger.sessions.get(command.session)
    if life is not None and life.kind != "dtx":
        must.append("CommandInvalid")
    if command.join and command.resume:
        must.append("CommandInvalid")
    if ledger.attached(command.session) is not None:
        must.append("CommandInvalid")
    if (command.timeout_ms or 0) > step.settings["dtx_timeout_max_ms"]:
        must.append("InvalidArgument")
    may = ["TooManyTransactions"]
    gone = met.expired or met.doomed or met.state == "failed"
    suspended = work is not None and work.associations.get(command.session) is True
    if work is None:
        must += ["UnknownXid"] * (command.join or command.resume)
    elif not (command.join or command.resume):
        must.append("NotAllowed")
    elif command.resume and not suspended:
        must.append("CommandInvalid")
        may.append("IllegalState")
    elif met.state not in ("active", "failed"):
        must.append("IllegalState")
    elif command.join and suspended:
        may += ["CommandInvalid", "IllegalState"]
    yield from refused(step, must, may)
    if step.refusal is not None:
        return
    yield from _says(step, *((OK, RBROLLBACK, RBTIMEOUT) if gone else (OK,)))
    if _status(step) != OK:
        return
    if work is None:
        timeout_ms = command.timeout_ms
        if timeout_ms is None:
            timeout_ms = step.settings["dtx_timeout_ms"]
        number = step.tables.table("branches").get(command.xid.key)
        if number is None:
            yield DECIDES, f"{command} was answered, and there is no such branch"
            return
        deadline_ms = step.now + timeout_ms if timeout_ms else 0
        work = ledger.begin(Work(0, 0, command.xid, number, deadline_ms=deadline_ms))
    work.associations[command.session] = False


def _end(step: Step, ledger: Ledger, met: Branch) -> Iterator[Found]:
    command, work = step.command, met.work
    must = owner_errors(step, ledger, command.session)
    if command.suspend and command.fail:
        must.append("CommandInvalid")
    inside = work is not None and command.session in work.associations
    if not inside:
        must.append("IllegalState")
    gone = met.doomed or met.expired or met.state == "failed"
    may = [*LIMITS]
    problems: list[str] = []
    if inside and not gone:
        problems = [
            *ledger.problems(command.session, command.operations),
            *too_large(work, command.operations, step),
        ]
        if command.operations and work is not None and work.associations[command.session]:
            may += ["NotInBranch", "IllegalState", "CommandInvalid"]
    elif inside:
        may += ["RollbackOnly", *ledger.problems(command.session, command.operations)]
    must += problems
    if work is None:
        must.append("UnknownXid")
    yield from refused(step, must, may)
    if step.refusal is not None or work is None:
        return
    rolled_back = gone or command.fail
    yield from _says(step, *((RBROLLBACK, RBTIMEOUT) if rolled_back else (OK,)))
    if not gone:
        ledger.stage(work, command.operations)
    if not rolled_back:
        if command.suspend:
            work.associations[command.session] = True
        else:
            del work.associations[command.session]
        return
    work.associations.pop(command.session, None)
    work.doomed = True


# --- coordinators ---------------------------------------------------------------------------------


def _prepare(step: Step, met: Branch) -> Iterator[Found]:
    work, result = met.work, step.result
    must = ["UnknownXid"] if work is None else []
    if met.busy and met.state == "active":
        must.append("IllegalState")
    busy = met.busy or met.state in HEURISTIC
    if work is not None and met.state == "preparing":
        busy = work.then_commit
    may = ["IllegalState"] if busy else []
    yield from refused(step, must, may)
    if step.refusal is not None or work is None:
        return
    if isinstance(result, Voting):
        if (work.state, result.number) != ("preparing", work.number):
            yield TRUE, f"{work} was {met.state}, and {result}"
    elif met.state == "active":
        expected: list[XaStatus] = [OK] if work.state == "prepared" else []
        if work.state in ("failed", "rolled back"):
            expected = [RBTIMEOUT] * met.expired + [RBROLLBACK] * (met.doomed or met.full)
        elif work.state == "committed":
            expected = [XaStatus.RDONLY] * met.empty
        yield from _says(step, *expected)
    elif met.state == "prepared":
        yield from _says(step, OK)
    elif met.state == "failed":
        yield from _says(step, RBTIMEOUT if met.expired else RBROLLBACK)
    elif met.state in HEURISTIC:
        yield from _says(step, HEURISTIC[met.state])


def _commit(step: Step, met: Branch) -> Iterator[Found]:
    work, result, one_phase = met.work, step.result, step.command.one_phase
    must = ["UnknownXid"] if work is None else []
    may: list[str] = []
    if work is not None:
        if met.busy and met.state in ("active", "failed"):
            (must if met.state == "active" else may).append("IllegalState")
        if met.state == "prepared" and one_phase:
            must.append("IllegalState")
        if met.state == "active" and not one_phase:
            must.append("IllegalState")
        if met.state in ("preparing", "failed", *HEURISTIC):
            may.append("IllegalState")
        if must and (met.expired or met.doomed):
            # Told that it is rolled back, or that the call was wrong: both are true.
            may, must = [*may, *must], []
    yield from refused(step, must, may)
    if step.refusal is not None or work is None:
        return
    if isinstance(result, Voting):
        if work.state != "preparing" or not work.then_commit:
            if met.state == "active" and work.state == "preparing":
                work.then_commit = True
            else:
                yield TRUE, f"{work} was {met.state}, and {result}"
    elif met.state == "prepared":
        yield from _says(step, OK)
        if work.state != "committed":
            yield "prepared is a promise", f"{work} was to be committed: {result}"
    elif met.state == "active":
        expected: list[XaStatus] = [OK] if work.state == "committed" else []
        if work.state in ("failed", "rolled back"):
            expected = [RBTIMEOUT] * met.expired + [RBROLLBACK] * (met.doomed or met.full)
        yield from _says(step, *expected)
    elif met.state == "failed":
        yield from _says(step, RBTIMEOUT if met.expired else RBROLLBACK)
    elif met.state in HEURISTIC:
        yield from _says(step, HEURISTIC[met.state])


def _rollback(step: Step, met: Branch) -> Iterator[Found]:
    work = met.work
    must = ["UnknownXid"] if work is None else []
    if met.busy and met.state == "active":
        must.append("IllegalState")
        if met.expired or met.doomed:
            must, may = [], ["IllegalState"]
        else:
            may = []
    else:
        may = ["IllegalState"] if met.busy else []
    yield from refused(step, must, may)
    if step.refusal is not None or work is None:
        return
    if met.state in HEURISTIC:
        yield from _says(step, HEURISTIC[met.state])
    elif met.expired:
        yield from _says(step, RBTIMEOUT)
    else:
        yield from _says(step, OK)
        if work.is_open or work.state == "committed":
            yield TRUE, f"{work} was to be rolled back: {step.result}"


def _set_timeout(step: Step, met: Branch) -> Iterator[Found]:
    command, work = step.command, met.work
    must = ["UnknownXid"] if work is None else []
    if work is not None and met.state != "active":
        must.append("IllegalState")
    if command.timeout_ms > step.settings["dtx_timeout_max_ms"]:
        must.append("InvalidArgument")
    may = ["IllegalState"] if met.expired else []
    yield from refused(step, must, may)
    if step.refusal is not None or work is None:
        return
    yield from _says(step, OK, *([RBTIMEOUT] if met.expired else []))
    if _status(step) == OK:
        work.deadline_ms = step.now + command.timeout_ms if command.timeout_ms else 0


# --- xids -----------------------------------------------------------------------------------------


def check_forgotten(step: Step, ledger: Ledger) -> Iterator[Found]:
    """A xid is known until its branch is decided and its coordinator knows."""
    if not isinstance(step.command, (*BRANCH_COMMANDS, Sweep)):
        rows = None if len(step.tables.table("branches")) == len(ledger.branches) else True
        if rows is None:
            return
    rows = step.tables.table("branches")
    for xid, work in list(ledger.branches.items()):
        if xid.key in rows:
            if work.state in ("committed", "rolled back"):
                yield DECIDES, f"{work} is over, and its xid is not free"
            continue
        if work.state in HEURISTIC and not isinstance(step.command, ForgetBranch):
            yield "prepared is a promise", f"{work} is forgotten by {step.command}"
        elif work.is_open:
            yield "prepared is a promise", f"{work} is gone"
        del ledger.branches[xid]
    if len(rows) != len(ledger.branches):
        yield DECIDES, f"there are {len(rows)} branches, and {len(ledger.branches)} were started"

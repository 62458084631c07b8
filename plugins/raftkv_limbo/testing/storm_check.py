"""What the log of the limbo may do, as pure functions of one step of it.

Rules of this file. It does no work of its own in a run: `storm_log.py` writes each step down, this
judges it, so that each check can be shown to fail (`tests/plugins/raftkv_limbo/
test_storm_check.py`). It asks the code under test for nothing: what a quorum is (storm_quorum.py),
what may enter (storm_submit.py), what is confirmed, rolled back, owned: all of it is said here once
more, in other words, on the `Ledger`'s own copy of the world.

`check_step` first lets the ledger hear what nodes say (acknowledgements, zones, approvals), then
finds the `Effect` that the step must have, and then compares the plugin's tables with that.

The rules of the log:
- Positions are +1, without holes. A position has one verdict, and keeps it.
- Rolled back is a whole end of the queue, newest first, and only by a veto, a request, a promotion
  or a demotion that fits the present term. Nothing that has its quorum is rolled back.
- Confirmed is the longest beginning of the queue in which all sync ones have their quorum; that
  holds after every step, whatever it was: nothing waits that could be confirmed.
- Rows are those of confirmed transactions, in the order of their positions.
- Owner and term change by a promotion or a demotion only, and the term then by one.
- What was confirmed by an entry has a record of that entry, and of what completed the quorum.
- A synchronous space is dropped, or made asynchronous, by the owner in its term only; the drop has
  a position, and waits for its quorum.
- A refusal has a true reason, and what has one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raftkv.plugin import MemberChange, SettingChange
from raftkv_limbo.commands import (
    FORMAT_CONFIRMATIONS,
    Ack,
    AlterFenced,
    AlterSpace,
    CreateSpace,
    Declare,
    Demote,
    DropFenced,
    DropSpace,
    Promote,
    RollBack,
    Submit,
    Sweep,
    Veto,
)

from .storm_ledger import Effect, Ledger, NewVoters, Seen, Step
from .storm_quorum import Basis, has_quorum
from .storm_submit import Batch, submitted

__all__ = ["check_step"]


def check_step(step: Step, ledger: Ledger) -> tuple[Effect, list[tuple[str, str]]]:
    """What the step must do, and (check, what is wrong) of all that it does otherwise.

    The ledger hears what is said in it; it is for the caller to `note` the effect.
    """
    effect = Effect()
    found: list[tuple[str, str]] = []
    effect.record = _reason(step, ledger)
    _hear(step, ledger)
    found += [("the log decides rightly", each) for each in _decide(step, ledger, effect)]
    # Newest first; what is still in the queue then may be confirmed by whatever was said.
    taken = set(effect.rolled_back)
    entered = {each.number: each for each in effect.entered}
    waiting = [number for number in ledger.queue if number not in taken]
    waiting += [n for n, each in entered.items() if n not in effect.confirmed]
    basis = Basis(step.members, step.voters, step.settings)
    for number in waiting:
        position = entered.get(number) or ledger.positions[number]
        if position.sync and not has_quorum(number, ledger, basis):
            break
        effect.confirmed.append(number)
    effect.confirmed.sort()
    settled = [entered.get(number) or ledger.positions[number] for number in effect.confirmed]
    dropped = {each.drops for each in settled if each.drops}
    if dropped:
        spaces = ledger.spaces if effect.spaces is None else effect.spaces
        effect.spaces = {name: sync for name, sync in spaces.items() if name not in dropped}
    found += _compare(step, ledger, effect)
    where = f"index {step.index}, {type(step.command).__name__}"
    return effect, [(check, f"{where}: {each}") for check, each in found]


# --- what nodes say -------------------------------------------------------------------------------


def _hear(step: Step, ledger: Ledger) -> None:
    """Acknowledgements and declarations count as of this very step."""
    command = step.command
    if step.refusal is not None or step.origin is None:
        return
    node, life = step.origin
    if isinstance(command, Ack):
        upto = min(command.upto, ledger.last)
        ledger.acks[node] = (life, max(upto, _told(ledger.acks.get(node), life)))
        declared = ledger.declared.get(node, (0, ()))
        for name in command.validators:
            if declared[0] == life and name in declared[1]:
                key = (name, node)
                told = max(upto, _told(ledger.approvals.get(key), life))
                ledger.approvals[key] = (life, told)
    if isinstance(command, Declare):
        ledger.zones[node] = (life, command.zone)
        for key in [each for each in ledger.approvals if each[1] == node]:
            if key[0] not in command.validators:
                del ledger.approvals[key]
        ledger.declared[node] = (life, tuple(command.validators))


def _told(before: tuple[int, int] | None, life: int) -> int:
    return before[1] if before is not None and before[0] == life else 0


# --- what the step must do ------------------------------------------------------------------------


def _decide(step: Step, ledger: Ledger, effect: Effect) -> Iterator[str]:
    """Fill `effect` but for what is confirmed by a quorum; tell what is wrong with the answer."""
    command = step.command
    match command:
        case Submit():
            yield from submitted(step, ledger, effect)
        case Promote() | Demote():
            yield from _change_owner(step, ledger, effect)
        case RollBack():
            yield from _roll_back(step, ledger, effect)
        case Veto():
            yield from _veto(step, ledger, effect)
        case CreateSpace() | AlterSpace() | DropSpace() | AlterFenced() | DropFenced():
            yield from _spaces(step, ledger, effect)
        case Ack() | Declare() | Sweep() | MemberChange() | SettingChange() | NewVoters():
            if step.refusal is not None:
                yield f"refused: {step.refusal!r}"
        case _:
            yield f"nobody knows the command {command}"


def _refused(step: Step, reasons: dict[str, Any]) -> Iterator[str]:
    """A refusal must have one of these reasons, and none if there is none."""
    refusal = step.refusal
    if refusal is None:
        if reasons:
            yield f"is not refused, although {reasons}"
    elif type(refusal).__name__ not in reasons:
        yield f"is refused as {refusal!r}, and only {reasons} is true"
    elif reasons[type(refusal).__name__] not in (None, refusal.args):
        yield f"is refused as {refusal!r}, not with {reasons[type(refusal).__name__]}"


def _take_back(step: Step, ledger: Ledger, effect: Effect, first: int) -> None:
    """Everything pending from there on, newest first, for the reason that the log has kept."""
    effect.rolled_back = [number for number in reversed(ledger.queue) if number >= first]
    if effect.rolled_back:
        run = step.after.run_of(effect.rolled_back[0])
        effect.reason = "" if run is None else run.reason
        effect.by = "" if run is None else run.node


def _change_owner(step: Step, ledger: Ledger, effect: Effect) -> Iterator[str]:
    command, origin = step.command, step.origin
    assert origin is not None
    promotes = isinstance(command, Promote)
    reasons: dict[str, Any] = {}
    if command.expected_term != ledger.term:
        reasons["InterferingPromote"] = (ledger.owner, ledger.term)
    if not promotes and ledger.owner != origin[0]:
        reasons["NotOwner"] = (ledger.owner, ledger.term)
    holds_it = (ledger.owner, ledger.incarnation) == origin
    head = ledger.queue[0] if ledger.queue else 0
    if head and head <= command.upto:
        reasons["NotSettled"] = (head, command.upto)
    if promotes and holds_it and "InterferingPromote" not in reasons:
        # Nothing changes, so there is nothing to be settled.
        reasons.pop("NotSettled", None)
        if step.result is None or step.result.term != ledger.term or step.result.rolled_back:
            yield f"the owner promotes itself, and is answered {step.result or step.refusal!r}"
        return
    yield from _refused(step, reasons)
    if step.refusal is not None:
        return
    _take_back(step, ledger, effect, 0)
    owner = origin if promotes else ("", 0)
    effect.owner = (*owner, ledger.term + 1)
    if step.result.term != ledger.term + 1 or step.result.rolled_back != len(effect.rolled_back):
        yield f"answers {step.result}, and rolls back {effect.rolled_back} in {ledger.term + 1}"


def _roll_back(step: Step, ledger: Ledger, effect: Effect) -> Iterator[str]:
    command = step.command
    position = ledger.positions.get(command.position)
    reasons: dict[str, Any] = {}
    if command.term != ledger.term:
        reasons["StaleTerm"] = (ledger.term,)
    if position is None or command.position <= step.before.state.forgotten:
        reasons["UnknownPosition"] = (command.position,)
    if position is not None and position.fate == "confirmed":
        reasons["AlreadyConfirmed"] = (command.position,)
    if position is not None and position.fate == "rolled back":
        reasons["AlreadyRolledBack"] = (command.position,)
    yield from _refused(step, reasons)
    if step.refusal is not None:
        return
    _take_back(step, ledger, effect, command.position)
    told = (step.result.first, step.result.last, step.result.entries)
    numbers = effect.rolled_back or [0]
    if told != (numbers[-1], numbers[0], len(effect.rolled_back)):
        yield f"answers {step.result}, and rolls back {effect.rolled_back}"
    if command.reason not in effect.reason:
        yield f"the reason is {command.reason!r}, and {effect.reason!r} is kept"


def _veto(step: Step, ledger: Ledger, effect: Effect) -> Iterator[str]:
    command, origin = step.command, step.origin
    assert origin is not None
    declared = ledger.declared.get(origin[0], (0, ()))
    reasons: dict[str, Any] = {}
    if (
        command.validator not in step.settings["quorum_validators"]
        or declared[0] != origin[1]
        or command.validator not in declared[1]
    ):
        reasons["NotAValidator"] = (command.validator,)
    yield from _refused(step, reasons)
    if step.refusal is not None:
        return
    position = ledger.positions.get(command.position)
    verdict = "unknown" if position is None else position.fate
    if position is not None and position.fate == "pending":
        verdict = "rolled back" if position.sync else "unknown"
        if position.sync:
            _take_back(step, ledger, effect, command.position)
            words = (command.validator, origin[0], command.reason)
            if any(word not in effect.reason for word in words):
                yield f"the reason is {effect.reason!r}, without {words}"
    forgotten = command.position <= step.before.state.forgotten
    if step.result.verdict != verdict and not (forgotten and step.result.verdict == "unknown"):
        yield f"answers {step.result.verdict}, and {command.position} is {verdict}"


def _spaces(step: Step, ledger: Ledger, effect: Effect) -> Iterator[str]:
    command = step.command
    batch = Batch(step, ledger, effect)
    yield from _refused(step, dict(_why_no_space(step, ledger, batch)))
    if step.refusal is not None:
        return
    if isinstance(command, DropFenced) and ledger.spaces[command.name]:
        batch.enter_drop(command.name)
        [entered] = effect.entered
        told = (step.result.position, step.result.confirmed, step.result.index)
        should = (entered.number, bool(effect.confirmed), step.index)
        if told != should:
            yield f"answers {step.result}, not {should}"
        return
    effect.spaces = dict(ledger.spaces)
    if isinstance(command, DropSpace | DropFenced):
        del effect.spaces[command.name]
    else:
        effect.spaces[command.name] = command.sync


def _why_no_space(step: Step, ledger: Ledger, batch: Batch) -> Iterator[tuple[str, Any]]:
    """Every reason for which a space may not be made, altered or dropped."""
    command = step.command
    if isinstance(command, AlterFenced | DropFenced) and step.version < FORMAT_CONFIRMATIONS:
        yield "UnknownCommand", None
        return
    if isinstance(command, CreateSpace):
        if command.name in ledger.spaces:
            yield "SpaceExists", (command.name,)
        elif len(ledger.spaces) >= step.settings["spaces_max"]:
            yield "TooManySpaces", None
        return
    if command.name not in ledger.spaces:
        yield "UnknownSpace", (command.name,)
        return
    sync = ledger.spaces[command.name]
    drops = isinstance(command, DropSpace | DropFenced)
    weakens = sync and (drops or not command.sync)
    if isinstance(command, DropSpace | AlterSpace):
        if weakens and step.version >= FORMAT_CONFIRMATIONS:
            yield "StaleTerm", (ledger.term,)
    elif command.name in ledger.dropping():
        yield "DropPending", (command.name, ledger.dropping()[command.name])
    elif weakens and drops:
        yield from batch.drop_reasons()
    elif weakens:
        yield from batch.who_reasons()
    waiting = (ledger.positions[number] for number in ledger.queue)
    if drops and any(command.name == space for each in waiting for space, _, _ in each.writes):
        yield "SpaceBusy", None


# --- what the plugin did --------------------------------------------------------------------------


def _compare(step: Step, ledger: Ledger, effect: Effect) -> Iterator[tuple[str, str]]:
    """The tables after the step against the ledger and the effect, check by check."""
    after = step.after
    for each in _positions(after, ledger, effect):
        yield "positions are given in order", each
    for each in _verdicts(step, ledger, effect):
        yield "one verdict for each position", each
    for each in _rows(after, ledger, effect):
        yield "rows are what was confirmed", each
    state = after.state
    owner = effect.owner or (ledger.owner, ledger.incarnation, ledger.term)
    if (state.owner, state.incarnation, state.term) != owner:
        text = f"{state.owner} life {state.incarnation} in term {state.term}, not {owner}"
        yield "one owner a term", text
    spaces = ledger.spaces if effect.spaces is None else effect.spaces
    if {name: each.sync for name, each in after.spaces.items()} != spaces:
        yield "the log decides rightly", f"the spaces are {dict(after.spaces)}, not {spaces}"


def _positions(after: Seen, ledger: Ledger, effect: Effect) -> Iterator[str]:
    last = ledger.last + len(effect.entered)
    if after.state.last != last:
        yield f"the last position is {after.state.last}, not {last}"
    for each in effect.entered:
        entry = after.entries.get(each.number)
        if entry is None:
            if each.number not in effect.confirmed:
                yield f"{each} has no entry"
            continue
        writes = tuple((write.space, write.key, write.value) for write in entry.writes)
        kept = (entry.sync, entry.independent, writes, entry.term, entry.index, entry.bytes)
        should = (each.sync, each.independent, each.writes, each.term, each.index, each.bytes)
        if kept != should:
            yield f"{each} is kept as {kept}, not {should}"


def _verdicts(step: Step, ledger: Ledger, effect: Effect) -> Iterator[str]:
    """Newly rolled back, newly confirmed and still pending: each what it must be."""
    after = step.after
    for first, run in after.rollbacks.items():
        if step.before.rollbacks.get(first) != run:
            lost = set(range(first, run.last + 1)) - set(effect.rolled_back)
            for number in sorted(lost):
                known = ledger.positions.get(number)
                yield f"{known or number} is rolled back: {run.reason}"
            if run.index != step.index:
                yield f"the run from {first} is of index {run.index}"
    for number in effect.rolled_back:
        run_of = after.run_of(number)
        if run_of is None:
            yield f"{ledger.positions[number]} is not rolled back, but {after.fate(number)}"
        elif (run_of.reason, run_of.node) != (effect.reason, effect.by):
            yield f"{number} is rolled back for {run_of.reason!r}, not {effect.reason!r}"
    for first in step.before.rollbacks.keys() - after.rollbacks.keys():
        if step.before.rollbacks[first].last > after.state.forgotten:
            yield f"the rollback of {first} is gone, and not said to be forgotten"
    for number in effect.confirmed:
        if after.fate(number) not in ("confirmed", "forgotten"):
            yield f"{number} has its quorum and all before it, and is {after.fate(number)}"
    left = [n for n in ledger.queue if n not in effect.rolled_back and n not in effect.confirmed]
    left += [each.number for each in effect.entered if each.number not in effect.confirmed]
    for number in left:
        if after.fate(number) != "pending":
            yield f"{number} waits for its quorum, and is {after.fate(number)}"
    for number in effect.confirmed:
        yield from _record(step, effect, number)
    state = after.state
    if (state.pending, state.head) != (len(left), min(left, default=0)):
        yield f"{left} are pending, and the state says {state.pending} from {state.head}"
    if state.forgotten > step.before.state.forgotten and any(n <= state.forgotten for n in left):
        yield f"up to {state.forgotten} is forgotten, and {left} are pending"


def _record(step: Step, effect: Effect, number: int) -> Iterator[str]:
    """What is kept of a confirmation: this entry, and what of it completed the quorum."""
    kept = step.after.confirmations
    found = next((run for at, run in kept.items() if at <= number <= run.last), None)
    if step.version < FORMAT_CONFIRMATIONS:
        if kept:
            yield f"{kept} are kept before format {FORMAT_CONFIRMATIONS}"
    elif found is None:
        if len(kept) < step.settings["rollbacks_kept"]:
            yield f"{number} is confirmed, and no record of that is kept"
    elif (found.index, found.at_ms, found.cause, found.by, found.upto) != effect.record:
        yield f"{number} is confirmed by {effect.record}, and {found} is kept"


def _reason(step: Step, ledger: Ledger) -> tuple[int, int, str, str, int]:
    """Index, time and cause of what this step confirms."""
    command, sender = step.command, "" if step.origin is None else step.origin[0]
    match command:
        case Ack():
            cause = ("ack", sender, min(command.upto, ledger.last))
        case Declare():
            cause = ("declare", sender, 0)
        case MemberChange():
            member = command.new or command.old
            cause = ("member", "" if member is None else member.name, 0)
        case NewVoters():
            cause = ("voters", "", 0)
        case SettingChange():
            cause = ("setting", command.key, 0)
        case _:
            cause = ("submit", sender, 0)
    return (step.index, step.now, *cause)


def _rows(after: Seen, ledger: Ledger, effect: Effect) -> Iterator[str]:
    rows = dict(ledger.rows)
    by_number = {each.number: each for each in effect.entered}
    for number in effect.confirmed:
        position = by_number.get(number) or ledger.positions[number]
        for space, key, value in position.writes:
            if value is None:
                rows.pop((space, key), None)
            else:
                rows[(space, key)] = (value, number)
    if effect.spaces is not None:
        rows = {key: row for key, row in rows.items() if key[0] in effect.spaces}
    seen = after.confirmed_rows()
    for name in {**rows, **seen}:
        if rows.get(name) != seen.get(name):
            yield f"{name} is {seen.get(name)}, not {rows.get(name)}"

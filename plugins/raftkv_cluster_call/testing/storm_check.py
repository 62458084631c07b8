"""What the log of cluster calls may do, as pure functions of one step of it.

Rules of this file. It does no work of its own in a run: `storm_log.py` writes each step down, this
judges it, so that each check can be shown to fail (`tests/plugins/raftkv_cluster_call/
test_storm_check.py`). It asks the code under test for nothing: who may decide an id, who moves a
cursor and how far, whose turn it is, all of it is said here once more, in other words. Every
function returns the violations in words, and nothing when all is well.

A `Step` is one command, or one change of the members, as it was applied for the first time
anywhere, with the plugin's whole state before and after it. Steps come in the order of the log, so
that the `Ledger` (storm_ledger.py), which keeps what steps did, knows at any moment of every id
what became of it, also when its record was trimmed long ago.

The rules of the log:
- Ids are +1, without holes; at most one is reserved, the last one; what is decided stays so.
- An id is committed by its owner only (node, incarnation and ticket), after all ids before it. It
  is aborted by its owner, by the end of its owner's life, by its deadline, or because its owner is
  stuck; where its function may have run without its owner's word, a lost effect stays behind.
- Turns are given in the order of tickets. Who is passed over was dead, late, stuck or no part.
- A cursor moves over one committed id at a time, by its own node's word, and over aborted ones.
  Besides, there are the explicit moves: a sync, a force, a reset.
- A record is deleted when every cursor has passed it, or when those that did not were put into a
  gap that is to be synced beyond it.

`storm_runs.py` judges what the nodes do outside of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raftkv.plugin import MemberChange
from raftkv_cluster_call.commands import (
    Abort,
    Acknowledge,
    Advance,
    Behind,
    Commit,
    Committed,
    Cursor,
    Expire,
    Failing,
    Force,
    Granted,
    Join,
    Leave,
    Left,
    LostEffect,
    Queued,
    Record,
    Reservation,
    Reserve,
    Reset,
    Skip,
    StaleView,
    Sync,
    Trim,
    Withdraw,
)

__all__ = ["STUCK", "State", "Step", "check_step", "follows"]

# Failed tries after which a node counts as stuck; the seed's successors give up after ten.
STUCK = 10
# Skipped ids that a cursor keeps.
SKIPPED_KEPT = 10
# Causes of an abort after which the function may have run, and nobody says so.
SILENT = ("expired", "initiator_ended")


@dataclass(frozen=True, slots=True)
class State:
    """The plugin's tables. `due` is by ticket."""

    last: int = 0
    granted: int = 0
    # Up to here records may be deleted however few they are.
    reset: int = 0
    records: Mapping[int, Record] = field(default_factory=dict)
    cursors: Mapping[str, Cursor] = field(default_factory=dict)
    queue: Mapping[int, Reservation] = field(default_factory=dict)
    due: Mapping[int, int] = field(default_factory=dict)
    left: Mapping[str, Left] = field(default_factory=dict)
    lost: Mapping[tuple[str, int], LostEffect] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One command or `MemberChange` as applied. A refused one has `after` equal to `before`."""

    index: int
    serial: int
    now: int
    command: Any
    # (node, incarnation) of the session that sent it; None for a change of members.
    origin: tuple[str, int] | None
    # Of the nodes that are up, the incarnation; of all members, the role. After the step.
    lives: Mapping[str, int]
    roles: Mapping[str, str]
    settings: Mapping[str, Any]
    before: State
    after: State
    result: Any = None
    refusal: str = ""

    @property
    def name(self) -> str:
        return type(self.command).__name__

    def by(self, node: str) -> bool:
        return self.origin is not None and self.origin[0] == node


def follows(cursor: Cursor | None) -> bool:
    return cursor is not None and cursor.state == "following"


def needs_from(cursor: Cursor) -> int:
    """The node needs the records behind this id."""
    return cursor.id if follows(cursor) else cursor.as_of


def check_step(step: Step) -> list[str]:
    """Whether the step did what it may, and answered what it did."""
    if step.refusal:
        return []
    found = [
        *_ids(step),
        *_records(step),
        *_trimmed(step),
        *_queue(step),
        *_grant(step),
        *_cursors(step),
        *_lost(step),
        *_answer(step),
    ]
    return [f"index {step.index}, {step.name}: {each}" for each in found]


# --- ids and records ------------------------------------------------------------------------------


def _ids(step: Step) -> Iterable[str]:
    before, after = step.before, step.after
    new = sorted(after.records.keys() - before.records.keys())
    if new != list(range(before.last + 1, after.last + 1)):
        yield f"ids {new} are new; the last one went from {before.last} to {after.last}"
    if len(new) > 1:
        yield f"took {len(new)} ids at once"
    kept = sorted(after.records)
    if kept and kept != list(range(kept[0], after.last + 1)):
        yield f"a hole in {kept}, the last of which is to be {after.last}"
    reserved = {id_: each.ticket for id_, each in after.records.items() if each.state == "reserved"}
    if reserved != ({after.last: after.granted} if after.granted else {}):
        yield f"reserved are {reserved}, granted is ticket {after.granted}, last {after.last}"


def _records(step: Step) -> Iterable[str]:
    for id_, new in step.after.records.items():
        old = step.before.records.get(id_)
        if old is None or old == new:
            continue
        if old.state != "reserved":
            yield f"id {id_} was {old.state}, and is {new.state} {new.cause}"
            continue
        identity = (old.function, old.version, old.initiator, old.incarnation, old.ticket)
        if identity != (new.function, new.version, new.initiator, new.incarnation, new.ticket):
            yield f"id {id_} became another call: {old.function} of {old.initiator}"
        if new.state == "committed":
            yield from _committed(step, id_, old)
        elif new.state == "aborted":
            yield from _aborted(step, id_, old, new)


def _committed(step: Step, id_: int, old: Record) -> Iterable[str]:
    command = step.command
    owned = isinstance(command, Commit) and (command.id, command.ticket) == (id_, old.ticket)
    if not owned or step.origin != (old.initiator, old.incarnation):
        yield f"{step.origin} committed id {id_} of {old.initiator} life {old.incarnation}"
    cursor = step.before.cursors.get(old.initiator)
    if cursor is None or not follows(cursor) or not _only_aborted(step, cursor.id + 1, id_):
        yield f"id {id_} is committed by a node that is at {cursor}"


def _aborted(step: Step, id_: int, old: Record, new: Record) -> Iterable[str]:
    command, cause = step.command, new.cause.partition(":")[0]
    owner = (old.initiator, old.incarnation)
    dead = step.lives.get(old.initiator) != old.incarnation
    match command:
        case Abort():
            right = step.origin == owner and command.ticket == old.ticket and cause not in SILENT
        case Withdraw():
            right = step.origin == owner and command.ticket == old.ticket
            right = right and cause in ("withdrawn", "stale_view")
        case Expire():
            right = cause == "expired" and step.before.due.get(old.ticket, step.now) <= step.now
        case MemberChange():
            right = cause == "initiator_ended" and dead
        case Failing() | Join() | Trim():
            right = cause == "stale_view" and not _able(step, old.initiator)
        case Leave():
            right = command.node == old.initiator
        case _:
            right = False
    if not right:
        yield f"{step.origin} aborted id {id_} of {owner} for {new.cause!r}"


def _only_aborted(step: Step, first: int, end: int) -> bool:
    records = step.after.records
    return all(id_ in records and records[id_].state == "aborted" for id_ in range(first, end))


def _trimmed(step: Step) -> Iterable[str]:
    before, after = step.before, step.after
    gone = sorted(before.records.keys() - after.records.keys())
    if not gone or isinstance(step.command, Reset):
        return
    if not isinstance(step.command, Trim):
        yield f"deleted the records {gone}"
    upto = gone[-1]
    for node, cursor in after.cursors.items():
        if needs_from(cursor) < upto:
            yield f"deleted the record {upto}, which {node} at {cursor} still needs"
    floor = min(map(needs_from, after.cursors.values()), default=0)
    surplus = min(
        floor - step.settings["history_max"],
        max(after.records, default=0) - step.settings["history_hard_max"],
    )
    completed = [id_ for id_, each in after.records.items() if each.state == "committed"]
    if sum(id_ <= floor for id_ in completed) >= step.settings["history_max"]:
        surplus = upto
    if upto > max(surplus, min(floor, after.reset)):
        yield f"deleted {gone} of those that were completed up to {floor}"


# --- turns ----------------------------------------------------------------------------------------


def _able(step: Step, node: str) -> bool:
    """Whether the node takes part and is not stuck, after the step."""
    cursor = step.after.cursors.get(node)
    return cursor is not None and follows(cursor) and cursor.attempts < STUCK


def _eligible(step: Step, waiting: Reservation) -> bool:
    alive = step.lives.get(waiting.node) == waiting.incarnation
    return alive and waiting.deadline_ms > step.now and _able(step, waiting.node)


def _queue(step: Step) -> Iterable[str]:
    before, after, command = step.before, step.after, step.command
    for ticket in after.queue.keys() - before.queue.keys():
        waiting = after.queue[ticket]
        if not isinstance(command, Reserve) or ticket != step.serial:
            yield f"put ticket {ticket} into the queue"
        elif (waiting.node, waiting.incarnation) != step.origin:
            yield f"queued {waiting.node} life {waiting.incarnation} for {step.origin}"
    for ticket in sorted(before.queue.keys() - after.queue.keys()):
        waiting = before.queue[ticket]
        if ticket == after.granted or not _eligible(step, waiting):
            continue
        owner = (waiting.node, waiting.incarnation)
        withdrawn = isinstance(command, Withdraw) and command.ticket == ticket
        if not (withdrawn and step.origin == owner):
            yield f"dropped ticket {ticket} of {waiting.node}, whose turn would have come"
    lacking = (after.queue.keys() | ({after.granted} - {0})) ^ after.due.keys()
    if lacking:
        yield f"tickets {sorted(lacking)} have a deadline and no place, or a place and no deadline"


def _grant(step: Step) -> Iterable[str]:
    before, after, command = step.before, step.after, step.command
    if not after.granted or after.granted == before.granted:
        return
    record = after.records.get(after.last)
    if record is None or record.initiator not in after.cursors:
        yield f"ticket {after.granted} was granted to nobody that takes part"
        return
    if isinstance(command, Reserve) and after.granted == step.serial:
        cursor = before.cursors.get(record.initiator)
        if before.granted or after.queue:
            yield f"granted ticket {after.granted} at once, past those that wait"
        if cursor is None or not follows(cursor):
            yield f"granted at once to {record.initiator} at {cursor}"
        elif not before.queue and {cursor.id, command.expected_last} != {before.last}:
            yield f"granted at once to {record.initiator} at {cursor}; the last id is {before.last}"
        if (record.initiator, record.incarnation) != step.origin:
            yield f"granted at once to {record.initiator} what {step.origin} asked for"
        return
    waiting = before.queue.get(after.granted)
    if waiting is None:
        yield f"granted ticket {after.granted}, which did not wait"
        return
    if not _eligible(step, waiting):
        yield f"granted ticket {after.granted} to {waiting.node}, which is dead, late or stuck"
    earlier = [ticket for ticket in after.queue if ticket < after.granted]
    if earlier:
        yield f"granted ticket {after.granted} before {earlier}"
    said = (waiting.node, waiting.incarnation, waiting.function, waiting.version, waiting.args)
    if said != (
        record.initiator,
        record.incarnation,
        record.function,
        record.version,
        record.args,
    ):
        yield f"granted ticket {after.granted} as another call"


# --- cursors --------------------------------------------------------------------------------------


def _cursors(step: Step) -> Iterable[str]:
    before, after = step.before.cursors, step.after.cursors
    for node in sorted(before.keys() | after.keys()):
        old, new = before.get(node), after.get(node)
        if old != new:
            for each in _changed(step, node, old, new):
                yield f"{each} ({node} from {old} to {new})"
    for node, cursor in after.items():
        following = step.after.records.get(cursor.id + 1)
        if follows(cursor) and following is not None and following.state == "aborted":
            yield f"{node} stands before the aborted id {cursor.id + 1}"
        if cursor.id > step.after.last:
            yield f"{node} is at {cursor.id}, and the last id is {step.after.last}"


def _changed(step: Step, node: str, old: Cursor | None, new: Cursor | None) -> Iterable[str]:
    if new is None:
        yield from _parted(step, node)
    elif old is None:
        yield from _joined(step, node, new)
    elif follows(new) and follows(old):
        yield from _moved(step, node, old, new)
    elif follows(new):
        yield from _caught_up(step, node, old, new)
    else:
        yield from _fell_out(step, node, old, new)


def _removes(command: Any, node: str) -> bool:
    """Whether this ends the membership of the node: nothing of it is kept."""
    gone = isinstance(command, MemberChange) and command.new is None and command.old is not None
    return gone and command.old.name == node


def _parted(step: Step, node: str) -> Iterable[str]:
    command = step.command
    role = step.roles.get(node)
    barred = role == "replicant" and not step.settings["replicants_take_part"]
    if isinstance(command, MemberChange) and (role is None or barred or _removes(command, node)):
        return
    if isinstance(command, Leave) and command.node == node:
        if command.forced and node in step.lives:
            yield "forced a node out that is up"
        if not command.forced and not step.by(node):
            yield "a node left by the word of another one"
        return
    yield "a cursor was deleted"


def _joined(step: Step, node: str, new: Cursor) -> Iterable[str]:
    former = step.before.left.get(node)
    if not isinstance(step.command, Join) or not step.by(node):
        yield "a node joined by the word of another one"
    if former is not None and not former.forced:
        yield "a node that has left joined"
    if step.roles.get(node) == "replicant" and not step.settings["replicants_take_part"]:
        yield "a replicant joined"
    if follows(new):
        others = [each for name, each in step.before.cursors.items() if name != node]
        if step.before.last and any(each.state != "joining" for each in others):
            yield "a node joined without a copy, although another one has the data"
        if not _only_aborted(step, new.id + 1, step.after.last + (not step.after.granted)):
            yield "the first node does not join at the last id"


def _moved(step: Step, node: str, old: Cursor, new: Cursor) -> Iterable[str]:
    command, records = step.command, step.after.records
    if new.id < old.id:
        yield "a cursor went back"
        return
    if isinstance(command, Force | Reset):
        named = isinstance(command, Force) and (node, old.id) in command.forward
        if isinstance(command, Force) and not named and old.id != step.before.last:
            yield "a force moved a cursor that it does not name"
        if new.id not in (old.id, step.after.last):
            yield "a force or reset moved a cursor to another place than the last id"
        if isinstance(command, Force) and not _notes(new, _missed(step, old)):
            yield f"a force went past {_missed(step, old)}, and noted {new.skipped} as skipped"
        return
    if isinstance(command, Skip) and not _notes(new, [command.id]):
        yield f"a skip of {command.id} noted {new.skipped} as skipped"
    over = [
        id_
        for id_ in range(old.id + 1, new.id + 1)
        if id_ not in records or records[id_].state != "aborted"
    ]
    mine = isinstance(command, Commit | Advance | Skip) and step.by(node)
    if over and (not mine or over != [command.id]):
        yield f"a cursor moved over {over}"


def _missed(step: Step, old: Cursor) -> list[int]:
    """What was committed for this node to execute, and lies behind its cursor before the step."""
    return [
        id_
        for id_, record in step.before.records.items()
        if id_ > old.id and record.state == "committed" and record.kind == "call"
    ]


def _notes(cursor: Cursor, missed: list[int]) -> bool:
    """Whether the newest of them are noted, as many as a cursor keeps."""
    newest = sorted(missed)[-SKIPPED_KEPT:]
    return not newest or list(cursor.skipped[-len(newest) :]) == newest


def _caught_up(step: Step, node: str, old: Cursor, new: Cursor) -> Iterable[str]:
    command = step.command
    if isinstance(command, Reset):
        if new.id != step.after.last:
            yield "a reset moved a cursor to another place than the last id"
        return
    if isinstance(command, Join) and old.state == "joining":
        yield from _joined(step, node, new)
        return
    if not isinstance(command, Sync) or not step.by(node):
        yield "a node follows again without a sync of its own"
        return
    # As of the id before an aborted one is as of that one.
    late = command.as_of < old.as_of and not _only_aborted(step, command.as_of + 1, old.as_of + 1)
    if late or command.as_of > step.after.last:
        yield f"a sync as of {command.as_of}"
    if min(step.after.records, default=step.after.last + 1) > command.as_of + 1:
        yield f"a sync as of {command.as_of}, behind the oldest record"
    if new.id < old.id:
        yield "a cursor went back"
    if new.id < command.as_of or not _only_aborted(step, command.as_of + 1, new.id + 1):
        yield f"a sync as of {command.as_of} led to {new.id}"


def _fell_out(step: Step, node: str, old: Cursor, new: Cursor) -> Iterable[str]:
    command = step.command
    if new.state != "gap" and new.state != old.state:
        yield "a cursor took another state than a gap"
    if not follows(old) and new.as_of < old.as_of:
        yield "a gap is to be synced as of less than before"
    match command:
        case Join():
            right = step.by(node) and (command.wiped or new.state == old.state == "joining")
        case Force():
            right = (node, old.id) in command.sync and new.as_of == step.after.last
        case Trim():
            kept = step.before.last - needs_from(old)
            right = new.state == "gap" or new.state == old.state
            right = right and kept > step.settings["history_hard_max"]
        case Failing():
            right = step.by(node) and new.state == old.state
        case _:
            right = False
    if not right:
        yield "a node fell out"


# --- the rest -------------------------------------------------------------------------------------


def _lost(step: Step) -> Iterable[str]:
    before, after, command = step.before, step.after, step.command
    for id_, record in after.records.items():
        old = before.records.get(id_)
        if old is None or old.state == record.state or record.state != "aborted":
            continue
        silent = record.cause in SILENT or isinstance(command, Leave)
        noted = (record.initiator, id_) in after.lost
        cursor = before.cursors.get(record.initiator)
        # A worker that stands elsewhere has not begun with it.
        begun = cursor is not None and follows(cursor) and cursor.id == id_ - 1
        stays = record.initiator in step.roles and not _removes(command, record.initiator)
        if silent and begun and not noted and stays:
            yield f"id {id_} was aborted as {record.cause}, and no lost effect of it is kept"
    for node, id_ in before.lost.keys() - after.lost.keys():
        acknowledged = isinstance(command, Acknowledge) and command.id == id_
        acknowledged = acknowledged and (
            command.node == node or (not command.node and step.by(node))
        )
        if not acknowledged and node in step.roles and not _removes(command, node):
            yield f"the lost effect of {id_} on {node} was forgotten"


def _answer(step: Step) -> Iterable[str]:
    result, after = step.result, step.after
    match result:
        case Granted() if (result.ticket, result.id) != (after.granted, after.last):
            yield f"answered {result}; granted is {after.granted} with {after.last}"
        case Queued() if result.ticket not in after.queue:
            yield f"answered {result}, which is not in the queue"
        case StaleView() | Behind() if after != step.before:
            yield f"answered {result}, and wrote"
        case StaleView() if step.origin is not None and _able(step, step.origin[0]):
            yield f"answered {result} to a node that is not stuck"
        case Committed():
            following = tuple(
                node for node in sorted(after.cursors) if follows(after.cursors[node])
            )
            if tuple(sorted(result.nodes)) != following:
                yield f"answered the participants {result.nodes}; they are {following}"

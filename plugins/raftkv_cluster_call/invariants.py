"""What must hold in the tables of cluster calls after every entry of the log, as code.

The conformance kit, the simulation and the tests run this on every replica. It walks whole tables,
so it is no work for a production node. What holds between two entries (a cursor never goes back, an
id is decided once) is for those who see both: tests/plugins/raftkv_cluster_call/test_calls_model.py
and the simulation.
"""

from __future__ import annotations

from raftkv.plugin import TableView, View

from .commands import (
    ANSWERS_MAX,
    FORCE,
    LOST_MAX,
    SKIPPED_MAX,
    Cursor,
    Record,
    Reservation,
)
from .views import (
    decided_id,
    granted_ticket,
    last_id,
    may_take_part,
    oldest_id,
    pass_over,
    record_of,
    reserved,
)

__all__ = ["violations"]


def violations(view: View) -> list[str]:
    """Every violated invariant, in words; empty when all is well."""
    return [
        *_of_records(view),
        *_of_aborted(view),
        *_of_reserved(view),
        *_of_cursors(view),
        *_of_queue(view),
        *_of_rests(view),
    ]


def _of_records(view: View) -> list[str]:
    """Ids from oldest to last without holes; decided, except the last one while it is granted."""
    found = []
    last, oldest = last_id(view), oldest_id(view)
    records: TableView[int, Record] = view.table("records")
    ids = [id for id, _ in records.scan()]
    if ids != list(range(oldest, last + 1)):
        found.append(f"ids {ids[:1]} to {ids[-1:]}, {len(ids)} of them, are not {oldest} to {last}")
    for id, record in records.scan():
        open = record.state == "reserved"
        if open and (id != last or not granted_ticket(view)):
            found.append(f"id {id} is reserved, but is not the one that is granted")
        if open != (record.decided_ms == 0 and view.now > 0) and view.now > 0:
            found.append(f"id {id} is {record.state} and was decided at {record.decided_ms}")
        if (record.state == "aborted") != bool(record.cause):
            found.append(f"id {id} is {record.state} because of {record.cause!r}")
        if record.state == "aborted" and record.args:
            found.append(f"id {id} is aborted and keeps its arguments")
        if (record.kind == "force") != (record.function == FORCE and record.version == 0):
            found.append(f"id {id} is a {record.kind} of {record.function!r}")
        if record.kind == "force" and record.state != "committed":
            found.append(f"id {id} was forced and is {record.state}")
    return found


def _of_aborted(view: View) -> list[str]:
    """The stretches are those of the records, as long as possible."""
    found = []
    oldest = oldest_id(view)
    listed: set[int] = set()
    before = -1
    for first, end in view.table("aborted").scan():
        if not before + 1 < first <= end or end < oldest:
            found.append(
                f"the stretch {first} to {end} follows {before}, records begin at {oldest}"
            )
        before = end
        listed.update(range(max(first, oldest), end + 1))
    aborted = {id for id, record in view.table("records").scan() if record.state == "aborted"}
    if listed != aborted:
        found.append(f"ids {sorted(listed ^ aborted)} are aborted here and not there")
    return found


def _of_reserved(view: View) -> list[str]:
    """What is granted is reserved, by a life that goes on, on a node that follows."""
    found = reserved(view)
    if found is None:
        return []
    id, record = found
    wrong = []
    if record.state != "reserved" or record.ticket != granted_ticket(view):
        wrong.append(f"ticket {granted_ticket(view)} is granted, but {id} is {record.state}")
    member = view.members.get(record.initiator)
    if member is None or not member.up or member.incarnation != record.incarnation:
        wrong.append(f"{id} is reserved by a life of {record.initiator} that has ended")
    cursor = view.table("cursors").get(record.initiator)
    if cursor is None or cursor.state != "following":
        wrong.append(f"{id} is reserved by {record.initiator}, which does not follow")
    if (record.deadline_ms, record.ticket) not in view.table("due"):
        wrong.append(f"{id} is reserved and never due")
    return wrong


def _of_cursors(view: View) -> list[str]:
    found = []
    decided, oldest = decided_id(view), oldest_id(view)
    for name, cursor in view.table("cursors").scan():
        found += [f"{name}: {words}" for words in _of_cursor(cursor, decided, oldest)]
        if cursor.state == "following" and pass_over(view, cursor.id) != cursor.id:
            found.append(f"{name} stands at {cursor.id}, before an aborted id")
        if cursor.failing:
            record = record_of(view, cursor.failing)
            if cursor.failing != cursor.id + 1 or record is None or record.state != "committed":
                found.append(f"{name} at {cursor.id} is said to fail at {cursor.failing}")
        if name not in view.members or not may_take_part(view, name):
            found.append(f"{name} takes part, but must not")
        if name in view.table("left"):
            found.append(f"{name} has left and takes part")
    return found


def _of_cursor(cursor: Cursor, decided: int, oldest: int) -> list[str]:
    found = []
    following = cursor.state == "following"
    if not 0 <= cursor.id <= decided or not 0 <= cursor.as_of <= decided:
        found.append(f"stands at {cursor.id} and wants {cursor.as_of}, {decided} is decided")
    if (cursor.id if following else cursor.as_of) < oldest - 1:
        found.append(f"needs what was trimmed: {cursor}, records begin at {oldest}")
    if following and cursor.as_of:
        found.append(f"follows and wants data as of {cursor.as_of}")
    if (cursor.failing > 0) != (cursor.attempts > 0) or (cursor.failing and not following):
        found.append(f"fails at {cursor.failing} after {cursor.attempts} attempts, {cursor.state}")
    if len(cursor.skipped) > SKIPPED_MAX or any(id > cursor.id for id in cursor.skipped):
        found.append(f"skipped {cursor.skipped} at {cursor.id}")
    return found


def _of_queue(view: View) -> list[str]:
    """`due` holds just what waits and what is granted; whoever was granted does not wait."""
    found = []
    queue: TableView[int, Reservation] = view.table("queue")
    expected = {(waiting.deadline_ms, ticket) for ticket, waiting in queue.scan()}
    running = reserved(view)
    if running is not None:
        expected.add((running[1].deadline_ms, running[1].ticket))
        if running[1].ticket in queue:
            found.append(f"ticket {running[1].ticket} is granted and waits")
    due = {key for key, _ in view.table("due").scan()}
    if due != expected:
        found.append(f"{sorted(due ^ expected)} wait and are not due, or the other way round")
    for ticket, _ in view.table("answers").scan():
        if ticket in queue:
            found.append(f"ticket {ticket} waits and was answered")
    return found


def _of_rests(view: View) -> list[str]:
    """What is kept for somebody is bounded, and for somebody who is there."""
    found = []
    if len(view.table("answers")) > ANSWERS_MAX:
        found.append(f"{len(view.table('answers'))} answers are kept")
    for name, _ in view.table("left").scan():
        if name not in view.members:
            found.append(f"{name} has left, and is no member")
    counts: dict[str, int] = {}
    for (name, id), lost in view.table("lost").scan():
        counts[name] = counts.get(name, 0) + 1
        record = record_of(view, id)
        if name not in view.members or id > last_id(view):
            found.append(f"{name} is said to have run {id} alone")
        if record is not None and (record.state, record.cause) != ("aborted", lost.cause):
            found.append(f"{name} is said to have lost {id}, which is {record.state}")
    found += [f"{n} lost effects of {name}" for name, n in counts.items() if n > LOST_MAX]
    return found

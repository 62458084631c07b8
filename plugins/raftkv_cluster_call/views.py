"""Questions to the tables of cluster calls, answered alike in `apply` and on a node.

Pure functions on a `View` (of the plugin "calls") or a `Context`: both have tables, members and
settings. What they give is as of the applied state that they are handed, and says nothing of later.

None of them walks the records, except `call_rows`, which is for people.
"""

from __future__ import annotations

import bisect

import msgspec

from raftkv.plugin import Context, Table, TableView, View

from .causes import without_place
from .commands import (
    FORCE,
    FORMAT_COMPLETED,
    STALE_TRIES,
    Cursor,
    CursorState,
    LostEffect,
    Record,
    RecordState,
    Reservation,
)

__all__ = [
    "CallRow",
    "NodeRow",
    "answer_of",
    "call_row",
    "call_rows",
    "clean_below",
    "cursor_of",
    "decided_id",
    "expiry_due",
    "granted_ticket",
    "grants_pending",
    "hard_bound",
    "is_stuck",
    "last_id",
    "lead",
    "lost_effects",
    "may_take_part",
    "next_for",
    "oldest_id",
    "own_turn",
    "participants",
    "pass_over",
    "pending_nodes",
    "queue_place",
    "record_of",
    "reserved",
    "status_rows",
    "trim_due",
]

State = View | Context


class NodeRow(msgspec.Struct, frozen=True):
    """How one node stands. `lag`: ids that are decided and not behind its cursor yet."""

    name: str
    role: str
    up: bool
    cursor: int
    lag: int
    state: CursorState | str
    failing: int
    attempts: int
    cause: str
    skipped: tuple[int, ...]
    as_of: int = 0


class CallRow(msgspec.Struct, frozen=True):
    """How one id stands, without its arguments."""

    id: int
    function: str
    version: int
    initiator: str
    created_ms: int
    decided_ms: int
    state: RecordState
    cause: str
    kind: str
    pending_nodes: tuple[str, ...]


# --- the log of calls -----------------------------------------------------------------------------


def last_id(view: State) -> int:
    """The highest id that was ever taken; 0: none. It may be reserved still."""
    last: int = view.table("meta").get("last", 0)
    return last


def oldest_id(view: State) -> int:
    """The lowest id whose record is kept; `last_id` + 1 if none is."""
    oldest: int = view.table("meta").get("oldest", 1)
    return oldest


def granted_ticket(view: State) -> int:
    """The ticket of the reserved id; 0 if none is reserved."""
    ticket: int = view.table("meta").get("granted", 0)
    return ticket


def decided_id(view: State) -> int:
    """The highest id that is committed or aborted: where a node that is up to date stands."""
    return last_id(view) - (1 if granted_ticket(view) else 0)


def record_of(view: State, id: int) -> Record | None:
    """The record of an id; None if it was never taken, or is trimmed."""
    record: Record | None = view.table("records").get(id)
    return record


def reserved(view: State) -> tuple[int, Record] | None:
    """The id that runs at its initiator just now."""
    if not granted_ticket(view):
        return None
    id = last_id(view)
    record: Record = view.table("records")[id]
    return id, record


def pass_over(view: State, id: int) -> int:
    """`id`, or the last of the aborted ids that follow it without a gap."""
    stretches: Table[int, int] | TableView[int, int] = view.table("aborted")
    for _, end in stretches.scan(last=id + 2, reverse=True, limit=1):
        return max(id, end)
    return id


def queue_place(view: State, ticket: int) -> int:
    """The place of a waiting reservation, 1 being next; 0: it does not wait."""
    queue: Table[int, Reservation] | TableView[int, Reservation] = view.table("queue")
    return queue.count(last=ticket) + 1 if ticket in queue else 0


def answer_of(view: State, ticket: int) -> str | None:
    """Why a reservation was dropped from the queue.

    "expired", "stale_view", "withdrawn" or "initiator_ended". None: it was not dropped, or so long
    ago that the answer has gone.
    """
    answer: str | None = view.table("answers").get(ticket)
    return answer


# --- cursors --------------------------------------------------------------------------------------


def cursor_of(view: State, node: str) -> Cursor | None:
    """The node's cursor; None: it does not take part, and has not begun to join."""
    cursor: Cursor | None = view.table("cursors").get(node)
    return cursor


def may_take_part(view: State, node: str) -> bool:
    """Whether the node, a member, may have a cursor at all."""
    member = view.members.get(node)
    if member is None:
        return False
    return member.role == "core" or bool(view.settings["replicants_take_part"])


def participants(view: State) -> tuple[str, ...]:
    """The nodes that follow, up or down, in the order of their names: what "all" means now."""
    return tuple(name for name, cursor in _cursors(view) if cursor.state == "following")


def is_stuck(cursor: Cursor) -> bool:
    """Whether the node makes no progress: what it reserved would be granted in vain."""
    return cursor.failing > 0 and cursor.attempts >= STALE_TRIES


def next_for(view: State, node: str) -> tuple[int, Record] | None:
    """The next committed record that this node has to execute.

    None: it is up to date, does not follow, or the next id runs at its initiator still.
    """
    cursor = cursor_of(view, node)
    if cursor is None or cursor.state != "following":
        return None
    id = pass_over(view, cursor.id) + 1
    record = record_of(view, id)
    return None if record is None or record.state != "committed" else (id, record)


def own_turn(view: State, node: str) -> tuple[int, Record] | None:
    """The id that this node has reserved and may run now: all before it is executed here."""
    found = reserved(view)
    cursor = cursor_of(view, node)
    if found is None or cursor is None or cursor.state != "following":
        return None
    id, record = found
    member = view.members.get(node)
    if record.initiator != node or cursor.id != id - 1:
        return None
    if member is None or not member.up or member.incarnation != record.incarnation:
        return None
    return found


def pending_nodes(view: State, id: int) -> tuple[str, ...]:
    """The nodes that have not executed a committed id: that follow, or have fallen into a gap.

    Of a joiner nobody waits for it: it gets the effect with the data that it copies.
    """
    record = record_of(view, id)
    if record is None or record.state != "committed":
        return ()
    return tuple(
        name for name, cursor in _cursors(view) if cursor.state != "joining" and cursor.id < id
    )


def lead(view: State, *, cores_only: bool = True) -> str | None:
    """The following node with the highest cursor, the first of them by name."""
    best: tuple[int, str] | None = None
    for name, cursor in _cursors(view):
        member = view.members.get(name)
        if cursor.state != "following" or member is None:
            continue
        if cores_only and member.role != "core":
            continue
        if best is None or cursor.id > best[0]:
            best = cursor.id, name
    return None if best is None else best[1]


def lost_effects(view: State, node: str | None = None) -> tuple[tuple[str, int, LostEffect], ...]:
    """(node, id, what) of effects that may be at one node only, of that node or of all."""
    prefix = () if node is None else (node,)
    rows = view.table("lost").scan(prefix=prefix)
    return tuple((name, id, lost) for (name, id), lost in rows)


def calls_between(view: State, after: int, upto: int) -> tuple[int, ...]:
    """The ids behind `after` and up to `upto` that were committed and have something to execute."""
    records: TableView[int, Record] = view.table("records")
    return tuple(
        id
        for id, record in records.scan(after + 1, upto + 1)
        if record.state == "committed" and record.kind == "call"
    )


# --- work that is due -----------------------------------------------------------------------------


def grants_pending(view: State) -> bool:
    """Whether somebody waits though nothing runs: an `Expire` goes on with the queue."""
    return not granted_ticket(view) and len(view.table("queue")) > 0


def expiry_due(view: State) -> int | None:
    """When, by the log's clock, the next `Expire` is due: 0 for at once, None for not at all."""
    if grants_pending(view):
        return 0
    for (deadline_ms, _), _ in view.table("due").scan(limit=1):
        return int(deadline_ms)
    return None


def clean_below(view: State) -> int:
    """The highest id whose record is to be deleted, as the cursors stand; see trimming.py."""
    floor = min(
        (
            cursor.id if cursor.state == "following" else cursor.as_of
            for _, cursor in _cursors(view)
        ),
        default=0,
    )
    reset = view.table("meta").get("reset", 0)
    history_max = int(view.settings["history_max"])
    surplus = floor - history_max
    if view.version >= FORMAT_COMPLETED and surplus >= oldest_id(view):
        # Not more of them than a node that is away may keep, however many have failed.
        bound = min(surplus, decided_id(view) - int(view.settings["history_hard_max"]))
        surplus = max(bound, _before_completed(view, floor, history_max))
    return int(max(min(floor, reset), surplus))


def _before_completed(view: State, floor: int, count: int) -> int:
    """The id in front of the latest `count` completed calls up to `floor`, or of all records."""
    aborted: TableView[int, int] = view.table("aborted")
    for first, end in aborted.scan(None, floor + 1, reverse=True):
        behind = floor - min(end, floor)
        if behind >= count:
            break
        count -= behind
        floor = first - 1
    return max(floor - count, oldest_id(view) - 1)


def hard_bound(view: State) -> int:
    """Whoever needs records up to this id gets a gap: there are `history_hard_max` behind it."""
    top = max((cursor.id for _, cursor in _cursors(view) if cursor.state == "following"), default=0)
    return min(top, decided_id(view) - int(view.settings["history_hard_max"]))


def trim_due(view: State) -> bool:
    """Whether a `Trim` would do anything."""
    bound = hard_bound(view)
    if clean_below(view) >= oldest_id(view):
        return True
    return any(
        (cursor.id if cursor.state == "following" else cursor.as_of) < bound
        for _, cursor in _cursors(view)
    )


# --- for people -----------------------------------------------------------------------------------


def status_rows(view: View, first: str = "") -> tuple[NodeRow, ...]:
    """A row for every member and every cursor: `first`, then the others by name.

    `state` is the cursor's, "left" or "left_forced", or "none" for a node that does not take part.
    """
    decided = decided_id(view)
    names = {**dict.fromkeys(view.members), **{name: None for name, _ in _cursors(view)}}
    ordered = sorted(names, key=lambda name: (name != first, name))
    return tuple(_node_row(view, name, decided) for name in ordered)


def _node_row(view: View, name: str, decided: int) -> NodeRow:
    member = view.members.get(name)
    role = "unknown" if member is None else member.role
    up = member is not None and member.up
    cursor = cursor_of(view, name)
    if cursor is None:
        left = view.table("left").get(name)
        state = "none" if left is None else "left_forced" if left.forced else "left"
        return NodeRow(name, role, up, 0, 0, state, 0, 0, "", ())
    return NodeRow(
        name,
        role,
        up,
        cursor.id,
        max(0, decided - cursor.id),
        cursor.state,
        cursor.failing,
        cursor.attempts,
        without_place(cursor.cause),
        cursor.skipped,
        cursor.as_of,
    )


def call_rows(
    view: View, *, all: bool = False, limit: int = 0, before: int = 0
) -> tuple[CallRow, ...]:
    """The ids that are kept, newest first: reserved and committed ones, with `all` aborted, too.

    `limit` 0 is none; `before` 0 starts at the newest, else below that id.
    """
    cursors = sorted(cursor.id for _, cursor in _cursors(view) if cursor.state != "joining")
    rows: list[CallRow] = []
    for id, record in view.table("records").scan(last=before or None, reverse=True):
        if record.state == "aborted" and not all:
            continue
        pending: tuple[str, ...] = ()
        if record.state == "committed" and bisect.bisect_left(cursors, id):
            pending = pending_nodes(view, id)
        rows.append(_call_row(id, record, pending))
        if limit and len(rows) >= limit:
            break
    return tuple(rows)


def call_row(view: View, id: int) -> CallRow | None:
    """One id; None if it was never taken, or is trimmed."""
    record = record_of(view, id)
    return None if record is None else _call_row(id, record, pending_nodes(view, id))


def _call_row(id: int, record: Record, pending: tuple[str, ...]) -> CallRow:
    return CallRow(
        id,
        FORCE if record.kind == "force" else record.function,
        record.version,
        record.initiator,
        record.created_ms,
        record.decided_ms,
        record.state,
        without_place(record.cause),
        record.kind,
        pending,
    )


def _cursors(view: State) -> list[tuple[str, Cursor]]:
    return list(view.table("cursors").scan())

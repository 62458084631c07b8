"""Questions to the tables of the limbo, answered alike in `apply` and on a node.

Pure functions on a `View` (of the plugin "limbo") or a `Context`: both have tables, members and
settings. What they give is as of the applied state that they are handed, and says nothing of later.

*Confirmed* reads see `rows` alone. *Pending* reads see what would be if everything that is pending
were confirmed: the newest pending write of a key, else its row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from raftkv.plugin import View

from .commands import FRESH, NAME_CHARS_MAX, Confirmation, Entry, Participant, Rollback, Row, Space
from .commands import State as QueueState
from .quorum import Needs, State, counts, is_fast, needs, reached
from .refusals import UnknownSpace

__all__ = [
    "Fate",
    "Needs",
    "NodeRow",
    "SpaceRow",
    "State",
    "VerdictRun",
    "confirmation_of",
    "confirmed_range",
    "confirmed_row",
    "entry_of",
    "fate",
    "holders",
    "is_fast",
    "needs",
    "oldest_entry",
    "participant_of",
    "pending_range",
    "pending_row",
    "reached",
    "rollback_of",
    "space_of",
    "space_rows",
    "state_of",
    "status_rows",
    "verdicts",
    "waiting_entries",
]

Fate = Literal["pending", "confirmed", "rolled back", "forgotten", "unknown"]


class NodeRow(msgspec.Struct, frozen=True):
    """How one member stands. `counts`: towards N. `lag`: positions up to the newest sync one that
    it has not acknowledged yet; 0 while nothing is pending, and for who is not asked. `acked`,
    `zone` and `validators` are those of its present life."""

    name: str
    role: str
    up: bool
    counts: bool
    acked: int
    lag: int
    zone: str
    validators: tuple[str, ...]


class SpaceRow(msgspec.Struct, frozen=True):
    """A space. `keys`: confirmed ones; `pending`: writes to it that are pending."""

    name: str
    sync: bool
    keys: int
    pending: int


class VerdictRun(msgspec.Struct, frozen=True):
    """Positions that share a verdict. Of confirmed ones the log does not keep when: the rest is 0.

    For rolled back ones: `index`, `term`, `at_ms` (the log's clock), `reason`, and the `node` that
    asked.
    """

    kind: Literal["confirmed", "rolled back"]
    first: int
    last: int
    index: int = 0
    term: int = 0
    at_ms: int = 0
    reason: str = ""
    node: str = ""


# --- positions ------------------------------------------------------------------------------------


def state_of(view: State) -> QueueState:
    """Owner, term, positions and counters."""
    state: QueueState = view.table("meta").get("state", FRESH)
    return state


def entry_of(view: State, position: int) -> Entry | None:
    """The transaction at a position; None if there is none, or it is trimmed."""
    entry: Entry | None = view.table("entries").get(position)
    return entry


def newest_sync(view: State) -> int:
    """The newest sync position in the span, which is what nodes acknowledge; 0: nothing waits."""
    state = state_of(view)
    if state.head:
        entries = view.table("entries")
        for position in range(state.last, state.head - 1, -1):
            if entries[position].sync:
                return position
    return 0


def oldest_entry(view: State) -> int:
    """The lowest position whose entry is kept; `last` + 1 if none is."""
    return state_of(view).last - len(view.table("entries")) + 1


def rollback_of(view: State, position: int) -> Rollback | None:
    """The run that a position was rolled back in; None: it was not, or that is forgotten."""
    runs = view.table("rollbacks")
    if not len(runs):  # as most of the time; waiters ask often
        return None
    for _, run in runs.scan(last=position + 1, reverse=True, limit=1):
        if run.last >= position:
            return run  # type: ignore[no-any-return]
    return None


def confirmation_of(view: State, position: int) -> Confirmation | None:
    """When a position was confirmed and why; None: it was not, or that is not kept."""
    runs = view.table("confirmations")
    for _, run in runs.scan(last=position + 1, reverse=True, limit=1):
        if run.last >= position:
            return run  # type: ignore[no-any-return]
    return None


def fate(view: State, position: int) -> Fate:
    """What became of a position. "unknown": it was not given yet."""
    state = state_of(view)
    if not 1 <= position <= state.last:
        return "unknown"
    if rollback_of(view, position) is not None:
        return "rolled back"
    if position <= state.forgotten:
        return "forgotten"
    if state.head and position >= state.head:
        entry: Entry = view.table("entries")[position]
        return "confirmed" if entry.independent else "pending"
    return "confirmed"


def waiting_entries(view: State, first: int = 0, limit: int = 0) -> tuple[tuple[int, Entry], ...]:
    """(position, entry) of what is pending from `first` on, oldest first; `limit` 0: all."""
    found = []
    for position, entry in pending_from(view, first):
        found.append((position, entry))
        if len(found) == limit:
            break
    return tuple(found)


def pending_from(view: State, first: int = 0) -> Iterator[tuple[int, Entry]]:
    """Walk what is pending from `first` on, oldest first. Costs what it passes over, too."""
    state = state_of(view)
    if not state.head:
        return
    position = max(first, state.head)
    run = rollback_of(view, position)
    if run is not None:
        position = run.last + 1
    runs = view.table("rollbacks").scan(first=position)
    dead, dead_last = _next_run(runs)
    entries = view.table("entries")
    while position <= state.last:
        if position == dead:
            position = dead_last + 1
            dead, dead_last = _next_run(runs)
            continue
        entry = entries[position]
        if not entry.independent:
            yield position, entry
        position += 1


def _next_run(runs: Iterator[tuple[int, Rollback]]) -> tuple[int, int]:
    for first, run in runs:
        return first, run.last
    return 0, 0


def verdicts(view: State, limit: int = 0) -> tuple[VerdictRun, ...]:
    """Runs of verdicts, newest first, as far back as they are known; `limit` 0: all.

    What is pending has none, and is left out. Takes time in proportion to the queue, and to the
    runs that are given.
    """
    state = state_of(view)
    found: list[VerdictRun] = []
    top = state.last
    for first, run in view.table("rollbacks").scan(reverse=True):
        _add_confirmed(view, found, run.last + 1, top)
        found.append(
            VerdictRun(
                "rolled back", first, run.last, run.index, run.term, run.at_ms, run.reason, run.node
            )
        )
        top = first - 1
        if limit and len(found) >= limit:
            return tuple(found[:limit])
    _add_confirmed(view, found, state.forgotten + 1, top)
    return tuple(found[:limit] if limit else found)


def _add_confirmed(view: State, found: list[VerdictRun], first: int, last: int) -> None:
    """The confirmed runs between two rollbacks, newest first."""
    head = state_of(view).head
    end = last
    if head and last >= head:
        entries = view.table("entries")
        for position in range(last, max(first, head) - 1, -1):
            if not entries[position].independent:
                if position < end:
                    found.append(VerdictRun("confirmed", position + 1, end))
                end = position - 1
    if first <= end:
        found.append(VerdictRun("confirmed", first, end))


# --- spaces and rows ------------------------------------------------------------------------------


def space_of(view: State, name: str) -> Space:
    """Raises UnknownSpace."""
    space: Space | None = view.table("spaces").get(name)
    if space is None:
        raise UnknownSpace(name[:NAME_CHARS_MAX])
    return space


def space_rows(view: State) -> tuple[SpaceRow, ...]:
    """All spaces, by name."""
    pending = view.table("pending")
    return tuple(
        SpaceRow(name, space.sync, space.keys, pending.count(prefix=(space.id,)))
        for name, space in view.table("spaces").scan()
    )


def confirmed_row(view: State, space: str, key: bytes) -> Row | None:
    """The confirmed value. Raises UnknownSpace."""
    row: Row | None = view.table("rows").get((space_of(view, space).id, key))
    return row


def pending_row(view: State, space: str, key: bytes) -> Row | None:
    """The value if all that is pending is confirmed. Raises UnknownSpace."""
    id = space_of(view, space).id
    for (_, _, position), value in view.table("pending").scan(
        prefix=(id, key), reverse=True, limit=1
    ):
        return None if value is None else Row(value, position)
    row: Row | None = view.table("rows").get((id, key))
    return row


def confirmed_range(
    view: State,
    space: str,
    start: bytes = b"",
    end: bytes | None = None,
    limit: int = 0,
    reverse: bool = False,
) -> tuple[tuple[bytes, Row], ...]:
    """Confirmed rows with `start` <= key < `end` (None: to the last). Raises UnknownSpace."""
    id = space_of(view, space).id
    bound = (id + 1, b"") if end is None else (id, end)
    rows = view.table("rows").scan((id, start), bound, reverse=reverse, limit=limit)
    return tuple((key, row) for (_, key), row in rows)


def pending_range(
    view: State,
    space: str,
    start: bytes = b"",
    end: bytes | None = None,
    limit: int = 0,
    reverse: bool = False,
) -> tuple[tuple[bytes, Row], ...]:
    """The same if all that is pending is confirmed. Raises UnknownSpace."""
    id = space_of(view, space).id
    low, high = (id, start, 0), (id + 1, b"", 0) if end is None else (id, end, 0)
    newest: dict[bytes, Row | None] = {}
    for (_, key, position), value in view.table("pending").scan(low, high):
        newest[key] = None if value is None else Row(value, position)
    waiting = list(newest)
    if reverse:
        waiting.reverse()
    found: list[tuple[bytes, Row]] = []
    for key, row in _merged(_row_scan(view, id, start, end, reverse), waiting, newest, reverse):
        if row is not None:
            found.append((key, row))
            if len(found) == limit:
                break
    return tuple(found)


def _row_scan(
    view: State, id: int, start: bytes, end: bytes | None, reverse: bool
) -> Iterator[tuple[bytes, Row]]:
    bound = (id + 1, b"") if end is None else (id, end)
    for (_, key), row in view.table("rows").scan((id, start), bound, reverse=reverse):
        yield key, row


def _merged(
    rows: Iterator[tuple[bytes, Row]],
    waiting: list[bytes],
    newest: dict[bytes, Row | None],
    reverse: bool,
) -> Iterator[tuple[bytes, Row | None]]:
    """Both in one order; where both have a key, what is pending."""
    place = 0
    for key, row in rows:
        while place < len(waiting) and _before(waiting[place], key, reverse):
            yield waiting[place], newest[waiting[place]]
            place += 1
        if place < len(waiting) and waiting[place] == key:
            continue  # it comes with the next row, or at the end
        yield key, row
    for key in waiting[place:]:
        yield key, newest[key]


def _before(one: bytes, other: bytes, reverse: bool) -> bool:
    return one > other if reverse else one < other


# --- nodes ----------------------------------------------------------------------------------------


def participant_of(view: State, name: str) -> Participant | None:
    """What a node has acknowledged and declared in its present life; None: nothing yet."""
    node: Participant | None = view.table("nodes").get(name)
    member = view.members.get(name)
    if node is None or member is None or node.incarnation != member.incarnation:
        return None
    return node


def holders(view: State, position: int) -> tuple[str, ...]:
    """The members that have acknowledged a position in their present life, by name."""
    return tuple(
        name
        for name in view.members
        if (node := participant_of(view, name)) is not None and node.acked >= position
    )


def status_rows(view: View) -> tuple[NodeRow, ...]:
    """All members, by name."""
    newest, settings = newest_sync(view), view.settings
    rows = []
    for name, member in view.members.items():
        node = participant_of(view, name) or Participant(member.incarnation)
        speaks = node.zone in settings["quorum_zones"] or any(
            validator in settings["quorum_validators"] for validator in node.validators
        )
        asked = not is_fast(view) and (speaks or counts(member, view))
        lag = max(0, newest - node.acked) if asked else 0
        rows.append(
            NodeRow(
                name,
                member.role,
                member.up,
                counts(member, view),
                node.acked,
                lag,
                node.zone,
                node.validators,
            )
        )
    return tuple(rows)

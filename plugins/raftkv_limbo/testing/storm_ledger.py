"""What is known of every position of a storm, for ever: kept from the steps of its log.

The limbo itself forgets: entries are trimmed, verdicts grow old. The `Ledger` does not, so that an
answer, a hook or a read can be compared with what was decided long ago.

Rules of this file. It is told what a step *must* have done (`storm_check.py` finds that, and that
the plugin did just that), never what the plugin's tables say. So the rows, the queue and the owner
here are a second limbo, as simple as can be: dicts and one list.

`versions` keeps of every key each confirmed state that it ever had, in the order of the log. A read
of confirmed data shows one of them; a linearizable one shows none from before it began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from raftkv.plugin import Member
from raftkv_limbo.commands import Confirmation, Entry, Participant, Rollback, Row, Space, State

__all__ = [
    "Decided",
    "Effect",
    "Key",
    "Ledger",
    "NewVoters",
    "Position",
    "Seen",
    "Step",
    "Writes",
    "seen_of",
    "tag_of",
]

Key = tuple[str, bytes]
Writes = tuple[tuple[str, bytes, bytes | None], ...]
Fate = Literal["pending", "confirmed", "rolled back"]


@dataclass(slots=True)
class Position:
    """One transaction that got a position, for ever. `decided`: the index of its verdict.

    `drops`: the space that it is the drop of; it writes nothing then.
    """

    number: int
    sync: bool
    independent: bool
    writes: Writes
    node: str
    incarnation: int
    term: int
    index: int
    bytes: int
    fate: Fate = "pending"
    decided: int = 0
    reason: str = ""
    by: str = ""
    drops: str = ""
    # Of the entry that confirmed it: index, time, cause, by, upto; see `Confirmation`.
    record: tuple[int, int, str, str, int] = (0, 0, "", "", 0)

    def __str__(self) -> str:
        kind = "sync" if self.sync else "independent" if self.independent else "async"
        because = f" by {self.by}: {self.reason}" if self.fate == "rolled back" else ""
        return f"position {self.number} ({kind}, {self.node}, {self.fate}{because})"


@dataclass(frozen=True, slots=True)
class Seen:
    """The plugin's tables, as they are at one moment on one node."""

    state: State = field(default_factory=State)
    spaces: Mapping[str, Space] = field(default_factory=dict)
    rows: Mapping[tuple[int, bytes], Row] = field(default_factory=dict)
    pending: Mapping[tuple[int, bytes, int], bytes | None] = field(default_factory=dict)
    entries: Mapping[int, Entry] = field(default_factory=dict)
    rollbacks: Mapping[int, Rollback] = field(default_factory=dict)
    nodes: Mapping[str, Participant] = field(default_factory=dict)
    confirmations: Mapping[int, Confirmation] = field(default_factory=dict)

    def confirmed_rows(self) -> dict[Key, tuple[bytes, int]]:
        """The rows of all spaces that there are."""
        names = {space.id: name for name, space in self.spaces.items()}
        return {
            (names[id_], key): (row.value, row.position)
            for (id_, key), row in self.rows.items()
            if id_ in names
        }

    def run_of(self, position: int) -> Rollback | None:
        """The rollback that took the position away."""
        for first, run in self.rollbacks.items():
            if first <= position <= run.last:
                return run
        return None

    def fate(self, position: int) -> str:
        """What these tables say of a position: a fate, "unknown" or "forgotten"."""
        state = self.state
        if not 1 <= position <= state.last:
            return "unknown"
        if self.run_of(position) is not None:
            return "rolled back"
        if position <= state.forgotten:
            return "forgotten"
        entry = self.entries.get(position)
        waits = state.head and position >= state.head
        return "pending" if waits and entry is not None and not entry.independent else "confirmed"


def seen_of(tables: Any) -> Seen:
    """The tables of a `Context` or a `View`."""
    table = tables.table
    return Seen(
        state=table("meta").get("state", State()),
        spaces=dict(table("spaces").scan()),
        rows=dict(table("rows").scan()),
        pending=dict(table("pending").scan()),
        entries=dict(table("entries").scan()),
        rollbacks=dict(table("rollbacks").scan()),
        nodes=dict(table("nodes").scan()),
        confirmations=dict(table("confirmations").scan()),
    )


@dataclass(frozen=True, slots=True)
class NewVoters:
    """The cores that vote are others now: raft ids."""

    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One command, or a change of members, voters or settings, as it was first applied anywhere.

    `members`, `voters` (raft ids) and `settings` are those that it was decided with. `refusal` is
    what was raised.
    """

    index: int
    serial: int
    now: int
    command: Any
    # (node, incarnation) of the session that sent it; None for a change.
    origin: tuple[str, int] | None
    members: Mapping[str, Member]
    voters: tuple[str, ...]
    settings: Mapping[str, Any]
    before: Seen
    after: Seen
    result: Any = None
    refusal: Exception | None = None
    # The active format of the plugin.
    version: int = 2


@dataclass(slots=True)
class Effect:
    """What a step must do: found by the rules from the ledger, not from the plugin's tables."""

    entered: list[Position] = field(default_factory=list)
    # In this order: rolled back newest first, then confirmed oldest first.
    rolled_back: list[int] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)
    reason: str = ""
    by: str = ""
    # What must be kept of what it confirms, see `Position`.
    record: tuple[int, int, str, str, int] = (0, 0, "", "", 0)
    # (owner, incarnation, term) from now on; None: as before.
    owner: tuple[str, int, int] | None = None
    # name -> sync, of all spaces from now on; None: as before.
    spaces: dict[str, bool] | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """One verdict on one position, given at `index` by the command `serial`."""

    kind: Literal["confirmed", "rolled back"]
    position: int
    index: int
    serial: int


class Ledger:
    """What the steps did, in order."""

    def __init__(self) -> None:
        self.positions: dict[int, Position] = {}
        # Ordered positions that are pending, oldest first.
        self.queue: list[int] = []
        self.spaces: dict[str, bool] = {}
        self.rows: dict[Key, tuple[bytes, int]] = {}
        self.versions: dict[Key, list[tuple[bytes, int] | None]] = {}
        self.owner, self.incarnation, self.term = "", 0, 0
        # term -> the (node, incarnation) that owned the queue in it; ("", 0): nobody.
        self.terms: dict[int, tuple[str, int]] = {0: ("", 0)}
        # What nodes have said in the life that they had then: (incarnation, what).
        self.acks: dict[str, tuple[int, int]] = {}
        self.zones: dict[str, tuple[int, str]] = {}
        self.declared: dict[str, tuple[int, tuple[str, ...]]] = {}
        self.approvals: dict[tuple[str, str], tuple[int, int]] = {}
        self.decided: list[Decided] = []
        # The number of a submission (in its values) -> its positions.
        self.by_tag: dict[int, list[int]] = {}

    @property
    def last(self) -> int:
        """The highest position that was ever given."""
        return len(self.positions)

    def dropping(self) -> dict[str, int]:
        """The spaces whose drop is pending -> its position."""
        waiting = (self.positions[number] for number in self.queue)
        return {each.drops: each.number for each in waiting if each.drops}

    def history(self, key: Key) -> list[tuple[bytes, int] | None]:
        """Every confirmed state of the key so far; the last one is now."""
        return self.versions.setdefault(key, [None])

    def pending_rows(self) -> dict[Key, tuple[bytes, int] | None]:
        """Of each key that pending ones write, what is then there."""
        found: dict[Key, tuple[bytes, int] | None] = {}
        for number in self.queue:
            for space, key, value in self.positions[number].writes:
                found[(space, key)] = None if value is None else (value, number)
        return found

    def note(self, step: Step, effect: Effect) -> None:
        """Keep what the step did."""
        for position in effect.entered:
            self.positions[position.number] = position
            for tag in tags_of(position.writes):
                self.by_tag.setdefault(tag, []).append(position.number)
            if not position.independent:
                self.queue.append(position.number)
        for number in effect.rolled_back:
            self._settle(number, "rolled back", step)
            self.positions[number].reason = effect.reason
            self.positions[number].by = effect.by
        for number in effect.confirmed:
            self._settle(number, "confirmed", step)
            self.positions[number].record = effect.record
            for space, key, value in self.positions[number].writes:
                self._write((space, key), None if value is None else (value, number))
        if effect.owner is not None:
            self.owner, self.incarnation, self.term = effect.owner
            self.terms[self.term] = (self.owner, self.incarnation)
        if effect.spaces is not None:
            self._spaces_are(effect.spaces)

    def _settle(self, number: int, fate: Literal["confirmed", "rolled back"], step: Step) -> None:
        position = self.positions[number]
        position.fate, position.decided = fate, step.index
        self.decided.append(Decided(fate, number, step.index, step.serial))
        if not position.independent:
            self.queue.remove(number)

    def _write(self, key: Key, row: tuple[bytes, int] | None) -> None:
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row
        history = self.history(key)
        if row is not None or history[-1] is not None:
            history.append(row)

    def _spaces_are(self, spaces: dict[str, bool]) -> None:
        for gone in self.spaces.keys() - spaces.keys():
            for key in [each for each in self.rows if each[0] == gone]:
                self._write(key, None)
        self.spaces = spaces


def tag_of(value: bytes | None) -> int:
    """The number of the submission that writes this value; 0: it does not say."""
    head, _, _ = (value or b"").partition(b"/")
    return int(head) if head.isdigit() else 0


def tags_of(writes: Writes | Sequence[Any]) -> list[int]:
    """Of a transaction's writes, without repetition: one number, or none."""
    found = {tag_of(value): None for _, _, value in writes}
    found.pop(0, None)
    return list(found)

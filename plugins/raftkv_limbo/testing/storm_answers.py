"""What callers, readers and hooks of a storm are told, as pure functions of a record of it.

The other half of `storm_check.py`, by the same rules: it judges, and does nothing else. Everything
is compared with the `Ledger` of what the log decided, which is ahead of every node: whatever a node
tells has happened in the ledger before.

- a `Story` is one submission from its caller's side. Its number stands in its values, so that its
  position is known also where its caller was told none.
- a `Hearing` is what the hooks of one life of a node are told: verdicts in the order of the log,
  without holes but where a snapshot has jumped over some.
- reads are compared with the history of the key (`Ledger.versions`).

**Time-outs decide nothing.** A story that ended without a verdict may have any fate; it must have
one in the end. One that was refused must have no position, for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from raftkv_limbo.commands import Condition, Write

from .storm_ledger import Decided, Key, Ledger, Position, Seen

__all__ = [
    "NOTHING_HAPPENED",
    "Hearing",
    "Story",
    "check_fates",
    "check_promise",
    "check_story",
    "check_turns",
    "check_version",
    "check_waiting_row",
]

# Outcomes after which the transaction is nowhere, and never will be.
NOTHING_HAPPENED = ("refused", "not applied")


@dataclass(slots=True)
class Story:
    """One submission. Times are virtual seconds; `ended` 0 while it is under way.

    `turn` counts the calls of one process. `outcome`: "confirmed", "pending" (in the queue, and
    its caller did not wait), "submitting", "rolled back", "still pending", "refused",
    "not applied", "unknown", "given up", "died".
    """

    number: int
    node: str
    boots: int
    wait: str
    order: str
    writes: tuple[Write, ...]
    conditions: tuple[Condition, ...]
    timeout_s: float
    began: float
    turn: int = 0
    ended: float = 0.0
    outcome: str = ""
    position: int = 0
    term: int = 0
    reason: str = ""
    by: str = ""
    error: str = ""

    def __str__(self) -> str:
        return (
            f"submission {self.number} on {self.node} ({self.order}, wait {self.wait}, "
            f"{self.timeout_s:g} s, begun at {self.began:.3f} s): {self.outcome or 'no answer'}"
            f" {self.error} position {self.position}"
        )


def check_story(story: Story, ledger: Ledger) -> list[str]:
    """Whether what the caller was told is true, now and for ever."""
    found = []
    positions = ledger.by_tag.get(story.number, [])
    if len(positions) > 1:
        found.append(f"it is in the queue {len(positions)} times, at {positions}")
    if story.outcome in NOTHING_HAPPENED:
        if positions:
            found.append(f"nothing happened, it was told, and it has the positions {positions}")
    elif story.position:
        if positions != [story.position]:
            found.append(f"its positions are {positions}")
        else:
            found += check_promise(story, ledger.positions[story.position])
    elif story.outcome in ("confirmed", "pending", "rolled back", "still pending"):
        found.append("it was told no position")
    return [f"{story}: {each}" for each in found]


def check_promise(story: Story, position: Position) -> Iterable[str]:
    """A story that was told a position, against that position."""
    if position.writes != tuple((each.space, each.key, each.value) for each in story.writes):
        yield f"{position} writes something else"
    if story.term and story.term != position.term:
        yield f"it was told the term {story.term}, and entered in {position.term}"
    if story.outcome == "confirmed" and position.fate != "confirmed":
        yield f"confirmed, it was told, and it is: {position}"
    if story.outcome == "rolled back":
        told = ("rolled back", story.reason, story.by)
        if told != (position.fate, position.reason, position.by):
            yield f"{told}, it was told, and it is: {position}"


def check_turns(stories: Iterable[Story], ledger: Ledger) -> list[str]:
    """What one process was asked in order, and is ordered, has entered in that order."""
    found: list[str] = []
    before: dict[tuple[str, int], tuple[Story, int]] = {}
    for story in sorted(stories, key=lambda each: (each.node, each.boots, each.turn)):
        positions = ledger.by_tag.get(story.number, [])
        if not positions or not story.turn or story.order == "independent":
            continue
        life = (story.node, story.boots)
        former = before.get(life)
        if former is not None and former[1] > positions[0]:
            found.append(f"{story} is at {positions[0]}, before {former[0]} at {former[1]}")
        before[life] = (story, positions[0])
    return found


# --- reads ----------------------------------------------------------------------------------------


def check_version(
    key: Key, row: tuple[bytes, int] | None, since: int, ledger: Ledger
) -> tuple[int, list[str]]:
    """Which confirmed state of the key was read, not older than `since`; and what is wrong."""
    history = ledger.history(key)
    for version in range(since, len(history)):
        if history[version] == row:
            return version, []
    if row in history:
        text = f"{key} is {row}, which was over before: since then it was {history[since:]}"
    else:
        text = f"{key} is {row}, which was never confirmed"
    return since, [text]


def check_waiting_row(
    key: Key, row: tuple[bytes, int] | None, seen: Seen, ledger: Ledger
) -> list[str]:
    """A read of the pending view, against the tables of its node in the same moment."""
    space = seen.spaces.get(key[0])
    if space is None:
        return []
    waiting = [
        (position, value)
        for (id_, name, position), value in seen.pending.items()
        if (id_, name) == (space.id, key[1])
    ]
    if waiting:
        position, value = max(waiting, key=lambda each: each[0])
        should = None if value is None else (value, position)
    else:
        confirmed = seen.rows.get((space.id, key[1]))
        should = None if confirmed is None else (confirmed.value, confirmed.position)
    found = [] if row == should else [f"{key} is {row}, and the node's queue gives {should}"]
    if row is not None:
        position_ = ledger.positions.get(row[1])
        if position_ is None or (*key, row[0]) not in position_.writes:
            found.append(f"{key} is {row}, and that was never written: {position_}")
        elif seen.fate(row[1]) not in ("pending", "confirmed", "forgotten"):
            found.append(f"{key} is {row}, and that position is {seen.fate(row[1])}")
    return found


def check_fates(node: str, seen: Seen, ledger: Ledger, *, whole: bool) -> list[str]:
    """What the node's tables say of each position; with `whole` they are as of everything."""
    found = []
    for number, position in ledger.positions.items():
        fate = seen.fate(number)
        if fate == position.fate or fate == "forgotten":
            continue
        # It is behind: it may not have heard of the verdict, or of the position.
        if not whole and fate in ("pending", "unknown"):
            continue
        found.append(f"{node} says {fate} of {position}")
    for number in seen.entries:
        run = seen.run_of(number)
        if run is None or number not in ledger.positions:
            continue
        known = ledger.positions[number]
        if (known.reason, known.by) != (run.reason, run.node):
            found.append(f"{node} says {run.reason!r} by {run.node} of {known}")
    return found


# --- hooks ----------------------------------------------------------------------------------------


class Hearing:
    """The verdicts that the hooks of one life of a node are told, one by one."""

    def __init__(self, node: str, ledger: Ledger) -> None:
        self._node = node
        self._ledger = ledger
        # Where in `ledger.decided` the next verdict stands; None: it may begin anywhere.
        self._next: int | None = None
        # Not before this, also after a jump.
        self._least = 0
        # Those of the same log entry that have not been told yet: an entry may hold several
        # commands, and the order among verdicts of different kinds in it is nobody's promise.
        self._open: list[int] = []
        self.told = 0

    @property
    def is_complete(self) -> bool:
        """Whether it has heard of everything that was decided since it began to listen."""
        return self._next is None or (not self._open and self._next == len(self._ledger.decided))

    def restored(self) -> None:
        """A snapshot took the node somewhere ahead."""
        self._least = self._next or self._least
        self._next, self._open = None, []

    def hear(
        self, kind: str, number: int, writes: Sequence[Any], reason: str = "", by: str = ""
    ) -> list[str]:
        """One verdict is told; what is wrong with it."""
        position = self._ledger.positions.get(number)
        if position is None:
            return [f"{self._node}: a hook hears of {number}, which was never given"]
        found = []
        if position.fate != kind:
            found.append(f"{kind}, it is told, and it is: {position}")
        if tuple((each.space, each.key, each.value) for each in writes) != position.writes:
            found.append(f"{position} is told with other writes: {writes}")
        if kind == "rolled back" and (reason, by) != (position.reason, position.by):
            found.append(f"{position} is told with the reason {reason!r} by {by!r}")
        if not found:
            found += self._turn(kind, number)
        self.told += 1
        return [f"hooks of {self._node}: {each}" for each in found]

    def _turn(self, kind: str, number: int) -> list[str]:
        decided = self._ledger.decided
        if self._open:
            place = self._place(number, self._open)
            if place is None:
                return [f"{number} is told, and {decided[self._open[0]]} was not"]
        else:
            if self._next is None:
                place = self._place(number, range(self._least, len(decided)))
                if place is None:
                    return [f"{number} is told again, or after later ones"]
                first = place
                while first > self._least and decided[first - 1].index == decided[place].index:
                    first -= 1
                self._next = first
            self._open = self._entry(self._next)
            self._next = self._open[-1] + 1 if self._open else self._next
            place = self._place(number, self._open)
            if place is None:
                next_one: Decided | None = decided[self._open[0]] if self._open else None
                return [f"{number} is told, and next is {next_one}"]
        before = [each for each in self._open if each < place and self._same(each, place)]
        if before:
            return [f"{number} is told before {decided[before[0]]}"]
        self._open.remove(place)
        return []

    def _place(self, number: int, places: Iterable[int]) -> int | None:
        decided = self._ledger.decided
        return next((each for each in places if decided[each].position == number), None)

    def _entry(self, first: int) -> list[int]:
        """The places of all verdicts of the log entry whose first one that is."""
        decided = self._ledger.decided
        end = first
        while end < len(decided) and decided[end].index == decided[first].index:
            end += 1
        return list(range(first, end))

    def _same(self, one: int, other: int) -> bool:
        first, second = self._ledger.decided[one], self._ledger.decided[other]
        return (first.kind, first.serial) == (second.kind, second.serial)

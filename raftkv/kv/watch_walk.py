"""Going through the history, revision by revision, and handing out each to whom it concerns.

Rules of this file
1. A revision is matched and handed out whole before the next one is begun.
2. One call of `go` does a bounded number of units. A revision that concerns very many watches, or
   has very many events, is handed out in pieces, between which the loop does other things. Watches
   may come and go meanwhile: whoever comes needs a later revision (`Watch._next`), whoever has
   gone is `ENDED`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final

from .commands import Event, Revision, events_of
from .watch import ENDED, Entry, Watch, entry_of
from .watch_index import Place, WatchIndex

__all__ = ["PIECE", "UNITS_PER_TURN", "Walk"]

#: One unit is a revision looked at, an event matched or an entry put into a buffer: about 1.5 us.
UNITS_PER_TURN: Final = 1500
# A revision with more hits than this is handed out in pieces of this size.
PIECE: Final = 250


def _watches_of(places: list[Watch | Place]) -> list[Watch]:
    if len(places) == 1 and not isinstance(places[0], Place):
        return [places[0]]
    watches: list[Watch] = []
    for place in places:
        if isinstance(place, Place):
            watches += place.watches
        else:
            watches.append(place)
    return watches


def _large_entry(
    revision: int, events: tuple[Event, ...], wants: int
) -> Generator[int, None, Entry | None]:
    """`entry_of`, some events at a time. Yields the units of each step."""
    wanted: list[Event] = []
    size = 0
    for first in range(0, len(events), PIECE):
        part = entry_of(revision, events[first : first + PIECE], wants)
        if part is not None:
            wanted += part[1]
            size += part[2]
        yield PIECE
    return (revision, tuple(wanted), size) if wanted else None


class Walk:
    """From revision to revision through the history, handing out what concerns an index's watches.

    `position` is the last revision begun, `revision` the last one handed out completely.
    """

    __slots__ = ("_full", "_rest", "entries", "index", "limits", "position")

    def __init__(
        self, position: int, full: Callable[[Watch], None], limits: tuple[int, int]
    ) -> None:
        self.index = WatchIndex()
        self.position = position
        # What becomes of a watch whose buffer has no room for a revision.
        self._full = full
        self.limits = limits
        # What is left of the revision `position`; each step gives its units, at least one.
        self._rest: Iterator[int] | None = None
        # How many buffers got a revision.
        self.entries = 0

    @property
    def revision(self) -> int:
        return self.position if self._rest is None else self.position - 1

    def jump(self, position: int) -> None:
        """Go on behind another revision; what is left of the present one is dropped."""
        self.position = position
        self._rest = None

    def go(self, history: Callable[[int], Revision | None], target: int, units: int) -> int:
        """Walk to the target, or until the units are used up or a row is missing.

        Returns the units that are left; some are left before the target only if a row is missing.
        """
        while units > 0:
            if self._rest is not None:
                done = next(self._rest, 0)
                if done == 0:
                    self._rest = None
                units -= done
                continue
            if self.position >= target:
                break
            row = history(self.position + 1)
            if row is None:
                break
            self.position += 1
            units -= 1
            if row.more:
                self._rest = self._pieces(self.position, row)
                continue
            places = self.index.places(row.kv.key)
            if places:
                watches = _watches_of(places)
                events = events_of(row)
                if len(watches) > PIECE:
                    self._rest = self._hand_out(self.position, events, watches)
                else:
                    units -= len(watches)
                    self._give(self.position, events, watches, {})
        return units

    def _pieces(self, revision: int, row: Revision) -> Iterator[int]:
        """A revision with several events. First all are matched, then each watch gets its own."""
        found: dict[Watch | Place, list[Event]] = {}
        for number, event in enumerate(events_of(row)):
            for place in self.index.places(event.kv.key):
                found.setdefault(place, []).append(event)
            if number % PIECE == PIECE - 1:
                yield PIECE
        for place, events in found.items():
            if not isinstance(place, Place):
                # If it got company while this was matched, the rest was found for them together.
                # The others came too late for this revision.
                shared = self.index.shared(place)
                if shared is not None:
                    events = events + found.get(shared, [])
            yield from self._hand_out(revision, tuple(events), _watches_of([place]))

    def _hand_out(
        self, revision: int, events: tuple[Event, ...], watches: list[Watch]
    ) -> Iterator[int]:
        made: dict[int, Entry | None] = {}
        if len(events) > PIECE:
            for wants in dict.fromkeys(watch._wants for watch in watches):
                made[wants] = yield from _large_entry(revision, events, wants)
        for first in range(0, len(watches), PIECE):
            piece = watches[first : first + PIECE]
            self._give(revision, events, piece, made)
            yield len(piece)

    def _give(
        self,
        revision: int,
        events: tuple[Event, ...],
        watches: list[Watch],
        made: dict[int, Entry | None],
    ) -> None:
        """Put the revision into the buffers of those who still need it and are still there."""
        events_max, bytes_max = self.limits
        for watch in watches:
            if watch._next > revision or watch._state == ENDED:
                continue
            wants = watch._wants
            if wants in made:
                entry = made[wants]
            else:
                entry = made[wants] = entry_of(revision, events, wants)
            if entry is None:
                continue
            if watch._put(entry, events_max, bytes_max):
                self.entries += 1
            else:
                watch._next = revision
                self._full(watch)

"""Which watches does a key concern? Found without looking at those that it does not.

Rules of this file
1. `places(key)` gives every watch in the index whose keys include `key`, each once, in an order
   that depends on the calls made so far alone. It costs O(log ranges + hits + wide ranges).
2. The memory for n ranges is O(n), whatever they are.

Watches of one key hang on that key in a dict. Watches of one range share a `Place`. The ends of
the ranges cut the order of keys into segments; each holds the places that cover it, so that one
bisection finds all of them.

A range over many segments would stand in all of them, and n ranges that overlap would need n^2
places. So a range that would stand in more than `SEGMENTS_MAX` segments, or in one that
`DEPTH_MAX` places cover already, is *wide*: it is compared with each key instead. Prefixes, which
lie beside or inside each other, are seldom wide; a range of all keys mostly is, and there is one.
A range that is not wide when it comes may be cut by later ones into more segments than that: they
pay, `DEPTH_MAX` places per cut at most.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from .commands import FROM_KEY

if TYPE_CHECKING:
    from .watch import Watch

__all__ = ["Place", "WatchIndex"]

# With fewer segments a comparison for each key would cost more than it saves.
SEGMENTS_MAX: Final = 64
DEPTH_MAX: Final = 32


class Place:
    """The watches of one range. `high` None is no upper bound."""

    __slots__ = ("high", "low", "watches", "wide")

    def __init__(self, low: bytes, high: bytes | None) -> None:
        self.low = low
        self.high = high
        self.wide = False
        # A dict is a set that iterates in the order of coming.
        self.watches: dict[Watch, None] = {}

    def covers(self, key: bytes) -> bool:
        return self.low <= key and (self.high is None or key < self.high)


class WatchIndex:
    """See the module's text."""

    __slots__ = ("_bounds", "_ends", "_exact", "_ranges", "_segments", "_wide")

    def __init__(self) -> None:
        self._exact: dict[bytes, Watch | Place] = {}
        self._ranges: dict[tuple[bytes, bytes | None], Place] = {}
        # Segment i holds the keys from bound i - 1 (the first: from the beginning) to bound i.
        self._bounds: list[bytes] = []
        self._segments: list[tuple[Place, ...]] = [()]
        # How many places begin or end at a bound.
        self._ends: dict[bytes, int] = {}
        self._wide: dict[Place, None] = {}

    def places(self, key: bytes) -> list[Watch | Place]:
        """The watches of this key, those of a range together."""
        exact = self._exact.get(key)
        found: list[Watch | Place] = [] if exact is None else [exact]
        if self._ranges:
            found += self._segments[bisect_right(self._bounds, key)]
            for place in self._wide:
                if place.covers(key):
                    found.append(place)
        return found

    def shared(self, watch: Watch) -> Place | None:
        """Where a watch of one key stands together with others, if it does."""
        there = self._exact.get(watch.key)
        return there if isinstance(there, Place) and watch in there.watches else None

    def add(self, watch: Watch) -> None:
        if not watch.range_end:
            self._add_exact(watch)
            return
        low, high = _bounds_of(watch)
        place = self._ranges.get((low, high))
        if place is None:
            place = self._ranges[low, high] = Place(low, high)
            self._insert(place)
        place.watches[watch] = None

    def _add_exact(self, watch: Watch) -> None:
        there = self._exact.get(watch.key)
        if there is None:
            self._exact[watch.key] = watch
        elif isinstance(there, Place):
            there.watches[watch] = None
        else:
            shared = Place(watch.key, None)
            shared.watches = {there: None, watch: None}
            self._exact[watch.key] = shared

    def remove(self, watch: Watch) -> None:
        """The watch is in the index."""
        if not watch.range_end:
            there = self._exact[watch.key]
            if isinstance(there, Place):
                del there.watches[watch]
                if there.watches:
                    return
            del self._exact[watch.key]
            return
        bounds = _bounds_of(watch)
        place = self._ranges[bounds]
        del place.watches[watch]
        if not place.watches:
            del self._ranges[bounds]
            self._take_out(place)

    # Segments

    def _insert(self, place: Place) -> None:
        first, last = self._span(place)
        covered = self._segments[first:last]
        deepest = max(map(len, covered))
        if len(covered) > SEGMENTS_MAX or deepest >= DEPTH_MAX:
            place.wide = True
            self._wide[place] = None
            return
        for bound in _ends_of(place):
            self._cut(bound)
        first, last = self._span(place)
        for number in range(first, last):
            self._segments[number] += (place,)

    def _take_out(self, place: Place) -> None:
        if place.wide:
            del self._wide[place]
            return
        first, last = self._span(place)
        for number in range(first, last):
            left = tuple(other for other in self._segments[number] if other is not place)
            self._segments[number] = left
        for bound in _ends_of(place):
            self._join(bound)

    def _span(self, place: Place) -> tuple[int, int]:
        """The segments that the place touches: all of them, from the first to before the last."""
        first = bisect_right(self._bounds, place.low)
        if place.high is None:
            return first, len(self._segments)
        return first, bisect_left(self._bounds, place.high) + 1

    def _cut(self, bound: bytes) -> None:
        count = self._ends.get(bound, 0)
        self._ends[bound] = count + 1
        if count == 0:
            position = bisect_left(self._bounds, bound)
            self._bounds.insert(position, bound)
            self._segments.insert(position, self._segments[position])

    def _join(self, bound: bytes) -> None:
        """A bound that no place needs separates two segments with the same places."""
        count = self._ends.pop(bound) - 1
        if count:
            self._ends[bound] = count
            return
        position = bisect_left(self._bounds, bound)
        del self._bounds[position]
        del self._segments[position]


def _bounds_of(watch: Watch) -> tuple[bytes, bytes | None]:
    return watch.key, None if watch.range_end == FROM_KEY else watch.range_end


def _ends_of(place: Place) -> Iterator[bytes]:
    yield place.low
    if place.high is not None:
        yield place.high

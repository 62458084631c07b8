"""Which snapshots to keep when not all can be kept: a few that stay evenly spread.

A mark uses the highest snapshot that it has passed; so how far an update lags behind the mark is
the gap between two snapshots. Nobody knows where marks will stop, so the largest gap shall be
small. One that is too many is chosen so that the gap that it leaves, from the one before it to the
one after it, is the smallest there is (of several, the first). The first and the last are never
chosen: the one is the next to be used, the other closes the gap to what comes.

Why that stays even: no gap was ever made larger while another place would have left a smaller one.
With positions that come at a steady pace all gaps are at most twice the average.

`crowded` is the rule itself, over a few positions; `Spread` does the same for many, one by one, in
logarithmic time: a heap of the gaps that removals would leave. A gap only ever grows, so that an
entry of the heap that is not true any more is too small: it comes up early, and is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

__all__ = ["SIZE_MIN", "Spread", "crowded"]

#: A first one, a last one, and one that may be chosen.
SIZE_MIN: Final = 3


def crowded(positions: Sequence[int]) -> int:
    """The one of these (sorted, at least `SIZE_MIN`) that is missed least."""
    if len(positions) < SIZE_MIN:
        raise ValueError(f"there must be {SIZE_MIN} positions at least")
    best, smallest = positions[1], positions[2] - positions[0]
    for index in range(2, len(positions) - 1):
        gap = positions[index + 1] - positions[index - 1]
        if gap < smallest:
            best, smallest = positions[index], gap
    return best


class Spread:
    """At most `size` of the positions that were added, which must rise. Iteration gives them."""

    def __init__(self, size: int) -> None:
        if size < SIZE_MIN:
            raise ValueError(f"there must be room for {SIZE_MIN} positions at least")
        self.size = size
        # Neighbours: 0 stands before the first; the last has none after it.
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}
        self._last = 0
        #: (gap that would be left, position)
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._before)

    def positions(self) -> list[int]:
        """All that are kept, rising."""
        # Only the end of the insertion order ever gets new ones, so it is the order of positions.
        return list(self._before)

    def add(self, position: int) -> int | None:
        """Add one above all others; the one that had to go, if any."""
        last = self._last
        if position <= last:
            raise ValueError(f"{position} is not above {last}")
        self._before[position] = last
        if last:
            self._after[last] = position
            self._note(last)
        self._last = position
        return self._evict() if len(self._before) > self.size else None

    def _note(self, position: int) -> None:
        before = self._before[position]
        if before:
            heappush(self._heap, (self._after[position] - before, position))

    def _evict(self) -> int:
        while True:
            gap, position = heappop(self._heap)
            before, after = self._before.get(position), self._after.get(position)
            if before and after and after - before == gap:
                break
        del self._before[position], self._after[position]
        self._after[before] = after
        self._before[after] = before
        self._note(before)
        if after != self._last:
            self._note(after)
        return position

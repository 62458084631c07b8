"""Counting how long things take, or how large they are, with next to no cost.

An observation is a search among a dozen bounds and two additions: a quarter of a microsecond. So it
belongs where something happens once per entry, write or message, never once per command; `count`
takes many that share one value.

Pure: whoever observes brings the value. One thread observes; any may read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

__all__ = ["COUNTS", "LONG_SECONDS", "SECONDS", "Histogram"]

#: From an fsync of a fast disk to beyond every election time-out.
SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0
)  # fmt: skip
#: For what takes a state of any size: snapshots.
LONG_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
#: Of things gathered into one.
COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """How many values were at most each bound, how many were greater than all, and their sum.

    `counts` has one place more than `bounds`; the places are not cumulated.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def observe(self, value: float, count: int = 1) -> None:
        """Note `count` observations of `value`."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)

"""How much work one slice of an entry is: a count, never a time.

A state machine that looked at a clock would not be pure, and a simulated run would not be a
function of its seed. So work is counted in rows looked at or written (costs.py), and an entry is
applied in slices of a bounded count. Where the slices end decides nothing: the state and the
outcomes are the same with any other bounds.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final, TypeVar

__all__ = ["FEW_ROWS", "SLICE_COMMANDS", "SLICE_ROWS", "Running", "Steps", "at_once"]

T = TypeVar("T")

#: A command that is applied in slices: it may be left at each `yield`, and returns its result.
#: Readers see nothing of it before its end. All that decides is the rows, never where it was left.
Steps = Generator[None, None, T]

#: Rows of one slice: comparing so many takes about 5 ms, deleting them about 6.
SLICE_ROWS: Final = 2_000
#: Commands of one slice: so many puts take about 2 ms.
SLICE_COMMANDS: Final = 256
#: Rows that one command may write without being counted: it is counted as a command anyway.
FEW_ROWS: Final = 8


class Running(Iterator[None]):
    """An iteration over slices that keeps their result."""

    def __init__(self, steps: Generator[None, None, Any]) -> None:
        self._steps = steps
        self.result: Any = None

    def __next__(self) -> None:
        try:
            next(self._steps)
        except StopIteration as end:
            self.result = end.value
            raise


def at_once(steps: Generator[Any, None, T]) -> T:
    """Go through all slices without leaving; the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result

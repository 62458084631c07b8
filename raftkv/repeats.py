"""Saying the same thing again, but not always: for log lines about trouble that goes on.

Trouble is said when it is new and once a minute while it lasts, with the number of times it was
left out. A plugin that fails at every entry, or a node that is refused at every attempt, would
otherwise fill the disk, and writing the lines would hold up the loop.

Pure: the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

__all__ = ["REPEAT_S", "Repeats"]

REPEAT_S: Final = 60.0
# Subjects remembered. The oldest is forgotten first, and is new when it comes again.
SUBJECTS_MAX: Final = 1_000


class Repeats:
    """Decides what is said again."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # What was said last about each subject, when, and how often it was not said since.
        self._said: dict[Hashable, tuple[str, float, int]] = {}

    def left_out(self, subject: Hashable, text: str) -> int | None:
        """How often this was left out since it was last said; None: leave it out now, too."""
        now = self._monotonic()
        last, at, left_out = self._said.pop(subject, ("", 0.0, 0))
        if last == text and now - at < REPEAT_S:
            self._said[subject] = last, at, left_out + 1
            return None
        self._said[subject] = text, now, 0
        if len(self._said) > SUBJECTS_MAX:
            del self._said[next(iter(self._said))]
        return left_out if last == text else 0

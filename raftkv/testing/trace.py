"""The trace of a simulated world: one compact line per event, and a running hash of all of them.

A line is `time host event`, the time in virtual seconds. Two runs of one seed must give the same
lines byte for byte; `digest` says so without keeping them. What goes into a line must therefore be
a function of the seed: no addresses, no process-wide counters, nothing in the order of a set.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

__all__ = ["Trace"]

# Lines are hashed in portions: a call of the hash for each would cost more than the line.
PORTION_LINES = 512


class Trace:
    """Collects lines; keeps the last `lines_max` (all of them when None).

    `echo` is given every line as it is recorded: `print`, for a replay that is to be watched.
    """

    def __init__(
        self, lines_max: int | None = 10_000, echo: Callable[[str], object] | None = None
    ) -> None:
        self.lines: deque[str] = deque(maxlen=lines_max)
        self.count = 0
        self.echo = echo
        self._hash = hashlib.sha256()
        self._portion: list[str] = []

    def record(self, time_s: float, host: str, event: str) -> None:
        line = f"{time_s:.6f} {host} {event}"
        self.count += 1
        self.lines.append(line)
        portion = self._portion
        portion.append(line)
        if len(portion) == PORTION_LINES:
            self._flush()
        if self.echo is not None:
            self.echo(line)

    def digest(self) -> str:
        """The sha256 of all lines so far, in hexadecimal."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        if self._portion:
            self._hash.update(("\n".join(self._portion) + "\n").encode("utf-8", "replace"))
            self._portion.clear()

"""The log's clock: the stamps that a leader puts on batches (rule 19).

It never goes back: it starts from the largest stamp in the whole log, the part that is not applied
yet included, and advances with the monotonic clock, so that a wall clock that jumps moves nothing
while a node leads. A new leader follows its wall clock forward, by a bounded step: whatever expires
on this clock would otherwise expire at once because one machine's date is wrong.
"""

from __future__ import annotations

from .runtime import Runtime

__all__ = ["LogClock"]

# A cluster that was switched off over a weekend catches up at its first election; a machine whose
# date is years off moves the clock by this much at most.
STEP_MAX_MS = 7 * 24 * 3600 * 1000


class LogClock:
    """Milliseconds since 1970, as agreed in the log."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._start_ms = 0
        self._start_s = runtime.monotonic()

    def observed(self, stamp_ms: int) -> None:
        """The log holds this stamp: never be behind it."""
        if stamp_ms > self.now_ms():
            self._start_ms = stamp_ms
            self._start_s = self._runtime.monotonic()

    def elected(self, largest_stamp_ms: int) -> None:
        """This node leads a new term; `largest_stamp_ms` is the greatest in its log."""
        wall_ms = self._runtime.wall_ms()
        start_ms = wall_ms
        if largest_stamp_ms:
            start_ms = max(largest_stamp_ms, min(wall_ms, largest_stamp_ms + STEP_MAX_MS))
        self._start_ms = start_ms
        self._start_s = self._runtime.monotonic()

    def now_ms(self) -> int:
        return self._start_ms + int((self._runtime.monotonic() - self._start_s) * 1000)

"""Deadlines of many waiting calls behind one timer.

A timer for each call, set and cancelled, costs more than the call, and a timer that is not
cancelled goes off in vain and looks at calls that were answered long ago. Here a call costs one
push on a heap. Its answer costs nothing: what is over stays on the heap until half of it is over,
and then all of that is dropped at once. So the work is a constant number of steps for each call
(times the logarithm of those that wait), whatever their time-outs are. One timer stands at the
earliest deadline; calls with the same time-out never move it.

An item that is over stays referenced for a while, so its owner drops what it holds of any size.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from .runtime import Runtime, Timer

__all__ = ["ALARM_GRAIN_S", "Deadlines"]

# A timer may go off early by the grain of the loop's clock: such a deadline counts as passed.
ALARM_GRAIN_S: Final = 0.001
# Items that may be over before the heap is searched for them, besides as many as were not.
OVER_KEPT: Final = 1024

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Gives `expire` the items whose deadline has passed and that are not over, earliest first."""

    def __init__(
        self,
        runtime: Runtime,
        is_over: Callable[[T], bool],
        expire: Callable[[list[T], float], None],
    ) -> None:
        """`expire(items, now)` may add items; `is_over` is asked about an item at any time."""
        self._runtime = runtime
        self._is_over = is_over
        self._expire = expire
        self._heap: list[tuple[float, int, T]] = []
        self._number = 0
        self._search_at = OVER_KEPT
        self._alarm: Timer | None = None
        self._alarm_at = math.inf
        self._stopped = False

    def __len__(self) -> int:
        """Items that are held, those that are over and not dropped yet included."""
        return len(self._heap)

    def add(self, at: float, item: T) -> None:
        """Note that `item` expires `at` (monotonic clock) unless it is over by then."""
        self._number = number = self._number + 1
        heap = self._heap
        heapq.heappush(heap, (at, number, item))
        if len(heap) > self._search_at:
            self._drop_what_is_over()
        if at < self._alarm_at:
            self._set_alarm(at)

    def _drop_what_is_over(self) -> None:
        is_over = self._is_over
        self._heap = heap = [entry for entry in self._heap if not is_over(entry[2])]
        heapq.heapify(heap)
        self._search_at = 2 * len(heap) + OVER_KEPT

    def _set_alarm(self, at: float) -> None:
        if self._stopped:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        delay_s = max(0.0, at - self._runtime.monotonic())
        self._alarm = self._runtime.call_later(delay_s, self._pass)

    def _pass(self) -> None:
        """Expire what is due, and wake up again for the next item that is not over."""
        # Items that `expire` adds set no alarm: the last line does.
        self._alarm, self._alarm_at = None, -math.inf
        now = self._runtime.monotonic()
        heap, is_over = self._heap, self._is_over
        due = []
        while heap and (heap[0][0] <= now + ALARM_GRAIN_S or is_over(heap[0][2])):
            item = heapq.heappop(heap)[2]
            if not is_over(item):
                due.append(item)
        try:
            if due and not self._stopped:
                self._expire(due, now)
        finally:
            self._alarm_at = math.inf
            if self._heap:
                self._set_alarm(self._heap[0][0])

    def stop(self) -> None:
        """Nothing expires any more. Idempotent."""
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._heap.clear()

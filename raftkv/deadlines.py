"""Deadlines of many waiting calls behind one timer.

A timer for each call, set and cancelled, costs more than the call, and a timer that is not
cancelled goes off in vain and looks at calls that were answered long ago. Here a call costs one
addition at the end of a queue if its deadline is not before the last one there, as it is for calls
with the same time-out, and else one push on a heap. Its answer costs nothing: what is over stays
until half of all is over, and then all of that is dropped at once. So the work is a constant number
of steps for each call (times the logarithm of those that wait, on the heap), whatever their
time-outs are. One timer stands at the earliest deadline; calls with the same time-out never move
it.

An item that is over stays referenced for a while, so its owner drops what it holds of any size.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from .runtime import Runtime, Timer

__all__ = ["ALARM_GRAIN_S", "Deadlines", "require_seconds"]

# A timer may go off early by the grain of the loop's clock: such a deadline counts as passed.
ALARM_GRAIN_S: Final = 0.001
# Items that may be over before they are searched for, besides as many as were not. Few: what stays
# allocated for longer than it is used makes the garbage collector look for it.
OVER_KEPT: Final = 64

T = TypeVar("T")


def require_seconds(timeout_s: float) -> None:
    """Raise ValueError for nan, which has no place in an order: others would wait behind it."""
    if math.isnan(timeout_s):
        raise ValueError("timeout_s = nan: it must be a number of seconds, or None for the default")


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
        # Each item stands in one of the two: in the queue with its time beside it, so that it costs
        # no object more, or on the heap as (time, number in the order of the additions, item).
        self._times: deque[float] = deque()
        self._queue: deque[T] = deque()
        self._heap: list[tuple[float, int, T]] = []
        self._number = 0
        self._search_at = OVER_KEPT
        self._alarm: Timer | None = None
        self._alarm_at = math.inf
        self._stopped = False

    def __len__(self) -> int:
        """Items that are held, those that are over and not dropped yet included."""
        return len(self._queue) + len(self._heap)

    def add(self, at: float, item: T) -> None:
        """Note that `item` expires `at` (monotonic clock) unless it is over by then."""
        times, queue = self._times, self._queue
        if not times or at >= times[-1]:
            times.append(at)
            queue.append(item)
        else:
            self._number += 1
            heapq.heappush(self._heap, (at, self._number, item))
        if len(queue) + len(self._heap) > self._search_at:
            self._drop_what_is_over()
        if at < self._alarm_at:
            self._set_alarm(at)

    def add_all(self, times: list[float], items: list[T]) -> None:
        """The same for many at once: less for each of them if they come in order."""
        if not times:
            return
        known = self._times
        if (known and times[0] < known[-1]) or times != sorted(times):
            for at, item in zip(times, items, strict=True):
                self.add(at, item)
            return
        known.extend(times)
        self._queue.extend(items)
        if len(self._queue) + len(self._heap) > self._search_at:
            self._drop_what_is_over()
        if times[0] < self._alarm_at:
            self._set_alarm(times[0])

    def _drop_what_is_over(self) -> None:
        is_over, times, queue = self._is_over, self._times, self._queue
        before = len(self)
        while queue and is_over(queue[0]):
            queue.popleft()  # most calls are answered in their order
            times.popleft()
        if 2 * len(self) > before:
            left = [(at, item) for at, item in zip(times, queue, strict=True) if not is_over(item)]
            self._times, self._queue = deque(at for at, _ in left), deque(item for _, item in left)
            self._heap = [entry for entry in self._heap if not is_over(entry[2])]
            heapq.heapify(self._heap)
        self._search_at = 2 * len(self) + OVER_KEPT

    def _first(self) -> tuple[float, T] | None:
        """The earliest of all; of the same time those of the queue, which are older."""
        times, heap = self._times, self._heap
        if heap and (not times or heap[0][0] < times[0]):
            return heap[0][0], heap[0][2]
        return (times[0], self._queue[0]) if times else None

    def _take_first(self) -> None:
        times, heap = self._times, self._heap
        if heap and (not times or heap[0][0] < times[0]):
            heapq.heappop(heap)
        else:
            times.popleft()
            self._queue.popleft()

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
        due = []
        while (first := self._first()) is not None:
            at, item = first
            over = self._is_over(item)
            if not over and at > now + ALARM_GRAIN_S:
                break
            self._take_first()
            if not over:
                due.append(item)
        try:
            if due and not self._stopped:
                self._expire(due, now)
        finally:
            self._alarm_at = math.inf
            if (first := self._first()) is not None:
                self._set_alarm(first[0])

    def stop(self) -> None:
        """Nothing expires any more. Idempotent."""
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._times.clear()
        self._queue.clear()
        self._heap.clear()

"""How long commands are on their way, without a look at the clock for each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from .histogram import Histogram
from .waiter import Waiter

__all__ = ["FlightTimes"]


class FlightTimes:
    """From leaving the proposal queue to the answer, by the messages under way.

    All commands of a message count with the time of the last of them.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.latency_s = Histogram()
        # (last number, when it left, commands)
        self._messages: deque[tuple[int, float, int]] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def left(self, last: int, count: int) -> None:
        """A message with that many commands has left for the first time."""
        self._messages.append((last, self._monotonic(), count))

    def landed(self, sent: Mapping[int, Waiter]) -> None:
        """An entry was applied here; `sent` are the numbers without an answer."""
        messages = self._messages
        while messages:
            last, left_at, count = messages[0]
            waiter = sent.get(last)
            if waiter is None:
                self.latency_s.observe(self._monotonic() - left_at, count)
            elif not waiter.abandoned:
                return
            messages.popleft()

    def clear(self) -> None:
        """The numbers begin again."""
        self._messages.clear()

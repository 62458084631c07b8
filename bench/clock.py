"""The driver's two clocks: one for when an operation began, one for how long it took."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

__all__ = ["Clock", "OsClock"]


class Clock(Protocol):
    """What a load may know of time."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    def wall_us(self) -> int:
        """Microseconds since the epoch, UTC."""

    async def sleep(self, seconds: float) -> None: ...


class OsClock:
    """The real clocks. Wall time is read once and carried on by the monotonic clock.

    So rows of one process are in order even if the machine's clock is set back during a run.
    """

    def __init__(self) -> None:
        self._offset_us = time.time_ns() // 1000 - time.perf_counter_ns() // 1000

    def now(self) -> float:
        return time.perf_counter()

    def wall_us(self) -> int:
        return self._offset_us + time.perf_counter_ns() // 1000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

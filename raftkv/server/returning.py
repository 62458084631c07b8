"""When the process returns memory that it held for clients to the system."""

from __future__ import annotations

from typing import Final

__all__ = ["FALL_BYTES", "PAUSE_S", "Returning"]

#: The least by which the bytes held must have fallen since they were most.
FALL_BYTES: Final = 8 * 1024 * 1024
#: Returning takes a few tens of milliseconds of a thread's time, in which the event loop may have
#: to wait for the allocator.
PAUSE_S: Final = 10.0


class Returning:
    """Looks once in a while at how many bytes are held."""

    def __init__(self) -> None:
        self._most = 0
        self._since = float("-inf")

    def is_due(self, held: int, now: float) -> bool:
        """Whether it is worth while now. `now` in seconds."""
        self._most = max(self._most, held)
        if self._most - held < FALL_BYTES or now - self._since < PAUSE_S:
            return False
        self._most, self._since = held, now
        return True

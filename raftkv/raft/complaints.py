"""Log lines about peers that misbehave, of which a hostile one could make any number.

An accepted connection gets a line of its own while the allowance lasts: a burst, then a steady
trickle; how many were left out is said with the next line. A node that this one dials again and
again is complained about when the reason changes, and once in a while.

Pure: the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftkv.repeats import Repeats

__all__ = ["Complaints"]

# A cluster that was configured wrongly is told in full; a flood is not.
BURST_LINES: Final = 100
LINES_PER_S: Final = 1.0


class Complaints:
    """Decides what is said."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._allowance = float(BURST_LINES)
        self._as_of = monotonic()
        self._left_out = 0
        # By the name of a dialled node, which is tried up to twice a second.
        self._dialled = Repeats(monotonic)

    def line(self, address: str, dialled: str, reason: str) -> str | None:
        """The line to log about the peer at `address`, or None when enough has been said."""
        now = self._monotonic()
        if dialled:
            if self._dialled.left_out(dialled, reason) is None:
                return None
            return f"closing the connection to {dialled} at {address}: {reason}"
        self._allowance = min(
            float(BURST_LINES), self._allowance + (now - self._as_of) * LINES_PER_S
        )
        self._as_of = now
        if self._allowance < 1:
            self._left_out += 1
            return None
        self._allowance -= 1
        more, self._left_out = self._left_out, 0
        counted = f" ({more} more connections were closed without a line)" if more else ""
        return f"closing a connection from {address}: {reason}{counted}"

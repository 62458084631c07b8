"""About how many bytes of outcomes the state keeps for a node, while a number holds its floor.

The outcomes of a node's session are dropped when the floor passes them, and usually that is at
once. A number without an answer may hold the floor for half a minute, though, and then the results
of everything behind it are part of every node's state and of the snapshots. What they take is
counted where they are answered, and only while the floor stands still: encoding every result once
more would cost a few percent of all proposals.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

__all__ = ["KEPT_BYTES_MAX", "KeptOutcomes"]

# Beyond that the floor is to move on. A quarter of what all clients' sessions may keep.
KEPT_BYTES_MAX: Final = 16 * 1024 * 1024

_encode = msgspec.msgpack.Encoder(enc_hook=lambda other: None).encode


class KeptOutcomes:
    """What one session keeps above its floor."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._sizes: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self._floor = 0
        #: Whether outcomes are to be counted: the floor stood still between two looks.
        self.held = False

    @property
    def full(self) -> bool:
        """Whether the floor should not be held any longer than it must."""
        return self._bytes > self._bytes_max

    def look(self, floor: int, *, waits: bool) -> None:
        """Once in a while: the floor, and whether a number holds it."""
        self.held = waits and floor == self._floor
        self._pass(floor)

    def add(self, seq: int, outcome: Any) -> None:
        """A number was answered while the floor is held."""
        size = len(_encode(outcome))
        self._sizes.append((seq, size))
        self._bytes += size

    def _pass(self, floor: int) -> None:
        self._floor = floor
        sizes = self._sizes
        while sizes and sizes[0][0] < floor:
            self._bytes -= sizes.popleft()[1]

    def restart(self) -> None:
        """Another session."""
        self._sizes.clear()
        self._bytes = self._floor = 0
        self.held = False

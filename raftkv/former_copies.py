"""Copies of clients' commands that outlive the request for which they left.

A rejection names session and number, and speaks of one copy. A client that got no answer may ask
the same node again under the same number. If the rejection of an earlier copy arrives then, it must
not be taken for one of the later request: that would be called not applied, although its own copy
may be. So the copies of a number are counted on from one request to the next: only a number of
which one copy ever left is called not applied when that is rejected.

They are remembered for FORMER_S: a rejection comes over links that are given up as soon as nothing
arrives on them for seconds. At most FORMER_MAX numbers are remembered. While there were more within
FORMER_S, every number counts as one of which a copy has left: a client then gets "unknown" where
"not applied" would do, and may ask the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["FORMER_MAX", "FORMER_S", "FormerCopies"]

#: How long a copy may still be rejected, in seconds: far longer than a link without traffic stands.
FORMER_S: Final = 60.0
#: Numbers remembered: about 1 MB. Only of requests that ended without the log's verdict on each
#: copy, so thousands in FORMER_S mean that the cluster does not work.
FORMER_MAX: Final = 8_192

Key = tuple[int, int]


class FormerCopies:
    """How many copies of numbers, by (session, number), were left behind lately."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # Copies and until when, in the order of that.
        self._left: dict[Key, tuple[int, float]] = {}
        # Until when numbers that are not remembered may have copies, too.
        self._doubt_until = 0.0

    def __len__(self) -> int:
        return len(self._left)

    def leave(self, key: Key, copies: int) -> None:
        """A request has ended of which so many copies may still be rejected."""
        if copies <= 0 or not key[0]:  # a session is opened under a number of its own each time
            return
        now = self._monotonic()
        self._expire(now)
        self._left.pop(key, None)
        if len(self._left) >= FORMER_MAX:
            _, until = self._left.pop(next(iter(self._left)))
            self._doubt_until = until
        self._left[key] = copies, now + FORMER_S

    def of(self, key: Key) -> int:
        """Copies of earlier requests for this number."""
        if not self._left and not self._doubt_until:
            return 0
        now = self._monotonic()
        self._expire(now)
        found = self._left.get(key)
        if found is not None:
            return found[0]
        return 1 if key[0] and now < self._doubt_until else 0

    def clear(self) -> None:
        """The history that they were sent into was given up."""
        self._left.clear()
        self._doubt_until = 0.0

    def _expire(self, now: float) -> None:
        while self._left:
            key = next(iter(self._left))
            if self._left[key][1] > now:
                return
            del self._left[key]

"""How often a client's address may do something: a token bucket for each.

Clients of one IPv6 network of 64 bits count as one: each host there has all its addresses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from raftkv.hostnames import source_of

__all__ = ["BURST_S", "PEERS_MAX", "PeerRate"]

#: What an address may save up, in seconds of its rate.
BURST_S: Final = 10
#: Addresses that are remembered. One that is forgotten begins with a full bucket.
PEERS_MAX: Final = 4_096


class PeerRate:
    """At most `per_s` a second for each address. `clock` gives seconds."""

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        # By source: what is left, and when that was. The one that was used last stands last.
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        #: How often an address was over its rate.
        self.refused = 0

    def take(self, host: str) -> bool:
        """Whether this address may do it once more now, which is then counted."""
        source, now, most = source_of(host), self._clock(), self._per_s * BURST_S
        left, since = self._left.pop(source, (most, now))
        left = min(most, left + (now - since) * self._per_s)
        allowed = left >= 1
        self._left[source] = (left - 1 if allowed else left, now)
        if len(self._left) > PEERS_MAX:
            self._left.popitem(last=False)
        self.refused += not allowed
        return allowed

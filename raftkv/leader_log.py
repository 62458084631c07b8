"""Lines about the leader: that a node lost or found one, and why.

They are warnings, so that a program which shows nothing less has them, too: without a leader no
write and no linearizable read is answered. A node that stays without one repeats the line at
growing intervals.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

__all__ = ["AGAIN_MAX_S", "AGAIN_MIN_S", "LeaderLog"]

log = logging.getLogger("raftkv.leader")

#: Seconds until the line is repeated, doubled each time up to the maximum.
AGAIN_MIN_S: Final = 10.0
AGAIN_MAX_S: Final = 600.0


class LeaderLog:
    """What one node, `name`, has logged of its leader."""

    def __init__(self, name: str, monotonic: Callable[[], float]) -> None:
        self._name = name
        self._monotonic = monotonic
        self._leader: str | None = None
        # Since when there is none, once that was logged; and when it is logged again.
        self._since: float | None = None
        self._again_at = 0.0
        self._pause_s = AGAIN_MIN_S

    def changed(self, leader: str | None, term: int, reason: str) -> None:
        """The node knows this leader now, or none, for a reason."""
        before, self._leader = self._leader, leader
        if leader == before:
            return
        if leader is None:
            self._lost(f"lost the leader {before} of term {term}: {reason}")
        elif self._since is not None:
            log.warning(
                "%s: %s leads term %d, after %.1f s without a leader",
                self._name,
                leader,
                term,
                self._monotonic() - self._since,
            )
            self._since = None
        else:
            was = "" if before is None else f", after {before}"
            level = logging.INFO if before is None else logging.WARNING
            log.log(level, "%s: %s leads term %d%s", self._name, leader, term, was)

    def missing(self, reason: str) -> None:
        """There still is no leader: logged when that is new, then at growing intervals."""
        if self._since is None:
            self._lost(f"knows no leader: {reason}")
            return
        now = self._monotonic()
        if now >= self._again_at:
            self._pause_s = min(AGAIN_MAX_S, 2 * self._pause_s)
            self._again_at = now + self._pause_s
            log.warning(
                "%s: still no leader, for %.0f s: %s", self._name, now - self._since, reason
            )

    def _lost(self, text: str) -> None:
        self._since = self._monotonic()
        self._pause_s = AGAIN_MIN_S
        self._again_at = self._since + AGAIN_MIN_S
        log.warning("%s: %s", self._name, text)

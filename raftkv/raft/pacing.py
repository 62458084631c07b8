"""How fast a snapshot is walked while its node works.

A slice of the walk takes part of a millisecond, and one in each turn of the loop would be fair to
every other callback. It is not fair to the log. An entry needs several turns on each node, one
after the other: to be appended, acknowledged, committed, applied. With a slice in each of them a
cluster under load did less than half of its work until the snapshot was there, and its processors
were not even busy: while one node works on an entry, the others wait for it.

So a slice waits for a gap: the moment at which the disk has what was written, the answers have left
and nothing else is to be done. A follower then waits for the leader, and a leader for its
followers, for longer than a slice takes. Between two slices lies a multiple of what the first one
took, so that the walk gets a share of the loop: at most GAP_SHARE in gaps, and at least
`least_share`, if no gap comes. When the log behind the snapshot is half as long as begins the
next one, the least share begins to grow, up to HASTE_SHARE: so the walk ends whatever the load,
and the log is not much longer than that when it does.

A node under full load has few turns: each of them takes milliseconds, and a slice less than one. To
have its share the walk must take several slices in one turn. What it did not get is a credit that
it may use at once, but never more than BURST_S of it: nobody is to wait longer than that.

In a node at rest nothing waits.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

__all__ = ["AT_ONCE", "BURST_S", "GAP_SHARE", "HASTE_SHARE", "NEXT_TURN", "REST_S", "Pace", "Wait"]

GAP_SHARE: Final = 0.25
# Where the log behind the snapshot makes the walk hurry, as a part of what begins the next one.
HURRY: Final = 0.5
# What it then has of the loop in the end: the other half is the callers', who write the log.
HASTE_SHARE: Final = 0.5
BURST_S: Final = 0.004
# A node that has applied nothing for so long is at rest. Between two entries of a node at work lie
# many turns of its loop, and a sync of its disk.
REST_S: Final = 0.05


class Wait(NamedTuple):
    """When the next slice is due: in a gap from `earliest` on, at `latest` without one."""

    earliest: float
    latest: float


#: In this turn of the loop.
AT_ONCE: Final = Wait(-math.inf, -math.inf)
#: Without regard to gaps.
NEXT_TURN: Final = Wait(0.0, 0.0)


class Pace:
    """The waits of one walk. `least_share`: of the loop, above 0 and at most 1."""

    def __init__(self, least_share: float) -> None:
        self._least_share = least_share
        self._applied = -1
        self._moved_at = 0.0
        # When the last slice ended, and how much longer than it did the walk might have taken.
        self._ended_at = math.inf
        self._credit_s = 0.0

    def after(self, slice_s: float, now: float, applied: int, log_filled: float) -> Wait:
        """When to go on behind a slice that took `slice_s` and has just ended.

        All on the clock of `now`. `applied`: the index that the node has reached. `log_filled`: the
        log behind the snapshot as a part of what begins the next one.
        """
        idle_s = max(0.0, now - slice_s - self._ended_at)
        self._ended_at = now
        if applied != self._applied:
            self._applied, self._moved_at = applied, now
        haste = min(1.0, max(0.0, (log_filled - HURRY) / (1 - HURRY)))
        least = self._least_share + max(0.0, HASTE_SHARE - self._least_share) * haste
        if now - self._moved_at > REST_S or slice_s <= 0 or least >= 1:
            self._credit_s = 0.0
            return NEXT_TURN
        others = 1 / least - 1  # so much of others' time for each second of the walk
        credit_s = min(BURST_S, self._credit_s + idle_s / others) - slice_s
        self._credit_s = credit_s = max(-slice_s, credit_s)
        if credit_s > 0:
            return AT_ONCE
        latest = now - credit_s * others
        return Wait(min(latest, now + slice_s * (1 / GAP_SHARE - 1)), latest)

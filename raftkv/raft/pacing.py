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
`least_share`, if no gap comes. When the log behind the snapshot is half as long as begins the next
one, the shares begin to grow, until the walk has a slice in each turn; so it ends whatever the
load. In a node at rest nothing waits.
"""

from __future__ import annotations

from typing import Final

__all__ = ["GAP_SHARE", "REST_S", "Pace"]

GAP_SHARE: Final = 0.25
# Where the log behind the snapshot makes the walk hurry, as a part of what begins the next one.
HURRY: Final = 0.75
# A node that has applied nothing for so long is at rest. Between two entries of a node at work lie
# many turns of its loop, and a sync of its disk.
REST_S: Final = 0.05


class Pace:
    """The waits of one walk. `least_share`: of the loop, above 0 and at most 1."""

    def __init__(self, least_share: float) -> None:
        self._least_share = least_share
        self._applied = -1
        self._moved_at = 0.0

    def after(
        self, slice_s: float, now: float, applied: int, log_filled: float
    ) -> tuple[float, float] | None:
        """When to go on behind a slice that took `slice_s`: (at a gap from then on, at the latest).

        Both on the clock of `now`; None: in the next turn. `applied`: the index that the node has
        reached. `log_filled`: the log behind the snapshot as a part of what begins the next one.
        """
        if applied != self._applied:
            self._applied, self._moved_at = applied, now
        if now - self._moved_at > REST_S or slice_s <= 0:
            return None
        haste = max(0.0, (log_filled - HURRY) / (1 - HURRY))
        if haste >= 1:
            return None
        least = self._least_share + (1 - self._least_share) * haste
        most = max(least, GAP_SHARE)
        return now + slice_s * (1 / most - 1), now + slice_s * (1 / least - 1)

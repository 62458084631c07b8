"""What all checks of storms of regions share: the names of the rules, and small helpers."""

from __future__ import annotations

from collections.abc import Iterable

from raftkv_subscriptions.rows import LOCAL

from .storm_ledger import Number, Step

__all__ = [
    "BEGIN",
    "CHECKS",
    "CLAIMS",
    "FULL",
    "HANDS",
    "HOLES",
    "KEPT",
    "LIMITED",
    "MARKS",
    "ONCE",
    "ONLY",
    "RETENTION",
    "SNAPSHOTS",
    "Found",
    "expanded",
    "own_of",
]

ONCE = "each message once, in order"
HOLES = "holes are told"
RETENTION = "retention waits"
ONLY = "only what was acknowledged"
KEPT = "acknowledged is acknowledged"
BEGIN = "beginnings are right"
MARKS = "marks are true"
SNAPSHOTS = "snapshots are consistent"
HANDS = "one pair of hands"
LIMITED = "limits change when asked"
FULL = "full is what is waited for"
CLAIMS = "claims count up to what was sent"

CHECKS = (ONCE, HOLES, RETENTION, ONLY, KEPT, BEGIN, MARKS, SNAPSHOTS, HANDS, LIMITED, FULL, CLAIMS)

#: (check, what is wrong)
Found = tuple[str, str]


def own_of(step: Step) -> str:
    """The name of the region, as its log has it."""
    meta = step.tables.table("meta").get("state")
    return LOCAL if meta is None or not meta.region else str(meta.region)


def expanded(ranges: Iterable[tuple[str, int, int]]) -> set[Number]:
    """The messages of ranges, one by one."""
    return {(o, seq) for o, first, last in ranges for seq in range(first, last + 1)}

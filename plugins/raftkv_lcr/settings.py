"""The registry's replicated settings: the same on all nodes, changed at run time by the log.

What decides a verdict must be one of these. What only paces background work is here, too, where
operators look for it and where one change reaches the next leader.

A member that runs 0.1.0 does not know the settings with `core_format=2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raftkv.plugin import Setting

from .commands import CLEANUP_ROWS_LIMIT

__all__ = ["SETTINGS", "keeps_older"]

DAY_MS = 86_400_000


def _check_policy(value: Any) -> str | None:
    return None if value in ("displace", "refuse") else 'must be "displace" or "refuse"'


def _check_older(value: Any) -> str | None:
    return None if value in ("displace", "keep") else 'must be "displace" or "keep"'


def _between(lowest: int, highest: int, unit: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        return None if lowest <= value <= highest else f"must be {lowest} to {highest} {unit}"

    return check


SETTINGS = (
    Setting(
        "policy",
        str,
        "displace",
        _check_policy,
        "What a third connection meets while a second takes over: the newest displaces, or is "
        "refused.",
    ),
    # Nothing in `apply` reads it, but all nodes must do the same (`keeps_older`).
    Setting(
        "older_connection",
        str,
        "displace",
        _check_older,
        "What a connection meets whose client is still connected elsewhere: it displaces the "
        "older connection, or the older one is kept and it is refused.",
        core_format=2,
    ),
    # A connection authenticates, and waits for a predecessor that hangs, for some seconds; brokers
    # close one that takes a minute. It is also what a wrong clock may cost, see docs/lcr.md.
    Setting(
        "connect_age_max_ms",
        int,
        60_000,
        _between(0, 3_600_000, "milliseconds"),
        "Milliseconds before the stamp of its log entry at which a connection may have been made "
        "by the clock of its transport; an older connect time counts as this one. 0: given times "
        "are not used.",
        core_format=2,
    ),
    # Longer than any takeover should last, as long as the lock that the seed wants to get rid of.
    Setting(
        "claim_ms",
        int,
        30_000,
        _between(100, 600_000, "milliseconds"),
        "Milliseconds of the log's clock after which a claimant that did not return is ignored.",
    ),
    # Some 2 ms of apply: the batch must not hold up a heartbeat.
    Setting(
        "cleanup_rows_max",
        int,
        200,
        _between(1, CLEANUP_ROWS_LIMIT, "rows"),
        "Rows of a dead node, or of the history, that one log entry deletes.",
    ),
    Setting(
        "history_ms",
        int,
        0,
        _between(0, 366 * DAY_MS, "milliseconds"),
        "Milliseconds of the log's clock for which the last channel of a client that has left is "
        "remembered; 0: not at all.",
    ),
    # Some 30 MB on each node with client ids of 20 letters.
    Setting(
        "history_rows_max",
        int,
        100_000,
        _between(1, 10_000_000, "rows"),
        "Clients that have left of which the history knows; the oldest make room.",
    ),
    # Upstream's figures for the two. A row costs some microseconds; what is spared is the log.
    Setting(
        "sweep_rows_per_s",
        int,
        500,
        _between(1, 100_000, "rows per second"),
        "Rows per second that a node looks at in its sweep for rows without a channel.",
    ),
    Setting(
        "sweep_interval_s",
        int,
        600,
        _between(0, 86_400, "seconds"),
        "Seconds from the start of one sweep to that of the next; 0: no sweeps.",
    ),
)


def keeps_older(settings: Mapping[str, Any]) -> bool:
    """Whether a connection is refused while an older one of its client is connected."""
    return bool(settings["older_connection"] == "keep")

"""The replicated settings of cluster calls: the same on all nodes, changed at run time by the log.

The first three are the seed's (`retry_interval`, `max_history`, `cleanup_interval`), with its
defaults and its range. What only paces work is here, too: one change reaches all nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftkv.plugin import Setting

__all__ = ["SETTINGS"]

KIB = 1024


def _between(lowest: int, highest: int, unit: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        return None if lowest <= value <= highest else f"must be {lowest} to {highest} {unit}"

    return check


SETTINGS = (
    Setting(
        "retry_ms",
        int,
        1_000,
        _between(100, 600_000, "milliseconds"),
        "Milliseconds, at most, from one attempt at a failing call to the next.",
    ),
    Setting(
        "history_max",
        int,
        100,
        _between(1, 500, "records"),
        "Records of calls that all nodes have executed which are kept to be looked at.",
    ),
    Setting(
        "cleanup_ms",
        int,
        300_000,
        _between(1_000, 86_400_000, "milliseconds"),
        "Milliseconds from one cleaning of the history to the next.",
    ),
    # 10,000 calls with arguments of 1 KiB are 10 MB in every node's memory and snapshots.
    Setting(
        "history_hard_max",
        int,
        10_000,
        _between(1_000, 100_000, "records"),
        "Records that are kept for a node which does not execute them; it then needs a full sync.",
    ),
    # 256 callers at each of 3 nodes have room.
    Setting(
        "queue_max",
        int,
        1_000,
        _between(1, 10_000, "calls"),
        "Calls that wait for their turn; more are refused.",
    ),
    # Every node keeps the arguments of the whole history: large data belongs elsewhere.
    Setting(
        "args_bytes_max",
        int,
        64 * KIB,
        _between(1, 1024 * KIB, "bytes"),
        "Bytes of the encoded arguments of one call.",
    ),
    # While one call runs at its initiator, all others wait.
    Setting(
        "deadline_max_ms",
        int,
        600_000,
        _between(1_000, 86_400_000, "milliseconds"),
        "Milliseconds of the log's clock after which a call that has not committed is aborted, "
        "whatever its caller asked for.",
    ),
    Setting(
        "replicants_take_part",
        bool,
        False,
        None,
        "Whether replicants execute calls, too.",
    ),
)

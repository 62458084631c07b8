"""The replicated settings of the limbo: the same on all nodes, changed at run time by the log.

The quorum is here and nowhere else: with a local configuration two nodes could come to two
verdicts. A change of it counts for those that wait already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raftkv.plugin import Setting

from .commands import NAME_CHARS_MAX, VALIDATORS_MAX
from .quorum_expression import why_not

__all__ = ["QUORUM_SETTINGS", "SETTINGS"]

KIB: Final = 1024
MIB: Final = 1024 * KIB
#: Zones that the quorum may name.
ZONES_MAX: Final = 16
#: Nodes that one zone or validator may ask for.
COUNT_MAX: Final = 31

#: Those that decide what is confirmed.
QUORUM_SETTINGS: Final = ("quorum", "quorum_over", "quorum_zones", "quorum_validators")


def _between(lowest: int, highest: int, unit: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        return None if lowest <= value <= highest else f"must be {lowest} to {highest} {unit}"

    return check


def _over(value: Any) -> str | None:
    return None if value in ("cores", "members") else 'must be "cores" or "members"'


def _counts(names_max: int) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if len(value) > names_max:
            return f"must have {names_max} names at most"
        for name, count in value.items():
            if not 1 <= len(name) <= NAME_CHARS_MAX:
                return f"a name has 1 to {NAME_CHARS_MAX} letters"
            if not 1 <= count <= COUNT_MAX:
                return f"{name}: must be 1 to {COUNT_MAX} nodes"
        return None

    return check


SETTINGS = (
    Setting(
        "quorum",
        str,
        "N / 2 + 1",
        why_not,
        "Nodes that must hold a synchronous transaction before it is confirmed: a number, or an "
        "expression in N (the nodes that count) with + - * / ( ) floor ceil min max, rounded down.",
    ),
    Setting(
        "quorum_over",
        str,
        "cores",
        _over,
        'Which nodes count: "cores", or "members" (replicants, too).',
    ),
    Setting(
        "quorum_zones",
        dict[str, int],
        {},
        _counts(ZONES_MAX),
        "Nodes of each named zone that must hold a synchronous transaction, besides the quorum.",
    ),
    Setting(
        "quorum_validators",
        dict[str, int],
        {},
        _counts(VALIDATORS_MAX),
        "Nodes on which each named validator must have approved, besides the quorum.",
    ),
    # Tarantool's default. All of it is in every node's memory, and in its snapshots.
    Setting(
        "queue_bytes_max",
        int,
        16 * MIB,
        _between(1, 64 * MIB, "bytes"),
        "Bytes of keys and values that wait in the queue; the first one always enters.",
    ),
    # One entry of the log may confirm or roll back all of them: some 20 ms by default, and with the
    # highest limits of entries and writes, and a large space, about 100 ms.
    Setting(
        "queue_entries_max",
        int,
        1_000,
        _between(1, 3_000, "entries"),
        "Entries from the oldest pending one to the last.",
    ),
    Setting(
        "queue_writes_max",
        int,
        4_000,
        _between(1, 5_000, "writes"),
        "Writes that wait in the queue; the first transaction always enters.",
    ),
    Setting(
        "transaction_writes_max",
        int,
        128,
        _between(1, 1_000, "writes and conditions"),
        "Writes and conditions of one transaction.",
    ),
    Setting(
        "transaction_bytes_max",
        int,
        MIB,
        _between(1, 16 * MIB, "bytes"),
        "Bytes of the keys and values of one transaction.",
    ),
    Setting(
        "spaces_max",
        int,
        256,
        _between(1, 10_000, "spaces"),
        "Spaces.",
    ),
    # Off: a time-out tells nothing of what others hold. It is a request, and may come too late.
    Setting(
        "rollback_after_ms",
        int,
        0,
        lambda value: (
            None
            if value == 0 or 100 <= value <= 3_600_000
            else "must be 0 (off) or 100 to 3600000 milliseconds"
        ),
        "Milliseconds after which the owner asks to roll back what is still pending; 0: never.",
    ),
    Setting(
        "leader_promotes",
        bool,
        False,
        None,
        "Whether the Raft leader makes itself the owner of the queue.",
    ),
    Setting(
        "entries_kept",
        int,
        100,
        _between(0, 1_000, "entries"),
        "Settled entries that are kept to be looked at.",
    ),
    Setting(
        "rollbacks_kept",
        int,
        1_000,
        _between(10, 10_000, "runs"),
        "Runs of rolled back positions that are kept; of older positions the verdict is forgotten.",
    ),
)

"""The replicated settings of transactional queues: the same on all nodes, changed by the log.

Limits of a single queue are not here but in its declaration. A limit that is lowered leaves what is
there already, and counts from the next command on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raftkv.plugin import Setting

__all__ = ["SETTINGS"]

KIB: Final = 1024
MIB: Final = 1024 * KIB
DAY_MS: Final = 24 * 3_600_000
#: The longest time-out of a distributed transaction that an operator may allow.
WEEK_MS: Final = 7 * DAY_MS


def _between(lowest: int, highest: int, unit: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        return None if lowest <= value <= highest else f"must be {lowest} to {highest} {unit}"

    return check


def _off_or_between(lowest: int, highest: int, unit: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if value == 0 or lowest <= value <= highest:
            return None
        return f"must be 0 (off) or {lowest} to {highest} {unit}"

    return check


SETTINGS = (
    # A command is one entry and must pass between two heartbeats: the highest is a node's default
    # bound for a command.
    Setting(
        "message_bytes_max",
        int,
        256 * KIB,
        _between(KIB, MIB, "bytes"),
        "Bytes of one message, its headers and 64 bytes of overhead with it.",
    ),
    # Each has a row on every node, and lists show them all.
    Setting("queues_max", int, 1_000, _between(1, 10_000, "queues"), "Queues."),
    Setting(
        "sessions_max",
        int,
        10_000,
        _between(1, 100_000, "sessions"),
        "Sessions that have not ended, on all nodes together.",
    ),
    Setting(
        "sessions_kept",
        int,
        10_000,
        _between(0, 100_000, "sessions"),
        "Ended sessions whose transactions can still be asked after; the oldest are forgotten.",
    ),
    # What one ending session gives back takes that many rows of sweeping.
    Setting(
        "acquired_max",
        int,
        10_000,
        _between(1, 100_000, "messages"),
        "Messages that one session holds.",
    ),
    Setting(
        "rollbacks_kept",
        int,
        1_000,
        _between(1, 10_000, "transactions"),
        "Rolled back transactions of one session that are told from committed ones.",
    ),
    Setting(
        "transactions_max",
        int,
        10_000,
        _between(1, 100_000, "transactions"),
        "Undecided transactions with rows of their own: those that were staged, and prepared ones.",
    ),
    Setting(
        "transaction_rows_max",
        int,
        100_000,
        _between(1, 1_000_000, "messages"),
        "Messages that one transaction publishes and accepts.",
    ),
    # All of it is in every node's memory, and in its snapshots.
    Setting(
        "transaction_bytes_max",
        int,
        64 * MIB,
        _between(KIB, 1024 * MIB, "bytes"),
        "Bytes of the messages that one transaction publishes.",
    ),
    Setting(
        "staged_bytes_max",
        int,
        256 * MIB,
        _between(KIB, 4096 * MIB, "bytes"),
        "Bytes of the messages that all undecided transactions publish, together.",
    ),
    Setting(
        "transaction_timeout_ms",
        int,
        300_000,
        _off_or_between(100, DAY_MS, "milliseconds"),
        "Milliseconds from the first staging of a local transaction until it may be rolled back; "
        "0: no limit.",
    ),
    # A participant that is alive answers in the time of a disk write; this is for one that hangs.
    Setting(
        "prepare_timeout_ms",
        int,
        10_000,
        _between(100, 600_000, "milliseconds"),
        "Milliseconds that the participants have for their votes.",
    ),
    # AMQP brokers' default and maximum.
    Setting(
        "dtx_timeout_ms",
        int,
        60_000,
        _off_or_between(100, WEEK_MS, "milliseconds"),
        "Milliseconds until an unprepared branch is rolled back, unless it was started with "
        "another time-out; 0: never.",
    ),
    Setting(
        "dtx_timeout_max_ms",
        int,
        3_600_000,
        _between(100, WEEK_MS, "milliseconds"),
        "The longest time-out in milliseconds that a branch may be started with.",
    ),
    Setting(
        "outcome_retention_ms",
        int,
        3_600_000,
        _between(1_000, 30 * DAY_MS, "milliseconds"),
        "Milliseconds for which the outcomes of transactions of an ended session, and failed "
        "branches, are kept.",
    ),
    Setting(
        "ttl_max_ms",
        int,
        30 * DAY_MS,
        _between(1_000, 365 * DAY_MS, "milliseconds"),
        "The longest time to live in milliseconds that a message may be published with.",
    ),
    Setting(
        "delay_max_ms",
        int,
        7 * DAY_MS,
        _between(1_000, 365 * DAY_MS, "milliseconds"),
        "The longest delay in milliseconds that a message may be published with.",
    ),
    # Two or three short rows each, on every node, besides the message.
    Setting(
        "timed_max",
        int,
        100_000,
        _between(1, 1_000_000, "times"),
        "Times to live and delays in all queues; a message with such a time in an undecided "
        "transaction counts as two.",
    ),
    Setting(
        "decisions_kept",
        int,
        100_000,
        _between(1, 1_000_000, "decisions"),
        "Decisions about branches that are kept for those who ask; the oldest are dropped, and "
        "with them failed branches that nobody has asked after.",
    ),
)

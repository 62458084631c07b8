"""The replicated settings of subscriptions: the same on all nodes of a region, changed by its log.

Regions do not share them: each is a cluster of its own. Limits of a single topic are not here but
in its declaration. A limit that is lowered leaves what is there already, and counts from the next
command on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raftkv.plugin import Setting

__all__ = ["SETTINGS"]

KIB: Final = 1024
MIB: Final = 1024 * KIB


def _between(lowest: int, highest: int, unit: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        return None if lowest <= value <= highest else f"must be {lowest} to {highest} {unit}"

    return check


def _one_of(*words: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        return None if value in words else f"must be one of {', '.join(words)}"

    return check


SETTINGS = (
    Setting(
        "enabled",
        bool,
        True,
        None,
        "Whether subscriptions may be replicated: if not, none is switched on, and what other "
        "regions say of theirs is ignored.",
    ),
    Setting(
        "mode",
        str,
        "vector",
        _one_of("vector", "snapshot"),
        'How subscriptions are replicated: "vector" (exact), or "snapshot" (by markers).',
    ),
    # The lowest: below it rounds of regions that are far apart would follow one another at once.
    Setting(
        "period_ms",
        int,
        1_000,
        _between(50, 600_000, "milliseconds"),
        "Milliseconds between two snapshots of a topic (snapshot mode).",
    ),
    Setting(
        "timeout_ms",
        int,
        30_000,
        _between(100, 3_600_000, "milliseconds"),
        "Milliseconds after which a snapshot that is not complete is abandoned.",
    ),
    # Spacing needs a first, a last and one between; each is a row of some 100 bytes.
    Setting(
        "cached_max",
        int,
        30,
        _between(3, 1_000, "snapshots"),
        "Snapshots that a subscription has at hand for the marks to come.",
    ),
    # What a subscription that is sought back finds again.
    Setting(
        "snapshots_kept",
        int,
        1_000,
        _between(3, 10_000, "snapshots"),
        "Snapshots of a topic that are kept.",
    ),
    # A command is one entry and must pass between two heartbeats: the highest is a node's default
    # bound for a command.
    Setting(
        "message_bytes_max",
        int,
        256 * KIB,
        _between(KIB, MIB, "bytes"),
        "Bytes of one message that is published, its key, its headers and 64 bytes with it.",
    ),
    # Each has rows on every node, and lists show them all.
    Setting("topics_max", int, 1_000, _between(1, 10_000, "topics"), "Topics."),
    # Retention looks at the mark of each.
    Setting(
        "subs_max",
        int,
        1_000,
        _between(1, 10_000, "subscriptions"),
        "Subscriptions of one topic.",
    ),
    Setting(
        "consumers_max",
        int,
        10_000,
        _between(1, 100_000, "consumers"),
        "Consumers that have not ended, on all nodes together.",
    ),
    # What ended consumers give back takes that many rows of sweeping.
    Setting(
        "unacked_max",
        int,
        10_000,
        _between(1, 100_000, "messages"),
        "Messages of a shared subscription that are in the hands of its consumers.",
    ),
    # Each is a row, all of them go to the other regions when a link opens, and one command may
    # remove them all: with the highest that takes a tenth of a second.
    Setting(
        "ranges_max",
        int,
        10_000,
        _between(10, 20_000, "ranges"),
        "Ranges of acknowledged messages that a subscription has beyond its first gap.",
    ),
    # Each keeps a message for as long as the topic lives.
    Setting(
        "keys_max",
        int,
        100_000,
        _between(1, 1_000_000, "keys"),
        "Keys of a compacted topic.",
    ),
)

"""Counters of the registry on one node, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterator

from raftkv.plugin import Metric

__all__ = ["Counters"]

_DOC = {
    "registered": "Registrations written or repeated.",
    "took_over": "Registrations that took over a predecessor's session.",
    "restart": "Registrations answered with the real predecessor, to be tried again.",
    "ahead": "Registrations whose predecessor had left; nothing was written.",
    "outdated_early": "Connections refused by this node's own copy, without the log.",
    "outdated_late": "Connections refused in the log because a newer one is known.",
    "in_progress": "Connections refused because another takeover is under way.",
    "retries_exhausted": "Connects that gave up after the bounded number of retries.",
    "unregistered": "Rows deleted by their exact name.",
    "unregistered_absent": "Deletions that found nothing (late, doubled or fenced).",
    "lost": "Channels of this node that were taken over, kicked or fenced.",
    "cleanup_rows": "Rows of dead nodes that this node, as leader, had deleted.",
    "cleanup_runs": "Cleanups of dead nodes that this node, as leader, finished.",
}


class Counters:
    """Named counters; every name must be known, so that a typing error cannot hide a metric."""

    def __init__(self) -> None:
        self._values = dict.fromkeys(_DOC, 0)

    def add(self, name: str, count: int = 1) -> None:
        self._values[name] += count

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def metrics(self) -> Iterator[Metric]:
        for name, value in self._values.items():
            yield Metric(f"{name}_total", "counter", value, _DOC[name])

    def as_dict(self) -> dict[str, int]:
        return dict(self._values)

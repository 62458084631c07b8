"""The few figures shown at the terminal while a run goes on and when it ends.

They are rough on purpose: durations fall into buckets that are 9 % wide, and nothing is kept of
them. The figures that count come from the log, by `python -m bench analyse`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from bench.schema import Row

__all__ = ["Tally", "bucket_of", "quantile_us"]

BUCKETS_PER_DOUBLING = 8


def bucket_of(duration_us: int) -> int:
    """The bucket of a duration."""
    return int(math.log2(duration_us) * BUCKETS_PER_DOUBLING) if duration_us > 0 else 0


def quantile_us(buckets: Mapping[int, int], share: float) -> float | None:
    """The middle of the bucket in which `share` of the durations are reached; None without any."""
    left = math.ceil(sum(buckets.values()) * share)
    for bucket in sorted(buckets):
        left -= buckets[bucket]
        if left <= 0:
            return float(2 ** ((bucket + 0.5) / BUCKETS_PER_DOUBLING))
    return None


class Tally:
    """Outcomes and durations of one kind of operation."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.buckets: dict[int, int] = {}

    def add(self, row: Row) -> None:
        """Counts a connect of the phase `load`; other rows are not for the terminal."""
        if row.op == "connect" and row.phase == "load":
            self.outcomes[row.outcome] = self.outcomes.get(row.outcome, 0) + 1
            if row.outcome == "ok":
                self.add_duration(row.duration_us)

    def add_duration(self, duration_us: int) -> None:
        bucket = bucket_of(duration_us)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def include(self, outcomes: Mapping[str, int], buckets: Mapping[int, int]) -> None:
        """Adds another tally's counts."""
        for outcome, count in outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        for bucket, count in buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    @property
    def ok(self) -> int:
        return self.outcomes.get("ok", 0)

    @property
    def others(self) -> str:
        """What was not ok, in words, most frequent first."""
        rest = [(count, name) for name, count in self.outcomes.items() if name != "ok"]
        return ", ".join(f"{count} {name}" for count, name in sorted(rest, reverse=True))

    @staticmethod
    def of(durations_us: Iterable[int], outcomes: Mapping[str, int]) -> Tally:
        tally = Tally()
        tally.outcomes = dict(outcomes)
        for duration_us in durations_us:
            tally.add_duration(duration_us)
        return tally

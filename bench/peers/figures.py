"""The figures of a comparison: what was measured in each round, and what the rounds say together.

A ratio is taken within a round, between two measurements that were made one after the other on the
same machine; shown are the median of the rounds and the lowest and highest. Absolute figures are
medians, too.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

__all__ = ["Comparison", "Line", "Sample", "Spread", "lines"]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one side in one round; what is not known is None.

    `in_flight`: connections, or calls at once for callers inside a node.
    """

    load: str
    in_flight: int
    side: str
    round: int
    per_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    refused: int = 0
    failed: int = 0
    client_cpu: float | None = None
    server_cpu: float | None = None


class Spread(msgspec.Struct, frozen=True):
    """The median of the rounds, the lowest and the highest."""

    median: float
    lowest: float
    highest: float

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        """Of at least one value."""
        found = sorted(values)
        return Spread(statistics.median(found), found[0], found[-1])


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One load at one number of connections: the peer, raftkv, and raftkv divided by the peer."""

    load: str
    in_flight: int
    peer_per_s: Spread
    raftkv_per_s: Spread
    ratio: Spread
    peer_p99_ms: float | None
    raftkv_p99_ms: float | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    peer: str
    peer_version: str
    conditions: dict[str, Any]
    lines: list[Line]
    samples: list[Sample]


def lines(samples: Sequence[Sample], peer: str, against: dict[str, str]) -> list[Line]:
    """One line for each load and number that both sides have, in the order of their first sample.

    `against` names the peer's load that a load of raftkv stands beside, if that is another one.
    """
    found = []
    for load, in_flight in dict.fromkeys((each.load, each.in_flight) for each in samples):
        ours = _rounds(samples, load, in_flight, "raftkv")
        theirs = _rounds(samples, against.get(load, load), in_flight, peer)
        both = sorted(ours.keys() & theirs.keys())
        if not both:
            continue
        found.append(
            Line(
                load=load,
                in_flight=in_flight,
                peer_per_s=Spread.of(theirs[each].per_s for each in both),
                raftkv_per_s=Spread.of(ours[each].per_s for each in both),
                ratio=Spread.of(ours[each].per_s / theirs[each].per_s for each in both),
                peer_p99_ms=_median(theirs[each].p99_ms for each in both),
                raftkv_p99_ms=_median(ours[each].p99_ms for each in both),
            )
        )
    return found


def _rounds(samples: Sequence[Sample], load: str, in_flight: int, side: str) -> dict[int, Sample]:
    return {
        each.round: each
        for each in samples
        if (each.load, each.in_flight, each.side) == (load, in_flight, side) and each.per_s > 0
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None

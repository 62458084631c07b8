"""The figures of a comparison: what was measured in each round, and what the rounds say together.

A ratio is taken within a round, between two measurements that were made one after the other on the
same machine; shown are the median of the rounds and the lowest and highest. Absolute figures are
medians, too.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

__all__ = ["Aim", "Comparison", "Line", "Sample", "Spread", "lines"]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one side in one round; what is not known is None.

    `in_flight`: connections, or calls at once for callers inside a node. `answers`: how often
    which answer was given, where there is more than one kind. `lost`: writes that were confirmed
    and are gone.
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
    answers: dict[str, int] = {}
    lost: int = 0


class Aim(msgspec.Struct, frozen=True):
    """What raftkv is to reach: so many times the peer's rate, and with which p99, if any."""

    times: float
    p99_ms: float | None = None


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
    """One load at one number of connections: the peer, raftkv, and raftkv divided by the peer.

    `beside`: the peer's load, if it is another one.
    """

    load: str
    beside: str = ""
    in_flight: int
    peer_per_s: Spread
    raftkv_per_s: Spread
    ratio: Spread
    peer_p99_ms: float | None
    raftkv_p99_ms: float | None
    aim: Aim | None = None

    @property
    def met(self) -> bool:
        """Whether the aim was reached, by the medians; a p99 must be below its bound."""
        if self.aim is None or self.ratio.median < self.aim.times:
            return self.aim is None
        bound_ms, p99_ms = self.aim.p99_ms, self.raftkv_p99_ms
        return bound_ms is None or (p99_ms is not None and p99_ms < bound_ms)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    peer: str
    peer_version: str
    conditions: dict[str, Any]
    lines: list[Line]
    samples: list[Sample]


def lines(
    samples: Sequence[Sample],
    peer: str,
    against: Mapping[str, str | Sequence[str]],
    aims: Mapping[str, Aim] | None = None,
) -> list[Line]:
    """A line for each load and number that both sides have, in the order of their first sample.

    `against` names the peer's load that a load of raftkv stands beside, if that is another one, or
    several; `aims` is by raftkv's load.
    """
    found = []
    numbers: dict[str, dict[int, None]] = {}
    for each in samples:
        numbers.setdefault(each.load, {})[each.in_flight] = None
    for load, at_once in numbers.items():
        beside = against.get(load, load)
        for other in (beside,) if isinstance(beside, str) else beside:
            for in_flight in at_once:
                ours = _rounds(samples, load, in_flight, "raftkv")
                theirs = _rounds(samples, other, in_flight, peer)
                pairs = [(theirs[each], ours[each]) for each in sorted(ours.keys() & theirs.keys())]
                if pairs:
                    aim = (aims or {}).get(load)
                    found.append(_line(load, "" if other == load else other, pairs, aim))
    return found


def _line(load: str, beside: str, pairs: Sequence[tuple[Sample, Sample]], aim: Aim | None) -> Line:
    """Of the peer's sample and raftkv's in each round that has both."""
    return Line(
        load=load,
        beside=beside,
        in_flight=pairs[0][1].in_flight,
        peer_per_s=Spread.of(theirs.per_s for theirs, _ in pairs),
        raftkv_per_s=Spread.of(ours.per_s for _, ours in pairs),
        ratio=Spread.of(ours.per_s / theirs.per_s for theirs, ours in pairs),
        peer_p99_ms=_median(theirs.p99_ms for theirs, _ in pairs),
        raftkv_p99_ms=_median(ours.p99_ms for _, ours in pairs),
        aim=aim,
    )


def _rounds(samples: Sequence[Sample], load: str, in_flight: int, side: str) -> dict[int, Sample]:
    return {
        each.round: each
        for each in samples
        if (each.load, each.in_flight, each.side) == (load, in_flight, side) and each.per_s > 0
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None

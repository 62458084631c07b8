"""The figures of a comparison: what was measured in each round, and what the rounds say together.

A ratio is taken within a round, between two measurements that were made one after the other on the
same machine; shown are the median of the rounds and the lowest and highest. Absolute figures are
medians, too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

__all__ = ["Aim", "AimOf", "Comparison", "Line", "Loss", "Sample", "Spread", "lines"]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one side in one round; what is not known is None.

    `in_flight`: connections, or calls at once for callers inside a node. `answers`: how often
    which answer was given, where there is more than one kind. `lost`: writes that were confirmed
    and are gone. `longest_ms`: how long anybody waited, whatever the answer was.
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
    longest_ms: float | None = None


class Aim(msgspec.Struct, frozen=True):
    """What raftkv is to reach: so many times the peer's rate (0: any), below these bounds, if any.

    `longest_ms`: nobody may wait that long, in any round.
    """

    times: float = 0.0
    p99_ms: float | None = None
    longest_ms: float | None = None


AimOf = Callable[[str, str, int], Aim | None]
"""The aim of raftkv's load beside that load of the peer's, at so many at once."""


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
    peer_p50_ms: float | None = None
    raftkv_p50_ms: float | None = None
    peer_longest_ms: float | None = None
    raftkv_longest_ms: float | None = None
    aim: Aim | None = None

    @property
    def met(self) -> bool:
        """Whether the aim was reached, by the medians; latencies must be below their bounds."""
        if self.aim is None or self.ratio.median < self.aim.times:
            return self.aim is None
        return _below(self.raftkv_p99_ms, self.aim.p99_ms) and _below(
            self.raftkv_longest_ms, self.aim.longest_ms
        )


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What writers were told while one member was gone, and what became of what they wrote.

    Each of `writers` wrote once, all at the same time, with this time-out. `answers` counts what
    they were told, after `shortest_ms` to `longest_ms`. `seen_meanwhile`: how many of the values a
    reader saw halfway through the time-out. `settled`: what became of the writes in the end;
    `settled_ms`: how long after the member's return that took, None if it was so before. `there`:
    how many of the values each member has in the end.
    """

    side: str
    quorum: str
    writers: int
    timeout_ms: float
    answers: dict[str, int]
    shortest_ms: float
    longest_ms: float
    seen_meanwhile: int
    settled: dict[str, int]
    settled_ms: float | None
    there: dict[str, int]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. `losses`: where the loss of a member was looked at."""

    peer: str
    peer_version: str
    conditions: dict[str, Any]
    lines: list[Line]
    samples: list[Sample]
    losses: list[Loss] = []


def lines(
    samples: Sequence[Sample],
    peer: str,
    against: Mapping[str, str | Sequence[str]],
    aims: Mapping[str, Aim] | AimOf | None = None,
) -> list[Line]:
    """A line for each load and number that both sides have, in the order of their first sample.

    `against` names the peer's load that a load of raftkv stands beside, if that is another one, or
    several; `aims` is by raftkv's load, or a function that knows more.
    """
    found = []
    aim_of = aims if callable(aims) else _by_load(aims or {})
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
                    aim = aim_of(load, other, in_flight)
                    found.append(_line(load, "" if other == load else other, pairs, aim))
    return found


def _by_load(aims: Mapping[str, Aim]) -> AimOf:
    return lambda load, _beside, _at_once: aims.get(load)


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
        peer_p50_ms=_median(theirs.p50_ms for theirs, _ in pairs),
        raftkv_p50_ms=_median(ours.p50_ms for _, ours in pairs),
        peer_longest_ms=_longest(theirs.longest_ms for theirs, _ in pairs),
        raftkv_longest_ms=_longest(ours.longest_ms for _, ours in pairs),
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


def _longest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _below(value: float | None, bound: float | None) -> bool:
    """What is not known is not below a bound."""
    return bound is None or (value is not None and value < bound)

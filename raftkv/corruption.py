"""What digests of the state tell: whose state differs, and whether that is certain. Pure.

Every voter reports digests of its tables at one index of the log. Healthy nodes hold the same state
there, whatever else they are doing. So:

- all reports equal, and a majority of the voters is among them: *agreed*;
- a majority of the voters reports one state, and another one differs from it: that one is corrupt.
  Fewer than a majority may be corrupt in the same way and are never taken for the healthy ones;
- anything else that differs is an alarm and nothing more. So is a difference between nodes whose
  software differs: two versions that decide differently are a fault of the software, and which of
  them is right cannot be counted.

The majority is one of all voters, not of those that have reported. A distrusted voter's report does
not count towards it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from .raft.membership import Configuration

__all__ = ["Report", "Verdict", "judge"]


class Report(msgspec.Struct, frozen=True):
    """The digests of one node at one index; see `wire.Digests`."""

    core_format: int
    code: str
    tables: Mapping[str, bytes]

    @property
    def state(self) -> tuple[int, tuple[tuple[str, bytes], ...]]:
        return self.core_format, tuple(sorted(self.tables.items()))


class Verdict(msgspec.Struct, frozen=True):
    """`tables` differ between `nodes` (raft ids) and the majority, or among them without one."""

    #: A majority of the voters has reported, and every report is the same.
    agreed: bool = False
    tables: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    #: The node that judges is certain to be corrupt.
    own: bool = False

    @property
    def differs(self) -> bool:
        return bool(self.nodes)


def judge(me: str, configuration: Configuration, reports: Mapping[str, Report]) -> Verdict:
    """What the reports of one index tell the node `me`, whose own is among them.

    `configuration` is the one in force at that index.
    """
    counted = {
        voter: reports[voter].state
        for voter in configuration.voters
        if voter in reports and voter not in configuration.distrusted
    }
    needed = len(configuration.voters) // 2 + 1
    healthy = next((each for each, n in Counter(counted.values()).items() if n >= needed), None)
    if len({report.state for report in reports.values()}) == 1:
        return Verdict(agreed=healthy is not None)
    if healthy is None:
        return Verdict(tables=_differing(reports.values()), nodes=tuple(sorted(reports)))
    agreeing = next(report for report in reports.values() if report.state == healthy)
    nodes = tuple(sorted(each for each in reports if reports[each].state != healthy))
    mixed = len({report.code for report in reports.values()}) > 1
    own = me in nodes and not mixed
    compared = [reports[me]] if own else [reports[each] for each in nodes]
    return Verdict(tables=_differing([agreeing, *compared]), nodes=nodes, own=own)


def _differing(reports: Iterable[Report]) -> tuple[str, ...]:
    """The tables that are not the same in all reports."""
    each = list(reports)
    names = sorted({name for report in each for name in report.tables})
    found = [name for name in names if len({report.tables.get(name) for report in each}) > 1]
    if len({report.core_format for report in each}) > 1:
        found.append("core format")
    return tuple(found)

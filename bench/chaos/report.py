"""What a chaos run says: the table of faults, the checks, one line of summary, the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.chaos.soak import Event

__all__ = ["KindReport", "Report", "by_kind", "show"]

FINDINGS_SHOWN = 20


class KindReport(msgspec.Struct, frozen=True):
    """One kind of fault. `struck`: so many of `count` are proved. Recovery in seconds."""

    kind: str
    count: int
    struck: int
    recovery_median_s: float | None
    recovery_worst_s: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run. It has passed only if `findings` is empty."""

    layout: str
    seed: int
    elapsed_s: float
    kinds: list[KindReport]
    acknowledged: int
    unknown: int
    not_applied: int
    per_second: float
    slowest_second: int
    longest_silence_s: int
    terms: int
    power_bytes_lost: int
    power_changes_lost: int
    ends_asked_for: int
    keys_checked: int
    operations_checked: int
    ledger_keys: int
    findings: list[str]

    @property
    def passed(self) -> bool:
        return not self.findings

    def summary(self) -> str:
        """One line."""
        faults = sum(one.count for one in self.kinds)
        struck = sum(one.struck for one in self.kinds)
        worst = max((one.recovery_worst_s or 0.0 for one in self.kinds), default=0.0)
        found = len(self.findings)
        return (
            f"{'passed' if self.passed else 'FAILED'}: {faults} faults ({struck} proved) in "
            f"{self.elapsed_s:.0f} s, {found} violation{'' if found == 1 else 's'}; "
            f"{self.acknowledged:,} operations acknowledged ({self.per_second:.0f}/s), "
            f"{self.unknown:,} unknown; {self.ledger_keys:,} single writes and "
            f"{self.keys_checked:,} registers with {self.operations_checked:,} operations checked; "
            f"slowest recovery {worst:.2f} s; layout {self.layout}, seed {self.seed}"
        )


def by_kind(kinds: Sequence[str], events: Sequence[Event]) -> list[KindReport]:
    """The events, kind by kind; one that never came has a row as well."""
    reports = []
    for kind in kinds:
        mine = [event for event in events if event.kind == kind]
        times = sorted(event.recovery_s for event in mine if event.recovery_s is not None)
        reports.append(
            KindReport(
                kind,
                len(mine),
                sum(bool(event.proof) for event in mine),
                times[len(times) // 2] if times else None,
                times[-1] if times else None,
            )
        )
    return reports


def show(report: Report, console: Console) -> None:
    """The table and what was found; the summary is printed by the command, last."""
    table = Table(title="Faults", title_justify="left")
    table.add_column("kind")
    for heading in ("count", "proved", "recovery, median", "worst"):
        table.add_column(heading, justify="right")
    for one in report.kinds:
        table.add_row(
            one.kind,
            f"{one.count:,}",
            f"{one.struck:,}",
            _seconds(one.recovery_median_s),
            _seconds(one.recovery_worst_s),
        )
    console.print(table)
    rows: list[tuple[str, Any]] = [
        ("acknowledged", f"{report.acknowledged:,} ({report.per_second:.0f} a second)"),
        ("outcome unknown, not applied", f"{report.unknown:,}, {report.not_applied:,}"),
        ("seconds without an acknowledgement, longest", report.longest_silence_s),
        ("highest term", report.terms),
        ("nodes ended by the run", report.ends_asked_for),
        (
            "lost in power cuts",
            f"{report.power_bytes_lost:,} bytes, {report.power_changes_lost:,} directory changes",
        ),
    ]
    table = Table(show_header=False, title="The run", title_justify="left")
    for name, value in rows:
        table.add_row(name, str(value))
    console.print(table)
    for finding in report.findings[:FINDINGS_SHOWN]:
        console.print(f"[red]violation:[/red] {finding}", soft_wrap=True, highlight=False)
    if len(report.findings) > FINDINGS_SHOWN:
        console.print(f"... and {len(report.findings) - FINDINGS_SHOWN} more (--json has them)")


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"

"""The sentences on subscriptions in two regions: how close, what it costs, what must not be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench import schema
from bench.analysis.figures import Figures, Rows
from bench.analysis.formats import count, listed, milliseconds, number, percent, times
from bench.analysis.words import Finding

__all__ = ["COMMAND", "cost_findings", "duplicate_findings", "move_findings", "verdict"]

MANY_MOVES = 100
"""Of fewer, a 99th percentile says nothing."""

COMMAND = "python -m bench run --layout 1 --layout 3 --scenario subscriptions --out DIR"


def verdict(figures: Figures) -> Finding | None:
    """Whether a moving consumer missed a message; None if subscriptions were not measured."""
    rows = figures.rows("subscription_verdicts", layout="all")
    if not rows:
        return None
    row = rows[0]
    looked = (
        f"In {count(row['loads'])} {'load' if row['loads'] == 1 else 'loads'} a consumer moved to "
        f"the other region and back and got {count(row['received'])} messages there"
    )
    if not row["wrong"]:
        return Finding(
            f"{looked}: none was skipped, and in vector mode none that was acknowledged came again "
            "after everything had come to rest.",
            "good",
        )
    wrong = [
        words
        for name, words in (
            ("skipped", f"{count(row['skipped'])} that nobody had acknowledged were skipped"),
            (
                "again_at_rest",
                f"{count(row['again_at_rest'])} came again in vector mode with everything at rest",
            ),
        )
        if row[name]
    ]
    return Finding(f"{looked}, but {listed(wrong)}. This is a fault of ours.", "bad")


def move_findings(figures: Figures) -> list[Finding]:
    """Per layout and mode: how long a cursor took to move, without a distance and with the most."""
    found = []
    for rows in _groups(figures):
        moved = [row for row in rows if row["p50_ms"] is not None]
        if not moved:
            continue
        parts = []
        for delay_ms in sorted({row["delay_ms"] for row in moved}):
            there = [row for row in moved if row["delay_ms"] == delay_ms]
            medians = [row["p50_ms"] for row in there]
            parts.append(f"{_far(delay_ms)} {_between(medians)} in the median ({_most(there)})")
        soon = sum((row["within_a_second_share"] or 0.0) * row["acks"] for row in rows)
        acks = sum(row["acks"] or 0 for row in rows)
        found.append(
            Finding(
                f"{_group_words(rows[0])}: the other region's cursor followed an acknowledgement "
                f"{'; '.join(parts)}; {percent(soon / acks)} of all within a second."
            )
        )
    return found


def duplicate_findings(figures: Figures) -> list[Finding]:
    """Per layout and mode: the most that came again, while messages came and at rest."""
    found = []
    for rows in _groups(figures):
        known = [row for row in rows if row["again_most"] is not None]
        if not known:
            continue
        most = max(known, key=lambda row: row["again_most"])
        rest = max(row["rest_most"] or 0 for row in known)
        where = f"({number(most['rate_per_s'])} per second, {_far(most['delay_ms'])})"
        again = f"at most {count(most['again_most'])} came again" if most["again_most"] else ""
        found.append(
            Finding(
                f"{_group_words(rows[0])}: of messages acknowledged in the first region, "
                f"{again or 'none came again'} after a move while messages came"
                f"{f' {where}' if again else ''}, and {count(rest) if rest else 'none'} after a "
                "move at rest."
            )
        )
    return found


def cost_findings(figures: Figures) -> list[Finding]:
    """Per layout and mode what a message cost, beside a subscription that is not replicated."""
    found = []
    for rows in _groups(figures):
        known = [row for row in rows if row["entries_ratio"] is not None and row["delay_ms"] == 0]
        if not known:
            continue
        row = max(known, key=lambda row: row["rate_per_s"])
        found.append(
            Finding(
                f"{_group_words(row)}, {number(row['rate_per_s'])} messages per second: "
                f"{number(row['entries_per_message'])} entries in both logs for each message "
                f"({times(row['entries_ratio'])} those without replication), "
                f"{number(row['link_bytes_per_message'])} bytes between the regions "
                f"({times(row['link_bytes_ratio'])}) and {number(row['cpu_us_per_message'])} "
                f"\N{MICRO SIGN}s of processor time ({times(row['cpu_us_ratio'])})."
            )
        )
    return found


def _groups(figures: Figures) -> list[Rows]:
    """Those of each layout and mode that is replicated."""
    rows = [row for row in figures.rows("subscriptions") if row["mode"] != "off"]
    keys = dict.fromkeys((row["layout"], row["mode"]) for row in rows)
    return [[row for row in rows if (row["layout"], row["mode"]) == key] for key in keys]


def _group_words(row: Mapping[str, Any]) -> str:
    """Begins a sentence."""
    mode = schema.SUBSCRIPTION_MODES[row["mode"]]
    return f"Regions of {schema.LAYOUT_WORDS[row['layout']]}, {mode}"


def _most(rows: Rows) -> str:
    """The worst. Of a few moves a percentile would be no more than the longest of them."""
    many = [row["p99_ms"] for row in rows if row["acks"] >= MANY_MOVES]
    if not many:
        return f"at most {milliseconds(max(row['longest_ms'] for row in rows))}"
    return f"99th percentile at most {milliseconds(max(many))}"


def _far(delay_ms: float) -> str:
    return f"with {number(delay_ms)} ms each way" if delay_ms else "without a distance"


def _between(values: list[float]) -> str:
    lowest, highest = milliseconds(min(values)), milliseconds(max(values))
    return f"after {lowest}" if lowest == highest else f"after {lowest} to {highest}"

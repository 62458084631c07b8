"""The sentences on the performance test: sessions with the registry on, off and both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench import schema
from bench.analysis.figures import CONNECTS, Figures
from bench.analysis.formats import count, listed, milliseconds, number, percent, rate
from bench.analysis.words import Finding

__all__ = ["MODES", "MODE_WORDS", "death_findings", "lag_findings", "left_out", "speed_findings"]

MODE_WORDS = {"session-on": "on", "session-both": "both", "session-off": "off"}

MODES = {
    "On": (
        "the linear registry alone: a look at the node's own copy, takeover begin on the channel "
        "that is there, a decision in the log, takeover end. No lock."
    ),
    "Both": (
        "the same, and afterwards the channel is written into the old registry, too, without a "
        "lock. Answers come from the linear registry alone, and so it is what is audited."
    ),
    "Off": (
        "the old registry: a lock for each client id in the whole cluster, a look at the node's "
        "own copy, takeover, a write that is spread later, unlock."
    ),
}

SCENARIOS = ("initial", "reconnect", "same_client", "lagging", "leader_dies")


def left_out(figures: Figures) -> str:
    """Which scenarios of the test were not measured; empty if all were."""
    found = figures.values("sessions", "scenario")
    missing = [schema.SCENARIO_WORDS[name] for name in SCENARIOS if name not in found]
    if not missing:
        return ""
    return (
        f"This run left out: {listed(missing)}. The whole test: "
        "python -m bench run --layout 3+3 --scenario sessions --out DIR"
    )


def speed_findings(figures: Figures) -> list[Finding]:
    """A sentence for each scenario: rate, times, costs."""
    found = []
    for layout in figures.values("sessions", "layout"):
        for scenario in figures.values("sessions", "scenario", layout=layout):
            rows = figures.rows("sessions", layout=layout, scenario=scenario)
            parts = [f"{MODE_WORDS[row['registry']]} {_speed(row)}" for row in rows]
            text = f"{_capital(schema.SCENARIO_WORDS[scenario])}: {'; '.join(parts)}."
            found.append(Finding(text))
    return found


def lag_findings(figures: Figures) -> list[Finding]:
    """What callers in the replicant that lags had to wait, and what those elsewhere."""
    found = []
    where = {**CONNECTS, "scenario": "lagging"}
    for row in figures.rows("operations", **{**where, "role": "lagging"}):
        others = figures.rows(
            "operations",
            **{**where, "role": "replicant"},
            layout=row["layout"],
            registry=row["registry"],
        )
        text = (
            f"{_capital(MODE_WORDS[row['registry']])}: in the replicant that lags a connect took "
            f"{milliseconds(row['p50_ms'])} (median; 99th percentile {milliseconds(row['p99_ms'])})"
        )
        if others:
            text += (
                f", in the others {milliseconds(others[0]['p50_ms'])} "
                f"({milliseconds(others[0]['p99_ms'])})"
            )
        found.append(Finding(f"{text}.{_wrong(figures, row)}"))
    return found


def death_findings(figures: Figures) -> list[Finding]:
    """What clients saw of the leader's death."""
    return [
        Finding(
            f"{_capital(MODE_WORDS[row['registry']])}: {row['killed']} was killed. No connect was "
            f"answered ok for {milliseconds(row['gap_ms'])}; the first one that began afterwards "
            f"had its answer {milliseconds(row['first_ms'])} after the kill, the slowest took "
            f"{milliseconds(row['slowest_ms'])}. {_errors(figures, row)} "
            f"{rate(row['before_per_s'])} before, {rate(row['after_per_s'])} from a second after "
            f"it on.{_wrong(figures, row)}"
        )
        for row in figures.rows("outages")
    ]


def _speed(row: Mapping[str, Any]) -> str:
    text = (
        f"{rate(row['throughput_per_s'])} (median {milliseconds(row['p50_ms'])}, 99th percentile "
        f"{milliseconds(row['p99_ms'])}"
    )
    if row["entries_per_connect"] is not None:
        text += (
            f"; for each connect {number(row['entries_per_connect'])} entries of the log with "
            f"{number(row['commands_per_connect'])} commands"
        )
    if row["messages_per_connect"] is not None:
        text += f", {number(row['messages_per_connect'])} messages"
    if row["refused"]:
        text += f"; {percent(row['refused_share'])} refused as lost races"
    return f"{text})"


def _errors(figures: Figures, row: Mapping[str, Any]) -> str:
    if not row["errors"]:
        return "No connect failed."
    kinds = figures.rows(
        "outcomes",
        layout=row["layout"],
        scenario=row["scenario"],
        registry=row["registry"],
        op="connect",
        role="all",
        **{"class": "error"},
    )
    sums: dict[str, int] = {}
    for one in kinds:
        sums[one["outcome"]] = sums.get(one["outcome"], 0) + one["count"]
    named = listed([f"{count(value)} {name}" for name, value in sums.items()])
    connects = "connect" if row["errors"] == 1 else "connects"
    return f"{count(row['errors'])} {connects} failed (in the whole load {named})."


def _wrong(figures: Figures, row: Mapping[str, Any]) -> str:
    """How many answers of that load were wrong; empty if it was not judged."""
    rows = figures.rows(
        "verdicts", layout=row["layout"], scenario=row["scenario"], registry=row["registry"]
    )
    if not rows:
        return ""
    return f" Wrong answers in this load: {count(rows[0]['anomalies'])}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

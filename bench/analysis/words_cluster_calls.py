"""The sentences on cluster calls: how fast, what they cost, what goes wrong and what must not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench import schema
from bench.analysis.figures import Figures, Rows
from bench.analysis.formats import count, listed, milliseconds, number, percent, rate
from bench.analysis.words import ROLE_WORDS, Finding

__all__ = [
    "FUNCTIONS",
    "REQUIRED_WORDS",
    "WRONG_WORDS",
    "death_findings",
    "lag_findings",
    "layout_words",
    "left_out",
    "load_words",
    "speed_findings",
    "verdict",
]

REQUIRED_WORDS = {"1": "its initiator", "all": "all nodes"}

FUNCTIONS = {
    "Nothing": "a function without effect: what is measured is the order alone.",
    "Keyspace": (
        "a function whose effect is one put. The put and the node's progress are one entry of the "
        "log, so each node's put is made exactly once; the keyspace itself counts them."
    ),
    "Outside": "a function that sleeps 1 ms, as one that talks to something outside might.",
}

WRONG_WORDS = {
    "repeated": ("run that repeats one of the same process", "runs that repeat one"),
    "out_of_order": ("run out of order", "runs out of order"),
    "holes": ("committed call that a node never ran", "committed calls that a node never ran"),
    "aborted_runs": ("run of an aborted call on a replica", "runs of aborted calls on replicas"),
    "double_ids": ("id that was given twice", "ids that were given twice"),
    "effects_wrong": ("wrong count of effects", "wrong counts of effects"),
}
"""Kinds of wrong answers: one, and several."""

LOAD, LAGGING, DEATH = schema.CLUSTER_CALL_SCENARIOS


def layout_words(row: Mapping[str, Any]) -> str:
    """The layout, and with replicants who executes: '3 cores + 3 replicants, the cores execute'."""
    words = schema.LAYOUT_WORDS[row["layout"]]
    if "+" not in row["layout"]:
        return words
    return f"{words}, {schema.CLUSTER_CALL_PARTICIPANTS[row['participants']]}"


def load_words(row: Mapping[str, Any]) -> str:
    """The callers of a load: 'one caller in the leader', '16 callers spread over all nodes'."""
    callers = "one caller" if row["callers"] == 1 else f"{count(row['callers'])} callers"
    return f"{callers} {schema.CLUSTER_CALL_PLACES[row['place']]}"


def verdict(figures: Figures) -> Finding | None:
    """Whether anything was executed as it must not be; None if there were no cluster calls."""
    rows = figures.rows("cluster_call_verdicts", layout="all", scenario="all")
    if not rows:
        return None
    row = rows[0]
    checked = (
        f"{count(row['runs_checked'])} runs of functions in {count(row['loads'])} "
        f"{'load' if row['loads'] == 1 else 'loads'} of cluster calls"
    )
    if not row["wrong"]:
        return Finding(
            f"In {checked} no node ran a call twice without a restart, out of order, or not at "
            "all; no effect was lost or made twice.",
            "good",
        )
    kinds = [
        f"{count(row[name])} {one if row[name] == 1 else many}"
        for name, (one, many) in WRONG_WORDS.items()
        if row[name]
    ]
    return Finding(
        f"In {checked} {count(row['wrong'])} things were wrong: {listed(kinds)}. There must be "
        "none: this is a fault of ours.",
        "bad",
    )


def left_out(figures: Figures) -> str:
    """Which scenarios of cluster calls were not measured; empty if all were."""
    found = figures.values("cluster_calls", "scenario")
    missing = [
        schema.SCENARIO_WORDS[name] for name in schema.CLUSTER_CALL_SCENARIOS if name not in found
    ]
    if not missing:
        return ""
    return (
        f"This run left out: {listed(missing)}. The whole test: "
        "python -m bench run --layout 3 --layout 3+3 --scenario calls --out DIR"
    )


def speed_findings(figures: Figures) -> list[Finding]:
    """Per layout a single caller, then the most calls per second of each function."""
    rows = figures.rows("cluster_calls", scenario=LOAD)
    groups = dict.fromkeys((row["layout"], row["participants"]) for row in rows)
    found = []
    for layout, participants in groups:
        here = [r for r in rows if (r["layout"], r["participants"]) == (layout, participants)]
        found += _alone(here)
        found += _most(here)
    return found


def lag_findings(figures: Figures) -> list[Finding]:
    """What callers in the replicant that lags waited for, and those elsewhere."""
    rows = figures.rows("cluster_call_roles", scenario=LAGGING)
    groups = dict.fromkeys((r["layout"], r["participants"], r["required"]) for r in rows)
    found = []
    for group in groups:
        here = [r for r in rows if (r["layout"], r["participants"], r["required"]) == group]
        parts = [
            f"{ROLE_WORDS[row['role']]} {milliseconds(row['p50_ms'])} "
            f"({milliseconds(row['p99_ms'])})"
            for row in here
        ]
        found.append(
            Finding(
                f"{_capital(layout_words(here[0]))}, waiting for "
                f"{REQUIRED_WORDS[here[0]['required']]}: a call took, by its caller's place, "
                f"{listed(parts)} (median; 99th percentile in brackets)."
            )
        )
    return found


def death_findings(figures: Figures) -> list[Finding]:
    """What callers saw of the leader's death, and loads in which nobody could be killed."""
    found = [Finding(_outage(row)) for row in figures.rows("cluster_call_outages")]
    spared = figures.rows("cluster_calls", scenario=DEATH, killed=None)
    found += [
        Finding(
            f"{_capital(layout_words(row))}, waiting for {REQUIRED_WORDS[row['required']]}: the "
            "leadership had moved to a node with callers by then, so nobody was killed."
        )
        for row in spared
    ]
    return found


def _outage(row: Mapping[str, Any]) -> str:
    kinds = [
        f"{count(row[name])} {words}"
        for name, words in (
            ("partial", "were committed without the node that was down"),
            ("failed", "were committed nowhere"),
            ("errors", "got no answer"),
        )
        if row[name]
    ]
    after = f" Of the calls after the kill {listed(kinds)}." if kinds else ""
    return (
        f"{_capital(layout_words(row))}, waiting for {REQUIRED_WORDS[row['required']]}: "
        f"{row['killed']} was killed. No call was committed for {milliseconds(row['gap_ms'])}; the "
        f"first one that began afterwards had its answer {milliseconds(row['first_ms'])} after the "
        f"kill, the slowest took {milliseconds(row['slowest_ms'])}. "
        f"{rate(row['before_per_s'])} before, {rate(row['after_per_s'])} from a second after it "
        f"on.{after}"
    )


def _alone(rows: Rows) -> list[Finding]:
    """One caller in the leader, without effect: what a call takes, and costs."""
    alone = [
        r for r in rows if (r["function"], r["place"], r["callers"]) == ("nothing", "leader", 1)
    ]
    if not alone:
        return []
    parts = [
        f"{milliseconds(row['p50_ms'])} waiting for {REQUIRED_WORDS[row['required']]} (99th "
        f"percentile {milliseconds(row['p99_ms'])}, {rate(row['committed_per_s'])}{_costs(row)})"
        for row in alone
    ]
    return [
        Finding(
            f"{_capital(layout_words(alone[0]))}: a call of one caller in the leader took "
            f"{listed(parts)}."
        )
    ]


def _most(rows: Rows) -> list[Finding]:
    """The most calls per second of each function."""
    parts = []
    for function in schema.CLUSTER_CALL_FUNCTIONS:
        for required in REQUIRED_WORDS:
            here = [r for r in rows if (r["function"], r["required"]) == (function, required)]
            best = max(here, key=lambda row: row["committed_per_s"] or 0.0, default=None)
            if best is not None and best["committed_per_s"]:
                parts.append(
                    f"{function}, waiting for {REQUIRED_WORDS[required]}, "
                    f"{rate(best['committed_per_s'])} ({load_words(best)}, median "
                    f"{milliseconds(best['p50_ms'])})"
                )
    if not parts:
        return []
    return [Finding(f"{_capital(layout_words(rows[0]))}, most calls: {'; '.join(parts)}.")]


def _costs(row: Mapping[str, Any]) -> str:
    text = ""
    if row["entries_per_call"] is not None:
        text += f", {number(row['entries_per_call'])} entries of the log"
    if row["messages_per_call"] is not None:
        text += f" and {number(row['messages_per_call'])} messages for each"
    if row["error"]:
        text += f", {percent(row['error'] / row['count'])} without an answer"
    return text


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

"""The sentences on the limbo: how fast, what it costs, and what must not be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench import schema
from bench.analysis.figures import Figures, Rows
from bench.analysis.formats import count, listed, milliseconds, number, percent, rate
from bench.analysis.words import Finding

__all__ = ["COMMAND", "WRONG_WORDS", "cost_findings", "speed_findings", "verdict"]

COMMAND = "python -m bench run --layout 3 --layout 3+3 --scenario limbo --out DIR"

WRONG_WORDS = {
    "missing": (
        "confirmed transaction that a node does not have",
        "confirmed ones that a node lacks",
    ),
    "strays": ("row that nobody was told of", "rows that nobody was told of"),
    "double_positions": ("position that was given twice", "positions that were given twice"),
    "out_of_order": ("transaction out of order", "transactions out of order"),
}
"""Kinds of wrong answers: one, and several."""


def verdict(figures: Figures) -> Finding | None:
    """Whether any node lacks what was confirmed; None if the limbo was not measured."""
    rows = figures.rows("limbo_verdicts", layout="all")
    if not rows:
        return None
    row = rows[0]
    looked = (
        f"{count(row['confirmed'])} confirmed transactions in {count(row['loads'])} "
        f"{'load' if row['loads'] == 1 else 'loads'} of the limbo, looked for "
        f"{count(row['checked'])} times on all nodes"
    )
    if not row["wrong"]:
        return Finding(
            f"Of {looked}, none was missing, none had another value or position, none was out of "
            "order, and no node had a row that nobody was told of.",
            "good",
        )
    kinds = [
        f"{count(row[name])} {one if row[name] == 1 else many}"
        for name, (one, many) in WRONG_WORDS.items()
        if row[name]
    ]
    return Finding(
        f"Of {looked}, {count(row['wrong'])} things were wrong: {listed(kinds)}. There must be "
        "none: this is a fault of ours.",
        "bad",
    )


def speed_findings(figures: Figures) -> list[Finding]:
    """Per layout and quorum: a single writer, then the most confirmed per second."""
    return [
        Finding(f"{_capital(_cluster_words(rows[0]))}: {_alone(rows)}{_most(rows)}.")
        for rows in _groups(figures)
        if any(row["confirmed_per_s"] for row in rows)
    ]


def cost_findings(figures: Figures) -> list[Finding]:
    """Per layout and quorum what a transaction cost, alone and with the most writers."""
    found = []
    for rows in _groups(figures):
        known = [row for row in rows if row["entries_per_transaction"] is not None]
        chosen = known[:1] + known[1:][-1:]
        if chosen:
            parts = [f"{_writers(row)} {_costs(row)}" for row in chosen]
            found.append(
                Finding(f"{_capital(_cluster_words(rows[0]))}, a transaction: {'; '.join(parts)}.")
            )
    return found


def _groups(figures: Figures) -> list[Rows]:
    rows = figures.rows("limbo")
    keys = dict.fromkeys((row["layout"], row["quorum"]) for row in rows)
    return [[row for row in rows if (row["layout"], row["quorum"]) == key] for key in keys]


def _cluster_words(row: Mapping[str, Any]) -> str:
    layout, quorum = schema.LAYOUT_WORDS[row["layout"]], schema.LIMBO_QUORUMS[row["quorum"]]
    return f"{layout}, confirmed by {quorum}"


def _alone(rows: Rows) -> str:
    for row in rows:
        if row["writers"] == 1 and row["p50_ms"] is not None:
            return (
                f"a transaction of a single writer took {milliseconds(row['p50_ms'])} (99th "
                f"percentile {milliseconds(row['p99_ms'])}, {rate(row['confirmed_per_s'])}); "
            )
    return ""


def _most(rows: Rows) -> str:
    best = max(rows, key=lambda row: row["confirmed_per_s"] or 0.0)
    longest = max(row["longest_ms"] for row in rows)
    unsaid = sum(row["count"] - row["ok"] for row in rows)
    besides = ""
    if unsaid:
        share = unsaid / sum(row["count"] for row in rows)
        besides = f"; {percent(share)} of all were not confirmed"
    return (
        f"most were {rate(best['confirmed_per_s'])} with {_writers(best)}, at a median of "
        f"{milliseconds(best['p50_ms'])} (99th percentile {milliseconds(best['p99_ms'])}); nobody "
        f"waited longer than {milliseconds(longest)}{besides}"
    )


def _costs(row: Mapping[str, Any]) -> str:
    words = f"{number(row['entries_per_transaction'])} entries of the log"
    if row["acks_per_transaction"] is not None:
        words += f", {number(row['acks_per_transaction'])} acknowledgements"
    if row["messages_per_transaction"] is not None:
        words += f", {number(row['messages_per_transaction'])} messages"
    return words


def _writers(row: Mapping[str, Any]) -> str:
    return "one writer" if row["writers"] == 1 else f"{count(row['writers'])} writers"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

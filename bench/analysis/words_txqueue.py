"""The sentences on the queues: how fast, what it costs, and what must not be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench import schema
from bench.analysis.figures import Figures, Rows
from bench.analysis.formats import count, listed, milliseconds, number, percent
from bench.analysis.words import Finding

__all__ = ["COMMAND", "WRONG_WORDS", "cost_findings", "speed_findings", "verdict"]

COMMAND = "python -m bench run --layout 3 --layout 3+3 --scenario txqueue --out DIR"

WRONG_WORDS = {
    "missing": (
        "committed message that a node does not have once",
        "committed messages that a node does not have once",
    ),
    "strays": ("message that nobody was told of", "messages that nobody was told of"),
    "torn": ("transaction of which a node has a part", "transactions of which a node has a part"),
    "displaced": ("message out of order", "messages out of order"),
}
"""Kinds of wrong answers: one, and several."""


def verdict(figures: Figures) -> Finding | None:
    """Whether any node lacks what was committed; None if the queues were not measured."""
    rows = figures.rows("txqueue_verdicts", layout="all")
    if not rows:
        return None
    row = rows[0]
    looked = (
        f"{count(row['committed'])} committed transactions in {count(row['loads'])} "
        f"{'load' if row['loads'] == 1 else 'loads'} of the queues, with "
        f"{count(row['checked'])} messages to be found on all nodes together"
    )
    if not row["wrong"]:
        return Finding(
            f"Of {looked}, every message was there just once and in its order, no transaction was "
            "there in part, and no node had a message that nobody was told of.",
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
    """Per layout and kind of transaction: a single producer, then the most messages per second."""
    return [
        Finding(f"{_capital(_kind_words(rows[0]))}: {_alone(rows)}{_most(rows)}.")
        for rows in _groups(figures)
        if any(row["messages_per_s"] for row in rows)
    ]


def cost_findings(figures: Figures) -> list[Finding]:
    """Per layout and kind what a transaction cost, alone and with the most producers."""
    found = []
    for rows in _groups(figures):
        known = [row for row in rows if row["entries_per_transaction"] is not None]
        chosen = known[:1] + known[1:][-1:]
        if chosen:
            parts = [f"{_producers(row)} {_costs(row)}" for row in chosen]
            found.append(
                Finding(f"{_capital(_kind_words(rows[0]))}, a transaction: {'; '.join(parts)}.")
            )
    return found


def _groups(figures: Figures) -> list[Rows]:
    rows = figures.rows("txqueue")
    keys = dict.fromkeys((row["layout"], row["way"], row["batch"]) for row in rows)
    return [
        [row for row in rows if (row["layout"], row["way"], row["batch"]) == key] for key in keys
    ]


def _kind_words(row: Mapping[str, Any]) -> str:
    layout, way = schema.LAYOUT_WORDS[row["layout"]], schema.TXQUEUE_WAYS[row["way"]]
    noun = "message" if row["batch"] == 1 else "messages"
    return f"{layout}, {way} of {count(row['batch'])} {noun}"


def _alone(rows: Rows) -> str:
    for row in rows:
        if row["producers"] == 1 and row["p50_ms"] is not None:
            return (
                f"one of a single producer took {milliseconds(row['p50_ms'])} (99th percentile "
                f"{milliseconds(row['p99_ms'])}, {_messages(row)}); "
            )
    return ""


def _most(rows: Rows) -> str:
    best = max(rows, key=lambda row: row["messages_per_s"] or 0.0)
    longest = max(row["longest_ms"] for row in rows)
    unsaid = sum(row["count"] - row["ok"] for row in rows)
    besides = ""
    if unsaid:
        share = unsaid / sum(row["count"] for row in rows)
        besides = f"; {percent(share)} of all were not committed"
    return (
        f"most were {_messages(best)} with {_producers(best)}, at a median of "
        f"{milliseconds(best['p50_ms'])} (99th percentile {milliseconds(best['p99_ms'])}); nobody "
        f"waited longer than {milliseconds(longest)}{besides}"
    )


def _messages(row: Mapping[str, Any]) -> str:
    return f"{number(row['messages_per_s'])} messages per second"


def _costs(row: Mapping[str, Any]) -> str:
    words = f"{number(row['entries_per_transaction'])} entries of the log"
    if row["sent_per_transaction"] is not None:
        words += f", {number(row['sent_per_transaction'])} messages between nodes"
    return words


def _producers(row: Mapping[str, Any]) -> str:
    return "one producer" if row["producers"] == 1 else f"{count(row['producers'])} producers"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

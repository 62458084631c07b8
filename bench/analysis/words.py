"""The report's sentences, made from the tables.

Each sentence states figures and where they come from, and draws a conclusion only where the figures
carry it: a ratio near one is called equal, a registry that was not measured is not mentioned, and a
wrong answer of LCR is called what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bench import schema
from bench.analysis.figures import CONNECTS, Figures
from bench.analysis.formats import count, listed, milliseconds, number, percent, rate, times

__all__ = [
    "BARE",
    "KIND_WORDS",
    "REGISTRY_WORDS",
    "ROLE_WORDS",
    "Finding",
    "compared",
    "findings",
    "lead",
    "time_words",
]

Tone = Literal["plain", "good", "bad"]

REGISTRY_WORDS = {
    "lcr": "LCR",
    "legacy": "legacy",
    "session-on": "sessions, on",
    "session-both": "sessions, both",
    "session-off": "sessions, off",
    "none": "no registry",
}
BARE = ("lcr", "legacy")
LINEAR = ("lcr", "session-on", "session-both")
"""Answers of these come from the log: a wrong one is a fault of ours."""
ROLE_WORDS = {
    "all": "all callers",
    "leader": "in the leader",
    "follower": "in a follower",
    "replicant": "in a replicant",
    "lagging": "in the replicant that lags",
    "http": "over HTTP",
    "http_follower": "over HTTP to a follower",
    "http_replicant": "over HTTP to a replicant",
}
KIND_WORDS = {
    schema.WRONG_PRESENT: "wrong session-present flag",
    "duplicate_session": "duplicate session",
    "lost_registration": "lost registration",
    "wrong_owner": "wrong owner",
    "leaked_registration": "leaked registration",
}

SCENARIO_NOUNS = {**schema.SCENARIO_WORDS, "same_client": "connects to one shared client id"}

SUBJECTS = {
    "lcr": "With the registry on (LCR)",
    "legacy": "With the legacy registry",
    "session-on": "With sessions and the registry on",
    "session-both": "With sessions and both registries",
    "session-off": "With sessions and the registry off",
}

EQUAL_WITHIN = 0.05
"""Ratios closer to one than this are called equal: runs on one machine differ by as much."""


@dataclass(frozen=True)
class Finding:
    """A sentence or two, with the weight it has: `bad` only for what must not be."""

    text: str
    tone: Tone = "plain"


def lead(figures: Figures) -> list[Finding]:
    """The answer to the first question: does a registry answer wrongly?"""
    return [
        _verdict(row)
        for row in figures.rows("verdicts", layout="all", scenario="all")
        if row["registry"] in SUBJECTS
    ]


def compared(figures: Figures) -> list[str]:
    """What was compared with what, in words."""
    measured = {
        *figures.values("operations", "layout"),
        *figures.values("cluster_calls", "layout"),
        *figures.values("limbo", "layout"),
        *figures.values("txqueue", "layout"),
        *figures.values("subscriptions", "layout"),
    }
    layouts = [schema.LAYOUT_WORDS[name] for name in schema.LAYOUTS if name in measured]
    scenarios = figures.values("operations", "scenario", op="connect")
    scenarios = [schema.SCENARIO_WORDS[name] for name in schema.SCENARIOS if name in scenarios]
    registries = figures.values("operations", "registry")
    noun = "layout" if len(layouts) == 1 else "layouts"
    machine = "of real processes on one machine, connected over loopback"
    sentences = [f"{_capital(listed(layouts))}: {noun} {machine}."]
    if scenarios:
        sentences.append(
            f"Clients connected in {_number_word(len(scenarios))} "
            f"{'scenario' if len(scenarios) == 1 else 'scenarios'}: {listed(scenarios)}."
        )
    if "lcr" in registries and "legacy" in registries:
        sentences.append(
            "Each ran with the registry on (LCR: every registration is decided at its place in "
            "the replicated log) and off (legacy: dirty writes, replicated later, below a lock "
            "for each client id in the whole cluster)."
        )
    if figures.rows("sessions"):
        sentences.append(
            "On processes of their own, brokers opened sessions with the registry on, off, and "
            "with both (see below)."
        )
    if figures.rows("cluster_calls"):
        sentences.append(
            "On processes of their own, too, functions were called that every node executes "
            "(cluster calls, see below)."
        )
    if figures.rows("limbo"):
        sentences.append(
            "On processes of their own, writers inside the owner of the limbo wrote transactions "
            "that wait for a quorum (see below)."
        )
    if figures.rows("txqueue"):
        sentences.append(
            "On processes of their own, producers inside the leader committed transactions of "
            "queues (see below)."
        )
    if figures.rows("subscriptions"):
        sentences.append(
            "In two regions, each a cluster of its own with a distance between them, a consumer "
            "acknowledged messages in one and moved to the other (see below)."
        )
    sentences.append(_where_callers_sat(figures))
    sentences.append(_what_lag_does(figures))
    operations = figures.input["rows_accepted"]
    runs = len(figures.input["runs"])
    sentences.append(
        f"In {_number_word(runs)} {'run' if runs == 1 else 'runs'}, {count(operations)} operations "
        "were logged and counted."
    )
    return [sentence for sentence in sentences if sentence]


def findings(figures: Figures) -> list[Finding]:
    """What came out besides the verdicts: speed, layouts, calls, errors, what was set aside.

    Sessions have a section and findings of their own (`words_sessions`).
    """
    return [
        *_registry_findings(figures),
        *_layout_findings(figures),
        *_call_findings(figures, "puts", "Most puts"),
        *_call_findings(figures, "gets", "Most linearizable gets", consistency="linearizable"),
        *_error_findings(figures),
        *_rejected_findings(figures),
    ]


def time_words(ratio: float | None) -> str:
    """A ratio in words: 'as many', '1.4 times as many'."""
    if ratio is None:
        return "an unknown share"
    if abs(ratio - 1) < EQUAL_WITHIN:
        return "as many (within 5 %)"
    return f"{times(ratio)} as many"


def _verdict(row: Mapping[str, Any]) -> Finding:
    subject, linear = SUBJECTS[row["registry"]], row["registry"] in LINEAR
    checked = (
        f"{count(row['connects_checked'])} checked connects and "
        f"{count(row['audits_checked'])} audited client ids"
    )
    if row["anomalies"] == 0:
        text = f"{subject} there was no wrong answer in {checked}."
        return Finding(text, "good" if linear else "plain")
    kinds = [
        f"{count(row[kind])} {_plural(KIND_WORDS[kind], row[kind])}"
        for kind in schema.ANOMALIES
        if row[kind]
    ]
    shares = []
    if row[schema.WRONG_PRESENT]:
        shares.append(f"{percent(row['connects_wrong_share'])} of the connects")
    if row["audits_wrong"]:
        shares.append(f"{percent(row['audits_wrong_share'])} of the client ids")
    text = (
        f"{subject} {count(row['anomalies'])} answers were wrong in {checked}: {listed(kinds)} "
        f"({listed(shares)})."
    )
    if linear:
        return Finding(f"{text} There must be none: this is a fault of LCR.", "bad")
    return Finding(text)


def _where_callers_sat(figures: Figures) -> str:
    sat = {
        layout: figures.values("operations", "role", op="connect", layout=layout)
        for layout in figures.values("operations", "layout", op="connect")
    }
    in_replicants = [name for name, roles in sat.items() if "replicant" in roles]
    in_cores = [name for name in sat if name not in in_replicants]
    parts = []
    if in_replicants:
        names = listed([schema.LAYOUT_WORDS[name] for name in in_replicants])
        parts.append(f"the clients were played inside the replicants ({names})")
    if in_cores:
        names = listed([schema.LAYOUT_WORDS[name] for name in in_cores])
        parts.append(
            f"{'and ' if parts else 'the clients were played '}inside the cores where there are no "
            f"replicants ({names}), so that those layouts save a hop"
        )
    return f"{_capital(', '.join(parts))}." if parts else ""


def _what_lag_does(figures: Figures) -> str:
    """Without this the figures of 3+3 look slower than anything in them is."""
    lag_ms = figures.conditions.get("arguments", {}).get("lag_ms")
    called = figures.rows("operations", role="replicant", op="connect")
    if not lag_ms or not any(row["registry"] in BARE for row in called):
        return ""
    return (
        f"Replication to the nodes of the clients was delayed by {lag_ms:g} ms on purpose. An LCR "
        "connect is answered once its own node has applied it, so in a replicant this delay is "
        "part of every one of its times; legacy answers before its write is replicated, which is "
        "faster and is where its wrong answers come from. An LCR connect that loses to a newer "
        "one is told so (outdated) and does not count as settled."
    )


def _registry_findings(figures: Figures) -> list[Finding]:
    found = []
    for layout in figures.values("registry_ratios", "layout", **CONNECTS):
        parts = []
        for row in figures.rows("registry_ratios", layout=layout, **CONNECTS):
            parts.append(
                f"{time_words(row['throughput_ratio'])} {SCENARIO_NOUNS[row['scenario']]} per "
                f"second as legacy ({rate(row['lcr_throughput_per_s'])} against "
                f"{rate(row['legacy_throughput_per_s'])}, median "
                f"{milliseconds(row['lcr_p50_ms'])} against {milliseconds(row['legacy_p50_ms'])}"
                f"{_refused(figures, layout, row['scenario'])})"
            )
        found.append(Finding(f"On {schema.LAYOUT_WORDS[layout]} LCR settled {listed(parts)}."))
    return found


def _refused(figures: Figures, layout: str, scenario: str) -> str:
    """What belongs to a throughput of ok connects: how many were answered, but refused."""
    shares = [
        f"{percent(row['refused_share'])} of the connects refused by {name}"
        for registry, name in (("lcr", "LCR"), ("legacy", "legacy"))
        for row in figures.rows(
            "operations", layout=layout, scenario=scenario, registry=registry, **CONNECTS
        )
        if row["refused"]
    ]
    return f", {listed(shares)} as lost races" if shares else ""


def _layout_findings(figures: Figures) -> list[Finding]:
    """Initial connections with LCR, every layout against 3 cores (or 1, if there are no 3)."""
    base = "3" if figures.rows("layout_ratios", base="3") else "1"
    rows = figures.rows("layout_ratios", base=base, scenario="initial", registry="lcr", **CONNECTS)
    return [
        Finding(
            f"{_capital(schema.LAYOUT_WORDS[row['layout']])} settled "
            f"{time_words(row['throughput_ratio'])} initial connections per second with LCR as "
            f"{schema.LAYOUT_WORDS[base]} did, with {times(row['p50_ratio'])} the median time "
            f"({milliseconds(row['layout_p50_ms'])} against {milliseconds(row['base_p50_ms'])})."
        )
        for row in rows
    ]


def _call_findings(figures: Figures, table: str, what: str, **where: str) -> list[Finding]:
    found = []
    for layout in figures.values(table, "layout", **where):
        parts = []
        for role in figures.values(table, "role", layout=layout, **where):
            rows = figures.rows(table, layout=layout, role=role, **where)
            best = max(rows, key=lambda row: row["throughput_per_s"] or 0.0)
            alone = [row for row in rows if row["in_flight"] == 1]
            text = (
                f"{ROLE_WORDS[role]} {rate(best['throughput_per_s'])} with "
                f"{count(best['in_flight'])} in flight"
            )
            if alone:
                text += f" (median of a single caller {milliseconds(alone[0]['p50_ms'])})"
            parts.append(text)
        found.append(
            Finding(f"{what} on {schema.LAYOUT_WORDS[layout]}, by caller: {'; '.join(parts)}.")
        )
    return found


def _error_findings(figures: Figures) -> list[Finding]:
    if not figures.rows("operations"):
        return []  # other plugins alone: their errors stand in their own tables
    rows = figures.rows("error_totals")
    names = {
        "cluster_calls": "cluster calls",
        "limbo": "the limbo",
        "txqueue": "queues",
        "subscriptions": "subscriptions",
    }
    apart = [words for name, words in names.items() if figures.rows(name)]
    besides = f" besides {listed(apart)}" if apart else ""
    if not rows:
        return [Finding(f"No operation{besides} ended in an error.")]
    kinds = [f"{count(row['count'])} {row['outcome']}" for row in rows]
    return [Finding(f"Operations{besides} without an answer: {listed(kinds)}.")]


def _rejected_findings(figures: Figures) -> list[Finding]:
    rows, files = figures.input["rows_rejected"], figures.input["files_damaged"]
    if not rows and not files:
        return [Finding("No row and no file of the log had to be set aside.")]
    return [
        Finding(
            f"{_capital(count(rows))} {_plural('row', rows)} and {count(files)} "
            f"{_plural('file', files)} were set aside because they are damaged or break the log's "
            "rules; they are in no figure (see the end of this page).",
            "bad",
        )
    ]


def _plural(word: str, value: int) -> str:
    return word if value == 1 else f"{word}s"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _number_word(value: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six")
    return words[value] if value < len(words) else number(value)

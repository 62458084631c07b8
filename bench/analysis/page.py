"""The report: one page that needs nothing but itself.

It says first in words what was compared and what came out, then shows it, then lists every figure.
Nothing is computed here: sentences, pictures and tables all take their figures from the tables that
Spark wrote. No link, script, font or picture is loaded from anywhere.
"""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

from bench import schema
from bench.analysis import (
    formats,
    plots,
    words,
    words_cluster_calls,
    words_limbo,
    words_subscriptions,
    words_txqueue,
)
from bench.analysis.conditions import UNKNOWN, condition_line, flattened, is_quick, when
from bench.analysis.figures import CONNECTS, Figures
from bench.analysis.markup import (
    Field,
    definition_list,
    field,
    figure,
    findings_list,
    paragraph,
    section,
    table,
)
from bench.analysis.page_calls import call_sections
from bench.analysis.page_cluster_calls import cluster_call_sections
from bench.analysis.page_limbo import limbo_sections
from bench.analysis.page_sessions import session_sections
from bench.analysis.page_style import STYLE_SHEET
from bench.analysis.page_subscriptions import subscription_sections
from bench.analysis.page_txqueue import txqueue_sections

__all__ = ["render", "write_report"]

TITLE = "A channel registry on raftkv: what it answers, and how fast"
TITLE_OF_CLUSTER_CALLS = "Cluster calls on raftkv: what they execute, and how fast"
TITLE_OF_LIMBO = "The limbo on raftkv: what it confirms, and how fast"
TITLE_OF_TXQUEUE = "Transactional queues on raftkv: what they commit, and how fast"
TITLE_OF_SUBSCRIPTIONS = "Replicated subscriptions on raftkv: how close the other region follows"
"""Where nothing else was measured."""

QUICK = (
    "This was a quick run, for a first look: the answers count, but times and rates would differ "
    "from run to run."
)

HEADLINE_LAYOUTS = tuple(reversed(schema.LAYOUTS))
"""The tiles at the top speak of the largest layout that was measured."""

DEFINITIONS = {
    "Throughput": (
        "Operations with the outcome ok, divided by the time from the first start to the last end "
        "of the group (for each run; several runs are added up)."
    ),
    "Latency": (
        "From call to answer. Percentiles are exact (all operations sorted, linear between "
        "neighbouring ranks) over every answered operation, refusals included. Errors have no "
        "latency; they are counted beside it."
    ),
    "Refused": (
        "The registry's verdict against a caller (restart, outdated, ahead, in progress): a "
        "correct answer to a "
        "client that lost a race."
    ),
    "Wrong answers": (
        "The driver keeps the truth itself. A connect is wrong when its session-present flag "
        "differs from what the client's own history demands; an audited client id is wrong when, "
        "after the clients have come to rest, its owner is not the one it must be: duplicate "
        "session, lost registration, wrong owner, leaked registration."
    ),
    "Retried": "Operations that needed more than one attempt.",
    "Gap": "The longest time between two successive ok operations of a group.",
    "Ratio": (
        "The first divided by the second, for throughput and latency alike: above one means more "
        "operations, or a longer wait."
    ),
}


def write_report(directory: Path, figures: Figures) -> Path:
    """Writes `report/index.html`, whole or not at all. Returns its path."""
    folder = directory / "report"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    temporary = folder / ".index.html.tmp"
    temporary.write_text(render(figures), encoding="utf-8")
    os.replace(temporary, path)
    return path


def render(figures: Figures) -> str:
    """The page as one string."""
    under = condition_line(figures.conditions)
    sections = [
        _results(figures),
        _compared(figures),
        _answers(figures, under),
        _speed(figures, under),
        _over_time(figures, under),
        *session_sections(figures),
        *call_sections(figures),
        *cluster_call_sections(figures),
        *limbo_sections(figures),
        *txqueue_sections(figures),
        *subscription_sections(figures),
        _layouts(figures),
        _benchmarks(figures),
        _set_aside(figures),
        _everything(figures),
    ]
    date = when(figures.conditions)
    title = _title(figures)
    dated = f"raftkv benchmark report, run of {date}" if date else "raftkv benchmark report"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE_SHEET}</style></head><body>"
        f"<header><h1>{escape(title)}</h1>{paragraph(dated, 'under')}</header>"
        f"<main>{''.join(sections)}</main>"
        "<footer>Written by <code>python -m bench analyse</code> from the tables beside this "
        "report; <code>summary.json</code> holds the same figures for programs.</footer>"
        "</body></html>\n"
    )


def _title(figures: Figures) -> str:
    if figures.rows("operations"):
        return TITLE
    if figures.rows("cluster_calls"):
        return TITLE_OF_CLUSTER_CALLS
    if figures.rows("limbo"):
        return TITLE_OF_LIMBO
    return TITLE_OF_TXQUEUE if figures.rows("txqueue") else TITLE_OF_SUBSCRIPTIONS


def _results(figures: Figures) -> str:
    leads = []
    plugins = (words_cluster_calls, words_limbo, words_txqueue, words_subscriptions)
    verdicts = (each.verdict(figures) for each in plugins)
    of_plugins = [finding for finding in verdicts if finding is not None]
    for finding in [*words.lead(figures), *of_plugins]:
        kind = "lead" if finding.tone == "plain" else f"lead {finding.tone}"
        leads.append(paragraph(finding.text, kind))
    if is_quick(figures.conditions):
        leads.append(paragraph(QUICK))
    return f"<section>{''.join(leads)}{_tiles(figures)}</section>"


def _tiles(figures: Figures) -> str:
    tiles = []
    for row in figures.rows("verdicts", layout="all", scenario="all"):
        text = (
            f"wrong answers of {words.REGISTRY_WORDS[row['registry']]} in "
            f"{formats.count(row['connects_checked'])} connects and "
            f"{formats.count(row['audits_checked'])} audits"
        )
        tiles.append((formats.count(row["anomalies"]), text, row["registry"]))
    layout = next((n for n in HEADLINE_LAYOUTS if figures.rows("puts", layout=n)), "")
    for role in ("leader", "replicant"):
        rows = figures.rows("puts", layout=layout, role=role)
        if rows:
            best = max(rows, key=lambda row: row["throughput_per_s"] or 0.0)
            text = (
                f"puts by callers {words.ROLE_WORDS[role]}, {formats.count(best['in_flight'])} in "
                f"flight, {schema.LAYOUT_WORDS[layout]}"
            )
            tiles.append((formats.rate(best["throughput_per_s"]), text, role))
    alone = figures.rows("puts", layout=layout, role="leader", in_flight=1)
    if alone:
        text = f"median put of a single caller in the leader, {schema.LAYOUT_WORDS[layout]}"
        tiles.append((formats.milliseconds(alone[0]["p50_ms"]), text, "leader"))
    reads = figures.rows("gets", layout=layout, consistency="linearizable")
    for role in ("leader", "replicant"):
        best_read = max(
            (row for row in reads if row["role"] == role),
            key=lambda row: row["throughput_per_s"] or 0.0,
            default=None,
        )
        if best_read is not None:
            text = (
                f"linearizable gets by callers {words.ROLE_WORDS[role]}, "
                f"{formats.count(best_read['in_flight'])} in flight, {schema.LAYOUT_WORDS[layout]}"
            )
            tiles.append((formats.rate(best_read["throughput_per_s"]), text, role))
    shown = [
        f'<div class="tile" style="--tone:var(--{tone})"><b>{escape(value)}</b>'
        f"<span>{escape(text)}</span></div>"
        for value, text, tone in tiles
    ]
    return f'<div class="tiles">{"".join(shown)}</div>' if shown else ""


def _compared(figures: Figures) -> str:
    pairs = list(flattened(figures.conditions))
    return section(
        "What was compared, and what came out",
        paragraph(" ".join(words.compared(figures))),
        "<h3>What came out</h3>",
        findings_list(words.findings(figures)),
        "<h3>Conditions</h3>",
        definition_list(pairs, "pairs") if pairs else paragraph(UNKNOWN),
        "<details><summary>How the figures are made</summary>",
        definition_list(DEFINITIONS.items()),
        "</details>",
    )


def _answers(figures: Figures, under: str) -> str:
    picture = plots.anomaly_plot(figures)
    if picture is None:
        return ""
    rows = [
        row
        for row in figures.rows("verdicts")
        if row["layout"] != "all" and row["scenario"] != "all" and row["registry"] in words.BARE
    ]
    fields = [
        *(field(name) for name in ("layout", "scenario", "registry")),
        field("connects_checked", words=formats.count),
        field(schema.WRONG_PRESENT, "wrong flag", formats.count),
        field("connects_wrong_share", "share"),
        field("audits_checked", words=formats.count),
        *(
            field(kind, kind.removesuffix("_session").removesuffix("_registration"), formats.count)
            for kind in schema.AUDIT_ANOMALIES
        ),
        field("audits_wrong_share", "share"),
    ]
    return section(
        "Wrong answers",
        paragraph(
            "Does a client learn the truth about its session? Left: connects that were told the "
            "wrong session-present flag. Right: client ids whose registration was wrong after all "
            "clients had come to rest."
        ),
        figure(
            picture,
            "Shares of wrong answers by layout, scenario and registry",
            "Shares of wrong answers. A registry that is right shows 0 %.",
            under,
        ),
        table(rows, fields),
    )


def _speed(figures: Figures, under: str) -> str:
    parts = []
    if picture := plots.throughput_plot(figures):
        caption = "Connects with the outcome ok per second under load, all callers together."
        parts.append(figure(picture, "Connects per second", caption, under))
    if picture := plots.latency_plot(figures):
        caption = (
            "Time of a connect under load in milliseconds: median (filled) to 99th percentile "
            "(hollow). Errors are not in it; they are in the table of every group."
        )
        parts.append(figure(picture, "Latency of connects", caption, under))
    if not parts:
        return ""
    fields = [
        field("layout"),
        field("scenario"),
        field("lcr_throughput_per_s", "LCR"),
        field("legacy_throughput_per_s", "legacy"),
        field("throughput_ratio", "ratio"),
        *(
            one
            for name in ("p50", "p99")
            for one in (
                field(f"lcr_{name}_ms", f"LCR {name}"),
                field(f"legacy_{name}_ms", f"legacy {name}"),
                field(f"{name}_ratio", "ratio"),
            )
        ),
    ]
    return section(
        "Speed: the registry on against off",
        paragraph("One scale for all scenarios, so that they compare."),
        *parts,
        table(figures.rows("registry_ratios", **CONNECTS), fields),
    )


def _over_time(figures: Figures, under: str) -> str:
    picture = plots.time_plot(figures)
    gaps = table(
        [row for row in figures.rows("gaps", **CONNECTS) if row["registry"] in words.BARE],
        [*(field(n) for n in ("layout", "scenario", "registry")), field("gap_max_ms", "gap")],
    )
    if picture is None:
        if not gaps:
            return ""
        note = "The load phases are shorter than two whole seconds: there is no course to draw."
        return section("Throughput over time", paragraph(note), gaps)
    caption = (
        "Connects that ended with ok in each whole second of the load phase; seconds without any "
        "count as zero."
    )
    return section(
        "Throughput over time",
        figure(picture, "Connects per second over time", caption, under),
        "<details><summary>The longest gap between two ok connects</summary>",
        gaps,
        "</details>",
    )


def _layouts(figures: Figures) -> str:
    rows = [
        row
        for row in figures.rows("layout_ratios")
        if (row["phase"] == "load" and row["role"] == "all") or row["op"] in ("put", "get")
    ]
    keys = ("layout", "base", "scenario", "phase", "role", "registry", "consistency")
    fields = [
        *(field(name) for name in keys),
        field("layout_throughput_per_s", "throughput"),
        field("base_throughput_per_s", "of base"),
        field("throughput_ratio", "ratio"),
        field("layout_p50_ms", "p50"),
        field("base_p50_ms", "of base"),
        field("p50_ratio", "ratio"),
        field("p99_ratio", "ratio of p99"),
    ]
    if not rows:
        return ""
    return section(
        "Layouts against each other",
        paragraph(
            "Each layout against the smaller ones (base). More cores keep more copies and wait for "
            "a larger majority; replicants add a hop and take clients off the cores. All processes "
            "share the processors of one machine, so more of them also means less for each."
        ),
        table(rows, fields, tall=True),
    )


def _benchmarks(figures: Figures) -> str:
    rows = figures.rows("benchmarks")
    fields = [
        field("group"),
        field("name"),
        *(field(f"{name}_us") for name in ("min", "median", "mean", "stddev", "max")),
        field("per_s", "rate"),
        field("rounds", words=formats.count),
        field("iterations", words=formats.count),
        Field("extra_info", "with", words=_pairs, wide=True),
        field("file"),
    ]
    if not rows:
        return ""
    return section(
        "Parts by themselves",
        paragraph("Measured by pytest-benchmark: times of one call, in microseconds."),
        table(rows, fields, tall=True),
    )


def _set_aside(figures: Figures) -> str:
    counts = figures.input
    sentence = (
        f"{formats.count(counts['files'])} files and {formats.count(counts['rows'])} rows were "
        f"read; {formats.count(counts['files_damaged'])} files and "
        f"{formats.count(counts['rows_rejected'])} rows were set aside into tables/rejected and "
        "are in no figure."
    )
    fields = [
        field("scope", "what"),
        Field("reason", "reason", wide=True),
        field("count", words=formats.count),
    ]
    return section("Set aside", paragraph(sentence), table(counts["rejected"], fields))


def _everything(figures: Figures) -> str:
    keys = ("layout", "scenario", "phase", "role", "registry", "op", "consistency")
    group = [field(name) for name in keys]
    counts = ("count", "ok", "refused", "error", "wrong", "retried")
    fields = [
        *group,
        *(field(name, words=formats.count) for name in counts),
        field("window_s"),
        field("throughput_per_s"),
        field("answered_per_s"),
        *(field(f"{name}_ms") for name in ("p50", "p95", "p99", "max")),
    ]
    outcomes = [*group, field("class"), field("outcome"), field("count", words=formats.count)]
    anomalies = [
        *(field(n) for n in ("layout", "scenario", "phase", "role", "registry", "kind")),
        *(field(name, words=formats.count) for name in ("anomalies", "checked")),
        Field("share", "share", words=formats.percent, numeric=True),
    ]
    return section(
        "Every figure",
        paragraph("Every group by itself. The tables on disk hold the same with all digits."),
        "<details open><summary>Operations</summary>",
        table(figures.rows("operations"), fields, tall=True),
        "</details><details><summary>Outcomes, errors by kind</summary>",
        table(figures.rows("outcomes"), outcomes, tall=True),
        "</details><details><summary>Wrong answers by kind</summary>",
        table(figures.rows("anomalies"), anomalies, tall=True),
        "</details>",
    )


def _pairs(value: object) -> str:
    return ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else ""

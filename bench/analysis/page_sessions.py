"""The report's sections on the performance test: sessions with the registry on, off and both."""

from __future__ import annotations

from bench import schema
from bench.analysis import formats, plots_sessions, words_sessions
from bench.analysis.conditions import SESSION_WORDS, condition_line
from bench.analysis.figures import Figures
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
from bench.analysis.words import BARE

__all__ = ["session_sections"]


def session_sections(figures: Figures) -> list[str]:
    """Speed and costs, the lag, the leader's death; an empty string for what was not measured."""
    under = condition_line(figures.conditions, SESSION_WORDS)
    return [_speed(figures, under), _lag(figures, under), _death(figures, under)]


def _speed(figures: Figures, under: str) -> str:
    rows = figures.rows("sessions")
    if not rows:
        return ""
    pictures = []
    if picture := plots_sessions.session_plot(figures):
        caption = (
            "Sessions opened by brokers. Left: connects with the outcome ok per second. Right: "
            "their time in milliseconds, median (filled) to 99th percentile (hollow)."
        )
        pictures.append(figure(picture, "Connects per second and their time", caption, under))
    if picture := plots_sessions.cost_plot(figures):
        caption = (
            "What a connect costs the cluster: entries of the log (one holds the commands of many "
            "connects) and messages between the six nodes, goodbyes and heartbeats included."
        )
        pictures.append(figure(picture, "Entries and messages for each connect", caption, under))
    left_out = words_sessions.left_out(figures)
    return section(
        "Sessions: the registry on, off and both",
        paragraph(
            "The clients go through the whole flow: a broker in each replicant opens a session, "
            "takes the old one over wherever it lives, with its messages, and ends it. "
            "The mode was switched between two loads, for all nodes at one entry of the log. No "
            "replicant lags but where it says so."
        ),
        definition_list(words_sessions.MODES.items()),
        paragraph(left_out) if left_out else "",
        findings_list(words_sessions.speed_findings(figures)),
        *pictures,
        "<h3>Speed</h3>",
        table(rows, SPEED_FIELDS),
        "<h3>Costs of a connect</h3>",
        paragraph(
            "All entries, commands and messages of a load, divided by all its connects that were "
            "answered. Beside them what an idle cluster sends in the same time. A process that was "
            "killed takes its count of messages along, so that load has none."
        ),
        table(rows, COST_FIELDS),
        "<h3>Wrong answers</h3>",
        paragraph(
            "Not found: takeovers that found no session where the registry had named one, of which "
            "the client was told; in a stale copy it may be long over. Hollow: sessions "
            "that were said to be present and came without their message."
        ),
        table(rows, WRONG_FIELDS),
        _bare_note(figures),
    )


def _bare_note(figures: Figures) -> str:
    """Only where there are other figures that somebody could hold beside these."""
    if not any(row["registry"] in BARE for row in figures.rows("verdicts")):
        return ""
    return paragraph(
        "LCR and legacy elsewhere on this page are bare calls of the two registries, without "
        "brokers and sessions, as in earlier reports; their nodes lagged on purpose. Do not hold "
        "those figures beside these."
    )


def _lag(figures: Figures, under: str) -> str:
    rows = [
        row
        for row in figures.rows("operations", scenario="lagging", op="connect", phase="load")
        if row["role"] != "all"
    ]
    if not rows:
        return ""
    lag_ms = figures.conditions.get("arguments", {}).get("session_lag_ms")
    late = "later than the others" if lag_ms is None else f"{lag_ms:g} ms late"
    return section(
        "While one replicant lags",
        paragraph(
            f"One of the three replicants applied {late} what others had written: the entries of "
            "the log, and what the old registry spread to it. Calls to it and from it were as fast "
            "as ever. Each client connects through one replicant after the other, so every third "
            "connect meets the one that lags."
        ),
        findings_list(words_sessions.lag_findings(figures)),
        table(rows, LAG_FIELDS),
        paragraph(under, "under"),
    )


def _death(figures: Figures, under: str) -> str:
    rows = figures.rows("outages")
    if not rows:
        return ""
    picture = plots_sessions.death_plot(figures)
    shown = ""
    if picture is not None:
        caption = (
            "Connects with the outcome ok in each tenth of a second; the leader's process was "
            "killed (SIGKILL) at 0 and did not come back before the load was over."
        )
        shown = figure(picture, "Connects around the leader's death", caption, under)
    return section(
        "When the leader is killed",
        paragraph(
            "The clients sit in replicants, so none of them dies with it. The old registry needs "
            "no leader, but the dead core held locks and copies, too."
        ),
        findings_list(words_sessions.death_findings(figures)),
        shown,
        table(rows, OUTAGE_FIELDS),
    )


_KEYS = (field("scenario"), field("registry"))

SPEED_FIELDS = (
    *_KEYS,
    field("throughput_per_s", "ok"),
    field("answered_per_s", "answered"),
    *(field(f"{name}_ms") for name in ("p50", "p99", "max")),
    field("refused_share", "refused"),
    field("error", "errors", formats.count),
    field("switch_s", "switch to it"),
)
COST_FIELDS = (
    *_KEYS,
    *(
        Field(f"{name}_per_connect", title, "per connect", formats.number, numeric=True)
        for name, title in (
            ("entries", "log entries"),
            ("commands", "commands"),
            ("messages", "messages"),
            ("raft", "between cores"),
            ("feed", "to and from replicants"),
            ("call", "of calls"),
            ("idle", "when idle"),
            ("bytes", "bytes"),
        )
    ),
)
WRONG_FIELDS = (
    *_KEYS,
    field("connects_checked", words=formats.count),
    field(schema.WRONG_PRESENT, "wrong flag", formats.count),
    field("audits_checked", words=formats.count),
    *(
        field(kind, kind.removesuffix("_session").removesuffix("_registration"), formats.count)
        for kind in schema.AUDIT_ANOMALIES
    ),
    field("handovers_lost", "not found", formats.count),
    field("hollow", words=formats.count),
)
LAG_FIELDS = (
    field("registry"),
    field("role", "caller"),
    *(field(name, words=formats.count) for name in ("ok", "refused", "error", "retried")),
    field("throughput_per_s", "ok"),
    *(field(f"{name}_ms") for name in ("p50", "p95", "p99", "max")),
)
OUTAGE_FIELDS = (
    field("registry"),
    field("killed"),
    field("gap_ms", "longest gap"),
    field("first_ms", "first answer"),
    field("slowest_ms", "slowest"),
    field("errors", words=formats.count),
    field("wrong_flags", "wrong flags after it", formats.count),
    field("before_per_s", "before"),
    field("after_per_s", "after"),
)

"""The report's sections on cluster calls: speed, costs, what is wrong, the lag, the death.

Not to be confused with `page_calls`, which is about puts and gets.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import schema
from bench.analysis import formats, plots_cluster_calls, words_cluster_calls
from bench.analysis.conditions import CLUSTER_CALL_WORDS, condition_line
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

__all__ = ["cluster_call_sections"]

LOAD, LAGGING, DEATH = schema.CLUSTER_CALL_SCENARIOS


def cluster_call_sections(figures: Figures) -> list[str]:
    """Empty strings for what was not measured."""
    under = condition_line(figures.conditions, CLUSTER_CALL_WORDS)
    return [_speed(figures, under), _lag(figures, under), _death(figures, under), _wrong(figures)]


def _speed(figures: Figures, under: str) -> str:
    rows = figures.rows("cluster_calls", scenario=LOAD)
    if not rows:
        return ""
    left_out = words_cluster_calls.left_out(figures)
    return section(
        "Cluster calls",
        paragraph(
            "A call runs a function on the node that was asked first, its initiator, and when it "
            "succeeded there on every other node that takes part, one call after the other and on "
            "all nodes in the same order. So calls do not run at once: what more callers add is "
            "waiting. Each call is a reservation of the next id, a run, and a commit; then every "
            "other node's run, and the note of it in the log. A caller waits for its initiator "
            "alone, or for all nodes. With replicants, either the cores alone execute calls, and "
            "replicants send theirs to one, or replicants execute them too."
        ),
        definition_list(words_cluster_calls.FUNCTIONS.items()),
        paragraph(left_out) if left_out else "",
        findings_list(words_cluster_calls.speed_findings(figures)),
        *_pictures(figures, under),
        "<h3>Speed</h3>",
        table(rows, SPEED_FIELDS, tall=True),
        "<h3>Costs of a call</h3>",
        paragraph(
            "All entries, commands and messages of a load until all nodes had executed its calls, "
            "divided by the calls that were committed. Beside them what an idle cluster sends in "
            "the same time."
        ),
        table(rows, COST_FIELDS, tall=True),
    )


def _pictures(figures: Figures, under: str) -> list[str]:
    pictures = []
    if picture := plots_cluster_calls.callers_plot(figures):
        caption = (
            "Calls of a function without effect: how many per second (above) and their median time "
            "(below) by the number of callers, one line for each place of theirs. Dashed: a caller "
            "waits for its initiator alone."
        )
        pictures.append(figure(picture, "Calls per second by callers", caption, under))
    if picture := plots_cluster_calls.functions_plot(figures):
        caption = (
            "By function, with callers on all nodes. Left: calls per second. Right: their time in "
            "milliseconds, median (filled) to 99th percentile (hollow)."
        )
        pictures.append(figure(picture, "Calls per second by function", caption, under))
    return pictures


def _lag(figures: Figures, under: str) -> str:
    rows = figures.rows("cluster_call_roles", scenario=LAGGING)
    if not rows:
        return ""
    lag_ms = figures.conditions.get("arguments", {}).get("session_lag_ms")
    late = "later than the others" if lag_ms is None else f"{lag_ms:g} ms late"
    return section(
        "Cluster calls while one replicant lags",
        paragraph(
            f"One of the three replicants applied the log {late}. Where replicants execute calls, "
            "it executes each so much later, and whoever waits for all nodes waits for it; its own "
            "calls wait until it has caught up. Where they do not, only what it has to see of its "
            "own calls is late."
        ),
        findings_list(words_cluster_calls.lag_findings(figures)),
        table(rows, LAG_FIELDS),
        paragraph(under, "under"),
    )


def _death(figures: Figures, under: str) -> str:
    rows = figures.rows("cluster_call_outages")
    findings = words_cluster_calls.death_findings(figures)
    if not rows and not findings:
        return ""
    picture = plots_cluster_calls.death_plot(figures)
    shown = ""
    if picture is not None:
        caption = (
            "Calls in each tenth of a second; the leader's process was killed (SIGKILL) at 0 and "
            "did not come back before the load was over."
        )
        shown = figure(picture, "Cluster calls around the leader's death", caption, under)
    return section(
        "Cluster calls when the leader is killed",
        paragraph(
            "No caller sat in the leader, so none of them died with it. A call that the leader had "
            "begun for another node holds up the others until the cluster has declared the leader "
            "down (ten seconds, unless configured otherwise); then it is aborted. Whoever waits "
            "for all nodes is told at that moment which one is down (stopped nodes); the call is "
            "committed, and that node executes it when it is back."
        ),
        findings_list(findings),
        shown,
        table(rows, OUTAGE_FIELDS),
    )


def _wrong(figures: Figures) -> str:
    rows = [
        row
        for row in figures.rows("cluster_call_verdicts")
        if row["layout"] != "all" and row["scenario"] != "all"
    ]
    if not rows:
        return ""
    outcomes = table(figures.rows("cluster_call_outcomes"), OUTCOME_FIELDS, tall=True)
    found = words_cluster_calls.verdict(figures)
    return section(
        "What cluster calls executed",
        paragraph(
            "Every run of a function was written down by its node, also by the one that was "
            "killed. Compared with what callers were told: a run that repeats another one of the "
            "same process; a run of a lower id than one before; a committed call that a node which "
            "takes part never ran; a run of an aborted call on a replica; an id that two callers "
            "got; a count of effects on the keyspace that is not the number of committed calls. A "
            "run again after a restart is allowed, and is none of these."
        ),
        findings_list([found] if found else []),
        table(rows, WRONG_FIELDS),
        "<details><summary>Every load by its outcomes</summary>",
        outcomes,
        "</details>",
    )


def _named(column: str, title: str, names: Sequence[tuple[str, str]]) -> Field:
    """A column whose values have words of their own."""
    words = dict(names)
    return Field(column, title, words=lambda value: words.get(value, str(value)))


_PARTICIPANTS = _named(
    "participants", "executed by", [("cores", "the cores"), ("all", "all nodes")]
)
_REQUIRED = _named("required", "waits for", [*words_cluster_calls.REQUIRED_WORDS.items()])
_PLACE = _named("place", "callers", [*schema.CLUSTER_CALL_PLACES.items()])
_KEYS = (
    field("layout"),
    _PARTICIPANTS,
    field("function"),
    _PLACE,
    field("callers", "how many", formats.count),
    _REQUIRED,
)

SPEED_FIELDS = (
    *_KEYS,
    *(field(name, words=formats.count) for name in ("ok", "partial", "failed")),
    field("error", "errors", formats.count),
    field("committed_per_s", "calls"),
    *(field(f"{name}_ms") for name in ("p50", "p95", "p99", "max")),
    field("wrong", words=formats.count),
)
COST_FIELDS = (
    *_KEYS,
    *(
        Field(f"{name}_per_call", title, "per call", formats.number, numeric=True)
        for name, title in (
            ("entries", "log entries"),
            ("commands", "commands"),
            ("messages", "messages"),
            ("raft", "between cores"),
            ("feed", "to and from replicants"),
            ("call", "of RPC"),
            ("idle", "when idle"),
            ("bytes", "bytes"),
        )
    ),
)
LAG_FIELDS = (
    _PARTICIPANTS,
    _REQUIRED,
    field("role", "caller"),
    *(field(name, words=formats.count) for name in ("ok", "partial", "failed")),
    field("error", "errors", formats.count),
    field("committed_per_s", "calls"),
    *(field(f"{name}_ms") for name in ("p50", "p95", "p99", "max")),
)
OUTAGE_FIELDS = (
    field("layout"),
    _PARTICIPANTS,
    _REQUIRED,
    field("killed"),
    field("gap_ms", "longest gap"),
    field("first_ms", "first answer"),
    field("slowest_ms", "slowest"),
    field("partial", "without all nodes", formats.count),
    field("failed", words=formats.count),
    field("errors", words=formats.count),
    field("before_per_s", "before"),
    field("after_per_s", "after"),
)
WRONG_FIELDS = (
    field("layout"),
    field("scenario"),
    field("loads", words=formats.count),
    field("runs_checked", "runs", formats.count),
    *(field(name, words=formats.count) for name in ("repeated", "out_of_order", "holes")),
    field("aborted_runs", "aborted, but run", formats.count),
    field("double_ids", "ids given twice", formats.count),
    field("effects_wrong", "effects", formats.count),
    field("wrong", "in all", formats.count),
)
OUTCOME_FIELDS = (
    field("scenario"),
    *_KEYS,
    field("outcome"),
    field("count", words=formats.count),
)

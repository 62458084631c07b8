"""The report's sections on puts and gets by the place of their callers."""

from __future__ import annotations

from bench.analysis import formats, plots
from bench.analysis.conditions import PUT_WORDS, condition_line
from bench.analysis.figures import Figures
from bench.analysis.markup import field, figure, paragraph, section, table

__all__ = ["call_sections"]

CALL_FIELDS = (
    field("role", "caller"),
    *(field(name, words=formats.count) for name in ("in_flight", "count", "error")),
    field("throughput_per_s"),
    *(field(f"{name}_ms") for name in ("p50", "p95", "p99", "max")),
)
"""What the tables of puts and of gets have in common."""


def call_sections(figures: Figures) -> list[str]:
    """Puts, gets and both mixed; an empty string for what was not measured."""
    under = condition_line(figures.conditions, PUT_WORDS)
    return [_puts(figures, under), _gets(figures, under), _mixed(figures)]


def _puts(figures: Figures, under: str) -> str:
    picture = plots.puts_plot(figures)
    if picture is None:
        return ""
    return section(
        "Puts by caller",
        paragraph(
            "A put is acknowledged when a majority of the cores has it on disk. What a caller can "
            "reach depends on where it sits: in the leader, in a follower or a replicant (which "
            "forward), or outside, over HTTP."
        ),
        figure(
            picture,
            "Puts per second and median latency by calls in flight",
            "Acknowledged puts per second (above) and their median time (below) by the number of "
            "calls in flight, one line for each kind of caller.",
            under,
        ),
        table(figures.rows("puts"), [field("layout"), *CALL_FIELDS], tall=True),
    )


def _gets(figures: Figures, under: str) -> str:
    rows = figures.rows("gets")
    if not rows:
        return ""
    picture = plots.gets_plot(figures)
    shown = figure(
        picture,
        "Linearizable gets per second and median latency by calls in flight",
        "Linearizable gets per second (above) and their median time (below) by the number of calls "
        "in flight, one line for each kind of caller.",
        under,
    ) if picture else ""  # fmt: skip
    return section(
        "Gets by caller",
        paragraph(
            "A linearizable get sees everything that was acknowledged before it began: the node "
            "asks the leader, and the leader asks a majority whether it still leads. Gets that "
            "come while a question is on its way share the next one. A lease saves the leader the "
            "question; a local get asks nobody and may be stale. Neither waits, so inside a node "
            "they are measured with one caller."
        ),
        shown,
        table(rows, [field("layout"), field("consistency"), *CALL_FIELDS], tall=True),
    )


def _mixed(figures: Figures) -> str:
    rows = figures.rows("mixed")
    if not rows:
        return ""
    return section(
        "Nine gets to one put",
        paragraph(
            "Every caller gets nine times and puts once, over and over. Gets and puts share what "
            "is in flight; each has its own line."
        ),
        table(rows, [field("layout"), field("op"), *CALL_FIELDS], tall=True),
    )

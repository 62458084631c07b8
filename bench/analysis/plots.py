"""Pictures made from the tables, as SVG to be put inside the page.

matplotlib draws with a palette of stand-in colours that are then replaced by the page's CSS
variables, and with text left as text, so that the pictures follow the page: its typeface, its light
and dark colours. Ids are prefixed per picture, because several pictures share one document.

Rules for all pictures: the registry has the same colour everywhere (LCR blue-green, legacy amber),
every axis has its unit, values stand beside the marks, nothing is drawn that is not in a table.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("svg")

from matplotlib import rc_context, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench import schema
from bench.analysis.figures import CONNECTS, Figures, Rows
from bench.analysis.formats import count, number, percent
from bench.analysis.words import REGISTRY_WORDS, ROLE_WORDS

__all__ = [
    "LINE_STYLE",
    "PALETTE",
    "ROW_IN",
    "STYLE",
    "WIDTH_IN",
    "anomaly_plot",
    "from_zero",
    "gets_plot",
    "grid_lines",
    "latency_plot",
    "puts_plot",
    "svg",
    "throughput_plot",
    "time_plot",
    "value_beside",
]

PALETTE = {
    "ink": "#1b2430",
    "muted": "#667382",
    "rule": "#dfe4ea",
    "lcr": "#17788c",
    "legacy": "#d8832a",
    "leader": "#33539e",
    "follower": "#8a63b8",
    "replicant": "#3a9a6b",
    "http": "#8a8f98",
    "httpfollower": "#b0793a",
    "httpreplicant": "#b3527e",
    "session-on": "#1f7a8f",
    "session-both": "#7d62b5",
    "session-off": "#cc7a2e",
    "everywhere": "#a35a3c",
    "required-one": "#5b8fc7",
    "required-all": "#1d5f86",
}
"""Stand-in colours by the name of the CSS variable that replaces them."""

WIDTH_IN = 10.4
ROW_IN = 0.3
BOTH = ("lcr", "legacy")
MARKERS = {
    "leader": "o",
    "follower": "s",
    "replicant": "D",
    "lagging": "d",
    "http": "^",
    "http_follower": "v",
    "http_replicant": "<",
}

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "raftkv",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": PALETTE["ink"],
    "axes.edgecolor": PALETTE["rule"],
    "axes.labelcolor": PALETTE["muted"],
    "axes.labelsize": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": PALETTE["rule"],
    "grid.linewidth": 0.8,
    "xtick.color": PALETTE["muted"],
    "ytick.color": PALETTE["ink"],
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
LINE_STYLE: Any = {**STYLE, "axes.spines.left": True}


def throughput_plot(figures: Figures) -> str | None:
    """Connects per second: a panel for each scenario, a pair of bars for each layout."""
    rows = figures.rows("operations", **CONNECTS)
    return _bar_panels(rows, "throughput_per_s", "ok connects per second", number, "throughput")


def anomaly_plot(figures: Figures) -> str | None:
    """Wrong answers: shares of checked connects and of audited client ids."""
    rows = [
        row
        for row in figures.rows("verdicts")
        if row["layout"] != "all" and row["scenario"] != "all" and row["registry"] in BOTH
    ]
    names = list(dict.fromkeys((row["layout"], row["scenario"]) for row in rows))
    if not names:
        return None
    panels = (
        ("connects_wrong_share", schema.WRONG_PRESENT, "connects_checked", "wrong session-present"),
        ("audits_wrong_share", "audits_wrong", "audits_checked", "wrong after quiescence"),
    )
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 1.1 + 2 * ROW_IN * len(names)), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for ax, (share, wrong, checked, title) in zip(axes, panels, strict=True):
            for row in rows:
                value = row[share] or 0.0
                place = _pair_place(names.index((row["layout"], row["scenario"])), row["registry"])
                ax.barh(place, value * 100, height=0.34, color=PALETTE[row["registry"]])
                words = f"{percent(row[share])}  ({count(row[wrong])} of {count(row[checked])})"
                value_beside(ax, value * 100, place, words if row[checked] else "not checked")
            ax.set_title(title)
            noun = "checked connects" if share.startswith("connects") else "audited client ids"
            ax.set_xlabel(f"percent of {noun}")
            grid_lines(ax, "x")
            ax.set_xlim(0, max(1.0, ax.get_xlim()[1] * 1.75))
            # The room on the right is for the words at the bars; there is no share above 100 %.
            ax.set_xticks([tick for tick in ax.get_xticks() if 0 <= tick <= 100])
        labels = [f"{schema.LAYOUT_WORDS[name]}\n{_scenario(scenario)}" for name, scenario in names]
        axes[0].set_yticks(range(len(names)), labels)
        axes[0].set_ylim(len(names) - 0.45, -0.55)
        _registry_legend(figure)
        return svg(figure, "anomalies")


def latency_plot(figures: Figures) -> str | None:
    """Time of a connect: from the median (filled) to the 99th percentile (hollow)."""
    rows = [
        row
        for row in figures.rows("operations", **CONNECTS)
        if row["registry"] in BOTH and row["p50_ms"] is not None and row["p50_ms"] > 0
    ]
    scenarios, layouts = _names(rows)
    if not rows:
        return None
    with rc_context(STYLE):
        figure, axes = _panels(scenarios, layouts)
        for ax, scenario in zip(axes, scenarios, strict=True):
            for row in (row for row in rows if row["scenario"] == scenario):
                place = _pair_place(layouts.index(row["layout"]), row["registry"])
                colour = PALETTE[row["registry"]]
                ax.plot([row["p50_ms"], row["p99_ms"]], [place] * 2, color=colour, lw=2, alpha=0.45)
                ax.plot(row["p50_ms"], place, "o", color=colour, ms=7)
                ax.plot(row["p99_ms"], place, "o", mec=colour, mfc="none", mew=1.8, ms=7)
                words = f"{number(row['p50_ms'])} \N{RIGHTWARDS ARROW} {number(row['p99_ms'])}"
                value_beside(ax, row["p99_ms"], place, words)
            ax.set_xscale("log")
            ax.set_title(_scenario(scenario))
            ax.set_xlabel("milliseconds, logarithmic")
            ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
            ax.xaxis.set_minor_formatter(ticker.NullFormatter())
            grid_lines(ax, "x")
        low = min(row["p50_ms"] for row in rows)
        high = max(row["p99_ms"] for row in rows)
        axes[0].set_xlim(low / 1.6, high * (high / low) ** 0.6 * 1.5)
        _registry_legend(figure)
        return svg(figure, "latency")


def time_plot(figures: Figures) -> str | None:
    """Connects per second over time: layouts below each other, scenarios side by side."""
    rows = [
        row for row in figures.rows("over_time", whole=True, **CONNECTS) if row["registry"] in BOTH
    ]
    scenarios, layouts = _names(rows)
    if len({row["second"] for row in rows}) < 2:
        return None
    with rc_context(LINE_STYLE):
        size = (WIDTH_IN, 0.9 + 1.7 * len(layouts))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(layouts), len(scenarios), squeeze=False, sharey="row")
        for line, layout in zip(grid, layouts, strict=True):
            for ax, scenario in zip(line, scenarios, strict=True):
                here = [r for r in rows if r["layout"] == layout and r["scenario"] == scenario]
                _lines_over_time(ax, here)
                if layout == layouts[0]:
                    ax.set_title(_scenario(scenario))
                if layout == layouts[-1]:
                    ax.set_xlabel("seconds since the phase began")
            line[0].set_ylabel(_layout(layout), color=PALETTE["ink"])
            from_zero(line)
        figure.supylabel("ok connects per second", fontsize=9, color=PALETTE["muted"])
        _registry_legend(figure)
        return svg(figure, "time")


def puts_plot(figures: Figures) -> str | None:
    """Puts per second (above) and median time (below) by calls in flight, a line per caller."""
    return _calls_plot(figures.rows("puts"), "acknowledged puts per second", "puts")


def gets_plot(figures: Figures) -> str | None:
    """Linearizable gets, as `puts_plot`. The others would leave them no height: see the table."""
    rows = figures.rows("gets", consistency="linearizable")
    return _calls_plot(rows, "linearizable gets per second", "gets")


def _calls_plot(found: Rows, label_of_rate: str, prefix: str) -> str | None:
    layouts = [name for name in schema.LAYOUTS if any(row["layout"] == name for row in found)]
    if not layouts:
        return None
    with rc_context(LINE_STYLE):
        figure = Figure(figsize=(WIDTH_IN, 5.6), layout="constrained")
        grid = figure.subplots(2, len(layouts), squeeze=False, sharey="row", sharex=True)
        quantities = (
            ("throughput_per_s", label_of_rate),
            ("p50_ms", "median, milliseconds"),
        )
        for line, (column, label) in zip(grid, quantities, strict=True):
            for ax, layout in zip(line, layouts, strict=True):
                rows = [row for row in found if row["layout"] == layout and row[column]]
                _lines_by_role(ax, rows, column)
            line[0].set_ylabel(label)
        from_zero(grid[0])
        for ax, layout in zip(grid[0], layouts, strict=True):
            ax.set_title(_layout(layout))
        for ax in grid[1]:
            ax.set_xlabel("calls in flight")
        handles = {
            str(line.get_label()): line
            for ax in grid[0]
            for line in ax.get_lines()
            if not str(line.get_label()).startswith("_")
        }
        figure.legend(
            list(handles.values()), list(handles), loc="outside upper right", ncols=len(handles)
        )
        return svg(figure, prefix)


def _bar_panels(rows: Rows, column: str, unit: str, words: Any, prefix: str) -> str | None:
    rows = [row for row in rows if row["registry"] in BOTH and row[column] is not None]
    scenarios, layouts = _names(rows)
    if not rows:
        return None
    with rc_context(STYLE):
        figure, axes = _panels(scenarios, layouts)
        for ax, scenario in zip(axes, scenarios, strict=True):
            for row in (row for row in rows if row["scenario"] == scenario):
                place = _pair_place(layouts.index(row["layout"]), row["registry"])
                ax.barh(place, row[column], height=0.34, color=PALETTE[row["registry"]])
                value_beside(ax, row[column], place, words(row[column]))
            ax.set_title(_scenario(scenario))
            ax.set_xlabel(unit)
            ax.xaxis.set_major_locator(ticker.MaxNLocator(4))
            ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
            grid_lines(ax, "x")
        axes[0].set_xlim(0, max(row[column] for row in rows) * 1.22)
        _registry_legend(figure)
        return svg(figure, prefix)


def _panels(scenarios: Sequence[str], layouts: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """A panel for each scenario with a line for each layout; one scale, so that they compare."""
    size = (WIDTH_IN, 1.25 + 2.2 * ROW_IN * len(layouts))
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(1, len(scenarios), squeeze=False, sharey=True, sharex=True)[0])
    axes[0].set_yticks(range(len(layouts)), [_layout(name) for name in layouts])
    axes[0].set_ylim(len(layouts) - 0.45, -0.55)
    return figure, axes


def _lines_over_time(ax: Axes, rows: Rows) -> None:
    for registry in BOTH:
        for run in dict.fromkeys(row["run"] for row in rows):
            line = [r for r in rows if r["registry"] == registry and r["run"] == run]
            seconds = [row["second"] + 0.5 for row in line]
            ax.plot(seconds, [row["ok"] for row in line], color=PALETTE[registry], lw=1.6)
            if len(line) < 20:
                ax.plot(seconds, [row["ok"] for row in line], "o", color=PALETTE[registry], ms=3)
    ax.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    grid_lines(ax, "y")


def _lines_by_role(ax: Axes, rows: Rows, column: str) -> None:
    for role in schema.ROLES:
        line = [row for row in rows if row["role"] == role]
        if line:
            ax.plot(
                [row["in_flight"] for row in line],
                [row[column] for row in line],
                marker=MARKERS[role],
                ms=5,
                lw=1.6,
                color=PALETTE[role.replace("_", "")],
                label=ROLE_WORDS[role],
            )
    ax.set_xscale("log", base=2)
    ax.set_xticks(sorted({row["in_flight"] for row in rows}))
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_locator(ticker.NullLocator())
    if column == "p50_ms":
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(ticker.NullFormatter())
    else:
        ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    grid_lines(ax, "y")


def from_zero(line: Sequence[Axes]) -> None:
    """Panels that share an axis: from zero to a little above the highest mark of any of them."""
    heights = [np.max(curve.get_ydata()) for ax in line for curve in ax.get_lines()]
    line[0].set_ylim(0, float(max(heights, default=1.0) or 1.0) * 1.1)


def _names(rows: Rows) -> tuple[list[str], list[str]]:
    scenarios = [name for name in schema.SCENARIOS if any(r["scenario"] == name for r in rows)]
    layouts = [name for name in schema.LAYOUTS if any(r["layout"] == name for r in rows)]
    return scenarios, layouts


def _pair_place(line: int, registry: str) -> float:
    return line - 0.19 if registry == "lcr" else line + 0.19


def _layout(name: str) -> str:
    return schema.LAYOUT_WORDS[name].replace(" + ", "\n+ ")


def _scenario(name: str) -> str:
    return {"same_client": "same client id"}.get(name, schema.SCENARIO_WORDS[name])


def value_beside(ax: Axes, at: float, place: float, words: str) -> None:
    """Words to the right of a mark."""
    ax.annotate(
        words,
        (at, place),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=PALETTE["ink"],
    )


def grid_lines(ax: Axes, axis: Any) -> None:
    """The lines across one axis, and small labels."""
    ax.grid(True, axis=axis)
    ax.tick_params(axis="both", labelsize=8.5)


def _registry_legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    words = {"lcr": "registry on (LCR)", "legacy": "registry off (legacy)"}
    figure.legend(
        handles=[
            Patch(color=PALETTE[name], label=words[name])
            for name in REGISTRY_WORDS
            if name in words
        ],
        loc="outside upper right",
        ncols=2,
    )


def svg(figure: Figure, prefix: str) -> str:
    """The picture as an SVG element for this page: no header, own ids, the page's colours."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'xlink:href="#', f'href="#{prefix}-', text)
    text = text.replace("url(#", f"url(#{prefix}-")
    text = re.sub(r"font: ([^;\"]*?px) [^;\"]+", r"font: \1 var(--sans)", text)
    text = re.sub(r'^<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" role="img">', text)
    for name, colour in PALETTE.items():
        text = text.replace(colour, f"var(--{name})")
    return text

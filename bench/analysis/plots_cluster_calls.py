"""Pictures of cluster calls; see `plots` for the rules and the palette."""

from __future__ import annotations

from typing import Any

from matplotlib import rc_context, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench import schema
from bench.analysis.figures import Figures, Rows
from bench.analysis.formats import number
from bench.analysis.plots import (
    LINE_STYLE,
    PALETTE,
    ROW_IN,
    STYLE,
    WIDTH_IN,
    from_zero,
    grid_lines,
    svg,
    value_beside,
)

__all__ = ["callers_plot", "death_plot", "functions_plot"]

LOAD = schema.CLUSTER_CALL_SCENARIOS[0]

REQUIRED_COLOURS = {"1": "required-one", "all": "required-all"}
REQUIRED_LABELS = {"1": "waiting for the initiator", "all": "waiting for all nodes"}
REQUIRED_LINES: dict[str, Any] = {"1": (0, (3, 2)), "all": "-"}
FUNCTION_LABELS = {
    "nothing": "no effect",
    "keyspace": "one put",
    "outside": "sleeps 1 ms",
}
BAR = 0.38

Cluster = tuple[str, str]
"""Layout, and who executes calls."""


def callers_plot(figures: Figures) -> str | None:
    """Calls per second (above) and their median time (below) by callers: a line for each place."""
    found = [
        row
        for row in figures.rows("cluster_calls", scenario=LOAD, function="nothing")
        if row["committed_per_s"]
    ]
    clusters = _clusters(found)
    if not clusters:
        return None
    with rc_context(LINE_STYLE):
        figure = Figure(figsize=(WIDTH_IN, 5.6), layout="constrained")
        grid = figure.subplots(2, len(clusters), squeeze=False, sharey="row", sharex=True)
        for line, column in zip(grid, ("committed_per_s", "p50_ms"), strict=True):
            for ax, cluster in zip(line, clusters, strict=True):
                _lines(ax, [row for row in found if _cluster(row) == cluster], column)
        from_zero(grid[0])
        grid[0][0].set_ylabel("calls per second")
        grid[1][0].set_ylabel("median, milliseconds")
        for ax, cluster in zip(grid[0], clusters, strict=True):
            ax.set_title(_title(cluster))
        for ax in grid[1]:
            ax.set_xlabel("callers")
            ax.set_yscale("log")
            ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
            ax.yaxis.set_minor_formatter(ticker.NullFormatter())
        handles = _place_legend(found) + _required_lines()
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
        return svg(figure, "callers")


def functions_plot(figures: Figures) -> str | None:
    """By function: left calls per second, right their time, with the most callers everywhere."""
    found = [
        row
        for row in figures.rows("cluster_calls", scenario=LOAD, place="everywhere")
        if row["committed_per_s"] and row["p50_ms"]
    ]
    most = max((row["callers"] for row in found), default=0)
    found = [row for row in found if row["callers"] == most]
    lines = list(dict.fromkeys((*_cluster(row), row["function"]) for row in found))
    if not lines:
        return None
    with rc_context(STYLE):
        size = (WIDTH_IN, 1.3 + 2.4 * ROW_IN * len(lines))
        figure = Figure(figsize=size, layout="constrained")
        speed, time = figure.subplots(1, 2, sharey=True)
        for row in found:
            line = lines.index((*_cluster(row), row["function"]))
            beside = list(REQUIRED_COLOURS).index(row["required"]) - 0.5
            _function_marks(speed, time, row, line + BAR * beside)
        labels = [f"{_title((a, b))}\n{FUNCTION_LABELS[function]}" for a, b, function in lines]
        speed.set_yticks(range(len(lines)), labels)
        speed.set_ylim(len(lines) - 0.45, -0.55)
        speed.set_title(f"calls per second, {most} callers on all nodes")
        speed.set_xlabel("calls per second")
        speed.set_xlim(0, max(row["committed_per_s"] for row in found) * 1.2)
        _logarithmic(time, found)
        for ax in (speed, time):
            grid_lines(ax, "x")
        patches = [
            Patch(color=PALETTE[colour], label=REQUIRED_LABELS[name])
            for name, colour in REQUIRED_COLOURS.items()
        ]
        figure.legend(handles=patches, loc="outside upper right", ncols=2)
        return svg(figure, "functions")


def death_plot(figures: Figures) -> str | None:
    """Calls in each tenth of a second around the kill: a panel for each cluster and `required`."""
    rows = figures.rows("cluster_call_death")
    clusters = _clusters(rows)
    required = [name for name in REQUIRED_LABELS if any(r["required"] == name for r in rows)]
    if not clusters:
        return None
    with rc_context(LINE_STYLE):
        size = (WIDTH_IN, 0.9 + 1.9 * len(required))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(
            len(required), len(clusters), squeeze=False, sharey=True, sharex=True
        )
        for line, waits_for in zip(grid, required, strict=True):
            for ax, cluster in zip(line, clusters, strict=True):
                here = [r for r in rows if _cluster(r) == cluster and r["required"] == waits_for]
                _steps(ax, here)
            line[0].set_ylabel(
                REQUIRED_LABELS[waits_for].replace("waiting", "calls in 0.1 s\nwaiting")
            )
        for ax, cluster in zip(grid[0], clusters, strict=True):
            ax.set_title(_title(cluster))
        for ax in grid[-1]:
            ax.set_xlabel("seconds since the kill")
        heights = [row["ok"] + row["partial"] for row in rows]
        grid[0][0].set_ylim(0, max(heights) * 1.1 or 1.0)
        figure.legend(
            handles=[
                Line2D([], [], color=PALETTE["required-all"], label="executed by all asked for"),
                Line2D([], [], color=PALETTE["everywhere"], label="committed without who is down"),
            ],
            loc="outside upper right",
            ncols=2,
        )
        return svg(figure, "calldeath")


def _lines(ax: Axes, rows: Rows, column: str) -> None:
    for place in schema.CLUSTER_CALL_PLACES:
        for required, style in REQUIRED_LINES.items():
            line = [r for r in rows if (r["place"], r["required"]) == (place, required)]
            if line:
                ax.plot(
                    [row["callers"] for row in line],
                    [row[column] for row in line],
                    ls=style,
                    marker="o",
                    ms=4,
                    lw=1.6,
                    color=PALETTE[place],
                )
    ax.set_xscale("log", base=2)
    ax.set_xticks(sorted({row["callers"] for row in rows}))
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_locator(ticker.NullLocator())
    grid_lines(ax, "y")


def _function_marks(speed: Axes, time: Axes, row: dict[str, Any], place: float) -> None:
    colour = PALETTE[REQUIRED_COLOURS[row["required"]]]
    speed.barh(place, row["committed_per_s"], height=BAR * 0.9, color=colour)
    value_beside(speed, row["committed_per_s"], place, number(row["committed_per_s"]))
    time.plot([row["p50_ms"], row["p99_ms"]], [place] * 2, color=colour, alpha=0.45)
    time.plot(row["p50_ms"], place, "o", color=colour, ms=6)
    time.plot(row["p99_ms"], place, "o", mec=colour, mfc="none", mew=1.6, ms=6)
    words = f"{number(row['p50_ms'])} \N{RIGHTWARDS ARROW} {number(row['p99_ms'])}"
    value_beside(time, row["p99_ms"], place, words)


def _logarithmic(ax: Axes, rows: Rows) -> None:
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.set_title("time of a call, median to 99th percentile")
    ax.set_xlabel("milliseconds, logarithmic")
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())
    low, high = min(row["p50_ms"] for row in rows), max(row["p99_ms"] for row in rows)
    ax.set_xlim(low / 1.6, high * max(high / low, 2.0) ** 0.4 * 1.5)


def _steps(ax: Axes, rows: Rows) -> None:
    for run in dict.fromkeys(row["run"] for row in rows):
        line = [row for row in rows if row["run"] == run]
        at_s = [row["at_ms"] / 1000 for row in line]
        for column, colour in (("ok", "required-all"), ("partial", "everywhere")):
            values = [row[column] for row in line]
            ax.step(at_s, values, where="post", color=PALETTE[colour], lw=1.4)
    ax.axvline(0.0, color=PALETTE["muted"], lw=1, ls=(0, (3, 2)))
    grid_lines(ax, "y")


def _place_legend(rows: Rows) -> list[Line2D]:
    return [
        Line2D([], [], color=PALETTE[place], marker="o", ms=4, label=words)
        for place, words in schema.CLUSTER_CALL_PLACES.items()
        if any(row["place"] == place for row in rows)
    ]


def _required_lines() -> list[Line2D]:
    return [
        Line2D([], [], color=PALETTE["muted"], ls=style, label=REQUIRED_LABELS[name])
        for name, style in REQUIRED_LINES.items()
    ]


def _cluster(row: dict[str, Any]) -> Cluster:
    return str(row["layout"]), str(row["participants"])


def _clusters(rows: Rows) -> list[Cluster]:
    return list(dict.fromkeys(_cluster(row) for row in rows))


def _title(cluster: Cluster) -> str:
    layout, participants = cluster
    words = schema.LAYOUT_WORDS[layout]
    if "+" not in layout:
        return words
    return f"{words},\n{schema.CLUSTER_CALL_PARTICIPANTS[participants]}"

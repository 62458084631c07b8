"""Pictures of subscriptions in two regions; see `plots` for the rules and the palette."""

from __future__ import annotations

from typing import Any

from matplotlib import rc_context, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench import schema
from bench.analysis.figures import Figures, Rows
from bench.analysis.formats import number
from bench.analysis.plots import LINE_STYLE, PALETTE, WIDTH_IN, grid_lines, svg

__all__ = ["duplicates_plot", "moves_plot"]

MODE_COLOURS = {
    "vector": ("http", "required-one", "leader", "lcr"),
    "snapshot": ("legacy", "everywhere", "httpfollower", "httpreplicant"),
}
"""Of each mode, for its rates from the lowest on."""

MARKERS = {"vector": "o", "snapshot": "D"}

Style = dict[tuple[str, float], dict[str, Any]]


def moves_plot(figures: Figures) -> str | None:
    """Median and 99th percentile of a move by the distance: a line for each mode and rate."""
    rows = [row for row in figures.rows("subscriptions") if row["p50_ms"]]
    return _panels(rows, (("p50_ms", "median, ms"), ("p99_ms", "99th percentile, ms")), "submoves")


def duplicates_plot(figures: Figures) -> str | None:
    """Messages that came again after a move by the distance: a line for each mode and rate."""
    rows = [row for row in figures.rows("subscriptions") if row["again_most"] is not None]
    return _panels(rows, (("again_most", "messages again"),), "subagain")


def _panels(rows: Rows, columns: tuple[tuple[str, str], ...], name: str) -> str | None:
    """A column of panels for each layout, a line of them for each figure."""
    layouts = list(dict.fromkeys(row["layout"] for row in rows))
    if not layouts:
        return None
    with rc_context(LINE_STYLE):
        figure = Figure(figsize=(WIDTH_IN, 1.2 + 2.4 * len(columns)), layout="constrained")
        grid = figure.subplots(len(columns), len(layouts), squeeze=False, sharey="row", sharex=True)
        style = _style(rows)
        for line, (column, label) in zip(grid, columns, strict=True):
            for ax, layout in zip(line, layouts, strict=True):
                _lines(ax, [row for row in rows if row["layout"] == layout], column, style)
            line[0].set_ylabel(label)
        for ax, layout in zip(grid[0], layouts, strict=True):
            ax.set_title(f"regions of {schema.LAYOUT_WORDS[layout]}")
        for ax in grid[-1]:
            ax.set_xlabel("injected each way, ms")
        handles = [_handle(kind, look) for kind, look in style.items()]
        figure.legend(handles=handles, loc="outside upper right", ncols=min(3, len(handles)))
        return svg(figure, name)


def _style(rows: Rows) -> Style:
    """Every mode and rate with its colour and its marker."""
    style: Style = {}
    for mode, colours in MODE_COLOURS.items():
        rates = sorted({row["rate_per_s"] for row in rows if row["mode"] == mode})
        for place, rate in enumerate(rates):
            colour = PALETTE[colours[place % len(colours)]]
            style[mode, rate] = {"color": colour, "marker": MARKERS[mode]}
    return style


def _lines(ax: Axes, rows: Rows, column: str, style: Style) -> None:
    for (mode, rate), look in style.items():
        line = [row for row in rows if (row["mode"], row["rate_per_s"]) == (mode, rate)]
        if line:
            ax.plot(
                [row["delay_ms"] for row in line],
                [row[column] for row in line],
                ms=4,
                lw=1.6,
                **look,
            )
    # Zero duplicates have a place, and a thousand too.
    ax.set_yscale("symlog", linthresh=1.0)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
    ax.yaxis.set_minor_locator(ticker.NullLocator())
    ax.set_xticks(sorted({row["delay_ms"] for row in rows}))
    grid_lines(ax, "y")


def _handle(kind: tuple[str, float], look: dict[str, Any]) -> Line2D:
    mode, rate = kind
    label = f"{schema.SUBSCRIPTION_MODES[mode]}, {number(rate)}/s"
    return Line2D([], [], ms=4, label=label, **look)

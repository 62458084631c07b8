"""Pictures of the queues; see `plots` for the rules and the palette."""

from __future__ import annotations

from typing import Any

from matplotlib import rc_context, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench import schema
from bench.analysis.figures import Figures, Rows
from bench.analysis.plots import LINE_STYLE, PALETTE, WIDTH_IN, from_zero, grid_lines, svg

__all__ = ["entries_plot", "producers_plot"]

WAY_COLOURS = {
    "tx": ("http", "required-one", "leader", "lcr"),
    "dtx1": ("everywhere", "legacy"),
    "dtx2": ("replicant", "follower"),
}
"""Of each way, for its sizes of transactions from the smallest on."""

MARKERS = {"tx": "o", "dtx1": "s", "dtx2": "D"}


def producers_plot(figures: Figures) -> str | None:
    """Messages per second (above) and the median commit (below) by producers: a line a kind."""
    found = [row for row in figures.rows("txqueue") if row["messages_per_s"] and row["p50_ms"]]
    columns = (
        ("messages_per_s", "messages per second"),
        ("p50_ms", "median commit, milliseconds"),
    )
    return _panels(found, columns, "txqueueproducers", logarithmic=("p50_ms",))


def entries_plot(figures: Figures) -> str | None:
    """Entries of the log (above) and bytes between nodes (below) of a transaction."""
    found = [
        row
        for row in figures.rows("txqueue")
        if row["entries_per_transaction"] is not None and row["bytes_per_transaction"] is not None
    ]
    columns = (
        ("entries_per_transaction", "log entries for each"),
        ("bytes_per_transaction", "bytes for each"),
    )
    return _panels(
        found, columns, "txqueuecosts", logarithmic=tuple(column for column, _ in columns)
    )


def _panels(
    rows: Rows, columns: tuple[tuple[str, str], ...], name: str, logarithmic: tuple[str, ...]
) -> str | None:
    """A column of panels for each layout, a line of them for each figure."""
    layouts = list(dict.fromkeys(row["layout"] for row in rows))
    if not layouts:
        return None
    with rc_context(LINE_STYLE):
        figure = Figure(figsize=(WIDTH_IN, 5.8), layout="constrained")
        grid = figure.subplots(len(columns), len(layouts), squeeze=False, sharey="row", sharex=True)
        kinds = _kinds(rows)
        for line, (column, label) in zip(grid, columns, strict=True):
            for ax, layout in zip(line, layouts, strict=True):
                _lines(ax, [row for row in rows if row["layout"] == layout], column, kinds)
            line[0].set_ylabel(label)
            if column in logarithmic:
                _logarithmic(line)
            else:
                from_zero(line)
        for ax, layout in zip(grid[0], layouts, strict=True):
            ax.set_title(schema.LAYOUT_WORDS[layout])
        for ax in grid[-1]:
            ax.set_xlabel("producers in the leader")
        handles = [_handle(kind, style) for kind, style in kinds.items()]
        figure.legend(handles=handles, loc="outside upper right", ncols=min(5, len(handles)))
        return svg(figure, name)


def _kinds(rows: Rows) -> dict[tuple[str, int], dict[str, Any]]:
    """Every kind of transaction, way by way, with its colour and its marker."""
    kinds = {}
    for way, colours in WAY_COLOURS.items():
        sizes = sorted({row["batch"] for row in rows if row["way"] == way})
        for number, batch in enumerate(sizes):
            colour = PALETTE[colours[number % len(colours)]]
            kinds[way, batch] = {"color": colour, "marker": MARKERS[way]}
    return kinds


def _lines(ax: Axes, rows: Rows, column: str, kinds: dict[tuple[str, int], dict[str, Any]]) -> None:
    for kind, style in kinds.items():
        # What is nothing has no place on a logarithmic axis.
        line = [row for row in rows if (row["way"], row["batch"]) == kind and row[column]]
        if line:
            ax.plot(
                [row["producers"] for row in line],
                [row[column] for row in line],
                ms=4,
                lw=1.6,
                **style,
            )
    ax.set_xscale("log", base=2)
    ax.set_xticks(sorted({row["producers"] for row in rows}))
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_locator(ticker.NullLocator())
    grid_lines(ax, "y")


def _logarithmic(line: Any) -> None:
    for ax in line:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(ticker.NullFormatter())


def _handle(kind: tuple[str, int], style: dict[str, Any]) -> Line2D:
    way, batch = kind
    return Line2D([], [], ms=4, label=f"{schema.TXQUEUE_WAYS[way]} of {batch}", **style)

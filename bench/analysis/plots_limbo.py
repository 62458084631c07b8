"""Pictures of the limbo; see `plots` for the rules and the palette."""

from __future__ import annotations

from typing import Any

from matplotlib import rc_context, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench import schema
from bench.analysis.figures import Figures, Rows
from bench.analysis.plots import LINE_STYLE, PALETTE, WIDTH_IN, from_zero, grid_lines, svg

__all__ = ["costs_plot", "writers_plot"]

QUORUM_COLOURS = {"majority": "leader", "cores": "everywhere", "members": "replicant"}
MARKERS = {"majority": "o", "cores": "s", "members": "D"}


def writers_plot(figures: Figures) -> str | None:
    """Confirmed per second (above) and their median (below) by writers: a line for each quorum."""
    found = [row for row in figures.rows("limbo") if row["confirmed_per_s"] and row["p50_ms"]]
    return _panels(
        found,
        (("confirmed_per_s", "confirmed per second"), ("p50_ms", "median, milliseconds")),
        "limbowriters",
        logarithmic=("p50_ms",),
    )


def costs_plot(figures: Figures) -> str | None:
    """Entries of the log (above) and acknowledgements (below) of a transaction, by writers."""
    found = [
        row
        for row in figures.rows("limbo")
        if row["entries_per_transaction"] is not None and row["acks_per_transaction"] is not None
    ]
    return _panels(
        found,
        (
            ("entries_per_transaction", "log entries for each"),
            ("acks_per_transaction", "acknowledgements for each"),
        ),
        "limbocosts",
        logarithmic=("entries_per_transaction", "acks_per_transaction"),
    )


def _panels(
    rows: Rows,
    columns: tuple[tuple[str, str], ...],
    name: str,
    logarithmic: tuple[str, ...] = (),
) -> str | None:
    """A column of panels for each layout, a line of them for each figure."""
    layouts = list(dict.fromkeys(row["layout"] for row in rows))
    if not layouts:
        return None
    with rc_context(LINE_STYLE):
        figure = Figure(figsize=(WIDTH_IN, 5.4), layout="constrained")
        grid = figure.subplots(len(columns), len(layouts), squeeze=False, sharey="row", sharex=True)
        for line, (column, label) in zip(grid, columns, strict=True):
            for ax, layout in zip(line, layouts, strict=True):
                _lines(ax, [row for row in rows if row["layout"] == layout], column)
            line[0].set_ylabel(label)
            if column in logarithmic:
                _logarithmic(line)
            else:
                from_zero(line)
        for ax, layout in zip(grid[0], layouts, strict=True):
            ax.set_title(schema.LAYOUT_WORDS[layout])
        for ax in grid[-1]:
            ax.set_xlabel("writers in the owner")
        handles = _legend(rows)
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
        return svg(figure, name)


def _lines(ax: Axes, rows: Rows, column: str) -> None:
    for quorum, colour in QUORUM_COLOURS.items():
        # What is nothing has no place on a logarithmic axis.
        line = [row for row in rows if row["quorum"] == quorum and row[column]]
        if line:
            ax.plot(
                [row["writers"] for row in line],
                [row[column] for row in line],
                marker=MARKERS[quorum],
                ms=4,
                lw=1.6,
                color=PALETTE[colour],
            )
    ax.set_xscale("log", base=2)
    ax.set_xticks(sorted({row["writers"] for row in rows}))
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_locator(ticker.NullLocator())
    grid_lines(ax, "y")


def _logarithmic(line: Any) -> None:
    for ax in line:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(ticker.NullFormatter())


def _legend(rows: Rows) -> list[Line2D]:
    return [
        Line2D(
            [], [], color=PALETTE[colour], marker=MARKERS[quorum], ms=4,
            label=schema.LIMBO_QUORUMS[quorum],
        )
        for quorum, colour in QUORUM_COLOURS.items()
        if any(row["quorum"] == quorum for row in rows)
    ]  # fmt: skip

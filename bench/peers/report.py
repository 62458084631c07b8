"""A comparison for the eye: a table, and a picture."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.peers.figures import Comparison, Line, Spread

__all__ = ["plot", "show"]

COLUMNS = 4
"""Charts beside each other."""


def show(console: Console, found: Comparison) -> None:
    """The table; the ratio is raftkv divided by the peer."""
    table = Table(
        title=f"raftkv beside {found.peer} {found.peer_version}, three members each, "
        f"{found.conditions['cores']} processors",
        title_justify="left",
    )
    table.add_column("load")
    for heading in ("at once", f"{found.peer}/s", "raftkv/s", "ratio", "lowest to highest",
                    f"p99 ms {found.peer}", "raftkv"):  # fmt: skip
        table.add_column(heading, justify="right")
    last = ""
    for line in found.lines:
        table.add_row(line.load if line.load != last else "", *_cells(line))
        last = line.load
    console.print(table)


def _cells(line: Line) -> tuple[str, ...]:
    ratio = line.ratio
    colour = "green" if ratio.lowest > 1 else "red" if ratio.highest < 1 else "yellow"
    return (
        str(line.in_flight), _rate(line.peer_per_s), _rate(line.raftkv_per_s),
        f"[{colour}]{ratio.median:.2f}[/{colour}]", f"{ratio.lowest:.2f} to {ratio.highest:.2f}",
        _millis(line.peer_p99_ms), _millis(line.raftkv_p99_ms),
    )  # fmt: skip


def _rate(spread: Spread) -> str:
    return f"{spread.median:,.0f}"


def _millis(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def plot(found: Comparison, path: Path) -> None:
    """A chart for each load, rates over the number at once. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    loads = list(dict.fromkeys(line.load for line in found.lines))
    columns = min(COLUMNS, len(loads))
    rows = -(-len(loads) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.6 * columns, 3.2 * rows), squeeze=False, layout="constrained"
    )
    for unused in axes.flat[len(loads) :]:
        unused.set_visible(False)
    for axis, load in zip(axes.flat, loads, strict=False):
        chosen = [line for line in found.lines if line.load == load]
        places = range(len(chosen))
        for offset, side in ((-0.2, found.peer), (0.2, "raftkv")):
            spreads = [
                line.raftkv_per_s if side == "raftkv" else line.peer_per_s for line in chosen
            ]
            axis.bar(
                [place + offset for place in places],
                [spread.median for spread in spreads],
                0.4,
                yerr=[
                    [spread.median - spread.lowest for spread in spreads],
                    [spread.highest - spread.median for spread in spreads],
                ],
                capsize=2,
                label=side,
            )
        axis.set_title(load, fontsize=10)
        axis.set_xticks(list(places), [str(line.in_flight) for line in chosen])
        axis.set_xlabel("at once")
    for first in axes[:, 0]:
        first.set_ylabel("per second")
    axes[0][0].legend(fontsize=8)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)

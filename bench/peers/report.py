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
    beside = any(line.beside for line in found.lines)
    aims = any(line.aim for line in found.lines)
    table.add_column("load")
    if beside:
        table.add_column(f"beside {found.peer}'s")
    for heading in ("at once", f"{found.peer}/s", "raftkv/s", "ratio", "lowest to highest",
                    f"p99 ms {found.peer}", "raftkv"):  # fmt: skip
        table.add_column(heading, justify="right")
    if aims:
        table.add_column("aim: ratio, p99", no_wrap=True)
    last = ("", "")
    for line in found.lines:
        name = (line.load, line.beside)
        row = [line.load if line.load != last[0] else ""]
        row += [line.beside if name != last else ""] if beside else []
        row += _cells(line)
        row += [_aim(line)] if aims else []
        table.add_row(*row)
        last = name
    console.print(table)


def _aim(line: Line) -> str:
    if line.aim is None:
        return ""
    p99 = "" if line.aim.p99_ms is None else f", < {line.aim.p99_ms:.0f} ms"
    word = "[green]met[/green]" if line.met else "[red]missed[/red]"
    return f"{line.aim.times:g}{p99}: {word}"


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

    loads = list(dict.fromkeys((line.load, line.beside) for line in found.lines))
    columns = min(COLUMNS, len(loads))
    rows = -(-len(loads) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.6 * columns, 3.2 * rows), squeeze=False, layout="constrained"
    )
    for unused in axes.flat[len(loads) :]:
        unused.set_visible(False)
    for axis, load in zip(axes.flat, loads, strict=False):
        chosen = [line for line in found.lines if (line.load, line.beside) == load]
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
        axis.set_title(load[0] + (f"\nbeside {load[1]}" if load[1] else ""), fontsize=10)
        axis.set_xticks(list(places), [str(line.in_flight) for line in chosen])
        axis.set_xlabel("at once")
    for first in axes[:, 0]:
        first.set_ylabel("per second")
    axes[0][0].legend(fontsize=8)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)

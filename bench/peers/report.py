"""A comparison for the eye: a table, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.peers.figures import Aim, Comparison, Line, Loss, Spread

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
    waits = any(line.raftkv_longest_ms is not None for line in found.lines)
    latencies = "p50, p99, longest ms" if waits else "p99 ms"
    table.add_column("load")
    if beside:
        table.add_column(f"beside {found.peer}'s")
    for heading in ("at once", f"{found.peer}/s", "raftkv/s", "ratio", "lowest to highest"):
        table.add_column(heading, justify="right", no_wrap=heading == "lowest to highest")
    for heading in (f"{latencies} {found.peer}", "raftkv"):
        table.add_column(heading, justify="right", no_wrap=waits)
    if aims:
        table.add_column("aim: ratio, longest" if waits else "aim: ratio, p99", no_wrap=True)
    last = ("", "")
    for line in found.lines:
        name = (line.load, line.beside)
        row = [line.load if line.load != last[0] else ""]
        row += [line.beside if name != last else ""] if beside else []
        row += _cells(line, waits)
        row += [_aim(line)] if aims else []
        table.add_row(*row)
        last = name
    console.print(table)
    if found.losses:
        console.print(_loss_table(found.losses))


def _loss_table(losses: Sequence[Loss]) -> Table:
    """What writers saw while one of three members was gone."""
    first = losses[0]
    table = Table(
        title=f"One of three members is killed, {first.writers} writers write once each with a "
        f"time-out of {first.timeout_ms / 1000:g} s; then it comes back",
        title_justify="left",
    )
    for heading in ("", "quorum", "writers are told"):
        table.add_column(heading)
    for heading in ("after ms", "a reader sees meanwhile"):
        table.add_column(heading, justify="right")
    table.add_column("in the end")
    table.add_column("values on each member", justify="right")
    for loss in losses:
        settled = _counts(loss.settled)
        if loss.settled_ms is not None:
            settled += f", {loss.settled_ms:,.0f} ms after its return"
        table.add_row(
            loss.side, loss.quorum, _counts(loss.answers),
            f"{loss.shortest_ms:,.0f} to {loss.longest_ms:,.0f}",
            f"{loss.seen_meanwhile} of {loss.writers}", settled,
            " ".join(str(count) for count in loss.there.values()),
        )  # fmt: skip
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _aim(line: Line) -> str:
    if line.aim is None:
        return ""
    word = "[green]met[/green]" if line.met else "[red]missed[/red]"
    return f"{_bounds(line.aim)}: {word}"


def _bounds(aim: Aim) -> str:
    parts = [f"{aim.times:g}"] if aim.times else []
    parts += [f"< {ms:,.0f} ms" for ms in (aim.p99_ms, aim.longest_ms) if ms is not None]
    return ", ".join(parts)


def _cells(line: Line, waits: bool) -> tuple[str, ...]:
    ratio = line.ratio
    colour = "green" if ratio.lowest > 1 else "red" if ratio.highest < 1 else "yellow"
    theirs = [line.peer_p99_ms]
    ours = [line.raftkv_p99_ms]
    if waits:
        theirs = [line.peer_p50_ms, *theirs, line.peer_longest_ms]
        ours = [line.raftkv_p50_ms, *ours, line.raftkv_longest_ms]
    return (
        str(line.in_flight), _rate(line.peer_per_s), _rate(line.raftkv_per_s),
        f"[{colour}]{ratio.median:.2f}[/{colour}]", f"{ratio.lowest:.2f} to {ratio.highest:.2f}",
        _times(theirs), _times(ours),
    )  # fmt: skip


def _rate(spread: Spread) -> str:
    return f"{spread.median:,.0f}"


def _times(values: Sequence[float | None]) -> str:
    """In milliseconds; nothing if nothing is known."""
    return ", ".join(map(_millis, values)) if any(value is not None for value in values) else ""


def _millis(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}"


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

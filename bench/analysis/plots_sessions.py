"""Pictures of the performance test; see `plots` for the rules and the palette."""

from __future__ import annotations

from matplotlib import rc_context, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
    grid_lines,
    svg,
    value_beside,
)
from bench.analysis.words_sessions import MODE_WORDS

__all__ = ["cost_plot", "death_plot", "session_plot"]

SCENARIO_LABELS = {
    "initial": "initial\nconnections",
    "reconnect": "reconnections",
    "same_client": "same\nclient id",
    "lagging": "a replicant\nlags",
    "leader_dies": "the leader\nis killed",
}
BAR = 0.24


def session_plot(figures: Figures) -> str | None:
    """Left connects per second, right their time: three modes for each scenario."""
    rows = [row for row in figures.rows("sessions") if row["throughput_per_s"] is not None]
    scenarios = _scenarios(rows)
    if not rows:
        return None
    with rc_context(STYLE):
        figure, (speed, time) = _two(scenarios)
        for row in rows:
            place, colour = _place(scenarios, row), PALETTE[row["registry"]]
            speed.barh(place, row["throughput_per_s"], height=BAR * 0.9, color=colour)
            value_beside(speed, row["throughput_per_s"], place, number(row["throughput_per_s"]))
            if row["p50_ms"]:
                time.plot([row["p50_ms"], row["p99_ms"]], [place] * 2, color=colour, alpha=0.45)
                time.plot(row["p50_ms"], place, "o", color=colour, ms=6)
                time.plot(row["p99_ms"], place, "o", mec=colour, mfc="none", mew=1.6, ms=6)
                words = f"{number(row['p50_ms'])} \N{RIGHTWARDS ARROW} {number(row['p99_ms'])}"
                value_beside(time, row["p99_ms"], place, words)
        speed.set_title("connects per second")
        speed.set_xlabel("ok connects per second")
        speed.set_xlim(0, max(row["throughput_per_s"] for row in rows) * 1.2)
        speed.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        _logarithmic(time, [row for row in rows if row["p50_ms"]])
        for ax in (speed, time):
            grid_lines(ax, "x")
        return svg(figure, "sessions")


def cost_plot(figures: Figures) -> str | None:
    """Left entries of the log, right messages between nodes, for each connect."""
    rows = [row for row in figures.rows("sessions") if row["entries_per_connect"] is not None]
    scenarios = _scenarios(rows)
    if not rows:
        return None
    panels = (
        ("entries_per_connect", "log entries for each connect", "entries"),
        ("messages_per_connect", "messages for each connect", "messages between nodes"),
    )
    with rc_context(STYLE):
        figure, axes = _two(scenarios)
        for ax, (column, title, unit) in zip(axes, panels, strict=True):
            for row in rows:
                place, value = _place(scenarios, row), row[column]
                ax.barh(place, value or 0.0, height=BAR * 0.9, color=PALETTE[row["registry"]])
                words = "not counted" if value is None else number(value)
                value_beside(ax, value or 0.0, place, words)
            ax.set_title(title)
            ax.set_xlabel(unit)
            ax.set_xlim(0, (max(row[column] or 0.0 for row in rows) or 1.0) * 1.25)
            grid_lines(ax, "x")
        return svg(figure, "costs")


def death_plot(figures: Figures) -> str | None:
    """Ok connects in each tenth of a second around the kill, a panel for each mode."""
    rows = figures.rows("around_death")
    modes = [name for name in MODE_WORDS if any(row["registry"] == name for row in rows)]
    if not modes:
        return None
    with rc_context(LINE_STYLE):
        figure = Figure(figsize=(WIDTH_IN, 2.6), layout="constrained")
        axes = figure.subplots(1, len(modes), squeeze=False, sharey=True, sharex=True)[0]
        for ax, mode in zip(axes, modes, strict=True):
            here = [row for row in rows if row["registry"] == mode]
            for run in dict.fromkeys((row["layout"], row["run"]) for row in here):
                line = [row for row in here if (row["layout"], row["run"]) == run]
                at_s = [row["at_ms"] / 1000 for row in line]
                ax.step(at_s, [row["ok"] for row in line], where="post", color=PALETTE[mode])
            ax.axvline(0.0, color=PALETTE["muted"], lw=1, ls=(0, (3, 2)))
            ax.set_title(MODE_WORDS[mode])
            ax.set_xlabel("seconds since the kill")
            grid_lines(ax, "y")
        axes[0].set_ylabel("ok connects in 0.1 s")
        axes[0].set_ylim(0, max(row["ok"] for row in rows) * 1.1 or 1.0)
        return svg(figure, "death")


def _two(scenarios: list[str]) -> tuple[Figure, tuple[Axes, Axes]]:
    """Two panels that share the lines: one for each scenario, with room for three modes."""
    size = (WIDTH_IN, 1.3 + 3.2 * ROW_IN * len(scenarios))
    figure = Figure(figsize=size, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    left.set_yticks(range(len(scenarios)), [SCENARIO_LABELS[name] for name in scenarios])
    left.set_ylim(len(scenarios) - 0.5, -0.5)
    figure.legend(
        handles=[Patch(color=PALETTE[name], label=words) for name, words in MODE_WORDS.items()],
        loc="outside upper right",
        ncols=len(MODE_WORDS),
    )
    return figure, (left, right)


def _scenarios(rows: Rows) -> list[str]:
    return [name for name in schema.SCENARIOS if any(row["scenario"] == name for row in rows)]


def _place(scenarios: list[str], row: dict[str, object]) -> float:
    return scenarios.index(str(row["scenario"])) + BAR * (
        list(MODE_WORDS).index(str(row["registry"])) - 1
    )


def _logarithmic(ax: Axes, rows: Rows) -> None:
    ax.set_xscale("log")
    ax.set_title("time of a connect, median to 99th percentile")
    ax.set_xlabel("milliseconds, logarithmic")
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())
    if rows:
        low, high = min(row["p50_ms"] for row in rows), max(row["p99_ms"] for row in rows)
        ax.set_xlim(low / 1.6, high * max(high / low, 2.0) ** 0.4 * 1.5)

"""`python -m bench compare --against REV|DIR`: this working tree beside another revision.

    python -m bench compare --against v0.1 --out DIR
    python -m bench compare --against ../other-checkout --out DIR --layout 3+3 --tls

The same short benchmark runs on both, in turns (A B, B A, A B ...), so that a machine on which
other things run treats both alike. What is printed are ratios, with the spread of the rounds:
"1.02 (0.97 to 1.06)" is a tie. With `--tls` the working tree runs a second time in each round, with
TLS between its nodes. Every side's log stays in DIR/<side> and can be analysed by itself.

Exit codes: 0 compared, whatever came out; 1 a run failed; 2 nothing to compare, or bad arguments;
130 after Ctrl-C. With `--fail-if-slower` it is 3 when a group was slower in every round.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.analysis import AnalysisError
from bench.arguments import positive, positive_int
from bench.coordinator import CALLERS
from bench.plan import PUT_EVERY, REGISTRY_SCENARIOS
from bench.schema import LAYOUTS
from bench.sides import ROOT, CompareError, Side, check_imports, play_round, prepare

if TYPE_CHECKING:
    from bench.analysis.rounds import Comparison, Spread

__all__ = ["main", "order_of", "run_arguments"]

BASE, TREE, SECURE = "base", "tree", "tree-tls"
TITLES = {TREE: "working tree", SECURE: "working tree, TLS"}

SCENARIOS = ("puts", "gets")
PLACES = ("leader", "follower", "replicant", "http")
IN_FLIGHT = (1, 64, 256)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    given = _parser().parse_args(argv)
    out, console = Path(given.out), Console(stderr=True)
    if out.is_dir() and any(out.iterdir()):
        console.print(f"[red]{out} is not empty.[/red] Name a new folder with --out.")
        return 2
    try:
        with _sides(given, out.resolve()) as sides:
            _play(sides, given, console)
        comparisons = _figures(sides, given.master)
    except CompareError as error:
        console.print(f"[red]bench compare:[/red] {error}", highlight=False, soft_wrap=True)
        return 1 if any(out.glob("*/run.log")) else 2
    except AnalysisError as error:
        console.print(f"[red]bench compare:[/red] {error}", highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted.[/yellow] All processes were ended.")
        return 130
    text = msgspec.json.format(msgspec.json.encode(_summary(given, comparisons)), indent=2)
    (out / "comparison.json").write_bytes(text + b"\n")
    if given.json:
        print(text.decode())
    else:
        _show(comparisons, given.against, out)
    slower = any(each.verdict == "slower" for each in comparisons)
    return 3 if given.fail_if_slower and slower else 0


@contextmanager
def _sides(given: argparse.Namespace, out: Path) -> Iterator[list[Side]]:
    """The code of each side in a temporary directory; it goes when the rounds are over."""
    work = Path(tempfile.mkdtemp(prefix="raftkv-compare-")).resolve()
    try:
        prepare(work / BASE, given.against)
        prepare(work / TREE, str(ROOT))
        sides = [Side(BASE, work / BASE, out / BASE), Side(TREE, work / TREE, out / TREE)]
        if given.tls:
            sides.append(Side(SECURE, work / TREE, out / SECURE, ("--tls",)))
        for side in sides:
            check_imports(side)
        out.mkdir(parents=True, exist_ok=True)
        yield sides
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _play(sides: Sequence[Side], given: argparse.Namespace, console: Console) -> None:
    arguments = run_arguments(given)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[live]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("side by side", total=given.rounds * len(sides), live="")
        for number in range(given.rounds):
            for side in order_of(sides, number):
                progress.update(bar, live=f"round {number + 1} of {given.rounds}: {side.name}")
                play_round(side, arguments)
                progress.advance(bar)


def order_of(sides: Sequence[Side], number: int) -> list[Side]:
    """Forth in one round and back in the next: nobody is always the one that comes first."""
    return list(sides) if number % 2 == 0 else list(reversed(sides))


def run_arguments(given: argparse.Namespace) -> list[str]:
    """The options of `bench run` for every side."""
    arguments = ["--seconds", str(given.seconds), "--put-seconds", str(given.seconds)]
    arguments += ["--consistency", "linearizable", "--fsync", given.fsync]
    for option, values in (
        ("--layout", given.layouts or ["3"]),
        ("--scenario", given.scenarios or SCENARIOS),
        ("--caller", given.callers or PLACES),
        ("--in-flight", given.in_flight or IN_FLIGHT),
    ):
        for value in dict.fromkeys(values):
            arguments += [option, str(value)]
    return arguments


def _figures(sides: Sequence[Side], master: str) -> list[Comparison]:
    try:
        from bench.analysis.rounds import compared, figures_by_round
    except ModuleNotFoundError as error:
        raise AnalysisError(f"{error.name} is not installed: install the extra `bench`") from None
    from bench.analysis.progress import Progress as Steps
    from bench.analysis.session import spark_session

    with Steps() as steps:
        steps.step("starting Spark")
        with spark_session(master) as spark:
            steps.step("computing the figures of every round")
            rows = figures_by_round(spark, {side.name: side.out for side in sides})
    return compared(rows, BASE)


def _summary(given: argparse.Namespace, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    return {
        "against": given.against,
        "rounds": given.rounds,
        "arguments": run_arguments(given),
        "comparisons": comparisons,
    }


def _show(comparisons: Sequence[Comparison], against: str, out: Path) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    for side in dict.fromkeys(each.side for each in comparisons):
        title = f"{TITLES[side].capitalize()} divided by {against}: median (lowest to highest)"
        table = Table(title=title, title_justify="left")
        for heading in ("layout", "what", "caller"):
            table.add_column(heading)
        for heading in ("in flight", f"{against} /s", "now /s", "throughput", "p50", "p99"):
            table.add_column(heading, justify="right")
        table.add_column("")
        for each in comparisons:
            if each.side == side:
                table.add_row(*_cells(each))
        console.print(table)
    console.print("Above 1: more operations per second (throughput), or a longer wait (p50, p99).")
    console.print(f"The logs and comparison.json: {out}", highlight=False, soft_wrap=True)


def _cells(one: Comparison) -> list[str]:
    group = one.group
    what = (
        group["op"] if group["registry"] == "none" else f"{group['scenario']} {group['registry']}"
    )
    if group["scenario"] == "mixed":
        what = f"mixed, {what}"
    errors = f", {one.errors} errors" if one.errors else ""
    return [
        group["layout"],
        what,
        group["role"].replace("_", " "),
        group["phase"].removeprefix("c") if group["registry"] == "none" else "",
        f"{one.base_throughput_per_s:,.0f}",
        f"{one.throughput_per_s:,.0f}",
        *(_spread_words(each) for each in (one.throughput, one.p50, one.p99)),
        f"{one.verdict}{errors}",
    ]


def _spread_words(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench compare",
        description="Run the same benchmark on this working tree and on another revision, in "
        "turns, and print ratios with their spread.",
        epilog="example: python -m bench compare --against HEAD~5 --out out/compared --tls",
    )
    add = parser.add_argument
    add("--against", required=True, metavar="REV|DIR", help="a git revision, or a checkout")
    add("--out", required=True, metavar="DIR", help="where logs and comparison.json go")
    add("--rounds", type=positive_int, default=4, help="of each side (default: 4)")
    add("--seconds", type=positive, default=1.5, help="of each load (default: 1.5)")
    add(
        *("--layout", "--layouts"),
        action="append",
        choices=LAYOUTS,
        dest="layouts",
        help="may be repeated (default: 3)",
    )
    add(
        "--scenario",
        action="append",
        choices=(*REGISTRY_SCENARIOS, *PUT_EVERY),
        dest="scenarios",
        help="may be repeated (default: puts gets)",
    )
    add(
        "--caller",
        action="append",
        choices=CALLERS,
        dest="callers",
        help="may be repeated (default: leader follower replicant http)",
    )
    add(
        "--in-flight",
        action="append",
        type=positive_int,
        metavar="N",
        help="puts or gets at once; may be repeated (default: 1 64 256)",
    )
    add("--fsync", choices=("on", "off"), default="on")
    add("--tls", action="store_true", help="the working tree once more, with TLS between nodes")
    add("--json", action="store_true", help="print comparison.json instead of tables")
    add("--fail-if-slower", action="store_true", help="exit code 3 if a group is slower each round")
    add("--master", default="local[*]", metavar="URL", help="of Spark (default: local[*])")
    return parser


if __name__ == "__main__":
    sys.exit(main())

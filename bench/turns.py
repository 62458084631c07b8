"""`python -m bench turns --against REV`: two revisions at once, a second each, in turns.

`bench compare` runs whole benchmarks one after the other. On a machine that others use, too, what
lies between two of them can be more than a factor of two, and then it says nothing. Here a cluster
of the other revision and one of the working tree both run all the time, and the load goes from one
to the other every second, in the other order in every second round. A ratio is taken within a
round; shown is the median of the rounds, and where the true one lies 95 times in 100. Beside the
rate stands the processor time of all cores for one call, which is less the others' doing.

The callers are inside the leader and know nothing of the door: what is compared is the log, the
engine and the state machine. The idle cluster beside costs both sides its heartbeats.

Exit codes: 0 measured; 1 slower or dearer beyond chance and `--fail-if-slower` given; 2 a node
failed, or REV is nothing that can be measured; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.arguments import positive, positive_int
from bench.conditions import conditions
from bench.embedded_node import Gets, Load, Puts
from bench.embedding import Cores
from bench.keys_report import median_between
from bench.layouts import WorkerFailed
from bench.orders import ORDERS
from bench.peers.figures import Spread
from bench.sides import ROOT, CompareError, Side, check_imports, prepare
from raftkv.errors import RaftkvError

__all__ = ["Level", "Report", "Turn", "level_of", "main"]

BASE, TREE = "base", "tree"
WARM_S: Final = 1.0
# The ratios whose intervals do not reach 1 and are further from it than this are no chance.
MATTERS: Final = 0.03


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What one side did in its turn."""

    per_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


class Ratio(msgspec.Struct, frozen=True):
    """The working tree divided by the other revision; `between` holds the true median 95 times
    in 100."""

    median: float
    between: tuple[float, float]

    @staticmethod
    def of(values: Sequence[float]) -> Ratio:
        return Ratio(Spread.of(values).median, median_between(values))


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides under one load, `in_flight` calls at once: medians, and the ratios of rounds."""

    what: str
    in_flight: int
    rounds: int
    base: Turn
    tree: Turn
    rate: Ratio
    cpu: Ratio

    @property
    def slower(self) -> bool:
        """Whether the working tree is slower or dearer, and not by chance."""
        return self.rate.between[1] < 1 - MATTERS or self.cpu.between[0] > 1 + MATTERS


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    against: str
    levels: list[Level]
    conditions: dict[str, Any]


def level_of(what: str, in_flight: int, rounds: Sequence[tuple[Turn, Turn]]) -> Level:
    """What the rounds, each (the other revision, the working tree), say together."""

    def median(turns: Sequence[Turn]) -> Turn:
        names = Turn.__struct_fields__
        return Turn(**{name: Spread.of(getattr(t, name) for t in turns).median for name in names})

    return Level(
        what=what,
        in_flight=in_flight,
        rounds=len(rounds),
        base=median([base for base, _ in rounds]),
        tree=median([tree for _, tree in rounds]),
        rate=Ratio.of([tree.per_s / base.per_s for base, tree in rounds]),
        cpu=Ratio.of([tree.cpu_us / base.cpu_us for base, tree in rounds]),
    )


async def measure(given: argparse.Namespace, place: Path, step: Callable[[str], None]) -> Report:
    """All of it. Raises `WorkerFailed`, `CompareError`."""
    step("copying both sides")
    codes = {BASE: place / "code" / BASE, TREE: place / "code" / TREE}
    for name, source in ((BASE, given.against), (TREE, str(ROOT))):
        prepare(codes[name], source)
        check_imports(Side(name, codes[name], place))
        (place / name).mkdir()
    async with (
        Cores(place / BASE, layout=given.layout, code=codes[BASE]) as base,
        Cores(place / TREE, layout=given.layout, code=codes[TREE]) as tree,
    ):
        for cores in (base, tree):
            step("loading")
            leader, _ = await cores.leader()
            await leader.ask(Load(given.keys, given.value_bytes))
            await _turn(cores, _ask(given, "puts", max(given.in_flight), WARM_S))
        levels = []
        for what in given.what:
            for in_flight in given.in_flight:
                rounds = await _rounds(given, base, tree, what, in_flight, step)
                levels.append(level_of(what, in_flight, rounds))
    found = conditions(place, fsync=True, arguments=vars(given))
    return Report(against=given.against, levels=levels, conditions=found)


async def _rounds(
    given: argparse.Namespace,
    base: Cores,
    tree: Cores,
    what: str,
    in_flight: int,
    step: Callable[[str], None],
) -> list[tuple[Turn, Turn]]:
    rounds = []
    for number in range(given.rounds):
        step(f"{what}, {in_flight} at once, round {number + 1} of {given.rounds}")
        turns: dict[str, Turn] = {}
        sides = ((BASE, base), (TREE, tree))
        for name, cores in sides if number % 2 == 0 else reversed(sides):
            turns[name] = await _turn(cores, _ask(given, what, in_flight, given.seconds))
        rounds.append((turns[BASE], turns[TREE]))
    return rounds


def _ask(given: argparse.Namespace, what: str, in_flight: int, seconds: float) -> Puts | Gets:
    if what == "gets":
        return Gets(given.keys, seconds, in_flight, order=given.order)
    return Puts(given.keys, given.value_bytes, seconds, in_flight, given.order)


async def _turn(cores: Cores, ask: Puts | Gets) -> Turn:
    leader, _ = await cores.leader()
    began_s = await cores.cpu_s()
    answer = await leader.ask(ask)
    took_s = await cores.cpu_s() - began_s
    return Turn(
        per_s=answer.done / answer.seconds,
        cpu_us=took_s / answer.done * 1e6,
        p50_ms=answer.p50_ms,
        p99_ms=answer.p99_ms,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    given = _parser().parse_args(argv)
    console = Console(stderr=given.json)
    if not console.is_terminal:
        console = Console(stderr=given.json, width=110)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with (
            tempfile.TemporaryDirectory(prefix="raftkv-turns-", dir=given.dir) as place,
            Progress(*columns, console=console, transient=True) as progress,
        ):
            task = progress.add_task("starting")

            def step(text: str) -> None:
                progress.update(task, description=text)

            report = asyncio.run(measure(given, Path(place).resolve(), step))
    except (CompareError, WorkerFailed, RaftkvError, OSError) as error:
        print(f"bench turns: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if given.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    else:
        _show(console, report)
    return 1 if given.fail_if_slower and any(level.slower for level in report.levels) else 0


def _show(console: Console, report: Report) -> None:
    arguments = report.conditions["arguments"]
    table = Table(
        title=f"the working tree divided by {report.against}: {arguments['layout']} cores, "
        f"{arguments['rounds']} rounds; the median, and where it lies 95 times in 100",
        title_justify="left",
    )
    table.add_column("")
    table.add_column("at once", justify="right")
    for name in ("before /s", "now /s", "rate", "p50 ms", "p99 ms", "us a call", "ratio"):
        table.add_column(name, justify="right")
    for level in report.levels:
        base, tree = level.base, level.tree
        table.add_row(
            level.what,
            f"{level.in_flight}",
            f"{base.per_s:,.0f}",
            f"{tree.per_s:,.0f}",
            _ratio(level.rate),
            f"{base.p50_ms:.2f}, {tree.p50_ms:.2f}",
            f"{base.p99_ms:.2f}, {tree.p99_ms:.2f}",
            f"{base.cpu_us:,.0f}, {tree.cpu_us:,.0f}",
            _ratio(level.cpu),
        )
    console.print(table)


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.between[0]:.2f} to {ratio.between[1]:.2f})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench turns",
        description="Two revisions at once, a second each, in turns: ratios of their rates and of "
        "the processor time of a call.",
        epilog="Example: python -m bench turns --against HEAD~5 --in-flight 1 64",
    )
    parser.add_argument(
        "--against", required=True, metavar="REV|DIR", help="a git revision, or a checkout"
    )
    parser.add_argument(
        "--what", choices=("puts", "gets"), nargs="+", default=["puts"], help="default: puts"
    )
    parser.add_argument(
        "--in-flight", type=positive_int, nargs="+", default=[1, 16, 64, 256], metavar="N",
        help="calls at once, one or several (default: 1 16 64 256)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=positive_int, default=15, help="default: 15")
    parser.add_argument("--seconds", type=positive, default=1.0, help="of each turn (default: 1)")
    parser.add_argument("--layout", choices=("1", "3", "5"), default="3", help="cores (default: 3)")
    parser.add_argument("--keys", type=positive_int, default=1000, help="default: 1,000")
    parser.add_argument(
        "--order", choices=ORDERS, default="uniform", help="of the keys (default: uniform)"
    )
    parser.add_argument(
        "--value-bytes", type=positive_int, default=100, help="of each value (default: 100)"
    )
    parser.add_argument("--dir", help="directory for the nodes' data (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead")
    parser.add_argument(
        "--fail-if-slower", action="store_true",
        help="exit with 1 if the working tree is slower or dearer, and not by chance",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench peers etcd`: raftkv beside another on this machine, in this run.

Exit codes: 0 measured; 2 it could not be (a program is missing, a node failed); 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import wrk
from bench.arguments import positive_int
from bench.conditions import conditions
from bench.embedding import Cores
from bench.layouts import WorkerFailed
from bench.peers import beside_etcd, debian
from bench.peers.etcd import Etcd, EtcdFailed
from bench.peers.figures import Comparison, lines
from bench.peers.report import plot, show

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    given = _parser().parse_args(argv)
    console = Console(stderr=given.json)
    if not console.is_terminal:
        console = Console(stderr=given.json, width=130)
    try:
        with tempfile.TemporaryDirectory(prefix="raftkv-peers-", dir=given.dir) as place:
            found = asyncio.run(_beside_etcd(given, Path(place), console))
        if given.plot is not None:
            plot(found, given.plot)
    except (debian.Missing, EtcdFailed, wrk.WrkFailed, WorkerFailed, OSError) as error:
        print(f"bench peers: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if given.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    else:
        show(console, found)
        console.print(_notes(found), highlight=False)
    return 0


async def _beside_etcd(given: argparse.Namespace, place: Path, console: Console) -> Comparison:
    """Start both, run the plan, end both."""
    plan = beside_etcd.Plan(
        loads=given.loads or beside_etcd.LOADS,
        connections=given.connections,
        seconds=given.seconds,
        rounds=given.rounds,
        value_bytes=given.value_bytes,
    )
    program = debian.find("wrk")
    found = conditions(place, fsync=True, arguments=_arguments(given))
    for name in ("etcd", "raftkv"):
        (place / name).mkdir()
    with Etcd(place / "etcd") as etcd, _steps(console, plan.steps + 2) as step:
        async with Cores(place / "raftkv") as cores:
            samples = await beside_etcd.measure(plan, etcd, cores, program, step)
        return Comparison(
            peer="etcd",
            peer_version=etcd.version,
            conditions=found,
            lines=lines(samples, "etcd", beside_etcd.AGAINST),
            samples=samples,
        )


@contextlib.contextmanager
def _steps(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """A bar; the function advances it and names what comes next."""
    with Progress(
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
        console=console, transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=total, completed=-1)

        def step(text: str) -> None:
            progress.update(task, advance=1, description=text)

        yield step


def _notes(found: Comparison) -> str:
    sync = found.conditions["fdatasync"]
    bad = [each for each in found.samples if each.refused or each.failed]
    median_ms, p99_ms = sync["median_us"] / 1000, sync["p99_us"] / 1000
    text = f"One fdatasync here: {median_ms:.2f} ms, p99 {p99_ms:.2f} ms."
    wins = {line.load: line for line in found.lines if line.load.startswith("CAS")}
    loop, in_log = wins.get("CAS wins, loop"), wins.get("CAS wins inside a node, in the log")
    if loop is not None and in_log is not None:
        times = in_log.raftkv_per_s.median / loop.peer_per_s.median
        text += f" Wins decided in raftkv's log: {times:,.0f} times those of etcd's loop."
    if bad:
        text += f" {len(bad)} of {len(found.samples)} measurements had requests that failed."
    return text


def _arguments(given: argparse.Namespace) -> dict[str, object]:
    return {key: value if isinstance(value, int | float | list) else str(value)
            for key, value in vars(given).items() if value is not None}  # fmt: skip


def _numbers(text: str) -> list[int]:
    """A list of whole numbers above 0."""
    return [positive_int(part) for part in text.split(",") if part]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench peers",
        description="raftkv beside another on this machine, in turns in one run.",
        epilog="Example: python -m bench peers etcd --json --plot etcd.png > etcd.json",
    )
    parser.add_argument("peer", choices=("etcd",), help="etcd: Debian's etcd-server, by wrk")
    parser.add_argument(
        "--load", action="append", choices=beside_etcd.LOADS, dest="loads", metavar="LOAD",
        help=f"may be repeated (default: all): {'; '.join(beside_etcd.LOADS)}",
    )  # fmt: skip
    parser.add_argument(
        "--connections", type=_numbers, default=[1, 16, 64, 256], metavar="N,N",
        help="default: 1,16,64,256",
    )  # fmt: skip
    parser.add_argument("--seconds", type=positive_int, default=5, help="of each (default: 5)")
    parser.add_argument("--rounds", type=positive_int, default=3, help="default: 3")
    parser.add_argument("--value-bytes", type=positive_int, default=64, help="default: 64")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the rates, too (PNG, SVG)")
    parser.add_argument("--dir", help="directory for the nodes' data (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead")
    return parser

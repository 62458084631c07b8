"""`python -m raftkv_cluster_call.testing`: storms of calls of many seeds, or one to be watched.

Each seed draws its own cluster, faults, callers, operators and settings (`storm_plan.py`). The exit
code is 0 only if no seed violated anything; the last line is the summary, with what did happen and
what never did. `--replay SEED` shows one run, event by event. `--planted` proves the checks: every
known bug is planted in turn, and must be found.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from raftkv.testing.arguments import positive
from raftkv.testing.replay import Replay
from raftkv.testing.scenario import Result
from raftkv.testing.simulated import SimulatedCluster

from .planted import BUGS, SEEDS_MAX
from .storm import run_storm
from .storm_plan import EXPECTED, draw

__all__ = ["main"]

SECONDS = 20.0
VIOLATIONS_SHOWN = 10


@dataclass
class Totals:
    """All seeds of one call."""

    seeds: int = 0
    simulated_s: float = 0.0
    real_s: float = 0.0
    calls: int = 0
    violations: list[Result] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.simulated_s += result.simulated_s
        self.real_s += result.real_s
        self.calls += result.operations
        self.faults += result.faults
        self.marks += result.marks
        if result.check:
            self.violations.append(result)

    def summary(self) -> str:
        """One line: what was run, what was found, what did happen."""
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        marks = ", ".join(f"{name} {count}" for name, count in sorted(self.marks.items()))
        missing = [name for name in EXPECTED if not self.marks[name]]
        violations = len(self.violations)
        return (
            f"{self.seeds} seed{'' if self.seeds == 1 else 's'}, "
            f"{violations} violation{'' if violations == 1 else 's'}, "
            f"{self.simulated_s:.0f} simulated s at {self.simulated_s / max(self.real_s, 1e-9):.1f}"
            f" per real s and job, {self.calls} calls; faults: {faults or 'none'}; "
            f"marks: {marks or 'none'}; never seen: {', '.join(missing) or 'nothing'}"
        )


def _quiet() -> None:
    """What nodes log about their faults is the point of a storm, not news."""
    logging.disable(logging.CRITICAL)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def _run(options: argparse.Namespace, console: Console) -> Totals:
    """Run the seeds in `options.jobs` processes."""
    low, high = options.seeds
    totals, seeds = Totals(), iter(range(low, high))
    end = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
    with (
        _progress(console) as progress,
        ProcessPoolExecutor(options.jobs, initializer=_quiet) as pool,
    ):
        bar = progress.add_task("storms", total=high - low)
        for result in _results(pool, seeds, options, lambda: time.monotonic() < end):
            totals.add(result)
            progress.advance(bar)
            if result.check and len(totals.violations) <= VIOLATIONS_SHOWN:
                progress.console.print(
                    _told(result, options), style="red", markup=False, soft_wrap=True
                )
    return totals


def _results(
    pool: ProcessPoolExecutor,
    seeds: Iterator[int],
    options: argparse.Namespace,
    may_go_on: Callable[[], bool],
) -> Iterable[Result]:
    running: set[Future[Result]] = set()
    while True:
        while len(running) < 2 * options.jobs and may_go_on():
            seed = next(seeds, None)
            if seed is None:
                break
            running.add(pool.submit(run_storm, seed, seconds=options.seconds, bug=options.bug))
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


def _told(result: Result, options: argparse.Namespace) -> str:
    again = f"--replay {result.seed}"
    again += f" --seconds {options.seconds:g}" if options.seconds != SECONDS else ""
    again += f" --bug {options.bug}" if options.bug else ""
    return f"{result.message}\n  again: tools/simulate-calls {again}"


def _replay(options: argparse.Namespace) -> int:
    """One seed, shown. Plain text on standard output, for grep."""
    _quiet()
    print(f"seed {options.replay}: {draw(options.replay, options.seconds)}")
    shows: list[Replay] = []

    def prepare(cluster: SimulatedCluster) -> None:
        shows.append(Replay(cluster, print).__enter__())

    try:
        result = run_storm(
            options.replay, seconds=options.seconds, bug=options.bug, prepare=prepare
        )
    finally:
        logging.disable(logging.NOTSET)
        for show in shows:
            show.__exit__(None, None, None)
    print(result.message if result.check else f"fingerprint {result.fingerprint}")
    totals = Totals()
    totals.add(result)
    print(totals.summary())
    return 1 if result.check else 0


def _hunt(bug: str, seconds: float) -> tuple[str, Result | None, int]:
    """Run seeds with the bug planted until one is violated; how many it took."""
    _quiet()
    for seed in range(SEEDS_MAX):
        result = run_storm(seed, seconds=seconds, bug=bug)
        if result.check:
            return bug, result, seed + 1
    return bug, None, SEEDS_MAX


def _prove(options: argparse.Namespace, console: Console) -> int:
    """Plant every bug in turn. Returns the exit code: 0 if every one was found."""
    missed = []
    with _progress(console) as progress, ProcessPoolExecutor(options.jobs) as pool:
        bar = progress.add_task("planted bugs", total=len(BUGS))
        names = sorted(BUGS)
        for bug, found, seeds in pool.map(_hunt, names, [options.seconds] * len(names)):
            progress.advance(bar)
            check = "NOT FOUND" if found is None else found.check
            print(f"| `{bug}` | {BUGS[bug].what} | {check} | {seeds} |")
            if found is None:
                missed.append(bug)
    print(
        f"{len(BUGS)} planted bugs, {len(BUGS) - len(missed)} found within {SEEDS_MAX} seeds"
        + (f", not found: {', '.join(missed)}" if missed else "")
    )
    return 1 if missed else 0


def _seeds(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    try:
        low, high = int(first), int(last)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no range: write A:B") from None
    if not colon or low < 0 or high <= low:
        raise argparse.ArgumentTypeError(f"{text!r} is no range: write A:B with 0 <= A < B")
    return low, high


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/simulate-calls",
        description="Let callers call, functions fail and operators interfere in whole clusters in "
        "a simulated world with faults, one per seed, and check every promise of cluster calls. "
        "Exits with 0 only if none was broken; the last line is the summary.",
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=(0, 100),
        metavar="A:B",
        help="the seeds A to B - 1 (default 0:100)",
    )
    parser.add_argument("--minutes", type=positive, metavar="M", help="start no seed after that")
    parser.add_argument("--jobs", type=int, default=2, help="processes at one time (default 2)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="show this one, event by event")
    parser.add_argument(
        "--seconds",
        type=positive,
        default=SECONDS,
        help=f"simulated seconds of faults per seed (default {SECONDS:g}); healing comes on top",
    )
    parser.add_argument("--bug", choices=sorted(BUGS), metavar="NAME", help="plant a known bug")
    parser.add_argument(
        "--planted", action="store_true", help="plant every known bug in turn, and tell who saw it"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = _parser()
    options: Any = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    if options.replay is not None:
        return _replay(options)
    console = Console(stderr=True)
    if options.planted:
        return _prove(options, console)
    totals = _run(options, console)
    print(totals.summary())
    return 1 if totals.violations else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        # The reader of a replay has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)

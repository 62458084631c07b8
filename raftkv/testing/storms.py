"""The command of a plugin's storms: many seeds, one to be watched, or every planted bug in turn.

A plugin's testing package has a `Storm`, which says what a seed is and what is to be seen, and a
`__main__` that calls `main` with it. The exit code is 0 only if no seed violated anything; the last
line is the summary, with what did happen and what never did.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .arguments import positive
from .own_errors import BugFailed
from .replay import Replay
from .scenario import Result

__all__ = ["Bug", "Storm", "Totals", "command", "main"]

SECONDS = 20.0
VIOLATIONS_SHOWN = 10


class Bug(Protocol):
    """A planted bug."""

    @property
    def what(self) -> str: ...


@dataclass(frozen=True)
class Storm:
    """What a plugin's storms are. `run` must be a function of a module: processes import it."""

    prog: str
    description: str
    #: What `Result.operations` counts, in the plural.
    operations: str
    run: Callable[..., Result]
    draw: Callable[[int, float], object]
    expected: Sequence[str]
    bugs: Mapping[str, Bug]
    #: Seeds in which a planted bug must be found.
    seeds_max: int
    #: Simulated seconds of faults, if the command is not told.
    seconds: float = SECONDS
    #: Made of what `run` gives to its `prepare`, and `print`: shows the run while it is entered.
    show: Callable[[Any, Callable[[str], object]], Any] = Replay


@dataclass
class Totals:
    """All seeds of one call."""

    storm: Storm
    seeds: int = 0
    simulated_s: float = 0.0
    real_s: float = 0.0
    operations: int = 0
    violations: list[Result] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.simulated_s += result.simulated_s
        self.real_s += result.real_s
        self.operations += result.operations
        self.faults += result.faults
        self.marks += result.marks
        if result.check:
            self.violations.append(result)

    def summary(self) -> str:
        """One line: what was run, what was found, what did happen."""
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        marks = ", ".join(f"{name} {count}" for name, count in sorted(self.marks.items()))
        missing = [name for name in self.storm.expected if not self.marks[name]]
        violations = len(self.violations)
        return (
            f"{self.seeds} seed{'' if self.seeds == 1 else 's'}, "
            f"{violations} violation{'' if violations == 1 else 's'}, "
            f"{self.simulated_s:.0f} simulated s at {self.simulated_s / max(self.real_s, 1e-9):.1f}"
            f" per real s and job, {self.operations} {self.storm.operations}; "
            f"faults: {faults or 'none'}; marks: {marks or 'none'}; "
            f"never seen: {', '.join(missing) or 'nothing'}"
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


def _run(storm: Storm, options: argparse.Namespace, console: Console) -> Totals:
    """Run the seeds in `options.jobs` processes."""
    low, high = options.seeds
    totals, seeds = Totals(storm), iter(range(low, high))
    end = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
    with (
        _progress(console) as progress,
        ProcessPoolExecutor(options.jobs, initializer=_quiet) as pool,
    ):
        bar = progress.add_task("storms", total=high - low)
        for result in _results(storm, pool, seeds, options, lambda: time.monotonic() < end):
            totals.add(result)
            progress.advance(bar)
            if result.check and len(totals.violations) <= VIOLATIONS_SHOWN:
                progress.console.print(
                    _told(storm, result, options), style="red", markup=False, soft_wrap=True
                )
    return totals


def _results(
    storm: Storm,
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
            running.add(pool.submit(storm.run, seed, seconds=options.seconds, bug=options.bug))
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


def _told(storm: Storm, result: Result, options: argparse.Namespace) -> str:
    again = f"--replay {result.seed}"
    again += f" --seconds {options.seconds:g}" if options.seconds != storm.seconds else ""
    again += f" --bug {options.bug}" if options.bug else ""
    return f"{result.message}\n  again: {storm.prog} {again}"


def _replay(storm: Storm, options: argparse.Namespace) -> int:
    """One seed, shown. Plain text on standard output, for grep."""
    _quiet()
    print(f"seed {options.replay}: {storm.draw(options.replay, options.seconds)}")
    shows: list[Any] = []

    def prepare(prepared: Any) -> None:
        shows.append(storm.show(prepared, print).__enter__())

    try:
        result = storm.run(
            options.replay, seconds=options.seconds, bug=options.bug, prepare=prepare
        )
    finally:
        logging.disable(logging.NOTSET)
        for show in shows:
            show.__exit__(None, None, None)
    print(result.message if result.check else f"fingerprint {result.fingerprint}")
    totals = Totals(storm)
    totals.add(result)
    print(totals.summary())
    return 1 if result.check else 0


class Hunted(NamedTuple):
    """Which check has seen a bug, after how many seeds; `failure` is that of its own code."""

    bug: str
    seeds: int
    check: str = ""
    failure: str = ""


def _hunt(run: Callable[..., Result], seeds_max: int, seconds: float, bug: str) -> Hunted:
    """Run seeds with the bug planted until one is violated."""
    _quiet()
    for seed in range(seeds_max):
        try:
            result = run(seed, seconds=seconds, bug=bug)
        except BugFailed as failure:
            return Hunted(bug, seed + 1, failure=str(failure))
        if result.check:
            return Hunted(bug, seed + 1, result.check)
    return Hunted(bug, seeds_max)


def _prove(storm: Storm, options: argparse.Namespace, console: Console) -> int:
    """Plant every bug in turn. Returns the exit code: 0 if every one was found."""
    missed, failures, bugs = [], [], storm.bugs
    hunt = partial(_hunt, storm.run, storm.seeds_max, options.seconds)
    with _progress(console) as progress, ProcessPoolExecutor(options.jobs) as pool:
        bar = progress.add_task("injected bugs", total=len(bugs))
        for bug, seeds, check, failure in pool.map(hunt, sorted(bugs)):
            progress.advance(bar)
            told = check or failure or "NOT FOUND"
            print(f"| `{bug}` | {bugs[bug].what} | {told} | {seeds} |", flush=True)
            if failure:
                failures.append(failure)
            elif not check:
                missed.append(bug)
    found = len(bugs) - len(missed) - len(failures)
    print(
        f"{len(bugs)} injected bugs, {found} found within {storm.seeds_max} seeds"
        + (f", not found: {', '.join(missed)}" if missed else "")
        + "".join(f"; {each}" for each in failures)
    )
    return 1 if missed or failures else 0


def _seeds(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    try:
        low, high = int(first), int(last)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no range: write A:B") from None
    if not colon or low < 0 or high <= low:
        raise argparse.ArgumentTypeError(f"{text!r} is no range: write A:B with 0 <= A < B")
    return low, high


def _parser(storm: Storm) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=storm.prog,
        description=f"{storm.description} Exits with 0 only if no promise was broken; the last "
        f"line is the summary.",
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
        default=storm.seconds,
        help=f"simulated seconds of faults per seed (default {storm.seconds:g}); healing comes on "
        "top",
    )
    parser.add_argument(
        "--bug", choices=sorted(storm.bugs), metavar="NAME", help="plant a known bug"
    )
    parser.add_argument(
        "--planted", action="store_true", help="plant every known bug in turn, and tell who saw it"
    )
    return parser


def main(storm: Storm, arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = _parser(storm)
    options: Any = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    try:
        return _called(storm, options)
    except BugFailed as failure:
        print(failure)
        return 1


def _called(storm: Storm, options: argparse.Namespace) -> int:
    if options.replay is not None:
        return _replay(storm, options)
    console = Console(stderr=True)
    if options.planted:
        return _prove(storm, options, console)
    totals = _run(storm, options, console)
    print(totals.summary())
    return 1 if totals.violations else 0


def command(storm: Storm) -> NoReturn:
    """`main` as a program: ends it."""
    try:
        sys.exit(main(storm))
    except BrokenPipeError:
        # The reader of a replay has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)

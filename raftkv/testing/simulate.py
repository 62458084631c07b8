"""`python -m raftkv.testing.simulate`: many seeds of the simulated cluster, or one to be watched.

Each seed draws its own cluster, limits, load and faults (scenario.py) and is checked in every way
that the simulated cluster knows. The exit code is 0 only if no seed violated anything; the last
line is the summary. A run of 2,000 seeds or more also fails if an event that it must have met was
rare (marks.py). `--replay SEED` shows one run, event by event. `--planted` proves the checks: it
plants every known bug and writes the table of how each was found.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from raftkv.testing.arguments import positive
from raftkv.testing.marks import (
    EXPECTED,
    EXPECTED_HARSH,
    FULL_HARSH_RUN_SEEDS,
    FULL_RUN_SEEDS,
    OF_HEAVY,
    Marks,
)
from raftkv.testing.own_errors import BugFailed
from raftkv.testing.planted import BUGS
from raftkv.testing.planted_table import write_table
from raftkv.testing.replay import Replay
from raftkv.testing.scenario import Profile, Result, drawn, plain, run_seed
from raftkv.testing.simulated import SafetyViolation, SimulatedCluster

__all__ = ["main"]

# An open end of the range of seeds, which only a time limit ends.
SEEDS_MAX = 1 << 40
VIOLATIONS_SHOWN = 10
USUAL_SECONDS = 30.0
# What the rate is measured with, at the end of every call that runs seeds: always the same run.
RATE_SEED = 7


@dataclass
class Totals:
    """All seeds of one call."""

    seeds: int = 0
    simulated_s: float = 0.0
    real_s: float = 0.0
    operations: int = 0
    recovery_s: float = 0.0
    violations: list[Result] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    # The number of seeds that hit each mark.
    seeds_of: Counter[str] = field(default_factory=Counter)
    # Simulated seconds per real second of the plain scenario, run on its own.
    plain_rate: float = 0.0
    # Whether single messages met a fate of their own (harsh.py).
    harsh: bool = False
    # Marks that only seeds of this profile hit.
    of_profile: tuple[str, ...] = ()

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.simulated_s += result.simulated_s
        self.real_s += result.real_s
        self.operations += result.operations
        self.recovery_s = max(self.recovery_s, result.recovery_s)
        self.faults += result.faults
        self.marks += result.marks
        self.seeds_of.update(name for name, count in result.marks.items() if count)
        if result.check:
            self.violations.append(result)

    def summary(self) -> str:
        """One line: what was run, what was found, what did happen."""
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        marks = ", ".join(
            f"{name} {count} in {self.seeds_of[name]}" for name, count in sorted(self.marks.items())
        )
        missing = Marks.missing(self.marks, harsh=self.harsh) + self.unmarked()
        plain = ""
        if self.plain_rate:
            plain = f" (3 cores at 200 operations/s on their own: {self.plain_rate:.1f})"
        return (
            f"{_count(self.seeds, 'seed')}, {_count(len(self.violations), 'violation')}, "
            f"{self.simulated_s:.0f} simulated s at {self.simulated_s / max(self.real_s, 1e-9):.1f}"
            f" per real s and job{plain}, {self.operations} operations, slowest recovery "
            f"{self.recovery_s:.2f} s; faults: {faults or 'none'}; marks, and in how many "
            f"seeds: {marks or 'none'}; "
            f"never seen: {', '.join(missing) or 'nothing'}"
        )

    def unmarked(self) -> list[str]:
        """The marks of the profile that no seed has hit."""
        return [name for name in self.of_profile if not self.marks[name]]

    def uncovered(self) -> str:
        """Of a full run: the marks that too few of its seeds have hit, as one line; else empty."""
        full_run = FULL_HARSH_RUN_SEEDS if self.harsh else FULL_RUN_SEEDS
        expected = EXPECTED_HARSH if self.harsh else EXPECTED
        rare = Marks.rare(self.seeds_of, self.seeds, expected) if self.seeds >= full_run else []
        if not rare:
            return ""
        return (
            f"too few of {self.seeds} seeds hit these marks, so the run proves little about them: "
            f"{', '.join(rare)}"
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _quiet() -> None:
    """What nodes log about their faults is the point of a simulation, not news."""
    logging.disable(logging.CRITICAL)


def _run(
    seeds: Iterator[int], total: int | None, options: argparse.Namespace, console: Console
) -> Totals:
    """Run the seeds in `options.jobs` processes until they or the minutes are used up."""
    of_profile = OF_HEAVY if options.profile == "heavy" else ()
    totals = Totals(harsh=options.harsh, of_profile=of_profile)
    end = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
    arguments = {
        "seconds": options.seconds,
        "messages": options.harsh,
        "members": options.members,
        "bug": options.bug,
        "profile": options.profile,
    }
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    with progress, ProcessPoolExecutor(options.jobs, initializer=_quiet) as pool:
        bar = progress.add_task("seeds", total=total)
        running: set[Future[Result]] = set()
        while True:
            while len(running) < 2 * options.jobs and time.monotonic() < end:
                seed = next(seeds, None)
                if seed is None:
                    break
                running.add(pool.submit(run_seed, seed, **arguments))
            if not running:
                return totals
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                totals.add(result)
                progress.advance(bar)
                if result.check and len(totals.violations) <= VIOLATIONS_SHOWN:
                    progress.console.print(
                        _told(result, options), style="red", markup=False, soft_wrap=True
                    )


def _plain_rate(seconds: float) -> float:
    """Simulated seconds per real second: 3 cores, 200 operations/s, usual faults, all checks."""
    result = run_seed(RATE_SEED, seconds=seconds, scenario=plain(RATE_SEED))
    if result.check:
        raise SafetyViolation(result.message, result.check)
    return result.simulated_s / max(result.real_s, 1e-9)


def _told(result: Result, options: argparse.Namespace) -> str:
    again = f"--replay {result.seed} --seconds {options.seconds:g}"
    again += " --harsh" if options.harsh else ""
    again += " --members" if options.members else ""
    again += f" --bug {options.bug}" if options.bug else ""
    again += f" --profile {options.profile}" if options.profile != "mixed" else ""
    return f"{result.message}\n  again: tools/simulate {again}"


def _replay(options: argparse.Namespace) -> int:
    """One seed, shown. Plain text on standard output, for grep."""
    _quiet()
    scenario = drawn(
        options.replay, options.profile, messages=options.harsh, members=options.members
    )
    print(f"seed {options.replay}: {scenario}")
    shows: list[Replay] = []

    def prepare(cluster: SimulatedCluster) -> None:
        show = Replay(cluster, print)
        show.__enter__()
        shows.append(show)

    try:
        result = run_seed(
            options.replay,
            seconds=options.seconds,
            messages=options.harsh,
            members=options.members,
            bug=options.bug,
            profile=options.profile,
            prepare=prepare,
        )
    finally:
        logging.disable(logging.NOTSET)
        for show in shows:
            show.__exit__(None, None, None)
    if result.check:
        print(result.message)
    else:
        print(f"fingerprint {result.fingerprint}")
    totals = Totals(harsh=options.harsh)
    totals.add(result)
    print(totals.summary())
    return 1 if result.check else 0


def _seeds(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    try:
        low, high = int(first), int(last) if last else SEEDS_MAX
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no range: write A:B") from None
    if not colon or low < 0 or high <= low:
        raise argparse.ArgumentTypeError(f"{text!r} is no range: write A:B with 0 <= A < B")
    return low, high


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/simulate",
        description="Run whole clusters in a simulated world with faults, one per seed, and check "
        "every promise. Exits with 0 only if none was broken; the last line is the summary.",
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=(0, 100),
        metavar="A:B",
        help="the seeds A to B - 1 (default 0:100); without B until --minutes are over",
    )
    parser.add_argument("--minutes", type=positive, metavar="M", help="start no seed after that")
    parser.add_argument("--jobs", type=int, default=2, help="processes at one time (default 2)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="show this one, event by event")
    parser.add_argument(
        "--seconds",
        type=positive,
        default=USUAL_SECONDS,
        help="simulated seconds of faults per seed (default 30); healing comes on top",
    )
    parser.add_argument(
        "--harsh",
        action="store_true",
        help="also lose, double and reorder single messages, below what streams can do",
    )
    parser.add_argument(
        "--members",
        action="store_true",
        default=None,
        help="let cores come and go in every seed, not only in four of ten",
    )
    parser.add_argument(
        "--profile",
        choices=get_args(Profile),
        default="mixed",
        help="heavy: bursts of 10,000 operations/s on 100,000 keys with large values, and work "
        "takes processor time; steady: the same all the time, seconds for a simulated one",
    )
    parser.add_argument("--bug", choices=sorted(BUGS), metavar="NAME", help="plant a known bug")
    parser.add_argument(
        "--planted",
        nargs="?",
        const="docs/internals/planted-bugs.md",
        metavar="FILE",
        help="plant every known bug in turn and write the table of how it was found",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = _parser()
    options: Any = parser.parse_args(arguments)
    _, high = options.seeds
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    if high == SEEDS_MAX and not options.minutes:
        parser.error("--seeds without an end needs --minutes")
    if options.profile != "mixed" and (options.harsh or options.members):
        parser.error(f"--profile {options.profile} goes with neither --harsh nor --members")
    try:
        return _called(options)
    except BugFailed as failure:
        print(failure)
        return 1


def _called(options: argparse.Namespace) -> int:
    if options.replay is not None:
        return _replay(options)
    console = Console(stderr=True)
    if options.planted is not None:
        return write_table(options.planted, options.jobs, console)
    low, high = options.seeds
    total = None if high == SEEDS_MAX else high - low
    totals = _run(iter(range(low, high)), total, options, console)
    _quiet()
    try:
        totals.plain_rate = _plain_rate(options.seconds)
    finally:
        logging.disable(logging.NOTSET)
    uncovered = ""
    if _is_usual(options):
        uncovered = totals.uncovered()
    elif totals.unmarked() and options.seconds >= USUAL_SECONDS:
        uncovered = f"no seed hit these marks: {', '.join(totals.unmarked())}"
    if uncovered:
        print(uncovered)
    print(totals.summary())
    return 1 if totals.violations or uncovered else 0


def _is_usual(options: argparse.Namespace) -> bool:
    """Whether the run is of a kind that must hit every mark of its own."""
    changed = options.members or options.bug or options.profile != "mixed"
    return not changed and options.seconds >= USUAL_SECONDS


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        # The reader of a replay has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)

"""The command behind tools/fingerprint: digests of simulated runs, printed, compared or stored.

Run it through tools/fingerprint, which makes the environment.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import stored_runs
from checkout import ROOT
from name_finder import names_in_run
from run_digest import PARTS, SUBJECTS, RunDigest, digest_of_run
from stored_runs import python_version

STORED: Final = ROOT / "tests" / "guards" / "fingerprints.json"

T = TypeVar("T")

#: (subject, seed)
Run = tuple[str, int]
Digests = dict[Run, RunDigest]


def load(path: Path = STORED) -> Digests:
    """The stored digests; none if there is no file."""
    digests = msgspec.convert(stored_runs.read(path).runs, dict[str, RunDigest])
    runs = ((name.split(" "), digest) for name, digest in digests.items())
    return {(subject, int(seed)): digest for (subject, seed), digest in runs}


def store(digests: Mapping[Run, RunDigest], path: Path = STORED) -> None:
    """Write the digests, in the order of the runs."""
    stored_runs.write({_name(run): digests[run] for run in sorted(digests)}, path)


def stored_python(path: Path = STORED) -> str:
    """The version of Python that made the stored digests."""
    return stored_runs.read(path).python


def differences(digests: Mapping[Run, RunDigest], stored: Mapping[Run, RunDigest]) -> list[str]:
    """A text for each run that is not as it is stored."""
    found = []
    for run, digest in sorted(digests.items()):
        before = stored.get(run)
        if before is None:
            found.append(f"{_name(run)}: not stored")
        elif before.parts != digest.parts:
            changed = [
                f"{part} ({digest.lines[part]} lines, stored {before.lines[part]})"
                for part in PARTS
                if digest.parts[part] != before.parts.get(part)
            ]
            found.append(f"{_name(run)}: {', '.join(changed)}")
    return found


# The runs -----------------------------------------------------------------------------------------


def run_all(
    runs: Sequence[Run], work: Callable[[str, int], T], jobs: int, console: Console
) -> Iterator[tuple[Run, T]]:
    """`work(subject, seed)` for each run in `jobs` processes: (run, result), as they end."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    with progress, ProcessPoolExecutor(jobs, initializer=_quiet) as pool:
        bar = progress.add_task("runs", total=len(runs))
        futures = {pool.submit(work, subject, seed): (subject, seed) for subject, seed in runs}
        for future in as_completed(futures):
            yield futures[future], future.result()
            progress.advance(bar)


def _quiet() -> None:
    """Do not log what happens to simulated nodes: faults are expected there."""
    logging.disable(logging.CRITICAL)


def _digest(folder: Path | None, subject: str, seed: int) -> RunDigest:
    lines = None if folder is None else folder / f"{subject}-{seed}.txt"
    return digest_of_run(subject, seed, lines)


# The command --------------------------------------------------------------------------------------


def _name(run: Run) -> str:
    return f"{run[0]} {run[1]}"


def _seeds(text: str) -> range:
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is no range: write A:B with 0 <= A < B")
    return range(int(first), int(last))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/fingerprint",
        description="Print digests of simulated runs that a rename or move of code keeps and a "
        "change of behaviour changes. Exits with 1 if a run breaks a promise or, with --check, "
        "is not as it is stored.",
    )
    parser.add_argument(
        "--plugin",
        action="append",
        choices=SUBJECTS,
        metavar="NAME",
        help=f"one of {', '.join(SUBJECTS)}; may be repeated (default: all)",
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=range(5),
        metavar="A:B",
        help="the seeds A to B - 1 (default 0:5, the stored ones)",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at one time (default 2)")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    parser.add_argument(
        "--stored",
        type=Path,
        default=STORED,
        metavar="FILE",
        help="compare with, or write to, this file instead",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with the stored digests")
    what.add_argument("--write", action="store_true", help="store the digests of these runs")
    what.add_argument(
        "--find-names",
        action="store_true",
        help="search the bytes of the runs for names of the code instead",
    )
    parser.add_argument(
        "--lines", type=Path, metavar="DIR", help="write every digested line to DIR/NAME-SEED.txt"
    )
    return parser


def _print_table(digests: Mapping[Run, RunDigest]) -> None:
    print("  ".join(["run".ljust(17), *(part.ljust(16) for part in PARTS)]).rstrip())
    for run, digest in sorted(digests.items()):
        print("  ".join([_name(run).ljust(17), *(digest.parts[part] for part in PARTS)]))


def _find_names(runs: Sequence[Run], jobs: int, console: Console) -> int:
    found = {run: counts for run, counts in run_all(runs, names_in_run, jobs, console) if counts}
    for run, counts in sorted(found.items()):
        print(f"{_name(run)}: {', '.join(f'{name} {n}' for name, n in counts.most_common())}")
    print(f"{len(runs)} runs, {len(found)} with names of the code")
    return 1 if found else 0


def _report(options: Any, digests: Digests) -> int:
    """Print what was asked for; returns the exit code."""
    violations = [each.violation for each in digests.values() if each.violation]
    stored = load(options.stored)
    found = differences(digests, stored) if options.check else []
    differing, made_by = len(found), stored_python(options.stored)
    if found and made_by != python_version():
        found.append(f"they were stored with Python {made_by}, and this is {python_version()}")
    if options.json:
        runs = {_name(run): msgspec.to_builtins(each) for run, each in sorted(digests.items())}
        print(json.dumps({"python": python_version(), "runs": runs, "differences": found}))
    else:
        if not options.check:
            _print_table(digests)
        print("\n".join([*found, *violations]), end="\n" if found or violations else "")
        what = f", {differing} not as stored" if options.check else ""
        print(f"{len(digests)} runs, {len(violations)} violations{what}")
    if options.write and not violations:
        store({**stored, **digests}, options.stored)
    return 1 if violations or found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = _parser()
    options: Any = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    if options.lines is not None:
        options.lines.mkdir(parents=True, exist_ok=True)
    runs = [(subject, seed) for subject in options.plugin or SUBJECTS for seed in options.seeds]
    console = Console(stderr=True)
    if options.find_names:
        return _find_names(runs, options.jobs, console)
    work = partial(_digest, options.lines)
    return _report(options, dict(run_all(runs, work, options.jobs, console)))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        # The reader has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)

"""`python -m raftkv.testing.model`: walk the small models, and prove that they find known bugs.

Without a model's name all are walked. The exit code is 0 only if every walk was complete and found
no violation; with `--bug` or `--bugs`, only if every injected bug was found.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raftkv.testing.arguments import positive
from raftkv.testing.model import distrust, epochs, formats, replication, verdicts
from raftkv.testing.model.distrust import Distrust
from raftkv.testing.model.epochs import Epochs
from raftkv.testing.model.formats import Formats
from raftkv.testing.model.replication import Bounds, Replication
from raftkv.testing.model.search import STATES_MAX, Model, Outcome, search
from raftkv.testing.model.verdicts import Verdicts

__all__ = ["MODELS", "Listed", "main"]

# The walk that finds a bug of replication.py or distrust.py, where the usual one is too wide or too
# short for it: its bounds, and the steps behind which it begins.
_REACHES: Final[dict[str, tuple[Bounds, tuple[str, ...]]]] = {
    "commit-former-term": (
        Bounds(terms=4, changes=1, crashes=0, entries=3),
        (
            "1 appends: add 4",
            "2 campaigns in term 2",
            "3 votes for 2",
            "2 leads in term 2",
        ),
    ),
    "change-before-own-term": (
        Bounds(terms=3, changes=2, crashes=0, entries=4, replicant=False),
        (
            "1 appends: remove 4",
            "2 campaigns in term 2",
            "3 votes for 2",
            "4 votes for 2",
            "2 leads in term 2",
        ),
    ),
    "flag-ignored": (
        Bounds(terms=3, changes=0, crashes=0, entries=3, writes=1),
        (
            "1 appends a write",
            "1 syncs",
            "1 appends to 2",
            "1 commits 2",
            "the disk of 2 keeps 0 entries",
            "1 notices the loss",
            "1 appends to 3",
            "1 appends: distrust 2",
            "1 syncs",
            "1 appends to 3",
            "1 commits 3",
            "3 campaigns in term 2",
            "1 votes for 3",
            "3 leads in term 2",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Listed:
    """A model: what it is about, how it is made (bounds of its own, or None), its bugs."""

    about: str
    make: Callable[[Bounds | None, str], Model[Any]]
    bugs: dict[str, str]
    bounds: Bounds | None = None


def _replication(bounds: Bounds | None, bug: str) -> Model[Any]:
    if bug in _REACHES:
        reach, behind = _REACHES[bug]
        return Replication(reach, bug, behind)
    return Replication(bounds, bug)


def _distrust(bounds: Bounds | None, bug: str) -> Model[Any]:
    if bug in _REACHES:
        reach, behind = _REACHES[bug]
        return Distrust(reach, bug, behind)
    return Distrust(bounds, bug)


MODELS: Final[dict[str, Listed]] = {
    "replication": Listed(
        "terms, votes, log, configuration, promotion base",
        _replication,
        replication.BUGS,
        Bounds(),
    ),
    "distrust": Listed(
        "a disk that loses acknowledged entries",
        _distrust,
        distrust.BUGS,
        distrust.BOUNDS,
    ),
    "epochs": Listed("forced recoveries", lambda bounds, bug: Epochs(bug), epochs.BUGS),
    "verdicts": Listed("verdicts of death", lambda bounds, bug: Verdicts(bug), verdicts.BUGS),
    "formats": Listed("the raised core format", lambda bounds, bug: Formats(bug), formats.BUGS),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/model",
        description="Walk every state of small models of the consensus rules, breadth-first, and "
        "check what must hold in each. Prints the number of states.",
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of: {', '.join(MODELS)}")
    for name, what in (
        ("terms", "the highest term"),
        ("changes", "changes of the configuration"),
        ("crashes", "crashes that lose what was not durable"),
        ("entries", "entries of a log behind which no change is appended"),
        ("writes", "entries that are plain writes"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=what)
    parser.add_argument(
        "--voters", action="store_true", help="four voters instead of three and a replicant"
    )
    parser.add_argument(
        "--states",
        type=positive,
        default=STATES_MAX,
        metavar="N",
        help=f"give up behind so many states (default {STATES_MAX})",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--bug", metavar="NAME", help="inject this bug, which must be found")
    chosen.add_argument("--bugs", action="store_true", help="inject every known bug in turn")
    return parser


def _bounds(listed: Listed, options: argparse.Namespace) -> Bounds | None:
    if listed.bounds is None:
        return None
    names = ("terms", "changes", "crashes", "entries", "writes")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return listed.bounds._replace(**given, replicant=listed.bounds.replicant and not options.voters)


def _report(name: str, bug: str, outcome: Outcome, seconds: float) -> None:
    injected = f" with {bug}" if bug else ""
    print(
        f"{name}{injected}: {outcome.states} states, {outcome.steps} steps, depth {outcome.depth}, "
        f"{seconds:.1f} s: {_verdict(outcome)}"
    )
    if outcome.violation is not None:
        for number, step in enumerate(outcome.violation.path, 1):
            print(f"  {number:3} {step}")


def _verdict(outcome: Outcome) -> str:
    if outcome.violation is not None:
        return f"VIOLATION of {outcome.violation.what}"
    return "no violation" if outcome.complete else "not complete: raise --states or lower a bound"


def _run(name: str, bug: str, options: argparse.Namespace) -> bool:
    """Whether it went as it should."""
    listed = MODELS[name]
    begun = time.perf_counter()
    outcome = search(listed.make(_bounds(listed, options), bug), int(options.states))
    _report(name, bug, outcome, time.perf_counter() - begun)
    if bug:
        return outcome.violation is not None
    return outcome.complete and outcome.violation is None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    names = options.models or list(MODELS)
    for name in names:
        if name not in MODELS:
            parser.error(f"no model is called {name!r}: there are {', '.join(MODELS)}")
    runs = [(name, "") for name in names]
    if options.bugs:
        runs = [(name, bug) for name in names for bug in MODELS[name].bugs]
    elif options.bug is not None:
        runs = [(name, options.bug) for name in names if options.bug in MODELS[name].bugs]
        if not runs:
            known = ", ".join(bug for name in names for bug in MODELS[name].bugs)
            parser.error(f"no bug is called {options.bug!r} here: there are {known}")
    right = [_run(name, bug, options) for name, bug in runs]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())

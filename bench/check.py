"""`python -m bench check DIR`: are the histories in DIR/history linearizable?

Spark sends the operations of each key of each run to one task, and every task asks two oracles:
the search (raftkv.testing.linearizability), which trusts no revision, and the replay in order of
revisions (raftkv.testing.revision_order), which needs them. Keys are checked apart and at the same
time, because linearizability is local.

Exit codes: 0 every key is linearizable; 1 a violation, with its explanation; 2 nothing could be
checked, with one line that says what to do; 3 no violation, but a budget was used up before every
key had its verdict.

What is ugly: rows cross from the JVM to Python one by one, as tuples, and not in Arrow batches.
Spark's Arrow functions on groups ask for pandas in some of the versions that we support, and the
rows of a key end up as Python objects anyway.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from rich.console import Console
from rich.table import Table

from bench.analysis import AnalysisError
from bench.history import COLUMNS, HistoryError, find_histories, operation
from raftkv.testing.linearizability import Budget, check
from raftkv.testing.models import KeyValueStore
from raftkv.testing.revision_order import check_by_revision

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KeyVerdict", "check_directory", "exit_code", "main"]

SECONDS_PER_KEY = 60.0
"""A key with more work than that is hot beyond what a test needs: it is reported as undecided."""

TASKS_PER_CORE = 4
"""So that a hard key does not keep easy ones waiting behind it."""

VIOLATIONS_SHOWN = 3


class KeyVerdict(msgspec.Struct, frozen=True):
    """What both oracles say of one key of one run. `key` is text, with bytes escaped."""

    run: str
    key: str
    operations: int
    unknown: int
    outcome: Literal["linearizable", "violation", "unknown"]
    by_revision: Literal["consistent", "violation", "unknown"]
    steps: int
    explanation: str

    @property
    def is_violation(self) -> bool:
        return "violation" in (self.outcome, self.by_revision)

    @property
    def is_decided(self) -> bool:
        """Revisions are optional: what only they could say leaves nothing undecided."""
        return self.is_violation or self.outcome != "unknown"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    arguments = _parser().parse_args(argv)
    try:
        verdicts = check_directory(
            arguments.directory, arguments.master, Budget(seconds_max=arguments.seconds_per_key)
        )
    except (AnalysisError, HistoryError) as error:
        print(f"bench check: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(_summary(verdicts)), indent=2).decode())
    else:
        _show(verdicts)
    return exit_code(verdicts)


def exit_code(verdicts: Sequence[KeyVerdict]) -> int:
    """1 if any key is violated, else 3 if any is undecided, else 0."""
    if any(verdict.is_violation for verdict in verdicts):
        return 1
    return 0 if all(verdict.is_decided for verdict in verdicts) else 3


def check_directory(
    directory: Path, master: str = "local[*]", budget: Budget | None = None
) -> list[KeyVerdict]:
    """Checks every key of every run, by run and key. Raises HistoryError and AnalysisError."""
    _require("pyarrow", "pyspark")
    paths = find_histories(directory)
    from bench.analysis.progress import Progress
    from bench.analysis.session import spark_session

    with Progress() as progress:
        progress.step("starting Spark")
        with spark_session(master) as spark:
            progress.step("checking every key")
            verdicts = _check_all(spark, paths, budget or Budget(seconds_max=SECONDS_PER_KEY))
    return sorted(verdicts, key=lambda one: (one.run, one.key))


def _require(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise HistoryError(
            f"{' and '.join(missing)} not installed: install the repository's extra `bench` "
            "(pip install '.[bench]')"
        )


def _check_all(spark: SparkSession, paths: Sequence[Path], budget: Budget) -> list[KeyVerdict]:
    from bench.analysis.inputs import path_to_read

    tasks = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    frame = spark.read.parquet(*map(path_to_read, paths)).select(*(name for name, _, _ in COLUMNS))
    # Spark asks for nothing but equal keys side by side; the checkers sort by time themselves.
    grouped = frame.repartition(tasks, "run", "key").sortWithinPartitions("run", "key")
    limits = msgspec.json.encode(budget)
    found = grouped.rdd.mapPartitions(lambda rows: check_rows(rows, limits)).collect()
    return [msgspec.json.decode(one, type=KeyVerdict) for one in found]


def check_rows(rows: Iterable[Any], limits: bytes) -> Iterator[bytes]:
    """What a task does: a verdict as JSON for each stretch of rows with one run and key."""
    budget = msgspec.json.decode(limits, type=Budget)
    for (run, key), group in itertools.groupby(rows, lambda row: (row["run"], bytes(row["key"]))):
        yield msgspec.json.encode(_check_key(run, key, list(group), budget))


def _check_key(run: str, key: bytes, rows: Sequence[Any], budget: Budget) -> KeyVerdict:
    name = repr(key)[2:-1]
    try:
        history = [operation(row) for row in rows]
        verdict = check(history, KeyValueStore(), budget)
        other = check_by_revision(history, KeyValueStore())
    except (ValueError, TypeError) as error:
        # Raising would kill the job and hide what it found of other keys.
        why = f"cannot be checked: {error}"
        return KeyVerdict(run, name, len(rows), 0, "unknown", "unknown", 0, why)
    explanation = "" if verdict.violation is None else verdict.violation.text()
    if verdict.outcome == "unknown":
        explanation = f"gave up after {verdict.steps} steps: {verdict.limit} is used up"
    if other.outcome == "violation":
        explanation = f"{explanation}\nagainst the order of revisions: {other.reason}".strip()
    unknown = sum(one.outcome == "unknown" for one in history)
    return KeyVerdict(
        *(run, name, len(rows), unknown, verdict.outcome, other.outcome),
        *(verdict.steps, explanation),
    )


def _by_run(verdicts: Sequence[KeyVerdict]) -> dict[str, dict[str, int]]:
    runs: dict[str, dict[str, int]] = {}
    for one in verdicts:
        sums = runs.setdefault(one.run, dict.fromkeys(SUMS, 0))
        for name, count in zip(SUMS, _counts(one), strict=True):
            sums[name] += count
    return runs


SUMS = ("keys", "operations", "unknown", "linearizable", "violations", "undecided", "by_revision")


def _counts(one: KeyVerdict) -> tuple[int, ...]:
    good = one.outcome == "linearizable" and not one.is_violation
    consistent = one.by_revision == "consistent"
    whole = (1, one.operations, one.unknown)
    return (*whole, good, one.is_violation, not one.is_decided, consistent)


def _summary(verdicts: Sequence[KeyVerdict]) -> dict[str, Any]:
    """What --json prints: sums for each run, and every key that is not plainly linearizable."""
    bad = [one for one in verdicts if one.is_violation or not one.is_decided]
    return {"linearizable": not bad, "runs": _by_run(verdicts), "keys": bad}


def _show(verdicts: Sequence[KeyVerdict]) -> None:
    console = Console(highlight=False)
    table = Table("run", title="linearizability of each key")
    for name in SUMS:
        table.add_column(name.replace("_", " "), justify="right")
    for run, sums in _by_run(verdicts).items():
        table.add_row(run, *(f"{sums[name]:,}" for name in SUMS))
    console.print(table)
    bad = [one for one in verdicts if one.is_violation or not one.is_decided]
    bad.sort(key=lambda one: not one.is_violation)
    for one in bad[:VIOLATIONS_SHOWN]:
        # Soft wrapping would tear the bars apart, and values may look like markup.
        title = f"\nrun {one.run}, key {one.key}:"
        console.print(f"{title}\n{one.explanation}", markup=False, soft_wrap=True)
    if len(bad) > VIOLATIONS_SHOWN:
        console.print(f"\n... and {len(bad) - VIOLATIONS_SHOWN} more keys (--json lists them all)")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench check",
        description="Check recorded histories for linearizability, key by key, on Spark.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="holds history/*.parquet")
    parser.add_argument(
        "--master",
        default="local[*]",
        metavar="URL",
        help="Spark master (default: local[*], all cores of this machine)",
    )
    parser.add_argument(
        "--seconds-per-key",
        type=float,
        default=SECONDS_PER_KEY,
        metavar="S",
        help=f"give up on a key after so many seconds (default: {SECONDS_PER_KEY:g})",
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())

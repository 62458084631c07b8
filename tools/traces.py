"""The command behind tools/trace: through how many files an operation goes, printed or compared.

Run it through tools/trace, which makes the environment.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import stored_runs
from checkout import ROOT
from operation_trace import OPERATIONS, Trace, trace_of
from stored_runs import python_version

CEILINGS: Final = ROOT / "tests" / "guards" / "traces.json"

#: By operation and figure.
Counts = dict[str, dict[str, int]]


def counts(traces: Sequence[Trace]) -> Counts:
    """The figures that have ceilings."""
    return {
        trace.operation: {
            "files": len(trace.path.files),
            "changes": trace.path.changes,
            "whole_files": len(trace.whole.files),
            "whole_changes": trace.whole.changes,
        }
        for trace in traces
    }


def above(found: Mapping[str, Mapping[str, int]], ceilings: Counts) -> list[str]:
    """A text for each figure that is above its ceiling, or that either side lacks."""
    texts = []
    for operation, of_operation in found.items():
        limits = ceilings.get(operation, {})
        for figure in {**of_operation, **limits}:
            if figure not in limits:
                texts.append(f"{operation}: {figure} is {of_operation[figure]}, without a ceiling")
            elif figure not in of_operation:
                texts.append(f"{operation}: {figure} is not counted, and has a ceiling")
            elif of_operation[figure] > limits[figure]:
                texts.append(
                    f"{operation}: {figure} is {of_operation[figure]}, at most {limits[figure]}"
                )
    return texts


def load(path: Path = CEILINGS) -> Counts:
    """The stored ceilings; none if there is no file."""
    return stored_runs.read(path).runs


def store(ceilings: Counts, path: Path = CEILINGS) -> None:
    """Write the ceilings, in their order."""
    stored_runs.write(ceilings, path)


def stored_python(path: Path = CEILINGS) -> str:
    """The version of Python that counted the stored ceilings."""
    return stored_runs.read(path).python


# The command --------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/trace",
        description="Print through how many files of a node an operation goes, and how often it "
        "changes the file. Exits with 1 if a figure is above its ceiling, with --check or --write.",
    )
    parser.add_argument(
        "operations",
        nargs="*",
        metavar="OPERATION",
        help=f"{', '.join(OPERATIONS)} (default: all)",
    )
    parser.add_argument(
        "--cores", type=int, default=1, help="of the cluster; counted is the leader (default 1)"
    )
    parser.add_argument("--files", action="store_true", help="list the files of the path in order")
    parser.add_argument("--steps", action="store_true", help="list each change of file with a call")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    parser.add_argument("--ceilings", type=Path, default=CEILINGS, help=argparse.SUPPRESS)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with the ceilings")
    what.add_argument("--write", action="store_true", help="lower the ceilings to these figures")
    return parser


def _print_table(traces: Sequence[Trace]) -> None:
    print("operation        files  changes  calls   whole: files  changes  calls")
    for trace in traces:
        path, whole = trace.path, trace.whole
        print(
            f"{trace.operation:<15}{len(path.files):>7}{path.changes:>9}{path.calls:>7}"
            f"{len(whole.files):>15}{whole.changes:>9}{whole.calls:>7}"
            f"   {OPERATIONS[trace.operation].what}"
        )


def _print_lists(traces: Sequence[Trace], options: Any) -> None:
    for trace in traces:
        for listed, of in ((options.files, trace.path.files), (options.steps, trace.steps)):
            if listed:
                print(f"\n{trace.operation}")
                print("\n".join(f"{number:>4} {each}" for number, each in enumerate(of, 1)))


def _completed(ceilings: Counts, found: Counts) -> Counts:
    """The ceilings of the figures that were found: those without one get what was counted."""
    return {
        operation: {
            figure: ceilings.get(operation, {}).get(figure, count)
            for figure, count in of_operation.items()
        }
        for operation, of_operation in found.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = _parser()
    options: Any = parser.parse_args(arguments)
    unknown = [name for name in options.operations if name not in OPERATIONS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(OPERATIONS)}")
    if options.cores < 1:
        parser.error("--cores must be at least 1")
    if options.cores > 1 and (options.check or options.write):
        parser.error("ceilings are those of one core: leave --cores out")
    logging.disable(logging.CRITICAL)
    try:
        traces = [trace_of(name, options.cores) for name in options.operations or OPERATIONS]
    finally:
        logging.disable(logging.NOTSET)
    counted, ceilings = counts(traces), load(options.ceilings)
    if options.write:
        ceilings |= _completed(ceilings, counted)
    found = above(counted, ceilings) if options.check or options.write else []
    made_by = stored_python(options.ceilings)
    if found and made_by != python_version():
        found.append(f"they were counted with Python {made_by}, and this is {python_version()}")
    if options.json:
        print(json.dumps({"traces": msgspec.to_builtins(traces), "above": found}))
    else:
        _print_table(traces)
        _print_lists(traces, options)
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    if options.write and not found:
        # No figure is above its ceiling, so none rises.
        store({**ceilings, **counted}, options.ceilings)
    return 1 if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        # The reader has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)

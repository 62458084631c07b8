"""`python -m bench analyse DIR`: tables, `summary.json` and a report from a benchmark directory.

    DIR/log/*.parquet       read: the rows that the driver wrote (bench.schema)
    DIR/benchmark/*.json    read: files of pytest-benchmark, if there are any
    DIR/conditions.json     read: machine, versions, arguments, if it is there
    DIR/tables/NAME/        written: curated tables as Parquet; `rejected` holds what was set aside
    DIR/summary.json        written: the same figures for programs
    DIR/report/index.html   written: one self-contained page for people

Exit codes: 0 done; 2 nothing could be analysed, with one line that says what to do. Spark needs
Java 17 or newer.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.analysis import AnalysisError

__all__ = ["main", "run"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Prints the paths of what it wrote; progress goes to standard error."""
    arguments = _parser().parse_args(argv)
    try:
        summary, report = run(arguments.directory, arguments.master)
    except AnalysisError as error:
        print(f"bench analyse: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"bench analyse: cannot write below {arguments.directory}: {error}", file=sys.stderr)
        return 2
    print(f"summary  {summary}")
    print(f"report   {report}")
    return 0


def run(directory: Path, master: str = "local[*]") -> tuple[Path, Path]:
    """Analyses a directory with a Spark session of its own. Returns summary and report.

    Raises AnalysisError (see there) and OSError when the results cannot be written.
    """
    _require("pyarrow", "pyspark", "matplotlib")
    from bench.analysis.inputs import find_inputs
    from bench.analysis.progress import Progress
    from bench.analysis.session import spark_session

    with Progress() as progress:
        progress.step("looking at the log files")
        inputs = find_inputs(directory)
        progress.step("starting Spark")
        with spark_session(master) as spark:
            from bench.analysis.pipeline import analyse, write_summary

            figures = analyse(spark, inputs, progress.step)
            progress.step("writing summary and report")
            from bench.analysis.page import write_report

            return write_summary(directory, figures), write_report(directory, figures)


def _require(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise AnalysisError(
            f"{' and '.join(missing)} not installed: install the repository's extra `bench` "
            "(pip install '.[bench]')"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench analyse",
        description="Turn the log of a benchmark run into tables, a summary and a report (Spark).",
    )
    parser.add_argument(
        "directory",
        type=Path,
        metavar="DIR",
        help="the --out directory of `python -m bench run`; results are written there too",
    )
    parser.add_argument(
        "--master",
        default="local[*]",
        metavar="URL",
        help="Spark master (default: local[*], all cores of this machine)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

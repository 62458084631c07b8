"""The demonstration behind tools/demo: live cluster, benchmark, report.

Run it through tools/demo, which makes the environment. Spark and plots are installed meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from rich.console import Console

# The scripts beside this one are found because Python puts this folder on the path.
from demo_install import Installation
from demo_live import show
from raftkv.errors import RaftkvError

ROOT: Final = Path(__file__).resolve().parent.parent


def benchmark_arguments(*, quick: bool) -> list[str]:
    """Both layouts, all scenarios, the registry on and off; the lengths are `run`'s own."""
    arguments = ["--layout", "3", "--layout", "3+3", "--scenario", "all"]
    return [*arguments, "--quick"] if quick else arguments


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/demo")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    # Without a terminal there is no width to fit into.
    console = Console(width=None if sys.stdout.isatty() else 100)
    installation = Installation(console)
    try:
        asyncio.run(show(out / "live", console))
        console.rule("Spark and plots")
        installation.wait()
    except RaftkvError as error:
        console.print(f"[red]error:[/red] {error}")
        return 1
    finally:
        installation.stop()
    if not installation.packages_ready:
        console.print(f"[red]error:[/red] {installation.error}")
        return 1
    console.print("installed")
    return measure_and_report(out, console, quick=arguments.quick, complaint=installation.error)


def measure_and_report(out: Path, console: Console, *, quick: bool, complaint: str | None) -> int:
    """Run the benchmark and let Spark analyse it; `complaint` says why Spark cannot run."""
    began = time.perf_counter()
    console.rule("the registry benchmark")
    run = ["run", *benchmark_arguments(quick=quick), "--out", str(out)]
    analyse = ["analyse", str(out)]
    code = bench(run, console)
    if code != 0:
        return code
    if complaint is not None:
        console.print(f"[red]{complaint}[/red]")
        console.print(f"The benchmark's log is in {out}. Then: {command_line(analyse)}")
        return 1
    console.rule("Spark reads the log")
    code = bench(analyse, console)
    if code != 0:
        return code
    took_s = time.perf_counter() - began
    console.rule(f"done, {took_s:.0f} s after installation")
    summarise(out, console)
    return 0


def command_line(arguments: list[str]) -> str:
    return " ".join([sys.executable, "-m", "bench", *arguments])


def bench(arguments: list[str], console: Console) -> int:
    console.print(f"$ python -m bench {' '.join(arguments)}", style="dim", highlight=False)
    sys.stdout.flush()
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def summarise(out: Path, console: Console) -> None:
    """Spark's verdict on both registries in a line each, and where the results are."""
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    for verdict in summary["verdicts"]:
        if verdict["layout"] == "all" and verdict["scenario"] == "all":
            checked = f"{verdict['connects_checked']:,} connects and {verdict['audits_checked']:,}"
            console.print(
                f"{verdict['registry']}: {verdict['anomalies']:,} wrong in {checked} audits"
            )
    for name in ("summary.json", "report/index.html"):
        console.print(str(out / name), soft_wrap=True, highlight=False)


if __name__ == "__main__":
    sys.exit(main())

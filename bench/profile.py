"""`python -m bench profile`: where the time of a node goes while callers in it put or get.

Three cores as processes (and three replicants, if the callers sit in one), so many calls in flight
in the leader's own process, a follower's or a replicant's, twice: once with the clocks only (rate,
processor, collector, syncs), once under cProfile (functions). cProfile makes everything slower,
small functions most; its shares say where to look, the first run says what a change is worth.
`--watch` looks into another node than that of the callers: what do their reads cost the leader?
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.control import Done, Function, Profiled, ProfileStart, ProfileStop
from bench.coordinator import CALLERS, CallRun, Result, node_of, run_calls, wait_for_leader
from bench.layouts import ROOT, Cluster, Layout, WorkerFailed
from bench.live import quantile_us
from bench.plan import PUT_EVERY

__all__ = ["by_module", "main", "module_of"]

KINDS = ("leader", "follower", "replicant")


def main(arguments: Sequence[str]) -> int:
    """The command. Exit code 1 when a worker failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m bench profile", description="Where a node's time goes under puts or gets."
    )
    parser.add_argument("--scenario", choices=sorted(PUT_EVERY), default="puts")
    parser.add_argument("--caller", choices=CALLERS, default="leader", help="where callers sit")
    parser.add_argument(
        "--watch", choices=KINDS, help="the node to profile (default: the one that is called)"
    )
    parser.add_argument("--in-flight", type=int, default=256, help="calls at once (default: 256)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load (default: 5)")
    parser.add_argument("--value-bytes", type=int, default=64)
    parser.add_argument("--top", type=int, default=30, help="functions shown (default: 30)")
    parser.add_argument("--dir", help="directory for the nodes' data (default: a temporary one)")
    given = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    try:
        with tempfile.TemporaryDirectory(prefix="raftkv-profile-", dir=given.dir) as out:
            asyncio.run(_profile(given, Path(out), console))
    except WorkerFailed as error:
        console.print(f"[red]Failed:[/red] {error}", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


async def _profile(given: argparse.Namespace, out: Path, console: Console) -> None:
    calls = CallRun(
        given.caller,
        given.in_flight,
        given.seconds,
        given.value_bytes,
        given.scenario,
        PUT_EVERY[given.scenario],
    )
    kind = given.watch or given.caller.removeprefix("http_").replace("http", "leader")
    layout = Layout.parse("3+3" if "replicant" in given.caller + kind else "3")
    async with Cluster(layout, out, "profile") as cluster:
        leader, _ = await wait_for_leader(cluster)
        watched = node_of(layout, kind, leader)
        for functions in (False, True):
            await cluster.ask(watched, ProfileStart(functions), Done)
            result = await run_calls(cluster, calls, lambda text: None)
            profiled = await cluster.ask(watched, ProfileStop(), Profiled)
            title = f"The {kind}, {given.in_flight} {given.scenario} in flight"
            if given.caller != kind:
                title += f" from callers {given.caller.replace('_', ' ')}"
            _show_clocks(console, result, profiled, title, profiling=functions)
        _show_functions(console, profiled, given.top)


def _show_clocks(
    console: Console, result: Result, profiled: Profiled, title: str, *, profiling: bool
) -> None:
    per_s = result.tally.ok / result.seconds
    p50_us = quantile_us(result.tally.buckets, 0.5) or 0.0
    how = "under cProfile (slower)" if profiling else "undisturbed"
    table = Table(title=f"{title}, {how}", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    elapsed_s = profiled.elapsed_s
    table.add_row("answered calls per second", f"{per_s:,.0f}")
    table.add_row("median of one call, about", f"{p50_us / 1000:.2f} ms")
    table.add_row("processor, of one core", f"{profiled.cpu_s / elapsed_s:.0%}")
    table.add_row("garbage collection", f"{profiled.gc_s / elapsed_s:.1%}, {profiled.gc_runs} runs")
    table.add_row(
        "in fdatasync (worker thread)", f"{profiled.sync_s / elapsed_s:.1%}, {profiled.syncs} syncs"
    )
    if profiled.syncs:
        # The syncs cover the warm-up too, the calls do not: their rates are comparable.
        calls_per_sync = per_s / (profiled.syncs / elapsed_s)
        table.add_row("one sync", f"{profiled.sync_s / profiled.syncs * 1000:.2f} ms")
        table.add_row("calls per sync", f"{calls_per_sync:,.1f}")
    console.print(table)


def _show_functions(console: Console, profiled: Profiled, top: int) -> None:
    total_s = sum(function.own_s for function in profiled.functions) or 1.0
    table = Table(title="By module: own time", title_justify="left")
    table.add_column("module")
    table.add_column("share", justify="right")
    table.add_column("calls", justify="right")
    for module, own_s, calls in by_module(profiled.functions):
        if own_s / total_s >= 0.002:
            table.add_row(module, f"{own_s / total_s:.1%}", f"{calls:,}")
    console.print(table)
    table = Table(title=f"The {top} functions with most own time", title_justify="left")
    for heading in ("function", "module"):
        table.add_column(heading, overflow="fold")
    for heading in ("share", "calls", "µs a call"):
        table.add_column(heading, justify="right")
    for function in profiled.functions[:top]:
        table.add_row(
            function.name,
            f"{module_of(function.file)}:{function.line}" if function.line else "",
            f"{function.own_s / total_s:.1%}",
            f"{function.calls:,}",
            f"{function.own_s / function.calls * 1e6:.2f}",
        )
    console.print(table)


def by_module(functions: Iterable[Function]) -> list[tuple[str, float, int]]:
    """Own seconds and calls of each module, most seconds first."""
    sums: dict[str, tuple[float, int]] = {}
    for function in functions:
        module = module_of(function.file)
        own_s, calls = sums.get(module, (0.0, 0))
        sums[module] = (own_s + function.own_s, calls + function.calls)
    return sorted(
        ((module, own_s, calls) for module, (own_s, calls) in sums.items()),
        key=lambda each: (-each[1], each[0]),
    )


def module_of(file: str) -> str:
    """A short name for a function's file: ours by path, others by package."""
    if file in ("~", ""):
        return "built in (C)"
    path = Path(file)
    paths = sysconfig.get_paths()
    # The standard library's folder often holds that of the installed packages: those come first.
    bases = ((paths["purelib"], ""), (paths["platlib"], ""), (str(ROOT), ""))
    for base, prefix in (*bases, (paths["stdlib"], "python: ")):
        if path.is_relative_to(base):
            return prefix + str(path.relative_to(base))
    return path.name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

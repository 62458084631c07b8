"""`python -m bench steady`: full load for a long time, and elections that should not be.

Three cores as real processes, many callers in each, every one with one put outstanding, and no
fault at all. Whoever is elected in that time was elected needlessly: because a heartbeat came late
behind a long tick, a slow sync, a snapshot or a busy processor. The terms of all nodes are asked
for every second; the first leader's term is the one that must stay.

Exit codes: 0 the term has not changed; 1 it has; 2 it could not be measured; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from bench.chaos.cluster import ChaosCluster, ChaosError, Layout
from raftkv.config import Limits
from raftkv.errors import RaftkvError

__all__ = ["Steady", "Window", "main", "measure"]

SAMPLE_S = 1.0
WINDOWS = 30
"""Lines of the table, whatever the time."""

WARM_UP_S = 2.0
UP_S = 60.0


class Window(msgspec.Struct, frozen=True):
    """A part of the run. Times in seconds from the start of the load."""

    begin_s: float
    end_s: float
    puts: int
    term: int

    @property
    def puts_per_s(self) -> float:
        return self.puts / (self.end_s - self.begin_s)


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """The whole. `elections` counts terms that began; `failed` puts without an acknowledgement."""

    callers: int
    windows: list[Window]
    elections: int
    failed: int
    unanswered: int

    @property
    def puts_per_s(self) -> float:
        return statistics.fmean(one.puts_per_s for one in self.windows)


class _Sample(msgspec.Struct, frozen=True):
    at: float
    term: int
    acknowledged: int
    failed: int


async def measure(
    seconds: float, layout: Layout, callers: int, directory: Path, console: Console
) -> Steady:
    """Run the load. Raises ChaosError."""
    cores = layout.core_names
    each = {name: max(1, callers // len(cores)) for name in cores}
    async with ChaosCluster(
        directory, layout, limits=Limits(), callers=each, proxied=False, books=False
    ) as cluster:
        await cluster.start(cluster.names)
        await cluster.writable(cluster.names, UP_S)
        await asyncio.sleep(WARM_UP_S)
        first = last = await _sample(cluster)
        windows: list[Window] = []
        opened, unanswered = first, 0
        width_s = max(SAMPLE_S, seconds / WINDOWS)
        while last.at - first.at < seconds:
            await asyncio.sleep(SAMPLE_S)
            try:
                last = await _sample(cluster)
            except RaftkvError:
                unanswered += 1  # a status that takes so long is news, too
                if unanswered > seconds:
                    raise ChaosError("the nodes do not answer under this load") from None
                continue
            if last.at - opened.at >= width_s:
                windows.append(_window(first, opened, last))
                console.print(_line(windows[-1]), highlight=False)
                opened = last
        if not windows:
            windows.append(_window(first, opened, last))
        if cluster.unexpected:
            gone = cluster.unexpected[0]
            raise ChaosError(f"{gone.name} has ended: {gone.last_words}")
    return Steady(
        callers=sum(each.values()),
        windows=windows,
        elections=last.term - first.term,
        failed=last.failed - first.failed,
        unanswered=unanswered,
    )


async def _sample(cluster: ChaosCluster) -> _Sample:
    names = cluster.names
    statuses = await asyncio.gather(*(cluster.status(name, 10.0) for name in names))
    pages = await asyncio.gather(*(cluster.page(name, "/v1/chaos/callers") for name in names))
    return _Sample(
        time.monotonic(),
        max(one["term"] for one in statuses),
        sum(page["acknowledged"] for page in pages),
        sum(page["failed"] for page in pages),
    )


def _window(first: _Sample, opened: _Sample, last: _Sample) -> Window:
    return Window(
        round(opened.at - first.at, 1),
        round(last.at - first.at, 1),
        last.acknowledged - opened.acknowledged,
        last.term,
    )


def _line(one: Window) -> str:
    return f"{one.end_s:8.0f} s  {one.puts_per_s:10,.0f} puts/s  term {one.term}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    given = _parser().parse_args(argv)
    console = Console(stderr=True)
    try:
        with tempfile.TemporaryDirectory(prefix="raftkv-steady-", dir=given.dir) as out:
            run = measure(given.minutes * 60, given.layout, given.callers, Path(out), console)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                steady = runner.run(run)
    except (ChaosError, RaftkvError) as error:
        print(f"bench steady: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if given.json:
        document = {**msgspec.to_builtins(steady), "puts_per_s": steady.puts_per_s}
        print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        _show(steady, Console())
    return 0 if steady.elections == 0 else 1


def _show(steady: Steady, console: Console) -> None:
    table = Table(title=f"{steady.callers} callers, no faults", title_justify="left")
    for heading in ("from", "to", "puts/s", "term"):
        table.add_column(heading, justify="right")
    for one in steady.windows:
        table.add_row(
            f"{one.begin_s:.0f} s", f"{one.end_s:.0f} s", f"{one.puts_per_s:,.0f}", f"{one.term}"
        )
    console.print(table)
    minutes = steady.windows[-1].end_s / 60
    console.print(
        f"{steady.puts_per_s:,.0f} puts/s over {minutes:.1f} minutes, {steady.failed} not "
        f"acknowledged, {steady.elections} elections (none was called for)",
        highlight=False,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench steady",
        description="Full load for a long time; every election in it is one too many.",
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="of load (default 30)")
    parser.add_argument("--callers", type=int, default=384, help="in all cores (default 384)")
    parser.add_argument(
        "--layout", type=Layout.parse, default=Layout(3), help="cores+replicants (default 3)"
    )
    parser.add_argument("--dir", help="directory for the nodes' data (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench pauses`: how long a node's event loop is held up when the state is large.

Two of three cores are filled with keys. Then the longest time that a node's loop did nothing else
is measured while the leader is idle, takes puts, writes a snapshot, sends it to the third core
(which starts empty), while that core and a replicant take the state over, and while a core starts
again.

Every phase names what the loop was doing in its longest gap. Beside the wall clock stands the time
that the loop's thread had a processor in it: where other programs use the machine too, a gap can be
theirs. The aim, garbage collection included, is 20 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.asked import AskedProcess
from bench.layouts import Layout, WorkerFailed, node_configs
from bench.loopwatch import Watched
from bench.pause_node import Answer, Ask, Load, Puts, Setup, Snapshot, WatchStart, WatchStop, Where
from raftkv.config import NodeConfig

__all__ = ["main"]

AIM_MS = 20.0
POLL_S = 0.2
PATIENCE_S = 900.0
LAYOUT = "3+3"
"""The names and addresses of this layout are used; not all of its nodes run."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    phase: str
    node: str
    watched: Watched


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    keys: int
    value_bytes: int
    tuned: bool
    python: str
    cpus: int
    load_average: float
    aim_ms: float
    rss_mib: int
    phases: list[Phase]


def main(arguments: Sequence[str]) -> int:
    """The command. Exit code 1 when a node failed, 130 after Ctrl-C."""
    given = _parser().parse_args(arguments)
    console = Console(stderr=given.json)
    if not console.is_terminal:
        console = Console(width=130, stderr=given.json)
    try:
        with tempfile.TemporaryDirectory(prefix="raftkv-pauses-", dir=given.dir) as out:
            report = asyncio.run(_Run(given, Path(out), console).run())
    except WorkerFailed as error:
        console.print(f"[red]Failed:[/red] {error}", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    if given.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    else:
        _show(console, report)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench pauses",
        description="How long a node's event loop is held up when the state is large.",
        epilog="Example: python -m bench pauses --keys 1000000 --json > pauses.json",
    )
    parser.add_argument("--keys", type=int, default=1_000_000, help="default: 1,000,000")
    parser.add_argument("--value-bytes", type=int, default=100, help="of each value (default: 100)")
    parser.add_argument("--seconds", type=float, default=5.0, help="idle and of puts (default: 5)")
    parser.add_argument("--in-flight", type=int, default=64, help="puts at once (default: 64)")
    parser.add_argument(
        "--untuned",
        action="store_true",
        help="leave the garbage collector as Python sets it, and the pages as the kernel does",
    )
    parser.add_argument("--dir", help="directory for the nodes' data (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead")
    return parser


class _Node(AskedProcess[Answer]):
    """A process of `bench.pause_node`."""

    def __init__(self, name: str, config: NodeConfig, out: Path, *, tuned: bool) -> None:
        super().__init__(name, "bench.pause_node", Setup(config, tuned), Answer, out)


class _Run:
    def __init__(self, given: argparse.Namespace, out: Path, console: Console) -> None:
        self._given = given
        self._console = console
        self._phases: list[Phase] = []
        configs = node_configs(Layout.parse(LAYOUT), out, "on")
        self._nodes = {
            name: _Node(name, config, out, tuned=not given.untuned)
            for name, config in configs.items()
        }

    async def run(self) -> Report:
        with Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
            console=self._console, transient=True,
        ) as progress:  # fmt: skip
            task = progress.add_task("")
            self._step: Callable[[str], None] = lambda text: progress.update(task, description=text)
            try:
                return await self._measure()
            finally:
                await asyncio.gather(*(node.end() for node in self._nodes.values()))

    async def _measure(self) -> Report:
        given, keys = self._given, self._given.keys
        leader = await self._fill()
        puts = Puts(keys, given.value_bytes, given.seconds, given.in_flight)
        await self._phase("idle", leader, lambda: asyncio.sleep(given.seconds))
        await self._phase("puts", leader, lambda: leader.ask(puts))
        other = next(n for n in (self._nodes["c1"], self._nodes["c2"]) if n is not leader)
        await self._phase("a snapshot is written", leader, lambda: leader.ask(Snapshot()))
        # Under puts, so that values are saved for the walk: they come from the other core.
        await self._phase(
            "the same, under puts", leader,
            lambda: asyncio.gather(other.ask(puts), self._soon(leader, Snapshot())),
        )  # fmt: skip
        third, replicant = self._nodes["c3"], self._nodes["r1"]
        await self._joined("sent to a core", "installed by a core", leader, third)
        await self._joined("sent to a replicant", "installed by a replicant", None, replicant)
        await third.ask(Snapshot())
        await third.end()
        self._step("a core starts again")
        await third.spawn()
        await third.answer()
        await self._watched("a core starts again", third)
        return Report(
            keys=keys, value_bytes=given.value_bytes, tuned=not given.untuned,
            python=platform.python_version(), cpus=os.cpu_count() or 0,
            load_average=round(os.getloadavg()[0], 2), aim_ms=AIM_MS,
            rss_mib=(await leader.ask(Where())).rss_mib, phases=self._phases,
        )  # fmt: skip

    async def _fill(self) -> _Node:
        """Start two of three cores and load the keys; the third knows nothing of them."""
        self._step("starting")
        cores = [self._nodes[name] for name in ("c1", "c2", "c3")]
        for node in cores:
            await node.spawn()
        await asyncio.gather(*(node.answer() for node in cores))
        await asyncio.gather(*(node.ask(WatchStop()) for node in cores))
        # It has to have its place in the cluster, and nothing of what follows.
        await self._nodes["c3"].end()
        answers = await asyncio.gather(*(node.ask(Where()) for node in cores[:2]))
        while not any(answer.role == "leader" for answer in answers):
            await asyncio.sleep(POLL_S)
            answers = await asyncio.gather(*(node.ask(Where()) for node in cores[:2]))
        leader = cores[[answer.role for answer in answers].index("leader")]
        self._step(f"loading {self._given.keys:,} keys")
        load = Load(self._given.keys, self._given.value_bytes)
        await self._phase("keys are loaded", leader, lambda: leader.ask(load))
        await leader.ask(Snapshot())
        return leader

    async def _phase(self, name: str, node: _Node, work: Callable[[], Awaitable[object]]) -> None:
        self._step(f"{name} ({node.name})")
        await node.ask(WatchStart())
        await work()
        await self._watched(name, node)

    async def _watched(self, name: str, node: _Node) -> None:
        watched = (await node.ask(WatchStop())).watched
        assert watched is not None
        self._phases.append(Phase(phase=name, node=node.name, watched=watched))

    @staticmethod
    async def _soon(node: _Node, ask: Ask) -> Answer:
        await asyncio.sleep(POLL_S)
        return await node.ask(ask)

    async def _joined(self, sent: str, installed: str, sender: _Node | None, node: _Node) -> None:
        """A node without the state starts; both sides are watched until it has all of it."""
        self._step(f"{installed} ({node.name})")
        if sender is not None:
            await sender.ask(WatchStart())
        await node.spawn()
        answer = await node.answer()
        until = time.monotonic() + PATIENCE_S
        while answer.keys < self._given.keys or answer.unswept:
            if time.monotonic() > until:
                raise WorkerFailed(f"{node.name} did not take the state over")
            await asyncio.sleep(POLL_S)
            answer = await node.ask(Where())
        await self._watched(installed, node)
        if sender is not None:
            await self._watched(sent, sender)


def _show(console: Console, report: Report) -> None:
    tuned = "" if report.tuned else ", garbage collector untuned"
    table = Table(
        title=f"Longest gap of the loop, {report.keys:,} keys of {report.value_bytes} bytes{tuned}",
        title_justify="left",
    )
    table.add_column("while")
    table.add_column("node")
    for heading in ("seconds", "wall ms", "of it CPU", "gc ms"):
        table.add_column(heading, justify="right")
    table.add_column("cause")
    for heading in ("CPU ms", "gc ms"):
        table.add_column(heading, justify="right")
    table.add_column("cause by CPU")
    table.add_column("> 20 ms", justify="right")
    for phase in report.phases:
        watched, wall, cpu = phase.watched, phase.watched.by_wall, phase.watched.by_cpu
        colour = "green" if cpu.cpu_ms < report.aim_ms else "red"
        table.add_row(
            phase.phase, phase.node, f"{watched.seconds:.1f}", f"{wall.wall_ms:.1f}",
            f"{wall.cpu_ms:.1f}", f"{wall.gc_ms:.1f}", wall.cause,
            f"[{colour}]{cpu.cpu_ms:.1f}[/{colour}]", f"{cpu.gc_ms:.1f}", cpu.cause,
            str(watched.over_20_ms),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"Python {report.python}, {report.cpus} processors, load average {report.load_average}, "
        f"{report.rss_mib} MiB in the leader. Aim: {report.aim_ms:.0f} ms.",
        highlight=False,
    )


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))

"""`python -m bench deaths`: which nodes are declared dead when processes stand still or end.

Real processes under a load of writes. In each of `--stops` rounds the leader is stopped (SIGSTOP)
for 8, 11 or 14 s in turns. In each of `--kills` rounds a follower, a replicant and the leader are
killed (SIGKILL), one after the other. Checked:

- no node that ran all the time is declared dead;
- only the incarnation of a process that was stopped for longer than `node_down_ms` may end, and it
  comes back by itself;
- a process that was killed is declared dead within `node_down_ms` and 3 s;
- no acknowledged write is lost, and all nodes have one digest at one index.

Exit codes: 0 all of it holds, 1 something does not, 2 it could not be found out, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import uvloop
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.chaos.cluster import ChaosCluster, ChaosError, Layout
from bench.chaos.load import Load
from bench.chaos.verify import digests, read_everything
from bench.death_rounds import (
    BOUND_S,
    STOPS_S,
    MemberState,
    Report,
    Round,
    judge,
    states,
    worst_s,
)
from raftkv.config import RaftTimes

__all__ = ["main"]

CLIENTS: Final = 12
UP_S: Final = 60.0
# After everything is ready: verdicts that are late are seen, too.
AFTER_S: Final = 3.0
# How often the members are looked at: the error of the time to a declaration.
POLL_S: Final = 0.05
# A declaration that is late by more than this is not waited for.
PATIENCE_S: Final = 10.0

Role = Literal["leader", "follower", "replicant"]
ROLES: Final[tuple[Role, ...]] = ("follower", "replicant", "leader")


class _Run:
    def __init__(self, given: argparse.Namespace, cluster: ChaosCluster, load: Load) -> None:
        self._given, self._cluster, self._load = given, cluster, load
        self._node_down_s = given.node_down_ms / 1000
        self._rng = random.Random(given.seed)
        self.rounds: list[Round] = []

    async def run(self, step: Callable[[str], None]) -> None:
        for number in range(self._given.stops):
            seconds = STOPS_S[number % len(STOPS_S)]
            step(f"stop {number + 1} of {self._given.stops}: the leader for {seconds:g} s")
            await self._stop(seconds)
        for number in range(self._given.kills):
            for role in ROLES:
                if role == "replicant" and not self._cluster.layout.replicants:
                    continue
                step(f"kill {number + 1} of {self._given.kills}: a {role}")
                await self._kill(role)

    async def _begin(self) -> dict[str, MemberState]:
        """A calm cluster in which every node is ready."""
        await self._cluster.writable(self._cluster.names, UP_S)
        await asyncio.sleep(self._rng.uniform(1.0, 2.0))
        self._load.next_slice()
        return await self._members(await self._cluster.leader())

    async def _members(self, name: str) -> dict[str, MemberState]:
        return states((await self._cluster.status(name, 5.0))["members"])

    async def _end(self, found: Round) -> None:
        cluster = self._cluster
        await cluster.start(cluster.names)
        await cluster.writable(cluster.names, UP_S)
        await asyncio.sleep(AFTER_S)
        after = await self._members(await cluster.leader())
        found = msgspec.structs.replace(found, after=after)
        findings = judge(found, self._node_down_s)
        self.rounds.append(msgspec.structs.replace(found, findings=findings))

    async def _stop(self, seconds: float) -> None:
        before = await self._begin()
        name = await self._cluster.leader()
        self._cluster.send_signal(name, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._cluster.send_signal(name, signal.SIGCONT)
        await self._end(
            Round(kind="stop", name=name, role="leader", seconds=seconds, before=before, after={})
        )

    async def _kill(self, role: Role) -> None:
        before = await self._begin()
        cluster, leader = self._cluster, await self._cluster.leader()
        names = {
            "leader": [leader],
            "follower": [name for name in cluster.layout.core_names if name != leader],
            "replicant": [n for n in cluster.names if n not in cluster.layout.core_names],
        }
        name = self._rng.choice(names[role])
        at = time.monotonic()
        await cluster.kill([name])
        declared_s = await self._declared(name, before[name], at)
        await self._end(
            Round(
                kind="kill", name=name, role=role, before=before, after={}, declared_s=declared_s
            )
        )  # fmt: skip

    async def _declared(self, name: str, before: MemberState, since: float) -> float | None:
        """Seconds until any node has applied the end of this incarnation."""
        until = since + self._node_down_s + BOUND_S + PATIENCE_S
        while (now := time.monotonic()) < until:
            for status in (await self._cluster.statuses()).values():
                if states(status["members"]).get(name) != before:
                    return time.monotonic() - since
            await asyncio.sleep(max(0.0, now + POLL_S - time.monotonic()))
        return None


async def _play(given: argparse.Namespace, out: Path, console: Console) -> Report:
    raft = RaftTimes(node_down_ms=given.node_down_ms)
    progress = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
        console=console, transient=True,
    )  # fmt: skip
    with progress:
        bar = progress.add_task("starting")

        def step(text: str) -> None:
            progress.update(bar, description=text)

        async with ChaosCluster(
            out, given.layout, raft=raft, proxied=False, books=False
        ) as cluster:
            await cluster.start(cluster.names)
            await cluster.writable(cluster.names, UP_S)
            load = Load(
                cluster, random.Random(given.seed), clients=CLIENTS, rate=given.rate,
                registers=False,
            )  # fmt: skip
            load.start()
            run = _Run(given, cluster, load)
            try:
                await run.run(step)
            finally:
                await load.stop()
            step("reading every write back")
            findings = await digests(cluster)
            findings += await read_everything(cluster, load, None, lambda: None)
            findings += [
                f"{each.name} ended by itself with code {each.code}: {each.last_words}"
                for each in cluster.unexpected
            ]
            return Report(
                layout=str(given.layout), node_down_s=given.node_down_ms / 1000,
                rounds=run.rounds, acknowledged=load.acknowledged, findings=findings,
            )  # fmt: skip


def _show(report: Report, console: Console) -> None:
    table = Table(
        title=f"Deaths in {report.layout} nodes, node_down_ms {report.node_down_s * 1000:g}",
        title_justify="left",
    )
    for heading in ("round", "node", "role", "its incarnation"):
        table.add_column(heading)
    table.add_column("declared dead after", justify="right")
    table.add_column("wrong")
    for each in report.rounds:
        own = each.after.get(each.name)
        ended = own is None or own.incarnation != each.before[each.name].incarnation
        table.add_row(
            f"stopped for {each.seconds:g} s" if each.kind == "stop" else "killed",
            each.name, each.role, "ended" if ended else "went on",
            "" if each.declared_s is None else f"{each.declared_s:.2f} s",
            "[red]" + "; ".join(each.findings) + "[/red]" if each.findings else "nothing",
        )  # fmt: skip
    console.print(table)
    for role in ROLES:
        worst = worst_s(report.rounds, role)
        if worst is not None:
            console.print(f"worst of a {role}: {worst:.2f} s", highlight=False)
    for finding in report.findings:
        console.print(f"[red]{finding}[/red]", highlight=False)
    console.print(
        f"{report.acknowledged:,} writes acknowledged; {'passed' if report.passed else 'FAILED'}",
        highlight=False,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    given = _parser().parse_args(argv)
    console = Console(stderr=given.json)
    if not console.is_terminal:
        console = Console(width=130, stderr=given.json)
    try:
        with tempfile.TemporaryDirectory(prefix="raftkv-deaths-", dir=given.dir) as out:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                report = runner.run(_play(given, Path(out), console))
    except ChaosError as error:
        print(f"bench deaths: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if given.json:
        document = {**msgspec.to_builtins(report), "passed": report.passed}
        print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        _show(report, console)
    return 0 if report.passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench deaths",
        description="Which nodes are declared dead when processes stand still or end.",
        epilog="Example: python -m bench deaths --stops 20 --kills 3 --json > deaths.json",
    )
    parser.add_argument("--stops", type=int, default=20, help="rounds of SIGSTOP (default 20)")
    parser.add_argument(
        "--kills", type=int, default=3, help="rounds of SIGKILL, three each (default 3)"
    )
    parser.add_argument(
        "--layout", type=Layout.parse, default=Layout(3, 3),
        help="cores+replicants (default 3+3)",
    )  # fmt: skip
    parser.add_argument(
        "--node-down-ms", type=int, default=RaftTimes().node_down_ms,
        help="raft.node_down_ms of all nodes (default 10,000)",
    )  # fmt: skip
    parser.add_argument("--rate", type=float, default=200.0, help="writes per second (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="draws the moments (default 1)")
    parser.add_argument("--dir", help="directory for the nodes' data (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print every round as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())

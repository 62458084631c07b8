"""`python -m bench failover`: how long nobody can write when the leader is gone.

Every round waits for a calm cluster, strikes the leader, and measures from that moment to the first
acknowledgement of a put that *began* after it, through another node:

    http      a put every `PROBE_PERIOD_S` through each of the other cores' doors; the time of the
              first one that is acknowledged
    embedded  callers inside the other cores' processes, as a program has them that embeds a node,
              each with one put outstanding; the first one that began after the strike

What was under way at the strike does not count: it may have been committed before. How to strike:

    kill        SIGKILL: the kernel closes the connections, which is a hint to the followers
    stop        SIGSTOP: silence; only time tells
    partition   the leader's links deliver nothing more, both ways, and reset nothing

Exit codes: 0 the aims are met, 1 they are not, 2 it could not be measured, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec
import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.chaos.cluster import ChaosCluster, ChaosError, Layout
from bench.chaos.door import DoorClient
from raftkv.config import Limits
from raftkv.errors import RaftkvError

__all__ = ["AIMS", "Figures", "How", "main", "measure"]

How = Literal["kill", "stop", "partition"]
HOWS: Final[tuple[How, ...]] = get_args(How)

AIMS: Final[dict[How, tuple[float, float]]] = {
    "kill": (0.25, 1.0),
    "stop": (2.5, 2.5),
    "partition": (2.5, 2.5),
}
"""Seconds: of the median, and of the worst round."""

PROBE_PERIOD_S = 0.01
CALLERS = 4
CALM_MIN_S = 0.5
CALM_MAX_S = 1.5
"""A calm cluster goes on for a random time, so that strikes fall anywhere between two heartbeats
and election time-outs."""

ROUND_TIMEOUT_S = 30.0
UP_S = 60.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one kind of caller, in the order of the rounds."""

    how: How
    caller: str
    seconds: list[float]

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def worst_s(self) -> float:
        return max(self.seconds)

    @property
    def aim_met(self) -> bool:
        median, worst = AIMS[self.how]
        return self.median_s <= median and self.worst_s < worst


async def measure(
    how: How, rounds: int, directory: Path, layout: Layout, rng: random.Random, console: Console
) -> list[Figures]:
    """Run the rounds. Raises ChaosError."""
    callers = dict.fromkeys(layout.core_names, CALLERS)
    http: list[float] = []
    embedded: list[float] = []
    async with ChaosCluster(
        directory, layout, limits=Limits(), callers=callers, books=False
    ) as cluster:
        await cluster.start(cluster.names)
        for _ in track(range(rounds), f"{how}", console=console):
            await cluster.writable(cluster.names, UP_S)
            await asyncio.sleep(rng.uniform(CALM_MIN_S, CALM_MAX_S))
            leader = await cluster.leader()
            others = [name for name in layout.core_names if name != leader]
            at = await _strike(cluster, how, leader)
            try:
                async with asyncio.timeout(ROUND_TIMEOUT_S):
                    first, inside = await asyncio.gather(
                        _first_probe(cluster, others), _first_inside(cluster, others, at)
                    )
            except TimeoutError:
                raise ChaosError(
                    f"no write within {ROUND_TIMEOUT_S:g} s after the {how} of {leader}; "
                    f"see {directory}/*/log"
                ) from None
            http.append(first - at)
            embedded.append(inside - at)
            await _undo(cluster, how, leader)
    return [
        Figures(how=how, caller="http", seconds=http),
        Figures(how=how, caller="embedded", seconds=embedded),
    ]


async def _strike(cluster: ChaosCluster, how: How, leader: str) -> float:
    """Returns the moment at which the leader was struck."""
    at = time.monotonic()
    if how == "kill":
        await cluster.kill([leader])
    elif how == "stop":
        cluster.send_signal(leader, signal.SIGSTOP)
    else:
        others = [name for name in cluster.names if name != leader]
        cluster.network.separate([leader], others, "silent")
    return at


async def _undo(cluster: ChaosCluster, how: How, leader: str) -> None:
    if how == "kill":
        await cluster.start([leader])
    elif how == "stop":
        cluster.send_signal(leader, signal.SIGCONT)
    else:
        cluster.network.heal()


async def _first_probe(cluster: ChaosCluster, names: Sequence[str]) -> float:
    """When the first of many puts, one after the other and all begun now, was acknowledged."""
    first: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    puts: set[asyncio.Task[None]] = set()

    async def put(name: str) -> None:
        client = DoorClient(cluster.endpoint(name))
        with contextlib.suppress(RaftkvError):  # another put will be the first
            await client.put(b"probe/" + name.encode(), b"")
            if not first.done():
                first.set_result(time.monotonic())
        client.close()

    try:
        while not first.done():
            for name in names:
                task = asyncio.create_task(put(name))
                puts.add(task)
                task.add_done_callback(puts.discard)
            await asyncio.wait([first], timeout=PROBE_PERIOD_S)
        return first.result()
    finally:
        for task in list(puts):
            task.cancel()
        await asyncio.gather(*puts, return_exceptions=True)


async def _first_inside(cluster: ChaosCluster, names: Sequence[str], since: float) -> float:
    """When the first put in these nodes that began after `since` was acknowledged."""
    while True:
        pages = await asyncio.gather(
            *(cluster.page(name, f"/v1/chaos/callers?since={since!r}") for name in names)
        )
        found = [page["first"] for page in pages if page["first"] is not None]
        if len(found) == len(names):
            return float(min(found))
        await asyncio.sleep(0.02)


def _show(results: Sequence[Figures], console: Console) -> None:
    table = Table(title="From the strike to the next acknowledged write", title_justify="left")
    for heading in ("the leader is", "caller"):
        table.add_column(heading)
    for heading in ("rounds", "best", "median", "worst", "aim: median, worst", "met"):
        table.add_column(heading, justify="right")
    words = {"kill": "killed", "stop": "stopped", "partition": "cut off, silently"}
    for one in results:
        median, worst = AIMS[one.how]
        table.add_row(
            words[one.how],
            one.caller,
            f"{len(one.seconds)}",
            f"{min(one.seconds):.3f} s",
            f"{one.median_s:.3f} s",
            f"{one.worst_s:.3f} s",
            f"{median:g} s, {worst:g} s",
            "yes" if one.aim_met else "[red]no[/red]",
        )
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    given = _parser().parse_args(argv)
    console = Console(stderr=given.json)
    results: list[Figures] = []
    try:
        for how in given.how or HOWS:
            with tempfile.TemporaryDirectory(prefix="raftkv-failover-", dir=given.dir) as out:
                rng = random.Random(given.seed)
                run = measure(how, given.rounds, Path(out), given.layout, rng, console)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    results += runner.run(run)
    except ChaosError as error:
        print(f"bench failover: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if given.json:
        figures = [
            {
                **msgspec.to_builtins(one),
                "median_s": one.median_s,
                "worst_s": one.worst_s,
                "aim_met": one.aim_met,
            }
            for one in results
        ]
        print(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode())
    else:
        _show(results, console)
    return 0 if all(one.aim_met for one in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench failover",
        description="How long nobody can write when the leader is killed, stopped or cut off.",
        epilog="Example: python -m bench failover --rounds 20 --how kill",
    )
    parser.add_argument("--rounds", type=int, default=20, help="of each kind (default 20)")
    parser.add_argument(
        "--how", choices=HOWS, action="append", help="may be repeated (default: all three)"
    )
    parser.add_argument(
        "--layout", type=Layout.parse, default=Layout(3), help="cores+replicants (default 3)"
    )
    parser.add_argument("--seed", type=int, default=1, help="draws the moments (default 1)")
    parser.add_argument("--dir", help="directory for the nodes' data (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench keys --keys 1000000`: what a large keyspace costs.

Two clusters of three cores: one with a thousand keys, one with all of them. Puts and gets inside
the leader, so many at once as `--in-flight` says (one number or several), are measured on both in
turns, for a second each, so that the ratio of the two does not depend on what else the machine
does. Which keys are chosen says `--order` (bench/orders.py): `uniform` is the worst case. On the
large one are also measured: how long loading took (32 puts a transaction), the leader's resident
memory for each key and for each watcher (the memory of the whole process, history and log included,
divided), a snapshot, and how long a core takes from its start until it is ready again: one of
three, and all three at once.

A snapshot takes longer than a second under load. So the turn of a cluster goes on until none of its
cores writes one: each pays for its own, in its own time. Before the first turn both get puts until
their histories are full, which is how a cluster is found for the rest of its life.

Exit codes: 0 measured; 1 an aim was missed and `--fail` given; 2 a node failed; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.arguments import not_negative, positive, positive_int
from bench.conditions import conditions
from bench.embedded_node import Answer, Gets, Load, Puts, Snapshot, Watchers, Where
from bench.embedding import Cores
from bench.layouts import WorkerFailed
from bench.orders import ORDERS
from bench.peers.figures import Spread
from raftkv.errors import RaftkvError

__all__ = ["Level", "Report", "level_of", "main", "measure", "median_between"]

FEW_KEYS = 1000
RATIO_MIN = 0.9
RESTART_MAX_S = 10.0
# Puts before the first turn.
WARM_IN_FLIGHT = 64
# A turn ends by then, though a core may still write a snapshot; it is waited for without load.
TURN_MAX_S = 60.0


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Puts and gets, `in_flight` at once. Rates and latencies are those of callers in the leader.

    `puts_ratio_between` is where the true median lies, 95 times in 100. `puts_ratio_in_all` is of
    all puts of all rounds, so that what snapshots take counts for as long as they take it;
    `puts_ratio_quiet` is of the rounds without one, if any. Processor time is that of all cores
    for one put, snapshots included.
    """

    in_flight: int
    rounds_with_snapshot: int
    puts_few_per_s: Spread
    puts_per_s: Spread
    puts_ratio: Spread
    puts_ratio_between: tuple[float, float]
    puts_ratio_in_all: float
    puts_ratio_quiet: Spread | None
    put_few_cpu_us: float
    put_cpu_us: float
    put_p99_ms: Spread
    put_few_p99_ms: Spread
    gets_few_per_s: Spread
    gets_per_s: Spread
    gets_ratio: Spread
    get_p99_ms: Spread


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    keys: int
    value_bytes: int
    watchers: int
    load_s: float
    loaded_per_s: float
    bytes_per_key: float
    bytes_per_watcher: float
    rss_bytes: int
    levels: list[Level]
    snapshot_s: float
    snapshot_bytes: int
    restart_one_s: float
    restart_all_s: float
    conditions: dict[str, Any]

    @property
    def missed(self) -> list[str]:
        """The aims that were not reached."""
        found = [
            f"put rate {level.puts_ratio.median:.2f} of that with {FEW_KEYS:,} keys, "
            f"{level.in_flight} at once"
            for level in self.levels
            if level.puts_ratio.median < RATIO_MIN
        ]
        slowest_s = max(self.restart_one_s, self.restart_all_s)
        if slowest_s > RESTART_MAX_S:
            found.append(f"restart to ready in {slowest_s:.1f} s")
        return found


class _Turn(msgspec.Struct, frozen=True):
    """What one cluster did in its turn. `snapshots`: how many its leader began."""

    done: int
    seconds: float
    p99_ms: float
    snapshots: int
    cpu_s: float

    @property
    def per_s(self) -> float:
        return self.done / self.seconds


class _Round(msgspec.Struct, frozen=True):
    """The two clusters under the same load, one after the other."""

    few: _Turn
    many: _Turn

    @property
    def ratio(self) -> float:
        return self.many.per_s / self.few.per_s


async def measure(given: argparse.Namespace, place: Path, step: Callable[[str], None]) -> Report:
    """All of it. Raises `WorkerFailed`."""
    found = conditions(place, fsync=True, arguments=vars(given))
    for name in ("few", "many"):
        (place / name).mkdir()
    async with (
        Cores(place / "few", layout=given.layout) as few,
        Cores(place / "many", layout=given.layout) as many,
    ):
        run = _Run(given, few, many, step)
        memory = await run.load()
        watchers = await run.watchers()
        await run.warm()
        levels = [await run.level(in_flight) for in_flight in given.in_flight]
        snapshot = await run.snapshot()
        one_s = await run.restart_one()
        all_s = await run.restart_all()
    return Report(
        keys=given.keys,
        value_bytes=given.value_bytes,
        watchers=given.watchers,
        bytes_per_watcher=watchers,
        levels=levels,
        snapshot_s=snapshot.seconds,
        snapshot_bytes=snapshot.file_bytes,
        restart_one_s=one_s,
        restart_all_s=all_s,
        conditions=found,
        **memory,
    )


def level_of(in_flight: int, puts: Sequence[_Round], gets: Sequence[_Round]) -> Level:
    """What the rounds say together."""
    ratios = [each.ratio for each in puts]
    quiet = [each.ratio for each in puts if not each.many.snapshots]
    # What the small cluster would have done in the time that the large one had.
    beside = sum(each.few.per_s * each.many.seconds for each in puts)
    return Level(
        in_flight=in_flight,
        rounds_with_snapshot=len(puts) - len(quiet),
        puts_few_per_s=Spread.of(each.few.per_s for each in puts),
        puts_per_s=Spread.of(each.many.per_s for each in puts),
        puts_ratio=Spread.of(ratios),
        puts_ratio_between=median_between(ratios),
        puts_ratio_in_all=sum(each.many.done for each in puts) / beside,
        puts_ratio_quiet=Spread.of(quiet) if quiet else None,
        put_few_cpu_us=_cpu_us(each.few for each in puts),
        put_cpu_us=_cpu_us(each.many for each in puts),
        put_p99_ms=Spread.of(each.many.p99_ms for each in puts),
        put_few_p99_ms=Spread.of(each.few.p99_ms for each in puts),
        gets_few_per_s=Spread.of(each.few.per_s for each in gets),
        gets_per_s=Spread.of(each.many.per_s for each in gets),
        gets_ratio=Spread.of(each.ratio for each in gets),
        get_p99_ms=Spread.of(each.many.p99_ms for each in gets),
    )


def median_between(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values, between which the true median lies 95 times in 100, however they spread.

    That is a matter of counting heads and tails: of n values, all but about 1.96 times the square
    root of n in the middle can be left out, half of them on either side.
    """
    found = sorted(values)
    out = max(0, int((len(found) - 1.96 * len(found) ** 0.5) / 2))
    return found[out], found[-1 - out]


class _Run:
    def __init__(
        self, given: argparse.Namespace, few: Cores, many: Cores, step: Callable[[str], None]
    ) -> None:
        self._given = given
        self._few = few
        self._many = many
        self._step = step

    async def load(self) -> dict[str, Any]:
        given = self._given
        leader, _ = await self._few.leader()
        await leader.ask(Load(FEW_KEYS, given.value_bytes))
        self._step(f"loading {given.keys:,} keys")
        leader, before = await self._many.leader()
        loaded = await leader.ask(Load(given.keys, given.value_bytes))
        await asyncio.sleep(given.settle_s)
        after = await leader.ask(Where())
        return {
            "load_s": loaded.seconds,
            "loaded_per_s": given.keys / loaded.seconds,
            "bytes_per_key": (after.rss_bytes - before.rss_bytes) / given.keys,
            "rss_bytes": after.rss_bytes,
        }

    async def warm(self) -> None:
        """Fill the histories."""
        given = self._given
        both = ((self._few, FEW_KEYS), (self._many, given.keys)) if given.warm_s else ()
        for cores, keys in both:
            self._step(f"filling the history of {keys:,} keys")
            leader, _ = await cores.leader()
            await leader.ask(Puts(keys, given.value_bytes, given.warm_s, WARM_IN_FLIGHT))
            await cores.settled()

    async def level(self, in_flight: int) -> Level:
        """Puts and gets on both, in turns; the order is turned round in every second round."""
        given = self._given
        puts: list[_Round] = []
        gets: list[_Round] = []
        for number in range(given.rounds):
            for name, rounds in (("puts", puts), ("gets", gets)):
                turns: dict[bool, _Turn] = {}
                order = (self._few, self._many) if number % 2 == 0 else (self._many, self._few)
                for cores in order:
                    keys = FEW_KEYS if cores is self._few else given.keys
                    self._step(
                        f"{name} on {keys:,} keys, {in_flight} at once, "
                        f"round {number + 1} of {given.rounds}"
                    )
                    ask = (
                        Puts(keys, given.value_bytes, given.seconds, in_flight, given.order)
                        if name == "puts"
                        else Gets(keys, given.seconds, in_flight, order=given.order)
                    )
                    turns[cores is self._few] = await _turn(cores, ask)
                rounds.append(_Round(turns[True], turns[False]))
        return level_of(in_flight, puts, gets)

    async def watchers(self) -> float:
        """Bytes for each. Before the heap has holes that they would fill."""
        given = self._given
        self._step(f"{given.watchers:,} watchers")
        leader, before = await self._many.leader()
        after = await leader.ask(Watchers(given.watchers, given.keys))
        await leader.ask(Watchers(0, given.keys))
        return (after.rss_bytes - before.rss_bytes) / int(given.watchers)

    async def snapshot(self) -> Answer:
        self._step("a snapshot")
        leader, _ = await self._many.leader()
        return await leader.ask(Snapshot())

    async def restart_one(self) -> float:
        """A core that does not lead (if there is one), started while the others run."""
        self._step("restart of one core")
        leader, _ = await self._many.leader()
        other = next((each for each in self._many.members if each is not leader), leader)
        await other.end()
        began_s = time.monotonic()
        await other.spawn()
        answer = await other.answer()
        took_s = time.monotonic() - began_s
        self._check(answer)
        return took_s

    async def restart_all(self) -> float:
        """All at once: also an election."""
        self._step("restart of all cores")
        members = self._many.members
        await asyncio.gather(*(each.end() for each in members))
        began_s = time.monotonic()
        for each in members:
            await each.spawn()
        answers = await asyncio.gather(*(each.answer() for each in members))
        took_s = time.monotonic() - began_s
        for answer in answers:
            self._check(answer)
        return took_s

    def _check(self, answer: Answer) -> None:
        """Ready means that the keys are there."""
        if answer.keys < self._given.keys:
            raise WorkerFailed(f"a restarted core has {answer.keys:,} keys: some are missing")


async def _turn(cores: Cores, ask: Puts | Gets) -> _Turn:
    """`ask`, and again as long as a core writes a snapshot."""
    leader, before = await cores.leader()
    began_cpu_s = await cores.cpu_s()
    answers: list[Answer] = []
    until_s = time.monotonic() + TURN_MAX_S
    while not answers or (await cores.snapshotting() and time.monotonic() < until_s):
        answers.append(await leader.ask(ask))
    await cores.settled()
    return _Turn(
        done=sum(each.done for each in answers),
        seconds=sum(each.seconds for each in answers),
        p99_ms=max(each.p99_ms for each in answers),
        snapshots=answers[-1].snapshots - before.snapshots,
        cpu_s=await cores.cpu_s() - began_cpu_s,
    )


def _cpu_us(turns: Iterable[_Turn]) -> float:
    found = list(turns)
    return sum(each.cpu_s for each in found) / sum(each.done for each in found) * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    given = _parser().parse_args(argv)
    console = Console(stderr=given.json)
    if not console.is_terminal:
        console = Console(stderr=given.json, width=110)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="raftkv-keys-", dir=given.dir) as place,
            Progress(
                SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
                console=console, transient=True,
            ) as progress,
        ):  # fmt: skip
            task = progress.add_task("starting")

            def step(text: str) -> None:
                progress.update(task, description=text)

            report = asyncio.run(measure(given, Path(place), step))
    except (WorkerFailed, RaftkvError, OSError) as error:
        print(f"bench keys: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if given.json:
        document = {**msgspec.to_builtins(report), "missed": report.missed}
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    else:
        _show(console, report)
    return 1 if given.fail and report.missed else 0


def _show(console: Console, report: Report) -> None:
    table = Table(
        title=f"{report.keys:,} keys, values of {report.value_bytes} bytes, "
        f"{report.conditions['arguments']['layout']} cores",
        title_justify="left",
        show_header=False,
    )
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    rows = [
        ("loading", f"{report.load_s:.1f} s", f"{report.loaded_per_s:,.0f} keys/s"),
        ("memory of the leader", f"{report.rss_bytes / 2**20:,.0f} MiB",
         f"{report.bytes_per_key:,.0f} bytes a key, history and log included"),
        ("memory of a watcher", f"{report.bytes_per_watcher:,.0f} bytes",
         f"{report.watchers:,} watchers inside the leader"),
        ("snapshot", f"{report.snapshot_s:.2f} s", f"{report.snapshot_bytes / 2**20:,.1f} MiB"),
        ("restart to ready, one core", f"{report.restart_one_s:.1f} s",
         f"aim {RESTART_MAX_S:.0f} s"),
        ("restart to ready, all cores", f"{report.restart_all_s:.1f} s", ""),
    ]  # fmt: skip
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(_levels(report))
    for missed in report.missed:
        console.print(f"[red]missed:[/red] {missed}", highlight=False)


def _levels(report: Report) -> Table:
    arguments = report.conditions["arguments"]
    rounds, order = arguments["rounds"], arguments["order"]
    table = Table(
        title=f"beside {FEW_KEYS:,} keys, order {order}, {rounds} rounds; ratio: the median and "
        f"where it lies 95 times in 100, aim {RATIO_MIN}",
        title_justify="left",
    )
    table.add_column("at once", justify="right")
    for name in ("puts/s", "p99 ms", "ratio", "of all puts", "us a put", "gets/s", "ratio"):
        table.add_column(name, justify="right")
    for level in report.levels:
        low, high = level.puts_ratio_between
        all_puts = f"{level.puts_ratio_in_all:.2f}"
        if level.rounds_with_snapshot:
            all_puts += f" ({level.rounds_with_snapshot} snapshots)"
        table.add_row(
            f"{level.in_flight}",
            f"{level.puts_per_s.median:,.0f}",
            f"{level.put_p99_ms.median:.2f}",
            f"{level.puts_ratio.median:.2f} ({low:.2f} to {high:.2f})",
            all_puts,
            f"{level.put_cpu_us:.0f}, {level.put_few_cpu_us:.0f}",
            f"{level.gets_per_s.median:,.0f}",
            f"{level.gets_ratio.median:.2f}",
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench keys",
        description="What a large keyspace costs: memory, rates, a snapshot, a restart.",
        epilog="Example: python -m bench keys --keys 1000000 --json > keys.json",
    )
    parser.add_argument("--keys", type=positive_int, default=1_000_000, help="default: 1,000,000")
    parser.add_argument(
        "--value-bytes", type=positive_int, default=100, help="of each value (default: 100)"
    )
    parser.add_argument(
        "--watchers", type=positive_int, default=10_000, help="in the leader (default: 10,000)"
    )
    parser.add_argument("--layout", choices=("1", "3", "5"), default="3", help="cores (default: 3)")
    parser.add_argument(
        "--in-flight", type=positive_int, nargs="+", default=[1, 16, 64, 256], metavar="N",
        help="puts or gets at once, one or several (default: 1 16 64 256)",
    )  # fmt: skip
    parser.add_argument(
        "--order", choices=ORDERS, default="uniform",
        help="which keys are put and got: each as likely as any other, a few of them most of the "
        "time, or one after the other (default: uniform)",
    )  # fmt: skip
    parser.add_argument("--seconds", type=positive, default=1.0, help="of each turn (default: 1)")
    parser.add_argument(
        "--warm-s", type=not_negative, default=8.0,
        help="puts before the first turn, for the history to fill (default: 8)",
    )  # fmt: skip
    parser.add_argument(
        "--settle-s", type=not_negative, default=2.0,
        help="between loading and looking at the memory (default: 2)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=positive_int, default=15, help="default: 15")
    parser.add_argument("--dir", help="directory for the nodes' data (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead")
    parser.add_argument("--fail", action="store_true", help="exit with 1 if an aim was missed")
    return parser


if __name__ == "__main__":
    sys.exit(main())

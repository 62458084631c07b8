"""`python -m bench keys --keys 1000000`: what a large keyspace costs.

Two clusters of three cores: one with a thousand keys, one with all of them. Puts and gets,
`--in-flight` at once inside the leader, are measured on both in turns, so that the ratio of the two
does not depend on what else the machine does. On the large one are also measured: how long loading
took (32 puts a transaction), the leader's resident memory for each key and for each watcher (the
memory of the whole process, history and log included, divided), a snapshot, and how long a core
takes from its start until it is ready again: one of three, and all three at once.

Exit codes: 0 measured; 1 an aim was missed and `--fail` given; 2 a node failed; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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
from bench.peers.figures import Spread
from raftkv.errors import RaftkvError

__all__ = ["Report", "main", "measure"]

FEW_KEYS = 1000
RATIO_MIN = 0.9
RESTART_MAX_S = 10.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. Rates and latencies are those of callers inside the leader."""

    keys: int
    value_bytes: int
    watchers: int
    load_s: float
    loaded_per_s: float
    bytes_per_key: float
    bytes_per_watcher: float
    rss_bytes: int
    puts_few_per_s: Spread
    puts_per_s: Spread
    puts_ratio: Spread
    # The aim is for the median of the rounds. Besides: of all puts of all rounds, so that what a
    # snapshot takes from the puts next to it counts; and of the rounds without one, if any.
    puts_ratio_in_all: float
    puts_ratio_quiet: Spread | None
    rounds_with_snapshot: int
    # Processor time of all cores for one put, snapshots included: says what the rates say, without
    # the noise of a shared machine.
    put_few_cpu_us: float
    put_cpu_us: float
    put_p99_ms: Spread
    put_few_p99_ms: Spread
    gets_few_per_s: Spread
    gets_per_s: Spread
    gets_ratio: Spread
    get_p99_ms: Spread
    snapshot_s: float
    snapshot_bytes: int
    restart_one_s: float
    restart_all_s: float
    conditions: dict[str, Any]

    @property
    def missed(self) -> list[str]:
        """The aims that were not reached."""
        found = []
        if self.puts_ratio.median < RATIO_MIN:
            found.append(f"put rate {self.puts_ratio.median:.2f} of that with {FEW_KEYS:,} keys")
        slowest_s = max(self.restart_one_s, self.restart_all_s)
        if slowest_s > RESTART_MAX_S:
            found.append(f"restart to ready in {slowest_s:.1f} s")
        return found


class _Round(msgspec.Struct, frozen=True):
    """The two clusters under the same load, one after the other.

    `snapshots`: how many the leader of the large one began meanwhile. `cpu_s`: what all cores of
    the one and of the other needed, until they had settled.
    """

    few: Answer
    many: Answer
    snapshots: int
    few_cpu_s: float
    many_cpu_s: float

    @property
    def ratio(self) -> float:
        return _per_s(self.many) / _per_s(self.few)


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
        rounds = await run.rounds()
        watchers = await run.watchers()
        snapshot = await run.snapshot()
        one_s = await run.restart_one()
        all_s = await run.restart_all()
    puts, gets = rounds
    return Report(
        keys=given.keys,
        value_bytes=given.value_bytes,
        watchers=given.watchers,
        bytes_per_watcher=watchers,
        puts_few_per_s=Spread.of(_per_s(each.few) for each in puts),
        puts_per_s=Spread.of(_per_s(each.many) for each in puts),
        puts_ratio=Spread.of(each.ratio for each in puts),
        puts_ratio_in_all=sum(map(_done, puts)) / sum(each.few.done for each in puts),
        puts_ratio_quiet=_quiet(puts),
        rounds_with_snapshot=sum(each.snapshots > 0 for each in puts),
        put_few_cpu_us=_cpu_us(puts, few=True),
        put_cpu_us=_cpu_us(puts, few=False),
        put_p99_ms=Spread.of(each.many.p99_ms for each in puts),
        put_few_p99_ms=Spread.of(each.few.p99_ms for each in puts),
        gets_few_per_s=Spread.of(_per_s(each.few) for each in gets),
        gets_per_s=Spread.of(_per_s(each.many) for each in gets),
        gets_ratio=Spread.of(each.ratio for each in gets),
        get_p99_ms=Spread.of(each.many.p99_ms for each in gets),
        snapshot_s=snapshot.seconds,
        snapshot_bytes=snapshot.file_bytes,
        restart_one_s=one_s,
        restart_all_s=all_s,
        conditions=found,
        **memory,
    )


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

    async def rounds(self) -> tuple[list[_Round], list[_Round]]:
        """Puts and gets on both, in turns; the order is turned round in every second round."""
        given = self._given
        puts: list[_Round] = []
        gets: list[_Round] = []
        for number in range(given.rounds):
            for name, rounds in (("puts", puts), ("gets", gets)):
                answers, cpu_s, snapshots = {}, {}, 0
                order = (self._few, self._many) if number % 2 == 0 else (self._many, self._few)
                for cores in order:
                    keys = FEW_KEYS if cores is self._few else given.keys
                    self._step(f"{name} on {keys:,} keys, round {number + 1} of {given.rounds}")
                    leader, before = await cores.leader()
                    began_cpu_s = await cores.cpu_s()
                    ask = (
                        Puts(keys, given.value_bytes, given.seconds, given.in_flight)
                        if name == "puts"
                        else Gets(keys, given.seconds, given.in_flight)
                    )
                    answers[cores is self._few] = answer = await leader.ask(ask)
                    if cores is self._many:
                        snapshots = answer.snapshots - before.snapshots
                    # Each pays for its own snapshots, within its own time or not at all.
                    await cores.settled()
                    cpu_s[cores is self._few] = await cores.cpu_s() - began_cpu_s
                rounds.append(
                    _Round(answers[True], answers[False], snapshots, cpu_s[True], cpu_s[False])
                )
        return puts, gets

    async def watchers(self) -> float:
        """Bytes for each."""
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


def _quiet(rounds: Sequence[_Round]) -> Spread | None:
    ratios = [each.ratio for each in rounds if not each.snapshots]
    return Spread.of(ratios) if ratios else None


def _done(each: _Round) -> int:
    return each.many.done


def _cpu_us(rounds: Sequence[_Round], *, few: bool) -> float:
    spent_s = sum(each.few_cpu_s if few else each.many_cpu_s for each in rounds)
    return spent_s / sum((each.few if few else each.many).done for each in rounds) * 1e6


def _per_s(answer: Answer) -> float:
    return answer.done / answer.seconds


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
    in_flight = report.conditions["arguments"]["in_flight"]
    rows = [
        ("loading", f"{report.load_s:.1f} s", f"{report.loaded_per_s:,.0f} keys/s"),
        ("memory of the leader", f"{report.rss_bytes / 2**20:,.0f} MiB",
         f"{report.bytes_per_key:,.0f} bytes a key, history and log included"),
        ("memory of a watcher", f"{report.bytes_per_watcher:,.0f} bytes",
         f"{report.watchers:,} watchers inside the leader"),
        (f"puts, {in_flight} at once", _rate(report.puts_per_s), _p99(report.put_p99_ms)),
        (f"the same with {FEW_KEYS:,} keys", _rate(report.puts_few_per_s),
         _p99(report.put_few_p99_ms)),
        ("ratio, median of the rounds", f"{report.puts_ratio.median:.2f}",
         f"{report.puts_ratio.lowest:.2f} to {report.puts_ratio.highest:.2f}; aim {RATIO_MIN}"),
        ("ratio of all puts", f"{report.puts_ratio_in_all:.2f}", _snapshots(report)),
        ("processor time a put", f"{report.put_cpu_us:.1f} us",
         f"all cores, snapshots included; with {FEW_KEYS:,} keys {report.put_few_cpu_us:.1f} us"),
        (f"linearizable gets, {in_flight} at once", _rate(report.gets_per_s),
         _p99(report.get_p99_ms)),
        (f"the same with {FEW_KEYS:,} keys", _rate(report.gets_few_per_s),
         _ratio(report.gets_ratio)),
        ("snapshot", f"{report.snapshot_s:.2f} s", f"{report.snapshot_bytes / 2**20:,.1f} MiB"),
        ("restart to ready, one core", f"{report.restart_one_s:.1f} s",
         f"aim {RESTART_MAX_S:.0f} s"),
        ("restart to ready, all cores", f"{report.restart_all_s:.1f} s", ""),
    ]  # fmt: skip
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for missed in report.missed:
        console.print(f"[red]missed:[/red] {missed}", highlight=False)


def _rate(spread: Spread) -> str:
    return f"{spread.median:,.0f}/s"


def _snapshots(report: Report) -> str:
    rounds = report.conditions["arguments"]["rounds"]
    return (
        f"{report.rounds_with_snapshot} of {rounds} rounds with a snapshot, "
        f"the others {_ratio(report.puts_ratio_quiet)}"
    )


def _p99(spread: Spread) -> str:
    return f"p99 {spread.median:.2f} ms"


def _ratio(spread: Spread | None) -> str:
    if spread is None:
        return "none"
    return f"ratio {spread.median:.2f} ({spread.lowest:.2f} to {spread.highest:.2f})"


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
        "--in-flight", type=positive_int, default=64, help="puts or gets at once (default: 64)"
    )
    parser.add_argument("--seconds", type=positive, default=4.0, help="of each load (default: 4)")
    parser.add_argument(
        "--settle-s", type=not_negative, default=2.0,
        help="between loading and looking at the memory (default: 2)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=positive_int, default=5, help="default: 5")
    parser.add_argument("--dir", help="directory for the nodes' data (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead")
    parser.add_argument("--fail", action="store_true", help="exit with 1 if an aim was missed")
    return parser


if __name__ == "__main__":
    sys.exit(main())

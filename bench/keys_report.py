"""What the benchmark of a large keyspace has found, and how it is shown. See bench/keys.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
from rich.console import Console
from rich.table import Table

from bench.peers.figures import Spread

__all__ = [
    "FEW_KEYS",
    "PLACES",
    "Level",
    "Report",
    "Round",
    "Through",
    "Turn",
    "level_of",
    "median_between",
    "show",
]

FEW_KEYS = 1000
RATIO_MIN = 0.9
RESTART_MAX_S = 10.0

Through = Literal["inside", "door"]
PLACES: Final[dict[Through, str]] = {
    "inside": "inside the leader",
    "door": "at the leader's door",
}
# A generator that is busy for more of the time may be what is measured.
CLIENT_CPU_MAX = 0.9


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Puts and gets, `in_flight` at once, of callers in the leader or of connections to its door.

    `puts_ratio_between` is where the true median lies, 95 times in 100. `puts_ratio_in_all` is of
    all puts of all rounds, so that what snapshots take counts for as long as they take it;
    `puts_ratio_quiet` is of the rounds without one in the large cluster's leader, if any. Processor
    time is that of all cores for one put, snapshots included. `client_cpu` is the most of a
    processor that wrk used in a round, 0 without it.
    """

    in_flight: int
    through: Through
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
    client_cpu: float


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
            f"{level.in_flight} at once {PLACES[level.through]}"
            for level in self.levels
            if level.puts_ratio.median < RATIO_MIN
        ]
        slowest_s = max(self.restart_one_s, self.restart_all_s)
        if slowest_s > RESTART_MAX_S:
            found.append(f"restart to ready in {slowest_s:.1f} s")
        return found


class Turn(msgspec.Struct, frozen=True):
    """What one cluster did in its turn. `snapshots`: how many its leader began."""

    done: int
    seconds: float
    p99_ms: float
    snapshots: int
    cpu_s: float
    client_cpu: float = 0.0

    @property
    def per_s(self) -> float:
        return self.done / self.seconds


class Round(msgspec.Struct, frozen=True):
    """The two clusters under the same load, one after the other."""

    few: Turn
    many: Turn

    @property
    def ratio(self) -> float:
        return self.many.per_s / self.few.per_s


def level_of(
    in_flight: int, through: Through, puts: Sequence[Round], gets: Sequence[Round]
) -> Level:
    """What the rounds say together."""
    ratios = [each.ratio for each in puts]
    quiet = [each.ratio for each in puts if not each.many.snapshots]
    # What the small cluster would have done in the time that the large one had.
    beside = sum(each.few.per_s * each.many.seconds for each in puts)
    return Level(
        in_flight=in_flight,
        through=through,
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
        client_cpu=max(
            turn.client_cpu for each in (*puts, *gets) for turn in (each.few, each.many)
        ),
    )


def median_between(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values, between which the true median lies 95 times in 100, however they spread.

    That is a matter of counting heads and tails: of n values, all but about 1.96 times the square
    root of n in the middle can be left out, half of them on either side.
    """
    found = sorted(values)
    out = max(0, int((len(found) - 1.96 * len(found) ** 0.5) / 2))
    return found[out], found[-1 - out]


def _cpu_us(turns: Iterable[Turn]) -> float:
    found = list(turns)
    return sum(each.cpu_s for each in found) / sum(each.done for each in found) * 1e6


def show(console: Console, report: Report) -> None:
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
    for level in report.levels:
        if level.client_cpu > CLIENT_CPU_MAX:
            console.print(
                f"[yellow]wrk used {level.client_cpu:.2f} of a processor with {level.in_flight} "
                f"connections: its own rate may be what was measured[/yellow]",
                highlight=False,
            )
    for missed in report.missed:
        console.print(f"[red]missed:[/red] {missed}", highlight=False)


def _levels(report: Report) -> Table:
    arguments = report.conditions["arguments"]
    rounds, order = arguments["rounds"], arguments["order"]
    table = Table(
        title=f"beside {FEW_KEYS:,} keys, order {order}, {rounds} rounds; ratio: the median and "
        f"where it lies 95 times in 100, aim {RATIO_MIN}; quiet: rounds without snapshots; "
        f"all puts: (rounds with one); us a put: of all cores, and with {FEW_KEYS:,} keys",
        title_justify="left",
    )
    table.add_column("at once", justify="right")
    table.add_column("callers")
    for name in (
        "puts/s", "p99 ms", "ratio", "quiet", "all puts", "us a put", "gets/s", "ratio"
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for level in report.levels:
        low, high = level.puts_ratio_between
        quiet = level.puts_ratio_quiet
        all_puts = f"{level.puts_ratio_in_all:.2f}"
        if level.rounds_with_snapshot:
            all_puts += f" ({level.rounds_with_snapshot})"
        table.add_row(
            f"{level.in_flight}",
            level.through,
            f"{level.puts_per_s.median:,.0f}",
            f"{level.put_p99_ms.median:.2f}",
            f"{level.puts_ratio.median:.2f} ({low:.2f}-{high:.2f})",
            "" if quiet is None else f"{quiet.median:.2f}",
            all_puts,
            f"{level.put_cpu_us:.0f}, {level.put_few_cpu_us:.0f}",
            f"{level.gets_per_s.median:,.0f}",
            f"{level.gets_ratio.median:.2f}",
        )
    return table

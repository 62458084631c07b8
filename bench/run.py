"""`python -m bench run`: clusters of real processes, the scenarios, and their log.

For each layout: start its processes, play the three scenarios with the registry on (lcr) and off
(legacy), let the cluster come to rest and audit every node, then measure puts. All rows go to
`DIR/log`, the conditions to `DIR/conditions.json`. What this prints is a rough look for whoever
waits; the figures come from `python -m bench analyse DIR`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import secrets
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.conditions import conditions, write_conditions
from bench.control import Flush, Lag, State
from bench.coordinator import PutRun, Result, leader_of, play, run_puts
from bench.layouts import Cluster, Layout, WorkerFailed
from bench.live import quantile_us
from bench.scenarios import Load
from bench.schema import LAYOUT_WORDS, LAYOUTS

__all__ = ["Plan", "main"]

REGISTRY_SCENARIOS = ("initial", "reconnect", "same_client")
IN_FLIGHT = (1, 16, 64, 256)


@dataclass(frozen=True)
class Plan:
    """What to run; the fields are the command's options."""

    layouts: tuple[str, ...]
    scenarios: tuple[str, ...]
    registries: tuple[str, ...]
    clients: int
    seconds: float
    warmup_s: float
    put_seconds: float
    lag_ms: float
    think_ms: float
    rate_per_s: float
    value_bytes: int
    audit_clients_max: int
    fsync: Literal["on", "off"]
    quick: bool

    def loads(self) -> list[Load]:
        """Every scenario with every registry."""
        return [
            Load(
                scenario=scenario,
                registry=registry,
                clients=self.clients,
                seconds=self.seconds,
                warmup_s=self.warmup_s,
                think_ms=self.think_ms,
                rate_per_s=self.rate_per_s,
            )
            for scenario in self.scenarios
            if scenario in REGISTRY_SCENARIOS
            for registry in self.registries
        ]

    def puts(self, layout: Layout) -> list[PutRun]:
        """Every caller's place with every number of puts in flight."""
        if "puts" not in self.scenarios:
            return []
        places = ["leader"]
        places += ["follower"] if layout.cores > 1 else []
        places += ["replicant"] if layout.replicants else []
        places += ["http"]
        return [
            PutRun(place, in_flight, self.put_seconds, self.value_bytes)
            for place in places
            for in_flight in IN_FLIGHT
        ]


def main(arguments: Sequence[str]) -> int:
    """The command. Exit code 1 when a worker failed, 2 for bad arguments, 130 after Ctrl-C."""
    given = _parser().parse_args(arguments)
    plan, out = _plan(given), Path(given.out)
    console = Console(stderr=True)
    if not given.append and any((out / "log").glob("*.parquet")):
        console.print(
            f"[red]{out} already holds a log.[/red] Choose another --out, remove it, or add to it "
            f"with --append."
        )
        return 2
    try:
        return asyncio.run(_until_interrupted(plan, out, console))
    except WorkerFailed as error:
        console.print(f"[red]The run failed:[/red] {error}", markup=True, highlight=False)
        return 1
    except OSError as error:
        console.print(f"[red]The run failed:[/red] {error}", highlight=False)
        return 1


async def _until_interrupted(plan: Plan, out: Path, console: Console) -> int:
    """Ctrl-C and SIGTERM cancel the run, so that every process is ended on the way out."""
    task = asyncio.ensure_future(_run(plan, out, console))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        console.print("[yellow]Interrupted.[/yellow] All processes were ended; the log is partial.")
        return 130
    return 0


async def _run(plan: Plan, out: Path, console: Console) -> None:
    out.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    run = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    found = conditions(out, fsync=plan.fsync == "on", arguments=_arguments(plan))
    write_conditions(out, found)
    sync = found["fdatasync"]
    console.print(
        f"{found['cores']} cores, {found['memory_bytes'] / 2**30:.0f} GB, Python "
        f"{found['python']}, fsync {plan.fsync}, one fdatasync {sync['median_us']:.0f} µs "
        f"(p99 {sync['p99_us']:.0f})",
        highlight=False,
    )
    results: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[live]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        for name in plan.layouts:
            results += await _run_layout(Layout.parse(name), plan, out, run, progress)
    _show(results, out)


async def _run_layout(
    layout: Layout, plan: Plan, out: Path, run: str, progress: Progress
) -> list[Result]:
    loads, puts = plan.loads(), plan.puts(layout)
    words = LAYOUT_WORDS[layout.name]
    bar = progress.add_task(words, total=len(loads) + len(puts), live="starting")
    results = []

    def show(live: str) -> None:
        progress.update(bar, live=live)

    async with Cluster(layout, out, run, fsync=plan.fsync) as cluster:
        if loads:
            await cluster.ask_all(layout.drivers, Lag(plan.lag_ms / 1000), object)
        for load in loads:
            results.append(await play(cluster, load, plan.lag_ms, plan.audit_clients_max, show))
            progress.advance(bar)
        if puts:
            await cluster.ask_all(layout.drivers, Lag(0.0), object)
        for each in puts:
            results.append(await run_puts(cluster, each, show))
            progress.advance(bar)
        await cluster.ask_all(list(cluster.workers), Flush(), object)
        states: dict[str, State] = await cluster.states()
        progress.update(bar, live=f"done, led by {leader_of(states) or 'nobody'}")
    return results


def _show(results: Sequence[Result], out: Path) -> None:
    """The last words: a rough table, where the log is, and how to get the real figures."""
    table = Table(title="A rough look (durations to 9 %)", title_justify="left")
    for heading in ("layout", "scenario", "registry", "caller"):
        table.add_column(heading)
    for heading in ("clients", "ok/s", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    table.add_column("other answers", overflow="fold")
    for result in results:
        tally = result.tally
        quantiles = (quantile_us(tally.buckets, share) for share in (0.5, 0.99))
        table.add_row(
            result.layout,
            result.scenario,
            result.registry,
            result.caller,
            str(result.clients),
            f"{tally.ok / result.seconds:,.0f}",
            *("" if us is None else f"{us / 1000:.2f}" for us in quantiles),
            tally.others,
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(table)
    console.print(f"The log: {out / 'log'}", highlight=False, soft_wrap=True)
    command = f"python -m bench analyse {shlex.quote(str(out))}"
    console.print(f"The figures: [bold]{command}[/bold]", highlight=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench run",
        description="Drive clusters of real processes on loopback and log every operation.",
    )
    add = parser.add_argument
    add("--out", required=True, metavar="DIR", help="where log and conditions go")
    add(
        "--layout",
        action="append",
        choices=LAYOUTS,
        dest="layouts",
        help="cores, or cores+replicants; may be repeated (default: 1 3 5 3+3; quick: 3 3+3)",
    )
    add(
        "--scenario",
        action="append",
        choices=("all", "registry", *REGISTRY_SCENARIOS, "puts"),
        dest="scenarios",
        help="may be repeated; registry: the three of the registry (default: all)",
    )
    add("--registry", choices=("both", "lcr", "legacy"), default="both")
    add("--clients", type=_positive_int, help="clients for each driver (default: 64; quick: 32)")
    add("--seconds", type=_positive, help="of each scenario (default: 20; quick: 3)")
    add("--put-seconds", type=_positive, help="of each put load (default: a third of --seconds)")
    add(
        "--lag-ms",
        type=_not_negative,
        default=50.0,
        help="replication lag, injected into the drivers' nodes (default: 50)",
    )
    add(
        "--think-ms",
        type=_not_negative,
        default=10.0,
        help="pause before a client of reconnect comes back (default: 10)",
    )
    add(
        "--rate",
        type=_not_negative,
        default=0.0,
        metavar="PER_S",
        dest="rate_per_s",
        help="connects per second for each driver at most (default: no limit)",
    )
    add("--value-bytes", type=_positive_int, default=64, help="of a put (default: 64)")
    add(
        "--audit-clients-max",
        type=_positive_int,
        default=20_000,
        help="clients audited on every node, evenly chosen (default: 20000)",
    )
    add("--fsync", choices=("on", "off"), default="on")
    add("--append", action="store_true", help="add to a log that is there already")
    add("--quick", action="store_true", help="short, for a first look; figures are not stable")
    return parser  # fmt: skip


def _plan(given: argparse.Namespace) -> Plan:
    quick: bool = given.quick
    seconds = given.seconds or (3.0 if quick else 20.0)
    scenarios: list[str] = []
    for name in given.scenarios or ["all"]:
        scenarios += REGISTRY_SCENARIOS if name in ("all", "registry") else [name]
        scenarios += ["puts"] if name == "all" else []
    return Plan(
        layouts=tuple(dict.fromkeys(given.layouts or (("3", "3+3") if quick else LAYOUTS))),
        scenarios=tuple(dict.fromkeys(scenarios)),
        registries=("lcr", "legacy") if given.registry == "both" else (given.registry,),
        clients=given.clients or (32 if quick else 64),
        seconds=seconds,
        warmup_s=min(2.0, seconds / 4),
        put_seconds=given.put_seconds or seconds / 3,
        lag_ms=given.lag_ms,
        think_ms=given.think_ms,
        rate_per_s=given.rate_per_s,
        value_bytes=given.value_bytes,
        audit_clients_max=given.audit_clients_max,
        fsync=cast(Literal["on", "off"], given.fsync),
        quick=quick,
    )


def _arguments(plan: Plan) -> dict[str, object]:
    """The arguments, and where they put drivers and lag, for the conditions."""
    places = {
        layout.name: "in the replicants" if layout.replicants else "in the cores"
        for layout in map(Layout.parse, plan.layouts)
    }
    return {
        **asdict(plan),
        "drivers": "; ".join(f"{name}: {place}" for name, place in places.items()),
        "lag": "replicants apply the log later; the nodes with drivers apply later what the legacy "
        "registry spreads to them. During puts there is none.",
    }


def _positive(text: str) -> float:
    value = _not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return value


def _not_negative(text: str) -> float:
    with contextlib.suppress(ValueError):
        value = float(text)
        if 0 <= value < 1e9:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1e9")


def _positive_int(text: str) -> int:
    with contextlib.suppress(ValueError):
        value = int(text)
        if 1 <= value <= 1_000_000_000:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

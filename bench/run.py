"""`python -m bench run`: clusters of real processes, the scenarios, and their log.

For each layout: start its processes, play the three scenarios with bare calls of the registry (lcr)
and of the old one (legacy), let the cluster come to rest and audit every node, then measure puts
and gets by the place of their callers. On a layout with replicants follows the seed's performance
test, on processes of its own: sessions that brokers open with the registry on, off and both, also
while a replicant lags and while the leader is killed (`bench.performance`).

All rows go to `DIR/log`, what is known of a load beside them to `DIR/loads`, the conditions to
`DIR/conditions.json`. What this prints is a rough look for whoever waits; the figures come from
`python -m bench analyse DIR`.

    python -m bench run --layout 3+3 --scenario sessions --out DIR    # the performance test alone
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import secrets
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.arguments import not_negative, positive, positive_int
from bench.conditions import conditions, write_conditions
from bench.control import Flush, Lag, State
from bench.coordinator import CALLERS, Result, leader_of, play, run_calls
from bench.layouts import Cluster, Layout, WorkerFailed
from bench.live import quantile_us
from bench.performance import SessionTest, play_sessions
from bench.plan import IN_FLIGHT, PUT_EVERY, REGISTRY_SCENARIOS, SESSION_SCENARIOS, Plan
from bench.schema import CONSISTENCIES, LAYOUT_WORDS, LAYOUTS, SESSION_MODES
from raftkv.plugin import Consistency

__all__ = ["main"]

GETS_MAX = 250_000
"""Enough for a percentile of any kind, and little enough to analyse forty such loads."""

BARE = ("lcr", "legacy")
REGISTRY_NAMES = {"both": BARE, "sessions": tuple(SESSION_MODES)}
"""What `--registry` knows besides the names of the log."""

QUICK_SESSION_SCENARIOS = ("reconnect",)
"""Of the performance test in a quick run of everything: three loads of fifteen, half a minute."""


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
    if not any(_parts(plan, Layout.parse(name)) for name in plan.layouts):
        console.print(
            "[red]Nothing to run.[/red] Sessions are measured on a layout with replicants: add "
            "--layout 3+3."
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
    found = conditions(out, fsync=plan.fsync == "on", tls=plan.tls, arguments=_arguments(plan))
    write_conditions(out, found)
    sync = found["fdatasync"]
    console.print(
        f"{found['cores']} cores, {found['memory_bytes'] / 2**30:.0f} GB, Python "
        f"{found['python']}, fsync {plan.fsync}, TLS {'on' if plan.tls else 'off'}, "
        f"one fdatasync {sync['median_us']:.0f} µs (p99 {sync['p99_us']:.0f})",
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
    parts = _parts(plan, layout)
    if not parts:
        return []
    bar = progress.add_task(LAYOUT_WORDS[layout.name], total=parts, live="starting")
    results: list[Result] = []

    def show(live: str) -> None:
        progress.update(bar, live=live)

    def done(result: Result) -> None:
        results.append(result)
        progress.advance(bar)

    if plan.loads() or plan.calls(layout):
        await _run_calls(layout, plan, out, run, show, done)
    if plan.session_loads(layout):
        await _run_sessions(layout, plan, out, run, show, done)
    return results


def _parts(plan: Plan, layout: Layout) -> int:
    """Loads on this layout."""
    return len(plan.loads()) + len(plan.calls(layout)) + len(plan.session_loads(layout))


Show = Callable[[str], None]
Take = Callable[[Result], None]


async def _run_calls(
    layout: Layout, plan: Plan, out: Path, run: str, show: Show, done: Take
) -> None:
    """Bare calls of the registries, puts and gets."""
    loads, calls = plan.loads(), plan.calls(layout)
    async with Cluster(
        layout, out, run, fsync=plan.fsync, tls=plan.tls, lease_ms=plan.lease_ms
    ) as cluster:
        if loads:
            await cluster.ask_all(layout.drivers, Lag(plan.lag_ms / 1000), object)
        for load in loads:
            done(await play(cluster, load, plan.lag_ms, plan.audit_clients_max, show))
        if calls:
            await cluster.ask_all(layout.drivers, Lag(0.0), object)
        for each in calls:
            done(await run_calls(cluster, each, show))
        await cluster.ask_all(list(cluster.workers), Flush(), object)
        states: dict[str, State] = await cluster.states()
        show(f"done, led by {leader_of(states) or 'nobody'}")


async def _run_sessions(
    layout: Layout, plan: Plan, out: Path, run: str, show: Show, done: Take
) -> None:
    """The performance test, on processes that nobody has used: no row of another load is there."""
    test = SessionTest(out, plan.session_lag_ms, plan.audit_clients_max, show)
    show("sessions: starting")
    async with Cluster(layout, out, run, fsync=plan.fsync, tls=plan.tls, sessions=True) as cluster:
        for load in plan.session_loads(layout):
            done(await play_sessions(cluster, load, test))
        show("done")


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
    _add_plan(parser.add_argument)
    _add_calls(parser.add_argument)
    _add_registry(parser.add_argument)
    return parser


def _add_plan(add: Callable[..., object]) -> None:
    """What is run, and under which conditions."""
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
        choices=("all", "registry", "sessions", *SESSION_SCENARIOS, *PUT_EVERY),
        dest="scenarios",
        help="may be repeated; registry: the three of the registry; sessions: the five of the "
        "performance test; all: these, puts and gets (default: all)",
    )
    add(
        "--registry",
        action="append",
        choices=(*REGISTRY_NAMES, *BARE, *SESSION_MODES),
        dest="registries",
        help="may be repeated; both: bare calls of lcr and legacy; sessions: opened by brokers, "
        "with the registry on, off and both (default: what the scenario says)",
    )
    add("--clients", type=positive_int, help="clients for each driver (default: 64; quick: 32)")
    add(
        "--seconds",
        type=positive,
        help="of each scenario (default: 20, with sessions 12; quick: 3)",
    )
    add("--fsync", choices=("on", "off"), default="on")
    add("--tls", action="store_true", help="mutual TLS between the nodes (default: plain streams)")
    add("--append", action="store_true", help="add to a log that is there already")
    add("--quick", action="store_true", help="short, for a first look; figures are not stable")


def _add_calls(add: Callable[..., object]) -> None:
    """Puts and gets."""
    add(
        "--put-seconds",
        type=positive,
        help="of each load of puts or gets (default: a third of --seconds)",
    )
    add(
        "--caller",
        action="append",
        choices=CALLERS,
        dest="callers",
        help="where callers of puts and gets sit; may be repeated (default: everywhere)",
    )
    add(
        "--in-flight",
        action="append",
        type=positive_int,
        metavar="N",
        help="puts or gets at once; may be repeated (default: 1 16 64 256)",
    )
    add(
        "--consistency",
        action="append",
        choices=CONSISTENCIES,
        dest="consistencies",
        help="of gets; may be repeated (default: all; lease in the leader, with --lease-ms)",
    )
    add(
        "--gets-max",
        type=positive_int,
        default=GETS_MAX,
        metavar="N",
        help="a load of gets ends early after so many: each is a row for Spark (default: 250000)",
    )
    add(
        "--lease-ms",
        type=positive_int,
        default=0,
        help="raft.lease_ms of the nodes; without it no lease reads are measured (default: 0)",
    )
    add("--value-bytes", type=positive_int, default=64, help="of a put (default: 64)")


def _add_registry(add: Callable[..., object]) -> None:
    """The scenarios of the registry."""
    add(
        "--lag-ms",
        type=not_negative,
        default=50.0,
        help="replication lag, injected into the drivers' nodes (default: 50)",
    )
    add(
        "--think-ms",
        type=not_negative,
        default=10.0,
        help="pause before a client of reconnect comes back (default: 10)",
    )
    add(
        "--rate",
        type=not_negative,
        default=0.0,
        metavar="PER_S",
        dest="rate_per_s",
        help="connects per second for each driver at most (default: no limit)",
    )
    add(
        "--audit-clients-max",
        type=positive_int,
        default=20_000,
        help="clients audited on every node, evenly chosen (default: 20000)",
    )
    add(
        "--session-lag-ms",
        type=not_negative,
        default=500.0,
        help="how late one replicant is in `lagging`; nobody lags in the other scenarios with "
        "sessions (default: 500)",
    )


def _plan(given: argparse.Namespace) -> Plan:
    quick: bool = given.quick
    seconds = given.seconds or (3.0 if quick else 20.0)
    names = given.scenarios or ["all"]
    registries = [
        registry
        for name in given.registries or REGISTRY_NAMES
        for registry in REGISTRY_NAMES.get(name, (name,))
    ]
    return Plan(
        layouts=tuple(dict.fromkeys(given.layouts or (("3", "3+3") if quick else LAYOUTS))),
        scenarios=_scenarios(names, bare=any(name in registries for name in BARE)),
        registries=tuple(name for name in BARE if name in registries),
        clients=given.clients or (32 if quick else 64),
        seconds=seconds,
        warmup_s=min(2.0, seconds / 4),
        put_seconds=given.put_seconds or seconds / 3,
        callers=tuple(dict.fromkeys(given.callers or CALLERS)),
        in_flight=tuple(sorted(set(given.in_flight or IN_FLIGHT))),
        consistencies=cast(
            tuple[Consistency, ...], tuple(dict.fromkeys(given.consistencies or CONSISTENCIES))
        ),
        lag_ms=given.lag_ms,
        think_ms=given.think_ms,
        rate_per_s=given.rate_per_s,
        value_bytes=given.value_bytes,
        audit_clients_max=given.audit_clients_max,
        fsync=cast(Literal["on", "off"], given.fsync),
        tls=given.tls,
        gets_max=given.gets_max,
        lease_ms=given.lease_ms,
        quick=quick,
        session_scenarios=_session_scenarios(names, quick=quick, asked=bool(given.registries)),
        session_registries=tuple(name for name in SESSION_MODES if name in registries),
        session_seconds=given.seconds or (3.0 if quick else 12.0),
        session_lag_ms=given.session_lag_ms,
    )


def _scenarios(names: Sequence[str], *, bare: bool) -> tuple[str, ...]:
    """Those without sessions; of the registry only if there are `bare` calls of one."""
    found: list[str] = []
    for name in names:
        if name in ("all", "registry"):
            found += REGISTRY_SCENARIOS
        elif name in REGISTRY_SCENARIOS or name in PUT_EVERY:
            found.append(name)
        found += ["puts", "gets"] if name == "all" else []
    return tuple(name for name in dict.fromkeys(found) if bare or name not in REGISTRY_SCENARIOS)


def _session_scenarios(names: Sequence[str], *, quick: bool, asked: bool) -> tuple[str, ...]:
    """Those with sessions. What bare calls can play, too, only if registries were `asked` for."""
    found: list[str] = []
    for name in names:
        if name == "all":
            found += QUICK_SESSION_SCENARIOS if quick else SESSION_SCENARIOS
        elif name == "sessions":
            found += SESSION_SCENARIOS
        elif name == "registry" and asked:
            found += REGISTRY_SCENARIOS
        elif name in SESSION_SCENARIOS and (asked or name not in REGISTRY_SCENARIOS):
            found.append(name)
    return tuple(dict.fromkeys(found))


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
        "registry spreads to them. During puts and gets there is none. With sessions one replicant "
        "lags, in one scenario.",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

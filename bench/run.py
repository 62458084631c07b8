"""`python -m bench run`: clusters of real processes, the scenarios, and their log.

For each layout: start its processes, play the three scenarios with bare calls of the registry (lcr)
and of the old one (legacy), let the cluster come to rest and audit every node, then measure puts
and gets by the place of their callers. On a layout with replicants follows the seed's performance
test, on processes of its own: sessions that brokers open with the registry on, off and both, also
while a replicant lags and while the leader is killed (`bench.performance`).

All rows go to `DIR/log`, what is known of a load beside them to `DIR/loads`, `DIR/call-loads`,
`DIR/limbo-loads`, `DIR/txqueue-loads` and `DIR/subscription-loads`, the conditions to
`DIR/conditions.json`. What this prints is a rough look for whoever waits; the figures come from
`python -m bench analyse DIR`.

    python -m bench run --layout 3+3 --scenario sessions --out DIR    # the performance test alone
    python -m bench run --layout 3 --layout 3+3 --scenario calls --out DIR
    python -m bench run --layout 3 --layout 3+3 --scenario limbo --out DIR
    python -m bench run --layout 3 --layout 3+3 --scenario txqueue --out DIR
    python -m bench run --layout 1 --layout 3 --scenario subscriptions --out DIR

The last four are cluster calls, on processes of their own (`bench.cluster_calls`), once with the
cores and once, where there are replicants, with all nodes executing them; transactions of the
limbo, on processes of their own, too (`bench.limbo`), with every quorum that the layout has;
transactions of the queues (`bench.txqueue`); and subscriptions in two regions, each a cluster of
that layout (`bench.subscriptions`). They are not part of a run of everything.
"""

from __future__ import annotations

import asyncio
import datetime
import secrets
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.cluster_call_play import (
    ClusterCallTest,
    begin,
    collect_executions,
    play_cluster_calls,
)
from bench.conditions import conditions, write_conditions
from bench.control import Flush, Lag, State
from bench.coordinator import Result, leader_of, play, run_calls
from bench.layouts import Cluster, Layout, WorkerFailed
from bench.limbo_play import LimboTest, play_limbo
from bench.live import quantile_us
from bench.performance import SessionTest, play_sessions
from bench.plan import Plan
from bench.run_options import parser, plan_of
from bench.schema import CLUSTER_CALL_PARTICIPANTS, LAYOUT_WORDS, RowWriter
from bench.subscriptions_play import Regions, SubscriptionsTest, play_subscriptions, warm_up
from bench.txqueue_play import TxqueueTest, play_txqueue

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """The command. Exit code 1 when a worker failed, 2 for bad arguments, 130 after Ctrl-C."""
    given = parser().parse_args(arguments)
    plan, out = plan_of(given), Path(given.out)
    console = Console(stderr=True)
    if not given.append and any((out / "log").glob("*.parquet")):
        console.print(
            f"[red]{out} already holds a log.[/red] Choose another --out, remove it, or add to it "
            f"with --append."
        )
        return 2
    if not any(_parts(plan, Layout.parse(name)) for name in plan.layouts):
        console.print(
            "[red]Nothing to run.[/red] Sessions, and cluster calls while a replicant lags, are "
            "measured on a layout with replicants: add --layout 3+3."
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
    for participants in CLUSTER_CALL_PARTICIPANTS:
        if plan.cluster_calls(layout, participants):
            await _run_cluster_calls(layout, plan, participants, out, run, show, done)
    if plan.limbo_loads(layout):
        await _run_limbo(layout, plan, out, run, show, done)
    if plan.txqueue_loads():
        await _run_txqueue(layout, plan, out, run, show, done)
    if plan.subscription_loads():
        await _run_subscriptions(layout, plan, out, run, show, done)
    return results


def _parts(plan: Plan, layout: Layout) -> int:
    """Loads on this layout."""
    called = sum(len(plan.cluster_calls(layout, each)) for each in CLUSTER_CALL_PARTICIPANTS)
    own = len(plan.session_loads(layout)) + len(plan.limbo_loads(layout))
    own += len(plan.txqueue_loads()) + len(plan.subscription_loads())
    return len(plan.loads()) + len(plan.calls(layout)) + own + called


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


async def _run_cluster_calls(
    layout: Layout, plan: Plan, participants: str, out: Path, run: str, show: Show, done: Take
) -> None:
    """Cluster calls, executed by the cores or by all nodes. What ran is logged in any case."""
    test = ClusterCallTest(out, plan.session_lag_ms, show)
    show("cluster calls: starting")
    cluster = Cluster(layout, out, run, fsync=plan.fsync, tls=plan.tls, cluster_calls=True)
    try:
        async with cluster:
            await begin(cluster, participants)
            for each in plan.cluster_calls(layout, participants):
                done(await play_cluster_calls(cluster, each, test))
    finally:
        collect_executions(cluster, test)


async def _run_limbo(
    layout: Layout, plan: Plan, out: Path, run: str, show: Show, done: Take
) -> None:
    """Transactions of the limbo; the quorum is a setting, so one cluster is enough."""
    test = LimboTest(out, show)
    show("limbo: starting")
    async with Cluster(layout, out, run, fsync=plan.fsync, tls=plan.tls, limbo=True) as cluster:
        for each in plan.limbo_loads(layout):
            done(await play_limbo(cluster, each, test))


async def _run_txqueue(
    layout: Layout, plan: Plan, out: Path, run: str, show: Show, done: Take
) -> None:
    """Transactions of the queues; each load has queues of its own, so one cluster is enough."""
    test = TxqueueTest(out, show)
    show("txqueue: starting")
    async with Cluster(layout, out, run, fsync=plan.fsync, tls=plan.tls, txqueue=True) as cluster:
        for each in plan.txqueue_loads():
            done(await play_txqueue(cluster, each, test))


async def _run_subscriptions(
    layout: Layout, plan: Plan, out: Path, run: str, show: Show, done: Take
) -> None:
    """Two regions, each of this layout; each load has a topic of its own."""
    test = SubscriptionsTest(out, show)
    show("subscriptions: starting")
    with RowWriter(out, run, f"regions-{layout.name}") as writer:
        async with Regions(layout, out, run, plan.fsync) as regions:
            await warm_up(regions, plan.value_bytes, test)
            for each in plan.subscription_loads():
                done(await play_subscriptions(regions, each, test, writer))


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


def _arguments(plan: Plan) -> dict[str, object]:
    """The arguments, and where they put drivers and lag, for the conditions."""
    places = {
        layout.name: "in the replicants" if layout.replicants else "in the cores"
        for layout in map(Layout.parse, plan.layouts)
    }
    return {
        **asdict(plan),
        "drivers": "; ".join(f"{name}: {place}" for name, place in places.items()),
        "lag": "replicants apply later what the log and the legacy registry bring them, cores do "
        "not: in layouts without replicants neither registry lags. During puts and gets there is "
        "none. With sessions one replicant lags, in one scenario.",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

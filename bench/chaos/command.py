"""The command line of `tools/chaos`.

Exit codes: 0 everything held and every kind of fault was proved to have struck; 1 something did
not hold; 2 the run could not be made; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bench.chaos.cluster import ChaosCluster, ChaosError, Layout
from bench.chaos.faults import KINDS, World
from bench.chaos.load import Load
from bench.chaos.report import Report, by_kind, show
from bench.chaos.rounds import Rounds
from bench.chaos.soak import Event, Soak
from bench.chaos.verify import Histories, check_histories, digests, read_everything
from raftkv.errors import RaftkvError

__all__ = ["Plan", "main", "run"]

CLIENTS = 12
UP_S = 60.0
ROUND_CLIENTS = 16


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do. `rounds` None: faults for `seconds`."""

    out: Path
    layout: Layout
    kinds: tuple[str, ...]
    seed: int
    seconds: float
    rounds: int | None = None
    hold_s: float = 3.0
    rate: float = 300.0
    slice_s: float = 20.0
    throughput_min: float = 20.0
    fsync: Literal["on", "off"] = "on"
    tls: bool = False


def run(plan: Plan, console: Console) -> Report:
    """The whole run: the cluster, the faults, the checks. Raises ChaosError."""
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            driven = runner.run(_drive(plan, progress))
        histories = Histories(0, 0, (), ())
        if plan.rounds is None:
            bar = progress.add_task("checking histories", total=None)
            histories = check_histories(
                plan.out, lambda done, total: progress.update(bar, completed=done, total=total)
            )
    return _report(plan, driven, histories)


class _Driven(msgspec.Struct, kw_only=True):
    events: list[Event]
    findings: list[str]
    elapsed_s: float
    outcomes: Counter[str]
    per_second: Counter[int]
    terms: int
    world: World
    ledger_keys: int


async def _drive(plan: Plan, progress: Progress) -> _Driven:
    rng = random.Random(plan.seed)
    bar = progress.add_task("starting", total=None)
    async with ChaosCluster(
        plan.out / "nodes", plan.layout, fsync=plan.fsync, tls=plan.tls
    ) as cluster:
        await cluster.start(cluster.names)
        await cluster.writable(cluster.names, UP_S)
        load = Load(
            cluster,
            rng,
            clients=CLIENTS if plan.rounds is None else ROUND_CLIENTS,
            rate=plan.rate,
            slice_s=plan.slice_s,
            registers=plan.rounds is None,
            out=plan.out,
        )
        world = World(cluster, rng)
        load.start()
        told = _teller(plan, progress, load)
        driver: Soak | Rounds
        if plan.rounds is None:
            driver = Soak(world, load, plan.kinds, hold_s=plan.hold_s, told=told)
            progress.update(bar, description="faults", total=plan.seconds)
            ticking = asyncio.create_task(_tick(progress, bar, load.elapsed_s))
            await driver.run(plan.seconds)
        else:
            driver = Rounds(world, load, plan.kinds, told)
            progress.update(bar, description="rounds", total=plan.rounds)
            events = driver.events
            ticking = asyncio.create_task(_tick(progress, bar, lambda: len(events)))
            await driver.run(plan.rounds)
        ticking.cancel()
        elapsed_s = load.elapsed_s()
        await load.stop()
        findings = list(driver.findings)
        findings += await _last_look(plan, cluster, load, progress)
        terms = max((one["term"] for one in (await cluster.statuses()).values()), default=0)
        return _Driven(
            events=driver.events,
            findings=findings,
            elapsed_s=elapsed_s,
            outcomes=load.outcomes,
            per_second=load.per_second,
            terms=terms,
            world=world,
            ledger_keys=sum(len(one.acknowledged) for one in load.slices),
        )


async def _last_look(
    plan: Plan, cluster: ChaosCluster, load: Load, progress: Progress
) -> list[str]:
    """Everything has healed: what must hold then."""
    bar = progress.add_task("reading everything back", total=len(load.slices))
    try:
        await cluster.writable(cluster.names, UP_S)
        findings = await digests(cluster)
        findings += await read_everything(cluster, load, plan.out, lambda: progress.advance(bar))
    except (ChaosError, RaftkvError) as error:
        return [f"the cluster has not come back: {error}"]
    findings += [
        f"{one.name} ended by itself with {one.code}: {one.last_words}"
        for one in cluster.unexpected
    ]
    return list(dict.fromkeys(findings))


def _teller(plan: Plan, progress: Progress, load: Load) -> Callable[[Event], None]:
    path = plan.out / "faults.jsonl"

    def tell(event: Event) -> None:
        with open(path, "ab") as file:
            file.write(msgspec.json.encode(event) + b"\n")
        if plan.rounds is not None and len(load.slices) % 50:
            return
        recovered = "no recovery" if event.recovery_s is None else f"{event.recovery_s:.2f} s"
        progress.console.print(
            f"{event.began_s:7.1f} s  {event.kind:<9} {event.target}: "
            f"{event.proof or '[red]not proved[/red]'}; back after {recovered}; "
            f"{load.acknowledged:,} acknowledged",
            soft_wrap=True,
            highlight=False,
        )

    return tell


async def _tick(progress: Progress, bar: TaskID, done: Callable[[], float]) -> None:
    while True:
        progress.update(bar, completed=done())
        await asyncio.sleep(0.5)


def _report(plan: Plan, driven: _Driven, histories: Histories) -> Report:
    findings = [*driven.findings, *histories.findings]
    findings += [f"no verdict on {one}" for one in histories.undecided]
    kinds = by_kind(plan.kinds, driven.events)
    findings += [f"the fault {one.kind} never struck" for one in kinds if not one.struck]
    per_second = driven.outcomes["ok"] / max(driven.elapsed_s, 1e-9)
    if per_second < plan.throughput_min:
        findings.append(
            f"{per_second:.1f} operations a second were acknowledged, at least "
            f"{plan.throughput_min:g} must be"
        )
    seconds = [driven.per_second[second] for second in range(int(driven.elapsed_s))]
    return Report(
        layout=str(plan.layout),
        seed=plan.seed,
        elapsed_s=round(driven.elapsed_s, 1),
        kinds=kinds,
        acknowledged=driven.outcomes["ok"],
        unknown=driven.outcomes["unknown"],
        not_applied=driven.outcomes["not_applied"],
        per_second=round(per_second, 1),
        slowest_second=min(seconds, default=0),
        longest_silence_s=_longest_silence(seconds),
        terms=driven.terms,
        power_bytes_lost=driven.world.loss.bytes,
        power_changes_lost=driven.world.loss.changes,
        ends_asked_for=len([one for one in driven.world.cluster.exits if one.expected]),
        keys_checked=histories.keys,
        operations_checked=histories.operations,
        ledger_keys=driven.ledger_keys,
        findings=findings,
    )


def _longest_silence(seconds: Sequence[int]) -> int:
    longest = current = 0
    for count in seconds:
        current = 0 if count else current + 1
        longest = max(longest, current)
    return longest


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.replay_check is not None:
        from bench.check import main as check

        return check([str(given.replay_check)])
    console = Console(stderr=True)
    out = given.out or Path(tempfile.mkdtemp(prefix="raftkv-chaos-"))
    if given.out is not None and given.out.exists() and any(given.out.iterdir()):
        parser.error(f"--out {given.out} is not empty: a history is never overwritten")
    out.mkdir(parents=True, exist_ok=True)
    rounds = given.rounds
    plan = Plan(
        out=out,
        layout=given.layout or Layout.parse("3+3" if rounds is None else "3"),
        kinds=given.faults or (tuple(KINDS) if rounds is None else ("kill", "power")),
        seed=int(time.time()) if given.seed is None else given.seed,
        seconds=given.minutes * 60,
        rounds=rounds,
        hold_s=given.hold,
        rate=given.rate,
        throughput_min=given.throughput_min,
        fsync=given.fsync,
        tls=given.tls,
    )
    try:
        report = run(plan, console)
    except ChaosError as error:
        print(f"tools/chaos: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        show(report, console)
    _clear_up(given.out is not None, out, report, console)
    print(report.summary(), file=sys.stderr if given.json else sys.stdout)
    return 0 if report.passed else 1


def _clear_up(kept: bool, out: Path, report: Report, console: Console) -> None:
    if kept or not report.passed:
        console.print(f"histories, faults and the nodes' logs: {out}", highlight=False)
    else:
        shutil.rmtree(out, ignore_errors=True)


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys(text.split(",")))
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown fault {', '.join(unknown)}: choose from {','.join(KINDS)}"
        )
    return kinds


def _layout(text: str) -> Layout:
    try:
        return Layout.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no layout: 3, 3+3, 5+2") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/chaos",
        description="Run a cluster of real processes under faults and clients, and check every "
        "promise. Exits with 0 only if all held and every fault did happen; the last line is the "
        "summary.",
        epilog="Examples: tools/chaos --minutes 10 --out run1; "
        "tools/chaos --rounds 1000 --faults kill,power; tools/chaos --replay-check run1",
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of faults (default 5)")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="instead: N quick rounds of strike, start, check"
    )
    parser.add_argument(
        "--faults", type=_kinds, metavar="LIST", help=f"which: {','.join(KINDS)} (default: all)"
    )
    parser.add_argument("--seed", type=int, help="draws the faults (default: the time)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep histories and logs here")
    parser.add_argument(
        "--layout", type=_layout, help="cores+replicants (default 3+3, for rounds 3)"
    )
    parser.add_argument(
        "--hold", type=float, default=3.0, metavar="S", help="about how long a fault lasts"
    )
    parser.add_argument("--rate", type=float, default=300.0, help="operations a second (300)")
    parser.add_argument(
        "--throughput-min",
        type=float,
        default=20.0,
        metavar="N",
        help="acknowledged operations a second that the run must reach on average (20)",
    )
    parser.add_argument(
        "--fsync",
        choices=("on", "off"),
        default="on",
        help="off: the nodes forget to sync, and power cuts must be found to lose writes",
    )
    parser.add_argument("--tls", action="store_true", help="with certificates between the nodes")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--replay-check",
        type=Path,
        metavar="DIR",
        help="check the histories of an earlier run again, on Spark, and do nothing else",
    )
    return parser

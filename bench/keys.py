"""`python -m bench keys --keys 1000000`: what a large keyspace costs.

Two clusters of three cores: one with a thousand keys, one with all of them. Puts and gets, so many
at once as `--in-flight` says (one number or several), are measured on both in turns, for a second
each, so that the ratio of the two does not depend on what else the machine does. The callers are
inside the leader, and then at its door: connections of `wrk`, as in `bench peers etcd`. Which keys
are chosen says `--order` (bench/orders.py): `uniform` is the worst case, and the only one at the
door. wrk is taken as installed, or fetched from Debian; where it cannot be had, the door is left
out.

On the large one are also measured: how long loading took (32 puts a transaction), the leader's
resident memory for each key and for each watcher (the memory of the whole process, history and log
included, divided), a snapshot, and how long a core takes from its start until it is ready again:
one of three, and all three at once.

A snapshot takes longer than a second under load. So the turn of a cluster goes on until none of its
cores writes one: each pays for its own, in its own time. Before the first turn both get puts until
their histories are full, which is how a cluster is found for the rest of its life.

Exit codes: 0 measured; 1 an aim was missed and `--fail` given; 2 a node or wrk failed, or bad
arguments; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench import wrk
from bench.arguments import not_negative, positive, positive_int
from bench.conditions import conditions
from bench.embedded_node import Answer, Gets, Load, Puts, Snapshot, Watchers, Where
from bench.embedding import Cores, Member
from bench.keys_report import (
    FEW_KEYS,
    PLACES,
    Level,
    Report,
    Round,
    Through,
    Turn,
    level_of,
    show,
)
from bench.layouts import WorkerFailed
from bench.orders import ORDERS
from bench.peers import debian
from raftkv.errors import RaftkvError

__all__ = ["main", "measure"]

# Puts before the first turn.
WARM_IN_FLIGHT = 64
# The seeds of wrk's random numbers are drawn below it.
SEEDS: Final = 2**31
# A turn ends by then, though a core may still write a snapshot; it is waited for without load.
TURN_MAX_S = 60.0


class _Done(msgspec.Struct, frozen=True):
    """What came of one load."""

    done: int
    seconds: float
    p99_ms: float
    # Cores that the callers used, if they are a process of their own.
    client_cpu: float = 0.0


# Puts a load on the leader, whose door is the second argument.
_Play = Callable[[Member, str], Awaitable[_Done]]


async def measure(
    given: argparse.Namespace,
    program: debian.Program | None,
    place: Path,
    step: Callable[[str], None],
) -> Report:
    """All of it. `program`: wrk, for callers at the door. Raises `WorkerFailed`, `WrkFailed`."""
    found = conditions(place, fsync=True, arguments=vars(given))
    for name in ("few", "many"):
        (place / name).mkdir()
    async with (
        Cores(place / "few", layout=given.layout) as few,
        Cores(place / "many", layout=given.layout) as many,
    ):
        run = _Run(given, program, few, many, step)
        memory = await run.load()
        watchers = await run.watchers()
        await run.warm()
        levels = [
            await run.level(in_flight, through)
            for through in given.through
            for in_flight in given.in_flight
        ]
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


class _Run:
    def __init__(
        self,
        given: argparse.Namespace,
        program: debian.Program | None,
        few: Cores,
        many: Cores,
        step: Callable[[str], None],
    ) -> None:
        self._given = given
        self._program = program
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

    async def level(self, in_flight: int, through: Through) -> Level:
        """Puts and gets on both, in turns; the order is turned round in every second round."""
        given = self._given
        puts: list[Round] = []
        gets: list[Round] = []
        for number in range(given.rounds):
            for name, rounds in (("puts", puts), ("gets", gets)):
                turns: dict[bool, Turn] = {}
                order = (self._few, self._many) if number % 2 == 0 else (self._many, self._few)
                for cores in order:
                    keys = FEW_KEYS if cores is self._few else given.keys
                    self._step(
                        f"{name} on {keys:,} keys, {in_flight} at once {PLACES[through]}, "
                        f"round {number + 1} of {given.rounds}"
                    )
                    play = (
                        self._inside(name, keys, in_flight)
                        if through == "inside"
                        else self._at_the_door(name, keys, in_flight)
                    )
                    turns[cores is self._few] = await _turn(cores, play)
                rounds.append(Round(turns[True], turns[False]))
        return level_of(in_flight, through, puts, gets)

    def _inside(self, name: str, keys: int, in_flight: int) -> _Play:
        given = self._given
        ask = (
            Puts(keys, given.value_bytes, given.seconds, in_flight, given.order)
            if name == "puts"
            else Gets(keys, given.seconds, in_flight, order=given.order)
        )

        async def play(leader: Member, _: str) -> _Done:
            answer = await leader.ask(ask)
            return _Done(answer.done, answer.seconds, answer.p99_ms)

        return play

    def _at_the_door(self, name: str, keys: int, in_flight: int) -> _Play:
        given, program = self._given, self._program
        assert program is not None, "wrk was not looked for"
        load = wrk.Load(
            word="put" if name == "puts" else "get",
            connections=in_flight,
            seconds=max(1, round(given.seconds)),
            keys=keys,
            value_bytes=given.value_bytes,
        )

        async def play(_: Member, endpoint: str) -> _Done:
            asked = msgspec.structs.replace(load, seed=random.randrange(SEEDS))
            run = await asyncio.to_thread(wrk.run, program, endpoint, asked)
            if run.refused or run.failed:
                raise WorkerFailed(f"{run.refused} requests of wrk were refused, {run.failed} lost")
            done = round(run.per_s * load.seconds)
            return _Done(done, load.seconds, run.p99_ms, run.client_cpu)

        return play

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


async def _turn(cores: Cores, play: _Play) -> Turn:
    """`play`, and again as long as a core writes a snapshot."""
    leader, before = await cores.leader()
    began_cpu_s = await cores.cpu_s()
    loads: list[_Done] = []
    until_s = time.monotonic() + TURN_MAX_S
    while not loads or (await cores.snapshotting() and time.monotonic() < until_s):
        loads.append(await play(leader, before.endpoint))
    after = await leader.ask(Where())
    await cores.settled()
    return Turn(
        done=sum(each.done for each in loads),
        seconds=sum(each.seconds for each in loads),
        p99_ms=max(each.p99_ms for each in loads),
        snapshots=after.snapshots - before.snapshots,
        cpu_s=await cores.cpu_s() - began_cpu_s,
        client_cpu=max(each.client_cpu for each in loads),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    given, program = _given(argv)
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

            report = asyncio.run(measure(given, program, Path(place), step))
    except (WorkerFailed, wrk.WrkFailed, RaftkvError, OSError) as error:
        print(f"bench keys: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if given.json:
        document = {**msgspec.to_builtins(report), "missed": report.missed}
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    else:
        show(console, report)
    return 1 if given.fail and report.missed else 0


def _given(
    argv: Sequence[str] | None,
) -> tuple[argparse.Namespace, debian.Program | None]:
    """The arguments, and wrk if it is needed.

    Where there is none, the door is left out, and that is said; but not if it was asked for.
    """
    parser = _parser()
    given = parser.parse_args(argv)
    asked = given.through is not None
    if not asked:
        given.through = list(PLACES) if given.order == "uniform" else ["inside"]
    given.through = list(dict.fromkeys(given.through))
    if "door" not in given.through:
        return given, None
    if given.order != "uniform":
        parser.error(f"at the door keys are chosen in the order uniform, not {given.order}")
    try:
        return given, debian.find("wrk")
    except debian.Missing as missing:
        if asked:
            parser.error(f"nobody can call at the door: {missing}")
        print(f"bench keys: the callers at the door are left out: {missing}", file=sys.stderr)
    given.through = ["inside"]
    return given, None


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
        "--through", choices=tuple(PLACES), nargs="+",
        help="where the callers are: inside the leader, at its door (by wrk, which is fetched from "
        "Debian if it is not installed), or both, one after the other (default: both)",
    )  # fmt: skip
    parser.add_argument(
        "--order", choices=ORDERS, default="uniform",
        help="which keys are put and got: each as likely as any other, a few of them most of the "
        "time, or one after the other (default: uniform)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=positive, default=1.0,
        help="of each turn; at the door whole ones (default: 1)",
    )  # fmt: skip
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

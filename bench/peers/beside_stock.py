"""Stock PySyncObj and raftkv in turns: writes by callers inside the leader.

Both are embedded, so there is no network client between the callers and the log: tasks in raftkv,
callbacks in PySyncObj, each with one write outstanding, on random keys of a thousand.

**What a confirmed write is worth is not the same.** raftkv answers when a majority has it on
disk. PySyncObj answers when a majority has it in memory; with a journal, when it has been written
to a memory map, which survives the process and not the machine. It has no option that flushes the
journal; "journal flushed" does so from outside, for every record, which is the only place there is.
What else is not the same is in docs/internals/divergence.md.

Each way of PySyncObj runs by itself, started for its part of a round: members that tick every
millisecond use the processor when they have nothing to do, too. raftkv's cores are idle meanwhile.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.arguments import positive_int
from bench.embedded_node import Puts
from bench.embedding import Cores
from bench.peers.children import cpu_seconds
from bench.peers.figures import Comparison, Sample, lines
from bench.peers.peer import Peer, Step, numbers
from bench.peers.stock import Stock, version
from bench.peers.stock_node import WAYS, Sets

__all__ = ["STOCK", "Plan", "measure"]

PEER: Final = "pysyncobj"
OURS: Final = "put"
KEYS: Final = 1000
WARM_UP_S: Final = 1.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure: `ways` of WAYS, and raftkv's puts beside them."""

    ways: Sequence[str] = tuple(WAYS)
    in_flight: Sequence[int] = (1, 16, 64, 256)
    seconds: float = 5
    rounds: int = 3
    value_bytes: int = 100

    @property
    def steps(self) -> int:
        """How many measurements there will be, and one to warm up."""
        return 1 + self.rounds * len(self.in_flight) * (len(self.ways) + 1)


async def measure(plan: Plan, directory: Path, cores: Cores, step: Step) -> list[Sample]:
    """Run the plan. Raises `PeerFailed`, `WorkerFailed`."""
    turns = _Turns(plan, directory, cores, step)
    await turns.warm_up()
    for number in range(plan.rounds):
        await turns.round(number)
    return turns.samples


class _Turns:
    def __init__(self, plan: Plan, directory: Path, cores: Cores, step: Step) -> None:
        self.samples: list[Sample] = []
        self._plan = plan
        self._directory = directory
        self._cores = cores
        self._step = step

    async def warm_up(self) -> None:
        """What is found is thrown away."""
        self._step("warming up raftkv")
        leader, _ = await self._cores.leader()
        await leader.ask(Puts(KEYS, self._plan.value_bytes, WARM_UP_S, max(self._plan.in_flight)))

    async def round(self, number: int) -> None:
        """raftkv stands in the middle of the ways, and these are turned round each time."""
        ways = list(self._plan.ways) if number % 2 == 0 else list(self._plan.ways)[::-1]
        middle = len(ways) // 2
        for way in ways[:middle]:
            await self._theirs(way, number)
        await self._ours(number)
        for way in ways[middle:]:
            await self._theirs(way, number)

    async def _theirs(self, way: str, number: int) -> None:
        plan = self._plan
        place = self._directory / f"{list(WAYS).index(way)}-{number}"
        place.mkdir()
        async with Stock(place, way) as stock:
            leader = await stock.leader()
            await leader.ask(Sets(KEYS, plan.value_bytes, WARM_UP_S, max(plan.in_flight)))
            for in_flight in plan.in_flight:
                self._step(f"{way}, {in_flight} at once, {PEER}")
                leader = await stock.leader()
                before_s = cpu_seconds(stock.pids)
                told = await leader.ask(Sets(KEYS, plan.value_bytes, plan.seconds, in_flight))
                used_s = cpu_seconds(stock.pids) - before_s
                self._add(
                    way, in_flight, PEER, number, told.done / told.seconds, used_s / told.seconds,
                    p50_ms=told.p50_ms, p99_ms=told.p99_ms, failed=told.failed,
                )  # fmt: skip

    async def _ours(self, number: int) -> None:
        plan = self._plan
        for in_flight in plan.in_flight:
            self._step(f"{OURS}, {in_flight} at once, raftkv")
            leader, _ = await self._cores.leader()
            before_s = cpu_seconds(self._cores.pids)
            told = await leader.ask(Puts(KEYS, plan.value_bytes, plan.seconds, in_flight))
            used_s = cpu_seconds(self._cores.pids) - before_s
            await self._cores.settled()
            self._add(
                OURS, in_flight, "raftkv", number, told.done / told.seconds, used_s / told.seconds,
                p50_ms=told.p50_ms, p99_ms=told.p99_ms,
            )  # fmt: skip

    def _add(
        self, load: str, in_flight: int, side: str, number: int, per_s: float, cpu: float,
        **more: Any,
    ) -> None:  # fmt: skip
        self.samples.append(
            Sample(
                load=load, in_flight=in_flight, side=side, round=number, per_s=round(per_s, 1),
                server_cpu=round(cpu, 2), **more,
            )
        )  # fmt: skip


def _plan(given: argparse.Namespace) -> Plan:
    return Plan(
        ways=given.ways or tuple(WAYS),
        in_flight=given.in_flight,
        seconds=given.seconds,
        rounds=given.rounds,
        value_bytes=given.value_bytes,
    )


async def _compare(
    given: argparse.Namespace, place: Path, step: Step, conditions: dict[str, Any]
) -> Comparison:
    """Start both, run the plan, end both."""
    for name in (PEER, "raftkv"):
        (place / name).mkdir()
    plan = _plan(given)
    async with Cores(place / "raftkv") as cores:
        samples = await measure(plan, place / PEER, cores, step)
    return Comparison(
        peer=PEER,
        peer_version=version(),
        conditions=conditions,
        lines=lines(samples, PEER, {OURS: tuple(plan.ways)}),
        samples=samples,
    )


def _notes(found: Comparison) -> list[str]:
    ways = dict.fromkeys(line.beside for line in found.lines)
    kept = "; ".join(f"{way}: {WAYS[way].kept_in}" for way in ways)
    note = (
        "A confirmed put of raftkv is on disk on two of three. Where a confirmed write of "
        f"pysyncobj is, on two of three: {kept}."
    )
    return [note]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--way", action="append", choices=tuple(WAYS), dest="ways", metavar="WAY",
        help="of pysyncobj; may be repeated (default: all): " + "; ".join(WAYS),
    )  # fmt: skip
    parser.add_argument(
        "--in-flight", type=numbers, default=[1, 16, 64, 256], metavar="N,N",
        help="callers at once (default: 1,16,64,256)",
    )  # fmt: skip
    parser.add_argument("--value-bytes", type=positive_int, default=100, help="default: 100")


STOCK: Final = Peer(
    name=PEER,
    summary="Stock PySyncObj, in memory and with its journal: writes by callers in the leader",
    add_arguments=_add_arguments,
    steps=lambda given: _plan(given).steps,
    compare=_compare,
    notes=_notes,
)

"""Mnesia and raftkv in turns: read, check and write under a key, by callers inside the nodes.

Both clusters have three nodes and run all the time; one is idle while the other is measured, and
the order is turned round in every second round. Mnesia keeps its tables in memory; raftkv answers
when a majority has the write on disk. Callers are processes (Mnesia) or tasks (raftkv) in a closed
loop, all inside one node, which in raftkv is the leader, or spread over the three.

**What stands beside what.** A connect of raftkv's registry stands beside the two ways of a registry
on Mnesia: a transaction that empties a bag and puts the new row, and a lock for the whole cluster
around dirty operations. A transaction of raftkv's keyspace stands beside a transaction of Mnesia's.

**One hot key.** Mnesia's callers queue for a lock, so whoever gets it writes: every answer is a
win. In raftkv that is so if the check is made in the log ("in the log"). A connect, and a swap that
names what a local read showed, are told instead that they came too late: of those who are
answered together one has won. Both figures are shown, answers and wins; only wins are held against
the aim. (For one client id that is meant: a session that moves on with each of a thousand
connects a second serves nobody.) A connect with a clean start, which continues no session, is
decided in the log whoever was there, and every answer is a win. It stands beside the bag, which
continues nothing either: there, too, the last one to come has the client.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from bench.embedding import Cores
from bench.peers import callers, mnesia
from bench.peers.callers import ReadCheckWrite, Took
from bench.peers.children import cpu_seconds
from bench.peers.figures import Aim, Comparison, Sample, lines
from bench.peers.mnesia import Asked, Mnesia
from bench.peers.peer import Peer, Step, numbers

__all__ = ["AIMS", "BESIDE", "LOADS", "MNESIA", "Place", "Plan", "measure"]

PEER: Final = "mnesia"
NODES: Final = 3
WARM_UP_S: Final = 1.0

Place = Literal["one node", "three nodes"]
PLACES: Final[tuple[Place, ...]] = ("one node", "three nodes")

OWN: Final = Aim(times=1.5)
HOT: Final = Aim(times=10.0, p99_ms=20.0)


class Ours(msgspec.Struct, frozen=True):
    """A load of raftkv's, and the loads of Mnesia's that it stands beside."""

    way: callers.Way
    hot: bool
    beside: tuple[str, ...]
    aim: Aim | None = None


#: Name -> what Mnesia is asked for.
THEIRS: Final[dict[str, tuple[mnesia.Way, mnesia.Keys]]] = {
    "bag, own keys": ("bag", "own"),
    "bag, hot key": ("bag", "hot"),
    "lock, own keys": ("lock", "own"),
    "lock, hot key": ("lock", "hot"),
    "transaction, own keys": ("transaction", "own"),
    "transaction, many keys": ("transaction", "many"),
    "transaction, hot key": ("transaction", "hot"),
}
LOADS: Final[dict[str, Ours]] = {
    "connect, own ids": Ours("connect", False, ("bag, own keys", "lock, own keys"), OWN),
    "connect, one id": Ours("connect", True, ("bag, hot key", "lock, hot key"), HOT),
    "connect, clean start, one id": Ours("clean", True, ("bag, hot key",), HOT),
    "swap, own keys": Ours(
        "swap", False, ("transaction, own keys", "transaction, many keys"), OWN
    ),
    "swap, hot key": Ours("swap", True, ("transaction, hot key",)),
    "in the log, hot key": Ours("in log", True, ("transaction, hot key",), HOT),
}  # fmt: skip

#: The loads in which an answer can be a no: they have two figures.
CONTESTED: Final = tuple(
    name for name, load in LOADS.items() if load.hot and load.way in ("connect", "swap")
)  # fmt: skip


def _figure(load: str, place: Place, answered: bool = False) -> str:
    """What a figure is called: the load, where its callers were, what was counted of it."""
    counted = (": answers" if answered else ": wins") if load in CONTESTED else ""
    return f"{load}, {place}{counted}"


#: raftkv's figure -> Mnesia's figures beside it.
BESIDE: Final[Mapping[str, tuple[str, ...]]] = {
    _figure(name, place, answered): tuple(_figure(other, place) for other in load.beside)
    for name, load in LOADS.items()
    for place in PLACES
    for answered in ((False, True) if name in CONTESTED else (False,))
}
#: raftkv's figure -> what it is to reach.
AIMS: Final[Mapping[str, Aim]] = {
    _figure(name, place): load.aim
    for name, load in LOADS.items()
    for place in PLACES
    if load.aim is not None
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure: `loads` of LOADS, with what stands beside them."""

    loads: Sequence[str] = tuple(LOADS)
    in_flight: Sequence[int] = (64, 256)
    places: Sequence[Place] = PLACES
    seconds: float = 5
    rounds: int = 3

    @property
    def theirs(self) -> list[str]:
        """Mnesia's part, each once."""
        return list(dict.fromkeys(other for name in self.loads for other in LOADS[name].beside))

    @property
    def steps(self) -> int:
        """How many measurements there will be, and the two to warm up."""
        each = len(self.theirs) + len(self.loads)
        return 2 + self.rounds * len(self.in_flight) * len(self.places) * each


async def measure(plan: Plan, peer: Mnesia, cores: Cores, step: Step) -> list[Sample]:
    """Run the plan. Raises `MnesiaFailed`, `WorkerFailed`."""
    turns = _Turns(plan, peer, cores, step)
    await turns.warm_up()
    for number in range(plan.rounds):
        for place in plan.places:
            await turns.round(number, place)
    return turns.samples


class _Turns:
    def __init__(self, plan: Plan, peer: Mnesia, cores: Cores, step: Step) -> None:
        self.samples: list[Sample] = []
        self._plan = plan
        self._peer = peer
        self._cores = cores
        self._step = step

    async def warm_up(self) -> None:
        """Let both come to speed; what is found is thrown away."""
        in_flight, seconds = max(self._plan.in_flight), WARM_UP_S
        self._step("warming up mnesia")
        await self._ask("transaction", "many", NODES, in_flight, seconds)
        self._step("warming up raftkv")
        await self._took("connect", False, "three nodes", in_flight, seconds)

    async def round(self, number: int, place: Place) -> None:
        """Each load next to those it stands beside, so that little time lies between them."""
        done: set[str] = set()
        for name in self._plan.loads:
            others = [other for other in LOADS[name].beside if other not in done]
            done.update(others)
            for in_flight in self._plan.in_flight:
                if number % 2:
                    await self._ours(name, number, in_flight, place)
                for other in others:
                    await self._theirs(other, number, in_flight, place)
                if not number % 2:
                    await self._ours(name, number, in_flight, place)

    async def _theirs(self, load: str, number: int, in_flight: int, place: Place) -> None:
        self._step(f"{load}, {place}, {in_flight} at once, mnesia")
        way, keys = THEIRS[load]
        nodes = 1 if place == "one node" else NODES
        before_s, seconds = cpu_seconds(self._peer.pids), self._plan.seconds
        answer = await self._ask(way, keys, nodes, in_flight, seconds)
        used_s = cpu_seconds(self._peer.pids) - before_s
        took = answer.took_us
        self._add(
            _figure(load, place), PEER, number, in_flight, took, answer.late,
            failed=answer.failed, lost=answer.lost, server_cpu=round(used_s / seconds, 2),
        )  # fmt: skip

    async def _ask(
        self, way: mnesia.Way, keys: mnesia.Keys, nodes: int, in_flight: int, seconds: float
    ) -> mnesia.Answer:
        asked = Asked(way, keys, nodes, in_flight, seconds)
        return await asyncio.to_thread(self._peer.ask, asked)

    async def _ours(self, name: str, number: int, in_flight: int, place: Place) -> None:
        self._step(f"{name}, {place}, {in_flight} at once, raftkv")
        load, seconds = LOADS[name], self._plan.seconds
        before_s = cpu_seconds(self._cores.pids)
        found = await self._took(load.way, load.hot, place, in_flight, seconds)
        used_s = cpu_seconds(self._cores.pids) - before_s
        won = [us for took in found for us in took.won_us]
        won_late = sum(took.won_late for took in found)
        answers: Counter[str] = Counter()
        for took in found:
            answers.update(took.answers)
        more = {
            "failed": sum(took.failed for took in found),
            "server_cpu": round(used_s / seconds, 2),
            "answers": dict(answers),
        }
        self._add(_figure(name, place), "raftkv", number, in_flight, won, won_late, **more)
        if name in CONTESTED:
            both = won + [us for took in found for us in took.lost_us]
            late = won_late + sum(took.lost_late for took in found)
            figure = _figure(name, place, answered=True)
            self._add(figure, "raftkv", number, in_flight, both, late, **more)

    async def _took(
        self, way: callers.Way, hot: bool, place: Place, in_flight: int, seconds: float
    ) -> list[Took]:
        """By the callers of each node; then wait for what their load left to do."""
        leader, _ = await self._cores.leader()
        members = [leader] if place == "one node" else list(self._cores.members)
        shares = _shares(in_flight, len(members))
        asked = [
            ReadCheckWrite(way, hot, share, seconds, first)
            for share, first in zip(shares, _firsts(shares), strict=True)
        ]
        answers = await asyncio.gather(
            *(member.ask(ask) for member, ask in zip(members, asked, strict=True))
        )
        await self._cores.settled()
        return [answer.took for answer in answers]

    def _add(
        self, figure: str, side: str, number: int, in_flight: int, took_us: list[int], late: int,
        **more: Any,
    ) -> None:  # fmt: skip
        """The rate is of what was answered within the time; the latencies are of all of it."""
        took_us.sort()
        self.samples.append(
            Sample(
                load=figure, in_flight=in_flight, side=side, round=number,
                per_s=round((len(took_us) - late) / self._plan.seconds, 1),
                p50_ms=_quantile_ms(took_us, 0.5), p99_ms=_quantile_ms(took_us, 0.99), **more,
            )
        )  # fmt: skip


def _shares(whole: int, parts: int) -> list[int]:
    """As equal as whole numbers allow."""
    return [whole // parts + (part < whole % parts) for part in range(parts)]


def _firsts(shares: Sequence[int]) -> list[int]:
    """Where each share's numbers begin."""
    return [sum(shares[:part]) for part in range(len(shares))]


def _quantile_ms(in_order_us: Sequence[int], share: float) -> float | None:
    if not in_order_us:
        return None
    return in_order_us[min(len(in_order_us) - 1, int(len(in_order_us) * share))] / 1000


def _plan(given: argparse.Namespace) -> Plan:
    return Plan(
        loads=given.loads or tuple(LOADS),
        in_flight=given.in_flight,
        places=given.places or PLACES,
        seconds=given.seconds,
        rounds=given.rounds,
    )


async def _compare(
    given: argparse.Namespace, place: Path, step: Step, conditions: dict[str, Any]
) -> Comparison:
    """Start both, run the plan, end both."""
    for name in (PEER, "raftkv"):
        (place / name).mkdir()
    with Mnesia(place / PEER, members=NODES) as peer:
        async with Cores(place / "raftkv", registry=True) as cores:
            samples = await measure(_plan(given), peer, cores, step)
        return Comparison(
            peer=PEER,
            peer_version=peer.version,
            conditions=conditions,
            lines=lines(samples, PEER, BESIDE, AIMS),
            samples=samples,
        )


_WHERE: Final = (
    "mnesia: in memory on three nodes, nothing on disk. raftkv: on disk on two of three before it "
    "answers."
)
_WAYS: Final = (
    "bag, transaction: one transaction of Mnesia's; lock: global:trans around dirty operations. "
    "connect, swap, in the log: see bench/peers/callers.py. Nothing of a session is continued by a "
    "clean start, nor by the bag."
)


def _notes(found: Comparison) -> list[str]:
    notes = [_WHERE, _WAYS]
    judged = [line for line in found.lines if line.aim is not None]
    missed = sum(not line.met for line in judged)
    notes.append(f"Aims: {len(judged) - missed} of {len(judged)} met.")
    gone = {each.load: each.lost for each in found.samples if each.lost}
    notes += [f"mnesia lost {lost} confirmed writes: {load}." for load, lost in gone.items()]
    return notes


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--load", action="append", choices=tuple(LOADS), dest="loads", metavar="LOAD",
        help="raftkv's; Mnesia's follow. May be repeated (default: all): " + "; ".join(LOADS),
    )  # fmt: skip
    parser.add_argument(
        "--in-flight", type=numbers, default=[64, 256], metavar="N,N",
        help="callers at once (default: 64,256)",
    )  # fmt: skip
    parser.add_argument(
        "--callers-in",
        action="append",
        choices=PLACES,
        dest="places",
        help="may be repeated (default: both)",
    )


MNESIA: Final = Peer(
    name=PEER,
    summary="Mnesia of Debian's erlang, in memory: read, check and write by callers in the nodes",
    add_arguments=_add_arguments,
    steps=lambda given: _plan(given).steps,
    compare=_compare,
    notes=_notes,
)

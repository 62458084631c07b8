"""ZooKeeper and raftkv in turns: a Python program at the leader of each, over the network.

ZooKeeper cannot be embedded in Python, so both are asked by a process of their own with the client
that a Python program has: kazoo, whose calls share one connection, and `raftkv.Client`, whose calls
take a connection each. Callers have one call outstanding. Both sync every write before they confirm
it. One cluster is idle while the other one is measured, in the other order in every second round.

**What stands beside what.** A read of ZooKeeper is answered by the server that is asked, and may
be old: it stands beside raftkv's local read. To be surer, its clients send a `sync` before it; that
stands beside raftkv's linearizable read. (The two are not quite the same: a majority confirms each
read of raftkv's, while the leader answers a `sync` by itself.) A `set` with a version stands beside
a transaction that compares and puts, on a key of each caller's own.

**The client counts.** A Python client uses about as much of a processor as the servers: the column
of its processor time says how near it is to its bound. A program in C or Java gets more out of
ZooKeeper than kazoo does; what wrk gets out of raftkv stands beside etcd.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from bench.arguments import positive_int
from bench.asked import AskedProcess
from bench.embedding import Cores
from bench.peers.children import cpu_seconds
from bench.peers.figures import Comparison, Sample, lines
from bench.peers.peer import Peer, Step, numbers
from bench.peers.store_client import Answer, Asked, Setup, Word
from bench.peers.zookeeper import ZooKeeper

__all__ = ["BESIDE", "LOADS", "ZOOKEEPER", "Plan", "measure"]

PEER: Final = "zookeeper"
KEYS: Final = 1000
WARM_UP_S: Final = 5.0
"""Java's compiler needs that long to have seen everything."""

#: raftkv's load -> what both clients are asked for.
LOADS: Final[dict[str, Word]] = {
    "put": "put",
    "get, linearizable": "get",
    "get, local": "get-local",
    "swap, own keys": "swap",
}
#: raftkv's load -> ZooKeeper's beside it.
BESIDE: Final[dict[str, str]] = {
    "put": "set",
    "get, linearizable": "sync and get",
    "get, local": "get",
    "swap, own keys": "set if the version is",
}

Side = Literal["zookeeper", "raftkv"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure: `loads` of LOADS, on both sides."""

    loads: Sequence[str] = tuple(LOADS)
    in_flight: Sequence[int] = (1, 16, 64, 256)
    seconds: float = 5
    rounds: int = 3
    value_bytes: int = 100

    @property
    def steps(self) -> int:
        """How many measurements there will be, and the two to warm up."""
        return 2 + self.rounds * len(self.loads) * len(self.in_flight) * 2


class StoreClient(AskedProcess[Answer]):
    """One process of `bench.peers.store_client`."""


async def measure(
    plan: Plan, directory: Path, peer: ZooKeeper, cores: Cores, step: Step
) -> list[Sample]:
    """Run the plan. Raises `ZooKeeperFailed`, `WorkerFailed`."""
    leader = await asyncio.to_thread(peer.leader)
    _, told = await cores.leader()
    setups = {PEER: Setup("kazoo", leader), "raftkv": Setup("raftkv", told.endpoint)}
    clients = {
        side: StoreClient(
            f"client-{side}", "bench.peers.store_client", setup, Answer, directory
        )
        for side, setup in setups.items()
    }  # fmt: skip
    turns = _Turns(plan, clients, {PEER: peer, "raftkv": cores}, step)
    try:
        for client in clients.values():
            await client.spawn()
            await client.answer()
        await turns.warm_up()
        for number in range(plan.rounds):
            await turns.round(number)
    finally:
        for client in clients.values():
            await client.end()
    return turns.samples


class _Turns:
    def __init__(
        self,
        plan: Plan,
        clients: dict[str, StoreClient],
        clusters: dict[str, ZooKeeper | Cores],
        step: Step,
    ) -> None:
        self.samples: list[Sample] = []
        self._plan = plan
        self._clients = clients
        self._clusters = clusters
        self._step = step

    async def warm_up(self) -> None:
        """Make the keys, and let both come to speed; what is found is thrown away."""
        plan, most = self._plan, max(self._plan.in_flight)
        seconds = min(WARM_UP_S, plan.seconds)
        for side, client in self._clients.items():
            self._step(f"warming up {side}")
            await client.ask(Asked("put", KEYS, plan.value_bytes, 0.0, most, make=True))
            for load in plan.loads:
                asked = Asked(LOADS[load], KEYS, plan.value_bytes, seconds / len(plan.loads), most)
                await client.ask(asked)

    async def round(self, number: int) -> None:
        sides = (PEER, "raftkv") if number % 2 == 0 else ("raftkv", PEER)
        for load in self._plan.loads:
            for in_flight in self._plan.in_flight:
                for side in sides:
                    await self._one(load, in_flight, side, number)

    async def _one(self, load: str, in_flight: int, side: str, number: int) -> None:
        plan, pids = self._plan, self._clusters[side].pids
        name = load if side == "raftkv" else BESIDE[load]
        self._step(f"{name}, {in_flight} at once, {side}")
        before_s = cpu_seconds(pids)
        told = await self._clients[side].ask(
            Asked(LOADS[load], KEYS, plan.value_bytes, plan.seconds, in_flight)
        )
        used_s = cpu_seconds(pids) - before_s
        more: dict[str, Any] = {"p50_ms": told.p50_ms, "p99_ms": told.p99_ms} if told.done else {}
        self.samples.append(
            Sample(
                load=name, in_flight=in_flight, side=side, round=number,
                per_s=round(told.done / told.seconds, 1), failed=told.failed,
                client_cpu=round(told.cpu_s / told.seconds, 2),
                server_cpu=round(used_s / told.seconds, 2), **more,
            )
        )  # fmt: skip


def _plan(given: argparse.Namespace) -> Plan:
    return Plan(
        loads=given.loads or tuple(LOADS),
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
    with ZooKeeper(place / PEER) as peer:
        async with Cores(place / "raftkv") as cores:
            samples = await measure(_plan(given), place, peer, cores, step)
        return Comparison(
            peer=PEER,
            peer_version=peer.version,
            conditions=conditions,
            lines=lines(samples, PEER, BESIDE),
            samples=samples,
        )


def _notes(found: Comparison) -> list[str]:
    notes = ["zookeeper by kazoo, raftkv by raftkv.Client, a process each, at the leader."]
    for side, client in ((PEER, "kazoo"), ("raftkv", "raftkv.Client")):
        used = [each.client_cpu for each in found.samples if each.side == side and each.client_cpu]
        if used:
            notes.append(f"Processors that {client} used: {min(used):.2f} to {max(used):.2f}.")
    return notes


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--load", action="append", choices=tuple(LOADS), dest="loads", metavar="LOAD",
        help="raftkv's; ZooKeeper's follow. May be repeated (default: all): " + "; ".join(LOADS),
    )  # fmt: skip
    parser.add_argument(
        "--in-flight", type=numbers, default=[1, 16, 64, 256], metavar="N,N",
        help="calls at once (default: 1,16,64,256)",
    )  # fmt: skip
    parser.add_argument("--value-bytes", type=positive_int, default=100, help="default: 100")


ZOOKEEPER: Final = Peer(
    name=PEER,
    summary="Debian's ZooKeeper, by Python clients: writes, reads and compare-and-set",
    add_arguments=_add_arguments,
    steps=lambda given: _plan(given).steps,
    compare=_compare,
    notes=_notes,
)

"""etcd and raftkv under the same load in turns: wrk at the leader's client port and door.

Both clusters run all the time, three members each with fsync on; one is idle while the other is
measured. In every second round the order is turned round, so that a machine that gets slower or
faster treats both alike. The callers inside a raftkv node have no counterpart in etcd, which
cannot be embedded in Python: they stand beside etcd's answers over HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import cas, wrk
from bench.arguments import positive_int
from bench.embedded_node import Cas, Gets
from bench.embedding import Cores
from bench.peers import debian
from bench.peers.debian import Program
from bench.peers.etcd import Etcd
from bench.peers.figures import Comparison, Sample, lines
from bench.peers.peer import Peer, Step, numbers

__all__ = ["AGAINST", "ETCD", "LOADS", "Plan", "measure"]

PEER: Final = "etcd"
KEYS: Final = 1000
WARM_UP_S: Final = 2

#: load -> wrk's word for it
WORDS: Final[dict[str, wrk.Word]] = {
    "put": "put",
    "get, linearizable": "get",
    "get, serializable": "get-serializable",
}
EMBEDDED: Final = "get inside a node, linearizable"
WAYS: Final[dict[str, cas.Way]] = {"CAS wins, loop": "loop", "CAS wins, in the log": "log"}
EMBEDDED_WAYS: Final[dict[str, cas.Way]] = {
    "CAS wins inside a node, loop": "loop",
    "CAS wins inside a node, in the log": "log",
}
LOADS: Final = (*WORDS, EMBEDDED, *WAYS, *EMBEDDED_WAYS)

#: Which load of etcd's a load inside a node stands beside.
AGAINST: Final = {
    EMBEDDED: "get, linearizable",
    "CAS wins inside a node, loop": "CAS wins, loop",
    "CAS wins inside a node, in the log": "CAS wins, in the log",
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure: `loads` of LOADS."""

    loads: Sequence[str] = LOADS
    connections: Sequence[int] = (1, 16, 64, 256)
    seconds: int = 5
    rounds: int = 3
    value_bytes: int = 64

    @property
    def steps(self) -> int:
        """How many measurements there will be, roughly equal in time."""
        numbers = sum(
            len(self.connections) * (1 if load == EMBEDDED else 2)
            for load in self.loads
            if load in WORDS or load == EMBEDDED
        )
        singles = sum(2 if load in WAYS else 1 for load in self.loads if load not in WORDS)
        return self.rounds * (numbers + singles - (EMBEDDED in self.loads))


async def measure(
    plan: Plan, etcd: Etcd, cores: Cores, program: Program, step: Step
) -> list[Sample]:
    """Run the plan; `step` is told what comes next. Raises `WrkFailed`, `WorkerFailed`."""
    turns = _Turns(plan, etcd, cores, program, step)
    await turns.warm_up()
    for number in range(plan.rounds):
        await turns.round(number)
    return turns.samples


class _Turns:
    def __init__(self, plan: Plan, etcd: Etcd, cores: Cores, program: Program, step: Step) -> None:
        self.samples: list[Sample] = []
        self._plan = plan
        self._etcd = etcd
        self._cores = cores
        self._program = program
        self._step = step

    async def warm_up(self) -> None:
        """Make the keys, and let both come to speed."""
        load = wrk.Load(
            word="put", connections=16, seconds=WARM_UP_S, keys=KEYS,
            value_bytes=self._plan.value_bytes,
        )  # fmt: skip
        for side in (PEER, "raftkv"):
            self._step(f"warming up {side}")
            endpoint, pids = await self._target(side)
            await asyncio.to_thread(wrk.run, self._program, endpoint, load, pids)
            await asyncio.to_thread(_put_hot, endpoint)

    async def round(self, number: int) -> None:
        plan = self._plan
        sides = (PEER, "raftkv") if number % 2 == 0 else ("raftkv", PEER)
        for load in plan.loads:
            if load in WORDS:
                for connections in plan.connections:
                    for side in sides:
                        await self._over_http(load, connections, side, number)
            elif load == EMBEDDED:
                for in_flight in plan.connections:
                    await self._embedded(in_flight, number)
            elif load in WAYS:
                for side in sides:
                    await self._cas(load, side, number)
            else:
                await self._embedded_cas(load, number)

    async def _target(self, side: str) -> tuple[str, Sequence[int]]:
        """The leader's endpoint, and all processes of its cluster."""
        if side == PEER:
            return await asyncio.to_thread(self._etcd.leader), self._etcd.pids
        _, answer = await self._cores.leader()
        return answer.endpoint, self._cores.pids

    async def _over_http(self, load: str, connections: int, side: str, number: int) -> None:
        self._step(f"{load}, {connections} connections, {side}")
        endpoint, pids = await self._target(side)
        asked = wrk.Load(
            word=WORDS[load], connections=connections, seconds=self._plan.seconds, keys=KEYS,
            value_bytes=self._plan.value_bytes,
        )  # fmt: skip
        run = await asyncio.to_thread(wrk.run, self._program, endpoint, asked, pids)
        self._add(
            load, connections, side, number, run.per_s, p50_ms=run.p50_ms, p99_ms=run.p99_ms,
            refused=run.refused, failed=run.failed, client_cpu=run.client_cpu,
            server_cpu=run.server_cpu,
        )  # fmt: skip

    async def _embedded(self, in_flight: int, number: int) -> None:
        self._step(f"{EMBEDDED}, {in_flight} at once")
        member, _ = await self._cores.leader()
        answer = await member.ask(Gets(KEYS, self._plan.seconds, in_flight))
        self._add(
            EMBEDDED, in_flight, "raftkv", number, answer.done / answer.seconds,
            p50_ms=answer.p50_ms, p99_ms=answer.p99_ms,
        )  # fmt: skip

    async def _cas(self, load: str, side: str, number: int) -> None:
        self._step(f"{load}, {cas.CALLERS} callers, {side}")
        endpoint, _ = await self._target(side)
        found = await asyncio.to_thread(
            cas.over_http, self._program, endpoint, WAYS[load], self._plan.seconds
        )
        self._add(load, cas.CALLERS, side, number, found.won_per_s)

    async def _embedded_cas(self, load: str, number: int) -> None:
        self._step(f"{load}, {cas.CALLERS} callers")
        member, _ = await self._cores.leader()
        in_log = EMBEDDED_WAYS[load] == "log"
        answer = await member.ask(Cas(cas.CALLERS, self._plan.seconds, in_log))
        self._add(load, cas.CALLERS, "raftkv", number, answer.won / answer.seconds)

    def _add(
        self, load: str, in_flight: int, side: str, number: int, per_s: float, **more: Any
    ) -> None:
        self.samples.append(
            Sample(
                load=load, in_flight=in_flight, side=side, round=number, per_s=round(per_s, 1),
                **more,
            )
        )  # fmt: skip


def _put_hot(endpoint: str) -> None:
    """The key that is compared and swapped must exist."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(endpoint).netloc, timeout=10.0)
    try:
        connection.request("POST", "/v3/kv/put", json.dumps({"key": "aG90", "value": "MA=="}))
        connection.getresponse().read()
    finally:
        connection.close()


def _plan(given: argparse.Namespace) -> Plan:
    return Plan(
        loads=given.loads or LOADS,
        connections=given.connections,
        seconds=given.seconds,
        rounds=given.rounds,
        value_bytes=given.value_bytes,
    )


async def _compare(
    given: argparse.Namespace, place: Path, step: Step, conditions: dict[str, Any]
) -> Comparison:
    """Start both, run the plan, end both."""
    program = debian.find("wrk")
    for name in (PEER, "raftkv"):
        (place / name).mkdir()
    with Etcd(place / PEER) as etcd:
        async with Cores(place / "raftkv") as cores:
            samples = await measure(_plan(given), etcd, cores, program, step)
        return Comparison(
            peer=PEER,
            peer_version=etcd.version,
            conditions=conditions,
            lines=lines(samples, PEER, AGAINST),
            samples=samples,
        )


def _notes(found: Comparison) -> list[str]:
    wins = {line.load: line for line in found.lines if line.load.startswith("CAS")}
    loop, in_log = wins.get("CAS wins, loop"), wins.get("CAS wins inside a node, in the log")
    if loop is None or in_log is None:
        return []
    times = in_log.raftkv_per_s.median / loop.peer_per_s.median
    return [f"Wins decided in raftkv's log: {times:,.0f} times those of etcd's loop."]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--load", action="append", choices=LOADS, dest="loads", metavar="LOAD",
        help=f"may be repeated (default: all): {'; '.join(LOADS)}",
    )  # fmt: skip
    parser.add_argument(
        "--connections", type=numbers, default=[1, 16, 64, 256], metavar="N,N",
        help="default: 1,16,64,256",
    )  # fmt: skip
    parser.add_argument("--value-bytes", type=positive_int, default=64, help="default: 64")


ETCD: Final = Peer(
    name=PEER,
    summary="Debian's etcd-server, by wrk: puts, gets and CAS over HTTP",
    add_arguments=_add_arguments,
    steps=lambda given: _plan(given).steps + 2,
    compare=_compare,
    notes=_notes,
)

"""Sessions under random weather: connects, leaves, cancellations, and every fault of a node.

What must hold at the end, whatever happened: one live session per client at most, that of the
registered channel; no row, no claim, no freeze, no content left behind. A session never has a
message twice, or two of them in the wrong order. And where nothing happened that ends a session (a
leave, a node's death, a partition), it has every message that was accepted, however many calls
between nodes were lost, connects cancelled and nodes late.

The seed is the test's parameter.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import pytest

from raftkv.errors import RaftkvError
from tests.plugins.raftkv_lcr.fakes import (
    Cluster,
    Publisher,
    live,
    settle,
    tell,
    texts,
)

CLIENTS = ("c", "d")
ROUNDS = 60


class Weather:
    """Random clients and random faults on one cluster."""

    def __init__(self, cluster: Cluster, seed: int, faults: bool) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.faults = faults
        self.outcomes: Counter[str] = Counter()
        self._connects: list[asyncio.Task[None]] = []
        self._number = 0

    async def play(self) -> None:
        kinds = [self.connect] * 12 + [self.cancel] * 2 + [self.pause, self.change_leader]
        if self.faults:
            kinds += [self.leave, self.isolate, self.declare_dead, self.restart]
        for _ in range(ROUNDS):
            self.rng.choice(kinds)()
            await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.003, 0.01, 0.1, 1.0)))
        await asyncio.gather(*self._connects)

    # --- clients ---

    def connect(self) -> asyncio.Task[None]:
        self._number += 1
        name = self.rng.choice(self._alive())
        clean_start = self.faults and self.rng.random() < 0.1
        connect = self._connect(name, self.rng.choice(CLIENTS), f"{self._number}", clean_start)
        task = asyncio.ensure_future(connect)
        self._connects.append(task)
        return task

    async def _connect(self, name: str, client: str, channel: str, clean_start: bool) -> None:
        broker = self.cluster.nodes[name].broker
        try:
            opened = await broker.connect(client, channel, clean_start=clean_start, timeout_s=60.0)
            self.outcomes[f"{opened.outcome} {opened.handover}"] += 1
        except RaftkvError as error:
            self.outcomes[error.code] += 1
        except asyncio.CancelledError:
            self.outcomes["cancelled"] += 1

    def cancel(self) -> None:
        """A connect that is given up somewhere on its way."""
        task = self.connect()
        delay_s = self.rng.choice((0.0005, 0.0015, 0.0025, 0.0035, 0.0045, 0.0055))
        asyncio.get_running_loop().call_later(delay_s, task.cancel)

    def leave(self) -> None:
        for name, session in live(self.cluster, self.rng.choice(CLIENTS))[:1]:
            broker = self.cluster.nodes[name].broker
            leaving = broker.disconnect(session.client_id, session.channel)
            self._connects.append(asyncio.ensure_future(leaving))

    # --- nodes ---

    def pause(self) -> None:
        name = self._replicant()
        if name is not None:
            self.cluster.pause(name)
            self._later(self.rng.choice((0.01, 0.5, 3.0)), self.cluster.resume, name)

    def isolate(self) -> None:
        name = self._replicant()
        if name is not None:
            self.cluster.isolate(name)
            self._later(self.rng.choice((0.1, 1.0, 8.0)), self.cluster.heal, name)

    def declare_dead(self) -> None:
        name = self._replicant()
        if name is not None:
            self.cluster.isolate(name)
            self._later(1.0, self.cluster.declare_dead, name)
            self._later(self.rng.choice((1.1, 3.0, 20.0)), self.cluster.rejoin, name)

    def restart(self) -> None:
        name = self._replicant()
        if name is not None:
            self.cluster.kill(name)
            restart = self.cluster.restart(name)
            self._connects.append(asyncio.ensure_future(restart))

    def change_leader(self) -> None:
        self.cluster.lead(self.rng.choice(("core1", "core2", "core3")))

    def _later(self, delay_s: float, act: Callable[[str], None], name: str) -> None:
        async def later() -> None:
            await asyncio.sleep(delay_s)
            act(name)

        self._connects.append(asyncio.ensure_future(later()))

    def _alive(self) -> list[str]:
        return [name for name, node in self.cluster.nodes.items() if node.alive]

    def _replicant(self) -> str | None:
        """One that has nothing to suffer yet."""
        well = [
            name
            for name, node in self.cluster.nodes.items()
            if node.role == "replicant" and node.alive and not (node.paused or node.isolated)
        ]
        return self.rng.choice(well) if well else None


def places_of(cluster: Cluster, client: str) -> set[tuple[str, str] | None]:
    """Where the nodes' copies say that the client's channel is."""
    rows = [node.lcr.lookup_local(client) for node in cluster.nodes.values() if node.alive]
    return {None if row is None else (row.node, row.channel) for row in rows}


def check_order(ids: list[str]) -> None:
    numbers = [int(one[1:]) for one in ids]
    assert numbers == sorted(set(numbers)), numbers


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("faults", [False, True])
def test_weather(seed: int, faults: bool) -> None:
    async def body(cluster: Cluster) -> None:
        weather = Weather(cluster, seed, faults)
        cluster.lose_calls(weather.rng, 0.03)
        publishers = {client: Publisher(cluster, weather.rng, client) for client in CLIENTS}
        await weather.play()
        for publisher in publishers.values():
            await publisher.stop()
        await settle(cluster)
        for client in CLIENTS:
            # Whatever became of its last connect, the client comes back.
            assert (await cluster.nodes["core1"].broker.connect(client, "last")).outcome == "ok"
        await settle(cluster)
        assert weather.outcomes["ok complete"] > 0
        for client, publisher in publishers.items():
            sessions = live(cluster, client)
            assert [(name, session.channel) for name, session in sessions] == [("core1", "last")]
            assert places_of(cluster, client) == {("core1", "last")}
            ids = texts(sessions[0][1].content)
            check_order(ids)
            assert set(ids) <= set(publisher.accepted)
            assert faults or ids == publisher.accepted

    tell(body, 3, 3)

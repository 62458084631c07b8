"""Rolling upgrades and switches of the mode, while clients connect, move and leave.

A crowd of clients does one thing at a time each, through whatever node takes clients. What every
connect must be told is known (`bench/truth.py`), and so is what every session must hold: all that
was published since the client came. In the end each client has exactly one channel, with all its
messages, and every registry in use shows that channel and no other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from raftkv.testing.clock import run
from raftkv.testing.local_cluster import LocalCluster
from raftkv_lcr import LCR
from raftkv_lcr.commands import Mode, OldNodes, SwitchMode
from raftkv_lcr.modes import effective_mode, mode_of, old_nodes
from raftkv_lcr.testing.broker import MemoryBroker
from tests.plugins.raftkv_lcr.fakes import Cluster
from tests.plugins.raftkv_lcr.worlds import World, message, texts

CLIENTS = 24
# Longer than a write needs to reach every copy: the old registry is right while nothing lags.
PAUSE_S = 0.05

Body = Callable[["Crowd"], Awaitable[None]]


class Crowd:
    """Clients that come, move between nodes, get messages, and go."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        # The nodes that take clients.
        self.open = list(world.cluster.nodes)
        self.published: dict[str, list[str]] = {}
        self.moves = 0
        self._busy: dict[str, asyncio.Lock] = {}
        self._number = 0
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        self._tasks = [
            asyncio.ensure_future(self._play(f"client{number}")) for number in range(CLIENTS)
        ]

    async def end(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def move(self, client: str, node: str | None = None) -> None:
        """The client connects, wherever it was before."""
        self._number += 1
        self.moves += 1
        name = node or self.rng.choice(self.open)
        opened = await self.world.connect(name, client, f"ch{self._number}")
        assert opened.outcome == "ok", (client, name, opened)
        self.published.setdefault(client, [])

    async def evacuate(self, node: str) -> None:
        """Let every client of that node connect to another one, and keep new ones off."""
        self.open.remove(node)
        for number in range(CLIENTS):
            client = f"client{number}"
            async with self._lock(client):
                seat = self.world.seats.get(client)
                if seat is not None and seat[0] == node:
                    await asyncio.sleep(PAUSE_S)
                    await self.move(client)
        await asyncio.sleep(1.0)
        assert all(not session.live for session in self.world.brokers[node].sessions.values())

    def check(self) -> None:
        """Every client has one channel, all of its messages, and was told the truth."""
        world = self.world
        assert not world.anomalies
        assert len(self.published) > CLIENTS / 2
        for client, expected in self.published.items():
            assert world.live(client) == [world.seats[client]]
            assert texts(world.session(client)) == expected
        assert set(world.audit_all()) == {"ok"}

    def _lock(self, client: str) -> asyncio.Lock:
        return self._busy.setdefault(client, asyncio.Lock())

    async def _play(self, client: str) -> None:
        while not self._stopping:
            await asyncio.sleep(self.rng.uniform(PAUSE_S, 4 * PAUSE_S))
            async with self._lock(client):
                await self._act(client)

    async def _act(self, client: str) -> None:
        dice = self.rng.random()
        if client in self.published and dice < 0.5:
            self._number += 1
            text = f"m{self._number}"
            assert self.world.publish(client, text), (client, self.world.seats[client])
            self.published[client].append(text)
        elif client in self.published and dice < 0.6:
            await self.world.leave(client)
            del self.published[client]
        else:
            await self.move(client)


def play(body: Body, *, old: bool, seed: int) -> None:
    """Three cores and two replicants of either version, and a crowd."""

    async def whole() -> None:
        shape = {"core1": "core", "core2": "core", "core3": "core", "rep1": "replicant"}
        if old:
            world = World(Cluster(0, 0))
            for name, role in shape.items():
                await world.old_node(name, role)  # type: ignore[arg-type]
            world.cluster.lead("core1")
        else:
            world = World(await Cluster(3, 1).start())
        await world.warm_up()
        await world.rest()
        crowd = Crowd(world, seed)
        crowd.begin()
        await asyncio.sleep(2.0)
        await body(crowd)
        await asyncio.sleep(2.0)
        await crowd.end()
        await world.rest(30)
        crowd.check()
        world.cluster.check()

    print(f"seed {seed}")
    run(whole())


async def replace(crowd: Crowd, name: str) -> None:
    """An operator upgrades one node: clients off, down, the new version up, clients on.

    A replicant whose core goes reads a copy that stands still until it has found another core, up
    to a second of wrong answers in the old registry. So it takes no connects for that time.
    """
    world = crowd.world
    role = world.cluster.nodes[name].role
    await crowd.evacuate(name)
    behind = [
        other for other in crowd.open if world.cluster.nodes[other].lcr.legacy.copies._core == name
    ]
    for other in behind:
        crowd.open.remove(other)
    await asyncio.sleep(1.0)
    if world.cluster.leader == name:
        world.cluster.lead(next(n for n in crowd.open if n.startswith("core")))
    world.cluster.kill(name)
    world.cluster.declare_dead(name)
    await asyncio.sleep(2.0)
    crowd.open.extend(behind)
    node = await world.new_node(name, role)
    await node.lcr.legacy.ready()
    crowd.open.append(name)
    await asyncio.sleep(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_nodes_are_replaced_one_by_one_and_then_the_registry_is_switched(seed: int) -> None:
    async def body(crowd: Crowd) -> None:
        nodes = crowd.world.cluster.nodes
        for name in list(nodes):
            await replace(crowd, name)
        node = nodes["core2"]
        assert old_nodes(node.view(), node.view().members) == []
        await node.lcr.switch_mode("migration")
        await asyncio.sleep(1.0)
        await node.lcr.switch_mode("enabled")
        await asyncio.sleep(1.0)
        assert all(len(n.lcr.legacy.copies.bag) <= CLIENTS for n in nodes.values())

    play(body, old=True, seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_mode_is_switched_in_the_middle_of_the_upgrade(seed: int) -> None:
    """To "migration" while half of the nodes are old, to "enabled" when the last one has gone."""

    async def body(crowd: Crowd) -> None:
        world = crowd.world
        names = list(world.cluster.nodes)
        for name in names[:2]:
            await replace(crowd, name)
        node = world.cluster.nodes[names[0]]
        await node.lcr.switch_mode("migration")
        await asyncio.sleep(2.0)
        for name in names[2:]:
            with pytest.raises(OldNodes):
                await node.propose(SwitchMode("enabled"))
            await replace(crowd, name)
        await node.lcr.switch_mode("enabled")

    play(body, old=True, seed=100 + seed)


@pytest.mark.parametrize("seed", range(3))
def test_mode_goes_up_and_back_down_at_run_time(seed: int) -> None:
    """disabled, migration, enabled, dual, disabled, each on all nodes at one index of the log."""

    async def body(crowd: Crowd) -> None:
        nodes = crowd.world.cluster.nodes
        seen: dict[str, list[tuple[int, Mode]]] = {name: [] for name in nodes}
        for name, node in nodes.items():
            on_mode = node.lcr.on_mode

            def noted(row: object, name: str = name, on_mode: object = on_mode) -> None:
                mode = mode_of(nodes[name].view())
                seen[name].append((nodes[name].machine.index, mode.mode))
                on_mode(row)  # type: ignore[operator]

            node.lcr.on_mode = noted  # type: ignore[method-assign]
        steps: tuple[Mode, ...] = ("migration", "enabled", "dual", "disabled")
        for mode in steps:
            row = await nodes["rep1"].lcr.switch_mode(mode)
            assert {(entry[-1]) for entry in seen.values()} == {(row.epoch, mode)}
            await asyncio.sleep(2.0)
        assert [mode for _, mode in seen["core3"]] == list(steps)
        assert all(len(node.view().table("clients")) == 0 for node in nodes.values())

    play(body, old=False, seed=200 + seed)


def test_lagging_replicant_is_waited_for_and_its_clients_lose_nothing() -> None:
    """The log compares the epoch, so what opens on a node that lags opens under the new mode."""

    async def body(crowd: Crowd) -> None:
        nodes = crowd.world.cluster.nodes
        await nodes["core1"].lcr.switch_mode("migration")
        for mode in ("enabled", "dual", "enabled"):
            crowd.world.cluster.pause("rep1")
            asyncio.get_running_loop().call_later(1.0, crowd.world.cluster.resume, "rep1")
            started = asyncio.get_running_loop().time()
            await nodes["core1"].lcr.switch_mode(mode)  # type: ignore[arg-type]
            assert asyncio.get_running_loop().time() - started >= 0.9
            await asyncio.sleep(1.0)

    play(body, old=False, seed=300)


@pytest.mark.slow
def test_switch_under_connects_on_real_nodes() -> None:
    """Consensus, sockets and files: three cores and a replicant, 16 clients, all four modes."""
    switched: list[Mode] = ["migration", "enabled", "dual", "disabled", "migration", "enabled"]

    async def whole() -> None:
        async with LocalCluster(3, 1, plugins=[LCR()]) as cluster:
            brokers = {node.name: MemoryBroker(node.name) for node in cluster.nodes}
            for node in cluster.nodes:
                brokers[node.name].attach(node.plugin(LCR))
            names, stopping = list(brokers), False
            seats: dict[str, str] = {}
            published: dict[str, list[str]] = {}

            def spread(name: str, channel: str) -> bool:
                """Whether no node that would ask its copy of the old registry asks a late one."""
                modes = {effective_mode(node.machine.view("lcr")).mode for node in cluster.nodes}
                copies = [node.plugin(LCR).legacy.lookup_local(name) for node in cluster.nodes]
                return modes == {"enabled"} or all(row and row.channel == channel for row in copies)

            async def client(number: int) -> None:
                name, rng = f"c{number}", random.Random(number)
                while not stopping:
                    seat = rng.choice(names)
                    channel = f"{name}-{len(published.get(name, ()))}"
                    opened = await brokers[seat].connect(name, channel)
                    assert (opened.outcome, opened.present) == ("ok", name in published), opened
                    seats[name] = seat
                    text = f"m{len(published.setdefault(name, []))}"
                    assert brokers[seat].publish(name, message(text))
                    published[name].append(text)
                    # The old registry tells the truth only when its write has been everywhere.
                    await asyncio.sleep(0.1)
                    while not spread(name, channel) and not stopping:
                        await asyncio.sleep(0.01)

            async with asyncio.timeout(120):
                clients = [asyncio.ensure_future(client(number)) for number in range(16)]
                for mode in switched:
                    await asyncio.sleep(1.0)
                    await cluster.nodes[-1].plugin(LCR).switch_mode(mode)
                await asyncio.sleep(1.0)
                stopping = True
                await asyncio.gather(*clients)
                await asyncio.sleep(1.0)
                await cluster.converge()
            for node in cluster.nodes:
                assert effective_mode(node.machine.view("lcr")).mode == "enabled"
                assert list(LCR().invariants(node.machine.view("lcr"))) == []
            for name, seat in seats.items():
                live = [(n, b.live(name)) for n, b in brokers.items() if b.live(name) is not None]
                assert [n for n, _ in live] == [seat]
                assert texts(live[0][1]) == published[name]
                for node in cluster.nodes:
                    owner = node.plugin(LCR).lookup_local(name)
                    assert owner is not None
                    assert owner.node == seat

    asyncio.run(whole())

"""One region of real nodes with their doors, and the way to it from another one (regions.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from raftkv.config import HttpTls, Limits, RaftTimes
from raftkv.node import Node
from raftkv.plugin import Change
from raftkv.server import Door, door_of
from raftkv.testing.distance import Distance
from raftkv.testing.local_cluster import LocalCluster, free_ports
from raftkv_subscriptions import Subscriptions

__all__ = ["DEADLINE_S", "Region", "Tls", "Way", "node_names", "until"]

#: Far more than anything here takes, and less than the time limit of a test.
DEADLINE_S = 30.0
#: A killed node is declared dead after this time; the default of 10 s would only make tests long.
NODE_DOWN_MS = 3_000


class Tls(msgspec.Struct, frozen=True):
    """The certificates of one region: of its doors, and of itself where it pulls."""

    door: HttpTls
    ca: str
    certificate: str
    key: str


class Region(LocalCluster):
    """One region: a cluster whose nodes have doors."""

    def __init__(
        self, name: str, cores: int, replicants: int, tls: Tls | None, limits: Limits | None
    ) -> None:
        raft = RaftTimes(node_down_ms=NODE_DOWN_MS)
        super().__init__(cores, replicants, plugins=[Subscriptions], raft=raft, limits=limits)
        self.name = name
        #: From other regions: they are told where each door is.
        self.ways: list[Way] = []
        self.doors: dict[str, Door] = {}
        self.heard: Callable[[Region, Node, Sequence[Change]], None] | None = None
        self._starting: set[str] = set()
        self._acts: dict[type[msgspec.Struct], Callable[[Any], Awaitable[None]]] = {}
        for node, port in zip(self.configs, free_ports(len(self.configs)), strict=True):
            self.configs[node] = msgspec.structs.replace(
                self.configs[node],
                http_address=f"127.0.0.1:{port}",
                http_tls=None if tls is None else tls.door,
            )

    def give(self, options: Mapping[str, Any]) -> None:
        """Options of the plugin, for every node that is started from now on."""
        for node, config in self.configs.items():
            self.configs[node] = msgspec.structs.replace(
                config, options={"subscriptions": dict(options)}
            )

    def leader(self) -> Node | None:
        """As `LocalCluster` says; a node that is only being started has nothing to say yet."""
        leaders = [
            node
            for node in self.cores
            if node.name not in self._starting and node.status().role == "leader"
        ]
        return max(leaders, key=lambda node: node.status().term, default=None)

    async def start(self, name: str) -> Node:
        self._starting.add(name)
        try:
            node = await super().start(name)
            self._tap(node)
            door = self.doors[name] = door_of(node)
            await door.start()
            for way in self.ways:
                way.hops[name].retarget(door.port)
        finally:
            self._starting.discard(name)
        return node

    def _tap(self, node: Node) -> None:
        """Hear of what it applies, and stand before what it proposes."""
        heard = self.heard
        if heard is not None:
            told = heard
            node.machine.subscribe(lambda _, changes: told(self, node, changes), ("subscriptions",))
        host = node.hosting.hosts["subscriptions"]
        go_on = host.propose

        async def propose(command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
            act = self._acts.get(type(command))
            if act is not None:
                await act(command)
            return await go_on(command, timeout_s=timeout_s)

        host.propose = propose  # type: ignore[method-assign]

    async def kill(self, name: str) -> None:
        door = self.doors.pop(name)
        await asyncio.gather(door.stop(), super().kill(name))

    async def close(self) -> None:
        doors, self.doors = list(self.doors.values()), {}
        await asyncio.gather(*(door.stop() for door in doors))
        await super().close()

    async def down(self) -> None:
        """All nodes are killed."""
        await asyncio.gather(*(self.kill(name) for name in list(self.running)))

    async def up(self) -> None:
        """All nodes that do not run are started from their directories."""
        missing = [name for name in self.configs if name not in self.running]
        await asyncio.gather(*(self.start(name) for name in missing))
        await self.wait_ready(DEADLINE_S)

    async def has_leader(self) -> str:
        """The leader's name, once there is one."""
        await until(lambda: self.leader() is not None, f"somebody leads {self.name}")
        leader = self.leader()
        assert leader is not None
        return leader.name

    async def new_leader(self) -> str:
        """Kill the leader's node, wait until one of the others leads; the killed one's name."""
        name = await self.has_leader()
        await self.kill(name)
        await self.has_leader()
        return name

    def table(self, name: str, at: str | None = None) -> dict[Any, Any]:
        """The rows of one of the plugin's tables."""
        node = self.nodes[0] if at is None else self.running[at]
        return dict(node.machine.view("subscriptions").table(name).scan())

    def before(
        self, kind: type[msgspec.Struct], act: Callable[[Any], Awaitable[None]]
    ) -> Callable[[], None]:
        """Await `act` before any node of the region proposes a command of this kind.

        It may wait, or raise. Until the result is called.
        """
        self._acts[kind] = act

        def over() -> None:
            self._acts.pop(kind, None)

        return over


def node_names(cores: int, replicants: int) -> list[str]:
    """The nodes of a region, as `LocalCluster` calls them."""
    names = [f"core{number}" for number in range(1, cores + 1)]
    return names + [f"replicant{number}" for number in range(1, replicants + 1)]


class Way:
    """How one region reaches the nodes of another one."""

    def __init__(self, nodes: Sequence[str], scheme: str) -> None:
        # Where there is no door yet nobody listens.
        self.hops = {name: Distance("127.0.0.1", 1) for name in nodes}
        self._scheme = scheme

    async def start(self) -> None:
        for hop in self.hops.values():
            await hop.start()

    async def close(self) -> None:
        for hop in self.hops.values():
            await hop.close()

    @property
    def endpoints(self) -> list[str]:
        return [f"{self._scheme}://127.0.0.1:{hop.port}" for hop in self.hops.values()]

    @property
    def connections(self) -> int:
        """Those that were made, ever."""
        return sum(hop.connections for hop in self.hops.values())

    @property
    def passed(self) -> int:
        """Bytes, in both directions."""
        return sum(hop.passed for hop in self.hops.values())

    def delay(self, delay_s: float) -> None:
        for hop in self.hops.values():
            hop.delay_s = delay_s

    def cut(self) -> None:
        for hop in self.hops.values():
            hop.cut()

    def mute(self) -> None:
        for hop in self.hops.values():
            hop.mute()

    def heal(self) -> None:
        for hop in self.hops.values():
            hop.heal()


async def until(
    condition: Callable[[], bool],
    what: str | Callable[[], object],
    timeout_s: float = DEADLINE_S,
) -> None:
    """Wait for the condition. Raises AssertionError with `what` when it does not come true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        if loop.time() > deadline:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {timeout_s:g} s: {told}")
        await asyncio.sleep(0.005)

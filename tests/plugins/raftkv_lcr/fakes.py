"""The fake cluster (raftkv.testing.plugin_cluster) with the registry, and stories about sessions.

Real are the state machine, the plugin, its service and, once `sessions` was called, its session
flow with a broker in memory.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import msgspec

from raftkv.plugin import Member, MemberChange
from raftkv.state import Envelope
from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import FakeCluster, FakeHost, Mishap, Role, tag_of
from raftkv_lcr import LCR, LcrApi
from raftkv_lcr.commands import Mode
from raftkv_lcr.manager import ChannelManager
from raftkv_lcr.options import LcrOptions
from raftkv_lcr.owner import Message
from raftkv_lcr.testing.broker import MemoryBroker, Session

__all__ = [
    "Cluster",
    "FakeNode",
    "Mishap",
    "Publisher",
    "at_rest",
    "ended",
    "live",
    "message",
    "settle",
    "story",
    "tag_of",
    "tell",
    "texts",
]

# Between two messages: several come between a begin and its end.
PUBLISH_S = 0.0007
# Longer than `handover_keep_s`, after which what nobody acknowledged ends by itself.
REST_S = 90.0


class FakeNode(FakeHost[LcrApi]):
    """A node with the registry, and a broker once `Cluster.sessions` has made it the node's."""

    cluster: Cluster

    def __init__(self, cluster: Cluster, name: str, role: Role, plugin: LCR | None = None) -> None:
        super().__init__(cluster, name, role, plugin)
        self.lcr = self.opened
        self.broker = MemoryBroker(name)

    @property
    def manager(self) -> ChannelManager:
        manager = self.lcr.sessions_or_none()
        assert manager is not None, "call cluster.sessions() first"
        return manager

    @property
    def proposed(self) -> int:
        """How many commands it proposed."""
        return len(self.proposals)


class Cluster(FakeCluster[FakeNode]):
    """Nodes with the registry. `await cluster.start()` before use."""

    def __init__(
        self, cores: int = 3, replicants: int = 0, options: LcrOptions | None = None
    ) -> None:
        super().__init__(LCR, cores, replicants, options=options)

    def make_node(self, name: str, role: Role) -> FakeNode:
        return FakeNode(self, name, role)

    async def start(self) -> Cluster:
        await super().start()
        return self

    async def restart(self, name: str) -> FakeNode:
        """A new process under the same name, with a new broker if there was one."""
        former = self.nodes[name]
        node = await super().restart(name)
        if former.lcr.sessions_or_none() is not None:
            self.attach(node, MemoryBroker(name))
        return node

    def set(self, key: str, value: Any) -> None:
        self.configure(**{key: value})

    def before_each_open(
        self, node: FakeNode, act: Callable[[int], Coroutine[Any, Any, None]]
    ) -> None:
        """Before each registration of a session on this node arrives, `act` is done, from 1 on."""
        count = 0

        async def first_act(envelope: Envelope, number: int) -> None:
            await act(number)
            self.append([envelope])

        def delay(sender: FakeNode, envelope: Envelope) -> bool:
            nonlocal count
            if sender is not node or tag_of(envelope) != "open":
                return True
            count += 1
            node.runtime.spawn(first_act(envelope, count), "first")
            return False

        self.filter = delay

    # --- sessions ---

    async def sessions(
        self,
        mode: Mode = "enabled",
        owner: Callable[[FakeNode], MemoryBroker] = lambda node: node.broker,
    ) -> None:
        """Give every node a broker, and switch to `mode` by the steps that lead there."""
        for node in self.nodes.values():
            self.attach(node, owner(node))
        if mode != "disabled":
            await self.any_live().lcr.switch_mode(mode)

    def attach(self, node: FakeNode, broker: MemoryBroker) -> None:
        """Make this broker the node's."""
        node.broker = broker
        broker.attach(node.lcr)


def ended(old: Member, incarnation: int) -> MemberChange:
    """The change that a pure hook sees when a life ends."""
    return MemberChange(old, msgspec.structs.replace(old, up=False), incarnation)


# --- stories about sessions -----------------------------------------------------------------------

Story = Callable[[Cluster], Awaitable[None]]


def story(
    cores: int = 3,
    replicants: int = 0,
    options: LcrOptions | None = None,
    mode: Mode = "enabled",
) -> Callable[[Story], Callable[[], None]]:
    """A test on a cluster whose nodes have brokers; what must be at rest at its end is checked."""

    def wrap(body: Story) -> Callable[[], None]:
        def test() -> None:
            tell(body, cores, replicants, options, mode)

        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        return test

    return wrap


def tell(
    body: Story,
    cores: int = 3,
    replicants: int = 0,
    options: LcrOptions | None = None,
    mode: Mode = "enabled",
) -> None:
    """Run one story in virtual time."""

    async def whole() -> None:
        cluster = await Cluster(cores, replicants, options).start()
        await cluster.sessions(mode)
        await body(cluster)
        await settle(cluster)

    run(whole())


async def settle(cluster: Cluster) -> None:
    """Let everything come to rest, and check that nothing was left behind."""
    cluster.mishap = lambda sender, receiver, method: "none"
    await asyncio.sleep(REST_S)
    cluster.check()
    for node in cluster.nodes.values():
        if node.alive and not node.isolated and not node.paused:
            at_rest(node)


def at_rest(node: FakeNode) -> None:
    """Nothing is under way on the node, and its broker, its manager and the log agree."""
    kept = {metric.name: metric.value for metric in node.manager.handover.metrics()}
    for name in ("frozen", "lost_channels", "handovers_kept", "handover_bytes"):
        assert kept[name] == 0, f"{node.name}: {name} is {kept[name]}"
    assert not node.manager.opening
    assert len(node.lcr.reaper) == 0
    living = {(row.client_id, row.channel) for row in node.manager.owner.channels()}
    assert set(node.manager.held) == living
    for key, row in node.manager.held.items():
        assert node.lcr.lookup_local(key[0]) == row
        assert key not in node.broker.sessions or not node.broker.sessions[key].frozen
    for client_id, entry in node.view().table("clients").scan():
        assert entry.claim is None, f"a claim of {client_id} is left"
        if entry.owner.node == node.name:
            assert (client_id, entry.owner.channel) in living, f"{entry.owner} has no channel"


def message(number: int) -> Message:
    return Message(f"m{number}", b"")


def texts(messages: Iterable[Message]) -> list[str]:
    return [message.id for message in messages]


def live(cluster: Cluster, client_id: str = "c") -> list[tuple[str, Session]]:
    """The client's live sessions on all nodes, by the node's name."""
    return [
        (name, session)
        for name, node in cluster.nodes.items()
        if node.alive
        for session in node.broker.sessions.values()
        if session.client_id == client_id and session.live
    ]


class Publisher:
    """Publishes one message after the other for a client, each until some broker accepts it."""

    def __init__(self, cluster: Cluster, rng: random.Random, client_id: str = "c") -> None:
        self.accepted: list[str] = []
        self._cluster = cluster
        self._client_id = client_id
        self._rng = rng
        self._stopping = False
        self._task = asyncio.get_running_loop().create_task(self._play())

    async def stop(self) -> None:
        self._stopping = True
        await self._task

    async def _play(self) -> None:
        while not self._stopping:
            names = [name for name, node in self._cluster.nodes.items() if node.alive]
            self._rng.shuffle(names)
            one = message(len(self.accepted))
            for name in names:
                if self._cluster.nodes[name].broker.publish(self._client_id, one):
                    self.accepted.append(one.id)
                    break
            await asyncio.sleep(PUBLISH_S)

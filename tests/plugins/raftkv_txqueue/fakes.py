"""The queues on a cluster without consensus (`raftkv.testing.plugin_cluster`), in virtual time.

    @story(prepare_timeout_ms=500)
    async def test_it(cluster: Cluster) -> None:
        session = await cluster.txq("core1").session("tx")
        await cluster.fill("a", "x", "y", "z")
        ...
        assert cluster.bodies("core2", "a") == ["x", "y", "z"]

`story` takes settings of the plugin. A story begins with the queues "a" and "b", and ends with the
cluster's checks: invariants, equal states, no failed task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import NETWORK_S, FakeCluster, FakeHost, tag_of, until
from raftkv_txqueue import TxQueue, TxQueueOptions
from raftkv_txqueue.api import TxQueueApi
from raftkv_txqueue.commands import Message
from raftkv_txqueue.consuming import Delivery
from raftkv_txqueue.views import browse

__all__ = [
    "NETWORK_S",
    "REST_S",
    "Cluster",
    "bodies",
    "messages",
    "story",
    "tag_of",
    "until",
]

# Longer than any pause between two tries, so that what can come to rest does.
REST_S = 5.0

Node = FakeHost[TxQueueApi]


class Cluster(FakeCluster[Node]):
    """Nodes with the queues."""

    def txq(self, name: str) -> TxQueueApi:
        return self.nodes[name].opened

    async def fill(self, queue: str, *texts: str, node: str = "core1") -> None:
        """Publish these."""
        await self.txq(node).publish(queue, messages(*texts))

    def bodies(self, name: str, queue: str, *, everything: bool = False) -> list[str]:
        """What a node shows in a queue: the available messages, or all of them."""
        found = browse(self.nodes[name].view(), queue, 1, 1_000, everything)
        return [one.message.body.decode() for one in found]

    def everywhere(self, queue: str, *, everything: bool = False) -> list[str]:
        """The same, on all nodes that are up to date, which have to agree."""
        found = [
            self.bodies(node.name, queue, everything=everything)
            for node in self.nodes.values()
            if node.applies
        ]
        assert all(one == found[0] for one in found), found
        return found[0]

    def proposals(self, tag: str) -> int:
        """Commands of this tag that all nodes have proposed."""
        return sum(node.proposals.count(tag) for node in self.nodes.values())


def messages(*texts: str) -> list[Message]:
    """Messages with these bodies."""
    return [Message(text.encode()) for text in texts]


def bodies(deliveries: tuple[Delivery, ...]) -> list[str]:
    """The bodies of what a session got."""
    return [delivery.body.decode() for delivery in deliveries]


class FormerTxQueue(TxQueue):
    """The plugin in a cluster whose members announce format 1 of it."""

    version = 1


Story = Callable[[Cluster], Awaitable[None]]


def story(
    cores: int = 3,
    replicants: int = 0,
    *,
    options: TxQueueOptions | None = None,
    plugin: type[TxQueue] = TxQueue,
    **settings: Any,
) -> Callable[[Story], Callable[[], None]]:
    """A test on a cluster that has started, with these settings; its end is checked."""

    def wrap(body: Story) -> Callable[[], None]:
        async def whole() -> None:
            cluster = Cluster(plugin, cores, replicants, options=options)
            await cluster.start()
            cluster.configure(**settings)
            await cluster.txq("core1").declare("a")
            await cluster.txq("core1").declare("b")
            await body(cluster)
            await asyncio.sleep(REST_S)
            cluster.check()

        def test() -> None:
            run(whole())

        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        return test

    return wrap

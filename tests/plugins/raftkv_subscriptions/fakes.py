"""Topics on a cluster without consensus (`raftkv.testing.plugin_cluster`), in virtual time.

    @story(unacked_max=10)
    async def test_it(cluster: Cluster) -> None:
        subs = cluster.subs("core1")
        await cluster.fill("t", "x", "y", "z")
        ...
        assert cluster.bodies("core2", "t") == ["x", "y", "z"]

`story` takes settings of the plugin. A story begins with the topic "t", in a region without others,
and ends with the cluster's checks: invariants, equal states, no failed task, and nobody who still
waits for a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import NETWORK_S, FakeCluster, FakeHost, tag_of, until
from raftkv_subscriptions import Consumer, Message, Subscriptions, SubscriptionsOptions
from raftkv_subscriptions.api import SubscriptionsApi
from raftkv_subscriptions.views import read

__all__ = [
    "NETWORK_S",
    "REST_S",
    "Cluster",
    "FormerSubscriptions",
    "bodies",
    "messages",
    "story",
    "tag_of",
    "take",
    "until",
]

# Longer than any pause between two tries, so that what can come to rest does.
REST_S = 5.0

Node = FakeHost[SubscriptionsApi]


class FormerSubscriptions(Subscriptions):
    """The plugin in a cluster whose members announce format 1 of it."""

    version = 1


class _Body(Protocol):
    @property
    def body(self) -> bytes: ...


class Cluster(FakeCluster[Node]):
    """Nodes of one region."""

    def subs(self, name: str) -> SubscriptionsApi:
        return self.nodes[name].opened

    async def fill(self, topic: str, *texts: str, node: str = "core1") -> None:
        """Publish these."""
        await self.subs(node).publish(topic, messages(*texts))

    def bodies(self, name: str, topic: str = "t") -> list[str]:
        """What a node has in a topic."""
        found = read(self.nodes[name].view(), topic, 1, 10_000)
        return [one.stored.message.body.decode() for one in found]

    def everywhere(self, topic: str = "t") -> list[str]:
        """The same, on all nodes that are up to date, which have to agree."""
        found = [self.bodies(node.name, topic) for node in self.nodes.values() if node.applies]
        assert all(one == found[0] for one in found), found
        return found[0]

    def proposals(self, tag: str) -> int:
        """Commands of this tag that all nodes have proposed."""
        return sum(node.proposals.count(tag) for node in self.nodes.values())


def messages(*texts: str) -> list[Message]:
    """Messages with these bodies."""
    return [Message(text.encode()) for text in texts]


def bodies(received: Iterable[_Body]) -> list[str]:
    """The bodies of what somebody got."""
    return [one.body.decode() for one in received]


async def take(consumer: Consumer, count: int) -> list[str]:
    """The bodies of what a loop over the consumer hands out, so many of them."""
    got: list[str] = []
    async for message in consumer:
        got.append(message.body.decode())
        if len(got) == count:
            return got
    return got


Story = Callable[[Cluster], Awaitable[None]]


def story(
    cores: int = 3,
    replicants: int = 0,
    *,
    options: SubscriptionsOptions | None = None,
    plugin: type[Subscriptions] = Subscriptions,
    **settings: Any,
) -> Callable[[Story], Callable[[], None]]:
    """A test on a cluster that has started, with these settings; its end is checked."""

    def wrap(body: Story) -> Callable[[], None]:
        async def whole() -> None:
            cluster = Cluster(plugin, cores, replicants, options=options)
            await cluster.start()
            cluster.configure(**settings)
            await cluster.subs("core1").declare("t")
            await body(cluster)
            await asyncio.sleep(REST_S)
            cluster.check()
            for node in cluster.nodes.values():
                if node.applies:
                    assert len(node.opened.waiting) == 0, node.name

        def test() -> None:
            run(whole())

        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        return test

    return wrap

"""The limbo on a cluster without consensus (`raftkv.testing.plugin_cluster`), in virtual time.

    @story(quorum="N")
    async def test_all(cluster: Cluster) -> None:
        await cluster.own("core1")
        cluster.isolate("core3")
        ...

`story` takes settings of the limbo. A story begins with the sync space "s" and the async space "a",
and ends with the cluster's checks: invariants, equal states, no failed task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import NETWORK_S, FakeCluster, FakeHost, tag_of, until
from raftkv_limbo.api import LimboApi
from raftkv_limbo.commands import State, Write
from raftkv_limbo.options import LimboOptions
from raftkv_limbo.plugin import Limbo
from raftkv_limbo.views import state_of

__all__ = [
    "NETWORK_S",
    "Cluster",
    "asynchronous",
    "story",
    "sync",
    "tag_of",
    "until",
]

# Longer than any pause between two tries, so that what can come to rest does.
REST_S = 5.0

Node = FakeHost[LimboApi]


class Cluster(FakeCluster[Node]):
    """Nodes with the limbo."""

    def __init__(self, cores: int, replicants: int, zones: dict[str, str]) -> None:
        super().__init__(Limbo, cores, replicants)
        self._zones = zones

    def make_node(self, name: str, role: Any) -> Node:
        self.options = LimboOptions(zone=self._zones.get(name, ""))
        return super().make_node(name, role)

    def limbo(self, name: str) -> LimboApi:
        return self.nodes[name].opened

    async def own(self, name: str) -> LimboApi:
        """Promote the node; its API."""
        await self.limbo(name).promote()
        return self.limbo(name)

    @property
    def state(self) -> State:
        """As the log has it."""
        return state_of(self.witness.view("limbo"))

    def value(self, name: str, space: str, key: bytes) -> bytes | None:
        """What a reader of confirmed rows sees on a node."""
        view = self.nodes[name].view()
        row = view.table("rows").get((view.table("spaces")[space].id, key))
        return None if row is None else bytes(row.value)

    def proposals(self, tag: str) -> int:
        """Commands of this tag that all nodes have proposed."""
        return sum(node.proposals.count(tag) for node in self.nodes.values())


def sync(key: str, value: str | None = "x") -> list[Write]:
    """One write to the sync space."""
    return [Write("s", key.encode(), None if value is None else value.encode())]


def asynchronous(key: str, value: str | None = "x") -> list[Write]:
    """One write to the async space."""
    return [Write("a", key.encode(), None if value is None else value.encode())]


Story = Callable[[Cluster], Awaitable[None]]


def story(
    cores: int = 3,
    replicants: int = 0,
    *,
    zones: dict[str, str] | None = None,
    **settings: Any,
) -> Callable[[Story], Callable[[], None]]:
    """A test on a cluster that has started, with these settings; its end is checked."""

    def wrap(body: Story) -> Callable[[], None]:
        async def whole() -> None:
            cluster = Cluster(cores, replicants, zones or {})
            await cluster.start()
            cluster.configure(**settings)
            await cluster.limbo("core1").create_space("s", sync=True)
            await cluster.limbo("core1").create_space("a", sync=False)
            await body(cluster)
            await asyncio.sleep(REST_S)
            cluster.check()

        def test() -> None:
            run(whole())

        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        return test

    return wrap

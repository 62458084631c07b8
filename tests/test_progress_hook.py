"""`Service.on_progress` and `on_applied`: who hears what, and who makes writes dearer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from raftkv.kv import KV
from raftkv.plugin import Change, Host, Plugin, Service
from raftkv.testing import LocalCluster


class Listening(Service):
    def __init__(self, host: Host) -> None:
        self.host = host
        self.indexes: list[int] = []

    def on_progress(self, index: int) -> None:
        assert index == self.host.view().index
        self.indexes.append(index)


class Failing(Listening):
    def on_progress(self, index: int) -> None:
        super().on_progress(index)
        raise RuntimeError("on purpose")


class Capturing(Listening):
    def on_applied(self, index: int, changes: Sequence[Change]) -> None:
        """Only being there counts."""


class Choosy(Capturing):
    hears: ClassVar[tuple[str, ...] | None] = ("toy",)


class Toy(Plugin[None]):
    """Without state. `uses` the keyspace, so its service may hear of the keyspace's changes."""

    name: ClassVar[str] = "toy"
    uses: ClassVar[tuple[str, ...]] = ("kv",)

    def __init__(self, kind: type[Listening]) -> None:
        self.kind = kind
        self.made: Listening | None = None

    def open(self, host: Host) -> None:
        """No API."""

    def service(self, host: Host, api: None) -> Service:
        self.made = self.kind(host)
        return self.made


async def run(kind: type[Listening]) -> tuple[Listening, bool, int]:
    """The service after ten puts, whether the puts were captured, and the faults of hooks."""
    toy = Toy(kind)
    async with LocalCluster(cores=1, plugins=[toy], fsync="off") as cluster:
        node = cluster.nodes[0]
        for _ in range(10):
            await node.kv.put(b"k", b"v")
        tables: dict[str, Any] = node.machine._all[KV.name].tables
        captured = any(table.captured for table in tables.values())
        faults = node.hosting.hook_faults
        assert toy.made is not None
        assert toy.made.indexes[-1] == node.machine.index
    assert node.hosting._progress_hooks == []
    return toy.made, captured, faults


def test_progress_is_told_in_order_and_captures_nothing() -> None:
    service, captured, faults = asyncio.run(run(Listening))
    assert service.indexes == sorted(service.indexes)
    assert len(service.indexes) >= 10
    assert (captured, faults) == (False, 0)


def test_only_who_defines_on_applied_makes_writes_dearer() -> None:
    _, captured, _ = asyncio.run(run(Capturing))
    assert captured


def test_a_service_need_not_hear_of_all_that_its_plugin_uses() -> None:
    _, captured, _ = asyncio.run(run(Choosy))
    assert not captured


class Leading(Listening):
    """Starts its work with the office, as services do."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.told: list[str] = []

    def on_leader(self) -> None:
        self.told.append("leader")
        self.host.spawn(asyncio.Event().wait(), "for ever")  # type: ignore[arg-type]

    def on_follower(self) -> None:
        self.told.append("follower")

    async def stop(self) -> None:
        self.told.append("stop")


def test_a_service_that_was_stopped_is_not_told_that_it_leads() -> None:
    """The engine goes on for a moment, and an entry that it applies then may be the last before
    this node's term: a task that is spawned then would be nobody's."""

    async def main() -> None:
        toy = Toy(Leading)
        async with LocalCluster(cores=1, plugins=[toy], fsync="off") as cluster:
            hosting = cluster.nodes[0].hosting
            await hosting.stop()
            hosting.set_leads(True)
        assert isinstance(toy.made, Leading)
        # Stopped by us, and by the cluster.
        assert toy.made.told == ["leader", "follower", "stop", "stop"]
        assert hosting._tasks == set()

    asyncio.run(main())


def test_a_hook_that_fails_stops_nothing() -> None:
    service, _, faults = asyncio.run(run(Failing))
    assert faults == len(service.indexes) >= 10

"""Watches on real nodes: what they give while nodes are killed, restarted and fed by snapshots."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from msgspec.msgpack import encode

from raftkv.config import Limits, RaftTimes
from raftkv.errors import DiskFailed, NotApplied, OutcomeUnknown, Stopped, WatchCancelled
from raftkv.kv import KVApi, PutOp, Watch, WatchBatch, prefix_end
from raftkv.kv.commands import DeleteRangeOp, events_of
from raftkv.node import Node
from raftkv.plugin import Host
from raftkv.state.core import SetSetting
from raftkv.testing import LocalCluster
from raftkv.testing.watch_check import Watched, check_watch
from tests.kv.fake_host import FakeHost

RAFT = RaftTimes(
    heartbeat_ms=50, election_timeout_min_ms=400, election_timeout_max_ms=800, resend_ms=300
)
# Snapshots soon, and few entries behind them: who was away gets one.
LIMITS = Limits(snapshot_log_entries=100, log_tail_entries=10)
WAIT_S = 20.0


class Watcher:
    """Goes on at another node whenever its watch ends."""

    def __init__(self, cluster: LocalCluster, number: int, prefix: bytes) -> None:
        self.cluster = cluster
        self.turn = number
        self.prefix = prefix
        self.batches: list[WatchBatch] = []
        self.position = 1
        self.ends: list[str] = []
        self.watch: Watch | None = None

    async def run(self) -> None:
        while True:
            nodes = self.cluster.nodes
            self.turn += 1
            node = nodes[self.turn % len(nodes)]
            self.watch = watch = node.kv.watch(
                prefix=self.prefix, start_revision=self.position + 1, prev_kv=True
            )
            try:
                async with watch:
                    async for batch in watch:
                        self.batches.append(batch)
                        self.position = batch.revision
            except WatchCancelled as cancelled:
                self.ends.append(cancelled.reason)
                # Behind what was given; further if what came since did not concern the watch.
                given, self.position = self.position, cancelled.resume_revision - 1
                if self.position < given:
                    raise AssertionError(f"{given} was given already") from cancelled
            await asyncio.sleep(0.01)  # the node may be stopping: it ends new watches at once

    async def reach(self, revision: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.position < revision:
                if self.watch is not None:
                    self.watch.request_progress()
                await asyncio.sleep(0.02)

    def check(self, node: Node) -> None:
        rows = node.machine.view("kv").table("history").scan()
        history = {revision: events_of(row) for revision, row in rows}
        watched = Watched(self.prefix, prefix_end(self.prefix), 2, prev_kv=True)
        assert check_watch(watched, self.batches, history) == ""


async def write(cluster: LocalCluster, rounds: int) -> None:
    """Puts, transactions and deletions, by whichever node answers."""
    for number in range(rounds):
        node = cluster.nodes[number % len(cluster.nodes)]
        key = b"%d" % (number % 7)
        try:
            await node.kv.put(b"a/" + key, b"%d" % number, timeout_s=2)
            both = [PutOp(b"a/x" + key, b"x"), PutOp(b"b/x" + key, b"x"), PutOp(b"a/y", b"y")]
            await node.kv.txn([], both, timeout_s=2)
            await node.kv.txn([], [DeleteRangeOp(b"a/x", b"a/y")], timeout_s=2)
        except (NotApplied, OutcomeUnknown):
            await asyncio.sleep(0.02)


async def story() -> list[Watcher]:
    async with LocalCluster(
        cores=3, replicants=1, raft=RAFT, limits=LIMITS, fsync="off"
    ) as cluster:
        watchers = [Watcher(cluster, n, prefix) for n, prefix in enumerate([b"a/", b"a/", b"b/"])]
        tasks = [asyncio.create_task(watcher.run()) for watcher in watchers]
        for victim in ("core1", "replicant1", "leader"):
            writing = asyncio.create_task(write(cluster, 60))
            await watchers[-1].reach(watchers[-1].position + 1)
            leader = cluster.leader()
            name = leader.name if victim == "leader" and leader is not None else victim
            name = "core2" if name == "leader" else name
            await cluster.kill(name)
            await writing
            await cluster.restart(name)
        await cluster.wait_ready()
        await cluster.converge()
        revision = cluster.nodes[0].kv.revision
        await asyncio.gather(*(watcher.reach(revision) for watcher in watchers))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for watcher in watchers:
            watcher.check(cluster.nodes[-1])
        assert revision > 300
        return watchers


def test_a_watch_goes_on_at_another_node_without_a_gap_or_a_double() -> None:
    watchers = asyncio.run(story())
    assert {end for watcher in watchers for end in watcher.ends} == {"stopped"}
    assert all(watcher.batches for watcher in watchers)


def test_a_put_is_seen_by_a_watch_that_was_there_before() -> None:
    async def story() -> None:
        async with LocalCluster(cores=1, fsync="off") as cluster:
            node = cluster.nodes[0]
            first = await node.kv.put(b"k", b"1")
            async with node.kv.watch(b"k") as watch:
                assert await watch.created() == first.revision
                put = await node.kv.put(b"k", b"2")
                batch = await anext(watch)
                assert (batch.revision, batch.events[0].kv.value) == (put.revision, b"2")
            async with node.kv.watch(start_revision=1) as everything:
                assert (await anext(everything)).revision == put.revision
                await node.stop()
                with pytest.raises(WatchCancelled) as cancelled:
                    await anext(everything)
                assert cancelled.value.reason == "stopped"

    asyncio.run(story())


def test_a_compaction_in_the_same_moment_as_changes_ends_no_live_watch() -> None:
    """The changes and the compaction are applied in one go, before a watch is handed anything."""

    async def story() -> None:
        async with LocalCluster(cores=1, fsync="off") as cluster:
            node = cluster.nodes[0]
            first = (await node.kv.put(b"k", b"0")).revision
            async with node.kv.watch(b"k") as watch:
                puts = [node.kv.put(b"k", b"%d" % number) for number in range(100)]
                compacting = node.kv.compact(first + 100)
                *_, compacted = await asyncio.gather(*puts, compacting)
                assert compacted.revision == first + 100
                seen: list[int] = []
                while len(seen) < 100:
                    seen += [event.kv.mod_revision for event in (await anext(watch)).events]
                assert seen == list(range(first + 1, first + 101))
            with pytest.raises(WatchCancelled):
                await anext(node.kv.watch(b"k", start_revision=first + 1))

    asyncio.run(story())


def test_a_node_that_stops_itself_ends_its_watches() -> None:
    async def story() -> None:
        async with LocalCluster(cores=1, fsync="off") as cluster:
            node = cluster.nodes[0]
            watch = node.kv.watch()
            waiting = asyncio.create_task(anext(watch))
            await asyncio.sleep(0)
            node._faulted(DiskFailed("on purpose"))
            with pytest.raises(WatchCancelled) as cancelled:
                await waiting
            assert cancelled.value.reason == "stopped"
            with pytest.raises(WatchCancelled):
                await anext(node.kv.watch())

    asyncio.run(story())


def test_a_watch_makes_writes_no_dearer() -> None:
    async def story() -> None:
        async with LocalCluster(cores=1, fsync="off") as cluster:
            node = cluster.nodes[0]
            async with node.kv.watch():
                routed, capture = node.machine._all, node.machine._capture
                assert routed["core"].tables["members"].captured  # the node hears of its members
                assert not any(table.captured for table in routed["kv"].tables.values())
                collect, collected = capture.collect, []

                def collecting() -> None:
                    collected.append({table.plugin for table, _, _ in node.machine._undo})
                    collect()

                capture.collect = collecting  # type: ignore[method-assign]
                await node.kv.put(b"k", b"v")
                await node.propose("core", SetSetting("kv", "leases_max", encode(7)))
                assert {"core"} in collected
                assert {"kv"} not in collected

    asyncio.run(story())


@pytest.mark.parametrize(
    "arguments",
    [{"start_revision": -1}, {"progress_s": -1.0}, {"last": b"\0"}, {"key": b"b", "last": b"a"}],
)
def test_what_cannot_be_watched_is_refused_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="from 0 to|0 or more|no key between"):
        KVApi(cast(Host, FakeHost())).watch(**arguments)


def test_a_node_that_was_not_started_has_nothing_to_watch() -> None:
    with pytest.raises(Stopped):
        KVApi(cast(Host, FakeHost())).watch(b"k")

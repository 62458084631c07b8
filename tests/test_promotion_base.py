"""A promoted replicant begins its log with the configuration in force where it stands."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftkv.errors import DiskFailed, MembershipRefused, RaftkvError
from raftkv.node import Node
from raftkv.promotion import METHOD_FORMER, NotYet, Promotion
from raftkv.raft.changing import add_learner, remove
from raftkv.raft.membership import Configuration
from raftkv.testing.local_cluster import LocalCluster
from raftkv.testing.simulated import SimulatedCluster
from tests.test_membership import in_loop, refused, until


def quiet(seed: int, cores: int) -> SimulatedCluster:
    cluster = SimulatedCluster(
        seed=seed, cores=cores, replicants=1, rate_per_s=20.0, deliveries=False
    )
    # A core that is removed stops itself, which no operator of this world has asked for.
    cluster._judge_fault = lambda name, fault: None  # type: ignore[method-assign]
    return cluster


def test_members_that_change_while_the_request_is_on_its_way() -> None:
    """A core is removed between the leader's request and the moment at which it arrives."""
    with quiet(seed=5, cores=3) as cluster:
        cluster.run(2.0)
        leader = next(name for name in cluster.cores if cluster.nodes[name]._part.leads)
        replicant: Any = cluster.nodes["replicant1"]
        for _ in range(20):
            upstream = replicant._part.follower.upstream
            if upstream and upstream != leader:
                break
            cluster.world.network.reset("replicant1", upstream)
            cluster.run(0.5)
        gone = next(name for name in cluster.cores if name not in (leader, upstream))
        node: Any = cluster.nodes[leader]

        async def ask(call: Coroutine[Any, Any, Any]) -> None:
            with contextlib.suppress(RaftkvError):
                await cluster.world.call(leader, call)

        # So that the stream of calls stands when it stalls.
        cluster.world.complete(ask(node.rpc.call("replicant1", "core.no", b"", 1.0)))
        cluster.world.network.stall(leader, "replicant1", 4.0)
        cluster.world.spawn(ask(node.membership.promote("replicant1", timeout_s=30)), "promote")
        cluster.run(0.5)
        cluster.world.spawn(ask(node.membership.remove(gone, timeout_s=30)), "remove")
        cluster.run(1.5)
        engine = node._part.engine
        assert gone not in str(engine.configuration.voters)
        cluster.names.remove(gone)
        cluster.run(6.0)
        made = replicant._part.engine
        base = made.configurations.base_index
        assert made.configurations.at(base) == engine.configurations.at(base)
        assert made.configurations.since(base) == engine.configurations.since(base) > 0
        assert made.me in engine.configuration.voters


class Callee:
    """What the replicant of a cluster answers when it is asked to become a core."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.node = cluster.replicants[0]
        self.core = cluster.cores[0]
        self.engine: Any = self.core._part.engine  # type: ignore[union-attr]

    async def ask(self, since: int) -> None:
        await self.core.promotion.ask("replicant1", self.node.raft_id, since, 5.0)

    async def change(self, proposed: Configuration) -> int:
        index: int = self.engine.change_configuration(proposed, force=False)
        await until(lambda: self.node.machine.index >= index)
        return index


@in_loop
async def test_a_replicant_that_stands_before_the_entry_or_knows_nothing_is_asked_again() -> None:
    async with LocalCluster(cores=1, replicants=1) as cluster:
        asked = Callee(cluster)
        with pytest.raises(NotYet, match="not 999 yet"):
            await asked.ask(999)
        follower: Any = asked.node._part.follower  # type: ignore[union-attr]
        in_force = follower.in_force
        assert in_force.configuration == asked.engine.configuration
        known, in_force.configuration = in_force.configuration, None
        with pytest.raises(NotYet, match="does not know the members yet"):
            await asked.ask(2)
        in_force.configuration = known
        with pytest.raises(MembershipRefused, match="was removed again"):
            await asked.ask(2)
        assert asked.node.role == "replicant"
        await asked.core.membership.promote("replicant1")
        assert asked.node.role == "core"


async def begun_slowly(asked: Callee) -> tuple[int, asyncio.Event, asyncio.Future[Any]]:
    """A promotion under way that goes on once the event is set: (since, event, its answer)."""
    current = asked.engine.configuration
    since = await asked.change(add_learner(current, asked.node.raft_id))
    held, offload = asyncio.Event(), asked.node.runtime.offload_bulk

    async def slow(function: Any, *arguments: Any) -> Any:
        await held.wait()
        return await offload(function, *arguments)

    asked.node.runtime.offload_bulk = slow  # type: ignore[method-assign]
    asking = asyncio.ensure_future(asked.ask(since))
    follower: Any = asked.node._part.follower  # type: ignore[union-attr]
    await until(lambda: follower.kept is not None)
    return since, held, asking


@in_loop
async def test_a_removal_stops_a_promotion_under_way() -> None:
    async with LocalCluster(cores=1, replicants=1) as cluster:
        asked = Callee(cluster)
        _since, held, asking = await begun_slowly(asked)
        follower: Any = asked.node._part.follower  # type: ignore[union-attr]
        await asked.change(remove(asked.engine.configuration, asked.node.raft_id))
        held.set()
        with pytest.raises(MembershipRefused, match="was removed again"):
            await asking
        assert asked.node.role == "replicant"
        assert follower.kept is None
        await asked.node.kv.put(b"k", b"v")


@in_loop
async def test_a_newer_request_stops_an_older_promotion() -> None:
    async with LocalCluster(cores=1, replicants=1) as cluster:
        asked = Callee(cluster)
        since, held, older = await begun_slowly(asked)
        await asked.core.kv.put(b"k", b"v")
        newer = asyncio.ensure_future(asked.ask(since + 1))
        await until(lambda: asked.node.promotion._since == since + 1)
        held.set()
        with pytest.raises(NotYet, match="later entry"):
            await older
        await newer
        assert asked.node.role == "core"


@in_loop
async def test_below_core_format_2_a_promotion_is_refused_with_what_to_do() -> None:
    cluster = LocalCluster(cores=1, replicants=1)
    cluster.core_formats = dict.fromkeys(("core1", "replicant1"), 1)
    async with cluster:
        core, replicant = cluster.nodes
        await refused(lambda: core.membership.promote("replicant1"), "`raftkv format raise`")
        assert not core._part.engine.configuration.learners  # type: ignore[union-attr]
        # So is a leader of that release, which brings a configuration along.
        request = msgspec.msgpack.encode((replicant.raft_id, b"\x93\x90\x90\x90"))
        answer = await core.rpc.call("replicant1", METHOD_FORMER, request, 2.0)
        assert "`raftkv format raise`" in msgspec.msgpack.decode(answer)[0]
        assert replicant.role == "replicant"


class Lacking:
    """The files of a node; an operation for which `lacks` is true finds no descriptor left."""

    def __init__(self, node: Node, lacks: Callable[[str, str], bool]) -> None:
        files = node.runtime.files
        self.failed = 0

        def lacking(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
            def operation(path: str, *more: Any) -> Any:
                if lacks(name, path):
                    self.failed += 1
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
                return plain(path, *more)

            return operation

        for name in ("open", "sync_dir"):
            setattr(files, name, lacking(name, getattr(files, name)))


@pytest.mark.parametrize("where", ["snapshots", "identity.json.new", "after the rename"])
def test_a1_a_promotion_waits_for_a_descriptor_and_stops_no_node(where: str) -> None:
    asyncio.run(asyncio.wait_for(promoted_without_descriptors(where), 90))


async def promoted_without_descriptors(where: str) -> None:
    async with LocalCluster(cores=1, replicants=1) as cluster:
        core, node = cluster.nodes
        await core.kv.put(b"k", b"v")
        directory: Any = node._directory
        wanted = 3

        def lacks(name: str, path: str) -> bool:
            if lacking.failed == wanted:
                return False
            if where == "after the rename":
                return name == "sync_dir" and directory.replaced
            return where in path

        lacking = Lacking(node, lacks)
        await core.membership.promote("replicant1", timeout_s=60)
        assert lacking.failed == wanted
        assert not node.fault.done()
        assert (node.role, directory.identity.role) == ("core", "core")
        assert not directory.replaced
        await node.kv.put(b"k", b"w")
        assert (await core.kv.get(b"k")).value == b"w"


@in_loop
async def test_a1_without_descriptors_a_promotion_says_so_in_time() -> None:
    async with LocalCluster(cores=1, replicants=1) as cluster:
        core, node = cluster.nodes
        Lacking(node, lambda name, path: path.endswith("identity.json.new"))
        with pytest.raises(MembershipRefused, match=r"no file descriptor is left .*ulimit -n"):
            await core.membership.promote("replicant1", timeout_s=3.0)
        assert node.role == "replicant"
        assert not node.fault.done()
        follower: Any = node._part.follower  # type: ignore[union-attr]
        await until(lambda: follower.kept is None)
        await node.kv.put(b"k", b"v")


@in_loop
async def test_a1_a_disk_that_fails_in_the_last_step_is_a_fault_and_one_before_it_is_not() -> None:
    async with LocalCluster(cores=1, replicants=1) as cluster:
        core, node = cluster.nodes
        follower: Any = node._part.follower  # type: ignore[union-attr]
        files: Any = node.runtime.files
        plain = files.open

        def fails(path: str, *more: Any) -> Any:
            if failing in path:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return plain(path, *more)

        files.open, failing = fails, "snapshots"
        with pytest.raises(MembershipRefused, match="its disk refuses"):
            await core.membership.promote("replicant1", timeout_s=30)
        assert follower.kept is None, "nothing is kept for a log that is not written"
        failing = "identity.json.new"
        with pytest.raises(RaftkvError):
            await core.membership.promote("replicant1", timeout_s=3.0)
        assert isinstance(await node.fault, DiskFailed)


@in_loop
async def test_of_two_newer_requests_that_wait_the_newest_is_done() -> None:
    """Whatever the order in which they go on once the promotion that ran has stopped."""
    begun: list[int] = []
    ends = asyncio.Event()

    class Watched(Promotion):
        async def _promote(self, since: int) -> None:
            begun.append(since)
            while not ends.is_set():
                await asyncio.sleep(0)
                if since < self._since:
                    raise NotYet("stopped")

    node: Any = SimpleNamespace(
        rpc=SimpleNamespace(register=lambda *given: None),
        role="replicant",
        hosting=SimpleNamespace(spawn=lambda work, name: asyncio.create_task(work)),
    )
    promotion = Watched(node)
    asked = []
    for since in (3, 5, 7):
        asked.append(asyncio.create_task(promotion._once(since)))
        await asyncio.sleep(0)
    while begun != [3, 7]:
        await asyncio.sleep(0)
    with pytest.raises(NotYet, match="as of entry 7 already"):
        await promotion._once(6)
    ends.set()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in found] == [NotYet, NotYet, type(None)]

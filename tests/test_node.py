"""Whole nodes on loopback sockets and real files: what a program that embeds raftkv relies on."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftkv.config import Limits, NodeConfig, RaftTimes
from raftkv.errors import (
    AddressInUse,
    ConfigError,
    DirectoryLocked,
    DiskFailed,
    NodeFault,
    NoLeader,
    NotApplied,
    NotPermitted,
    Overloaded,
    PeerUnreachable,
    ReadTimeout,
    RemoteFailed,
    Stopped,
    Timeout,
    TooLarge,
    WipedNode,
    WrongCluster,
    WrongDataDirectory,
)
from raftkv.kv import Compare, DuplicateKey, PutOp
from raftkv.node import Node
from raftkv.raft import wire
from raftkv.testing.local_cluster import LocalCluster, free_ports
from tests.upstreams import upstream_of

SMALL_LOG = Limits(snapshot_log_entries=40, log_tail_entries=10)
Test = Callable[..., Coroutine[Any, Any, None]]


def in_loop(test: Test) -> Callable[..., None]:
    """Run a coroutine as a test, with an end to every wait."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 40))

    return run


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Poll until `condition` is true."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def raised(awaitable: Awaitable[Any], kind: type[BaseException]) -> Any:
    with pytest.raises(kind) as caught:
        await awaitable
    return caught.value


async def leader_of(cluster: LocalCluster) -> Node:
    await until(cluster.leader)
    found = cluster.leader()
    assert found is not None
    return found


async def without_quorum(cluster: LocalCluster, *, keep_leader: bool) -> Node:
    """Kill all cores but one; the one that is left."""
    leader = await leader_of(cluster)
    left = leader if keep_leader else next(n for n in cluster.cores if n is not leader)
    for node in cluster.cores:
        if node is not left:
            await cluster.kill(node.name)
    return left


def digests(cluster: LocalCluster) -> set[str]:
    return {node.machine.digest() for node in cluster.nodes}


# Reading and writing -----------------------------------------------------------------------------


@in_loop
async def test_every_node_writes_and_every_node_reads_it_at_once() -> None:
    async with LocalCluster(cores=3, replicants=2) as cluster:
        for number, writer in enumerate(cluster.nodes):
            value = b"%d" % number
            result = await writer.kv.put(b"key", value)
            own = await writer.kv.get(b"key", consistency="local")
            assert own is not None
            assert (own.value, own.mod_revision) == (value, result.revision)
            for reader in cluster.nodes:
                found = await reader.kv.get(b"key")
                assert found is not None
                assert (found.value, found.version) == (value, number + 1)
        await cluster.converge()
        assert len(digests(cluster)) == 1


@in_loop
async def test_the_keyspaces_calls_work_on_a_replicant() -> None:
    async with LocalCluster(cores=1, replicants=1) as cluster:
        kv = cluster.replicants[0].kv
        await asyncio.gather(*(kv.put(b"a/%d" % i, b"x") for i in range(10)))
        assert (await kv.range(prefix=b"a/")).count == 10
        assert (await kv.delete(prefix=b"a/", prev_kv=True)).deleted == 10
        done = await kv.txn([Compare(b"n", "version", "=", 0)], [PutOp(b"n", b"1")])
        assert done.succeeded
        again = await kv.txn([Compare(b"n", "version", "=", 0)], [PutOp(b"n", b"2")])
        assert not again.succeeded
        found = await cluster.cores[0].kv.get(b"n")
        assert found is not None
        assert found.value == b"1"


@in_loop
async def test_a_refusal_arrives_as_its_own_class_on_every_node() -> None:
    async with LocalCluster(cores=3, replicants=1) as cluster:
        for node in cluster.nodes:
            twice = [PutOp(b"k", b"1"), PutOp(b"k", b"2")]
            await raised(node.kv.txn(success=twice), DuplicateKey)
            assert await node.kv.get(b"k") is None


@in_loop
async def test_a_node_that_has_no_room_says_so_at_once() -> None:
    limits = Limits(outbox_commands_max=3)
    async with LocalCluster(cores=1, limits=limits) as cluster:
        kv = cluster.nodes[0].kv
        error = await raised(kv.put(b"k", b"x" * 5_000_000), TooLarge)
        assert isinstance(error, NotApplied)
        assert "value_bytes_max" in str(error)
        # The leader's own announcement takes a place, too.
        await until(lambda: cluster.nodes[0].machine.voters[1])
        puts = [asyncio.create_task(kv.put(b"%d" % i, b"x")) for i in range(6)]
        results = await asyncio.gather(*puts, return_exceptions=True)
        refused = [r for r in results if isinstance(r, Overloaded)]
        assert len(refused) == 3
        assert "limits.outbox_commands_max" in str(refused[0])
        assert (await kv.range(b"0", b"9")).count == 3


# Without a quorum --------------------------------------------------------------------------------


@in_loop
async def test_a_command_that_never_left_is_not_applied() -> None:
    async with LocalCluster(cores=3) as cluster:
        left = await without_quorum(cluster, keep_leader=False)
        await until(lambda: left.leader is None)
        error = await raised(left.kv.put(b"k", b"v", timeout_s=1), NoLeader)
        assert isinstance(error, NotApplied)
        assert "has not left this node" in str(error)
        assert isinstance(await raised(left.kv.get(b"k", timeout_s=1), ReadTimeout), NotApplied)
        assert await left.kv.get(b"k", consistency="local") is None
        for name in cluster.configs:
            if name not in cluster.running:
                await cluster.restart(name)
        assert await left.kv.get(b"k") is None


@in_loop
async def test_a_command_on_its_way_is_unknown_and_can_be_asked_for() -> None:
    async with LocalCluster(cores=3) as cluster:
        leader = await without_quorum(cluster, keep_leader=True)
        error = await raised(leader.kv.put(b"k", b"v", timeout_s=1), Timeout)
        assert not isinstance(error, NotApplied)
        assert error.session == leader.session
        await cluster.restart(next(n for n in cluster.configs if n not in cluster.running))
        answer = await leader.outcome(error.session, error.seq, timeout_s=20)
        assert answer.verdict == "applied"
        assert answer.result.revision == 2
        found = await leader.kv.get(b"k")
        assert found is not None
        assert found.version == 1


@in_loop
async def test_what_was_not_applied_when_asked_for_never_is() -> None:
    async with LocalCluster(cores=1) as cluster:
        (node,) = cluster.nodes
        unused = node.outbox._next_seq + 1  # the question itself takes the next
        answer = await node.outcome(node.session, unused)
        assert answer.verdict == "not_applied"
        error = await raised(node.kv.put(b"k", b"v"), Exception)
        assert "not applied" in str(error)
        assert await node.kv.get(b"k") is None
        await node.kv.put(b"k", b"v")


# Restarts ----------------------------------------------------------------------------------------


@in_loop
async def test_a_restarted_core_has_everything() -> None:
    async with LocalCluster(cores=3) as cluster:
        for number in range(20):
            await cluster.nodes[number % 3].kv.put(b"%d" % number, b"x")
        for name in list(cluster.configs):
            before = cluster.running[name].incarnation
            node = await cluster.restart(name)
            assert node.incarnation > before
            assert (await node.kv.range(b"0")).count == 20
        await cluster.converge()
        assert len(digests(cluster)) == 1


@in_loop
async def test_a_cluster_that_was_switched_off_has_everything() -> None:
    async with LocalCluster(cores=3, replicants=1) as cluster:
        await asyncio.gather(*(node.kv.put(node.name.encode(), b"x") for node in cluster.nodes))
        identity = cluster.nodes[0].status().cluster_id
        for _ in range(2):
            for name in list(cluster.running):
                await cluster.kill(name)
            for name in cluster.configs:
                await cluster.start(name)
            await cluster.wait_ready()
            for node in cluster.nodes:
                assert (await node.kv.range(b"0")).count == 4
                assert node.status().cluster_id == identity


@in_loop
async def test_a_leader_that_is_killed_is_replaced_and_nothing_is_done_twice() -> None:
    """Every put takes one revision: the last revision counts what was applied."""
    async with LocalCluster(cores=3, replicants=2) as cluster:
        puts = 0

        async def write(node: Node) -> None:
            nonlocal puts
            for number in range(60):
                await node.kv.put(b"%s/%d" % (node.name.encode(), number), b"x", timeout_s=30)
                puts += 1

        writers = [asyncio.create_task(write(node)) for node in cluster.replicants]
        for goal in (20, 50, 80):
            await until(lambda goal=goal: puts >= goal)  # type: ignore[misc]
            killed = (await leader_of(cluster)).name
            await cluster.kill(killed)
            await leader_of(cluster)
            await cluster.restart(killed)
        await asyncio.gather(*writers)
        await cluster.converge()
        for node in cluster.nodes:
            assert node.kv.revision == 1 + 120
        assert len(digests(cluster)) == 1


@in_loop
async def test_stopping_and_starting_leaks_no_file() -> None:
    def descriptors() -> list[str]:
        found = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sorted(os.readlink(path) for path in found if os.path.exists(path))

    async with LocalCluster(cores=1) as cluster:
        await cluster.restart("core1")
        for _ in range(3):
            await cluster.restart("core1")
            await cluster.nodes[0].kv.put(b"k", b"v")
        logs = [path for path in descriptors() if path.startswith(cluster.directory)]
        assert len([path for path in logs if "/wal/" in path]) <= 1, logs


# Nodes that must not start -----------------------------------------------------------------------


@asynccontextmanager
async def one_core(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(cores=1, directory=str(tmp_path)) as cluster:
        yield cluster


def variant(config: NodeConfig, **changes: Any) -> Node:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    name = changes.get("name", config.name)
    changes = {"peer_address": address, "cores": {name: address}, **changes}
    return Node(msgspec.structs.replace(config, **changes), plugins=())


@in_loop
async def test_a_locked_directory_is_refused(tmp_path: Path) -> None:
    async with one_core(tmp_path) as cluster:
        error = await raised(variant(cluster.configs["core1"]).start(), DirectoryLocked)
        assert "Stop that node first" in str(error)
        await cluster.nodes[0].kv.put(b"k", b"v")


@pytest.mark.parametrize(
    ("changes", "kind", "advice"),
    [
        ({"name": "core9"}, WrongDataDirectory, "Give this node a directory of its own"),
        ({"cluster": "other"}, WrongCluster, "Give this node a directory of its own"),
    ],
)
def test_a_directory_of_another_node_is_refused(
    tmp_path: Path, changes: dict[str, str], kind: type[NodeFault], advice: str
) -> None:
    @in_loop
    async def test() -> None:
        async with one_core(tmp_path) as cluster:
            await cluster.kill("core1")
            error = await raised(variant(cluster.configs["core1"], **changes).start(), kind)
            assert advice in str(error)
            await cluster.restart("core1")

    test()


@in_loop
async def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    async with one_core(tmp_path) as cluster:
        address = cluster.configs["core1"].peer_address
        changes = {"dir": str(tmp_path / "x"), "peer_address": address, "cores": {"core1": address}}
        node = variant(cluster.configs["core1"], **changes)
        error = await raised(node.start(), AddressInUse)
        assert address in str(error)
        assert "choose another port" in str(error)
        await node.stop()
        assert await cluster.nodes[0].kv.get(b"k") is None


@in_loop
async def test_a_node_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """Two clusters of one name: who is not part of anything yet must not fall into either."""
    async with LocalCluster(cores=2) as cluster, one_core(tmp_path) as other:
        stranger = msgspec.structs.replace(
            other.configs["core1"],
            name="core2",
            dir=str(tmp_path / "x"),
            cluster="elsewhere",
            peer_address=f"127.0.0.1:{free_ports(1)[0]}",
            cores=cluster.configs["core1"].cores,
        )
        async with Node(stranger, plugins=()) as node:
            fault = await asyncio.wait_for(node.fault, 10)
            assert isinstance(fault, WrongCluster)
            assert "Check the addresses under [cores]" in str(fault)
            assert (await raised(node.kv.get(b"k"), WrongCluster)).__cause__ is fault
        await cluster.nodes[0].kv.put(b"k", b"v")


@pytest.mark.parametrize("name", ["core1", "core2", "core3"])
def test_a_wiped_core_stops_and_the_others_go_on(name: str) -> None:
    """Rule 10: it has forgotten its votes. Who dials whom must make no difference."""

    @in_loop
    async def test() -> None:
        async with LocalCluster(cores=3) as cluster:
            await cluster.nodes[0].kv.put(b"k", b"v")
            await cluster.kill(name)
            shutil.rmtree(f"{cluster.directory}/{name}")
            wiped = await cluster.start(name)
            fault = await asyncio.wait_for(wiped.fault, 10)
            assert isinstance(fault, WipedNode)
            assert "then add this node" in str(fault)
            others = [node for node in cluster.nodes if node is not wiped]
            await cluster.restart(others[1].name)  # a healthy core that starts beside it
            for node in cluster.nodes:
                if node is not wiped:
                    assert await node.kv.get(b"k") is not None
                    assert not node.fault.done()

    test()


@in_loop
async def test_a_failing_disk_stops_the_node_and_its_calls_say_why() -> None:
    async with LocalCluster(cores=1) as cluster:
        (node,) = cluster.nodes

        def broken(pending: object) -> None:
            raise OSError(5, "Input/output error")

        node._part.engine.wal.write = broken  # type: ignore[union-attr]
        error = await raised(node.kv.put(b"k", b"v"), Timeout)
        assert error.seq
        fault = await node.fault
        assert isinstance(fault, DiskFailed)
        assert (await raised(node.kv.put(b"k", b"v"), DiskFailed)).__cause__ is fault
        assert (await raised(node.kv.get(b"k"), DiskFailed)).__cause__ is fault
        assert "Input/output error" in (node.status().fault or "")
        assert cluster.leader() is None, "a node that has stopped leads nobody"


@in_loop
async def test_a_stopped_node_says_so() -> None:
    async with LocalCluster(cores=1) as cluster:
        (node,) = cluster.nodes
        await cluster.kill("core1")
        await raised(node.kv.put(b"k", b"v"), Stopped)
        await raised(node.kv.get(b"k"), Stopped)
        unborn = Node(cluster.configs["core1"], plugins=())
        await raised(unborn.propose("kv", wire.TimeoutNow(1)), Stopped)
        with pytest.raises(Stopped, match="has not been started"):
            unborn.kv.revision  # noqa: B018


@in_loop
async def test_a_stop_during_the_start_ends_the_start(tmp_path: Path) -> None:
    """A signal may come at any moment; a node that is told to stop must not go on to listen."""
    async with one_core(tmp_path) as cluster:
        config = cluster.configs["core1"]
        for _ in range(30):
            await cluster.nodes[0].kv.put(b"k", b"v")
        await cluster.kill("core1")
        for turns in range(0, 40, 3):
            node = Node(config, plugins=())
            starting = asyncio.ensure_future(node.start())
            for _ in range(turns + 1):
                await asyncio.sleep(0)
            early = not starting.done()
            await node.stop()
            if early:
                await raised(starting, Stopped)
        await cluster.restart("core1")  # the address and the directory are free
        assert (await cluster.nodes[0].kv.get(b"k")).value == b"v"


@in_loop
async def test_who_stops_a_node_a_second_time_waits_for_its_end(tmp_path: Path) -> None:
    async with one_core(tmp_path) as cluster:
        node = cluster.running.pop("core1")
        first = asyncio.ensure_future(node.stop())
        await asyncio.sleep(0)
        first.cancel()
        await raised(first, asyncio.CancelledError)
        await node.stop()
        await cluster.restart("core1")  # the address and the directory are free


# The office --------------------------------------------------------------------------------------


@in_loop
async def test_a_clean_stop_hands_the_office_over() -> None:
    times = RaftTimes(election_timeout_min_ms=20_000, election_timeout_max_ms=30_000)
    async with LocalCluster(cores=3, raft=times) as cluster:
        first = cluster.leader()
        assert first is not None
        await first.kv.put(b"k", b"v")
        # The two that are left elect with each other's votes, which they ask for once.
        await until(lambda: all(len(node._part.engine.links) == 2 for node in cluster.nodes))
        term = first.term
        await cluster.running.pop(first.name).stop()
        await until(lambda: cluster.leader() is not None)
        second = cluster.leader()
        assert second is not None
        assert second.term == term + 1, "one election, won at the first attempt"
        assert (await second.kv.get(b"k")).value == b"v"
        await second.kv.put(b"k", b"w")


@in_loop
async def test_a_lease_read_is_answered_by_every_node() -> None:
    async with LocalCluster(cores=3, replicants=1, raft=RaftTimes(lease_ms=300)) as cluster:
        leader = cluster.leader()
        assert leader is not None
        await until(lambda: leader._part.holds_lease)
        for number, node in enumerate(cluster.nodes):
            await node.kv.put(b"k", b"%d" % number)
            for reader in (leader, node):
                found = await reader.kv.get(b"k", consistency="lease")
                assert found.value == b"%d" % number
        asked = leader.reader._number
        await leader.kv.get(b"k", consistency="lease")
        assert leader.reader._number == asked, "the leader asked nobody"
        with pytest.raises(ValueError, match="is none of"):
            await leader.kv.get(b"k", consistency="fresh")


# Replicants --------------------------------------------------------------------------------------


@in_loop
async def test_a_replicant_moves_when_its_upstream_dies() -> None:
    async with LocalCluster(cores=3, replicants=1) as cluster:
        (replicant,) = cluster.replicants
        seen = set()
        for number in range(3):
            upstream = await upstream_of(replicant)
            seen.add(upstream)
            await cluster.kill(upstream)
            await replicant.kv.put(b"%d" % number, b"x", timeout_s=20)
            assert (await replicant.kv.range(b"0", timeout_s=20)).count == number + 1
            await upstream_of(replicant, other_than=upstream)
            await cluster.restart(upstream)
        assert len(seen) >= 2
        await cluster.converge()
        assert len(digests(cluster)) == 1


@in_loop
async def test_a_replicant_leaves_an_upstream_that_has_lost_the_leader() -> None:
    async with LocalCluster(cores=3, replicants=1) as cluster:
        (replicant,) = cluster.replicants
        upstream = await upstream_of(replicant)
        hub = cluster.running[upstream]._peering.hub
        for key in list(hub._dialling):
            hub.stop_dialling(key)
        engine = cluster.running[upstream]._part.engine  # type: ignore[union-attr]
        for node in cluster.cores:
            node._peering.hub.stop_dialling(upstream)
        for link in list(engine.links.values()):
            link.abort()
        await replicant.kv.put(b"k", b"v", timeout_s=20)
        await upstream_of(replicant, other_than=upstream)


# Calls between nodes -----------------------------------------------------------------------------


@in_loop
async def test_nodes_of_a_local_cluster_know_each_other_from_the_start() -> None:
    class Early(LocalCluster):
        """A node that is ready may not have applied yet that another one is."""

        async def wait_ready(self, timeout_s: float = 30.0) -> None:
            pass

    async with Early(cores=2, replicants=1) as cluster:
        for node in cluster.nodes:
            members = node.machine.members
            assert {name: members[name].incarnation for name in cluster.configs} == {
                other.name: 1 for other in cluster.nodes
            }


@in_loop
async def test_nodes_call_each_other() -> None:
    async with LocalCluster(cores=2, replicants=1) as cluster:
        core, other = cluster.cores
        (replicant,) = cluster.replicants

        async def hello(sender: str, payload: bytes) -> bytes:
            return f"{sender} says ".encode() + payload

        async def broken(sender: str, payload: bytes) -> bytes:
            raise ValueError("no good")

        for node in cluster.nodes:
            node.rpc.register("test.hello", hello)
            node.rpc.register("test.broken", broken)
        for caller in cluster.nodes:
            for callee in (core, other, replicant):
                answer = await caller.rpc.call(callee.name, "test.hello", b"hi", 5.0)
                assert answer == f"{caller.name} says hi".encode()
        for callee in (replicant, core):
            error = await raised(core.rpc.call(callee.name, "test.broken", b"", 5.0), RemoteFailed)
            assert "ValueError: no good" in str(error)
            error = await raised(core.rpc.call(callee.name, "test.none", b"", 5.0), RemoteFailed)
            assert "has no method 'test.none'" in str(error)
            # Of raftkv itself, too: a caller of a later release then takes an older call.
            error = await raised(core.rpc.call(callee.name, "core.later_3", b"", 5.0), RemoteFailed)
            assert "has no method 'core.later_3'" in str(error)
        about = (core.session, 10**6)
        error = await raised(replicant.outcome(*about, timeout_s=1.0), NotPermitted)
        assert f"ask on {core.name}, or on a core" in str(error)
        error = await raised(core.rpc.call("nobody", "test.hello", b"", 5.0), PeerUnreachable)
        assert "nobody cannot be reached" in str(error)
        big = b"x" * (16 << 20)
        assert isinstance(
            await raised(core.rpc.call("core2", "test.hello", big, 5.0), TooLarge), NotApplied
        )


@in_loop
async def test_a_call_ends_with_its_deadline() -> None:
    async with LocalCluster(cores=2, replicants=1) as cluster:
        core, other = cluster.cores
        asleep = asyncio.Event()

        async def slow(sender: str, payload: bytes) -> bytes:
            await asleep.wait()
            return b""

        async def quick(sender: str, payload: bytes) -> bytes:
            return b""

        for node in cluster.nodes:
            node.rpc.register("test.slow", slow)
            node.rpc.register("test.quick", quick)
        for caller in cluster.nodes:
            for callee in cluster.nodes:
                await caller.rpc.call(callee.name, "test.quick", b"", 10.0)  # they are connected
                error = await raised(caller.rpc.call(callee.name, "test.slow", b"", 0.05), Timeout)
                assert "has not answered" in str(error)
        call = asyncio.create_task(core.rpc.call(other.name, "test.slow", b"", 30.0))
        await asyncio.sleep(0)
        await until(lambda: core.rpc._calls)
        await cluster.kill(other.name)
        await raised(call, Timeout)


@in_loop
async def test_a_callee_that_never_greets_costs_no_more_than_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with LocalCluster(cores=1) as cluster:
        (core,) = cluster.nodes
        silent = socket.create_server(("127.0.0.1", 0))
        try:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            core._peering.addresses.greeted("silent", address)
            # As long as a handshake may take otherwise, the call would wait for ever here.
            monkeypatch.setattr("raftkv.raft.link.HELLO_TIMEOUT_S", 3600)
            await raised(core.rpc.call("silent", "test.hello", b"", 0.2), PeerUnreachable)
        finally:
            silent.close()


# Snapshots ---------------------------------------------------------------------------------------


async def fill(node: Node, first: int, count: int) -> None:
    """One entry a put."""
    for number in range(first, first + count):
        await node.kv.put(b"%04d" % number, b"x" * 100)


@in_loop
async def test_the_log_is_compacted_and_the_rest_recovers_from_the_snapshot() -> None:
    async with LocalCluster(cores=3, limits=SMALL_LOG) as cluster:
        await fill(cluster.nodes[0], 0, 150)
        for node in cluster.cores:
            await until(lambda node=node: node.status().first_index > 60)  # type: ignore[misc]
            status = node.status()
            assert status.first_index is not None
            assert status.snapshot_index is not None
            assert status.first_index <= status.snapshot_index + 1
        for name in list(cluster.configs):
            node = await cluster.restart(name)
            assert (await node.kv.range(b"0")).count == 150
        await cluster.converge()
        assert len(digests(cluster)) == 1


@in_loop
async def test_a_core_that_was_away_gets_a_snapshot() -> None:
    limits = msgspec.structs.replace(SMALL_LOG, snapshot_chunk_bytes=1000)
    async with LocalCluster(cores=3, limits=limits) as cluster:
        leader = await leader_of(cluster)
        away = next(node for node in cluster.cores if node is not leader)
        last = away.status().last_index
        await cluster.kill(away.name)
        await fill(leader, 0, 150)
        await until(lambda: (leader.status().first_index or 0) > (last or 0) + 1)
        back = await cluster.restart(away.name)
        assert (await back.kv.range(b"0")).count == 150
        await cluster.converge()
        assert back.status().first_index > 2
        assert len(digests(cluster)) == 1
        back = await cluster.restart(away.name)
        assert (await back.kv.range(b"0")).count == 150


@in_loop
async def test_a_replicant_far_behind_gets_a_snapshot() -> None:
    async with LocalCluster(cores=1, replicants=1, limits=SMALL_LOG) as cluster:
        (core,) = cluster.cores
        await cluster.kill("replicant1")
        await fill(core, 0, 150)
        await until(lambda: (core.status().first_index or 0) > 60)
        replicant = await cluster.restart("replicant1")
        assert (await replicant.kv.range(b"0")).count == 150
        await replicant.kv.put(b"more", b"x")
        await cluster.converge()
        assert len(digests(cluster)) == 1


@in_loop
async def test_a_replicant_is_fed_rows_and_slices_above_a_message() -> None:
    """One deletion leaves one row of history with all that it deleted."""
    small = msgspec.structs.replace(
        SMALL_LOG,
        value_bytes_max=16 * 1024,
        key_bytes_max=1024,
        command_bytes_max=32 * 1024,
        batch_bytes_max=32 * 1024,
        frame_bytes_max=64 * 1024,
        snapshot_chunk_bytes=16 * 1024,
    )
    async with LocalCluster(cores=1, replicants=1, limits=small) as cluster:
        (core,) = cluster.cores
        await cluster.kill("replicant1")
        for number in range(40):
            await core.kv.put(b"gone %d" % number, b"%d" % number * 5000)
        await core.kv.delete(b"gone ", b"gone!")
        for number in range(40):
            await core.kv.put(b"kept %d" % number, b"%d" % number * 5000)
        await until(lambda: (core.status().first_index or 0) > 60)
        replicant = await cluster.restart("replicant1")
        assert (await replicant.kv.range(b"kept ", b"kept!")).count == 40
        await cluster.converge()
        assert len(digests(cluster)) == 1


@in_loop
async def test_writers_who_were_jumped_over_by_a_snapshot_get_their_answers() -> None:
    """Rule 15: a replicant's commands are applied while it is cut off, then it gets a snapshot."""
    async with LocalCluster(cores=1, replicants=1, limits=SMALL_LOG) as cluster:
        (core,), (replicant,) = cluster.cores, cluster.replicants
        follower = replicant._part.follower  # type: ignore[union-attr]
        follower.lag_s = 3600.0  # what arrives from now on is not applied
        put = asyncio.create_task(replicant.kv.put(b"jumped", b"x", timeout_s=30))
        await until(lambda: core.machine.view("kv").table("keys").get(b"jumped"))
        await fill(core, 0, 150)
        await until(lambda: (core.status().first_index or 0) > 60)
        assert not put.done()
        follower.lag_s, follower._scheduled = 0.0, False
        follower._queue.clear()  # as if the stream had broken before the entries came
        follower._queued, follower._queued_term = follower.applied, follower.applied_term
        follower.link.abort()
        result = await put
        found = await replicant.kv.get(b"jumped")
        assert found is not None
        assert found.mod_revision == result.revision


# What comes from outside -------------------------------------------------------------------------


@in_loop
async def test_proposals_that_are_no_commands_stop_nobody() -> None:
    """An entry that cannot be decoded would stop every node that applies it."""
    async with LocalCluster(cores=3, replicants=1) as cluster:
        (replicant,) = cluster.replicants

        def to_leader() -> Any:
            """The link of a follower, whoever follows whom at this moment."""
            parts: list[Any] = [node._part for node in cluster.cores]
            links = (part._leader_link() for part in parts)
            return next((link for link in links if link is not None), None)

        for rubbish in (b"", b"\x95\x01\x01\x01\xa2kv"):
            await until(to_leader)
            to_leader().send(wire.Propose([rubbish]))
            await until(lambda: replicant._part.follower.link)  # type: ignore[union-attr]
            replicant._part.follower.link.send(wire.Propose([rubbish]))  # type: ignore[union-attr]
            await replicant.kv.put(b"behind it", b"x", timeout_s=20)
        for node in cluster.nodes:
            await node.kv.put(node.name.encode(), b"x", timeout_s=20)
            assert not node.fault.done()


@in_loop
async def test_whoever_waits_for_a_fault_may_give_up() -> None:
    """As `raftkv serve` does at a signal: the node still hands over, and still tells of a fault."""
    async with LocalCluster(cores=1) as cluster:
        (node,) = cluster.nodes
        waiter = asyncio.ensure_future(node.fault)
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert not node.fault.done()
        await node.kv.put(b"k", b"v")
        node._faulted(DiskFailed("on purpose"))
        assert isinstance(await node.fault, DiskFailed)


@in_loop
async def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    async with LocalCluster(cores=1) as cluster:
        config = msgspec.structs.replace(
            cluster.configs["core1"], dir=str(tmp_path / "file" / "data")
        )
        node = Node(config, plugins=())
        await raised(node.start(), ConfigError)

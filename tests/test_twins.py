"""One core's data directory in two processes, and an old copy of one."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from raftkv.config import RaftTimes
from raftkv.errors import ReadTimeout
from raftkv.node import Node
from raftkv.raft.membership import Configuration
from raftkv.raft.transport import Hub
from raftkv.runtime import OsRuntime
from raftkv.server.health import Health
from raftkv.testing.local_cluster import LocalCluster, free_ports
from raftkv.twins import IDENTITY, UNKNOWN, Twins
from tests.fakes import FakeRuntime
from tests.test_membership import in_loop, until
from tests.test_namesakes import hello_of, no_node_answers

__all__ = ["no_node_answers"]


async def copied(cluster: LocalCluster, name: str, to: Path) -> Node:
    """A second process out of a copy of this core's directory, at an address of its own."""
    config = cluster.configs[name]
    await asyncio.to_thread(shutil.copytree, config.dir, to)
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    cores = {**config.cores, name: address}
    return Node(msgspec.structs.replace(config, dir=str(to), peer_address=address, cores=cores))


@pytest.mark.usefixtures("no_node_answers")
def test_a_link_that_replaces_another_one_of_its_process_is_still_up() -> None:
    configuration = Configuration(("a-1", "b-1"))
    runtime = FakeRuntime()
    hub = SimpleNamespace(runtime=runtime)
    twins = Twins(hub, lambda: None, dict, lambda: configuration)  # type: ignore[arg-type]
    first, second = hello_of("p1", "there:1"), hello_of("p2", "there:1")
    twins.link_up(first)
    twins.link_up(first)
    twins.link_down(first)
    assert twins.judge(second) is not None
    runtime.run()
    twins.link_down(first)
    assert twins.judge(second) is None


@pytest.mark.parametrize("address", ["none", "bad..name:1", "nul\0:1", "there:" + "1" * 5_000])
def test_a_process_that_named_no_address_does_not_keep_the_next_one_out(address: str) -> None:
    @in_loop
    async def run() -> None:
        hub = Hub(OsRuntime(), SimpleNamespace(), 1 << 20)  # type: ignore[arg-type]
        twins = Twins(hub, lambda: None, dict, lambda: Configuration(("a-1", "b-1")))
        first, second = hello_of("p1", address), hello_of("p2", "there:1")
        twins.link_up(first)
        twins.link_down(first)
        refusal = twins.judge(second)
        assert refusal is not None
        assert refusal.code == UNKNOWN
        await until(lambda: twins.judge(second) is None)

    run()


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_copy_of_a_running_core_is_refused_everywhere(tmp_path: Path, which: str) -> None:
    @in_loop
    async def run() -> None:
        async with LocalCluster(3) as cluster:
            await cluster.nodes[0].kv.put(b"a", b"1")
            leader = cluster.leader()
            assert leader is not None
            first = next(n for n in cluster.cores if (n is leader) == (which == "leader"))
            others = [node for node in cluster.cores if node is not first]
            incarnation, term = first.incarnation, leader.term
            async with await copied(cluster, first.name, tmp_path / "copy") as second:
                assert second.raft_id == first.raft_id
                await until(lambda: all(IDENTITY in node.status().alarms for node in others))
                await until(lambda: IDENTITY in second.status().alarms)
                await until(lambda: second.status().hindrance)
                assert first.name in (second.status().hindrance or "")
                assert "empty directory" in (second.status().hindrance or "")
                code, _ = Health(second).health()  # type: ignore[arg-type]
                assert code == 503
                await first.kv.put(b"a", b"2")
                assert (first.incarnation, leader.term) == (incarnation, term)
                assert second.session == 0
                assert not second.fault.done()

    run()


def test_a_copy_is_let_in_once_the_first_process_is_gone(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        async with LocalCluster(3) as cluster:
            await cluster.nodes[0].kv.put(b"a", b"1")
            # A copy is not believed if the first process has acknowledged more than it holds.
            last = 0
            while last != (last := cluster.nodes[0].machine.index):
                await asyncio.sleep(0.5)
            await cluster.converge()
            async with await copied(cluster, "core3", tmp_path / "copy") as second:
                others = [cluster.running["core1"], cluster.running["core2"]]
                await until(lambda: all(IDENTITY in node.status().alarms for node in others))
                await cluster.kill("core3")
                await second.wait_ready(20)
                await second.kv.put(b"a", b"2")

    run()


@in_loop
async def test_a_core_that_restarts_or_moves_is_no_twin() -> None:
    async with LocalCluster(3) as cluster:
        await cluster.restart("core2")
        await cluster.kill("core3")
        (port,) = free_ports(1)
        address = f"127.0.0.1:{port}"
        config = cluster.configs["core3"]
        cores = {**config.cores, "core3": address}
        moved = msgspec.structs.replace(config, peer_address=address, cores=cores)
        cluster.configs["core3"] = moved
        await cluster.restart("core3")
        assert not any(node.status().alarms for node in cluster.nodes)


def test_a_core_with_an_old_copy_of_its_directory_tells_so_itself(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        # Only the leader that had the acknowledgements knows of the loss: let none be elected
        # meanwhile, however busy the machine is.
        patient = RaftTimes(election_timeout_min_ms=4_000, election_timeout_max_ms=5_000)
        async with LocalCluster(3, raft=patient) as cluster:
            await cluster.converge()
            leader = cluster.leader()
            assert leader is not None
            name = next(node.name for node in cluster.cores if node is not leader)
            directory = cluster.configs[name].dir
            await cluster.kill(name)
            await asyncio.to_thread(shutil.copytree, directory, tmp_path / "old")
            await cluster.restart(name)
            for number in range(20):
                await leader.kv.put(b"k%d" % number, b"v")
            await cluster.converge()
            await cluster.kill(name)
            await asyncio.to_thread(shutil.rmtree, directory)
            await asyncio.to_thread(shutil.copytree, tmp_path / "old", directory)
            node = await cluster.start(name)
            await until(lambda: node.status().hindrance)
            text = node.status().hindrance or ""
            assert "has lost entries of the log that it had acknowledged" in text
            assert f"raftkv member remove {name}" in text
            with pytest.raises(ReadTimeout, match="because .* has lost entries"):
                await node.barrier(timeout_s=0.5)
            code, body = Health(node).health()  # type: ignore[arg-type]
            assert (code, "lost entries" in body.decode()) == (503, True)
            code, body = await Health(node).readyz(b"")  # type: ignore[arg-type]
            assert "[-]standing failed" in body.decode()
            listed = await node.membership.survey()
            assert [row.name for row in listed.members if row.distrusted] == [name]
            assert not any(other.status().hindrance for other in cluster.nodes if other is not node)

    run()

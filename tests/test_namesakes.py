"""Two replicants under one name: the second waits as long as the first one answers."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from raftkv import namesakes
from raftkv.config import NodeConfig
from raftkv.node import Node
from raftkv.raft import wire
from raftkv.testing.local_cluster import LocalCluster, free_ports
from tests.fakes import FakeRuntime
from tests.test_membership import in_loop, until


def hello_of(process: str, address: str) -> wire.Hello:
    about = wire.About("0.2", (), process)
    return wire.Hello(1, "raft", "c", "id", "a-1", "core", address, "", "", True, about)


@pytest.fixture
def no_node_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_answer(*arguments: object) -> None:
        return None

    monkeypatch.setattr(namesakes, "handshake_at", no_answer)


@pytest.mark.usefixtures("no_node_answers")
def test_that_the_first_is_gone_counts_until_the_second_has_tried_all_its_addresses() -> None:
    runtime = FakeRuntime()
    look = namesakes.Look(SimpleNamespace(runtime=runtime))  # type: ignore[arg-type]
    first, second = namesakes.First("a", "a-1", "old:1"), hello_of("p2", "new:1")
    assert look.alive(first, second) is None
    runtime.run()
    runtime.now += 3 * 3 + 1  # three addresses that swallow what is sent there
    assert look.alive(first, second) is False


def twin_of(config: NodeConfig, directory: Path) -> NodeConfig:
    """The same configuration file on another machine."""
    (port,) = free_ports(1)
    return msgspec.structs.replace(
        config, dir=str(directory), peer_address=f"127.0.0.1:{port}", http_address=None
    )


def test_the_second_waits_and_follows_once_the_first_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def run() -> None:
        async with LocalCluster(cores=3, replicants=1) as cluster:
            (first,) = cluster.replicants
            await first.wait_ready()
            core = cluster.cores[0]
            row = core.machine.members["replicant1"]
            twin = Node(twin_of(first.config, tmp_path / "twin"))
            async with twin:
                # All three cores have refused it, with a reason that names the other node.
                await until(
                    lambda: sum("refused: the one at" in line for line in caplog.messages) >= 3
                )
                await first.kv.put(b"k", b"v")
                assert twin.session == 0
                assert core.machine.members["replicant1"] == row
                assert any(
                    "another node called 'replicant1' runs at" in line for line in caplog.messages
                )
                await cluster.kill("replicant1")
                await twin.wait_ready(20.0)
                await twin.kv.put(b"k", b"w")
                assert core.machine.members["replicant1"].raft_id == twin.raft_id

    run()


@in_loop
async def test_a_replicant_that_has_lost_its_directory_is_taken_at_once() -> None:
    async with LocalCluster(cores=1, replicants=1) as cluster:
        (first,) = cluster.replicants
        await first.wait_ready()
        former = first.raft_id
        config = first.config
        await cluster.kill("replicant1")
        await asyncio.to_thread(shutil.rmtree, config.dir)
        again = await cluster.start("replicant1")
        await again.wait_ready(20.0)
        assert again.raft_id != former


def test_a_copied_data_directory_is_refused_while_the_first_process_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def run() -> None:
        async with LocalCluster(cores=1, replicants=1) as cluster:
            (first,) = cluster.replicants
            await first.wait_ready()
            copied = twin_of(first.config, tmp_path / "copy")
            await asyncio.to_thread(shutil.copytree, first.config.dir, copied.dir)
            incarnation = first.incarnation
            async with Node(copied) as second:
                assert second.raft_id == first.raft_id
                await until(lambda: any("refused: the one at" in m for m in caplog.messages))
                await first.kv.put(b"k", b"v")
                assert first.incarnation == incarnation
                assert second.session == 0
                await cluster.kill("replicant1")
                await second.wait_ready(20.0)

    run()

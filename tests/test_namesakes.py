"""Two replicants under one name: the second waits as long as the first one answers."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from raftkv.config import NodeConfig
from raftkv.node import Node
from raftkv.testing.local_cluster import LocalCluster, free_ports
from tests.test_membership import in_loop, until


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

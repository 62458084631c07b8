"""A node that is stopped while it writes a snapshot: nothing goes on behind its back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from raftkv import Limits, Node, NodeConfig
from raftkv.kv import PutOp
from raftkv.testing.local_cluster import free_ports

KIB = 1024
# What the state holds, and how long writing it takes.
PUTS, VALUE_BYTES = 64, 32 * KIB
RATE = 256 * KIB


def config(directory: Path) -> NodeConfig:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    return NodeConfig(
        name="alone", dir=str(directory), peer_address=address, cores={"alone": address},
        fsync="off", limits=Limits(snapshot_write_bytes_per_s=RATE),
    )  # fmt: skip


def temporary(directory: Path) -> list[Path]:
    return list(directory.rglob("*.tmp"))


@pytest.mark.parametrize("stage", ["begun", "waiting for its rate"])
def test_a_snapshot_under_way_is_given_up_and_leaves_nothing(tmp_path: Path, stage: str) -> None:
    async def story() -> None:
        async with Node(config(tmp_path), plugins=()) as node:
            await node.wait_ready(10)
            for number in range(PUTS):
                put = PutOp(b"%d" % number, bytes(VALUE_BYTES))
                await node.kv.txn(success=[put])
            snapshotting = node._part.engine.snapshotting  # type: ignore[union-attr]
            snapshotting.begin()
            if stage != "begun":
                async with asyncio.timeout(10):
                    while not temporary(tmp_path) or snapshotting._waiting is None:
                        await asyncio.sleep(0.001)
            assert snapshotting.writing
        assert not snapshotting.writing
        assert temporary(tmp_path) == []
        assert [task for task in asyncio.all_tasks() if task.get_name() == "snapshot"] == []

    asyncio.run(story())

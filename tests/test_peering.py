"""peering.py: a node whose disk refuses the identity of its cluster."""

from __future__ import annotations

from typing import Any

from raftkv.config import NodeConfig
from raftkv.errors import DiskFailed, NodeFault
from raftkv.peering import Peering
from raftkv.raft import wire
from raftkv.raft.identity import DataDirectory
from tests.fakes import FakeRuntime

CORES = {"core1": "core1:1", "core2": "core2:1"}


def test_a_full_disk_at_the_moment_of_joining_stops_the_node() -> None:
    runtime: Any = FakeRuntime()
    config = NodeConfig(name="core2", dir="/d", peer_address="core2:1", cores=CORES, insecure=True)
    directory = DataDirectory(config, runtime)
    faults: list[NodeFault] = []
    peering = Peering(config, directory, runtime, faults.append)
    runtime.files.fail_writes = True
    hello = wire.Hello(1, "raft", "raftkv", "c1", "core1-aa", "core", "core1:1")
    peering._adopt(hello)
    assert [type(fault) for fault in faults] == [DiskFailed]
    assert "no space left" in str(faults[0])
    assert directory.identity.cluster_id == ""

"""The development cluster with real nodes: consensus, disks, doors and kills."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftkv.cli.devcluster import DevCluster
from raftkv.cli.door_client import DoorClient, request
from raftkv.errors import NodeFault, RaftkvError
from tests.cli.conftest import ROOT
from tests.cli.test_main import raftkv

pytestmark = pytest.mark.cluster

UP_S = 60.0


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevCluster]:
    """A cluster without plugins that was not started yet."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'plugins'}")
    cluster = DevCluster(tmp_path / "real")
    yield cluster
    if cluster.exists:
        cluster.down()


def test_what_was_acknowledged_survives_kills_of_one_and_of_all(dev: DevCluster) -> None:
    dev.up(cores=3, replicants=1, plugins=[], timeout_s=UP_S)
    written = {f"a{n}".encode(): f"{n}".encode() for n in range(20)}
    for key, value in written.items():
        dev.client().put(key, value)
    leader = dev.leader()
    dev.kill_node(leader)
    client = dev.client(timeout_s=20.0)
    written[b"after"] = b"the leader died"
    client.put(b"after", written[b"after"])
    dev.up(timeout_s=UP_S)
    for name in dev.names:
        dev.kill_node(name, signal.SIGKILL)
    assert not any(node.running for node in dev.status().nodes)
    dev.up(timeout_s=UP_S)
    for name in dev.names:
        door = DoorClient([dev.endpoint(name)], timeout_s=20.0)
        for key, value in written.items():
            found = door.get(key)
            assert found is not None, (name, key)
            assert found.value == value


def test_a_read_after_a_write_sees_it_on_every_node(dev: DevCluster) -> None:
    dev.up(cores=3, replicants=2, plugins=[], timeout_s=UP_S)
    doors = [DoorClient([endpoint], timeout_s=20.0) for endpoint in dev.endpoints()]
    for n in range(10):
        value = f"{n}".encode()
        doors[n % len(doors)].put(b"k", value)
        for door in doors:
            found = door.get(b"k")
            assert found is not None
            assert found.value == value


def test_a_cluster_without_a_quorum_says_so_and_recovers(dev: DevCluster) -> None:
    dev.up(cores=3, replicants=0, plugins=[], timeout_s=UP_S)
    survivor, *others = dev.names
    for name in others:
        dev.kill_node(name)
    with pytest.raises(RaftkvError):
        DoorClient([dev.endpoint(survivor)], timeout_s=8.0).put(b"k", b"v")
    with pytest.raises(RaftkvError, match="no leader"):
        request(dev.endpoint(survivor), "GET", "/health")
    dev.up(timeout_s=UP_S)
    dev.client().put(b"k", b"v")
    assert request(dev.endpoint(survivor), "GET", "/health") == {"health": "true"}


def test_a_single_core_from_the_command_line(tmp_path: Path) -> None:
    at = ("--dir", str(tmp_path / "one"))
    dev = DevCluster(tmp_path / "one")
    dev.create(cores=1, replicants=0, fsync="off", plugins=[])
    try:
        up = raftkv("cluster", "up", *at, "--detach")
        assert up.returncode == 0, up.stderr
        assert raftkv("put", "k", "v", *at).stdout == b"OK\n"
        document = json.loads(raftkv("cluster", "status", *at, "--json").stdout)
        (node,) = document["nodes"]
        assert (node["role"], node["leader"], node["fsync"]) == ("leader", "core1", "off")
        assert raftkv("cluster", "down", *at).stdout == b"stopped core1\n"
        assert raftkv("cluster", "up", *at, "--detach").returncode == 0
        assert raftkv("get", "k", *at).stdout == b"k\nv\n"
    finally:
        dev.down()


def test_a_damaged_log_fails_up_with_file_and_offset(dev: DevCluster) -> None:
    dev.up(cores=1, replicants=0, plugins=[], timeout_s=UP_S)
    for n in range(50):
        dev.client().put(b"k", b"x" * 100 + str(n).encode())
    dev.kill_node("core1")
    data = Path(dev.config("core1").dir)
    segment = max((p for p in data.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    with pytest.raises(NodeFault, match=rf"core1 has ended: .*{segment.name} is damaged at byte"):
        dev.up(timeout_s=UP_S)

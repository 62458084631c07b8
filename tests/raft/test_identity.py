"""identity.py: a directory belongs to one node of one cluster, and to one process at a time."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from raftkv.config import NodeConfig
from raftkv.errors import DirectoryLocked, NodeFault, WrongCluster, WrongDataDirectory
from raftkv.raft.identity import DataDirectory
from raftkv.testing.disk import SimDisk
from tests.fakes import FakeRuntime

ADDRESS = "127.0.0.1:7101"


def configured(**changes: Any) -> NodeConfig:
    config = NodeConfig(
        name="core1",
        role="core",
        cluster="main",
        dir="data",
        peer_address=ADDRESS,
        cores={"core1": ADDRESS},
        plugins=(),
    )
    if changes.get("role") == "replicant":
        changes.setdefault("cores", {"core9": ADDRESS})
    elif "name" in changes:
        changes.setdefault("cores", {changes["name"]: ADDRESS})
    return msgspec.structs.replace(config, **changes)


def runtime(disk: SimDisk | None = None, seed: int = 1) -> FakeRuntime:
    return FakeRuntime(disk or SimDisk(random.Random(1)), seed)


def opened(world: FakeRuntime, **changes: Any) -> DataDirectory:
    return DataDirectory(configured(**changes), world)  # type: ignore[arg-type]


def test_an_identity_is_minted_once() -> None:
    world = runtime()
    first = opened(world)
    assert first.identity.raft_id == f"core1-{first.identity.minted}"
    assert first.identity.cluster_id == ""
    first.close()
    again = opened(world)
    assert again.identity == first.identity


def test_another_directory_is_another_node() -> None:
    """Rule 10: a node whose directory was wiped must not come back as who it was."""
    assert opened(runtime(seed=1)).identity.raft_id != opened(runtime(seed=2)).identity.raft_id


def test_the_identity_is_durable_before_anything_else() -> None:
    for seed in range(20):
        world = runtime(SimDisk(random.Random(seed)))
        minted = opened(world).identity
        world.files.crash()
        assert opened(world).identity == minted


def test_the_cluster_is_joined_once_and_for_ever() -> None:
    world = runtime()
    directory = opened(world)
    directory.join("c0ffee")
    world.files.crash()
    again = opened(world)
    assert again.identity.cluster_id == "c0ffee"
    with pytest.raises(AssertionError):
        again.join("other")


@pytest.mark.parametrize(
    ("changes", "error", "advice"),
    [
        ({"name": "core2"}, WrongDataDirectory, "Give this node a directory of its own"),
        (
            {"role": "replicant", "peer_address": "127.0.0.1:7999"},
            WrongDataDirectory,
            "belongs to the core 'core1'",
        ),
        ({"cluster": "other"}, WrongCluster, "belongs to the cluster 'main', not to 'other'"),
    ],
)
def test_a_directory_of_another_node_is_refused(
    changes: dict[str, Any], error: type[NodeFault], advice: str
) -> None:
    world = runtime()
    opened(world).close()
    with pytest.raises(error, match=advice):
        opened(world, **changes)
    assert opened(world), "the refusal has let go of the lock"


def test_a_directory_in_use_is_refused() -> None:
    world = runtime()
    first = opened(world)
    with pytest.raises(DirectoryLocked, match="Stop that node first"):
        opened(world)
    first.close()
    assert opened(world)


@pytest.mark.parametrize("content", [b"", b"{", b'{"name": 5}', b"\x00" * 100, b"[" * 4000])
def test_an_unreadable_identity_is_refused_and_kept(content: bytes) -> None:
    world = runtime()
    opened(world).close()
    file = world.files.open("data/identity.json", "w")
    file.write(content)
    with pytest.raises(WrongDataDirectory, match="Keep a copy of the directory"):
        opened(world)
    assert file.pread(0, 4096) == content


def test_a_crash_while_the_identity_is_written_leaves_one_or_none() -> None:
    for seed in range(40):
        disk = SimDisk(random.Random(seed))
        disk.changes_left = seed % 12
        try:
            opened(runtime(disk, seed=1))
        except OSError:
            disk.crash()
        disk.changes_left = None
        disk.crash()
        assert opened(runtime(disk, seed=2)).identity.name == "core1"


def test_a_directory_of_a_later_format_is_left_alone() -> None:
    world = runtime()
    directory = opened(world)
    later = msgspec.structs.replace(directory.identity, format_version=3)
    directory._store(later)
    directory.close()
    with pytest.raises(WrongDataDirectory, match="format 3"):
        opened(world)


def test_a_damaged_identity_is_refused() -> None:
    """A node with a damaged id would be somebody else, with the old one's votes."""
    world = runtime()
    opened(world).close()
    content = world.files.open("data/identity.json", "r").pread(0, 4096)
    for old in (b'"minted": "', b'"cluster_id": "', b'"checksum": "'):
        at = content.index(old) + len(old)
        damaged = content[:at] + b"f" + content[at + (content[at : at + 1] != b'"') :]
        if damaged == content:
            continue
        world.files.open("data/identity.json", "w").write(damaged)
        with pytest.raises(WrongDataDirectory, match="fails its checksum"):
            opened(world)
    world.files.open("data/identity.json", "w").write(content)
    assert opened(world).identity.name == "core1"


def test_a_log_without_an_identity_is_nobodys() -> None:
    world = runtime()
    opened(world).close()
    world.files.makedirs("data/wal")
    world.files.open("data/wal/0000000000000001.wal", "w").write(b"x")
    world.files.remove("data/identity.json")
    with pytest.raises(WrongDataDirectory, match=r"holds a log but no identity\.json"):
        opened(world)
    assert not world.files.exists("data/identity.json")

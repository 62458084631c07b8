"""The development cluster's processes and files, on fake nodes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from raftkv.cli import processes
from raftkv.cli.devcluster import DevCluster
from raftkv.config import load_config
from raftkv.errors import ConfigError, NodeFault
from tests.cli.conftest import FAKE

UP_S = 30.0


def set_fault(dev: DevCluster, name: str, fault: str) -> None:
    Path(dev.directory, name, "fault").write_text(fault, encoding="ascii")


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ")


# The layout ---------------------------------------------------------------------------------------


def test_create_writes_one_valid_configuration_for_each_node(cluster: DevCluster) -> None:
    cluster.create(cores=2, replicants=1, fsync="off", plugins=[])
    assert cluster.names == ["core1", "core2", "replicant1"]
    configs = [cluster.config(name) for name in cluster.names]
    assert [config.role for config in configs] == ["core", "core", "replicant"]
    assert {config.fsync for config in configs} == {"off"}
    assert configs[0].cores == {c.name: c.peer_address for c in configs[:2]}
    assert all(config.cores == configs[0].cores and config.plugins == () for config in configs)
    addresses = [c.peer_address for c in configs] + [c.http_address for c in configs]
    assert len(set(addresses)) == 6
    assert [config.dir for config in configs] == [
        os.path.join(cluster.directory, name, "data") for name in cluster.names
    ]


def test_a_cluster_of_cores_only_has_no_replicants(cluster: DevCluster) -> None:
    cluster.create(cores=1, replicants=0)
    assert cluster.names == ["core1"]


def test_create_keeps_what_is_there(cluster: DevCluster) -> None:
    cluster.create(cores=2, replicants=1)
    before = [Path(cluster.config_path(name)).read_text("utf-8") for name in cluster.names]
    again = DevCluster(cluster.directory)
    assert again.create() == cluster.shape
    assert again.create(cores=2, replicants=1, fsync="on") == cluster.shape
    assert [Path(cluster.config_path(n)).read_text("utf-8") for n in cluster.names] == before


@pytest.mark.parametrize("asked", [{"cores": 3}, {"replicants": 0}, {"fsync": "off"}])
def test_another_shape_than_the_existing_one_is_refused(
    cluster: DevCluster, asked: dict[str, Any]
) -> None:
    cluster.create(cores=2, replicants=1)
    (name,) = asked
    with pytest.raises(ConfigError, match=f"has {name} = .* leave --{name} out"):
        cluster.create(**asked)
    assert cluster.names == ["core1", "core2", "replicant1"]


@pytest.mark.parametrize("asked", [(0, 1), (1, -1), (16, 16)])
def test_impossible_shapes_are_refused(cluster: DevCluster, asked: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1 core"):
        cluster.create(cores=asked[0], replicants=asked[1])
    assert not cluster.exists


def test_an_interrupted_layout_is_made_anew(cluster: DevCluster) -> None:
    os.makedirs(os.path.join(cluster.directory, "core1"))
    Path(cluster.config_path("core1")).write_text("half of", encoding="utf-8")
    cluster.create(cores=1, replicants=0)
    assert load_config(cluster.config_path("core1")).name == "core1"


def test_a_directory_without_a_cluster_says_how_to_start_one(tmp_path: Path) -> None:
    for dev in (DevCluster(tmp_path), DevCluster(tmp_path / "none")):
        for action in (dev.status, dev.down, dev.client):
            with pytest.raises(ConfigError, match="raftkv cluster up --dir"):
                action()
    assert not (tmp_path / "none").exists()


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be used"):
        DevCluster(tmp_path / "file").up()


def test_a_damaged_shape_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"cores": "x"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cluster\.json cannot be used"):
        DevCluster(tmp_path).status()


# Starting and stopping ----------------------------------------------------------------------------


def test_up_returns_when_every_node_takes_writes(cluster: DevCluster) -> None:
    lines: list[str] = []
    cluster.up(cores=2, replicants=1, timeout_s=UP_S, progress=lines.append)
    assert lines == ["core1 started", "core2 started", "replicant1 started"]
    status = cluster.status()
    assert [node.name for node in status.nodes] == cluster.names
    assert all(node.running and node.term == 7 for node in status.nodes)
    assert status.leader == "core1"
    assert cluster.leader() == "core1"
    for node in status.nodes:
        assert node.pid is not None
        assert cluster.directory in command_line(node.pid)
    client = cluster.client()
    assert client.put(b"k", b"v") > 1
    assert client.delete(b"k") == 1


def test_nothing_of_the_probe_stays_behind(cluster: DevCluster) -> None:
    cluster.up(cores=1, replicants=0, timeout_s=UP_S)
    assert cluster.client().get(f"raftkv/ready/{os.getpid()}".encode()) is None


def test_up_again_starts_only_what_is_not_running(cluster: DevCluster) -> None:
    cluster.up(cores=1, replicants=1, timeout_s=UP_S)
    kept = cluster.pid("core1")
    killed = cluster.kill_node("replicant1")
    assert cluster.pid("replicant1") is None
    again = DevCluster(cluster.directory, command=FAKE)
    lines: list[str] = []
    again.up(timeout_s=UP_S, progress=lines.append)
    assert lines == ["core1 is running", "replicant1 started"]
    assert again.pid("core1") == kept
    assert again.pid("replicant1") not in (None, killed)


def test_a_stale_pid_file_with_the_pid_of_another_program_is_not_believed(
    cluster: DevCluster,
) -> None:
    cluster.create(cores=1, replicants=0)
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    try:
        Path(cluster.directory, "core1", "pid").write_text(str(bystander.pid), encoding="ascii")
        assert cluster.pid("core1") is None
        assert cluster.down() == []
        cluster.up(timeout_s=UP_S)
        assert cluster.pid("core1") not in (None, bystander.pid)
        assert cluster.down() == ["core1"]
        assert bystander.poll() is None, "a program that is no node of ours was signalled"
    finally:
        bystander.communicate()


@pytest.mark.parametrize("content", [None, "", "no number", "0", "-1", "999999999"])
def test_a_running_node_is_found_whatever_its_pid_file_says(
    cluster: DevCluster, content: str | None
) -> None:
    cluster.up(cores=1, replicants=0, timeout_s=UP_S)
    pid = cluster.pid("core1")
    path = Path(cluster.directory, "core1", "pid")
    if content is None:
        path.unlink()
    else:
        path.write_text(content, encoding="ascii")
    assert cluster.pid("core1") == pid
    lines: list[str] = []
    cluster.up(timeout_s=UP_S, progress=lines.append)
    assert lines == ["core1 is running"]


def test_down_stops_all_and_leaves_the_files(cluster: DevCluster) -> None:
    cluster.up(cores=1, replicants=1, timeout_s=UP_S)
    pids = [cluster.pid(name) for name in cluster.names]
    assert cluster.down() == ["core1", "replicant1"]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)
    assert all(os.path.exists(cluster.config_path(name)) for name in cluster.names)
    assert cluster.down() == []
    status = cluster.status()
    assert not any(node.running for node in status.nodes)
    assert status.leader is None


@pytest.mark.parametrize("hindrance", ["deaf", "stopped"])
def test_down_ends_nodes_that_do_not_listen(cluster: DevCluster, hindrance: str) -> None:
    cluster.create(cores=1, replicants=0)
    if hindrance == "deaf":
        set_fault(cluster, "core1", "deaf")
    cluster.up(timeout_s=UP_S)
    if hindrance == "stopped":
        cluster.kill_node("core1", signal.SIGSTOP)
    assert cluster.down(timeout_s=0.5) == ["core1"]
    assert cluster.pid("core1") is None


def test_a_node_that_ends_at_once_fails_up_with_its_own_words(cluster: DevCluster) -> None:
    cluster.create(cores=1, replicants=1)
    set_fault(cluster, "replicant1", "exit")
    with pytest.raises(NodeFault, match="replicant1 has ended: error: the fake"):
        cluster.up(timeout_s=UP_S)


def test_a_cluster_that_takes_no_writes_fails_up_in_time(cluster: DevCluster) -> None:
    cluster.create(cores=1, replicants=0)
    set_fault(cluster, "core1", "mute")
    with pytest.raises(NodeFault, match="no writes through core1 within 1 s"):
        cluster.up(timeout_s=1.0)
    status = cluster.status()
    assert status.nodes[0].running
    assert status.leader is None


def test_a_port_that_was_taken_meanwhile_fails_up_with_the_address(cluster: DevCluster) -> None:
    cluster.create(cores=1, replicants=0)
    host, _, port = (cluster.config("core1").http_address or "").rpartition(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(
            NodeFault, match=f"core1 has ended: .*{port}': the address is already in use"
        ),
    ):
        cluster.up(timeout_s=UP_S)


def test_a_missing_configuration_is_an_error(cluster: DevCluster) -> None:
    cluster.create(cores=1, replicants=0)
    os.remove(cluster.config_path("core1"))
    with pytest.raises(ConfigError, match=r"node\.toml is missing"):
        cluster.up()


def test_start_and_kill_single_nodes(cluster: DevCluster) -> None:
    cluster.up(cores=1, replicants=1, timeout_s=UP_S)
    cluster.kill_node("core1")
    with pytest.raises(NodeFault, match="core1 is not running"):
        cluster.kill_node("core1")
    assert cluster.status().nodes[0].running is False
    assert cluster.start_node("core1") is True
    assert cluster.start_node("core1") is False
    cluster.wait_writable(["core1"], timeout_s=UP_S)
    with pytest.raises(ConfigError, match="'core9' is not a node"):
        cluster.endpoint("core9")


def test_a_node_that_hangs_is_shown_as_running_without_an_answer(cluster: DevCluster) -> None:
    cluster.up(cores=1, replicants=1, timeout_s=UP_S)
    pid = cluster.kill_node("replicant1", signal.SIGSTOP)
    hanging = cluster.status(timeout_s=0.3).nodes[1]
    assert (hanging.running, hanging.pid, hanging.role) == (True, pid, None)
    assert cluster.kill_node("replicant1", signal.SIGCONT) == pid


def test_two_ups_at_once_start_each_node_once(cluster: DevCluster) -> None:
    cluster.create(cores=2, replicants=1)
    lines: list[str] = []

    def up() -> None:
        DevCluster(cluster.directory, command=FAKE).up(timeout_s=UP_S, progress=lines.append)

    threads = [threading.Thread(target=up) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lines) == sorted(
        f"{name} {what}" for name in cluster.names for what in ("started", "is running")
    )


def test_a_lock_that_is_held_too_long_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with (
        processes.exclusive(path, 1.0),
        pytest.raises(NodeFault, match="another raftkv command"),
        processes.exclusive(path, 0.05),
    ):
        pass

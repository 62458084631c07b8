"""File descriptors: a lack of them never stops a node, and connections of clients leave some."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftkv import NodeConfig, descriptors
from raftkv.config import HttpLimits, Limits
from raftkv.errors import TooManyOpenFiles
from raftkv.hugepages import RANGE_BYTES, Exchange
from raftkv.node import Node
from raftkv.testing.local_cluster import free_ports
from tests.raft.harness import A, Bench
from tests.test_hugepages import FakeMemory, Pause

LIMITS = Limits(
    segment_bytes_max=2_000, snapshot_log_entries=8, log_tail_entries=1, snapshot_log_percent=0
)


class Scarce:
    """Takes the descriptors away from a simulated disk: every opening fails."""

    def __init__(self, bench: Bench) -> None:
        self._disk, self.lacks, self.failed = bench.disk, False, 0
        self._open, self._sync_dir = bench.disk.open, bench.disk.sync_dir
        bench.disk.open = self.open  # type: ignore[method-assign]
        bench.disk.sync_dir = self.sync_dir  # type: ignore[method-assign]

    def _check(self, path: str) -> None:
        if self.lacks:
            self.failed += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    def open(self, path: str, mode: Any) -> Any:
        self._check(path)
        return self._open(path, mode)

    def sync_dir(self, path: str) -> None:
        self._check(path)
        self._sync_dir(path)


def put(bench: Bench, count: int) -> None:
    for _ in range(count):
        bench.engine.propose([b"x" * 300])
        bench.runtime.settle()


def finish(bench: Bench) -> None:
    """Let the snapshot under way end."""
    while bench.engine.snapshotting.writing:
        bench.runtime.advance(1.0)
        bench.runtime.settle()


def test_log_and_snapshots_wait_for_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(A, voters=[A], limits=LIMITS)
    bench.lead()
    scarce = Scarce(bench)
    put(bench, 20)
    bench.runtime.settle()
    applied, scarce.lacks = bench.engine.applied, True
    put(bench, 20)
    for _ in range(20):
        bench.runtime.advance(descriptors.RETRY_S)
        bench.runtime.settle()
    assert scarce.failed > 10, "it tries again"
    assert bench.application.faults == []
    assert bench.engine.applied < applied + 20, "the log could not begin its next segment"
    lines = [each for each in caplog.records if "file descriptor" in each.message]
    assert len(lines) == 1, "once a minute"
    assert bench.engine.counts.descriptors_lacked > 10
    scarce.lacks = False
    for _ in range(20):
        bench.runtime.advance(1.0)
        bench.runtime.settle()
    put(bench, 20)
    bench.runtime.settle()
    assert bench.application.faults == []
    commands = b"|".join(bench.application.state).split(b"|")
    assert commands.count(b"x" * 300) == 60, "nothing that was proposed is lost"
    finish(bench)
    assert bench.engine.counts.snapshots_written > 0


def test_a_directory_that_cannot_be_opened_delays_the_batch_and_writes_it_once() -> None:
    bench = Bench(A, voters=[A], limits=LIMITS)
    bench.lead()
    scarce = Scarce(bench)

    def open_and_take(path: str, mode: Any) -> Any:
        file = Scarce.open(scarce, path, mode)
        scarce.lacks = scarce.failed == 0 and path.endswith(".wal")
        return file

    bench.disk.open = open_and_take  # type: ignore[method-assign]
    put(bench, 20)
    assert scarce.failed, "the new segment's directory was to be synced"
    written = bench.wal.written_bytes
    bench.runtime.settle()
    scarce.lacks = False
    bench.runtime.advance(descriptors.RETRY_S)
    bench.runtime.settle()
    assert bench.application.faults == []
    assert bench.wal.written_bytes >= written
    put(bench, 1)
    finish(bench)
    bench.wal.close()
    again = Bench(A, voters=[A], limits=LIMITS, disk=bench.disk)
    assert again.wal.last_index >= bench.wal.last_index


@pytest.fixture
def soft_limit() -> Iterator[None]:
    """A soft limit of 1,024 for this process, as most systems give it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("soft_limit")
def test_an_embedded_node_clamps_its_connections_and_changes_no_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = descriptors.within_limit(HttpLimits())
    assert found.connections_max == 1024 - descriptors.RESERVE
    assert found.streams_max == found.connections_max // 2
    assert "768 connections are accepted" in caplog.text
    assert "LimitNOFILE" in caplog.text
    assert descriptors.limit() == 1024
    caplog.clear()
    few = HttpLimits(connections_max=700)
    assert descriptors.within_limit(few) is few
    assert caplog.text == ""


@pytest.mark.usefixtures("soft_limit")
def test_the_limit_is_raised_to_the_hard_one_or_65536(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors.raise_limit()
    wanted = descriptors.WANTED if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    assert descriptors.limit() == wanted
    assert f"from 1024 to {wanted}" in caplog.text
    caplog.clear()
    descriptors.raise_limit()
    assert caplog.text == ""


def test_a_start_without_descriptors_has_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*arguments: Any, **named: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def whole() -> None:
        port = free_ports(1)[0]
        address = f"127.0.0.1:{port}"
        config = NodeConfig(
            name="a", dir=str(tmp_path / "a"), peer_address=address, cores={"a": address}
        )
        node = Node(config, plugins=())
        monkeypatch.setattr("raftkv.runtime.OsFile.__init__", opened)
        with pytest.raises(TooManyOpenFiles, match=r"LimitNOFILE.* start the node again"):
            await node.start()

    asyncio.run(whole())


def test_the_thread_of_huge_pages_survives_errors(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(FakeMemory):
        sizes_asked = 0

        def size(self) -> int:
            self.sizes_asked += 1
            if self.sizes_asked < 4:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().size()

    memory = Failing((0, RANGE_BYTES))
    Exchange(memory, Pause(ends_after=5)).run()
    assert memory.sizes_asked >= 4
    assert memory.collapsed == [0], "it goes on once it can"
    assert len([each for each in caplog.records if "huge pages" in each.message]) == 1


@pytest.mark.cluster
def test_more_idle_connections_than_the_soft_limit_stop_no_node(tmp_path: Path) -> None:
    """`raftkv serve` under the soft limit of 1,024, with 1,100 idle clients."""
    peer, http_port = free_ports(2)
    (tmp_path / "node.toml").write_text(
        f'name = "a"\ndir = "data"\npeer_address = "127.0.0.1:{peer}"\n'
        f'http_address = "127.0.0.1:{http_port}"\n[cores]\na = "127.0.0.1:{peer}"\n'
        "[limits]\nsegment_bytes_max = 2000000\n"
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("the hard limit of open files is below what the test opens")
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "raftkv", "serve", "--config", str(tmp_path / "node.toml")],
            stderr=file,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096)),
        )
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(own[0], 4096), hard))
    idle: list[socket.socket] = []
    try:
        _wait_ready(http_port, log)
        for _ in range(1_100):
            each = socket.create_connection(("127.0.0.1", http_port), timeout=5)
            each.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            idle.append(each)
        connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=20)
        body = json.dumps({"key": "aw==", "value": "dmFs" * 100_000})
        for _ in range(12):
            connection.request("POST", "/v3/kv/put", body)
            response = connection.getresponse()
            response.read()
            assert response.status == 200, log.read_text()
        assert process.poll() is None
        assert len(os.listdir(f"/proc/{process.pid}/fd")) > 1_100
        assert "raised the limit of open files from 1024 to 4096" in log.read_text()
    finally:
        for each in idle:
            each.close()
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        resource.setrlimit(resource.RLIMIT_NOFILE, own)


def _wait_ready(port: int, log: Path) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError):  # it does not listen yet
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        signal.sigtimedwait((), 0.1)
    raise AssertionError(log.read_text())

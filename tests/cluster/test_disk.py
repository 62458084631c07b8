"""Disks that really fail under a real node: a full one, an fsync with an error, a second process.

The node discards what waited for the disk, stops itself with one clear line, and after the cause is
gone finds everything that it had acknowledged.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftkv.cli.devcluster import DevCluster
from raftkv.cli.door_client import DoorClient, request
from raftkv.errors import NotApplied, OutcomeUnknown, Overloaded
from raftkv.raft.free_space import DISK, RESERVE_PART
from tests.cluster.clients import DEADLINE_S, b64

pytestmark = pytest.mark.cluster

FAULT = 3
DISK_KIB = 512


def serve(config: str | Path, *before: str) -> subprocess.Popen[bytes]:
    command = [*before, sys.executable, "-m", "raftkv", "serve", "--config", str(config)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def last_words(process: subprocess.Popen[bytes]) -> str:
    """The last line of a node that ends by itself."""
    try:
        _, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    text = err.decode()
    assert process.returncode == FAULT, text
    assert "Traceback" not in text, text
    return text.splitlines()[-1]


def put_until_refused(door: DoorClient, value: bytes) -> dict[bytes, bytes]:
    """What was acknowledged before the first error. Any other kind of error is none to expect."""
    written: dict[bytes, bytes] = {}
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        key = b"key/%04d" % len(written)
        try:
            door.put(key, value)
        except (NotApplied, OutcomeUnknown):
            return written
        written[key] = value
    raise AssertionError("the disk never failed")


def check(dev: DevCluster, written: dict[bytes, bytes]) -> None:
    door = dev.client()
    for key, value in written.items():
        found = door.get(key)
        assert found is not None, key
        assert found.value == value


@pytest.fixture
def solo(tmp_path: Path) -> Iterator[DevCluster]:
    """A stopped cluster of one core."""
    dev = DevCluster(tmp_path / "dev")
    try:
        dev.up(cores=1, replicants=0, plugins=[], timeout_s=DEADLINE_S)
        dev.client().put(b"first", b"value")
        dev.down()
        yield dev
    finally:
        dev.down()


@pytest.fixture
def small_disk(solo: DevCluster) -> Iterator[Path]:
    """A real file system of half a megabyte under the core's data directory."""
    directory = Path(solo.config("core1").dir)
    aside = directory.with_name("aside")
    directory.rename(aside)
    directory.mkdir()
    options = f"size={DISK_KIB}k,mode=700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        directory.rmdir()
        aside.rename(directory)
        pytest.skip("only root may mount a small file system")
    try:
        shutil.copytree(aside, directory, dirs_exist_ok=True)
        yield directory
    finally:
        solo.down()
        subprocess.run(["umount", str(directory)], check=True, capture_output=True)


def test_a_full_disk_stops_the_node_and_loses_nothing(solo: DevCluster, small_disk: Path) -> None:
    process = serve(solo.config_path("core1"))
    try:
        solo.wait_writable(["core1"], timeout_s=DEADLINE_S)
        client = DoorClient([solo.endpoint("core1")], timeout_s=5.0)
        written = {b"key/%04d" % number: b"x" * 900 for number in range(51)}
        for key, value in written.items():
            client.put(key, value)
        # More than there is room for, in one entry: many small ones would raise the alarm DISK if
        # the node looked at the free space between two of them, and be refused.
        with pytest.raises(OutcomeUnknown):
            client.put(b"large", b"x" * DISK_KIB * 1024)
    finally:
        said = last_words(process)
    assert "No space left on device" in said
    assert "Free space on its volume" in said
    # While the disk is full the node does not start either, and says the same.
    assert "No space left on device" in last_words(serve(solo.config_path("core1")))
    subprocess.run(
        ["mount", "-o", f"remount,size={4 * DISK_KIB}k", str(small_disk)],
        check=True,
        capture_output=True,
    )
    solo.up(timeout_s=DEADLINE_S)
    check(solo, {b"first": b"value", **written})


def wait_alarms(solo: DevCluster, alarms: list[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (found := request(solo.endpoint("core1"), "GET", "/v1/status")["alarms"]) != alarms:
        assert time.monotonic() < deadline, f"the alarms are {found}"
        time.sleep(0.1)


def test_a_disk_that_fills_stops_no_node_and_takes_what_frees_room(
    solo: DevCluster, small_disk: Path
) -> None:
    solo.up(timeout_s=DEADLINE_S)
    client = solo.client()
    # Another program takes all but what lies between a quarter and a half of the reserve.
    volume = os.statvfs(small_disk)
    left = volume.f_blocks * volume.f_frsize // RESERVE_PART * 2 // 5
    other = small_disk / "other"
    other.write_bytes(bytes(volume.f_bavail * volume.f_frsize - left))
    wait_alarms(solo, [DISK])
    # One request, which the node refuses after its own `timeout_s`: a client would repeat it.
    second = {"key": b64(b"second"), "value": b64(b"value")}
    with pytest.raises(Overloaded, match="alarm DISK"):
        request(solo.endpoint("core1"), "POST", "/v3/kv/put", second, timeout_s=DEADLINE_S)
    check(solo, {b"first": b"value"})
    client.delete(b"first")
    assert client.get(b"first") is None
    other.unlink()
    wait_alarms(solo, [])
    client.put(b"second", b"value")
    check(solo, {b"second": b"value"})


def can_trace() -> bool:
    """Whether strace is here and may inject errors."""
    command = ["strace", "-f", "-o", os.devnull, "-e", "inject=fdatasync:error=EIO", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def test_an_fsync_with_an_error_stops_the_node_and_loses_nothing(
    solo: DevCluster, tmp_path: Path
) -> None:
    if not can_trace():
        pytest.skip("strace is not installed or must not trace")
    inject = ("strace", "-f", "-o", os.devnull, "-e", "trace=fdatasync")
    process = serve(solo.config_path("core1"), *inject, "-e", "inject=fdatasync:error=EIO:when=60+")
    try:
        solo.wait_writable(["core1"], timeout_s=DEADLINE_S)
        written = put_until_refused(DoorClient([solo.endpoint("core1")], timeout_s=5.0), b"x" * 90)
    finally:
        said = last_words(process)
    assert len(written) > 10
    assert "Input/output error" in said
    assert "Check the disk and replace it if it is bad" in said
    solo.up(timeout_s=DEADLINE_S)
    check(solo, {b"first": b"value", **written})


def test_the_lock_ends_with_its_process_however_that_ends(solo: DevCluster) -> None:
    config = solo.config_path("core1")
    holder = serve(config)
    try:
        solo.wait_writable(["core1"], timeout_s=DEADLINE_S)
        assert "in use by another process" in last_words(serve(config))
        holder.send_signal(signal.SIGKILL)
        holder.wait(DEADLINE_S)
        solo.up(timeout_s=DEADLINE_S)
        check(solo, {b"first": b"value"})
    finally:
        holder.kill()
        holder.communicate()

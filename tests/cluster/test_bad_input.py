"""Bad input and faults: one clear line that says what is wrong, the right exit code, nothing lost.

Every test of one node begins with a copy of the same stopped cluster, with keys in it. It spoils
something, sees the node refuse to start or stop itself, takes the cause away, and reads the keys.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raftkv.cli.devcluster import DevCluster
from raftkv.cli.door_client import DoorClient, request
from raftkv.cli.ports import free_ports
from raftkv.config import Limits, parse_address
from raftkv.errors import (
    NoLeader,
    NotApplied,
    OutcomeUnknown,
    RaftkvError,
    ReadTimeout,
    TooLarge,
)
from tests.cluster.clients import DEADLINE_S, b64

pytestmark = pytest.mark.cluster

# The exit codes of the `raftkv` command.
BAD_CONFIGURATION = 2
FAULT = 3

KEYS = {b"kept/%d" % n: b"value %d " % n * 20 for n in range(30)}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a cluster of one core, cleanly stopped, that holds KEYS."""
    dev = DevCluster(tmp_path_factory.mktemp("stopped") / "dev")
    try:
        dev.up(cores=1, replicants=0, plugins=[], timeout_s=DEADLINE_S)
        for key, value in KEYS.items():
            dev.client().put(key, value)
    finally:
        dev.down()
    return Path(dev.directory)


@pytest.fixture
def solo(stopped: Path, tmp_path: Path) -> Iterator[DevCluster]:
    shutil.copytree(stopped, tmp_path / "solo")
    dev = DevCluster(tmp_path / "solo")
    yield dev
    dev.down()


def edited(dev: DevCluster, old: str, new: str, *, name: str = "core1") -> Path:
    """Another configuration file beside the node's own, with one word changed."""
    own = Path(dev.config_path(name))
    text = own.read_text(encoding="utf-8")
    assert old in text
    other = own.with_name("edited.toml")
    other.write_text(text.replace(old, new), encoding="utf-8")
    return other


def start(config: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "raftkv", "serve", "--config", str(config)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def refusal(process: subprocess.Popen[bytes], code: int) -> str:
    """The one error line of a node that ends by itself with `code`; the rest is its JSON log."""
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    text = err.decode()
    assert process.returncode == code, text
    assert out == b""
    assert "Traceback" not in text, text
    lines = text.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert errors == lines[-1:], text
    for line in lines[:-1]:
        json.loads(line)
    return errors[0]


def check_nothing_is_lost(dev: DevCluster) -> None:
    dev.up(timeout_s=DEADLINE_S)
    for name in dev.names:
        door = DoorClient([dev.endpoint(name)], timeout_s=DEADLINE_S)
        for key, value in KEYS.items():
            found = door.get(key)
            assert found is not None, key
            assert found.value == value


# Configuration -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "core1"', 'name = "core1"\ncolour = "red"', "colour"),
        ('fsync = "on"', 'fsync = "sometimes"', "fsync"),
        ('name = "core1"', "name = core1", "not valid TOML"),
        ("127.0.0.1", "10.0.0.1", "insecure = true"),
        ("127.0.0.1", "0.0.0.0", "no address that others can reach"),
    ],
)
def test_a_wrong_configuration_is_named(solo: DevCluster, old: str, new: str, said: str) -> None:
    assert said in refusal(start(edited(solo, old, new)), BAD_CONFIGURATION)


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert f"cannot read {path}" in refusal(start(path), BAD_CONFIGURATION)


@pytest.mark.parametrize("which", ["peer_address", "http_address"])
def test_a_port_in_use_is_named(solo: DevCluster, which: str) -> None:
    address = getattr(solo.config("core1"), which)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(parse_address(address))
        taken.listen()
        said = refusal(start(solo.config_path("core1")), BAD_CONFIGURATION)
    assert address in said
    assert "in use" in said
    assert "choose another" in said
    check_nothing_is_lost(solo)


# Data directories --------------------------------------------------------------------------------


def test_the_directory_of_another_node_is_refused(solo: DevCluster) -> None:
    said = refusal(start(edited(solo, "core1", "core2")), FAULT)
    assert "belongs to the core 'core1', not to the core 'core2'" in said
    check_nothing_is_lost(solo)


def test_the_directory_of_another_cluster_is_refused(solo: DevCluster) -> None:
    said = refusal(start(edited(solo, 'cluster = "dev"', 'cluster = "prod"')), FAULT)
    assert "belongs to the cluster 'dev', not to 'prod'" in said
    check_nothing_is_lost(solo)


def test_a_directory_in_use_is_refused(solo: DevCluster) -> None:
    solo.up(timeout_s=DEADLINE_S)
    config = solo.config("core1")
    assert config.http_address is not None
    (port,) = free_ports(1)
    other = edited(solo, config.peer_address, f"127.0.0.1:{port}")
    said = refusal(start(other), FAULT)
    assert config.dir in said
    assert "in use by another process" in said
    check_nothing_is_lost(solo)


def test_the_members_of_another_cluster_are_refused(solo: DevCluster, tmp_path: Path) -> None:
    """Both clusters are called `dev`, but they were founded separately."""
    solo.up(timeout_s=DEADLINE_S)
    ours = DevCluster(tmp_path / "ours")
    try:
        ours.up(cores=1, replicants=1, plugins=[], timeout_s=DEADLINE_S)
        ours.client().put(b"k", b"v")
        ours.kill_node("replicant1")
        astray = edited(
            ours,
            ours.config("core1").peer_address,
            solo.config("core1").peer_address,
            name="replicant1",
        )
        said = refusal(start(astray), FAULT)
        assert "they were founded separately" in said
        assert "[cores]" in said
        ours.up(timeout_s=DEADLINE_S)
        found = DoorClient([ours.endpoint("replicant1")], timeout_s=DEADLINE_S).get(b"k")
        assert found is not None
        assert found.value == b"v"
    finally:
        ours.down()
    check_nothing_is_lost(solo)


# Disks -------------------------------------------------------------------------------------------


def largest_segment(dev: DevCluster, name: str) -> Path:
    segments = Path(dev.config(name).dir).rglob("*.wal")
    return max(segments, key=lambda path: path.stat().st_size)


def test_a_damaged_log_is_refused_with_file_and_offset(solo: DevCluster) -> None:
    segment = largest_segment(solo, "core1")
    sound = segment.read_bytes()
    middle = len(sound) // 2
    segment.write_bytes(sound[:middle] + bytes([sound[middle] ^ 0x10]) + sound[middle + 1 :])
    said = refusal(start(solo.config_path("core1")), FAULT)
    offset = re.search(re.escape(str(segment)) + r" is damaged at byte (\d+)", said)
    assert offset is not None, said
    # The record that was hit begins at most one record before the byte.
    assert middle - 4_096 <= int(offset[1]) <= middle
    assert "empty data directory" in said
    segment.write_bytes(sound)
    check_nothing_is_lost(solo)


def fill_disk(pid: int, segment: Path, room_bytes: int) -> None:
    """Let the process write no file beyond the log's present size and a little more."""
    limit = segment.stat().st_size + room_bytes
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, limit))


def put_until_refused(door: DoorClient, prefix: bytes) -> tuple[dict[bytes, bytes], RaftkvError]:
    """Write until an error; what was acknowledged before, and the error."""
    written: dict[bytes, bytes] = {}
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        key, value = prefix + b"%d" % len(written), b"x" * 500
        try:
            door.put(key, value)
        except RaftkvError as error:
            return written, error
        written[key] = value
    raise AssertionError("the full disk was never noticed")


def test_a_node_on_a_full_disk_stops_itself(solo: DevCluster) -> None:
    process = start(solo.config_path("core1"))
    try:
        solo.wait_writable(["core1"], timeout_s=DEADLINE_S)
        # The segment that was made at this start, which is the smaller one.
        newest = max(Path(solo.config("core1").dir).rglob("*.wal"))
        fill_disk(process.pid, newest, 8_000)
        door = DoorClient([solo.endpoint("core1")], timeout_s=5.0)
        written, error = put_until_refused(door, b"full/")
        said = refusal(process, FAULT)
    finally:
        process.kill()
    assert 5 < len(written) < 17
    assert isinstance(error, NotApplied | OutcomeUnknown)
    assert "the data directory cannot be used" in said
    assert "Raise the limit on the size of files" in said
    check_nothing_is_lost(solo)
    for key, value in written.items():
        found = solo.client().get(key)
        assert found is not None, key
        assert found.value == value


def test_a_leader_on_a_full_disk_gives_way(six: DevCluster) -> None:
    leader = six.leader()
    pid = six.pid(leader)
    assert pid is not None
    newest = max(Path(six.config(leader).dir).rglob("*.wal"))
    fill_disk(pid, newest, 100_000)
    written = {}
    others = [six.endpoint(name) for name in six.names if name != leader]
    deadline = time.monotonic() + DEADLINE_S
    numbers = itertools.count()
    while six.pid(leader) is not None:
        assert time.monotonic() < deadline
        for endpoint in [six.endpoint(leader), *others]:
            key = b"full-leader/%d" % next(numbers)
            with contextlib.suppress(NotApplied, OutcomeUnknown):
                DoorClient([endpoint], timeout_s=0.5).put(key, b"y" * 2_000)
                written[key] = b"y" * 2_000
    DoorClient(others, timeout_s=DEADLINE_S).put(b"full-leader/gone", b"y")
    written[b"full-leader/gone"] = b"y"
    with open(six.log_path(leader), encoding="utf-8") as file:
        assert file.read().splitlines()[-1].startswith("error: the data directory cannot be used")
    six.up(timeout_s=DEADLINE_S)
    door = DoorClient([six.endpoint(leader)], timeout_s=DEADLINE_S)
    for key, value in written.items():
        found = door.get(key)
        assert found is not None, key
        assert found.value == value


# Calls that cannot be served ---------------------------------------------------------------------


def raftkv(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "raftkv", *arguments],
        input=stdin,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[bytes]) -> str:
    text = done.stderr.decode()
    assert done.returncode == FAULT, text
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


def test_a_value_over_the_limit_is_refused(six: DevCluster) -> None:
    limit = Limits().value_bytes_max
    for name in ("core1", "replicant1"):
        endpoint = six.endpoint(name)
        door = DoorClient([endpoint])
        with pytest.raises(TooLarge, match=f"value_bytes_max = {limit}"):
            door.put(b"large", b"x" * (limit + 1))
        with pytest.raises(TooLarge, match="key_bytes_max"):
            door.put(b"k" * (Limits().key_bytes_max + 1), b"")
        said = one_line(raftkv("put", "large", "--endpoint", endpoint, stdin=b"x" * (limit + 1)))
        assert f"value_bytes_max = {limit}" in said
        assert door.get(b"large") is None
        door.put(b"largest", b"x" * limit)
    found = six.client().get(b"largest")
    assert found is not None
    assert len(found.value) == limit


def test_a_body_over_the_limit_of_the_door_is_refused(six: DevCluster) -> None:
    for size_bytes in (3 << 20, 8 << 20):
        for name in ("core1", "replicant1"):
            door = DoorClient([six.endpoint(name)])
            with pytest.raises(TooLarge, match="limit of the door"):
                door.put(b"larger", b"x" * size_bytes)
            assert door.get(b"larger") is None


def answer(endpoint: str, path: str, body: dict[str, str]) -> tuple[RaftkvError | None, float]:
    """The error of a request, and how many seconds it took."""
    started = time.monotonic()
    try:
        request(endpoint, "POST", path, body, timeout_s=DEADLINE_S)
    except RaftkvError as error:
        return error, time.monotonic() - started
    return None, time.monotonic() - started


def test_a_cluster_without_a_quorum_says_so_within_the_deadline(six: DevCluster) -> None:
    six.client().put(b"quorum", b"before")
    survivors = ["core3", "replicant1"]
    doors = {name: six.endpoint(name) for name in survivors}
    for endpoint in doors.values():  # so that both know the key
        assert DoorClient([endpoint]).get(b"quorum") is not None
    for name in ("core1", "core2"):
        six.kill_node(name)
    deadline_s = six.config("core3").timeout_s
    reading = {"key": b64(b"quorum")}
    writing = {**reading, "value": b64(b"after")}
    with ThreadPoolExecutor() as pool:
        writes = [pool.submit(answer, door, "/v3/kv/put", writing) for door in doors.values()]
        reads = [pool.submit(answer, door, "/v3/kv/range", reading) for door in doors.values()]
        command = pool.submit(raftkv, "put", "quorum", "after", "--endpoint", doors["core3"])
        for door in doors.values():
            local = DoorClient([door]).get(b"quorum", "local")
            assert local is not None
            assert local.value == b"before"
        for future in writes:
            error, took_s = future.result()
            assert isinstance(error, NoLeader | OutcomeUnknown)
            assert re.search("no leader|may still be applied", str(error)), error
            assert took_s < deadline_s + 2.0
        for future in reads:
            error, took_s = future.result()
            assert isinstance(error, ReadTimeout)
            assert "lost its quorum" in str(error)
            assert took_s < deadline_s + 2.0
        assert doors["core3"] in one_line(command.result())
    six.up(timeout_s=DEADLINE_S)
    found = six.client().get(b"quorum")
    assert found is not None
    assert found.value in (b"before", b"after")

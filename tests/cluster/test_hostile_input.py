"""Pickles, garbage and oversized frames at every port of every node: nothing runs, nothing stops.

The stock PySyncObj unpickles whatever reaches its port, so that one message runs any code. Here a
pickle whose loading would create a file goes to every peer port and every door in the shapes that
could matter: bare, in PySyncObj's own frame, in ours, and behind a greeting that is accepted.
"""

from __future__ import annotations

import http.client
import os
import pickle
import random
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftkv.cli.devcluster import DevCluster
from raftkv.cli.door_client import DoorClient, request
from raftkv.config import Limits, parse_address
from raftkv.raft import wire
from tests.cluster.clients import DEADLINE_S, b64

pytestmark = pytest.mark.cluster

SEED = 11


class Payload:
    """Its pickle, when loaded, creates a file."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self._trace),)


def pickled(trace: Path) -> list[bytes]:
    """The payload in every protocol."""
    return [pickle.dumps(Payload(trace), protocol=number) for number in range(6)]


def framed(body: bytes) -> bytes:
    """A frame of ours; PySyncObj's has the same header before a compressed body."""
    return struct.pack("<I", len(body)) + body


def hello(purpose: str, cluster_id: str) -> bytes:
    """A greeting that a node accepts: of a replicant that nobody knows yet."""
    greeting = wire.Hello(
        wire.PROTOCOL_VERSION, purpose, "dev", cluster_id, "stranger-00", "replicant", "127.0.0.1:1"
    )
    return wire.encode(greeting)


def say(address: str, data: bytes) -> bytes:
    """Send bytes to a port and return what comes back until the node hangs up or has no more."""
    heard = b""
    with socket.create_connection(parse_address(address), timeout=DEADLINE_S) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65_536):
                heard += part
        except OSError:
            pass  # the node hung up before it had read everything
    return heard


def check_all_is_well(dev: DevCluster, pids: dict[str, int | None], number: int) -> None:
    """The same processes take writes and linearizable reads, and have no fault."""
    assert {name: dev.pid(name) for name in dev.names} == pids
    for name in dev.names:
        door = DoorClient([dev.endpoint(name)], timeout_s=DEADLINE_S)
        door.put(b"hostile/" + name.encode(), b"%d" % number)
    for name in dev.names:
        door = DoorClient([dev.endpoint(name)], timeout_s=DEADLINE_S)
        for writer in dev.names:
            found = door.get(b"hostile/" + writer.encode())
            assert found is not None
            assert found.value == b"%d" % number
        assert request(dev.endpoint(name), "GET", "/v1/status")["fault"] is None


@pytest.fixture
def addresses(six: DevCluster) -> Iterator[list[tuple[str, str]]]:
    """(peer address, door address) of every node; afterwards the cluster must be as it was."""
    pids = {name: six.pid(name) for name in six.names}
    check_all_is_well(six, pids, 1)
    configs = [six.config(name) for name in six.names]
    yield [(config.peer_address, str(config.http_address)) for config in configs]
    check_all_is_well(six, pids, 2)


def test_a_pickle_at_any_port_runs_nothing(
    addresses: list[tuple[str, str]], six: DevCluster, tmp_path: Path
) -> None:
    trace = tmp_path / "it-ran"
    status = request(six.endpoint("core1"), "GET", "/v1/status")
    greetings = [hello(purpose, status["cluster_id"]) for purpose in ("raft", "follow", "rpc")]
    for data in pickled(trace):
        shapes = [data, framed(data), framed(zlib.compress(data)), zlib.compress(data)]
        for peer, door in addresses:
            for shape in shapes:
                say(peer, shape)
                say(door, shape)
            for greeting in greetings:
                say(peer, greeting + framed(data))
                say(peer, greeting + framed(zlib.compress(data)))
                for message in (
                    wire.Propose([data]),
                    wire.RpcRequest(1, "lcr.registered", data),
                    wire.FeedSnapshot(1 << 40, 9, 0, True, data),
                ):
                    say(peer, greeting + wire.encode(message))
            for path in ("/v3/kv/put", "/v1/status", "/v1/lcr/x"):
                head = f"POST {path} HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {len(data)}\r\n\r\n"
                say(door, head.encode() + data)
    assert not trace.exists()
    # The check itself is sound: whoever loads the pickle leaves a trace.
    pickle.loads(pickled(trace)[-1])
    assert trace.exists()


def test_garbage_at_any_port_only_ends_the_connection(addresses: list[tuple[str, str]]) -> None:
    rng = random.Random(SEED)
    for peer, door in addresses:
        for size in (1, 3, 4, 5, 64, 5_000, 200_000):
            say(peer, rng.randbytes(size))
            say(door, rng.randbytes(size))
        greeting = hello("follow", "")
        say(peer, greeting + b"".join(framed(rng.randbytes(n)) for n in range(40)))
        # Every beginning of a greeting, cut off.
        for length in range(0, len(greeting), 7):
            say(peer, greeting[:length])


def test_oversized_frames_are_refused_before_they_are_read(
    addresses: list[tuple[str, str]],
) -> None:
    for peer, door in addresses:
        for length in (wire.HELLO_BYTES_MAX + 1, Limits().frame_bytes_max + 1, 2**32 - 1):
            # Nothing follows the length: a node that waited for it would keep the connection.
            with socket.create_connection(parse_address(peer), timeout=DEADLINE_S) as connection:
                connection.sendall(struct.pack("<I", length))
                assert connection.recv(1) == b""
        with socket.create_connection(parse_address(peer), timeout=DEADLINE_S) as connection:
            connection.sendall(hello("follow", "") + struct.pack("<I", 2**31))
            while connection.recv(65_536):
                pass
        for request_head, status in (
            (b"POST /v3/kv/put HTTP/1.1\r\nhost:[::1]\r\ncontent-length:9999999\r\n\r\nx", b"413"),
            (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000, b"431"),
        ):
            with socket.create_connection(parse_address(door), timeout=DEADLINE_S) as connection:
                connection.sendall(request_head)
                assert connection.recv(65_536).startswith(b"HTTP/1.1 " + status)


def test_nonsense_in_good_form_is_answered(addresses: list[tuple[str, str]]) -> None:
    for _, door in addresses:
        connection = http.client.HTTPConnection(*parse_address(door), timeout=DEADLINE_S)
        for body in ("", "[]", "{", '{"key": 1}', '{"key": "%%%"}', "[" * 100_000):
            connection.request("POST", "/v3/kv/put", body)
            response = connection.getresponse()
            assert response.status == 400, body[:20]
            assert b'"error"' in response.read()
        connection.close()
        text = b64(b"k")
        assert request(f"http://{door}", "POST", "/v3/kv/range", {"key": text})["header"]

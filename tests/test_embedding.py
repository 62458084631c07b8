"""Small promises to programs that embed a node or a client (docs/embedding.md)."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import raftkv
from raftkv import NodeConfig
from raftkv.errors import AddressInUse, DiskFailed
from raftkv.server import door_of
from raftkv.testing.local_cluster import free_ports
from tests.blocking.alone import config
from tests.client.doors import served
from tests.client.fake_door import in_loop


def test_d7_recipes_can_be_reached_from_the_package() -> None:
    check = "import raftkv; print(raftkv.recipes.Lock.__name__, raftkv.blocking.Node.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["Lock", "Node"]
    assert "recipes" in raftkv.__all__


@in_loop
async def test_d7_a_get_is_sent_again_when_its_connection_breaks() -> None:
    async with served(1) as cluster, raftkv.Client(cluster.urls) as client:
        (proxy,) = cluster.proxies.values()
        proxy.mode = "drop"
        asked = asyncio.create_task(client.call("GET", "/v1/status"))
        while not proxy.dropped:
            await asyncio.sleep(0)
        proxy.mode = "pass"
        assert (await asked).status == 200


def serving(directory: Path) -> NodeConfig:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    return msgspec.structs.replace(config(directory), http_address=address)


async def asked(node: raftkv.Node, path: str = "/version") -> int:
    """The status of the answer at the node's `http_address`."""
    host, _, port = str(node.config.http_address).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    head = await reader.readline()
    writer.close()
    return int(head.split()[1])


@in_loop
async def test_d7_an_embedded_node_serves_its_http_address(tmp_path: Path) -> None:
    node = raftkv.Node(serving(tmp_path), plugins=())
    assert node.http_api is None
    async with node:
        await node.wait_ready()
        assert node.http_api is not None
        assert node.http_api.endpoint == f"http://{node.config.http_address}"
        assert await asked(node) == 200
    with pytest.raises(ConnectionRefusedError):
        await asked(node)
    async with raftkv.Node(node.config, plugins=()) as again:  # the port is free again
        assert await asked(again) == 200


@in_loop
async def test_d7_a_program_that_serves_by_hand_still_can(tmp_path: Path) -> None:
    async with raftkv.Node(serving(tmp_path), plugins=()) as node:
        served = door_of(node)
        assert served is node.http_api is door_of(node)
        await served.start()
        assert await asked(node) == 200
        await served.stop()
        await served.stop()
        with pytest.raises(ConnectionRefusedError):
            await asked(node)
        with pytest.raises(RuntimeError, match="make another one"):
            await served.start()
        other = door_of(node)
        assert other is not served
        await other.start()
        assert await asked(node) == 200


@in_loop
async def test_d7_a_faulted_node_answers_with_errors_until_it_is_stopped(tmp_path: Path) -> None:
    node = raftkv.Node(serving(tmp_path), plugins=())
    async with node:
        await node.wait_ready()
        node._faulted(DiskFailed("a disk of this test"))
        assert await asked(node, "/health") == 503
    with pytest.raises(ConnectionRefusedError):
        await asked(node)


@in_loop
async def test_d7_a_taken_http_address_ends_the_start(tmp_path: Path) -> None:
    first = serving(tmp_path / "1")
    async with raftkv.Node(first, plugins=()):
        second = msgspec.structs.replace(config(tmp_path / "2"), http_address=first.http_address)
        node = raftkv.Node(second, plugins=())
        with pytest.raises(AddressInUse, match="http_address"):
            await node.start()
    async with raftkv.Node(second, plugins=()) as node:  # the directory was let go
        assert await asked(node) == 200


@in_loop
async def test_d7_requests_under_way_finish_before_the_node_stops(tmp_path: Path) -> None:
    async with raftkv.Node(serving(tmp_path), plugins=()) as node:
        await node.wait_ready()
        host, _, port = str(node.config.http_address).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = b'{"key": "aw==", "value": "dg=="}'
        head = f"POST /v3/kv/put HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[:5])
        assert node.http_api is not None
        while node.http_api.metrics()[4].value != 1:  # the request is under way
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(0)
        writer.write(body[5:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        await stopping


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_d7_a_forked_child_lets_go_of_the_http_port(tmp_path: Path) -> None:
    with raftkv.blocking.Node(serving(tmp_path), plugins=()) as node:
        api = node._node.http_api
        assert api is not None
        numbers = api.descriptors()
        assert numbers
        child = os.fork()
        if child == 0:
            kept = [number for number in numbers if _is_socket(number)]
            os._exit(len(kept))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _is_socket(number: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False

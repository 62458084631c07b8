"""A node may listen elsewhere than where it says that it is: behind translation or a proxy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from raftkv import Node, NodeConfig
from raftkv.cli.ports import free_ports
from raftkv.errors import ConfigError


def test_it_listens_there_and_tells_others_its_peer_address(tmp_path: Path) -> None:
    told, listens = (f"127.0.0.1:{port}" for port in free_ports(2))

    async def whole() -> None:
        config = NodeConfig(
            name="a",
            dir=str(tmp_path),
            peer_address=told,
            listen_address=listens,
            cores={"a": told},
            plugins=(),
        )
        async with Node(config) as node:
            await node.wait_ready()
            host, _, port = listens.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(host, int(told.rpartition(":")[2]))
            (member,) = node.status().members
            assert member.peer_address == told

    asyncio.run(whole())


def test_it_obeys_the_rules_of_addresses() -> None:
    here = "127.0.0.1:7401"
    for listens, words in (
        ("0.0.0.0:7401", "listen_address = '0.0.0.0:7401' is not a loop"),
        ("7401", "listen_address = '7401' is not an address"),
    ):
        with pytest.raises(ConfigError) as raised:
            NodeConfig(
                name="a", dir="d", peer_address=here, listen_address=listens, cores={"a": here}
            )
        assert words in str(raised.value)

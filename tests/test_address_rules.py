"""Addresses of a configuration: what cannot be used is refused before a cluster is bootstrapped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from raftkv import NodeConfig
from raftkv.address_rules import is_loopback, is_wildcard
from raftkv.addresses import AddressBook
from raftkv.errors import ConfigError
from raftkv.node import Node
from raftkv.server import door_of
from raftkv.testing.local_cluster import free_ports

HERE = "127.0.0.1:7401"


def refusal(**changes: Any) -> str:
    """What is said of a configuration; "" if it is accepted."""
    given: dict[str, Any] = {"name": "a", "dir": "d", "peer_address": HERE, "cores": {"a": HERE}}
    try:
        NodeConfig(**{**given, **changes}).validated()
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:7401",
        " :7401",
        "a b:7401",
        "127.0.0.1:\u0663",
        "[::1:7401",
        "::1]:7401",
        "[]:7401",
        "node1/x:7401",
        "127.0.0.1:7401\n",
    ],
)
def test_a4_what_is_no_host_is_no_address(address: str) -> None:
    for changes in (
        {"peer_address": address, "cores": {"a": address}},
        {"listen_address": address},
        {"http_address": address},
    ):
        assert 'is not an address: write "host:port"' in refusal(insecure=True, **changes)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "0", "[0:0::0]", "[::ffff:0.0.0.0]", "0x0"])
def test_every_address_of_a_machine_is_no_address_for_others(host: str) -> None:
    wild = f"{host}:7401"
    for changes, label in (
        ({"peer_address": wild, "cores": {"a": wild}}, "peer_address"),
        ({"cores": {"a": wild}}, "cores.a"),
        ({"cores": {"a": HERE, "b": wild}}, "cores.b"),
        ({"http_address": f"{host}:7501"}, "http_address"),
    ):
        said = refusal(insecure=True, **changes)
        assert said.startswith(f"{label} = "), said
        assert "no address that others can reach" in said
        if label != "cores.b":
            assert "listen on" in said
            assert ("http_listen_address" if "http" in label else " listen_address") in said
    # Listening there is what it is for.
    assert refusal(insecure=True, listen_address=wild, http_address="127.0.0.1:7501") == ""
    assert (
        refusal(insecure=True, http_address="127.0.0.1:7501", http_listen_address=f"{host}:7501")
        == ""
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peer_address": "127.0.0.1:0", "cores": {"a": "127.0.0.1:0"}}, "peer_address"),
        ({"cores": {"a": HERE, "b": "127.0.0.1:0"}}, "cores.b"),
        ({"http_address": "127.0.0.1:0"}, "http_address"),
        ({"listen_address": "127.0.0.1:0"}, "listen_address"),
        (
            {"http_address": "127.0.0.1:1", "http_listen_address": "127.0.0.1:0"},
            "http_listen_address",
        ),
    ],
)
def test_port_0_is_refused(changes: dict[str, Any], words: str) -> None:
    said = refusal(**changes)
    assert said.startswith(f"{words} = ")
    assert "port 0 means any free port" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cores": {"a": HERE, "b": HERE}}, "cores.a and cores.b have one address"),
        ({"cores": {"a": HERE, "b": "LOCALHOST:7401"}}, "cores.a and cores.b have one address"),
        (
            {"cores": {"a": "127.0.0.1:1", "b": HERE}},
            "peer_address = '127.0.0.1:7401' is the address of another node, cores.b",
        ),
        (
            {"name": "r", "role": "replicant"},
            "is the address of another node, cores.a: this replicant needs one of its own",
        ),
        ({"http_address": HERE}, "are one address"),
        ({"http_address": "localhost:7401"}, "are one address"),
        (
            {"http_address": "127.0.0.1:7501", "http_listen_address": HERE},
            "peer_address = '127.0.0.1:7401' and http_listen_address",
        ),
        (
            {
                "listen_address": "0.0.0.0:7501",
                "http_address": "127.0.0.1:7501",
                "insecure": True,
            },
            "listen_address = '0.0.0.0:7501' and http_address = '127.0.0.1:7501' are one address",
        ),
        ({"http_listen_address": "127.0.0.1:7501"}, "name with http_address"),
    ],
)
def test_addresses_that_exclude_each_other(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(**changes)


def test_localhost_is_loopback_in_any_spelling() -> None:
    for host in ("localhost", "LOCALHOST", "LocalHost.", "127.0.0.5", "::1", "::ffff:127.0.0.1"):
        assert is_loopback(host), host
        shown = f"[{host}]" if ":" in host else host
        assert refusal(peer_address=f"{shown}:7401", cores={"a": f"{shown}:7401"}) == ""
    for host in ("10.0.0.1", "localhost.example", "0.0.0.0", "::"):
        assert not is_loopback(host), host
    for host in ("10.0.0.1", "::1", "a", "0a", "1"):
        assert not is_wildcard(host), host


def test_what_other_nodes_name_is_not_dialled_if_it_is_every_address() -> None:
    """A node of an earlier release may still advertise one."""
    book = AddressBook({"b": "10.0.0.2:7401"})
    for address in ("0.0.0.0:7401", "[::]:7401", "10.0.0.3:0"):
        book.greeted("b", address)
        assert not book.heard("b", address)
    assert book.of("b") == ["10.0.0.2:7401"]


def test_the_http_api_listens_where_it_is_asked_and_tells_the_other(tmp_path: Path) -> None:
    peer, told, listens = (f"127.0.0.1:{port}" for port in free_ports(3))
    config = NodeConfig(
        name="a",
        dir=str(tmp_path / "a"),
        peer_address=peer,
        cores={"a": peer},
        http_address=told,
        http_listen_address=listens,
        plugins=(),
    )

    async def whole() -> None:
        async with Node(config) as node:
            await node.wait_ready()
            server = door_of(node)
            await server.start()
            assert server.endpoint == f"http://{listens}"
            host, _, port = listens.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            (member,) = node.status().members
            assert member.http_address == told
            await server.stop()

    asyncio.run(asyncio.wait_for(whole(), 30))

"""The `[tls]` part of a configuration, and what it allows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench.layouts import Layout, node_configs
from raftkv.config import NodeConfig, TlsFiles, load_config
from raftkv.errors import CertificateError, ConfigError
from raftkv.node import Node
from raftkv.security.credentials import load
from raftkv.testing.runtime import SimRuntime
from raftkv.testing.world import World
from tests.security import pki

FILES = TlsFiles(ca="ca.pem", certificate="a.pem", key="a.key")


def config(**changes: Any) -> NodeConfig:
    settings: dict[str, Any] = {
        "name": "a",
        "dir": "data",
        "peer_address": "10.0.0.1:7000",
        "cores": {"a": "10.0.0.1:7000"},
    }
    return NodeConfig(**{**settings, **changes})


def test_certificates_open_the_peer_address_to_the_network() -> None:
    config(tls=FILES).validated()
    with pytest.raises(ConfigError, match="no certificates.*raftkv certs"):
        config().validated()


def test_certificates_do_not_open_the_door() -> None:
    with pytest.raises(ConfigError, match="the HTTP API has no TLS"):
        config(tls=FILES, http_address="10.0.0.1:8000").validated()
    config(tls=FILES, http_address="10.0.0.1:8000", insecure=True).validated()
    config(tls=FILES, http_address="127.0.0.1:8000").validated()


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    text = (
        'name = "a"\ndir = "data"\npeer_address = "10.0.0.1:7000"\n[cores]\na = "10.0.0.1:7000"\n'
        '[tls]\nca = "certs/ca.pem"\ncertificate = "certs/a.pem"\nkey = "/etc/raftkv/a.key"\n'
    )
    path.write_text(text)
    tls = load_config(path).tls
    assert tls is not None
    assert tls.ca == str(tmp_path / "certs/ca.pem")
    assert tls.certificate == str(tmp_path / "certs/a.pem")
    assert tls.key == "/etc/raftkv/a.key"
    path.write_text(text.replace("key = ", "secret = "))
    with pytest.raises(ConfigError, match="secret"):
        load_config(path)


def started(made: NodeConfig) -> None:
    async def start() -> None:
        async with Node(made, plugins=[]):
            raise AssertionError("it must not start")

    asyncio.run(start())


def test_a_node_with_unusable_certificates_starts_nothing(tmp_path: Path) -> None:
    signer = pki.authority()
    files = pki.write(tmp_path / "certs", pki.node(signer, "b"), signer)
    local: dict[str, Any] = {
        "dir": str(tmp_path / "data"),
        "peer_address": "127.0.0.1:1",
        "cores": {"a": "127.0.0.1:1"},
    }
    with pytest.raises(CertificateError, match="certificate of 'b'"):
        started(config(tls=files, **local))
    with pytest.raises(CertificateError, match="cannot be read"):
        started(config(tls=FILES, **local))
    assert not (tmp_path / "data").exists()


def test_a_node_without_certificates_has_none_to_reload(tmp_path: Path) -> None:
    async def reload() -> None:
        made = config(dir=str(tmp_path), peer_address="127.0.0.1:1", cores={"a": "127.0.0.1:1"})
        async with Node(made, plugins=[]) as node:
            assert node.status().tls is None
            await node.reload_certificates()

    with pytest.raises(ConfigError, match="no certificates"):
        asyncio.run(reload())


def test_the_benchmark_s_nodes_get_certificates(tmp_path: Path) -> None:
    layout = Layout.parse("3")
    assert all(made.tls is None for made in node_configs(layout, tmp_path, "on").values())
    for name, made in node_configs(layout, tmp_path, "on", tls=True).items():
        assert made.tls is not None
        found = load(made.tls.ca, made.tls.certificate, made.tls.key)
        assert found.identity == (made.cluster, name, False)


def test_the_simulated_world_has_no_tls() -> None:
    said: list[str] = []

    async def program(runtime: SimRuntime) -> None:
        made = config(tls=FILES, dir="/a", peer_address="a:1", cores={"a": "a:1"})
        try:
            await Node(made, plugins=[], runtime=runtime).start()
        except ConfigError as error:
            said.append(str(error))

    with World(1) as world:
        world.start("a", program)
        world.run(1)
    assert said == ["this runtime has no TLS: leave tls out of the configuration"]

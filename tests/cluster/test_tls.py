"""Real processes with certificates from `raftkv certs`: rotation under load, and its end.

Three cores from TOML files. While clients write through all of them, one node gets a new
certificate, then the authority is replaced step by step as docs/operations.md tells; no write may
fail. Afterwards every node is restarted, so that each connection is made anew with the new
certificates under the new authority alone.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftkv.cli.devcluster import DevCluster
from raftkv.cli.door_client import request
from raftkv.config import parse_address
from raftkv.raft import wire
from raftkv.security.directory import CertificateDirectory
from tests.cluster.clients import DEADLINE_S, HttpClient, Load

pytestmark = pytest.mark.cluster

CLIENTS = 6
# Writes that must succeed between two steps of the rotation.
BETWEEN = 100


def certs(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run `raftkv certs ... --json`: the certificates that it shows."""
    command = [sys.executable, "-m", "raftkv", "certs", *arguments, "--dir", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["certificates"]
    return found


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevCluster]:
    """Three cores, whose files were given certificates by the command line."""
    made = DevCluster(tmp_path / "dev")
    made.create(cores=3, replicants=0, plugins=[])
    folder = tmp_path / "certs"
    certs(folder, "init", "--cluster", "dev")
    certs(folder, "issue", "core1", "--host", "127.0.0.1")
    for name in made.names[1:]:
        CertificateDirectory(folder).issue(name, ["127.0.0.1"])
    for name in made.names:
        path = Path(made.config_path(name))
        files = {"ca": "ca.pem", "certificate": f"{name}.pem", "key": f"{name}.key"}
        lines = ["", "[tls]", *(f'{key} = "../../certs/{file}"' for key, file in files.items())]
        path.write_text(path.read_text() + "\n".join(lines) + "\n")
    made.up(timeout_s=DEADLINE_S)
    yield made
    made.down()


def tls_of(dev: DevCluster, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = request(dev.endpoint(name), "GET", "/v1/status")["tls"]
    return answer


async def taken(dev: DevCluster, condition: Callable[[dict[str, Any]], bool], *names: str) -> None:
    """Tell the nodes to read their certificates; return once all of them have."""
    for name in names:
        dev.kill_node(name, signal.SIGHUP)
    async with asyncio.timeout(DEADLINE_S):
        for name in names:
            while not condition(await asyncio.to_thread(tls_of, dev, name)):
                await asyncio.sleep(0.02)


async def rotate(dev: DevCluster, folder: Path, load: Load) -> str:
    """One node's certificate, then the authority. The new authority's fingerprint."""

    async def run(*arguments: str) -> list[dict[str, Any]]:
        return await asyncio.to_thread(certs, folder, *arguments)

    directory = CertificateDirectory(folder)
    before = tls_of(dev, "core2")["serial"]
    await run("renew", "core2")
    await taken(dev, lambda tls: tls["serial"] != before, "core2")
    await load.acknowledges(BETWEEN)
    new, _ = await run("renew-ca")
    await taken(dev, lambda tls: len(tls["authorities"]) == 2, *dev.names)
    await load.acknowledges(BETWEEN)
    for name in dev.names:
        before = tls_of(dev, name)["serial"]
        # As `raftkv certs renew` does, without the seconds to start it.
        directory.renew(name)
        await taken(dev, lambda tls, old=before: tls["serial"] != old, name)  # type: ignore[misc]
    await load.acknowledges(BETWEEN)
    directory.drop_authorities()
    await taken(dev, lambda tls: len(tls["authorities"]) == 1, *dev.names)
    await load.acknowledges(BETWEEN)
    return str(new["fingerprint"])


async def rotation_under_load(dev: DevCluster, folder: Path) -> None:
    load = Load(dev, b"tls/", CLIENTS)
    async with load:
        await load.acknowledges(BETWEEN)
        fingerprint = await rotate(dev, folder, load)
    assert not load.denied
    assert not load.unknown
    for name in dev.names:
        assert tls_of(dev, name)["authorities"][0]["fingerprint"] == fingerprint
        await asyncio.to_thread(dev.kill_node, name)
        await asyncio.to_thread(dev.up, timeout_s=DEADLINE_S)
    readers = [HttpClient(endpoint) for endpoint in dev.endpoints()]
    await load.check(readers)
    for reader in readers:
        reader.close()


def test_certificates_and_authority_are_replaced_without_a_failed_write(
    dev: DevCluster, tmp_path: Path
) -> None:
    asyncio.run(rotation_under_load(dev, tmp_path / "certs"))
    hostile_peers_leave_a_line_each(dev)


def hostile_peers_leave_a_line_each(dev: DevCluster) -> None:
    """The processes say who was turned away and why, and go on."""
    address = parse_address(dev.config("core1").peer_address)
    greeting = wire.Hello(wire.PROTOCOL_VERSION, "raft", "dev", "", "core2-00", "core", "h:1")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    heres = []
    for speak_tls in (False, True):
        with socket.create_connection(address, timeout=DEADLINE_S) as plain:
            heres.append(plain.getsockname())
            stream = context.wrap_socket(plain) if speak_tls else plain
            try:
                stream.sendall(wire.encode(greeting))
                while stream.recv(65_536):
                    pass
            except OSError:
                pass  # an alert, or a reset: the node has hung up
            stream.close()
    dev.wait_writable(timeout_s=DEADLINE_S)
    log = Path(dev.log_path("core1")).read_text()
    for (host, port), reason in zip(
        heres, ("it does not speak TLS", "it has sent no certificate"), strict=True
    ):
        said = [json.loads(line) for line in log.splitlines() if f"{host}:{port}:" in line]
        assert len(said) == 1
        assert reason in json.dumps(said[0])


def test_a_development_cluster_with_tls(tmp_path: Path) -> None:
    dev = DevCluster(tmp_path / "dev")
    try:
        shape = dev.up(cores=1, replicants=1, tls=True, plugins=[], timeout_s=DEADLINE_S)
        assert shape.tls
        assert tls_of(dev, "replicant1")["days_left"] > 0
        for name in dev.names:
            tls = dev.config(name).tls
            assert tls is not None
            assert Path(tls.key).resolve().parent == (tmp_path / "dev" / "certs").resolve()
    finally:
        dev.down()

"""TLS at the door: who gets in, what is said of unusable files, and changing them while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raftkv.config import HttpLimits, HttpTls, NodeConfig, load_config
from raftkv.errors import CertificateError, ConfigError
from raftkv.security.authority import Authority, issue, new_authority, to_pem
from raftkv.security.identity import CertificateIdentity
from raftkv.server.tls import DoorTls
from tests.server.conftest import Served

NOW = datetime.datetime.now(datetime.UTC)


class Pki:
    """An authority in a folder, and what it signs."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.authority = new_authority(name, now=NOW, days=30)
        self.ca = self.write("ca", self.authority)[0]

    def write(self, name: str, made: Authority) -> tuple[str, str]:
        certificate = self.folder / f"{self.name}-{name}.pem"
        key = self.folder / f"{self.name}-{name}.key"
        certificate.write_bytes(to_pem(made.certificate))
        key.write_bytes(to_pem(made.key))
        return str(certificate), str(key)

    def issue(self, name: str) -> tuple[str, str]:
        identity = CertificateIdentity(self.name, name, False)
        return self.write(name, issue(self.authority, identity, ["127.0.0.1"], now=NOW, days=30))


class World:
    """The door's authority and that of its clients."""

    def __init__(self, folder: Path) -> None:
        self.doors, self.clients = Pki(folder, "doors"), Pki(folder, "clients")
        certificate, key = self.doors.issue("a")
        self.files = HttpTls(certificate=certificate, key=key, ca=self.clients.ca)
        self.client = self.clients.issue("alice")

    def context(self, client: tuple[str, str] | None, ca: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=ca or self.doors.ca)
        if client is not None:
            context.load_cert_chain(*client)
        return context


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def secure(world: World) -> Iterator[Served]:
    server = Served(tls=DoorTls(world.files))
    server.start()
    yield server
    server.stop()


def get(server: Served, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection(
        "127.0.0.1", server.door.port, timeout=10, context=context
    )
    try:
        connection.request("GET", "/version")
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_a_client_with_a_certificate_is_served(world: World, secure: Served) -> None:
    assert secure.door.endpoint == f"https://127.0.0.1:{secure.door.port}"
    assert get(secure, world.context(world.client)) == 200


def test_tls_1_2_will_do_and_nothing_older(world: World, secure: Served) -> None:
    context = world.context(world.client)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert get(secure, context) == 200


@pytest.mark.parametrize("who", ["nobody", "a door", "a stranger"])
def test_others_are_not(world: World, secure: Served, tmp_path: Path, who: str) -> None:
    shown = {
        "nobody": None,
        "a door": world.doors.issue("b"),
        "a stranger": Pki(tmp_path, "clients").issue("alice"),
    }[who]
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        get(secure, world.context(shown))


def test_plain_http_is_not_answered(secure: Served) -> None:
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        secure.ask("GET", "/version")


def figures(server: Served) -> dict[str, float]:
    return {each.name: each.value for each in server.door.metrics() if not each.labels}


def until(server: Served, holds: Callable[[dict[str, float]], bool]) -> None:
    async def wait() -> None:
        async with asyncio.timeout(10):
            while not holds(figures(server)):
                await asyncio.sleep(0.001)

    server.run(wait())


def test_a_handshake_counts_as_a_connection(world: World) -> None:
    server = Served(tls=DoorTls(world.files), limits=HttpLimits(connections_max=2))
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.door.port), 10) as silent:
            until(server, lambda now: now["handshakes"] == 1)
            assert get(server, world.context(world.client)) == 200
            until(server, lambda now: now["connections"] == 0)
            with socket.create_connection(("127.0.0.1", server.door.port), 10) as second:
                until(server, lambda now: now["handshakes"] == 2)
                with pytest.raises(OSError):  # noqa: PT011  # reset or closed, as it comes
                    get(server, world.context(world.client))
                second.sendall(b"GET / HTTP/1.1\r\n\r\n")
                until(server, lambda now: now["handshakes_failed"] == 1)
            assert get(server, world.context(world.client)) == 200
            assert server.door._state.refused["connections_max"] == 1
            silent.shutdown(socket.SHUT_RDWR)
        until(server, lambda now: now["handshakes"] == 0 and now["handshakes_failed"] == 2)
    finally:
        server.stop()


def test_a_handshake_has_a_time(world: World) -> None:
    server = Served(tls=DoorTls(world.files), limits=HttpLimits(request_timeout_s=0.1))
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.door.port), 10) as silent:
            assert silent.recv(1) == b""
        until(server, lambda now: now["handshakes"] == 0)
        assert figures(server)["handshakes_failed"] == 1
    finally:
        server.stop()


def test_handshakes_end_with_the_door(world: World) -> None:
    server = Served(tls=DoorTls(world.files))
    server.start()
    with socket.create_connection(("127.0.0.1", server.door.port), 10) as silent:
        until(server, lambda now: now["handshakes"] == 1)
        server.stop()
        with contextlib.suppress(ConnectionError):
            assert silent.recv(1) == b""


def test_without_ca_anybody_comes(world: World) -> None:
    files = HttpTls(certificate=world.files.certificate, key=world.files.key)
    server = Served(tls=DoorTls(files))
    server.start()
    try:
        assert get(server, world.context(None)) == 200
    finally:
        server.stop()


def test_new_files_are_in_force_for_new_connections(tmp_path: Path) -> None:
    world = World(tmp_path)
    server = Served(tls=DoorTls(world.files))
    server.start()
    try:
        old = world.context(world.client)
        assert get(server, old) == 200
        doors, clients = world.doors.authority, world.clients.authority
        world.doors.authority = new_authority("doors", now=NOW, days=30)
        world.clients.authority = new_authority("clients", now=NOW, days=30)
        for pki in (world.doors, world.clients):
            pki.write("ca", pki.authority)
        world.doors.issue("a")
        server.run(server.door.reload_certificates())
        with pytest.raises(ssl.SSLError):
            get(server, old)
        assert get(server, world.context(world.clients.issue("bob"))) == 200
        world.clients.authority = clients
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            get(server, world.context(world.clients.issue("old")))
        assert doors is not world.doors.authority
    finally:
        server.stop()


def ask(
    server: Served, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[bytes, bool, ssl.SSLSession | None]:
    """The status of a GET, whether the TLS session was resumed, and the session."""
    raw = socket.create_connection(("127.0.0.1", server.door.port), 10)
    with context.wrap_socket(raw, server_hostname="127.0.0.1", session=session) as wire:
        wire.sendall(b"GET /version HTTP/1.1\r\nhost: [::1]\r\nconnection: close\r\n\r\n")
        status = wire.makefile("rb").readline()
        if not status:
            raise ConnectionError("closed without an answer")
        return status[9:12], bool(wire.session_reused), wire.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_resumed_session_does_not_skip_the_check_of_the_client(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    world = World(tmp_path)
    server = Served(tls=DoorTls(world.files))
    server.start()
    try:
        context = world.context(world.client)
        context.minimum_version = context.maximum_version = version
        _, _, session = ask(server, context)
        assert ask(server, context, session)[:2] == (b"200", False)
        world.clients.authority = new_authority("clients", now=NOW, days=30)
        world.clients.write("ca", world.clients.authority)
        server.run(server.door.reload_certificates())
        for offered in (None, session):
            with pytest.raises(OSError):  # noqa: PT011  # an alert, or the connection is reset
                ask(server, context, offered)
    finally:
        server.stop()


def test_a_bad_file_leaves_the_former_in_force(tmp_path: Path) -> None:
    world = World(tmp_path)
    tls = DoorTls(world.files)
    server = Served(tls=tls)
    server.start()
    try:
        Path(world.files.certificate).write_text("nothing")
        with pytest.raises(CertificateError, match="cannot be used"):
            server.run(server.door.reload_certificates())
        assert tls.fault is not None
        assert get(server, world.context(world.client)) == 200
    finally:
        server.stop()


@pytest.mark.parametrize("which", ["certificate", "key", "ca"])
@pytest.mark.parametrize("content", [None, "nothing"])
def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, which: str, content: str | None
) -> None:
    world = World(tmp_path)
    path = Path(getattr(world.files, which))
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(CertificateError, match=path.name):
        DoorTls(world.files)


CONFIG = """
name = "a"
dir = "data"
peer_address = "127.0.0.1:1"
http_address = "10.0.0.1:2379"
[cores]
a = "127.0.0.1:1"
"""


def configured(tmp_path: Path, more: str) -> NodeConfig:
    path = tmp_path / "node.toml"
    path.write_text(CONFIG + more)
    return load_config(path)


def test_a_door_for_others_needs_the_clients_certificates(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the HTTP API has no TLS"):
        configured(tmp_path, "")
    with pytest.raises(ConfigError, match="asks for no client certificates"):
        configured(tmp_path, '[http_tls]\ncertificate = "a.pem"\nkey = "a.key"\n')
    whole = '[http_tls]\ncertificate = "a.pem"\nkey = "/k/a.key"\nca = "ca.pem"\n'
    found = configured(tmp_path, whole).http_tls
    assert found == HttpTls(
        certificate=str(tmp_path / "a.pem"), key="/k/a.key", ca=str(tmp_path / "ca.pem")
    )


def test_the_limits_of_the_door_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(CONFIG.replace("10.0.0.1", "127.0.0.1") + "[http]\nstreams_max = 0\n")
    with pytest.raises(ConfigError, match=r"http\.streams_max"):
        load_config(path)

"""Hostile and mistaken peers at the TLS port of a running cluster, over real sockets.

The cluster runs in a thread of its own; the peers are blocking sockets of the test. Whatever they
do costs them the connection and the node one line in its log, which names their address and the
reason, and the cluster goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftkv.config import Limits, TlsFiles, parse_address
from raftkv.errors import CertificateError, PeerUnreachable
from raftkv.raft import link, transport, wire
from raftkv.raft.transport import Hub, Link
from raftkv.runtime import OsRuntime
from raftkv.security.directory import CertificateDirectory, certify
from raftkv.security.keeper import Keeper
from raftkv.security.proof import Proof
from raftkv.testing.local_cluster import LocalCluster
from tests.security import pki

HELLO_TIMEOUT_S = 1.0
PENDING_MAX = 16
WAIT_S = 10.0


class Threaded:
    """A cluster on a loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.cluster = LocalCluster(cores=3, replicants=1, tls=True)
        self.run(self.cluster.__aenter__())
        self._count = 0

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def close(self) -> None:
        self.run(self.cluster.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()

    def check(self) -> None:
        """Every node takes a write, and none has a fault."""
        self._count += 1
        for node in self.cluster.nodes:
            self.run(node.kv.put(node.name.encode(), b"%d" % self._count))
            assert node.status().fault is None

    @property
    def address(self) -> tuple[str, int]:
        return parse_address(self.cluster.configs["core1"].peer_address)

    @property
    def ca(self) -> str:
        return f"{self.cluster.certificates}/ca.pem"

    def issued(self, name: str, *, replicant_only: bool = False) -> TlsFiles:
        """Files of a certified stranger."""
        directory = CertificateDirectory(self.cluster.certificates)
        directory.issue(name, [], replicant_only=replicant_only, force=True)
        return certify(self.cluster.certificates, "raftkv", [name], [])[name]


@pytest.fixture(scope="module")
def running() -> Iterator[Threaded]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "HELLO_TIMEOUT_S", HELLO_TIMEOUT_S)
        patch.setattr(transport, "PENDING_LINKS_MAX", PENDING_MAX)
        made = Threaded()
        yield made
        made.close()


class Lines:
    """What the nodes have logged about the peer at an address."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def about(self, address: tuple[str, int]) -> list[str]:
        where = f"{address[0]}:{address[1]}:"
        return [r.getMessage() for r in self._caplog.records if where in r.getMessage()]

    def one(self, address: tuple[str, int]) -> str:
        """The single line, once it is there."""
        until(lambda: self.about(address))
        (line,) = self.about(address)
        return line


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, running: Threaded) -> Iterator[Lines]:
    """Afterwards the cluster must go on."""
    with caplog.at_level(logging.WARNING):
        yield Lines(caplog)
        running.check()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.005)


@contextlib.contextmanager
def connected(running: Threaded) -> Iterator[socket.socket]:
    with socket.create_connection(running.address, timeout=WAIT_S) as made:
        yield made


def hang_up(stream: socket.socket) -> bytes:
    """Read until the node hangs up; what it said before."""
    heard = b""
    with contextlib.suppress(OSError):
        while part := stream.recv(65_536):
            heard += part
    return heard


def first(data: bytes) -> wire.Message:
    """The first message in what a node said."""
    body = wire.Frames(wire.HELLO_BYTES_MAX).feed_one(data)
    assert body is not None
    return wire.decode(body)


def attempt(running: Threaded, context: ssl.SSLContext, lines: Lines, data: bytes = b"") -> str:
    """Shake hands, say `data`, see the connection end: the line in the log."""
    with connected(running) as plain:
        here = plain.getsockname()
        with contextlib.suppress(OSError), context.wrap_socket(plain) as stream:
            stream.sendall(data)
            hang_up(stream)
        return lines.one(here)


def hello(
    name: str, purpose: str = "rpc", role: str = "replicant", cluster: str = "raftkv"
) -> bytes:
    about = wire.About(formats=[("core", 2)])
    raft_id, address = f"{name}-00", "127.0.0.1:1"
    return wire.encode(
        wire.Hello(wire.PROTOCOL_VERSION, purpose, cluster, "", raft_id, role, address, about=about)
    )


# Before the handshake is done --------------------------------------------------------------------


def test_a_plaintext_client(running: Threaded, lines: Lines) -> None:
    with connected(running) as stream:
        stream.sendall(hello("core2", "raft", "core"))
        hang_up(stream)
        assert "does not speak TLS" in lines.one(stream.getsockname())


def test_a_client_of_tls_12(running: Threaded, lines: Lines) -> None:
    context = pki.client(running.issued("old"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert "no TLS 1.3" in attempt(running, context, lines)


def test_no_client_certificate(running: Threaded, lines: Lines) -> None:
    said = attempt(running, pki.client(None), lines, hello("core2"))
    assert "it has sent no certificate" in said


def test_the_certificate_of_another_authority(
    running: Threaded, lines: Lines, tmp_path: Path
) -> None:
    signer = pki.authority()
    files = pki.write(tmp_path, pki.node(signer, "core2"), signer)
    said = attempt(running, pki.client(files), lines, hello("core2"))
    assert "its certificate is refused: " in said


def test_an_expired_certificate(running: Threaded, lines: Lines, tmp_path: Path) -> None:
    directory = CertificateDirectory(running.cluster.certificates)
    made = pki.node(directory._authority(), "core2", made=pki.now() - pki.days(3), valid_days=2)
    files = pki.write(tmp_path, made)
    said = attempt(running, pki.client(files), lines, hello("core2"))
    assert "certificate has expired" in said


def test_a_handshake_that_is_never_finished(running: Threaded, lines: Lines) -> None:
    with connected(running) as silent, connected(running) as slow:
        slow.sendall(b"\x16\x03\x01\x02")
        began = time.monotonic()
        hang_up(silent)
        hang_up(slow)
        assert time.monotonic() - began < HELLO_TIMEOUT_S + 5
        for stream in (silent, slow):
            assert "no end of the TLS handshake within" in lines.one(stream.getsockname())


def test_pending_handshakes_are_bounded_and_a_node_still_gets_in(
    running: Threaded, lines: Lines
) -> None:
    context = pki.client(running.issued("late"), running.ca)
    with contextlib.ExitStack() as opened:
        flood = [opened.enter_context(connected(running)) for _ in range(PENDING_MAX + 5)]
        with connected(running) as plain, context.wrap_socket(plain) as stream:
            stream.sendall(hello("late"))
            assert isinstance(first(stream.recv(65_536)), wire.Hello)
        for oldest in flood[:6]:
            assert "have not greeted" in lines.one(oldest.getsockname())
            hang_up(oldest)


# After it ----------------------------------------------------------------------------------------


def test_another_cluster_of_the_same_authority(
    running: Threaded, lines: Lines, tmp_path: Path
) -> None:
    directory = CertificateDirectory(running.cluster.certificates)
    files = pki.write(tmp_path, pki.node(directory._authority(), "core2", "orders"))
    said = attempt(running, pki.client(files), lines, hello("core2", cluster="raftkv"))
    assert "'core2' in the cluster 'orders', this is 'raftkv'" in said


def refused(running: Threaded, files: TlsFiles, data: bytes) -> wire.Refusal:
    context = pki.client(files, running.ca)
    with connected(running) as plain, context.wrap_socket(plain) as stream:
        stream.sendall(data)
        message = first(hang_up(stream))
    assert isinstance(message, wire.Refusal)
    return message


def test_the_right_authority_and_the_wrong_name(running: Threaded, lines: Lines) -> None:
    data = hello("core2", "raft", "core")
    said = attempt(running, pki.client(running.issued("core9")), lines, data)
    assert "certificate is of 'core9'" in said
    assert "the greeting of 'core2'" in said
    refusal = refused(running, running.issued("core9"), data)
    assert refusal.code == "wrong_certificate"


def test_a_certificate_for_replicants_only(running: Threaded, lines: Lines) -> None:
    files = running.issued("copy", replicant_only=True)
    for data in (hello("copy", "raft", "replicant"), hello("copy", "follow", "core")):
        assert "for a replicant only" in attempt(running, pki.client(files), lines, data)


def test_a_certified_peer_that_sends_nonsense(running: Threaded, lines: Lines) -> None:
    context = pki.client(running.issued("odd"))
    cases = [
        (struct.pack("<I", wire.HELLO_BYTES_MAX + 1), "exceeds the limit"),
        (struct.pack("<I", 3) + b"abc", "not a message of this protocol"),
        (wire.encode(wire.Propose([b"x"])), "before Hello"),
        (hello("odd") + struct.pack("<I", Limits().frame_bytes_max + 1), "exceeds the limit"),
        (hello("odd") + struct.pack("<I", 3) + b"abc", "not a message of this protocol"),
    ]
    for data, said in cases:
        assert said in attempt(running, context, lines, data)


def test_a_certified_peer_that_breaks_its_own_encryption(running: Threaded, lines: Lines) -> None:
    context = pki.client(running.issued("odd"), running.ca)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    with connected(running) as stream:
        for _ in range(3):
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                break
            stream.sendall(outgoing.read())
            incoming.write(stream.recv(65_536))
        tls.write(hello("odd"))
        record = bytearray(outgoing.read())
        record[-1] ^= 1
        stream.sendall(record)
        hang_up(stream)
        assert "mac" in lines.one(stream.getsockname())


def test_a_stranger_of_the_cluster_is_welcome(running: Threaded, lines: Lines) -> None:
    """Rule 23: any certified member of the cluster, also one that no configuration names."""
    context = pki.client(running.issued("stranger"), running.ca)
    with connected(running) as plain, context.wrap_socket(plain) as stream:
        stream.sendall(hello("stranger", "raft", "core"))
        answer = first(stream.recv(65_536))
    assert isinstance(answer, wire.Hello)
    assert answer.raft_id.startswith("core1-")


# The dialling side -------------------------------------------------------------------------------


class Owner:
    """A dialler that remembers whom it met."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.met: list[str] = []

    def hello(self, purpose: str, wanted: str = "") -> wire.Hello:
        raft_id, about = f"{self._name}-00", wire.About(formats=[("core", 2)])
        return wire.Hello(
            wire.PROTOCOL_VERSION, purpose, "raftkv", "", raft_id, "replicant", "h:1", about=about
        )

    def judge(self, hello: wire.Hello, proof: Proof) -> None:
        return None

    def refused(self, refusal: wire.Refusal, address: str, proof: Proof) -> None:
        raise AssertionError(refusal)

    def linked(self, name: str) -> bool:
        return False

    def link_up(self, link: Link) -> None:
        self.met.append(link.peer_name)

    def link_down(self, link: Link) -> None:
        """Nothing depends on it."""


async def dial(cluster: LocalCluster, wanted: str, address_of: str) -> list[str]:
    """Dial one node's address and mean another; whom the dialler met."""
    files = certify(cluster.certificates, "raftkv", ["dialler"], [])["dialler"]
    core1 = cluster.configs["core1"]
    cores = {"dialler": core1.cores["core1"]}
    config = msgspec.structs.replace(core1, name="dialler", cores=cores, tls=files)
    runtime, owner = OsRuntime(), Owner("dialler")
    hub = Hub(runtime, owner, Limits().frame_bytes_max, Keeper(config, runtime))
    link = await hub.dial(cluster.configs[address_of].peer_address, "rpc", wanted)
    async with asyncio.timeout(WAIT_S):
        while not owner.met and not link.closed.done():
            await asyncio.sleep(0.005)
    met = list(owner.met)
    hub.close()
    runtime.close()
    return met


def test_the_node_that_was_dialled_is_met(running: Threaded, lines: Lines) -> None:
    assert running.run(dial(running.cluster, "core2", "core2")) == ["core2"]


def test_another_node_at_the_address_is_refused_before_it_can_speak(
    running: Threaded, lines: Lines
) -> None:
    assert running.run(dial(running.cluster, "core2", "core3")) == []
    address = parse_address(running.cluster.configs["core3"].peer_address)
    said = lines.one(address)
    assert "core2" in said
    assert "the certificate there is of 'core3'" in said


def test_a_dialled_port_that_hangs_up_on_tls_is_named(
    running: Threaded, caplog: pytest.LogCaptureFixture
) -> None:
    with plain_port() as (address, said), caplog.at_level(logging.WARNING):
        running.cluster.configs["plain"] = msgspec.structs.replace(
            running.cluster.configs["core1"], peer_address=address
        )
        try:
            assert running.run(dial(running.cluster, "plain", "plain")) == []
        finally:
            del running.cluster.configs["plain"]
        until(lambda: len(messages(caplog, address)) == 1)
        assert "hung up on the TLS handshake" in messages(caplog, address)[0]
        assert said[0].startswith(b"\x16\x03\x01")


def messages(caplog: pytest.LogCaptureFixture, address: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if address in r.getMessage()]


@contextlib.contextmanager
def plain_port() -> Iterator[tuple[str, list[bytes]]]:
    """Something that listens, reads once and hangs up; where, and what it has read."""
    said: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            stream, _ = server.accept()
            with stream:
                said.append(stream.recv(65_536))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", said
        thread.join(WAIT_S)


def test_a_node_without_certificates_names_a_peer_that_speaks_tls(
    running: Threaded, caplog: pytest.LogCaptureFixture
) -> None:
    async def attempt() -> list[str]:
        runtime, owner = OsRuntime(), Owner("plain")
        hub = Hub(runtime, owner, Limits().frame_bytes_max)
        port = await hub.listen("127.0.0.1:0")
        running.cluster.configs["plain"] = msgspec.structs.replace(
            running.cluster.configs["core1"], peer_address=f"127.0.0.1:{port}"
        )
        try:
            return await dial(running.cluster, "plain", "plain")
        finally:
            del running.cluster.configs["plain"]
            hub.close()
            runtime.close()

    with caplog.at_level(logging.WARNING):
        assert running.run(attempt()) == []
    said = [r.getMessage() for r in caplog.records if "speaks TLS" in r.getMessage()]
    assert len(said) == 1
    assert "this node has no certificates" in said[0]


# Rotation ----------------------------------------------------------------------------------------


def test_a_new_certificate_is_used_for_new_connections_only(
    running: Threaded, lines: Lines
) -> None:
    cluster = running.cluster
    node = cluster.running["core1"]
    assert node._part is not None
    before = list(node._peering.hub._links)
    CertificateDirectory(cluster.certificates).renew("core1")
    running.run(node.reload_certificates())
    tls = node.status().tls
    assert tls is not None
    assert served_serial(running) == tls.serial
    running.check()
    assert [link for link in before if not link.up] == []


def served_serial(running: Threaded) -> str:
    context = pki.client(running.issued("looker"), running.ca)
    with connected(running) as plain, context.wrap_socket(plain) as stream:
        certificate = stream.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"]).lower().lstrip("0")


def test_a_broken_new_file_changes_nothing(running: Threaded, lines: Lines) -> None:
    cluster = running.cluster
    node = cluster.running["core1"]
    serial = served_serial(running)
    path = Path(cluster.certificates) / "core1.pem"
    good = path.read_bytes()
    path.write_bytes(b"broken")
    with pytest.raises(CertificateError):
        running.run(node.reload_certificates())
    assert served_serial(running) == serial
    tls = node.status().tls
    assert tls is not None
    assert tls.fault is not None
    path.write_bytes(good)
    running.run(node.reload_certificates())
    tls = node.status().tls
    assert tls is not None
    assert tls.fault is None


def test_calls_between_nodes_use_the_names_of_certificates(running: Threaded, lines: Lines) -> None:
    nodes = running.cluster.running

    async def answer(sender: str, payload: bytes) -> bytes:
        return sender.encode() + b" said " + payload

    nodes["core2"].rpc.register("test.echo", answer)

    async def call(node: str) -> bytes:
        return await nodes["replicant1"].rpc.call(node, "test.echo", b"hi", 5.0)

    assert running.run(call("core2")) == b"replicant1 said hi"
    with pytest.raises(PeerUnreachable):
        running.run(call("nobody"))

"""channel.py: two ends of TLS without a socket between them."""

from __future__ import annotations

import random
import ssl
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.config import TlsFiles
from raftkv.security.channel import Channel, ChannelBroken, Contexts, contexts
from raftkv.security.credentials import identify
from tests.security import pki


def made(files: TlsFiles) -> Contexts:
    return contexts(files.certificate, files.key, Path(files.ca).read_text(encoding="ascii"))


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> tuple[Contexts, Contexts]:
    """The contexts of core1 and core2, of one cluster."""
    folder, signer = tmp_path_factory.mktemp("pki"), pki.authority()
    one = pki.write(folder / "1", pki.node(signer, "core1"), signer)
    two = pki.write(folder / "2", pki.node(signer, "core2"), signer)
    return made(one), made(two)


def pair(server: Contexts, client: Contexts) -> tuple[Channel, Channel]:
    return Channel(server.server, server_side=True), Channel(client.client, server_side=False)


def shake(server: Channel, client: Channel) -> None:
    client.start()
    for _ in range(4):
        assert server.receive(client.take()) == b""
        assert client.receive(server.take()) == b""


def test_both_ends_learn_who_the_other_is(ends: tuple[Contexts, Contexts]) -> None:
    server, client = pair(*ends)
    shake(server, client)
    assert server.established
    assert client.established
    assert identify(server.peer_certificate()).name == "core2"
    assert identify(client.peer_certificate()).name == "core1"


def test_only_tls_13_without_tickets(ends: tuple[Contexts, Contexts]) -> None:
    for context in (ends[0].server, ends[0].client):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.options & ssl.OP_NO_TICKET
    server, client = pair(*ends)
    shake(server, client)
    assert client._tls.version() == "TLSv1.3"
    # Nothing follows the handshake that a later connection could be resumed with.
    assert client._tls.session is None or not client._tls.session.has_ticket


@settings(max_examples=30)
@given(st.lists(st.integers(1, 70_000), max_size=6), st.integers(0, 2**32))
def test_bytes_arrive_whole_however_they_are_cut(sizes: list[int], seed: int) -> None:
    rng = random.Random(seed)
    server, client = pair(*CUT_ENDS)
    shake(server, client)
    sent = b""
    for size in sizes:
        data = rng.randbytes(size)
        client.send(data)
        sent += data
    stream, heard = client.take(), b""
    while stream:
        cut = rng.choice([1, 5, 1000, 16_406, 100_000])
        heard += server.receive(stream[:cut])
        stream = stream[cut:]
    assert heard == sent


@pytest.fixture(scope="module", autouse=True)
def cut_ends(ends: tuple[Contexts, Contexts]) -> None:
    global CUT_ENDS
    CUT_ENDS = ends


CUT_ENDS: tuple[Contexts, Contexts]


def test_many_frames_in_one_turn_fill_records(ends: tuple[Contexts, Contexts]) -> None:
    server, client = pair(*ends)
    shake(server, client)
    data = bytes(10 * 16_384)
    client.send(data)
    cipher = client.take()
    # 22 bytes of TLS per full record: 5 of header, 1 of type, 16 of authentication.
    assert len(cipher) == len(data) + 10 * 22
    assert server.receive(cipher) == data


def test_a_goodbye_is_noticed(ends: tuple[Contexts, Contexts]) -> None:
    server, client = pair(*ends)
    shake(server, client)
    client.send(b"last words")
    client.shut()
    assert server.receive(client.take()) == b"last words"
    assert server.finished
    server.shut()


def test_a_flipped_bit_breaks_the_channel(ends: tuple[Contexts, Contexts]) -> None:
    server, client = pair(*ends)
    shake(server, client)
    client.send(b"x" * 100)
    cipher = bytearray(client.take())
    cipher[50] ^= 1
    with pytest.raises(ChannelBroken, match="mac"):
        server.receive(bytes(cipher))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak TLS"),
        (b"\x00\x00\x10\x00" + bytes(60), "does not speak TLS"),
        (b"\x16\x03\x01\x00\x05hello", "TLS fails"),
    ],
)
def test_what_is_no_tls_is_called_so(
    ends: tuple[Contexts, Contexts], data: bytes, said: str
) -> None:
    server, _ = pair(*ends)
    with pytest.raises(ChannelBroken, match=said):
        server.receive(data)


def refusal(server: Channel, client: Channel) -> tuple[str, str]:
    """The words of both ends when the server refuses the client."""
    client.start()
    server.receive(client.take())
    client.receive(server.take())
    with pytest.raises(ChannelBroken) as at_server:
        server.receive(client.take())
    with pytest.raises(ChannelBroken) as at_client:
        client.receive(server.take())
    return str(at_server.value), str(at_client.value)


def test_each_end_says_why_a_certificate_is_refused(
    ends: tuple[Contexts, Contexts], tmp_path: Path
) -> None:
    trusted = ends[0].client
    stranger = pki.authority()
    files = pki.write(tmp_path, pki.node(stranger, "core2"), stranger)
    context = pki.client(files)
    here, there = refusal(
        Channel(ends[0].server, server_side=True), Channel(context, server_side=False)
    )
    assert "certificate is refused" in here
    assert "does not trust the authority" in there
    here, there = refusal(
        Channel(ends[0].server, server_side=True), Channel(pki.client(None), server_side=False)
    )
    assert here == "it has sent no certificate"
    assert "asks for a certificate" in there
    assert trusted.verify_mode is ssl.CERT_REQUIRED

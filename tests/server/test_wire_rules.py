"""What a door does with odd bytes: no unbounded memory, no answer to the wrong request, no request
made of another one's body."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from raftkv.config import HttpLimits
from raftkv.server.admission import Admission
from raftkv.server.bounded import PIECE_BYTES, BoundedHttp
from raftkv.server.streams import SEND_TIMEOUT_S
from tests.server.conftest import Served, b64
from tests.server.test_door import connection_of
from tests.server.wire import Wire, post

PUT = b'{"key":"aw==","value":"dg=="}'
GET = b'{"key":"aw=="}'
UPGRADE = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQ")
CHUNKED = b"POST /v3/kv/range HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\n\r\n"


def sent_until_closed(wire: Wire, piece: bytes) -> bool:
    """Whether the door closes before it has taken twice the largest head and what sockets hold."""
    try:
        for _ in range(40 * 1024 * 1024 // len(piece)):
            wire.send(piece)
    except OSError:
        return True
    return False


def until(server: Served, holds: Callable[[], bool]) -> None:
    async def wait() -> None:
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.001)

    server.run(wait())


def refused_heads(server: Served) -> int:
    return server.door._state.refused["head_bytes_max"]


@pytest.mark.parametrize("piece", [b"x-padding: %b\r\n" % (b"y" * 8_000), b"y" * 8_000])
def test_endless_trailers_close_the_connection(served: Served, piece: bytes) -> None:
    before = refused_heads(served)
    with Wire(served.door.port) as wire:
        wire.send(CHUNKED + b"e\r\n" + GET + b"\r\n0\r\nx-last: ")
        assert sent_until_closed(wire, piece)
    assert refused_heads(served) == before + 1


def test_an_endless_extension_of_a_chunk_closes_the_connection(served: Served) -> None:
    with Wire(served.door.port) as wire:
        wire.send(CHUNKED + b"e;")
        assert sent_until_closed(wire, b"y" * 8_000)


def test_a_body_in_many_small_chunks_is_taken(served: Served) -> None:
    """Only what is no body is counted."""
    blanks = 2 * HttpLimits().head_bytes_max // 6
    with Wire(served.door.port) as wire:
        wire.send(CHUNKED + b"1\r\n \r\n" * blanks + b"e\r\n" + GET + b"\r\n0\r\n\r\n")
        assert wire.response()[0] == 200


def test_trailers_are_not_taken_for_headers(served: Served) -> None:
    put = CHUNKED.replace(b"range", b"put")
    with Wire(served.door.port) as wire:
        wire.send(put + b"1d\r\n" + PUT + b"\r\n0\r\nraftkv-session: 1-2\r\n\r\n")
        assert wire.response()[0] == 200  # this door has no sessions: as a header it is refused


def test_garbage_behind_a_request_is_not_its_answer(served: Served) -> None:
    """The put is carried out, so it must not be told that it was no valid request."""
    with Wire(served.door.port) as wire:
        wire.send(post("/v3/kv/put", PUT, "x-unknown: head") + b"GARBAGE\x01\r\n\r\n")
        try:
            status = wire.response()[0]
        except ConnectionError:
            status = None
    assert status in (None, 200)


@pytest.mark.parametrize("behind", [b"GARBAGE\x01\r\n\r\n", b"GET / HTTP/1.1\r\nx: "])
def test_what_stands_behind_a_stream_is_no_part_of_it(served: Served, behind: bytes) -> None:
    with Wire(served.door.port) as wire:
        wire.open_stream("/v3/watch", {"create_request": {"key": b64(b"k")}})
        wire.end_body()
        assert wire.head()[0] == 200
        wire.result()
        # In one piece with the end of the body garbage ends the connection at once.
        until(served, lambda: all(each._at_rest for each in served.door._state.connections))
        wire.send(behind)
        served.post("/v3/kv/put", {"key": b64(b"k"), "value": ""})
        assert "events" in wire.result()
        assert sent_until_closed(wire, b"y" * 8_000)
        assert wire.closed()


def test_an_offer_to_upgrade_is_passed_over(served: Served) -> None:
    """Java's HttpClient makes it with each request to an http endpoint."""
    for _ in range(2):
        with Wire(served.door.port) as wire:
            wire.send(post("/v3/kv/put", PUT, *UPGRADE))
            assert wire.response()[0] == 200
            wire.send(post("/v3/kv/range", GET))
            assert b'"value":"dg=="' in wire.response()[2]


OFFER = b"GET /version HTTP/1.1\r\nhost: [::1]\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
PLAIN = b"GET /version HTTP/1.1\r\nhost: [::1]\r\n\r\n"


def put_of(key: bytes) -> bytes:
    return post("/v3/kv/put", b'{"key":"%b","value":"dg=="}' % b64(key).encode())


def has(served: Served, key: bytes) -> bool:
    return "kvs" in served.post("/v3/kv/range", {"key": b64(key)})[1]


@pytest.mark.parametrize("before", [b"", PLAIN, PLAIN + OFFER, OFFER + OFFER])
def test_what_stands_behind_an_offer_to_upgrade_is_answered(served: Served, before: bytes) -> None:
    """The parser stops at an offer; the rest of the read is neither lost nor another's answer."""
    key = b"behind-%d" % len(before)
    with Wire(served.door.port) as wire:
        wire.send(before + OFFER + put_of(key) + PLAIN)
        for _ in range(before.count(b"GET") + 1):
            assert b"etcdserver" in wire.response()[2]
        status, _, body = wire.response()
        assert (status, b"revision" in body) == (200, True)
        assert b"etcdserver" in wire.response()[2]
    assert has(served, key)


def test_an_offer_in_two_reads_keeps_what_follows(served: Served) -> None:
    for cut in range(1, len(OFFER), 7):
        key = b"split-%d" % cut
        with Wire(served.door.port) as wire:
            wire.send(OFFER[:cut])
            connection_of(served, lambda found: not found._at_rest or found._head_bytes > 0)
            wire.send(OFFER[cut:] + put_of(key))
            assert b"etcdserver" in wire.response()[2]
            assert wire.response()[0] == 200
        assert has(served, key), cut


def test_a_body_cut_in_two_behind_an_offer_is_no_request(served: Served) -> None:
    hidden = put_of(b"smuggled")
    whole = post("/v3/kv/put", b"   " + hidden)
    with Wire(served.door.port) as wire:
        wire.send(PLAIN + OFFER + whole[: -len(hidden)])
        assert wire.response()[0] == wire.response()[0] == 200
        wire.send(hidden)
        assert wire.response()[0] == 400  # as JSON it means nothing
    assert not has(served, b"smuggled")


def test_blanks_between_requests_are_no_part_of_a_head(served: Served) -> None:
    """Old clients send them behind a body. On the short way nothing counted them out again."""
    with Wire(served.door.port) as wire:
        for _ in range(3):
            wire.send(put_of(b"blank"))
            assert wire.response()[0] == 200
        for number in range(20):
            wire.send(b"\r\n" * 8)
            connection_of(served, lambda found: found._head_bytes == 16)
            wire.send(put_of(b"blank"))
            assert wire.response()[0] == 200, number
            connection_of(served, lambda found: found._head_bytes == 0)


def test_the_body_of_an_offer_to_upgrade_is_no_request(served: Served) -> None:
    """The parser takes no body there: a proxy and the door would disagree about what it is."""
    hidden = post("/v3/kv/put", PUT)
    head = post("/v3/kv/range", hidden, *UPGRADE)[: -len(hidden)]
    with Wire(served.door.port) as wire:
        wire.send(head[:40])
        connection_of(served, lambda found: not found._at_rest)
        wire.send(head[40:])
        assert wire.response()[0] == 400
        assert wire.closed()
    assert served.post("/v3/kv/range", {"key": b64(b"k")})[1].get("kvs") is None


def test_a_client_that_takes_no_answer_is_cut_off(served: Served) -> None:
    for number in range(16):
        served.put(b"large%d" % number, b"x" * 700_000)
    every = b'{"key":"AA==","range_end":"AA=="}'
    with Wire(served.door.port) as wire:
        wire.shut_reading()
        wire.send(post("/v3/kv/range", every))
        connection = connection_of(served, _has_unread)
        before = served.door._state.refused["send_timeout_s"]

        async def look(after_s: float) -> bool:
            connection.check(asyncio.get_running_loop().time() + after_s)
            return connection.transport.is_closing()

        assert not served.run(look(0))
        assert not served.run(look(SEND_TIMEOUT_S / 2))
        # At some look the sockets of both sides are full.
        assert any(served.run(look(2 * number * SEND_TIMEOUT_S)) for number in range(1, 100))
        assert served.door._state.refused["send_timeout_s"] == before + 1


def _has_unread(connection: BoundedHttp) -> bool:
    return connection.transport.get_write_buffer_size() > 0


def test_a_peer_that_is_gone_without_a_word_is_found_out(served: Served) -> None:
    """A watch that has nothing to say sends nothing; the kernel asks in its place."""
    with Wire(served.door.port):
        connection = connection_of(served, lambda found: True)
        mine = connection.transport.get_extra_info("socket")
        assert mine.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


# A client that closes its half --------------------------------------------------------------------


@pytest.mark.parametrize(
    "requests",
    [
        [post("/v3/kv/range", b'{"key":"YQ=="}')],
        [b"GET /version HTTP/1.1\r\nhost: [::1]\r\n\r\n"],
        [post("/v3/kv/put", b'{"key":"YQ==","value":"Yg=="}')] * 5,
        [b"GET /version HTTP/1.1\r\nhost: [::1]\r\n\r\n"] * 50,
    ],
    ids=["range", "page", "puts", "many"],
)
def test_a_half_closed_client_gets_its_answers(served: Served, requests: list[bytes]) -> None:
    for _ in range(2):  # the second time by a head that is known
        with Wire(served.door.port) as wire:
            wire.send(b"".join(requests))
            wire.shut_writing()
            assert [wire.response()[0] for _ in requests] == [200] * len(requests)
            assert wire.closed()


def test_half_a_request_ends_with_its_connection(served: Served) -> None:
    with Wire(served.door.port) as wire:
        wire.send(post("/v3/kv/range", b'{"key":"YQ=="}')[:-3])
        wire.shut_writing()
        assert wire.closed()


def test_a_stream_ends_with_its_clients_half(served: Served) -> None:
    with Wire(served.door.port) as wire:
        wire.open_stream("/v3/watch", {"create_request": {"key": "YQ=="}})
        wire.head()
        wire.line()
        wire.shut_writing()
        assert wire.closed()


class Flushing:
    """A TLS transport behind its client's last word: it closes once it has sent what it holds."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.mark.parametrize("extra", ["accept: */*", "accept-charset: x"], ids=["short", "long"])
def test_nothing_is_written_to_a_tls_client_that_has_ended(
    served: Served, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transport closes behind what was written before, and warns of each piece after it."""
    gate = asyncio.Event()
    request = post("/v3/kv/range", b'{"key":"YQ=="}', extra)

    async def wait() -> None:
        gate.clear()

    async def barrier(consistency: str = "linearizable", *, timeout_s: float | None = None) -> None:
        await gate.wait()

    async def end(connection: BoundedHttp) -> int:
        flushing: Any = Flushing(connection.transport)
        connection.transport = flushing
        if connection.cycle is not None:
            connection.cycle.transport = flushing
        connection._tls = True
        assert not connection.eof_received()
        gate.set()
        while served.app.requests or connection._hot:
            await asyncio.sleep(0)
        flushing.abort()
        return flushing.written

    async def put() -> None:
        await served.node.kv.put(b"a", b"v" * (8 * PIECE_BYTES))
        gate.set()

    served.run(put())
    monkeypatch.setattr(served.node.host, "barrier", barrier)
    with Wire(served.door.port) as wire:
        wire.send(request)  # the next time its head is known
        assert wire.response()[0] == 200
        served.run(wait())
        wire.send(request)
        connection = connection_of(served, lambda found: served.app.requests == 1)
        assert connection._hot == (extra == "accept: */*")
        # The short way writes the head before it looks.
        assert served.run(end(connection)) < 200
    until(served, lambda: not served.app.outgoing.bytes)


# Paths --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v3/kv/%72ange", 501),
        ("POST", "/v3/%6bv/range", 501),
        ("POST", "/%76%33/kv/range", 404),
        ("POST", "/v3%2fkv/range", 501),
        ("POST", "//v3/kv/range", 404),
        ("POST", "/./v3/kv/range", 404),
        ("POST", "/v1/../v3/kv/range", 404),
        ("GET", "/%6detrics", 404),
        ("GET", "/v1/%73tatus", 404),
        ("GET", "/healt%68", 404),
        ("POST", "/v3/%77atch", 501),
        ("POST", "/v3/kv/range", 200),
        ("POST", "/v3beta/kv/range", 200),
    ],
)
def test_a_path_is_served_only_as_it_is_written(
    served: Served, method: str, path: str, status: int
) -> None:
    assert served.ask(method, path, b'{"key":"YQ=="}')[0] == status


# Host and Expect ----------------------------------------------------------------------------------


def head_of(*lines: str, version: str = "1.1") -> bytes:
    return "".join(f"{line}\r\n" for line in (f"GET /version HTTP/{version}", *lines, "")).encode()


@pytest.mark.parametrize("whitelist", [(), ("*",)])
@pytest.mark.parametrize(
    ("lines", "version", "status"),
    [
        ((), "1.1", 400),
        (("host: a", "host: a"), "1.1", 400),
        (("host: [::1]", "host: [::1]"), "1.0", 400),
        ((), "1.0", 200),
        (("host: [::1]",), "1.1", 200),
    ],
)
def test_a_request_has_one_host(
    whitelist: tuple[str, ...], lines: tuple[str, ...], version: str, status: int
) -> None:
    server = Served(admission=Admission(host_whitelist=whitelist))
    server.start()
    try:
        with Wire(server.door.port) as wire:
            wire.send(head_of(*lines, version=version))
            assert wire.response()[0] == status
        # It is no matter of a setting.
        assert server.app.admission.refused == {"host_whitelist": 0, "cors": 0}
    finally:
        server.stop()


def test_an_expectation_that_is_not_known_fails(served: Served) -> None:
    body = b'{"key":"YQ=="}'
    with Wire(served.door.port) as wire:
        wire.send(post("/v3/kv/range", body, "expect: 100-Continue")[: -len(body)])
        assert wire.head()[0] == 100
        wire.send(body)
        assert wire.response()[0] == 200
        wire.send(post("/v3/kv/range", body, "expect: 200-ok"))
        status, headers, _ = wire.response()
        assert (status, headers["connection"]) == (417, "close")

"""Requests that are sent before the ones before them were answered."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from raftkv.server.bounded import BODY_PIECE_BYTES, HELD_BYTES_MAX, BoundedHttp
from tests.server.conftest import Served
from tests.server.test_tls import until

GET = b"GET /version HTTP/1.1\r\nhost: [::1]\r\n\r\n"
WATCH = b'{"create_request":{"key":"YQ=="}}'


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    server.start()
    yield server
    server.stop()


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def put(number: int) -> bytes:
    return post("/v3/kv/put", b'{"key":"YQ==","value":"%08d"}' % number)


def connected(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.door.port), 10)


def read(client: socket.socket, wanted: bytes, count: int = 1) -> bytes:
    found = b""
    while found.count(wanted) < count:
        more = client.recv(65536)
        assert more, found[-500:]
        found += more
    return found


def sent_until_closed(client: socket.socket) -> bool:
    """Whether the door closes before it has taken what is held and what sockets hold."""
    try:
        for _ in range(1000):
            client.sendall(GET * 1000)
    except OSError:
        return True
    return False


class Longest:
    """The longest queue of requests, and the most that was held, in any connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue = self.held = 0
        complete = BoundedHttp.on_headers_complete
        received = BoundedHttp.data_received

        def on_headers_complete(http: BoundedHttp) -> None:
            complete(http)
            self.queue = max(self.queue, len(http.pipeline))

        def data_received(http: BoundedHttp, data: bytes) -> None:
            received(http, data)
            self.held = max(self.held, len(http._held))

        monkeypatch.setattr(BoundedHttp, "on_headers_complete", on_headers_complete)
        monkeypatch.setattr(BoundedHttp, "data_received", data_received)


@pytest.mark.parametrize("request_", [GET, put(1)])
def test_a_long_pipeline_is_answered_whole_and_never_queued(
    served: Served, monkeypatch: pytest.MonkeyPatch, request_: bytes
) -> None:
    longest = Longest(monkeypatch)
    count = 4 * HELD_BYTES_MAX // len(request_)
    with connected(served) as client:
        sender = threading.Thread(target=client.sendall, args=(request_ * count,))
        sender.start()
        read(client, b"HTTP/1.1 200", count)
        sender.join()
    assert longest.queue <= BODY_PIECE_BYTES // len(request_) + 2
    # One read of the event loop comes on top of what is held.
    assert longest.held <= HELD_BYTES_MAX + 256 * 1024


def test_answers_come_in_the_order_of_their_requests(served: Served) -> None:
    """Large and small, of the short way and of the other, in pieces of any size."""
    requests = []
    for number in range(300):
        requests += [put(number), post("/v3/kv/range", b'{"key":"YQ=="}')]
        if number % 7 == 0:
            requests.append(post("/v3/kv/put", b'{"key":"Yg==","value":"%b"}' % (b"AAAA" * 40_000)))
        if number % 5 == 0:
            requests.append(GET)
    data = b"".join(requests)
    with connected(served) as client:
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        answers = read(client, b"HTTP/1.1 ", len(requests))
        while answers.count(b'"value":"00000299"') < 1:
            answers += client.recv(65536)
        sender.join()
    found = [int(part[:8]) for part in answers.split(b'"value":"')[1:]]
    assert found == list(range(300))


def test_a_stream_with_a_request_behind_it_ends_with_its_client(served: Served) -> None:
    for behind in (GET, GET * 5, post("/v3/kv/put", b"{}")):
        client = connected(served)
        client.sendall(post("/v3/watch", WATCH))
        read(client, b'"created":true')
        client.sendall(behind)
        assert served.app.streams == 1
        # A reset, as of a client that was killed.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        until(served, lambda now: now["streams"] == 0 and now["connections"] == 0)


def test_a_request_in_one_piece_with_a_stream_waits_for_its_end(served: Served) -> None:
    with connected(served) as client:
        client.sendall(post("/v3/watch", WATCH) + GET + post("/v3/watch", WATCH))
        read(client, b'"created":true')
        served.post("/v3/kv/put", {"key": "YQ==", "value": "YQ=="})
        found = read(client, b'"events":')
        assert b"etcdserver" not in found
        assert served.app.streams == 1
    until(served, lambda now: now["streams"] == 0 and now["connections"] == 0)
    # One that ends is followed by what was sent behind it.
    with connected(served) as client:
        keep_alive = post("/v3/lease/keepalive", b'{"ID":"7"}')
        client.sendall(keep_alive + GET + keep_alive + GET)
        found = read(client, b"etcdserver", 2)
        assert found.count(b'"result"') == 2


def test_a_request_that_waits_is_not_taken_for_a_slow_one(served: Served) -> None:
    """Its head came in one piece with the body of the one before, and its own body is held."""
    head, _, body = put(1).partition(b"\r\n\r\n")

    async def check_later(connection: BoundedHttp) -> bool:
        timeout_s = connection._state.limits.request_timeout_s
        connection.check(asyncio.get_running_loop().time() + timeout_s + 1)
        return connection.transport.is_closing()

    with connected(served) as client:
        client.sendall(post("/v3/watch", WATCH) + head + b"\r\n\r\n")
        read(client, b'"created":true')
        client.sendall(body)
        (connection,) = served.door._state.connections
        assert connection.pipeline
        assert not served.run(check_later(connection))


def test_who_sends_much_behind_a_stream_is_cut(served: Served) -> None:
    with connected(served) as client:
        client.sendall(post("/v3/watch", WATCH))
        read(client, b'"created":true')
        assert sent_until_closed(client)
        assert served.door._state.refused["held_bytes_max"] == 1
        until(served, lambda now: now["streams"] == 0 and now["connections"] == 0)

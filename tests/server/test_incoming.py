"""How much of requests is held: over all connections, from the first byte until the answer."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from raftkv.config import HttpLimits
from raftkv.errors import Overloaded
from raftkv.kv.work_budget import WORK_MAX, WorkBudget
from raftkv.plugin import Request, Response, Route
from raftkv.server import app as app_module
from raftkv.server.answers import Busy
from raftkv.server.bounded import BROUGHT_S, BoundedHttp
from raftkv.server.incoming import SMALL_BYTES, Incoming
from tests.server.conftest import Served
from tests.server.wire import Wire, post

LIMIT = 1024 * 1024
LARGE = 600 * 1024
PUT = b'{"key":"YQ==","value":"Yg=="}'


async def echo(request: Request) -> Response:
    return Response(request.body)


TOY = (Route("POST", "echo", echo, "Give back the body."),)


@pytest.fixture
def server() -> Iterator[Served]:
    limits = HttpLimits(request_bytes_max=LIMIT, requests_max=3)
    served = Served(limits=limits, routes={"toy": TOY})
    served.start()
    yield served
    served.stop()


def until(server: Served, holds: Callable[[], bool]) -> None:
    async def wait() -> None:
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.001)

    server.run(wait())


def unfinished(server: Served, path: str = "/v3/kv/put", sent: int = LARGE) -> Wire:
    """A connection with a body of which a byte is still to come."""
    wire = Wire(server.door.port)
    head = f"POST {path} HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {sent + 1}\r\n\r\n"
    wire.send(head.encode() + b'{"key":"' + b"A" * (sent - 8))
    return wire


def test_unfinished_bodies_are_bounded_over_all_connections(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "DISCARD_TIMEOUT_S", 0.01)
    incoming = server.app.incoming
    with unfinished(server):
        until(server, lambda: incoming.bytes == LARGE)
        with unfinished(server) as second:
            status, headers, body = second.response()
            assert (status, headers["connection"]) == (429, "close")
            assert "http.request_bytes_max" in json.loads(body)["detail"]
            assert second.closed()
        # What is small is taken all the same.
        assert server.ask("POST", "/v3/kv/put", PUT)[0] == 200
    until(server, lambda: incoming.bytes == 0 and server.app.requests == 0)


def test_who_sends_too_slowly_is_cut_while_others_are_refused(server: Served) -> None:
    incoming = server.app.incoming
    looked_s = 0.0

    def check() -> None:
        async def look() -> None:
            nonlocal looked_s
            looked_s += BROUGHT_S
            now = asyncio.get_running_loop().time() + looked_s
            for connection in list(server.door._state.connections):
                connection.check(now)

        server.run(look())

    with unfinished(server) as slow:
        until(server, lambda: incoming.bytes == LARGE)
        check()
        check()
        assert incoming.bytes == LARGE, "no other request was refused"
        with pytest.raises(Busy):
            incoming.receive(LARGE)
        check()
        assert slow.closed()
    until(server, lambda: incoming.bytes == 0 and server.app.requests == 0)
    refused = {each.labels["limit"]: each.value for each in server.door.metrics() if each.labels}
    assert refused["request_bytes_max"] == 2


@pytest.mark.parametrize("path", ["/v3/kv/put", "/v1/toy/echo"])
def test_a_request_counts_from_its_head_on(server: Served, path: str) -> None:
    first, second, third = (unfinished(server, path, sent=8) for _ in range(3))
    with first, second, third:
        until(server, lambda: server.app.requests == 3)
        status, headers, _ = server.ask("POST", "/v3/lease/grant", b'{"TTL":5}')
        assert (status, headers.get("connection")) == (429, None)
    until(server, lambda: server.app.requests == 0)


def test_what_is_refused_before_its_body_has_come_is_closed_behind(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "DISCARD_TIMEOUT_S", 0.01)
    server.run(as_if(server, 3))
    with unfinished(server, sent=8) as wire:
        status, headers, _ = wire.response()
        assert (status, headers["retry-after"], headers["connection"]) == (429, "1", "close")
        assert wire.closed()


async def as_if(server: Served, requests: int) -> None:
    server.app.requests = requests


def test_requests_of_a_stream_wait_within_a_bound(server: Served) -> None:
    """A watch whose client reads nothing takes requests until about a megabyte is held."""
    incoming = server.app.incoming
    bodies = b"".join(
        json.dumps({"create_request": {"key": "A" * 160_000, "watch_id": str(n)}}).encode()
        for n in range(1, 60)
    )
    with Wire(server.door.port) as wire:
        wire.shut_reading()
        wire.open_stream("/v3/watch")
        wire.say(bodies)
        most = 0

        def settled() -> bool:
            nonlocal most
            most = max(most, incoming.bytes)
            return most > SMALL_BYTES

        until(server, settled)
        assert most < 1_100_000
    until(server, lambda: incoming.bytes == 0)


def test_what_waits_behind_a_request_counts(server: Served) -> None:
    """Pipelined requests are held as bytes until the one before them is answered."""
    gate = asyncio.Event()

    async def barrier(consistency: str = "linearizable", *, timeout_s: float | None = None) -> None:
        await gate.wait()

    server.node.host.barrier = barrier  # type: ignore[method-assign, assignment]
    one = post("/v3/kv/range", b'{"key":"YQ=="}')
    with Wire(server.door.port) as wire:
        wire.send(one * 600)
        until(server, lambda: server.app.incoming.bytes > 500 * len(one))
        server.run(open_gate(gate))
        assert [wire.response()[0] for _ in range(600)] == [200] * 600
    until(server, lambda: server.app.incoming.bytes == 0)


@pytest.mark.parametrize("extra", [b"", b"accept-charset: x\r\n"], ids=["short way", "long way"])
def test_a_request_that_waits_is_held_once(extra: bytes) -> None:
    """Not as the body and as what was decoded of it."""
    server = Served()
    server.start()
    gate = asyncio.Event()

    async def propose(*_: object, **__: object) -> None:
        await gate.wait()
        raise Overloaded("enough")

    size = 200_000
    request = post("/v3/kv/put", b'{"key":"YQ==","value":"%b"}' % (b"A" * size)).replace(
        b"\r\n\r\n", b"\r\n" + extra + b"\r\n", 1
    )
    server.node.host.propose = propose  # type: ignore[method-assign, assignment]
    try:
        with Wire(server.door.port) as wire:
            server.run(open_gate(gate))
            wire.send(request)
            assert wire.response()[0] == 429
            gate.clear()
            tracemalloc.start()
            wire.send(request)
            until(server, lambda: server.app.incoming.bytes > size and server.app.requests == 1)
            server.run(some_turns())
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < server.app.incoming.bytes + 50_000
            server.run(open_gate(gate))
            assert wire.response()[0] == 429
    finally:
        tracemalloc.stop()
        server.stop()


class Blocked(WorkBudget):
    """No turn has room until the gate is open."""

    def __init__(self, gate: asyncio.Event) -> None:
        super().__init__()
        self._gate = gate

    async def room(self, units: int = WORK_MAX) -> None:
        await self._gate.wait()


def the_connection(server: Served) -> BoundedHttp:
    (found,) = server.door._state.connections
    return found


def test_what_of_a_body_waits_for_its_turn_counts(server: Served) -> None:
    """It lies in the connection, unread, until the loop has room for more large bodies."""
    gate = asyncio.Event()
    server.app.budget = Blocked(gate)
    with unfinished(server):
        until(server, lambda: server.app.requests == 1)
        connection = the_connection(server)
        until(server, lambda: bool(connection.cycle and len(connection.cycle.body) > SMALL_BYTES))
        brought = connection._brought_bytes
        assert brought > 2 * SMALL_BYTES
        assert server.app.incoming.bytes == brought
        server.run(open_gate(gate))
    until(server, lambda: server.app.incoming.bytes == 0)


def test_a_body_that_nobody_asked_for_is_not_kept(server: Served) -> None:
    """The answer to a path that does not exist is given without reading the body."""
    with Wire(server.door.port) as wire:
        wire.send(post("/v1/nothing", b"x" * 50_000))
        assert wire.response()[0] == 404
        cycle = the_connection(server).cycle
        assert cycle is not None
        until(server, lambda: not cycle.body and server.app.incoming.bytes == 0)


def test_a_stream_that_is_idle_holds_no_request(server: Served) -> None:
    with Wire(server.door.port) as wire:
        wire.open_stream("/v3/watch", {"create_request": {"key": "A" * 160_000}})
        assert wire.head()[0] == 200
        assert wire.result()["created"]
        until(server, lambda: server.app.incoming.bytes == 0)


def test_what_idle_streams_hold_is_what_counts(server: Served) -> None:
    """Neither the last request nor the last line of a stream is kept beside what counts."""
    count, key, value = 8, 160_000, 300_000
    wires = []

    def held() -> int:
        server.run(some_turns())
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    with Wire(server.door.port) as wire:  # what is made once
        wire.open_stream("/v3/watch", {"create_request": {"key": "YQ=="}})
        wire.head(), wire.result()
    until(server, lambda: not server.app.streams)
    tracemalloc.start()
    try:
        before = held()
        for number in range(count):
            wire = Wire(server.door.port)
            wires.append(wire)
            wire.open_stream("/v3/watch", {"create_request": {"key": f"{number:04}" + "A" * key}})
            assert (wire.head()[0], wire.result()["created"]) == (200, True)
            wire.say({"create_request": {"key": "YQ=="}})
            assert wire.result()["created"]
        server.run(put(server, b"a", b"v" * value))
        for wire in wires:
            assert wire.result()["events"]
        counted = server.app.watch_bytes.bytes + server.app.outgoing.bytes
        counted += server.app.incoming.bytes
        # A connection and a stream have some ten kilobytes beside it.
        assert held() - before < counted + 2 * value + count * 50_000
        assert counted < count * (key + 10_000)
    finally:
        tracemalloc.stop()
        for wire in wires:
            wire.close()
    until(server, lambda: server.app.watch_bytes.bytes == 0)


async def put(server: Served, key: bytes, value: bytes) -> None:
    await server.node.kv.put(key, value)


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def open_gate(gate: asyncio.Event) -> None:
    gate.set()


def test_one_large_request_alone_always_fits() -> None:
    incoming = Incoming(100)
    incoming.receive(SMALL_BYTES)
    incoming.receive(10 * SMALL_BYTES, held=SMALL_BYTES)
    incoming.receive(SMALL_BYTES)
    with pytest.raises(Busy):
        incoming.receive(1, held=SMALL_BYTES)
    incoming.moved(-12 * SMALL_BYTES)
    assert (incoming.bytes, incoming.refused) == (0, 1)


def test_a_short_request_gives_back_what_it_held(server: Served) -> None:
    with Wire(server.door.port) as wire:
        for _ in range(5):
            wire.send(post("/v3/kv/put", PUT))
            assert wire.response()[0] == 200
    assert server.door._state.hot_total >= 3
    until(server, lambda: server.app.incoming.bytes == 0)


def test_large_bodies_are_received_piece_by_piece() -> None:
    """Of one that is large no more is taken in a turn of the loop than the turn has room for."""
    server = Served(limits=HttpLimits(requests_max=20))
    server.start()
    budget = server.app.budget
    pieces: list[int] = []
    room = budget.room

    async def noted(units: int = WORK_MAX) -> None:
        await room(units)
        pieces.append(budget._left)

    budget.room = noted  # type: ignore[method-assign]
    try:
        value = "A" * (2 * 1024 * 1024)
        status, _, _ = server.ask(
            "POST", "/v3/kv/put", b'{"key":"YQ==","value":"%b"}' % value.encode()
        )
        assert status in (200, 400), "a value may be too large for the keyspace"
        # Behind the first 64 KiB each piece was asked for, the reading of the body, too.
        assert len(pieces) >= 8
        assert min(pieces) > 0
    finally:
        server.stop()

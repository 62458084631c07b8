"""`client.stream`: lines of a plugin's route, refusals, both kinds of ends, a door that stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import raftkv
from raftkv import Client
from raftkv.errors import NotApplied, PeerUnreachable, Timeout
from raftkv.plugin import Request, Response, Route
from raftkv.server import App, Door
from raftkv.testing.local_cluster import LocalCluster, free_ports
from tests.client.fake_door import (
    HANG_UP,
    SILENCE,
    FakeDoor,
    Lines,
    Say,
    error,
    in_loop,
    out_of_time,
    until,
)
from tests.clocks import LONG_S


@in_loop
async def test_lines_come_one_by_one_and_the_node_ends_them() -> None:
    lines = Lines({"a": 1}, b'{"b"', b":2}\n\n", {"c": 3})
    async with FakeDoor(lambda asked: lines) as door, Client(door.url) as client:
        async with await client.stream("POST", "/v1/toy/s?x=1", {"from": 2}) as stream:
            assert stream.answer is None
            assert stream.endpoint == door.url
            assert [await anext(stream) for _ in range(3)] == [b'{"a": 1}', b'{"b":2}', b'{"c": 3}']
            lines.end()
            assert [line async for line in stream] == []
        asked = door.asked[0]
        assert (asked.method, asked.path, asked.body) == ("POST", "/v1/toy/s?x=1", {"from": 2})


@in_loop
async def test_a_cancelled_wait_loses_no_line() -> None:
    lines = Lines()
    async with FakeDoor(lambda asked: lines) as door, Client(door.url) as client:
        async with await client.stream("GET", "/v1/toy/s") as stream:
            for number in range(3):
                waiting = asyncio.ensure_future(anext(stream))
                for _ in range(number):
                    await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                lines.add({"n": number})
                assert await anext(stream) == b'{"n": %d}' % number
            assert door.asked[0].method == "GET"


@in_loop
async def test_a_refusal_is_the_streams_answer() -> None:
    said: list[Any] = [error("toy_no", 409, why="so"), error("toy_busy", 429), Say({"x": 1}, 404)]
    async with FakeDoor(lambda asked: said.pop(0)) as door, Client(door.url) as client:
        for status in (409, 429, 404):
            stream = await client.stream("POST", "/v1/toy/s", {})
            assert stream.answer is not None
            assert stream.answer.status == status
            assert [line async for line in stream] == []
            stream.close()


@in_loop
async def test_a_broken_stream_is_not_an_ended_one() -> None:
    lines = Lines({"a": 1})
    async with FakeDoor(lambda asked: lines) as door, Client(door.url) as client:
        stream = await client.stream("POST", "/v1/toy/s", {})
        assert await anext(stream) == b'{"a": 1}'
        for task in list(door._tasks):
            task.cancel()
        with pytest.raises(PeerUnreachable, match="the stream broke"):
            await anext(stream)
    async with FakeDoor(lambda asked: Lines(b"x" * 5_000)) as door:
        async with Client(door.url, answer_bytes_max=1_000) as client:
            stream = await client.stream("POST", "/v1/toy/s", {})
            with pytest.raises(PeerUnreachable, match="exceeds 1000 bytes"):
                await anext(stream)


@in_loop
async def test_closing_ends_whoever_waits() -> None:
    async with FakeDoor(lambda asked: Lines()) as door, Client(door.url) as client:
        stream = await client.stream("POST", "/v1/toy/s", {})
        waiting = asyncio.ensure_future(anext(stream, None))
        await until(lambda: door.asked)
        stream.close()
        stream.close()
        assert await waiting is None
        # As does the client's end.
        other = await client.stream("POST", "/v1/toy/s", {})
        waiting = asyncio.ensure_future(anext(other, None))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(PeerUnreachable):
            await waiting


@pytest.mark.parametrize("broken", [HANG_UP, SILENCE, error("timeout", 504)])
@in_loop
async def test_the_next_endpoint_is_asked_only_if_that_is_safe(broken: Any) -> None:
    async with (
        FakeDoor(lambda asked: broken) as first,
        FakeDoor(lambda asked: Lines({"ok": 1})) as second,
    ):
        async with Client([first.url, second.url]) as client:
            stream = client.stream("POST", "/v1/toy/s", {}, timeout_s=LONG_S)
            with pytest.raises(Timeout):
                await out_of_time(stream, lambda: first.asked and broken == SILENCE)
            assert second.asked == []
        async with Client([first.url, second.url], timeout_s=2.0) as client:
            stream = await client.stream("POST", "/v1/toy/s", {}, repeat=True)
            assert await anext(stream) == b'{"ok": 1}'
            assert stream.endpoint == second.url


@in_loop
async def test_an_endpoint_that_did_nothing_is_left_for_the_next() -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    async with (
        FakeDoor(lambda asked: error("no_leader", 503)) as first,
        FakeDoor(lambda asked: Lines({"ok": 1})) as second,
        Client([nobody, first.url, second.url]) as client,
    ):
        async with await client.stream("POST", "/v1/toy/s", {}) as stream:
            assert await anext(stream) == b'{"ok": 1}'
        with pytest.raises(NotApplied):
            await client.stream("POST", "/v1/toy/s", {}, at=first.url)


@in_loop
async def test_a_reader_that_rests_stops_the_node() -> None:
    """Beyond what sockets hold, nothing more is taken."""
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 65_535 + b"\n"

    async with door_with(endless) as (door, _):
        async with Client(door.endpoint) as client:
            stream = await client.stream("GET", "/v1/toy/s")
            await anext(stream)
            await until(lambda: taken > 10)
            await at_rest(lambda: taken)
            before = taken
            for _ in range(200):
                await anext(stream)
            assert taken > before
            assert taken < before + 400


@in_loop
async def test_streams_end_when_the_door_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """They end at once, and not after the time in which requests may finish."""
    monkeypatch.setattr("raftkv.server.door.STOP_TIMEOUT_S", 3600)
    closed: list[bool] = []

    async def ticks() -> AsyncIterator[bytes]:
        try:
            yield b"first\n"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async with door_with(ticks) as (door, app):
        async with Client(door.endpoint) as client:
            stream = await client.stream("GET", "/v1/toy/s")
            assert await anext(stream) == b"first"
            assert app.streams == 1
            async with asyncio.timeout(LONG_S):
                await door.stop()
            assert [line async for line in stream] == []
            assert closed == [True]
            assert app.streams == 0


def test_a_blocking_client_iterates() -> None:
    async def three() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d\n" % number

    async def whole() -> None:
        async with door_with(three) as (door, _):
            await asyncio.to_thread(use, door.endpoint)

    def use(endpoint: str) -> None:
        with raftkv.blocking.Client(endpoint) as client:
            with client.stream("GET", "/v1/toy/s") as stream:
                assert stream.answer is None
                assert stream.endpoint == endpoint
                assert stream.next(timeout_s=5) == b"0"
                assert list(stream) == [b"1", b"2"]
            refused = client.stream("GET", "/v1/toy/nothing")
            assert refused.answer is not None
            assert refused.answer.status == 404

    asyncio.run(asyncio.wait_for(whole(), 40))


@contextlib.asynccontextmanager
async def door_with(stream: Any) -> AsyncIterator[tuple[Door, App]]:
    """A door of a real node with one plugin's route, which gives that stream."""

    async def handler(request: Request) -> Response:
        return Response(stream=stream())

    async with LocalCluster(1, fsync="off") as cluster:
        app = App(cluster.nodes[0], routes={"toy": [Route("GET", "s", handler, "a stream")]})
        door = Door(app, "127.0.0.1", 0)
        await door.start()
        try:
            yield door, app
        finally:
            await door.stop()


async def at_rest(figure: Any) -> None:
    """Until a figure has not changed for a while."""
    seen = -1
    while seen != figure():
        seen = figure()
        await asyncio.sleep(0.1)

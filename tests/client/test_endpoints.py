"""Endpoints that hang, names with several addresses, name servers that do not answer: what a client
does about them, and what it says of calls that met them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from raftkv import Client
from raftkv.client import sessions
from raftkv.client import watch as watching
from raftkv.client.sessions import Numbered, Session
from raftkv.errors import NotApplied, Refused, Timeout
from tests.client.fake_door import (
    HANG_UP,
    SILENCE,
    Asked,
    FakeDoor,
    Lines,
    Say,
    error,
    in_loop,
    out_of_time,
    until,
)
from tests.clocks import LONG_S, skip

OK = Say({"header": {"revision": "7"}})


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """An endpoint that takes no connections: the queue of its listener is full."""
    with socket.socket() as listener, contextlib.ExitStack() as filled:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            client = filled.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def of_addresses(*addresses: str) -> None:
    """Let every name have these addresses, in this loop."""

    async def look_up(host: str, port: int, **named: Any) -> Any:
        return [(2, 1, 6, "", (address, port)) for address in addresses]

    asyncio.get_running_loop().getaddrinfo = look_up  # type: ignore[method-assign, assignment]


@in_loop
async def test_a_write_without_a_session_leaves_a_node_that_hangs() -> None:
    async with FakeDoor(lambda asked: SILENCE) as hung, FakeDoor(lambda asked: OK) as good:
        client = Client([hung.url, good.url], exactly_once=False, timeout_s=LONG_S)
        async with client:
            with pytest.raises(Timeout):
                await out_of_time(client.kv.put(b"k", b"v"), lambda: hung.asked)
            # Also when the rest of the first one is over.
            skip(LONG_S)
            for _ in range(3):
                await client.kv.put(b"k", b"v")
            assert client.endpoint == good.url
            assert len(hung.asked) == 1


@pytest.mark.parametrize("word", ["call", "stream"])
@in_loop
async def test_what_could_not_be_sent_is_sent_elsewhere(word: str) -> None:
    def answer(asked: Asked) -> Any:
        return Lines({"line": 1}) if asked.path.endswith("/lines") else OK

    with black_hole() as dead:
        async with FakeDoor(answer) as good, Client([dead, good.url], timeout_s=1) as client:
            for _ in range(2):
                if word == "call":
                    await client.call("POST", "/v1/x/y", {})
                else:
                    async with await client.stream("POST", "/v1/x/lines", {}) as lines:
                        assert await anext(lines) == b'{"line": 1}'
            assert client.endpoint == good.url


@in_loop
async def test_a_call_that_was_delivered_is_unknown_if_there_is_no_place_for_another_try() -> None:
    def answer(asked: Asked) -> Any:
        return SILENCE if asked.path == "/v1/x/slow" else HANG_UP

    async with FakeDoor(answer) as door:
        async with Client(door.url, timeout_s=LONG_S, connections_max=1) as client:
            doing = asyncio.ensure_future(client.call("POST", "/v1/x/do", {}, repeat=True))
            await until(lambda: bool(door.asked))
            slow_call = client.call("POST", "/v1/x/slow", {}, timeout_s=2 * LONG_S)
            slow = asyncio.ensure_future(slow_call)
            with pytest.raises(Timeout):
                await out_of_time(doing, lambda: "/v1/x/slow" in door.paths())
            slow.cancel()
            await asyncio.wait((slow,))


@in_loop
async def test_an_address_that_takes_connections_and_never_answers_is_left() -> None:
    heard: list[bytes] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            heard.append(await reader.readexactly(1))
            await reader.read()

    async with FakeDoor(lambda asked: OK) as good:
        port = int(good.url.rpartition(":")[2])
        async with await asyncio.start_server(silent, "127.0.0.2", port):
            of_addresses("127.0.0.2", "127.0.0.1")
            async with Client(f"http://node.example:{port}", timeout_s=LONG_S) as client:
                with pytest.raises(NotApplied):
                    await out_of_time(client.kv.range(prefix=b""), lambda: heard)
                for _ in range(3):
                    await client.kv.range(prefix=b"")
                assert good.connections == 1


@pytest.mark.parametrize("status", [502, 503, 504])
@in_loop
async def test_an_address_that_answers_that_it_cannot_is_left(status: int) -> None:
    """As a node does that is cut off from the others: one name stands for all of them."""
    async with FakeDoor(lambda asked: OK) as good:
        port = int(good.url.rpartition(":")[2])
        unable = error("no_leader", status)
        async with FakeDoor(lambda asked: unable, host="127.0.0.2", port=port) as cut_off:
            of_addresses("127.0.0.2", "127.0.0.1")
            async with Client(f"http://node.example:{port}") as client:
                for _ in range(3):
                    await client.kv.range(prefix=b"")
                assert len(cut_off.asked) == 1
                assert good.connections == 1
                # It is not left for good: the other one may be the next that is cut off.
                cut_off.answer, good.answer = good.answer, cut_off.answer
                await client.kv.range(prefix=b"")
                assert len(cut_off.asked) == 2


@in_loop
async def test_an_address_is_not_left_for_a_verdict_or_for_too_much_work() -> None:
    async with FakeDoor(lambda asked: OK) as good:
        port = int(good.url.rpartition(":")[2])
        answers = [error("compacted", 400), OK, error("overloaded", 429), OK, OK]
        async with FakeDoor(lambda asked: answers.pop(0), host="127.0.0.2", port=port):
            of_addresses("127.0.0.2", "127.0.0.1")
            async with Client(f"http://node.example:{port}") as client:
                with pytest.raises(Refused):
                    await client.kv.range(prefix=b"")
                for _ in range(3):
                    await client.kv.range(prefix=b"")
                assert good.asked == []


@in_loop
async def test_a_lone_address_that_cannot_keeps_its_connection() -> None:
    answers = [error("no_leader", 503), error("no_leader", 503), OK]
    async with FakeDoor(lambda asked: answers.pop(0)) as door:
        of_addresses("127.0.0.1")
        async with Client(door.url.replace("127.0.0.1", "node.example")) as client:
            await client.kv.range(prefix=b"")
        assert door.connections == 1


@in_loop
async def test_a_name_server_that_hangs_is_nothing_to_addresses_and_asked_once_at_a_time() -> None:
    asked: list[str] = []

    async def look_up(host: str, port: int, **named: Any) -> Any:
        asked.append(host)
        await asyncio.sleep(60)

    asyncio.get_running_loop().getaddrinfo = look_up  # type: ignore[method-assign, assignment]
    async with FakeDoor(lambda asked: OK) as good:
        async with Client(["http://dead.example:1", good.url], timeout_s=5) as client:
            await asyncio.gather(*(client.kv.range(prefix=b"") for _ in range(60)))
            assert client.endpoint == good.url
            assert asked == ["dead.example"]


@in_loop
async def test_a_watch_of_a_revision_to_come_is_not_silent_for_want_of_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "SILENCE_S", 0.05)

    def answer(asked: Asked) -> Any:
        return Lines({"result": {"header": {"revision": "7"}, "created": True}})

    async with FakeDoor(answer) as first, FakeDoor(answer) as second:
        async with Client([first.url, second.url]) as client:
            async with client.kv.watch(b"k", start_revision=100) as watch:
                waiting = asyncio.ensure_future(anext(aiter(watch)))
                await until(lambda: watch.resumptions > 3)
                assert client.endpoint == first.url
                assert second.asked == []
                waiting.cancel()
                await asyncio.wait((waiting,))


def test_given_up_writes_are_bounded_behind_one_that_waits_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "GIVEN_UP_MAX", 5)
    monkeypatch.setattr(sessions, "GIVEN_UP_BYTES_MAX", 400)
    now = 0.0
    session = Session("1-a", lambda: now)
    patient = session.take()
    for size, kept in ((10, 5), (100, 4)):
        for _ in range(20):
            seq = session.take()
            session.give_up(seq, Numbered(b"POST", b"/p", bytes(size)))
            given_up = session.given_up(seq)
            assert given_up is not None
            assert len(given_up.request.body) == size
        assert len(session._given_up) == kept
        assert session._given_up_bytes == size * kept
        assert session.floor == patient
    now += sessions.GIVEN_UP_KEPT_S + 1
    assert session.floor == patient
    assert session._given_up == {}
    assert session._given_up_bytes == 0
    session.done(patient)
    assert session.floor == session.take()

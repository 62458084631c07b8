"""What goes wrong between a client and its nodes: ends at bad moments, words that make no sense."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from raftkv import Client
from raftkv.client import calls
from raftkv.client import watch as watching
from raftkv.client.http import HttpEndpoint
from raftkv.errors import (
    ConfigError,
    Overloaded,
    PeerUnreachable,
    RaftkvError,
    ReadTimeout,
    Stopped,
    Timeout,
    TooLarge,
)
from raftkv.testing.local_cluster import free_ports
from tests.client.fake_door import (
    HANG_UP,
    SILENCE,
    Asked,
    FakeDoor,
    Lines,
    Say,
    b64,
    error,
    in_loop,
    out_of_time,
    until,
)
from tests.clocks import LONG_S, skip

HEADER = {"revision": "5"}
DONE = Say({"header": HEADER})
CREATED = {"result": {"header": HEADER, "created": True}}
NO_UTF8 = b'{"hea\x9cer":{"revision":"7"}}'


def event(revision: int, value: bytes = b"") -> dict[str, Any]:
    number = str(revision)
    kv = {"key": b64(b"k"), "mod_revision": number, "version": "1", "create_revision": number}
    changed = {"kv": {**kv, "value": b64(value)}}
    return {"result": {"header": {"revision": number}, "events": [changed]}}


def door_of(write: Callable[[Asked], Any]) -> Callable[[Asked], Any]:
    numbers = itertools.count(12)

    def answer(asked: Asked) -> Any:
        if asked.path == "/v1/sessions":
            return Say({"session": f"{next(numbers)}-00ab"})
        return write(asked)

    return answer


# Ends at bad moments -----------------------------------------------------------------------------


@in_loop
async def test_a_client_closed_between_two_tries_of_a_write_knows_no_outcome() -> None:
    async with FakeDoor(door_of(lambda asked: HANG_UP)) as door:
        client = Client(door.url)
        writing = asyncio.create_task(client.kv.put(b"k", b"v"))
        await until(lambda: len(door.asked) >= 4)
        await client.close()
        with pytest.raises(Timeout):
            await writing


@pytest.mark.parametrize("word", ["call", "stream"])
@in_loop
async def test_what_may_have_been_carried_out_is_unknown_whatever_comes_after(word: str) -> None:
    door = FakeDoor(lambda asked: HANG_UP)
    async with door, Client([door.url, f"http://127.0.0.1:{free_ports(1)[0]}"]) as client:
        door.answer = lambda asked: _last_words(door)
        doing = getattr(client, word)("POST", "/v1/x/do", {}, repeat=True, timeout_s=LONG_S)
        with pytest.raises(Timeout):
            await out_of_time(doing, lambda: client.retries > 2)
        assert len(door.asked) == 1


def _last_words(door: FakeDoor) -> str:
    assert door._server is not None
    door._server.close()
    return HANG_UP


@in_loop
async def test_an_answer_that_nobody_asked_for_is_not_the_next_ones() -> None:
    good = b'{"header":{"revision":"7"}}'
    ghost = b'{"kvs":[{"key":"aw==","value":"Z2hvc3Q="}]}'
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            for number in itertools.count():
                if not await reader.read(65536):
                    return
                said = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(good), good)
                if number == 0:
                    writer.write(said + b"HTTP/1.1 200 OK\r\ncontent-len")  # in one segment
                else:
                    writer.write(b"gth: %d\r\n\r\n%b" % (len(ghost), ghost) + said)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Client(f"http://127.0.0.1:{port}") as client:
        assert [await client.kv.get(b"k") for _ in range(3)] == [None] * 3
    assert connections == 3


@in_loop
async def test_connections_that_died_while_idle_cost_one_try() -> None:
    old, begun = True, 0
    gate = asyncio.Event()
    body = b'{"header":{"revision":"7"}}'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal begun
        mine = old
        try:
            while await reader.read(65536):
                if mine and not old:
                    writer.transport.abort()
                    return
                begun += 1
                await gate.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Client(f"http://127.0.0.1:{port}") as client:
        reads = [asyncio.create_task(client.kv.get(b"k")) for _ in range(20)]
        await until(lambda: begun == len(reads))
        gate.set()
        await asyncio.gather(*reads)
        old = False  # the node was started anew
        assert await client.kv.get(b"k") is None
        assert client.retries == 1


@in_loop
async def test_a_forked_process_must_not_use_its_parents_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeDoor(door_of(lambda asked: DONE)) as door, Client(door.url) as client:
        await client.kv.put(b"k", b"v")
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
        with pytest.raises(Stopped, match="forked"):
            await client.kv.put(b"k", b"v")
        monkeypatch.undo()
        await client.kv.put(b"k", b"v")
        assert len(door.asked) == 3


# How long, and whether again ----------------------------------------------------------------------


@in_loop
async def test_a_long_outage_is_an_outage_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "REST_S_MAX", 0.0001)
    unreachable = f"http://127.0.0.1:{free_ports(1)[0]}"
    async with Client(unreachable, timeout_s=LONG_S) as client:
        client._caller._places[0].failures = 5000
        with pytest.raises(PeerUnreachable):
            await out_of_time(client.kv.get(b"k"), lambda: client.retries > 2)


@in_loop
async def test_the_last_try_comes_before_the_deadline_though_the_endpoint_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rest may be longer than all that is left."""
    monkeypatch.setattr(calls, "REST_S_MAX", 10 * LONG_S)
    monkeypatch.setattr(calls, "TRY_S_MIN", LONG_S / 2)
    said: list[Any] = [error("no_leader", 503), DONE]
    async with FakeDoor(lambda asked: said.pop(0)) as door, Client(door.url) as client:
        client._caller._places[0].failures = 30
        reading = client.kv.get(b"k", timeout_s=LONG_S)
        assert await out_of_time(reading, lambda: client.retries, LONG_S / 2) is None
        assert len(door.asked) == 2


@in_loop
async def test_who_finds_no_place_in_the_client_does_not_blame_the_endpoint() -> None:
    def answer(asked: Asked) -> Any:
        return SILENCE if asked.path == "/v3/lease/leases" else DONE

    async with (
        FakeDoor(answer) as door,
        FakeDoor(answer) as other,
        Client([door.url, other.url], connections_max=1) as client,
    ):
        slow = asyncio.create_task(client.leases.list(timeout_s=10 * LONG_S))
        await until(lambda: door.asked)
        short = {"timeout_s": LONG_S}
        for call in (client.kv.get(b"k", **short), client.kv.put(b"k", b"", **short)):
            with pytest.raises(Overloaded, match="connections_max"):
                await out_of_time(call, lambda: True)
        assert (client.retries, client.endpoint) == (0, door.url)
        slow.cancel()


@in_loop
async def test_a_write_that_is_not_repeated_has_all_the_time_to_be_answered() -> None:
    async with (
        FakeDoor(lambda asked: SILENCE) as hole,
        FakeDoor(lambda asked: DONE) as other,
        Client([hole.url, other.url], exactly_once=False, timeout_s=2 * LONG_S) as client,
    ):
        writing = asyncio.create_task(client.kv.put(b"k", b"v"))
        await until(lambda: hole.asked)
        skip(1.9 * LONG_S)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not writing.done()
        skip(LONG_S)
        with pytest.raises(Timeout):
            await writing
        assert not other.asked


@in_loop
async def test_an_answer_to_a_write_that_is_too_large_is_not_asked_for_again() -> None:
    prev = {"key": b64(b"k"), "value": b64(b"x" * 100_000)}
    large = Say({"header": HEADER, "deleted": "1", "prev_kvs": [prev]})
    async with (
        FakeDoor(door_of(lambda asked: large)) as door,
        Client(door.url, answer_bytes_max=65536) as client,
    ):
        with pytest.raises(Timeout, match="exceeds 65536 bytes"):
            await client.kv.delete(b"k", prev_kv=True)
        assert len(door.asked) == 2


@in_loop
async def test_sessions_that_end_at_once_are_not_opened_without_a_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rest_s, rests = LONG_S * 2 / 3, []
    monkeypatch.setattr(calls, "_rest_s", lambda renewed: rests.append(renewed) or rest_s)
    expired = error("session_expired", 412)
    async with FakeDoor(door_of(lambda asked: expired)) as door, Client(door.url) as client:
        writing = asyncio.create_task(client.kv.put(b"k", b"v", timeout_s=LONG_S))
        await until(lambda: rests)  # the second one follows at once
        assert (client._caller.sessions.opened, len(door.asked)) == (2, 4)
        skip(rest_s)
        with pytest.raises(Overloaded, match="3 sessions ended"):
            await writing
        assert rests == [1, 2]
        assert len(door.asked) == 6


@in_loop
async def test_a_node_that_hangs_is_left_by_callers_with_little_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "PATIENCE_S", LONG_S)

    async def given_up_after(seconds: float) -> None:
        before = len(hole.asked)
        reading = asyncio.create_task(client.kv.get(b"k", timeout_s=100 * LONG_S))
        await until(lambda: len(hole.asked) > before)
        skip(seconds)
        reading.cancel()
        await asyncio.wait((reading,))

    async with (
        FakeDoor(lambda asked: SILENCE) as hole,
        FakeDoor(lambda asked: DONE) as good,
        Client([hole.url, good.url]) as client,
    ):
        await given_up_after(0.0)
        assert client.retries == 0  # that says nothing yet
        await given_up_after(2 * LONG_S)
        assert client.retries == 1
        await client.kv.get(b"k")
        assert client.endpoint == good.url


# Words that make no sense -------------------------------------------------------------------------


@in_loop
async def test_bytes_that_are_no_utf_8_are_an_error_like_any_other() -> None:
    def answer(asked: Asked) -> Any:
        if asked.path == "/v3/watch":
            return Lines(NO_UTF8 + b"\n")
        return Say(NO_UTF8, 503)

    async with FakeDoor(door_of(answer)) as door, Client(door.url, timeout_s=LONG_S) as client:
        for call in (client.kv.get(b"k"), client.kv.put(b"k", b"v"), client.call("GET", "/v1/x")):
            tries = client.retries
            with pytest.raises(RaftkvError):
                await out_of_time(call, lambda n=tries: client.retries > n)
        door.answer = lambda asked: Lines(NO_UTF8 + b"\n") if asked.path == "/v3/watch" else DONE
        watching = asyncio.ensure_future(anext(client.kv.watch()))
        await until(lambda: door.paths().count("/v3/watch") > 2)
        assert not watching.done()
        watching.cancel()
        await asyncio.wait((watching,))


@in_loop
async def test_a_session_that_is_none_is_not_taken() -> None:
    async with (
        FakeDoor(lambda asked: Say({"session": "abc"})) as door,
        Client(door.url, timeout_s=LONG_S) as client,
    ):
        with pytest.raises(ReadTimeout, match="cannot be understood"):
            await out_of_time(client.kv.put(b"k", b"v"), lambda: client.retries)


@in_loop
async def test_names_that_cannot_be_looked_up() -> None:
    for url in ("http://a..b:1", "http://" + "a" * 70 + ".b:1"):
        async with Client(url, timeout_s=LONG_S) as client:
            with pytest.raises(PeerUnreachable):
                await out_of_time(client.kv.get(b"k"), lambda c=client: c.retries)
    with pytest.raises(ConfigError, match="not an endpoint"):
        HttpEndpoint("http://b\u00fccher:1")


@in_loop
async def test_behind_a_dead_address_of_a_name_stands_another_one() -> None:
    """A listener whose queue is full answers nothing, like a host that was switched off."""
    loop = asyncio.get_running_loop()
    look_up = loop.getaddrinfo
    asked: list[str] = []

    async def addresses(host: str, port: int, **named: Any) -> Any:
        asked.append(host)
        return [
            *await look_up("127.0.0.2", port, **named),
            *await look_up("127.0.0.1", port, **named),
        ]

    loop.getaddrinfo = addresses  # type: ignore[method-assign, assignment]
    async with FakeDoor(lambda asked: Say({})) as door:
        port = int(door.url.rpartition(":")[2])
        with socket.socket() as dead, contextlib.ExitStack() as filled:
            dead.bind(("127.0.0.2", port))
            dead.listen(0)
            for _ in range(3):
                client = filled.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(dead.getsockname())
            endpoint = HttpEndpoint(f"http://node.example:{port}")
            begun = loop.time()
            answer = await endpoint.request(b"GET", b"/version", deadline=begun + 4)
            assert answer.status == 200
            assert loop.time() - begun >= 2
            # From now on the one that has answered is asked first: nothing is left for another.
            assert endpoint._address == "127.0.0.1"
            endpoint._close_idle()
            dead.close()
            answer = await endpoint.request(b"GET", b"/version", deadline=loop.time() + 10)
            assert answer.status == 200
            assert asked == ["node.example"] * 2
            endpoint.close()


@pytest.mark.parametrize("path", ["/v1/x y", "/v1/x\r\nhost: a", "v1/x", "/v1/\u00fc", "/v1/x\x7f"])
@in_loop
async def test_a_path_that_is_not_quoted_is_not_sent(path: str) -> None:
    async with FakeDoor(lambda asked: DONE) as door, Client(door.url) as client:
        for call in (client.call("GET", path), client.stream("GET", path)):
            with pytest.raises(ValueError, match=r"urllib\.parse\.quote"):
                await call
        assert not door.asked


@in_loop
async def test_a_last_line_without_an_end_is_a_line_if_the_stream_ends_in_good_order() -> None:
    lines = Lines(b'{"n":1}\n', b'{"n":2}')
    lines.end()
    said: list[Any] = [Say({"n": 1}), lines]
    async with FakeDoor(lambda asked: said.pop(0)) as door, Client(door.url) as client:
        for wanted in ([b'{"n": 1}'], [b'{"n":1}', b'{"n":2}']):
            async with await client.stream("GET", "/v1/x/y") as stream:
                assert [line async for line in stream] == wanted


# Watches -----------------------------------------------------------------------------------------


async def polled(client: Client, pause_s: float, times: int) -> Any:
    """The first batch of a watch that is asked for again and again with little patience."""
    async with client.kv.watch() as watch:
        for _ in range(times):
            try:
                async with asyncio.timeout(pause_s):
                    return await anext(watch)
            except TimeoutError:
                continue
    return None


@in_loop
async def test_streams_that_end_at_once_are_not_asked_for_without_a_rest() -> None:
    def answer(asked: Asked) -> Any:
        reason = "raftkv: stopped: watch again from revision 6"
        end = {"result": {"header": HEADER, "canceled": True, "cancel_reason": reason}}
        lines = Lines(CREATED, end)
        lines.end()
        return lines

    async with FakeDoor(answer) as one, FakeDoor(answer) as two:
        for nodes in ((one,), (one, two)):
            async with Client([node.url for node in nodes]) as client:
                loop = asyncio.get_running_loop()
                began = loop.time()
                waiting = asyncio.ensure_future(anext(client.kv.watch(start_revision=6)))
                await until(lambda n=nodes: min(len(each.asked) for each in n) > 2)
                assert not waiting.done()
                waiting.cancel()
                await asyncio.wait((waiting,))
                # Three streams of one node, so it has rested twice.
                assert loop.time() - began >= 2 * calls.REST_S_MIN


@in_loop
async def test_a_silent_stream_is_given_up_by_who_asks_with_a_time_out_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "SILENCE_S", 0.3)
    async with (
        FakeDoor(lambda asked: Lines(CREATED)) as dead,
        FakeDoor(lambda asked: Lines(CREATED, event(6))) as good,
        Client([dead.url, good.url]) as client,
    ):
        assert (await polled(client, 0.1, 300)).revision == 6


@in_loop
async def test_a_watch_begins_however_little_patience_its_user_has() -> None:
    async with (
        FakeDoor(lambda asked: SILENCE) as hole,
        FakeDoor(lambda asked: Lines(CREATED, event(6))) as good,
        Client([hole.url, good.url], timeout_s=1.0) as client,
    ):
        assert (await polled(client, 0.2, 300)).revision == 6
        assert len(hole.asked) == 1
    async with FakeDoor(lambda asked: Lines(CREATED, event(6))) as door, Client(door.url) as client:
        async with client.kv.watch() as watch:
            found = None
            for _ in range(10_000):
                try:
                    async with asyncio.timeout(0):
                        found = await anext(watch)
                        break
                except TimeoutError:
                    await asyncio.sleep(0.002)
            assert found is not None


@in_loop
async def test_a_watch_closed_by_another_task_while_it_begins() -> None:
    async with FakeDoor(lambda asked: SILENCE) as hole, Client(hole.url) as client:
        watch = client.kv.watch()
        waiting = asyncio.create_task(anext(watch, None))
        await until(lambda: hole.asked)
        watch.close()
        assert await waiting is None
        # And one whose waiting task is cancelled: that goes on to whoever has cancelled it.
        watch = client.kv.watch()
        waiting = asyncio.create_task(anext(watch, None))
        await until(lambda: len(hole.asked) == 2)
        waiting.cancel()
        watch.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@in_loop
async def test_closing_a_watch_is_no_failure_of_its_endpoint() -> None:
    def answer(asked: Asked) -> Any:
        return Lines(CREATED) if asked.path == "/v3/watch" else DONE

    async with (
        FakeDoor(answer) as one,
        FakeDoor(answer) as two,
        Client([one.url, two.url]) as client,
    ):
        watch = client.kv.watch()
        await watch.created()
        waiting = asyncio.create_task(anext(watch, None))
        await asyncio.sleep(0)
        watch.close()
        assert await waiting is None
        assert (client.retries, client.endpoint) == (0, one.url)


@in_loop
async def test_a_line_that_is_too_long_ends_the_watch_with_a_word() -> None:
    async with (
        FakeDoor(lambda asked: Lines(CREATED, event(6, b"x" * 100_000))) as door,
        Client(door.url, answer_bytes_max=65536) as client,
    ):
        watch = client.kv.watch(start_revision=6)
        with pytest.raises(TooLarge, match="answer_bytes_max"):
            await anext(watch)
        assert len(door.asked) == 1
        with pytest.raises(StopAsyncIteration):
            await anext(watch)

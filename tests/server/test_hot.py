"""The short way: the same answers as on the usual one, and no request that it must not take."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv import errors
from raftkv.config import HttpLimits
from raftkv.plugin import Request, Response, Route
from raftkv.server import App, Door
from raftkv.server import door as door_module
from raftkv.server.hot import HEAD_BYTES_MAX, HEADS_MAX, Heads, Known, Run
from tests.server.conftest import Served, b64
from tests.server.solo import SoloNode
from tests.server.wire import Wire, post

PUT = json.dumps({"key": b64(b"k"), "value": b64(b"v")}).encode()
GET = json.dumps({"key": b64(b"k")}).encode()


def hot(served: Served) -> int:
    return served.door._state.hot_total


def revision(answer: tuple[int, dict[str, str], bytes]) -> int:
    status, _, body = answer
    assert status == 200, body
    return int(json.loads(body)["header"]["revision"])


def test_the_second_request_of_a_kind_takes_the_short_way_and_looks_the_same(
    served: Served,
) -> None:
    before = hot(served)
    with Wire(served.door.port) as wire:
        answers = []
        for _ in range(3):
            wire.send(post("/v3/kv/range", GET, "user-agent: same"))
            answers.append(wire.response())
    assert answers[0] == answers[1] == answers[2]
    assert hot(served) == before + 2
    with Wire(served.door.port) as other:
        other.send(post("/v3/kv/range", GET, "user-agent: same"))
        assert other.response() == answers[0]
    assert hot(served) == before + 3, "what one connection has taught helps the others"


def test_all_hot_words_end_on_the_short_way(served: Served) -> None:
    txn = {"success": [{"request_put": {"key": b64(b"t"), "value": ""}}]}
    before = hot(served)
    with Wire(served.door.port) as wire:
        for path, body in [
            ("put", PUT),
            ("range", GET),
            ("txn", json.dumps(txn).encode()),
            ("deleterange", GET),
        ]:
            both = []
            for _ in range(2):
                wire.send(post(f"/v3/kv/{path}", body, "user-agent: words"))
                status, headers, answer = wire.response()
                both.append((status, sorted(headers), sorted(json.loads(answer))))
            # A key is deleted once; otherwise the second answer is of the same form.
            assert both[0][:2] == both[1][:2]
    assert hot(served) == before + 4


def test_a_large_range_is_given_in_pages_on_the_short_way_too(served: Served) -> None:
    async def fill() -> None:
        for n in range(2500):
            await served.node.kv.put(b"%05d" % n, b"")

    served.run(fill())
    whole = json.dumps({"key": "AA==", "range_end": "AA=="}).encode()
    some = json.dumps({"key": "AA==", "range_end": "AA==", "limit": 2100}).encode()
    with Wire(served.door.port) as wire:
        for _ in range(2):
            wire.send(post("/v3/kv/range", whole))
            answer = json.loads(wire.response()[2])
            assert [kv["key"] for kv in answer["kvs"]] == [b64(b"%05d" % n) for n in range(2500)]
            assert (answer["count"], answer.get("more")) == ("2500", None)
            wire.send(post("/v3/kv/range", some))
            answer = json.loads(wire.response()[2])
            assert (len(answer["kvs"]), answer["count"], answer["more"]) == (2100, "2500", True)


def test_errors_are_the_same_on_both_ways(served: Served) -> None:
    for trouble in (errors.NoLeader("none"), errors.Timeout("late"), ValueError("secret")):
        served.node.host.trouble = lambda trouble=trouble: trouble  # type: ignore[misc]
        with Wire(served.door.port) as wire:
            answers = []
            for _ in range(2):
                wire.send(post("/v3/kv/put", PUT, f"user-agent: {trouble}"))
                answers.append(wire.response())
        assert answers[0] == answers[1]
        assert b"secret" not in answers[0][2]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 400), max_size=8))
def test_pipelined_requests_are_answered_in_order_wherever_they_are_cut(
    server: Served, cuts: list[int]
) -> None:
    server.renew()
    data = b"".join(
        post("/v3/kv/put", json.dumps({"key": b64(b"k"), "value": b64(b"%d" % n)}).encode())
        for n in range(5)
    )
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    with Wire(server.door.port) as wire:
        for _ in range(2):
            wire.send(post("/v3/kv/put", PUT))
            wire.response()
        for start, end in itertools.pairwise(edges):
            wire.send(data[start:end])
        assert [revision(wire.response()) for _ in range(5)] == [4, 5, 6, 7, 8]


class Gate:
    """A node whose puts wait until they are let through."""

    def __init__(self, **limits: Any) -> None:
        self.node = SoloNode()
        self.open = asyncio.Event()
        self.started = 0
        put = self.node.kv.put

        async def gated(*arguments: Any, **named: Any) -> Any:
            self.started += 1
            waits = asyncio.get_running_loop().create_task(self.open.wait())
            await waits
            return await put(*arguments, **named)

        self.node.kv.put = gated  # type: ignore[method-assign]
        app = App(self.node, limits=HttpLimits(**limits), routes={"toy": [ECHO]})
        self.door = Door(app, "127.0.0.1", 0)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.door.port)

    async def teach(self) -> None:
        """Let the door learn the head of a put."""
        self.open.set()
        reader, writer = await self.connect()
        writer.write(post("/v3/kv/put", PUT))
        await answer_of(reader)
        writer.close()
        self.open.clear()

    async def until_started(self, count: int) -> None:
        while self.started < count:
            await asyncio.sleep(0)


async def _echo(request: Request) -> Response:
    return Response({"echo": request.body.decode()})


ECHO = Route("POST", "echo", _echo, "")


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


def test_what_comes_while_an_answer_is_under_way_waits_for_it() -> None:
    async def story() -> None:
        gate = Gate()
        await gate.door.start()
        await gate.teach()
        reader, writer = await gate.connect()
        writer.write(post("/v3/kv/put", PUT))
        await gate.until_started(2)
        assert gate.door._state.hot_total == 1
        writer.write(post("/v1/toy/echo", b"x" * 100_000)[:70_000])
        writer.write(post("/v1/toy/echo", b"x" * 100_000)[70_000:] + post("/v3/kv/put", PUT))
        await asyncio.sleep(0.01)
        gate.open.set()
        assert (await answer_of(reader))[0] == 200
        assert (await answer_of(reader))[1] == {"echo": "x" * 100_000}
        assert (await answer_of(reader))[0] == 200
        writer.close()
        await gate.door.stop()

    asyncio.run(story())


def test_an_answer_under_way_is_given_when_the_door_stops_and_then_it_closes() -> None:
    async def story() -> None:
        gate = Gate()
        await gate.door.start()
        await gate.teach()
        reader, writer = await gate.connect()
        writer.write(post("/v3/kv/put", PUT))
        await gate.until_started(2)
        stopping = asyncio.create_task(gate.door.stop())
        while gate.door._tasks:
            await asyncio.sleep(0)
        gate.open.set()
        assert (await answer_of(reader))[0] == 200
        assert await reader.read() == b""
        await stopping
        writer.close()

    asyncio.run(story())


def test_a_client_that_goes_leaves_nothing_behind() -> None:
    async def story() -> None:
        gate = Gate()
        await gate.door.start()
        await gate.teach()
        _, writer = await gate.connect()
        writer.write(post("/v3/kv/put", PUT))
        await gate.until_started(2)
        writer.transport.abort()
        gate.open.set()
        while gate.door._app.requests or gate.door._state.connections:
            await asyncio.sleep(0)
        assert gate.node.kv.revision == 3, "a put that was sent is done, whoever hears of it"
        await gate.door.stop()

    asyncio.run(story())


@pytest.mark.parametrize("known", [True, False])
def test_one_request_too_many_is_told_to_come_back(known: bool) -> None:
    async def story() -> None:
        gate = Gate(requests_max=1)
        await gate.door.start()
        if known:
            await gate.teach()
        reader, writer = await gate.connect()
        writer.write(post("/v3/kv/put", PUT))
        await gate.until_started(1 + known)
        other_reader, other_writer = await gate.connect()
        other_writer.write(post("/v3/kv/put", PUT))
        head = (await other_reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("http/1.1 429 too many requests\r\n")
        assert "retry-after: 1\r\n" in head
        gate.open.set()
        assert (await answer_of(reader))[0] == 200
        writer.close()
        other_writer.close()
        await gate.door.stop()
        assert gate.door._app.refused["requests_max"] == 1

    asyncio.run(story())


@pytest.mark.parametrize(
    "lines",
    [
        ["connection: close"],
        ["expect: 100-continue"],
        ["upgrade: h2c", "connection: upgrade"],
        ["raftkv-session: 1-2"],
        ["x-anything: 1"],
        ["user-agent: " + "x" * HEAD_BYTES_MAX],
    ],
)
def test_heads_with_a_meaning_of_their_own_are_not_learned(
    served: Served, lines: list[str]
) -> None:
    before = hot(served)
    for _ in range(2):
        with Wire(served.door.port) as wire:
            wire.send(post("/v3/kv/range", GET, *lines))
            wire.head()
    assert hot(served) == before


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v3/kv/range HTTP/1.0\r\nhost: [::1]\r\ncontent-length: %d\r\n\r\n",
        b"POST /v3/kv/range?x HTTP/1.1\r\nhost: [::1]\r\ncontent-length: %d\r\n\r\n",
        b"PUT /v3/kv/range HTTP/1.1\r\nhost: [::1]\r\ncontent-length: %d\r\n\r\n",
        b"POST /v3/kv/range HTTP/1.1\r\ncontent-length: %d\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v3/kv/range HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: %d\r\n\r\n",
        b"POST /v3/kv/range HTTP/1.1\nhost: 127.0.0.1\ncontent-length: %d\n\n",
    ],
)
def test_heads_that_are_no_plain_request_are_not_learned(served: Served, head: bytes) -> None:
    before = len(served.door._state.heads._known)
    with Wire(served.door.port) as wire:
        wire.send(head % len(GET) + GET + b"\r\n\r\n")
        wire.head()
    assert len(served.door._state.heads._known) == before


def test_heads_are_forgotten_before_they_are_too_many() -> None:
    heads = Heads(frozenset([b"/p"]), 10_000)
    for n in range(HEADS_MAX + 1):
        head = b"%d" % n
        heads.learn(head, b"POST", b"/p", [(b"content-length", b"1")])
        assert heads.get(head) == Known(b"/p", 1)
    assert heads.get(b"0") is None
    heads.learn(b"large", b"POST", b"/p", [(b"content-length", b"10001")])
    assert heads.get(b"large") is None


def test_a_run_goes_on_through_futures_and_turns_of_the_loop() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        ended: list[tuple[bytes, Exception | None]] = []

        async def word(future: asyncio.Future[bytes]) -> bytes:
            await asyncio.sleep(0)
            return await future

        for outcome in (b"answer", errors.NoLeader("none"), None):
            future: asyncio.Future[bytes] = loop.create_future()
            Run(loop, word(future), lambda *end: ended.append(end)).step()
            await asyncio.sleep(0)
            if isinstance(outcome, bytes):
                future.set_result(outcome)
            elif outcome is None:
                future.cancel()
            else:
                future.set_exception(outcome)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert ended[0] == (b"answer", None)
        assert isinstance(ended[1][1], errors.NoLeader)
        assert isinstance(ended[2][1], errors.OutcomeUnknown)
        assert len(ended) == 3

    asyncio.run(story())


@pytest.mark.parametrize("known", [False, True], ids=["usual way", "short way"])
def test_a_request_under_way_ends_with_its_door(known: bool, monkeypatch: Any) -> None:
    """After its time is over it is cut, and nothing of it goes on behind the door's back."""
    monkeypatch.setattr(door_module, "STOP_TIMEOUT_S", 0.05)

    async def story() -> None:
        gate = Gate()
        await gate.door.start()
        if known:
            await gate.teach()
        reader, writer = await gate.connect()
        writer.write(post("/v3/kv/put", PUT))
        await gate.until_started(1 + known)
        assert gate.door._state.hot_total == known
        before = gate.node.kv.revision
        await gate.door.stop()
        assert gate.door._app.requests == 0
        gate.open.set()
        with contextlib.suppress(ConnectionError):
            assert b"200 OK" not in await reader.read()
        assert not gate.door._state.connections
        assert gate.node.kv.revision == before
        writer.close()

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_run_that_is_cancelled_ends_once() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        ended: list[tuple[bytes, Exception | None]] = []
        future: asyncio.Future[bytes] = loop.create_future()

        async def word() -> bytes:
            await asyncio.sleep(0)
            return await future

        run = Run(loop, word(), lambda *end: ended.append(end))
        run.step()
        run.cancel()  # it waits for nothing that could be cancelled
        await asyncio.sleep(0)
        run.cancel()
        run.cancel()
        await asyncio.sleep(0)
        run.cancel()
        ((answer, error),) = ended
        assert (answer, type(error)) == (b"", errors.OutcomeUnknown)
        assert future.cancelled()

    asyncio.run(story())

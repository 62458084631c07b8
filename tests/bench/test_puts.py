"""The put loop and its HTTP client, against a keyspace and a door of their own."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable

import pytest

from bench.live import Tally, bucket_of, quantile_us
from bench.puts import HttpCaller, HttpError, PutPlace, put_rows
from bench.schema import Row
from raftkv.errors import Overloaded

PLACE = PutPlace("run", "3", "c1", lambda: "leader")


async def at_once(key: bytes, value: bytes) -> None:
    await asyncio.sleep(0)


def test_every_put_is_a_row_of_its_phase() -> None:
    rows: list[Row] = []
    tally, elapsed_s = asyncio.run(put_rows([at_once] * 3, 0.02, bytes(64), PLACE, rows.append))
    assert elapsed_s >= 0.02
    assert tally.ok == len(rows) > 10
    assert {(row.phase, row.registry, row.role, row.op) for row in rows} == {
        ("c3", "none", "leader", "put")
    }
    assert {row.client for row in rows} == {"p0", "p1", "p2"}


def test_no_more_puts_are_in_flight_than_asked() -> None:
    in_flight, most, keys = 0, 0, set()

    async def put(key: bytes, value: bytes) -> None:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        assert len(value) == 64
        keys.add(key)
        await asyncio.sleep(0)
        in_flight -= 1

    asyncio.run(put_rows([put] * 5, 0.01, bytes(64), PLACE, lambda row: None))
    assert most == 5
    assert len({key.split(b"/")[1] for key in keys}) == 5


def test_a_stalled_cluster_still_leaves_a_row() -> None:
    rows: list[Row] = []

    async def put(key: bytes, value: bytes) -> None:
        await asyncio.sleep(0.02)

    asyncio.run(put_rows([put] * 2, 0.001, b"v", PLACE, rows.append))
    assert len(rows) >= 1


def test_errors_are_rows_too() -> None:
    async def put(key: bytes, value: bytes) -> None:
        raise Overloaded("full")

    rows: list[Row] = []
    tally, _ = asyncio.run(put_rows([put], 0.005, b"v", PLACE, rows.append))
    assert {row.outcome for row in rows} == {"overloaded"}
    assert tally.ok == 0
    assert "overloaded" in tally.others


# HTTP --------------------------------------------------------------------------------------------

Answer = Callable[[dict[str, str]], bytes]


def response(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status.encode(),
        len(body),
        body,
    )


def with_door(answer: Answer, use: Callable[[HttpCaller], Awaitable[None]]) -> None:
    """Runs `use` on a connection to a door that answers each request by `answer`, byte by byte."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
            except asyncio.IncompleteReadError:
                break
            assert head.startswith("POST /v3/kv/put HTTP/1.1\r\nHost: 127.0.0.1:")
            length = int(head.lower().partition("content-length: ")[2].split("\r\n")[0])
            reply = answer(json.loads(await reader.readexactly(length)))
            if not reply:
                break
            for at in range(len(reply)):
                writer.write(reply[at : at + 1])
                await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        caller = await HttpCaller.open(f"http://127.0.0.1:{port}")
        try:
            await use(caller)
        finally:
            caller.close()
            server.close()

    asyncio.run(run())


def test_puts_over_one_connection_arrive_in_etcds_words() -> None:
    seen: list[tuple[bytes, bytes]] = []

    def answer(request: dict[str, str]) -> bytes:
        seen.append((base64.b64decode(request["key"]), base64.b64decode(request["value"])))
        return response("200 OK", b'{"header":{"revision":"%d"}}' % len(seen))

    async def use(caller: HttpCaller) -> None:
        assert json.loads(await caller.put(b"k", b"\x00v")) == {"header": {"revision": "1"}}
        assert json.loads(await caller.put(b"k2", b"")) == {"header": {"revision": "2"}}

    with_door(answer, use)
    assert seen == [(b"k", b"\x00v"), (b"k2", b"")]


def test_another_status_is_an_error_and_the_connection_lives_on() -> None:
    async def use(caller: HttpCaller) -> None:
        for _ in range(2):
            with pytest.raises(HttpError, match="503"):
                await caller.put(b"k", b"v")

    with_door(lambda request: response("503 Service Unavailable", b"{}"), use)


def test_a_closed_connection_is_an_error_each_time() -> None:
    async def use(caller: HttpCaller) -> None:
        for _ in range(2):
            with pytest.raises(HttpError, match="closed"):
                await caller.put(b"k", b"v")

    with_door(lambda request: b"", use)


# The terminal's rough figures --------------------------------------------------------------------


@pytest.mark.parametrize("us", [1, 2, 3, 10, 999, 1_000, 123_456, 10**9])
def test_a_bucket_is_nine_percent_wide(us: int) -> None:
    middle = quantile_us({bucket_of(us): 1}, 0.5)
    assert middle is not None
    assert middle / us == pytest.approx(1, abs=0.095)


def test_quantiles_of_buckets() -> None:
    tally = Tally.of([100] * 98 + [10_000] * 2, {"ok": 100})
    assert quantile_us(tally.buckets, 0.5) == pytest.approx(100, rel=0.1)
    assert quantile_us(tally.buckets, 0.99) == pytest.approx(10_000, rel=0.1)
    assert quantile_us({}, 0.5) is None


def test_tallies_add_up() -> None:
    one, two = Tally.of([100], {"ok": 1}), Tally.of([100, 50], {"ok": 2, "timeout": 3})
    one.include(two.outcomes, two.buckets)
    assert one.ok == 3
    assert one.others == "3 timeout"
    assert sum(one.buckets.values()) == 3

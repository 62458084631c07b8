"""The loop of puts and gets and its HTTP client, against a keyspace and a door of their own."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bench import calls
from bench.calls import Caller, CallPlace, HttpCaller, HttpError, Mix, call_rows
from bench.live import Tally, bucket_of, quantile_us
from bench.schema import Row
from raftkv.errors import Overloaded, ReadTimeout

PLACE = CallPlace("run", "3", "c1", lambda: "leader")
PUTS = Mix("puts", 1, bytes(64), calls_max=300)
LONG_S = 60.0
"""Longer than any of these loads: they end by the number of calls, on a busy machine too."""


@pytest.fixture(autouse=True)
def without_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "WARMUP_SHARE", 0.0)


class Keyspace:
    """Answers a turn later, and counts."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.put_keys: list[bytes] = []
        self.got_keys: list[bytes] = []
        self.in_flight = 0
        self.in_flight_max = 0

    async def _answer(self) -> None:
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        await asyncio.sleep(self.delay_s)
        self.in_flight -= 1

    async def put(self, key: bytes, value: bytes) -> None:
        assert len(value) == 64
        self.put_keys.append(key)
        await self._answer()

    async def get(self, key: bytes) -> None:
        self.got_keys.append(key)
        await self._answer()

    def callers(self, count: int) -> list[Caller]:
        return [Caller(self.put, self.get)] * count


def run(callers: list[Caller], mix: Mix, seconds: float = LONG_S) -> tuple[list[Row], Tally, float]:
    rows: list[Row] = []
    tally, elapsed_s = asyncio.run(call_rows(callers, mix, seconds, PLACE, rows.append))
    return rows, tally, elapsed_s


def test_every_put_is_a_row_of_its_phase() -> None:
    rows, tally, elapsed_s = run(Keyspace().callers(3), PUTS)
    assert elapsed_s < LONG_S
    assert tally.ok == len(rows) >= 300
    assert {(r.scenario, r.phase, r.registry, r.role, r.op, r.consistency) for r in rows} == {
        ("puts", "c3", "none", "leader", "put", None)
    }
    assert {row.client for row in rows} == {"p0", "p1", "p2"}


def test_gets_are_of_keys_that_are_there_and_say_what_they_asked_for() -> None:
    keyspace = Keyspace()
    rows, _, _ = run(keyspace.callers(2), Mix("gets", 0, bytes(64), "local", False, 300))
    assert {(row.op, row.consistency) for row in rows} == {("get", "local")}
    assert len(keyspace.put_keys) == calls.KEYS_PER_CALLER, "put before the load, not during it"
    assert set(keyspace.got_keys) <= set(keyspace.put_keys)


def test_a_mix_has_its_share_of_puts_from_every_caller() -> None:
    rows, _, _ = run(Keyspace().callers(4), Mix("mixed", 10, bytes(64), calls_max=400))
    found = Counter((row.client, row.op) for row in rows)
    for caller in range(4):
        puts, gets = found[f"p{caller}", "put"], found[f"p{caller}", "get"]
        assert puts > 0
        assert abs(gets - 9 * puts) <= 9
    assert {row.consistency for row in rows if row.op == "put"} == {None}


def test_no_more_calls_are_in_flight_than_asked() -> None:
    keyspace = Keyspace()
    run(keyspace.callers(5), PUTS)
    assert keyspace.in_flight_max == 5
    assert len({key.split(b"/")[1] for key in keyspace.put_keys}) == 5


def test_calls_that_never_wait_let_others_have_their_turn() -> None:
    """Else a node whose callers read locally would be late with its heartbeats."""
    turns = 0

    async def get(key: bytes) -> None:
        """At once."""

    async def heartbeats() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def both() -> None:
        beats = asyncio.ensure_future(heartbeats())
        rows: list[Row] = []
        turns_before_rows = 0

        def sink(row: Row) -> None:
            nonlocal turns_before_rows
            turns_before_rows = turns_before_rows or turns
            rows.append(row)

        mix = Mix("gets", 0, bytes(64), "local", False, 3200)
        await call_rows([Caller(Keyspace().put, get)], mix, LONG_S, PLACE, sink)
        beats.cancel()
        assert len(rows) == 3200
        # The 64 puts before the load give way too.
        assert turns_before_rows - 64 >= 3200 // calls.STEP_ASIDE_EVERY - 1

    asyncio.run(both())


def test_a_load_that_is_full_ends_early() -> None:
    mix = Mix("puts", 1, bytes(64), calls_max=50)
    rows, tally, elapsed_s = run(Keyspace().callers(4), mix)
    assert 50 <= len(rows) == tally.ok < 54
    assert elapsed_s < LONG_S


def test_a_load_lasts_as_long_as_it_was_asked_to() -> None:
    rows, _, elapsed_s = run(Keyspace().callers(2), PUTS, 0.02)
    assert elapsed_s >= 0.02 or len(rows) >= PUTS.calls_max


def test_a_stalled_cluster_still_leaves_a_row() -> None:
    rows, _, _ = run(Keyspace(delay_s=0.02).callers(2), PUTS, 0.001)
    assert len(rows) >= 1


@pytest.mark.parametrize(
    ("put_every", "error", "outcome"),
    [(1, Overloaded("full"), "overloaded"), (0, ReadTimeout("no quorum"), "error:read_timeout")],
)
def test_errors_are_rows_too(put_every: int, error: Exception, outcome: str) -> None:
    async def refuse(*_: Any) -> None:
        raise error

    put = refuse if put_every else Keyspace().put
    rows, tally, _ = run([Caller(put, refuse)], Mix("gets", put_every, bytes(64), calls_max=20))
    assert {row.outcome for row in rows} == {outcome}
    assert tally.ok == 0
    assert outcome in tally.others


# HTTP --------------------------------------------------------------------------------------------

Answer = Callable[[str, dict[str, Any]], bytes]


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
            assert head.startswith("POST /v3/kv/")
            assert " HTTP/1.1\r\nHost: 127.0.0.1:" in head
            length = int(head.lower().partition("content-length: ")[2].split("\r\n")[0])
            word = head.split(" ")[1].rpartition("/")[2]
            reply = answer(word, json.loads(await reader.readexactly(length)))
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

    def answer(word: str, request: dict[str, Any]) -> bytes:
        assert word == "put"
        seen.append((base64.b64decode(request["key"]), base64.b64decode(request["value"])))
        return response("200 OK", b'{"header":{"revision":"%d"}}' % len(seen))

    async def use(caller: HttpCaller) -> None:
        assert json.loads(await caller.put(b"k", b"\x00v")) == {"header": {"revision": "1"}}
        assert json.loads(await caller.put(b"k2", b"")) == {"header": {"revision": "2"}}

    with_door(answer, use)
    assert seen == [(b"k", b"\x00v"), (b"k2", b"")]


def test_gets_over_one_connection_say_whether_they_may_be_stale() -> None:
    seen: list[tuple[bytes, bool]] = []

    def answer(word: str, request: dict[str, Any]) -> bytes:
        assert word == "range"
        seen.append((base64.b64decode(request["key"]), request.get("serializable", False)))
        return response("200 OK", b"{}")

    async def use(caller: HttpCaller) -> None:
        assert await caller.get(b"k") == b"{}"
        assert await caller.get_local(b"k2") == b"{}"

    with_door(answer, use)
    assert seen == [(b"k", False), (b"k2", True)]


def test_another_status_is_an_error_and_the_connection_lives_on() -> None:
    async def use(caller: HttpCaller) -> None:
        for _ in range(2):
            with pytest.raises(HttpError, match="503"):
                await caller.put(b"k", b"v")

    with_door(lambda word, request: response("503 Service Unavailable", b"{}"), use)


def test_a_closed_connection_is_an_error_each_time() -> None:
    async def use(caller: HttpCaller) -> None:
        for _ in range(2):
            with pytest.raises(HttpError, match="closed"):
                await caller.put(b"k", b"v")

    with_door(lambda word, request: b"", use)


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

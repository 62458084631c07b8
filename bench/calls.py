"""Puts and gets in a closed loop: so many callers, each with one call outstanding, for so long.

The callers sit in the leader's process, in a follower's, in a replicant's, or in a process of their
own that speaks HTTP to one of these. The client for HTTP is the least that measures the door rather
than a library: one kept connection for each caller, requests built once but for key and length,
answers read by their Content-Length.

What the loop itself costs is part of every figure, so it does little: it notes six small values
for a call and makes the rows of the log from them when the load is over. Reads that need nobody
else (`local`, and `lease` while there is one) never wait, and a loop of them would keep the node
from its heartbeats: they step aside now and then, and the time of that is in their throughput.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import cast
from urllib.parse import urlsplit

import msgspec

from bench.clock import OsClock
from bench.live import Tally
from bench.scenarios import outcome_of
from bench.schema import Row
from raftkv.errors import RaftkvError

__all__ = ["CallPlace", "Caller", "HttpCaller", "HttpError", "Mix", "call_rows"]

KEYS_PER_CALLER = 64
"""A caller that puts writes its own keys in turn, so that the keyspace stays small. Gets are of the
first caller's keys, which are there before the load begins."""

WARMUP_SHARE = 0.1
"""Of the time, before the first row: connections are opened and code paths are warm then."""

ROWS_AT_ONCE = 1000
"""Made between two turns of the loop: a few milliseconds."""

STEP_ASIDE_EVERY = 32
"""Calls that did not wait, in a row: about 0.2 ms, far below a heartbeat interval."""


class Caller(msgspec.Struct, frozen=True):
    """One caller's way to the keyspace. A put returns once it is acknowledged."""

    put: Callable[[bytes, bytes], Awaitable[object]]
    get: Callable[[bytes], Awaitable[object]]


class Mix(msgspec.Struct, frozen=True):
    """What is called: every so many calls a put (1: puts only, 0: gets only); the rest are gets.

    `waits`: whether a get waits for anybody, as a linearizable one does. After `calls_max` calls
    the load ends early, because each of them is a row: local gets would be a million in seconds.
    """

    scenario: str
    put_every: int = 1
    value: bytes = b""
    consistency: str = "linearizable"
    waits: bool = True
    calls_max: int = 1_000_000


class CallPlace(msgspec.Struct, frozen=True):
    """The constant part of the rows, and where the caller sits at the moment."""

    run: str
    layout: str
    node: str
    role: Callable[[], str]


class _Call(msgspec.Struct, frozen=True, gc=False):
    """One call as it is noted: times of the monotonic clock."""

    caller: int
    is_put: bool
    began_ns: int
    duration_ns: int
    outcome: str
    role: str


async def call_rows(
    callers: Sequence[Caller],
    mix: Mix,
    seconds: float,
    place: CallPlace,
    sink: Callable[[Row], None],
) -> tuple[Tally, float]:
    """Runs one closed loop for each caller. Returns a tally and the seconds it took."""
    if mix.put_every != 1:
        for key in _keys(0):
            await callers[0].put(key, mix.value)
    clock = OsClock()
    offset_us = clock.wall_us() - time.perf_counter_ns() // 1000
    first = time.perf_counter_ns()
    opens = first + int(seconds * WARMUP_SHARE * 1e9)
    closes = opens + int(seconds * 1e9)
    calls: list[_Call] = []
    loops = (_loop(n, one, mix, opens, closes, place, calls) for n, one in enumerate(callers))
    await asyncio.gather(*loops)
    elapsed_s = (time.perf_counter_ns() - opens) / 1e9
    return await _logged(calls, f"c{len(callers)}", mix, offset_us, place, sink), elapsed_s


async def _logged(
    calls: Sequence[_Call],
    phase: str,
    mix: Mix,
    offset_us: int,
    place: CallPlace,
    sink: Callable[[Row], None],
) -> Tally:
    tally = Tally()
    for number, call in enumerate(calls):
        duration_us = call.duration_ns // 1000
        tally.outcomes[call.outcome] = tally.outcomes.get(call.outcome, 0) + 1
        tally.add_duration(duration_us)
        row = Row(
            place.run, place.layout, mix.scenario, phase, "none", place.node, call.role,
            "put" if call.is_put else "get", f"p{call.caller}", 1,
            call.began_ns // 1000 + offset_us, duration_us, call.outcome,
            consistency=None if call.is_put else mix.consistency,
        )  # fmt: skip
        sink(row)
        if number % ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)  # the node in this process has heartbeats to send
    return tally


async def _loop(
    number: int,
    caller: Caller,
    mix: Mix,
    opens: int,
    closes: int,
    place: CallPlace,
    calls: list[_Call],
) -> None:
    clock, role, note = time.perf_counter_ns, place.role, calls.append
    put, get, every, value = caller.put, caller.get, mix.put_every, mix.value
    puts_to, gets_from = _keys(number), _keys(0)
    # Callers that mix begin at different places, else all of them put in the same moment.
    turn = number
    # On a stalled disk the first caller goes on until there is a row: a load is never silent.
    while (began := clock()) < closes or (number == 0 and not calls):
        is_put = every != 0 and turn % every == 0
        key = turn % KEYS_PER_CALLER
        turn += 1
        outcome = "ok"
        try:
            if is_put:
                await put(puts_to[key], value)
            else:
                await get(gets_from[key])
        except RaftkvError as error:
            outcome = outcome_of(error)
            await asyncio.sleep(0)  # an error that comes at once must not hold up the loop
        if began >= opens:
            note(_Call(number, is_put, began, clock() - began, outcome, role()))
            if len(calls) >= mix.calls_max:
                return
        if not mix.waits and turn % STEP_ASIDE_EVERY == 0:
            await asyncio.sleep(0)


def _keys(caller: int) -> list[bytes]:
    return [f"bench/p{caller}/{n}".encode() for n in range(KEYS_PER_CALLER)]


class HttpError(RaftkvError):
    """The door answered with another status than 200, or closed the connection."""

    code = "http"


class HttpCaller(asyncio.Protocol):
    """One kept connection to the door, one request at a time."""

    def __init__(self, host: str) -> None:
        self._heads = {
            word: (
                f"POST /v3/kv/{word} HTTP/1.1\r\nHost: {host}\r\n"
                "Content-Type: application/json\r\nContent-Length: "
            ).encode()
            for word in ("put", "range")
        }
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._buffer = b""

    @staticmethod
    async def open(endpoint: str) -> HttpCaller:
        """Connects to `http://host:port`."""
        address = urlsplit(endpoint)
        assert address.hostname is not None
        assert address.port is not None
        _, caller = await asyncio.get_running_loop().create_connection(
            lambda: HttpCaller(address.netloc), address.hostname, address.port
        )
        return caller

    async def put(self, key: bytes, value: bytes) -> bytes:
        """One put in etcd's JSON words. Returns the answer's body; raises HttpError."""
        pair = (base64.b64encode(key), base64.b64encode(value))
        return await self._post("put", b'{"key":"%b","value":"%b"}' % pair)

    async def get(self, key: bytes) -> bytes:
        """One linearizable get in etcd's words, as `put`."""
        return await self._post("range", b'{"key":"%b"}' % base64.b64encode(key))

    async def get_local(self, key: bytes) -> bytes:
        """One get from the copy of the node that answers, as `put`."""
        return await self._post(
            "range", b'{"key":"%b","serializable":true}' % base64.b64encode(key)
        )

    async def _post(self, word: str, body: bytes) -> bytes:
        if self._transport is None:
            raise HttpError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(b"%b%d\r\n\r\n%b" % (self._heads[word], len(body), body))
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports have the methods of asyncio.Transport, not its name.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(HttpError("the door closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        status, length = _status_and_length(head)
        if len(rest) < length or self._answer is None or self._answer.done():
            return
        self._buffer = rest[length:]
        if status == 200:
            self._answer.set_result(rest[:length])
        else:
            self._answer.set_exception(HttpError(f"HTTP {status}: {rest[:length]!r}"))


def _status_and_length(head: bytes) -> tuple[int, int]:
    lines = head.split(b"\r\n")
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(lines[0].split(b" ", 2)[1]), int(value)
    raise HttpError("an answer without Content-Length")

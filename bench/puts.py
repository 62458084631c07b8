"""Puts in a closed loop: so many callers, each with one put outstanding, for so long.

The callers sit in the leader's process, in a follower's, in a replicant's, or in a process of their
own that speaks HTTP to the leader. The client for HTTP is the least that measures the door rather
than a library: one kept connection for each caller, requests built once but for key and length,
answers read by their Content-Length.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from typing import cast
from urllib.parse import urlsplit

import msgspec

from bench.clock import OsClock
from bench.live import Tally
from bench.scenarios import outcome_of
from bench.schema import Row
from raftkv.errors import RaftkvError

__all__ = ["HttpCaller", "HttpError", "Put", "PutPlace", "put_rows"]

Put = Callable[[bytes, bytes], Awaitable[object]]
"""Stores a value under a key; returns once it is acknowledged."""

KEYS_PER_CALLER = 64
"""Every caller writes its own keys in turn, so that the keyspace stays small."""

WARMUP_SHARE = 0.1
"""Of the time, before the first row: connections are opened and code paths are warm then."""


class PutPlace(msgspec.Struct, frozen=True):
    """The constant part of the rows, and where the caller sits at the moment."""

    run: str
    layout: str
    node: str
    role: Callable[[], str]


async def put_rows(
    puts: list[Put], seconds: float, value: bytes, place: PutPlace, sink: Callable[[Row], None]
) -> tuple[Tally, float]:
    """Runs one closed loop for each of `puts`. Returns a tally and the seconds it took."""
    clock = OsClock()
    outcomes: dict[str, int] = {}
    durations_us: list[int] = []
    offset_us = clock.wall_us() - time.perf_counter_ns() // 1000
    phase = f"c{len(puts)}"
    first = time.perf_counter_ns()
    opens = first + int(seconds * WARMUP_SHARE * 1e9)
    closes = opens + int(seconds * 1e9)

    async def caller(number: int, put: Put) -> None:
        client = f"p{number}"
        keys = [f"bench/{client}/{n}".encode() for n in range(KEYS_PER_CALLER)]
        turn = 0
        # On a stalled disk the first caller goes on until there is a row: a load is never silent.
        while (began := time.perf_counter_ns()) < closes or (number == 0 and not durations_us):
            try:
                await put(keys[turn], value)
                outcome = "ok"
            except RaftkvError as error:
                outcome = outcome_of(error)
                await asyncio.sleep(0)  # an error that comes at once must not hold up the loop
            turn = (turn + 1) % KEYS_PER_CALLER
            if began < opens:
                continue
            duration_us = (time.perf_counter_ns() - began) // 1000
            start_us = began // 1000 + offset_us
            row = Row(
                place.run, place.layout, "puts", phase, "none", place.node, place.role(),
                "put", client, 1, start_us, duration_us, outcome,
            )  # fmt: skip
            sink(row)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            durations_us.append(duration_us)

    await asyncio.gather(*(caller(number, put) for number, put in enumerate(puts)))
    return Tally.of(durations_us, outcomes), (time.perf_counter_ns() - opens) / 1e9


class HttpError(RaftkvError):
    """The door answered with another status than 200, or closed the connection."""

    code = "http"


class HttpCaller(asyncio.Protocol):
    """One kept connection to the door, one request at a time."""

    def __init__(self, host: str) -> None:
        self._head = (
            f"POST /v3/kv/put HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            "Content-Length: "
        ).encode()
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
        if self._transport is None:
            raise HttpError("the connection is closed")
        body = b'{"key":"%b","value":"%b"}' % (base64.b64encode(key), base64.b64encode(value))
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
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

"""Traffic of `python -m bench abuse` against the HTTP API of one node, in a process of its own.

    python -m bench.abuse_traffic JSON      one `Traffic`; prints one `Made` when the time is over

Each kind is what a hostile or broken client may send without any right but to connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

import msgspec
import uvloop

__all__ = ["KINDS", "Made", "Traffic", "run"]

#: Nearly the largest body that a node takes by default.
BODY_BYTES: Final = 3 * 1024 * 1024 - 100
READ_BYTES: Final = 256 * 1024
# What has begun gets this much longer, and is cut then.
GRACE_S: Final = 1.0
# A connection that the node does not cut is given up after it.
HELD_S: Final = 5.0


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """`share` of the connections that a kind has by default: less on a small machine."""

    kind: str
    endpoint: str
    seconds: float
    share: float = 1.0


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were sent, and answers by their status; 0: cut without one."""

    kind: str
    requests: int
    statuses: dict[str, int]


class _Run:
    """One kind of traffic while it lasts."""

    def __init__(self, given: Traffic) -> None:
        parts = urlsplit(given.endpoint)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = (parts.hostname, parts.port)
        self._host = parts.netloc
        self._ends = time.monotonic() + given.seconds
        self.requests = 0
        self.statuses: dict[str, int] = {}

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self._ends

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(*self._address, limit=READ_BYTES)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def head(self, method: str, path: str, size: int, *lines: str) -> bytes:
        more = "".join(f"{line}\r\n" for line in lines)
        return (
            f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-length: {size}\r\n"
            f"{more}\r\n"
        ).encode()

    async def answer(self, reader: asyncio.StreamReader) -> None:
        """Read one answer with an announced length, and count its status."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.count(head[9:12].decode("ascii", "replace"))
        size = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        while size:
            size -= len(await reader.readexactly(min(size, READ_BYTES)))

    def count(self, status: str) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1

    async def ask(self, bodies: list[tuple[str, str, bytes]]) -> None:
        """One connection: these requests in turns, for as long as it goes on."""
        async with self.connection() as (reader, writer):
            while self.goes_on:
                for method, path, body in bodies:
                    self.requests += 1
                    writer.write(self.head(method, path, len(body)) + body)
                    await writer.drain()
                    await self.answer(reader)


async def _scrapes(run: _Run, number: int) -> None:
    await run.ask([("GET", "/metrics", b"")])


async def _json(run: _Run, number: int) -> None:
    deep = b'{"a":' + b"[" * BODY_BYTES
    many = b'{"zz":1,"compare":[' + b"{}," * (BODY_BYTES // 3 - 10) + b"{}]}"
    await run.ask([("POST", "/v3/kv/range", deep), ("POST", "/v3/kv/txn", many)])


async def _bodies(run: _Run, number: int) -> None:
    """All of a large body but its end, which the node waits for."""
    async with run.connection() as (reader, writer):
        run.requests += 1
        sent = b'{"key":"' + b"A" * (BODY_BYTES - 8)
        writer.write(run.head("POST", "/v3/kv/put", BODY_BYTES + 1) + sent)
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HELD_S):
                await run.answer(reader)


async def _heads(run: _Run, number: int) -> None:
    """Header lines without an end."""
    async with run.connection() as (reader, writer):
        run.requests += 1
        writer.write(b"GET / HTTP/1.1\r\n")
        while run.goes_on and not reader.at_eof():
            writer.write(b"x-filler: " + b"a" * 1000 + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)


async def _sessions(run: _Run, number: int) -> None:
    await run.ask([("POST", "/v1/sessions", b"")])


async def _guesses(run: _Run, number: int) -> None:
    """Consumers and queue sessions of others, by their numbers."""
    base = "/v1/subscriptions/consumers"
    asked = [
        ("POST", f"{base}/{n}{secret}/receive", b"{}")
        for n in range(1, 20)
        for secret in ("", f"-{0:016x}")
    ]
    asked += [("DELETE", f"/v1/txqueue/sessions/{n}", b"") for n in range(1, 20)]
    await run.ask(asked)


async def _reports(run: _Run, number: int) -> None:
    """What another region is said to have."""
    body = msgspec.json.encode({"region": "bb", "topics": {"tx": [["aa", 10**9]]}})
    await run.ask([("POST", "/v1/subscriptions/report", body)])


async def _ranges(run: _Run, number: int) -> None:
    """Everything, by many at once."""
    body = b'{"key":"AA==","range_end":"AA=="}'
    await run.ask([("POST", "/v3/kv/range", body)])


async def _streams(run: _Run, number: int) -> None:
    """Watches whose requests are large, and whose answers are not read."""
    async with run.connection() as (_, writer):
        run.requests += 1
        head = f"POST /v3/watch HTTP/1.1\r\nhost: {run._host}\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        one = b'{"create_request":{"key":"%b"}}' % (b"A" * 80_000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HELD_S):
                while run.goes_on:
                    writer.write(b"%x\r\n%b\r\n" % (len(one), one))
                    await writer.drain()


#: By name: one connection's work, which is begun again as long as it goes on, and how many at once.
KINDS: Final[dict[str, tuple[Callable[[_Run, int], Awaitable[None]], int]]] = {
    "scrapes": (_scrapes, 500),
    "json": (_json, 8),
    "bodies": (_bodies, 200),
    "heads": (_heads, 200),
    "sessions": (_sessions, 40),
    "guesses": (_guesses, 40),
    "reports": (_reports, 40),
    "ranges": (_ranges, 200),
    "streams": (_streams, 100),
}


async def run(given: Traffic) -> Made:
    """Send it until the time is over."""
    work, connections = KINDS[given.kind]
    state = _Run(given)

    async def go(number: int) -> None:
        while state.goes_on:
            try:
                await work(state, number)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                state.count("0")
                await asyncio.sleep(0.01)

    count = max(1, round(connections * given.share))
    tasks = [asyncio.ensure_future(go(number)) for number in range(count)]
    await asyncio.wait(tasks, timeout=given.seconds + GRACE_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return Made(
        kind=given.kind, requests=state.requests, statuses=dict(sorted(state.statuses.items()))
    )


def main() -> None:
    given = msgspec.json.decode(sys.argv[1], type=Traffic)
    with contextlib.suppress(KeyboardInterrupt):
        print(msgspec.json.encode(uvloop.run(run(given))).decode(), flush=True)


if __name__ == "__main__":
    main()

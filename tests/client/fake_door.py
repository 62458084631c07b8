"""A door that answers as a test tells it to: real sockets, no cluster.

`answer(request)` gives what happens to each request: a `Say` with a status and a JSON body,
`HANG_UP` (the connection is closed without an answer), `SILENCE` (nothing ever comes), or a
`Lines` of a stream that stays open until `end` is called.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, NamedTuple, Self

import httptools

from tests.clocks import LONG_S, skip

HANG_UP = "hang up"
SILENCE = "silence"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine as a test. What hangs in it is ended by pytest's own time-out."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def out_of_time(
    call: Awaitable[Any], seen: Callable[[], object], after_s: float = LONG_S
) -> Any:
    """The result of a call whose time-out of `after_s` passes as soon as `seen()` is true."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)  # it begins, and with it its time
    await until(lambda: task.done() or seen())
    skip(after_s)
    return await task


async def until(condition: Callable[[], object], timeout_s: float = LONG_S) -> None:
    """Poll until `condition` is true."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


class Asked(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any

    @property
    def numbers(self) -> tuple[str, int, int]:
        """Session, number and floor of a write."""
        found = self.headers
        return (
            found["raftkv-session"],
            int(found["raftkv-seq"]),
            int(found["raftkv-floor"]),
        )


class Say(NamedTuple):
    """An ordinary answer."""

    body: Any
    status: int = 200
    close: bool = False
    # It says that it is the verdict of the number that it was asked under.
    numbered: bool = False


def error(reason: str, status: int, **fields: Any) -> Say:
    """An error body of the door."""
    return Say({"error": reason, "code": 14, "reason": reason, **fields}, status)


class Before(NamedTuple):
    """Raw bytes, and then an ordinary answer."""

    raw: bytes
    answer: Say


class Lines:
    """A stream: JSON documents or raw bytes, then nothing until it is ended."""

    def __init__(self, *lines: Any) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for line in lines:
            self.add(line)

    def add(self, line: Any) -> None:
        data = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
        self._queue.put_nowait(data)

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def next(self) -> bytes | None:
        return await self._queue.get()


class FakeDoor:
    """See the top of the file."""

    def __init__(
        self, answer: Callable[[Asked], Any], *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.answer = answer
        self._host = host
        self.asked: list[Asked] = []
        self.connections = 0
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while (asked := await _request(reader)) is not None:
                self.asked.append(asked)
                if not await self._answer(self.answer(asked), writer):
                    return
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, said: Any, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        if said == HANG_UP:
            return False
        if said == SILENCE:
            await asyncio.Event().wait()
        if isinstance(said, Lines):
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while (line := await said.next()) is not None:
                writer.write(b"%x\r\n%b\r\n" % (len(line), line))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            return True
        if isinstance(said, Before):
            writer.write(said.raw)
            said = said.answer
        assert isinstance(said, Say)
        body = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
        ending = b"connection: close\r\n" if said.close else b""
        ending += b"Raftkv-Seq: 1\r\n" if said.numbered else b""
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n%b\r\n" % (said.status, len(body), ending)
        )
        writer.write(body)
        await writer.drain()
        return not said.close


class _Parsed:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.url = b""
        self.body = b""
        self.done = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.done = True


async def _request(reader: asyncio.StreamReader) -> Asked | None:
    parsed = _Parsed()
    parser = httptools.HttpRequestParser(parsed)
    while not parsed.done:
        data = await reader.read(65536)
        if not data:
            return None
        parser.feed_data(data)
    body = json.loads(parsed.body) if parsed.body else None
    return Asked(parser.get_method().decode(), parsed.url.decode(), parsed.headers, body)

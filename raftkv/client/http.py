"""HTTP/1.1 to one endpoint: pooled connections, one request at a time on each, streams of lines.

The parser is httptools', the one that the door uses too; what is written here is only what a
client needs around it. It was chosen by measuring. Processor time of a put with its headers, alone
and with 32 at once: httptools 34 to 41 and 17 to 20 us, aiohttp 3.14 138 to 166 and 81 to 104 us
(and 13 MB of disk), httpcore 1.0 560 and 1,220 us, httpx 0.28 780 and 1,660 us. The whole call of
`raftkv.Client` takes 57 and 29 us.

Rules of this file
1. Two failures, because a caller may do different things after them: `Unsent` says that not one
   byte of the request has left, `Broken` that the other side may have got all of it.
2. A connection that was not read to the end of its answer is closed, never pooled: whoever took
   it next would read somebody else's answer.
3. What arrives is counted before it is kept: an answer, and a line of a stream, has a limit.
4. A stream that nobody reads stops reading its socket, so that the other side feels it.
5. No policy: which endpoint, how long, and whether again is decided in calls.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import urllib.parse
from collections import deque
from typing import Any, Final, NamedTuple, cast

import httptools

from raftkv.errors import ConfigError

__all__ = [
    "ANSWER_BYTES_MAX",
    "Answer",
    "Broken",
    "Ended",
    "Excess",
    "HttpEndpoint",
    "LineStream",
    "Unsent",
]

# One answer, and one line of a stream: a range of a million small keys fits; larger ones are read
# in pages.
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
# Idle connections kept per endpoint; more are opened when calls run at once, and closed after.
IDLE_MAX: Final = 64
# Below the door's own 120 s, so that it is this side that closes an idle connection.
IDLE_S_MAX: Final = 60.0
# A stream stops reading its socket when so much of it waits to be taken.
STREAM_BYTES_MAX: Final = 1024 * 1024


class Unsent(Exception):
    """No connection could be had: nothing of the request was sent."""


class Broken(Exception):
    """The connection ended before the answer did; the request may have been carried out."""


class Ended(Broken):
    """The other side has ended a stream as it should be."""


class Excess(Broken):
    """The answer is larger than this client takes."""


class Answer(NamedTuple):
    """A complete answer. `numbered`: it says that it is the verdict of the number it was sent."""

    status: int
    body: bytes
    numbered: bool = False


#: Of the head of an answer, with words before it, and of what stands beside a body: chunk sizes and
#: trailers. Nodes send a few hundred; one read of the loop may exceed it once.
HEAD_BYTES_MAX: Final = 64 * 1024


class _Connection(asyncio.Protocol):
    """One TCP or TLS connection. `waiter` ends with the answer, or at a stream's headers."""

    def __init__(self, answer_bytes_max: int) -> None:
        self._bytes_max = answer_bytes_max
        self._parser: Any = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self.waiter: asyncio.Future[Answer] | None = None
        self.stream: LineStream | None = None
        self.reusable = False
        self.idle_since = 0.0
        self.closed = False
        # Whom it is with, of the addresses that a name may have.
        self.address = ""
        self._parts: list[bytes] = []
        self._size = 0
        self._numbered = False
        # Since the request, or the last piece of a body: what is none of it.
        self._beside_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def send(self, head: bytes, body: bytes, waiter: asyncio.Future[Answer]) -> None:
        assert self.transport is not None
        self.waiter, self.reusable = waiter, False
        self._parts, self._size, self._numbered = [], 0, False
        self._beside_bytes = 0
        self.transport.write(head + body)

    def data_received(self, data: bytes) -> None:
        if self.waiter is None and self.stream is None:
            # Nobody has asked: it must not become the answer to the next request.
            self.close()
            return
        self._beside_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"the answer is not HTTP: {error}")
            return
        if self._beside_bytes > HEAD_BYTES_MAX:
            text = f"the head of the answer exceeds {HEAD_BYTES_MAX} bytes: is this a node?"
            self._fail(text, Excess)

    def on_message_begin(self) -> None:
        if self.waiter is None:
            self.close()  # it stands behind an answer, and nobody has asked for it

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"raftkv-seq":
            self._numbered = True

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return  # a word before the answer
        stream, waiter = self.stream, self.waiter
        if stream is not None and waiter is not None and self._parser.get_status_code() == 200:
            # The lines follow; an error is an ordinary answer.
            self.waiter = None
            stream.flowing = True
            if not waiter.done():
                waiter.set_result(Answer(200, b""))

    def on_body(self, body: bytes) -> None:
        self._beside_bytes = 0
        if self.stream is not None and self.stream.flowing:
            self.stream.feed(body)
            return
        self._size += len(body)
        if self._size > self._bytes_max:
            text = f"the answer exceeds {self._bytes_max} bytes: ask for less, or in pages"
            self._fail(text, Excess)
            return
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return
        waiter, self.waiter = self.waiter, None
        self.reusable = bool(self._parser.should_keep_alive())
        if self.stream is not None and self.stream.flowing:
            self.stream.end("the stream was ended by the node", Ended)
            self.close()
        elif waiter is not None and not waiter.done():
            status, body = self._parser.get_status_code(), b"".join(self._parts)
            waiter.set_result(Answer(status, body, self._numbered))
        self._parts = []

    def eof_received(self) -> None:
        self._fail("the node closed the connection")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(str(error) if error else "the connection was closed")

    def _fail(self, reason: str, kind: type[Broken] = Broken) -> None:
        self.close()
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(kind(reason))
        if self.stream is not None:
            self.stream.end(reason)

    def close(self) -> None:
        """Idempotent."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()


class LineStream:
    """The lines of an answer that does not end by itself: `await next()`, then `close()`.

    `next` may be cancelled: a line that has arrived is then given by the next call.
    """

    def __init__(self, connection: _Connection, line_bytes_max: int) -> None:
        self._connection = connection
        self._line_bytes_max = line_bytes_max
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._arrived = asyncio.Event()
        self._ended: str | None = None
        self._kind: type[Broken] = Broken
        self._paused = False
        self.heard_at = asyncio.get_running_loop().time()
        self.flowing = False

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        self.heard_at = asyncio.get_running_loop().time()
        first, *others = data.split(b"\n")
        self._rest.append(first)
        self._rest_size += len(first)
        for piece in others:
            line = b"".join(self._rest)
            if line.strip():
                self._lines.append(line)
                self._size += len(line)
            self._rest, self._rest_size = [piece], len(piece)
        if self._rest_size > self._line_bytes_max:
            self.end(f"a line of the stream exceeds {self._line_bytes_max} bytes", Excess)
            self._connection.close()
            return
        if self._lines:
            self._arrived.set()
        if self._size > STREAM_BYTES_MAX and not self._paused:
            self._paused = True
            assert self._connection.transport is not None
            self._connection.transport.pause_reading()

    def end(self, reason: str, kind: type[Broken] = Broken) -> None:
        """No more will come; what has arrived is still given, with a last line that has no end if
        the other side says that all was sent."""
        if self._ended is None:
            rest = b"".join(self._rest)
            if issubclass(kind, Ended) and rest.strip():
                self._lines.append(rest)
                self._size += len(rest)
            self._ended, self._kind = reason, kind
            self._arrived.set()

    async def next(self) -> bytes:
        """The next line. Raises Broken once there are no more."""
        while not self._lines:
            if self._ended is not None:
                raise self._kind(self._ended)
            self._arrived.clear()
            await self._arrived.wait()
        line = self._lines.popleft()
        self._size -= len(line)
        if self._paused and self._size <= STREAM_BYTES_MAX // 2:
            self._paused = False
            transport = self._connection.transport
            if transport is not None and not transport.is_closing():
                self.heard_at = asyncio.get_running_loop().time()
                transport.resume_reading()
        return line

    def close(self) -> None:
        """Hang up. Idempotent. What has arrived and was not taken is dropped."""
        self._connection.close()
        self.end("the stream was closed")
        self._lines.clear()
        self._rest = []


class HttpEndpoint:
    """Requests to one `http://host:port` or `https://host:port`. Raises ConfigError for another."""

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext | None = None,
        *,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        self.url, self._host, self._port, secure = split_endpoint(url)
        self._tls = (tls or ssl.create_default_context()) if secure else None
        self._bytes_max = answer_bytes_max
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._host_line = f" HTTP/1.1\r\nhost: {host}:{self._port}\r\n".encode("ascii")
        self._idle: list[_Connection] = []  # the one used last is taken first
        self._busy: set[_Connection] = set()
        self._closed = False
        # Of the addresses that the host may have: the one that has answered, one that has not, or
        # that could not do what it was asked.
        self._address = self._shunned = ""
        self._several = False
        self._is_address = _is_address(self._host)
        self._looking_up: asyncio.Future[Any] | None = None

    async def request(
        self,
        method: bytes,
        target: bytes,
        body: bytes = b"",
        headers: bytes = b"",
        *,
        deadline: float,
        connect_by: float | None = None,
    ) -> Answer:
        """One request; `headers` are finished lines, `deadline` is on the loop's clock.

        `connect_by`: a connection must be there by then. Raises Unsent or Broken, also when the
        deadline passes.
        """
        connection = await self._take(deadline if connect_by is None else connect_by)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Answer] = loop.create_future()
        alarm = loop.call_at(deadline, self._late, waiter)
        self._busy.add(connection)
        try:
            connection.send(self._head(method, target, body, headers), body, waiter)
            answer = await waiter
        except BaseException as error:
            connection.close()
            if isinstance(error, Broken):
                self._broke(connection)
            raise
        finally:
            alarm.cancel()
            self._busy.discard(connection)
            self._give_back(connection)
        self._answered(connection, answer.status)
        return answer

    async def open_stream(
        self,
        target: bytes,
        body: bytes,
        headers: bytes = b"",
        *,
        deadline: float,
        connect_by: float | None = None,
        method: bytes = b"POST",
    ) -> tuple[Answer, LineStream]:
        """One request, and the lines that are answered. Status other than 200: an ordinary answer,
        and a stream without lines. The deadline is for its beginning. Raises Unsent or Broken."""
        connection = await self._take(deadline if connect_by is None else connect_by)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Answer] = loop.create_future()
        alarm = loop.call_at(deadline, self._late, waiter)
        stream = connection.stream = LineStream(connection, self._bytes_max)
        self._busy.add(connection)
        try:
            connection.send(self._head(method, target, body, headers), body, waiter)
            answer = await waiter
        except BaseException as error:
            stream.close()
            if isinstance(error, Broken):
                self._broke(connection)
            raise
        finally:
            alarm.cancel()
            self._busy = {each for each in self._busy if not each.closed}
        self._answered(connection, answer.status)
        if not stream.flowing:
            stream.close()
        return answer, stream

    def _head(self, method: bytes, target: bytes, body: bytes, headers: bytes) -> bytes:
        line = b"%b %b%b" % (method, target, self._host_line)
        if not body:
            return b"%b%b\r\n" % (line, headers)
        kind = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        return b"%b%b%b\r\n" % (line, kind, headers)

    def _late(self, waiter: asyncio.Future[Answer]) -> None:
        if not waiter.done():
            waiter.set_exception(Broken(f"{self.url} did not answer in time"))

    async def _take(self, deadline: float) -> _Connection:
        self._check_open()
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and loop.time() - connection.idle_since < IDLE_S_MAX:
                return connection
            connection.close()
        try:
            made = await self._connect(deadline)
        except TimeoutError:
            raise Unsent(f"{self.url} cannot be reached: no connection in time") from None
        except (OSError, UnicodeError) as error:
            raise Unsent(f"{self.url} cannot be reached: {_reason(error)}") from None
        try:
            self._check_open()
        except Unsent:
            made.close()  # while the connection was being made
            raise
        return made

    async def _connect(self, deadline: float) -> _Connection:
        """To an address of the host that takes it; the one that has answered last is asked first.

        Each gets a share of the time: behind a dead one there may be one that lives.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(deadline):
            addresses = await self._addresses()
        self._several = len(addresses) > 1
        addresses.sort(key=lambda each: (each == self._shunned, each != self._address))
        name = self._host if self._tls is not None else None
        failure: OSError = OSError(f"there is no address of {self._host}")
        for place, address in enumerate(addresses):
            now = loop.time()
            share_s = (deadline - now) / (len(addresses) - place)
            try:
                async with asyncio.timeout_at(now + share_s):
                    _, made = await loop.create_connection(
                        lambda: _Connection(self._bytes_max),
                        address,
                        self._port,
                        ssl=self._tls,
                        server_hostname=name,
                    )
            except OSError as error:  # TimeoutError is one
                failure = error
            else:
                made.address = address
                return made
        raise failure

    async def _addresses(self) -> list[str]:
        """Of the host, as the operating system gives them.

        One look-up at a time for each name: one that hangs keeps a thread, however soon its callers
        give up, and a name server that is gone must not use up those for the other names.
        """
        if self._is_address:
            return [self._host]
        if self._looking_up is None or self._looking_up.done():
            loop = asyncio.get_running_loop()
            self._looking_up = asyncio.ensure_future(
                loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            )
        found = await asyncio.shield(self._looking_up)
        return list(dict.fromkeys(str(info[4][0]) for info in found))

    def _answered(self, connection: _Connection, status: int) -> None:
        self._address = connection.address
        if self._several and _is_unable(status):
            self._shunned = connection.address
            self._close_idle()
        elif self._shunned == connection.address:
            self._shunned = ""

    def _broke(self, connection: _Connection) -> None:
        """Another address of the host may do better, also if this one takes connections."""
        self._shunned = connection.address
        self._close_idle()

    def _close_idle(self) -> None:
        """What has ended one connection may have ended those that are idle: a node that was started
        anew, a firewall that forgot them. Each would cost a try, as would each to a node that is
        cut off from the others."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise Unsent("the client is closed")

    def _give_back(self, connection: _Connection) -> None:
        if not connection.reusable or self._closed or len(self._idle) >= IDLE_MAX:
            connection.close()
        if not connection.closed:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)

    def close(self) -> None:
        """Close all connections; requests under way end as Broken."""
        self._closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()
        self._busy.clear()


def split_endpoint(url: str) -> tuple[str, str, int, bool]:
    """(the endpoint without a trailing slash, host, port, whether TLS). Raises ConfigError."""
    parts = urllib.parse.urlsplit(url)
    with contextlib.suppress(ValueError):
        host, port = parts.hostname, parts.port
        if host and not host.isascii():
            host = None  # write it as it stands in the DNS: xn--...
        plain = parts.path in ("", "/") and not parts.query and parts.username is None
        if parts.scheme in ("http", "https") and host and port != 0 and plain:
            secure = parts.scheme == "https"
            return url.rstrip("/"), host, port or (443 if secure else 80), secure
    raise ConfigError(f"{url!r} is not an endpoint: write http://HOST:PORT or https://HOST:PORT")


def _is_unable(status: int) -> bool:
    """Whether this node, or a proxy before it, cannot do now what another one may: it is cut off
    from the others, say, or stops. 501 is the same everywhere."""
    return status >= 500 and status != 501


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__

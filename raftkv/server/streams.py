"""The streaming words: a stream of JSON requests in, a stream of JSON answers out.

The form is grpc-gateway's: each answer is `{"result": ...}` on a line of its own, in a body without
an announced length. An error before the first answer is an ordinary answer with its status; one
that comes later is a last line, `{"error": {"grpc_code", "http_code", "message", "http_status"}}`.

A client may go at any time. That is noticed by the message that says so, which comes behind the
body, so one task goes on receiving for as long as the stream lives; when the client has gone the
answers are closed, which frees what they hold. A client that is there and does not read stops the
answers where they are (`send` waits for the connection); after `SEND_TIMEOUT_S` of that its
connection is cut, because nothing else would ever end it.
"""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec

from raftkv.kv.work_budget import WorkBudget

from .answers import JSON_TYPE, RETRY_AFTER, BadRequest, Failure, failure_of, internal_failure
from .incoming import Received
from .json_stream import JsonStream
from .outgoing import Outgoing
from .work_units import REQUEST_UNITS, units_of

__all__ = ["SEND_TIMEOUT_S", "STREAM", "STREAM_REQUEST_BYTES_MAX", "serve_stream"]

_log = logging.getLogger("raftkv.server")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
#: From requests to answers, both JSON objects.
Stream = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]

#: Stands in the scope of a request whose answer is a stream: it may never end.
STREAM: Final = "raftkv.stream"
# One request of a stream: two keys of 64 KiB in base64 with room around them.
STREAM_REQUEST_BYTES_MAX: Final = 256 * 1024
# Requests that wait to be looked at; then no more are received.
REQUESTS_MAX: Final = 100
# A client that takes nothing for so long is gone or will never come back to it.
SEND_TIMEOUT_S: Final = 30.0
# When the door stops, a client gets this long to take the last lines.
STOP_TIMEOUT_S: Final = 1.0


class _Requests:
    """The requests of one stream, and the news that its client has gone.

    What is held of them is counted in `received`.
    """

    def __init__(self, receive: Receive, received: Received, budget: WorkBudget) -> None:
        self._receive = receive
        self._received = received
        self._budget = budget
        self._objects = JsonStream(STREAM_REQUEST_BYTES_MAX)
        self._queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(REQUESTS_MAX)
        # Bytes in the queue; set when there are fewer.
        self._queued_bytes = 0
        self._taken = asyncio.Event()

    async def run(self) -> None:
        """Receive until the client has gone."""
        ended = False
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            if ended:
                continue
            more_body = message["more_body"]
            try:
                self._received.add(len(message["body"]))
                for found in self._objects.feed(message.pop("body")):
                    await self._put(found)
                self._count()
            except Exception as error:
                ended = True
                await self._queue.put(error)
                continue
            if not more_body:
                ended = True
                if self._objects.pending:
                    await self._queue.put(BadRequest("the stream of requests ended inside one"))
                else:
                    await self._queue.put(None)

    async def _put(self, found: bytes) -> None:
        units = REQUEST_UNITS + units_of(len(found))
        await self._budget.room(units)
        self._budget.spend(units)
        while self._queued_bytes + len(found) > STREAM_REQUEST_BYTES_MAX:
            self._taken.clear()
            await self._taken.wait()
        self._queued_bytes += len(found)
        await self._queue.put(found)

    def _count(self) -> None:
        """What is held now: a request that has begun, and those in the queue."""
        self._received.set(self._objects.held_bytes + self._queued_bytes)

    async def all(self) -> AsyncGenerator[bytes]:
        """Each request; ends with the body. Raises BadRequest for what is none.

        A request counts until the next one is asked for: who takes it must let go of it by then.
        """
        while True:
            found = await self._queue.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                return
            yield found
            # It was held until now, and an idle stream must not keep its last one.
            self._queued_bytes -= len(found)
            del found
            self._taken.set()
            self._count()


async def serve_stream(
    stream: Stream,
    scope: Message,
    receive: Receive,
    send: Send,
    *,
    stopping: asyncio.Event,
    on_stop: Callable[[], None] | None = None,
    outgoing: Outgoing,
    received: Received,
    budget: WorkBudget,
) -> None:
    """Serve one streaming word until it ends, its client has gone, or the door is `stopping`.

    With `on_stop` the answers are told of that and end by themselves, within `STOP_TIMEOUT_S`.
    An answer that waits for its connection counts in `outgoing`. Requests that are not read yet are
    counted in `received`, and their number in each turn of the loop is bounded by `budget`.
    """
    loop = asyncio.get_running_loop()
    requests = _Requests(receive, received, budget)
    incoming = loop.create_task(requests.run(), name="stream requests")
    answering = loop.create_task(
        _answer(stream(requests.all()), scope, send, outgoing), name="stream answers"
    )
    stopped = loop.create_task(_wait(stopping), name="stream end")
    tasks = (incoming, answering, stopped)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done() and on_stop is not None:
            on_stop()
            await asyncio.wait(
                (incoming, answering),
                timeout=STOP_TIMEOUT_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not answering.cancelled() and (error := answering.exception()) is not None:
        raise error


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _answer(
    answers: AsyncIterator[bytes],
    scope: Message,
    send: Send,
    outgoing: Outgoing,
) -> None:
    outlet = _Outlet(scope, send)
    try:
        async for answer in answers:
            # While it waits until the client has taken the one before it, it is held twice here.
            held = 2 * len(answer)
            outgoing.moved(held)
            try:
                await outlet.line(b'{"result":%b}\n' % answer)
            finally:
                outgoing.moved(-held)
            del answer  # an idle stream must not keep its last one
    except Exception as error:
        if isinstance(error, TimeoutError) and outlet.cut:
            return
        failure = failure_of(error)
        if failure is None:
            _log.error("unexpected error in %s", scope["path"], exc_info=error)
            failure = internal_failure(error)
        await outlet.fail(failure)
    else:
        await outlet.end()
    finally:
        close = getattr(answers, "aclose", None)
        if close is not None:
            await close()


class _Outlet:
    """The answer's side of the connection."""

    def __init__(self, scope: Message, send: Send) -> None:
        self._scope = scope
        self._raw_send = send
        self._begun = False
        self.cut = False

    async def line(self, line: bytes) -> None:
        await self._begin()
        await self._send({"type": "http.response.body", "body": line, "more_body": True})

    async def fail(self, failure: Failure) -> None:
        if self._begun:
            await self.line(b'{"error":%b}\n' % _stream_error(failure))
            await self.end()
            return
        body = failure.body
        headers = [JSON_TYPE, (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        if failure.status in (429, 503):
            headers.append(RETRY_AFTER)
        start = {"type": "http.response.start", "status": failure.status, "headers": headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})

    async def end(self) -> None:
        await self._begin()
        await self._send({"type": "http.response.body", "body": b""})

    async def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            start = {"type": "http.response.start", "status": 200, "headers": [JSON_TYPE]}
            await self._send(start)

    async def _send(self, message: Message) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._raw_send(message)
        except TimeoutError:
            self.cut = True
            _log.warning("a client of %s reads nothing: cut off", self._scope["path"])
            abort = self._scope.get("raftkv.abort")
            if abort is not None:
                abort()
            raise


def _stream_error(failure: Failure) -> bytes:
    body = {
        "grpc_code": failure.code,
        "http_code": failure.status,
        "message": failure.text,
        "http_status": http.HTTPStatus(failure.status).phrase,
        "reason": failure.reason,
    }
    return msgspec.json.encode(body)

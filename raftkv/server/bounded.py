"""uvicorn's HTTP protocol with the bounds that it lacks, and a short way for hot words.

Bounds:
- *A head has a size.* The parser behind it collects header lines without any limit, so that one
  connection that never ends its headers would fill the memory of the node. Everything that arrives
  while no request is being answered belongs to a head (or to the end of a body that was refused),
  so it is enough to count those bytes. What comes within a body and is none of it (extensions of
  chunks, trailers) is counted alike, and trailers are not taken for headers.
- *A request has a time.* A client that sends a byte a minute would hold its connection for ever.
  `check` is called every second by the door: it cuts connections whose request is not whole in
  time, that say nothing after they were made, or that are idle for long. A look at all connections
  once a second costs less than a timer for each request. Who takes none of an answer for
  SEND_TIMEOUT_S is cut as well: the answer would lie in memory for ever. So is who takes less than
  TAKEN_BYTES_PER_S_MIN of a large one while others are refused for want of room (outgoing.py).
- *Others are waiting.* Who sends a large body at less than BROUGHT_BYTES_PER_S_MIN while requests
  of others are refused for want of room (incoming.py) is cut.
- *There are so many connections.* One more is told so, and closed.
- *One request at a time.* What arrives behind a request is held until that one is answered, and no
  more is read than HELD_BYTES_MAX of it: the queue of the class below has no limit, and a request
  in it takes ninety times its bytes. A body and heads behind it may come in one piece, so a few can
  be in that queue. While an answer is under way the connection is read until the limit is reached,
  for that a client has gone is noticed by reading alone. A stream may never end: a connection with
  that much behind one is cut.

Two rules keep answers with their requests:
- *No refusal in the place of an answer.* What cannot be understood may stand behind a request that
  is still being carried out. A refusal would be read as that one's answer, so there is none: the
  connection is cut, which says that the outcome is unknown.
- *No upgrades.* The parser takes the body of a request that offers one for the next request, so the
  offer is taken out of the head, as HTTP allows (Java's client makes it with every request). Where
  the head did not come in one piece a request with a body is refused, and behind one without the
  parser stops: it is given the rest of the read anew.

The short way is in hot.py. It is taken only while the parser rests and no answer is under way; the
two ways therefore never mix within one request, and answers leave in the order of their requests.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from raftkv.kv.work_budget import WORK_MAX

from .admission import TARGET
from .answers import RESOURCE_EXHAUSTED, TOO_MANY_TEXT, failure_body
from .app import App, Word
from .hot import Heads, Run, head_of, response
from .incoming import SMALL_BYTES
from .streams import SEND_TIMEOUT_S, STREAM
from .work_units import units_of

__all__ = ["BoundedHttp", "DoorState", "protocol_of"]

# What a client may send while its request is answered; then it is not read.
HELD_BYTES_MAX: Final = 64 * 1024
# Within a body at least so much is parsed at a time, whatever it looks like.
BODY_PIECE_BYTES: Final = 4096

# The least that a client must take of more than such an answer, if others are refused meanwhile.
TAKEN_BYTES_PER_S_MIN: Final = 64 * 1024
LARGE_BYTES: Final = 1024 * 1024
# The least that a client must send of more than a small body, if others are refused meanwhile; and
# over what time that is measured.
BROUGHT_BYTES_PER_S_MIN: Final = 64 * 1024
BROUGHT_S: Final = 1.0

# A larger answer is written in such pieces, each in a turn of the loop that has room for it: of
# megabytes that are written at once the system takes as many as it can, for hundreds of connections
# in one turn. Over TLS, what is written goes to the connection below, which does not tell what it
# holds; behind 64 KiB there, pieces wait where they are counted.
PIECE_BYTES: Final = 64 * 1024

_log = logging.getLogger("raftkv.server")

_CLOSED: Final = b"content-length: 0\r\nconnection: close\r\n\r\n"
_HEAD_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\n" + _CLOSED
_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\n" + _CLOSED
#: The one path of the fast way that reads: its answer may be taken back.
_RANGE: Final = b"/v3/kv/range"
_HEAD_END: Final = b"\r\n\r\n"
_UPGRADE: Final = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_OF_A_BODY: Final = frozenset((b"content-length", b"transfer-encoding"))


class DoorState:
    """What the connections of one door share."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.limits = app.limits
        self.heads = Heads(frozenset(app.hot_words), app.body_bytes_max)
        self.connections: set[BoundedHttp] = set()
        # TLS handshakes under way, and how many failed (accepting.py).
        self.handshakes = 0
        self.handshakes_failed = 0
        self.hot_total = 0
        self.refused = {
            "connections_max": 0,
            "head_bytes_max": 0,
            "request_timeout_s": 0,
            "send_timeout_s": 0,
            "held_bytes_max": 0,
            "request_bytes_max": 0,
        }


def protocol_of(state: DoorState) -> Callable[..., BoundedHttp]:
    """What uvicorn makes its protocols with."""

    def make(*arguments: Any, **named: Any) -> BoundedHttp:
        return BoundedHttp(state, *arguments, **named)

    return make


class _Flow(FlowControl):
    """Does not resume reading for anybody as long as `full`."""

    full = False

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    flow: _Flow

    def __init__(self, state: DoorState, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # uvicorn's own belongs to the program.
        self.logger = _log
        self._state = state
        self._in_head = True
        self._head_bytes = 0
        # Since the last piece of a body: what is none of it.
        self._beside_bytes = 0
        # The parser waits for the first byte of a request.
        self._at_rest = True
        # An answer is under way on the short way; close when it is given.
        self._hot = False
        self._under_way: Run | None = None
        self._leaving = False
        # The request that is being answered on the other way, or was; what came meanwhile.
        self._answered_cycle: RequestResponseCycle | None = None
        self._held = bytearray()
        # Since when the request under way is being received; None while none is.
        self._receiving_since: float | None = None
        self._idle_since = 0.0
        # What the client had taken of all answers at the last look; since when it takes nothing.
        self._taken_bytes = 0
        self._unread_since = 0.0
        # Of answers: all bytes so far, those not yet given to the transport; from when and from
        # where on it is measured how many the client takes, and who was refused by then.
        self._answered_bytes = self._owed_bytes = 0
        self._measured = (0.0, 0, 0)
        self._path = b""
        # What counts as not sent in `app.outgoing`, and as held in `app.incoming`. Nothing does
        # once the connection is gone.
        self._unsent = 0
        self._gone = False
        self._held_counted = 0
        # Of the body on the short way.
        self._body_bytes = 0
        # Of bodies: all bytes so far, those of this one; from when and where on it is measured how
        # many come, and how often others were refused by then.
        self._brought_bytes = self._brought_now = 0
        self._brought = (0.0, 0, 0)
        self._tls = False
        # The client sends no more, and may read on; or what is written for it goes nowhere.
        self._eof = self._ended = False

    # -- connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._tls = transport.get_extra_info("sslcontext") is not None
        state = self._state
        if len(state.connections) >= state.limits.connections_max:
            state.refused["connections_max"] += 1
            limit = state.limits.connections_max
            detail = f"{limit} connections are open (http.connections_max): try another node"
            self._refuse(503, failure_body(RESOURCE_EXHAUSTED, TOO_MANY_TEXT, "overloaded", detail))
            return
        state.connections.add(self)
        self._receiving_since = self._unread_since = self.loop.time()
        self._measured = (self._receiving_since, 0, state.app.outgoing.refused)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._gone = True
        self._count_unsent()
        self._held.clear()
        self._count_held()
        self._end_requests()
        super().connection_lost(exc)

    def _end_requests(self) -> None:
        """End the requests, whose answers go nowhere. The class above ends the newest one only."""
        self._ended = True
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in (self._answered_cycle, *waiting):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the answers that are due: a client may close its half of it.

        A stream ends with it: that is how most clients leave one. TLS has no halves: the transport
        sends what it holds, during which it does not count as closing, and takes nothing more.
        """
        running = self._answered_cycle
        scope: Any = {} if running is None or running.response_complete else running.scope
        self._eof = not self._tls and self._answering and STREAM not in scope
        if not self._eof:
            self._end_requests()
        return self._eof

    @property
    def _leaves(self) -> bool:
        """Whether what is written now goes nowhere."""
        return self._ended or self.transport.is_closing()

    def _leave_if_done(self) -> None:
        if self._eof and not self._answering and not self.transport.is_closing():
            self.transport.close()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._count_unsent()

    def _count_unsent(self) -> None:
        """What the client has not taken counts for the limit of all connections (outgoing.py).

        Also at a connection that is closed as soon as the client has taken it.
        """
        unsent = 0 if self._gone else self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._state.app.outgoing.moved(unsent - self._unsent)
            self._unsent = unsent

    def _count_held(self) -> None:
        """What waits to be read counts for the limit of all connections (incoming.py).

        That is what came behind a request, and what of bodies was not read yet.
        """
        held = 0
        if not self._gone:
            cycles = {cycle for cycle, _ in self.pipeline}
            cycles.update(each for each in (self.cycle, self._answered_cycle) if each is not None)
            held = len(self._held) + sum([len(each.body) for each in cycles])
        if held != self._held_counted:
            self._state.app.incoming.moved(held - self._held_counted)
            self._held_counted = held

    def shutdown(self) -> None:
        if self._hot:
            self._leaving = True
        else:
            super().shutdown()

    def _refuse(self, status: int, body: bytes) -> None:
        form = (
            b"HTTP/1.1 %d \r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"retry-after: 1\r\nconnection: close\r\n\r\n%b"
        )
        self.transport.write(form % (status, len(body), body))
        self.transport.close()

    def check(self, now: float) -> None:
        """Cut the connection if it has been too slow, or idle for too long."""
        limits = self._state.limits
        self._count_unsent()
        if self._takes_nothing(now) or self._takes_too_little(now):
            self._state.refused["send_timeout_s"] += 1
            self.transport.abort()
        elif self._brings_too_little(now):
            self._state.refused["request_bytes_max"] += 1
            self.transport.abort()
        if self.transport.is_closing():
            return
        if self._receiving_since is not None:
            # The rest of one that is queued may have come long ago, and is held.
            if not self.pipeline and now - self._receiving_since > limits.request_timeout_s:
                self._state.refused["request_timeout_s"] += 1
                if self._rests:
                    self.transport.write(_TOO_SLOW)
                    self.transport.close()
                else:
                    self.transport.abort()
        elif self._rests and now - self._idle_since > limits.idle_timeout_s:
            self.transport.close()

    def _takes_nothing(self, now: float) -> bool:
        """Whether the client has left what is there for it for too long, also at the very end."""
        buffered = self.transport.get_write_buffer_size()
        taken = self._answered_bytes - self._owed_bytes - buffered
        # With nothing buffered it is the node that has not gone on.
        if not buffered or taken > self._taken_bytes:
            self._unread_since = now
        self._taken_bytes = taken
        return now - self._unread_since > SEND_TIMEOUT_S

    def _takes_too_little(self, now: float) -> bool:
        """Whether others are refused for a client that takes a large answer too slowly."""
        buffered = self.transport.get_write_buffer_size()
        unread = buffered + self._owed_bytes
        taken, refused = self._answered_bytes - unread, self._state.app.outgoing.refused
        since, before, refused_before = self._measured
        if unread > LARGE_BYTES and now - since < SEND_TIMEOUT_S:
            return False
        self._measured = (now, taken, refused)
        if unread <= LARGE_BYTES or refused == refused_before or not buffered:
            return False
        return taken - before < TAKEN_BYTES_PER_S_MIN * (now - since)

    def _brings_too_little(self, now: float) -> bool:
        """Whether others are refused for a client that sends a large body too slowly."""
        since, before, refused_before = self._brought
        if now - since < BROUGHT_S:
            return False
        brought, refused = self._brought_bytes, self._state.app.incoming.refused
        self._brought = (now, brought, refused)
        begun = self._receiving_since
        if refused == refused_before or self._in_head or begun is None or begun > since:
            return False
        return self._brought_now > SMALL_BYTES and brought - before < BROUGHT_BYTES_PER_S_MIN * (
            now - since
        )

    @property
    def _owes(self) -> bool:
        """Whether an answer is due that stands before anything else that could be said now."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        return self._in_head or cycle.response_started or bool(self.pipeline)

    @property
    def _rests(self) -> bool:
        """Nothing is being received, and nothing answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return not self._hot and (cycle is None or cycle.response_complete)

    @property
    def _answering(self) -> bool:
        """A request is whole and not answered yet: what follows has to wait."""
        return self._hot or bool(self.pipeline) or (self._at_rest and not self._rests)

    # -- what arrives

    def data_received(self, data: bytes) -> None:
        if self._held or self._answering:
            self._held += data
            self._bound()
        elif (short := self._short(data)) is not None:
            self._run(*short)
        else:
            self._held += data
            self._go_on()

    def _bound(self) -> None:
        """Read no more than is held at most; cut who sends requests behind a stream."""
        self._count_held()
        flow, running = self.flow, self._answered_cycle
        was_full, flow.full = flow.full, len(self._held) > HELD_BYTES_MAX
        if flow.full:
            flow.pause_reading()
        elif was_full or self.pipeline:
            flow.resume_reading()
        if flow.full and running is not None and not running.response_complete:
            scope: Any = running.scope
            if STREAM in scope and not self.transport.is_closing():
                self._state.refused["held_bytes_max"] += 1
                self._abort()

    def _go_on(self) -> None:
        """Give the parser what is held, until a request is whole."""
        held = self._held
        while held and not self._answering and not self.transport.is_closing():
            short = self._short(held)
            if short is not None:
                held.clear()
                self._run(*short)
                break
            end = held.find(_HEAD_END, 0 if self._in_head else BODY_PIECE_BYTES) + 4
            data = bytes(held[:end] if end >= 4 else held)
            del held[: len(data)]
            if self._at_rest and end >= 4:
                self._take_head(data)
            else:
                self._feed(data)
        self._bound()

    def _short(self, data: bytes | bytearray) -> tuple[bytes, Word, bytes] | None:
        """The path, word and body of what is one whole request for the short way."""
        if not self._at_rest or self.flow.write_paused:
            return None
        end = data.find(_HEAD_END) + 4
        if end < 4:
            return None
        head, heads = bytes(data[:end]), self._state.heads
        known = heads.get(head) or heads.numbered(head)
        if known is None or len(data) != end + known.body_bytes:
            return None
        word = self._state.app.hot_word(known)
        return None if word is None else (known.path, word, bytes(data[end:]))

    def _take_head(self, head: bytes) -> None:
        """Give the parser a head that came in one piece, and see what it takes it for."""
        if _UPGRADE.search(head) is not None:
            self._feed(_UPGRADE.sub(b"", head))
            return
        self._feed(head)
        if (
            head.startswith(b"POST /v3/kv/")
            and not self._in_head
            and not self._at_rest
            and not self.transport.is_closing()
            and self.scope["http_version"] == "1.1"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self.cycle.body
            and self._state.app.admission.judge(self.scope) is None  # type: ignore[arg-type]
        ):
            method = self.scope["method"].encode("ascii")
            self._state.heads.learn(head, method, self.url, self.headers)

    def _feed(self, data: bytes) -> None:
        if not data:
            return
        if self._in_head:
            self._head_bytes += len(data)
            limit = self._state.limits.head_bytes_max
            # A head and the first part of a large body may arrive in one read.
            if self._head_bytes > limit and _HEAD_END not in data[: limit + 4]:
                self._refuse_head()
                return
        else:
            self._beside_bytes += len(data)
        self._parse(data)
        if self._beside_bytes > self._state.limits.head_bytes_max:
            self._refuse_head()

    def _parse(self, data: bytes) -> None:
        """What the class above does with data, but for what stands behind an offer to upgrade."""
        self._unset_keepalive_if_required()
        while data and not self.transport.is_closing():
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]

    def _refuse_head(self) -> None:
        if self.transport.is_closing():
            return
        self._state.refused["head_bytes_max"] += 1
        if self._owes:
            self.transport.abort()
        else:
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self._owes:
            self.transport.abort()
        else:
            super().send_400_response(msg)

    # -- the parser's callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._at_rest = False
        self._beside_bytes = 0
        self._brought_now = 0
        self._receiving_since = self.loop.time()
        self.scope["raftkv.abort"] = self._abort  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and not _OF_A_BODY.isdisjoint(n for n, _ in self.headers):
            raise ValueError("the parser would take the body for a request")
        if not self.url.startswith(b"/"):
            self.scope[TARGET] = self.url  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        self._in_head = False
        self._head_bytes = 0
        if self.scope["raw_path"].decode("ascii") in self._state.app.stream_paths:
            self._receiving_since = None

    def on_body(self, body: bytes) -> None:
        self._beside_bytes = 0
        self._brought_bytes += len(body)
        self._brought_now += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._beside_bytes = 0
        self._at_rest = True
        self._receiving_since = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        answered = self._answered_cycle
        if answered is not None:
            # A body that was not read: of a request to a path that does not exist, for example.
            answered.body = type(answered.body)()
        super().on_response_complete()
        if self._receiving_since is not None:
            self._receiving_since = self._idle_since
        if not self.transport.is_closing():
            self._go_on()
            self._leave_if_done()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered_cycle = cycle
        super()._start_asgi_task(cycle, self._counted(app))

    def _counted(self, app: Any) -> Any:
        """The application, of whose writes the connection learns."""

        async def run(scope: Any, receive: Any, send: Any) -> None:
            async def sent(message: Any) -> None:
                size = len(message.get("body", b""))
                self._answered_bytes += size
                if size > PIECE_BYTES and STREAM in scope and not self._tls:
                    # A line of a stream is one chunk.
                    await self._room_for(size)
                elif size > PIECE_BYTES:
                    self._owed_bytes = size
                    for piece in _in_pieces(message):
                        await self._room_for(len(piece["body"]))
                        await send(piece)
                        self._owed_bytes -= len(piece["body"])
                        self._count_unsent()
                    return
                await send(message)
                self._count_unsent()

            async def received() -> Any:
                message = await receive()
                self._count_held()
                return message

            try:
                await app(scope, received, sent)
            except asyncio.CancelledError:
                # The HTTP API stops: uvicorn would log this one as an error of the application.
                cycle = self._answered_cycle
                if cycle is not None:
                    cycle.disconnected = True
                self.transport.abort()

        return run

    def _abort(self) -> None:
        self.transport.abort()

    # -- the short way

    def _run(self, path: bytes, word: Word, body: bytes) -> None:
        self._unset_keepalive_if_required()
        self._receiving_since = None
        # Blanks between requests were counted as the beginning of a head.
        self._head_bytes = 0
        self._hot = True
        app = self._state.app
        self._path = path
        self._body_bytes = 0
        try:
            app.begin()
        except Exception as error:
            app.requests += 1
            self._answered(b"", error)
            return
        try:
            app.incoming.receive(len(body))
        except Exception as error:
            self._answered(b"", error)
            return
        self._body_bytes = len(body)
        self._state.hot_total += 1
        self._under_way = Run(self.loop, app.started(word, body), self._answered)
        self._under_way.step()

    def cut(self) -> None:
        """The door has stopped, and uvicorn has cancelled the requests that it knows."""
        if self._under_way is not None:
            self._under_way.cancel()
        self.transport.abort()

    def _answered(self, answer: bytes, error: Exception | None) -> None:
        state = self._state
        state.app.requests -= 1
        state.app.incoming.moved(-self._body_bytes)
        self._under_way = None
        transport = self.transport
        if transport.is_closing():
            self._finished()
            return
        if error is None and self._path == _RANGE:
            error = state.app.refusal_of(answer)
        failure = None
        if error is not None:
            failure = state.app.failure(self._path.decode("ascii"), error)
        if failure is None and len(answer) > PIECE_BYTES:
            self._under_way = Run(self.loop, self._sending(answer), self._sent)
            self._under_way.step()
            return
        whole = response(answer, failure)
        self._answered_bytes += len(whole)
        transport.write(whole)
        self._finished()

    async def _sending(self, answer: bytes) -> bytes:
        """Write a large answer as its client takes it. It counts as held until it is written."""
        outgoing = self._state.app.outgoing
        size = self._owed_bytes = len(answer)
        self._answered_bytes += size
        outgoing.moved(size)
        try:
            self.transport.write(head_of(answer))
            for begin in range(0, size, PIECE_BYTES):
                piece = answer[begin : begin + PIECE_BYTES]
                await self._room_for(len(piece))
                if self.flow.write_paused:
                    await self.flow.drain()
                if self._leaves:
                    break
                self.transport.write(piece)
                self._owed_bytes -= len(piece)
                self._count_unsent()
        finally:
            outgoing.moved(-size)
        return b""

    async def _room_for(self, size: int) -> None:
        """Wait for a turn of the loop in which so many bytes may be written."""
        budget, units = self._state.app.budget, units_of(size)
        if not self._leaves:
            await budget.room(min(units, WORK_MAX - 1))
            budget.spend(units)

    def _sent(self, _: bytes, error: Exception | None) -> None:
        self._under_way = None
        if error is not None:
            # The client has part of an answer.
            self.transport.abort()
        self._finished()

    def _finished(self) -> None:
        """A request on the short way has ended."""
        self._hot = False
        self._idle_since = self.loop.time()
        if self.transport.is_closing():
            return
        self._count_unsent()
        if self._leaving:
            self.transport.close()
        elif self._held:
            self._go_on()
        self._leave_if_done()


def _in_pieces(message: Any) -> Iterator[dict[str, Any]]:
    """A part of a body as several."""
    body, more = message["body"], message.get("more_body", False)
    for begin in range(0, len(body), PIECE_BYTES):
        end = begin + PIECE_BYTES
        rest = more or end < len(body)
        yield {"type": message["type"], "body": body[begin:end], "more_body": rest}

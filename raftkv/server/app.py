"""The network door as an ASGI application: from a path to a handler, from an error to an answer.

Rules of this file. Paths are compared as they are on the wire, never decoded: a proxy's rule for
`/v3/kv/put` would not see `/v3/kv/%70ut`, so it must not reach anything here either. Only what a
plugin's route captures is decoded (routes.py). It is a measured path: one dict look-up finds the
handler of an etcd word, the handler takes the body and returns the finished JSON, and nothing is
allocated for a request that the request does not need. Bodies are counted while they arrive, so
that none larger than the limit is ever held. It knows nothing about the keyspace (`gateway.py` and
the other words) or the server (`door.py`).

A word that writes runs on the node, or, if the request has a header that begins with `raftkv-`, on
the writer that the client sessions give for these headers (`ports.SessionBinder`).

`hot_words` are the words that `hot.py` may run without this application: the same coroutines, for
requests that have arrived whole and have no such header.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, Final

from raftkv.config import HttpLimits, Limits
from raftkv.errors import TooLarge
from raftkv.plugin import Route, Under

from .admission import Admission, is_preflight, preflight_headers, with_cors
from .answers import (
    INVALID_ARGUMENT,
    JSON_TYPE,
    NOT_FOUND,
    RETRY_AFTER,
    TOO_LARGE_TEXT,
    UNIMPLEMENTED,
    BadRequest,
    Busy,
    Failure,
    failure_body,
    failure_of,
    internal_failure,
)
from .cluster_words import ETCD_API_VERSION, ClusterWords
from .encoding import Headers
from .gateway import Gateway
from .hot import Known
from .incoming import SMALL_BYTES, Incoming, Received
from .lease_words import LeaseWords
from .messages import is_costly
from .outgoing import Outgoing
from .ports import DoorNode, SessionBinder, Writer
from .routes import PluginRoutes, RouteTable, answer_to, encoded, is_verdict, stream_out
from .status_pages import PAGES, PROBES, StatusPages
from .streams import STREAM, Stream, serve_stream
from .watch_words import WatchBytes, WatchStream
from .work_units import PAGE_UNITS, units_of

__all__ = ["BODY_BYTES_MAX", "ETCD_API_VERSION", "App", "Word"]

_log = logging.getLogger("raftkv.server")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Word = Callable[[bytes], Coroutine[Any, Any, bytes]]
WritingWord = Callable[[bytes, Writer | None], Coroutine[Any, Any, bytes]]

# One request body. The largest command is 1.5 MiB, and base64 makes 2 MiB of it; the rest is room
# for the JSON around many small operations of a transaction.
BODY_BYTES_MAX: Final = 3 * 1024 * 1024

# A body for a plugin's route: one command.
ROUTE_BODY_BYTES_MAX: Final = Limits().command_bytes_max

# Some clients send a small body in a packet of its own, right behind the head.
BODY_FOLLOWS_S: Final = 0.1
# A client that sends too large a body is heard out this long before its connection is closed.
DISCARD_TIMEOUT_S: Final = 5.0

_CLOSE: Final = (b"connection", b"close")
_JSON_HEADERS: Final = (JSON_TYPE,)


class App:
    """The ASGI application of one node.

    `routes` are the plugins' routes by plugin name. `version` is what `/version` gives as `raftkv`.
    The two limits of bytes are for the body of an etcd word and of a request to a plugin. `scheme`
    is how the members' doors are shown in the list of members.
    `admission` holds the rules for hosts and origins; without it addresses and localhost are known
    and no origin is. `clock` gives the seconds by which pages are kept (status_pages.py).
    """

    def __init__(
        self,
        node: DoorNode,
        *,
        routes: PluginRoutes | None = None,
        version: str = "",
        body_bytes_max: int = BODY_BYTES_MAX,
        route_body_bytes_max: int = ROUTE_BODY_BYTES_MAX,
        sessions: SessionBinder | None = None,
        limits: HttpLimits | None = None,
        scheme: str = "http",
        admission: Admission | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._node = node
        self._sessions = sessions
        self.limits = HttpLimits() if limits is None else limits
        self.admission = Admission() if admission is None else admission
        self._routes = RouteTable({} if routes is None else routes)
        self.body_bytes_max = body_bytes_max
        self._route_body_bytes_max = route_body_bytes_max
        self._headers = Headers(node)
        self._pages = StatusPages(node, version, clock)
        # Under way at this moment, the hot ones included; and how often a limit was met.
        self.requests = self.streams = self.requests_total = 0
        self.refused = {"requests_max": 0, "streams_max": 0, "body_bytes_max": 0}
        self.outgoing = Outgoing(self.limits.answer_bytes_max)
        self.incoming = Incoming(self.limits.request_bytes_max)
        self.watch_bytes = WatchBytes(self.limits.watch_bytes_max)
        self.budget = node.kv.budget
        gateway = Gateway(node, self._headers, self.outgoing)
        leases = LeaseWords(node, self._headers, self.outgoing)
        cluster = ClusterWords(node, self._headers, scheme)
        self._writing: dict[str, WritingWord] = {
            "/v3/kv/put": gateway.put,
            "/v3/kv/deleterange": gateway.delete_range,
            "/v3/kv/txn": gateway.txn,
            "/v3/kv/compaction": gateway.compaction,
            "/v3/lease/grant": leases.grant,
            "/v3/lease/revoke": leases.revoke,
            "/v3/kv/lease/revoke": leases.revoke,
        }
        self._reading: dict[str, Word] = {
            "/v3/kv/range": gateway.range,
            "/v3/lease/timetolive": leases.time_to_live,
            "/v3/kv/lease/timetolive": leases.time_to_live,
            "/v3/lease/leases": leases.list,
            "/v3/kv/lease/leases": leases.list,
            "/v3/cluster/member/list": cluster.members,
            "/v3/maintenance/status": cluster.status,
            "/v3/maintenance/hashkv": cluster.hash,
            "/v3/maintenance/alarm": cluster.alarm,
        }
        self._keep_alive: Stream = leases.keep_alive
        #: The words whose body may take as long as it likes.
        self.stream_paths = frozenset(
            version + word
            for version in ("/v3", "/v3beta")
            for word in ("/watch", "/lease/keepalive")
        )
        self._words = frozenset((*self._writing, *self._reading, *self.stream_paths))
        self._stopping = asyncio.Event()
        #: The words that the server may run by itself, by their path on the wire.
        self.hot_words: Mapping[bytes, Word] = {
            b"/v3/kv/range": gateway.range,
            b"/v3/kv/put": gateway.put,
            b"/v3/kv/deleterange": gateway.delete_range,
            b"/v3/kv/txn": gateway.txn,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the door speaks HTTP only, not {scope['type']}")
        turned_away = self.admission.judge(scope)
        if turned_away is not None:
            self.admission.count(turned_away)
            await self._refuse_unread(turned_away, receive, send)
            return
        origin = self.admission.allowed_origin(scope)
        if origin is not None:
            send = with_cors(send, origin)
            if is_preflight(scope):
                await self._send(send, 200, b"", preflight_headers())
                return
        encoded = _encoding_refused(scope)
        if encoded is not None:
            await self._refuse_unread(encoded, receive, send)
            return
        path = _canonical(scope)
        if path in self._words and scope["method"] == "POST":
            if path in self.stream_paths:
                await self._stream(path, scope, receive, send)
            else:
                await self._word(path, scope, receive, send)
        else:
            await self._other(scope, receive, send)

    # -- etcd's words

    async def _word(self, path: str, scope: Message, receive: Receive, send: Send) -> None:
        try:
            self.begin()
        except Busy as busy:
            await self._refuse_early(self.failure(path, busy), receive, send)
            return
        try:
            with Received(self.incoming) as received:
                body = await self._body(scope, self.body_bytes_max, receive, send, received)
                if body is None:
                    return
                running = self.started(self._bound(path, scope), body)
                del body  # the word lets go of it, too
                answer = await running
                if path in self._reading and (refusal := self.refusal_of(answer)) is not None:
                    raise refusal
        except Exception as error:
            await self._fail(send, self.failure(path, error))
            return
        finally:
            self.requests -= 1
        await self._send(send, 200, answer)

    def started(self, word: Word, body: bytes) -> Coroutine[Any, Any, bytes]:
        """The word's coroutine. It waits for a turn of its own if reading the body takes long."""
        return self._in_turn(word, body) if is_costly(body) else word(body)

    async def _in_turn(self, word: Word, body: bytes) -> bytes:
        await self.budget.turn()
        running = word(body)
        del body  # the word lets go of it, too
        return await running

    def begin(self, *, always: bool = False) -> None:
        """Count a request in; who calls it counts it out again. Raises Busy, but not `always`."""
        if not always:
            if self.requests >= self.limits.requests_max:
                self.refused["requests_max"] += 1
                limit = self.limits.requests_max
                raise Busy(f"{limit} requests are under way (http.requests_max): try again later")
            self.outgoing.require_room()
        self.requests += 1
        self.requests_total += 1

    def refusal_of(self, answer: bytes) -> Busy | None:
        """Why the answer of a read is not given: too much is under way."""
        try:
            self.outgoing.require_room(len(answer))
        except Busy as busy:
            return busy
        return None

    def _bound(self, path: str, scope: Message) -> Word:
        """The word of a path, writing under a client session if the headers name one."""
        writing = self._writing.get(path)
        if writing is None:
            return self._reading[path]
        found = _numbering(scope)
        if not found:
            return lambda body: writing(body, None)
        writer = self._binder().bind(found)
        return lambda body: writing(body, writer)

    def _binder(self) -> SessionBinder:
        if self._sessions is None:
            raise BadRequest("this door has no client sessions: leave the raftkv- headers out")
        return self._sessions

    def _under(self, route: Route, raw_path: str, scope: Message) -> Under | None:
        """What a plugin's route is to propose under, if the headers name a client session."""
        found = _numbering(scope)
        if not found:
            return None
        if not route.numbered:
            raise BadRequest(
                f"{route.method} {raw_path} takes no number: leave the raftkv- headers out"
            )
        return self._binder().under(found, raw_path.split("/")[2])

    def hot_word(self, known: Known) -> Word | None:
        """The word of a head that hot.py has understood; None: it must go the usual way.

        That is so for a client session that this node does not know, or not yet.
        """
        if known.numbered is None:
            return self.hot_words[known.path]
        writing = self._writing.get(known.path.decode("ascii"))
        if writing is None or self._sessions is None:
            return None
        writer = self._sessions.bind_known(known.numbered)
        return None if writer is None else lambda body: writing(body, writer)

    async def _stream(self, path: str, scope: Message, receive: Receive, send: Send) -> None:
        if self.streams >= self.limits.streams_max:
            self.refused["streams_max"] += 1
            limit = self.limits.streams_max
            refusal = Busy(f"{limit} streams are open (http.streams_max): try another node")
            await self._fail(send, self.failure(path, refusal), close=True)
            return
        self.streams += 1
        scope[STREAM] = True
        try:
            if path == "/v3/watch":
                watches = self.limits.stream_watches_max
                watching = WatchStream(
                    self._node,
                    self._headers,
                    watches,
                    room=self.outgoing.room,
                    watch_bytes=self.watch_bytes,
                )
                answers: Stream = watching.answers
                on_stop: Callable[[], None] | None = watching.stop
            else:
                # Its answers are small, and one that waited would let the client's leases expire.
                answers, on_stop = self._keep_alive, None
            with Received(self.incoming) as received:
                await serve_stream(
                    answers,
                    scope,
                    receive,
                    send,
                    stopping=self._stopping,
                    on_stop=on_stop,
                    outgoing=self.outgoing,
                    received=received,
                    budget=self.budget,
                )
        finally:
            self.streams -= 1

    def stop(self) -> None:
        """The door closes: streams are told so and end, others would go on for ever."""
        self._stopping.set()

    # -- bodies

    async def _body(
        self, scope: Message, bytes_max: int, receive: Receive, send: Send, received: Received
    ) -> bytes | None:
        """The whole body, counted in `received`; None if it was refused, or the client has gone."""
        # The parser has checked that content-length is a number.
        announced = int(dict(scope["headers"]).get(b"content-length", b"0"))
        parts: list[bytes] = []
        while True:
            if received.bytes > SMALL_BYTES:
                # Until then the connection is not read any further.
                await self._room_for_part()
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body, more = message["body"], message["more_body"]
            if max(received.bytes + len(body), announced) > bytes_max:
                self.refused["body_bytes_max"] += 1
                detail = f"the body exceeds {bytes_max} bytes, which is the limit of the door"
                refusal = Failure(413, INVALID_ARGUMENT, TOO_LARGE_TEXT, TooLarge.code, detail)
                await self._refuse_unread(refusal, receive, send, more=more)
                return None
            try:
                received.add(len(body))
            except Busy as busy:
                parts.clear()
                await self._refuse_unread(self.failure("", busy), receive, send, more=more)
                return None
            parts.append(body)
            if not more:
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _room_for_part(self) -> None:
        """Wait for a turn of the loop that has room for a part of a body."""
        units = units_of(SMALL_BYTES)
        await self.budget.room(units)
        self.budget.spend(units)

    async def _refuse_early(self, failure: Failure, receive: Receive, send: Send) -> None:
        """Refuse a request before its body was read; the connection lasts if that comes at once."""
        more = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BODY_FOLLOWS_S):
                message = await receive()
                more = message.get("more_body", False)
        if more:
            await self._refuse_unread(failure, receive, send)
        else:
            await self._fail(send, failure)

    async def _refuse_unread(
        self, failure: Failure, receive: Receive, send: Send, *, more: bool = True
    ) -> None:
        """Refuse a request of whose body `more` may still be on its way, and close."""
        refusal = failure.body
        headers = [JSON_TYPE, (b"content-length", b"%d" % len(refusal)), _CLOSE]
        if failure.status in (429, 503):
            headers.append(RETRY_AFTER)
        await send({"type": "http.response.start", "status": failure.status, "headers": headers})
        await send({"type": "http.response.body", "body": refusal, "more_body": True})
        # A connection that is closed with input unread is reset, and the reset overtakes the
        # refusal: so read on, into nothing, for as long as an honest client takes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_TIMEOUT_S):
                while more:
                    await self._room_for_part()
                    more = (await receive()).get("more_body", False)
        await send({"type": "http.response.body", "body": b""})

    # -- everything else

    async def _other(self, scope: Message, receive: Receive, send: Send) -> None:
        path, method = _canonical(scope), scope["method"]
        if path in PAGES and method in ("GET", "HEAD"):
            await self._page(path, scope, send)
        elif path in PAGES or path in self._words:
            await self._send(send, 405, _not_allowed(method))
        elif path.startswith("/v3"):
            text = f"raftkv does not serve {path}"
            await self._send(send, 501, failure_body(UNIMPLEMENTED, text, "unimplemented"))
        else:
            await self._plugin(scope, receive, send)

    async def _page(self, path: str, scope: Message, send: Send) -> None:
        try:
            self.begin(always=path in PROBES)
        except Busy as busy:
            await self._fail(send, self.failure(path, busy))
            return
        try:
            if path not in PROBES:
                await self.budget.room(PAGE_UNITS)
                self.budget.spend(PAGE_UNITS)
            status, kind, answer = await self._pages.page(path, scope)
            await self._send(send, status, answer, (kind,))
        finally:
            self.requests -= 1

    async def _plugin(self, scope: Message, receive: Receive, send: Send) -> None:
        method, raw_path = scope["method"], scope["raw_path"].decode("ascii")
        found = self._routes.find(method, raw_path)
        if found is True:
            await self._send(send, 405, _not_allowed(method))
        elif found is False:
            text = f"there is no {scope['path']} here"
            await self._send(send, 404, failure_body(NOT_FOUND, text, "not_found"))
        else:
            route, params = found
            try:
                under = self._under(route, raw_path, scope)
            except BadRequest as error:
                await self._fail(send, self.failure(scope["path"], error))
                return
            try:
                self.begin()
            except Busy as error:
                await self._refuse_early(self.failure(scope["path"], error), receive, send)
                return
            try:
                with Received(self.incoming) as received:
                    limit = self._route_body_bytes_max
                    body = await self._body(scope, limit, receive, send, received)
                    if body is None:
                        return
                    if is_costly(body):
                        await self.budget.turn()
                    response = await answer_to(route, scope, params, body, under)
            finally:
                self.requests -= 1
            if response.stream is not None:
                # Those of plugins are few and bounded by them: counted here, not limited.
                self.streams += 1
                scope[STREAM] = True
                try:
                    await stream_out(
                        response,
                        response.stream,
                        receive,
                        send,
                        self._stopping,
                        self.outgoing,
                    )
                finally:
                    self.streams -= 1
            else:
                headers = [JSON_TYPE]
                if under is not None and is_verdict(response):
                    headers.append((b"raftkv-seq", b"%d" % under.seq))
                await self._send(send, response.status, encoded(response), headers)

    # -- answers

    def failure(self, path: str, error: Exception) -> Failure:
        """What a client is told of an error; an unexpected one is logged."""
        failure = failure_of(error)
        if failure is None:
            _log.error("unexpected error in %s", path, exc_info=error)
            failure = internal_failure(error)
        return failure

    async def _fail(self, send: Send, failure: Failure, *, close: bool = False) -> None:
        headers = [JSON_TYPE, _CLOSE] if close else [JSON_TYPE]
        await self._send(send, failure.status, failure.body, headers)

    async def _send(
        self,
        send: Send,
        status: int,
        body: bytes,
        headers: list[tuple[bytes, bytes]] | tuple[tuple[bytes, bytes], ...] = _JSON_HEADERS,
    ) -> None:
        whole = [*headers, (b"content-length", b"%d" % len(body))]
        if status in (429, 503):
            whole.append(RETRY_AFTER)
        # While it waits until the client has taken the one before it, it is held here.
        self.outgoing.moved(len(body))
        try:
            await send({"type": "http.response.start", "status": status, "headers": whole})
            await send({"type": "http.response.body", "body": body})
        finally:
            self.outgoing.moved(-len(body))


def _numbering(scope: Message) -> dict[bytes, bytes]:
    """The headers that name a client session and a number. Raises BadRequest if one is doubled."""
    ours = [(name, value) for name, value in scope["headers"] if name.startswith(b"raftkv-")]
    found = dict(ours)
    if len(found) < len(ours):
        raise BadRequest("a raftkv- header stands there twice: say once whose write it is")
    return found


def _canonical(scope: Message) -> str:
    """The path as it is on the wire, below /v3.

    etcd 3.4 serves all its words under /v3beta, too: clients made for 3.3 know no other name.
    """
    path: str = scope["raw_path"].decode("ascii")
    return "/v3" + path[len("/v3beta") :] if path.startswith("/v3beta/") else path


def _not_allowed(method: str) -> bytes:
    return failure_body(UNIMPLEMENTED, f"{method} is not allowed here", "method_not_allowed")


def _encoding_refused(scope: Message) -> Failure | None:
    """A refusal of a body that is compressed or otherwise encoded; None for one as it is."""
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            shown = value[:40].decode("latin-1")
            detail = f"a body in the content encoding {shown!r} is not taken: send it as it is"
            return Failure(415, INVALID_ARGUMENT, detail, "bad_request", detail)
    return None

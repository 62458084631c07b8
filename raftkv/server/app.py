"""The network door as an ASGI application: from a path to a handler, from an error to an answer.

Rules of this file. It is a measured path: one dict look-up finds the handler of an etcd word, the
handler takes the body and returns the finished JSON, and nothing is allocated for a request that
the request does not need. Bodies are counted while they arrive, so that none larger than the limit
is ever held. It knows nothing about the keyspace (`gateway.py`) or the server (`door.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec

from raftkv.config import Limits

from .answers import (
    INTERNAL,
    INVALID_ARGUMENT,
    JSON_TYPE,
    NOT_FOUND,
    TOO_LARGE_TEXT,
    UNIMPLEMENTED,
    failure_body,
    failure_of,
)
from .gateway import Gateway
from .ports import DoorNode
from .routes import PluginRoutes, RouteTable, answer_to, encoded, stream_out

__all__ = ["BODY_BYTES_MAX", "ETCD_API_VERSION", "App"]

_log = logging.getLogger("raftkv.server")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# The level of etcd's API that clients may expect here. Some choose their words by it.
ETCD_API_VERSION: Final = "3.4.0"
# One request body. The largest command is 1.5 MiB, and base64 makes 2 MiB of it; the rest is room
# for the JSON around many small operations of a transaction.
BODY_BYTES_MAX: Final = 3 * 1024 * 1024

# A body for a plugin's route: one command.
ROUTE_BODY_BYTES_MAX: Final = Limits().command_bytes_max

# A client that sends too large a body is heard out this long before its connection is closed.
DISCARD_TIMEOUT_S: Final = 5.0

_CLOSE: Final = (b"connection", b"close")


class App:
    """The ASGI application of one node.

    `routes` are the plugins' routes by plugin name. `version` is what `/version` gives as `raftkv`.
    The two limits are for the body of an etcd word and of a request to a plugin.
    """

    def __init__(
        self,
        node: DoorNode,
        *,
        routes: PluginRoutes | None = None,
        version: str = "",
        body_bytes_max: int = BODY_BYTES_MAX,
        route_body_bytes_max: int = ROUTE_BODY_BYTES_MAX,
    ) -> None:
        gateway = Gateway(node)
        self._node = node
        self._routes = RouteTable({} if routes is None else routes)
        self._body_bytes_max = body_bytes_max
        self._route_body_bytes_max = route_body_bytes_max
        self._words: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            "/v3/kv/range": gateway.range,
            "/v3/kv/put": gateway.put,
            "/v3/kv/deleterange": gateway.delete_range,
            "/v3/kv/txn": gateway.txn,
        }
        self._pages: dict[str, Callable[[], tuple[int, bytes]]] = {
            "/health": self._health,
            "/version": self._version,
            "/v1/status": self._status,
        }
        self._version_body = msgspec.json.encode(
            {"etcdserver": ETCD_API_VERSION, "etcdcluster": ETCD_API_VERSION, "raftkv": version}
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the door speaks HTTP only, not {scope['type']}")
        word = self._words.get(scope["path"]) if scope["method"] == "POST" else None
        if word is None:
            await self._other(scope, receive, send)
            return
        body = await self._body(scope, self._body_bytes_max, receive, send)
        if body is None:
            return
        status = 200
        try:
            answer = await word(body)
        except Exception as error:
            status, answer = self._refusal(scope["path"], error)
        await self._send(send, status, answer)

    async def _body(
        self, scope: Message, bytes_max: int, receive: Receive, send: Send
    ) -> bytes | None:
        """The whole body; None if it was refused as too large, or if the client has gone."""
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body: bytes = message["body"]
        if not message["more_body"] and len(body) <= bytes_max:
            return body
        # The parser has checked that content-length is a number.
        announced = int(dict(scope["headers"]).get(b"content-length", b"0"))
        size, parts = len(body), [body]
        while max(size, announced) <= bytes_max:
            if not message["more_body"]:
                return b"".join(parts)
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message["body"])
            size += len(message["body"])
        detail = f"the body exceeds {bytes_max} bytes, which is the limit of the door"
        refusal = failure_body(INVALID_ARGUMENT, TOO_LARGE_TEXT, "too_large", detail)
        headers = [JSON_TYPE, (b"content-length", b"%d" % len(refusal)), _CLOSE]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": refusal, "more_body": True})
        # A connection that is closed with input unread is reset, and the reset overtakes the
        # refusal: so read on, into nothing, for as long as an honest client takes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_TIMEOUT_S):
                while message.get("more_body"):
                    message = await receive()
        await send({"type": "http.response.body", "body": b""})
        return None

    async def _other(self, scope: Message, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        page = self._pages.get(path)
        if page is not None and method in ("GET", "HEAD"):
            status, answer = page()
        elif path in self._pages or path in self._words:
            status, answer = 405, _not_allowed(method)
        elif path.startswith("/v3"):
            text = f"raftkv does not serve {path}"
            status, answer = 501, failure_body(UNIMPLEMENTED, text, "unimplemented")
        else:
            await self._plugin(scope, receive, send)
            return
        await self._send(send, status, answer)

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
            body = await self._body(scope, self._route_body_bytes_max, receive, send)
            if body is None:
                return
            response = await answer_to(route, scope, params, body)
            if response.stream is not None:
                await stream_out(response, response.stream, receive, send)
            else:
                await self._send(send, response.status, encoded(response))

    def _refusal(self, path: str, error: Exception) -> tuple[int, bytes]:
        failure = failure_of(error)
        if failure is not None:
            body = failure_body(failure.code, failure.text, failure.reason, failure.detail)
            return failure.status, body
        _log.error("unexpected error in %s", path, exc_info=error)
        text = f"internal error ({type(error).__name__}), see the log of the node"
        return 500, failure_body(INTERNAL, text, "internal")

    async def _send(self, send: Send, status: int, body: bytes) -> None:
        headers = [JSON_TYPE, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _health(self) -> tuple[int, bytes]:
        if self._node.leader is not None:
            return 200, b'{"health":"true"}'
        return 503, b'{"health":"false","reason":"no leader is known to this node"}'

    def _version(self) -> tuple[int, bytes]:
        return 200, self._version_body

    def _status(self) -> tuple[int, bytes]:
        return 200, msgspec.json.encode(self._node.status())


def _not_allowed(method: str) -> bytes:
    return failure_body(UNIMPLEMENTED, f"{method} is not allowed here", "method_not_allowed")

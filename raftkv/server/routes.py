"""Plugins' routes below /v1/<plugin>/: finding them, running them, answering for them.

docs/plugin-contract.md A8 says what a route is. A path is compared segment by segment in its raw
form, so that a captured word may contain an escaped slash. Where a literal and a captured segment
both fit, the literal wins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final

import msgspec

from raftkv.errors import ConfigError, NotApplied, OutcomeUnknown, Refused, TooLarge
from raftkv.plugin import Request, Response, Route, Under

from .answers import INTERNAL, JSON_TYPE, failure_body, failure_of
from .outgoing import Outgoing
from .streams import STOP_TIMEOUT_S

__all__ = [
    "PluginRoutes",
    "RouteTable",
    "answer_to",
    "encoded",
    "is_verdict",
    "stream_out",
    "with_own",
]

_log = logging.getLogger("raftkv.server")

#: The routes of each plugin, by its name.
PluginRoutes = Mapping[str, Sequence[Route]]
Message = MutableMapping[str, Any]

_PREFIX: Final = "/v1/"
# `/v1/status` is answered before all routes (app.py).
_STATUS: Final = ("GET", ("status",))


def with_own(own: PluginRoutes, plugins: PluginRoutes) -> dict[str, Sequence[Route]]:
    """The routes of raftkv itself, and those of the plugins, which may have the same names.

    Raises ConfigError if a plugin has a route that is one of raftkv's own.
    """
    taken = {_STATUS} | {(r.method, _shape(name, r)) for name in own for r in own[name]}
    for name, routes in plugins.items():
        for route in routes:
            if (route.method, _shape(name, route)) in taken:
                names = ", ".join(sorted({*own, "status"}))
                raise ConfigError(
                    f"the plugin {name!r} has the route {route.method} "
                    f"{_PREFIX}{'/'.join(_pattern(name, route))}, which is one of raftkv itself: "
                    f"give it another path. Raftkv has routes of its own below {names}"
                )
    return {name: (*own.get(name, ()), *plugins.get(name, ())) for name in sorted({*own, *plugins})}


def _pattern(plugin: str, route: Route) -> tuple[str, ...]:
    path = route.path.strip("/")
    return (plugin, *path.split("/")) if path else (plugin,)


def _shape(plugin: str, route: Route) -> tuple[str, ...]:
    """Equal for routes that cannot be told apart by their paths."""
    return tuple("{}" if _captures(part) else part for part in _pattern(plugin, route))


class RouteTable:
    """Finds the route of a request. Raises `ConfigError` for routes that cannot be told apart."""

    def __init__(self, plugins: PluginRoutes) -> None:
        # By plugin and number of segments: so few that they are looked at one by one.
        self._routes: dict[tuple[str, int], list[tuple[tuple[str, ...], Route]]] = {}
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for plugin, routes in sorted(plugins.items()):
            for route in routes:
                pattern, shape = _pattern(plugin, route), _shape(plugin, route)
                if (route.method, shape) in seen:
                    raise ConfigError(f"two routes answer {route.method} {'/'.join(pattern)}")
                seen.add((route.method, shape))
                self._routes.setdefault((plugin, len(pattern)), []).append((pattern, route))
        for found in self._routes.values():
            found.sort(key=lambda item: tuple(_captures(part) for part in item[0]))

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]] | bool:
        """The route and what its path captured; else whether the path has another method."""
        other = False
        if not raw_path.startswith(_PREFIX):
            return other
        segments = raw_path[len(_PREFIX) :].split("/")
        for pattern, route in self._routes.get((segments[0], len(segments)), ()):
            params = _match(pattern, segments)
            if params is None:
                continue
            if route.method == method:
                return route, params
            other = True
        return other


def _captures(part: str) -> bool:
    return part.startswith("{") and part.endswith("}")


def _match(pattern: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    params = {}
    for part, segment in zip(pattern, segments, strict=True):
        if _captures(part):
            if not segment:
                return None
            params[part[1:-1]] = urllib.parse.unquote(segment)
        elif part != segment:
            return None
    return params


def request_of(
    scope: Message, params: dict[str, str], body: bytes, under: Under | None = None
) -> Request:
    """The request as a plugin sees it."""
    query = dict(urllib.parse.parse_qsl(scope["query_string"].decode("ascii", "replace")))
    host, port = scope["client"] or ("", 0)
    return Request(params=params, query=query, body=body, peer=f"{host}:{port}", under=under)


async def answer_to(
    route: Route, scope: Message, params: dict[str, str], body: bytes, under: Under | None = None
) -> Response:
    """Run the handler; its errors become answers as the plugin contract says."""
    try:
        return await route.handler(request_of(scope, params, body, under))
    except Exception as error:
        return _refusal(route, error)


def _refusal(route: Route, error: Exception) -> Response:
    failure = failure_of(error)
    if failure is None:
        _log.error("unexpected error in %s %s", route.method, route.path, exc_info=error)
        text = f"internal error ({type(error).__name__}), see the log of the node"
        return Response(failure_body(INTERNAL, text, "internal"), 500)
    match error:
        case TooLarge():
            status = 413
        case Refused():
            status = 409
        case NotApplied():
            status = 503
        case OutcomeUnknown():
            status = 504
        case _:
            status = failure.status
    text = failure.detail or failure.text
    return Response(failure_body(failure.code, text, failure.reason), status)


def is_verdict(response: Response) -> bool:
    """Whether the answer to a numbered request is what became of its number.

    Not so: too large, too busy, no leader, not known, a defect of the handler.
    """
    return response.status < 500 and response.status not in (413, 429)


def encoded(response: Response) -> bytes:
    """The body of an answer that is not a stream."""
    if isinstance(response.body, bytes):
        return response.body
    return msgspec.json.encode(response.body)


async def stream_out(
    response: Response,
    stream: AsyncIterator[bytes],
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
    stopping: asyncio.Event,
    outgoing: Outgoing,
) -> None:
    """Send a stream until it ends, the client goes, or the door is `stopping`.

    The stream is closed in either case. A part that waits for its connection counts in `outgoing`,
    whose room is awaited before each part but the first.
    """
    loop = asyncio.get_running_loop()
    pump = loop.create_task(_pump(response.status, stream, send, outgoing))
    # The body has been read, so the next message says that the client has gone.
    gone = loop.create_task(_receive(receive))
    stopped = loop.create_task(_wait(stopping))
    tasks = (pump, gone, stopped)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if pump.done():
            pump.result()
            await send({"type": "http.response.body", "body": b""})
        elif not gone.done():
            # A proper end, if the client takes it: it need not think that something broke.
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await send({"type": "http.response.body", "body": b""})
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        close = getattr(stream, "aclose", None)
        if close is not None:
            with contextlib.suppress(RuntimeError):  # it is closed already
                await close()


async def _receive(receive: Callable[[], Awaitable[Message]]) -> None:
    await receive()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _pump(
    status: int,
    stream: AsyncIterator[bytes],
    send: Callable[[Message], Awaitable[None]],
    outgoing: Outgoing,
) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [JSON_TYPE]})
    async for part in stream:
        size = len(part)
        outgoing.moved(size)
        try:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            outgoing.moved(-size)
        del part  # an idle stream must not keep its last one
        await outgoing.room()

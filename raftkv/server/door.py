"""The listening half of the network door: uvicorn on the node's own event loop.

uvicorn is asked for its HTTP engine only. It gets no event loop, no signal handlers, no logging
and no middleware: those belong to the program that embeds the node. The socket is bound here,
because uvicorn ends the process when it cannot bind.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Generator
from typing import Final

import uvicorn

from raftkv.errors import AddressInUse, ConfigError

from .app import App
from .bounded import BoundedHttp

__all__ = ["CONNECTIONS_MAX", "STOP_TIMEOUT_S", "Door"]

# Connections at once; beyond it a request gets 503. A fifth of what a process may usually open.
CONNECTIONS_MAX: Final = 4096
# An idle connection is kept this long: clients pool connections and expect them to last.
IDLE_TIMEOUT_S: Final = 120
# Connections that wait to be accepted.
BACKLOG: Final = 2048
# Requests under way get this long when the door stops; then their connections are cut.
STOP_TIMEOUT_S: Final = 2


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield  # signals belong to the program


class Door:
    """Serves `app` at `host:port` on the running event loop.

    `port` 0 lets the operating system choose; `port` and `endpoint` then give the choice. A Door
    is started once and stopped once. `start` raises `AddressInUse` when the address is taken and
    `ConfigError` when it cannot be bound for another reason.
    """

    def __init__(self, app: App, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The bound port; before `start` the one that was asked for."""
        return self._port

    @property
    def endpoint(self) -> str:
        """`http://host:port`, as clients write it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def start(self) -> None:
        """Bind and serve; returns when connections are accepted."""
        listener = _bind(self._host, self._port)
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            loop="none",
            http=BoundedHttp,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=IDLE_TIMEOUT_S,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
        )
        config.load()
        server = self._server = _Server(config)
        server.lifespan = config.lifespan_class(config)
        # Awaited here, not in the task, so that a failure is the caller's.
        await server.startup(sockets=[listener])
        self._task = asyncio.get_running_loop().create_task(self._serve(server, listener))

    @staticmethod
    async def _serve(server: _Server, listener: socket.socket) -> None:
        await server.main_loop()
        await server.shutdown(sockets=[listener])

    async def stop(self) -> None:
        """Accept no more, let requests finish for `STOP_TIMEOUT_S`, close. Harmless if stopped."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        task, self._task = self._task, None
        await task


def _bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket, or an error that says what to change."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"http_address: cannot resolve {host!r}: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Two sockets may be bound to one address as long as neither listens: so listen here.
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"http_address {host}:{port} is already in use: stop the program that listens "
                f"there, or choose another port"
            ) from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"http_address {host}:{port} cannot be bound: {reason}") from None
    return listener

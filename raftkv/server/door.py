"""The listening half of the network door: uvicorn on the node's own event loop.

uvicorn is asked for its HTTP engine only. It gets no event loop, no signal handlers, no logging
and no middleware: those belong to the program that embeds the node. The socket is bound here,
because uvicorn ends the process when it cannot bind.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Generator, Sequence
from typing import Final

import uvicorn

from raftkv.allocator import trim
from raftkv.fork import not_for_children
from raftkv.plugin import Metric
from raftkv.start_errors import error_of_listening

from .accepting import TlsAccepting
from .app import App
from .bounded import DoorState, protocol_of
from .returning import Returning
from .tls import DoorTls

__all__ = ["STOP_TIMEOUT_S", "Door"]

# Connections that wait to be accepted.
BACKLOG: Final = 2048
# Requests under way get this long when the door stops; then their connections are cut.
STOP_TIMEOUT_S: Final = 2
# How often the end of these is looked for.
LOOK_S: Final = 0.05
# A client that is gone without a word is found out after 30 + 3 * 10 seconds.
KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
# How often connections are looked at for being too slow, or idle.
CHECK_S: Final = 1.0


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield  # signals belong to the program

    def _log_started_message(self, listeners: Sequence[socket.SocketType]) -> None:
        """Log nothing: uvicorn's loggers belong to the program, which may serve with it, too."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close, as uvicorn does it, without a line under uvicorn's name."""
        for each in (*self.servers, *(sockets or ())):
            each.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            for task in list(self.server_state.tasks):
                task.cancel()


class Door:
    """Serves `app` at `host:port` on the running event loop.

    `port` 0 lets the operating system choose; `port` and `endpoint` then give the choice. A Door
    is started once and stopped once. `start` raises `AddressInUse` when the address is taken and
    `ConfigError` when it cannot be bound for another reason; `label` is the key of the
    configuration that they name. With `tls` it speaks TLS only.
    """

    def __init__(
        self,
        app: App,
        host: str,
        port: int,
        *,
        tls: DoorTls | None = None,
        label: str = "http_address",
    ) -> None:
        self._app = app
        self._label = label
        self._host = host
        self._port = port
        self._tls = tls
        self._state = DoorState(app)
        self._returning = Returning()
        self._trimming: asyncio.Future[None] | None = None
        if tls is not None:
            app.admission.certified = tls.names
            tls.on_names = self._renamed
        self._server: _Server | None = None
        self._listener: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        #: True once it was started and stopped: it does not serve again.
        self.stopped = False

    def _renamed(self, names: frozenset[str]) -> None:
        """The certificate has other names now: heads that were taken by the former are judged."""
        self._app.admission.certified = names
        self._state.heads.forget()

    @property
    def port(self) -> int:
        """The bound port; before `start` the one that was asked for."""
        return self._port

    @property
    def endpoint(self) -> str:
        """`http://host:port`, or `https://...`, as clients write it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http{'s' if self._tls else ''}://{host}:{self._port}"

    def descriptors(self) -> list[int]:
        """What a forked child must not keep: the port and, once it is closed, what it accepted."""
        sockets = [] if self._listener is None else [self._listener]
        for connection in self._state.connections:
            found = connection.transport.get_extra_info("socket")
            if found is not None:
                sockets.append(found)
        return [number for each in sockets if (number := each.fileno()) >= 0]

    def metrics(self) -> list[Metric]:
        """What the door counts; the program that makes it gives this to `node.metrics.add`."""
        app, state = self._app, self._state
        refused = {**state.refused, **app.refused, **app.admission.refused}
        refused["answer_bytes_max"] = app.outgoing.refused
        refused["request_bytes_max"] += app.incoming.refused
        refused["watch_bytes_max"] = app.watch_bytes.refused
        return [
            Metric("connections", "gauge", len(state.connections), "Open connections."),
            Metric("connections_max", "gauge", app.limits.connections_max, "The limit."),
            Metric("handshakes", "gauge", state.handshakes, "TLS handshakes under way."),
            Metric("handshakes_failed", "counter", state.handshakes_failed, "Those that failed."),
            Metric("requests_in_flight", "gauge", app.requests, "Requests under way."),
            Metric("streams", "gauge", app.streams, "Open streams: watches and keep-alives."),
            Metric("request_bytes", "gauge", app.incoming.bytes, "Requests not answered yet."),
            Metric("answer_bytes", "gauge", app.outgoing.bytes, "Answers not taken by clients."),
            Metric("watch_bytes", "gauge", app.watch_bytes.bytes, "Watches of all streams."),
            Metric("requests", "counter", app.requests_total, "Requests taken."),
            Metric("requests_hot", "counter", state.hot_total, "Those that took the short way."),
            *(
                Metric("refused", "counter", count, "Refused, by the limit.", {"limit": limit})
                for limit, count in refused.items()
            ),
        ]

    async def start(self) -> None:
        """Bind and serve; returns when connections are accepted. Nothing while it serves.

        Raises RuntimeError once it was stopped.
        """
        if self.stopped:
            raise RuntimeError("the HTTP API was stopped: make another one to serve again")
        if self._listener is not None:
            return
        listener = _bind(self._host, self._port, self._label)
        self._port = listener.getsockname()[1]
        self._listener = listener
        not_for_children(self)
        config = uvicorn.Config(
            self._app,
            loop="none",
            http=protocol_of(self._state),  # type: ignore[arg-type]  # called, never subclassed
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            # A number that uvicorn needs; the door's own check comes first.
            timeout_keep_alive=int(self._app.limits.idle_timeout_s) + 1,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
        )
        config.load()
        server = self._server = _Server(config)
        server.lifespan = config.lifespan_class(config)
        # Awaited here, not in the task, so that a failure is the caller's.
        try:
            await server.startup(sockets=[listener] if self._tls is None else [])
        except BaseException:
            listener.close()
            raise
        loop = asyncio.get_running_loop()
        accepting: asyncio.Task[None] | None = None
        if self._tls is not None:
            made = functools.partial(
                protocol_of(self._state), config, server.server_state, server.lifespan.state
            )
            taking = TlsAccepting(self._state, listener, self._tls.context, made)
            accepting = loop.create_task(taking.run(), name="door accepting")
        self._tasks = [
            loop.create_task(self._serve(server, listener, accepting), name="door"),
            loop.create_task(self._check(loop), name="door check"),
        ]
        if self._tls is not None:
            self._tasks.append(loop.create_task(self._tls.watch(), name="door certificates"))

    async def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            now = loop.time()
            for connection in list(self._state.connections):
                connection.check(now)
            if self._returning.is_due(self._app.incoming.bytes + self._app.outgoing.bytes, now):
                # Not awaited: the loop's threads may all be busy.
                self._trimming = loop.run_in_executor(None, trim)

    async def reload_certificates(self) -> None:
        """Read the files of `tls` now. Raises CertificateError; then the former ones stay."""
        if self._tls is not None:
            await self._tls.reload()

    @staticmethod
    async def _serve(
        server: _Server, listener: socket.socket, accepting: asyncio.Task[None] | None
    ) -> None:
        await server.main_loop()
        if accepting is not None:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
        await server.shutdown(sockets=[listener])

    async def stop(self) -> None:
        """Accept no more, let requests finish for `STOP_TIMEOUT_S`, close. Harmless if stopped."""
        if self._server is None or not self._tasks:
            return
        self.stopped = True
        self._app.stop()
        self._server.should_exit = True
        (serving, *others), self._tasks = self._tasks, []
        await serving
        for connection in list(self._state.connections):
            connection.cut()
        # A turn, in which they learn of it.
        await asyncio.sleep(0)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _bind(host: str, port: int, label: str) -> socket.socket:
    """A bound TCP socket, or the error of raftkv; `label` is the key that it names."""
    shown = f"{f'[{host}]' if ':' in host else host}:{port}"
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by connections. A quiet watch sends nothing: only the kernel finds out that its
        # client is gone without a word, and frees its place among the streams.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):  # not on every system
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        listener.bind(address)
        # Two sockets may be bound to one address as long as neither listens: so listen here.
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise error_of_listening(error, label, shown) from None
    return listener

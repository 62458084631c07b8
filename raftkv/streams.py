"""TCP streams of the operating system, of which a forked child keeps none.

The loop's own `create_connection` hands a socket out only once it is connected: a child that is
forked before would keep the connection. So the sockets are made here, and known before.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import weakref
from collections.abc import Callable
from typing import Any

from .fork import not_for_children

# Connections that wait to be accepted: all nodes of a cluster that dial at once.
BACKLOG = 1024


class OsListener:
    """A listening port."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self._port: int = server.sockets[0].getsockname()[1]
        not_for_children(self)

    def descriptors(self) -> list[int]:
        """What a forked child must not keep."""
        return [each.fileno() for each in self._server.sockets]

    @property
    def port(self) -> int:
        """The one of the first address."""
        return self._port

    def close(self) -> None:
        """Accept no more."""
        self._server.close()


class _Accepted(asyncio.Protocol):
    """Registers the stream of an accepted connection, which then is its protocol's alone."""

    def __init__(
        self, protocol: asyncio.Protocol, accepted: weakref.WeakSet[asyncio.BaseTransport]
    ) -> None:
        self._protocol = protocol
        self._accepted = accepted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._accepted.add(transport)
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)


class OsStreams:
    """Listens and connects on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connected: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        # Those of an open listener are found by its address; it may be closed before they are.
        self._accepted: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        not_for_children(self)

    def descriptors(self) -> list[int]:
        """What a forked child must not keep: the connections to other nodes."""
        accepted = (each.get_extra_info("socket") for each in self._accepted)
        found = [*self._connected, *(each for each in accepted if each is not None)]
        return [number for each in found if (number := each.fileno()) >= 0]

    async def listen(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> OsListener:
        """At all addresses of the host."""
        server = await self._loop.create_server(
            lambda: _Accepted(factory(), self._accepted),
            host,
            port,
            backlog=BACKLOG,
            start_serving=False,  # registered first: the loop goes on before this returns
        )
        listener = OsListener(server)
        try:
            await server.start_serving()
        except BaseException:
            listener.close()
            raise
        return listener

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> asyncio.Transport:
        """To the first address of the host that takes the connection, one after the other."""
        errors: list[OSError] = []
        for family, kind, protocol, _, address in await self._addresses(host, port):
            made: socket.socket | None = None
            try:
                made = socket.socket(family, kind, protocol)
                self._connected.add(made)
                await self._connect(made, address)
            except OSError as error:
                errors.append(error)
                if made is not None:
                    made.close()
            except BaseException:
                if made is not None:
                    made.close()
                raise
            else:
                transport, _ = await self._loop.create_connection(factory, sock=made)
                return transport
        try:
            raise _error_of_all(errors)
        finally:
            errors.clear()  # their tracebacks refer to this frame: a circle for the collector

    async def _addresses(self, host: str, port: int) -> list[tuple[Any, ...]]:
        """As `socket.getaddrinfo` has them. A numeric host needs no thread to be looked up in."""
        kind = socket.SOCK_STREAM
        try:
            return list(socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST))
        except socket.gaierror:
            return list(await self._loop.getaddrinfo(host, port, type=kind))

    async def _connect(self, made: socket.socket, address: Any) -> None:
        """The loop's `sock_connect`, which in uvloop loses the zone of an IPv6 address."""
        made.setblocking(False)
        try:
            made.connect(address)
        except (BlockingIOError, InterruptedError):
            writable = self._loop.create_future()
            self._loop.add_writer(made, _settle, writable)
            try:
                await writable
            finally:
                self._loop.remove_writer(made)
            code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, f"Connect call failed {address}") from None


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _error_of_all(errors: list[OSError]) -> OSError:
    """The error of connecting to a host, from those of its addresses."""
    if len(errors) == 1:
        return errors[0]
    text = "Multiple exceptions: " + ", ".join(map(str, errors))
    if errors and all(isinstance(each, ConnectionRefusedError) for each in errors):
        return ConnectionRefusedError(errno.ECONNREFUSED, text)
    return OSError(text)

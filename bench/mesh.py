"""The drivers' own network: a Unix socket per driver, so that the cluster carries no client.

A frame is a length of four bytes and a msgpack message. Connections are made once, before the
load; a driver that disappears ends the run, so there is nothing to retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bench.scenarios import Baton, Goodbye

__all__ = ["SocketMesh"]

FRAME_BYTES_MAX = 1024 * 1024
"""A client with its history is some hundred bytes; a frame beyond this is a broken stream."""

_HEAD = 4


class _Peer(asyncio.Protocol):
    def __init__(self, receive: Callable[[Baton | Goodbye], None]) -> None:
        self._receive = receive
        self._decoder = msgspec.msgpack.Decoder(Baton | Goodbye)
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        at = 0
        while len(buffer) - at >= _HEAD:
            size = int.from_bytes(buffer[at : at + _HEAD])
            if size > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {size} bytes on the drivers' mesh")
            if len(buffer) - at - _HEAD < size:
                break
            message: Baton | Goodbye = self._decoder.decode(buffer[at + _HEAD : at + _HEAD + size])
            at += _HEAD + size
            self._receive(message)
        self._buffer = buffer[at:]


class SocketMesh:
    """One driver's end. `paths` maps all drivers, this one too, to their sockets."""

    def __init__(self, name: str, paths: Mapping[str, str]) -> None:
        self.name = name
        self.drivers: Sequence[str] = tuple(paths)
        self._paths = paths
        self._links: dict[str, asyncio.Transport] = {}
        self._receive: Callable[[Baton | Goodbye], None] | None = None
        self._server: asyncio.Server | None = None
        self._encoder = msgspec.msgpack.Encoder()

    async def listen(self, receive: Callable[[Baton | Goodbye], None]) -> None:
        """Accept the others' messages from now on."""
        self._receive = receive
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: _Peer(receive), self._paths[self.name]
        )

    async def connect(self) -> None:
        """Connect to all others; they must be listening."""
        loop = asyncio.get_running_loop()
        for driver, path in self._paths.items():
            if driver != self.name and driver not in self._links:
                link, _ = await loop.create_unix_connection(asyncio.Protocol, path)
                self._links[driver] = link

    def send(self, driver: str, message: Baton | Goodbye) -> None:
        if driver == self.name:
            assert self._receive is not None, "listen first"
            asyncio.get_running_loop().call_soon(self._receive, message)
            return
        body = self._encoder.encode(message)
        self._links[driver].write(len(body).to_bytes(_HEAD) + body)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        if self._server is not None:
            self._server.close()

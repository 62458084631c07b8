"""One connection of the simulated network: two transports with a pipe of bytes each way.

A transport behaves as asyncio's socket transport. What differs from a real socket: all bytes that
have not been delivered count as the writer's buffer (there is no kernel's buffer in between);
`close` reports connection_lost at once although its bytes still travel; bytes for a closed
transport are dropped without a reset, as its end arrives anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

from raftkv.testing.pipe import Mark, Pipe

if TYPE_CHECKING:
    from raftkv.testing.network import SimNetwork

__all__ = ["Connection", "SimTransport"]

# asyncio's own default for a stream's write buffer.
HIGH_WATER_BYTES = 64 * 1024


class SimTransport(asyncio.Transport):
    """One end of a connection, with the behaviour of asyncio's socket transport."""

    def __init__(
        self, connection: Connection, host: str, context: Context, extra: dict[str, Any]
    ) -> None:
        super().__init__(extra)
        self.connection = connection
        self.host = host
        self.context = context
        # True while bytes may be handed to the protocol.
        self.accepts = False
        self.gone = False
        self.write_paused = False
        self.high_water_bytes = HIGH_WATER_BYTES
        self.low_water_bytes = HIGH_WATER_BYTES // 4
        self.out: Pipe
        self._protocol: asyncio.Protocol | None = None
        self._closing = False
        self._ended = False
        self._reading_paused = False

    # -- for the network --------------------------------------------------------------------------

    def open(self, protocol: asyncio.Protocol) -> None:
        """The connection stands: tell the protocol, then let bytes in."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._update_accepts()

    def received(self, data: bytes) -> None:
        assert self._protocol is not None
        try:
            self._protocol.data_received(data)
        except Exception as error:
            self._break(error, "data_received")

    def end_received(self) -> None:
        assert self._protocol is not None
        try:
            keep_open = self._protocol.eof_received()
        except Exception as error:
            self._break(error, "eof_received")
            return
        if not keep_open:
            self.close()

    def lost(self, error: Exception | None) -> None:
        """Runs in this end's context: the connection is over."""
        if self.gone:
            return
        self.vanish()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def vanish(self) -> None:
        """The connection is over and nobody here is left to be told."""
        self.gone = True
        self._closing = True
        self.accepts = False
        self.connection.forget_if_over()

    def drained(self) -> None:
        if self.write_paused and not self.gone and self.out.pending_bytes <= self.low_water_bytes:
            self.write_paused = False
            if self._protocol is not None:
                self._protocol.resume_writing()

    def _update_accepts(self) -> None:
        self.accepts = self._protocol is not None and not self._closing and not self._reading_paused
        if self.accepts:
            self.connection.pipe_to(self).wake()

    def _break(self, error: Exception, where: str) -> None:
        """A protocol that raises loses its connection, as in asyncio."""
        self.connection.network.loop.call_exception_handler(
            {"message": f"{where} of {self._protocol!r} failed", "exception": error}
        )
        self._abort(error)

    def _abort(self, error: Exception | None) -> None:
        if self.gone or self._closing:
            return
        self._closing = True
        self.accepts = False
        self.connection.pipe_to(self).lose()
        self.out.lose_tail()
        self.out.send_mark(Mark.RESET)
        self.connection.network.loop.call_soon(self.lost, error, context=self.context)

    # -- asyncio.Transport ------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._ended:
            raise RuntimeError("cannot write after write_eof")
        if self._closing or not data:
            return
        if self.connection.broken:
            return
        self.out.send(bytes(data))
        if self.out.pending_bytes > self.high_water_bytes and not self.write_paused:
            self.write_paused = True
            if self._protocol is not None:
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._closing and not self._ended:
            self._ended = True
            self.out.send_mark(Mark.END)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self.accepts = False
        if not self._ended and not self.connection.broken:
            self.out.send_mark(Mark.END)
        self.connection.pipe_to(self).lose()
        self.connection.network.loop.call_soon(self.lost, None, context=self.context)

    def abort(self) -> None:
        self._abort(None)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._closing and not self._reading_paused

    def pause_reading(self) -> None:
        self._reading_paused = True
        self._update_accepts()

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._update_accepts()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be at least low ({low}), and low at least 0")
        self.high_water_bytes = high
        self.low_water_bytes = low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (self.low_water_bytes, self.high_water_bytes)

    def get_write_buffer_size(self) -> int:
        return self.out.pending_bytes

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)
        self._update_accepts()

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None, "the connection has not been made"
        return self._protocol


class Connection:
    """Two transports and the two pipes between them."""

    def __init__(
        self,
        network: SimNetwork,
        number: int,
        ends: tuple[tuple[str, int, Context], tuple[str, int, Context]],
        on_over: Callable[[int], None],
    ) -> None:
        self.network = network
        self.number = number
        self.broken = False
        self._on_over = on_over
        (host, port, context), (peer, peer_port, peer_context) = ends
        here, there = (host, port), (peer, peer_port)
        self.client = SimTransport(self, host, context, _extra(here, there))
        self.server = SimTransport(self, peer, peer_context, _extra(there, here))
        self.client.out = Pipe(network, network.link(host, peer), self.client, self.server)
        self.server.out = Pipe(network, network.link(peer, host), self.server, self.client)

    @property
    def ends(self) -> tuple[SimTransport, SimTransport]:
        return (self.client, self.server)

    def other(self, end: SimTransport) -> SimTransport:
        return self.server if end is self.client else self.client

    def pipe_to(self, end: SimTransport) -> Pipe:
        return self.other(end).out

    def joins(self, a: str, b: str) -> bool:
        return (self.client.host, self.server.host) in ((a, b), (b, a))

    def rearm(self) -> None:
        """A link may have opened: let what waits for it go."""
        self.client.out.rearm()
        self.server.out.rearm()

    def reset(self) -> None:
        """Break it: what is on its way is lost, each end learns of it a little later."""
        if self.broken:
            return
        self.broken = True
        for end in self.ends:
            end.out.lose()
            if not end.gone:
                self.network.loop.call_later(
                    self.network.delay_s(),
                    end.lost,
                    ConnectionResetError("the connection was reset"),
                    context=end.context,
                )

    def end_died(self, end: SimTransport, *, silent: bool) -> None:
        """The process at `end` is gone; unless the machine fell silent its peer is told."""
        if end.gone:
            return
        end.vanish()
        self.pipe_to(end).lose()
        end.out.lose_tail()
        if not silent and not self.broken:
            end.out.send_mark(Mark.RESET)

    def forget_if_over(self) -> None:
        if self.client.gone and self.server.gone:
            self._on_over(self.number)


def _extra(here: tuple[str, int], there: tuple[str, int]) -> dict[str, Any]:
    return {"sockname": here, "peername": there, "sslcontext": None, "socket": None}

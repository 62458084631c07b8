"""Connections of a door that speaks TLS, from being accepted to the end of the handshake.

The event loop's own server knows a TLS connection only after its handshake: until then nobody
counts it, and it may take a minute. So a door with TLS accepts by itself. A connection counts
among `connections_max` from its first moment, its handshake has `request_timeout_s`, and how many
failed is a figure of the node.

One too many is closed without a word: in TLS nothing can be said before the handshake.

It does not use `loop.sock_accept`: in asyncio's own loop one that is cancelled in the turn in which
somebody connects fails with InvalidStateError, and nobody closes that connection.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from .bounded import BoundedHttp, DoorState

__all__ = ["ACCEPT_PAUSE_S", "TlsAccepting"]

# After a failure to accept, which mostly is a lack of file descriptors.
ACCEPT_PAUSE_S: Final = 1.0
# In one turn of the loop, which has other work.
ACCEPTS_MAX: Final = 16


class TlsAccepting:
    """Accepts at `listener`, which stays the caller's, and makes a protocol of each connection.

    `context` gives the context of one handshake.
    """

    def __init__(
        self,
        state: DoorState,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext],
        make: Callable[[], BoundedHttp],
    ) -> None:
        self._state = state
        self._listener = listener
        self._context = context
        self._make = make
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Accept until cancelled; handshakes under way then end as well."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._listen(loop)
        try:
            await loop.create_future()
        finally:
            self._rest(loop)
            for task in self._handshakes:
                task.cancel()
            await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        self._pause = None
        loop.add_reader(self._listener, self._accept, loop)

    def _rest(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()

    def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        """Whoever waits at the listener; the rest of a crowd comes in the next turn."""
        for _ in range(ACCEPTS_MAX):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return  # nobody waits, or who did has gone
            except OSError:
                self._rest(loop)
                self._pause = loop.call_later(ACCEPT_PAUSE_S, self._listen, loop)
                return
            accepted.setblocking(False)
            self._take(loop, accepted)

    def _take(self, loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> None:
        state = self._state
        if len(state.connections) + state.handshakes >= state.limits.connections_max:
            state.refused["connections_max"] += 1
            accepted.close()
            return
        state.handshakes += 1
        task = loop.create_task(self._shake(loop, accepted), name="door handshake")
        self._handshakes.add(task)
        task.add_done_callback(self._shaken)

    def _shaken(self, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        self._state.handshakes -= 1

    async def _shake(self, loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> None:
        timeout_s = self._state.limits.request_timeout_s
        try:
            await loop.connect_accepted_socket(
                self._make, accepted, ssl=self._context(), ssl_handshake_timeout=timeout_s
            )
        except OSError:  # what TLS did not like, a client that has gone, or one that is too slow
            self._state.handshakes_failed += 1
            accepted.close()

"""Connections of a door that speaks TLS, from being accepted to the end of the handshake.

The event loop's own server knows a TLS connection only after its handshake: until then nobody
counts it, and it may take a minute. So a door with TLS accepts by itself. A connection counts
among `connections_max` from its first moment, its handshake has `request_timeout_s`, and how many
failed is a figure of the node.

One too many is closed without a word: in TLS nothing can be said before the handshake.
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


class TlsAccepting:
    """Accepts at `listener`, which stays the caller's, and makes a protocol of each connection."""

    def __init__(
        self,
        state: DoorState,
        listener: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], BoundedHttp],
    ) -> None:
        self._state = state
        self._listener = listener
        self._context = context
        self._make = make
        self._handshakes: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Accept until cancelled; handshakes under way then end as well."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(self._listener)
                except ConnectionError:
                    continue  # gone before it was accepted
                except OSError:
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                    continue
                self._take(loop, accepted)
        finally:
            for task in self._handshakes:
                task.cancel()
            await asyncio.gather(*self._handshakes, return_exceptions=True)

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
                self._make, accepted, ssl=self._context, ssl_handshake_timeout=timeout_s
            )
        except OSError:  # what TLS did not like, a client that has gone, or one that is too slow
            self._state.handshakes_failed += 1
            accepted.close()

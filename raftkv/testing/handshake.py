"""Setting up a connection of the simulated network: the three packets and what may stop them.

The first packet finds a listener, nobody (refused), or no way through: then it is sent again, at
doubling intervals, until it arrives or the caller's patience ends. A caller who gives up, or dies,
after the server has accepted leaves a connection behind that is reset.
"""

from __future__ import annotations

import asyncio
import errno
from contextvars import copy_context
from typing import TYPE_CHECKING

from raftkv.testing.process import PROCESS

if TYPE_CHECKING:
    from raftkv.testing.network import SimListener, SimNetwork
    from raftkv.testing.stream import Connection, SimTransport

__all__ = ["Attempt"]


class Attempt:
    """One call of connect. `answer` becomes the client's transport, or the error."""

    def __init__(self, network: SimNetwork, source: str, target: str, port: int) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._port = port
        self._context = copy_context()
        self._deadline_s = network.loop.now + network.options.connect_timeout_s
        self._retry_s = network.options.connect_retry_s
        self.answer: asyncio.Future[SimTransport] = network.loop.create_future()

    def start(self) -> None:
        self._network.later(self._network.delay_s(), self._arrive)

    def abandon(self) -> None:
        """The caller was cancelled; if the answer was there already, nobody will use it."""
        answer = self.answer
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            answer.result().abort()

    def _arrive(self) -> None:
        """The first packet is at the target, unless something is in its way."""
        if self._is_pointless():
            return
        network = self._network
        if network.is_blocked(self._source, self._target) or network.is_silent(self._target):
            self._try_again()
            return
        listener = network.listener(self._target, self._port)
        if listener is None:
            network.later(network.delay_s(), self._refuse)
            return
        connection = network.add_connection(
            (self._source, network.ephemeral_port(), self._context),
            (self._target, self._port, listener.context.copy()),
        )
        server = connection.server
        network.loop.call_soon(_accept, server, listener, context=server.context)
        network.later(network.delay_s(), self._return, connection)

    def _try_again(self) -> None:
        network = self._network
        left_s = self._deadline_s - network.loop.now
        if self._retry_s > left_s:
            network.later(left_s, self._time_out)
        else:
            network.later(self._retry_s, self._arrive)
            self._retry_s *= 2

    def _return(self, connection: Connection) -> None:
        """The target's answer is back at the caller, unless something is in its way."""
        network = self._network
        if self._is_pointless():
            _drop(connection)
        elif connection.client.gone:
            self._refuse()
        elif network.is_blocked(self._target, self._source):
            if network.loop.now < self._deadline_s:
                network.later(network.options.connect_retry_s, self._return, connection)
            else:
                self._time_out()
                _drop(connection)
        else:
            network.note(self._source, f"connected to {self._target}:{self._port}")
            self.answer.set_result(connection.client)

    def _is_pointless(self) -> bool:
        process = self._context.get(PROCESS)
        return self.answer.done() or (process is not None and not process.alive)

    def _refuse(self) -> None:
        self._fail(ConnectionRefusedError(errno.ECONNREFUSED, self._says("refused")))

    def _time_out(self) -> None:
        self._fail(TimeoutError(errno.ETIMEDOUT, self._says("does not answer")))

    def _says(self, what: str) -> str:
        return f"{self._target}:{self._port} {what}"

    def _fail(self, error: OSError) -> None:
        if not self._is_pointless():
            self._network.note(self._source, error.strerror or "")
            self.answer.set_exception(error)


def _accept(server: SimTransport, listener: SimListener) -> None:
    if not server.gone:
        server.open(listener.factory())


def _drop(connection: Connection) -> None:
    """Nobody is at the caller's end."""
    connection.client.vanish()
    connection.reset()

"""Calls between nodes for plugins' service halves: any member to any member, at most once.

A call carries no authority over state; a verdict goes through the log. Links are dialled on
demand, one per callee, and kept. Three kinds of failure are told apart: `PeerUnreachable` (never
delivered), `Timeout` (perhaps handled) and `RemoteFailed` (the handler raised).

A machine that is gone without a word leaves a link that stands for as long as TCP tries. So a link
on which nothing was answered between a call and its time-out takes no further calls, and ends with
the last of those that wait on it; the next call dials again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .errors import (
    PeerUnreachable,
    RaftkvError,
    RemoteFailed,
    Stopped,
    Timeout,
    TooLarge,
    again,
)
from .raft import wire
from .raft.transport import Hub, Link
from .runtime import Runtime, Timer

__all__ = ["Handler", "RpcHub"]

log = logging.getLogger("raftkv.rpc")

Handler = Callable[[str, bytes], Awaitable[bytes]]

# Room for the method's name and the message's frame beside the payload.
_OVERHEAD_BYTES = 1024
# How long the handshake of a new link may take before the callee counts as unreachable.
_CONNECT_S = 2.0


class _Call:
    __slots__ = ("future", "link", "sent_at", "timer")

    def __init__(
        self, future: asyncio.Future[bytes], link: Link, timer: Timer, sent_at: float
    ) -> None:
        self.future = future
        self.link = link
        self.timer = timer
        self.sent_at = sent_at


class RpcHub:
    """One node's calls, out and in. Methods are named `<plugin>.<method>`."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        hub: Hub,
        addresses_of: Callable[[str], Sequence[str]],
        frame_bytes_max: int,
    ) -> None:
        self._name = name
        self._runtime = runtime
        self._hub = hub
        self._addresses_of = addresses_of
        self._payload_bytes_max = frame_bytes_max - _OVERHEAD_BYTES
        self._handlers: dict[str, Handler] = {}
        self._links: dict[str, asyncio.Future[Link]] = {}
        self._waiting: dict[Link, asyncio.Future[Link]] = {}
        self._calls: dict[int, _Call] = {}
        # When a link that was dialled has answered last, and those that take no further calls.
        self._answered: dict[Link, float] = {}
        self._left: set[Link] = set()
        self._number = 0
        self._stopped = False
        # Calls whose method does not begin like this are refused, and with what.
        self._refusal: tuple[str, RaftkvError] | None = None

    def refuse_all_but(self, prefix: str, error: RaftkvError) -> None:
        """From now on answer no calls but those whose method begins with `prefix`."""
        self._refusal = (prefix, error)

    def _handler_of(self, method: str) -> Handler:
        """Raises RemoteFailed, or the error of `refuse_all_but`."""
        if self._refusal is not None and not method.startswith(self._refusal[0]):
            raise again(self._refusal[1])
        handler = self._handlers.get(method)
        if handler is None:
            raise RemoteFailed(f"{self._name} has no method {method!r}")
        return handler

    def register(self, method: str, handler: Handler) -> None:
        """Answer calls of `method` with `await handler(sender_name, payload)`."""
        self._handlers[method] = handler

    @property
    def methods(self) -> list[str]:
        """The methods that this node answers."""
        return sorted(self._handlers)

    async def call(self, node: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        """Call a method on a member. See the module's text for the errors."""
        if self._stopped:
            raise Stopped("this node has stopped")
        if len(payload) > self._payload_bytes_max:
            raise TooLarge(
                f"a call's payload of {len(payload)} bytes exceeds {self._payload_bytes_max}"
            )
        if node == self._name:
            return await self._call_self(method, payload, timeout_s)
        deadline = self._runtime.monotonic() + timeout_s
        link = await self.connected(node, timeout_s)
        now = self._runtime.monotonic()
        timeout_s = max(0.0, deadline - now)
        self._number += 1
        number = self._number
        future = self._runtime.future()
        timer = self._runtime.call_later(timeout_s, self._timed_out, number, node, method)
        self._calls[number] = _Call(future, link, timer, now)
        link.send(wire.RpcRequest(number, method, payload))
        try:
            return await future  # type: ignore[no-any-return]
        finally:
            self._calls.pop(number, None)
            timer.cancel()
            self._end_if_left(link)

    async def connected(self, node: str, timeout_s: float) -> Link:
        """A link to a member, whose `peer` is that member's handshake. Raises PeerUnreachable."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._link_to(node)
        except TimeoutError:
            raise PeerUnreachable(f"{node} did not answer a handshake in time") from None

    async def _call_self(self, method: str, payload: bytes, timeout_s: float) -> bytes:
        handler = self._handler_of(method)
        scope = asyncio.timeout(timeout_s)
        try:
            async with scope:
                return await handler(self._name, payload)
        except Exception as error:
            if scope.expired():
                raise Timeout(f"{self._name} has not answered {method} in time") from None
            raise RemoteFailed(f"{type(error).__name__}: {error}") from error

    def _timed_out(self, number: int, node: str, method: str) -> None:
        call = self._calls.get(number)
        if call is not None and not call.future.done():
            call.future.set_exception(Timeout(f"{node} has not answered {method} in time"))
            if self._answered.get(call.link, 0.0) < call.sent_at:
                self._leave(node, call.link)

    # -- links

    def _leave(self, node: str, link: Link) -> None:
        """Its other end may be gone: the next call is to dial again."""
        known = self._links.get(node)
        if known is not None and _link_of(known) is link:
            del self._links[node]
        if link.up:
            self._left.add(link)

    def _end_if_left(self, link: Link) -> None:
        if link in self._left and not any(call.link is link for call in self._calls.values()):
            self._left.discard(link)
            link.abort()  # what `close` sends before the end would wait for the other end

    async def _link_to(self, node: str) -> Link:
        known = self._links.get(node)
        if known is not None and known.done() and not known.cancelled():
            link = _link_of(known)
            if link is not None and link.up:
                return link
            known = None
        if known is None:
            known = self._runtime.future()
            self._links[node] = known
            self._runtime.spawn(self._open(node, known), f"call {node}")
        return await asyncio.shield(known)

    async def _open(self, node: str, opened: asyncio.Future[Link]) -> None:
        try:
            link = await self._dial(node)
            self._waiting[link] = opened
            if link.up:
                self._connected(link)
            self._runtime.call_later(_CONNECT_S, self._connect_timed_out, link, node)
        except (OSError, ValueError) as error:
            if not opened.done():
                unreachable = PeerUnreachable(f"{node} cannot be reached: {error}")
                unreachable.refused = isinstance(error, ConnectionRefusedError)
                opened.set_exception(unreachable)
                opened.exception()  # the caller may have gone; an unread error is no news

    async def _dial(self, node: str) -> Link:
        """At the first of its addresses that accepts a connection.

        Raises OSError, or ValueError for a host that is none: members give their addresses.
        ConnectionRefusedError only if all of them refuse.
        """
        error: Exception | None = None
        for address in self._addresses_of(node):
            try:
                return await self._hub.dial(address, "rpc", node)
            except (OSError, ValueError) as failure:
                if error is None or not isinstance(failure, ConnectionRefusedError):
                    error = failure
        raise error or OSError("no member of this name is known")

    def _connected(self, link: Link) -> None:
        opened = self._waiting.pop(link, None)
        if opened is not None and not opened.done():
            opened.set_result(link)

    def _connect_timed_out(self, link: Link, node: str) -> None:
        opened = self._waiting.pop(link, None)
        if opened is not None and not opened.done():
            opened.set_exception(PeerUnreachable(f"{node} did not greet in time"))
            opened.exception()
            link.close()

    def link_up(self, link: Link) -> None:
        self._connected(link)

    def link_down(self, link: Link) -> None:
        self._answered.pop(link, None)
        self._left.discard(link)
        opened = self._waiting.pop(link, None)
        if opened is not None and not opened.done():
            opened.set_exception(PeerUnreachable("the connection broke before the greeting"))
            opened.exception()
        for call in list(self._calls.values()):
            if call.link is link and not call.future.done():
                call.future.set_exception(Timeout("the connection broke during the call"))

    # -- messages

    def on_request(self, link: Link, message: wire.RpcRequest) -> None:
        self._runtime.spawn(self._answer(link, message), f"answer {message.method}")

    async def _answer(self, link: Link, message: wire.RpcRequest) -> None:
        try:
            handler = self._handler_of(message.method)
            payload = await handler(link.peer_name, message.payload)
            if len(payload) > self._payload_bytes_max:
                # The caller would have to close the link, and with it all other calls.
                raise TooLarge(
                    f"the answer of {len(payload)} bytes exceeds {self._payload_bytes_max}"
                )
            link.send(wire.RpcReply(message.number, "", payload))
        except Exception as error:
            if not isinstance(error, RaftkvError):
                log.exception("the handler of %s failed", message.method)
            text = f"{type(error).__name__}: {error}"[:500]
            link.send(wire.RpcReply(message.number, "remote_failed", text.encode()))

    def on_reply(self, link: Link, message: wire.RpcReply) -> None:
        if link.up:
            self._answered[link] = self._runtime.monotonic()
        call = self._calls.get(message.number)
        if call is None or call.link is not link or call.future.done():
            return  # its caller has given up
        if message.error:
            call.future.set_exception(RemoteFailed(message.payload.decode(errors="replace")))
        else:
            call.future.set_result(message.payload)

    def stop(self) -> None:
        self._stopped = True
        error: Any
        for call in list(self._calls.values()):
            if not call.future.done():
                error = Timeout("this node stops")
                call.future.set_exception(error)

    def for_plugin(self, plugin: str) -> PluginRpc:
        return PluginRpc(self, plugin)


def _link_of(opened: asyncio.Future[Link]) -> Link | None:
    """The link that was opened; None if it was not, or not yet."""
    if not opened.done() or opened.cancelled() or opened.exception() is not None:
        return None
    return opened.result()


class PluginRpc:
    """A plugin's view of the calls: its method names cannot meet another plugin's."""

    def __init__(self, hub: RpcHub, plugin: str) -> None:
        self._hub = hub
        self._prefix = f"{plugin}."

    def register(self, method: str, handler: Handler) -> None:
        self._hub.register(self._prefix + method, handler)

    async def call(self, node: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        return await self._hub.call(node, self._prefix + method, payload, timeout_s)

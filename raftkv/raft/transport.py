"""Streams between nodes: one listening port, links with a handshake, dialling that never tires.

A *link* is one connection for one purpose: `raft` (between cores), `follow` (a replicant and its
upstream core) or `rpc` (plugins' service halves). It starts with a `Hello` in each direction; the
acceptor checks the dialler's and answers with its own or with a `Refusal`. Before that, frames
are limited to `HELLO_BYTES_MAX` and nothing but a Hello is decoded.

Between two cores the one with the greater name dials, so that there is one link per pair. A link
that replaces an older one to the same node closes the older: the newer stream is the one whose
other end is alive.

What is ugly: PySyncObj wants a `Transport` object made inside its constructor, with callbacks set
on it. `RaftTransport` is that object; it only passes on.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any, Protocol, cast

from pysyncobj.transport import Transport as SyncObjTransport

from raftkv.config import parse_address
from raftkv.errors import AddressInUse
from raftkv.runtime import Listener, Runtime

from . import wire
from .membership import name_of

__all__ = ["Hub", "Link", "RaftTransport"]

log = logging.getLogger("raftkv.transport")

# A peer that accepts a connection must greet within this time, else the connection is a ghost.
HELLO_TIMEOUT_S = 3.0
# Dialling a dead peer: first retry soon, then at most this often.
REDIAL_MIN_S = 0.02
REDIAL_MAX_S = 0.5


class LinkOwner(Protocol):
    """Who decides about links: the node."""

    def hello(self, purpose: str) -> wire.Hello:
        """This node's greeting, as of now."""

    def judge(self, hello: wire.Hello) -> wire.Refusal | None:
        """Whether to talk to this peer."""

    def refused(self, refusal: wire.Refusal, address: str) -> None:
        """A peer that this node dialled will not talk to it."""

    def linked(self, name: str) -> bool:
        """Whether a link that `keep_dialling(name, ...)` is for is up, whoever dialled it."""

    def link_up(self, link: Link) -> None: ...

    def link_down(self, link: Link) -> None: ...


class Link(asyncio.Protocol):
    """One connection. `receive` is set by the owner in `link_up` and gets decoded messages."""

    def __init__(self, hub: Hub, dialled: str | None, purpose: str) -> None:
        self._hub = hub
        self._frames = wire.Frames(wire.HELLO_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._timer: Any = None
        self.dialled = dialled
        self.purpose = purpose
        self.peer: wire.Hello | None = None
        self.receive: Callable[[Link, wire.Message], None] | None = None
        # Called when several messages of one read have been delivered: batch work belongs here.
        self.delivered: Callable[[], None] | None = None
        self.closed: asyncio.Future[None] = hub.runtime.future()

    @property
    def peer_id(self) -> str:
        assert self.peer is not None
        return self.peer.raft_id

    @property
    def peer_name(self) -> str:
        return name_of(self.peer_id)

    @property
    def up(self) -> bool:
        return self.peer is not None and not self.closed.done()

    @property
    def unsent_bytes(self) -> int:
        """What waits in this process for the peer to read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._hub.opened(self)
        self._timer = self._hub.runtime.call_later(HELLO_TIMEOUT_S, self._hello_missing)
        if self.dialled is not None:
            self.send(self._hub.owner.hello(self.purpose))

    def data_received(self, data: bytes) -> None:
        try:
            if self.peer is None:
                # Only the greeting is cut out at the small limit; what follows it in the same
                # read belongs to the known peer.
                self._greet(data)
                return
            self._deliver(self._frames.feed(data))
        except wire.ProtocolError as error:
            log.warning("closing a connection: %s", error)
            self.close()

    def _greet(self, data: bytes) -> None:
        first = self._frames.feed_one(data)
        if first is None:
            return
        message = wire.decode(first)
        owner = self._hub.owner
        if isinstance(message, wire.Refusal) and self.dialled is not None:
            owner.refused(message, self.dialled)
            self.close()
            return
        if not isinstance(message, wire.Hello):
            raise wire.ProtocolError(f"{type(message).__name__} before Hello")
        if message.version != wire.PROTOCOL_VERSION:
            raise wire.ProtocolError(f"protocol version {message.version} is not spoken here")
        refusal = owner.judge(message)
        if refusal is not None:
            # To a dialled peer too: it has accepted this node, and may be the one that was wiped.
            self.send(refusal)
            self.close()
            return
        if self.dialled is None:
            self.purpose = message.purpose
            self.send(owner.hello(self.purpose))
        self.peer = message
        self._timer.cancel()
        self._frames.limit = self._hub.frame_bytes_max
        owner.link_up(self)
        self._deliver(self._frames.feed(b""))

    def _deliver(self, bodies: list[bytes]) -> None:
        for body in bodies:
            message = wire.decode(body)
            if self.receive is not None and not self.closed.done():
                self.receive(self, message)
        if bodies and self.delivered is not None:
            self.delivered()

    def _hello_missing(self) -> None:
        if self.peer is None:
            self.close()

    def send(self, message: wire.Message) -> None:
        self.send_frame(wire.encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Write an encoded frame; silently nothing once the link is closing."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._hub.gone(self)
        if not self.closed.done():
            self.closed.set_result(None)
        if self.peer is not None:
            self._hub.owner.link_down(self)


class Hub:
    """The listening port of a node and all its links."""

    def __init__(self, runtime: Runtime, owner: LinkOwner, frame_bytes_max: int) -> None:
        self.runtime = runtime
        self.owner = owner
        self.frame_bytes_max = frame_bytes_max
        self._listener: Listener | None = None
        self._links: dict[Link, None] = {}
        self._dialling: dict[str, asyncio.Task[Any]] = {}
        self._closed = False

    async def listen(self, address: str) -> int:
        """Start accepting; returns the port. Raises `AddressInUse` naming the address."""
        host, port = parse_address(address, "peer_address")
        try:
            self._listener = await self.runtime.listen(
                lambda: Link(self, None, "unknown"), host, port
            )
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                raise AddressInUse(
                    f"cannot listen on {address}: {error.strerror}. Stop the process that uses "
                    f"it, or choose another address"
                ) from None
            raise
        return self._listener.port

    def keep_dialling(self, name: str, address: str, purpose: str, patience_s: float) -> None:
        """See to it that there is a link to the node, until `stop_dialling(name)`.

        With `patience_s` the other side is first given that long to dial. While a link is up, by
        whoever's dialling, nothing is done.
        """
        if name not in self._dialling and not self._closed:
            coroutine = self._dial_for_ever(name, address, purpose, patience_s)
            self._dialling[name] = self.runtime.spawn(coroutine, f"dial {address} for {purpose}")

    def stop_dialling(self, name: str) -> None:
        """The node is no member any more, say. A link that is up stays."""
        task = self._dialling.pop(name, None)
        if task is not None:
            task.cancel()

    async def dial(self, address: str, purpose: str) -> Link:
        """One attempt. Raises OSError. The handshake goes on after this returns."""
        host, port = parse_address(address)
        link = Link(self, address, purpose)
        # A connect into a silent network would hang for minutes. TimeoutError is an OSError.
        await asyncio.wait_for(self.runtime.connect(lambda: link, host, port), HELLO_TIMEOUT_S)
        return link

    async def _dial_for_ever(
        self, name: str, address: str, purpose: str, patience_s: float
    ) -> None:
        delay = REDIAL_MIN_S
        while not self._closed:
            if patience_s:
                await self.runtime.sleep(patience_s)
            if self.owner.linked(name):
                await self.runtime.sleep(REDIAL_MAX_S)
                continue
            try:
                link = await self.dial(address, purpose)
                await link.closed
                if link.peer is not None:
                    delay = REDIAL_MIN_S
            except OSError:
                pass  # nobody listens there yet: that is what redialling is for
            await self.runtime.sleep(delay * (0.5 + self.runtime.rng.random()))
            delay = min(REDIAL_MAX_S, delay * 2)

    def opened(self, link: Link) -> None:
        self._links[link] = None
        if self._closed:
            link.abort()

    def gone(self, link: Link) -> None:
        self._links.pop(link, None)

    def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        for task in self._dialling.values():
            task.cancel()
        self._dialling.clear()
        for link in list(self._links):
            link.close()


class RaftTransport(SyncObjTransport):  # type: ignore[misc]  # PySyncObj has no type hints
    """PySyncObj's transport interface on raft links. It is ready from the start."""

    def __init__(self, sync_obj: Any, self_node: Any, other_nodes: Any) -> None:
        super().__init__(sync_obj, self_node, other_nodes)
        self.links: dict[str, Link] = {}

    @property
    def ready(self) -> bool:
        return True

    def tryGetReady(self) -> None:
        """Nothing to do: the hub listens before the engine is made."""

    def waitReady(self) -> None:
        """Nothing to wait for."""

    def addNode(self, node: Any) -> None:
        """Whom to dial follows from the address book, not from PySyncObj's node set."""

    def dropNode(self, node: Any) -> None:
        """Links of removed members stay: they must still be told that they are (rule 23)."""

    def send(self, node: Any, message: Any) -> bool:
        """PySyncObj's own messages are dicts; none of them is sent any more."""
        raise AssertionError(f"a stock message to {node.id}: {message!r}")

    def destroy(self) -> None:
        """The hub closes the links."""

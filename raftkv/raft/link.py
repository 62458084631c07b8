"""One connection between two nodes: its handshake, its frames, its encryption.

A *link* is a connection for one purpose: `raft` (between cores), `follow` (a replicant and its
upstream core) or `rpc` (plugins' service halves). It starts with a `Hello` in each direction; the
acceptor checks the dialler's and answers with its own or with a `Refusal`. Before that, frames
are limited to `HELLO_BYTES_MAX` and nothing but a Hello is decoded.

With certificates a TLS 1.3 handshake comes first, and a connection passes three gates, each before
the next thing is decoded: the peer's certificate is verified and names a node of this cluster (the
very node that was dialled, on the dialling side); its Hello claims the name in its certificate; the
owner agrees. What fails at a gate costs the connection and one line in the log.

Every frame is encrypted and written at once. Gathering the frames of a turn was tried: a put took a
fifth longer, because the thread of the leader's disk got going before the messages had left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from raftkv.hostnames import source_of
from raftkv.security.channel import Channel, ChannelBroken
from raftkv.security.identity import CertificateIdentity
from raftkv.security.proof import Kind, Proof

from . import wire
from .membership import name_of

if TYPE_CHECKING:
    from .transport import Hub

__all__ = ["CLOSE_TIMEOUT_S", "HELLO_TIMEOUT_S", "WRONG_CERTIFICATE", "Link", "LinkOwner"]

# The code of a refusal for what the peer's certificate does not allow.
WRONG_CERTIFICATE = "wrong_certificate"

# A peer that accepts a connection must greet within this time, else the connection is a ghost. The
# TLS handshake is part of it.
HELLO_TIMEOUT_S = 3.0
# What a link that is closed still has to send, a refusal say, must leave within this time. A peer
# that reads nothing would else keep the socket and all that waits for it, until TCP gives up after
# a quarter of an hour, or for as long as its process stands still.
CLOSE_TIMEOUT_S = 5.0
# Behind so much the next turn of the loop comes first. uvloop hands up to 256 KiB over at once, so
# a turn has at most the sum of both, in which the rows of a snapshot are decoded and put into
# tables: 10 ms at 30 MB/s. Larger frames take several turns.
READ_BYTES_PER_TURN = 64 * 1024
# How a TLS client begins. As the length of a frame it would be beyond every limit.
_TLS_BEGINNING = b"\x16\x03\x01"


class LinkOwner(Protocol):
    """Who decides about links: the node."""

    def hello(self, purpose: str, wanted: str = "") -> wire.Hello:
        """This node's greeting, as of now, to the node that it wants to reach."""

    def judge(self, hello: wire.Hello, proof: Proof) -> wire.Refusal | None:
        """Whether to talk to this peer; `proof` is what the connection proves."""

    def refused(self, refusal: wire.Refusal, address: str, proof: Proof) -> None:
        """A peer that this node dialled will not talk to it."""

    def linked(self, name: str) -> bool:
        """Whether a link that `keep_dialling(name, ...)` is for is up, whoever dialled it."""

    def link_up(self, link: Link) -> None: ...

    def link_down(self, link: Link) -> None: ...


class Link(asyncio.Protocol):
    """One connection. `receive` is set by the owner in `link_up` and gets decoded messages."""

    def __init__(self, hub: Hub, dialled: str | None, purpose: str, wanted: str = "") -> None:
        self._hub = hub
        self._frames = wire.Frames(wire.HELLO_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._timer: Any = None
        # With certificates: the TLS of this connection, and whom the peer's certificate names.
        self._channel: Channel | None = None
        self._certified: CertificateIdentity | None = None
        self._read_bytes = 0
        #: All that has arrived: whether it grows tells whether the connection is alive.
        self.received_bytes = 0
        # This end has given the connection up.
        self._given_up = False
        self.dialled = dialled
        self.purpose = purpose
        # Whom this node has dialled: at an old address somebody else may answer.
        self.wanted = wanted
        self.peer: wire.Hello | None = None
        # The code of the refusal that the dialled node answered with, if it did.
        self.refusal = ""
        self.receive: Callable[[Link, wire.Message], None] | None = None
        # The kinds of messages that may arrive; the owner's to set in `link_up`.
        self.permitted: frozenset[type] = frozenset()
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
    def proof(self) -> Proof:
        """What this connection proves about its other end. Once the TLS handshake is done."""
        certified = self._certified
        if certified is None:
            return Proof(Kind.NONE, "", self.dialled, self.wanted)
        kind = Kind.REPLICANT_ONLY if certified.replicant_only else Kind.CORE
        return Proof(kind, certified.name, self.dialled, self.wanted)

    @property
    def up(self) -> bool:
        return self.peer is not None and not self.closed.done()

    @property
    def unsent_bytes(self) -> int:
        """What waits in this process for the peer to read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def peer_address(self) -> str:
        """Where the other end is, for the log."""
        if self.dialled is not None:
            return self.dialled
        found = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{found[0]}:{found[1]}" if isinstance(found, tuple) else "an unknown address"

    @property
    def source(self) -> str:
        """What the address of the other end counts as (hostnames.py); empty if it is not known."""
        found = None if self._transport is None else self._transport.get_extra_info("peername")
        return source_of(str(found[0])) if isinstance(found, tuple) else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._hub.opened(self)
        self._timer = self._hub.runtime.call_later(HELLO_TIMEOUT_S, self._hello_missing)
        security = self._hub.security
        if security is not None:
            self._channel = security.channel(server_side=self.dialled is None)
            if self.dialled is not None:
                self._channel.start()
                self._write_channel()
        elif self.dialled is not None:
            self.send(self._hub.owner.hello(self.purpose, self.wanted))

    def data_received(self, data: bytes) -> None:
        self._hub.received_bytes += len(data)
        self.received_bytes += len(data)
        self._give_way(len(data))
        try:
            if self._channel is not None:
                data = self._decrypt(self._channel, data)
                if not data:
                    return
            if self.peer is None:
                # Only the greeting is cut out at the small limit; what follows it in the same
                # read belongs to the known peer.
                self._greet(data)
                return
            self._deliver(self._frames.feed(data))
        except (wire.ProtocolError, ChannelBroken) as error:
            self.drop(str(error))

    def _give_way(self, count: int) -> None:
        """Stop reading for a turn of the loop after so many bytes.

        uvloop reads a busy stream up to 32 times in a row, 8 MiB: decoding that takes 20 ms.
        """
        self._read_bytes += count
        transport = self._transport
        if self._read_bytes >= READ_BYTES_PER_TURN and transport is not None:
            self._read_bytes = 0
            if not transport.is_closing():
                transport.pause_reading()
                self._hub.runtime.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def drop(self, reason: str) -> None:
        """End the connection for what the peer did, with one line in the log."""
        if self._transport is None or self._transport.is_closing():
            return
        self._hub.complain(self, reason)
        # What the peer can still be told, an alert of TLS say, goes out before the end.
        self.close()

    # -- TLS

    def _decrypt(self, channel: Channel, data: bytes) -> bytes:
        """The plaintext in `data`, for whose sender there is a certificate."""
        try:
            plain = channel.receive(data)
        finally:
            self._write_channel()
        if self._certified is None and channel.established:
            self._certify(channel)
        if channel.finished:
            self.close()
        return plain

    def _certify(self, channel: Channel) -> None:
        """The handshake is done: is this a node of the cluster, and the one that was dialled?"""
        security = self._hub.security
        assert security is not None
        identity = security.identify(channel)
        if self.wanted not in ("", identity.name):
            raise ChannelBroken(
                f"{self.wanted!r} was dialled, and the certificate there is of {identity.name!r}"
            )
        self._certified = identity
        if self.dialled is not None:
            self.send(self._hub.owner.hello(self.purpose, self.wanted))

    def _write_channel(self) -> None:
        assert self._channel is not None
        assert self._transport is not None
        data = self._channel.take()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    # -- the greeting

    def _misnamed(self, hello: wire.Hello) -> wire.Refusal | None:
        """Whether the greeting claims what the certificate denies."""
        certified = self._certified
        if certified is None:
            return None
        name = name_of(hello.raft_id)
        if name != certified.name or hello.cluster != certified.cluster:
            return wire.Refusal(
                WRONG_CERTIFICATE,
                f"the certificate is of {certified.name!r} in the cluster {certified.cluster!r}, "
                f"the greeting of {name!r} in {hello.cluster!r}",
            )
        return None

    def _greet(self, data: bytes) -> None:
        if self._channel is None and data.startswith(_TLS_BEGINNING):
            raise wire.ProtocolError("it speaks TLS, and this node has no certificates ([tls])")
        first = self._frames.feed_one(data)
        if first is None:
            return
        message = wire.decode(first)
        owner = self._hub.owner
        if isinstance(message, wire.Refusal) and self.dialled is not None:
            self.refusal = message.code
            owner.refused(message, self.dialled, self.proof)
            self.close()
            return
        if not isinstance(message, wire.Hello):
            raise wire.ProtocolError(f"{type(message).__name__} before Hello")
        if message.version != wire.PROTOCOL_VERSION:
            raise wire.ProtocolError(f"protocol version {message.version} is not spoken here")
        if self.dialled is not None and message.purpose != self.purpose:
            # What may arrive here was judged by the purpose that the answer names.
            raise wire.ProtocolError("it answers for another purpose than it was dialled for")
        refusal = self._misnamed(message) or owner.judge(message, self.proof)
        if refusal is not None:
            if refusal.code == WRONG_CERTIFICATE:
                self._hub.complain(self, refusal.reason)
            # To a dialled peer too: it has accepted this node, and may be the one that was wiped.
            self.send(refusal)
            self.close()
            return
        if self.dialled is None:
            self.purpose = message.purpose
            self.send(owner.hello(self.purpose))
        self.peer = message
        self._hub.greeted(self)
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
            shaken = self._channel is None or self._channel.established
            what = "greeting" if shaken else "end of the TLS handshake"
            self.drop(f"no {what} within {HELLO_TIMEOUT_S:g} s")

    def send(self, message: wire.Message) -> None:
        self.send_frame(wire.encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Write an encoded frame; silently nothing once the link is closing."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._hub.sent_bytes += len(frame)
        channel = self._channel
        if channel is None:
            transport.write(frame)
            return
        try:
            channel.send(frame)
        except ChannelBroken as error:
            self.drop(str(error))
            return
        transport.write(channel.take())

    def close(self) -> None:
        """End the connection once what was sent before has been written, or CLOSE_TIMEOUT_S on."""
        transport, channel = self._transport, self._channel
        if transport is None or transport.is_closing():
            return
        self._given_up = True
        if channel is not None:
            if channel.established:
                channel.shut()
            self._write_channel()
        if transport.get_write_buffer_size():
            self._timer.cancel()
            self._timer = self._hub.runtime.call_later(CLOSE_TIMEOUT_S, self.abort)
        transport.close()

    def abort(self) -> None:
        self._given_up = True
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        shaken = self._channel is None or self._channel.established
        if self.dialled is not None and not shaken and not self._given_up:
            self._hub.complain(self, "it hung up on the TLS handshake: has it certificates?")
        self._hub.gone(self)
        if not self.closed.done():
            self.closed.set_result(None)
        if self.peer is not None:
            self._hub.owner.link_down(self)

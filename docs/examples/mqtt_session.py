"""One client's session on one node: what waits for the client, and what was sent to it.

A session has one channel for its life on this node, and a connection for some of that time. It is
*opening* until the registry has decided (messages that come meanwhile are `received`), then open,
perhaps *frozen* while a newer connection takes it over (messages become `pendings`), and at last
ended. Everything here happens on the node's event loop, so the states change between two awaits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Literal, NamedTuple

import msgspec
from mqtt_wire import Hello, Wire

from raftkv_lcr import Channel, Message, OpenedSession, merge_pendings

# Messages that wait for one client; further ones are dropped, and counted.
QUEUE_MESSAGES_MAX = 1_000
# Sent and not acknowledged yet; MQTT 5 clients may ask for fewer.
WINDOW_MESSAGES = 32


class Publication(msgspec.Struct, frozen=True, array_like=True):
    """A published message, as it travels between nodes and waits in sessions."""

    topic: str
    payload: bytes
    qos: int


class Content(msgspec.Struct, frozen=True, array_like=True):
    """What moves from node to node with a session: the `bytes` that `begin` gives.

    `born` names the session: the ticket of its first channel. The messages are those that the
    client has not acknowledged, oldest first; the first `sent` of them may have reached it.
    """

    born: int
    filters: dict[str, int]
    messages: tuple[Message, ...]
    sent: int


class Received(NamedTuple):
    """A message that came while the session was opening. It may be meant for a former session."""

    born: int
    message: Message


Taken = Literal["taken", "ended", "elsewhere"]


class Session:
    """One session; `wire` is the client's connection, None while there is none."""

    def __init__(self, channel: str, hello: Hello, wire: Wire) -> None:
        self.client_id = hello.client_id
        self.channel = channel
        self.hello = hello
        self.wire: Wire | None = wire
        self.born = 0
        self.filters: dict[str, int] = {}
        self.row: Channel | None = None
        # Set once `install` has run, or never will have.
        self.decided = asyncio.Event()
        self.ended = False
        # Cleared while a newer connection takes over: the old one is not read then, either.
        self.thawed = asyncio.Event()
        self.thawed.set()
        # Set when the sender has something to do.
        self.work = asyncio.Event()
        self.dropped = 0
        self._queue: deque[Message] = deque()
        self._inflight: dict[int, Message] = {}
        self._again: set[str] = set()
        self._last_id = 0
        self._received: list[Received] = []
        self._pendings: list[Message] = []

    # --- its life ---

    def install(self, opened: OpenedSession) -> None:
        """The registry has decided for this channel: continue the former session, or start one."""
        assert opened.channel is not None
        self.row = opened.channel
        self.born = opened.channel.ticket
        if opened.present and opened.session is not None:
            content = msgspec.msgpack.decode(opened.session, type=Content)
            self.born, self.filters = content.born, content.filters
            self._again = {message.id for message in content.messages[: content.sent]}
            self._queue.extend(content.messages)
        received = [each.message for each in self._received if each.born == self.born]
        self._queue.extend(merge_pendings(opened.pendings, received))
        self._received.clear()
        self.decided.set()
        self.work.set()

    def freeze(self) -> bytes:
        """Stop delivering; the content as it is now."""
        self.thawed.clear()
        self._take_back()
        sent = sum(message.id in self._again for message in self._queue)
        return msgspec.msgpack.encode(Content(self.born, self.filters, tuple(self._queue), sent))

    def thaw(self) -> None:
        """Nobody took over: go on where it stopped."""
        self._queue.extend(self._pendings)
        self._pendings.clear()
        self.thawed.set()
        self.work.set()

    def end(self, code: int = 0, reason: str = "") -> list[Message]:
        """The session is here no longer; its client is told why. Returns the pendings."""
        self.ended = True
        self.decided.set()
        self.thawed.set()
        self.work.set()
        if self.wire is not None:
            self.wire.close(code, reason)
        return self._pendings

    # --- messages ---

    def take(self, born: int, message: Message) -> Taken:
        """Accept a message for the client's session `born`, or say that it is for another."""
        if self.ended or (self.decided.is_set() and born > self.born):
            return "elsewhere"
        if self.decided.is_set() and born < self.born:
            return "ended"
        waiting = len(self._queue) + len(self._pendings) + len(self._received)
        if waiting >= QUEUE_MESSAGES_MAX or (self.wire is None and not _qos(message)):
            # Of QoS 0 nothing is kept for a client that is away.
            self.dropped += 1
        elif not self.decided.is_set():
            self._received.append(Received(born, message))
        elif not self.thawed.is_set():
            self._pendings.append(message)
        else:
            self._queue.append(message)
            self.work.set()
        return "taken"

    def acknowledged(self, packet_id: int) -> None:
        """The client has that message."""
        message = self._inflight.pop(packet_id, None)
        if message is not None:
            self._again.discard(message.id)
            self.work.set()

    def disconnected(self) -> None:
        """The connection has gone; what it did not acknowledge is sent again on the next one."""
        self.wire = None
        self._take_back()

    def _take_back(self) -> None:
        """What was sent and not acknowledged waits again, in front."""
        self._again |= {message.id for message in self._inflight.values()}
        self._queue.extendleft(reversed(self._inflight.values()))
        self._inflight.clear()

    async def send(self, wire: Wire) -> None:
        """Send what waits, for as long as the client is connected. Raises Closed."""
        window = min(WINDOW_MESSAGES, self.hello.receive_max)
        while True:
            await self.work.wait()
            self.work.clear()
            while (
                self._queue
                and len(self._inflight) < window
                and self.thawed.is_set()
                and self.wire is wire
                and not self.ended
            ):
                self._send_one(wire, self._queue.popleft())
                await wire.drained()

    def _send_one(self, wire: Wire, message: Message) -> None:
        publication = msgspec.msgpack.decode(message.data, type=Publication)
        packet_id = self._next_id() if publication.qos else 0
        again = message.id in self._again and publication.qos > 0
        sent = wire.publish(
            publication.topic, publication.payload, publication.qos, packet_id, dup=again
        )
        if not sent:
            self.dropped += 1
        elif publication.qos:
            self._inflight[packet_id] = message

    def _next_id(self) -> int:
        while True:
            self._last_id = self._last_id % 65_535 + 1
            if self._last_id not in self._inflight:
                return self._last_id


def _qos(message: Message) -> int:
    return msgspec.msgpack.decode(message.data, type=Publication).qos


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a message of `topic` goes to who subscribed to `topic_filter`."""
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


def is_filter(text: str) -> bool:
    """Whether `text` is a valid topic filter."""
    levels = text.split("/")
    return (
        bool(text)
        and "\0" not in text
        and "#" not in "".join(levels[:-1])
        and all(level in ("+", "#") or not set(level) & {"+", "#"} for level in levels)
    )

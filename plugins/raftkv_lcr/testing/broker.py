"""A broker in memory: the smallest honest `ChannelOwner`, for tests, simulation and benchmarks.

One per node. A session is a list of messages. A connection is a channel id. `publish` accepts a
message for the live channel here, and what was accepted stands in the session from then on,
wherever that moves: that is what tests compare.

`failing` and `hanging` make calls to channels go wrong as brokers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from raftkv_lcr.commands import Channel
from raftkv_lcr.owner import (
    ChannelGone,
    ChannelOwner,
    Failure,
    Message,
    NothingToTakeOver,
    merge_pendings,
)
from raftkv_lcr.result import OpenedSession

__all__ = ["MemoryBroker", "Session", "Sessions", "decode_content", "encode_content"]

Key = tuple[str, str]

_decoder = msgspec.msgpack.Decoder(tuple[Message, ...])


def encode_content(messages: Sequence[Message]) -> bytes:
    """A session's content as this broker hands it over."""
    return msgspec.msgpack.encode(messages)


def decode_content(content: bytes | None) -> tuple[Message, ...]:
    """The messages of a content; none if there is none."""
    return () if content is None else _decoder.decode(content)


class Sessions(Protocol):
    """The part of a `ChannelManager` (or of an old node's sessions) that a broker uses."""

    async def open_session(
        self,
        client_id: str,
        clean_start: bool,
        channel: str,
        *,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> OpenedSession: ...

    async def close(self, row: Channel) -> None: ...

    async def kick(self, client_id: str, reason: str) -> bool: ...

    async def discard(self, client_id: str) -> bool: ...

    @property
    def held(self) -> Mapping[Key, Channel]: ...


class Attachable(Protocol):
    """An `LcrApi`, or that of an old node."""

    def sessions(self, owner: ChannelOwner) -> Any: ...


class Session:
    """One channel with its session. `closed_for` says why it ended; None while it lives."""

    def __init__(self, client_id: str, channel: str) -> None:
        self.client_id = client_id
        self.channel = channel
        # None while it is being opened.
        self.row: Channel | None = None
        self.content: list[Message] = []
        self.pendings: list[Message] = []
        # What came over the new channel while it was being opened.
        self.received: list[Message] = []
        self.frozen = False
        # Whether its client is connected; one that is away keeps its session.
        self.connected = True
        self.closed_for: str | None = None

    @property
    def live(self) -> bool:
        return self.row is not None and self.closed_for is None


class MemoryBroker:
    """A `ChannelOwner` in memory; one per node."""

    manager: Sessions

    def __init__(self, node_name: str) -> None:
        self.node_name = node_name
        #: By (client, channel): those that live, and those that ended.
        self.sessions: dict[Key, Session] = {}
        #: (call, channel id) -> how that call fails; the channel ends, except with "timeout".
        self.failing: dict[tuple[str, str], Failure] = {}
        #: (call, channel id) of calls that do not return before the event is set.
        self.hanging: dict[tuple[str, str], asyncio.Event] = {}
        #: Channels whose sessions end with their connection.
        self.ephemeral: set[str] = set()
        #: The calls that came, in order.
        self.calls: list[tuple[str, str]] = []
        self._opened: dict[Key, asyncio.Event] = {}

    def attach(self, lcr: Attachable) -> None:
        """Become the broker of that node."""
        self.manager = lcr.sessions(self)

    # --- clients ---

    async def connect(
        self,
        client_id: str,
        channel: str,
        *,
        clean_start: bool = False,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> OpenedSession:
        """Open the client's session here. After "ok" the channel lives in `sessions`."""
        key = (client_id, channel)
        former = self.sessions.get(key)
        if former is not None and former.closed_for is None:
            raise ValueError(f"channel {channel!r} of {client_id!r} is here already")
        session = self.sessions[key] = Session(client_id, channel)
        done = self._opened[key] = asyncio.Event()
        try:
            opened = await self.manager.open_session(
                client_id, clean_start, channel, version=version, timeout_s=timeout_s
            )
            if opened.outcome == "ok":
                kept = (*decode_content(opened.session), *opened.pendings)
                session.content = list(merge_pendings(kept, session.received))
                session.row = opened.channel
        finally:
            if not session.live:
                self.sessions.pop(key, None)
            self._opened.pop(key, None)
            done.set()
        return opened

    def publish(self, client_id: str, message: Message) -> bool:
        """A message for the client's live channel here. False: there is none; not accepted."""
        session = self.live(client_id)
        if session is None:
            return False
        (session.pendings if session.frozen else session.content).append(message)
        return True

    def route(self, client_id: str, message: Message) -> bool:
        """A message that routes bring to every channel of the client here, opening ones, too."""
        found = self.publish(client_id, message)
        for session in self.sessions.values():
            if session.client_id == client_id and session.row is None:
                session.received.append(message)
                found = True
        return found

    async def disconnect(self, client_id: str, channel: str) -> None:
        """The client leaves and its session ends."""
        session = self.sessions.pop((client_id, channel), None)
        if session is not None and session.row is not None and session.closed_for is None:
            session.closed_for = "disconnected"
            await self.manager.close(session.row)

    def live(self, client_id: str) -> Session | None:
        """The client's live session here, the newest if there should be several."""
        return next((s for s in reversed(self.sessions.values()) if _of(s, client_id)), None)

    # --- ChannelOwner ---

    async def begin(self, channel: Channel) -> bytes:
        session = await self._called("begin", channel)
        if channel.channel in self.ephemeral:
            raise NothingToTakeOver
        assert not session.frozen, "begin of a frozen channel"
        session.frozen = True
        return encode_content(session.content)

    async def end(self, channel: Channel) -> Sequence[Message]:
        session = await self._called("end", channel)
        assert session.frozen, "end of a channel that was not begun"
        self._close(session, "taken over")
        return tuple(session.pendings)

    async def resume(self, channel: Channel) -> None:
        session = await self._called("resume", channel)
        session.frozen = False
        session.content += session.pendings
        session.pendings.clear()

    async def discard(self, channel: Channel) -> None:
        self._close(await self._called("discard", channel), "discarded")

    async def kick(self, channel: Channel, reason: str) -> None:
        self._close(await self._called("kick", channel), reason)

    def is_alive(self, channel: Channel) -> bool:
        session = self.sessions.get((channel.client_id, channel.channel))
        return session is not None and session.live

    def is_connected(self, channel: Channel) -> bool:
        session = self.sessions.get((channel.client_id, channel.channel))
        return session is not None and session.live and session.connected

    def channels(self) -> Iterable[Channel]:
        return [s.row for s in self.sessions.values() if s.row is not None and s.closed_for is None]

    # --- inside ---

    async def _called(self, call: str, channel: Channel) -> Session:
        """The live session, after whatever goes wrong with this call was done."""
        self.calls.append((call, channel.channel))
        hanging = self.hanging.get((call, channel.channel))
        if hanging is not None:
            await hanging.wait()
        key = (channel.client_id, channel.channel)
        opening = self._opened.get(key)
        if opening is not None:
            await opening.wait()
        session = self.sessions.get(key)
        if session is None or not session.live:
            raise ChannelGone("noproc", f"channel {channel.channel!r} is not here")
        kind = self.failing.get((call, channel.channel))
        if kind is not None:
            if kind != "timeout":
                self._close(session, f"failed: {kind}")
            raise ChannelGone(kind, "made to fail")
        return session

    def _close(self, session: Session, reason: str) -> None:
        session.closed_for = reason


def _of(session: Session, client_id: str) -> bool:
    return session.client_id == client_id and session.live

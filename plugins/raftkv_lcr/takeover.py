"""The contender's side of a takeover: calls to channels, wherever they live.

A channel of this node is asked directly, all others by `session.*` (`wire.py`). Every call has a
time-out and ends with an answer or with `ChannelGone` and one of the five kinds; a node that cannot
be reached counts as "timeout" while it is a member, and as "noproc" once its life is over. For a
begin, a node that refuses connections counts as "noproc" at once: no process listens there.

A lost request or reply is not a failed channel: calls are repeated until the time is up, which they
allow. `begin` may give up early, for the connection can do without. `end` may not: the log has
decided, and what it gives exists nowhere else.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import msgspec

from raftkv.errors import PeerUnreachable, RaftkvError, RemoteFailed
from raftkv.plugin import Host

from .commands import Channel, Registered
from .owner import NOTHING, ChannelGone
from .registry import is_live
from .wire import (
    ABORT,
    ACK,
    ALIVE,
    BEGIN,
    CONNECTED,
    DISCARD,
    END,
    FETCH,
    KICK,
    AliveReply,
    AliveRequest,
    BeginRequest,
    CloseRequest,
    Contender,
    EndRequest,
    FetchRequest,
    Handed,
    LeaveRequest,
    Reply,
    pack,
    unpack,
)

if TYPE_CHECKING:
    from .manager import ChannelManager

__all__ = ["Begun", "NotSuccessor", "Takeovers"]

# How long the other side may wait before it says "busy", and how long its reply may travel.
WAIT_S = 1.0
REPLY_S = 1.0
# Between two attempts to reach a node, and between two questions to one that was not ready.
RETRY_S = 0.05
PAUSE_S = 0.001
# Repetitions of what needs no answer: an abort or an acknowledgement that gets lost costs the other
# side a wait, nothing else.
NOTICE_ATTEMPTS = 3
# The pages of one parcel that may be gone by the time they are asked for, before it is lost.
RESTARTS_MAX = 3


# The beginning of the reason of a `ChannelGone` whose node refuses connections.
REFUSED = "connections are refused by"


def is_refused(error: RaftkvError) -> bool:
    """Whether the call failed because no process listens at the addresses of its node."""
    return isinstance(error, PeerUnreachable) and error.refused


class NotSuccessor(RaftkvError):
    """The log says that this connection did not take that channel over, or no longer."""

    code = "lcr_not_successor"


class Begun(msgspec.Struct, frozen=True):
    """A predecessor that is frozen for this connection."""

    channel: Channel
    contender: Contender
    freeze: int
    content: bytes


class Takeovers:
    """Calls to channels, from one node."""

    def __init__(self, manager: ChannelManager) -> None:
        self._manager = manager
        self._host: Host = manager.host
        self._options = manager.options
        self._counters = manager.api.counters

    def contender(self, channel: str) -> Contender:
        """A connection of this node that wants to take over."""
        return Contender(self._host.name, self._host.incarnation, channel)

    async def begin(self, channel: Channel, contender: Contender, deadline: float) -> Begun:
        """Freeze the channel and copy its session. Raises `ChannelGone`.

        The freeze takes at most `begin_timeout_s`, and half of the time that is left. What does not
        fit into one page is fetched in half of what is left then. A channel that is itself still
        being opened is worth more patience: it is about to have the session.
        """
        try:
            for _ in range(RESTARTS_MAX):
                reply = await self._begin(channel, contender, deadline)
                # Large sessions may take longer than `begin_timeout_s`. The rest is for the log.
                until = self._now() + (deadline - self._now()) / 2
                content = await self._content(channel, reply, until, refusable=True)
                if content is not None:
                    return Begun(channel, contender, reply.parcel, content)
            raise ChannelGone("timeout", "the freeze ended before its content was fetched")
        except ChannelGone as gone:
            if gone.reason != NOTHING:
                self._failed("begin", gone)
            if gone.kind == "timeout" or gone.reason.startswith(REFUSED):
                # It may be frozen by now, or will be: this contender does not come back.
                self.abort(channel, contender)
            raise
        except (Exception, asyncio.CancelledError):  # a coroutine that is closed can tell nobody
            self.abort(channel, contender)
            raise

    async def _begin(self, channel: Channel, contender: Contender, deadline: float) -> Reply:
        while True:
            now = self._now()
            left_s = min(self._options.begin_timeout_s, (deadline - now) / 2)
            if left_s < RETRY_S:
                raise ChannelGone("timeout", "no time is left to wait for the channel")
            reply = await self._ask(
                channel,
                BEGIN,
                lambda wait_ms: BeginRequest(channel, contender, wait_ms),
                now + left_s,
                refusable=True,
            )
            if reply.status != "opening":
                return reply

    async def end(
        self, channel: Channel, registered: Registered, freeze: int, deadline: float
    ) -> Handed:
        """End the channel that was taken over; what this connection still lacks of its session.

        Goes on until `deadline`, `end_timeout_s` at least. Raises `ChannelGone`; `NotSuccessor` if
        the channel belongs to another connection by now.
        """
        until = max(deadline, self._now() + self._options.end_timeout_s)
        winner, index = registered.channel, registered.index
        try:
            while True:
                reply = await self._ask(
                    channel,
                    END,
                    lambda wait_ms: EndRequest(channel, winner, index, freeze, wait_ms),
                    until,
                )
                if reply.status == "not_successor":
                    raise NotSuccessor(f"channel {channel.channel!r} has another successor")
                if reply.status == "opening":
                    continue
                content = await self._content(channel, reply, until)
                if content is None:
                    raise ChannelGone("noproc", "what was handed over is no longer kept")
                self._notify(
                    channel, ACK, Contender(winner.node, winner.incarnation, winner.channel)
                )
                return unpack(content, Handed)
        except ChannelGone as gone:
            self._failed("end", gone)
            raise

    def abort(self, channel: Channel, contender: Contender) -> None:
        """This connection will not end the channel; told in the background."""
        self._notify(channel, ABORT, contender)

    def discard_soon(self, channel: Channel) -> None:
        """Discard in the background: the channel's place is taken already."""
        self._host.spawn(self._discard_quietly(channel), "lcr-discard")

    async def discard(self, channel: Channel) -> bool:
        """End the session and the channel; whether there was one. `ChannelGone`: "timeout"."""
        return await self._close(channel, DISCARD, "", self._options.discard_timeout_s)

    async def kick(self, channel: Channel, reason: str) -> bool:
        """End the channel and its session for a reason; whether there was one."""
        return await self._close(channel, KICK, reason, self._options.kick_timeout_s)

    async def alive(
        self, node: str, channels: tuple[Channel, ...], timeout_s: float
    ) -> tuple[bool, ...] | None:
        """Which of these channels live on that node; None if it does not say."""
        if node == self._host.name:
            return tuple(self._manager.handover.is_alive(row) for row in channels)
        try:
            payload = pack(AliveRequest(channels))
            reply = await self._host.rpc.call(node, ALIVE, payload, timeout_s)
            alive = unpack(reply, AliveReply).alive
        except (RaftkvError, msgspec.DecodeError):
            return None
        return alive if len(alive) == len(channels) else None

    async def occupied(self, row: Channel, channel: str, deadline: float) -> bool:
        """Whether `row` is not this node's `channel`, and its client is connected to it."""
        mine = (self._host.name, self._host.incarnation, channel)
        if (row.node, row.incarnation, row.channel) == mine:
            return False
        return await self.connected(row, deadline)

    async def connected(self, channel: Channel, deadline: float) -> bool:
        """Whether the channel's client is connected to it, asked until half of the time is over.

        True as well if its node does not say: in doubt it is, until the node's life has ended.
        """
        if channel.node == self._host.name:
            return self._manager.handover.is_connected(channel)
        until = self._now() + (deadline - self._now()) / 2
        while is_live(channel, self._host.members):
            left_s = min(WAIT_S, until - self._now())
            if left_s < PAUSE_S:
                return True
            try:
                payload = pack(AliveRequest((channel,)))
                reply = await self._host.rpc.call(channel.node, CONNECTED, payload, left_s)
                return unpack(reply, AliveReply).alive != (False,)
            except RemoteFailed:
                return True
            except RaftkvError:
                await self._host.runtime.sleep(min(RETRY_S, max(0.0, until - self._now())))
        return False

    # --- inside ---

    async def _close(self, channel: Channel, method: str, reason: str, timeout_s: float) -> bool:
        until = self._now() + timeout_s
        call = "kick" if method == KICK else "discard"
        try:
            while True:
                reply = await self._ask(
                    channel,
                    method,
                    lambda wait_ms: CloseRequest(channel, reason, wait_ms),
                    until,
                )
                if reply.status == "ok":
                    return True
        except ChannelGone as gone:
            self._failed(call, gone)
            if gone.kind == "timeout":
                raise
            return False

    async def _discard_quietly(self, channel: Channel) -> None:
        try:
            await self.discard(channel)
        except ChannelGone as gone:
            # Its own node ends it: it has lost its row.
            self._host.log.debug("lcr: %s was not discarded: %s", channel.channel, gone)

    async def _ask(
        self, channel: Channel, method: str, request: Any, until: float, *, refusable: bool = False
    ) -> Reply:
        """Ask until there is an answer. Raises `ChannelGone`: what it said, or "timeout".

        `refusable`: a refused connection is an answer, too.
        """
        while True:
            left_s = until - self._now()
            if left_s <= 0:
                raise ChannelGone("timeout", f"{channel.node} did not answer in time")
            wait_s = min(WAIT_S, left_s)
            try:
                wait_ms = math.ceil(wait_s * 1000)
                reply = await self._call(
                    channel, method, request(wait_ms), min(wait_s + REPLY_S, left_s)
                )
            except RemoteFailed as error:
                raise ChannelGone("shutdown_reason", str(error)) from error
            except RaftkvError as error:
                if not is_live(channel, self._host.members):
                    raise ChannelGone("noproc", f"{channel.node} is gone") from error
                if refusable and is_refused(error):
                    raise ChannelGone("noproc", f"{REFUSED} {channel.node}: {error}") from error
                await self._host.runtime.sleep(min(RETRY_S, max(0.0, until - self._now())))
                continue
            if reply.status == "gone":
                raise ChannelGone(reply.kind or "shutdown_reason", reply.reason)
            if reply.status in ("busy", "opening"):
                # It has waited, if there was time for it: a channel of this very node, asked in the
                # last millisecond, answers at once and would be asked again at once.
                await self._host.runtime.sleep(PAUSE_S)
            if reply.status != "busy":
                return reply

    async def _call(
        self, channel: Channel, method: str, request: msgspec.Struct, timeout_s: float
    ) -> Reply:
        if channel.node == self._host.name:
            reply: Reply = await self._manager.handover.answer(method, request)
            return reply
        payload = pack(request)
        return unpack(await self._host.rpc.call(channel.node, method, payload, timeout_s), Reply)

    async def _content(
        self, channel: Channel, reply: Reply, until: float, *, refusable: bool = False
    ) -> bytes | None:
        """The whole parcel, page by page; None if it is gone meanwhile."""
        if reply.size > self._options.session_bytes_max + self._options.page_bytes:
            raise ChannelGone(
                "shutdown_reason",
                f"the session of channel {channel.channel!r} has {reply.size} bytes; "
                f"options.lcr.session_bytes_max allows {self._options.session_bytes_max}",
            )
        content = bytearray(reply.page)
        while len(content) < reply.size:
            request = FetchRequest(reply.parcel, len(content))
            try:
                page = await self._ask(
                    channel, FETCH, lambda wait_ms, r=request: r, until, refusable=refusable
                )
            except ChannelGone as gone:
                if gone.kind == "timeout":
                    raise
                return None
            content += page.page
        return bytes(content)

    def _notify(self, channel: Channel, method: str, contender: Contender) -> None:
        request = LeaveRequest(channel, contender)
        self._host.spawn(self._tell(channel, method, request), "lcr-notice")

    async def _tell(self, channel: Channel, method: str, request: LeaveRequest) -> None:
        for _ in range(NOTICE_ATTEMPTS):
            try:
                await self._call(channel, method, request, REPLY_S)
                return
            except RaftkvError:
                await self._host.runtime.sleep(RETRY_S)

    def _failed(self, call: str, gone: ChannelGone) -> None:
        self._counters.add(f"takeover_failed_{gone.kind}", call=call)

    def _now(self) -> float:
        return self._host.runtime.monotonic()

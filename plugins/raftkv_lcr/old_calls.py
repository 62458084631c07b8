"""Calls to channels on nodes of both kinds, and what old nodes call this node for.

- `MixedTakeovers`: the way to channels elsewhere, in protocol 2 or, to old nodes, in protocol 1. A
  node is old as long as it has not announced itself, so a new one that is just starting is asked in
  protocol 1, too, and answers.
- `LockedPeers`: the same for the flow of "disabled", whose registrations stand in no log.
- `CalledByOld`: what protocol 1 asks of this node's channels, done by the manager's hand-overs, so
  that contenders of both kinds share one freeze and one end. A caller of protocol 1 cannot know
  anything about the linear registry: this node writes it on the caller's behalf.

What protocol 1 cannot do stays so: it has no pages, so a session larger than a frame is lost to
it; it has no abort, so what it froze goes on only when its time is up; and its `end` is asked once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from raftkv.errors import (
    NotApplied,
    OutcomeUnknown,
    RaftkvError,
    Refused,
    SessionExpired,
    StaleIncarnation,
)
from raftkv.plugin import Host

from .commands import VERSION_MAX, Adopt, Channel, Registered, Unregister, same_channel
from .legacy_wire import OldEnd
from .modes import effective_mode, old_nodes
from .old_flow import OldCalls
from .owner import NOTHING, ChannelGone, Message
from .takeover import Begun, NotSuccessor, Takeovers
from .wire import ABORT, Contender, Handed, LeaveRequest

if TYPE_CHECKING:
    from .manager import ChannelManager

__all__ = ["CalledByOld", "LockedPeers", "MixedTakeovers", "speaks_old"]

T = TypeVar("T")

# The index of a registration that no log has seen: later than all, so nothing contradicts it.
NO_LOG: Final = VERSION_MAX
# All callers of protocol 1 are one contender, as they do not say who they are.
OLD_CONTENDER: Final = Contender("", 0, "")
RETRY_S = 0.1
RETRY_MAX_S = 5.0


def speaks_old(host: Host, node: str) -> bool:
    """Whether that node is a member that has not announced itself."""
    view = host.view()
    return node in old_nodes(view, view.members)


class MixedTakeovers(Takeovers):
    """`Takeovers` that speaks to old nodes in their own protocol."""

    def __init__(self, manager: ChannelManager, calls: OldCalls) -> None:
        super().__init__(manager)
        self._calls = calls
        self._leaving: dict[tuple[tuple[str, str], Contender], asyncio.Task[None]] = {}

    async def begin(self, channel: Channel, contender: Contender, deadline: float) -> Begun:
        if not self._is_old(channel):
            # An abort of the same connection must not arrive behind its new begin.
            leaving = self._leaving.get((_key(channel), contender))
            if leaving is not None:
                await asyncio.wait([leaving])
            return await super().begin(channel, contender, deadline)
        left_s = (deadline - self._host.runtime.monotonic()) / 2
        timeout_s = max(min(self._options.begin_timeout_s, left_s), RETRY_S)
        content = await self._asked("begin", self._calls.begin(channel, None, timeout_s))
        return Begun(channel, contender, 0, content)

    async def end(
        self, channel: Channel, registered: Registered, freeze: int, deadline: float
    ) -> Handed:
        # What was begun in protocol 2 is ended in it, although its node may have a new life by now
        # that has not announced itself yet.
        if freeze or not self._is_old(channel):
            return await super().end(channel, registered, freeze, deadline)
        # Asked once: protocol 1 does not keep its answers.
        ended = self._calls.end(channel, registered.channel, self._options.end_timeout_s)
        return await self._asked("end", ended)

    def abort(self, channel: Channel, contender: Contender) -> None:
        if self._is_old(channel):
            return
        place = (_key(channel), contender)
        told = self._tell(channel, ABORT, LeaveRequest(channel, contender))
        leaving = self._leaving[place] = self._host.spawn(told, "lcr-abort")

        def over(task: asyncio.Task[None]) -> None:
            if self._leaving.get(place) is task:
                del self._leaving[place]

        leaving.add_done_callback(over)

    async def discard(self, channel: Channel) -> bool:
        if not self._is_old(channel):
            return await super().discard(channel)
        timeout_s = self._options.discard_timeout_s
        return await self._closed("discard", self._calls.discard(channel, None, timeout_s))

    async def kick(self, channel: Channel, reason: str) -> bool:
        if not self._is_old(channel):
            return await super().kick(channel, reason)
        timeout_s = self._options.kick_timeout_s
        return await self._closed("kick", self._calls.kick(channel, reason, timeout_s))

    async def alive(
        self, node: str, channels: tuple[Channel, ...], timeout_s: float
    ) -> tuple[bool, ...] | None:
        if node == self._host.name or not speaks_old(self._host, node):
            return await super().alive(node, channels, timeout_s)
        try:
            return await self._asked("", self._calls.alive(node, channels, timeout_s))
        except ChannelGone:
            return None

    async def connected(self, channel: Channel, deadline: float) -> bool:
        """See `Takeovers`. Protocol 1 cannot ask, so an old node's channel is displaced."""
        return not self._is_old(channel) and await super().connected(channel, deadline)

    def _is_old(self, channel: Channel) -> bool:
        return channel.node != self._host.name and speaks_old(self._host, channel.node)

    async def _asked(self, call: str, answer: Awaitable[T]) -> T:
        self._counters.add("old_calls_made")
        try:
            return await answer
        except ChannelGone as gone:
            if call and gone.reason != NOTHING:
                self._counters.add(f"takeover_failed_{gone.kind}", call=call)
            raise

    async def _closed(self, call: str, answer: Awaitable[None]) -> bool:
        try:
            await self._asked(call, answer)
        except ChannelGone as gone:
            if gone.kind == "timeout":
                raise
            return False
        return True


class LockedPeers:
    """How one connection under "disabled" reaches channels: protocol 2 where it is spoken.

    The registration that an `end` speaks of stands in no log. It counts as of the epoch in which
    the connection began: a channel that the log has registered since then is not its prey, however
    late the call arrives. But where the log still has a row from before that epoch, which its node
    has yet to take out, nothing may contradict. When an `end` is refused, that node may know of a
    switch of which this one has not heard: this one catches up before the flow looks at the epoch.
    """

    def __init__(self, manager: ChannelManager, epoch: int) -> None:
        self._manager = manager
        self._epoch = epoch
        self._begun: dict[tuple[str, str], Begun] = {}

    async def begin(self, channel: Channel, taker: Channel, timeout_s: float) -> bytes:
        takeovers = self._manager.takeovers
        deadline = self._manager.host.runtime.monotonic() + 2 * timeout_s
        begun = await takeovers.begin(channel, takeovers.contender(taker.channel), deadline)
        self._begun[_key(taker)] = begun
        return begun.content

    async def end(self, channel: Channel, taker: Channel, timeout_s: float) -> Handed:
        begun = self._begun.pop(_key(taker), None)
        freeze = 0 if begun is None else begun.freeze
        host = self._manager.host
        deadline = host.runtime.monotonic() + timeout_s
        registered = _unlogged(taker, self._index(channel))
        try:
            return await self._manager.takeovers.end(channel, registered, freeze, deadline)
        except NotSuccessor as error:
            left_s = max(deadline - host.runtime.monotonic(), RETRY_S)
            with contextlib.suppress(RaftkvError):
                await host.barrier(timeout_s=left_s)
            raise ChannelGone("noproc", str(error)) from error

    def _index(self, channel: Channel) -> int:
        owner = self._manager.api.lookup_local(channel.client_id)
        return self._epoch if owner is None or not same_channel(owner, channel) else NO_LOG

    def abort(self, channel: Channel, taker: Channel) -> None:
        self._begun.pop(_key(taker), None)
        takeovers = self._manager.takeovers
        takeovers.abort(channel, takeovers.contender(taker.channel))

    async def discard(self, channel: Channel, taker: Channel, timeout_s: float) -> None:
        if not await self._manager.takeovers.discard(channel):
            raise ChannelGone("noproc", "the channel is gone")


class CalledByOld:
    """What old nodes ask of this node's channels (protocol 1), done by the manager's hand-overs."""

    def __init__(self, manager: ChannelManager) -> None:
        self._manager = manager
        self._host = manager.host

    async def begin(self, channel: Channel) -> bytes:
        """Freeze the channel, beside whoever else has begun; the content."""
        self._check(channel)
        return (await self._begin(channel)).content

    async def end(self, request: OldEnd) -> Sequence[Message]:
        """End the channel for an old node's, which from then on stands for the client here."""
        channel, taker = request.channel, request.taker
        self._check(channel)
        if taker is None:
            raise ChannelGone("shutdown_reason", "an end must name who takes the channel's place")
        # It joins the freeze of its begin. Were that over, what the caller has would be old.
        begun = await self._begin(channel)
        row = self._row(channel)
        try:
            handed = await self._manager.takeovers.end(
                channel, _unlogged(taker, NO_LOG), begun.freeze, self._deadline()
            )
        except NotSuccessor as error:
            raise ChannelGone("noproc", str(error)) from error
        self._host.spawn(self._stand_in(row, request, True), "lcr-stand-in")
        return handed.pendings

    async def discard(self, request: OldEnd) -> None:
        self._check(request.channel)
        row = self._row(request.channel)
        if not await self._manager.takeovers.discard(request.channel):
            raise ChannelGone("noproc", "the channel is gone")
        self._host.spawn(self._stand_in(row, request, False), "lcr-stand-in")

    async def kick(self, channel: Channel, reason: str) -> None:
        self._check(channel)
        row = self._row(channel)
        if not await self._manager.takeovers.kick(channel, reason):
            raise ChannelGone("noproc", "the channel is gone")
        if row is not None:
            self._manager.api.reaper.delete(row)

    def is_alive(self, channel: Channel) -> bool:
        return self._manager.handover.is_alive(channel)

    def _check(self, channel: Channel) -> None:
        self._manager.api.counters.add("old_calls_answered")
        if not self.is_alive(channel):
            raise ChannelGone("noproc", f"channel {channel.channel!r} is not on {self._host.name}")

    async def _begin(self, channel: Channel) -> Begun:
        return await self._manager.takeovers.begin(channel, OLD_CONTENDER, self._deadline())

    def _deadline(self) -> float:
        return self._host.runtime.monotonic() + 2 * self._manager.options.begin_timeout_s

    def _row(self, channel: Channel) -> Channel | None:
        written = self._manager.written.get(_key(channel))
        return None if written is None else written.lcr

    async def _stand_in(self, row: Channel | None, request: OldEnd, present: bool) -> None:
        """Write the linear registry for an old node that took over: out goes `row`, in its own.

        Tried until the log answers, or that node's life is over. If another connection was faster,
        that one is the client's, and its node sees to the rest (`MixedFlow.rival`).
        """
        taker = request.taker
        delay_s = RETRY_S
        while True:
            try:
                if row is not None:
                    await self._host.propose(Unregister(row))
                    row = None
                if taker is not None and effective_mode(self._host.view()).mode != "disabled":
                    version = request.disconnected_at_ms
                    taker = replace(taker, version=version, ticket=0, supplied=True)
                    await self._host.propose(Adopt(taker, present))
                    self._manager.api.counters.add("adopted")
                return
            except (SessionExpired, StaleIncarnation):
                row = None  # fenced with this node's former life
            except (NotApplied, OutcomeUnknown) as error:
                self._host.log.debug("lcr: standing in for an old node waits: %s", error)
                delay_s = min(2 * delay_s, RETRY_MAX_S)
            except Refused as error:
                self._host.log.info("lcr: an old node's channel is not entered: %s", error)
                return
            await self._host.runtime.sleep(delay_s)


def _key(row: Channel) -> tuple[str, str]:
    return (row.client_id, row.channel)


def _unlogged(taker: Channel, index: int) -> Registered:
    """A registration in the old registry, as `end` wants to see it."""
    return Registered(taker, None, True, False, index)

"""The session flow of the old registry, and the calls to channels that go with it (protocol 1).

What happens under the mode "disabled", and on nodes that know no other mode. A connect

1. takes the client's cluster-wide lock; without it, it is refused with "timeout";
2. reads this node's own bag. Nobody else is asked;
3. lets the newest channel that it sees there freeze its session and hand over the content
   (`begin`), and discards the older ones; a clean start discards them all;
4. writes its own row, without waiting for more than one core;
5. ends the old channel, which gives the messages that came in between (`end`);
6. unlocks.

This is the registry that the linear one is compared with, so it is built as well as that one: the
same owners of channels, the same time-outs, freezes that end by themselves. What is weak about it
is its design, and kept: the lock guards the steps but not the copy that they read, no step knows
whether the one before it is still true, and a holder that dies keeps the client locked out until
the lease ends. Nothing in here helps the anomalies along, and nothing cures them.

Protocol 1 knows no versions and no tokens. Whoever calls is believed to hold the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from raftkv.errors import PeerUnreachable, RaftkvError, Timeout
from raftkv.plugin import Host

from .commands import Channel, same_channel
from .legacy import LegacyRegistry
from .legacy_wire import (
    OLD_ALIVE,
    OLD_BEGIN,
    OLD_DISCARD,
    OLD_END,
    OLD_KICK,
    OldAlive,
    OldBegin,
    OldContent,
    OldEnd,
    OldGone,
    OldKick,
    OldLiving,
    OldPendings,
    pack,
    unpack,
)
from .options import LcrOptions
from .owner import NOTHING, ChannelGone, ChannelOwner, Failure, Message
from .result import OpenedSession
from .wire import Handed

__all__ = [
    "OldCalls",
    "OldFlow",
    "OldHolder",
    "OldOpened",
    "OldServer",
    "Overtaken",
    "OwnerHolder",
    "Peers",
    "opened_session",
]

T = TypeVar("T")


class OldHolder(Protocol):
    """What a node does when protocol 1 asks for one of its channels. All raise `ChannelGone`."""

    async def begin(self, channel: Channel) -> bytes: ...

    async def end(self, request: OldEnd) -> Sequence[Message]: ...

    async def discard(self, request: OldEnd) -> None: ...

    async def kick(self, channel: Channel, reason: str) -> None: ...

    def is_alive(self, channel: Channel) -> bool: ...


class OldServer:
    """Answers protocol 1 on a node."""

    def __init__(self, host: Host, holder: OldHolder) -> None:
        self._host = host
        self._holder = holder

    def serve(self) -> None:
        rpc = self._host.rpc
        rpc.register(OLD_BEGIN, self._on_begin)
        rpc.register(OLD_END, self._on_end)
        rpc.register(OLD_DISCARD, self._on_discard)
        rpc.register(OLD_KICK, self._on_kick)
        rpc.register(OLD_ALIVE, self._on_alive)

    async def _on_begin(self, sender: str, payload: bytes) -> bytes:
        request = unpack(payload, OldBegin)
        try:
            return pack(OldContent(await self._holder.begin(request.channel)))
        except ChannelGone as gone:
            return pack(OldGone(gone.kind, gone.reason))

    async def _on_end(self, sender: str, payload: bytes) -> bytes:
        try:
            pendings = await self._holder.end(unpack(payload, OldEnd))
        except ChannelGone as gone:
            return pack(OldGone(gone.kind, gone.reason))
        return pack(OldPendings(tuple(pendings)))

    async def _on_discard(self, sender: str, payload: bytes) -> bytes:
        try:
            await self._holder.discard(unpack(payload, OldEnd))
        except ChannelGone as gone:
            return pack(OldGone(gone.kind, gone.reason))
        return pack(OldPendings(()))

    async def _on_kick(self, sender: str, payload: bytes) -> bytes:
        request = unpack(payload, OldKick)
        try:
            await self._holder.kick(request.channel, request.reason)
        except ChannelGone as gone:
            return pack(OldGone(gone.kind, gone.reason))
        return pack(OldPendings(()))

    async def _on_alive(self, sender: str, payload: bytes) -> bytes:
        request = unpack(payload, OldAlive)
        return pack(OldLiving(tuple(map(self._holder.is_alive, request.channels))))


class OldCalls:
    """Protocol 1 from the caller's side. A failure of whatever kind is a `ChannelGone`."""

    def __init__(self, host: Host, holder: OldHolder) -> None:
        self._host = host
        # Channels of this very node are asked without a call.
        self._holder = holder

    async def begin(self, channel: Channel, taker: Channel | None, timeout_s: float) -> bytes:
        """Freeze the channel; the content of its session. The call does not say for whom."""
        if channel.node == self._host.name:
            return await self._bounded(self._holder.begin(channel), timeout_s)
        reply = await self._call(channel.node, OLD_BEGIN, pack(OldBegin(channel)), timeout_s)
        answer: OldContent | OldGone = unpack(reply, OldContent | OldGone)  # type: ignore[arg-type]
        if isinstance(answer, OldGone):
            raise ChannelGone(answer.kind, answer.reason)
        return answer.content

    async def end(self, channel: Channel, taker: Channel | None, timeout_s: float) -> Handed:
        """End the channel in favour of `taker`; what arrived since the begin, in order."""
        request = self._end(channel, taker)
        if channel.node == self._host.name:
            return Handed(None, tuple(await self._bounded(self._holder.end(request), timeout_s)))
        reply = await self._call(channel.node, OLD_END, pack(request), timeout_s)
        return Handed(None, _pendings(reply))

    def abort(self, channel: Channel, taker: Channel) -> None:
        """There is no such call in protocol 1: the channel goes on when its time is up."""

    async def discard(self, channel: Channel, taker: Channel | None, timeout_s: float) -> None:
        """End the channel and its session."""
        request = self._end(channel, taker)
        if channel.node == self._host.name:
            await self._bounded(self._holder.discard(request), timeout_s)
            return
        _pendings(await self._call(channel.node, OLD_DISCARD, pack(request), timeout_s))

    async def kick(self, channel: Channel, reason: str, timeout_s: float) -> None:
        """End the channel and its session, and let the client know the reason."""
        if channel.node == self._host.name:
            await self._bounded(self._holder.kick(channel, reason), timeout_s)
            return
        request = pack(OldKick(channel, reason))
        _pendings(await self._call(channel.node, OLD_KICK, request, timeout_s))

    async def alive(
        self, node: str, channels: Sequence[Channel], timeout_s: float
    ) -> tuple[bool, ...]:
        """Which of the channels live on `node`. Raises `ChannelGone` when it does not say."""
        if node == self._host.name:
            return tuple(map(self._holder.is_alive, channels))
        reply = await self._call(node, OLD_ALIVE, pack(OldAlive(tuple(channels))), timeout_s)
        living = unpack(reply, OldLiving).living
        if len(living) != len(channels):
            raise ChannelGone("shutdown_reason", f"{node} answered for {len(living)} channels")
        return living

    def _end(self, channel: Channel, taker: Channel | None) -> OldEnd:
        return OldEnd(channel, taker, self._host.runtime.wall_ms())

    async def _call(self, node: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        try:
            return await self._host.rpc.call(node, method, payload, timeout_s)
        except RaftkvError as error:
            raise ChannelGone(_kind(error), str(error)) from error

    async def _bounded(self, answer: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Wait for a channel of this node. One that is too slow is given up, not cancelled."""
        task: asyncio.Task[T] = self._host.runtime.spawn(answer, "lcr-old-local")
        task.add_done_callback(_read)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(task)
        except TimeoutError:
            raise ChannelGone("timeout", "the channel did not answer in time") from None


def _read(task: asyncio.Task[Any]) -> None:
    """Look at a result nobody may come to await, so that asyncio does not complain of that."""
    if not task.cancelled():
        task.exception()


def _kind(error: RaftkvError) -> Failure:
    if isinstance(error, PeerUnreachable):
        return "noproc"
    return "timeout" if isinstance(error, Timeout) else "shutdown_reason"


def _pendings(reply: bytes) -> tuple[Message, ...]:
    answer: OldPendings | OldGone = unpack(reply, OldPendings | OldGone)  # type: ignore[arg-type]
    if isinstance(answer, OldGone):
        raise ChannelGone(answer.kind, answer.reason)
    return answer.messages


class Freeze:
    """A channel that has begun to hand over: what it said, and when it goes on by itself."""

    def __init__(self, task: asyncio.Task[bytes], until_s: float) -> None:
        self.task = task
        self.until_s = until_s


class OwnerHolder:
    """Protocol 1 straight to the embedding broker, on a node that knows nothing else.

    `ended` is told of each channel that ends here, to unregister it. A channel that is still being
    opened (`opening`, then `opened`) is not asked before that is done.
    """

    def __init__(
        self,
        host: Host,
        owner: ChannelOwner,
        options: LcrOptions,
        ended: Callable[[Channel], None],
    ) -> None:
        self._host = host
        self._owner = owner
        self._options = options
        self._ended = ended
        self._frozen: dict[tuple[str, str], Freeze] = {}
        self._opening: dict[tuple[str, str], asyncio.Event] = {}

    def opening(self, channel: Channel) -> None:
        """Its row is about to be written, and its broker has no session for it yet."""
        self._opening[(channel.client_id, channel.channel)] = asyncio.Event()

    def opened(self, channel: Channel) -> None:
        """The broker has the session, or the connection has failed."""
        event = self._opening.pop((channel.client_id, channel.channel), None)
        if event is not None:
            event.set()

    async def begin(self, channel: Channel) -> bytes:
        """Freeze; whoever asks while it is frozen gets the same content."""
        await self._check_here(channel)
        key = (channel.client_id, channel.channel)
        until_s = self._host.runtime.monotonic() + self._options.begin_ttl_s
        freeze = self._frozen.get(key)
        if freeze is not None:
            freeze.until_s = until_s
            return await asyncio.shield(freeze.task)
        task = self._host.runtime.spawn(self._owner.begin(channel), "lcr-old-begin")
        freeze = self._frozen[key] = Freeze(task, until_s)
        self._host.spawn(self._thaw(channel, freeze), "lcr-old-thaw")
        try:
            return await asyncio.shield(task)
        except ChannelGone:
            self._frozen.pop(key, None)
            raise

    async def end(self, request: OldEnd) -> Sequence[Message]:
        """One caller gets what arrived since the begin, all others hear that it is gone."""
        channel = request.channel
        await self._check_here(channel)
        freeze = self._frozen.pop((channel.client_id, channel.channel), None)
        if freeze is None:
            raise ChannelGone("noproc", "nobody has begun to take this channel over")
        try:
            await asyncio.shield(freeze.task)
            return await self._owner.end(channel)
        finally:
            self._ended(channel)

    async def discard(self, request: OldEnd) -> None:
        channel = request.channel
        await self._check_here(channel)
        self._frozen.pop((channel.client_id, channel.channel), None)
        try:
            await self._owner.discard(channel)
        finally:
            self._ended(channel)

    async def kick(self, channel: Channel, reason: str) -> None:
        await self._check_here(channel)
        self._frozen.pop((channel.client_id, channel.channel), None)
        try:
            await self._owner.kick(channel, reason)
        finally:
            self._ended(channel)

    def is_alive(self, channel: Channel) -> bool:
        if channel.incarnation != self._host.incarnation:
            return False
        opening = (channel.client_id, channel.channel) in self._opening
        return opening or self._owner.is_alive(channel)

    async def _check_here(self, channel: Channel) -> None:
        opening = self._opening.get((channel.client_id, channel.channel))
        if opening is not None:
            await opening.wait()
        if not self.is_alive(channel):
            raise ChannelGone("noproc", f"channel {channel.channel!r} is not on {self._host.name}")

    async def _thaw(self, channel: Channel, freeze: Freeze) -> None:
        """Let the channel go on when nobody comes to end it."""
        key = (channel.client_id, channel.channel)
        while self._frozen.get(key) is freeze:
            left_s = freeze.until_s - self._host.runtime.monotonic()
            if left_s > 0:
                await self._host.runtime.sleep(left_s)
                continue
            del self._frozen[key]
            with contextlib.suppress(ChannelGone):
                await self._owner.resume(channel)


# --- the flow -------------------------------------------------------------------------------------


class Peers(Protocol):
    """How the flow reaches channels, wherever they live. All but `abort` raise `ChannelGone`."""

    async def begin(self, channel: Channel, taker: Channel, timeout_s: float) -> bytes: ...

    async def end(self, channel: Channel, taker: Channel, timeout_s: float) -> Handed: ...

    def abort(self, channel: Channel, taker: Channel) -> None: ...

    async def discard(self, channel: Channel, taker: Channel, timeout_s: float) -> None: ...


class OldOpened(msgspec.Struct, frozen=True):
    """What a connect through the old registry came to. `row` is None when the lock was not had."""

    row: Channel | None
    predecessor: Channel | None = None
    session: bytes | None = None
    pendings: tuple[Message, ...] = ()
    failure: Failure | None = None
    attempts: int = 1


def opened_session(opened: OldOpened) -> OpenedSession:
    """What a broker is told of a session that was opened through the old registry."""
    if opened.row is None:
        return OpenedSession("timeout", attempts=opened.attempts)
    present = opened.session is not None
    lost: Literal["lost", "none"] = "none" if opened.failure is None else "lost"
    return OpenedSession(
        outcome="ok",
        present=present,
        session=opened.session,
        pendings=opened.pendings,
        channel=opened.row,
        predecessor=opened.predecessor,
        attempts=opened.attempts,
        handover="complete" if present else lost,
        failure=opened.failure,
    )


class Overtaken(Exception):
    """What the connection began with holds no longer; it has to begin anew, elsewhere."""


class OldFlow:
    """Lock, look, begin, write, end, unlock, on one node."""

    def __init__(
        self, host: Host, legacy: LegacyRegistry, peers: Peers, options: LcrOptions
    ) -> None:
        self._host = host
        self._legacy = legacy
        self._peers = peers
        self._options = options

    async def open(
        self,
        client_id: str,
        clean_start: bool,
        channel: str,
        *,
        version: int | None = None,
        lock_wait_s: float | None = None,
        writing: Callable[[Channel], None] = lambda row: None,
        check: Callable[[], None] = lambda: None,
    ) -> OldOpened:
        """Open a session of the client on `channel`.

        `version` goes into the row (default: this node's wall clock in ms); nothing is decided by
        it. `lock_wait_s` bounds the wait for the lock, if it is shorter than the usual one.
        `writing` is called with the row just before it is written, since from then on others may
        ask for the channel. `check` raises `Overtaken` if this flow is none for the client any
        more. It is asked with the lock in hand, before the write, before the end, and when the end
        has failed; then nothing stays behind. Else raises what the dirty write does: `NoLeader`,
        `Overloaded`, `Timeout`.
        """
        await self._legacy.ready()
        lock = await self._legacy.locks.acquire(client_id, lock_wait_s)
        if not lock.granted:
            return OldOpened(None, attempts=lock.attempts)

        def checked(row: Channel) -> None:
            check()
            writing(row)

        try:
            check()
            row = self._legacy.row(client_id, channel, version)
            opened = await self._open_locked(row, clean_start, checked, check)
        finally:
            release = self._host.spawn(self._legacy.locks.release(lock), "lcr-old-unlock")
            await asyncio.shield(release)
        return msgspec.structs.replace(opened, attempts=lock.attempts)

    async def _open_locked(
        self,
        row: Channel,
        clean_start: bool,
        writing: Callable[[Channel], None],
        check: Callable[[], None],
    ) -> OldOpened:
        known = [
            other
            for other in self._legacy.channels_local(row.client_id)
            if not same_channel(other, row)
        ]
        if clean_start or not known:
            await asyncio.gather(*(self._discard(other, row) for other in known))
            writing(row)
            await self._legacy.add(row)
            return OldOpened(row)
        *older, newest = known
        for other in older:
            self._host.spawn(self._discard(other, row), "lcr-old-discard")
        return await self._take_over(newest, row, writing, check)

    async def _take_over(
        self,
        newest: Channel,
        row: Channel,
        writing: Callable[[Channel], None],
        check: Callable[[], None],
    ) -> OldOpened:
        try:
            content = await self._peers.begin(newest, row, self._options.begin_timeout_s)
        except ChannelGone as gone:
            writing(row)
            await self._legacy.add(row)
            if gone.reason == NOTHING:
                # It lives: its connection has to go, and nothing is lost with it.
                self._host.spawn(self._discard(newest, row), "lcr-old-discard")
                return OldOpened(row, newest)
            return OldOpened(row, newest, failure=gone.kind)
        try:
            writing(row)
            await self._legacy.add(row)
        except BaseException:
            self._peers.abort(newest, row)
            raise
        try:
            check()
            handed = await self._peers.end(newest, row, self._options.end_timeout_s)
        except Overtaken:
            self._peers.abort(newest, row)
            await self._remove(row)
            raise
        except ChannelGone as gone:
            try:
                check()
            except Overtaken:
                await self._remove(row)
                raise
            # As upstream: a session whose end is not sure is not continued.
            return OldOpened(row, newest, failure=gone.kind)
        if handed.content is not None:
            content = handed.content  # the freeze was over by then, and this is all of it
        return OldOpened(row, newest, content, handed.pendings)

    async def _remove(self, row: Channel) -> None:
        """Take the row out again, at once: the channel is about to be written anew."""
        try:
            await self._legacy.unregister(row)
        except BaseException as error:
            self._legacy.remove_soon(row)
            if not isinstance(error, RaftkvError):
                raise

    async def _discard(self, other: Channel, row: Channel) -> None:
        try:
            await self._peers.discard(other, row, self._options.discard_timeout_s)
        except ChannelGone as gone:
            self._host.log.debug("lcr: %s was not discarded: %s", other.channel, gone)

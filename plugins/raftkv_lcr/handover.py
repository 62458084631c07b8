"""The owner's side of a takeover, on the node where the channel lives: freeze, hand over, let go.

A connection elsewhere (a *contender*) calls `begin`, registers in the log, and the one that the log
chose calls `end`. Rules of this file:

1. **One freeze for all.** The first contender freezes the channel, the others get the same content.
   When all of them have gone (`abort`), or none has come back for `begin_ttl_s`, the channel goes
   on as if nothing had been (`resume`).
2. **One end.** The winner of the log ends the channel and gets what arrived since the freeze. If
   that freeze is over by then, `end` begins anew and gives the full content, so a slow way through
   the log loses nothing. The answer is kept until the winner acknowledges it, `handover_keep_s`, or
   until memory is short; a repeated `end` gets it again.
3. **The log is believed, not the caller.** An `end` is refused when this node knows better: it has
   applied the winner's index and shows the channel as owner still or again, or has registered the
   channel at a later index. A node that has not come so far yet takes the winner's word: only the
   log can have told it that index. Nothing waits for a lagging replica. Under "disabled" rows of
   the log contradict no end: they are from before, and about to be taken out.
4. **Nothing is frozen or orphaned for ever.** A channel whose row was replaced has a successor that
   must come for it. When it does not come within `lost_grace_s`, the channel is kicked: the
   client's session lives elsewhere.

**When the successor dies first.** W is registered over P, and W's node dies (or W's connection is
given up) before it ends P. P's node still has the content. As soon as it sees that the client has
no live owner any more, it registers P again (`Adopt`), which the log grants only while there is
still none. So the content goes to one place: an `end` of W that arrives later is refused by rule 3,
and while the `Adopt` is on its way, `end` waits for its verdict. If a new connection was faster, it
found no owner, began an empty session, and P is kicked; such a session is lost with W's node, as if
P had already been handed over. P does not come back when W did not continue it (a clean start).
There is one case that nobody can save: W's node gives up the `end` (P's node cannot be reached by
it), W's session ends properly, and all that within `lost_grace_s` of P's loss. Then P comes back,
with the session as it was before W.

Calls to the broker are never cancelled, only waited for until their time-out; `begin`, `end` and
`resume` of one channel follow each other. `discard` and `kick` wait for nobody, since they are what
ends a broker that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from raftkv.errors import RaftkvError
from raftkv.plugin import Metric

from .commands import Channel, Entry, same_channel
from .modes import mode_of
from .owner import ChannelGone, Failure, Message
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
    from .manager import ChannelManager, Key

__all__ = ["Handover"]

T = TypeVar("T")

# How often time-outs are looked at, and whether the successor of a lost channel still lives.
POLL_S = 0.25
# Channels looked at between two breaths.
SLICE = 1_000
# Contenders that have gone, so that an `end` which their `abort` overtook is refused. Remembered
# as long as a lost channel; beyond this number the oldest are forgotten.
LEFT_MAX = 10_000
TAKEN_OVER = "taken over"

Closing = Literal["discard", "kick"]


class Freeze:
    """One freeze of one channel, for all who want it."""

    def __init__(self, number: int, row: Channel, task: asyncio.Future[bytes], now: float) -> None:
        # Names the freeze and its parcel.
        self.number = number
        self.row = row
        self.task = task
        # Since when the channel owes an answer: an unanswered call keeps its time over candidates.
        self.started = now
        self.until = now
        # In order of their coming. Values mean nothing.
        self.contenders: dict[Contender, None] = {}


class Ending(msgspec.Struct):
    """An `end` at work."""

    winner: Channel
    task: asyncio.Future[int]
    started: float


class Kept(msgspec.Struct):
    """What an `end` gave, until its winner acknowledges it."""

    winner: Channel
    parcel: int
    until: float


class Lost(msgspec.Struct):
    """A channel that lives here and whose row was replaced."""

    row: Channel
    until: float
    # Whether its successor continues the session, so that it may come back if that one dies.
    resumable: bool


class Handover:
    """The hand-overs of one node's channels."""

    def __init__(self, manager: ChannelManager) -> None:
        self._manager = manager
        self._host = manager.host
        self._owner = manager.owner
        self._options = manager.options
        self._counters = manager.api.counters
        self._frozen: dict[Key, Freeze] = {}
        self._ending: dict[Key, Ending] = {}
        self._closing: dict[Key, tuple[Closing, asyncio.Future[None], float]] = {}
        # By the exact row: a broker may use a channel's name again. Oldest first.
        self._kept: dict[Channel, Kept] = {}
        self._lost: dict[Key, Lost] = {}
        self._adopting: dict[Key, asyncio.Future[None]] = {}
        self._left: dict[tuple[Key, Contender], float] = {}
        # The latest begin, end or resume of a channel; the next one waits for it.
        self._turns: dict[Key, asyncio.Future[Any]] = {}
        # When the call began that the channel has not answered yet.
        self._turn_began: dict[Key, float] = {}
        self._parcels: dict[int, bytes] = {}
        self._bytes = 0
        self._number = 0
        self._dropped = 0
        self._too_large = 0
        self._watch: asyncio.Task[None] | None = None
        self._answers: dict[str, Callable[[Any], Awaitable[msgspec.Struct]]] = {
            BEGIN: self.begin,
            FETCH: self.fetch,
            END: self.end,
            ACK: self.ack,
            ABORT: self.abort,
            DISCARD: self.discard,
            KICK: self.kick,
            ALIVE: self.alive,
            CONNECTED: self.connected,
        }

    def serve(self) -> None:
        """Answer other nodes' calls."""
        requests: dict[str, type[msgspec.Struct]] = {
            BEGIN: BeginRequest,
            FETCH: FetchRequest,
            END: EndRequest,
            ACK: LeaveRequest,
            ABORT: LeaveRequest,
            DISCARD: CloseRequest,
            KICK: CloseRequest,
            ALIVE: AliveRequest,
            CONNECTED: AliveRequest,
        }
        for method, request in requests.items():
            self._host.rpc.register(method, self._handler(method, request))

    async def answer(self, method: str, request: msgspec.Struct) -> Any:
        """A call of this very node."""
        return await self._answers[method](request)

    # --- the calls ---

    async def begin(self, request: BeginRequest) -> Reply:
        """Freeze the channel, or join its freeze; the content."""
        row, contender = request.channel, request.contender
        key, until = _key(row), self._until(request.wait_ms)
        if _contends(row) == contender:
            return Reply("gone", kind="noproc", reason="a channel cannot take over itself")
        # Noted from here on, an abort is one of this call.
        candidate = (key, contender)
        self._left.pop(candidate, None)
        if not await self._opened(key, until):
            return Reply("opening")
        if key not in self._frozen and not await self._room(until):
            return Reply("busy")
        if self._is_stale(row) or key in self._ending:
            return Reply("gone", kind="noproc", reason="the channel has been handed over")
        if candidate in self._left:
            return Reply("gone", kind="noproc", reason="the candidate has left meanwhile")
        freeze = self._frozen.get(key) or self._freeze(key, row)
        freeze.contenders[contender] = None
        freeze.until = self._now() + self._options.begin_ttl_s
        limit = freeze.started + self._options.begin_timeout_s
        reply = await self._result(freeze.task, until, limit)
        if not freeze.task.done() and self._now() < freeze.started + self._options.begin_timeout_s:
            # The former call has been answered meanwhile, and this one has its whole time.
            return Reply("busy")
        if reply is None and self._frozen.get(key) is not freeze:
            return Reply("busy")  # that freeze is over by now: begin anew
        return reply or self._page(freeze.number, 0)

    async def fetch(self, request: FetchRequest) -> Reply:
        """A further page of a parcel."""
        return self._page(request.parcel, request.offset)

    async def end(self, request: EndRequest) -> Reply:
        """End the channel for the winner: a parcel with what it still lacks."""
        row, winner = request.channel, request.winner
        key, until = _key(row), self._until(request.wait_ms)
        if not await self._opened(key, until):
            return Reply("opening")
        adopting = self._adopting.get(key)
        if adopting is not None and not await self._done(adopting, until):
            return Reply("busy")
        kept = self._kept.get(row)
        if kept is None:
            ending = self._ending.get(key)
            if ending is None:
                if not self._is_successor(request):
                    return Reply("not_successor")
                ending = self._start_end(key, request)
            if not same_channel(ending.winner, winner):
                return Reply("not_successor")
            limit = ending.started + self._options.end_timeout_s
            reply = await self._result(ending.task, until, limit)
            return reply or self._page(ending.task.result(), 0)
        if not same_channel(kept.winner, winner):
            return Reply("not_successor")
        return self._page(kept.parcel, 0)

    async def ack(self, request: LeaveRequest) -> Reply:
        """The winner has what `end` gave."""
        kept = self._kept.get(request.channel)
        if kept is not None and _contends(kept.winner) == request.contender:
            self._drop_kept(request.channel)
        return Reply("ok")

    async def abort(self, request: LeaveRequest) -> Reply:
        """A contender has gone. The last one takes the freeze with it."""
        key, contender = _key(request.channel), request.contender
        self._left[(key, contender)] = self._now() + self._options.lost_grace_s
        if len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]
        freeze = self._frozen.get(key)
        if freeze is not None and contender in freeze.contenders:
            del freeze.contenders[contender]
            self._counters.add("takeover_aborted")
            if not freeze.contenders:
                self._thaw(key)
        self._wake()
        return Reply("ok")

    async def discard(self, request: CloseRequest) -> Reply:
        """End the session and the channel; nothing is handed over."""
        return await self._close(request, "discard", self._options.discard_timeout_s)

    async def kick(self, request: CloseRequest) -> Reply:
        """End the session and the channel, for a reason."""
        return await self._close(request, "kick", self._options.kick_timeout_s)

    async def alive(self, request: AliveRequest) -> AliveReply:
        """Whether these channels live here, or are just being opened."""
        return AliveReply(tuple(self.is_alive(row) for row in request.channels))

    async def connected(self, request: AliveRequest) -> AliveReply:
        """Whether the clients of these channels are connected to them, or just connecting."""
        return AliveReply(tuple(self.is_connected(row) for row in request.channels))

    def is_connected(self, row: Channel) -> bool:
        """Whether a client is connected to the channel, in the life of the row."""
        key = _key(row)
        if not self.is_alive(row) or key in self._ending or row in self._kept:
            return False
        if key in self._manager.opening:
            return not self._manager.has_left(key)
        return self._owner.is_connected(row)

    def is_alive(self, row: Channel) -> bool:
        """Whether the channel lives on this node, in the life of the row."""
        if row.node != self._host.name or row.incarnation != self._host.incarnation:
            return False
        if _key(row) in self._manager.opening:
            return True
        return not self._is_stale(row) and self._owner.is_alive(row)

    # --- what the manager tells ---

    def lose(self, row: Channel, newer: Channel | None) -> None:
        """The log replaced the row of a channel that lives here: its successor must come for it."""
        if _key(row) in self._lost:
            return
        entry: Entry | None = self._host.view().table("clients").get(row.client_id)
        continued = entry is not None and entry.owner == newer and entry.session_present
        until = self._now() + self._options.lost_grace_s
        self._lost[_key(row)] = Lost(row, until, newer is None or continued)
        self._wake()

    def regain(self, key: Key) -> None:
        """The channel has a row again."""
        self._lost.pop(key, None)

    async def bars(self, key: Key) -> bool:
        """Whether the channel must not be registered again. Then it is ended here and now.

        It lost its row to a connection that did not continue its session.
        """
        lost = self._lost.get(key)
        if lost is None or lost.resumable:
            return False
        closing = self._closing.get(key)
        if closing is None:
            request = CloseRequest(lost.row, TAKEN_OVER, 0)
            closing = self._start_close(key, lost.row, "kick", request)
        await self._done(closing[1], self._now() + self._options.kick_timeout_s)
        return True

    def forget(self, key: Key) -> None:
        """The broker closed the channel by itself."""
        self._lost.pop(key, None)
        self._drop_freeze(key)

    async def reclaim(self, key: Key, patience_s: float) -> bool:
        """A parked session goes to its channel's caller: whether nobody was just ending it.

        Whoever has frozen it has an old content from now on; its `end` begins anew.
        """
        ending = self._ending.get(key)
        if ending is not None:
            await self._done(ending.task, self._now() + patience_s)
            return False
        self._drop_freeze(key)
        return True

    def metrics(self) -> list[Metric]:
        """What is kept for others."""
        return [
            Metric("frozen", "gauge", len(self._frozen), "Channels frozen for a takeover."),
            Metric("lost_channels", "gauge", len(self._lost), "Channels that await a successor."),
            Metric("handovers_kept", "gauge", len(self._kept), "Hand-overs not acknowledged yet."),
            Metric("handover_bytes", "gauge", self._bytes, "Content kept for other nodes."),
            Metric(
                "handovers_dropped_total",
                "counter",
                self._dropped,
                "Hand-overs given up before their acknowledgement (handover_bytes_max or time).",
            ),
            Metric(
                "sessions_too_large_total",
                "counter",
                self._too_large,
                "Sessions not handed over because of session_bytes_max.",
            ),
        ]

    # --- freezing ---

    def _freeze(self, key: Key, row: Channel) -> Freeze:
        self._number += 1
        number = self._number
        task = self._in_turn(key, lambda: self._copy(key, row, number), "lcr-begin")
        started = self._turn_began.get(key, self._now())
        freeze = self._frozen[key] = Freeze(number, row, task, started)
        self._wake()
        return freeze

    async def _copy(self, key: Key, row: Channel, number: int) -> bytes:
        own = self._frozen.get(key)
        if own is not None and own.number == number:
            own.started = self._now()
        try:
            content = await self._owner.begin(row)
            self._check_size(len(content), row)
        except BaseException as error:
            freeze = self._frozen.get(key)
            if freeze is not None and freeze.number == number:
                del self._frozen[key]
            if isinstance(error, TooLarge):
                self._in_turn(key, lambda: self._owner.resume(row), "lcr-resume")
            raise
        self._counters.add("takeover_begun")
        freeze = self._frozen.get(key)
        if freeze is not None and freeze.number == number:
            self._add_parcel(number, content)
        return content

    def _thaw(self, key: Key) -> None:
        """The freeze is over, nobody ended the channel: it goes on."""
        freeze = self._frozen.pop(key)
        self._drop_parcel(freeze.number)
        self._in_turn(key, lambda: self._resume(freeze), "lcr-resume")

    def _drop_freeze(self, key: Key) -> None:
        """The freeze is over, and there is nothing to go on."""
        freeze = self._frozen.pop(key, None)
        if freeze is not None:
            self._drop_parcel(freeze.number)

    async def _resume(self, freeze: Freeze) -> None:
        if freeze.task.cancelled() or freeze.task.exception() is not None:
            return
        await self._owner.resume(freeze.row)
        self._counters.add("takeover_resumed")

    # --- ending ---

    def _is_successor(self, request: EndRequest) -> bool:
        """Whether the log can have registered the winner over the channel as it stands here."""
        row = request.channel
        key = _key(row)
        if self._is_stale(row) or (key, _contends(request.winner)) in self._left:
            return False
        written = self._manager.written.get(key)
        if written is not None and written.index > request.index:
            return False
        view = self._host.view()
        # Only a connection of "disabled" names the index of its epoch (`LockedPeers`).
        if view.index < request.index or request.index == mode_of(view).epoch:
            return True
        owner = self._manager.api.lookup_local(row.client_id)
        return owner is None or not _is_its(owner, row)

    def _start_end(self, key: Key, request: EndRequest) -> Ending:
        freeze = self._frozen.pop(key, None)
        task = self._spawn(lambda: self._end(key, request, freeze), "lcr-end")
        ending = self._ending[key] = Ending(request.winner, task, self._now())
        return ending

    async def _end(self, key: Key, request: EndRequest, freeze: Freeze | None) -> int:
        """Do it; the number of the parcel."""
        row = request.channel
        try:
            content = None
            if freeze is None:
                content = await self._in_turn(key, lambda: self._owner.begin(row), "lcr-begin")
            elif freeze.number != request.freeze:
                content = await freeze.task
            pendings = await self._in_turn(key, lambda: self._owner.end(row), "lcr-end-owner")
        except BaseException:
            if not self._owner.is_alive(row):
                self._ended(key)
            raise
        finally:
            del self._ending[key]
            if freeze is not None:
                self._drop_parcel(freeze.number)
        self._ended(key)
        self._counters.add("takeover_ended")
        return self._keep(row, request.winner, content, tuple(pendings))

    def _keep(
        self, row: Channel, winner: Channel, content: bytes | None, pendings: tuple[Message, ...]
    ) -> int:
        self._number += 1
        self._add_parcel(self._number, pack(Handed(content, pendings)))
        until = self._now() + self._options.handover_keep_s
        self._kept[row] = Kept(winner, self._number, until)
        self._make_room()
        self._wake()
        return self._number

    def _ended(self, key: Key) -> None:
        self._lost.pop(key, None)
        self._manager.ended(key)

    # --- discard and kick ---

    async def _close(self, request: CloseRequest, call: Closing, timeout_s: float) -> Reply:
        row = request.channel
        key, until = _key(row), self._until(request.wait_ms)
        if not await self._opened(key, until):
            return Reply("opening")
        if self._is_stale(row):
            return Reply("gone", kind="noproc", reason="the channel has ended")
        _, task, started = self._closing.get(key) or self._start_close(key, row, call, request)
        return await self._result(task, until, started + timeout_s) or Reply("ok")

    def _start_close(
        self, key: Key, row: Channel, call: Closing, request: CloseRequest
    ) -> tuple[Closing, asyncio.Future[None], float]:
        reason = request.reason
        task = self._spawn(lambda: self._close_owner(key, row, call, reason), f"lcr-{call}")
        closing = self._closing[key] = (call, task, self._now())
        return closing

    async def _close_owner(self, key: Key, row: Channel, call: Closing, reason: str) -> None:
        try:
            if call == "kick":
                await self._owner.kick(row, reason)
            else:
                await self._owner.discard(row)
            self._counters.add("kicked" if call == "kick" else "discarded")
        finally:
            del self._closing[key]
            if not self._owner.is_alive(row):
                self._drop_freeze(key)
                # The caller may know the channel by a row from before it was entered anew.
                written = self._manager.written.get(key)
                stands = None if written is None else written.lcr
                self._ended(key)
                self._manager.api.reaper.delete(row)
                if stands is not None and stands != row:
                    self._manager.api.reaper.delete(stands)

    # --- lost channels ---

    def _look_after(self, key: Key, lost: Lost) -> None:
        """Whether the lost channel ends, comes back, or goes on waiting."""
        now = self._now()
        if key in self._manager.opening:
            lost.until = now + self._options.lost_grace_s
            return
        if key in self._ending or key in self._adopting or key in self._closing:
            return
        if not self._owner.is_alive(lost.row):
            self._ended(key)
            return
        owner = self._manager.api.lookup_local(lost.row.client_id)
        if owner is not None and _is_its(owner, lost.row):
            del self._lost[key]
        elif owner is None and lost.resumable:
            self._adopting[key] = self._spawn(lambda: self._adopt(key, lost), "lcr-adopt")
        elif now >= lost.until:
            del self._lost[key]
            self._start_close(key, lost.row, "kick", CloseRequest(lost.row, TAKEN_OVER, 0))

    async def _adopt(self, key: Key, lost: Lost) -> None:
        try:
            row = await self._manager.enter(lost.row)
            if row is not None and self._lost.get(key) is lost:
                del self._lost[key]
        except RaftkvError as error:
            self._host.log.debug("lcr: %s is not registered again: %s", lost.row.channel, error)
        finally:
            del self._adopting[key]

    # --- time ---

    def _wake(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = self._host.spawn(self._watch_out(), "lcr-handover")

    async def _watch_out(self) -> None:
        while self._frozen or self._kept or self._lost or self._left:
            await self._host.runtime.sleep(POLL_S)
            now = self._now()
            for key, freeze in list(self._frozen.items()):
                if now >= freeze.until:
                    self._thaw(key)
            for row, kept in list(self._kept.items()):
                if now < kept.until:
                    break
                self._drop_kept(row)
                self._dropped += 1
            for left, until in list(self._left.items()):
                if now < until:
                    break
                del self._left[left]
            for count, key in enumerate(list(self._lost), 1):
                if key in self._lost:
                    self._look_after(key, self._lost[key])
                if count % SLICE == 0:
                    await self._host.runtime.sleep(0)

    def _now(self) -> float:
        return self._host.runtime.monotonic()

    def _until(self, wait_ms: int) -> float:
        return self._now() + wait_ms / 1000

    # --- parcels and memory ---

    def _page(self, parcel: int, offset: int) -> Reply:
        content = self._parcels.get(parcel)
        if content is None:
            return Reply("gone", kind="noproc", reason="this content is no longer kept")
        page = content[offset : offset + self._options.page_bytes]
        return Reply("ok", parcel, len(content), page)

    def _check_size(self, size: int, row: Channel) -> None:
        limit = self._options.session_bytes_max
        if size > limit:
            self._too_large += 1
            raise TooLarge(row.channel, size, limit)

    def _add_parcel(self, number: int, content: bytes) -> None:
        self._parcels[number] = content
        self._bytes += len(content)

    def _drop_parcel(self, number: int) -> None:
        self._bytes -= len(self._parcels.pop(number, b""))

    def _drop_kept(self, row: Channel) -> None:
        self._drop_parcel(self._kept.pop(row).parcel)

    def _make_room(self) -> bool:
        """Whether there is memory for one more content; the oldest kept ones make room."""
        while self._bytes >= self._options.handover_bytes_max and len(self._kept) > 1:
            self._drop_kept(next(iter(self._kept)))
            self._dropped += 1
        return self._bytes < self._options.handover_bytes_max

    async def _room(self, until: float) -> bool:
        while not self._make_room():
            if self._now() >= until:
                return False
            await self._host.runtime.sleep(POLL_S)
        return True

    # --- waiting ---

    def _in_turn(self, key: Key, call: Callable[[], Awaitable[T]], name: str) -> asyncio.Future[T]:
        """Call the owner after the former begin, end or resume of that channel."""
        former = self._turns.get(key)

        async def turn() -> T:
            if former is not None:
                # A cancellation must not pass for its end: the call would begin in a stopped node.
                await asyncio.wait([former])
            self._turn_began[key] = self._now()
            try:
                return await call()
            finally:
                del self._turn_began[key]

        task = self._spawn(turn, name)
        self._turns[key] = task

        def over(task: asyncio.Future[T]) -> None:
            if self._turns.get(key) is task:
                del self._turns[key]

        task.add_done_callback(over)
        return task

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, T]], name: str) -> asyncio.Future[T]:
        """Work that ends with the node, and whose failure is the business of who looks at it."""
        future: asyncio.Future[T] = self._host.runtime.future()
        future.add_done_callback(_read)
        self._host.spawn(_into(future, work), name)
        return future

    async def _opened(self, key: Key, until: float) -> bool:
        """Whether the channel has been opened by then, should it just be opening."""
        while (opening := self._manager.opening.get(key)) is not None:
            if not await self._done(opening, until):
                return False
        return True

    async def _done(self, future: asyncio.Future[Any], until: float) -> bool:
        """Whether the future is done by then, however it ended."""
        left_s = until - self._now()
        if not future.done() and left_s > 0:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(left_s):
                    await asyncio.shield(future)
        return future.done()

    async def _result(self, task: asyncio.Future[Any], until: float, limit: float) -> Reply | None:
        """What to answer unless the task succeeded (None); `limit` is when it has failed."""
        if not await self._done(task, min(until, limit)):
            if self._now() < limit:
                return Reply("busy")
            return Reply("gone", kind="timeout", reason="the channel did not answer in time")
        if task.cancelled():
            return Reply("gone", kind="shutdown", reason="the call was cancelled")
        error = task.exception()
        return None if error is None else Reply("gone", kind=_kind(error), reason=str(error))

    def _is_stale(self, row: Channel) -> bool:
        """Whether the row is that of an earlier channel by the same name."""
        written = self._manager.written.get(_key(row))
        held = None if written is None else written.lcr
        return held is not None and row.ticket not in (0, held.ticket)

    def _handler(
        self, method: str, request: type[msgspec.Struct]
    ) -> Callable[[str, bytes], Awaitable[bytes]]:
        async def handle(sender: str, payload: bytes) -> bytes:
            return pack(await self.answer(method, unpack(payload, request)))

        return handle


class TooLarge(ChannelGone):
    """A session beyond `session_bytes_max`."""

    def __init__(self, channel: str, size: int, limit: int) -> None:
        super().__init__(
            "shutdown_reason",
            f"the session of channel {channel!r} has {size} bytes; options.lcr.session_bytes_max "
            f"allows {limit}",
        )


def _key(row: Channel) -> tuple[str, str]:
    return (row.client_id, row.channel)


def _is_its(owner: Channel, row: Channel) -> bool:
    """Whether `owner` is a row of that channel, of this or a later life of its node."""
    return _key(owner) == _key(row) and owner.node == row.node


def _contends(row: Channel) -> Contender:
    return Contender(row.node, row.incarnation, row.channel)


def _kind(error: BaseException) -> Failure:
    return error.kind if isinstance(error, ChannelGone) else "shutdown_reason"


async def _into(future: asyncio.Future[T], work: Callable[[], Coroutine[Any, Any, T]]) -> None:
    try:
        result = await work()
    except asyncio.CancelledError:
        future.cancel()
        raise
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _read(task: asyncio.Future[Any]) -> None:
    """Look at a result nobody may come to await, so that asyncio does not complain of that."""
    if not task.cancelled():
        task.exception()

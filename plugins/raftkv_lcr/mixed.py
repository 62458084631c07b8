"""Both registries side by side: the modes "disabled", "dual" and "migration", and old nodes.

**Flows.** `LockedFlow` ("disabled") is the old registry's flow, with the manager's hand-overs.
`MixedFlow` ("dual" and "migration") is the linear flow; what it registers in the log it then writes
into the old registry, too, without its lock. Under "dual" that is all. Under "migration" it reads
both, and takes over the newest channel of the union; a channel that only the old registry knows
is nothing to the log, so there the predecessor is the one that the log has, possibly none.

**The newest of the union** is a guess, since rows of the old registry have no order but that of
their arrival: what arrived behind the log's owner is newer. If the guess is not there, the next one
is asked: to `begin` a channel that is not the newest does no harm.

**A switch under way.** A connection of "disabled" stands in no log that could refuse it. So it
compares the epoch itself, with the lock in hand, before its write and before its `end`; if the mode
was switched, it takes back what it did and begins anew under the new one.

**Adoption.** After a switch of the mode, and in a new life, a node enters its living channels
where the mode writes and they are missing, waits for those that were just being opened under the
former mode, and announces the epoch. Under "disabled" it also takes its rows out of the linear
registry, which nobody reads then, and which must not show them as owners for ever. Where two
channels of one client live, as the old registry allows, the first to be entered stays; the other
one is treated as every channel that lost its row. If the mode is switched once more meanwhile, the
adoption starts over: it enters nothing, and above all deletes nothing, for an epoch that is past.
Its deletions are settled before it goes on and never left to the reaper, since the row that an
adoption of the next epoch writes for the channel may be the same, to the last bit.

**Old nodes.** They speak protocol 1 and the old registry only, and take its lock, which nobody
else does. A newer node that calls one writes the linear registry when the call has succeeded, and
leaves the rows of the old channel to the old node. A newer node that is called by one enters the
caller's channel into the linear registry on its behalf, with `disconnected_at` for a version. What
neither covers is a session that an old node began beside a registered one, because its copy was
behind or it lost a race: the node of the registered channel sees the row arrive, waits until any
takeover of its own channel would be over, and then has the other one discarded.

While old nodes are members, `effective_mode` makes "enabled" act as "migration", at once. What had
been opened before is written into the old registry a little later, for a node that is just
starting is an old one for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftkv.errors import (
    NotApplied,
    OutcomeUnknown,
    RaftkvError,
    SequenceTooFar,
    SessionExpired,
    StaleIncarnation,
    UnknownCommand,
)
from raftkv.plugin import Host

from .alarms import LongRuns
from .commands import (
    PROTOCOL,
    Announce,
    Channel,
    ModeChanged,
    ModeRow,
    NotAMember,
    Registered,
    Unregister,
    same_channel,
)
from .linear_flow import Course, LinearFlow, Seen
from .modes import effective_mode, mode_of, old_nodes
from .old_calls import CalledByOld, LockedPeers, MixedTakeovers, speaks_old
from .old_flow import OldCalls, OldFlow, OldServer, Overtaken, opened_session
from .options import options_of
from .owner import NOTHING, ChannelGone
from .registry import is_live
from .result import OpenedSession
from .settings import keeps_older
from .takeover import Begun
from .wire import Contender, Handed

if TYPE_CHECKING:
    from .manager import Attempt, ChannelManager, Written

__all__ = ["Adoption", "Announcer", "LockedFlow", "MixedFlow"]

# A node that has just started announces itself within this time, as a rule. Only after it the other
# nodes fill the old registry for its sake.
OLD_NODE_GRACE_S = 2.0
# Channels entered at the same time, so that some 10,000 take seconds and others still get through.
ADOPT_PARALLEL = 64
# How long a channel whose place is taken waits to hear from the owner's node whether the owner is
# alive at all. A node that is dead is declared so long before.
DOUBT_S = 30.0
# Rows looked at between two breaths: some milliseconds of the node's loop.
SLICE_ROWS = 2_000
RETRY_S = 0.1
RETRY_MAX_S = 5.0


# --- the flows ------------------------------------------------------------------------------------


class LockedFlow:
    """The flow under the mode "disabled": the old registry alone, under its lock."""

    def __init__(self, manager: ChannelManager) -> None:
        self._manager = manager
        self._host = manager.host
        self._legacy = manager.api.legacy

    async def open(self, attempt: Attempt) -> OpenedSession | ModeChanged:
        """See `manager.Flow`."""
        key = (attempt.client_id, attempt.channel)

        def writing(row: Channel) -> None:
            self._manager.wrote(key, old=row)

        def check() -> None:
            if mode_of(self._host.view()).epoch != attempt.epoch:
                raise Overtaken

        older = await self._kept(attempt)
        if older is not None:
            self._manager.api.counters.add("occupied")
            return OpenedSession("occupied", channel=older)
        peers = LockedPeers(self._manager, attempt.epoch)
        flow = OldFlow(self._host, self._legacy, peers, self._manager.options)
        try:
            opened = await flow.open(
                attempt.client_id,
                attempt.clean_start,
                attempt.channel,
                version=attempt.version,
                lock_wait_s=self._manager.remaining_s(attempt),
                writing=writing,
                check=check,
            )
        except Overtaken:
            # Its row is out already; a deletion behind would meet the one that is written next.
            self._manager.written.pop(key, None)
            self._manager.api.counters.add("mode_changed")
            view = self._host.view()
            now = mode_of(view)
            return ModeChanged(now.mode, now.epoch, view.index)
        except BaseException:
            self._manager.ended(key)
            raise
        attempt.attempts += opened.attempts
        return replace(opened_session(opened), attempts=attempt.attempts)

    async def _kept(self, attempt: Attempt) -> Channel | None:
        """An older connection that stays, as far as this node's copy knows of one."""
        if not keeps_older(self._host.settings):
            return None
        await self._legacy.ready()
        takeovers = self._manager.takeovers
        for row in self._legacy.channels_local(attempt.client_id):
            if await takeovers.occupied(row, attempt.channel, attempt.deadline):
                return row
        return None

    async def enter(self, row: Channel) -> Channel | None:
        """See `manager.Flow`. What the linear registry has of the channel goes.

        Unless the mode was switched meanwhile: then it is for the next adoption to say.
        """
        mode = mode_of(self._host.view())
        # With the ticket of its former registration it would count as replaced in "migration".
        entered = await enter_old(self._manager, replace(row, ticket=0))
        written = self._manager.written.get(_key(row))
        if written is not None and written.lcr is not None:
            await take_out(self._manager, written.lcr, mode)
        return entered

    async def find(self, client_id: str) -> Channel | None:
        """See `manager.Flow`."""
        return await self._legacy.lookup(client_id)


async def enter_old(manager: ChannelManager, row: Channel) -> Channel:
    """Write a living channel of this node into the old registry, unless it is there already.

    A row there has the ticket of the channel's row in the log, 0 if there is none.
    """
    host, legacy, key = manager.host, manager.api.legacy, _key(row)
    await legacy.ready()
    written = manager.written.get(key)
    row = replace(row, node=host.name, incarnation=host.incarnation)
    former = None if written is None else written.old
    if (
        former is not None
        and same_channel(former, row)
        and former.ticket == row.ticket
        and legacy.copies.bag.holds(row)
    ):
        return former
    await legacy.add(row)
    if key not in manager.opening and not manager.owner.is_alive(row):
        legacy.remove_soon(row)  # it ended meanwhile
        return row
    manager.wrote(key, old=row)
    manager.api.counters.add("adopted")
    return row


async def take_out(manager: ChannelManager, row: Channel, mode: ModeRow) -> bool:
    """Delete a row of this node from the linear registry, if `mode` is "disabled" and still acts.

    Whether that mode still acted. What became of the deletion is known when this returns, however
    long that takes. Raises `NotApplied` kinds: the row stands.
    """
    host, key = manager.host, _key(row)
    if mode.mode != "disabled" or mode_of(host.view()).epoch != mode.epoch:
        return False
    written = manager.written.get(key)
    if written is not None and written.lcr == row:
        written.lcr = None
    manager.api.held.pop(key, None)  # nobody is to be told that this one is lost
    stands = True
    try:
        await host.propose(Unregister(row))
        stands = False
    except (SessionExpired, StaleIncarnation):
        stands = False  # fenced with this node's former life
        raise
    except OutcomeUnknown as error:
        await _settled(host, error)
        entry = host.view().table("clients").get(row.client_id)
        stands = entry is not None and entry.owner == row
        if stands:
            raise
    finally:
        if stands and written is not None and manager.written.get(key) is written:
            written.lcr = row
            manager.api.hold(row)
    manager.api.counters.add("unregistered")
    return True


async def _settled(host: Host, error: OutcomeUnknown) -> None:
    """Return when that command has been applied on this node, or never will be."""
    delay_s = RETRY_S
    while True:
        try:
            await host.outcome(error.session, error.seq)
            return
        except (NotApplied, OutcomeUnknown, SequenceTooFar):
            await host.runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)


class MixedFlow(LinearFlow):
    """The flow under "dual" and "migration": the linear one, and the old registry beside it."""

    def __init__(self, manager: ChannelManager) -> None:
        super().__init__(manager)
        self._legacy = manager.api.legacy
        self._legacy.copies.on_add = self.rival

    # --- reading ---

    def seen(self, client_id: str) -> Seen:
        """LocalMax of the linear registry, or of both."""
        return self.turned(client_id, self._api.lookup_local(client_id))

    def turned(self, client_id: str, real: Channel | None) -> Seen:
        """The newest of the union, given what the log has."""
        return Seen(next(iter(self._union(client_id, real)), None), real)

    def _reads_both(self) -> bool:
        return effective_mode(self._host.view()).mode == "migration"

    def _union(self, client_id: str, owner: Channel | None) -> list[Channel]:
        """All channels that may be the client's, the newest first."""
        if not self._reads_both():
            return [] if owner is None else [owner]
        view = self._host.view()
        # What has a ticket and is not the log's owner has been replaced, and is only not gone yet.
        rows = [
            row
            for row in self._legacy.channels_local(client_id)
            if is_live(row, view.members)
            and (row.ticket == 0 or (owner is not None and same_channel(row, owner)))
        ]
        if len(rows) > 1:
            self._api.counters.add("many_channels")
        if owner is None:
            return rows[::-1]
        places = [place for place, row in enumerate(rows) if same_channel(row, owner)]
        if places:
            return [*rows[: places[0] : -1], owner, *rows[: places[0]][::-1]]
        # Of an old node's channels its own registry knows best. That of any other node stands in
        # the log before it is spread.
        if owner.node in old_nodes(view, view.members):
            return [*rows[::-1], owner]
        return [owner, *rows[::-1]]

    # --- what differs from the linear flow ---

    async def open(self, attempt: Attempt) -> OpenedSession | ModeChanged:
        """See `manager.Flow`."""
        await self._legacy.ready()
        return await super().open(attempt)

    async def _finish(
        self, attempt: Attempt, course: Course, registered: Registered
    ) -> OpenedSession:
        opened = await super()._finish(attempt, course, registered)
        if opened.outcome == "ok" and opened.channel is not None and self._reads_both():
            self._drop_others(opened.channel, opened.predecessor, attempt.clean_start)
        return opened

    async def begin(self, predecessor: Channel, contender: Contender, deadline: float) -> Begun:
        """Freeze the predecessor; if it is gone, the next one of the union."""
        others: Iterable[Channel] = ()
        try:
            return await super().begin(predecessor, contender, deadline)
        except ChannelGone as gone:
            if gone.kind == "timeout" or gone.reason == NOTHING:
                # It may live, and there is no time to lose; or what came before it ended with it.
                raise
            owner = self._api.lookup_local(predecessor.client_id)
            others = self._union(predecessor.client_id, owner)
            first = gone
        for other in others:
            mine = (contender.node, contender.incarnation, contender.channel)
            if other != predecessor and (other.node, other.incarnation, other.channel) != mine:
                try:
                    return await super().begin(other, contender, deadline)
                except ChannelGone:
                    continue
        raise first

    async def end(
        self, predecessor: Channel, registered: Registered, begun: Begun, deadline: float
    ) -> Handed:
        """End whom this connection has begun, which need not be the one that the log had."""
        if begun.channel != predecessor:
            self.discard(predecessor)
        return await super().end(begun.channel, registered, begun, deadline)

    async def written(self, attempt: Attempt, registered: Registered) -> None:
        """The dirty write. The log has decided, so its failure refuses nobody."""
        row = registered.channel
        written = self._manager.wrote(_key(row), old=row)
        if not await self._added(row, written):
            self._host.spawn(self._write_later(row, written), "lcr-write-old")

    async def _write_later(self, row: Channel, written: Written) -> None:
        delay_s = RETRY_S
        while self._is_open(row, written):
            await self._host.runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)
            if await self._added(row, written):
                return

    async def _added(self, row: Channel, written: Written) -> bool:
        """Whether the row need not be added again."""
        try:
            await self._legacy.add(row)
        except RaftkvError as error:
            self._host.log.debug("lcr: the old registry gets %s later: %s", row.channel, error)
            return False
        if not self._is_open(row, written):
            self._legacy.remove_soon(row)  # closed meanwhile: its deletion may have come first
        return True

    def _is_open(self, row: Channel, written: Written) -> bool:
        """Whether the channel is still that one, and this its row."""
        return self._manager.written.get(_key(row)) is written and written.old == row

    async def enter(self, row: Channel) -> Channel | None:
        """See `manager.Flow`."""
        entered = await super().enter(row)
        if entered is not None:
            await enter_old(self._manager, entered)
        return entered

    async def find(self, client_id: str) -> Channel | None:
        """See `manager.Flow`."""
        await self._legacy.ready()
        owner = await super().find(client_id)
        return next(iter(self._union(client_id, owner)), None)

    # --- channels that only the old registry knows ---

    def _drop_others(self, row: Channel, predecessor: Channel | None, clean_start: bool) -> None:
        """This connection is the client's: what else the old registry shows must go.

        Rows with a ticket are the log's business. An old node's channel may be about to take this
        one over: `_discard_rival` waits, except for what a clean start wants gone.
        """
        view = self._host.view()
        old = old_nodes(view, view.members)
        for other in self._legacy.channels_local(row.client_id):
            known = predecessor is not None and same_channel(other, predecessor)
            if other.ticket or known or same_channel(other, row):
                continue
            if not is_live(other, view.members):
                continue
            if clean_start or other.node not in old:
                self.discard(other)
            else:
                self._host.spawn(self._discard_rival(other), "lcr-rival")

    def rival(self, other: Channel) -> None:
        """A row arrived in this node's copy of the old registry: is it beside one of its own?"""
        if other.ticket or other.node == self._host.name or not self._is_client_here(other):
            return
        if self._reads_both() and speaks_old(self._host, other.node):
            self._host.spawn(self._discard_rival(other), "lcr-rival")

    def _is_client_here(self, other: Channel) -> bool:
        owner = self._api.lookup_local(other.client_id)
        return owner is not None and owner.node == self._host.name

    async def _discard_rival(self, other: Channel) -> None:
        """Have an old node's channel discarded, if it did not take this node's over by then."""
        await self._host.runtime.sleep(2 * self._manager.options.end_timeout_s)
        owner = self._api.lookup_local(other.client_id)
        if owner is None or not self._is_client_here(other) or same_channel(owner, other):
            return
        if self._manager.owner.is_alive(owner) and self._legacy.copies.bag.holds(other):
            self.discard(other)


# --- adoption and announcement --------------------------------------------------------------------


class Announcer:
    """Says that this node is no old one, and for which epoch it has adopted its channels.

    By itself it is for a node without a broker, which has nothing to adopt.
    """

    def __init__(self, host: Host, long_runs: LongRuns) -> None:
        self._host = host
        self._long_runs = long_runs
        self._woken = False
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """The mode, the nodes or this node's incarnation changed: look again, in the background."""
        self._woken = True
        if self._task is None or self._task.done():
            self._task = self._host.spawn(self._run(), "lcr-announce")

    async def adopt(self) -> ModeRow:
        """Enter this node's channels. The mode for which all of them are entered."""
        return mode_of(self._host.view())

    async def _run(self) -> None:
        with self._long_runs.watched("rebuild_slow", options_of(self._host).slow_after_s):
            await self._until_announced()

    async def _until_announced(self) -> None:
        delay_s = RETRY_S
        while self._woken:
            self._woken = False
            try:
                await self._once()
                delay_s = RETRY_S
            except (SessionExpired, StaleIncarnation, NotAMember):
                pass  # the next life is told of, and begins anew
            except UnknownCommand:
                # Members do not know the command yet. When they are gone, this is woken.
                self._host.log.debug("lcr: not announced while members know format 1 only")
            except RaftkvError as error:
                self._host.log.debug("lcr: adoption waits: %s", error)
                await self._host.runtime.sleep(delay_s)
                delay_s, self._woken = min(2 * delay_s, RETRY_MAX_S), True

    async def _once(self) -> None:
        if not self._host.incarnation:
            return
        incarnation = self._host.incarnation
        adopted = await self.adopt()
        view = self._host.view()
        if mode_of(view).epoch != adopted.epoch or self._host.incarnation != incarnation:
            self._woken = True
            return
        known = view.table("nodes").get(self._host.name)
        if known is None or known.incarnation != incarnation or known.epoch < adopted.epoch:
            await self._host.propose(Announce(PROTOCOL, adopted.epoch, incarnation))


class Adoption(Announcer):
    """Enters a node's channels where the present mode wants them, then announces the epoch."""

    def __init__(self, manager: ChannelManager) -> None:
        super().__init__(manager.host, manager.api.long_runs)
        self._manager = manager
        called = CalledByOld(manager)
        OldServer(manager.host, called).serve()
        # From here on all flows and the manager itself reach old nodes, too.
        manager.takeovers = MixedTakeovers(manager, OldCalls(manager.host, called))
        self._locked = LockedFlow(manager)
        self._linear = LinearFlow(manager)

    async def adopt(self) -> ModeRow:
        while True:
            mode = await self._settled_mode()
            # Those that are being opened may have begun under another mode. Later ones did not.
            for opening in list(self._manager.opening.values()):
                await asyncio.wait([opening])
            await self._adopt_for(mode)
            if self._is_now(mode):
                return mode

    async def _adopt_for(self, mode: ModeRow) -> None:
        """Enter what this mode lacks. It stops where it stands when the mode is switched."""
        rows = [row for row in self._manager.owner.channels() if self._lacks(row, mode)]
        for first in range(0, len(rows), ADOPT_PARALLEL):
            part = rows[first : first + ADOPT_PARALLEL]
            ends = await asyncio.gather(
                *(self._enter(row, mode) for row in part), return_exceptions=True
            )
            # Only when all of them are through: what they do must not reach into the next epoch.
            for end in ends:
                if end is not None:
                    raise end
        if mode.mode == "disabled":
            await self._take_out(mode)

    def _is_now(self, mode: ModeRow) -> bool:
        return mode_of(self._host.view()).epoch == mode.epoch

    async def _take_out(self, mode: ModeRow) -> None:
        """Delete what the linear registry still has of this node.

        These are rows of channels that others took over under "disabled" before they were adopted.
        """
        first: str | None = ""
        while first is not None:
            clients = self._host.view().table("clients")
            rows = list(clients.scan(first=first, limit=SLICE_ROWS))
            own = [e.owner for _, e in rows if e.owner.node == self._host.name]
            for row in own:
                present = row.incarnation == self._host.incarnation
                if present and not await take_out(self._manager, row, mode):
                    return
            # The smallest string behind the last one.
            first = rows[-1][0] + "\0" if len(rows) == SLICE_ROWS else None
            await self._host.runtime.sleep(0)

    async def _settled_mode(self) -> ModeRow:
        """The mode to adopt for, once it is known whether a node that came is an old one."""
        mode = self._mode()
        if mode.mode != mode_of(self._host.view()).mode:
            await self._host.runtime.sleep(OLD_NODE_GRACE_S)
            mode = self._mode()
        return mode

    def _mode(self) -> ModeRow:
        """The effective mode, this node taken for no old one."""
        view = self._host.view()
        mode = mode_of(view)
        if mode.mode == "enabled" and set(old_nodes(view, view.members)) - {self._host.name}:
            return ModeRow("migration", mode.epoch)
        return mode

    def _lacks(self, row: Channel, mode: ModeRow) -> bool:
        """Whether the channel stands where the mode does not want it, or does not where it does."""
        written = self._manager.written.get(_key(row))
        if written is None:
            return True
        incarnation = self._host.incarnation
        in_log = written.lcr is not None and written.lcr.incarnation == incarnation
        in_old = written.old is not None and written.old.incarnation == incarnation
        if mode.mode == "disabled":
            return not in_old or written.lcr is not None
        return not in_log or (mode.mode != "enabled" and not in_old)

    async def _enter(self, row: Channel, mode: ModeRow) -> None:
        """Enter one channel.

        Returns when it is entered, has ended, is another's prey, or the mode was switched.
        """
        entered: Channel | None = None
        patient_until = self._host.runtime.monotonic() + DOUBT_S
        while entered is None and self._is_now(mode) and self._manager.owner.is_alive(row):
            if mode.mode == "disabled":
                await self._locked.enter(row)
                return
            entered = await self._linear.enter(row)
            if entered is None and not await self._try_again(row, mode, patient_until):
                return
        if entered is not None and mode.mode != "enabled" and self._is_now(mode):
            await enter_old(self._manager, entered)

    async def _try_again(self, row: Channel, mode: ModeRow, patient_until: float) -> bool:
        """Another channel owns the client. Whether it is there no longer, or in doubt."""
        owner = self._manager.api.lookup_local(row.client_id)
        if owner is None or _key(owner) == _key(row):
            return True
        timeout_s = self._manager.options.begin_timeout_s
        answer = await self._manager.takeovers.alive(owner.node, (owner,), timeout_s)
        if answer is None and self._host.runtime.monotonic() < patient_until:
            await self._host.runtime.sleep(RETRY_S)
            return True
        if not self._is_now(mode):
            return True  # that ends it, and nobody has lost anything yet
        if answer is None or answer[0]:
            # The log is believed: the owner stays, and this channel has lost its row.
            self._manager.handover.lose(row, owner)
            return False
        await self._host.propose(Unregister(owner))
        return True


def _key(row: Channel) -> tuple[str, str]:
    return (row.client_id, row.channel)

"""The registry as a program sees it on one node: `lcr = node.plugin(LCR)`.

    answer = await lcr.connect(client_id, channel)     # the whole flow of the seed
    owner = lcr.lookup_local(client_id)                # at once, may be stale
    owner = await lcr.lookup(client_id)                # linearizable
    await lcr.unregister(answer.owner)                 # this exact row, nothing newer

`connect` looks at the local copy, decides what it can without the log, registers, and retries with
the real predecessor a bounded number of times. `register` is one attempt of it, for a broker that
talks to the predecessor in between.

A broker whose sessions shall move with their clients calls none of these. It gives `sessions` its
side of the take-overs, and opens sessions through the `ChannelManager` that it gets (`manager.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from raftkv.errors import NotApplied, OutcomeUnknown, RaftkvError, SequenceTooFar
from raftkv.plugin import Host, PluginSettings
from raftkv.validation import checked

from .alarms import Alarm, LongRuns
from .commands import (
    FORMAT_TIMES,
    VERSION_MAX,
    Ahead,
    Channel,
    Drawn,
    DrawTicket,
    Entry,
    InProgress,
    Mode,
    ModeChanged,
    ModeMoved,
    ModeSwitched,
    NotAdopted,
    OldNodes,
    Open,
    OutdatedEarly,
    OutdatedLate,
    Register,
    Registered,
    Restart,
    SwitchMode,
    TakeTicket,
    Ticket,
    Unregister,
    Unregistered,
    WrongStep,
    same_channel,
)
from .flows import ModeFlows
from .legacy import LegacyRegistry
from .linear_flow import RETRIES_MAX
from .manager import ChannelManager, check_connection
from .metrics import Counters
from .mixed import Announcer
from .modes import ModeRow, mode_of, not_adopted
from .order import Times, carried, first_ticket, guess, is_newer
from .owner import ChannelOwner
from .reaper import Doubt, Reaper
from .registry import live_claimant, live_owner
from .result import ConnectResult
from .settings import keeps_older

__all__ = ["Answer", "LcrApi", "OpenAnswer"]

Answer = Registered | Restart | Ahead | OutdatedEarly | OutdatedLate | InProgress
OpenAnswer = Registered | Restart | Ahead | OutdatedLate | InProgress | ModeChanged
T = TypeVar("T", bound=Answer | ModeChanged)

# Between two looks whether the nodes have adopted their channels.
ADOPTED_POLL_S = 0.05
# How long a switch of the mode waits for that, unless the caller says otherwise.
SWITCH_TIMEOUT_S = 60.0
# A cluster without a leader is asked again after the first, and then ever more rarely.
SETTLE_FIRST_S = 0.1
SETTLE_MAX_S = 5.0


@checked
class LcrApi:
    """The registry on one node. All methods belong to the node's event loop."""

    def __init__(self, host: Host) -> None:
        self._host = host
        #: The replicated settings of the registry.
        self.settings = PluginSettings(host)
        self.counters = Counters()
        self.times = Times()
        self.long_runs = LongRuns(host)
        self.reaper = Reaper(host)
        # The baseline that the seed argues against, on the same node.
        self.legacy = LegacyRegistry(host)
        # Called with (channel, newer owner or None) when a channel of this node is registered no
        # longer although this node did not unregister it: taken over, kicked, or fenced.
        self.on_lost: Callable[[Channel, Channel | None], None] | None = None
        # The channels that this node registered and still holds.
        self.held: dict[tuple[str, str], Channel] = {}
        self._manager: ChannelManager | None = None
        # For a node without a broker, which has no channels, but is no old node either.
        self._announcer = Announcer(host, self.long_runs)

    # --- sessions ---

    def sessions(self, owner: ChannelOwner) -> ChannelManager:
        """The session flow for the broker of this node. Once per node, before it takes clients."""
        if self._manager is not None:
            raise ValueError("this node has a session manager already: a node has one broker")
        self._manager = ChannelManager(self._host, self, owner, ModeFlows)
        return self._manager

    def sessions_or_none(self) -> ChannelManager | None:
        """The session manager, if a broker has asked for it."""
        return self._manager

    def alarms(self) -> Sequence[Alarm]:
        """What this node has been doing for too long; see `alarms.py`."""
        return self.long_runs.current()

    # --- the mode ---

    def mode(self) -> ModeRow:
        """The mode and its epoch, as this node's copy has it."""
        return mode_of(self._host.view())

    async def switch_mode(self, mode: Mode, timeout_s: float = SWITCH_TIMEOUT_S) -> ModeRow:
        """Switch all nodes to another mode, by the steps that lead there, while clients connect.

        Returns when every node has entered its channels where the new mode wants them. Raises
        `OldNodes` if the old registry is still needed after `timeout_s`, `NotAdopted` if nodes did
        not finish by then (the mode may stand all the same: ask `mode`), `ModeMoved` if somebody
        else went on switching until then, and what `propose` raises. Calling again goes on where it
        ended; what a former call has left on its way does not undo it.
        """
        deadline = self._host.runtime.monotonic() + timeout_s
        step = mode
        while True:
            left_s = deadline - self._host.runtime.monotonic()
            try:
                switched: ModeSwitched = await self._host.propose(
                    SwitchMode(step, self.mode().epoch), timeout_s=max(left_s, ADOPTED_POLL_S)
                )
                await self._adopted(switched.epoch, deadline)
                if step == mode:
                    return self.mode()
                step = mode
            except WrongStep:
                step = "migration"  # both directions lead by it
            except (NotAdopted, OldNodes, ModeMoved):
                # A node that has only just started is an old one until it announces itself; and
                # this one may have looked at a copy of the mode that was old.
                if left_s <= 0:
                    raise
                await self._host.runtime.sleep(ADOPTED_POLL_S)

    async def _adopted(self, epoch: int, deadline: float) -> None:
        """Wait until all nodes have adopted this epoch, or a later one."""
        while True:
            view = self._host.view()
            late = not_adopted(view, view.members)
            if not late:
                return
            if self._host.runtime.monotonic() >= deadline:
                raise NotAdopted(
                    f"{', '.join(late)} have not adopted their channels for the mode of epoch "
                    f"{epoch} yet; they go on with it"
                )
            await self._host.runtime.sleep(ADOPTED_POLL_S)

    def on_mode(self, row: ModeRow) -> None:
        """For the service: the mode was switched in the entry that was just applied."""
        if self._manager is not None:
            self._manager.on_mode(row)
        else:
            self._announcer.wake()

    def on_nodes(self) -> None:
        """For the service: nodes announced themselves, came or went."""
        if self._manager is not None:
            self._manager.on_nodes()
        else:
            self._announcer.wake()

    def on_incarnation(self) -> None:
        """For the service: this node has a new incarnation, its channels have no rows."""
        if self._manager is not None:
            self._manager.on_incarnation()
        else:
            self._announcer.wake()

    # --- reading ---

    def lookup_local(self, client_id: str) -> Channel | None:
        """The client's channel in this node's copy: at once, possibly stale."""
        view = self._host.view()
        return live_owner(view.table("clients").get(client_id), view.members)

    async def lookup(self, client_id: str, *, timeout_s: float | None = None) -> Channel | None:
        """The client's channel, linearizable. Raises `NotApplied` kinds, `ReadTimeout` too."""
        await self._host.barrier("linearizable", timeout_s=timeout_s)
        return self.lookup_local(client_id)

    def channels_local(self, client_id: str) -> list[Channel]:
        """All registered channels of the client: none or one, where the old registry has a bag."""
        owner = self.lookup_local(client_id)
        return [] if owner is None else [owner]

    # --- writing ---

    async def ticket(self, *, timeout_s: float | None = None) -> Drawn:
        """Draw a ticket when the transport connects, to be decided by that moment later.

        It needs no clock of the transport, and costs a log entry. Give its `ticket` to the call
        that registers, and its `at_ms` as the version; the node remembers it for a while.
        """
        if self._host.view().version >= FORMAT_TIMES:
            drawn: Drawn = await self._host.propose(DrawTicket(), timeout_s=timeout_s)
            self.times.note(drawn.ticket, drawn.at_ms)
            return drawn
        former: Ticket = await self._host.propose(TakeTicket(), timeout_s=timeout_s)
        return Drawn(former.ticket, former.index)

    def time_of(self, version: int | None, ticket: int) -> int | None:
        """The version to give to the log for a caller's version and ticket (`Times.of`)."""
        if self._host.view().version < FORMAT_TIMES:
            return version
        return self.times.of(version, ticket, self._host.settings["connect_age_max_ms"])

    async def register(
        self,
        client_id: str,
        channel: str,
        *,
        predecessor: Channel | None,
        version: int | None = None,
        ticket: int = 0,
        timeout_s: float | None = None,
    ) -> Answer:
        """One attempt: compare and write, decided in the log (see `registry.py`).

        `predecessor` is the channel taken over, as the local lookup gave it; `version` the
        transport's connect time in milliseconds since 1970, None: now. After `Restart` the next
        attempt gives version and ticket of the `claim`, after `AheadAt` its `at_ms` and `ticket`,
        after `ticket()` those of it. Returns one of six results. Raises `TooLarge` and
        `ValueError` for bad arguments, the refusals of the plugin, and what `propose` raises. After
        an unknown outcome the node removes whatever may have been written, unless the same channel
        registers again, which then gets the outcome.
        """
        version = self.time_of(version, ticket)
        command = Register(client_id, channel, predecessor, version, ticket)
        known = await self._known(command, timeout_s)
        return known or self._counted(await self._propose(command, timeout_s))

    async def register_open(
        self, command: Open, *, timeout_s: float | None = None
    ) -> OpenAnswer | OutdatedEarly:
        """As `register`, for a broker that keeps to the mode itself.

        `command.epoch` is that of the mode under which it began; `ModeChanged`: begin again.
        """
        command = replace(command, version=self.time_of(command.version, command.ticket))
        known = await self._known(command, timeout_s)
        return known or await self.open(command, timeout_s=timeout_s)

    async def open(self, command: Open, *, timeout_s: float | None = None) -> OpenAnswer:
        """One registration of a session flow. Raises as `register` does."""
        return self._counted(await self._propose_open(command, timeout_s))

    async def settle(self, doubt: Doubt) -> Registered | None:
        """What became of a registration that was in doubt; None: it was not written, and never is.

        `took_over` is the predecessor that it had named. Waits as long as it takes.
        """
        delay_s = SETTLE_FIRST_S
        while True:
            try:
                standing = await self.reaper.resolve(doubt)
                break
            except (NotApplied, OutcomeUnknown, SequenceTooFar):
                await self._host.runtime.sleep(delay_s)
                delay_s = min(2 * delay_s, SETTLE_MAX_S)
        if standing is None:
            return None
        former = doubt.command.predecessor
        return self._counted(replace(standing, took_over=former, repeated=False))

    async def connect(
        self,
        client_id: str,
        channel: str,
        *,
        version: int | None = None,
        ticket: int = 0,
        timeout_s: float | None = None,
    ) -> ConnectResult:
        """Local read, early decision, register, bounded retries with the real predecessor.

        `version` is the transport's connect time in milliseconds since 1970, None: now; `ticket`
        as for `register`. `session_present` is true iff the session of a predecessor was taken
        over. Raises as `register` does; `timeout_s` bounds each attempt.
        """
        predecessor = self.lookup_local(client_id)
        claim: Channel | None = None
        answer: Answer | None = None
        try:
            for attempt in range(1, RETRIES_MAX + 2):
                if self._occupies(predecessor, channel):
                    self.counters.add("occupied")
                    self._give_up(claim)
                    index = answer.index if isinstance(answer, Restart | Ahead) else None
                    return ConnectResult("occupied", False, predecessor, None, index, attempt)
                answer = await self.register(
                    client_id,
                    channel,
                    predecessor=predecessor,
                    version=version,
                    ticket=ticket,
                    timeout_s=timeout_s,
                )
                if isinstance(answer, Restart):
                    claim = answer.claim
                    predecessor, ticket = answer.predecessor, claim.ticket
                    version = carried(version, answer)
                elif isinstance(answer, Ahead):
                    predecessor, ticket = answer.predecessor, answer.ticket
                    version = carried(version, answer)
                else:
                    return _settled_result(answer, attempt)
        except BaseException:
            # A claim must not keep others waiting for a caller who has gone.
            self._give_up(claim)
            raise
        self._give_up(claim)
        self.counters.add("retries_exhausted")
        assert isinstance(answer, Restart | Ahead)
        outcome = "ahead" if isinstance(answer, Ahead) else "retries_exhausted"
        return ConnectResult(
            outcome, False, answer.predecessor, None, answer.index, RETRIES_MAX + 1
        )

    def _occupies(self, owner: Channel | None, channel: str) -> bool:
        """Whether that owner stays: here a registered channel is a connected client."""
        return (
            owner is not None
            and keeps_older(self._host.settings)
            and (owner.node, owner.incarnation, owner.channel)
            != (self._host.name, self._host.incarnation, channel)
        )

    async def unregister(self, channel: Channel, *, timeout_s: float | None = None) -> bool:
        """Delete this exact row; whether it was there. Late, doubled, reordered: harmless.

        When this raises a `NotApplied` or `OutcomeUnknown`, the node goes on trying by itself.
        """
        self.held.pop((channel.client_id, channel.channel), None)
        try:
            result: Unregistered = await self._host.propose(
                Unregister(channel), timeout_s=timeout_s
            )
        except (RaftkvError, asyncio.CancelledError):
            self.reaper.delete(channel)
            raise
        self.counters.add("unregistered" if result.removed else "unregistered_absent")
        return result.removed

    # --- inside ---

    def newer_local(
        self, client_id: str, channel: str, version: int | None, ticket: int
    ) -> Channel | None:
        """A newer channel in the local copy, as far as this connection can be compared at all.

        That is an owner, or a claimant who is on the way: the log would say the same, later.
        Without a version and without a ticket it is about to get the newest ticket there is.
        """
        owner = self.lookup_local(client_id)
        if owner is None:
            return None
        view = self._host.view()
        entry: Entry = view.table("clients")[client_id]
        # Without a ticket of its own this connection will get a later one than the owner's.
        place = ticket or VERSION_MAX
        me = Channel(
            client_id=client_id,
            channel=channel,
            node=self._host.name,
            incarnation=self._host.incarnation,
            version=place if version is None else version,
            ticket=place,
            supplied=version is not None,
        )
        me, first = guess(me, view, self._host.now_ms()), first_ticket(view)
        known = [owner]
        if view.settings["policy"] == "displace":
            claimant = live_claimant(entry, view, self._host.now_ms())
            known += [] if claimant is None else [claimant]
        for other in known:
            if is_newer(other, me, first) and not same_channel(other, me):
                return other
        return None

    async def _known(
        self, command: Register | Open, timeout_s: float | None
    ) -> Registered | OutdatedEarly | None:
        """What this node knows of a registration without asking the log, if anything."""
        of = command
        check_connection(of.client_id, of.channel, of.version, of.ticket)
        newer = self.newer_local(of.client_id, of.channel, of.version, of.ticket)
        if newer is not None:
            self.counters.add("outdated_early")
            return OutdatedEarly(newer)
        doubt = self.reaper.take(of.client_id, of.channel)
        standing = None if doubt is None else await self._settled(doubt, timeout_s)
        return None if standing is None else self._counted(standing)

    async def _settled(self, doubt: Doubt, timeout_s: float | None) -> Registered | None:
        try:
            return await self.reaper.resolve(doubt, timeout_s)
        except BaseException:
            self.reaper.doubt(doubt)
            raise

    async def _propose(self, command: Register, timeout_s: float | None) -> Answer:
        answer: Answer = await self._propose_safely(command, command, timeout_s)
        return answer

    async def _propose_open(self, command: Open, timeout_s: float | None) -> OpenAnswer:
        asked = Register(
            command.client_id, command.channel, command.predecessor, command.version, command.ticket
        )
        answer: OpenAnswer = await self._propose_safely(command, asked, timeout_s)
        return answer

    async def _propose_safely(
        self, command: Register | Open, asked: Register, timeout_s: float | None
    ) -> Any:
        """Propose so that a caller who is cancelled leaves no row behind.

        `asked` is what the reaper needs to know of the registration.
        """
        incarnation = self._host.incarnation
        task: asyncio.Task[Any] = self._host.runtime.spawn(
            self._host.propose(command, timeout_s=timeout_s), "lcr-register"
        )
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                self.reaper.doubt(Doubt(asked, incarnation, task))
            raise
        except OutcomeUnknown as error:
            self.reaper.doubt(Doubt(asked, incarnation, session=error.session, seq=error.seq))
            raise

    def _counted(self, answer: T) -> T:
        self.times.note_answer(answer)
        self.counters.add("registered" if isinstance(answer, Registered) else answer.outcome)
        if isinstance(answer, Registered):
            if answer.took_over is not None:
                self.counters.add("took_over")
            self.hold(answer.channel)
        elif isinstance(answer, Ahead):
            self._host.log.info(
                "lcr: a predecessor left while it was being taken over; nothing was written "
                "(registered now: %s)",
                "none" if answer.predecessor is None else answer.predecessor.channel,
            )
        return answer

    def hold(self, channel: Channel) -> None:
        entry: Entry | None = self._host.view().table("clients").get(channel.client_id)
        if entry is not None and entry.owner == channel:
            self.held[(channel.client_id, channel.channel)] = channel
        else:
            # Displaced before this coroutine ran again: the channel is lost all the same.
            self._host.runtime.call_soon(self.lose, channel, entry and entry.owner)

    def lose(self, channel: Channel, newer: Channel | None) -> None:
        """Tell the embedding program that its channel is registered no longer."""
        self.held.pop((channel.client_id, channel.channel), None)
        self.counters.add("lost")
        if self._manager is not None:
            self._manager.lost(channel, newer)
        if self.on_lost is not None:
            self.on_lost(channel, newer)

    def _give_up(self, claim: Channel | None) -> None:
        if claim is not None:
            self.reaper.delete(claim)


def _settled_result(
    answer: Registered | OutdatedEarly | OutdatedLate | InProgress, attempt: int
) -> ConnectResult:
    if isinstance(answer, Registered):
        return ConnectResult(
            answer.outcome,
            answer.session_present,
            answer.channel,
            answer.took_over,
            answer.index,
            attempt,
        )
    if isinstance(answer, OutdatedEarly):
        return ConnectResult(answer.outcome, False, answer.newer, None, None, attempt)
    rival = answer.newer if isinstance(answer, OutdatedLate) else answer.claimant
    return ConnectResult(answer.outcome, False, rival, None, answer.index, attempt)

"""The registry as a program sees it on one node: `lcr = node.plugin(LCR)`.

    answer = await lcr.connect(client_id, channel)     # the whole flow of the seed
    owner = lcr.lookup_local(client_id)                # at once, may be stale
    owner = await lcr.lookup(client_id)                # linearizable
    await lcr.unregister(answer.owner)                 # this exact row, nothing newer

`connect` looks at the local copy, decides what it can without the log, registers, and retries with
the real predecessor a bounded number of times. `register` is one attempt of it, for a broker that
talks to the predecessor in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftkv.errors import OutcomeUnknown, RaftkvError, TooLarge
from raftkv.plugin import Host

from .commands import (
    CHANNEL_CHARS_MAX,
    CLIENT_ID_CHARS_MAX,
    VERSION_MAX,
    Ahead,
    Channel,
    Entry,
    InProgress,
    OutdatedEarly,
    OutdatedLate,
    Register,
    Registered,
    Restart,
    TakeTicket,
    Ticket,
    Unregister,
    Unregistered,
    is_newer,
    same_channel,
)
from .legacy import LegacyRegistry
from .metrics import Counters
from .reaper import Doubt, Reaper
from .registry import live_owner
from .result import ConnectResult

__all__ = ["Answer", "LcrApi"]

# The seed's bound. With claims the newest connection needs two; more means that owners come and go.
RETRIES_MAX = 3

Answer = Registered | Restart | Ahead | OutdatedEarly | OutdatedLate | InProgress


class LcrApi:
    """The registry on one node. All methods belong to the node's event loop."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.counters = Counters()
        self.reaper = Reaper(host)
        # The baseline that the seed argues against, on the same node.
        self.legacy = LegacyRegistry(host)
        # Called with (channel, newer owner or None) when a channel of this node is registered no
        # longer although this node did not unregister it: taken over, kicked, or fenced.
        self.on_lost: Callable[[Channel, Channel | None], None] | None = None
        # The channels that this node registered and still holds.
        self.held: dict[tuple[str, str], Channel] = {}

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

    async def ticket(self, *, timeout_s: float | None = None) -> Ticket:
        """Draw a ticket when the transport connects, to be decided by that moment later."""
        result: Ticket = await self._host.propose(TakeTicket(), timeout_s=timeout_s)
        return result

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

        `predecessor` is the channel taken over, as the local lookup gave it; `version` a
        timestamp of the caller's own, if it has one; `ticket` from an earlier answer or from
        `ticket()`. Returns one of six results. Raises `TooLarge` and `ValueError` for bad
        arguments, the refusals of the plugin, and what `propose` raises. After an unknown outcome
        the node removes whatever may have been written, unless the same channel registers again,
        which then is told what became of it.
        """
        _check(client_id, channel, version, ticket)
        newer = self._newer_local(client_id, channel, version, ticket)
        if newer is not None:
            self.counters.add("outdated_early")
            return OutdatedEarly(newer)
        doubt = self.reaper.take(client_id, channel)
        if doubt is not None:
            standing = await self._settled(doubt, timeout_s)
            if standing is not None:
                return self._counted(standing)
        command = Register(client_id, channel, predecessor, version, ticket)
        return self._counted(await self._propose(command, timeout_s))

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

        `session_present` is true iff the session of a predecessor was taken over. Raises as
        `register` does; `timeout_s` bounds each attempt.
        """
        predecessor = self.lookup_local(client_id)
        claim: Channel | None = None
        answer: Answer | None = None
        try:
            for attempt in range(1, RETRIES_MAX + 2):
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
                elif isinstance(answer, Ahead):
                    predecessor, ticket = answer.predecessor, answer.ticket
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

    def _newer_local(
        self, client_id: str, channel: str, version: int | None, ticket: int
    ) -> Channel | None:
        """A newer channel in the local copy, as far as this connection can be compared at all.

        Without a version and without a ticket it is about to get the newest ticket there is.
        """
        owner = self.lookup_local(client_id)
        if owner is None:
            return None
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
        return owner if is_newer(owner, me) and not same_channel(owner, me) else None

    async def _settled(self, doubt: Doubt, timeout_s: float | None) -> Registered | None:
        try:
            return await self.reaper.resolve(doubt, timeout_s)
        except BaseException:
            self.reaper.doubt(doubt)
            raise

    async def _propose(self, command: Register, timeout_s: float | None) -> Answer:
        """Propose so that a caller who is cancelled leaves no row behind."""
        incarnation = self._host.incarnation
        task: asyncio.Task[Answer] = self._host.runtime.spawn(
            self._host.propose(command, timeout_s=timeout_s), "lcr-register"
        )
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                self.reaper.doubt(Doubt(command, incarnation, task))
            raise
        except OutcomeUnknown as error:
            self.reaper.doubt(Doubt(command, incarnation, session=error.session, seq=error.seq))
            raise

    def _counted(self, answer: Answer) -> Answer:
        self.counters.add("registered" if isinstance(answer, Registered) else answer.outcome)
        if isinstance(answer, Registered):
            if answer.took_over is not None:
                self.counters.add("took_over")
            self._hold(answer.channel)
        elif isinstance(answer, Ahead):
            self._host.log.info(
                "lcr: a predecessor left while it was being taken over; nothing was written "
                "(registered now: %s)",
                "none" if answer.predecessor is None else answer.predecessor.channel,
            )
        return answer

    def _hold(self, channel: Channel) -> None:
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


def _check(client_id: str, channel: str, version: int | None, ticket: int) -> None:
    for name, value, limit in (
        ("client_id", client_id, CLIENT_ID_CHARS_MAX),
        ("channel", channel, CHANNEL_CHARS_MAX),
    ):
        if not value:
            raise ValueError(f"{name} is empty: name the {name.replace('_', ' ')}")
        if len(value) > limit:
            raise TooLarge(f"{name} has {len(value)} characters, at most {limit} are allowed")
    if version is not None and not 0 <= version <= VERSION_MAX:
        raise ValueError(f"version {version} is outside 0 to 2**63 - 1")
    if not 0 <= ticket <= VERSION_MAX:
        raise ValueError(f"ticket {ticket} is outside 0 to 2**63 - 1")

"""The session flow of one node: what an embedding broker calls.

    manager = lcr.sessions(owner)             # once per node; `owner` is the broker's side
    opened = await manager.open_session(client_id, clean_start, channel)
    await manager.close(opened.channel)       # the session ended here

The manager holds what all flows share: the owner, the hand-overs of this node's channels
(`handover.py`), the way to channels elsewhere (`takeover.py`), and where each row was written.
Which registries are read and written is the mode's business: each attempt asks for the mode once,
and the flow of that mode does the rest (`linear_flow.py`, `mixed.py`). An attempt that the log
refuses because the mode was switched meanwhile starts again under the new one.

**Rows and their deletion.** A channel's rows are written by one flow and deleted by `close`,
whatever the mode is by then: `written` remembers them. A row whose writing is in doubt is the
reaper's. After `end`, `discard` and `kick` the registry deletes the rows by itself.

**Cancelling** `open_session`, as brokers do when the client's connection breaks, leaks nothing and
loses nothing. Before the log is asked, begun takeovers are aborted and those channels go on.
Afterwards the session may be this connection's. So what became of it is found out behind; if it is
registered, the rest is done, and the session parked (`parking.py`) for the client's return, whose
next connection finds it like any other. The same is done when the outcome is unknown. (Under
"disabled" there is no log that decides: what was just being handed over goes with the connection.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from raftkv.errors import RaftkvError, Timeout, TooLarge
from raftkv.plugin import Host, Metric
from raftkv.validation import checked

from .commands import (
    CHANNEL_CHARS_MAX,
    CLIENT_ID_CHARS_MAX,
    VERSION_MAX,
    Channel,
    Mode,
    ModeChanged,
    Registered,
)
from .handover import Handover
from .modes import ModeRow, effective_mode
from .options import LcrOptions, options_of
from .owner import ChannelGone, ChannelOwner, SessionKeeper
from .parking import Parked, Parking
from .result import OpenedSession
from .takeover import Takeovers

if TYPE_CHECKING:
    from .api import LcrApi

__all__ = [
    "Adopter",
    "Attempt",
    "ChannelManager",
    "Flow",
    "Flows",
    "Key",
    "OpenedSession",
    "Written",
    "check_connection",
]

# Channels that are ended at the same time when the node takes part no more.
KICKS_AT_ONCE = 64
# Between two looks whether a starting node has become a member.
JOIN_POLL_S = 0.01

# (client id, channel id): a channel on its own node.
Key = tuple[str, str]
# What is left of an attempt whose caller has gone; None: nothing was written.
Rest = Callable[[], Awaitable[OpenedSession | None]]


class Attempt(msgspec.Struct):
    """One `open_session` on its way. All from `version` on but `deadline` changes as it goes."""

    client_id: str
    channel: str
    clean_start: bool
    version: int | None
    # The place among all connections, with `version`: 0 until the log has given one. It is kept
    # over retries and over a change of the mode: a connection grows no newer by trying again.
    ticket: int
    # On the runtime's monotonic clock.
    deadline: float
    # Of the mode under which it began: what the log compares.
    epoch: int = 0
    mode: Mode = "disabled"
    # Registrations tried, in all modes together.
    attempts: int = 0
    # What the log has noted of it, after "restart".
    claim: Channel | None = None


class Written(msgspec.Struct):
    """Where the rows of one channel of this node stand. `close` deletes them from there."""

    # The row in the linear registry, None once it is known to be there no longer.
    lcr: Channel | None = None
    # The row in the old registry.
    old: Channel | None = None
    # The log index of the registration of `lcr`.
    index: int = 0

    @property
    def row(self) -> Channel | None:
        """The row by which others know the channel."""
        return self.lcr if self.lcr is not None else self.old


class Flow(Protocol):
    """What one mode does. A flow is made with the manager, and uses its parts."""

    async def open(self, attempt: Attempt) -> OpenedSession | ModeChanged:
        """Open a session. The rows that an "ok" has written are noted with `manager.wrote`.

        When it raises or answers no, nothing that it wrote or began stays behind.
        """

    async def enter(self, row: Channel) -> Channel | None:
        """Enter a living channel of this node wherever this mode writes and it is missing.

        `row` is how the broker knows it; its incarnation may be a former one. Returns the row as
        it stands now, None if another connection owns the client (the caller then kicks it).
        Raises what `propose` raises; calling again is harmless.
        """

    async def find(self, client_id: str) -> Channel | None:
        """The client's channel, as fresh as this mode can tell."""


class Adopter(Protocol):
    """Enters this node's channels where the present mode wants them, and announces the epoch."""

    def wake(self) -> None:
        """The mode, the nodes or this node's incarnation changed: look again, in the background."""


class Flows(Protocol):
    """The flow of each mode, and the adopter. What a manager is made with (`flows.py`)."""

    @property
    def adopter(self) -> Adopter: ...

    def for_mode(self, row: ModeRow) -> Flow:
        """What acts under this (effective) mode."""


@checked
class ChannelManager:
    """The session flow on one node. All methods belong to the node's event loop."""

    def __init__(
        self,
        host: Host,
        api: LcrApi,
        owner: ChannelOwner,
        flows: Callable[[ChannelManager], Flows],
    ) -> None:
        self.host = host
        self.api = api
        self.owner = Parking(owner)
        self.options: LcrOptions = options_of(host)
        #: key -> where the rows of each open channel of this node stand.
        self.written: dict[Key, Written] = {}
        #: The channels that are just being opened; done when `open_session` has returned.
        self.opening: dict[Key, asyncio.Future[None]] = {}
        # Those of them whose caller has gone.
        self._behind: dict[Key, None] = {}
        self.handover = Handover(self)
        self.takeovers = Takeovers(self)
        self._flows = flows(self)
        self.handover.serve()
        self._flows.adopter.wake()

    # --- for the broker ---

    @property
    def held(self) -> Mapping[Key, Channel]:
        """The open channels of this node, by the rows under which others know them."""
        return Held(self.written)

    async def open_session(
        self,
        client_id: str,
        clean_start: bool,
        channel: str,
        *,
        version: int | None = None,
        ticket: int = 0,
        timeout_s: float | None = None,
    ) -> OpenedSession:
        """Open the client's session on this node, continuing the one it has wherever that lives.

        `version` is the transport's connect time in milliseconds since 1970, None: when the
        connection reaches the log; `ticket` from `LcrApi.ticket`.
        `timeout_s` bounds the way to the verdict; after it the predecessor still gets
        `end_timeout_s`, because the log has decided. Raises `TooLarge` and `ValueError` for bad
        arguments, `NotApplied` kinds (nothing happened), and `OutcomeUnknown`. After that, as after
        being cancelled, see the top of this file; if the same channel opens again, it gets what
        became of its former call.
        """
        check_connection(client_id, channel, version, ticket)
        version = self.api.time_of(version, ticket)
        key = (client_id, channel)
        patience_s = self.options.open_timeout_s if timeout_s is None else timeout_s
        deadline = self.host.runtime.monotonic() + patience_s
        if not await self._joined(deadline):
            return OpenedSession("timeout")
        former = await self._former(key, patience_s)
        if former is not None and not clean_start:
            return former
        if former is not None and former.channel is not None:
            await self.close(former.channel)
        # Another call may have waited for the former one, too, and gone on first.
        self._require_unopened(key)
        attempt = Attempt(client_id, channel, clean_start, version, ticket, deadline)
        opening = self.opening[key] = self.host.runtime.future()
        try:
            opened = await self._open(attempt)
        finally:
            if key not in self._behind:
                del self.opening[key]
                opening.set_result(None)
        if opened.outcome == "ok":
            self.api.counters.add("opened_present" if opened.present else "opened_new")
            if opened.handover != "none":
                self.api.counters.add(f"handover_{opened.handover}")
        return opened

    async def close(self, row: Channel) -> None:
        """The session ended here: delete its rows wherever they were written.

        Late or doubled: harmless. It does not raise when the cluster cannot be reached; the node
        goes on trying by itself. Needless after `end`, `discard` and `kick`, and harmless then.
        """
        key = (row.client_id, row.channel)
        written = self.written.pop(key, None) or Written(lcr=row)
        self.handover.forget(key)
        try:
            if written.lcr is not None:
                await self.api.unregister(written.lcr)
        except RaftkvError as error:
            self.host.log.debug("lcr: unregistering %s goes on behind: %s", row.channel, error)
        finally:
            if written.old is not None:
                old = written.old
                self.host.spawn(self._close_old(old), "lcr-close-old")

    async def kick(self, client_id: str, reason: str) -> bool:
        """End the client's channel and session, wherever they live; whether there was one.

        Raises `NotApplied` kinds if the cluster cannot be asked, and `ChannelGone` with kind
        "timeout" if the channel's node does not answer.
        """
        row = await self._flow_now().find(client_id)
        return row is not None and await self.takeovers.kick(row, reason)

    async def discard(self, client_id: str) -> bool:
        """End the client's session without a successor; as `kick`, but no reason is given."""
        row = await self._flow_now().find(client_id)
        return row is not None and await self.takeovers.discard(row)

    async def kick_all(self, reason: str) -> None:
        """End every channel of this node: its rows are fenced, and nothing is handed over."""
        rows = list(self.owner.channels())
        for first in range(0, len(rows), KICKS_AT_ONCE):
            part = rows[first : first + KICKS_AT_ONCE]
            await asyncio.gather(*(self._kick_here(row, reason) for row in part))

    async def _kick_here(self, row: Channel, reason: str) -> None:
        try:
            async with asyncio.timeout(self.options.kick_timeout_s):
                await asyncio.shield(
                    self.host.runtime.spawn(self.owner.kick(row, reason), "lcr-kick")
                )
        except (ChannelGone, TimeoutError):
            return  # it has ended, or the broker goes on with it
        except Exception as error:
            self.host.log.warning("lcr: %s was not kicked: %s", row.channel, error)

    # --- for the flows ---

    def wrote(
        self, key: Key, *, lcr: Registered | None = None, old: Channel | None = None
    ) -> Written:
        """Note where a row of this node's channel was written."""
        written = self.written.setdefault(key, Written())
        if lcr is not None:
            written.lcr, written.index = lcr.channel, lcr.index
            self.handover.regain(key)
        if old is not None:
            written.old = old
        return written

    def finish_behind(self, attempt: Attempt, rest: Rest) -> None:
        """The caller of `open_session` has gone, but the log may have decided: do the rest."""
        key = (attempt.client_id, attempt.channel)
        self._behind[key] = None
        self.host.spawn(self._finish_behind(key, rest), "lcr-finish-behind")

    async def enter(self, row: Channel) -> Channel | None:
        """Enter a living channel of this node anew, as the present mode does (`Flow.enter`)."""
        return await self._flow_now().enter(row)

    def has_left(self, key: Key) -> bool:
        """Whether the channel is being opened for a caller who has gone."""
        return key in self._behind

    def ended(self, key: Key) -> None:
        """The broker has ended the channel for somebody else: its rows go, in the background."""
        written = self.written.pop(key, None)
        if written is None:
            return
        self.api.held.pop(key, None)
        if written.old is not None:
            self.host.spawn(self._close_old(written.old), "lcr-close-old")

    def remaining_s(self, attempt: Attempt) -> float:
        """Seconds until the deadline; negative when it is over."""
        return attempt.deadline - self.host.runtime.monotonic()

    # --- for the service ---

    def lost(self, channel: Channel, newer: Channel | None) -> None:
        """A row of this node was replaced, deleted or fenced without this node's doing."""
        key = (channel.client_id, channel.channel)
        written = self.written.get(key)
        if written is None and key not in self.opening:
            return  # registered past the manager, or closed already
        if written is not None and written.lcr == channel:
            written.lcr = None
        if channel.incarnation != self.host.incarnation:
            self._flows.adopter.wake()
        else:
            self.handover.lose(channel, newer)

    def on_mode(self, row: ModeRow) -> None:
        """The mode was switched."""
        self._flows.adopter.wake()

    def on_nodes(self) -> None:
        """Nodes announced themselves, came or went: the effective mode may be another."""
        self._flows.adopter.wake()

    def on_incarnation(self) -> None:
        """This node has a new incarnation: its channels have no rows any more."""
        self._flows.adopter.wake()

    def metrics(self) -> list[Metric]:
        """Gauges of the session flow."""
        return [
            Metric("channels_open", "gauge", len(self.written), "Sessions open on this node."),
            Metric("channels_opening", "gauge", len(self.opening), "Sessions being opened here."),
            Metric("channels_parked", "gauge", len(self.owner), "Sessions kept without a client."),
            *self.handover.metrics(),
        ]

    # --- inside ---

    def _flow_now(self) -> Flow:
        return self._flows.for_mode(effective_mode(self.host.view()))

    async def _joined(self, deadline: float) -> bool:
        """Whether this node is a member by then: before that its copy says nothing of the mode."""
        while not self.host.incarnation:
            if self.host.runtime.monotonic() >= deadline:
                return False
            await self.host.runtime.sleep(JOIN_POLL_S)
        return True

    async def _open(self, attempt: Attempt) -> OpenedSession:
        while True:
            mode = effective_mode(self.host.view())
            attempt.mode, attempt.epoch = mode.mode, mode.epoch
            opened = await self._flows.for_mode(mode).open(attempt)
            if isinstance(opened, OpenedSession):
                return opened
            if self.remaining_s(attempt) <= 0:
                return OpenedSession("timeout", attempts=attempt.attempts)

    async def _former(self, key: Key, patience_s: float) -> OpenedSession | None:
        """What a former call for this channel, whose caller had gone, has come to by now."""
        opening = self.opening.get(key)
        if opening is not None:
            if key not in self._behind:
                self._require_unopened(key)
            try:
                async with asyncio.timeout(patience_s):
                    await asyncio.shield(opening)
            except TimeoutError:
                raise Timeout("what became of the former attempt is not known yet") from None
        parked = self.owner.get(key)
        if parked is None or not await self.handover.reclaim(key, patience_s):
            return None
        if not self.owner.give_up(parked):
            return None
        return msgspec.structs.replace(parked.opened, channel=self.held.get(key, parked.row))

    def _require_unopened(self, key: Key) -> None:
        if key in self.opening:
            raise ValueError(f"channel {key[1]!r} of {key[0]!r} is being opened already")

    async def _finish_behind(self, key: Key, rest: Rest) -> None:
        opened = parked = None
        try:
            opened = await rest()
            if opened is not None and opened.outcome == "ok":
                parked = self._keep(opened)
        except RaftkvError as error:
            self.host.log.debug("lcr: %s was not opened behind: %s", key[1], error)
        finally:
            del self._behind[key]
            self.opening.pop(key).set_result(None)
        if parked is not None:
            await self.host.runtime.sleep(self.options.parked_keep_s)
            if self.owner.give_up(parked):
                await self.close(parked.row)

    def _keep(self, opened: OpenedSession) -> Parked | None:
        """Keep a session without a client: with the broker, or parked. A new one is not kept."""
        row = opened.channel
        assert row is not None
        if opened.session is None:
            self.host.spawn(self.close(row), "lcr-close")
            return None
        if isinstance(self.owner.broker, SessionKeeper):
            self.owner.broker.keep(row, opened.session, opened.pendings)
            return None
        return self.owner.park(row, opened.session, opened)

    async def _close_old(self, row: Channel) -> None:
        try:
            await self.api.legacy.unregister(row)
        except RaftkvError as error:
            self.host.log.debug("lcr: the old registry is told of it again: %s", error)
            self.api.legacy.remove_soon(row)


class Held(Mapping[Key, Channel]):
    """The channels with a row, as a view of where the rows stand."""

    def __init__(self, written: Mapping[Key, Written]) -> None:
        self._written = written

    def __getitem__(self, key: Key) -> Channel:
        row = self._written[key].row
        if row is None:
            raise KeyError(key)
        return row

    def __iter__(self) -> Iterator[Key]:
        return (key for key, written in self._written.items() if written.row is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def check_connection(client_id: str, channel: str, version: int | None, ticket: int) -> None:
    """The arguments that name a connection. Raises `TooLarge` and `ValueError`."""
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

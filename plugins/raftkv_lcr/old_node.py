"""A node of the version before the linear registry, for rolling upgrades and comparisons.

    node = Node(config, plugins=[OldLCR()])
    sessions = node.plugin(OldLCR).sessions(owner)
    opened = await sessions.open_session(client_id, clean_start, channel)

It has the state machine of all members (what is in the log must be applied by everybody), and does
nothing with it: it announces nothing, registers in the old registry only, under its lock, and
speaks session protocol 1 only. So the other members treat it as what it stands for.

`OldSessions` has the surface of `ChannelManager` that a broker uses, so that one broker works on
nodes of both kinds.
"""

from __future__ import annotations

from collections.abc import Mapping

from raftkv.plugin import Host, Member, Service

from .api import LcrApi
from .commands import Channel
from .old_flow import OldCalls, OldFlow, OldServer, OwnerHolder, opened_session
from .options import LcrOptions
from .owner import ChannelGone, ChannelOwner
from .plugin import LCR
from .result import OpenedSession

__all__ = ["OldApi", "OldLCR", "OldSessions"]


class OldSessions:
    """The session flow of an old node: what `ChannelManager` is on a new one."""

    def __init__(self, host: Host, api: OldApi, owner: ChannelOwner) -> None:
        self._host = host
        self._legacy = api.legacy
        self._options = host.options if isinstance(host.options, LcrOptions) else LcrOptions()
        self._held: dict[tuple[str, str], Channel] = {}
        self.holder = OwnerHolder(host, owner, self._options, self._ended)
        self.calls = OldCalls(host, self.holder)
        self._flow = OldFlow(host, api.legacy, self.calls, self._options)

    @property
    def held(self) -> Mapping[tuple[str, str], Channel]:
        """The channels that were opened here and have not ended."""
        return self._held

    async def open_session(
        self,
        client_id: str,
        clean_start: bool,
        channel: str,
        *,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> OpenedSession:
        """Open a session through the old registry; "timeout" when its lock could not be had.

        Raises `NoLeader`, `Overloaded` or `Timeout` when no core takes the write. The waits are
        those of the lock and of each call; `timeout_s` has no meaning here.
        """
        rows: list[Channel] = []

        def writing(row: Channel) -> None:
            rows.append(row)
            self._held[(row.client_id, row.channel)] = row
            self.holder.opening(row)

        try:
            opened = await self._flow.open(
                client_id, clean_start, channel, version=version, writing=writing
            )
        except BaseException:
            for row in rows:
                self._held.pop((row.client_id, row.channel), None)
                # Not known whether all of it failed, so all of it is undone.
                self._legacy.remove_soon(row)
            raise
        finally:
            for row in rows:
                self.holder.opened(row)
        return opened_session(opened)

    async def close(self, row: Channel) -> None:
        """The session ended here: remove its row, in the background."""
        self._ended(row)

    async def kick(self, client_id: str, reason: str) -> bool:
        """End the client's channels wherever this node's copy shows them; whether there was one."""
        found = False
        for channel in await self._known(client_id):
            try:
                await self.calls.kick(channel, reason, self._options.kick_timeout_s)
                found = True
            except ChannelGone as gone:
                self._host.log.debug("lcr: %s was not kicked: %s", channel.channel, gone)
        return found

    async def discard(self, client_id: str) -> bool:
        """End the client's sessions wherever this node's copy shows them."""
        found = False
        for channel in await self._known(client_id):
            try:
                await self.calls.discard(channel, None, self._options.discard_timeout_s)
                found = True
            except ChannelGone as gone:
                self._host.log.debug("lcr: %s was not discarded: %s", channel.channel, gone)
        return found

    async def _known(self, client_id: str) -> list[Channel]:
        await self._legacy.ready()
        return self._legacy.channels_local(client_id)

    def _ended(self, row: Channel) -> None:
        held = self._held.pop((row.client_id, row.channel), None)
        self._legacy.remove_soon(row if held is None else held)


class OldApi(LcrApi):
    """What `node.plugin(OldLCR)` gives: the old registry, and sessions through it."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._old_sessions: OldSessions | None = None

    def sessions(self, owner: ChannelOwner) -> OldSessions:  # type: ignore[override]
        """The session flow for the broker of this node. Once per node."""
        assert self._old_sessions is None, "a node has one broker"
        self._old_sessions = OldSessions(self._host, self, owner)
        OldServer(self._host, self._old_sessions.holder).serve()
        return self._old_sessions


class OldService(Service):
    """Lock, writes and copies, and what follows from a node's death. Nothing of the log."""

    def __init__(self, api: OldApi) -> None:
        self._api = api

    async def start(self) -> None:
        self._api.legacy.serve()

    def on_node_down(self, member: Member) -> None:
        self._api.legacy.on_node_down(member)


class OldLCR(LCR):
    """The plugin as nodes had it before the linear registry."""

    def open(self, host: Host) -> OldApi:
        return OldApi(host)

    def service(self, host: Host, api: LcrApi) -> Service:
        assert isinstance(api, OldApi)
        return OldService(api)

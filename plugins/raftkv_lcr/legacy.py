"""The registry that the seed argues against, built honestly, as the baseline to compare with.

    result = await lcr.legacy.connect(client_id, channel)
    channel = lcr.legacy.lookup_local(client_id)
    await lcr.legacy.unregister(result.owner)

A connect takes the client's cluster-wide lock (`legacy_locks.py`), reads this node's copy, takes
over the newest channel that it sees there (a call to the node that holds it), discards older ones,
writes its row without waiting for anybody but one core (`legacy_copies.py`), and unlocks. The lock
keeps connects of one client apart. It does not make the copy that they read complete: that is
where second sessions, wrong answers to "session present" and lost rows come from, and nothing else
in here helps them along.

The old registry starts on first use: a cluster that runs the linear one only pays nothing.
"""

from __future__ import annotations

import asyncio

from raftkv.errors import RaftkvError
from raftkv.plugin import Host, Member

from .commands import Channel
from .legacy_copies import Copies, RowKey, row_key
from .legacy_locks import LockClient, LockServer
from .legacy_wire import (
    COPY,
    FOLLOW,
    LOCK,
    SPREAD,
    TAKEOVER,
    UNLOCK,
    WRITE,
    Answer,
    Operation,
    pack,
    unpack,
)
from .result import ConnectResult

__all__ = ["LegacyRegistry"]

# Upstream waits this long for a channel to hand its session over.
TAKEOVER_TIMEOUT_S = 5.0
DELETE_RETRY_S = 0.1
DELETE_ATTEMPTS_MAX = 50


class LegacyRegistry:
    """The old registry on one node: a lock per client id, dirty writes, local reads."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.lock_server = LockServer(host)
        self.locks = LockClient(host, self.lock_server)
        self.copies = Copies(host)
        # The channels that live on this node, as its own tables know them.
        self.held: dict[tuple[str, str], Channel] = {}
        # The channels whose rows are being deleted in the background: number of the deletion.
        self._deleting: dict[tuple[str, RowKey], int] = {}
        self._number = 0
        self._starting: asyncio.Task[None] | None = None

    @property
    def lag_s(self) -> float:
        """How late, in seconds, this node applies what other nodes spread to it."""
        return self.copies.lag_s

    @lag_s.setter
    def lag_s(self, value: float) -> None:
        self.copies.lag_s = value

    def serve(self) -> None:
        """Answer other nodes' calls. Everything else starts on first use."""
        rpc = self._host.rpc
        rpc.register(LOCK, self.lock_server.on_lock)
        rpc.register(UNLOCK, self.lock_server.on_unlock)
        rpc.register(WRITE, self._on_write)
        rpc.register(SPREAD, self._on_spread)
        rpc.register(FOLLOW, self._on_follow)
        rpc.register(COPY, self.copies.on_copy)
        rpc.register(TAKEOVER, self._on_takeover)

    async def ready(self) -> None:
        """Wait until this node has its first full copy, as a booting broker does."""
        if self._starting is None:
            self._starting = self._host.spawn(self.copies.start(), "lcr-legacy-start")
        await asyncio.shield(self._starting)

    # --- the registry ---

    def lookup_local(self, client_id: str) -> Channel | None:
        """The last channel that this node's copy got for the client."""
        channels = self.channels_local(client_id)
        return channels[-1] if channels else None

    def channels_local(self, client_id: str) -> list[Channel]:
        """All channels of the client in this node's copy: a bag, oldest arrival first."""
        return self.copies.bag.of(client_id)

    async def lookup(self, client_id: str, *, timeout_s: float | None = None) -> Channel | None:
        """The same as `lookup_local`: the old registry knows no other read."""
        await self.ready()
        return self.lookup_local(client_id)

    async def connect(
        self,
        client_id: str,
        channel: str,
        *,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> ConnectResult:
        """Lock, look, take over, write, unlock. `outcome` is "ok", or "timeout" for the lock."""
        await self.ready()
        lock = await self.locks.acquire(client_id)
        if not lock.granted:
            return ConnectResult("timeout", False, None, None, None, lock.attempts)
        try:
            predecessor = await self._take_over_known(client_id)
            row = self.row(client_id, channel, version)
            await self._write_held(row)
        finally:
            await asyncio.shield(self._host.spawn(self.locks.release(lock), "lcr-legacy-unlock"))
        present = predecessor is not None
        return ConnectResult("ok", present, row, predecessor, None, lock.attempts)

    async def register(
        self,
        client_id: str,
        channel: str,
        *,
        version: int | None = None,
        predecessor: Channel | None = None,
        timeout_s: float | None = None,
    ) -> ConnectResult:
        """The write alone, under the lock; `predecessor` is believed, as the old registry does."""
        await self.ready()
        lock = await self.locks.acquire(client_id)
        if not lock.granted:
            return ConnectResult("timeout", False, None, None, None, lock.attempts)
        try:
            row = self.row(client_id, channel, version)
            await self._write_held(row)
        finally:
            await asyncio.shield(self._host.spawn(self.locks.release(lock), "lcr-legacy-unlock"))
        return ConnectResult("ok", predecessor is not None, row, predecessor, None, lock.attempts)

    async def unregister(self, channel: Channel, *, timeout_s: float | None = None) -> bool:
        """Remove exactly this row, without a lock; whether this node held the channel."""
        await self.ready()
        held = self.held.pop((channel.client_id, channel.channel), None) == channel
        await self.copies.write(Operation(False, channel))
        return held

    async def add(self, row: Channel) -> None:
        """The dirty write alone: return when one core has it.

        Raises `NoLeader`, `Overloaded`, and `Timeout` when a core did not answer. If it raises, or
        is cancelled, the row is removed again, as it may have been written.
        """
        await self.ready()
        # A deletion that is still tried must not meet this row, however the former was versioned.
        self._deleting.pop(_place(row), None)
        try:
            await self.copies.write(Operation(True, row))
        except BaseException:
            self.remove_soon(row)
            raise

    def remove_soon(self, row: Channel) -> None:
        """The dirty delete alone, in the background, tried again for some seconds.

        If the row is added again meanwhile, it is tried no more.
        """
        self._number += 1
        self._deleting[_place(row)] = self._number
        self._host.spawn(self._delete(row, self._number), "lcr-legacy-delete")

    def on_node_down(self, member: Member) -> None:
        """Every node removes the rows of the dead one from its own copy."""
        self._host.spawn(
            self.copies.purge(member.name, member.incarnation), f"lcr-legacy-purge-{member.name}"
        )

    def row(self, client_id: str, channel: str, version: int | None) -> Channel:
        """The row of a channel of this node; `version` defaults to the wall clock in ms."""
        wall_ms = self._host.runtime.wall_ms()
        return Channel(
            client_id=client_id,
            channel=channel,
            node=self._host.name,
            incarnation=self._host.incarnation,
            version=wall_ms if version is None else version,
            ticket=0,
            supplied=version is not None,
        )

    # --- inside ---

    async def _write_held(self, row: Channel) -> None:
        key = (row.client_id, row.channel)
        self.held[key] = row
        try:
            await self.add(row)
        except BaseException:
            # The connection fails; its channel ends, and says so as every ending channel does.
            self.held.pop(key, None)
            raise

    async def _take_over_known(self, client_id: str) -> Channel | None:
        """The channel whose session was handed over; older ones in the copy are discarded."""
        channels = self.channels_local(client_id)
        if not channels:
            return None
        for stale in channels[:-1]:
            self._host.spawn(self._discard(stale), "lcr-legacy-discard")
        newest = channels[-1]
        return newest if await self._take_over(newest) else None

    async def _take_over(self, channel: Channel) -> bool:
        if channel.node == self._host.name:
            return self._hand_over(channel)
        try:
            reply = await self._host.rpc.call(
                channel.node, TAKEOVER, pack(channel), TAKEOVER_TIMEOUT_S
            )
        except RaftkvError:
            return False
        return unpack(reply, Answer).yes

    async def _discard(self, channel: Channel) -> None:
        await self._take_over(channel)

    def _hand_over(self, channel: Channel) -> bool:
        """End a channel of this node; it unregisters itself while it terminates."""
        key = (channel.client_id, channel.channel)
        if self.held.get(key) != channel:
            return False
        del self.held[key]
        self.remove_soon(channel)
        return True

    async def _delete(self, channel: Channel, number: int) -> None:
        await self.ready()
        for _ in range(DELETE_ATTEMPTS_MAX):
            if self._deleting.get(_place(channel)) != number:
                return
            try:
                await self.copies.write(Operation(False, channel))
                break
            except RaftkvError:
                await self._host.runtime.sleep(DELETE_RETRY_S)
        else:
            self._host.log.warning("legacy: could not unregister channel %s", channel.channel)
        if self._deleting.get(_place(channel)) == number:
            del self._deleting[_place(channel)]

    async def _on_takeover(self, sender: str, payload: bytes) -> bytes:
        return pack(Answer(self._hand_over(unpack(payload, Channel))))

    async def _on_write(self, sender: str, payload: bytes) -> bytes:
        await self.ready()
        return await self.copies.on_write(sender, payload)

    async def _on_spread(self, sender: str, payload: bytes) -> bytes:
        await self.ready()
        return await self.copies.on_spread(sender, payload)

    async def _on_follow(self, sender: str, payload: bytes) -> bytes:
        await self.ready()
        return await self.copies.on_follow(sender, payload)


def _place(row: Channel) -> tuple[str, RowKey]:
    """Where the row stands in a bag."""
    return (row.client_id, row_key(row))

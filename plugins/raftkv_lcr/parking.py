"""Sessions whose connection went away while they were being opened.

Once the log has registered a connection and its predecessor has been ended, the session exists
nowhere but in the hands of `open_session`. If the caller is cancelled just then, because the client
broke the connection, or was told that the outcome is unknown, the session is *parked*: it stays
registered and can be taken over like any other, so the client finds it when it comes back. After
`parked_keep_s` it is given up. A broker that keeps sessions of absent clients had better take it
itself: if its `ChannelOwner` has a method `keep` (`SessionKeeper`), nothing is parked.

`Parking` stands in front of the broker's `ChannelOwner` and answers for the parked channels itself;
so freezes, hand-overs, adoption and the sweep need not know of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from .commands import Channel
from .owner import ChannelOwner, ConnectionOwner, Message
from .result import OpenedSession

__all__ = ["Parked", "Parking"]


class Parked(msgspec.Struct, frozen=True, eq=False):
    """A session without a connection."""

    row: Channel
    content: bytes
    opened: OpenedSession


class Parking:
    """A `ChannelOwner`: the parked channels, and behind them the broker."""

    def __init__(self, broker: ChannelOwner) -> None:
        self.broker = broker
        self._parked: dict[tuple[str, str], Parked] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, row: Channel, content: bytes, opened: OpenedSession) -> Parked:
        """Keep this session under its row."""
        parked = self._parked[_key(row)] = Parked(row, content, opened)
        return parked

    def get(self, key: tuple[str, str]) -> Parked | None:
        """What is parked under that channel."""
        return self._parked.get(key)

    def give_up(self, parked: Parked) -> bool:
        """Keep it no longer; whether it was still here."""
        if self._parked.get(_key(parked.row)) is not parked:
            return False
        del self._parked[_key(parked.row)]
        return True

    # --- ChannelOwner ---

    async def begin(self, channel: Channel) -> bytes:
        parked = self._parked.get(_key(channel))
        return await self.broker.begin(channel) if parked is None else parked.content

    async def end(self, channel: Channel) -> Sequence[Message]:
        parked = self._parked.pop(_key(channel), None)
        return await self.broker.end(channel) if parked is None else parked.opened.pendings

    async def resume(self, channel: Channel) -> None:
        if _key(channel) not in self._parked:
            await self.broker.resume(channel)

    async def discard(self, channel: Channel) -> None:
        if self._parked.pop(_key(channel), None) is None:
            await self.broker.discard(channel)

    async def kick(self, channel: Channel, reason: str) -> None:
        if self._parked.pop(_key(channel), None) is None:
            await self.broker.kick(channel, reason)

    def is_alive(self, channel: Channel) -> bool:
        return _key(channel) in self._parked or self.broker.is_alive(channel)

    def is_connected(self, channel: Channel) -> bool:
        """As `ConnectionOwner`: a parked session has no client."""
        if _key(channel) in self._parked:
            return False
        if isinstance(self.broker, ConnectionOwner):
            return self.broker.is_connected(channel)
        return self.broker.is_alive(channel)

    def channels(self) -> Iterable[Channel]:
        yield from [parked.row for parked in self._parked.values()]
        yield from self.broker.channels()


def _key(row: Channel) -> tuple[str, str]:
    return (row.client_id, row.channel)

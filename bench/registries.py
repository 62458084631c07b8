"""What the driver needs from a registry, so that it drives all of them in the same way.

The driver knows registries only through this protocol: here are "lcr" and "legacy", which are bare
calls of one registry or the other; `bench.sessions` has the whole flow of a broker; tests bring
their own with known faults. The types are the driver's own: they must travel between drivers, and
the driver must not depend on what else a registry keeps in its rows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from bench.runner.product import Channel
from bench.schema import ERRORS, REFUSALS

if TYPE_CHECKING:
    from bench.runner.product import ConnectResult, LcrApi

__all__ = ["Answer", "LegacyRegistry", "LinearRegistry", "Registry", "Seat", "inject_lag"]


class Seat(msgspec.Struct, frozen=True):
    """A registered channel. `token` is the registry's own row, for its `disconnect`."""

    client: str
    channel: str
    node: str
    version: int
    token: Any = None


class Answer(msgspec.Struct, frozen=True):
    """The answer to a connect. `outcome` is one of the benchmark log's; the rest if it is ok."""

    outcome: str
    attempts: int = 1
    present: bool | None = None
    seat: Seat | None = None
    predecessor: Seat | None = None
    index: int | None = None


class Registry(Protocol):
    """A channel registry on one node. All calls are made on that node's event loop."""

    async def connect(self, client: str, channel: str) -> Answer:
        """Registers a new channel of the client, taking over what there was. Raises RaftkvError."""

    async def disconnect(self, seat: Seat) -> None:
        """The channel has ended: removes this row and no other. Raises RaftkvError."""

    def registered(self, client: str) -> Collection[str]:
        """The channels this node shows for the client, from its own copy."""

    def holds(self, seat: Seat) -> bool:
        """Whether this node, where the channel lives, still believes it to be registered.

        Asked about a channel that was taken over: if so, the driver removes it. Always false for a
        registry whose nodes do that themselves.
        """

    def discarded(self, seat: Seat) -> bool:
        """Whether the registry ended this channel of this node without naming it to anybody.

        Always false for a registry that promises to name every predecessor it takes over.
        """


class LinearRegistry:
    """LCR on one node."""

    def __init__(self, api: LcrApi) -> None:
        self._api = api

    async def connect(self, client: str, channel: str) -> Answer:
        return _answer(await self._api.connect(client, channel))

    async def disconnect(self, seat: Seat) -> None:
        await self._api.unregister(_row(seat))

    def registered(self, client: str) -> Collection[str]:
        return [row.channel for row in self._api.channels_local(client)]

    def holds(self, seat: Seat) -> bool:
        return (seat.client, seat.channel) in self._api.held

    def discarded(self, seat: Seat) -> bool:
        return False


class LegacyRegistry:
    """The old registry on one node. It discards older channels that it sees beside the newest."""

    def __init__(self, api: LcrApi) -> None:
        self._legacy = api.legacy

    async def connect(self, client: str, channel: str) -> Answer:
        return _answer(await self._legacy.connect(client, channel))

    async def disconnect(self, seat: Seat) -> None:
        await self._legacy.unregister(_row(seat))

    def registered(self, client: str) -> Collection[str]:
        return [row.channel for row in self._legacy.channels_local(client)]

    def holds(self, seat: Seat) -> bool:
        return (seat.client, seat.channel) in self._legacy.held

    def discarded(self, seat: Seat) -> bool:
        return not self.holds(seat)


def _answer(result: ConnectResult) -> Answer:
    if result.outcome != "ok":
        known = result.outcome in (*REFUSALS, *ERRORS)
        outcome = result.outcome if known else f"error:{result.outcome}"
        return Answer(outcome, result.attempts, index=result.index)
    assert result.owner is not None, "an ok connect names its own channel"
    return Answer(
        "ok",
        result.attempts,
        result.session_present,
        _seat(result.owner),
        None if result.predecessor is None else _seat(result.predecessor),
        result.index,
    )


def _seat(row: Channel) -> Seat:
    return Seat(row.client_id, row.channel, row.node, row.version, msgspec.to_builtins(row))


def _row(seat: Seat) -> Channel:
    return msgspec.convert(seat.token, Channel)


def inject_lag(node: Any, legacy: Any, seconds: float) -> None:
    """Make both registries of a replicant late by as much; a core's stay as they are.

    The linear registry of a core is as late as its applying, which is part of consensus and cannot
    be made slower alone. So the one that spreads asynchronously is not made slower there either:
    where the clients sit in cores, neither registry lags.
    """
    if node.config.role == "replicant":
        legacy.lag_s = seconds
        node.inject_lag(seconds)

"""Sessions as a broker has them: the product's whole flow behind the driver's protocol.

A `MemoryBroker` (raftkv_lcr.testing) holds the sessions of one node and asks the node's
ChannelManager for each connect: a look at the local copy, takeover begin on the owner wherever it
lives, the decision in the log or below the old registry's lock, takeover end. Which of these is
done says the replicated mode, and so one class serves the three registries `session-on`,
`session-both` and `session-off`; only where an audit looks differs.

What the driver's other registries leave to the driver, a broker does itself: a channel that was
taken over ends where it lives, and removes its own rows. So this registry never says that it
`holds` a seat which somebody took over: otherwise the driver would clean up what the product must.

Every new session gets one message of 64 bytes, and every session that is said to be present must
bring one along: `hollow` counts those that do not. Clients that race for one id may be faster than
that message; the count says nothing about them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from bench.registries import Answer, Seat
from bench.runner.product import Channel
from bench.schema import ERRORS, REFUSALS
from raftkv.errors import RaftkvError

__all__ = ["Broker", "SessionRegistry", "attached_broker", "switch_mode"]

MESSAGE_BYTES = 64
RETRY_S = 0.1
GONE_TIMEOUT_S = 10.0
HANGUPS_AT_ONCE = 64
"""For each node: enough to fill a log entry, far below the limits of an outbox."""


class Opened(Protocol):
    """What is used of a `raftkv_lcr` OpenedSession."""

    outcome: str
    present: bool
    channel: Channel | None
    predecessor: Channel | None
    attempts: int
    handover: str


class Broker(Protocol):
    """What is used of a `raftkv_lcr.testing` MemoryBroker."""

    sessions: dict[tuple[str, str], Any]
    calls: list[tuple[str, str]]

    async def connect(self, client_id: str, channel: str) -> Any: ...

    async def disconnect(self, client_id: str, channel: str) -> None: ...

    def publish(self, client_id: str, message: Any) -> bool: ...

    def is_alive(self, channel: Channel) -> bool: ...

    def channels(self) -> Iterable[Channel]: ...


class SessionRegistry:
    """One node's sessions, as the driver asks for them.

    `message` makes a broker's message from its id and bytes; `shown` gives the channels that this
    node shows for a client, from the registry that the mode reads.
    """

    def __init__(
        self,
        broker: Broker,
        message: Callable[[str, bytes], Any],
        shown: Callable[[str], Sequence[Channel]],
    ) -> None:
        self._broker = broker
        self._message = message
        self._shown = shown
        # Kinds of failure of takeovers whose session could not be had.
        self.lost: Counter[str] = Counter()
        self.hollow = 0

    async def connect(self, client: str, channel: str) -> Answer:
        opened: Opened = await self._broker.connect(client, channel)
        if opened.handover == "lost":
            self.lost[str(getattr(opened, "failure", None))] += 1
        if opened.outcome != "ok":
            known = opened.outcome in (*REFUSALS, *ERRORS)
            outcome = opened.outcome if known else f"error:{opened.outcome}"
            return Answer(outcome, opened.attempts)
        assert opened.channel is not None, "an ok connect names its own channel"
        if not opened.present:
            self._broker.publish(client, self._message(channel, bytes(MESSAGE_BYTES)))
        else:
            session = self._broker.sessions.get((client, channel))
            # A session that is gone already was taken over between its answer and now.
            self.hollow += session is not None and not session.content
        before = None if opened.predecessor is None else _seat(opened.predecessor)
        return Answer("ok", opened.attempts, opened.present, _seat(opened.channel), before)

    async def disconnect(self, seat: Seat) -> None:
        await self._broker.disconnect(seat.client, seat.channel)

    def registered(self, client: str) -> Collection[str]:
        return [row.channel for row in self._shown(client)]

    def holds(self, seat: Seat) -> bool:
        return False

    def discarded(self, seat: Seat) -> bool:
        return not self._broker.is_alive(msgspec.convert(seat.token, Channel))

    async def hang_up(self) -> None:
        """Every session of this node ends, so that the next load begins with an empty registry.

        Waits a while until this registry shows none of them any more. Rows whose removal takes
        longer are left to the product, which goes on trying.
        """
        broker, rows = self._broker, list(self._broker.channels())
        waiting = iter(rows)

        async def end_some() -> None:
            for row in waiting:
                with contextlib.suppress(RaftkvError):
                    await broker.disconnect(row.client_id, row.channel)

        await asyncio.gather(*(end_some() for _ in range(HANGUPS_AT_ONCE)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GONE_TIMEOUT_S):
                while any(row in self._shown(row.client_id) for row in rows):
                    await asyncio.sleep(RETRY_S)
        # A broker for tests remembers what ended, and each call: a benchmark has too many of them.
        for key in [key for key, session in broker.sessions.items() if session.row is not None]:
            del broker.sessions[key]
        broker.calls.clear()


def attached_broker(name: str, api: Any) -> dict[str, SessionRegistry]:
    """A broker on this node, and its sessions as the registries of the three modes.

    Dual reads what enabled reads. They share the broker, so one of them ends all sessions.
    """
    # Here, because `bench compare` runs the other loads on revisions that have no sessions yet.
    from bench.runner.product import MemoryBroker, Message

    broker = MemoryBroker(name)
    broker.attach(api)
    on = SessionRegistry(broker, Message, api.channels_local)
    off = SessionRegistry(broker, Message, api.legacy.channels_local)
    return {"session-on": on, "session-both": on, "session-off": off}


async def switch_mode(api: Any, mode: str, timeout_s: float) -> None:
    """Switch the cluster's mode; returns when all nodes have adopted it.

    A node that has just started counts as one of an old version until it has announced itself, so
    that is waited for.
    """
    from bench.runner.product import OldNodes

    async with asyncio.timeout(timeout_s):
        while True:
            try:
                await api.switch_mode(mode, timeout_s=timeout_s)
            except OldNodes:
                await asyncio.sleep(RETRY_S)
            else:
                return


def _seat(row: Channel) -> Seat:
    return Seat(row.client_id, row.channel, row.node, row.version, msgspec.to_builtins(row))

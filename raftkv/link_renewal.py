"""A consensus link on which nothing arrives any more is replaced by a new one, from core format 2.

A connection can swallow what is sent on it while a new one would work: a firewall has lost its
state, say. TCP tries again for up to a quarter of an hour before it tells, and as long as the link
stands neither end dials. From core format 2 on every node sends a `Presence` on each of its
consensus links once a second, so a link that has carried one and then nothing for SILENT_PERIODS
looks is suspected.

It is not closed for that. The node dials the other core once more, and only when the handshake on
the new link is done the old one ends. A process that is stopped, or a network that is cut,
completes no handshake: the link stands as it did, and goes on when the process does. So neither a
pause nor a cut becomes the loss of a link here: no election and no verdict comes of it.

What counts are looks, not seconds: a process that stood still itself has missed looks, and reads
what has arrived meanwhile before it has made so many. Of two cores the one with the greater name
dials first, as always (transport.py): with two new links at once each end might keep another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .detector import FORMAT_PRESENCE, PERIOD_S
from .raft.link import HELLO_TIMEOUT_S

if TYPE_CHECKING:
    from .peering import Peering
    from .raft.engine import Engine
    from .raft.transport import Link

__all__ = ["LESSER_PERIODS", "SILENT_PERIODS", "LinkRenewal"]

log = logging.getLogger("raftkv.peering")

#: A `Presence` is due in each: several lost ones are no accident of a loaded machine, and a core
#: may miss the leader for as long without harm to the others.
SILENT_PERIODS: Final = 5
#: How many more the core with the lesser name waits: as long as a dial of the other may take.
LESSER_PERIODS: Final = 4
# A link whose handshake has not ended by then has been dropped (link.py).
_UP_S: Final = HELLO_TIMEOUT_S + 1.0
_LOOK_S: Final = 0.02


class _Seen(msgspec.Struct):
    """`received_bytes` at the latest look, and the looks since when it has not changed."""

    received_bytes: int
    silent: int = 0


class LinkRenewal:
    """The consensus links of one core. `spoke`: whether a `Presence` has come on this very one."""

    def __init__(self, engine: Engine, peering: Peering, spoke: Callable[[Link], bool]) -> None:
        self._engine = engine
        self._peering = peering
        self._spoke = spoke
        self._name = peering.name
        self._seen: dict[Link, _Seen] = {}
        self._renewing: set[str] = set()
        self._running: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._running = self._engine.runtime.spawn(self._run(), "renew silent links")

    def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        while not self._engine.stopped:
            await self._engine.runtime.sleep(PERIOD_S)
            self._look()

    def _look(self) -> None:
        if self._engine.application.core_format < FORMAT_PRESENCE:
            return
        seen: dict[Link, _Seen] = {}
        for link in list(self._engine.links.values()):
            if not self._spoke(link):
                continue  # it may be of a core that has not applied the format
            found = self._seen.get(link)
            if found is None or found.received_bytes != link.received_bytes:
                found = _Seen(link.received_bytes)
            else:
                found.silent += 1
            seen[link] = found
            if found.silent >= self._patience(link.peer_name) and link.peer_name not in (
                self._renewing
            ):
                found.silent = 0
                self._renewing.add(link.peer_name)
                self._engine.runtime.spawn(self._renew(link), f"dial {link.peer_name} again")
        self._seen = seen

    def _patience(self, name: str) -> int:
        return SILENT_PERIODS + (LESSER_PERIODS if self._name < name else 0)

    async def _renew(self, silent: Link) -> None:
        """Dial each of its addresses until a link is up that takes the place of this one."""
        try:
            for address in self._peering.addresses.of(silent.peer_name):
                if self._engine.stopped or not self._is_silent(silent):
                    return
                if await self._is_up_at(address, silent):
                    log.warning(
                        "nothing came from %s on a link that stood: it is replaced by a new one",
                        silent.peer_name,
                    )
                    # What it still has to send would keep it open, as nothing leaves.
                    silent.abort()
                    return
        finally:
            self._renewing.discard(silent.peer_name)

    def _is_silent(self, link: Link) -> bool:
        """Whether nothing has come on it, nor taken its place, since it was looked at last."""
        found = self._seen.get(link)
        return (
            self._engine.links.get(link.peer_id) is link
            and found is not None
            and found.received_bytes == link.received_bytes
        )

    async def _is_up_at(self, address: str, silent: Link) -> bool:
        """Whether the core answers there, on a link that stays up."""
        hub, runtime = self._peering.hub, self._engine.runtime
        try:
            link = await hub.dial(address, "raft", silent.peer_name)
        except (OSError, ValueError):
            return False
        deadline = runtime.monotonic() + _UP_S
        while link.peer is None and not link.closed.done() and runtime.monotonic() < deadline:
            await runtime.sleep(_LOOK_S)
        return link.up

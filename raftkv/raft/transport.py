"""Streams between nodes: one listening port, links with a handshake, dialling that never tires.

What a connection is, and what it must pass before anything is decoded, is in link.py.

Accepted connections that have not greeted are bounded in number and time: the oldest goes first,
since a node greets within milliseconds and whoever holds connections open does not.

Between two cores the one with the greater name dials, so that there is one link per pair. A link
that replaces an older one to the same node closes the older: the newer stream is the one whose
other end is alive.

What is ugly: PySyncObj wants a `Transport` object made inside its constructor, with callbacks set
on it. `RaftTransport` is that object; it only passes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pysyncobj.transport import Transport as SyncObjTransport

from raftkv.config import parse_address
from raftkv.errors import ConfigError
from raftkv.runtime import Listener, Runtime
from raftkv.security.channel import Security
from raftkv.start_errors import error_of_listening

from .complaints import Complaints
from .link import HELLO_TIMEOUT_S, Link, LinkOwner

__all__ = ["Hub", "Link", "RaftTransport"]

log = logging.getLogger("raftkv.transport")

# Accepted connections that have not greeted. Far more than a cluster's nodes that redial at once;
# each holds some 50 KB with TLS.
PENDING_LINKS_MAX = 128
# Dialling a dead peer: first retry soon, then at most this often.
REDIAL_MIN_S = 0.02
REDIAL_MAX_S = 0.5


class Hub:
    """The listening port of a node and all its links. Without `security` they are plain."""

    def __init__(
        self,
        runtime: Runtime,
        owner: LinkOwner,
        frame_bytes_max: int,
        security: Security | None = None,
    ) -> None:
        self.runtime = runtime
        self.owner = owner
        self.frame_bytes_max = frame_bytes_max
        self.security = security
        self._complaints = Complaints(runtime.monotonic)
        # For the node's metrics. What links move is added up here: links come and go.
        self.sent_bytes = 0
        self.received_bytes = 0
        self.closed_for_cause = 0
        self.over_pending_max = 0
        # Accepted, without a handshake yet; the oldest first.
        self._pending: dict[Link, None] = {}
        self._listener: Listener | None = None
        self._links: dict[Link, None] = {}
        self._dialling: dict[str, asyncio.Task[Any]] = {}
        self._closed = False

    async def listen(self, address: str, label: str = "peer_address") -> int:
        """Start accepting; returns the port.

        `label` is the key of the configuration that errors name. Raises ConfigError (AddressInUse
        for an address that is taken) or TooManyOpenFiles.
        """
        host, port = parse_address(address, label)
        try:
            self._listener = await self.runtime.listen(
                lambda: Link(self, None, "unknown"), host, port
            )
        except OSError as error:
            raise error_of_listening(error, label, address) from None
        return self._listener.port

    def keep_dialling(
        self, name: str, addresses: Callable[[], Sequence[str]], purpose: str, patience_s: float
    ) -> None:
        """See to it that there is a link to the node, until `stop_dialling(name)`.

        `addresses` is asked before every attempt; what it says is tried in turn.

        With `patience_s` the other side is first given that long to dial. While a link is up, by
        whoever's dialling, nothing is done.
        """
        if name not in self._dialling and not self._closed:
            coroutine = self._dial_for_ever(name, addresses, purpose, patience_s)
            self._dialling[name] = self.runtime.spawn(coroutine, f"dial {name} for {purpose}")

    def stop_dialling(self, name: str) -> None:
        """The node is no member any more, say. A link that is up stays."""
        task = self._dialling.pop(name, None)
        if task is not None:
            task.cancel()

    async def dial(self, address: str, purpose: str, wanted: str = "") -> Link:
        """One attempt. The handshake goes on after this returns.

        Raises OSError, or ValueError for an address that is none: other nodes name theirs.
        `wanted` is the name of the node that is meant; another one refuses.
        """
        try:
            host, port = parse_address(address)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        link = Link(self, address, purpose, wanted)
        # A connect into a silent network would hang for minutes. TimeoutError is an OSError.
        await asyncio.wait_for(self.runtime.connect(lambda: link, host, port), HELLO_TIMEOUT_S)
        return link

    async def _dial_for_ever(
        self, name: str, addresses: Callable[[], Sequence[str]], purpose: str, patience_s: float
    ) -> None:
        delay = REDIAL_MIN_S
        turn = 0
        while not self._closed:
            if patience_s:
                await self.runtime.sleep(patience_s)
            if self.owner.linked(name):
                await self.runtime.sleep(REDIAL_MAX_S)
                continue
            known = addresses()
            # It may be known no more, or not yet: that is an address where no node is, for now.
            address = known[turn % len(known)] if known else ""
            turn += 1
            try:
                link = await self.dial(address, purpose, name)
                # Not `await link.closed`: giving up the dialling would end the future, and the link
                # would be deaf though its stream is up.
                await asyncio.wait([link.closed])
                if link.peer is not None:
                    delay = REDIAL_MIN_S
                    turn = 0
            except (OSError, ValueError):
                pass  # nobody listens there yet, or the host is none: it may get another address
            await self.runtime.sleep(delay * (0.5 + self.runtime.rng.random()))
            delay = min(REDIAL_MAX_S, delay * 2)

    def opened(self, link: Link) -> None:
        self._links[link] = None
        if self._closed:
            link.abort()
        elif link.dialled is None:
            self._pending[link] = None
            if len(self._pending) > PENDING_LINKS_MAX:
                spare = self._spare()
                del self._pending[spare]
                self.over_pending_max += 1
                self.complain(spare, f"more than {PENDING_LINKS_MAX} connections have not greeted")
                spare.abort()

    def _spare(self) -> Link:
        """The oldest pending connection of the address that has most of them."""
        counts = Counter(link.source for link in self._pending)
        most = max(counts.values())
        return next(link for link in self._pending if counts[link.source] == most)

    def greeted(self, link: Link) -> None:
        self._pending.pop(link, None)

    @property
    def link_count(self) -> int:
        return len(self._links)

    def gone(self, link: Link) -> None:
        self._links.pop(link, None)
        self._pending.pop(link, None)

    def complain(self, link: Link, reason: str) -> None:
        """One line about a connection that is closed for what its peer did, within bounds."""
        self.closed_for_cause += 1
        line = self._complaints.line(link.peer_address, link.wanted, reason)
        if line is not None:
            log.warning("%s", line)

    def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        for task in self._dialling.values():
            task.cancel()
        self._dialling.clear()
        for link in list(self._links):
            link.close()


class RaftTransport(SyncObjTransport):  # type: ignore[misc]  # PySyncObj has no type hints
    """PySyncObj's transport interface on raft links. It is ready from the start."""

    def __init__(self, sync_obj: Any, self_node: Any, other_nodes: Any) -> None:
        super().__init__(sync_obj, self_node, other_nodes)
        self.links: dict[str, Link] = {}

    @property
    def ready(self) -> bool:
        return True

    def tryGetReady(self) -> None:
        """Nothing to do: the hub listens before the engine is made."""

    def waitReady(self) -> None:
        """Nothing to wait for."""

    def addNode(self, node: Any) -> None:
        """Whom to dial follows from the address book, not from PySyncObj's node set."""

    def dropNode(self, node: Any) -> None:
        """Links of removed members stay: they must still be told that they are (rule 23)."""

    def send(self, node: Any, message: Any) -> bool:
        """PySyncObj's own messages are dicts; none of them is sent any more."""
        raise AssertionError(f"a stock message to {node.id}: {message!r}")

    def destroy(self) -> None:
        """The hub closes the links."""

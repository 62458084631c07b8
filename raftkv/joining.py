"""Which cluster a node belongs to, before it belongs to one: whose claim it takes.

The cluster's id is stored once, durably, and decides which nodes this one ever talks to again. So a
claim (a handshake with an id, `Founded`) counts only if a core of this node's configuration file
stands behind it (credibility.py): by its certificate, or, without certificates, on a link that this
node dialled itself. A claim on any other link is not acted on. The node dials the core that is
named in it, at an address of the configuration file, and takes the id from what answers there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .addresses import AddressBook
from .credibility import Credibility
from .descriptors import lacks_descriptors
from .disk_errors import disk_failed
from .errors import NodeFault
from .raft import wire
from .raft.epoch import FOUNDED, Epoch
from .raft.identity import DataDirectory
from .raft.membership import name_of
from .raft.transport import Hub, Link
from .security.proof import Proof

if TYPE_CHECKING:
    from .raft.engine import Engine

__all__ = ["Joining", "handshake_at"]

log = logging.getLogger("raftkv.peering")

# How often an unfinished handshake is looked at.
LOOK_S: Final = 0.02
# How long a core may take to answer, and the pause before it is dialled again.
ANSWER_S: Final = 1.0
AGAIN_S: Final = 0.5


async def handshake_at(hub: Hub, address: str, name: str, timeout_s: float) -> wire.Hello | None:
    """What the node at an address answers when the node of this name is dialled there, if it does.

    The link is closed again. What it proves is judged when it comes up, as for any other.
    """
    runtime = hub.runtime
    deadline = runtime.monotonic() + timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            link = await hub.dial(address, "rpc", name)
    except (OSError, ValueError):  # TimeoutError is an OSError
        return None
    while link.peer is None and not link.closed.done() and runtime.monotonic() < deadline:
        await runtime.sleep(LOOK_S)
    link.close()
    return link.peer


class Joining:
    """One node's belonging to a cluster. `engine`: that of a core, once there is one."""

    def __init__(
        self,
        hub: Hub,
        directory: DataDirectory,
        addresses: AddressBook,
        credibility: Credibility,
        engine: Callable[[], Engine | None],
        faulted: Callable[[NodeFault], None],
    ) -> None:
        self._hub = hub
        self._directory = directory
        self._addresses = addresses
        self._credibility = credibility
        self._engine = engine
        self._faulted = faulted
        self._asked: set[str] = set()

    @property
    def belongs(self) -> bool:
        """Whether the data directory is of a cluster."""
        return bool(self._directory.identity.cluster_id)

    def met(self, peer: wire.Hello, proof: Proof) -> None:
        """A link is up: the first core that belongs to the cluster names it."""
        if peer.cluster_id and not self.belongs and peer.role == "core":
            self._claimed(name_of(peer.raft_id), proof, peer.cluster_id, peer.epoch)

    def on_founded(self, link: Link, message: wire.Founded) -> None:
        """The core at the other end of a consensus link has bootstrapped a cluster."""
        if not self.belongs:
            self._claimed(link.peer_name, link.proof, message.cluster_id, FOUNDED)
        elif message.cluster_id != self._directory.identity.cluster_id:
            log.warning("%s has bootstrapped another cluster than this node's", link.peer_name)
            link.close()

    def _claimed(self, name: str, proof: Proof, cluster_id: str, epoch: Epoch) -> None:
        if self._credibility.believes(name, proof):
            self.join(cluster_id, epoch)
        elif name not in self._asked and self._addresses.vouched(name):
            self._asked.add(name)
            self._hub.runtime.spawn(self._ask(name), f"ask {name} for the cluster")

    def join(self, cluster_id: str, epoch: Epoch = FOUNDED) -> bool:
        """Store the id. False if the disk refused, which stops the node.

        Without a file descriptor nothing is stored: the links are made again, and with them the
        claims.
        """
        try:
            self._directory.join(cluster_id, epoch)
        except OSError as error:
            if lacks_descriptors(error):
                log.error("the cluster's id cannot be stored yet: %s", error)
                engine = self._engine()
                for link in () if engine is None else tuple(engine.links.values()):
                    link.close()
                return False
            self._faulted(disk_failed("the cluster's id cannot be stored", error))
            return False
        log.info("%s belongs to the cluster %s", self._directory.identity.name, cluster_id)
        engine = self._engine()
        if engine is not None:
            engine.snapshotting.cluster_id = cluster_id
            _leave_other_clusters(engine, cluster_id)
        return True

    async def _ask(self, name: str) -> None:
        """Until this node belongs to a cluster, or nothing claims it any more."""
        log.info("%s claims a cluster on a link that proves nothing: dialling it", name)
        try:
            turn = 0
            while not self.belongs and self._linked(name):
                known = self._addresses.vouched(name)
                if not known:
                    return
                await handshake_at(self._hub, known[turn % len(known)], name, ANSWER_S)
                turn += 1
                if turn % len(known) == 0:
                    await self._hub.runtime.sleep(AGAIN_S)
        finally:
            self._asked.discard(name)

    def _linked(self, name: str) -> bool:
        engine = self._engine()
        return engine is not None and any(name_of(peer) == name for peer in engine.links)


def _leave_other_clusters(engine: Engine, cluster_id: str) -> None:
    """End the links that this node took when it could not tell that they are of another one."""
    for link in tuple(engine.links.values()):
        if link.peer is not None and link.peer.cluster_id not in ("", cluster_id):
            log.warning("%s belongs to another cluster than this node", link.peer_name)
            link.close()

"""Who this node talks to: greetings, the founding of the cluster, and routing of messages.

Founding. A new cluster must have exactly one first configuration, holding the raft ids that were
minted with the cores' data directories (rule 10), and nobody may count votes before it exists. So
one core founds: the one whose name sorts first. It waits until it has a link to every core named
in its configuration and none of them belongs to a cluster yet; then it mints the cluster id,
writes the configuration as its first entry, durably, and tells the others, who store the cluster
id before they take part. If one of them already belongs to a cluster, this directory was wiped,
and the node stops. All cores must be up once for this; afterwards a majority is enough.

A greeting is refused for another cluster's name or id, for a name that the cluster knows under
another data directory (a wiped node), and for a node's own. Strangers inside the cluster are
accepted: this node's configuration may lag (rule 23).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .config import NodeConfig
from .errors import DiskFailed, NodeFault, RemovedNode, WipedNode, WrongCluster
from .raft import wire
from .raft.engine import Engine
from .raft.identity import DataDirectory
from .raft.membership import Configuration, name_of
from .raft.transport import Hub, Link
from .runtime import Runtime

__all__ = ["Peering"]

log = logging.getLogger("raftkv.peering")

# How long the core with the lesser name waits to be dialled before it dials itself.
LESSER_PATIENCE_S = 1.0

Route = Callable[[Link, Any], None]


class Peering:
    """The links of one node, by purpose."""

    def __init__(
        self,
        config: NodeConfig,
        directory: DataDirectory,
        runtime: Runtime,
        faulted: Callable[[NodeFault], None],
    ) -> None:
        self._config = config
        self._directory = directory
        self._faulted = faulted
        self.hub = Hub(runtime, self, config.limits.frame_bytes_max)
        self.engine: Engine | None = None
        # Set once this node takes part: a later refusal is the peer's trouble, not this node's.
        self.settled = False
        self._routes: dict[type, Route] = {}
        self._ups: dict[str, Callable[[Link], None]] = {}
        self._downs: dict[str, Callable[[Link], None]] = {}
        # name -> address, from the configuration and from greetings.
        self.addresses: dict[str, str] = dict(config.cores)

    # -- wiring

    def purpose(self, name: str, up: Callable[[Link], None], down: Callable[[Link], None]) -> None:
        """Accept links of this purpose."""
        self._ups[name] = up
        self._downs[name] = down

    def route(self, kind: type, handler: Route) -> None:
        """Messages of this kind go to `handler(link, message)`."""
        self._routes[kind] = handler

    def receive(self, link: Link, message: wire.Message) -> None:
        """The receiver of every link: route by the message's kind."""
        handler = self._routes.get(type(message))
        if handler is None:
            raise wire.ProtocolError(f"{type(message).__name__} is not expected here")
        handler(link, message)

    def dial_cores(self) -> None:
        """Between two cores the one with the greater name dials at once, the other after a while.

        The other may not know who dials it: a core that was added later stands in no
        configuration file but its own.
        """
        for name in sorted(self._config.cores):
            self._keep_dialling(name)

    def _keep_dialling(self, name: str) -> None:
        if name != self._config.name:
            patience_s = 0.0 if name < self._config.name else LESSER_PATIENCE_S
            self.hub.keep_dialling(name, self.addresses[name], "raft", patience_s)

    def follow_configuration(self, configuration: Configuration) -> None:
        """Members came or went: dial whose address is known, leave those that were removed."""
        names = [name_of(member) for member in configuration.members]
        for name in names:
            if name in self.addresses:
                self._keep_dialling(name)
        for raft_id in configuration.removed:
            if name_of(raft_id) not in names:
                self.hub.stop_dialling(name_of(raft_id))

    def linked(self, name: str) -> bool:
        """Whether a raft link to the node of this name is up."""
        engine = self.engine
        return engine is not None and any(name_of(peer) == name for peer in engine.links)

    # -- LinkOwner

    def hello(self, purpose: str) -> wire.Hello:
        identity = self._directory.identity
        return wire.Hello(
            wire.PROTOCOL_VERSION,
            purpose,
            identity.cluster,
            identity.cluster_id,
            identity.raft_id,
            identity.role,
            self._config.peer_address,
        )

    def judge(self, hello: wire.Hello) -> wire.Refusal | None:
        identity = self._directory.identity
        if hello.cluster != identity.cluster:
            return wire.Refusal(
                WrongCluster.code,
                f"this node belongs to the cluster {identity.cluster!r}, the other to "
                f"{hello.cluster!r}",
            )
        if hello.cluster_id and identity.cluster_id and hello.cluster_id != identity.cluster_id:
            return wire.Refusal(
                WrongCluster.code,
                f"both clusters are called {identity.cluster!r}, but they were founded "
                f"separately ({identity.cluster_id} and {hello.cluster_id})",
            )
        if hello.raft_id == identity.raft_id:
            return wire.Refusal("own_address", "the address leads back to the same node")
        if self.engine is not None and hello.raft_id in self.engine.configuration.removed:
            return wire.Refusal(RemovedNode.code, "the cluster has removed this node")
        name = name_of(hello.raft_id)
        known = None if self.engine is None else self.engine.configuration.raft_id_of(name)
        if hello.purpose == "raft" and known not in (None, hello.raft_id):
            return wire.Refusal(
                WipedNode.code,
                f"the cluster knows {name!r} under another data directory ({known}); a node "
                f"whose directory was lost must not come back as its old self. Remove the "
                f"old member, then add this node",
            )
        if hello.purpose == "raft" and hello.role != "core":
            return wire.Refusal("wrong_purpose", f"a {hello.role} takes no part in consensus")
        if hello.purpose not in self._ups:
            return wire.Refusal("wrong_purpose", f"no {hello.purpose!r} links are accepted here")
        return None

    def refused(self, refusal: wire.Refusal, address: str) -> None:
        text = f"the node at {address} refuses this one: {refusal.reason}"
        log.warning("%s", text)
        if refusal.code == RemovedNode.code:
            self._faulted(
                RemovedNode(
                    f"{text}. Its data directory is of no use any more; to take part again, start "
                    f"it with an empty one and add it"
                )
            )
        if self.settled:
            return
        if refusal.code == WipedNode.code:
            self._faulted(WipedNode(text))
        elif refusal.code == WrongCluster.code:
            self._faulted(
                WrongCluster(
                    f"{text}. Check the addresses under [cores], or give this node an empty "
                    f"data directory"
                )
            )

    def on_refusal(self, link: Link, message: wire.Refusal) -> None:
        """The dialler will not talk to this node, although this node had accepted it."""
        assert link.peer is not None
        self.refused(message, link.peer.peer_address)
        link.close()

    def link_up(self, link: Link) -> None:
        assert link.peer is not None
        link.receive = self.receive
        self.addresses[link.peer_name] = link.peer.peer_address
        self._adopt(link.peer)
        self._ups[link.purpose](link)
        if link.purpose == "raft":
            self._try_founding()

    def link_down(self, link: Link) -> None:
        self._downs[link.purpose](link)

    # -- founding

    def _adopt(self, peer: wire.Hello) -> None:
        """The first core met that belongs to the cluster says which one it is."""
        identity = self._directory.identity
        named = name_of(peer.raft_id) in self._config.cores and peer.role == "core"
        if peer.cluster_id and not identity.cluster_id and named:
            self._join(peer.cluster_id)

    def on_founded(self, link: Link, message: wire.Founded) -> None:
        if not self._directory.identity.cluster_id:
            self._join(message.cluster_id)

    def _join(self, cluster_id: str) -> bool:
        """False if the disk refused, which stops the node."""
        try:
            self._directory.join(cluster_id)
        except OSError as error:
            self._faulted(
                DiskFailed(
                    f"the cluster's id cannot be stored: {error}. Free or "
                    "replace the disk, then start the node again"
                )
            )
            return False
        if self.engine is not None:
            self.engine.snapshotting.cluster_id = cluster_id
        log.info("%s belongs to the cluster %s", self._directory.identity.name, cluster_id)
        return True

    def try_founding(self) -> None:
        """At the start: a cluster of one core needs nobody else."""
        self._try_founding()

    def _try_founding(self) -> None:
        engine, names = self.engine, sorted(self._config.cores)
        if engine is None or self._config.name != names[0] or engine.wal.last_index > 1:
            return
        if engine.wal.base_index > 1:
            return
        links = {link.peer_name: link for link in engine.links.values() if link.peer is not None}
        others = [links[name] for name in names[1:] if name in links]
        if len(others) != len(names) - 1:
            return
        if any(link.peer is not None and link.peer.cluster_id for link in others):
            # Their cluster exists; it will bring this node up to date, or refuse it as wiped.
            return
        self._found(engine, others)

    def _found(self, engine: Engine, others: list[Link]) -> None:
        known = self._directory.identity.cluster_id
        if not known and not self._join(engine.runtime.token(8).hex()):
            return
        identity = self._directory.identity
        voters = sorted([identity.raft_id, *(link.peer_id for link in others)])
        log.info("%s founds the cluster %s", identity.name, identity.cluster_id)
        engine.found(Configuration(voters=tuple(voters)), wire.Founded(identity.cluster_id))

    def close(self) -> None:
        self.hub.close()

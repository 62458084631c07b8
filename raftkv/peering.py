"""Who this node talks to: greetings, the founding of the cluster, and routing of messages.

Founding. A new cluster must have exactly one first configuration, holding the raft ids that were
minted with the cores' data directories (rule 10), and nobody may count votes before it exists. So
one core founds: the one whose name sorts first. It waits until it has a link that counts
(dialback.py) to every core named in its configuration and none of them belongs to a cluster yet
(cores with other files do not link: bootstrap.py); then it mints the cluster id, writes the
configuration as its first entry, durably, and tells the others, who store the cluster id before
they take part. If one of them already belongs to a cluster, this directory was wiped, and the node
stops. All cores must be up once.

A greeting is refused for another cluster's name or id, for a name that the cluster knows under
another data directory (a wiped node), for a node's own, and if it is meant for another node, which
was here before. Strangers inside the cluster are accepted: this node's configuration may lag
(rule 23). For the same reason a wiped node is told from one that has replaced its old self by what
it knows itself: the former has no log that names it. Who lags and refused the latter would lag for
ever, if that one leads.

Epochs (rule 18). After a forced recovery the directories of before are another history of the same
cluster. Whoever greets with an older epoch is refused; a core that meets a newer one stops itself;
a replicant that does discards its state and copies it again.

Both, and every refusal that stops this node, are acted on only if a core of this cluster stands
behind them (credibility.py). Anything else that claims a newer epoch is refused and raises an
alarm: EPOCH and `unproved_epoch` in the status, a line in the log, a metric.

What may arrive on a link, and which calls its peer may make, stands in permissions.py.

Who was removed is told, at the greeting and, on a stream that is up, as soon as it is committed:
not before, because until then the removal may still come to nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from . import bootstrap, permissions
from .addresses import AddressBook
from .config import NodeConfig
from .credibility import UNPROVED, Credibility
from .dialback import DialBack
from .errors import (
    NodeFault,
    OutdatedData,
    RemoteFailed,
    RemovedNode,
    WipedNode,
    WrongCluster,
)
from .formats import CORE
from .joining import Joining
from .raft import wire
from .raft.engine import Engine
from .raft.epoch import Epoch, Standing, standing
from .raft.identity import DataDirectory
from .raft.link import WRONG_CERTIFICATE
from .raft.membership import Configuration, name_of
from .raft.transport import Hub, Link
from .repeats import Repeats
from .runtime import Runtime
from .security.channel import Security
from .security.proof import Kind, Proof
from .twins import IN_USE, UNKNOWN, Twins

__all__ = ["Peering"]

log = logging.getLogger("raftkv.peering")

# How long the core with the lesser name waits to be dialled before it dials itself.
LESSER_PATIENCE_S = 1.0

# The code of a refusal that only means: not yet.
_UNFOUNDED = "unfounded"
# Refusals that can stop the node that gets them.
_STOPPING = frozenset({RemovedNode.code, OutdatedData.code, WipedNode.code, WrongCluster.code})
# The code of a refusal to a node whose release does not know the cluster's core format.
_OLD_SOFTWARE = "old_software"

Route = Callable[[Link, Any], None]


class Peering:
    """The links of one node, by purpose."""

    def __init__(
        self,
        config: NodeConfig,
        directory: DataDirectory,
        runtime: Runtime,
        faulted: Callable[[NodeFault], None],
        security: Security | None = None,
    ) -> None:
        self._config = config
        self._directory = directory
        self._faulted = faulted
        self._repeats = Repeats(runtime.monotonic)
        self.hub = Hub(runtime, self, config.limits.frame_bytes_max, security)
        self.engine: Engine | None = None
        # Set once this node takes part: a later refusal is the peer's trouble, not this node's.
        self.settled = False
        # What this process tells of its software, and the formats that are active, as applied.
        self.about: wire.About | None = None
        self.active: Callable[[], Mapping[str, int]] = lambda: {CORE: 1}
        self.judge_follower: Callable[[wire.Hello], wire.Refusal | None] = lambda hello: None
        # Of a core: which process runs under a raft id.
        self.twins: Twins | None = None
        self.calls_refused = 0  # by the table of permissions
        self._routes: dict[type, Route] = {}
        self._ups: dict[str, Callable[[Link], None]] = {}
        self._downs: dict[str, Callable[[Link], None]] = {}
        self.addresses = AddressBook(config.cores)
        self.credibility = Credibility(
            config, self.addresses, self._configuration, self._repeats, runtime.monotonic
        )
        self._joining = Joining(
            self.hub, directory, self.addresses, self.credibility, lambda: self.engine, faulted
        )
        # Set by the node: whether a refusal as a wiped node is one that will end (rebuild.py).
        self.on_wiped: Callable[[str], bool] = lambda text: False
        self._dial_back = DialBack(
            self.hub,
            self.addresses,
            self.credibility,
            self._repeats,
            self._links_of,
            self._try_founding,
        )
        # Set by a replicant: discard the state and belong to this epoch. False if it cannot now.
        self.on_newer_epoch: Callable[[Epoch], bool] = lambda epoch: False

    def _configuration(self) -> Configuration | None:
        return None if self.engine is None else self.engine.configuration

    @property
    def name(self) -> str:
        """That of this node."""
        return self._config.name

    # -- wiring

    def purpose(self, name: str, up: Callable[[Link], None], down: Callable[[Link], None]) -> None:
        """Accept links of this purpose."""
        self._ups[name] = up
        self._downs[name] = down

    def route(self, kind: type, handler: Route) -> None:
        """Messages of this kind go to `handler(link, message)`."""
        self._routes[kind] = handler

    def receive(self, link: Link, message: wire.Message) -> None:
        """The receiver of every link: route by the message's kind, if it may come this way.

        Raises ProtocolError for what may not, or for what this node has no use for.
        """
        kind = type(message)
        handler = self._routes.get(kind)
        if handler is None or kind not in link.permitted:
            raise wire.ProtocolError(f"{kind.__name__} is not expected on a {link.purpose} link")
        if kind is wire.RpcRequest and not self._may_call(link, message):
            return
        if kind is wire.Refusal and not self._may_refuse(link, message):
            link.close()
            return
        handler(link, message)

    def _may_refuse(self, link: Link, message: Any) -> bool:
        """A replicant stops when its upstream refuses it: not for one that only claims to be it.

        A core judges for itself what a refusal means (`refused`).
        """
        if link.purpose != "follow" or self.credibility.believes(link.peer_name, link.proof):
            return True
        log.warning("%s refuses this node and is not believed: %s", link.peer_name, message.reason)
        return False

    def _may_call(self, link: Link, message: Any) -> bool:
        """Whether the peer may make this call; it gets an answer that denies it otherwise."""
        kind, core = link.proof.kind, self.credibility.is_core(link.peer_name)
        if permissions.may_call(message.method, kind, core=core):
            return True
        if not permissions.is_known_call(message.method):
            # As `RpcHub` answers it: a caller of a later release then takes an older call.
            text = f"RemoteFailed: {self._config.name} has no method {message.method[:64]!r}"
            link.send(wire.RpcReply(message.number, RemoteFailed.code, text.encode()))
            return False
        text = (
            f"NotPermitted: {link.peer_name} may not call {message.method[:64]!r} with a "
            f"certificate of the kind {kind.value!r}: see docs/internals/security.md"
        )
        self.calls_refused += 1
        if self._repeats.left_out((link.peer_name, "call"), text) is not None:
            log.warning("%s", text)
        link.send(wire.RpcReply(message.number, "not_permitted", text.encode()))
        return False

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
            addresses = self.addresses
            self.hub.keep_dialling(name, lambda: addresses.of(name), "raft", patience_s)

    def dial(self, name: str) -> None:
        """See to it that there is a link to a node whose address has just become known."""
        self._keep_dialling(name)

    def forget(self, name: str) -> None:
        """Give a node up that is no member, unless the configuration file names it."""
        if name not in self._config.cores:
            self.hub.stop_dialling(name)

    def follow_configuration(self, configuration: Configuration) -> None:
        """Members came or went: dial whose address is known, leave those that were removed.

        A copy leaves nobody: its log may end where a name was removed that has come back since,
        and leads. The leader has the address of every voter from the log, of a copy perhaps not.
        """
        names = [name_of(member) for member in configuration.members]
        for name in names:
            if self.addresses.of(name):
                self._keep_dialling(name)
        if self._directory.identity.raft_id not in configuration.voters:
            return
        for raft_id in configuration.removed:
            if name_of(raft_id) not in names:
                self.hub.stop_dialling(name_of(raft_id))

    def tell_removed(self, configuration: Configuration) -> None:
        """A configuration is committed: whoever it removed must not campaign for ever."""
        assert self.engine is not None
        for raft_id in configuration.removed:
            link = self.engine.links.get(raft_id)
            if link is not None:
                link.send(_removed())
                link.close()

    def _spread(self, link: Link) -> None:
        """A raft link is up: tell the new peer of the others, and them of it."""
        assert self.engine is not None
        others = [
            other
            for other in self.engine.links.values()
            if other is not link and other.peer is not None
        ]
        for other in others:
            other.send(_addresses([link]))
        if others:
            link.send(_addresses(others))

    def on_addresses(self, link: Link, message: wire.Addresses) -> None:
        """Where other cores are, by another's word. A node that has no log yet wants them all."""
        engine = self.engine
        if engine is None or link.purpose != "raft":
            return
        members = {name_of(member) for member in engine.configuration.members}
        for name, address in message.pairs:
            wanted = name != self._config.name and (name in members or not members)
            if wanted and self.addresses.heard(name, address):
                self._keep_dialling(name)

    def linked(self, name: str) -> bool:
        """Whether a raft link to the node of this name is up."""
        return bool(self._links_of(name))

    def _links_of(self, name: str) -> list[Link]:
        """The raft links whose other end claims this name."""
        engine = self.engine
        links = {} if engine is None else engine.links
        return [link for peer, link in links.items() if name_of(peer) == name]

    # -- LinkOwner

    def hello(self, purpose: str, wanted: str = "") -> wire.Hello:
        identity = self._directory.identity
        return wire.Hello(
            wire.PROTOCOL_VERSION,
            purpose,
            identity.cluster,
            identity.cluster_id,
            identity.raft_id,
            identity.role,
            self._config.peer_address,
            identity.epoch,
            wanted,
            self.engine is not None and identity.raft_id in self.engine.configuration.members,
            self.about,
        )

    def judge(self, hello: wire.Hello, proof: Proof) -> wire.Refusal | None:
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
        if proof.kind is Kind.REPLICANT_ONLY and not permissions.may_begin(hello, proof):
            return wire.Refusal(
                WRONG_CERTIFICATE,
                f"the certificate of {proof.name!r} is for a replicant only: issue one without "
                f"--replicant-only (raftkv certs issue {proof.name} --force)",
            )
        if hello.raft_id == identity.raft_id:
            twin = None if self.twins is None else self.twins.own(hello)
            return twin or wire.Refusal("own_address", "the address leads back to the same node")
        if hello.wanted not in ("", identity.name):
            return wire.Refusal(
                "other_node", f"{hello.wanted!r} is not here (any more): this is {identity.name!r}"
            )
        if hello.cluster_id and identity.cluster_id:
            refusal = self._judge_epoch(hello, proof)
            if refusal is not None:
                return refusal
        engine = self.engine
        if engine is not None and hello.raft_id in engine.configurations.at(engine.commit).removed:
            return _removed()
        return self._judge_format(hello) or self._judge_purpose(hello, proof)

    def _judge_format(self, hello: wire.Hello) -> wire.Refusal | None:
        """A node that does not know an active format cannot apply what this cluster decides.

        What a node leaves out of its handshake is unknown, and no reason to refuse it.
        """
        active = self.active()
        known = {CORE: 1, **dict(() if hello.about is None else hello.about.formats)}
        for name in sorted(known):
            if known[name] < active.get(name, 0):
                return wire.Refusal(
                    _OLD_SOFTWARE,
                    f"the cluster runs format {active[name]} of {name!r}, and "
                    f"{name_of(hello.raft_id)!r} knows {known[name]} at most: upgrade raftkv there",
                )
        return None

    def _judge_purpose(self, hello: wire.Hello, proof: Proof) -> wire.Refusal | None:
        name = name_of(hello.raft_id)
        known = None if self.engine is None else self.engine.configuration.raft_id_of(name)
        # A member by its own log is none that was wiped: then this node's log lags.
        if hello.purpose == "raft" and not hello.member and known not in (None, hello.raft_id):
            return wire.Refusal(
                WipedNode.code,
                f"the cluster knows {name!r} under another data directory ({known}); a node "
                f"whose directory was lost must not come back as its old self. Remove the "
                f"old member, then add this node",
            )
        if not permissions.may_begin(hello, proof):
            return wire.Refusal(
                "wrong_purpose", f"a {hello.role} is at no such end of a {hello.purpose!r} link"
            )
        identity = self._directory.identity
        if hello.purpose == "follow" and identity.role == "core" and not identity.cluster_id:
            # What it would copy is of no cluster yet, and it would not learn of which one later.
            return wire.Refusal(_UNFOUNDED, "this core does not belong to a cluster yet")
        if hello.purpose not in self._ups:
            return wire.Refusal("wrong_purpose", f"no {hello.purpose!r} links are accepted here")
        if hello.purpose == "follow" and proof.dialled is None:
            return self.judge_follower(hello)
        if hello.purpose == "raft" and self.twins is not None:
            twin = self.twins.judge(hello)
            if twin is not None:
                return twin
        return bootstrap.judge(hello, self.about, identity.cluster_id, self._config.cores)

    def _judge_epoch(self, hello: wire.Hello, proof: Proof) -> wire.Refusal | None:
        """Only nodes of one history may exchange anything; see the module's text."""
        identity, name = self._directory.identity, name_of(hello.raft_id)
        match standing(identity.epoch, hello.epoch):
            case Standing.RIVAL:
                return wire.Refusal(
                    WrongCluster.code,
                    f"the cluster was recovered by force twice, from different data directories "
                    f"(epochs {identity.epoch} and {hello.epoch}): only one of the two can go on",
                )
            case Standing.OUTDATED:
                if hello.role == "replicant" and hello.purpose == "follow":
                    return None  # the answer tells it, and it begins anew
                return wire.Refusal(OutdatedData.code, _outdated(name, hello.epoch, identity.epoch))
            case Standing.NEWER:
                if not self.credibility.believes(name, proof):
                    return self.credibility.unproved(hello, identity.epoch, proof)
                if identity.role == "replicant":
                    if not self.on_newer_epoch(hello.epoch):
                        return wire.Refusal(_UNFOUNDED, "the newer epoch cannot be stored yet")
                    return None
                text = _outdated(identity.name, identity.epoch, hello.epoch)
                self._faulted(OutdatedData(f"{text} ({name} at {hello.peer_address} says so)"))
                return wire.Refusal(OutdatedData.code, text)
            case Standing.SAME:
                return None

    def refused(self, refusal: wire.Refusal, address: str, proof: Proof) -> None:
        if refusal.code in (_UNFOUNDED, UNPROVED, UNKNOWN):
            return  # it dials again
        if refusal.code == IN_USE and self.twins is not None:
            self.twins.told(refusal.reason, address)
        text = f"the node at {address} refuses this one: {refusal.reason}"
        believed = refusal.code not in _STOPPING or self.credibility.believes(
            proof.name or proof.wanted, proof
        )
        # It is dialled again and again.
        if self._repeats.left_out(address, refusal.reason) is not None:
            log.warning("%s%s", text, "" if believed else " (no core of the cluster, by its proof)")
        if not believed:
            return
        if refusal.code == RemovedNode.code:
            self._faulted(
                RemovedNode(
                    f"{text}. Its data directory is of no use any more; to take part again, start "
                    f"it with an empty one and add it"
                )
            )
        if refusal.code == OutdatedData.code and self._directory.identity.role == "core":
            self._faulted(OutdatedData(text))
        if self.settled or (refusal.code == WipedNode.code and self.on_wiped(text)):
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
        if link.purpose == "raft":
            self.refused(message, link.peer.peer_address, link.proof)
        link.close()

    def link_up(self, link: Link) -> None:
        assert link.peer is not None
        link.receive = self.receive
        dialled = link.dialled is not None
        link.permitted = permissions.messages_at(link.purpose, dialled=dialled)
        self.addresses.greeted(link.peer_name, link.peer.peer_address)
        self._joining.met(link.peer, link.proof)
        self._ups[link.purpose](link)
        if link.purpose == "raft":
            if self.twins is not None:
                self.twins.link_up(link.peer)
            self._spread(link)
            self._try_founding()

    def link_down(self, link: Link) -> None:
        if link.purpose == "raft" and self.twins is not None:
            self.twins.link_down(link.peer)
        self._downs[link.purpose](link)

    # -- founding

    def on_founded(self, link: Link, message: wire.Founded) -> None:
        if link.purpose != "raft":
            raise wire.ProtocolError(f"Founded on a {link.purpose} link")
        self._joining.on_founded(link, message)

    def try_founding(self) -> None:
        """At the start: a cluster of one core needs nobody else."""
        self._try_founding()

    def _try_founding(self) -> None:
        engine, names = self.engine, sorted(self._config.cores)
        if engine is None or self._config.name != names[0] or engine.wal.last_index > 1:
            return
        if engine.wal.base_index > 1 or engine.stopped or self._directory.rejoins:
            return
        if not all(self.linked(name) for name in names[1:]):
            return
        counted = [self._dial_back.counted(name) for name in names[1:]]
        others = [hello for hello in counted if hello is not None]
        if len(others) != len(counted):
            return
        if any(hello.cluster_id for hello in others):
            # Their cluster exists; it will bring this node up to date, or refuse it as wiped.
            return
        self._found(engine, others)

    def _found(self, engine: Engine, others: list[wire.Hello]) -> None:
        belongs = self._directory.identity.cluster_id
        if not belongs and not self._joining.join(engine.runtime.token(8).hex()):
            return
        identity = self._directory.identity
        voters = sorted([identity.raft_id, *(hello.raft_id for hello in others)])
        log.info("%s founds the cluster %s", identity.name, identity.cluster_id)
        known = [hello.core_format for hello in others]
        own = 1 if self.about is None else self.about.core_format
        engine.found(
            Configuration(voters=tuple(voters)),
            wire.Founded(identity.cluster_id),
            min([own, *known]),
        )

    def close(self) -> None:
        self.hub.close()


def _addresses(links: list[Link]) -> wire.Addresses:
    peers = [link.peer for link in links if link.peer is not None]
    return wire.Addresses([(name_of(peer.raft_id), peer.peer_address) for peer in peers])


def _removed() -> wire.Refusal:
    return wire.Refusal(RemovedNode.code, "the cluster has removed this node")


def _outdated(name: str, old: Epoch, new: Epoch) -> str:
    return (
        f"the data of {name} are of epoch {old}, from before the cluster was recovered by force "
        f"(epoch {new}). What is only in them is given up: keep a copy of the directory if you "
        f"need to look, then start the node with an empty one and add it"
    )

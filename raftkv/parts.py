"""The two kinds of node: how a core and a replicant reach the log.

Both offer the same to the node: send commands towards the leader, ask it for a read index, say who
leads. A core does it through its engine and its raft links; a replicant through its upstream core,
which passes questions to the leader and never answers from its own belief (rule 17).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .config import NodeConfig
from .detector import FORMAT_PRESENCE, PERIOD_S, Detector
from .failure_detector import Verdict
from .leader_log import LeaderLog
from .link_renewal import LinkRenewal
from .namesakes import Namesakes
from .peering import Peering
from .permissions import Proposer
from .presence import Identity
from .proposals import Proposals
from .raft import wire
from .raft.engine import Engine
from .raft.membership import Configuration, name_of
from .raft.recovery import Recovered
from .raft.snapshotting import Snapshotting
from .raft.transport import Link
from .reading import Reader
from .rejecting import FORMAT_REJECTED, Reject, Rejecting
from .relaying import Relay
from .replica import Replica
from .replicant.follower import Follower
from .replicant.upstream import Feeds
from .runtime import Runtime, Timer
from .twins import Twins

__all__ = ["CorePart", "Part", "ReplicantPart"]

# Numbers of questions that a core passes on for its replicants start here; its own stay below.
_RELAY_START = 1 << 48
# Questions passed on and not answered yet; older ones have been asked anew by their replicants.
_RELAYED_MAX = 10_000
# A stopping node waits this long for the write under way.
_CLOSE_S = 5.0


class Part(Protocol):
    """What the node sees of its kind."""

    @property
    def role_name(self) -> str: ...

    @property
    def leader(self) -> str | None:
        """The leader's name, as far as this node knows."""

    @property
    def term(self) -> int: ...

    @property
    def commit(self) -> int: ...

    @property
    def leads(self) -> bool: ...

    @property
    def holds_lease(self) -> bool: ...

    def start(self) -> None: ...

    async def hand_over(self, timeout_s: float) -> None:
        """Before a clean stop: a leader passes its office on, so that nobody has to wait."""

    def stop(self) -> None: ...

    async def closed(self) -> None:
        """After `stop`: nothing uses the data directory any more (or the disk hangs)."""

    def office_changed(self) -> bool: ...

    def progressed(self) -> None: ...

    def send(self, commands: Sequence[bytes]) -> bool:
        """Hand encoded commands towards the leader. False: no way to it is known."""

    def ask(self, number: int) -> bool:
        """Ask the leader for a read index; the reader hears the answer."""

    async def stored(self, index: int) -> None:
        """Return when what was applied up to `index` is held as safely as this node can."""


class CorePart:
    """A core: a raft member that also feeds replicants."""

    def __init__(
        self,
        config: NodeConfig,
        runtime: Runtime,
        peering: Peering,
        recovered: Recovered,
        replica: Replica,
        reader: Reader,
        raft_id: str,
        cluster_id: str,
    ) -> None:
        self._peering = peering
        self._replica = replica
        self._reader = reader
        self._leader_log = LeaderLog(config.name, runtime.monotonic)
        self.proposals = Proposals(config.limits.command_bytes_max, runtime.monotonic)
        self._relayed: dict[int, tuple[Link, int]] = {}
        self._relay_number = _RELAY_START
        self._told: tuple[str | None, int] = (None, -1)
        self._handing_over: asyncio.Future[None] | None = None
        self._followed: Configuration | None = None
        self._committed: Configuration | None = None
        self.engine = Engine(
            me=raft_id,
            wal=recovered.wal,
            configurations=recovered.configurations,
            snapshots=Snapshotting(recovered.store, cluster_id),
            application=replica,
            runtime=runtime,
            times=config.raft,
            limits=config.limits,
            applied=recovered.applied,
        )
        peering.engine = self.engine
        self.feeds = Feeds(self.engine)
        namesakes = Namesakes(peering.hub, lambda: replica.machine.members, self.feeds.hello_of)
        peering.judge_follower, self.feeds.holder = namesakes.judge, namesakes.holder
        self.twins = peering.twins = Twins(
            peering.hub,
            lambda: peering.about,
            lambda: replica.machine.members,
            lambda: self.engine.configuration,
        )
        self.relay = Relay(replica.machine, runtime.monotonic, self._relay_on)
        self.rejecting = Rejecting(
            self.engine,
            replica.machine,
            lambda: (stream.link for stream in self.feeds.streams()),
        )
        self.engine.snapshotting.fed = self.feeds.in_transit
        self.detector = Detector(
            self.engine,
            lambda: replica.machine.members,
            self.feeds.streams,
            self._down,
            replica.machine.session_of,
        )
        self._renewal = LinkRenewal(self.engine, peering, self.detector.spoke)
        # Set by the node: it proposes the verdict, as long as the function given with it is true.
        self.on_down: Callable[[Verdict, Callable[[], bool]], None] = lambda verdict, valid: None
        self._route()

    def _route(self) -> None:
        peering, engine, feeds = self._peering, self.engine, self.feeds
        peering.purpose("raft", engine.link_up, engine.link_down)
        peering.purpose("follow", feeds.link_up, feeds.link_down)
        for kind in (
            wire.Append,
            wire.AppendReply,
            wire.Vote,
            wire.VoteReply,
            wire.SnapshotChunk,
            wire.SnapshotReply,
            wire.TimeoutNow,
        ):
            peering.route(kind, self._consensus)
        peering.route(wire.Founded, peering.on_founded)
        peering.route(wire.Addresses, peering.on_addresses)
        peering.route(wire.Refusal, peering.on_refusal)
        peering.route(wire.Propose, self._on_propose)
        peering.route(wire.Relayed, self._on_relayed)
        peering.route(wire.Rejected, self.rejecting.on_rejected)
        peering.route(wire.ReadRequest, self._on_read_request)
        peering.route(wire.ReadReply, self._on_read_reply)
        peering.route(wire.Liveness, self.detector.on_liveness)
        peering.route(wire.Presence, self.detector.on_presence)
        peering.route(wire.Follow, feeds.on_follow)
        peering.route(wire.Progressed, feeds.on_progressed)
        self._replica.on_reads = self._reads_answered

    def _consensus(self, link: Link, message: wire.Consensus) -> None:
        if link.purpose != "raft":
            raise wire.ProtocolError(f"{type(message).__name__} on a {link.purpose} link")
        self.engine.receive(link, message)

    @property
    def role_name(self) -> str:
        return self.engine.role_name

    @property
    def leader(self) -> str | None:
        return None if self.engine.leader is None else name_of(self.engine.leader)

    @property
    def term(self) -> int:
        return self.engine.term

    @property
    def commit(self) -> int:
        return self.engine.commit

    @property
    def leads(self) -> bool:
        """Leads, and has applied everything from before its term."""
        leading = self.engine.leading
        return leading is not None and self.engine.applied >= leading.first_index > 0

    def start(self) -> None:
        self.engine.start()
        self.detector.start()
        self._renewal.start()
        self._peering.dial_cores()
        self._peering.try_founding()

    @property
    def holds_lease(self) -> bool:
        return self.engine.holds_lease

    async def hand_over(self, timeout_s: float) -> None:
        if self.engine.hand_over():
            self._handing_over = self.engine.runtime.future()
            await asyncio.wait([self._handing_over], timeout=timeout_s)

    def stop(self) -> None:
        self.detector.stop()
        self._renewal.stop()
        self.feeds.stop()
        self.engine.stop()

    async def closed(self) -> None:
        if self.engine.closed is not None:
            await asyncio.wait([self.engine.closed], timeout=_CLOSE_S)
        await self.engine.snapshotting.ended(_CLOSE_S)

    def office_changed(self) -> bool:
        """Pass the news on. True if the way to the leader is another one now."""
        engine, handing_over = self.engine, self._handing_over
        if engine.configuration is not self._followed:
            self._followed = engine.configuration
            self._peering.follow_configuration(engine.configuration)
        awaits_heir = engine.leading is not None and engine.leading.handing_over
        if handing_over is not None and not awaits_heir and not handing_over.done():
            handing_over.set_result(None)
        if engine.leading is not None and self._told != (engine.me, engine.term):
            self._replica.elected(engine.wal)
        told = (engine.leader, engine.term)
        if told == self._told:
            return False
        self._told = told
        if not engine.stopped:
            leader = None if engine.leader is None else name_of(engine.leader)
            self._leader_log.changed(leader, engine.term, engine.leader_lost)
        self.feeds.office_changed()
        return True

    def progressed(self) -> None:
        self.feeds.progressed()
        self.relay.progressed()
        committed = self.engine.configurations.at(self.engine.commit)
        if committed is not self._committed:
            self._committed = committed
            self._peering.tell_removed(committed)

    def _down(self, verdict: Verdict, valid: Callable[[], bool]) -> None:
        self.on_down(verdict, valid)

    # -- commands and reads

    def _leader_link(self) -> Link | None:
        leader = self.engine.leader
        return None if leader is None else self.engine.links.get(leader)

    def send(self, commands: Sequence[bytes]) -> bool:
        if self.engine.leading is not None:
            return self._take(commands, self.rejecting.here)
        link = self._leader_link()
        if link is None:
            return False
        link.send(wire.Propose(list(commands)))
        return True

    def _take(self, commands: Sequence[bytes], reject: Reject, origin: str = "") -> bool:
        """On a leader; from this node, or from `origin`, by whose name the entries are shared.

        What `reject` gets counts as sent: its origin learns that it was left out.

        So it gets nothing if this returns False: no copy has left then, and of the copies that have
        none was left out.
        """
        left_out: list[tuple[bytes, str, str]] = []
        kept = self.rejecting.with_room(commands, lambda *each: left_out.append(each))
        taken = (not kept and bool(commands)) or self.engine.propose(kept, origin)
        if taken:
            for each in left_out:
                reject(*each)
        return taken

    def ask(self, number: int) -> bool:
        if self.engine.read_index((None, number)):
            return True
        link = self._leader_link()
        if link is None:
            return False
        link.send(wire.ReadRequest(number))
        return True

    async def stored(self, index: int) -> None:
        await self.engine.stored(index)

    def _on_propose(self, link: Link, message: wire.Propose) -> None:
        """From a replicant it is passed on; from a core only a leader takes it, or two cores that
        each believe in the other would play ball with it. What is dropped is sent again.

        What a replicant sends is checked where its stream ends, and a leader checks all that it did
        not encode itself. A bad command is never held against the node that passed it on.
        """
        leads = self.engine.leading is not None
        if leads or link.purpose == "follow":
            reject = self.rejecting.by(link)
            commands = self.proposals.fit(link.peer_name, message.commands, reject)
            if link.purpose == "follow":
                proposer = Proposer(link.peer_name, link.peer_id, link.proof.kind)
                commands = self.relay.admit(proposer, commands, reject)
            if leads:
                self._take(commands, reject, link.peer_name)
            elif commands:
                self._relay_on(link.peer_name, commands)

    def _on_relayed(self, link: Link, message: wire.Relayed) -> None:
        """As `_on_propose` from a core, for commands of a replicant behind it."""
        if self.engine.leading is not None:
            reject = self.rejecting.by(link, message.origin)
            commands = self.proposals.fit(link.peer_name, message.commands, reject)
            self._take(commands, reject, message.origin or link.peer_name)

    def _relay_on(self, origin: str, commands: Sequence[bytes]) -> None:
        """What a replicant that copies from here may propose goes on to the leader, if it can."""
        if self.engine.leading is not None:
            self._take(commands, self.rejecting.to(origin), origin)
            return
        link = self._leader_link()
        if link is None:
            return
        known = self._replica.core_format >= FORMAT_REJECTED
        link.send(wire.Relayed(list(commands), origin) if known else wire.Propose(list(commands)))

    def _on_read_request(self, link: Link, message: wire.ReadRequest) -> None:
        if self.engine.read_index((link, message.number)):
            return
        leader = self._leader_link() if link.purpose == "follow" else None
        if leader is None:
            link.send(wire.ReadReply(message.number, 0))
            return
        self._relay_number += 1
        self._relayed[self._relay_number] = (link, message.number)
        if len(self._relayed) > _RELAYED_MAX:
            del self._relayed[next(iter(self._relayed))]
        leader.send(wire.ReadRequest(self._relay_number))

    def _on_read_reply(self, link: Link, message: wire.ReadReply) -> None:
        if link is not self._leader_link():
            return  # no leader any more, or never one: the question is asked again
        if message.number < _RELAY_START:
            self._reader.answered(message.number, message.index)
            return
        asked = self._relayed.pop(message.number, None)
        if asked is not None:
            asked[0].send(wire.ReadReply(asked[1], message.index))

    def _reads_answered(self, tokens: Sequence[Any], index: int) -> None:
        for link, number in tokens:
            if link is None:
                self._reader.answered(number, index)
            else:
                link.send(wire.ReadReply(number, index))


class ReplicantPart:
    """A replicant: follows one core, proposes and asks through it."""

    def __init__(
        self,
        config: NodeConfig,
        runtime: Runtime,
        peering: Peering,
        replica: Replica,
        reader: Reader,
    ) -> None:
        self._reader = reader
        self._told: tuple[str | None, str | None, int] = (None, None, 0)
        self.follower = Follower(
            config, peering.hub, runtime, replica, lambda: peering.addresses.cores(config.name)
        )
        self._runtime, self._replica = runtime, replica
        # Set by the node: what it is now.
        self.identity: Callable[[], Identity] = lambda: (0, 0)
        # Set by the node: a command of its own was left out.
        self.on_rejected: Callable[[wire.Rejected], None] = lambda rejected: None
        self._timer: Timer | None = None
        follower = self.follower
        peering.purpose("follow", follower.link_up, follower.link_down)
        peering.route(wire.Feed, follower.on_feed)
        peering.route(wire.FeedSnapshot, follower.on_snapshot)
        peering.route(wire.FeedConfiguration, follower.on_configuration)
        peering.route(wire.LeaderChanged, follower.on_leader_changed)
        peering.route(wire.Refusal, follower.on_refusal)
        peering.route(wire.ReadReply, self._on_read_reply)
        peering.route(wire.Rejected, self._on_rejected)

    @property
    def role_name(self) -> str:
        return "replicant"

    @property
    def leader(self) -> str | None:
        return self.follower.leader

    @property
    def term(self) -> int:
        return self.follower.term

    @property
    def commit(self) -> int:
        return self.follower.upstream_commit

    @property
    def leads(self) -> bool:
        return False

    def start(self) -> None:
        self.follower.start()
        self._be_present()

    def _be_present(self) -> None:
        """Once in a period, on the stream to the upstream core; from core format 2."""
        self._timer = self._runtime.call_later(PERIOD_S, self._be_present)
        link = self.follower.link
        if link is not None and self._replica.core_format >= FORMAT_PRESENCE:
            link.send(wire.Presence(*self.identity()))

    @property
    def holds_lease(self) -> bool:
        return False

    async def hand_over(self, timeout_s: float) -> None:
        """A replicant holds no office."""

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.follower.stop()

    def leave(self) -> None:
        """The node has become a core: follow nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
        self.follower.leave()

    async def closed(self) -> None:
        """Nothing of it is on disk."""

    def office_changed(self) -> bool:
        follower = self.follower
        told = (follower.upstream, follower.leader, follower.term)
        if told == self._told:
            return False
        self._told = told
        return True

    def progressed(self) -> None:
        """Nobody copies from a replicant."""

    def send(self, commands: Sequence[bytes]) -> bool:
        link = self.follower.link
        if link is None or self.follower.leader is None:
            return False
        link.send(wire.Propose(list(commands)))
        return True

    def ask(self, number: int) -> bool:
        link = self.follower.link
        if link is None:
            return False
        link.send(wire.ReadRequest(number))
        return True

    async def stored(self, index: int) -> None:
        """At once: a replicant holds what it has in its memory."""

    def _on_rejected(self, link: Link, message: wire.Rejected) -> None:
        if link is self.follower.link:
            self.on_rejected(message)

    def _on_read_reply(self, link: Link, message: wire.ReadReply) -> None:
        if link is self.follower.link:
            self._reader.answered(message.number, message.index)

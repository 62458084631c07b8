"""One change of the members on its way, carried out by the leader.

Rules of this file. Every verb looks at the configuration of the moment and does what is left to do,
so it may be repeated after any failure. Between a decision and the entry that carries it nothing
waits: a configuration is always made from the one in force. What it waits for (a copy that catches
up, an entry that commits) it waits for as long as the caller does. A verb is done when the
configuration that it asks for is committed, whether this call appended it or an earlier one; until
then it is pending, because another leader may roll it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from .dialback import same_process
from .errors import ChangePending, MembershipRefused, OutcomeUnknown, RaftkvError
from .joining import AGAIN_S, ANSWER_S, handshake_at
from .parts import CorePart
from .promotion import FORMAT_NEEDED, TOO_OLD, NotYet
from .raft.changing import add_learner, check_majority, promote, remove
from .raft.membership import Configuration, name_of
from .raft.transport import Link
from .security.proof import Kind

if TYPE_CHECKING:
    from .node import Node

__all__ = ["MemberChange", "Request"]

# How long a core that is to be added may take to connect: the leader does not know it, so it waits
# to be dialled (peering.LESSER_PATIENCE_S), and the node may have been started a moment ago, on a
# machine that has other things to do.
CONNECT_WAIT_S = 10.0
# How long voters that are not heard, or are behind, at this moment may take before a change is
# refused for want of them: one that has just started, or was held up, answers the next heartbeat.
HEARD_WAIT_S = 2.0
# How often the progress of a change is looked at.
LOOK_S = 0.01
# A forced removal waits no longer than that for the state to know of it.
FORCED_WAIT_S = 0.1

Change = Callable[[Configuration], Configuration]

# What a verb changes, for its messages.
_NOUNS = {"add": "promotion", "promote": "promotion", "remove": "removal"}


class Request(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`timeout_s` is the caller's patience; `address`, where a new core listens."""

    verb: Literal["add", "promote", "remove"]
    name: str
    force: bool
    timeout_s: float
    address: str | None = None


class MemberChange:
    """One change on its way, on the leader. False everywhere: the leadership is lost.

    `begun`: the configuration that was asked for is in the log, so it may yet be committed.
    """

    def __init__(self, node: Node, part: CorePart, request: Request, deadline: float) -> None:
        self._node = node
        self._engine = part.engine
        self._part = part
        self._verb = request.verb
        self._name = request.name
        self._force = request.force
        self._address = request.address
        self.begun = False
        self._deadline = deadline

    @property
    def _known(self) -> str | None:
        return self._engine.configuration.raft_id_of(self._name)

    @property
    def _left_s(self) -> float:
        return self._deadline - self._node.runtime.monotonic()

    async def carry_out(self) -> bool:
        """Do what the verb asks for. Raises MembershipRefused or ChangePending."""
        if self._verb == "add":
            return await self._add()
        return await (self._promote() if self._verb == "promote" else self._remove())

    async def _add(self) -> bool:
        if self._known is None:
            if self._replicant() is not None:
                raise MembershipRefused(
                    f"{self._name} is a replicant: promote it, or start it as a core with an empty "
                    f"data directory"
                )
            raft_id = await self._connected()
            if raft_id is None or not await self._append(lambda now: self._admit(now, raft_id)):
                return False
        else:
            await self._check_identity(self._known)
        return await self._promote()

    def _admit(self, now: Configuration, raft_id: str) -> Configuration:
        """Add the new core as a learner, if it can apply what is in the log already.

        Its handshake was judged by what was applied then. A raise of the core format may have
        come into the log since; those who ask about the next raise find the new core as a member.
        """
        if raft_id in now.members:
            return now
        link, ahead = self._engine.links.get(raft_id), self._engine.core_format_ahead()
        peer = None if link is None else link.peer
        # Without a link nothing more is known than that its handshake passed.
        known = self._engine.application.core_format if peer is None else peer.core_format
        if known < ahead:
            lacks = (
                "is not connected any more: wait until it is, then add it again"
                if peer is None
                else f"knows {known} at most: upgrade raftkv there, then add it"
            )
            raise MembershipRefused(
                f"the cluster is being raised to core format {ahead}, and {self._name} {lacks}"
            )
        return add_learner(now, raft_id)

    async def _check_identity(self, known: str) -> None:
        """The name is a member's: refuse if the node that is to be added is not that member.

        One that does not answer may be it: an addition may be repeated while its core is down.
        """
        engine, peering = self._engine, self._node._peering
        if self._address is not None:
            addresses = [self._address]
        elif known == engine.me or known in engine.links:
            return
        else:
            addresses = peering.addresses.of(self._name)
        for address in addresses:
            patience = max(0.0, min(ANSWER_S, self._left_s))
            answer = await handshake_at(peering.hub, address, self._name, patience)
            if answer is not None and answer.raft_id != known == self._known:
                raise MembershipRefused(
                    f"{self._name} is a member under another data directory ({known}) than that of "
                    f"the node at {address} ({answer.raft_id}): remove {self._name} first, then "
                    f"add it again; or give the node there another name"
                )

    async def _promote(self) -> bool:
        replicant = self._replicant()
        if replicant is not None and replicant not in self._engine.links:
            # Before anything is changed. One with a link is a core, and the log does not know yet.
            self._check_format()
        if self._known is None and replicant is not None:
            copy = replicant
            # First a copy: a crash leaves a replicant that the leader does not reach, no core that
            # nobody speaks to.
            if not await self._append(
                lambda now: now if copy in now.members else add_learner(now, copy)
            ):
                return False
        known = self._known
        if known is not None and replicant is not None and replicant != known:
            raise MembershipRefused(
                f"{self._name} is a member under another data directory ({known}): remove it "
                f"first, then promote the replicant"
            )
        if known is None:
            raise MembershipRefused(
                f"{self._name} is no core of this cluster, and no replicant of that name is up: "
                f"start it first; a new core is added"
            )
        if known in self._engine.configuration.voters:
            return await self._committed()
        if replicant == known and not (
            # The replicant begins from the log, and takes from it what is committed.
            await self._committed() and await self._become_core(known)
        ):
            return False
        if not await self._caught_up(known):
            return False
        return await self._append(lambda now: now if known in now.voters else promote(now, known))

    async def _remove(self) -> bool:
        engine, known = self._engine, self._known
        if known is None:
            if self._replicant() is not None:
                raise MembershipRefused(
                    f"{self._name} is a replicant and takes no part in consensus: just stop it"
                )
            removed = map(name_of, engine.configuration.removed)
            if self._name not in removed and self._name not in self._node.machine.members:
                raise MembershipRefused(
                    f"{self._name} is no member of this cluster: the cores are "
                    f"{', '.join(sorted(map(name_of, engine.configuration.members)))}"
                )
            return await self._committed()  # asked twice
        if known == engine.me and len(engine.configuration.voters) > 1:
            if not await self._heard(lambda: self._check_succession(known)):
                return False
            await self._part.hand_over(engine.times.election_timeout_min_ms / 1000)
            return False
        if known not in engine.configuration.voters:
            if not await self._append(lambda now: _without_copy(now, known), force=self._force):
                return False
            if known not in engine.configuration.voters:
                return True
            # It was promoted while this waited.
        remove(engine.configuration, known)  # raises for the last voter, forced or not
        if self._force:
            return await self._force_out(known)
        if not await self._heard(lambda: self._check_majority(known)):
            return False
        return await self._remove_voter(known)

    async def _remove_voter(self, known: str) -> bool:
        engine, voters = self._engine, self._node.voters
        async with voters.lock:
            term = engine.term
            try:
                try:
                    await voters.strike_off(known, max(0.0, self._left_s))
                except OutcomeUnknown:
                    raise MembershipRefused(
                        f"that {self._name} is to go was not confirmed in time, so it still "
                        f"votes: repeat it"
                    ) from None
                return await self._append(lambda now: _without(now, known), term=term)
            finally:
                voters.look()

    async def _force_out(self, known: str) -> bool:
        """What is forced may be what lets anything be committed again: it waits for nobody."""
        voters, term = self._node.voters, self._engine.term
        with voters.suspended():
            await voters.try_strike_off(known, FORCED_WAIT_S)
            return await self._append(lambda now: _without(now, known), force=True, term=term)

    async def _heard(self, check: Callable[[], None]) -> bool:
        """Wait until `check` has nothing against it; what it says after HEARD_WAIT_S stands."""
        runtime = self._node.runtime
        patience = runtime.monotonic() + min(self._left_s, HEARD_WAIT_S)
        while self._engine.leading is not None:
            try:
                check()
                return True
            except MembershipRefused:
                if runtime.monotonic() >= patience:
                    raise
            await runtime.sleep(LOOK_S)
        return False

    def _heard_and_able(self) -> tuple[list[str], list[str]]:
        """The members that were heard lately, and those of them that hold the log."""
        leading, now = self._engine.leading, self._node.runtime.monotonic()
        return ([], []) if leading is None else (leading.alive(now), leading.able(now))

    def _check_majority(self, known: str) -> None:
        """Without that voter, which may have gone meanwhile, the rest must be able to go on."""
        check_majority(_without(self._engine.configuration, known), *self._heard_and_able())

    def _check_succession(self, known: str) -> None:
        """This node leads and is to go: another voter must be able to take over."""
        proposed = _without(self._engine.configuration, known)
        alive, able = self._heard_and_able()
        if not frozenset(alive).intersection(proposed.voters):
            raise MembershipRefused(
                f"{self._name} leads and no other voter can be heard, so nobody could take over: "
                f"start another one, or remove the dead ones first"
            )
        if not self._force:
            check_majority(proposed, alive, able)

    def _check_format(self) -> None:
        if self._engine.application.core_format < FORMAT_NEEDED:
            raise MembershipRefused(f"{self._name} cannot be promoted: {TOO_OLD}")

    def _replicant(self) -> str | None:
        """The raft id of the replicant of this name, if one is up."""
        member = self._node.machine.members.get(self._name)
        if member is None or member.role != "replicant" or not member.up:
            return None
        return member.raft_id

    async def _connected(self) -> str | None:
        """The raft id of a new core, once there is a link to it. None: the leadership is lost.

        Without certificates a link proves nothing (dialback.py). With an address only the process
        that answers there counts.
        """
        peering, runtime = self._node._peering, self._node.runtime
        if self._address is not None:
            peering.addresses.greeted(self._name, self._address)
            peering.dial(self._name)
        patience = runtime.monotonic() + min(self._left_s, CONNECT_WAIT_S)
        while self._part.leads:
            claimed = bool(self._claims)
            raft_id = await self._claimant()
            if raft_id is not None:
                return raft_id
            if runtime.monotonic() >= patience:
                peering.forget(self._name)
                raise MembershipRefused(self._unconnected(claimed))
            await runtime.sleep(AGAIN_S if claimed else LOOK_S)
        return None

    @property
    def _claims(self) -> list[Link]:
        """The links whose other end claims to be the new core.

        That of a removed one may still stand: no packet tells that its machine is gone.
        """
        links, removed = self._engine.links.items(), self._engine.configuration.removed
        return [
            link
            for raft_id, link in links
            if name_of(raft_id) == self._name and raft_id not in removed
        ]

    async def _claimant(self) -> str | None:
        """The raft id of the new core, if one of the links is its own."""
        address, name = self._address, self._name
        for link in self._claims:
            proof = link.proof
            dialled = proof.dialled == address and proof.wanted == name
            if address is None or proof.kind is not Kind.NONE or dialled:
                return link.peer_id
        if address is None or not self._claims:
            return None
        answer = await handshake_at(self._node._peering.hub, address, name, ANSWER_S)
        for link in self._claims:
            if answer is not None and link.peer is not None and same_process(link.peer, answer):
                return link.peer_id
        return None

    def _unconnected(self, claimed: bool) -> str:
        """Why a core cannot be added. `claimed`: something came under its name."""
        if claimed:
            return (
                f"a node that claims to be {self._name!r} is connected to the leader "
                f"({self._node.name}), and is not the one at {self._address}: name the address at "
                f"which the leader reaches it, and let no other node use the name"
            )
        return (
            f"no core called {self._name!r} is connected to the leader "
            f"({self._node.name}): start it with an empty data directory and with the "
            f"running cores under [cores], or say at which address it listens"
        )

    async def _become_core(self, raft_id: str) -> bool:
        """Let a replicant that is a copy by the log become one in fact."""
        node, engine = self._node, self._engine
        told: NotYet | None = None
        while self._part.leads and raft_id not in engine.links:
            since = engine.configurations.member_since(raft_id, engine.commit)
            if since is None:
                raise MembershipRefused(f"{self._name} was removed meanwhile: promote it again")
            try:
                await node.promotion.ask(self._name, raft_id, since, max(0.1, self._left_s))
                return True
            except MembershipRefused:
                raise
            except RaftkvError as error:
                if isinstance(error, NotYet):
                    told = error  # a better reason than the time-out of the last question
                if self._left_s <= 0:
                    what = "does not answer" if told is None else "is not ready"
                    raise MembershipRefused(
                        f"{self._name} {what} ({told or error}): start it, then promote it "
                        f"again, or remove it"
                    ) from None
                await node.runtime.sleep(LOOK_S)
        return self._part.leads

    async def _caught_up(self, raft_id: str) -> bool:
        engine = self._engine
        while engine.leading is not None:
            lag = engine.leading.lag().get(raft_id)
            linked = raft_id in engine.links
            if raft_id in engine.leading.able(self._node.runtime.monotonic()):
                return True
            if self._left_s <= 0:
                what = (
                    f"copies the log but has not caught up yet (it lacks {lag} entries): wait"
                    if linked
                    else "is a copy, but not connected to the leader: start it"
                )
                raise MembershipRefused(f"{self._name} {what}, then promote it")
            await self._node.runtime.sleep(LOOK_S)
        return False

    async def _append(
        self, change: Change, *, force: bool = False, term: int | None = None
    ) -> bool:
        """Append the changed configuration and wait until it is committed.

        A change that is under way, or the first entry of a new leader, is waited for. `change`
        sees the configuration of that moment; it may find that nothing is left to do. `term`: the
        leadership in which it was decided; this one if None. Raises ChangePending if it is in the
        log and not committed when the caller's time is up.
        """
        engine, runtime = self._engine, self._node.runtime
        term = engine.term if term is None else term
        while True:
            leading = engine.leading
            if leading is None or engine.term != term:
                return False
            settled = max(leading.first_index, engine.configurations.latest_index)
            if engine.commit >= settled or self._left_s <= 0:
                break
            await runtime.sleep(LOOK_S)
        if not await self._put_in_force(change, force=force, term=term):
            return False
        self.begun = True
        index = engine.configurations.latest_index
        # Nothing of an earlier term counts as committed before an entry of this one is.
        settled = max(leading.first_index, index)
        while engine.commit < settled:
            if engine.leading is not leading or engine.term != term:
                return False
            if self._left_s <= 0:
                raise self._pending(index, leading.holders(index))
            await runtime.sleep(LOOK_S)
        # What was committed up to there may be another leader's, who has cut the change off.
        return engine.leading is leading and engine.term == term

    async def _committed(self) -> bool:
        """Nothing is left to append: wait until the configuration in force is committed."""
        return await self._append(lambda now: now)

    async def _put_in_force(self, change: Change, *, force: bool, term: int) -> bool:
        """Append what `change` makes of the configuration in force, if that is another one."""
        engine, runtime = self._engine, self._node.runtime
        patience = runtime.monotonic() + min(self._left_s, HEARD_WAIT_S)
        while engine.leading is not None and engine.term == term:
            proposed = change(engine.configuration)
            if proposed == engine.configuration:
                return True
            try:
                engine.change_configuration(proposed, force=force)
                return True
            except MembershipRefused:
                if force or runtime.monotonic() >= patience:
                    raise
            await runtime.sleep(LOOK_S)
        return False

    def _pending(self, index: int, holders: list[str]) -> ChangePending:
        held = ", ".join(name_of(voter) for voter in holders) or "none"
        voters = len(self._engine.configuration.voters)
        return ChangePending(
            f"the {_NOUNS[self._verb]} of {self._name} is entry {index} of the log of "
            f"{self._node.name} and is not committed (of the {voters} voters after it these hold "
            f"it: {held}). It may still be rolled back, so neither switch off nor wipe a node "
            f"because of it; repeat it until it is done"
        )


def _without(configuration: Configuration, raft_id: str) -> Configuration:
    return remove(configuration, raft_id) if raft_id in configuration.members else configuration


def _without_copy(configuration: Configuration, raft_id: str) -> Configuration:
    return remove(configuration, raft_id) if raft_id in configuration.learners else configuration

"""Changing the cores of a running cluster: `node.membership`.

    await node.membership.add("core4")       # started with an empty directory, connected
    await node.membership.remove("core2")
    for core in node.membership.list(): ...

It works on every node; the leader carries it out and answers once the change is committed. A new
core becomes a copy first and votes once it has caught up. A leader that is to be removed hands its
office over, and the next one removes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from .errors import MembershipRefused, NoLeader, NotApplied, PeerUnreachable, RemoteFailed, Timeout
from .parts import CorePart
from .raft.changing import add_learner, promote, remove
from .raft.membership import Configuration, name_of

if TYPE_CHECKING:
    from .node import Node

__all__ = ["CoreMember", "Membership"]

METHOD = "core.change_members"
# A copy may be promoted when it lacks no more than this many entries: a fraction of a second.
CAUGHT_UP_ENTRIES = 256
# How often the progress of a change is looked at.
_LOOK_S = 0.01


class CoreMember(msgspec.Struct, frozen=True):
    """A member of the raft configuration."""

    name: str
    raft_id: str
    votes: bool


class _Request(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    verb: Literal["add", "promote", "remove"]
    name: str
    force: bool
    timeout_s: float


class _Answer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`refused` is empty when it was done; `elsewhere`: this node does not lead (any more)."""

    refused: str = ""
    elsewhere: bool = False


class Membership:
    """The verbs of one node; see the module's text."""

    def __init__(self, node: Node) -> None:
        self._node = node
        node.rpc.register(METHOD, self._on_request)

    def list(self) -> list[CoreMember]:
        """The cores, as this node's log says; on a replicant, as the members table says."""
        part = self._node._part
        if isinstance(part, CorePart):
            configuration = part.engine.configuration
            return [
                CoreMember(name_of(raft_id), raft_id, raft_id in configuration.voters)
                for raft_id in configuration.members
            ]
        return [
            CoreMember(member.name, member.raft_id, True)
            for member in self._node.machine.members.values()
            if member.role == "core" and member.up
        ]

    async def add(self, name: str, *, timeout_s: float = 60.0) -> None:
        """Make a started core with an empty directory a copy, then a voter once it has caught up.

        Raises MembershipRefused saying what to do, NoLeader, or Timeout when it is not known how
        far it came. It may be called again: what was done stays done.
        """
        await self._ask(_Request("add", name, False, timeout_s))

    async def promote(self, name: str, *, timeout_s: float = 60.0) -> None:
        """Make a copy a voter once it has caught up."""
        await self._ask(_Request("promote", name, False, timeout_s))

    async def remove(self, name: str, *, force: bool = False, timeout_s: float = 60.0) -> None:
        """Take a core out. `force` even if too few of the rest can be heard."""
        await self._ask(_Request("remove", name, force, timeout_s))

    async def _ask(self, request: _Request) -> None:
        node = self._node
        deadline = node.runtime.monotonic() + request.timeout_s
        on_its_way = False
        while True:
            left_s = deadline - node.runtime.monotonic()
            if left_s <= 0 and on_its_way:
                raise Timeout("the change was not confirmed in time; repeat it, or look at list()")
            if left_s <= 0:
                raise NoLeader("no leader has been found to carry out the change; repeat it")
            leader = node.leader
            if leader is not None:
                payload = msgspec.msgpack.encode(request)
                try:
                    answer = msgspec.msgpack.decode(
                        await node.rpc.call(leader, METHOD, payload, left_s), type=_Answer
                    )
                    if answer.refused:
                        raise MembershipRefused(answer.refused)
                    if not answer.elsewhere:
                        return
                except (PeerUnreachable, RemoteFailed):
                    pass  # it has just gone; the next leader is asked
                except Timeout:
                    on_its_way = True  # every verb may be repeated: ask again
            await node.runtime.sleep(_LOOK_S)

    # -- on the leader

    async def _on_request(self, sender: str, payload: bytes) -> bytes:
        request = msgspec.msgpack.decode(payload, type=_Request)
        try:
            done = await self._carry_out(request)
            return msgspec.msgpack.encode(_Answer(elsewhere=not done))
        except NotApplied as error:
            return msgspec.msgpack.encode(_Answer(refused=str(error)))

    async def _carry_out(self, request: _Request) -> bool:
        """False if this node does not lead, or lost its office meanwhile."""
        part = self._node._part
        if not isinstance(part, CorePart) or not part.leads:
            return False
        engine = part.engine
        known = engine.configuration.raft_id_of(request.name)
        if request.verb == "remove":
            if known is None:
                return True  # asked twice
            if known == engine.me and len(engine.configuration.voters) > 1:
                await part.hand_over(engine.times.election_timeout_min_ms / 1000)
                return False
            return await self._append(
                part, remove(engine.configuration, known), force=request.force
            )
        if request.verb == "add" and known is None:
            raft_id = self._connected(part, request.name)
            if not await self._append(part, add_learner(engine.configuration, raft_id)):
                return False
            known = raft_id
        if known is None:
            raise MembershipRefused(f"{request.name} is no core of this cluster")
        if known in engine.configuration.voters:
            return True
        if not await self._caught_up(part, known, request.timeout_s):
            return False
        return await self._append(part, promote(engine.configuration, known))

    def _connected(self, part: CorePart, name: str) -> str:
        for raft_id in part.engine.links:
            if name_of(raft_id) == name:
                return raft_id
        raise MembershipRefused(
            f"no core called {name!r} is connected to the leader: start it with an empty data "
            f"directory and with the running cores under [cores], then add it"
        )

    async def _append(
        self, part: CorePart, proposed: Configuration, *, force: bool = False
    ) -> bool:
        """Append the configuration and wait until it is committed. False: the office is lost."""
        engine = part.engine
        term = engine.term
        index = engine.change_configuration(proposed, force=force)
        while engine.leading is not None and engine.term == term:
            if engine.commit >= index:
                return True
            await self._node.runtime.sleep(_LOOK_S)
        return False

    async def _caught_up(self, part: CorePart, raft_id: str, timeout_s: float) -> bool:
        engine, runtime = part.engine, self._node.runtime
        deadline = runtime.monotonic() + timeout_s
        while engine.leading is not None:
            lag = engine.leading.lag().get(raft_id)
            if lag is not None and lag <= CAUGHT_UP_ENTRIES and raft_id in engine.links:
                return True
            if runtime.monotonic() > deadline:
                raise MembershipRefused(
                    f"{name_of(raft_id)} copies the log but has not caught up yet (it lacks {lag} "
                    f"entries): wait, then promote it"
                )
            await runtime.sleep(_LOOK_S)
        return False

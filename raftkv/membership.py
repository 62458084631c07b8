"""Changing the cores of a running cluster: `node.membership`.

    await node.membership.add("core4")       # started with an empty directory
    await node.membership.remove("core2")
    await node.membership.promote("replicant1")
    for core in node.membership.list(): ...

It works on every node; the leader carries it out and answers once the change is committed. Every
verb may be repeated: what was done stays done. A new core becomes a copy first and votes once it
has caught up. A leader that is to be removed hands its office over, and the next one removes it.

Refused unless forced: what would leave the voters without a majority that can be heard. Refused
always: removing the last voter, adding a node that nobody can hear, removing a leader whom nobody
can succeed.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Literal

import msgspec

from .errors import (
    MembershipRefused,
    NoLeader,
    NotApplied,
    PeerUnreachable,
    RemoteFailed,
    RemovedNode,
    Timeout,
)
from .member_changes import LOOK_S, MemberChange, Request
from .parts import CorePart
from .raft.membership import name_of

if TYPE_CHECKING:
    from .node import Node

__all__ = ["CoreMember", "Listing", "MemberRow", "Membership"]

METHOD = "core.change_members"
METHOD_LIST = "core.list_members"
# The leader gives up at the deadline and says why; that must still arrive.
GRACE_S = 0.5
# How long the leader may take to tell what it knows, before this node answers for itself.
LIST_WAIT_S = 2.0


class CoreMember(msgspec.Struct, frozen=True):
    """A member of the raft configuration."""

    name: str
    raft_id: str
    votes: bool


class MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the cluster knows it.

    `standing`: a voter, a copy (a core that does not vote yet), a replicant, or a core that was
    removed. `match_index` is the last entry known to be on its disk and `lag_entries` how many
    it lacks: of cores, and known to the leader only.
    """

    name: str
    standing: Literal["voter", "copy", "replicant", "removed"]
    leads: bool
    raft_id: str
    peer_address: str | None
    http_address: str | None
    up: bool
    connected: bool | None
    incarnation: int | None
    match_index: int | None
    lag_entries: int | None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes; `told_by` is who says so: the leader, or, when none answers, this node."""

    leader: str | None
    told_by: str
    epoch: str
    members: builtins.list[MemberRow]


class _Answer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`refused` is empty when it was done; `elsewhere`: this node does not lead (any more)."""

    refused: str = ""
    elsewhere: bool = False


class Membership:
    """The verbs of one node; see the module's text."""

    def __init__(self, node: Node) -> None:
        self._node = node
        node.rpc.register(METHOD, self._on_request)
        node.rpc.register(METHOD_LIST, self._on_list)

    def list(self) -> builtins.list[CoreMember]:
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

    async def survey(self) -> Listing:
        """All nodes with what the leader knows of them; what this node knows if none answers."""
        node = self._node
        node._check_running()
        leader = node.leader
        if leader is not None and leader != node.name:
            try:
                payload = await node.rpc.call(leader, METHOD_LIST, b"", LIST_WAIT_S)
                return msgspec.msgpack.decode(payload, type=Listing)
            except (PeerUnreachable, RemoteFailed, Timeout):
                pass  # it has just gone: better an older answer than none
        return self._listing()

    async def add(self, name: str, *, address: str | None = None, timeout_s: float = 60.0) -> None:
        """Make a started core with an empty directory a copy, then a voter once it has caught up.

        `address` is where it listens, for a core that does not know where the leader is. Raises
        MembershipRefused saying what to do, NoLeader, or Timeout when it is not known how far it
        came. It may be called again: what was done stays done.
        """
        await self._ask(Request("add", name, False, timeout_s, address))

    async def promote(self, name: str, *, timeout_s: float = 60.0) -> None:
        """Make a copy a voter once it has caught up; a replicant becomes a copy first.

        Raises as `add` does.
        """
        await self._ask(Request("promote", name, False, timeout_s))

    async def remove(self, name: str, *, force: bool = False, timeout_s: float = 60.0) -> None:
        """Take a core out. `force` even if too few of the rest can be heard. Raises as `add`."""
        await self._ask(Request("remove", name, force, timeout_s))

    async def _ask(self, request: Request) -> None:
        node = self._node
        deadline = node.runtime.monotonic() + request.timeout_s
        on_its_way = False
        while True:
            if self._was_itself_removed(request):
                return
            node._check_running()
            left_s = deadline - node.runtime.monotonic()
            if left_s <= 0 and on_its_way:
                raise Timeout("the change was not confirmed in time; repeat it, or look at list()")
            if left_s <= 0:
                raise NoLeader("no leader has been found to carry out the change; repeat it")
            leader = node.leader
            if leader is not None:
                left = msgspec.structs.replace(request, timeout_s=left_s)
                payload = msgspec.msgpack.encode(left)
                try:
                    answer = msgspec.msgpack.decode(
                        await node.rpc.call(leader, METHOD, payload, left_s + GRACE_S),
                        type=_Answer,
                    )
                    if answer.refused:
                        raise MembershipRefused(answer.refused)
                    if not answer.elsewhere:
                        return
                except (PeerUnreachable, RemoteFailed):
                    pass  # it has just gone; the next leader is asked
                except Timeout:
                    on_its_way = True  # every verb may be repeated: ask again
            await node.runtime.sleep(LOOK_S)

    def _was_itself_removed(self, request: Request) -> bool:
        """Whether the answer was that this very node has been told to go."""
        fault = self._node._fault
        done = fault.done() and not fault.cancelled() and isinstance(fault.result(), RemovedNode)
        return done and request.verb == "remove" and request.name == self._node.name

    # -- on the leader

    async def _on_list(self, sender: str, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(self._listing())

    async def _on_request(self, sender: str, payload: bytes) -> bytes:
        request = msgspec.msgpack.decode(payload, type=Request)
        try:
            done = await self._carry_out(request)
            return msgspec.msgpack.encode(_Answer(elsewhere=not done))
        except NotApplied as error:
            return msgspec.msgpack.encode(_Answer(refused=str(error)))

    async def _carry_out(self, request: Request) -> bool:
        """False if this node does not lead, or lost its office meanwhile."""
        part = self._node._part
        if not isinstance(part, CorePart) or not part.leads:
            return False
        deadline = self._node.runtime.monotonic() + request.timeout_s
        return await MemberChange(self._node, part, request, deadline).carry_out()

    def _listing(self) -> Listing:
        node, part = self._node, self._node._part
        members = node.machine.members
        rows = []
        listed = set()
        if isinstance(part, CorePart):
            for core in self.list():
                listed.add(core.name)
                rows.append(_core_row(node, part, core))
        for member in members.values():
            if member.name in listed:
                continue
            gone: Literal["removed", "voter"] = "removed" if listed else "voter"
            rows.append(
                MemberRow(
                    name=member.name,
                    standing="replicant" if member.role == "replicant" else gone,
                    leads=member.name == node.leader,
                    raft_id=member.raft_id,
                    peer_address=member.peer_address,
                    http_address=member.http_address,
                    up=member.up,
                    connected=None,
                    incarnation=member.incarnation,
                    match_index=None,
                    lag_entries=None,
                )
            )
        order = ("voter", "copy", "replicant", "removed")
        rows.sort(key=lambda row: (order.index(row.standing), row.name))
        assert node._directory is not None
        epoch = str(node._directory.identity.epoch)
        return Listing(leader=node.leader, told_by=node.name, epoch=epoch, members=rows)


def _core_row(node: Node, part: CorePart, core: CoreMember) -> MemberRow:
    engine = part.engine
    member = node.machine.members.get(core.name)
    if member is not None and member.raft_id != core.raft_id:
        member = None  # the row is of an earlier directory; the new one has not opened a session
    me = core.raft_id == engine.me
    lag = None if engine.leading is None else engine.leading.lag().get(core.raft_id)
    match = engine.wal.durable_index if me else None
    if lag is not None:
        match = engine.wal.last_index - lag
    return MemberRow(
        name=core.name,
        standing="voter" if core.votes else "copy",
        leads=core.name == node.leader,
        raft_id=core.raft_id,
        peer_address=next(iter(node._peering.addresses.of(core.name)), None),
        http_address=None if member is None else member.http_address,
        up=member is not None and member.up,
        connected=me or core.raft_id in engine.links,
        incarnation=None if member is None else member.incarnation,
        match_index=match,
        lag_entries=0 if me and engine.leading is not None else lag,
    )

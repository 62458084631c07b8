"""Changing the cores of a running cluster: `node.membership`.

    await node.membership.add("core4")       # started with an empty directory
    await node.membership.remove("core2")
    await node.membership.promote("replicant1")
    for core in node.membership.list(): ...

It works on every node; the leader carries it out and answers once the change is committed. Until
then it is pending (`ChangePending`): another leader may roll it back. Every verb may be repeated:
what was done stays done. A new core becomes a copy first and votes once it has caught up. A leader
that is to be removed hands its leadership over, and the next one removes it.

Refused unless forced: what would leave the voters without a majority that can be heard and holds
the log. Refused always: removing the last voter, adding a node without a link or under the name
of a member with another data directory, removing a leader that no voter could succeed.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Literal

import msgspec

from .addresses import usable
from .config import NAME_RULE, is_name
from .errors import (
    ChangePending,
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
from .raft.membership import Configuration, name_of

if TYPE_CHECKING:
    from .node import Node

__all__ = ["Answer", "CoreMember", "Listing", "MemberRow", "Membership"]

# The names under which nodes of release 0.1.0 ask and answer, and those of the answers that tell
# what is pending. A node answers under both, and asks under the older one where the leader does not
# know the newer.
METHOD = "core.change_members"
METHOD_LIST = "core.list_members"
METHOD_2 = "core.change_members_2"
METHOD_LIST_2 = "core.list_members_2"
# The leader gives up at the deadline and says why; that must still arrive.
GRACE_S = 0.5
# How long the leader may take to tell what it knows, before this node answers for itself.
LIST_WAIT_S = 2.0


Standing = Literal["voter", "copy", "removed"]
"""Of a core, in one configuration."""


class CoreMember(msgspec.Struct, frozen=True):
    """A member of the raft configuration."""

    name: str
    raft_id: str
    votes: bool


class MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the cluster knows it.

    `standing`: a voter, a copy (a core that does not vote yet), a replicant, or a core that was
    removed; by the last configuration that `told_by` knows to be committed. `pending`: what it will
    be once the change that stands behind that in the log is committed, if it ever is; None if it
    stays what it is. `distrusted`: a voter that lost entries which it had acknowledged; it counts
    for nothing until it is replaced. `match_index` is the last entry known to be on its disk and
    `lag_entries` how many it lacks: of cores, and known to the leader only.
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
    pending: Standing | None = None
    distrusted: bool = False


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes; `told_by` is who says so: the leader, or, when none answers, this node."""

    leader: str | None
    told_by: str
    epoch: str
    members: builtins.list[MemberRow]


class _FormerAnswer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`refused` is empty when it was done; `elsewhere`: this node does not lead (any more)."""

    refused: str = ""
    elsewhere: bool = False


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`elsewhere`: this node does not lead. `lost`: no longer, and the change was appended."""

    outcome: Literal["done", "refused", "pending", "elsewhere", "lost"]
    text: str = ""


class Membership:
    """The verbs of one node; see the module's text."""

    def __init__(self, node: Node) -> None:
        self._node = node
        node.rpc.register(METHOD, self._on_former_request)
        node.rpc.register(METHOD_LIST, self._on_former_list)
        node.rpc.register(METHOD_2, self._on_request)
        node.rpc.register(METHOD_LIST_2, self._on_list)

    def list(self) -> builtins.list[CoreMember]:
        """The cores, as this node's log says; on a replicant, as the members table says.

        By the configuration in force, committed or not: `survey` tells the two apart.
        """
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
        node._check_started()
        leader = node.leader
        if leader is not None and leader != node.name:
            try:
                return await self.listing_of(leader, LIST_WAIT_S)
            except (PeerUnreachable, RemoteFailed, Timeout):
                pass  # it has just gone: better an older answer than none
        return self._listing()

    async def listing_of(self, core: str, timeout_s: float) -> Listing:
        """What this core knows of all nodes. Raises PeerUnreachable, RemoteFailed, Timeout."""
        payload = await self._call(core, (METHOD_LIST_2, METHOD_LIST), b"", timeout_s)
        return msgspec.msgpack.decode(payload, type=Listing)

    async def add(self, name: str, *, address: str | None = None, timeout_s: float = 60.0) -> None:
        """Make a started core with an empty directory a copy, then a voter once it has caught up.

        `address` is where it listens, for a core that does not know where the leader is. Without
        certificates, only the process that the leader reaches there is taken. Raises
        MembershipRefused saying what to do, NoLeader, ChangePending when the change is in the log
        and not committed, or Timeout when it is not known how far it came. It may be called again:
        what was done stays done.
        """
        if not is_name(name):
            # No node can have it, so the leader would wait for nothing.
            raise MembershipRefused(f"name = {name!r:.80} is not a valid name: {NAME_RULE}")
        if address is not None and not usable(address):
            raise MembershipRefused(
                f"address = {address!r} is none that the cores can dial: name HOST:PORT of the new "
                f"core as they reach it"
            )
        await self._ask(Request("add", name, False, timeout_s, address))

    async def promote(self, name: str, *, timeout_s: float = 60.0) -> None:
        """Make a copy a voter once it has caught up; a replicant becomes a copy first.

        Raises as `add` does.
        """
        await self._ask(Request("promote", name, False, timeout_s))

    async def remove(self, name: str, *, force: bool = False, timeout_s: float = 60.0) -> None:
        """Take a core out. `force` even if too few of the rest could commit. Raises as `add`."""
        await self._ask(Request("remove", name, force, timeout_s))

    async def forget(self, name: str, *, timeout_s: float = 60.0) -> None:
        """End what a member that is down has announced: it holds no plugin format up any more.

        The leader does so by itself for a replicant that has been down for an hour, and for a core
        that was removed. Raises MembershipRefused with the reason, FormatRefused at core format 1.
        """
        self._node._check_running()
        self._check_certificate()
        await self._node.format.forget(name, timeout_s=timeout_s)

    def _check_certificate(self) -> None:
        keeper = self._node._keeper
        if keeper is not None and keeper.current.identity.replicant_only:
            raise MembershipRefused(
                f"the certificate of {self._node.name} is for a replicant only, so it may not "
                f"change the members: ask a core"
            )

    async def _ask(self, request: Request) -> None:
        node = self._node
        self._check_certificate()
        deadline = node.runtime.monotonic() + request.timeout_s
        on_its_way = False
        while True:
            if self._was_itself_removed(request):
                return
            node._check_started()
            left_s = deadline - node.runtime.monotonic()
            if left_s <= 0 and on_its_way:
                raise Timeout("the change was not confirmed in time; repeat it, or look at list()")
            if left_s <= 0:
                raise NoLeader("no leader has been found to carry out the change; repeat it")
            leader = node.leader
            if leader is not None:
                left = msgspec.structs.replace(request, timeout_s=left_s)
                try:
                    answer = await self.answer_of(leader, left)
                except (PeerUnreachable, RemoteFailed):
                    pass  # it has just gone; the next leader is asked
                except Timeout:
                    on_its_way = True  # every verb may be repeated: ask again
                else:
                    if _is_done(answer):
                        return
                    on_its_way |= answer.outcome == "lost"
            await node.runtime.sleep(LOOK_S)

    async def answer_of(self, core: str, request: Request) -> Answer:
        """What this core answers, whether it leads or not. For raftkv's own use.

        It may take the time-out of the request and a little more. Raises PeerUnreachable,
        RemoteFailed, Timeout.
        """
        payload, patience_s = msgspec.msgpack.encode(request), request.timeout_s + GRACE_S
        answer = await self._call(core, (METHOD_2, METHOD), payload, patience_s)
        try:
            return msgspec.msgpack.decode(answer, type=Answer)
        except msgspec.ValidationError:
            former = msgspec.msgpack.decode(answer, type=_FormerAnswer)
        if former.refused:
            return Answer("refused", former.refused)
        return Answer("elsewhere" if former.elsewhere else "done")

    async def _call(
        self, node: str, methods: tuple[str, str], payload: bytes, timeout_s: float
    ) -> bytes:
        """Under the newer of two names, or under the older where the callee lacks that."""
        newer, older = methods
        try:
            return await self._node.rpc.call(node, newer, payload, timeout_s)
        except RemoteFailed as failure:
            if f"has no method {newer!r}" not in str(failure):
                raise
            return await self._node.rpc.call(node, older, payload, timeout_s)

    def _was_itself_removed(self, request: Request) -> bool:
        """Whether the answer was that this very node has been told to go."""
        fault = self._node._fault
        done = fault.done() and not fault.cancelled() and isinstance(fault.result(), RemovedNode)
        return done and request.verb == "remove" and request.name == self._node.name

    # -- on the leader

    async def _on_list(self, sender: str, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(self._listing())

    async def _on_former_list(self, sender: str, payload: bytes) -> bytes:
        listing = msgspec.to_builtins(self._listing())
        for row in listing["members"]:
            del row["pending"], row["distrusted"]
        return msgspec.msgpack.encode(listing)

    async def _on_request(self, sender: str, payload: bytes) -> bytes:
        request = msgspec.msgpack.decode(payload, type=Request)
        return msgspec.msgpack.encode(await self._carry_out(request))

    async def _on_former_request(self, sender: str, payload: bytes) -> bytes:
        answer = await self._carry_out(msgspec.msgpack.decode(payload, type=Request))
        if answer.outcome == "pending":
            # That release has no word for it: its caller is to find the deadline passed.
            await self._node.runtime.sleep(2 * GRACE_S)
        refused = answer.text if answer.outcome == "refused" else ""
        elsewhere = answer.outcome not in ("done", "refused")
        return msgspec.msgpack.encode(_FormerAnswer(refused, elsewhere))

    async def _carry_out(self, request: Request) -> Answer:
        part = self._node._part
        if not isinstance(part, CorePart) or not part.leads:
            return Answer("elsewhere")
        deadline = self._node.runtime.monotonic() + request.timeout_s
        change = MemberChange(self._node, part, request, deadline)
        try:
            if await change.carry_out():
                return Answer("done")
        except ChangePending as error:
            return Answer("pending", str(error))
        except NotApplied as error:
            return Answer("refused", str(error))
        return Answer("lost" if change.begun else "elsewhere")

    def _listing(self) -> Listing:
        node, part = self._node, self._node._part
        members = node.machine.members
        rows = []
        listed = set()
        if isinstance(part, CorePart):
            for raft_id, standing, pending in _standings(part):
                listed.add(name_of(raft_id))
                rows.append(_core_row(node, part, raft_id, standing, pending))
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


def _is_done(answer: Answer) -> bool:
    """Raises MembershipRefused or ChangePending."""
    if answer.outcome == "refused":
        raise MembershipRefused(answer.text)
    if answer.outcome == "pending":
        raise ChangePending(answer.text)
    return answer.outcome == "done"


def _standings(part: CorePart) -> list[tuple[str, Standing, Standing | None]]:
    """Of every core, its raft id, what it is, and what it will be if that is another."""
    engine = part.engine
    latest, committed = engine.configuration, engine.configurations.at(engine.commit)
    if not committed.voters:
        committed = latest  # nothing is known to be committed yet, as after a start
    found: list[tuple[str, Standing, Standing | None]] = []
    for raft_id in sorted({*committed.members, *latest.members}):
        # Nothing but a copy can come in, and one that is not committed counts for nothing either.
        now = _standing(committed, raft_id) if raft_id in committed.members else "copy"
        then = _standing(latest, raft_id)
        changes = committed.is_member(raft_id) != latest.is_member(raft_id) or now != then
        found.append((raft_id, now, then if changes else None))
    return found


def _standing(configuration: Configuration, raft_id: str) -> Standing:
    if raft_id in configuration.voters:
        return "voter"
    return "copy" if raft_id in configuration.learners else "removed"


def _core_row(
    node: Node, part: CorePart, raft_id: str, standing: Standing, pending: Standing | None
) -> MemberRow:
    engine, name = part.engine, name_of(raft_id)
    member = node.machine.members.get(name)
    if member is not None and member.raft_id != raft_id:
        member = None  # the row is of an earlier directory; the new one has not opened a session
    me = raft_id == engine.me
    lag = None if engine.leading is None else engine.leading.lag().get(raft_id)
    match = engine.wal.durable_index if me else None
    if lag is not None:
        match = engine.wal.last_index - lag
    return MemberRow(
        name=name,
        standing=standing,
        leads=name == node.leader,
        raft_id=raft_id,
        peer_address=next(iter(node._peering.addresses.of(name)), None),
        http_address=None if member is None else member.http_address,
        up=member is not None and member.up,
        connected=me or raft_id in engine.links,
        incarnation=None if member is None else member.incarnation,
        match_index=match,
        lag_entries=0 if me and engine.leading is not None else lag,
        pending=pending,
        distrusted=raft_id in engine.configuration.distrusted
        or (me and node.hindrance.has_lost_entries),
    )

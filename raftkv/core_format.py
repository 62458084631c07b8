"""Raising the core format of a running cluster: `node.format`.

    survey = await node.format.survey()      # what every member knows, and what is active
    await node.format.raise_to_newest()      # there is no way back

The leader raises the format by an entry of the log (`engine.FORMAT`) after it has found, over
connections that are still open, that every configured core and every replicant that is up knows
it. A process cannot be replaced by one of an older release without losing its connections, so
nothing is awaited between that look and the entry. A node of an older release that appears later
is refused at the handshake; one that meets the entry stops there, because it does not know its
kind.

With `format_raise = "automatic"` the leader raises the format once all of them have known it for
`format_raise_after_s`: until then every node can still be taken back to the former release.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from .errors import (
    FormatRefused,
    MembershipRefused,
    NoLeader,
    PeerUnreachable,
    RaftkvError,
    Refused,
    RemoteFailed,
    Timeout,
    UnknownCommand,
)
from .membership import METHOD_LIST
from .parts import CorePart
from .raft.membership import name_of
from .raft.transport import Link
from .state.activation import counts
from .state.core import SINCE_FORMAT, AnnounceFormats, ForgetMember

if TYPE_CHECKING:
    from .node import Node

__all__ = ["CoreFormat", "FormatRow", "FormatSurvey"]

log = logging.getLogger("raftkv.node")

METHOD_SURVEY: Final = "core.formats"
METHOD_RAISE: Final = "core.raise_format"
# How long a replicant may take to answer the leader's handshake before it counts as not heard.
HANDSHAKE_S: Final = 2.0
# How often a leader looks whether the format may be raised, and a node whether it has announced
# its formats: seldom, because both change with an upgrade only.
LOOK_S: Final = 5.0
# How often a node that starts looks whether it has a session by now.
SOON_S: Final = 0.2
# The release that names neither its version nor its formats.
RELEASE_1_NAME: Final = "0.1.0"
# Between two attempts to have a request answered by a leader.
RETRY_S: Final = 0.05
# The leader gives up at the deadline; its answer must still arrive.
GRACE_S: Final = 0.5


class FormatRow(msgspec.Struct, frozen=True, kw_only=True):
    """One configured core, or one replicant that is up.

    `core_format` is the newest that it knows, None if the leader could not ask it. `software` is
    None then, and "0.1.0" for a node that does not name its version.
    """

    name: str
    role: str
    software: str | None
    core_format: int | None


class FormatSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """`active` is the core format of the cluster, `newest` what the answering node knows.

    `missing` names the members that hinder raising it. `leader` answered.
    """

    active: int
    newest: int
    leader: str
    missing: list[str]
    members: list[FormatRow]


class _Raised(msgspec.Struct, frozen=True, array_like=True):
    """`refused`: the reason; `pending`: what is not known yet; `elsewhere`: look for the leader."""

    active: int = 0
    refused: str = ""
    pending: str = ""
    elsewhere: bool = False


class _Request(msgspec.Struct, frozen=True, array_like=True):
    timeout_s: float


class Peer:
    """A member at the other end of a connection."""

    def __init__(self, link: Link) -> None:
        hello = link.peer
        assert hello is not None
        self._link = link
        self.core_format = hello.core_format
        self.software = RELEASE_1_NAME if hello.about is None else hello.about.software

    @property
    def connected(self) -> bool:
        """Whether the process that was asked is still the one at the other end."""
        return self._link.up


class CoreFormat:
    """The core format as one node sees it; the leader raises it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._task: asyncio.Task[None] | None = None
        # Since when the leader has found all members to know the newest format.
        self._agreed_since: float | None = None
        if node.machine.core_format_max > 1:  # raftkv 0.1.0 has no such methods
            node.rpc.register(METHOD_SURVEY, self._on_survey)
            node.rpc.register(METHOD_RAISE, self._on_raise)

    def start(self) -> None:
        self._task = self._node.runtime.spawn(self._run(), "core format")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def active(self) -> int:
        """The core format of the cluster, as far as this node has applied the log."""
        return self._node.machine.core_format

    async def survey(self, *, timeout_s: float = 5.0) -> FormatSurvey:
        """What every member knows, by the leader's word. Raises NoLeader."""
        payload = await self._ask(METHOD_SURVEY, timeout_s)
        return msgspec.msgpack.decode(payload, type=FormatSurvey)

    async def raise_to_newest(self, *, timeout_s: float = 30.0) -> int:
        """Raise the core format to the newest that the leader knows; the format that is active.

        It is done when the entry is committed, and may be repeated. Raises FormatRefused naming
        the members that hinder it, NoLeader, or Timeout when it is not known whether it was done.
        """
        runtime = self._node.runtime
        deadline = runtime.monotonic() + timeout_s
        while True:
            left_s = deadline - runtime.monotonic()
            payload = await self._ask(METHOD_RAISE, left_s)
            answer = msgspec.msgpack.decode(payload, type=_Raised)
            if answer.refused:
                raise FormatRefused(answer.refused)
            if answer.pending:
                raise Timeout(answer.pending)
            if not answer.elsewhere:
                return answer.active
            await runtime.sleep(RETRY_S)

    async def _ask(self, method: str, timeout_s: float) -> bytes:
        """The leader's answer; another one is asked when it has gone."""
        node = self._node
        deadline = node.runtime.monotonic() + timeout_s
        sent = False
        while True:
            node._check_running()
            left_s = deadline - node.runtime.monotonic()
            if left_s <= 0 and sent:
                raise Timeout("the leader has not answered in time; look, and repeat it")
            if left_s <= 0:
                raise NoLeader("no leader has been found that could answer; repeat it")
            leader = node.leader
            if leader is not None:
                payload = msgspec.msgpack.encode(_Request(left_s))
                try:
                    return await node.rpc.call(leader, method, payload, left_s + GRACE_S)
                except PeerUnreachable:
                    pass  # the leader has just gone: its successor is asked
                except RemoteFailed as error:
                    if str(error).startswith("NotPermitted"):
                        raise FormatRefused(f"{error}; ask a core") from None
                    if "has no method" in str(error):
                        raise FormatRefused(
                            f"{leader} leads and runs raftkv 0.1.0: upgrade it first"
                        ) from None
                except Timeout:
                    sent = True
            await node.runtime.sleep(RETRY_S)

    # -- on the leader

    async def _on_survey(self, sender: str, payload: bytes) -> bytes:
        part = self._node._part
        if not isinstance(part, CorePart) or not part.leads:
            raise NoLeader(f"{self._node.name} does not lead")
        survey, _ = await self._look(part)
        return msgspec.msgpack.encode(survey)

    async def _on_raise(self, sender: str, payload: bytes) -> bytes:
        request = msgspec.msgpack.decode(payload, type=_Request)
        part = self._node._part
        if not isinstance(part, CorePart) or not part.leads:
            return msgspec.msgpack.encode(_Raised(elsewhere=True))
        try:
            done = await self._raise(part, request.timeout_s)
        except FormatRefused as refusal:
            return msgspec.msgpack.encode(_Raised(refused=str(refusal)))
        except Timeout as error:
            return msgspec.msgpack.encode(_Raised(pending=str(error)))
        return msgspec.msgpack.encode(_Raised(self.active, elsewhere=not done))

    async def _raise(self, part: CorePart, timeout_s: float) -> bool:
        """Raise the format and wait until that is applied here. False: leadership was lost."""
        runtime, engine = self._node.runtime, part.engine
        newest = self._node.machine.core_format_max
        if self.active >= newest:
            return True
        deadline = runtime.monotonic() + timeout_s
        term = engine.term
        survey, connections = await self._look(part)
        if not _still_leads(part, term):
            return False
        gone = [name for name, peer in connections.items() if not peer.connected]
        missing = sorted({*survey.missing, *gone, *self._changed(part, survey)})
        if missing:
            raise FormatRefused(
                f"not every member has been found to know core format {newest}: "
                f"{', '.join(missing)}. Upgrade and start them, remove cores that are gone "
                f"(raftkv member remove), then repeat it"
            )
        engine.raise_format(newest)
        while self.active < newest:
            if not _still_leads(part, term):
                return False
            if runtime.monotonic() >= deadline:
                raise Timeout("the format is raised but not committed yet: look, and repeat it")
            await runtime.sleep(RETRY_S)
        return True

    def _changed(self, part: CorePart, survey: FormatSurvey) -> list[str]:
        """Members that came while the others were asked."""
        asked = {row.name for row in survey.members}
        return [name for name, _ in self._members(part) if name not in asked]

    def _members(self, part: CorePart) -> list[tuple[str, str]]:
        """(name, role) of every configured core and of every replicant that is up."""
        cores = [(name_of(each), "core") for each in part.engine.configuration.members]
        named = {name for name, _ in cores}
        replicants = [
            (member.name, "replicant")
            for member in self._node.machine.members.values()
            if member.role == "replicant" and member.up and member.name not in named
        ]
        return [*cores, *replicants]

    async def _look(self, part: CorePart) -> tuple[FormatSurvey, dict[str, Peer]]:
        node = self._node
        newest = node.machine.core_format_max
        rows = []
        connections: dict[str, Peer] = {}
        members = [item for item in self._members(part) if item[0] != node.name]
        found = await asyncio.gather(*(self._peer(name) for name, _ in members))
        own = FormatRow(
            name=node.name, role="core", software=node.about.software, core_format=newest
        )
        rows.append(own)
        for (name, role), peer in zip(members, found, strict=True):
            if peer is not None:
                connections[name] = peer
            rows.append(
                FormatRow(
                    name=name,
                    role=role,
                    software=None if peer is None else peer.software,
                    core_format=None if peer is None else peer.core_format,
                )
            )
        rows.sort(key=lambda row: (row.role, row.name))
        missing = [row.name for row in rows if row.core_format is None or row.core_format < newest]
        survey = FormatSurvey(
            active=self.active, newest=newest, leader=node.name, missing=missing, members=rows
        )
        return survey, connections

    async def _peer(self, name: str) -> Peer | None:
        """The member, if it answers now: a connection may be up although its other end is gone."""
        rpc = self._node.rpc
        try:
            # Every release answers this by itself; a survey could go round between two leaders.
            with contextlib.suppress(RemoteFailed):  # that is an answer, too
                await rpc.call(name, METHOD_LIST, b"", HANDSHAKE_S)
            link = await rpc.connected(name, HANDSHAKE_S)
        except (PeerUnreachable, Timeout):
            return None
        return Peer(link)

    # -- by itself

    async def _run(self) -> None:
        node = self._node
        # A new cluster raises the format after its first entries, and this node may have asked for
        # its session before it applied that: with the plugin formats of 0.1.0.
        while not node.session:
            await node.runtime.sleep(SOON_S)
        with contextlib.suppress(RaftkvError):  # the loop tries again
            await self._announce()
        while True:
            await node.runtime.sleep(LOOK_S)
            try:
                await self._announce()
                await self._forget_vanished()
                await self._raise_when_due()
            except RaftkvError as error:
                log.debug("the core format waits: %s", error)

    async def _announce(self) -> None:
        """From core format 2 on this node's own plugin formats stand in the log."""
        node = self._node
        if self.active < SINCE_FORMAT[AnnounceFormats] or not node.session:
            return
        mine = tuple(sorted(node.machine.plugin_versions.items()))
        if node.machine.formats_of(node.name) != dict(mine):
            await node.propose("core", AnnounceFormats(node.name, node.incarnation, mine))

    async def _forget_vanished(self) -> None:
        """The leader ends the announcements of members that hold no format up any more."""
        node, part = self._node, self._node._part
        leads = isinstance(part, CorePart) and part.leads
        if not leads or self.active < SINCE_FORMAT[ForgetMember]:
            return
        machine = node.machine
        _, voters = machine.voters
        for member in list(machine.members.values()):
            vanished = not counts(member, voters, machine.now)
            if vanished and machine.formats_of(member.name):
                await node.propose("core", ForgetMember(member.name, member.incarnation))

    async def forget(self, name: str, *, timeout_s: float | None = None) -> None:
        """End what a member that is down has announced, so that it holds no format up any more.

        It may come back afterwards, if it knows the active formats.
        Raises MembershipRefused with the reason, FormatRefused at core format 1.
        """
        node = self._node
        member = node.machine.members.get(name)
        if member is None:
            raise MembershipRefused(f"there is no member {name!r}: see raftkv member list")
        try:
            command = ForgetMember(name, member.incarnation, early=True)
            await node.propose("core", command, timeout_s=timeout_s)
        except UnknownCommand:
            raise FormatRefused(
                "the cluster runs core format 1, in which no member can be forgotten: upgrade all "
                "nodes, then raftkv format raise"
            ) from None
        except Refused as refusal:
            raise MembershipRefused(str(refusal)) from None

    async def _raise_when_due(self) -> None:
        node, part = self._node, self._node._part
        leads = isinstance(part, CorePart) and part.leads
        automatic = node.config.format_raise == "automatic"
        if not leads or not automatic or self.active >= node.machine.core_format_max:
            self._agreed_since = None
            return
        assert isinstance(part, CorePart)
        survey, _ = await self._look(part)
        now = node.runtime.monotonic()
        if survey.missing:
            self._agreed_since = None
        elif self._agreed_since is None:
            self._agreed_since = now
        elif now - self._agreed_since >= node.config.format_raise_after_s:
            await self._raise(part, node.config.timeout_s)


def _still_leads(part: CorePart, term: int) -> bool:
    return part.leads and part.engine.term == term

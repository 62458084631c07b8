"""The built-in plugin "core": members, incarnations, sessions, settings, active plugins.

Every cluster runs it and every other plugin builds on it. What it decides:

- A node that starts proposes `NodeUp` under a random nonce. The node gets a new incarnation and a
  new session; its former ones end in the same entry. Proposed twice under one nonce, it answers
  twice the same. The last OPENINGS_KEPT nonces of each node are remembered, so that a duplicate
  which was delayed in the network cannot end the life that came after it.
- `DeclareDead` is conditional on the incarnation: a node that has come back is never hit. It raises
  the incarnation too, so that the declared-dead node is fenced even if it never notices. And it
  is conditional on the term (deaths.py); `NodeDown`, its form of core format 1, is not.
- `NodeRole` makes a replicant that was promoted a core, in the same life.
- A plugin becomes active, or moves to a newer command format, in the entry with which the last
  member has it (activation.py): a `NodeUp`, or the end of a member that lacked it.
- An entry of its own kind raises the core format (raftkv/formats.py). A node that lacks the format
  stops at that entry, whatever its version. From format 2 on, `AnnounceFormats` tells the plugin
  formats of a running node, which `NodeUp` held back before.
- `SettleOutcome` asks what became of a number. If its command was not seen, it never will be.
- `SetVoters` tells the state which cores vote. Raft's own configuration is in force as soon as it
  is appended, the state knows what is applied; so the leader announces a core's going before it
  appends it, and its coming after that is committed (voters.py). What the state knows is therefore
  never more than what voted on any entry behind the announcement.

Sessions are no table (see sessions.py), so this plugin hands what concerns them to the machine,
which does it after the command has succeeded. The same goes for the hooks of the other plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Literal

import msgspec

from raftkv.errors import (
    InvalidSetting,
    Refused,
    SequenceTooFar,
    StaleIncarnation,
    TooManySessions,
    UnknownCommand,
)

from . import activation
from .contract import (
    Context,
    Member,
    MemberChange,
    Quota,
    Setting,
    SettingChange,
    TableSpec,
    View,
)
from .deaths import DeclareDead, NodeDown, NodeDownResult
from .quota import QUOTA_FORMAT
from .refusals import Refusals
from .sessions import ABANDONED, DROPPED, Sessions
from .snapshot import NO_TEXTS_SINCE, encode_outcome
from .tables import ABSENT, Table
from .views import decode_setting

__all__ = [
    "AnnounceFormats",
    "Core",
    "DeclareDead",
    "DisarmAlarm",
    "ForgetMember",
    "MemberRemoved",
    "NodeDown",
    "NodeDownResult",
    "NodeRole",
    "NodeUp",
    "NodeUpResult",
    "OpenSession",
    "OpenSessionResult",
    "OutcomeReport",
    "SetSetting",
    "SetVoters",
    "SettleOutcome",
    "Voters",
    "VotersResult",
]

CORE: Final = "core"
# A delayed duplicate would have to outlive this many restarts of its node to be taken for new.
OPENINGS_KEPT: Final = 16
# Bounds of what one NodeUp may carry into the tables.
NAME_CHARS_MAX: Final = 255
PLUGINS_MAX: Final = 256
VOTERS_MAX: Final = 255
# From this core format on no client ends the session of another one that still retries.
SESSIONS_KEPT_SINCE: Final = 2
# The one row of the table of voters.
_VOTERS: Final = "now"


class _Command(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    pass


class NodeUpResult(_Command, frozen=True):
    session: int
    incarnation: int


class OpenSessionResult(_Command, frozen=True):
    session: int


class OutcomeReport(_Command, frozen=True):
    """`data` is the encoded result of an applied number, the encoded refusal of a refused one."""

    verdict: Literal["applied", "refused", "not_applied", "expired"]
    data: bytes = b""


class VotersResult(_Command, frozen=True):
    """`version` of the voters after the command; `accepted`: they are those of the command."""

    version: int
    accepted: bool


class Voters(_Command, frozen=True):
    """The raft ids of the cores that vote, sorted."""

    version: int = 0
    raft_ids: tuple[str, ...] = ()


class NodeUp(_Command, frozen=True, tag="node_up"):
    """A node starts, or comes back after it was declared dead. `plugins`: (name, version)."""

    Result: ClassVar[Any] = NodeUpResult
    nonce: int
    name: str
    role: Literal["core", "replicant"]
    raft_id: str
    peer_address: str
    http_address: str | None
    plugins: tuple[tuple[str, int], ...] = ()


class NodeRole(_Command, frozen=True, tag="node_role"):
    """One life of a node goes on in another role: a replicant was promoted."""

    Result: ClassVar[Any] = None
    name: str
    incarnation: int
    role: Literal["core", "replicant"]


class SetVoters(_Command, frozen=True, tag="set_voters"):
    """The leader tells who votes; taken if the version is still that."""

    Result: ClassVar[Any] = VotersResult
    raft_ids: tuple[str, ...]
    expected_version: int


class AnnounceFormats(_Command, frozen=True, tag="announce_formats"):
    """One incarnation of a node has these plugin formats. `plugins`: (name, version)."""

    Result: ClassVar[Any] = None
    name: str
    incarnation: int
    plugins: tuple[tuple[str, int], ...]


class ForgetMember(_Command, frozen=True, tag="forget_member"):
    """A member that is down holds no plugin format up any more.

    `early`: even a replicant that has been down for less than `activation.VANISHED_MS`. Its row
    stays, so that its next incarnation has a new number.
    """

    Result: ClassVar[Any] = None
    name: str
    incarnation: int
    early: bool = False


class MemberRemoved(_Command, frozen=True, tag="member_removed"):
    """The core with this raft id was removed, and that is committed. From core format 2 on.

    Ends its incarnation, and what plugins keep of it as a member. Its row stays, down, so that a
    later core of that name has a higher incarnation. The result is None if nothing was left to do.
    """

    Result: ClassVar[Any] = NodeDownResult | None
    raft_id: str


class DisarmAlarm(_Command, frozen=True, tag="disarm_alarm"):
    """An operator ends an alarm of the state: of one plugin, or of all ("").

    The result names the plugins whose alarm was on. What is still beyond its quota raises it again.
    """

    Result: ClassVar[Any] = tuple[str, ...]
    kind: Literal["NOSPACE"]
    plugin: str = ""


class OpenSession(_Command, frozen=True, tag="open_session"):
    """A client without a node opens a session."""

    Result: ClassVar[Any] = OpenSessionResult
    nonce: int


class SetSetting(_Command, frozen=True, tag="set_setting"):
    """Set one replicated setting. `value` is msgpack; None goes back to the default."""

    Result: ClassVar[Any] = None
    plugin: str
    key: str
    value: bytes | None

    @classmethod
    def of(cls, plugin: str, key: str, value: Any) -> SetSetting:
        """The command that sets `value`."""
        return cls(plugin, key, msgspec.msgpack.encode(value))


class SettleOutcome(_Command, frozen=True, tag="settle_outcome"):
    """What became of (session, seq)? If it has not come yet, it never will."""

    Result: ClassVar[Any] = OutcomeReport
    session: int
    seq: int


class Opening(_Command, frozen=True):
    """A remembered NodeUp."""

    nonce: int
    session: int


#: Commands that a core format introduced. Before it they are answered as a node that does not know
#: them answers: they cannot be decoded.
SINCE_FORMAT: Final[Mapping[type[msgspec.Struct], int]] = {
    AnnounceFormats: 2,
    DeclareDead: 2,
    DisarmAlarm: QUOTA_FORMAT,
    ForgetMember: 2,
    MemberRemoved: 2,
}


class Core:
    """See the top of the file. One object per machine: it works on that machine's sessions."""

    name: ClassVar[str] = CORE
    version: ClassVar[int] = 2
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = (
        AnnounceFormats,
        DeclareDead,
        DisarmAlarm,
        ForgetMember,
        MemberRemoved,
        NodeUp,
        NodeDown,
        NodeRole,
        OpenSession,
        SetSetting,
        SettleOutcome,
        SetVoters,
    )
    tables: ClassVar[tuple[TableSpec, ...]] = (
        TableSpec("active", str, int),
        TableSpec("alarms", tuple[str, str], int),  # (kind, plugin) -> since when, log's clock
        TableSpec("formats", tuple[str, str], int),  # (member, plugin) -> version
        TableSpec("members", str, Member),
        TableSpec("openings", tuple[str, int], Opening),  # (member, incarnation)
        TableSpec("removed", str, str),  # member -> the raft id under which it was removed
        TableSpec("settings", tuple[str, str], bytes),  # (plugin, key) -> msgpack
        TableSpec("voters", str, Voters),
    )
    settings: ClassVar[tuple[Setting, ...]] = ()
    refusals: ClassVar[tuple[type[Refused], ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()
    costly: ClassVar[tuple[type[msgspec.Struct], ...]] = ()
    quota: ClassVar[Quota | None] = None

    def __init__(
        self,
        sessions: Sessions,
        refusals: Refusals,
        settings: Mapping[str, Mapping[str, Setting]],
        after: Callable[[Callable[[], None]], None],
        on_members: Callable[[MemberChange], None],
        on_setting: Callable[[str, SettingChange], None],
        on_active: Callable[[], None],
        on_voters: Callable[[tuple[str, ...]], None],
    ) -> None:
        """`after` queues what the machine does once the command has succeeded."""
        #: The term in which the entry that is applied was appended; set by the machine.
        self.term = 0
        self._sessions = sessions
        self._refusals = refusals
        self._settings = settings
        self._after = after
        self._members_changed = on_members
        self._setting_changed = on_setting
        self._active_changed = on_active
        self._voters_changed = on_voters

    def apply(self, command: Any, ctx: Context) -> Any:
        if ctx.version < SINCE_FORMAT.get(type(command), 1):
            raise UnknownCommand(f"the plugin {CORE!r} cannot decode the command")
        if isinstance(command, NodeUp):
            return self._node_up(command, ctx)
        if isinstance(command, DeclareDead):
            return self._declare_dead(command, ctx)
        if isinstance(command, NodeDown):
            return self._node_down(command, ctx)
        if isinstance(command, NodeRole):
            return self._node_role(command, ctx)
        if isinstance(command, OpenSession):
            return self._open_session(command, ctx)
        if isinstance(command, SetSetting):
            return self._set_setting(command, ctx)
        if isinstance(command, SetVoters):
            return self._set_voters(command, ctx)
        if isinstance(command, AnnounceFormats):
            return self._announce(command, ctx)
        if isinstance(command, ForgetMember):
            return self._forget(command, ctx)
        if isinstance(command, MemberRemoved):
            return self._removed(command, ctx)
        if isinstance(command, DisarmAlarm):
            return _disarm(command, ctx)
        assert isinstance(command, SettleOutcome)
        return self._settle_outcome(command, ctx)

    def cost(self, command: Any, view: View) -> int:
        return 0

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        pass

    def on_setting(self, change: SettingChange, ctx: Context) -> None:
        pass

    def on_voters(self, old: tuple[str, ...], ctx: Context) -> None:
        pass

    def invariants(self, view: View) -> list[str]:
        found = []
        members = view.table("members")
        for (name, incarnation), opening in view.table("openings").scan():
            member = members.get(name)
            if member is None or member.incarnation < incarnation:
                found.append(f"opening of {name} #{incarnation} without such a member")
            session = self._sessions.by_id.get(opening.session)
            if session is not None and (session.node != name or member is None or not member.up):
                found.append(f"session {opening.session} of {name} outlived its node")
        return found

    def _node_up(self, command: NodeUp, ctx: Context) -> NodeUpResult:
        _require_no_session(ctx)
        openings: Table[tuple[str, int], Opening] = ctx.table("openings")
        for (_, incarnation), opening in openings.scan(prefix=(command.name,)):
            if opening.nonce == command.nonce:
                return NodeUpResult(opening.session, incarnation)
        texts = (command.name, command.raft_id, command.peer_address, command.http_address or "")
        if not command.name or max(map(len, texts)) > NAME_CHARS_MAX:
            raise Refused(f"a member's name and addresses must have 1 to {NAME_CHARS_MAX} letters")
        _check_plugins(command.plugins)
        members: Table[str, Member] = ctx.table("members")
        old = members.get(command.name)
        incarnation = 1 if old is None else old.incarnation + 1
        new = Member(
            name=command.name,
            role=command.role,
            raft_id=command.raft_id,
            peer_address=command.peer_address,
            http_address=command.http_address,
            incarnation=incarnation,
            up=True,
            started_ms=ctx.now,
        )
        members.put(command.name, new)
        if ctx.version >= 2:
            ctx.table("removed").delete(command.name)
        session, nonce, now = ctx.serial, command.nonce, ctx.now
        openings.put((command.name, incarnation), Opening(nonce, session))
        if openings.count(prefix=(command.name,)) > OPENINGS_KEPT:
            oldest = next(openings.scan(prefix=(command.name,), limit=1))
            openings.delete(oldest[0])
        self._after(lambda: self._sessions.open_node(session, command.name, nonce, now))
        self._activated(activation.announce(command.name, command.plugins, ctx))
        ended = old.incarnation if old is not None and old.up else None
        self._after(lambda: self._members_changed(MemberChange(old, new, ended)))
        return NodeUpResult(session, incarnation)

    def raise_format(self, version: int, ctx: Context) -> bool:
        """Set the core format. False if it is that high already: it is never lowered."""
        active: Table[str, int] = ctx.table("active")
        if version <= active.get(CORE, 1):
            return False
        active.put(CORE, version)
        return True

    def _announce(self, command: AnnounceFormats, ctx: Context) -> None:
        _check_plugins(command.plugins)
        _living(command.name, command.incarnation, ctx)
        self._activated(activation.announce(command.name, command.plugins, ctx))

    def _forget(self, command: ForgetMember, ctx: Context) -> None:
        member: Member | None = ctx.table("members").get(command.name)
        if member is None or member.incarnation != command.incarnation or member.up:
            raise StaleIncarnation(
                f"{command.name!r} is not down with incarnation {command.incarnation}: only a "
                f"member that is down can be forgotten"
            )
        if member.raft_id in ctx.voters:
            raise Refused(f"{command.name!r} votes: remove it from the cores first")
        aged = not activation.counts(member, ctx.voters, ctx.now)
        if not aged and not command.early:
            raise Refused(f"{command.name!r} has not been down for long enough to be forgotten")
        if activation.forget(command.name, ctx):
            self._activated(activation.refresh(ctx))

    def _activated(self, changed: bool) -> None:
        if changed:
            self._after(self._active_changed)

    def _node_role(self, command: NodeRole, ctx: Context) -> None:
        old = _living(command.name, command.incarnation, ctx)
        if old.role != command.role:
            new = msgspec.structs.replace(old, role=command.role)
            ctx.table("members").put(command.name, new)
            self._activated(activation.refresh(ctx))
            self._after(lambda: self._members_changed(MemberChange(old, new, None)))

    def _declare_dead(self, command: DeclareDead, ctx: Context) -> NodeDownResult | None:
        if command.term != self.term:
            return None
        return self._ended(command.name, command.incarnation, ctx)

    def _node_down(self, command: NodeDown, ctx: Context) -> NodeDownResult:
        if ctx.version >= 2:
            raise UnknownCommand(f"the plugin {CORE!r} takes a death only with its term")
        return self._ended(command.name, command.incarnation, ctx)

    def _ended(self, name: str, incarnation: int, ctx: Context) -> NodeDownResult:
        members: Table[str, Member] = ctx.table("members")
        old = _living(name, incarnation, ctx)
        new = msgspec.structs.replace(old, up=False, incarnation=old.incarnation + 1)
        if ctx.version >= 2:
            new = msgspec.structs.replace(new, started_ms=ctx.now)
        members.put(name, new)
        self._activated(activation.refresh(ctx))
        self._after(lambda: self._sessions.end_node(name))
        self._after(lambda: self._members_changed(MemberChange(old, new, old.incarnation)))
        return NodeDownResult(new.incarnation)

    def _removed(self, command: MemberRemoved, ctx: Context) -> NodeDownResult | None:
        removed: Table[str, str] = ctx.table("removed")
        # A raft id begins with the name, and no other member has it.
        old = next((m for m in ctx.members.values() if m.raft_id == command.raft_id), None)
        if old is None or old.role != "core" or command.raft_id in ctx.voters:
            return None
        if removed.get(old.name) == command.raft_id:
            return None
        removed.put(old.name, command.raft_id)
        ended = None
        if old.up:
            ended, session = old.incarnation, old.name
            down = msgspec.structs.replace(
                old, up=False, incarnation=old.incarnation + 1, started_ms=ctx.now
            )
            ctx.table("members").put(old.name, down)
            self._after(lambda: self._sessions.end_node(session))
        activation.forget(old.name, ctx)
        self._activated(activation.refresh(ctx))
        self._after(lambda: self._members_changed(MemberChange(old, None, ended)))
        return NodeDownResult(old.incarnation + (ended is not None))

    def _set_voters(self, command: SetVoters, ctx: Context) -> VotersResult:
        raft_ids = command.raft_ids
        if len(raft_ids) > VOTERS_MAX or any(len(id) > NAME_CHARS_MAX for id in raft_ids):
            raise Refused(f"at most {VOTERS_MAX} voters, their ids of {NAME_CHARS_MAX} letters")
        table: Table[str, Voters] = ctx.table("voters")
        old = table.get(_VOTERS) or Voters()
        if command.expected_version != old.version:
            return VotersResult(old.version, False)
        # Their number counts: each is there once.
        new = Voters(old.version + 1, tuple(sorted(dict.fromkeys(raft_ids))))
        table.put(_VOTERS, new)
        if new.raft_ids != old.raft_ids:
            self._activated(activation.refresh(ctx))
            self._after(lambda: self._voters_changed(old.raft_ids))
        return VotersResult(new.version, True)

    def _open_session(self, command: OpenSession, ctx: Context) -> OpenSessionResult:
        _require_no_session(ctx)
        known = self._sessions.client_of(command.nonce)
        if known is not None:
            return OpenSessionResult(known)
        session, now, keeps = ctx.serial, ctx.now, ctx.version >= SESSIONS_KEPT_SINCE
        if keeps and not self._sessions.has_room(now):
            raise TooManySessions
        self._after(lambda: self._sessions.open_client(session, command.nonce, now, keeps=keeps))
        return OpenSessionResult(session)

    def _set_setting(self, command: SetSetting, ctx: Context) -> None:
        setting = self._settings.get(command.plugin, {}).get(command.key)
        if setting is None or ctx.version < setting.core_format:
            raise InvalidSetting(f"there is no setting {command.plugin}.{command.key}")
        table: Table[tuple[str, str], bytes] = ctx.table("settings")
        key = (command.plugin, command.key)
        stored = table.get(key)
        old = setting.default if stored is None else decode_setting(setting, stored)
        new = self._checked(setting, command)
        if command.value is None:
            table.delete(key)
        else:
            # Encoded anew: the same value has the same bytes, however the caller wrote it.
            table.put(key, msgspec.msgpack.encode(new, order="deterministic"))
        change = SettingChange(command.key, old, new)
        self._after(lambda: self._setting_changed(command.plugin, change))

    @staticmethod
    def _checked(setting: Setting, command: SetSetting) -> Any:
        if command.value is None:
            return setting.default
        try:
            value = decode_setting(setting, command.value)
        except (msgspec.MsgspecError, ValueError):
            # Not in the decoder's words, which differ between its versions.
            raise InvalidSetting(
                f"{command.plugin}.{command.key}: the value is not of the setting's type"
            ) from None
        reason = None if setting.check is None else setting.check(value)
        if reason is not None:
            raise InvalidSetting(f"{command.plugin}.{command.key}: {reason}")
        return value

    def _settle_outcome(self, command: SettleOutcome, ctx: Context) -> OutcomeReport:
        session = self._sessions.by_id.get(command.session)
        if session is None or command.seq < session.floor:
            return OutcomeReport("expired")
        outcome = session.recall(command.seq, self._sessions.window)
        if outcome is ABSENT:
            self._after(lambda: self._sessions.abandon(command.session, command.seq))
            return OutcomeReport("not_applied")
        if isinstance(outcome, SequenceTooFar):
            raise outcome
        if outcome is ABANDONED:
            return OutcomeReport("not_applied")
        if outcome is DROPPED:
            return OutcomeReport("expired")
        texts = ctx.version < NO_TEXTS_SINCE
        _, data = encode_outcome(outcome, self._refusals, texts=texts)
        return OutcomeReport("refused" if isinstance(outcome, Refused) else "applied", data)


def _disarm(command: DisarmAlarm, ctx: Context) -> tuple[str, ...]:
    alarms: Table[tuple[str, str], int] = ctx.table("alarms")
    ended = []
    for kind, plugin in [key for key, _ in alarms.scan(prefix=(command.kind,))]:
        if command.plugin in ("", plugin):
            alarms.delete((kind, plugin))
            ended.append(plugin)
    return tuple(ended)


def _check_plugins(plugins: tuple[tuple[str, int], ...]) -> None:
    if len(plugins) > PLUGINS_MAX:
        raise Refused(f"a node may have at most {PLUGINS_MAX} plugins")


def _living(name: str, incarnation: int, ctx: Context) -> Member:
    """The member, if it is up in that very life. Raises StaleIncarnation."""
    member: Member | None = ctx.table("members").get(name)
    if member is None:
        raise StaleIncarnation(f"there is no member {name!r}")
    if member.incarnation != incarnation or not member.up:
        state = "up" if member.up else "down"
        raise StaleIncarnation(
            f"{name!r} is {state} with incarnation {member.incarnation}, not up with {incarnation}"
        )
    return member


def _require_no_session(ctx: Context) -> None:
    # The order in which sessions were last used is kept as serials, one session a serial.
    if ctx.session != 0:
        raise Refused("what opens a session is sent with session 0 and its nonce as number")

"""What the state machine and a plugin's pure half know of each other.

These names are re-exported by `raftkv.plugin`, where plugins import them; they stand here because
the machine needs them too and must not import upwards. docs/plugin-contract.md explains them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import msgspec

from .tables import Table, TableView

__all__ = [
    "Change",
    "Context",
    "Member",
    "MemberChange",
    "PurePlugin",
    "Quota",
    "Setting",
    "SettingChange",
    "TableSpec",
    "View",
]


class TableSpec(msgspec.Struct, frozen=True):
    """One table of a plugin.

    `key_type` is str, bytes, int or a tuple of these; `value_type` a frozen Struct, a tuple or a
    scalar. `raftkv.state.types` says what is allowed and why.

    `run`: the table is a log. Its keys are consecutive ints: a row is added behind the last one or
    removed at an end, anything else is a ValueError in `apply`. Such a table is much faster.
    """

    name: str
    key_type: Any
    value_type: Any
    run: bool = False


class Setting(msgspec.Struct, frozen=True):
    """One replicated setting: whatever influences a verdict is such a value, never local.

    `type` is int, bool, str, or a tuple or dict of these. `check` returns the reason to refuse a
    value, or None, and must be pure. `doc` is one sentence that names the unit.
    `core_format`: the first one at which it can be set.
    """

    key: str
    type: Any
    default: Any
    check: Callable[[Any], str | None] | None = None
    doc: str = ""
    core_format: int = 1


class Quota(msgspec.Struct, frozen=True):
    """What a plugin's user data counts in logical bytes, against its setting `quota_bytes`.

    All functions are pure, quick, and look at nothing but their arguments; what they give may
    change with the core format only. `sizes`: by table, what one row (key, value) counts.
    `derived`: what is known without counting rows, from the tables by name. `adds`: whether a
    command may add user data; such commands are refused beyond the quota. A plugin that promises
    something (a prepared transaction) counts at the promise what will stand there once it is kept.
    `declares`: whether a command makes something unless it is there; such are refused only if they
    have made it, for those who take the data away may send them as well. `modest`: kinds of
    commands in `adds` that need no look at the count while much is left: any number of them at most
    doubles it, and adds GROWTH_FACTOR (quota.py) bytes for each byte of their encodings.
    """

    sizes: Mapping[str, Callable[[Any, Any], int]]
    adds: Callable[[Any], bool]
    derived: Callable[[Callable[[str], TableView[Any, Any]]], int] | None = None
    default_bytes: int = 2 * 1024**3
    declares: Callable[[Any], bool] | None = None
    modest: frozenset[type[msgspec.Struct]] = frozenset()


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A node as the log knows it.

    `incarnation` is raised when the node starts and when the cluster declares it dead. What a
    node owns carries the incarnation it was written under, and is live while the member is `up`
    with that very incarnation.
    """

    name: str
    role: str
    raft_id: str
    peer_address: str
    http_address: str | None
    incarnation: int
    up: bool
    # On the log's clock: when it started. From core format 2 on, of a member that is down: when it
    # was declared down.
    started_ms: int


class MemberChange(msgspec.Struct, frozen=True):
    """A row of the members table changed. `ended` is the incarnation that this ended, if any.

    `new` None: the core was removed for good (core format 2). Its row stays, down, and `old` is as
    it was before.
    """

    old: Member | None
    new: Member | None
    ended: int | None


class SettingChange(msgspec.Struct, frozen=True):
    """A setting changed; the values are decoded, a default stands in for a missing one."""

    key: str
    old: Any
    new: Any


class Change(msgspec.Struct, frozen=True):
    """One row that one command changed. `old` and `new` are ABSENT where there is no row."""

    plugin: str
    table: str
    key: Any
    old: Any
    new: Any


class Context(Protocol):
    """All that `apply` and the pure hooks may see besides the command. Valid during the call."""

    @property
    def now(self) -> int:
        """The log's clock in ms: the stamp of the entry, never going back."""

    @property
    def index(self) -> int:
        """The index of the log entry; the commands of one batch share it."""

    @property
    def serial(self) -> int:
        """The number of this command: strictly increasing over the whole log."""

    @property
    def session(self) -> int:
        """The exactly-once session that sent the command; 0 in hooks."""

    @property
    def origin(self) -> Member | None:
        """The node that owns the session, as it is now; None if no node does."""

    @property
    def version(self) -> int:
        """The command format of this plugin that the cluster has activated."""

    @property
    def members(self) -> Mapping[str, Member]:
        """All members; iterates in the order of their names."""

    @property
    def voters(self) -> tuple[str, ...]:
        """Raft ids of cores that vote on every entry of now, sorted; empty: not known yet.

        Never more than those that do: a core is left out before it goes, and stands here only once
        it votes. So what is applied is on a majority of these, at least.
        """

    @property
    def settings(self) -> Mapping[str, Any]:
        """This plugin's settings, defaults filled in."""

    def table(self, name: str) -> Table[Any, Any]:
        """One of this plugin's own tables."""

    def charge(self, rows: int) -> None:
        """Add to what this command costs: the rows it is about to look at (state/costs.py).

        One row and the bytes of the command are counted without it. Charge before the work.
        """

    def call(self, plugin: str, command: msgspec.Struct) -> Any:
        """Apply a command of a plugin named in `uses`, in this command's undo scope.

        A refusal passes through; when it is caught, only the callee's writes are undone.
        """


class View(Protocol):
    """The applied state of one plugin, read-only. Valid until the next `await`."""

    @property
    def index(self) -> int:
        """The last entry that is applied whole; some commands of the next one may show already."""

    @property
    def now(self) -> int: ...

    @property
    def discards(self) -> int:
        """How often this node gave its state up for that of another history (forced recovery).

        What was kept from a view with another number does not fit this one.
        """

    @property
    def members(self) -> Mapping[str, Member]: ...

    @property
    def version(self) -> int:
        """The active format of the plugin's commands, 0 while it is inactive. See `Context`."""

    @property
    def voters(self) -> tuple[str, ...]:
        """See `Context`."""

    @property
    def settings(self) -> Mapping[str, Any]: ...

    def table(self, name: str) -> TableView[Any, Any]: ...


class PurePlugin(Protocol):
    """The half of `raftkv.plugin.Plugin` that the state machine runs."""

    name: ClassVar[str]
    version: ClassVar[int]
    commands: ClassVar[tuple[type[msgspec.Struct], ...]]
    tables: ClassVar[tuple[TableSpec, ...]]
    settings: ClassVar[tuple[Setting, ...]]
    refusals: ClassVar[tuple[Any, ...]]
    uses: ClassVar[tuple[str, ...]]
    costly: ClassVar[tuple[type[msgspec.Struct], ...]]
    quota: ClassVar[Quota | None]

    def apply(self, command: Any, ctx: Context) -> Any: ...

    def cost(self, command: Any, view: View) -> int: ...

    def on_members(self, change: MemberChange, ctx: Context) -> None: ...

    def on_setting(self, change: SettingChange, ctx: Context) -> None: ...

    def on_voters(self, old: tuple[str, ...], ctx: Context) -> None: ...

    def invariants(self, view: View) -> Sequence[str]: ...

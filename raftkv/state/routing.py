"""One plugin inside one machine: its tables, its decoders, its context.

Everything that can be wrong with a plugin's declarations is found here, when the machine is made,
and raised as `ConfigError` naming the plugin: types that are mutable or of unbounded depth, tags
or names used twice, circles in `uses`.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from raftkv.errors import ConfigError, UnknownCommand, UnknownPlugin

from .contract import Member, PurePlugin, Setting, TableSpec
from .costs import Work
from .quota import Gate, Usage, made_table, quota_setting
from .slicing import at_once
from .tables import Table, TableView, UndoLog, undo_to
from .types import require_bounded, require_frozen
from .views import MembersView, SettingsView, voters_in

if TYPE_CHECKING:
    from .contract import Context
    from .sessions import Sessions

__all__ = ["CommandContext", "Routed", "in_use_order"]

_PLUGIN_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TABLE_NAME = re.compile(r"[a-z_]+")
_SETTING_TYPES = (int, bool, str, tuple, dict, types.UnionType, typing.Union, type(None))


class CommandContext:
    """The `Context` of one plugin. The machine fills it in before each command."""

    __slots__ = (
        "_callees",
        "_sessions",
        "_undo",
        "_voters",
        "charge",
        "index",
        "members",
        "now",
        "serial",
        "session",
        "settings",
        "table",
        "version",
    )

    def __init__(
        self,
        tables: Mapping[str, Table[Any, Any]],
        members: MembersView,
        settings: SettingsView,
        sessions: Sessions,
        undo: UndoLog,
        voters: TableView[str, Any],
        work: Work,
    ) -> None:
        self.now = 0
        self.index = 0
        self.serial = 0
        self.session = 0
        self.version = 0
        self.members = members
        self.settings = settings
        # Bound to the dict itself: one of the most frequent calls a plugin makes.
        self.table: Callable[[str], Table[Any, Any]] = tables.__getitem__
        self._sessions = sessions
        self._undo = undo
        self._voters = voters
        # One for all plugins: what a callee does is the caller's work.
        self.charge: Callable[[int], None] = work.charge
        self._callees: dict[str, Routed] = {}

    @property
    def origin(self) -> Member | None:
        session = self._sessions.by_id.get(self.session)
        return None if session is None else self.members.get(session.node)

    @property
    def voters(self) -> tuple[str, ...]:
        return voters_in(self._voters)

    def call(self, plugin: str, command: msgspec.Struct) -> Any:
        callee = self._callees.get(plugin)
        if callee is None:
            raise LookupError(f"{plugin!r} does not stand in uses")
        if callee.ctx.version == 0:
            raise UnknownPlugin(f"the plugin {plugin!r} is not active in this cluster")
        if type(command) not in callee.results:
            raise UnknownCommand(f"{plugin!r} has no command {type(command).__name__}")
        ctx = callee.ctx
        ctx.now, ctx.index = self.now, self.index
        ctx.serial, ctx.session = self.serial, self.session
        mark = len(self._undo)
        try:
            result = callee.apply_called(command, ctx)
            if type(result) is types.GeneratorType:
                result = at_once(result)
            return callee.checked(command, result)
        except BaseException:
            undo_to(self._undo, mark)
            raise


class Routed:
    """A plugin as the machine calls it."""

    def __init__(
        self,
        plugin: PurePlugin,
        undo: UndoLog,
        sessions: Sessions,
        members: MembersView | None,
        core_tables: Mapping[str, Table[Any, Any]] | None,
        work: Work,
    ) -> None:
        """`members` and `core_tables` are those of the core; None when this is the core."""
        name = self.name = plugin.name
        self.plugin = plugin
        try:
            self.tables: dict[str, Table[Any, Any]] = {
                spec.name: made_table(name, spec, undo, sessions.waste, plugin.quota)
                for spec in plugin.tables
            }
            _check_tables(plugin)
            self.settings = _checked_settings(plugin)
            self.results, self.result_decoders = _checked_commands(plugin)
            self.costly_tags = _costly_tags(plugin)
            union: Any = typing.Union[tuple(self.results)] if self.results else None  # noqa: UP007
            self.decode = msgspec.msgpack.Decoder(union).decode
        except TypeError as error:
            raise ConfigError(f"the plugin {name!r} cannot be used: {error}") from None
        self.row_decoders: dict[str, Callable[[bytes], list[tuple[Any, Any]]]] = {
            spec.name: _row_decoder(spec) for spec in plugin.tables
        }
        if members is None:
            members = MembersView(self.tables["members"].view)
        core = self.tables if core_tables is None else core_tables
        self.members = members
        self.voters: TableView[str, Any] = core["voters"].view
        self.settings_view = SettingsView(name, self.settings, core["settings"].view)
        self.ctx = CommandContext(
            self.tables, members, self.settings_view, sessions, undo, self.voters, work
        )
        #: None: the plugin counts nothing.
        self.usage: Usage | None = None
        if plugin.quota is not None:
            alarms = core["alarms"].view
            self.usage = Usage(name, plugin.quota, self.tables, self.settings_view, alarms)
        self.gate: Gate | None = None
        self.open_gate(gated=False)

    def open_gate(self, *, gated: bool) -> None:
        """Judge commands by the quotas, or by none, from now on."""
        gate = self.gate if gated else None
        self.apply: Callable[[Any, Context], Any]
        self.apply = self.plugin.apply if gate is None else gate.apply
        #: The gate, while it judges.
        self.judge = gate
        #: A command that came by `Context.call`.
        self.apply_called = self.plugin.apply if gate is None else gate.called

    def checked(self, command: Any, result: Any) -> Any:
        """The result, if it is of a type that the command declares; TypeError otherwise."""
        if type(result) not in self.results[type(command)]:
            raise TypeError(
                f"{type(command).__name__} returned {type(result).__name__}, "
                f"which its Result does not allow"
            )
        return result


def _row_decoder(spec: TableSpec) -> Callable[[bytes], list[tuple[Any, Any]]]:
    # A type that is only known at run time; the checker cannot read it as an annotation.
    rows: Any = types.GenericAlias(
        list, types.GenericAlias(tuple, (spec.key_type, spec.value_type))
    )
    return msgspec.msgpack.Decoder(rows).decode


def _check_tables(plugin: PurePlugin) -> None:
    if not _PLUGIN_NAME.fullmatch(plugin.name):
        raise TypeError("its name must match [a-z][a-z0-9_]*")
    if not 1 <= plugin.version < 2**31:
        raise TypeError("its version must be 1 or more")
    names = [spec.name for spec in plugin.tables]
    if len(set(names)) < len(names):
        raise TypeError("two tables have the same name")
    for spec in plugin.tables:
        if not _TABLE_NAME.fullmatch(spec.name):
            raise TypeError(f"the name of table {spec.name!r} must match [a-z_]+")
        if spec.run and spec.key_type is not int:
            raise TypeError(f"table {spec.name} is a run, but its keys are no ints")
        require_frozen(spec.key_type, f"the key of table {spec.name}")
        require_frozen(spec.value_type, f"the value of table {spec.name}")
    if plugin.quota is not None and not set(plugin.quota.sizes) <= set(names):
        raise TypeError("its quota counts a table that it does not have")


def _checked_settings(plugin: PurePlugin) -> dict[str, Setting]:
    declared = plugin.settings
    if plugin.quota is not None:
        declared = (*declared, quota_setting(plugin.quota))
    settings = {setting.key: setting for setting in declared}
    if len(settings) < len(declared):
        raise TypeError("two settings have the same key")
    for key, setting in settings.items():
        require_bounded(setting.type, f"setting {key}")
        origin = typing.get_origin(setting.type) or setting.type
        if origin not in _SETTING_TYPES:
            raise TypeError(f"setting {key} must be an int, bool, str, or a tuple or dict of these")
        reason = None if setting.check is None else setting.check(setting.default)
        if reason is not None:
            raise TypeError(f"the default of setting {key} fails its own check: {reason}")
    return dict(sorted(settings.items()))


def _checked_commands(
    plugin: PurePlugin,
) -> tuple[dict[type, frozenset[type]], dict[type, Callable[[bytes], Any]]]:
    results: dict[type, frozenset[type]] = {}
    decoders: dict[type, Callable[[bytes], Any]] = {}
    for command in plugin.commands:
        config = command.__struct_config__
        name = command.__name__
        if not config.array_like or not config.frozen or config.tag is None:
            raise TypeError(f"declare command {name} with tag=..., array_like=True, frozen=True")
        if not hasattr(command, "Result"):
            raise TypeError(f"command {name} lacks Result")
        require_bounded(command, f"command {name}")
        result = vars(command)["Result"]
        require_frozen(result, f"the Result of {name}")
        results[command] = frozenset(_classes(result))
        decoders[command] = msgspec.msgpack.Decoder(result).decode
    return results, decoders


def _costly_tags(plugin: PurePlugin) -> tuple[bytes, ...]:
    """What the encodings of the costly commands have behind their first byte."""
    for command in plugin.costly:
        if command not in plugin.commands:
            raise TypeError(f"{command.__name__} stands in costly, but not in commands")
    return tuple(msgspec.msgpack.encode(cmd.__struct_config__.tag) for cmd in plugin.costly)


def _classes(annotation: Any) -> Sequence[type]:
    """The classes whose instances belong to a type."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [cls for arg in typing.get_args(annotation) for cls in _classes(arg)]
    if origin is typing.Literal:
        return [type(value) for value in typing.get_args(annotation)]
    if origin is typing.Annotated:
        return _classes(typing.get_args(annotation)[0])
    if annotation is None:
        return [type(None)]
    return [origin or annotation]


def in_use_order(plugins: Sequence[PurePlugin]) -> list[PurePlugin]:
    """The plugins, each after those it uses, otherwise in name order.

    Raises ConfigError for a name used twice, a missing plugin in `uses`, or a circle.
    """
    by_name = {plugin.name: plugin for plugin in plugins}
    if len(by_name) < len(plugins):
        raise ConfigError("two plugins have the same name")
    ordered: dict[str, PurePlugin] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            raise ConfigError(f"plugins use each other in a circle: {' -> '.join((*trail, name))}")
        if name in ordered:
            return
        if name not in by_name:
            raise ConfigError(
                f"the plugin {trail[-1]!r} uses {name!r}, which this node lacks: name it in plugins"
            )
        for used in by_name[name].uses:
            visit(used, (*trail, name))
        ordered[name] = by_name[name]

    for name in sorted(by_name):
        visit(name, ())
    return list(ordered.values())

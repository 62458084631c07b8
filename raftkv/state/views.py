"""Reading doors to the members, the settings and a plugin's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from .contract import Member, Setting
from .tables import TableView

if TYPE_CHECKING:
    from .routing import Routed

__all__ = ["MembersView", "SettingsView", "StateView", "decode_setting", "voters_in"]


class Position(Protocol):
    """Where a machine stands."""

    @property
    def index(self) -> int: ...

    @property
    def now(self) -> int: ...

    @property
    def discards(self) -> int: ...


class StateView:
    """The applied state of one plugin, read-only. See `contract.View`."""

    __slots__ = ("_ctx", "_position", "_tables", "_voters", "members", "settings")

    def __init__(self, position: Position, routed: Routed) -> None:
        self._position = position
        self._tables = {name: table.view for name, table in routed.tables.items()}
        self._ctx = routed.ctx
        self._voters = routed.voters
        self.members: Mapping[str, Member] = routed.members
        self.settings: Mapping[str, Any] = routed.settings_view

    @property
    def index(self) -> int:
        return self._position.index

    @property
    def now(self) -> int:
        return self._position.now

    @property
    def discards(self) -> int:
        return self._position.discards

    @property
    def version(self) -> int:
        return self._ctx.version

    @property
    def voters(self) -> tuple[str, ...]:
        return voters_in(self._voters)

    def table(self, name: str) -> TableView[Any, Any]:
        return self._tables[name]


def voters_in(table: TableView[str, Any]) -> tuple[str, ...]:
    """The raft ids in the core's table of voters."""
    row = table.get("now")
    ids: tuple[str, ...] = () if row is None else row.raft_ids
    return ids


class MembersView(Mapping[str, Member]):
    """The members table as a mapping; iterates in the order of the names."""

    __slots__ = ("_table",)

    def __init__(self, table: TableView[str, Member]) -> None:
        self._table = table

    def __getitem__(self, name: str) -> Member:
        return self._table[name]

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._table.scan())

    def __len__(self) -> int:
        return len(self._table)


class SettingsView(Mapping[str, Any]):
    """One plugin's settings, decoded, with the defaults of those that were never set.

    The table holds them encoded, because values of some types could be changed in place. What was
    decoded is kept beside the bytes it came from, and is only used while these still stand there:
    an undone change needs no further care.
    """

    __slots__ = ("_decoded", "_plugin", "_settings", "_table")

    def __init__(
        self,
        plugin: str,
        settings: Mapping[str, Setting],
        table: TableView[tuple[str, str], bytes],
    ) -> None:
        self._plugin = plugin
        self._settings = settings
        self._table = table
        self._decoded: dict[str, tuple[bytes, Any]] = {}

    def __getitem__(self, key: str) -> Any:
        stored = self._table.get((self._plugin, key))
        if stored is None:
            return self._settings[key].default
        known = self._decoded.get(key)
        if known is None or known[0] is not stored:
            known = (stored, decode_setting(self._settings[key], stored))
            self._decoded[key] = known
        return known[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)


def decode_setting(setting: Setting, data: bytes) -> Any:
    """Raises msgspec.ValidationError or DecodeError when the bytes are no value of its type."""
    return msgspec.msgpack.decode(data, type=setting.type)

"""The plugin as raftkv sees it: what it declares, and which file does what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import (
    Context,
    Host,
    MemberChange,
    Plugin,
    Quota,
    Service,
    Setting,
    SettingChange,
    TableSpec,
    View,
    require_format,
)

from . import acks, entering, ownership, spaces
from .api import LimboApi
from .commands import (
    FORMAT_CONFIRMATIONS,
    TABLES,
    Ack,
    AlterFenced,
    AlterSpace,
    CreateSpace,
    Declare,
    Demote,
    DropFenced,
    DropSpace,
    Promote,
    RollBack,
    Submit,
    Sweep,
    Veto,
)
from .invariants import violations
from .options import LimboOptions
from .quota import QUOTA
from .refusals import REFUSALS
from .service import LimboService
from .settings import SETTINGS

if TYPE_CHECKING:
    import typer

__all__ = ["Limbo"]

_APPLY: Final[dict[type, Callable[[Any, Context], Any]]] = {
    Submit: entering.submit,
    Ack: acks.ack,
    Declare: acks.declare,
    Veto: acks.veto,
    Promote: ownership.promote,
    Demote: ownership.demote,
    RollBack: ownership.roll_back,
    CreateSpace: spaces.create,
    AlterSpace: spaces.alter,
    DropSpace: spaces.drop,
    Sweep: spaces.sweep,
    DropFenced: entering.drop_fenced,
    AlterFenced: entering.alter_fenced,
}

#: The format that introduced a command, for those that 0.1.0 does not know.
_SINCE: Final[dict[type[msgspec.Struct], int]] = {
    DropFenced: FORMAT_CONFIRMATIONS,
    AlterFenced: FORMAT_CONFIRMATIONS,
}


class Limbo(Plugin[LimboApi]):
    """Transactions that wait in one queue until a quorum of the application's choice has them."""

    name: ClassVar[str] = "limbo"
    version: ClassVar[int] = 2
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = tuple(_APPLY)
    tables: ClassVar[tuple[TableSpec, ...]] = TABLES
    settings: ClassVar[tuple[Setting, ...]] = SETTINGS
    refusals: ClassVar[tuple[type[Refused], ...]] = REFUSALS
    options: ClassVar[type[msgspec.Struct] | None] = LimboOptions
    quota: ClassVar[Quota | None] = QUOTA

    def apply(self, command: Any, ctx: Context) -> Any:
        require_format(self.name, command, ctx, _SINCE)
        return _APPLY[type(command)](command, ctx)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        acks.members_changed(change, ctx)

    def on_setting(self, change: SettingChange, ctx: Context) -> None:
        acks.setting_changed(change, ctx)

    def on_voters(self, old: tuple[str, ...], ctx: Context) -> None:
        acks.voters_changed(ctx)

    def invariants(self, view: View) -> Sequence[str]:
        return violations(view)

    def open(self, host: Host) -> LimboApi:
        return LimboApi(host)

    def service(self, host: Host, api: LimboApi) -> Service:
        return LimboService(host, api)

    def cli(self) -> typer.Typer:
        # A node has no use for the command line's modules.
        from .cli import app

        return app

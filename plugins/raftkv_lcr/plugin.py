"""The plugin as raftkv sees it: what it declares, and which file does what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

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
    TableSpec,
    View,
    require_format,
)

from . import registry
from .api import LcrApi
from .commands import (
    FORMAT_SESSIONS,
    FORMAT_TIMES,
    REFUSALS,
    TABLES,
    Adopt,
    Announce,
    Cleanup,
    DrawTicket,
    Open,
    Register,
    SwitchMode,
    TakeTicket,
    TrimPast,
    Unregister,
)
from .invariants import violations
from .options import LcrOptions
from .quota import QUOTA
from .service import LcrService
from .settings import SETTINGS

if TYPE_CHECKING:
    import typer

__all__ = ["LCR"]

_SINCE: dict[type[msgspec.Struct], int] = {
    Open: FORMAT_SESSIONS,
    Adopt: FORMAT_SESSIONS,
    Announce: FORMAT_SESSIONS,
    SwitchMode: FORMAT_SESSIONS,
    TrimPast: FORMAT_SESSIONS,
    DrawTicket: FORMAT_TIMES,
}


class LCR(Plugin[LcrApi]):
    """The Linear Channel Registry: one owner per client id, decided in the log."""

    name: ClassVar[str] = "lcr"
    version: ClassVar[int] = FORMAT_TIMES
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = (
        Register,
        Unregister,
        TakeTicket,
        Cleanup,
        Open,
        Adopt,
        Announce,
        SwitchMode,
        TrimPast,
        DrawTicket,
    )
    tables: ClassVar[tuple[TableSpec, ...]] = TABLES
    settings: ClassVar[tuple[Setting, ...]] = SETTINGS
    refusals: ClassVar[tuple[type[Refused], ...]] = REFUSALS
    options: ClassVar[type[msgspec.Struct] | None] = LcrOptions
    quota: ClassVar[Quota | None] = QUOTA

    def apply(self, command: Any, ctx: Context) -> Any:
        require_format(self.name, command, ctx, _SINCE)
        return registry.apply(command, ctx)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        registry.mark_ended(change, ctx)

    def invariants(self, view: View) -> Sequence[str]:
        return violations(view)

    def open(self, host: Host) -> LcrApi:
        return LcrApi(host)

    def service(self, host: Host, api: LcrApi) -> Service:
        return LcrService(host, api)

    def cli(self) -> typer.Typer:
        # A node has no use for the command line's modules.
        from .cli import app

        return app

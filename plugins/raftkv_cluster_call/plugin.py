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
)

from . import cursors, log, trimming
from .api import CallsApi
from .commands import (
    REFUSALS,
    TABLES,
    Abort,
    Acknowledge,
    Advance,
    Commit,
    Expire,
    Failing,
    Force,
    Join,
    Leave,
    Rejoin,
    Reserve,
    Reset,
    Skip,
    Sync,
    Trim,
    Withdraw,
)
from .invariants import violations
from .options import CallsOptions
from .quota import QUOTA
from .service import CallsService
from .settings import SETTINGS

if TYPE_CHECKING:
    import typer

__all__ = ["Calls"]

_APPLY: Final[dict[type, Callable[[Any, Context], Any]]] = {
    Reserve: log.reserve,
    Commit: log.commit,
    Abort: log.abort,
    Withdraw: log.withdraw,
    Expire: log.expire,
    Advance: cursors.advance,
    Failing: cursors.failing,
    Skip: cursors.skip,
    Join: cursors.join,
    Sync: cursors.sync,
    Leave: cursors.leave,
    Rejoin: cursors.rejoin,
    Acknowledge: cursors.acknowledge,
    Force: trimming.force,
    Reset: trimming.reset,
    Trim: trimming.trim,
}


class Calls(Plugin[CallsApi]):
    """Cluster calls: every node executes every call, in one order."""

    name: ClassVar[str] = "calls"
    version: ClassVar[int] = 2
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = tuple(_APPLY)
    tables: ClassVar[tuple[TableSpec, ...]] = TABLES
    settings: ClassVar[tuple[Setting, ...]] = SETTINGS
    refusals: ClassVar[tuple[type[Refused], ...]] = REFUSALS
    uses: ClassVar[tuple[str, ...]] = ("kv",)
    options: ClassVar[type[msgspec.Struct] | None] = CallsOptions
    quota: ClassVar[Quota | None] = QUOTA

    def apply(self, command: Any, ctx: Context) -> Any:
        return _APPLY[type(command)](command, ctx)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        cursors.members_changed(change, ctx)

    def on_setting(self, change: SettingChange, ctx: Context) -> None:
        cursors.setting_changed(change, ctx)

    def invariants(self, view: View) -> Sequence[str]:
        return violations(view)

    def open(self, host: Host) -> CallsApi:
        return CallsApi(host)

    def service(self, host: Host, api: CallsApi) -> Service:
        return CallsService(host, api)

    def cli(self) -> typer.Typer:
        # A node has no use for the command line's modules.
        from .cli import app

        return app

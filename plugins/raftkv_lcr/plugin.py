"""The plugin as raftkv sees it: what it declares, and which file does what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import (
    Context,
    Host,
    MemberChange,
    Plugin,
    Service,
    Setting,
    TableSpec,
    View,
)

from . import registry
from .api import LcrApi
from .commands import REFUSALS, SETTINGS, TABLES, Cleanup, Register, TakeTicket, Unregister
from .invariants import violations
from .service import LcrService

__all__ = ["LCR"]


class LCR(Plugin[LcrApi]):
    """The Linear Channel Registry: one owner per client id, decided in the log."""

    name: ClassVar[str] = "lcr"
    version: ClassVar[int] = 1
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = (
        Register,
        Unregister,
        TakeTicket,
        Cleanup,
    )
    tables: ClassVar[tuple[TableSpec, ...]] = TABLES
    settings: ClassVar[tuple[Setting, ...]] = SETTINGS
    refusals: ClassVar[tuple[type[Refused], ...]] = REFUSALS

    def apply(self, command: Any, ctx: Context) -> Any:
        return registry.apply(command, ctx)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        registry.mark_ended(change, ctx)

    def invariants(self, view: View) -> Sequence[str]:
        return violations(view)

    def open(self, host: Host) -> LcrApi:
        return LcrApi(host)

    def service(self, host: Host, api: LcrApi) -> Service:
        return LcrService(host, api)

"""The plugin as raftkv sees it: what it declares, and which file does what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    TableSpec,
    View,
    require_format,
)

from . import (
    branches,
    closing,
    ending,
    queues,
    sessions,
    settling,
    sweeping,
    timers,
    transactions,
)
from .api import TxQueueApi
from .commands import (
    FORMAT_END_SESSION,
    FORMAT_ENSURE,
    FORMAT_PUT_BACK,
    FORMAT_TIMES,
    TABLES,
    Acquire,
    CloseSession,
    Commit,
    CommitBranch,
    DeclareQueue,
    DeleteQueue,
    End,
    EndSession,
    EnsureQueue,
    ForgetBranch,
    Heuristic,
    Observe,
    OpenSession,
    PrepareBranch,
    Publish,
    Purge,
    PutBack,
    Rollback,
    RollbackBranch,
    Select,
    SetTimeout,
    Settle,
    Stage,
    Start,
    Sweep,
    ToBack,
    Vote,
)
from .invariants import violations
from .options import TxQueueOptions
from .quota import QUOTA
from .refusals import REFUSALS
from .service import TxQueueService
from .settings import SETTINGS

if TYPE_CHECKING:
    import typer

__all__ = ["TxQueue"]

_APPLY: Final[dict[type, Callable[[Any, Context], Any]]] = {
    DeclareQueue: queues.declare,
    EnsureQueue: queues.ensure,
    DeleteQueue: queues.delete,
    Purge: queues.purge,
    Publish: queues.publish,
    OpenSession: sessions.open,
    CloseSession: ending.close,
    EndSession: ending.end_by_operator,
    Select: sessions.select,
    Acquire: timers.acquire,
    Settle: settling.settle,
    PutBack: settling.settle,
    ToBack: settling.settle,
    Observe: closing.observe,
    Stage: transactions.stage,
    Commit: transactions.commit,
    Rollback: transactions.rollback,
    Vote: transactions.vote,
    Start: branches.start,
    End: branches.end,
    PrepareBranch: branches.prepare,
    CommitBranch: branches.commit,
    RollbackBranch: branches.rollback,
    ForgetBranch: branches.forget,
    SetTimeout: branches.set_timeout,
    Heuristic: branches.heuristic,
    Sweep: sweeping.sweep,
}

#: The format that introduced a command, for those that 0.1.0 does not know.
_SINCE: Final[dict[type[msgspec.Struct], int]] = {
    PutBack: FORMAT_PUT_BACK,
    EnsureQueue: FORMAT_ENSURE,
    EndSession: FORMAT_END_SESSION,
    ToBack: FORMAT_TIMES,
}


class TxQueue(Plugin[TxQueueApi]):
    """Queues, with local and distributed transactions that are one log entry on every node."""

    name: ClassVar[str] = "txqueue"
    version: ClassVar[int] = 2
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = tuple(_APPLY)
    tables: ClassVar[tuple[TableSpec, ...]] = TABLES
    settings: ClassVar[tuple[Setting, ...]] = SETTINGS
    refusals: ClassVar[tuple[type[Refused], ...]] = REFUSALS
    options: ClassVar[type[msgspec.Struct] | None] = TxQueueOptions
    quota: ClassVar[Quota | None] = QUOTA

    def apply(self, command: Any, ctx: Context) -> Any:
        require_format(self.name, command, ctx, _SINCE)
        return _APPLY[type(command)](command, ctx)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        ending.life_changed(change, ctx)

    def invariants(self, view: View) -> Sequence[str]:
        return violations(view)

    def open(self, host: Host) -> TxQueueApi:
        return TxQueueApi(host)

    def service(self, host: Host, api: TxQueueApi) -> Service:
        return TxQueueService(host, api)

    def cli(self) -> Mapping[str, typer.Typer]:
        # A node has no use for the command line's modules.
        from .cli import groups

        return groups()

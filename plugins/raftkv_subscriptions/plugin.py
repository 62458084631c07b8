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
    SettingChange,
    TableSpec,
    View,
    require_format,
)

from . import (
    acking,
    arriving,
    consumers,
    handing,
    merging,
    regions,
    snapshots,
    subs,
    sweeping,
    topics,
)
from .api import SubscriptionsApi
from .commands import (
    FORMAT_ENSURE,
    FORMAT_EPOCHS,
    Ack,
    AckDelivered,
    AckTo,
    AckToDelivered,
    Attach,
    DeclareTopic,
    DeleteTopic,
    Deliver,
    Detach,
    EnsureTopic,
    Merge,
    Publish,
    PutRegion,
    Release,
    ReleaseDelivered,
    RemoveRegion,
    Report,
    Seek,
    SetRegion,
    SetReplicate,
    SnapshotAbandon,
    SnapshotAnswer,
    SnapshotAnswered,
    SnapshotStart,
    Subscribe,
    Sweep,
    Take,
    Unsubscribe,
    Update,
)
from .invariants import violations
from .options import SubscriptionsOptions
from .quota import QUOTA
from .refusals import REFUSALS
from .rows import TABLES
from .service import SubscriptionsService
from .settings import SETTINGS

if TYPE_CHECKING:
    import typer

    from .links.transport import TransportFactory

__all__ = ["Subscriptions"]

_APPLY: Final[dict[type, Callable[[Any, Context], Any]]] = {
    DeclareTopic: topics.declare,
    EnsureTopic: topics.ensure,
    DeleteTopic: topics.delete,
    Publish: topics.publish,
    Deliver: arriving.deliver,
    SetRegion: regions.set_region,
    PutRegion: regions.put,
    RemoveRegion: regions.remove,
    Report: regions.report,
    Subscribe: subs.subscribe,
    Unsubscribe: subs.unsubscribe,
    SetReplicate: subs.set_replicate,
    Seek: subs.seek,
    Ack: acking.ack,
    AckTo: acking.ack_to,
    AckDelivered: acking.ack,
    AckToDelivered: acking.ack_to,
    Merge: merging.merge,
    Update: merging.update,
    Attach: consumers.attach,
    Detach: consumers.detach,
    Take: handing.take,
    Release: handing.release,
    ReleaseDelivered: handing.release,
    SnapshotStart: snapshots.start,
    SnapshotAnswer: snapshots.answer,
    SnapshotAnswered: snapshots.answered,
    SnapshotAbandon: snapshots.abandon,
    Sweep: sweeping.sweep,
}

#: The format that introduced a command, for those that 0.1.0 does not know.
_SINCE: Final[dict[type[msgspec.Struct], int]] = {
    AckDelivered: FORMAT_EPOCHS,
    AckToDelivered: FORMAT_EPOCHS,
    ReleaseDelivered: FORMAT_EPOCHS,
    EnsureTopic: FORMAT_ENSURE,
}


class Subscriptions(Plugin[SubscriptionsApi]):
    """Topics that go from region to region, and subscriptions that go with their consumers.

    `transports` makes the ways to other regions; None: their HTTP doors.
    """

    name: ClassVar[str] = "subscriptions"
    version: ClassVar[int] = 2
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = tuple(_APPLY)
    tables: ClassVar[tuple[TableSpec, ...]] = TABLES
    settings: ClassVar[tuple[Setting, ...]] = SETTINGS
    refusals: ClassVar[tuple[type[Refused], ...]] = REFUSALS
    options: ClassVar[type[msgspec.Struct] | None] = SubscriptionsOptions
    quota: ClassVar[Quota | None] = QUOTA

    def __init__(self, transports: TransportFactory | None = None) -> None:
        self._transports = transports

    def apply(self, command: Any, ctx: Context) -> Any:
        require_format(self.name, command, ctx, _SINCE)
        return _APPLY[type(command)](command, ctx)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        consumers.life_changed(change, ctx)

    def on_setting(self, change: SettingChange, ctx: Context) -> None:
        if change.new == change.old:
            return
        if change.key == "mode":
            snapshots.mode_changed(ctx)
        if change.key in ("mode", "enabled"):
            snapshots.switched(ctx)

    def invariants(self, view: View) -> Sequence[str]:
        return violations(view)

    def open(self, host: Host) -> SubscriptionsApi:
        return SubscriptionsApi(host)

    def service(self, host: Host, api: SubscriptionsApi) -> Service:
        return SubscriptionsService(host, api, transport_factory=self._transports)

    def cli(self) -> Mapping[str, typer.Typer]:
        # A node has no use for the command line's modules.
        from .cli import groups

        return groups()

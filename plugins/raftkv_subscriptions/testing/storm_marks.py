"""What a storm of regions has seen: what never happens in it, it proves nothing about."""

from __future__ import annotations

from collections.abc import Iterator

from raftkv_subscriptions.commands import (
    AckDelivered,
    AckToDelivered,
    Deliver,
    Merge,
    ReleaseDelivered,
    Seek,
    SnapshotAbandon,
    SnapshotAnswered,
    Sweep,
    Take,
    Update,
)

from .storm_hands import late_release
from .storm_ledger import Ledger, Step

__all__ = ["EXPECTED", "marks_of"]

#: What some of many seeds must have seen.
EXPECTED = (
    "applied Publish",
    "applied Deliver",
    "applied Merge",
    "applied Update",
    "applied Ack",
    "applied AckTo",
    "applied AckDelivered",
    "applied AckToDelivered",
    "acknowledged before a seek",
    "applied Seek",
    "applied Subscribe",
    "applied Unsubscribe",
    "applied SetReplicate",
    "applied Attach",
    "applied Detach",
    "applied Take",
    "applied ReleaseDelivered",
    "released before a seek",
    "applied Report",
    "applied PutRegion",
    "applied RemoveRegion",
    "applied DeleteTopic",
    "applied SnapshotStart",
    "applied SnapshotAnswer",
    "applied SnapshotAnswered",
    "applied SnapshotAbandon",
    "applied Sweep",
    "arrived twice",
    "arrived with a hole",
    "made by a merge",
    "made by an update",
    "merge ignored: not replicated",
    "merge ignored: disabled",
    "merge ignored: too many ranges",
    "update moved a mark",
    "acknowledged before it came",
    "snapshot complete",
    "snapshot of two rounds",
    "snapshot answer not counted",
    "snapshot timed out",
    "sought back",
    "sought forth",
    "handed out again",
    "too much in hands",
    "retention removed",
    "refused OutOfOrder",
    "refused BacklogFull",
    "refused SubscriptionBusy",
    "refused KindDiffers",
    "refused RegionExcluded",
    "moved quiesced",
    "moved before its state",
    "moved in haste",
    "moved in peace",
    "came twice after a move",
    "settled: all",
    "settled: some",
    "settled: to",
    "settled: nack",
    "settled: keep",
    "drained",
)


def marks_of(step: Step, ledger: Ledger) -> Iterator[str]:
    """What this step shows."""
    command, result = step.command, step.result
    if step.refusal is not None:
        yield f"refused {type(step.refusal).__name__}"
        return
    yield f"applied {type(command).__name__}"
    match command:
        case Deliver():
            if result.doubles:
                yield "arrived twice"
            if any(type(part).__name__ == "Hole" for part in command.parts):
                yield "arrived with a hole"
        case Merge() | Update():
            yield from _merged(step, ledger)
        case SnapshotAnswered() if result.complete:
            yield "snapshot complete"
            if command.round == 2:
                yield "snapshot of two rounds"
        case SnapshotAnswered() if not result.counted:
            yield "snapshot answer not counted"
        case SnapshotAbandon() if result.counted:
            yield "snapshot timed out"
        case Seek():
            yield "sought back" if result.mark == command.position else "sought forth"
        case AckDelivered() | AckToDelivered():
            sub = ledger.living.get((step.region, command.topic, command.sub))
            if sub is not None and command.epoch != sub.row.epoch:
                yield "acknowledged before a seek"
        case ReleaseDelivered() if late_release(step, ledger):
            yield "released before a seek"
        case Take():
            if any(each > 1 for each in result.deliveries):
                yield "handed out again"
            if not result.positions and not result.more:
                yield "too much in hands"
        case Sweep() if result.rows and command.topics:
            yield "retention removed"


def _merged(step: Step, ledger: Ledger) -> Iterator[str]:
    command, result = step.command, step.result
    merge = isinstance(command, Merge)
    if result.created:
        yield "made by a merge" if merge else "made by an update"
    if result.ignored:
        yield f"merge ignored: {result.ignored}"
    if result.done and not merge:
        yield "update moved a mark"
    book = ledger.book(step.region, command.topic)
    if merge and book is not None:
        for origin, _, last in command.ranges:
            if last > book.last.get(origin, 0):
                yield "acknowledged before it came"
                break

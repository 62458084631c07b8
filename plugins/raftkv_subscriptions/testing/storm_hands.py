"""Who has what in a storm of regions: consumers, and the messages in their hands."""

from __future__ import annotations

from collections.abc import Iterator

from raftkv_subscriptions.commands import (
    Ack,
    AckDelivered,
    Attach,
    Detach,
    Release,
    ReleaseDelivered,
    Take,
)

from .storm_ledger import Ledger, Step, SubBook
from .storm_rules import HANDS, Found

__all__ = ["consumed", "is_live", "late_release"]


def consumed(step: Step, ledger: Ledger) -> Iterator[Found]:
    command, region = step.command, step.region
    match command:
        case Attach():
            yield from _attached(step, ledger)
        case Detach():
            ledger.detached.add((region, command.consumer))
        case Take():
            yield from _taken(step, ledger)
        case Release():
            for sub in _sub_of(step, ledger, command.consumer):
                if is_late(step, sub):
                    if step.result.done:
                        yield HANDS, f"{command} is of before a seek, and {step.result}"
                    continue
                for each in command.positions:
                    if sub.hands.get(each) == command.consumer:
                        del sub.hands[each]
        case Ack() if command.consumer:
            if isinstance(command, AckDelivered) and command.epoch != _epoch_of(step, ledger):
                return
            for sub in _sub_of(step, ledger, command.consumer):
                for each in command.positions:
                    if sub.hands.get(each) == command.consumer:
                        del sub.hands[each]


def _sub_of(step: Step, ledger: Ledger, consumer: int) -> Iterator[SubBook]:
    known = ledger.consumers.get((step.region, consumer))
    if known is not None and (step.region, known[0]) in ledger.subs:
        yield ledger.subs[step.region, known[0]]


def late_release(step: Step, ledger: Ledger) -> bool:
    """Whether the step gives back what was delivered before a seek."""
    return any(is_late(step, sub) for sub in _sub_of(step, ledger, step.command.consumer))


def is_late(step: Step, sub: SubBook) -> bool:
    """Whether the step is a release of what was delivered before the subscription was sought."""
    command = step.command
    return isinstance(command, ReleaseDelivered) and command.epoch != sub.row.epoch


def _epoch_of(step: Step, ledger: Ledger) -> int | None:
    sub = ledger.living.get((step.region, step.command.topic, step.command.sub))
    return None if sub is None else int(sub.row.epoch)


def is_live(step: Step, ledger: Ledger, consumer: int) -> bool:
    """Whether it was not detached, and its node has the life in which it came."""
    known = ledger.consumers.get((step.region, consumer))
    if known is None or (step.region, consumer) in ledger.detached:
        return False
    member = step.members.get(known[1])
    return member is not None and member.up and member.incarnation == known[2]


def _attached(step: Step, ledger: Ledger) -> Iterator[Found]:
    command, id = step.command, step.result.consumer
    sub = ledger.living.get((step.region, command.topic, command.sub))
    if sub is None or step.origin is None:
        yield HANDS, f"{id} came to {command.sub}, which is not there"
        return
    if sub.row.kind == "exclusive":
        for (region, other), known in ledger.consumers.items():
            if region == step.region and known[0] == sub.id and is_live(step, ledger, other):
                yield HANDS, f"{id} came to {sub.name}, which {other} has"
    ledger.consumers[step.region, id] = (sub.id, *step.origin)


def _taken(step: Step, ledger: Ledger) -> Iterator[Found]:
    command, result = step.command, step.result
    for sub in _sub_of(step, ledger, command.consumer):
        book = ledger.topics[step.region, _topic_id(ledger, sub)]
        for position, deliveries in zip(result.positions, result.deliveries, strict=True):
            other = sub.hands.get(position)
            if other is not None and (other == command.consumer or is_live(step, ledger, other)):
                yield (
                    HANDS,
                    f"{position} of {sub.name} is given to {command.consumer}: {other} has it",
                )
            number = book.at.get(position)
            if number is None or not sub.wants(number):
                yield HANDS, f"{position} of {sub.name} is given out, and not wanted"
            before = sub.deliveries.get(position, 0)
            if deliveries != before + 1:
                yield HANDS, f"{position} of {sub.name} has {deliveries} deliveries, after {before}"
            sub.hands[position] = command.consumer
            sub.deliveries[position] = deliveries


def _topic_id(ledger: Ledger, sub: SubBook) -> int:
    return ledger.named[sub.region, sub.topic].id

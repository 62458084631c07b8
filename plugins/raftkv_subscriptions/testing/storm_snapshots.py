"""What the snapshots of the topics of several regions are made of.

A wrong snapshot may be followed by a right one before its positions do any harm. So each is judged
when it is completed, and not only by its positions: it consists of the answers that the regions
gave to this snapshot, in both rounds.
"""

from __future__ import annotations

from collections.abc import Iterator

from raftkv_subscriptions import markers
from raftkv_subscriptions.commands import SnapshotAnswer, SnapshotAnswered
from raftkv_subscriptions.rows import Answer, Snapshot

from .storm_ledger import Ledger, Step, TopicBook
from .storm_rules import SNAPSHOTS, Found

__all__ = ["snapshots"]


def snapshots(step: Step, ledger: Ledger) -> Iterator[Found]:
    """Check what this step answers, counts and completes."""
    command, result = step.command, step.result
    if isinstance(command, SnapshotAnswer):
        yield from _answers(step, ledger, command)
    elif isinstance(command, SnapshotAnswered) and result.counted:
        yield from _counted(step, ledger, command)
        if result.complete:
            yield from _completed(step, ledger, command)


def _answers(step: Step, ledger: Ledger, command: SnapshotAnswer) -> Iterator[Found]:
    """An answer is the end of the topic when it is written, and stays so when the request arrives
    again."""
    book = ledger.book(step.region, command.topic)
    meaning = markers.answer_to(command.source)
    marker = None if book is None else markers.marker_of(step.tables, book.id, meaning)
    if book is None or marker is None or not isinstance(marker.what, Answer):
        return
    what = marker.what
    if (what.id, what.round) != (command.id, command.round):
        return
    request = (command.source, command.topic, command.id, command.round)
    given = ledger.answers.setdefault((step.region, *request), {})
    written = (book.id, step.tables.table("marked")[book.id, meaning])
    right = given.setdefault(written, book.next - 1)
    if what.position != right:
        yield SNAPSHOTS, f"{command.source} is answered {what.position}, the end was {right}"


def _counted(step: Step, ledger: Ledger, command: SnapshotAnswered) -> Iterator[Found]:
    """Only what a region answered is counted."""
    request = (step.region, command.topic, command.id, command.round)
    given = ledger.answers.get((command.region, *request), {})
    if command.position not in given.values():
        yield SNAPSHOTS, f"{command} is counted, the answers were {list(given.values())}"
    ledger.counted.setdefault(request, {})[command.region] = command.position


def _completed(step: Step, ledger: Ledger, command: SnapshotAnswered) -> Iterator[Found]:
    """The snapshot is kept, and is made of the answers to it."""
    here = ledger.book(step.region, command.topic)
    assert here is not None
    rows = step.tables.table("snapshots").scan(
        (here.id, 0), (here.id + 1, 0), reverse=True, limit=1
    )
    (_, position), snapshot = next(rows, ((here.id, 0), None))
    if snapshot is None or snapshot.id != command.id:
        yield SNAPSHOTS, f"{command.id} is complete, and not kept"
        return
    positions = dict(snapshot.positions)
    ledger.snapshots[step.region, command.topic, snapshot.id] = (position, positions)
    yield from _made_of_answers(step, ledger, here, position, snapshot)
    yield from _consistent(ledger, here, position, positions)


def _made_of_answers(
    step: Step, ledger: Ledger, here: TopicBook, position: int, snapshot: Snapshot
) -> Iterator[Found]:
    """Each active region has answered each round; the positions are those of the first, and ours is
    the end of the topic now."""
    regions = step.tables.table("regions").scan()
    active = {name for name, row in regions if row.state == "active"}
    positions = dict(snapshot.positions)
    key = (step.region, here.name, snapshot.id)
    first, second = (ledger.counted.get((*key, number), {}) for number in (1, 2))
    if positions != first or set(positions) != active:
        text = f"{snapshot.id} of {here.name} has {positions}, of {sorted(active)} answered {first}"
        yield SNAPSHOTS, text
    if len(active) > 1 and set(second) != active:
        text = f"{snapshot.id} of {here.name} is complete, of {sorted(active)} answered only "
        yield SNAPSHOTS, f"{text}{sorted(second)} the second round"
    if position != here.next - 1:
        yield (
            SNAPSHOTS,
            f"{snapshot.id} of {here.name} is at {position}, the end is {here.next - 1}",
        )


def _consistent(
    ledger: Ledger, here: TopicBook, position: int, positions: dict[str, int]
) -> Iterator[Found]:
    """Whatever is there up to the snapshot's positions is here up to ours."""
    for region, upto in positions.items():
        there = ledger.book(region, here.name)
        if there is None:
            continue
        for at in range(there.begin, min(upto, there.next - 1) + 1):
            number = there.at[at]
            mine = here.positions.get(number)
            if mine is None and number in here.holes:
                continue
            if mine is None or mine > position:
                text = f"{region} has {number} up to {upto}, here it is at {mine}, "
                yield SNAPSHOTS, f"{text}after {position}"
                break

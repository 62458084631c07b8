"""What becomes of the sets of a storm's subscriptions: what each gains, and by whose word.

A set is read from the rows of floors and ranges, and expanded: here it is a set of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from raftkv_subscriptions import markers
from raftkv_subscriptions.commands import (
    FORMAT_KEPT,
    Ack,
    AckDelivered,
    AckTo,
    AckToDelivered,
    Attach,
    Merge,
    Seek,
    Subscribe,
    Update,
)
from raftkv_subscriptions.merging import TOO_MANY
from raftkv_subscriptions.rows import Advance

from .storm_ledger import Ledger, Number, Step, SubBook, TopicBook
from .storm_rules import BEGIN, KEPT, MARKS, ONLY, SNAPSHOTS, Found, expanded, own_of

__all__ = ["lacking", "subscriptions"]


def lacking(source: SubBook, target: SubBook, ranges_max: int) -> set[Number]:
    """What the source has acknowledged, and the target has not, and takes when it receives it.

    It does not take what it was sought over, nor, while it has `ranges_max` ranges, what would be
    one more.
    """
    told = {
        (origin, seq)
        for origin, seq in source.acked
        if seq > max(target.base.get(origin, 0), target.mask.get(origin, 0))
    }
    found = told - target.acked
    if found and target.row.ranges >= ranges_max:
        found -= target.apart(told)
    return found


def subscriptions(step: Step, ledger: Ledger, book: TopicBook) -> Iterator[Found]:
    rows = step.tables.table("subs").scan((book.id, ""), (book.id + 1, ""))
    for (_, name), row in list(rows):
        known = ledger.subs.get((step.region, row.id))
        # Two commands of one entry may leave equal rows over different sets.
        named = getattr(step.command, "sub", None) == name
        if known is not None and known.row == row and not named:
            continue
        if known is None:
            known = SubBook(step.region, row.id, book.name, name, row, mark=row.mark)
            yield from _begins(step, ledger, book, known)
        yield from _moved(step, ledger, book, known, row)


def _begins(step: Step, ledger: Ledger, book: TopicBook, sub: SubBook) -> Iterator[Found]:
    """It is new: is its base that of the place where it begins?"""
    command, own = step.command, own_of(step)
    key = (step.region, book.name, sub.name)
    ledger.subs[step.region, sub.id] = ledger.living[key] = sub
    match command:
        case Subscribe(initial="latest"):
            sub.base = dict(book.last)
            right = book.next - 1
        case Subscribe():
            sub.base = book.vector(book.first - 1)
            right = book.first - 1
        case Merge() | Update():
            told = dict(command.base)
            had = ledger.bases.get((command.source, book.name, sub.name), [])
            if told not in had:
                yield BEGIN, f"{sub.name} begins with {told}, {command.source} never had that"
            last = book.last.get(own, 0)
            sub.base = {o: min(seq, last) if o == own else seq for o, seq in told.items()}
            sub.base = {o: seq for o, seq in sub.base.items() if seq}
            right = book.first - 1
        case _:
            yield BEGIN, f"{sub.name} was made by {command}"
            return
    if isinstance(command, Subscribe) and step.result.mark != right:
        yield BEGIN, f"{sub.name} begins at {step.result.mark}, {command.initial} is {right}"


def _moved(step: Step, ledger: Ledger, book: TopicBook, sub: SubBook, row: Any) -> Iterator[Found]:
    """Something of it has changed: set, base, mark."""
    command, key = step.command, (step.region, book.name, sub.name)
    base, mask, acked = _rows_of(step.tables, sub.id)
    sought = isinstance(command, Seek) and command.sub == sub.name
    before = sub.acked
    if sought:
        yield from _sought(book, sub, step, row, mask)
        sub.base = book.vector(step.result.mark)
        before = set()
        sub.since = {}
    elif mask != sub.mask:
        yield BEGIN, f"the masks of {sub.name} were {sub.mask}, and are {mask}"
    if base != sub.base:
        yield BEGIN, f"{sub.name} has the base {base}, and not {sub.base}"
    lost = before - acked
    if lost:
        yield KEPT, f"{sub.name} has lost {sorted(lost)[:3]}"
    gained = acked - before
    yield from _gained(step, ledger, book, sub, gained, acked, mask, row)
    low = 0 if sought else sub.mark
    if row.mark < low:
        yield MARKS, f"the mark of {sub.name} goes back from {low} to {row.mark}"
    sub.acked, sub.mask = acked, mask
    sub.since.update(dict.fromkeys(gained, step.index))
    for position in range(max(low + 1, book.begin), row.mark + 1):
        if position >= book.next:
            yield MARKS, f"the mark of {sub.name} is {row.mark}, and {book.next} comes next"
            break
        if position >= book.first and sub.wants(book.at[position]):
            text = f"the mark of {sub.name} is {row.mark}, {book.at[position]} is at {position}"
            yield MARKS, text
            break
    if row.mark > low and not sought:
        yield from _told(step, book, sub.name, row, low)
    if row.epoch != sub.row.epoch:
        sub.hands.clear()
        sub.deliveries.clear()
    sub.mark, sub.row = row.mark, row
    ledger.known.setdefault(key, set()).update(acked)
    bases = ledger.bases.setdefault(key, [])
    if base not in bases:
        bases.append(base)


def _told(step: Step, book: TopicBook, name: str, row: Any, low: int) -> Iterator[Found]:
    """In snapshot mode: a mark that passed kept snapshots told the others of the highest one, or of
    an older one with the same positions."""
    tables, settings = step.tables, step.settings
    snapshots = settings["enabled"] and settings["mode"] == "snapshot"
    if not snapshots or not row.replicate or tables.version < FORMAT_KEPT:
        return
    kept = tables.table("snapshots").scan(
        (book.id, low + 1), (book.id, row.mark + 1), reverse=True, limit=1
    )
    for (_, position), snapshot in kept:
        marker = markers.marker_of(tables, book.id, markers.update_of(name))
        what = None if marker is None else marker.what
        told = isinstance(what, Advance) and (
            what.id >= snapshot.id or what.positions == snapshot.positions
        )
        if not told:
            yield SNAPSHOTS, f"{name} passed the snapshot at {position}, and told {what}"


def _rows_of(tables: Any, id: int) -> tuple[dict[str, int], dict[str, int], set[Number]]:
    base: dict[str, int] = {}
    mask: dict[str, int] = {}
    acked: set[Number] = set()
    for (_, origin), floor in tables.table("floors").scan((id, ""), (id + 1, "")):
        if floor.base:
            base[origin] = floor.base
        if floor.mask:
            mask[origin] = floor.mask
        acked.update((origin, seq) for seq in range(floor.base + 1, floor.floor + 1))
    for (_, origin, first), last in tables.table("acks").scan((id, "", 0), (id + 1, "", 0)):
        acked.update((origin, seq) for seq in range(first, last + 1))
    return base, mask, acked


def _sought(
    book: TopicBook, sub: SubBook, step: Step, row: Any, mask: dict[str, int]
) -> Iterator[Found]:
    """`sub` is as it was before."""
    right = max(step.command.position, book.first - 1)
    if step.result.mark != right or row.mark < right:
        yield BEGIN, f"{sub.name} is sought to {right}, and its mark is {row.mark}"
    reached = dict(sub.mask)
    for origin, seq in (*sub.base.items(), *sub.acked):
        reached[origin] = max(reached.get(origin, 0), seq)
    if mask != reached:
        yield BEGIN, f"{sub.name} reached {reached}, and is masked up to {mask} after a seek"


def _gained(
    step: Step,
    ledger: Ledger,
    book: TopicBook,
    sub: SubBook,
    gained: set[Number],
    acked: set[Number],
    mask: dict[str, int],
    row: Any,
) -> Iterator[Found]:
    """Who says that these were acknowledged? And is all in the set that the command says?"""
    command = step.command
    if getattr(command, "sub", None) != sub.name or isinstance(command, Attach):
        command = None
    may: set[Number] = set()
    must: set[Number] = set()
    key = (step.region, book.name, sub.name)
    match command:
        case AckDelivered() | AckToDelivered() if command.epoch != row.epoch:
            # Of a delivery before a seek: it must gain nothing.
            pass
        case Ack():
            yield from _asked(command.positions, ledger.asked.get(key, set()))
            may = {book.at[each] for each in command.positions if each in book.at}
            must = {number for number in may if book.positions[number] >= book.first}
        case AckTo():
            yield from _asked([command.position], ledger.asked_to.get(key, set()))
            places = range(max(sub.mark + 1, book.first), command.position + 1)
            may = must = {book.at[each] for each in places if each in book.at}
        case Merge():
            may = expanded(command.ranges)
            masked = {n for n in gained if n[1] <= sub.mask.get(n[0], 0)}
            if masked:
                yield BEGIN, f"{sorted(masked)[:3]} of {sub.name} come back after a seek"
            if gained and not sub.row.replicate and sub.row is not row:
                yield ONLY, f"{sub.name} is not replicated, and takes what others say"
            unknown = may - ledger.known.get((command.source, book.name, sub.name), set())
            if unknown:
                yield ONLY, f"{command.source} says {sorted(unknown)[:3]}, and never had them"
            if step.result.ignored in ("", TOO_MANY):
                own, last = own_of(step), book.last.get(own_of(step), 0)
                must = {n for n in may if n[1] > mask.get(n[0], 0)}
                must = {n for n in must if n[0] != own or n[1] <= last}
            if step.result.ignored:
                must -= sub.apart(must)
        case Update():
            may, wrong = _updated(command, ledger, book, sub)
            yield from wrong
        case _:
            pass
    if gained - may:
        yield ONLY, f"{sub.name} has got {sorted(gained - may)[:3]}"
    if command is not None:
        said = ledger.acked.setdefault((book.name, sub.name), set())
        if isinstance(command, Ack | AckTo):
            said |= may
        elif gained - said:
            yield ONLY, f"{sub.name} has got {sorted(gained - said)[:3]}, nobody acknowledged them"
    lacking = {n for n in must - acked if n[1] > sub.base.get(n[0], 0)}
    if lacking:
        yield KEPT, f"{sub.name} lacks {sorted(lacking)[:3]} after {type(step.command).__name__}"


def _asked(positions: Iterable[int], asked: set[int]) -> Iterator[Found]:
    wrong = [each for each in positions if each not in asked]
    if wrong:
        yield ONLY, f"nobody asked to acknowledge {wrong[:3]}"


# --- snapshots ------------------------------------------------------------------------------------


def _updated(
    command: Update, ledger: Ledger, book: TopicBook, sub: SubBook
) -> tuple[set[Number], list[Found]]:
    """What an update may acknowledge here."""
    found: list[Found] = []
    known = ledger.snapshots.get((command.source, book.name, command.id))
    if known is None:
        found.append((SNAPSHOTS, f"{command.source} never completed {command.id}"))
    elif known[1].get(book.region) != command.position:
        text = f"the update {command.id} says {command.position}, the snapshot {known[1]}"
        found.append((SNAPSHOTS, text))
    without = expanded(command.without)
    reach = book.vector(command.position)
    may = {(o, seq) for o, last in reach.items() for seq in range(1, last + 1)} - without
    # Holes here may be messages there: that they were acknowledged is true.
    there = ledger.known.get((command.source, book.name, sub.name), set())
    passed = {n for n in may - there if n in book.positions}
    if passed:
        text = f"{sub.name}: the update to {command.position} passes {sorted(passed)[:3]}, "
        found.append((SNAPSHOTS, f"{text}which {command.source} does not have acknowledged"))
    return may & (there | set(book.positions)), found

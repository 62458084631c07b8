"""What the logs of a storm of regions append and remove: each message once, until nobody waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raftkv_subscriptions.commands import (
    FORMAT_BACKLOG,
    DeclareTopic,
    Deliver,
    EnsureTopic,
    Publish,
    Report,
)
from raftkv_subscriptions.refusals import BacklogFull
from raftkv_subscriptions.rows import size_of

from .storm_ledger import Ledger, Number, Step, TopicBook
from .storm_rules import CLAIMS, FULL, HOLES, LIMITED, ONCE, RETENTION, Found, own_of

__all__ = ["appended", "claimed", "full", "limited", "topic_book", "trimmed"]

#: What is declared of a topic.
DECLARED = (
    "replicated",
    "compacted",
    "retention_ms",
    "retention_bytes",
    "backlog_bytes_max",
)


def topic_book(step: Step, ledger: Ledger, name: str, row: Any) -> TopicBook:
    key = (step.region, row.id)
    book = ledger.topics.get(key)
    if book is None:
        before = ledger.named.get((step.region, name))
        begin = row.first if row.next == row.first else 1
        book = TopicBook(step.region, row.id, name, begin, begin, begin)
        if before is not None:
            # It goes on behind its former life, which is a hole of its own messages.
            own = own_of(step)
            last = max(before.last.get(own, 0), before.next - 1)
            if last:
                book.last[own] = last
            book.holes = {(own, seq) for seq in range(1, last + 1)}
            for each in [key for key in ledger.living if key[:2] == (step.region, name)]:
                del ledger.living[each]
        ledger.topics[key] = ledger.named[step.region, name] = book
    return book


def limited(step: Step, book: TopicBook, row: Any) -> Iterator[Found]:
    """What is declared of the topic: has a command changed more of it than it names?"""
    command, before = step.command, book.limits
    book.limits = {what: getattr(row, what) for what in DECLARED}
    if not before or isinstance(command, DeclareTopic):
        return
    changing = isinstance(command, EnsureTopic) and command.change
    for what, value in book.limits.items():
        named = getattr(command, what) if changing else None
        if value != before[what] and named != value:
            yield LIMITED, f"{book.name} had {what} {before[what]}, and has {value}"


def claimed(step: Step, ledger: Ledger) -> Iterator[Found]:
    """Whether links have sent what a region is taken to have of this region's own messages."""
    command, own = step.command, own_of(step)
    if isinstance(command, Report):
        for name, vector in command.topics:
            said = dict(vector).get(own, 0)
            sent = ledger.sent.get((step.region, command.region, name), 0)
            if said > sent:
                yield CLAIMS, f"{command.region} has {said} of {name}, and was sent {sent}"


def full(step: Step, ledger: Ledger) -> Iterator[Found]:
    """Whether a publication was rightly refused for the backlog of its topic, or rightly taken."""
    command, tables = step.command, step.tables
    if not isinstance(command, Publish) or tables.version < FORMAT_BACKLOG:
        return
    refused = isinstance(step.refusal, BacklogFull)
    row = tables.table("topics").get(command.topic)
    if row is None or not row.backlog_bytes_max or (step.refusal is not None and not refused):
        return
    size = sum(map(size_of, command.messages))
    before = row.bytes if refused else row.bytes - size
    book = ledger.topics.get((step.region, row.id))
    waited = 0 if book is None else _waited_for(step, ledger, book, row, before)
    if refused != (waited + size > row.backlog_bytes_max):
        what = "refused" if refused else "taken"
        yield FULL, f"{size} bytes are {what} beside {waited}, of {row.backlog_bytes_max}"


def _waited_for(step: Step, ledger: Ledger, book: TopicBook, row: Any, kept: int) -> int:
    """The bytes of the messages before this step, from the first that is waited for."""
    tables, name = step.tables, book.name
    subs = tables.table("subs").scan((row.id, ""), (row.id + 1, ""))
    first = min([book.next, *(sub.mark + 1 for _, sub in subs)])
    for region, known in tables.table("regions").scan():
        if row.replicated and known.state == "active" and known.fetches:
            said = dict(tables.table("fetched").get((region, row.id), ()))
            for position in range(book.first, first):
                origin, seq = book.at[position]
                if origin != region and seq > said.get(origin, 0):
                    first = position
                    break
    counted = tables.table("backlogs").get(row.id)
    if first < book.next and (counted is None or first < counted.start):
        return kept
    numbers = (book.at[position] for position in range(max(first, book.first), book.next))
    return sum(size_of(ledger.originals[name, origin, seq]) for origin, seq in numbers)


def appended(step: Step, ledger: Ledger, book: TopicBook, row: Any) -> Iterator[Found]:
    """What was appended."""
    own, command = own_of(step), step.command
    messages = step.tables.table("messages")
    if row.next < book.next:
        yield ONCE, f"{book.name} goes back from {book.next} to {row.next}"
        return
    new = list(messages.scan((book.id, book.next), (book.id, row.next)))
    if len(new) != row.next - book.next:
        yield ONCE, f"{book.name} has positions without a message from {book.next} on"
        return
    if new and not isinstance(command, Publish | Deliver):
        yield ONCE, f"{book.name} has got messages"
        return
    for (_, position), stored in new:
        number = (stored.origin, stored.seq)
        key = (book.name, *number)
        if isinstance(command, Publish):
            offset = position - book.next
            said = command.messages[position - step.result.first]
            if number != (own, book.last.get(own, 0) + 1) or key in ledger.originals:
                yield ONCE, f"{number} is published at {position}, {offset} behind"
            if stored.message != said:
                yield ONCE, f"{number} at {position} is not what was published"
            ledger.originals[key] = stored.message
            ledger.published += 1
        else:
            yield from _arrived(step, ledger, book, number, position, stored)
        book.at[position] = number
        book.positions[number] = position
        book.last[number[0]] = number[1]
    book.next = row.next
    if row.gapped:
        yield from _trailing_holes(step, ledger, book)


def _arrived(
    step: Step, ledger: Ledger, book: TopicBook, number: Number, position: int, stored: Any
) -> Iterator[Found]:
    origin, seq = number
    original = ledger.originals.get((book.name, origin, seq))
    if number in book.positions:
        yield ONCE, f"{number} is at {book.positions[number]} and at {position} of {book.name}"
    if original is None:
        yield ONCE, f"{number} of {book.name} was never published"
    elif original != stored.message:
        yield ONCE, f"{number} of {book.name} is not what was published"
    last = book.last.get(origin, 0)
    if seq <= last:
        yield ONCE, f"{number} of {book.name} comes after {last}"
    yield from _new_holes(step, ledger, book, origin, last + 1, seq - 1)


def _new_holes(
    step: Step, ledger: Ledger, book: TopicBook, origin: str, first: int, last: int
) -> Iterator[Found]:
    """These have not come, and will not: the plugin must say so, and the source must not have
    them."""
    if first > last:
        return
    known = step.tables.table("holes")
    source = ledger.book(getattr(step.command, "source", ""), book.name)
    for seq in range(first, last + 1):
        number = (origin, seq)
        rows = known.scan((book.id, origin, 0), (book.id, origin, seq + 1), reverse=True, limit=1)
        if not any(end >= seq for _, end in rows):
            yield ONCE, f"{number} of {book.name} is left out, and no hole"
        position = None if source is None else source.positions.get(number)
        if source is not None and position is not None and position >= source.first:
            yield HOLES, f"{number} of {book.name} is called a hole, {source.region} has it"
        book.holes.add(number)


def _trailing_holes(step: Step, ledger: Ledger, book: TopicBook) -> Iterator[Found]:
    for key, last in step.tables.table("vectors").scan((book.id, ""), (book.id + 1, "")):
        origin = key[1]
        before = book.last.get(origin, 0)
        if last > before:
            yield from _new_holes(step, ledger, book, origin, before + 1, last)
            book.last[origin] = last


def trimmed(step: Step, ledger: Ledger, book: TopicBook, row: Any) -> Iterator[Found]:
    """What was removed: nobody waited for it."""
    if row.first == book.first:
        return
    if row.first < book.first:
        yield RETENTION, f"{book.name} begins at {row.first}, after {book.first}"
    tables = step.tables
    subs = [sub for _, sub in tables.table("subs").scan((book.id, ""), (book.id + 1, ""))]
    waiting = [
        name
        for name, region in tables.table("regions").scan()
        if region.state == "active" and region.fetches and row.replicated
    ]
    for position in range(book.first, row.first):
        number = book.at[position]
        for sub in subs:
            if sub.mark < position:
                yield RETENTION, f"{book.name} {position} is removed, a mark is at {sub.mark}"
        for name in waiting:
            there = ledger.book(name, book.name)
            if number[0] != name and (there is None or not there.has(number)):
                yield RETENTION, f"{book.name} {number} is removed, and {name} lacks it"
    book.first = row.first

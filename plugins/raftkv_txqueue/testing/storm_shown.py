"""What the queues show after a step, message by message, against the ledger's.

Everything is looked at through `views.browse`, which sees through spans, because that is what a
program sees; and through the row of the queue, whose counters must be right at every index. Looked
at are the queues that the step touched in the ledger or in the plugin, so that a message which
moves behind everybody's back moves a counter too, or is found by the look at all queues that
`storm.py` takes from time to time.

What the plugin is free in, and what is taken from what it shows:
- when what an ended session held, or a rolled back transaction accepted, is back (loose items);
- the order of several dead letters of one step;
- when a Sweep finds that a delay or a time to live is over (an Acquire finds it at once);
- how many old messages made room: the oldest available ones, not more than needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raftkv_txqueue import contents, views
from raftkv_txqueue.commands import CloseSession, EndSession, Message, Sweep, size_of

from .storm_ledger import CLOSED, Book, Item, Ledger, Step, Work, tag_of
from .storm_rules import DECIDES, Found

__all__ = ["check_contents", "check_shown", "shown_of", "take_letters"]

ALL = 1_000_000
LOST = "no message is lost or doubled"
ORDER = "order is kept"
ATOMIC = "all of a transaction or nothing"
COUNTERS = "counters are right"
HOLDERS = "sessions own what they hold"


def shown_of(tables: Any, name: str) -> dict[int, Any]:
    """Everything in the queue by seq, in the order in which it is shown."""
    browsed = views.browse(tables, name, first=1, limit=ALL, everything=True)
    return {each.seq: each for each in browsed}


def check_shown(step: Step, ledger: Ledger) -> Iterator[Found]:
    """Compare, and take from what is shown what the plugin is free in."""
    rows = dict(step.tables.table("queues").scan())
    if rows.keys() != ledger.queues.keys():
        yield DECIDES, f"the queues are {list(rows)}, not {list(ledger.queues)}"
        return
    for name, row in rows.items():
        book = ledger.queues[name]
        if row is not ledger.rows.get(name) or any(each.loose for each in book.items.values()):
            ledger.touched[book.id] = None
    ledger.rows = rows
    unfolding = len(step.tables.table("unfolding"))
    if isinstance(step.command, Sweep) and (unfolding or ledger.unfolding):
        # Rows move, and nobody must be able to tell; not even the queue's counters.
        ledger.touched.update(dict.fromkeys(book.id for book in ledger.queues.values()))
    ledger.unfolding = unfolding
    # Moving what is loose may fill other queues with dead letters.
    shown: dict[int, dict[int, Any]] = {}
    for id_ in list(ledger.touched):
        book = ledger.by_id[id_]
        if not book.deleted:
            shown[id_] = shown_of(step.tables, book.name)
            yield from _settle_loose(book, shown[id_], step, ledger)
            if isinstance(step.command, Sweep):
                _settle_times(book, shown[id_], ledger)
    for id_ in list(ledger.touched):
        book = ledger.by_id[id_]
        if book.deleted:
            continue
        if id_ not in shown:
            shown[id_] = shown_of(step.tables, book.name)
        row = rows[book.name]
        take_letters(book, shown[id_], step, ledger)
        yield from _make_room(book, row, step, ledger)
        yield from _compare(book, shown[id_], ledger)
        ledger.reserved[id_] = (row.reserved, row.reserved_bytes)
    # What is wrong with messages says more than what is wrong with their counters.
    for id_ in shown:
        book = ledger.by_id[id_]
        yield from _count(book, rows[book.name], step, ledger)


def _settle_loose(book: Book, shown: dict[int, Any], step: Step, ledger: Ledger) -> Iterator[Found]:
    for seq, item in list(book.items.items()):
        if not item.loose:
            continue
        now = shown.get(seq)
        work, holder = item.work, ledger.sessions.get(item.holder)
        keeps = holder is not None and step.live(holder)
        waits = _waits(item, step)
        if now is not None and now.state == "acquired" and keeps and not item.returned_version:
            # In this entry: what is loose is looked at in every one.
            item.returned_version = step.version
        if now is not None and now.state == "acquired" and keeps and not waits:
            item.work, item.loose = None, False
            since_ms = 0 if now.holder is None else now.holder.since_ms
            if since_ms > step.now or (since_ms == 0 and item.returned_version > 1):
                yield HOLDERS, f"{book.name} {seq}: {now.holder} has it, and it is {step.now}"
            book.hold(seq, item.holder, since_ms)
        elif now is None or now.state == "available":
            if keeps:
                yield HOLDERS, f"{book.name} {seq} was rolled back, and {holder} has lost it"
            decided = work is not None and work.decided == step.index
            if not decided and not isinstance(step.command, Sweep | CloseSession | EndSession):
                yield HOLDERS, f"{book.name} {seq} came back by {step.command}"
            ledger.give_back(book, seq)
        else:
            # Not moved yet; whoever holds it, nobody else can have it.
            item.state = now.state
            if not waits:
                yield HOLDERS, f"{book.name} {seq} is {now.state}, and nothing will bring it back"


def _settle_times(book: Book, shown: dict[int, Any], ledger: Ledger) -> None:
    """A Sweep may let come what is due and bury what has expired, or leave that for another one."""
    for seq, item in list(book.items.items()):
        now = shown.get(seq)
        due = item.state == "delayed" and item.comes_ms <= ledger.now
        if due and (now is None or now.state == "available"):
            ledger.come(book, seq)
        if item.state == "available" and now is None and ledger.has_expired(item):
            ledger.expire(book, seq)


def _waits(item: Item, step: Step) -> bool:
    """Whether Sweep has it to do yet."""
    if item.work is not None:
        return item.work.number in step.tables.table("unfolding")
    return item.holder in step.tables.table("ended_sessions")


def take_letters(book: Book, shown: dict[int, Any], step: Step, ledger: Ledger) -> None:
    """Dead letters stand at the end, in any order among themselves."""
    letters = {tag_of(each): each for each in ledger.letters.pop(book.name, ())}
    for seq in [each for each in shown if each >= book.next]:
        letter = letters.pop(tag_of(shown[seq].message), None)
        if letter is not None:
            _append_letter(book, letter, shown[seq].message, step, ledger)
    for letter in letters.values():
        _append_letter(book, letter, None, step, ledger)


def _append_letter(
    book: Book, letter: Message, shown: Message | None, step: Step, ledger: Ledger
) -> None:
    """It is the same message, with two more headers that say where it died."""
    if shown is not None and shown.headers[: len(letter.headers)] == letter.headers:
        letter = Message(letter.body, shown.headers)
    tag = tag_of(letter)
    before = ledger.entered.pop(tag, [])
    ledger.append(book, letter, step.index)
    # It moved; it did not enter again.
    ledger.entered[tag] = before
    ledger.gone.pop(tag, None)


def _make_room(book: Book, row: Any, step: Step, ledger: Ledger) -> Iterator[Found]:
    count = row.dropped - book.dropped
    if not count:
        # Only what comes in makes room; a lower limit touches nothing.
        grows = row.depth > ledger.depths.get(book.id, 0)
        over = book.overflow == "drop_oldest" and _exceeds(book, 0, 0) and grows
        # What has just come in stays, if there was nothing older to make room.
        older = [seq for seq in book.available() if seq < ledger.appended.get(book.id, book.next)]
        if over and older and book.name not in step.tables.table("overfull"):
            yield "limits are kept", f"{book.name} has {row}, and nothing made room"
        return
    if book.overflow != "drop_oldest" or count < 0:
        yield LOST, f"{book.name} has dropped {count} messages, and it is {book.overflow}"
        return
    oldest = book.available()[:count]
    if len(oldest) < count:
        yield LOST, f"{book.name} has dropped {count}, and {len(oldest)} were available"
        return
    size = 0
    for seq in oldest:
        size = size_of(ledger.remove(book, seq, "dropped").message)
    book.dropped = row.dropped
    older = [seq for seq in book.available() if seq < book.next - 1]
    if _exceeds(book, 0, 0) and older and book.name not in step.tables.table("overfull"):
        yield "limits are kept", f"{book.name} has {row}, and {older} are to stay"
    if not _exceeds(book, 1, size):
        yield LOST, f"{book.name} has dropped {count} and would have room for one more: {row}"


def _exceeds(book: Book, count: int, size: int) -> bool:
    if 0 < book.depth_max < len(book.items) + count:
        return True
    return 0 < book.bytes_max < book.bytes + size


def _compare(book: Book, shown: dict[int, Any], ledger: Ledger) -> Iterator[Found]:
    missing = [seq for seq in book.items if seq not in shown]
    if missing:
        lost = [tag_of(book.items[seq].message) for seq in missing]
        yield _lost_or_partial(lost, ledger), f"{book.name} misses {missing}: {lost}"
    more = [seq for seq in shown if seq not in book.items]
    if more:
        tags = [tag_of(shown[seq].message) for seq in more]
        yield _lost_or_partial(tags, ledger), f"{book.name} shows {more}: {tags}"
    if missing or more:
        return
    if list(shown) != list(book.items):
        yield ORDER, f"{book.name} shows {list(shown)}, not {list(book.items)}"
    for seq, item in book.items.items():
        now = shown[seq]
        if now.message != item.message:
            yield ORDER, f"{book.name} {seq} is {now.message}, not {item.message}"
        elif (now.state, now.deliveries) != (item.state, item.deliveries):
            yield HOLDERS, f"{book.name} {seq} is {now}, not {item}"
        elif not item.loose and (wrong := _wrong_holder(item, now.holder, ledger)):
            yield HOLDERS, f"{book.name} {seq}: {wrong}"


def _wrong_holder(item: Item, shown: Any, ledger: Ledger) -> str:
    """Whether another session is shown to have it, or since another time; "": all is well."""
    if item.state in ("available", "delayed"):
        return "" if shown is None else f"it is {item.state}, and {shown} has it"
    if shown is None:
        return f"it is {item.state}, and no session has it"
    life = ledger.sessions[item.holder]
    name = "" if item.work is None else item.work.name
    found = []
    if (shown.session, shown.transaction) != (life.id, name):
        found.append(f"session {life.id} in {name!r}")
    # What has prepared a branch may be forgotten before it is decided.
    if (shown.kind, shown.node) != (life.kind, life.node) and (shown.kind or not life.ended):
        found.append(f"a session of {life.node} of kind {life.kind}")
    if item.state == "acquired" and shown.since_ms != item.since_ms:
        found.append(f"since {item.since_ms}")
    return f"{shown} has it, not {' '.join(found)}" if found else ""


def check_contents(step: Step, ledger: Ledger) -> Iterator[Found]:
    """What operators see of each branch is what was done in it."""
    numbers, rows = step.tables.table("branches"), step.tables.table("transactions")
    for xid, work in ledger.branches.items():
        if not work.is_open:
            continue
        number = numbers[xid.key]
        shown = contents.content_of(step.tables, number, rows[number], "", 1, ALL)
        found = {each.queue: (each.publishes, each.seqs, each.next) for each in shown}
        should: dict[str, tuple[int, tuple[int, ...], int]] = {}
        for kind, id_, what in work.operations:
            name = ledger.by_id[id_].name
            publishes, seqs, _ = should.get(name, (0, (), 0))
            if kind == "publish":
                should[name] = (publishes + 1, seqs, 0)
            else:
                should[name] = (publishes, tuple(sorted((*seqs, what))), 0)
        if found != should:
            yield ATOMIC, f"{work} contains {should}, and shows {found}"


def _lost_or_partial(tags: list[bytes], ledger: Ledger) -> str:
    """Which check has failed: of a transaction, or of anything."""
    for work in ledger.works:
        if not set(tags).isdisjoint(work.tags):
            return ATOMIC
    return LOST


def _count(book: Book, row: Any, step: Step, ledger: Ledger) -> Iterator[Found]:
    users = [each for each in ledger.open if any(id_ == book.id for _, id_, _ in each.operations)]
    closed = [each for each in users if each.state in CLOSED]
    should = {
        "id": book.id,
        "next": book.next,
        "depth": len(book.items),
        "bytes": book.bytes,
        "ready": len(book.available()),
        "dropped": book.dropped,
        "dead": book.dead,
        "uses": len(users),
        "reserved": _reserved(book, closed, 0),
        "reserved_bytes": _reserved(book, closed, 1),
        "depth_max": book.depth_max,
        "bytes_max": book.bytes_max,
        "overflow": book.overflow,
        "deliveries_max": book.deliveries_max,
        "dead_letter": book.dead_letter,
    }
    wrong = {
        name: (getattr(row, name), value)
        for name, value in should.items()
        if getattr(row, name) != value
    }
    times = {
        "ack_timeout_ms": (views.ack_timeout_of(step.tables, row), book.ack_timeout_ms),
        "ttl_ms": (views.ttl_of(step.tables, row), book.ttl_ms),
    }
    wrong |= {name: both for name, both in times.items() if both[0] != both[1]}
    if wrong:
        yield COUNTERS, f"{book.name} (is, should be): {wrong}"
    ledger.depths[book.id] = len(book.items)


def _reserved(book: Book, closed: list[Work], which: int) -> int:
    return sum(each.reserved.get(book.id, (0, 0))[which] for each in closed)

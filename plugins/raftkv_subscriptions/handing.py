"""What is in whose hands: shared subscriptions hand out messages one by one.

A consumer takes messages: they are locked, in the log, and nobody else gets them until they are
acknowledged (`acking.py`), released, or the consumer ends. What comes back is handed out again
before anything else, oldest first, with the number of its deliveries.

`Sub.cursor` is the first position that was never handed out; `Take` walks on from there and passes
over what is not wanted any more. So a position is in exactly one of these states:

- at or beyond the cursor: nobody had it;
- below it and locked: in somebody's hands;
- below it and in `returned`: it came back;
- below it and neither: not wanted any more, or acknowledged in the meantime.

A seek changes all of this at once without touching a row: it moves the cursor, and the epoch. Locks
of a consumer with an older epoch mean nothing; they are removed when it takes again, lets go of
them, or ends. What it had received before may be delivered to it again after the seek, under the
same position: a release that comes late names the epoch of its delivery, and an older one is passed
over. Rows in `returned` at or beyond the cursor mean nothing; the cursor removes them when
it comes by.
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.plugin import Context

from .commands import Release, Released, ReleaseDelivered, Take, Taken
from .ranges import covers
from .refusals import ConsumerGone, NotYourConsumer, WrongKind
from .rows import ROWS_MAX, Consumer, Stored, Sub, Topic, size_of
from .scope import Tables
from .views import consumer_live, sub_with

__all__ = ["give_back", "owned", "release", "take", "wants"]


def owned(ctx: Context, consumer: int) -> Consumer:
    """The live consumer, used by the node that it belongs to.

    Raises `ConsumerGone`, `NotYourConsumer`.
    """
    row: Consumer | None = ctx.table("consumers").get(consumer)
    if row is None or not consumer_live(ctx, row):
        raise ConsumerGone(consumer)
    origin = ctx.origin
    if origin is None or origin.name != row.node:
        raise NotYourConsumer(consumer)
    return row


def wants(view: Tables, topic: Topic, sub: Sub, position: int) -> Stored | None:
    """The message at a position, if the subscription still wants it."""
    if position <= sub.mark or position < topic.first:
        return None
    stored: Stored | None = view.table("messages").get((topic.id, position))
    if stored is None or covers(view, sub.id, stored.origin, stored.seq):
        return None
    return stored


# --- out ------------------------------------------------------------------------------------------


class _Hands:
    """What one `Take` gathers: `count` messages and `bytes_max` at most, looking at ROWS_MAX."""

    def __init__(self, ctx: Context, topic: Topic, sub: Sub, count: int, bytes_max: int) -> None:
        self._ctx = ctx
        self._topic = topic
        self._sub = sub
        self._count = count
        self._bytes_left = bytes_max or None
        self.looked = 0
        #: No more can be taken in this entry.
        self.full = False
        self.taken: list[tuple[int, int]] = []

    def _fits(self, stored: Stored) -> bool:
        """Whether it may be taken too."""
        if self._bytes_left is None:
            return True
        size = size_of(stored.message)
        if size > self._bytes_left and self.taken:
            self.full = True
            return False
        self._bytes_left -= size
        return True

    def _note(self, position: int, deliveries: int) -> None:
        self.taken.append((position, deliveries))
        self.full = len(self.taken) >= self._count or self.looked >= ROWS_MAX

    def returned(self) -> None:
        """Those that came back, oldest first; what is not wanted any more is forgotten."""
        ctx, sub, table = self._ctx, self._sub, self._ctx.table("returned")
        rows = table.scan((sub.id, 0), (sub.id, sub.cursor), limit=ROWS_MAX)
        for key, deliveries in list(rows) if len(table) else ():
            self.looked += 1
            stored = wants(ctx, self._topic, sub, key[1])
            if stored is not None and not self._fits(stored):
                return
            table.delete(key)
            if stored is not None:
                self._note(key[1], deliveries + 1)
            if self.full:
                return
        self.full = self.full or self.looked >= ROWS_MAX

    def fresh(self) -> int:
        """Those that nobody had; the new cursor."""
        ctx, topic, sub, table = self._ctx, self._topic, self._sub, self._ctx.table("returned")
        cursor, stale = max(sub.cursor, sub.mark + 1, topic.first), len(table) > 0
        rows = ctx.table("messages").scan((topic.id, cursor), (topic.id, topic.next))
        for key, stored in rows:
            if self.full:
                break
            self.looked += 1
            if covers(ctx, sub.id, stored.origin, stored.seq):
                self.full = self.looked >= ROWS_MAX
            elif self._fits(stored):
                self._note(key[1], 1)
            else:
                break
            if stale:
                table.delete((sub.id, key[1]))
            cursor = key[1] + 1
        return cursor


def take(command: Take, ctx: Context) -> Taken:
    """The oldest messages that are in nobody's hands are the consumer's."""
    id = command.consumer
    row = owned(ctx, id)
    topic_id, name, sub = _shared(ctx, row)
    if row.epoch != sub.epoch:
        _, row = give_back(ctx, id, row, ROWS_MAX)
        if row.held:
            return Taken((), (), True, sub.epoch)
    room = ctx.settings["unacked_max"] - sub.locked
    if room <= 0:
        return Taken((), (), False, sub.epoch)
    topic: Topic = ctx.table("topics")[ctx.table("names")[topic_id]]
    hands = _Hands(ctx, topic, sub, min(command.count, room), command.bytes_max)
    hands.returned()
    cursor = sub.cursor if hands.full else hands.fresh()
    lock, taken = ctx.table("locks").put, hands.taken
    for position, deliveries in taken:
        lock((id, position), deliveries)
    new = replace(sub, cursor=cursor, locked=sub.locked + len(taken))
    if new != sub:
        ctx.table("subs").put((topic_id, name), new)
    if taken or row.epoch != sub.epoch:
        row = replace(row, held=row.held + len(taken), epoch=sub.epoch)
        ctx.table("consumers").put(id, row)
    more = hands.full and len(taken) < room and _has_more(ctx, topic, new)
    return Taken(
        tuple(position for position, _ in taken),
        tuple(deliveries for _, deliveries in taken),
        more,
        sub.epoch,
    )


def _has_more(ctx: Context, topic: Topic, sub: Sub) -> bool:
    if sub.cursor < topic.next:
        return True
    returned = ctx.table("returned")
    return len(returned) > 0 and returned.count((sub.id, 0), (sub.id, sub.cursor)) > 0


def _shared(ctx: Context, row: Consumer) -> tuple[int, str, Sub]:
    found = sub_with(ctx, row.sub)
    assert found is not None  # it is live
    if row.kind != "shared":
        raise WrongKind(found[1], row.kind)
    return found


# --- back -----------------------------------------------------------------------------------------


def release(command: Release, ctx: Context) -> Released:
    """Negative acknowledgement: to be delivered again, to whoever takes next."""
    id = command.consumer
    row = owned(ctx, id)
    topic_id, name, sub = _shared(ctx, row)
    if _is_stale(command, sub):
        return Released(0, len(command.positions))
    locks, done = ctx.table("locks"), 0
    topic: Topic = ctx.table("topics")[ctx.table("names")[topic_id]]
    for position in command.positions:
        deliveries = locks.get((id, position))
        if deliveries is None:
            continue
        locks.delete((id, position))
        done += 1
        if row.epoch == sub.epoch:
            _return(ctx, topic, sub, position, deliveries)
    if done:
        ctx.table("consumers").put(id, replace(row, held=row.held - done))
        if row.epoch == sub.epoch:
            ctx.table("subs").put((topic_id, name), replace(sub, locked=sub.locked - done))
    return Released(done, len(command.positions) - done)


def _is_stale(command: Release, sub: Sub) -> bool:
    """Whether a seek came between the delivery of these messages and their release."""
    return isinstance(command, ReleaseDelivered) and command.epoch != sub.epoch


def _return(ctx: Context, topic: Topic, sub: Sub, position: int, deliveries: int) -> None:
    if wants(ctx, topic, sub, position) is not None:
        ctx.table("returned").put((sub.id, position), deliveries)


def give_back(ctx: Context, id: int, row: Consumer, rows_max: int) -> tuple[int, Consumer]:
    """Of what the consumer holds, `rows_max` at most: the oldest. How many, and its new row.

    What means nothing any more (older epoch, deleted subscription) is only forgotten.
    """
    if not row.held:
        return 0, row
    locks, keys = ctx.table("locks"), []
    found = sub_with(ctx, row.sub)
    current = found is not None and found[2].epoch == row.epoch
    for key, deliveries in list(locks.scan((id, 0), (id + 1, 0), limit=rows_max)):
        locks.delete(key)
        keys.append(key)
        if found is not None and current:
            topic: Topic = ctx.table("topics")[ctx.table("names")[found[0]]]
            _return(ctx, topic, found[2], key[1], deliveries)
    row = replace(row, held=row.held - len(keys))
    ctx.table("consumers").put(id, row)
    if found is not None and current and keys:
        sub = replace(found[2], locked=found[2].locked - len(keys))
        ctx.table("subs").put((found[0], found[1]), sub)
    return len(keys), row

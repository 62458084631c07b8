"""Acknowledgements of this region's consumers and operators.

What they say is about positions; what is kept is about (origin, seq). Rules of this file:

1. Only what stands at a position is acknowledged. Between two messages of an origin there may be a
   hole, below the first position there may be messages that were trimmed before the subscription
   was made: nobody saw these, and other regions may still have them.
2. An acknowledgement is true whoever gives it: also for messages in other consumers' hands, and by
   a failover consumer that is not active any more. The consumer is asked for only to fence: one
   that has ended, or belonged to another subscription of the same name, is refused. What was
   delivered before a seek does not count after it: an acknowledgement that carries an
   older epoch than the subscription's is passed over.
3. What is acknowledged already, or trimmed, is done. An acknowledgement can be repeated.
4. The oldest ones are taken however many ranges there are: behind a hole they need one of their
   own, and nothing else would ever make room.

`ack_to` costs as much as there is between the mark and the position, and never more than two blocks
of the index: so thousands of them a second are as cheap as the messages between them. One that
passes over a thousand holes is refused: it would be a thousand ranges in one entry.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from raftkv.plugin import Context

from .commands import Ack, AckDelivered, Acked, AckTo, AckToDelivered
from .handing import owned
from .mapping import number_in, vector_at
from .marks import settle
from .ranges import add, grows, runs_of, without
from .refusals import (
    ConsumerGone,
    NotCumulative,
    TooManyRanges,
    UnknownPosition,
    UnknownSubscription,
)
from .rows import BLOCK, ROWS_MAX, Consumer, Ranges, Stored, Sub, Topic
from .scope import topic_named

__all__ = ["ack", "ack_to", "unite"]


def unite(ctx: Context, sub: Sub, ranges: Ranges, ranges_max: int) -> tuple[Sub, int, int]:
    """Add to the set; what would make more rows than `ranges_max` is left out.

    The subscription, to be written; how many messages were not covered before; how many ranges
    were left out.
    """
    done, rows, left_out = 0, sub.ranges, 0
    for origin, first, last in ranges:
        if rows >= ranges_max and grows(ctx, sub.id, origin, first, last):
            left_out += 1
            continue
        new, more = add(ctx, sub.id, origin, first, last, some=rows > 0)
        done += new
        rows += more
    if not done:
        return sub, 0, left_out
    return replace(sub, ranges=rows, changed=ctx.index), done, left_out


def ack(command: Ack, ctx: Context) -> Acked:
    """These positions, in any order."""
    topic, old, consumer = _asked(ctx, command)
    if _is_stale(command, old):
        return Acked(0, old.mark)
    messages, oldest, others = ctx.table("messages"), [], []
    end, limit = max(old.mark, topic.first - 1), ctx.settings["ranges_max"]
    for position in sorted(command.positions):
        if position >= topic.next:
            raise UnknownPosition(command.topic, position, topic.next)
        if position <= end:
            continue
        stored = messages[topic.id, position]
        # Those that the mark passes at once are as good as an `AckTo`.
        if position == end + 1:
            oldest.append((stored.origin, stored.seq))
            end = position
        else:
            others.append((stored.origin, stored.seq))
    sub, done, _ = unite(ctx, old, runs_of(oldest), old.ranges + len(oldest))
    sub, more, left_out = unite(ctx, sub, runs_of(others), limit)
    if left_out:
        raise TooManyRanges(command.sub, limit)
    done += more
    if sub.kind == "shared":
        sub = _let_go(ctx, command, consumer, sub)
    sub, _ = settle(ctx, command.topic, topic, command.sub, old, sub, ROWS_MAX)
    return Acked(done, sub.mark)


def ack_to(command: AckTo, ctx: Context) -> Acked:
    """Everything up to a position."""
    topic, old, consumer = _asked(ctx, command)
    if command.position >= topic.next:
        raise UnknownPosition(command.topic, command.position, topic.next)
    if consumer is not None and old.kind == "shared":
        raise NotCumulative(command.sub)
    if _is_stale(command, old):
        return Acked(0, old.mark)
    low = max(old.mark, topic.first - 1)
    if command.position <= low:
        return Acked(0, old.mark)
    ranges = _standing(ctx, topic, low, command.position)
    if len(ranges) > ROWS_MAX:
        raise TooManyRanges(command.sub, ROWS_MAX)
    # However many there are already: these are what remains of many messages.
    sub, done, _ = unite(ctx, old, ranges, old.ranges + len(ranges))
    sub = replace(sub, mark=command.position, cursor=max(sub.cursor, command.position + 1))
    sub, _ = settle(ctx, command.topic, topic, command.sub, old, sub, ROWS_MAX)
    return Acked(done, sub.mark)


def _asked(ctx: Context, command: Ack | AckTo) -> tuple[Topic, Sub, Consumer | None]:
    topic = topic_named(ctx, command.topic)
    sub: Sub | None = ctx.table("subs").get((topic.id, command.sub))
    if sub is None:
        raise UnknownSubscription(command.topic, command.sub)
    if not command.consumer:
        return topic, sub, None
    consumer = owned(ctx, command.consumer)
    if consumer.sub != sub.id:
        raise ConsumerGone(command.consumer)
    return topic, sub, consumer


def _is_stale(command: Ack | AckTo, sub: Sub) -> bool:
    """Whether a seek came between the delivery of these messages and their acknowledgement."""
    if not isinstance(command, AckDelivered | AckToDelivered):
        return False
    return command.epoch != sub.epoch


def _standing(ctx: Context, topic: Topic, low: int, high: int) -> Ranges:
    """The messages at the positions low + 1 to high, by origins. More than ROWS_MAX ranges are not
    the answer: there are too many."""
    if high - low <= BLOCK:
        return _runs(ctx.table("messages").scan((topic.id, low + 1), (topic.id, high + 1)))
    before, upto = vector_at(ctx, topic.id, low), vector_at(ctx, topic.id, high)
    spans = ((origin, number_in(before, origin) + 1, last) for origin, last in upto)
    ranges = tuple(span for span in spans if span[1] <= span[2])
    if not topic.gapped:
        return ranges
    for origin, first, last in ranges:
        ranges = without(ranges, _holes(ctx, topic.id, origin, first, last))
        if len(ranges) > ROWS_MAX:
            break
    return ranges


def _runs(rows: Iterable[tuple[object, Stored]]) -> Ranges:
    """Of each origin the numbers go up."""
    runs: list[tuple[str, int, int]] = []
    last: dict[str, list[int]] = {}
    for _, stored in rows:
        run = last.get(stored.origin)
        if run is not None and stored.seq == run[1] + 1:
            run[1] = stored.seq
            continue
        if run is not None:
            runs.append((stored.origin, run[0], run[1]))
        last[stored.origin] = [stored.seq, stored.seq]
    runs.extend((origin, run[0], run[1]) for origin, run in last.items())
    return tuple(sorted(runs))


def _holes(ctx: Context, topic_id: int, origin: str, first: int, last: int) -> Ranges:
    """Those that begin between these numbers. None begins before and reaches into them: it would
    have to be in front of a message that stands before `first`."""
    rows = ctx.table("holes").scan(
        (topic_id, origin, first), (topic_id, origin, last + 1), limit=ROWS_MAX + 1
    )
    return tuple((origin, key[2], upto) for key, upto in rows)


def _let_go(ctx: Context, command: Ack, consumer: Consumer | None, sub: Sub) -> Sub:
    """Shared: what is acknowledged is in nobody's hands and does not come back.

    Locks of other consumers stay until these let go of them; they cannot give them back.
    """
    returned = ctx.table("returned")
    if len(returned):
        for position in command.positions:
            returned.delete((sub.id, position))
    if consumer is None or not consumer.held:
        return sub
    locks = ctx.table("locks")
    freed = sum(locks.delete((command.consumer, position)) for position in command.positions)
    if not freed:
        return sub
    row = replace(consumer, held=consumer.held - freed)
    ctx.table("consumers").put(command.consumer, row)
    if consumer.epoch != sub.epoch:
        return sub
    return replace(sub, locked=sub.locked - freed)

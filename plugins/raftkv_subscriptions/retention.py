"""What may be removed: the oldest messages that are beyond retention and that nobody waits for.

Two conditions, and both must hold. *Beyond retention*: older than `retention_ms` on the log's clock
here, or the topic has more than `retention_bytes`. *Free*: every subscription's mark is there, and
every active region that fetches from here has said that it has it, or it came from that region. So
a subscription without consumers, and a region that is down, hold messages for as long as they are
there; an operator unsubscribes, or excludes. A region that was never heard of has nothing.

A topic without retention keeps everything.

`Topic.first` goes on, and with it the rows of `blocks`: the row of the block that `first` has
reached becomes the vector before `first` (`mapping.py`). Of compacted topics the last message of
each key stays where it is (`compaction.py`). Markers stay: they are few, and links that open later
want them.

What ends a trim is a number of rows. It is repeated while there is `more`.
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.plugin import Context

from .compaction import is_last
from .mapping import as_vector, block_of, block_row, number_in, position_of, vector_of_rows
from .rows import BLOCK, Stored, Topic, size_of
from .scope import Tables

__all__ = ["due_ms", "free_to", "is_due", "trim"]


def free_to(view: Tables, topic: Topic) -> int:
    """The last position that no subscription and no other region waits for; `first` - 1: none."""
    limit = topic.next - 1
    subs = view.table("subs").scan((topic.id, ""), (topic.id + 1, ""))
    for _, sub in subs:
        if sub.mark < limit:
            limit = sub.mark
            if limit < topic.first:
                return topic.first - 1
    if not topic.replicated:
        return limit
    origins = tuple(origin for origin, _ in vector_of_rows(view, topic.id))
    for name, region in view.table("regions").scan():
        if region.state == "active" and region.fetches:
            others = tuple(origin for origin in origins if origin != name)
            fetched = view.table("fetched").get((name, topic.id), ())
            limit = min(limit, position_of(view, topic.id, fetched, others))
            if limit < topic.first:
                return topic.first - 1
    return limit


def is_due(view: Tables, name: str, topic: Topic, now_ms: int) -> bool:
    """Whether something can be trimmed now: it is beyond retention, and free.

    A leader asks this of many topics again and again, so only the oldest message is looked at.
    """
    if topic.first >= topic.next or not _limited(topic):
        return False
    stored: Stored = view.table("messages")[topic.id, topic.first]
    return _beyond(topic, stored, topic.bytes, now_ms) and _first_is_free(view, topic, stored)


def _first_is_free(view: Tables, topic: Topic, stored: Stored) -> bool:
    """`free_to(view, topic) >= topic.first`, without the search for how far."""
    subs = view.table("subs").scan((topic.id, ""), (topic.id + 1, ""))
    if any(sub.mark < topic.first for _, sub in subs):
        return False
    if not topic.replicated:
        return True
    fetched = view.table("fetched")
    return all(
        number_in(fetched.get((name, topic.id), ()), stored.origin) >= stored.seq
        for name, region in view.table("regions").scan()
        if region.state == "active" and region.fetches and name != stored.origin
    )


def due_ms(view: Tables, topic: Topic) -> int | None:
    """When the oldest message gets older than `retention_ms`, on the log's clock; None: never."""
    if not topic.retention_ms or topic.first >= topic.next:
        return None
    stored: Stored = view.table("messages")[topic.id, topic.first]
    return stored.at_ms + topic.retention_ms


def _limited(topic: Topic) -> bool:
    return topic.retention_ms > 0 or topic.retention_bytes > 0


def _beyond(topic: Topic, stored: Stored, size: int, now_ms: int) -> bool:
    if topic.retention_bytes and size > topic.retention_bytes:
        return True
    return topic.retention_ms > 0 and stored.at_ms + topic.retention_ms <= now_ms


def trim(ctx: Context, name: str, topic: Topic, rows: int) -> tuple[Topic, int, bool]:
    """Remove what is due, `rows` messages at most.

    The topic, which this does not write; how many rows were touched; whether there is more that is
    due now. The counter `Meta.trimmed` is the caller's, who has the rows.
    """
    if rows < 1 or topic.first >= topic.next or not _limited(topic):
        return topic, 0, rows < 1 and is_due(ctx, name, topic, ctx.now)
    free = free_to(ctx, topic)
    id, first, size, kept = topic.id, topic.first, topic.bytes, topic.kept
    messages, numbers, more = ctx.table("messages"), dict(_vector_before(ctx, topic)), False
    last = min(free, topic.first + rows)
    for key, stored in list(messages.scan((id, first), (id, last + 1))):
        if not _beyond(topic, stored, size, ctx.now):
            break
        if key[1] == topic.first + rows:
            more = True
            break
        if topic.compacted and is_last(ctx, id, key[1], stored):
            kept += 1
        else:
            messages.delete(key)
            size -= size_of(stored.message)
        numbers[stored.origin] = stored.seq
        first = key[1] + 1
    touched = first - topic.first
    if not touched:
        return topic, 0, False
    _move_blocks(ctx, topic, first, numbers)
    topic = replace(topic, first=first, bytes=size, kept=kept)
    _forget_snapshots(ctx, topic, rows)
    return topic, touched, more


def _vector_before(ctx: Context, topic: Topic) -> tuple[tuple[str, int], ...]:
    """The vector before `first`, of a topic that has messages."""
    return block_row(ctx, topic.id, block_of(topic.first))


def _move_blocks(ctx: Context, topic: Topic, first: int, numbers: dict[str, int]) -> None:
    """Forget the blocks before the one of `first`, whose row becomes the vector before `first`."""
    blocks, id, block = ctx.table("blocks"), topic.id, block_of(first)
    for old in range(block_of(topic.first), block):
        blocks.delete((id, old))
        ctx.table("sizes").delete((id, old))
    if first < topic.next or first % BLOCK != 1:
        blocks.put((id, block), as_vector(numbers))


def _forget_snapshots(ctx: Context, topic: Topic, rows: int) -> None:
    """Those before `first`: no subscription can be sought back to them."""
    snapshots, id = ctx.table("snapshots"), topic.id
    for key, _ in list(snapshots.scan((id, 0), (id, topic.first), limit=rows)):
        snapshots.delete(key)

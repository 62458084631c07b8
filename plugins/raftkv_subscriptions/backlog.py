"""The backlog of a topic in bytes: what `backlog_bytes_max` limits, from format 2 on.

The backlog begins with the first message that a subscription has still to read, or an active region
still to fetch (`retention.free_to`), and ends with the last message. What lies before it is kept by
retention alone and does not count. What lies behind it counts whole, also messages in its midst
that are acknowledged already: to know these apart, every message would have to be read.

The bytes behind a position follow from three tables. `backlogs` has the bytes of all messages ever
appended, `sizes` the same number as it was before each block of BLOCK positions. So at most one
block of messages is read. `fronts` remembers where the backlog began when it was last looked for:
as long as what came since has room, an append looks for nothing. A position in `fronts` may be too
low, never too high: whatever makes a subscription or a region wait for older messages deletes it.

Counting begins with the first append at format 2. While something waits for a message from before,
the whole topic counts, as it does at format 1, where the backlog is everything that is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftkv.plugin import Context

from .commands import FORMAT_BACKLOG
from .mapping import block_of
from .refusals import BacklogFull
from .retention import free_to
from .rows import BLOCK, Backlog, Stored, Topic, size_of
from .scope import Tables

__all__ = [
    "appended",
    "backlog_bytes",
    "bytes_for",
    "forget",
    "forget_all",
    "full",
    "has_moved_back",
]


def backlog_bytes(view: Tables, topic: Topic) -> int:
    """What counts against `backlog_bytes_max` now."""
    if view.version < FORMAT_BACKLOG:
        return topic.bytes
    return _bytes_from(view, topic, free_to(view, topic) + 1)


def bytes_for(ctx: Context, topic: Topic, room: int) -> int:
    """`backlog_bytes`; or, if that is at most `room`, any number from it up to `room`."""
    if topic.bytes <= room or ctx.version < FORMAT_BACKLOG:
        return topic.bytes
    row: Backlog | None = ctx.table("backlogs").get(topic.id)
    front: tuple[int, int] | None = ctx.table("fronts").get(topic.id)
    if row is not None and front is not None and row.total - front[1] <= room:
        return row.total - front[1]
    free = free_to(ctx, topic)
    size = _bytes_from(ctx, topic, free + 1)
    if row is not None and free + 1 >= row.start:
        ctx.table("fronts").put(topic.id, (free, row.total - size))
    return size


def full(view: Tables, name: str, limit: int, size: int) -> BacklogFull:
    """The refusal of an append to a topic whose backlog has `size` bytes."""
    return BacklogFull(name, limit, size if view.version >= FORMAT_BACKLOG else None)


def _bytes_from(view: Tables, topic: Topic, position: int) -> int:
    """The bytes of the messages from a kept position on."""
    if position >= topic.next:
        return 0
    row: Backlog | None = view.table("backlogs").get(topic.id)
    if row is None or position < row.start:
        return topic.bytes
    after = (block_of(position) + 1) * BLOCK + 1
    before = row.total
    if after < topic.next:
        before = view.table("sizes")[topic.id, block_of(after)]
    rows = view.table("messages").scan((topic.id, position), (topic.id, min(after, topic.next)))
    return row.total - before + sum(size_of(stored.message) for _, stored in rows)


# --- kept up to date ------------------------------------------------------------------------------


def appended(ctx: Context, topic: Topic, batch: Sequence[Stored], size: int) -> None:
    """Count messages, of `size` bytes together; `topic` is its row before them."""
    if ctx.version < FORMAT_BACKLOG:
        return
    id, first = topic.id, topic.next
    row: Backlog = ctx.table("backlogs").get(id) or Backlog(first, 0)
    total, begin = row.total, first
    # The first positions of blocks among these messages.
    for at in range(first + (1 - first) % BLOCK, first + len(batch), BLOCK):
        total += sum(size_of(stored.message) for stored in batch[begin - first : at - first])
        ctx.table("sizes").put((id, block_of(at)), total)
        begin = at
    ctx.table("backlogs").put(id, Backlog(row.start, row.total + size))


def has_moved_back(ctx: Context, topic_id: int, mark: int) -> None:
    """A subscription has this mark now, which may be lower than what was waited for before."""
    front = ctx.table("fronts").get(topic_id)
    if front is not None and front[0] > mark:
        ctx.table("fronts").delete(topic_id)


def forget(ctx: Context, topic_id: int) -> None:
    """Other regions wait for messages of the topic that were not waited for before."""
    ctx.table("fronts").delete(topic_id)


def forget_all(ctx: Context) -> None:
    """A region waits for messages of all topics. It happens when an operator adds or includes one:
    one row for each topic that was nearly full."""
    fronts = ctx.table("fronts")
    for topic_id in [key for key, _ in fronts.scan()]:
        fronts.delete(topic_id)

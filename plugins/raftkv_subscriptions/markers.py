"""Markers: what regions tell each other about a topic, in its order, but not in it.

A marker stands between two messages (`Marker.position` is the one before it) and has no position of
its own. So consumers, readers, counters and retention never see one. A link sends a marker after
all messages up to its position; that is what the protocol of snapshots needs of it.

Of each meaning only the newest is there: one request of this region, one answer for each source,
one update for each subscription. So there are few, however long a link is down, and one that opens
sends all of them, whether it has sent them before or not: whoever gets them knows old ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from raftkv.plugin import Context

from .rows import Advance, Answer, Marker, Request, Topic
from .scope import Tables

__all__ = ["REQUEST", "answer_to", "marker_of", "markers_after", "put", "remove", "update_of"]

#: The meaning of this region's request.
REQUEST = "request"


def answer_to(source: str) -> str:
    """The meaning of the answer to that region."""
    return f"answer/{source}"


def update_of(sub: str) -> str:
    """The meaning of the update of that subscription."""
    return f"update/{sub}"


def marker_of(view: Tables, topic_id: int, meaning: str) -> Marker | None:
    """The one of that meaning."""
    n = view.table("marked").get((topic_id, meaning))
    marker: Marker | None = None if n is None else view.table("markers").get((topic_id, n))
    return marker


def markers_after(view: Tables, topic_id: int, n: int) -> Iterator[tuple[int, Marker]]:
    """Those above the number `n`, in the order of their numbers (and so of their positions)."""
    rows: Iterator[tuple[Any, Marker]]
    rows = view.table("markers").scan((topic_id, n + 1), (topic_id + 1, 0))
    for key, marker in rows:
        yield key[1], marker


def put(ctx: Context, name: str, meaning: str, what: Request | Answer | Advance) -> Topic:
    """Write one at the end of the topic `name`, instead of the one that meant the same.

    Writes the row of the topic, too, and gives it back: an older copy of it must not be written.
    """
    topic: Topic = ctx.table("topics")[name]
    remove(ctx, topic.id, meaning)
    n = topic.marker
    ctx.table("markers").put((topic.id, n), Marker(topic.next - 1, what))
    ctx.table("marked").put((topic.id, meaning), n)
    topic = replace(topic, marker=n + 1)
    ctx.table("topics").put(name, topic)
    return topic


def remove(ctx: Context, topic_id: int, meaning: str) -> None:
    """Take the one of that meaning away, if there is one."""
    n = ctx.table("marked").get((topic_id, meaning))
    if n is not None:
        ctx.table("marked").delete((topic_id, meaning))
        ctx.table("markers").delete((topic_id, n))

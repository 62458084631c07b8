"""Questions to the tables, answered alike in `apply` and on a node.

Pure functions on a `View` (of the plugin "subscriptions") or a `Context`. What they give is as of
the applied state that they are handed, and says nothing of later. Names that are not there raise
`UnknownTopic` or `UnknownSubscription`.

How many messages a subscription still wants is not counted anywhere: it follows from the set. Of
each origin it wants what is above its floor (and above what was trimmed: that is nobody's any
more), up to what is here, but for its ranges and for holes. Ranges may reach beyond what is here,
and over holes, for other regions have acknowledged them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from .mapping import (
    block_of,
    block_row,
    holes_between,
    holes_of,
    number_in,
    position_of,
    topic_with,
    vector_at,
    vector_of_rows,
)
from .refusals import UnknownSubscription
from .rows import (
    ROWS_MAX,
    Consumer,
    Floor,
    Marker,
    Pending,
    Ranges,
    Region,
    Snapshot,
    Stored,
    Sub,
    Topic,
    Vector,
    size_of,
)
from .scope import Tables, active_regions, meta_of, own_region, topic_named

__all__ = [
    "Compacted",
    "Placed",
    "SubState",
    "Tables",
    "active_regions",
    "attached_of",
    "backlog_of",
    "cached_of",
    "consumer_live",
    "head_of",
    "holes_between",
    "holes_of",
    "kept_of",
    "markers_of",
    "message_at",
    "meta_of",
    "own_region",
    "pending_of",
    "position_of",
    "read",
    "read_compacted",
    "regions_of",
    "snapshots_of",
    "state_of",
    "sub_of",
    "sub_with",
    "subs_of",
    "topic_of",
    "topic_with",
    "topics_of",
    "vector_at",
    "vector_before_first",
    "vector_of",
]

#: `topic_of(view, name)`: the topic of that name. Raises `UnknownTopic`.
topic_of: Final = topic_named


class Placed(msgspec.Struct, frozen=True):
    """A message and where it stands here."""

    position: int
    stored: Stored


class Compacted(msgspec.Struct, frozen=True):
    """A part of what is left of a compacted topic: go on at `next` while there is `more`."""

    messages: tuple[Placed, ...]
    next: int
    more: bool


class SubState(msgspec.Struct, frozen=True):
    """A subscription as a set. `base`: not wanted here; `ranges`: acknowledged, all of them."""

    base: Vector
    ranges: Ranges


# --- topics ---------------------------------------------------------------------------------------


def topics_of(view: Tables) -> tuple[tuple[str, Topic], ...]:
    """All topics, in the order of their names."""
    return tuple(view.table("topics").scan())


def head_of(view: Tables, name: str) -> int:
    """The last position that was given; 0: none was."""
    return topic_named(view, name).next - 1


def vector_of(view: Tables, name: str) -> Vector:
    """What this region has of each origin, and needs no more: holes included."""
    return vector_of_rows(view, topic_named(view, name).id)


def vector_before_first(view: Tables, topic: Topic) -> Vector:
    """The highest seq of each origin among the messages that were trimmed."""
    if topic.first == topic.next:
        return vector_at(view, topic.id, topic.first - 1)
    return block_row(view, topic.id, block_of(topic.first))


def kept_of(topic: Topic) -> int:
    """How many messages are kept, those that compaction has left below `first` included."""
    return topic.next - topic.first + topic.kept


# --- messages -------------------------------------------------------------------------------------


def message_at(view: Tables, topic_id: int, position: int) -> Stored | None:
    """None: there is none, not yet or not any more."""
    stored: Stored | None = view.table("messages").get((topic_id, position))
    return stored


def read(
    view: Tables, name: str, from_position: int, limit: int, bytes_max: int = 0
) -> tuple[Placed, ...]:
    """The messages from a position on, in order: `limit` at most, and `bytes_max` as `size_of`
    counts (one always; 0: no bound). (): there is none from there on.

    What is below the first kept position is left out. What compaction keeps below it is, too.
    """
    topic = topic_named(view, name)
    first = max(from_position, topic.first)
    found: list[Placed] = []
    size = 0
    for key, stored in view.table("messages").scan(
        (topic.id, first), (topic.id, topic.next), limit=max(1, limit)
    ):
        if bytes_max:
            size += size_of(stored.message)
            if size > bytes_max and found:
                break
        found.append(Placed(key[1], stored))
    return tuple(found)


def read_compacted(
    view: Tables, name: str, from_position: int, limit: int, bytes_max: int = 0
) -> Compacted:
    """The last message of every key, in the order of positions, as `read`.

    Messages without a key and those that removed one are left out. One call looks at ROWS_MAX rows
    at most, so it may give few, or none, and yet there is `more`.
    """
    topic = topic_named(view, name)
    latest = view.table("latest")
    found: list[Placed] = []
    at, looked, size = from_position, 0, 0
    rows = view.table("messages").scan(
        (topic.id, from_position), (topic.id, topic.next), limit=ROWS_MAX + 1
    )
    for key, stored in rows:
        at, looked = key[1], looked + 1
        if looked > ROWS_MAX or len(found) >= max(1, limit):
            return Compacted(tuple(found), at, True)
        message = stored.message
        if message.key and latest.get((topic.id, message.key)) == at:
            size += size_of(message)
            if bytes_max and size > bytes_max and found:
                return Compacted(tuple(found), at, True)
            found.append(Placed(at, stored))
    return Compacted(tuple(found), max(topic.next, from_position), False)


# --- regions --------------------------------------------------------------------------------------


def regions_of(view: Tables) -> tuple[tuple[str, Region], ...]:
    """The other regions, in the order of their names."""
    return tuple(view.table("regions").scan())


# --- subscriptions --------------------------------------------------------------------------------


def sub_of(view: Tables, topic: str, sub: str) -> Sub:
    """Raises `UnknownTopic`, `UnknownSubscription`."""
    row: Sub | None = view.table("subs").get((topic_named(view, topic).id, sub))
    if row is None:
        raise UnknownSubscription(topic, sub)
    return row


def sub_with(view: Tables, sub_id: int) -> tuple[int, str, Sub] | None:
    """Topic id, name and row of the subscription of that id; None: it or its topic was deleted."""
    place = view.table("sub_names").get(sub_id)
    if place is None or place[0] not in view.table("names"):
        return None
    row: Sub | None = view.table("subs").get(place)
    return None if row is None or row.id != sub_id else (place[0], place[1], row)


def subs_of(view: Tables, topic: str) -> tuple[tuple[str, Sub], ...]:
    """The subscriptions of a topic, in the order of their names."""
    id = topic_named(view, topic).id
    return tuple((key[1], row) for key, row in _subs(view, id))


def _subs(view: Tables, topic_id: int) -> Iterator[tuple[tuple[int, str], Sub]]:
    rows: Iterator[tuple[tuple[int, str], Sub]]
    rows = view.table("subs").scan((topic_id, ""), (topic_id + 1, ""))
    return rows


def state_of(view: Tables, topic: str, sub: str) -> SubState:
    """The set: bases, and all acknowledged ranges of each origin."""
    id = sub_of(view, topic, sub).id
    base: list[tuple[str, int]] = []
    ranges: list[tuple[str, int, int]] = []
    for key, floor in view.table("floors").scan((id, ""), (id + 1, "")):
        if floor.base:
            base.append((key[1], floor.base))
        if floor.floor > floor.base:
            ranges.append((key[1], floor.base + 1, floor.floor))
    for key, last in view.table("acks").scan((id, "", 0), (id + 1, "", 0)):
        ranges.append((key[1], key[2], last))
    ranges.sort()
    return SubState(tuple(base), tuple(ranges))


def backlog_of(view: Tables, topic: str, sub: str) -> int:
    """How many of the messages that are here it still wants."""
    row = topic_named(view, topic)
    id = sub_of(view, topic, sub).id
    trimmed = vector_before_first(view, row)
    floors, acks = view.table("floors"), view.table("acks")
    total = 0
    for origin, seq in vector_of_rows(view, row.id):
        floor: Floor = floors.get((id, origin), Floor())
        low = max(floor.floor, number_in(trimmed, origin))
        if low >= seq:
            continue
        spans: list[tuple[int, int]] = []
        if row.gapped:
            spans += holes_between(view, row.id, origin, low + 1, seq)
        for key, last in acks.scan((id, origin, 0), (id, origin, seq + 1)):
            spans.append((key[2], last))
        total += seq - low - _covered(spans, low + 1, seq)
    return total


def _covered(spans: Iterable[tuple[int, int]], first: int, last: int) -> int:
    """How many numbers from `first` to `last` are in at least one of the spans."""
    covered, at = 0, first
    for start, end in sorted(spans):
        start, end = max(start, at), min(end, last)
        if start <= end:
            covered += end - start + 1
            at = end + 1
    return covered


# --- consumers ------------------------------------------------------------------------------------


def consumer_live(view: Tables, consumer: Consumer | None) -> bool:
    """Whether it has not ended, its subscription is there, and its node is up in its life."""
    if consumer is None or consumer.ended_ms or sub_with(view, consumer.sub) is None:
        return False
    member = view.members.get(consumer.node)
    return member is not None and member.up and member.incarnation == consumer.incarnation


def attached_of(view: Tables, sub_id: int) -> tuple[tuple[int, Consumer], ...]:
    """The consumers of a subscription, in the order of their ids; also ones that are not live."""
    consumers = view.table("consumers")
    rows = view.table("attached").scan((sub_id, 0), (sub_id + 1, 0))
    found = ((key[1], consumers.get(key[1])) for key, _ in rows)
    return tuple((id, row) for id, row in found if row is not None)


# --- snapshots ------------------------------------------------------------------------------------


def pending_of(view: Tables, topic_id: int) -> Pending | None:
    """The snapshot that is being built."""
    pending: Pending | None = view.table("pending").get(topic_id)
    return pending


def snapshots_of(
    view: Tables, topic_id: int, limit: int = 0, *, reverse: bool = False
) -> tuple[tuple[int, Snapshot], ...]:
    """The completed snapshots that are kept, by their positions here."""
    rows = view.table("snapshots").scan(
        (topic_id, 0), (topic_id + 1, 0), limit=limit, reverse=reverse
    )
    return tuple((key[1], row) for key, row in rows)


def cached_of(view: Tables, sub_id: int) -> tuple[tuple[int, Snapshot], ...]:
    """Those that the subscription may use, by their positions here."""
    rows = view.table("cached").scan((sub_id, 0), (sub_id + 1, 0))
    return tuple((key[1], row) for key, row in rows)


def markers_of(view: Tables, topic_id: int) -> tuple[tuple[int, Marker], ...]:
    """The markers of a topic that are there now, oldest first."""
    rows = view.table("markers").scan((topic_id, 0), (topic_id + 1, 0))
    return tuple((key[1], row) for key, row in rows)

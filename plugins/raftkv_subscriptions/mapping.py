"""Positions and vectors are exchangeable: the index that makes it so, and both directions.

Of each origin the messages of a topic stand in the order of their seqs. So "everything up to
position p" is one number per origin, `vector_at(p)`: the highest seq of each origin among the
messages up to p. And "everything that a vector covers" is, as seen from the front, a position:
`position_of`, the last one before the first message that the vector does not cover.

Every BLOCK positions a row of `blocks` remembers the vector in front. A vector is such a row and a
scan of at most BLOCK messages; a position is a binary search in these rows (what is covered at a
block is covered at all blocks before it) and such a scan. `blocks` begins with the block of
`Topic.first`: when messages before `first` are trimmed, their seqs are folded into that row
(`retention.py`), so that row is the vector before `first` and nothing is lost with them.

Holes. A seq that never came here has no position, so a hole is in front of the next message of its
origin and says nothing of those before it: `vector_at` never ends with a hole, and what is in the
midst of one of its stretches has to be taken out with `holes_of` by whoever means messages. The
rows of `vectors` are what this region needs no more, holes included. They are what links ask with.

The first number. The vector before the first position of all is empty but for one case: a topic
that was deleted and declared again goes on with its own seqs, and those of its former life are a
hole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from raftkv.plugin import Context

from .rows import BLOCK, Ranges, Stored, Topic, Vector
from .scope import Tables

__all__ = [
    "as_vector",
    "block_of",
    "block_row",
    "closed",
    "covers",
    "fold",
    "holes_between",
    "holes_of",
    "number_in",
    "position_of",
    "topic_with",
    "vector_at",
    "vector_of_rows",
    "with_vector",
    "without_trailing_hole",
]


# --- vectors as values ----------------------------------------------------------------------------


def number_in(vector: Vector, origin: str) -> int:
    """0 for an origin that is not in it."""
    for name, seq in vector:
        if name == origin:
            return seq
    return 0


def covers(vector: Vector, other: Vector) -> bool:
    """Whether `vector` has at least all that `other` has."""
    have = dict(vector)
    return all(have.get(origin, 0) >= seq for origin, seq in other)


def with_vector(vector: Vector, other: Vector) -> Vector:
    """The higher number of both, per origin; normal form, also of a `vector` that is not."""
    numbers: dict[str, int] = {}
    for origin, seq in (*vector, *other):
        if seq > numbers.get(origin, 0):
            numbers[origin] = seq
    return as_vector(numbers)


def as_vector(numbers: dict[str, int]) -> Vector:
    """In the order of the origins."""
    return tuple(sorted(item for item in numbers.items() if item[1] > 0))


# --- rows -----------------------------------------------------------------------------------------


def block_of(position: int) -> int:
    return (position - 1) // BLOCK


def topic_with(view: Tables, topic_id: int) -> Topic | None:
    """The topic of that id; None if it was deleted."""
    name = view.table("names").get(topic_id)
    topic: Topic | None = None if name is None else view.table("topics").get(name)
    return topic


def vector_of_rows(view: Tables, topic_id: int) -> Vector:
    """What is here of each origin, holes included: the rows of `vectors`."""
    rows = view.table("vectors").scan((topic_id, ""), (topic_id + 1, ""))
    return tuple((key[1], seq) for key, seq in rows)


def block_row(view: Tables, topic_id: int, block: int) -> Vector:
    """The vector before that block (before `Topic.first`, if it is in it)."""
    row: Vector = view.table("blocks").get((topic_id, block), ())
    return row


def holes_of(view: Tables, topic_id: int) -> Ranges:
    """What never came here, of each origin."""
    rows = view.table("holes").scan((topic_id, "", 0), (topic_id + 1, "", 0))
    return tuple((key[1], key[2], last) for key, last in rows)


def holes_between(
    view: Tables, topic_id: int, origin: str, first: int, last: int
) -> Iterator[tuple[int, int]]:
    """What never came here of the seqs `first` to `last`: (first, last) of each hole, clipped."""
    holes = view.table("holes")
    before = holes.scan((topic_id, origin, 0), (topic_id, origin, first), reverse=True, limit=1)
    for _, end in before:
        if end >= first:
            yield first, min(end, last)
    for key, end in holes.scan((topic_id, origin, first), (topic_id, origin, last + 1)):
        yield key[2], min(end, last)


def without_trailing_hole(view: Tables, topic_id: int, origin: str, seq: int) -> int:
    """The highest seq up to this one that is in no hole.

    Holes are not adjacent (`arriving.py`), so there is one at most to go back over.
    """
    last = view.table("holes").scan(
        (topic_id, origin, 0), (topic_id, origin, seq + 1), reverse=True, limit=1
    )
    for key, end in last:
        if end >= seq:
            return int(key[2]) - 1
    return seq


def closed(view: Tables, topic: Topic) -> Vector:
    """The vector of all messages that are, or were, here."""
    vector = vector_of_rows(view, topic.id)
    if not topic.gapped:
        return vector
    numbers = {o: without_trailing_hole(view, topic.id, o, seq) for o, seq in vector}
    return as_vector(numbers)


def fold(numbers: dict[str, int], rows: Iterable[tuple[Any, Stored]]) -> None:
    """Go over messages in the order of positions: the last of each origin is its highest."""
    for _, stored in rows:
        numbers[stored.origin] = stored.seq


# --- both directions ------------------------------------------------------------------------------


def vector_at(view: Tables | Context, topic_id: int, position: int) -> Vector:
    """Of each origin, the highest seq among the messages at positions up to `position`.

    Below the first kept position: that of the one before it. () for a topic that is not there.
    """
    topic = topic_with(view, topic_id)
    if topic is None:
        return ()
    if position >= topic.next - 1:
        return closed(view, topic)
    block = max(block_of(position + 1), block_of(topic.first))
    numbers = dict(block_row(view, topic_id, block))
    start = max(block * BLOCK + 1, topic.first)
    if start <= position:
        fold(numbers, view.table("messages").scan((topic_id, start), (topic_id, position + 1)))
    return as_vector(numbers)


def position_of(
    view: Tables | Context, topic_id: int, vector: Vector, origins: Collection[str] | None = None
) -> int:
    """The last position up to which all kept messages of these origins (None: of all) are in it.

    So at least the one before the first that is kept: nothing is left of those that were trimmed.
    0 for a topic that is not there.
    """
    topic = topic_with(view, topic_id)
    if topic is None:
        return 0
    # Trimmed ones count as covered, in each row of `blocks` as in the scan.
    have = dict(with_vector(vector, block_row(view, topic.id, block_of(topic.first))))
    block = _last_covered(view, topic, have, origins)
    start = max(block * BLOCK + 1, topic.first)
    end = min((block + 1) * BLOCK, topic.next - 1)
    for key, stored in view.table("messages").scan((topic_id, start), (topic_id, end + 1)):
        origin = stored.origin
        if stored.seq > have.get(origin, 0) and (origins is None or origin in origins):
            return int(key[1]) - 1
    return max(end, topic.first - 1)


def _last_covered(
    view: Tables, topic: Topic, have: dict[str, int], origins: Collection[str] | None
) -> int:
    """The last block that has nothing before it that is not covered; at least the first one."""
    blocks = view.table("blocks")
    low, high = block_of(topic.first), max(block_of(topic.next - 1), block_of(topic.first))
    while low < high:
        middle = (low + high + 1) // 2
        if _covered(blocks[topic.id, middle], have, origins):
            low = middle
        else:
            high = middle - 1
    return low


def _covered(vector: Vector, have: dict[str, int], origins: Collection[str] | None) -> bool:
    for origin, seq in vector:
        if seq > have.get(origin, 0) and (origins is None or origin in origins):
            return False
    return True

"""Marks: the last position up to which a subscription wants nothing any more.

A mark follows from the set, and is kept only because it would take long to find anew. Rules:

1. A mark is never too high. Whatever moves it looks at each message, or at a vector that stands for
   all of them.
2. It may be too low, while `advancing` has the subscription: one entry looks at ROWS_MAX messages
   at most, and `Sweep` goes on. Nobody is harmed: readers skip what is not wanted, and retention
   waits a little longer.
3. It moves for two reasons: the set has grown (acknowledged, merged), or messages have come that
   were acknowledged elsewhere before. The second needs the set to reach beyond what is here; the
   table `ahead` knows for which subscriptions it does.
4. Below the first position that is kept there is nothing to want.

Without ranges a set is a vector, and the index of the topic finds its position in a few steps,
however far it is (`mapping.position_of`).
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.plugin import Context

from . import snapshots
from .mapping import position_of
from .ranges import highest, span_over
from .rows import BLOCK, ROWS_MAX, Floor, Sub, Topic
from .scope import Tables

__all__ = ["arrived", "floors_of", "is_ahead", "mark_of", "note_ahead", "settle"]


def floors_of(view: Tables, sub_id: int) -> dict[str, Floor]:
    """What the subscription has of each origin below its gaps."""
    rows = view.table("floors").scan((sub_id, ""), (sub_id + 1, ""))
    return {key[1]: floor for key, floor in rows}


def mark_of(view: Tables, topic: Topic, sub: Sub, rows: int = ROWS_MAX) -> tuple[int, int, bool]:
    """Where the mark is, having looked at `rows` messages at most.

    The mark, how many messages were looked at, and whether it may be further.
    """
    mark = max(sub.mark, topic.first - 1)
    if mark + 1 >= topic.next:
        return mark, 0, False
    messages = view.table("messages")
    # By far the most frequent case: the next message is wanted.
    stored = messages[topic.id, mark + 1]
    span = span_over(view, sub.id, stored.origin, stored.seq)
    if span is None:
        return mark, 1, False
    if not sub.ranges:
        return _without_ranges(view, topic, sub, mark)
    looked, known = 0, {stored.origin: span}
    for key, stored in messages.scan((topic.id, mark + 1), (topic.id, topic.next), limit=rows):
        looked += 1
        origin, seq = stored.origin, stored.seq
        span = known.get(origin)
        if span is None or seq > span[1]:
            span = span_over(view, sub.id, origin, seq)
            if span is None:
                return mark, looked, False
            known[origin] = span
        mark = key[1]
    return mark, looked, mark + 1 < topic.next


def _without_ranges(view: Tables, topic: Topic, sub: Sub, mark: int) -> tuple[int, int, bool]:
    floors = floors_of(view, sub.id)
    have = {origin: floor.floor for origin, floor in floors.items()}
    # Most often it goes on by a few: to look at them is cheaper than to search.
    near = view.table("messages").scan((topic.id, mark + 1), (topic.id, topic.next), limit=8)
    looked = 0
    for key, stored in near:
        looked += 1
        if stored.seq > have.get(stored.origin, 0):
            return mark, looked, False
        mark = key[1]
    if mark + 1 >= topic.next:
        return mark, looked, False
    found = position_of(view, topic.id, tuple(sorted(have.items())))
    return max(mark, found), looked + BLOCK, False


def settle(
    ctx: Context, topic_name: str, topic: Topic, sub_name: str, old: Sub, sub: Sub, rows: int
) -> tuple[Sub, int]:
    """Move the mark of `sub`, say so to whom it concerns, and write its row.

    `old`: the row as it was before the command. The row as it is now, and how many messages were
    looked at. The topic's row may be another one afterwards.
    """
    mark, looked, more = mark_of(ctx, topic, sub, rows)
    advancing = ctx.table("advancing")
    if more:
        advancing.put(sub.id, None)
    elif len(advancing):
        advancing.delete(sub.id)
    if mark != sub.mark:
        sub = replace(sub, mark=mark, cursor=max(sub.cursor, mark + 1))
    if sub.mark != old.mark and sub.replicate and ctx.settings["mode"] == "snapshot":
        sub = snapshots.mark_moved(ctx, topic_name, topic, sub_name, sub, old.mark)
    if sub != old:
        ctx.table("subs").put((topic.id, sub_name), sub)
    return sub, looked


# --- messages that were acknowledged before they came ---------------------------------------------


def is_ahead(view: Tables, topic_id: int, sub_id: int) -> bool:
    """Whether the set reaches beyond what is here of some origin."""
    vectors = view.table("vectors")
    origins = {key[1]: None for key, _ in view.table("floors").scan((sub_id, ""), (sub_id + 1, ""))}
    for origin in (*origins, *_origins_of_ranges(view, sub_id)):
        if highest(view, sub_id, origin) > vectors.get((topic_id, origin), 0):
            return True
    return False


def _origins_of_ranges(view: Tables, sub_id: int) -> list[str]:
    """One search each."""
    found: list[str] = []
    first: tuple[int, str, int] = (sub_id, "", 0)
    while True:
        origin = ""
        for key, _ in view.table("acks").scan(first, (sub_id + 1, "", 0), limit=1):
            origin = key[1]
        if not origin:
            return found
        found.append(origin)
        first = (sub_id, origin + "\0", 0)


def note_ahead(ctx: Context, topic_id: int, sub_id: int) -> None:
    """The set has changed: keep its row of `ahead` right."""
    ahead = ctx.table("ahead")
    if is_ahead(ctx, topic_id, sub_id):
        ahead.put((topic_id, sub_id), None)
    else:
        ahead.delete((topic_id, sub_id))


def arrived(ctx: Context, topic_name: str, topic: Topic) -> None:
    """Messages of other regions were appended; `topic` is its row as it was written.

    Moves the marks of those who had them acknowledged before. Beyond ROWS_MAX messages looked at,
    the rest is left to `Sweep`.
    """
    left = ROWS_MAX
    for key, _ in list(ctx.table("ahead").scan((topic.id, 0), (topic.id + 1, 0))):
        sub_id = key[1]
        place = ctx.table("sub_names").get(sub_id)
        if place is None:
            continue
        if left <= 0:
            ctx.table("advancing").put(sub_id, None)
            continue
        sub: Sub = ctx.table("subs")[place]
        # The one before may have put a marker into the topic.
        topic = ctx.table("topics")[topic_name]
        _, looked = settle(ctx, topic_name, topic, place[1], sub, sub, left)
        # Each of them is some searches, whether its mark moves or not.
        left -= max(looked, 8)
        note_ahead(ctx, topic.id, sub_id)

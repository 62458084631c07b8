"""Sweep: what is due, and what was left for later, in one bounded command.

Rules of this file
1. One budget of rows goes through all steps, in a fixed order. What frees messages for others comes
   first, what only frees memory last.
2. The leader proposes a `Sweep` when it thinks that something is due. It may be wrong, or late, or
   not the leader any more: everything is compared again here, and a `Sweep` with nothing to do does
   nothing.
3. The last row of each piece of work deletes the mark that it was to be done. So what is left is in
   the tables, and not in anybody's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raftkv.plugin import Context

from . import consumers, retention
from .commands import Sweep, Swept
from .marks import note_ahead, settle
from .rows import Consumer, Sub, Topic
from .scope import Tables, count

__all__ = ["sweep", "work"]

#: The tables in which work is noted.
_WORK: Final = (
    "ended_nodes",
    "ended_consumers",
    "advancing",
    "dropped_subs",
    "dropped_topics",
)
#: Tables of a topic, and of a subscription: their keys begin with its id.
_OF_TOPICS: Final = (
    "messages",
    "latest",
    "vectors",
    "blocks",
    "holes",
    "markers",
    "marked",
    "snapshots",
    "ahead",
    "sizes",
)
_OF_SUBS: Final = ("floors", "acks", "returned", "cached")


def work(view: Tables) -> bool:
    """Whether something was left for a `Sweep`; retention is another question (`retention.py`)."""
    return any(len(view.table(name)) for name in _WORK)


class _Budget:
    """Rows that this command may still touch. `topics`: those whose retention is looked at."""

    __slots__ = ("left", "rows", "topics")

    def __init__(self, rows_max: int, topics: tuple[str, ...]) -> None:
        self.left = rows_max
        self.rows = 0
        self.topics = topics

    def spend(self, rows: int) -> None:
        self.left -= rows
        self.rows += rows


def sweep(command: Sweep, ctx: Context) -> Swept:
    """Do what is due, `rows_max` rows or a few more."""
    budget = _Budget(command.rows_max, command.topics)
    more = False
    for step in _STEPS:
        if budget.left <= 0:
            # Whether the others have anything to do is not known: the next one finds out.
            return Swept(budget.rows, True)
        more = step(ctx, budget) or more
    return Swept(budget.rows, more)


# Each step answers whether it has left something that it could do now.


def _end_lives(ctx: Context, budget: _Budget) -> bool:
    for node, incarnation in [key for key, _ in ctx.table("ended_nodes").scan(limit=budget.left)]:
        if budget.left <= 0:
            return True
        rows, done = consumers.end_of_life(ctx, node, incarnation, budget.left)
        budget.spend(rows)
        if not done:
            return True
    return bool(len(ctx.table("ended_nodes")))


def _return_held(ctx: Context, budget: _Budget) -> bool:
    for id in [key for key, _ in ctx.table("ended_consumers").scan(limit=budget.left)]:
        if budget.left <= 0:
            return True
        rows, done = consumers.return_held(ctx, id, budget.left)
        budget.spend(max(1, rows))
        if not done:
            return True
    return bool(len(ctx.table("ended_consumers")))


def _advance(ctx: Context, budget: _Budget) -> bool:
    """Marks that are behind."""
    advancing = ctx.table("advancing")
    for sub_id in [key for key, _ in advancing.scan(limit=budget.left)]:
        if budget.left <= 0:
            return True
        place = ctx.table("sub_names").get(sub_id)
        topic_name = None if place is None else ctx.table("names").get(place[0])
        if place is None or topic_name is None:
            advancing.delete(sub_id)
            budget.spend(1)
            continue
        sub: Sub = ctx.table("subs")[place]
        topic: Topic = ctx.table("topics")[topic_name]
        _, looked = settle(ctx, topic_name, topic, place[1], sub, sub, budget.left)
        if (topic.id, sub_id) in ctx.table("ahead"):
            note_ahead(ctx, topic.id, sub_id)
        budget.spend(max(1, looked))
    return bool(len(advancing))


def _trim(ctx: Context, budget: _Budget) -> bool:
    """Messages beyond retention that nobody waits for."""
    more = False
    for name in budget.topics:
        if budget.left <= 0:
            return True
        old: Topic | None = ctx.table("topics").get(name)
        if old is None:
            continue
        topic, rows, left = retention.trim(ctx, name, old, budget.left)
        if topic != old:
            ctx.table("topics").put(name, topic)
            count(ctx, trimmed=topic.first - old.first)
        # Nothing for a topic without anything due: a small budget would never get beyond it.
        budget.spend(rows)
        more = more or left
    return more


# --- what was deleted -----------------------------------------------------------------------------


def _drop_subs(ctx: Context, budget: _Budget) -> bool:
    dropped = ctx.table("dropped_subs")
    for sub_id in [key for key, _ in dropped.scan(limit=budget.left)]:
        if not _end_all(ctx, sub_id, budget) or not _remove(ctx, _OF_SUBS, sub_id, budget):
            return True
        dropped.delete(sub_id)
        budget.spend(1)
    return bool(len(dropped))


def _end_all(ctx: Context, sub_id: int, budget: _Budget) -> bool:
    """End the consumers of a subscription that is gone; whether these were all."""
    attached = ctx.table("attached")
    for key, _ in list(attached.scan((sub_id, 0), (sub_id + 1, 0), limit=max(1, budget.left))):
        if budget.left <= 0:
            return False
        row: Consumer = ctx.table("consumers")[key[1]]
        budget.spend(consumers.end(ctx, key[1], row, budget.left))
    return attached.count((sub_id, 0), (sub_id + 1, 0)) == 0


def _drop_topics(ctx: Context, budget: _Budget) -> bool:
    dropped, subs = ctx.table("dropped_topics"), ctx.table("subs")
    for topic_id in [key for key, _ in dropped.scan(limit=budget.left)]:
        rows = list(subs.scan((topic_id, ""), (topic_id + 1, ""), limit=max(1, budget.left)))
        for key, sub in rows:
            if budget.left <= 0:
                return True
            subs.delete(key)
            ctx.table("sub_names").delete(sub.id)
            ctx.table("advancing").delete(sub.id)
            ctx.table("dropped_subs").put(sub.id, None)
            budget.spend(4)
        if budget.left <= 0 or subs.count((topic_id, ""), (topic_id + 1, "")):
            return True
        if not _remove(ctx, _OF_TOPICS, topic_id, budget):
            return True
        for region, _ in ctx.table("regions").scan():
            ctx.table("fetched").delete((region, topic_id))
        ctx.table("pending").delete(topic_id)
        dropped.delete(topic_id)
        budget.spend(1)
    return bool(len(dropped)) or bool(len(ctx.table("dropped_subs")))


def _remove(ctx: Context, names: tuple[str, ...], id: int, budget: _Budget) -> bool:
    """All rows of these tables whose keys begin with `id`; whether these were all."""
    for name in names:
        if budget.left <= 0:
            return False
        table: Any = ctx.table(name)
        keys = [key for key, _ in table.scan(prefix=(id,), limit=budget.left)]
        for key in keys:
            table.delete(key)
        budget.spend(len(keys))
    # The last table may have had more than was left.
    return budget.left > 0


_STEPS: Final[tuple[Callable[[Context, _Budget], bool], ...]] = (
    _end_lives,
    _return_held,
    _advance,
    _trim,
    _drop_topics,
    _drop_subs,
)

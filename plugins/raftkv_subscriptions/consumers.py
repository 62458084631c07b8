"""Who consumes a subscription: consumers come, one of them is active, and they end.

A consumer belongs to one life of one node: it carries (node, incarnation), taken from the origin of
the command that attached it. The entry that ends this life ends all its consumers at once, because
whoever reads a consumer looks at the member too (`views.consumer_live`); their rows are removed
afterwards, in batches (`sweeping.py`).

Kinds. *Exclusive*: one at a time, and another one is refused; but one whose node's life has ended
is no consumer, so the next one takes over at once. *Failover*: several, and the live one with the
smallest (priority, id) is active. *Shared*: several, each has what it took (`handing.py`). `active`
is only about who is served: an acknowledgement of another one is true as well.

`Sub.consumers` counts those that have not been ended, live or not. The end of a consumer that holds
messages gives back a thousand in its own entry; `Sweep` does the rest, and removes the row with the
last of them.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from raftkv.plugin import Context, Member, MemberChange

from .commands import Attach, Attached, Detach
from .handing import give_back, owned
from .refusals import (
    NotAMember,
    NotYourConsumer,
    SubscriptionBusy,
    TooManyConsumers,
    UnknownSubscription,
)
from .rows import ROWS_MAX, Consumer, Sub
from .scope import check_name, meta_of, put_meta, topic_named
from .views import attached_of, consumer_live, sub_with

__all__ = [
    "attach",
    "detach",
    "end",
    "end_of_life",
    "has_live",
    "life_changed",
    "owned",
    "return_held",
]

#: Failover consumers of one subscription: to find the next active one all of them are read.
FAILOVER_MAX: Final = ROWS_MAX


def has_live(ctx: Context, sub: Sub) -> bool:
    """Whether somebody consumes it now."""
    if not sub.consumers:
        return False
    consumers = ctx.table("consumers")
    rows = ctx.table("attached").scan((sub.id, 0), (sub.id + 1, 0))
    return any(consumer_live(ctx, consumers.get(key[1])) for key, _ in rows)


# --- coming ---------------------------------------------------------------------------------------


def attach(command: Attach, ctx: Context) -> Attached:
    """A consumer of the node that asks, for a subscription that exists."""
    origin = _member_of(ctx)
    topic = topic_named(ctx, command.topic)
    sub: Sub | None = ctx.table("subs").get((topic.id, command.sub))
    if sub is None:
        raise UnknownSubscription(command.topic, command.sub)
    if command.name:
        check_name("consumer", command.name)
    meta = meta_of(ctx)
    limit = ctx.settings["consumers_max"]
    if meta.consumers >= limit:
        raise TooManyConsumers(limit)
    id = meta.next_consumer
    active = _active(ctx, command, sub, id)
    row = Consumer(
        topic.id,
        sub.id,
        command.name,
        origin.name,
        origin.incarnation,
        sub.kind,
        command.priority,
        epoch=sub.epoch,
    )
    put_meta(ctx, replace(meta, next_consumer=id + 1, consumers=meta.consumers + 1))
    ctx.table("consumers").put(id, row)
    ctx.table("attached").put((sub.id, id), None)
    ctx.table("owners").put((origin.name, origin.incarnation, id), None)
    sub = replace(sub, consumers=sub.consumers + 1, active=active)
    ctx.table("subs").put((topic.id, command.sub), sub)
    return Attached(id, sub.kind == "shared" or active == id)


def _member_of(ctx: Context) -> Member:
    """The node that sent the command. Raises `NotAMember`."""
    origin = ctx.origin
    if origin is None or not origin.up:
        raise NotAMember
    return origin


def _active(ctx: Context, command: Attach, sub: Sub, id: int) -> int:
    """Who is served once the consumer `id` is there; 0 for the shared kind.

    Raises `SubscriptionBusy`, `TooManyConsumers`.
    """
    if sub.kind == "shared":
        return 0
    row: Consumer | None = ctx.table("consumers").get(sub.active)
    live = consumer_live(ctx, row)
    if sub.kind == "exclusive":
        if live:
            raise SubscriptionBusy(command.topic, command.sub, sub.active)
        return id
    if sub.consumers >= FAILOVER_MAX:
        raise TooManyConsumers(FAILOVER_MAX)
    active = sub.active if live else _first(ctx, sub.id)
    if not active:
        return id
    first: Consumer = ctx.table("consumers")[active]
    return id if command.priority < first.priority else active


def _first(ctx: Context, sub_id: int) -> int:
    """The live consumer with the smallest (priority, id); 0: there is none."""
    live = ((row.priority, id) for id, row in attached_of(ctx, sub_id) if consumer_live(ctx, row))
    return min(live, default=(0, 0))[1]


# --- ending ---------------------------------------------------------------------------------------


def detach(command: Detach, ctx: Context) -> None:
    """The consumer ends, by its node; nothing is done if it has."""
    row: Consumer | None = ctx.table("consumers").get(command.consumer)
    if row is None or row.ended_ms:
        return
    if ctx.origin is None or ctx.origin.name != row.node:
        raise NotYourConsumer(command.consumer)
    end(ctx, command.consumer, row, ROWS_MAX)


def end(ctx: Context, id: int, row: Consumer, rows_max: int) -> int:
    """End a consumer that has not ended; about how many rows were touched.

    `rows_max` bounds what it gives back in this entry.
    """
    row = replace(row, ended_ms=max(1, ctx.now))
    ctx.table("consumers").put(id, row)
    ctx.table("attached").delete((row.sub, id))
    ctx.table("owners").delete((row.node, row.incarnation, id))
    meta = meta_of(ctx)
    put_meta(ctx, replace(meta, consumers=meta.consumers - 1))
    found = sub_with(ctx, row.sub)
    if found is not None:
        topic_id, name, sub = found
        sub = replace(sub, consumers=sub.consumers - 1)
        if sub.active == id:
            sub = replace(sub, active=_first(ctx, sub.id) if sub.kind == "failover" else 0)
        ctx.table("subs").put((topic_id, name), sub)
    rows, _ = return_held(ctx, id, rows_max)
    return rows + 4


def return_held(ctx: Context, id: int, rows_max: int) -> tuple[int, bool]:
    """Give back what an ended consumer holds; its row goes with the last of it.

    How many locks it was, and whether nothing is left.
    """
    row: Consumer = ctx.table("consumers")[id]
    rows, left = give_back(ctx, id, row, rows_max)
    if left.held:
        ctx.table("ended_consumers").put(id, None)
        return rows, False
    ctx.table("consumers").delete(id)
    ctx.table("ended_consumers").delete(id)
    return rows, True


def life_changed(change: MemberChange, ctx: Context) -> None:
    """`on_members`: the end of a life is noted, for `Sweep`."""
    old = change.old
    if old is None or change.ended is None:
        return
    life = (old.name, change.ended)
    for _ in ctx.table("owners").scan(prefix=life, limit=1):
        ctx.table("ended_nodes").put(life, None)


def end_of_life(ctx: Context, node: str, incarnation: int, rows_max: int) -> tuple[int, bool]:
    """End the consumers of a life that is over; rows, and whether these were all."""
    rows = 0
    owners = ctx.table("owners")
    for key, _ in list(owners.scan(prefix=(node, incarnation), limit=rows_max)):
        if rows >= rows_max:
            return rows, False
        row: Consumer = ctx.table("consumers")[key[2]]
        rows += end(ctx, key[2], row, rows_max - rows)
    if owners.count(prefix=(node, incarnation)):
        return rows, False
    ctx.table("ended_nodes").delete((node, incarnation))
    return rows + 1, True

"""Subscriptions: made, deleted, replicated or not, and sought.

A subscription begins with a base, one number per origin: what it does not want here. `earliest`
wants everything that is kept, `latest` nothing that is here already. The base is no
acknowledgement and is told to no region that has the subscription.

Seek makes a new beginning. Everything acknowledged here is forgotten, the base becomes the vector
at the position, and the mark is exactly there. It is a matter of this region alone: the others keep
what they have. So that what they say does not undo it, the mask of each origin remembers how far
the set reached; what they say of numbers up to it is ignored from then on. Seeks add up: the mask
never gets lower, so after forth and back again nothing of before comes in.

Seek removes the ranges beyond the floors, all of them: ranges_max rows at most. What consumers have
in their hands then is void by the epoch (`handing.py`), without touching a row. A change of the
kind does the same, but for the set.
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.plugin import Context

from . import backlog, snapshots
from .commands import Seek, SetReplicate, Sought, Subscribe, Subscribed, Unsubscribe
from .consumers import has_live
from .mapping import vector_at, vector_of_rows
from .marks import floors_of
from .ranges import NOTHING, clear, highest
from .refusals import (
    KindDiffers,
    ReplicationDisabled,
    SubscriptionInUse,
    TooManySubscriptions,
    UnknownPosition,
    UnknownSubscription,
)
from .rows import Floor, Initial, Kind, Sub, Topic, Vector
from .scope import check_name, meta_of, put_meta, topic_named
from .views import vector_before_first

__all__ = ["create", "seek", "set_replicate", "subscribe", "unsubscribe"]


# --- made -----------------------------------------------------------------------------------------


def create(
    ctx: Context, topic_name: str, topic: Topic, name: str, kind: Kind, base: Vector, mark: int
) -> Sub:
    """A subscription that is not there, written, not replicated. `mark`: nothing up to it is
    wanted, by `base` or because it is not kept. Raises `BadName`, `TooManySubscriptions`.
    """
    check_name("subscription", name)
    subs, limit = ctx.table("subs"), ctx.settings["subs_max"]
    if subs.count((topic.id, ""), (topic.id + 1, "")) >= limit:
        raise TooManySubscriptions(topic_name, limit)
    meta = meta_of(ctx)
    put_meta(ctx, replace(meta, next_sub=meta.next_sub + 1))
    sub = Sub(
        meta.next_sub, kind, mark=mark, cursor=mark + 1, changed=ctx.index, created_ms=ctx.now
    )
    subs.put((topic.id, name), sub)
    backlog.has_moved_back(ctx, topic.id, mark)
    ctx.table("sub_names").put(sub.id, (topic.id, name))
    for origin, seq in base:
        ctx.table("floors").put((sub.id, origin), Floor(seq, seq))
    return sub


def subscribe(command: Subscribe, ctx: Context) -> Subscribed:
    """Make it, or give an existing one another kind or `replicate`."""
    topic = topic_named(ctx, command.topic)
    old: Sub | None = ctx.table("subs").get((topic.id, command.sub))
    sub = old or create(
        ctx,
        command.topic,
        topic,
        command.sub,
        command.kind,
        *_beginning(ctx, topic, command.initial),
    )
    if sub.kind != command.kind:
        sub = _with_kind(ctx, sub, command.sub, command.kind)
    if command.replicate is not None:
        sub = _replicating(ctx, command.topic, topic, command.sub, sub, command.replicate)
    if sub != old:
        ctx.table("subs").put((topic.id, command.sub), sub)
    return Subscribed(sub.id, old is None, sub.mark)


def _beginning(ctx: Context, topic: Topic, initial: Initial) -> tuple[Vector, int]:
    """Base and mark."""
    if initial == "latest":
        return vector_of_rows(ctx, topic.id), topic.next - 1
    return vector_before_first(ctx, topic), topic.first - 1


def _with_kind(ctx: Context, sub: Sub, name: str, kind: Kind) -> Sub:
    """Raises `KindDiffers`."""
    if has_live(ctx, sub):
        raise KindDiffers(name, sub.kind)
    # What consumers that ended have in their hands, and what came back, belongs to the old kind.
    return replace(sub, kind=kind, cursor=sub.mark + 1, epoch=sub.epoch + 1, locked=0, active=0)


def _replicating(
    ctx: Context, topic_name: str, topic: Topic, name: str, sub: Sub, replicate: bool
) -> Sub:
    """The subscription, to be written. Raises `ReplicationDisabled`."""
    if sub.replicate == replicate:
        return sub
    if replicate and not ctx.settings["enabled"]:
        raise ReplicationDisabled
    # All of the set is new to the other regions.
    sub = replace(sub, replicate=replicate, changed=ctx.index)
    if not replicate:
        snapshots.dropped(ctx, topic, sub.id, name)
    elif ctx.settings["mode"] == "snapshot":
        snapshots.repopulate(ctx, topic, sub.id, sub)
        sub = snapshots.mark_moved(ctx, topic_name, topic, name, sub)
    return sub


def set_replicate(command: SetReplicate, ctx: Context) -> None:
    """Whether its state goes to other regions, and theirs is taken."""
    topic, old = _named(ctx, command.topic, command.sub)
    sub = _replicating(ctx, command.topic, topic, command.sub, old, command.replicate)
    if sub != old:
        ctx.table("subs").put((topic.id, command.sub), sub)


def _named(ctx: Context, topic_name: str, name: str) -> tuple[Topic, Sub]:
    topic = topic_named(ctx, topic_name)
    sub: Sub | None = ctx.table("subs").get((topic.id, name))
    if sub is None:
        raise UnknownSubscription(topic_name, name)
    return topic, sub


# --- deleted --------------------------------------------------------------------------------------


def unsubscribe(command: Unsubscribe, ctx: Context) -> None:
    """It is gone at once, and its consumers with it; its rows are removed by `Sweep`."""
    topic, sub = _named(ctx, command.topic, command.sub)
    if not command.force and has_live(ctx, sub):
        raise SubscriptionInUse(command.topic, command.sub, sub.consumers)
    snapshots.dropped(ctx, topic, sub.id, command.sub)
    ctx.table("subs").delete((topic.id, command.sub))
    ctx.table("sub_names").delete(sub.id)
    ctx.table("advancing").delete(sub.id)
    ctx.table("ahead").delete((topic.id, sub.id))
    ctx.table("dropped_subs").put(sub.id, None)


# --- sought ---------------------------------------------------------------------------------------


def seek(command: Seek, ctx: Context) -> Sought:
    """The next message is the one after the position."""
    topic, old = _named(ctx, command.topic, command.sub)
    if command.position >= topic.next:
        raise UnknownPosition(command.topic, command.position, topic.next)
    mark = max(command.position, topic.first - 1)
    _begin_at(ctx, old.id, dict(vector_at(ctx, topic.id, mark)))
    clear(ctx, old.id)
    sub = replace(
        old,
        mark=mark,
        cursor=mark + 1,
        epoch=old.epoch + 1,
        locked=0,
        ranges=0,
        changed=ctx.index,
    )
    ctx.table("advancing").delete(sub.id)
    ctx.table("ahead").delete((topic.id, sub.id))
    ctx.table("subs").put((topic.id, command.sub), sub)
    backlog.has_moved_back(ctx, topic.id, mark)
    if sub.replicate and ctx.settings["mode"] == "snapshot":
        snapshots.repopulate(ctx, topic, sub.id, sub)
    return Sought(mark, sub.epoch)


def _begin_at(ctx: Context, sub_id: int, base: dict[str, int]) -> None:
    """The base is this, nothing is acknowledged, and the masks cover what was."""
    floors, acks = floors_of(ctx, sub_id), ctx.table("acks")
    origins = {**dict.fromkeys(floors), **dict.fromkeys(base)}
    first: tuple[int, str, int] = (sub_id, "", 0)
    while found := list(acks.scan(first, (sub_id + 1, "", 0), limit=1)):
        origin = found[0][0][1]
        origins[origin] = None
        first = (sub_id, origin + "\0", 0)
    for origin in origins:
        seq = base.get(origin, 0)
        mask = max(floors.get(origin, NOTHING).mask, highest(ctx, sub_id, origin))
        ctx.table("floors").put((sub_id, origin), Floor(seq, seq, mask))

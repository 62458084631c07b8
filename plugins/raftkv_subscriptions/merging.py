"""What other regions have acknowledged is united with what is here.

The union is the whole of it. It is taken in any order and any number of times, of messages that are
not here yet too, and nothing is ever removed by it: so regions that tell one another what they have
come to have the same, and none wants what another has acknowledged. Rules of this file:

1. Only acknowledgements are united. The base of another region is used once, when the subscription
   is made here by what it says, and then exactly as it was told: a higher one would be told to a
   third region, which would pass over messages that nobody has seen.
2. Numbers up to the mask are ignored: the subscription was sought here.
3. Numbers of this region's own messages above its last one are refused (`OriginBehind`), and all
   else with them: whoever says so means another life of this region, in which the lower numbers
   were other messages, too.
4. What would make too many ranges is left out, and the answer says so; nothing is lost by that,
   some messages come twice.
5. What is not wanted here (not replicated, excluded, switched off) is a result and no refusal: the
   link goes on.

`Update`, of the snapshot mode, says the same in one position: everything up to it here is
acknowledged there but for `without`. Below the first position that is kept it says nothing, for
the vector there is not known any more; nor beyond the last one, for this region gave no such
position, or has lost it. Holes need no exception: the source has passed the message behind a hole,
and so all before that, but for what `without` says.
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.plugin import Context

from . import snapshots
from .acking import unite
from .commands import Merge, Merged, Update
from .mapping import vector_at, with_vector
from .marks import note_ahead, settle
from .ranges import normal, without
from .refusals import OriginBehind, OwnRegion, TooManyRegions, UnknownRegion
from .rows import ORIGINS_MAX, ROWS_MAX, Floor, Ranges, Region, Sub, Topic, Vector
from .scope import check_name, count, own_region, topic_named
from .subs import create

__all__ = ["TOO_MANY", "merge", "update"]

#: `Merged.ignored` when a part was not taken: the setting ranges_max.
TOO_MANY = "too many ranges"


def merge(command: Merge, ctx: Context) -> Merged:
    """Vector mode: ranges."""
    topic = topic_named(ctx, command.topic)
    return _take(ctx, command, topic, normal(command.ranges))


def update(command: Update, ctx: Context) -> Merged:
    """Snapshot mode: a position here."""
    topic = topic_named(ctx, command.topic)
    ranges: Ranges = ()
    if topic.first - 1 <= command.position < topic.next:
        vector = vector_at(ctx, topic.id, command.position)
        ranges = tuple((origin, 1, seq) for origin, seq in vector)
        ranges = without(ranges, normal(command.without))
    return _take(ctx, command, topic, ranges)


def _take(ctx: Context, command: Merge | Update, topic: Topic, ranges: Ranges) -> Merged:
    old: Sub | None = ctx.table("subs").get((topic.id, command.sub))
    mark = 0 if old is None else old.mark
    reason = _reason_against(ctx, command.source, old)
    if reason:
        count(ctx, ignored=1)
        return Merged(False, 0, mark, reason)
    ranges = _allowed(ctx, topic, old, ranges)
    sub = old
    if sub is None:
        base = _base_of(ctx, topic, command.base)
        sub = create(ctx, command.topic, topic, command.sub, command.kind, base, topic.first - 1)
        sub = replace(sub, replicate=True)
        if ctx.settings["mode"] == "snapshot":
            snapshots.repopulate(ctx, topic, sub.id, sub)
    before = sub if old is None else old
    new, done, left_out = unite(ctx, sub, ranges, ctx.settings["ranges_max"])
    if done or left_out or old is None:
        count(ctx, merged=done, ignored=left_out)
    if done or old is None:
        ctx.table("subs").put((topic.id, command.sub), new)
        note_ahead(ctx, topic.id, new.id)
        new, _ = settle(ctx, command.topic, topic, command.sub, before, new, ROWS_MAX)
    return Merged(old is None, done, new.mark, TOO_MANY if left_out else "")


def _reason_against(ctx: Context, source: str, old: Sub | None) -> str:
    """Why nothing is taken; "": it is. Raises `UnknownRegion`, `OwnRegion`."""
    region: Region | None = ctx.table("regions").get(source)
    if region is None:
        raise OwnRegion(source) if source == own_region(ctx) else UnknownRegion(source)
    if region.state != "active":
        return "excluded"
    if not ctx.settings["enabled"]:
        return "disabled"
    if old is not None and not old.replicate:
        return "not replicated"
    return ""


def _allowed(ctx: Context, topic: Topic, sub: Sub | None, ranges: Ranges) -> Ranges:
    """Above the masks. Raises `BadName`, `TooManyRegions`, `OriginBehind`."""
    own, found = own_region(ctx), []
    origins = {origin: None for origin, _, _ in ranges}
    masks = {origin: _mask_of(ctx, topic, sub, origin) for origin in origins}
    if len(masks) > ORIGINS_MAX:
        raise TooManyRegions(ORIGINS_MAX)
    for origin, first, last in ranges:
        if origin == own and last > topic.seq:
            raise OriginBehind(own, last, topic.seq)
        first = max(first, masks[origin] + 1)
        if first <= last:
            found.append((origin, first, last))
    return tuple(found)


def _mask_of(ctx: Context, topic: Topic, sub: Sub | None, origin: str) -> int:
    floors = ctx.table("floors")
    floor: Floor | None = None if sub is None else floors.get((sub.id, origin))
    if floor is not None:
        return floor.mask
    if (topic.id, origin) not in ctx.table("vectors"):
        # Of a region that has published nothing, as far as is known here.
        check_name("region", origin)
        if sub and floors.count((sub.id, ""), (sub.id + 1, "")) >= ORIGINS_MAX:
            raise TooManyRegions(ORIGINS_MAX)
    return 0


def _base_of(ctx: Context, topic: Topic, told: Vector) -> Vector:
    """As it was told. Raises as `_allowed`."""
    if len(told) > ORIGINS_MAX:
        raise TooManyRegions(ORIGINS_MAX)
    own = own_region(ctx)
    for origin, seq in told:
        check_name("region", origin)
        if origin == own and seq > topic.seq:
            raise OriginBehind(own, seq, topic.seq)
    return with_vector((), told)

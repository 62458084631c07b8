"""The regions: this one's name, the others, and what they say they have.

A name is for ever: the numbers of messages bear it. So this region's can change only while it has
no message and was told of none, and a region that is built anew from nothing needs another one.

An excluded region is not waited for, and is not listened to. Excluding it is an entry of the log,
in which a snapshot that waits for its answer ends as well. It may return: what it had is still
known, and what retention has removed meanwhile it gets as holes. One that does not return is
removed, and with it what it had.
"""

from __future__ import annotations

from msgspec.structs import replace

from raftkv.plugin import Context

from . import backlog, markers, snapshots
from .commands import Declared, PutRegion, RemoveRegion, Report, Reported, SetRegion
from .mapping import number_in, with_vector
from .refusals import (
    BatchTooLarge,
    OriginBehind,
    OwnRegion,
    RegionActive,
    RegionFixed,
    TooManyRegions,
    UnknownRegion,
)
from .rows import ORIGINS_MAX, REGIONS_MAX, ROWS_MAX, Region, Topic, Vector
from .scope import check_name, meta_of, own_region, put_meta, require_region

__all__ = ["put", "remove", "report", "set_region"]


def set_region(command: SetRegion, ctx: Context) -> None:
    """Name this region, before its first message."""
    name, meta = command.region, meta_of(ctx)
    check_name("region", name)
    if name == own_region(ctx):
        if not meta.region:
            put_meta(ctx, replace(meta, region=name))
        return
    if meta.published or meta.delivered or meta.holes or _are_told(ctx):
        raise RegionFixed(own_region(ctx))
    if name in ctx.table("regions"):
        raise OwnRegion(name)
    put_meta(ctx, replace(meta, region=name))


def _are_told(ctx: Context) -> bool:
    """Whether another region has said what it wants no more: perhaps of the new name's messages."""
    return len(ctx.table("floors")) > 0 or len(ctx.table("acks")) > 0


def put(command: PutRegion, ctx: Context) -> Declared:
    """Add another region, exclude it, or let it return."""
    name, regions = command.region, ctx.table("regions")
    check_name("region", name)
    if name == own_region(ctx):
        raise OwnRegion(name)
    old: Region | None = regions.get(name)
    if old is None and len(regions) + 1 >= REGIONS_MAX:
        raise TooManyRegions(REGIONS_MAX)
    if old is not None and command.if_missing:
        return Declared(0, False, False)
    before = Region(since_ms=ctx.now) if old is None else old
    fetches = before.fetches if command.fetches is None else command.fetches
    since_ms = before.since_ms if command.state == before.state else ctx.now
    new = Region(command.state, since_ms, fetches)
    if new == old:
        return Declared(0, False, False)
    regions.put(name, new)
    if new.state == "active":
        backlog.forget_all(ctx)
    if old is None or new.state != old.state:
        snapshots.region_changed(ctx)
    return Declared(0, old is None, old is not None)


def remove(command: RemoveRegion, ctx: Context) -> None:
    """Forget an excluded region, with what it had: one of that name begins with nothing.

    It has one row and one answer for each topic at most. These go at once, though a cluster with
    very many topics has more of them than a command should touch: it happens once in a region's
    life, and a row that was left would make retention believe a region that is gone.
    """
    name = command.region
    region: Region | None = ctx.table("regions").get(name)
    if region is None:
        raise UnknownRegion(name)
    if region.state == "active":
        raise RegionActive(name)
    ctx.table("regions").delete(name)
    fetched = ctx.table("fetched")
    for key, _ in list(fetched.scan(prefix=(name,))):
        fetched.delete(key)
    for _, topic in ctx.table("topics").scan():
        markers.remove(ctx, topic.id, markers.answer_to(name))


def report(command: Report, ctx: Context) -> Reported:
    """Raise what another region said it has. Topics that are not here are left out."""
    region = command.region
    require_region(ctx, region)
    if len(command.topics) > ROWS_MAX:
        raise BatchTooLarge("rows", ROWS_MAX)
    own, topics, fetched = own_region(ctx), ctx.table("topics"), ctx.table("fetched")
    changed = 0
    for name, vector in command.topics:
        topic: Topic | None = topics.get(name)
        if topic is None:
            continue
        if number_in(vector, own) > topic.seq:
            raise OriginBehind(own, number_in(vector, own), topic.seq)
        place = (region, topic.id)
        old: Vector = fetched.get(place, ())
        new = with_vector(old, vector)
        if len(new) > ORIGINS_MAX:
            raise TooManyRegions(ORIGINS_MAX)
        if new != old:
            fetched.put(place, new)
            snapshots.reported(ctx, name, topic, region, old, new)
            changed += 1
    return Reported(changed)

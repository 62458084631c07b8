"""What commands have in common: whose names they take, which rows they look up, what they count.

The functions with a `Tables` are for `apply` and for nodes alike; those with a `Context` write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from msgspec.structs import replace

from raftkv.plugin import Context, Member

from .refusals import BadName, OwnRegion, RegionExcluded, UnknownRegion, UnknownTopic
from .rows import FRESH, LOCAL, NAME_CHARS_MAX, Meta, Region, Topic

__all__ = [
    "META",
    "Tables",
    "active_regions",
    "check_name",
    "count",
    "meta_of",
    "own_region",
    "put_meta",
    "require_region",
    "topic_named",
]

#: The key of the one row of `meta`.
META: Final = "state"

# ASCII alone: what counts as a letter elsewhere depends on the Unicode tables of a node's Python.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]*")


class Tables(Protocol):
    """What the reading functions need of a `View` (of this plugin) or a `Context`."""

    @property
    def version(self) -> int: ...

    @property
    def now(self) -> int: ...

    @property
    def members(self) -> Mapping[str, Member]: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    def table(self, name: str) -> Any: ...


def check_name(what: str, name: str) -> None:
    """Raises `BadName`. `what` is for its text: "topic", "subscription", "region", "consumer"."""
    if len(name) > NAME_CHARS_MAX or _NAME.fullmatch(name) is None:
        raise BadName(what, name[:NAME_CHARS_MAX])


def topic_named(view: Tables, name: str) -> Topic:
    """The topic of that name. Raises `UnknownTopic`."""
    topic: Topic | None = view.table("topics").get(name)
    if topic is None:
        raise UnknownTopic(name)
    return topic


def meta_of(view: Tables) -> Meta:
    """Next ids and counters."""
    meta: Meta = view.table("meta").get(META, FRESH)
    return meta


def put_meta(ctx: Context, meta: Meta) -> None:
    ctx.table("meta").put(META, meta)


def count(ctx: Context, **more: int) -> None:
    """Add to counters of `Meta`, by their names."""
    meta = meta_of(ctx)
    put_meta(ctx, replace(meta, **{name: getattr(meta, name) + n for name, n in more.items()}))


def own_region(view: Tables) -> str:
    """This region's name, which its own messages bear."""
    return meta_of(view).region or LOCAL


def active_regions(view: Tables) -> tuple[str, ...]:
    """The names of the other regions that are not excluded, sorted."""
    return tuple(name for name, row in view.table("regions").scan() if row.state == "active")


def require_region(view: Tables, name: str) -> Region:
    """Another region that is active. Raises `OwnRegion`, `UnknownRegion`, `RegionExcluded`."""
    region: Region | None = view.table("regions").get(name)
    if region is None:
        raise OwnRegion(name) if name == own_region(view) else UnknownRegion(name)
    if region.state != "active":
        raise RegionExcluded(name)
    return region

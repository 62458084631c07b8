"""Spaces: made, altered, dropped, swept.

A space's rows stand under its id, which is never used again. So a drop only takes the name away and
marks the id; the leader sweeps the rows later, in batches, and a new space of that name is empty
from its first moment.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from raftkv.plugin import Context

from .commands import (
    NAME_CHARS_MAX,
    AlterSpace,
    CreateSpace,
    DropSpace,
    Space,
    SpaceAltered,
    SpaceCreated,
    SpaceDropped,
    Sweep,
    Swept,
)
from .refusals import BadSpaceName, SpaceBusy, SpaceExists, TooManySpaces
from .views import space_of, state_of

__all__ = ["alter", "create", "drop", "sweep"]

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def create(command: CreateSpace, ctx: Context) -> SpaceCreated:
    """Make an empty space."""
    name = command.name
    if len(name) > NAME_CHARS_MAX or _NAME.fullmatch(name) is None:
        raise BadSpaceName(name[:NAME_CHARS_MAX])
    spaces = ctx.table("spaces")
    if name in spaces:
        raise SpaceExists(name)
    spaces_max = ctx.settings["spaces_max"]
    if len(spaces) >= spaces_max:
        raise TooManySpaces(spaces_max)
    state = state_of(ctx)
    spaces.put(name, Space(state.next_space, command.sync, 0))
    ctx.table("meta").put("state", replace(state, next_space=state.next_space + 1))
    return SpaceCreated(state.next_space)


def alter(command: AlterSpace, ctx: Context) -> SpaceAltered:
    """Make a space sync or async, for transactions that come from now on."""
    old = space_of(ctx, command.name)
    if old.sync == command.sync:
        return SpaceAltered(False)
    ctx.table("spaces").put(command.name, Space(old.id, command.sync, old.keys))
    return SpaceAltered(True)


def drop(command: DropSpace, ctx: Context) -> SpaceDropped:
    """Take a space away that nothing pending writes to."""
    space = space_of(ctx, command.name)
    busy = [key[2] for key, _ in ctx.table("pending").scan(prefix=(space.id,), limit=1)]
    if busy:
        raise SpaceBusy(command.name, busy[0])
    ctx.table("spaces").delete(command.name)
    if space.keys:
        ctx.table("dropped").put(space.id, None)
    return SpaceDropped(space.keys)


def sweep(command: Sweep, ctx: Context) -> Swept:
    """Delete rows of dropped spaces, oldest first."""
    rows, dropped = ctx.table("rows"), ctx.table("dropped")
    left = command.rows_max
    for id, _ in list(dropped.scan(limit=command.rows_max)):
        keys = [key for key, _ in rows.scan(prefix=(id,), limit=left)] if left else []
        for key in keys:
            rows.delete(key)
        left -= len(keys)
        if not rows.count(prefix=(id,)):
            dropped.delete(id)
        if not left:
            break
    return Swept(command.rows_max - left, len(dropped) > 0)

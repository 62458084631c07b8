"""Spaces: made, altered, dropped, swept.

A space's rows stand under its id, which is never used again. So a drop only takes the name away and
marks the id; the leader sweeps the rows later, in batches, and a new space of that name is empty
from its first moment.

The drop of a synchronous space is an entry of the queue from format 2 on (`entering.py`): only the
owner may ask for it, in its term, and the space goes when that position is confirmed. Until then it
is read as before, and nothing more is written to it. To take the quorum from a space by altering it
is the owner's as well, or that would be a way around.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from raftkv.plugin import Context

from .commands import (
    FORMAT_CONFIRMATIONS,
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
from .refusals import BadSpaceName, SpaceBusy, SpaceExists, StaleTerm, TooManySpaces
from .views import space_of, state_of

__all__ = ["alter", "alter_now", "create", "drop", "drop_now", "require_idle", "sweep"]

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
    if old.sync and not command.sync:
        _require_format_1(ctx)
    return alter_now(command.name, old, command.sync, ctx)


def alter_now(name: str, old: Space, sync: bool, ctx: Context) -> SpaceAltered:
    """Alter it; the sender has been checked."""
    if old.sync == sync:
        return SpaceAltered(False)
    ctx.table("spaces").put(name, Space(old.id, sync, old.keys))
    return SpaceAltered(True)


def drop(command: DropSpace, ctx: Context) -> SpaceDropped:
    """Take a space away that nothing pending writes to."""
    space = space_of(ctx, command.name)
    if space.sync:
        _require_format_1(ctx)
    return SpaceDropped(drop_now(command.name, space, ctx))


def drop_now(name: str, space: Space, ctx: Context) -> int:
    """Drop it; how many rows are to be swept. Raises SpaceBusy.

    The sender has been checked.
    """
    require_idle(name, space, ctx)
    ctx.table("spaces").delete(name)
    if space.keys:
        ctx.table("dropped").put(space.id, None)
    return space.keys


def require_idle(name: str, space: Space, ctx: Context) -> None:
    """Raises SpaceBusy if something pending writes to the space."""
    for key, _ in ctx.table("pending").scan(prefix=(space.id,), limit=1):
        raise SpaceBusy(name, key[2])


def _require_format_1(ctx: Context) -> None:
    """From format 2 on a synchronous space is changed by a command that names owner and term."""
    if ctx.version >= FORMAT_CONFIRMATIONS:
        raise StaleTerm(state_of(ctx).term)


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

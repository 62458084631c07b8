"""Sessions: the owners of what is acquired and of what is not decided yet.

A session belongs to one life of one node: it carries (node, incarnation), taken from the origin of
the command that opened it. While that node is up in that life the session is live. The entry that
ends the life ends all its sessions at once, for every reader looks at the member, too; what they
held is given back afterwards, in batches (`ending.py`).

A restarted node has a new incarnation, so nothing that it did before can be mixed up with what it
does now: a command of the old life finds its session ended.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from raftkv.plugin import Context, Member

from .commands import OpenSession, Select, SessionOpened, SessionRow
from .refusals import InTransaction, NotAMember, NotYourSession, SessionEnded, TooManySessions
from .views import meta_of, session_live

__all__ = ["keep", "live", "member_of", "open", "owned", "select"]


#: `live(ctx, row)`: whether the session has not ended and its node is up in the session's life.
live: Final = session_live


def member_of(ctx: Context) -> Member:
    """The node that sent the command. Raises `NotAMember`."""
    origin = ctx.origin
    if origin is None or not origin.up:
        raise NotAMember
    return origin


def owned(ctx: Context, session: int) -> SessionRow:
    """The live session, used by the node that it belongs to.

    Raises `SessionEnded` or `NotYourSession`.
    """
    row: SessionRow | None = ctx.table("sessions").get(session)
    if row is None or row.ended_ms:
        raise SessionEnded(session)
    origin = ctx.origin
    if origin is None or origin.name != row.node:
        raise NotYourSession(session, row.node)
    if origin.incarnation != row.incarnation or not origin.up:
        raise SessionEnded(session)
    return row


def keep(ctx: Context, session: int, row: SessionRow) -> None:
    """If nothing is left to be done for an ended session, its retention time begins now.

    For whoever has done the last of it: decided its transaction, or given back what it held. So a
    fate can be asked for that long after it was decided, however long the votes took.
    """
    if row.ended_ms and not row.number and session not in ctx.table("ended_sessions"):
        ctx.table("old_sessions").put((ctx.now, session), None)


def open(command: OpenSession, ctx: Context) -> SessionOpened:
    """A session of the node that asks."""
    origin = member_of(ctx)
    meta = meta_of(ctx)
    limit = ctx.settings["sessions_max"]
    if meta.sessions >= limit:
        raise TooManySessions(limit)
    id = meta.next_session
    ctx.table("meta").put("state", replace(meta, next_session=id + 1, sessions=meta.sessions + 1))
    ctx.table("sessions").put(id, SessionRow(origin.name, origin.incarnation, command.kind))
    ctx.table("owners").put((origin.name, origin.incarnation, id), None)
    return SessionOpened(id)


def select(command: Select, ctx: Context) -> None:
    """Change the kind of a session that is in no transaction."""
    row = owned(ctx, command.session)
    if row.number:
        raise InTransaction(command.session)
    if row.kind != command.kind:
        ctx.table("sessions").put(command.session, replace(row, kind=command.kind))

"""Where a message stands: in `messages`, or still among the staged rows of its transaction.

A large commit gives its messages their seqs in one entry and leaves their rows where they were
staged; `Sweep` moves them. Whoever needs one before goes through here and moves it on the way, so
nothing above this file has to know of spans.

A staged row that was moved from here is missed by nobody: `Sweep` moves the rows that it finds, and
each knows its seq (first of the span + its place), however many are left.
"""

from __future__ import annotations

from raftkv.plugin import Context

from .commands import StagedMessage, Stored, size_of
from .times import forget
from .views import span_over

__all__ = ["remove", "take"]


def take(ctx: Context, queue_id: int, seq: int) -> Stored | None:
    """The message, which stands in `messages` from now on; None if there is none."""
    messages = ctx.table("messages")
    key = (queue_id, seq)
    stored: Stored | None = messages.get(key)
    if stored is not None or not len(ctx.table("spans")):
        return stored
    found = _staged(ctx, queue_id, seq)
    if found is None:
        return None
    staged, place, at_ms = found
    ctx.table("staged").delete(place)
    stored = Stored(staged.message, at_ms)
    messages.put(key, stored)
    return stored


def remove(ctx: Context, queue_id: int, seq: int) -> int:
    """Delete the message, wherever it stands; its bytes, 0 if there is none."""
    forget(ctx, queue_id, seq)
    messages = ctx.table("messages")
    key = (queue_id, seq)
    stored: Stored | None = messages.get(key)
    if stored is not None:
        messages.delete(key)
        return size_of(stored.message)
    if not len(ctx.table("spans")):
        return 0
    found = _staged(ctx, queue_id, seq)
    if found is None:
        return 0
    staged, place, _ = found
    ctx.table("staged").delete(place)
    return size_of(staged.message)


def _staged(
    ctx: Context, queue_id: int, seq: int
) -> tuple[StagedMessage, tuple[int, int, int], int] | None:
    """The staged row of a message that is visible through a span: row, key, at_ms."""
    found = span_over(ctx, queue_id, seq)
    if found is None:
        return None
    first, span = found
    place = (span.number, queue_id, seq - first)
    staged: StagedMessage | None = ctx.table("staged").get(place)
    return None if staged is None else (staged, place, span.at_ms)

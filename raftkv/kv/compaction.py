"""Compaction: giving up history, because somebody asked for it or because there is enough of it.

Two things are kept apart. What can be *read* ends at the compacted revision, one number, which
moves at once. The *rows* below it are freed bit by bit, by the commands that follow, because one
command may only do bounded work: the node stands still meanwhile.

    by hand        `Compact` moves the number and frees up to COMPACT_ROWS_MAX rows
    by itself      every TRIM_REVISIONS revisions, and with each change above TRIM_BYTES, up to
                   TRIM_ROWS_MAX rows go that are too old, too many bytes, or compacted

More rows go than come, so the history shrinks to its bounds however far it is above them. It may
exceed `history_revisions` by TRIM_REVISIONS, `history_bytes_max` by TRIM_REVISIONS * TRIM_BYTES
(4 MiB) and one command. The newest row always stays.

**Grace.** Who had begun before the compaction may still need a row below it: a live watch that has
not been handed the newest revisions yet, a range that is being read. So being compacted is no
reason to free one of the newest GRACE_ROWS rows, as long as they are among the newest GRACE_BYTES;
these go later, when there are newer ones. The settings know no grace: they bound memory. Under the
formats before FORMAT_GRACE compacted rows go at once, for all members must keep the same ones.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from raftkv.plugin import Context, Table

from .commands import Compact, Compacted, CompactResult, FutureRevision, Revision
from .history import lowest_revision, revision_of, row_bytes

__all__ = ["COMPACT_ROWS_MAX", "TRIM_BYTES", "TRIM_REVISIONS", "compact", "trim"]

#: The first format of the commands under which a compaction leaves rows for some grace.
FORMAT_GRACE: Final = 3
#: What a live watch may be late by: about what its buffer may hold (watch_hub.py), a second of the
#: fastest writers.
GRACE_ROWS: Final = 10_000
GRACE_BYTES: Final = 16 * 1024 * 1024

# A power of two: a bit mask decides.
TRIM_REVISIONS: Final = 64
# Four times what came since the last time.
TRIM_ROWS_MAX: Final = 256
TRIM_BYTES: Final = 64 * 1024
# Takes about 15 ms.
COMPACT_ROWS_MAX: Final = 10_000


def compact(command: Compact, ctx: Context) -> CompactResult:
    """See `Compact`."""
    newest, lowest = revision_of(ctx), lowest_revision(ctx)
    if command.revision <= lowest:
        raise Compacted(
            f"revision {command.revision} has been compacted already, as far as {lowest}", lowest
        )
    if command.revision > newest:
        raise FutureRevision(
            f"revision {command.revision} has not been reached, the keyspace is at {newest}", newest
        )
    ctx.table("meta").put("compacted", command.revision)
    history: Table[int, Revision] = ctx.table("history")
    if len(history) > 0:
        first = _first(history)
        last = history[newest]
        bytes_end = last.bytes_before + row_bytes(last)
        end = _not_needed(ctx, history, first, command.revision, bytes_end)
        rows = max(0, min(end - first, COMPACT_ROWS_MAX))
        ctx.charge(rows)
        history.delete_first(rows)
    return CompactResult(newest)


def trim(ctx: Context, revision: int, size: int | None = None) -> None:
    """Give up what is more than the settings allow. `revision` is the newest one, with its row.

    `size`: what that row counts, if the caller knows; of a large one it takes long to find out.
    """
    history: Table[int, Revision] = ctx.table("history")
    compacted = lowest_revision(ctx)
    last = history[revision]
    # Rows that begin below this many bytes are too many.
    end = last.bytes_before + (row_bytes(last) if size is None else size)
    bytes_from = end - ctx.settings["history_bytes_max"]
    first = _first(history)
    free_to = _not_needed(ctx, history, first, compacted, end) if compacted > first else first
    keep_from = max(free_to, revision - ctx.settings["history_revisions"] + 1)
    stop = min(first + TRIM_ROWS_MAX, revision)
    number = max(first, min(keep_from, stop))
    while number < stop and history[number].bytes_before < bytes_from:
        number += 1
    history.delete_first(number - first)
    if number > max(first, compacted):
        ctx.table("meta").put("compacted", number)


def _not_needed(
    ctx: Context, history: Table[int, Revision], first: int, compacted: int, end: int
) -> int:
    """Below which revision, not above `compacted`, rows may be freed because they are compacted.

    There is at least one row, and `first` is the revision of the first; `end` is what all rows ever
    held.
    """
    if ctx.version < FORMAT_GRACE:
        return compacted
    newest = revision_of(ctx)
    bytes_from = end - GRACE_BYTES
    oldest = max(first, newest - GRACE_ROWS + 1)
    # Rows have no gaps, and `bytes_before` grows from one to the next.
    grace = bisect_left(
        range(newest), bytes_from, oldest, newest, key=lambda number: history[number].bytes_before
    )
    return min(compacted, grace)


def _first(history: Table[int, Revision]) -> int:
    return next(history.scan(limit=1))[0]

"""The history: which channel a client had last, for a while after it has none.

Rules of this file: pure. Time is the log's clock, so all nodes forget at one index of the log.

When the last channel of a client leaves, one row stays behind, if the setting `history_ms` is not
0; when the client comes back, the row goes. `past` finds it by client, `past_due` by age. Nothing
here may grow without bounds, and nothing may need a leader to stay within them: each write deletes
up to TRIM_ROWS rows that are too old or too many, one more than it adds. So `history_rows_max`
holds after every entry unless it was lowered, and then comes back by one row a write. `TrimPast`,
which the leader proposes in its sweep, is for clusters in which nothing is written any more.

A reader is shown no row that is too old, deleted or not (`gone`). A client that is fenced, whose
row waits for the cleaner, has no history yet: once cleaned, it left when that life ended.
"""

from __future__ import annotations

from typing import Final

from raftkv.plugin import Context, Table, View

from .commands import FORMAT_SESSIONS, Channel, Gone, Trimmed, TrimPast

__all__ = ["back", "gone", "is_due", "left", "trim"]

TRIM_ROWS: Final = 2


def left(channel: Channel, at_ms: int, ctx: Context) -> None:
    """The client's last channel left at `at_ms`; its row is just being deleted."""
    kept_ms: int = ctx.settings["history_ms"] if ctx.version >= FORMAT_SESSIONS else 0
    if at_ms + kept_ms > ctx.now:
        ctx.table("past").put(channel.client_id, Gone(channel, at_ms))
        ctx.table("past_due").put((at_ms, channel.client_id), None)
    _trim(TRIM_ROWS, ctx)


def back(client_id: str, ctx: Context) -> None:
    """The client has a channel again."""
    past: Table[str, Gone] = ctx.table("past")
    row = past.get(client_id)
    if row is not None:
        _forget(row.at_ms, client_id, ctx)
    _trim(TRIM_ROWS, ctx)


def trim(command: TrimPast, ctx: Context) -> Trimmed:
    """Delete what is due, in the bounds of one command."""
    rows = _trim(command.rows, ctx)
    return Trimmed(rows, is_due(ctx, ctx.now), ctx.index)


def is_due(view: View | Context, now_ms: int) -> bool:
    """Whether the history has a row too many, or one that is too old at `now_ms`."""
    oldest = next(iter(view.table("past_due").scan(limit=1)), None)
    if oldest is None:
        return False
    too_many = len(view.table("past")) > view.settings["history_rows_max"]
    return too_many or _is_old(oldest[0][0], view, now_ms)


def gone(view: View, client_id: str) -> Gone | None:
    """The last channel of a client that has none, if it left less than `history_ms` ago."""
    row: Gone | None = view.table("past").get(client_id)
    return None if row is None or _is_old(row.at_ms, view, view.now) else row


def _is_old(at_ms: int, view: View | Context, now_ms: int) -> bool:
    kept_ms: int = view.settings["history_ms"]
    return at_ms + kept_ms <= now_ms


def _trim(rows_max: int, ctx: Context) -> int:
    past = ctx.table("past")
    if not len(past):
        return 0
    surplus = len(past) - int(ctx.settings["history_rows_max"])
    oldest = [key for key, _ in ctx.table("past_due").scan(limit=rows_max)]
    rows = 0
    for at_ms, client_id in oldest:
        if rows >= surplus and not _is_old(at_ms, ctx, ctx.now):
            break
        _forget(at_ms, client_id, ctx)
        rows += 1
    return rows


def _forget(at_ms: int, client_id: str, ctx: Context) -> None:
    ctx.table("past").delete(client_id)
    ctx.table("past_due").delete((at_ms, client_id))

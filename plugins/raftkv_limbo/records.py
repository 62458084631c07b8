"""The verdicts that are kept: runs of rolled back positions.

What is not pending, not rolled back and not forgotten is confirmed: the positions between two runs
are the confirmed ones, whether a confirmation of them is kept or not. A run costs one row however
many positions it has. The oldest runs go when there are more than `rollbacks_kept`, and with them
the knowledge of all that is older: `State.forgotten` says how far.

Two kinds of runs are never dropped, and the limits of the queue bound both: those behind its head,
for they say which entries there are dead, and those of the present entry of the log, for whoever
waits for that verdict has not seen it yet.

A confirmation (format 2) is when positions were confirmed, and what completed their quorum. It
decides nothing, and as many are kept as there may be runs of rollbacks, the newest.
"""

from __future__ import annotations

from raftkv.plugin import Context

from .commands import ROWS_LIMIT, Cause, Confirmation, Rollback

__all__ = ["add_confirmations", "add_runs", "forget", "runs_of"]


def runs_of(positions: list[int]) -> list[tuple[int, int]]:
    """The stretches without gaps of rising positions: (first, last), in order."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and runs[-1][1] == position - 1:
            runs[-1] = runs[-1][0], position
        else:
            runs.append((position, position))
    return runs


def add_runs(ctx: Context, positions: list[int], *, term: int, reason: str, node: str) -> None:
    """Write down one ROLLBACK of these rising positions, newest run first."""
    table = ctx.table("rollbacks")
    for first, last in reversed(runs_of(positions)):
        run = Rollback(last, positions[0], ctx.index, term, ctx.now, reason, node)
        table.put(first, run)


def add_confirmations(
    ctx: Context, positions: list[int], *, term: int, cause: Cause, by: str, upto: int
) -> None:
    """Write down that this entry confirmed these rising positions, and drop what is too old."""
    table = ctx.table("confirmations")
    for first, last in runs_of(positions):
        table.put(first, Confirmation(last, ctx.index, term, ctx.now, cause, by, upto))
    surplus = len(table) - ctx.settings["rollbacks_kept"]
    if surplus > 0:
        for first, _ in list(table.scan(limit=min(surplus, ROWS_LIMIT))):
            table.delete(first)


def forget(ctx: Context, forgotten: int, head: int) -> int:
    """Drop the oldest runs that are too many; up to which position verdicts are unknown then."""
    table = ctx.table("rollbacks")
    surplus = len(table) - ctx.settings["rollbacks_kept"]
    if surplus <= 0:
        return forgotten
    for first, run in list(table.scan(last=head or None, limit=surplus)):
        if run.index == ctx.index:
            break
        table.delete(first)
        forgotten = run.last
    return forgotten

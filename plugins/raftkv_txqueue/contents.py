"""What a branch contains: per queue what it publishes and accepts, and the numbers of the latter.

Pure functions on a `View`. A message that is published in an undecided branch has no seq yet. What
a decided one has left to be moved is no content any more: its figures stay, the seqs go.
"""

from __future__ import annotations

import msgspec

from .commands import Part, TransactionRow
from .happened import UNDECIDED
from .views import Tables

__all__ = ["SEQS_DEFAULT", "BranchContent", "BranchPart", "content_of", "parts_of"]

#: Seqs of one queue that an answer shows if it is not asked for more; the limit is `ROWS_MAX`.
SEQS_DEFAULT = 100


class BranchPart(msgspec.Struct, frozen=True):
    """What a branch does to one queue; "": the queue is deleted (only of a decided branch).

    `publishes` messages of `publish_bytes`, `accepts` of `accept_bytes`, as the limits count bytes.
    """

    queue: str
    publishes: int
    publish_bytes: int
    accepts: int
    accept_bytes: int


class BranchContent(BranchPart, frozen=True):
    """A part with the seqs of what is accepted, in order; `next`: the one to go on from, 0: none.

    () when the branch is decided: what it accepted is gone, or back in its queue.
    """

    seqs: tuple[int, ...] = ()
    next: int = 0


def parts_of(view: Tables, row: TransactionRow) -> tuple[BranchPart, ...]:
    """What it does to each queue, in the order of first use; at most `TRANSACTION_QUEUES_MAX`."""
    names = view.table("names")
    return tuple(BranchPart(*_figures(names.get(part.queue, ""), part)) for part in row.parts)


def content_of(
    view: Tables, number: int, row: TransactionRow, queue: str, first: int, limit: int
) -> tuple[BranchContent, ...]:
    """Its parts, or that of one `queue`, with the seqs from `first` on, `limit` of each queue."""
    names, accepts = view.table("names"), view.table("accepts")
    found = []
    for part in row.parts:
        name = names.get(part.queue, "")
        if queue and name != queue:
            continue
        seqs: list[int] = []
        if row.state in UNDECIDED:
            start, end = (number, part.queue, first), (number, part.queue + 1, 0)
            seqs = [key[2] for key, _ in accepts.scan(start, end, limit=limit + 1)]
        rest = seqs[limit] if len(seqs) > limit else 0
        found.append(BranchContent(*_figures(name, part), tuple(seqs[:limit]), rest))
    return tuple(found)


def _figures(name: str, part: Part) -> tuple[str, int, int, int, int]:
    return name, part.publishes, part.publish_bytes, part.accepts, part.accept_bytes

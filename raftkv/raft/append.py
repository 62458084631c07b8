"""What an append message does to a log, and what a leader may commit (rules 1 and 2).

Rules of this file: pure; a log is seen through `LogView`, nothing is changed here. The functions
return what the engine is to do.

Theory (Raft paper 5.3, 5.4.2). Entries that match stay: a shorter or repeated message must never
cut the log, or an acknowledged entry can vanish. Only the first (index, term) conflict truncates,
and a conflict at or below the commit index means that this node or the leader is broken: a
NodeFault, never a silent repair. The follower acknowledges `prev + len(entries)`, what the
message verified, never its own log end; the commit index moves over the verified prefix only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from raftkv.errors import Diverged

__all__ = ["Accepted", "LogView", "Rejected", "first_of_term", "judge_append", "quorum_index"]

WireEntry = tuple[int, bytes]
"""(term, payload); the index follows from the message's `prev_index` and the position."""


class LogView(Protocol):
    @property
    def base_index(self) -> int: ...

    @property
    def last_index(self) -> int: ...

    def term_at(self, index: int) -> int | None: ...


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """`truncate_from` (or None), then append `entries[skip:]` from index `prev + 1 + skip`."""

    match: int
    truncate_from: int | None
    skip: int
    commit: int


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """The log does not hold (prev_index, prev_term).

    `hint_term` is the term this log has at prev (0 if it is shorter) and `hint_index` the first
    index of that term (or the log's end + 1): the leader skips a whole term at a time (rule 24).
    """

    hint_term: int
    hint_index: int


def first_of_term(log: LogView, index: int) -> int:
    """The first index in the log whose entry has the same term as the one at `index`."""
    term = log.term_at(index)
    while index - 1 > log.base_index and log.term_at(index - 1) == term:
        index -= 1
    return index


def judge_append(
    log: LogView,
    commit: int,
    prev_index: int,
    prev_term: int,
    entries: Sequence[WireEntry],
    leader_commit: int,
) -> Accepted | Rejected:
    """Decide an append message of a leader whose term has been accepted.

    Raises `Diverged` if it contradicts an entry that this node knows to be committed.
    """
    if prev_index > log.last_index:
        return Rejected(0, log.last_index + 1)
    if prev_index >= log.base_index and log.term_at(prev_index) != prev_term:
        if prev_index <= commit:
            raise Diverged(
                f"the leader holds term {prev_term} at index {prev_index}, which this node has "
                f"committed in term {log.term_at(prev_index)}"
            )
        return Rejected(log.term_at(prev_index) or 0, first_of_term(log, prev_index))
    match = prev_index + len(entries)
    new_commit = max(commit, min(leader_commit, match))
    # What lies at or below the base is in a snapshot, hence committed: nothing to compare.
    skip = min(len(entries), max(0, log.base_index - prev_index))
    last_index = log.last_index
    while skip < len(entries) and prev_index + 1 + skip <= last_index:
        index = prev_index + 1 + skip
        if log.term_at(index) != entries[skip][0]:
            if index <= commit:
                raise Diverged(
                    f"the leader sent term {entries[skip][0]} for index {index}, which this node "
                    f"has committed in term {log.term_at(index)}"
                )
            return Accepted(match, index, skip, new_commit)
        skip += 1
    return Accepted(match, None, skip, new_commit)


def quorum_index(matches: Iterable[int]) -> int:
    """The highest index that a majority of the voters' match indexes reaches. 0 if none."""
    ordered = sorted(matches)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0

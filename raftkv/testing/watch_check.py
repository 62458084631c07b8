"""Did a watch keep its promises? Judged by what it gave and by what the keyspace went through.

    flaw = check_watch(Watched(b"jobs/", b"jobs0", first=12, prev_kv=True), batches, history)

The promises (docs/internals/watch.md) all come down to one comparison: after a batch of revision r,
everything that the history holds of these keys from `first` to r was given, in its order, and
nothing else. `flaw` names the promise that the first difference breaks. The batches may be those of
several watches, each resumed where the one before had stopped: also with another one on another
node, after any failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from raftkv.kv.commands import FROM_KEY, Event
from raftkv.kv.watch import WatchBatch

__all__ = ["Watched", "check_watch"]

History = Mapping[int, tuple[Event, ...]]


class Watched(NamedTuple):
    """What was watched, from which revision on. `range_end` as in etcd: b"" is the one key."""

    key: bytes
    range_end: bytes
    first: int
    prev_kv: bool = False
    put: bool = True
    delete: bool = True

    def of(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """What a watch gives of a revision's events."""
        return tuple(
            event if self.prev_kv else Event(event.kv)
            for event in events
            if self._covers(event.kv.key) and (self.delete if event.kv.version == 0 else self.put)
        )

    def _covers(self, key: bytes) -> bool:
        if not self.range_end:
            return key == self.key
        return self.key <= key and (self.range_end == FROM_KEY or key < self.range_end)


def check_watch(watched: Watched, batches: Iterable[WatchBatch], history: History) -> str:
    """The promise that is broken, and by what; empty if none is.

    `history` holds the events of every revision from `first` to the last batch's.
    """
    position = watched.first - 1
    for batch in batches:
        if not _is_right(watched, batch, position, history):
            return _flaw(watched, batch, position, history)
        position = batch.revision
    return ""


def _is_right(watched: Watched, batch: WatchBatch, position: int, history: History) -> bool:
    """Whether it gives what came behind `position`, and nothing else."""
    if batch.revision < position or (batch.revision == position and batch.events):
        return False
    expected: list[Event] = []
    for revision in range(position + 1, batch.revision + 1):
        if revision not in history:
            return False
        expected += watched.of(history[revision])
    return batch.events == tuple(expected)


def _flaw(watched: Watched, batch: WatchBatch, position: int, history: History) -> str:
    revisions = [event.kv.mod_revision for event in batch.events]
    if revisions != sorted(revisions):
        return f"ordered: a batch goes through revisions {revisions}"
    for revision in revisions:
        if revision <= position:
            what = "unique" if revision >= watched.first else "resumable"
            return f"{what}: revision {revision} is given after everything up to {position} was"
        if revision > batch.revision:
            return f"bookmarkable: revision {revision} in a batch that ends at {batch.revision}"
    if batch.revision < position or (batch.revision == position and batch.events):
        return f"bookmarkable: a batch of revision {batch.revision} comes after one of {position}"
    given: dict[int, list[Event]] = {}
    for event in batch.events:
        given.setdefault(event.kv.mod_revision, []).append(event)
    for revision in range(position + 1, batch.revision + 1):
        if revision not in history:
            return f"reliable: revision {revision} was given, and nobody has ever applied it"
        expected = watched.of(history[revision])
        got = tuple(given.get(revision, ()))
        if got != expected:
            return _difference(revision, got, expected, batch.revision)
    raise AssertionError("each revision is right, and the batch is not")


def _difference(
    revision: int, got: tuple[Event, ...], expected: tuple[Event, ...], upto: int
) -> str:
    if not got:
        what = "reliable" if upto > revision else "atomic"
        return f"{what}: revision {revision} is missing from what was given up to {upto}"
    if len(set(got)) < len(got):
        return f"unique: an event of revision {revision} is given twice"
    if set(got) < set(expected):
        return f"atomic: {len(got)} of the {len(expected)} events of revision {revision} are given"
    if set(got) == set(expected):
        return f"ordered: the events of revision {revision} are not in their order"
    return f"reliable: revision {revision} is given as {got!r}, and was {expected!r}"

"""The history: every change that is still known, one row per revision, and the past it gives.

Rules of this file
1. Since the first change under format 2, every revision has one row, with all its events in the
   order of the operations. There is no gap up to the newest revision, whose row is never given up.
2. What can be read or watched begins at the *lowest* revision, meta "compacted". Rows below it may
   still lie there for a while (compaction.py frees them bit by bit), but nobody may look at them
   who has not begun before: a walk over many pages may (walk.py), and so may live watches.
3. `bytes_before` counts what all rows before ever held, so the size of the history is a
   subtraction. An event counts with EVENT_BYTES besides its keys and values, or the history of
   small keys would not be bounded at all.

The past is computed backwards. Of each key changed above revision r, the oldest event above r tells
in `prev` what the key was at r; keys without such an event are now as they were then. So a read at
r costs what has happened since, and nothing has to be kept for it. `Past` collects these keys; what
it has collected stays right while the keyspace goes on, it only has to be caught up before the next
look. That makes a walk over many pages cheap (walk.py), and lets a read pause in between.

Whether a keyspace has a history at all: one that 0.1.0 wrote has none. Then only its present can be
read, until the first change, which becomes the lowest revision.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from sortedcontainers import SortedDict, SortedSet

from raftkv.plugin import Table, TableView

from .commands import (
    FROM_KEY,
    Compacted,
    Event,
    FutureRevision,
    KeyValue,
    RangeOp,
    RangeResult,
    Revision,
    events_of,
)
from .ranges import Keys, count_range, in_range, scan_range, shaped

__all__ = [
    "ALL_EVENTS",
    "EVENT_BYTES",
    "FIRST_REVISION",
    "NEVER_COMPACTED",
    "Past",
    "Tables",
    "bytes_behind",
    "events_behind",
    "former",
    "leads_back",
    "lowest_revision",
    "record",
    "require_in",
    "require_readable",
    "revision_of",
    "row_bytes",
]

#: Of the empty keyspace, as in etcd: the first change gets 2.
FIRST_REVISION: Final = 1
#: The lowest revision while nothing was compacted, as in etcd.
NEVER_COMPACTED: Final = -1
#: For `Past.catch_up`: to the end, in one go.
ALL_EVENTS: Final = 1 << 62
#: What an event counts besides its keys and values: about what Python needs for it.
EVENT_BYTES: Final = 256
#: So many events of a row are summed up in no time.
FEW_EVENTS: Final = 64
# The sizes of large rows, known by the first event's own object, which is of no other row, so that
# the rows are not kept. They follow from the rows alone: it does not matter whose machine's.
_large: Final[deque[tuple[KeyValue, int, int]]] = deque(maxlen=8)


class Tables(Protocol):
    """A Context or a View."""

    def table(self, name: str) -> TableView[Any, Any]: ...


def revision_of(tables: Tables) -> int:
    """The revision of the keyspace."""
    revision: int = tables.table("meta").get("revision", FIRST_REVISION)
    return revision


def lowest_revision(tables: Tables) -> int:
    """The lowest revision that can be read, and from which can be watched: the compacted one."""
    compacted: int | None = tables.table("meta").get("compacted")
    if compacted is not None:
        return compacted
    revision = revision_of(tables)
    if revision == FIRST_REVISION or len(tables.table("history")) > 0:
        return NEVER_COMPACTED
    return revision  # of a keyspace that has no history yet


def require_readable(tables: Tables, revision: int) -> None:
    """Raise FutureRevision or Compacted unless the keyspace can be read as of `revision`."""
    require_in(revision, lowest_revision(tables), revision_of(tables))


def require_in(revision: int, lowest: int, newest: int) -> None:
    """Raise FutureRevision or Compacted unless `revision` lies between the two."""
    if revision > newest:
        raise FutureRevision(
            f"revision {revision} has not been reached, the keyspace is at {newest}", newest
        )
    if revision < lowest:
        raise Compacted(
            f"revision {revision} has been compacted, the lowest that is kept is {lowest}", lowest
        )


def event_bytes(kv: KeyValue, prev: KeyValue | None) -> int:
    size = EVENT_BYTES + len(kv.key) + len(kv.value)
    return size if prev is None else size + len(prev.key) + len(prev.value)


def row_bytes(row: Revision) -> int:
    """What a row counts against `history_bytes_max`.

    The newest row is asked for with each command, and may have an event for each key that there
    was. So a large one is summed up once, as long as few others come in between.
    """
    if len(row.more) <= FEW_EVENTS:
        return _summed(row)
    for kv, events, size in _large:
        if kv is row.kv and events == len(row.more):
            return size
    size = _summed(row)
    _large.appendleft((row.kv, len(row.more), size))
    return size


def _summed(row: Revision) -> int:
    size = event_bytes(row.kv, row.prev)
    for event in row.more:
        size += event_bytes(event.kv, event.prev)
    return size


def record(
    history: Table[int, Revision],
    meta: Table[str, int],
    revision: int,
    events: Sequence[Event],
) -> Revision:
    """Write the row of a revision."""
    last = history.get(revision - 1)
    if last is None:
        before = 0
        if revision > FIRST_REVISION + 1:
            # The first change under format 2 of a keyspace that is older.
            meta.put("compacted", revision)
    else:
        before = last.bytes_before + row_bytes(last)
    first = events[0]
    row = Revision(first.kv, first.prev, before, tuple(events[1:]))
    history.put(revision, row)
    return row


def events_behind(tables: Tables, revision: int, enough: int, upto: int | None = None) -> int:
    """How many events there are since `revision`; the counting ends once there are `enough`.

    Those after the revision `upto` do not count. 0 if what followed `revision` is not kept.
    """
    history, events = tables.table("history"), 0
    newest = revision_of(tables) if upto is None else upto
    number = revision + 1
    if newest - revision >= enough and number in history:
        return newest - revision  # each has one at least
    while number <= newest and events < enough and number in history:
        events += 1 + len(history[number].more)
        number += 1
    return events


def bytes_behind(tables: Tables, revision: int) -> int:
    """What the rows since `revision` count against `history_bytes_max`, as long as it is kept."""
    history, newest = tables.table("history"), revision_of(tables)
    if revision >= newest or revision + 1 not in history:
        return 0
    last = history[newest]
    size: int = last.bytes_before + row_bytes(last) - history[revision + 1].bytes_before
    return size


def leads_back(kv: KeyValue | None, revision: int) -> bool:
    """Whether what a key was at `revision` can be told from its own events alone.

    `kv` is what it is now. Nothing leads back from a key that was deleted and created again.
    """
    return kv is not None and kv.create_revision <= revision


def former(tables: Tables, kv: KeyValue) -> KeyValue:
    """What a key was before its last change. `leads_back` to a revision before that."""
    row: Revision = tables.table("history")[kv.mod_revision]
    prev = next(event.prev for event in events_of(row) if event.kv.key == kv.key)
    assert prev is not None, "it was not created by that change"
    return prev


class Past:
    """The keys of a range as they were at one revision.

    Beside what the keys were it keeps which of them are no longer there, and which were not there
    then: so a count costs two bisections, however much has changed.
    """

    def __init__(self, key: bytes, range_end: bytes, revision: int) -> None:
        self.revision = revision
        self.key = key
        self.range_end = range_end
        self._next = revision + 1
        # How many events of that row were looked at.
        self._looked = 0
        self._was: SortedDict = SortedDict()  # key -> KeyValue, or None: there was none
        self._gone: SortedSet = SortedSet()  # were there then, and are not now
        self._new: SortedSet = SortedSet()  # were not there then, and are now

    def is_behind(self, tables: Tables, upto: int | None = None) -> bool:
        """Whether there are rows of the history, up to a revision, that it has not looked at."""
        return self.revisions_behind(revision_of(tables) if upto is None else upto) > 0

    @property
    def seen(self) -> int:
        """The last revision of which it has looked at all changes."""
        return self._next - 1

    def revisions_behind(self, newest: int) -> int:
        """How many rows of the history up to `newest` it has not looked at."""
        return max(0, newest + 1 - self._next)

    def catch_up(self, tables: Tables, events_max: int, upto: int | None = None) -> int:
        """Look at `events_max` further events of the history, or at all; how many it looked at.

        Looks at none after the revision `upto`. Their rows must be readable, see `require_kept`. It
        may stop within a row: one deletion has an event for each key.
        """
        history = tables.table("history")
        newest = revision_of(tables) if upto is None else upto
        left = events_max
        while self._next <= newest and left > 0:
            left -= self._look_at(history[self._next], left)
        return events_max - left

    def _look_at(self, row: Revision, events_max: int) -> int:
        """Look at further events of the row; how many."""
        begin, events = self._looked, 1 + len(row.more)
        end = min(begin + events_max, events)
        if not begin:
            self._undo(row.kv, row.prev)
        for event in row.more[max(begin - 1, 0) : end - 1]:
            self._undo(event.kv, event.prev)
        if end == events:
            self._next, self._looked = self._next + 1, 0
        else:
            self._looked = end
        return end - begin

    def require_kept(self, tables: Tables) -> None:
        """Raise Compacted unless all that has changed since the last look is still there.

        That needs less than that the revision can be read: who has seen a row does not miss it.
        """
        if self._next <= revision_of(tables) and self._next not in tables.table("history"):
            lowest = lowest_revision(tables)
            raise Compacted(
                f"what followed revision {self._next - 1} has been compacted while a range was "
                f"read, the lowest that is kept is {lowest}",
                lowest,
            )

    def undo(self, events: Iterable[Event]) -> None:
        """Events that stand in no row yet: those of the command that is being applied."""
        for event in events:
            self._undo(event.kv, event.prev)

    def settle(self, was: KeyValue, exists: bool) -> None:
        """What a key was is known otherwise, by its own events; and whether it exists now."""
        self._was[was.key] = was
        if not exists:
            self._gone.add(was.key)

    def forget_before(self, key: bytes) -> None:
        """No reader will ask for what lies below `key`. `free` gives the memory back."""
        self.key = key

    def free(self, keys_max: int) -> int:
        """Drop up to so many of the keys that no reader will ask for; how many.

        A key takes an eighth of the time of a row that is read.
        """
        was = self._was
        end: int = min(was.bisect_left(self.key), keys_max)
        if end > 0:
            # What is left begins with this key, in all three.
            key = was.peekitem(end)[0] if end < len(was) else self.key
            del was.keys()[:end]
            for names in (self._gone, self._new):
                del names[: names.bisect_left(key)]
        return end

    def _undo(self, kv: KeyValue, prev: KeyValue | None) -> None:
        name = kv.key
        if not in_range(name, self.key, self.range_end):
            return
        # Only the oldest event tells what was at the revision.
        was = self._was.setdefault(name, prev)
        exists = kv.version > 0
        if exists == (prev is not None):
            return
        names = self._new if was is None else self._gone
        if exists == (was is not None):
            names.discard(name)
        else:
            names.add(name)

    def read(self, keys: Keys, operation: RangeOp, revision: int) -> RangeResult:
        """Answer a read of the range, or of its rest. `revision`: what the result is to carry."""
        key, range_end = operation.key, operation.range_end

        def scan(limit: int) -> Iterator[KeyValue]:
            return self.scan(keys, key, range_end, limit)

        return shaped(operation, revision, self.count(keys, key, range_end), scan)

    def count(self, keys: Keys, key: bytes, range_end: bytes, since: Past | None = None) -> int:
        """How many keys lay in the range. `since`: see `slice`."""
        if since is None:
            now = count_range(keys, key, range_end)
        else:
            now = since.count(keys, key, range_end)
        return self.count_of(now, key, range_end)

    def count_of(self, now: int, key: bytes, range_end: bytes) -> int:
        """`count` of a range which had `now` keys after the last change that was looked at."""
        return now + _count(self._gone, key, range_end) - _count(self._new, key, range_end)

    def scan(self, keys: Keys, key: bytes, range_end: bytes, limit: int = 0) -> Iterator[KeyValue]:
        """The keys of the range in order; at most `limit`, 0 for all."""
        left = limit if limit > 0 else -1
        for _, kv in self.merged(scan_range(keys, key, range_end), key, range_end):
            if kv is not None:
                yield kv
                left -= 1
                if left == 0:
                    return

    def slice(
        self,
        keys: Keys,
        key: bytes,
        range_end: bytes,
        limit: int,
        rows_max: int,
        since: Past | None = None,
    ) -> tuple[list[KeyValue], int, bytes | None]:
        """The first keys of the range: (keys, rows looked at, the key to go on at).

        At most `limit` keys, from at most `rows_max` rows: a key that was created since is a row
        without one. The last is None at the end of the range. With `since`, this past has looked at
        the changes up to that one's revision only, and `since` at those after it.
        """
        if (
            since is None and range_end and not self._was
        ):  # nothing has changed since: a tenth faster
            enough = min(limit, rows_max)
            found = [kv for _, kv in scan_range(keys, key, range_end, enough)]
            return found, len(found), found[-1].key + b"\0" if len(found) == enough else None
        found = []
        looked = 0
        rows: Iterator[tuple[bytes, KeyValue | None]] = scan_range(keys, key, range_end)
        if since is not None:
            rows = since.merged(rows, key, range_end)
        for name, kv in self.merged(rows, key, range_end):
            looked += 1
            if kv is not None:
                found.append(kv)
            if range_end and (len(found) == limit or looked == rows_max):
                return found, looked, name + b"\0"
        return found, max(looked, 1), None

    def merged(
        self, rows: Iterator[tuple[bytes, KeyValue | None]], key: bytes, range_end: bytes
    ) -> Iterator[tuple[bytes, KeyValue | None]]:
        """Each key of the range in `rows`, or that has changed since, with what it was."""
        changed = self._changed(key, range_end)
        other = next(changed, None)
        for name, kv in rows:
            while other is not None and other[0] < name:
                yield other
                other = next(changed, None)
            if other is None or other[0] != name:
                yield name, kv
            else:
                yield other
                other = next(changed, None)
        while other is not None:
            yield other
            other = next(changed, None)

    def _changed(self, key: bytes, range_end: bytes) -> Iterator[tuple[bytes, KeyValue | None]]:
        """What was, of the keys of the range that have changed since, in key order."""
        was = self._was
        if not range_end:
            if key in was:
                yield key, was[key]
            return
        last = None if range_end == FROM_KEY else range_end
        for name in was.irange(key, last, (True, False)):
            yield name, was[name]


def _count(names: SortedSet, key: bytes, range_end: bytes) -> int:
    """How many of the names lie in a range."""
    if not range_end:
        return 1 if key in names else 0
    begin: int = names.bisect_left(key)
    end: int = len(names) if range_end == FROM_KEY else names.bisect_left(range_end)
    return max(0, end - begin)

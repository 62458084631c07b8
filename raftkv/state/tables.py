"""Typed tables: where all replicated state lives.

Rules of this file
1. Keys and values are immutable, and `TableSpec` refuses types that are not. So a value may be
   shared by the live table, an undo log, a change and a snapshot without being copied.
2. Order is key order, always. Nothing here ever iterates in order of insertion or of hashes, so
   two nodes that applied the same commands iterate alike.
3. Every write goes through `put` or `delete`: that is what gives each plugin, for nothing, undo
   per command, change capture, snapshots in slices, and the digest.

How the three services share one record. A write appends `(table, key, old)` to one undo log that
all tables of a machine share. A refused command is undone by walking that log backwards. The
changes of an accepted command are the same log read forwards (first old value, last new value per
key), and they are only built when somebody listens. The log is cleared after each command.

How a snapshot is walked while commands go on. `freeze` attaches a `FrozenTable` to the table.
From then on the first write to each key that the walk has not passed yet saves the value that the
key had at the freeze. The walk asks the saved values first and the live table otherwise. Keys that
have vanished from the live table are kept apart, sorted (`_ghosts`), because the walk needs them
in order. A walk therefore costs what it reads, and a write during a walk one comparison and one
dict entry; nothing is ever copied whole. What was saved is let go as the walk passes it. Tables
that are logs are walked by numbers (runs.py).

What is left of a table that a snapshot has replaced, and of a walk that ended early, is freed in
steps: it goes to the machine's `Waste`. The rows that were replaced go there once the last walk
over them has ended.

What is not pretty: `get` is the bound method of the rows inside, stored as an attribute, because
a Python-level wrapper would double the cost of the most frequent operation of all. A restore swaps
the rows, and a table that has grown large gets others (rows.py); both rebind `get`, between
batches. So nobody may keep `table.get` beyond one command.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, overload

from sortedcontainers import SortedList

from raftkv.waste import Waste

from .rows import SMALL_ROWS_MAX, Rows, SmallRows, grown

__all__ = [
    "ABSENT",
    "Absent",
    "FrozenTable",
    "Table",
    "TableView",
    "UndoLog",
    "undo_to",
]

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

# Keys fetched at once by a scan: large enough to amortise the search for the place to go on,
# small enough that a scan which is left early has read little.
SCAN_KEYS = 256


class Absent(enum.Enum):
    """The type of `ABSENT`."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


#: "There is no row", where None could be a value.
ABSENT: Final = Absent.ABSENT

UndoLog = list[tuple["Table[Any, Any]", Any, Any]]


class _After:
    """Stands in the order behind every key that starts with `prefix`, before all greater ones."""

    __slots__ = ("_prefix", "_size")

    def __init__(self, prefix: Sequence[Any]) -> None:
        self._prefix = prefix
        self._size = len(prefix)

    def __lt__(self, key: Any) -> bool:
        return bool(key[: self._size] > self._prefix)

    def __gt__(self, key: Any) -> bool:
        return bool(key[: self._size] <= self._prefix)


class TableView(Generic[K, V]):
    """The reading half of a table."""

    __slots__ = ("_rows", "get", "name")

    def __init__(self, name: str, rows: Rows) -> None:
        self.name = name
        self._bind(rows)

    def _bind(self, rows: Rows) -> None:
        self._rows = rows
        object.__setattr__(self, "get", rows.get)

    if TYPE_CHECKING:

        @overload
        def get(self, key: K) -> V | None: ...
        @overload
        def get(self, key: K, default: D) -> V | D: ...
        def get(self, key: K, default: Any = None) -> Any:
            """The value of `key`, or `default`."""

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: K) -> V:
        value: V = self._rows[key]
        return value

    def scan(
        self,
        first: K | None = None,
        last: K | None = None,
        *,
        prefix: Sequence[Any] | None = None,
        reverse: bool = False,
        limit: int = 0,
    ) -> Iterator[tuple[K, V]]:
        """Rows with `first <= key < last`, or those whose key starts with `prefix`, in key order.

        A missing bound is open. Prefixes work on keys that can be sliced: bytes, str, tuples.
        At most `limit` rows; 0 for all. The table may be changed during the scan: rows ahead
        are then seen as they are when the scan reaches them, in the same way on every node.
        """
        low, high = self._bounds(first, last, prefix)
        rows = self._rows
        inclusive = (True, False)
        left = -1 if limit == 0 else limit
        while left != 0:
            count = SCAN_KEYS if left < 0 or left > SCAN_KEYS else left
            keys = list(islice(rows.irange(low, high, inclusive, reverse), count))
            for key in keys:
                value = rows.get(key, ABSENT)
                if value is not ABSENT:
                    left -= 1
                    yield key, value
            if len(keys) < count:
                return
            if reverse:
                high = keys[-1]
            else:
                low, inclusive = keys[-1], (False, False)

    def values(self, first: K | None = None, last: K | None = None, *, limit: int = 0) -> list[V]:
        """The values of `scan(first, last)`, read at once: half the time for each row."""
        rows = self._rows
        keys = rows.irange(first, last, (True, False))
        # Limits come in encodings that hold larger ones than `islice` takes.
        return rows.values_of(islice(keys, min(limit, len(rows))) if limit else keys)

    def keys(self) -> list[K]:
        """All keys in order, read at once: some ten nanoseconds for each."""
        return list(self._rows.irange())

    def count(
        self, first: K | None = None, last: K | None = None, *, prefix: Sequence[Any] | None = None
    ) -> int:
        """How many rows `scan` would give, found without reading them."""
        low, high = self._bounds(first, last, prefix)
        rows = self._rows
        start = 0 if low is None else rows.bisect_left(low)
        stop = len(rows) if high is None else rows.bisect_left(high)
        return max(0, stop - start)

    @staticmethod
    def _bounds(first: Any, last: Any, prefix: Sequence[Any] | None) -> tuple[Any, Any]:
        if prefix is None:
            return first, last
        assert first is None, "prefix excludes first"
        assert last is None, "prefix excludes last"
        return prefix, _After(prefix)


class Table(TableView[K, V]):
    """A table as the command that is being applied sees it. Made by the state machine only."""

    __slots__ = ("_frozen", "_record", "_undo", "_waste", "captured", "plugin", "view")

    _empty: ClassVar[type[Rows]] = SmallRows

    def __init__(self, plugin: str, name: str, undo: UndoLog, waste: Waste | None = None) -> None:
        self.plugin = plugin
        self.view: TableView[K, V] = TableView(name, self._empty())
        super().__init__(name, self.view._rows)
        self.captured = False
        self._waste = Waste() if waste is None else waste
        self._undo = undo
        self._record: Callable[[tuple[Table[Any, Any], Any, Any]], None] = undo.append
        self._frozen: tuple[FrozenTable, ...] = ()

    def put(self, key: K, value: V) -> None:
        """Set the row of `key`."""
        rows = self._rows
        old = rows.get(key, ABSENT)
        self._record((self, key, old))
        if self._frozen:
            for frozen in self._frozen:
                frozen._save(key, old, False)
        if old is ABSENT:
            rows[key] = value
        else:
            rows.replace(key, value)

    def replace(self, key: K, old: V, value: V) -> None:
        """`put`, by someone who has just got `old` from this row: spares looking for it again."""
        self._record((self, key, old))
        if self._frozen:
            for frozen in self._frozen:
                frozen._save(key, old, False)
        self._rows.replace(key, value)

    def delete(self, key: K) -> bool:
        """Remove the row of `key`; return whether there was one."""
        rows = self._rows
        old = rows.get(key, ABSENT)
        if old is ABSENT:
            return False
        self._record((self, key, old))
        for frozen in self._frozen:
            frozen._save(key, old, True)
        del rows[key]
        return True

    def delete_first(self, count: int) -> None:
        """Remove the first `count` rows in key order; fewer if there are not so many."""
        for key in list(islice(self._rows, max(0, count))):
            self.delete(key)

    def capture(self, record: Callable[[tuple[Table[Any, Any], Any, Any]], None] | None) -> None:
        """Record writes in this way from now on: it must append them to the undo log; None ends it.

        Between two commands only.
        """
        self.captured = record is not None
        self._record = self._undo.append if record is None else record

    def freeze(self) -> FrozenTable:
        """A view of the rows as they are now, to be walked in slices. Close it, or walk it."""
        frozen = self._new_walk()
        self._frozen = (*self._frozen, frozen)
        return frozen

    def _new_walk(self) -> FrozenTable:
        return _SortedWalk(self)

    def replace_all(self, rows: Rows | None) -> None:
        """Swap in the rows of a snapshot. Not undoable and not captured.

        A walk that is under way goes on over the old rows, which nobody writes to any more.
        """
        old, walks = self._rows, self._frozen
        self._frozen = ()
        self._swap(self._empty() if rows is None else rows)
        if walks:
            left = _Left(old, len(walks))
            for frozen in walks:
                frozen._left = left
        else:
            self._waste.add(old)

    @property
    def crowded(self) -> bool:
        """Whether `grow` should be called, between two batches."""
        return len(self._rows) > SMALL_ROWS_MAX and isinstance(self._rows, SmallRows)

    def grow(self) -> None:
        """Keep the rows from now on in the form for many. Walks go on."""
        old = self._rows
        rows = grown(old)
        self._swap(rows)
        for frozen in self._frozen:
            frozen._rows = rows
        self._waste.add(old)

    def _swap(self, rows: Rows) -> None:
        self._bind(rows)
        self.view._bind(rows)

    def _revert(self, key: Any, old: Any) -> None:
        # What a freeze saved stays right: the key now holds just that value again.
        if old is not ABSENT:
            self._rows[key] = old
        elif key in self._rows:  # else the write itself was refused, a gap in a run say
            del self._rows[key]

    def _detach(self, frozen: FrozenTable) -> None:
        self._frozen = tuple(other for other in self._frozen if other is not frozen)


def undo_to(log: UndoLog, mark: int) -> None:
    """Undo the newest writes until `mark` records are left in the log."""
    while len(log) > mark:
        table, key, old = log.pop()
        table._revert(key, old)


class _Left:
    """Rows that their table has given up, and how many walks still read them."""

    __slots__ = ("rows", "walks")

    def __init__(self, rows: Rows, walks: int) -> None:
        self.rows = rows
        self.walks = walks


class _Ghosts(SortedList):  # type: ignore[misc, unused-ignore]
    """Keys that have vanished from the live table."""

    def drop_some(self, count: int) -> None:
        for _ in range(min(count, len(self))):
            self.pop()

    def pass_to(self, key: Any) -> None:
        """Forget those up to and including `key`."""
        while len(self) and self[0] <= key:
            self.pop(0)


class FrozenTable(ABC):
    """The rows of one table at the moment of the freeze: what all walks have in common.

    `_rows` are the live ones; `_saved` has what rows were before they were written to.
    """

    __slots__ = ("_left", "_rows", "_saved", "_table")

    def __init__(self, table: Table[Any, Any]) -> None:
        self._table: Table[Any, Any] | None = table
        self._rows = table._rows
        self._left: _Left | None = None
        self._saved: dict[Any, Any] = {}

    @abstractmethod
    def _save(self, key: Any, old: Any, vanishes: bool) -> None:
        """The row of `key` is about to be written, or to vanish. `old`: what it is, or ABSENT."""

    @abstractmethod
    def next_rows(self, count: int) -> list[tuple[Any, Any]] | None:
        """The next rows in key order, found among the next `count` keys; None: the walk is over.

        Of keys that are all younger than the freeze none is given. These are passed.
        """

    @abstractmethod
    def passed(self, key: Any) -> None:
        """The caller has taken all rows up to and including `key`; writes to them are free now."""

    def close(self) -> None:
        """Stop saving values. Idempotent."""
        table, left = self._table, self._left
        if table is None:
            return
        table._detach(self)
        table._waste.add(self._saved)
        if left is not None:
            left.walks -= 1
            if left.walks == 0:
                table._waste.add(left.rows)
        self._table = self._left = None
        self._rows, self._saved = SmallRows(), {}


class _SortedWalk(FrozenTable):
    """The walk over a table of any keys."""

    __slots__ = ("_cursor", "_end", "_ghosts", "_looked")

    def __init__(self, table: Table[Any, Any]) -> None:
        super().__init__(table)
        # The walk ends here. Keys behind it are younger.
        self._end: Any = next(table._rows.irange(reverse=True), ABSENT)
        self._cursor: Any = ABSENT
        # The keys of the slice that was given last: what was saved of them can go when it passes.
        self._looked: list[Any] = []
        self._ghosts = _Ghosts()

    def _save(self, key: Any, old: Any, vanishes: bool) -> None:
        if self._cursor is not ABSENT and key <= self._cursor:
            return
        if self._end is ABSENT or key > self._end:
            return
        if key not in self._saved:
            self._saved[key] = old
            if vanishes:
                self._ghosts.add(key)
        elif vanishes and self._saved[key] is not ABSENT and key not in self._ghosts:
            self._ghosts.add(key)

    def next_rows(self, count: int) -> list[tuple[Any, Any]] | None:
        if self._table is None:
            return None
        keys = self._looked = self._next_keys(count)
        if len(keys) == 0:
            self.close()
            return None
        saved = self._saved
        rows: list[tuple[Any, Any]] = self._rows.pick(keys, ABSENT)
        if saved:
            rows = [(key, saved[key]) if key in saved else (key, live) for key, live in rows]
            rows = [row for row in rows if row[1] is not ABSENT]
            if not rows:
                self.passed(keys[-1])
        return rows

    def _next_keys(self, count: int) -> list[Any]:
        low, end = None if self._cursor is ABSENT else self._cursor, self._end
        if end is ABSENT:
            return []
        inclusive = (False, True)
        keys = list(islice(self._rows.irange(low, end, inclusive), count))
        if len(self._ghosts):
            ghosts = list(islice(self._ghosts.irange(low, end, inclusive), count))
            keys = sorted({*keys, *ghosts})[:count]  # a key may have vanished and come back
        return keys

    def passed(self, key: Any) -> None:
        self._cursor = key
        saved = self._saved
        if saved:
            for looked in self._looked:
                if looked > key:
                    break
                saved.pop(looked, None)
            self._ghosts.pass_to(key)

    def close(self) -> None:
        if self._table is not None:
            self._table._waste.add(self._ghosts)
            self._looked, self._ghosts = [], _Ghosts()
        super().close()

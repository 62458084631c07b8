"""Tables that are a log: their keys are consecutive ints, new rows come at the end, old ones go at
the front.

Both are frequent (each put of the keyspace adds a row to its history and, in the end, removes one),
so both are written out: an addition without looking for the row, a cut in one piece. Whatever else
may be done to a table is left to `Table`, at its price.

How a run is walked while commands go on. Between the first and the last row of the freeze every
number had a row, so the walk goes by numbers and no order has to be kept of what has vanished. What
is cut off goes aside as it was cut, a list at a time; rows that are changed one by one are saved
one by one. So a log that is written, and cut, all the time costs hardly more during a walk:

    what a row was at the freeze  =  saved by itself, or else in a piece that was cut, or else live

A number is saved only while no piece has it, and goes into one piece only. So what is saved is
older than what is in a piece, and that older than what is live. After a cut that is undone the rows
are live again, and the piece stays, for whatever is done to them next; a value in it that was
undone itself has an older one saved.

Why an addition saves nothing: a number behind the freeze's last one is younger, and one before it
had a row that was saved when it went.
"""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar, Final, TypeVar

from .rows import Rows, RunRows
from .tables import ABSENT, FrozenTable, Table

__all__ = ["FrozenRun", "RunTable"]

V = TypeVar("V")


class _First:
    """In the undo log, in place of a key: so many rows were taken from the front of a run."""


_FIRST: Final = _First()


class RunTable(Table[int, V]):
    """A table whose keys are consecutive ints. See the module's text."""

    __slots__ = ()

    _empty: ClassVar[type[Rows]] = RunRows
    _rows: RunRows
    _frozen: tuple[FrozenRun, ...]

    def put(self, key: int, value: V) -> None:
        rows = self._rows
        values = rows._values
        if key - rows._base != len(values) or len(values) == rows._head:
            super().put(key, value)
            return
        self._record((self, key, ABSENT))
        values.append(value)

    def delete_first(self, count: int) -> None:
        rows = self._rows
        if self.captured or count >= len(rows):
            super().delete_first(count)
        elif count > 0:
            first, taken = rows.first, rows.take_first(count)
            self._record((self, _FIRST, taken))
            for frozen in self._frozen:
                frozen._save_first(first, taken)

    def _new_walk(self) -> FrozenRun:
        return FrozenRun(self)

    def _revert(self, key: Any, old: Any) -> None:
        if key is _FIRST:
            self._rows.put_first(old)
        else:
            super()._revert(key, old)


class _Cut:
    """What was cut off the front of a run during a walk: lists of rows, in order."""

    __slots__ = ("_pieces", "_size", "end")

    def __init__(self, first: int) -> None:
        self._pieces: deque[tuple[int, list[Any]]] = deque()
        self._size = 0
        # Rows before it are here, were saved one by one, or are not needed.
        self.end = first

    def __len__(self) -> int:
        return self._size

    def add(self, first: int, values: list[Any]) -> None:
        self._pieces.append((first, values))
        self._size += len(values)
        self.end = first + len(values)

    def lay_over(self, rows: list[tuple[Any, Any]], low: int, stop: int) -> None:
        """Set those of `rows`, which have the keys from `low` to before `stop`, that are here."""
        for first, values in self._pieces:
            if first >= stop:
                break
            begin, end = max(first, low), min(first + len(values), stop)
            if begin < end:
                cut = values[begin - first : end - first]
                rows[begin - low : end - low] = zip(range(begin, end), cut, strict=True)

    def pass_to(self, key: int) -> None:
        """Let go of the pieces that end with `key` or before."""
        pieces = self._pieces
        while pieces and pieces[0][0] + len(pieces[0][1]) - 1 <= key:
            self._size -= len(pieces.popleft()[1])

    def drop_some(self, count: int) -> None:
        """Forget about so many rows, in whole pieces. For freeing only."""
        left = count
        while left > 0 and self._pieces:
            values = self._pieces.pop()[1]
            left -= len(values)
            self._size -= len(values)


class FrozenRun(FrozenTable):
    """The rows of a run at the moment of the freeze."""

    __slots__ = ("_cut", "_last", "_next")

    _rows: RunRows

    def __init__(self, table: RunTable[Any]) -> None:
        super().__init__(table)
        rows = table._rows
        self._next = rows.first
        self._last = rows.first + len(rows) - 1
        self._cut = _Cut(self._next)

    def _save(self, key: Any, old: Any, vanishes: bool) -> None:
        if self._next <= key <= self._last and key >= self._cut.end:
            self._saved.setdefault(key, old)

    def _save_first(self, first: int, taken: list[Any]) -> None:
        """The rows from `first` on were cut off. `taken` is nobody's to change."""
        begin, end = max(first, self._cut.end, self._next), min(first + len(taken), self._last + 1)
        if begin < end:
            whole = end - begin == len(taken)
            self._cut.add(begin, taken if whole else taken[begin - first : end - first])

    def next_rows(self, count: int) -> list[tuple[Any, Any]] | None:
        if self._table is None:
            return None
        low, stop = self._next, min(self._last + 1, self._next + count)
        if low >= stop:
            self.close()
            return None
        rows = self._rows.pick(range(low, stop), ABSENT)
        self._cut.lay_over(rows, low, stop)
        saved = self._saved
        if saved:
            rows = [(key, saved.get(key, value)) for key, value in rows]
        return rows

    def passed(self, key: Any) -> None:
        saved = self._saved
        if saved:
            for number in range(self._next, key + 1):
                saved.pop(number, None)
        self._next = key + 1
        self._cut.pass_to(key)

    def close(self) -> None:
        if self._table is not None:
            self._table._waste.add(self._cut)
            self._cut = _Cut(0)
        super().close()

"""What readers see while one command is applied in slices: the state before it.

A command takes effect wholly or not at all, for readers too. One that is applied in slices leaves
the loop in the middle, when its tables hold a part of it. `Hidden` then puts `Before` in place of
the rows that readers look at: the live rows, and what was there of those that were written. It is
made from the undo log, so the command itself pays nothing for it, and is lifted at once at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Any, Final

from raftkv.waste import Waste

from .rows import Rows
from .runs import RunTable
from .slicing import SLICE_ROWS
from .tables import ABSENT, Table, UndoLog, _Ghosts, undo_to

__all__ = ["Before", "Hidden"]

_NONE: Final = object()


class Before:
    """The rows of one table before a command; the methods are those that `TableView` uses."""

    def __init__(self, live: Rows) -> None:
        self._live = live
        # What was there of each row that was written, or ABSENT.
        self._saved: dict[Any, Any] = {}
        # Of these keys, in order: those that had a row then, and those that have one now.
        self._kept = _Ghosts()
        self._covered = _Ghosts()

    def note(self, key: Any, old: Any) -> None:
        """The row was written; `old` is what it was before that write."""
        if key not in self._saved:
            self._saved[key] = old
            if old is not ABSENT:
                self._kept.add(key)
            if key in self._live:
                self._covered.add(key)
        else:
            self.changed(key)

    def changed(self, key: Any) -> None:
        """A row was written once more, or the write was undone. Nothing if it was not noted."""
        if key not in self._saved:
            return
        covered = self._covered
        if key in self._live:
            if key not in covered:
                covered.add(key)
        else:
            covered.discard(key)

    def waste(self) -> tuple[Any, ...]:
        """What may be large."""
        return (self._saved, self._kept, self._covered)

    # As rows

    def get(self, key: Any, default: Any = None) -> Any:
        old = self._saved.get(key, _NONE)
        if old is _NONE:
            return self._live.get(key, default)
        return default if old is ABSENT else old

    def values_of(self, keys: Iterable[Any]) -> list[Any]:
        return [self[key] for key in keys]

    def __contains__(self, key: object) -> bool:
        old = self._saved.get(key, _NONE)
        return key in self._live if old is _NONE else old is not ABSENT

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, _NONE)
        if value is _NONE:
            raise KeyError(key)
        return value

    def __len__(self) -> int:
        return len(self._live) - len(self._covered) + len(self._kept)

    def __iter__(self) -> Iterator[Any]:
        return self.irange()

    def irange(
        self,
        low: Any = None,
        high: Any = None,
        inclusive: tuple[bool, bool] = (True, True),
        reverse: bool = False,
    ) -> Iterator[Any]:
        saved = self._saved
        live = self._live.irange(low, high, inclusive, reverse)
        kept = self._kept.irange(low, high, inclusive, reverse)
        return merge((key for key in live if key not in saved), kept, reverse=reverse)

    def bisect_left(self, key: Any) -> int:
        live: int = self._live.bisect_left(key)
        covered: int = self._covered.bisect_left(key)
        kept: int = self._kept.bisect_left(key)
        return live - covered + kept


class Hidden:
    """The writes of the command that is being applied, kept from readers until `lift`."""

    def __init__(self, undo: UndoLog, waste: Waste) -> None:
        self._undo = undo
        self._waste = waste
        self._seen = 0
        self._tables: dict[Table[Any, Any], Before] = {}

    def take_up(self) -> None:
        """Hide what was written since the last call. Raises TypeError for a run of numbers."""
        undo = self._undo
        for table, key, old in undo[self._seen :]:
            before = self._tables.get(table)
            if before is None:
                before = self._hide(table)
            before.note(key, old)
        self._seen = len(undo)

    def _hide(self, table: Table[Any, Any]) -> Before:
        if isinstance(table, RunTable):
            raise TypeError(f"table {table.name} is a run: write it in the last slice of a command")
        before = self._tables[table] = Before(table._rows)
        table.view._bind(before)  # type: ignore[arg-type]
        return before

    def undo_some(self) -> bool:
        """Undo a slice of the newest writes; True if there are more.

        At first all that was not taken up: readers get their turn after it.
        """
        undo = self._undo
        mark = max(0, min(len(undo) - SLICE_ROWS, self._seen))
        newest = undo[mark:]
        undo_to(undo, mark)
        for table, key, _ in newest:
            before = self._tables.get(table)
            if before is not None:
                before.changed(key)
        self._seen = min(self._seen, mark)
        return mark > 0

    def lift(self) -> None:
        """Readers see the tables as they are."""
        for table, before in self._tables.items():
            table.view._bind(table._rows)
            for container in before.waste():
                self._waste.add(container)
        self._tables.clear()

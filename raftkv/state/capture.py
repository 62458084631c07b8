"""Change capture: what the commands of an entry did to the rows, for those who want to know.

Built from the undo log of each accepted command, and only while somebody listens. Commands that
write to no table of which anybody wants to hear pay nothing: a captured table records its writes
by a way of its own, which leaves a mark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from .contract import Change
from .tables import ABSENT, Table, UndoLog

__all__ = ["Capture", "Listener"]

Listener = Callable[[int, Sequence[Change]], None]


class Capture:
    """The listeners of one machine, and the changes of the entry that is being applied."""

    def __init__(self, tables: Mapping[str, Collection[Table[Any, Any]]], undo: UndoLog) -> None:
        """`tables` by plugin; `undo` is the log that they share."""
        self._tables = tables
        self._undo = undo
        self._listeners: list[tuple[Listener, frozenset[str] | None]] = []
        #: Whether a captured table was written to since the last `collect`.
        self.touched = False
        #: Of the entry that is being applied.
        self.changes: list[Change] = []

    def subscribe(self, callback: Listener, plugins: Collection[str] | None) -> Callable[[], None]:
        """See `StateMachine.subscribe`."""
        entry = (callback, None if plugins is None else frozenset(plugins))
        self._listeners.append(entry)
        self._mark()

        def unsubscribe() -> None:
            if entry in self._listeners:
                self._listeners.remove(entry)
                self._mark()

        return unsubscribe

    def _mark(self) -> None:
        for name, tables in self._tables.items():
            captured = any(wanted is None or name in wanted for _, wanted in self._listeners)
            for table in tables:
                table.capture(self._record if captured else None)

    def _record(self, write: tuple[Table[Any, Any], Any, Any]) -> None:
        self.touched = True
        self._undo.append(write)

    def collect(self) -> None:
        """Take up what one accepted command has written: first old, last new value of each row."""
        self.touched = False
        first: dict[tuple[Table[Any, Any], Any], Any] = {}
        for table, key, old in self._undo:
            if table.captured:
                first.setdefault((table, key), old)
        for (table, key), old in first.items():
            new = table.get(key, ABSENT)
            if new is not old:
                self.changes.append(Change(table.plugin, table.name, key, old, new))

    def drop(self) -> None:
        """Forget what was taken up of an entry that is given up."""
        self.touched, self.changes = False, []

    def publish(self, index: int) -> None:
        """Give the listeners what was taken up since the last call: all, or a part, of an entry."""
        changes, self.changes = self.changes, []
        for callback, wanted in list(self._listeners):
            if wanted is None:
                callback(index, changes)
                continue
            chosen = [change for change in changes if change.plugin in wanted]
            if chosen:
                callback(index, chosen)

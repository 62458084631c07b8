"""Change capture: what the commands of an entry did to the rows, for those who want to know.

Built from the undo log of each accepted command, and only while somebody listens.
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

    def __init__(self, tables: Mapping[str, Collection[Table[Any, Any]]]) -> None:
        """`tables` by plugin."""
        self._tables = tables
        self._changes: list[Change] = []
        self._listeners: list[tuple[Listener, frozenset[str] | None]] = []
        #: Whether anybody listens.
        self.active = False

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
        self.active = bool(self._listeners)
        for name, tables in self._tables.items():
            captured = any(wanted is None or name in wanted for _, wanted in self._listeners)
            for table in tables:
                table.captured = captured

    def collect(self, undo: UndoLog) -> None:
        """Take up what one accepted command has written: first old, last new value of each row."""
        first: dict[tuple[Table[Any, Any], Any], Any] = {}
        for table, key, old in undo:
            if table.captured:
                first.setdefault((table, key), old)
        for (table, key), old in first.items():
            new = table.get(key, ABSENT)
            if new is not old:
                self._changes.append(Change(table.plugin, table.name, key, old, new))

    def publish(self, index: int) -> None:
        """Tell the listeners about the entry."""
        if not self._changes:
            return
        changes, self._changes = self._changes, []
        for callback, wanted in list(self._listeners):
            if wanted is None:
                callback(index, changes)
                continue
            chosen = [change for change in changes if change.plugin in wanted]
            if chosen:
                callback(index, chosen)

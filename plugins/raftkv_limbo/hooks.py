"""Callbacks on this node for every verdict: confirmed ones oldest first, undone ones newest first.

Each callback is called once per transaction, on every node, and sees a confirmed position that is
its own: whether the log confirmed one or a hundred at once is nothing that it could see. It is
called when this node applies the verdict, before anybody who waits for it here hears of it.

What is told comes from the rows that an entry changed (`Host.listen`), for the tables do not keep
what was settled. To have that noted costs some microseconds a transaction, so a node listens only
while a callback is registered. No callback hears of what a snapshot jumped over: `on_restored` says
that this has happened, and the rows have it all. A process that starts applies its log behind its
last snapshot anew, and tells of that again: who must not do a thing twice remembers the position.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from raftkv.plugin import Change, Host, View

from .commands import FRESH, Entry, Rollback, State, Write
from .metrics import Counters
from .validators import place_of
from .views import entry_of, rollback_of, state_of

__all__ = ["Confirmed", "Hooks", "Restored", "Undone"]

EventT = TypeVar("EventT")

# A callback that fails is said again after so long.
SAID_AGAIN_S: Final = 60.0


class Confirmed(msgspec.Struct, frozen=True):
    """A transaction is confirmed. `confirmed` is the confirmed position as the callback sees it."""

    position: int
    writes: tuple[Write, ...]
    term: int
    confirmed: int


class Undone(msgspec.Struct, frozen=True):
    """A transaction is rolled back: nothing of it was ever visible to confirmed reads."""

    position: int
    writes: tuple[Write, ...]
    reason: str
    by: str


class Restored(msgspec.Struct, frozen=True):
    """A snapshot took this node over verdicts that no callback heard of: up to these positions."""

    confirmed: int
    last: int


class Hooks:
    """The callbacks of one node."""

    def __init__(self, host: Host, counters: Counters) -> None:
        self._host = host
        self._counters = counters
        self._confirm: list[Callable[[Confirmed], None]] = []
        self._rollback: list[Callable[[Undone], None]] = []
        self._restored: list[Callable[[Restored], None]] = []
        self._said: dict[str, float] = {}
        self._started = False
        # Ends the listening; None: nobody listens.
        self._unlisten: Callable[[], None] | None = None
        #: Callbacks on a ROLLBACK are being called.
        self.is_in_rollback = False

    def on_confirm(self, callback: Callable[[Confirmed], None]) -> Callable[[], None]:
        return self._add(self._confirm, callback)

    def on_rollback(self, callback: Callable[[Undone], None]) -> Callable[[], None]:
        return self._add(self._rollback, callback)

    def on_restored(self, callback: Callable[[Restored], None]) -> Callable[[], None]:
        return self._add(self._restored, callback)

    def _add(
        self, callbacks: list[Callable[[EventT], None]], callback: Callable[[EventT], None]
    ) -> Callable[[], None]:
        if inspect.iscoroutinefunction(callback):
            raise TypeError("a callback is called, not awaited: make it plain, and spawn a task")
        callbacks.append(callback)
        self._listen_or_not()

        there = True

        def remove() -> None:
            nonlocal there
            if there:  # once: the same one may be there for others, too
                there = False
                callbacks.remove(callback)
                self._listen_or_not()

        return remove

    def start(self) -> None:
        """The node has recovered: of what is decided from now on callbacks are told."""
        self._started = True
        self._listen_or_not()

    def _listen_or_not(self) -> None:
        wanted = self._started and bool(self._confirm or self._rollback)
        if wanted and self._unlisten is None:
            self._unlisten = self._host.listen(self._applied)
        elif not wanted and self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    # --- what the log did ---

    def _applied(self, index: int, changes: Sequence[Change]) -> None:
        """The rows that one entry of the log has changed, command by command."""
        past = _Past(self._host.view(), changes)
        independent: list[int] = []
        runs: list[tuple[int, Rollback]] = []
        for change in changes:
            table, new = change.table, change.new
            if table == "entries":
                if isinstance(new, Entry) and new.independent:
                    independent.append(change.key)
            elif table == "rollbacks":
                if isinstance(new, Rollback):
                    runs.append((change.key, new))
            elif table == "meta" and isinstance(new, State):
                # Every command that decides something writes this row, last of all.
                old = change.old if isinstance(change.old, State) else FRESH
                self._tell_rollbacks(past, runs)
                self._tell_confirms(past, old, new, independent)
                runs, independent = [], []

    def restored(self) -> None:
        state = state_of(self._host.view())
        self._call(self._restored, Restored(state.confirmed, state.last))

    def _tell_confirms(self, past: _Past, old: State, new: State, independent: list[int]) -> None:
        if not self._confirm:
            return
        positions = independent
        if new.confirmed > old.confirmed:
            # What is forgotten was settled long before: of that nothing is confirmed now.
            first = max(old.confirmed, old.forgotten) + 1
            positions = sorted(independent + _ordered(past, first, new.confirmed))
        for position in positions:
            entry = past.entry(position)
            if entry is not None:
                event = Confirmed(position, entry.writes, entry.term, position)
                self._call(self._confirm, event)

    def _tell_rollbacks(self, past: _Past, runs: list[tuple[int, Rollback]]) -> None:
        if not runs or not self._rollback:
            return
        self.is_in_rollback = True
        try:
            for first, run in sorted(runs, key=lambda one: one[0], reverse=True):
                for position in range(run.last, first - 1, -1):
                    entry = past.entry(position)
                    if entry is not None:
                        event = Undone(position, entry.writes, run.reason, run.node)
                        self._call(self._rollback, event)
        finally:
            self.is_in_rollback = False

    def _call(self, callbacks: list[Callable[[Any], None]], event: object) -> None:
        for callback in list(callbacks):
            try:
                callback(event)
            except Exception as error:
                self._counters.add("hook_failures")
                where, now = place_of(error), self._host.runtime.monotonic()
                if now - self._said.get(where, -SAID_AGAIN_S) >= SAID_AGAIN_S:
                    self._said[where] = now
                    self._host.log.error("a callback of the limbo failed: %s", where)


class _Past:
    """Entries and rollbacks as they were during one entry of the log, deleted ones included.

    A command may trim what one before it, in the same entry of the log, has settled.
    """

    def __init__(self, view: View, changes: Sequence[Change]) -> None:
        self._view = view
        self._entries: dict[int, Entry] = {}
        self._runs: list[tuple[int, Rollback]] = []
        for change in changes:
            if change.table == "entries":
                entry = change.new if isinstance(change.new, Entry) else change.old
                if isinstance(entry, Entry):
                    self._entries[change.key] = entry
            elif change.table == "rollbacks" and isinstance(change.old, Rollback):
                self._runs.append((change.key, change.old))

    def entry(self, position: int) -> Entry | None:
        return self._entries.get(position) or entry_of(self._view, position)

    def rolled_back_to(self, position: int) -> int:
        """The end of the run that a position was rolled back in; 0: it was not."""
        run = rollback_of(self._view, position)
        if run is not None:
            return run.last
        return next((run.last for first, run in self._runs if first <= position <= run.last), 0)


def _ordered(past: _Past, first: int, last: int) -> list[int]:
    """Those between two positions that waited in order, and were not rolled back before."""
    found = []
    position = first
    while position <= last:
        undone = past.rolled_back_to(position)
        if undone:
            position = undone + 1
            continue
        entry = past.entry(position)
        if entry is not None and not entry.independent:
            found.append(position)
        position += 1
    return found

"""Processor time in the simulated world: long work is late work.

A callback runs in no virtual time, so a command that looks at 100,000 rows would cost a node
nothing. While entered, `Charges` adds the time that work takes to the process that does it
(`Process.charge`): by constants, never by a real clock, so that a run stays a function of its seed.
The node's own clock shows that time at once, so code that yields after some milliseconds does; and
once a little has come together, the loop holds the process back for that long (clock.py).

What is charged: each row that a scan of a table gives or a command deletes, each applied command,
each byte of a message that is encoded. What is left out: everything else, and the time of the
disk's thread, which has its own (worker.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from raftkv.raft import wire
from raftkv.replica import Replica
from raftkv.state.machine import Outcomes
from raftkv.state.tables import Table, TableView
from raftkv.testing.current import CURRENT
from raftkv.testing.marks import Marks
from raftkv.testing.patching import around
from raftkv.testing.process import PROCESS, Process

__all__ = ["BYTE_S", "COMMAND_S", "LONG_S", "ROW_S", "Charges"]

# Seconds, as CPython 3.11 needs them on a processor of 2020: a row of a compared range; a put with
# its share of the entry; a gigabyte per second for what msgspec encodes.
ROW_S: Final = 2.5e-6
COMMAND_S: Final = 10e-6
BYTE_S: Final = 1e-9
# One entry that costs this is worth a mark: a third of a heartbeat interval.
LONG_S: Final = 0.02


class Charges:
    """A context manager; see the module's text."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        # What an entry that is under way has cost so far.
        self._entry_s: WeakKeyDictionary[Replica, float] = WeakKeyDictionary()
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> Self:
        enter = self._patches.enter_context
        enter(around(TableView, "scan", self._wrap_scan))
        enter(around(TableView, "values", self._wrap_values))
        enter(around(Table, "delete", self._wrap_delete))
        enter(around(Replica, "_apply_slice", self._wrap_slice))
        enter(around(wire, "encode", self._wrap_encode))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._patches.close()

    def _wrap_scan(self, original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def scan(*arguments: Any, **named: Any) -> Iterator[Any]:
            process = _working()
            rows = original(*arguments, **named)
            if process is None:
                yield from rows
                return
            for row in rows:
                # `process.charge(ROW_S)` without the call: runs pass here millions of times.
                process.owed_s += ROW_S
                yield row

        return scan

    def _wrap_values(self, original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def values(*arguments: Any, **named: Any) -> list[Any]:
            found = original(*arguments, **named)
            process = _working()
            if process is not None:
                process.charge(ROW_S * len(found))
            return found

        return values

    def _wrap_delete(self, original: Callable[..., bool]) -> Callable[..., bool]:
        def delete(table: Table[Any, Any], key: Any) -> bool:
            process = _working()
            if process is not None:
                process.charge(ROW_S)
            return original(table, key)

        return delete

    def _wrap_slice(self, original: Callable[..., bool]) -> Callable[..., bool]:
        def apply_slice(replica: Replica, index: int, slices: Iterator[Outcomes]) -> bool:
            process = _working()
            if process is None:
                return original(replica, index, slices)
            owed_s, commands = process.owed_s, replica.commands_applied
            ended = original(replica, index, slices)
            process.charge(COMMAND_S * (replica.commands_applied - commands))
            entry_s = self._entry_s.pop(replica, 0.0) + process.owed_s - owed_s
            if entry_s >= LONG_S:
                self._marks.hit("entry that takes long")
            if not ended:
                self._marks.hit("entry applied in several turns")
                self._entry_s[replica] = entry_s
            return ended

        return apply_slice

    def _wrap_encode(self, original: Callable[..., bytes]) -> Callable[..., bytes]:
        def encode(message: Any) -> bytes:
            frame = original(message)
            process = _working()
            if process is not None:
                process.charge(BYTE_S * len(frame))
            return frame

        return encode


def _working() -> Process | None:
    """The process of the node whose code runs; None for the world's own checks and clients."""
    return None if CURRENT.get() is None else PROCESS.get()

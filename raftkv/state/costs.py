"""What commands cost, in rows: counted while one is applied, and estimated before.

A row is the unit: one that a command looks at or changes. Bytes count too, ROW_BYTES of them as
one row, which takes about as long. Every command costs one row and its own bytes; what it may
cost beyond that depends on the state, and only the plugin knows: it adds it by `Context.charge`
while it applies the command, and `Plugin.cost` foresees it for the commands in `Plugin.costly`.

The count is a function of the log and the state, equal on all nodes; it is no part of the state.
The estimate is one node's guess before the append. Nothing is decided by it but the order in which
a leader takes commands into entries.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ROW_BYTES", "Work", "of_size"]

#: So many bytes that are encoded, copied or compared count as one row.
ROW_BYTES: Final = 4096


def of_size(size: int) -> int:
    """What a command of `size` bytes costs in any case, in rows."""
    return 1 + size // ROW_BYTES


class Work:
    """The rows that the command being applied was charged with, beyond `of_size`.

    `entry_bytes`: of the entry that is being applied, all commands together. `slice_rows`: what
    all commands in this slice of it were charged with, and the rows that they have written
    (slicing.py).
    """

    __slots__ = ("entry_bytes", "rows", "slice_rows", "total")

    def __init__(self) -> None:
        self.entry_bytes = self.rows = self.slice_rows = self.total = 0

    def charge(self, rows: int) -> None:
        """Add `rows`; what is undone later stays counted, for it was done."""
        self.rows += rows
        self.slice_rows += rows
        self.total += rows

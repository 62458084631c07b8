"""How much work one slice of an entry is: a count, never a time.

A state machine that looked at a clock would not be pure, and a simulated run would not be a
function of its seed. So work is counted in rows looked at or written (costs.py), and an entry is
applied in slices of a bounded count. Where the slices end decides nothing: the state and the
outcomes are the same with any other bounds.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FEW_ROWS", "SLICE_COMMANDS", "SLICE_ROWS"]

#: Rows of one slice: comparing so many takes about 5 ms, deleting them about 6.
SLICE_ROWS: Final = 2_000
#: Commands of one slice: so many puts take about 2 ms.
SLICE_COMMANDS: Final = 256
#: Rows that one command may write without being counted: it is counted as a command anyway.
FEW_ROWS: Final = 8

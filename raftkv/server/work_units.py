"""What the work of the HTTP API counts in a turn of the loop (raftkv/kv/work_budget.py).

A unit is one row of a range, read or written: about two microseconds.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PAGE_UNITS", "REQUEST_UNITS", "units_of"]

#: One request of a stream, beside its bytes.
REQUEST_UNITS: Final = 10
#: One page of figures or status: with its request some two tenths of a millisecond. Hundreds of
#: clients that ask for one again and again would make each turn of the loop last that much longer.
PAGE_UNITS: Final = 100
_BYTES_PER_UNIT: Final = 1024


def units_of(size: int) -> int:
    """What it takes to receive or to send that many bytes and to copy them once or twice."""
    return size // _BYTES_PER_UNIT

"""Numbers as people read them: three significant digits, units, thousands apart.

Rounding is for the eye alone; the tables on disk and `summary.json` keep every digit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["bytes_size", "count", "listed", "milliseconds", "number", "percent", "rate", "times"]

NOTHING = "\N{EN DASH}"
"""Shown where there is no figure."""

SPACE = "\N{NO-BREAK SPACE}"


def number(value: float | None) -> str:
    """Three significant digits, whole from 100 on: 0.582, 12.3, 34,120."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(digits, 0), 6)}f}"


def count(value: int | None) -> str:
    """A whole number: 12,345."""
    return NOTHING if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """A rate per second: 1,234/s."""
    return NOTHING if value is None else f"{number(value)}/s"


def milliseconds(value: float | None) -> str:
    """A time: 0.58 ms, 1.20 s."""
    if value is None:
        return NOTHING
    if value >= 1000:
        return f"{number(value / 1000)}{SPACE}s"
    return f"{number(value)}{SPACE}ms"


def percent(share: float | None) -> str:
    """A share as percentage; never 0 % for something that is there."""
    if share is None:
        return NOTHING
    if share == 0:
        return f"0{SPACE}%"
    if share < 0.0001:
        return f"<{SPACE}0.01{SPACE}%"
    return f"{share * 100:.2g}{SPACE}%" if share < 0.01 else f"{share * 100:.1f}{SPACE}%"


def times(ratio: float | None) -> str:
    """A ratio: 1.39 times."""
    return NOTHING if ratio is None else f"{number(ratio)}{SPACE}times"


def bytes_size(value: float) -> str:
    """A size in memory: 23.4 GiB."""
    size, units = value, ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    shown = count(int(size)) if units[0] == "bytes" else number(size)
    return f"{shown}{SPACE}{units[0]}"


def listed(words: Sequence[str]) -> str:
    """An enumeration: a, b and c."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"

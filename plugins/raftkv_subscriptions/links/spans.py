"""Arithmetic of acknowledged ranges outside the tables: what is new, and what both have.

The arithmetic itself is that of `ranges.py`; here is what only links need. Everything takes and
gives normal forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from raftkv_subscriptions.ranges import normal, without
from raftkv_subscriptions.rows import Ranges

__all__ = ["above", "chunks", "joined", "minus"]

Span = tuple[str, int, int]

#: What is in the first and not in the second.
minus = without


def joined(one: Iterable[Span], other: Iterable[Span]) -> Ranges:
    """What is in either. The arguments need not be in order."""
    return normal((*one, *other))


def above(ranges: Ranges, marks: Mapping[str, int]) -> Ranges:
    """Without what is at or below the mark of its origin."""
    found: list[Span] = []
    for origin, first, last in ranges:
        first = max(first, marks.get(origin, 0) + 1)
        if first <= last:
            found.append((origin, first, last))
    return tuple(found)


def chunks(ranges: Ranges, size: int) -> Iterator[Ranges]:
    """In pieces of at most `size`; one empty piece of nothing."""
    if not ranges:
        yield ()
    for start in range(0, len(ranges), size):
        yield ranges[start : start + size]

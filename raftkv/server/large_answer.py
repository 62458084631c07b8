"""A large JSON answer: a list that is written a slice in each turn of the loop.

It is held once: it is written into one buffer, which becomes the answer without a copy. What is
written counts as under way (outgoing.py) from the first slice on.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from raftkv.errors import TooLarge
from raftkv.kv.work_budget import WORK_MAX, WorkBudget

from .outgoing import Outgoing

__all__ = ["ANSWER_BYTES_MAX", "SLICE_BYTES", "SLICE_ITEMS", "Given", "LargeAnswer"]

T = TypeVar("T")

# One answer is held in memory as a whole, and so it is at most clients. A million small keys fit.
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
# Written in one turn of the loop: about two milliseconds, a thirtieth of a heartbeat's period.
SLICE_ITEMS: Final = 1000
# Of what the items hold, about two milliseconds as well.
SLICE_BYTES: Final = 1024 * 1024


class Given:
    """The answer of a write, which counts as under way while it is written, and always is given."""

    def __init__(self, outgoing: Outgoing, budget: WorkBudget) -> None:
        self._outgoing = outgoing
        self.budget = budget
        self._bytes = 0
        self._rows = 0

    def __enter__(self) -> Given:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bytes:
            self._outgoing.moved(-self._bytes)

    async def room(self, rows: int) -> None:
        """Return in a turn of the loop that has room to write `rows` more, a slice at most."""
        if not rows:
            return
        self._rows += rows
        if self._rows > SLICE_ITEMS:
            self._rows = rows
            await self.budget.rows(rows)
        self.budget.spend(rows)

    def count(self, size: int) -> None:
        self._bytes += size
        self._outgoing.moved(size)


class LargeAnswer(Generic[T]):
    """One of them. `with` counts it for as long as it is written.

    `head` stands before the list. `write` makes the JSON of an item, `size_of` tells what bytes the
    item holds; it may be longer in JSON. `held` bytes of it count as under way already.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        budget: WorkBudget,
        head: bytes,
        write: Callable[[T], bytes],
        size_of: Callable[[T], int],
        held: int = 0,
    ) -> None:
        self._outgoing = outgoing
        self._budget = budget
        self._write = write
        self._size_of = size_of
        self._held = held
        self._written = io.BytesIO()
        self._written.write(head)
        self._bytes = 0

    def __enter__(self) -> LargeAnswer[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self._outgoing.moved(-self._bytes)

    async def add(self, items: Sequence[T], given: Given | None = None) -> None:
        """Write them, a slice in each turn of the loop. Raises TooLarge before it is too much.

        Raises Busy if there is no room beside the answers of others. `given` counts them instead.
        """
        begin = size = 0
        for end, item in enumerate(items, 1):
            size += self._size_of(item)
            if size < SLICE_BYTES and end - begin < SLICE_ITEMS and end < len(items):
                continue
            units = _units(end - begin, size)
            await self._budget.room(units)
            self._budget.spend(units)
            if self._bytes + size > ANSWER_BYTES_MAX:
                raise _too_large()
            self._require_room(size)
            if self._bytes:
                self._written.write(b",")
            written = self._written.write(
                b",".join([self._write(each) for each in items[begin:end]])
            )
            self._bytes += written
            self._outgoing.moved(written)
            if given is not None:
                given.count(written)
            if self._bytes > ANSWER_BYTES_MAX:
                raise _too_large()
            begin, size = end, 0

    def _require_room(self, size: int) -> None:
        # What it holds itself does not hinder it: it alone always fits.
        if self._outgoing.bytes > self._bytes + self._held:
            self._outgoing.require_room(size)

    def end(self, tail: bytes) -> bytes:
        """The whole answer. `tail` stands behind the items."""
        self._written.write(tail)
        return self._written.getvalue()


def _units(items: int, size: int) -> int:
    """Of a whole slice all that there is in a turn."""
    share = max(items / SLICE_ITEMS, size / SLICE_BYTES)
    return min(WORK_MAX, math.ceil(share * WORK_MAX))


def _too_large() -> TooLarge:
    return TooLarge(f"the answer exceeds {ANSWER_BYTES_MAX} bytes: use limit and pages")

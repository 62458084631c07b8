"""Transactions over any keys, without asyncio.

The function runs in the thread that calls `atomically`, and only its reads and the commit on the
loop: it may block, and uses `tx` like a dictionary.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from raftkv.blocking.portal import Portal
from raftkv.kv import Compacted
from raftkv.recipes import Committed
from raftkv.recipes import Transaction as AsyncTransaction
from raftkv.validation import require_timeout

from .bridge import Store, wait

__all__ = ["Transaction", "atomically"]

T = TypeVar("T")


class Transaction:
    """What the function of `atomically` works with."""

    def __init__(
        self, portal: Portal, made: AsyncTransaction, left_s: Callable[[], float | None]
    ) -> None:
        self._portal = portal
        self._made = made
        self._left_s = left_s

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None if there is none."""
        return wait(self._portal, lambda: self._made.get(key), self._left_s())

    def prefix(self, prefix: bytes) -> dict[bytes, bytes]:
        """All keys that start with `prefix`, with their values, in key order."""
        return wait(self._portal, lambda: self._made.prefix(prefix), self._left_s())

    def put(self, key: bytes, value: bytes, *, lease: int = 0) -> None:
        """Set a key at the commit."""
        self._made.put(key, value, lease=lease)

    def delete(self, key: bytes) -> None:
        """Delete a key at the commit."""
        self._made.delete(key)


def atomically(
    store: Store, function: Callable[[Transaction], T], *, timeout_s: float | None = None
) -> Committed[T]:
    """Run `function` until what it read is still so when what it wrote is written.

    Raises what the function raises, without writing anything. Raises `LimitExceeded` or `TooLarge`
    if it reads or writes more keys than a transaction may have (`txn_ops_max`), and OutcomeUnknown
    if it cannot be known whether it was committed. `timeout_s` is for all attempts together; after
    TimeoutError it may have been committed.
    """
    require_timeout(timeout_s)
    portal, behind = store._behind()
    until = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s() -> float | None:
        if until is None:
            return None
        rest_s = until - time.monotonic()
        if rest_s <= 0:
            raise TimeoutError
        return rest_s

    while True:
        made = AsyncTransaction(behind)
        try:
            value = function(Transaction(portal, made, left_s))
            revision = wait(portal, made.commit, left_s())
        except Compacted:
            continue  # it took so long that its revision was forgotten
        if revision is not None:
            return Committed(value, revision)

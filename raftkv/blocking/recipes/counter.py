"""A counter without asyncio."""

from __future__ import annotations

from raftkv.recipes import Count
from raftkv.recipes import Counter as AsyncCounter

from .bridge import Store, wait

__all__ = ["Counter"]


class Counter:
    """A whole number of any size that many may change, 0 until it is first changed."""

    def __init__(self, store: Store, name: bytes) -> None:
        self._portal, behind = store._behind()
        self._made = AsyncCounter(behind, name)

    def get(self, timeout_s: float | None = None) -> Count:
        """The value now; `token` is 0 if it was never changed."""
        return wait(self._portal, self._made.get, timeout_s)

    def add(self, amount: int = 1, timeout_s: float | None = None) -> Count:
        """Add to it; the new value. Nobody else gets the same value and token.

        Raises OutcomeUnknown if it cannot be known whether it was added: do not just repeat it.
        The same is true after TimeoutError.
        """
        return wait(self._portal, lambda: self._made.add(amount), timeout_s)

"""Freeing large containers a few items at a time.

When the last reference to a container of 10^6 rows goes, Python frees all of it at once: some
tenths of a second in which the event loop does nothing else. So whoever lets go of something that
may be large (the tables that a snapshot has replaced, the entries that the log has compacted, what
a snapshot's walk had saved) puts it here instead, and it is freed in steps.

Rules of this file: nobody reads a container any more that was put here; nothing here has an effect
that anybody could observe, except on the memory and on the time it takes.

Freeing is paced rather than fast: the sweeper leaves the loop several times as long as it uses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

__all__ = ["Sweeper", "Waste"]

# What is smaller is freed at once: that takes less than a tenth of a millisecond.
KEPT_ITEMS_MIN: Final = 512
# Freed in one step: about a millisecond.
ITEMS_PER_SWEEP: Final = 2_000
# Between two steps, so that freeing 10^6 rows takes some seconds and a fifth of the loop's time.
SWEEP_PAUSE_S: Final = 0.004


class Waste:
    """Containers that nobody uses any more.

    `wake` is called when there is something to sweep, and nothing was before. Without anybody who
    sweeps, they stay: a state machine of its own, without a node, should call `sweep` now and then.
    """

    def __init__(self) -> None:
        self._containers: deque[Any] = deque()
        self.wake: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._containers)

    def add(self, container: Any) -> None:
        """Take a list, a dict, or anything with `drop_some(count)` and a length.

        The caller must let go of it. A small one is not kept at all.
        """
        if len(container) > KEPT_ITEMS_MIN:
            self._containers.append(container)
            if len(self._containers) == 1:
                self.wake()

    def sweep(self, items_max: int = ITEMS_PER_SWEEP) -> bool:
        """Free at most so many items; whether there is more to free."""
        if self._containers:
            container = self._containers[0]
            _drop_some(container, items_max)
            if not container:
                self._containers.popleft()
        return bool(self._containers)


def _drop_some(container: Any, count: int) -> None:
    if isinstance(container, list):
        del container[-count:]
    elif type(container) is dict:
        pop = container.popitem
        for _ in range(min(count, len(container))):
            pop()
    else:
        container.drop_some(count)


class _CallLater(Protocol):
    """The part of a runtime that a sweeper needs."""

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> object: ...


class Sweeper:
    """Sweeps on a node's event loop, while there is something to sweep."""

    def __init__(self, runtime: _CallLater, waste: Waste) -> None:
        self._runtime = runtime
        self._waste = waste
        self._stopped = False
        waste.wake = self._later
        if len(waste):
            self._later()

    def _later(self) -> None:
        if not self._stopped:
            self._runtime.call_later(SWEEP_PAUSE_S, self._sweep)

    def _sweep(self) -> None:
        if self._waste.sweep():
            self._later()

    def stop(self) -> None:
        """The node stops: what is left goes with it."""
        self._stopped = True

"""An injected bug of the deadlines of waiting calls; see planted.py and deadline_check.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from raftkv.deadlines import Deadlines
from raftkv.testing.patching import around
from raftkv.testing.planting import BUGS, Bug

__all__: list[str] = []


@contextlib.contextmanager
def _looks_at_all() -> Iterator[None]:
    """As in raftkv 0.1.0 with deadlines below a second."""

    def wrap_add_all(add_all: Callable[..., None]) -> Callable[..., None]:
        def broken(deadlines: Any, times: list[float], items: list[Any]) -> None:
            add_all(deadlines, times, items)
            now = deadlines._runtime.monotonic()
            for at in times:
                deadlines._runtime.call_later(max(0.0, at - now), deadlines._pass)

        return broken

    def wrap_pass(passed: Callable[..., None]) -> Callable[..., None]:
        def broken(deadlines: Any) -> None:
            for item in [*deadlines._queue, *(item for _, _, item in deadlines._heap)]:
                deadlines._is_over(item)
            if deadlines._alarm is not None:
                deadlines._alarm.cancel()
            passed(deadlines)

        return broken

    with around(Deadlines, "_pass", wrap_pass), around(Deadlines, "add_all", wrap_add_all):
        yield


BUGS["deadline-looks-at-all"] = Bug(
    "each call sets a timer of its own, which looks at all calls that wait",
    _looks_at_all,
    seeds_max=50,
)

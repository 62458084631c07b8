"""Injected bugs of the numbers of a session; see planted.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import raftkv.outbox
from raftkv.testing.planting import wrapping

__all__: list[str] = []


@wrapping(
    "window-forgotten",
    "a node gives out numbers however far the lowest unanswered one is behind",
    raftkv.outbox.Outbox,
    "__init__",
    seeds_max=50,
)
def _window_forgotten(init: Callable[..., None]) -> Callable[..., None]:
    def broken(queue: Any, *arguments: Any) -> None:
        init(queue, *arguments, window=10**9)

    return broken

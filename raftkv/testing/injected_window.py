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
    def broken(queue: raftkv.outbox.Outbox, *arguments: Any) -> None:
        init(queue, *arguments, window=10**9)

    return broken


@wrapping(
    "given-up-fill-queue",
    "commands that were given up take the place of others for as long as they may be asked for",
    raftkv.outbox.Outbox,
    "_relieve",
    seeds_max=100,
)
def _given_up_fill_queue(relieve: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda queue: None


@wrapping(
    "renumbered-unasked",
    "a node sends what later commands have overtaken under a new number, without asking the log",
    raftkv.outbox.Outbox,
    "_resolve",
    harsh=True,
    seeds_max=50,
)
def _renumbered_unasked(resolve: Callable[..., bool]) -> Callable[..., bool]:
    def broken(queue: raftkv.outbox.Outbox, waiter: Any) -> bool:
        if waiter.future.done():
            return resolve(queue, waiter)
        queue._renumber(waiter)
        return True

    return broken

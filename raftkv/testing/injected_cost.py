"""Injected bugs of what a transaction may look at; see planted.py."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

from raftkv.kv import transactions
from raftkv.kv.budget import Budget
from raftkv.kv.changing import Changing
from raftkv.testing.current import running_host
from raftkv.testing.planting import wrapping

__all__: list[str] = []


@wrapping(
    "limit-from-configuration",
    "what a transaction may look at is limited by the configuration of each node",
    Budget,
    "__init__",
    seeds_max=50,
)
def _limit_from_configuration(init: Callable[..., None]) -> Callable[..., None]:
    def broken(budget: Budget, rows_max: int, charge: Any) -> None:
        init(budget, rows_max - zlib.crc32(running_host().encode()) % 3, charge)

    return broken


@wrapping(
    "ranges-not-counted",
    "only the comparisons of a transaction are limited",
    transactions,
    "reserve",
    seeds_max=50,
)
def _ranges_not_counted(_: Callable[..., int]) -> Callable[..., int]:
    def broken(operations: Iterable[Any], ctx: Any, budget: Budget) -> int:
        return 0

    return broken


@wrapping(
    "deletions-counted",
    "what a transaction deletes counts against the limit",
    Changing,
    "_change",
    seeds_max=50,
)
def _deletions_counted(_: Callable[..., None]) -> Callable[..., None]:
    def broken(change: Changing, rows: int) -> None:
        change.budget.rows(rows)

    return broken

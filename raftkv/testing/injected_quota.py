"""Injected bugs of the quotas; see planted.py."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from raftkv.state.machine import StateMachine
from raftkv.state.quota import CountedTable, Gate, Usage
from raftkv.testing.current import running_host
from raftkv.testing.planting import wrapping

__all__: list[str] = []


@wrapping(
    "quota-from-configuration",
    "the quota is a limit of each node's own configuration",
    Usage,
    "exceeds",
    seeds_max=50,
)
def _quota_from_configuration(exceeds: Callable[..., bool]) -> Callable[..., bool]:
    def broken(usage: Usage, quota_bytes: int) -> bool:
        return exceeds(usage, quota_bytes + 1000 * (zlib.crc32(running_host().encode()) % 3))

    return broken


@wrapping(
    "count-not-restored",
    "what a snapshot holds is not counted",
    StateMachine,
    "adopt",
    seeds_max=50,
)
def _count_not_restored(adopt: Callable[..., None]) -> Callable[..., None]:
    def broken(machine: StateMachine, image: Any, index: int) -> None:
        adopt(machine, image, index)
        for table in machine._tables:
            if isinstance(table, CountedTable):
                table.bytes = 0

    return broken


@wrapping(
    "nospace-by-itself",
    "a write beyond the quota is refused, and the next one that fits is taken",
    Gate,
    "_require_disarmed",
    seeds_max=50,
)
def _nospace_by_itself(_: Callable[..., None]) -> Callable[..., None]:
    def broken(gate: Gate) -> None:
        return

    return broken


@wrapping(
    "deletions-judged",
    "beyond the quota deletions are refused, too",
    Gate,
    "_is_judged",
    seeds_max=50,
)
def _deletions_judged(_: Callable[..., bool]) -> Callable[..., bool]:
    def broken(gate: Gate, command: Any) -> bool:
        return True

    return broken

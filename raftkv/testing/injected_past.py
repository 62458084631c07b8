"""Injected bugs of reads of the past; the registry is `planting.BUGS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftkv.kv.past_reads import PastRead, Pasts
from raftkv.testing.planting import wrapping

_NEVER = 2**63


@wrapping(
    "past-read-checked-once",
    "a read of the past that has waited does not look whether its revision is still kept",
    PastRead,
    "require",
    seeds_max=100,
)
def _checked_once(require: Callable[..., None]) -> Callable[..., None]:
    return lambda read, view: None


@wrapping(
    "past-read-goes-back-too-far",
    "a read of the past goes on with what has looked at changes after the read came",
    Pasts,
    "_found",
    seeds_max=100,
)
def _too_far(found: Callable[..., Any]) -> Callable[..., Any]:
    return lambda pasts, operation, newest: found(pasts, operation, _NEVER)

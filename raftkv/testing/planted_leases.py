"""Planted bugs of leases: what ends too early, or never; see planted.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from raftkv.kv.dues import Dues
from raftkv.kv.lessor import Lessor, Office
from raftkv.testing.planting import wrapping

__all__: list[str] = []


@wrapping(
    "lease-forgets-keep-alive",
    "a keep-alive is answered and not counted",
    Dues,
    "extend",
    seeds_max=10,
)
def _forgets_keep_alive(extend: Callable[..., None]) -> Callable[..., None]:
    def broken(dues: Dues, lease: int, identity: Any, due_ms: int) -> None:
        if dues.due_ms(lease, identity) is None:
            extend(dues, lease, identity, due_ms)

    return broken


@wrapping(
    "lease-old-lessor-answers",
    "a lessor answers keep-alives without asking whether another one has followed",
    Lessor,
    "_confirm",
    seeds_max=10,
)
def _old_lessor_answers(
    confirm: Callable[..., Awaitable[bool]],
) -> Callable[..., Awaitable[bool]]:
    async def broken(lessor: Lessor, office: Office | None) -> bool:
        return office is not None and office is lessor._office

    return broken


@wrapping(
    "lease-lives-for-ever",
    "leases that are due are never expired",
    Office,
    "_next_batch",
    seeds_max=3,
)
def _lives_for_ever(next_batch: Callable[..., Any]) -> Callable[..., Any]:
    def broken(office: Office) -> tuple[int, ...]:
        return ()

    return broken

"""Injected bugs of certificates for replicants and of processes that are not told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftkv import permissions
from raftkv.testing.planting import wrapping
from raftkv.twins import Twins

__all__: list[str] = []


@wrapping(
    "member-calls-for-replicants",
    "a certificate for replicants only does for every call",
    permissions,
    "may_call",
    seeds_max=200,
)
def _member_calls(may_call: Callable[..., bool]) -> Callable[..., bool]:
    def broken(method: str, kind: Any, *, core: bool) -> bool:
        return permissions.is_known_call(method)

    return broken


@wrapping(
    "processes-not-told-apart",
    "a second process takes part under a raft id while the first one answers",
    Twins,
    "judge",
    seeds_max=200,
)
def _not_told_apart(judge: Callable[..., Any]) -> Callable[..., Any]:
    def broken(twins: Twins, hello: Any) -> None:
        return None

    return broken

"""Injected bugs of distrusted voters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftkv.raft.leading import Leading
from raftkv.testing.planting import wrapping


@wrapping(
    "distrust-overtaken-refusal",
    "a refusal that an acknowledgement has overtaken counts as a loss",
    Leading,
    "_contradicts",
    harsh=True,
    members=True,
    seeds_max=200,
)
def _overtaken(contradicts: Callable[..., bool]) -> Callable[..., bool]:
    def broken(leading: Leading, peer: str, message: Any) -> bool:
        return True

    return broken

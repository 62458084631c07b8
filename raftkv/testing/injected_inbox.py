"""Injected bugs of what waits for the disk; see planted.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftkv.raft import inbox, wire
from raftkv.testing.planting import wrapping

__all__: list[str] = []


@wrapping(
    "heartbeats-pile-up",
    "every heartbeat waits for the disk, however many came before it",
    inbox,
    "_slot",
    seeds_max=20,
)
def _heartbeats_pile_up(slot: Callable[..., Any]) -> Callable[..., Any]:
    def broken(peer: str, message: wire.Consensus) -> Any:
        return None if isinstance(message, wire.Append) else slot(peer, message)

    return broken

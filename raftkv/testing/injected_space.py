"""Injected bugs of snapshots: no room for one on the disk, views that stay open; see planted.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from raftkv.raft import snapshotting
from raftkv.raft.snapshotting import Snapshotting
from raftkv.state.snapshot import Frozen
from raftkv.testing.planting import wrapping

__all__: list[str] = []


@wrapping(
    "full-disk-stops-node",
    "a snapshot that finds no room on the disk stops the node",
    snapshotting,
    "is_no_room",
    seeds_max=50,
)
def _full_disk_stops(_: Callable[..., bool]) -> Callable[..., bool]:
    def broken(error: BaseException) -> bool:
        return False

    return broken


@wrapping(
    "snapshot-given-up",
    "a snapshot that found no room is not tried again when there is room",
    Snapshotting,
    "no_room",
    seeds_max=50,
)
def _snapshot_given_up(no_room: Callable[..., None]) -> Callable[..., None]:
    def broken(part: Snapshotting, error: Any) -> None:
        no_room(part, error)
        part._not_before = math.inf

    return broken


@wrapping(
    "frozen-view-kept",
    "the view of a state that a snapshot has read is never let go",
    Frozen,
    "close",
    seeds_max=20,
)
def _frozen_view_kept(_: Callable[..., None]) -> Callable[..., None]:
    def broken(frozen: Frozen) -> None:
        """Each table and the sessions keep it, so every write keeps what it overwrites."""

    return broken

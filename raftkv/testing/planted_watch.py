"""Planted bugs of watches: what is skipped, cut or kept quiet; see planted.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftkv.kv.watch import Watch, WatchBatch
from raftkv.kv.watch_hub import WatchHub
from raftkv.testing.planting import wrapping

__all__: list[str] = []


@wrapping(
    "watch-skips-snapshot",
    "watches go on behind a snapshot without what it jumped over",
    WatchHub,
    "restored",
    seeds_max=50,
)
def _skips_snapshot(restored: Callable[..., None]) -> Callable[..., None]:
    def broken(hub: WatchHub) -> None:
        applied = hub._applied()
        if applied >= hub._told:
            hub._live.jump(applied)
        restored(hub)

    return broken


@wrapping(
    "watch-cuts-transaction",
    "a batch may end in the middle of a transaction",
    Watch,
    "_take_several",
    seeds_max=10,
)
def _cuts_transaction(take_several: Callable[..., WatchBatch]) -> Callable[..., WatchBatch]:
    def broken(watch: Watch, queue: list[Any]) -> WatchBatch:
        batch = take_several(watch, queue)
        *events, last = batch.events
        if not events or events[-1].kv.mod_revision != batch.revision:
            return batch
        watch._queue = [(batch.revision, (last,), 0), *(watch._queue or ())]
        return WatchBatch(batch.revision, tuple(events))

    return broken


@wrapping(
    "watch-hides-compaction",
    "a watch that needs compacted revisions goes on behind them without a word",
    WatchHub,
    "_lose",
    seeds_max=50,
)
def _hides_compaction(lose: Callable[..., None]) -> Callable[..., None]:
    def broken(hub: WatchHub, walk: Any, watches: Any) -> None:
        lose(hub, walk, {})

    return broken

"""Bursts of load: clients are many times as fast for moments of a storm, and faults strike then.

A node is at its limits while it has more to do than it can: entries are long, the log is written
without a pause, snapshots are due. A storm at such a rate from its beginning to its end costs two
processor seconds for a simulated one. What a fault meets, it meets within a second or two; so the
load is high for two seconds of thirty, which the seed chooses, and between them it is ordinary.
Each burst brings some faults of its own, so that they overlap in it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from raftkv.testing.nemesis import Nemesis
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["BURSTS_S", "LONG_BURST_S", "Bursts", "drawn_bursts"]

# How long all bursts of a storm last together; in some runs it is a single one that lasts longer.
# A storm that is shorter than twice that is a burst for half of its time.
BURSTS_S: Final = 2.0
LONG_BURST_S: Final = 3.0
LONG_SHARE: Final = 0.2
COUNTS: Final = (2, 3)
# Faults that a burst brings besides those of the storm, and how often one is drawn for each: a
# fault that needs a node is none while no more nodes may be away.
FAULTS: Final = (2, 3)
TRIES: Final = 5


def drawn_bursts(rng: random.Random, seconds: float) -> list[tuple[float, float]]:
    """When bursts begin and end in a storm of so many seconds; ascending, apart from each other."""
    if rng.random() < LONG_SHARE:
        count, total_s = 1, LONG_BURST_S
    else:
        count, total_s = rng.choice(COUNTS), BURSTS_S
    each_s = min(total_s, seconds / 2) / count
    left_s = seconds - count * each_s
    offsets = sorted(rng.uniform(0, left_s) for _ in range(count))
    return [
        (offset + number * each_s, offset + (number + 1) * each_s)
        for number, offset in enumerate(offsets)
    ]


class Bursts:
    """The clients of `cluster` are `times` as fast while a burst lasts."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random, times: float) -> None:
        self._cluster = cluster
        self._rng = rng
        self._times = times

    async def storm(self, seconds: float, nemesis: Nemesis) -> None:
        """The bursts of a storm that takes so long; its faults are those of `nemesis`."""
        cluster = self._cluster
        begun = cluster.world.loop.now
        for begin_s, end_s in drawn_bursts(self._rng, seconds):
            await asyncio.sleep(begun + begin_s - cluster.world.loop.now)
            before = sum(nemesis.counts.values())
            cluster.load.speed = self._times
            await self._faults(nemesis, begun + end_s)
            cluster.load.speed = 1.0
            happened = sum(nemesis.counts.values()) - before
            cluster.marks.hit("fault within a burst", happened)
            cluster.marks.hit("several faults within a burst", int(happened > 1))

    def finish(self) -> None:
        """The storm is over."""
        self._cluster.load.speed = 1.0

    async def _faults(self, nemesis: Nemesis, end: float) -> None:
        """Some faults at drawn moments of the burst; returns at its end."""
        loop = self._cluster.world.loop
        count = self._rng.choice(FAULTS)
        moments: Sequence[float] = sorted(self._rng.uniform(loop.now, end) for _ in range(count))
        for moment in moments:
            await asyncio.sleep(moment - loop.now)
            for _ in range(TRIES):
                if nemesis.strike() is not None:
                    break
        await asyncio.sleep(max(0.0, end - loop.now))

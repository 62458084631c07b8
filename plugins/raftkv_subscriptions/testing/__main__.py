"""`python -m raftkv_subscriptions.testing`: storms of regions of many seeds, or one to be watched.

Each seed draws its own regions, links, faults, programs, operators and settings (`storm_plan.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from raftkv.testing.storms import Storm, command
from raftkv.testing.world import World

from .planted import BUGS, SEEDS_MAX
from .storm import SECONDS, run_storm
from .storm_marks import EXPECTED
from .storm_plan import draw

__all__ = ["STORM"]


class Show:
    """One run as it goes: what the world notes, a line each."""

    def __init__(self, world: World, show: Callable[[str], object]) -> None:
        self._world = world
        self._show = show

    def __enter__(self) -> Self:
        self._world.trace.echo = self._show
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._world.trace.echo = None


STORM = Storm(
    prog="tools/simulate-subscriptions",
    description="Let regions publish, consume and move consumers, each region a whole cluster in "
    "one simulated world with faults, one per seed, and check every promise of the replicated "
    "subscriptions.",
    operations="messages",
    run=run_storm,
    draw=draw,
    expected=EXPECTED,
    bugs=BUGS,
    seeds_max=SEEDS_MAX,
    seconds=SECONDS,
    show=Show,
)

if __name__ == "__main__":
    command(STORM)

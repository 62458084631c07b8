"""`python -m raftkv_limbo.testing`: storms of the limbo of many seeds, or one to be watched.

Each seed draws its own cluster, faults, quorum, writers, operators and settings (`storm_plan.py`).
"""

from __future__ import annotations

from raftkv.testing.storms import Storm, command

from .planted import BUGS, SEEDS_MAX
from .storm import run_storm
from .storm_plan import EXPECTED, draw

__all__ = ["STORM"]

STORM = Storm(
    prog="tools/simulate-limbo",
    description="Let writers write, owners change, validators veto and operators interfere in "
    "whole clusters in a simulated world with faults, one per seed, and check every promise of the "
    "limbo.",
    operations="transactions",
    run=run_storm,
    draw=draw,
    expected=EXPECTED,
    bugs=BUGS,
    seeds_max=SEEDS_MAX,
    seconds=5.0,
)

if __name__ == "__main__":
    command(STORM)

"""`python -m raftkv_lcr.testing`: connect storms of many seeds, or one to be watched.

Each seed draws its own cluster, faults, clients, settings and modes (`storm_plan.py`).
"""

from __future__ import annotations

from raftkv.testing.storms import Storm, command

from .planted import BUGS, SEEDS_MAX
from .storm import run_storm
from .storm_plan import EXPECTED, draw

__all__ = ["STORM"]

STORM = Storm(
    prog="tools/simulate-lcr",
    description="Let clients connect in storms to whole clusters in a simulated world with faults, "
    "one per seed, and check every promise of the Linear Channel Registry.",
    operations="connects",
    run=run_storm,
    draw=draw,
    expected=EXPECTED,
    bugs=BUGS,
    seeds_max=SEEDS_MAX,
)

if __name__ == "__main__":
    command(STORM)

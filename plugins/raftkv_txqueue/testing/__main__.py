"""`python -m raftkv_txqueue.testing`: storms of queues of many seeds, or one to be watched.

Each seed draws its own cluster, faults, programs, operators and settings (`storm_plan.py`).
"""

from __future__ import annotations

from raftkv.testing.storms import Storm, command

from .planted import BUGS, SEEDS_MAX
from .storm import SECONDS, run_storm
from .storm_plan import EXPECTED, draw

__all__ = ["STORM"]

STORM = Storm(
    prog="tools/simulate-txqueue",
    description="Let programs put, take and forward messages in local and distributed "
    "transactions, in whole clusters in a simulated world with faults, one per seed, and check "
    "every promise of the queues.",
    operations="publications and transactions",
    run=run_storm,
    draw=draw,
    expected=EXPECTED,
    bugs=BUGS,
    seeds_max=SEEDS_MAX,
    seconds=SECONDS,
)

if __name__ == "__main__":
    command(STORM)

"""How soon a thread of this process gets its turn beside a busy event loop.

A thread that waits for the interpreter asks the one that runs to stop after the switch interval,
5 ms by default. It asks only if the interpreter was not released in that time. An event loop
releases it for a moment in each iteration, without waiting; so beside a loop with much to do, whose
iterations last less than 5 ms, the thread neither asks nor is there fast enough at such a moment,
above all if other processes use the processors. The threads that write and fsync the log then
stood still for up to 0.7 s at a time, and with them everything that waits for the log.

`tune_threads` therefore sets an interval that is shorter than the pieces into which large work is
divided (raftkv/kv/work_budget.py). A thread that has asked is waited for.

As with the collector (collector.py), the interval belongs to the whole process: nothing is changed
by importing raftkv or by starting a `Node`. A program that embeds one decides itself, and calls
`raftkv.tune_threads()` before it starts the node. `raftkv serve` does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

__all__ = ["SWITCH_S", "tune_threads"]

#: A quarter of what a piece of large work on the event loop takes.
SWITCH_S: Final = 0.0005


def tune_threads() -> Callable[[], None]:
    """Let threads go on beside a busy event loop; see the module's text.

    Process-wide. A shorter interval than SWITCH_S is left. Returns a function that undoes it.
    """
    before = sys.getswitchinterval()
    if before <= SWITCH_S:
        return lambda: None
    sys.setswitchinterval(SWITCH_S)
    return lambda: sys.setswitchinterval(before)

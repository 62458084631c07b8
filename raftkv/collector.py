"""The garbage collector of a process that holds a large state.

Python's collector looks for circles of references. A full collection looks at every container there
is: at a million keys that is a pause of 60 ms, again and again, to find next to nothing, since the
state has no circles by construction (tables.py refuses values that could have one).

`tune_gc` therefore tells the collector to leave alone what has survived a full collection
(`gc.freeze`): each full collection looks only at what is new since the one before. What is frozen
is still freed the moment nobody refers to it any more, which is how nearly everything goes. What is
lost: a circle that was frozen alive and is dropped later is never found. In raftkv that can only be
the remains of a long-lived connection, some kilobytes.

Rules of this file: the collector belongs to the whole process, so nothing is changed by importing
raftkv or by starting a `Node`: a program that embeds one decides itself and calls
`raftkv.tune_gc()`, once, before it starts the node. `raftkv serve` does. Without it everything
works; with a large state there are longer pauses.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

__all__ = ["settle", "tune_gc"]

# Containers allocated more than freed until the youngest are looked at, and how many such rounds
# make one of the next generation. A full collection then comes after at most 15,000 new containers,
# which may hold 1,000 keys each: it takes some milliseconds.
THRESHOLDS: Final = (1_000, 5, 3)

_tuned = False


def tune_gc() -> Callable[[], None]:
    """Keep the garbage collector from stopping this process; see the module's text.

    Process-wide. Takes one full collection now. Returns a function that undoes it; a second call
    changes nothing and returns one that does nothing.
    """
    global _tuned
    if _tuned:
        return lambda: None
    _tuned = True
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(_after_collection)

    def undo() -> None:
        global _tuned
        _tuned = False
        gc.callbacks.remove(_after_collection)
        gc.set_threshold(*before)
        gc.unfreeze()

    return undo


def settle() -> None:
    """A part of a large state has been built: it need not be looked at. Nothing unless tuned."""
    if _tuned:
        gc.freeze()


def _after_collection(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()

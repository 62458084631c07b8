"""The C library's allocator in a process that holds large requests and answers for a moment.

glibc raises the size from which on it maps memory separately to that of the largest block that was
freed, up to 32 MiB. From then on bodies and answers of some megabytes lie in the common heap, which
is returned to the system only from its end: one small block behind them keeps all of it. A node
that once held 400 MiB for its clients stayed at three times that size. `tune_malloc` therefore
fixes that size, and bounds the number of heaps, of which each thread would get its own.

The parts in which bodies arrive are smaller. After a time of many the heap is free and, but for its
end, kept: `trim` returns it.

Rules of this file
1. The operator has the last word: with a MALLOC_ variable or a glibc.malloc tunable in the
   environment nothing is changed.
2. Only glibc is asked. Another C library, or another allocator, is left as it is.
3. As with the collector (collector.py), nothing happens by importing raftkv or by starting a
   `Node`: a program that embeds one decides itself, and calls `raftkv.tune_malloc()`, once, before
   it starts the node. `raftkv serve` does. Without it everything works; the process keeps more
   memory after a time of large requests and answers.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["ARENAS", "MMAP_BYTES", "TRIM_BYTES", "trim", "tune_malloc"]

log = logging.getLogger("raftkv.allocator")

#: Blocks of this size are mapped separately and unmapped when they are freed. It is above what is
#: read from a connection at once (250 KiB), which comes and goes all the time.
MMAP_BYTES: Final = 256 * 1024
#: A heap whose end is free by more than this is cut.
TRIM_BYTES: Final = 4 * 1024 * 1024
#: Heaps: one for the event loop, one for the threads that write and encode.
ARENAS: Final = 2

# Of malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_SETTINGS: Final = (
    (_M_MMAP_THRESHOLD, MMAP_BYTES),
    (_M_TRIM_THRESHOLD, TRIM_BYTES),
    (_M_ARENA_MAX, ARENAS),
)

_tuned = False


def tune_malloc() -> bool:
    """Have this process return the memory of large blocks to the system; see the module's text.

    Process-wide, and it cannot be taken back. True if it was done: False where the C library is not
    glibc, or where the environment has settings for its allocator.
    """
    given = _given(os.environ)
    if given is not None:
        log.info("the allocator is not changed: %s is set", given)
        return False
    mallopt = _mallopt()
    if mallopt is None:
        log.info("the allocator is not changed: the C library is not glibc")
        return False
    global _tuned
    done = [mallopt(what, value) == 1 for what, value in _SETTINGS]  # each is tried
    _tuned = all(done)
    return _tuned


def trim() -> None:
    """Return what is free in the heaps to the system. Nothing unless `tune_malloc` has succeeded.

    It takes some milliseconds for 100 MiB, in which the interpreter is free for other threads.
    """
    if _tuned:
        ctypes.CDLL(None).malloc_trim(0)


def _given(environ: Mapping[str, str]) -> str | None:
    """The variable by which the operator has set up the allocator, if one has."""
    for name in sorted(environ):
        if name.startswith("MALLOC_") and environ[name]:
            return name
    return "GLIBC_TUNABLES" if "glibc.malloc." in environ.get("GLIBC_TUNABLES", "") else None


def _mallopt() -> Callable[[int, int], int] | None:
    """glibc's function; None with another C library."""
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
        if version is None or not version.startswith("glibc"):
            return None
        found: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (ValueError, OSError, AttributeError):
        return None
    return found

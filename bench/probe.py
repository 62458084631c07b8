"""Where the time of one process goes: its functions, its garbage collections, its syncs.

The calls of functions are counted by cProfile, in the thread of the event loop only; that costs
about as much again as the work itself, so shares are what to read, not rates. Collections and syncs
are timed without that burden. A sync runs in the node's worker thread: its time is time that a
batch waits, not time that the loop is busy.
"""

from __future__ import annotations

import cProfile
import gc
import os
import pstats
import time
from typing import Any

from bench.control import Function, Profiled

__all__ = ["Probe"]

FUNCTIONS_MAX = 400
"""More than this many functions never have a share that anybody would look at."""


class Probe:
    """Started and stopped on the event loop's thread."""

    def __init__(self) -> None:
        self._profile: cProfile.Profile | None = None
        self._began = 0.0
        self._cpu = 0.0
        self._gc_began = 0.0
        self._gc_s = 0.0
        self._gc_runs = 0
        self._sync_s = 0.0
        self._syncs = 0
        self._sync = os.fdatasync

    def start(self, *, calls: bool) -> None:
        """Begin; with `calls` functions are counted too."""
        self._gc_s = self._sync_s = 0.0
        self._gc_runs = self._syncs = 0
        gc.callbacks.append(self._on_collection)
        self._sync, os.fdatasync = os.fdatasync, self._timed_sync
        self._began, self._cpu = time.perf_counter(), time.process_time()
        if calls:
            self._profile = cProfile.Profile()
            self._profile.enable()

    def stop(self) -> Profiled:
        """End and tell."""
        if self._profile is not None:
            self._profile.disable()
        elapsed_s = time.perf_counter() - self._began
        cpu_s = time.process_time() - self._cpu
        os.fdatasync = self._sync
        gc.callbacks.remove(self._on_collection)
        functions, self._profile = _functions(self._profile), None
        return Profiled(
            elapsed_s=elapsed_s, cpu_s=cpu_s, gc_s=self._gc_s, gc_runs=self._gc_runs,
            sync_s=self._sync_s, syncs=self._syncs, functions=functions,
        )  # fmt: skip

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began = time.perf_counter()
        else:
            self._gc_s += time.perf_counter() - self._gc_began
            self._gc_runs += 1

    def _timed_sync(self, fd: Any) -> None:
        began = time.perf_counter()
        self._sync(fd)
        self._sync_s += time.perf_counter() - began
        self._syncs += 1


def _functions(profile: cProfile.Profile | None) -> tuple[Function, ...]:
    if profile is None:
        return ()
    found: dict[Any, Any] = vars(pstats.Stats(profile))["stats"]
    functions = [
        Function(file, line, name, calls, own_s)
        for (file, line, name), (_, calls, own_s, _, _) in found.items()
    ]
    functions.sort(key=lambda function: (-function.own_s, function.file, function.line))
    return tuple(functions[:FUNCTIONS_MAX])

"""How long an event loop was held up, and by what.

A timer ticks every TICK_S. What it is late by is a *gap*: a time in which the loop ran something
that did not give way, or in which the process got no processor. Both the wall clock and the
processor time of the loop's thread are taken, because on a machine that others use as well the
first may say more about them. What ran in a gap is known from the functions that are timed while
the watch is on, and from the collector's own callbacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from raftkv.kv.keyspace import KV
from raftkv.raft import installing
from raftkv.raft.engine import Engine
from raftkv.raft.following import Following
from raftkv.raft.leading import Leading
from raftkv.raft.link import Link
from raftkv.raft.sending import Sending
from raftkv.raft.snapshotting import Snapshotting
from raftkv.raft.wal import Wal
from raftkv.replica import Replica
from raftkv.replicant.follower import Follower
from raftkv.replicant.upstream import Feeds
from raftkv.state.machine import StateMachine
from raftkv.state.snapshot import Frozen, Reader
from raftkv.testing.patching import around
from raftkv.waste import Waste

__all__ = ["Gap", "LoopWatch", "Watched"]

TICK_S = 0.001

# What may take long on a loop, innermost first: a gap is put down to the first that fills half of
# it.
CAUSES: tuple[tuple[str, Any, str], ...] = (
    ("free what is unused", Waste, "sweep"),
    ("swap the state", StateMachine, "adopt"),
    ("answer waiting callers", Replica, "_settle_jumped"),
    ("read a slice", Reader, "add"),
    ("freeze", StateMachine, "freeze"),
    ("write a slice (rows)", Frozen, "_pack_rows"),
    ("write a slice (sessions)", Frozen, "_pack_outcomes"),
    ("close the walk", Frozen, "close"),
    ("compact the log", Wal, "compact"),
    ("rebase the log", Wal, "rebase"),
    ("send a chunk", Sending, "_send"),
    ("receive a chunk", installing.Installing, "take"),
    ("a command", KV, "apply"),
    ("apply a batch", StateMachine, "apply"),
    ("replicant applies", Follower, "_apply"),
    ("after a snapshot", Snapshotting, "installed"),
    ("new leader", Replica, "elected"),
    ("make the engine", Engine, "__init__"),
    ("follow the leader", Following, "on_append"),
    ("seal what is logged", Wal, "take"),
    ("replicate", Leading, "replicate"),
    ("feed a replicant", Feeds, "_push"),
    ("a tick", Engine, "_onTick"),
    ("read a socket", Link, "data_received"),
)


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """One time that the loop was held up. `parts`: milliseconds of each timed function in it."""

    wall_ms: float
    cpu_ms: float
    gc_ms: float
    cause: str
    parts: dict[str, float]


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """A phase: the longest gap by each clock, how many gaps of the wall clock exceeded limits."""

    seconds: float
    ticks: int
    by_wall: Gap
    by_cpu: Gap
    over_10_ms: int
    over_20_ms: int


NONE = Gap(wall_ms=0.0, cpu_ms=0.0, gc_ms=0.0, cause="", parts={})


class LoopWatch:
    """Watches the running loop from `start` to `stop`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._cpu = self._began = self._gc_began = 0.0
        self._parts: dict[str, float] = {}
        self._patches = contextlib.ExitStack()
        for label, owner, name in CAUSES:
            self._patches.enter_context(around(owner, name, self._timing(label)))

    def start(self) -> None:
        self._ticks = self._over_10 = self._over_20 = 0
        self._by_wall = self._by_cpu = NONE
        self._began = time.perf_counter()
        gc.callbacks.append(self._on_collection)
        self._arm()

    def stop(self) -> Watched:
        assert self._timer is not None
        self._timer.cancel()
        gc.callbacks.remove(self._on_collection)
        return Watched(
            seconds=time.perf_counter() - self._began,
            ticks=self._ticks,
            by_wall=self._by_wall,
            by_cpu=self._by_cpu,
            over_10_ms=self._over_10,
            over_20_ms=self._over_20,
        )

    def close(self) -> None:
        """Leave the functions untimed again."""
        self._patches.close()

    def _arm(self) -> None:
        self._parts.clear()
        self._cpu = time.thread_time()
        self._due = time.perf_counter() + TICK_S
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        wall_ms = (time.perf_counter() - self._due) * 1000
        cpu_ms = (time.thread_time() - self._cpu) * 1000
        self._ticks += 1
        self._over_10 += wall_ms > 10
        self._over_20 += wall_ms > 20
        # What used the processor before the tick was due is no gap: neither clock exceeds the
        # other.
        cpu_ms = min(cpu_ms, max(wall_ms, 0.0) + TICK_S * 1000)
        if wall_ms > self._by_wall.wall_ms:
            starved = cpu_ms < wall_ms / 2
            self._by_wall = self._gap(wall_ms, cpu_ms, "no processor" if starved else "")
        if cpu_ms > self._by_cpu.cpu_ms:
            self._by_cpu = self._gap(wall_ms, cpu_ms)
        self._arm()

    def _gap(self, wall_ms: float, cpu_ms: float, cause: str = "") -> Gap:
        parts = {label: round(seconds * 1000, 2) for label, seconds in self._parts.items()}
        gc_ms = parts.pop("gc", 0.0)
        if not cause:
            named = [("garbage collection", gc_ms)]
            named += [(label, parts.get(label, 0.0)) for label, _, _ in CAUSES]
            cause = next((label for label, ms in named if ms > cpu_ms / 2), "other")
        return Gap(
            wall_ms=round(wall_ms, 2),
            cpu_ms=round(cpu_ms, 2),
            gc_ms=gc_ms,
            cause=cause,
            parts=parts,
        )

    def _timing(self, label: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        parts, clock, thread = self._parts, time.perf_counter, self._thread

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*arguments: Any, **named: Any) -> Any:
                if threading.get_ident() != thread:
                    return function(*arguments, **named)
                began = clock()
                try:
                    return function(*arguments, **named)
                finally:
                    parts[label] = parts.get(label, 0.0) + clock() - began

            return timed

        return wrap

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._gc_began = time.perf_counter()
        else:
            spent = time.perf_counter() - self._gc_began
            self._parts["gc"] = self._parts.get("gc", 0.0) + spent

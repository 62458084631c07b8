"""An asyncio event loop on a virtual clock.

Rules of this file. Nothing waits: when no callback is ready, the clock jumps to the next timer.
Nothing comes from outside: no threads, no selector, no self-pipe, no signals. So a run is a
function of the program and its seeds.

Order. Ready callbacks run first in, first out. Timers run by time, and timers of one instant in the
order in which they were made (asyncio leaves that open). Tasks hash by their serial number, not by
their address, so that even the standard library's sets of tasks (`TaskGroup`) are walked in one
order. Futures do not: never iterate a set of futures, nor what `asyncio.wait` returns.

Who runs: before each callback the loop looks at the `Process` it belongs to (process.py).

Two ways to hang are errors: `Deadlock` when somebody waits and nothing is scheduled, `Livelock`
when callbacks go on for ever without the clock moving.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

from raftkv.testing.process import PROCESS, Process, bury

__all__ = ["Deadlock", "Livelock", "SimHandle", "SimLoop", "SimTask", "run"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Callbacks at one instant before the run is called a livelock. A cluster of five nodes that starts
# needs some hundreds.
CALLBACKS_PER_INSTANT_MAX = 1_000_000
# Cancelled timers stay in the heap until they are due or outnumber the others, from this size on.
HEAP_CANCELLED_MIN = 1_000
# Seconds of charged processor time that come together before the process is held back for them:
# less would double the number of events and change nothing that a heartbeat interval can show.
OWED_MIN_S = 0.0005


class Deadlock(RuntimeError):
    """Somebody waits, but nothing is scheduled: virtual time would stand still for ever."""


class Livelock(RuntimeError):
    """Callbacks go on scheduling callbacks without the virtual clock moving."""


class SimHandle(asyncio.TimerHandle):
    """A scheduled callback; asyncio's own, without what a virtual clock does not need."""

    __slots__ = ("arguments", "callback", "home", "timers", "when_s")

    def __init__(
        self,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        home: Context,
        when_s: float,
        timers: SimLoop | None,
    ) -> None:
        self.callback = callback
        self.arguments = arguments
        self.home = home
        self._context = home  # asyncio looks for it from Python 3.12 on
        self.when_s = when_s
        self.timers = timers
        self._cancelled = False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            # What the callback refers to must not live until the timer would have been due.
            self.callback = _nothing
            self.arguments = ()
            if self.timers is not None:
                self.timers.count_cancelled()
                self.timers = None

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self.when_s

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else f"at {self.when_s:.6f}"
        return f"<SimHandle {getattr(self.callback, '__qualname__', self.callback)!s} {state}>"


def _nothing() -> None:
    return None


class SimTask(asyncio.Task[T]):
    """A task whose hash is its serial number in its loop, so that sets of tasks have one order."""

    def __init__(
        self,
        coroutine: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        loop: SimLoop,
        name: str | None,
        context: Context | None,
    ) -> None:
        loop.task_count += 1
        self._number = loop.task_count
        super().__init__(coroutine, loop=loop, name=name or f"task-{self._number}", context=context)

    def __hash__(self) -> int:
        return self._number


class SimLoop(asyncio.BaseEventLoop):
    """The event loop. `now` is the virtual time in seconds; read it, never write it."""

    def __init__(self, seed: int | str = 0, start_s: float = 0.0) -> None:
        super().__init__()
        self.set_debug(False)
        self.now = start_s
        self.rng = random.Random(f"loop/{seed}")
        self.callback_count = 0
        self.task_count = 0
        self._soon: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._timer_number = 0
        self._cancelled_timers = 0
        self._stop_requested = False

    # -- scheduling -------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> SimHandle:
        handle = SimHandle(
            callback, args, copy_context() if context is None else context, self.now, None
        )
        self._soon.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> SimHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> SimHandle:
        handle = SimHandle(
            callback, args, copy_context() if context is None else context, when, self
        )
        self._timer_number = number = self._timer_number + 1
        heappush(self._timers, (when, number, handle))
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> SimHandle:
        return self.call_soon(callback, *args, context=context)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> SimTask[T]:
        task: SimTask[T] = SimTask(
            coro, loop=self, name=None if name is None else str(name), context=context
        )
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.own(task)
        return task

    def run_in_executor(
        self, executor: object, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        raise RuntimeError("the simulated world has no threads: use Runtime.offload")

    def count_cancelled(self) -> None:
        """A timer was cancelled; sweep the heap when most of it is dead weight."""
        self._cancelled_timers += 1
        if self._cancelled_timers > max(HEAP_CANCELLED_MIN, len(self._timers) // 2):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapify(self._timers)
            self._cancelled_timers = 0

    def release(self, process: Process) -> None:
        """Let a paused process run again; what came up meanwhile runs now, in its order."""
        if process.alive:
            process.paused = False
            self._let_run(process)

    def _let_run(self, process: Process) -> None:
        if process.alive and not process.paused and not process.busy:
            process.halted = False
            self._soon.extend(process.held)
            process.held = []

    def _occupy(self, process: Process) -> None:
        """The process is at work for as long as it owes; then its callbacks run."""
        process.halted = process.busy = True
        self.call_later(process.owed_s, self._worked, process, context=Context())

    def _worked(self, process: Process) -> None:
        process.busy, process.owed_s = False, 0.0
        self._let_run(process)

    # -- running ----------------------------------------------------------------------------------

    def run_forever(self) -> None:
        """Run until `stop()`. Raises Deadlock when nothing is left to run."""
        if not self._drive(float("inf")):
            raise Deadlock(f"nothing is scheduled at {self.now:.6f} s, but somebody still waits")

    def run_for(self, seconds: float) -> None:
        """Run everything that is due within the next `seconds`; the clock then stands there."""
        until = self.now + seconds
        if not self._drive(until):
            self.now = max(self.now, until)

    def stop(self) -> None:
        self._stop_requested = True

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def _drive(self, until: float) -> bool:
        """Run what is due until `until`; true if `stop()` ended it, false if nothing was left."""
        self._check_runnable()
        events._set_running_loop(self)
        instant, instant_first = self.now, self.callback_count
        try:
            while not self._stop_requested:
                if not self._collect(until):
                    return False
                if self.now != instant:
                    instant, instant_first = self.now, self.callback_count
                elif self.callback_count - instant_first > CALLBACKS_PER_INSTANT_MAX:
                    raise Livelock(f"the clock stands at {self.now:.6f} s: {self._soon[0]!r}")
                self._run_ready()
            return True
        finally:
            self._stop_requested = False
            events._set_running_loop(None)

    def _check_runnable(self) -> None:
        if self.is_closed():
            raise RuntimeError("the loop is closed")
        if events._get_running_loop() is not None:
            raise RuntimeError("another event loop is running in this thread")

    def _collect(self, until: float) -> bool:
        """Move due timers to the ready queue, advancing the clock if that queue is empty."""
        timers = self._timers
        soon = self._soon
        while timers and timers[0][2]._cancelled:
            heappop(timers)
            self._cancelled_timers -= 1
        if not timers:
            return bool(soon)
        now = self.now
        if not soon:
            when = timers[0][0]
            if when > until:
                return False
            if when > now:
                self.now = now = when
        while timers and timers[0][0] <= now:
            handle = heappop(timers)[2]
            if handle._cancelled:
                self._cancelled_timers -= 1
            else:
                handle.timers = None
                soon.append(handle)
        return True

    def _run_ready(self) -> None:
        """Run what is ready now, but not what these callbacks add: timers come first again."""
        popleft = self._soon.popleft
        count = len(self._soon)
        self.callback_count += count
        for _ in range(count):
            handle = popleft()
            if handle._cancelled:
                continue
            home = handle.home
            process = home.get(PROCESS)
            if process is not None:
                if process.steps_left and not process.halted:
                    process.steps_left -= 1
                    if not process.steps_left and process.strike is not None:
                        process.strike()
                if process.halted:
                    process.hold(handle)
                    continue
            try:
                home.run(handle.callback, *handle.arguments)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                # As in asyncio: one broken callback is reported and does not stop the others.
                self.call_exception_handler(
                    {
                        "message": f"exception in callback {handle!r}",
                        "exception": error,
                        "handle": handle,
                        "process": process,
                    }
                )
            if process is not None and process.owed_s >= OWED_MIN_S and not process.busy:
                self._occupy(process)

    def close(self) -> None:
        """Drop what is scheduled. Never fails, may be called twice."""
        self._soon.clear()
        self._timers.clear()
        super().close()


def run(coroutine: Coroutine[Any, Any, T], seed: int | str = 0) -> T:
    """Run `coroutine` on a fresh virtual clock (`asyncio.get_running_loop()` is the SimLoop)."""
    loop = SimLoop(seed)
    # Tasks of no process are owned too while this runs, so that all are buried at the end.
    process = Process("run")
    context = copy_context()
    context.run(PROCESS.set, process)
    try:
        return loop.run_until_complete(loop.create_task(coroutine, context=context))
    finally:
        bury(process.tasks)
        loop.close()

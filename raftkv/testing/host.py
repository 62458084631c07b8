"""A machine of the simulated world: its disk and clocks outlive the processes that run on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from raftkv.errors import NodeFault
from raftkv.testing.disk import SimDisk
from raftkv.testing.process import Process, bury
from raftkv.testing.runtime import HostClock, SimRuntime

if TYPE_CHECKING:
    from raftkv.testing.world import World

__all__ = ["Host", "HostCrashed", "Program"]

T = TypeVar("T")


# What runs on a host until it is cancelled.
Program = Callable[[SimRuntime], Coroutine[Any, Any, Any]]


class HostCrashed(Exception):
    """The host died before it answered a `World.call`: the outcome is unknown."""


class Host:
    """One machine. The world starts, stops and crashes programs on it."""

    def __init__(self, world: World, name: str, disk: SimDisk) -> None:
        rng = random.Random(f"{world.seed}/{name}/host")
        drift = world.options.clock_drift_max
        self.name = name
        self.disk = disk
        self.clock = HostClock(
            world.loop,
            start_s=rng.uniform(100, 100_000),
            rate=1 + rng.uniform(-drift, drift),
            skew_ms=rng.randint(-world.options.wall_skew_ms_max, world.options.wall_skew_ms_max),
        )
        self.boots = 0
        self.runtime: SimRuntime | None = None
        self.program: Program | None = None
        # Why the last program ended by itself; None while it runs, after a crash, after a return.
        self.failure: BaseException | None = None
        self._world = world
        self._rng = rng
        self._main: asyncio.Task[Any] | None = None
        self._dead: list[Process] = []
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_number = 0

    @property
    def is_up(self) -> bool:
        """A program is running (it may be paused)."""
        return self.runtime is not None

    @property
    def is_paused(self) -> bool:
        return self.runtime is not None and self.runtime.process.paused

    def start(self, program: Program) -> None:
        if self.runtime is not None:
            raise RuntimeError(f"{self.name} is running already: crash or stop it first")
        world = self._world
        self.boots += 1
        self.program = program
        self.failure = None
        process = Process(f"{self.name}#{self.boots}")
        world.network.host_up(self.name)
        runtime = self.runtime = SimRuntime(
            self.name,
            process,
            world.loop,
            world.network,
            self.disk,
            self.clock,
            f"{world.seed}/{process.name}",
        )
        world.trace.record(world.loop.now, self.name, f"start {self.boots}")
        context = runtime.context()
        coroutine = context.run(program, runtime)
        self._main = world.loop.create_task(coroutine, name=f"{process.name} main", context=context)
        self._main.add_done_callback(self._main_done, context=world.context.copy())

    def inside(self, function: Callable[..., T], *args: Any) -> T:
        """Call a plain function as the running program: its clock, its chance, its process."""
        return self._running().context().run(function, *args)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run a coroutine as the running program; HostCrashed when it dies before the answer."""
        runtime = self._running()
        loop = self._world.loop
        answer: asyncio.Future[T] = loop.create_future()
        self._call_number += 1
        number = self._call_number
        self._calls[number] = answer
        task = runtime.spawn(coroutine, f"{runtime.process.name} call {number}")

        def copy_answer(done: asyncio.Task[T]) -> None:
            self._calls.pop(number, None)
            if answer.done():
                if not done.cancelled():
                    done.exception()
            elif done.cancelled():
                answer.cancel()
            elif (error := done.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(done.result())

        task.add_done_callback(copy_answer, context=self._world.context.copy())
        return answer

    def stop(self) -> None:
        """Ask the program to end, as SIGTERM does: its main task is cancelled."""
        self._running()
        assert self._main is not None
        self._main.cancel()

    def crash(self, *, power_cut: bool, silent: bool) -> None:
        """The process dies here and now; called by the world, never by the host's own code."""
        self._running().die()
        self._end(silent=silent)
        if power_cut:
            self.disk.crash()

    def pause(self) -> None:
        self._running().process.pause()

    def resume(self) -> None:
        if self.runtime is not None and self.runtime.process.paused:
            self._world.loop.release(self.runtime.process)

    def bury(self) -> None:
        """End of the world."""
        if self.runtime is not None:
            self._end(silent=True)
        for process in self._dead:
            bury(process.tasks)
        self._dead.clear()

    def _running(self) -> SimRuntime:
        if self.runtime is None:
            raise RuntimeError(f"{self.name} is down")
        return self.runtime

    def _end(self, *, silent: bool) -> None:
        runtime = self._running()
        self.runtime = None
        self._main = None
        runtime.process.kill()
        runtime.gate.kill()
        self._dead.append(runtime.process)
        self._world.network.host_down(self.name, silent=silent)
        calls, self._calls = self._calls, {}
        for answer in calls.values():
            if not answer.done():
                answer.set_exception(HostCrashed(f"{self.name} died before it answered"))
                # Not everybody who called still wants to know.
                answer.exception()

    def _main_done(self, task: asyncio.Task[Any]) -> None:
        """The program ended by itself; the process is gone, its machine is well."""
        error = None if task.cancelled() else task.exception()
        if task is not self._main:
            return
        self._end(silent=False)
        self.failure = error
        what = "exit" if error is None else f"exit {type(error).__name__}: {error}"
        self._world.trace.record(self._world.loop.now, self.name, what)
        if error is not None and not isinstance(error, NodeFault):
            self._world.report(self.name, error)

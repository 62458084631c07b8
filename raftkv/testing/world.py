"""The simulated world: whole nodes on one thread, one virtual clock, one seed.

    async def make_node(runtime):            # any program: runs until cancelled
        async with raftkv.Node(config, runtime=runtime) as node:
            ...

    with World(seed) as world:
        for name in ("core1", "core2", "core3"):
            world.start(name, make_node)
        world.run(5)                          # virtual seconds
        world.crash("core1"); world.run(2); world.restart("core1")
        world.wait(lambda: ..., timeout_s=10)
        print(world.trace.digest())

Same seed, same trace, byte for byte. What that needs of the code under test:
- time, chance, files and streams come from the runtime, nothing from the machine; no threads;
- it never iterates a set of anything that hashes by address (objects, futures), nor, unless
  PYTHONHASHSEED is fixed, a set of strings or bytes. Dicts are in order of insertion: fine. Sets of
  tasks are fine too (clock.py). The world itself iterates no set, so it needs no fixed hash seed;
- nothing in it depends on the garbage collector (`__del__`, weak references that vanish).

A program that raises anything but a `NodeFault`, a task whose exception nobody takes, and a
callback that raises are defects: `run` and its like raise `WorldFailed` with the first one as its
cause. A NodeFault ends the host like an exit and stays in `host.failure`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from raftkv.testing.clock import SimLoop
from raftkv.testing.disk import SimDisk
from raftkv.testing.host import Host, HostCrashed, Program
from raftkv.testing.network import NetworkOptions, SimNetwork
from raftkv.testing.process import PROCESS, Process, bury
from raftkv.testing.trace import Trace

__all__ = ["Host", "HostCrashed", "NotReached", "World", "WorldFailed", "WorldOptions"]

T = TypeVar("T")

WAIT_STEP_S = 0.01


class NotReached(AssertionError):
    """What was waited for did not come within its virtual time."""


class WorldFailed(AssertionError):
    """A program or a callback in the world raised; the cause is the first such exception."""


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """How good the machines are."""

    network: NetworkOptions = field(default_factory=NetworkOptions)
    # Monotonic clocks run this much fast or slow at most: ten times a bad quartz.
    clock_drift_max: float = 0.0005
    wall_skew_ms_max: int = 200
    # With a silent power cut peers are not told that the machine is gone.
    silent_probability: float = 0.5


class World:
    """Hosts, network, clock and trace of one seed.

    `disk` makes a host's disk from its generator; by default a `SimDisk`.
    """

    def __init__(
        self,
        seed: int | str,
        options: WorldOptions | None = None,
        *,
        trace: Trace | None = None,
        disk: Callable[[random.Random], SimDisk] = SimDisk,
    ) -> None:
        self.seed = seed
        self.options = options or WorldOptions()
        self.loop = SimLoop(seed)
        self.loop.set_exception_handler(self._on_exception)
        self.rng = random.Random(f"{seed}/world")
        self.trace = trace or Trace()
        self.network = SimNetwork(self.loop, random.Random(f"{seed}/network"), self.options.network)
        self.network.record = self.note
        self.hosts: dict[str, Host] = {}
        # (virtual time, host or "*", exception) of everything that nobody caught.
        self.errors: list[tuple[float, str, BaseException]] = []
        self._disk = disk
        self._process = Process("world")
        # The world's own tasks run here: they belong to no host.
        self.context = Context()
        self.context.run(PROCESS.set, self._process)

    # -- hosts ------------------------------------------------------------------------------------

    def host(self, name: str) -> Host:
        """The machine of that name, with an empty disk when it is new."""
        host = self.hosts.get(name)
        if host is None:
            disk = self._disk(random.Random(f"{self.seed}/{name}/disk"))
            host = self.hosts[name] = Host(self, name, disk)
            self.network.add_host(name)
        return host

    def start(self, name: str, program: Program) -> Host:
        """Run `program(runtime)` on the host until it returns, raises, is stopped or crashes."""
        host = self.host(name)
        host.start(program)
        return host

    def restart(self, name: str, program: Program | None = None) -> Host:
        """Start the host's last program again (or another one) on what its disk has kept."""
        host = self.host(name)
        chosen = program or host.program
        if chosen is None:
            raise RuntimeError(f"{name} has never run a program: start it with one")
        host.start(chosen)
        return host

    def stop(self, name: str) -> None:
        """Ask the host's program to end; `wait(lambda: not host.is_up)` until it has."""
        self.note(name, "stop")
        self.host(name).stop()

    def crash(self, name: str, *, power_cut: bool = True) -> None:
        """The host dies at once, in the middle of whatever it awaits or writes.

        `power_cut`: the machine goes down and its disk loses what was not synced; peers may hear
        nothing. Otherwise it is a kill -9: the disk keeps everything and peers get a reset.
        """
        running = PROCESS.get()
        host = self.host(name)
        if running is not None and host.runtime is not None and running is host.runtime.process:
            # A host's own callback cannot vanish under itself: it dies when it has returned.
            self.loop.call_soon(self._crash, host, power_cut, context=self.context.copy())
        else:
            self._crash(host, power_cut)

    def doom(
        self,
        name: str,
        struck: Callable[[], object],
        *,
        power_cut: bool,
        steps: int | None = None,
        changes: int | None = None,
    ) -> None:
        """Let the running program die at a chosen step instead of a chosen time; then `struck`.

        After so many more of its callbacks (`steps`), also between two of one instant; or in place
        of a changing operation on its files, after so many more of them (`changes`), be it on the
        loop or in a worker. `spare` takes it back.
        """
        host = self.host(name)
        runtime = host.runtime
        assert runtime is not None, f"{name} is down"

        def strike() -> None:
            if host.runtime is runtime:
                self._crash(host, power_cut)
                struck()

        if steps is not None:
            runtime.process.doom(steps, strike)
        if changes is not None:
            runtime.gate.doom(changes, strike)

    def spare(self, name: str) -> None:
        """Take a `doom` back that has not struck yet."""
        runtime = self.host(name).runtime
        if runtime is not None:
            runtime.process.spare()
            runtime.gate.spare()

    def _crash(self, host: Host, power_cut: bool) -> None:
        silent = power_cut and self.rng.random() < self.options.silent_probability
        how = "kill" if not power_cut else "power cut, silent" if silent else "power cut"
        self.note(host.name, how)
        host.crash(power_cut=power_cut, silent=silent)

    def pause(self, name: str, seconds: float | None = None) -> None:
        """Stop the host's program as SIGSTOP does, for `seconds` or until `resume`."""
        host = self.host(name)
        self.note(name, f"pause {'' if seconds is None else f'{seconds:.3f} s'}".rstrip())
        host.pause()
        if seconds is not None:
            boots = host.boots
            self.loop.call_later(
                seconds,
                lambda: self.resume(name) if host.boots == boots else None,
                context=self.context.copy(),
            )

    def resume(self, name: str) -> None:
        """Let a paused program go on; no effect on others."""
        if self.host(name).is_paused:
            self.note(name, "resume")
            self.host(name).resume()

    def stall_disk(self, name: str, seconds: float) -> None:
        """Blocking work of the running program does not end before `seconds` have passed."""
        runtime = self.host(name).runtime
        if runtime is not None:
            self.note(name, f"disk hangs {seconds:.3f} s")
            runtime.stall_disk(seconds)

    def jump_wall(self, name: str, milliseconds: int) -> None:
        """The host's wall clock jumps; its monotonic clock does not."""
        self.note(name, f"wall clock jumps {milliseconds} ms")
        self.host(name).clock.skew_ms += milliseconds

    # -- running ----------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let the world go on for so many virtual seconds."""
        self.loop.run_for(seconds)
        self.check()

    def wait(
        self, condition: Callable[[], object], timeout_s: float, what: str = "the condition"
    ) -> None:
        """Run until the condition holds; it is looked at every 10 ms. Raises NotReached."""
        end_s = self.loop.now + timeout_s
        while not condition():
            if self.loop.now >= end_s:
                raise NotReached(f"seed {self.seed}: {what} did not come within {timeout_s} s")
            self.run(min(WAIT_STEP_S, end_s - self.loop.now + 1e-9))

    async def until(
        self, condition: Callable[[], object], timeout_s: float, what: str = "the condition"
    ) -> None:
        """As `wait`, for a coroutine of the test."""
        end_s = self.loop.now + timeout_s
        while not condition():
            if self.loop.now >= end_s:
                raise NotReached(f"seed {self.seed}: {what} did not come within {timeout_s} s")
            await asyncio.sleep(WAIT_STEP_S)

    def complete(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = 60.0) -> T:
        """Run the world until a coroutine of the test has finished; returns its result."""
        task = self._task(coroutine, "complete")
        self.wait(task.done, timeout_s, "the end of the coroutine")
        return task.result()

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine of the test in the background; what it raises fails the world."""
        task = self._task(coroutine, name)
        task.add_done_callback(self._background_done, context=self.context.copy())
        return task

    def call(self, name: str, coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run a coroutine as the program on a host. HostCrashed when the host dies meanwhile."""
        return self.host(name).call(coroutine)

    def check(self) -> None:
        """Raise WorldFailed if anything was raised that nobody caught."""
        if self.errors:
            time_s, host, error = self.errors[0]
            raise WorldFailed(
                f"seed {self.seed}: {type(error).__name__} on {host} at {time_s:.6f} s: {error} "
                f"({len(self.errors)} in all)"
            ) from error

    def close(self) -> None:
        """The end: nothing runs any more, what was left is buried."""
        if self.loop.is_closed():
            return
        # What finalizers complain about now is of no interest.
        self.loop.set_exception_handler(lambda loop, context: None)
        for host in self.hosts.values():
            host.bury()
        self._process.kill()
        bury(self._process.tasks)
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- what happened ----------------------------------------------------------------------------

    def note(self, host: str, event: str) -> None:
        """Add a line to the trace."""
        self.trace.record(self.loop.now, host, event)

    def report(self, host: str, error: BaseException) -> None:
        """An exception that nobody caught; the next `run` raises it."""
        self.errors.append((self.loop.now, host, error))

    def _task(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        return self.loop.create_task(coroutine, name=name, context=self.context.copy())

    def _background_done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(task.get_name(), error)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        future = context.get("future")
        if future is not None and not isinstance(future, asyncio.Task):
            # A bare future that failed when nobody waited any more: asked and gone, no defect.
            return
        error = context.get("exception")
        if error is None:
            error = RuntimeError(context.get("message", "unknown trouble in the event loop"))
        process = context.get("process") or PROCESS.get()
        self.report(process.name if process is not None else "*", error)

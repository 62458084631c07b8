"""Running one function, within its time, and never two at once.

A function whose time is up is cancelled. One that goes on all the same (it waits where cancelling
does not reach, or it swallows the cancellation) is not let alone: nothing else runs on this node
until it has ended, for it may be in the midst of what the next attempt would begin. The attempt has
failed meanwhile, and says so. A plain function holds up the whole node; nothing can cut it short,
so it is only counted and named in the log.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final, Literal

from raftkv.plugin import Host

from .functions import Call, Function
from .metrics import Counters
from .options import options_of

__all__ = ["Runner", "StillRunning", "TimeIsUp"]


# A plain function that takes longer is spoken of: the node does nothing else meanwhile, so a leader
# misses its heartbeats (60 ms), and before long its office.
HELD_UP_S: Final = 0.1


class Cancelled(Exception):
    """A plain function raised CancelledError."""


class TimeIsUp(Exception):
    """The function did not end in its time, and was cancelled."""


class StillRunning(Exception):
    """An earlier run, whose time is up, does not end although it was cancelled."""


class Runner:
    """Runs the functions of one node."""

    def __init__(self, host: Host, counters: Counters) -> None:
        self._host = host
        self._counters = counters
        self._grace_s = options_of(host).cancel_grace_s
        #: (id, kind) of what runs now.
        self.running: tuple[int, Literal["initiate", "replicate"]] | None = None
        # A run whose time was up, and that has not ended yet.
        self._overrun: asyncio.Task[Any] | None = None

    async def run(
        self, function: Function, args: Callable[[], Any], call: Call, limit_s: float
    ) -> Any:
        """What the function returns. Raises what it raises, TimeIsUp, and StillRunning."""
        until = self._host.runtime.monotonic() + limit_s
        await self._overrun_ended(limit_s)
        left_s = max(0.0, until - self._host.runtime.monotonic())
        self.running = (call.id, call.kind)
        try:
            value = self._called(function, args, call)
            if inspect.isawaitable(value):
                value = await self._awaited(value, left_s)
            return value
        finally:
            self.running = None

    def _called(self, function: Function, args: Callable[[], Any], call: Call) -> Any:
        """What the function gives at once: the value of a plain one, else what is to be awaited."""
        began = self._host.runtime.monotonic()
        try:
            return function.run(args(), call)
        except asyncio.CancelledError:
            # Of something that it looked at. Nobody cancels what does not wait, and on this way it
            # would end the worker.
            raise Cancelled("it raised CancelledError") from None
        finally:
            took_s = self._host.runtime.monotonic() - began
            if took_s >= HELD_UP_S:
                self._counters.add("held_up")
                self._host.log.warning(
                    "calls: call %d (%s version %d) held up %s for %.3f s: make the function "
                    "async, and let a thread do what takes long",
                    call.id,
                    function.name,
                    function.version,
                    call.node,
                    took_s,
                )

    async def _awaited(self, value: Any, limit_s: float) -> Any:
        # Not `host.spawn`, which logs what a task raises: that may show arguments.
        task = self._host.runtime.spawn(_await(value), "calls: function")
        try:
            await asyncio.wait((task,), timeout=limit_s)
            if not task.done():
                self._counters.add("overruns")
                task.cancel()
                await asyncio.wait((task,), timeout=self._grace_s)
        except asyncio.CancelledError:
            task.cancel()
            # It may have ended with an error in this very moment, and that text is for nobody.
            task.add_done_callback(_read)
            raise
        finally:
            if not task.done():
                self._overrun = task
                task.add_done_callback(_read)
        if not task.done():
            raise TimeIsUp(f"it did not end within {limit_s:g} s, nor when it was cancelled")
        if task.cancelled():
            raise TimeIsUp(f"it did not end within {limit_s:g} s, and was cancelled")
        return task.result()

    async def _overrun_ended(self, limit_s: float) -> None:
        if self._overrun is not None and not self._overrun.done():
            await asyncio.wait((self._overrun,), timeout=limit_s)
            if not self._overrun.done():
                raise StillRunning("an earlier run does not end although it was cancelled")
        self._overrun = None


async def _await(value: Any) -> Any:
    return await value


def _read(task: asyncio.Task[Any]) -> None:
    """Look at an end that nobody awaits, so that asyncio does not complain of it."""
    if not task.cancelled():
        task.exception()

"""One life of a program on a simulated host: what owns callbacks, and what a crash ends.

A callback belongs to the `Process` found in its context variables, which asyncio hands from
callback to callback and from task to task by itself; so code under test needs no change, and may
use `asyncio.create_task`, `asyncio.sleep` and the like. The loop (clock.py) looks at the process
before each callback: those of a dead process are dropped, those of a paused one wait in order. A
crash can therefore fall on any `await`, and nothing of the process ever runs again, not even a
`finally`. Events of the world fall between instants; `doom` makes one fall between two callbacks of
the same instant.

What is ugly: a suspended coroutine that nobody refers to is finished off by the garbage collector,
which runs its `finally` blocks at a moment of its own choosing. So a process holds all its tasks
until the world ends, and `bury` then closes them in a fixed order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raftkv.testing.clock import SimHandle

__all__ = ["PROCESS", "Process", "bury"]


class Process:
    """The owner of callbacks and tasks.

    `halted` is what the loop looks at: true while the process is paused or at work (`busy`), and
    for ever once dead. `held` are the callbacks that came up meanwhile. `owed_s` is processor time
    that was charged and has not passed yet (charges.py). `steps_left`, unless 0, counts its
    callbacks down; `strike` is called in place of the one that reaches 0, and ends the process.
    """

    __slots__ = (
        "_sweep_at",
        "alive",
        "busy",
        "halted",
        "held",
        "name",
        "owed_s",
        "paused",
        "steps_left",
        "strike",
        "tasks",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.halted = False
        self.paused = False
        self.busy = False
        self.owed_s = 0.0
        self.held: list[SimHandle] = []
        self.steps_left = 0
        self.strike: Callable[[], None] | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self._sweep_at = 64

    def own(self, task: asyncio.Task[Any]) -> None:
        """Keep the task from the garbage collector until it is done or the world ends."""
        self.tasks.append(task)
        if len(self.tasks) >= self._sweep_at:
            self.tasks = [task for task in self.tasks if not task.done()]
            self._sweep_at = 2 * len(self.tasks) + 64

    def hold(self, handle: SimHandle) -> None:
        """A callback came up while the process is halted: keep it, or drop it when dead."""
        if self.alive:
            self.held.append(handle)

    def charge(self, seconds: float) -> None:
        """Its work takes processor time; the loop lets it pass when the callback has returned."""
        self.owed_s += seconds

    def doom(self, steps: int, strike: Callable[[], None]) -> None:
        """Let `steps` more callbacks run, then call `strike` in place of the next."""
        self.steps_left, self.strike = steps + 1, strike

    def spare(self) -> None:
        """Take a `doom` back that has not struck."""
        self.steps_left, self.strike = 0, None

    def pause(self) -> None:
        """Hold callbacks from now on (SIGSTOP). `SimLoop.release` lets them go."""
        self.halted = self.paused = True

    def kill(self) -> None:
        """From now on no callback and no task of this process runs. There is no way back."""
        self.alive = False
        self.halted = True
        self.held = []
        self.spare()

    def __repr__(self) -> str:
        return f"<Process {self.name}>"


PROCESS: ContextVar[Process | None] = ContextVar("raftkv_testing_process", default=None)


def bury(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Finish off tasks that will never run again, without their complaints.

    Their `finally` blocks run here, after the world's end, where they can change nothing.
    """
    for task in tasks:
        if task.done():
            continue
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        coroutine = task.get_coro()
        if coroutine is not None:
            with contextlib.suppress(Exception, asyncio.CancelledError):
                coroutine.close()

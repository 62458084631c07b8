"""The worker thread of a simulated process: blocking work that takes virtual time.

One function at a time, in the order of the calls. A function runs as one event, at a random moment
between its start and its end; its result is delivered at the end. So a crash may find it not
begun, or done but unknown to its caller; and `crash` may run it half (gate.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from raftkv.testing.clock import SimLoop
from raftkv.testing.gate import Gate

__all__ = ["SimWorker", "WorkerOptions"]

# How many operations on files a function may still do in a crash that falls into it.
CRASH_CHANGES_MAX = 5


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How long blocking work takes; the defaults are a disk that is sometimes busy."""

    # Drawn so that every decade is as likely as the next.
    duration_min_s: float = 0.0001
    duration_max_s: float = 0.005
    long_probability: float = 0.01
    long_min_s: float = 0.02
    long_max_s: float = 0.2


@dataclass(slots=True)
class _Job:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: asyncio.Future[Any]
    context: Context
    result: Any = None
    error: BaseException | None = None
    ran: bool = False


class SimWorker:
    """Runs jobs one after another; `stall` makes it hang like a disk that does not answer."""

    def __init__(
        self, loop: SimLoop, rng: random.Random, options: WorkerOptions | None = None
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._options = options or WorkerOptions()
        self._jobs: deque[_Job] = deque()
        self._hangs_until_s = 0.0

    def submit(
        self, context: Context, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        job = _Job(function, args, self._loop.create_future(), context)
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._begin(job)
        return job.future

    def stall(self, seconds: float) -> None:
        """What is being done, or comes next, does not end before `seconds` have passed."""
        self._hangs_until_s = max(self._hangs_until_s, self._loop.now + seconds)

    def crash(self, gate: Gate) -> None:
        """The process dies now. A job that has begun may have got through to some operation."""
        if self._jobs and not self._jobs[0].ran and self._rng.random() < 0.5:
            job = self._jobs[0]
            gate.doom(self._rng.randint(0, CRASH_CHANGES_MAX))
            with contextlib.suppress(Exception):
                job.context.run(job.function, *job.arguments)
        self._jobs.clear()

    def _begin(self, job: _Job) -> None:
        duration_s = self._duration_s()
        before_s = duration_s * self._rng.random()
        self._loop.call_later(
            before_s, self._execute, job, duration_s - before_s, context=job.context
        )

    def _execute(self, job: _Job, after_s: float) -> None:
        # As with a real executor, what was cancelled before its turn is not run.
        if not job.future.cancelled():
            job.ran = True
            try:
                job.result = job.function(*job.arguments)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                job.error = error
        self._loop.call_later(after_s, self._finish, job, context=job.context)

    def _finish(self, job: _Job) -> None:
        if self._hangs_until_s > self._loop.now:
            self._loop.call_at(self._hangs_until_s, self._finish, job, context=job.context)
            return
        self._jobs.popleft()
        if not job.future.done():
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
        if self._jobs:
            self._begin(self._jobs[0])

    def _duration_s(self) -> float:
        options, rng = self._options, self._rng
        if rng.random() < options.long_probability:
            return rng.uniform(options.long_min_s, options.long_max_s)
        ratio = options.duration_max_s / options.duration_min_s
        return float(options.duration_min_s * ratio ** rng.random())

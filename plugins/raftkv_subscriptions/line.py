"""A line of jobs: commands that go into the log one after the other, those alike in one command.

Theory. Commands of one node that are in flight together may be applied in any order, and a caller
may leave at any moment: by a time-out, by being cancelled. So a call only stands in line, as a
*job*, and a task works the line off. A round through the log costs the same for one message as for
hundreds: while a command is under way, others gather behind it, and all of one kind that stand at
the front and fit into one command go together.

The work of a kind gets those jobs and tells each what became of it (`Job.succeed`, `Job.fail`); it
alone knows whether what is refused in common has to be tried one by one.

Rules of this file
1. A job that has begun is done to its end, whoever still waits for it: a caller that leaves decides
   nothing, and the next command does not begin before the outcome of this one is known.
2. A job whose caller left before its turn is dropped, unless it *must* be done. What it wanted is
   forgotten at once: while the log stands still, callers come and leave, and fill no memory.
3. A result that nobody hears can have an afterthought (`unheard`): messages that were taken for a
   caller that has left go back. It is done before the next job.
4. Every job is told something in the end, whatever happens to the work or to the node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from raftkv.errors import Overloaded, RaftkvError, Stopped
from raftkv.plugin import Host

from .counting import Counters
from .errors import NotSent, StillUnderWay
from .rows import COMMAND_BYTES, ROWS_MAX

__all__ = ["JOBS_MAX", "TIMEOUT_S", "Job", "Line", "Unheard", "Work"]

#: How long a call waits by default, in seconds. It decides nothing.
TIMEOUT_S = 5.0
#: Jobs that stand in one line: callers that do not wait for answers must not fill the memory.
JOBS_MAX = 10_000
#: Those whose callers have left stay among them, if they are not more than this or than the others.
DEAD_MAX = 16

Unheard = Callable[[Any], Awaitable[None]]


class Job:
    """One call. `part` is what it wants; it has `rows` and `size` bytes of a command."""

    __slots__ = ("_future", "_left", "begun", "kind", "must", "part", "rows", "size", "unheard")

    def __init__(
        self,
        kind: str,
        part: Any,
        future: asyncio.Future[Any],
        rows: int,
        size: int,
        must: bool,
        unheard: Unheard | None,
    ) -> None:
        self.kind = kind
        self.part = part
        self.rows = rows
        self.size = size
        self.must = must
        self.unheard = unheard
        self.begun = False
        self._future: asyncio.Future[Any] | None = future
        #: Results that nobody heard, and that have an afterthought.
        self._left: list[Any] = []

    @property
    def waits(self) -> bool:
        """Whether its caller has not been told anything yet, and has not left."""
        return self._future is not None and not self._future.done()

    def succeed(self, result: Any) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(result)
        elif self.unheard is not None:
            self._left.append(result)

    def fail(self, error: Exception) -> None:
        """Its caller, if there still is one, gets this."""
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # it may have no caller: that is no defect to be logged

    @property
    def is_dead(self) -> bool:
        """Nobody waits for it, and it is not to be begun."""
        return not self.waits and not self.begun and not self.must

    def forget(self) -> None:
        """What it wanted, and what its caller was told: an error knows its caller's frames."""
        self.part = self._future = None

    def give_up(self, otherwise: Exception) -> None:
        """Its caller waits no more; it goes on if it has begun, or must be done."""
        self.fail(StillUnderWay() if self.begun or self.must else otherwise)

    async def afterthought(self) -> None:
        """Undo what nobody heard of."""
        if self.unheard is not None:
            left, self._left = self._left, []
            for result in left:
                await self.unheard(result)


Work = Callable[[Sequence[Job]], Awaitable[None]]


class Line:
    """Jobs by kind; `works` does those of a kind. `alone`: kinds that are never done together."""

    def __init__(
        self,
        host: Host,
        counters: Counters,
        name: str,
        works: Mapping[str, Work],
        alone: frozenset[str] = frozenset(),
    ) -> None:
        self._host = host
        self._counters = counters
        self._name = name
        self._works = works
        self._alone = alone
        self._jobs: deque[Job] = deque()
        #: Dead ones among them, about.
        self._dead = 0
        self._current: Sequence[Job] = ()
        self._working = False
        self._stopped = False

    @property
    def idle(self) -> bool:
        """Nothing is under way, and nothing waits."""
        return not self._working

    async def do(
        self,
        kind: str,
        part: Any,
        timeout_s: float | None,
        *,
        rows: int = 1,
        size: int = 0,
        must: bool = False,
        unheard: Unheard | None = None,
    ) -> Any:
        """Have it done when its turn comes; its result.

        Raises what its work says; after `timeout_s` (None: never) `NotSent`, or `StillUnderWay` if
        it has begun or must be done; Overloaded when JOBS_MAX wait; Stopped when the node stops.
        """
        if self._stopped:
            raise Stopped("this node stops")
        if len(self._jobs) - self._dead >= JOBS_MAX and not must:
            raise Overloaded(f"{JOBS_MAX} calls wait in this line: await some of them first")
        runtime = self._host.runtime
        future = runtime.future()
        job = Job(kind, part, future, rows, size, must, unheard)
        self._jobs.append(job)
        self._go()
        timer = None
        if timeout_s is not None:
            timer = runtime.call_later(max(0.0, timeout_s), self._late, job)
        try:
            return await future
        except asyncio.CancelledError:
            self._left(job, future)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def fail_waiting(self, error: Exception) -> None:
        """Whoever waits for a turn gets this, except for what must be done."""
        for job in list(self._jobs):
            if not job.must:
                job.fail(error)
                self._forget(job)

    def stop(self) -> None:
        """The node stops: nothing is decided here any more, and this decides nothing."""
        self._stopped = True
        for job in (*self._current, *self._jobs):
            job.give_up(Stopped("this node stops"))
        self._jobs.clear()

    def _late(self, job: Job) -> None:
        if job.waits:
            self._counters.add("detached")
            job.give_up(NotSent())
            self._forget(job)

    def _left(self, job: Job, future: asyncio.Future[Any]) -> None:
        """The caller was cancelled; perhaps at the very moment at which the result came."""
        self._counters.add("detached")
        if not future.done():
            future.cancel()
        self._forget(job)
        if job.unheard is None or future.cancelled() or future.exception() is not None:
            return
        job.succeed(future.result())  # once more, and this time nobody hears it
        if not self._stopped:
            self._host.spawn(self._undo(job), f"{self._name}: unheard")

    def _forget(self, job: Job) -> None:
        """Its caller has left: it takes no room any more, if it is not to be done."""
        if not job.is_dead:
            return
        job.forget()
        self._dead += 1
        if self._dead > DEAD_MAX and 2 * self._dead > len(self._jobs):
            self._jobs = deque(each for each in self._jobs if not each.is_dead)
            self._dead = 0

    # --- the work ---

    def _go(self) -> None:
        if not self._working:
            self._working = True
            self._host.spawn(self._work(), self._name).add_done_callback(self._over)

    async def _work(self) -> None:
        while self._jobs:
            jobs = self._next()
            if jobs:
                self._current = jobs
                await self._do(jobs)
                self._current = ()
        self._working = False

    def _over(self, task: asyncio.Task[None]) -> None:
        """Its task was cancelled with the node, perhaps before its first step; or it is broken."""
        if task.cancelled() or task.exception() is not None:
            self.stop()

    def _next(self) -> list[Job]:
        """The first job, with those behind it that go into the same command."""
        found: list[Job] = []
        rows = size = 0
        while self._jobs:
            job = self._jobs[0]
            if job.is_dead:
                self._jobs.popleft()
                self._dead = max(0, self._dead - 1)
                continue
            if found:
                rows, size = rows + job.rows, size + job.size
                if job.kind != found[0].kind or rows > ROWS_MAX or size > COMMAND_BYTES:
                    break
            else:
                rows, size = job.rows, job.size
            job.begun = True
            found.append(self._jobs.popleft())
            if job.kind in self._alone:
                break
        return found

    async def _do(self, jobs: Sequence[Job]) -> None:
        try:
            await self._works[jobs[0].kind](jobs)
        except RaftkvError as error:
            for job in jobs:
                job.fail(error)
        except Exception as error:
            self._host.log.exception("subscriptions: a command failed")
            for job in jobs:
                job.fail(error)
        for job in jobs:
            if job.waits:
                job.fail(StillUnderWay())
            await self._undo(job)

    async def _undo(self, job: Job) -> None:
        try:
            await job.afterthought()
        except RaftkvError as error:
            name = type(error).__name__
            self._host.log.debug("subscriptions: an afterthought failed: %s", name)

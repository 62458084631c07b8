"""The line of a session: its commands go into the log one after the other, in the order of calls.

Theory. Commands of one node that are in flight together may be applied in any order, and a caller
may leave at any moment: by a time-out, by being cancelled. A session promises an order all the
same, and that nothing of it is in doubt silently. So a call only stands in line, as a *job*, and a
task of the session works the line off. (It is kept for the next job: to begin a task costs as much
as all the rest here.)

A round through the log costs the same for one message as for hundreds. So jobs of one kind that
stand one behind the other may be done as one: `share` says of which kind a job is, and what is
its share of the common work.

Rules of this file
1. A job that has begun is done to its end, whoever still waits for it: a caller that leaves decides
   nothing, and the next job does not begin before the outcome of this one is known.
2. A job whose caller left before its turn is dropped, unless it *must* be done: the end of a
   transaction, or of a session, which the caller has been told nothing about.
3. A result that nobody hears can have an afterthought (`unheard`): messages that were acquired for
   a caller that has left go back. It is done before the next job.
4. What is refused in common is done one by one: nobody suffers from another's mistake.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from raftkv.errors import Overloaded, RaftkvError, Refused, Stopped
from raftkv.plugin import Host

from .errors import NotSent, StillUnderWay
from .metrics import Counters

__all__ = ["JOBS_MAX", "SHARES_MAX", "TIMEOUT_S", "Line", "Share"]

T = TypeVar("T")

#: How long a call of a session waits by default, in seconds. It decides nothing.
TIMEOUT_S = 5.0
#: Jobs that are done as one: about as many as one entry may touch rows, if each has a few.
SHARES_MAX = 256
#: Jobs that stand in one line: callers that do not wait for answers must not fill the memory.
JOBS_MAX = 10_000


class Share:
    """What a job has of the work that jobs of the same `kind` have in common.

    `common` does it for several parts, and has a result for each of them.
    """

    __slots__ = ("common", "kind", "part")

    def __init__(
        self, kind: str, part: Any, common: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
    ) -> None:
        self.kind = kind
        self.part = part
        self.common = common


class _Job:
    __slots__ = ("begun", "future", "late", "must", "share", "unheard", "work")

    def __init__(
        self,
        work: Callable[[], Awaitable[Any]],
        future: asyncio.Future[Any],
        must: bool,
        unheard: Callable[[Any], Awaitable[None]] | None = None,
        late: Callable[[], Exception] | None = None,
        share: Share | None = None,
    ) -> None:
        self.work = work
        self.future = future
        self.must = must
        self.unheard = unheard
        self.late = late
        self.share = share
        self.begun = False

    def fail(self, error: Exception) -> None:
        """Its caller, if there still is one, gets this."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # it may have no caller: that is no defect to be logged

    def give_up(self, otherwise: Exception) -> None:
        """Its caller waits no more: it goes on if it has begun or must be done."""
        under_way = self.begun or self.must
        self.fail((self.late or StillUnderWay)() if under_way else otherwise)


class Line:
    """The jobs of one session. `idle` is called whenever the last of them is done."""

    def __init__(
        self, host: Host, counters: Counters, idle: Callable[[], None] | None = None
    ) -> None:
        self._host = host
        self._counters = counters
        self._idle = idle
        self._jobs: deque[_Job] = deque()
        self._current: Sequence[_Job] = ()
        self._working = False
        #: What the task waits for while there is nothing to do.
        self._parked: asyncio.Future[None] | None = None
        self._retired = False
        self._stopped = False

    @property
    def busy(self) -> bool:
        """Whether a command is under way or waits."""
        return self._working

    async def do(
        self,
        work: Callable[[], Awaitable[T]],
        timeout_s: float | None,
        *,
        must: bool = False,
        unheard: Callable[[T], Awaitable[None]] | None = None,
        late: Callable[[], Exception] | None = None,
        share: Share | None = None,
    ) -> T:
        """Have `work` done when its turn comes; its result.

        Raises what it raises; after `timeout_s` (None: never) `NotSent`, or `StillUnderWay` (or
        what `late` makes) if it has begun or must be done; Overloaded when JOBS_MAX wait; Stopped
        when the node stops.
        """
        if self._stopped:
            raise Stopped("this node stops")
        if len(self._jobs) >= JOBS_MAX and not must:
            raise Overloaded(f"{JOBS_MAX} calls of this session wait: await some of them first")
        runtime = self._host.runtime
        job = _Job(work, runtime.future(), must, unheard, late, share)
        self._jobs.append(job)
        self._go()
        timer = None
        if timeout_s is not None:
            timer = runtime.call_later(max(0.0, timeout_s), self._give_up, job)
        try:
            result: T = await job.future
        except asyncio.CancelledError:
            self._left(job)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return result

    def later(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Have it done next, before all that waits; nobody waits for it."""
        if self._stopped:
            return
        future = self._host.runtime.future()
        future.cancel()
        self._jobs.appendleft(_Job(work, future, True))
        self._go()

    def fail_waiting(self, error: Exception) -> None:
        """Whoever waits for a turn gets this, except for what must be done."""
        for job in self._jobs:
            if not job.must:
                job.fail(error)

    def stop(self) -> None:
        """The node stops: nothing is decided here any more, and this decides nothing."""
        self._stopped = True
        for job in (*self._jobs, *self._current):
            job.give_up(Stopped("this node stops"))

    def _give_up(self, job: _Job) -> None:
        if not job.future.done():
            self._counters.add("detached")
            job.give_up(NotSent())

    def _left(self, job: _Job) -> None:
        """The caller was cancelled; perhaps at the very moment at which the result came."""
        self._counters.add("detached")
        future = job.future
        if future.done() and not future.cancelled() and future.exception() is None:
            unheard, result = job.unheard, future.result()
            if unheard is not None:
                self.later(lambda: unheard(result))

    # --- the work ---

    def retire(self) -> None:
        """There is little more to come: keep no task for it."""
        self._retired = True
        if self._parked is not None:
            self._working = True  # until it has ended, or a second task would begin beside it
            self._wake()

    def _go(self) -> None:
        if not self._working:
            self._working = True
            if self._parked is None:
                self._host.spawn(self._work(), "session").add_done_callback(self._over)
            else:
                self._wake()

    def _wake(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None and not parked.done():
            parked.set_result(None)

    async def _work(self) -> None:
        while True:
            while self._jobs:
                await self._next()
            self._working = False
            if self._retired:
                return
            self._parked = parked = self._host.runtime.future()
            if self._idle is not None:
                self._idle()
            await parked

    def _over(self, task: asyncio.Task[None]) -> None:
        """Its task was cancelled with the node, perhaps before its first step; or it is broken."""
        if task.cancelled() or task.exception() is not None:
            self.stop()

    async def _next(self) -> None:
        """Do the first job, with those behind it that are to be done as one."""
        job = self._jobs.popleft()
        if job.future.done() and not job.must:
            return
        jobs = [job]
        if job.share is not None:
            jobs += self._alike(job.share.kind)
        for one in jobs:
            one.begun = True
        self._current = jobs
        if len(jobs) == 1 or not await self._run_common(jobs):
            for one in jobs:
                await self._run(one)
        self._current = ()

    def _alike(self, kind: str) -> list[_Job]:
        jobs: list[_Job] = []
        while self._jobs and len(jobs) < SHARES_MAX:
            share = self._jobs[0].share
            if share is None or share.kind != kind:
                break
            job = self._jobs.popleft()
            if not job.future.done() or job.must:
                jobs.append(job)
        return jobs

    async def _run_common(self, jobs: Sequence[_Job]) -> bool:
        """Do them as one; False: that was refused, and nothing was done."""
        shares = [job.share for job in jobs if job.share is not None]
        try:
            results = await shares[0].common([share.part for share in shares])
        except Refused:
            return False
        except Exception as error:
            for job in jobs:
                job.fail(error)
            return True
        for job, result in zip(jobs, results, strict=True):
            if not job.future.done():
                job.future.set_result(result)
        return True

    async def _run(self, job: _Job) -> None:
        future = job.future
        try:
            result = await job.work()
            if not future.done():
                future.set_result(result)
            elif job.unheard is not None:
                await job.unheard(result)
        except Exception as error:
            if not future.done():
                job.fail(error)
            elif isinstance(error, RaftkvError):
                self._host.log.debug("txqueue: nobody heard of a %s", type(error).__name__)
            else:
                self._host.log.exception("txqueue: a command of a session failed")

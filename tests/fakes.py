"""A runtime whose clock, turns and disk thread move only when a test says so.

Nothing here runs by itself: `run` runs what is ready now, `advance` moves the clock from timer to
timer, and blocking work waits in `disk` until `finish_disk` runs it. So a test can look at a node
between the write of an entry and its sync.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, NamedTuple

from raftkv.testing.disk import SimDisk

# Callbacks in one `run`; more is a loop that feeds itself.
CALLBACKS_MAX = 100_000


class FakeTimer:
    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.callback = callback
        self.arguments = arguments
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop(asyncio.AbstractEventLoop):
    """What futures and tasks need of a loop."""

    def __init__(self) -> None:
        self.ready: deque[tuple[Callable[..., object], tuple[Any, ...], Context | None]] = deque()
        self.errors: list[dict[str, Any]] = []

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        self.ready.append((callback, args, context))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)


class Work(NamedTuple):
    """Blocking work that waits for its thread."""

    future: asyncio.Future[Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class FakeRuntime:
    """See the module's text."""

    def __init__(self, disk: SimDisk | None = None, seed: int = 1, now: float = 1000.0) -> None:
        self.files: Any = disk or SimDisk(random.Random(seed))
        self.rng = random.Random(seed)
        self.loop = FakeLoop()
        self.now = now
        self.wall = 1_700_000_000_000
        self.disk: deque[Work] = deque()
        self.bulk: deque[Work] = deque()
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._serial = 0
        # How often a timer was set, for tests of work.
        self.timers_set = 0

    # -- Runtime

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return self.wall

    def token(self, count: int) -> bytes:
        return self.rng.randbytes(count)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.loop.call_soon(callback, *args)

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> FakeTimer:
        timer = FakeTimer(callback, args)
        self._serial += 1
        self.timers_set += 1
        heapq.heappush(self._timers, (self.now + max(0.0, delay_s), self._serial, timer))
        return timer

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return asyncio.Task(coroutine, loop=self.loop, name=name)

    def future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.loop)

    def offload(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return self._queue(self.disk, function, args)

    def offload_bulk(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return self._queue(self.bulk, function, args)

    def _queue(
        self, queue: deque[Work], function: Callable[..., Any], args: tuple[Any, ...]
    ) -> asyncio.Future[Any]:
        work = Work(self.future(), function, args)
        queue.append(work)
        return work.future

    async def sleep(self, delay_s: float) -> None:
        future = self.future()
        self.call_later(delay_s, future.set_result, None)
        await future

    def close(self) -> None:
        """Nothing runs by itself, so there is nothing to end."""

    # -- what a test does

    def run(self) -> None:
        """Run what is ready, and what that makes ready. The clock stands still."""
        for _ in range(CALLBACKS_MAX):
            if not self.loop.ready:
                return
            callback, args, context = self.loop.ready.popleft()
            if context is None:
                callback(*args)
            else:
                context.run(callback, *args)
        raise AssertionError("callbacks go on for ever without the clock moving")

    def advance(self, seconds: float) -> None:
        """Move the clock, stopping at every timer on the way."""
        end = self.now + seconds
        self.run()
        while self._timers and self._timers[0][0] <= end:
            at, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                self.now = max(self.now, at)
                timer.callback(*timer.arguments)
                self.run()
        self.now = end

    def finish_disk(self, error: OSError | None = None) -> None:
        """The oldest blocking work ends; with `error` it fails without having been done."""
        self._finish(self.disk.popleft(), error)

    def finish_bulk(self) -> None:
        self._finish(self.bulk.popleft(), None)

    def _finish(self, work: Work, error: OSError | None) -> None:
        try:
            if error is not None:
                raise error
            result = work.function(*work.arguments)
        except Exception as raised:
            work.future.set_exception(raised)
        else:
            work.future.set_result(result)
        self.run()

    def settle(self) -> None:
        """Let turns, disk and bulk work go on until nothing is left to do at this instant."""
        self.run()
        while self.disk or self.bulk:
            if self.disk:
                self.finish_disk()
            else:
                self.finish_bulk()

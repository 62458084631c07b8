"""The bridge from threads to a private event loop.

Rules of this file
1. The loop runs in a thread of its own and nothing else runs anything on it. Any thread may call,
   several at once; the loop's own thread may not, for it would wait for itself.
2. A wait can be interrupted (Ctrl-C): the call is then cancelled on the loop, and the interrupt is
   raised. What was sent may still be applied, as with any call that is cut off.
3. No lock is ever held while anything else runs. So a signal handler may call an object in whose
   call its thread is, and a finalizer may run anywhere.
4. A call ends when the loop does, whatever ends the loop. `SystemExit` in a call is the caller's
   alone; one that is raised elsewhere on the loop ends it, after `ending` was done.
5. The thread is a daemon: a program that forgets to close ends all the same. To the cluster that
   looks like a crash of this client, or of this node. While the interpreter exits the thread does
   not run any more, and calls are refused.
6. A portal to which nothing refers any more ends its thread, with a ResourceWarning. So the thread
   must not refer to the portal.
7. A fork copies the memory but not the thread. A child that uses an object of its parent would
   wait for ever, so it is refused; it makes an object of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from raftkv.errors import Stopped, Timeout

__all__ = ["Portal"]

T = TypeVar("T")
Ending = Callable[[], Coroutine[Any, Any, None]]

# How long closing waits for what still runs on the loop.
CLOSE_S: Final = 10.0
# How long calls that wait may take to notice that their object is closed.
GRACE_S: Final = 1.0


class _Call(Generic[T]):
    """A coroutine on its way to the loop, and its outcome. One thread waits for it.

    A future of the standard library takes a lock to set its result. A signal handler that runs
    while the waiting thread holds that lock, and calls, would wait for a loop that waits for it.
    """

    __slots__ = ("_cancelled", "_coroutine", "_error", "_latch", "_over", "_result", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._latch = threading.Lock()
        self._latch.acquire()
        self._task: asyncio.Task[tuple[T | None, BaseException | None]] | None = None
        self._result: T | None = None
        self._error: BaseException | None = None
        self._over = self._cancelled = False

    def begin(self) -> None:
        """Start the coroutine. On the loop."""
        if self._cancelled:
            self.fail(Stopped("the call was cancelled"))
        elif not self._over:
            self._task = asyncio.get_running_loop().create_task(_carried(self._coroutine))
            self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        """End it; nothing waits for it any more. On the loop."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def fail(self, error: BaseException) -> None:
        """End it with an error, unless it has ended."""
        if self._over:
            return
        self._over = True
        if self._task is None:
            self._coroutine.close()
        self._error = error
        self._latch.release()

    def _done(self, task: asyncio.Task[tuple[T | None, BaseException | None]]) -> None:
        if task.cancelled():
            self.fail(
                Timeout(
                    "this object was closed while the call waited; it may have been carried out"
                )
            )
            return
        error = task.exception()
        if error is None:
            self._result, error = task.result()
        if error is not None:
            self.fail(error)
        elif not self._over:
            self._over = True
            self._latch.release()

    def wait(self) -> T:
        """Wait for the outcome. Raises what the coroutine raised."""
        self._latch.acquire()
        if self._error is None:
            return self._result  # type: ignore[return-value]
        try:
            raise self._error
        finally:
            self._error = None  # its traceback refers to this frame


class _LoopThread:
    """The loop and its thread, which do not refer to the portal."""

    def __init__(self, name: str, ending: Ending | None) -> None:
        self.closed = False
        self.loop = _new_loop()
        self._ending = ending
        self._calls: set[_Call[Any]] = set()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        call = _Call(coroutine)
        # Known first and the flag looked at then; the loop's end does it the other way round.
        self._calls.add(call)
        try:
            if self.closed or not self._soon(call.begin):
                call.fail(Stopped("this object is closed"))
            return call.wait()
        except BaseException:
            self._soon(call.cancel)
            raise
        finally:
            self._calls.discard(call)

    def stop(self) -> None:
        """End the loop, soon. Any thread may call this, and a finalizer anywhere."""
        self.closed = True
        self._soon(self.loop.stop)

    def _soon(self, callback: Callable[[], object]) -> bool:
        """Whether the loop still takes a callback."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False
        return True

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            # Something on the loop that is no call may raise SystemExit: it is the loop's end.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
            self.closed = True
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_until_complete(self._wind_up())
                loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            self.closed = True
            asyncio.set_event_loop(None)
            loop.close()
            for call in list(self._calls):
                call.fail(Stopped("this object is closed"))

    async def _wind_up(self) -> None:
        """Calls under way say themselves how they ended, now that their object is closed; those
        that have not after a while are cut off."""
        await asyncio.sleep(0)  # calls that were submitted before the end begin here
        if self._ending is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_S):
                    await self._ending()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=GRACE_S)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


class Portal:
    """An event loop in a thread. `close` ends both; it is harmless when they have ended.

    `ending` is done on the loop before it ends, whatever ends it: by `close`, by SystemExit, or
    because nothing refers to the portal any more.
    """

    def __init__(self, name: str, ending: Ending | None = None) -> None:
        self._pid = os.getpid()
        self._name = name
        self._inner = _LoopThread(name, ending)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for what it gives or raises.

        Raises Stopped when the loop does not run any more, Timeout when it ended meanwhile.
        """
        try:
            self._check()
        except BaseException:
            coroutine.close()
            raise
        return self._inner.call(coroutine)

    def run(self, function: Callable[[], T]) -> T:
        """Run a plain function on the loop."""

        async def turn() -> T:
            return function()

        return self.call(turn())

    def finish(self, ending: Ending) -> None:
        """Run a last coroutine, then `close`. Nothing if it is closed, or cannot be any more."""
        if self._inner.closed or not self._is_ours():
            return
        try:
            with contextlib.suppress(Stopped):  # another thread, or a signal handler, was first
                self.call(ending())
        finally:
            self.close()

    def close(self) -> None:
        """Cancel what runs, end the loop and its thread."""
        inner = self._inner
        if not self._is_ours() or threading.current_thread() is inner.thread:
            return
        if not inner.closed:
            inner.stop()
            inner.thread.join(CLOSE_S)

    def __del__(self) -> None:
        inner: _LoopThread | None = self.__dict__.get("_inner")
        if inner is not None and not inner.closed and self._is_ours():
            text = f"the {self._name} was not closed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            inner.stop()

    # The function is kept as a default: at exit the names of this module may be gone.
    def _is_ours(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> bool:
        """Whether the thread can run: this process has it, and the interpreter does not exit."""
        return not is_finalizing() and os.getpid() == self._pid

    def _check(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():
            raise Stopped("the interpreter exits: this object cannot be used any more")
        if os.getpid() != self._pid:
            raise Stopped("a forked process cannot use its parent's object: make one of its own")
        if threading.current_thread() is self._inner.thread:
            raise RuntimeError("a call from the loop's own thread would wait for itself")


async def _carried(coroutine: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """The result, or an exception that would end the loop: it is for the caller's thread."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made

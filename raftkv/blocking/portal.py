"""The bridge from threads to a private event loop.

Rules of this file
1. The loop runs in a thread of its own and nobody else runs anything on it. Any thread may call,
   several at once; the loop's own thread may not, for it would wait for itself.
2. Whoever waits can be interrupted (Ctrl-C): the call is then cancelled on the loop, and the
   interrupt goes on. What was sent may still be applied, as with any call that is cut off.
3. The thread is a daemon: a program that forgets to close ends all the same. To the cluster that
   looks like a crash of this client, or of this node, which is something that it survives.
4. A fork copies the memory but not the thread. A child that uses an object of its parent would
   wait for ever, so it is refused; it makes a client of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from raftkv.errors import Stopped, Timeout

__all__ = ["Portal"]

T = TypeVar("T")

# How long closing waits for what still runs on the loop.
CLOSE_S: Final = 10.0
# How long calls that wait may take to notice that their object is closed.
GRACE_S: Final = 1.0


class Portal:
    """An event loop in a thread. `close` ends both; it is harmless when they have ended."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for what it gives or raises."""
        try:
            self._check()
            with self._lock:
                if self._closed:
                    raise Stopped("this object is closed")
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Timeout(
                "this object was closed while the call waited; it may have been carried out"
            ) from None
        except BaseException:
            future.cancel()
            raise

    def run(self, function: Callable[[], T]) -> T:
        """Run a plain function on the loop."""

        async def turn() -> T:
            return function()

        return self.call(turn())

    def finish(self, ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a last coroutine, then `close`. Nothing if it is closed, or another process's."""
        if self._closed or os.getpid() != self._pid:
            return
        try:
            self.call(ending())
        finally:
            self.close()

    def close(self) -> None:
        """Cancel what runs, end the loop and its thread."""
        if os.getpid() != self._pid or threading.current_thread() is self._thread:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise Stopped("a forked process cannot use its parent's object: make one of its own")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a call from the loop's own thread would wait for itself")

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            # Something on the loop may raise SystemExit. Who called it is told; and nobody must
            # wait for this loop any more.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
            with self._lock:
                self._closed = True
            loop.run_until_complete(_end(asyncio.all_tasks(loop)))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    """Calls under way say themselves how they ended, now that their object is closed; whoever has
    not after a while is cut off."""
    if tasks:
        _, left = await asyncio.wait(tasks, timeout=GRACE_S)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made

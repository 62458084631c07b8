"""Holding something until a signal, the end of a command, or its loss: for `lock` and `elect`.

SIGINT and SIGTERM end what this command does, not the process at once: what is held is given back
first, so that the next one need not wait for the lease to run out. A command that runs meanwhile
gets the signal and is waited for; whoever wants it gone at once kills it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from raftkv.errors import LockLost

from .running import exit_code, start

if TYPE_CHECKING:
    from raftkv.recipes import Session

__all__ = ["Signals", "hold"]

T = TypeVar("T")

# A command gets so long to end by itself once the lock is lost; then it is killed.
LOST_PATIENCE_S: Final = 10.0


class Signals:
    """SIGINT and SIGTERM, once they come: `number` is the latest."""

    def __init__(self) -> None:
        self.number = 0
        self._arrived = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def caught(cls) -> AsyncIterator[Signals]:
        """Catch them for as long as the context lasts."""
        loop = asyncio.get_running_loop()
        signals = cls()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, signals._catch, number)
        try:
            yield signals
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _catch(self, number: int) -> None:
        self.number = number
        self._arrived.set()

    async def next(self) -> int:
        """Wait for a signal that was not taken yet."""
        await self._arrived.wait()
        self._arrived.clear()
        return self.number

    async def unless(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None if a signal came first, and `work` was cancelled."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self.next())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if task.done() and stop.done():
                self._arrived.set()  # not taken: whoever waits next is told
            return task.result() if task.done() else None
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.wait((task, stop))

    @property
    def code(self) -> int:
        """The exit code of a command that was ended by the signal."""
        return 128 + self.number


async def hold(
    session: Session,
    signals: Signals,
    command: Sequence[str] | None,
    environment: Mapping[bytes, bytes],
) -> int:
    """Hold until a signal, or while `command` runs; the exit code. Raises `LockLost`."""
    if command is None:
        lost = session.lost
        await signals.unless(_done(lost))
        session.check()
        return 0
    child = await start(command, environment)
    try:
        return await _accompany(session, signals, child)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def _accompany(session: Session, signals: Signals, child: asyncio.subprocess.Process) -> int:
    ended = asyncio.ensure_future(child.wait())
    lost = session.lost
    stop = asyncio.ensure_future(signals.next())
    try:
        while True:
            await asyncio.wait((ended, lost, stop), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return exit_code(ended.result())
            if lost.done():
                child.terminate()
                await asyncio.wait((ended,), timeout=LOST_PATIENCE_S)
                raise LockLost("the lease was lost while the command ran, which was ended")
            _forward(stop.result(), child)
            stop = asyncio.ensure_future(signals.next())
    finally:
        for each in (ended, stop, lost):
            each.cancel()


def _forward(number: int, child: asyncio.subprocess.Process) -> None:
    if number == signal.SIGINT and os.isatty(sys.stdin.fileno()):
        return  # Ctrl-C has reached the child as well
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


async def _done(future: asyncio.Future[None]) -> None:
    await asyncio.wait((future,))

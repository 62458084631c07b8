"""Holding something until a signal, the end of a command, or its loss: for `lock` and `elect`.

SIGINT, SIGTERM, SIGHUP and SIGQUIT end what this command does, not the process at once: what is
held is given back first, so that the next one need not wait for the lease to run out. While a
command runs, these and SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP and SIGWINCH go to all its processes
(command_group.py), and the command is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from raftkv.errors import LockLost

if TYPE_CHECKING:
    from raftkv.recipes import Session

    from .command_group import CommandGroup

__all__ = ["Signals", "hold"]

T = TypeVar("T")

# A command gets so long to end by itself once the lock is lost; then it is killed.
LOST_PATIENCE_S: Final = 10.0
# What ends the command line's own work, and what is for a command only. SIGUSR1 and SIGUSR2 would
# end this process before the command runs.
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
OF_COMMANDS: Final = (signal.SIGUSR1, signal.SIGUSR2)
WHILE_IT_RUNS: Final = (signal.SIGCONT, signal.SIGTSTP, signal.SIGWINCH)


class Signals:
    """Signals that end the work, once they come: `number` is the latest."""

    def __init__(self) -> None:
        self.number = 0
        self._arrived = asyncio.Event()
        # Set while a command runs: it gets every signal at once, in the order of arrival.
        self._forward: Callable[[int], None] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def caught(cls, *, command: bool = False) -> AsyncIterator[Signals]:
        """Catch them for as long as the context lasts; with `command` those for one, too.

        SIGHUP and SIGQUIT stay ignored where the process was started so (nohup).
        """
        signals = cls()
        kept = [
            number
            for number in (signal.SIGHUP, signal.SIGQUIT)
            if signal.getsignal(number) is signal.SIG_IGN
        ]
        numbers = [number for number in ENDING if number not in kept]
        with signals._handling([*numbers, *(OF_COMMANDS if command else ())]):
            yield signals

    @contextlib.contextmanager
    def _handling(self, numbers: Sequence[int]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in numbers:
            loop.add_signal_handler(number, self._catch, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    @contextlib.contextmanager
    def forwarded(self, forward: Callable[[int], None]) -> Iterator[None]:
        """Every signal goes to `forward`, for as long as the context lasts."""
        with self._handling(WHILE_IT_RUNS):
            self._forward = forward
            if self._arrived.is_set():  # after the command was started, before this line
                self._arrived.clear()
                forward(self.number)
            try:
                yield
            finally:
                self._forward = None

    def _catch(self, number: int) -> None:
        if self._forward is not None:
            self._forward(number)
        elif number in ENDING:
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
                self._arrived.set()  # not taken: the next waiter gets it
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
    from .command_group import CommandGroup

    group = await CommandGroup.started(command, environment)
    try:
        return await _accompany(session, signals, group)
    finally:
        if not group.ended.done():
            await group.end(0)
        group.give_back()


async def _accompany(session: Session, signals: Signals, group: CommandGroup) -> int:
    """Wait for the end of the command, or of the lock, which ends the command."""
    lost = session.lost

    def forward(number: int) -> None:
        if number != signal.SIGCONT:
            group.send(number)
        elif not session.is_lost:  # it may have run out while this process was stopped
            group.resume()

    def child_changed() -> None:
        if group.has_stopped():
            group.stop_with_it()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, child_changed)
    try:
        with signals.forwarded(forward):
            child_changed()  # it may have stopped before the handler was there
            await asyncio.wait((group.ended, lost), return_when=asyncio.FIRST_COMPLETED)
            if group.ended.done():
                return group.code
            await group.end(LOST_PATIENCE_S)
            raise LockLost("the lease was lost while the command ran, which was ended")
    finally:
        loop.remove_signal_handler(signal.SIGCHLD)
        lost.cancel()


async def _done(future: asyncio.Future[None]) -> None:
    await asyncio.wait((future,))

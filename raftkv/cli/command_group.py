"""The command of `raftkv lock NAME -- COMMAND`, with all its processes, as one process group.

The group is what signals go to, what has the terminal, and what ends with the lock: a command is
often a shell, whose children would outlive it.

- The direct child ends with this process, also by SIGKILL (PR_SET_PDEATHSIG, Linux). The kernel
  does this for no further process of the group, and not for a child that changes its user.
- At a terminal the group runs in the foreground, so that Ctrl-C, Ctrl-\\, Ctrl-Z and changes of the
  window reach it. When the command stops there, this process stops too: the shell then shows one
  stopped job. `fg` continues both, the command last, and only if the lock is still held.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from .running import exit_code, start

__all__ = ["CommandGroup"]

_PR_SET_PDEATHSIG: Final = 1
# Between two looks at whether processes of the group are left.
POLL_S: Final = 0.05


class CommandGroup:
    """A started command: made by `started`."""

    def __init__(self, child: asyncio.subprocess.Process, terminal: int | None) -> None:
        self._child = child
        self._terminal = terminal
        self.ended: asyncio.Future[int] = asyncio.ensure_future(child.wait())

    @classmethod
    async def started(
        cls, command: Sequence[str], environment: Mapping[bytes, bytes]
    ) -> CommandGroup:
        """Start the command in a process group of its own. Raises as `running.start`."""
        terminal = _foreground_terminal()
        child = await start(command, environment, of_child=_preparation(terminal))
        return cls(child, terminal)

    @property
    def code(self) -> int:
        """The exit code of the command, which has ended, as a shell gives it."""
        return exit_code(self.ended.result())

    def send(self, number: int) -> None:
        """Send a signal to every process of the group; nothing happens if none is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)

    async def end(self, patience_s: float) -> None:
        """SIGTERM to the whole group; SIGKILL to what is left of it after `patience_s`."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a stopped process would not end
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self._is_left():  # noqa: ASYNC110 - the kernel tells of no group's end
                    await asyncio.sleep(POLL_S)
        self.send(signal.SIGKILL)
        await asyncio.wait((self.ended,))

    def _is_left(self) -> bool:
        """Whether a process of the group runs. One that has ended and was not waited for counts."""
        if not self.ended.done():
            return True
        try:
            os.killpg(self._child.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # a process of another user
        return True

    def has_stopped(self) -> bool:
        """Whether the child was stopped (Ctrl-Z, SIGTSTP) since the last call."""
        try:
            found = os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:
            return False  # it has ended
        return found is not None

    def stop_with_it(self) -> None:
        """Stop this process at its terminal, as the command has; returns once it is continued.

        The caller continues the command with `resume`.
        """
        if self._terminal is None:
            return
        self.give_back()
        # The whole job: what a pipeline or a script runs beside this process, too.
        os.killpg(os.getpgrp(), signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the command, in the foreground if this process is there."""
        if self._terminal is not None and _is_foreground(self._terminal):
            with _unstopped(), contextlib.suppress(OSError):
                os.tcsetpgrp(self._terminal, self._child.pid)
        self.send(signal.SIGCONT)

    def give_back(self) -> None:
        """Take the terminal from the command's group, for the shell and for messages."""
        if self._terminal is not None:
            with _unstopped(), contextlib.suppress(OSError):
                if os.tcgetpgrp(self._terminal) == self._child.pid:
                    os.tcsetpgrp(self._terminal, os.getpgrp())


def _foreground_terminal() -> int | None:
    """The descriptor of the terminal in whose foreground this process runs, or None."""
    for stream in (sys.stdin, sys.stderr, sys.stdout):
        with contextlib.suppress(OSError, ValueError):
            if os.isatty(stream.fileno()) and _is_foreground(stream.fileno()):
                return stream.fileno()
    return None


def _is_foreground(terminal: int) -> bool:
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False  # not this session's terminal


@contextlib.contextmanager
def _unstopped() -> Iterator[None]:
    """A process in the background may change the foreground only while it ignores SIGTTOU."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTTOU, before)


def _preparation(terminal: int | None) -> Callable[[], None]:
    """What the child does between fork and exec, already in its own group."""
    prctl: Any = None
    if sys.platform.startswith("linux"):
        prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def prepare() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)  # the parent has ended before
        if terminal is not None:
            with _unstopped():
                os.tcsetpgrp(terminal, os.getpgrp())

    return prepare

"""Processes that are started for a measurement, with all that they start, and nothing else.

A child is ended by its own id. What it has started itself may be in another session, may have lost
its parent, and goes on for a moment when the child has gone (Erlang's helpers end once they see
that a pipe is closed). Such a process is known by a word in its environment, which it has from the
child and which nobody else on this machine has.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["Children", "cpu_seconds"]

STOP_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.01
_MARK: Final = "RAFTKV_BENCH_CHILDREN"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG: Final = 1


class Children:
    """Named child processes that write their logs to `directory`; a context that ends them all.

    They die with this process, too, if it is killed: what was started for a measurement must not
    go on using the machine. (So start them from a thread that lives as long as they should.)
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._mark = secrets.token_hex(16)

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """`env`, or this process's own, with the word by which `stop` knows descendants."""
        return {**(os.environ if env is None else env), _MARK: self._mark}

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start it, in a session of its own, so that Ctrl-C is ours to act upon."""
        with open(self.log(name), "ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.environment(env), start_new_session=True, preexec_fn=_die_with_parent,
            )  # fmt: skip
        self._processes[name] = process
        return process

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The last line that it wrote."""
        with contextlib.suppress(OSError):
            lines = self.log(name).read_text("utf-8", "replace").strip().splitlines()
            if lines:
                return lines[-1]
        return "(nothing in its log)"

    def ended(self) -> str | None:
        """The name of one that is no longer running."""
        gone = (name for name, process in self._processes.items() if process.poll() is not None)
        return next(gone, None)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values() if process.poll() is None]

    def kill(self, name: str) -> None:
        """SIGKILL; it is gone, and may be started anew, when this returns."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End all: first politely. What they have started is gone, too, when this returns."""
        running = [each for each in self._processes.values() if each.poll() is None]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        self._end_descendants()

    def _end_descendants(self) -> None:
        """Most end by themselves once their parent has gone; whoever does not is killed.

        Looks twice, for a program that is just being loaded has no environment for a moment.
        """
        until = time.monotonic() + STOP_TIMEOUT_S
        word = f"{_MARK}={self._mark}".encode()
        seen_none = 0
        while seen_none < 2:
            left = list(_with_environment(word))
            seen_none = 0 if left else seen_none + 1
            if time.monotonic() > until:
                for pid in left:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_S)


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _with_environment(word: bytes) -> Iterator[int]:
    """Running processes that were started with this variable; a zombie has no environment."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with contextlib.suppress(OSError):
                    if word in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                        yield int(name)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time that these processes have used since they began; those gone count nothing."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S

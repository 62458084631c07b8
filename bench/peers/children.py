"""Processes that are started for a measurement, and nothing else: ended by their own id only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["Children", "cpu_seconds"]

STOP_TIMEOUT_S: Final = 5.0
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

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start it, in a session of its own, so that Ctrl-C is ours to act upon."""
        with open(self.log(name), "ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                start_new_session=True, preexec_fn=_die_with_parent,
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
        """End all: first politely."""
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


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time that these processes have used since they began; those gone count nothing."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S

"""What stands between a process and its disk: a dead process writes nothing.

A crash can fall between two operations of one function in the worker thread (written but not
synced, synced but not renamed), or of one on the loop (recovery, founding, joining). `doom`
arranges that: after so many more changing operations every operation raises `PowerFailure`.
Whatever the function still does in memory is of no consequence, because its process is dead by
then.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Literal

from raftkv.runtime import File, Files, Lock, Space
from raftkv.testing.process import Process

__all__ = ["Gate", "PowerFailure"]


class PowerFailure(OSError):
    """The process that tried this is dead."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the process is dead")


class Gate:
    """`Files` for one process, in front of the host's disk."""

    def __init__(self, files: Files, process: Process) -> None:
        self._files = files
        self._process = process
        self._changes_left: int | None = None
        self._strike: Callable[[], None] | None = None
        self._locks: list[Lock] = []

    def doom(self, changes: int, strike: Callable[[], None] | None = None) -> None:
        """Let `changes` more changing operations pass, then none at all.

        `strike` is called in place of the first that does not pass; it ends the process.
        """
        self._changes_left = changes
        self._strike = strike

    def spare(self) -> None:
        """Take a `doom` back that has not struck."""
        if self._process.alive:
            self._changes_left = None
            self._strike = None

    def kill(self) -> None:
        """The process is gone: the operating system releases its locks."""
        self._changes_left = 0
        self._strike = None
        for lock in self._locks:
            with contextlib.suppress(OSError):
                lock.release()
        self._locks.clear()

    def check(self, *, changes: bool) -> None:
        if changes and self._changes_left == 0 and self._strike is not None:
            strike, self._strike = self._strike, None
            strike()
        if not self._process.alive or (self._changes_left == 0 and self._strike is None):
            raise PowerFailure
        if changes and self._changes_left is not None:
            self._changes_left -= 1

    def makedirs(self, path: str) -> None:
        self.check(changes=True)
        self._files.makedirs(path)

    def listdir(self, path: str) -> list[str]:
        self.check(changes=False)
        return self._files.listdir(path)

    def exists(self, path: str) -> bool:
        self.check(changes=False)
        return self._files.exists(path)

    def open(self, path: str, mode: Literal["r", "a", "w"]) -> GatedFile:
        self.check(changes=mode != "r")
        return GatedFile(self._files.open(path, mode), self)

    def rename(self, source: str, target: str) -> None:
        self.check(changes=True)
        self._files.rename(source, target)

    def remove(self, path: str) -> None:
        self.check(changes=True)
        self._files.remove(path)

    def sync_dir(self, path: str) -> None:
        self.check(changes=True)
        self._files.sync_dir(path)

    def space(self, path: str) -> Space:
        self.check(changes=False)
        return self._files.space(path)

    def lock(self, path: str) -> Lock:
        self.check(changes=True)
        lock = self._files.lock(path)
        self._locks.append(lock)
        return lock


class GatedFile:
    """`File` for one process."""

    __slots__ = ("_file", "_gate")

    def __init__(self, file: File, gate: Gate) -> None:
        self._file = file
        self._gate = gate

    def write(self, data: bytes) -> None:
        self._gate.check(changes=True)
        self._file.write(data)

    def pread(self, offset: int, count: int) -> bytes:
        self._gate.check(changes=False)
        return self._file.pread(offset, count)

    def truncate(self, size: int) -> None:
        self._gate.check(changes=True)
        self._file.truncate(size)

    def datasync(self) -> None:
        self._gate.check(changes=True)
        self._file.datasync()

    def size(self) -> int:
        self._gate.check(changes=False)
        return self._file.size()

    def close(self) -> None:
        # Closing never fails: `finally` blocks of dead tasks do it.
        self._file.close()

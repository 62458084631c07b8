"""A disk that can fail: the files of a node, with faults on order and books for a power cut.

Rules of this file.

1. It is the operating system's own disk (`raftkv.runtime.OsFiles`) as long as no fault is ordered:
   every write is written and every sync is synced.
2. Faults are ordered through a control file outside the node's directory, which is looked at before
   every operation: so they work from the first moment of a process, and need no thread or signal.
   Whenever one strikes, a line is appended to the *strikes* file: the proof that it did happen.
3. kill -9 takes nothing from a disk, because the kernel keeps what was written. To cut the power,
   somebody must know what had been synced. So this layer keeps books, in a directory of their own:
   for each file the length that was synced, and for each directory what was done in it since its
   last sync, old content kept aside by a hard link. The books need no sync: they too are only to
   survive the death of the process. `power.py` reads them.

What is ugly: a truncation counts as durable at once. A disk may bring back what was cut off; the
simulated disk (raftkv.testing.disk) does.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
from typing import Any, Literal

import msgspec

from raftkv.runtime import File, Lock, OsFiles

__all__ = ["Books", "DirectoryChange", "FaultyFiles", "Order", "Strike"]

_encode = msgspec.json.Encoder().encode


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the control file holds. Without the file the disk is sound.

    `fsync`: "error" lets the next syncs fail with EIO; "slow" holds each for `delay_s`. `write`:
    "error" lets the next writes fail with EIO; "full" writes half and then fails with ENOSPC.
    """

    fsync: Literal["", "error", "slow"] = ""
    write: Literal["", "error", "full"] = ""
    delay_s: float = 0.0


class Strike(msgspec.Struct, frozen=True):
    """A fault has met an operation of the node. `at` is on the system's monotonic clock."""

    at: float
    what: str
    path: str


class DirectoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """Something done in a directory that is not synced yet, or (`sync`) that sync.

    `aside` keeps, as a hard link, what a rename replaced or a removal removed.
    """

    kind: Literal["create", "rename", "remove", "sync"]
    path: str
    source: str = ""
    aside: str = ""


class Books:
    """What would survive a power cut. Paths are absolute; `directory` is outside the node's own."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lengths = os.path.join(directory, "lengths")
        self._aside = os.path.join(directory, "aside")
        os.makedirs(self._lengths, exist_ok=True)
        os.makedirs(self._aside, exist_ok=True)
        self._numbers = itertools.count(time.monotonic_ns())
        self._kept: dict[str, list[str]] = {}
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._changes = os.open(self.changes_path, flags, 0o600)

    @property
    def changes_path(self) -> str:
        return os.path.join(self._directory, "changes")

    def length_path(self, path: str) -> str:
        return os.path.join(self._lengths, path.replace("%", "%25").replace("/", "%2f"))

    def synced(self, path: str, size: int) -> None:
        """Everything up to `size` is on the disk now."""
        fd = os.open(self.length_path(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # One write of a fixed length and no truncation: kill -9 may come between two calls.
            os.pwrite(fd, b"%016d" % size, 0)
        finally:
            os.close(fd)

    def synced_size(self, path: str) -> int | None:
        """What is known to be on the disk; None for a file from before the books."""
        try:
            with open(self.length_path(path), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        return int(content) if content else None

    def forget(self, path: str) -> None:
        if os.path.exists(self.length_path(path)):
            os.remove(self.length_path(path))

    def moved(self, source: str, target: str) -> None:
        if os.path.exists(self.length_path(source)):
            os.replace(self.length_path(source), self.length_path(target))

    def keep_aside(self, path: str) -> str:
        """A second name for what stands at `path`; empty if nothing does."""
        if not os.path.exists(path):
            return ""
        aside = os.path.join(self._aside, str(next(self._numbers)))
        os.link(path, aside)
        self.moved(path, aside)
        self._kept.setdefault(os.path.dirname(path), []).append(aside)
        return aside

    def note(self, change: DirectoryChange) -> None:
        os.write(self._changes, _encode(change) + b"\n")
        if change.kind == "sync":
            for aside in self._kept.pop(change.path, ()):
                os.remove(aside)
                self.forget(aside)

    def pending(self) -> list[DirectoryChange]:
        """What has been done in directories since each one's last sync, oldest first."""
        pending: list[DirectoryChange] = []
        with open(self.changes_path, "rb") as file:
            for line in file:
                change = msgspec.json.decode(line, type=DirectoryChange)
                if change.kind == "sync":
                    pending = [one for one in pending if os.path.dirname(one.path) != change.path]
                else:
                    pending.append(change)
        return pending

    def start_over(self) -> None:
        """Everything that stands on the disk now is synced."""
        os.truncate(self.changes_path, 0)
        for folder in (self._lengths, self._aside):
            for name in os.listdir(folder):
                os.remove(os.path.join(folder, name))

    def close(self) -> None:
        os.close(self._changes)


class FaultyFiles(OsFiles):
    """The files of one node: faults by the control file, strikes noted, books kept."""

    def __init__(self, control: str, strikes: str, books: Books | None) -> None:
        self._control = control
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._strikes = os.open(strikes, flags, 0o600)
        self._books = books
        self._seen: tuple[int, int] | None = None
        self._order = Order()

    def order(self) -> Order:
        """The faults that are ordered now."""
        try:
            found = os.stat(self._control)
        except FileNotFoundError:
            self._seen, self._order = None, Order()
            return self._order
        # The file is replaced by a rename, so another content is another file.
        stamp = found.st_ino, found.st_mtime_ns
        if stamp != self._seen:
            with open(self._control, "rb") as file:
                self._order = msgspec.json.decode(file.read(), type=Order)
            self._seen = stamp
        return self._order

    def strike(self, what: str, path: str) -> None:
        os.write(self._strikes, _encode(Strike(time.monotonic(), what, path)) + b"\n")

    def open(self, path: str, mode: Literal["r", "a", "w"]) -> Any:
        path = os.path.abspath(path)
        books = self._books
        new = mode != "r" and not os.path.exists(path)
        if new and books is not None:
            books.note(DirectoryChange(kind="create", path=path))
            books.synced(path, 0)
        elif mode == "w" and books is not None:
            books.synced(path, 0)
        # A file that is open for reading can be synced, too; recovery does.
        return FaultyFile(self, super().open(path, mode), path, books)

    def rename(self, source: str, target: str) -> None:
        source, target = os.path.abspath(source), os.path.abspath(target)
        if self._books is not None:
            aside = self._books.keep_aside(target)
            self._books.note(
                DirectoryChange(kind="rename", path=target, source=source, aside=aside)
            )
        super().rename(source, target)
        if self._books is not None:
            self._books.moved(source, target)

    def remove(self, path: str) -> None:
        path = os.path.abspath(path)
        if self._books is not None:
            aside = self._books.keep_aside(path)
            self._books.note(DirectoryChange(kind="remove", path=path, aside=aside))
        super().remove(path)

    def sync_dir(self, path: str) -> None:
        path = os.path.abspath(path)
        self.before_sync(path)
        super().sync_dir(path)
        if self._books is not None:
            self._books.note(DirectoryChange(kind="sync", path=path))

    def lock(self, path: str) -> Any:
        lock: Lock = super().lock(path)
        return lock

    def before_sync(self, path: str) -> None:
        """Let an ordered fault strike a sync."""
        order = self.order()
        if order.fsync == "error":
            self.strike("fsync", path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if order.fsync == "slow":
            self.strike("slow", path)
            time.sleep(order.delay_s)


class FaultyFile:
    """An open file of a `FaultyFiles`."""

    def __init__(self, files: FaultyFiles, file: File, path: str, books: Books | None) -> None:
        self._files = files
        self._file = file
        self._path = path
        self._books = books

    def write(self, data: bytes) -> None:
        order = self._files.order()
        if order.write == "full":
            self._files.strike("full", self._path)
            self._file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        if order.write == "error":
            self._files.strike("write", self._path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        self._file.write(data)

    def pread(self, offset: int, count: int) -> bytes:
        return self._file.pread(offset, count)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)
        if self._books is not None:
            known = self._books.synced_size(self._path)
            self._books.synced(self._path, size if known is None else min(known, size))

    def datasync(self) -> None:
        # What is written while the sync runs is not promised by it.
        size = self._file.size()
        self._files.before_sync(self._path)
        self._file.datasync()
        if self._books is not None:
            self._books.synced(self._path, size)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()

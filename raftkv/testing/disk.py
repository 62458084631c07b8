"""A disk in memory that forgets what was not synced, as a real one does when the power fails.

Rules of this file: deterministic from the generator it was given; as unkind as POSIX permits, not
as kind as one file system happens to be.

Theory. Every file exists twice: as processes see it, and as it is on the platter. `datasync` brings
the content over, `sync_dir` the names in a directory; nothing else does. In a `crash` each unsynced
change may have reached the platter or not:

- Content: some of the unsynced writes, in order. The last of them may be cut at a sector (now and
  then inside one), and any sector that it touched may still hold what was there before, which
  behind the old end of the file is zeros. A sector is old or new, never half of each.
- Names: creations, renames and removals of a directory, sometimes in order up to a point, sometimes
  any subset. A file whose creation was lost is gone although its content was synced.
- Locks vanish, and files that were open before the crash are dead.

A failed `datasync` is as treacherous as Linux's: what it should have written stays visible, counts
as clean, and no later `datasync` brings it over.
"""

from __future__ import annotations

import errno
import posixpath
import random
from typing import Literal, NamedTuple

from raftkv.runtime import Space

__all__ = ["SECTOR_BYTES", "SimDisk"]

SECTOR_BYTES = 512
# A volume without any fault: no simulated run comes near its end.
SPACE = Space(1 << 40, 1 << 40)
# What files of snapshots are called while they are written.
SNAPSHOT_SUFFIX = ".tmp"


class _Inode:
    """The content of a file, whatever its name."""

    __slots__ = ("platter", "unreadable", "unsynced", "view")

    def __init__(self) -> None:
        self.unreadable: list[int] = []  # sectors
        self.view = bytearray()
        self.platter = bytearray()
        self.unsynced: list[_Write | int] = []  # an int is the size of a truncation

    def change(self, change: _Write | int) -> None:
        _apply(self.view, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.platter, change)
        self.unsynced.clear()

    def crash(self, rng: random.Random) -> None:
        kept = self.unsynced[: rng.randint(0, len(self.unsynced))]
        old = bytes(self.platter)
        for change in kept:
            _apply(self.platter, change)
        writes = [change for change in kept if isinstance(change, _Write)]
        if writes and len(self.platter) >= len(old):
            self.platter = _torn(old, self.platter, min(w.offset for w in writes), rng)
        self.view = bytearray(self.platter)
        self.unsynced.clear()


class _Write(NamedTuple):
    offset: int
    data: bytes


class _Name(NamedTuple):
    """A change of a directory: `path` now means `inode`, or nothing; a rename frees `source`."""

    path: str
    inode: _Inode | None
    source: str | None = None


def _apply(content: bytearray, change: _Write | int) -> None:
    if isinstance(change, int):
        del content[change:]
        content.extend(bytes(change - len(content)))
        return
    content.extend(bytes(max(0, change.offset - len(content))))
    content[change.offset : change.offset + len(change.data)] = change.data


def _torn(old: bytes, new: bytearray, first: int, rng: random.Random) -> bytearray:
    """What an unfinished write from offset `first` on leaves of `new` on a disk that held `old`."""
    sectors = range(first // SECTOR_BYTES, -(-len(new) // SECTOR_BYTES))
    cut = len(new)
    match rng.randrange(4):
        case 0:
            cut = rng.randint(sectors.start, sectors.stop) * SECTOR_BYTES
        case 1:
            cut = rng.randint(len(old), len(new))
    new = new[: max(cut, len(old))]
    if rng.random() < 0.5:
        chance = rng.random()
        for sector in sectors:
            start, stop = sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, len(new))
            if start < stop and rng.random() < chance:
                new[start:stop] = old[start:stop].ljust(stop - start, b"\0")
    return new


def _rename(names: dict[str, _Inode], change: _Name) -> None:
    if change.source is not None and names.get(change.source) is change.inode:
        del names[change.source]
    if change.inode is None:
        names.pop(change.path, None)
    else:
        names[change.path] = change.inode


class SimDisk:
    """`Files` of one simulated machine. Outlives its processes; `crash` is a power failure.

    Faults, to be switched on and off at will: `fail_writes` (the disk is full: a part of the data
    is written, then ENOSPC), `fail_snapshots` (it is full for snapshots only: what is written under
    their temporary names meets ENOSPC), `fail_syncs` and `fail_reads` (EIO), `flip_bit`,
    `lose_sector`, and `changes_left` (after so many more changing operations every further one
    raises EIO, for a crash at a chosen point). `platters` and `roll_back` put the disk back to what
    it held some time ago, as a copy of a machine's image does.
    """

    def __init__(self, rng: random.Random) -> None:
        self.fail_writes = False
        self.fail_syncs = False
        self.fail_reads = False
        self.fail_snapshots = False
        # What `space` tells meanwhile, for directories of snapshots and for others. A quota is not
        # seen by it.
        self.space_of_snapshots = self.space_of_log = SPACE
        self.changes_left: int | None = None
        self.changes_total = 0
        self.writes_total = 0
        self.syncs_total = 0
        # How often a fault that was switched on has struck, and how often a read was refused; those
        # of snapshots by themselves, because no program may stop over them.
        self.failures_total = 0
        self.read_failures_total = 0
        self.snapshot_failures_total = 0
        self.epoch = 0  # the number of crashes
        self._rng = rng
        self._directories = {"/", "."}
        self._names: dict[str, _Inode] = {}
        self._platter_names: dict[str, _Inode] = {}
        self._unsynced: dict[str, list[_Name]] = {}
        self._locks: dict[str, _SimLock] = {}

    # Faults --------------------------------------------------------------------------------------

    def crash(self) -> None:
        """The power fails: what was not synced is lost, whole or in part."""
        for directory in sorted(self._unsynced):
            changes = self._unsynced[directory]
            if self._rng.random() < 0.5:
                survivors = changes[: self._rng.randint(0, len(changes))]
            else:
                survivors = [change for change in changes if self._rng.random() < 0.5]
            for change in survivors:
                _rename(self._platter_names, change)
        self._unsynced.clear()
        self._names = dict(self._platter_names)
        for path in sorted(self._names):
            self._names[path].crash(self._rng)
        self._locks.clear()
        self.changes_left = None
        self.epoch += 1

    def wipe(self) -> None:
        """The machine got an empty disk; only while nothing runs on it."""
        self._names.clear()
        self._platter_names.clear()
        self._unsynced.clear()
        self._locks.clear()
        self._directories = {"/", "."}
        self.epoch += 1

    def flip_bit(self, path: str, offset: int, bit: int | None = None) -> None:
        """Damage the byte at `offset` for good; any bit of it unless `bit` (0 to 7) is given."""
        inode = self._inode(path)
        mask = 1 << (self._rng.randrange(8) if bit is None else bit)
        inode.view[offset] ^= mask
        if offset < len(inode.platter):
            inode.platter[offset] ^= mask

    def unflip_bit(self, path: str, offset: int, bit: int) -> None:
        """Take back a `flip_bit` of the same three, if the file still exists."""
        if posixpath.normpath(path) in self._names:
            self.flip_bit(path, offset, bit)

    def lose_sector(self, path: str, sector: int, *, readable: bool) -> bytes:
        """A sector of a synced file is lost at rest; returns what it held, for `mend_sector`.

        It reads as zeros (what a drive does that has remapped it), or every read of it fails.
        """
        inode = self._inode(path)
        start = sector * SECTOR_BYTES
        held = bytes(inode.view[start : start + SECTOR_BYTES])
        if readable:
            _apply(inode.view, _Write(start, bytes(len(held))))
            _apply(inode.platter, _Write(start, bytes(len(held))))
        else:
            inode.unreadable.append(sector)
        return held

    def mend_sector(self, path: str, sector: int, held: bytes) -> None:
        """Take back a `lose_sector`, if the file still exists."""
        inode = self._names.get(posixpath.normpath(path))
        if inode is None:
            return
        if sector in inode.unreadable:
            inode.unreadable.remove(sector)
        else:
            for content in (inode.view, inode.platter):
                _apply(content, _Write(sector * SECTOR_BYTES, held))

    def platters(self) -> dict[str, bytes]:
        """A copy of all that a power failure now could not take."""
        return {path: bytes(inode.platter) for path, inode in self._platter_names.items()}

    def roll_back(self, platters: dict[str, bytes]) -> None:
        """The disk holds what it held when `platters` was called; only while nothing runs on it."""
        self._names.clear()
        for path, content in platters.items():
            inode = self._names[path] = _Inode()
            inode.view[:] = inode.platter[:] = content
        self._platter_names = dict(self._names)
        self._unsynced.clear()
        self._locks.clear()
        self.epoch += 1

    # What would be left --------------------------------------------------------------------------

    def paths(self) -> list[str]:
        """All files, as processes see them, sorted."""
        return sorted(self._names)

    def platter(self, path: str) -> bytearray | None:
        """What a power failure now could not take from the file; None if not even its name.

        The disk's own bytes: to be looked at, not changed.
        """
        inode = self._platter_names.get(path)
        return None if inode is None else inode.platter

    def synced_bytes(self, path: str) -> int:
        """How many bytes of the file, from its start, are on the platter as they are seen."""
        inode = self._inode(path)
        if self._platter_names.get(path) is not inode:
            return 0
        count = min(len(inode.view), len(inode.platter))
        for change in inode.unsynced:
            count = min(count, change if isinstance(change, int) else change.offset)
        return count if inode.view[:count] == inode.platter[:count] else 0

    def changed(self) -> None:
        """Count a changing operation, or refuse it."""
        if self.changes_left is not None:
            if self.changes_left == 0:
                raise OSError(errno.EIO, "the power is off")
            self.changes_left -= 1
        self.changes_total += 1

    # Files ---------------------------------------------------------------------------------------

    def makedirs(self, path: str) -> None:
        path = posixpath.normpath(path)
        while path not in self._directories:
            if path in self._names:
                raise FileExistsError(errno.EEXIST, "a file has this name", path)
            self._directories.add(path)
            path = posixpath.dirname(path) or "."

    def listdir(self, path: str) -> list[str]:
        path = self._directory(path)
        known = [*self._names, *(d for d in self._directories if d not in {"/", "."})]
        return sorted(posixpath.basename(p) for p in known if (posixpath.dirname(p) or ".") == path)

    def exists(self, path: str) -> bool:
        path = posixpath.normpath(path)
        return path in self._names or path in self._directories

    def open(self, path: str, mode: Literal["r", "a", "w"]) -> SimFile:
        path = posixpath.normpath(path)
        inode = self._names.get(path)
        if mode == "r":
            return SimFile(self, self._inode(path), writable=False)
        if inode is None:
            inode = self._create(path)
        elif mode == "w":
            self.changed()
            inode.change(0)
        return SimFile(self, inode, writable=True)

    def rename(self, source: str, target: str) -> None:
        source, target = posixpath.normpath(source), posixpath.normpath(target)
        inode = self._inode(source)
        if self._directory(posixpath.dirname(source)) != self._directory(posixpath.dirname(target)):
            raise OSError(errno.EXDEV, "simulated files stay in their directory", target)
        self._rename(_Name(target, inode, source))

    def remove(self, path: str) -> None:
        path = posixpath.normpath(path)
        self._inode(path)
        self._rename(_Name(path, None))

    def sync_dir(self, path: str) -> None:
        path = self._directory(path)
        self.changed()
        self._fail_sync()
        for change in self._unsynced.pop(path, []):
            _rename(self._platter_names, change)

    def space(self, path: str) -> Space:
        path = self._directory(path)
        if not self.fail_snapshots:
            return SPACE
        of_snapshots = posixpath.basename(path) == "snapshots"
        return self.space_of_snapshots if of_snapshots else self.space_of_log

    def lock(self, path: str) -> _SimLock:
        path = posixpath.normpath(path)
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "the file is locked", path)
        if path not in self._names:
            self._create(path)
        self._locks[path] = lock = _SimLock(self._locks, path)
        return lock

    def read(self, inode: _Inode, offset: int, count: int) -> None:
        """The `pread` of a file is to give these bytes."""
        lost = any(
            offset < (sector + 1) * SECTOR_BYTES and offset + count > sector * SECTOR_BYTES
            for sector in inode.unreadable
        )
        if lost or self.fail_reads:
            self.failures_total += 1
            self.read_failures_total += 1
            raise OSError(errno.EIO, "the simulated disk failed to read")

    def sync(self, inode: _Inode) -> None:
        """The `datasync` of a file."""
        self.changed()
        try:
            self._fail_sync()
        except OSError:
            inode.unsynced.clear()
            raise
        inode.sync()

    def write(self, inode: _Inode, data: bytes) -> None:
        """The `write` of a file: behind what is there."""
        self.changed()
        self.writes_total += 1
        full = self.fail_writes
        if full:
            self.failures_total += 1
        elif self.fail_snapshots and self._is_snapshot(inode):
            self.snapshot_failures_total += 1
            full = True
        if full:
            written = data[: self._rng.randint(0, len(data) // 2)]
            inode.change(_Write(len(inode.view), written))
            raise OSError(errno.ENOSPC, "no space left on the simulated disk")
        inode.change(_Write(len(inode.view), bytes(data)))

    def _is_snapshot(self, inode: _Inode) -> bool:
        """Whether the file is a snapshot that is being written or received."""
        return any(
            each is inode
            for path, each in self._names.items()
            if path.endswith(SNAPSHOT_SUFFIX) and "/snapshots/" in path
        )

    def _fail_sync(self) -> None:
        self.syncs_total += 1
        if self.fail_syncs:
            self.failures_total += 1
            raise OSError(errno.EIO, "the simulated disk failed to sync")

    def _create(self, path: str) -> _Inode:
        inode = _Inode()
        self._rename(_Name(path, inode))
        return inode

    def _rename(self, change: _Name) -> None:
        directory = self._directory(posixpath.dirname(change.path))
        self.changed()
        _rename(self._names, change)
        self._unsynced.setdefault(directory, []).append(change)

    def _inode(self, path: str) -> _Inode:
        inode = self._names.get(posixpath.normpath(path))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def _directory(self, path: str) -> str:
        path = posixpath.normpath(path)
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return path


class SimFile:
    """An open file of a SimDisk; dead after a crash."""

    __slots__ = ("_disk", "_epoch", "_inode", "_writable")

    def __init__(self, disk: SimDisk, inode: _Inode, *, writable: bool) -> None:
        self._disk = disk
        self._inode: _Inode | None = inode
        self._epoch = disk.epoch
        self._writable = writable

    def write(self, data: bytes) -> None:
        self._disk.write(self._live(writes=True), data)

    def pread(self, offset: int, count: int) -> bytes:
        inode = self._live()
        self._disk.read(inode, offset, count)
        return bytes(inode.view[offset : offset + count])

    def truncate(self, size: int) -> None:
        inode = self._live(writes=True)
        self._disk.changed()
        inode.change(size)

    def datasync(self) -> None:
        self._disk.sync(self._live())

    def size(self) -> int:
        return len(self._live().view)

    def close(self) -> None:
        self._inode = None

    def _live(self, *, writes: bool = False) -> _Inode:
        if self._inode is None or self._epoch != self._disk.epoch:
            raise OSError(errno.EBADF, "the file is closed")
        if writes and not self._writable:
            raise OSError(errno.EBADF, "the file was opened for reading")
        return self._inode


class _SimLock:
    __slots__ = ("_locks", "_path")

    def __init__(self, locks: dict[str, _SimLock], path: str) -> None:
        self._locks = locks
        self._path = path

    def moved(self) -> bool:
        return False

    def release(self) -> None:
        # After a crash somebody else may hold it.
        if self._locks.get(self._path) is self:
            del self._locks[self._path]

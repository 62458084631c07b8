"""The snapshots of a node: found, written, received, and replaced without ever having none.

Rules of this file:
1. A file under its final name is complete: it was written under a temporary name, synced and
   renamed, and the directory synced. Only then are older ones removed. So a crash at any moment
   leaves the old snapshot or the new one, or both.
2. A received file is validated as a whole before it gets its final name; chunks that were not asked
   for (another offset, a wrong checksum) change nothing, so the sender may repeat them at will.
3. Temporary files do not survive a restart: nobody can say what they lack. Nor do they survive an
   error: on a full disk they would take the room that is missing.

Final names are index-term.snap with 16 digits each, so that they sort as snapshots do.

Everything here blocks; the engine calls it in a thread, one writer and one receiver at a time.
What is ugly: validating means reading a file whole, so `latest` does it once and then remembers;
`chunks` verifies every byte again whenever the content is really used.
"""

from __future__ import annotations

import contextlib
import os.path
import re
import zlib
from collections.abc import Callable
from typing import Final

from raftkv.errors import DamagedSnapshot, NodeFault
from raftkv.raft.snapshot_file import Footer, Snapshot, SnapshotMeta, chunk_head, header
from raftkv.runtime import Files, Space

__all__ = ["Snapshot", "SnapshotMeta", "SnapshotReceiver", "SnapshotStore", "SnapshotWriter"]

_NAME = re.compile(r"(\d{16})-(\d{16})\.snap")
_TEMPORARY: Final = ".tmp"
_INCOMING: Final = "incoming" + _TEMPORARY


# See Limits.snapshot_sync_bytes.
_SYNC_BYTES: Final = 8 << 20


class SnapshotStore:
    """The directory of snapshots. Creates it, and removes what a crash left unfinished in it.

    `sync_bytes`: files are synced whenever they have grown by so much (Limits.snapshot_sync_bytes).
    """

    def __init__(self, files: Files, directory: str, sync_bytes: int = _SYNC_BYTES) -> None:
        self._files = files
        self._directory = directory
        self.sync_bytes = sync_bytes
        self._latest: Snapshot | None = None
        self._receiver: SnapshotReceiver | None = None
        files.makedirs(directory)
        for name in files.listdir(directory):
            if name.endswith(_TEMPORARY):
                files.remove(os.path.join(directory, name))
        # A process that died may have given a file its name and not synced that; the log is cut
        # behind what is found here.
        files.sync_dir(directory)

    def space(self) -> Space:
        """The room on the volume of the snapshots. Raises OSError."""
        return self._files.space(self._directory)

    @property
    def known(self) -> Snapshot | None:
        """The newest snapshot that was looked at, without looking at the disk."""
        return self._latest

    def latest(self) -> Snapshot | None:
        """The newest snapshot, None if there is none.

        Raises DamagedSnapshot if the newest file is damaged, even if an older one is good: whether
        the log reaches back to the older one is for the caller to know (`all`). Reads the file
        whole the first time, not again.
        """
        if self._latest is None:
            keys = self._keys()
            if keys:
                self._latest = self._load(keys[-1])
        return self._latest

    def opened(self) -> Snapshot | None:
        """The newest snapshot with its file open: it can be sent although a newer one replaces it.

        A thread may be replacing it at this moment; then the newer one is taken.
        """
        while True:
            snapshot = self.latest()
            if snapshot is None:
                return None
            try:
                snapshot.read(0, 1)
                return snapshot
            except FileNotFoundError:
                if self.latest() is snapshot:
                    raise

    def all(self) -> list[Snapshot]:
        """All snapshots that are whole, newest first; damaged ones are left out."""
        found = []
        for key in reversed(self._keys()):
            try:
                found.append(self._load(key))
            except DamagedSnapshot:
                continue
        return found

    def writer(self, meta: SnapshotMeta) -> SnapshotWriter:
        """Begin a new snapshot; nothing of it counts before its `commit`."""
        return SnapshotWriter(self, self._files, self._path(meta) + _TEMPORARY, meta)

    def receiver(self, snapshot_id: str, size_bytes: int) -> SnapshotReceiver:
        """Where the chunks of another node's snapshot go.

        The same id and size give the same receiver again, with all it has; any other begins anew
        at offset 0 and drops what the last one has.
        """
        last = self._receiver
        if last is not None and last.open:
            if (last.snapshot_id, last.size_bytes) == (snapshot_id, size_bytes):
                return last
            self.give_up_received()
        path = os.path.join(self._directory, _INCOMING)
        self._receiver = SnapshotReceiver(self, self._files, path, snapshot_id, size_bytes)
        return self._receiver

    def give_up_received(self) -> None:
        """Drop what has arrived of another node's snapshot, and make its room free."""
        if self._receiver is not None:
            self._receiver.abort()
            self._receiver = None

    def adopt(self, temporary: str, meta: SnapshotMeta, size: int, footer: bytes) -> Snapshot:
        """Give a complete and synced file its final name, durably; then remove older ones.

        If a newer snapshot has arrived meanwhile, the file is among those that are removed.
        """
        path = self._path(meta)
        self._files.rename(temporary, path)
        self._files.sync_dir(self._directory)
        snapshot = Snapshot(self._files, path, meta, size, footer)
        newest = self._latest
        if newest is None or _key(newest.meta) <= _key(meta):
            self._latest = newest = snapshot
        for key in self._keys():
            if key < _key(newest.meta):
                self._files.remove(self._key_path(key))
        return snapshot

    def _load(self, key: tuple[int, int]) -> Snapshot:
        snapshot = Snapshot.load(self._files, self._key_path(key))
        if _key(snapshot.meta) != key:
            raise DamagedSnapshot(
                snapshot.path, 0, f"it holds index {snapshot.meta.index}, term {snapshot.meta.term}"
            )
        return snapshot

    def _keys(self) -> list[tuple[int, int]]:
        names = map(_NAME.fullmatch, self._files.listdir(self._directory))
        return sorted((int(match[1]), int(match[2])) for match in names if match)

    def _key_path(self, key: tuple[int, int]) -> str:
        return os.path.join(self._directory, f"{key[0]:016d}-{key[1]:016d}.snap")

    def _path(self, meta: SnapshotMeta) -> str:
        return self._key_path(_key(meta))


def _key(meta: SnapshotMeta) -> tuple[int, int]:
    return meta.index, meta.term


class SnapshotWriter:
    """A snapshot that is being written. Ends with `commit` or `abort`."""

    def __init__(self, store: SnapshotStore, files: Files, path: str, meta: SnapshotMeta) -> None:
        self._store = store
        self._files = files
        self._path = path
        self._meta = meta
        self._footer = Footer()
        start = header(meta)
        self._size = len(start)
        self._file = files.open(path, "w")
        self._unsynced = len(start)
        try:
            self._file.write(start)
        except OSError:
            self.abort()
            raise

    def write(self, *chunks: bytes) -> None:
        """Add chunks of at least one byte each. Raises ValueError (its size), OSError."""
        data = b"".join(part for chunk in chunks for part in (chunk_head(chunk), chunk))
        self._file.write(data)
        for chunk in chunks:
            self._footer.add(chunk)
        self._size += len(data)
        self._unsynced += len(data)
        if self._unsynced >= self._store.sync_bytes:
            self._unsynced = 0
            self._file.datasync()

    def commit(self) -> Snapshot:
        """Make it the newest snapshot, durably. After an OSError there is nothing to abort."""
        footer = self._footer.encode()
        try:
            self._file.write(footer)
            self._file.datasync()
        except OSError:
            # The error that counts is the first one.
            with contextlib.suppress(OSError):
                self.abort()
            raise
        self._file.close()
        return self._store.adopt(self._path, self._meta, self._size + len(footer), footer)

    def abort(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        if self._files.exists(self._path):
            self._files.remove(self._path)


class SnapshotReceiver:
    """A snapshot that arrives from another node, in order."""

    def __init__(
        self, store: SnapshotStore, files: Files, path: str, snapshot_id: str, size_bytes: int
    ) -> None:
        self.snapshot_id = snapshot_id
        self.size_bytes = size_bytes
        self.offset = 0  # how many bytes are here; the next chunk begins there
        self.open = True
        self._store = store
        self._files = files
        self._path = path
        self._unsynced = 0
        self._file = files.open(path, "w")

    def add(self, offset: int, data: bytes, crc: int) -> bool:
        """Take the chunk if it is the next one and intact; if not, nothing changes: ask again."""
        assert self.open, "the transfer has ended"
        if offset != self.offset or not data or offset + len(data) > self.size_bytes:
            return False
        if zlib.crc32(data) != crc:
            return False
        self._file.write(data)
        self.offset += len(data)
        self._unsynced += len(data)
        if self._unsynced >= self._store.sync_bytes:
            self._unsynced = 0
            self._file.datasync()
        return True

    def finish(self, accept: Callable[[SnapshotMeta], None] = lambda meta: None) -> Snapshot:
        """Validate the whole file and make it a snapshot of this node, durably.

        `accept` is asked before anything is replaced; what it raises ends the transfer.

        Raises DamagedSnapshot if it is not what a sender can have meant (a damaged original, or
        two originals spliced); the file is gone then, and the transfer may begin anew. That says
        nothing against this node's own data.
        """
        assert self.open, "the transfer has ended"
        assert self.offset == self.size_bytes, "the transfer is not complete"
        self.open = False
        try:
            self._file.datasync()
        except OSError:
            with contextlib.suppress(OSError):
                self._file.close()
                self._files.remove(self._path)
            raise
        self._file.close()
        try:
            received = Snapshot.load(self._files, self._path)
            accept(received.meta)
        except NodeFault:
            self._files.remove(self._path)
            raise
        return self._store.adopt(self._path, received.meta, self.size_bytes, received.footer)

    def abort(self) -> None:
        """Drop what has arrived. May be called again."""
        if self.open:
            self.open = False
            self._file.close()
            self._files.remove(self._path)

"""What the tests of several rules share."""

from __future__ import annotations

import random

from raftkv.raft.membership import Configuration, encode
from raftkv.raft.snapshot import SnapshotMeta, SnapshotStore
from raftkv.testing.disk import SimDisk
from tests.raft.harness import DIRECTORY, A, B, C, write_log

THREE = Configuration((A, B, C))


def snapshot_file(index: int, term: int, chunks: list[bytes]) -> tuple[str, bytes]:
    """(identity, file) of a snapshot that another node would send."""
    disk = SimDisk(random.Random(9))
    store = SnapshotStore(disk, "elsewhere")
    writer = store.writer(SnapshotMeta(index, term, encode(THREE), "cluster"))
    for data in chunks:
        writer.write(data)
    snapshot = writer.commit()
    return snapshot.id, snapshot.read(0, snapshot.size_bytes)


def disk_with_snapshot(log: list[tuple[int, bytes]], snapshot: tuple[int, int]) -> SimDisk:
    """A disk that holds a log of term 1 and a snapshot at (index, term)."""
    disk = SimDisk(random.Random(4))
    write_log(disk, THREE, log, 1)
    store = SnapshotStore(disk, f"{DIRECTORY}/snapshots")
    writer = store.writer(SnapshotMeta(*snapshot, encode(THREE), "cluster"))
    writer.write(b"state")
    writer.commit()
    return disk

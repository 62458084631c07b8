"""What a data directory says after a start: snapshot, log behind it, configuration (rules 4, 6).

It happens before the engine is made, because the engine's peers come from here. The log keeps
everything behind the snapshot if it still holds the snapshot's last entry; if it does not, the
snapshot was installed over a log that lagged or diverged, and the log starts anew at it. A log
that starts behind the snapshot has a hole: that is damage, not something to bridge.
"""

from __future__ import annotations

import hashlib
import os.path

from raftkv.config import Limits
from raftkv.errors import DamagedLog
from raftkv.runtime import Files

from .agreement import Held, require_agreement
from .membership import EMPTY, ConfigurationLog, decode
from .snapshot import Snapshot, SnapshotMeta, SnapshotStore
from .wal import Wal

__all__ = ["Recovered", "recover"]

_CONFIGURATION = 2


class Recovered:
    """The durable parts of a core, consistent with each other."""

    def __init__(
        self,
        wal: Wal,
        store: SnapshotStore,
        snapshot: Snapshot | None,
        configurations: ConfigurationLog,
    ) -> None:
        self.wal = wal
        self.store = store
        self.snapshot = snapshot
        self.configurations = configurations
        # The index that the state has once the snapshot is restored.
        self.applied = 1 if snapshot is None else snapshot.meta.index


def recover(
    files: Files,
    directory: str,
    limits: Limits,
    *,
    fsync: bool,
    belongs: bool,
    owner: str = "",
) -> Recovered:
    """Open the log and the newest snapshot. Blocking.

    Raises DamagedLog, DamagedSnapshot, NewerFormat; Diverged if the snapshot's configuration is not
    that of the log at the same index.

    `belongs`: the directory belongs to a cluster already, so its log must be there (rule 10): a
    node that lost it has forgotten its votes and must not go on as itself. `owner` is the same for
    the directory's whole life and differs from every other node's: segments of another owner's log
    are refused.
    """
    log_directory = os.path.join(directory, "wal")
    snapshot_directory = os.path.join(directory, "snapshots")
    files.makedirs(log_directory)
    files.makedirs(snapshot_directory)
    store = SnapshotStore(files, snapshot_directory, limits.snapshot_sync_bytes)
    snapshot = store.latest()
    wal = Wal.open(
        files,
        log_directory,
        segment_bytes_max=limits.segment_bytes_max,
        fsync=fsync,
        log_id=_log_id(owner),
        must_exist=belongs,
    )
    index, term, configuration, since = 1, 0, EMPTY, 0
    if snapshot is not None:
        meta = snapshot.meta
        index, term, configuration = meta.index, meta.term, decode(meta.configuration)
        since = meta.configuration_index
    if wal.base_index > index:
        raise DamagedLog(
            log_directory,
            0,
            f"the log starts behind index {wal.base_index}, but the newest snapshot covers only "
            f"up to {index}",
        )
    if wal.term_at(index) != term:
        wal.rebase(index, term)
        pending = wal.take()
        assert pending is not None
        wal.write(pending)
        wal.written(pending)
    elif snapshot is not None:
        _require_agreement(wal, snapshot.meta)
    configurations = ConfigurationLog(index, configuration, since)
    for entry in wal.entries(index + 1):
        if entry.payload[0] == _CONFIGURATION:
            configurations.append(entry.index, decode(entry.payload[1:]))
    return Recovered(wal, store, snapshot, configurations)


def _require_agreement(wal: Wal, meta: SnapshotMeta) -> None:
    """The log holds the snapshot's last entry, so it must name the same members up to there."""
    held = Held(meta.index, None, 0, wal.base_index)
    for entry in wal.entries(wal.first_index, meta.index):
        if entry.payload[0] == _CONFIGURATION:
            found = decode(entry.payload[1:])
            held = Held(meta.index, found, entry.index, wal.base_index)
    require_agreement(held, meta)


def _log_id(owner: str) -> int:
    """Names the log in its segments; 0 for a log without an owner."""
    if not owner:
        return 0
    return int.from_bytes(hashlib.blake2b(owner.encode(), digest_size=8).digest(), "little")

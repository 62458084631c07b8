"""Who a data directory belongs to: `identity.json`, written once and synced before anything else.

A node is its name plus an id minted with the directory, inside a cluster (rule 10) and one epoch of
it (rule 18). The cluster id is empty until the cluster was founded or joined; it is set once and
never changes. Three more things may happen to an identity, each in one durable step:

- A replicant is promoted (`become_core`): from then on the directory makes the node a core,
  whatever its configuration file still says. It goes no other way; a core becomes a replicant by
  being removed and starting with an empty directory.
- A replicant meets a newer epoch (`adopt`). Only a replicant may: a core has a log of the old one.
- A forced recovery is begun and finished (`begin_recovery`, `finish_recovery`). In between nothing
  may start from the directory, because identity and log do not fit together.

The file has a checksum: a node with a damaged id would be somebody else, with the old one's votes.
"""

from __future__ import annotations

import os.path
import zlib
from typing import Literal

import msgspec

from raftkv.config import NodeConfig
from raftkv.errors import DirectoryLocked, WrongCluster, WrongDataDirectory
from raftkv.runtime import Files, Lock, Runtime

from .corrupt_marker import empty_if_removed, is_emptied, known_cores, marked_as, refuse_marked
from .epoch import FOUNDED, Epoch
from .membership import make_raft_id

__all__ = ["DataDirectory", "Identity", "Recovery"]

# Format 1 had no epoch, no recovery and no promotions; it is read as if it had.
FORMAT_VERSION = 2
FORMATS_READ = (1, 2)
_CHECKSUM_SINCE = 2
_FILE = "identity.json"
_FILE_BYTES_MAX = 4096
_MINTED_BYTES = 4


class Recovery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A forced recovery that was begun: what the node will be once it is finished."""

    minted: str
    epoch: Epoch


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format_version: int
    name: str
    role: Literal["core", "replicant"]
    minted: str
    cluster: str
    cluster_id: str
    epoch: Epoch = FOUNDED
    # A core that began as a replicant: its configuration may still say so.
    promoted: bool = False
    recovery: Recovery | None = None

    @property
    def raft_id(self) -> str:
        return make_raft_id(self.name, self.minted)

    @property
    def log_owner(self) -> str:
        """Whose log the directory holds. Unlike the raft id it outlives a forced recovery."""
        return f"{self.cluster}/{self.name}"


class _Version(msgspec.Struct):
    """What every format of the file has."""

    format_version: int


class DataDirectory:
    """A locked data directory. Releases the lock in `close`."""

    #: Another identity is in the file, and may not be durable: it cannot be taken back.
    replaced = False

    def __init__(self, config: NodeConfig, runtime: Runtime) -> None:
        """Create, lock and identify.

        Raises DirectoryLocked, WrongDataDirectory, WrongCluster, CorruptState.
        """
        self._files: Files = runtime.files
        self.path = config.dir
        self._files.makedirs(self.path)
        self._lock = _take_lock(self._files, self.path)
        try:
            if config.on_corruption == "rebuild":
                empty_if_removed(self._files, self.path)
            found = _read(self._files, self.path)
            if found is None:
                self._refuse_orphans()
                self._mint(config, runtime)
            else:
                _check(found, config, self.path)
                if config.on_corruption != "rebuild":
                    refuse_marked(self._files, self.path)
                self.identity = found
            #: It is marked as corrupt: nothing is read from it, but it may leave its cluster.
            self.is_marked = marked_as(self._files, self.path) is not None
            #: It was emptied for a rebuild: the node is to rejoin its cluster, and begins none.
            self.rejoins = is_emptied(self._files, self.path)
            #: Where the other cores are, if it is marked or was emptied: (name, address).
            self.known_cores = known_cores(self._files, self.path)
        except BaseException:
            self.close()
            raise

    @classmethod
    def existing(cls, files: Files, path: str) -> DataDirectory:
        """Lock a directory that has an identity, whoever's: for `raftkv recover`.

        Raises WrongDataDirectory if it has none, DirectoryLocked, CorruptState.
        """
        if not files.exists(os.path.join(path, _FILE)):
            raise WrongDataDirectory(
                f"{path} is no data directory: it has no {_FILE}. Name the directory that stands "
                f"as dir in the node's configuration"
            )
        directory = cls.__new__(cls)
        directory._files, directory.path = files, path
        directory.rejoins = directory.is_marked = False
        directory.known_cores = []
        directory._lock = _take_lock(files, path)
        try:
            found = _read(files, path)
            assert found is not None
            directory.identity = found
            refuse_marked(files, path)
        except BaseException:
            directory.close()
            raise
        return directory

    def _refuse_orphans(self) -> None:
        """A log is never older than its identity: without one, something has lost it."""
        log = os.path.join(self.path, "wal")
        if self._files.exists(log) and self._files.listdir(log):
            raise WrongDataDirectory(
                f"{self.path} holds a log but no {_FILE}, so nobody knows whose it is. Bring the "
                f"file back, or keep a copy of the directory and start the node with an empty one "
                f"so that it joins as a new node"
            )

    def _mint(self, config: NodeConfig, runtime: Runtime) -> None:
        self._store(
            Identity(
                format_version=FORMAT_VERSION,
                name=config.name,
                role=config.role,
                minted=runtime.token(_MINTED_BYTES).hex(),
                cluster=config.cluster,
                cluster_id="",
            )
        )

    def join(self, cluster_id: str, epoch: Epoch = FOUNDED) -> None:
        """Belong to this cluster from now on, durably."""
        assert cluster_id
        assert not self.identity.cluster_id
        self._change(cluster_id=cluster_id, epoch=epoch)

    def adopt(self, epoch: Epoch) -> None:
        """A replicant, which has discarded its state, belongs to a newer epoch, durably."""
        assert self.identity.role == "replicant"
        assert epoch.number > self.identity.epoch.number
        self._change(epoch=epoch)

    def become_core(self) -> None:
        """A replicant's directory holds a complete log now: it is a core's, durably."""
        assert self.identity.role == "replicant"
        self._change(role="core", promoted=True)

    def begin_recovery(self, recovery: Recovery) -> None:
        """From here on the directory can only be recovered, durably."""
        assert self.identity.role == "core"
        assert recovery.epoch.number == self.identity.epoch.number + 1
        self._change(recovery=recovery)

    def finish_recovery(self) -> None:
        """The log fits: the directory is that of a new node in a new epoch, durably."""
        recovery = self.identity.recovery
        assert recovery is not None
        self._change(minted=recovery.minted, epoch=recovery.epoch, recovery=None)

    def _change(self, **changes: object) -> None:
        changes["format_version"] = FORMAT_VERSION
        self._store(msgspec.structs.replace(self.identity, **changes))

    def _store(self, identity: Identity) -> None:
        path = os.path.join(self.path, _FILE)
        file = self._files.open(path + ".new", "w")
        try:
            fields = msgspec.to_builtins(identity)
            fields["checksum"] = _checksum(fields)
            file.write(msgspec.json.format(msgspec.json.encode(fields)) + b"\n")
            file.datasync()
        finally:
            file.close()
        self._files.rename(path + ".new", path)
        self.replaced = True
        self._files.sync_dir(self.path)
        self.identity, self.replaced = identity, False

    def moved(self) -> bool:
        """Whether the directory was removed or replaced since it was locked. May block."""
        return self._lock.moved()

    def close(self) -> None:
        self._lock.release()


def _take_lock(files: Files, path: str) -> Lock:
    try:
        return files.lock(os.path.join(path, "lock"))
    except BlockingIOError:
        raise DirectoryLocked(
            f"{path} is in use by another process. Stop that node first: two nodes "
            f"must never share a data directory"
        ) from None


def _read(files: Files, directory: str) -> Identity | None:
    """The identity in a directory, None if it has none yet. Raises WrongDataDirectory."""
    path = os.path.join(directory, _FILE)
    if not files.exists(path):
        return None
    # A process that died may have given the file its name and not synced that.
    files.sync_dir(directory)
    file = files.open(path, "r")
    try:
        content = file.pread(0, _FILE_BYTES_MAX)
    finally:
        file.close()
    try:
        return _decode(content, path)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WrongDataDirectory(
            f"{path} cannot be read ({error}). Keep a copy of the directory, then start the "
            f"node with an empty one so that it joins as a new node"
        ) from None


def _checksum(fields: dict[str, object]) -> str:
    """Of everything else in the file, in its order."""
    return f"{zlib.crc32(msgspec.json.encode(fields)):08x}"


def _decode(content: bytes, path: str) -> Identity:
    found = msgspec.json.decode(content, type=_Version).format_version
    if found not in FORMATS_READ:
        raise WrongDataDirectory(
            f"{path} has format {found}, this version reads "
            f"{' and '.join(map(str, FORMATS_READ))}: start the node with the version of "
            f"raftkv that wrote it"
        )
    fields = msgspec.json.decode(content, type=dict[str, object])
    if found >= _CHECKSUM_SINCE and fields.pop("checksum", None) != _checksum(fields):
        raise msgspec.ValidationError("it fails its checksum")
    return msgspec.convert(fields, Identity)


def _check(identity: Identity, config: NodeConfig, path: str) -> None:
    """Whether a node of this configuration may start from the directory."""
    was_promoted = identity.promoted and config.role == "replicant"
    if identity.name != config.name or (identity.role != config.role and not was_promoted):
        raise WrongDataDirectory(
            f"{path} belongs to the {identity.role} {identity.name!r}, not to the "
            f"{config.role} {config.name!r}. Give this node a directory of its own"
        )
    if identity.cluster != config.cluster:
        raise WrongCluster(
            f"{path} belongs to the cluster {identity.cluster!r}, not to "
            f"{config.cluster!r}. Give this node a directory of its own"
        )
    if identity.recovery is not None:
        raise WrongDataDirectory(
            f"a forced recovery of {path} was begun and not finished, so no node can start from "
            f"it. Run it again: raftkv recover --dir {path} --force-new-cluster"
        )

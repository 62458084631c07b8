"""Who a data directory belongs to: `identity.json`, written once and synced before anything else.

A node is its name plus an id minted with the directory, inside a cluster (rule 10). The cluster id
is empty until the cluster was founded or joined; it is set once and never changes.
"""

from __future__ import annotations

import os.path

import msgspec

from raftkv.config import NodeConfig
from raftkv.errors import DirectoryLocked, WrongCluster, WrongDataDirectory
from raftkv.runtime import Files, Lock, Runtime

from .membership import make_raft_id

__all__ = ["DataDirectory", "Identity"]

FORMAT_VERSION = 1
_FILE = "identity.json"
_FILE_BYTES_MAX = 4096


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format_version: int
    name: str
    role: str
    minted: str
    cluster: str
    cluster_id: str

    @property
    def raft_id(self) -> str:
        return make_raft_id(self.name, self.minted)


class DataDirectory:
    """A locked data directory. Releases the lock in `close`."""

    def __init__(self, config: NodeConfig, runtime: Runtime) -> None:
        """Create, lock and identify. Raises DirectoryLocked, WrongDataDirectory, WrongCluster."""
        self._files: Files = runtime.files
        self.path = config.dir
        self._files.makedirs(self.path)
        self._lock = self._take_lock()
        try:
            self.identity = self._load(config) or self._mint(config, runtime)
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> Lock:
        try:
            return self._files.lock(os.path.join(self.path, "lock"))
        except BlockingIOError:
            raise DirectoryLocked(
                f"{self.path} is in use by another process. Stop that node first: two nodes "
                f"must never share a data directory"
            ) from None

    def _load(self, config: NodeConfig) -> Identity | None:
        path = os.path.join(self.path, _FILE)
        if not self._files.exists(path):
            return None
        file = self._files.open(path, "r")
        try:
            content = file.pread(0, _FILE_BYTES_MAX)
        finally:
            file.close()
        try:
            identity = msgspec.json.decode(content, type=Identity)
        except msgspec.DecodeError as error:
            raise WrongDataDirectory(
                f"{path} cannot be read ({error}). Keep a copy of the directory, then start the "
                f"node with an empty one so that it joins as a new node"
            ) from None
        if identity.format_version != FORMAT_VERSION:
            raise WrongDataDirectory(
                f"{path} has format {identity.format_version}, this version reads "
                f"{FORMAT_VERSION}: start the node with the version of raftkv that wrote it"
            )
        if (identity.name, identity.role) != (config.name, config.role):
            raise WrongDataDirectory(
                f"{self.path} belongs to the {identity.role} {identity.name!r}, not to the "
                f"{config.role} {config.name!r}. Give this node a directory of its own"
            )
        if identity.cluster != config.cluster:
            raise WrongCluster(
                f"{self.path} belongs to the cluster {identity.cluster!r}, not to "
                f"{config.cluster!r}. Give this node a directory of its own"
            )
        return identity

    def _mint(self, config: NodeConfig, runtime: Runtime) -> Identity:
        identity = Identity(
            format_version=FORMAT_VERSION,
            name=config.name,
            role=config.role,
            minted=runtime.token(4).hex(),
            cluster=config.cluster,
            cluster_id="",
        )
        self._store(identity)
        return identity

    def join(self, cluster_id: str) -> None:
        """Belong to this cluster from now on, durably."""
        assert cluster_id
        assert not self.identity.cluster_id
        self._store(msgspec.structs.replace(self.identity, cluster_id=cluster_id))

    def _store(self, identity: Identity) -> None:
        path = os.path.join(self.path, _FILE)
        file = self._files.open(path + ".new", "w")
        try:
            file.write(msgspec.json.format(msgspec.json.encode(identity)) + b"\n")
            file.datasync()
        finally:
            file.close()
        self._files.rename(path + ".new", path)
        self._files.sync_dir(self.path)
        self.identity = identity

    def close(self) -> None:
        self._lock.release()

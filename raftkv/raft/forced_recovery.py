"""A new cluster of one core from one surviving data directory (`raftkv recover`).

For the day on which a majority of the cores is gone for good. Raft cannot help then: whether an
entry was committed is known to a majority only, and the survivor is none. So somebody decides that
what this directory holds is the truth from now on, and two promises are given up, knowingly:

- Writes that were acknowledged by a majority without this core are lost: everything behind its
  last entry.
- Entries at its end that had not been committed, and may have been reported as not applied or
  unknown, become committed.

Rules of this file. Nothing runs from the directory meanwhile (it is locked). The node becomes
somebody new, because it breaks what its old self has promised: a new raft id (rule 10) in a new
epoch (rule 18), which is what keeps the old members away for good, whatever they still hold.

Three durable steps: the identity notes that a recovery has begun, and with which result; the log
gets the new configuration in a new term; the identity becomes the new one. A crash before the first
leaves the old directory, one after the last the new one; in between the identity says so, no node
starts from it, and running the recovery again goes on with the same result.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable

import msgspec

from raftkv.config import Limits
from raftkv.errors import ConfigError
from raftkv.runtime import Files

from .epoch import Epoch
from .identity import DataDirectory, Recovery
from .membership import REMOVED_KEPT, Configuration, encode, make_raft_id, name_of
from .recovery import Recovered, recover

__all__ = ["Survey", "force_new_cluster", "survey"]

_CONFIGURATION = b"\x02"
_MINTED_BYTES = 4


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What a core's data directory holds. Indexes are of the log; names are of nodes."""

    directory: str
    name: str
    cluster: str
    cluster_id: str
    epoch: str
    raft_id: str
    # A recovery was begun and not finished: running it again finishes it.
    interrupted: bool
    term: int
    # Everything up to here is known to be committed; up to `last_index` it may or may not be.
    snapshot_index: int
    last_index: int
    last_term: int
    voters: list[str]
    learners: list[str]

    @property
    def uncertain_entries(self) -> int:
        """How many entries there are of which this directory does not say if they are committed."""
        return self.last_index - self.snapshot_index

    @property
    def voted(self) -> bool:
        """Whether the node was a voter: a copy may lack more."""
        return self.name in self.voters


def survey(files: Files, directory: DataDirectory) -> Survey:
    """Look at a locked directory. Raises ConfigError if nothing can be recovered from it, and
    DamagedLog, DamagedSnapshot or OSError.

    It changes no more than a start of the node does: torn ends are cut, leftovers are removed.
    """
    recovered = _open(files, directory)
    try:
        return _describe(directory, recovered)
    finally:
        recovered.wal.close()


def force_new_cluster(
    files: Files, directory: DataDirectory, token: Callable[[int], bytes]
) -> Survey:
    """Make the directory that of the only core of the cluster, durably; see the module's text.

    `token` gives random bytes. Raises as `survey` does; after an OSError run it again.
    """
    recovered = _open(files, directory)
    try:
        if directory.identity.recovery is None:
            epoch = Epoch(directory.identity.epoch.number + 1, token(_MINTED_BYTES).hex())
            directory.begin_recovery(Recovery(minted=token(_MINTED_BYTES).hex(), epoch=epoch))
        _write_configuration(directory, recovered)
        directory.finish_recovery()
        return _describe(directory, recovered)
    finally:
        recovered.wal.close()


def _open(files: Files, directory: DataDirectory) -> Recovered:
    identity = directory.identity
    if identity.role != "core":
        raise ConfigError(
            f"{directory.path} is of the replicant {identity.name!r}, which keeps its state in "
            f"memory: nothing can be recovered from it. Name the directory of a core"
        )
    if not identity.cluster_id:
        raise ConfigError(
            f"the node of {directory.path} has never belonged to a cluster: there is nothing to "
            f"recover. Name the directory of a core that has"
        )
    recovered = recover(
        files,
        os.path.normpath(directory.path),
        Limits(),
        fsync=True,
        belongs=True,
        owner=identity.log_owner,
    )
    if not recovered.configurations.latest.members:
        recovered.wal.close()
        raise ConfigError(
            f"the log in {directory.path} holds no configuration: the node had joined, but had "
            f"received nothing. Name the directory of another core"
        )
    return recovered


def _write_configuration(directory: DataDirectory, recovered: Recovered) -> None:
    """Only the new self votes, in a term that nobody has voted in. Done twice it does nothing."""
    identity = directory.identity
    assert identity.recovery is not None
    me = make_raft_id(identity.name, identity.recovery.minted)
    current, wal = recovered.configurations.latest, recovered.wal
    if current.voters == (me,):
        return
    # The epoch keeps all of them away. A learner may be a replicant whose promotion was under way:
    # it copies again like the others, and would be refused for good as removed.
    gone = tuple(voter for voter in current.voters if voter != me)
    proposed = Configuration(voters=(me,), removed=(*current.removed, *gone)[-REMOVED_KEPT:])
    term, index = max(wal.term, wal.last_term) + 1, wal.last_index + 1
    wal.set_hard_state(term, None)
    wal.append(_CONFIGURATION + encode(proposed), index, term)
    pending = wal.take()
    assert pending is not None
    wal.write(pending)
    wal.written(pending)
    recovered.configurations.append(index, proposed)


def _describe(directory: DataDirectory, recovered: Recovered) -> Survey:
    identity, wal = directory.identity, recovered.wal
    configuration = recovered.configurations.latest
    return Survey(
        directory=directory.path,
        name=identity.name,
        cluster=identity.cluster,
        cluster_id=identity.cluster_id,
        epoch=str(identity.epoch),
        raft_id=identity.raft_id,
        interrupted=identity.recovery is not None,
        term=max(wal.term, wal.last_term),
        snapshot_index=recovered.applied,
        last_index=wal.last_index,
        last_term=wal.last_term,
        voters=[name_of(member) for member in configuration.voters],
        learners=[name_of(member) for member in configuration.learners],
    )

"""Do a snapshot and the own log name the same members, as far as the own log is committed?

A configuration is a function of the log. A snapshot of a committed prefix and the own committed
entries are parts of one history, so what both of them say of the configuration in force must be
the same; a difference means that one of them is of another history, and a node that went on would
count votes by members that others do not know. An entry of the own log that is not committed may
differ: Raft replaces it.

A snapshot may also be older than the last committed change here: its last part arrives after the
node has caught up by the log. Then it names the members of before, and states nothing about those
of now.

Rules of this file: pure. A snapshot of core format 1 does not say at which index its configuration
was appended, so it can be compared at its own index only.
"""

from __future__ import annotations

from typing import NamedTuple

from raftkv.errors import Diverged

from .membership import Configuration, decode
from .snapshot_file import SnapshotMeta

__all__ = ["Held", "require_agreement"]


class Held(NamedTuple):
    """What the own log states about the configuration in force at its commit index."""

    commit: int
    #: None if no entry that the log still holds states it.
    configuration: Configuration | None
    #: The index of the entry that holds it. 0: not known, then at or below `base`.
    since: int
    base: int


def require_agreement(held: Held, meta: SnapshotMeta) -> None:
    """Raise Diverged if the snapshot's configuration contradicts the own committed log."""
    configuration, since = decode(meta.configuration), meta.configuration_index
    if held.commit < (since or meta.index):
        return  # one that this log does not hold, or not as committed
    if (held.since or held.base) > meta.index:
        return  # older than the own log's: the members may have changed behind it
    differs = held.configuration is not None and held.configuration != configuration
    if since and not differs:
        differs = since != held.since if held.since else since > held.base
    if differs:
        raise Diverged(
            f"the snapshot at entry {meta.index} names the members {configuration} since "
            f"entry {since or '(not known)'}, the log of this node up to its committed entry "
            f"{held.commit} names {held.configuration or 'none'} since entry "
            f"{held.since or f'{held.base} or before'}. One of the two is of another history: keep "
            f"a copy of the data directory, then remove this core from the cluster and add it "
            f"with an empty directory"
        )

"""What was applied at each index, and the digest of the state after some: equal on all nodes.

A recovery by force forks the log: behind what the survivor shares with what was committed, the new
epoch has entries of its own. A core that comes back with its old disk, and a replicant that it
serves, belong to the former epoch until they meet the new one, and go on with its entries; they
are compared with each other only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

__all__ = ["AppliedFacts"]


class AppliedFacts:
    """Facts by epoch and index; `epoch` is the number of the one that a node belongs to."""

    def __init__(self, violated: Callable[[str, str], NoReturn]) -> None:
        self._violated = violated
        # Of epoch n > 0: the last index that it shares with the one before, at n - 1.
        self._shared: list[int] = []
        # Of each epoch: the checksum of the body of each entry, the digest at some indexes.
        self._checksums: list[dict[int, int]] = [{}]
        self._digests: list[dict[int, str]] = [{}]

    def fork(self, index: int) -> None:
        """A new epoch begins, whose log is that of the newest one up to here."""
        self._shared.append(index)
        self._checksums.append({})
        self._digests.append({})

    def applied(self, name: str, epoch: int, index: int, checksum: int) -> None:
        """A node applies an entry."""
        known = self._checksums[self._holder(epoch, index)]
        if known.setdefault(index, checksum) != checksum:
            self._violated(
                "state-machine safety", f"{name} applies something else at index {index}"
            )

    def reached(self, name: str, epoch: int, index: int, digest: str) -> None:
        """A node's state has this digest after this index."""
        known = self._digests[self._holder(epoch, index)]
        if known.setdefault(index, digest) != digest:
            self._violated("equal digests", f"{name} has another state at index {index}")

    def _holder(self, epoch: int, index: int) -> int:
        """The first epoch that has this entry of this one."""
        # A recovery that no test announced has forked nothing.
        epoch = min(epoch, len(self._shared))
        while epoch and index <= self._shared[epoch - 1]:
            epoch -= 1
        return epoch

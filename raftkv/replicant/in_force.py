"""The configuration in force where a replicant stands, known or not.

A replicant that becomes a core begins its log with the configuration in force at its applied index,
and with no other one: a later one, or one that is not committed, would let it count by voters that
the log up to there does not name. It passes every configuration entry on its way. What it cannot
see is the one at the index of a snapshot, so its upstream sends it with the snapshot, and again
behind each `Follow` (`wire.FeedConfiguration`, from core format 2 on).

Rules of this file: pure. What an upstream names is committed: it sends nothing else.
"""

from __future__ import annotations

from raftkv.errors import Diverged
from raftkv.raft.membership import EMPTY, Configuration

__all__ = ["InForce"]


class InForce:
    """Moves along with the applied index. `configuration` is None while it is not known."""

    __slots__ = ("_coming", "configuration", "index", "since")

    def __init__(self) -> None:
        #: The applied index. No log has a configuration at its start.
        self.index = 1
        self.configuration: Configuration | None = EMPTY
        #: The index of the entry that holds it; 0: not known.
        self.since = 0
        # The latest that was named for an index which is not reached yet.
        self._coming: tuple[int, Configuration, int] | None = None

    def told(self, index: int, configuration: Configuration, since: int = 0) -> None:
        """The upstream names the one at `index`. Raises Diverged if the log said another."""
        if index == self.index:
            self._settle(configuration, since)
        elif index > self.index:
            self._coming = (index, configuration, since)

    def passed(self, index: int, configuration: Configuration | None) -> None:
        """The entry at `index` is applied; its configuration, if it holds one. Raises Diverged."""
        self.index = index
        if configuration is not None:
            self.configuration, self.since = configuration, index
        if self._coming is not None and self._coming[0] == index:
            _, coming, since = self._coming
            self._coming = None
            self._settle(coming, since)

    def jumped(self, index: int) -> None:
        """The state is that of a snapshot at `index`. Raises Diverged."""
        self.configuration, self.since = None, 0
        self.passed(index, None)

    def _settle(self, configuration: Configuration, since: int) -> None:
        known = self.configuration
        differs = known is not None and known != configuration
        if differs or (0 not in (since, self.since) and since != self.since):
            raise Diverged(
                f"the upstream holds {configuration} at entry {self.index} (since {since}); the "
                f"entries that this replicant has applied say {known} (since {self.since}). "
                f"Restart it: it copies the state again. If that lasts, the cores disagree: "
                f"compare their logs"
            )
        self.configuration, self.since = configuration, since or self.since

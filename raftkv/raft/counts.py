"""What an engine has done since it was made: plain numbers that the node's metrics read.

They decide nothing, and nothing in consensus reads them. Everything here is touched at most once
per entry, write, round or message; see raftkv/histogram.py for what that costs.
"""

from __future__ import annotations

from raftkv.histogram import COUNTS, LONG_SECONDS, Histogram

__all__ = ["Counts"]


class Counts:
    """docs/metrics.md gives the meaning of each, under the name it is shown by."""

    def __init__(self) -> None:
        self.pre_votes = 0
        self.elections = 0
        self.elections_won = 0
        self.step_downs = 0
        self.leader_changes = 0
        self._led: tuple[int, str] | None = None
        self.heartbeats_late = 0
        self.read_rounds = 0
        self.commands_refused = 0
        # On a leader: from the making of an entry to its commit.
        self.commit_s = Histogram()
        self.batch_commands = Histogram(COUNTS)
        # In the disk's thread: one write with its fdatasync. Only that thread observes.
        self.fsync_s = Histogram()
        # Applying one entry.
        self.apply_s = Histogram()
        self.appends_dropped = 0
        self.snapshots_written = 0
        self.snapshots_failed = 0
        self.snapshot_written_bytes = 0
        self.snapshot_write_s = Histogram(LONG_SECONDS)
        self.snapshots_sent = 0
        self.snapshot_sent_bytes = 0
        self.snapshots_installed = 0
        self.snapshot_received_bytes = 0
        self.snapshots_damaged = 0
        self.descriptors_lacked = 0

    def led_by(self, term: int, leader: str) -> None:
        """Somebody leads this term. Losing sight of a leader and seeing it again is no change."""
        if self._led != (term, leader):
            self._led = (term, leader)
            self.leader_changes += 1

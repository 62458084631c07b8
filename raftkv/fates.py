"""What became of commands: counters that the node's metrics read, and nobody else."""

from __future__ import annotations

from .errors import NoLeader, Stopped, Timeout

__all__ = ["Fates"]


class Fates:
    """What became of commands, counted for the metrics of a node.

    `unknown`: their callers got `Timeout`. `cancelled`: their callers had left. `left_out`: by a
    core that does not take them (rejecting.py), and known as not applied. The four limits refused
    commands before they were taken. The outbox does not count `applied`, it knows it
    (`Outbox.applied`).
    """

    def __init__(self) -> None:
        self.applied = 0
        self.refused = 0
        self.unknown = 0
        self.no_leader = 0
        self.stopped = 0
        self.left_out = 0
        self.cancelled = 0
        self.over_commands_max = 0
        self.over_bytes_max = 0
        self.over_window = 0
        self.too_large = 0

    @property
    def failures(self) -> int:
        """Commands that were taken and have ended without a result."""
        ended = self.refused + self.unknown + self.no_leader + self.stopped + self.left_out
        return ended + self.cancelled

    def failed(self, error: Exception) -> None:
        if isinstance(error, Timeout):
            self.unknown += 1
        elif isinstance(error, NoLeader):
            self.no_leader += 1
        elif isinstance(error, Stopped):
            self.stopped += 1
        else:
            self.left_out += 1

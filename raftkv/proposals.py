"""What a core takes over from other nodes as proposals: each command is looked at first.

An entry that is no batch of commands would stop every node that applies it, so a leader checks
what it did not encode itself. A bad command is the fault of the node that made it, and seldom of
the node that sent the message: a core passes on what its replicants propose. It is therefore
dropped, counted, reported in the log and to its origin (rejecting.py), and the stream goes on; the
commands beside it are taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from .errors import TooLarge
from .rejecting import Reject, ignored
from .repeats import Repeats
from .state import check_envelope

__all__ = ["Proposals"]

log = logging.getLogger("raftkv.proposals")


class Proposals:
    """The check of one core. `bytes_max` is its `limits.command_bytes_max`."""

    def __init__(self, bytes_max: int, monotonic: Callable[[], float]) -> None:
        self._bytes_max = bytes_max
        self._repeats = Repeats(monotonic)
        # For the metrics: commands that were dropped.
        self.rejected = 0

    def fit(
        self, sender: str, commands: Sequence[bytes], reject: Reject = ignored
    ) -> Sequence[bytes]:
        """Those that may become part of an entry, in their order; `reject` gets the others."""
        reasons = [self._why_not(command) for command in commands]
        bad = [reason for reason in reasons if reason]
        if not bad:
            return commands
        self.rejected += len(bad)
        self._report(sender, bad[0])
        for command, why in zip(commands, reasons, strict=True):
            if why:
                # What is no command at all has no origin.
                reject(command, TooLarge.code, f"the leader does not take the command: {why}")
        return [command for command, why in zip(commands, reasons, strict=True) if not why]

    def _why_not(self, command: bytes) -> str:
        if len(command) > self._bytes_max:
            return (
                f"it holds a command above limits.command_bytes_max of this node, "
                f"{self._bytes_max} bytes: give all nodes the same limit"
            )
        return "" if check_envelope(command) else "it holds something that is no command"

    def _report(self, sender: str, reason: str) -> None:
        left_out = self._repeats.left_out(sender, reason)
        if left_out is not None:
            more = f" (and {left_out} times more since the last line)" if left_out else ""
            log.warning(
                "a part of a proposal that came by %s is dropped: %s%s", sender, reason, more
            )

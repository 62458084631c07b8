"""Messages of other cores that wait for a tick: bounded, however long the disk hangs.

While a write is under way no message is handled, and a leader whose follower does not answer goes
on: a heartbeat at each interval, the entries from where the follower was known to be. So

1. Of what only tells how things stand, the newest of each peer is kept: heartbeats (those that want
   an answer apart from those that do not, since an answer may confirm reads), vote requests and
   their answers, `TimeoutNow`. They are never dropped for others, so an election time-out is judged
   by what has really arrived (rule 27).
2. All else is dropped beyond a number and beyond a number of bytes. Raft bears that: entries,
   answers and chunks are sent again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from raftkv.config import Limits

from . import wire
from .counts import Counts

__all__ = ["INBOX_APPENDS_MAX", "INBOX_MESSAGES_MAX", "MESSAGE_BYTES", "Inbox"]

# Messages that may wait before further entries are dropped: a leader that gets no answer sends
# the same ones at each heartbeat.
INBOX_APPENDS_MAX: Final = 256
# Messages of any kind that may wait: answers, chunks. Several times what a leader has on its way
# to all its followers; 8,192 are about 2 MB.
INBOX_MESSAGES_MAX: Final = 8192
# What a message takes besides the payloads it carries.
MESSAGE_BYTES: Final = 256

# (sender, kind, variant): of each, one message waits.
_Slot = tuple[str, type[wire.Message], bool]


class Inbox:
    """The messages that wait, in the order in which they arrived."""

    def __init__(self, limits: Limits, counts: Counts) -> None:
        # Twice what a leader with the same limits has on its way.
        self.bytes_max = 2 * (limits.inflight_bytes_max + limits.snapshot_inflight_bytes_max)
        self.bytes = 0
        self._counts = counts
        self._number = 0
        self._waiting: dict[int, tuple[str, wire.Consensus, int]] = {}
        self._newest: dict[_Slot, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[tuple[str, wire.Consensus]]:
        return ((peer, message) for peer, message, _ in self._waiting.values())

    def add(self, peer: str, message: wire.Consensus) -> None:
        """Take a message, in place of an older one of its kind, or drop it."""
        size = MESSAGE_BYTES
        slot = _slot(peer, message)
        if slot is None:
            size += _payload_bytes(message)
            full = INBOX_APPENDS_MAX if type(message) is wire.Append else INBOX_MESSAGES_MAX
            if len(self._waiting) >= full or self.bytes >= self.bytes_max:
                self._counts.appends_dropped += 1
                return
        self._number = number = self._number + 1
        if slot is not None:
            older = self._newest.get(slot)
            if older is not None:
                self.bytes -= self._waiting.pop(older)[2]
            self._newest[slot] = number
        self._waiting[number] = (peer, message, size)
        self.bytes += size

    def take(self) -> list[tuple[str, wire.Consensus]]:
        """All that wait, in order; none is left."""
        messages = list(self)
        self.clear()
        return messages

    def put_back(self, messages: list[tuple[str, wire.Consensus]]) -> None:
        """Those that were taken and not handled; nothing has arrived meanwhile."""
        assert not self._waiting
        for peer, message in messages:
            self.add(peer, message)

    def clear(self) -> None:
        """Forget all that wait."""
        self._waiting.clear()
        self._newest.clear()
        self.bytes = 0


def _slot(peer: str, message: wire.Consensus) -> _Slot | None:
    """Where a message takes the place of an older one; None if all of its kind are needed."""
    kind = type(message)
    if kind is wire.Append:
        assert isinstance(message, wire.Append)
        return None if message.entries else (peer, kind, message.round != wire.NO_ANSWER)
    if isinstance(message, wire.Vote | wire.VoteReply):
        return peer, kind, message.pre_vote
    return (peer, kind, False) if kind is wire.TimeoutNow else None


def _payload_bytes(message: wire.Consensus) -> int:
    if isinstance(message, wire.Append):
        return sum(len(payload) for _, payload in message.entries)
    return len(message.data) if isinstance(message, wire.SnapshotChunk) else 0

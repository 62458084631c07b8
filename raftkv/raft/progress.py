"""What a leader knows of one follower: Probe, Replicate, Snapshot (rule 24, after etcd's raft).

Rules of this file: pure. All indexes are of the leader's log.

Theory. `match` is the highest index known to be on the follower's disk; it never goes back within
one leadership. `next` is the next index to send: always `match < next <= last + 1`. In *Probe* the
leader does not know where the logs agree: it sends one message and waits for the answer. In
*Replicate* it streams ahead, bounded by the bytes in flight. In *Snapshot* the follower needs
entries that the log no longer holds; appends pause until the snapshot is installed. A lost
connection loses messages, so it leads back to Probe.

An answer may be late or repeated: an acknowledgement only raises, and a rejection counts only if
it echoes the `prev` of the probe in flight. One that echoes it and lies at or below `match` says
that the follower lost what it had acknowledged: its disk lied, or it runs without fsync. No step
back can be right then, because its acknowledgement may have committed the entry; the leader tells.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Protocol

__all__ = ["Flow", "Progress"]


# Every log begins behind entry 1, which it never had to receive: no hint leads below this.
FIRST_INDEX = 2


class Flow(IntEnum):
    PROBE = 1
    REPLICATE = 2
    SNAPSHOT = 3


class _Terms(Protocol):
    @property
    def base_index(self) -> int: ...

    def term_at(self, index: int) -> int | None: ...


class Progress:
    """One follower, as the leader sees it in this term."""

    __slots__ = (
        "_inflight",
        "_inflight_bytes",
        "_probe_sent",
        "flow",
        "heard_at",
        "match",
        "next",
        "snapshot_index",
    )

    def __init__(self, last_index: int, now: float) -> None:
        self.match = 0
        self.next = last_index + 1
        self.flow = Flow.PROBE
        self.heard_at = now
        self.snapshot_index = 0
        self._probe_sent = False
        self._inflight: deque[tuple[int, int]] = deque()
        self._inflight_bytes = 0

    @property
    def inflight_bytes(self) -> int:
        return self._inflight_bytes

    def may_send(self, inflight_bytes_max: int) -> bool:
        """Whether entries may be sent now."""
        if self.flow is Flow.REPLICATE:
            return self._inflight_bytes < inflight_bytes_max
        return self.flow is Flow.PROBE and not self._probe_sent

    def sent(self, last_index: int, size_bytes: int) -> None:
        """A message with entries up to `last_index` (or none: `next - 1`) is on its way."""
        if self.flow is Flow.REPLICATE:
            if last_index >= self.next:
                self.next = last_index + 1
                self._inflight.append((last_index, size_bytes))
                self._inflight_bytes += size_bytes
        else:
            self._probe_sent = True

    def acknowledged(self, match: int, last_index: int) -> bool:
        """The follower holds everything up to `match` durably. True if that is news."""
        assert match <= last_index, (match, last_index)
        while self._inflight and self._inflight[0][0] <= match:
            self._inflight_bytes -= self._inflight.popleft()[1]
        news = match > self.match
        self.match = max(self.match, match)
        if self.flow is Flow.PROBE:
            # An answer to a bare heartbeat says less than the probe asked.
            replicate = match >= self.next - 1
        else:
            replicate = self.flow is Flow.SNAPSHOT and self.match >= self.snapshot_index
        self.next = max(self.next, self.match + 1)
        if replicate:
            self.flow = Flow.REPLICATE
            self._probe_sent = False
            self.next = self.match + 1
        return news

    def rejected(self, prev_index: int, hint_term: int, hint_index: int, log: _Terms) -> bool:
        """The follower does not hold `prev_index`: step back, a whole term at a time.

        False if that cannot be: it answers the probe in flight and lacks what it acknowledged.
        """
        if self.flow is Flow.PROBE and prev_index != self.next - 1:
            return True
        if prev_index <= self.match:
            return not (self.flow is Flow.PROBE and self.match)
        if self.flow is Flow.SNAPSHOT:
            return True
        guess = hint_index
        if hint_term:
            index = prev_index - 1
            while index > max(hint_index, log.base_index) and (log.term_at(index) or 0) > hint_term:
                index -= 1
            if index >= hint_index and log.term_at(index) == hint_term:
                guess = index + 1
        self._to_probe(max(self.match + 1, FIRST_INDEX, min(prev_index, guess)))
        return True

    def disconnected(self) -> None:
        """What was in flight is lost; find out again where the logs agree."""
        self._to_probe(self.match + 1 if self.match else self.next)

    def probe_again(self) -> None:
        """A heartbeat interval has passed without an answer: the probe may be repeated."""
        self._probe_sent = False

    def needs_snapshot(self, index: int) -> None:
        """The entries at `next` are gone; a snapshot at `index` is being sent."""
        self._to_probe(self.next)
        self.flow = Flow.SNAPSHOT
        self.snapshot_index = index

    def snapshot_failed(self) -> None:
        """The transfer broke off; probe, which starts another if it is still needed."""
        self._to_probe(self.match + 1 if self.match else self.next)

    def _to_probe(self, next_index: int) -> None:
        self.flow = Flow.PROBE
        self.next = next_index
        self.snapshot_index = 0
        self._probe_sent = False
        self._inflight.clear()
        self._inflight_bytes = 0

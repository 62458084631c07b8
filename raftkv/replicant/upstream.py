"""The core's side of replication to replicants: every core may feed any number of them.

A feed sends committed entries only, in order, from where the replicant stands. It is bounded by
the bytes that the replicant has not yet reported as applied, so a slow one costs this core a fixed
amount of memory. Two feeds at the same position share one encoded frame.

Rule 18: a core that restarted may stand lower than its replicants; it waits until it has caught
up. A replicant whose (index, term) this core's log contradicts has diverged: it is told so and
stops. The leader's cost does not grow with the number of replicants, because each core feeds its
own.

The log keeps what lies behind a snapshot that is on its way to a replicant (rule 25): otherwise a
core that is written to fast would send one snapshot after the other, and never an entry. A
replicant that takes nothing of one for SNAPSHOT_STALL_S is cut off, for it holds up the log, and
the state as it was, with all that has changed since.

Each snapshot under way costs every command that is applied meanwhile, because the values that it
changes are kept for each of them. So at most `replicant_snapshots_max` are under way; the other
replicants wait, first come, first served, and hold up nothing until their turn comes. While some
wait, one that takes less than SNAPSHOT_BYTES_PER_S_MIN loses its turn: its stream is closed, it
dials again, and waits behind the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from raftkv.presence import Stream
from raftkv.raft import wire
from raftkv.raft.membership import encode, name_of

if TYPE_CHECKING:
    from raftkv.raft.engine import Engine
    from raftkv.raft.transport import Link
    from raftkv.runtime import Timer

__all__ = ["Feeds"]

log = logging.getLogger("raftkv.replicant")

# How often an idle feed says that it is alive and who leads.
STATUS_S = 0.2
# A snapshot's rows per slice: encoding one here, decoding it there takes a millisecond or two.
SLICE_ROWS = 500
# Between two slices. The loop has other work; 10^6 rows are on their way within ten seconds.
SLICE_PAUSE_S = 0.002
# A replicant that takes nothing of a snapshot for so long, or does not say that it has it, is gone
# as far as this core is concerned. It dials again.
SNAPSHOT_STALL_S = 30.0
# The least that a replicant must take of a snapshot while others wait for their turn, measured over
# such a time. Less would not do to follow a core that is written to, and a turn is one of few.
SNAPSHOT_TURN_S = 30.0
SNAPSHOT_BYTES_PER_S_MIN = 64 * 1024
# What a message adds to a chunk of a snapshot: a few numbers.
MESSAGE_HEAD_BYTES_MAX = 1024
# Entries in one message, and bytes if it has several, for the same reason.
MESSAGE_ENTRIES_MAX = 512
MESSAGE_BYTES_MAX = 512 * 1024
# What is sent to one replicant before the loop may do something else.
TURN_BYTES_MAX = 2 * 1024 * 1024


class Feed:
    """One replicant following this core."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.next: int | None = None
        self.applied = 0
        # Whether the log has had this node as the one of its name since the stream began.
        self.named = False
        # Whether this stream has carried the configuration in force.
        self.configured = False
        # From when it waits for a snapshot until it has been sent one.
        self.snapshotting = False
        # The index of the last snapshot until it is reported as installed, and when something of it
        # last moved.
        self.snapshot_index: int | None = None
        self.moved_at = 0.0
        # Of the snapshot: where its rate is measured from, and the bytes taken by then.
        self.measured_at = 0.0
        self.measured_bytes = 0
        self._inflight: deque[tuple[int, int]] = deque()
        self.inflight_bytes = 0

    def sent(self, last: int, size_bytes: int) -> None:
        self.next = last + 1
        self._inflight.append((last, size_bytes))
        self.inflight_bytes += size_bytes

    def progressed(self, index: int) -> None:
        self.applied = max(self.applied, index)
        if self.snapshot_index is not None and index >= self.snapshot_index:
            self.snapshot_index = None
        while self._inflight and self._inflight[0][0] <= index:
            self.inflight_bytes -= self._inflight.popleft()[1]


class Feeds:
    """All replicants that follow this core."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._feeds: dict[str, Feed] = {}
        self._frames: dict[tuple[int, int], bytes] = {}
        self._timer: Timer | None = None
        self._leader_at = engine.runtime.monotonic()
        # The raft id of the node of a name that is up by the log, if one is.
        self.holder: Callable[[str], str | None] = lambda name: None
        self.snapshots_sent = 0
        self.snapshot_sent_bytes = 0
        # Snapshots under way, and the replicants whose turn is to come.
        self.snapshots_sending = 0
        self.snapshot_turns_lost = 0
        self._waiting: deque[Feed] = deque()

    @property
    def snapshots_waiting(self) -> int:
        """Replicants that wait for their turn to get a snapshot."""
        return len(self._waiting)

    @property
    def names(self) -> list[str]:
        """The replicants that follow this core now."""
        return sorted(name_of(raft_id) for raft_id in self._feeds)

    def streams(self) -> list[Stream]:
        """The streams to the replicants that follow this core now."""
        since = self._engine.runtime.monotonic() - SNAPSHOT_STALL_S
        return [
            Stream(
                name_of(raft_id),
                feed.link,
                feed.applied,
                feed in self._waiting
                or (feed.snapshot_index is not None and feed.moved_at >= since),
            )
            for raft_id, feed in self._feeds.items()
        ]

    @property
    def standings(self) -> dict[str, tuple[int, int]]:
        """Of each replicant: the entry that it has applied, and bytes on their way to it."""
        return {
            name_of(raft_id): (feed.applied, feed.inflight_bytes)
            for raft_id, feed in self._feeds.items()
        }

    def hello_of(self, raft_id: str) -> wire.Hello | None:
        """The handshake of the replicant that follows under this raft id."""
        feed = self._feeds.get(raft_id)
        return None if feed is None else feed.link.peer

    def link_up(self, link: Link) -> None:
        older = self._feeds.get(link.peer_id)
        self._feeds[link.peer_id] = Feed(link)
        if older is not None:
            if older in self._waiting:
                self._waiting.remove(older)
            older.link.close()
        self._say_status(link)
        if self._timer is None:
            self._timer = self._engine.runtime.call_later(STATUS_S, self._status)

    def link_down(self, link: Link) -> None:
        feed = self._feeds.get(link.peer_id)
        if feed is not None and feed.link is link:
            del self._feeds[link.peer_id]
            if feed in self._waiting:
                self._waiting.remove(feed)

    def on_follow(self, link: Link, message: wire.Follow) -> None:
        feed = self._feeds.get(link.peer_id)
        if feed is None or feed.link is not link:
            return
        engine = self._engine
        if message.index <= engine.commit:
            term = engine.wal.term_at(message.index)
            if term is not None and term != message.term:
                link.send(
                    wire.Refusal(
                        "diverged",
                        f"entry {message.index} has term {term} here, not {message.term}",
                    )
                )
                link.close()
                return
        feed.next = message.index + 1
        feed.applied = message.index
        self._push(feed)

    def on_progressed(self, link: Link, message: wire.Progressed) -> None:
        feed = self._feeds.get(link.peer_id)
        if feed is not None:
            feed.progressed(message.index)
            self._push(feed)

    def progressed(self) -> None:
        """The commit index has moved."""
        self._frames.clear()
        for feed in self._feeds.values():
            self._push(feed)

    def office_changed(self) -> None:
        for feed in self._feeds.values():
            self._say_status(feed.link)

    def _push(self, feed: Feed) -> None:
        engine, wal = self._engine, self._engine.wal
        if feed.next is None or feed.snapshotting:
            return
        self._send_configuration(feed)
        sent_bytes = 0
        while feed.next <= engine.commit:
            if sent_bytes >= TURN_BYTES_MAX:
                engine.runtime.call_soon(self._push_again, feed)
                return
            if feed.inflight_bytes >= engine.limits.inflight_bytes_max:
                return
            prev_index = feed.next - 1
            prev_term = wal.term_at(prev_index)
            if prev_term is None:
                self._start_snapshot(feed)
                return
            entries = wal.entries(feed.next, engine.commit, MESSAGE_BYTES_MAX, MESSAGE_ENTRIES_MAX)
            last = prev_index + len(entries)
            frame = self._frames.get((prev_index, last))
            if frame is None:
                pairs = [(entry.term, entry.payload) for entry in entries]
                frame = wire.encode(wire.Feed(prev_index, prev_term, engine.commit, pairs))
                # The next feed at the head takes it too. Those of one that lags are its own.
                if last == engine.commit:
                    self._frames[prev_index, last] = frame
            feed.link.send_frame(frame)
            feed.sent(last, len(frame))
            sent_bytes += len(frame)

    def _send_configuration(self, feed: Feed) -> None:
        """Once in a stream: the configuration in force behind what was sent (in_force.py)."""
        engine = self._engine
        if feed.configured or feed.next is None or engine.application.core_format < 2:
            return
        index = feed.next - 1
        # What was in force before the base is not known, and what lies above the commit index may
        # be rolled back.
        if engine.configurations.base_index <= index <= engine.commit:
            configuration = engine.configurations.at(index)
            since = engine.configurations.since(index)
            feed.link.send(wire.FeedConfiguration(index, encode(configuration), since))
            feed.configured = True

    def _push_again(self, feed: Feed) -> None:
        if self._is_current(feed):
            self._push(feed)

    def _is_current(self, feed: Feed) -> bool:
        """Whether this is still how that replicant follows."""
        return self._feeds.get(feed.link.peer_id) is feed

    # -- too far behind

    def _start_snapshot(self, feed: Feed) -> None:
        """It is sent a snapshot as soon as it is its turn."""
        feed.snapshotting = True
        self._waiting.append(feed)
        self._next_snapshot()

    def _next_snapshot(self) -> None:
        at_once = self._engine.limits.replicant_snapshots_max
        while self._waiting and self.snapshots_sending < at_once:
            feed = self._waiting.popleft()
            if self._is_current(feed) and not self._engine.stopped:
                self.snapshots_sending += 1
                self._engine.runtime.spawn(self._take_turn(feed), "snapshot for a replicant")

    async def _take_turn(self, feed: Feed) -> None:
        ends = False
        try:
            await self._engine.applying.idle()
            # It may have gone, or this core ended, meanwhile.
            if self._is_current(feed) and not self._engine.stopped:
                await self._send_snapshot(feed)
        except (asyncio.CancelledError, GeneratorExit):
            # Only the end of the loop cancels it, and then nothing new may begin.
            ends = True
            raise
        finally:
            self.snapshots_sending -= 1
            if not ends:
                self._next_snapshot()

    async def _send_snapshot(self, feed: Feed) -> None:
        engine, link = self._engine, feed.link
        index = feed.snapshot_index = engine.applied
        feed.moved_at = engine.runtime.monotonic()
        term = engine.wal.term_at(index)
        assert term is not None
        frozen = engine.application.freeze()
        # Before the log is compacted beyond it.
        configuration = encode(engine.configurations.at(index))
        since = engine.configurations.since(index)
        number = sent_bytes = 0
        feed.measured_at, feed.measured_bytes = feed.moved_at, -link.unsent_bytes
        try:
            bytes_max = engine.limits.frame_bytes_max - MESSAGE_HEAD_BYTES_MAX
            for chunk in frozen.slices(SLICE_ROWS, bytes_max):
                link.send(wire.FeedSnapshot(index, term, number, False, chunk))
                number += 1
                self.snapshot_sent_bytes += len(chunk)
                sent_bytes += len(chunk)
                await engine.runtime.sleep(SLICE_PAUSE_S)
                await self._taken(feed, sent_bytes)
                if not link.up or engine.stopped:
                    return
            if engine.application.core_format >= 2:
                link.send(wire.FeedConfiguration(index, configuration, since))
                feed.configured = True
            link.send(wire.FeedSnapshot(index, term, number, True, b""))
            feed.next = index + 1
            self.snapshots_sent += 1
        finally:
            frozen.close()
            feed.snapshotting = False
        log.info("sent a snapshot at index %d to %s", index, link.peer_name)
        self._push(feed)

    async def _taken(self, feed: Feed, sent_bytes: int) -> None:
        """Return when there is room on the way for more, or when the link is down.

        `sent_bytes`: of the snapshot so far.
        """
        engine, link = self._engine, feed.link
        least_bytes = link.unsent_bytes
        feed.moved_at = engine.runtime.monotonic()
        while link.unsent_bytes > engine.limits.snapshot_inflight_bytes_max and link.up:
            await engine.runtime.sleep(0.01)
            now = engine.runtime.monotonic()
            if link.unsent_bytes < least_bytes:
                least_bytes, feed.moved_at = link.unsent_bytes, now
            if now - feed.moved_at > SNAPSHOT_STALL_S:
                log.warning("%s takes nothing of a snapshot: cut off", link.peer_name)
                link.abort()
                return
            if self._too_slow(feed, sent_bytes - link.unsent_bytes, now):
                log.warning("%s takes a snapshot too slowly, others wait: cut off", link.peer_name)
                self.snapshot_turns_lost += 1
                link.abort()
                return

    def _too_slow(self, feed: Feed, taken_bytes: int, now: float) -> bool:
        """Whether a replicant that waits should have the turn of this one."""
        seconds = now - feed.measured_at
        if seconds < SNAPSHOT_TURN_S:
            return False
        slow = taken_bytes - feed.measured_bytes < SNAPSHOT_BYTES_PER_S_MIN * seconds
        feed.measured_at, feed.measured_bytes = now, taken_bytes
        return slow and len(self._waiting) > 0

    def in_transit(self) -> list[int]:
        """The indexes of snapshots on their way to replicants that take them."""
        since = self._engine.runtime.monotonic() - SNAPSHOT_STALL_S
        return [
            feed.snapshot_index
            for feed in self._feeds.values()
            if feed.snapshot_index is not None and feed.moved_at >= since
        ]

    # -- who leads

    def _status(self) -> None:
        self._timer = None
        if self._engine.stopped or not self._feeds:
            return
        for raft_id, feed in list(self._feeds.items()):
            if self._is_displaced(raft_id, feed):
                continue
            self._say_status(feed.link)
            if not feed.snapshotting:
                self._send_configuration(feed)  # the format may have been raised meanwhile
        self._timer = self._engine.runtime.call_later(STATUS_S, self._status)

    def _is_displaced(self, raft_id: str, feed: Feed) -> bool:
        """Whether another node has taken the name since; it must be judged again then.

        Two nodes that come at once are both let in, as none of them is in the log yet, and would
        end each other's incarnation for as long as both streams stand.
        """
        holder = self.holder(name_of(raft_id))
        if holder == raft_id:
            feed.named = True
        elif holder is not None and feed.named:
            log.warning("%s is another node in the log now (%s)", feed.link.peer_name, holder)
            feed.link.close()
            return True
        return False

    def _say_status(self, link: Link) -> None:
        engine = self._engine
        now = engine.runtime.monotonic()
        if engine.leader is not None:
            self._leader_at = now
        leader = "" if engine.leader is None else name_of(engine.leader)
        age_ms = int((now - self._leader_at) * 1000)
        link.send(wire.LeaderChanged(leader, engine.term, age_ms))

    def refuse_all(self, refusal: wire.Refusal) -> None:
        """What they have copied from here is not to be relied on."""
        for feed in list(self._feeds.values()):
            feed.link.send(refusal)
            feed.link.close()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._feeds.clear()
        self._waiting.clear()

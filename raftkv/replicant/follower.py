"""The replicant's side: follow one core, move to another when it dies or has lost the leader.

A replicant is no raft member. It applies the committed entries that its upstream sends, keeps the
state in memory, and after a restart asks for everything again (a snapshot, then entries).

Rule 18, what is checked here: every feed continues exactly behind (applied index, its term); a
mismatch is a NodeFault, because either log is then wrong. A snapshot at or below the applied
index is ignored: state never goes back.

An upstream is left when its stream ends, when it says nothing for longer than an election
time-out, or when it has itself not known a leader for that long.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from raftkv.config import NodeConfig
from raftkv.errors import Diverged, NodeFault
from raftkv.raft import wire
from raftkv.raft.transport import Hub, Link
from raftkv.runtime import Runtime

__all__ = ["Follower", "ReplicantApplication"]

log = logging.getLogger("raftkv.replicant")

BATCH = 0
# Entries applied before the loop may do something else.
APPLY_ENTRIES_PER_TURN = 16
# Between attempts to reach an upstream; every core is tried in turn.
RETRY_S = 0.05


class ReplicantApplication(Protocol):
    """What a follower drives: the part of the engine's application that concerns it."""

    def apply(self, index: int, body: bytes) -> None: ...

    def skip(self, index: int) -> None: ...

    def restore(self, chunks: Iterable[bytes], index: int) -> None: ...

    def progressed(self) -> None: ...

    def office_changed(self) -> None: ...

    def faulted(self, fault: NodeFault) -> None: ...


class Follower:
    """One replicant's copy of the log's effects."""

    def __init__(
        self, config: NodeConfig, hub: Hub, runtime: Runtime, application: ReplicantApplication
    ) -> None:
        self._hub = hub
        self._runtime = runtime
        self._application = application
        self._timeout_s = config.raft.election_timeout_max_ms / 1000
        names = sorted(config.cores)
        # Spread replicants over the cores, the same way at every start.
        start = zlib.crc32(config.name.encode()) % len(names)
        self._cores = [(name, config.cores[name]) for name in names[start:] + names[:start]]
        self.applied = 1
        self.applied_term = 0
        self.upstream_commit = 0
        self.upstream: str | None = None
        self.leader: str | None = None
        self.term = 0
        self.link: Link | None = None
        # Injected replication lag in seconds, for benchmarks and tests.
        self.lag_s = 0.0
        self.stopped = False
        self._queue: deque[tuple[float, int, int, bytes]] = deque()
        self._queued = 1
        self._queued_term = 0
        self._scheduled = False
        self._snapshot: list[bytes] = []
        self._heard_at = 0.0
        self._ready: asyncio.Future[Link] | None = None
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._task = self._runtime.spawn(self._run(), "follow upstream")

    def stop(self) -> None:
        self.stopped = True
        if self._task is not None:
            self._task.cancel()

    # -- choosing an upstream

    async def _run(self) -> None:
        turn = 0
        while not self.stopped:
            name, address = self._cores[turn % len(self._cores)]
            turn += 1
            try:
                link = await self._hub.dial(address, "follow")
            except OSError:
                await self._runtime.sleep(RETRY_S)
                continue
            await self._watch(name, link)
            if not self.stopped:
                await self._runtime.sleep(RETRY_S)

    async def _watch(self, name: str, link: Link) -> None:
        """Stay with this upstream as long as it is any good."""
        self._heard_at = self._runtime.monotonic()
        while not link.closed.done():
            await asyncio.wait([link.closed], timeout=self._timeout_s / 4)
            silence = self._runtime.monotonic() - self._heard_at
            if silence > self._timeout_s:
                log.info("%s says nothing for %.1f s: trying another core", name, silence)
                link.abort()
                break
        await link.closed

    def link_up(self, link: Link) -> None:
        if link.dialled is None:
            # An upstream is chosen, never accepted: whoever dials in could feed any state.
            log.warning("%s wants to feed this replicant, which did not ask for it", link.peer_name)
            link.close()
            return
        self.link = link
        self.upstream = link.peer_name
        self._snapshot = []
        link.send(wire.Follow(self._queued, self._queued_term))
        self._application.office_changed()

    def link_down(self, link: Link) -> None:
        if self.link is link:
            self.link = None
            self.upstream = None
            self.leader = None
            self._application.office_changed()

    # -- what the upstream says

    def on_leader_changed(self, link: Link, message: wire.LeaderChanged) -> None:
        if link is not self.link:
            return
        self._heard_at = self._runtime.monotonic()
        if message.age_ms > self._timeout_s * 1000 and len(self._cores) > 1:
            log.info("%s knows no leader: trying another core", link.peer_name)
            link.close()
            return
        leader = message.leader or None
        if (leader, message.term) != (self.leader, self.term):
            self.leader, self.term = leader, max(self.term, message.term)
            self._application.office_changed()

    def on_feed(self, link: Link, message: wire.Feed) -> None:
        if link is not self.link:
            return
        self._heard_at = self._runtime.monotonic()
        self.upstream_commit = max(self.upstream_commit, message.commit)
        if (message.prev_index, message.prev_term) != (self._queued, self._queued_term):
            self._fault(
                Diverged(
                    f"{link.peer_name} continues behind entry {message.prev_index} of term "
                    f"{message.prev_term}; this replicant stands at {self._queued} of term "
                    f"{self._queued_term}. Restart it: it copies the state anew"
                )
            )
            return
        due = self._runtime.monotonic() + self.lag_s
        for term, payload in message.entries:
            self._queued += 1
            self._queued_term = term
            self._queue.append((due, self._queued, term, payload))
        self._schedule()

    def on_snapshot(self, link: Link, message: wire.FeedSnapshot) -> None:
        if link is not self.link:
            return
        self._heard_at = self._runtime.monotonic()
        if message.index <= self._queued:
            return
        if message.number != len(self._snapshot):
            link.close()
            return
        if not message.last:
            self._snapshot.append(message.data)
            return
        chunks, self._snapshot = self._snapshot, []
        # Everything queued lies below the snapshot: it is part of it.
        self._queue.clear()
        self._guard(lambda: self._application.restore(chunks, message.index))
        self.applied = self._queued = message.index
        self.applied_term = self._queued_term = message.term
        link.send(wire.Progressed(self.applied))
        self._application.progressed()

    def on_refusal(self, link: Link, message: wire.Refusal) -> None:
        if link is not self.link:
            return
        self._fault(
            Diverged(f"{link.peer_name} refuses this replicant: {message.reason}. Restart it")
        )

    # -- applying

    def _schedule(self) -> None:
        if self._queue and not self._scheduled and not self.stopped:
            self._scheduled = True
            wait = self._queue[0][0] - self._runtime.monotonic()
            if wait > 0:
                self._runtime.call_later(wait, self._apply)
            else:
                self._runtime.call_soon(self._apply)

    def _apply(self) -> None:
        self._scheduled = False
        self._guard(self._apply_due)
        if self.link is not None:
            self.link.send(wire.Progressed(self.applied))
        self._application.progressed()
        self._schedule()

    def _apply_due(self) -> None:
        now = self._runtime.monotonic()
        for _ in range(APPLY_ENTRIES_PER_TURN):
            if self.stopped or not self._queue or self._queue[0][0] > now:
                return
            _, index, term, payload = self._queue.popleft()
            assert index == self.applied + 1, (index, self.applied)
            if payload[0] == BATCH:
                self._application.apply(index, payload[1:])
            else:
                self._application.skip(index)
            self.applied, self.applied_term = index, term

    def _guard(self, action: Callable[[], None]) -> None:
        if self.stopped:
            return
        try:
            action()
        except NodeFault as fault:
            self._fault(fault)

    def _fault(self, fault: NodeFault) -> None:
        if not self.stopped:
            self.stop()
            log.error("the replicant stops itself: %s", fault)
            self._application.faulted(fault)

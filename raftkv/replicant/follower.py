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
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from raftkv import collector
from raftkv.config import NodeConfig
from raftkv.errors import CorruptState, DamagedSnapshot, Diverged, InternalFault, NodeFault
from raftkv.histogram import Histogram
from raftkv.leader_log import LeaderLog
from raftkv.raft import wire
from raftkv.raft.applying import Applying
from raftkv.raft.engine import (
    APPLY_S_PER_TICK,
    BATCH,
    CONFIGURATION,
    DIGEST,
    FORMAT,
    NO_OP,
    Loading,
    newer_kind,
)
from raftkv.raft.membership import decode
from raftkv.raft.transport import Hub, Link
from raftkv.runtime import Runtime

from .in_force import InForce

__all__ = ["Entries", "Follower", "ReplicantApplication"]

log = logging.getLogger("raftkv.replicant")

Entries = list[tuple[int, int, bytes]]
"""Entries of the log as (index, term, payload)."""

# Entries applied before the loop may do something else.
APPLY_ENTRIES_PER_TURN = 16
# Between attempts to reach an upstream; every core is tried in turn.
RETRY_S = 0.05
# The code of a refusal by a core that knows another node under this name, which still answers, or
# does so for all that the core knows yet: it has its answer within a pause or two, so it is tried
# twice. The pauses grow up to RETRY_MAX_S then: an operator has to do something first.
NAME_IN_USE = "name_in_use"
RETRY_MAX_S = 2.0
# The collector forgets what has been built of a snapshot so often (collector.py).
SETTLE_CHUNKS = 32


class ReplicantApplication(Protocol):
    """What a follower drives: the part of the engine's application that concerns it."""

    def apply(self, index: int, body: bytes, term: int) -> Iterator[None] | None: ...

    def skip(self, index: int) -> None: ...

    def raise_format(self, index: int, body: bytes) -> None: ...

    def take_digests(self, index: int) -> None: ...

    def loading(self) -> Loading: ...

    def progressed(self) -> None: ...

    def office_changed(self) -> None: ...

    def faulted(self, fault: NodeFault) -> None: ...


class Follower:
    """One replicant's copy of the log's effects."""

    def __init__(
        self,
        config: NodeConfig,
        hub: Hub,
        runtime: Runtime,
        application: ReplicantApplication,
        cores: Callable[[], list[tuple[str, str]]],
    ) -> None:
        """`cores` says, before every attempt, which (core, address) pairs are to be tried."""
        self._hub = hub
        self._runtime = runtime
        self._application = application
        self._timeout_s = config.raft.election_timeout_max_ms / 1000
        self._leader_log = LeaderLog(config.name, runtime.monotonic)
        self._cores = cores
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
        # While this node makes a log of its own: what was applied since. None once that is no
        # unbroken row of entries any more.
        self.kept: Entries | None = None
        self.in_force = InForce()
        #: The entry that is being applied: the first in the queue.
        self.applying = Applying(runtime)
        self._entry_s = 0.0
        self._queue: deque[tuple[float, int, int, bytes]] = deque()
        self._queued = 1
        self._queued_term = 0
        self._scheduled = False
        # The snapshot that is arriving: it is read as it comes, beside the state.
        self._loading: Loading | None = None
        self._snapshot_chunks = 0
        self._heard_at = 0.0
        # For the node's metrics.
        self.apply_s = Histogram()
        self.upstream_changes = 0
        self.snapshots_installed = 0
        self.snapshot_received_bytes = 0
        self._ready: asyncio.Future[Link] | None = None
        # Set by the node: discard the state and copy it again (`begin_anew`).
        self.on_corrupt_upstream: Callable[[], None] = lambda: None
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._task = self._runtime.spawn(self._run(), "follow upstream")

    def stop(self) -> None:
        self.stopped = True
        self.applying.drop()
        if self._task is not None:
            self._task.cancel()

    # -- choosing an upstream

    async def _run(self) -> None:
        turn, pause_s, again = 0, RETRY_S, False
        while not self.stopped:
            known = self._cores()
            name, address = known[turn % len(known)]
            turn += 1
            try:
                link = await self._hub.dial(address, "follow", name)
            except (OSError, ValueError):  # nothing listens there, or an address that is none
                await self._runtime.sleep(RETRY_S)
                continue
            await self._watch(name, link)
            in_use = link.refusal == NAME_IN_USE
            pause_s = min(2 * pause_s, RETRY_MAX_S) if in_use else RETRY_S
            again = in_use and not again
            turn -= again
            if not self.stopped:
                await self._runtime.sleep(pause_s)

    async def _watch(self, name: str, link: Link) -> None:
        """Stay with this upstream as long as it is any good."""
        self._heard_at = self._runtime.monotonic()
        while not link.closed.done():
            await asyncio.wait([link.closed], timeout=self._timeout_s / 4)
            silence = self._runtime.monotonic() - self._heard_at
            if silence > self._timeout_s:
                self._leader_log.missing(f"{name} has sent nothing for {silence:.1f} s")
                link.abort()
                break
        await asyncio.wait([link.closed])

    def link_up(self, link: Link) -> None:
        if link.dialled is None:
            # An upstream is chosen, never accepted: whoever dials in could feed any state.
            log.warning("%s wants to feed this replicant, which did not ask for it", link.peer_name)
            link.close()
            return
        self.link = link
        self.upstream = link.peer_name
        self.upstream_changes += 1
        self._drop_snapshot()
        link.send(wire.Follow(self._queued, self._queued_term))
        self._application.office_changed()

    def link_down(self, link: Link) -> None:
        if self.link is link:
            self.link = None
            self.upstream = None
            self.leader = None
            if not self.stopped:
                reason = f"the stream from {link.peer_name} ended"
                self._leader_log.changed(None, self.term, reason)
            self._application.office_changed()

    @property
    def silence_s(self) -> float:
        """Seconds since the upstream was heard; 0 before it ever was."""
        return self._runtime.monotonic() - self._heard_at if self._heard_at else 0.0

    @property
    def lag(self) -> tuple[int, float]:
        """Committed entries that are not applied here, and seconds since the oldest one came.

        The seconds are 0 while entries are known of and none has arrived.
        """
        entries = max(0, self.upstream_commit - self.applied)
        if not self._queue:
            return entries, 0.0
        came_at = self._queue[0][0] - self.lag_s
        return entries, max(0.0, self._runtime.monotonic() - came_at)

    def leave(self) -> None:
        """This node follows nobody any more: it has become a core."""
        self.stop()
        self._drop_snapshot()
        link, self.link = self.link, None
        if link is not None:
            link.close()

    def begin_anew(self) -> None:
        """Everything applied so far belongs to a history that was given up: stand at its start."""
        link, self.link = self.link, None
        self.upstream = self.leader = None
        self._queue.clear()
        self.applying.drop()
        self._drop_snapshot()
        self.kept = None
        self.in_force = InForce()
        self.applied = self._queued = 1
        self.applied_term = self._queued_term = self.term = self.upstream_commit = 0
        if link is not None:
            link.abort()
        self._application.office_changed()

    # -- what the upstream says

    def on_leader_changed(self, link: Link, message: wire.LeaderChanged) -> None:
        if link is not self.link:
            return
        self._heard_at = self._runtime.monotonic()
        lost = message.age_ms > self._timeout_s * 1000
        if lost and any(name != link.peer_name for name, _ in self._cores()):
            self._leader_log.missing(f"{link.peer_name} knows no leader; trying another core")
            link.close()
            return
        leader = message.leader or None
        if (leader, message.term) != (self.leader, self.term):
            self.leader, self.term = leader, max(self.term, message.term)
            self._leader_log.changed(leader, self.term, f"{link.peer_name} knows none")
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

    def on_configuration(self, link: Link, message: wire.FeedConfiguration) -> None:
        if link is self.link:
            self._heard_at = self._runtime.monotonic()
            index, since = message.index, message.since
            self._guard(lambda: self.in_force.told(index, decode(message.configuration), since))

    def on_snapshot(self, link: Link, message: wire.FeedSnapshot) -> None:
        if link is not self.link:
            return
        self._heard_at = self._runtime.monotonic()
        if message.index <= self._queued:
            return
        if message.number != self._snapshot_chunks:
            link.close()
            return
        self._snapshot_chunks += 1
        self.snapshot_received_bytes += len(message.data)
        try:
            self._guard(lambda: self._take_chunk(message))
        except DamagedSnapshot as damage:
            # Nothing on this node is damaged: another core may do better.
            log.warning("%s sends a snapshot that is none: %s", link.peer_name, damage.reason)
            self._drop_snapshot()
            self._forget_queue()
            link.close()
            return
        if not message.last or self.stopped:
            return
        self._loading, self._snapshot_chunks = None, 0
        self.snapshots_installed += 1
        self.kept = None
        self.applied = self._queued = message.index
        self.applied_term = self._queued_term = message.term
        self._guard(lambda: self.in_force.jumped(message.index))
        link.send(wire.Progressed(self.applied))
        self._application.progressed()

    def _take_chunk(self, message: wire.FeedSnapshot) -> None:
        if self._loading is None:
            self._loading = self._application.loading()
        if not message.last:
            self._loading.add(message.data)
            if message.number % SETTLE_CHUNKS == 0:
                collector.settle()
            return
        collector.settle()
        # First: if it is damaged, the entry under way is applied to its end.
        self._loading.adopt(message.index)
        # Everything queued lies below the snapshot: it is part of it.
        self._queue.clear()
        self.applying.drop()

    def _forget_queue(self) -> None:
        """Ask again for what is not applied. An entry that is under way is applied to its end."""
        self._queued, self._queued_term = self.applied, self.applied_term
        under_way = self._queue[0] if self.applying.busy else None
        self._queue.clear()
        if under_way is not None:
            self._queue.append(under_way)
            _, self._queued, self._queued_term, _ = under_way

    def _drop_snapshot(self) -> None:
        """What has arrived of a snapshot cannot be continued by anybody else."""
        loading, self._loading = self._loading, None
        self._snapshot_chunks = 0
        if loading is not None:
            loading.discard()

    def on_refusal(self, link: Link, message: wire.Refusal) -> None:
        if link is not self.link:
            return
        if message.code == CorruptState.code:
            log.warning("%s stops: %s", link.peer_name, message.reason)
            self.on_corrupt_upstream()
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
        began = now = self._runtime.monotonic()
        until = began + APPLY_S_PER_TICK
        for _ in range(APPLY_ENTRIES_PER_TURN):
            if self.stopped or not self._queue or self._queue[0][0] > began or now >= until:
                return
            _, index, term, payload = self._queue[0]
            assert index == self.applied + 1, (index, self.applied)
            if not self.applying.busy:
                self._begin(index, term, payload)
            ended = self.applying.run(until)
            before, now = now, self._runtime.monotonic()
            self._entry_s += now - before
            if not ended:
                return
            self._queue.popleft()
            self.applied, self.applied_term = index, term
            configures = payload[0] == CONFIGURATION
            self.in_force.passed(index, decode(payload[1:]) if configures else None)
            if self.kept is not None:
                self.kept.append((index, term, payload))
            self.apply_s.observe(self._entry_s)
            self._entry_s = 0.0
            if self.applying.ended():
                return

    def _begin(self, index: int, term: int, payload: bytes) -> None:
        """Apply an entry, or its first slice."""
        kind = payload[0]
        if kind == BATCH:
            self.applying.begin(self._application.apply(index, payload[1:], term))
        elif kind in (NO_OP, CONFIGURATION):
            self._application.skip(index)
        elif kind == FORMAT:
            self._application.raise_format(index, payload[1:])
        elif kind == DIGEST:
            self._application.take_digests(index)
        else:
            raise newer_kind(index, kind)

    def _guard(self, action: Callable[[], None]) -> None:
        if self.stopped:
            return
        try:
            action()
        except DamagedSnapshot:
            raise  # came from the upstream, not from this node's disk: see `on_snapshot`
        except NodeFault as fault:
            self._fault(fault)
        except Exception as error:
            # What was being applied is half done. Nothing may be applied behind it.
            log.error("an unexpected error in the replicant", exc_info=error)
            self._fault(
                InternalFault(
                    f"the replicant met an error that it does not know ({type(error).__name__}: "
                    f"{error}) and stops. Report it, then start the node again"
                )
            )

    def _fault(self, fault: NodeFault) -> None:
        if not self.stopped:
            self.stop()
            log.error("the replicant stops itself: %s", fault)
            self._application.faulted(fault)

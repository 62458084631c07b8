"""The SyncObj subclass: what is replaced, which module decides instead, which rule demands it.

PySyncObj's `SyncObj` stays the body: it holds role, term, vote, leader, log, commit and applied
index, appends the leader's no-op and gives the status. What decides is replaced whole:

    stock method                    decided by                          rules
    ------------------------------  ----------------------------------  ----------------------
    _onTick                         Engine._onTick (order of one tick)   12, 22, 26, 27
    __onMessageReceived             Engine._handle, following,           1, 2, 7, 9, 16, 21, 22
                                    campaigning, leading
    __sendAppendEntries             leading + progress                   24, 25, 31
    __applyLogEntries               Engine + applying (bounded per tick) 15, 20, 28
    __doApplyCommand                Engine (three kinds, no pickle)      20, 28
    _checkCommandsToApply           leading (one batch per tick)         12, 31
    __changeCluster                 changing, membership (from the log)  3, 4, 5
    __doChangeCluster               the same                             3, 4, 5
    __parseChangeClusterRequest     the same                             5
    __updateClusterConfiguration    the same                             4, 5
    __tryLogCompaction              snapshotting                         8
    __loadDumpFile                  recovery (before super().__init__)   4, 6, 8
    __generateRaftTimeout           election.Deadline (returns 0 here)   22

Objects replaced: the journal (`Wal`), the transport (`RaftTransport`), the poller (none). Kept as
they are: `__init__`, `__setState`, `__setCurrentTerm`, `__onBecomeLeader`, the index helpers and
the read-only properties; none of them pickles, waits or decides. PySyncObj's clock is read only by
`__init__` and `__onBecomeLeader`, into fields that nothing here looks at; its random by nothing.

One tick. (1) Handle what has arrived. (2) Judge deadlines: only now, so that a message that was
waiting can still move them. (3) A leader advances its commit index over what is durable, turns all
waiting commands into one entry and sends it. (4) What the tick wrote goes to the disk in one write
and one fdatasync, in a thread. (5) Committed entries are applied while the disk works, a long one
in slices over several ticks.

The order that keeps the data (rule 12): append messages leave at once, beside the leader's own
write; votes, vote requests and acknowledgements are *held* until the write is durable. While it
runs, messages and ticks wait; only heartbeats go on, and even they stop after one minimum election
time-out; after one maximum the node leaves its office, for its disk may be dead. A failed write
discards what was held and stops the node.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node as SyncObjNode

from raftkv.config import Limits, RaftTimes
from raftkv.descriptors import RETRY_S, lacks_descriptors
from raftkv.disk_errors import disk_failed
from raftkv.errors import (
    Diverged,
    FormatRefused,
    InternalFault,
    MembershipRefused,
    NodeFault,
)
from raftkv.runtime import Runtime, Timer
from raftkv.waste import Sweeper

from . import wire
from .application import Application, Frozen, Loading
from .applying import Applying
from .campaigning import Campaigning
from .changing import check_change
from .counts import Counts
from .following import Following
from .inbox import Inbox
from .installing import Installing
from .leading import Leading
from .membership import Configuration, ConfigurationLog, decode, encode, name_of
from .snapshotting import Snapshotting
from .transport import Link, RaftTransport
from .wal import Pending, Wal

__all__ = [
    "BATCH",
    "CONFIGURATION",
    "DIGEST",
    "FORMAT",
    "NO_OP",
    "Application",
    "Engine",
    "Frozen",
    "Loading",
    "newer_kind",
]

log = logging.getLogger("raftkv.raft")

# The first byte of an entry's payload, as PySyncObj numbers its command types. Its fourth, the
# code version, is refused (rule 28).
BATCH, NO_OP, CONFIGURATION = 0, 1, 2
# Raises the core format. A version that does not know the kind stops at the entry.
FORMAT = 4
# At its index every node takes digests of its state. Only from core format 2 on.
DIGEST = 5

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
ROLE_NAMES = ("follower", "candidate", "leader")

# Entries applied before the loop may read sockets again: a batch of 256 small commands takes a
# few milliseconds, so this stays well below a heartbeat interval.
APPLY_ENTRIES_PER_TICK = 16
# And no further one once so much time has gone: batches may be large.
APPLY_S_PER_TICK = 0.005
# Once so much time has gone, the messages that are left wait for the next tick, and so do
# deadlines, which they may move (rule 27). Small messages never take so long.
INBOX_S_PER_TICK = 0.005
# How far ahead a term may lie: a cluster that elects once a second needs eleven days for this many.
# Without it one message could use up all terms there are.
TERM_STEP_MAX = 1_000_000
# How often a lack of file descriptors is logged.
COMPLAIN_S = 60.0
# A timer that fires later than this was held up by something; sockets are drained first (rule 27).
LATE_TIMER_S = 0.05


class _Held(NamedTuple):
    """A frame that waits for the disk. An answer to a leader is for that leader's term only."""

    peer: str
    frame: bytes
    to_leader: bool


class Engine(SyncObj):  # type: ignore[misc]  # PySyncObj has no type hints
    """One raft member. All methods run on the node's event loop."""

    def __init__(
        self,
        me: str,
        wal: Wal,
        configurations: ConfigurationLog,
        snapshots: Snapshotting,
        application: Application,
        runtime: Runtime,
        times: RaftTimes,
        limits: Limits,
        applied: int,
    ) -> None:
        self.me = me
        self.runtime = runtime
        self.times = times
        self.limits = limits
        self.application = application
        self.counts = Counts()
        #: The entry that is being applied; what takes the whole state waits for its end.
        self.applying = Applying(runtime)
        self._entry_s = 0.0
        self.wal = wal
        self.configurations = configurations
        self.fault: NodeFault | None = None
        self.started = False
        self.stopped = False
        # Done once the disk thread has left the log, after `stop`.
        self.closed: asyncio.Future[Any] | None = None
        self._inbox = Inbox(limits, self.counts)
        self._held: list[_Held] = []
        self._scheduled = False
        self._timer: Timer | None = None
        self._timer_at = 0.0
        # Messages and ticks wait until the disk's thread has written a batch.
        self._frozen_since: float | None = None
        self._complain_at = 0.0
        #: Why the leader was lost, for the log.
        self.leader_lost = ""
        self._durable_term = wal.term
        # Who waits for the disk: (index, number, future), a heap.
        self._storing: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbered = 0
        # Before the constructor: looking for replicated methods, it reads every property.
        self.leading: Leading | None = None
        conf = SyncObjConf(autoTick=False, dynamicMembershipChange=True)
        super().__init__(
            SyncObjNode(me), [], conf, nodeClass=SyncObjNode, transportClass=RaftTransport
        )
        self._poller = None
        self._adopt(wal, applied)
        self.following = Following(self)
        self.campaigning = Campaigning(self)
        self.installing = Installing(self)
        self._sweeper = Sweeper(runtime, wal.waste)
        self.snapshotting = snapshots
        snapshots.attach(self)
        self.configuration_changed()

    # -- the body: PySyncObj's fields under their names in the literature

    def _adopt(self, wal: Wal, applied: int) -> None:
        """Put our log and what it says in place of the memory journal of the constructor."""
        self._SyncObj__raftLog = wal
        self._SyncObj__raftCurrentTerm = max(wal.term, wal.last_term)
        # The log may have begun anew at a snapshot of a later term, in which there is no vote yet.
        self._SyncObj__votedForNodeId = wal.vote if wal.term == self.term else None
        # Rule 28: committed is at least what the snapshot covers.
        self._SyncObj__raftCommitIndex = applied
        self._SyncObj__raftLastApplied = applied

    @property
    def term(self) -> int:
        return self._SyncObj__raftCurrentTerm

    @property
    def vote(self) -> str | None:
        return self._SyncObj__votedForNodeId

    @property
    def role(self) -> int:
        return int(self._SyncObj__raftState)

    @property
    def role_name(self) -> str:
        return ROLE_NAMES[self.role]

    @property
    def leader(self) -> str | None:
        """The raft id of the leader of the current term, if this node knows it."""
        node = self._SyncObj__raftLeader
        return None if node is None else node.id

    @property
    def commit(self) -> int:
        return self._SyncObj__raftCommitIndex

    @commit.setter
    def commit(self, index: int) -> None:
        assert self.commit <= index <= self.wal.last_index, (self.commit, index)
        self._SyncObj__raftCommitIndex = index

    @property
    def applied(self) -> int:
        return self._SyncObj__raftLastApplied

    @property
    def inbox_messages(self) -> int:
        """What has arrived and waits for a tick."""
        return len(self._inbox)

    @property
    def inbox_bytes(self) -> int:
        """What these messages take; see raft/inbox.py."""
        return self._inbox.bytes

    @property
    def links(self) -> dict[str, Link]:
        """Raft links that are up, by raft id."""
        links: dict[str, Link] = self._SyncObj__transport.links
        return links

    @property
    def configuration(self) -> Configuration:
        return self.configurations.latest

    def set_term(self, term: int, vote: str | None) -> None:
        """Buffered for the disk with the rest of the tick; nothing held leaves before.

        What was acknowledged to the leader of an earlier term and has not left yet never leaves:
        the new leader may cut off what it is about before the disk has it.
        """
        assert term >= self.term
        if term > self.term:
            self._held = [held for held in self._held if not held.to_leader]
        self._SyncObj__setCurrentTerm(term, vote)

    def set_leader(self, leader: str | None) -> None:
        self._SyncObj__raftLeader = None if leader is None else SyncObjNode(leader)

    def set_role(self, role: int) -> None:
        self._SyncObj__setState(role)

    def become_leader(self) -> None:
        """PySyncObj appends the no-op of the new term and calls `__sendAppendEntries`."""
        assert self.me in self.configuration.voters
        self.leading = Leading(self)
        self._SyncObj__onBecomeLeader()
        self.leading.first_index = self.wal.last_index
        self.counts.elections_won += 1
        self.counts.led_by(self.term, self.me)
        log.info("%s leads term %d from index %d", self.me, self.term, self.wal.last_index)
        self.application.office_changed()

    def become_follower(self, term: int, leader: str | None, reason: str = "") -> None:
        """Step down, adopt a term or recognise a leader: the only way back to follower.

        `reason`, for the log: why no leader is known now.
        """
        self.leader_lost = reason
        leading, self.leading = self.leading, None
        changed = (term, leader, FOLLOWER) != (self.term, self.leader, self.role)
        if leader is not None:
            self.counts.led_by(term, leader)
        if term > self.term:
            self.set_term(term, None)
        self.set_role(FOLLOWER)
        self.set_leader(leader)
        self.campaigning.ended(self.runtime.monotonic())
        if leading is not None:
            log.info("%s steps down in term %d%s", self.me, self.term, reason and f": {reason}")
            self.counts.step_downs += 1
            leading.stop()
        if changed:
            self.application.office_changed()

    def become_candidate(self, reason: str) -> None:
        self.leader_lost = reason
        self.set_leader(None)
        self.set_role(CANDIDATE)
        self.set_term(self.term + 1, self.me)
        self.application.office_changed()

    def configuration_changed(self) -> None:
        """The log's latest configuration is another one now."""
        others = [member for member in self.configuration.members if member != self.me]
        self._SyncObj__otherNodes = {SyncObjNode(member) for member in others}
        if self.leading is not None:
            self.leading.configuration_changed()
        self.application.office_changed()

    # -- streams

    def link_up(self, link: Link) -> None:
        """A raft link is ready. It replaces an older one to the same member."""
        older = self.links.get(link.peer_id)
        self.links[link.peer_id] = link
        if older is not None and older is not link:
            older.close()
        link.delivered = self.kick
        if self.leading is not None:
            self.leading.link_up(link.peer_id)
        self.kick()

    def link_down(self, link: Link) -> None:
        if self.links.get(link.peer_id) is not link:
            return
        del self.links[link.peer_id]
        if self.leading is not None:
            self.leading.link_down(link.peer_id)
        if link.peer_id == self.leader and not self.stopped:
            self.campaigning.leader_link_lost(self.runtime.monotonic())
            self.arm()

    def receive(self, link: Link, message: wire.Consensus) -> None:
        """Queue a consensus message for the next tick."""
        if message.term > self.term + TERM_STEP_MAX:
            raise wire.ProtocolError(f"term {message.term} cannot follow {self.term}")
        if isinstance(message, wire.Append):
            wire.check_terms(message.prev_term, message.entries, message.term)
        self._inbox.add(link.peer_id, message)

    def send_now(self, peer: str, frame: bytes) -> None:
        """Only for append messages: they may leave beside the sync of what they carry.

        Not beside that of their term: a lone voter leads before its term is durable, and after a
        crash it would lead the same term again, with other entries.
        """
        link = self.links.get(peer)
        if self.term > self._durable_term:
            self._held.append(_Held(peer, frame, to_leader=False))
        elif link is not None:
            link.send_frame(frame)

    def send_held(self, peer: str, message: wire.Message) -> None:
        """Leaves once everything that this tick wrote is durable."""
        to_leader = isinstance(message, wire.AppendReply | wire.SnapshotReply)
        self._held.append(_Held(peer, wire.encode(message), to_leader))

    # -- the tick

    def start(self) -> None:
        """Begin: the election deadline counts from now; what came before has waited."""
        self.started = True
        self.campaigning.started(self.runtime.monotonic())
        self.snapshotting.space.start()
        self.kick()

    def kick(self) -> None:
        """There is something to do: run a tick soon. Cheap, and harmless if there is not."""
        idle = not self._scheduled and self._frozen_since is None
        if idle and self.started and not self.stopped:
            self._scheduled = True
            self.runtime.call_soon(self._run_tick)

    def _run_tick(self) -> None:
        self._scheduled = False
        if self.stopped or self._frozen_since is not None:
            return
        try:
            self._onTick()
        except Exception as error:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """A tick, what follows a sync, or blocking work ended half-way: nothing may go on."""
        if isinstance(error, OSError):
            error = disk_failed(
                "the data directory cannot be used",
                error,
                "Nothing that waited for it was acknowledged.",
            )
        elif not isinstance(error, NodeFault):
            log.error("an unexpected error in the engine", exc_info=error)
            error = InternalFault(
                f"the engine met an error that it does not know ({type(error).__name__}: {error}) "
                f"and stops in a consistent state. Report it, then start the node again"
            )
        self.stop_with(error)

    def _onTick(self, timeToWait: float = 0.0) -> None:  # stock name
        now = self.runtime.monotonic()
        commit = self.commit
        inbox = self._inbox.take()
        for position, (sender, message) in enumerate(inbox, 1):
            self._handle(sender, message, now)
            if self.runtime.monotonic() - now >= INBOX_S_PER_TICK:
                self._inbox.put_back(inbox[position:])
                break
        self.installing.tick()
        if not self._inbox:
            self.campaigning.tick(now)
            if self.leading is not None:
                self.leading.check_quorum(now)
        if self.leading is not None:
            self.leading.tick(now)
        self._persist()
        applied = self._SyncObj__applyLogEntries()
        if applied or self.commit != commit:
            self.application.progressed()
        if applied:
            self.snapshotting.tick()
        if self._inbox or (applied and self._leader_holds_back):
            self.kick()
        self.arm()

    @property
    def _leader_holds_back(self) -> bool:
        """Whether commands wait, perhaps for others to be applied (composition.py)."""
        return self.leading is not None and self.leading.waiting[0] > 0

    def _handle(self, sender: str, message: wire.Message, now: float) -> None:
        """Route one message. Terms are settled by the handler of its kind (rule 21)."""
        if isinstance(message, wire.Append):
            self.following.on_append(sender, message, now)
        elif isinstance(message, wire.AppendReply):
            if self._settle(sender, message.term) and self.leading is not None:
                self.leading.on_append_reply(sender, message, now)
        elif isinstance(message, wire.Vote):
            self.campaigning.on_vote(sender, message, now)
        elif isinstance(message, wire.VoteReply):
            self.campaigning.on_vote_reply(sender, message, now)
        elif isinstance(message, wire.SnapshotChunk):
            self.following.on_chunk(sender, message, now)
        elif isinstance(message, wire.SnapshotReply):
            if self._settle(sender, message.term) and self.leading is not None:
                self.leading.on_snapshot_reply(sender, message, now)
        elif isinstance(message, wire.TimeoutNow):
            if message.term == self.term and sender == self.leader:
                self.campaigning.campaign_now(now)
        else:
            raise wire.ProtocolError(f"{type(message).__name__} on a raft link")

    def _settle(self, sender: str, term: int) -> bool:
        """A reply's term: a higher one of a member deposes this node; only the current counts."""
        if not self.configuration.is_member(sender):
            return False
        if term > self.term:
            self.become_follower(term, None, f"{name_of(sender)} is in term {term}")
            return False
        return term == self.term

    def arm(self) -> None:
        """Wake up when the next deadline passes. An earlier alarm already set is left alone."""
        if self.stopped:
            return
        now = self.runtime.monotonic()
        at = self.campaigning.wake_at() if self.leading is None else self.leading.wake_at()
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.runtime.call_later(max(0.0, at - now), self._alarm)

    def _alarm(self) -> None:
        now = self.runtime.monotonic()
        if now - self._timer_at > LATE_TIMER_S:
            # This process was held up; what others sent meanwhile is still in the sockets. They
            # are looked at once: a loop that is always late must keep its deadlines, too.
            self._timer_at = now
            self._timer = self.runtime.call_later(0.001, self._alarm_heard)
        else:
            self._alarm_heard()

    def _alarm_heard(self) -> None:
        """The alarm, after what waited in the sockets was read."""
        self._timer = None
        if self._frozen_since is None:
            self.kick()
            if not self._scheduled:
                self.arm()
        else:
            self._heartbeat_while_frozen(self.runtime.monotonic())

    def _heartbeat_while_frozen(self, now: float) -> None:
        """Rule 26: a sync that hangs longer than an election time-out costs the office.

        Heartbeats end after the shorter time-out; nobody else can be elected before the longer one
        is over, and a disk that returns by then has cost nothing.
        """
        assert self._frozen_since is not None
        leaves_at = self._frozen_since + self.times.election_timeout_max_ms / 1000
        if self.leading is None:
            return
        if now - self._frozen_since <= self.times.election_timeout_min_ms / 1000:
            self.leading.heartbeat(now)
            self.arm()
        elif now < leaves_at:
            self._timer_at = leaves_at
            self._timer = self.runtime.call_later(leaves_at - now, self._alarm)
        elif self.configuration.voters != (self.me,):
            # Nothing of this waits for the disk. A lone voter has nobody to leave the office to.
            log.warning("%s: a write to the disk does not return", name_of(self.me))
            self.become_follower(self.term, None, "a write to its own disk does not return")

    # -- durability

    def _persist(self) -> None:
        """Hand what the tick wrote to the disk; without any, nothing needs to be held."""
        pending = self.wal.take()
        if pending is not None:
            term = self.term
            self._frozen_since = self.runtime.monotonic()
            self._put(pending, lambda _: self._synced(pending, term))
            return
        self._release()

    def _put(self, pending: Pending, done: Callable[[Any], None]) -> None:
        """Have the disk's thread write a batch; again as long as no file descriptor is left."""
        if self.stopped:
            return

        def written(future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if lacks_descriptors(error) and not self.stopped:
                self.lacks_descriptors("the log", error)
                self.runtime.call_later(RETRY_S, self._put, pending, done)
            else:
                self._thaw(future, done)

        self.runtime.offload(self._write, pending).add_done_callback(written)

    def lacks_descriptors(self, what: str, error: BaseException | None) -> None:
        """Count that something could not be opened, and log it once a minute."""
        self.counts.descriptors_lacked += 1
        now = self.runtime.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_S
            log.error(
                "%s: no file descriptor is left (%s), so %s waits. Raise the limit (ulimit -n, or "
                "LimitNOFILE= in a unit of systemd), or have the program close files",
                name_of(self.me),
                error,
                what,
            )

    def _write(self, pending: Pending) -> None:
        """In the disk's thread."""
        began = self.runtime.monotonic()
        self.wal.write(pending)
        self.counts.fsync_s.observe(self.runtime.monotonic() - began)

    def _thaw(self, future: asyncio.Future[Any], done: Callable[[Any], None]) -> None:
        self._frozen_since = None
        if self.stopped or future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self.failed(error)  # whatever it is: nobody knows what became of the write
            return
        try:
            done(future.result())
            self._persist()
        except Exception as failure:
            self.failed(failure)
            return
        if self.leading is not None or self._inbox or self.applied < self.commit:
            self.kick()
        else:
            # An alarm that went off meanwhile was swallowed.
            self.arm()
        if not self._inbox and (self.leading is None or not self.leading.waiting[0]):
            self.snapshotting.gap(self.runtime.monotonic())

    def _synced(self, pending: Pending, term: int) -> None:
        self.wal.written(pending)
        self._durable_term = term
        while self._storing and self._storing[0][0] <= self.wal.durable_index:
            _, _, waiter = heapq.heappop(self._storing)
            if not waiter.done():
                waiter.set_result(None)

    async def stored(self, index: int) -> None:
        """Return when the log up to `index` is on this disk.

        Entries are applied as soon as they are committed, and a majority without this node may
        have committed them: its own disk may come later. After a fault nothing returns any more.
        """
        if self.wal.durable_index < index:
            waiter = self.runtime.future()
            self._numbered += 1
            heapq.heappush(self._storing, (index, self._numbered, waiter))
            await waiter

    def _release(self) -> None:
        """What was held may leave: everything it promises is durable."""
        if self._held:
            held, self._held = self._held, []
            for peer, frame, _ in held:
                link = self.links.get(peer)
                if link is not None:
                    link.send_frame(frame)

    # -- applying

    def _SyncObj__applyLogEntries(self) -> bool:
        """Apply committed entries, a bounded number per tick. True if any has ended."""
        first = self.applied + 1
        last = min(self.commit, self.applied + APPLY_ENTRIES_PER_TICK)
        if last < first:
            return False
        applying = self.applying
        now = self.runtime.monotonic()
        until = now + APPLY_S_PER_TICK
        for entry in self.wal.entries(first, last):
            assert entry.index == self.applied + 1, (entry.index, self.applied)
            if not applying.busy:
                self._SyncObj__doApplyCommand(entry)
            ended = applying.run(until)
            began, now = now, self.runtime.monotonic()
            self._entry_s += now - began
            if not ended:
                break
            self._SyncObj__raftLastApplied = entry.index
            self.counts.apply_s.observe(self._entry_s)
            self._entry_s = 0.0
            if applying.ended() or now >= until or self.stopped:
                break
        if self.applied < self.commit:
            self.kick()
        return self.applied >= first

    def _SyncObj__doApplyCommand(self, entry: Any) -> None:
        kind = entry.payload[0]
        if kind == BATCH:
            rest = self.application.apply(entry.index, entry.payload[1:], entry.term)
            self.applying.begin(rest)
        elif kind in (NO_OP, CONFIGURATION):
            self.application.skip(entry.index)
        elif kind == FORMAT:
            self.application.raise_format(entry.index, entry.payload[1:])
        elif kind == DIGEST:
            self.application.take_digests(entry.index)
        else:
            raise newer_kind(entry.index, kind)

    def installed(self, index: int) -> None:
        """A snapshot has replaced the state: commit and applied start there."""
        self._SyncObj__raftCommitIndex = index
        self._SyncObj__raftLastApplied = index

    # -- proposals and reads

    def propose(self, commands: Sequence[bytes], origin: str = "") -> bool:
        """On a leader: queue encoded commands for the next tick's batch.

        `origin` is the node that sent them, "" this one: entries are shared between the origins.

        False elsewhere, and when too much waits already: their origin sends them again. With a full
        disk only those are taken that free room (free_space.py).
        """
        if self.leading is None or self.stopped:
            return False
        taken = commands
        space = self.snapshotting.space
        if space.at_end:
            taken = [] if space.full else list(filter(self.application.frees_room, commands))
        if not self.leading.propose(taken, origin):
            taken = []
        self.counts.commands_refused += len(commands) - len(taken)
        if taken:
            self.kick()
        # What was taken may be applied, so none of them may be called not applied.
        return bool(taken) or not commands

    def read_index(self, token: Any) -> bool:
        """On a leader: confirm a read; `application.reads_confirmed` answers. False elsewhere."""
        if self.leading is None or self.stopped:
            return False
        self.leading.reads.request(token)
        self.kick()
        return True

    def found(
        self, configuration: Configuration, founded: wire.Founded, core_format: int = 1
    ) -> None:
        """Write the first configuration of a new cluster, tell the others, campaign at once.

        `core_format` is that of the new cluster.

        The entry is of term 1, in which nobody else can lead: the others know no configuration
        yet, so they cannot campaign. They are told once it is durable here.
        """
        assert self.wal.last_index == 1, "only an empty log can found a cluster"
        self.set_term(1, self.me)
        self.append_configuration(configuration)
        if core_format > 1:
            self._append_format(core_format)
        for member in configuration.members:
            if member != self.me:
                self.send_held(member, founded)
        self.campaigning.deadline.expire_now(self.runtime.monotonic())
        self.kick()

    def hand_over(self) -> bool:
        """Pass the office on, as a clean shutdown does first. False: nobody can take it."""
        if self.leading is None or self.stopped or not self.leading.hand_over():
            return False
        self.kick()
        return True

    @property
    def holds_lease(self) -> bool:
        """Whether this node may answer linearizable reads from its own commit index now."""
        return self.leading is not None and self.leading.holds_lease(self.runtime.monotonic())

    def change_configuration(self, proposed: Configuration, *, force: bool) -> int:
        """On a leader: put a new configuration in force; the index of its entry.

        Raises MembershipRefused.
        """
        leading = self.leading
        if leading is None:
            raise MembershipRefused("this node does not lead")
        if self.me not in proposed.voters:
            raise MembershipRefused("a leader hands its office over before it is removed")
        now = self.runtime.monotonic()
        check_change(
            proposed,
            latest_index=self.configurations.latest_index,
            commit=self.commit,
            first_index=leading.first_index,
            alive=leading.alive(now),
            able=leading.able(now),
            force=force,
        )
        index = self.append_configuration(proposed)
        log.info("%s changes the members to %s", self.me, proposed)
        self.kick()
        return index

    def raise_format(self, core_format: int) -> int:
        """On a leader: raise the core format of the cluster; the index of the entry.

        The caller has found that every member knows the format, and nothing was awaited since.
        Raises FormatRefused elsewhere.
        """
        if self.leading is None or self.stopped:
            raise FormatRefused("this node does not lead")
        index = self._append_format(core_format)
        log.info("%s raises the core format to %d", self.me, core_format)
        self.kick()
        return index

    def core_format_ahead(self) -> int:
        """The core format of the cluster once this log is applied, as far as it knows the raise."""
        for entry in self.wal.newest_first(self.applied + 1):
            if entry.payload[0] == FORMAT:
                return int(msgspec.msgpack.decode(entry.payload[1:], type=int))
        return self.application.core_format

    def _append_format(self, core_format: int) -> int:
        index = self.wal.last_index + 1
        payload = bytes([FORMAT]) + msgspec.msgpack.encode(core_format)
        self.wal.append(payload, index, self.term)
        return index

    def ask_for_digests(self) -> bool:
        """On a leader, from core format 2: let all nodes take digests at one index of the log."""
        if self.leading is None or self.stopped or self.application.core_format < 2:
            return False
        self.wal.append(bytes([DIGEST]), self.wal.last_index + 1, self.term)
        self.kick()
        return True

    def removed(self, member: str) -> bool:
        """Whether a committed configuration has removed this member, who may not know it."""
        if member not in self.configuration.removed or member not in self.links:
            return False
        return member in self.configurations.at(self.commit).removed

    def append_configuration(self, configuration: Configuration) -> int:
        """Append a configuration entry to the own log; it is in force from here on (rule 4)."""
        index = self.wal.last_index + 1
        payload = bytes([CONFIGURATION]) + encode(configuration)
        self.wal.append(payload, index, self.term)
        self.configurations.append(index, configuration)
        self.configuration_changed()
        return index

    def note_configurations(self, entries: Iterable[tuple[int, bytes]]) -> None:
        """Take over the configurations among appended entries, given as (index, payload)."""
        changed = False
        for index, payload in entries:
            if payload[0] == CONFIGURATION:
                self.configurations.append(index, decode(payload[1:]))
                changed = True
        if changed:
            self.configuration_changed()

    # -- the end

    def stop(self) -> None:
        """Cleanly: nothing is sent or written any more."""
        if self.stopped:
            return
        self.stopped = True
        self._sweeper.stop()
        if self._timer is not None:
            self._timer.cancel()
        self.applying.drop()
        self._held.clear()
        self._inbox.clear()
        leading, self.leading = self.leading, None
        if leading is not None:
            leading.stop()
        self.set_role(FOLLOWER)
        self.set_leader(None)
        self.snapshotting.stop()
        self.snapshotting.space.stop()
        self.closed = self.runtime.offload(self.wal.close)

    def stop_with(self, fault: NodeFault) -> None:
        """Rule 12: what waited for the disk is discarded, the node ends."""
        if self.fault is None:
            self.fault = fault
            log.error("%s stops itself: %s", name_of(self.me), fault)
            self.stop()
            self.application.faulted(fault)

    # -- stock methods that must not run

    def _SyncObj__sendAppendEntries(self) -> None:
        """Called by the kept `__onBecomeLeader`; the tick replicates in its own order."""

    def _SyncObj__generateRaftTimeout(self) -> float:
        return 0.0

    def _SyncObj__onMessageReceived(self, node: Any, message: Any) -> None:
        raise AssertionError("messages come through Engine.receive")

    def _checkCommandsToApply(self) -> None:
        raise AssertionError("batches are made by leading")

    def _SyncObj__changeCluster(self, request: Any) -> bool:
        raise AssertionError("the configuration comes from the log")

    def _SyncObj__doChangeCluster(self, request: Any, reverse: bool = False) -> bool:
        raise AssertionError("the configuration comes from the log")

    def _SyncObj__parseChangeClusterRequest(self, command: Any) -> None:
        raise AssertionError("configuration entries are not pickled")

    def _SyncObj__updateClusterConfiguration(self, nodes: Any) -> None:
        raise AssertionError("the configuration comes from the log")

    def _SyncObj__tryLogCompaction(self) -> None:
        raise AssertionError("snapshots are written by snapshotting")

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        raise AssertionError("recovery happens before the constructor")


def newer_kind(index: int, kind: int) -> Diverged:
    """The fault of a node that meets an entry of a kind that it does not know."""
    return Diverged(
        f"entry {index} has kind {kind}, which this version does not know: it was written by a "
        f"newer version. Upgrade this node"
    )

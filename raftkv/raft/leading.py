"""Leading a term: the engine's side of `progress` and `reads`; batches, replication, commit.

Speed comes from here: everything that waits when a tick runs becomes one entry, one message per
follower (encoded once for followers at the same position) and, in the engine, one fdatasync.

A leader commits by counting only entries of its own term (Raft paper 5.4.2), and counts itself
only up to what its own disk holds (rule 12).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import wire
from .append import quorum_index
from .changing import CAUGHT_UP_ENTRIES, distrust
from .composition import FLIGHT_ROWS, Composition
from .election import quorum_alive, quorum_time
from .membership import name_of
from .progress import Flow, Progress
from .reads import ReadRounds
from .sending import Sending

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["Leading"]

log = logging.getLogger("raftkv.raft")

# Entries in one message, and bytes if it has several: encoding, decoding, appending and sealing so
# much takes a few milliseconds.
MESSAGE_ENTRIES_MAX = 512
MESSAGE_BYTES_MAX = 512 * 1024
# What is encoded for one follower before the loop may do something else.
TICK_BYTES_MAX = 2 * 1024 * 1024
# Commands in one entry: applying so many takes about 10 ms, in which a node does nothing else.
BATCH_COMMANDS_MAX = 1024
# Parts of `uncommitted_bytes_max`: what may wait beyond it, and of which less than a smaller part
# may be of one origin. So a small write is not dropped because other nodes load large ones.
RESERVE_PART = 4
SMALL_PART = 64
# Numbers whose sending time is remembered: more than answers can be outstanding.
ROUNDS_KEPT = 1024
# A follower that has left so much in this process's buffers is not probed again.
PROBE_UNSENT_MAX = 1024 * 1024


class Leading:
    """The leader's state of one term; made at election, dropped at step-down."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands = Composition(
            engine.application.estimate, engine.limits.uncommitted_bytes_max // 2
        )
        # (index, rows) of entries with costly commands that are not applied, and these rows.
        self._costly: deque[tuple[int, int]] = deque()
        self._costly_rows = 0
        # (index, bytes, when) of the batches appended here that are not committed (rule 31).
        self._uncommitted: deque[tuple[int, int, float]] = deque()
        self._uncommitted_bytes = 0
        self._progress: dict[str, Progress] = {}
        # The number that had been sent last when a member acknowledged more than before.
        self._acknowledged_round: dict[str, int] = {}
        # Who was found to lack what it had acknowledged: said once in a term.
        self._forgetful: set[str] = set()
        # Encoded in this tick: by (prev_index, last_index, round).
        self._frames: dict[tuple[int, int, int], bytes] = {}
        now = self._now = engine.runtime.monotonic()
        self._heartbeat_at = now
        self._heartbeat_s = engine.times.heartbeat_ms / 1000
        self._window_s = engine.times.election_timeout_max_ms / 1000
        self._sending = Sending(engine, self._window_s)
        # The commit index has moved and nobody knows it yet; a read round wants an echo.
        self._announce = self._ask = False
        # What is sent in one tick carries one number; when it was sent counts for the lease.
        self._round = 0
        self._rounds: deque[tuple[int, float]] = deque(maxlen=ROUNDS_KEPT)
        self._confirmed: dict[str, float] = {}
        # A majority was heard so lately that nobody need count until then.
        self._alive_until = 0.0
        # Who is to lead next, once it has everything; and whether it has been told.
        self._heir: str | None = None
        self._heir_until = 0.0
        self._heir_told = False
        # Since the first offer of this term there is no lease any more.
        self.offered = False
        self.reads = ReadRounds()
        # The index of this term's no-op: what lies before it may not be counted for reads.
        self.first_index = 0
        self.configuration_changed()

    def stop(self) -> None:
        """Step-down: readers are told; commands stay with their origins, who send them again."""
        self._sending.stop()
        tokens = list(self.reads.fail())
        if tokens:
            self._engine.application.reads_failed(tokens)

    def configuration_changed(self) -> None:
        """Members come and go with the log's configuration."""
        engine = self._engine
        now = engine.runtime.monotonic()
        members = [member for member in engine.configuration.members if member != engine.me]
        for member in members:
            if member not in self._progress:
                self._progress[member] = Progress(engine.wal.last_index, now)
        for gone in [member for member in self._progress if member not in members]:
            del self._progress[gone]
            self._sending.drop(gone)
        self._alive_until = 0.0
        # Who has echoed may be a majority by now, and perhaps nobody is left to echo once more.
        self._finish_reads()

    def link_up(self, peer: str) -> None:
        """A new stream: nothing that the old one carried can be relied on."""
        self.link_down(peer)
        self._heartbeat_at = self._engine.runtime.monotonic()

    def link_down(self, peer: str) -> None:
        progress = self._progress.get(peer)
        if progress is not None:
            progress.disconnected()
            self._sending.drop(peer)
        if peer == self._heir:
            self._engine.kick()

    def propose(self, commands: Sequence[bytes], origin: str) -> bool:
        """Queue commands. False if as much waits already as may be uncommitted (rule 31).

        What one origin sends may be as much as that, so one of which little waits gets a bit more.
        """
        waiting, bytes_max = self._commands, self._engine.limits.uncommitted_bytes_max
        if waiting.bytes >= bytes_max and (
            waiting.bytes >= bytes_max + bytes_max // RESERVE_PART
            or waiting.bytes_of(origin) >= bytes_max // SMALL_PART
        ):
            return False
        waiting.add(commands, origin)
        return True

    def wake_at(self) -> float:
        return self._heartbeat_at

    def lag(self) -> dict[str, int]:
        """Entries by which each member trails the log, for the status."""
        last = self._engine.wal.last_index
        return {peer: last - progress.match for peer, progress in self._progress.items()}

    @property
    def waiting(self) -> tuple[int, int]:
        """Commands that wait for an entry, and their bytes."""
        return self._commands.commands, self._commands.bytes

    @property
    def uncommitted_bytes(self) -> int:
        return self._uncommitted_bytes

    def round_trips(self) -> dict[str, float]:
        """Seconds from sending to each follower to its latest answer, its fsync included."""
        return {
            peer: max(0.0, progress.heard_at - self._confirmed[peer])
            for peer, progress in self._progress.items()
            if peer in self._confirmed
        }

    def inflight_bytes(self) -> dict[str, int]:
        """Entries on their way to each follower that it has not acknowledged."""
        return {peer: progress.inflight_bytes for peer, progress in self._progress.items()}

    def snapshots_on_their_way(self) -> list[str]:
        """The members that are being sent a snapshot."""
        return sorted(self._sending.indexes())

    def alive(self, now: float) -> list[str]:
        """The members heard within an election time-out, this one included."""
        heard = [
            peer
            for peer, progress in self._progress.items()
            if now - progress.heard_at < self._window_s and peer in self._engine.links
        ]
        return [self._engine.me, *heard]

    def able(self, now: float) -> list[str]:
        """The members of `alive` that an entry appended now would soon be acknowledged by.

        Where the logs agree is known, and no more than CAUGHT_UP_ENTRIES are missing. One that is
        sent a snapshot, or that has lost what it had acknowledged, is heard and not among them.
        """
        last, me = self._engine.wal.last_index, self._engine.me
        return [
            member
            for member in self.alive(now)
            if member == me
            or (
                (progress := self._progress[member]).flow is Flow.REPLICATE
                and last - progress.match <= CAUGHT_UP_ENTRIES
            )
        ]

    def holders(self, index: int) -> list[str]:
        """The voters that are known to hold the entry durably, by raft id."""
        engine = self._engine
        return [
            voter
            for voter in engine.configuration.voters
            if engine.configuration.trusts(voter)
            and index
            <= (engine.wal.durable_index if voter == engine.me else self._progress[voter].match)
        ]

    def heard_at(self, peer: str) -> float | None:
        progress = self._progress.get(peer)
        return None if progress is None else progress.heard_at

    # -- the tick

    def check_quorum(self, now: float) -> None:
        """Leave the office if no majority was heard. Only after all that has arrived was read."""
        if now < self._alive_until:
            return
        engine = self._engine
        heard = {peer: progress.heard_at for peer, progress in self._progress.items()}
        if not quorum_alive(engine.configuration, engine.me, heard, now, self._window_s):
            reason = "no majority of the voters answered within the election time-out"
            engine.become_follower(engine.term, None, reason)
            return
        # Silence cannot outweigh a majority before this one is forgotten.
        since = quorum_time(engine.configuration, engine.me, heard)
        self._alive_until = since + self._window_s / 2

    def tick(self, now: float) -> None:
        engine = self._engine
        self._next_round(now)
        if engine.commit < engine.wal.last_index:
            self._advance_commit()
        if self._forgetful:
            self._distrust()
        if self._commands.commands and self._heir is None:
            self._append_batches()
        may_read = engine.commit >= self.first_index
        if may_read and self.reads.start(engine.commit, self._round):
            self._ask = True
            engine.counts.read_rounds += 1
            self._finish_reads()
        self.replicate(now)
        self._sending.tick(now)
        self._offer_office(now)

    def _next_round(self, now: float) -> None:
        self._now = now
        self._round += 1
        self._rounds.append((self._round, now))

    def _advance_commit(self) -> None:
        engine = self._engine
        index = quorum_index([self._counted(voter) for voter in engine.configuration.voters])
        if index > engine.commit and engine.wal.term_at(index) == engine.term:
            engine.commit = index
            self._announce = True
            uncommitted = self._uncommitted
            while uncommitted and uncommitted[0][0] <= index:
                _, size, began = uncommitted.popleft()
                self._uncommitted_bytes -= size
                engine.counts.commit_s.observe(self._now - began)

    def _counted(self, voter: str) -> int:
        """How far a voter's log counts towards a commit: nothing once it has lost entries."""
        engine = self._engine
        if voter == engine.me:
            return engine.wal.durable_index
        if voter in self._forgetful or not engine.configuration.trusts(voter):
            return 0
        return self._progress[voter].match

    def lost(self) -> dict[str, int]:
        """Cores that no longer hold what they had acknowledged, and the last such entry."""
        flagged = {*self._forgetful, *self._engine.configuration.distrusted}
        return {each: self._progress[each].match for each in flagged if each in self._progress}

    def _distrust(self) -> None:
        """Put it into the log that a voter lost what it had acknowledged, one at a time.

        Its flag is in force when the entry is appended, so the next leader knows it too.
        """
        engine = self._engine
        latest = engine.configuration
        lost = sorted(voter for voter in self._forgetful if latest.trusts(voter))
        settled = max(self.first_index, engine.configurations.latest_index)
        if lost and engine.commit >= settled and engine.application.core_format >= 2:
            proposed = distrust(latest, lost[0])
            # Else this leader would step down for an entry that cannot be committed, and
            # a voter without what was acknowledged could be elected. Until then only it ignores it.
            held = frozenset(self.holders(engine.commit)).intersection(self.able(self._now))
            if proposed.majority(held):
                engine.append_configuration(proposed)

    def _append_batches(self) -> None:
        """What waits becomes entries, none larger than the limits (rule 31, composition.py)."""
        engine, commands = self._engine, self._commands
        limits, (marks, reach) = engine.limits, engine.application.costly_marks
        while commands.commands and self._uncommitted_bytes < limits.uncommitted_bytes_max:
            batch = commands.take(
                limits.batch_bytes_max, BATCH_COMMANDS_MAX, self._flight_rows(), marks, reach
            )
            engine.counts.commands_refused += commands.dropped
            commands.dropped = 0
            if not batch:
                return  # until costly commands of earlier entries are applied
            payload = b"\x00" + engine.application.seal(batch)
            index = engine.wal.last_index + 1
            engine.wal.append(payload, index, engine.term)
            self._uncommitted.append((index, len(payload), self._now))
            self._uncommitted_bytes += len(payload)
            if commands.taken_rows:
                self._costly.append((index, commands.taken_rows))
                self._costly_rows += commands.taken_rows
            engine.counts.batch_commands.observe(len(batch))

    def _flight_rows(self) -> int:
        """The rows of the costly commands that are appended and not applied here.

        Those in entries of earlier terms are not known: until these are applied, as many as may be.
        """
        applied, costly = self._engine.applied, self._costly
        while costly and costly[0][0] <= applied:
            self._costly_rows -= costly.popleft()[1]
        return FLIGHT_ROWS if applied < self.first_index else self._costly_rows

    # -- replication

    def replicate(self, now: float) -> None:
        """Send every follower what it lacks; a heartbeat, commit or read round if nothing."""
        beat = now >= self._heartbeat_at
        if beat:
            self._beat(now)
        self._frames.clear()
        engine = self._engine
        last_index = engine.wal.last_index
        for peer, progress in self._progress.items():
            link = engine.links.get(peer)
            if link is None:
                continue
            # Not to one that does not even take what was sent: its process stands still, or its
            # machine is gone, and each beat would add a probe to what waits for it here.
            if beat and link.unsent_bytes <= PROBE_UNSENT_MAX:
                progress.probe_again()
            if progress.next <= last_index and self._send_entries(peer, progress):
                continue
            if beat or self._ask or (self._announce and progress.flow is not Flow.REPLICATE):
                self._send_heartbeat(peer, progress, self._round)
            elif self._announce:
                self._send_heartbeat(peer, progress, wire.NO_ANSWER)
        self._announce = self._ask = False

    def _beat(self, now: float) -> None:
        if now - self._heartbeat_at > self._heartbeat_s:
            self._engine.counts.heartbeats_late += 1
        self._heartbeat_at = now + self._heartbeat_s

    def heartbeat(self, now: float) -> None:
        """While the disk works: keep the office, carry nothing that is new."""
        self._beat(now)
        self._next_round(now)
        self._frames.clear()
        for peer, progress in self._progress.items():
            if peer in self._engine.links:
                self._send_heartbeat(peer, progress, self._round)

    def _send_entries(self, peer: str, progress: Progress) -> bool:
        engine, wal = self._engine, self._engine.wal
        sent, sent_bytes = False, 0
        while progress.next <= wal.last_index:
            if sent_bytes >= TICK_BYTES_MAX:
                engine.kick()
                break
            if not progress.may_send(engine.limits.inflight_bytes_max):
                break
            prev_term = wal.term_at(progress.next - 1)
            if prev_term is None:
                return self._sending.start(peer, progress)
            prev_index = progress.next - 1
            entries = wal.entries(
                progress.next,
                bytes_max=min(MESSAGE_BYTES_MAX, engine.limits.batch_bytes_max),
                entries_max=MESSAGE_ENTRIES_MAX,
            )
            last_index = prev_index + len(entries)
            key = (prev_index, last_index, self._round)
            frame = self._frames.get(key)
            if frame is None:
                pairs = [(entry.term, entry.payload) for entry in entries]
                frame = self._frames[key] = self._frame(prev_index, prev_term, pairs, self._round)
            engine.send_now(peer, frame)
            progress.sent(last_index, len(frame))
            sent, sent_bytes = True, sent_bytes + len(frame)
        return sent

    def _send_heartbeat(self, peer: str, progress: Progress, number: int) -> None:
        """Bare: where the follower is known (or assumed, when streaming) to agree.

        With NO_ANSWER it only tells how far the log is committed. With few callers that is every
        second message, and an answer to it would say nothing that the next one does not.
        """
        index = progress.next - 1 if progress.flow is Flow.REPLICATE else progress.match
        term = self._engine.wal.term_at(index)
        if term is None:
            index, term = 0, 0
        frame = self._frames.get((index, index, number))
        if frame is None:
            frame = self._frames[index, index, number] = self._frame(index, term, [], number)
        self._engine.send_now(peer, frame)

    def _frame(
        self, prev_index: int, prev_term: int, entries: list[tuple[int, bytes]], number: int
    ) -> bytes:
        engine = self._engine
        lease_ms = engine.times.lease_ms
        return wire.encode(
            wire.Append(
                engine.term, prev_index, prev_term, engine.commit, number, entries, lease_ms
            )
        )

    def on_append_reply(self, sender: str, message: wire.AppendReply, now: float) -> None:
        progress = self._progress.get(sender)
        if progress is None:
            return  # no member any more (rule 29)
        progress.heard_at = now
        if message.round:
            # A voter that is set to shorter time-outs would forget a longer promise in a restart.
            if message.lease_ms >= self._engine.times.lease_ms:
                self._confirm(sender, message.round)
            self.reads.echoed(sender, message.round)
            self._finish_reads()
        if message.accepted:
            flow = progress.flow
            self._acknowledged(sender, progress, message.index)
            # Until now it was told of no commit that it could verify.
            self._announce |= flow is not Flow.REPLICATE and progress.flow is Flow.REPLICATE
        elif not progress.rejected(
            message.index, message.hint_term, message.hint_index, self._engine.wal
        ) and self._contradicts(sender, message):
            self._forgot(sender, progress)

    def _acknowledged(self, peer: str, progress: Progress, index: int) -> None:
        last = self._engine.wal.last_index
        if progress.acknowledged(min(index, last), last):
            self._acknowledged_round[peer] = self._round

    def _contradicts(self, peer: str, message: wire.AppendReply) -> bool:
        """Whether a refusal answers what was sent after the acknowledgement had arrived.

        An earlier one was overtaken by the acknowledgement: then nothing was lost.
        """
        return message.round > self._acknowledged_round.get(peer, 0)

    def _forgot(self, peer: str, progress: Progress) -> None:
        """A follower lost what it acknowledged. It gets nothing more, and its operator is told."""
        if peer not in self._forgetful:
            self._forgetful.add(peer)
            log.error(
                "%s no longer holds entry %d, which it had acknowledged: its disk lost a write, or "
                "it runs with fsync off. It cannot catch up. Remove %s, empty its directory, then "
                "add it",
                name_of(peer),
                progress.match,
                name_of(peer),
            )

    # -- the lease and the office

    def _confirm(self, voter: str, number: int) -> None:
        """The voter's promise counts from when the message it answers was sent (rule 16)."""
        if self._rounds and self._rounds[0][0] <= number <= self._round:
            sent_at = self._rounds[number - self._rounds[0][0]][1]
            self._confirmed[voter] = max(sent_at, self._confirmed.get(voter, sent_at))

    def holds_lease(self, now: float) -> bool:
        """Whether nobody else can have been elected: a majority's promises still run.

        The follower's clock may be slow and this one fast, so the lease is shortened by both.
        After the office was offered to an heir there is no lease any more in this term.
        """
        engine = self._engine
        if self.offered or engine.commit < self.first_index or not engine.times.lease_ms:
            return False
        drift = engine.times.clock_drift_permille / 1000
        lease_s = engine.times.lease_ms / 1000 * (1 - 2 * drift)
        since = quorum_time(engine.configuration, engine.me, self._confirmed)
        return now < since + lease_s

    def hand_over(self) -> bool:
        """Begin to pass the office to the voter that is furthest; False if there is none.

        From now on commands wait at their origins. The heir campaigns at once, without pre-vote,
        and stickiness is bypassed for it (Raft thesis 3.10).
        """
        heir = self._next_heir()
        if heir is None or self._engine.commit < self.first_index:
            return False
        self._heir, self._heir_told = heir, False
        self._heir_until = self._engine.runtime.monotonic() + self._window_s
        return True

    @property
    def handing_over(self) -> bool:
        """Whether somebody is still expected to take the office."""
        return self._heir is not None

    def _next_heir(self) -> str | None:
        """The voter that is furthest among those that can be reached."""
        engine = self._engine
        heirs = [
            (self._progress[voter].match, voter)
            for voter in engine.configuration.voters
            if voter in self._progress
            and voter in engine.links
            and voter not in self._forgetful
            and engine.configuration.trusts(voter)
        ]
        return max(heirs)[1] if heirs else None

    def _offer_office(self, now: float) -> None:
        """Once the heir has the whole log, tell it. If it does not take over, go on leading.

        An heir that cannot be reached any more, perhaps because all nodes are stopped at once, is
        followed by the next one: waiting for it would be in vain.
        """
        heir, engine = self._heir, self._engine
        if heir is None:
            return
        if heir not in engine.links or heir not in self._progress:
            heir, self._heir_told = self._next_heir(), False
        if heir is None or now > self._heir_until:
            self._heir = None
            engine.application.office_changed()
            return
        self._heir = heir
        if not self._heir_told and self._progress[heir].match == engine.wal.last_index:
            self._heir_told = self.offered = True
            engine.send_held(heir, wire.TimeoutNow(engine.term))

    def _finish_reads(self) -> None:
        engine = self._engine
        finished = self.reads.finish(engine.configuration, engine.me)
        if finished is not None:
            index, tokens = finished
            engine.application.reads_confirmed(tokens, index)

    # -- snapshots for followers that are too far behind (rules 7, 25)

    def progress_of(self, peer: str) -> Progress:
        return self._progress[peer]

    def abort_snapshots(self) -> None:
        """End the transfers under way."""
        for peer in self._sending.indexes():
            self._sending.drop(peer)
            self._progress[peer].snapshot_failed()

    def in_transit(self) -> list[int]:
        """The indexes of snapshots on their way to followers that still answer."""
        since = self._engine.runtime.monotonic() - self._window_s
        return [
            index
            for peer, index in self._sending.indexes().items()
            if self._progress[peer].heard_at > since
        ]

    def on_snapshot_reply(self, sender: str, message: wire.SnapshotReply, now: float) -> None:
        progress = self._progress.get(sender)
        if progress is None:
            return
        progress.heard_at = now
        if self._sending.on_reply(sender, message, now):
            self._acknowledged(sender, progress, message.index)

"""Following a leader: the engine's side of `append`; its snapshots go to installing.py.

Terms (rule 21): a message with a stale term is answered with the own one, so that a deposed leader
learns of it; a newer or equal term makes this node a follower of the sender. Two leaders in one
term cannot be: that is a NodeFault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftkv.errors import Diverged

from . import wire
from .append import Rejected, judge_append

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["Following"]

# Every log begins behind entry 1.
NO_INDEX = 0


class Following:
    """One node's part as a follower."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _promised_ms(self, lease_ms: int) -> int:
        """For how long this node keeps a promise although it may be restarted (rule 16)."""
        return min(lease_ms, self._engine.times.election_timeout_min_ms)

    def _recognise(self, sender: str, term: int, now: float, lease_ms: int = 0) -> bool:
        """Settle the sender's term and office. False if it is stale."""
        engine = self._engine
        if term < engine.term:
            return False
        if engine.leading is not None and term == engine.term:
            raise Diverged(f"{sender} leads term {term}, which this node leads itself")
        if (term, sender) != (engine.term, engine.leader) or engine.role != 0:
            engine.become_follower(term, sender)
        engine.campaigning.deadline.heard_leader(now, lease_ms / 1000)
        if sender not in engine.links:
            # The stream was reset while this message waited for the disk: these are last words.
            engine.campaigning.leader_link_lost(now)
        return True

    def on_append(self, sender: str, message: wire.Append, now: float) -> None:
        engine, wal = self._engine, self._engine.wal
        prev_index, entries = message.prev_index, message.entries
        lease_ms = self._promised_ms(message.lease_ms)
        if not self._recognise(sender, message.term, now, lease_ms):
            reply = wire.AppendReply(engine.term, False, prev_index, message.round, 0, 0)
            engine.send_held(sender, reply)
            return
        if entries and engine.snapshotting.space.full:
            self._decline(sender, message, lease_ms)
            return
        verdict = judge_append(
            wal, engine.commit, prev_index, message.prev_term, entries, message.commit
        )
        if isinstance(verdict, Rejected):
            reply = wire.AppendReply(
                engine.term,
                False,
                prev_index,
                message.round,
                verdict.hint_term,
                verdict.hint_index,
                lease_ms,
            )
            engine.send_held(sender, reply)
            return
        if verdict.truncate_from is not None:
            wal.truncate_from(verdict.truncate_from)
            if engine.configurations.truncate_from(verdict.truncate_from):
                engine.configuration_changed()
        if verdict.skip < len(entries):
            index = prev_index + 1 + verdict.skip
            added = []
            for term, payload in entries[verdict.skip :]:
                wal.append(payload, index, term)
                added.append((index, payload))
                index += 1
            engine.note_configurations(added)
        if verdict.commit > engine.commit:
            engine.commit = verdict.commit
        if message.round == wire.NO_ANSWER and not entries:
            return
        reply = wire.AppendReply(engine.term, True, verdict.match, message.round, 0, 0, lease_ms)
        engine.send_held(sender, reply)

    def _decline(self, sender: str, message: wire.Append, lease_ms: int) -> None:
        """No room for entries (free_space.py): answer, so that the leader is heard, but take none.

        The answer names an index that no probe asks about. To the leader it is a sign of life and
        nothing else, so the entries are offered again once a heartbeat.
        """
        engine = self._engine
        engine.counts.appends_dropped += 1
        verdict = judge_append(
            engine.wal, engine.commit, message.prev_index, message.prev_term, [], message.commit
        )
        if not isinstance(verdict, Rejected) and verdict.commit > engine.commit:
            engine.commit = verdict.commit
        reply = wire.AppendReply(engine.term, False, NO_INDEX, message.round, 0, 0, lease_ms)
        engine.send_held(sender, reply)

    # -- snapshots (rule 7): installing.py

    def on_chunk(self, sender: str, message: wire.SnapshotChunk, now: float) -> None:
        engine = self._engine
        if self._recognise(sender, message.term, now):
            engine.installing.take(sender, message)
        else:
            reply = wire.SnapshotReply(engine.term, message.snapshot_id, message.index, 0, False)
            engine.send_held(sender, reply)

"""Following a leader: the engine's side of `append`, and installing its snapshots.

Terms (rule 21): a message with a stale term is answered with the own one, so that a deposed leader
learns of it; a newer or equal term makes this node a follower of the sender. Two leaders in one
term cannot be: that is a NodeFault.
"""

from __future__ import annotations

import logging
import zlib
from typing import TYPE_CHECKING

from raftkv.errors import DamagedSnapshot, Diverged

from . import wire
from .append import Rejected, judge_append
from .membership import decode

if TYPE_CHECKING:
    from .engine import Engine
    from .snapshot import Snapshot, SnapshotReceiver

__all__ = ["Following"]

log = logging.getLogger("raftkv.raft")


class Following:
    """One node's part as a follower."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._receiver: SnapshotReceiver | None = None

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
        return True

    def on_append(self, sender: str, message: wire.Append, now: float) -> None:
        engine, wal = self._engine, self._engine.wal
        prev_index, entries = message.prev_index, message.entries
        if not self._recognise(sender, message.term, now, message.lease_ms):
            reply = wire.AppendReply(engine.term, False, prev_index, message.round, 0, 0)
            engine.send_held(sender, reply)
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
        engine.send_held(
            sender, wire.AppendReply(engine.term, True, verdict.match, message.round, 0, 0)
        )

    # -- snapshots (rule 7)

    def on_chunk(self, sender: str, message: wire.SnapshotChunk, now: float) -> None:
        engine = self._engine
        if not self._recognise(sender, message.term, now):
            self._answer(sender, message, 0, done=False)
            return
        if message.index <= engine.commit:
            # An older snapshot must not rewind anything: only say what is known anyway.
            self._answer(sender, message, message.size_bytes, done=True)
            return
        receiver = self._receiver
        if receiver is None or receiver.snapshot_id != message.snapshot_id:
            if receiver is not None:
                receiver.abort()
            receiver = engine.snapshotting.store.receiver(message.snapshot_id, message.size_bytes)
            self._receiver = receiver
        if zlib.crc32(message.data) == message.crc:
            receiver.add(message.offset, message.data, message.crc)
        if receiver.offset < message.size_bytes:
            self._answer(sender, message, receiver.offset, done=False)
            return
        self._receiver = None
        engine.after_tick_freeze(
            lambda: _finish(receiver), lambda snapshot: self._received(sender, message, snapshot)
        )

    def _received(
        self, sender: str, message: wire.SnapshotChunk, snapshot: Snapshot | None
    ) -> None:
        """The file is whole and in place, or it was no snapshot: then the sender begins anew."""
        if snapshot is not None and snapshot.meta.index > self._engine.commit:
            self._install(snapshot)
        # Acknowledged exactly S, and only once the log's new base is durable.
        done = message.index <= self._engine.commit
        self._answer(sender, message, message.size_bytes if done else 0, done=done)

    def _install(self, snapshot: Snapshot) -> None:
        """State, configuration and log follow the validated file."""
        engine, wal, meta = self._engine, self._engine.wal, snapshot.meta
        engine.application.restore(snapshot.chunks(), meta.index)
        keeps = wal.term_at(meta.index) == meta.term
        if not keeps:
            wal.rebase(meta.index, meta.term)
        engine.configurations.rebase(meta.index, decode(meta.configuration), keep_behind=keeps)
        engine.installed(meta.index)
        engine.configuration_changed()
        engine.snapshotting.installed(snapshot)
        engine.application.progressed()

    def _answer(self, sender: str, message: wire.SnapshotChunk, offset: int, *, done: bool) -> None:
        engine = self._engine
        engine.send_held(
            sender,
            wire.SnapshotReply(engine.term, message.snapshot_id, message.index, offset, done),
        )


def _finish(receiver: SnapshotReceiver) -> Snapshot | None:
    """Validate what was received; blocking. None if it is no snapshot, or was finished before.

    Two leaders may send the last chunk of one snapshot within one tick.
    """
    try:
        return receiver.finish() if receiver.open else None
    except DamagedSnapshot as error:
        log.warning("a received snapshot is dropped: %s", error.reason)
        return None

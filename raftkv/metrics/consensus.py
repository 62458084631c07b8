"""Figures of consensus, of the log and of snapshots: from a core's engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from raftkv.raft.membership import name_of

from .family import Family, counter, gauge, gauge_by, histogram

if TYPE_CHECKING:
    from raftkv.parts import CorePart
    from raftkv.raft.engine import Engine

__all__ = ["core"]


def core(part: CorePart) -> Iterator[Family]:
    """Everything that only a core has."""
    engine = part.engine
    yield from _elections(engine)
    yield from _log(engine)
    yield from _batches(part)
    yield from _snapshots(part)
    yield from _disk(engine)
    yield from _peers(engine)
    yield from _fed(part)


def _elections(engine: Engine) -> Iterator[Family]:
    counts = engine.counts
    yield counter(
        "pre_votes_total",
        counts.pre_votes,
        "Times this core asked whether it could win an election.",
    )
    yield counter(
        "elections_total", counts.elections, "Elections this core stood in, each in a new term."
    )
    yield counter("elections_won_total", counts.elections_won, "Elections this core won.")
    yield counter(
        "step_downs_total", counts.step_downs, "Times this core left the office of the leader."
    )
    yield counter(
        "leader_changes_total", counts.leader_changes, "Times this core saw another leader or term."
    )
    yield counter(
        "heartbeats_late_total",
        counts.heartbeats_late,
        "Heartbeats this leader sent more than one interval late.",
    )
    yield counter(
        "read_rounds_total", counts.read_rounds, "Rounds in which this leader confirmed reads."
    )


def _log(engine: Engine) -> Iterator[Family]:
    wal = engine.wal
    yield gauge("log_first_index", wal.first_index, "The first entry that the log still holds.")
    yield gauge("log_last_index", wal.last_index, "The last entry of the log.")
    yield gauge("log_durable_index", wal.durable_index, "The last entry known to be on this disk.")
    yield gauge("log_segments", wal.segment_count, "Files that the log consists of.")
    yield gauge("log_size_bytes", wal.bytes_total, "Size of the log on disk.")
    yield counter("log_written_bytes_total", wal.written_bytes, "Bytes written to the log.")
    yield histogram(
        "log_fsync_seconds",
        engine.counts.fsync_s,
        "One write to the log with its fdatasync, in the disk's thread.",
    )


def _batches(part: CorePart) -> Iterator[Family]:
    engine = part.engine
    counts, leading = engine.counts, engine.leading
    commands, size = (0, 0) if leading is None else leading.waiting
    yield histogram(
        "commit_seconds",
        counts.commit_s,
        "From the making of an entry by this leader to its commit.",
    )
    yield histogram(
        "batch_commands", counts.batch_commands, "Commands in one entry of this leader."
    )
    yield gauge(
        "leader_queue_commands", commands, "Commands that wait at this leader for an entry."
    )
    yield gauge("leader_queue_bytes", size, "Bytes of the commands that wait at this leader.")
    yield gauge(
        "leader_uncommitted_bytes",
        0 if leading is None else leading.uncommitted_bytes,
        "Entries of this leader that no majority has yet (limits.uncommitted_bytes_max).",
    )
    yield counter(
        "leader_refused_commands_total",
        counts.commands_refused,
        "Commands this leader did not take because too much waited; their origins send them again.",
    )
    yield counter(
        "rejected_commands_total",
        part.proposals.rejected,
        "Commands of other nodes that this core dropped as unfit.",
    )
    yield gauge(
        "distrusted_voters",
        len(engine.configuration.distrusted),
        "Voters that lost entries which they had acknowledged: replace them.",
    )
    yield gauge(
        "inbox_messages", engine.inbox_messages, "Messages of other cores that wait for a tick."
    )
    yield gauge("inbox_bytes", engine.inbox_bytes, "Bytes of those messages.")


def _snapshots(part: CorePart) -> Iterator[Family]:
    engine, feeds = part.engine, part.feeds
    counts, snapshotting = engine.counts, engine.snapshotting
    latest = snapshotting.store.known
    yield gauge("snapshot_index", snapshotting.last_index, "What the newest snapshot covers.")
    yield gauge(
        "snapshot_size_bytes",
        None if latest is None else latest.size_bytes,
        "Size of the newest snapshot.",
    )
    yield gauge(
        "snapshot_log_bytes",
        snapshotting.log_bytes,
        "The log behind the newest snapshot: what a start has to apply.",
    )
    yield gauge(
        "snapshot_log_bytes_max", snapshotting.log_bytes_max, "How much of it begins the next one."
    )
    yield gauge(
        "snapshot_log_kept_bytes_max",
        snapshotting.log_kept_bytes_max,
        "How much of it is kept while no snapshot can be written.",
    )
    yield gauge("snapshot_writing", snapshotting.writing, "1 while a snapshot is being written.")
    yield counter(
        "appends_dropped_total", counts.appends_dropped, "Messages dropped: too many wait."
    )
    yield counter("snapshots_written_total", counts.snapshots_written, "Snapshots written.")
    yield counter(
        "snapshots_failed_total", counts.snapshots_failed, "Snapshots that could not be written."
    )
    yield counter(
        "snapshot_written_bytes_total", counts.snapshot_written_bytes, "Bytes of snapshots written."
    )
    yield histogram(
        "snapshot_write_seconds",
        counts.snapshot_write_s,
        "Writing one snapshot, from first to last.",
    )
    yield counter(
        "snapshots_sent_total",
        counts.snapshots_sent + feeds.snapshots_sent,
        "Snapshots that other nodes got from this one.",
    )
    yield counter(
        "snapshot_sent_bytes_total",
        counts.snapshot_sent_bytes + feeds.snapshot_sent_bytes,
        "Bytes of snapshots sent, finished or not.",
    )
    yield counter(
        "snapshots_damaged_total",
        counts.snapshots_damaged,
        "Snapshots that were not used because their checksums do not match.",
    )
    yield counter(
        "descriptors_lacked_total",
        counts.descriptors_lacked,
        "Files of the log and of snapshots that were not opened for want of file descriptors.",
    )


def _disk(engine: Engine) -> Iterator[Family]:
    """The free space of this core (raft/free_space.py)."""
    space = engine.snapshotting.space
    yield gauge(
        "disk_left_bytes",
        space.left_bytes,
        "Bytes on the disk that are left for the log, as of the last look.",
    )
    yield gauge(
        "disk_reserve_bytes",
        space.reserve_bytes,
        "What a snapshot leaves of them; below half of it this core takes only what frees room.",
    )
    yield gauge("disk_alarm", space.alarm, "1 while the disk lacks the room for a snapshot.")
    yield gauge(
        "disk_at_end",
        space.at_end,
        "1 while this core takes only what frees room, because of its disk.",
    )


def _peers(engine: Engine) -> Iterator[Family]:
    """Bounded by the members of the configuration, all of them cores."""
    names = {member: name_of(member) for member in engine.configuration.members}
    others = {member: name for member, name in names.items() if member != engine.me}
    links, leading = engine.links, engine.leading

    def of(values: dict[str, float]) -> dict[str, float]:
        return {others[member]: value for member, value in values.items() if member in others}

    lag = {} if leading is None else of(dict(leading.lag()))
    trips = {} if leading is None else of(leading.round_trips())
    flight = {} if leading is None else of(dict(leading.inflight_bytes()))
    taking = [] if leading is None else leading.snapshots_on_their_way()
    yield gauge_by(
        "peer_up",
        "peer",
        {name: member in links for member, name in others.items()},
        "1 while the stream to this core is up.",
    )
    yield gauge_by(
        "peer_unsent_bytes",
        "peer",
        {name: links[member].unsent_bytes for member, name in others.items() if member in links},
        "Bytes in this process that this core has not taken from its stream.",
    )
    yield gauge_by(
        "peer_lag_entries",
        "peer",
        lag,
        "Entries of this leader that this core has not acknowledged.",
    )
    yield gauge_by(
        "peer_round_trip_seconds",
        "peer",
        trips,
        "The latest message of this leader to this core and its answer, its fsync included.",
    )
    yield gauge_by(
        "peer_inflight_bytes", "peer", flight, "Bytes of entries on their way to this core."
    )
    yield gauge_by(
        "peer_snapshotting",
        "peer",
        {name: member in taking for member, name in others.items()} if leading else {},
        "1 while this core gets a snapshot from this leader.",
    )


def _fed(part: CorePart) -> Iterator[Family]:
    """Bounded by the replicants that follow this core now."""
    standings, commit = part.feeds.standings, part.commit
    yield gauge("replicants_fed", len(standings), "Replicants that follow this core now.")
    yield counter(
        "replicant_commands_refused_total",
        part.relay.refused,
        "Commands that replicants may not propose and that went no further than this core.",
    )
    yield counter(
        "replicant_commands_dropped_total",
        part.relay.dropped,
        "Commands whose sessions this core has not applied yet, beyond what may wait for that.",
    )
    yield gauge(
        "fed_snapshots_sending",
        part.feeds.snapshots_sending,
        "Snapshots on their way to replicants (limits.replicant_snapshots_max).",
    )
    yield gauge(
        "fed_snapshots_waiting",
        part.feeds.snapshots_waiting,
        "Replicants that wait for their turn to get a snapshot.",
    )
    yield counter(
        "fed_snapshot_turns_lost_total",
        part.feeds.snapshot_turns_lost,
        "Replicants that took a snapshot too slowly while others waited, and were cut off.",
    )
    yield gauge_by(
        "fed_lag_entries",
        "peer",
        {name: max(0, commit - applied) for name, (applied, _) in standings.items()},
        "Committed entries that this replicant has not reported as applied.",
    )
    yield gauge_by(
        "fed_inflight_bytes",
        "peer",
        {name: size for name, (_, size) in standings.items()},
        "Bytes on their way to this replicant.",
    )

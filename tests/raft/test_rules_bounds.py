"""Rules 25 to 31: snapshots on their way, slow disks, late timers, bounds.

A whole engine is driven message by message, with its disk in the test's hands; what is pure is
tested in its module's own file. test_stock_canaries.py shows what stock PySyncObj does instead.
"""

from __future__ import annotations

import pytest

from raftkv.config import Limits
from raftkv.errors import Diverged, InternalFault
from raftkv.raft import engine as engine_module
from raftkv.raft import wire
from raftkv.raft.changing import remove
from raftkv.raft.progress import Flow
from raftkv.testing.patching import replaced
from tests.raft.harness import (
    BEAT_S,
    MAX_S,
    MIN_S,
    A,
    B,
    Bench,
    C,
    accepted,
    append,
    batch,
    rejected,
)
from tests.raft.rule_tools import disk_with_snapshot


class TestRule25SnapshotSending:
    def test_the_log_is_kept_from_the_snapshot_in_transit(self) -> None:
        """Else a follower whose install takes longer than the next snapshot never arrives."""
        limits = Limits(snapshot_log_entries=4, log_tail_entries=1, snapshot_chunk_bytes=40)
        bench = Bench(A, limits=limits)
        bench.receive(C, accepted(bench.elect(), 3))
        bench.runtime.settle()

        def propose() -> None:
            bench.engine.propose([b"x"])
            bench.runtime.settle()
            bench.receive(C, accepted(2, bench.wal.last_index))
            bench.runtime.settle()

        while bench.wal.base_index < 3:
            propose()
        bench.tick(2 * BEAT_S)
        bench.runtime.settle()
        (first,) = bench.take(B, wire.SnapshotChunk)
        bench.receive(B, wire.SnapshotReply(2, first.snapshot_id, first.index, 40, False))
        for _ in range(12):
            propose()
        newest = bench.recovered.store.latest()
        assert newest is not None
        assert newest.meta.index > first.index + 4
        assert bench.wal.base_index <= first.index
        done = wire.SnapshotReply(2, first.snapshot_id, first.index, 0, True)
        bench.take(B)
        bench.receive(B, done)
        assert bench.take(B, wire.SnapshotChunk) == []
        assert bench.engine.leading._progress[B].flow is Flow.REPLICATE

    def test_a_follower_that_is_silent_keeps_nothing(self) -> None:
        bench = Bench(A, limits=Limits(snapshot_chunk_bytes=40))
        bench.receive(C, accepted(bench.elect(), 3))
        bench.engine.snapshotting.begin()
        bench.runtime.settle()
        bench.wal.compact(3, 2)
        bench.tick()
        bench.runtime.settle()
        bench.tick(2 * BEAT_S)
        bench.runtime.settle()
        assert bench.take(B, wire.SnapshotChunk)
        assert bench.engine.leading.in_transit() == [3]
        bench.receive(C, accepted(2, 3))
        bench.runtime.now += MAX_S
        assert bench.engine.leading.in_transit() == []


class TestRule26AHungDisk:
    """A node whose disk does not answer must not stay in office."""

    @staticmethod
    def hung() -> Bench:
        bench = Bench(A)
        bench.lead()
        bench.engine.propose([b"x"])
        bench.runtime.run()
        return bench

    def test_heartbeats_go_on_for_one_shortest_time_out(self) -> None:
        bench = self.hung()
        bench.take(B)
        bench.runtime.advance(MIN_S)
        beats = bench.take(B)
        assert len(beats) >= MIN_S / BEAT_S - 2
        assert all(isinstance(m, wire.Append) and not m.entries for m in beats)
        bench.runtime.advance(2 * BEAT_S)
        bench.take(B)
        bench.runtime.advance(5 * MAX_S)
        assert bench.take(B) == []

    def test_the_leader_then_leaves_its_office_and_says_so_to_its_readers(self) -> None:
        """Callers of this very node would else wait for a leader that does nothing."""
        bench = self.hung()
        assert bench.engine.read_index("r")
        bench.runtime.advance(MAX_S - 0.01)
        assert bench.engine.leading is not None, "nobody else can have been elected yet"
        bench.runtime.advance(0.02)
        assert (bench.engine.leading, bench.engine.leader, bench.engine.role) == (None, None, 0)
        assert bench.application.failed == ["r"]
        assert not bench.engine.propose([b"y"])

    def test_a_disk_that_returns_in_time_costs_nothing(self) -> None:
        bench = self.hung()
        term = bench.engine.term
        bench.runtime.advance(MAX_S - 0.01)
        bench.take(B)
        bench.receive(B, accepted(term, 4))
        bench.runtime.settle()
        assert (bench.engine.leading is not None, bench.engine.term) == (True, term)
        bench.runtime.advance(2 * BEAT_S)
        assert bench.take(B, wire.Append), "heartbeats go on"

    def test_when_the_disk_returns_it_follows_whoever_leads_now(self) -> None:
        bench = self.hung()
        term = bench.engine.term
        bench.runtime.advance(2 * MAX_S)
        bench.receive(B, append(term + 1, 3, term, [(term + 1, b"\x01")], commit=4))
        bench.runtime.settle()
        assert (bench.engine.leader, bench.engine.term, bench.engine.commit) == (B, term + 1, 4)
        assert bench.application.faults == []

    def test_when_the_disk_returns_and_nobody_leads_it_campaigns(self) -> None:
        bench = self.hung()
        bench.runtime.advance(2 * MAX_S)
        bench.runtime.settle()
        bench.take(B)
        bench.runtime.advance(MAX_S + BEAT_S)
        assert [m.pre_vote for m in bench.take(B, wire.Vote)][:1] == [True]

    def test_a_lone_voter_has_nobody_to_leave_it_to(self) -> None:
        bench = Bench(A, voters=[A])
        bench.lead()
        bench.engine.propose([b"x"])
        bench.runtime.run()
        bench.runtime.advance(5 * MAX_S)
        assert bench.engine.leading is not None
        bench.runtime.settle()
        assert bench.application.state == [b"x"]


class TestRule27LateTimers:
    """A timer that comes late says that this process stood still, not that others did."""

    @staticmethod
    def stood_still(bench: Bench, seconds: float) -> None:
        """The process gets no time; then its timers fire before its sockets were read."""
        bench.runtime.now += seconds
        bench.runtime.advance(0.0)

    def test_what_waits_in_the_sockets_is_read_before_a_deadline_is_judged(self) -> None:
        bench = Bench(B)
        bench.deliver(A, append(2, 2, 1))
        self.stood_still(bench, 10 * MAX_S)
        assert bench.take(C, wire.Vote) == [], "it campaigned before it had listened"
        bench.deliver(A, append(2, 2, 1))
        bench.runtime.advance(MIN_S - 0.01)
        assert bench.take(C, wire.Vote) == []

    def test_a_leader_listens_before_it_counts_who_was_silent(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        self.stood_still(bench, 10 * MAX_S)
        assert bench.engine.leading is not None
        bench.receive(B, accepted(term, 3))
        bench.runtime.advance(BEAT_S)
        assert bench.engine.leading is not None

    def test_what_arrived_counts_before_the_deadlines_of_the_same_tick(self) -> None:
        bench = Bench(B)
        bench.deliver(A, append(2, 2, 1))
        bench.runtime.now += 10 * MAX_S
        bench.receive(A, append(2, 2, 1))
        assert bench.take(C, wire.Vote) == []

    @pytest.mark.parametrize("leads", [True, False])
    def test_what_is_left_for_the_next_tick_counts_too(self, leads: bool) -> None:
        """A tick handles messages for a bounded time; those that are left may move a deadline."""
        bench = Bench(A if leads else B)
        term = bench.lead() if leads else 2
        if not leads:
            bench.deliver(A, append(2, 2, 1))
        other = bench.links[C]
        bench.runtime.now += 10 * MAX_S
        question = wire.Vote(term + 1, 1, 9, term, True, False)
        bench.engine.receive(other, question)  # type: ignore[arg-type]
        news = accepted(term, 3) if leads else append(2, 2, 1)
        with replaced(engine_module, "INBOX_S_PER_TICK", 0.0):
            bench.receive(B if leads else A, news)
        assert (bench.engine.leading is not None) is leads
        assert bench.take(C, wire.Vote) == []

    def test_with_nothing_in_the_sockets_the_deadline_counts(self) -> None:
        bench = Bench(B)
        bench.deliver(A, append(2, 2, 1))
        self.stood_still(bench, 10 * MAX_S)
        bench.runtime.advance(0.01)
        assert [m.pre_vote for m in bench.take(C, wire.Vote)] == [True]

    def test_a_loop_that_is_always_late_still_keeps_its_deadlines(self) -> None:
        """One look at the sockets is granted, not one for every late turn."""
        bench = Bench(A)
        bench.lead()
        bench.take(B)
        for _ in range(4):
            self.stood_still(bench, 0.2)
        assert bench.take(B, wire.Append), "no heartbeat in 0.8 s"


class TestRule28RecoveryInSlices:
    def test_commit_starts_at_the_snapshot(self) -> None:
        log = [(1, batch(str(i))) for i in range(3, 11)]
        bench = Bench(A, disk=disk_with_snapshot(log, (5, 1)))
        assert bench.engine.commit == 5

    def test_a_tick_applies_a_bounded_number_of_entries(self) -> None:
        log = [(1, batch(str(i))) for i in range(3, 103)]
        bench = Bench(B, log=log)
        link = bench.links[A]
        bench.engine.receive(link, append(1, 102, 1, commit=102))  # type: ignore[arg-type]
        bench.engine._run_tick()
        assert 0 < bench.engine.applied - 1 <= 16
        assert bench.engine.commit == 102
        bench.runtime.run()
        assert bench.engine.applied == 102
        assert bench.application.applied == list(range(2, 103))

    def test_an_entry_that_no_node_writes_stops_the_node_before_anything_is_promised(self) -> None:
        bench = Bench(B)
        assert bench.deliver(A, append(1, 2, 1, [(1, b"")], commit=3)) == []
        assert [type(fault) for fault in bench.application.faults] == [InternalFault]
        assert bench.engine.stopped

    def test_an_entry_of_pysyncobjs_version_kind_is_refused(self) -> None:
        bench = Bench(B, log=[(1, b"\x03version")])
        bench.deliver(A, append(1, 3, 1, commit=3))
        assert [type(fault) for fault in bench.application.faults] == [Diverged]
        assert "Upgrade this node" in str(bench.application.faults[0])
        assert bench.engine.applied == 2


class TestRule29RemovedPeers:
    """Who is no member is heard no more, and leaves nothing behind."""

    @staticmethod
    def without_c() -> tuple[Bench, int]:
        bench = Bench(A)
        term = bench.lead()
        bench.engine.change_configuration(remove(bench.engine.configuration, C), force=False)
        bench.runtime.settle()
        return bench, term

    def test_their_answers_are_ignored(self) -> None:
        bench, term = self.without_c()
        last = bench.wal.last_index
        bench.receive(C, accepted(term, last), rejected(term, last), accepted(term + 7, last))
        bench.receive(C, wire.SnapshotReply(term, "x", 3, 0, False))
        assert bench.application.faults == []
        assert bench.engine.leading is not None
        assert bench.engine.term == term
        assert bench.engine.commit == last - 1
        bench.receive(B, accepted(term, last))
        assert bench.engine.commit == last

    def test_their_votes_and_terms_are_ignored(self) -> None:
        bench, term = self.without_c()
        bench.receive(C, wire.VoteReply(term + 9, term + 9, 1, False, True))
        assert (bench.engine.term, bench.engine.role) == (term, 2)

    def test_nothing_is_sent_to_them_any_more(self) -> None:
        bench, term = self.without_c()
        bench.take(C)
        bench.engine.propose([b"x"])
        bench.runtime.advance(10 * BEAT_S)
        assert bench.take(C) == []
        assert C not in bench.engine.leading.lag()
        assert {node.id for node in bench.engine.otherNodes} == {B}
        assert bench.engine.term == term

    def test_a_snapshot_on_its_way_to_them_holds_the_log_no_more(self) -> None:
        bench = Bench(A, limits=Limits(snapshot_chunk_bytes=40))
        term = bench.elect()
        bench.receive(C, accepted(term, 3))
        bench.engine.snapshotting.begin()
        bench.runtime.settle()
        bench.wal.compact(3, term)
        bench.tick()
        bench.runtime.settle()
        bench.tick(2 * BEAT_S)
        assert bench.engine.leading.in_transit() == [3]
        bench.engine.change_configuration(remove(bench.engine.configuration, B), force=True)
        assert bench.engine.leading.in_transit() == []

    def test_losing_their_stream_is_told_once_and_harmless(self) -> None:
        bench, _ = self.without_c()
        bench.disconnect(C)
        assert C not in bench.engine.links
        bench.connect(C)
        bench.tick(BEAT_S)
        assert bench.application.faults == []


class TestRule31Bounds:
    """Neither a frame nor what waits for a quorum grows without end."""

    def test_what_one_tick_gathers_is_split_at_the_limit_of_a_batch(self) -> None:
        bench = Bench(
            A,
            limits=Limits(
                batch_bytes_max=4096,
                command_bytes_max=4096,
                value_bytes_max=1024,
                key_bytes_max=1024,
            ),
        )
        bench.lead()
        for number in range(50):
            bench.engine.propose([b"%03d" % number * 100])
        bench.runtime.settle()
        entries = bench.wal.entries(4)
        assert len(entries) == 4
        assert max(len(entry.payload) for entry in entries) <= 4096 + 64
        together = b"|".join(entry.payload[1:] for entry in entries)
        assert together.split(b"|") == [b"%03d" % number * 100 for number in range(50)]

    def test_a_frame_holds_one_batch_or_many_small_ones(self) -> None:
        limits = Limits(batch_bytes_max=4096)
        log = [(1, batch("x" * 1000))] * 30
        bench = Bench(A, log=log, limits=limits)
        term = bench.elect()
        bench.receive(B, rejected(term, 32, 0, 3))
        bench.receive(B, accepted(term, 2))
        bench.runtime.settle()
        messages = [m for m in bench.take(B, wire.Append) if m.entries]
        assert len(messages) > 3
        for message in messages:
            assert sum(len(payload) for _, payload in message.entries) <= 4096
            assert len(wire.encode(message)) < 2 * 4096

    def test_what_is_not_committed_is_bounded(self) -> None:
        bench = Bench(A, limits=Limits(batch_bytes_max=1000, uncommitted_bytes_max=5000))
        term = bench.lead()
        for _ in range(40):
            bench.engine.propose([b"x" * 500])
            bench.runtime.settle()
        appended = sum(len(e.payload) for e in bench.wal.entries(4))
        assert 5000 <= appended <= 5000 + 1000
        bench.receive(B, accepted(term, bench.wal.last_index))
        bench.runtime.settle()
        assert sum(len(e.payload) for e in bench.wal.entries(4)) > appended, "it goes on"

    def test_what_waits_behind_it_is_bounded_too(self) -> None:
        """Origins send again what got no outcome: without a bound every round would be kept."""
        bench = Bench(A, limits=Limits(batch_bytes_max=1000, uncommitted_bytes_max=5000))
        term = bench.lead()
        taken = [bench.engine.propose([b"x" * 500]) for _ in range(100)]
        bench.runtime.settle()
        assert taken[:10] == [True] * 10
        assert taken[-50:] == [False] * 50
        bench.receive(B, accepted(term, bench.wal.last_index))
        bench.runtime.settle()
        assert bench.engine.propose([b"y"])

    def test_one_origin_leaves_room_to_those_of_which_little_waits(self) -> None:
        """Else a small write waits for a second and more, to be sent again and dropped again."""
        bench = Bench(A, limits=Limits(batch_bytes_max=1000, uncommitted_bytes_max=64_000))
        bench.lead()
        while bench.engine.propose([b"x" * 500], "large"):
            bench.runtime.settle()
        assert bench.engine.propose([b"y"], "small")
        assert not bench.engine.propose([b"x" * 500], "large")
        assert bench.engine.propose([b"y" * 1000], "small")
        assert not bench.engine.propose([b"y"], "small"), "as much as one may have of the reserve"
        taken = [bench.engine.propose([b"z" * 1000], f"node{number}") for number in range(40)]
        assert taken == [True] * 15 + [False] * 25

    def test_a_leader_without_its_quorum_refuses_proposals(self) -> None:
        bench = Bench(A)
        bench.lead()
        assert bench.engine.propose([b"x"])
        bench.runtime.settle()
        bench.runtime.advance(MAX_S + BEAT_S)
        assert not bench.engine.propose([b"y"])
        assert bench.engine.leading is None

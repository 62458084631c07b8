"""The consensus rules that the engine itself keeps, each by its number.

Whatever is pure is tested in the module's own file. Here a whole engine is driven message by
message, with its disk in the test's hands. test_stock_canaries.py shows what stock PySyncObj does
in the same places.
"""

from __future__ import annotations

import errno
import random

import pytest

from raftkv.config import Limits
from raftkv.errors import DiskFailed, Diverged, InternalFault
from raftkv.raft import wire
from raftkv.raft.membership import Configuration, encode
from raftkv.raft.progress import Flow
from raftkv.raft.snapshot import SnapshotMeta, SnapshotStore
from raftkv.testing.disk import SimDisk
from tests.raft.harness import (
    BEAT_S,
    DIRECTORY,
    MAX_S,
    MIN_S,
    A,
    B,
    Bench,
    C,
    D,
    E,
    accepted,
    append,
    batch,
    chunk,
    configuration_entry,
    grant,
    rejected,
    write_log,
)

THREE = Configuration((A, B, C))


def snapshot_file(index: int, term: int, chunks: list[bytes]) -> tuple[str, bytes]:
    """(identity, file) of a snapshot that another node would send."""
    disk = SimDisk(random.Random(9))
    store = SnapshotStore(disk, "elsewhere")
    writer = store.writer(SnapshotMeta(index, term, encode(THREE), "cluster"))
    for data in chunks:
        writer.write(data)
    snapshot = writer.commit()
    return snapshot.id, snapshot.read(0, snapshot.size_bytes)


class TestRule01CommitOnlyWhatIsVerified:
    """A message that verifies nothing of the log moves no commit index."""

    LOG = ((1, batch("x")), (1, batch("stale")))  # entries 3 and 4

    def test_a_heartbeat_from_before_the_tail_commits_only_its_own_prefix(self) -> None:
        bench = Bench(B, log=self.LOG)
        bench.receive(C, append(2, 3, 1, commit=2000))
        assert bench.engine.commit == 3

    def test_a_heartbeat_that_verifies_nothing_commits_nothing(self) -> None:
        bench = Bench(B, log=self.LOG)
        replies = bench.deliver(C, append(2, 0, 0, commit=2000))
        assert bench.engine.commit == 1
        assert replies == [accepted(2, 0)]

    def test_a_chunk_of_a_snapshot_commits_nothing_before_the_install(self) -> None:
        bench = Bench(B, log=self.LOG)
        name, whole = snapshot_file(50, 2, [b"state"])
        bench.deliver(C, chunk(2, whole[:20], whole, 0, index=50, snapshot_term=2, name=name))
        assert (bench.engine.commit, bench.engine.applied) == (1, 1)
        assert bench.application.state == []

    def test_a_rejected_append_commits_nothing(self) -> None:
        bench = Bench(B, log=self.LOG)
        bench.receive(C, append(2, 4, 2, [(2, batch("new"))], commit=5))
        assert bench.engine.commit == 1


class TestRule02Append:
    """Matching entries stay; the acknowledgement is what the message verified."""

    LOG = tuple((1, batch(str(i))) for i in range(3, 7))  # entries 3 to 6

    def test_a_repeated_short_message_cuts_nothing(self) -> None:
        bench = Bench(B, log=self.LOG)
        bench.deliver(A, append(1, 6, 1, commit=6))
        assert bench.engine.commit == 6
        replies = bench.deliver(A, append(1, 2, 1, [self.LOG[0]], commit=3))
        assert bench.wal.last_index == 6
        assert bench.engine.commit == 6
        assert replies == [accepted(1, 3)], "acknowledged is prev + len, never the log's end"

    def test_the_first_conflict_cuts_and_nothing_before_it(self) -> None:
        bench = Bench(B, log=self.LOG)
        entries = [self.LOG[0], (2, batch("other")), (2, batch("more"))]
        replies = bench.deliver(C, append(2, 2, 1, entries, commit=2))
        assert [(i, t) for i, t, _ in bench.log()[1:]] == [(3, 1), (4, 2), (5, 2)]
        assert replies == [accepted(2, 5)]

    @pytest.mark.parametrize(
        "message",
        [append(2, 3, 1, [(2, batch("evil"))]), append(2, 4, 2, []), append(2, 2, 2, [])],
    )
    def test_a_conflict_with_what_is_committed_stops_the_node(self, message: wire.Append) -> None:
        bench = Bench(B, log=self.LOG)
        bench.deliver(A, append(1, 6, 1, commit=6))
        assert bench.deliver(C, message) == []
        assert [type(fault) for fault in bench.application.faults] == [Diverged]
        assert bench.wal.last_index == 6

    def test_the_configuration_falls_with_the_entries_that_are_cut(self) -> None:
        more = Configuration((A, B, C, D))
        bench = Bench(B, log=[(1, configuration_entry(more))])
        assert bench.engine.configuration == more
        bench.deliver(C, append(2, 2, 1, [(2, batch("instead"))], commit=2))
        assert bench.engine.configuration == THREE
        assert {node.id for node in bench.engine.otherNodes} == {A, C}


class TestRule04MembershipComesFromTheLog:
    def test_a_restarted_node_counts_votes_in_the_configuration_of_its_log(self) -> None:
        five = Configuration((A, B, C, D, E))
        bench = Bench(A, log=[(1, configuration_entry(five))], connected=(B, C))
        assert bench.engine.configuration == five
        bench.runtime.advance(MAX_S)
        bench.runtime.settle()
        request = bench.take(B, wire.Vote)[-1]
        bench.receive(B, grant(request, 1))
        assert bench.engine.role == 0, "two of five are no majority"
        bench.receive(C, grant(request, 1))
        assert bench.engine.role == 1

    def test_applying_a_configuration_changes_nothing(self) -> None:
        four = Configuration((A, B, C, D))
        log = [(1, configuration_entry(four)), (1, configuration_entry(THREE))]
        bench = Bench(B, log=log)
        assert bench.engine.configuration == THREE
        bench.deliver(A, append(1, 4, 1, commit=3))
        assert bench.engine.applied == 3
        assert bench.engine.configuration == THREE, "applied the older one of the two"


class TestRule06RecoveryKeepsTheLog:
    """What lies behind the snapshot stays; only a log without its last entry starts anew."""

    @staticmethod
    def disk(log: list[tuple[int, bytes]], snapshot: tuple[int, int]) -> SimDisk:
        disk = SimDisk(random.Random(4))
        write_log(disk, THREE, log, 1)
        store = SnapshotStore(disk, f"{DIRECTORY}/snapshots")
        writer = store.writer(SnapshotMeta(*snapshot, encode(THREE), "cluster"))
        writer.write(b"state")
        writer.commit()
        return disk

    def test_a_kept_tail_survives_the_restart(self) -> None:
        log = [(1, batch(str(i))) for i in range(3, 11)]
        bench = Bench(A, disk=self.disk(log, (5, 1)))
        assert bench.wal.first_index == 2, "entries in front of the snapshot were kept too"
        assert bench.wal.last_index == 10
        assert (bench.engine.applied, bench.engine.commit) == (5, 5)
        assert bench.application.restored == [5]

    def test_a_log_that_ends_in_front_of_the_snapshot_starts_anew_at_it(self) -> None:
        bench = Bench(A, disk=self.disk([(1, batch("3"))], (50, 4)))
        assert (bench.wal.base_index, bench.wal.base_term, bench.wal.last_index) == (50, 4, 50)
        assert bench.engine.configuration == THREE
        assert bench.engine.term == 4

    def test_a_log_that_contradicts_the_snapshot_starts_anew_at_it(self) -> None:
        log = [(1, batch(str(i))) for i in range(3, 11)]
        bench = Bench(A, disk=self.disk(log, (6, 3)))
        assert (bench.wal.base_index, bench.wal.last_index) == (6, 6)


class TestRule07Install:
    """An install moves a node forward only, and keeps what it may keep."""

    LOG = tuple((1, batch(str(i))) for i in range(3, 11))  # entries 3 to 10

    @staticmethod
    def whole_chunk(index: int, term: int) -> wire.SnapshotChunk:
        name, whole = snapshot_file(index, term, [b"state", b"installed"])
        return chunk(2, whole, whole, 0, index=index, snapshot_term=term, name=name)

    def test_a_snapshot_of_what_is_committed_is_only_acknowledged(self) -> None:
        bench = Bench(B, log=self.LOG)
        bench.deliver(A, append(1, 10, 1, commit=8))
        state = list(bench.application.state)
        (reply,) = bench.deliver(C, self.whole_chunk(8, 1))
        assert (reply.index, reply.done) == (8, True)
        assert bench.application.restored == []
        assert bench.application.state == state
        assert (bench.wal.last_index, bench.engine.commit, bench.engine.applied) == (10, 8, 8)

    def test_a_matching_tail_is_kept(self) -> None:
        bench = Bench(B, log=self.LOG)
        bench.deliver(C, self.whole_chunk(8, 1))
        assert bench.application.state == [b"installed"]
        assert (bench.wal.last_index, bench.engine.commit, bench.engine.applied) == (10, 8, 8)
        bench.deliver(C, append(2, 10, 1, commit=10))
        assert bench.application.state == [b"installed", b"9", b"10"]

    def test_a_contradicting_log_goes(self) -> None:
        bench = Bench(B, log=self.LOG)
        bench.deliver(C, self.whole_chunk(8, 2))
        assert (bench.wal.base_index, bench.wal.base_term, bench.wal.last_index) == (8, 2, 8)
        assert bench.engine.configuration == THREE

    def test_it_is_acknowledged_when_the_logs_new_base_is_durable(self) -> None:
        bench = Bench(B)
        message = self.whole_chunk(50, 2)
        bench.receive(C, message)
        while bench.application.restored == []:
            assert bench.take(C, wire.SnapshotReply) == []
            if bench.runtime.disk:
                bench.runtime.finish_disk()
            else:
                bench.runtime.finish_bulk()
        assert bench.take(C, wire.SnapshotReply) == [], "the base is still on its way to the disk"
        bench.runtime.finish_disk()
        (reply,) = bench.take(C, wire.SnapshotReply)
        assert (reply.index, reply.done) == (50, True)

    def test_a_chunk_that_was_not_asked_for_changes_nothing(self) -> None:
        bench = Bench(B)
        name, whole = snapshot_file(50, 2, [b"state", b"x"])

        def part(start: int, end: int) -> wire.SnapshotChunk:
            return chunk(2, whole[start:end], whole, start, index=50, snapshot_term=2, name=name)

        wanted = [
            bench.deliver(C, part(*bounds))[-1].offset
            for bounds in ((0, 30), (0, 30), (60, 90), (30, 60))
        ]
        assert wanted == [30, 30, 30, 60]
        (reply,) = bench.deliver(C, part(60, len(whole)))
        assert reply.done
        assert bench.application.state == [b"x"]


class TestRule08NoSerializerHooks:
    def test_compaction_never_touches_the_stock_serializer(self) -> None:
        bench = Bench(A, voters=[A], limits=Limits(snapshot_log_entries=3, log_tail_entries=1))

        class Bomb:
            def __getattr__(self, name: str) -> object:
                raise AssertionError(f"the stock serializer's {name} was used")

        bench.engine._SyncObj__serializer = Bomb()
        bench.engine.forceLogCompaction()
        bench.elect()
        for number in range(10):
            assert bench.engine.propose([b"%d" % number])
            bench.runtime.settle()
        assert bench.wal.base_index > 1, "nothing was compacted: the test shows nothing"

    def test_the_last_good_snapshot_stays_until_the_next_is_complete(self) -> None:
        bench = Bench(A, voters=[A], limits=Limits(snapshot_log_entries=3, log_tail_entries=1))
        bench.elect()
        while bench.recovered.store.latest() is None:
            bench.engine.propose([b"x"])
            bench.runtime.settle()
        good = bench.recovered.store.latest()
        assert good is not None
        bench.engine.snapshotting.begin()
        bench.runtime.run()
        while bench.runtime.bulk:
            assert bench.disk.exists(good.path)
            bench.runtime.finish_bulk()
        newest = bench.recovered.store.latest()
        assert newest is not None
        assert newest.meta.index >= good.meta.index

    def test_a_snapshot_that_cannot_be_written_stops_the_node_and_keeps_the_old_one(self) -> None:
        bench = Bench(A, voters=[A])
        bench.lead()
        bench.engine.snapshotting.begin()
        bench.runtime.settle()
        good = bench.recovered.store.latest()
        assert good is not None
        bench.engine.propose([b"x"])
        bench.runtime.settle()
        bench.engine.snapshotting.begin()
        bench.disk.fail_writes = True
        bench.runtime.settle()
        assert [type(fault) for fault in bench.application.faults] == [DiskFailed]
        assert SnapshotStore(bench.disk, f"{DIRECTORY}/snapshots").latest() is not None


class TestRule09VotesAreASet:
    def test_the_same_voter_counts_once(self) -> None:
        bench = Bench(A, voters=(A, B, C, D, E))
        term = bench.ask_votes()
        bench.runtime.settle()
        request = bench.take(B, wire.Vote)[-1]
        assert not request.pre_vote
        bench.receive(B, grant(request, term), grant(request, term), grant(request, term))
        assert bench.engine.leading is None
        bench.receive(C, grant(request, term))
        assert bench.engine.leading is not None

    def test_a_stranger_counts_nothing(self) -> None:
        bench = Bench(A)
        term = bench.ask_votes()
        bench.runtime.settle()
        request = bench.take(B, wire.Vote)[-1]
        bench.receive("z-1", grant(request, term))
        assert bench.engine.leading is None

    def test_grants_of_an_earlier_attempt_count_nothing(self) -> None:
        bench = Bench(A)
        bench.runtime.advance(MAX_S)
        early = bench.take(B, wire.Vote)[0]
        bench.runtime.advance(MAX_S)
        late = bench.take(B, wire.Vote)[-1]
        assert early.attempt < late.attempt
        bench.receive(B, grant(early, 1))
        assert bench.engine.term == 1
        bench.receive(B, grant(late, 1))
        assert bench.engine.term == 2

    @pytest.mark.parametrize("me", [D, E])
    def test_a_learner_and_a_removed_node_never_campaign(self, me: str) -> None:
        bench = Bench(me, voters=(A, B, C), learners=(D,))
        bench.runtime.advance(10 * MAX_S)
        assert bench.engine.term == 1
        assert [bench.take(peer, wire.Vote) for peer in (A, B, C)] == [[], [], []]
        bench.receive(A, append(1, 2, 1))
        bench.receive(A, wire.TimeoutNow(1))
        assert bench.engine.role == 0, "a transfer makes no voter of it"


class TestRule12GroupCommit:
    """Nothing promises what the disk does not hold yet."""

    def test_nothing_happens_before_the_start(self) -> None:
        """Peers may dial while plugins are still starting: their messages wait."""
        bench = Bench(B, start=False)
        bench.runtime.advance(10 * MAX_S)
        bench.receive(C, wire.Vote(2, 1, 2, 1, False, False))
        assert (bench.engine.term, bench.take(A), bench.take(C)) == (1, [], [])
        bench.engine.start()
        assert bench.deliver(C) == [wire.VoteReply(1, 2, 1, False, False)], "rule 16: no vote yet"

    def test_a_single_core_commits_only_what_its_disk_holds(self) -> None:
        bench = Bench(A, voters=[A])
        bench.runtime.advance(MAX_S)
        assert bench.engine.leading is not None
        assert (bench.wal.last_index, bench.engine.commit) == (3, 1)
        bench.engine.propose([b"x"])
        bench.runtime.run()
        assert bench.engine.commit == 1, "the sync of the no-op is still under way"
        bench.runtime.finish_disk()
        assert bench.engine.commit == 3
        assert bench.application.state == []
        bench.runtime.finish_disk()
        assert bench.application.state == [b"x"]

    def test_a_lone_voters_first_appends_wait_for_its_term(self) -> None:
        """Else a learner could hold entries of a term that a crash lets the leader lead again."""
        bench = Bench(A, voters=[A], learners=[B])
        bench.runtime.advance(MAX_S)
        assert bench.engine.leading is not None
        assert bench.take(B) == []
        bench.runtime.finish_disk()
        assert [len(m.entries) for m in bench.take(B, wire.Append)][:1] == [1]
        bench.runtime.settle()
        bench.engine.propose([b"x"])
        bench.receive(B, accepted(2, 3))
        assert [len(m.entries) for m in bench.take(B, wire.Append)][-1:] == [1]

    def test_a_followers_acknowledgement_waits_for_its_disk(self) -> None:
        bench = Bench(B)
        bench.receive(A, append(1, 2, 1, [(1, batch("x"))], commit=2))
        assert bench.wal.last_index == 3
        assert bench.take(A) == []
        bench.runtime.finish_disk()
        assert bench.take(A) == [accepted(1, 3)]
        assert bench.disk.syncs_total

    def test_a_vote_waits_for_its_disk(self) -> None:
        bench = Bench(B)
        bench.runtime.advance(MIN_S)
        bench.receive(C, wire.Vote(2, 1, 2, 1, False, False))
        assert (bench.engine.term, bench.engine.vote) == (2, C)
        assert bench.take(C) == []
        bench.runtime.finish_disk()
        assert bench.take(C) == [wire.VoteReply(2, 2, 1, False, True)]

    def test_a_request_for_votes_waits_for_its_term_and_own_vote(self) -> None:
        bench = Bench(A)
        bench.ask_votes()
        assert [m for m in bench.take(C, wire.Vote) if not m.pre_vote] == []
        bench.runtime.finish_disk()
        assert [m.pre_vote for m in bench.take(C, wire.Vote)] == [False]

    def test_appends_leave_beside_the_sync_and_count_only_after_it(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        last = bench.wal.last_index
        bench.engine.propose([b"x"])
        bench.runtime.run()
        assert [len(m.entries) for m in bench.take(B, wire.Append)] == [1]
        bench.receive(B, accepted(term, last + 1))
        assert bench.engine.commit == last, "messages wait while the disk works"
        bench.runtime.finish_disk()
        assert bench.engine.commit == last + 1

    def test_a_majority_without_the_leaders_own_disk_commits_too(self) -> None:
        """The leader counts itself by its disk; the others may be a majority without it."""
        bench = Bench(A)
        term = bench.lead()
        last = bench.wal.last_index
        bench.engine.propose([b"x"])
        bench.runtime.run()
        bench.receive(B, accepted(term, last + 1))
        bench.receive(C, accepted(term, last + 1))
        bench.runtime.finish_disk()
        assert bench.engine.commit == last + 1

    def test_a_failed_sync_discards_what_was_held_and_stops_the_node(self) -> None:
        bench = Bench(B)
        bench.receive(A, append(1, 2, 1, [(1, batch("x"))], commit=2))
        bench.runtime.finish_disk(OSError(errno.EIO, "input/output error"))
        assert [type(fault) for fault in bench.application.faults] == [DiskFailed]
        assert "Free or replace the disk" in str(bench.application.faults[0])
        bench.runtime.advance(10.0)
        assert bench.take(A) == []
        assert bench.engine.stopped
        assert not bench.engine.propose([b"y"])

    def test_only_heartbeats_leave_during_a_sync_and_a_hung_one_ends_them(self) -> None:
        """Rule 26 belongs here: a dead disk must not stay in office."""
        bench = Bench(A)
        bench.lead()
        bench.engine.propose([b"x"])
        bench.runtime.run()
        bench.take(B)
        bench.runtime.advance(MIN_S)
        beats = bench.take(B)
        assert len(beats) >= 5
        assert all(isinstance(m, wire.Append) and not m.entries for m in beats)
        bench.runtime.advance(2 * BEAT_S)
        bench.take(B)
        bench.runtime.advance(5 * MAX_S)
        assert bench.take(B) == []

    def test_a_follower_campaigns_although_its_deadline_passed_during_a_sync(self) -> None:
        bench = Bench(B)
        bench.receive(A, append(1, 2, 1, [(1, batch("x"))], commit=2))
        bench.runtime.advance(2 * MAX_S)
        bench.runtime.finish_disk()
        bench.runtime.advance(2 * MAX_S)
        assert [m.pre_vote for m in bench.take(A, wire.Vote)][:1] == [True]

    def test_a_disk_that_fails_while_a_snapshot_arrives_stops_the_node(self) -> None:
        bench = Bench(B)
        name, whole = snapshot_file(50, 2, [b"state"])
        bench.disk.fail_writes = True
        piece = chunk(2, whole, whole, 0, index=50, snapshot_term=2, name=name)
        assert bench.deliver(C, piece) == []
        assert [type(fault) for fault in bench.application.faults] == [DiskFailed]


class TestRule17ReadIndex:
    def test_no_read_before_an_entry_of_the_own_term_is_committed(self) -> None:
        """What earlier terms committed is not known before."""
        bench = Bench(A)
        term = bench.elect()
        assert bench.engine.read_index("r")
        bench.runtime.settle()
        *_, early = bench.take(B, wire.Append)
        bench.receive(B, accepted(term, 2, early.round))
        assert bench.application.confirmed == []
        bench.receive(B, accepted(term, 3, early.round))
        bench.runtime.settle()
        *_, question = bench.take(B, wire.Append)
        bench.receive(B, accepted(term, 3, question.round - 1))
        assert bench.application.confirmed == [], "it was sent before the index was noted"
        bench.receive(B, accepted(term, 3, question.round))
        assert bench.application.confirmed == [("r", 3)]

    def test_a_round_is_not_confirmed_by_a_minority_or_another_round(self) -> None:
        bench = Bench(A, voters=(A, B, C, D, E))
        term = bench.lead()
        bench.engine.read_index("r")
        bench.runtime.settle()
        round_number = bench.engine.leading.reads.round
        bench.receive(B, accepted(term, 3, round_number), accepted(term, 3, round_number))
        bench.receive(C, accepted(term, 3, round_number - 1))
        bench.receive(D, accepted(term - 1, 3, round_number))
        assert bench.application.confirmed == []
        bench.receive(E, wire.AppendReply(term, False, 3, round_number, 0, 0))
        assert bench.application.confirmed == [("r", 3)]

    def test_a_step_down_fails_the_readers(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        bench.engine.read_index("r")
        bench.runtime.settle()
        bench.engine.read_index("s")
        bench.receive(B, append(term + 1, 3, term))
        assert bench.application.failed == ["r", "s"]
        assert not bench.engine.read_index("t")


class TestCheckQuorum:
    def test_a_leader_that_hears_no_majority_leaves_its_office(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        bench.runtime.advance(MAX_S - 2 * BEAT_S)
        bench.receive(B, accepted(term, 3))
        bench.runtime.advance(MAX_S - 2 * BEAT_S)
        assert bench.engine.leading is not None, "one of two others is a majority with itself"
        bench.runtime.advance(5 * BEAT_S)
        assert bench.engine.leading is None
        assert bench.engine.leader is None
        assert not bench.engine.propose([b"x"])


class TestRule21TermsOnEveryMessage:
    def test_a_stale_append_is_answered_with_the_own_term(self) -> None:
        bench = Bench(B, term=7)
        assert bench.deliver(A, append(3, 2, 1)) == [rejected(7, 2)]
        assert bench.engine.leader is None

    def test_a_stale_request_for_votes_is_answered_with_the_own_term(self) -> None:
        bench = Bench(B, term=7)
        assert bench.deliver(A, wire.Vote(3, 4, 9, 3, False, False)) == [
            wire.VoteReply(7, 3, 4, False, False)
        ]

    def test_a_higher_term_in_an_answer_makes_a_leader_step_down(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        bench.receive(B, rejected(term + 3, 3))
        assert bench.engine.leading is None
        assert bench.engine.term == term + 3

    def test_a_pre_vote_raises_nobodys_term(self) -> None:
        bench = Bench(B)
        bench.runtime.advance(MIN_S)
        replies = bench.deliver(C, wire.Vote(99, 1, 2, 1, True, False))
        assert replies == [wire.VoteReply(1, 99, 1, True, True)]
        assert bench.engine.term == 1
        assert not bench.runtime.disk

    def test_answers_and_transfers_of_another_term_count_nothing(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        bench.engine.propose([b"x"])
        bench.runtime.settle()
        last = bench.wal.last_index
        bench.receive(B, accepted(term - 1, last))
        bench.receive(C, accepted(term - 1, last))
        assert bench.engine.commit == last - 1
        follower = Bench(B)
        follower.receive(A, append(1, 2, 1))
        follower.receive(A, wire.TimeoutNow(0))
        follower.receive(C, wire.TimeoutNow(1))
        assert follower.engine.role == 0
        follower.receive(A, wire.TimeoutNow(1))
        assert follower.engine.role == 1

    def test_a_follower_with_a_higher_term_is_not_stranded(self) -> None:
        """It deposes the leader by its answer, and the next election takes it along."""
        leader = Bench(A)
        term = leader.lead()
        stranded = Bench(C, term=term + 5)
        beat = append(term, 2, 1)
        (answer,) = stranded.deliver(A, beat)
        leader.receive(C, answer)
        assert (leader.engine.role, leader.engine.term) == (0, term + 5)
        assert leader.elect() == term + 6

    def test_two_leaders_of_one_term_stop_the_node(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        bench.receive(B, append(term, 3, term))
        assert [type(fault) for fault in bench.application.faults] == [Diverged]


class TestRule24Progress:
    def test_an_old_acknowledgement_moves_nothing_back(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        for number in range(5):
            bench.engine.propose([b"%d" % number])
            bench.runtime.settle()
        progress = bench.engine.leading._progress[B]
        before = progress.next
        assert before == bench.wal.last_index + 1
        bench.take(B)
        bench.receive(B, accepted(term, 3))
        assert progress.next == before
        assert bench.take(B) == [], "nothing is sent twice because of an old answer"

    def test_a_follower_far_behind_is_found_term_by_term(self) -> None:
        """100 entries of 4 terms against a log of another 100: five messages, not a hundred."""
        log = [(1 + 2 * (i // 25), batch(str(i))) for i in range(100)]
        other = [(2 + 2 * (i // 25), batch(f"other {i}")) for i in range(100)]
        leader = Bench(A, log=log, term=9)
        term = leader.elect()
        follower = Bench(B, log=other, term=9)
        rounds = 0
        for message in leader.take(B, wire.Append):
            leader.receive(B, *follower.deliver(A, message))
        while follower.log() != leader.log():
            rounds += 1
            assert rounds < 8
            leader.runtime.advance(BEAT_S)
            leader.runtime.settle()
            for message in leader.take(B, wire.Append):
                leader.receive(B, *follower.deliver(A, message))
        assert leader.engine.commit == leader.wal.last_index
        assert term == follower.engine.term

    def test_a_reset_stream_leads_back_to_probing(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        progress = bench.engine.leading._progress[B]
        assert progress.flow is Flow.REPLICATE
        bench.engine.propose([b"lost"])
        bench.runtime.settle()
        bench.disconnect(B)
        bench.engine.propose([b"unsent"])
        bench.runtime.settle()
        link = bench.connect(B)
        bench.runtime.settle()
        (message,) = [m for m in link.messages if isinstance(m, wire.Append) and m.entries]
        assert (message.prev_index, len(message.entries)) == (3, 2)
        bench.deliver(B, accepted(term, 5))
        assert progress.flow is Flow.REPLICATE
        assert bench.engine.commit == 5

    def test_a_follower_below_the_log_gets_the_snapshot_and_then_the_rest(self) -> None:
        limits = Limits(snapshot_log_entries=4, log_tail_entries=1, snapshot_chunk_bytes=40)
        leader = Bench(A, limits=limits)
        term = leader.lead()
        for number in range(8):
            leader.engine.propose([b"%d" % number])
            leader.runtime.settle()
            leader.receive(C, accepted(term, leader.wal.last_index))
            leader.runtime.settle()
        assert leader.wal.base_index > 3
        leader.disconnect(B)
        follower = Bench(B, limits=limits)
        leader.connect(B)
        for _ in range(60):
            leader.runtime.advance(BEAT_S)
            leader.runtime.settle()
            for message in leader.take(B):
                leader.receive(B, *follower.deliver(A, message))
        assert follower.application.restored, "no snapshot was installed"
        assert follower.wal.last_index == leader.wal.last_index
        assert follower.application.state == leader.application.state

    def test_two_leaders_chunks_of_one_snapshot_in_one_read_are_harmless(self) -> None:
        """The old leader's last chunk and the new leader's same one arrive in one tick."""
        bench = Bench(B)
        name, whole = snapshot_file(50, 1, [b"state", b"a"])
        old = chunk(2, whole, whole, 0, index=50, snapshot_term=1, name=name)
        new = chunk(3, whole, whole, 0, index=50, snapshot_term=1, name=name)
        for sender, message in ((A, old), (C, new)):
            bench.engine.receive(bench.links[sender], message)  # type: ignore[arg-type]
        bench.tick()
        bench.runtime.settle()
        assert bench.application.restored == [50]
        assert bench.runtime.loop.errors == []
        (reply,) = [m for m in bench.take(C) if isinstance(m, wire.SnapshotReply) and m.done]
        assert (reply.index, reply.term) == (50, 3)

    def test_a_damaged_transfer_begins_anew_and_stops_nobody(self) -> None:
        bench = Bench(B)
        name, whole = snapshot_file(50, 1, [b"state", b"a"])
        broken = whole[:-1] + b"?"
        replies = bench.deliver(
            A, chunk(2, broken, broken, 0, index=50, snapshot_term=1, name=name)
        )
        assert replies == [wire.SnapshotReply(2, name, 50, 0, False)]
        assert bench.application.faults == []
        (done,) = bench.deliver(A, chunk(2, whole, whole, 0, index=50, snapshot_term=1, name=name))
        assert done == wire.SnapshotReply(2, name, 50, len(whole), True)
        assert bench.application.state == [b"a"]

    def test_snapshots_of_equal_size_from_two_leaders_are_not_spliced(self) -> None:
        limits = Limits(snapshot_chunk_bytes=60)
        names = []
        for text in (b"one", b"two"):
            bench = Bench(A, limits=limits)
            bench.receive(C, accepted(bench.elect(), 3))
            bench.application.state = [text]
            bench.engine.snapshotting.begin()
            bench.runtime.settle()
            bench.wal.compact(3, bench.engine.term)
            bench.tick()
            bench.runtime.settle()
            bench.tick(2 * BEAT_S)
            names.append(bench.take(B, wire.SnapshotChunk)[0].snapshot_id)
        assert names[0] != names[1]


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
        assert bench.take(B, wire.SnapshotChunk)
        assert bench.engine.leading.in_transit() == [3]
        bench.receive(C, accepted(2, 3))
        bench.runtime.now += MAX_S
        assert bench.engine.leading.in_transit() == []


class TestRule28RecoveryInSlices:
    def test_commit_starts_at_the_snapshot(self) -> None:
        log = [(1, batch(str(i))) for i in range(3, 11)]
        bench = Bench(A, disk=TestRule06RecoveryKeepsTheLog.disk(log, (5, 1)))
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

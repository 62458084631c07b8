"""Rules 21 to 24: terms, deadlines, strangers and the flow to each follower.

A whole engine is driven message by message, with its disk in the test's hands; what is pure is
tested in its module's own file. test_stock_canaries.py shows what stock PySyncObj does instead.
"""

from __future__ import annotations

import pytest

from raftkv.config import Limits
from raftkv.errors import Diverged, MembershipRefused
from raftkv.raft import wire
from raftkv.raft.changing import remove
from raftkv.raft.membership import Configuration
from raftkv.raft.progress import Flow
from tests.raft.harness import (
    BEAT_S,
    MAX_S,
    MIN_S,
    A,
    B,
    Bench,
    C,
    D,
    accepted,
    append,
    batch,
    chunk,
    grant,
    rejected,
)
from tests.raft.rule_tools import snapshot_file


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


class TestRule22Deadlines:
    """Every deadline is drawn anew; a grant counts for the attempt that asked for it."""

    def test_every_attempt_draws_a_new_one(self) -> None:
        """Two nodes that campaigned in one moment must not do so again in one moment."""
        bench = Bench(B)
        waits = []
        for _ in range(6):
            before = bench.runtime.now
            while not bench.take(A, wire.Vote):
                bench.runtime.advance(0.01)
            waits.append(round(bench.runtime.now - before, 2))
        assert all(MIN_S <= wait <= MAX_S + 0.02 for wait in waits)
        assert len(set(waits)) > 3

    def test_a_leader_that_steps_down_waits_before_it_campaigns(self) -> None:
        bench = Bench(A)
        bench.lead()
        bench.runtime.advance(5 * MAX_S)
        assert bench.engine.leading is None
        bench = Bench(A)
        term = bench.lead()
        bench.runtime.advance(MAX_S - BEAT_S)
        bench.receive(B, rejected(term + 1, 3))
        bench.take(B)
        bench.runtime.advance(MIN_S - 0.01)
        assert bench.take(B, wire.Vote) == []

    def test_a_request_is_filtered_before_it_touches_the_term(self) -> None:
        bench = Bench(B)
        bench.deliver(A, append(2, 2, 1))
        replies = bench.deliver(C, wire.Vote(9, 1, 50, 8, False, False))
        assert replies == [wire.VoteReply(2, 9, 1, False, False)]
        assert (bench.engine.term, bench.engine.leader) == (2, A)

    def test_a_leader_filters_it_too(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        (reply,) = bench.deliver(C, wire.Vote(term + 5, 1, 50, term, False, False))
        assert (reply.granted, bench.engine.term) == (False, term)
        assert bench.engine.leading is not None

    def test_grants_are_void_once_a_leader_is_heard(self) -> None:
        bench = Bench(A)
        term = bench.ask_votes()
        bench.runtime.settle()
        request = bench.take(B, wire.Vote)[-1]
        bench.deliver(C, append(term, 2, 1))
        bench.receive(B, grant(request, term))
        assert (bench.engine.role, bench.engine.leader) == (0, C)

    def test_grants_of_a_pre_vote_are_void_once_a_leader_is_heard(self) -> None:
        bench = Bench(A)
        bench.runtime.advance(MAX_S)
        request = bench.take(B, wire.Vote)[-1]
        bench.deliver(C, append(1, 2, 1))
        bench.receive(B, grant(request, 1))
        assert (bench.engine.term, bench.engine.leader) == (1, C)

    def test_a_campaign_ordered_by_the_leader_needs_no_deadline(self) -> None:
        bench = Bench(B)
        bench.deliver(A, append(2, 2, 1))
        bench.deliver(A, wire.TimeoutNow(2))
        (request,) = bench.take(C, wire.Vote)
        assert (request.transfer, bench.engine.term) == (True, 3)
        bench.receive(C, grant(request, 3))
        assert bench.engine.leading is not None

    def test_a_reset_stream_to_the_leader_is_a_hint(self) -> None:
        bench = Bench(B)
        bench.deliver(A, append(2, 2, 1))
        bench.disconnect(A)
        bench.runtime.advance(0.051)
        assert [m.pre_vote for m in bench.take(C, wire.Vote)] == [True]

    def test_a_split_vote_is_repeated_soon(self) -> None:
        """Both followers of a dead leader may ask in one moment, and each votes for itself."""
        bench = Bench(B)
        bench.deliver(A, append(2, 2, 1))
        bench.disconnect(A)
        bench.runtime.advance(0.051)
        bench.receive(C, grant(bench.take(C, wire.Vote)[-1], 2))
        bench.runtime.settle()
        request = bench.take(C, wire.Vote)[-1]
        assert (request.term, request.pre_vote) == (3, False)
        bench.receive(C, wire.VoteReply(3, 3, request.attempt, False, False))
        bench.runtime.advance(0.051)
        again = bench.take(C, wire.Vote)
        assert [(m.term, m.pre_vote) for m in again] == [(4, True)]

    def test_while_somebody_may_still_grant_it_waits(self) -> None:
        bench = Bench(B)
        bench.runtime.advance(MAX_S)
        bench.receive(C, grant(bench.take(C, wire.Vote)[-1], 1))
        bench.runtime.settle()
        request = bench.take(C, wire.Vote)[-1]
        bench.receive(C, wire.VoteReply(2, 2, request.attempt, False, False))
        bench.receive(A, wire.VoteReply(2, 2, request.attempt - 1, False, False))
        bench.runtime.advance(MIN_S - 0.01)
        assert bench.take(C, wire.Vote) == []

    def test_a_pre_vote_that_was_refused_is_not_repeated_soon(self) -> None:
        bench = Bench(B)
        bench.runtime.advance(MAX_S)
        request = bench.take(C, wire.Vote)[-1]
        for voter in (A, C):
            bench.receive(voter, wire.VoteReply(1, 2, request.attempt, True, False))
        bench.runtime.advance(MIN_S - 0.25)
        assert bench.take(C, wire.Vote) == []


class TestRule23Strangers:
    """Configurations lag, so who is unknown may be right, and who was removed may not know it."""

    def test_a_leader_that_the_own_configuration_does_not_know_is_followed(self) -> None:
        bench = Bench(B)
        bench.connect("z-1")
        replies = bench.deliver("z-1", append(2, 2, 1, [(2, batch("x"))], commit=2))
        assert bench.engine.leader == "z-1"
        assert replies == [accepted(2, 3)]

    def test_a_candidate_that_the_own_configuration_does_not_know_is_voted_for(self) -> None:
        bench = Bench(B)
        bench.runtime.advance(MIN_S)
        bench.connect("z-1")
        (reply,) = bench.deliver("z-1", wire.Vote(2, 1, 2, 1, False, False))
        assert reply.granted

    def test_a_copy_votes_when_it_is_asked(self) -> None:
        """Its own log may not say yet that it was promoted; the asker counts it, or does not."""
        bench = Bench(D, voters=(A, B, C), learners=(D,))
        bench.runtime.advance(MIN_S)
        (reply,) = bench.deliver(A, wire.Vote(2, 1, 2, 1, False, False))
        assert reply.granted

    def test_a_removed_node_that_asks_for_votes_loses_its_stream(self) -> None:
        """It dials again, and the greeting tells it that it was removed."""
        bench = Bench(A)
        term = bench.lead()
        without = remove(bench.engine.configuration, C)
        index = bench.engine.change_configuration(without, force=False)
        bench.runtime.settle()
        link = bench.links[C]
        bench.deliver(C, wire.Vote(term + 1, 1, 3, term, True, False))
        assert not link.closed, "its removal is not committed yet"
        bench.receive(B, accepted(term, index))
        bench.runtime.settle()
        bench.receive(C, wire.Vote(term + 1, 2, 3, term, True, False))
        assert link.closed
        assert bench.engine.term == term

    def test_a_leader_does_not_remove_itself(self) -> None:
        """It hands its office over; its successor removes it."""
        bench = Bench(A)
        bench.lead()
        without = remove(bench.engine.configuration, A)
        with pytest.raises(MembershipRefused, match="hand"):
            bench.engine.change_configuration(without, force=True)
        assert bench.engine.configuration == Configuration((A, B, C))

    def test_a_copy_that_hears_no_leader_knows_none(self) -> None:
        """Its replicants move on only if it says so."""
        bench = Bench(D, voters=(A, B, C), learners=(D,))
        bench.deliver(A, append(2, 2, 1))
        bench.runtime.advance(MAX_S + BEAT_S)
        assert (bench.engine.leader, bench.engine.term) == (None, 2)

    def test_a_copy_ends_the_stream_to_a_leader_that_fell_silent(self) -> None:
        """It sends nothing, so it would never hear that the other end is gone."""
        bench = Bench(D, voters=(A, B, C), learners=(D,))
        bench.deliver(A, append(2, 2, 1))
        bench.runtime.advance(MAX_S + BEAT_S)
        assert [peer for peer in (A, B, C) if bench.links[peer].closed] == [A]


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

    def test_who_lost_what_it_acknowledged_is_named_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = Bench(A)
        term = bench.lead()
        bench.receive(B, accepted(term, bench.wal.last_index))
        match = bench.wal.last_index
        bench.disconnect(B)
        bench.connect(B)
        for _ in range(2):
            bench.tick(BEAT_S)
            probe = bench.take(B, wire.Append)[-1]
            bench.receive(B, rejected(term, match, 0, 2, probe.round))
        (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert f"no longer holds entry {match}" in said
        assert "empty its directory" in said

    def lose(self, bench: Bench, term: int) -> None:
        """B has acknowledged the whole log, and lacks its last entry after a restart."""
        bench.receive(B, accepted(term, bench.wal.last_index))
        match = bench.wal.last_index
        bench.disconnect(B)
        bench.connect(B)
        bench.take(B)
        bench.tick(BEAT_S)
        probe = bench.take(B, wire.Append)[-1]
        bench.receive(B, rejected(term, match, 0, 2, probe.round))
        bench.runtime.settle()

    def test_a_refusal_that_was_overtaken_by_an_acknowledgement_is_no_loss(self) -> None:
        """Both answer what was sent before: the follower refused first, and then got it all."""
        bench = Bench(A)
        term = bench.elect()
        probe = bench.take(C, wire.Append)[-1]
        bench.receive(C, accepted(term, bench.wal.last_index))
        bench.disconnect(C)
        bench.connect(C)
        bench.tick(0)
        bench.receive(C, rejected(term, bench.wal.last_index, 0, 2, probe.round))
        bench.tick(BEAT_S)
        assert bench.engine.configuration == Configuration((A, B, C))

    def test_a_voter_that_lost_entries_is_distrusted_by_an_entry_in_force_at_once(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        self.lose(bench, term)
        bench.tick(BEAT_S)
        assert bench.engine.configuration == Configuration((A, B, C), distrusted=(B,))

    def test_what_a_distrusted_voter_acknowledges_commits_nothing(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        self.lose(bench, term)
        bench.tick(BEAT_S)
        before = bench.engine.commit
        bench.engine.propose([b"x"])
        bench.runtime.settle()
        bench.receive(B, accepted(term, bench.wal.last_index))
        assert bench.engine.commit == before
        bench.receive(C, accepted(term, bench.wal.last_index))
        assert bench.engine.commit == bench.wal.last_index

    def test_before_the_format_is_raised_only_the_leader_that_noticed_ignores_it(self) -> None:
        bench = Bench(A)
        bench.application.core_format = 1
        term = bench.lead()
        self.lose(bench, term)
        bench.tick(BEAT_S)
        assert bench.engine.configuration == Configuration((A, B, C))
        before = bench.engine.commit
        bench.engine.propose([b"x"])
        bench.runtime.settle()
        bench.receive(B, accepted(term, bench.wal.last_index))
        assert bench.engine.commit == before

    def test_a_distrusted_voter_does_not_campaign(self) -> None:
        bench = Bench(A, voters=(A, B, C))
        bench.engine.append_configuration(Configuration((A, B, C), distrusted=(A,)))
        bench.runtime.advance(10 * MAX_S)
        assert bench.take(B, wire.Vote) == []

    def test_who_begins_to_agree_hears_the_commit_index_at_once(self) -> None:
        """Else readers on it wait for the next heartbeat after every election."""
        bench = Bench(A)
        term = bench.elect()
        bench.receive(B, accepted(term, 3))
        bench.runtime.settle()
        bench.take(C)
        bench.receive(C, accepted(term, 3))
        bench.runtime.settle()
        (told,) = bench.take(C, wire.Append)
        assert (told.prev_index, told.commit) == (3, 3)

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
            bench.runtime.settle()
            names.append(bench.take(B, wire.SnapshotChunk)[0].snapshot_id)
        assert names[0] != names[1]

"""The leader's lease and the passing on of its office (rules 16 and 22)."""

from __future__ import annotations

import random

import pytest

from raftkv.config import RaftTimes
from raftkv.raft import wire
from raftkv.raft.election import quorum_time
from raftkv.raft.membership import Configuration
from raftkv.raft.wal import Wal
from raftkv.testing.disk import SimDisk
from tests.raft.harness import DIRECTORY, MAX_S, MIN_S, A, B, Bench, C, accepted, append, sync

LEASE_MS = 200
LEASED = RaftTimes(lease_ms=LEASE_MS)
# Both clocks may be off by 5 per thousand.
LEASE_S = LEASE_MS / 1000 * 0.99


def confirm(bench: Bench, term: int, *voters: str, lease_ms: int = LEASE_MS) -> None:
    """The voters answer the last message that they were sent, and promise what it asks for."""
    for voter in voters:
        *_, last = bench.take(voter, wire.Append)
        bench.receive(voter, accepted(term, bench.wal.last_index, last.round, lease_ms))


def beat(bench: Bench) -> None:
    bench.runtime.advance(LEASED.heartbeat_ms / 1000)
    bench.runtime.settle()


class TestRule16Lease:
    def test_it_lasts_from_the_sending_of_what_a_majority_has_answered(self) -> None:
        bench = Bench(A, times=LEASED)
        term = bench.lead()
        beat(bench)
        sent_at = bench.runtime.monotonic()
        bench.runtime.advance(0.05)
        confirm(bench, term, B)
        assert bench.engine.holds_lease
        bench.runtime.advance(sent_at + LEASE_S - bench.runtime.monotonic() - 0.001)
        assert bench.engine.holds_lease
        bench.runtime.advance(0.002)
        assert not bench.engine.holds_lease

    def test_one_of_four_others_gives_none(self) -> None:
        bench = Bench(A, voters=(A, B, C, "d-1", "e-1"), times=LEASED)
        term = bench.lead()
        beat(bench)
        confirm(bench, term, B)
        assert not bench.engine.holds_lease
        confirm(bench, term, C)
        assert bench.engine.holds_lease

    def test_without_the_setting_there_is_none(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        bench.runtime.advance(0.1)
        confirm(bench, term, B, C)
        assert not bench.engine.holds_lease

    def test_a_follower_keeps_its_promise_though_the_stream_to_the_leader_was_reset(self) -> None:
        bench = Bench(B, times=LEASED)
        bench.runtime.advance(MIN_S)
        bench.deliver(A, append(2, 2, 1, lease_ms=LEASE_MS))
        bench.disconnect(A)
        bench.runtime.advance(LEASE_MS / 1000 - 0.001)
        (reply,) = bench.deliver(C, wire.Vote(3, 1, 9, 2, False, False))
        assert not reply.granted
        assert bench.take(C, wire.Vote) == [], "nor does it campaign itself"
        bench.runtime.advance(0.002)
        (reply,) = bench.deliver(C, wire.Vote(3, 2, 9, 2, False, False))
        assert reply.granted

    def test_a_follower_promises_no_longer_than_it_would_keep_after_a_restart(self) -> None:
        """A restarted node is silent for its own shortest time-out, whatever its leader's is."""
        times = RaftTimes(election_timeout_min_ms=300, election_timeout_max_ms=500)
        bench = Bench(B, times=times)
        replies = [
            bench.deliver(A, append(2, 2, 1, round_number=1, lease_ms=asked))[-1]
            for asked in (0, 250, 300, 400)
        ]
        assert [reply.lease_ms for reply in replies] == [0, 250, 300, 300]

    def test_a_promise_that_is_shorter_than_the_lease_counts_for_nothing(self) -> None:
        bench = Bench(A, times=LEASED)
        term = bench.lead()
        beat(bench)
        confirm(bench, term, B, C, lease_ms=LEASE_MS - 1)
        assert not bench.engine.holds_lease
        beat(bench)
        confirm(bench, term, B)
        assert bench.engine.holds_lease

    def test_a_restarted_follower_grants_nothing_for_a_lease(self) -> None:
        bench = Bench(B, times=LEASED)
        (reply,) = bench.deliver(C, wire.Vote(3, 1, 9, 2, False, False))
        assert not reply.granted
        bench.runtime.advance(MIN_S - 0.001)
        (reply,) = bench.deliver(C, wire.Vote(3, 2, 9, 2, False, False))
        assert not reply.granted
        bench.runtime.advance(0.002)
        (reply,) = bench.deliver(C, wire.Vote(3, 3, 9, 2, False, False))
        assert reply.granted

    def test_so_does_one_whose_log_is_still_empty(self) -> None:
        """It may have promised a lease before the first entry reached its disk."""
        disk = SimDisk(random.Random(5))
        disk.makedirs(f"{DIRECTORY}/wal")
        wal = Wal.open(disk, f"{DIRECTORY}/wal")
        wal.set_hard_state(2, A)
        sync(wal)
        wal.close()
        bench = Bench(B, times=LEASED, disk=disk)
        assert bench.wal.last_index == 1
        (reply,) = bench.deliver(C, wire.Vote(3, 1, 3, 2, False, False))
        assert not reply.granted

    def test_a_leader_that_does_not_vote_needs_a_majority_without_itself(self) -> None:
        two = Configuration((B, C))
        assert quorum_time(two, A, {}) == float("-inf")
        assert quorum_time(two, A, {B: 5.0}) == float("-inf")
        assert quorum_time(two, A, {B: 5.0, C: 7.0}) == 5.0

    def test_after_a_step_down_there_is_none(self) -> None:
        bench = Bench(A, times=LEASED)
        term = bench.lead()
        beat(bench)
        confirm(bench, term, B, C)
        assert bench.engine.holds_lease
        bench.receive(B, append(term + 1, 3, term))
        assert not bench.engine.holds_lease

    def test_before_the_no_op_of_the_term_is_committed_there_is_none(self) -> None:
        bench = Bench(A, times=LEASED)
        term = bench.elect()
        beat(bench)
        *_, last = bench.take(B, wire.Append)
        bench.receive(B, accepted(term, 2, last.round, LEASE_MS))
        assert not bench.engine.holds_lease
        bench.receive(B, accepted(term, 3, last.round, LEASE_MS))
        bench.runtime.settle()
        assert bench.engine.holds_lease

    def test_after_the_office_was_offered_there_is_none_in_this_term(self) -> None:
        bench = Bench(A, times=LEASED)
        term = bench.lead()
        beat(bench)
        confirm(bench, term, B, C)
        assert bench.engine.holds_lease
        assert bench.engine.hand_over()
        bench.runtime.settle()
        assert not bench.engine.holds_lease
        for _ in range(40):
            beat(bench)
            confirm(bench, term, B, C)
        assert bench.engine.leading is not None, "the heir did not take over"
        assert not bench.engine.holds_lease


class TestPassingOn:
    def test_the_heir_is_told_once_it_has_everything(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        assert bench.engine.propose([b"command"])
        bench.runtime.settle()
        assert bench.engine.hand_over()
        bench.runtime.settle()
        assert bench.take(B, wire.TimeoutNow) == []
        assert bench.take(C, wire.TimeoutNow) == []
        bench.receive(C, accepted(term, bench.wal.last_index))
        bench.runtime.settle()
        told = bench.take(B, wire.TimeoutNow) + bench.take(C, wire.TimeoutNow)
        assert told == [] or told == [wire.TimeoutNow(term)]
        bench.receive(B, accepted(term, bench.wal.last_index))
        bench.runtime.settle()
        told += bench.take(B, wire.TimeoutNow) + bench.take(C, wire.TimeoutNow)
        assert told == [wire.TimeoutNow(term)]

    def test_commands_wait_at_their_origins_meanwhile(self) -> None:
        bench = Bench(A)
        bench.lead()
        last = bench.wal.last_index
        assert bench.engine.hand_over()
        bench.engine.propose([b"command"])
        bench.runtime.settle()
        assert bench.wal.last_index == last

    def test_an_heir_that_does_not_take_over_leaves_the_leader_in_office(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        last = bench.wal.last_index
        bench.engine.hand_over()
        bench.engine.propose([b"command"])
        for _ in range(30):
            bench.runtime.advance(MAX_S / 20)
            bench.runtime.settle()
            confirm(bench, term, B, C)
        assert bench.engine.leading is not None
        assert bench.wal.last_index > last

    def test_an_office_that_nobody_took_can_be_offered_again(self) -> None:
        """Else a leader whose first heir failed could not be removed before the next election."""
        bench = Bench(A)
        term = bench.lead()
        told = 0
        for _ in range(2):
            assert bench.engine.hand_over()
            bench.runtime.settle()
            told += len(bench.take(B, wire.TimeoutNow) + bench.take(C, wire.TimeoutNow))
            for _ in range(30):
                bench.runtime.advance(MAX_S / 20)
                bench.runtime.settle()
                confirm(bench, term, B, C)
        assert told == 2

    def test_an_heir_that_cannot_be_reached_any_more_is_followed_by_the_next(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        assert bench.engine.hand_over()
        bench.runtime.settle()
        first, next_one = (B, C) if bench.take(B, wire.TimeoutNow) else (C, B)
        assert bench.engine.leading is not None
        assert bench.engine.leading.handing_over
        bench.disconnect(first)
        bench.runtime.settle()
        assert bench.take(next_one, wire.TimeoutNow) == [wire.TimeoutNow(term)]
        assert bench.engine.leading.handing_over

    def test_who_waits_for_an_heir_hears_that_there_is_none(self) -> None:
        """When all nodes are stopped at once: the leader waited out an election time-out."""
        bench = Bench(A)
        bench.lead()
        assert bench.engine.hand_over()
        bench.runtime.settle()
        bench.disconnect(B)
        told = bench.application.offices
        bench.disconnect(C)
        bench.runtime.settle()
        assert bench.engine.leading is not None
        assert not bench.engine.leading.handing_over
        assert bench.application.offices == told + 1

    def test_the_heir_campaigns_at_once_and_past_stickiness(self) -> None:
        bench = Bench(B)
        bench.deliver(A, append(2, 2, 1))
        bench.deliver(A, wire.TimeoutNow(2))
        (request,) = bench.take(C, wire.Vote)
        assert (request.term, request.pre_vote, request.transfer) == (3, False, True)
        sticky = Bench(C)
        sticky.deliver(A, append(2, 2, 1))
        (reply,) = sticky.deliver(B, request)
        assert reply.granted

    def test_nobody_else_may_order_a_campaign(self) -> None:
        bench = Bench(B)
        bench.deliver(A, append(2, 2, 1))
        bench.deliver(C, wire.TimeoutNow(2))
        bench.deliver(A, wire.TimeoutNow(1))
        assert bench.take(C, wire.Vote) == []
        assert bench.engine.term == 2


@pytest.mark.parametrize(
    ("times", "expected"),
    [({}, float("-inf")), ({B: 5.0}, 5.0), ({B: 5.0, C: 7.0}, 7.0), ({A: 9.0}, float("-inf"))],
)
def test_quorum_time_of_three(times: dict[str, float], expected: float) -> None:
    assert quorum_time(Configuration((A, B, C)), A, times) == expected

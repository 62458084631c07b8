"""The leader's lease and the passing on of its office (rules 16 and 22)."""

from __future__ import annotations

import pytest

from raftkv.config import RaftTimes
from raftkv.raft import wire
from raftkv.raft.election import quorum_time
from raftkv.raft.membership import Configuration
from tests.raft.harness import MAX_S, MIN_S, A, B, Bench, C, accepted, append

LEASE_MS = 200
LEASED = RaftTimes(lease_ms=LEASE_MS)
# Both clocks may be off by 5 per thousand.
LEASE_S = LEASE_MS / 1000 * 0.99


def confirm(bench: Bench, term: int, *voters: str) -> None:
    """The voters answer the last message that they were sent."""
    for voter in voters:
        *_, last = bench.take(voter, wire.Append)
        bench.receive(voter, accepted(term, bench.wal.last_index, last.round))


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

    def test_after_the_office_was_offered_there_is_none_in_this_term(self) -> None:
        bench = Bench(A, times=LEASED)
        term = bench.lead()
        beat(bench)
        confirm(bench, term, B, C)
        assert bench.engine.holds_lease
        assert bench.engine.hand_over()
        bench.runtime.settle()
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

"""What only tells how far the log is committed needs no answer; all else keeps its own."""

from __future__ import annotations

from raftkv.config import RaftTimes
from raftkv.raft import wire
from raftkv.raft.wire import NO_ANSWER
from tests.raft.harness import BEAT_S, MAX_S, A, B, Bench, C, accepted, append, batch, rejected

LEASED = RaftTimes(lease_ms=200)


def rounds(bench: Bench, peer: str) -> list[int]:
    return [message.round for message in bench.take(peer, wire.Append)]


def commit_one(bench: Bench, term: int, *acknowledge: str) -> None:
    """Propose, and have the entry acknowledged."""
    bench.engine.propose([b"x"])
    bench.runtime.settle()
    for peer in acknowledge:
        entry = bench.take(peer, wire.Append)[-1]
        bench.receive(peer, accepted(term, bench.wal.last_index, entry.round))


class TestFollower:
    LOG = ((1, batch("a")), (1, batch("b")))

    def test_an_announcement_commits_and_is_not_answered(self) -> None:
        bench = Bench(B, log=self.LOG)
        assert bench.deliver(A, append(1, 4, 1, commit=3, round_number=NO_ANSWER)) == []
        assert bench.engine.commit == 3
        assert bench.application.applied == [2, 3]

    def test_it_counts_as_a_sign_of_the_leader(self) -> None:
        bench = Bench(B, log=self.LOG)
        for _ in range(10):
            bench.receive(A, append(1, 4, 1, commit=3, round_number=NO_ANSWER))
            bench.runtime.advance(MAX_S / 4)
        assert bench.take(A, wire.Vote) == []

    def test_a_refused_one_is_answered(self) -> None:
        bench = Bench(B, log=self.LOG)
        (reply,) = bench.deliver(A, append(1, 9, 1, commit=9, round_number=NO_ANSWER))
        assert reply == rejected(1, 9, 0, 5)
        (reply,) = bench.deliver(C, append(2, 4, 2, commit=4, round_number=NO_ANSWER))
        assert (reply.accepted, reply.hint_term) == (False, 1)

    def test_a_stale_leader_is_told_so(self) -> None:
        bench = Bench(B, log=self.LOG, term=5)
        (reply,) = bench.deliver(A, append(4, 4, 1, commit=4, round_number=NO_ANSWER))
        assert (reply.term, reply.accepted) == (5, False)

    def test_entries_are_answered_whatever_their_round(self) -> None:
        bench = Bench(B, log=self.LOG)
        message = append(1, 4, 1, [(1, batch("c"))], commit=4, round_number=NO_ANSWER)
        assert bench.deliver(A, message) == [accepted(1, 5)]


class TestLeader:
    def test_a_commit_is_told_without_asking(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        commit_one(bench, term, B)
        last = bench.wal.last_index
        assert bench.engine.commit == last
        (told,) = bench.take(B, wire.Append)
        assert (told.round, told.commit, told.entries) == (NO_ANSWER, last, [])
        # C has not acknowledged the entry yet, but it is on its way: it is told the same.
        _, told = bench.take(C, wire.Append)
        assert (told.round, told.commit, told.prev_index) == (NO_ANSWER, last, last)

    def test_entries_heartbeats_and_read_rounds_ask(self) -> None:
        bench = Bench(A)
        bench.lead()
        bench.engine.propose([b"x"])
        bench.runtime.settle()
        assert NO_ANSWER not in rounds(bench, B)
        bench.runtime.advance(2 * BEAT_S)
        found = rounds(bench, B)
        assert found
        assert NO_ANSWER not in found
        bench.engine.read_index("token")
        bench.runtime.run()
        (asked,) = rounds(bench, B)
        assert asked != NO_ANSWER

    def test_a_commit_in_the_tick_of_a_read_asks(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        bench.engine.propose([b"x"])
        bench.runtime.settle()
        (entry,) = bench.take(B, wire.Append)
        bench.engine.read_index("token")
        bench.receive(B, accepted(term, bench.wal.last_index, entry.round))
        (told,) = bench.take(B, wire.Append)
        assert told.commit == bench.wal.last_index
        assert told.round != NO_ANSWER
        bench.receive(B, accepted(term, bench.wal.last_index, told.round))
        assert bench.application.confirmed == [("token", bench.wal.last_index)]

    def test_a_follower_whose_log_is_not_known_is_asked(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        bench.disconnect(C)
        bench.connect(C)
        bench.runtime.settle()
        bench.take(C)
        commit_one(bench, term, B)
        assert NO_ANSWER not in rounds(bench, C)

    def test_the_echo_of_an_older_version_counts_for_nothing(self) -> None:
        bench = Bench(A, times=LEASED)
        term = bench.lead()
        bench.engine.read_index("token")
        bench.runtime.run()
        bench.runtime.advance(MAX_S / 2)
        assert not bench.engine.holds_lease
        bench.receive(B, accepted(term, bench.wal.last_index, NO_ANSWER, 200))
        assert not bench.engine.holds_lease
        assert bench.application.confirmed == []
        assert bench.engine.leading is not None

    def test_announcements_alone_do_not_keep_the_office(self) -> None:
        """Who answers nothing is not heard, however much it is told."""
        bench = Bench(A)
        bench.lead()
        for _ in range(20):
            bench.tick(MAX_S / 10)
        assert bench.engine.leading is None


def test_the_office_ends_as_soon_as_the_majority_is_silent_for_long_enough() -> None:
    """Counting who is alive is spared as long as it can find nothing; the end is not put off."""
    bench = Bench(A, voters=(A, B, C))
    term = bench.lead()
    bench.runtime.advance(MAX_S * 0.4)
    heard_at = bench.runtime.monotonic()
    bench.receive(B, accepted(term, bench.wal.last_index, 1))
    assert bench.engine.leading is not None
    while bench.runtime.monotonic() + BEAT_S / 4 < heard_at + MAX_S:
        bench.tick(BEAT_S / 4)
        assert bench.engine.leading is not None
    bench.tick(BEAT_S / 2)
    bench.tick()
    assert bench.engine.leading is None

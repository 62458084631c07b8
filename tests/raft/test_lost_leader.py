"""What a dead leader said last must not hide that it is dead.

While the disk works, messages wait. So the stream to the leader may be reset while its last append
messages still wait: they are handled after the reset, and have to be, for they may be committed.
They are no sign of life. A follower that took them for one waited for a whole election time-out and
refused the other's pre-vote meanwhile: one kill of the leader in seven cost 0.8 s instead of 0.05.
"""

from __future__ import annotations

from raftkv.config import RaftTimes
from raftkv.raft import wire
from tests.raft.harness import MIN_S, A, B, Bench, C, append, batch

LEASE_MS = 200


def held_up(lease_ms: int = 0) -> Bench:
    """A follower that lost its leader A while a message of A's waited for the disk."""
    bench = Bench(B, times=RaftTimes(lease_ms=lease_ms))
    bench.runtime.advance(MIN_S)
    bench.deliver(A, append(2, 2, 1))
    bench.receive(A, append(2, 2, 1, [(2, batch("x"))]))
    bench.receive(A, append(2, 3, 2, [(2, batch("y"))], lease_ms=lease_ms))
    assert bench.wal.last_index == 3, "the second message waits for the disk"
    bench.disconnect(A)
    bench.runtime.settle()
    assert bench.wal.last_index == 4, "it was handled after the reset"
    return bench


def granted(bench: Bench, request: wire.Vote) -> bool:
    """Whether the follower grants what C asks for."""
    (reply,) = bench.deliver(C, request)
    assert isinstance(reply, wire.VoteReply)
    return reply.granted


def test_what_waited_when_the_leaders_stream_was_reset_is_no_sign_of_life() -> None:
    bench = held_up()
    assert granted(bench, wire.Vote(3, 1, 4, 2, True, False))


def test_the_follower_asks_for_votes_itself_as_soon_as_after_any_reset() -> None:
    bench = held_up()
    bench.runtime.advance(0.051)
    assert [request.pre_vote for request in bench.take(C, wire.Vote)] == [True]


def test_the_promise_of_a_lease_that_waited_is_kept() -> None:
    bench = held_up(LEASE_MS)
    assert not granted(bench, wire.Vote(3, 1, 4, 2, True, False))
    bench.runtime.advance(LEASE_MS / 1000)
    assert granted(bench, wire.Vote(3, 2, 4, 2, True, False))

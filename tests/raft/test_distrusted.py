"""Distrusted voters: what counts, and what is written of them."""

from __future__ import annotations

import msgspec
import pytest

from raftkv.errors import MembershipRefused
from raftkv.raft import wire
from raftkv.raft.changing import add_learner, check_majority, distrust, promote, remove
from raftkv.raft.election import Candidacy, Stage, quorum_alive, quorum_time
from raftkv.raft.membership import Configuration, decode, encode

from .harness import BEAT_S, A, B, Bench, C, D, accepted, rejected

DISTRUSTED = Configuration((A, B, C), distrusted=(B,))


def test_without_distrusted_voters_the_bytes_are_those_of_the_first_release() -> None:
    plain = Configuration((A, B), (C,), (D,))
    assert encode(plain) == msgspec.msgpack.encode(((A, B), (C,), (D,)))
    assert decode(encode(plain)) == plain
    assert decode(encode(DISTRUSTED)) == DISTRUSTED


def test_it_counts_in_the_size_of_the_majority_and_not_towards_it() -> None:
    assert not DISTRUSTED.majority([A, B])
    assert DISTRUSTED.majority([A, C])
    assert not Configuration((A, B), distrusted=(B,)).majority([A, B])


def test_neither_votes_nor_echoes_of_it_count() -> None:
    candidacy = Candidacy(Stage.VOTE, 2, 1, False)
    for voter in (A, B):
        candidacy.grant(voter, term=2, attempt=1, pre_vote=False)
    assert not candidacy.won(DISTRUSTED)
    candidacy.grant(C, term=2, attempt=1, pre_vote=False)
    assert candidacy.won(DISTRUSTED)
    heard = {B: 10.0, C: 1.0}
    assert quorum_time(DISTRUSTED, A, heard) == 1.0
    assert not quorum_alive(DISTRUSTED, A, {B: 10.0}, 10.0, 1.0)


def test_the_flag_stays_through_other_changes_and_goes_with_the_member() -> None:
    assert distrust(Configuration((A, B, C)), B) == DISTRUSTED
    grown = promote(add_learner(DISTRUSTED, D), D)
    assert grown == Configuration((A, B, C, D), distrusted=(B,))
    assert remove(grown, B) == Configuration((A, C, D), removed=(B,))


def test_a_change_that_relies_on_it_is_refused() -> None:
    """Of three voters one is distrusted: removing a healthy one would stop all writes."""
    without_healthy = remove(DISTRUSTED, C)
    with pytest.raises(MembershipRefused, match="too few can be heard"):
        check_majority(without_healthy, [A, B], [A, B])
    check_majority(remove(DISTRUSTED, B), [A, C], [A, C])


# Whole engines ------------------------------------------------------------------------------------


def refusal(bench: Bench, term: int, prev: int) -> wire.AppendReply:
    """The peer does not hold `prev`, in answer to what was sent last."""
    leading = bench.engine.leading
    return rejected(term, prev, 0, 2, 0 if leading is None else leading._round)


@pytest.mark.parametrize("core_format", [1, 2])
def test_a_flag_that_cannot_be_committed_does_not_cost_the_only_holder_its_leadership(
    core_format: int,
) -> None:
    """Of three voters b is down, and c has lost X, which a and c had committed.

    If a left, c could be elected with the vote of b, which comes back without X, too.
    """
    bench = Bench(A, (A, B, C))
    bench.application.core_format = core_format
    term = bench.elect()
    bench.disconnect(B)
    bench.receive(C, accepted(term, bench.wal.last_index))
    bench.engine.propose([b"X"])
    bench.runtime.settle()
    bench.receive(C, accepted(term, bench.wal.last_index))
    index = bench.wal.last_index
    assert bench.engine.commit == index
    bench.disconnect(C)
    bench.connect(C)
    bench.tick(BEAT_S)
    for _ in range(30):
        bench.receive(C, refusal(bench, term, index))
        bench.tick(0.1)
    assert bench.engine.leading is not None
    assert bench.engine.configuration == Configuration((A, B, C))
    # With b the flag can be committed, and is set.
    bench.connect(B)
    for _ in range(3):
        bench.tick(BEAT_S)
        bench.receive(B, accepted(term, bench.wal.last_index))
    assert bench.engine.configuration.distrusted == ((C,) if core_format == 2 else ())


@pytest.mark.parametrize("core_format", [1, 2])
@pytest.mark.parametrize("size", [2, 4])
def test_the_lost_voter_can_be_forced_out_where_the_flag_would_stop_the_cluster(
    size: int, core_format: int
) -> None:
    voters = (A, B, C, D)[:size]
    healthy = [C] if size == 4 else []
    bench = Bench(A, voters)
    bench.application.core_format = core_format
    term = bench.lead()
    if size == 4:
        bench.disconnect(D)
    bench.disconnect(B)
    bench.connect(B)
    bench.tick(BEAT_S)
    match = bench.wal.last_index
    for _ in range(30):
        bench.receive(B, refusal(bench, term, match))
        for voter in healthy:
            bench.receive(voter, accepted(term, bench.wal.last_index))
        bench.tick(0.1)
    assert bench.engine.leading is not None
    bench.engine.change_configuration(remove(bench.engine.configuration, B), force=True)
    for _ in range(5):
        bench.tick(0.1)
        for voter in healthy:
            bench.receive(voter, accepted(term, bench.wal.last_index))
        bench.runtime.settle()
    assert bench.engine.commit == bench.wal.last_index

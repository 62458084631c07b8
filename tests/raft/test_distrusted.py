"""Distrusted voters: what counts, and what is written of them."""

from __future__ import annotations

import msgspec
import pytest

from raftkv.errors import MembershipRefused
from raftkv.raft.changing import add_learner, check_majority, distrust, promote, remove
from raftkv.raft.election import Candidacy, Stage, quorum_alive, quorum_time
from raftkv.raft.membership import Configuration, decode, encode

A, B, C, D = "a-1", "b-1", "c-1", "d-1"
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

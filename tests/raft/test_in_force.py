"""in_force.py: which configuration is in force where a replicant stands."""

from __future__ import annotations

import pytest

from raftkv.errors import Diverged
from raftkv.raft.membership import EMPTY, Configuration, ConfigurationLog
from raftkv.replicant.in_force import InForce
from tests.raft.harness import A, B, C

ONE, TWO, THREE = (Configuration(voters) for voters in ((A,), (A, B), (A, B, C)))


def test_the_entries_themselves_tell_it() -> None:
    in_force = InForce()
    assert (in_force.index, in_force.configuration) == (1, EMPTY)
    in_force.passed(2, ONE)
    in_force.passed(3, None)
    assert (in_force.index, in_force.configuration) == (3, ONE)


def test_a_snapshot_without_one_leaves_it_unknown_until_it_is_told() -> None:
    in_force = InForce()
    in_force.passed(2, ONE)
    in_force.jumped(50)
    assert in_force.configuration is None
    in_force.told(52, TWO)  # entries up to there are on their way
    in_force.passed(51, None)
    assert in_force.configuration is None
    in_force.passed(52, None)
    assert in_force.configuration == TWO
    in_force.passed(53, THREE)
    in_force.told(40, ONE)  # late: it stands further on
    assert in_force.configuration == THREE


def test_a_snapshot_comes_with_its_own() -> None:
    in_force = InForce()
    in_force.told(50, TWO)
    assert in_force.configuration == EMPTY
    in_force.jumped(50)
    assert (in_force.index, in_force.configuration) == (50, TWO)


def test_two_histories_are_a_fault() -> None:
    in_force = InForce()
    in_force.passed(2, ONE)
    in_force.told(2, ONE)
    with pytest.raises(Diverged, match="the cores disagree"):
        in_force.told(2, TWO)


def test_since_when_one_is_a_member() -> None:
    log = ConfigurationLog(5, ONE)
    log.append(7, Configuration((A,), (B,)))
    log.append(9, TWO)
    assert log.base_index == log.member_since(A, 9) == 5
    assert (log.member_since(B, 6), log.member_since(B, 7), log.member_since(B, 9)) == (None, 7, 7)
    log.append(11, ONE)
    log.append(13, Configuration((A,), (B,)))
    assert (log.member_since(B, 11), log.member_since(B, 14)) == (None, 13)


def test_the_index_of_its_entry_is_known_from_the_log_or_the_upstream() -> None:
    in_force = InForce()
    in_force.passed(2, ONE)
    in_force.passed(3, None)
    assert in_force.since == 2
    in_force.told(3, ONE, 2)
    in_force.jumped(50)
    assert in_force.since == 0
    in_force.told(50, TWO, 40)
    assert in_force.since == 40
    in_force.told(50, TWO)  # an upstream whose base is a snapshot of core format 1
    assert in_force.since == 40
    with pytest.raises(Diverged, match="since 41"):
        in_force.told(50, TWO, 41)

"""changing.py: which changes of the members a leader may append (rule 3)."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv.errors import MembershipRefused
from raftkv.raft.changing import add_learner, check_change, promote, remove
from raftkv.raft.membership import REMOVED_KEPT, Configuration, decode, encode
from tests.raft.harness import A, B, Bench, C, D

THREE = Configuration((A, B, C))


def allowed(proposed: Configuration, **changed: Any) -> None:
    settled: dict[str, Any] = {
        "latest_index": 2,
        "commit": 9,
        "first_index": 5,
        "alive": (A, B, C),
        "force": False,
    }
    facts = {**settled, **changed}
    facts.setdefault("able", facts["alive"])
    check_change(proposed, **facts)


def test_a_core_is_a_copy_first_and_votes_later() -> None:
    copying = add_learner(THREE, D)
    assert (copying.voters, copying.learners) == ((A, B, C), (D,))
    voting = promote(copying, D)
    assert (voting.voters, voting.learners) == ((A, B, C, D), ())
    gone = remove(voting, A)
    assert (gone.voters, gone.removed) == ((B, C, D), (A,))
    assert decode(encode(gone)) == gone


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: add_learner(THREE, A), "member already"),
        (lambda: add_learner(THREE, "a-2"), "another data directory"),
        (lambda: add_learner(remove(THREE, C), C), "empty one"),
        (lambda: promote(THREE, A), "no copy"),
        (lambda: promote(THREE, D), "no copy"),
        (lambda: remove(THREE, D), "no core"),
        (lambda: remove(Configuration((A,), (B,)), A), "last voter"),
    ],
)
def test_what_makes_no_sense_is_refused(change: Any, words: str) -> None:
    with pytest.raises(MembershipRefused, match=words):
        change()


def test_a_removed_name_may_come_back_with_another_directory() -> None:
    assert add_learner(remove(THREE, C), "c-2").learners == ("c-2",)


def test_only_the_latest_removed_are_remembered() -> None:
    configuration = THREE
    for number in range(REMOVED_KEPT + 5):
        configuration = remove(add_learner(configuration, f"x-{number}"), f"x-{number}")
    assert len(configuration.removed) == REMOVED_KEPT
    assert configuration.removed[-1] == f"x-{REMOVED_KEPT + 4}"


def test_one_change_at_a_time() -> None:
    allowed(add_learner(THREE, D))
    with pytest.raises(MembershipRefused, match="not committed"):
        allowed(add_learner(THREE, D), latest_index=10)


def test_not_before_an_entry_of_the_own_term_is_committed() -> None:
    with pytest.raises(MembershipRefused, match="just been elected"):
        allowed(add_learner(THREE, D), first_index=10)


def test_voters_that_are_heard_and_behind_are_refused_unless_forced() -> None:
    smaller = remove(THREE, B)
    with pytest.raises(MembershipRefused, match=r"too few hold the log .*date: a; .*behind: c"):
        allowed(smaller, able=(A,))
    allowed(smaller, able=(A, C))
    allowed(smaller, able=(A,), force=True)


def test_what_would_stop_the_cluster_is_refused_unless_forced() -> None:
    smaller = remove(THREE, B)
    with pytest.raises(MembershipRefused, match="alive: a, b"):
        allowed(smaller, alive=(A, B))
    allowed(smaller, alive=(A, B), force=True)
    allowed(smaller, alive=(A, C))


class TestRule03OneMembershipChangeInFlight:
    def test_four_adds_in_one_tick_are_one_add(self) -> None:
        """Stock PySyncObj takes all four (canary: rule 3)."""
        bench = Bench(A)
        term = bench.lead()
        engine = bench.engine
        index = engine.change_configuration(add_learner(engine.configuration, D), force=False)
        for name in ("e-1", "f-1", "g-1"):
            another = add_learner(engine.configuration, name)
            with pytest.raises(MembershipRefused, match="not committed"):
                engine.change_configuration(another, force=False)
        assert engine.configuration.learners == (D,)
        assert engine.term == term
        assert engine.wal.last_index == index

    def test_only_a_leader_changes_anything(self) -> None:
        bench = Bench(A)
        with pytest.raises(MembershipRefused, match="does not lead"):
            bench.engine.change_configuration(add_learner(THREE, D), force=False)

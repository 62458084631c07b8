"""reads.py: a read index is confirmed by a majority that echoes the round it was noted in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftkv.raft.membership import Configuration
from raftkv.raft.reads import ReadRounds

FIVE = Configuration(("a", "b", "c", "d", "e"), ("l",))


def test_a_round_ends_with_a_majority_and_its_own_index() -> None:
    reads = ReadRounds()
    reads.request("r1")
    reads.request("r2")
    assert reads.start(7, 1)
    assert reads.finish(FIVE, "a") is None
    reads.echoed("b", 1)
    assert reads.finish(FIVE, "a") is None
    reads.echoed("c", 1)
    assert reads.finish(FIVE, "a") == (7, ["r1", "r2"])
    assert not reads.in_flight


def test_who_comes_during_a_round_waits_for_the_next() -> None:
    reads = ReadRounds()
    reads.request("early")
    reads.start(7, 1)
    reads.request("late")
    assert not reads.start(9, 2)
    reads.echoed("b", 1)
    reads.echoed("c", 1)
    assert reads.finish(FIVE, "a") == (7, ["early"])
    assert reads.waiting
    assert reads.start(9, 3)
    reads.echoed("b", 1)
    reads.echoed("c", 1)
    reads.echoed("c", 2)
    assert reads.finish(FIVE, "a") is None, "echoes of what was sent before count nothing"
    reads.echoed("b", 3)
    reads.echoed("c", 8)
    assert reads.finish(FIVE, "a") == (9, ["late"]), "an echo of anything sent later counts"


def test_nobody_waits_no_round() -> None:
    assert not ReadRounds().start(7, 1)


def test_a_lone_voter_confirms_at_once() -> None:
    reads = ReadRounds()
    reads.request("r")
    reads.start(3, 1)
    assert reads.finish(Configuration(("a",)), "a") == (3, ["r"])


def test_a_step_down_gives_everybody_back_once() -> None:
    reads = ReadRounds()
    reads.request("r1")
    reads.start(7, 1)
    reads.request("r2")
    assert list(reads.fail()) == ["r1", "r2"]
    assert list(reads.fail()) == []
    reads.echoed("b", 1)
    reads.echoed("c", 1)
    assert reads.finish(FIVE, "a") is None


@given(st.lists(st.tuples(st.sampled_from("bcdelx"), st.integers(0, 4)), max_size=20))
def test_only_distinct_voters_of_this_round_count(echoes: list[tuple[str, int]]) -> None:
    reads = ReadRounds()
    for number in (1, 2):
        reads.request("old")
        reads.start(1, number)
        for voter in "bcde":
            reads.echoed(voter, reads.round)
        assert reads.finish(FIVE, "a")
    reads.request("r")
    assert reads.start(5, 3)
    for voter, number in echoes:
        reads.echoed(voter, number)
    counted = {voter for voter, number in echoes if number >= 3} & set("bcde")
    assert (reads.finish(FIVE, "a") == (5, ["r"])) is (1 + len(counted) >= 3)

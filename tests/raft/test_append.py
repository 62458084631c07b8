"""append.py against a naive model of what Raft promises, under messages in any order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.errors import Diverged
from raftkv.raft.append import Accepted, Rejected, first_of_term, judge_append, quorum_index

Pair = tuple[int, bytes]
History = tuple[list[tuple[list[Pair], int]], list[tuple[int, int, int]]]


class NaiveLog:
    """A list of (term, payload); position p holds index p + 1. Below the base nothing is seen."""

    def __init__(self, pairs: Sequence[Pair] = (), base_index: int = 1) -> None:
        self.pairs: list[Pair] = [(0, b""), *pairs]
        self.base_index = base_index

    @property
    def last_index(self) -> int:
        return len(self.pairs)

    def term_at(self, index: int) -> int | None:
        return self.pairs[index - 1][0] if self.base_index <= index <= len(self.pairs) else None

    def take(self, prev_index: int, entries: Sequence[Pair], verdict: Accepted) -> None:
        """Do what the verdict says."""
        if verdict.truncate_from is not None:
            assert verdict.truncate_from > self.base_index
            del self.pairs[verdict.truncate_from - 1 :]
        if verdict.skip < len(entries):
            assert len(self.pairs) == prev_index + verdict.skip, "the entries leave a gap"
            self.pairs += entries[verdict.skip :]


def log_of(*terms: int) -> NaiveLog:
    return NaiveLog([(term, b"%d" % index) for index, term in enumerate(terms, 2)])


# Single messages ---------------------------------------------------------------------------------


def test_entries_behind_the_end_are_appended() -> None:
    verdict = judge_append(log_of(1, 1), 1, 3, 1, [(2, b"x"), (2, b"y")], 4)
    assert verdict == Accepted(match=5, truncate_from=None, skip=0, commit=4)


def test_what_is_there_is_skipped_and_the_log_keeps_its_end() -> None:
    verdict = judge_append(log_of(1, 1, 1, 1), 1, 1, 0, [(1, b"2"), (1, b"3")], 9)
    assert verdict == Accepted(match=3, truncate_from=None, skip=2, commit=3)


def test_only_the_first_conflict_cuts() -> None:
    verdict = judge_append(log_of(1, 1, 2, 2), 2, 2, 1, [(1, b"3"), (3, b"a"), (3, b"b")], 2)
    assert verdict == Accepted(match=5, truncate_from=4, skip=1, commit=2)


def test_a_log_that_is_too_short_says_where_it_ends() -> None:
    assert judge_append(log_of(1), 1, 9, 3, [], 9) == Rejected(hint_term=0, hint_index=3)


def test_a_log_with_another_term_names_it_and_its_first_index() -> None:
    log = log_of(1, 4, 4, 4)
    assert judge_append(log, 2, 5, 7, [], 9) == Rejected(hint_term=4, hint_index=3)


def test_entries_at_or_below_the_base_are_not_looked_at() -> None:
    log = NaiveLog([(1, b"2"), (1, b"3"), (2, b"4")], base_index=3)
    verdict = judge_append(log, 3, 1, 0, [(1, b"2"), (1, b"3"), (2, b"4"), (2, b"5")], 5)
    assert verdict == Accepted(match=5, truncate_from=None, skip=3, commit=5)


@pytest.mark.parametrize(
    ("prev_index", "prev_term", "entries"),
    [(3, 2, []), (3, 2, [(2, b"x")]), (2, 1, [(2, b"x")]), (1, 0, [(1, b"2"), (3, b"x")])],
)
def test_a_contradiction_to_what_is_committed_is_a_fault(
    prev_index: int, prev_term: int, entries: list[Pair]
) -> None:
    with pytest.raises(Diverged, match="committed"):
        judge_append(log_of(1, 1, 1), 3, prev_index, prev_term, entries, 9)


@given(terms=st.lists(st.integers(1, 4), min_size=1, max_size=20), data=st.data())
def test_first_of_term_agrees_with_looking(terms: list[int], data: st.DataObject) -> None:
    log = log_of(*sorted(terms))
    index = data.draw(st.integers(2, log.last_index))
    same = [i for i in range(2, index + 1) if log.term_at(i) == log.term_at(index)]
    assert first_of_term(log, index) == same[0]


# Many messages -----------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Leaders by term as (log, commit): each keeps at least what the one before had committed.

    And messages as (leader, prev_index, count); their order is any, so is their number.
    """
    leaders: list[tuple[list[Pair], int]] = []
    log: list[Pair] = [(0, b"")]
    commit = 1
    for term in range(1, draw(st.integers(1, 5)) + 1):
        log = log[: draw(st.integers(commit, len(log)))]
        log = log + [(term, b"%d.%d" % (term, i)) for i in range(draw(st.integers(1, 5)))]
        commit = draw(st.integers(commit, len(log)))
        leaders.append((log, commit))
    message = st.integers(0, len(leaders) - 1).flatmap(
        lambda who: st.tuples(st.just(who), st.integers(1, len(leaders[who][0])), st.integers(0, 6))
    )
    return leaders, draw(st.lists(message, min_size=5, max_size=40))


@given(histories(), st.randoms(use_true_random=False))
def test_any_order_of_messages_keeps_the_promises(history: History, random: random.Random) -> None:
    leaders, messages = history
    follower, commit, term = NaiveLog(), 1, 0
    for who, prev_index, count in messages:
        leader, leader_commit = leaders[who]
        if who < term:
            continue  # a stale term never reaches this function
        term = who
        entries = leader[prev_index : prev_index + count]
        before = list(follower.pairs)
        sent_commit = random.randint(1, leader_commit)
        prev_term = leader[prev_index - 1][0]
        verdict = judge_append(follower, commit, prev_index, prev_term, entries, sent_commit)
        if isinstance(verdict, Rejected):
            assert follower.last_index < prev_index or before[prev_index - 1][0] != prev_term
            continue
        follower.take(prev_index, entries, verdict)
        assert verdict.match == prev_index + len(entries)
        assert follower.pairs[: verdict.match] == leader[: verdict.match], "acknowledged, not held"
        assert commit <= verdict.commit <= max(commit, min(sent_commit, verdict.match))
        if before[: verdict.match] == leader[: verdict.match]:
            assert follower.pairs == before, "a message that brings nothing new changed the log"
        commit = verdict.commit
        assert follower.pairs[:commit] == leader[:commit], "committed, but not the leader's"
        follower.base_index = random.randint(follower.base_index, commit)


# Quorum ------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), max_size=9))
def test_quorum_index_agrees_with_counting(matches: list[int]) -> None:
    def held(index: int) -> bool:
        return 2 * sum(match >= index for match in matches) > len(matches)

    assert quorum_index(matches) == max((i for i in range(31) if held(i)), default=0)

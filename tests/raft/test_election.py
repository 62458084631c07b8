"""election.py: who may be granted a vote, which grants count, when a deadline passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.raft.election import (
    Candidacy,
    Deadline,
    Stage,
    VoteRequest,
    VoteVerdict,
    judge_vote,
    quorum_alive,
)
from raftkv.raft.membership import Configuration

THREE = Configuration(("a", "b", "c"))
FIVE = Configuration(("a", "b", "c", "d", "e"))


def judge(
    term: int,
    *,
    pre_vote: bool = False,
    transfer: bool = False,
    last: tuple[int, int] = (3, 10),
    vote: str | None = None,
    leader_alive: bool = False,
) -> VoteVerdict:
    """A request of "b" at a voter in term 5 whose log ends with entry 10 of term 3."""
    request = VoteRequest("b", term, last[1], last[0], pre_vote, transfer)
    return judge_vote(
        request, term=5, vote=vote, last_index=10, last_term=3, leader_alive=leader_alive
    )


class TestVotes:
    def test_a_newer_term_is_adopted_and_granted(self) -> None:
        assert judge(6) == VoteVerdict(True, True, "granted")

    def test_a_stale_term_is_refused(self) -> None:
        assert judge(4) == VoteVerdict(False, False, "stale term")

    def test_one_vote_a_term(self) -> None:
        assert judge(5).granted
        assert judge(5, vote="b").granted, "the same candidate asks again: its answer was lost"
        assert not judge(5, vote="c").granted
        assert judge(6, vote="c").granted, "another term, another vote"

    @pytest.mark.parametrize(
        ("last", "granted"),
        [((3, 10), True), ((3, 9), False), ((2, 99), False), ((4, 1), True), ((3, 11), True)],
    )
    def test_the_candidates_log_must_not_lag(self, last: tuple[int, int], granted: bool) -> None:
        assert judge(6, last=last).granted is granted
        assert judge(6, last=last).adopt_term, "its term counts, granted or not"
        assert judge(6, last=last, pre_vote=True).granted is granted

    def test_who_hears_a_leader_grants_nothing_and_keeps_its_term(self) -> None:
        assert judge(6, leader_alive=True) == VoteVerdict(False, False, "a leader is alive")
        assert not judge(6, leader_alive=True, pre_vote=True).granted

    def test_a_transfer_is_asked_for_by_the_leader_itself(self) -> None:
        assert judge(6, leader_alive=True, transfer=True) == VoteVerdict(True, True, "granted")

    def test_a_pre_vote_changes_nothing(self) -> None:
        assert judge(6, pre_vote=True, vote="c") == VoteVerdict(True, False, "granted")
        assert judge(99, pre_vote=True).adopt_term is False
        assert not judge(5, pre_vote=True).granted, "nobody can win the term that runs"


@given(
    st.lists(st.tuples(st.sampled_from("bcdexz"), st.integers(1, 3), st.integers(1, 3),
                       st.booleans()), max_size=12)
)  # fmt: skip
def test_only_distinct_voters_of_this_attempt_count(
    grants: list[tuple[str, int, int, bool]],
) -> None:
    candidacy = Candidacy(Stage.VOTE, 2, 2, transfer=False)
    candidacy.grant("a", term=2, attempt=2, pre_vote=False)
    for voter, term, attempt, pre_vote in grants:
        candidacy.grant(voter, term=term, attempt=attempt, pre_vote=pre_vote)
    counted = {who for who, *tag in grants if tag == [2, 2, False]} & set("bcde")
    assert candidacy.won(FIVE) is (1 + len(counted) >= 3)


def test_a_candidate_outside_of_the_configuration_does_not_count_itself() -> None:
    candidacy = Candidacy(Stage.VOTE, 2, 1, transfer=False)
    for voter in ("x", "b"):
        candidacy.grant(voter, term=2, attempt=1, pre_vote=False)
    assert not candidacy.won(THREE)
    assert not candidacy.won(Configuration())


class TestDeadline:
    def deadline(self, *chances: float) -> Deadline:
        return Deadline(1.0, 2.0, iter(chances).__next__)

    def test_every_attempt_draws_anew(self) -> None:
        deadline = self.deadline(0.0, 0.5, 1.0)
        found = []
        for now in (10.0, 20.0, 30.0):
            deadline.redraw(now)
            found.append(deadline.at - now)
        assert found == [1.0, 1.5, 2.0]

    def test_a_leader_counts_as_alive_for_the_shortest_time_out(self) -> None:
        deadline = self.deadline(0.0, 0.0)
        assert not deadline.leader_alive(10.0)
        deadline.heard_leader(10.0)
        assert deadline.leader_alive(10.99)
        assert not deadline.leader_alive(11.0)
        assert deadline.passed(11.0)

    def test_a_restart_counts_as_having_heard_a_leader(self) -> None:
        """Rule 16: what this node promised before is forgotten, so it keeps the longest promise."""
        deadline = self.deadline(0.5)
        deadline.started(10.0)
        assert deadline.leader_alive(10.9)
        assert not deadline.passed(11.4)

    def test_a_reset_stream_brings_the_deadline_forward_and_never_back(self) -> None:
        deadline = self.deadline(0.5, 0.5)
        deadline.heard_leader(10.0)
        deadline.leader_lost(10.1, 0.02)
        assert deadline.at == pytest.approx(10.12)
        assert not deadline.leader_alive(10.1)
        deadline.leader_lost(10.11, 5.0)
        assert deadline.at == pytest.approx(10.12)


@pytest.mark.parametrize(
    ("heard", "alive"),
    [
        ({"b": 9.5, "c": 0.0}, True),
        ({"b": 9.0, "c": 0.0}, False),
        ({"x": 9.9, "y": 9.9}, False),
        ({}, False),
    ],
)
def test_a_leader_needs_a_majority_within_the_window(heard: dict[str, float], alive: bool) -> None:
    assert quorum_alive(THREE, "a", heard, 10.0, 1.0) is alive


def test_a_lone_voter_is_its_own_majority() -> None:
    assert quorum_alive(Configuration(("a",)), "a", {}, 10.0, 1.0)
    assert not quorum_alive(Configuration(("b",), ("a",)), "a", {}, 10.0, 1.0)

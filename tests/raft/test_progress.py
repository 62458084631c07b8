"""progress.py: what a leader believes of a follower is never more than what it was told."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raftkv.raft.append import Accepted, judge_append
from raftkv.raft.progress import Flow, Progress
from tests.raft.test_append import NaiveLog, Pair, log_of

LIMIT = 1000


def replicating(match: int, last_index: int) -> Progress:
    progress = Progress(last_index, 0.0)
    progress.next = match + 1
    progress.acknowledged(match, last_index)
    assert progress.flow is Flow.REPLICATE
    return progress


def test_a_new_leader_probes_once_until_it_is_answered_or_a_beat_has_passed() -> None:
    progress = Progress(10, 0.0)
    assert (progress.flow, progress.match, progress.next) == (Flow.PROBE, 0, 11)
    assert progress.may_send(LIMIT)
    progress.sent(11, 50)
    assert not progress.may_send(LIMIT)
    assert progress.next == 11, "a probe proves nothing before its answer"
    progress.probe_again()
    assert progress.may_send(LIMIT)


def test_an_answer_to_the_probe_opens_the_stream() -> None:
    progress = Progress(10, 0.0)
    progress.sent(12, 50)
    assert progress.acknowledged(12, 12)
    assert (progress.flow, progress.match, progress.next) == (Flow.REPLICATE, 12, 13)


def test_an_answer_to_a_bare_heartbeat_says_less_than_the_probe_asked() -> None:
    progress = Progress(10, 0.0)
    assert not progress.acknowledged(0, 12)
    assert (progress.flow, progress.next) == (Flow.PROBE, 11)


def test_the_stream_is_bounded_by_the_bytes_in_flight() -> None:
    progress = replicating(10, 40)
    progress.sent(20, 600)
    assert progress.may_send(LIMIT)
    progress.sent(30, 600)
    assert not progress.may_send(LIMIT)
    progress.acknowledged(19, 40)
    assert not progress.may_send(LIMIT)
    progress.acknowledged(20, 40)
    assert progress.may_send(LIMIT)


def test_a_follower_that_lost_what_it_acknowledged_is_found_out() -> None:
    progress = replicating(10, 40)
    assert progress.rejected(8, 0, 0, log_of(*[1] * 40)), "late, from before it had them"
    progress.disconnected()
    assert progress.rejected(8, 0, 0, log_of(*[1] * 40)), "no answer to the probe"
    assert not progress.rejected(10, 0, 5, log_of(*[1] * 40))
    assert (progress.match, progress.next) == (10, 11), "what it acknowledged may be committed"


def test_late_and_repeated_answers_change_nothing() -> None:
    progress = replicating(10, 40)
    progress.sent(20, 10)
    progress.acknowledged(20, 40)
    assert not progress.acknowledged(12, 40)
    progress.rejected(15, 0, 3, log_of(*([1] * 40)))
    assert (progress.flow, progress.match, progress.next) == (Flow.REPLICATE, 20, 21)


def test_a_rejection_counts_only_if_it_echoes_the_probe_in_flight() -> None:
    progress = Progress(10, 0.0)
    progress.rejected(7, 0, 3, log_of(*([1] * 40)))
    assert progress.next == 11
    progress.rejected(10, 0, 3, log_of(*([1] * 40)))
    assert progress.next == 3


def test_a_rejection_skips_a_whole_term() -> None:
    log = log_of(1, 1, 1, 5, 5, 5, 5)  # the leader's: indexes 2 to 4 of term 1, then 5 to 8
    progress = Progress(8, 0.0)
    progress.rejected(8, 3, 5, log)  # the follower has term 3 from index 5 on
    assert progress.next == 5, "the leader has nothing of term 3: begin where it begins there"
    progress = Progress(8, 0.0)
    progress.rejected(8, 1, 2, log)
    assert progress.next == 5, "the leader's own last entry of term 1 may be where they agree"


def test_a_snapshot_pauses_the_stream_until_it_is_installed() -> None:
    progress = Progress(50, 0.0)
    progress.needs_snapshot(40)
    assert not progress.may_send(LIMIT)
    progress.acknowledged(0, 50)
    progress.rejected(50, 0, 2, log_of(*([1] * 60)))
    assert progress.flow is Flow.SNAPSHOT
    progress.acknowledged(40, 50)
    assert (progress.flow, progress.next) == (Flow.REPLICATE, 41)
    progress.needs_snapshot(50)
    progress.snapshot_failed()
    assert (progress.flow, progress.next) == (Flow.PROBE, 41)


class AnyAnswers(RuleBasedStateMachine):
    """Acknowledgements of true facts, rejections and losses, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.terms = [1] * 9
        self.last = 10
        self.held = 1  # what the follower's disk holds of this leader's log
        self.progress = Progress(self.last, 0.0)
        self.best = 0

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        self.last += count
        self.terms += [2] * count

    @rule(count=st.integers(0, 4))
    @precondition(lambda self: self.progress.may_send(LIMIT))
    def send(self, count: int) -> None:
        last = min(self.last, self.progress.next - 1 + count)
        self.progress.sent(last, 300)

    @rule(index=st.integers(0, 60))
    def acknowledge(self, index: int) -> None:
        """Late ones too: whatever was ever true."""
        index = min(index, self.last)
        self.held = max(self.held, index)
        self.progress.acknowledged(index, self.last)

    @rule(prev=st.integers(1, 60), term=st.integers(0, 3), index=st.integers(0, 60))
    def reject(self, prev: int, term: int, index: int) -> None:
        log = log_of(*self.terms)
        self.progress.rejected(min(prev, self.last), term, index, log)

    @rule()
    def disconnect(self) -> None:
        self.progress.disconnected()

    @rule()
    def beat(self) -> None:
        self.progress.probe_again()

    @rule(index=st.integers(1, 60))
    def snapshot(self, index: int) -> None:
        self.progress.needs_snapshot(min(index, self.last))

    @invariant()
    def match_is_true_and_never_goes_back(self) -> None:
        assert self.best <= self.progress.match <= self.held
        self.best = self.progress.match

    @invariant()
    def next_lies_behind_match_and_not_behind_the_log(self) -> None:
        assert self.progress.match < self.progress.next <= self.last + 1


TestAnyAnswers = AnyAnswers.TestCase
TestAnyAnswers.settings = settings(max_examples=60, stateful_step_count=40)


@st.composite
def diverged_logs(draw: st.DrawFn) -> tuple[list[Pair], list[Pair]]:
    """Two logs that agree up to a point; behind it each went on with terms of its own."""
    common = draw(st.lists(st.integers(1, 3), max_size=10).map(sorted))
    odd = draw(st.lists(st.sampled_from([5, 7, 9]), max_size=20).map(sorted))
    even = draw(st.lists(st.sampled_from([4, 6, 8]), max_size=20).map(sorted))
    return (
        [(term, b"%d" % i) for i, term in enumerate(common + odd + [10])],
        [(term, b"%d" % i) for i, term in enumerate(common + even)],
    )


@given(diverged_logs())
def test_probing_finds_the_point_of_agreement_in_few_rounds(
    logs: tuple[list[Pair], list[Pair]],
) -> None:
    leader, follower = NaiveLog(logs[0]), NaiveLog(logs[1])
    terms = {term for pairs in logs for term, _ in pairs}
    progress = Progress(leader.last_index - 1, 0.0)
    rounds = 0
    while progress.flow is not Flow.REPLICATE:
        rounds += 1
        assert rounds <= len(terms) + 2
        prev = progress.next - 1
        entries = leader.pairs[prev:]
        verdict = judge_append(follower, 1, prev, leader.term_at(prev) or 0, entries, 1)
        progress.sent(leader.last_index, 1)
        if isinstance(verdict, Accepted):
            follower.take(prev, entries, verdict)
            progress.acknowledged(verdict.match, leader.last_index)
        else:
            progress.rejected(prev, verdict.hint_term, verdict.hint_index, leader)
    assert follower.pairs == leader.pairs
    assert (progress.match, progress.next) == (leader.last_index, leader.last_index + 1)

"""Elections: pre-vote, stickiness, votes as sets, deadlines, check-quorum.

Rules of this file: pure. Time comes in as `now` (seconds, monotonic), chance as a function; it
sends nothing and stores nothing durable: the engine persists term and vote, then sends.

Theory. A follower that hears nothing from a leader until its *deadline* first asks whether it
could win (pre-vote, Ongaro's thesis 9.6). A pre-vote names the term the candidate would use and
raises nobody's term, so that a node coming back from a partition with a stale log disturbs
nothing. With a majority of pre-votes it raises its term, votes for itself and asks for real
votes. *Stickiness* (thesis 6.4.1's other half): a node that heard a leader less than the minimum
election time-out ago grants nothing, and a leader grants nothing while it holds its quorum;
a leadership transfer bypasses it. *Check-quorum*: a leader that has not heard a majority within
the maximum election time-out steps down: by then the others have had time to elect another.

Grants are a set per candidacy (rule 9), tagged with (term, attempt) so that a late answer to an
earlier attempt counts for nothing, and void once a leader is heard (rule 22). A deadline is drawn
anew at every step-down and every attempt, else an ex-leader campaigns at once on an old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum

import msgspec

from .membership import Configuration

__all__ = [
    "Candidacy",
    "Deadline",
    "Stage",
    "VoteRequest",
    "VoteVerdict",
    "judge_vote",
    "quorum_alive",
    "quorum_time",
]


class Stage(IntEnum):
    """What a candidacy asks for."""

    PRE_VOTE = 1
    VOTE = 2


class VoteRequest(msgspec.Struct, frozen=True, gc=False):
    """What a candidate claims. For a pre-vote `term` is the term it would campaign in."""

    candidate: str
    term: int
    last_index: int
    last_term: int
    pre_vote: bool
    transfer: bool


class VoteVerdict(msgspec.Struct, frozen=True, gc=False):
    """`adopt_term`: first become a follower in the request's term. Then persist the vote."""

    granted: bool
    adopt_term: bool
    reason: str


def judge_vote(
    request: VoteRequest,
    *,
    term: int,
    vote: str | None,
    last_index: int,
    last_term: int,
    leader_alive: bool,
) -> VoteVerdict:
    """Decide a vote or pre-vote (Raft paper 5.2, 5.4.1).

    `leader_alive`: this node leads, or heard a leader within the minimum election time-out. The
    request is filtered by it before it may touch the term (rule 22).
    """
    if request.term < term:
        return VoteVerdict(False, False, "stale term")
    if leader_alive and not request.transfer:
        return VoteVerdict(False, False, "a leader is alive")
    current = (request.last_term, request.last_index) >= (last_term, last_index)
    if request.pre_vote:
        if request.term == term:
            return VoteVerdict(False, False, "the term is taken")
        return VoteVerdict(current, False, "granted" if current else "its log is behind")
    adopt = request.term > term
    if not current:
        return VoteVerdict(False, adopt, "its log is behind")
    if not adopt and vote not in (None, request.candidate):
        return VoteVerdict(False, False, f"voted for {vote}")
    return VoteVerdict(True, adopt, "granted")


class Candidacy:
    """One attempt to become leader: who has granted it so far."""

    def __init__(self, stage: Stage, term: int, attempt: int, transfer: bool) -> None:
        self.stage = stage
        self.term = term
        self.attempt = attempt
        self.transfer = transfer
        self._granted: set[str] = set()
        self._refused: set[str] = set()

    def grant(self, voter: str, *, term: int, attempt: int, pre_vote: bool) -> None:
        """Count a grant if it answers this attempt; anything else is a late message."""
        if (term, attempt) != (self.term, self.attempt):
            return
        if pre_vote is not (self.stage is Stage.PRE_VOTE):
            return
        self._granted.add(voter)

    def refuse(self, voter: str, *, term: int, attempt: int) -> None:
        """Note a refusal, if it answers this attempt."""
        if (term, attempt) == (self.term, self.attempt):
            self._refused.add(voter)

    def lost(self, configuration: Configuration, reachable: Iterable[str]) -> bool:
        """Whether those who were asked cannot make a majority any more: a split vote, say."""
        return not configuration.majority((self._granted | set(reachable)) - self._refused)

    def won(self, configuration: Configuration) -> bool:
        """Majority of the voters *now* in force; strangers and duplicates count nothing."""
        return configuration.majority(self._granted)


class Deadline:
    """When a node that hears no leader campaigns, and since when it has heard one."""

    def __init__(
        self, timeout_min_s: float, timeout_max_s: float, random: Callable[[], float]
    ) -> None:
        assert 0 < timeout_min_s < timeout_max_s
        self.timeout_min_s = timeout_min_s
        self._spread_s = timeout_max_s - timeout_min_s
        self._random = random
        self.at = 0.0
        # Rule 16: a restarted follower forgets that it heard a leader, so it acts as if it had
        # heard one at its start; `started` sets it.
        self._heard = float("-inf")
        # Until then this node has promised its leader's lease; a lost stream does not end it.
        self._promised = float("-inf")

    def started(self, now: float) -> None:
        self._heard = now
        self.redraw(now)

    def redraw(self, now: float) -> None:
        """After a vote, a step-down or an attempt: a fresh random time-out (rule 22)."""
        self.at = now + self.timeout_min_s + self._spread_s * self._random()

    def heard_leader(self, now: float, lease_s: float = 0.0) -> None:
        """`lease_s`: at most the shortest time-out, which a restarted node waits anyway."""
        assert lease_s <= self.timeout_min_s
        self._heard = now
        self._promised = max(self._promised, now + lease_s)
        self.redraw(now)

    def leader_lost(self, now: float, delay_s: float) -> None:
        """The stream to the leader was reset: a hint. Forget it, campaign after `delay_s`."""
        self._heard = float("-inf")
        self.at = min(self.at, max(now, self._promised) + delay_s)

    def election_lost(self, now: float, delay_s: float) -> None:
        """Nobody won, and everybody knows that there is no leader: try again after `delay_s`."""
        self.at = min(self.at, now + delay_s)

    def expire_now(self, now: float) -> None:
        """There is nobody to wait for: campaign at once."""
        self._heard = float("-inf")
        self.at = now

    def leader_alive(self, now: float) -> bool:
        return now - self._heard < self.timeout_min_s or now < self._promised

    def passed(self, now: float) -> bool:
        return now >= self.at


def quorum_time(configuration: Configuration, me: str, times: Mapping[str, float]) -> float:
    """The latest moment that a majority of voters has reached; `me`, if it votes, always has."""
    reached = sorted(
        (
            times.get(voter, float("-inf")) if configuration.trusts(voter) else float("-inf")
            for voter in configuration.voters
            if voter != me
        ),
        reverse=True,
    )
    others_needed = len(configuration.voters) // 2 + (me not in configuration.voters)
    return float("inf") if others_needed == 0 else reached[others_needed - 1]


def quorum_alive(
    configuration: Configuration,
    me: str,
    heard: Mapping[str, float],
    now: float,
    window_s: float,
) -> bool:
    """Whether a majority of voters, this leader among them, was heard within `window_s`."""
    alive = [peer for peer, at in heard.items() if now - at < window_s]
    return configuration.majority([me, *alive])

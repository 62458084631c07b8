"""Campaigning and voting: the engine's side of `election`.

Every decision is made in election.py; here it is carried out: terms and votes are persisted,
requests and answers are sent (held until durable), deadlines are armed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import wire
from .election import Candidacy, Deadline, Stage, VoteRequest, judge_vote
from .membership import name_of

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["Campaigning"]

# After the stream to the leader was reset its process is probably gone: campaign within this
# time, and again after a split vote. The range keeps two followers from asking in one moment.
RETRY_DELAY_MAX_S = 0.05


class Campaigning:
    """One node's part in elections."""

    def __init__(self, engine: Engine) -> None:
        times = engine.times
        self._engine = engine
        self._attempt = 0
        self._candidacy: Candidacy | None = None
        self.deadline = Deadline(
            times.election_timeout_min_ms / 1000,
            times.election_timeout_max_ms / 1000,
            engine.runtime.rng.random,
        )

    def started(self, now: float) -> None:
        """A restarted node may have promised a lease; it grants nothing for one (rule 16)."""
        engine = self._engine
        if engine.configuration.voters == (engine.me,):
            self.deadline.expire_now(now)  # nobody to disturb, nobody to wait for
        elif engine.term == 0:
            self.deadline.redraw(now)  # a new node has heard of nobody, so it promised nothing
        else:
            self.deadline.started(now)

    def ended(self, now: float) -> None:
        """Stepped down, or heard a leader: grants of the candidacy are void (rule 22)."""
        self._candidacy = None
        self.deadline.redraw(now)

    def wake_at(self) -> float:
        return self.deadline.at

    def leader_link_lost(self, now: float) -> None:
        """A hint that the leader's process ended; pre-vote keeps it harmless if it did not."""
        self.deadline.leader_lost(now, self._retry_delay_s())

    def _silence(self) -> str:
        """Why this node campaigns, for the log."""
        engine = self._engine
        if engine.leader is not None and engine.leader not in engine.links:
            return "the connection to it ended"
        return "nothing was received from it within the election time-out"

    def _retry_delay_s(self) -> float:
        return RETRY_DELAY_MAX_S * self._engine.runtime.rng.random()

    def tick(self, now: float) -> None:
        engine = self._engine
        if engine.leading is None and self.deadline.passed(now):
            if engine.configuration.trusts(engine.me):
                self._campaign(Stage.PRE_VOTE, now, transfer=False)
            elif engine.leader is not None:
                # A copy or a removed node never campaigns (rule 9), but it knows no leader either:
                # the replicants that follow it must look for another core. A stream whose other
                # end died without a word is found out by sending; a copy sends nothing, so it
                # ends the stream and dials again.
                link = engine.links.get(engine.leader)
                engine.become_follower(engine.term, None, self._silence())
                if link is not None:
                    link.close()
            else:
                self.deadline.redraw(now)

    def campaign_now(self, now: float) -> None:
        """The leader hands over: no pre-vote, and stickiness is bypassed."""
        if self._engine.configuration.trusts(self._engine.me):
            self._campaign(Stage.VOTE, now, transfer=True)

    def _campaign(self, stage: Stage, now: float, *, transfer: bool) -> None:
        engine = self._engine
        self.deadline.redraw(now)
        self._attempt += 1
        if stage is Stage.VOTE:
            engine.counts.elections += 1
            engine.become_candidate("it hands leadership over" if transfer else self._silence())
            term = engine.term
        else:
            engine.counts.pre_votes += 1
            term = engine.term + 1
            if engine.leader is not None:
                engine.become_follower(engine.term, None, self._silence())
        candidacy = Candidacy(stage, term, self._attempt, transfer)
        self._candidacy = candidacy
        candidacy.grant(
            engine.me, term=term, attempt=self._attempt, pre_vote=stage is Stage.PRE_VOTE
        )
        request = wire.Vote(
            term,
            self._attempt,
            engine.wal.last_index,
            engine.wal.last_term,
            stage is Stage.PRE_VOTE,
            transfer,
        )
        for voter in engine.configuration.voters:
            if voter != engine.me:
                engine.send_held(voter, request)
        self._check_won(now)

    def _check_won(self, now: float) -> None:
        candidacy, engine = self._candidacy, self._engine
        if candidacy is None or not candidacy.won(engine.configuration):
            return
        self._candidacy = None
        if candidacy.stage is Stage.PRE_VOTE:
            self._campaign(Stage.VOTE, now, transfer=False)
        else:
            engine.become_leader()

    def on_vote(self, sender: str, message: wire.Vote, now: float) -> None:
        engine = self._engine
        request = VoteRequest(
            sender,
            message.term,
            message.last_index,
            message.last_term,
            message.pre_vote,
            message.transfer,
        )
        verdict = judge_vote(
            request,
            term=engine.term,
            vote=engine.vote,
            last_index=engine.wal.last_index,
            last_term=engine.wal.last_term,
            leader_alive=engine.leading is not None or self.deadline.leader_alive(now),
        )
        if engine.removed(sender):
            engine.links[sender].close()  # it dials again, and the greeting tells it (rule 23)
            return
        if verdict.adopt_term:
            name = name_of(sender)
            engine.become_follower(message.term, None, f"{name} campaigns in term {message.term}")
        if verdict.granted and not message.pre_vote:
            engine.set_term(engine.term, sender)
            self.deadline.redraw(now)
        engine.send_held(
            sender,
            wire.VoteReply(
                engine.term, message.term, message.attempt, message.pre_vote, verdict.granted
            ),
        )

    def on_vote_reply(self, sender: str, message: wire.VoteReply, now: float) -> None:
        engine = self._engine
        if sender not in engine.configuration.members:
            return
        if message.term > engine.term:
            name = name_of(sender)
            engine.become_follower(message.term, None, f"{name} is in term {message.term}")
            return
        candidacy, asked_term, attempt = self._candidacy, message.asked_term, message.attempt
        if candidacy is None:
            return
        if message.granted:
            candidacy.grant(sender, term=asked_term, attempt=attempt, pre_vote=message.pre_vote)
            self._check_won(now)
        elif candidacy.stage is Stage.VOTE:
            candidacy.refuse(sender, term=asked_term, attempt=attempt)
            if candidacy.lost(engine.configuration, engine.links):
                self._candidacy = None
                self.deadline.election_lost(now, self._retry_delay_s())

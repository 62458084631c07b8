"""Verdicts that a member is dead: who may reach one, and which entry may carry it.

Three voters, of which the last one may be declared dead. Steps: each of the others stops receiving
from it or does again, an election, a report to the leader, a verdict that is reached, appended and
applied, and, as an injected bug, a verdict that is sent again to the next leader.

Checked: a verdict that takes effect was reached by the leader of the very term of the entry that
carries it; and when it was reached, a majority of the voters, the accused not counted, did not hear
the accused after the deadline. The rule: the leader needs reports from such a majority, made after
the deadline was noticed; the verdict names its term, and `apply` passes over one whose term is not
that of its entry.

Left out on purpose: time. A deadline passes at any moment in which the leader does not hear the
accused, so every schedule of real deadlines is among those that are walked.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, NamedTuple

from raftkv.raft.membership import Configuration

__all__ = ["BUGS", "Verdicts", "VerdictsState"]

BUGS: Final = {
    "leader-alone": "the leader declares dead whom it alone does not hear",
    "stale-reports": "a report from before the deadline counts",
    "sent-again": "a verdict takes effect in the term of another leader",
}

VOTERS: Final = ("core1-a", "core2-a", "core3-a")
ACCUSED: Final = 2
JUDGES: Final = (0, 1)
TERMS_MAX: Final = 3
# Verdicts that are appended and not applied yet.
WAITING_MAX: Final = 2


class Verdict(NamedTuple):
    """`term`: in which it was reached; `unheard`: the judges that did not hear the accused then."""

    term: int
    unheard: tuple[int, ...]


class VerdictsState(NamedTuple):
    """`reports`: of each judge, None or whether it had heard the accused when it reported.

    `deadline`: the leader has noticed that the accused is late; `missed`: whether each judge has
    not heard it at some moment since. `log` holds verdicts that are appended, with the term of
    their entry; `applied` is the first one that took effect.
    """

    term: int = 1
    leader: int = 0
    heard: tuple[bool, ...] = (True, True)
    deadline: bool = False
    missed: tuple[bool, ...] = (False, False)
    reports: tuple[bool | None, ...] = (None, None)
    queued: tuple[Verdict, ...] = ()
    log: tuple[tuple[int, Verdict], ...] = ()
    applied: tuple[int, Verdict] | None = None


class Verdicts:
    """See the module's text. `bug` is one of BUGS."""

    def __init__(self, bug: str = "") -> None:
        assert not bug or bug in BUGS, bug
        self.bug = bug
        self._judges = Configuration(tuple(VOTERS[judge] for judge in JUDGES))

    def first(self) -> VerdictsState:
        return VerdictsState()

    def steps(self, state: VerdictsState) -> Iterator[tuple[str, VerdictsState]]:
        for judge in JUDGES:
            heard = list(state.heard)
            heard[judge] = not heard[judge]
            verb = "receives from" if heard[judge] else "receives nothing from"
            changed = state._replace(heard=tuple(heard))
            if state.deadline:
                changed = changed._replace(missed=_missed(changed))
            if judge == state.leader and heard[judge]:
                changed = changed._replace(deadline=False, missed=(False, False))
            yield f"{judge + 1} {verb} 3", changed
            yield from self._report(state, judge)
            if judge != state.leader and state.term < TERMS_MAX:
                yield f"{judge + 1} is elected", self._elected(state, judge)
        if not state.heard[state.leader] and not state.deadline:
            noticed = state._replace(deadline=True, missed=_missed(state))
            if self.bug != "stale-reports":
                noticed = noticed._replace(reports=(None, None))
            yield "the leader notices the deadline", noticed
        yield from self._propose(state)
        yield from self._append_and_apply(state)

    def broken(self, state: VerdictsState) -> str:
        if state.applied is None:
            return ""
        term, verdict = state.applied
        if term != verdict.term:
            return f"a verdict of its own term: one of term {verdict.term} acts in term {term}"
        if not self._judges.majority(VOTERS[judge] for judge in verdict.unheard):
            return "a verdict of the majority: most voters heard the node that is declared dead"
        return ""

    def canonical(self, state: VerdictsState) -> Hashable:
        """Judges differ only in who leads: the leader comes first."""
        return state if state.leader == 0 else _exchanged(state)

    def _report(self, state: VerdictsState, judge: int) -> Iterator[tuple[str, VerdictsState]]:
        if state.deadline or self.bug == "stale-reports":
            reports = list(state.reports)
            reports[judge] = state.heard[judge]
            yield f"{judge + 1} reports", state._replace(reports=tuple(reports))

    def _elected(self, state: VerdictsState, judge: int) -> VerdictsState:
        """A new leader grants a full period, so no deadline has passed and no report counts."""
        return state._replace(
            term=state.term + 1,
            leader=judge,
            deadline=False,
            missed=(False, False),
            reports=(None, None),
            queued=state.queued if self.bug == "sent-again" else (),
        )

    def _propose(self, state: VerdictsState) -> Iterator[tuple[str, VerdictsState]]:
        if not state.deadline or state.heard[state.leader] or state.queued:
            return
        silent = [judge for judge in JUDGES if state.reports[judge] is False]
        if self.bug == "leader-alone":
            silent = list(JUDGES)
        if self._judges.majority(VOTERS[judge] for judge in silent):
            unheard = tuple(judge for judge in JUDGES if state.missed[judge])
            verdict = Verdict(state.term, unheard)
            yield "the leader reaches a verdict", state._replace(queued=(verdict,))

    def _append_and_apply(self, state: VerdictsState) -> Iterator[tuple[str, VerdictsState]]:
        for verdict in state.queued if len(state.log) < WAITING_MAX else ():
            entry = (state.term, verdict)
            after = state._replace(queued=(), log=(*state.log, entry))
            yield "the verdict is appended", after
        if state.log:
            term, verdict = state.log[0]
            after = state._replace(log=state.log[1:])
            if term == verdict.term or self.bug == "sent-again":
                after = after._replace(applied=state.applied or (term, verdict))
            yield "the entry is applied", after


def _missed(state: VerdictsState) -> tuple[bool, ...]:
    """Who has not heard the accused at some moment of this deadline."""
    return tuple(
        before or not heard for before, heard in zip(state.missed, state.heard, strict=True)
    )


def _exchanged(state: VerdictsState) -> VerdictsState:
    def verdict(given: Verdict) -> Verdict:
        return Verdict(given.term, tuple(sorted(1 - judge for judge in given.unheard)))

    applied = state.applied
    return state._replace(
        leader=1 - state.leader,
        heard=state.heard[::-1],
        missed=state.missed[::-1],
        reports=state.reports[::-1],
        queued=tuple(verdict(each) for each in state.queued),
        log=tuple((term, verdict(each)) for term, each in state.log),
        applied=None if applied is None else (applied[0], verdict(applied[1])),
    )

"""When a leader may propose that a node is dead (rule 30): the decision alone, without any I/O.

Theory. Silence can have three causes: the node is gone, the way to it is gone, or the observer was
not running. Only the first is a death, so a verdict needs all of this:

- The leader has led for a whole `node_down_ms` and has not heard the node itself for as long. Both
  are measured in *attentive* time: a step between two looks counts for at most `STEP_MAX_S`, so a
  leader that was stopped (SIGSTOP, a frozen virtual machine) takes its own absence for no more than
  one late timer.
- Others agree, in reports made after the leader noticed that the deadline had passed. For a core,
  those that did not hear it are a majority of all voters; its own report is not counted. For a
  replicant, which has one upstream at a time, every voter that is not silent itself has reported,
  and none heard it.
- A missing report counts as "heard" until its sender is silent. So the replicants of a core that
  has fallen silent get a full period to move to another one.

With two voters no core is ever declared dead: the accused is needed for the majority, as it is for
committing the verdict. With one voter its own word is the majority.

`FailureDetector` is pure: it is given the time, what was heard and what was reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

__all__ = ["STEP_MAX_S", "FailureDetector", "Observed", "Suspect", "Verdict"]

# How much silence one step between two looks can prove. Looks are a quarter of a second apart.
STEP_MAX_S: Final = 0.5

# A core that a voter has not heard for so long, two report periods, counts as not heard by it.
ISOLATED_S: Final = 2.0


class Suspect(msgspec.Struct, frozen=True):
    """A member that the log calls up: what may be declared dead."""

    name: str
    incarnation: int
    raft_id: str
    core: bool


class Verdict(msgspec.Struct, frozen=True):
    """This incarnation of a node is dead: reached in `term`, and worth nothing in another."""

    name: str
    incarnation: int
    term: int


class Observed(msgspec.Struct, frozen=True):
    """What the leader sees at one look. `heard`: name -> seconds since it was heard here last."""

    term: int
    me: str
    voters: Collection[str]
    suspects: Iterable[Suspect]
    heard: Mapping[str, float]
    # Raft ids of the cores that are not silent, this one included.
    alive: Collection[str]


class _Report(msgspec.Struct, frozen=True):
    made_at: float
    heard: frozenset[str]


class FailureDetector:
    """The deciding half, for one leadership; `begin` starts the next one."""

    def __init__(self, node_down_s: float) -> None:
        self._node_down_s = node_down_s
        # Attentive seconds since the beginning; and the time of the last step.
        self._clock = 0.0
        self._stepped_at: float | None = None
        self._led_at = 0.0
        self._heard_at: dict[tuple[str, int], float] = {}
        # When the leader noticed that a deadline had passed, until the node is heard again.
        self._noticed_at: dict[tuple[str, int], float] = {}
        # Raft id of a core -> what it reported last.
        self._reports: dict[str, _Report] = {}

    @property
    def clock(self) -> float:
        """Attentive seconds."""
        return self._clock

    @property
    def noticed_at(self) -> float:
        """When a deadline was noticed to have passed, the latest that holds; below 0: none has."""
        return max(self._noticed_at.values(), default=-1.0)

    def begin(self, now: float) -> None:
        """A leadership begins: nothing that was heard or reported before counts."""
        self.step(now)
        self._led_at = self._clock
        self._heard_at.clear()
        self._noticed_at.clear()
        self._reports.clear()

    def step(self, now: float) -> None:
        """Time passes. Of a long step only `STEP_MAX_S` is attention."""
        if self._stepped_at is not None:
            self._clock += min(max(0.0, now - self._stepped_at), STEP_MAX_S)
        self._stepped_at = now

    def heard(self, name: str, incarnation: int, now: float) -> None:
        """The leader has heard a node; its stream may be gone before the next look."""
        self.step(now)
        self._heard_at[name, incarnation] = self._clock

    def report(self, core: str, heard: Iterable[str], made_at: float) -> None:
        """A core reported the names that it has heard, at `made_at` on this clock or later."""
        self._reports[core] = _Report(made_at, frozenset(heard))

    def look(self, now: float, seen: Observed) -> list[Verdict]:
        """The verdicts of this moment. One that could not be committed is reached again."""
        self.step(now)
        suspects = [suspect for suspect in seen.suspects if suspect.raft_id != seen.me]
        self._note(suspects, seen)
        return [
            Verdict(suspect.name, suspect.incarnation, seen.term)
            for suspect in suspects
            if self._noticed(suspect) and self._agreed(suspect, seen)
        ]

    def _note(self, suspects: list[Suspect], seen: Observed) -> None:
        """Bring the times at which each was heard up to date."""
        clock, reported = self._clock, self._reported(seen)
        reporting = [core for core in seen.voters if core in seen.alive and core != seen.me]
        missing = any(core not in self._reports for core in reporting)
        known = {}
        for suspect in suspects:
            key = (suspect.name, suspect.incarnation)
            at = self._heard_at.get(key, clock)
            if suspect.name in seen.heard:
                at = max(at, clock - max(0.0, seen.heard[suspect.name]))
            if not suspect.core and (missing or suspect.name in reported):
                at = clock
            known[key] = at
        self._heard_at = known
        for key in [key for key in self._noticed_at if key not in known]:
            del self._noticed_at[key]

    def _reported(self, seen: Observed) -> set[str]:
        """The names that cores have heard. A report counts until its sender is silent."""
        for core in [core for core in self._reports if core not in seen.alive]:
            del self._reports[core]
        return {name for report in self._reports.values() for name in report.heard}

    def _noticed(self, suspect: Suspect) -> bool:
        """Whether the deadline has passed; when that was noticed is kept."""
        key = (suspect.name, suspect.incarnation)
        since = max(self._led_at, self._heard_at[key])
        if self._clock - since <= self._node_down_s:
            self._noticed_at.pop(key, None)
            return False
        self._noticed_at.setdefault(key, self._clock)
        return True

    def _agreed(self, suspect: Suspect, seen: Observed) -> bool:
        """Whether enough voters reported, since the deadline was noticed, not to hear it."""
        noticed_at = self._noticed_at[suspect.name, suspect.incarnation]
        against, undecided = 1 if seen.me in seen.voters else 0, False
        for voter in seen.voters:
            if voter in (seen.me, suspect.raft_id):
                continue
            report = self._reports.get(voter)
            if report is not None and report.made_at >= noticed_at:
                against += suspect.name not in report.heard
                undecided |= suspect.name in report.heard
            else:
                undecided |= voter in seen.alive
        if suspect.core:
            return against > len(seen.voters) // 2
        return not undecided

    def isolated(self, seen: Observed) -> list[str]:
        """The cores that are up and that at most half of the other voters have heard.

        Voters that are silent themselves and those that have reported nothing yet are left out.
        """
        found = []
        for suspect in seen.suspects:
            if not suspect.core or suspect.raft_id == seen.me:
                continue
            votes = [seen.heard.get(suspect.name, ISOLATED_S) < ISOLATED_S]
            for voter in seen.voters:
                report = self._reports.get(voter)
                if report is not None and voter != suspect.raft_id and voter in seen.alive:
                    votes.append(suspect.name in report.heard)
            if 2 * sum(votes) <= len(votes):
                found.append(suspect.name)
        return sorted(found)

"""Observers of transactions in a storm: participants that prepare, slowly, badly, or never.

What each hears is judged in the moment: the content of the transaction as the log has it, whole and
in order when it is closed; one verdict, which is the log's. They fail, take their time and hang as
the plan says, and their nodes are paused and killed by the nemesis while they prepare.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raftkv_txqueue.commands import Vote
from raftkv_txqueue.observers import Opened, PrepareFailed, TransactionObserver

from .storm_ledger import Step, Work

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["Observers"]

CHECK = "observers hear what happens"
SLOW_S = 0.2
HANG_S = 30.0


class Observer(TransactionObserver):
    """Of one transaction on one node."""

    def __init__(self, observers: Observers, seat: Seat, opened: Opened) -> None:
        self._observers = observers
        self._seat = seat
        self._opened = opened
        self._heard: list[tuple[str, str, Any]] = []
        self._closed = False
        self._verdict = ""
        self._missed = False
        self._deleted = False
        self.prepared = False

    def __str__(self) -> str:
        return f"{self._seat.name} of {self._opened.txid}"

    def _judge(self, *wrong: str) -> None:
        found = [f"{self}: {each}" for each in wrong if each]
        if self._deleted:
            found.append(f"{self}: is told of it after its end")
        self._observers.storm.violated(CHECK, found)

    def publish(self, queue: str, messages: Any) -> None:
        self._heard += [("publish", queue, each) for each in messages]
        self._judge("is told content after the close" if self._closed else "")

    def accept(self, queue: str, seqs: Any) -> None:
        self._heard += [("accept", queue, each) for each in seqs]
        self._judge("is told content after the close" if self._closed else "")

    def closed(self, participants: Any) -> None:
        self._closed = True
        work = self._work()
        names = sorted(node for node, _ in work.votes) if work is not None else []
        wrong = "" if work is None else self._differs(work)
        if work is not None and sorted(participants) != names:
            wrong = f"is told the participants {participants}, and they are {names}"
        self._judge(wrong)

    def _work(self) -> Work | None:
        return self._observers.by_number(self._opened.number)

    def _differs(self, work: Work) -> str:
        """The content that was heard is that of the log."""
        by_id = self._observers.storm.log.ledger.by_id
        should = [(kind, by_id[id_].name, what) for kind, id_, what in work.operations]
        if self._heard == should or self._missed:
            return ""
        return f"has heard {self._heard}, and {work} is {should}"

    async def prepare(self) -> None:
        self._judge("" if self._closed else "is to prepare before the close")
        await self._observers.prepare(self._opened, self._seat)
        self.prepared = True

    def missed(self) -> None:
        self._missed = True
        self._observers.marks["observer missed"] += 1

    def commit(self) -> None:
        work = self._work()
        wrong = ""
        if work is not None:
            if work.state not in ("committed", "heuristically committed"):
                wrong = f"is told commit, and it is {work}"
            else:
                wrong = self._differs(work)
        self._told("commit", wrong)

    def rollback(self, cause: str, reason: str) -> None:
        work, wrong = self._work(), ""
        if work is not None and (work.is_open or work.state.endswith("committed")):
            wrong = f"is told rollback, and it is {work}"
        self._told("rollback", wrong)

    def _told(self, verdict: str, wrong: str) -> None:
        if self._verdict:
            wrong = f"is told {verdict} after {self._verdict}"
        self._verdict = verdict
        self._observers.marks[f"observer heard {verdict}"] += 1
        self._judge(wrong)

    def deleted(self) -> None:
        self._judge("" if self._verdict or self._missed else "is told no verdict")
        self._deleted = True


class Observers:
    """All observers of one run."""

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.marks = storm.marks
        self.strict = True
        self._numbers: dict[int, Work] = {}
        self._removals: dict[Seat, Callable[[], None]] = {}
        # (node, number) -> who is to prepare there, in the node's present life.
        self._asked: dict[tuple[str, int], Observer] = {}
        self._looked = 0

    def by_number(self, number: int) -> Work | None:
        """The transaction of that number, ever."""
        works = self.storm.log.ledger.works
        # A small transaction gets its number with its close.
        for work in works[self._looked :]:
            if work.number:
                self._numbers[work.number] = work
        while self._looked < len(works) and not works[self._looked].is_open:
            self._looked += 1
        return self._numbers.get(number)

    def opened(self, seat: Seat) -> None:
        """A node has started: some take part from the beginning."""
        self._forget(seat)
        rng = random.Random(f"{self.storm.plan.seed}/observers/{seat.name}/{seat.boots}")
        if rng.random() < self.storm.plan.observe_share:
            self.turn(seat)

    def turn(self, seat: Seat) -> None:
        """It begins to take part, or no longer does."""
        remove = self._removals.pop(seat, None)
        if remove is not None:
            remove()
            self._forget(seat)
            return
        self._removals[seat] = seat.api.observe(lambda opened: self._made(seat, opened))

    def _made(self, seat: Seat, opened: Opened) -> Observer:
        made = self._asked[(seat.name, opened.number)] = Observer(self, seat, opened)
        return made

    def _forget(self, seat: Seat) -> None:
        for key in [each for each in self._asked if each[0] == seat.name]:
            del self._asked[key]

    def check(self, step: Step) -> list[str]:
        """Whether a yes is that of a node whose observers have prepared."""
        command = step.command
        if not isinstance(command, Vote) or not command.yes or step.origin is None:
            return []
        observer = self._asked.get((step.origin[0], command.number))
        if observer is None or observer.prepared:
            return []
        return [f"{observer} has not prepared, and its node votes yes"]

    def stop(self) -> None:
        """From now on they are quick and agree."""
        self.strict = False

    async def prepare(self, opened: Opened, seat: Seat) -> None:
        """The local prepare of a node."""
        plan = self.storm.plan
        rng = random.Random(f"{plan.seed}/prepare/{opened.number}/{seat.name}/{seat.boots}")
        if rng.random() < plan.slow_share:
            await asyncio.sleep(rng.uniform(0, SLOW_S))
        if not self.strict:
            return
        if rng.random() < plan.hang_share:
            self.marks["observer hung"] += 1
            await asyncio.sleep(HANG_S)
        if rng.random() < plan.fail_share:
            self.marks["observer refused"] += 1
            if rng.random() < 0.5:
                raise LookupError("the store is not well")
            raise PrepareFailed("the store is full")
        self.marks["observer prepared"] += 1

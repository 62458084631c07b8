"""What operators do in a storm: limits, deletions, heuristic decisions; and commands out of place.

The raw ones are proposed past the API, as an old or a broken program would: votes of nobody,
settlements of other people's messages, commits in a wrong order. The log must refuse them, or
answer as it was, and nothing may come of it; `storm_check.py` says which.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from raftkv.testing.storm_worlds import EXCUSED
from raftkv_txqueue.commands import (
    AcceptOf,
    Acquire,
    CloseSession,
    Commit,
    CommitBranch,
    End,
    EndSession,
    ForgetBranch,
    Message,
    PrepareBranch,
    PublishTo,
    Purge,
    Rollback,
    RollbackBranch,
    Select,
    SetTimeout,
    Settle,
    Stage,
    Start,
    Sweep,
    Vote,
)
from raftkv_txqueue.xa import Xid

from .storm_plan import QUEUES, SIDE
from .storm_programs import CALL_S, Programs

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["Operators"]

REASON = "an operator's wish"
#: Branches that are nobody else's.
RAW_XIDS = (Xid(8, b"raw"), Xid(8, b"raw", b"2"), Xid(9, b"strange"))


class Operators(Programs):
    """One at a time."""

    kind = "operator"

    def __init__(self, storm: Storm) -> None:
        super().__init__(storm)
        # For raw commands: nobody else uses these.
        self._sessions: dict[Seat, list[int]] = {}

    async def found(self) -> None:
        """Declare the queues, as soon as there is a cluster; and again if they are deleted."""
        rng = random.Random(f"{self.plan.seed}/founder")
        while True:
            ledger = self.storm.log.ledger
            missing = [name for name in QUEUES if self._is_missing(name)]
            # One that takes dead letters comes before those whose letters it takes.
            missing = sorted(missing, key=lambda name: QUEUES[name].get("dead_letter", "") != "")
            seat = self.storm.any_seat(rng)
            if missing and seat is not None:
                limits = dict(QUEUES[missing[0]])
                if seat.host.view().version > 1:
                    limits |= self.plan.of_queue(missing[0])
                await self.declare(seat, missing[0], limits, missing[0] in ledger.queues)
            elif not missing and not self.running:
                return
            await asyncio.sleep(0.02 if missing else 0.2)

    def _is_missing(self, name: str) -> bool:
        """It is to be declared: it does not exist, or was declared at format 1 of the plugin."""
        book = self.storm.log.ledger.queues.get(name)
        if book is None:
            return True
        if all(getattr(book, what) == each for what, each in self.plan.of_queue(name).items()):
            return False
        seats = self.storm.all_seats()
        return any(seat.host.view().version > 1 for seat in seats)

    async def declare(
        self, seat: Seat, name: str, limits: dict[str, Any], change: bool = False
    ) -> None:
        try:
            await self.at(
                seat,
                f"declare {name}",
                lambda: seat.api.declare(name, **limits, change=change, timeout_s=CALL_S),
            )
        except EXCUSED:
            return

    async def _live(self, number: int) -> None:
        self.storm.world.spawn(self.found(), "founder")
        if not self.plan.verbs:
            return
        rng = random.Random(f"{self.plan.seed}/operators")
        while True:
            await asyncio.sleep(rng.expovariate(1 / self.plan.operate_every_s))
            if not self.running:
                return
            seat = self.storm.any_seat(rng)
            if seat is None:
                continue
            verb = rng.choices(list(self.plan.verbs), list(self.plan.verbs.values()))[0]
            self.storm.acting += 1
            try:
                await self.do(seat, verb, rng)
            except EXCUSED:
                continue
            finally:
                self.storm.acting -= 1

    async def do(self, seat: Seat, verb: str, rng: random.Random) -> None:
        """One deed."""
        api = seat.api
        match verb:
            case "declare":
                name = rng.choice(("full", "drop", "retry", SIDE))
                limits = dict(QUEUES[name])
                if rng.random() < 0.6:
                    limits["depth_max"] = rng.choice((0, 2, 5, 20))
                if rng.random() < 0.3:
                    limits["overflow"] = rng.choice(("refuse", "drop_oldest"))
                for left_out in rng.sample(
                    list(limits), min(len(limits), rng.choice((0, 0, 1, 2)))
                ):
                    del limits[left_out]
                await self.declare(seat, name, limits, rng.random() < 0.7)
            case "delete":
                name = rng.choice((SIDE, SIDE, "retry", "dead"))
                how = {"if_empty": rng.random() < 0.2, "if_unused": rng.random() < 0.2}
                await self.at(
                    seat,
                    f"delete {name}",
                    lambda: api.delete(name, **how, timeout_s=CALL_S),
                )
                self.marks["queue deleted"] += 1
            case "purge":
                name = rng.choice((SIDE, "dead", "q1", "drop"))
                await self.at(seat, f"purge {name}", lambda: api.purge(name, timeout_s=CALL_S))
            case "heuristic":
                await self.heuristic(seat, rng)
            case "observe":
                self.storm.observers.turn(seat)
            case "time-outs":
                value = rng.choice((200, 1_000, 10_000))
                key = rng.choice(("prepare_timeout_ms", "transaction_timeout_ms"))
                await self.at(
                    seat,
                    f"set {key}",
                    lambda: seat.host.set_setting(key, value, timeout_s=CALL_S),
                )
            case "end a session":
                await self.end_session(seat, rng)
            case "look":
                await self.look(seat, rng)
            case "raw":
                await self.raw(seat, rng)

    async def heuristic(self, seat: Seat, rng: random.Random) -> None:
        """Decide a prepared branch, instead of its coordinator."""
        prepared = [each for each in self.storm.log.ledger.open if each.state == "prepared"]
        if not prepared:
            return
        xid, dtx = rng.choice(prepared).xid, seat.api.dtx
        decide = dtx.heuristic_commit if rng.random() < 0.5 else dtx.heuristic_rollback
        await self.at(seat, f"heuristic {xid}", lambda: decide(xid, REASON, timeout_s=CALL_S))

    async def end_session(self, seat: Seat, rng: random.Random) -> None:
        """End one of whatever node that goes on, or one of the last that have ended."""
        lives = [each for each in self.storm.log.ledger.sessions.values() if not each.ended]
        if not lives or rng.random() < 0.1:
            lives = [*self.storm.log.ledger.sessions.values()][-5:]
        if lives:
            number = rng.choice(lives).id
            await self.at(
                seat,
                f"end session {number}",
                lambda: seat.api.end_session(number, REASON, timeout_s=CALL_S),
            )

    async def look(self, seat: Seat, rng: random.Random) -> None:
        """Whatever can be asked without a change."""
        api, name = seat.api, rng.choice(list(QUEUES))
        xid = self.any_xid(rng)
        for work in (
            lambda: api.browse(name, first=rng.randint(1, 5), limit=3),
            lambda: api.depth(name),
            lambda: api.dtx.outcome(xid, timeout_s=CALL_S),
            lambda: api.dtx.get_timeout(xid, timeout_s=CALL_S),
        ):
            try:
                await self.at(seat, "look", work)
            except EXCUSED:
                continue

    def any_xid(self, rng: random.Random) -> Xid:
        """One that is known, or was, or nobody has heard of."""
        ledger = self.storm.log.ledger
        known = [*ledger.branches] or [*ledger.by_xid]
        return rng.choice(known) if known and rng.random() < 0.9 else RAW_XIDS[0]

    # --- out of place ---

    async def propose(self, seat: Seat, command: Any) -> Any:
        return await self.at(
            seat,
            f"propose {type(command).__name__}",
            lambda: seat.host.propose(command, timeout_s=CALL_S),
        )

    async def raw(self, seat: Seat, rng: random.Random) -> None:
        """A command that no node of ours would send, or not from there, or not now."""
        mine = self._sessions.setdefault(seat, [])
        if len(mine) < 2:
            mine.append((await self.opened(seat, rng.choice(("tx", "tx", "dtx")))).id)
        command = rng.choice((self._own, self._foreign))(seat, rng.choice(mine), rng)
        await self.propose(seat, command)

    def _content(self, rng: random.Random) -> tuple[str, tuple[int, ...], tuple[Any, ...]]:
        """A queue, some of its seqs, and operations on it."""
        queue = rng.choice([*QUEUES, "nowhere"])
        book = self.storm.log.ledger.book(queue)
        seqs = tuple(rng.sample([*book.items], min(2, len(book.items)))) if book else ()
        operations: list[Any] = [AcceptOf(queue, seqs)] if seqs else []
        if not seqs or rng.random() < 0.3:
            self.storm.tags += 1
            message = Message(b"%d/raw" % self.storm.tags)
            operations.insert(0, PublishTo(queue, (message,)))
        return queue, seqs or (1,), tuple(operations)

    def _own(self, seat: Seat, session: int, rng: random.Random) -> Any:
        """In a session of its own, in a strange order."""
        life = self.storm.log.ledger.sessions.get(session)
        decided = 0 if life is None else life.decided
        counter = max(1, decided + rng.choice((-1, 0, 1, 1, 1, 2)))
        queue, seqs, operations = self._content(rng)
        xid = rng.choice(RAW_XIDS)
        return rng.choice(
            (
                lambda: Settle(session, queue, rng.choice(("accept", "release")), seqs),
                lambda: Acquire(session, queue, rng.choice((1, 3))),
                lambda: Commit(session, counter, operations),
                lambda: Commit(session, max(1, decided)),
                lambda: Rollback(session, counter, "no reason"),
                lambda: Stage(session, counter, operations),
                lambda: Stage(session, 0, operations),
                lambda: CloseSession(session),
                lambda: Select(session, rng.choice(("plain", "tx", "dtx"))),
                lambda: Start(session, xid, rng.random() < 0.3, rng.random() < 0.3),
                lambda: Start(session, xid),
                lambda: Start(session, xid, timeout_ms=10**9),
                lambda: End(session, xid, rng.random() < 0.5, rng.random() < 0.3, operations),
                lambda: End(session, xid),
                lambda: CommitBranch(xid, rng.random() < 0.5),
                lambda: RollbackBranch(xid),
                lambda: PrepareBranch(xid),
                lambda: ForgetBranch(xid),
                lambda: SetTimeout(xid, rng.choice((0, 300, 5_000, 10**9))),
            )
        )()

    def _foreign(self, seat: Seat, session: int, rng: random.Random) -> Any:
        """About what belongs to others: refused, or without any effect on them."""
        ledger = self.storm.log.ledger
        others = [each.id for each in ledger.sessions.values() if each.node != seat.name]
        other = rng.choice(others[-8:]) if others else session
        numbers = [each.number for each in ledger.open if each.number] or [1]
        queue, seqs, operations = self._content(rng)
        xid = self.any_xid(rng)
        return rng.choice(
            (
                lambda: Vote(rng.choice(numbers) + rng.choice((50, 90)), True),
                lambda: Settle(other, queue, "accept", seqs),
                lambda: Settle(session, queue, rng.choice(("accept", "reject")), seqs),
                lambda: Acquire(other, queue, 2),
                lambda: Commit(other, 10**6, operations),
                lambda: Stage(other, 1, operations),
                lambda: CloseSession(other),
                lambda: EndSession(other + rng.choice((0, 0, 50)), REASON),
                lambda: Start(other, xid),
                lambda: Start(session, xid),
                lambda: End(session, xid),
                lambda: SetTimeout(xid, rng.choice((0, 300, 5_000))),
                lambda: Sweep(rng.choice((1, 2, 500))),
                lambda: Sweep(1),
                lambda: Purge(queue, seqs[0], rng.choice((1, 2, 100))),
                lambda: Purge(queue, seqs[0], 100),
            )
        )()

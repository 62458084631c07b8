"""Transaction managers: branches of global transactions, through several nodes, and their recovery.

A coordinator lets sessions work in a branch, ends them, prepares it, and decides it; by two phases,
or by one. It keeps a journal, as real ones do: what it has decided survives its nodes. Now and then
it goes away and leaves a prepared branch behind, for long; then somebody finds it by `recover` and
finishes it as the journal says. Operators come in between and decide heuristically.

**A prepared branch is a promise.** Whoever was told OK by `prepare` and decides to commit must find
it committed, or be told that an operator did otherwise.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any

from raftkv.errors import Refused
from raftkv.testing.host import HostCrashed
from raftkv.testing.storm_worlds import EXCUSED
from raftkv_txqueue.refusals import IllegalState, UnknownXid
from raftkv_txqueue.xa import XaStatus, Xid

from .storm_answers import Story, check_recovered, work_of
from .storm_clients import Consumers
from .storm_ledger import Work
from .storm_programs import CALL_S

if TYPE_CHECKING:
    from .storm import Seat

__all__ = ["Coordinators", "Recoverers"]

FORMAT = 7
TRIES = 6
RECOVER_S = 0.3
HEURISTIC = (XaStatus.HEURCOM, XaStatus.HEURRB)
ROLLED_BACK = (XaStatus.RBROLLBACK, XaStatus.RBTIMEOUT)


class Coordinators(Consumers):
    """They take, put and accept in branches."""

    kind = "coordinator"

    @property
    def count(self) -> int:
        return self.plan.coordinators

    async def act(self, rng: random.Random, number: int) -> None:
        seat = self.storm.any_seat(rng)
        if seat is None:
            return
        session = await self.opened(seat, "dtx")
        for _ in range(rng.randint(1, 3)):
            await self.one(seat, session, rng)
        if rng.random() < 0.8:
            await self.closed(seat, session)

    async def one(self, seat: Seat, session: Any, rng: random.Random) -> None:
        """One branch, from its start to its end, or as far as it gets."""
        story = self.story("dtx", seat, xid=self._xid(rng))
        self.storm.journal[story.xid] = (story, False)
        got: tuple[Any, ...] = ()
        if rng.random() < 0.6:
            got = await self.got(seat, session, rng.choice(("q1", "q2", "full")), 3, 0.0)
        branch_s = rng.choice((None, None, 0.2, 1.0))
        status = await self.at(
            seat,
            f"start {story.xid}",
            lambda: session.start(story.xid, timeout_s=branch_s, deadline_s=CALL_S),
        )
        if status != XaStatus.OK:
            return
        story.work = self.storm.log.ledger.branches.get(story.xid)
        if not await self.work(seat, session, story, got, rng):
            return
        if rng.random() < 0.1:
            return  # left idle, until its time-out
        await self.finish(story, rng)

    def _xid(self, rng: random.Random) -> Xid:
        free = self.storm.free_xids
        if free and rng.random() < 0.3:
            self.marks["xid used again"] += 1
            return free.pop(rng.randrange(len(free)))
        self.storm.tags += 1
        return Xid(FORMAT, b"%d" % self.storm.tags, b"%d" % (self.storm.tags % 3))

    async def work(
        self, seat: Seat, session: Any, story: Story, got: tuple[Any, ...], rng: random.Random
    ) -> bool:
        """What sessions do in it; whether they have ended it well."""
        xid = story.xid
        if rng.random() < 0.85:
            await self._put(seat, session, story, rng)
        if got:
            await self.at(seat, f"accept in {xid}", lambda: session.accept(*got, timeout_s=CALL_S))
        if rng.random() < 0.2:
            status = await self._end(seat, session, xid, suspend=True)
            if status != XaStatus.OK:
                return False
            self.marks["branch suspended"] += 1
            if rng.random() < 0.4:
                # Something else in between, in the same session.
                await self.one(seat, session, rng)
            resumed = await self.at(
                seat,
                f"resume {xid}",
                lambda: session.start(xid, resume=True, deadline_s=CALL_S),
            )
            self.marks["branch resumed"] += resumed == XaStatus.OK
            if resumed != XaStatus.OK:
                return False
            await self._put(seat, session, story, rng)
        if rng.random() < 0.25:
            await self._join(story, rng)
        if rng.random() < 0.15:
            await self._hurry(story, rng)
        fails = rng.random() < 0.06
        status = await self._end(seat, session, xid, fail=fails)
        return bool(status == XaStatus.OK)

    async def _put(self, seat: Seat, session: Any, story: Story, rng: random.Random) -> None:
        for _ in range(rng.choice((1, 1, 2))):
            queue = rng.choice(("q1", "q2", "full", "drop", "side"))
            messages = self.messages(story, rng.randint(1, max(1, self.plan.rows // 2)))
            await self.at(
                seat,
                f"publish in {story.xid}",
                partial(session.publish, queue, messages, timeout_s=CALL_S),
            )

    async def _end(self, seat: Seat, session: Any, xid: Xid, **how: bool) -> Any:
        return await self.at(
            seat, f"end {xid} {how}", lambda: session.end(xid, **how, deadline_s=CALL_S)
        )

    async def _join(self, story: Story, rng: random.Random) -> None:
        """Another session, on any node, works in it too."""
        seat = self.storm.any_seat(rng)
        if seat is None:
            return
        other = await self.opened(seat, "dtx")
        try:
            status = await self.at(
                seat,
                f"join {story.xid}",
                lambda: other.start(story.xid, join=True, deadline_s=CALL_S),
            )
            if status == XaStatus.OK:
                self.marks["branch joined"] += 1
                await self._put(seat, other, story, rng)
                if rng.random() < 0.9:
                    await self._end(seat, other, story.xid)
        except Refused:
            self.marks["join refused"] += 1
        await self.closed(seat, other)

    async def _hurry(self, story: Story, rng: random.Random) -> None:
        """The branch is to be decided, and a session has not ended its work in it: refused."""
        seat, xid = self.storm.any_seat(rng), story.xid
        if seat is None:
            return
        dtx = seat.api.dtx
        name, call = rng.choice(
            (
                ("prepare", partial(dtx.prepare, xid, timeout_s=CALL_S)),
                ("commit", partial(dtx.commit, xid, True, timeout_s=CALL_S)),
                ("roll back", partial(dtx.rollback, xid, timeout_s=CALL_S)),
            )
        )
        try:
            await self.at(seat, f"{name} {xid} too early", call)
        except IllegalState:
            self.marks["told to wait for the branch's sessions"] += 1

    # --- deciding ---

    async def finish(self, story: Story, rng: random.Random) -> None:
        """One phase or two; or it is left to whoever recovers it."""
        seat = self.storm.any_seat(rng)
        if seat is None:
            return
        if rng.random() < 0.2:
            await self.decide(story, "commit", rng, one_phase=True)
            return
        api, timeout_s = seat.api, self.timeout_s(rng)
        status = await self.at(
            seat,
            f"prepare {story.xid}",
            lambda: api.dtx.prepare(story.xid, timeout_s=timeout_s),
            timeout_s,
        )
        work = work_of(story, self.storm.log.ledger)
        if status == XaStatus.OK and (work is None or not work.promised):
            self.storm.violated("answers are true", [f"{story} is prepared, and it is {work}"])
        if status == XaStatus.RDONLY:
            self.marks["told RDONLY"] += 1
            return
        commits = status == XaStatus.OK and rng.random() < 0.75
        # From here on it is decided, whoever does it.
        self.storm.journal[story.xid] = (story, commits)
        if status == XaStatus.OK and rng.random() < self.plan.abandon_share:
            self.storm.left_behind.append(story.xid)
            return
        if rng.random() < 0.3:
            await asyncio.sleep(rng.uniform(0.05, 1.0))
        if status == XaStatus.RBTIMEOUT:
            self.ended(story, "rolled back")
            return
        await self.decide(story, "commit" if commits else "roll back", rng)

    async def decide(
        self, story: Story, verdict: str, rng: random.Random, *, one_phase: bool = False
    ) -> None:
        """Tell it to any node until one answers; else it is left behind."""
        for _ in range(TRIES):
            seat = self.storm.any_seat(rng)
            if seat is not None:
                try:
                    if await self.decide_at(seat, story, verdict, one_phase):
                        return
                except EXCUSED as error:
                    if one_phase and isinstance(error, Refused):
                        return
            await asyncio.sleep(0.15)
        self.storm.left_behind.append(story.xid)

    async def decide_at(self, seat: Seat, story: Story, verdict: str, one_phase: bool) -> bool:
        """Whether it is over now."""
        xid, dtx, ledger = story.xid, seat.api.dtx, self.storm.log.ledger
        work = work_of(story, ledger)
        promised = work is not None and bool(work.promised)

        def call() -> Any:
            if verdict == "commit":
                return dtx.commit(xid, one_phase, timeout_s=CALL_S)
            return dtx.rollback(xid, timeout_s=CALL_S)

        try:
            status = await self.at(seat, f"{verdict} {xid}", call)
        except UnknownXid:
            self._gone(story, work, verdict, promised and not one_phase)
            return True
        if status == XaStatus.OK:
            self.ended(story, "committed" if verdict == "commit" else "rolled back")
            self.free(xid)
            return True
        if status in ROLLED_BACK:
            if promised and verdict == "commit" and not one_phase:
                text = f"{story} was promised, and is told {status!r}: {work}"
                self.storm.violated("prepared is a promise", [text])
            self.ended(story, "rolled back")
            return True
        if status in HEURISTIC:
            self.marks[f"told {status.name}"] += 1
            await self.forget(seat, story, work, status)
            return True
        return False

    def _gone(self, story: Story, work: Work | None, verdict: str, promised: bool) -> None:
        """It is not there any more: somebody told it, and heard no answer."""
        right = ("committed",) if verdict == "commit" else ("rolled back", "failed")
        by_operator = work is not None and work.cause == "operator"
        if promised and not by_operator and (work is None or work.state not in right):
            text = f"{story} was to {verdict}, and is gone: {work}"
            self.storm.violated("prepared is a promise", [text])
        if work is not None and work.state in ("committed", "rolled back"):
            self.ended(story, work.state)
        self.free(story.xid)

    async def forget(self, seat: Seat, story: Story, work: Work | None, status: XaStatus) -> None:
        """The coordinator takes note of what an operator did."""
        expected = "heuristically " + ("committed" if status == XaStatus.HEURCOM else "rolled back")
        if work is None or work.state != expected:
            text = f"{story} is told {status!r}, and it is {work}"
            self.storm.violated("answers are true", [text])
        story.outcome = "committed" if status == XaStatus.HEURCOM else "rolled back"
        for _ in range(TRIES):
            try:
                await self.at(
                    seat,
                    f"forget {story.xid}",
                    lambda: seat.api.dtx.forget(story.xid, timeout_s=CALL_S),
                )
                self.free(story.xid)
                return
            except UnknownXid:
                return
            except EXCUSED:
                await asyncio.sleep(0.1)
        self.storm.left_behind.append(story.xid)

    def free(self, xid: Xid) -> None:
        """It may be used again, by a branch that has nothing to do with this one."""
        if xid not in self.storm.free_xids and xid not in self.storm.left_behind:
            self.storm.free_xids.append(xid)


class Recoverers(Coordinators):
    """Whoever finds branches that nobody decides."""

    kind = "recoverer"

    @property
    def count(self) -> int:
        return 1

    async def act(self, rng: random.Random, number: int) -> None:
        await asyncio.sleep(RECOVER_S)
        seat = self.storm.any_seat(rng)
        if seat is not None:
            await self.recover(seat, rng, 0.5)

    async def recover(self, seat: Seat, rng: random.Random, share: float) -> None:
        """Ask a node what is in doubt, and decide what was left behind."""
        ledger = self.storm.log.ledger
        began = self.storm.log.index
        promised = [each for each in ledger.open if each.state == "prepared"]
        branches = await self.at(seat, "recover", lambda: seat.api.dtx.recover(timeout_s=CALL_S))
        found = check_recovered(branches, promised, began, ledger)
        self.storm.violated("in-doubt branches are found", found)
        for branch in branches:
            if branch.xid in self.storm.left_behind and rng.random() < share:
                story, commits = self._journal(branch.xid)
                if await self.decide_at(seat, story, "commit" if commits else "roll back", False):
                    self.marks["recovered and decided"] += 1
                    if branch.xid in self.storm.left_behind:
                        self.storm.left_behind.remove(branch.xid)

    def _journal(self, xid: Xid) -> tuple[Story, bool]:
        """What the journal says of the branch that has the xid now; of a strange one: nothing."""
        work = self.storm.log.ledger.branches.get(xid)
        story, commits = self.storm.journal.get(xid, (None, False))
        if story is None or (story.work is not None and story.work is not work):
            return Story(0, "dtx", "", xid=xid, work=work), False
        return story, commits

    async def decide_all(self, rng: random.Random) -> None:
        """In peace: every branch is decided, and every xid is free."""
        ledger = self.storm.log.ledger
        while ledger.branches:
            for seat in self.storm.all_seats():
                try:
                    await self.recover(seat, rng, 1.0)
                except (*EXCUSED, HostCrashed):
                    continue
                for xid, work in list(ledger.branches.items()):
                    story, commits = self._journal(xid)
                    verdict = "commit" if commits and work.promised else "roll back"
                    try:
                        await self.decide_at(seat, story, verdict, False)
                    except EXCUSED:
                        continue
            await asyncio.sleep(0.1)

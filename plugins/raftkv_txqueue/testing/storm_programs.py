"""What all programs of a storm have in common: a way to a node, and a story of what was answered.

A program is outside of all nodes: it asks one of them, waits, asks another one. Each call is one
`at`, made on the node where its session lives, and written down while it is under way, so that
nobody waits for ever. A node that dies takes its sessions and calls with it; the program lives on,
and does something else.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from raftkv.errors import NodeFault, NotApplied, OutcomeUnknown, Refused
from raftkv.testing.host import HostCrashed
from raftkv.testing.storm_worlds import EXCUSED
from raftkv_txqueue.commands import Kind, Message
from raftkv_txqueue.errors import TransactionAborted
from raftkv_txqueue.refusals import SessionEnded
from raftkv_txqueue.times import timed

from .storm_answers import Story, check_fate, check_story

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["GRACE_S", "Programs"]

# After its time-out a call may take so much longer, besides the faults of its own node.
GRACE_S = 10.0
# Asking for an outcome, until somebody knows.
ASKS = 4
ASK_S = 1.0
CALL_S = 3.0

Work = Callable[[], Awaitable[Any]]


class Programs:
    """One kind of programs of one run."""

    kind = "program"

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.plan = storm.plan
        self.marks = storm.marks
        self.running = False

    def start(self) -> None:
        """Let them live."""
        self.running = True
        for number in range(self.count):
            self.storm.world.spawn(self._live(number), f"{self.kind}{number}")

    def stop(self) -> None:
        """Nothing new is begun."""
        self.running = False

    @property
    def count(self) -> int:
        """How many there are."""
        return 1

    async def act(self, rng: random.Random, number: int) -> None:
        """What one of them does again and again."""
        raise NotImplementedError(f"{type(self).__name__}.act")

    async def _live(self, number: int) -> None:
        rng = random.Random(f"{self.plan.seed}/{self.kind}{number}")
        while True:
            await asyncio.sleep(rng.expovariate(1 / self.plan.pause_s))
            if not self.running:
                return
            self.storm.acting += 1
            try:
                await self.act(rng, number)
            except EXCUSED:
                continue
            finally:
                self.storm.acting -= 1

    # --- calls ---

    async def at(
        self,
        seat: Seat,
        what: str,
        work: Work,
        timeout_s: float = CALL_S,
        patience_s: float | None = None,
    ) -> Any:
        """Do it on the node. Raises what it raised, or HostCrashed."""
        storm = self.storm
        if not storm.is_seated(seat):
            raise HostCrashed(f"{seat.name} died before it was asked")

        async def bounded() -> Any:
            async with asyncio.timeout(patience_s):
                return await work()

        key = storm.calls_made = storm.calls_made + 1
        storm.calls[key] = (f"{what} on {seat.name}", storm.world.loop.now, timeout_s)
        try:
            return await storm.world.call(seat.name, bounded())
        except EXCUSED as error:
            self.marks[f"raised {type(error).__name__}"] += 1
            if isinstance(error, SessionEnded) and error.cause:
                self._check_cause(error)
            raise
        finally:
            del storm.calls[key]

    def _check_cause(self, error: SessionEnded) -> None:
        """Who is said to have ended a session has done it."""
        life = self.storm.log.ledger.sessions.get(error.session)
        self.marks[f"told that it was ended by {error.cause}"] += 1
        if life is None or life.ended_by != error.cause:
            self.storm.violated("answers are true", [f"{error}, and {life}"])

    def timeout_s(self, rng: random.Random) -> float:
        return rng.choice(self.plan.timeouts_s) * rng.uniform(0.8, 1.2)

    # --- stories ---

    def story(self, kind: str, seat: Seat, **more: Any) -> Story:
        """A new one."""
        stories = self.storm.stories
        story = Story(len(stories) + 1, kind, seat.name, began=self.storm.world.loop.now, **more)
        stories.append(story)
        return story

    def messages(self, story: Story, count: int, calm: bool = False) -> list[Message]:
        """New ones, which belong to the story. `calm`: they have no times."""
        made = []
        for _ in range(count):
            self.storm.tags += 1
            tag = b"%d" % self.storm.tags
            story.tags.append(tag)
            message = Message(
                tag + b"/" + b"x" * (self.storm.tags % 7), (("of", str(story.number)),)
            )
            made.append(message if calm else timed(message, *self._times()))
        return made

    def _times(self) -> tuple[float | None, float | None]:
        """A time to live and a delay, of few messages."""
        rng = random.Random(f"{self.plan.seed}/times {self.storm.tags}")
        share = self.plan.timed_share
        ttl_s = rng.choice((0.05, 0.3, 1.0)) if rng.random() < share else None
        delay_s = rng.choice((0.05, 0.3, 1.0)) if rng.random() < share else None
        return ttl_s, delay_s

    def ended(self, story: Story, outcome: str, error: BaseException | None = None) -> None:
        """The program was answered, or not; what it was told must be true."""
        story.outcome, story.ended = outcome, self.storm.world.loop.now
        story.error = type(error).__name__ if error is not None else ""
        self.marks[f"answered {outcome}"] += 1
        found = check_story(story, self.storm.log.ledger)
        self.storm.violated("answers are true", found)

    def failed(self, story: Story, error: BaseException) -> str:
        """The outcome that an error means."""
        if isinstance(error, TransactionAborted):
            outcome = "aborted"
        elif isinstance(error, HostCrashed | NodeFault):
            outcome = "died"
        elif isinstance(error, TimeoutError):
            outcome = "given up"
        elif isinstance(error, OutcomeUnknown):
            outcome = "unknown"
        elif isinstance(error, NotApplied):
            outcome = "not applied"
        elif isinstance(error, Refused):
            outcome = "refused"
        else:
            outcome = "unknown"
        self.ended(story, outcome, error)
        return outcome

    async def ask(self, txid: str, rng: random.Random) -> str:
        """What became of a TX whose program does not know; "": nobody says."""
        for _ in range(ASKS):
            seat, ledger = self.storm.any_seat(rng), self.storm.log.ledger
            if seat is not None:
                try:
                    decided = ledger.is_decided(txid)
                    fate = await self.at(
                        seat,
                        f"outcome of {txid}",
                        partial(seat.api.outcome, txid, timeout_s=ASK_S),
                        ASK_S,
                    )
                except EXCUSED:
                    fate = None
                if fate is not None:
                    self.marks[f"asked: {fate.state}"] += 1
                    found = check_fate(txid, fate, decided, ledger)
                    self.storm.violated("answers are true", found)
                    if fate.state in ("committed", "rolled back", "forgotten"):
                        return str(fate.state)
            await asyncio.sleep(0.1)
        return ""

    async def opened(self, seat: Seat, kind: Kind) -> Any:
        """A session on the node."""
        session = await self.at(
            seat, f"open {kind}", lambda: seat.api.session(kind, timeout_s=CALL_S)
        )
        self.storm.sessions.append((seat, session))
        return session

    async def closed(self, seat: Seat, session: Any) -> None:
        """It ends; nothing is said if it cannot be told."""
        try:
            await self.at(seat, f"close {session.id}", lambda: session.close(timeout_s=CALL_S))
        except SessionEnded:
            self.marks["closed twice"] += 1
        except EXCUSED:
            return
        self.storm.sessions = [each for each in self.storm.sessions if each[1] is not session]

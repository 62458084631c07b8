"""The writers of a storm of the limbo: what they submit, what they are answered, and when.

Each writer submits a few transactions in one turn of the loop, mostly at the owner, and waits for
none of them before it goes on. What is answered is written down in the very step in which the node
has it: a crash after that has answered, a crash before that has not. It is compared with the log at
once, and once more in the end.

**Nobody starves.** Every submission is answered within the time that its caller gave it and a grace
(`Writers.overdue`), for what the nemesis may do to the node itself meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from raftkv.errors import NodeFault, NotApplied, OutcomeUnknown, Refused
from raftkv.testing.host import HostCrashed
from raftkv.testing.storm_worlds import EXCUSED
from raftkv_limbo.commands import Condition, Write
from raftkv_limbo.errors import RolledBack, StillPending
from raftkv_limbo.submission import Submission

from .storm_answers import NOTHING_HAPPENED, Story, check_story, check_version
from .storm_plan import KEYS, SPACES

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["Writers"]

# After its deadline a submission may take so much longer, besides the faults of its own node.
GRACE_S = 10.0
# In peace.
CALM_S = 10.0
# Of those that were confirmed, so many look at once whether they are there.
LOOK_SHARE = 0.3
# A space that is not there, now and then.
STRANGE = "nowhere"


class Writers:
    """All writers of one run."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self._world = storm.world
        self._plan = storm.plan
        self._marks = storm.marks
        self.running = False
        self.stories: list[Story] = []
        self._open: dict[int, Story] = {}
        # Calls of each process: (node, boots) -> how many.
        self._turns: dict[tuple[str, int], int] = {}

    def start(self) -> None:
        self.running = True
        for number in range(self._plan.writers):
            self._world.spawn(self._live(number), f"writer{number}")

    def stop(self) -> None:
        """Nothing new is submitted."""
        self.running = False

    @property
    def under_way(self) -> list[Story]:
        """Submissions that have not been answered."""
        return list(self._open.values())

    def overdue(self) -> list[str]:
        """Submissions that should have been answered by now."""
        longest_s = self._plan.scenario.duration_s[1]
        now = self._world.loop.now
        return [
            f"{story} has no answer after {now - story.began:.1f} s"
            for story in self._open.values()
            if now > story.began + story.timeout_s + GRACE_S + longest_s
        ]

    # --- one writer ---

    async def _live(self, number: int) -> None:
        rng = random.Random(f"{self._plan.seed}/writer{number}")
        while True:
            await asyncio.sleep(rng.expovariate(1 / self._plan.pause_s))
            if not self.running:
                return
            seat = self._storm.owner_seat() if rng.random() < self._plan.owner_share else None
            seat = seat or self._storm.any_seat(rng)
            if seat is None:
                continue
            for _ in range(rng.randint(1, self._plan.burst)):
                self.submit(seat, self._story(seat, rng), rng)

    def submit(self, seat: Seat, story: Story, rng: random.Random) -> None:
        """Let it go; its answer is written down whenever it comes."""
        patience_s = None
        if rng.random() < self._plan.vanish_share:
            patience_s = story.timeout_s * rng.choice((0.001, 0.1, 0.5))
        looks = rng.random() < LOOK_SHARE
        self._open[story.number] = story
        self._world.spawn(self._ask(seat, story, patience_s, looks), "writer")

    async def _ask(self, seat: Seat, story: Story, patience_s: float | None, looks: bool) -> None:
        try:
            if not self._storm.is_seated(seat):
                raise HostCrashed(f"{seat.name} died before it was asked")
            await self._world.call(seat.name, self._asked(seat, story, patience_s, looks))
        except HostCrashed:
            story.outcome = story.outcome or "died"
        finally:
            del self._open[story.number]

    async def _asked(self, seat: Seat, story: Story, patience_s: float | None, looks: bool) -> None:
        """On the node: submit, and write down in the same step what that was answered."""
        life = (seat.name, seat.boots)
        story.turn = self._turns[life] = self._turns.get(life, 0) + 1
        try:
            async with asyncio.timeout(patience_s):
                self._told(story, await self._verdict(seat, story))
        except TimeoutError:
            story.outcome = "given up"
        except NodeFault as error:
            story.outcome, story.error = "died", type(error).__name__
        except EXCUSED as error:
            self._raised(story, error)
        story.ended = self._world.loop.now
        self._marks[f"answered {story.outcome}"] += 1
        self._marks["answered to a replicant"] += seat.host.role == "replicant"
        ledger = self._storm.log.ledger
        self._storm.violated("answers are true", check_story(story, ledger))
        if story.outcome == "confirmed" and looks:
            await self._look(seat, story)
        elif story.outcome == "still pending" and looks:
            await self._wait_on(seat, story)

    async def _wait_on(self, seat: Seat, story: Story) -> None:
        """Ask for the verdict, as the error says; what is told then must be it."""
        try:
            told = await seat.api.wait_verdict(story.position, timeout_s=story.timeout_s)
        except EXCUSED:
            return
        position = self._storm.log.ledger.positions[story.position]
        self._marks[f"asked for the verdict: {told.fate}"] += 1
        right: tuple[Any, ...] = (position.fate, position.reason, position.by)
        answer: tuple[Any, ...] = (told.fate, told.reason, told.by)
        if told.fate == "confirmed":
            # Of what was confirmed before format 2, or long ago, no record is kept.
            right = (position.fate, position.record if told.index else told.index)
            record = (told.index, told.at_ms, told.cause, told.by, told.upto)
            answer = (told.fate, record if told.index else told.index)
        if told.fate != "forgotten" and answer != right:
            self._storm.violated("answers are true", [f"{story}, asked again: {told}, and {right}"])

    async def _verdict(self, seat: Seat, story: Story) -> Any:
        """The receipt, by one of the ways in which callers get one."""
        given: dict[str, Any] = {
            "conditions": list(story.conditions),
            "order": story.order,
            "wait": story.wait,
            "timeout_s": story.timeout_s,
        }
        answer = await seat.api.submit(list(story.writes), **given)
        if not isinstance(answer, Submission):
            return answer
        if story.number % 3 == 0:
            return answer.now
        if story.number % 3 == 1:
            return await answer.receipt(story.timeout_s)
        return await answer.verdict(story.timeout_s)

    def _told(self, story: Story, receipt: Any) -> None:
        story.outcome, story.position = receipt.state, receipt.position
        story.term = receipt.term

    def _raised(self, story: Story, error: Exception) -> None:
        story.error = type(error).__name__
        if isinstance(error, RolledBack):
            story.outcome, story.position = "rolled back", error.position
            story.reason, story.by = error.reason, error.by
        elif isinstance(error, StillPending):
            story.outcome, story.position = "still pending", error.position
        elif isinstance(error, OutcomeUnknown):
            story.outcome = "unknown"
        elif isinstance(error, NotApplied):
            story.outcome = "not applied"
        elif isinstance(error, Refused):
            story.outcome = "refused"
        else:
            story.outcome = "unknown"
        self._marks[f"raised {story.error}"] += 1

    async def _look(self, seat: Seat, story: Story) -> None:
        """What was confirmed here is there for a reader here."""
        ledger = self._storm.log.ledger
        write = story.writes[0]
        key = (write.space, write.key)
        history = ledger.history(key)
        written = None if write.value is None else (write.value, story.position)
        since = history.index(written) if written in history else 0
        try:
            row = await seat.api.get(write.space, write.key, view="confirmed", timeout_s=1.0)
        except EXCUSED:
            return
        read = None if row is None else (row.value, row.position)
        _, found = check_version(key, read, since, ledger)
        self._storm.violated("what is confirmed is there", [f"after {story}: {t}" for t in found])

    # --- what is submitted ---

    def _story(self, seat: Seat, rng: random.Random) -> Story:
        plan = self._plan
        number = len(self.stories) + 1
        spaces = self._spaces(seat, rng)
        writes: dict[tuple[str, bytes], Write] = {}
        for place in range(rng.choice((1, 1, 1, 2, 3))):
            space, key = rng.choice(spaces), rng.choice(KEYS)
            # The first one writes, so that the submission is known by its number.
            value = None if place and rng.random() < 0.4 else b"%d/%d" % (number, place)
            writes.setdefault((space, key), Write(space, key, value))
        conditions: tuple[Condition, ...] = ()
        if rng.random() < plan.condition_share:
            conditions = (self._condition(rng.choice(spaces), rng.choice(KEYS), rng),)
        sync = any(self._storm.log.ledger.spaces.get(each.space) for each in writes.values())
        independent = rng.random() < (0.02 if sync else 0.4)
        story = Story(
            number=number,
            node=seat.name,
            boots=seat.boots,
            wait=rng.choices(list(plan.waits), list(plan.waits.values()))[0],
            order="independent" if independent else "ordered",
            writes=tuple(writes.values()),
            conditions=conditions,
            timeout_s=rng.choice(plan.timeouts_s) * rng.uniform(0.8, 1.2),
            began=self._world.loop.now,
        )
        self.stories.append(story)
        return story

    def _spaces(self, seat: Seat, rng: random.Random) -> list[str]:
        """Of one kind, and now and then of both."""
        known = {**SPACES, **self._storm.log.ledger.spaces}
        draw = rng.random()
        if draw < 0.02:
            return [STRANGE]
        if draw < 0.1:
            return list(known)
        wanted = rng.random() < self._plan.sync_share
        return [name for name, sync in known.items() if sync == wanted] or list(known)

    def _condition(self, space: str, key: bytes, rng: random.Random) -> Condition:
        """Mostly one that may hold: what is there now, or what is to come."""
        ledger = self._storm.log.ledger
        row = ledger.pending_rows().get((space, key), ledger.rows.get((space, key)))
        if rng.random() < 0.3:
            row = rng.choice(ledger.history((space, key)))
        kind = rng.choice(("value", "position", "exists"))
        if kind == "value":
            return Condition(space, key, "value", None if row is None else row[0])
        if kind == "position":
            return Condition(space, key, "position", None, 0 if row is None else row[1])
        return Condition(space, key, "exists", None, int(row is not None))

    # --- in peace ---

    async def write_once_more(self, seat: Seat) -> None:
        """After healing, at the owner: to each space, and all is confirmed."""
        for space in list(self._storm.log.ledger.spaces):
            story = self._plain(seat, space)
            self._open[story.number] = story
            await self._ask(seat, story, None, True)
            if story.outcome != "confirmed":
                self._storm.violated("all is well after healing", [str(story)])

    async def be_refused(self, seat: Seat) -> None:
        """After healing, elsewhere: nothing enters."""
        story = self._plain(seat, next(iter(SPACES)))
        self._open[story.number] = story
        await self._ask(seat, story, None, False)
        if story.outcome not in NOTHING_HAPPENED:
            self._storm.violated("all is well after healing", [str(story)])

    def _plain(self, seat: Seat, space: str) -> Story:
        number = len(self.stories) + 1
        story = Story(
            number=number,
            node=seat.name,
            boots=seat.boots,
            wait="complete",
            order="ordered",
            writes=(Write(space, KEYS[0], b"%d/calm" % number),),
            conditions=(),
            timeout_s=CALM_S,
            began=self._world.loop.now,
        )
        self.stories.append(story)
        return story

"""The callers of a storm of calls: what they ask, what they are answered, and when.

Each caller calls through any node, waits for its answer, rests, and calls again; some give up in
the middle. What is answered is written down in the very step in which the node has it: a crash
after that has answered, a crash before that has not. It is compared with the log at once.

**Nobody starves.** Every call is answered within the time that its caller gave it and a grace
(`Callers.overdue`): for the log to say what became of what had run, and for what the nemesis may do
to the node itself meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from raftkv.errors import NodeFault, NotApplied, RaftkvError, Refused
from raftkv.testing.host import HostCrashed

from .storm_runs import Story, check_required, check_story
from .storm_works import Asked

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["EXCUSED", "Callers"]

# What a call to a node may end in while the world is at war. Anything else is a defect.
EXCUSED = (RaftkvError, HostCrashed, NodeFault)
# Few, so that calls write over each other's; the last one is what counts.
KEYS = 4
# After its deadline a call may take so much longer, besides the faults of its own node: the limits
# of what it waits for (options.py: settle_grace_s, cancel_grace_s, forward_wait_s), and a margin.
GRACE_S = 15.0
# A call in peace.
CALM_S = 20.0


class Callers:
    """All callers of one run."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self._world = storm.world
        self._plan = storm.plan
        self._rng = random.Random(f"{storm.plan.seed}/callers")
        self.running = False
        self.stories: list[Story] = []
        self._open: dict[int, Story] = {}

    def start(self) -> None:
        """As many as the plan has, for each node that there is now."""
        self.running = True
        for number in range(self._plan.callers * len(self._storm.cluster.names)):
            self._world.spawn(self._live(number), f"caller{number}")

    def stop(self) -> None:
        """Nothing new is called."""
        self.running = False

    @property
    def under_way(self) -> list[Story]:
        """Calls that have not been answered."""
        return list(self._open.values())

    def overdue(self) -> list[str]:
        """Calls that should have been answered by now."""
        longest_s = self._plan.scenario.duration_s[1]
        now = self._world.loop.now
        return [
            f"{story} has no answer after {now - story.began:.1f} s"
            for story in self._open.values()
            if now > story.began + story.timeout_s + GRACE_S + longest_s
        ]

    # --- one caller ---

    async def _live(self, number: int) -> None:
        rng = random.Random(f"{self._plan.seed}/caller{number}")
        plan = self._plan
        while True:
            await asyncio.sleep(rng.expovariate(1 / plan.pause_s))
            if not self.running:
                return
            seat = self._storm.any_seat(rng)
            if seat is None:
                continue
            names = list(plan.functions)
            function = rng.choices(names, [plan.functions[name] for name in names])[0]
            story = self._story(function, seat, rng)
            if function == "picky" and rng.random() < plan.picky_share:
                self._storm.works.refused.add(story.number)
            patience_s = None
            if rng.random() < plan.vanish_share:
                patience_s = rng.uniform(0.001, 1.0)
            await self._ask(story, seat, self._asked(story, seat, patience_s))

    def _story(self, function: str, seat: Seat, rng: random.Random) -> Story:
        others = [name for name in self._storm.cluster.names if name != seat.host.name]
        required: Any = rng.choices(("all", "number", "names"), (5, 4, 1))[0]
        if required == "number":
            required = rng.randint(1, 1 + len(others))
        elif required == "names":
            required = tuple(sorted(rng.sample(others, min(len(others), 1))))
        story = Story(
            number=len(self.stories) + 1,
            node=seat.host.name,
            function=function,
            required=required or "all",
            timeout_s=rng.choice(self._plan.timeouts_s) * rng.uniform(0.8, 1.2),
            began=self._world.loop.now,
        )
        self.stories.append(story)
        return story

    async def _ask(self, story: Story, seat: Seat, work: Coroutine[Any, Any, None]) -> None:
        self._open[story.number] = story
        try:
            await self._world.call(seat.host.name, work)
        except HostCrashed:
            story.outcome = story.outcome or "died"
        finally:
            del self._open[story.number]

    async def _asked(self, story: Story, seat: Seat, patience_s: float | None) -> None:
        """On the node: call, and write down in the same step what that was answered."""
        asked = Asked(story.number, f"key{story.number % KEYS}")
        # A node that knows the newer version calls it.
        try:
            async with asyncio.timeout(patience_s):
                answer = await seat.api.call(
                    story.function, asked, required=story.required, timeout_s=story.timeout_s
                )
        except TimeoutError:
            story.outcome = "given up"
            self._storm.marks["caller gave up"] += 1
        except EXCUSED as error:
            story.outcome, story.error = type(error).__name__, str(error)
            story.nothing_ran = isinstance(error, NotApplied | Refused)
            self._storm.marks[f"raised {story.outcome}"] += 1
        else:
            story.outcome, story.id = answer.outcome, answer.id
            story.result, story.nodes = answer.result, tuple(answer.nodes)
            story.error = "" if answer.error is None else answer.error.kind
            self._storm.marks[f"answered {story.outcome}"] += 1
        story.ended = self._world.loop.now
        if seat.host.role == "replicant":
            self._storm.marks["called on a replicant"] += 1
        self._judge(story)

    def _judge(self, story: Story) -> None:
        storm = self._storm
        runs = storm.works.by_number.get(story.number, [])
        found = check_story(story, runs, storm.log.ledger)
        storm.violated("answers are true", found)
        storm.violated("required nodes have executed it", check_required(story, storm.log.ledger))

    # --- in peace ---

    async def call_everywhere_once_more(self) -> None:
        """After healing: through each node, and all goes well."""
        for name in list(self._storm.cluster.names):
            seat = self._storm.seat(name)
            if seat is None:
                self._storm.violated("all is well after healing", [f"{name} is not up"])
                return
            await self.call_in_peace(seat, "all")

    async def call_in_peace(self, seat: Seat, required: str | int) -> None:
        """Two calls through this node, which succeed."""
        for function in ("note", "count"):
            story = self._story(function, seat, self._rng)
            story.required, story.timeout_s = required, CALM_S
            await self._ask(story, seat, self._asked(story, seat, None))
            if story.outcome != "ok":
                text = f"{story} {story.nodes} {story.error}"
                self._storm.violated("all is well after healing", [text])

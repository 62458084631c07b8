"""The clients of a connect storm: what they do, and what they are answered.

Each client id has a life of its own: connections come for it, one at a time and several at the same
instant, through any node; messages are published to it; it is disconnected, kicked, discarded; its
channel fails without a word or does not answer. Nothing waits for anything else, so that all of it
overlaps, also for one client id.

What a connect is answered, and what a channel accepts, is written down in the very step in which
the node has it: a crash after that has answered, a crash before that has not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from raftkv.errors import NodeFault, RaftkvError
from raftkv.testing.host import HostCrashed
from raftkv_lcr.modes import effective_mode
from raftkv_lcr.result import OpenedSession

from .broker import Session
from .storm_check import Story, check_answer, check_older

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["CALL_S", "EXCUSED", "PUBLISH", "REACH", "Clients"]

PUBLISH = "storm.publish"
# Answered by every node that has its plugins.
REACH = "storm.reach"
CALL_S = 2.0
REACH_S = 0.5
REACH_TRIES = 10
# Versions that connects bring: milliseconds of clocks that are ahead by up to so much, and coarse,
# so that some are equal.
SKEW_MS = 40
COARSE_MS = 10
# Channels end without a word only where sweeps come often enough to see them.
SWEPT_S = 5
# Where older connections are kept, a client goes away this often, so that others get in.
AWAY_SHARE = 0.2
# A message after healing: so often at most, 0.1 s apart.
PUBLISH_TRIES = 50
# What a call to a node may end in while the world is at war. Anything else is a defect.
EXCUSED = (RaftkvError, HostCrashed, NodeFault)


class Clients:
    """All clients of one run."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self._world = storm.world
        self._plan = storm.plan
        self._marks = storm.marks
        self._rng = random.Random(f"{storm.plan.seed}/lcr clients")
        self.names = [f"client{number}" for number in range(storm.plan.clients)]
        # Of those that stay connected where they are.
        self.staying: list[str] = []
        self.running = False
        # What was begun and has not ended.
        self.under_way = 0
        self.connects = 0
        self._messages = 0
        self._silent: list[asyncio.Event] = []

    def stop(self) -> None:
        """Nothing new is begun, and every channel answers again."""
        self.running = False
        for answering in self._silent:
            answering.set()

    def start(self) -> None:
        self.running = True
        for client in self.names:
            self._world.spawn(self._live(client), client)

    # --- one client ---

    async def _live(self, client: str) -> None:
        rng = random.Random(f"{self._plan.seed}/{client}")
        await self._storm.first_mode()
        while self.running:
            await asyncio.sleep(rng.expovariate(1 / self._plan.pause_s))
            if self.running:
                self._act(client, rng)

    def _act(self, client: str, rng: random.Random) -> None:
        if self._plan.keeps_older and rng.random() < AWAY_SHARE:
            self.leave(client)
            return
        draw = rng.random()
        if (draw := draw - 0.28) < 0:
            self._start(self._connect, client, rng)
        elif (draw := draw - 0.07) < 0:
            self._marks["several at the same instant"] += 1
            for _ in range(rng.randint(2, 5)):
                self._start(self._connect, client, rng)
        elif (draw := draw - 0.45) < 0:
            for _ in range(rng.randint(1, 4)):
                self._start(self._publish, client)
        elif (draw := draw - 0.07) < 0:
            self._start(self._disconnect, client)
        elif (draw := draw - 0.03) < 0:
            self._start(self._end_by_call, client, "kick")
        elif (draw := draw - 0.02) < 0:
            self._start(self._end_by_call, client, "discard")
        elif draw - 0.04 < 0:
            self._fall_silent(client, rng)
        elif self._plan.settings["sweep_interval_s"] <= SWEPT_S:
            self._fail(client)

    def _start(self, work: Callable[..., Coroutine[Any, Any, Any]], *given: Any) -> None:
        async def counted() -> None:
            try:
                await work(*given)
            finally:
                self.under_way -= 1

        self.under_way += 1
        self._world.spawn(counted(), "client")

    # --- connecting ---

    async def _connect(self, client: str, rng: random.Random) -> None:
        seat = self._storm.any_seat(rng)
        if seat is None:
            return
        plan, version, patience_s = self._plan, None, None
        story = self._story(client, seat, rng.random() < plan.clean_share)
        if rng.random() < plan.version_share:
            # The transport's clock: that of its node, up to SKEW_MS ahead of it, and coarse.
            now_ms = seat.host.runtime.wall_ms() + rng.randint(0, SKEW_MS)
            version = now_ms // COARSE_MS * COARSE_MS
        if rng.random() < plan.vanish_share:
            patience_s = rng.uniform(0.001, 1.0)
        try:
            await self._world.call(seat.host.name, self._opened(story, seat, version, patience_s))
        except EXCUSED as error:
            story.outcome = story.outcome or type(error).__name__
            self._marks["connect failed"] += 1

    async def stay(self, client: str, seat: Seat) -> bool:
        """Connect a client that then leaves it at that, with a message. Whether it is there."""
        if client not in self.staying:
            self.staying.append(client)
        self.leave(client)
        story = self._story(client, seat, clean=False)
        self.under_way += 1
        try:
            await self._world.call(seat.host.name, self._opened(story, seat, None, None))
        except EXCUSED as error:
            story.outcome = story.outcome or type(error).__name__
        finally:
            self.under_way -= 1
        if story.outcome != "ok" or self._storm.seat(seat.host.name) is not seat:
            return False
        self._messages += 1
        return self._storm.accept(seat, client, f"m{self._messages}")

    def _story(self, client: str, seat: Seat, clean: bool) -> Story:
        self.connects += 1
        story = Story(client, f"{client}.{self.connects}", seat.host.name, clean)
        if seat.host.incarnation:  # else its copy says nothing yet, and the session waits
            story.mode = effective_mode(seat.host.view()).mode
            story.outdated = self._has_ended(seat)
        self._storm.stories[story.channel] = story
        return story

    async def _opened(
        self, story: Story, seat: Seat, version: int | None, patience_s: float | None
    ) -> None:
        """On the node: connect, and write down in the same step what that was answered."""
        try:
            async with asyncio.timeout(patience_s):
                opened = await seat.broker.connect(
                    story.client, story.channel, clean_start=story.clean, version=version
                )
        except TimeoutError:
            story.outcome = "given up"
            self._marks["connect given up"] += 1
            return
        story.outcome, story.present = opened.outcome, opened.present
        story.content = opened.session is not None
        story.predecessor, story.handover = opened.predecessor, opened.handover
        story.failure = opened.failure or ""
        modes = (story.mode, effective_mode(seat.host.view()).mode)
        story.mode = "disabled" if "disabled" in modes else modes[1]
        if opened.outcome == "ok":
            story.row = opened.channel
            if story.row is not None and not story.row.ticket:
                story.mode = "disabled"  # it was the mode in between
            if not story.clean and opened.predecessor is None:
                living = self.living(story.client)
                story.beside = any(each.channel != story.channel for _, each in living)
            session = seat.broker.sessions[(story.client, story.channel)]
            ids = [message.id for message in session.content]
            story.inherited = tuple(ids[: len(ids) - len(story.accepted)])
        self._mark(story, opened)
        if story.mode == "disabled":
            # Of the old registry nothing is promised: what is wrong there is counted in the end.
            # But these connections began when it was another mode for all nodes.
            outdated = story.outdated or self._has_ended(seat)
            if self._plan.never_disabled and not outdated and opened.outcome == "ok":
                text = f"{story} was opened as if the mode were disabled"
                self._storm.violated("the mode is kept to", [text])
            return
        found = check_answer(story, self._storm.log.registry, self._storm.stories)
        self._storm.violated("answers are true", found)
        if self._plan.keeps_older:
            found = check_older(story, self._storm.stories)
            self._storm.violated("older connections are kept", found)

    def _has_ended(self, seat: Seat) -> bool:
        """Whether the log has ended this incarnation: then no change of the mode waits for it."""
        newest = max((each.host.view() for each in self._storm.all_seats()), key=lambda v: v.index)
        member = newest.members.get(seat.host.name)
        return member is None or not member.up or member.incarnation != seat.host.incarnation

    def _mark(self, story: Story, opened: OpenedSession) -> None:
        marks = self._marks
        if opened.outcome in ("outdated_early", "retries_exhausted"):
            marks[opened.outcome.replace("_", " ")] += 1
        marks["older connection kept"] += opened.outcome == "occupied"
        if opened.outcome == "ok":
            if opened.handover != "none":
                marks[f"handover {opened.handover}"] += 1
            if story.clean and opened.predecessor is not None:
                marks["clean start over a session"] += 1
            if story.mode == "disabled":
                marks["opened under disabled"] += 1

    # --- messages ---

    async def _publish(self, client: str) -> bool | None:
        """Through any node: look the owner up there, and call its node. None: nobody answered."""
        seat = self._storm.any_seat(self._rng)
        if seat is None:
            return None
        self._messages += 1
        owner = seat.api.lookup_local(client)
        if effective_mode(seat.host.view()).mode == "disabled":
            owner = seat.api.legacy.lookup_local(client)
        if owner is None:
            return None
        payload = msgspec.msgpack.encode((client, f"m{self._messages}"))
        call = seat.host.rpc.call(owner.node, PUBLISH, payload, CALL_S)
        try:
            return await self._world.call(seat.host.name, call) == b"yes"
        except EXCUSED:
            return None

    # --- ending ---

    def living(self, client: str) -> list[tuple[Seat, Session]]:
        """The sessions of the client that live anywhere."""
        found = [(seat, seat.broker.live(client)) for seat in self._storm.all_seats()]
        return [(seat, session) for seat, session in found if session is not None]

    def leave(self, client: str) -> None:
        """The client's connections break; the sessions stay."""
        for _, session in self.living(client):
            session.connected = self._storm.stories[session.channel].connected = False
            self._marks["client away"] += 1

    async def _disconnect(self, client: str) -> None:
        living = self.living(client)
        if not living:
            return
        seat, session = self._rng.choice(living)
        self._storm.stories[session.channel].ended = "disconnected"
        self._marks["disconnected"] += 1
        leaving = seat.broker.disconnect(client, session.channel)
        try:
            await self._world.call(seat.host.name, leaving)
        except EXCUSED:
            return

    async def _end_by_call(self, client: str, call: str) -> None:
        """Somebody who has the right to, through any node."""
        seat = self._storm.any_seat(self._rng)
        if seat is None:
            return
        self._may_end(client)
        manager = seat.broker.manager
        work = manager.kick(client, "by hand") if call == "kick" else manager.discard(client)
        try:
            if await self._world.call(seat.host.name, work):
                self._marks["kicked" if call == "kick" else "discarded"] += 1
        except EXCUSED:
            return
        finally:
            self._may_end(client)

    def _may_end(self, client: str) -> None:
        """An operator may have ended any channel of the client that is not known to have ended."""
        for story in self._storm.stories.values():
            if story.client == client:
                story.connected = False

    def _fail(self, client: str) -> None:
        """The channel's own process fails, and its broker does not say so to anybody."""
        for _, session in self.living(client)[:1]:
            self._storm.stories[session.channel].ended = "failed"
            session.closed_for = "failed"
            self._marks["ended without a word"] += 1

    def _fall_silent(self, client: str, rng: random.Random) -> None:
        """The channel does not answer one kind of question for a while."""
        for seat, session in self.living(client)[:1]:
            call = rng.choice(("begin", "end", "discard", "kick"))
            answering = seat.broker.hanging[(call, session.channel)] = asyncio.Event()
            self._silent.append(answering)
            self._marks["channel fell silent"] += 1
            self._world.loop.call_later(
                rng.uniform(0.1, 8.0), answering.set, context=self._world.context.copy()
            )

    # --- in peace ---

    async def reach_each_other(self) -> None:
        """Every node gets an answer from every other one.

        A link that has swallowed what was sent is closed after the first call that gets no answer,
        and a hand-over with a short time to answer would be that call.
        """
        seats = self._storm.all_seats()
        for seat in seats:
            for other in seats:
                if other is not seat:
                    await self._reach(seat, other.host.name)

    async def _reach(self, seat: Seat, other: str) -> None:
        for _ in range(REACH_TRIES):
            call = seat.host.rpc.call(other, REACH, b"", REACH_S)
            try:
                await self._world.call(seat.host.name, call)
            except EXCUSED:
                await asyncio.sleep(REACH_S)
            else:
                return

    async def connect_all_once_more(self) -> None:
        """After healing: each client through another node than its owner's, and all goes well."""
        for client in (*self.names, *self.staying):
            if self._plan.keeps_older:
                self.leave(client)
            former = self.living(client)
            besides = former[0][0].host.name if former else ""
            seat = self._storm.any_seat(self._rng, besides) or self._storm.any_seat(self._rng)
            if seat is None:
                self._storm.violated("all is well after healing", [f"{client}: no node is up"])
                return
            story = self._story(client, seat, clean=False)
            await self._world.call(seat.host.name, self._opened(story, seat, None, None))
            answered = (story.outcome, story.present, story.handover)
            expected = ("ok", bool(former), "complete" if former else "none")
            if answered != expected:
                text = f"{story}: {answered} {story.failure}, expected {expected}"
                self._storm.violated("all is well after healing", [text])
            # Some node may not have heard yet who is the owner.
            accepted, tries = False, 0
            while not accepted and tries < PUBLISH_TRIES:
                accepted, tries = bool(await self._publish(client)), tries + 1
                await asyncio.sleep(0.1)
            if not accepted:
                text = f"{story}: no message was accepted"
                self._storm.violated("all is well after healing", [text])

"""The end of a storm of regions: what must be true when all is healed and nobody acts any more.

1. All regions have the same messages, but for holes that they were told of.
2. A consumer goes from region to region in peace: nothing comes twice, and nothing is left out.
3. Every subscription is consumed to its end in one region, through the API: exactly what it wanted
   is handed out. Then the others want nothing of it either (in snapshot mode: of what its mark has
   passed with the last snapshot), and are consumed to their ends, too.
4. Every mark is where it should be; the nodes of each region have equal states, and sound ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial
from typing import TYPE_CHECKING, Any

from raftkv.testing.storm_worlds import EXCUSED
from raftkv_subscriptions.rows import Kind

from .storm_ledger import Number, SubBook
from .storm_programs import SUBS
from .storm_sets import lacking

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["Ending"]

# Bounds, in virtual seconds.
PROGRAMS_S = 60.0
SAME_S = 90.0
DRAIN_S = 90.0
# What found no room in a set is sent again every 30 s: three times.
ARRIVAL_S = 100.0
CONVERGE_S = 30.0
# How late the last messages of one region come to another one.
LATE_S = 0.5
# Topics in which something new can always be published at the end.
PUBLISHED = ("plain", "short", "keys")


class Ending:
    """Of one storm."""

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self._rng = random.Random(f"{storm.plan.seed}/ending")
        # When a narrow topic is emptied again.
        self._rooms = 0.0
        # Consumers that are to be closed, whatever was refused to them.
        self._left: list[tuple[Seat, Any]] = []

    def conclude(self) -> None:
        self.storm.finish(self.storm.consumers.close_all(), PROGRAMS_S, "consumers are closed")
        self.storm.finish(self.storm.operators.finish(), PROGRAMS_S, "regions are active again")
        if self.storm.final_mode == "snapshot":
            # Something new in every region, so that snapshots are taken of all there is.
            self.storm.finish(self._publish_once(), PROGRAMS_S, "messages can be published")
        self.storm.wait(lambda: not self._different(), SAME_S, "the same messages", self._different)
        if self.storm.final_mode == "snapshot":
            self.storm.finish(self._make_late(), PROGRAMS_S, "subscriptions can be sought")
            self.storm.finish(self._publish_once(), PROGRAMS_S, "messages can be published")
            self.storm.wait(
                lambda: not self._different(), SAME_S, "the same messages", self._different
            )
        self._move_in_peace()
        order = list(self.storm.plan.regions)
        self._rng.shuffle(order)
        drained: dict[tuple[str, str], None] = {}
        for region in order:
            drained |= self._drain(region, drained)
        # Each in one region only, so that the others have it by what that one says.
        self.storm.wait(
            lambda: not self._unequal(), ARRIVAL_S, "the same is acknowledged", self._unequal
        )
        for region in order:
            self._drain(region, {})
        self.storm.wait(lambda: not self._behind(), CONVERGE_S, "marks get on", self._behind)
        self.storm.wait(self.storm.clusters.converged, CONVERGE_S, "equal indexes")
        self.storm.clusters.check()

    async def _make_late(self) -> None:
        """Of three regions, what one publishes comes late to another one, after it has answered the
        third one. And subscriptions are sought back where it is published, so that only the third
        one reports what is acknowledged there."""
        regions = list(self.storm.plan.regions)
        if len(regions) < 3:
            return
        rng = random.Random(f"{self.storm.plan.seed}/late")
        source, target = rng.sample(regions, 2)
        self.storm.network.slow(target, source, LATE_S)
        left = [(topic, sub) for topic, sub, _ in SUBS if topic in PUBLISHED]
        while left:
            seat = self.storm.any_seat(rng, source)
            with contextlib.suppress(*EXCUSED):
                if seat is not None:
                    await self.storm.operators.seek_back(seat, *left[0])
                    left.pop(0)
                    continue
            await asyncio.sleep(0.02)

    async def _publish_once(self) -> None:
        for region in self.storm.plan.regions:
            for topic in PUBLISHED:
                done = None
                while done is None:
                    seat = self.storm.any_seat(self._rng, region)
                    with contextlib.suppress(*EXCUSED):
                        if seat is not None:
                            done = await self.storm.producers.publish(seat, topic, 1, self._rng)
                    await asyncio.sleep(0.02)

    def _different(self) -> list[str]:
        """Which region lacks what of other ones. A full topic is emptied by its operator."""
        found = []
        for plan in self.storm.plan.topics:
            if not plan.replicated:
                continue
            if plan.backlog_bytes_max:
                self._make_room(plan.name)
            books = [
                self.storm.ledger.book(region, plan.name) for region in self.storm.plan.regions
            ]
            every: dict[Number, str] = {}
            for book in books:
                if book is not None:
                    every.update(dict.fromkeys(book.positions, book.region))
            for region, book in zip(self.storm.plan.regions, books, strict=True):
                lacking = [each for each in every if book is None or not book.has(each)]
                if lacking:
                    text = f"{region} lacks {len(lacking)} of {plan.name}, such as "
                    found.append(f"{text}{lacking[0]}, which {every[lacking[0]]} has")
        return found

    def _make_room(self, topic: str) -> None:
        """Once a second somebody acknowledges all that is in a narrow topic."""
        now = self.storm.world.loop.now
        if now < self._rooms:
            return
        self._rooms = now + 1.0
        self.storm.world.spawn(self._skip_all(topic), "making room")

    async def _skip_all(self, topic: str) -> None:
        for key, sub in list(self.storm.ledger.living.items()):
            region, name, sub_name = key
            book = self.storm.ledger.book(region, name)
            seat = self.storm.any_seat(self._rng, region)
            if name == topic and book is not None and seat is not None and sub.mark < book.next - 1:
                with contextlib.suppress(*EXCUSED):
                    await self.storm.operators.ack_to(seat, topic, sub_name, book.next - 1)

    def _move_in_peace(self) -> None:
        """What a mover has acknowledged arrives, and it goes on where it left off."""
        for number in range(self.storm.plan.movers):
            sub, kind = f"mv{number}", self.storm.movers.kind_of(number)
            here, *others = self._rng.sample(
                list(self.storm.plan.regions), len(self.storm.plan.regions)
            )
            for there in others:
                self._consume(here, sub, kind)
                if self.storm.final_mode == "vector":
                    arrived = self.storm.movers.arrival(here, there, sub, ARRIVAL_S)
                    if not self.storm.finish(arrived, ARRIVAL_S + 1, "arrival"):
                        text = f"what {here} has acknowledged of {sub} does not come to {there}"
                        self.storm.violated("what is acknowledged arrives", [text])
                    self.storm.marks["moved in peace"] += 1
                here = there

    def _consume(self, region: str, sub: str, kind: Kind) -> list[Number]:
        async def consume() -> list[Number]:
            while True:
                seat = self.storm.any_seat(self._rng, region)
                with contextlib.suppress(*EXCUSED):
                    if seat is not None:
                        return await self.storm.movers.consume(seat, sub, kind, self._rng)
                await asyncio.sleep(0.1)

        found: list[Number] = self.storm.finish(consume(), DRAIN_S, f"{sub} can be consumed")
        return found

    def _drain(
        self, region: str, without: dict[tuple[str, str], None]
    ) -> dict[tuple[str, str], None]:
        """Every other subscription here is consumed to its end: what it wants, and nothing else.

        Those that were.
        """
        done: dict[tuple[str, str], None] = {}
        subs = [(topic, sub, kind) for topic, sub, kind in SUBS]
        subs += [
            ("plain", f"mv{n}", self.storm.movers.kind_of(n)) for n in range(self.storm.plan.movers)
        ]
        for topic, sub, kind in subs:
            book = self.storm.ledger.living.get((region, topic, sub))
            if book is None or (topic, sub) in without:
                continue
            done[topic, sub] = None
            kind = book.row.kind
            wanted = self._wanted(book)
            got = self.storm.finish(
                self._drained(region, topic, sub, kind), DRAIN_S, f"{topic}/{sub} is consumed"
            )
            # Others may have acknowledged some of it meanwhile, over the links.
            merged = wanted - got - book.acked
            if merged:
                text = f"{region} does not hand out {sorted(merged)[:3]} of {topic}/{sub}"
                self.storm.violated("nothing is left out", [text])
            twice = {number for number in got if number not in wanted}
            if twice:
                text = f"{region} hands out {sorted(twice)[:3]} of {topic}/{sub}, not wanted"
                self.storm.violated("nothing comes twice after a move", [text])
            self.storm.marks["drained"] += 1
        return done

    def _wanted(self, sub: SubBook) -> set[Number]:
        book = self.storm.ledger.named[sub.region, sub.topic]
        return {
            book.at[position]
            for position in range(book.first, book.next)
            if sub.wants(book.at[position])
        }

    async def _drained(self, region: str, topic: str, sub: str, kind: Kind) -> set[Number]:
        found: set[Number] = set()
        while True:
            seat = self.storm.any_seat(self._rng, region)
            living = self.storm.ledger.living.get((region, topic, sub))
            with contextlib.suppress(*EXCUSED):
                if seat is not None and living is not None:
                    if not self._wanted(living) - found:
                        return found
                    consumer = await self.storm.consumers.opened(
                        seat, topic, sub, kind, self._rng, replicate=None
                    )
                    try:
                        await self._emptied(seat, consumer, (region, topic, sub), found)
                    finally:
                        self._left.append((seat, consumer))
            await self._close_left()
            await asyncio.sleep(0.05)

    async def _emptied(
        self, seat: Seat, consumer: Any, key: tuple[str, str, str], found: set[Number]
    ) -> None:
        while got := await self.storm.consumers.received(seat, consumer, 50, 0.5):
            found.update((each.origin, each.seq) for each in got)
            self.storm.ledger.ask(*key, *(each.position for each in got))
            await self.storm.consumers.at(seat, "ack", partial(consumer.ack, *got))

    async def _close_left(self) -> None:
        while self._left:
            await self.storm.consumers.closed(*self._left.pop())

    def _unequal(self) -> list[str]:
        """Where regions differ in what is acknowledged of a replicated subscription."""
        found = []
        for (region, topic, sub), source in list(self.storm.ledger.living.items()):
            here = self.storm.ledger.book(region, topic)
            if not source.row.replicate or here is None:
                continue
            if self.storm.final_mode == "snapshot" and source.mark < here.next - 1:
                # What lies between two snapshots is told with the next one that its mark passes.
                continue
            for other in self.storm.plan.regions:
                target = self.storm.ledger.living.get((other, topic, sub))
                book = self.storm.ledger.book(other, topic)
                # What one that stands between them was sought over is not passed on by it.
                if other == region or region not in self.storm.plan.wants(other):
                    continue
                if target is None or book is None or not target.row.replicate:
                    continue
                ranges_max = self.storm.plan.settings["ranges_max"]
                missing = lacking(source, target, ranges_max)
                if self.storm.final_mode == "snapshot":
                    # An update says nothing of what is not kept, nor of what is a hole.
                    missing = {n for n in missing if book.positions.get(n, 0) >= book.first}
                if missing:
                    text = f"{other} lacks {sorted(missing)[:3]} of {topic}/{sub}, which {region}"
                    found.append(f"{text} has")
        return found

    def _behind(self) -> list[str]:
        """Marks in front of messages that are not wanted any more."""
        found = []
        for (region, topic, sub), book in self.storm.ledger.living.items():
            here = self.storm.ledger.book(region, topic)
            if here is None:
                continue
            position = max(book.mark + 1, here.first)
            if position < here.next and not book.wants(here.at[position]):
                found.append(f"the mark of {topic}/{sub} in {region} is still {book.mark}")
        return found

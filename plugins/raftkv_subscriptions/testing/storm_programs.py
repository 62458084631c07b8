"""Programs of a storm of regions: producers, consumers, movers.

A program is outside of all nodes: it asks a node of some region, waits, asks another one. Each call
is one `at`, made in the node's process, and written down while it is under way. A node that dies
takes its consumers and calls with it; the program lives on, and does something else.

Before a program acknowledges anything it tells the ledger (`Ledger.ask`): the log must not have an
acknowledgement that nobody asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from raftkv.errors import Refused
from raftkv.testing.host import HostCrashed
from raftkv.testing.storm_worlds import EXCUSED
from raftkv_subscriptions.commands import FORMAT_EPOCHS, ReleaseDelivered
from raftkv_subscriptions.rows import Initial, Kind, Message

from .storm_ledger import Number
from .storm_sets import lacking

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["CALL_S", "GRACE_S", "SUBS", "Consumers", "Movers", "Producers", "Programs"]

CALL_S = 3.0
# After its time-out a call may take so much longer, besides the faults of its own node.
GRACE_S = 10.0
# How long a consumer waits for messages.
WAIT_S = 0.2
# How long a mover waits for what it acknowledged to arrive where it goes.
ARRIVAL_S = 2.0

Work = Callable[[], Awaitable[Any]]

#: (topic, subscription, kind) of consumers; movers have their own.
SUBS: tuple[tuple[str, str, Kind], ...] = (
    ("plain", "ex", "exclusive"),
    ("plain", "fo", "failover"),
    ("plain", "sh", "shared"),
    ("short", "ex", "exclusive"),
    ("short", "sh", "shared"),
    ("keys", "sh", "shared"),
    ("narrow", "ex", "exclusive"),
    ("local", "sh", "shared"),
)


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

    async def at(self, seat: Seat, what: str, work: Work, timeout_s: float = CALL_S) -> Any:
        """Do it on the node. Raises what it raised, or HostCrashed."""
        storm = self.storm
        if not storm.is_seated(seat):
            raise HostCrashed(f"{seat.name} died before it was asked")

        async def called() -> Any:
            return await work()

        key = storm.calls_made = storm.calls_made + 1
        storm.calls[key] = (f"{what} on {seat.name}", storm.world.loop.now, timeout_s)
        try:
            return await storm.world.call(seat.name, called())
        except EXCUSED as error:
            self.marks[f"raised {type(error).__name__}"] += 1
            raise
        finally:
            del storm.calls[key]

    # --- what consumers do ---

    async def opened(
        self,
        seat: Seat,
        topic: str,
        sub: str,
        kind: Kind,
        rng: random.Random,
        *,
        initial: Initial = "earliest",
        replicate: bool | None = True,
    ) -> Any:
        """A consumer on the node."""
        if topic == "local":
            replicate = None
        consumer = await self.at(
            seat,
            f"open {topic}/{sub}",
            lambda: _opened(
                seat.api.consumer(
                    topic,
                    sub,
                    kind=kind,
                    initial=initial,
                    replicate=replicate,
                    priority=rng.randint(0, 2),
                    timeout_s=CALL_S,
                )
            ),
        )
        self.storm.consuming.append((seat, consumer))
        return consumer

    async def received(
        self, seat: Seat, consumer: Any, count: int, wait_s: float = WAIT_S
    ) -> tuple[Any, ...]:
        """Some messages: they are what they should be, and wanted when they were asked for."""
        got: tuple[Any, ...] = await self.at(
            seat,
            f"receive {consumer.topic}/{consumer.sub}",
            lambda: consumer.receive(count, wait_s=wait_s, timeout_s=CALL_S),
            wait_s + CALL_S,
        )
        self.look(seat, consumer, got)
        return got

    def look(self, seat: Seat, consumer: Any, got: Iterable[Any]) -> None:
        """They are what stands in the region's log."""
        ledger = self.storm.ledger
        book = ledger.book(seat.region, consumer.topic)
        found = []
        for each in got:
            number = (each.origin, each.seq)
            if book is None or book.at.get(each.position) != number:
                found.append(f"{seat.name} hands out {number} at {each.position}")
                continue
            original = ledger.originals[consumer.topic, each.origin, each.seq]
            if (original.body, original.key) != (each.body, each.key):
                found.append(f"{seat.name} hands out {number} with other content")
        self.storm.violated("what is handed out is true", found)

    async def settled(
        self, seat: Seat, consumer: Any, got: tuple[Any, ...], rng: random.Random
    ) -> None:
        """Acknowledge, in whatever order, or give back, or keep."""
        ledger, key = self.storm.ledger, (seat.region, consumer.topic, consumer.sub)
        chosen = list(got)
        rng.shuffle(chosen)
        verbs = ("all", "some", "to", "nack", "keep")
        weights = (45, 25, 15, 8, 7)
        verb = rng.choices(verbs, weights)[0]
        if verb == "to" and consumer.kind == "shared":
            verb = "all"
        if verb in ("all", "some"):
            kept = chosen if verb == "all" else chosen[: rng.randint(1, len(chosen))]
            if rng.random() < 0.3:
                for each in kept:
                    await self.acknowledged(seat, consumer, [each])
            elif rng.random() < 0.2:
                # All at once, so that some wait for others.
                calls = [self.acknowledged(seat, consumer, [each]) for each in kept[:10]]
                done = await asyncio.gather(*calls, return_exceptions=True)
                for each in done:
                    if isinstance(each, BaseException):
                        raise each
            else:
                await self.acknowledged(seat, consumer, kept)
        elif verb == "to":
            last = rng.choice(chosen)
            ledger.ask_to(*key, last.position)
            await self.at(seat, "ack_to", partial(consumer.ack_to, last, timeout_s=CALL_S))
        elif verb == "nack" and consumer.kind == "shared" and rng.random() < 0.5:
            await self.released_late(seat, consumer, chosen)
        elif verb == "nack":
            await self.at(seat, "nack", partial(consumer.nack, *chosen, timeout_s=CALL_S))
        self.marks[f"settled: {verb}"] += 1

    async def released_late(self, seat: Seat, consumer: Any, chosen: Iterable[Any]) -> None:
        """A release of these, of before the last seek, that comes now: nothing may come of it."""
        held = [each for each in chosen if each.epoch]
        if not held or seat.host.view().version < FORMAT_EPOCHS:
            return
        positions = tuple(sorted(each.position for each in held))
        command = ReleaseDelivered(consumer.id, positions, held[0].epoch - 1)
        propose = partial(seat.host.propose, command, timeout_s=CALL_S)
        await self.at(seat, "release late", propose)

    async def acknowledged(self, seat: Seat, consumer: Any, chosen: Iterable[Any]) -> None:
        """Acknowledge these; when that is answered they are in the set, unless it was sought."""
        ledger, chosen = self.storm.ledger, list(chosen)
        key = (seat.region, consumer.topic, consumer.sub)
        ledger.ask(*key, *(each.position for each in chosen))
        before = ledger.living.get(key)
        await self.at(seat, "ack", partial(consumer.ack, *chosen, timeout_s=CALL_S))
        book = ledger.living.get(key)
        if book is None or book is not before:
            return
        if any(each.epoch != book.row.epoch for each in chosen):
            return
        lacking = [each.position for each in chosen if book.wants((each.origin, each.seq))]
        text = f"{seat.name} has acknowledged {lacking[:3]} of {consumer.sub}, the log has not"
        self.storm.violated("answers are true", [text] if lacking else [])

    async def closed(self, seat: Seat, consumer: Any) -> None:
        with contextlib.suppress(*EXCUSED):
            await self.at(seat, "close", partial(consumer.close, timeout_s=CALL_S))
            consuming = self.storm.consuming
            self.storm.consuming = [each for each in consuming if each[1] is not consumer]

    async def close_all(self) -> None:
        """Those that were left behind, as far as their nodes have the same life."""
        while self.storm.consuming:
            seat, consumer = self.storm.consuming[0]
            if self.storm.is_seated(seat) and not consumer.ended:
                await self.closed(seat, consumer)
                await asyncio.sleep(0.02)
            else:
                self.storm.consuming.pop(0)


async def _opened(opening: Any) -> Any:
    return await opening


class Producers(Programs):
    """They publish in all regions."""

    kind = "producer"

    @property
    def count(self) -> int:
        return self.plan.producers * len(self.plan.regions)

    async def act(self, rng: random.Random, number: int) -> None:
        seat = self.storm.any_seat(rng, list(self.plan.regions)[number % len(self.plan.regions)])
        if seat is not None:
            topic = rng.choices([each.name for each in self.plan.topics], (6, 3, 2, 2, 1))[0]
            await self.publish(seat, topic, rng.choice((1, 1, 1, 2, 5)), rng)

    async def publish(self, seat: Seat, topic: str, count: int, rng: random.Random) -> Any:
        """New messages; the answer is what the log has."""
        messages = []
        for _ in range(count):
            self.storm.tags += 1
            body = b"%d" % self.storm.tags + b"x" * (self.storm.tags % 40)
            keyed = topic == "keys" and rng.random() < 0.8
            key = f"k{rng.randint(1, 4)}" if keyed else ""
            messages.append(Message(b"" if key and rng.random() < 0.1 else body, key))
        what: Any = messages if len(messages) > 1 else messages[0]
        try:
            done = await self.at(
                seat, f"publish to {topic}", lambda: seat.api.publish(topic, what, timeout_s=CALL_S)
            )
        except Refused:
            return None
        self._check(seat, topic, messages, done)
        return done

    def _check(self, seat: Seat, topic: str, messages: list[Message], done: Any) -> None:
        ledger = self.storm.ledger
        book, found = ledger.book(seat.region, topic), []
        for offset, message in enumerate(messages):
            number = (done.origin, done.seq + offset)
            if ledger.originals.get((topic, *number)) != message:
                found.append(f"{number} of {topic} is not what was published")
            if book is None or book.at.get(done.first + offset) not in (number, None):
                found.append(f"{number} of {topic} is not at {done.first + offset}")
        self.storm.violated("answers are true", found)
        self.marks["published"] += len(messages)


class Consumers(Programs):
    """They come anywhere, take some, settle it, and leave or are left."""

    kind = "consumer"

    @property
    def count(self) -> int:
        return self.plan.consumers

    async def act(self, rng: random.Random, number: int) -> None:
        topic, sub, kind = rng.choice(SUBS)
        seat = self.storm.any_seat(rng)
        if seat is None:
            return
        initial: Initial = "latest" if rng.random() < 0.1 else "earliest"
        consumer = await self.opened(seat, topic, sub, kind, rng, initial=initial)
        self.marks[f"opened {kind}"] += 1
        for _ in range(rng.randint(1, 5)):
            got = await self.received(seat, consumer, rng.choice((1, 3, 10, 50)))
            if got:
                await self.settled(seat, consumer, got, rng)
            if rng.random() < 0.05:
                await self._sought(seat, consumer, got, rng)
        if rng.random() < 0.85:
            await self.closed(seat, consumer)

    async def _sought(
        self, seat: Seat, consumer: Any, got: tuple[Any, ...], rng: random.Random
    ) -> None:
        """Seek, while what was received before it is being acknowledged."""
        self.storm.ledger.sought.add((consumer.topic, consumer.sub))
        where = rng.choice(("earliest", "latest"))
        seek = self.at(seat, "seek", partial(consumer.seek, where, timeout_s=CALL_S))
        calls = [seek, self.acknowledged(seat, consumer, got)]
        for each in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(each, BaseException):
                raise each
        self.marks["sought by a consumer"] += 1


class Movers(Programs):
    """Each has a subscription for itself, and goes with it from region to region."""

    kind = "mover"

    def __init__(self, storm: Storm) -> None:
        super().__init__(storm)
        self._at: dict[int, str] = {}

    @property
    def count(self) -> int:
        return self.plan.movers

    def kind_of(self, number: int) -> Kind:
        kinds: tuple[Kind, ...] = ("exclusive", "shared", "failover")
        return kinds[(self.plan.seed + number) % 3]

    async def act(self, rng: random.Random, number: int) -> None:
        here = self._at.get(number) or rng.choice(list(self.plan.regions))
        self._at[number] = here
        seat = self.storm.any_seat(rng, here)
        if seat is not None:
            await self.consume(seat, f"mv{number}", self.kind_of(number), rng)
        others = [name for name in self.plan.regions if name != here]
        there = rng.choice(others)
        quiesced = rng.random() < 0.7
        if quiesced:
            arrived = await self.arrival(here, there, f"mv{number}")
            self.marks["moved quiesced" if arrived else "moved before its state"] += 1
        else:
            self.marks["moved in haste"] += 1
        self._at[number] = there

    async def consume(self, seat: Seat, sub: str, kind: Kind, rng: random.Random) -> list[Number]:
        """Take some and acknowledge it. Nothing may come that the region had as acknowledged when
        the consumer was opened, or the node when it was asked."""
        ledger = self.storm.ledger
        before = ledger.living.get((seat.region, "plain", sub))
        # The consumer is opened behind all of it in the log.
        done = set() if before is None else set(before.acked)
        consumer = await self.opened(seat, "plain", sub, kind, rng)
        book = ledger.living[seat.region, "plain", sub]
        everywhere = set(ledger.acked.get(("plain", sub), ()))
        taken: list[Number] = []
        try:
            for _ in range(rng.randint(1, 4)):
                # What was acknowledged since is in the log, and may not be in the node's copy yet.
                index = seat.host.view().index
                got = await self.received(seat, consumer, rng.choice((1, 5, 20)))
                numbers = [(each.origin, each.seq) for each in got]
                again = [each for each in numbers if each in done or book.had(each, index)]
                text = f"{seat.name} hands out {again[:3]} of {sub}, which it had acknowledged"
                self.storm.violated("nothing comes twice after a move", [text] if again else [])
                self.marks["came twice after a move"] += sum(each in everywhere for each in numbers)
                taken += numbers
                if not got:
                    break
                chosen = [each for each in got if rng.random() < 0.85] or list(got)
                rng.shuffle(chosen)
                await self.acknowledged(seat, consumer, chosen)
        except EXCUSED:
            # Whatever was refused: the next one must not find it busy.
            await self.closed(seat, consumer)
            raise
        await self.closed(seat, consumer)
        return taken

    async def arrival(self, here: str, there: str, sub: str, timeout_s: float = ARRIVAL_S) -> bool:
        """Whether what was acknowledged here has come there in time, as far as there is room."""
        ledger, ranges_max = self.storm.ledger, self.plan.settings["ranges_max"]
        end = self.storm.world.loop.now + timeout_s
        while self.storm.world.loop.now < end:
            source = ledger.living.get((here, "plain", sub))
            target = ledger.living.get((there, "plain", sub))
            if source and target and not lacking(source, target, ranges_max):
                return True
            await asyncio.sleep(0.02)
        return False

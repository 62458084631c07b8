"""Producers and consumers on all nodes of one region, whose nodes and answers get lost at random.

What must hold, whatever happens:

- a publication that was answered is in the topic, once, at its position; one that was refused or
  not sent is not; what one task published stands in its order;
- a message is handed out until somebody asked to acknowledge it: in the end each one is either
  handed out by a last consumer, or an acknowledgement of it was asked for;
- one whose acknowledgement was answered on a node is not handed out on that node any more.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from raftkv.errors import NotApplied, OutcomeUnknown, Refused
from raftkv.testing.clock import run
from raftkv_subscriptions import Consumer, ConsumerEnded, Received, Subscriptions

from .fakes import NETWORK_S, REST_S, Cluster

SEEDS = range(12)
#: How long it goes on, in virtual seconds.
STORM_S = 30.0
KINDS = {"ex": "exclusive", "fo": "failover", "sh": "shared"}
TAGS = (
    "publish",
    "ack_delivered",
    "ack_to_delivered",
    "take",
    "release",
    "attach",
    "detach",
    "subscribe",
)

Place = tuple[str, int]


class Storm:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.names = list(cluster.nodes)
        self.over = False
        self.answered: dict[str, int] = {}
        self.maybe: set[str] = set()
        self.refused: set[str] = set()
        #: Of each subscription: positions whose acknowledgement was asked for.
        self.asked: dict[str, set[int]] = {sub: set() for sub in KINDS}
        #: (node, its process) -> (subscription, position) that are acknowledged, as it was told.
        self.told: dict[tuple[str, int], set[Place]] = {}
        self.received = 0
        self.ended = 0

    # --- producers ---

    async def produce(self, number: int) -> None:
        rng = random.Random(self.rng.random())
        for n in range(10_000):
            if self.over:
                return
            bodies = [f"{number}.{n}.{m}" for m in range(rng.choice((1, 1, 1, 3)))]
            subs = self.cluster.subs(rng.choice(self.names))
            call = asyncio.ensure_future(
                subs.publish("t", [b.encode() for b in bodies], timeout_s=rng.choice((0.05, 5, 20)))
            )
            if rng.random() < 0.1:
                await asyncio.sleep(rng.choice((0, NETWORK_S / 2, NETWORK_S)))
                call.cancel()
            [done] = await asyncio.gather(call, return_exceptions=True)
            if isinstance(done, (OutcomeUnknown, asyncio.CancelledError)):
                self.maybe.update(bodies)
            elif isinstance(done, (NotApplied, Refused)):
                self.refused.update(bodies)
            elif isinstance(done, BaseException):
                raise done
            else:
                for m, text in enumerate(bodies):
                    self.answered[text] = done.first + m
            await asyncio.sleep(rng.random() * 0.2)

    # --- consumers ---

    async def consume(self) -> None:
        rng = random.Random(self.rng.random())
        while not self.over:
            sub, node = rng.choice(list(KINDS)), rng.choice(self.names)
            opening = asyncio.ensure_future(self.open(rng, sub, node))
            if rng.random() < 0.1:
                await asyncio.sleep(rng.random() * 4 * NETWORK_S)
                opening.cancel()
            [consumer] = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(consumer, Consumer):
                await self.use(rng, consumer, sub, node)
            elif not isinstance(consumer, (NotApplied, OutcomeUnknown, Refused)):
                assert isinstance(consumer, asyncio.CancelledError), consumer
            await asyncio.sleep(rng.random())

    async def open(self, rng: random.Random, sub: str, node: str) -> Consumer:
        return await self.cluster.subs(node).consumer(
            "t",
            sub,
            kind=KINDS[sub],  # type: ignore[arg-type]
            initial="earliest",
            priority=rng.randrange(3),
            timeout_s=rng.choice((0.01, 2, 20)),
            prefetch=rng.choice((1, 5, 100)),
        )

    async def use(self, rng: random.Random, consumer: Consumer, sub: str, node: str) -> None:
        process = (node, id(self.cluster.nodes[node]))
        held: list[Received] = []
        for _ in range(rng.randrange(40)):
            if self.over:
                break
            try:
                held.extend(await self.some(rng, consumer, sub, process))
                await self.settle(rng, consumer, sub, process, held)
            except ConsumerEnded:
                self.ended += 1
                return
            except (NotApplied, OutcomeUnknown):
                pass  # asked again below
        if rng.random() < 0.8:
            await asyncio.gather(consumer.close(timeout_s=2), return_exceptions=True)

    async def some(
        self, rng: random.Random, consumer: Consumer, sub: str, process: tuple[str, int]
    ) -> list[Received]:
        loop, wait_s = rng.random() < 0.5, rng.choice((0.0, 0.01, 1.0))

        async def call() -> list[Received]:
            if loop:
                async with asyncio.timeout(wait_s):
                    found = [await anext(consumer)]
            else:
                found = list(await consumer.receive(rng.randrange(1, 20), wait_s=wait_s))
            # At once: another consumer of this node may acknowledge them, too.
            done = self.told.get(process, set())
            for message in found:
                assert (sub, message.position) not in done, (sub, message.position)
            return found

        task = asyncio.ensure_future(call())
        if rng.random() < 0.2:
            await asyncio.sleep(rng.choice((0, NETWORK_S, 2 * NETWORK_S, 0.1)))
            task.cancel()
        [got] = await asyncio.gather(task, return_exceptions=True)
        if isinstance(got, (TimeoutError, asyncio.CancelledError, StopAsyncIteration)):
            return []
        if isinstance(got, BaseException):
            raise got
        self.received += len(got)
        return got

    async def settle(
        self,
        rng: random.Random,
        consumer: Consumer,
        sub: str,
        process: tuple[str, int],
        held: list[Received],
    ) -> None:
        rng.shuffle(held)
        some = [held.pop() for _ in range(rng.randint(0, len(held)))]
        if not some:
            return
        what = rng.random()
        if what < 0.2:
            await consumer.nack(*some, timeout_s=2)
            return
        positions = {message.position for message in some}
        if what < 0.3 and sub != "sh":
            # It says so of everything before, whatever became of it.
            highest = max(positions)
            positions = set(range(1, highest + 1))
            self.asked[sub] |= positions
            call = asyncio.ensure_future(consumer.ack_to(highest, timeout_s=2))
        else:
            self.asked[sub] |= positions
            call = asyncio.ensure_future(consumer.ack(*some, timeout_s=rng.choice((0.001, 2, 9))))
        if rng.random() < 0.1:
            await asyncio.sleep(NETWORK_S)
            call.cancel()
        [done] = await asyncio.gather(call, return_exceptions=True)
        if isinstance(done, asyncio.CancelledError):
            return
        if isinstance(done, BaseException):
            raise done
        self.told.setdefault(process, set()).update((sub, position) for position in positions)

    # --- trouble ---

    async def disturb(self) -> None:
        rng = random.Random(self.rng.random())
        while not self.over:
            name = rng.choice(self.names[1:])  # core1 keeps the log
            what = rng.choice(("deaf", "lose", "pause", "jump", "cut", "dead", "kill"))
            if what == "deaf":
                self.cluster.lose_answers(name, *rng.sample(TAGS, 4), times=rng.randrange(1, 4))
            elif what == "lose":
                share = rng.random() * 0.3
                self.cluster.filter = lambda node, envelope, share=share: rng.random() > share
            elif what in ("pause", "jump"):
                self.cluster.pause(name)
                await asyncio.sleep(rng.random())
                if what == "jump":
                    self.cluster.jump(name)
                self.cluster.resume(name)
            elif what in ("cut", "dead"):
                self.cluster.isolate(name)
                await asyncio.sleep(rng.random())
                if what == "dead":
                    self.cluster.declare_dead(name)
                    await asyncio.sleep(rng.random())
                    self.cluster.rejoin(name)
                self.cluster.heal(name)
            else:
                await self.kill(rng, name)
            await asyncio.sleep(rng.random())
            if rng.random() < 0.5:
                self.cluster.filter = lambda node, envelope: True

    async def kill(self, rng: random.Random, name: str) -> None:
        old = self.cluster.nodes[name]
        await old.service.stop()  # who waits here would wait for ever, as nobody does in life
        self.cluster.kill(name)
        await asyncio.sleep(rng.random())
        if rng.random() < 0.5:
            self.cluster.declare_dead(name)
        await self.cluster.restart(name)

    # --- judging ---

    async def run(self) -> None:
        tasks = [asyncio.ensure_future(self.produce(n)) for n in range(4)]
        tasks += [asyncio.ensure_future(self.consume()) for _ in range(8)]
        tasks.append(asyncio.ensure_future(self.disturb()))
        await asyncio.wait(tasks, timeout=STORM_S, return_when=asyncio.FIRST_EXCEPTION)
        self.over = True
        await asyncio.wait_for(asyncio.gather(*tasks), 300)
        self.cluster.filter = lambda node, envelope: True
        await asyncio.sleep(10 * REST_S)
        self.check_messages()
        await self.check_subscriptions()

    def check_messages(self) -> None:
        stored = self.cluster.everywhere()
        assert len(stored) == len(set(stored))
        for text, position in self.answered.items():
            assert stored[position - 1] == text
        assert not self.refused & set(stored)
        assert set(stored) <= set(self.answered) | self.maybe
        for number in range(4):
            mine = [text.split(".") for text in stored if text.startswith(f"{number}.")]
            answered = [[int(n) for n in one] for one in mine if ".".join(one) in self.answered]
            assert answered == sorted(answered)

    async def check_subscriptions(self) -> None:
        last = len(self.cluster.everywhere())
        for node in self.cluster.nodes.values():
            for consumer in node.opened.consumers.all():
                await consumer.close()
        for sub, kind in KINDS.items():
            subs = self.cluster.subs(self.rng.choice(self.names))
            got: set[int] = set()
            opening: Any = subs.consumer
            async with opening("t", sub, kind=kind, initial="earliest") as consumer:
                while some := await consumer.receive(100, wait_s=REST_S):
                    got.update(message.position for message in some)
                    await consumer.ack(*some)
            done = {place for places in self.told.values() for place in places}
            assert not any((sub, position) in done for position in got), sub
            assert set(range(1, last + 1)) - got <= self.asked[sub], sub
            status = await subs.sub("t", sub)
            assert (status.mark, status.backlog, status.locked) == (last, 0, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm(seed: int) -> None:
    async def whole() -> None:
        cluster = Cluster(Subscriptions, 3, 1)
        await cluster.start()
        subs = cluster.subs("core1")
        await subs.declare("t")
        for sub, kind in KINDS.items():
            await subs.subscribe("t", sub, kind=kind, initial="earliest")  # type: ignore[arg-type]
        storm = Storm(cluster, seed)
        await storm.run()
        await asyncio.sleep(REST_S)
        cluster.check()
        assert storm.received > 100
        assert storm.ended > 0 or seed  # the first one is known to end consumers
        for node in cluster.nodes.values():
            assert len(node.opened.waiting) == 0
            assert len(node.opened.consumers) == 0
            assert node.opened.publishing.waiting_bytes == 0
            assert not node.opened.publishing._lines

    run(whole())

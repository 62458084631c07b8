"""The programs that put messages into queues and take them out: plain, and in local transactions.

Producers publish one batch after the other, so that their order can be judged. Consumers take
messages and accept, release, reject or forget them. Forwarders do what transactions are for: take
from one queue and put into others, and accept what they took, all or nothing; some are large, some
are rolled back, some are left in the middle.
"""

from __future__ import annotations

import contextlib
import random
from functools import partial
from typing import TYPE_CHECKING, Any

from raftkv.errors import Refused
from raftkv.testing.storm_worlds import EXCUSED
from raftkv_txqueue.errors import TransactionAborted, TransactionUnknown

from .storm_answers import Story, check_delivery, check_settled
from .storm_plan import MAIN, QUEUES, SIDE
from .storm_programs import CALL_S, Programs

if TYPE_CHECKING:
    from .storm import Seat

__all__ = ["Consumers", "Forwarders", "Producers"]

# How long a consumer waits for messages.
WAIT_S = 0.3


class Producers(Programs):
    """Outside of transactions, at any node."""

    kind = "producer"

    @property
    def count(self) -> int:
        return self.plan.producers

    async def act(self, rng: random.Random, number: int) -> None:
        seat = self.storm.any_seat(rng)
        if seat is None:
            return
        queue = rng.choice((*MAIN, SIDE))
        await self.publish(seat, queue, rng.choice((1, 1, 2, 3)), rng, number)

    async def publish(
        self,
        seat: Seat,
        queue: str,
        count: int,
        rng: random.Random,
        producer: int,
        *,
        calm: bool = False,
    ) -> Story:
        """One batch; its story."""
        timeout_s = CALL_S if calm else self.timeout_s(rng)
        story = self.story("publish", seat, queue=queue, producer=producer, timeout_s=timeout_s)
        messages = self.messages(story, count, calm)
        leaves = not calm and rng.random() < 0.05
        patience_s = timeout_s * rng.choice((0.01, 0.3)) if leaves else None
        try:
            done = await self.at(
                seat,
                f"publish to {queue}",
                lambda: seat.api.publish(queue, messages, timeout_s=timeout_s),
                timeout_s,
                patience_s,
            )
        except (*EXCUSED, TimeoutError) as error:
            self.failed(story, error)
            return story
        self.ended(story, "published")
        self.marks["published"] += 1
        ledger = self.storm.log.ledger
        seqs = [ledger.entered[tag][0][1] for tag in story.tags]
        if (seqs[0], seqs[-1]) != (done.first, done.last):
            self.storm.violated("answers are true", [f"{story} is at {seqs}, and told {done}"])
        return story


class Consumers(Programs):
    """Outside of transactions; a session for a while."""

    kind = "consumer"

    @property
    def count(self) -> int:
        return self.plan.consumers

    async def act(self, rng: random.Random, number: int) -> None:
        seat = self.storm.any_seat(rng)
        if seat is None:
            return
        session = await self.opened(seat, "plain")
        for _ in range(rng.randint(1, 6)):
            queue = rng.choice((*QUEUES, "q1", "q2"))
            if rng.random() < 0.2:
                got = await self.subscribed(seat, session, queue, rng)
            else:
                most = rng.choice((0, 0, 0, 1, 200))
                got = await self.got(seat, session, queue, rng.choice((1, 3, 10)), bytes_max=most)
            if got:
                await self.settle(seat, session, queue, got, rng)
        if rng.random() < 0.8:
            await self.closed(seat, session)

    async def got(
        self,
        seat: Seat,
        session: Any,
        queue: str,
        count: int,
        wait_s: float = WAIT_S,
        bytes_max: int = 0,
    ) -> tuple[Any, ...]:
        """What the session has got."""
        try:
            got: tuple[Any, ...] = await self.at(
                seat,
                f"get from {queue}",
                lambda: session.get(queue, count=count, wait_s=wait_s, bytes_max=bytes_max),
                wait_s + CALL_S,
            )
        except Refused:
            # No such queue now, or too much held: known to be true by the log's checks.
            return ()
        self.look(session, got)
        seqs = [each.seq for each in got]
        if seqs != sorted(seqs):
            self.storm.violated("order is kept", [f"session {session.id} got {seqs}"])
        return got

    def look(self, session: Any, got: tuple[Any, ...]) -> None:
        """It is what the log gave to it."""
        ledger = self.storm.log.ledger
        for each in got:
            self.storm.violated(
                "what is delivered is there", check_delivery(session.id, each, ledger)
            )

    async def subscribed(
        self, seat: Seat, session: Any, queue: str, rng: random.Random
    ) -> tuple[Any, ...]:
        """A few, by a subscription that is then left."""
        wanted = rng.choice((1, 2, 4))
        got: list[Any] = []

        async def take() -> None:
            async with session.subscribe(queue, prefetch=3) as deliveries:
                async for each in deliveries:
                    got.append(each)
                    if len(got) >= wanted:
                        return

        with contextlib.suppress(Refused, TimeoutError):
            await self.at(seat, f"subscribe to {queue}", take, WAIT_S + CALL_S, WAIT_S)
        self.look(session, tuple(got))
        self.marks["subscribed"] += bool(got)
        return tuple(got)

    async def settle(
        self, seat: Seat, session: Any, queue: str, got: tuple[Any, ...], rng: random.Random
    ) -> None:
        """Accept, release, reject, return to the back; or keep it until the session ends."""
        verbs = ("accept", "release", "reject", "to_back", "keep")
        verb = rng.choices(verbs, (60, 10, 8, 10, 12))[0]
        if verb == "keep":
            return
        call = {
            "accept": session.accept,
            "release": session.release,
            "reject": session.reject,
            "to_back": session.to_back,
        }
        try:
            told = await self.at(
                seat, f"{verb} of {queue}", lambda: call[verb](*got, timeout_s=CALL_S)
            )
        except Refused:
            return
        if verb == "accept":
            seqs = [each.seq for each in got]
            found = check_settled(session.id, queue, told[queue], seqs, self.storm.log.ledger)
            self.storm.violated("answers are true", found)


class Forwarders(Consumers):
    """Local transactions that take, put and accept."""

    kind = "forwarder"

    @property
    def count(self) -> int:
        return self.plan.forwarders

    async def act(self, rng: random.Random, number: int) -> None:
        seat = self.storm.any_seat(rng)
        if seat is None:
            return
        session = await self.opened(seat, "tx")
        for _ in range(rng.randint(1, 5)):
            if not await self.forward(seat, session, rng):
                break
        if rng.random() < 0.8:
            await self.closed(seat, session)

    async def forward(self, seat: Seat, session: Any, rng: random.Random) -> bool:
        """One transaction; whether the session can go on."""
        source = rng.choice(("q1", "q2", "retry", "full", "drop", "dead"))
        rows = rng.randint(1, self.plan.rows)
        got: tuple[Any, ...] = ()
        if rng.random() < 0.75:
            got = await self.got(seat, session, source, rows, rng.choice((0.0, WAIT_S)))
        timeout_s = self.timeout_s(rng)
        story = self.story("tx", seat, txid=session.next_txid, timeout_s=timeout_s)
        try:
            if rng.random() < 0.15:
                return await self.scope(seat, session, story, got, rows, rng)
            await self.fill(seat, session, story, got, rows, rng)
            if rng.random() < 0.08:
                return False  # left in the middle
            if rng.random() < 0.12:
                await self.at(
                    seat,
                    f"rollback of {story.txid}",
                    lambda: session.rollback(timeout_s=timeout_s),
                    timeout_s,
                )
                self.ended(story, "rolled back")
                return True
            return await self.commit(seat, session, story, timeout_s, rng)
        except TransactionAborted as error:
            self.failed(story, error)
            await self.at(seat, "rollback", lambda: session.rollback(timeout_s=CALL_S))
            return True
        except (*EXCUSED, TimeoutError) as error:
            # Of a call before the commit nothing is known but that nobody commits it any more.
            story.outcome, story.error = "died", type(error).__name__
            raise

    async def scope(
        self,
        seat: Seat,
        session: Any,
        story: Story,
        got: tuple[Any, ...],
        rows: int,
        rng: random.Random,
    ) -> bool:
        """The same as a block, which commits at its end, or is left by an error of its own."""
        queue, fails = rng.choice(("q1", "q2", "drop")), rng.random() < 0.2
        messages = self.messages(story, rows)

        async def block() -> Any:
            async with session.transaction() as tx:
                await tx.publish(queue, messages)
                await tx.accept(*got)
                if fails:
                    raise LookupError
            return tx.receipt

        try:
            receipt = await self.at(seat, f"block of {story.txid}", block, 2 * CALL_S)
        except LookupError:
            self.ended(story, "rolled back")
            return True
        except TransactionUnknown as error:
            self.failed(story, error)
            await self.settle_unknown(seat, session, story, rng)
            return False
        story.spans, story.index = tuple(receipt.spans), receipt.index
        self.ended(story, "committed")
        self.marks["committed by a block"] += 1
        return True

    async def fill(
        self,
        seat: Seat,
        session: Any,
        story: Story,
        got: tuple[Any, ...],
        rows: int,
        rng: random.Random,
    ) -> None:
        """Publish to some queues, in several calls, and accept what was got."""
        calls: list[Any] = []
        queues = rng.sample(("q1", "q2", "retry", "full", "drop"), rng.choice((1, 2, 3)))
        left = rows
        while left > 0:
            count = min(left, rng.choice((1, 2, 5)))
            left -= count
            messages = self.messages(story, count)
            queue = rng.choice(queues)
            calls.append(partial(session.publish, queue, messages, timeout_s=CALL_S))
        if got:
            calls.insert(rng.randint(0, len(calls)), lambda: session.accept(*got, timeout_s=CALL_S))
        for call in calls:
            await self.at(seat, f"operations of {story.txid}", call)
        if rng.random() < 0.1:
            await self.at(seat, f"flush of {story.txid}", lambda: session.flush())

    async def commit(
        self, seat: Seat, session: Any, story: Story, timeout_s: float, rng: random.Random
    ) -> bool:
        """Commit, and ask what became of it if that is not known; whether the session goes on."""
        patience_s = timeout_s * rng.choice((0.01, 0.3)) if rng.random() < 0.05 else None
        try:
            receipt = await self.at(
                seat,
                f"commit of {story.txid}",
                lambda: session.commit(timeout_s=timeout_s),
                timeout_s,
                patience_s,
            )
        except TransactionUnknown as error:
            self.failed(story, error)
            await self.settle_unknown(seat, session, story, rng)
            return False
        except TransactionAborted as error:
            self.failed(story, error)
            return True
        except (*EXCUSED, TimeoutError) as error:
            self.failed(story, error)
            await self.settle_unknown(seat, session, story, rng)
            return False
        if receipt.txid != story.txid:
            text = f"{story} was the transaction {receipt.txid}"
            self.storm.violated("answers are true", [text])
        story.spans, story.index = tuple(receipt.spans), receipt.index
        self.ended(story, "committed")
        if rng.random() < 0.1:
            await self.repeat(seat, session, story, rng)
        elif rng.random() < 0.2:
            # Somebody else, somewhere else, who must be told the same.
            await self.ask(story.txid, rng)
        return True

    async def repeat(self, seat: Seat, session: Any, story: Story, rng: random.Random) -> None:
        """Commit it once more: the same answer, and nothing happens."""
        try:
            again = await self.at(
                seat,
                f"commit of {story.txid}",
                lambda: session.commit(story.txid, timeout_s=CALL_S),
            )
        except EXCUSED:
            return
        self.marks["commit repeated"] += 1
        if again.txid != story.txid:
            self.storm.violated("answers are true", [f"{story}, and again {again}"])

    async def settle_unknown(
        self, seat: Seat, session: Any, story: Story, rng: random.Random
    ) -> None:
        """Somebody who does not know asks, at any node, or commits it once more."""
        if rng.random() < 0.3 and self.storm.is_seated(seat):
            try:
                again = await self.at(
                    seat,
                    f"commit of {story.txid}",
                    lambda: session.commit(story.txid, timeout_s=CALL_S),
                )
                story.spans, story.index = tuple(again.spans), again.index
                self.ended(story, "committed")
                self.marks["commit repeated"] += 1
                return
            except TransactionAborted as error:
                self.failed(story, error)
                return
            except EXCUSED as error:
                self.marks[f"repeat raised {type(error).__name__}"] += 1
        fate = await self.ask(story.txid, rng)
        if fate in ("committed", "rolled back"):
            self.ended(story, fate)

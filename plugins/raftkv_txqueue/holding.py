"""What a session holds: acquiring messages, waiting for them, and settling them at once.

The log knows who holds what; this is a node's copy for one session, so that a program can be told,
a subscription can count, and a transaction can give back. The log is right where they differ.

Acquiring has a line of its own beside the session's other commands. So messages are had while a
commit waits for its participants, and the next ones while the last are being settled. A caller that
wants one after the other awaits the one before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from raftkv.errors import Stopped

from .commands import (
    FORMAT_PUT_BACK,
    ROWS_MAX,
    Acquire,
    Acquired,
    PutBack,
    Queue,
    Settle,
    Settled,
    ToBack,
)
from .consuming import Delivery, deliveries_of
from .life import Life
from .line import Line
from .metrics import Counters
from .rows import SettlingVerb
from .times import require_format
from .waiting import Place, Waiting

__all__ = ["Holding", "by_queue"]

_COUNTED: dict[SettlingVerb, str] = {
    "accept": "accepted",
    "release": "released",
    "reject": "rejected",
    "put_back": "put_back",
    "to_back": "to_back",
}


def by_queue(deliveries: Iterable[Delivery]) -> dict[str, list[int]]:
    """Their numbers, for each queue."""
    seqs: dict[str, list[int]] = {}
    for delivery in deliveries:
        seqs.setdefault(delivery.queue, []).append(delivery.seq)
    return seqs


def _share(settled: Counter[int], seqs: Sequence[int]) -> Settled:
    """What one caller's part of it was; takes it out of `settled`."""
    missing = []
    for seq in seqs:
        if settled[seq] > 0:
            settled[seq] -= 1
        else:
            missing.append(seq)
    return Settled(len(seqs) - len(missing), tuple(missing))


class Holding:
    """The messages of one session."""

    def __init__(self, life: Life, waiting: Waiting, counters: Counters) -> None:
        self._life = life
        self._waiting = waiting
        self._counters = counters
        self._takes = Line(life.host, counters, self._idle)
        self._held: dict[tuple[str, int], Delivery] = {}
        #: Those that a subscription has taken ahead, and has not handed out.
        self._ahead: dict[tuple[str, int], Delivery] = {}
        #: Consumers of this session that wait for messages, and tasks that wait for a settlement.
        self._places: dict[int, Place] = {}
        self._unsettled: list[asyncio.Future[None]] = []
        self._stopped = False

    @property
    def held(self) -> tuple[Delivery, ...]:
        """Acquired and not settled."""
        return tuple(self._held.values())

    def has(self, queue: str, seq: int) -> bool:
        return (queue, seq) in self._held

    def take_ahead(self, deliveries: Iterable[Delivery]) -> None:
        """A subscription keeps these for its program."""
        for delivery in deliveries:
            self._ahead[delivery.queue, delivery.seq] = delivery

    def hand_out(self, delivery: Delivery) -> None:
        """The program has this one now."""
        self._ahead.pop((delivery.queue, delivery.seq), None)

    def ahead(self) -> dict[str, list[int]]:
        """What is held and no program has had, by queues."""
        return by_queue(each for key, each in self._ahead.items() if key in self._held)

    # --- acquiring ---

    async def get(
        self,
        queue: str,
        count: int,
        wait_s: float | None,
        bytes_max: int,
        timeout_s: float | None,
    ) -> tuple[Delivery, ...]:
        """See `Session.get`."""
        command = Acquire(self._life.id, queue, count, bytes_max)
        if wait_s is not None and wait_s <= 0:
            return await self._take(command, timeout_s)
        deadline = None
        if wait_s is not None:
            deadline = self._life.host.runtime.monotonic() + wait_s
        place = self._waiting.enter(queue, count, self._is_free)
        self._places[place.number] = place
        try:
            while await self._waiting.turn(place, deadline):
                got = await self._take(command, timeout_s)
                if got:
                    return got
                self._waiting.again(place)
            return ()
        finally:
            del self._places[place.number]
            self._waiting.leave(place)

    async def _take(self, command: Acquire, timeout_s: float | None) -> tuple[Delivery, ...]:
        return await self._takes.do(
            partial(self._acquire, command), timeout_s, unheard=self._give_back
        )

    async def _acquire(self, command: Acquire) -> tuple[Delivery, ...]:
        acquired: Acquired = await self._life.ask(command)
        while acquired.ready and not acquired.seqs:
            # It has passed over as many as one entry may: each time there are fewer.
            acquired = await self._life.ask(command)
        queue = command.queue
        got = deliveries_of(self._life.host.view(), self._life.id, queue, acquired)
        if not got:
            self._counters.add("empty_acquires")
            return got
        for delivery in got:
            self._held[queue, delivery.seq] = delivery
        self._counters.add("acquired", len(got))
        self._counters.add("redelivered", sum(delivery.redelivered for delivery in got))
        return got

    async def _give_back(self, got: tuple[Delivery, ...]) -> None:
        """Nobody heard that these were acquired."""
        if got:
            self._counters.add("released_unheard", len(got))
            await self.settle("put_back", by_queue(got), must=True)

    def _is_free(self) -> bool:
        return not self._takes.busy

    def _idle(self) -> None:
        """Those consumers that were passed over may have their turn."""
        for place in self._places.values():
            if not place.awake:
                self._waiting.look_at(place.queue)

    # --- settling ---

    async def settle(
        self, settling: SettlingVerb, seqs: Mapping[str, Sequence[int]], must: bool = False
    ) -> dict[str, Settled]:
        """A job: outside of any transaction."""
        done = {}
        for queue, numbers in seqs.items():
            count = 0
            missing: list[int] = []
            for start in range(0, len(numbers), ROWS_MAX):
                part = tuple(numbers[start : start + ROWS_MAX])
                command = self._settle(settling, queue, part)
                settled: Settled = await self._life.ask(command, must=must)
                must = True  # that nothing happened cannot be said any more
                count += settled.done
                missing.extend(settled.missing)
                for seq in part:
                    self._held.pop((queue, seq), None)
                    self._ahead.pop((queue, seq), None)
            self._counters.add(_COUNTED[settling], count)
            done[queue] = Settled(count, tuple(missing))
        self.changed()
        return done

    def _settle(
        self, settling: SettlingVerb, queue: str, seqs: tuple[int, ...]
    ) -> Settle | PutBack | ToBack:
        if settling == "to_back":
            require_format(self._life.host.view())
            return ToBack(self._life.id, queue, seqs)
        if settling != "put_back":
            return Settle(self._life.id, queue, settling, seqs)
        if self._life.host.view().version < FORMAT_PUT_BACK:
            return Settle(self._life.id, queue, "release", seqs)
        return PutBack(self._life.id, queue, seqs)

    async def settle_all(
        self, settling: SettlingVerb, parts: Sequence[Mapping[str, Sequence[int]]]
    ) -> list[dict[str, Settled]]:
        """A job for several callers, in the order of their calls; what was done of each part."""
        together: dict[str, list[int]] = {}
        for part in parts:
            for queue, seqs in part.items():
                together.setdefault(queue, []).extend(seqs)
        done = await self.settle(settling, together)
        # A message that several have settled was the first one's.
        settled = {
            queue: Counter(seqs) - Counter(done[queue].missing) for queue, seqs in together.items()
        }
        return [
            {queue: _share(settled[queue], seqs) for queue, seqs in part.items()} for part in parts
        ]

    def pass_on(self, queue: str, seqs: Iterable[int]) -> list[Delivery]:
        """A transaction has accepted these; those that were held here."""
        gone = [self._held.pop((queue, seq), None) for seq in seqs]
        self.changed()
        return [delivery for delivery in gone if delivery is not None]

    def take_back(self, deliveries: Iterable[Delivery]) -> None:
        """The transaction that had accepted these was rolled back: held again, if the log agrees.

        A large one gives them back little by little; what is not there yet is not counted here.
        """
        if self._life.ended:
            return
        view = self._life.host.view()
        queues, locks = view.table("queues"), view.table("locks")
        for delivery in deliveries:
            row: Queue | None = queues.get(delivery.queue)
            if row is not None and (self._life.id, row.id, delivery.seq) in locks:
                self._held[delivery.queue, delivery.seq] = delivery
        self.changed()

    async def change(self) -> None:
        """Wait until something was settled, or came back. Raises Stopped when the node stops."""
        if self._stopped:
            raise Stopped("this node stops")
        future: asyncio.Future[None] = self._life.host.runtime.future()
        self._unsettled.append(future)
        await future

    def changed(self) -> None:
        """Wake those who wait for a `change`."""
        waiting, self._unsettled = self._unsettled, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # --- the end ---

    def end(self, error: Exception) -> None:
        """The session has ended: it holds nothing, and waits for nothing."""
        self._held.clear()
        self._ahead.clear()
        for place in self._places.values():
            place.fail(error)
        self._takes.fail_waiting(error)
        self._takes.retire()
        self.changed()

    def stop(self) -> None:
        """The node stops."""
        self._stopped = True
        self._takes.stop()
        self.changed()

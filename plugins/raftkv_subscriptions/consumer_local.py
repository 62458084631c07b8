"""Messages for a consumer of an exclusive or failover subscription: read from this node's copy.

Only one consumer gets messages, so nobody has to decide who gets which, and handing them out takes
no entry of the log: what is behind the mark and not acknowledged is read from the tables, in order.
Only acknowledgements are entries. So nothing is taken ahead, and a message that was acknowledged
meanwhile, here, elsewhere or in another region, is not handed out.

A consumer that is not active waits. One that was, and is again, begins at the mark; so does one
whose subscription was sought. What was negatively acknowledged is remembered here, comes again
after everything that was there at that time, and is counted here alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from raftkv.plugin import View

from .consumer_life import ConsumerLife
from .counting import Counters
from .errors import TooManyNacked
from .reading import Received, Wanted, received_of
from .rows import Stored, Sub, Topic, size_of
from .waiting import Waiting

__all__ = ["LocalSource"]

#: Positions that are looked at in one go: what is not wanted is passed over, and other tasks of the
#: loop must have their turn.
LOOK_MAX: Final = 2_000


class LocalSource:
    """What one consumer reads."""

    def __init__(self, life: ConsumerLife, waiting: Waiting, counters: Counters) -> None:
        self._life = life
        self._waiting = waiting
        self._counters = counters
        #: The next position that was not looked at, in this epoch; None: begin at the mark.
        self._next = 0
        self._epoch: int | None = None
        #: The subscription's row when messages were last taken.
        self._taken_of: Sub | None = None
        #: (handed out again once everything up to here was, position), in order.
        self._due: deque[tuple[int, int]] = deque()
        #: The positions in it.
        self._again: set[int] = set()
        #: How often those were handed out that ever were negatively acknowledged.
        self._deliveries: dict[int, int] = {}

    async def receive(
        self, count: int, deadline: float | None, bytes_max: int, timeout_s: float | None
    ) -> tuple[Received, ...]:
        """The next messages; (): none in time. Raises `ConsumerEnded`."""
        while True:
            got, more = self._take(self._life.host.view(), count, bytes_max)
            if got:
                self._counters.add("received", len(got))
                return got
            if more:
                await self._life.host.runtime.sleep(0)
            elif not await self._waiting.until(self._life.rows, self._ready, deadline):
                return ()

    def keeps(self, view: View, message: Received) -> bool:
        """Whether a message that was read some time ago is still to be handed out."""
        _, sub = self._life.receiving(view)
        if sub.active != self._life.id:
            self._epoch = None
            return False
        if sub is self._taken_of:
            return True
        if sub.epoch != message.epoch or message.position <= sub.mark:
            return False
        return Wanted(view, sub.id)(message.origin, message.seq)

    def nack(self, view: View, positions: Iterable[int]) -> int:
        """They come again; how many. Raises `TooManyNacked`, `ConsumerEnded`."""
        topic, sub = self._life.require(view)
        if sub.active != self._life.id or sub.epoch != self._epoch:
            self._epoch = None
            return 0  # they come again anyway, from the mark on
        messages, wanted = view.table("messages"), Wanted(view, sub.id)
        count = 0
        for position in positions:
            stored: Stored | None = messages.get((topic.id, position))
            if position >= self._next or position in self._again or stored is None:
                continue
            if not wanted(stored.origin, stored.seq):
                continue
            self._remember(view, topic, sub, position)
            count += 1
        self._counters.add("nacked", count)
        if count:
            self._waiting.poke(self._life.rows)
        return count

    def acknowledged(self, positions: Iterable[int]) -> None:
        """These are done with."""
        if self._deliveries:
            for position in positions:
                self._deliveries.pop(position, None)

    def end(self) -> None:
        """The consumer is closed, or has ended."""
        self._begin(None, 0)
        self._waiting.poke(self._life.rows)

    def stop(self) -> None:
        """The node stops."""

    # --- details ---

    def _begin(self, epoch: int | None, position: int) -> None:
        self._epoch = epoch
        self._next = position
        self._due.clear()
        self._again.clear()
        self._deliveries.clear()

    def _ready(self, view: View) -> bool:
        state = self._life.state(view)
        if state is None or self._life.closing:
            return True
        topic, sub = state
        if sub.active != self._life.id:
            self._epoch = None
            return False
        if sub.epoch != self._epoch:
            return max(sub.mark + 1, topic.first) < topic.next
        return bool(self._due) or max(self._next, sub.mark + 1, topic.first) < topic.next

    def _take(self, view: View, count: int, bytes_max: int) -> tuple[tuple[Received, ...], bool]:
        """The next messages, and whether there are more to be looked at."""
        topic, sub = self._life.receiving(view)
        if sub.active != self._life.id:
            self._epoch = None
            return (), False
        if sub.epoch != self._epoch:
            self._begin(sub.epoch, 0)
        at = max(self._next, sub.mark + 1, topic.first)
        messages, wanted = view.table("messages"), Wanted(view, sub.id)
        got: list[Received] = []
        size = looked = 0
        while len(got) < count and looked < LOOK_MAX:
            again = bool(self._due) and (self._due[0][0] <= at or at >= topic.next)
            if not again and at >= topic.next:
                break
            position = self._due[0][1] if again else at
            looked += 1
            stored: Stored | None = messages.get((topic.id, position))
            if stored is not None and wanted(stored.origin, stored.seq):
                if bytes_max:
                    size += size_of(stored.message)
                    if size > bytes_max and got:
                        break
                got.append(self._handed(position, stored, sub.epoch, again))
            if again:
                self._due.popleft()
                self._again.discard(position)
            else:
                at += 1
        self._next = at
        self._taken_of = sub
        return tuple(got), at < topic.next or bool(self._due)

    def _handed(self, position: int, stored: Stored, epoch: int, again: bool) -> Received:
        deliveries = 1
        if again:
            deliveries = self._deliveries[position] = self._deliveries.get(position, 1) + 1
            self._counters.add("redelivered")
        return received_of(self._life.topic, position, stored, deliveries, epoch)

    def _remember(self, view: View, topic: Topic, sub: Sub, position: int) -> None:
        limit = int(view.settings["unacked_max"])
        if len(self._deliveries) >= limit:
            done = [p for p in self._deliveries if p <= sub.mark and p not in self._again]
            for known in done:
                del self._deliveries[known]
        if position not in self._deliveries:
            if len(self._deliveries) >= limit:
                raise TooManyNacked(self._life.sub, limit)
            self._deliveries[position] = 1
        self._due.append((topic.next, position))
        self._again.add(position)

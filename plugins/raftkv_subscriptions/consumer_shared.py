"""Messages for a consumer of a shared subscription: the log says who gets which.

A `Take` hands out positions, the messages are read from the tables of this node, which has applied
the same entry. Between that entry and the look at the tables others may have been applied: what the
consumer does not hold any more is left out, and it is its lock that tells.

Takes of one consumer are done one after the other, beside its acknowledgements. What was taken for
a caller who has left is given back. What was acknowledged elsewhere while it was held here is not
handed out, and its lock is let go of: it would count as a message in somebody's hands for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raftkv.errors import NotApplied, Stopped, TooLarge
from raftkv.plugin import RETRY_FIRST_S, RETRY_MAX_S, View

from .commands import Take, Taken
from .consumer_life import ConsumerLife
from .consumer_settling import release_of
from .counting import Counters
from .line import Job, Line
from .reading import Received, Wanted, received_of
from .rows import ROWS_MAX, Stored
from .waiting import Crowd, Place, Waiting

__all__ = ["SharedSource"]

_Taking = tuple[tuple[Received, ...], bool]


class SharedSource:
    """What one consumer takes."""

    def __init__(
        self,
        life: ConsumerLife,
        waiting: Waiting,
        counters: Counters,
        let_go: Callable[[Sequence[int], int], None],
    ) -> None:
        self._life = life
        self._let_go = let_go
        self._waiting = waiting
        self._counters = counters
        self._takes = Line(
            life.host, counters, "take", {"take": self._take}, alone=frozenset({"take"})
        )
        #: Callers of this consumer that wait for messages.
        self._places: dict[int, Place] = {}

    async def receive(
        self, count: int, deadline: float | None, bytes_max: int, timeout_s: float | None
    ) -> tuple[Received, ...]:
        """The oldest that nobody has; (): none in time. Raises `ConsumerEnded`."""
        life = self._life
        life.receiving(life.host.view())
        crowd, place = self._waiting.enter(
            Crowd(life.topic, life.topic_id, life.sub, life.sub_id), life.sub_id, count
        )
        self._places[place.number] = place
        try:
            while await self._waiting.turn(place, deadline):
                life.receiving(life.host.view())
                got, again = await self._some(crowd, (count, bytes_max), deadline, timeout_s)
                life.receiving(life.host.view())  # what was taken goes back with its end
                if got:
                    return got
                if not again:
                    self._waiting.again(crowd, place)
            return ()
        finally:
            del self._places[place.number]
            self._waiting.leave(crowd, life.sub_id, place)

    def keeps(self, view: View, message: Received) -> bool:
        """Whether it still holds a message that it took some time ago, which is still wanted."""
        _, sub = self._life.receiving(view)
        if sub.epoch != message.epoch:
            return False
        locks = view.table("locks")
        if locks.get((self._life.id, message.position)) != message.deliveries:
            return False
        if Wanted(view, sub.id)(message.origin, message.seq):
            return True
        self._let_go((message.position,), message.epoch)
        return False

    def end(self) -> None:
        """The consumer is closed, or has ended."""
        for place in self._places.values():
            place.wake()

    def stop(self) -> None:
        """The node stops."""
        self._takes.stop()

    # --- the work ---

    async def _some(
        self,
        crowd: Crowd,
        want: tuple[int, int],
        deadline: float | None,
        timeout_s: float | None,
    ) -> _Taking:
        """Messages, or whether it is to be tried again at once. A time without a leader is one in
        which there are none."""
        runtime = self._life.host.runtime
        delay_s = RETRY_FIRST_S
        while True:
            try:
                took: _Taking = await self._takes.do(
                    "take", (crowd, *want), timeout_s, unheard=self._give_back
                )
                return took
            except (Stopped, TooLarge):
                raise
            except NotApplied:
                if deadline is not None and runtime.monotonic() + delay_s >= deadline:
                    raise
            await runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    async def _take(self, jobs: Sequence[Job]) -> None:
        [job] = jobs
        crowd, count, bytes_max = job.part
        before = crowd.state(self._life.host.view())
        command = Take(self._life.id, count, bytes_max)
        taken: Taken = await self._life.ask(command, again=lambda: job.waits)
        self._counters.add("takes")
        view = self._life.host.view()
        got = self._held(view, taken)
        if not taken.positions:
            self._counters.add("empty_takes")
            if not taken.more:
                crowd.in_vain(before, view)
        self._counters.add("received", len(got))
        self._counters.add("redelivered", sum(one.deliveries > 1 for one in got))
        job.succeed((got, bool(taken.positions) or taken.more))

    def _held(self, view: View, taken: Taken) -> tuple[Received, ...]:
        state = self._life.state(view)
        if state is None or state[1].epoch != taken.epoch:
            return ()
        locks, messages = view.table("locks"), view.table("messages")
        wanted = Wanted(view, state[1].id)
        got: list[Received] = []
        unwanted: list[int] = []
        for position, deliveries in zip(taken.positions, taken.deliveries, strict=True):
            if locks.get((self._life.id, position)) != deliveries:
                continue
            stored: Stored | None = messages.get((self._life.topic_id, position))
            if stored is None or not wanted(stored.origin, stored.seq):
                unwanted.append(position)
                continue
            got.append(received_of(self._life.topic, position, stored, deliveries, taken.epoch))
        if unwanted:
            self._let_go(unwanted, taken.epoch)
        return tuple(got)

    async def _give_back(self, took: _Taking) -> None:
        """Nobody heard that these were taken."""
        got, _ = took
        positions = tuple(one.position for one in got)
        self._counters.add("released_unheard", len(positions))
        for start in range(0, len(positions), ROWS_MAX):
            part = positions[start : start + ROWS_MAX]
            command = release_of(self._life, part, got[0].epoch)
            await self._life.ask(command, again=lambda: True)
